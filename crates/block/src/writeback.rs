//! Bringing dirty pages to the medium: delayed allocation, and what becomes of overwrites.
//!
//! - A page without a block gets one now (delayed allocation): whole segments for windows of 2 MiB that are mostly
//!   dirty, else small blocks next to the file's others (UHSFS, section 2.1).
//! - A page in an unwritten extent goes to its block; nobody could see that block before.
//! - An overwrite of a block that is new in the running epoch goes to that block again.
//! - Any other overwrite goes in place when nobody asked for order and the block is not guarded; else its content goes
//!   into the record of the epoch when there is little of it, else to a new block.
//!
//! Everything written to a block is covered by a checksum in the record of its epoch.
//!
//! Files that were made one after the other get blocks side by side, so what goes to neighbouring blocks is gathered into one transfer,
//! whichever files it belongs to.

use crate::core::{Core, Res, Stop, Wait};
use crate::extents::{Ext, Mapping};
use crate::inode::Slot;
use crate::io::{Frames, Io, IoKind};
use crate::pages::key;
use crate::space::Run;
use format::limits::SEGMENT_BLOCKS;
use format::{BlockNo, crc32c};
use fs::cache::{FrameNo, PAGE};
use media::{BufRef, Op, Request};
use smallvec::SmallVec;

const WINDOW: u64 = SEGMENT_BLOCKS as u64;
/// Most pieces of memory in one transfer.
const BUFS_MAX: usize = 256;

/// Why pages are written back; later ones ask for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    /// Memory: plain overwrites go in place, and a page may stay dirty while an older content of it is on its way.
    Memory,
    /// The epoch is being closed: plain overwrites go in place, but no page may stay behind. What is done later belongs to
    /// epochs that may be there without it.
    Close,
    /// Order: no overwrite in place.
    Order,
    /// Order, and all of it fits into the record.
    Record,
}

/// Where a run of pages goes.
enum Target {
    /// To these blocks; `new` unless it is a plain overwrite.
    Blocks { run: Run, new: bool },
    /// Into the record of this epoch.
    Record { block: BlockNo },
    /// Nowhere now: an overwrite of the same block is on its way.
    Later,
}

/// A transfer of pages to neighbouring blocks that may still grow. It counts as being under way.
pub(crate) struct Gathered {
    block: u64,
    new: bool,
    epoch: u64,
    frames: Frames,
    bufs: SmallVec<[BufRef; 1]>,
}

impl Core {
    /// Dispatches all dirty pages.
    pub fn write_back_all(&mut self, purpose: Purpose) -> Res<()> {
        let files: Vec<Slot> = self.running.dirty_files.iter().copied().collect();
        let result = files.into_iter().try_for_each(|slot| self.dispatch_dirty(slot, 0, u64::MAX, purpose));
        self.send_gathered();
        result
    }

    /// Dispatches the windows of a file that are dirty as a whole, among the dirty pages around `page`, while it goes on growing.
    pub fn write_back_windows(&mut self, slot: Slot, page: u64) -> Res<()> {
        let tail = self.slab.get(slot).tail.as_ref();
        let Some((start, end)) = tail.and_then(|t| t.dirty.around(page)) else { return Ok(()) };
        let whole = end / WINDOW * WINDOW;
        if start < whole { self.write_back(slot, start, whole, Purpose::Memory) } else { Ok(()) }
    }

    /// Dispatches the dirty pages of `start..end`.
    pub fn write_back(&mut self, slot: Slot, start: u64, end: u64, purpose: Purpose) -> Res<()> {
        let result = self.dispatch_dirty(slot, start, end, purpose);
        self.send_gathered();
        result
    }

    /// As `write_back`, but the last transfer waits for [`Core::send_gathered`], whatever this returns.
    fn dispatch_dirty(&mut self, slot: Slot, start: u64, end: u64, purpose: Purpose) -> Res<()> {
        let Some(tail) = &self.slab.get(slot).tail else {
            self.running.dirty_files.remove(&slot);
            return Ok(());
        };
        let bound = self.strict || self.running.keeps_places();
        let purpose = if bound { purpose.max(Purpose::Order) } else { purpose };
        let ranges = tail.dirty.within(start, end);
        for (start, end) in ranges {
            let mut page = start;
            while page < end {
                let (target, count) = self.place(slot, page, end, purpose)?;
                match target {
                    Target::Blocks { run, new } => self.dispatch(slot, page, run, new),
                    Target::Record { block } => self.put_in_record(slot, page, block),
                    Target::Later => {}
                }
                page += count;
            }
        }
        if self.slab.get(slot).tail.as_ref().is_none_or(|t| t.dirty.is_empty()) {
            self.running.dirty_files.remove(&slot);
        }
        Ok(())
    }

    /// Decides where the dirty pages from `page` go; returns how many of them (all are dirty up to `end`).
    fn place(&mut self, slot: Slot, page: u64, end: u64, purpose: Purpose) -> Res<(Target, u64)> {
        match self.map(slot).lookup(page) {
            Mapping::Hole { until } => {
                let want = until.min(end) - page;
                let run = self.allocate(slot, page, want)?;
                let n = run.count as u64;
                let inode = self.edit(slot);
                inode.blocks += n;
                let tail = self.tail_mut(slot);
                tail.reserved -= n;
                tail.extents_mut().expect("dirty pages belong to a file with extents").insert(Ext {
                    file_block: page,
                    block: run.block.0,
                    count: run.count,
                    unwritten: false,
                });
                self.space.unreserve(n);
                self.count_nodes(slot);
                self.running.bytes += 24;
                Ok(self.new_blocks(run, purpose))
            }
            Mapping::Block { block, count, unwritten: true } => {
                let n = (count as u64).min(end - page);
                self.edit(slot);
                let map = self.tail_mut(slot).extents_mut().expect("as above");
                map.set_written(page, page + n);
                self.count_nodes(slot);
                self.running.bytes += 48;
                Ok(self.new_blocks(Run { block, count: n as u32 }, purpose))
            }
            Mapping::Block { block, count, unwritten: false } => {
                let max = (count as u64).min(end - page);
                self.place_overwrite(slot, page, block, max, purpose)
            }
        }
    }

    fn new_blocks(&self, run: Run, purpose: Purpose) -> (Target, u64) {
        if purpose == Purpose::Record {
            return (Target::Record { block: run.block }, 1);
        }
        (Target::Blocks { run, new: true }, run.count as u64)
    }

    fn place_overwrite(
        &mut self,
        slot: Slot,
        page: u64,
        block: BlockNo,
        max: u64,
        purpose: Purpose,
    ) -> Res<(Target, u64)> {
        if purpose == Purpose::Record {
            return Ok((Target::Record { block }, 1));
        }
        let idle = |may: fn(&Core, u64) -> bool| {
            let free = |b: u64| may(self, b) && self.writing(b).is_none();
            let n = (block.0..block.0 + max).take_while(|&b| free(b)).count();
            Run { block, count: n as u32 }
        };
        // Once more to a block that is new in this epoch: the same again.
        let own = idle(Core::is_own);
        if own.count > 0 {
            return Ok((Target::Blocks { run: own, new: true }, own.count as u64));
        }
        let in_place = idle(Core::may_overwrite);
        let mut max = max;
        if purpose < Purpose::Order {
            if self.writing(block.0) == Some(true) {
                if purpose == Purpose::Memory {
                    return Ok((Target::Later, 1));
                }
                // Left dirty it would fall into the next epoch, behind what this one's record says to have been done after
                // it. It goes elsewhere like an ordered one, alone.
                max = 1;
            } else if in_place.count > 0 {
                return Ok((Target::Blocks { run: in_place, new: false }, in_place.count as u64));
            }
        }
        // To new blocks, as many as can be had without touching what is reserved for others.
        let spare = self.space.spare(self.keep());
        let want = max.min(spare) as u32;
        let goal = self.map(slot).goal(page);
        if want > 0
            && let Some(run) = self.space.alloc(want, goal)
        {
            let n = run.count as u64;
            self.edit(slot);
            let map = self.tail_mut(slot).extents_mut().expect("as above");
            let old = map.remove(page, page + n);
            map.insert(Ext { file_block: page, block: run.block.0, count: run.count, unwritten: false });
            self.count_nodes(slot);
            self.running.bytes += 48;
            for e in old {
                self.give_back(Run { block: BlockNo(e.block), count: e.count });
            }
            return Ok((Target::Blocks { run, new: true }, n));
        }
        // A full volume: order is kept by the log as long as a record can take it, then given up for this page.
        // Behind a barrier and beside an atomic write there is no giving up, nor with a block whose image is in the log, so that as much as
        // fits: `order_ends_epoch` and `checkpoint_comes_first` see to it that it is enough.
        let max = self.log.record_max();
        let gives_up = !self.running.keeps_places();
        let in_log = self.has_image(block.0);
        let limit = if gives_up && !in_log { max / 2 } else { max / 8 * 7 };
        // What it holds of this block already is replaced, which makes it no longer; and nothing else may be done with such a block.
        let again = self.running.pages.contains_key(&block.0);
        if again || self.running.bytes + self.running.pages.len() * PAGE < limit {
            return Ok((Target::Record { block }, 1));
        }
        if in_place.count > 0 && gives_up {
            return Ok((Target::Blocks { run: Run { block, count: 1 }, new: false }, 1));
        }
        self.hurry_checkpoint();
        Err(Stop::Wait(Wait::Progress))
    }

    /// Blocks for `want` pages of a hole from `page` on; at least one.
    pub fn allocate(&mut self, slot: Slot, page: u64, want: u64) -> Res<Run> {
        let goal = self.map(slot).goal(page);
        let continues =
            goal.is_some_and(|g| g.in_segment() != 0 && self.space.is_free(Run { block: g, count: 1 }));
        let in_window = WINDOW - page % WINDOW;
        if !continues && want.min(in_window) >= WINDOW / 2 {
            // Mostly dirty windows get whole segments. The place within the segment is that within the window, so that
            // the rest of the window can be filled up later.
            let windows = ((page % WINDOW + want) / WINDOW).clamp(1, 512) as u32;
            let near = goal.map(|g| g.segment());
            if let Some((first, count)) = self.space.alloc_segments(windows, near) {
                let whole = Run { block: first.first_block(), count: count * WINDOW as u32 };
                let skip = (page % WINDOW) as u32;
                let take = (want.min((whole.count - skip) as u64)) as u32;
                if skip > 0 {
                    self.space.free(Run { block: whole.block, count: skip });
                }
                let rest = whole.count - skip - take;
                if rest > 0 {
                    let at = BlockNo(whole.block.0 + (skip + take) as u64);
                    self.space.free(Run { block: at, count: rest });
                }
                return Ok(Run { block: BlockNo(whole.block.0 + skip as u64), count: take });
            }
        }
        let want = want.min(if continues { in_window.max(1) } else { WINDOW }) as u32;
        // The first blocks of files stand close together; who comes back for more gets room for as much again.
        let room = match self.slab.get(slot).blocks {
            0 => 1,
            blocks => (2 * blocks).next_power_of_two().clamp(8, WINDOW) as u32,
        };
        match self.space.alloc_growing(want, goal, room) {
            Some(run) => Ok(run),
            // Reserved, but waiting in quarantine: cannot happen as reservations count free blocks only; be safe.
            None => {
                self.hurry_checkpoint();
                Err(Stop::Wait(Wait::Progress))
            }
        }
    }

    /// The page's content becomes part of the epoch's record.
    fn put_in_record(&mut self, slot: Slot, page: u64, block: BlockNo) {
        let Some(frame) = self.cache.find(key(slot, page)) else { return };
        self.edit(slot);
        self.running.covers.forget(Run { block, count: 1 });
        self.cache.pin(frame);
        self.cache.set_dirty(frame, false);
        self.tail_mut(slot).dirty.remove(page, page + 1);
        match self.running.pages.insert(block.0, (slot, page, frame)) {
            Some((_, _, before)) => self.cache.unpin(before),
            None => self.running.bytes += 32,
        }
    }

    /// Sends pages to their blocks.
    fn dispatch(&mut self, slot: Slot, page: u64, run: Run, new: bool) {
        let max = self.geometry.max_transfer as usize / PAGE;
        let arena = self.cache.arena().clone();
        let mut at = 0u32;
        while at < run.count {
            let mut frames = Frames::new();
            let mut bufs: SmallVec<[BufRef; 1]> = SmallVec::new();
            while at + (frames.len() as u32) < run.count && frames.len() < max {
                let i = at as u64 + frames.len() as u64;
                let frame = self.cache.find(key(slot, page + i)).expect("dirty pages are in the cache");
                debug_assert!(self.cache.is_dirty(frame));
                let offset = frame.offset();
                let full = bufs.len() == BUFS_MAX;
                match bufs.last_mut() {
                    Some(last) if last.offset + last.len as u64 == offset => last.len += PAGE as u32,
                    _ if full => break,
                    _ => bufs.push(BufRef { arena: self.cache_arena, offset, len: PAGE as u32 }),
                }
                self.cache.pin(frame);
                self.cache.set_dirty(frame, false);
                frames.push(frame);
            }
            let n = frames.len() as u32;
            let block = run.block.0 + at as u64;
            // Overwrites in place are covered too: a record must not count when one of them is missing, or the file would
            // show what was done later without it.
            let mut sums: SmallVec<[u32; 4]> = SmallVec::with_capacity(frames.len());
            for &frame in &frames {
                // SAFETY: the frame is pinned, and pinned frames are not changed.
                let compute = || unsafe { arena.with(frame.offset(), PAGE, crc32c) };
                let crc = self.cache.checksum(frame).unwrap_or_else(compute);
                debug_assert_eq!(crc, compute(), "the page changed after its checksum was computed");
                sums.push(crc);
            }
            self.running.covers.insert(block, &sums);
            self.running.bytes += 16;
            if new {
                self.counters.data_blocks += n as u64;
            } else {
                self.running.in_place.extend(block..block + n as u64);
                self.counters.overwritten_blocks += n as u64;
            }
            let first = page + at as u64;
            self.tail_mut(slot).dirty.remove(first, first + n as u64);
            self.frames_in_flight += n as usize;
            self.add_to_gathered(block, new, frames, bufs);
            at += n;
        }
    }

    /// Lets the transfer that is gathered grow by these pages if it ends where they begin; else sends it and begins another.
    fn add_to_gathered(&mut self, block: u64, new: bool, frames: Frames, bufs: SmallVec<[BufRef; 1]>) {
        let max = self.geometry.max_transfer as usize / PAGE;
        let joins = |g: &Gathered| {
            let (pages, pieces) = (g.frames.len() + frames.len(), g.bufs.len() + bufs.len());
            (g.block + g.frames.len() as u64, g.new) == (block, new) && pages <= max && pieces <= BUFS_MAX
        };
        if !self.gathered.as_ref().is_some_and(joins) {
            self.send_gathered();
        }
        let gathered = match self.gathered.take() {
            Some(mut g) => {
                g.frames.extend(frames);
                for buf in bufs {
                    match g.bufs.last_mut() {
                        Some(last) if last.offset + last.len as u64 == buf.offset => last.len += buf.len,
                        _ => g.bufs.push(buf),
                    }
                }
                g
            }
            None => Gathered { block, new, epoch: self.epoch_io_begins(), frames, bufs },
        };
        self.writing.insert(gathered.block, (gathered.frames.len() as u32, !new));
        self.gathered = Some(gathered);
    }

    fn send_gathered(&mut self) {
        let Some(Gathered { block, epoch, frames, bufs, .. }) = self.gathered.take() else { return };
        let request = Request::vectored(Op::Write, BlockNo(block).byte(), bufs, 0);
        self.submit(request, Io { kind: IoKind::WritePages { frames, block }, epoch: Some(epoch) });
    }

    /// Drops the cached pages of `start..end`, changes included, and their reservations.
    pub fn forget_pages(&mut self, slot: Slot, start: u64, end: u64) {
        self.bad_reads.forget(slot, start, end);
        let Some(tail) = &self.slab.get(slot).tail else { return };
        let mut unmapped = 0;
        for (s, e) in tail.dirty.within(start, end) {
            let mapped: u64 = self.map(slot).within(s, e).iter().map(|x| x.count as u64).sum();
            unmapped += e - s - mapped;
        }
        // Pages of the record being built keep their pinned frames; they count only if their block is still the file's.
        let cached: Vec<FrameNo> = self.cached_pages(slot, start, end);
        for frame in cached {
            self.cache.remove(frame);
        }
        let tail = self.tail_mut(slot);
        tail.dirty.remove(start, end);
        tail.reserved -= unmapped;
        self.space.unreserve(unmapped);
        if self.slab.get(slot).tail.as_ref().is_none_or(|t| t.dirty.is_empty()) {
            self.running.dirty_files.remove(&slot);
        }
    }

    /// Frames of the file's pages in `start..end`: dirty ones anywhere, clean ones at least where blocks are mapped.
    fn cached_pages(&self, slot: Slot, start: u64, end: u64) -> Vec<FrameNo> {
        let mut frames = Vec::new();
        let mut ranges: Vec<(u64, u64)> =
            self.map(slot).within(start, end).iter().map(|e| (e.file_block, e.end())).collect();
        if let Some(tail) = &self.slab.get(slot).tail {
            ranges.extend(tail.dirty.within(start, end));
        }
        let pages: u64 = ranges.iter().map(|(s, e)| e - s).sum();
        if pages > self.cache.len() as u64 {
            // Of a file that is larger than the cache most pages are not in it: what is in it is looked at instead, the pages of holes among them.
            let of_file = |&frame: &FrameNo| {
                let found = self.cache.key(frame);
                found.file == slot as u64
                    && (start..end).contains(&found.page)
                    && self.cache.find(found) == Some(frame)
            };
            return (0..self.cache.len() as u32).map(FrameNo).filter(of_file).collect();
        }
        for (s, e) in ranges {
            frames.extend((s..e).filter_map(|p| self.cache.find(key(slot, p))));
        }
        frames.sort_unstable();
        frames.dedup();
        frames
    }
}
