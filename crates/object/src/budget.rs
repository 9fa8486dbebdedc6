//! Memory for data of files, shared by all of them.
//!
//! Who writes takes memory before it copies bytes in, and waits while there is none and some will come back: parts on their way to the store
//! give theirs back when they arrive. When nothing is on its way, nobody but those who wait could go on, and they get their memory: parts have a
//! least size, so that many files that have filled a little of a part each would wait for each other for ever. The excess is bounded by a part of
//! each file that is written.
//!
//! The futures have nothing to do with a runtime.

use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::Notify;

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
}

impl State {
    fn take(&mut self, n: u64) {
        self.used += n;
        self.used_max = self.used_max.max(self.used);
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

    /// Takes memory, waiting for it as the module says.
    pub async fn take(&self, n: u64) {
        loop {
            let given = self.given.notified();
            {
                let mut state = self.state.lock();
                if state.used + n <= self.total || state.moving == 0 {
                    state.take(n);
                    return;
                }
            }
            given.await;
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
    /// `n` bytes of it are somebody else's matter now; the rest is given back.
    pub fn keep(mut self, n: u64) {
        self.1 -= n;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.give(self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    #[test]
    fn waits_only_for_what_comes_back() {
        let budget = Arc::new(Budget::new(10));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(budget.try_take(8) && !budget.try_take(3));
        {
            // Nothing is moving: waiting would never end.
            let mut overdraft = std::pin::pin!(budget.take(4));
            assert_eq!(overdraft.as_mut().poll(&mut cx), Poll::Ready(()));
        }
        let moving = (budget.held(8), budget.moving(8));
        let mut waits = std::pin::pin!(budget.take(5));
        assert_eq!(waits.as_mut().poll(&mut cx), Poll::Pending);
        drop(moving);
        assert_eq!(waits.as_mut().poll(&mut cx), Poll::Ready(()));
        assert_eq!(budget.used(), (9, 12));
        budget.give(9);
        assert_eq!(budget.used(), (0, 12));
    }
}
