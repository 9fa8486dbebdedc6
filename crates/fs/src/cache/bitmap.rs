//! A map of free items that hands out runs of neighbours, searching onwards from a hint. Used for cache frames and for the
//! engines' scratch memory.

/// One bit an item; 1 means free. A summary bit for each word keeps the search short.
#[derive(Clone, Debug)]
pub struct FreeMap {
    words: Vec<u64>,
    summary: Vec<u64>,
    len: usize,
    free: usize,
}

impl FreeMap {
    /// A map of `len` items, all free.
    pub fn all_free(len: usize) -> FreeMap {
        let mut map = FreeMap {
            words: vec![0; len.div_ceil(64)],
            summary: vec![0; len.div_ceil(64 * 64)],
            len,
            free: 0,
        };
        for i in 0..len {
            map.set_free(i);
        }
        map
    }

    /// Number of free items.
    pub fn free(&self) -> usize {
        self.free
    }

    /// Whether item `i` is free.
    pub fn is_free(&self, i: usize) -> bool {
        self.words[i / 64] >> (i % 64) & 1 == 1
    }

    /// Makes item `i` free.
    pub fn set_free(&mut self, i: usize) {
        debug_assert!(i < self.len && !self.is_free(i), "item is already free");
        self.words[i / 64] |= 1 << (i % 64);
        self.summary[i / 4096] |= 1 << (i / 64 % 64);
        self.free += 1;
    }

    fn set_used(&mut self, i: usize) {
        self.words[i / 64] &= !(1 << (i % 64));
        if self.words[i / 64] == 0 {
            self.summary[i / 4096] &= !(1 << (i / 64 % 64));
        }
        self.free -= 1;
    }

    /// First free item at or behind `from`.
    fn next_free(&self, from: usize) -> Option<usize> {
        let word = from / 64;
        if word >= self.words.len() {
            return None;
        }
        let here = self.words[word] & (u64::MAX << (from % 64));
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        let mut word = word + 1;
        while word < self.words.len() {
            let rest = self.summary[word / 64] & (u64::MAX << (word % 64));
            if rest != 0 {
                let w = word / 64 * 64 + rest.trailing_zeros() as usize;
                return Some(w * 64 + self.words[w].trailing_zeros() as usize);
            }
            word = (word / 64 + 1) * 64;
        }
        None
    }

    /// The first run at or behind `from`: between 1 and `max` neighbours.
    pub fn next_run(&self, from: usize, max: usize) -> Option<(usize, usize)> {
        let first = self.next_free(from)?;
        let mut n = 1;
        while n < max && first + n < self.len && self.is_free(first + n) {
            n += 1;
        }
        Some((first, n))
    }

    /// Takes `count` free neighbours.
    pub fn take(&mut self, first: usize, count: usize) {
        (first..first + count).for_each(|i| self.set_used(i));
    }

    /// Takes `count` neighbours, or nothing when there is no such run.
    pub fn take_exact(&mut self, count: usize) -> Option<usize> {
        let mut at = 0;
        while let Some((first, n)) = self.next_run(at, count) {
            if n == count {
                self.take(first, count);
                return Some(first);
            }
            at = first + n;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_run(map: &mut FreeMap, from: usize, max: usize) -> Option<(usize, usize)> {
        let (first, n) = map.next_run(from, max)?;
        map.take(first, n);
        Some((first, n))
    }

    #[test]
    fn runs() {
        let mut map = FreeMap::all_free(10_000);
        assert_eq!(take_run(&mut map, 9_990, 64), Some((9_990, 10)));
        assert_eq!(take_run(&mut map, 9_990, 64), None);
        assert_eq!(take_run(&mut map, 0, 64), Some((0, 64)));
        assert_eq!(map.take_exact(9_926), Some(64));
        assert_eq!((map.free(), map.next_run(0, 1), map.take_exact(1)), (0, None, None));
        map.set_free(5_000);
        map.set_free(5_002);
        assert_eq!(map.take_exact(2), None);
        assert_eq!(take_run(&mut map, 5_001, 8), Some((5_002, 1)));
        assert_eq!(take_run(&mut map, 0, 8), Some((5_000, 1)));
    }
}
