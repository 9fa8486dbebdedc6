//! Waiting for the other side: looking again and again is fast and burns a processor, sleeping is the reverse.
//!
//! One policy for both sides. It looks for a short time without letting go of the processor, which is enough when the other side is
//! running; then it offers the processor to others between looks, which is what the other side needs when there are
//! more busy processes than processors; then it says that it should sleep.

use std::time::{Duration, Instant};

/// How long a side looks before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Looks without giving the processor away.
    pub looks: u32,
    /// The same while there are more busy processes than processors: about as many as a short call takes, as the other side may be
    /// waiting for the one that looks.
    pub looks_in_a_crowd: u32,
    /// Time with looks between which the processor is offered to others.
    pub yields: Duration,
    /// The same while there are more busy processes than processors: offering it costs more than to be woken, soon.
    pub yields_in_a_crowd: Duration,
}

/// Processors that this process may use.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Default for Patience {
    fn default() -> Patience {
        // One processor cannot run the other side while this one looks.
        let alone = processors() == 1;
        let (looks, looks_in_a_crowd) = if alone { (0, 0) } else { (2000, 150) };
        let (yields, yields_in_a_crowd) = (Duration::from_micros(100), Duration::from_micros(10));
        Patience { looks, looks_in_a_crowd, yields, yields_in_a_crowd }
    }
}

impl Patience {
    /// Looks until `ready` says yes; false when it is time to sleep.
    pub fn wait(&self, crowded: bool, mut ready: impl FnMut() -> bool) -> bool {
        for _ in 0..if crowded { self.looks_in_a_crowd } else { self.looks } {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        let yields = if crowded { self.yields_in_a_crowd } else { self.yields };
        let mut start = None;
        loop {
            if ready() {
                return true;
            }
            let since = *start.get_or_insert_with(Instant::now);
            if since.elapsed() >= yields {
                return false;
            }
            std::thread::yield_now();
        }
    }
}
