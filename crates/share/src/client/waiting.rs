//! Waiting for answers: on the calling thread, or with a helper thread for executors that know nothing of slots.

use super::throng::Waiting;
use super::{Remote, Session};
use crate::lock::Mutex;
use format::shared::{SLOTS, state};
use rustix::event::Timespec;
use rustix::thread::futex;
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// How long a sleeper waits before it looks whether the manager is still there.
const LOOK: Duration = Duration::from_millis(100);

/// A thread that runs a future. The word is a futex: 0, and 1 when somebody has woken the future; [`SLEEPS`] while the thread sleeps until then.
struct Parker {
    woken: AtomicU32,
}

const SLEEPS: u32 = 2;

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if self.woken.swap(1, Ordering::AcqRel) == SLEEPS {
            let _ = futex::wake(&self.woken, futex::Flags::PRIVATE, 1);
        }
    }
}

fn new_parker() -> (Arc<Parker>, Waker) {
    let parker = Arc::new(Parker { woken: AtomicU32::new(0) });
    (parker.clone(), Waker::from(parker))
}

thread_local! {
    static PARKER: (Arc<Parker>, Waker) = new_parker();
    /// Where `block_on` on this thread notes what the future polled now waits for; null outside of it. Nothing here
    /// has a destructor, so that a program can still use its files while it exits.
    static AWAITED: Cell<*const Awaited> = const { Cell::new(std::ptr::null()) };
    /// See [`interruptible`]; null outside of it.
    static INTERRUPTED: Cell<*const Asked<'static>> = const { Cell::new(std::ptr::null()) };
}

type Asked<'a> = &'a dyn Fn() -> bool;

/// How often it is asked whether a call shall be given up.
const ASK: Duration = Duration::from_millis(10);

/// Runs calls. One that waits long for its answer is given up when `interrupted`, asked again and again on this thread, says so. It fails with EINTR
/// then, unless it had been done already.
pub fn interruptible<T>(interrupted: &dyn Fn() -> bool, calls: impl FnOnce() -> T) -> T {
    struct Restore(*const Asked<'static>);
    impl Drop for Restore {
        fn drop(&mut self) {
            INTERRUPTED.set(self.0);
        }
    }
    let _restore = Restore(INTERRUPTED.replace((&raw const interrupted).cast()));
    calls()
}

/// Whether the calls that this thread runs can be interrupted, and if so, whether they are now.
fn interrupted() -> Option<bool> {
    // SAFETY: set by `interruptible`, whose argument lives until it sets the former value again.
    unsafe { INTERRUPTED.get().as_ref() }.map(|asked| asked())
}

/// What a future waits for.
struct Awaited {
    /// The session whose answers the thread looks for.
    session: Cell<*const Session>,
    /// Slots of that session. Its manager is not woken for them yet.
    slots: Cell<Slots>,
    /// Something else too, that must be looked at again and again.
    more: Cell<bool>,
}

/// Slots whose answers somebody waits for.
#[derive(Clone, Copy, Default)]
struct Slots {
    bits: u64,
    /// Which of them was asked for first, if there is one.
    first: usize,
}

const _: () = assert!(SLOTS <= u64::BITS as usize);

impl Slots {
    fn one(slot: usize) -> Slots {
        Slots { bits: 1 << slot, first: slot }
    }

    /// With these, which were asked for later.
    fn and(self, later: Slots) -> Slots {
        let first = if self.is_empty() { later.first } else { self.first };
        Slots { bits: self.bits | later.bits, first }
    }

    fn is_empty(self) -> bool {
        self.bits == 0
    }

    fn are_several(self) -> bool {
        !self.is_empty() && !self.bits.is_power_of_two()
    }

    /// Whether one of them is answered.
    fn any_done(self, session: &Session) -> bool {
        let mut left = self.bits;
        while left != 0 {
            let slot = left.trailing_zeros() as usize;
            if session.region.state(slot).load(Ordering::Acquire) == state::DONE {
                return true;
            }
            left &= left - 1;
        }
        false
    }
}

/// What the future on this thread waits for, if [`block_on`] runs it.
fn awaited<'a>() -> Option<&'a Awaited> {
    // SAFETY: set by `run_here` below, where it lives until that sets the former value again; the reference goes no further than one call of this module.
    unsafe { AWAITED.get().as_ref() }
}

/// Notes that the future on this thread waits for a slot that was posted, and sees to it that the manager wakes. False when somebody else must wake the future.
pub(super) fn awaits(session: &Session, slot: usize) -> bool {
    match awaited() {
        Some(awaited) if std::ptr::eq(awaited.session.get(), session) => {
            awaited.slots.set(awaited.slots.get().and(Slots::one(slot)));
            true
        }
        awaited => {
            session.ring();
            // Slots of other sessions are looked at again and again: a program with several managers in one future is rare.
            awaited.inspect(|awaited| awaited.more.set(true)).is_some()
        }
    }
}

/// Answers that a future waits for, and nothing else.
pub(super) struct Answers {
    session: u64,
    slots: Slots,
}

impl Answers {
    /// Whether a future need not be polled: none of its answers is there, and none of them is lost. The thread goes on waiting for them.
    pub fn are_missing(&self) -> bool {
        let Some(awaited) = awaited() else { return false };
        // SAFETY: `run_here` sets it to a session that lives as long as the remote whose call it runs.
        let Some(session) = (unsafe { awaited.session.get().as_ref() }) else { return false };
        if session.serial != self.session || session.is_dead() || self.slots.any_done(session) {
            return false;
        }
        awaited.slots.set(awaited.slots.get().and(self.slots));
        true
    }
}

/// Polls a future that waits for one thing after the other, and says for which answers it waits now, if it waits for them and nothing else.
pub(super) fn noting<T>(poll: impl FnOnce() -> Poll<T>) -> (Poll<T>, Option<Answers>) {
    let Some(awaited) = awaited() else { return (poll(), None) };
    let (before, more) = (awaited.slots.take(), awaited.more.replace(false));
    let polled = poll();
    let others = awaited.more.replace(more || awaited.more.get());
    let slots = awaited.slots.get();
    awaited.slots.set(before.and(slots));
    // SAFETY: as in `are_missing`.
    let session = unsafe { awaited.session.get().as_ref() }.map(|session| session.serial);
    let answers = session.filter(|_| !others && !slots.is_empty() && polled.is_pending());
    (polled, answers.map(|session| Answers { session, slots }))
}

/// Has the future on this thread looked at again soon. False when somebody else must see to that.
pub(super) fn looks_again() -> bool {
    awaited().inspect(|awaited| awaited.more.set(true)).is_some()
}

/// Does nothing for a while, on whichever thread the future is. Whether the calls of that were interrupted.
pub(super) async fn pause(time: Duration) -> bool {
    const STEP: Duration = Duration::from_millis(1);
    let until = Instant::now() + time;
    poll_fn(|cx| {
        if interrupted() == Some(true) {
            return Poll::Ready(true);
        }
        let rest = until.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Poll::Ready(false);
        }
        std::thread::sleep(rest.min(STEP));
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

/// Runs a future of calls of this session to its end.
pub(super) fn block_on<T: Future>(remote: &Remote, future: T) -> T::Output {
    run(remote, future, None).unwrap_or_else(|| unreachable!("there is no end to its time"))
}

/// As [`block_on`], of a future that other threads wake too, until the time is over (`None`: never).
pub(super) fn wait_until<T: Future>(remote: &Remote, future: T, until: Option<Instant>) -> Option<T::Output> {
    run(remote, future, Some(Watch { until }))
}

/// How somebody waits who does not wait for his own calls alone.
#[derive(Clone, Copy)]
struct Watch {
    until: Option<Instant>,
}

impl Watch {
    fn is_over(self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

fn run<T: Future>(remote: &Remote, future: T, watch: Option<Watch>) -> Option<T::Output> {
    let mut future = pin!(future);
    match PARKER.try_with(|parker| run_here(remote, future.as_mut(), parker, watch)) {
        Ok(out) => out,
        // A thread that ends has no parker any more.
        Err(_) => run_here(remote, future, &new_parker(), watch),
    }
}

fn run_here<T: Future>(
    remote: &Remote,
    mut future: Pin<&mut T>,
    (parker, waker): &(Arc<Parker>, Waker),
    watch: Option<Watch>,
) -> Option<T::Output> {
    /// Calls may nest: where the outer one notes what it waits for is put back.
    struct Restore(*const Awaited);
    impl Drop for Restore {
        fn drop(&mut self) {
            AWAITED.set(self.0);
        }
    }
    let awaited =
        Awaited { session: Cell::new(std::ptr::null()), slots: Cell::default(), more: Cell::new(false) };
    let restore = Restore(AWAITED.replace(&raw const awaited));
    let nested = !restore.0.is_null();
    let mut cx = Context::from_waker(waker);
    loop {
        let session = &**remote.now();
        awaited.session.set(session);
        awaited.slots.take();
        awaited.more.set(false);
        let polled = match future.as_mut().poll(&mut cx) {
            Poll::Ready(out) => Some(Some(out)),
            Poll::Pending => watch.is_some_and(Watch::is_over).then_some(None),
        };
        let slots = awaited.slots.take();
        if let Some(out) = polled {
            if !slots.is_empty() {
                // Nobody waits for these now, but they are to be done.
                session.ring();
            }
            if nested {
                // This call may have used up a wake-up that was meant for the one around it.
                parker.woken.store(1, Ordering::Release);
            }
            return out;
        }
        sleep(session, slots, &parker.woken, awaited.more.get(), watch);
        parker.woken.store(0, Ordering::Release);
    }
}

/// Looks for an answer for a while, if there is a processor for that: where many threads look, the manager has none. The manager is woken here if it sleeps and
/// there is no answer yet.
fn looks(session: &Session, waiting: &Waiting<'_>, mut ready: impl FnMut() -> bool) -> bool {
    struct Looks<'a>(&'a AtomicUsize);
    impl Drop for Looks<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let before = session.lookers.fetch_add(1, Ordering::Relaxed);
    let _looks = Looks(&session.lookers);
    let looks = before < session.lookers_max;
    if !looks && !ready() {
        waiting.let_others_go_first();
    }
    if ready() {
        return true;
    }
    session.ring();
    looks && session.looks_for(ready)
}

/// How long somebody who waits for several slots sleeps at most: he is woken for the first of them, and the others may be answered before.
pub(super) const NAP: Duration = Duration::from_micros(200);

/// Waits until one of the slots is answered, the future is woken, or it is time to look at other things.
fn sleep(session: &Session, slots: Slots, woken: &AtomicU32, more: bool, watch: Option<Watch>) {
    let ready = || slots.any_done(session) || woken.load(Ordering::Acquire) == 1;
    let waiting = session.throng.enter(session.region.throng());
    if slots.is_empty() {
        session.ring();
        waiting.let_others_go_first();
    } else if looks(session, &waiting, ready) {
        return;
    }
    let mut time = match more || slots.are_several() {
        true => NAP,
        false if INTERRUPTED.get().is_null() => LOOK,
        false => ASK,
    };
    if let Some(until) = watch.and_then(|watch| watch.until) {
        time = time.min(until.saturating_duration_since(Instant::now()));
    }
    let sleeps = || woken.compare_exchange(0, SLEEPS, Ordering::AcqRel, Ordering::Acquire).is_ok();
    let slept = match slots.is_empty() {
        true if !sleeps() => return,
        true => futex::wait(woken, futex::Flags::PRIVATE, SLEEPS, Some(&timespec(time))),
        false => {
            let word = session.region.state(slots.first);
            let posted =
                word.compare_exchange(state::POSTED, state::SLEEPING, Ordering::AcqRel, Ordering::Acquire);
            if matches!(posted, Err(s) if s != state::SLEEPING) || woken.load(Ordering::Acquire) != 0 {
                return;
            }
            let alone = !slots.are_several() && watch.is_none();
            if !alone && !sleeps() {
                return;
            }
            match alone {
                true => futex::wait(word, futex::Flags::empty(), state::SLEEPING, Some(&timespec(time))),
                false => wait_for_both(word, woken, time),
            }
        }
    };
    if slept == Err(rustix::io::Errno::TIMEDOUT) {
        session.check_alive();
    }
    if !slots.any_done(session) && interrupted() == Some(true) {
        // The manager answers that it was given up, or what came of it.
        session.region.cancel().fetch_or(slots.bits, Ordering::SeqCst);
        session.ring();
    }
}

impl Session {
    /// Sleeps until what was posted in a slot is done, but not for longer than that: others may have the slot by now. False when nothing is waited for there.
    pub(super) fn sleep_until_answered(&self, slot: usize, most: Duration) -> bool {
        let word = self.region.state(slot);
        let posted =
            word.compare_exchange(state::POSTED, state::SLEEPING, Ordering::AcqRel, Ordering::Acquire);
        let sleeps = matches!(posted, Ok(_) | Err(state::SLEEPING));
        if sleeps {
            let _ = futex::wait(word, futex::Flags::empty(), state::SLEEPING, Some(&timespec(most)));
        }
        sleeps
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos() as i64 }
}

/// Sleeps until the slot is answered or the future is woken; where the kernel cannot wait for both (before 5.16), not for long.
fn wait_for_both(slot: &AtomicU32, woken: &AtomicU32, time: Duration) -> rustix::io::Result<()> {
    let on = |word: &AtomicU32, value: u32, flags: futex::WaitFlags| {
        let mut wait = futex::Wait::new();
        wait.val = value as u64;
        wait.uaddr = word.as_ptr().cast::<std::ffi::c_void>().into();
        wait.flags = flags | futex::WaitFlags::SIZE_U32;
        wait
    };
    let words =
        [on(slot, state::SLEEPING, futex::WaitFlags::empty()), on(woken, SLEEPS, futex::WaitFlags::PRIVATE)];
    let now = clock_gettime(ClockId::Monotonic);
    let until = Duration::new(now.tv_sec as u64, now.tv_nsec as u32) + time;
    let until = timespec(until);
    match futex::waitv(&words, futex::WaitvFlags::empty(), Some(&until), ClockId::Monotonic) {
        Err(rustix::io::Errno::NOSYS) => {
            futex::wait(slot, futex::Flags::empty(), state::SLEEPING, Some(&timespec(time.min(NAP))))
        }
        slept => slept.map(|_| ()),
    }
}

/// Wakes futures of other executors.
#[derive(Debug)]
pub(super) struct Helper {
    wakers: Mutex<[Option<Waker>; SLOTS]>,
    started: AtomicBool,
}

impl Default for Helper {
    fn default() -> Self {
        Helper { wakers: Mutex::new([const { None }; SLOTS]), started: AtomicBool::new(false) }
    }
}

/// How often the helper looks at its slots.
const TICK: Duration = Duration::from_micros(100);

/// Has the helper wake the future when the slot is answered.
pub(super) fn register(session: &Arc<Session>, slot: usize, waker: &Waker) {
    session.helper.wakers.lock()[slot] = Some(waker.clone());
    start_helper(session, waker);
}

/// Whether a future on this thread is run by [`block_on`], which looks again by itself.
pub(super) fn is_run_here() -> bool {
    !AWAITED.get().is_null()
}

/// Starts the helper, unless it runs.
pub(super) fn start_helper(session: &Arc<Session>, waker: &Waker) {
    if !session.helper.started.swap(true, Ordering::AcqRel) {
        let weak = Arc::downgrade(session);
        let spawned = std::thread::Builder::new().name("freehold-wake".into()).spawn(move || help(&weak));
        if spawned.is_err() {
            // Without a thread somebody must look: the future itself, again and again.
            session.helper.started.store(false, Ordering::Release);
            waker.wake_by_ref();
        }
    }
}

fn help(session: &Weak<Session>) {
    let (mut idle, mut ticks) = (0u32, 0u32);
    while let Some(session) = session.upgrade() {
        ticks = ticks.wrapping_add(1);
        let alive = !ticks.is_multiple_of(1000) || session.check_alive();
        // Slots of calls that were given up become free without anybody saying so: who waits for one looks again.
        let mut woken = Vec::from(std::mem::take(&mut session.slots.lock().waiting));
        let mut any = !woken.is_empty();
        let mut wakers = session.helper.wakers.lock();
        for (slot, waker) in wakers.iter_mut().enumerate() {
            if waker.is_some() {
                any = true;
                if !alive || session.region.state(slot).load(Ordering::Acquire) == state::DONE {
                    woken.extend(waker.take());
                }
            }
        }
        if !any && idle > 10_000 {
            // A second without work: whoever needs it next starts another.
            session.helper.started.store(false, Ordering::Release);
            return;
        }
        drop(wakers);
        idle = if any { 0 } else { idle + 1 };
        woken.into_iter().for_each(Waker::wake);
        drop(session);
        std::thread::sleep(TICK);
    }
}
