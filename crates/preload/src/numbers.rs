//! syscall(2): programs that make calls by their numbers, because their libc may be older than the call. libuv (node) does so for statx,
//! copy_file_range and close. Those that have a function of ours behind them go there; the rest goes to the kernel.
//!
//! The library itself makes by number, where it is not seen to be inside, only calls of descriptors that are not the program's. Programs with system calls of their own code (Go, some of Rust's libraries)
//! are not seen. Where tested: `tests/all/more_programs.rs`, `tests/all/processes.rs`.

use libc::{c_int, c_long};

/// What a call by number gives, if it is one of ours; errno is set as by libc.
///
/// # Safety
/// The arguments are those of the call.
pub(crate) unsafe fn served(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_long> {
    if crate::hook::is_inside() {
        return None;
    }
    let (fd, second) = (a as c_int, b as c_int);
    // SAFETY: as the caller says; each function has the arguments of the call of its name.
    unsafe {
        Some(match number {
            libc::SYS_statx => crate::stat::statx(fd, b as _, c as c_int, d as _, e as _) as c_long,
            libc::SYS_copy_file_range => {
                crate::rw::copy_file_range(fd, b as _, c as c_int, d as _, e, f as _) as c_long
            }
            libc::SYS_renameat2 => crate::names::renameat2(fd, b as _, c as c_int, d as _, e as _) as c_long,
            // Without flags, which the kernel's first one does not have.
            libc::SYS_faccessat => crate::stat::faccessat(fd, b as _, c as c_int, 0) as c_long,
            libc::SYS_faccessat2 => crate::stat::faccessat(fd, b as _, c as c_int, d as c_int) as c_long,
            libc::SYS_sendfile => crate::rw::sendfile(fd, second, c as _, d) as c_long,
            libc::SYS_splice => crate::rw::splice(fd, b as _, c as c_int, d as _, e, f as _) as c_long,
            libc::SYS_preadv2 => crate::rw::preadv2(fd, b as _, c as c_int, d as _, f as c_int) as c_long,
            libc::SYS_pwritev2 => crate::rw::pwritev2(fd, b as _, c as c_int, d as _, f as c_int) as c_long,
            libc::SYS_getdents64 if crate::table::is_ours(fd) => {
                crate::dirs::getdents64(fd, b as _, c) as c_long
            }
            // The kernel would say that it is done.
            libc::SYS_fsync if crate::table::is_ours(fd) => crate::attrs::fsync(fd) as c_long,
            libc::SYS_fdatasync if crate::table::is_ours(fd) => crate::attrs::fdatasync(fd) as c_long,
            libc::SYS_sync_file_range if crate::table::is_ours(fd) => crate::attrs::fdatasync(fd) as c_long,
            libc::SYS_syncfs if crate::table::is_ours(fd) => crate::attrs::syncfs(fd) as c_long,
            libc::SYS_sync => {
                crate::attrs::sync();
                0
            }
            libc::SYS_close if crate::table::is_ours(fd) || crate::mounts::is_own(fd) => {
                crate::fds::close(fd) as c_long
            }
            libc::SYS_close => {
                crate::parked::freed(fd);
                return None;
            }
            libc::SYS_close_range => crate::fds::close_range(a as _, b as _, c as c_int) as c_long,
            _ => return None,
        })
    }
}
