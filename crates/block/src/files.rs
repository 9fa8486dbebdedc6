//! Open files and their attributes: open, close, setattr, truncate, fallocate, seek, extended attributes.

use crate::core::{Core, Res, Stop, Wait};
use crate::extents::{Ext, Mapping, runs};
use crate::handles::{Open, ReadAhead};
use crate::inode::{Data, Slot};
use crate::space::Run;
use format::limits::{FILE_SIZE_MAX, SEGMENT_BLOCKS, XATTR_TOTAL_MAX, XATTR_VALUE_MAX};
use format::{BlockNo, Ino};
use fs::cache::{PAGE, Pages};
use fs::{
    Access, Attr, Cred, Error, Fallocate, FileType, Handle, OpenFlags, Seek, SetAttr, StatFs, XattrFlags,
    perm,
};

const PAGE64: u64 = PAGE as u64;
/// Open handles of one volume.
const HANDLES_MAX: usize = 1 << 20;

impl Core {
    /// Opens an inode whose kind and permissions were checked.
    pub fn open_slot(
        &mut self,
        cred: &Cred,
        slot: Slot,
        flags: OpenFlags,
        directory: bool,
    ) -> Result<Handle, Error> {
        if self.handles.len() >= HANDLES_MAX {
            return Err(Error::TooManyOpen);
        }
        self.slab.get_mut(slot).opens += 1;
        let open = Open { slot, flags, directory, ahead: ReadAhead::default() };
        Ok(self.handles.insert(open, cred.clone()))
    }

    pub fn check_open(&self, cred: &Cred, slot: Slot, flags: OpenFlags) -> Result<(), Error> {
        let attr = self.attr(slot);
        match attr.kind {
            FileType::Regular => {}
            FileType::Directory if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) => {
                return Err(Error::IsDirectory);
            }
            _ => return Err(Error::Invalid("not a regular file")),
        }
        if !flags.intersects(OpenFlags::READ | OpenFlags::WRITE) {
            return Err(Error::Invalid("a file is opened for reading, writing or both"));
        }
        if !cred.checked {
            let mut want = Access::empty();
            want.set(Access::READ, flags.contains(OpenFlags::READ));
            want.set(Access::WRITE, flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE));
            perm::check(cred, &attr, want)?;
            if flags.contains(OpenFlags::NOATIME) && cred.uid != attr.uid && cred.uid != 0 {
                return Err(Error::NotPermitted);
            }
        }
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
            self.writable()?;
        }
        Ok(())
    }

    pub fn open(&mut self, cred: &Cred, ino: Ino, flags: OpenFlags, ticket: &mut Option<u64>) -> Res<Handle> {
        let (slot, _) = self.inode(ino)?;
        self.check_open(cred, slot, flags)?;
        if flags.contains(OpenFlags::TRUNCATE) {
            self.admit()?;
            self.truncate(slot, 0, ticket)?;
            let writer = perm::Writer::new(cred, &self.attr(slot));
            let now = self.now().into();
            let inode = self.edit(slot);
            inode.mtime = now;
            inode.ctime = now;
            clear_set_ids(inode, writer);
        }
        Ok(self.open_slot(cred, slot, flags, false)?)
    }

    pub fn opendir(&mut self, cred: &Cred, ino: Ino) -> Res<Handle> {
        let (slot, inode) = self.inode(ino)?;
        if !inode.is_dir() {
            return Err(Error::NotDirectory.into());
        }
        if !cred.checked {
            perm::check(cred, &self.attr(slot), Access::READ)?;
        }
        Ok(self.open_slot(cred, slot, OpenFlags::READ, true)?)
    }

    /// Closes a handle; an inode without names goes with its last one.
    pub fn release(&mut self, handle: Handle) -> Res<Slot> {
        let open = *self.handles.get(handle)?;
        let inode = self.slab.get(open.slot);
        if inode.opens == 1 && inode.nlink == 0 && self.latched.is_none() && !self.read_only {
            if inode.blocks > 0 {
                self.need_tail(open.slot)?;
            }
            if self.running.gate.is_some() {
                return Err(Stop::Wait(Wait::Progress));
            }
            self.handles.remove(handle)?;
            self.slab.get_mut(open.slot).opens = 0;
            self.free_inode(open.slot);
        } else {
            self.handles.remove(handle)?;
            self.slab.get_mut(open.slot).opens -= 1;
        }
        Ok(open.slot)
    }

    pub fn setattr(&mut self, cred: &Cred, ino: Ino, set: &SetAttr, ticket: &mut Option<u64>) -> Res<Attr> {
        let (slot, writable) = match set.handle {
            Some(handle) => {
                let open = self.handles.get(handle)?;
                (open.slot, open.flags.contains(OpenFlags::WRITE) && !open.directory)
            }
            None => (self.inode(ino)?.0, false),
        };
        let old = self.attr(slot);
        if set.size.is_some() && set.handle.is_some() && !writable {
            return Err(Error::BadHandle.into());
        }
        let new = perm::setattr(cred, &old, set, writable, self.now())?;
        self.admit()?;
        self.need_tail(slot)?;
        if let Some(size) = set.size {
            self.truncate(slot, size, ticket)?;
        }
        let inode = self.edit(slot);
        inode.mode = new.mode();
        inode.uid = new.uid;
        inode.gid = new.gid;
        inode.atime = new.atime.into();
        inode.mtime = new.mtime.into();
        inode.ctime = new.ctime.into();
        Ok(self.attr(slot))
    }

    /// Sets the size. What lies behind it, up to the end of its page, becomes zeros, so that growing shows zeros.
    pub fn truncate(&mut self, slot: Slot, size: u64, ticket: &mut Option<u64>) -> Res<()> {
        self.need_tail(slot)?;
        let old = self.slab.get(slot).size;
        if size < old && self.slab.get(slot).tail.is_some() {
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
                    self.zero_in_page(slot, size, size.next_multiple_of(PAGE64).min(old), ticket)?;
                    self.unmap(slot, size.div_ceil(PAGE64), u64::MAX);
                }
            }
        }
        if size != old {
            self.edit(slot).size = size;
        }
        Ok(())
    }

    /// Sets bytes of one page to zero, if the page has any content.
    fn zero_in_page(&mut self, slot: Slot, start: u64, end: u64, ticket: &mut Option<u64>) -> Res<()> {
        if start >= end {
            return Ok(());
        }
        let page = start / PAGE64;
        let cached = self.cache.find(crate::pages::key(slot, page));
        let mapped = matches!(self.map(slot).lookup(page), Mapping::Block { unwritten: false, .. });
        if cached.is_none() && !mapped {
            return Ok(());
        }
        let frame = self.page_for_change(slot, page)?;
        self.edit(slot);
        self.dirty_page(slot, page, frame, ticket)?;
        self.cache.arena().zero(frame.offset() + start % PAGE64, (end - start) as usize);
        Ok(())
    }

    /// Removes whole pages from a file with extents.
    fn unmap(&mut self, slot: Slot, start: u64, end: u64) {
        self.edit(slot);
        self.forget_pages(slot, start, end);
        let Some(map) = self.tail_mut(slot).extents_mut() else { return };
        let removed = map.remove(start, end);
        let blocks: u64 = removed.iter().map(|e| e.count as u64).sum();
        self.slab.get_mut(slot).blocks -= blocks;
        runs(&removed).for_each(|run| self.give_back(run));
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
        self.need_tail(slot)?;
        let size = self.slab.get(slot).size;
        let keep_size = match what {
            Fallocate::Allocate { keep_size } | Fallocate::ZeroRange { keep_size } => keep_size,
            Fallocate::PunchHole => true,
        };
        if what == Fallocate::PunchHole {
            self.zero_range(slot, offset, end.min(size.max(offset)), end, ticket)?;
        } else {
            self.edit(slot);
            self.tail_mut(slot);
            self.make_extents(slot, ticket)?;
            if matches!(what, Fallocate::ZeroRange { .. }) {
                self.zero_range(slot, offset, end, end, ticket)?;
            }
            self.allocate_range(slot, offset / PAGE64, end.div_ceil(PAGE64), ticket)?;
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

    /// `start..end` reads as zeros afterwards; whole pages up to `unmap_end` lose their blocks.
    fn zero_range(
        &mut self,
        slot: Slot,
        start: u64,
        end: u64,
        unmap_end: u64,
        ticket: &mut Option<u64>,
    ) -> Res<()> {
        if self.slab.get(slot).tail.is_none() {
            return Ok(());
        }
        self.edit(slot);
        if let Data::Inline(bytes) = &mut self.tail_mut(slot).data {
            let (from, to) = ((start as usize).min(bytes.len()), (end as usize).min(bytes.len()));
            bytes[from..to].fill(0);
            return Ok(());
        }
        let (first, last) = (start.div_ceil(PAGE64), unmap_end / PAGE64);
        if first > last {
            return self.zero_in_page(slot, start, end.min(unmap_end), ticket);
        }
        self.zero_in_page(slot, start, (first * PAGE64).min(end), ticket)?;
        self.zero_in_page(slot, last * PAGE64, end, ticket)?;
        if first < last {
            self.unmap(slot, first, last);
        }
        Ok(())
    }

    /// Gives blocks to the holes of `start..end`; they read as zeros.
    fn allocate_range(&mut self, slot: Slot, start: u64, end: u64, ticket: &mut Option<u64>) -> Res<()> {
        let mut page = start;
        while page < end {
            match self.map(slot).lookup(page) {
                Mapping::Block { count, .. } => page += count as u64,
                Mapping::Hole { until } => {
                    let want = (until.min(end) - page).min(64 * SEGMENT_BLOCKS as u64);
                    let spare = self.space.spare(self.keep);
                    if spare == 0 {
                        self.wait_for_space(ticket)?;
                    }
                    let run = self.allocate_run(slot, page, want.min(spare))?;
                    let n = run.count as u64;
                    let tail = self.tail_mut(slot);
                    // Pages that were waiting for a block have one now.
                    let waiting: u64 = tail.dirty.within(page, page + n).iter().map(|(s, e)| e - s).sum();
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
                }
            }
        }
        Ok(())
    }

    pub fn seek(&mut self, handle: Handle, offset: u64, what: Seek) -> Res<u64> {
        let slot = self.handles.file(handle, OpenFlags::empty())?.slot;
        let size = self.slab.get(slot).size;
        if offset >= size {
            return Err(Error::NoSuchOffset.into());
        }
        self.need_tail(slot)?;
        let Some(tail) = &self.slab.get(slot).tail else {
            return match what {
                Seek::Hole => Ok(offset),
                Seek::Data => Err(Error::NoSuchOffset.into()),
            };
        };
        let mut data: Vec<(u64, u64)> = match &tail.data {
            Data::Inline(bytes) => vec![(0, bytes.len() as u64)],
            Data::Extents(map) => {
                let first = offset / PAGE64;
                let written = map.within(first, u64::MAX).into_iter().filter(|e| !e.unwritten);
                let mut all: Vec<_> = written.map(|e| (e.file_block * PAGE64, e.end() * PAGE64)).collect();
                all.extend(tail.dirty.within(first, u64::MAX).iter().map(|(s, e)| (s * PAGE64, e * PAGE64)));
                all.sort_unstable();
                all
            }
        };
        data.retain(|d| d.0 < size && d.1 > offset);
        match what {
            Seek::Data => data.first().map(|d| d.0.max(offset)).ok_or(Error::NoSuchOffset.into()),
            Seek::Hole => {
                let mut at = offset;
                for (start, end) in data {
                    if start > at {
                        break;
                    }
                    at = at.max(end);
                }
                Ok(at.min(size))
            }
        }
    }

    pub fn readlink(&mut self, ino: Ino) -> Res<Vec<u8>> {
        let (slot, inode) = self.inode(ino)?;
        if inode.file_type() != FileType::Symlink {
            return Err(Error::Invalid("not a symbolic link").into());
        }
        let mut target = vec![0; inode.size as usize];
        let (mut done, mut copies) = (0, Vec::new());
        self.read_step(slot, None, 0, &mut target, &mut done, &mut copies)?;
        self.accessed(slot);
        Ok(target)
    }

    pub fn statfs(&self) -> StatFs {
        let free = self.space.available();
        let inodes = free / SEGMENT_BLOCKS as u64 * SEGMENT_BLOCKS as u64;
        let slots = self.slab.table().flatten().count() as u64 * SEGMENT_BLOCKS as u64;
        let inodes_free = inodes + slots.saturating_sub(self.slab.used + 1);
        StatFs {
            block_size: PAGE as u32,
            blocks: self.space.total(),
            blocks_free: free,
            blocks_available: free.saturating_sub(self.keep),
            inodes: self.slab.used + inodes_free,
            inodes_free,
            name_max: format::limits::NAME_MAX as u32,
        }
    }

    pub fn getxattr(&mut self, cred: &Cred, ino: Ino, name: &[u8]) -> Res<Vec<u8>> {
        let (slot, _) = self.inode(ino)?;
        perm::check_xattr(cred, &self.attr(slot), name, false)?;
        self.need_tail(slot)?;
        let tail = self.slab.get(slot).tail.as_ref().ok_or(Error::NoAttribute)?;
        let found = tail.xattrs.iter().find(|(n, _)| **n == *name).ok_or(Error::NoAttribute)?;
        Ok(found.1.to_vec())
    }

    pub fn listxattr(&mut self, cred: &Cred, ino: Ino) -> Res<Vec<Vec<u8>>> {
        let (slot, _) = self.inode(ino)?;
        self.need_tail(slot)?;
        let tail = self.slab.get(slot).tail.as_ref();
        let names = tail.map_or(&[][..], |t| &t.xattrs).iter().map(|(n, _)| n.to_vec());
        Ok(names.filter(|n| cred.privileged() || !n.starts_with(b"trusted.")).collect())
    }

    pub fn setxattr(
        &mut self,
        cred: &Cred,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
        ticket: &mut Option<u64>,
    ) -> Res<()> {
        let (slot, _) = self.inode(ino)?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(Error::AttributeTooLarge.into());
        }
        perm::check_xattr(cred, &self.attr(slot), name, true)?;
        self.admit()?;
        self.need_tail(slot)?;
        let xattrs = self.slab.get(slot).tail.as_ref().map_or(&[][..], |t| &t.xattrs);
        let exists = xattrs.iter().find(|(n, _)| **n == *name).map(|(n, v)| 8 + n.len() + v.len());
        if exists.is_some() && flags.contains(XattrFlags::CREATE) {
            return Err(Error::Exists.into());
        }
        if exists.is_none() && flags.contains(XattrFlags::REPLACE) {
            return Err(Error::NoAttribute.into());
        }
        let total = format::xattr::encoded_len(xattrs) + 8 + name.len() + value.len() - exists.unwrap_or(0);
        // With the header that stands in front of them outside of the inode.
        if total + size_of::<format::xattr::XattrHeader>() > XATTR_TOTAL_MAX {
            return Err(Error::AttributeTooLarge.into());
        }
        self.change_xattrs(slot, self.keep, ticket, |xattrs| {
            xattrs.retain(|(n, _)| **n != *name);
            xattrs.push((name.into(), value.into()));
        })
    }

    pub fn removexattr(&mut self, cred: &Cred, ino: Ino, name: &[u8], ticket: &mut Option<u64>) -> Res<()> {
        let (slot, _) = self.inode(ino)?;
        perm::check_xattr(cred, &self.attr(slot), name, true)?;
        self.admit()?;
        self.need_tail(slot)?;
        let tail = self.slab.get(slot).tail.as_ref();
        if !tail.is_some_and(|t| t.xattrs.iter().any(|(n, _)| **n == *name)) {
            return Err(Error::NoAttribute.into());
        }
        // What makes the set smaller may use the last blocks.
        self.change_xattrs(slot, 0, ticket, |xattrs| xattrs.retain(|(n, _)| **n != *name))
    }

    fn change_xattrs(
        &mut self,
        slot: Slot,
        keep: u64,
        ticket: &mut Option<u64>,
        change: impl FnOnce(&mut Vec<format::xattr::Xattr>),
    ) -> Res<()> {
        let mut xattrs = self.slab.get(slot).tail.as_ref().map_or_else(Vec::new, |t| t.xattrs.clone());
        change(&mut xattrs);
        self.edit(slot);
        self.take_place_for_xattrs(slot, &xattrs, keep, ticket)?;
        let now = self.now().into();
        self.edit(slot).ctime = now;
        let tail = self.tail_mut(slot);
        tail.xattrs = xattrs;
        tail.xattrs_changed = true;
        let len = format::xattr::encoded_len(&tail.xattrs);
        self.running.bytes += len.min(512);
        Ok(())
    }

    /// Reads through a handle. See [`Core::read_step`].
    pub fn read(
        &mut self,
        handle: Handle,
        offset: u64,
        to: &mut [u8],
        first: &mut bool,
        done: &mut usize,
        copies: &mut Vec<crate::pages::CopyOut>,
    ) -> Res<usize> {
        let len = to.len();
        check_direct(self.handles.file(handle, OpenFlags::READ)?, offset, len)?;
        self.read_through(handle, len, first, |core, slot, window| {
            core.read_step(slot, window, offset, to, done, copies)
        })
    }

    /// How much of `len` bytes there is to lend.
    pub fn lendable(&self, handle: Handle, offset: u64, len: usize) -> Result<usize, Error> {
        let open = self.handles.file(handle, OpenFlags::READ)?;
        check_direct(open, offset, len)?;
        let left = self.slab.get(open.slot).size.saturating_sub(offset);
        Ok(len.min(left.try_into().unwrap_or(usize::MAX)))
    }

    /// Lends up to `most` of the `len` bytes that are wanted through a handle. See [`Core::lend_step`].
    pub fn lend(
        &mut self,
        handle: Handle,
        offset: u64,
        (len, most): (usize, usize),
        first: &mut bool,
        pages: &mut Pages,
    ) -> Res<()> {
        self.read_through(handle, len, first, |core, slot, window| {
            core.lend_step(slot, window, offset, most, pages)
        })
    }

    fn read_through<T>(
        &mut self,
        handle: Handle,
        len: usize,
        first: &mut bool,
        step: impl FnOnce(&mut Core, Slot, Option<&mut ReadAhead>) -> Res<T>,
    ) -> Res<T> {
        let open = *self.handles.file(handle, OpenFlags::READ)?;
        let mut ahead = open.ahead;
        // A repetition after waiting is not another read: the window moves once for each.
        let sequential = std::mem::take(first) && !open.flags.contains(OpenFlags::DIRECT);
        let result = step(self, open.slot, sequential.then_some(&mut ahead));
        if let Ok(open) = self.handles.get_mut(handle) {
            open.ahead = ahead;
        }
        if result.is_ok() && len > 0 {
            self.accessed_by(handle);
        }
        result
    }

    /// A read through a handle; see [`Core::accessed`].
    pub fn accessed_by(&mut self, handle: Handle) {
        if let Ok(&Open { slot, flags, .. }) = self.handles.get(handle)
            && !flags.contains(OpenFlags::NOATIME)
        {
            self.accessed(slot);
        }
    }

    /// Writes a piece through a handle: at most `chunk` bytes, but an appending write as a whole.
    pub fn write(
        &mut self,
        handle: Handle,
        offset: u64,
        from: &[u8],
        chunk: usize,
        done: &mut usize,
        ticket: &mut Option<u64>,
    ) -> Res<()> {
        let open = *self.handles.file(handle, OpenFlags::WRITE)?;
        let append = open.flags.contains(OpenFlags::APPEND);
        // What was appended before this repetition ends at the end of the file, or others appended since: go on there.
        let base = if append { self.slab.get(open.slot).size.saturating_sub(*done as u64) } else { offset };
        check_direct(&open, base, from.len())?;
        if from.is_empty() {
            return Ok(());
        }
        let room = FILE_SIZE_MAX.saturating_sub(base).min(from.len() as u64) as usize;
        if *done >= room {
            return Err(Error::TooLarge.into());
        }
        let until = if append { room } else { room.min(*done + chunk) };
        self.write_step(open.slot, base, &from[..until], done, ticket)?;
        if open.flags.contains(OpenFlags::DIRECT) {
            self.write_back(open.slot, 0, u64::MAX, false, false)?;
        }
        self.wrote_through(handle, open.slot);
        Ok(())
    }

    /// A write through a handle: what it does to the set-id bits.
    fn wrote_through(&mut self, handle: Handle, slot: Slot) {
        if self.slab.get(slot).mode & 0o6000 != 0
            && let Some(cred) = self.handles.cred(handle)
        {
            let writer = perm::Writer::new(cred, &self.attr(slot));
            clear_set_ids(self.edit(slot), writer);
        }
    }

    /// A read of a file, a symlink or a directory: relatime, as Linux mounts by default. Only when the tail is in memory, which
    /// it is after a read of bytes.
    pub fn accessed(&mut self, slot: Slot) {
        if self.options.noatime
            || self.read_only
            || self.latched.is_some()
            || self.closing
            || self.running.gate.is_some()
        {
            return;
        }
        let now = self.now();
        let inode = self.slab.get(slot);
        let (atime, mtime, ctime): (fs::Time, fs::Time, fs::Time) =
            (inode.atime.into(), inode.mtime.into(), inode.ctime.into());
        let stale = atime <= mtime || atime <= ctime || now.sec - atime.sec >= 24 * 3600;
        if stale && atime != now && inode.flags & crate::inode::TAIL_ON_MEDIUM == 0 {
            self.edit(slot).atime = now.into();
        }
    }

    /// Blocks for fallocate: as for delayed allocation, but nothing was reserved.
    fn allocate_run(&mut self, slot: Slot, page: u64, want: u64) -> Res<Run> {
        let run = self.allocate(slot, page, want.max(1))?;
        debug_assert!(run.block > BlockNo(0));
        Ok(run)
    }
}

fn clear_set_ids(inode: &mut crate::inode::Inode, writer: perm::Writer) {
    let after = perm::after_write(writer, (inode.mode & 0o7777) as u16);
    inode.mode = inode.mode & !0o7777 | after as u32;
}

/// O_DIRECT: offsets and lengths are multiples of 512 bytes.
fn check_direct(open: &Open, offset: u64, len: usize) -> Result<(), Error> {
    if open.flags.contains(OpenFlags::DIRECT) && (!offset.is_multiple_of(512) || !len.is_multiple_of(512)) {
        return Err(Error::Invalid("offset and length of a direct transfer must be multiples of 512"));
    }
    Ok(())
}
