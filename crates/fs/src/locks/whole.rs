//! Locks on whole files, and which waiters were woken: asked for each grant and for each waiter, however many there are of both.

use super::{Want, exclusive};
use crate::types::{Handle, LockKind, LockOwner, RecordLock};
use foldhash::fast::RandomState;
use hashbrown::HashSet;

/// The whole-file locks of one inode. Invariant: as long as one is exclusive there are no others.
#[derive(Debug, Default)]
pub(super) struct Whole {
    exclusive: Option<Handle>,
    shared: HashSet<Handle, RandomState>,
}

impl Whole {
    pub fn is_empty(&self) -> bool {
        self.exclusive.is_none() && self.shared.is_empty()
    }

    /// What a handle holds.
    pub fn kind(&self, handle: Handle) -> Option<LockKind> {
        match self.exclusive {
            Some(holder) => (holder == handle).then_some(LockKind::Exclusive),
            None => self.shared.contains(&handle).then_some(LockKind::Shared),
        }
    }

    /// Whether the lock of another handle stands against this one.
    pub fn refuses(&self, handle: Handle, kind: LockKind) -> bool {
        let own = usize::from(self.shared.contains(&handle));
        self.exclusive.is_some_and(|holder| holder != handle)
            || kind == LockKind::Exclusive && self.shared.len() > own
    }

    /// Those whose locks stand against this one.
    pub fn conflicts(&self, handle: Handle, kind: LockKind) -> impl Iterator<Item = Handle> + '_ {
        let shared = self.shared.iter().filter(move |_| kind == LockKind::Exclusive);
        self.exclusive.iter().chain(shared).copied().filter(move |holder| *holder != handle)
    }

    /// Gives a lock that is not refused, in place of what the handle has.
    pub fn insert(&mut self, handle: Handle, kind: LockKind) {
        self.remove(handle);
        match kind {
            LockKind::Exclusive => self.exclusive = Some(handle),
            LockKind::Shared => {
                self.shared.insert(handle);
            }
        }
    }

    /// Tells whether there was one.
    pub fn remove(&mut self, handle: Handle) -> bool {
        self.exclusive.take_if(|holder| *holder == handle).is_some() || self.shared.remove(&handle)
    }
}

/// Some handles, as far as it takes to know whether there is one besides a given one.
#[derive(Debug, Default)]
struct Several {
    one: Option<Handle>,
    more: bool,
}

impl Several {
    fn add(&mut self, handle: Handle) {
        self.more |= *self.one.get_or_insert(handle) != handle;
    }

    fn has_besides(&self, handle: Handle) -> bool {
        self.more || self.one.is_some_and(|one| one != handle)
    }
}

/// What woken waiters ask for.
#[derive(Debug, Default)]
pub(super) struct Woken {
    records: Vec<(LockOwner, RecordLock)>,
    whole: Several,
    exclusive: Several,
}

impl Woken {
    pub fn add(&mut self, want: Want) {
        match want {
            Want::Record(owner, lock) => self.records.push((owner, lock)),
            Want::Whole(handle, kind) => {
                self.whole.add(handle);
                if kind == LockKind::Exclusive {
                    self.exclusive.add(handle);
                }
            }
        }
    }

    /// Whether one of them cannot hold its lock beside this one.
    pub fn excludes(&self, want: &Want) -> bool {
        match *want {
            Want::Record(owner, lock) => self.records.iter().any(|&(other, woken)| {
                other != owner
                    && woken.start <= lock.end
                    && lock.start <= woken.end
                    && exclusive(woken.kind, lock.kind)
            }),
            Want::Whole(handle, LockKind::Exclusive) => self.whole.has_besides(handle),
            Want::Whole(handle, LockKind::Shared) => self.exclusive.has_besides(handle),
        }
    }
}
