//! Inodes that are promised before they are made (see `fs::FileSystem::promise`): slots that nobody else gets, and numbers of handles.
//!
//! A promise takes what is free now: a slot of a segment of inodes, which is on the medium or will be with the running epoch whether the inode is
//! made or not. What making the inode needs besides, memory and room in the log, is waited for when it is made.
//!
//! Room for the data of such files is promised beside them: blocks that are reserved before anybody knows for what. A write that may take from them reserves
//! nothing else, whatever it has to wait for in between.
//!
//! Tested in tests/promised.rs.

use super::{New, Slot};
use crate::core::{Core, Res};
use crate::files::DIRECT_UNIT;
use crate::handles::{Open, ReadAhead};
use format::Ino;
use format::limits::SEGMENT_BLOCKS;
use fs::{Attr, Cred, Error, FileType, Handle, MadeAs, Promise, Source};

/// Slots that are set aside on one volume.
const PROMISED_MAX: u64 = 1 << 14;
/// The part of what is free that is set aside at a time, and of which so much stays with the others.
const ROOM_PART: u64 = 8;
const ROOM_SPARE: u64 = 4 * SEGMENT_BLOCKS as u64;

impl Core {
    /// See [`fs::FileSystem::promise`].
    pub fn promise(&mut self, most: usize) -> Result<Vec<Promise>, Error> {
        self.writable()?;
        if !self.takes_late_changes() {
            return Err(Error::NotSupported("creates that are late"));
        }
        if self.admit().is_err() {
            return Ok(Vec::new());
        }
        // Others must not meet a full volume because of this.
        let spare = self.space.free_now() >= self.space.reserved() + self.keep() + 2 * SEGMENT_BLOCKS as u64;
        let room = PROMISED_MAX.saturating_sub(self.slab.promised) as usize;
        let mut all = Vec::new();
        while spare && all.len() < most.min(room) {
            let slot = match self.slab.set_aside() {
                Some(slot) => slot,
                None => {
                    // Makes a segment of inodes, as for an inode.
                    let Ok(slot) = self.new_slot(&mut None) else { break };
                    self.slab.release(slot);
                    continue;
                }
            };
            let (generation, handle) = (self.next_generation(slot), self.handles.set_aside());
            all.push(Promise { ino: Ino::of(slot, generation), generation, handle });
        }
        Ok(all)
    }

    /// Gives back what was promised and not used.
    pub fn give_back_promised(&mut self, promises: &[Promise]) {
        for promise in promises {
            self.slab.redeem();
            self.slab.release(promise.ino.0 as Slot);
        }
    }

    /// See [`fs::FileSystem::set_room_aside`].
    pub fn set_room_aside(&mut self, most: u64) -> Result<u64, Error> {
        self.writable()?;
        if !self.takes_late_changes() {
            return Err(Error::NotSupported("writes that are late"));
        }
        let spare = self.space.spare(self.keep()).saturating_sub(ROOM_SPARE) / ROOM_PART;
        let room = most.min(spare);
        if self.checkpoint_comes_first(room) {
            return Ok(0);
        }
        Ok(if room > 0 && self.space.set_aside(room, self.keep()) { room } else { 0 })
    }

    /// As [`Core::write`], but it may take blocks out of `room`, which were set aside, and leaves what it did not need.
    pub fn write_promised(
        &mut self,
        (handle, offset): (Handle, u64),
        (from, chunk): (&dyn Source, usize),
        room: &mut u64,
        done: &mut usize,
        ticket: &mut Option<u64>,
    ) -> Res<()> {
        self.space.begin_drawing(*room);
        let result = self.write(handle, (offset, DIRECT_UNIT), from, chunk, done, ticket);
        *room = self.space.end_drawing();
        result
    }

    /// See [`fs::FileSystem::create_promised`].
    pub fn create_promised(
        &mut self,
        cred: &Cred,
        (parent, name): (Ino, &[u8]),
        made: MadeAs,
        promise: Promise,
    ) -> Res<Attr> {
        let promised = Some((promise.ino.0 as Slot, promise.generation));
        let kind = if made.open.is_some() { FileType::Regular } else { FileType::Directory };
        let new = New { promised, time: made.time, ..New::plain(kind, made.perm) };
        let slot = self.make(cred, parent, name, &new, &mut None)?;
        if let Some(flags) = made.open {
            self.slab.get_mut(slot).opens += 1;
            let open = Open {
                slot,
                ino: promise.ino,
                flags,
                directory: false,
                ahead: ReadAhead::default(),
                appended: None,
            };
            self.handles.insert_as(promise.handle, open, cred.clone());
        }
        Ok(self.attr(slot))
    }

    /// See [`fs::FileSystem::names`].
    pub fn names(&self, dir: Ino, most: usize) -> Result<Vec<Vec<u8>>, Error> {
        let (slot, inode) = self.inode(dir)?;
        if !inode.is_dir() {
            return Err(Error::NotDirectory);
        }
        let Some(dir) = self.index.dir(slot) else { return Ok(Vec::new()) };
        if dir.len() > most {
            return Err(Error::TooLarge);
        }
        Ok(dir.names().map(|(_, entry)| self.slab.get(entry).name.bytes().to_vec()).collect())
    }
}
