//! Interrupting what waits for a lock.
//!
//! The kernel sends FUSE_INTERRUPT when a signal reaches a caller that waits. Only waiting for locks gives way (`EINTR`, as
//! fcntl(2) says); everything else ends soon by itself, and POSIX programs do not expect `EINTR` from files.
//!
//! The interrupt may be read by another thread before the request itself is registered, so the numbers of interrupts
//! that found nothing are kept for a while.
//!
//! A lock call that is dropped must not keep the lock: it is polled once more before it is dropped, so that a lock
//! that was granted is reported, not lost. Tested by `tests/mount.rs` (a blocked lock and a signal).

use fs::{Error, Result};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

/// One waiting call.
#[derive(Default)]
struct Waiter {
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
}

#[derive(Default)]
struct Inner {
    waiting: HashMap<u64, Arc<Waiter>>,
    early: VecDeque<u64>,
    closing: bool,
}

/// The calls of a mount that can be interrupted.
#[derive(Default)]
pub struct Interrupts(Mutex<Inner>);

impl Interrupts {
    /// Interrupts that found no waiting call and are remembered.
    const EARLY: usize = 1024;

    /// The kernel asks to interrupt request `unique`.
    pub fn interrupt(&self, unique: u64) {
        let mut inner = self.0.lock();
        let waiter = inner.waiting.get(&unique).cloned();
        match waiter {
            Some(w) => {
                drop(inner);
                w.interrupt();
            }
            None => {
                if inner.early.len() == Self::EARLY {
                    inner.early.pop_front();
                }
                inner.early.push_back(unique);
            }
        }
    }

    /// Interrupts every waiting call, now and later: the mount is gone.
    pub fn close(&self) {
        let waiting: Vec<_> = {
            let mut inner = self.0.lock();
            inner.closing = true;
            inner.waiting.values().cloned().collect()
        };
        waiting.iter().for_each(|w| w.interrupt());
    }

    /// Runs `call`, which request `unique` made, so that it can be interrupted while it waits.
    pub async fn guard<T>(&self, unique: u64, call: impl Future<Output = Result<T>>) -> Result<T> {
        let mut call = pin!(call);
        let mut entry: Option<Entry<'_>> = None;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(out) = call.as_mut().poll(cx) {
                return Poll::Ready(out);
            }
            let entry = entry.get_or_insert_with(|| self.register(unique));
            *entry.waiter.waker.lock() = Some(cx.waker().clone());
            // Checked after the waker is in place, so an interrupt is either seen here or wakes.
            if !entry.waiter.interrupted.load(Ordering::Acquire) {
                return Poll::Pending;
            }
            match call.as_mut().poll(cx) {
                Poll::Pending => Poll::Ready(Err(Error::Interrupted)),
                ready => ready,
            }
        })
        .await
    }

    fn register(&self, unique: u64) -> Entry<'_> {
        let waiter = Arc::new(Waiter::default());
        let mut inner = self.0.lock();
        let early = inner.early.iter().position(|&u| u == unique).and_then(|at| inner.early.remove(at));
        waiter.interrupted.store(early.is_some() || inner.closing, Ordering::Release);
        inner.waiting.insert(unique, waiter.clone());
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
        self.home.0.lock().waiting.remove(&self.unique);
    }
}
