//! mmap of files of ours.
//!
//! Shared mappings, and private ones that are large, are made by the kernel over the FUSE mount, wherever the name of the file leads by now (`fs::passes`). What is written to a shared mapping is seen
//! by others after msync, as a kernel that keeps dirty pages to itself has it. When this process makes the file longer, the mapping reaches as far as that (`mapped`). Small private mappings are anonymous memory into which
//! the file is read at once, which is what takes the place of the others too where there is no mount, except that shared writable ones
//! fail then with `ENODEV`: such memory does not see what is written to the file afterwards, and behind the file's end are zeros instead of SIGBUS.
//! What madvise(2) gives up of it (MADV_DONTNEED), and what mremap(2) adds to it, is zeros too.

use crate::description::Open;
use crate::hook::{Out, Res, errno, fail, hook};
use crate::mapped;
use crate::rw::read_at;
use crate::table;
use fs::FileType;
use libc::{c_int, c_void, off_t, size_t};
use std::ffi::CString;

type Address = *mut c_void;

/// Private mappings from here on are not read at once.
const LARGE: usize = 8 << 20;

/// # Safety
/// As of mmap(2).
unsafe fn map(addr: Address, len: size_t, prot: c_int, flags: c_int, fd: c_int, at: off_t) -> Res<isize> {
    if flags & libc::MAP_FIXED != 0 {
        mapped::remove(addr.addr(), len);
    }
    if flags & libc::MAP_ANONYMOUS != 0 {
        return Err(Out::Memory);
    }
    let open = table::get(fd).ok_or(Out::Libc)?;
    if !open.readable() {
        return fail(if open.is_path() { libc::EBADF } else { libc::EACCES });
    }
    let shared = flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
    if shared && prot & libc::PROT_WRITE != 0 && !open.writable() {
        return fail(libc::EACCES);
    }
    if open.kind != FileType::Regular {
        return fail(libc::ENODEV);
    }
    if len == 0 || at < 0 || at % 4096 != 0 {
        return fail(libc::EINVAL);
    }
    if shared || len >= LARGE {
        // SAFETY: as the caller says.
        match unsafe { over_fuse(&open, shared, (addr, len, prot, flags, at)) } {
            Err(Out::Errno(libc::ENODEV)) if !shared || prot & libc::PROT_WRITE == 0 => {}
            mapped => return mapped,
        }
    }
    let flags = flags & !libc::MAP_TYPE & !libc::MAP_POPULATE | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: as the caller says; the memory is new, and is filled before anyone else knows of it.
    unsafe {
        let base = mmap::onward(addr, len, writable, flags | libc::MAP_NORESERVE, -1, 0);
        if base == -1 {
            return fail(errno());
        }
        let memory = std::slice::from_raw_parts_mut(base as *mut u8, len);
        let read = read_at(&open, at as u64, memory);
        let protected = prot == writable || libc::mprotect(base as Address, len, prot) == 0;
        match read {
            Ok(_) if protected => Ok(base),
            failed => {
                libc::munmap(base as Address, len);
                failed.and(fail(libc::EACCES))
            }
        }
    }
}

/// # Safety
/// As of mmap(2).
unsafe fn over_fuse(
    open: &Open,
    shared: bool,
    (addr, len, prot, flags, at): (Address, size_t, c_int, c_int, off_t),
) -> Res<isize> {
    // What may be written later (mprotect) is decided by how the file was opened.
    let access = if shared && open.writable() { libc::O_RDWR } else { libc::O_RDONLY };
    let (fd, size) = of_kernel(open, access)?;
    // SAFETY: as the caller says; the descriptor is ours.
    unsafe {
        let base = mmap::onward(addr, len, prot, flags, fd, at);
        let error = errno();
        if base != -1 {
            mapped::add((open.mount, open.ino), fd, size, (base as usize, len));
        }
        libc::syscall(libc::SYS_close, fd);
        if base == -1 { fail(error) } else { Ok(base) }
    }
}

/// A descriptor of the kernel's for the file on the FUSE mount, and the size that the kernel knows: by the name under which it was opened, or by a pass when that
/// leads elsewhere. `ENODEV`.
pub(crate) fn of_kernel(open: &Open, access: c_int) -> Res<(c_int, u64)> {
    if let Some(path) = open.path()
        && let Some(opened) = kernel_open(open, path, access)
    {
        return Ok(opened);
    }
    let handle = open.handle()?;
    let Ok(pass) = open.mount.run(|fs| fs.pass(handle)) else { return fail(libc::ENODEV) };
    match kernel_open(open, &[b"/", &pass[..]].concat(), access) {
        Some(opened) => Ok(opened),
        None => fail(libc::ENODEV),
    }
}

/// Opens what stands at a path of the mount, if that is the file.
fn kernel_open(open: &Open, path: &[u8], access: c_int) -> Option<(c_int, u64)> {
    let path = CString::new([&open.mount.prefix[..], path].concat()).ok()?;
    // SAFETY: a C string of our own, a descriptor that nobody knows yet, and a struct for which all zeros is a valid value.
    unsafe {
        let access = access | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), access, 0) as c_int;
        if fd < 0 {
            return None;
        }
        let mut st: libc::stat = std::mem::zeroed();
        let known = libc::syscall(libc::SYS_fstat, fd, &mut st) == 0;
        if known && st.st_ino == open.ino.0 && st.st_dev == open.mount.dev() {
            return Some((fd, st.st_size as u64));
        }
        libc::syscall(libc::SYS_close, fd);
        None
    }
}

hook! {
    fn mmap | mmap64(addr: Address, len: size_t, prot: c_int, flags: c_int, fd: c_int, at: off_t) -> isize {
        map(addr, len, prot, flags, fd, at)
    }
}
