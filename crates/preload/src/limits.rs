//! RLIMIT_FSIZE, how long a process may make files: what ends behind the limit is shortened, and what begins there fails with `EFBIG` and SIGXFSZ.
//!
//! The kernel counts the memory of our open files as files, too (`memory`): with a limit below that, new files are those of the FUSE mount, where
//! the kernel sees to the limit itself. What is open already stays a session's. A limit that another process sets (prlimit) is not seen.
//!
//! Where tested: crates/freehold/tests/run_more.rs.

use crate::hook::{Res, fail, hook};
use crate::mounts;
use libc::{c_int, pid_t, rlimit};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The limit of this process in bytes; the largest number is none.
static BYTES: AtomicU64 = AtomicU64::new(u64::MAX);

/// Whether the kernel would not let us have memory for open files.
#[inline]
pub(crate) fn too_small() -> bool {
    BYTES.load(Ordering::Relaxed) < crate::memory::BYTES as u64
}

/// Asks for the limit: at the start, and after this process has set it.
pub(crate) fn ask() {
    let none = std::ptr::null::<rlimit>();
    let mut now = rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a place of our own for the answer.
    if unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_FSIZE, none, &mut now) } == 0 {
        BYTES.store(now.rlim_cur, Ordering::Relaxed);
    }
}

/// Numbers from here on no new descriptor can have.
pub(crate) fn descriptors() -> u64 {
    let none = std::ptr::null::<rlimit>();
    let mut now = rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, none, &mut now) };
    now.rlim_cur
}

thread_local! {
    /// The call that this thread is in fails for the limit.
    static EXCEEDED: Cell<bool> = const { Cell::new(false) };
}

fn too_long<T>() -> Res<T> {
    EXCEEDED.set(true);
    fail(libc::EFBIG)
}

/// A call has failed with `EFBIG`, and this thread has left our code, whose locks a handler that never returns would keep: if it was for the limit, the thread sends itself
/// the signal, as the kernel would.
#[cold]
pub(crate) fn signal() {
    if EXCEEDED.replace(false) {
        // SAFETY: only a signal is sent.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), libc::SIGXFSZ) };
    }
}

/// How many bytes of `len` may be written at `at()`.
#[inline]
pub(crate) fn room(len: usize, at: impl FnOnce() -> Res<u64>) -> Res<usize> {
    let most = BYTES.load(Ordering::Relaxed);
    if most == u64::MAX || len == 0 {
        return Ok(len);
    }
    // What a call of several writes failed with after it had written something is not told.
    EXCEEDED.set(false);
    match most.saturating_sub(at()?) {
        0 => too_long(),
        room => Ok(len.min(room.min(usize::MAX as u64) as usize)),
    }
}

/// Whether a file of `now()` bytes may be made to end at `end`.
#[inline]
pub(crate) fn allows(end: u64, now: impl FnOnce() -> Res<u64>) -> Res<()> {
    if end <= BYTES.load(Ordering::Relaxed) || end <= now()? { Ok(()) } else { too_long() }
}

/// A call that may have set the limit has come back.
fn set(resource: c_int, answer: c_int) -> Res<c_int> {
    if answer != 0 {
        return fail(crate::hook::errno());
    }
    // A child of vfork has limits of its own, and our memory.
    if resource == libc::RLIMIT_FSIZE as c_int && !mounts::borrowed_memory() {
        ask();
    }
    Ok(answer)
}

hook! {
    fn setrlimit | setrlimit64(resource: c_int, to: *const rlimit) -> c_int {
        set(resource, setrlimit::real(resource, to))
    }
    fn prlimit | prlimit64(pid: pid_t, resource: c_int, to: *const rlimit, was: *mut rlimit) -> c_int {
        set(resource, prlimit::real(pid, resource, to, was))
    }
}
