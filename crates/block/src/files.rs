//! Open files: open, close, setattr, reading and writing through handles, and what that does to times and set-id bits.
//! `ranges` holds what changes or asks for the space of a file, `atomic` writes that are one change, `xattrs` extended attributes.

mod atomic;
mod ranges;
mod xattrs;

use crate::core::{Core, Res, Stop};
use crate::handles::{Open, ReadAhead};
use crate::inode::Slot;
use crate::pages::SoFar;
use crate::writeback::Purpose;
use format::Ino;
use format::limits::{FILE_SIZE_MAX, PATH_MAX, SEGMENT_BLOCKS};
use fs::cache::{PAGE, Pages};
use fs::{Access, Attr, Cred, Error, FileType, Handle, OpenFlags, SetAttr, Source, StatFs, perm};

/// Bytes of which transfers through handles with DIRECT are multiples; and those of copies within the volume, where no program's memory is.
pub(crate) const DIRECT_UNIT: u64 = 512;
pub(crate) const ANY_UNIT: u64 = 1;

/// Open handles of one volume.
const HANDLES_MAX: usize = 1 << 20;

impl Core {
    /// `TooManyOpen`, before anything is changed that goes with opening a file.
    pub fn another_handle(&self) -> Result<(), Error> {
        if self.handles.len() >= HANDLES_MAX { Err(Error::TooManyOpen) } else { Ok(()) }
    }

    /// Opens an inode whose kind and permissions were checked, and [`Core::another_handle`].
    pub fn open_slot(&mut self, cred: &Cred, slot: Slot, flags: OpenFlags, directory: bool) -> Handle {
        self.slab.get_mut(slot).opens += 1;
        let ino = Ino::of(slot, self.slab.get(slot).generation);
        let open = Open { slot, ino, flags, directory, ahead: ReadAhead::default(), appended: None };
        self.handles.insert(open, cred.clone())
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
        self.another_handle()?;
        if flags.contains(OpenFlags::TRUNCATE) {
            self.admit()?;
            self.drop_capability(slot, ticket)?;
            self.truncate(slot, 0, ticket)?;
            let writer = perm::Writer::new(cred, &self.attr(slot));
            let now = self.now().into();
            let inode = self.edit(slot);
            inode.mtime = now;
            inode.ctime = now;
            clear_set_ids(inode, writer);
        }
        Ok(self.open_slot(cred, slot, flags, false))
    }

    pub fn opendir(&mut self, cred: &Cred, ino: Ino) -> Res<Handle> {
        let (slot, inode) = self.inode(ino)?;
        if !inode.is_dir() {
            return Err(Error::NotDirectory.into());
        }
        if !cred.checked {
            perm::check(cred, &self.attr(slot), Access::READ)?;
        }
        self.another_handle()?;
        self.index.begin_scan(slot);
        Ok(self.open_slot(cred, slot, OpenFlags::READ, true))
    }

    /// Closes a handle; an inode without names goes with its last one. Returns what it was open for.
    pub fn release(&mut self, handle: Handle) -> Res<Ino> {
        let open = *self.handles.get(handle)?;
        let inode = self.slab.get(open.slot);
        // When the volume is being stopped it stays for the next mount: what is stopped has its index written as it is.
        let goes = inode.opens == 1 && inode.nlink == 0;
        if goes && self.latched.is_none() && !self.read_only && !self.closing {
            match self.need_to_free(open.slot).and_then(|()| self.room_in_epoch()) {
                Ok(()) => {}
                Err(Stop::Error(_)) => {
                    self.leave(handle);
                    return Ok(open.ino);
                }
                wait => wait?,
            }
            self.handles.remove(handle)?;
            self.slab.get_mut(open.slot).opens = 0;
            self.free_inode(open.slot);
        } else {
            self.handles.remove(handle)?;
            self.slab.get_mut(open.slot).opens -= 1;
        }
        Ok(open.ino)
    }

    /// Closes a handle without waiting. An inode that goes with it goes in the background; where it cannot be read, it stays until it is found without a
    /// name by the next mount.
    pub fn leave(&mut self, handle: Handle) {
        let Ok(Open { slot, .. }) = self.handles.remove(handle) else { return };
        let inode = self.slab.get_mut(slot);
        inode.opens -= 1;
        if inode.opens == 0 && inode.nlink == 0 {
            self.orphans.push((slot, inode.generation));
            self.wake_worker = true;
        }
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
        if old.kind == FileType::Regular && (set.size.is_some() || set.uid.is_some() || set.gid.is_some()) {
            self.drop_capability(slot, ticket)?;
        }
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

    pub fn readlink(&mut self, ino: Ino) -> Res<Vec<u8>> {
        let (slot, inode) = self.inode(ino)?;
        if inode.file_type() != FileType::Symlink {
            return Err(Error::Invalid("not a symbolic link").into());
        }
        if inode.size >= PATH_MAX as u64 {
            let fault = format::error::Fault::Rule("target of a symlink is too long");
            return Err(Error::from(format::FormatError::new("inode", fault)).into());
        }
        let mut target = vec![0; inode.size as usize];
        let (mut so_far, mut copies) = (SoFar::default(), Vec::new());
        self.read_step(slot, None, 0, &mut target, &mut so_far, &mut copies)?;
        self.accessed(slot);
        Ok(target)
    }

    pub fn statfs(&self) -> StatFs {
        let free = self.space.available();
        // Inodes come in whole segments: what is free in parts of others can never hold any.
        let whole = free.saturating_sub(self.keep()).min(self.space.free_in_segments());
        let inodes = whole / SEGMENT_BLOCKS as u64 * SEGMENT_BLOCKS as u64;
        let slots = self.slab.table().flatten().count() as u64 * SEGMENT_BLOCKS as u64;
        let inodes_free = inodes + slots.saturating_sub(self.slab.used + 1);
        StatFs {
            block_size: PAGE as u32,
            blocks: self.space.total(),
            blocks_free: free,
            blocks_available: free.saturating_sub(self.keep()),
            inodes: self.slab.used + inodes_free,
            inodes_free,
            name_max: format::limits::NAME_MAX as u32,
        }
    }

    /// Reads through a handle. See [`Core::read_step`].
    pub fn read(
        &mut self,
        handle: Handle,
        (offset, unit): (u64, u64),
        to: &mut [u8],
        first: &mut bool,
        so_far: &mut SoFar,
        copies: &mut Vec<crate::pages::CopyOut>,
    ) -> Res<usize> {
        let len = to.len();
        check_direct(self.handles.file(handle, OpenFlags::READ)?, (offset, unit), len)?;
        self.read_through(handle, len, first, |core, slot, window| {
            core.read_step(slot, window, offset, to, so_far, copies)
        })
    }

    /// How much of `len` bytes there is to lend.
    pub fn lendable(&self, handle: Handle, offset: u64, len: usize) -> Result<usize, Error> {
        let open = self.handles.file(handle, OpenFlags::READ)?;
        check_direct(open, (offset, DIRECT_UNIT), len)?;
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
        so_far: &mut SoFar,
    ) -> Res<()> {
        self.read_through(handle, len, first, |core, slot, window| {
            core.lend_step(slot, window, offset, most, pages, so_far)
        })
    }

    /// See [`fs::FileSystem::is_at_hand`].
    pub fn is_at_hand(&self, handle: Handle, offset: u64, len: usize) -> bool {
        let Ok(&Open { slot, .. }) = self.handles.file(handle, OpenFlags::READ) else { return false };
        self.is_cached(slot, offset, offset.saturating_add(len as u64))
    }

    fn read_through<T>(
        &mut self,
        handle: Handle,
        len: usize,
        first: &mut bool,
        step: impl FnOnce(&mut Core, Slot, Option<&mut ReadAhead>) -> Res<T>,
    ) -> Res<T> {
        let open = *self.handles.file(handle, OpenFlags::READ)?;
        // Before the first step: a wait for the inode is not a wait for its data.
        self.need_tail(open.slot)?;
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
        (offset, unit): (u64, u64),
        from: &dyn Source,
        chunk: usize,
        done: &mut usize,
        ticket: &mut Option<u64>,
    ) -> Res<()> {
        let open = *self.handles.file(handle, OpenFlags::WRITE)?;
        let append = open.flags.contains(OpenFlags::APPEND);
        // What was appended before this repetition ends at the end of the file, or others have appended or cut it since: go on there.
        let start = if append { self.slab.get(open.slot).size } else { offset.saturating_add(*done as u64) };
        check_direct(&open, (start, unit), from.len())?;
        if from.is_empty() {
            return Ok(());
        }
        if *done == from.len() {
            // It was all written before this had to wait.
            return self.end_write(open);
        }
        let room = FILE_SIZE_MAX.saturating_sub(start).min((from.len() - *done) as u64) as usize;
        if room == 0 {
            return Err(Error::TooLarge.into());
        }
        self.drop_capability(open.slot, ticket)?;
        let before = *done;
        let until = before + if append { room } else { room.min(chunk) };
        let result = self.write_step(open.slot, start, (from, until), done, ticket);
        if *done > before {
            self.wrote_through(handle, open.slot);
            if append && let Ok(open) = self.handles.get_mut(handle) {
                open.appended = Some(start + (*done - before) as u64);
            }
        }
        result?;
        self.end_write(open)
    }

    /// What was written through a handle with DIRECT goes to the medium now.
    fn end_write(&mut self, open: Open) -> Res<()> {
        if open.flags.contains(OpenFlags::DIRECT) {
            self.write_back(open.slot, 0, u64::MAX, Purpose::Memory)?;
        }
        Ok(())
    }

    /// A write through a handle: what it does to the set-id bits.
    pub fn wrote_through(&mut self, handle: Handle, slot: Slot) {
        if self.slab.get(slot).mode & 0o6000 != 0
            && let Some(cred) = self.handles.cred(handle)
        {
            let writer = perm::Writer::through_handle(cred, &self.attr(slot));
            clear_set_ids(self.edit(slot), writer);
        }
    }

    /// A read of a file, a symlink or a directory: relatime, as Linux mounts by default. Only when the tail is in memory, which
    /// it is after a read of bytes. No read waits for this: while the running epoch must not grow, a later one says it.
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
        let attr = self.attr(slot);
        let here = self.slab.get(slot).flags & crate::inode::TAIL_ON_MEDIUM == 0;
        if !attr.moves_atime(now) || attr.atime == now || !here {
            return;
        }
        if self.is_long() {
            self.wake_worker |= !std::mem::replace(&mut self.running.grown, true);
            return;
        }
        self.edit(slot).atime = now.into();
    }
}

fn clear_set_ids(inode: &mut crate::inode::Inode, writer: perm::Writer) {
    let after = perm::after_write(writer, (inode.mode & 0o7777) as u16);
    inode.mode = inode.mode & !0o7777 | after as u32;
}

/// O_DIRECT: offsets and lengths are multiples of a unit.
fn check_direct(open: &Open, (offset, unit): (u64, u64), len: usize) -> Result<(), Error> {
    let odd = !offset.is_multiple_of(unit) || !(len as u64).is_multiple_of(unit);
    if open.flags.contains(OpenFlags::DIRECT) && odd {
        return Err(Error::Invalid("offset and length of a direct transfer must be multiples of 512"));
    }
    Ok(())
}
