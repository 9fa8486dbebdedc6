//! Offering the processor to others for as long as they mostly give it back soon.
//!
//! Who offers it gets it back when those who were waiting for it have had their turn. The other side of a session and threads that wait for it soon wait themselves. Anybody else, a
//! program that computes, keeps the processor for a whole turn of the scheduler's, which a thread that sleeps is given back at once. So threads note when they come by
//! on each processor, and what is lost in gaps is a small part of the time: after a gap nobody offers it for many times as long. A few gaps at a time do not count: a virtual machine
//! has them by itself.

use crate::changes::processor;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const MS: u64 = 1_000_000;
/// Somebody who keeps a processor for so long does not wait soon. Turns of the scheduler's last several milliseconds.
const GAP: u64 = 2 * MS;
/// What a thread may lose that is one of few, or the manager's ([`Yields::new`]).
pub(crate) const ALONE: u64 = 50;
/// So much of gaps that follow each other does not count.
const SPARE: u64 = 6 * MS;
/// Processors that are told apart.
const PLACES: usize = 64;

/// What threads of one side of a session know of who else wants their processors. All times are nanoseconds of the monotonic clock.
#[derive(Debug)]
pub(crate) struct Yields {
    /// Nobody offers a processor for so many times as long as the gaps were.
    times: u64,
    /// When one of them came by, for each processor.
    seen: [AtomicU64; PLACES],
    /// Nobody offers the processor until then.
    until: AtomicU64,
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Yields {
    /// At most one part in `times` of the time is lost in gaps, beside the few that do not count.
    pub fn new(times: u64) -> Yields {
        Yields { times, seen: [const { AtomicU64::new(0) }; PLACES], until: AtomicU64::new(0) }
    }

    /// Lets others have the processor for a turn. False: somebody keeps it too long, or did so a while ago, and then it was not offered.
    pub fn offer(&self) -> bool {
        let begun = now();
        if !self.begins(processor(), begun) {
            return false;
        }
        std::thread::yield_now();
        self.ends(begun, processor(), now())
    }

    /// Whether nobody has offered anything yet.
    #[cfg(test)]
    pub fn is_new(&self) -> bool {
        self.seen.iter().all(|seen| seen.load(Relaxed) == 0)
    }

    fn seen(&self, processor: u32) -> &AtomicU64 {
        &self.seen[processor as usize % PLACES]
    }

    /// Whether a thread offers its processor.
    fn begins(&self, processor: u32, now: u64) -> bool {
        self.seen(processor).store(now, Relaxed);
        self.until.load(Relaxed) <= now
    }

    /// It has its turn again, perhaps on another processor. False: that took too long.
    fn ends(&self, begun: u64, processor: u32, now: u64) -> bool {
        let gap = now.saturating_sub(self.seen(processor).swap(now, Relaxed).max(begun));
        if gap > GAP {
            let later =
                |until: u64| Some(until.max(now.saturating_sub(self.times * SPARE)) + self.times * gap);
            let _ = self.until.fetch_update(Relaxed, Relaxed, later);
        }
        gap <= GAP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: u64 = 2 * GAP;

    #[test]
    fn whoever_gives_it_back_or_comes_by_meanwhile_keeps_nobody_waiting() {
        let yields = Yields::new(10);
        let mut now = 1000 * MS;
        for _ in 0..1000 {
            assert!(yields.begins(1, now) && yields.ends(now, 1, now + GAP));
            // Others come by on either processor.
            assert!(
                yields.begins(1, now) && yields.begins(1, now + LONG - 1) && yields.begins(2, now + LONG - 1)
            );
            assert!(yields.ends(now + LONG - 1, 2, now + LONG) && yields.ends(now, 1, now + LONG));
            now += LONG;
        }
    }

    #[test]
    fn little_of_the_time_is_lost() {
        let yields = Yields::new(10);
        let (begun, mut now, mut lost) = (1000 * MS, 1000 * MS, 0);
        let second = begun + 1000 * MS;
        while now < second {
            if yields.begins(1, now) {
                assert!(!yields.ends(now, 1, now + LONG), "somebody computes");
                (now, lost) = (now + LONG, lost + LONG);
            }
            now += MS / 10;
        }
        assert!((90 * MS..120 * MS).contains(&lost), "{lost}");
        // He is through.
        now += 10 * (LONG + SPARE);
        for _ in 0..=SPARE / LONG {
            assert!(yields.begins(1, now), "a few gaps at a time do not count");
            yields.ends(now, 1, now + LONG);
            now += LONG;
        }
    }
}
