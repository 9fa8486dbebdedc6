//! Dual-mode journaling: a commit task and a flush task (BarrierFS, figure 7b and sections 4.2 to 4.4).
//!
//! The commit task dispatches JD and JC of a transaction behind barriers and takes the next one; it waits for nothing but conflicts. The
//! flush task waits until the commit block of the oldest transaction is transferred, flushes if somebody asked for durability, and
//! takes all transactions off the list that the flush covered.

use super::{COMMIT, FLUSHER, Owner, Role, World};
use crate::timed::clock::Ns;
use crate::timed::stack::Class;
use media::Op;

/// What the commit task does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Commit {
    #[default]
    Idle,
    /// Runs, or will.
    Busy,
    /// Waits until the conflict list is empty.
    Conflicts,
}

/// What the flush task does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Flush {
    #[default]
    Idle,
    /// Runs, or will.
    Busy,
    /// Waits for the transfer of this transaction's commit block.
    Transfer(u64),
    /// Waits for a flush that covers everything up to this transaction.
    Flush(u64),
    /// That flush is complete.
    Flushed(u64),
}

/// The tasks.
#[derive(Default)]
pub(super) struct Tasks {
    commit: Commit,
    flush: Flush,
}

impl World {
    /// Somebody waits for the running transaction, after `delay`.
    pub(super) fn dual_wanted(&mut self, delay: Ns) {
        if self.dual.commit == Commit::Idle {
            self.dual.commit = Commit::Busy;
            self.stack.wake_after(delay, COMMIT);
        }
    }

    /// The commit task has the processor.
    pub(super) fn dual_commits(&mut self) {
        self.dual.commit = Commit::Idle;
        if !self.transactions.wanted() {
            return;
        }
        if !self.transactions.may_commit() {
            self.dual.commit = Commit::Conflicts;
            return;
        }
        let (number, pages) = self.transactions.commit();
        self.dual_write(1 + pages, Role::Descriptor(number), Owner::Descriptor);
        self.dual_write(1, Role::Commit(number), Owner::Commit(number));
        self.dual.commit = Commit::Busy;
        self.stack.timer(2 * self.stack.host().submit_ns, COMMIT);
    }

    fn dual_write(&mut self, units: u64, role: Role, owner: Owner) {
        let block = self.journal_block(units);
        self.note(units, role);
        match self.stack.write(Class::Ordered, block, units) {
            Some(token) => drop(self.owners.insert(token, owner)),
            None => unreachable!("threads leave room in the scheduler"),
        }
        self.stack.barrier();
    }

    /// A commit block has been handed to the device: who asked for order only goes on.
    pub(super) fn dual_dispatched(&mut self, number: u64) {
        let Some(transaction) = self.transactions.find(number) else { return };
        transaction.dispatched = true;
        let waiters = std::mem::take(&mut transaction.waiters);
        let (durable, order): (Vec<_>, Vec<_>) = waiters.into_iter().partition(|(_, durable)| *durable);
        transaction.waiters = durable;
        for (thread, _) in order {
            self.wake_waiter(thread);
        }
        if self.dual.flush == Flush::Idle {
            self.dual.flush = Flush::Busy;
            self.stack.wake(FLUSHER);
        }
    }

    /// A commit block has been transferred.
    pub(super) fn dual_transferred(&mut self, number: u64) {
        if let Some(transaction) = self.transactions.find(number) {
            transaction.transferred = true;
        }
        if self.dual.flush == Flush::Transfer(number) {
            self.dual.flush = Flush::Busy;
            self.stack.wake(FLUSHER);
        }
    }

    /// The flush task's flush is complete.
    pub(super) fn dual_flushed(&mut self) {
        if let Flush::Flush(number) = self.dual.flush {
            self.dual.flush = Flush::Flushed(number);
            self.stack.wake(FLUSHER);
        }
    }

    /// The flush task has the processor.
    pub(super) fn dual_flushes(&mut self) {
        if let Flush::Flushed(number) = self.dual.flush {
            self.dual_finish(|t| t.number <= number, true);
        }
        // Transferred, in order, and nobody asked for more: done without a flush.
        self.dual_finish(|t| t.transferred && !t.durable, false);
        let transferred = self.transactions.committing.iter().take_while(|t| t.transferred).last().map(|t| t.number);
        let oldest = self.transactions.committing.front().filter(|t| t.dispatched);
        self.dual.flush = match (oldest, transferred) {
            (None, _) => Flush::Idle,
            (Some(oldest), None) => Flush::Transfer(oldest.number),
            (Some(_), Some(number)) => {
                match self.stack.immediate(Op::Flush, 0) {
                    Some(token) => drop(self.owners.insert(token, Owner::Flush)),
                    None => unreachable!("threads leave room in the scheduler"),
                }
                Flush::Flush(number)
            }
        };
    }

    /// Takes the oldest transactions off the list, as long as `done` says so.
    fn dual_finish(&mut self, done: impl Fn(&super::Transaction) -> bool, durable: bool) {
        while self.transactions.committing.front().is_some_and(&done) {
            let Some(finished) = self.transactions.finish_oldest() else { return };
            self.commits += 1;
            if durable {
                self.promised.push(finished.number);
            }
            for (thread, _) in finished.waiters {
                self.wake_waiter(thread);
            }
        }
        if self.dual.commit == Commit::Conflicts && self.transactions.may_commit() {
            self.dual.commit = Commit::Busy;
            self.stack.wake(COMMIT);
        }
    }
}
