//! Pages that this client reads without a message: the arena of its credentials, mapped for reading, and where in it pages stand that it has
//! asked for (see `format::shared` and the manager's side, `server::arena`).

use super::Session;
use super::records::{Records, Words};
use crate::memory::{self, Mapping};
use foldhash::fast::FixedState;
use format::shared::{ARENA_BYTES, ARENA_DATA_AT, ARENA_PAGES, PIECE_PAGES, PagePlace, mark};
use fs::{Attr, Ino, Time};
use smallvec::SmallVec;
use std::hash::BuildHasher;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};

const PAGE: u64 = 4096;
const CHUNK: u64 = PIECE_PAGES as u64;

/// Where a page stands, and the value of its word while it does; 0: it is not known.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    word: u64,
    page: u32,
}

/// A record of what is known of a chunk: generation of the inode | inode | number of the chunk | words of the places | pages of the places, two in a
/// word.
const WORDS_AT: usize = 3;
const PAGES_AT: usize = WORDS_AT + PIECE_PAGES;
const RECORD: usize = PAGES_AT + PIECE_PAGES / 2;

type Chunk = [u64; RECORD];

/// A place of a record.
#[inline]
fn place_of(record: &Words<'_, RECORD>, at: usize) -> Place {
    let page = record.get(PAGES_AT + at / 2) >> (32 * (at % 2));
    Place { word: record.get(WORDS_AT + at), page: page as u32 }
}

#[inline]
fn is_of(record: &Words<'_, RECORD>, ino: Ino, generation: u32, chunk: u64) -> bool {
    [record.get(0), record.get(1), record.get(2)] == [generation as u64, ino.0, chunk]
}

fn hash(ino: u64, chunk: u64) -> u64 {
    HASHER.hash_one((ino, chunk))
}

const HASHER: FixedState = FixedState::with_seed(0x6368_756e);

#[derive(Debug)]
pub(super) struct Arena {
    memory: Mapping,
    chunks: Records<RECORD>,
}

impl Arena {
    pub fn map(fd: impl AsFd) -> io::Result<Arena> {
        memory::check_sealed(&fd, ARENA_BYTES)?;
        Ok(Arena { memory: Mapping::read_only(fd, ARENA_BYTES)?, chunks: Records::default() })
    }

    /// Copies a part of one page. False when the page is not there any more.
    fn copy(&self, place: Place, within: usize, to: &mut [u8]) -> bool {
        if place.word & 1 == 0 || place.page as usize >= ARENA_PAGES {
            return false;
        }
        let word = self.memory.long(8 * place.page as usize);
        if word.load(Ordering::Acquire) != place.word {
            return false;
        }
        self.memory.copy_out(ARENA_DATA_AT + place.page as usize * PAGE as usize + within, to);
        fence(Ordering::Acquire);
        word.load(Ordering::Relaxed) == place.word
    }

    /// Where the pages from `first` on stand, as many as are known of `count`.
    fn places(&self, ino: Ino, generation: u32, first: u64, count: u64) -> SmallVec<[Place; PIECE_PAGES]> {
        let (mut at, end) = (first, first + count);
        let mut all = SmallVec::new();
        while at < end {
            let number = at / CHUNK;
            let upto = end.min((number + 1) * CHUNK);
            let known = all.len();
            let found = self.chunks.find(hash(ino.0, number), |record| {
                all.truncate(known);
                all.extend((at..upto).map(|at| place_of(record, (at % CHUNK) as usize)));
                is_of(record, ino, generation, number)
            });
            if !found {
                all.truncate(known);
                break;
            }
            at = upto;
        }
        all
    }

    /// Where one page stands, if that is known.
    #[inline]
    fn place(&self, ino: Ino, generation: u32, page: u64) -> Option<Place> {
        let number = page / CHUNK;
        let mut place = Place::default();
        let found = self.chunks.find(hash(ino.0, number), |record| {
            place = place_of(record, (page % CHUNK) as usize);
            is_of(record, ino, generation, number)
        });
        found.then_some(place)
    }

    /// Copies a part of a file, as much of it as is here; it may have changed meanwhile.
    #[inline]
    fn copy_file(&self, ino: Ino, generation: u32, offset: u64, to: &mut [u8]) -> usize {
        let within = (offset % PAGE) as usize;
        if within + to.len() <= PAGE as usize {
            let place = self.place(ino, generation, offset / PAGE);
            return if place.is_some_and(|place| self.copy(place, within, to)) { to.len() } else { 0 };
        }
        let count = (offset + to.len() as u64).div_ceil(PAGE) - offset / PAGE;
        let mut done = 0;
        for place in self.places(ino, generation, offset / PAGE, count) {
            let within = ((offset + done as u64) % PAGE) as usize;
            let n = (PAGE as usize - within).min(to.len() - done);
            if !self.copy(place, within, &mut to[done..done + n]) {
                break;
            }
            done += n;
        }
        done
    }

    /// The pages of a file from the one of `offset` on stand there.
    pub fn learn(&self, ino: Ino, generation: u32, offset: u64, places: impl Iterator<Item = PagePlace>) {
        let mut places = places.peekable();
        let mut first = offset / PAGE;
        while places.peek().is_some() {
            let left = CHUNK - first % CHUNK;
            self.learn_chunk(ino, generation, first, places.by_ref().take(left as usize));
            first += left;
        }
    }

    /// As [`Arena::learn`], of pages of one chunk.
    fn learn_chunk(&self, ino: Ino, generation: u32, first: u64, places: impl Iterator<Item = PagePlace>) {
        let number = first / CHUNK;
        let is = |record: &Words<'_, RECORD>| record.get(1) == ino.0 && record.get(2) == number;
        let mut writer = self.chunks.write();
        let mut chunk: Chunk = [0; RECORD];
        let is_known = self.chunks.find(hash(ino.0, number), |record| {
            chunk = record.all();
            is_of(record, ino, generation, number)
        });
        if !is_known {
            chunk = [0; RECORD];
        }
        (chunk[0], chunk[1], chunk[2]) = (generation as u64, ino.0, number);
        for (at, place) in ((first % CHUNK) as usize..PIECE_PAGES).zip(places) {
            let shift = 32 * (at % 2);
            let pages = chunk[PAGES_AT + at / 2] & !(0xffff_ffff << shift);
            chunk[PAGES_AT + at / 2] = pages | (place.page.get() as u64) << shift;
            chunk[WORDS_AT + at] = place.word.get();
        }
        writer.put(hash(ino.0, number), is, |_| true, &chunk);
    }

    /// Drops everything.
    pub fn forget(&self) {
        self.chunks.write().clear();
    }
}

impl Session {
    /// Reads, if all that is needed is here and holds: everything that was asked for, up to the end of the file.
    pub(super) fn read_here(&self, ino: Ino, noatime: bool, offset: u64, to: &mut [u8]) -> Option<usize> {
        let look = |attr: &Attr| {
            let stays = noatime || !attr.moves_atime(Time::now());
            stays.then_some((attr.size, (attr.ino, attr.generation)))
        };
        let (found, noted) = self.kept.noted(ino, look)?;
        let (size, inode) = found?;
        let len = size.saturating_sub(offset).min(to.len() as u64) as usize;
        (self.copy_noted(inode, noted, offset, &mut to[..len])? == len).then_some(len)
    }

    /// Copies what is here of a file whose attributes held at `noted`; `None` if they do no longer.
    pub(super) fn copy_noted(
        &self,
        (ino, generation): (Ino, u32),
        noted: u64,
        offset: u64,
        to: &mut [u8],
    ) -> Option<usize> {
        let done = self.arena.copy_file(ino, generation, offset, to);
        // The file had this size and these bytes at one moment: now.
        if !self.kept.unchanged(ino, noted) {
            return None;
        }
        let end = (offset + done as u64).div_ceil(PAGE * CHUNK);
        for chunk in offset / PAGE / CHUNK..end {
            self.region.mark(mark(ino.0, chunk), true);
        }
        Some(done)
    }
}
