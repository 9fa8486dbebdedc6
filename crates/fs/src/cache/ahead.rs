//! Memory for frames that were never used, had from the system before anybody waits for it.
//!
//! What a frame is made of comes into being when it is first touched: the system finds memory and clears it, which takes longer
//! than everything else that a small write does, and much longer on virtual machines, whose host does the same. Who has to wait for that holds the lock of the volume. So a
//! thread touches frames a bounded distance ahead of those that are in use: when nobody else wants its processor (SCHED_IDLE), and like everybody else while little of
//! that distance is left. Who comes before it has the memory made as if it were not there.
//!
//! Frames come into use in bursts, of programs that have work for all processors; while a thread touches memory there is one less. So it goes far ahead while none come
//! into use, and stays out of the way of a burst as long as enough is left.
//!
//! Huge pages cost least, where the system has them. In a virtual machine that gives free ones back to its host (free page reporting does so with huge pages alone), or
//! was never given them, they can cost ten times as much for each byte as small ones, which come from what is left over. So it is measured which kind to take.

use super::PAGE;
use media::Arena;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How far it goes ahead of what is in use, bytes, but at most this part of the arena.
const FAR: usize = 256 << 20;
const PART: usize = 4;
/// While frames come into use it goes no further than this part of that.
const BUSY: usize = 4;
/// And so long afterwards, and after somebody else wanted its processor for longer than this.
const SLIGHT: Duration = Duration::from_micros(200);
const QUIET: Duration = Duration::from_millis(100);
/// And so long after the start: many volumes are open for a moment.
const EARLY: Duration = Duration::from_millis(250);
/// With less than this left, bytes, it is as urgent as everything else; and it is told four times as often as that is used up.
const NEAR: usize = 16 << 20;
/// Bytes between two looks at what is wanted now: a huge page.
const STEP: usize = 2 << 20;
/// Huge pages are worth it as long as they take at most so many times as long as small ones.
const WORTH: u32 = 2;
/// A step that took no longer than this was not dear, whatever small pages take: memory that a driver has pinned takes next to nothing.
const CHEAP: Duration = Duration::from_millis(1);
/// Steps by small pages before a huge one is tried again.
const PATIENCE: u32 = 64;

/// Touches an arena from its start on, ahead of who uses it in that order; until it is dropped.
#[derive(Debug)]
pub(super) struct Ahead {
    shared: Arc<Shared>,
    thread: Thread,
    /// When so many bytes are in use, it can see that.
    next: usize,
}

#[derive(Debug)]
struct Shared {
    arena: Arc<Arena>,
    /// Longest distance, bytes.
    far: usize,
    early: Duration,
    quiet: Duration,
    /// Bytes from the start of the arena that are in use.
    used: AtomicUsize,
    /// When it is so many, the thread is woken.
    wakes: AtomicUsize,
    over: AtomicBool,
}

impl Ahead {
    /// # Errors
    /// No thread can be started.
    pub fn start(arena: Arc<Arena>) -> io::Result<Ahead> {
        Ahead::with_times(arena, EARLY, QUIET)
    }

    fn with_times(arena: Arc<Arena>, early: Duration, quiet: Duration) -> io::Result<Ahead> {
        let far = FAR.min(arena.len() / PART);
        let (used, wakes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let shared = Arc::new(Shared { arena, far, early, quiet, used, wakes, over: AtomicBool::new(false) });
        let theirs = shared.clone();
        // Nobody waits for its end: at that priority it may take a while.
        let thread = std::thread::Builder::new()
            .name("freehold-memory".into())
            .spawn(move || theirs.run())?
            .thread()
            .clone();
        let next = shared.step();
        Ok(Ahead { shared, thread, next })
    }

    /// All frames before `frames` are in use now.
    pub fn reached(&mut self, frames: usize) {
        let used = frames * PAGE;
        if used >= self.next {
            self.next = used + self.shared.step();
            // Either this sees what the thread waits for, or the thread sees this.
            self.shared.used.store(used, Ordering::SeqCst);
            if used >= self.shared.wakes.load(Ordering::SeqCst) {
                self.thread.unpark();
            }
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
    /// After how many more bytes in use the thread can see that.
    fn step(&self) -> usize {
        (NEAR / 4).min(self.far / BUSY / 2)
    }

    fn run(&self) {
        let (mut at, mut idle) = (0, false);
        // What was in use when that was last seen to be more than before, and when it is quiet again.
        let (mut seen, mut quiet) = (0, Instant::now() + self.early);
        let mut pages = Pages::default();
        while !self.over.load(Ordering::Acquire) {
            let used = self.used.load(Ordering::Acquire);
            at = at.max(used);
            if used != seen {
                (seen, quiet) = (used, Instant::now() + self.quiet);
            }
            let busy = quiet.saturating_duration_since(Instant::now());
            let distance = if busy.is_zero() { self.far } else { self.far / BUSY };
            let end = (used + distance).min(self.arena.len());
            if at < end {
                // Whoever comes before it does the same work, and others wait for him. No more than that: what is not wanted yet can wait.
                let urgent = at - used < NEAR.min(self.far / BUSY / 2);
                if idle == urgent {
                    idle = !urgent;
                    run_when_idle(idle);
                }
                let n = (STEP - at % STEP).min(end - at);
                let begun = Instant::now();
                if let Some(huge) = pages.changed() {
                    self.arena.by_huge_pages(at as u64, huge);
                }
                let before = time_of_thread();
                self.arena.touch(at as u64, n);
                let took = time_of_thread().saturating_sub(before);
                if n == STEP
                    && let Some(dear) = pages.took(took)
                {
                    // Other memory is made of them too.
                    media::set_huge_pages_dear(dear);
                }
                at += n;
                // Others wanted this processor, of whose work frames need be no part yet.
                if idle && begun.elapsed() > took * 2 + SLIGHT {
                    quiet = quiet.max(Instant::now() + QUIET);
                }
                if idle {
                    // A processor that is never idle does not look free to those who are woken, whatever runs there.
                    std::thread::park_timeout(begun.elapsed());
                }
            } else if end == self.arena.len() {
                return;
            } else if busy.is_zero() {
                self.sleep(used + 1, None);
            } else {
                self.sleep(at - self.far / BUSY + 1, Some(busy));
            }
        }
    }

    /// Until so many bytes are in use, or the time is over.
    fn sleep(&self, wakes: usize, time: Option<Duration>) {
        self.wakes.store(wakes, Ordering::SeqCst);
        if self.used.load(Ordering::SeqCst) < wakes {
            time.map_or_else(std::thread::park, std::thread::park_timeout);
        }
    }
}

/// Which pages to take: huge ones, unless they take too long.
#[derive(Debug, Default)]
struct Pages {
    /// What the arena was told last.
    told: Option<bool>,
    /// What a step by small ones took last.
    small: Option<Duration>,
    /// Steps by small ones that are left.
    left: u32,
}

impl Pages {
    fn huge(&self) -> bool {
        self.small.is_some() && self.left == 0
    }

    /// Which are to be taken, if it is not what the arena was told.
    fn changed(&mut self) -> Option<bool> {
        let huge = self.huge();
        (self.told.replace(huge) != Some(huge)).then_some(huge)
    }

    /// A step took so long. Whether huge pages are dear, if that is seen from it.
    fn took(&mut self, time: Duration) -> Option<bool> {
        match self.small {
            Some(small) if self.huge() => {
                let dear = time > (small * WORTH).max(CHEAP);
                if dear {
                    self.left = PATIENCE;
                }
                Some(dear)
            }
            _ => {
                self.small = Some(time);
                self.left = self.left.saturating_sub(1);
                None
            }
        }
    }
}

/// The processor's time that this thread has had: others may come between.
fn time_of_thread() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` has room for the answer. The clock exists on every Linux, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
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
        let until = Instant::now() + Duration::from_secs(600);
        while !done() {
            assert!(Instant::now() < until, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn the_pages_that_cost_less() {
        let mut pages = Pages::default();
        // Of each step whether it was by huge pages, for what a step costs by each kind.
        let mut steps = |n: usize, huge: u64, small: u64| {
            let mut step = || {
                let is_huge = pages.changed().unwrap_or(pages.huge());
                assert_eq!(is_huge, pages.huge());
                assert_eq!(pages.changed(), None, "it was told");
                pages.took(Duration::from_micros(if is_huge { huge } else { small }));
                is_huge
            };
            (0..n).map(|_| step()).collect::<Vec<bool>>()
        };
        let patience = PATIENCE as usize;
        assert_eq!(steps(4, 900, 500), [false, true, true, true], "not much more");
        assert_eq!(steps(4, 60, 20), [true; 4], "all of it is there");
        assert_eq!(steps(1, 900, 10), [true], "nor is that dear");
        assert_eq!(steps(2, 3000, 500), [true, false], "once is enough");
        let tried = steps(2 * patience + 2, 3000, 500);
        let when = tried.iter().enumerate().filter(|(_, huge)| **huge).map(|(at, _)| at);
        assert_eq!(when.collect::<Vec<_>>(), [patience - 1, 2 * patience], "seldom");
        // They cost less again.
        assert!(steps(patience, 200, 500)[patience - 1]);
        assert!(steps(10, 200, 500).iter().all(|huge| *huge));
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

    #[test]
    fn a_burst_has_its_processors_for_itself() {
        let pages = |mib: usize| (mib << 20) / PAGE;
        let (never, soon) = (Duration::from_secs(3600), Duration::from_millis(20));
        let start = |early, quiet, first| {
            let arena = Arc::new(Arena::new(128 << 20).unwrap());
            let ahead = Ahead::with_times(arena.clone(), early, quiet).unwrap();
            eventually("the first part", || resident(&arena) == pages(first));
            (arena, ahead)
        };
        let (arena, ahead) = start(never, soon, 8);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(resident(&arena), pages(8), "it may be open for a moment only");
        drop(ahead);
        let (arena, mut ahead) = start(soon, never, 32);
        for used in 1..=24 {
            ahead.reached(pages(used));
            std::thread::sleep(Duration::from_millis(2));
            assert_eq!(resident(&arena), pages(32), "enough is left");
        }
        ahead.reached(pages(28));
        eventually("little is left", || resident(&arena) == pages(28 + 8));
        ahead.reached(pages(100));
        eventually("who was passed begins there", || resident(&arena) == pages(8 + 8 + 28));
        drop(ahead);
        let (arena, mut ahead) = start(soon, soon, 32);
        ahead.reached(pages(8));
        eventually("the burst is over", || resident(&arena) == pages(8 + 32));
    }
}
