//! Fences that one side makes the other side pass (membarrier(2)).
//!
//! Two sides that each write something and then look at what the other has written each need a full fence between the two steps, so that at least one of them sees
//! the other. A side that does so for each page that it writes waits each time until all of the page has gone out of its processor, about as long as
//! it took to copy it. Where the other side comes seldom, that one can have the kernel run a full fence on every processor on which a process runs that has asked for
//! this: then the first side must only keep its compiler from changing the order of the two steps. Whatever it had written when it looked, is seen after
//! the kernel has been there; if it looks later, it sees what the other side had written before.

use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence, fence};

/// Whether [`everywhere`] is a fence for others: the kernel has this since Linux 4.16, where no filter of system calls forbids it.
pub(crate) fn is_offered() -> bool {
    static OFFERED: OnceLock<bool> = OnceLock::new();
    *OFFERED.get_or_init(|| {
        membarrier_query().contains(MembarrierQuery::GLOBAL_EXPEDITED)
            && membarrier(MembarrierCommand::GlobalExpedited).is_ok()
    })
}

/// Asks to be included in the fences of others. Whether this process is, from now on. It may take milliseconds in a process of several threads, the first time.
pub(crate) fn join() -> bool {
    membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
}

/// A full fence, on the processors of all who have joined too.
pub(crate) fn everywhere() {
    fence(Ordering::SeqCst);
    if is_offered() {
        let done = membarrier(MembarrierCommand::GlobalExpedited);
        debug_assert!(done.is_ok(), "what was done once is always done");
    }
}

/// A full fence, unless the other side makes one for both.
#[inline]
pub(crate) fn here(made_for_us: bool) {
    match made_for_us {
        true => compiler_fence(Ordering::SeqCst),
        false => fence(Ordering::SeqCst),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Apart;
    use std::sync::atomic::AtomicUsize;

    const ROUNDS: usize = 20_000;

    /// A thread that has come so far, and one that waits for it as closely as it can.
    #[derive(Default)]
    struct At(Apart<AtomicUsize>);

    impl At {
        fn come(&self, round: usize, other: &At) {
            self.0.store(round, Ordering::Release);
            for look in 1.. {
                if other.0.load(Ordering::Acquire) >= round {
                    return;
                }
                if look % 10_000 == 0 {
                    std::thread::yield_now();
                }
                std::hint::spin_loop();
            }
        }
    }

    /// The case that needs a fence: each side writes its word and then looks at the other one.
    #[test]
    fn one_of_two_sides_sees_the_other() {
        if !is_offered() || !join() {
            return;
        }
        let words: [Vec<Apart<AtomicUsize>>; 2] =
            std::array::from_fn(|_| (0..=ROUNDS).map(|_| Apart::default()).collect());
        let at: [At; 2] = Default::default();
        let side = |n: usize, between: fn()| {
            let round = |round: usize| {
                at[n].come(round, &at[1 - n]);
                words[n][round].store(1, Ordering::Relaxed);
                between();
                words[1 - n][round].load(Ordering::Relaxed)
            };
            (1..=ROUNDS).map(round).collect::<Vec<usize>>()
        };
        let saw: [Vec<usize>; 2] = std::thread::scope(|s| {
            let often = s.spawn(|| side(0, || here(true)));
            let seldom = side(1, everywhere);
            [often.join().unwrap(), seldom]
        });
        let neither = (0..ROUNDS).filter(|&round| saw[0][round] + saw[1][round] == 0).count();
        assert_eq!(neither, 0, "rounds in which nobody saw the other");
    }
}
