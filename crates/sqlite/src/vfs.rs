//! The VFS: SQLite's `sqlite3_vfs`. Paths on volumes are served here; everything else is asked of the VFS that was the default before.

use crate::abi::*;
use crate::commit::{self, Commit};
use crate::file::{METHODS, OpenFile, Slot};
use crate::volumes::{self, Place};
use fs::{Access, Error, OpenOptions};
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

struct Registered {
    host: Host,
    /// The default VFS before.
    below: *mut Vfs,
    vfs: *mut Vfs,
}

// SAFETY: both VFSs live as long as the process, and are not changed after they were registered.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

static REGISTERED: OnceLock<Registered> = OnceLock::new();

/// See [`crate::register`].
pub(crate) fn register(host: &Host, default: bool) -> Result<(), c_int> {
    // SAFETY: SQLite's own functions, on VFSs that live for ever.
    unsafe {
        if (host.libversion_number)() < VERSION_MIN {
            return Err(ERROR);
        }
        if REGISTERED.get().is_none() {
            let below = (host.vfs_find)(std::ptr::null());
            if below.is_null() {
                return Err(ERROR);
            }
            let vfs = Box::into_raw(Box::new(over(&*below)));
            if REGISTERED.set(Registered { host: *host, below, vfs }).is_err() {
                drop(Box::from_raw(vfs));
            }
        }
        let registered = REGISTERED.get().ok_or(ERROR)?;
        match (registered.host.vfs_register)(registered.vfs, default as c_int) {
            OK => Ok(()),
            code => Err(code),
        }
    }
}

/// Our VFS over another one.
fn over(below: &Vfs) -> Vfs {
    let slot = size_of::<Slot>() as c_int;
    Vfs {
        version: below.version.min(3),
        file_bytes: below.file_bytes.max(slot),
        path_max: below.path_max,
        next: std::ptr::null_mut(),
        name: c"freehold".as_ptr(),
        app_data: std::ptr::null_mut(),
        open,
        delete,
        access,
        full_pathname,
        dl_open: below.dl_open.map(|_| dl_open as _),
        dl_error: below.dl_error.map(|_| dl_error as _),
        dl_sym: below.dl_sym.map(|_| dl_sym as _),
        dl_close: below.dl_close.map(|_| dl_close as _),
        randomness,
        sleep,
        current_time,
        get_last_error,
        current_time_int64: below.current_time_int64.map(|_| current_time_int64 as _),
        set_system_call: std::ptr::null_mut(),
        get_system_call: std::ptr::null_mut(),
        next_system_call: std::ptr::null_mut(),
    }
}

fn below() -> *mut Vfs {
    REGISTERED.get().expect("the VFS is registered after this is set").below
}

/// A copy of a text in SQLite's memory; NULL without memory.
pub(crate) fn text(host: &Host, text: &str) -> *mut c_char {
    // SAFETY: SQLite gives so many bytes, or none.
    unsafe {
        let at = (host.malloc64)(text.len() as u64 + 1).cast::<u8>();
        if !at.is_null() {
            at.copy_from_nonoverlapping(text.as_ptr(), text.len());
            at.add(text.len()).write(0);
        }
        at.cast()
    }
}

/// As [`text`], once there is a VFS.
pub(crate) fn registered_text(words: &str) -> *mut c_char {
    REGISTERED.get().map_or(std::ptr::null_mut(), |r| text(&r.host, words))
}

/// # Safety
/// A C string, or NULL.
unsafe fn bytes<'a>(name: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: as the caller says.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name).to_bytes() })
}

/// Runs what is ours; `None` leaves it to the VFS below. No panic goes into C.
fn ours(failed: c_int, call: impl FnOnce() -> Result<Option<c_int>, c_int>) -> Option<c_int> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)) {
        Ok(Ok(done)) => done,
        Ok(Err(code)) => Some(code),
        Err(_) => Some(failed),
    }
}

unsafe extern "C" fn open(
    _: *mut Vfs,
    name: *const c_char,
    file: *mut File,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite's arguments.
    unsafe {
        (*file).methods = std::ptr::null();
        let done = ours(CANTOPEN, || open_here(name, file.cast(), flags, out_flags));
        done.unwrap_or_else(|| ((*below()).open)(below(), name, file, flags, out_flags))
    }
}

/// # Safety
/// As of `xOpen`.
unsafe fn open_here(
    name: *const c_char,
    slot: *mut Slot,
    flags: c_int,
    out_flags: *mut c_int,
) -> Result<Option<c_int>, c_int> {
    const KINDS: c_int = OPEN_MAIN_DB | OPEN_MAIN_JOURNAL | OPEN_SUPER_JOURNAL | OPEN_WAL;
    // SAFETY: as the caller says.
    let Some(path) = (unsafe { bytes(name) }) else { return Ok(None) };
    let kind = flags & KINDS;
    if kind == OPEN_SUPER_JOURNAL {
        commit::super_journal_is_looked_for(false);
    }
    if kind == 0 {
        // A temporary file.
        return Ok(None);
    }
    let commit = match kind {
        OPEN_MAIN_JOURNAL | OPEN_WAL => {
            // Where its database is: there, and in the same way.
            // SAFETY: the name is one that SQLite made for a journal or WAL; what it leads to is an open file.
            let of_db = unsafe {
                let db = (REGISTERED.get().ok_or(CANTOPEN)?.host.database_file_object)(name);
                let is_ours = !db.is_null() && METHODS.iter().any(|m| std::ptr::eq(m, (*db).methods));
                is_ours.then(|| (*(*db.cast::<Slot>()).file).commit.clone())
            };
            match of_db {
                Some(commit) => commit,
                None => return Ok(None),
            }
        }
        _ => Arc::new(Commit::default()),
    };
    let found = volumes::find(path, kind == OPEN_MAIN_DB).map_err(|_| CANTOPEN)?;
    let Some(Place { session, path: in_volume }) = found else {
        // A journal of a database of ours is nowhere else.
        return if matches!(kind, OPEN_MAIN_JOURNAL | OPEN_WAL) { Err(CANTOPEN) } else { Ok(None) };
    };
    if kind == OPEN_MAIN_DB {
        // SAFETY: the name of a database, as SQLite gives it.
        let asked = unsafe {
            let host = REGISTERED.get().ok_or(CANTOPEN)?.host;
            bytes((host.uri_parameter)(name, c"durability".as_ptr()))
        };
        // Nobody gets less, or more, than he asked for because of a wrong word.
        if asked.is_some_and(|asked| !commit.set(asked)) {
            return Err(CANTOPEN);
        }
    }
    let client = session.client();
    let want = |flag: c_int| flags & flag != 0;
    let mut writes = want(OPEN_READWRITE);
    let mut options = OpenOptions::new().read(true).write(writes).nofollow(want(OPEN_NOFOLLOW));
    if want(OPEN_CREATE) {
        options = if want(OPEN_EXCLUSIVE) { options.create_new(true) } else { options.create(true) };
        let db = database_of(&in_volume).filter(|_| kind != OPEN_MAIN_DB);
        let perm = db.and_then(|db| client.stat(db).ok()).map(|attr| attr.perm & 0o777);
        options = options.mode(perm.unwrap_or_else(|| 0o644 & !umask()));
    }
    let mut opened = session.heed(client.open(&in_volume, options));
    if writes
        && kind == OPEN_MAIN_DB
        && matches!(opened, Err(Error::AccessDenied | Error::NotPermitted | Error::ReadOnly))
    {
        writes = false;
        opened = session.heed(client.open(&in_volume, OpenOptions::new().read(true)));
    }
    let file = opened.map_err(|e| match e {
        Error::IsDirectory => CANTOPEN_ISDIR,
        Error::SymlinkLoop => CANTOPEN_SYMLINK,
        Error::AccessDenied if kind == OPEN_MAIN_JOURNAL => READONLY_DIRECTORY,
        Error::NoSpace => FULL,
        _ => CANTOPEN,
    })?;
    if session.is_root()
        && kind != OPEN_MAIN_DB
        && let Some(attr) = database_of(&in_volume).and_then(|db| client.stat(db).ok())
        && file.metadata().is_ok_and(|own| (own.uid, own.gid) != (attr.uid, attr.gid))
    {
        let _ = file.chown(Some(attr.uid), Some(attr.gid));
    }
    if want(OPEN_DELETEONCLOSE) {
        session.heed(client.unlink(&in_volume)).map_err(|_| CANTOPEN)?;
    }
    let shares = kind == OPEN_MAIN_DB && session.is_mounted;
    let kernel_path = PathBuf::from(OsStr::from_bytes(path));
    let open = OpenFile::new((session, client), file, kind, (in_volume, kernel_path), commit);
    // SAFETY: as the caller says.
    unsafe {
        (*slot).file = Box::into_raw(Box::new(open));
        (*slot).base.methods = &METHODS[shares as usize];
        if !out_flags.is_null() {
            let access = if writes { OPEN_READWRITE } else { OPEN_READONLY };
            *out_flags = flags & !(OPEN_READWRITE | OPEN_READONLY) | access;
        }
    }
    Ok(Some(OK))
}

/// Whether it is the name of a super-journal, as SQLite decides it (`pagerIsSuperJrnlName`): that of a database, `-mj`, and
/// nine digits of which the seventh is a 9.
fn is_super_journal(path: &[u8]) -> bool {
    let name = path.last_chunk::<12>();
    name.is_some_and(|n| n.starts_with(b"-mj") && n[9] == b'9' && n[3..].iter().all(u8::is_ascii_hexdigit))
}

/// Whether the kernel cannot say if a file is there.
fn is_uncertain(path: &[u8]) -> bool {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    let found = std::fs::metadata(Path::new(OsStr::from_bytes(path)));
    found.is_err_and(|e| !matches!(e.kind(), NotFound | NotADirectory))
}

/// The database that a journal or WAL belongs to.
fn database_of(path: &Path) -> Option<PathBuf> {
    let bytes = path.as_os_str().as_bytes();
    let of_super = bytes.windows(3).rposition(|w| w == b"-mj").map(|at| &bytes[..at]);
    let db = bytes.strip_suffix(b"-journal").or_else(|| bytes.strip_suffix(b"-wal")).or(of_super)?;
    Some(PathBuf::from(OsStr::from_bytes(db)))
}

fn umask() -> u16 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u16::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022)
}

unsafe extern "C" fn delete(_: *mut Vfs, name: *const c_char, sync: c_int) -> c_int {
    let done = ours(IOERR_DELETE, || {
        // SAFETY: SQLite's argument.
        let path = unsafe { bytes(name) }.ok_or(IOERR_DELETE)?;
        let Some(place) = volumes::find(path, false).map_err(|_| IOERR_DELETE)? else { return Ok(None) };
        let client = place.session.client();
        match place.session.heed(client.unlink(&place.path)) {
            Ok(()) => {}
            Err(Error::NotFound) => return Err(IOERR_DELETE_NOENT),
            Err(_) => return Err(IOERR_DELETE),
        }
        // The end of a single database's journal is waited for when its transaction is committed (`commit`), a super-journal's here.
        if sync != 0 && !path.ends_with(b"-journal") && !path.ends_with(b"-wal") {
            place.session.heed(client.sync()).map_err(|_| IOERR_DIR_FSYNC)?;
        }
        Ok(Some(OK))
    });
    // SAFETY: SQLite's arguments.
    done.unwrap_or_else(|| unsafe { ((*below()).delete)(below(), name, sync) })
}

unsafe extern "C" fn access(_: *mut Vfs, name: *const c_char, flags: c_int, out: *mut c_int) -> c_int {
    let done = ours(IOERR_ACCESS, || {
        // SAFETY: SQLite's argument.
        let path = unsafe { bytes(name) }.ok_or(IOERR_ACCESS)?;
        // One that is not there commits a transaction: whoever cannot tell must not say so.
        let is_super = is_super_journal(path);
        if is_super {
            commit::super_journal_is_looked_for(true);
        }
        let Some(place) = volumes::find(path, false).map_err(|_| IOERR_ACCESS)? else {
            // The VFS for Unix takes every error for an absence; the mount of a server that was killed is one.
            return if is_super && is_uncertain(path) { Err(IOERR_ACCESS) } else { Ok(None) };
        };
        let client = place.session.client();
        let found = match flags {
            // An empty journal is none.
            ACCESS_EXISTS => client.stat(&place.path).map(|a| a.kind != fs::FileType::Regular || a.size > 0),
            ACCESS_READWRITE => client.access(&place.path, Access::READ | Access::WRITE).map(|()| true),
            _ => client.access(&place.path, Access::READ).map(|()| true),
        };
        let found = match place.session.heed(found) {
            Ok(found) => found,
            Err(Error::NotFound | Error::NotDirectory) => false,
            Err(Error::AccessDenied | Error::ReadOnly) if !is_super => false,
            Err(_) => return Err(IOERR_ACCESS),
        };
        // SAFETY: a place for the answer.
        unsafe { *out = found as c_int };
        Ok(Some(OK))
    });
    // SAFETY: SQLite's arguments.
    done.unwrap_or_else(|| unsafe { ((*below()).access)(below(), name, flags, out) })
}

/// Methods that are those of the VFS below.
macro_rules! passed_on {
    ($( fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? $(, $must:ident)?; )*) => {
        $(unsafe extern "C" fn $name(_: *mut Vfs, $($arg: $ty),*) $(-> $ret)? {
            // SAFETY: SQLite's arguments; where the method may be missing below, it is missing in ours too.
            unsafe { ((*below()).$name$(.$must())?)(below(), $($arg),*) }
        })*
    };
}

passed_on! {
    fn full_pathname(name: *const c_char, len: c_int, out: *mut c_char) -> c_int;
    fn dl_open(name: *const c_char) -> *mut c_void, unwrap_unchecked;
    fn dl_error(len: c_int, out: *mut c_char), unwrap_unchecked;
    fn dl_sym(library: *mut c_void, name: *const c_char) -> *mut c_void, unwrap_unchecked;
    fn dl_close(library: *mut c_void), unwrap_unchecked;
    fn randomness(len: c_int, out: *mut c_char) -> c_int;
    fn sleep(micros: c_int) -> c_int;
    fn current_time(out: *mut f64) -> c_int;
    fn get_last_error(len: c_int, out: *mut c_char) -> c_int;
    fn current_time_int64(out: *mut i64) -> c_int, unwrap_unchecked;
}
