//! What the manager tells all clients of an arena of names and attributes, without being asked (layout and rule: `format::shared`).
//!
//! The manager writes, under a lock of its own; clients look, and write nothing.

use crate::memory::Mapping;
use crate::record::{Record, places};
use crate::wire;
use format::shared::{
    INODES_AT, InodeNotice, Kept, NAMES_AT, NOTICE_NAME_MAX, NOTICE_PLACES, NOTICE_SETS, NameNotice,
    kept_hash, notice_byte, notice_set,
};
use fs::{Attr, FileType, Ino};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::FromZeros;

const NAME: usize = size_of::<NameNotice>() / 8;
const INODE: usize = size_of::<InodeNotice>() / 8;
const NAMES: Notices<NAME> = Notices { at: NAMES_AT };
const INODES: Notices<INODE> = Notices { at: INODES_AT };

/// The word in which notices of both kinds have their clock.
const NOTED: usize = 1;
const _: () =
    assert!(offset_of!(NameNotice, noted) == 8 * NOTED && offset_of!(InodeNotice, noted) == 8 * NOTED);

/// Notices of one kind.
struct Notices<const W: usize> {
    /// Where they begin in the memory of an arena.
    at: usize,
}

impl<const W: usize> Notices<W> {
    /// The word of a set, and its records.
    fn set<'a>(&self, memory: &'a Mapping, set: usize) -> (&'a AtomicU64, &'a [Record<W>; NOTICE_PLACES]) {
        let len = size_of::<[Record<W>; NOTICE_PLACES]>();
        let records = memory.at(self.at + NOTICE_SETS * 8 + set * len, len);
        // SAFETY: in the mapping, which lives as long, and aligned, as the mapping begins at a page and all else are multiples of 64. A record is
        // words that all sides use atomically.
        (memory.long(self.at + 8 * set), unsafe { &*records.cast() })
    }

    /// The words of the record with this hash of which `is` says so.
    fn find(&self, memory: &Mapping, hash: u64, is: impl Fn(&[u64; W]) -> bool) -> Option<[u64; W]> {
        let (bytes, records) = self.set(memory, notice_set(hash));
        places(bytes.load(Ordering::Acquire), notice_byte(hash))
            .filter_map(|place| records[place].read(|words| words.all()))
            .find(is)
    }

    /// Puts a record in the place of that one, or of another one. What is newer stays.
    fn put(&self, memory: &Mapping, hash: u64, is: impl Fn(&[u64; W]) -> bool, words: &[u64; W]) {
        let (bytes, records) = self.set(memory, notice_set(hash));
        let (all, byte) = (bytes.load(Ordering::Relaxed), notice_byte(hash));
        let known =
            places(all, byte).find_map(|at| Some((at, records[at].read(|words| words.all()).filter(&is)?)));
        if known.is_some_and(|(_, there)| there[NOTED] > words[NOTED]) {
            return;
        }
        // The oldest one goes.
        let oldest = || (0..NOTICE_PLACES).min_by_key(|&at| records[at].read(|w| w.get(NOTED)));
        let place = known.map(|(at, _)| at).or_else(|| places(all, 0).next()).or_else(oldest).unwrap_or(0);
        records[place].write(words);
        let others = all & !(0xff << (8 * place));
        bytes.store(others | (byte as u64) << (8 * place), Ordering::Release);
    }
}

/// The words of a record from those of a notice: the lower half of the first one is nobody's to say.
fn record<const W: usize>(notice: [u64; W]) -> [u64; W] {
    let mut words = notice.map(u64::from_le);
    words[0] >>= 32;
    words
}

/// The words of a notice from those of its record.
fn notice<const W: usize>(record: &[u64; W]) -> [u64; W] {
    let mut words = *record;
    words[0] <<= 32;
    words.map(u64::to_le)
}

fn name_notice(record: &[u64; NAME]) -> NameNotice {
    zerocopy::transmute!(notice(record))
}

fn inode_notice(record: &[u64; INODE]) -> InodeNotice {
    zerocopy::transmute!(notice(record))
}

/// What a name leads to: inode, its generation and kind.
pub(crate) type Leads = Option<(Ino, u32, FileType)>;

fn is_name(words: &[u64; NAME], dir: Ino, name: &[u8]) -> bool {
    let notice = name_notice(words);
    let len = notice.len.get() as usize;
    notice.dir.get() == dir.0 && len == name.len() && notice.name.get(..len) == Some(name)
}

fn is_inode(words: &[u64; INODE], ino: Ino) -> bool {
    inode_notice(words).attr.ino.get() == ino.0
}

/// What is told of a name, and the clock as of which it holds.
pub(crate) fn name(memory: &Mapping, dir: Ino, name: &[u8]) -> Option<(Leads, u64)> {
    let found = NAMES.find(memory, kept_hash(Kept::Name(dir.0, name)), |words| is_name(words, dir, name))?;
    let notice = name_notice(&found);
    let leads = match notice.ino.get() {
        0 => None,
        ino => Some((Ino(ino), notice.generation.get(), FileType::from_mode(notice.mode.get())?)),
    };
    Some((leads, notice.noted.get()))
}

/// What is told of an inode, and the clock as of which it holds.
pub(crate) fn inode(memory: &Mapping, ino: Ino) -> Option<(Attr, u64)> {
    let found = INODES.find(memory, kept_hash(Kept::Attr(ino.0)), |words| is_inode(words, ino))?;
    let notice = inode_notice(&found);
    Some((wire::attr(&notice.attr).ok()?, notice.noted.get()))
}

/// Tells what a name leads to. One thread at a time does.
pub(crate) fn tell_name(memory: &Mapping, dir: Ino, name: &[u8], attr: Option<&Attr>, noted: u64) {
    if name.len() > NOTICE_NAME_MAX {
        return;
    }
    let mut notice = NameNotice::new_zeroed();
    (notice.noted, notice.dir, notice.len) = (noted.into(), dir.0.into(), (name.len() as u32).into());
    notice.name[..name.len()].copy_from_slice(name);
    if let Some(attr) = attr {
        (notice.ino, notice.generation) = (attr.ino.0.into(), attr.generation.into());
        notice.mode = attr.kind.mode_bits().into();
    }
    let record = record(zerocopy::transmute!(notice));
    NAMES.put(memory, kept_hash(Kept::Name(dir.0, name)), |known| is_name(known, dir, name), &record);
}

/// Tells the attributes of an inode. One thread at a time does.
pub(crate) fn tell_inode(memory: &Mapping, attr: &Attr, noted: u64) {
    let mut notice = InodeNotice::new_zeroed();
    (notice.noted, notice.attr) = (noted.into(), wire::attr_image(attr));
    let record = record(zerocopy::transmute!(notice));
    INODES.put(memory, kept_hash(Kept::Attr(attr.ino.0)), |known| is_inode(known, attr.ino), &record);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;
    use format::shared::arena_bytes;
    use fs::Time;
    use std::sync::atomic::AtomicBool;

    /// The manager's side and a client's.
    fn both() -> (Mapping, Mapping) {
        let (ours, theirs) = memory::published(c"test", arena_bytes(0)).unwrap();
        (ours, Mapping::read_only(theirs, arena_bytes(0)).unwrap())
    }

    fn attr(ino: u64, n: u64) -> Attr {
        let time = |sec| Time { sec, nsec: 7 };
        Attr {
            rdev: 9,
            xattrs: n.is_multiple_of(2),
            size: n,
            blocks: n.wrapping_mul(3),
            atime: time(n as i64),
            ctime: time(-5),
            ..Attr::just_made(FileType::Fifo, (Ino(ino), n as u32), (u32::MAX, 4, 0o7531), time(n as i64))
        }
    }

    #[test]
    fn what_was_told_is_read() {
        let (ours, theirs) = both();
        let long = vec![b'x'; NOTICE_NAME_MAX + 1];
        let names = [&b"a"[..], b"a\0", b"name", &long[..NOTICE_NAME_MAX], &long[..NOTICE_NAME_MAX - 1]];
        assert_eq!((name(&theirs, Ino(1), b"a"), inode(&theirs, Ino(0))), (None, None));
        for (at, text) in names.iter().enumerate() {
            let at = at as u64;
            tell_name(&ours, Ino(1), text, Some(&attr(70 + at, at)), 10 + at);
            tell_name(&ours, Ino(2), text, None, 20 + at);
        }
        for (at, text) in names.iter().enumerate() {
            let at = at as u64;
            let leads = Some((Ino(70 + at), at as u32, FileType::Fifo));
            assert_eq!(name(&theirs, Ino(1), text), Some((leads, 10 + at)));
            assert_eq!(name(&theirs, Ino(2), text), Some((None, 20 + at)));
            assert_eq!(name(&theirs, Ino(3), text), None);
        }
        // For one as long as this there is no room.
        tell_name(&ours, Ino(1), &long, None, 1);
        assert_eq!(name(&theirs, Ino(1), &long), None);
        tell_inode(&ours, &attr(7, 1), 5);
        tell_inode(&ours, &attr(8, 2), 6);
        assert_eq!(inode(&theirs, Ino(7)), Some((attr(7, 1), 5)));
        assert_eq!(inode(&theirs, Ino(8)), Some((attr(8, 2), 6)));
    }

    #[test]
    fn what_is_newer_stays() {
        let (ours, theirs) = both();
        tell_inode(&ours, &attr(7, 1), 5);
        tell_inode(&ours, &attr(7, 2), 4);
        assert_eq!(inode(&theirs, Ino(7)), Some((attr(7, 1), 5)));
        tell_inode(&ours, &attr(7, 3), 5);
        assert_eq!(inode(&theirs, Ino(7)), Some((attr(7, 3), 5)));
        tell_name(&ours, Ino(1), b"name", Some(&attr(7, 3)), 9);
        tell_name(&ours, Ino(1), b"name", None, 8);
        assert_eq!(name(&theirs, Ino(1), b"name").unwrap().1, 9);
        // Where there is no room, the oldest goes.
        let same_set = (0..)
            .filter(|&ino| notice_set(kept_hash(Kept::Attr(ino))) == notice_set(kept_hash(Kept::Attr(7))));
        let all: Vec<u64> = same_set.filter(|&ino| ino != 7).take(NOTICE_PLACES + 3).collect();
        for (at, &ino) in all.iter().enumerate() {
            tell_inode(&ours, &attr(ino, 1), 10 + at as u64);
        }
        let gone = all.len() - NOTICE_PLACES;
        assert!(all[..gone].iter().chain(&[7]).all(|&ino| inode(&theirs, Ino(ino)).is_none()));
        assert!(all[gone..].iter().all(|&ino| inode(&theirs, Ino(ino)).is_some()));
    }

    #[test]
    fn only_whole_notices_are_read() {
        let (ours, theirs) = both();
        let over = AtomicBool::new(false);
        let same_set = (1..)
            .filter(|&ino| notice_set(kept_hash(Kept::Attr(ino))) == notice_set(kept_hash(Kept::Attr(1))));
        let all: Vec<u64> = same_set.take(NOTICE_PLACES + 1).collect();
        let seen = std::thread::scope(|s| {
            let reader = s.spawn(|| {
                let mut seen = 0;
                while !over.load(Ordering::Relaxed) {
                    for &ino in &all {
                        if let Some((found, noted)) = inode(&theirs, Ino(ino)) {
                            assert_eq!(found, attr(ino, noted));
                            seen += 1;
                        }
                    }
                }
                seen
            });
            for n in 0..300_000 {
                let ino = all[n as usize % all.len()];
                tell_inode(&ours, &attr(ino, n), n);
            }
            over.store(true, Ordering::Relaxed);
            reader.join().unwrap()
        });
        assert!(seen > 0);
    }
}
