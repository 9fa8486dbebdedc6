//! What a client keeps of the file system: which inode a name leads to, and the attributes of inodes, so that walking a path and
//! stat cost no message (UHSFS keeps its table of files in shared memory for this).
//!
//! Everything here came in answer to this client's own calls, so it holds nothing that the client may not know. Whether it
//! still holds is seen in the memory of changes (`format::shared`); nothing is ever sent to a client that keeps something. A name
//! that was found says that its directory could be searched, until the directory's word for that is raised.

use crate::changes::Seen;
use foldhash::fast::FixedState;
use format::shared::Kept as What;
use fs::{Attr, Ino, Time};
use hashbrown::HashTable;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::hash::{BuildHasher, Hasher};

/// Parts with locks of their own, for programs of many threads.
const PARTS: usize = 16;
/// Names, and inodes, in one part. A full part begins anew: what is in use is soon there again.
const PART_MAX: usize = 4096;

#[derive(Debug)]
struct Name {
    parent: u64,
    ino: u64,
    noted: u64,
    name: SmallVec<[u8; 24]>,
}

#[derive(Debug)]
struct Inode {
    attr: Attr,
    noted: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Kept {
    seen: Seen,
    names: [Mutex<HashTable<Name>>; PARTS],
    inodes: [Mutex<HashTable<Inode>>; PARTS],
}

const HASHER: FixedState = FixedState::with_seed(0x6b65_7074);

fn hash_name(parent: u64, name: &[u8]) -> u64 {
    let mut h = HASHER.build_hasher();
    h.write_u64(parent);
    h.write(name);
    h.finish()
}

fn hash_inode(ino: u64) -> u64 {
    let mut h = HASHER.build_hasher();
    h.write_u64(ino);
    h.finish()
}

fn part<T>(parts: &[T; PARTS], hash: u64) -> &T {
    // The tables take the lowest and the highest bits.
    &parts[(hash >> 32) as usize % PARTS]
}

/// Names that lead where the directory says, whatever it contains.
fn is_special(name: &[u8]) -> bool {
    matches!(name, b"" | b"." | b"..") || name.contains(&b'/')
}

impl Kept {
    pub fn new(seen: Seen) -> Kept {
        Kept { seen, names: Default::default(), inodes: Default::default() }
    }

    /// Drops everything.
    pub fn forget(&self) {
        self.names.iter().for_each(|part| part.lock().clear());
        self.inodes.iter().for_each(|part| part.lock().clear());
    }

    /// To be noted before a call whose answer is to be kept.
    pub fn now(&self) -> u64 {
        self.seen.now()
    }

    /// Whether the manager lives. When it is gone nothing that is kept counts: nobody would say that it changed.
    #[inline]
    pub fn alive(&self) -> bool {
        self.seen.alive()
    }

    /// Whether everything about an inode is as it was at `noted`.
    #[inline]
    pub fn unchanged(&self, ino: Ino, noted: u64) -> bool {
        self.seen.holds(What::Attr(ino.0), noted)
    }

    /// Attributes of an inode, if they are known.
    #[inline]
    pub fn attr(&self, ino: Ino) -> Option<Attr> {
        self.noted_attr(ino).map(|(attr, _)| attr)
    }

    /// Attributes of an inode, and the clock from before they were asked for.
    #[inline]
    pub fn noted_attr(&self, ino: Ino) -> Option<(Attr, u64)> {
        let hash = hash_inode(ino.0);
        let table = part(&self.inodes, hash).lock();
        let inode = table.find(hash, |i| i.attr.ino == ino)?;
        (self.alive() && self.unchanged(ino, inode.noted)).then_some((inode.attr, inode.noted))
    }

    /// The inode that a name leads to, if it is known.
    #[inline]
    pub fn name(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        let hash = hash_name(parent.0, name);
        let table = part(&self.names, hash).lock();
        let entry = table.find(hash, |e| e.parent == parent.0 && *e.name == *name)?;
        let holds = self.seen.holds(What::Name(parent.0, name), entry.noted)
            && self.seen.holds(What::Access(parent.0), entry.noted);
        holds.then_some(Ino(entry.ino))
    }

    /// What a path of plain names leads to, if all of it is known.
    #[inline]
    pub fn walk(&self, base: Ino, path: &[u8]) -> Option<Attr> {
        let mut at = base;
        for name in path.split(|&b| b == b'/').filter(|n| !n.is_empty()) {
            at = self.name(at, name)?;
        }
        self.attr(at)
    }

    /// An inode was read, which may have moved its time of access: nobody is told of that.
    pub fn was_read(&self, ino: Ino) {
        let hash = hash_inode(ino.0);
        let mut table = part(&self.inodes, hash).lock();
        if let Ok(entry) = table.find_entry(hash, |i| i.attr.ino == ino)
            && entry.get().attr.moves_atime(Time::now())
        {
            entry.remove();
        }
    }

    /// Keeps attributes that were asked for after `noted`. Not those of an inode without names: nobody tells when it goes.
    pub fn learn_attr(&self, noted: u64, attr: &Attr) {
        if attr.nlink == 0 {
            return;
        }
        let hash = hash_inode(attr.ino.0);
        let mut table = part(&self.inodes, hash).lock();
        match table.find_mut(hash, |i| i.attr.ino == attr.ino) {
            // Answers may come in another order than that in which they were asked for.
            Some(known) if known.noted > noted => {}
            Some(known) => *known = Inode { attr: *attr, noted },
            None => {
                if table.len() >= PART_MAX {
                    table.clear();
                }
                table.insert_unique(hash, Inode { attr: *attr, noted }, |i| hash_inode(i.attr.ino.0));
            }
        }
    }

    /// Keeps what a name leads to, asked for after `noted`.
    pub fn learn(&self, noted: u64, parent: Ino, name: &[u8], attr: &Attr) {
        self.learn_attr(noted, attr);
        if is_special(name) {
            return;
        }
        let hash = hash_name(parent.0, name);
        let mut table = part(&self.names, hash).lock();
        match table.find_mut(hash, |e| e.parent == parent.0 && *e.name == *name) {
            Some(known) if known.noted > noted => {}
            Some(known) => (known.ino, known.noted) = (attr.ino.0, noted),
            None => {
                if table.len() >= PART_MAX {
                    table.clear();
                }
                let entry = Name { parent: parent.0, ino: attr.ino.0, noted, name: name.into() };
                table.insert_unique(hash, entry, |e| hash_name(e.parent, &e.name));
            }
        }
    }
}
