//! Running requests: a future is polled once where it arrives, and goes to a small pool of threads when it has to wait.
//!
//! A request that is ready at once costs no allocation: the receiving thread keeps one [`Task`], puts each future into it, polls
//! it, and takes the next. Only when a future waits does the task move to the executor, and the thread makes a new one.
//! 32 requests that wait need 32 tasks, not 32 threads.
//!
//! Invariants: a task is in the run queue at most once; it is polled by one thread at a time (the lock around its future); a
//! future that panics is dropped, which answers its request with `EIO`.
//!
//! Tested at the end of this file.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Not in the queue and not being polled; a wake-up queues it.
const IDLE: u8 = 0;
/// In the queue.
const QUEUED: u8 = 1;
/// Being polled.
const POLLING: u8 = 2;
/// Being polled, and woken meanwhile: it is to be polled again.
const AGAIN: u8 = 3;

/// Receives what the futures return.
type Done<T> = Box<dyn Fn(T) + Send + Sync>;

struct Queue<Fut: Future> {
    ready: VecDeque<Arc<Task<Fut>>>,
    /// Tasks that wait, in the queue or not.
    live: usize,
    stop: bool,
}

/// Threads that go on with futures that had to wait.
pub struct Executor<Fut: Future> {
    queue: Mutex<Queue<Fut>>,
    changed: Condvar,
    done: Done<Fut::Output>,
}

/// A place for one future.
pub struct Task<Fut: Future> {
    future: Mutex<Pin<Box<Option<Fut>>>>,
    state: AtomicU8,
    home: Arc<Executor<Fut>>,
}

impl<Fut> Executor<Fut>
where
    Fut: Future + Send + 'static,
    Fut::Output: Send + 'static,
{
    /// An executor whose futures' results go to `done`. It has no threads until [`Executor::work`] is called on some.
    pub fn new(done: Done<Fut::Output>) -> Arc<Executor<Fut>> {
        let queue = Queue { ready: VecDeque::new(), live: 0, stop: false };
        Arc::new(Executor { queue: Mutex::new(queue), changed: Condvar::new(), done })
    }

    /// An empty task.
    pub fn task(self: &Arc<Self>) -> Arc<Task<Fut>> {
        let future = Mutex::new(Box::pin(None));
        Arc::new(Task { future, state: AtomicU8::new(IDLE), home: self.clone() })
    }

    /// Polls `future` once on this thread, in `*task`. Returns its result when it is ready (`None` when it panicked); otherwise
    /// the executor goes on with it and `*task` is a new one.
    pub fn run_here(self: &Arc<Self>, task: &mut Arc<Task<Fut>>, future: Fut) -> Poll<Option<Fut::Output>> {
        if Arc::get_mut(task).is_none() {
            // A waker of an earlier future lives on somewhere.
            *task = self.task();
        }
        task.state.store(POLLING, Ordering::Release);
        task.future.lock().as_mut().set(Some(future));
        match task.poll() {
            Poll::Ready(out) => Poll::Ready(out),
            Poll::Pending => {
                self.queue.lock().live += 1;
                let waiting = std::mem::replace(task, self.task());
                waiting.rest();
                Poll::Pending
            }
        }
    }

    /// Goes on with futures that were woken, until [`Executor::stop`].
    pub fn work(self: &Arc<Self>) {
        loop {
            let task = {
                let mut q = self.queue.lock();
                loop {
                    if let Some(task) = q.ready.pop_front() {
                        break task;
                    }
                    if q.stop && q.live == 0 {
                        return;
                    }
                    self.changed.wait(&mut q);
                }
            };
            task.state.store(POLLING, Ordering::Release);
            match task.poll() {
                Poll::Pending => task.rest(),
                Poll::Ready(out) => {
                    if let Some(out) = out {
                        (self.done)(out);
                    }
                    let mut q = self.queue.lock();
                    q.live -= 1;
                    if q.live == 0 && q.stop {
                        self.changed.notify_all();
                    }
                }
            }
        }
    }

    /// Lets [`Executor::work`] return once no future waits any more.
    pub fn stop(&self) {
        self.queue.lock().stop = true;
        self.changed.notify_all();
    }
}

impl<Fut> Task<Fut>
where
    Fut: Future + Send + 'static,
    Fut::Output: Send + 'static,
{
    /// Polls the future; when it is done, drops it and returns its result (`None`: it panicked).
    fn poll(self: &Arc<Self>) -> Poll<Option<Fut::Output>> {
        let waker = Waker::from(self.clone());
        let mut place = self.future.lock();
        let Some(future) = place.as_mut().as_pin_mut() else { return Poll::Pending };
        let polled = catch_unwind(AssertUnwindSafe(|| future.poll(&mut Context::from_waker(&waker))));
        let out = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(out)) => Some(out),
            Err(_) => {
                tracing::error!("a request panicked; it was answered with EIO");
                None
            }
        };
        place.as_mut().set(None);
        Poll::Ready(out)
    }

    /// After a poll that was not ready: idle, unless it was woken meanwhile.
    fn rest(self: Arc<Self>) {
        if self.state.compare_exchange(POLLING, IDLE, Ordering::AcqRel, Ordering::Acquire).is_err() {
            self.state.store(QUEUED, Ordering::Release);
            self.enqueue();
        }
    }

    fn enqueue(self: Arc<Self>) {
        let home = self.home.clone();
        home.queue.lock().ready.push_back(self);
        home.changed.notify_one();
    }
}

impl<Fut> Wake for Task<Fut>
where
    Fut: Future + Send + 'static,
    Fut::Output: Send + 'static,
{
    fn wake(self: Arc<Self>) {
        loop {
            let state = self.state.load(Ordering::Acquire);
            let next = match state {
                IDLE => QUEUED,
                POLLING => AGAIN,
                _ => return,
            };
            if self.state.compare_exchange(state, next, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                // A task without a future is finished, or between two requests of its thread: nothing to run. Its owner
                // resets the state before it uses it again.
                if next == QUEUED {
                    self.enqueue();
                }
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    /// Ready after being woken `n` times from another thread.
    async fn after(n: usize) -> usize {
        for _ in 0..n {
            let mut first = true;
            std::future::poll_fn(|cx| {
                if std::mem::take(&mut first) {
                    let waker = cx.waker().clone();
                    std::thread::spawn(move || {
                        std::thread::sleep(Duration::from_micros(50));
                        waker.wake();
                    });
                    return Poll::Pending;
                }
                Poll::Ready(())
            })
            .await;
        }
        assert!(n != 99, "planted panic");
        n
    }

    #[test]
    fn ready_inline_waiting_elsewhere_panics_contained() {
        let sum = Arc::new(AtomicUsize::new(0));
        let s = sum.clone();
        let exec = Executor::new(Box::new(move |n: usize| {
            s.fetch_add(n, Ordering::SeqCst);
        }));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let e = exec.clone();
                std::thread::spawn(move || e.work())
            })
            .collect();
        let mut task = exec.task();
        assert_eq!(exec.run_here(&mut task, after(0)), Poll::Ready(Some(0)));
        for _ in 0..100 {
            assert_eq!(exec.run_here(&mut task, after(3)), Poll::Pending);
        }
        assert_eq!(exec.run_here(&mut task, after(99)), Poll::Pending);
        exec.stop();
        workers.into_iter().for_each(|w| w.join().unwrap());
        assert_eq!(sum.load(Ordering::SeqCst), 300);
    }
}
