//! Dual-mode journaling: a commit task and a flush task (BarrierFS, figure 7b and sections 4.2 to 4.4).
//!
//! The commit task dispatches JD and JC of a transaction behind barriers and takes the next one; it waits for nothing but conflicts. The
//! flush task waits until the commit block of the oldest transaction is transferred, flushes if somebody asked for durability, and
//! takes all transactions off the list that the flush covered.
//!
//! The paper does not say for which transactions a flush waits. Here it waits for those whose commit blocks are on their way, as long as
//! that takes less than a tenth of what the flush before took: a flush that just misses them makes their callers wait for two.

use super::{COMMIT, FLUSHER, Owner, Role, World};
use crate::timed::clock::Ns;
use crate::timed::stack::Class;
use media::Op;

/// What the commit task does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CommitTask {
    #[default]
    Idle,
    /// Runs, or will.
    Busy,
    /// Waits until the conflict list is empty.
    Conflicts,
}

/// What the flush task does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FlushTask {
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
    commit: CommitTask,
    flush: FlushTask,
    /// When the flush was submitted that is on its way, and how long the one before took.
    flush_since: Ns,
    flush_ns: Ns,
    /// When a transaction was ready to be flushed.
    ready: Option<Ns>,
}

impl World {
    /// Somebody waits for the running transaction, after `delay`.
    pub(super) fn dual_wanted(&mut self, delay: Ns) {
        if self.dual.commit == CommitTask::Idle {
            self.dual.commit = CommitTask::Busy;
            self.stack.wake_after(delay, COMMIT);
        }
    }

    /// The commit task has the processor.
    pub(super) fn dual_commits(&mut self) {
        self.dual.commit = CommitTask::Idle;
        if !self.transactions.wanted() {
            return;
        }
        if !self.transactions.may_commit() {
            self.dual.commit = CommitTask::Conflicts;
            return;
        }
        let (number, pages) = self.transactions.commit();
        self.dual_write(1 + pages, Role::Descriptor(number), Owner::Descriptor);
        self.dual_write(1, Role::Commit(number), Owner::Commit(number));
        self.dual.commit = CommitTask::Busy;
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
        self.wake_waiters(order);
        if self.dual.flush == FlushTask::Idle {
            self.dual.flush = FlushTask::Busy;
            self.stack.wake(FLUSHER);
        }
    }

    /// A commit block has been transferred.
    pub(super) fn dual_transferred(&mut self, number: u64) {
        if let Some(transaction) = self.transactions.find(number) {
            transaction.transferred = true;
        }
        if self.dual.flush == FlushTask::Transfer(number) {
            self.dual.flush = FlushTask::Busy;
            self.stack.wake(FLUSHER);
        }
    }

    /// The flush task's flush is complete.
    pub(super) fn dual_flushed(&mut self) {
        if let FlushTask::Flush(number) = self.dual.flush {
            self.dual.flush = FlushTask::Flushed(number);
            self.dual.flush_ns = self.stack.now() - self.dual.flush_since;
            self.stack.wake(FLUSHER);
        }
    }

    /// The flush task has the processor.
    pub(super) fn dual_flushes(&mut self) {
        if let FlushTask::Flushed(number) = self.dual.flush {
            self.dual_finish(|t| t.number <= number, true);
        }
        // Transferred, in order, and nobody asked for more: done without a flush.
        self.dual_finish(|t| t.transferred && !t.durable, false);
        let now = self.stack.now();
        let committing = &self.transactions.committing;
        let transferred = committing.iter().take_while(|t| t.transferred).last().map(|t| t.number);
        let coming = committing.iter().rfind(|t| t.dispatched && !t.transferred).map(|t| t.number);
        self.dual.flush = match (transferred, coming) {
            (None, None) => FlushTask::Idle,
            (None, Some(_)) => {
                committing.front().map_or(FlushTask::Idle, |oldest| FlushTask::Transfer(oldest.number))
            }
            (Some(_), Some(number))
                if now - *self.dual.ready.get_or_insert(now) < self.dual.flush_ns / 10 =>
            {
                FlushTask::Transfer(number)
            }
            (Some(number), _) => {
                match self.stack.immediate(Op::Flush, 0) {
                    Some(token) => drop(self.owners.insert(token, Owner::Flush)),
                    None => unreachable!("threads leave room in the scheduler"),
                }
                (self.dual.flush_since, self.dual.ready) = (now, None);
                FlushTask::Flush(number)
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
            self.wake_waiters(finished.waiters);
        }
        if self.dual.commit == CommitTask::Conflicts && self.transactions.may_commit() {
            self.dual.commit = CommitTask::Busy;
            self.stack.wake(COMMIT);
        }
    }
}
