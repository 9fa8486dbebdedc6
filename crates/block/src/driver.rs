//! Who takes completions in: the worker thread, or a caller that has to wait anyway.
//!
//! A call that waits for the device on a thread that blocks ([`FileSystem::block_on`]) reaps completions itself: the kernel
//! wakes that thread and no other, where a worker would be woken first and would then wake the caller. One thread at a time
//! drives. The worker drives for everybody else: async callers, FUSE, and callers that wait at the same time, among whom the
//! role would only be handed around. It sleeps without driving while one caller after the other does it.
//!
//! [`FileSystem::block_on`]: fs::FileSystem::block_on

use crate::core::Core;
use crate::shared::Shared;
use media::Wait as MediaWait;
use parking_lot::{Condvar, Mutex};
use std::future::Future;
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
    /// The call that holds the lock goes on to drive.
    pub comes: bool,
    /// How many in turn could have driven and waited alone.
    streak: u32,
}

/// So many callers in turn must have waited alone before the worker leaves the role to the next.
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

impl Core {
    /// The caller waits. If its thread blocks it will drive.
    pub fn caller_waits(&mut self) {
        let lends = self.identity != 0 && fs::lent_to() == self.identity;
        let alone = self.durable_waiters.is_empty() && self.waiters.is_empty();
        self.driving.streak = if lends && alone { self.driving.streak.saturating_add(1) } else { 0 };
        self.driving.comes = self.driving.callers() && self.driving.by == Driver::Nobody;
    }

    /// Called when the lock is released: whether the worker must be told to drive.
    pub fn needs_driver(&mut self) -> bool {
        let comes = std::mem::take(&mut self.driving.comes);
        if self.driving.by == Driver::Nobody && self.ios.in_flight > 0 && !comes {
            self.driving.by = Driver::Worker;
            return true;
        }
        false
    }
}

/// The role of a driving caller; given back when dropped.
struct Role<'a>(&'a Shared);

impl Drop for Role<'_> {
    fn drop(&mut self) {
        // If transfers are in flight, releasing the lock tells the worker.
        self.0.lock().driving.by = Driver::Nobody;
    }
}

impl Shared {
    /// Address of this state: which volume a thread lends itself to.
    pub fn identity(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Runs a future on this thread, which drives while it waits.
    pub fn block_on<T: Future>(&self, future: T) -> T::Output {
        fs::block_on_lending(future, self.identity(), |idle| self.drive(idle))
    }

    /// Takes completions in until the thread is woken, if nobody else does.
    fn drive(&self, idle: &fs::Idle<'_>) {
        {
            let mut core = self.lock();
            if core.driving.by != Driver::Nobody || !core.driving.callers() {
                return;
            }
            core.driving.by = Driver::Caller;
        }
        let role = Role(self);
        let lent = idle.lend(self.interrupt.clone());
        let mut done = Vec::new();
        while !idle.woken() {
            self.media.reap(&mut done, MediaWait::For(None));
            let mut core = self.lock();
            done.drain(..).for_each(|completion| core.complete(completion));
            core.background();
            // Making inode blocks and keeping time stay with the worker.
            let due = core.deadline().is_some_and(|d| core.worker_deadline.is_none_or(|w| d < w));
            core.wake_worker |= due || core.batch_waits();
        }
        drop(lent);
        drop(role);
    }
}
