//! Whether separation is worth it: both ways are tried, and the faster one is used.
//!
//! Time is cut into windows of as many requests. Nearly all windows use what was faster so far; one in 256 uses the other way. The first half
//! of a window that differs from the one before does not count: what went out in the old way is still under way. A way is as good
//! as the bytes that came back in a second, on the average of its windows. So the loss against the better way is at most
//! what one window in 256 loses.

use super::Ns;

/// Requests in a window.
const WINDOW: u32 = 2048;
/// Windows, of which one tries the other way.
const EVERY: u32 = 256;
/// How many windows of each way are looked at before the first decision.
const FIRST: u32 = 2;
/// The other way must be better by this factor.
const MARGIN: f64 = 1.01;

#[derive(Clone, Copy, Debug, Default)]
struct Way {
    /// Bytes in a nanosecond; 0: never tried.
    rate: f64,
    windows: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Round-robin, separated.
    ways: [Way; 2],
    better: usize,
    now: usize,
    /// Windows since the last trial.
    since: u32,
    /// Requests of this window that came back.
    count: u32,
    /// The first half counts, too.
    whole: bool,
    bytes: u64,
    begun: Option<Ns>,
}

impl Default for Trial {
    fn default() -> Trial {
        Trial {
            ways: Default::default(),
            better: 1,
            now: 1,
            since: 0,
            count: 0,
            whole: false,
            bytes: 0,
            begun: None,
        }
    }
}

impl Trial {
    /// Which way requests go out now.
    pub fn is_separated(&self) -> bool {
        self.now == 1
    }

    /// A request of `len` bytes came back.
    pub fn done(&mut self, len: u64, now: Ns) {
        self.count += 1;
        if self.begun.is_none() && (self.whole || self.count >= WINDOW / 2) {
            self.begun = Some(now);
        } else if self.begun.is_some() {
            self.bytes = self.bytes.saturating_add(len);
        }
        if self.count < WINDOW {
            return;
        }
        let time = now.saturating_sub(self.begun.unwrap_or(now)).max(1);
        let (rate, way) = (self.bytes as f64 / time as f64, &mut self.ways[self.now]);
        way.rate = if way.windows == 0 { rate } else { way.rate + (rate - way.rate) / 4.0 };
        way.windows += 1;
        let next = self.decide();
        (self.whole, self.now) = (next == self.now, next);
        (self.count, self.bytes, self.begun) = (0, 0, None);
    }

    /// Which way the next window goes.
    fn decide(&mut self) -> usize {
        // Some of each, to begin with.
        if let Some(way) = [1, 0].into_iter().find(|&way| self.ways[way].windows < FIRST) {
            return way;
        }
        let other = 1 - self.better;
        if self.ways[other].rate > self.ways[self.better].rate * MARGIN {
            self.better = other;
        }
        self.since += 1;
        if self.since >= EVERY {
            self.since = 0;
            return 1 - self.better;
        }
        self.better
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs windows in which a request takes so long in each way. The part of them that was separated.
    fn run(trial: &mut Trial, windows: u32, ns: [Ns; 2], clock: &mut Ns) -> f64 {
        let mut separated = 0;
        for _ in 0..windows * WINDOW {
            separated += trial.is_separated() as u32;
            *clock += ns[trial.is_separated() as usize];
            trial.done(4096, *clock);
        }
        separated as f64 / (windows * WINDOW) as f64
    }

    #[test]
    fn the_faster_way_is_used_and_a_change_is_noticed() {
        let (mut trial, mut clock) = (Trial::default(), 0);
        run(&mut trial, 2 * FIRST, [100, 90], &mut clock);
        assert!(run(&mut trial, 640, [100, 90], &mut clock) > 0.98);
        run(&mut trial, 1000, [100, 150], &mut clock);
        assert!(run(&mut trial, 640, [100, 150], &mut clock) < 0.02);
    }

    #[test]
    fn the_loss_is_small() {
        for ns in [[100, 150], [150, 100], [100, 100]] {
            let (mut trial, mut clock) = (Trial::default(), 0);
            run(&mut trial, 1000, ns, &mut clock);
            let best = 1000 * WINDOW as u64 * ns[0].min(ns[1]);
            assert!(clock as f64 <= best as f64 * 1.02, "{ns:?}: {clock} {best}");
        }
    }
}
