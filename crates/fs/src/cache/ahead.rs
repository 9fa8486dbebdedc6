//! Memory for frames that were never used, had from the system before anybody waits for it.
//!
//! What a frame is made of comes into being when it is first touched: the system finds memory and clears it, which takes longer
//! than everything else that a small write does, and much longer on virtual machines, whose host does the same. Who has to wait for that holds the lock of the volume. So a
//! thread touches frames a bounded distance ahead of those that are in use: when nobody else wants its processor (SCHED_IDLE), and like everybody else while little of
//! that distance is left. Who comes before it has the memory made as if it were not there.

use super::PAGE;
use media::Arena;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::Instant;

/// How far it goes ahead of what is in use, bytes: as far again as that, but at least and at most so far.
const DISTANCE: [usize; 2] = [64 << 20, 256 << 20];
/// With less than this left, bytes, it is as urgent as everything else; and it is told four times as often as that is used up.
const NEAR: usize = 16 << 20;
/// At most this part of the arena is touched ahead.
const PART: usize = 4;
/// Bytes between two looks at what is wanted now.
const STEP: usize = 2 << 20;

/// Touches an arena from its start on, ahead of who uses it in that order; until it is dropped.
#[derive(Debug)]
pub(super) struct Ahead {
    shared: Arc<Shared>,
    thread: Thread,
    /// When so many bytes are in use, it is told.
    next: usize,
}

#[derive(Debug)]
struct Shared {
    arena: Arc<Arena>,
    /// Longest distance, bytes.
    most: usize,
    /// Bytes from the start of the arena that are in use.
    used: AtomicUsize,
    over: AtomicBool,
}

impl Ahead {
    /// # Errors
    /// No thread can be started.
    pub fn start(arena: Arc<Arena>) -> io::Result<Ahead> {
        let most = DISTANCE[1].min(arena.len() / PART);
        let shared =
            Arc::new(Shared { arena, most, used: AtomicUsize::new(0), over: AtomicBool::new(false) });
        let theirs = shared.clone();
        // Nobody waits for its end: at that priority it may take a while.
        let thread = std::thread::Builder::new()
            .name("freehold-memory".into())
            .spawn(move || theirs.run())?
            .thread()
            .clone();
        let next = shared.told_after(0);
        Ok(Ahead { shared, thread, next })
    }

    /// All frames before `frames` are in use now.
    pub fn reached(&mut self, frames: usize) {
        let used = frames * PAGE;
        if used >= self.next {
            self.next = used + self.shared.told_after(used);
            self.shared.used.store(used, Ordering::Release);
            self.thread.unpark();
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Shared {
    /// How far to go when so many bytes are in use.
    fn distance(&self, used: usize) -> usize {
        used.max(DISTANCE[0]).min(self.most)
    }

    /// After how many more bytes it is told again.
    fn told_after(&self, used: usize) -> usize {
        (NEAR / 4).min(self.distance(used) / 2)
    }

    fn run(&self) {
        let (mut at, mut idle) = (0, false);
        while !self.over.load(Ordering::Acquire) {
            let used = self.used.load(Ordering::Acquire);
            at = at.max(used);
            let distance = self.distance(used);
            let end = (used + distance).min(self.arena.len());
            if at < end {
                // Whoever comes before it does the same work, and others wait for him. No more than that: what is not wanted yet can wait.
                let urgent = at - used < NEAR.min(distance / 2);
                if idle == urgent {
                    idle = !urgent;
                    run_when_idle(idle);
                }
                let n = STEP.min(end - at);
                let begun = Instant::now();
                self.arena.touch(at as u64, n);
                at += n;
                if idle {
                    // A processor that is never idle does not look free to those who are woken, whatever runs there.
                    std::thread::park_timeout(begun.elapsed());
                }
            } else if end == self.arena.len() {
                return;
            } else {
                std::thread::park();
            }
        }
    }
}

/// From now on this thread gets a processor only when nobody else wants it, or as others do.
fn run_when_idle(idle: bool) {
    let policy = if idle { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameter is read during the call; 0 is the calling thread. Where it is refused, the thread is as others are.
    unsafe { libc::sched_setscheduler(0, policy, &priority) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Pages of the arena for which there is memory.
    fn resident(arena: &Arena) -> usize {
        let mut pages = vec![0u8; arena.len() / PAGE];
        // SAFETY: the range is the arena, and there is a byte for each of its pages.
        let rc = unsafe { libc::mincore(arena.ptr(0, arena.len()).cast(), arena.len(), pages.as_mut_ptr()) };
        assert_eq!(rc, 0);
        pages.iter().filter(|&&p| p & 1 == 1).count()
    }

    fn eventually(what: &str, done: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(120);
        while !done() {
            assert!(Instant::now() < until, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn memory_is_there_before_it_is_used() {
        let arena = Arc::new(Arena::new(128 << 20).unwrap());
        let pages = |bytes: usize| bytes / PAGE;
        arena.copy_in(5000, b"kept");
        // A quarter of the arena from where it stands.
        let mut ahead = Ahead::start(arena.clone()).unwrap();
        eventually("the first part", || resident(&arena) >= pages(32 << 20));
        std::thread::sleep(Duration::from_millis(50));
        assert!(resident(&arena) <= pages(36 << 20), "no more than that");
        // Not far enough to say anything; then far enough.
        ahead.reached(pages(2 << 20));
        ahead.reached(pages(40 << 20));
        eventually("what comes next", || resident(&arena) >= pages(2 * (32 << 20)));
        std::thread::sleep(Duration::from_millis(50));
        assert!(resident(&arena) <= pages(72 << 20), "no more than that");
        let mut kept = [0; 4];
        arena.copy_out(5000, &mut kept);
        assert_eq!(&kept, b"kept");
        drop(ahead);
        eventually("the thread lets go of the memory", || Arc::strong_count(&arena) == 1);
    }
}
