//! The hash table of the index on (parent, name): open addressing over words of 64 bits, half the hash and the slot.
//!
//! A lookup costs one cache line here and then the inode itself, whose name decides: an entry with another hash is passed by
//! without touching its inode, and growing and removing never touch inodes at all. (A general hash table keeps its control
//! bytes and its entries in two places, and would have to hash every name again to grow.) Removal moves the entries behind
//! back into the gap, so there are no tombstones, and lookups stay short in volumes of any age.

use crate::huge::HugePages;
use crate::inode::Slot;
use allocator_api2::vec::Vec as HugeVec;

/// Entries with a slot; slot 0 is never given out, so 0 is a free place.
pub(crate) struct NameTable {
    /// Hash in the upper half, slot in the lower. The length is a power of two, or 0.
    entries: HugeVec<u64, HugePages>,
    len: usize,
}

const FREE: u64 = 0;
const SMALLEST: usize = 64;

fn slot(entry: u64) -> Slot {
    entry as Slot
}
fn hash(entry: u64) -> u32 {
    (entry >> 32) as u32
}
/// Places needed for `n` entries: at most three quarters are taken, above which runs get long.
fn places(n: usize) -> usize {
    (n + n / 3 + 1).next_power_of_two().max(SMALLEST)
}

impl Default for NameTable {
    fn default() -> Self {
        NameTable { entries: HugeVec::new_in(HugePages), len: 0 }
    }
}

impl NameTable {
    /// Makes room for `n` more entries.
    pub fn reserve(&mut self, n: usize) {
        let places = places(self.len + n);
        if places <= self.entries.len() {
            return;
        }
        let mut entries = HugeVec::with_capacity_in(places, HugePages);
        entries.resize(places, FREE);
        let old = std::mem::replace(&mut self.entries, entries);
        for entry in old.into_iter().filter(|&e| e != FREE) {
            self.put(entry);
        }
    }

    /// Adds an entry; whether its name is there already was looked at before.
    pub fn insert(&mut self, hash: u32, slot: Slot) {
        self.reserve(1);
        self.len += 1;
        self.put((hash as u64) << 32 | slot as u64);
    }

    fn mask(&self) -> usize {
        self.entries.len() - 1
    }

    fn put(&mut self, entry: u64) {
        let mask = self.mask();
        let mut at = hash(entry) as usize & mask;
        while self.entries[at] != FREE {
            at = (at + 1) & mask;
        }
        self.entries[at] = entry;
    }

    /// The place of the entry with this hash for whose slot `is` holds.
    fn position(&self, wanted: u32, mut is: impl FnMut(Slot) -> bool) -> Option<usize> {
        let mask = self.entries.len().checked_sub(1)?;
        let mut at = wanted as usize & mask;
        loop {
            match self.entries[at] {
                FREE => return None,
                entry if hash(entry) == wanted && is(slot(entry)) => return Some(at),
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// The slot with this hash for which `is` holds.
    pub fn find(&self, hash: u32, is: impl FnMut(Slot) -> bool) -> Option<Slot> {
        self.position(hash, is).map(|at| slot(self.entries[at]))
    }

    /// The entry of `from` becomes that of `to`, with the same name.
    pub fn rebind(&mut self, hash: u32, from: Slot, to: Slot) {
        if let Some(at) = self.position(hash, |s| s == from) {
            self.entries[at] = (hash as u64) << 32 | to as u64;
        }
    }

    /// Takes an entry out.
    pub fn remove(&mut self, wanted: u32, slot: Slot) {
        let Some(mut gap) = self.position(wanted, |s| s == slot) else { return };
        let mask = self.mask();
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let entry = self.entries[at];
            if entry == FREE {
                break;
            }
            // It may stand in the gap when that is not before the place where its search begins.
            let begin = hash(entry) as usize & mask;
            if at.wrapping_sub(begin) & mask >= at.wrapping_sub(gap) & mask {
                self.entries[gap] = entry;
                gap = at;
            }
        }
        self.entries[gap] = FREE;
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    use std::collections::HashMap;

    /// Against a map, with hashes so few that runs are long and wrap around.
    #[test]
    fn like_a_map() {
        for (seed, hashes) in [(1, 5), (2, 60), (3, 1000), (4, u32::MAX)] {
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut table = NameTable::default();
            let mut map: HashMap<Slot, u32> = HashMap::new();
            assert_eq!(table.find(1, |_| true), None);
            for i in 1..4000u32 {
                let hash = rng.random_range(0..hashes).wrapping_sub(3);
                table.insert(hash, i);
                map.insert(i, hash);
                if rng.random_bool(0.6) {
                    let gone = rng.random_range(1..=i);
                    table.remove(map.remove(&gone).unwrap_or(7), gone);
                }
                let (from, to) = (rng.random_range(1..=i), i + 1_000_000);
                if let Some(hash) = map.remove(&from) {
                    table.rebind(hash, from, to);
                    map.insert(to, hash);
                }
                let any = rng.random_range(1..=i);
                let hash = map.get(&any).copied().unwrap_or(1);
                assert_eq!(table.find(hash, |s| s == any), map.contains_key(&any).then_some(any));
            }
            assert_eq!(table.len, map.len());
            for (&slot, &hash) in &map {
                assert_eq!(table.find(hash, |s| s == slot), Some(slot));
            }
            let taken = table.entries.iter().filter(|&&e| e != FREE).count();
            assert_eq!(taken, map.len());
        }
    }
}
