//! Memory for data of files, shared by all of them.
//!
//! Who writes takes memory before it copies bytes in, and waits while there is none: parts on their way to the store give theirs back when they
//! arrive. But parts have a least size, so many files that have filled a little of a part each would wait for each other for ever. So a few of them
//! ([`LANES`]) may go beyond the limit, each until its part is full and leaves, and then others. Who does not go on with a part for a
//! moment ([`IDLE`]), or takes too long for it ([`SLOW`]), makes room for another. While much is on its way already nobody need go beyond.
//! So the excess is a part of each of a few files; only of files whose writers pause in the middle of their parts it is more.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime;
use tokio::sync::Notify;

/// So many files may go beyond the limit at a time.
const LANES: usize = 8;
/// Who has not asked for more for so long is not filling its part.
const IDLE: Duration = Duration::from_millis(20);
/// Who has not filled its part after so long is not the one to wait for.
const SLOW: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Debug)]
pub struct Budget {
    total: u64,
    state: Mutex<State>,
    given: Notify,
}

#[derive(Debug, Default)]
struct State {
    used: u64,
    used_max: u64,
    /// Bytes that will come back without anybody's doing.
    moving: u64,
    lanes: Vec<Lane>,
}

/// A file that may go beyond the limit.
#[derive(Debug)]
struct Lane {
    who: u64,
    since: Instant,
    last: Instant,
}

impl State {
    fn take(&mut self, n: u64) {
        self.used += n;
        self.used_max = self.used_max.max(self.used);
    }

    /// Takes memory for a file, or says how long it has to wait at least if none is given back.
    fn admit(&mut self, who: u64, n: u64, total: u64, now: Instant) -> Option<Duration> {
        if self.used + n > total {
            let rest = |lane: &Lane| (lane.last + IDLE).min(lane.since + SLOW).saturating_duration_since(now);
            if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.who == who) {
                lane.last = now;
            } else if self.moving > total / 2 {
                return Some(SLOW);
            } else if self.lanes.len() < LANES {
                self.lanes.push(Lane { who, since: now, last: now });
            } else if let Some(lane) = self.lanes.iter_mut().find(|lane| rest(lane).is_zero()) {
                *lane = Lane { who, since: now, last: now };
            } else {
                return self.lanes.iter().map(rest).min();
            }
        }
        self.take(n);
        None
    }
}

impl Budget {
    /// `total` bytes.
    pub fn new(total: u64) -> Budget {
        Budget { total, state: Mutex::default(), given: Notify::new() }
    }

    /// Bytes in use, and the most that were.
    pub fn used(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.used, state.used_max)
    }

    /// Takes memory if there is some.
    pub fn try_take(&self, n: u64) -> bool {
        let mut state = self.state.lock();
        let fits = state.used + n <= self.total;
        if fits {
            state.take(n);
        }
        fits
    }

    /// Takes memory whether there is some or not: for those without whom nothing would go on.
    pub fn force(&self, n: u64) {
        self.state.lock().take(n);
    }

    /// Takes memory for the file `who`, waiting for it as the module says. `runtime` keeps the time.
    pub async fn take(&self, who: u64, n: u64, runtime: &runtime::Handle) {
        loop {
            let given = self.given.notified();
            let Some(wait) = self.state.lock().admit(who, n, self.total, Instant::now()) else { return };
            let mut late = runtime.spawn(async move { tokio::time::sleep(wait).await });
            tokio::select! {
                () = given => late.abort(),
                _ = &mut late => {}
            }
        }
    }

    /// A part of the file is full, and leaves.
    pub fn filled(&self, who: u64) {
        let mut state = self.state.lock();
        let before = state.lanes.len();
        state.lanes.retain(|lane| lane.who != who);
        if state.lanes.len() < before {
            self.given.notify_waiters();
        }
    }

    /// Gives memory back.
    pub fn give(&self, n: u64) {
        if n > 0 {
            self.state.lock().used -= n;
            self.given.notify_waiters();
        }
    }

    /// Something on its way will give `n` bytes back when it arrives, or says that it will not: when the value that is returned is dropped.
    pub fn moving(self: &Arc<Self>, n: u64) -> Moving {
        self.state.lock().moving += n;
        Moving(self.clone(), n)
    }

    /// Makes `n` bytes that were taken the matter of a value: they are given back when it is dropped.
    pub fn held(self: &Arc<Self>, n: u64) -> Held {
        Held(self.clone(), n)
    }
}

/// See [`Budget::moving`].
#[derive(Debug)]
pub struct Moving(Arc<Budget>, u64);

impl Drop for Moving {
    fn drop(&mut self) {
        self.0.state.lock().moving -= self.1;
        self.0.given.notify_waiters();
    }
}

/// Memory that is given back when this is dropped. See [`Budget::held`].
#[derive(Debug)]
pub struct Held(Arc<Budget>, u64);

impl Held {
    /// `n` bytes of it are somebody else's matter now; the rest is given back.
    pub fn keep(mut self, n: u64) {
        self.1 -= n;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.give(self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_go_beyond_the_limit_until_their_parts_leave() {
        let mut state = State::default();
        let now = Instant::now();
        assert_eq!(state.admit(1, 10, 10, now), None);
        for who in 1..=LANES as u64 {
            assert_eq!(state.admit(who, 2, 10, now), None, "{who}");
        }
        let others = 1 + LANES as u64;
        assert_eq!(state.admit(others, 2, 10, now), Some(IDLE));
        // Those who go on do so before others begin.
        let later = now + IDLE;
        for who in 2..=LANES as u64 {
            assert_eq!(state.admit(who, 2, 10, later), None);
        }
        assert_eq!(state.admit(others, 2, 10, later), None, "the first one has paused");
        assert_eq!(state.admit(1, 2, 10, later), Some(IDLE));
        for step in 1..=25 {
            state.lanes.iter_mut().for_each(|lane| lane.last = later + IDLE * step);
        }
        assert_eq!(state.admit(1, 2, 10, later + SLOW), None, "nobody keeps others out for longer");
    }

    /// The callers' threads have no runtime.
    #[test]
    fn waits_for_what_comes_back() {
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let budget = Arc::new(Budget::new(10));
        assert!(budget.try_take(8) && !budget.try_take(3));
        // Little is moving: waiting might never end.
        fs::block_on(budget.take(1, 4, runtime.handle()));
        budget.filled(1);
        let moving = (budget.held(8), budget.moving(8));
        let (other, handle) = (budget.clone(), runtime.handle().clone());
        let waits = std::thread::spawn(move || fs::block_on(other.take(1, 5, &handle)));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished(), "what is on its way is waited for");
        drop(moving);
        waits.join().unwrap();
        assert_eq!(budget.used(), (9, 12));
        budget.give(9);
        assert_eq!(budget.used(), (0, 12));
    }

    #[test]
    fn who_waits_for_those_who_pause_goes_on_after_a_moment() {
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let budget = Budget::new(1);
        for who in 0..3 * LANES as u64 {
            fs::block_on(budget.take(who, 2, runtime.handle()));
        }
        assert_eq!(budget.used().0, 6 * LANES as u64);
    }
}
