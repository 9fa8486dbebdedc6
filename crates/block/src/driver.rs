//! Who takes completions in: the worker thread, or a caller that has to wait anyway.
//!
//! A call that waits for the device on a thread that blocks ([`FileSystem::block_on`]) reaps completions itself: the kernel
//! wakes that thread and no other, where a worker would be woken first and would then wake the caller. One thread at a time
//! drives. Of several that wait for a commit it is the one that submitted it, to which the kernel gives the completions first in any case;
//! it lets the others go on, which sleep meanwhile (`group`). The worker drives for everybody else: async callers, FUSE, and callers that wait
//! for other things at the same time, among whom the role would only be handed around. It sleeps without driving while one caller after the
//! other does it.
//!
//! [`FileSystem::block_on`]: fs::FileSystem::block_on

use crate::core::{Core, Wait};
use crate::shared::Shared;
use media::Wait as MediaWait;
use parking_lot::{Condvar, Mutex};
use std::cell::Cell;
use std::future::Future;
use std::task::Waker;
use std::time::Duration;

/// Who takes completions in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Driver {
    /// Nobody. As soon as a transfer is in flight somebody must be told.
    #[default]
    Nobody,
    /// The worker, or it was told to.
    Worker,
    /// A caller, until its call is over.
    Caller,
}

/// What the state knows of its driver.
#[derive(Debug, Default)]
pub(crate) struct Driving {
    pub by: Driver,
    /// How many in turn could have driven, and waited alone or for a commit.
    streak: u32,
}

/// So many of them in turn there must have been before the worker leaves the role to the next.
const STREAK: u32 = 16;

impl Driving {
    /// The worker does not stay in the kernel for nothing.
    pub fn callers(&self) -> bool {
        self.streak >= STREAK
    }
}

/// Where the worker sleeps while it does not drive.
#[derive(Default)]
pub(crate) struct Bed {
    called: Mutex<bool>,
    condvar: Condvar,
}

impl Bed {
    /// Wakes the worker, now or when it lies down next.
    pub fn call(&self) {
        *self.called.lock() = true;
        self.condvar.notify_one();
    }

    /// Sleeps until somebody calls, at most so long.
    pub fn sleep(&self, at_most: Option<Duration>) {
        let mut called = self.called.lock();
        if !*called {
            match at_most {
                Some(time) => drop(self.condvar.wait_for(&mut called, time)),
                None => self.condvar.wait(&mut called),
            }
        }
        *called = false;
    }
}

/// What the call on this thread waits for, from its poll until the thread is lent.
#[derive(Clone, Copy, Default)]
struct Waits {
    /// See [`Shared::identity`].
    engine: usize,
    /// An epoch that is to become durable.
    epoch: Option<u64>,
    /// How long others may join that epoch before it is closed, when this thread keeps the time.
    left: Option<Duration>,
    /// This thread has the role, and begins when it is lent.
    drives: bool,
}

thread_local! {
    static WAITS: Cell<Waits> = const { Cell::new(Waits { engine: 0, epoch: None, left: None, drives: false }) };
}

impl Core {
    /// A caller waits. Returns whether its thread blocks: then it is not woken, but looks by itself ([`Shared::block_on`]).
    pub fn caller_waits(&mut self, wait: Wait, waker: &Waker) -> bool {
        let lends = self.identity != 0 && fs::lends(waker, self.identity);
        let epoch = if let Wait::Durable(epoch) = wait { Some(epoch) } else { None };
        let alone = self.durable_waiters.is_empty() && self.group.is_empty() && self.waiters.is_empty();
        let drives = lends && (alone || epoch.is_some());
        self.driving.streak = if drives { self.driving.streak.saturating_add(1) } else { 0 };
        let mut keeps_time = false;
        if lends {
            let before = Some(WAITS.get()).filter(|w| w.engine == self.identity).unwrap_or_default();
            let first = before.epoch.into_iter().chain(epoch).min();
            let drives = before.drives || self.may_drive();
            if drives {
                self.driving.by = Driver::Caller;
                self.group.leads = first;
            }
            // Who drives is in the kernel without a limit.
            let left = if drives { None } else { self.left_to_join(first, before.left.is_some()) };
            keeps_time = !drives;
            WAITS.set(Waits { engine: self.identity, epoch: first, left, drives });
        }
        if !keeps_time && epoch == Some(self.running.epoch) {
            let until = self.group.until();
            self.wake_worker |= until.is_some_and(|u| self.worker_deadline.is_none_or(|d| d > u));
        }
        lends
    }

    /// Whether a caller may take the role that nobody has.
    fn may_drive(&self) -> bool {
        self.driving.by == Driver::Nobody && self.driving.callers() && self.ios.in_flight > 0
    }

    /// For how long `epoch` stays open for others, if it does, and this thread `keeps` time or is the one to do so.
    fn left_to_join(&mut self, epoch: Option<u64>, keeps: bool) -> Option<Duration> {
        let until = self.group.until().filter(|_| epoch == Some(self.running.epoch))?;
        (keeps || self.group.keep_time()).then(|| until.saturating_sub(self.monotonic()))
    }

    /// Called when the lock is released: whether the worker must be told to drive.
    pub fn needs_driver(&mut self) -> bool {
        if self.driving.by == Driver::Nobody && self.ios.in_flight > 0 {
            self.driving.by = Driver::Worker;
            return true;
        }
        false
    }

    /// The driving caller has gone. If transfers are in flight, releasing the lock tells the worker.
    fn stops_driving(&mut self) {
        self.driving.by = Driver::Nobody;
        self.group.leads = None;
    }
}

/// The role of a driving caller; given back when dropped.
struct Role<'a>(Option<&'a Shared>);

impl Drop for Role<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.0 {
            shared.lock().stops_driving();
        }
    }
}

impl Shared {
    /// Address of this state: which volume a thread lends itself to.
    pub fn identity(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Runs a future on this thread, which drives while it waits.
    pub fn block_on<T: Future>(&self, future: T) -> T::Output {
        /// Puts back what a call around this one waits for. A thread that was to drive or to keep time and has no need to wait any more
        /// leaves that to the worker.
        struct Outer<'a>(&'a Shared, Waits);
        impl Drop for Outer<'_> {
            fn drop(&mut self) {
                let waits = WAITS.replace(self.1);
                if waits.drives || waits.left.is_some() {
                    let mut core = self.0.lock();
                    if waits.drives {
                        core.stops_driving();
                    }
                    core.wake_worker |= waits.left.is_some();
                }
            }
        }
        let _outer = Outer(self, WAITS.take());
        fs::block_on_lending(future, self.identity(), |idle| self.lent(idle))
    }

    /// What a thread does until its call can go on: drives, or waits for a commit. Returns at once when it waits for something else
    /// that somebody will wake it for.
    fn lent(&self, idle: &fs::Idle<'_>) {
        let waits = Some(WAITS.take()).filter(|w| w.engine == self.identity()).unwrap_or_default();
        match waits.epoch {
            epoch if waits.drives => self.drive(idle, epoch),
            Some(epoch) => self.wait_for(idle, epoch, waits.left),
            None => {}
        }
    }

    /// Takes completions in until the thread is woken or the epoch durable, and gives up the role.
    fn drive(&self, idle: &fs::Idle<'_>, epoch: Option<u64>) {
        let mut role = Role(Some(self));
        let lent = idle.lend(self.interrupt.clone());
        let mut done = Vec::new();
        while !idle.woken() {
            self.media.reap(&mut done, MediaWait::For(None));
            let mut core = self.lock();
            done.drain(..).for_each(|completion| core.complete(completion));
            core.background();
            // Making inode blocks and keeping time stay with the worker; those that come for the next commit keep time for it.
            let deadline = if core.close_wanted { core.deadline() } else { core.slow_deadline() };
            let due = deadline.is_some_and(|d| core.worker_deadline.is_none_or(|w| d < w));
            core.wake_worker |= due || core.batch_waits();
            if epoch.is_some_and(|e| core.durable >= e || core.latched.is_some()) {
                core.stops_driving();
                role.0 = None;
                idle.wake();
            }
        }
        drop(lent);
        drop(role);
    }

    /// Waits until the epoch is durable or the thread is woken; when nobody else came in time, the epoch is closed here.
    fn wait_for(&self, idle: &fs::Idle<'_>, epoch: u64, mut left: Option<Duration>) {
        let lent = idle.lend(self.rouse.clone());
        loop {
            let seen = self.durable.word(epoch);
            if self.durable.is_over(epoch) {
                idle.wake();
            }
            if idle.woken() {
                if left.is_some() && !self.durable.is_over(epoch) {
                    self.lock().wake_worker = true;
                }
                return;
            }
            self.durable.wait(epoch, seen, left);
            if left.is_none() || self.durable.word(epoch) != seen {
                continue;
            }
            let mut core = self.lock();
            core.background();
            left = core.left_to_join(Some(epoch), true);
            if core.may_drive() {
                core.driving.by = Driver::Caller;
                core.group.leads = Some(epoch);
                drop(core);
                drop(lent);
                return self.drive(idle, Some(epoch));
            }
        }
    }
}
