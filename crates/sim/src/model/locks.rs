//! Record locks and whole-file locks of the model: two plain lists and the list of those who wait.
//!
//! Invariants: two locks in a list never conflict; the record locks of one owner on one inode do not overlap. A waiter is
//! in the list only while its call waits (a dropped call leaves it), so the search for deadlocks sees nobody else.

use fs::{Error, Handle, Ino, LockKind, LockOwner, RecordLock, Result};
use std::collections::BTreeMap;
use std::task::Waker;

/// Who asks for a lock, or holds one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A record lock: locks of the same owner do not conflict.
    Owner(LockOwner),
    /// A lock on the whole file by an open file. Never conflicts with record locks.
    Handle(Handle),
}

#[derive(Clone, Copy)]
pub struct Held {
    pub ino: Ino,
    pub who: Who,
    pub lock: RecordLock,
}

impl Held {
    fn conflicts(&self, other: &Held) -> bool {
        let same_world = matches!(
            (self.who, other.who),
            (Who::Owner(_), Who::Owner(_)) | (Who::Handle(_), Who::Handle(_))
        );
        same_world
            && self.ino == other.ino
            && self.who != other.who
            && self.lock.start <= other.lock.end
            && other.lock.start <= self.lock.end
            && (self.lock.kind == LockKind::Exclusive || other.lock.kind == LockKind::Exclusive)
    }
}

#[derive(Default)]
pub struct Locks {
    held: Vec<Held>,
    waiting: BTreeMap<u64, (Held, Waker)>,
    tickets: u64,
}

impl Locks {
    /// A lock that stands in the way.
    pub fn conflict(&self, asked: &Held) -> Option<Held> {
        self.held.iter().find(|h| h.conflicts(asked)).copied()
    }

    /// Takes the lock, replacing what the same owner held in its range.
    pub fn take(&mut self, asked: Held) -> Result<()> {
        if self.conflict(&asked).is_some() {
            return Err(Error::WouldBlock);
        }
        self.release(asked.ino, asked.who, asked.lock.start, asked.lock.end);
        self.held.push(asked);
        Ok(())
    }

    /// Whether there is just this lock.
    pub fn holds(&self, asked: &Held) -> bool {
        self.held.iter().any(|h| h.ino == asked.ino && h.who == asked.who && h.lock == asked.lock)
    }

    /// Gives a range back; locks that reach over its borders are cut.
    pub fn release(&mut self, ino: Ino, who: Who, start: u64, end: u64) {
        let mut rest = Vec::new();
        self.held.retain(|h| {
            let hit = h.ino == ino && h.who == who && h.lock.start <= end && start <= h.lock.end;
            if hit && h.lock.start < start {
                rest.push(Held { lock: RecordLock { end: start - 1, ..h.lock }, ..*h });
            }
            if hit && h.lock.end > end {
                rest.push(Held { lock: RecordLock { start: end + 1, ..h.lock }, ..*h });
            }
            !hit
        });
        self.held.append(&mut rest);
        self.wake();
    }

    /// Forgets all locks of an inode that nobody has open any more.
    pub fn forget(&mut self, ino: Ino) {
        self.held.retain(|h| h.ino != ino);
        self.wake();
    }

    fn wake(&mut self) {
        self.waiting.values().for_each(|(_, waker)| waker.wake_by_ref());
    }

    /// Enters a waiter, or renews its waker. `Deadlock` when those it waits for wait for it.
    pub fn wait(&mut self, ticket: &mut Option<u64>, asked: Held, waker: &Waker) -> Result<()> {
        if matches!(asked.who, Who::Owner(_)) && self.reaches(&asked, asked.who, &mut Vec::new()) {
            return Err(Error::Deadlock);
        }
        let ticket = *ticket.get_or_insert_with(|| {
            self.tickets += 1;
            self.tickets
        });
        self.waiting.insert(ticket, (asked, waker.clone()));
        Ok(())
    }

    /// A call no longer waits.
    pub fn leave(&mut self, ticket: Option<u64>) {
        if let Some(ticket) = ticket {
            self.waiting.remove(&ticket);
        }
    }

    /// Whether a chain of "waits for a lock held by" leads from this wish to `goal`.
    fn reaches(&self, asked: &Held, goal: Who, seen: &mut Vec<Who>) -> bool {
        self.held.iter().filter(|h| h.conflicts(asked)).any(|h| {
            if h.who == goal {
                return true;
            }
            if seen.contains(&h.who) {
                return false;
            }
            seen.push(h.who);
            let wishes: Vec<Held> =
                self.waiting.values().map(|(w, _)| *w).filter(|w| w.who == h.who).collect();
            wishes.iter().any(|w| self.held_by(w, goal) || self.reaches(w, goal, seen))
        })
    }

    fn held_by(&self, wish: &Held, who: Who) -> bool {
        self.held.iter().any(|h| h.who == who && h.conflicts(wish))
    }
}
