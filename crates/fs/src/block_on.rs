//! Waiting for a future on the calling thread.

use parking_lot::Mutex;
use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// Ends the work of a lent thread soon, so that it looks at [`Idle::woken`]. Called from any thread, also when nobody works.
pub type Interrupt = Arc<dyn Fn() + Send + Sync>;

/// Wakes one thread. The flag makes wake-ups that come before the thread sleeps count, and those of earlier calls harmless.
struct Parker {
    thread: Thread,
    woken: AtomicBool,
    /// Set while the thread works for an engine instead of sleeping.
    lent: Mutex<Option<Interrupt>>,
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        // The thread looks at the flag before it sleeps: when it wakes itself, the flag is enough.
        if self.woken.swap(true, Ordering::AcqRel) || self.thread.id() == std::thread::current().id() {
            return;
        }
        match &*self.lent.lock() {
            Some(interrupt) => interrupt(),
            None => self.thread.unpark(),
        }
    }
}

thread_local! {
    static PARKER: (Arc<Parker>, Waker) = new_parker();
    /// Whether a `block_on` is running on this thread.
    static BUSY: Cell<bool> = const { Cell::new(false) };
    /// For whom the innermost one works.
    static LENT_TO: Cell<usize> = const { Cell::new(0) };
}

fn new_parker() -> (Arc<Parker>, Waker) {
    let thread = std::thread::current();
    let parker = Arc::new(Parker { thread, woken: AtomicBool::new(false), lent: Mutex::new(None) });
    let waker = Waker::from(parker.clone());
    (parker, waker)
}

/// Whether this thread will be offered to `engine`, should the future that it polls have to wait for this waker.
pub fn lends(waker: &Waker, engine: usize) -> bool {
    LENT_TO.get() == engine && PARKER.try_with(|(_, own)| own.will_wake(waker)).unwrap_or(false)
}

/// A thread that has nothing to do until its future is woken, and may work for somebody until then.
pub struct Idle<'a>(&'a Parker);

impl<'a> Idle<'a> {
    /// The future was woken: the thread must come back.
    pub fn woken(&self) -> bool {
        self.0.woken.load(Ordering::Acquire)
    }

    /// Wakes the future: to be called by this thread, which then comes back.
    pub fn wake(&self) {
        self.0.woken.store(true, Ordering::Release);
    }

    /// From now until the value that is returned is dropped, who wakes the thread calls `interrupt`. Look at [`Idle::woken`]
    /// after this call, and again after everything that `interrupt` ends.
    pub fn lend(&self, interrupt: Interrupt) -> Lent<'a> {
        *self.0.lent.lock() = Some(interrupt);
        Lent(self.0)
    }
}

/// See [`Idle::lend`].
pub struct Lent<'a>(&'a Parker);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        *self.0.lent.lock() = None;
    }
}

/// Runs `future` to its end, sleeping while it waits. Allocates nothing after a thread's first call. Calls may nest (a file is
/// dropped inside of a future).
pub fn block_on<F: Future>(future: F) -> F::Output {
    block_on_lending(future, 0, |_| ())
}

/// As [`block_on`], but before the thread sleeps it is offered to `work`, which returns when the thread was woken, or at once
/// when there is nothing to do. [`lends`] says meanwhile that it is lent to `engine`.
pub fn block_on_lending<F: Future>(future: F, engine: usize, mut work: impl FnMut(&Idle<'_>)) -> F::Output {
    let mut future = pin!(future);
    match PARKER.try_with(|parker| run(future.as_mut(), parker, engine, &mut work)) {
        Ok(out) => out,
        // A thread that ends has no parker any more, and `lends` says so: nobody counts on its work.
        Err(_) => run(future, &new_parker(), 0, |_| ()),
    }
}

fn run<F: Future>(
    mut future: Pin<&mut F>,
    (parker, waker): &(Arc<Parker>, Waker),
    engine: usize,
    mut work: impl FnMut(&Idle<'_>),
) -> F::Output {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            LENT_TO.set(self.0);
        }
    }
    let _restore = Restore(LENT_TO.replace(engine));
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
        if !parker.woken.load(Ordering::Acquire) {
            work(&Idle(parker));
        }
        while !parker.woken.swap(false, Ordering::AcqRel) {
            std::thread::park();
        }
    }
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
    fn a_lent_thread_is_interrupted() {
        let (tx, rx) = std::sync::mpsc::channel::<Waker>();
        let helper = std::thread::spawn(move || {
            let waker = rx.recv().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
            waker.wake();
        });
        let (to_worker, interrupted) = std::sync::mpsc::channel();
        let interrupt: Interrupt = Arc::new(move || to_worker.send(()).unwrap());
        let (mut polls, mut worked) = (0, 0);
        let future = std::future::poll_fn(|cx| {
            polls += 1;
            assert!(lends(cx.waker(), 7) && !lends(cx.waker(), 8) && !lends(Waker::noop(), 7));
            let _ = tx.send(cx.waker().clone());
            if polls > 1 { Poll::Ready(()) } else { Poll::Pending }
        });
        block_on_lending(future, 7, |idle| {
            let lent = idle.lend(interrupt.clone());
            while !idle.woken() {
                interrupted.recv().unwrap();
                worked += 1;
            }
            drop(lent);
        });
        helper.join().unwrap();
        assert_eq!((polls, worked), (2, 1));
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

    /// Waits once, when it is dropped.
    struct Waits(std::sync::mpsc::Sender<bool>);

    impl Drop for Waits {
        fn drop(&mut self) {
            let (mut polls, mut lent) = (0, false);
            let future = std::future::poll_fn(|cx| {
                polls += 1;
                lent |= lends(cx.waker(), 7);
                let waker = cx.waker().clone();
                if polls == 1 {
                    std::thread::spawn(move || waker.wake());
                    return Poll::Pending;
                }
                Poll::Ready(())
            });
            block_on_lending(future, 7, |_| ());
            let _ = self.0.send(polls == 2 && !lent);
        }
    }

    #[test]
    fn a_thread_that_ends_can_wait() {
        thread_local! {
            static LAST: std::cell::RefCell<Option<Waits>> = const { std::cell::RefCell::new(None) };
        }
        let (tells, told) = std::sync::mpsc::channel();
        let ends = std::thread::spawn(move || {
            // What is there first goes last.
            LAST.with(|last| {
                block_on(std::future::ready(()));
                last.replace(Some(Waits(tells)));
            });
        });
        ends.join().unwrap();
        assert_eq!(told.recv(), Ok(true));
    }
}
