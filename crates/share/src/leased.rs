//! A window under a write lease as both sides see it: the number of its grant, a word for each page, the pages. Layout and protocol:
//! `format::shared`.
//!
//! The two sides never wait for each other. Why nothing that was acknowledged is missed: the client makes a page dirty and then looks at the grant, the
//! manager takes the grant back and then looks for dirty pages, with a full fence between the two steps on either side. (A client's cannot be left to
//! membarrier(2): with Linux 6.18, on an idle machine, there were rounds in which neither of two threads saw what the other had
//! written in 14 of 150 runs of 20,000 rounds.) So the manager finds the page dirty, or the client finds the grant gone and writes in another way.

use crate::lock;
use crate::memory::Mapping;
use format::shared::{
    LEASE_BYTES, LEASE_DATA_AT, LEASE_WINDOWS, LEASE_WORDS_AT, LEASES_AT, LeaseHeader, WINDOW_PAGES, lease,
};
use rustix::thread::{Timespec, nanosleep};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
/// Bytes of a file in a window.
pub(crate) const WINDOW: u64 = (WINDOW_PAGES * PAGE) as u64;

/// How often a client looks at a page that another of its threads is writing into, how often it offers the processor between two looks then, and how often it
/// sleeps: that thread may wait for a processor. To give up costs a message, and the window.
const SPINS: u32 = 1 << 9;
const YIELDS: u32 = 1 << 6;
const SLEEPS: u32 = 1 << 10;
const SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };

/// The word of a page, when no thread of the client writes into that, as far as it may be waited for.
fn idle(word: &AtomicU64) -> u64 {
    let mut now = word.load(Ordering::Acquire);
    for look in 0..SPINS + YIELDS + SLEEPS {
        if now & lease::BUSY == 0 {
            break;
        }
        match look {
            ..SPINS => std::hint::spin_loop(),
            _ if look < SPINS + YIELDS => std::thread::yield_now(),
            // Not the C library's, by which a thread may be cancelled.
            _ => drop(nanosleep(&SLEEP)),
        }
        now = word.load(Ordering::Acquire);
    }
    now
}

/// Whether bytes of a page with this word, all of them or not, may be written.
fn may(word: u64, whole: bool) -> bool {
    word & lease::OPEN != 0 && (whole || word & lease::THERE != 0)
}

/// One window.
#[derive(Clone, Copy)]
pub(crate) struct Leased<'a> {
    memory: &'a Mapping,
    at: usize,
}

impl<'a> Leased<'a> {
    /// The window in a place of a session's memory, below [`LEASE_WINDOWS`].
    pub fn new(memory: &'a Mapping, slot: usize) -> Leased<'a> {
        assert!(slot < LEASE_WINDOWS);
        Leased { memory, at: LEASES_AT + slot * LEASE_BYTES }
    }

    /// Number of the grant, or 0.
    pub fn grant(&self) -> &'a AtomicU64 {
        self.memory.long(self.at + offset_of!(LeaseHeader, grant))
    }
    /// Not 0: pages were read here.
    pub fn read(&self) -> &'a AtomicU32 {
        self.memory.word(self.at + offset_of!(LeaseHeader, read))
    }
    /// Not 0: pages became dirty.
    pub fn written(&self) -> &'a AtomicU32 {
        self.memory.word(self.at + offset_of!(LeaseHeader, written))
    }
    /// The word of a page.
    pub fn word(&self, page: usize) -> &'a AtomicU64 {
        assert!(page < WINDOW_PAGES);
        self.memory.long(self.at + LEASE_WORDS_AT + 8 * page)
    }
    fn page_at(&self, page: usize) -> usize {
        assert!(page < WINDOW_PAGES);
        self.at + LEASE_DATA_AT + page * PAGE
    }

    /// Client: whether bytes of a page, all of them or not, may be written now.
    pub fn may_write(&self, page: usize, whole: bool) -> bool {
        may(self.word(page).load(Ordering::Relaxed), whole)
    }

    /// Client: whether a page holds anything.
    pub fn is_there(&self, page: usize) -> bool {
        self.word(page).load(Ordering::SeqCst) & (lease::THERE | lease::DIRTY) != 0
    }

    /// Client: writes bytes of a page; what it looks at then, it sees behind a fence. False when that may not be done
    /// (any more); then the page may hold them all the same, and somebody who takes it may have seen them.
    pub fn write(&self, page: usize, within: usize, from: &[u8]) -> bool {
        assert!(within + from.len() <= PAGE);
        let (word, whole) = (self.word(page), from.len() == PAGE);
        let now = loop {
            let now = idle(word);
            if now & lease::BUSY != 0 || !may(now, whole) {
                return false;
            }
            if lock::exchange_word(word, now, now | lease::BUSY) {
                break now;
            }
        };
        // What is written there is not seen before this.
        fence(Ordering::Release);
        self.memory.copy_in(self.page_at(page) + within, from);
        // Only who writes into a page changes its word meanwhile; a manager that has not seen that yet has taken what was there before, and
        // takes the page once more.
        let done = ((now | lease::DIRTY | lease::THERE) & !lease::BUSY).wrapping_add(lease::WRITE);
        word.store(done, Ordering::Release);
        fence(Ordering::SeqCst);
        // Whoever takes this away looks at the page after that.
        if self.written().load(Ordering::Relaxed) == 0 {
            self.written().store(1, Ordering::SeqCst);
        }
        true
    }

    /// Client: reads bytes of a page. False when they are not here, or were just changed.
    pub fn copy(&self, page: usize, within: usize, to: &mut [u8]) -> bool {
        assert!(within + to.len() <= PAGE);
        let word = self.word(page);
        let before = idle(word);
        if before & (lease::THERE | lease::BUSY) != lease::THERE {
            return false;
        }
        self.memory.copy_out(self.page_at(page) + within, to);
        fence(Ordering::Acquire);
        // That it was taken by the manager changes nothing.
        (word.load(Ordering::Relaxed) ^ before) & !lease::DIRTY == 0
    }

    /// Manager: the words of a new grant; the client may write into pages for which `open` says so.
    pub fn reset(&self, open: impl Fn(usize) -> bool) {
        for page in 0..WINDOW_PAGES {
            self.word(page).store(if open(page) { lease::OPEN } else { 0 }, Ordering::Relaxed);
        }
        self.read().store(0, Ordering::Relaxed);
        self.written().store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Manager: whether there is something to take.
    pub fn is_dirty(&self, page: usize) -> bool {
        self.word(page).load(Ordering::SeqCst) & lease::DIRTY != 0
    }

    /// Manager: takes what a page holds. For a client that is writing into it this waits while there are `looks` left, then takes it as it is; what
    /// was not wholly written stays dirty.
    pub fn take(&self, page: usize, to: &mut [u8], looks: &mut u32) {
        let word = self.word(page);
        for _ in 0..4 {
            while word.load(Ordering::SeqCst) & lease::BUSY != 0 && *looks > 0 {
                *looks -= 1;
                std::hint::spin_loop();
            }
            // Taken only together with seeing that nobody writes.
            let taken = |w: u64| (w & lease::BUSY == 0).then_some(w & !lease::DIRTY);
            let Ok(before) = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken) else { break };
            self.memory.copy_out(self.page_at(page), to);
            fence(Ordering::SeqCst);
            if word.load(Ordering::SeqCst) == before & !lease::DIRTY {
                return;
            }
        }
        self.memory.copy_out(self.page_at(page), to);
    }

    /// Manager: gives the memory of the pages back to the system.
    pub fn discard(&self) {
        self.memory.discard(self.at + LEASE_WORDS_AT, LEASE_BYTES - LEASE_WORDS_AT);
    }
}
