//! mmap of files of ours.
//!
//! Shared mappings, and private ones that are large, are made by the kernel over the FUSE mount. What is written to a shared mapping is seen
//! by others after msync, as a kernel that keeps dirty pages to itself has it. When this process makes the file longer, the mapping reaches as far as that (`mapped`). Small private mappings are anonymous memory into which
//! the file is read at once, which is what takes the place of the others too where there is no mount, except that shared writable ones
//! fail then with `ENODEV`: such memory does not see what is written to the file afterwards, and behind the file's end are zeros instead of SIGBUS.

use crate::hook::{Out, Res, errno, fail, hook};
use crate::mapped;
use crate::rw::read_at;
use crate::table::{self, Open};
use fs::FileType;
use libc::{c_int, c_void, off_t, size_t};

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
        return Err(Out::Libc);
    }
    let open = table::get(fd).ok_or(Out::Libc)?;
    if !open.readable() {
        return fail(libc::EACCES);
    }
    if open.kind != FileType::Regular {
        return fail(libc::ENODEV);
    }
    if len == 0 || at < 0 || at % 4096 != 0 {
        return fail(libc::EINVAL);
    }
    let shared = flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
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
        let base = mmap::real(addr, len, writable, flags | libc::MAP_NORESERVE, -1, 0);
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
    if shared && prot & libc::PROT_WRITE != 0 && !open.writable() {
        return fail(libc::EACCES);
    }
    let Some(path) = crate::open::kernel_path(open) else { return fail(libc::ENODEV) };
    // What may be written later (mprotect) is decided by how the file was opened.
    let access = if shared && open.writable() { libc::O_RDWR } else { libc::O_RDONLY } | libc::O_CLOEXEC;
    // SAFETY: a C string of our own; the rest as the caller says.
    unsafe {
        let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), access, 0);
        if fd < 0 {
            return fail(libc::ENODEV);
        }
        let mut st: libc::stat = std::mem::zeroed();
        let same = libc::syscall(libc::SYS_fstat, fd, &mut st) == 0
            && st.st_ino == open.ino.0
            && st.st_dev == open.mount.dev();
        let base = if same { mmap::real(addr, len, prot, flags, fd as c_int, at) } else { -1 };
        let error = if same { errno() } else { libc::ENODEV };
        if base != -1 {
            mapped::add((open.mount, open.ino), fd as c_int, st.st_size as u64, (base as usize, len));
        }
        libc::syscall(libc::SYS_close, fd);
        if base == -1 { fail(error) } else { Ok(base) }
    }
}

hook! {
    fn mmap | mmap64(addr: Address, len: size_t, prot: c_int, flags: c_int, fd: c_int, at: off_t) -> isize {
        map(addr, len, prot, flags, fd, at)
    }
}
