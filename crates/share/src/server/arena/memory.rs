//! The memory of an arena, as the manager writes it (layout and rule of reading: `format::shared`).

use super::{PAGE, PART};
use crate::memory::{self, Mapping};
use crate::notices;
use format::shared::{ARENA_DATA_AT, PAGE_PLACES_AT, PageHeader, arena_bytes, page_places};
use fs::{Attr, Cred, Ino};
use parking_lot::Mutex;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The arena of some clients.
pub(crate) struct Arena {
    pub(super) cred: Cred,
    pub(super) memory: Mapping,
    reader: OwnedFd,
    /// Who tells something has this.
    telling: Mutex<()>,
    /// Several clients have it, or had.
    pub(super) is_shared: AtomicBool,
    /// Pages from here on were never used.
    pub(super) used: AtomicU32,
    /// There is memory for pages up to here, if there can be so many. The first part is not had ahead of its use.
    pub(super) ready: AtomicU32,
    /// Answers given out of it, for tests.
    pub hits: AtomicU64,
}

impl Arena {
    /// One of so many pages.
    pub(super) fn new(cred: &Cred, pages: usize) -> io::Result<Arena> {
        let (memory, reader) = memory::published(c"freehold pages", arena_bytes(pages))?;
        let (telling, is_shared) = (Mutex::default(), AtomicBool::new(false));
        let (used, ready, hits) = (AtomicU32::new(0), AtomicU32::new(PART as u32), AtomicU64::new(0));
        Ok(Arena { cred: cred.clone(), memory, reader, telling, is_shared, used, ready, hits })
    }

    /// For clients.
    pub fn reader(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// Whether there are several clients who can know of each other's files, or were.
    pub fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Relaxed)
    }

    /// Tells all clients what a name was found to lead to, when the clock was `noted` or later.
    pub fn tell_name(&self, dir: Ino, name: &[u8], attr: Option<&Attr>, noted: u64) {
        let _telling = self.telling.lock();
        notices::tell_name(&self.memory, dir, name, attr, noted);
    }

    /// Tells all clients attributes that were asked for when the clock was `noted` or later.
    pub fn tell_inode(&self, attr: &Attr, noted: u64) {
        let _telling = self.telling.lock();
        notices::tell_inode(&self.memory, attr, noted);
    }

    /// The attributes that were told of an inode last, be it long ago.
    pub fn told(&self, ino: Ino) -> Option<Attr> {
        Some(notices::inode(&self.memory, ino)?.0)
    }

    /// A word of a page's header.
    fn field(&self, page: u32, field: usize) -> &AtomicU64 {
        self.memory.long(page as usize * size_of::<PageHeader>() + field)
    }

    pub(super) fn word(&self, page: u32) -> &AtomicU64 {
        self.field(page, offset_of!(PageHeader, word))
    }

    /// Fills a page that holds nothing with a page of a file.
    pub(super) fn put(&self, page: u32, (ino, generation): (Ino, u32), number: u64, bytes: &[u8]) {
        let word = self.word(page);
        let before = word.load(Ordering::Relaxed);
        // Who still copies what was there before sees one of these two changes of the word.
        word.store(before + 2, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        self.field(page, offset_of!(PageHeader, ino)).store(ino.0, Ordering::Relaxed);
        self.field(page, offset_of!(PageHeader, page)).store(number, Ordering::Relaxed);
        // The word of two fields.
        let len = (bytes.len() as u64) << 32;
        self.field(page, offset_of!(PageHeader, generation))
            .store(len | generation as u64, Ordering::Relaxed);
        let at = ARENA_DATA_AT + page as usize * PAGE;
        // Pages lie anywhere, and another process reads them, if anybody does.
        self.memory.stream_in(at, bytes);
        if bytes.len() < PAGE {
            self.memory.copy_in(at + bytes.len(), &[0; PAGE][bytes.len()..]);
        }
        word.store(before + 3, Ordering::Release);
    }

    /// Bytes of its file that a page has.
    pub(super) fn len(&self, page: u32) -> usize {
        (self.field(page, offset_of!(PageHeader, generation)).load(Ordering::Relaxed) >> 32) as usize
    }

    /// Has clients find a page, which holds that one of a file.
    pub(super) fn show(&self, page: u32, ino: Ino, number: u64) {
        let places = page_places(ino.0, number);
        let word = |place: usize| self.memory.word(PAGE_PLACES_AT + 4 * place);
        let there = places.map(|place| word(place).load(Ordering::Relaxed));
        if there.contains(&(page + 1)) {
            return;
        }
        let is_free = |i: &usize| there[*i] == 0 || !self.is_found(there[*i] - 1, places[*i]);
        let i = (0..places.len()).find(is_free).unwrap_or(page as usize % places.len());
        word(places[i]).store(page + 1, Ordering::Release);
    }

    /// Whether whoever looks for what a page holds would look in this place. A page that has something else by now has left places behind that lead to it.
    fn is_found(&self, page: u32, place: usize) -> bool {
        let of = |field| self.field(page, field).load(Ordering::Relaxed);
        let (ino, number) = (of(offset_of!(PageHeader, ino)), of(offset_of!(PageHeader, page)));
        self.word(page).load(Ordering::Relaxed) & 1 != 0 && page_places(ino, number).contains(&place)
    }

    pub(super) fn take(&self, page: u32) {
        let word = self.word(page);
        word.store(word.load(Ordering::Relaxed) + 1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_holds_something_else_takes_no_place() {
        let arena = Arena::new(&Cred::root(), PART).unwrap();
        let put = |page, number| {
            arena.put(page, (Ino(7), 0), number, &[1; PAGE]);
            arena.show(page, Ino(7), number);
        };
        let at = |number| {
            page_places(7, number)
                .map(|at| arena.memory.word(PAGE_PLACES_AT + 4 * at).load(Ordering::Relaxed))
        };
        put(0, 100);
        assert_eq!(at(100), [1, 0]);
        arena.take(0);
        put(0, 200);
        put(1, 100);
        assert_eq!((at(100), at(200)), ([2, 0], [1, 0]));
    }
}
