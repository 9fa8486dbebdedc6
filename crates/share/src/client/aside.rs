//! Looking for the next manager without keeping a thread waiting that must go on: one that submits requests to a queue, or polls it with a limit.
//!
//! A call whose manager has ended looks for another one, which may take as long as its program starts ([`super::Connect::resume`]). Calls mostly do that on the
//! thread that made them. In a queue that says so ([`super::Queue::aside`]) a thread does it for all of them, and they wait as futures.

use super::{GONE, Remote, Session};
use crate::lock::Mutex;
use fs::Result;
use std::cell::Cell;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

thread_local! {
    /// The futures that this thread polls now must not keep it waiting.
    static ASIDE: Cell<bool> = const { Cell::new(false) };
}

/// Polls something that must not keep this thread waiting, if `aside`.
pub(super) fn polling<T>(aside: bool, poll: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            ASIDE.set(self.0);
        }
    }
    let _restore = Restore(ASIDE.replace(aside));
    poll()
}

/// The thread that looks, and who waits for it.
#[derive(Debug, Default)]
pub(super) struct Aside(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The serial of the session for which a successor is looked for.
    looks_for: Option<u64>,
    waiting: Vec<Waker>,
}

impl Remote {
    /// As [`Remote::resume`], aside where the thread must go on.
    pub(super) async fn resumed(&self, old: &Arc<Session>) -> Result<()> {
        if !ASIDE.get() {
            return self.resume(old);
        }
        let aside = &self.link.aside.0;
        let mut asked = false;
        poll_fn(|cx| {
            let mut state = aside.lock();
            if !Arc::ptr_eq(self.now(), old) {
                return Poll::Ready(Ok(()));
            }
            if state.looks_for.is_none() {
                // It has looked for this call, and found none.
                if asked {
                    return Poll::Ready(Err(GONE));
                }
                let (remote, session) = (self.clone(), old.clone());
                let look = move || remote.look_aside(&session);
                if std::thread::Builder::new().name("freehold-resume".into()).spawn(look).is_err() {
                    drop(state);
                    return Poll::Ready(self.resume(old));
                }
                state.looks_for = Some(old.serial);
            }
            // Else the thread ends with an earlier session, and has not looked for this one.
            asked |= state.looks_for == Some(old.serial);
            if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    fn look_aside(&self, old: &Arc<Session>) {
        // How it ended is seen by whether there is another session.
        let _ = self.resume(old);
        let waiting = {
            let mut state = self.link.aside.0.lock();
            state.looks_for = None;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}
