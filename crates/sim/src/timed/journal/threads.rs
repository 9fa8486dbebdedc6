//! The threads of programs: write a block, synchronize, again.

use super::transactions::Page;
use super::{COMMIT, Conflict, Owner, Role, System, World};
use crate::timed::clock::Ns;
use crate::timed::stack::Class;
use media::Op;

/// What a thread does when it runs next, or is in the middle of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    /// write(2), then the call.
    #[default]
    Write,
    /// Dispatches its data.
    Data,
    /// Waits for the transfer of its data.
    Transfer,
    /// Its data is transferred, the thread runs.
    Transferred,
    /// Waits for a page that a committing transaction holds.
    Page,
    /// Waits for its transaction.
    Commit,
    /// Waits for a flush of its own.
    Flush,
    /// Runs, and returns from the call.
    Return,
    /// Waits until the scheduler has room.
    Room,
}

/// A thread.
#[derive(Default)]
pub(super) struct Thread {
    step: Step,
    /// When the call began.
    since: Ns,
    /// The tick in which the file's times changed last, from 1.
    tick: u64,
    /// The call found changed metadata.
    dirty: bool,
    /// Where `written` has its data.
    data: usize,
    /// Next block of its file.
    block: u64,
}

/// Blocks of a file.
const FILE: u64 = 1 << 24;

impl World {
    pub(super) fn thread_runs(&mut self, thread: usize) {
        match self.threads[thread].step {
            Step::Write | Step::Room => self.write(thread),
            Step::Data => self.data(thread),
            Step::Transferred => self.transferred(thread),
            Step::Page => self.join_and_commit(thread),
            Step::Return => self.returns(thread),
            Step::Transfer | Step::Commit | Step::Flush => unreachable!("a thread that waits does not run"),
        }
    }

    fn write(&mut self, thread: usize) {
        let (host, now) = (self.stack.host(), self.stack.now());
        // The journal's tasks need room too.
        if self.stack.queued() >= host.queued_max * 3 / 4 {
            self.threads[thread].step = Step::Room;
            return;
        }
        let (tick, submit) = (1 + now / host.tick_ns, host.submit_ns);
        let t = &mut self.threads[thread];
        t.since = now;
        t.dirty = self.load.allocating || t.tick != tick;
        t.tick = tick;
        t.step = Step::Data;
        self.stack.timer(submit, thread as u64);
    }

    /// Metadata pages that a call of this thread changes: the page of its inode, and a bitmap.
    fn pages(&self, thread: usize) -> Vec<Page> {
        let own = if self.load.shared_pages { 0 } else { 2 * thread as Page };
        let mut pages = vec![own];
        if self.load.allocating {
            pages.push(own + 1);
        }
        pages
    }

    fn data(&mut self, thread: usize) {
        let System::Dual { durable, conflict } = self.system else {
            self.submit_data(thread, Class::Orderless, Role::Plain);
            self.threads[thread].step = Step::Transfer;
            return;
        };
        if self.threads[thread].dirty {
            let pages = self.pages(thread);
            let copies = self.transactions.join(&pages).unwrap_or(0);
            let number = self.transactions.running.number;
            self.submit_data(thread, Class::Ordered, Role::Data(number));
            self.transactions.running.waiters.push((thread, durable));
            self.threads[thread].step = Step::Commit;
            let copying = if conflict == Conflict::Copy { copies * self.stack.host().copy_ns } else { 0 };
            return self.dual_wanted(copying);
        }
        self.submit_data(thread, Class::Ordered, Role::Plain);
        self.stack.barrier();
        match durable {
            true => self.threads[thread].step = Step::Transfer,
            false => self.returns(thread),
        }
    }

    fn submit_data(&mut self, thread: usize, class: Class, role: Role) {
        self.threads[thread].data = self.written.len();
        self.note(1, role);
        loop {
            let block = match self.load.allocating {
                true => self.threads[thread].block % FILE,
                false => 2 * self.random.below(FILE / 2),
            };
            self.threads[thread].block += 2;
            if let Some(token) = self.stack.write(class, thread as u64 * FILE + block, 1) {
                self.owners.insert(token, Owner::Thread(thread));
                return;
            }
        }
    }

    /// A transfer or flush of this thread is complete.
    pub(super) fn transfer_done(&mut self, thread: usize) {
        let t = &mut self.threads[thread];
        match t.step {
            Step::Transfer => t.step = Step::Transferred,
            Step::Flush => t.step = Step::Return,
            _ => return,
        }
        self.wake_threads([thread]);
    }

    fn transferred(&mut self, thread: usize) {
        if self.threads[thread].dirty && matches!(self.system, System::Ext4 { .. }) {
            return self.join_and_commit(thread);
        }
        if self.system == System::EXT4_OD {
            return self.returns(thread);
        }
        self.threads[thread].step = Step::Flush;
        match self.stack.immediate(Op::Flush, 0) {
            Some(token) => drop(self.owners.insert(token, Owner::Thread(thread))),
            None => unreachable!("threads leave room in the scheduler"),
        }
    }

    /// ext4: metadata joins behind its data, which is what the ordered mode's waiting amounts to.
    fn join_and_commit(&mut self, thread: usize) {
        let pages = self.pages(thread);
        if self.transactions.join(&pages).is_none() {
            self.threads[thread].step = Step::Page;
            self.ext4.blocked.push(thread);
            return;
        }
        let running = &mut self.transactions.running;
        let index = self.threads[thread].data;
        self.written[index].role = Role::Data(running.number);
        running.waiters.push((thread, true));
        self.threads[thread].step = Step::Commit;
        if !std::mem::replace(&mut self.ext4.busy, true) {
            self.stack.wake(COMMIT);
        }
    }

    /// The transaction that these threads wait for is committed, or for order only, dispatched.
    pub(super) fn wake_waiters(&mut self, waiters: Vec<(usize, bool)>) {
        for &(thread, _) in &waiters {
            self.threads[thread].step = Step::Return;
        }
        self.wake_threads(waiters.into_iter().map(|(thread, _)| thread));
    }

    /// Wakes threads, one after the other.
    pub(super) fn wake_threads(&mut self, threads: impl IntoIterator<Item = usize>) {
        for (i, thread) in threads.into_iter().enumerate() {
            self.switches += 1;
            self.stack.wake_after(i as Ns * self.stack.host().signal_ns, thread as u64);
        }
    }

    fn returns(&mut self, thread: usize) {
        let now = self.stack.now();
        self.done += 1;
        if self.done > self.load.warm_up {
            self.latencies.push(now - self.threads[thread].since);
        } else {
            self.warm = (now, self.done);
        }
        self.threads[thread].step = Step::Write;
        self.stack.timer(self.stack.host().write_ns, thread as u64);
    }

    /// A request left the scheduler: threads that wait for room go on.
    pub(super) fn room_came(&mut self) {
        if self.stack.queued() > self.stack.host().queued_max / 2 {
            return;
        }
        let sleeping: Vec<usize> =
            (0..self.threads.len()).filter(|&t| self.threads[t].step == Step::Room).collect();
        for &thread in &sleeping {
            self.threads[thread].step = Step::Write;
        }
        self.wake_threads(sleeping);
    }
}
