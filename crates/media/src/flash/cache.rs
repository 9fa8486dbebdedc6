//! What a power failure may leave: durable bytes, and writes that are not durable yet.
//!
//! [`CrashState`] is a state machine driven by [`Event`]s; the device drives one while it runs, and a [`super::Trace`]
//! replays the same events afterwards. Rules:
//! - A write is pending from its submission. With a volatile cache it stays so until a flush that was submitted after the
//!   write completed is done, or, with FUA, until it completes. Without a cache it is durable when it completes with success.
//! - A power failure keeps any subset of the units of the pending writes ([`PendingWrite::units`]): whole aligned atomic
//!   units, and single sectors where a write covers an atomic unit in part.
//! - Where two pending writes meet, the one that completed later wins if both are kept; writes that have not completed come
//!   after those that have, in the order of submission. Other orders of requests that were in flight together need no
//!   treatment: what they leave in a unit is what keeping only one of the two leaves.
//! - A durable FUA write is not undone by an older write to the same place that is still in the cache.
//! - With barriers: each write belongs to an epoch, which ends with a write that has the flag. If any unit of an epoch is
//!   lost, so is everything of later epochs, whatever was chosen.
//! - A write that failed or was cut short may be kept in any part until a flush settles it; then what is known to have
//!   been moved is durable and the rest has no effect.

use super::contents::Contents;
use super::{Config, SimFlash};
use crate::Flags;
use std::ops::Range;
use std::sync::Arc;

/// Byte that discarded ranges read as.
pub const DISCARDED: u8 = 0xDD;

/// How a pending request changes the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Puts data.
    Write,
    /// Puts zeros.
    Zeroes,
    /// Puts [`DISCARDED`].
    Discard,
}

/// A write, zeroing or discard that a power failure may still undo.
#[derive(Clone, Debug)]
pub struct PendingWrite {
    /// Number among all changes of this device, in the order of submission.
    pub id: u64,
    /// Token of the request.
    pub token: u64,
    /// What it does.
    pub change: Change,
    /// Modifiers of the request.
    pub flags: Flags,
    /// Where, bytes.
    pub offset: u64,
    /// How much, bytes.
    pub len: u64,
    /// The engine has seen its completion.
    pub completed: bool,
    /// Number of the barrier epoch. Always 0 on devices without barriers.
    pub epoch: u32,
    /// Bytes; empty unless a write.
    pub(super) data: Arc<[u8]>,
    sector: u64,
    atomic_unit: u64,
}

/// Most units of a zeroing or discard, so that enumeration of a large one stays possible.
const RANGE_UNITS: u64 = 64;

impl PendingWrite {
    pub(super) fn new(config: &Config, change: Change, request: &crate::Request, data: Arc<[u8]>) -> Self {
        PendingWrite {
            id: 0,
            token: request.token,
            change,
            flags: request.flags,
            offset: request.offset,
            len: request.len,
            completed: false,
            epoch: 0,
            data,
            sector: config.sector as u64,
            atomic_unit: config.atomic_unit as u64,
        }
    }

    /// As `new`, with the number that stands in the request's token.
    pub(crate) fn numbered(
        config: &Config,
        change: Change,
        request: &crate::Request,
        data: Arc<[u8]>,
    ) -> Self {
        PendingWrite { id: request.token, ..PendingWrite::new(config, change, request, data) }
    }

    /// Bytes that are put; empty for zeroing and discards.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// Whole atomic units within the write: where they begin and end. Empty if there is none.
    fn whole(&self) -> Range<u64> {
        let first = self.offset.next_multiple_of(self.atomic_unit).min(self.end());
        first..(self.end() / self.atomic_unit * self.atomic_unit).max(first)
    }

    /// Size of the pieces of a zeroing or discard, bytes.
    fn stride(&self) -> u64 {
        self.len.div_ceil(RANGE_UNITS).next_power_of_two().max(self.atomic_unit)
    }

    /// Number of parts that are kept or lost independently.
    pub fn units(&self) -> u32 {
        let n = match self.change {
            Change::Write => {
                let whole = self.whole();
                (whole.start - self.offset) / self.sector
                    + (whole.end - whole.start) / self.atomic_unit
                    + (self.end() - whole.end) / self.sector
            }
            _ => self.end().div_ceil(self.stride()) - self.offset / self.stride(),
        };
        n as u32
    }

    /// Bytes of the device that a unit covers. `index` is below [`PendingWrite::units`].
    pub fn unit(&self, index: u32) -> Range<u64> {
        let index = index as u64;
        if self.change != Change::Write {
            let start = (self.offset / self.stride() + index) * self.stride();
            return start.max(self.offset)..(start + self.stride()).min(self.end());
        }
        let whole = self.whole();
        let head = (whole.start - self.offset) / self.sector;
        let middle = (whole.end - whole.start) / self.atomic_unit;
        let (start, len) = if index < head {
            (self.offset + index * self.sector, self.sector)
        } else if index < head + middle {
            (whole.start + (index - head) * self.atomic_unit, self.atomic_unit)
        } else {
            (whole.end + (index - head - middle) * self.sector, self.sector)
        };
        start..start + len
    }

    /// Carries out the part of the change that lies in `range`, which is within the write.
    pub(super) fn apply(&self, range: Range<u64>, to: &mut Contents) {
        let (at, len) = (range.start, range.end - range.start);
        match self.change {
            Change::Write => {
                let from = (at - self.offset) as usize;
                to.write(at, &self.data[from..from + len as usize]);
            }
            Change::Zeroes => to.fill(at, len, 0),
            Change::Discard => to.fill(at, len, DISCARDED),
        }
    }
}

/// Something that changes what a power failure may leave.
#[derive(Clone, Debug)]
pub enum Event {
    /// A change was submitted.
    Submit(PendingWrite),
    /// The engine is told that a change ended.
    Complete {
        /// [`PendingWrite::id`].
        id: u64,
        /// Bytes from its beginning that are known to have been moved: all of them unless it failed.
        kept: u64,
    },
    /// A flush was submitted.
    FlushSubmit {
        /// Number of the flush.
        id: u64,
    },
    /// A flush ended.
    FlushDone {
        /// Number of the flush.
        id: u64,
        /// It did not fail.
        ok: bool,
    },
    /// A note of the test, see [`SimFlash::mark`].
    Mark(u64),
}

/// A completed change that is not durable by itself yet.
#[derive(Clone)]
struct Settled {
    write: PendingWrite,
    kept: u64,
    /// When it completed.
    at: u64,
    /// Durable (FUA, or no cache), and only here because older changes of the same place may be pending.
    forced: bool,
}

/// Durable contents and pending changes at one moment.
#[derive(Clone)]
pub struct CrashState {
    config: Arc<Config>,
    durable: Contents,
    /// Completed, in the order of completion.
    settled: Vec<Settled>,
    /// In flight, in the order of submission.
    flying: Vec<PendingWrite>,
    /// Flushes in flight, and when they were submitted.
    flushes: Vec<(u64, u64)>,
    /// Events so far.
    clock: u64,
    /// Epoch of the next write.
    epoch: u32,
}

impl CrashState {
    pub(crate) fn new(config: Arc<Config>, durable: Contents) -> CrashState {
        CrashState {
            config,
            durable,
            settled: Vec::new(),
            flying: Vec::new(),
            flushes: Vec::new(),
            clock: 0,
            epoch: 0,
        }
    }

    pub(super) fn durable_mut(&mut self) -> &mut Contents {
        &mut self.durable
    }

    /// Epoch of the next change, after which `flags` may begin another.
    pub(super) fn next_epoch(&self) -> u32 {
        self.epoch
    }

    /// Oldest epoch with a change in flight.
    pub(super) fn oldest_epoch(&self) -> u32 {
        self.flying.first().map_or(self.epoch, |w| w.epoch)
    }

    /// Carries out an event.
    pub fn apply(&mut self, event: &Event) {
        self.clock += 1;
        match event {
            Event::Submit(write) => {
                self.epoch = write.epoch;
                if self.config.barrier && write.flags.contains(Flags::BARRIER) {
                    self.epoch += 1;
                }
                self.flying.push(write.clone());
            }
            Event::Complete { id, kept } => self.complete(*id, *kept),
            Event::FlushSubmit { id } => self.flushes.push((*id, self.clock)),
            Event::FlushDone { id, ok } => self.flush_done(*id, *ok),
            Event::Mark(_) => {}
        }
    }

    fn complete(&mut self, id: u64, kept: u64) {
        let Some(index) = self.flying.iter().position(|w| w.id == id) else { return };
        let mut write = self.flying.remove(index);
        write.completed = true;
        let is_passed_on =
            !self.config.volatile_cache || write.flags.contains(Flags::FUA) && !self.config.lies.fua;
        let forced = is_passed_on && kept == write.len;
        if forced && self.honours_barrier() {
            self.settled.iter_mut().filter(|s| s.write.epoch < write.epoch).for_each(|s| s.forced = true);
        }
        self.settled.push(Settled { write, kept, at: self.clock, forced });
        let settle = self.settled.iter().take_while(|s| s.forced).count();
        self.make_durable(settle);
    }

    fn flush_done(&mut self, id: u64, ok: bool) {
        let Some(index) = self.flushes.iter().position(|(flush, _)| *flush == id) else { return };
        let (_, submitted) = self.flushes.swap_remove(index);
        if ok && !self.config.lies.flush {
            let covered = self.settled.partition_point(|s| s.at < submitted);
            let more = self.settled[covered..].iter().take_while(|s| s.forced).count();
            self.make_durable(covered + more);
        }
    }

    fn make_durable(&mut self, count: usize) {
        for s in self.settled.drain(..count) {
            s.write.apply(s.write.offset..s.write.offset + s.kept, &mut self.durable);
        }
    }

    fn honours_barrier(&self) -> bool {
        self.config.barrier && !self.config.lies.barrier
    }

    /// Changes that a power failure may undo, completed ones first.
    pub fn pending(&self) -> impl Iterator<Item = &PendingWrite> {
        self.settled.iter().filter(|s| !s.forced).map(|s| &s.write).chain(&self.flying)
    }

    /// The device after a power failure that keeps those units for which `choose` says so. It is asked once per unit, in
    /// the order of [`CrashState::pending`]; where a barrier rules out what comes next, it is not asked any more.
    pub fn crash_image(&self, mut choose: impl FnMut(&PendingWrite, u32) -> bool) -> SimFlash {
        let mut image = self.durable.clone();
        let mut broken: Option<u32> = None;
        let settled = self.settled.iter().map(|s| (&s.write, s.forced));
        for (write, forced) in settled.chain(self.flying.iter().map(|w| (w, false))) {
            if self.honours_barrier() && broken.is_some_and(|epoch| write.epoch > epoch) {
                break;
            }
            if forced {
                write.apply(write.offset..write.end(), &mut image);
                continue;
            }
            for unit in 0..write.units() {
                if choose(write, unit) {
                    write.apply(write.unit(unit), &mut image);
                } else {
                    broken.get_or_insert(write.epoch);
                }
            }
        }
        SimFlash::from_contents(self.config.clone(), image)
    }
}
