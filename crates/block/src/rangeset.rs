//! A set of integers kept as ranges: which pages of a file are dirty.

use std::collections::BTreeMap;

/// Disjoint, non-adjacent half-open ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    ranges: BTreeMap<u64, u64>,
    count: u64,
}

impl RangeSet {
    /// Number of integers in the set.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All ranges in order.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&s, &e)| (s, e))
    }

    /// The range that `at` is in.
    pub fn around(&self, at: u64) -> Option<(u64, u64)> {
        self.ranges.range(..=at).next_back().map(|(&s, &e)| (s, e)).filter(|&(_, e)| at < e)
    }

    /// The first range that ends behind `at`.
    pub fn from(&self, at: u64) -> Option<(u64, u64)> {
        self.around(at).or_else(|| self.ranges.range(at..).next().map(|(&s, &e)| (s, e)))
    }

    /// Adds `start..end`; returns how many integers were new.
    pub fn insert(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let (mut s, mut e) = (start, end);
        let mut covered = 0;
        // Ranges that overlap or touch: all that begin at or before `end` and end at or behind `start`.
        while let Some((&rs, &re)) = self.ranges.range(..=e).next_back() {
            if re < s {
                break;
            }
            covered += re.min(end).saturating_sub(rs.max(start));
            s = s.min(rs);
            e = e.max(re);
            self.ranges.remove(&rs);
        }
        self.ranges.insert(s, e);
        let new = end - start - covered;
        self.count += new;
        new
    }

    /// Removes `start..end`; returns how many integers were in the set.
    pub fn remove(&mut self, start: u64, end: u64) -> u64 {
        let mut removed = 0;
        while let Some((&rs, &re)) = self.ranges.range(..end).next_back() {
            if re <= start || start >= end {
                break;
            }
            self.ranges.remove(&rs);
            if rs < start {
                self.ranges.insert(rs, start);
            }
            if re > end {
                self.ranges.insert(end, re);
            }
            removed += re.min(end) - rs.max(start);
        }
        self.count -= removed;
        if self.count == 0 {
            // An empty map may keep a node, and most files are never dirty again.
            self.ranges = BTreeMap::new();
        }
        removed
    }

    /// The ranges within `start..end`, cut to it.
    pub fn within(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let first = self.ranges.range(..=start).next_back().map_or(start, |(&s, _)| s);
        self.ranges
            .range(first..end.max(first))
            .map(|(&s, &e)| (s.max(start), e.min(end)))
            .filter(|(s, e)| s < e)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn like_a_set_of_integers(ops in prop::collection::vec((any::<bool>(), 0u64..60, 0u64..20), 1..60)) {
            let mut ranges = RangeSet::default();
            let mut naive = BTreeSet::new();
            for (add, start, len) in ops {
                let changed = (start..start + len).filter(|&i| if add { naive.insert(i) } else { naive.remove(&i) }).count();
                let reported = if add { ranges.insert(start, start + len) } else { ranges.remove(start, start + len) };
                prop_assert_eq!(reported, changed as u64);
                let found: Vec<u64> = ranges.iter().flat_map(|(s, e)| s..e).collect();
                prop_assert_eq!(&found, &naive.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(ranges.count() as usize, naive.len());
                let ends: Vec<_> = ranges.iter().collect();
                prop_assert!(ends.windows(2).all(|w| w[0].1 < w[1].0), "ranges touch");
                let around = ends.iter().copied().find(|r| (r.0..r.1).contains(&20));
                prop_assert_eq!(ranges.around(20), around);
                prop_assert_eq!(ranges.from(20), ends.iter().copied().find(|r| r.1 > 20));
                let part: Vec<u64> = ranges.within(10, 30).iter().flat_map(|&(s, e)| s..e).collect();
                prop_assert_eq!(part, naive.range(10..30).copied().collect::<Vec<_>>());
            }
        }
    }
}
