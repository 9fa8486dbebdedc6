//! Checksums of the blocks that an epoch wrote, to be covered by its record.

use crate::space::Run;
use std::collections::BTreeMap;

/// Longest run that is kept together, so that taking a block out of its middle stays cheap.
const RUN_MAX: usize = 1024;

/// Checksums by block, in runs of neighbours.
#[derive(Debug, Default)]
pub(crate) struct Covers {
    /// By first block; runs do not overlap.
    runs: BTreeMap<u64, Vec<u32>>,
}

impl Covers {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub fn contains(&self, block: u64) -> bool {
        self.runs.range(..=block).next_back().is_some_and(|(first, sums)| block < first + sums.len() as u64)
    }

    /// Sets the checksums of the blocks from `first` on.
    pub fn insert(&mut self, first: u64, sums: &[u32]) {
        self.remove(first, first + sums.len() as u64);
        let before = self.runs.range_mut(..first).next_back();
        match before.filter(|(b, old)| *b + old.len() as u64 == first && old.len() + sums.len() <= RUN_MAX) {
            Some((_, old)) => old.extend_from_slice(sums),
            None => drop(self.runs.insert(first, sums.to_vec())),
        }
    }

    /// Forgets the blocks of `run`.
    pub fn forget(&mut self, run: Run) {
        self.remove(run.block.0, run.block.0 + run.count as u64);
    }

    fn remove(&mut self, start: u64, end: u64) {
        while let Some((&first, sums)) = self.runs.range_mut(..end).next_back() {
            if first + sums.len() as u64 <= start {
                return;
            }
            let behind = sums.split_off(((end - first) as usize).min(sums.len()));
            match start.checked_sub(first) {
                Some(keep) if keep > 0 => sums.truncate(keep as usize),
                _ => drop(self.runs.remove(&first)),
            }
            if !behind.is_empty() {
                self.runs.insert(end, behind);
            }
        }
    }

    /// All runs in order, those that touch as one.
    pub fn into_runs(self) -> Vec<(u64, Vec<u32>)> {
        let mut all: Vec<(u64, Vec<u32>)> = Vec::with_capacity(self.runs.len());
        for (first, sums) in self.runs {
            match all.last_mut() {
                Some((f, s)) if *f + s.len() as u64 == first => s.extend_from_slice(&sums),
                _ => all.push((first, sums)),
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::BlockNo;
    use proptest::prelude::*;

    #[test]
    fn runs_meet_and_part() {
        let mut covers = Covers::default();
        covers.insert(10, &[1, 2, 3]);
        covers.insert(13, &[4]);
        covers.insert(11, &[9]);
        covers.forget(Run { block: BlockNo(12), count: 1 });
        assert!(covers.contains(11) && !covers.contains(12) && covers.contains(13) && !covers.contains(14));
        assert_eq!(covers.into_runs(), [(10, vec![1, 9]), (13, vec![4])]);
    }

    proptest! {
        #[test]
        fn same_as_a_plain_map(ops in prop::collection::vec((any::<bool>(), 0u64..400, 1u64..40), 1..200)) {
            let (mut covers, mut plain) = (Covers::default(), BTreeMap::new());
            for (i, (insert, first, n)) in ops.into_iter().enumerate() {
                if insert {
                    covers.insert(first, &vec![i as u32; n as usize]);
                    plain.extend((first..first + n).map(|b| (b, i as u32)));
                } else {
                    covers.forget(Run { block: BlockNo(first), count: n as u32 });
                    plain.retain(|b, _| !(first..first + n).contains(b));
                }
                (0..450).for_each(|b| assert_eq!(covers.contains(b), plain.contains_key(&b)));
            }
            let runs = covers.into_runs();
            let flat: Vec<(u64, u32)> =
                runs.iter().flat_map(|(f, s)| s.iter().enumerate().map(move |(i, &c)| (f + i as u64, c))).collect();
            prop_assert_eq!(flat, plain.into_iter().collect::<Vec<_>>());
            prop_assert!(runs.windows(2).all(|w| w[0].0 + (w[0].1.len() as u64) < w[1].0));
        }
    }
}
