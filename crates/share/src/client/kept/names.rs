//! What names lead to, in records of 64 bytes for names that are as short as most are; longer ones have larger records.

use super::Target;
use crate::changes::Word;
use crate::client::records::{Records, Words};
use format::shared::Kept as What;
use fs::{FileType, Ino};

/// What is kept of a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name {
    /// `None`: there is no such name.
    pub target: Option<Target>,
    pub noted: u64,
    /// Where the memory of changes tells of the name, and of who may search the directory.
    pub words: [Word; 2],
}

/// A record: generation of the inode | directory | inode | clock | words of the changes | the name, with zeros behind it; the upper two bytes of the last word are
/// the kind of the inode (0 when there is no such name) and the length of the name.
const TEXT: usize = 5;
const LENGTH: u32 = 56;
const KIND: u32 = 48;

const fn room(words: usize) -> usize {
    (words - TEXT) * 8 - 2
}

const SHORT: usize = 8;
const MIDDLE: usize = 16;
/// For all names that there can be.
const LONG: usize = 40;
const _: () = assert!(room(LONG) >= 255);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Names {
    short: Records<SHORT>,
    middle: Records<MIDDLE>,
    long: Records<LONG>,
}

/// Up to eight bytes as a word.
#[inline]
pub(super) fn word(bytes: &[u8]) -> u64 {
    let half = |at: usize| bytes[at..].first_chunk().map_or(0, |half| u32::from_le_bytes(*half)) as u64;
    match *bytes {
        [] => 0,
        [a] => a as u64,
        [a, b] => a as u64 | (b as u64) << 8,
        [a, b, c] => a as u64 | (b as u64) << 8 | (c as u64) << 16,
        _ => match bytes.first_chunk() {
            Some(whole) => u64::from_le_bytes(*whole),
            None => half(0) | half(bytes.len() - 4) << (8 * (bytes.len() - 4)),
        },
    }
}

/// Whether so many words of a record are these bytes, in chunks of eight.
#[inline]
pub(super) fn text_is<'a>(text: impl Iterator<Item = &'a [u8]>, mut is: impl FnMut(usize) -> u64) -> bool {
    text.enumerate().all(|(at, bytes)| is(at) == word(bytes))
}

/// Whether a record is that of such a name.
#[inline]
fn is<const W: usize>(record: &Words<'_, W>, parent: Ino, name: &[u8]) -> bool {
    let last = record.get(W - 1);
    let text = |at: usize| if at == W - 1 { last & ((1 << KIND) - 1) } else { record.get(at) };
    record.get(1) == parent.0
        && last >> LENGTH == name.len() as u64
        && text_is(name.chunks(8).take(W - TEXT), |at| text(TEXT + at))
}

impl Name {
    fn record<const W: usize>(&self, parent: Ino, name: &[u8]) -> [u64; W] {
        let mut record = [0; W];
        let [low, high] = self.words.map(|word| word.number() as u64);
        (record[1], record[3], record[4]) = (parent.0, self.noted, low | high << 32);
        for (to, bytes) in record[TEXT..].iter_mut().zip(name.chunks(8)) {
            *to = word(bytes);
        }
        record[W - 1] |= (name.len() as u64) << LENGTH;
        if let Some(target) = self.target {
            (record[0], record[2]) = (target.generation as u64, target.ino.0);
            record[W - 1] |= (target.kind as u64) << KIND;
        }
        record
    }

    /// Where changes of a name would be seen.
    pub fn words(parent: Ino, name: &[u8]) -> [Word; 2] {
        [What::Name(parent.0, name), What::Access(parent.0)].map(Word::of)
    }
}

/// Calls `$f` with the table for a name.
macro_rules! in_table {
    ($names:expr, $name:expr, $hash:expr, $f:ident($($args:expr),*)) => {
        match $name.len() {
            ..=22 => $f(&$names.short, $hash, $($args),*),
            ..=86 => $f(&$names.middle, $hash, $($args),*),
            _ => $f(&$names.long, $hash, $($args),*),
        }
    };
}
const _: () = assert!(room(SHORT) == 22 && room(MIDDLE) == 86);

#[inline]
fn find<const W: usize>(table: &Records<W>, hash: u64, parent: Ino, name: &[u8]) -> Option<Name> {
    let (mut generation, mut ino, mut noted, mut words, mut last) = (0, 0, 0, 0, 0);
    let found = table.find(hash, |record| {
        generation = record.get(0);
        ino = record.get(2);
        noted = record.get(3);
        words = record.get(4);
        last = record.get(W - 1);
        is(record, parent, name)
    });
    found.then(|| {
        let kind = FileType::from_mode(((last >> KIND) as u32) << 12);
        let target = kind.map(|kind| Target { ino: Ino(ino), generation: generation as u32, kind });
        let words = [words as u32, (words >> 32) as u32].map(Word::again);
        Name { target, noted, words }
    })
}

fn remove<const W: usize>(table: &Records<W>, hash: u64, parent: Ino, name: &[u8]) {
    table.write().remove(hash, |record| is(record, parent, name));
}

fn learn<const W: usize>(
    table: &Records<W>,
    hash: u64,
    parent: Ino,
    name: &[u8],
    new: &Name,
    may: impl Fn() -> bool,
) {
    let is = |record: &Words<'_, W>| is(record, parent, name);
    let mut writer = table.write();
    if may() {
        // Answers may come in another order than that in which they were asked for.
        writer.put(hash, is, |known| known.get(3) <= new.noted, &new.record(parent, name));
    }
}

impl Names {
    #[inline]
    pub fn find(&self, hash: u64, parent: Ino, name: &[u8]) -> Option<Name> {
        in_table!(self, name, hash, find(parent, name))
    }

    pub fn remove(&self, hash: u64, parent: Ino, name: &[u8]) {
        in_table!(self, name, hash, remove(parent, name))
    }

    /// Keeps this, unless something newer is known or `may`, which is asked while nobody else changes the name, does not say so.
    pub fn learn(&self, hash: u64, (parent, name): (Ino, &[u8]), new: &Name, may: impl Fn() -> bool) {
        if name.len() > u8::MAX as usize {
            // There are none, and no record has room for it.
            return;
        }
        in_table!(self, name, hash, learn(parent, name, new, may))
    }

    pub fn clear(&self) {
        self.short.write().clear();
        self.middle.write().clear();
        self.long.write().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::hash_name;
    use super::*;

    #[test]
    fn of_every_length() {
        let names = Names::default();
        let name = |len: usize| (0..len).map(|i| (i * 7 + len) as u8 | 1).collect::<Vec<u8>>();
        let entry = |len: usize| Name {
            target: (!len.is_multiple_of(5)).then_some(Target {
                ino: Ino(len as u64 + 7),
                generation: len as u32,
                kind: if len.is_multiple_of(2) { FileType::Socket } else { FileType::Directory },
            }),
            noted: 3 * len as u64,
            words: Name::words(Ino(9), &name(len)),
        };
        let hash = |len: usize| hash_name(9, &name(len));
        let learn = |len| names.learn(hash(len), (Ino(9), &name(len)), &entry(len), || true);
        (1..=255).for_each(learn);
        let found = |len: usize| names.find(hash(len), Ino(9), &name(len));
        for len in 1..=255 {
            let (found, entry) = (found(len).unwrap(), entry(len));
            assert_eq!((found.target, found.noted), (entry.target, entry.noted), "{len}");
            assert_eq!(found.words.map(|w| w.number()), entry.words.map(|w| w.number()));
            let mut other = name(len);
            *other.last_mut().unwrap() ^= 0x80;
            assert!(names.find(hash(len), Ino(9), &other).is_none());
            assert!(names.find(hash(len), Ino(8), &name(len)).is_none());
            assert!(names.find(hash(len), Ino(9), &name(len)[1..]).is_none());
        }
        // What is no name of a file.
        let long = [b'x'; 256 + 100];
        names.learn(hash_name(9, &long), (Ino(9), &long), &entry(1), || true);
        assert!(names.find(hash_name(9, &long), Ino(9), &long).is_none());
        // Older, and not wanted.
        names.learn(hash(30), (Ino(9), &name(30)), &Name { noted: 1, ..entry(31) }, || true);
        names.learn(hash(31), (Ino(9), &name(31)), &Name { noted: 1000, ..entry(32) }, || false);
        assert_eq!((found(30).unwrap().noted, found(31).unwrap().noted), (90, 93));
        (1..=255).filter(|len| len % 3 == 0).for_each(|len| names.remove(hash(len), Ino(9), &name(len)));
        assert!((1..=255).all(|len| found(len).is_none() == (len % 3 == 0)));
        names.clear();
        assert!((1..=255).all(|len| found(len).is_none()));
    }
}
