//! Pages of files that are read from the medium, and what happens when that fails.
//!
//! Pages are read many at a time, more than somebody waits for. When that fails, nobody knows which of them cannot be read. So whoever waits for one of them has it read
//! again, alone, and is told an error only when that failed: what lies beside a bad sector can be read, and an error is told
//! to those who asked for what could not be read.

use crate::core::{Core, Res, Stop, Wait};
use crate::extents::Mapping;
use crate::handles::ReadAhead;
use crate::inode::Slot;
use crate::io::{Frames, Io, IoKind};
use crate::pages::{PAGE64, key};
use foldhash::fast::FixedState;
use fs::Error;
use fs::cache::{FrameNo, PAGE, PageKey};
use media::{BufRef, MediaError, Op, Request};
use smallvec::SmallVec;
use std::collections::HashMap;

/// Most pages of which it is known that they could not be read; beyond that, all are tried anew.
const BAD_MAX: usize = 1 << 16;

/// Pages that could not be read when they were tried last. `None`: it was read together with others, and is to be read alone.
#[derive(Default)]
pub(crate) struct BadReads(HashMap<PageKey, Option<Error>, FixedState>);

impl BadReads {
    fn is_alone(&self, slot: Slot, page: u64) -> bool {
        !self.0.is_empty() && self.0.contains_key(&key(slot, page))
    }

    /// The error for who waited for this page. It is told once: who comes next tries again.
    fn told(&mut self, slot: Slot, page: u64) -> Option<Error> {
        self.0.get_mut(&key(slot, page)).and_then(Option::take)
    }

    fn failed(&mut self, key: PageKey, error: Option<Error>) {
        if self.0.len() >= BAD_MAX {
            self.0.clear();
        }
        self.0.insert(key, error);
    }

    /// These pages were read, have other contents, or are another file's from now on.
    pub fn forget(&mut self, slot: Slot, start: u64, end: u64) {
        match end.saturating_sub(start) {
            _ if self.0.is_empty() => {}
            n if n > self.0.len() as u64 => {
                self.0.retain(|key, _| key.file != slot as u64 || !(start..end).contains(&key.page));
            }
            _ => (start..end).for_each(|page| drop(self.0.remove(&key(slot, page)))),
        }
    }
}

impl Core {
    /// Starts to read from a missing page on, and waits for it. A bounded part is asked for at once, so that it is still there
    /// when its turn comes.
    pub fn fetch<T>(&mut self, slot: Slot, page: u64, end: u64) -> Res<T> {
        let window = (self.cache.len() as u64 / 8).clamp(1, 512);
        self.start_reads(slot, page, end.div_ceil(PAGE64).min(page + window))?;
        Err(Stop::Wait(Wait::Page(key(slot, page))))
    }

    pub fn ask_again<T>(&mut self, slot: Slot, page: u64) -> Res<T> {
        self.start_reads(slot, page, page + 1)?;
        Err(Stop::Wait(Wait::Page(key(slot, page))))
    }

    /// Starts reading the pages of `start..end` that are on the medium and not in the cache. Waits only when no frame can be
    /// had for the first of them.
    pub fn start_reads(&mut self, slot: Slot, start: u64, end: u64) -> Res<()> {
        let mut page = start;
        while page < end {
            if self.cache.find(key(slot, page)).is_some() {
                page += 1;
                continue;
            }
            let alone = self.bad_reads.is_alone(slot, page);
            if let Some(e) = self.bad_reads.told(slot, page) {
                return Err(e.into());
            }
            match self.map(slot).lookup(page) {
                Mapping::Hole { until } => {
                    // Pages of a hole may be in the cache (dirty): go on at the next one that might be missing.
                    page = until.min(end).max(page + 1);
                }
                Mapping::Block { unwritten: true, count, .. } => page += count as u64,
                Mapping::Block { block, count, .. } => {
                    let want = (count as u64).min(end - page);
                    self.reachable()?;
                    // What is written directly is not read before that is over: it would be out of date when it is here.
                    let written =
                        |core: &Core, n| core.directs.writes > 0 && core.writing(block.0 + n).is_some();
                    if written(self, 0) {
                        return if page == start { Err(Stop::Wait(Wait::Progress)) } else { Ok(()) };
                    }
                    let mut n = 1;
                    while n < want
                        && !alone
                        && !self.bad_reads.is_alone(slot, page + n)
                        && self.cache.find(key(slot, page + n)).is_none()
                        && !written(self, n)
                    {
                        n += 1;
                    }
                    let read = self.read_run(slot, page, block.byte(), n as usize);
                    if read == 0 {
                        // No frame to be had: wait for one, unless this is read-ahead.
                        return if page == start { Err(self.need_frames()) } else { Ok(()) };
                    }
                    page += read as u64;
                }
            }
        }
        Ok(())
    }

    /// Reads up to `count` neighbouring blocks into new frames; returns how many were started.
    fn read_run(&mut self, slot: Slot, page: u64, byte: u64, count: usize) -> usize {
        let max = (self.geometry.max_transfer as usize / PAGE).min(count);
        let mut frames = Frames::new();
        let mut bufs: SmallVec<[BufRef; 1]> = SmallVec::new();
        while frames.len() < max {
            let k = key(slot, page + frames.len() as u64);
            let Some((first, n)) = self.cache.insert_run(k, max - frames.len()) else { break };
            bufs.push(BufRef { arena: self.cache_arena, offset: first.offset(), len: (n * PAGE) as u32 });
            for i in 0..n as u32 {
                let frame = FrameNo(first.0 + i);
                self.cache.pin(frame);
                frames.push(frame);
            }
            if bufs.len() == 64 {
                break;
            }
        }
        let n = frames.len();
        if n > 0 {
            self.counters.read_blocks += n as u64;
            let request = Request::vectored(Op::Read, byte, bufs, 0);
            self.submit(request, Io { kind: IoKind::ReadPages { frames }, epoch: None });
        }
        n
    }

    /// Grows the window of a sequential reader and keeps it filled; a reader that jumps gets a small one.
    pub fn read_ahead(&mut self, slot: Slot, ahead: &mut ReadAhead, offset: u64, end: u64, size: u64) {
        let max = self.options.read_ahead_max.min(self.cache.len() * PAGE / 8) as u64;
        let Some((from, to)) = ahead.advance(offset, end, max) else { return };
        let (from, to) = (from / PAGE64, to.min(size).div_ceil(PAGE64));
        if from < to {
            // Errors show when the pages are really wanted.
            let _ = self.start_reads(slot, from, to);
        }
    }

    /// A read of pages is over.
    pub fn read_ended(&mut self, frames: Frames, result: Result<(), MediaError>) {
        let together = frames.len() > 1;
        for frame in frames {
            let key: PageKey = self.cache.key(frame);
            // Nobody looks for a page that has another frame by now, or none.
            let current = self.cache.find(key) == Some(frame);
            match &result {
                Ok(()) => {
                    self.cache.set_valid(frame);
                    if current {
                        self.bad_reads.forget(key.file as Slot, key.page, key.page + 1);
                    }
                }
                Err(e) if current => {
                    self.cache.remove(frame);
                    // Who comes later reads it anew, and is not told what he did not ask for.
                    let is_for_somebody = !together && self.is_awaited(Wait::Page(key));
                    self.bad_reads.failed(key, is_for_somebody.then(|| Error::Media(e.clone())));
                }
                Err(_) => {}
            }
            self.cache.unpin(frame);
            self.wake(Wait::Page(key));
        }
        self.wake(Wait::Progress);
    }
}
