//! What a client remembers of its open files.

use super::waits::Waits;
use crate::lock::{self, Apart, RwLock};
use foldhash::fast::FixedState;
use fs::{FileType, Handle, Ino, OpenFlags};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Parts of the table, each of a processor as long as there are not more of those.
const PARTS: usize = 16;

/// What a client remembers of an open file.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenFile {
    pub ino: Ino,
    pub generation: u32,
    pub kind: FileType,
    pub flags: OpenFlags,
    /// The manager's number of it, in the session with this serial.
    pub remote: Handle,
    pub session: u64,
    /// It was opened without a message, and the manager has no number of it yet (`super::holds`).
    pub held: bool,
    /// In which part of the holds it stands then.
    pub hold: usize,
    /// It was read by a message so.
    pub asked: bool,
    /// It could not be taken along to that session.
    pub gone: bool,
    /// Something was written that is not durable yet.
    pub unsynced: bool,
    /// Syncs under way, and whether something was written since the first of them began.
    pub syncing: u32,
    pub rewritten: bool,
    /// Something that was written is gone, and no sync has said so yet.
    pub lost: bool,
    /// Reads may come out of the arena.
    pub through_arena: bool,
    /// Reads do not move the time of access.
    pub noatime: bool,
    /// It was asked for a lock.
    pub locks: bool,
    /// Number of the lease under which it was made here, or lent; or 0.
    pub lent: u64,
    /// See [`super::waits`].
    pub waits: Waits,
    /// Where the last write ended that appended.
    pub appended: Option<u64>,
}

impl OpenFile {
    pub fn new(
        (ino, generation): (Ino, u32),
        kind: FileType,
        flags: OpenFlags,
        remote: Handle,
        session: u64,
    ) -> OpenFile {
        let through_arena = flags.contains(OpenFlags::READ) && !flags.contains(OpenFlags::DIRECT);
        let noatime = flags.contains(OpenFlags::NOATIME);
        let (gone, unsynced, lost, locks) = (false, false, false, false);
        OpenFile {
            ino,
            generation,
            kind,
            flags,
            remote,
            session,
            held: false,
            hold: 0,
            asked: false,
            gone,
            unsynced,
            syncing: 0,
            rewritten: false,
            lost,
            through_arena,
            noatime,
            locks,
            lent: 0,
            waits: Waits::default(),
            appended: None,
        }
    }
}

/// Open files under this client's own numbers, in parts: a thread that opens and closes files seldom uses what another one does on another processor.
#[derive(Debug, Default)]
pub(super) struct Files([Apart<RwLock<Table>>; PARTS]);

#[derive(Debug, Default)]
struct Table {
    files: HashMap<Handle, OpenFile, FixedState>,
    /// How many there ever were.
    count: u64,
}

impl Files {
    /// Numbers say which part they are in.
    #[inline]
    fn part(&self, handle: Handle) -> &RwLock<Table> {
        &self.0[handle.0 as usize % PARTS]
    }

    /// What `f` says of an open file.
    #[inline]
    pub fn look<T>(&self, handle: Handle, f: impl FnOnce(&OpenFile) -> T) -> Option<T> {
        self.part(handle).read().files.get(&handle).map(f)
    }

    pub fn change(&self, handle: Handle, change: impl FnOnce(&mut OpenFile)) {
        if let Some(file) = self.part(handle).write().files.get_mut(&handle) {
            change(file);
        }
    }

    /// A file gets a number, which no other one had.
    pub fn insert(&self, file: OpenFile) -> Handle {
        let part = lock::part_here(PARTS);
        let mut table = self.0[part].write();
        table.count += 1;
        let handle = Handle(table.count * PARTS as u64 + part as u64);
        table.files.insert(handle, file);
        handle
    }

    /// Forgets a file if it is as it should be.
    pub fn remove_if(&self, handle: Handle, is: impl Fn(&OpenFile) -> bool) -> Option<OpenFile> {
        match self.part(handle).write().files.entry(handle) {
            Entry::Occupied(entry) if is(entry.get()) => Some(entry.remove()),
            _ => None,
        }
    }

    pub fn change_all(&self, mut change: impl FnMut(&mut OpenFile)) {
        self.0.iter().for_each(|part| part.write().files.values_mut().for_each(&mut change));
    }

    /// The numbers of all.
    pub fn handles(&self) -> Vec<Handle> {
        self.handles_of(|_| true)
    }

    /// The numbers of those that are so.
    pub fn handles_of(&self, is: impl Fn(&OpenFile) -> bool) -> Vec<Handle> {
        let of = |part: &RwLock<Table>| {
            let part = part.read();
            part.files.iter().filter(|(_, file)| is(file)).map(|(&handle, _)| handle).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(|part| of(part)).collect()
    }
}
