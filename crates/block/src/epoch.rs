//! Epochs: closing one, writing its record, and learning that it is durable (BarrierFS, sections 4.2 and 4.3; its commit
//! task is [`Core::close_epoch`] and [`Core::dispatch_records`], its flush task [`Core::advance`]).
//!
//! Life of an epoch: running -> closed (its record is built) -> dispatched (record and data are on their way, in any order)
//! -> written (all of it completed) -> durable (a flush submitted after that has completed, and the epochs before are
//! durable) -> recorded (a durable record or checkpoint says that it is durable).
//!
//! Nothing is waited for between data and record: the record carries the checksums of the data. Many epochs may be in
//! flight. An epoch that is not *recorded* may still be verified by a recovery, so until then its blocks are guarded
//! against being overwritten in place, and the blocks that it freed stay in quarantine.

use crate::core::{Core, Logged, Res, Stop, Wait};
use crate::covers::Covers;
use crate::direct::Uncovered;
use crate::inode::Slot;
use crate::io::{Io, IoKind};
use crate::writeback::Purpose;
use foldhash::fast::FixedState;
use format::limits::BLOCK_SIZE;
use format::log::{PageEntry, RecordBuilder, RecordId, SegmentAssignment, cover_crc};
use format::{BlockNo, Epoch, Ino};
use fs::Error;
use fs::cache::FrameNo;
use media::{Flags, Op, Request};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

/// Dirty pages that one barrier or sync puts into its log record instead of writing them to their blocks first.
const LOGGED_PAGES_MAX: usize = 16;
/// The same for pages of many files, which threads sync together: one forced write instead of one for each file and a flush. Not with a small
/// cache, as they stay pinned until a checkpoint.
const SCATTERED_PAGES_MAX: usize = 64;
/// So many pages of a file on the average, at most, are scattered.
const SCATTERED_RUN: usize = 4;

/// Memory that is kept for the images of the next record: about what the largest epoch needs that closes by itself.
const RECORD_MEMORY_MAX: usize = 8 << 20;

/// Why an epoch is closed; decides how overwrites are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// Age, memory, log space: nobody asked for order, plain overwrites go in place.
    Background,
    /// fbarrier: order.
    Barrier,
    /// fsync, sync, clean stop: order and durability.
    Sync,
}

/// The epoch that changes join.
pub(crate) struct Running {
    pub epoch: u64,
    /// Inodes changed in this epoch.
    pub slots: Vec<Slot>,
    /// Estimate of the record's size.
    pub bytes: usize,
    /// When the first change came.
    pub since: Option<Duration>,
    /// It holds an atomic write: nothing of it overwrites in place.
    pub atomic: bool,
    /// A barrier stands in it: from there on nothing of it overwrites in place, and its end is one of order.
    pub barrier: bool,
    /// The worker was told that it has grown enough.
    pub grown: bool,
    /// No more changes: the epoch is being closed and waits for memory.
    pub gate: Option<Reason>,
    /// Checksums of the blocks written for this epoch.
    pub covers: Covers,
    pub assignments: Vec<(u32, u32)>,
    /// Files with dirty pages.
    pub dirty_files: BTreeSet<Slot>,
    /// Those of them that were overwritten in place: they may be overwritten again while this epoch runs.
    pub in_place: HashSet<u64, FixedState>,
    /// Pages whose content goes into the record, by block: (inode, page, pinned frame).
    pub pages: BTreeMap<u64, (Slot, u64, FrameNo)>,
    /// Transfers dispatched for this epoch that have not completed.
    pub in_flight: u32,
    /// Something was written in place, so that a sync must flush even if nothing else changed.
    pub wrote: bool,
    /// Some of that was written directly (`direct`).
    pub uncovered: bool,
}

impl Running {
    pub fn new(epoch: u64) -> Running {
        Running {
            epoch,
            slots: Vec::new(),
            bytes: 0,
            since: None,
            atomic: false,
            barrier: false,
            grown: false,
            gate: None,
            covers: Covers::default(),
            in_place: HashSet::default(),
            assignments: Vec::new(),
            dirty_files: BTreeSet::new(),
            pages: BTreeMap::new(),
            in_flight: 0,
            wrote: false,
            uncovered: false,
        }
    }

    /// Whether nothing of it may overwrite in place, on whatever volume.
    pub fn keeps_places(&self) -> bool {
        self.atomic || self.barrier
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
            && self.dirty_files.is_empty()
            && self.covers.is_empty()
            && self.assignments.is_empty()
            && self.pages.is_empty()
            && self.in_flight == 0
            && !self.wrote
    }
}

/// A closed epoch.
pub(crate) struct EpochState {
    pub epoch: u64,
    /// When its first change came.
    pub since: Option<Duration>,
    pub in_flight: u32,
    /// The record, until there is log space and memory to write it.
    pending: Option<PendingRecord>,
    /// The durable epoch that the record names.
    recorded: u64,
    /// Transfers besides the record belong to the epoch.
    wrote: bool,
    pub uncovered: Uncovered,
    /// The record was written with FUA and nothing else belongs to the epoch.
    fua: bool,
    /// Blocks guarded by this epoch.
    guarded: Vec<u64>,
}

struct PendingRecord {
    builder: RecordBuilder,
    pages: Vec<(u64, FrameNo)>,
    time: u64,
}

impl Core {
    /// The newest closed epoch.
    pub fn last_closed(&self) -> u64 {
        self.running.epoch - 1
    }

    /// As [`Core::close_epoch_for`], for order (`durable` false) or durability.
    pub fn close_epoch(&mut self, durable: bool) -> Res<u64> {
        self.close_epoch_for(if durable { Reason::Sync } else { Reason::Background })
    }

    /// Closes the running epoch and dispatches it. Returns the epoch that holds everything changed so far. For
    /// [`Reason::Sync`] it also asks for durability, which [`Wait::Durable`] waits for.
    pub fn close_epoch_for(&mut self, reason: Reason) -> Res<u64> {
        if let Some(why) = &self.latched {
            return Err(Error::Latched(why.clone()).into());
        }
        // Somebody may have been promised more than is asked for now.
        let reason = match self.running.gate {
            _ if self.close_wanted => Reason::Sync,
            Some(gate) => reason.max(gate),
            None => reason,
        };
        let reason = if self.running.barrier { reason.max(Reason::Barrier) } else { reason };
        if !self.running.is_empty() {
            if self.epochs.back().is_some_and(|e| e.pending.is_some()) {
                // One record waits for log space already: let it go first.
                self.running.gate = Some(reason);
                return Err(Stop::Wait(Wait::Progress));
            }
            // Who waits for log space asks often: nothing is done before there is some, and changes go on as long as the record has room for them.
            if !self.closes_for_checkpoint && !self.leaves_log_space() {
                return Err(self.need_log_space());
            }
            self.running.gate = Some(reason);
            let ordered = self.strict || self.running.atomic || reason != Reason::Background;
            let logged = ordered && self.fits_record();
            let purpose = match (ordered, logged) {
                (false, _) => Purpose::Close,
                (true, false) => Purpose::Order,
                (true, true) => Purpose::Record,
            };
            match self.write_back_all(purpose).and_then(|()| self.place_tails()) {
                Ok(()) => {}
                Err(Stop::Error(e)) => {
                    // Not for ever closed to changes: deleting something may help.
                    self.running.gate = None;
                    self.wake(Wait::Progress);
                    self.refuse_joined(&e);
                    return Err(e.into());
                }
                Err(wait) => {
                    // What was freed may be needed, or what was written before be in the way.
                    if self.space.quarantined() > 0 || !self.guards.is_empty() {
                        self.begin_mark();
                    }
                    // Behind an ordered epoch nothing goes in place before that is durable.
                    if self.ordered > self.durable {
                        self.want_flush(self.ordered);
                        self.advance();
                    }
                    return Err(wait);
                }
            }
            if !self.closes_for_checkpoint && !self.leaves_log_space() {
                return Err(self.need_log_space());
            }
            self.running.gate = None;
            if reason != Reason::Background {
                self.ordered = self.running.epoch;
            }
            self.build_record();
            if reason == Reason::Sync {
                self.close_wanted = false;
                let now = self.monotonic();
                self.group.closed(self.last_closed(), now);
            }
            self.wake(Wait::Progress);
        }
        let last = self.last_closed();
        if reason == Reason::Sync {
            self.want_flush(last);
        }
        self.advance();
        Ok(last)
    }

    /// Whether there is room in the log for the record of the running epoch and the one after it. A checkpoint, without which no log space becomes free, begins by closing
    /// an epoch and waits until that is durable: a record that finds no room would be waited for for ever.
    fn leaves_log_space(&self) -> bool {
        let (running, max) = (&self.running, self.log.record_max());
        let record = running.bytes + running.pages.len() * (BLOCK_SIZE + 64);
        self.log.free() > ((record + max) / BLOCK_SIZE) as u64
    }

    /// Only a checkpoint makes room in the log.
    fn need_log_space(&mut self) -> Stop {
        let is_coming = self.checkpoint_wanted || self.checkpointing.is_some();
        if !is_coming || !self.checkpoint_hurry {
            self.hurry_checkpoint();
        }
        Stop::Wait(Wait::Progress)
    }

    /// Whether what is dirty goes into the record of the epoch that is being closed.
    fn fits_record(&self) -> bool {
        let (dirty, files) = (self.cache.dirty(), self.running.dirty_files.len());
        let most = SCATTERED_PAGES_MAX.min(self.cache.len() / 256);
        dirty <= LOGGED_PAGES_MAX || (dirty <= most && dirty <= files * SCATTERED_RUN)
    }

    /// The point that fsync waits for. Callers that come while a commit is on its way share the next one (`group`).
    pub fn sync_point(&mut self) -> Res<u64> {
        if let Some(why) = &self.latched {
            return Err(Error::Latched(why.clone()).into());
        }
        self.synced_at = Some(self.monotonic());
        if self.running.is_empty() {
            return self.close_epoch_for(Reason::Sync);
        }
        if self.joins_group() {
            self.close_wanted = true;
            return Ok(self.running.epoch);
        }
        self.close_epoch_for(Reason::Sync)
    }

    /// Turns the running epoch into a record and starts the next one.
    fn build_record(&mut self) {
        let next = Running {
            dirty_files: std::mem::take(&mut self.running.dirty_files),
            ..Running::new(self.running.epoch + 1)
        };
        let mut done = std::mem::replace(&mut self.running, next);
        let pages_bytes = done.pages.len() * (BLOCK_SIZE + size_of::<PageEntry>());
        let counted = done.bytes + pages_bytes + done.assignments.len() * size_of::<SegmentAssignment>();
        if !self.running.dirty_files.is_empty() {
            self.note_change();
        }
        let dirty: Vec<Slot> = self.running.dirty_files.iter().copied().collect();
        dirty.iter().chain(&done.slots).for_each(|&slot| self.placed_nodes(slot));
        debug_assert!(self.nodes == 0 || !dirty.is_empty(), "room for nodes of nothing");
        let epoch = done.epoch;
        let mut builder = RecordBuilder::in_memory(std::mem::take(&mut self.record_memory));
        for (index, segment) in done.assignments {
            builder.assignment(index, segment);
        }
        let mut guarded = Vec::new();
        for (first, crcs) in done.covers.into_runs() {
            builder.cover(BlockNo(first), crcs.len() as u32, cover_crc(&crcs));
            self.guards.insert(first, (crcs.len() as u32, epoch));
            guarded.push(first);
        }
        done.slots.sort_unstable();
        done.slots.dedup();
        for &slot in &done.slots {
            builder.inode(|out| self.encode_image(slot, out));
        }
        let mut pages = Vec::with_capacity(done.pages.len());
        for (block, (slot, page, frame)) in done.pages {
            builder.page(Ino(slot as u64), page, BlockNo(block));
            if let Some(old) = self.logged.insert(block, Logged { frame: Some(frame) })
                && let Some(frame) = old.frame
            {
                self.cache.unpin(frame);
            }
            // A second pin, because the newer image of the next epoch may take the first one's place.
            self.cache.pin(frame);
            pages.push((block, frame));
        }
        self.hold_record_max(builder.blocks() * BLOCK_SIZE, counted);
        self.counters.epochs += 1;
        self.counters.logged_pages += pages.len() as u64;
        if self.logged.len() > self.cache.len() / 4 {
            self.hurry_checkpoint();
        }
        let time = self.now().sec.max(0) as u64;
        self.epochs.push_back(EpochState {
            epoch,
            since: done.since,
            in_flight: done.in_flight,
            pending: Some(PendingRecord { builder, pages, time }),
            recorded: 0,
            wrote: done.wrote,
            uncovered: if done.uncovered { Uncovered::Written } else { Uncovered::Nothing },
            fua: false,
            guarded,
        });
    }

    /// Writes the records that wait for log space or memory.
    pub fn dispatch_records(&mut self) {
        for i in 0..self.epochs.len() {
            if self.epochs[i].pending.is_some() && self.awaits_direct(i) {
                return;
            }
            let Some(pending) = self.epochs[i].pending.take() else { continue };
            let blocks = pending.builder.blocks();
            let buffer = if self.log.free() > blocks as u64 { self.scratch.take(blocks) } else { None };
            let Some(buffer) = buffer else {
                self.epochs[i].pending = Some(pending);
                if self.log.free() <= blocks as u64 {
                    self.hurry_checkpoint();
                }
                return;
            };
            let epoch = self.epochs[i].epoch;
            let id = RecordId {
                uuid: self.uuid,
                epoch: Epoch(epoch),
                durable_epoch: Epoch(self.durable),
                chain: self.log.chain,
                time: pending.time,
                nonce: self.log.nonce,
            };
            let arena = self.cache.arena().clone();
            let PendingRecord { builder, pages, .. } = pending;
            self.log.chain = self.scratch.fill(&buffer, |out| {
                // SAFETY: the frames are pinned, and pinned frames are not changed.
                builder.finish(&id, out, |p| unsafe {
                    std::slice::from_raw_parts(arena.ptr(pages[p].1.offset(), 4096), 4096)
                })
            });
            let memory = builder.into_memory();
            if memory.capacity() <= RECORD_MEMORY_MAX {
                self.record_memory = memory;
            }
            for (_, frame) in pages {
                self.cache.unpin(frame);
            }
            let max = self.geometry.max_transfer as u64 / 4096;
            let parts = self.log.parts(self.log.head, blocks as u64, max);
            // Only a single write can be durable by itself, and only when nothing else belongs to the epoch that is not durable.
            let state = &self.epochs[i];
            let fua = parts.len() == 1
                && i == 0
                && (!state.wrote || state.uncovered == Uncovered::Flushed)
                && self.flush_wanted >= epoch
                && self.geometry.volatile_cache
                && !self.flush_in_flight;
            let state = &mut self.epochs[i];
            state.recorded = self.durable;
            state.fua = fua;
            self.counters.fua_records += fua as u64;
            state.in_flight += parts.len() as u32;
            let bufs: Vec<_> = parts
                .iter()
                .map(|&(_, at, n)| self.scratch.buf_ref(&buffer, at as usize * 4096, n as usize * 4096))
                .collect();
            let buffer = self.ios.share(buffer, parts.len());
            for (&(block, _, _), buf) in parts.iter().zip(bufs) {
                let mut request = Request::transfer(Op::Write, block.byte(), buf, 0);
                request.flags = if fua { Flags::FUA } else { Flags::NONE };
                self.submit(request, Io { kind: IoKind::Buffer { buffer }, epoch: Some(epoch) });
            }
            self.log.head += blocks as u64;
            self.counters.log_blocks += blocks as u64;
            let end = (self.log.head, self.log.chain);
            if let Some(c) = self.checkpointing.as_mut().filter(|c| c.epoch() == epoch) {
                c.log_end = Some(end);
            }
            if self.log.free() < self.log.capacity() / 2 {
                self.checkpoint_wanted = true;
                self.wake_worker = true;
            }
        }
    }

    /// Where the log goes on behind the newest closed epoch, if its record was dispatched.
    pub fn log_end(&self) -> Option<(u64, u32)> {
        let waits = self.epochs.back().is_some_and(|e| e.pending.is_some());
        (!waits).then_some((self.log.head, self.log.chain))
    }

    /// A transfer of an epoch has completed.
    pub fn epoch_io_done(&mut self, epoch: u64) {
        if epoch == self.running.epoch {
            self.running.in_flight -= 1;
        } else if let Some(state) = self.epochs.iter_mut().find(|e| e.epoch == epoch) {
            state.in_flight -= 1;
        } else {
            debug_assert!(false, "transfer of an epoch that is durable");
        }
    }

    /// Counts a transfer that belongs to the running epoch.
    pub fn epoch_io_begins(&mut self) -> u64 {
        self.running.in_flight += 1;
        self.running.wrote = true;
        self.running.epoch
    }

    /// The newest epoch up to which everything has been written.
    fn written(&self) -> u64 {
        let done = self.epochs.iter().take_while(|e| e.pending.is_none() && e.in_flight == 0).last();
        done.map_or(self.durable, |e| e.epoch)
    }

    /// Moves epochs on as far as they can go: dispatches records, sends a flush when somebody waits for durability.
    pub fn advance(&mut self) {
        if self.latched.is_some() {
            return;
        }
        self.dispatch_records();
        let written = self.written();
        if written > self.durable {
            let by_itself = self.epochs.front().is_some_and(|e| e.fua && e.epoch <= written);
            if !self.geometry.volatile_cache {
                self.became_durable(written);
            } else if by_itself {
                self.became_durable(self.durable + 1);
            } else if self.flushes_due.first().is_some_and(|due| *due <= written) && !self.flush_in_flight {
                self.flush_now();
            }
        }
    }

    /// Sends a flush; none is on its way.
    pub fn flush_now(&mut self) {
        let written = self.written();
        self.flush_in_flight = true;
        self.counters.flushes += 1;
        self.submit(Request::flush(0), Io { kind: IoKind::Flush { written }, epoch: None });
    }

    /// Somebody wants `epoch` to be durable. The flush for that is sent when it is written, not when an earlier one is: that would be
    /// a flush more.
    pub fn want_flush(&mut self, epoch: u64) {
        self.flush_wanted = self.flush_wanted.max(epoch);
        if epoch > self.durable {
            self.flushes_due.insert(epoch);
        }
    }

    /// Everything up to `epoch` is durable.
    pub fn became_durable(&mut self, epoch: u64) {
        while self.epochs.front().is_some_and(|e| e.epoch <= epoch) {
            let state = self.epochs.pop_front().expect("looked at");
            self.durable = state.epoch;
            self.guard_epochs.push_back((state.epoch, state.guarded));
            self.recorded_until(state.recorded);
        }
        self.flushes_due = self.flushes_due.split_off(&(self.durable + 1));
        let woken = self.wake_durable(self.durable);
        let held_back = self.gather(woken);
        if self.close_wanted && !held_back {
            self.close_wanted = false;
            match self.close_epoch_for(Reason::Sync) {
                Ok(_) => return,
                Err(Stop::Wait(_)) => self.close_wanted = true,
                Err(Stop::Error(_)) => {}
            }
        }
        self.advance();
    }

    /// A durable record says that epochs up to `epoch` are durable: their blocks need no guard, and what they freed may be
    /// used again.
    pub fn recorded_until(&mut self, epoch: u64) {
        if epoch <= self.recorded {
            return;
        }
        self.recorded = epoch;
        while self.guard_epochs.front().is_some_and(|(e, _)| *e <= epoch) {
            let (e, blocks) = self.guard_epochs.pop_front().expect("looked at");
            for block in blocks {
                if self.guards.get(&block).is_some_and(|g| g.1 == e) {
                    self.guards.remove(&block);
                }
            }
        }
        self.release_freed();
    }

    /// Takes out of quarantine what may be used again.
    pub fn release_freed(&mut self) {
        let freed = self.space.release(self.reusable());
        if !freed.is_empty() {
            self.discard_freed(&freed);
            self.wake(Wait::Progress);
        }
    }
}
