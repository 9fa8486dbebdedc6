//! Which blocks are in use, and which are so twice.

use std::collections::BTreeMap;

/// One bit a block. Bounded by the size of the medium.
pub(super) struct Usage {
    bits: Vec<u64>,
    pub used: u64,
    /// Ranges claimed more than once: first block and the one behind the last. Neighbours are joined.
    pub twice: BTreeMap<u64, u64>,
    /// No block before it is free.
    first_free: u64,
}

impl Usage {
    pub fn new(blocks: u64) -> Usage {
        Usage { bits: vec![0; blocks.div_ceil(64) as usize], used: 0, twice: BTreeMap::new(), first_free: 0 }
    }

    pub fn get(&self, block: u64) -> bool {
        self.bits[block as usize / 64] >> (block % 64) & 1 == 1
    }

    /// Claims blocks that lie within the volume; false when some were claimed before.
    pub fn claim(&mut self, first: u64, count: u64) -> bool {
        let mut single = true;
        let (mut at, end) = (first, first + count);
        while at < end {
            let n = (64 - at % 64).min(end - at);
            let mask = (u64::MAX >> (64 - n)) << (at % 64);
            let word = &mut self.bits[at as usize / 64];
            let before = *word & mask;
            *word |= mask;
            self.used += (mask & !before).count_ones() as u64;
            if before != 0 {
                single = false;
                (at..at + n).filter(|b| before >> (b % 64) & 1 == 1).for_each(|b| self.note_twice(b));
            }
            at += n;
        }
        single
    }

    fn note_twice(&mut self, block: u64) {
        if let Some((_, end)) = self.twice.range_mut(..=block).next_back()
            && *end >= block
        {
            *end = (*end).max(block + 1);
            return;
        }
        self.twice.insert(block, block + 1);
    }

    /// The parts of a run that were claimed more than once.
    pub fn twice_within(&self, first: u64, count: u64) -> Vec<(u64, u64)> {
        let end = first + count;
        let start = self.twice.range(..=first).next_back().map_or(first, |(s, _)| *s);
        self.twice
            .range(start..end)
            .filter(|(_, e)| **e > first)
            .map(|(s, e)| ((*s).max(first), (*e).min(end)))
            .collect()
    }

    /// Finds and claims so many free blocks side by side.
    pub fn take_free(&mut self, count: u64) -> Option<u64> {
        let end = self.bits.len() as u64 * 64;
        self.first_free = (self.first_free..end).find(|&b| !self.get(b))?;
        let block = (self.first_free..end.saturating_sub(count - 1)).find(|&b| self.is_free(b, count))?;
        self.claim(block, count);
        Some(block)
    }

    /// Whether the whole run is free.
    pub fn is_free(&self, first: u64, count: u64) -> bool {
        (first..first + count).all(|b| !self.get(b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_is_used_twice() {
        let mut u = Usage::new(512);
        assert!(u.claim(10, 100));
        assert!(!u.claim(105, 10));
        assert!(!u.claim(0, 12));
        assert_eq!(u.used, 115);
        assert_eq!(u.twice.iter().map(|(a, b)| (*a, *b)).collect::<Vec<_>>(), [(10, 12), (105, 110)]);
        assert_eq!(u.twice_within(11, 95), [(11, 12), (105, 106)]);
        assert_eq!(u.take_free(1), Some(115));
        assert!(u.is_free(116, 4) && !u.is_free(114, 4));
        assert!(u.claim(118, 1));
        assert_eq!((u.take_free(3), u.take_free(1), u.take_free(1)), (Some(119), Some(116), Some(117)));
        assert_eq!((u.take_free(1), u.take_free(389), u.take_free(388)), (Some(122), Some(123), None));
    }
}
