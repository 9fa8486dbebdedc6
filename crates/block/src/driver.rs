//! Who takes completions in: the worker thread, or a caller that has to wait anyway.
//!
//! A call that waits for the device on a thread that blocks ([`FileSystem::block_on`]) reaps completions itself: the kernel
//! wakes that thread and no other, where a worker would be woken first and would then wake the caller. One thread at a time
//! drives. Of several that wait for a commit it is the one that submitted it, to which the kernel gives the completions first in any case;
//! it lets the others go on, which sleep meanwhile (`group`). The worker drives for everybody else: async callers, FUSE, and callers that wait
//! for other things at the same time, among whom the role would only be handed around. It sleeps without driving while one caller after the
//! other does it.
//!
//! A thread that looks for work all the time, as that of a manager does, takes completions in beside that where they are seen without the kernel
//! ([`FileSystem::attend`]): a completion that another thread takes in costs as much as the call. Should it not come back, because it waits for
//! somebody who waits for a transfer, the worker takes over. The worker looks after the device meanwhile. It sleeps for 5 ms at a time then, and longer
//! when there are no transfers, so that nobody need wake it for the next one.
//!
//! [`FileSystem::block_on`]: fs::FileSystem::block_on
//! [`FileSystem::attend`]: fs::FileSystem::attend

use crate::core::{Core, Wait};
use crate::shared::{Locked, Shared};
use fs::Devices;
use media::{Completion, Wait as MediaWait};
use parking_lot::{Condvar, Mutex};
use std::cell::Cell;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
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
    /// A thread that looks for work all the time, until it says otherwise.
    Attendant,
}

/// What the state knows of its driver.
#[derive(Debug, Default)]
pub(crate) struct Driving {
    pub by: Driver,
    /// How many in turn could have driven, and waited alone or for a commit.
    streak: u32,
    /// A thread looks for work all the time.
    attended: bool,
    /// The worker sleeps meanwhile, and comes by itself: after so long the next time.
    naps: bool,
    nap: Duration,
}

/// So many of them in turn there must have been before the worker leaves the role to the next.
const STREAK: u32 = 16;

impl Driving {
    fn callers(&self) -> bool {
        self.streak >= STREAK
    }

    /// The worker comes by, when nothing is in flight (`idle`) or something is: who drives from now on. It does not stay in the kernel for nothing.
    pub fn worker_comes(&mut self, idle: bool) -> Driver {
        self.by = match self.by {
            Driver::Nobody | Driver::Worker if idle && (self.callers() || self.attended) => Driver::Nobody,
            Driver::Nobody | Driver::Worker if self.attended => Driver::Attendant,
            Driver::Nobody => Driver::Worker,
            same => same,
        };
        self.by
    }

    /// How long the worker may sleep, now that `worker_comes` has said who drives, if there is an attendant that may not come back.
    pub fn nap(&mut self) -> Option<Duration> {
        let nap = self.nap.max(ABSENT);
        self.naps = self.attended && self.by != Driver::Worker;
        self.nap = (nap * 2).min(NAP_MAX);
        self.naps.then_some(nap)
    }

    /// The attendant has not come back.
    pub fn nobody_attends(&mut self) {
        self.attended = false;
        if self.by == Driver::Attendant {
            self.by = Driver::Nobody;
        }
    }
}

/// What an attendant and its volume have in common without the lock.
#[derive(Default)]
pub(crate) struct Attendant {
    /// Its thread, as [`this_thread`] has it, while it is there as far as it has said; 0: nobody is.
    thread: AtomicUsize,
    /// It drives.
    pub drives: AtomicBool,
    /// How often it has looked.
    looks: AtomicU64,
    /// So many of its calls have queued transfers that the device has not been told of.
    gathered: AtomicU32,
    done: Mutex<Vec<Completion>>,
}

/// The device is told when so many calls have queued something: it begins while the attendant goes on with others. When all waited for the next look, device and
/// attendant would take turns.
const GATHERED_MAX: u32 = 16;
/// After so long without a look the worker takes over.
pub(crate) const ABSENT: Duration = Duration::from_millis(5);
/// So long the worker sleeps at most before it looks whether there is a transfer for which the attendant does not come.
const NAP_MAX: Duration = Duration::from_millis(100);

impl Attendant {
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    fn is_here(&self) -> bool {
        self.thread.load(Ordering::Relaxed) == this_thread()
    }

    /// A call has queued transfers, and the attendant drives. Whether the device is told of them later: the attendant does that for some calls at once, at its next look
    /// at the latest. Should it not come back, the worker does, which comes by as long as the attendant has the role, and never otherwise.
    pub fn gathers(&self) -> bool {
        if !self.is_here() {
            return false;
        }
        if self.gathered.fetch_add(1, Ordering::SeqCst) + 1 >= GATHERED_MAX {
            self.gathered.store(0, Ordering::SeqCst);
            return false;
        }
        // The worker may have found it missing meanwhile: it clears `thread` before it looks at `gathered`, so that one of them sees the other.
        self.thread.load(Ordering::SeqCst) != 0 || self.gathered.swap(0, Ordering::SeqCst) == 0
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
    /// As [`Core::refusals`], when it asked.
    refusals: u64,
    /// How long others may join that epoch before it is closed, when this thread keeps the time.
    left: Option<Duration>,
    /// This thread has the role, and begins when it is lent.
    drives: bool,
}

thread_local! {
    static WAITS: Cell<Waits> = const { Cell::new(Waits { engine: 0, epoch: None, refusals: 0, left: None, drives: false }) };
}

/// A number that no other thread has at the same time; never 0.
fn this_thread() -> usize {
    WAITS.with(|place| std::ptr::from_ref(place) as usize)
}

impl Core {
    /// A caller waits. Returns whether its thread blocks: then it is not woken, but looks by itself ([`Shared::block_on`]).
    pub fn caller_waits(&mut self, wait: Wait, waker: &Waker) -> bool {
        let lends = self.identity != 0 && fs::lends(waker, self.identity);
        let epoch = if let Wait::Durable(epoch) = wait { Some(epoch) } else { None };
        let no_others = self.waiters.is_empty() && !self.directs.is_awaited();
        let alone = self.durable_waiters.is_empty() && self.group.is_empty() && no_others;
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
            WAITS.set(Waits { engine: self.identity, epoch: first, refusals: self.refusals, left, drives });
        } else if let Some(around) = Some(WAITS.get()).filter(|w| w.engine == self.identity && w.drives) {
            // As far as is known from here, an executor within the call that has the role blocks the thread.
            self.stops_driving();
            WAITS.set(Waits { drives: false, ..around });
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
            let Driving { attended, naps, .. } = self.driving;
            self.driving.by = if attended { Driver::Attendant } else { Driver::Worker };
            self.driving.nap = ABSENT;
            return !(attended && naps);
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
        /// Puts back what a call around this one waits for.
        struct Outer<'a>(&'a Shared, Waits);
        impl Drop for Outer<'_> {
            fn drop(&mut self) {
                self.0.has_no_need(&mut WAITS.replace(self.1));
            }
        }
        if self.attendant.is_here() {
            // It comes back when this is over.
            self.attend(false);
        }
        let mut outer = Outer(self, WAITS.take());
        fs::block_on_lending(future, self.identity(), |idle| {
            // The call around this one is not lent before this one is over, which may wait for what only its driver takes in.
            if outer.1.engine == self.identity() {
                self.has_no_need(&mut outer.1);
            }
            self.lent(idle);
        })
    }

    /// A thread that was to drive or to keep time for a call leaves that to the worker.
    fn has_no_need(&self, waits: &mut Waits) {
        let (drives, left) = (std::mem::take(&mut waits.drives), waits.left.take());
        if drives || left.is_some() {
            let mut core = self.lock();
            if drives {
                core.stops_driving();
            }
            core.wake_worker |= left.is_some();
        }
    }

    /// What a thread does until its call can go on: drives, or waits for a commit. Returns at once when it waits for something else
    /// that somebody will wake it for.
    fn lent(&self, idle: &fs::Idle<'_>) {
        let waits = Some(WAITS.take()).filter(|w| w.engine == self.identity()).unwrap_or_default();
        match waits.epoch {
            epoch if waits.drives => self.drive(idle, epoch, waits.refusals),
            Some(epoch) => self.wait_for(idle, epoch, waits),
            None => {}
        }
    }

    /// As [`fs::FileSystem::attend`].
    pub fn attend(&self, stays: bool) -> Devices {
        let attendant = &self.attendant;
        if !self.media.is_polled() {
            return Devices::Idle;
        }
        let thread = if stays { this_thread() } else { 0 };
        if attendant.thread.load(Ordering::Relaxed) != thread {
            attendant.thread.store(thread, Ordering::Relaxed);
            let mut core = self.lock();
            match stays {
                true => core.driving.attended = true,
                // If transfers are in flight, releasing the lock tells the worker.
                false => core.driving.nobody_attends(),
            }
        }
        attendant.looks.fetch_add(1, Ordering::Relaxed);
        self.hand_over();
        if !stays || !attendant.drives.load(Ordering::Relaxed) {
            return Devices::Idle;
        }
        let mut done = attendant.done.lock();
        self.media.look(&mut done);
        if done.is_empty() {
            return Devices::Busy;
        }
        let mut core = self.lock();
        done.drain(..).for_each(|completion| core.complete(completion));
        core.background();
        let due = core.deadline().is_some_and(|d| core.worker_deadline.is_none_or(|w| d < w));
        core.wake_worker |= due || core.batch_waits() || core.closing;
        if core.ios.in_flight == 0 && core.driving.by == Driver::Attendant {
            core.driving.by = Driver::Nobody;
        }
        self.taken_in(core);
        Devices::Done
    }

    /// Tells the device of what the attendant's calls have queued.
    fn hand_over(&self) {
        let gathered = &self.attendant.gathered;
        if gathered.load(Ordering::SeqCst) > 0 && gathered.swap(0, Ordering::SeqCst) > 0 {
            self.media.kick();
        }
    }

    /// Completions were taken in by a thread that does not drive. A caller may have taken the role while that looked at the device, and
    /// would sleep there until what came to an end here.
    pub fn taken_in(&self, core: Locked<'_>) {
        let driven = core.driving.by == Driver::Caller;
        drop(core);
        if driven {
            self.media.wake();
        }
    }

    /// [`Attendant::looks`] has been that for a while. If the attendant still has not looked, it has the role no longer.
    pub fn look_after_attendant(&self, looks: u64) {
        let mut core = self.lock();
        if self.attendant.looks() == looks {
            core.driving.nobody_attends();
            self.attendant.thread.store(0, Ordering::SeqCst);
            drop(core);
            self.hand_over();
        }
    }

    /// Takes completions in until the thread is woken or the epoch durable, or refused, and gives up the role.
    fn drive(&self, idle: &fs::Idle<'_>, epoch: Option<u64>, refusals: u64) {
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
            let ended = core.latched.is_some() || core.refusals != refusals;
            if epoch.is_some_and(|e| core.durable >= e || ended) {
                core.stops_driving();
                role.0 = None;
                idle.wake();
            }
        }
        drop(lent);
        drop(role);
    }

    /// Waits until the epoch is durable, or refused, or the thread is woken; when nobody else came in time, the epoch is closed here.
    fn wait_for(&self, idle: &fs::Idle<'_>, epoch: u64, Waits { mut left, refusals, .. }: Waits) {
        let is_over = || self.durable.is_over(epoch) || self.durable.refusals() != refusals;
        let lent = idle.lend(self.rouse.clone());
        loop {
            let seen = self.durable.word(epoch);
            if is_over() {
                idle.wake();
            }
            if idle.woken() {
                if left.is_some() && !is_over() {
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
                return self.drive(idle, Some(epoch), refusals);
            }
        }
    }
}
