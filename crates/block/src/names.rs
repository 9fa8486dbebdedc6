//! Names: finding, making and removing them; `rename` moves them.
//!
//! A name is the (parent, name) of an inode, or of an additional-name inode when a file has several. Which of a file's names
//! stands in the inode itself is an accident: when that one is removed, the inode takes over another.

mod promised;
mod rename;

use crate::core::{Core, Res};
use crate::extents::runs;
use crate::inode::{Data, Inode, LINKABLE, NUMBERED, Name, Slot, TAIL_ON_MEDIUM, Tail};
use crate::space::Run;
use format::inode::SlotKind;
use format::limits::{LINK_MAX, NAME_MAX, PATH_MAX, SEGMENT_BLOCKS};
use format::{BlockNo, Ino};
use fs::{Access, Attr, Cred, DirEntry, Error, FileType, Time, perm};

pub(crate) const ROOT: Slot = 1;

/// What mknod and its kin make.
pub(crate) struct New<'a> {
    pub kind: FileType,
    pub perm: u16,
    pub rdev: u64,
    /// Target of a symlink.
    pub target: &'a [u8],
    /// The slot that was set aside for it, and its generation.
    pub promised: Option<(Slot, u32)>,
    /// When it was made, if that is not now.
    pub time: Option<Time>,
}

impl New<'_> {
    /// Of this kind, made now: without what devices, symlinks and promised inodes have besides.
    pub fn plain(kind: FileType, perm: u16) -> Self {
        New { kind, perm, rdev: 0, target: b"", promised: None, time: None }
    }
}

fn check_name(name: &[u8]) -> Result<(), Error> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong);
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Error::Invalid("a name must not be empty nor hold '/' or NUL"));
    }
    Ok(())
}

fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

impl Core {
    pub fn inode(&self, ino: Ino) -> Result<(Slot, &Inode), Error> {
        self.slab.find(ino).ok_or(Error::Stale)
    }
    pub fn attr(&self, slot: Slot) -> Attr {
        self.slab.get(slot).attr(slot)
    }
    /// See [`fs::FileSystem::is_within`].
    pub fn is_within(&self, ino: Ino, top: Ino) -> bool {
        let (Some((mut slot, _)), Some((top, _))) = (self.slab.find(ino), self.slab.find(top)) else {
            return false;
        };
        // The root has no parent, nor has what has lost its last name.
        while slot != 0 && slot != top && slot != ROOT {
            slot = self.slab.get(slot).parent;
        }
        slot == top
    }
    fn directory(&self, ino: Ino) -> Result<Slot, Error> {
        let (slot, inode) = self.inode(ino)?;
        if inode.is_dir() { Ok(slot) } else { Err(Error::NotDirectory) }
    }
    fn check(&self, cred: &Cred, slot: Slot, want: Access) -> Result<(), Error> {
        if cred.checked { Ok(()) } else { perm::check(cred, &self.attr(slot), want) }
    }
    /// As [`check_name`]; a directory that was removed has no names, however long.
    fn check_name_in(&self, dir: Slot, name: &[u8]) -> Result<(), Error> {
        match check_name(name) {
            Ok(()) | Err(Error::NameTooLong) if self.slab.get(dir).nlink == 0 => Err(Error::NotFound),
            checked => checked,
        }
    }
    /// The inode that a name's slot leads to.
    fn target(&self, entry: Slot) -> Slot {
        let inode = self.slab.get(entry);
        if inode.kind == SlotKind::Link { inode.size as Slot } else { entry }
    }

    pub fn lookup(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Attr, Error> {
        let dir = self.directory(parent)?;
        self.lookup_in(cred, dir, name).map(|slot| self.attr(slot))
    }

    fn lookup_in(&self, cred: &Cred, dir: Slot, name: &[u8]) -> Result<Slot, Error> {
        if !cred.privileged() {
            self.check(cred, dir, Access::EXEC)?;
        }
        match name {
            b"." => Ok(dir),
            b".." if dir == ROOT => Ok(dir),
            b".." => {
                Ok(self.slab.get(dir).parent).and_then(|p| if p == 0 { Err(Error::NotFound) } else { Ok(p) })
            }
            _ => match self.index.find(&self.slab, dir, name) {
                Some(entry) => Ok(self.target(entry)),
                None => self.check_name_in(dir, name).and(Err(Error::NotFound)),
            },
        }
    }

    /// Walks a path of plain names (see `FileSystem::walk`).
    pub fn walk(&self, cred: &Cred, base: Ino, path: &[u8]) -> Result<Attr, Error> {
        let (mut at, _) = self.inode(base)?;
        for name in path.split(|&b| b == b'/').filter(|n| !n.is_empty()) {
            if !self.slab.get(at).is_dir() {
                return Err(Error::NotDirectory);
            }
            at = self.lookup_in(cred, at, name)?;
        }
        Ok(self.attr(at))
    }

    /// A directory in which a name is to be made: checks, and the slot of the name if it exists.
    fn parent_for_new(&mut self, cred: &Cred, parent: Ino, name: &[u8]) -> Res<(Slot, Option<Slot>)> {
        let dir = self.directory(parent)?;
        self.check(cred, dir, Access::EXEC)?;
        if is_dots(name) {
            return Ok((dir, Some(dir)));
        }
        self.check_name_in(dir, name)?;
        let found = self.index.find(&self.slab, dir, name);
        if found.is_none() {
            self.check(cred, dir, Access::WRITE)?;
        }
        Ok((dir, found))
    }

    /// A slot for a new inode. Makes an inode segment when all slots are taken.
    fn new_slot(&mut self, ticket: &mut Option<u64>) -> Res<Slot> {
        if let Some(slot) = self.slab.alloc() {
            return Ok(slot);
        }
        let segment = SEGMENT_BLOCKS as u64;
        self.let_checkpoint_by(segment)?;
        let spare = self.space.free_now() >= self.space.reserved() + self.keep() + segment;
        let index = self.slab.next_index();
        if index as usize >= format::limits::INODE_SEGMENTS_MAX {
            return Err(Error::NoSpace.into());
        }
        let Some((seg, _)) = spare.then(|| self.space.alloc_segments(1, None)).flatten() else {
            self.wait_for_space(ticket)?;
            return Err(Error::NoSpace.into());
        };
        self.slab.add_chunk(index, seg, false);
        self.running.assignments.push((index, seg.0));
        self.note_change();
        self.slab.alloc().ok_or_else(|| Error::NoSpace.into())
    }

    /// Epochs that were lost gave this slot generations too, and their numbers are used again, so the first that an opening gives is
    /// further on (`inode::apart`), from this slot's as from what all had before a clean stop.
    fn next_generation(&self, slot: Slot) -> u32 {
        let inode = self.slab.get(slot);
        let step = if inode.flags & NUMBERED != 0 { 0 } else { self.apart };
        let next = inode.generation.wrapping_add(1).wrapping_add(step);
        let before = self.slab.generation_before.max(self.running.epoch as u32);
        next.max(before.wrapping_add(self.apart))
    }

    fn new_inode(&mut self, cred: &Cred, dir: Slot, new: &New<'_>, ticket: &mut Option<u64>) -> Res<Slot> {
        let (uid, gid, perm) = perm::new_inode(cred, &self.attr(dir), new.kind, new.perm);
        let (slot, generation) = match new.promised {
            Some(promised) => {
                self.slab.redeem();
                promised
            }
            None => {
                let slot = self.new_slot(ticket)?;
                (slot, self.next_generation(slot))
            }
        };
        let now = new.time.unwrap_or_else(|| self.now()).into();
        let device = matches!(new.kind, FileType::CharDevice | FileType::BlockDevice);
        let inode = Inode {
            kind: SlotKind::Inode,
            mode: new.kind.mode_bits() | perm as u32,
            uid,
            gid,
            nlink: if new.kind == FileType::Directory { 2 } else { 1 },
            size: if device { new.rdev } else { new.target.len() as u64 },
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            ..Inode::free(generation)
        };
        self.put(slot, inode);
        Ok(slot)
    }

    /// Enters the name of `slot` in its directory, at a place that another name has left or at the end, and changes the
    /// directory's times.
    fn enter(&mut self, slot: Slot, dir: Slot, name: &[u8], place: Option<u64>) {
        let inode = self.slab.get_mut(slot);
        inode.parent = dir;
        inode.name = Name::new(name);
        // It was counted without this name.
        self.running.bytes += name.len();
        let cookie = self.index.insert(&self.slab, slot, place);
        self.slab.get_mut(slot).cookie = cookie;
        self.touch_dir(dir);
    }

    fn touch_dir(&mut self, dir: Slot) {
        let now = self.now().into();
        let inode = self.edit(dir);
        inode.mtime = now;
        inode.ctime = now;
    }

    /// Makes an inode of any kind with a name.
    pub fn make(
        &mut self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        new: &New<'_>,
        ticket: &mut Option<u64>,
    ) -> Res<Slot> {
        if new.target.len() >= PATH_MAX {
            return Err(Error::NameTooLong.into());
        }
        let (dir, found) = self.parent_for_new(cred, parent, name)?;
        if found.is_some() {
            return Err(Error::Exists.into());
        }
        let device = matches!(new.kind, FileType::CharDevice | FileType::BlockDevice);
        if device && !cred.privileged() {
            return Err(Error::NotPermitted.into());
        }
        self.admit()?;
        if new.kind == FileType::Directory && self.slab.get(dir).nlink >= LINK_MAX {
            return Err(Error::TooManyLinks.into());
        }
        self.need_tail(dir)?;
        let slot = self.new_inode(cred, dir, new, ticket)?;
        if !new.target.is_empty() {
            self.store_target(slot, new.target, ticket)?;
        }
        self.enter(slot, dir, name, None);
        if new.kind == FileType::Directory {
            self.slab.get_mut(dir).nlink += 1;
        }
        Ok(slot)
    }

    /// Makes an inode without a name (tmpfile).
    pub fn make_nameless(
        &mut self,
        cred: &Cred,
        parent: Ino,
        perm: u16,
        linkable: bool,
        ticket: &mut Option<u64>,
    ) -> Res<Slot> {
        let dir = self.directory(parent)?;
        self.check(cred, dir, Access::EXEC | Access::WRITE)?;
        if self.slab.get(dir).nlink == 0 {
            return Err(Error::NotFound.into());
        }
        self.admit()?;
        let new = New::plain(FileType::Regular, perm);
        let slot = self.new_inode(cred, dir, &new, ticket)?;
        let inode = self.slab.get_mut(slot);
        inode.nlink = 0;
        if linkable {
            inode.flags |= LINKABLE;
        }
        Ok(slot)
    }

    pub fn link(
        &mut self,
        cred: &Cred,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        ticket: &mut Option<u64>,
    ) -> Res<Attr> {
        let (target, inode) = self.inode(ino)?;
        let (is_dir, nlink, flags) = (inode.is_dir(), inode.nlink, inode.flags);
        let (dir, found) = self.parent_for_new(cred, parent, name)?;
        if found.is_some() {
            return Err(Error::Exists.into());
        }
        if is_dir {
            return Err(Error::NotPermitted.into());
        }
        if nlink == 0 && flags & LINKABLE == 0 {
            return Err(Error::NotFound.into());
        }
        if nlink >= LINK_MAX {
            return Err(Error::TooManyLinks.into());
        }
        self.admit()?;
        self.need_tail(target)?;
        self.need_tail(dir)?;
        if nlink == 0 {
            self.edit(target).flags &= !LINKABLE;
            self.enter(target, dir, name, None);
        } else {
            let slot = self.new_slot(ticket)?;
            let generation = self.next_generation(slot);
            self.put(slot, Inode { kind: SlotKind::Link, size: target as u64, ..Inode::free(generation) });
            self.enter(slot, dir, name, None);
            self.index.add_link(target, slot);
        }
        let now = self.now().into();
        let inode = self.edit(target);
        inode.nlink += 1;
        inode.ctime = now;
        Ok(self.attr(target))
    }

    pub fn unlink(&mut self, cred: &Cred, parent: Ino, name: &[u8]) -> Res<()> {
        let dir = self.directory(parent)?;
        self.check(cred, dir, Access::EXEC)?;
        if is_dots(name) {
            return Err(Error::IsDirectory.into());
        }
        self.check_name_in(dir, name)?;
        let entry = self.index.find(&self.slab, dir, name).ok_or(Error::NotFound)?;
        let target = self.target(entry);
        if !cred.checked {
            perm::check_delete(cred, &self.attr(dir), &self.attr(target))?;
        }
        if self.slab.get(target).is_dir() {
            return Err(Error::IsDirectory.into());
        }
        self.admit()?;
        self.need_tail(dir)?;
        self.need_for_removal(entry)?;
        self.remove_name(entry);
        self.touch_dir(dir);
        Ok(())
    }

    pub fn rmdir(&mut self, cred: &Cred, parent: Ino, name: &[u8]) -> Res<()> {
        let dir = self.directory(parent)?;
        self.check(cred, dir, Access::EXEC)?;
        match name {
            b"." => return Err(Error::Invalid("the last part of the path is '.'").into()),
            b".." => return Err(Error::NotEmpty.into()),
            _ => self.check_name_in(dir, name)?,
        }
        let entry = self.index.find(&self.slab, dir, name).ok_or(Error::NotFound)?;
        let target = self.target(entry);
        if !cred.checked {
            perm::check_delete(cred, &self.attr(dir), &self.attr(target))?;
        }
        if !self.slab.get(target).is_dir() {
            return Err(Error::NotDirectory.into());
        }
        if !self.index.is_empty_dir(target) {
            return Err(Error::NotEmpty.into());
        }
        self.admit()?;
        self.need_tail(dir)?;
        self.need_for_removal(entry)?;
        self.remove_name(entry);
        self.slab.get_mut(dir).nlink -= 1;
        self.touch_dir(dir);
        Ok(())
    }

    /// What must be in memory before a name can be removed.
    fn need_for_removal(&mut self, entry: Slot) -> Res<()> {
        let target = self.target(entry);
        let inode = self.slab.get(target);
        let goes = inode.opens == 0 && (inode.nlink <= 1 || inode.is_dir());
        if goes { self.need_to_free(target) } else { self.need_tail(target) }
    }

    /// What must be in memory before an inode can be freed. One that has no blocks is not looked into; but what is on its way into memory would come to the next inode in its slot.
    pub fn need_to_free(&mut self, slot: Slot) -> Res<()> {
        if self.slab.get(slot).blocks > 0 { self.need_tail(slot) } else { self.need_no_load(slot) }
    }

    /// Removes a name; the inode goes with its last one, unless it is open.
    fn remove_name(&mut self, entry: Slot) {
        let target = self.target(entry);
        let now = self.now().into();
        self.index.remove(&self.slab, entry);
        if entry != target {
            self.index.remove_link(target, entry);
            self.free_slot(entry);
        } else if let Some(&link) = self.index.links(target).last() {
            // The inode takes over the place of another of its names.
            self.edit(target);
            self.index.bequeath(&self.slab, link, target);
            let other = self.slab.get(link);
            let (parent, name, cookie) = (other.parent, other.name.clone(), other.cookie);
            self.running.bytes += name.bytes().len();
            let inode = self.slab.get_mut(target);
            (inode.parent, inode.name, inode.cookie) = (parent, name, cookie);
            self.index.remove_link(target, link);
            self.free_slot(link);
        } else {
            let inode = self.slab.get(target);
            if inode.opens == 0 {
                return self.free_inode(target);
            }
            let inode = self.edit(target);
            inode.parent = 0;
            inode.name = Name::new(b"");
            inode.nlink = 0;
            inode.ctime = now;
            return;
        }
        let inode = self.edit(target);
        inode.nlink -= 1;
        inode.ctime = now;
    }

    /// Gives a slot back.
    fn free_slot(&mut self, slot: Slot) {
        let inode = self.edit(slot);
        let generation = inode.generation;
        debug_assert!(!self.is_loading(slot), "its tail would be the next one's");
        self.loading.remove(&slot);
        self.put(slot, Inode::free(generation));
        self.slab.release(slot);
    }

    /// Gives an inode without names and handles back, with all its blocks.
    pub fn free_inode(&mut self, slot: Slot) {
        self.edit(slot);
        if self.slab.get(slot).flags & TAIL_ON_MEDIUM == 0 {
            self.drop_data(slot);
            if let Some(x) = self.slab.get(slot).tail.as_ref().and_then(|t| t.xattrs_outside) {
                self.give_back(Run { block: x.block, count: x.blocks() });
            }
            if let Some(place) = self.slab.get_mut(slot).tail.as_mut().and_then(|t| t.xattrs_place.take()) {
                self.space.free(place);
            }
        }
        if self.slab.get(slot).is_dir() {
            self.index.drop_dir(slot);
        }
        self.free_slot(slot);
    }

    /// Frees all data of a file whose tail is in memory; it has inline data of no bytes afterwards.
    pub fn drop_data(&mut self, slot: Slot) {
        if self.slab.get(slot).tail.is_none() {
            return;
        }
        self.edit(slot);
        self.forget_pages(slot, 0, u64::MAX);
        let data = std::mem::replace(&mut self.tail_mut(slot).data, Data::Inline(Vec::new()));
        if let Data::Extents(map) = data {
            let all: Vec<_> = map.iter().collect();
            let mut freed: u64 = all.iter().map(|e| e.count as u64).sum();
            runs(&all).for_each(|run| self.give_back(run));
            let homes = map.leaves().iter().filter_map(|l| l.home).map(|h| BlockNo(h.block.get()));
            let nodes: Vec<BlockNo> =
                homes.chain(map.inner.iter().copied()).chain(map.dropped.iter().copied()).collect();
            freed += nodes.len() as u64;
            for block in nodes {
                self.give_back(Run { block, count: 1 });
            }
            let inode = self.slab.get_mut(slot);
            inode.blocks -= freed;
        }
        self.count_nodes(slot);
    }

    /// Feeds the entries behind `offset` to `sink`.
    pub fn readdir(&mut self, slot: Slot, offset: u64, sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send)) {
        if offset == 0 {
            self.index.begin_scan(slot);
        }
        let inode = self.slab.get(slot);
        let parent = if slot == ROOT || inode.parent == 0 { slot } else { inode.parent };
        for (at, name, who) in [(0, &b"."[..], slot), (1, b"..", parent)] {
            if offset <= at && !sink(DirEntry { name, next_offset: at + 1, attr: self.attr(who) }) {
                return;
            }
        }
        let Some(dir) = self.index.dir(slot) else { return };
        for (cookie, entry) in dir.scan(offset.max(2).saturating_add(1)) {
            let name = self.slab.get(entry).name.bytes();
            let attr = self.attr(self.target(entry));
            if !sink(DirEntry { name, next_offset: cookie, attr }) {
                return;
            }
        }
    }

    /// Stores the target of a symlink that was just made.
    fn store_target(&mut self, slot: Slot, target: &[u8], ticket: &mut Option<u64>) -> Res<()> {
        self.running.bytes += target.len().min(format::limits::INLINE_MAX);
        let tail = self.tail_mut(slot);
        *tail = Tail { data: Data::Inline(target.to_vec()), ..Tail::default() };
        if target.len() > format::limits::INLINE_MAX
            && let Err(stop) = self.make_extents(slot, ticket)
        {
            self.slab.get_mut(slot).tail = None;
            self.free_slot(slot);
            return Err(stop);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "names/limits.rs"]
mod limits;
