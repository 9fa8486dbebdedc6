//! Attributes of what this client has made without a message, until somebody looks at it for the second time: most of it nobody ever does, or once, so they stand
//! beside what is looked at often, which they would drive out, and small.

use crate::lock::Mutex;
use fs::{Attr, FileType, Ino, Time};

/// Inodes that are remembered: one of those with the same number modulo this. Who makes so many has 3.5 MiB of them.
const INODES: usize = 1 << 16;
/// Inodes of one piece of the table. Promised ones mostly follow one another, so what is made soon after stands beside.
const PIECE: usize = 1 << 8;

/// What differs between inodes that were just made.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// 0: none.
    ino: u64,
    noted: u64,
    time: Time,
    generation: u32,
    uid: u32,
    gid: u32,
    perm: u16,
    is_dir: bool,
    looked: bool,
}

const NONE: Entry = Entry {
    ino: 0,
    noted: 0,
    time: Time { sec: 0, nsec: 0 },
    generation: 0,
    uid: 0,
    gid: 0,
    perm: 0,
    is_dir: false,
    looked: false,
};

const _: () = assert!(INODES * size_of::<Entry>() <= 7 << 19);

impl Entry {
    fn attr(&self) -> Attr {
        let kind = if self.is_dir { FileType::Directory } else { FileType::Regular };
        Attr::just_made(kind, (Ino(self.ino), self.generation), (self.uid, self.gid, self.perm), self.time)
    }
}

/// What stands here of an inode.
pub(super) struct Look {
    /// What it was made as.
    pub attr: Attr,
    /// The clock at which it was made, or one before.
    pub noted: u64,
    /// It was looked at before.
    pub again: bool,
}

type Piece = Box<[Entry; PIECE]>;

/// See the module.
#[derive(Debug)]
pub(super) struct Made(Mutex<[Option<Piece>; INODES / PIECE]>);

impl Default for Made {
    fn default() -> Made {
        Made(Mutex::new([const { None }; INODES / PIECE]))
    }
}

impl Made {
    /// Remembers what was made, at the clock `noted` or later.
    pub fn insert(&self, attr: &Attr, noted: u64) {
        let Attr { ino, generation, uid, gid, perm, .. } = *attr;
        let is_dir = attr.kind == FileType::Directory;
        let entry =
            Entry { ino: ino.0, noted, time: attr.btime, generation, uid, gid, perm, is_dir, looked: false };
        let at = ino.0 as usize % INODES;
        let mut pieces = self.0.lock();
        let piece = pieces[at / PIECE].get_or_insert_with(|| Box::new([NONE; PIECE]));
        piece[at % PIECE] = entry;
    }

    /// Somebody looks at an inode.
    pub fn look(&self, ino: Ino) -> Option<Look> {
        self.of(ino, |entry| Look {
            attr: entry.attr(),
            noted: entry.noted,
            again: std::mem::replace(&mut entry.looked, true),
        })
    }

    /// Forgets an inode.
    pub fn remove(&self, ino: Ino) {
        self.of(ino, |entry| *entry = NONE);
    }

    fn of<T>(&self, ino: Ino, f: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let at = ino.0 as usize % INODES;
        let mut pieces = self.0.lock();
        let entry = pieces[at / PIECE].as_mut().map(|piece| &mut piece[at % PIECE])?;
        (entry.ino == ino.0 && ino.0 != 0).then(|| f(entry))
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.0.lock().fill_with(|| None);
    }
}
