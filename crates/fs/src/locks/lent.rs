//! Record locks that somebody else keeps, and how they come back.

use super::ranges::Ranges;
use super::spans::Spans;
use super::{Inner, LockTable, Locks, Waiter, Want};
use crate::types::{LockHolder, LockOwner, RecordLock};
use format::Ino;
use std::sync::Arc;

/// Keeps the record locks of an inode in place of the table.
///
/// Both methods are called with the table's mutex held, so they come back to the table for nothing, and wait for nobody.
pub trait Keeper: std::fmt::Debug + Send + Sync {
    /// One of those whose locks it keeps.
    fn of(&self) -> LockOwner;

    /// Begins with the locks that are held now. False: it cannot keep these, and keeps none.
    fn keep(&self, held: &Ranges) -> bool;

    /// From now on nothing is kept: what is held. What stands against each other in there is left out by the table.
    fn take_back(&self) -> Vec<(LockOwner, RecordLock)>;
}

impl Locks {
    /// What somebody else keeps is here again.
    pub(super) fn settle(&mut self, spans: &mut Spans) {
        let Some(keeper) = self.lent.take() else { return };
        for (owner, lock) in keeper.take_back() {
            let want = Want::Record(owner, lock);
            if lock.start <= lock.end && !self.refuses(&want) {
                self.grant(want, spans);
            }
        }
    }
}

impl LockTable {
    /// Has `keeper` keep the record locks of an inode, until a call looks at them. False, and nothing is lent, while somebody waits for one or somebody else keeps them,
    /// when it cannot keep those that are held, and when those for whom it keeps them have too many already.
    pub fn lend(&self, ino: Ino, keeper: Arc<dyn Keeper>) -> bool {
        let mut inner = self.inner.lock();
        let Inner { inodes, spans, .. } = &mut *inner;
        let locks = inodes.entry(ino).or_default();
        let waits = |w: &Waiter| matches!(w.want, Want::Record(..));
        let is_free = locks.lent.is_none() && !locks.waiters.iter().any(waits);
        let is_lent = is_free && spans.have_room(keeper.of(), 1) && keeper.keep(&locks.records);
        if is_lent {
            spans.forget(&mut locks.records);
            locks.since.retain(|holder, _| matches!(holder, LockHolder::Handle(_)));
            locks.lent = Some(keeper);
        }
        self.tidy(&mut inner, ino);
        is_lent
    }

    /// Takes back what somebody keeps of the record locks of an inode.
    pub fn recall(&self, ino: Ino) {
        self.change(ino, |locks, spans| {
            locks.settle(spans);
            false
        });
    }
}
