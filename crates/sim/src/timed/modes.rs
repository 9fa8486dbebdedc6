//! One caller who writes 4 KiB at random places and keeps their order in one of four ways (BarrierFS, figures 1, 9 and 10).

use super::clock::{Ns, Random, SECOND};
use super::profile::{Host, Profile};
use super::stack::{Class, Happened, Stack};
use media::Op;

/// How the order of writes is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// XnF: each write is transferred and flushed before the next (fdatasync).
    TransferAndFlush,
    /// X: each write is transferred before the next (fdatasync with nobarrier). Order and durability are not kept.
    WaitOnTransfer,
    /// B: an epoch for each write (fdatabarrier).
    Barrier,
    /// P: no order, write-back of the page cache.
    Unordered,
}

impl Mode {
    /// All four, the slowest first.
    pub const ALL: [Mode; 4] = [Mode::TransferAndFlush, Mode::WaitOnTransfer, Mode::Barrier, Mode::Unordered];

    /// For tables, with the paper's letters.
    pub fn name(self) -> &'static str {
        match self {
            Mode::TransferAndFlush => "transfer-and-flush (XnF)",
            Mode::WaitOnTransfer => "wait-on-transfer (X)",
            Mode::Barrier => "barrier (B)",
            Mode::Unordered => "unordered (P)",
        }
    }

    fn waits(self) -> bool {
        matches!(self, Mode::TransferAndFlush | Mode::WaitOnTransfer)
    }
}

/// What came out.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Writes per second of virtual time, from the moment when the cache is full or, where each write is waited for, the first
    /// hundred are done.
    pub iops: f64,
    /// Mean depth of the device's queue.
    pub depth_mean: f64,
    /// Highest depth.
    pub depth_max: u32,
    /// Context switches of the caller for each write.
    pub switches: f64,
    /// When it was over.
    pub end: Ns,
    /// Changes of the depth, if they were asked for.
    pub depth: Vec<(Ns, u32)>,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Load {
    /// How order is kept.
    pub mode: Mode,
    /// Writes in one epoch, with [`Mode::Barrier`]. At least 1.
    pub epoch: u64,
    /// Writes that are measured.
    pub writes: u64,
    /// Whether to note the queue's depth.
    pub trace: bool,
    /// Decides where is written, and what the device chooses.
    pub seed: u64,
}

impl Load {
    /// Enough writes for a steady state, an epoch each.
    pub fn new(mode: Mode) -> Load {
        let writes = if mode.waits() { 10_000 } else { 100_000 };
        Load { mode, epoch: 1, writes, trace: false, seed: 1 }
    }
}

/// Timers of the caller.
const CALLER: u64 = 0;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Write,
    Flush,
}

struct Caller {
    load: Load,
    stack: Stack,
    random: Random,
    submitted: u64,
    done: u64,
    /// The scheduler was full; somebody has to wake the caller.
    sleeping: bool,
    /// What comes next and then is waited for, with [`Mode::waits`].
    step: Step,
    awaited: Option<u64>,
    warm_up: u64,
    warm_at: Ns,
}

/// Runs a load.
pub fn run(profile: &Profile, host: &Host, load: Load) -> Report {
    let warm_up = if load.mode.waits() { 100 } else { 4 * profile.cache_units as u64 };
    let mut stack = Stack::new(profile.clone(), host.clone(), load.seed);
    if load.trace {
        stack.trace_depth();
    }
    stack.timer(0, CALLER);
    let random = Random(load.seed ^ 0x5EED);
    let mut caller = Caller {
        load,
        stack,
        random,
        submitted: 0,
        done: 0,
        sleeping: false,
        step: Step::Write,
        awaited: None,
        warm_up,
        warm_at: 0,
    };
    while caller.done < caller.warm_up + caller.load.writes {
        match caller.stack.step() {
            Some(Happened::Timer(_)) => caller.runs(),
            Some(Happened::Dispatched(_)) => caller.dispatched(),
            Some(Happened::Done(token)) => caller.completed(token),
            None => unreachable!("the caller waits for something that does not come"),
        }
    }
    caller.report()
}

impl Caller {
    /// The caller has the processor.
    fn runs(&mut self) {
        let host = self.stack.host();
        let (limit, write_ns, submit_ns) = (host.queued_max, host.write_ns, host.submit_ns);
        if self.load.mode.waits() {
            self.awaited = match self.step {
                Step::Flush => self.stack.immediate(Op::Flush, 0),
                Step::Write => Some(self.write(Class::Orderless)),
            };
            return;
        }
        if self.stack.queued() >= limit {
            self.sleeping = true;
            return;
        }
        if self.load.mode == Mode::Unordered {
            self.write(Class::Orderless);
            return self.stack.timer(write_ns, CALLER);
        }
        self.write(Class::Ordered);
        let ends = self.submitted.is_multiple_of(self.load.epoch);
        if ends {
            self.stack.barrier();
        }
        self.stack.timer(write_ns + if ends { submit_ns } else { 0 }, CALLER);
    }

    fn write(&mut self, class: Class) -> u64 {
        self.submitted += 1;
        loop {
            // 4 TiB of places, every other block: neighbours are not merged.
            let block = 2 * self.random.below(1 << 29);
            if let Some(token) = self.stack.write(class, block, 1) {
                return token;
            }
        }
    }

    fn dispatched(&mut self) {
        if self.sleeping && self.stack.queued() <= self.stack.host().queued_max * 3 / 4 {
            self.sleeping = false;
            self.stack.wake(CALLER);
        }
    }

    fn completed(&mut self, token: u64) {
        if !self.load.mode.waits() {
            return self.count();
        }
        if self.awaited != Some(token) {
            return;
        }
        self.awaited = None;
        if self.load.mode == Mode::TransferAndFlush && self.step == Step::Write {
            self.step = Step::Flush;
            return self.stack.wake(CALLER);
        }
        self.step = Step::Write;
        self.count();
        // Back in the program, which writes again.
        let host = self.stack.host();
        let next = host.write_ns + host.submit_ns;
        self.stack.wake_after(next, CALLER);
    }

    fn count(&mut self) {
        self.done += 1;
        if self.done == self.warm_up {
            self.warm_at = self.stack.now();
        }
    }

    fn report(self) -> Report {
        let end = self.stack.now();
        let depth = self.stack.flash().depth();
        Report {
            iops: self.load.writes as f64 * SECOND as f64 / (end - self.warm_at).max(1) as f64,
            depth_mean: depth.mean(end),
            depth_max: depth.max,
            switches: self.stack.switches() as f64 / self.done as f64,
            end,
            depth: depth.changes.clone().unwrap_or_default(),
        }
    }
}
