//! Waiting for the other side: looking again and again is fast and burns a processor, sleeping is the reverse.
//!
//! One policy for both sides. It looks for a short time without letting go of the processor, which is enough when the other side is
//! running; then it offers the processor to others between looks, which is what the other side needs when there are
//! more busy processes than processors; then it says that it should sleep.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a side looks before it sleeps. Times and not numbers of looks: a virtual machine may make each of them a thousand times as slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Time with looks that do not give the processor away.
    pub looks: Duration,
    /// The same while there are more busy processes than processors: about as long as a short call takes, as the other side may be
    /// waiting for the one that looks.
    pub looks_in_a_crowd: Duration,
    /// Time with looks between which the processor is offered to others.
    pub yields: Duration,
}

/// Looks between two looks at the clock, which takes about as long as one.
const LOOKS: u32 = 16;

/// Processors that this process may run on, as it was when this was asked for first. Not less for a share of their time that it has (cgroups): both sides run at the same time as
/// long as that lasts, and to find out reads several files, at the start of each program.
pub(crate) fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    // More than the call has room for is not one.
    let ask = || rustix::thread::sched_getaffinity(None).map_or(1024, |set| set.count() as usize);
    *PROCESSORS.get_or_init(ask)
}

impl Default for Patience {
    fn default() -> Patience {
        // One processor cannot run the other side while this one looks.
        let alone = processors() == 1;
        let (looks, looks_in_a_crowd) = if alone { (0, 0) } else { (60, 5) };
        let (looks, looks_in_a_crowd) =
            (Duration::from_micros(looks), Duration::from_micros(looks_in_a_crowd));
        Patience { looks, looks_in_a_crowd, yields: Duration::from_micros(100) }
    }
}

impl Patience {
    /// Looks until `ready` says yes; false when it is time to sleep. Looking is `vain` when the other side cannot run meanwhile: then it is time for that, or in a crowd, where
    /// being woken takes long, for offering it the processor. `offer` does so, and says whether it may be offered again.
    pub(crate) fn wait(
        &self,
        crowded: bool,
        vain: impl Fn() -> bool,
        offer: impl Fn() -> bool,
        mut ready: impl FnMut() -> bool,
    ) -> bool {
        let looks = if crowded { self.looks_in_a_crowd } else { self.looks };
        if ready() {
            return true;
        }
        let begun = Instant::now();
        while begun.elapsed() < looks {
            if vain() {
                if crowded {
                    break;
                }
                // There is another processor for whoever is woken.
                return false;
            }
            for _ in 0..LOOKS {
                std::hint::spin_loop();
                if ready() {
                    return true;
                }
            }
        }
        let begun = Instant::now();
        while !ready() {
            if begun.elapsed() >= self.yields || !offer() {
                return ready();
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn nobody_looks_in_vain_or_for_ever() {
        let long = Duration::from_secs(600);
        let patience = Patience { looks: long, looks_in_a_crowd: Duration::ZERO, yields: long };
        let hasty = Patience { yields: Duration::ZERO, ..patience };
        let (vain, yes) = (|| true, || true);
        let looks = Cell::new(0);
        let soon = || looks.replace(looks.get() + 1) == 1000;
        assert!(!patience.wait(false, vain, yes, || false), "the other side cannot run");
        assert!(!hasty.wait(true, || false, yes, || false));
        let patient = Patience { looks_in_a_crowd: long, ..patience };
        assert!(patient.wait(true, vain, yes, soon), "it can when it is offered the processor");
        assert_eq!(looks.replace(0), 1001);
        assert!(!patient.wait(true, vain, || false, soon), "somebody else keeps that");
        assert_eq!(looks.replace(0), 3);
        assert!(patience.wait(true, vain, yes, || true), "what is there is seen all the same");
        assert!(patience.wait(false, || false, yes, soon));
    }
}
