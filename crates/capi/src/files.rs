//! Open files.

use crate::border::{
    Failure, FhAttr, Result, check_place, guard, guard_int, memory, memory_mut, object, path, put,
};
use crate::engine::Engine;
use crate::session::{FhSession, Session};
use fs::client::{File, OpenOptions};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// `fh_file`.
#[derive(Debug)]
pub struct FhFile {
    /// Requests under way have it, too.
    pub(crate) file: Arc<File<Engine>>,
    pub(crate) session: Arc<Session>,
}

impl FhFile {
    pub(crate) fn new(file: File<Engine>, session: Arc<Session>) -> FhFile {
        FhFile { file: Arc::new(file), session }
    }
}

/// Flags of open(2) in the words of the library.
pub(crate) fn options(flags: c_int, mode: u32) -> Result<OpenOptions> {
    let mut left = flags & !libc::O_ACCMODE;
    let mut has = |bits: c_int| {
        let on = left & bits == bits;
        if on {
            left &= !bits;
        }
        on
    };
    // O_SYNC contains O_DSYNC, and O_TMPFILE contains O_DIRECTORY: the larger ones come first.
    let (sync, tmpfile) = (has(libc::O_SYNC), has(libc::O_TMPFILE));
    let (dsync, directory) = (has(libc::O_DSYNC), has(libc::O_DIRECTORY));
    let (create, exclusive) = (has(libc::O_CREAT), has(libc::O_EXCL));
    let mut options = OpenOptions::new()
        .sync(sync)
        .tmpfile(tmpfile)
        .dsync(dsync)
        .directory(directory)
        .truncate(has(libc::O_TRUNC))
        .direct(has(libc::O_DIRECT))
        .noatime(has(libc::O_NOATIME))
        .nofollow(has(libc::O_NOFOLLOW))
        .mode((mode & 0o7777) as u16);
    if exclusive && (create || tmpfile) {
        options = options.create_new(true);
    }
    options = options.create(create);
    let append = has(libc::O_APPEND);
    // What makes no difference here.
    has(libc::O_CLOEXEC);
    has(libc::O_LARGEFILE);
    has(libc::O_NONBLOCK);
    has(libc::O_NOCTTY);
    if left != 0 {
        return Err(Failure::new(libc::EINVAL, "flags of open that are not known here"));
    }
    match flags & libc::O_ACCMODE {
        // Who only reads appends nothing.
        libc::O_RDONLY => Ok(options.read(true)),
        libc::O_WRONLY => Ok(options.write(true).append(append)),
        libc::O_RDWR => Ok(options.read(true).write(true).append(append)),
        _ => Err(Failure::new(libc::EINVAL, "neither O_RDONLY nor O_WRONLY nor O_RDWR")),
    }
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_open(
    session: *mut FhSession,
    name: *const c_char,
    flags: c_int,
    mode: u32,
    file: *mut *mut FhFile,
) -> c_int {
    guard_int(|| {
        // SAFETY: the header.
        let (FhSession(session), name) = unsafe { (object(session)?, path(name)?) };
        check_place(file)?;
        let opened = session.blocking.open(name, options(flags, mode)?)?;
        let made = Box::new(FhFile::new(opened.into(), session.clone()));
        // SAFETY: the header.
        unsafe { put(file, Box::into_raw(made)) }
    })
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_close(file: *mut FhFile) -> c_int {
    guard_int(|| {
        // SAFETY: the header.
        let there = unsafe { object(file) }?;
        // Without requests under way this is the only one: nobody else may use a file that is being closed.
        if Arc::strong_count(&there.file) > 1 {
            return Err(Failure::new(libc::EBUSY, "requests of the file are under way"));
        }
        // SAFETY: the header: it was given by this library and is not used any more.
        let FhFile { file, session } = *unsafe { Box::from_raw(file) };
        match Arc::try_unwrap(file) {
            Ok(file) => Ok(session.block_on(file.close())?),
            // Dropping the last one closes it.
            Err(_) => Ok(()),
        }
    })
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_pread(file: *mut FhFile, to: *mut c_void, len: usize, offset: u64) -> i64 {
    guard(|| {
        // SAFETY: the header.
        let (f, to) = unsafe { (object(file)?, memory_mut(to.cast(), len)?) };
        Ok(f.session.block_on(f.file.read_at(to, offset))? as i64)
    })
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_pwrite(file: *mut FhFile, from: *const c_void, len: usize, offset: u64) -> i64 {
    guard(|| {
        // SAFETY: the header.
        let (f, from) = unsafe { (object(file)?, memory(from.cast(), len)?) };
        Ok(f.session.block_on(f.file.write_at(from, offset))? as i64)
    })
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_fstat(file: *mut FhFile, attr: *mut FhAttr) -> c_int {
    guard_int(|| {
        // SAFETY: the header.
        let f = unsafe { object(file) }?;
        check_place(attr)?;
        let found = f.session.block_on(f.file.metadata())?;
        // SAFETY: the header.
        unsafe { put(attr, found.into()) }
    })
}

/// Functions of a file that return nothing else.
macro_rules! of_file {
    ($($name:ident($($arg:ident: $ty:ty),*) => $method:ident;)*) => {$(
        /// # Safety
        /// The header.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(file: *mut FhFile, $($arg: $ty),*) -> c_int {
            guard_int(|| {
                // SAFETY: the header.
                let f = unsafe { object(file) }?;
                Ok(f.session.block_on(f.file.$method($($arg),*))?)
            })
        }
    )*};
}

of_file! {
    fh_ftruncate(size: u64) => set_len;
    fh_fsync() => fsync;
    fh_fdatasync() => fdatasync;
    fh_fbarrier() => fbarrier;
    fh_fdatabarrier() => fdatabarrier;
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_barrier_fd(fd: c_int) -> c_int {
    guard_int(|| Ok(fs::descriptor::fbarrier(fd)?))
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_databarrier_fd(fd: c_int) -> c_int {
    guard_int(|| Ok(fs::descriptor::fdatabarrier(fd)?))
}
