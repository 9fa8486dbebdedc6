//! Waiting until what clients have posted one way is done. Only the thread of the server takes it out of their memory; anybody may ask, and
//! waits as a future.

use super::tasks::Bell;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

/// One that waits.
pub(crate) struct Drain {
    /// The session that it waits for, or all.
    pub session: Option<u64>,
    state: Mutex<State>,
}

struct State {
    /// Sessions that are not as far yet, and one for the thread that looks for them.
    left: usize,
    waker: Option<Waker>,
}

impl Drain {
    /// There is one to wait for.
    pub fn new(session: Option<u64>) -> Drain {
        Drain { session, state: Mutex::new(State { left: 1, waker: None }) }
    }

    /// Waits until there is nothing left to wait for.
    pub async fn over(&self) {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if state.left == 0 {
                return Poll::Ready(());
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// There is one more to wait for.
    pub fn add(&self) {
        self.state.lock().left += 1;
    }

    /// One is as far.
    pub fn one_less(&self) {
        let mut state = self.state.lock();
        state.left = state.left.saturating_sub(1);
        let waker = if state.left == 0 { state.waker.take() } else { None };
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    fn end(&self) {
        let waker = {
            let mut state = self.state.lock();
            state.left = 0;
            state.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

/// All that wait and have not been looked at yet.
pub(crate) struct Drains {
    asked: Mutex<Vec<Arc<Drain>>>,
    any: AtomicBool,
    over: AtomicBool,
    bell: Arc<Bell>,
}

impl Drains {
    pub fn new(bell: Arc<Bell>) -> Drains {
        Drains { asked: Mutex::default(), any: AtomicBool::new(false), over: AtomicBool::new(false), bell }
    }

    /// Waits until everything is done that one session, or all of them, had posted when this was called.
    pub async fn drain(&self, session: Option<u64>) {
        let drain = Arc::new(Drain::new(session));
        self.asked.lock().push(drain.clone());
        self.any.store(true, Ordering::SeqCst);
        self.bell.ring_for_drains();
        if self.over.load(Ordering::SeqCst) {
            drain.end();
        }
        drain.over().await;
    }

    /// For the thread of the server: those that are new.
    pub fn take(&self) -> Vec<Arc<Drain>> {
        match self.any.load(Ordering::Relaxed) && self.any.swap(false, Ordering::SeqCst) {
            true => std::mem::take(&mut self.asked.lock()),
            false => Vec::new(),
        }
    }

    /// The thread of the server ends: nothing is posted any more.
    pub fn over(&self) {
        self.over.store(true, Ordering::SeqCst);
        std::mem::take(&mut *self.asked.lock()).iter().for_each(|drain| drain.end());
    }
}
