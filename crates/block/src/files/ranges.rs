//! Ranges of a file: truncate, fallocate with its kinds, and seek for data and holes.
//!
//! Bytes behind the size, up to the end of their page, are zeros, so that a file that grows shows zeros. Whole pages lose
//! their blocks; parts of pages are filled with zeros through the cache. Tested in tests/differential.rs and tests/fsx.rs.

use crate::core::{Core, Res};
use crate::extents::{Ext, ExtentMap, Mapping, runs};
use crate::inode::{Data, Slot};
use crate::pages::key;
use crate::rangeset::RangeSet;
use crate::space::Run;
use format::BlockNo;
use format::limits::{FILE_SIZE_MAX, SEGMENT_BLOCKS};
use fs::cache::{FrameNo, PAGE};
use fs::{Error, Fallocate, Handle, OpenFlags, Seek};
use std::ops::Range;

const PAGE64: u64 = PAGE as u64;

impl Core {
    /// Sets the size. What lies behind it, up to the end of its page, becomes zeros, so that growing shows zeros. Unless the file grows, space that was
    /// allocated behind its end is given back, also when the size is what it was.
    pub fn truncate(&mut self, slot: Slot, size: u64, ticket: &mut Option<u64>) -> Res<()> {
        self.need_tail(slot)?;
        let old = self.slab.get(slot).size;
        let unneeded = self.map(slot).end() > size.div_ceil(PAGE64);
        if (size < old || size == old && unneeded) && self.slab.get(slot).tail.is_some() {
            match &mut self.tail_mut(slot).data {
                Data::Inline(bytes) => {
                    let keep = bytes.len().min(size as usize);
                    self.edit(slot);
                    if let Data::Inline(bytes) = &mut self.tail_mut(slot).data {
                        bytes.truncate(keep);
                    }
                }
                Data::Extents(_) if size == 0 => self.drop_data(slot),
                Data::Extents(_) => {
                    let rest = size..size.next_multiple_of(PAGE64).min(old);
                    self.prepare_to_zero(slot, &rest, ticket)?;
                    self.zero_in_page(slot, &rest);
                    self.unmap(slot, size.div_ceil(PAGE64), u64::MAX);
                }
            }
        }
        if size != old {
            self.edit(slot).size = size;
        }
        Ok(())
    }

    /// Gets a page ready of which `part` is to become zeros, if it has any content. It may wait, and changes no byte.
    fn prepare_to_zero(&mut self, slot: Slot, part: &Range<u64>, ticket: &mut Option<u64>) -> Res<()> {
        if part.is_empty() {
            return Ok(());
        }
        let page = part.start / PAGE64;
        // A page of a hole that nobody has changed has its zeros, and is not to need space.
        if self.changed_page(slot, page).is_none() && !self.is_written(slot, page) {
            return Ok(());
        }
        let frame = self.page_for_change(slot, page)?;
        self.edit(slot);
        self.dirty_page(slot, page, frame, ticket)
    }

    /// Sets bytes of a page to zero that is ready. Does not wait.
    fn zero_in_page(&mut self, slot: Slot, part: &Range<u64>) {
        if !part.is_empty()
            && let Some(frame) = self.changed_page(slot, part.start / PAGE64)
        {
            self.cache.arena().zero(frame.offset() + part.start % PAGE64, (part.end - part.start) as usize);
        }
    }

    /// The frame of a page that has been changed and not written.
    fn changed_page(&self, slot: Slot, page: u64) -> Option<FrameNo> {
        self.cache.find(key(slot, page)).filter(|&frame| self.cache.is_dirty(frame))
    }

    /// Removes whole pages from a file with extents, if there are any.
    fn unmap(&mut self, slot: Slot, start: u64, end: u64) {
        if start >= end {
            return;
        }
        self.edit(slot);
        self.forget_pages(slot, start, end);
        let Some(map) = self.tail_mut(slot).extents_mut() else { return };
        let removed = map.remove(start, end);
        let blocks: u64 = removed.iter().map(|e| e.count as u64).sum();
        self.slab.get_mut(slot).blocks -= blocks;
        runs(&removed).for_each(|run| self.give_back(run));
        self.count_nodes(slot);
        self.running.bytes += 48;
    }

    pub fn fallocate(
        &mut self,
        handle: Handle,
        what: Fallocate,
        offset: u64,
        len: u64,
        ticket: &mut Option<u64>,
    ) -> Res<()> {
        self.handles.get(handle)?;
        if len == 0 {
            return Err(Error::Invalid("the range is empty").into());
        }
        let open = *self.handles.file(handle, OpenFlags::WRITE)?;
        let slot = open.slot;
        let end = offset.checked_add(len).filter(|&e| e <= FILE_SIZE_MAX).ok_or(Error::TooLarge)?;
        self.admit()?;
        self.drop_capability(slot, ticket)?;
        let size = self.slab.get(slot).size;
        let keep_size = match what {
            Fallocate::Allocate { keep_size } | Fallocate::ZeroRange { keep_size } => keep_size,
            Fallocate::PunchHole => true,
        };
        if what == Fallocate::PunchHole {
            let pages = self.zero_range(slot, offset, end.min(size.max(offset)), end, ticket)?;
            self.unmap(slot, pages.start, pages.end);
        } else {
            let all = offset / PAGE64..end.div_ceil(PAGE64);
            let zeros = matches!(what, Fallocate::ZeroRange { .. });
            let first = offset.div_ceil(PAGE64);
            let renewed = if zeros { first..(end / PAGE64).max(first) } else { 0..0 };
            // What may be refused comes before anything is taken, or becomes zeros.
            self.room_to_allocate(slot, &all, &renewed, ticket)?;
            self.edit(slot);
            self.tail_mut(slot);
            self.make_extents(slot, ticket)?;
            self.let_checkpoint_by(all.end - all.start)?;
            // The first page may have left the inode, and others may have come while this waited.
            self.room_to_allocate(slot, &all, &renewed, ticket)?;
            self.allocate_range(slot, all)?;
            if zeros {
                let pages = self.zero_range(slot, offset, end, end, ticket)?;
                self.renew(slot, pages)?;
            }
        }
        let now = self.now().into();
        let inode = self.edit(slot);
        if !keep_size {
            inode.size = inode.size.max(end);
        }
        inode.mtime = now;
        inode.ctime = now;
        self.wrote_through(handle, slot);
        Ok(())
    }

    /// `start..end` reads as zeros when the whole pages up to `unmap_end`, which this returns, do.
    fn zero_range(
        &mut self,
        slot: Slot,
        start: u64,
        end: u64,
        unmap_end: u64,
        ticket: &mut Option<u64>,
    ) -> Res<Range<u64>> {
        if self.slab.get(slot).tail.is_none() {
            return Ok(0..0);
        }
        self.edit(slot);
        if let Data::Inline(bytes) = &mut self.tail_mut(slot).data {
            let (from, to) = ((start as usize).min(bytes.len()), (end as usize).min(bytes.len()));
            bytes[from..to].fill(0);
            return Ok(0..0);
        }
        let (first, last) = (start.div_ceil(PAGE64), unmap_end / PAGE64);
        let parts = match first > last {
            true => [start..end.min(unmap_end), 0..0],
            false => [start..(first * PAGE64).min(end), last * PAGE64..end],
        };
        // All that may wait comes before the first byte changes: no commit comes in the middle of the call.
        for part in &parts {
            self.prepare_to_zero(slot, part, ticket)?;
        }
        for part in &parts {
            self.zero_in_page(slot, part);
        }
        Ok(first..last.max(first))
    }

    /// Sees to it that all holes among these pages can get blocks at once ([`Core::allocate_range`]), and those that are
    /// `renewed` other ones ([`Core::renew`]): of space that is refused nothing is taken.
    fn room_to_allocate(
        &mut self,
        slot: Slot,
        pages: &Range<u64>,
        renewed: &Range<u64>,
        ticket: &mut Option<u64>,
    ) -> Res<()> {
        let mut need: u64 = self.written_within(slot, renewed).map(|ext| ext.count as u64).sum();
        let (mut at, mut holes) = (pages.start, 1);
        for ext in self.map(slot).within(pages.start, pages.end) {
            holes += 1;
            need += ext.file_block - at - self.waiting_within(slot, at, ext.file_block);
            at = ext.end();
        }
        need += pages.end - at - self.waiting_within(slot, at, pages.end);
        let inline = self.slab.get(slot).tail.as_ref().is_some_and(|tail| match &tail.data {
            Data::Inline(bytes) => !bytes.is_empty(),
            Data::Extents(_) => false,
        });
        // What stands in the inode leaves it.
        need += (inline && pages.start > 0) as u64;
        let extents = holes + self.space.runs_max(need);
        let room = need <= self.space.spare(self.keep()) && self.has_room_for_nodes(slot, extents, need);
        if room { Ok(()) } else { self.wait_for_space(ticket) }
    }

    /// How many pages of a hole wait for a block, which is promised to them.
    fn waiting_within(&self, slot: Slot, start: u64, end: u64) -> u64 {
        let dirty = self.slab.get(slot).tail.as_ref().map(|tail| tail.dirty.within(start, end));
        dirty.into_iter().flatten().map(|(s, e)| e - s).sum()
    }

    /// Pages that have blocks lose what they hold. Where it counts they get other blocks: a recovery may want what these hold.
    fn renew(&mut self, slot: Slot, pages: Range<u64>) -> Res<()> {
        let written: Vec<Ext> = self.written_within(slot, &pages).collect();
        // What was written to the others is not on the medium yet.
        self.forget_pages(slot, pages.start, pages.end);
        for ext in written {
            self.unmap(slot, ext.file_block, ext.end());
            self.allocate_range(slot, ext.file_block..ext.end())?;
        }
        Ok(())
    }

    /// Those of these pages that have blocks whose content counts.
    fn written_within(&self, slot: Slot, pages: &Range<u64>) -> impl Iterator<Item = Ext> + use<> {
        self.map(slot).within(pages.start, pages.end).into_iter().filter(|ext| !ext.unwritten)
    }

    /// Gives blocks to the holes among these pages; they read as zeros. That there are enough was seen to before
    /// ([`Core::room_to_allocate`]), under the same hold of the lock.
    fn allocate_range(&mut self, slot: Slot, pages: Range<u64>) -> Res<()> {
        let Range { start: mut page, end } = pages;
        while page < end {
            match self.map(slot).lookup(page) {
                Mapping::Block { count, .. } => page += count as u64,
                Mapping::Hole { until } => {
                    let want = (until.min(end) - page).min(64 * SEGMENT_BLOCKS as u64);
                    let run = self.allocate_run(slot, page, want)?;
                    let n = run.count as u64;
                    // Pages that were waiting for a block have one now.
                    let waiting = self.waiting_within(slot, page, page + n);
                    let tail = self.tail_mut(slot);
                    tail.reserved -= waiting;
                    tail.extents_mut().expect("made by the caller").insert(Ext {
                        file_block: page,
                        block: run.block.0,
                        count: run.count,
                        unwritten: true,
                    });
                    self.space.unreserve(waiting);
                    self.slab.get_mut(slot).blocks += n;
                    self.running.bytes += 24;
                    page += n;
                    self.count_nodes(slot);
                }
            }
        }
        Ok(())
    }

    /// Blocks for fallocate: as for delayed allocation, but nothing was reserved.
    fn allocate_run(&mut self, slot: Slot, page: u64, want: u64) -> Res<Run> {
        let run = self.allocate(slot, page, want.max(1))?;
        debug_assert!(run.block > BlockNo(0));
        Ok(run)
    }

    /// See `fs::FileSystem::overwritable`: pages that have a block with content, or wait for one that is promised to them. The first write into space that
    /// was allocated before may be refused, where there is no room for a node more.
    pub fn overwritable(&self, handle: Handle, offset: u64, len: u64) -> Result<Vec<Range<u64>>, Error> {
        const LATE: Error = Error::NotSupported("overwriting later");
        self.writable()?;
        let open = self.handles.file(handle, OpenFlags::WRITE)?;
        let prompt = OpenFlags::APPEND | OpenFlags::DIRECT | OpenFlags::SYNC | OpenFlags::DSYNC;
        if !self.takes_late_changes() || open.flags.intersects(prompt) {
            return Err(LATE);
        }
        let inode = self.slab.get(open.slot);
        let (first, last) = (offset.div_ceil(PAGE64), offset.saturating_add(len).min(inode.size) / PAGE64);
        let Some(tail) = inode.tail.as_ref().filter(|_| first < last) else { return Ok(Vec::new()) };
        let Some(map) = tail.extents() else { return Ok(Vec::new()) };
        let written = map.within(first, last).into_iter().filter(|e| !e.unwritten);
        let mut all: Vec<(u64, u64)> = written.map(|e| (e.file_block, e.end())).collect();
        all.extend(tail.dirty.within(first, last));
        all.sort_unstable();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (start, end) in all {
            let (start, end) = (start * PAGE64, end * PAGE64);
            match ranges.last_mut() {
                Some(last) if start <= last.end => last.end = last.end.max(end),
                _ => ranges.push(start..end),
            }
        }
        Ok(ranges)
    }

    pub fn seek(&mut self, handle: Handle, offset: u64, what: Seek) -> Res<u64> {
        let slot = self.handles.file(handle, OpenFlags::empty())?.slot;
        let size = self.slab.get(slot).size;
        if offset >= size {
            return Err(Error::NoSuchOffset.into());
        }
        self.need_tail(slot)?;
        let empty = ExtentMap::default();
        let found = match &self.slab.get(slot).tail {
            None => seek_within(&empty, &RangeSet::default(), offset, size, what),
            Some(tail) => match &tail.data {
                Data::Inline(bytes) => match (what, offset < bytes.len() as u64) {
                    (Seek::Data, there) => there.then_some(offset),
                    (Seek::Hole, true) => Some(size.min(bytes.len() as u64)),
                    (Seek::Hole, false) => Some(offset),
                },
                Data::Extents(map) => seek_within(map, &tail.dirty, offset, size, what),
            },
        };
        found.ok_or(Error::NoSuchOffset.into())
    }
}

/// Where the next data or the next hole is, looking at no more of a file than lies before that.
fn seek_within(map: &ExtentMap, dirty: &RangeSet, offset: u64, size: u64, what: Seek) -> Option<u64> {
    let end = size.div_ceil(PAGE64);
    let mut page = offset / PAGE64;
    match what {
        Seek::Data => {
            let end = dirty.from(page).map_or(end, |(start, _)| start.min(end));
            while page < end {
                match map.lookup(page) {
                    Mapping::Hole { until } => page = until,
                    Mapping::Block { unwritten: true, count, .. } => page += count as u64,
                    Mapping::Block { .. } => break,
                }
            }
            // What is changed may begin before the next extent.
            let at = (page.min(end) * PAGE64).max(offset);
            (at < size).then_some(at)
        }
        Seek::Hole => {
            while page < end {
                match (dirty.around(page), map.lookup(page)) {
                    (Some((_, end)), _) => page = end,
                    (None, Mapping::Block { unwritten: false, count, .. }) => page += count as u64,
                    _ => break,
                }
            }
            Some((page.min(end) * PAGE64).clamp(offset, size))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::{Duration, Instant};

    proptest! {
        #[test]
        fn seeks_like_a_map_of_pages(
            kinds in prop::collection::vec((0u8..3, any::<bool>()), 1..60),
            runs in prop::collection::vec(1usize..5, 60),
            cut in 0u64..6000,
        ) {
            let (mut map, mut dirty, mut pages) = (ExtentMap::default(), RangeSet::default(), Vec::new());
            for (&(kind, changed), run) in kinds.iter().zip(runs) {
                for _ in 0..run {
                    let page = pages.len() as u64;
                    if kind > 0 {
                        map.insert(Ext { file_block: page, block: 1000 + page, count: 1, unwritten: kind == 1 });
                    }
                    if changed {
                        dirty.insert(page, page + 1);
                    }
                    pages.push(kind == 2 || changed);
                }
            }
            // The end of the file is anywhere within its last pages, or behind them.
            let size = (pages.len() as u64 * PAGE64 + PAGE64).saturating_sub(cut).max(1);
            let is_data = |at: u64| pages.get((at / PAGE64) as usize).copied().unwrap_or(false);
            let places = (0..size.div_ceil(PAGE64)).map(|p| p * PAGE64);
            for offset in places.clone().flat_map(|p| [p, p + 1, p + PAGE64 - 1]).filter(|&at| at < size) {
                let behind = || std::iter::once(offset).chain(places.clone().filter(|&p| p > offset));
                let data = behind().find(|&at| is_data(at));
                prop_assert_eq!(seek_within(&map, &dirty, offset, size, Seek::Data), data);
                let hole = behind().find(|&at| !is_data(at)).unwrap_or(size);
                prop_assert_eq!(seek_within(&map, &dirty, offset, size, Seek::Hole), Some(hole));
            }
        }
    }

    /// Programs that copy a file ask for one after the other.
    #[test]
    fn each_seek_in_a_file_of_many_pieces_looks_at_few_of_them() {
        const PIECES: u64 = 200_000;
        let (mut map, mut dirty) = (ExtentMap::default(), RangeSet::default());
        for i in 0..PIECES {
            map.insert(Ext { file_block: 4 * i, block: 10 + 2 * i, count: 1, unwritten: false });
            dirty.insert(4 * i + 2, 4 * i + 3);
        }
        let size = 4 * PIECES * PAGE64;
        let began = Instant::now();
        let mut at = 0;
        for _ in 0..200 {
            at = seek_within(&map, &dirty, at, size, Seek::Hole).unwrap();
            at = seek_within(&map, &dirty, at, size, Seek::Data).unwrap();
        }
        assert_eq!(at, 400 * PAGE64);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
}
