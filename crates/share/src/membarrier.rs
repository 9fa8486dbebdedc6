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
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU32;

    /// The case that needs a fence: each side writes its word and then looks at the other one.
    #[test]
    fn one_of_two_sides_sees_the_other() {
        if !is_offered() || !join() {
            return;
        }
        const ROUNDS: usize = 20_000;
        let words: [crate::lock::Apart<AtomicU32>; 2] = Default::default();
        let (begin, end) = (Barrier::new(2), Barrier::new(2));
        let mut seen = 0;
        std::thread::scope(|s| {
            let often = s.spawn(|| {
                let look = || {
                    begin.wait();
                    words[0].store(1, Ordering::Relaxed);
                    here(true);
                    let saw = words[1].load(Ordering::Relaxed);
                    end.wait();
                    saw
                };
                (0..ROUNDS).map(|_| look()).collect::<Vec<u32>>()
            });
            let look = || {
                words.iter().for_each(|word| word.store(0, Ordering::SeqCst));
                begin.wait();
                words[1].store(1, Ordering::Relaxed);
                everywhere();
                let saw = words[0].load(Ordering::Relaxed);
                end.wait();
                saw
            };
            let seldom: Vec<u32> = (0..ROUNDS).map(|_| look()).collect();
            for (often, seldom) in often.join().unwrap().into_iter().zip(seldom) {
                assert_ne!((often, seldom), (0, 0), "nobody has seen the other");
                seen += often & seldom;
            }
        });
        eprintln!("both saw the other in {seen} of {ROUNDS} rounds");
    }
}
