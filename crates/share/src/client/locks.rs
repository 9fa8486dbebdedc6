//! Record locks without a message, under lock leases (see `format::shared::locks` and the manager's side, `server::locks`).
//!
//! A lease is asked for when several calls about the locks of one file were messages. The locks of all owners of this client are then kept here, the manager's
//! first, and said in the session's memory. What cannot be done here is a message, which ends the lease: waiting for a lock, and more locks than there is room for. Leases that
//! were of little use, and refusals, make asking rarer.

use super::asking::{found, lock_request, test_request};
use super::{Remote, Session};
use crate::lock::Mutex;
use crate::locked::Locked;
use crate::wire::{self, Op, request};
use foldhash::fast::FixedState;
use format::shared::{LEASED_LOCKS, LOCK_LEASES};
use fs::locks::ranges::Ranges;
use fs::{Error, FileType, Handle, Ino, LockKind, LockOwner, OpenFlags, RecordLock, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Calls about locks of one file before a lease is asked for, and the most that it can become.
const NEED: u32 = 8;
const NEED_MAX: u32 = 1 << 12;
/// Calls under a lease that make up for asking for it.
const WORTH: u32 = 64;
/// Files of which calls are counted; with more, counting begins anew.
const FILES: usize = 64;
/// Locks that one call can add: what it takes, and the end of one of the other kind that it cuts in two.
const ADDED: usize = 2;

/// A lock lease.
#[derive(Debug, Default)]
struct Held {
    /// 0: nothing.
    number: u64,
    ino: u64,
    ranges: Ranges,
    uses: u32,
}

/// Calls about the locks of one file that were messages.
#[derive(Debug)]
struct Count {
    calls: u32,
    need: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LockLeases {
    /// What there is a lease for in each place, or 0. Changed with the lock of the place held.
    inos: [AtomicU64; LOCK_LEASES],
    held: [Mutex<Held>; LOCK_LEASES],
    counts: Mutex<HashMap<u64, Count, FixedState>>,
    /// One is being asked for.
    asking: AtomicBool,
}

/// A lease is being asked for.
struct Asking<'a>(&'a LockLeases);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.asking.store(false, Ordering::Release);
    }
}

impl LockLeases {
    /// Does something with the locks of a file, if there is a lease: `call` says what comes of it and whether it changed what is held, or `None`
    /// that it cannot be done here.
    fn with<T>(
        &self,
        session: &Session,
        ino: Ino,
        call: impl FnOnce(&mut Ranges) -> Option<(T, bool)>,
    ) -> Option<T> {
        let place = self.inos.iter().position(|known| known.load(Ordering::Relaxed) == ino.0)?;
        let mut held = self.held[place].lock();
        if held.number == 0 || held.ino != ino.0 || held.ranges.all().count() + ADDED > LEASED_LOCKS {
            return None;
        }
        let view = Locked::new(session.region.memory(), place);
        let (result, changed) = call(&mut held.ranges)?;
        if changed {
            let said = view.publish(&held.ranges);
            debug_assert!(said, "there was room");
        }
        // The manager takes the lease back first and then looks for what is held.
        fence(Ordering::SeqCst);
        if view.grant().load(Ordering::SeqCst) != held.number || session.is_dead() {
            self.gone(place, &mut held);
            return None;
        }
        held.uses = held.uses.saturating_add(1);
        Some(result)
    }

    /// The manager has taken a lease back.
    fn gone(&self, place: usize, held: &mut Held) {
        self.inos[place].store(0, Ordering::Relaxed);
        let was = std::mem::take(held);
        if let Some(count) = self.counts.lock().get_mut(&was.ino) {
            count.weigh(was.uses);
        }
    }

    /// A call about the locks of a file was a message. Whether a lease is to be asked for, and in which place.
    fn wants(&self, session: &Session, ino: Ino) -> Option<(Asking<'_>, usize)> {
        {
            let mut counts = self.counts.lock();
            if counts.len() >= FILES && !counts.contains_key(&ino.0) {
                counts.clear();
            }
            let count = counts.entry(ino.0).or_insert(Count { calls: 0, need: NEED });
            count.calls = count.calls.saturating_add(1);
            if count.calls < count.need {
                return None;
            }
            count.calls = 0;
        }
        if self.asking.swap(true, Ordering::Acquire) {
            return None;
        }
        let asking = Asking(self);
        for (place, held) in self.held.iter().enumerate() {
            let mut held = held.lock();
            let grant = Locked::new(session.region.memory(), place).grant().load(Ordering::SeqCst);
            if held.number != 0 && grant != held.number {
                self.gone(place, &mut held);
            }
        }
        let of = |place: usize| self.inos[place].load(Ordering::Relaxed);
        let is_there = (0..LOCK_LEASES).any(|place| of(place) == ino.0);
        let free = (0..LOCK_LEASES).find(|&place| of(place) == 0).filter(|_| !is_there)?;
        Some((asking, free))
    }

    fn granted(&self, session: &Session, place: usize, ino: Ino, number: u64) {
        let mut held = self.held[place].lock();
        let mut ranges = Ranges::default();
        let before = Locked::new(session.region.memory(), place).read().into_iter();
        before.for_each(|(owner, lock)| ranges.insert(owner, lock));
        *held = Held { number, ino: ino.0, ranges, uses: 0 };
        self.inos[place].store(ino.0, Ordering::Relaxed);
    }
}

impl Count {
    /// A lease was used so often: 0 also when it was refused.
    fn weigh(&mut self, uses: u32) {
        self.need = match uses {
            0..WORTH => (self.need * 2).min(NEED_MAX),
            _ => (self.need / 2).max(NEED),
        };
    }
}

impl Remote {
    /// Takes a record lock, or with `Err` gives a range up, without a message, if that can be done.
    pub(super) fn lock_here(
        &self,
        handle: Handle,
        owner: LockOwner,
        lock: std::result::Result<RecordLock, (u64, u64)>,
        wait: bool,
    ) -> Option<Result<()>> {
        let session = self.now();
        let file = self.file(handle)?;
        let (start, end) = lock.map_or_else(|range| range, |lock| (lock.start, lock.end));
        let need = match lock.map(|lock| lock.kind) {
            Ok(LockKind::Shared) => OpenFlags::READ,
            Ok(LockKind::Exclusive) => OpenFlags::WRITE,
            Err(_) => OpenFlags::empty(),
        };
        if start > end || !file.flags.contains(need) {
            return None;
        }
        let (raw, owner) = (owner, wire::owner(owner));
        let done = session.locks.with(session, file.ino, |held| match lock {
            Ok(lock) if held.conflicts(owner, lock).next().is_some() => {
                (!wait).then_some((Err(Error::WouldBlock), false))
            }
            Ok(lock) => {
                held.insert(owner, lock);
                Some((Ok(()), true))
            }
            Err((start, end)) => Some((Ok(()), held.remove(owner, start, end))),
        })?;
        if done.is_ok() {
            self.link.locked(handle, raw, lock);
        }
        // The next session knows of what was noted by then.
        (self.now().serial == session.serial).then_some(done)
    }

    /// What keeps an owner from getting a lock, without a message, if that can be told.
    pub(super) fn test_here(
        &self,
        handle: Handle,
        owner: LockOwner,
        lock: RecordLock,
    ) -> Option<Option<RecordLock>> {
        let session = self.now();
        let (file, owner) = (self.file(handle).filter(|_| lock.start <= lock.end)?, wire::owner(owner));
        session.locks.with(session, file.ino, |held| {
            let first = held.conflicts(owner, lock).min_by_key(|(owner, lock)| (lock.start, *owner));
            Some((first.map(|(_, lock)| lock), false))
        })
    }

    /// A call about locks through this handle was a message in the session with this serial: asks for a lease, if more of them are to be expected.
    pub(super) async fn locked_there(&self, handle: Handle, serial: u64) {
        let session = self.now();
        let Some(file) = self.file(handle).filter(|_| session.serial == serial) else { return };
        if file.kind != FileType::Regular || !file.flags.contains(OpenFlags::READ | OpenFlags::WRITE) {
            return;
        }
        let Some((_asking, place)) = session.locks.wants(session, file.ino) else { return };
        let mut r = request(Op::LendLocks, handle.0);
        r.mode = (place as u32).into();
        match self.call(r).await {
            Ok(answer) if answer.session() == serial && answer.value != 0 => {
                session.locks.granted(session, place, file.ino, answer.value);
            }
            _ => {
                if let Some(count) = session.locks.counts.lock().get_mut(&file.ino.0) {
                    count.weigh(0);
                }
            }
        }
    }

    /// A handle is to be closed of a file on which there are record locks. They go with the last handle that the manager knows: those that are open without a
    /// message, and may have come by the locks of this one, are opened there first.
    pub(super) async fn others_keep_locks(&self, ino: Ino) {
        for handle in self.link.files_of(ino) {
            self.link.change(handle, |file| file.locks = true);
            // If it cannot be, calls through it find out.
            let _ = self.open_there(self.now(), handle).await;
        }
    }

    /// The program that this process runs is about to make room for another one (exec). The record locks on the file `stay`, and are the next one's, in whichever session
    /// it begins: those of the owners that have the same numbers there; or they end.
    ///
    /// # Errors
    /// `TooManyLocks`: those of so many files cannot stay.
    pub async fn keep_locks(&self, handle: Handle, stay: bool) -> Result<()> {
        let mut r = request(Op::KeepLocks, handle.0);
        r.flags = (stay as u32).into();
        self.call(r).await.map(drop)
    }

    /// The program before this one has left record locks on the file ([`Remote::keep_locks`]), which ones is not known here: should they be lost with the manager, the
    /// file is lost to this program, as with locks of its own.
    pub fn inherits_locks(&self, handle: Handle, owner: LockOwner) {
        self.link.change(handle, |file| file.locks = true);
        let whole = RecordLock { start: 0, end: u64::MAX, kind: LockKind::Exclusive, pid: 0 };
        self.link.locked(handle, owner, Ok(whole));
    }

    /// As `FileSystem::getlk`.
    pub(super) async fn test_record(
        &self,
        handle: Handle,
        owner: LockOwner,
        lock: RecordLock,
    ) -> Result<Option<RecordLock>> {
        if let Some(found) = self.test_here(handle, owner, lock) {
            return Ok(found);
        }
        found(&self.call(test_request(handle, owner, lock)).await?)
    }

    /// As `FileSystem::setlk`.
    pub(super) async fn set_record(
        &self,
        handle: Handle,
        owner: LockOwner,
        lock: std::result::Result<RecordLock, (u64, u64)>,
        wait: bool,
    ) -> Result<()> {
        let marked = self.link.look(handle, |file| (file.locks, file.held));
        if marked.is_some_and(|(locks, _)| !locks) {
            self.link.change(handle, |file| file.locks = true);
        }
        if marked.is_some_and(|(_, held)| held) {
            // With the last handle that the manager knows go the locks.
            self.there(self.now(), handle).await?;
        }
        if let Some(done) = self.lock_here(handle, owner, lock, wait) {
            return done;
        }
        loop {
            let turn = self.turn(wait);
            let done = self.call(lock_request(handle, owner, lock, turn.waits())).await;
            if turn.asks_again(&done).await? {
                continue;
            }
            let answer = done?;
            drop(turn);
            let serial = answer.session();
            drop(answer);
            self.link.locked(handle, owner, lock);
            // A session that has begun meanwhile may not have known of this one, and has not given the file up: it is asked for the lock.
            if serial == self.now().serial {
                self.locked_there(handle, serial).await;
                return Ok(());
            }
        }
    }
}
