//! System calls with their errors as errors of the contract.

use fs::{Error, Result};
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The result of a system call, or the contract's error for errno.
pub fn check<T: Into<i64>>(result: T) -> Result<i64> {
    let result = result.into();
    if result >= 0 { Ok(result) } else { Err(from_errno(std::io::Error::last_os_error())) }
}

/// The contract's error with this errno.
fn from_errno(e: std::io::Error) -> Error {
    let all = [
        Error::NotFound,
        Error::Exists,
        Error::NotDirectory,
        Error::IsDirectory,
        Error::NotEmpty,
        Error::AccessDenied,
        Error::NotPermitted,
        Error::Invalid("host"),
        Error::NameTooLong,
        Error::SymlinkLoop,
        Error::TooLarge,
        Error::NoSpace,
        Error::BadHandle,
        Error::Stale,
        Error::TooManyLinks,
        Error::ReadOnly,
        Error::NoAttribute,
        Error::AttributeTooLarge,
        Error::BufferTooSmall,
        Error::NotSupported("host"),
        Error::WouldBlock,
        Error::Deadlock,
        Error::NoSuchOffset,
        Error::Interrupted,
        Error::CrossDevice,
        Error::TooManyOpen,
    ];
    let errno = e.raw_os_error().unwrap_or(0);
    all.into_iter().find(|e| e.errno() == errno).unwrap_or_else(|| Error::Busy(e.to_string()))
}

/// A descriptor that is closed when it is dropped.
pub struct Fd(OwnedFd);

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Fd {
    /// openat(2).
    pub fn open_at(dir: RawFd, path: &CStr, flags: i32, mode: u32) -> Result<Fd> {
        // SAFETY: the path ends with NUL.
        let fd = check(unsafe { libc::openat(dir, path.as_ptr(), flags | libc::O_CLOEXEC, mode) })?;
        // SAFETY: the descriptor is new and belongs to nobody else.
        Ok(Fd(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
    }

    /// Opens the inode of an `O_PATH` descriptor.
    pub fn reopen(path_fd: RawFd, flags: i32) -> Result<Fd> {
        Fd::open_at(libc::AT_FDCWD, &magic(path_fd), flags, 0)
    }

    /// fstat(2).
    pub fn stat(&self) -> Result<libc::stat> {
        stat(self.as_raw_fd())
    }
}

/// fstat(2), also of `O_PATH` descriptors.
pub fn stat(fd: RawFd) -> Result<libc::stat> {
    // SAFETY: all zeros is a valid value.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `st` is a valid place for the result.
    check(unsafe { libc::fstat(fd, &mut st) })?;
    Ok(st)
}

/// A path that leads to the inode of a descriptor, without walking its real path.
pub fn magic(fd: RawFd) -> CString {
    CString::new(format!("/proc/self/fd/{fd}")).expect("no NUL")
}

/// Raises the limit of open files as far as allowed.
pub fn raise_file_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// One raw entry of a directory: name and the offset behind it.
pub struct RawEntry {
    pub name: Vec<u8>,
    pub offset: u64,
}

/// Reads entries at the descriptor's place, as many as fit a buffer; none at the end.
pub fn getdents(fd: RawFd) -> Result<Vec<RawEntry>> {
    let mut buffer = vec![0u8; 4096];
    // SAFETY: the buffer is valid for its length.
    let n = check(unsafe { libc::syscall(libc::SYS_getdents64, fd, buffer.as_mut_ptr(), buffer.len()) })?;
    let (mut at, mut out) = (0, Vec::new());
    while at < n as usize {
        // struct linux_dirent64: ino (8), offset (8), record length (2), type (1), name with NUL.
        let entry = &buffer[at..];
        let offset = u64::from_ne_bytes(entry[8..16].try_into().expect("eight bytes"));
        let len = u16::from_ne_bytes([entry[16], entry[17]]) as usize;
        let name = entry[19..len].split(|&b| b == 0).next().unwrap_or_default().to_vec();
        out.push(RawEntry { name, offset });
        at += len;
    }
    Ok(out)
}
