//! Barriers on file descriptors of the kernel, whatever is behind them: programs may always ask for order, and get durability where there
//! is nothing cheaper.
//!
//! [`fbarrier`] and [`fdatabarrier`] take the first of these that there is:
//! 1. the function of the same name in this process: under `freehold run` the preloaded library has it;
//! 2. the ioctl [`IOC_BARRIER`] or [`IOC_DATABARRIER`]: on a FUSE mount of a volume the door answers it;
//! 3. fsync(2) or fdatasync(2).
//!
//! What the ioctl covers is what the mount's server knows of: every write(2), through whichever descriptor and door, that has returned. Not
//! what stands in the kernel alone: stores into shared mappings, until msync(2) with MS_SYNC or fsync(2) has written them; with the mount option `writeback`
//! also written pages, and such a mount therefore answers `ENOTTY`, so that the third way is taken. Buffers of stdio are the program's own, to be
//! flushed before, as for fsync(2).
//!
//! Tested here, in `fuse/tests/mount.rs`, `capi/tests/c.rs` and `freehold/tests/order.rs`.

use libc::{c_int, c_ulong};
use std::ffi::{CStr, c_void};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `_IO('F', 0xb0)`: fbarrier, on a regular file or directory of a mounted volume. No argument.
pub const IOC_BARRIER: u32 = (b'F' as u32) << 8 | 0xb0;
/// `_IO('F', 0xb1)`: fdatabarrier, likewise.
pub const IOC_DATABARRIER: u32 = (b'F' as u32) << 8 | 0xb1;

/// The request code of a barrier, and back.
pub const fn ioctl_of(datasync: bool) -> u32 {
    if datasync { IOC_DATABARRIER } else { IOC_BARRIER }
}

/// Which barrier an ioctl asks for: whether it is fdatabarrier. `None`: none.
pub const fn barrier_of(request: u32) -> Option<bool> {
    match request {
        IOC_BARRIER => Some(false),
        IOC_DATABARRIER => Some(true),
        _ => None,
    }
}

/// Everything done before on the volume of this descriptor persists before anything done later. See the module documentation for what it
/// does where there is no such volume.
///
/// # Errors
/// `EBADF`; `EIO` and what else fsync(2) has. `EINVAL` and `EROFS` from descriptors that cannot be synced (pipes, sockets).
pub fn fbarrier(fd: RawFd) -> io::Result<()> {
    barrier(fd, false)
}

/// As [`fbarrier`], but times of the file may be left out.
///
/// # Errors
/// As [`fbarrier`].
pub fn fdatabarrier(fd: RawFd) -> io::Result<()> {
    barrier(fd, true)
}

/// Both of them.
///
/// # Errors
/// As [`fbarrier`].
pub fn barrier(fd: RawFd, datasync: bool) -> io::Result<()> {
    static FOUND: [AtomicPtr<c_void>; 2] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];
    const NAMES: [&CStr; 2] = [c"fbarrier", c"fdatabarrier"];
    let found = &FOUND[datasync as usize];
    let mut function = found.load(Ordering::Acquire);
    if function.is_null() {
        // SAFETY: the name ends with NUL.
        let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, NAMES[datasync as usize].as_ptr()) };
        function = if symbol.is_null() { NOTHING } else { symbol };
        found.store(function, Ordering::Release);
    }
    if function == NOTHING {
        return kernel_barrier(fd, datasync);
    }
    // SAFETY: a function of this name has this prototype: it is that of the preloaded library, or of a libc that has it of its own.
    let function: unsafe extern "C" fn(c_int) -> c_int = unsafe { std::mem::transmute(function) };
    // SAFETY: it takes any number.
    checked(unsafe { function(fd) })
}

/// Noted for a function that there is not.
const NOTHING: *mut c_void = std::ptr::without_provenance_mut(1);

/// As [`barrier`] without the first way: for the library that is that way.
///
/// # Errors
/// As [`fbarrier`].
pub fn kernel_barrier(fd: RawFd, datasync: bool) -> io::Result<()> {
    // SAFETY: these requests have no argument, and where they mean nothing the kernel says so.
    let asked = checked(unsafe { libc::ioctl(fd, ioctl_of(datasync) as c_ulong as _, 0) });
    match asked.as_ref().err().and_then(io::Error::raw_os_error) {
        // What file systems, devices and FUSE servers say of an ioctl that they do not know or do not allow.
        Some(
            libc::ENOTTY
            | libc::EINVAL
            | libc::EOPNOTSUPP
            | libc::ENOSYS
            | libc::EPERM
            | libc::EACCES
            | libc::EFAULT,
        ) => {}
        _ => return asked,
    }
    // SAFETY: both take any number.
    checked(unsafe { if datasync { libc::fdatasync(fd) } else { libc::fsync(fd) } })
}

fn checked(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    #[test]
    fn numbers_are_those_of_the_header() {
        // _IO('F', n) of <asm-generic/ioctl.h>: no direction, no size.
        assert_eq!((IOC_BARRIER, IOC_DATABARRIER), (0x46b0, 0x46b1));
        assert_eq!([false, true].map(|d| barrier_of(ioctl_of(d))), [Some(false), Some(true)]);
        assert_eq!(barrier_of(0x5401), None);
    }

    #[test]
    fn any_descriptor() {
        let mut file = tempfile();
        file.write_all(b"x").unwrap();
        for barrier in [fbarrier, fdatabarrier] {
            barrier(file.as_raw_fd()).unwrap();
            barrier(std::fs::File::open("/").unwrap().as_raw_fd()).unwrap();
            assert_eq!(barrier(-1).unwrap_err().raw_os_error(), Some(libc::EBADF));
            let closed = 1 << 20;
            assert_eq!(barrier(closed).unwrap_err().raw_os_error(), Some(libc::EBADF));
            let (pipe, _end) = io::pipe().unwrap();
            assert_eq!(barrier(pipe.as_raw_fd()).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        }
    }

    fn tempfile() -> std::fs::File {
        let path = std::env::temp_dir().join(format!("freehold-barrier-{}", std::process::id()));
        let file = std::fs::File::create_new(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file
    }
}
