//! What goes wrong with a request, drawn from a seed.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::time::Duration;

/// Of 1,000 requests, how many meet each fault. What is left goes well.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// The connection breaks; nothing was done.
    pub reset_before: u32,
    /// The connection breaks when everything was done.
    pub reset_after: u32,
    /// 500 InternalError, nothing was done.
    pub error_before: u32,
    /// 500 InternalError although everything was done.
    pub error_after: u32,
    /// 503 SlowDown.
    pub slow_down: u32,
    /// The body of the answer ends too soon.
    pub cut: u32,
    /// A bit of the answer's body is turned.
    pub flip_answer: u32,
    /// A bit of the request's body is turned.
    pub flip_request: u32,
    /// No answer comes for longer than clients wait; it was done.
    pub silence: u32,
    /// The answer comes late.
    pub delay: u32,
    /// A listing shows what there was some changes ago.
    pub stale: u32,
    /// The answer to a read claims to be longer than anything.
    pub endless: u32,
}

impl Rates {
    /// All kinds but stale listings and endless answers, each as often.
    pub fn all(each: u32) -> Rates {
        Rates {
            reset_before: each,
            reset_after: each,
            error_before: each,
            error_after: each,
            slow_down: each,
            cut: each,
            flip_answer: each,
            flip_request: each,
            silence: each.div_ceil(10),
            delay: each,
            stale: 0,
            endless: 0,
        }
    }
}

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// See [`Rates`].
    ResetBefore,
    /// See [`Rates`].
    ResetAfter,
    /// See [`Rates`].
    ErrorBefore,
    /// See [`Rates`].
    ErrorAfter,
    /// See [`Rates`].
    SlowDown,
    /// See [`Rates`].
    Cut,
    /// See [`Rates`].
    FlipAnswer,
    /// See [`Rates`].
    FlipRequest,
    /// See [`Rates`].
    Silence,
    /// See [`Rates`].
    Delay(Duration),
    /// See [`Rates`].
    Stale,
    /// See [`Rates`].
    Endless,
}

/// The faults to come.
#[derive(Debug)]
pub struct Faults {
    rates: Rates,
    random: SmallRng,
    struck: u64,
}

impl Faults {
    /// Faults at these rates, from a seed.
    pub fn new(rates: Rates, seed: u64) -> Faults {
        Faults { rates, random: SmallRng::seed_from_u64(seed), struck: 0 }
    }

    /// None.
    pub fn none() -> Faults {
        Faults::new(Rates::default(), 0)
    }

    /// How many have struck.
    pub fn struck(&self) -> u64 {
        self.struck
    }

    /// The fault of the next request.
    pub fn draw(&mut self) -> Option<Fault> {
        let rates = self.rates;
        let delay = Duration::from_millis(self.random.random_range(1..20));
        let mut drawn = self.random.random_range(0..1000);
        for (rate, fault) in [
            (rates.reset_before, Fault::ResetBefore),
            (rates.reset_after, Fault::ResetAfter),
            (rates.error_before, Fault::ErrorBefore),
            (rates.error_after, Fault::ErrorAfter),
            (rates.slow_down, Fault::SlowDown),
            (rates.cut, Fault::Cut),
            (rates.flip_answer, Fault::FlipAnswer),
            (rates.flip_request, Fault::FlipRequest),
            (rates.silence, Fault::Silence),
            (rates.delay, Fault::Delay(delay)),
            (rates.stale, Fault::Stale),
            (rates.endless, Fault::Endless),
        ] {
            if drawn < rate {
                self.struck += 1;
                return Some(fault);
            }
            drawn -= rate;
        }
        None
    }

    /// One of so many.
    pub fn choose(&mut self, count: usize) -> usize {
        self.random.random_range(0..count.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_faults_at_the_rates() {
        let draw = |seed| {
            let mut faults = Faults::new(Rates::all(20), seed);
            (0..10_000).map(|_| faults.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let resets = draw(1).iter().filter(|fault| **fault == Some(Fault::ResetAfter)).count();
        assert!((120..280).contains(&resets), "{resets}");
        assert!(!draw(1).contains(&Some(Fault::Stale)));
    }
}
