//! Mappings that the kernel has of files of volumes (`mmap`): it must hear of it when such a file changes its size through our session.
//! Until it asks for the attributes again it takes memory behind the old end for memory without a file (SIGBUS).
//!
//! For each mapping its range, and a descriptor of the file on the FUSE mount, one for all mappings of a file; a call of ours that makes the
//! file longer than the kernel knows is followed by a question through it. The end of a mapping is seen in munmap and mremap. Nothing here
//! allocates, as allocators call these with their locks held. What is not kept: more than [`MOST`] mappings at a time, and what a mapping
//! over another one, or an unmapping from its middle, leaves of it.
//!
//! Where tested: crates/freehold/tests/run_more.rs.

use crate::hook::{Out, hook};
use crate::memory;
use crate::mounts::Mount;
use fs::Ino;
use libc::{c_int, c_void, size_t};
use share::lock::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Mappings that are known at a time.
const MOST: usize = 64;

#[derive(Clone, Copy)]
struct Mapping {
    start: usize,
    /// Behind it; the entry is free where that is the start.
    end: usize,
    mount: u64,
    ino: u64,
    /// Of the kernel's file.
    fd: c_int,
    /// The size that the kernel knows.
    known: u64,
}

const FREE: Mapping = Mapping { start: 0, end: 0, mount: 0, ino: 0, fd: -1, known: 0 };

static MAPPINGS: Mutex<[Mapping; MOST]> = Mutex::new([FREE; MOST]);
/// How many there are: mostly none, and then nothing is looked at.
static COUNT: AtomicUsize = AtomicUsize::new(0);

impl Mapping {
    fn is_of(&self, mount: &Mount, ino: Ino) -> bool {
        self.end > self.start && (self.mount, self.ino) == (mount.hash, ino.0)
    }
}

/// The mappings. The lock is held for moments; waiting for it as usual may allocate.
fn lock() -> MutexGuard<'static, [Mapping; MOST]> {
    loop {
        if let Some(mappings) = MAPPINGS.try_lock() {
            return mappings;
        }
        std::thread::yield_now();
    }
}

/// Whether there are any.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// The kernel has mapped the file, whose descriptor `fd` of the kernel's and size these are, at `start`.
pub(crate) fn add((mount, ino): (&Mount, Ino), fd: c_int, known: u64, (start, len): (usize, usize)) {
    let mut mappings = lock();
    let Some(free) = mappings.iter().position(|m| m.end == m.start) else { return };
    let fd = match mappings.iter().find(|m| m.is_of(mount, ino)) {
        Some(other) => other.fd,
        None => memory::copy_high(fd).unwrap_or(-1),
    };
    if fd >= 0 {
        let end = (start + len).next_multiple_of(4096);
        mappings[free] = Mapping { start, end, mount: mount.hash, ino: ino.0, fd, known };
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

/// The mappings of a range go away.
pub(crate) fn remove(start: usize, len: usize) {
    if !any() {
        return;
    }
    let end = start.saturating_add(len).checked_next_multiple_of(4096).unwrap_or(usize::MAX);
    let mut mappings = lock();
    for i in 0..MOST {
        let m = &mut mappings[i];
        if m.end <= start || end <= m.start {
            continue;
        }
        let fd = m.fd;
        match (start <= m.start, m.end <= end) {
            (true, true) => *m = FREE,
            (true, false) => m.start = end,
            (false, true) => m.end = start,
            (false, false) => {}
        }
        if mappings[i].fd < 0 {
            COUNT.fetch_sub(1, Ordering::Relaxed);
            if mappings.iter().all(|m| m.fd != fd) {
                // SAFETY: the descriptor is ours, and no mapping has it any more.
                unsafe { libc::syscall(libc::SYS_close, fd) };
            }
        }
    }
}

/// A mapping was moved, or has another length.
fn moved((old, old_len): (usize, usize), (new, new_len): (usize, usize)) {
    let old_end = old.saturating_add(old_len).checked_next_multiple_of(4096).unwrap_or(usize::MAX);
    for m in lock().iter_mut().filter(|m| m.end > m.start && old <= m.start && m.end <= old_end) {
        (m.start, m.end) = (new, (new + new_len).next_multiple_of(4096));
    }
}

/// A call has made the file end not before `end`.
#[inline]
pub(crate) fn grown(file: (&Mount, Ino), end: impl FnOnce() -> Option<u64>) {
    if any() {
        ask(file, end, false);
    }
}

/// A call has set the size of the file.
#[inline]
pub(crate) fn resized(file: (&Mount, Ino)) {
    if any() {
        ask(file, || None, true);
    }
}

/// Has the kernel ask for the size of a file that it has mapped: always, or when it knows of a smaller one than `end`.
#[cold]
fn ask((mount, ino): (&Mount, Ino), end: impl FnOnce() -> Option<u64>, always: bool) {
    let Some(mapping) = lock().iter().copied().find(|m| m.is_of(mount, ino)) else { return };
    if !always && end().is_some_and(|end| end <= mapping.known) {
        return;
    }
    // SAFETY: all zeros is a valid value, which the call fills; the path is a C string.
    let known = unsafe {
        let mut st: libc::statx = std::mem::zeroed();
        let how = libc::AT_EMPTY_PATH | libc::AT_STATX_FORCE_SYNC;
        let path = c"".as_ptr();
        let done = libc::syscall(libc::SYS_statx, mapping.fd, path, how, libc::STATX_SIZE, &mut st) == 0;
        if done && st.stx_ino == ino.0 { st.stx_size } else { 0 }
    };
    for m in lock().iter_mut().filter(|m| m.is_of(mount, ino)) {
        m.known = known;
    }
}

/// Whether `fd` is a descriptor that mappings need.
pub(crate) fn is_own(fd: c_int) -> bool {
    any() && lock().iter().any(|m| m.fd == fd)
}

/// In a child of fork, which has the mappings and the descriptors too: no other thread can hold the lock.
pub(crate) fn after_fork() {
    // SAFETY: we are the only thread. What another one may have left half done costs a question.
    unsafe { crate::hook::free(&MAPPINGS) };
}

hook! {
    fn munmap(addr: *mut c_void, len: size_t) -> c_int {
        remove(addr.addr(), len);
        Err(Out::Memory)
    }
    fn mremap(old: *mut c_void, old_len: size_t, len: size_t, flags: c_int, to: *mut c_void) -> isize {
        if !any() {
            return Err(Out::Memory);
        }
        if flags & libc::MREMAP_FIXED != 0 {
            remove(to.addr(), len);
        }
        let new = mremap::onward(old, old_len, len, flags, to);
        if new == -1 {
            return crate::hook::fail(crate::hook::errno());
        }
        if old_len > 0 {
            moved((old.addr(), old_len), (new as usize, len));
        }
        Ok(new)
    }
}
