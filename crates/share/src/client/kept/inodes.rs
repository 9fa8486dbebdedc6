//! Attributes of inodes, in records of 128 bytes.

use super::hash_inode;
use crate::changes::Word;
use crate::client::records::{Records, Words};
use format::shared::Kept as What;
use fs::{Attr, FileType, Ino, Time};

const WORDS: usize = 16;

/// What is kept of an inode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inode {
    pub attr: Attr,
    pub noted: u64,
    /// Where the memory of changes tells of it.
    pub word: Word,
    /// Since then it was read here, and the manager was told: its time of access is another one by now.
    pub read: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Inodes(Records<WORDS>);

/// Seconds of four times, and their fractions in two words.
const SECONDS: usize = 10;
const FRACTIONS: usize = 14;

fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

impl Inode {
    fn record(&self) -> [u64; WORDS] {
        let Attr { ino, generation, kind, perm, nlink, uid, gid, rdev, size, blocks, .. } = self.attr;
        let Attr { atime, mtime, ctime, btime, xattrs, .. } = self.attr;
        let mode = kind as u32 | (perm as u32) << 16;
        let [a, m, c, b] = [atime, mtime, ctime, btime];
        [
            generation as u64,
            ino.0,
            self.noted,
            pair(self.word.number(), mode),
            pair(uid, gid),
            nlink as u64,
            rdev,
            size,
            blocks,
            xattrs as u64 | (self.read as u64) << 1,
            a.sec as u64,
            m.sec as u64,
            c.sec as u64,
            b.sec as u64,
            pair(a.nsec, m.nsec),
            pair(c.nsec, b.nsec),
        ]
    }

    const NONE: Inode = {
        let time = Time { sec: 0, nsec: 0 };
        Inode {
            attr: Attr::just_made(FileType::Regular, (Ino(0), 0), (0, 0, 0), time),
            noted: 0,
            word: Word::NONE,
            read: false,
        }
    };

    /// Becomes what a record says. False when that is none.
    #[inline]
    fn read(&mut self, record: &Words<'_, WORDS>) -> bool {
        let (word, mode) = halves(record.get(3));
        // Halves of two records may be no kind at all.
        let Some(kind) = FileType::from_mode((mode & 0xf) << 12) else { return false };
        (self.noted, self.word) = (record.get(2), Word::again(word));
        let attr = &mut self.attr;
        (attr.kind, attr.perm) = (kind, (mode >> 16) as u16);
        (attr.uid, attr.gid) = halves(record.get(4));
        (attr.generation, attr.nlink) = (record.get(0) as u32, record.get(5) as u32);
        (attr.rdev, attr.size, attr.blocks) = (record.get(6), record.get(7), record.get(8));
        attr.xattrs = record.get(9) & 1 != 0;
        self.read = record.get(9) & 2 != 0;
        let Attr { atime, mtime, ctime, btime, .. } = attr;
        for (at, time) in [atime, mtime, ctime, btime].into_iter().enumerate() {
            time.sec = record.get(SECONDS + at) as i64;
            time.nsec = (record.get(FRACTIONS + at / 2) >> (32 * (at % 2))) as u32;
        }
        true
    }
}

impl Inodes {
    /// What `f` says of an inode, if it is kept.
    #[inline]
    pub fn look<T>(&self, ino: Ino, f: impl FnOnce(&Inode) -> T) -> Option<T> {
        let mut inode = Inode::NONE;
        let found = self.0.find(hash_inode(ino.0), |record| record.get(1) == ino.0 && inode.read(record));
        inode.attr.ino = ino;
        found.then(|| f(&inode))
    }

    pub fn remove(&self, ino: Ino) {
        let hash = hash_inode(ino.0);
        self.0.write().remove(hash, |record| record.get(1) == ino.0);
    }

    /// Keeps attributes as of `noted`, unless newer ones are known or `may`, which is asked while nobody else changes them, does not say so.
    pub fn learn(&self, attr: &Attr, noted: u64, may: impl Fn() -> bool) {
        let hash = hash_inode(attr.ino.0);
        let is = |record: &Words<'_, WORDS>| record.get(1) == attr.ino.0;
        let mut writer = self.0.write();
        if may() {
            let word = Word::of(What::Attr(attr.ino.0));
            let inode = Inode { attr: *attr, noted, word, read: false };
            // Answers may come in another order than that in which they were asked for.
            writer.put(hash, is, |known| known.get(2) <= noted, &inode.record());
        }
    }

    /// From now on only what is not its time of access is known of it.
    pub fn was_read(&self, ino: Ino) {
        let mut writer = self.0.write();
        if let Some(inode) = self.look(ino, |inode| Inode { read: true, ..*inode }) {
            let is = |record: &Words<'_, WORDS>| record.get(1) == ino.0;
            writer.put(hash_inode(ino.0), is, |_| true, &inode.record());
        }
    }

    pub fn clear(&self) {
        self.0.write().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_is_kept() {
        let time = |n: i64| Time { sec: -n * 1_000_000_007, nsec: n as u32 * 99_999_999 };
        let attr = |ino: u64, kind| Attr {
            ino: Ino(ino),
            generation: u32::MAX - 1,
            kind,
            perm: 0o7531,
            nlink: u32::MAX - 2,
            uid: u32::MAX - 3,
            gid: u32::MAX - 4,
            rdev: u64::MAX - 5,
            size: u64::MAX - 6,
            blocks: u64::MAX - 7,
            atime: time(1),
            mtime: time(2),
            ctime: time(3),
            btime: time(4),
            xattrs: ino.is_multiple_of(2),
        };
        let inodes = Inodes::default();
        let find = |ino| inodes.look(Ino(ino), |inode| *inode);
        let all =
            [FileType::Fifo, FileType::Directory, FileType::Regular, FileType::Symlink, FileType::Socket];
        for (ino, kind) in (u64::MAX - 9..).zip(all) {
            inodes.learn(&attr(ino, kind), 5, || true);
            let found = find(ino).unwrap();
            assert_eq!((found.attr, found.noted), (attr(ino, kind), 5));
            assert_eq!(found.word.number(), Word::of(What::Attr(ino)).number());
        }
        let ino = u64::MAX - 9;
        inodes.learn(&attr(ino, FileType::Regular), 4, || true);
        inodes.learn(&attr(ino, FileType::Regular), 6, || false);
        assert_eq!(find(ino).unwrap().attr, attr(ino, FileType::Fifo));
        inodes.learn(&attr(ino, FileType::Regular), 5, || true);
        assert_eq!(find(ino).unwrap().attr, attr(ino, FileType::Regular));
        inodes.remove(Ino(ino));
        assert!(find(ino).is_none() && find(ino + 1).is_some());
        inodes.clear();
        assert!(find(ino + 1).is_none());
    }
}
