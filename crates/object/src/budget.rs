//! Memory for data of files, shared by all of them.
//!
//! Who writes takes memory before it copies bytes in, and waits while there is none: parts on their way to the store give theirs back when they
//! arrive. But parts have a least size, so many files that have filled a little of a part each would wait for each other for ever. So a few of them
//! ([`LANES`]) may go beyond the limit, each until its part is full and leaves, and then others. Who does not go on with a part for a
//! moment ([`IDLE`]), or takes too long for it ([`SLOW`]), makes room for another. While much is on its way already nobody need go beyond.
//! So the excess is a part of each of a few files; only of files whose writers pause in the middle of their parts it is more. The larger it is, the
//! longer a pause must be: where the machine itself pauses, each writer seems to.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime;
use tokio::sync::{Notify, OnceCell};

/// So many files may go beyond the limit at a time.
const LANES: usize = 8;
/// Who has not asked for more for so long is not filling its part.
const IDLE: Duration = Duration::from_millis(20);
/// Who has not filled its part after so long is not the one to wait for.
const SLOW: Duration = Duration::from_millis(500);
/// [`IDLE`] doubles with each half of the limit that is in use beyond it, so many times at most, and [`SLOW`] [`SLOW_DOUBLES`] times.
const DOUBLES: u64 = 5;
const SLOW_DOUBLES: u64 = 2;
/// For how long an answer that nobody waits for is left standing at most: stores close connections on which nothing moves.
const STANDING: Duration = Duration::from_secs(1);

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
            let halves = 2 * self.used.saturating_sub(total) / total.max(1);
            let [idle, slow] =
                [(IDLE, DOUBLES), (SLOW, SLOW_DOUBLES)].map(|(t, most)| t * (1 << halves.min(most)));
            let rest = |lane: &Lane| (lane.last + idle).min(lane.since + slow).saturating_duration_since(now);
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
    /// `n` bytes are somebody else's matter now: the rest of it is given back, and what is lacking is taken.
    pub fn keep(mut self, n: u64) {
        if n > self.1 {
            self.0.force(n - self.1);
        }
        self.1 = self.1.saturating_sub(n);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.give(self.1);
    }
}

/// Memory for an answer, taken when it begins to arrive and not when it is asked for: until then it needs none, and where the store is far away that is
/// most of the time. While there is none the answer stands where it is, for a moment ([`STANDING`]), unless somebody waits for it.
#[derive(Debug)]
pub struct Room {
    budget: Arc<Budget>,
    size: u64,
    wanted: Notify,
    taken: OnceCell<Held>,
}

impl Room {
    /// For an answer of `size` bytes.
    pub fn new(budget: Arc<Budget>, size: u64) -> Room {
        Room { budget, size, wanted: Notify::new(), taken: OnceCell::new() }
    }

    /// Somebody waits for the answer.
    pub fn want(&self) {
        self.wanted.notify_one();
    }

    /// Returns when the answer may come into memory.
    pub async fn enter(&self) {
        self.taken.get_or_init(|| self.take()).await;
    }

    async fn take(&self) -> Held {
        let mut late = std::pin::pin!(tokio::time::sleep(STANDING));
        loop {
            let given = self.budget.given.notified();
            if self.budget.try_take(self.size) {
                break;
            }
            let waits = tokio::select! {
                () = given => true,
                () = self.wanted.notified() => false,
                () = &mut late => false,
            };
            if !waits {
                self.budget.force(self.size);
                break;
            }
        }
        self.budget.held(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_go_beyond_the_limit_until_their_parts_leave() {
        let mut state = State::default();
        let now = Instant::now();
        assert_eq!(state.admit(1, 1000, 1000, now), None);
        for who in 1..=LANES as u64 {
            assert_eq!(state.admit(who, 2, 1000, now), None, "{who}");
        }
        let others = 1 + LANES as u64;
        assert_eq!(state.admit(others, 2, 1000, now), Some(IDLE));
        // Those who go on do so before others begin.
        let later = now + IDLE;
        for who in 2..=LANES as u64 {
            assert_eq!(state.admit(who, 2, 1000, later), None);
        }
        assert_eq!(state.admit(others, 2, 1000, later), None, "the first one has paused");
        assert_eq!(state.admit(1, 2, 1000, later), Some(IDLE));
        for step in 1..=25 {
            state.lanes.iter_mut().for_each(|lane| lane.last = later + IDLE * step);
        }
        assert_eq!(state.admit(1, 2, 1000, later + SLOW), None, "nobody keeps others out for longer");
    }

    /// As on a machine that does nothing for a moment again and again.
    #[test]
    fn the_more_is_in_use_the_longer_are_pauses() {
        let (mut state, total) = (State::default(), 40);
        let mut now = Instant::now();
        assert_eq!(state.admit(0, total, total, now), None);
        let mut admitted = |state: &mut State, pause: u32, who: std::ops::Range<u64>| {
            now += IDLE * pause;
            who.filter(|who| state.admit(*who, 5, total, now).is_none()).count()
        };
        assert_eq!(admitted(&mut state, 1, 1..20), LANES);
        // Twice the limit is in use: a pause is two times double.
        assert_eq!(admitted(&mut state, 3, 20..40), 0);
        assert_eq!(admitted(&mut state, 1, 20..40), 4, "and three times with another half");
        assert_eq!(admitted(&mut state, 4, 40..60), 4);
        assert_eq!(admitted(&mut state, 32, 60..1000), LANES, "but nobody waits for ever");
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
    fn an_answer_waits_for_memory_unless_it_is_waited_for() {
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let budget = Arc::new(Budget::new(10));
        let enters = |room: &Arc<Room>| {
            let room = room.clone();
            runtime.spawn(async move { room.enter().await })
        };
        let [one, two, three, four] = [0; 4].map(|_| Arc::new(Room::new(budget.clone(), 6)));
        runtime.block_on(enters(&one)).unwrap();
        let (second, third) = (enters(&two), enters(&three));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!second.is_finished() && !third.is_finished() && budget.used().0 == 6);
        two.want();
        runtime.block_on(second).unwrap();
        assert_eq!(budget.used().0, 12, "it is waited for");
        drop((one, two));
        runtime.block_on(third).unwrap();
        assert_eq!(budget.used().0, 6, "what was given back is taken");
        // Nobody gives any back: it goes on all the same, and once is enough.
        let begun = Instant::now();
        runtime.block_on(enters(&four)).unwrap();
        assert!(begun.elapsed() >= STANDING && budget.used().0 == 12);
        runtime.block_on(enters(&four)).unwrap();
        assert_eq!(budget.used().0, 12);
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
