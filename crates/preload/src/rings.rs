//! Programs that have the kernel read and write for them: io_uring knows the kernel's files only. So from the moment at which a process sets one up, what it opens are files of the FUSE mount, which the kernel can use.
//!
//! What is open already becomes a file of the mount, too, under the same numbers: regular files that no other process may have (with which it would share the offset), and on which there are no
//! locks. What else is open, and everything where there is no mount, stays a session's, and is refused in requests (`EBADF`).
//!
//! Seen are the functions of liburing, and syscall(2), where that is seen at all (`spawn`). Who sets up a ring by instructions of its own is not.
//!
//! Where tested: crates/freehold/tests/run.rs.

use crate::description::Open;
use crate::hook::{Res, fail, hook, inside, is_inside};
use crate::{limits, memory, mmap, mounts, table};
use fs::FileType;
use libc::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

static USED: AtomicBool = AtomicBool::new(false);

/// Whether this process opens files for the kernel to read and write.
#[inline]
pub(crate) fn used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// Before the kernel makes one: no file that is opened afterwards is one that it cannot use, and as few as can be are open.
fn begin() {
    if !mounts::borrowed_memory() && !USED.swap(true, Ordering::SeqCst) && mounts::active() {
        let _inside = inside();
        give_to_kernel();
    }
}

/// Before syscall(2) makes one with these parameters.
pub(crate) fn before_setup(parameters: usize) {
    /// What libuv asks for where a ring is for files; another one, which each loop of its has, it uses to tell epoll of sockets.
    const POLLED: u32 = 1 << 1;
    if is_inside() || crate::hook::nowhere(parameters as *const u32) {
        return;
    }
    // SAFETY: a call with a pointer that leads nowhere fails in the kernel, and here with a signal. The flags stand behind the numbers of entries.
    let flags = unsafe { (parameters as *const u32).add(2).read_unaligned() };
    // SAFETY: the name ends with NUL.
    let uv = || unsafe { !libc::dlsym(libc::RTLD_DEFAULT, c"uv_loop_init".as_ptr()).is_null() };
    if flags & POLLED != 0 || !uv() {
        begin();
    }
}

/// Descriptors are becoming the kernel's.
static GIVING: AtomicBool = AtomicBool::new(false);
/// Threads that have the kernel make one descriptor another one's copy.
static COPYING: AtomicUsize = AtomicUsize::new(0);

/// As long as there is one no descriptor becomes the kernel's: it could take the place of the copy, or be what was copied.
pub(crate) struct Copying(());

impl Copying {
    pub(crate) fn begin() -> Copying {
        loop {
            COPYING.fetch_add(1, Ordering::SeqCst);
            // Either side writes before it reads, so one of them sees the other.
            if !GIVING.load(Ordering::SeqCst) {
                return Copying(());
            }
            drop(Copying(()));
            wait();
        }
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        COPYING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until no descriptor is becoming the kernel's.
#[cold]
pub(crate) fn wait() {
    while GIVING.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
}

/// In a child of fork, which is alone: what was under way is not.
pub(crate) fn after_fork() {
    COPYING.store(0, Ordering::Relaxed);
    if GIVING.swap(false, Ordering::Relaxed) {
        table::forget_moving();
    }
}

/// How long calls that are under way are waited for.
const PATIENCE: Duration = Duration::from_millis(50);

/// As long as there is one, others wait; however it ends.
struct Giving(());

impl Giving {
    fn begin() -> Giving {
        GIVING.store(true, Ordering::SeqCst);
        Giving(())
    }
}

impl Drop for Giving {
    fn drop(&mut self) {
        GIVING.store(false, Ordering::SeqCst);
    }
}

/// Makes what is open files of the mount, as far as that can be done.
fn give_to_kernel() {
    let _giving = Giving::begin();
    let begun = Instant::now();
    while COPYING.load(Ordering::SeqCst) > 0 && begun.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    if COPYING.load(Ordering::SeqCst) == 0 {
        for fd in table::ours_in(0, usize::MAX) {
            if let Some(open) = table::get(fd) {
                // What cannot be given stays as it is.
                let _ = give(open);
            }
        }
    }
}

/// Has all descriptors of a description lead to a file of the mount, which is at the same offset.
fn give(open: Open) -> Res<()> {
    const SAME: c_int = libc::O_ACCMODE | libc::O_APPEND | libc::O_DIRECT | libc::O_SYNC | libc::O_NOATIME;
    if open.kind != FileType::Regular || open.is_path() || !open.is_private() {
        return fail(libc::EBUSY);
    }
    let flags = open.flags();
    let (file, _) = mmap::of_kernel(&open, flags & SAME)?;
    let given = table::move_away(&open, |fds| {
        // Nobody finds it any more. Calls that have found it before are over soon, unless they wait for something.
        let begun = Instant::now();
        while !open.has_only(fds.len() + 1) {
            if begun.elapsed() > PATIENCE {
                return fail(libc::EBUSY);
            }
            std::thread::yield_now();
        }
        let changed = !open.is_private() || open.flags() != flags;
        // The streams of the lowest three follow them, and those beyond the limit can be nothing else.
        let stay = |&fd: &c_int| fd < 3 || fd as u64 >= limits::descriptors();
        if changed || fds.iter().any(stay) {
            return fail(libc::EBUSY);
        }
        memory::seek(file, open.slot.offset()? as i64, libc::SEEK_SET)?;
        for &fd in fds {
            open.closing(fd);
            let cloexec = memory::control(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC != 0;
            let how = if cloexec { libc::O_CLOEXEC } else { 0 };
            // SAFETY: only descriptors are touched. It fails for moments only: both are there, and nobody else has their numbers.
            while unsafe { libc::syscall(libc::SYS_dup3, file, fd, how) } < 0 {
                std::thread::yield_now();
            }
        }
        Ok(())
    });
    memory::close(file);
    given
}

hook! {
    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
        begin();
        Ok(io_uring_queue_init::real(entries, ring, flags))
    }
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, params: *mut c_void) -> c_int {
        begin();
        Ok(io_uring_queue_init_params::real(entries, ring, params))
    }
    fn io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, params: *mut c_void, memory: *mut c_void, size: usize) -> c_int {
        begin();
        Ok(io_uring_queue_init_mem::real(entries, ring, params, memory, size))
    }
}
