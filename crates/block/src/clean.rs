//! The clean stop, and the index checkpoint that it leaves: inodes without their tails and the usage of segments, so that
//! the next mount reads them in one sweep. The index checkpoint stands in free segments and counts only as long as the
//! log is empty; it is derived, checked by checksums, and done without when anything about it is wrong.

use crate::core::{Core, Res, Stop, Wait};
use crate::derive::derive;
use crate::epoch::Reason;
use crate::inode::{HAS_XATTRS, Inode, Slot, TAIL_ON_MEDIUM};
use crate::io::{Io, IoKind};
use crate::load::Fixed;
use crate::space::Run;
use format::checkpoint::{CHECKPOINTS, Checkpoint, INDEX_RUNS_MAX, SegmentRun};
use format::index::{PIECE_BYTES, PieceHeader, PieceKind, SegmentUsage, parse, seal};
use format::inode::{ENTRY_HAS_TAIL, ENTRY_NO_XATTRS, SlotKind, TailKind, encode_compact, parse_compact};
use format::limits::{BLOCK_SIZE, SEGMENT_BLOCKS, SEGMENT_SIZE};
use format::{BlockNo, SegNo};
use fs::{Error, Result};
use media::blocking::Blocking;
use media::{Op, Request};
use zerocopy::{FromBytes, IntoBytes};

/// Progress of a clean stop.
#[derive(Default)]
pub(crate) struct Closing {
    synced: Option<u64>,
    checkpoint: Option<u64>,
    writer: Option<IndexWriter>,
}

/// Produces the pieces of the index checkpoint one after another.
struct IndexWriter {
    /// Segments that will hold the pieces, in order.
    segments: Vec<SegNo>,
    runs: Vec<(SegNo, u32)>,
    sequence: u64,
    next_piece: usize,
    slots: Vec<Slot>,
    next_slot: usize,
    partial: Vec<SegmentUsage>,
    full: Vec<SegmentRun>,
    finished: Finish,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Finish {
    #[default]
    Pieces,
    Flush,
    Block,
    LastFlush,
    Done,
}

impl Core {
    /// Waits until `epoch` is durable, or fails when that can no longer happen, or when its commit was refused since there were so many [`Core::refusals`].
    pub fn durable(&mut self, epoch: u64, refusals: u64) -> Res<()> {
        if self.durable >= epoch {
            return Ok(());
        }
        if let Some(why) = &self.latched {
            return Err(Error::Latched(why.clone()).into());
        }
        if let Some((refused, why)) = &self.refused
            && *refused == epoch
            && epoch == self.running.epoch
            && self.refusals > refusals
        {
            return Err(why.clone().into());
        }
        Err(Stop::Wait(Wait::Durable(epoch)))
    }

    /// Waits for a checkpoint that begins now or later.
    pub fn await_checkpoint(&mut self, due: &mut Option<u64>) -> Res<()> {
        if let Some(why) = &self.latched {
            return Err(Error::Latched(why.clone()).into());
        }
        let target = *due.get_or_insert(self.checkpoints_done + 1 + self.checkpointing.is_some() as u64);
        if self.checkpoints_done >= target {
            return Ok(());
        }
        self.hurry_checkpoint();
        Err(Stop::Wait(Wait::Progress))
    }

    /// Drops what can be read again.
    pub fn drop_caches(&mut self) {
        self.cache.drop_clean();
        let tails = std::mem::take(&mut self.tails);
        for slot in tails {
            if !self.drop_tail(slot) {
                self.tails.push_back(slot);
            }
        }
    }

    /// The volume cannot be stopped cleanly: let the worker end.
    pub fn give_up(&mut self) {
        self.closing = true;
        self.latch("it could not be stopped cleanly".into());
    }

    /// Steps of a clean stop: no more changes, everything durable, everything home, the index checkpoint.
    pub fn close(&mut self, closing: &mut Closing) -> Res<()> {
        self.closing = true;
        if self.closed {
            return Ok(());
        }
        if let Some(why) = &self.latched {
            return Err(Error::Latched(why.clone()).into());
        }
        if self.read_only {
            self.closed = true;
            self.wake_worker = true;
            return Ok(());
        }
        if closing.writer.is_none() {
            let epoch = match closing.synced {
                Some(epoch) => epoch,
                None => *closing.synced.insert(self.close_epoch_for(Reason::Sync)?),
            };
            self.durable(epoch, self.refusals)?;
            self.await_checkpoint(&mut closing.checkpoint)?;
            if self.checkpointing.is_some() || self.ios.in_flight > 0 {
                return Err(Stop::Wait(Wait::Progress));
            }
            closing.writer = Some(IndexWriter::new(self));
        }
        let writer = closing.writer.as_mut().expect("made above");
        while writer.finished != Finish::Done {
            self.write_index(writer)?;
        }
        self.closed = true;
        self.wake_worker = true;
        Ok(())
    }

    /// One step of writing the index checkpoint.
    fn write_index(&mut self, w: &mut IndexWriter) -> Res<()> {
        if let Some(why) = &self.latched {
            return Err(Error::Latched(why.clone()).into());
        }
        match w.finished {
            Finish::Pieces if w.next_piece < w.segments.len() => {
                let Some(buffer) = self.scratch.take(SEGMENT_BLOCKS) else {
                    return Err(Stop::Wait(Wait::Progress));
                };
                let arena = self.scratch.arena.clone();
                // SAFETY: the buffer was just taken and no transfer uses it yet.
                let filled = unsafe {
                    arena.with_mut(buffer.offset(), buffer.len(), |piece| w.fill_piece(self, piece))
                };
                if !filled {
                    self.scratch.give_back(buffer);
                    w.segments.truncate(w.next_piece);
                    return Ok(());
                }
                let at = w.segments[w.next_piece].first_block().byte();
                let max = self.geometry.max_transfer as usize;
                let parts: Vec<usize> = (0..SEGMENT_SIZE).step_by(max).collect();
                let bufs: Vec<_> = parts
                    .iter()
                    .map(|&p| (p, self.scratch.buf_ref(&buffer, p, max.min(SEGMENT_SIZE - p))))
                    .collect();
                let buffer = self.ios.share(buffer, parts.len());
                for (p, buf) in bufs {
                    let request = Request::transfer(Op::Write, at + p as u64, buf, 0);
                    self.submit(request, Io { kind: IoKind::Buffer { buffer }, epoch: None });
                }
                w.next_piece += 1;
            }
            Finish::Pieces | Finish::Block if self.ios.in_flight > 0 => {
                return Err(Stop::Wait(Wait::Progress));
            }
            Finish::Flush | Finish::LastFlush if self.ios.in_flight > 0 => {
                return Err(Stop::Wait(Wait::Progress));
            }
            Finish::Pieces => {
                self.close_flush();
                w.finished = Finish::Flush;
            }
            Finish::Flush => {
                let block = w.checkpoint(self);
                let Some(buffer) = self.scratch.take(1) else { return Err(Stop::Wait(Wait::Progress)) };
                self.scratch.fill(&buffer, |to| to.copy_from_slice(&block.encode()));
                let buf = self.scratch.buf_ref(&buffer, 0, BLOCK_SIZE);
                let buffer = self.ios.share(buffer, 1);
                let at = CHECKPOINTS[(block.sequence % 2) as usize];
                let request = Request::transfer(Op::Write, at.byte(), buf, 0);
                self.submit(request, Io { kind: IoKind::Buffer { buffer }, epoch: None });
                self.checkpoint = block;
                w.finished = Finish::Block;
            }
            Finish::Block => {
                self.close_flush();
                w.finished = Finish::LastFlush;
            }
            Finish::LastFlush => w.finished = Finish::Done,
            Finish::Done => {}
        }
        Ok(())
    }

    fn close_flush(&mut self) {
        if self.geometry.volatile_cache {
            self.submit(Request::flush(0), Io { kind: IoKind::Flush { written: self.durable }, epoch: None });
        }
    }
}

impl IndexWriter {
    /// Measures what is to be written and finds segments for it. Without room there is no index checkpoint.
    fn new(core: &Core) -> IndexWriter {
        let slots: Vec<Slot> = core.slab.iter().map(|(slot, _)| slot).collect();
        let (mut partial, mut full) = (Vec::new(), Vec::<SegmentRun>::new());
        for seg in 0..(core.space.total() / SEGMENT_BLOCKS as u64) as u32 {
            match core.space.usage(seg) {
                Ok(bits) => {
                    let used = bits.iter().map(|w| w.count_ones()).sum::<u32>();
                    partial.push(SegmentUsage {
                        segment: seg.into(),
                        used: used.into(),
                        bitmap: bits.map(Into::into),
                    });
                }
                Err(true) => match full.last_mut() {
                    Some(run) if run.first.get() + run.count.get() == seg => {
                        run.count = (run.count.get() + 1).into()
                    }
                    _ => full.push(SegmentRun { first: seg.into(), count: 1.into() }),
                },
                Err(false) => {}
            }
        }
        let bytes: usize = slots.iter().map(|&s| entry_len(core.slab.get(s))).sum();
        let pieces = bytes.div_ceil(PIECE_BYTES - 512)
            + (partial.len() * size_of::<SegmentUsage>()).div_ceil(PIECE_BYTES - 128)
            + (full.len() * size_of::<SegmentRun>()).div_ceil(PIECE_BYTES - 128);
        let (mut segments, mut runs) = (Vec::new(), Vec::new());
        for (first, count) in core.space.free_segment_runs() {
            if segments.len() == pieces || runs.len() == INDEX_RUNS_MAX {
                break;
            }
            let take = count.min((pieces - segments.len()) as u32);
            segments.extend((first.0..first.0 + take).map(SegNo));
            runs.push((first, take));
        }
        if segments.len() < pieces {
            segments.clear();
        }
        IndexWriter {
            segments,
            runs,
            sequence: core.checkpoint.sequence + 1,
            next_piece: 0,
            slots,
            next_slot: 0,
            partial,
            full,
            finished: Finish::Pieces,
        }
    }

    /// Fills the next piece; false when nothing is left.
    fn fill_piece(&mut self, core: &Core, piece: &mut [u8]) -> bool {
        let head = size_of::<PieceHeader>();
        let (mut used, mut entries) = (0, 0);
        let mut bytes = Vec::with_capacity(512);
        let kind = if self.next_slot < self.slots.len() {
            while let Some(&slot) = self.slots.get(self.next_slot) {
                bytes.clear();
                encode_entry(core.slab.get(slot), slot, &mut bytes);
                if used + bytes.len() > PIECE_BYTES {
                    break;
                }
                piece[head + used..][..bytes.len()].copy_from_slice(&bytes);
                used += bytes.len();
                entries += 1;
                self.next_slot += 1;
            }
            PieceKind::Inodes
        } else if !self.partial.is_empty() {
            let n = self.partial.len().min(PIECE_BYTES / size_of::<SegmentUsage>());
            let part: Vec<SegmentUsage> = self.partial.drain(..n).collect();
            used = part.as_bytes().len();
            piece[head..head + used].copy_from_slice(part.as_bytes());
            entries = n as u32;
            PieceKind::Partial
        } else if !self.full.is_empty() {
            let n = self.full.len().min(PIECE_BYTES / size_of::<SegmentRun>());
            let part: Vec<SegmentRun> = self.full.drain(..n).collect();
            used = part.as_bytes().len();
            piece[head..head + used].copy_from_slice(part.as_bytes());
            entries = n as u32;
            PieceKind::Full
        } else {
            return false;
        };
        piece[head + used..].fill(0);
        seal(&core.uuid, self.sequence, self.next_piece as u32, kind, entries, used, piece);
        true
    }

    fn checkpoint(&mut self, core: &Core) -> Checkpoint {
        let complete = self.next_piece > 0
            && self.next_slot == self.slots.len()
            && self.partial.is_empty()
            && self.full.is_empty();
        let mut runs = Vec::new();
        let mut left = if complete { self.next_piece as u32 } else { 0 };
        for &(first, count) in &self.runs {
            if left > 0 {
                runs.push((first, count.min(left)));
                left -= count.min(left);
            }
        }
        Checkpoint {
            sequence: self.sequence,
            clean: true,
            index_pieces: if complete { self.next_piece as u32 } else { 0 },
            index_inodes: if complete { self.slots.len() as u64 } else { 0 },
            index_runs: runs,
            stops: [core.opening, core.stops[0], core.stops[1], core.stops[2]],
            generation: core.slab.generation_max(),
            ..core.checkpoint.clone()
        }
    }
}

fn entry_len(inode: &Inode) -> usize {
    (4 + format::limits::INODE_HEADER + inode.name.bytes().len()).next_multiple_of(8)
}

/// An inode without its tail: a u32 length and a compact image, padded to 8.
fn encode_entry(inode: &Inode, slot: Slot, out: &mut Vec<u8>) {
    let mut header = inode.header(slot);
    header.tail_kind = TailKind::None as u8;
    let has_tail = inode.flags & TAIL_ON_MEDIUM != 0 || inode.tail.as_ref().is_some_and(|t| !t.is_empty());
    let without = inode.flags & HAS_XATTRS == 0;
    header.flags |= (has_tail as u32 * ENTRY_HAS_TAIL) | (without as u32 * ENTRY_NO_XATTRS);
    out.extend_from_slice(&[0; 4]);
    let len = encode_compact(&header, inode.name.bytes(), b"", b"", out);
    out[..4].copy_from_slice(&(len as u32).to_le_bytes());
    out.resize(out.len().next_multiple_of(8), 0);
}

fn wrong(rule: &'static str) -> Error {
    format::FormatError::new("index checkpoint", format::error::Fault::Rule(rule)).into()
}

/// Builds the state from the index checkpoint.
pub(crate) fn load_index(core: &mut Core, device: &Blocking, fixed: &Fixed) -> Result<()> {
    let cp = &fixed.checkpoint;
    let total = fixed.superblock.segments();
    for (index, segment) in fixed.table.iter().enumerate() {
        if let Some(segment) = segment {
            core.slab.add_chunk(index as u32, *segment, true);
        }
    }
    let mut inodes = 0;
    let mut piece = vec![0; SEGMENT_SIZE];
    let segments = cp.index_runs.iter().flat_map(|&(first, count)| (first.0..first.0 + count).map(SegNo));
    for (number, segment) in segments.enumerate() {
        device.read(segment.first_block().byte(), &mut piece)?;
        let (kind, entries, bytes) =
            parse(&piece, &core.uuid, cp.sequence, number as u32).map_err(|e| e.at(segment.first_block()))?;
        match kind {
            PieceKind::Inodes => inodes += load_inodes(core, entries, bytes)?,
            PieceKind::Partial => {
                let part =
                    <[SegmentUsage]>::ref_from_bytes(bytes).map_err(|_| wrong("piece is cut short"))?;
                for usage in part {
                    claim_usage(core, usage, total)?;
                }
            }
            PieceKind::Full => {
                let part = <[SegmentRun]>::ref_from_bytes(bytes).map_err(|_| wrong("piece is cut short"))?;
                for run in part {
                    let (first, count) = (run.first.get(), run.count.get());
                    if first.checked_add(count).is_none_or(|end| end > total) {
                        return Err(wrong("segment beyond the volume"));
                    }
                    for seg in first.max(1)..first + count {
                        crate::derive::claim_segment(core, SegNo(seg), "index checkpoint")?;
                    }
                }
            }
        }
    }
    // Nothing else may be put there, and what is in use of them nobody has looked at.
    let taken = |segment: &SegNo| core.space.usage(segment.0) == Err(true);
    if !cp.log_segments.iter().chain(fixed.table.iter().flatten()).all(taken) {
        return Err(wrong("segment of the log or of inodes is not in use"));
    }
    if inodes != cp.index_inodes {
        return Err(wrong("number of inodes differs from the checkpoint's"));
    }
    derive(core)
}

fn load_inodes(core: &mut Core, entries: u32, mut bytes: &[u8]) -> Result<u64> {
    for _ in 0..entries {
        let (len, rest) = bytes.split_first_chunk::<4>().ok_or_else(|| wrong("piece is cut short"))?;
        let len = u32::from_le_bytes(*len) as usize;
        if len > rest.len() {
            return Err(wrong("piece is cut short"));
        }
        let view = parse_compact(&rest[..len])?;
        let slot = Slot::try_from(view.ino().0).map_err(|_| wrong("inode number is too large"))?;
        if view.kind == SlotKind::Free || !core.slab.claim(slot) {
            return Err(wrong("slot is used twice or has no segment"));
        }
        *core.slab.get_mut(slot) = Inode::from_view(&view);
        bytes = &bytes[(4 + len).next_multiple_of(8).min(bytes.len())..];
    }
    Ok(entries as u64)
}

fn claim_usage(core: &mut Core, usage: &SegmentUsage, total: u32) -> Result<()> {
    let seg = usage.segment.get();
    if seg == 0 || seg >= total {
        return Err(wrong("segment beyond the volume"));
    }
    let used = |bit: usize| usage.bitmap[bit / 64].get() >> (bit % 64) & 1 == 1;
    let mut bit = 0;
    while bit < SEGMENT_BLOCKS {
        let count = (bit..SEGMENT_BLOCKS).take_while(|&b| used(b)).count();
        if count > 0 {
            let run = Run { block: BlockNo(SegNo(seg).first_block().0 + bit as u64), count: count as u32 };
            if !core.space.claim(run) {
                return Err(wrong("block is used twice"));
            }
        }
        bit += count.max(1);
    }
    Ok(())
}
