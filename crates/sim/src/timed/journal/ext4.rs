//! The journal's thread of ext4: one transaction at a time, each step waits for the one before (BarrierFS, figure 7a).

use super::{COMMIT, Owner, Role, World};
use crate::timed::stack::Class;
use media::Op;

/// What the thread waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    /// The next transaction.
    #[default]
    Idle,
    /// The transfer of JD.
    Descriptor,
    /// The flush ahead of JC. The block layer submits JC from its interrupt.
    FlushBefore,
    /// The transfer of JC.
    Commit,
    /// The flush behind JC.
    FlushBehind,
}

/// The thread.
#[derive(Default)]
pub(super) struct Committer {
    step: Step,
    /// It runs, or will.
    pub busy: bool,
    /// The number of the transaction that commits.
    number: u64,
    /// Threads that wait for pages.
    pub blocked: Vec<usize>,
}

impl World {
    /// The thread has the processor.
    pub(super) fn ext4_commits(&mut self, flush: bool) {
        match self.ext4.step {
            Step::Idle => {}
            Step::Descriptor if flush => return self.ext4_flush(Step::FlushBefore),
            Step::Descriptor => return self.ext4_commit_block(),
            Step::FlushBefore | Step::Commit | Step::FlushBehind => self.ext4_committed(flush),
        }
        self.ext4.step = Step::Idle;
        self.ext4.busy = self.transactions.wanted();
        if self.ext4.busy {
            let (number, pages) = self.transactions.commit();
            self.ext4.number = number;
            self.ext4_write(1 + pages, Role::Descriptor(number), Owner::Descriptor);
            self.ext4.step = Step::Descriptor;
        }
    }

    fn ext4_write(&mut self, units: u64, role: Role, owner: Owner) {
        let block = self.journal_block(units);
        self.note(units, role);
        match self.stack.write(Class::Orderless, block, units) {
            Some(token) => drop(self.owners.insert(token, owner)),
            None => unreachable!("threads leave room in the scheduler"),
        }
    }

    fn ext4_flush(&mut self, step: Step) {
        self.ext4.step = step;
        match self.stack.immediate(Op::Flush, 0) {
            Some(token) => drop(self.owners.insert(token, Owner::Flush)),
            None => unreachable!("threads leave room in the scheduler"),
        }
    }

    fn ext4_commit_block(&mut self) {
        self.ext4.step = Step::Commit;
        let number = self.ext4.number;
        self.ext4_write(1, Role::Commit(number), Owner::Commit(number));
    }

    /// A request of the journal is complete.
    pub(super) fn ext4_done(&mut self, flush: bool) {
        match self.ext4.step {
            Step::FlushBefore => self.ext4_commit_block(),
            Step::Commit if flush => self.ext4_flush(Step::FlushBehind),
            Step::Descriptor | Step::Commit | Step::FlushBehind => self.stack.wake(COMMIT),
            Step::Idle => {}
        }
    }

    fn ext4_committed(&mut self, flush: bool) {
        let Some(finished) = self.transactions.finish_oldest() else { return };
        self.commits += 1;
        if flush {
            self.promised.push(finished.number);
        }
        self.wake_waiters(finished.waiters);
        let blocked = std::mem::take(&mut self.ext4.blocked);
        self.wake_threads(blocked);
    }
}
