//! Numbers of leases by inode. Inodes that are made one after the other have numbers that follow each other, so they stand together: what is next is in the
//! processor's cache already, where a table of all of them would be somewhere else each time.

use foldhash::fast::FixedState;
use fs::Ino;
use std::collections::HashMap;

/// Inodes in a group.
const GROUP: u64 = 64;

struct Group {
    /// Of those that have a number.
    count: usize,
    /// 0: it has none.
    numbers: [u64; GROUP as usize],
}

/// See the module. Numbers are not 0.
#[derive(Default)]
pub(super) struct Numbers(HashMap<u64, Box<Group>, FixedState>);

fn place(ino: Ino) -> (u64, usize) {
    (ino.0 / GROUP, (ino.0 % GROUP) as usize)
}

impl Numbers {
    pub fn get(&self, ino: Ino) -> Option<u64> {
        let (group, at) = place(ino);
        Some(self.0.get(&group)?.numbers[at]).filter(|&number| number != 0)
    }

    pub fn insert(&mut self, ino: Ino, number: u64) {
        debug_assert_ne!(number, 0, "that is none");
        let (group, at) = place(ino);
        let group = self.0.entry(group).or_insert_with(|| Box::new(Group { count: 0, numbers: [0; _] }));
        group.count += (group.numbers[at] == 0) as usize;
        group.numbers[at] = number;
    }

    pub fn remove(&mut self, ino: Ino) {
        let (number, at) = place(ino);
        let Some(group) = self.0.get_mut(&number) else { return };
        group.count -= (std::mem::take(&mut group.numbers[at]) != 0) as usize;
        if group.count == 0 {
            self.0.remove(&number);
        }
    }

    /// Takes this number away from all that have it.
    pub fn remove_all(&mut self, number: u64) {
        self.0.retain(|_, group| {
            for has in group.numbers.iter_mut().filter(|has| **has == number) {
                *has = 0;
                group.count -= 1;
            }
            group.count > 0
        });
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_map() {
        let (mut numbers, mut naive) = (Numbers::default(), HashMap::<Ino, u64>::new());
        let mut state = 7u64;
        let mut random = move |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        for round in 0..20_000 {
            let (ino, number) = (Ino(random(300) * random(2) + random(200)), random(5) + 1);
            match random(if round % 5000 == 4999 { 8 } else { 5 }) {
                0..3 => {
                    numbers.insert(ino, number);
                    naive.insert(ino, number);
                }
                3..5 => {
                    numbers.remove(ino);
                    naive.remove(&ino);
                }
                5..7 => {
                    numbers.remove_all(number);
                    naive.retain(|_, has| *has != number);
                }
                _ => {
                    numbers.clear();
                    naive.clear();
                }
            }
            assert_eq!(numbers.get(ino), naive.get(&ino).copied());
        }
        (0..600).map(Ino).for_each(|ino| assert_eq!(numbers.get(ino), naive.get(&ino).copied()));
        (1..=5).for_each(|number| numbers.remove_all(number));
        assert!(numbers.0.is_empty(), "groups of none go");
    }
}
