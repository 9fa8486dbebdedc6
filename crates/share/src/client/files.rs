//! What a client remembers of its open files.

use fs::{FileType, Handle, Ino, OpenFlags};

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
    /// Number of the lease under which it was made here, or 0.
    pub lent: u64,
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
        }
    }
}
