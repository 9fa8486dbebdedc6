//! When to try again: exponential backoff with full jitter, until a deadline over all tries.
//!
//! Source: "Exponential Backoff And Jitter" (AWS Architecture Blog): a wait is drawn between nothing and a bound that doubles.

use rand::Rng;
use std::time::{Duration, Instant};

/// Bound of the first wait.
const FIRST: Duration = Duration::from_millis(50);
/// Bound of all waits, where the store does not ask for more.
const MOST: Duration = Duration::from_secs(5);

/// The tries of one call.
#[derive(Debug)]
pub struct Backoff {
    until: Instant,
    tries: u32,
}

impl Backoff {
    /// Tries until `deadline` from now.
    pub fn new(deadline: Duration) -> Backoff {
        Backoff { until: Instant::now() + deadline, tries: 0 }
    }

    /// Tries until then at most.
    pub fn end_by(&mut self, until: Instant) {
        self.until = self.until.min(until);
    }

    /// How many tries failed.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// How long to wait before the next try, at least as long as the store asked for, unless that would be after the deadline: then there is a last try at the
    /// deadline. `None`: there is no time left.
    pub fn next(&mut self, asked: Option<Duration>) -> Option<Duration> {
        let bound = FIRST.saturating_mul(1 << self.tries.min(16)).min(MOST);
        self.tries += 1;
        let drawn = bound.mul_f64(rand::rng().random::<f64>());
        let left = self.until.saturating_duration_since(Instant::now());
        match asked {
            Some(asked) if asked > drawn && !left.is_zero() => Some(asked.min(left)),
            _ => (drawn < left).then_some(drawn),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_bounded_and_end_with_the_deadline() {
        let mut backoff = Backoff::new(Duration::from_secs(60));
        for tries in 0..40 {
            assert_eq!(backoff.tries(), tries);
            let wait = backoff.next(None).expect("no time has passed");
            assert!(wait <= MOST.min(FIRST * (1 << tries.min(16))));
        }
        assert!(backoff.next(Some(Duration::from_secs(7))).expect("in time") >= Duration::from_secs(7));
        let last = backoff.next(Some(Duration::from_secs(600))).expect("as long as there is time");
        assert!(last > Duration::from_secs(50) && last <= Duration::from_secs(60), "{last:?}");
        assert_eq!(Backoff::new(Duration::ZERO).next(Some(Duration::from_secs(1))), None);
        assert_eq!(Backoff::new(Duration::ZERO).next(None), None);
    }
}
