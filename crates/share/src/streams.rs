//! Bytes that one side writes and the other one reads: by ordinary stores, or by stores past the caches of the processor (non-temporal ones).
//!
//! What one processor writes and another one reads goes from cache to cache, and to write there again the first one needs the lines back. That is quick where the two share a cache. Where they do not
//! (those of a virtual machine are where its host likes, and not for long) a line there and back takes 0.3 us instead of 0.05, and a program that moves much data loses a fourth of its time.
//! Stores past the caches ask nobody for lines and cost about the same everywhere; where processors share even the nearest cache they are the dearer ones. So both kinds
//! are measured now and then, and the cheaper one is taken.

use crate::memory::Mapping;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Shorter ones cost little by either kind.
const LONG: usize = 4096;
/// One of so many is measured.
const MEASURED: u32 = 32;
/// And one of so many of those is made by the dearer kind.
const TRIED: u32 = 4;

/// How bytes are copied to where the other side reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// By ordinary stores.
    Cached = 0,
    /// Past the caches.
    Streamed = 1,
}

/// Which kind was cheaper lately. Threads that count at the same time may lose what one of them has found.
#[derive(Debug)]
struct Choice {
    copies: AtomicU32,
    /// Nanoseconds for a MiB by each kind; 0 is not known.
    costs: [AtomicU32; 2],
}

impl Choice {
    const fn new() -> Choice {
        Choice { copies: AtomicU32::new(0), costs: [const { AtomicU32::new(0) }; 2] }
    }

    fn cheaper(&self) -> Kind {
        let [cached, streamed] = [0, 1].map(|kind: usize| self.costs[kind].load(Ordering::Relaxed));
        if streamed <= cached { Kind::Streamed } else { Kind::Cached }
    }

    /// The kind of the next copy, and whether it is to be measured.
    fn next(&self) -> (Kind, bool) {
        let copies = self.copies.load(Ordering::Relaxed);
        self.copies.store(copies.wrapping_add(1), Ordering::Relaxed);
        let is_tried = copies.is_multiple_of(MEASURED * TRIED);
        let kind = match self.cheaper() {
            Kind::Cached if is_tried => Kind::Streamed,
            Kind::Streamed if is_tried => Kind::Cached,
            cheaper => cheaper,
        };
        (kind, copies.is_multiple_of(MEASURED))
    }

    /// A copy took so long. One that was interrupted took much longer, and says little.
    fn took(&self, kind: Kind, len: usize, nanoseconds: u64) {
        let took = u32::try_from((nanoseconds << 20) / len as u64).unwrap_or(u32::MAX);
        let cost = &self.costs[kind as usize];
        let now = match cost.load(Ordering::Relaxed) {
            0 => took,
            before if took < before => before / 2 + took / 2,
            before => before.saturating_add((took - before).min(before) / 8),
        };
        cost.store(now.max(1), Ordering::Relaxed);
    }
}

/// Copies `from` to `offset` of a memory in which the other side reads it soon.
pub(crate) fn hand_over(memory: &Mapping, offset: usize, from: &[u8]) {
    static CHOICE: Choice = Choice::new();
    if from.len() < LONG {
        return memory.copy_in(offset, from);
    }
    let (kind, is_measured) = CHOICE.next();
    let begun = is_measured.then(Instant::now);
    match kind {
        Kind::Cached => memory.copy_in(offset, from),
        Kind::Streamed => memory.stream_in(offset, from),
    }
    if let Some(begun) = begun {
        CHOICE.took(kind, from.len(), begun.elapsed().as_nanos() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many copies are streamed, where a copy of 64 KiB takes so many nanoseconds by each kind.
    fn streamed(choice: &Choice, copies: u32, cached: u64, streamed: u64) -> u32 {
        let one = |_: &u32| {
            let (kind, is_measured) = choice.next();
            if is_measured {
                choice.took(kind, 64 << 10, if kind == Kind::Cached { cached } else { streamed });
            }
            kind == Kind::Streamed
        };
        (0..copies).filter(one).count() as u32
    }

    #[test]
    fn the_cheaper_kind_is_taken_and_both_are_tried() {
        let choice = Choice::new();
        let each = MEASURED * TRIED;
        streamed(&choice, 4 * each, 20_000, 4000);
        assert_eq!(streamed(&choice, 10 * each, 20_000, 4000), 10 * each - 10);
        // Both are where they share a cache now.
        streamed(&choice, 40 * each, 2000, 4000);
        assert_eq!(streamed(&choice, 10 * each, 2000, 4000), 10);
        streamed(&choice, 40 * each, 20_000, 4000);
        assert_eq!(streamed(&choice, 10 * each, 20_000, 4000), 10 * each - 10);
    }

    #[test]
    fn an_interruption_changes_little() {
        let choice = Choice::new();
        streamed(&choice, 1000, 4000, 6000);
        choice.took(Kind::Cached, 64 << 10, 10_000_000);
        assert_eq!(choice.cheaper(), Kind::Cached);
        choice.took(Kind::Cached, 64 << 10, u64::MAX >> 20);
        choice.took(Kind::Streamed, 4096, 0);
        assert!(streamed(&choice, 4000, 4000, 6000) < 4000 / 2);
    }
}
