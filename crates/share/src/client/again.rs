//! Long reads that this client has made before. What is read once from start to end is answered with the data, as it would drive out of the arena what is read again and
//! again; what is read for the second time is put there.

use fs::Ino;
use std::sync::atomic::{AtomicU32, Ordering};

/// Parts of files that are remembered: one of those with the same number modulo this.
const WINDOWS: usize = 1 << 12;
/// Bytes of such a part. How far it was read is remembered in whole steps.
const WINDOW: u64 = 1 << 20;
const STEP: u64 = 64 << 10;
/// Bits of a number of steps; the others of a word tell parts of files apart.
const STEPS: u32 = 31;
const _: () = assert!(WINDOW / STEP <= STEPS as u64);

/// See the module. Its memory is there from the start: reads may be made by a signal handler, which must not ask for any.
#[derive(Debug)]
pub(super) struct LongReads(Box<[AtomicU32; WINDOWS]>);

impl Default for LongReads {
    fn default() -> LongReads {
        LongReads(Box::new([const { AtomicU32::new(0) }; WINDOWS]))
    }
}

impl LongReads {
    /// Whether what begins at `offset` was read before, as far as is remembered: whoever reads on from where the last read ended has not. This read is remembered.
    pub fn again(&self, ino: Ino, offset: u64, len: usize) -> bool {
        let (window, within) = (offset / WINDOW, offset % WINDOW);
        let round = window / WINDOWS as u64;
        let hash = (ino.0 ^ round.rotate_left(40)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        // Those of one file stand beside each other.
        let word = &self.0[((hash >> 48) + window) as usize % WINDOWS];
        // Never 0, which is that of nothing.
        let tag = (hash >> 16) as u32 & !STEPS | (STEPS + 1);
        let before = word.load(Ordering::Relaxed);
        let is_known = before & !STEPS == tag;
        if is_known && within / STEP < u64::from(before & STEPS) {
            return true;
        }
        let end = (within + len as u64).min(WINDOW);
        word.store(tag | (end / STEP) as u32, Ordering::Relaxed);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_from_start_to_end_is_not_again() {
        for step in [32 << 10, 64 << 10, 100 << 10, 1 << 20, 3 << 20] {
            let reads = LongReads::default();
            let pass = || (0..64 << 20).step_by(step).filter(|&at| reads.again(Ino(7), at, step)).count();
            let all = (64usize << 20).div_ceil(step);
            assert!(pass() <= all / 20, "{step}: the first time");
            assert!(pass() >= all - all / 20, "{step}: the second time");
            assert!(!reads.again(Ino(8), 0, step), "another file");
        }
    }

    #[test]
    fn so_many_parts_are_remembered() {
        let reads = LongReads::default();
        for (round, again) in [(0, 0), (0, WINDOWS), (1, 0), (0, 0)] {
            let parts = (0..WINDOWS as u64).map(|window| (round * WINDOWS as u64 + window) * WINDOW);
            assert_eq!(parts.filter(|&at| reads.again(Ino(7), at, 1 << 20)).count(), again, "{round}");
        }
    }
}
