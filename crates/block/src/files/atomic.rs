//! Atomic writes: several pieces of one file that are one change. After a crash all of them are there or none, and no reader
//! sees a part (F2FS's atomic writes; SQLite's batch atomic commits are made of them).
//!
//! One epoch is all or nothing already: its record carries the checksums of its data, and recovery takes whole records. So two things are
//! left to see to:
//! - The pieces join one epoch. Everything that might have to be waited for (pages, frames, space) is got first, and then all
//!   pieces are taken in under one hold of the lock.
//! - No page of that epoch overwrites in place, whoever writes it back and why: [`Running::atomic`](crate::epoch::Running) sends all overwrites
//!   of the epoch to its record or to new blocks. A volume too full for that refuses the write before anything has changed.
//!
//! Tested in tests/atomic.rs.

use crate::core::{Core, Res, Stop, Wait};
use crate::inode::{Data, Slot};
use crate::pages::key;
use format::limits::FILE_SIZE_MAX;
use fs::cache::{FrameNo, PAGE};
use fs::{ATOMIC_WRITE_MAX, Error, Handle, OpenFlags};

const PAGE64: u64 = PAGE as u64;

impl Core {
    /// Writes all pieces or, when it fails or waits, none.
    pub fn write_atomic(
        &mut self,
        handle: Handle,
        pieces: &[(u64, &[u8])],
        ticket: &mut Option<u64>,
    ) -> Res<()> {
        let open = *self.handles.file(handle, OpenFlags::WRITE)?;
        if open.flags.intersects(OpenFlags::APPEND | OpenFlags::DIRECT) {
            return Err(
                Error::Invalid("atomic write through a handle that appends or bypasses the cache").into()
            );
        }
        let bytes: usize = pieces.iter().map(|(_, data)| data.len()).sum();
        let ends = pieces.iter().map(|(at, data)| at.checked_add(data.len() as u64));
        let end =
            ends.into_iter().try_fold(0, |end, e| Some(end.max(e?))).filter(|end| *end <= FILE_SIZE_MAX);
        let Some(end) = end.filter(|_| bytes <= ATOMIC_WRITE_MAX) else {
            return Err(Error::TooLarge.into());
        };
        if bytes == 0 {
            return Ok(());
        }
        let slot = open.slot;
        self.admit()?;
        self.drop_capability(slot, ticket)?;
        self.throttle()?;
        self.edit(slot);
        if matches!(self.tail_mut(slot).data, Data::Inline(_)) {
            self.make_extents(slot, ticket)?;
        }
        let mut pages: Vec<u64> = pieces
            .iter()
            .filter(|(_, data)| !data.is_empty())
            .flat_map(|(at, data)| at / PAGE64..(at + data.len() as u64).div_ceil(PAGE64))
            .collect();
        pages.sort_unstable();
        pages.dedup();
        self.room_for_atomic(slot, &pages, ticket)?;
        self.pages_for_change(slot, &pages)?;

        let frame_of = |core: &Core, page| core.cache.find(key(slot, page)).expect("it was brought in above");
        // A page that is dirty already may be in the way of the next: each of them may still have to wait.
        for &page in &pages {
            self.dirty_page(slot, page, frame_of(self, page), ticket)?;
        }

        // From here on nothing waits.
        self.running.atomic = true;
        for &(at, data) in pieces {
            let mut done = 0;
            while done < data.len() {
                let pos = at + done as u64;
                let n = (PAGE - (pos % PAGE64) as usize).min(data.len() - done);
                let frame = frame_of(self, pos / PAGE64);
                self.cache.arena().copy_in(frame.offset() + pos % PAGE64, &data[done..][..n]);
                done += n;
            }
        }
        let now = self.now();
        let inode = self.edit(slot);
        inode.size = inode.size.max(end);
        inode.mtime = now.into();
        inode.ctime = now.into();
        self.running.bytes += 24;
        self.counters.atomic_writes += 1;
        self.wrote_through(handle, slot);
        Ok(())
    }

    /// Sees to it that these pages can get blocks, and that the epoch can be closed without an overwrite in place. `NoSpace`.
    fn room_for_atomic(&mut self, slot: Slot, pages: &[u64], ticket: &mut Option<u64>) -> Res<()> {
        let is_new = |page: &&u64| {
            let dirty = self.cache.find(key(slot, **page)).is_some_and(|f| self.cache.is_dirty(f));
            !dirty && self.map(slot).within(**page, **page + 1).is_empty()
        };
        let new = pages.iter().filter(is_new).count() as u64;
        self.reserve(new, ticket)?;
        // Taken again page by page, under the same hold of the lock.
        self.space.unreserve(new);
        let dirty = self.cache.dirty() + pages.len();
        let logged = self.running.bytes + (self.running.pages.len() + dirty) * (PAGE + 64);
        let by_record = logged < self.log.record_max() / 2;
        let by_blocks = self.space.spare(self.keep()) >= new + 4 * dirty as u64;
        if by_record || by_blocks { Ok(()) } else { self.wait_for_space(ticket) }
    }

    /// Brings pages into the cache, to be changed: all of them at the same time.
    fn pages_for_change(&mut self, slot: Slot, pages: &[u64]) -> Res<()> {
        if pages.len() > self.cache.len() / 8 {
            return Err(Error::TooLarge.into());
        }
        // Pinned, so that one does not drive out the other.
        let mut held: Vec<FrameNo> = Vec::with_capacity(pages.len());
        let mut result = Ok(());
        for &page in pages {
            match self.page_for_change(slot, page) {
                Ok(frame) => {
                    self.cache.pin(frame);
                    held.push(frame);
                }
                Err(stop) => {
                    result = Err(stop);
                    break;
                }
            }
        }
        held.iter().for_each(|&frame| self.cache.unpin(frame));
        // A page that was copied, because it was on its way to the device, is another frame now; all are there.
        let is_there = |page: &u64| {
            let found = self.cache.find(key(slot, *page));
            found.is_some_and(|f| self.cache.is_valid(f) && !self.cache.is_pinned(f))
        };
        if result.is_ok() && !pages.iter().all(is_there) {
            return Err(Stop::Wait(Wait::Progress));
        }
        result
    }
}
