//! Many threads of one program that wait for the manager at a time.
//!
//! To wake a thread takes longer than most calls. Where many threads wait, there is always one that can go on: a thread that lets the others go
//! first, most of which have something to ask for as well, often finds its answer when it has its turn again, and then nobody had to wake it, and the manager at most once for all.
//!
//! That is so while those who go first wait soon themselves. Anybody else, a program that computes, keeps the processor for a whole turn of the scheduler's, which
//! a thread that sleeps is given back at once. So threads note when they come by on each processor; after a gap they sleep for a while as soon as they
//! have to wait, and then one of them tries again.

use crate::changes::processor;
use crate::spin::processors;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Waiting threads for each processor, from which on there is always one that can go on.
const MANY: usize = 2;
/// Somebody who keeps a processor for so long does not wait soon. Turns of the scheduler's last several milliseconds.
const GAP: Duration = Duration::from_millis(2);
/// How long nobody lets others go first after that.
const PAUSE: Duration = Duration::from_millis(4);
/// Processors that are told apart.
const PLACES: usize = 64;

/// Threads of a session that wait for answers.
#[derive(Debug)]
pub(super) struct Throng {
    /// How many they are, also those that sleep.
    waiting: AtomicUsize,
    many: usize,
    /// When one of them came by, for each processor. Nanoseconds of the monotonic clock, as all times here.
    seen: [AtomicU64; PLACES],
    /// Nobody lets others go first until then.
    until: AtomicU64,
}

impl Default for Throng {
    fn default() -> Throng {
        Throng {
            waiting: AtomicUsize::new(0),
            many: MANY * processors(),
            seen: [const { AtomicU64::new(0) }; PLACES],
            until: AtomicU64::new(0),
        }
    }
}

/// A thread that waits, for as long as it does.
pub(super) struct Waiting<'a>(&'a Throng);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Throng {
    /// The calling thread waits from now on.
    pub fn enter(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Relaxed);
        Waiting(self)
    }

    fn seen(&self, processor: u32) -> &AtomicU64 {
        &self.seen[processor as usize % PLACES]
    }

    /// Whether a thread that waits lets others go first.
    fn begins(&self, processor: u32, now: u64) -> Option<Turn> {
        if self.waiting.load(Relaxed) <= self.many {
            return None;
        }
        self.seen(processor).store(now, Relaxed);
        let until = self.until.load(Relaxed);
        // One alone tries whether it is over.
        let tries = until != 0
            && now >= until
            && self.until.compare_exchange(until, now + PAUSE.as_nanos() as u64, Relaxed, Relaxed).is_ok();
        (until == 0 || tries).then_some(Turn { begun: now, tries })
    }

    /// It has its turn again, perhaps on another processor.
    fn ends(&self, turn: Turn, processor: u32, now: u64) {
        let gap = now.saturating_sub(self.seen(processor).swap(now, Relaxed).max(turn.begun));
        if gap > GAP.as_nanos() as u64 {
            self.until.store(now + PAUSE.as_nanos() as u64, Relaxed);
        } else if turn.tries {
            self.until.store(0, Relaxed);
        }
    }
}

/// A thread has let others go first.
#[derive(Clone, Copy)]
struct Turn {
    begun: u64,
    /// Whether it does so to try.
    tries: bool,
}

impl Waiting<'_> {
    /// Whether so few threads wait that the others need no processor of theirs.
    pub fn are_few(&self) -> bool {
        self.0.waiting.load(Relaxed) <= self.0.many
    }

    /// Lets others have the processor for a turn, if there are many who wait soon themselves.
    pub fn let_others_go_first(&self) {
        if let Some(turn) = self.0.begins(processor(), now()) {
            std::thread::yield_now();
            self.0.ends(turn, processor(), now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn where_few_wait_everybody_sleeps() {
        let throng = Throng { many: 2, ..Throng::default() };
        let _waiting = [throng.enter(), throng.enter()];
        assert!(throng.begins(1, MS).is_none());
        let third = throng.enter();
        assert!(throng.begins(1, MS).is_some());
        drop(third);
        assert!(throng.begins(1, MS).is_none());
    }

    #[test]
    fn whoever_keeps_a_processor_is_not_let_first_for_a_while() {
        let throng = Throng { many: 0, ..Throng::default() };
        let _waiting = throng.enter();
        let (gap, pause) = (2 * GAP.as_nanos() as u64, PAUSE.as_nanos() as u64);
        // Others come by on either processor meanwhile.
        let turn = throng.begins(1, MS).unwrap();
        let other = throng.begins(1, gap).unwrap();
        throng.ends(other, 2, gap + 1);
        throng.ends(turn, 1, gap + 2);
        // Nobody does.
        let turn = throng.begins(1, gap + 3).unwrap();
        let mut now = 2 * gap + 4;
        throng.ends(turn, 1, now);
        for _ in 0..3 {
            assert!(throng.begins(1, now).is_none() && throng.begins(2, now + pause - 1).is_none());
            now += pause;
            let tries = throng.begins(1, now).unwrap();
            assert!(throng.begins(1, now).is_none(), "one alone tries");
            now += gap;
            throng.ends(tries, 1, now);
        }
        now += pause;
        let tries = throng.begins(1, now).unwrap();
        throng.ends(tries, 1, now + 1);
        assert!(throng.begins(1, now + 2).is_some() && throng.begins(2, now + 3).is_some());
    }
}
