//! File locks: POSIX record locks (fcntl) and whole-file locks (flock), of all inodes of a volume. They are advisory, live in
//! memory only, and the two sorts do not see each other, as on Linux (fs/locks.c).
//!
//! A call that has to wait leaves a waiter in the queue of its inode and is a plain future: nothing here has a thread. Whenever
//! locks of the inode go away, waiters are woken in their order, as many as can hold their locks together; each tries
//! again when polled. A newcomer may be faster than a woken waiter (as on Linux): whoever waits keeps the place in the queue.
//! Dropping the future removes the waiter, and passes its wake-up on.
//!
//! A record lock whose wait would close a circle of owners that wait for each other fails with `Deadlock`. An owner with
//! several waiting threads is taken to wait for all of them, as in other kernels: rarely, a thread that could still have broken
//! the circle is overlooked. Whole-file locks take no part in this, nor do waits for the record locks of open file descriptions, as on Linux.
//!
//! Record locks of an inode can be kept by somebody else as long as nobody has to do with them who does not ask him ([`LockTable::lend`], [`Keeper`]). Every
//! call here that looks at record locks of that inode takes back first what is held, under the mutex, so that nobody sees a state in between.
//!
//! One mutex covers everything; it is held for a few map accesses and never across a poll or a wake-up. Invariant: an inode is
//! in the table only while it has locks or waiters.
//!
//! How much one session can hold is bounded (`spans`). Tested below and, against a map of single bytes, in `locks/model.rs`; with many holders and waiters in `locks/crowd.rs`.

mod acquire;
mod lent;
pub mod ranges;
mod spans;
mod whole;

use crate::error::{Error, Result};
use crate::types::{Handle, HeldLock, LockHolder, LockKind, LockOwner, RecordLock};
use acquire::Acquire;
use foldhash::fast::RandomState;
use format::Ino;
use hashbrown::{HashMap, HashSet};
pub use lent::Keeper;
use parking_lot::Mutex;
use ranges::Ranges;
use spans::Spans;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};
use whole::{Whole, Woken};

/// The file locks of a volume.
#[derive(Debug, Default)]
pub struct LockTable {
    inner: Mutex<Inner>,
    /// Number of inodes in the table, so that closing files costs nothing while nobody locks.
    inodes: AtomicUsize,
}

#[derive(Debug, Default)]
struct Inner {
    inodes: HashMap<Ino, Locks, RandomState>,
    /// The record locks that owners wait for: the edges of the deadlock graph.
    waiting: HashMap<LockOwner, Vec<(u64, Ino, RecordLock)>, RandomState>,
    next_waiter: u64,
    /// How much of the records is whose.
    spans: Spans,
}

/// Locks of one inode.
#[derive(Debug, Default)]
struct Locks {
    records: Ranges,
    /// Who keeps the record locks; then there are none here, and nobody waits for one.
    lent: Option<Arc<dyn Keeper>>,
    whole: Whole,
    /// By ascending numbers.
    waiters: VecDeque<Waiter>,
    /// When those who hold something got the first of it; only they are here.
    since: HashMap<LockHolder, Instant, RandomState>,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    want: Want,
    waker: Waker,
    /// Woken, and not polled since.
    woken: bool,
    since: Instant,
}

/// What a waiting call asks for.
#[derive(Clone, Copy, Debug)]
enum Want {
    Record(LockOwner, RecordLock),
    Whole(Handle, LockKind),
}

impl Want {
    fn holder(&self) -> LockHolder {
        match *self {
            Want::Record(owner, _) => LockHolder::Owner(owner),
            Want::Whole(handle, _) => LockHolder::Handle(handle),
        }
    }

    fn kind(&self) -> LockKind {
        match *self {
            Want::Record(_, lock) => lock.kind,
            Want::Whole(_, kind) => kind,
        }
    }

    /// A record lock that its owner would wait for in a circle for ever ([`RecordLock::OF_DESCRIPTION`]).
    fn for_ever(&self) -> Option<(LockOwner, RecordLock)> {
        match *self {
            Want::Record(owner, lock) => {
                (owner.handle().is_none() && lock.pid != RecordLock::OF_DESCRIPTION).then_some((owner, lock))
            }
            Want::Whole(..) => None,
        }
    }
}

fn exclusive(a: LockKind, b: LockKind) -> bool {
    a == LockKind::Exclusive || b == LockKind::Exclusive
}

impl Locks {
    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.lent.is_none() && self.whole.is_empty() && self.waiters.is_empty()
    }

    /// Whether a lock that is held now stands against `want`.
    fn refuses(&self, want: &Want) -> bool {
        match *want {
            Want::Record(owner, lock) => self.records.conflicts(owner, lock).next().is_some(),
            Want::Whole(handle, kind) => self.whole.refuses(handle, kind),
        }
    }

    /// Calls `each` with every holder of something that stands against `want`.
    fn hinderers(&self, want: &Want, mut each: impl FnMut(LockHolder)) {
        match *want {
            Want::Record(owner, lock) => {
                self.records.conflicts(owner, lock).for_each(|(holder, _)| each(LockHolder::Owner(holder)));
            }
            Want::Whole(handle, kind) => {
                self.whole.conflicts(handle, kind).for_each(|holder| each(LockHolder::Handle(holder)));
            }
        }
    }

    /// What is held, as of `now`.
    fn held(&self, ino: Ino, now: Instant) -> impl Iterator<Item = HeldLock> + '_ {
        let mut oldest_first: Vec<_> = self.since.iter().map(|(&holder, &since)| (holder, since)).collect();
        oldest_first.sort_by_key(|&(_, since)| since);
        // For each holder, how many wait and how long the first of them does.
        let mut waits: HashMap<LockHolder, (usize, Duration), RandomState> = HashMap::default();
        for waiter in &self.waiters {
            let waited = now.saturating_duration_since(waiter.since);
            self.hinderers(&waiter.want, |holder| {
                let (waiting, longest) = waits.entry(holder).or_default();
                (*waiting, *longest) = (*waiting + 1, waited.max(*longest));
            });
        }
        oldest_first.into_iter().map(move |(holder, since)| {
            let (waiting, waited) = waits.get(&holder).copied().unwrap_or_default();
            HeldLock { ino, holder, held: now.saturating_duration_since(since), waiting, waited }
        })
    }

    /// Gives what is not refused. Tells whether some of what the holder had may have been given up for it.
    fn grant(&mut self, want: Want, spans: &mut Spans) -> bool {
        // Converting a lock, or getting more of them, does not make it younger.
        let had_some = self.since.contains_key(&want.holder());
        if !had_some {
            self.since.insert(want.holder(), Instant::now());
        }
        match want {
            Want::Record(owner, lock) => {
                spans.counting(&mut self.records, owner, |all| all.insert(owner, lock));
            }
            // Another call through the same handle may have been faster.
            Want::Whole(handle, kind) => self.whole.insert(handle, kind),
        }
        had_some && want.kind() == LockKind::Shared
    }

    /// Takes a range of the records from `owner`. Tells whether it held any of it.
    fn take_records(&mut self, owner: LockOwner, start: u64, end: u64, spans: &mut Spans) -> bool {
        let found = spans.counting(&mut self.records, owner, |all| all.remove(owner, start, end));
        if found && !self.records.has(owner) {
            self.since.remove(&LockHolder::Owner(owner));
        }
        found
    }

    /// Takes the whole-file lock from `handle`. Tells whether it had one.
    fn take_whole(&mut self, handle: Handle) -> bool {
        self.since.remove(&LockHolder::Handle(handle));
        self.whole.remove(handle)
    }

    /// Where in the queue a waiter is.
    fn place(&self, id: u64) -> Option<usize> {
        self.waiters.binary_search_by_key(&id, |w| w.id).ok()
    }

    /// Marks the waiters that can go on and returns their wakers, which are to be called without the mutex.
    ///
    /// To be called when something was given up: a lock, or the place of a waiter that was woken. Nothing else makes room for a waiter.
    fn wake(&mut self) -> Vec<Waker> {
        let (mut wakers, mut ahead) = (Vec::new(), Woken::default());
        for i in 0..self.waiters.len() {
            let waiter = &self.waiters[i];
            if !waiter.woken {
                if ahead.excludes(&waiter.want) || self.refuses(&waiter.want) {
                    continue;
                }
                wakers.push(waiter.waker.clone());
                self.waiters[i].woken = true;
            }
            ahead.add(self.waiters[i].want);
        }
        wakers
    }
}

impl Inner {
    /// What somebody else keeps of an inode's locks is here again.
    fn settle(&mut self, ino: Ino) {
        if let Some(locks) = self.inodes.get_mut(&ino) {
            locks.settle(&mut self.spans);
        }
    }

    fn locks(&mut self, ino: Ino) -> &mut Locks {
        self.inodes.entry(ino).or_default()
    }

    /// Whether `owner` waiting for `lock` would close a circle.
    fn deadlocks(&self, owner: LockOwner, ino: Ino, lock: RecordLock) -> bool {
        let mut seen: HashSet<LockOwner, RandomState> = HashSet::default();
        let mut todo = vec![(owner, ino, lock)];
        while let Some((waiting, ino, lock)) = todo.pop() {
            let Some(locks) = self.inodes.get(&ino) else { continue };
            for (holder, _) in locks.records.conflicts(waiting, lock) {
                if holder == owner {
                    return true;
                }
                if seen.insert(holder) {
                    let next = self.waiting.get(&holder).into_iter().flatten();
                    todo.extend(next.map(|&(_, ino, lock)| (holder, ino, lock)));
                }
            }
        }
        false
    }

    /// Removes a waiter and its edge of the deadlock graph.
    fn forget(&mut self, ino: Ino, id: u64) -> Option<Waiter> {
        let locks = self.inodes.get_mut(&ino)?;
        let at = locks.place(id)?;
        let waiter = locks.waiters.remove(at)?;
        if let Want::Record(owner, _) = waiter.want
            && let Some(edges) = self.waiting.get_mut(&owner)
        {
            edges.retain(|&(i, ..)| i != id);
            if edges.is_empty() {
                self.waiting.remove(&owner);
            }
        }
        Some(waiter)
    }
}

impl LockTable {
    /// A table without locks.
    pub fn new() -> LockTable {
        LockTable::default()
    }

    /// Whether no lock is held or waited for.
    pub fn is_empty(&self) -> bool {
        self.inodes.load(Ordering::Acquire) == 0
    }

    /// All locks that are held, by inode and holder. For those who look after a volume: it looks at all of them.
    pub fn held(&self) -> Vec<HeldLock> {
        if self.is_empty() {
            return Vec::new();
        }
        let (mut inner, now) = (self.inner.lock(), Instant::now());
        let lent: Vec<Ino> =
            inner.inodes.iter().filter(|(_, l)| l.lent.is_some()).map(|(&ino, _)| ino).collect();
        for ino in lent {
            inner.settle(ino);
            self.tidy(&mut inner, ino);
        }
        inner.inodes.iter().flat_map(|(&ino, locks)| locks.held(ino, now)).collect()
    }

    /// The lock that keeps `owner` from getting `lock`, or `None` (F_GETLK). If there are many, the one that starts first of those of the owner who has had locks here for the
    /// longest time, as on Linux.
    pub fn getlk(&self, ino: Ino, owner: LockOwner, lock: RecordLock) -> Option<RecordLock> {
        if self.is_empty() || lock.start > lock.end {
            return None;
        }
        let mut inner = self.inner.lock();
        inner.inodes.get(&ino)?;
        inner.settle(ino);
        let locks = inner.inodes.get_mut(&ino)?;
        let first = locks.records.conflicts(owner, lock).next().map(|(_, l)| l);
        self.tidy(&mut inner, ino);
        first
    }

    /// Gives `lock` to `owner`, waiting for it when `wait`, or takes the range `Err((first, last))` from it.
    /// What `owner` holds of the range already is converted; the parts outside of it stay.
    ///
    /// `Invalid` (last byte before the first), `WouldBlock`, `Deadlock`, `TooManyLocks`. A failed call has changed nothing.
    pub async fn setlk(
        &self,
        ino: Ino,
        owner: LockOwner,
        lock: std::result::Result<RecordLock, (u64, u64)>,
        wait: bool,
    ) -> Result<()> {
        let (start, end) = lock.map_or_else(|range| range, |l| (l.start, l.end));
        if start > end {
            return Err(Error::Invalid("range of a lock"));
        }
        match lock {
            Ok(lock) => Acquire { table: self, ino, want: Want::Record(owner, lock), wait, id: None }.await,
            Err(_) => {
                let mut fits = true;
                self.change(ino, |locks, spans| {
                    locks.settle(spans);
                    // What is taken out of the middle leaves two.
                    fits = spans.have_room(owner, 1) || !locks.records.splits(owner, start, end);
                    fits && locks.take_records(owner, start, end, spans)
                });
                if fits { Ok(()) } else { Err(Error::TooManyLocks) }
            }
        }
    }

    /// Gives `handle` a lock on the whole file, waiting for it when `wait`, or takes it away when `kind` is `None`.
    ///
    /// `WouldBlock`. `BadHandle`: the handle was released while the call waited. A lock of the other kind is given up first, so
    /// another may come in between, and a failed call leaves the handle without a lock (flock(2), "converting a lock").
    pub async fn flock(&self, ino: Ino, handle: Handle, kind: Option<LockKind>, wait: bool) -> Result<()> {
        let mut held = false;
        self.change(ino, |locks, _| {
            held = kind.is_some() && locks.whole.kind(handle) == kind;
            !held && locks.take_whole(handle)
        });
        match kind {
            Some(kind) if !held => {
                Acquire { table: self, ino, want: Want::Whole(handle, kind), wait, id: None }.await
            }
            _ => Ok(()),
        }
    }

    /// Takes all record locks on the inode from `owner`: it closed a descriptor of the file.
    pub fn release_owner(&self, ino: Ino, owner: LockOwner) {
        self.change(ino, |locks, spans| {
            locks.settle(spans);
            locks.take_records(owner, 0, u64::MAX, spans)
        });
    }

    /// Takes from `handle`, which is being closed, the lock on the whole file and the record locks that it owns itself. Calls that still wait for one fail with `BadHandle`.
    pub fn release_handle(&self, ino: Ino, handle: Handle) {
        let (mut cancelled, owner) = (Vec::new(), LockOwner::of_handle(handle));
        let own = [LockHolder::Handle(handle), LockHolder::Owner(owner)];
        self.change(ino, |locks, spans| {
            locks.waiters.retain_mut(|w| {
                let stays = !own.contains(&w.want.holder());
                if !stays {
                    cancelled.push(std::mem::replace(&mut w.waker, Waker::noop().clone()));
                }
                stays
            });
            let had_records = locks.take_records(owner, 0, u64::MAX, spans);
            locks.take_whole(handle) || had_records || !cancelled.is_empty()
        });
        cancelled.into_iter().for_each(Waker::wake);
    }

    /// Changes the locks of an inode that has some; when `change` says that something went away, waiters are woken.
    fn change(&self, ino: Ino, change: impl FnOnce(&mut Locks, &mut Spans) -> bool) {
        if self.is_empty() {
            return;
        }
        let mut inner = self.inner.lock();
        let Inner { inodes, spans, .. } = &mut *inner;
        let Some(locks) = inodes.get_mut(&ino) else { return };
        let wakers = if change(locks, spans) { locks.wake() } else { Vec::new() };
        self.tidy(&mut inner, ino);
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Removes the inode from the table when nothing is left of it, and publishes the number of inodes.
    fn tidy(&self, inner: &mut Inner, ino: Ino) {
        if inner.inodes.get(&ino).is_some_and(Locks::is_empty) {
            inner.inodes.remove(&ino);
        }
        self.inodes.store(inner.inodes.len(), Ordering::Release);
    }
}

#[cfg(test)]
#[path = "locks/crowd.rs"]
mod crowd;
#[cfg(test)]
#[path = "locks/model.rs"]
mod model;
