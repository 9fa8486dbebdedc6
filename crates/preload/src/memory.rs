//! The memory (a memfd) behind each open file of ours, by which the programs that get its descriptor find out what that is (`slot`).
//!
//! A descriptor of it is write-only, and the memory cannot grow: should somebody use it without us (a static program), reads fail with `EBADF` and writes with
//! `EPERM`, rather than going somewhere. What was opened is written into it when others are about to get the descriptor; then it is sealed, so that nobody changes it any more.
//!
//! Where tested: `tests/all/c_sharers.rs`.

use crate::hook::{Res, errno, fail};
use crate::limits;
use format::shared::{MAGIC, OPEN_PATH_MAX, OpenFile};
use libc::c_int;
use share::client::high;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use zerocopy::{FromZeros, IntoBytes};

const NAME: &std::ffi::CStr = c"freehold-open-file";
const LINK: &[u8] = b"/memfd:freehold-open-file";
/// Of the memory. The kernel counts it as a file (`limits`).
pub(crate) const BYTES: usize = size_of::<OpenFile>();
/// Where a description stands that is not published: far beyond the end of its memory.
const BEYOND: i64 = 1 << 40;
/// Of a memory that nobody can change any more.
const SEALED: c_int = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_WRITE | libc::F_SEAL_SEAL;

/// What is known of a file that was opened.
pub(crate) struct Facts<'a> {
    pub mount: u64,
    pub ino: u64,
    pub generation: u32,
    pub flags: u32,
    pub kind: u32,
    pub kernel_cwd: u64,
    pub path: Option<&'a [u8]>,
}

impl Facts<'_> {
    pub(crate) fn record(&self) -> OpenFile {
        let mut record = OpenFile::new_zeroed();
        record.magic = MAGIC.into();
        record.mount = self.mount.into();
        record.ino = self.ino.into();
        record.generation = self.generation.into();
        record.flags = self.flags.into();
        record.kind = self.kind.into();
        record.kernel_cwd = self.kernel_cwd.into();
        if let Some(path) = self.path.filter(|path| path.len() <= OPEN_PATH_MAX) {
            record.path[..path.len()].copy_from_slice(path);
            record.path_len = (path.len() as u32 + 1).into();
        }
        record
    }
}

/// The path that a record has.
pub(crate) fn path_of(record: &OpenFile) -> Option<&[u8]> {
    record.path.get(..(record.path_len.get() as usize).checked_sub(1)?)
}

/// A system call on a descriptor, whose argument is a number, or leads to what the command needs.
pub(crate) fn control(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: as said.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, command, argument) as c_int }
}

pub(crate) fn close(fd: c_int) {
    // SAFETY: the callers' own descriptor.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

pub(crate) fn seek(fd: c_int, to: i64, whence: c_int) -> Res<u64> {
    // SAFETY: a position is set or asked for.
    match unsafe { libc::syscall(libc::SYS_lseek, fd, to, whence) } {
        at if at >= 0 => Ok(at as u64),
        _ => fail(errno()),
    }
}

/// So many bytes of a memory, for a call about locks.
pub(crate) fn flock(kind: c_int, (start, len): (i64, i64)) -> libc::flock {
    // SAFETY: all zeros is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (kind as _, libc::SEEK_SET as _);
    (lock.l_start, lock.l_len) = (start, len);
    lock
}

/// Locks bytes of the memory of `fd` for its description, or gives them up.
pub(crate) fn lock(fd: c_int, range: (i64, i64), locked: bool) -> Res<()> {
    let lock = flock(if locked { libc::F_WRLCK } else { libc::F_UNLCK }, range);
    match control(fd, libc::F_OFD_SETLK, (&raw const lock).addr()) {
        0 => Ok(()),
        _ => fail(errno()),
    }
}

/// A copy of a descriptor out of the way, which exec closes.
pub(crate) fn copy_high(fd: c_int) -> Option<c_int> {
    // SAFETY: it is open as long as the call takes.
    high::copy(unsafe { BorrowedFd::borrow_raw(fd) }).map(OwnedFd::into_raw_fd)
}

/// The name that the kernel has for a descriptor, as a C string.
fn name_of(fd: c_int) -> [u8; 32] {
    let mut path = [0u8; 32];
    let written = std::io::Write::write_fmt(&mut &mut path[..31], format_args!("/proc/self/fd/{fd}"));
    assert!(written.is_ok());
    path
}

/// Another description of what `fd` leads to.
pub(crate) fn reopen(fd: c_int, flags: c_int) -> c_int {
    let path = name_of(fd);
    // SAFETY: a C string of our own.
    unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) as c_int }
}

/// A descriptor, the lowest that is free, of a new memory that nothing is written into. For a moment it needs another number. `EMFILE`, `ENFILE`, `ENOMEM`.
pub(crate) fn make(cloexec: c_int) -> Res<c_int> {
    // SAFETY: a C string of our own; the number that is given is ours.
    let fd = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return fail(errno());
    }
    match write_only(fd, cloexec) {
        Ok(()) => Ok(fd),
        Err(e) => {
            close(fd);
            Err(e)
        }
    }
}

/// The number of a new memory comes to lead to a description that can only be written to, where there is no room.
fn write_only(fd: c_int, cloexec: c_int) -> Res<()> {
    let seals = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK;
    // SAFETY: a length is set.
    let sealed = unsafe { libc::syscall(libc::SYS_ftruncate, fd, BYTES) } == 0
        && control(fd, libc::F_ADD_SEALS, seals as usize) == 0;
    if !sealed {
        return fail(errno());
    }
    let other = reopen(fd, libc::O_WRONLY | libc::O_CLOEXEC);
    if other < 0 {
        return fail(errno());
    }
    let placed = seek(other, BEYOND, libc::SEEK_SET).and_then(|_| {
        // SAFETY: both numbers are ours.
        match unsafe { libc::syscall(libc::SYS_dup3, other, fd, cloexec) } {
            0.. => Ok(()),
            _ => fail(errno()),
        }
    });
    close(other);
    placed
}

/// A descriptor out of the way, which the programs that are started get: of a memory that says this.
pub(crate) fn tell(facts: &Facts<'_>) -> Res<c_int> {
    let low = make(libc::O_CLOEXEC)?;
    let fd = write(low, &facts.record()).ok().and_then(|()| copy_high(low));
    close(low);
    let Some(fd) = fd else { return fail(libc::EMFILE) };
    control(fd, libc::F_SETFD, 0);
    Ok(fd)
}

/// The number (inode) of the memory behind a descriptor, if it may be one of ours.
pub(crate) fn number(fd: c_int) -> Option<u64> {
    // SAFETY: all zeros is a valid value, which the call fills.
    let (done, st) = unsafe {
        let mut st: libc::stat = std::mem::zeroed();
        (libc::syscall(libc::SYS_fstat, fd, &mut st), st)
    };
    // A file of another file system may have the same number.
    let is_one = done == 0 && st.st_size == BYTES as i64 && st.st_nlink == 0;
    (is_one && control(fd, libc::F_GET_SEALS, 0) >= 0).then_some(st.st_ino)
}

/// What a descriptor says that was inherited, or came in a message, if it is one of ours. `owner`: whose memory it must be, where anybody may have sent it. What the memory says
/// is believed: who can write it has this process open files for him.
pub(crate) fn inherited(fd: c_int, owner: Option<libc::uid_t>) -> Option<OpenFile> {
    let path = name_of(fd);
    let mut link = [0u8; 64];
    let mut record = OpenFile::new_zeroed();
    // SAFETY: buffers of our own with their lengths; statistics of descriptors are read.
    unsafe {
        let n =
            libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), link.as_mut_ptr(), link.len());
        if n < LINK.len() as i64 || !link.starts_with(LINK) {
            return None;
        }
        // Others could change it otherwise. Only memory has seals: a file of this name is asked for nothing, as its server may have us wait.
        let seals = control(fd, libc::F_GET_SEALS, 0);
        if seals < 0 || !seals & SEALED != 0 {
            return None;
        }
        let mut st: libc::stat = std::mem::zeroed();
        if libc::syscall(libc::SYS_fstat, fd, &mut st) != 0 || owner.is_some_and(|owner| owner != st.st_uid) {
            return None;
        }
        let own = reopen(fd, libc::O_RDONLY | libc::O_CLOEXEC);
        if own < 0 {
            return None;
        }
        let bytes = record.as_mut_bytes();
        let got = libc::syscall(libc::SYS_pread64, own, bytes.as_mut_ptr(), bytes.len(), 0i64);
        close(own);
        (got == BYTES as i64 && record.magic.get() == MAGIC).then_some(record)
    }
}

/// Writes into a memory, for ever.
pub(crate) fn write(fd: c_int, record: &OpenFile) -> Res<()> {
    let bytes = record.as_bytes();
    let wrote = match limits::too_small() {
        // The kernel would send SIGXFSZ.
        true => write_by_mapping(fd, bytes)?,
        // SAFETY: memory with its length.
        false => unsafe { libc::syscall(libc::SYS_pwrite64, fd, bytes.as_ptr(), bytes.len(), 0i64) },
    };
    let all = wrote == BYTES as i64 && control(fd, libc::F_ADD_SEALS, SEALED as usize) == 0;
    if all { Ok(()) } else { fail(errno()) }
}

/// As pwrite(2) at the beginning, of memory, whatever RLIMIT_FSIZE is.
fn write_by_mapping(fd: c_int, bytes: &[u8]) -> Res<i64> {
    let own = reopen(fd, libc::O_RDWR | libc::O_CLOEXEC);
    if own < 0 {
        return fail(errno());
    }
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, which has as many bytes as the memory, and is given up again.
    let mapped = unsafe {
        let base = libc::syscall(libc::SYS_mmap, 0usize, bytes.len(), prot, libc::MAP_SHARED, own, 0i64);
        if base != -1 {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), base as *mut u8, bytes.len());
            libc::syscall(libc::SYS_munmap, base, bytes.len());
        }
        base != -1
    };
    let why = errno();
    close(own);
    if mapped { Ok(bytes.len() as i64) } else { fail(why) }
}
