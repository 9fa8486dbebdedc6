//! Whether separation is worth it: both ways are tried, and the faster one is used.
//!
//! Time is cut into windows of as many requests. Nearly all windows use what was faster so far; now and then one uses the other way, and is put
//! beside the one before it and the one behind it. So only neighbours are compared: how fast a device is changes with what is asked of it, and figures
//! of an earlier load say nothing. The first half of a window that differs from the one before does not count: what went out in the old way is still
//! under way. A way is as good as the bytes that came back in a second.
//!
//! The first trials are soon, and each that says what is known already is followed by one twice as late, or four times where the difference is clear,
//! one window in 256 at last: so the loss against the better way is at most what those windows lose. What asks for other kinds of requests is another
//! load, and it begins again.
//!
//! The paper (section 2.2) separates always.

use super::{Class, Ns};

/// Requests in a window.
const WINDOW: u32 = 2048;
/// Windows, of which one tries the other way: at first, and at last.
const OFTEN: u32 = 8;
const SELDOM: u32 = 256;
/// The other way must be better by this part.
const MARGIN: f64 = 0.01;
/// From so much on nobody need ask again soon.
const CLEAR: f64 = 0.05;
/// What one trial can say at most: a window in which nothing was asked for looks slow, whichever way it went.
const LIMIT: f64 = 0.5;
/// It is another load when so much of a window's requests (of 1) are of other classes than usual. With many under way the classes take turns for a part of a window.
const OTHER: f64 = 0.35;

/// See the module.
#[derive(Clone, Debug)]
pub struct Trial {
    /// By how much separation is faster (the logarithm of the ratio), by the mean of trials; `None`: it was not tried with this load.
    gain: Option<f64>,
    /// The better way: separated, or not.
    separates: bool,
    /// This window tries the other way.
    tries: bool,
    /// Windows since the last trial, and until the next.
    since: u32,
    every: u32,
    /// Bytes in a nanosecond of the last window of the better way, and of a trial that has no window behind it yet.
    before: Option<f64>,
    tried: Option<f64>,
    /// Usual parts of the classes; `None`: there was no window of this load.
    classes: Option<[f64; 4]>,
    /// Requests of this window that came back, all and by class.
    count: u32,
    of_class: [u32; 4],
    /// The first half counts, too.
    whole: bool,
    bytes: u64,
    begun: Option<Ns>,
}

impl Default for Trial {
    fn default() -> Trial {
        Trial {
            gain: None,
            separates: true,
            tries: false,
            since: 0,
            every: 1,
            before: None,
            tried: None,
            classes: None,
            count: 0,
            of_class: [0; 4],
            whole: false,
            bytes: 0,
            begun: None,
        }
    }
}

impl Trial {
    /// Which way requests go out now.
    pub fn is_separated(&self) -> bool {
        self.separates != self.tries
    }

    /// A request of `len` bytes came back.
    pub fn done(&mut self, class: Class, len: u64, now: Ns) {
        self.count += 1;
        self.of_class[class as usize] += 1;
        if self.begun.is_none() && (self.whole || self.count >= WINDOW / 2) {
            self.begun = Some(now);
        } else if self.begun.is_some() {
            self.bytes = self.bytes.saturating_add(len);
        }
        if self.count < WINDOW {
            return;
        }
        let time = now.saturating_sub(self.begun.unwrap_or(now)).max(1);
        let went = self.is_separated();
        self.window(self.bytes.max(1) as f64 / time as f64);
        self.whole = went == self.is_separated();
        (self.count, self.of_class, self.bytes, self.begun) = (0, [0; 4], 0, None);
    }

    /// A window is over, which had this rate: what it says, and which way the next one goes.
    fn window(&mut self, rate: f64) {
        let classes = self.of_class.map(|n| n as f64 / WINDOW as f64);
        let usual = self.classes.get_or_insert(classes);
        let differ: f64 = classes.iter().zip(&*usual).map(|(now, then)| (now - then).abs()).sum();
        usual.iter_mut().zip(classes).for_each(|(usual, now)| *usual += (now - *usual) / 4.0);
        // What moves to another class is missing in one and added in the other.
        if differ > 2.0 * OTHER {
            (self.gain, self.every, self.since) = (None, 1, 0);
            (self.tries, self.before, self.tried) = (false, None, None);
            self.classes = Some(classes);
            return;
        }
        if self.tries {
            (self.tries, self.tried, self.since) = (false, Some(rate), 0);
            return;
        }
        let before = self.before.replace(rate);
        if let (Some(tried), Some(before)) = (self.tried.take(), before) {
            let faster = (2.0 * tried / (before + rate)).ln().clamp(-LIMIT, LIMIT);
            self.learn(if self.separates { -faster } else { faster });
        }
        self.since += 1;
        self.tries = self.since >= self.every;
    }

    /// A trial has said by how much separation is faster.
    fn learn(&mut self, gain: f64) {
        let mean = self.gain.map_or(gain, |mean| mean + (gain - mean) / 4.0);
        self.gain = Some(mean);
        let other = if self.separates { mean < -MARGIN } else { mean > MARGIN };
        let later = if mean.abs() > CLEAR { 4 } else { 2 };
        self.every = if other { OFTEN } else { (later * self.every).clamp(OFTEN, SELDOM) };
        if other {
            self.separates = !self.separates;
            // The last window of what is the better way now was the trial.
            self.before = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs windows of one class in which a request takes so long in each way. The part of them that was separated.
    fn run(trial: &mut Trial, class: Class, windows: u32, ns: [Ns; 2], clock: &mut Ns) -> f64 {
        let mut separated = 0;
        for _ in 0..windows * WINDOW {
            separated += trial.is_separated() as u32;
            *clock += ns[trial.is_separated() as usize];
            trial.done(class, 4096, *clock);
        }
        separated as f64 / (windows * WINDOW) as f64
    }

    #[test]
    fn the_faster_way_is_used_and_a_change_is_noticed() {
        let (mut trial, mut clock, class) = (Trial::default(), 0, Class::SmallRead);
        run(&mut trial, class, 16, [100, 90], &mut clock);
        assert!(run(&mut trial, class, 640, [100, 90], &mut clock) > 0.98);
        run(&mut trial, class, 1000, [100, 150], &mut clock);
        assert!(run(&mut trial, class, 640, [100, 150], &mut clock) < 0.02);
    }

    /// What was measured with requests that take a tenth of the time is nothing to go by.
    #[test]
    fn another_load_is_tried_anew() {
        let (mut trial, mut clock) = (Trial::default(), 0);
        run(&mut trial, Class::SmallRead, 1000, [10, 20], &mut clock);
        assert!(!trial.is_separated());
        run(&mut trial, Class::LargeWrite, 8, [1000, 800], &mut clock);
        assert!(run(&mut trial, Class::LargeWrite, 64, [1000, 800], &mut clock) > 0.9);
        run(&mut trial, Class::SmallRead, 8, [10, 20], &mut clock);
        assert!(run(&mut trial, Class::SmallRead, 64, [10, 20], &mut clock) < 0.1);
    }

    /// The device gets slower and faster all the time, by much more than the ways differ.
    #[test]
    fn what_both_ways_have_in_common_does_not_count() {
        let (mut trial, mut clock, mut separated) = (Trial::default(), 0, 0.0);
        for step in 0..600_u64 {
            // Up and down by a half within sixty windows.
            let part = step % 60;
            let slow = 100 + if part < 30 { part } else { 60 - part };
            let share = run(&mut trial, Class::SmallRead, 1, [10 * slow, 9 * slow], &mut clock);
            separated += if step < 100 { 0.0 } else { share };
        }
        assert!(separated > 0.95 * 500.0, "{separated}");
    }

    #[test]
    fn the_loss_is_small() {
        for ns in [[100, 150], [150, 100], [100, 100]] {
            let (mut trial, mut clock) = (Trial::default(), 0);
            run(&mut trial, Class::SmallWrite, 1000, ns, &mut clock);
            let best = 1000 * WINDOW as u64 * ns[0].min(ns[1]);
            assert!(clock as f64 <= best as f64 * 1.02, "{ns:?}: {clock} {best}");
        }
    }
}
