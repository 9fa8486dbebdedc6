//! What clients have sent is closed where nobody waits for it.
//!
//! A message can bring descriptors, and closing them is for whoever receives it, or closes the socket in which it waits. That can take as long as the client likes: where they lead to
//! a connection that lingers until the other side has taken everything, for one. The thread that serves sessions therefore looks first
//! ([`socket::head`], [`socket::brings_nothing`]), and takes nothing that brings any. That is received, and sockets in which it waits are closed, by
//! threads of their own, a few for each user, behind which only that user's have to wait. A socket that waits to be closed counts as a session.
//! Memories that clients have shown are closed there, too: that gives all back that is in them.
//!
//! Tested in tests/all/descriptor_attacks.rs.

use super::tasks::Bell;
use crate::socket;
use foldhash::fast::FixedState;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads for one user.
const THREADS_MAX: usize = 8;
/// They call little.
const STACK: usize = 256 << 10;

type Job = Box<dyn FnOnce() + Send>;

/// What one user has to be done.
#[derive(Default)]
struct User {
    threads: usize,
    waiting: VecDeque<Job>,
}

/// See the module.
pub(crate) struct Closer {
    users: Mutex<HashMap<u32, User, FixedState>>,
    /// Sockets that are not closed yet.
    closing: AtomicUsize,
    /// Users for whom there could be no thread.
    without: AtomicUsize,
    /// Of threads.
    stack: AtomicUsize,
    bell: Arc<Bell>,
}

impl std::fmt::Debug for Closer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Closer").field("closing", &self.closing).finish_non_exhaustive()
    }
}

impl Closer {
    pub fn new(bell: Arc<Bell>) -> Closer {
        let (closing, without, stack) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(STACK));
        Closer { users: Mutex::default(), closing, without, stack, bell }
    }

    /// Sockets that are not closed yet, as that takes long.
    pub fn closing(&self) -> usize {
        self.closing.load(Ordering::SeqCst)
    }

    /// Does something of this user's that may never end, elsewhere.
    pub fn run(self: &Arc<Closer>, uid: u32, job: impl FnOnce() + Send + 'static) {
        let mut users = self.users.lock();
        users.entry(uid).or_default().waiting.push_back(Box::new(job));
        self.start(&mut users, Some(uid));
    }

    /// Whether there is something to do for which there is no thread still. It is tried again.
    pub fn tries_again(self: &Arc<Closer>) -> bool {
        if self.without.load(Ordering::SeqCst) > 0 {
            self.start(&mut self.users.lock(), None);
        }
        self.without.load(Ordering::SeqCst) > 0
    }

    /// Starts one more thread for a user, and one for those for whom there could be none before.
    fn start(self: &Arc<Closer>, users: &mut HashMap<u32, User, FixedState>, uid: Option<u32>) {
        let mut without = 0;
        for (&of, user) in users.iter_mut() {
            if user.threads == 0 || Some(of) == uid && user.threads < THREADS_MAX {
                let (closer, stack) = (self.clone(), self.stack.load(Ordering::Relaxed));
                let named = std::thread::Builder::new().name("freehold-close".into()).stack_size(stack);
                match named.spawn(move || closer.work(of)) {
                    Ok(_) => user.threads += 1,
                    // Said once for each.
                    Err(e) if Some(of) == uid => tracing::warn!("no thread for what clients have sent: {e}"),
                    Err(_) => {}
                }
            }
            without += (user.threads == 0) as usize;
        }
        self.without.store(without, Ordering::SeqCst);
    }

    /// Does what there is to do for a user.
    fn work(&self, uid: u32) {
        loop {
            let job = {
                let mut users = self.users.lock();
                let Some(user) = users.get_mut(&uid) else { return };
                let Some(job) = user.waiting.pop_front() else {
                    user.threads -= 1;
                    if user.threads == 0 {
                        users.remove(&uid);
                    }
                    return;
                };
                job
            };
            job();
        }
    }
}

/// The socket of a client. It is closed without waiting for that, whatever is left in it.
#[derive(Debug)]
pub(crate) struct Line {
    /// Until it is closed.
    socket: Option<OwnedFd>,
    pub uid: u32,
    closer: Arc<Closer>,
}

impl Line {
    pub fn new(socket: OwnedFd, uid: u32, closer: &Arc<Closer>) -> Line {
        Line { socket: Some(socket), uid, closer: closer.clone() }
    }

    /// Who closes what comes over it.
    pub fn closer(&self) -> &Arc<Closer> {
        &self.closer
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().unwrap_or_else(|| unreachable!("it is there until it is dropped")).as_fd()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        if socket::brings_nothing(&socket) {
            return;
        }
        // Its client hears of the end at once.
        let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        let closer = self.closer.clone();
        closer.closing.fetch_add(1, Ordering::SeqCst);
        self.closer.run(self.uid, move || {
            drop(socket);
            closer.closing.fetch_sub(1, Ordering::SeqCst);
            closer.bell.closed();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn what_there_was_no_thread_for_is_tried_again() {
        let closer = Arc::new(Closer::new(Arc::new(Bell::new().unwrap())));
        let (done, is_done) = channel();
        // Nobody has so much memory.
        closer.stack.store(1 << 60, Ordering::Relaxed);
        closer.run(7, move || done.send(()).unwrap());
        assert!(closer.tries_again() && is_done.try_recv().is_err());
        closer.stack.store(STACK, Ordering::Relaxed);
        assert!(!closer.tries_again());
        is_done.recv_timeout(Duration::from_secs(10)).expect("it is done at last");
    }
}
