//! What a checkpoint brings home (its step 3): logged pages, the slots of inodes, the inode segment table.
//!
//! A bounded number of writes is on its way at a time. Neighbouring pages go with one write; neighbouring inode blocks go as one batch: their images are collected
//! under the lock, the blocks and their checksums made by the worker without it. An image that was stashed, because the inode
//! changed since, is preferred to the inode as it is now. A segment that has just become an inode segment is written as a
//! whole: whatever it held before must not be taken for inodes. Tested in tests/power.rs.

use super::PER_CHUNK;
use crate::core::Core;
use crate::inode::{IN_CHECKPOINT, Slot};
use crate::io::{Frames, Io, IoKind};
use foldhash::fast::FixedState;
use format::limits::{BLOCK_SIZE, SEGMENT_BLOCKS};
use format::segtable::{ENTRIES_PER_BLOCK, encode as encode_table, homes};
use format::{BlockNo, SegNo};
use media::{BufRef, Op, Request};
use smallvec::SmallVec;
use std::collections::HashMap;

/// Blocks in one write of inodes.
const BATCH: usize = 128;
/// Logged pages in one write.
const PAGES: usize = 256;
/// Writes of a checkpoint on their way at a time.
const IN_FLIGHT_MAX: usize = 16;

/// Neighbouring inode blocks on their way: images are collected under the lock, blocks and checksums made without it.
pub(crate) struct Batch {
    at: BlockNo,
    buffer: crate::scratch::Buffer,
    arena: std::sync::Arc<media::Arena>,
    images: Vec<u8>,
    /// End of each slot's image in `images`; as long as the one before for a slot that was never used.
    ends: Vec<usize>,
}

impl Batch {
    /// Makes the blocks.
    pub fn fill(&self) {
        let mut start = 0;
        for (i, &end) in self.ends.iter().enumerate() {
            // SAFETY: the buffer belongs to this batch, and its transfer is not submitted before this call is over.
            unsafe {
                self.arena.with_mut(self.buffer.offset() + (i * BLOCK_SIZE) as u64, BLOCK_SIZE, |to| {
                    if start == end {
                        to.fill(0);
                    } else {
                        format::inode::fill_block(&self.images[start..end], to);
                    }
                })
            }
            start = end;
        }
    }
}

impl Core {
    /// Submits home writes, a bounded number at a time; true when all were submitted. Inode blocks are left in `batch`, for
    /// the worker to fill without the lock.
    pub(super) fn write_homes(&mut self) -> bool {
        loop {
            let Some(c) = &mut self.checkpointing else { return true };
            if c.in_flight >= IN_FLIGHT_MAX || c.batch.is_some() || self.rests() {
                return false;
            }
            let Some(c) = &self.checkpointing else { return true };
            let more = if !c.pages_todo.is_empty() {
                self.write_pages_home()
            } else if let Some(&index) = c.fresh.last() {
                self.collect_fresh(index);
                return false;
            } else if c.next_slot < c.slots.len() {
                self.collect_slots()
            } else if !c.tables_written {
                self.write_tables()
            } else {
                return true;
            };
            if !more {
                return false;
            }
        }
    }

    /// Whether the worker has a batch to fill.
    pub fn batch_waits(&self) -> bool {
        self.checkpointing.as_ref().is_some_and(|c| c.batch.is_some())
    }

    /// The batch that the worker has to fill.
    pub fn take_batch(&mut self) -> Option<Batch> {
        self.checkpointing.as_mut()?.batch.take()
    }

    /// Submits a filled batch; it was counted when it was collected.
    pub fn submit_batch(&mut self, batch: Batch) {
        let buf = self.scratch.buf_ref(&batch.buffer, 0, batch.buffer.len());
        self.counters.inode_blocks += batch.ends.len() as u64;
        let buffer = Some(self.ios.share(batch.buffer, 1));
        let request = Request::transfer(Op::Write, batch.at.byte(), buf, 0);
        self.submit(request, Io { kind: IoKind::Checkpoint { buffer, frames: Frames::new() }, epoch: None });
    }

    /// Writes the next run of logged pages whose blocks are neighbours.
    fn write_pages_home(&mut self) -> bool {
        let max = (self.geometry.max_transfer as usize / BLOCK_SIZE).min(PAGES);
        let Some(c) = &mut self.checkpointing else { return true };
        let mut frames = Frames::new();
        let mut bufs: SmallVec<[BufRef; 1]> = SmallVec::new();
        let mut first = 0;
        while frames.len() < max
            && let Some(&block) = c.pages_todo.last()
            && (frames.is_empty() || block == first + frames.len() as u64)
        {
            c.pages_todo.pop();
            // The entry stays: until the checkpoint is over the block must not be overwritten by others.
            let Some(frame) = c.pages.get_mut(&block).and_then(|p| p.frame.take()) else { break };
            if frames.is_empty() {
                first = block;
            }
            let offset = frame.offset();
            match bufs.last_mut() {
                Some(last) if last.offset + last.len as u64 == offset => last.len += BLOCK_SIZE as u32,
                _ => bufs.push(BufRef { arena: self.cache_arena, offset, len: BLOCK_SIZE as u32 }),
            }
            frames.push(frame);
        }
        if !frames.is_empty() {
            let request = Request::vectored(Op::Write, BlockNo(first).byte(), bufs, 0);
            self.checkpoint_io(request, IoKind::Checkpoint { buffer: None, frames });
        }
        true
    }

    /// Appends the image that `slot` should have at the end of the checkpoint's epoch; nothing when it was never used until
    /// then.
    fn collect_image(&mut self, slot: Slot, images: &mut Vec<u8>) {
        let flags = self.slab.get(slot).flags;
        if let Some(stashed) = self.checkpointing.as_mut().and_then(|c| c.stashed.remove(&slot)) {
            images.extend_from_slice(&stashed);
        } else if flags & IN_CHECKPOINT != 0 {
            self.encode_image(slot, images);
            self.slab.get_mut(slot).flags &= !IN_CHECKPOINT;
        }
    }

    /// Collects `n` neighbouring slots into a batch; false when there is no memory now.
    fn collect(&mut self, first: Slot, n: usize, at: BlockNo) -> bool {
        let Some(buffer) = self.scratch.take(n) else { return false };
        let (mut images, mut ends) = (Vec::with_capacity(n * 256), Vec::with_capacity(n));
        for slot in first..first + n as u32 {
            self.collect_image(slot, &mut images);
            ends.push(images.len());
        }
        let arena = self.scratch.arena.clone();
        self.checkpoint_sent();
        if let Some(c) = &mut self.checkpointing {
            c.batch = Some(Batch { at, buffer, arena, images, ends });
        }
        true
    }

    /// Collects a part of a segment that has just become an inode segment. It is written as a whole: whatever it held before
    /// must not be taken for inodes.
    fn collect_fresh(&mut self, index: u32) {
        let done = self.checkpointing.as_ref().map_or(0, |c| c.fresh_done);
        let segment = self.slab.chunk(index).map(|c| c.segment);
        if let Some(segment) = segment {
            let at = BlockNo(segment.first_block().0 + done as u64);
            if !self.collect(index * PER_CHUNK + done as u32, BATCH, at) {
                return;
            }
        }
        let Some(c) = &mut self.checkpointing else { return };
        c.fresh_done += BATCH;
        if c.fresh_done >= SEGMENT_BLOCKS || segment.is_none() {
            c.fresh.pop();
            c.fresh_done = 0;
            if let Some(chunk) = self.slab.chunk_mut(index) {
                chunk.initialized = true;
            }
        }
    }

    /// Collects one run of neighbouring slots.
    fn collect_slots(&mut self) -> bool {
        let Some(c) = &mut self.checkpointing else { return true };
        let due = |slab: &crate::slab::Slab, stashed: &HashMap<Slot, Box<[u8]>, FixedState>, slot: Slot| {
            let known = slab.chunk(slot / PER_CHUNK).is_some();
            known && (slab.get(slot).flags & IN_CHECKPOINT != 0 || stashed.contains_key(&slot))
        };
        let first = c.slots[c.next_slot];
        if !due(&self.slab, &c.stashed, first) {
            // Written with its whole segment, or its segment took another role since; the log knows.
            c.next_slot += 1;
            return true;
        }
        let mut n = 1;
        while n < BATCH
            && c.slots.get(c.next_slot + n) == Some(&(first + n as u32))
            && (first + n as u32) / PER_CHUNK == first / PER_CHUNK
            && due(&self.slab, &c.stashed, first + n as u32)
        {
            n += 1;
        }
        let Ok(at) = self.slot_block(first) else { return true };
        if !self.collect(first, n, at) {
            return false;
        }
        if let Some(c) = &mut self.checkpointing {
            c.next_slot += n;
        }
        true
    }

    /// Writes the blocks of the inode segment table that changed, each to its other home. They count once the checkpoint
    /// block with their sequence number is there.
    fn write_tables(&mut self) -> bool {
        let Some(c) = &self.checkpointing else { return true };
        let sequence = self.checkpoint.sequence + 1;
        let mut writes = Vec::new();
        for (index, part) in c.table.chunks(ENTRIES_PER_BLOCK).enumerate() {
            let current = self.table_homes.get(index);
            if current.is_none_or(|(_, entries)| entries != part) {
                let home = current.map_or(0, |(home, _)| 1 - home);
                writes.push((index, home, part.to_vec()));
            }
        }
        for (index, home, entries) in &writes {
            let segments: Vec<Option<SegNo>> =
                entries.iter().map(|&s| (s != 0).then_some(SegNo(s))).collect();
            let block = encode_table(&self.uuid, sequence, *index, &segments);
            if !self.checkpoint_write(homes(*index)[*home as usize], &block) {
                return false;
            }
        }
        if let Some(c) = &mut self.checkpointing {
            c.tables_written = true;
            c.new_homes = writes;
        }
        true
    }
}
