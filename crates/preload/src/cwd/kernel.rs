//! The kernel's current directory, as the kernel tells it.

use crate::memory::close;
use crate::mounts::Mount;
use fs::Ino;
use libc::{AT_FDCWD, c_int};
use std::ffi::CString;

/// Its path; empty where the kernel has none for it: it was removed, its mount is gone, or the path is too long.
pub(super) fn kernel_text() -> Vec<u8> {
    let mut buffer = [0u8; 4096];
    // SAFETY: the buffer with its length.
    let n = unsafe { libc::syscall(libc::SYS_getcwd, buffer.as_mut_ptr(), buffer.len()) };
    let text = &buffer[..n.clamp(1, 4096) as usize - 1];
    // It may say "(unreachable)" and what it has.
    if text.starts_with(b"/") { text.to_vec() } else { Vec::new() }
}

/// Device and inode of the kernel's current directory.
pub(super) fn kernel_inode() -> Option<(u64, u64)> {
    // SAFETY: all zeros is a valid value, which the call fills; the path is a C string.
    unsafe {
        let mut st: libc::stat = std::mem::zeroed();
        let done = libc::syscall(libc::SYS_newfstatat, AT_FDCWD, c".".as_ptr(), &mut st, 0);
        (done == 0).then_some((st.st_dev, st.st_ino))
    }
}

/// The inode number of the kernel's current directory, as far as the kernel knows it by itself.
pub(super) fn kernel_number() -> Option<u64> {
    let how = libc::AT_NO_AUTOMOUNT | libc::AT_STATX_DONT_SYNC;
    // SAFETY: all zeros is a valid value, which the call fills; the path is a C string.
    unsafe {
        let mut st: libc::statx = std::mem::zeroed();
        let done = libc::syscall(libc::SYS_statx, AT_FDCWD, c".".as_ptr(), how, libc::STATX_INO, &raw mut st);
        (done == 0).then_some(st.stx_ino)
    }
}

/// Sends the kernel to this directory of a volume, on the mount that there is now. Nowhere else: where nothing is mounted the path may lead to what lies below.
pub(super) fn send_back(mount: &Mount, below: &[u8], ino: Ino) -> bool {
    const FUSE: libc::c_long = 0x6573_5546;
    let Ok(path) = CString::new([&mount.prefix[..], below].concat()) else { return false };
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: C strings and a descriptor of our own; all zeros are valid values, which the calls fill.
    unsafe {
        let fd = libc::syscall(libc::SYS_openat, AT_FDCWD, path.as_ptr(), flags, 0) as c_int;
        if fd < 0 {
            return false;
        }
        let (mut st, mut of): (libc::stat, libc::statfs) = (std::mem::zeroed(), std::mem::zeroed());
        let sent = libc::syscall(libc::SYS_fstatfs, fd, &raw mut of) == 0
            && of.f_type == FUSE
            && libc::syscall(libc::SYS_fstat, fd, &raw mut st) == 0
            && st.st_ino == ino.0
            && libc::syscall(libc::SYS_fchdir, fd) == 0;
        close(fd);
        sent
    }
}
