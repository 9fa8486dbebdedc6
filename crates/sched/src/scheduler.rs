//! The queues: epochs of ordered writes, orderless writes, and what is served at once (reads and flushes).
//!
//! Life of an epoch: open (the newest; takes ordered writes, which leave when it is the oldest too) -> closed (a barrier came; its
//! last request to leave carries the flag) -> gone. When all requests of an epoch have left before its barrier comes, a command
//! without data carries the flag (a *delimiter*). A barrier behind an epoch without requests ends nothing, and sends nothing.
//!
//! Requires: writes that overlap one another and are on their way together have no order here, as on a device. Those that are
//! both queued in one epoch are refused; for the others whoever submits sees to it (a page cache does: a page is in flight once).
//!
//! Fairness: the classes take turns ([`Turns`]), so a request waits for at most one round of the others for each request of its own
//! class in front of it.

use crate::Discipline;
use crate::pool::{Pool, Queued};
use media::{Flags, Op};
use smallvec::{SmallVec, smallvec};
use std::collections::VecDeque;

/// How many requests of a class leave in a row while others wait. At least 1 each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// Reads and flushes: somebody waits for each of them.
    pub immediate: u32,
    /// Ordered writes.
    pub ordered: u32,
    /// Orderless writes, discards, zeroing.
    pub orderless: u32,
}

/// What a scheduler may do.
#[derive(Clone, Debug)]
pub struct Config {
    /// Order within an epoch and among orderless writes.
    pub discipline: Discipline,
    /// Requests that may be queued.
    pub queued_max: usize,
    /// Longest request that merging makes, bytes. Of the device: [`media::Geometry::max_transfer`].
    pub len_max: u64,
    /// Most segments of a request that merging makes.
    pub segments_max: u32,
    /// How many younger requests of its pool may leave before an older one.
    pub patience: u64,
    /// Turns of the classes.
    pub turns: Turns,
}

impl Default for Config {
    /// 128 requests as Linux's `nr_requests`, merged up to 512 KiB, ascending, reads ahead of writes.
    fn default() -> Config {
        Config {
            discipline: Discipline::Ascending,
            queued_max: 128,
            len_max: 512 << 10,
            segments_max: 128,
            patience: 64,
            turns: Turns { immediate: 4, ordered: 4, orderless: 2 },
        }
    }
}

/// What is submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<T> {
    /// What to do.
    pub op: Op,
    /// Modifiers of a write. Never [`Flags::BARRIER`]: that is [`Scheduler::barrier`].
    pub flags: Flags,
    /// Where, bytes.
    pub offset: u64,
    /// How much, bytes; 0 for a flush.
    pub len: u64,
    /// Pieces of memory, for [`Config::segments_max`].
    pub segments: u32,
    /// Whatever the sink needs for it.
    pub payload: T,
}

/// What leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command<T> {
    /// What to do.
    pub op: Op,
    /// Modifiers as submitted, with [`Flags::BARRIER`] where an epoch ends here.
    pub flags: Flags,
    /// Where, bytes.
    pub offset: u64,
    /// How much, bytes. 0 for a flush and a delimiter.
    pub len: u64,
    /// The epoch, if it is ordered.
    pub epoch: Option<u64>,
    /// What was submitted, by ascending offset and adjacent. Empty for a delimiter: a write of nothing that ends an epoch.
    pub parts: SmallVec<[T; 1]>,
}

impl<T> Command<T> {
    /// Whether an epoch ends here.
    pub fn is_barrier(&self) -> bool {
        self.flags.contains(Flags::BARRIER)
    }
    /// Whether it carries nothing but the end of an epoch.
    pub fn is_delimiter(&self) -> bool {
        self.parts.is_empty()
    }
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// [`Config::queued_max`] requests wait. Try again when some have left.
    #[error("the queue is full")]
    Full,
    /// Meets a write that is queued in the same epoch, or is orderless as this one.
    #[error("overlaps a write that is queued in the same epoch")]
    Overlap,
    /// Ordered, and not a write.
    #[error("only writes have an order")]
    NotOrderable,
    /// Length, end or flags make no sense.
    #[error("not a request that can be queued")]
    Malformed,
}

/// A request that was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused<T> {
    /// The request.
    pub request: Request<T>,
    /// Why.
    pub why: Refusal,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests taken.
    pub submitted: u64,
    /// Commands that left.
    pub dispatched: u64,
    /// Requests that became a part of another.
    pub merged: u64,
    /// Epochs ended, delimiters included.
    pub barriers: u64,
    /// Epochs ended by a command without data.
    pub delimiters: u64,
}

struct Epoch<T> {
    number: u64,
    pool: Pool<T>,
    closed: bool,
    /// A request has left without the flag.
    begun: bool,
}

impl<T> Epoch<T> {
    fn new(number: u64) -> Epoch<T> {
        Epoch { number, pool: Pool::default(), closed: false, begun: false }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Immediate,
    Ordered,
    Orderless,
}

/// The queues.
pub struct Scheduler<T> {
    config: Config,
    immediate: VecDeque<Request<T>>,
    /// Oldest first; the last one is open. Each closed one behind the first has requests.
    epochs: VecDeque<Epoch<T>>,
    orderless: Pool<T>,
    /// Submitted requests that have not left.
    queued: usize,
    turn: Class,
    /// Commands of this turn.
    used: u32,
    counters: Counters,
}

impl<T> Scheduler<T> {
    /// Empty queues; the first epoch is number 1. Limits and turns of 0 count as 1.
    pub fn new(mut config: Config) -> Scheduler<T> {
        config.queued_max = config.queued_max.max(1);
        let turns = &mut config.turns;
        for n in [&mut turns.immediate, &mut turns.ordered, &mut turns.orderless] {
            *n = (*n).max(1);
        }
        Scheduler {
            config,
            immediate: VecDeque::new(),
            epochs: VecDeque::from([Epoch::new(1)]),
            orderless: Pool::default(),
            queued: 0,
            turn: Class::Immediate,
            used: 0,
            counters: Counters::default(),
        }
    }

    /// What it may do.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Requests that have not left.
    pub fn len(&self) -> usize {
        self.queued
    }

    /// Whether nothing can leave: no request and no delimiter.
    pub fn is_empty(&self) -> bool {
        self.queued == 0 && !self.ready(Class::Ordered)
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The epoch that ordered writes join now.
    pub fn open_epoch(&self) -> u64 {
        self.open().number
    }

    /// Queues a request that may cross epochs. A write leaves at any time, a read or flush after those that came before it.
    pub fn submit(&mut self, request: Request<T>) -> Result<(), Refused<T>> {
        if let Err(why) = self.check(&request) {
            return Err(Refused { request, why });
        }
        match request.op {
            Op::Read | Op::Flush => self.immediate.push_back(request),
            Op::Write | Op::Discard | Op::WriteZeroes => {
                if self.orderless.overlaps(request.offset, request.len) {
                    return Err(Refused { request, why: Refusal::Overlap });
                }
                let age = self.counters.submitted;
                self.counters.merged += self.orderless.insert(request, age, &self.config);
            }
        }
        self.taken();
        Ok(())
    }

    /// Queues a write that persists before everything of later epochs. Returns its epoch.
    pub fn submit_ordered(&mut self, request: Request<T>) -> Result<u64, Refused<T>> {
        let open = self.epochs.len() - 1;
        let refusal = match request.op {
            Op::Write => self.check(&request).err(),
            _ => Some(Refusal::NotOrderable),
        };
        let overlap =
            || self.epochs[open].pool.overlaps(request.offset, request.len).then_some(Refusal::Overlap);
        if let Some(why) = refusal.or_else(overlap) {
            return Err(Refused { request, why });
        }
        let age = self.counters.submitted;
        let epoch = &mut self.epochs[open];
        self.counters.merged += epoch.pool.insert(request, age, &self.config);
        let number = epoch.number;
        self.taken();
        Ok(number)
    }

    /// Ends the open epoch. Returns the number of the newest epoch that is complete now: everything ordered that was submitted
    /// before is in it or an earlier one, and everything that is submitted from now on in a later one.
    pub fn barrier(&mut self) -> u64 {
        let open = self.epochs.len() - 1;
        let epoch = &mut self.epochs[open];
        if epoch.begun || !epoch.pool.is_empty() {
            epoch.closed = true;
            let next = epoch.number + 1;
            self.epochs.push_back(Epoch::new(next));
        }
        self.open_epoch() - 1
    }

    /// The command that leaves next. It must be handed over before the next one is taken.
    pub fn next_command(&mut self) -> Option<Command<T>> {
        // Three classes, and the first once more with a fresh turn.
        for _ in 0..4 {
            if self.used < self.quota(self.turn) && self.ready(self.turn) {
                self.used += 1;
                let command = self.pop(self.turn)?;
                self.queued -= command.parts.len();
                self.counters.dispatched += 1;
                return Some(command);
            }
            self.used = 0;
            self.turn = match self.turn {
                Class::Immediate => Class::Ordered,
                Class::Ordered => Class::Orderless,
                Class::Orderless => Class::Immediate,
            };
        }
        None
    }

    /// Takes everything ordered out, by epochs, and forgets the delimiter that may be due: for a device that has failed.
    pub fn drain_ordered(&mut self) -> Vec<T> {
        let next = self.open_epoch() + 1;
        let drained: Vec<T> = self.epochs.iter_mut().flat_map(|epoch| epoch.pool.drain()).collect();
        self.epochs = VecDeque::from([Epoch::new(next)]);
        self.queued -= drained.len();
        drained
    }

    fn check(&self, request: &Request<T>) -> Result<(), Refusal> {
        let flush = request.op == Op::Flush;
        if (request.len == 0) != flush
            || request.offset.checked_add(request.len).is_none()
            || request.flags.contains(Flags::BARRIER)
        {
            return Err(Refusal::Malformed);
        }
        if self.queued >= self.config.queued_max { Err(Refusal::Full) } else { Ok(()) }
    }

    fn taken(&mut self) {
        self.queued += 1;
        self.counters.submitted += 1;
    }

    fn open(&self) -> &Epoch<T> {
        &self.epochs[self.epochs.len() - 1]
    }

    fn quota(&self, class: Class) -> u32 {
        match class {
            Class::Immediate => self.config.turns.immediate,
            Class::Ordered => self.config.turns.ordered,
            Class::Orderless => self.config.turns.orderless,
        }
    }

    fn ready(&self, class: Class) -> bool {
        match class {
            Class::Immediate => !self.immediate.is_empty(),
            Class::Ordered => !self.epochs[0].pool.is_empty() || self.epochs[0].closed,
            Class::Orderless => !self.orderless.is_empty(),
        }
    }

    fn pop(&mut self, class: Class) -> Option<Command<T>> {
        match class {
            Class::Immediate => {
                let Request { op, flags, offset, len, payload, .. } = self.immediate.pop_front()?;
                Some(Command { op, flags, offset, len, epoch: None, parts: smallvec![payload] })
            }
            Class::Ordered => Some(self.pop_ordered()),
            Class::Orderless => self.orderless.pop(&self.config).map(|queued| command(queued, None)),
        }
    }

    /// The next request of the oldest epoch, or its delimiter.
    fn pop_ordered(&mut self) -> Command<T> {
        let epoch = &mut self.epochs[0];
        let number = epoch.number;
        let mut leaving = match epoch.pool.pop(&self.config) {
            Some(queued) => command(queued, Some(number)),
            None => {
                assert!(epoch.closed && epoch.begun, "an epoch that has not begun has nothing to end");
                self.counters.delimiters += 1;
                let (op, flags) = (Op::Write, Flags::NONE);
                Command { op, flags, offset: 0, len: 0, epoch: Some(number), parts: SmallVec::new() }
            }
        };
        epoch.begun = true;
        if epoch.closed && epoch.pool.is_empty() {
            leaving.flags = Flags(leaving.flags.0 | Flags::BARRIER.0);
            self.counters.barriers += 1;
            self.epochs.pop_front();
        }
        leaving
    }
}

fn command<T>(queued: Queued<T>, epoch: Option<u64>) -> Command<T> {
    let Queued { op, flags, offset, len, parts, .. } = queued;
    Command { op, flags, offset, len, epoch, parts }
}
