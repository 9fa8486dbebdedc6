//! The kernel's current directory, as the kernel tells it.

use libc::AT_FDCWD;

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
