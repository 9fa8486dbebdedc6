//! How far the processors are from each other.
//!
//! Two processors that share a cache pass a line of it on in some 25 ns; those that do not take six times as long. A virtual machine may have either, one after the other, as its
//! host moves them, and figures of processes that work together differ by a third between the two. So it is measured with each of those.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Round trips of one measurement, and measurements, of which the shortest counts: others may have had a processor meanwhile.
const ROUNDS: u64 = 5000;
const TRIES: usize = 5;
/// Nobody waits for longer: a processor may be busy with others.
const PATIENCE: Duration = Duration::from_millis(500);

/// A word in a line of its own.
#[repr(align(128))]
struct Line(AtomicU64);

/// Seconds for a line of the caches to go from the first processor that this process may use to the second one and back. `None` with one processor, or when others need them.
pub fn round_trip() -> Option<f64> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut both = (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor));
    let (first, second) = (both.next()?, both.next()?);
    // Threads of their own, whose processors nobody else wants back.
    std::thread::scope(|scope| scope.spawn(|| between(first, second)).join().ok().flatten())
}

fn between(first: usize, second: usize) -> Option<f64> {
    let line = Line(AtomicU64::new(0));
    let last = 2 * ROUNDS * TRIES as u64;
    let until = Instant::now() + PATIENCE;
    // Waits for a number to come. False: too long.
    let comes = |number: u64| {
        let mut looks = 0u32;
        while line.0.load(Ordering::Acquire) != number {
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(1024) && Instant::now() > until {
                return false;
            }
        }
        true
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            stay_on(second)
                && (1..last).step_by(2).all(|number| {
                    let came = comes(number);
                    if came {
                        line.0.store(number + 1, Ordering::Release);
                    }
                    came
                })
        });
        let measure = |nth: usize| {
            let begun = Instant::now();
            let from = 2 * ROUNDS * nth as u64;
            let all = (from..from + 2 * ROUNDS).step_by(2).all(|number| {
                line.0.store(number + 1, Ordering::Release);
                comes(number + 2)
            });
            all.then(|| begun.elapsed().as_secs_f64() / ROUNDS as f64)
        };
        let there = stay_on(first);
        let times: Option<Vec<f64>> = (0..TRIES).map(|nth| measure(nth).filter(|_| there)).collect();
        let answered = other.join().unwrap_or(false);
        times.filter(|_| answered)?.into_iter().min_by(f64::total_cmp)
    })
}

/// The calling thread runs on this processor only from now on.
fn stay_on(processor: usize) -> bool {
    let mut one = CpuSet::new();
    one.set(processor);
    sched_setaffinity(None, &one).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_nanoseconds() {
        let processors = sched_getaffinity(None).unwrap().count();
        // Others may have something to do at the moment.
        match (0..20).find_map(|_| round_trip()) {
            Some(time) => assert!(processors > 1 && (5e-9..1e-4).contains(&time), "{time} s"),
            None => assert_eq!(processors, 1),
        }
        assert_eq!(sched_getaffinity(None).unwrap().count(), processors, "who asks stays where he was");
    }
}
