//! The file calls, by their plain names of the C library, so that a library loaded before it (LD_PRELOAD) sees each of them.
//! `std::fs` is not used for files of the set: it looks at files with `statx`, and adds `O_CLOEXEC` to each open.
//!
//! Every call returns the errno as its error. Calls that a signal interrupted are repeated.

use std::ffi::CStr;
use std::mem::MaybeUninit;

/// The number of an error (errno).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl From<Errno> for std::io::Error {
    fn from(e: Errno) -> std::io::Error {
        std::io::Error::from_raw_os_error(e.0)
    }
}

type Result<T> = std::result::Result<T, Errno>;

/// Turns -1 into the errno, and repeats a call that a signal interrupted.
fn checked<T: PartialEq + From<i8>>(mut call: impl FnMut() -> T) -> Result<T> {
    loop {
        let result = call();
        if result != T::from(-1) {
            return Ok(result);
        }
        match std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) {
            libc::EINTR => {}
            errno => return Err(Errno(errno)),
        }
    }
}

/// An open file. Dropping it closes it; [`Fd::close`] also tells whether that failed.
#[derive(Debug)]
pub struct Fd(libc::c_int);

impl Fd {
    /// Opens `path` with `flags` (`O_CREAT` makes it with mode 0666).
    pub fn open(path: &CStr, flags: libc::c_int) -> Result<Fd> {
        // SAFETY: `path` ends with a zero byte; the mode is given for when `O_CREAT` is among the flags.
        checked(|| unsafe { libc::open(path.as_ptr(), flags, 0o666 as libc::c_uint) }).map(Fd)
    }

    /// Closes it.
    pub fn close(self) -> Result<()> {
        let fd = std::mem::ManuallyDrop::new(self);
        // SAFETY: the descriptor is ours, and nobody uses it afterwards.
        if unsafe { libc::close(fd.0) } == 0 {
            return Ok(());
        }
        // The descriptor is gone even when close was interrupted (Linux), so it is not repeated.
        Err(Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)))
    }

    /// Moves the file's position; returns it.
    pub fn seek(&self, offset: i64, whence: libc::c_int) -> Result<u64> {
        // SAFETY: no memory is involved.
        checked(|| unsafe { libc::lseek(self.0, offset, whence) }).map(|at| at as u64)
    }

    /// Reads from the position; 0 at the end of the file.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize> {
        // SAFETY: the buffer is ours to write, and the length is its length.
        checked(|| unsafe { libc::read(self.0, buffer.as_mut_ptr().cast(), buffer.len()) })
            .map(|n| n as usize)
    }

    /// Writes all of `data` at the position. A write that takes nothing is the error EIO.
    pub fn write_all(&self, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            // SAFETY: the data is ours to read, and the length is its length.
            let n = checked(|| unsafe { libc::write(self.0, data.as_ptr().cast(), data.len()) })? as usize;
            if n == 0 {
                return Err(Errno(libc::EIO));
            }
            data = data.get(n..).ok_or(Errno(libc::EIO))?;
        }
        Ok(())
    }

    /// Makes it durable.
    pub fn fsync(&self) -> Result<()> {
        // SAFETY: no memory is involved.
        checked(|| unsafe { libc::fsync(self.0) }).map(drop)
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours, and nobody uses it afterwards.
        unsafe { libc::close(self.0) };
    }
}

/// Unlinks a file.
pub fn unlink(path: &CStr) -> Result<()> {
    // SAFETY: `path` ends with a zero byte.
    checked(|| unsafe { libc::unlink(path.as_ptr()) }).map(drop)
}

/// Looks at a file; returns its size.
pub fn stat(path: &CStr) -> Result<u64> {
    let mut out = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `path` ends with a zero byte, and `out` has room for the answer.
    checked(|| unsafe { libc::stat(path.as_ptr(), out.as_mut_ptr()) })?;
    // SAFETY: zeros are a value of the type; the call has filled in the rest.
    Ok(unsafe { out.assume_init() }.st_size as u64)
}

/// Makes a directory with mode 0755.
pub fn mkdir(path: &CStr) -> Result<()> {
    // SAFETY: `path` ends with a zero byte.
    checked(|| unsafe { libc::mkdir(path.as_ptr(), 0o755) }).map(drop)
}

/// Removes an empty directory.
pub fn rmdir(path: &CStr) -> Result<()> {
    // SAFETY: `path` ends with a zero byte.
    checked(|| unsafe { libc::rmdir(path.as_ptr()) }).map(drop)
}

/// Nanoseconds of the clock that never goes back; the same in all processes.
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` has room for the answer. The clock exists on every Linux, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
