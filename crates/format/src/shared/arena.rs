//! Arenas: what all clients with the same credentials can look at without a message, and nobody but the manager can write (UHSFS: page headers and page
//! buffers, in groups by who may see them).
//!
//! An arena is: a [`PageHeader`] for each page | [`PAGE_PLACES`] words that say where pages stand | notices of names | notices of inodes | the pages, as many as the manager is
//! told to have (the memory ends with them).
//!
//! A page of a file is looked for by two of these words ([`page_places`]). One that is not 0 is the number of a page, from 1; its header says what the page holds. Whoever copies a page looks at the
//! header's `word` before and after: if it is the same odd number both times, and the file's word among the changes has not been raised since the file's
//! size was asked for, the copy is what the file held. The manager makes the word even before it writes anything else of header or page, and odd when both are complete; it takes pages out before a
//! call returns that changes them. The file may have grown before: of the last page that it had, no more is copied than the page says that it has of the file. A page that is there may not be found, when others took its places: then it is asked for, and put there again.
//!
//! Notices tell what clients of the arena were answered: what names lead to ([`NameNotice`]), and attributes ([`InodeNotice`]), as of a clock. That holds as long as none of the words among
//! the changes on which it depends is greater. A client that has posted something which may concern it, and does not know yet that this was done, asks instead. Nothing is
//! told here that was asked for while anybody had a lease on it: who has one need not tell of what he does. They stand in sets: first a word for each set, with a byte for each of
//! its [`NOTICE_PLACES`] records ([`notice_byte`]; 0: none), then the records. The lower half of a record's first word counts how often it was written, and is odd while that is going on.

use super::{AttrImage, PAGE, PIECE_PAGES, mix};
use crate::layout::media_struct;
use zerocopy::little_endian::{U32, U64};

/// Pages of an arena, at most.
pub const ARENA_PAGES: usize = 1 << 20;
/// Words that say where pages stand.
pub const PAGE_PLACES: usize = 1 << 23;
/// Where these words begin in an arena.
pub const PAGE_PLACES_AT: usize = ARENA_PAGES * size_of::<PageHeader>();
/// Notices in a set.
pub const NOTICE_PLACES: usize = 8;
/// Sets of notices of one kind.
pub const NOTICE_SETS: usize = 1 << 11;
/// Where the notices of names begin.
pub const NAMES_AT: usize = PAGE_PLACES_AT + 4 * PAGE_PLACES;
/// Where the notices of inodes begin.
pub const INODES_AT: usize = NAMES_AT + NOTICE_SETS * (8 + NOTICE_PLACES * size_of::<NameNotice>());
/// Where the pages begin.
pub const ARENA_DATA_AT: usize =
    (INODES_AT + NOTICE_SETS * (8 + NOTICE_PLACES * size_of::<InodeNotice>())).next_multiple_of(2 << 20);

/// Bytes of the memory of an arena of so many pages, of which there may be [`ARENA_PAGES`].
pub const fn arena_bytes(pages: usize) -> usize {
    ARENA_DATA_AT + pages * PAGE
}

/// Bytes of the longest name of which there are notices.
pub const NOTICE_NAME_MAX: usize = 88;

media_struct! {
    /// What a page of an arena holds.
    pub struct PageHeader: 32 {
        /// atomic: odd while the page holds what is said here; grows
        word: U64,
        /// inode number of the file
        ino: U64,
        /// number of the page in the file
        page: U64,
        /// generation of the inode
        generation: U32,
        /// bytes of the file in the page; behind them are zeros
        len: U32,
    }
}

media_struct! {
    /// What a name leads to.
    pub struct NameNotice: 128 {
        /// atomic: how often it was written
        count: U32,
        /// generation of the inode
        generation: U32,
        /// the clock from before it was asked for
        noted: U64,
        /// inode number of the directory
        dir: U64,
        /// inode number; 0: there is no such name
        ino: U64,
        /// type bits of the inode's mode
        mode: U32,
        /// bytes of the name
        len: U32,
        /// the name, and zeros
        name: [u8; NOTICE_NAME_MAX],
    }
}

media_struct! {
    /// Attributes of an inode.
    pub struct InodeNotice: 192 {
        /// atomic: how often it was written
        count: U32,
        /// zero
        reserved0: [u8; 4],
        /// the clock from before they were asked for
        noted: U64,
        /// the attributes
        attr: AttrImage,
        /// zero
        reserved1: [u8; 56],
    }
}

/// The two words by which a page of a file is looked for. Those of a piece stand close together.
#[inline]
pub fn page_places(ino: u64, page: u64) -> [usize; 2] {
    const PIECE: u64 = PIECE_PAGES as u64;
    let hash = mix(mix(5, ino), page / PIECE);
    // Where the pages of a piece begin differs, too: most files are so short that they have the first ones alone.
    let within = (page + (hash >> 60)) % PIECE;
    let line = |bits: u64| (bits % (PAGE_PLACES as u64 / PIECE) * PIECE + within) as usize;
    [line(hash), line(hash >> 30)]
}

/// The set in which a notice of what has this hash ([`super::kept_hash`]) stands.
#[inline]
pub fn notice_set(hash: u64) -> usize {
    hash as usize % NOTICE_SETS
}

/// The byte that it has in the word of its set.
#[inline]
pub fn notice_byte(hash: u64) -> u8 {
    ((hash >> 48) as u8).max(1)
}

const _: () = assert!(PAGE_PLACES_AT.is_multiple_of(64) && NAMES_AT.is_multiple_of(64));
const _: () = assert!(INODES_AT.is_multiple_of(64) && (8 * NOTICE_SETS).is_multiple_of(64));

#[cfg(test)]
mod tests {
    use super::super::{Kept, kept_hash};
    use super::*;

    #[test]
    fn places_are_spread() {
        // A full arena of files of one page each, and one of a long file.
        let short = (0..ARENA_PAGES as u64).map(|ino| (ino + 100, 0));
        let long = (0..ARENA_PAGES as u64).map(|page| (7, page));
        for (name, pages) in [("short", short.collect::<Vec<_>>()), ("long", long.collect())] {
            let mut taken = vec![false; PAGE_PLACES];
            let mut without = 0;
            for (ino, page) in pages {
                match page_places(ino, page).into_iter().find(|&at| !taken[at]) {
                    Some(at) => taken[at] = true,
                    None => without += 1,
                }
            }
            assert!(without < ARENA_PAGES / 100, "{name}: {without} have no place");
        }
    }

    #[test]
    fn sets_are_spread() {
        let mut counts = vec![[0u8; 2]; NOTICE_SETS];
        for i in 0..(NOTICE_SETS * NOTICE_PLACES / 2) as u64 {
            counts[notice_set(kept_hash(Kept::Name(1, format!("f{i:07}").as_bytes())))][0] += 1;
            counts[notice_set(kept_hash(Kept::Attr(i)))][1] += 1;
        }
        let full = counts.iter().flatten().filter(|&&n| n as usize > NOTICE_PLACES).count();
        assert!(full < NOTICE_SETS / 10, "{full} of {} overflow", 2 * NOTICE_SETS);
    }
}
