//! Records that are read without writing anything, in the memory of one process or in that which it shows to others.
//!
//! A record is a number of words. The lower half of the first counts how often it was written, and is odd while that is going on: who finds it odd, or another one
//! after looking at the words, has seen nothing (a sequence lock). One thread at a time writes.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A record.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Record<const W: usize>([AtomicU64; W]);

/// The words of a record as somebody sees them who looks at it. They may be of several records, which is noticed later: whatever is
/// made of them must not be used before that.
pub(crate) struct Words<'a, const W: usize> {
    record: &'a Record<W>,
    first: u64,
}

impl<const W: usize> Words<'_, W> {
    /// A word; of word 0 the upper half.
    #[inline]
    pub fn get(&self, at: usize) -> u64 {
        match at {
            0 => self.first >> 32,
            _ => self.record.0[at].load(Ordering::Relaxed),
        }
    }

    /// All of them.
    pub fn all(&self) -> [u64; W] {
        std::array::from_fn(|at| self.get(at))
    }
}

impl<const W: usize> Record<W> {
    pub const fn new() -> Record<W> {
        Record([const { AtomicU64::new(0) }; W])
    }

    /// What `f` says of its words; `None` while it is being written.
    #[inline]
    pub fn read<T>(&self, f: impl FnOnce(&Words<'_, W>) -> T) -> Option<T> {
        let first = self.0[0].load(Ordering::Acquire);
        if first & 1 == 1 {
            return None;
        }
        let seen = f(&Words { record: self, first });
        fence(Ordering::Acquire);
        (self.0[0].load(Ordering::Relaxed) == first).then_some(seen)
    }

    /// Writes all of it. One thread at a time does.
    pub fn write(&self, words: &[u64; W]) {
        let first = self.0[0].load(Ordering::Relaxed);
        self.0[0].store(first | 1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (to, word) in self.0.iter().zip(words).skip(1) {
            to.store(*word, Ordering::Relaxed);
        }
        let count = (first as u32 | 1).wrapping_add(1);
        self.0[0].store(words[0] << 32 | count as u64, Ordering::Release);
    }
}

/// Where in a bucket's word this byte stands.
#[inline]
pub(crate) fn places(word: u64, byte: u8) -> impl Iterator<Item = usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = ONES << 7;
    let differs = word ^ (ONES * byte as u64);
    let mut found = !(((differs & !HIGH) + !HIGH) | differs) & HIGH;
    std::iter::from_fn(move || {
        let at = (found != 0).then(|| found.trailing_zeros() as usize / 8);
        found &= found.wrapping_sub(1);
        at
    })
}
