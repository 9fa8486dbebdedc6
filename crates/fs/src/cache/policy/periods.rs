//! Periods, and how an entry was used in them: the terms of the E value (see `shared_use.rs`).
//!
//! Invariants: the clock does not run backwards; the term of a period that has ended is computed once, when the entry is
//! next looked at, and kept as one number. So an entry costs nothing while nobody looks at it.

use super::shared_use::Params;
use std::collections::VecDeque;

/// Terms in the sum.
const PERIODS: usize = 8;
/// Periods whose limits are known; the term of an entry's last use before has been halved so often that it is nothing.
const KNOWN_PERIODS: usize = 64;

/// Where periods begin and end.
#[derive(Debug)]
pub(super) struct Clock {
    now: u64,
    /// Number of the running period.
    period: u64,
    /// Starts of the latest periods, the running one last.
    starts: VecDeque<u64>,
    /// Bytes that came in during the running period.
    came: u64,
}

impl Clock {
    pub(super) fn new() -> Clock {
        Clock { now: 0, period: 0, starts: VecDeque::from([0]), came: 0 }
    }

    /// Bytes that came in during the running period.
    pub(super) fn came(&self) -> u64 {
        self.came
    }

    pub(super) fn came_in(&mut self, bytes: u64) {
        self.came += bytes;
    }

    pub(super) fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    pub(super) fn next_period(&mut self) {
        self.period += 1;
        self.came = 0;
        self.starts.push_back(self.now);
        if self.starts.len() > KNOWN_PERIODS {
            self.starts.pop_front();
        }
    }

    /// Start of a period, if that is still known.
    fn start(&self, period: u64) -> Option<u64> {
        let back = (self.period - period) as usize;
        self.starts.len().checked_sub(back + 1).map(|i| self.starts[i])
    }

    /// Length of the running period: it is taken to become at least as long as the one before.
    fn running_length(&self) -> u64 {
        let start = self.starts[self.starts.len() - 1];
        let before = self.starts.len().checked_sub(2).map_or(0, |i| start - self.starts[i]);
        before.max(self.now - start).max(1)
    }
}

/// How an entry was used.
#[derive(Clone, Copy, Debug)]
pub(super) struct History {
    /// The period that `last` and `users` are about.
    period: u64,
    /// When it was last used in that period; the start of the period when it was not.
    last: u64,
    /// Who used it in that period, a bit for each process.
    users: u64,
    /// Terms of the periods before, the newest first.
    past: [f32; PERIODS - 1],
}

impl History {
    /// Of an entry that nobody used so far.
    pub(super) fn new(clock: &Clock, params: &Params) -> History {
        let past = [params.term(1.0, 0.0) as f32; PERIODS - 1];
        History { period: clock.period, last: clock.now, users: 0, past }
    }

    /// `process` uses the entry now. Requires that it was rolled to now.
    pub(super) fn used(&mut self, clock: &Clock, process: u32) {
        self.last = clock.now;
        self.users |= 1 << (process % 64);
    }

    /// The sum of the terms as of now. Requires that it was rolled to now.
    pub(super) fn sum(&self, clock: &Clock, params: &Params, processes: u32) -> f64 {
        let t = (clock.now - self.last) as f64 / clock.running_length() as f64;
        let past: f64 = self.past.iter().map(|&x| x as f64).sum();
        params.term(t, self.share(processes)) + past
    }

    /// Takes the terms of the periods that ended since the entry was last looked at.
    pub(super) fn roll(&mut self, clock: &Clock, params: &Params, processes: u32) {
        let behind = clock.period - self.period;
        if behind == 0 {
            return;
        }
        let unused = params.term(1.0, 0.0) as f32;
        for i in 0..behind.min(KNOWN_PERIODS as u64) {
            let term = match (clock.start(self.period), clock.start(self.period + 1)) {
                (Some(start), Some(end)) if i == 0 && self.users != 0 => {
                    let t = (end - self.last.max(start)) as f64 / (end - start).max(1) as f64;
                    params.term(t, self.share(processes)) as f32
                }
                _ => unused,
            };
            let oldest = self.past[PERIODS - 2];
            self.past.copy_within(..PERIODS - 2, 1);
            self.past[PERIODS - 2] = (self.past[PERIODS - 2] + oldest) / 2.0;
            self.past[0] = term;
        }
        self.period = clock.period;
        self.users = 0;
        self.last = clock.starts[clock.starts.len() - 1];
    }

    fn share(&self, processes: u32) -> f64 {
        self.users.count_ones() as f64 / processes.min(64) as f64
    }
}
