//! Group commit: which syncs share a commit, and what those that wait for it need to know without the lock.
//!
//! Syncs that come while a commit is on its way share the next one. With that alone, threads that sync in turn fall into two halves of which each waits for
//! the other's commit, and a commit takes half of them. So when a commit is over, the next one is held back until those that were woken have
//! come again: for a quarter of the time that a commit takes ([`WINDOW_MAX`]), longer while they keep coming, and less and less often when they do not. The one that
//! comes last closes the epoch, submits it, and takes its completions in (`driver`).
//!
//! A thread that blocks ([`FileSystem::block_on`]) waits for one of a few words ([`Durable`]), so that one system call wakes all threads of a commit, and none
//! of them needs the lock to learn that it is over.
//!
//! [`FileSystem::block_on`]: fs::FileSystem::block_on

use crate::core::Core;
use fs::Error;
use rustix::thread::futex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// The longest time for which a commit is held back, and the shortest that is worth it.
const WINDOW_MAX: Duration = Duration::from_millis(2);
const WINDOW_MIN: Duration = Duration::from_micros(5);
/// After a wait in vain that many commits at most are not held back.
const SKIP_MAX: u32 = 63;

/// A commit that is held back.
#[derive(Clone, Copy, Debug)]
struct Gathering {
    until: Duration,
    /// It lasts so much longer whenever somebody comes, but not beyond `end`.
    step: Duration,
    end: Duration,
    /// A thread that waits keeps time.
    kept: bool,
    /// Syncs that had come before, and how many there are when all have come.
    before: u32,
    all: u32,
}

/// Syncs of the running epoch and of the closed ones.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// How many wait for the running epoch.
    joined: u32,
    gathering: Option<Gathering>,
    /// The newest epoch that was closed for syncs, and when.
    sent: Option<(u64, Duration)>,
    /// How long a commit takes: a moving average.
    took: Duration,
    /// So many commits are not held back, and how many it will be after the next wait in vain.
    skip: u32,
    vain: u32,
    /// Threads that block until an epoch is durable.
    blocked: BTreeMap<u64, u32>,
    /// The epoch for which the driving caller waits: nobody must wake it.
    pub leads: Option<u64>,
    /// Words of [`Durable`] whose threads are to be woken when the lock is released, as bits.
    pub over: u32,
}

impl Group {
    /// A thread blocks until `epoch` is durable.
    pub fn blocks(&mut self, epoch: u64) {
        *self.blocked.entry(epoch).or_default() += 1;
    }

    /// Whether no thread blocks.
    pub fn is_empty(&self) -> bool {
        self.blocked.is_empty()
    }

    /// Until when more syncs are waited for.
    pub fn until(&self) -> Option<Duration> {
        self.gathering.map(|g| g.until)
    }

    /// Lets those go on that block for an epoch up to this one. Returns how many they are.
    pub fn release(&mut self, epoch: u64) -> u32 {
        let mut released = 0;
        while let Some((&e, &n)) = self.blocked.first_key_value()
            && e <= epoch
        {
            released += n;
            if n > (self.leads == Some(e)) as u32 {
                self.over |= 1 << (e % WORDS as u64);
            }
            self.blocked.pop_first();
        }
        released
    }

    /// Time is over for what is held back.
    pub fn expire(&mut self) {
        if let Some(g) = &mut self.gathering {
            g.until = Duration::ZERO;
        }
    }

    /// Whether the thread that asks is the one to keep time.
    pub fn keep_time(&mut self) -> bool {
        self.gathering.as_mut().is_some_and(|g| !std::mem::replace(&mut g.kept, true))
    }

    /// Nobody more is waited for.
    pub fn ended(&mut self) {
        let Some(g) = self.gathering.take() else { return };
        let (came, awaited) = (self.joined.saturating_sub(g.before), g.all - g.before);
        self.vain = if came * 2 < awaited { (self.vain * 2 + 1).min(SKIP_MAX) } else { 0 };
        self.skip = self.vain;
    }

    /// The running epoch cannot be closed; nobody waits for it any more.
    fn refused(&mut self) {
        self.ended();
        self.joined = 0;
        self.over = u32::MAX;
    }

    /// The running epoch was closed for all who have joined it.
    pub fn closed(&mut self, epoch: u64, now: Duration) {
        self.ended();
        self.joined = 0;
        self.sent = Some((epoch, now));
    }
}

impl Core {
    /// Whether a sync waits for others to come, or for the commit before; otherwise it closes the epoch for all.
    pub fn joins_group(&mut self) -> bool {
        self.group.joined += 1;
        if self.flush_wanted > self.durable && !self.epochs.is_empty() {
            return true;
        }
        let now = self.monotonic();
        let joined = self.group.joined;
        let Some(g) = self.group.gathering.as_mut().filter(|g| now < g.until && joined < g.all) else {
            return false;
        };
        g.until = g.until.max((now + g.step).min(g.end));
        true
    }

    /// Whether the next commit is held back.
    pub fn is_gathering(&self) -> bool {
        self.group.gathering.is_some_and(|g| self.monotonic() < g.until)
    }

    /// A commit is over, and `woken` syncs with it: whether the next one is held back for them.
    pub fn gather(&mut self, woken: u32) -> bool {
        let now = self.monotonic();
        let durable = self.durable;
        let in_flight = self.flush_wanted > durable;
        let g = &mut self.group;
        if let Some((_, at)) = g.sent.take_if(|(epoch, _)| *epoch <= durable) {
            g.took = (g.took * 3 + now.saturating_sub(at)) / 4;
        }
        if in_flight || g.gathering.is_some() {
            return g.gathering.is_some();
        }
        let (all, window) = (g.joined + woken, (g.took / 4).min(WINDOW_MAX));
        if woken == 0 || all < 2 || window < WINDOW_MIN {
            return false;
        }
        if g.skip > 0 {
            g.skip -= 1;
            return false;
        }
        let (until, end) = (now + window, now + window * 4);
        g.gathering = Some(Gathering { until, step: window / 2, end, kept: false, before: g.joined, all });
        true
    }

    /// The running epoch could not be closed: says so to those who have joined it. All who wait ask again under the lock.
    pub fn refuse_joined(&mut self, why: &Error) {
        if std::mem::take(&mut self.close_wanted) {
            self.refused = Some((self.running.epoch, why.clone()));
            self.refusals += 1;
            self.wake_durable(u64::MAX);
            self.group.refused();
        }
    }

    /// Ends a wait that brought nobody.
    pub fn end_gathering(&mut self) {
        if self.group.gathering.is_some() && !self.close_wanted && !self.is_gathering() {
            self.group.ended();
        }
    }
}

/// How many epochs can be waited for without waking who waits for another one.
const WORDS: usize = 4;

/// What threads look at that wait for an epoch to be durable.
#[derive(Default)]
pub(crate) struct Durable {
    epoch: AtomicU64,
    /// The volume is latched: who waits must ask under the lock.
    failed: AtomicBool,
    /// As [`Core::refusals`]: who waited before the last of them must ask, too.
    refusals: AtomicU64,
    /// One of them changes when something about an epoch does; futexes.
    words: [AtomicU32; WORDS],
}

impl Durable {
    /// Whether there is nothing to wait for any more.
    pub fn is_over(&self, epoch: u64) -> bool {
        self.is_durable(epoch) || self.failed.load(SeqCst)
    }

    pub fn is_durable(&self, epoch: u64) -> bool {
        self.epoch.load(SeqCst) >= epoch
    }

    /// As [`Core::refusals`].
    pub fn refusals(&self) -> u64 {
        self.refusals.load(SeqCst)
    }

    /// Notes the state, before [`Durable::wake`]. Called with the lock held.
    pub fn note(&self, epoch: u64, failed: bool, refusals: u64) {
        self.refusals.store(refusals, SeqCst);
        if self.epoch.load(SeqCst) < epoch {
            self.epoch.store(epoch, SeqCst);
        }
        if failed {
            self.failed.store(true, SeqCst);
        }
    }

    /// Has the threads look again that wait for these words.
    pub fn wake(&self, words: u32) {
        for (_, word) in self.words.iter().enumerate().filter(|(i, _)| words & 1 << i != 0) {
            word.fetch_add(1, SeqCst);
            let _ = futex::wake(word, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }

    /// Has all threads look again.
    pub fn wake_all(&self) {
        self.wake(u32::MAX);
    }

    /// To be read before one looks, and given to [`Durable::wait`].
    pub fn word(&self, epoch: u64) -> u32 {
        self.words[(epoch % WORDS as u64) as usize].load(SeqCst)
    }

    /// Sleeps until something has changed since `seen` was read, at most so long. May return for no reason.
    pub fn wait(&self, epoch: u64, seen: u32, at_most: Option<Duration>) {
        let word = &self.words[(epoch % WORDS as u64) as usize];
        let time = at_most
            .map(|t| rustix::time::Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos() as _ });
        let _ = futex::wait(word, futex::Flags::PRIVATE, seen, time.as_ref());
    }
}
