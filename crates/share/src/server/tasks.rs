//! Calls that are run, futures that wait, and how they are woken.

use super::execute::{close, execute};
use super::session::Client;
use crate::region::SlotNo;
use fs::{FileSystem, Watched};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use smallvec::{SmallVec, smallvec};
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::task::{Context, Poll};
use std::time::Instant;

/// What is done one after the other.
pub(crate) type Steps = SmallVec<[Step; 4]>;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// The call in a slot is run.
    Call(SlotNo),
    /// A handle is closed for which there is no call.
    Close(u64),
}

/// What is run as one task.
pub(crate) enum Work {
    /// The call in a slot.
    Call(SlotNo),
    /// What was posted one way; so many handles of the session are closed then.
    Posted { steps: Steps, closed: u64 },
}

/// Runs one call after the other in the same memory: futures of calls are large, and most end as soon as they are begun.
pub(crate) trait Runs: Send {
    /// Begins something. What was begun before is given up.
    fn begin(&mut self, client: Arc<Client>, work: Work);
    /// Goes on with it.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()>;
    /// Forgets it.
    fn end(&mut self);
}

struct Runner<M, T> {
    make: M,
    call: Pin<Box<Option<T>>>,
}

impl<M: Fn(Arc<Client>, Work) -> T + Send, T: Future<Output = ()> + Send> Runs for Runner<M, T> {
    fn begin(&mut self, client: Arc<Client>, work: Work) {
        self.call.set(Some((self.make)(client, work)));
    }
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.call.as_mut().as_pin_mut().map_or(Poll::Ready(()), |call| call.poll(cx))
    }
    fn end(&mut self) {
        self.call.set(None);
    }
}

/// Runs calls on a file system.
pub(crate) fn runner<F: FileSystem>(fs: &Arc<Watched<F>>) -> Box<dyn Runs> {
    let fs = fs.clone();
    let make = move |client: Arc<Client>, work| {
        let fs = fs.calling(client.session);
        async move {
            let (steps, closed) = match work {
                Work::Call(slot) => (smallvec![Step::Call(slot)], None),
                Work::Posted { steps, closed } => (steps, Some(closed)),
            };
            // One is over when the next begins.
            let mut at = Instant::now();
            for step in steps {
                at = match step {
                    Step::Call(slot) => execute(&fs, &client, slot, closed.is_some(), at).await,
                    Step::Close(handle) => close(&fs, &client, handle, at).await,
                };
            }
            if let Some(closed) = closed {
                client.region.closed().store(closed, Ordering::Release);
            }
        }
    };
    Box::new(Runner { make, call: Box::pin(None) })
}

/// Wakes the thread of a server from any other thread.
#[derive(Debug)]
pub(crate) struct Bell {
    /// Tasks to be polled again.
    ready: Mutex<Vec<TaskId>>,
    any: AtomicBool,
    asleep: AtomicBool,
    stopping: AtomicBool,
    /// Sessions that shall end.
    evicted: Mutex<Vec<u64>>,
    /// Sessions of which a message was taken elsewhere, and whether it was one.
    heard: Mutex<Vec<(u64, bool)>>,
    pub event: OwnedFd,
}

/// Session and slot; what has neither any more is nobody's.
pub(crate) type TaskId = (u64, usize);

impl Bell {
    pub fn new() -> io::Result<Bell> {
        Ok(Bell {
            ready: Mutex::default(),
            any: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            evicted: Mutex::default(),
            heard: Mutex::default(),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    fn ring(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.ring();
    }
    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Has the thread look at what waits for posted requests.
    pub fn ring_for_drains(&self) {
        self.any.store(true, Ordering::SeqCst);
        self.ring();
    }

    /// Has the thread end a session.
    pub fn evict(&self, session: u64) {
        self.evicted.lock().push(session);
        self.any.store(true, Ordering::SeqCst);
        self.ring();
    }
    /// Takes what is to end.
    pub fn take_evicted(&self) -> Vec<u64> {
        std::mem::take(&mut self.evicted.lock())
    }

    /// A message that came over the socket of a session was taken; whether it was one.
    pub fn heard(&self, session: u64, good: bool) {
        self.heard.lock().push((session, good));
        self.any.store(true, Ordering::SeqCst);
        self.ring();
    }
    /// Takes the sessions of which messages were taken.
    pub fn take_heard(&self) -> Vec<(u64, bool)> {
        std::mem::take(&mut self.heard.lock())
    }

    /// A socket is closed for which that took long.
    pub fn closed(&self) {
        self.any.store(true, Ordering::SeqCst);
        self.ring();
    }

    fn push(&self, task: TaskId) {
        self.ready.lock().push(task);
        self.any.store(true, Ordering::SeqCst);
        self.ring();
    }
    /// Whether there is something to be polled, or to stop.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::SeqCst) || self.stopping()
    }
    /// Takes what is to be polled. Whether anything has happened, which may also be that a session shall end.
    pub fn take(&self, to: &mut Vec<TaskId>) -> bool {
        let any = self.any.swap(false, Ordering::SeqCst);
        if any {
            to.append(&mut self.ready.lock());
        }
        any
    }
    /// Says whether the thread sleeps, or is about to. As both sides write first and then read, one of them sees the other.
    pub fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::SeqCst);
    }
}

/// Has one task polled again.
pub(crate) struct TaskWaker {
    pub task: TaskId,
    pub bell: Arc<Bell>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.bell.push(self.task);
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.bell.push(self.task);
    }
}
