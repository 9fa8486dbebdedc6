//! What a server did, for those who look after it: calls by class with their times, and the sessions that there are.
//!
//! Everything here is counted with atomics where a call is answered (`execute`) and read by other threads at any time, so that
//! an idle server need not wake to publish anything. A call is timed from the moment when the thread takes it up to its answer;
//! calls that their client gave up are not counted. The second reading of the clock comes after the answer, where no client waits for it.
//!
//! Tested at the end of this file and in tests/all/stats.rs.

use super::session::Client;
use super::tasks::Bell;
use super::{Counters, Server};
use format::shared::{AttrImage, Reply, Request};
use fs::meter::{DoorStats, Meter};
use fs::{FileSystem, HeldLock};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The classes, by the numbers of [`crate::wire::Op`]; 0 is what is no operation.
const CLASSES: [&str; 56] = [
    "unknown",
    "ping",
    "lookup",
    "walk",
    "getattr",
    "setattr",
    "access",
    "readlink",
    "mknod",
    "mkdir",
    "symlink",
    "link",
    "unlink",
    "rmdir",
    "rename",
    "open",
    "create",
    "tmpfile",
    "read",
    "write",
    "flush",
    "release",
    "fsync",
    "barrier",
    "sync",
    "opendir",
    "readdir",
    "statfs",
    "getxattr",
    "listxattr",
    "setxattr",
    "removexattr",
    "fallocate",
    "seek",
    "copy_range",
    "getlk",
    "setlk",
    "flock",
    "unhold",
    "lease",
    "write_atomic",
    "lend_directory",
    "promise",
    "post_create",
    "post_unlink",
    "post_write",
    "room",
    "lend_locks",
    "pass",
    "post_mkdir",
    "post_rmdir",
    "was_read",
    "leave",
    "pin",
    "unpin",
    "keep_locks",
];
const READ: usize = crate::wire::Op::Read as usize;
const WRITE: usize = crate::wire::Op::Write as usize;
const RELEASE: usize = crate::wire::Op::Release as usize;
const POST_WRITE: usize = crate::wire::Op::PostWrite as usize;

/// A server at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Calls of all sessions since the server was started.
    pub door: DoorStats,
    /// The sessions, oldest first.
    pub sessions: Vec<SessionStats>,
    /// Times the thread slept, as of its last sleep.
    pub sleeps: u64,
}

/// A session at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStats {
    /// Its number; never used twice by one server.
    pub session: u64,
    /// The client's process, as the kernel reported it; 0 when it is in a PID namespace that cannot be seen from here.
    pub pid: i32,
    /// The client's user, as the kernel reported it.
    pub uid: u32,
    /// Calls answered.
    pub calls: u64,
    /// Bytes of file data read.
    pub bytes_read: u64,
    /// Bytes of file data written.
    pub bytes_written: u64,
    /// Open handles.
    pub handles: u64,
    /// Since it began.
    pub age: Duration,
    /// Since its last call ended, or since it began.
    pub idle: Duration,
    /// Calls under way.
    pub calls_now: u64,
    /// Files on which it holds locks; one that has a lock on the whole file and record locks counts twice.
    pub locks: u64,
    /// For how long it has had the oldest of them; zero without any.
    pub locks_held: Duration,
    /// Calls of others, through whichever door, that wait for its locks.
    pub waiting: u64,
    /// How long the one that has waited longest does; zero without any.
    pub waited: Duration,
    /// Its syncs are answered with order, whatever file they are for ([`fs::Ordered`]).
    pub ordered: bool,
}

/// The running numbers of a server.
#[derive(Debug)]
pub(crate) struct Board {
    meter: Meter,
    /// Those that are gone are left out when somebody looks or a session begins.
    sessions: Mutex<Vec<Weak<Client>>>,
    locks: Locks,
}

/// Asks the file system who holds locks.
struct Locks(Box<dyn Fn() -> Vec<HeldLock> + Send + Sync>);

impl std::fmt::Debug for Locks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Locks")
    }
}

impl Board {
    /// For a server of `fs`. It does not keep the file system.
    pub fn new<F: FileSystem>(fs: &Arc<F>) -> Board {
        let fs = Arc::downgrade(fs);
        let locks = Locks(Box::new(move || fs.upgrade().map_or_else(Vec::new, |fs| fs.locks())));
        Board { meter: Meter::new(&CLASSES), sessions: Mutex::default(), locks }
    }

    /// For a client that begins a session.
    pub fn tally(self: &Arc<Board>, pid: i32) -> Tally {
        let zero = || AtomicU64::new(0);
        Tally {
            board: self.clone(),
            pid,
            begun: Instant::now(),
            calls: zero(),
            bytes_read: zero(),
            bytes_written: zero(),
            last_ns: zero(),
            under_way: zero(),
        }
    }

    /// A session has begun.
    pub fn add(&self, client: &Arc<Client>) {
        let mut sessions = self.sessions.lock();
        sessions.retain(|s| s.strong_count() > 0);
        sessions.push(Arc::downgrade(client));
    }

    fn clients(&self) -> Vec<Arc<Client>> {
        let mut sessions = self.sessions.lock();
        sessions.retain(|s| s.strong_count() > 0);
        sessions.iter().filter_map(Weak::upgrade).collect()
    }

    fn stats(&self) -> Stats {
        let clients = self.clients();
        let (now, locks) = (Instant::now(), (self.locks.0)());
        let look = |client: &Arc<Client>| {
            let t = &client.tally;
            let age = now.saturating_duration_since(t.begun);
            let own: Vec<&HeldLock> = locks.iter().filter(|l| client.holds(l.holder)).collect();
            SessionStats {
                session: client.session,
                pid: t.pid,
                uid: client.cred.uid,
                calls: t.calls.load(Relaxed),
                bytes_read: t.bytes_read.load(Relaxed),
                bytes_written: t.bytes_written.load(Relaxed),
                handles: client.handles() as u64,
                age,
                idle: age.saturating_sub(Duration::from_nanos(t.last_ns.load(Relaxed))),
                calls_now: t.under_way.load(Relaxed),
                locks: own.len() as u64,
                locks_held: own.iter().map(|l| l.held).max().unwrap_or_default(),
                waiting: own.iter().map(|l| l.waiting as u64).sum(),
                waited: own.iter().map(|l| l.waited).max().unwrap_or_default(),
                ordered: client.order.program,
            }
        };
        Stats { door: self.meter.stats(), sessions: clients.iter().map(look).collect(), sleeps: 0 }
    }
}

/// The running numbers of a session. The thread of the server alone counts.
#[derive(Debug)]
pub(crate) struct Tally {
    board: Arc<Board>,
    pid: i32,
    begun: Instant,
    calls: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    /// When the last call ended, after `begun`.
    last_ns: AtomicU64,
    under_way: AtomicU64,
}

/// A call under way.
pub(crate) struct UnderWay<'a>(&'a Tally);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.store(self.0.under_way.load(Relaxed).wrapping_sub(1), Relaxed);
    }
}

impl Tally {
    /// A call is taken up.
    pub fn begin(&self) -> UnderWay<'_> {
        self.under_way.store(self.under_way.load(Relaxed).wrapping_add(1), Relaxed);
        UnderWay(self)
    }

    /// Counts a file that was closed without a call, from `begun` until now, which is said.
    pub fn closed(&self, begun: Instant) -> Instant {
        let now = Instant::now();
        self.board.meter.count(RELEASE, now.saturating_duration_since(begun), false);
        now
    }

    /// Counts a call that was taken up at `begun` and is answered now, which is said.
    pub fn count(&self, request: &Request, reply: &Reply, begun: Instant) -> Instant {
        let now = Instant::now();
        let failed = reply.errno.get() != 0;
        let class = Some(request.op.get() as usize).filter(|&n| n < CLASSES.len()).unwrap_or(0);
        let (read, written) = match class {
            READ if !failed && reply.pages.get() > 0 => (reply.noted.get(), 0),
            // Attributes may stand before the data.
            READ if !failed => {
                let attrs = reply.value.get() * size_of::<AttrImage>() as u64;
                ((reply.len.get() as u64).saturating_sub(attrs), 0)
            }
            WRITE | POST_WRITE if !failed => (0, reply.value.get()),
            _ => (0, 0),
        };
        self.board.meter.count(class, now.saturating_duration_since(begun), failed);
        self.board.meter.moved(read, written);
        // One thread writes: a load and a store are enough, and cheaper than an addition that others could join in.
        let add = |to: &AtomicU64, n: u64| to.store(to.load(Relaxed).wrapping_add(n), Relaxed);
        add(&self.calls, 1);
        add(&self.bytes_read, read);
        add(&self.bytes_written, written);
        let since = now.saturating_duration_since(self.begun).as_nanos();
        self.last_ns.store(since.try_into().unwrap_or(u64::MAX), Relaxed);
        now
    }
}

/// Looks at a server from other threads, also when it has stopped; it does not keep it running.
#[derive(Clone, Debug)]
pub struct Observer {
    board: Arc<Board>,
    counters: Arc<Mutex<Counters>>,
    bell: Arc<Bell>,
}

impl Observer {
    /// The server now.
    pub fn stats(&self) -> Stats {
        let sleeps = self.counters.lock().sleeps;
        Stats { sleeps, ..self.board.stats() }
    }

    /// Ends a session by force: its calls fail, and what it held is given back, soon after this returns. False when there is no such session.
    pub fn evict(&self, session: u64) -> bool {
        let is_there = self.board.clients().iter().any(|c| c.session == session);
        if is_there {
            self.bell.evict(session);
        }
        is_there
    }
}

impl Server {
    /// What it did and which sessions there are, now.
    pub fn stats(&self) -> Stats {
        self.observer().stats()
    }

    /// For looking at it from elsewhere.
    pub fn observer(&self) -> Observer {
        Observer { board: self.board.clone(), counters: self.counters.clone(), bell: self.bell.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::CLASSES;
    use crate::wire::Op;

    #[test]
    fn classes_are_called_as_operations() {
        assert_eq!(CLASSES.len(), Op::ALL.len() + 1);
        for &op in Op::ALL {
            let mut name = String::new();
            for c in format!("{op:?}").chars() {
                if c.is_uppercase() && !name.is_empty() {
                    name.push('_');
                }
                name.push(c.to_ascii_lowercase());
            }
            assert_eq!(CLASSES[op as usize], name);
        }
    }
}
