//! Open files: SQLite's `sqlite3_io_methods` over a file of the session.

use crate::abi::*;
use crate::commit::Commit;
use crate::locks;
use crate::shm::Shm;
use crate::vfs;
use crate::volumes::Session;
use fs::client::BlockingFile;
use fs::{ATOMIC_WRITE_MAX, Blocking, Error};
use share::Remote;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// What SQLite allocates for a file of ours.
#[repr(C)]
pub(crate) struct Slot {
    pub base: File,
    pub file: *mut OpenFile,
}

/// Writes between SQLITE_FCNTL_BEGIN_ATOMIC_WRITE and its end, kept back.
#[derive(Default)]
struct Batch {
    pieces: Vec<(u64, Vec<u8>)>,
    bytes: usize,
}

/// An open file.
pub(crate) struct OpenFile {
    pub file: BlockingFile<Remote>,
    pub client: Blocking<Remote>,
    pub session: Arc<Session>,
    /// One of SQLite's kinds: OPEN_MAIN_DB, ...
    pub kind: c_int,
    /// Within the volume.
    pub path: PathBuf,
    /// For the kernel.
    pub kernel_path: PathBuf,
    pub commit: Arc<Commit>,
    level: c_int,
    batch: Option<Batch>,
    shm: Option<Shm>,
    persist_wal: bool,
    errno: c_int,
}

impl OpenFile {
    pub fn new(
        (session, client): (Arc<Session>, Blocking<Remote>),
        file: BlockingFile<Remote>,
        kind: c_int,
        (path, kernel_path): (PathBuf, PathBuf),
        commit: Arc<Commit>,
    ) -> OpenFile {
        if kind == OPEN_WAL {
            commit.wals.fetch_add(1, Ordering::Relaxed);
        }
        OpenFile {
            file,
            client,
            session,
            kind,
            path,
            kernel_path,
            commit,
            level: LOCK_NONE,
            batch: None,
            shm: None,
            persist_wal: false,
            errno: 0,
        }
    }

    /// SQLite's code for a result, `code` for most errors.
    fn code<T>(&mut self, result: fs::Result<T>, code: c_int) -> Result<T, c_int> {
        self.session.heed(result).map_err(|e| {
            self.errno = e.errno();
            match e {
                Error::NoSpace => FULL,
                _ => code,
            }
        })
    }

    fn read(&mut self, to: &mut [u8], offset: u64) -> Result<c_int, c_int> {
        let read = self.file.read_at(to, offset);
        let n = self.code(read, IOERR_READ)?;
        if n < to.len() {
            to[n..].fill(0);
            return Err(IOERR_SHORT_READ);
        }
        Ok(OK)
    }

    fn write(&mut self, from: &[u8], offset: u64) -> Result<c_int, c_int> {
        if let Some(batch) = &mut self.batch {
            batch.bytes += from.len();
            // What does not fit is not kept: the end of the batch fails, and SQLite writes it again with a journal.
            if batch.bytes <= ATOMIC_WRITE_MAX {
                batch.pieces.push((offset, from.to_vec()));
            }
            return Ok(OK);
        }
        let written = self.file.write_all_at(from, offset);
        self.code(written, IOERR_WRITE)?;
        Ok(OK)
    }

    fn commit_batch(&mut self) -> Result<c_int, c_int> {
        let batch = self.batch.take().unwrap_or_default();
        if batch.bytes > ATOMIC_WRITE_MAX {
            return Err(IOERR_COMMIT_ATOMIC);
        }
        let pieces: Vec<(u64, &[u8])> = batch.pieces.iter().map(|(at, data)| (*at, &data[..])).collect();
        let written = self.file.write_atomic_at(&pieces);
        if let Err(Error::NotSupported(_)) = &written {
            self.session.is_atomic.store(false, Ordering::Relaxed);
        }
        // Whatever is wrong, also a lack of space, SQLite tries with a journal.
        self.session.heed(written).map_err(|e| {
            self.errno = e.errno();
            IOERR_COMMIT_ATOMIC
        })?;
        Ok(OK)
    }

    fn has_moved(&mut self) -> bool {
        let found = self.session.heed(self.client.stat(&self.path));
        !found.is_ok_and(|attr| attr.ino == self.file.ino())
    }

    /// # Safety
    /// `argument` is what SQLite gives with `op`.
    unsafe fn control(&mut self, op: c_int, argument: *mut c_void) -> Result<c_int, c_int> {
        let number = argument.cast::<c_int>();
        // SAFETY: as the caller says: the argument of these is an int, or is not looked at.
        unsafe {
            match op {
                FCNTL_LOCKSTATE => *number = self.level,
                FCNTL_LAST_ERRNO => *number = self.errno,
                FCNTL_SIZE_HINT | FCNTL_CHUNK_SIZE => {}
                FCNTL_PERSIST_WAL => match *number {
                    0 => self.persist_wal = false,
                    1.. => self.persist_wal = true,
                    _ => *number = self.persist_wal as c_int,
                },
                FCNTL_POWERSAFE_OVERWRITE => *number = 1,
                FCNTL_HAS_MOVED => *number = self.has_moved() as c_int,
                FCNTL_SYNC => self.commit.announce(!argument.is_null()),
                FCNTL_COMMIT_PHASETWO => {
                    let committed = self.commit.committed(&self.file);
                    self.code(committed, IOERR_FSYNC)?;
                }
                FCNTL_BEGIN_ATOMIC_WRITE => self.batch = Some(Batch::default()),
                FCNTL_COMMIT_ATOMIC_WRITE => return self.commit_batch(),
                FCNTL_ROLLBACK_ATOMIC_WRITE => self.batch = None,
                FCNTL_VFSNAME => *argument.cast::<*mut c_char>() = vfs::registered_text("freehold"),
                FCNTL_PRAGMA => return self.pragma(argument.cast()),
                _ => return Err(NOTFOUND),
            }
        }
        Ok(OK)
    }

    /// `PRAGMA freehold_durability[=full|ordered]`.
    ///
    /// # Safety
    /// `words`: place of the answer, name, argument or NULL.
    unsafe fn pragma(&mut self, words: *mut *mut c_char) -> Result<c_int, c_int> {
        // SAFETY: as the caller says.
        unsafe {
            let (name, value) = (CStr::from_ptr(*words.add(1)), *words.add(2));
            if !name.to_bytes().eq_ignore_ascii_case(b"freehold_durability") {
                return Err(NOTFOUND);
            }
            if !value.is_null() && !self.commit.set(CStr::from_ptr(value).to_bytes()) {
                *words = vfs::registered_text("freehold_durability is 'full' or 'ordered'");
                return Err(ERROR);
            }
            *words = vfs::registered_text(self.commit.name());
        }
        Ok(OK)
    }

    fn shm(&mut self) -> Result<&mut Shm, c_int> {
        if self.shm.is_none() {
            self.shm = Some(Shm::open(&self.session, &self.path, &self.kernel_path)?);
        }
        Ok(self.shm.as_mut().expect("it was just opened"))
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if self.kind == OPEN_WAL {
            self.commit.wals.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The file of ours behind SQLite's.
///
/// # Safety
/// It was opened by `vfs::open` with the methods below and is not closed; SQLite uses a file from one thread at a time.
unsafe fn of<'a>(file: *mut File) -> &'a mut OpenFile {
    // SAFETY: as the caller says.
    unsafe { &mut *(*file.cast::<Slot>()).file }
}

/// No panic goes into C, and a child of fork does nothing with its parent's files.
fn guard(
    file: &mut OpenFile,
    failed: c_int,
    call: impl FnOnce(&mut OpenFile) -> Result<c_int, c_int>,
) -> c_int {
    if !file.session.is_ours() {
        return failed;
    }
    let call = std::panic::AssertUnwindSafe(|| call(file));
    std::panic::catch_unwind(call).map_or(failed, |done| done.unwrap_or_else(|code| code))
}

/// Defines methods; the bodies get the [`OpenFile`].
macro_rules! methods {
    ($( fn $name:ident($file:ident $(, $arg:ident: $ty:ty)*) or $failed:expr => $body:expr; )*) => {
        $(unsafe extern "C" fn $name(file: *mut File $(, $arg: $ty)*) -> c_int {
            // SAFETY: SQLite calls it with a file of ours, and arguments as its documentation has them, for all methods below.
            guard(unsafe { of(file) }, $failed, |$file| $body)
        })*
    };
}

methods! {
    fn read(f, to: *mut c_void, len: c_int, offset: i64) or IOERR_READ =>
        // SAFETY: the buffer has this length.
        f.read(unsafe { std::slice::from_raw_parts_mut(to.cast(), len.max(0) as usize) }, offset as u64);
    fn write(f, from: *const c_void, len: c_int, offset: i64) or IOERR_WRITE =>
        // SAFETY: as above.
        f.write(unsafe { std::slice::from_raw_parts(from.cast(), len.max(0) as usize) }, offset as u64);
    fn truncate(f, size: i64) or IOERR_TRUNCATE => {
        let done = f.file.set_len(size.max(0) as u64);
        f.code(done, IOERR_TRUNCATE).map(|()| OK)
    };
    fn sync(f, _flags: c_int) or IOERR_FSYNC => {
        let done = f.commit.sync(&f.file, f.kind);
        f.code(done, IOERR_FSYNC).map(|()| OK)
    };
    fn file_size(f, size: *mut i64) or IOERR_FSTAT => {
        let attr = f.file.metadata();
        let attr = f.code(attr, IOERR_FSTAT)?;
        // SAFETY: a place for the answer.
        unsafe { *size = attr.size as i64 };
        Ok(OK)
    };
    fn lock(f, level: c_int) or IOERR_LOCK => {
        let got = locks::lock(&f.file, &mut f.level, level);
        f.code(got, IOERR_LOCK).map(|got| if got { OK } else { BUSY })
    };
    fn unlock(f, level: c_int) or IOERR_UNLOCK => {
        let done = locks::unlock(&f.file, &mut f.level, level);
        f.code(done, IOERR_UNLOCK).map(|()| OK)
    };
    fn check_reserved_lock(f, out: *mut c_int) or IOERR_CHECKRESERVEDLOCK => {
        let found = locks::is_reserved(&f.file, f.level);
        let found = f.code(found, IOERR_CHECKRESERVEDLOCK)?;
        // SAFETY: a place for the answer.
        unsafe { *out = found as c_int };
        Ok(OK)
    };
    fn file_control(f, op: c_int, argument: *mut c_void) or IOERR =>
        // SAFETY: the argument belongs to the operation.
        unsafe { f.control(op, argument) };
    fn shm_map(f, region: c_int, bytes: c_int, extend: c_int, out: *mut *mut c_void) or IOERR_SHMMAP => {
        let at = f.shm()?.map(region.max(0) as usize, bytes.max(0) as usize, extend != 0)?;
        // SAFETY: a place for the answer.
        unsafe { *out = at };
        Ok(OK)
    };
    fn shm_lock(f, first: c_int, count: c_int, flags: c_int) or IOERR_SHMLOCK =>
        Ok(f.shm.as_ref().map_or(IOERR_SHMLOCK, |shm| shm.lock(first, count, flags)));
    fn shm_unmap(f, delete: c_int) or IOERR_SHMMAP => {
        if let Some(shm) = f.shm.take() {
            shm.close(delete != 0);
        }
        Ok(OK)
    };
}

unsafe extern "C" fn close(file: *mut File) -> c_int {
    // SAFETY: a file of ours, for the last time.
    let open = unsafe {
        let slot = file.cast::<Slot>();
        (*slot).base.methods = std::ptr::null();
        Box::from_raw(std::mem::replace(&mut (*slot).file, std::ptr::null_mut()))
    };
    if !open.session.is_ours() {
        // The parent's: closing it would say so in the parent's session.
        std::mem::forget(open);
        return IOERR_CLOSE;
    }
    // Its locks go with it. There is nothing left that closing could lose.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(open)));
    OK
}

unsafe extern "C" fn sector_size(_file: *mut File) -> c_int {
    4096
}

/// POWERSAFE_OVERWRITE: a page goes to the device with the bytes around those that were changed as they were. BATCH_ATOMIC:
/// `FileSystem::write_atomic`. Not SEQUENTIAL, as plain overwrites are ordered by barriers alone (docs/SEMANTICS.md, "After a crash", 4). Not
/// SAFE_APPEND, though appending is safe: SQLite then writes journals whose length says how many of their records count,
/// and of a journal that is kept (PERSIST) and overwritten it would have to tell old records from new ones by a checksum of
/// every 200th byte; a barrier more costs next to nothing.
unsafe extern "C" fn device_characteristics(file: *mut File) -> c_int {
    // SAFETY: a file of ours.
    let open = unsafe { of(file) };
    let is_atomic = open.kind == OPEN_MAIN_DB && open.session.is_atomic.load(Ordering::Relaxed);
    IOCAP_POWERSAFE_OVERWRITE | if is_atomic { IOCAP_BATCH_ATOMIC } else { 0 }
}

unsafe extern "C" fn shm_barrier(_file: *mut File) {
    fence(Ordering::SeqCst);
}

const fn with_version(version: c_int) -> IoMethods {
    IoMethods {
        version,
        close,
        read,
        write,
        truncate,
        sync,
        file_size,
        lock,
        unlock,
        check_reserved_lock,
        file_control,
        sector_size,
        device_characteristics,
        shm_map,
        shm_lock,
        shm_barrier,
        shm_unmap,
    }
}

/// Of files without memory to share, and of those with it.
pub(crate) static METHODS: [IoMethods; 2] = [with_version(1), with_version(2)];
