//! The worker: takes completions in, watches the clock, and moves commits and checkpoints on.
//!
//! One thread for each volume runs [`Worker::run`]; tests call [`Worker::step`] instead and own the only thread. The
//! worker sleeps in the medium until a transfer completes, somebody wakes it, or the oldest change is due: an idle volume
//! uses no processor time, but for a device that is to be looked after ([`media::Media::care`]).

use crate::barrier::BARRIER_AGE;
use crate::core::{Core, Stop};
use crate::driver::{ABSENT, Driver};
use crate::epoch::Reason;
use crate::shared::Shared;
use fs::Error;
use media::{Completion, Wait as MediaWait};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Inodes without a name that are freed while nobody else gets on.
const ORPHANS_AT_ONCE: usize = 1000;

/// Drives one volume. There is exactly one for each volume.
pub struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) done: Vec<Completion>,
}

impl Worker {
    /// Runs until the volume is closed.
    pub fn run(mut self) {
        let mut looked_after = Instant::now();
        let mut seen = 0;
        // How often the attendant had looked, and since when.
        let mut looked = (0, Instant::now());
        loop {
            let mut core = self.shared.lock();
            if core.closed() {
                return;
            }
            core.background();
            if let Some(batch) = core.take_batch() {
                drop(core);
                self.fill(batch);
                continue;
            }
            if core.drop_some_tails() {
                continue;
            }
            let idle = core.ios.in_flight == 0;
            let by = core.driving.worker_comes(idle);
            let care = self.shared.media.care();
            let is_due = care.is_some_and(|every| looked_after.elapsed() >= every);
            if by == Driver::Nobody && is_due {
                // A caller that came to drive meanwhile would keep the device for as long as it waits.
                core.driving.by = Driver::Worker;
                drop(core);
                looked_after = Instant::now();
                self.shared.media.reap(&mut self.done, MediaWait::No);
                self.take_in();
                continue;
            }
            let now = core.monotonic();
            // While there are changes the worker comes by often enough for the next one, or that one would have to wake it.
            let next = (seen != core.running.epoch).then(|| now + core.options.dirty_age_max);
            seen = core.running.epoch;
            let deadline = core.deadline().into_iter().chain(next).min();
            core.worker_deadline = deadline;
            let nap = core.driving.nap();
            drop(core);
            let wait = deadline.map(|d| d.saturating_sub(now));
            match by {
                Driver::Worker => {
                    self.shared.media.reap(&mut self.done, MediaWait::For(wait));
                    looked_after = Instant::now();
                    self.take_in();
                }
                Driver::Attendant => {
                    self.shared.bed.sleep(Some(wait.unwrap_or(ABSENT).min(ABSENT)));
                    // The device is to be looked after, too.
                    if looked_after.elapsed() >= ABSENT {
                        looked_after = Instant::now();
                        self.shared.media.reap(&mut self.done, MediaWait::No);
                        self.take_in();
                    }
                }
                Driver::Nobody => {
                    let left = care.map(|every| every.saturating_sub(looked_after.elapsed()));
                    self.shared.bed.sleep(wait.into_iter().chain(left).chain(nap).min());
                }
                // It looks after the device; who comes after it may not.
                Driver::Caller => self.shared.bed.sleep(wait.into_iter().chain(care).chain(nap).min()),
            }
            let looks = self.shared.attendant.looks();
            if looks != looked.0 {
                looked = (looks, Instant::now());
            } else if nap.is_some() && looked.1.elapsed() >= ABSENT {
                self.shared.look_after_attendant(looks);
            }
        }
    }

    /// Takes in what has completed and does what is due, without waiting. Returns whether transfers are still in flight.
    pub fn step(&mut self) -> bool {
        self.shared.media.reap(&mut self.done, MediaWait::No);
        self.take_in();
        let mut core = self.shared.lock();
        // Nobody else can come while this is all that happens.
        core.group.expire();
        core.background();
        while let Some(batch) = core.take_batch() {
            drop(core);
            self.fill(batch);
            core = self.shared.lock();
            core.background();
        }
        while core.drop_some_tails() {}
        core.worker_deadline = None;
        core.ios.in_flight > 0
    }

    /// Makes inode blocks without the lock, then submits them.
    fn fill(&self, batch: crate::checkpoint::Batch) {
        batch.fill();
        self.shared.lock().submit_batch(batch);
    }

    fn take_in(&mut self) {
        let mut core = self.shared.lock();
        for completion in self.done.drain(..) {
            core.complete(completion);
        }
        // The worker looks at everything next anyway.
        core.wake_worker = false;
        self.shared.taken_in(core);
    }
}

impl Core {
    fn closed(&self) -> bool {
        self.is_over() && self.ios.in_flight == 0
    }

    /// The volume was stopped, cleanly or not: the worker ends with the last transfer.
    fn is_over(&self) -> bool {
        self.closing && (self.latched.is_some() || self.closed)
    }

    /// Fails when nobody would take in a completion any more. Asked before something is read.
    pub fn reachable(&self) -> Result<(), Error> {
        if self.is_over() { Err(Error::Closed) } else { Ok(()) }
    }

    /// When the worker must look again although nothing happens.
    pub fn deadline(&self) -> Option<Duration> {
        self.slow_deadline().into_iter().chain(self.group.until()).min()
    }

    /// The same, but for what callers see to that wait for a commit.
    pub fn slow_deadline(&self) -> Option<Duration> {
        if self.latched.is_some() || self.read_only {
            return None;
        }
        // An epoch that is being closed, or was to be the last time, goes on when what it waits for has come; so do orphans.
        let since = self.running.since.filter(|_| self.running.gate.is_none());
        let most = self.options.dirty_age_max;
        let age = since.map(|since| since + if self.running.barrier { most.min(BARRIER_AGE) } else { most });
        let age = age.filter(|&until| until > self.looked_at);
        let flush = self.unasked().map(|since| since + most);
        let orphans = (!self.orphans.is_empty()).then_some(self.orphans_until);
        let orphans = orphans.filter(|&until| until > self.looked_at);
        age.into_iter().chain(flush).chain(self.rest_ends()).chain(orphans).min()
    }

    /// Since when there is an epoch that was closed for order alone, so that nobody waits for it to be durable.
    fn unasked(&self) -> Option<Duration> {
        self.epochs.iter().filter(|e| e.epoch > self.flush_wanted).find_map(|e| e.since)
    }

    /// Everything that is not an answer to a call.
    pub fn background(&mut self) {
        if self.latched.is_some() || self.read_only {
            return;
        }
        self.end_gathering();
        let now = self.monotonic();
        self.looked_at = now;
        let is_old = |since: Option<Duration>, age| since.is_some_and(|s| now >= s + age);
        let old = is_old(self.running.since, self.options.dirty_age_max);
        let barrier_old = is_old(self.running.since, BARRIER_AGE) || self.barrier_is_due();
        let barrier_due = self.running.barrier && barrier_old;
        if self.unasked().is_some_and(|since| is_old(Some(since), self.options.dirty_age_max)) {
            self.want_flush(self.last_closed());
        }
        let reason = match self.running.gate {
            Some(reason) => Some(reason),
            None if self.close_wanted && self.flush_wanted <= self.durable && !self.is_gathering() => {
                Some(Reason::Sync)
            }
            None if old || (self.running.grown && self.is_long()) => Some(Reason::Background),
            None if barrier_due => Some(Reason::Barrier),
            None => None,
        };
        if let Some(reason) = reason {
            match self.close_epoch_for(reason) {
                Ok(epoch) => {
                    self.close_wanted &= reason != Reason::Sync;
                    if reason == Reason::Background {
                        self.mark_due = Some(epoch);
                    }
                    if old || reason != Reason::Barrier {
                        self.want_flush(epoch);
                    }
                }
                Err(Stop::Error(e)) => {
                    tracing::error!("{}: commit failed: {e}", self.geometry.name);
                    // Once more when it is as old again.
                    self.running.since = self.running.since.and(Some(now));
                }
                // What it waits for comes with a completion, and no more syncs are waited for meanwhile: time that is over is nobody's to keep.
                Err(Stop::Wait(_)) if reason == Reason::Sync => self.group.ended(),
                Err(Stop::Wait(_)) => {}
            }
        }
        self.free_orphans();
        self.advance();
        self.mark_when_durable();
        // One checkpoint may end and leave a reason for the next.
        for _ in 0..2 {
            if self.checkpoint_wanted && self.checkpointing.is_none() {
                match self.begin_checkpoint() {
                    Ok(()) => {}
                    Err(Stop::Wait(_)) => break,
                    Err(Stop::Error(e)) => {
                        tracing::error!("{}: checkpoint failed: {e}", self.geometry.name);
                        break;
                    }
                }
            }
            self.drive_checkpoint();
        }
    }

    /// What the epoch that was closed because of its age has overwritten in place is guarded until a record says that it is durable, which may be
    /// that of the next one: until then overwrites of the same blocks would go to new places, again and again, and the file into pieces. So
    /// that is said as soon as it is true.
    fn mark_when_durable(&mut self) {
        if self.mark_due.is_some_and(|epoch| epoch <= self.durable) && self.checkpointing.is_none() {
            self.mark_due = None;
            if !self.guards.is_empty() && self.last_closed() == self.durable {
                self.begin_mark();
            }
        }
    }

    /// Frees inodes that had lost their last name when the volume was last stopped, unless somebody has opened them since: they were open
    /// then, and programs whose server ended get some time to come back ([`OpenOptions::orphans_kept`]).
    fn free_orphans(&mut self) {
        if !self.frees_orphans() {
            return;
        }
        for _ in 0..ORPHANS_AT_ONCE {
            let Some(&(slot, generation)) = self.orphans.last() else { return };
            if self.closing {
                return;
            }
            let inode = self.slab.get(slot);
            let same = inode.kind != format::inode::SlotKind::Free && inode.generation == generation;
            // A directory that is not empty was never removed: what it holds is not to be lost with it.
            let is_empty = !inode.is_dir() || self.index.dir(slot).is_none_or(|dir| dir.len() == 0);
            // On a damaged volume additional names may lead to it.
            let freed = same && inode.parent == 0 && inode.nlink == 0 && inode.opens == 0 && is_empty;
            if freed {
                match self.need_to_free(slot).and_then(|()| self.room_in_epoch()) {
                    Ok(()) => {}
                    // `Core::wake` comes back.
                    Err(Stop::Wait(_)) => return,
                    Err(Stop::Error(e)) => {
                        tracing::error!("{}: inode {slot} without a name stays: {e}", self.geometry.name);
                        self.orphans.pop();
                        continue;
                    }
                }
            }
            self.orphans.pop();
            if freed {
                self.free_inode(slot);
            }
        }
        self.wake_worker = true;
    }

    /// Whether there are inodes to be freed now.
    pub fn frees_orphans(&self) -> bool {
        !self.orphans.is_empty() && self.monotonic() >= self.orphans_until
    }
}
