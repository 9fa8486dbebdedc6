//! Interrupting calls that wait.
//!
//! The kernel sends FUSE_INTERRUPT when a signal reaches a caller that waits, once for each request, and does not say which signal. What gives way:
//! - Waiting for locks, at once (`EINTR`, as fcntl(2) says).
//! - Of engines that wait for a network, calls that only ask ([`Gives::Late`]): at once when the signal ends the process, else when they have taken
//!   [`PATIENCE`]. POSIX programs do not expect `EINTR` from files, and many get signals all the time (timers, children that end): so a
//!   store that answers is never noticed, and one that does not can be left.
//! - Of the same engines, calls that change something ([`Gives::Killed`]): when the process ends anyway. Nobody then hears `EINTR` of a change that may
//!   have been made; the engine goes on with it.
//!
//! Everything else ends soon by itself. Whether a process is ending /proc tells of its thread; the kernel does not say again when a second signal comes,
//! so calls that were interrupted and did not give way are looked at from time to time.
//!
//! The interrupt may be read by another thread before the request itself is registered, so the numbers of interrupts
//! that found nothing are kept for a while.
//!
//! A lock call that is dropped must not keep the lock: it is polled once more before it is dropped, so that a lock
//! that was granted is reported, not lost. Tested by `tests/mount.rs` (a blocked lock and a signal) and `tests/mount/signals.rs`.

use fs::Error;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// How long a call takes before a signal that its process survives ends it.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often calls are looked at that were interrupted and did not give way.
const LOOKS: Duration = Duration::from_millis(250);

/// When a call gives way to a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gives {
    /// At once.
    Soon,
    /// When the process of this thread is being killed, or after [`PATIENCE`].
    Late(u32),
    /// When the process of this thread is being killed.
    Killed(u32),
}

/// One waiting call.
struct Waiter {
    gives: Gives,
    begun: Instant,
    interrupted: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Waiter {
    fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Release);
        if let Some(w) = self.waker.lock().take() {
            w.wake();
        }
    }

    /// Whether a signal that has come ends the call now.
    fn gives_way(&self) -> bool {
        match self.gives {
            Gives::Soon => true,
            Gives::Late(thread) => self.begun.elapsed() >= PATIENCE || is_killed(thread),
            Gives::Killed(thread) => is_killed(thread),
        }
    }
}

/// Whether the process of a thread is being killed: a signal that ends a process becomes SIGKILL of each of its threads. Threads of other
/// namespaces, which have the number 0 here, are not known to be. `stat` would tell more, but waits for a process that is in exec, which may
/// wait for us: it closes files then.
fn is_killed(thread: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{thread}/status")) else { return false };
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    let pending = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    pending.is_some_and(|mask| mask & (1 << (libc::SIGKILL - 1)) != 0)
}

#[derive(Default)]
struct Inner {
    waiting: HashMap<u64, Arc<Waiter>>,
    early: VecDeque<u64>,
    /// Those that were interrupted and did not give way.
    signalled: Vec<u64>,
    closing: bool,
}

/// The calls of a mount that can be interrupted.
#[derive(Default)]
pub struct Interrupts {
    inner: Mutex<Inner>,
    /// There is somebody in `signalled`, or it is closing.
    changed: Condvar,
}

impl Interrupts {
    /// Interrupts that found no waiting call and are remembered.
    const EARLY: usize = 1024;

    /// The kernel asks to interrupt request `unique`.
    pub fn interrupt(&self, unique: u64) {
        let waiter = {
            let mut inner = self.inner.lock();
            let waiter = inner.waiting.get(&unique).cloned();
            if waiter.is_none() {
                if inner.early.len() == Self::EARLY {
                    inner.early.pop_front();
                }
                inner.early.push_back(unique);
            }
            waiter
        };
        match waiter {
            Some(waiter) if waiter.gives_way() => waiter.interrupt(),
            Some(_) => self.look_later(unique),
            None => {}
        }
    }

    fn look_later(&self, unique: u64) {
        self.inner.lock().signalled.push(unique);
        self.changed.notify_all();
    }

    /// Interrupts every waiting call, now and later: the mount is gone. Calls that change something go on.
    pub fn close(&self) {
        let waiting: Vec<_> = {
            let mut inner = self.inner.lock();
            inner.closing = true;
            let waiting = inner.waiting.values();
            waiting.filter(|waiter| !matches!(waiter.gives, Gives::Killed(_))).cloned().collect()
        };
        self.changed.notify_all();
        waiting.iter().for_each(|w| w.interrupt());
    }

    /// Looks, until it is closed, at calls that were interrupted and did not give way. For a thread of its own, where there are such calls.
    pub fn look(&self) {
        let mut inner = self.inner.lock();
        while !inner.closing {
            if inner.signalled.is_empty() {
                self.changed.wait(&mut inner);
                continue;
            }
            let Inner { waiting, signalled, .. } = &mut *inner;
            signalled.retain(|unique| waiting.contains_key(unique));
            let all: Vec<_> = signalled.iter().filter_map(|unique| waiting.get(unique)).cloned().collect();
            // What /proc is asked for takes a while.
            drop(inner);
            all.iter().filter(|waiter| waiter.gives_way()).for_each(|waiter| waiter.interrupt());
            std::thread::sleep(LOOKS);
            inner = self.inner.lock();
        }
    }

    /// Runs `call`, which request `unique` made, so that it can be interrupted while it waits.
    pub async fn guard<T, E: From<Error>>(
        &self,
        unique: u64,
        gives: Gives,
        call: impl Future<Output = std::result::Result<T, E>>,
    ) -> std::result::Result<T, E> {
        let mut call = pin!(call);
        let mut entry: Option<Entry<'_>> = None;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(out) = call.as_mut().poll(cx) {
                return Poll::Ready(out);
            }
            let entry = entry.get_or_insert_with(|| self.register(unique, gives));
            *entry.waiter.waker.lock() = Some(cx.waker().clone());
            // Checked after the waker is in place, so an interrupt is either seen here or wakes.
            if !entry.waiter.interrupted.load(Ordering::Acquire) {
                return Poll::Pending;
            }
            match call.as_mut().poll(cx) {
                Poll::Pending => Poll::Ready(Err(Error::Interrupted.into())),
                ready => ready,
            }
        })
        .await
    }

    fn register(&self, unique: u64, gives: Gives) -> Entry<'_> {
        let new = Waiter { gives, begun: Instant::now(), interrupted: false.into(), waker: Mutex::default() };
        let waiter = Arc::new(new);
        let early = {
            let mut inner = self.inner.lock();
            let early = inner.early.iter().position(|&u| u == unique).and_then(|at| inner.early.remove(at));
            let closed = inner.closing && !matches!(gives, Gives::Killed(_));
            waiter.interrupted.store(closed, Ordering::Release);
            inner.waiting.insert(unique, waiter.clone());
            early.is_some()
        };
        if early {
            match waiter.gives_way() {
                true => waiter.interrupted.store(true, Ordering::Release),
                false => self.look_later(unique),
            }
        }
        Entry { home: self, unique, waiter }
    }
}

/// A registered call; leaves the table when it ends in any way.
struct Entry<'a> {
    home: &'a Interrupts,
    unique: u64,
    waiter: Arc<Waiter>,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.home.inner.lock().waiting.remove(&self.unique);
    }
}
