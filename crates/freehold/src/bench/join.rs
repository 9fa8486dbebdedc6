//! Running many futures on one thread, polling only those that were woken.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// Which futures are to be polled, one bit for each.
struct Ready {
    bits: AtomicU64,
    thread: Thread,
}

struct One {
    ready: Arc<Ready>,
    bit: u64,
}

impl Wake for One {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        // The thread sleeps only when it saw no bit at all.
        if self.ready.bits.fetch_or(self.bit, Ordering::AcqRel) == 0 {
            self.ready.thread.unpark();
        }
    }
}

/// Runs at most 64 futures to their ends on the calling thread; the first error ends all.
pub fn join_all<E>(futures: Vec<impl Future<Output = Result<(), E>>>) -> Result<(), E> {
    assert!(futures.len() <= 64, "one bit for each future");
    let all = if futures.len() == 64 { u64::MAX } else { (1 << futures.len()) - 1 };
    let ready = Arc::new(Ready { bits: AtomicU64::new(all), thread: std::thread::current() });
    let wakers: Vec<Waker> =
        (0..futures.len()).map(|i| Arc::new(One { ready: ready.clone(), bit: 1 << i }).into()).collect();
    let mut futures: Vec<Pin<Box<_>>> = futures.into_iter().map(Box::pin).collect();
    let mut left = all;
    while left != 0 {
        let mut bits = ready.bits.swap(0, Ordering::AcqRel) & left;
        if bits == 0 {
            std::thread::park();
        }
        while bits != 0 {
            let i = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            if let Poll::Ready(result) = futures[i].as_mut().poll(&mut Context::from_waker(&wakers[i])) {
                result?;
                left &= !(1 << i);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_what_was_woken() {
        let (tx, rx) = std::sync::mpsc::channel::<Waker>();
        let helper = std::thread::spawn(move || rx.into_iter().for_each(|w| w.wake()));
        let futures = (0..64).map(|_| {
            let (tx, mut polls) = (tx.clone(), 0);
            std::future::poll_fn(move |cx| {
                polls += 1;
                if polls == 3 {
                    return Poll::Ready(Ok::<(), ()>(()));
                }
                let _ = tx.send(cx.waker().clone());
                Poll::Pending
            })
        });
        join_all(futures.collect()).unwrap();
        drop(tx);
        helper.join().unwrap();
    }
}
