//! Checkpoints: bringing what the log holds to its home places, so that log space can be used again.
//!
//! A checkpoint takes the state at the end of one epoch C and runs beside everything else. An inode that is changed
//! meanwhile keeps its image of C in `stashed`. Steps, each begun when the one before is over on the medium:
//! 1. close epoch C and wait until it is durable;
//! 2. write a checkpoint block that only says "C is durable", so that no recovery verifies checksums of blocks that step
//!    3 overwrites;
//! 3. write the inodes to their slots, logged pages to their blocks, changed blocks of the inode segment table to their
//!    other homes; flush;
//! 4. write the checkpoint block that lets recovery begin behind C; only then is the log space free.
//!
//! A crash between any two of these leaves the log whole: recovery begins at the old checkpoint and finds every image.

mod homes;
mod pace;

pub(crate) use homes::Batch;

use crate::core::{Core, Logged, Res, Wait};
use crate::epoch::Reason;
use crate::inode::{IN_CHECKPOINT, SINCE_CHECKPOINT, Slot};
use crate::io::{Frames, Io, IoKind};
use foldhash::fast::FixedState;
use format::checkpoint::{CHECKPOINTS, Checkpoint};
use format::limits::{BLOCK_SIZE, SEGMENT_BLOCKS};
use format::{BlockNo, Epoch, SegNo};
use media::{Op, Request};
use std::collections::HashMap;
use std::time::Duration;

const PER_CHUNK: u32 = SEGMENT_BLOCKS as u32;

/// What is on its way to the medium, or waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    AwaitDurable,
    MarkWrite,
    MarkFlush,
    Homes,
    HomesFlush,
    BlockWrite,
    BlockFlush,
}

/// A checkpoint on its way.
pub(crate) struct Checkpointing {
    epoch: u64,
    step: Step,
    /// Only says that the epoch is durable, and brings nothing home.
    mark_only: bool,
    /// Transfers of the current step that have not completed.
    pub in_flight: usize,
    /// When the newest transfer was sent.
    sent: Duration,
    /// No home write before, unless there is a hurry.
    rest_until: Duration,
    /// The next home write waits for that moment.
    resting: bool,
    /// Inodes to be written, sorted, and how many are done.
    slots: Vec<Slot>,
    next_slot: usize,
    /// Chunks whose segment was never written as a whole, and how many slots of the last one are done.
    fresh: Vec<u32>,
    fresh_done: usize,
    /// Inode blocks to be filled in without the lock.
    batch: Option<Batch>,
    pub stashed: HashMap<Slot, Box<[u8]>, FixedState>,
    /// Images of overwrites, by block.
    pub pages: HashMap<u64, Logged, FixedState>,
    pages_todo: Vec<u64>,
    /// The inode segment table at the end of the epoch.
    table: Vec<u32>,
    tables_written: bool,
    new_homes: Vec<(usize, u8, Vec<u32>)>,
    /// Where the log goes on behind the epoch, and the checksum to which its next record is chained.
    pub log_end: Option<(u64, u32)>,
}

impl Checkpointing {
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Core {
    /// Begins a checkpoint of everything up to now. `Wait` when the epoch cannot be closed yet.
    pub fn begin_checkpoint(&mut self) -> Res<()> {
        if !self.slab.empty_chunks().is_empty() {
            self.close_for_checkpoint()?;
            self.release_empty_chunks();
        }
        let epoch = self.close_for_checkpoint()?;
        self.want_flush(epoch);
        let mut slots = std::mem::take(&mut self.since_checkpoint);
        slots.retain(|&s| {
            let known = self.slab.chunk(s / PER_CHUNK).is_some();
            if !known {
                // Should the position get a segment again, the slot must be noted as changed again.
                self.slab.get_mut(s).flags &= !SINCE_CHECKPOINT;
            }
            known
        });
        slots.sort_unstable();
        slots.dedup();
        for &slot in &slots {
            let inode = self.slab.get_mut(slot);
            inode.flags = inode.flags & !SINCE_CHECKPOINT | IN_CHECKPOINT;
        }
        let pages = std::mem::take(&mut self.logged);
        let mut pages_todo: Vec<u64> = pages.keys().copied().collect();
        pages_todo.sort_unstable_by(|a, b| b.cmp(a));
        let fresh = (0..self.slab.table_len())
            .filter(|&i| self.slab.chunk(i).is_some_and(|c| !c.initialized))
            .collect();
        self.checkpoint_wanted = false;
        let table = self.slab.table().map(|s| s.map_or(0, |s| s.0)).collect();
        let log_end = self.log_end();
        self.checkpointing = Some(Box::new(Checkpointing {
            epoch,
            step: Step::AwaitDurable,
            mark_only: false,
            in_flight: 0,
            sent: Duration::ZERO,
            rest_until: Duration::ZERO,
            resting: false,
            slots,
            next_slot: 0,
            fresh,
            fresh_done: 0,
            batch: None,
            stashed: HashMap::default(),
            pages,
            pages_todo,
            table,
            tables_written: false,
            new_homes: Vec::new(),
            log_end,
        }));
        self.advance();
        Ok(())
    }

    /// Closes the running epoch with the log space that others leave for this ([`Core::leaves_log_space`]).
    fn close_for_checkpoint(&mut self) -> Res<u64> {
        self.closes_for_checkpoint = true;
        let closed = self.close_epoch_for(Reason::Background);
        self.closes_for_checkpoint = false;
        closed
    }

    /// Begins to say on the medium that all closed epochs are durable, so that what they freed can be used: the running epoch
    /// cannot be closed for lack of space, so no checkpoint can begin.
    pub fn begin_mark(&mut self) {
        let epoch = self.last_closed();
        if self.checkpointing.is_some() || self.recorded >= epoch {
            return;
        }
        self.want_flush(epoch);
        self.checkpointing = Some(Box::new(Checkpointing {
            epoch,
            step: Step::AwaitDurable,
            mark_only: true,
            in_flight: 0,
            sent: Duration::ZERO,
            rest_until: Duration::ZERO,
            resting: false,
            slots: Vec::new(),
            next_slot: 0,
            fresh: Vec::new(),
            fresh_done: 0,
            batch: None,
            stashed: HashMap::default(),
            pages: HashMap::default(),
            pages_todo: Vec::new(),
            table: Vec::new(),
            tables_written: false,
            new_homes: Vec::new(),
            log_end: None,
        }));
        self.advance();
        self.wake_worker = true;
    }

    fn end_mark(&mut self) {
        self.checkpointing = None;
        self.wake(Wait::Progress);
        self.advance();
    }

    /// Segments of inodes that hold none any more can take another role.
    fn release_empty_chunks(&mut self) {
        for index in self.slab.empty_chunks() {
            // The slot itself must not be in the record that is being built.
            if self.running.slots.iter().any(|s| s / PER_CHUNK == index) {
                continue;
            }
            if let Some(segment) = self.slab.remove_chunk(index) {
                self.running.assignments.push((index, 0));
                self.give_back(crate::space::Run { block: segment.first_block(), count: PER_CHUNK });
            }
        }
    }

    /// Moves the running checkpoint on. Called whenever one of its transfers has completed, or an epoch became durable.
    pub fn drive_checkpoint(&mut self) {
        while let Some(c) = &mut self.checkpointing {
            if self.latched.is_some() || (c.in_flight > 0 && c.step != Step::Homes) {
                return;
            }
            let epoch = c.epoch;
            let next = match c.step {
                Step::AwaitDurable if self.durable < epoch => return,
                Step::AwaitDurable if c.mark_only && self.recorded >= epoch => return self.end_mark(),
                Step::AwaitDurable
                    if !c.mark_only
                        && (self.recorded >= epoch || (c.slots.is_empty() && c.pages.is_empty())) =>
                {
                    Step::Homes
                }
                Step::AwaitDurable => {
                    let mark = Checkpoint {
                        sequence: self.checkpoint.sequence + 1,
                        durable_epoch: Epoch(epoch),
                        ..self.checkpoint.running()
                    };
                    if !self.write_checkpoint_block(mark) {
                        return;
                    }
                    Step::MarkWrite
                }
                Step::MarkWrite => {
                    self.checkpoint_flush();
                    Step::MarkFlush
                }
                Step::MarkFlush => {
                    let mark_only = c.mark_only;
                    self.recorded_until(epoch);
                    if mark_only {
                        return self.end_mark();
                    }
                    Step::Homes
                }
                Step::Homes => {
                    if !self.write_homes() || self.checkpointing.as_ref().is_some_and(|c| c.in_flight > 0) {
                        return;
                    }
                    self.checkpoint_flush();
                    Step::HomesFlush
                }
                Step::HomesFlush => {
                    let Some((end, chain)) = c.log_end else { return };
                    let table_len = c.table.iter().rposition(|&s| s != 0).map_or(0, |i| i + 1);
                    let table: Vec<Option<SegNo>> =
                        c.table[..table_len].iter().map(|&s| (s != 0).then_some(SegNo(s))).collect();
                    let block = Checkpoint {
                        sequence: self.checkpoint.sequence + 1,
                        table_crc: format::segtable::table_crc(&table),
                        epoch: Epoch(epoch),
                        log_position: end % self.log.capacity(),
                        chain,
                        inode_segments: table_len as u32,
                        durable_epoch: Epoch(epoch.max(self.checkpoint.durable_epoch.0)),
                        ..self.checkpoint.running()
                    };
                    if !self.write_checkpoint_block(block) {
                        return;
                    }
                    Step::BlockWrite
                }
                Step::BlockWrite => {
                    self.checkpoint_flush();
                    Step::BlockFlush
                }
                Step::BlockFlush => return self.end_checkpoint(),
            };
            if let Some(c) = &mut self.checkpointing {
                c.step = next;
            }
        }
    }

    fn checkpoint_io(&mut self, request: Request, kind: IoKind) {
        self.checkpoint_sent();
        self.submit(request, Io { kind, epoch: None });
    }

    fn checkpoint_flush(&mut self) {
        if self.geometry.volatile_cache {
            self.counters.flushes += 1;
            self.checkpoint_io(Request::flush(0), IoKind::Checkpoint { buffer: None, frames: Frames::new() });
        }
    }

    /// Writes one block from scratch memory; false when there is none now.
    fn checkpoint_write(&mut self, at: BlockNo, bytes: &[u8]) -> bool {
        let Some(buffer) = self.scratch.take(bytes.len() / BLOCK_SIZE) else { return false };
        self.scratch.fill(&buffer, |to| to.copy_from_slice(bytes));
        let buf = self.scratch.buf_ref(&buffer, 0, bytes.len());
        let buffer = Some(self.ios.share(buffer, 1));
        self.checkpoint_io(
            Request::transfer(Op::Write, at.byte(), buf, 0),
            IoKind::Checkpoint { buffer, frames: Frames::new() },
        );
        true
    }

    fn write_checkpoint_block(&mut self, block: Checkpoint) -> bool {
        let at = CHECKPOINTS[(block.sequence % 2) as usize];
        let written = self.checkpoint_write(at, &block.encode());
        if written {
            self.checkpoint = block;
        }
        written
    }

    fn end_checkpoint(&mut self) {
        let Some(c) = self.checkpointing.take() else { return };
        for (index, home, entries) in c.new_homes {
            if self.table_homes.len() <= index {
                self.table_homes.resize(index + 1, (1, Vec::new()));
            }
            self.table_homes[index] = (home, entries);
        }
        if let Some((end, _)) = c.log_end {
            self.log.tail = end;
        }
        self.recorded_until(c.epoch);
        self.checkpoint_hurry = false;
        self.checkpoints_done += 1;
        self.counters.checkpoints += 1;
        // Blocks that were held because of an image in the log: the log no longer has it.
        let held = std::mem::take(&mut self.held);
        for (run, epoch) in held {
            let image = (run.block.0..run.block.0 + run.count as u64).any(|b| self.has_image(b));
            match image {
                true => self.held.push((run, epoch)),
                false if epoch <= self.reusable() => {
                    self.space.free(run);
                    self.discard_freed(&[run]);
                }
                false => self.space.quarantine(run, epoch),
            }
        }
        // What was changed before it is clean from now on.
        self.tails_to_look_at = self.tails.len();
        self.wake_worker = true;
        self.wake(Wait::Progress);
        self.advance();
    }
}
