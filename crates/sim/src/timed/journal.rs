//! A journaling file system over the stack: threads that write and synchronize, each its own file (BarrierFS, section 4 and 6.3).
//!
//! A transaction is written as JD (descriptor and pages, one request) and JC (the commit block); the data D of the files that it
//! describes must persist before it. Two systems do that:
//! - [`System::Ext4`] (`ext4`): the thread waits for D; the journal's thread waits for JD, flushes, writes JC, flushes, one
//!   transaction at a time. The flush behind JC stands for FUA, which ATA hosts do not use. Without `flush` it is mounted with
//!   nobarrier: no flushes, neither order nor durability after a power failure.
//! - [`System::Dual`] (`dual`): D, JD and JC are dispatched one after the other, with barriers behind JD and JC; a commit task does
//!   that for many transactions, a flush task makes them durable and wakes who waits.
//!
//! A call that finds no changed metadata (times change once a tick) synchronizes the data alone, as fdatasync does.
//! What is written is recorded by role ([`Written`]), so that a power failure can be judged (module `power`).

mod dual;
mod ext4;
mod threads;
mod transactions;

pub use transactions::{Conflict, Page, Transaction, Transactions};

use super::clock::{Ns, Random, SECOND};
use super::profile::{Host, Profile};
use super::stack::{Happened, Stack};
use std::collections::HashMap;
use std::ops::Range;
use threads::Thread;

/// How transactions are committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum System {
    /// One at a time, with waiting for transfers, and flushes unless mounted with nobarrier.
    Ext4 {
        /// Whether there are flushes.
        flush: bool,
    },
    /// Dual-mode journaling.
    Dual {
        /// What becomes of page conflicts. Not [`Conflict::Wait`].
        conflict: Conflict,
        /// Calls wait for durability (fsync) and not for dispatch only (fbarrier).
        durable: bool,
    },
}

impl System {
    /// ext4 with fsync.
    pub const EXT4_DR: System = System::Ext4 { flush: true };
    /// ext4 with nobarrier.
    pub const EXT4_OD: System = System::Ext4 { flush: false };
    /// BarrierFS with fsync.
    pub const BFS_DR: System = System::Dual { conflict: Conflict::List, durable: true };
    /// BarrierFS with fbarrier.
    pub const BFS_OD: System = System::Dual { conflict: Conflict::List, durable: false };
    /// Dual-mode journaling with copies of conflicting pages, and fsync.
    pub const COPY_DR: System = System::Dual { conflict: Conflict::Copy, durable: true };
    /// Dual-mode journaling with copies of conflicting pages, and fbarrier.
    pub const COPY_OD: System = System::Dual { conflict: Conflict::Copy, durable: false };

    /// For tables, with the paper's abbreviations: DR durability guaranteed, OD order.
    pub fn name(self) -> &'static str {
        match self {
            System::EXT4_DR => "EXT4-DR",
            System::EXT4_OD => "EXT4-OD",
            System::BFS_DR => "BFS-DR",
            System::BFS_OD => "BFS-OD",
            System::COPY_DR => "copy-DR",
            _ => "copy-OD",
        }
    }

    fn conflict(self) -> Conflict {
        match self {
            System::Ext4 { .. } => Conflict::Wait,
            System::Dual { conflict, .. } => conflict,
        }
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Load {
    /// Threads, each with its own file.
    pub threads: usize,
    /// Each write allocates a block, so each call finds changed metadata. Otherwise blocks are overwritten at random.
    pub allocating: bool,
    /// The files' inodes and bitmaps stand in pages that all threads change. Otherwise each thread has its own.
    pub shared_pages: bool,
    /// Calls of all threads together.
    pub calls: u64,
    /// Calls before the measured ones.
    pub warm_up: u64,
    /// Whether to note the queue's depth.
    pub trace: bool,
    /// Decides where is written, and what the device chooses.
    pub seed: u64,
}

impl Load {
    /// One thread that allocates.
    pub fn new(calls: u64) -> Load {
        Load { threads: 1, allocating: true, shared_pages: true, calls, warm_up: 100, trace: false, seed: 1 }
    }
}

/// A write, by its role.
#[derive(Clone, Debug)]
pub struct Written {
    /// Numbers of its units.
    pub units: Range<u64>,
    /// What it is.
    pub role: Role,
}

/// What a write is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Data of a file, described by this transaction.
    Data(u64),
    /// Data of a file that no transaction describes.
    Plain,
    /// JD of this transaction.
    Descriptor(u64),
    /// JC of this transaction.
    Commit(u64),
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Report {
    /// Measured calls per second of virtual time.
    pub rate: f64,
    /// Duration of each measured call, ascending.
    pub latencies: Vec<Ns>,
    /// Context switches of the calling threads for each call.
    pub switches: f64,
    /// Transactions committed.
    pub commits: u64,
    /// Pages that joined while a committing transaction held them.
    pub conflicts: u64,
    /// Highest depth of the device's queue, and its mean.
    pub depth: (u32, f64),
    /// Changes of the depth, if they were asked for.
    pub depth_changes: Vec<(Ns, u32)>,
    /// When it was over.
    pub end: Ns,
}

impl Report {
    /// The mean latency.
    pub fn mean(&self) -> f64 {
        self.latencies.iter().sum::<Ns>() as f64 / self.latencies.len().max(1) as f64
    }

    /// The latency that this share of the calls does not exceed, in ten-thousandths.
    pub fn percentile(&self, share: usize) -> Ns {
        let count = self.latencies.len();
        let rank = (count * share).div_ceil(10_000).max(1);
        self.latencies.get(rank - 1).copied().unwrap_or(0)
    }
}

/// What a power failure leaves, and what was there before.
pub struct Remains<'a> {
    /// What was written.
    pub written: &'a [Written],
    /// Transactions that callers know to be durable.
    pub promised: &'a [u64],
    /// Units that are not lost.
    pub kept: Vec<u64>,
    /// Units that were written.
    pub units: u64,
}

/// Timers of the journal's own tasks; those of threads are their indexes.
const COMMIT: u64 = 1_000_000;
const FLUSHER: u64 = 1_000_001;

/// Whom the end of a request concerns.
#[derive(Clone, Copy)]
enum Owner {
    Thread(usize),
    Descriptor,
    Commit(u64),
    Flush,
}

/// Everything.
struct World {
    load: Load,
    system: System,
    stack: Stack,
    random: Random,
    threads: Vec<Thread>,
    transactions: Transactions,
    owners: HashMap<u64, Owner>,
    ext4: ext4::Committer,
    dual: dual::Tasks,
    /// Next block of the journal.
    journal: u64,
    written: Vec<Written>,
    promised: Vec<u64>,
    commits: u64,
    done: u64,
    switches: u64,
    latencies: Vec<Ns>,
    warm: (Ns, u64),
}

/// Runs a load.
pub fn run(profile: &Profile, host: &Host, system: System, load: Load) -> Report {
    let mut world = World::new(profile, host, system, load);
    while world.done < world.load.warm_up + world.load.calls {
        match world.stack.step() {
            Some(happened) => world.happens(happened),
            None => unreachable!("somebody waits for what does not come"),
        }
    }
    world.report()
}

/// Runs a load for as long as there are moments (ascending), and shows what a power failure at each of them would leave.
pub fn cut(
    profile: &Profile,
    host: &Host,
    system: System,
    load: Load,
    moments: &[Ns],
    mut look: impl FnMut(Ns, &Remains<'_>),
) {
    let mut world = World::new(profile, host, system, load);
    for &moment in moments {
        while let Some(happened) = world.stack.step_before(moment) {
            world.happens(happened);
        }
        let (kept, units) = (world.stack.flash().kept(), world.stack.next_unit());
        look(moment, &Remains { written: &world.written, promised: &world.promised, kept, units });
    }
}

impl World {
    fn new(profile: &Profile, host: &Host, system: System, load: Load) -> World {
        let mut stack = Stack::new(profile.clone(), host.clone(), load.seed);
        if load.trace {
            stack.trace_depth();
        }
        for thread in 0..load.threads {
            // They do not begin at the same nanosecond.
            stack.timer(thread as Ns * 997, thread as u64);
        }
        World {
            system,
            stack,
            random: Random(load.seed ^ 0x10AD),
            threads: (0..load.threads).map(|_| Thread::default()).collect(),
            transactions: Transactions::new(system.conflict()),
            owners: HashMap::new(),
            ext4: ext4::Committer::default(),
            dual: dual::Tasks::default(),
            journal: 0,
            written: Vec::new(),
            promised: Vec::new(),
            commits: 0,
            done: 0,
            switches: 0,
            latencies: Vec::new(),
            warm: (0, 0),
            load,
        }
    }

    fn happens(&mut self, happened: Happened) {
        match (happened, self.system) {
            (Happened::Timer(COMMIT), System::Ext4 { flush }) => self.ext4_commits(flush),
            (Happened::Timer(COMMIT), System::Dual { .. }) => self.dual_commits(),
            (Happened::Timer(FLUSHER), _) => self.dual_flushes(),
            (Happened::Timer(thread), _) => self.thread_runs(thread as usize),
            (Happened::Dispatched(token), System::Dual { .. }) => {
                if let Some(Owner::Commit(number)) = self.owners.get(&token).copied() {
                    self.dual_dispatched(number);
                }
                self.room_came();
            }
            (Happened::Dispatched(_), _) => self.room_came(),
            (Happened::Done(token), system) => {
                let Some(owner) = self.owners.remove(&token) else { return };
                match (owner, system) {
                    (Owner::Thread(thread), _) => self.transfer_done(thread),
                    (_, System::Ext4 { flush }) => self.ext4_done(flush),
                    (Owner::Commit(number), _) => self.dual_transferred(number),
                    (Owner::Flush, _) => self.dual_flushed(),
                    (Owner::Descriptor, _) => {}
                }
            }
        }
    }

    /// Where the journal goes on: a ring behind the data.
    fn journal_block(&mut self, units: u64) -> u64 {
        const AT: u64 = 1 << 32;
        const LENGTH: u64 = 1 << 15;
        if self.journal + units > LENGTH {
            self.journal = 0;
        }
        self.journal += units;
        AT + self.journal - units
    }

    /// Notes a write that is about to be submitted.
    fn note(&mut self, units: u64, role: Role) {
        let first = self.stack.next_unit();
        self.written.push(Written { units: first..first + units, role });
    }

    fn report(mut self) -> Report {
        self.latencies.sort_unstable();
        let end = self.stack.now();
        let (from, calls_before) = self.warm;
        let depth = self.stack.flash().depth();
        Report {
            rate: (self.done - calls_before) as f64 * SECOND as f64 / (end - from).max(1) as f64,
            switches: self.switches as f64 / self.done.max(1) as f64,
            commits: self.commits,
            conflicts: self.transactions.conflicts_seen,
            depth: (depth.max, depth.mean(end)),
            depth_changes: depth.changes.clone().unwrap_or_default(),
            latencies: self.latencies,
            end,
        }
    }
}
