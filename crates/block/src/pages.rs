//! File data through the page cache: reading, writing, read-ahead.

use crate::core::{Core, Res, Stop, Wait};
use crate::extents::{ExtentMap, Mapping};
use crate::handles::ReadAhead;
use crate::inode::{Data, Slot, TAIL_ON_MEDIUM};
use crate::writeback::Purpose;
use format::limits::INLINE_MAX;
use fs::Source;
use fs::cache::{FrameNo, PAGE, PageKey, Pages};
use std::time::Duration;

pub(crate) const PAGE64: u64 = PAGE as u64;
/// Reads up to this many bytes are copied under the lock; longer ones pin their frames and copy without it.
const COPY_LOCKED_MAX: usize = 16 << 10;
/// Bytes of a read that is seen as one with what others change.
const ATOMIC_MAX: usize = 256 << 10;

/// How far a read has come that waits.
#[derive(Default)]
pub(crate) struct SoFar {
    /// Bytes that are there.
    done: usize,
    /// [`Tail::changes`](crate::inode::Tail) when they were found.
    changes: u32,
}
/// Full dirty windows of a growing file are dispatched when it has this many dirty pages.
const STREAM_PAGES: u64 = 1024;
/// Most dirty pages while programs sync: 128 MiB, which a sync has to write, whoever they belong to.
const SYNCED_PAGES: usize = (128 << 20) / PAGE;
/// How long after a sync the next one is expected.
const SYNCED_FOR: Duration = Duration::from_secs(10);

/// Bytes to be copied to a reader after the lock was released. The frame is pinned; `None` means zeros.
pub(crate) struct CopyOut {
    pub frame: Option<(FrameNo, u64)>,
    pub to: usize,
    pub len: usize,
}

pub(crate) fn key(slot: Slot, page: u64) -> PageKey {
    PageKey { file: slot as u64, page }
}

impl Core {
    /// The file's extents; it must be loaded and not inline.
    pub fn map(&self, slot: Slot) -> &ExtentMap {
        static EMPTY: std::sync::OnceLock<ExtentMap> = std::sync::OnceLock::new();
        let tail = self.slab.get(slot).tail.as_ref();
        tail.and_then(|t| t.extents()).unwrap_or_else(|| EMPTY.get_or_init(ExtentMap::default))
    }

    /// Whether the page has a block whose content counts.
    pub fn is_written(&self, slot: Slot, page: u64) -> bool {
        matches!(self.map(slot).lookup(page), Mapping::Block { unwritten: false, .. })
    }

    /// Whether what a read of `len` bytes has got so far, before it waited, is not to be seen beside what it gets now, as somebody has changed the file meanwhile.
    fn is_torn(&self, slot: Slot, len: usize, so_far: &mut SoFar) -> bool {
        let changes = self.slab.get(slot).tail.as_ref().map_or(0, |tail| tail.changes);
        let before = std::mem::replace(&mut so_far.changes, changes);
        so_far.done > 0 && before != changes && len <= ATOMIC_MAX
    }

    /// Reads into `to` from `offset`. `so_far` counts the bytes that are there already; what remains when this returns is in
    /// `copies`, to be copied without the lock.
    pub fn read_step(
        &mut self,
        slot: Slot,
        ahead: Option<&mut ReadAhead>,
        offset: u64,
        to: &mut [u8],
        so_far: &mut SoFar,
        copies: &mut Vec<CopyOut>,
    ) -> Res<usize> {
        self.need_tail(slot)?;
        if self.is_torn(slot, to.len(), so_far) {
            so_far.done = 0;
        }
        let size = self.slab.get(slot).size;
        let end = offset.saturating_add(to.len() as u64).min(size);
        if offset >= end {
            return Ok(0);
        }
        let total = (end - offset) as usize;
        let inode = self.slab.get(slot);
        match inode.tail.as_ref().map(|t| &t.data) {
            None => {
                to[..total].fill(0);
                return Ok(total);
            }
            Some(Data::Inline(bytes)) => {
                let have = bytes.get(offset as usize..).unwrap_or(&[]);
                let n = have.len().min(total);
                to[..n].copy_from_slice(&have[..n]);
                to[n..total].fill(0);
                return Ok(total);
            }
            Some(Data::Extents(_)) => {}
        }
        let first = ahead.is_some();
        if let Some(ahead) = ahead {
            self.read_ahead(slot, ahead, offset, end, size);
        }
        let mut pos = offset + so_far.done as u64;
        let (ready_to, missing) = self.ready(slot, pos, end);
        if first {
            self.count_found(slot, pos, missing, end);
        }
        let locked = missing.is_some() || total <= COPY_LOCKED_MAX;
        while pos < ready_to {
            let page = pos / PAGE64;
            let (at, n) = (pos % PAGE64, (PAGE64 - pos % PAGE64).min(end - pos) as usize);
            let out = (pos - offset) as usize;
            match self.cache.lookup(key(slot, page)) {
                Some(f) if locked => self.cache.arena().copy_out(f.offset() + at, &mut to[out..out + n]),
                Some(f) => {
                    self.cache.pin(f);
                    copies.push(CopyOut { frame: Some((f, at)), to: out, len: n });
                }
                None if locked => to[out..out + n].fill(0),
                None => copies.push(CopyOut { frame: None, to: out, len: n }),
            }
            pos += n as u64;
        }
        let Some(page) = missing else { return Ok(total) };
        so_far.done = (pos - offset) as usize;
        self.fetch(slot, page, end)
    }

    /// As [`Core::read_step`], but appends the bytes to `pages`, up to `len` of them, without copying. What is there already
    /// stays pinned while this waits.
    pub fn lend_step(
        &mut self,
        slot: Slot,
        ahead: Option<&mut ReadAhead>,
        offset: u64,
        len: usize,
        pages: &mut Pages,
        so_far: &mut SoFar,
    ) -> Res<()> {
        self.need_tail(slot)?;
        so_far.done = pages.len();
        if self.is_torn(slot, len, so_far) {
            pages.clear();
        }
        let inode = self.slab.get(slot);
        let size = inode.size;
        let end = offset.saturating_add(len as u64).min(size);
        let mut pos = offset + pages.len() as u64;
        if pos >= end {
            return Ok(());
        }
        match inode.tail.as_ref().map(|t| &t.data) {
            None => {
                pages.push_zeros((end - pos) as usize);
                return Ok(());
            }
            Some(Data::Inline(bytes)) => {
                let have = bytes.get(pos as usize..).unwrap_or(&[]);
                let n = have.len().min((end - pos) as usize);
                pages.push_owned(have[..n].to_vec());
                pages.push_zeros((end - pos) as usize - n);
                return Ok(());
            }
            Some(Data::Extents(_)) => {}
        }
        let first = ahead.is_some();
        if let Some(ahead) = ahead {
            self.read_ahead(slot, ahead, offset, end, size);
        }
        let (ready_to, missing) = self.ready(slot, pos, end);
        if first {
            self.count_found(slot, pos, missing, end);
        }
        while pos < ready_to {
            let (at, n) = (pos % PAGE64, (PAGE64 - pos % PAGE64).min(end - pos) as usize);
            match self.cache.lookup(key(slot, pos / PAGE64)) {
                Some(f) => {
                    self.cache.pin(f);
                    pages.push_frame(f, at, n);
                }
                None => pages.push_zeros(n),
            }
            pos += n as u64;
        }
        missing.map_or(Ok(()), |page| self.fetch(slot, page, end))
    }

    /// How far `pos..end` can be read now, and the page that must be read first to go on.
    fn ready(&self, slot: Slot, pos: u64, end: u64) -> (u64, Option<u64>) {
        let missing = self.first_missing(slot, pos / PAGE64, end.div_ceil(PAGE64));
        (missing.map_or(end, |page| (page * PAGE64).clamp(pos, end)), missing)
    }

    /// Whether what there is of `start..end` can be read without the medium.
    pub fn is_cached(&self, slot: Slot, start: u64, end: u64) -> bool {
        let inode = self.slab.get(slot);
        let end = end.min(inode.size);
        inode.flags & TAIL_ON_MEDIUM == 0
            && match inode.tail.as_ref().map(|tail| &tail.data) {
                Some(Data::Extents(_)) => self.ready(slot, start, end).1.is_none(),
                _ => true,
            }
    }

    /// Counts what a read of `pos..end` finds when it comes; what it has to wait for is counted once, not again when it is there.
    fn count_found(&mut self, slot: Slot, pos: u64, missing: Option<u64>, end: u64) {
        let (from, to) = (pos / PAGE64, end.div_ceil(PAGE64));
        let absent = |page: &u64| {
            let found = self.cache.find(key(slot, *page));
            found.is_none_or(|f| !self.cache.is_valid(f))
        };
        let misses = missing.map_or(0, |page| (page..to).filter(absent).count() as u64);
        self.counters.read_misses += misses;
        self.counters.read_hits += to - from - misses;
    }

    /// The first page of `start..end` that must be read from the medium (or is being read).
    fn first_missing(&self, slot: Slot, start: u64, end: u64) -> Option<u64> {
        let mut hole_until = 0;
        for page in start..end {
            match self.cache.find(key(slot, page)) {
                Some(f) if self.cache.is_valid(f) => {}
                Some(_) => return Some(page),
                None if page < hole_until => {}
                None => match self.map(slot).lookup(page) {
                    Mapping::Hole { until } => hole_until = until,
                    Mapping::Block { unwritten: true, count, .. } => hole_until = page + count as u64,
                    Mapping::Block { .. } => return Some(page),
                },
            }
        }
        None
    }

    /// Brings one page into the cache, to be changed in part. Holes give a page of zeros.
    pub fn page_for_change(&mut self, slot: Slot, page: u64) -> Res<FrameNo> {
        let k = key(slot, page);
        if let Some(f) = self.cache.lookup(k) {
            if !self.cache.is_valid(f) {
                return Err(Stop::Wait(Wait::Page(k)));
            }
            if self.cache.is_pinned(f) {
                return self.cache.replace(f, true).ok_or_else(|| self.need_frames());
            }
            return Ok(f);
        }
        if self.is_written(slot, page) {
            return self.ask_again(slot, page);
        }
        let f = self.cache.insert(k).ok_or_else(|| self.need_frames())?;
        self.cache.arena().zero(f.offset(), PAGE);
        self.cache.set_valid(f);
        Ok(f)
    }

    /// All frames are dirty or in use: write some back, then try again.
    pub fn need_frames(&mut self) -> Stop {
        self.look_again |= !self.starving.swap(true, std::sync::atomic::Ordering::AcqRel);
        match self.write_back_all(Purpose::Memory) {
            Err(Stop::Error(e)) => Stop::Error(e),
            _ => Stop::Wait(Wait::Progress),
        }
    }

    /// Marks a page that is about to change as dirty, reserving a block for it when it has none.
    pub fn dirty_page(&mut self, slot: Slot, page: u64, frame: FrameNo, ticket: &mut Option<u64>) -> Res<()> {
        self.cache.set_checksum(frame, None);
        if !self.cache.is_dirty(frame) {
            self.dirty_run(slot, page, frame, 1, ticket)?;
        }
        Ok(())
    }

    /// Marks neighbouring clean pages in neighbouring frames as dirty, all of them or none: a part of them might be refused
    /// for lack of space.
    fn dirty_run(
        &mut self,
        slot: Slot,
        page: u64,
        frame: FrameNo,
        count: u32,
        ticket: &mut Option<u64>,
    ) -> Res<()> {
        let end = page + count as u64;
        self.bad_reads.forget(slot, page, end);
        let found = self.map(slot).within(page, end);
        let mapped: u64 = found.iter().map(|e| e.count as u64).sum();
        let unwritten: u64 = found.iter().filter(|e| e.unwritten).map(|e| e.count as u64).sum();
        // In the worst case each page that gets a block is an extent, and each that has one not written yet comes between two.
        self.expect_nodes(slot, count as u64 - mapped + 2 * unwritten, ticket)?;
        self.reserve(count as u64 - mapped, ticket)?;
        (0..count).for_each(|i| self.cache.set_dirty(FrameNo(frame.0 + i), true));
        let tail = self.tail_mut(slot);
        tail.dirty.insert(page, end);
        tail.reserved += count as u64 - mapped;
        self.running.dirty_files.insert(slot);
        self.note_change();
        Ok(())
    }

    /// Moves inline data to page 0, so that the file can grow.
    pub fn make_extents(&mut self, slot: Slot, ticket: &mut Option<u64>) -> Res<()> {
        let Data::Inline(bytes) = &self.tail_mut(slot).data else { return Ok(()) };
        let bytes = bytes.clone();
        if bytes.is_empty() {
            self.edit(slot);
            self.tail_mut(slot).data = Data::Extents(ExtentMap::default());
            return Ok(());
        }
        let k = key(slot, 0);
        // A page of a hole may be left of what the file, or another that had its slot, was before.
        if let Some(left) = self.cache.find(k) {
            self.cache.remove(left);
        }
        let frame = self.cache.insert(k).ok_or_else(|| self.need_frames())?;
        self.cache.arena().copy_in(frame.offset(), &bytes);
        self.cache.arena().zero(frame.offset() + bytes.len() as u64, PAGE - bytes.len());
        self.cache.set_valid(frame);
        self.edit(slot);
        self.tail_mut(slot).data = Data::Extents(ExtentMap::default());
        if let Err(stop) = self.dirty_page(slot, 0, frame, ticket) {
            self.cache.remove(frame);
            self.tail_mut(slot).data = Data::Inline(bytes);
            self.count_nodes(slot);
            return Err(stop);
        }
        Ok(())
    }

    /// Writes of the first `len` bytes of `from` those that were not written before, which `done` counts, from `start` on. Call until it is all written.
    pub fn write_step(
        &mut self,
        slot: Slot,
        start: u64,
        (from, len): (&dyn Source, usize),
        done: &mut usize,
        ticket: &mut Option<u64>,
    ) -> Res<()> {
        self.admit()?;
        self.need_tail(slot)?;
        self.throttle()?;
        let before = *done;
        let result = self.write_pages(slot, start, (from, len), done, ticket);
        if *done > before {
            let written_to = start + (*done - before) as u64;
            let now = self.now();
            let inode = self.edit(slot);
            inode.size = inode.size.max(written_to);
            inode.mtime = now.into();
            inode.ctime = now.into();
            self.running.bytes += 24;
            if self.slab.get(slot).tail.as_ref().is_some_and(|t| t.dirty.count() >= STREAM_PAGES) {
                self.write_back_windows(slot, (written_to - 1) / PAGE64)?;
            }
        }
        result
    }

    /// Whether programs sync these days.
    fn is_synced(&self) -> bool {
        self.synced_at.is_some_and(|at| self.monotonic() < at + SYNCED_FOR)
    }

    /// Waits while too much is dirty or on its way to the device.
    pub fn throttle(&mut self) -> Res<()> {
        let dirty = self.cache.dirty();
        // Each may be one more checksum in the record of an epoch, which must not be longer than records can be, nor take most of the log.
        let checksums = (2 * self.log.record_max()).min(format::limits::LOG_RECORD_MAX / 4);
        let covers = checksums / size_of::<format::log::Cover>();
        let mut max = (self.options.dirty_bytes_max / PAGE).min(self.cache.len() / 2).min(covers).max(8);
        if dirty > SYNCED_PAGES / 2 && max > SYNCED_PAGES && self.is_synced() {
            max = SYNCED_PAGES;
        }
        if dirty > max / 2 {
            self.write_back_all(Purpose::Memory)?;
        }
        if self.cache.dirty() + self.frames_in_flight > max {
            self.counters.throttled += 1;
            if self.frames_in_flight == 0 {
                // What is dirty may not be written in place yet: a commit makes a place for it.
                self.close_epoch(true)?;
            }
            if self.frames_in_flight > 0 {
                return Err(Stop::Wait(Wait::Progress));
            }
        }
        Ok(())
    }

    /// Computes the checksum of a page that was just written as a whole: it is in the processor's cache now, and will not be
    /// when it goes to the medium.
    fn sum_page(&mut self, frame: FrameNo) {
        // SAFETY: the frame is not pinned, so that neither device nor readers use it, and the lock is held.
        let crc = unsafe { self.cache.arena().with(frame.offset(), PAGE, format::crc32c) };
        self.cache.set_checksum(frame, Some(crc));
    }

    /// Copies bytes of `from` to a place within a frame that was made ready to be changed.
    fn fill(&self, (frame, place): (FrameNo, u64), len: usize, from: &dyn Source, at: usize) {
        debug_assert!(!self.cache.is_pinned(frame));
        // SAFETY: the frame is not pinned, so that neither device nor readers use it, and the lock is held.
        unsafe { self.cache.arena().with_mut(frame.offset() + place, len, |to| from.copy(at, to)) }
    }

    /// Waits for a checkpoint that may give the room for all of these pages. Whether it did is found out when they are written: what there is no room for then comes
    /// to an early end.
    fn room_to_write(&mut self, slot: Slot, first: u64, end: u64, ticket: &mut Option<u64>) -> Res<()> {
        self.let_checkpoint_by(end - first)?;
        let spare = self.space.spare_to_write(self.keep());
        if 4 * (end - first) <= spare {
            return Ok(());
        }
        let (mut new, mut extents) = (0, 0);
        for page in first..end {
            let dirty = self.cache.find(key(slot, page)).is_some_and(|f| self.cache.is_dirty(f));
            match self.map(slot).lookup(page) {
                _ if dirty => {}
                Mapping::Hole { .. } => (new, extents) = (new + 1, extents + 1),
                Mapping::Block { unwritten, .. } => extents += 2 * unwritten as u64,
            }
        }
        let room = new <= spare && self.has_room_for_nodes(slot, extents, new);
        match if room { Ok(()) } else { self.wait_for_space(ticket) } {
            Err(Stop::Wait(wait)) => Err(Stop::Wait(wait)),
            _ => Ok(()),
        }
    }

    fn write_pages(
        &mut self,
        slot: Slot,
        start: u64,
        (from, len): (&dyn Source, usize),
        done: &mut usize,
        ticket: &mut Option<u64>,
    ) -> Res<()> {
        let end = start + (len - *done) as u64;
        self.edit(slot);
        let size = self.slab.get(slot).size;
        if let Data::Inline(bytes) = &mut self.tail_mut(slot).data {
            if end <= INLINE_MAX as u64 && size <= INLINE_MAX as u64 {
                let grown = (end as usize).saturating_sub(bytes.len());
                if bytes.len() < end as usize {
                    bytes.resize(end as usize, 0);
                }
                from.copy(*done, &mut bytes[start as usize..end as usize]);
                *done = len;
                self.running.bytes += grown;
                return Ok(());
            }
            self.make_extents(slot, ticket)?;
        }
        // What has to be waited for is waited for before anything changes, so that no commit comes in the middle of the call.
        self.room_to_write(slot, start / PAGE64, end.div_ceil(PAGE64), ticket)?;
        for page in start / PAGE64..end.div_ceil(PAGE64) {
            let k = key(slot, page);
            if self.cache.find(k).is_some_and(|f| !self.cache.is_valid(f)) {
                return Err(Stop::Wait(Wait::Page(k)));
            }
        }
        for edge in [start, end].into_iter().filter(|edge| edge % PAGE64 != 0) {
            let (page, size) = (edge / PAGE64, self.slab.get(slot).size);
            let whole = start <= page * PAGE64 && end >= size.min((page + 1) * PAGE64);
            if !whole {
                self.page_for_change(slot, page)?;
            }
        }
        let mut pos = start;
        while pos < end {
            let page = pos / PAGE64;
            let (at, n) = (pos % PAGE64, (PAGE64 - pos % PAGE64).min(end - pos));
            let whole = at == 0 && (n == PAGE64 || pos + n >= self.slab.get(slot).size);
            let cached = self.cache.lookup(key(slot, page));
            let frame = match cached {
                Some(f) if whole && self.cache.is_valid(f) && self.cache.is_pinned(f) => {
                    // A clean page may be refused for lack of space yet, be it for nodes, and then holds what it held.
                    let may_be_refused = !self.cache.is_dirty(f);
                    self.cache.replace(f, may_be_refused).ok_or_else(|| self.need_frames())?
                }
                None if whole => {
                    // Frames for the whole pages that follow, so that they can be written in one transfer.
                    let mut run = 1;
                    while run < 512
                        && pos + (run + 1) * PAGE64 <= end
                        && self.cache.find(key(slot, page + run)).is_none()
                    {
                        run += 1;
                    }
                    // Of what a nearly full volume has no room for, as much as fits.
                    run = run.min(self.space.spare_to_write(self.keep()).max(1));
                    let (first, got) = self
                        .cache
                        .insert_run(key(slot, page), run as usize)
                        .ok_or_else(|| self.need_frames())?;
                    if let Err(stop) = self.dirty_run(slot, page, first, got as u32, ticket) {
                        (0..got as u32).for_each(|i| self.cache.remove(FrameNo(first.0 + i)));
                        return Err(stop);
                    }
                    for i in 0..got as u32 {
                        let frame = FrameNo(first.0 + i);
                        let n = PAGE64.min(end - pos) as usize;
                        self.fill((frame, 0), n, from, *done);
                        self.cache.arena().zero(frame.offset() + n as u64, PAGE - n);
                        self.cache.set_valid(frame);
                        self.sum_page(frame);
                        *done += n;
                        pos += n as u64;
                    }
                    continue;
                }
                _ => self.page_for_change(slot, page)?,
            };
            self.dirty_page(slot, page, frame, ticket)?;
            self.fill((frame, at), n as usize, from, *done);
            if whole {
                self.cache.arena().zero(frame.offset() + n, PAGE - n as usize);
                self.sum_page(frame);
            }
            *done += n as usize;
            pos += n;
        }
        Ok(())
    }
}
