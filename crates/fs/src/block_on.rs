//! Waiting for a future on the calling thread.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// Wakes one thread. The flag makes wake-ups that come before the thread sleeps count, and those of earlier calls harmless.
struct Parker {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.thread.unpark();
        }
    }
}

thread_local! {
    static PARKER: (Arc<Parker>, Waker) = {
        let parker = Arc::new(Parker { thread: std::thread::current(), woken: AtomicBool::new(false) });
        let waker = Waker::from(parker.clone());
        (parker, waker)
    };
    /// Whether a `block_on` is running on this thread.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Runs `future` to its end, sleeping while it waits. Allocates nothing after a thread's first call. Calls may nest (a file is
/// dropped inside of a future).
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    PARKER.with(|(parker, waker)| {
        let mut cx = Context::from_waker(waker);
        let nested = BUSY.replace(true);
        loop {
            if let Poll::Ready(out) = future.as_mut().poll(&mut cx) {
                BUSY.set(nested);
                if nested {
                    // This call may have used up a wake-up that was meant for the one around it, which must poll again.
                    parker.woken.store(true, Ordering::Release);
                }
                return out;
            }
            while !parker.woken.swap(false, Ordering::AcqRel) {
                std::thread::park();
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakes_from_another_thread() {
        let (tx, rx) = std::sync::mpsc::channel::<Waker>();
        let flag = Arc::new(AtomicBool::new(false));
        let seen = flag.clone();
        let helper = std::thread::spawn(move || {
            let waker = rx.recv().unwrap();
            flag.store(true, Ordering::Release);
            waker.wake();
        });
        block_on(std::future::poll_fn(|cx| {
            if seen.load(Ordering::Acquire) {
                return Poll::Ready(());
            }
            let _ = tx.send(cx.waker().clone());
            Poll::Pending
        }));
        helper.join().unwrap();
    }

    #[test]
    fn a_nested_call_leaves_wakeups_to_the_outer_one() {
        let mut polls = 0;
        block_on(std::future::poll_fn(|cx| {
            polls += 1;
            if polls > 1 {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            let mut first = true;
            block_on(std::future::poll_fn(|_| {
                if std::mem::take(&mut first) { Poll::Pending } else { Poll::Ready(()) }
            }));
            Poll::Pending
        }));
        assert_eq!(polls, 2);
    }
}
