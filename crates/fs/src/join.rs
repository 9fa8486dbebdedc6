//! Running many futures on one thread, polling only those that were woken.

use crate::contract::FileSystem;
use crate::types::Devices;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Most futures that run together: there is one bit for each.
pub const JOINED_MAX: usize = 64;

/// A thread that polls sleeps when for so long nothing was under way that it could look for.
const LOOKS_FOR: Duration = Duration::from_micros(100);

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

/// Runs futures, [`JOINED_MAX`] at most, to their ends on the calling thread, which sleeps while none of them can go on. The first error ends all: the others
/// are dropped. Panics when there are more.
pub fn join_all<E>(futures: Vec<impl Future<Output = Result<(), E>>>) -> Result<(), E> {
    join(futures, std::thread::park)
}

/// As [`join_all`] for futures of one file system's calls, on a thread that has a processor for itself: it looks for what devices have completed instead of
/// sleeping, and hands over together what the calls of a round have begun (as a reactor of SPDK does). It sleeps when there is nothing to look for, as with
/// engines that have no device or one that only tells of completions by waking somebody.
pub fn join_polled<F: FileSystem, E>(
    fs: &F,
    futures: Vec<impl Future<Output = Result<(), E>>>,
) -> Result<(), E> {
    struct Attends<'a, F: FileSystem>(&'a F);
    impl<F: FileSystem> Drop for Attends<'_, F> {
        fn drop(&mut self) {
            self.0.attend(false);
        }
    }
    let attends = Attends(fs);
    // Before anything begins, which is to be handed over together.
    fs.attend(true);
    let mut idle_since = None;
    join(futures, || match attends.0.attend(true) {
        Devices::Idle => {
            if idle_since.get_or_insert_with(Instant::now).elapsed() > LOOKS_FOR {
                attends.0.attend(false);
                std::thread::park();
                idle_since = None;
            }
            std::hint::spin_loop();
        }
        Devices::Busy => {
            idle_since = None;
            std::hint::spin_loop();
        }
        Devices::Done => idle_since = None,
    })
}

/// `rests` is called when no future can go on, until one can. It may return for no reason.
fn join<E>(futures: Vec<impl Future<Output = Result<(), E>>>, mut rests: impl FnMut()) -> Result<(), E> {
    assert!(futures.len() <= JOINED_MAX, "one bit for each future");
    let all = u64::MAX.checked_shr((JOINED_MAX - futures.len()) as u32).unwrap_or(0);
    let ready = Arc::new(Ready { bits: AtomicU64::new(all), thread: std::thread::current() });
    let wakers: Vec<Waker> =
        (0..futures.len()).map(|i| Arc::new(One { ready: ready.clone(), bit: 1 << i }).into()).collect();
    let mut futures: Vec<Pin<Box<_>>> = futures.into_iter().map(Box::pin).collect();
    let mut left = all;
    while left != 0 {
        let mut bits = ready.bits.swap(0, Ordering::AcqRel) & left;
        if bits == 0 {
            rests();
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
        let futures = (0..JOINED_MAX).map(|_| {
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

    #[test]
    fn the_first_error_ends_all() {
        let futures = (0..3).map(|i| async move {
            match i {
                0 => Ok(()),
                1 => Err("an error"),
                _ => std::future::pending().await,
            }
        });
        assert_eq!(join_all(futures.collect()), Err("an error"));
        assert_eq!(join_all(Vec::<std::future::Ready<Result<(), ()>>>::new()), Ok(()));
    }
}
