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

/// Bits of a word.
const WORD: usize = u64::BITS as usize;

/// A thread that polls sleeps when for so long nothing was under way that it could look for.
const LOOKS_FOR: Duration = Duration::from_micros(100);

/// Which futures are to be polled, one bit for each.
struct Ready {
    words: Box<[AtomicU64]>,
    thread: Thread,
}

struct One {
    ready: Arc<Ready>,
    number: usize,
}

impl Wake for One {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        let bit = 1 << (self.number % WORD);
        // The thread sleeps only when it saw no bit at all, of this word neither.
        if self.ready.words[self.number / WORD].fetch_or(bit, Ordering::AcqRel) == 0 {
            self.ready.thread.unpark();
        }
    }
}

/// Runs futures to their ends on the calling thread, which sleeps while none of them can go on. The first error ends all: the others are dropped.
pub fn join_all<E>(futures: Vec<impl Future<Output = Result<(), E>>>) -> Result<(), E> {
    join(futures, std::thread::park)
}

/// As [`join_all`] for futures of one file system's calls, on a thread that has a processor for itself: it looks for what devices have completed instead of
/// sleeping, and hands over together what the calls of a round have begun (as a reactor of SPDK does). One thread at a time can do that for a file system to any use. It sleeps when there is nothing to look for, as with
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
    let words = (0..futures.len().div_ceil(WORD)).map(|_| AtomicU64::new(u64::MAX)).collect();
    let ready = Arc::new(Ready { words, thread: std::thread::current() });
    let wakers: Vec<Waker> =
        (0..futures.len()).map(|number| Arc::new(One { ready: ready.clone(), number }).into()).collect();
    let mut left = futures.len();
    // `None`: it has ended. A place behind the last future has none either.
    let mut futures: Vec<Option<Pin<Box<_>>>> = futures.into_iter().map(|f| Some(Box::pin(f))).collect();
    while left > 0 {
        let mut is_idle = true;
        for (n, word) in ready.words.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::AcqRel);
            is_idle &= bits == 0;
            while bits != 0 {
                let i = n * WORD + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let Some(Some(future)) = futures.get_mut(i) else { continue };
                if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&wakers[i])) {
                    result?;
                    futures[i] = None;
                    left -= 1;
                }
            }
        }
        if is_idle {
            rests();
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
        let futures = (0..1000).map(|_| {
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
