//! Addresses that the device uses (I/O virtual addresses): which are free, given what the IOMMU can translate.

/// Alignment of what is given out: pieces of 2 MiB can be translated by one entry.
const ALIGN: u64 = 2 << 20;

/// Ranges that the IOMMU translates where the kernel does not say: those that all of them do, without low memory and the window of
/// message signalled interrupts below 4 GiB.
const USUAL: (u64, u64) = (4 << 30, (1 << 39) - 1);

/// Free ranges, ascending, not touching each other.
#[derive(Debug)]
pub(super) struct Iova {
    /// First and last address.
    free: Vec<(u64, u64)>,
}

impl Iova {
    /// `ranges` are first and last addresses, as the kernel tells them; empty if it does not.
    pub(super) fn new(ranges: &[(u64, u64)]) -> Iova {
        let ranges = if ranges.is_empty() { &[USUAL][..] } else { ranges };
        let mut iova = Iova { free: Vec::new() };
        for &(first, last) in ranges {
            // Address 0 looks like none.
            let first = first.max(ALIGN);
            if first <= last {
                iova.insert(first, last);
            }
        }
        iova
    }

    /// Takes `len` bytes; `None` when there is no such room.
    pub(super) fn take(&mut self, len: u64) -> Option<u64> {
        let fits = |&(first, last): &(u64, u64)| {
            let start = first.checked_next_multiple_of(ALIGN)?;
            let end = start.checked_add(len - 1)?;
            (end <= last).then_some((start, end))
        };
        let (index, (start, end)) = self.free.iter().enumerate().find_map(|(i, r)| Some((i, fits(r)?)))?;
        let (first, last) = self.free.remove(index);
        if end < last {
            self.free.insert(index, (end + 1, last));
        }
        if first < start {
            self.free.insert(index, (first, start - 1));
        }
        Some(start)
    }

    /// Gives back what was taken.
    pub(super) fn give_back(&mut self, start: u64, len: u64) {
        self.insert(start, start + (len - 1));
    }

    fn insert(&mut self, first: u64, last: u64) {
        let index = self.free.partition_point(|r| r.0 < first);
        self.free.insert(index, (first, last));
        if index + 1 < self.free.len() && last.checked_add(1) == Some(self.free[index + 1].0) {
            self.free[index].1 = self.free.remove(index + 1).1;
        }
        if index > 0 && self.free[index - 1].1.checked_add(1) == Some(first) {
            self.free[index - 1].1 = self.free.remove(index).1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_lies_in_the_ranges() {
        let window = (0xFEE0_0000, 0xFEEF_FFFF);
        let mut iova = Iova::new(&[(0, window.0 - 1), (window.1 + 1, (1 << 39) - 1)]);
        let before = format!("{iova:?}");
        let mut taken = Vec::new();
        while let Some(start) = iova.take(1 << 30) {
            let end = start + (1 << 30) - 1;
            assert!(start > 0 && start % ALIGN == 0 && end < 1 << 39);
            assert!(end < window.0 || start > window.1, "{start:#x} reaches into the window");
            assert!(taken.iter().all(|t: &u64| t.abs_diff(start) >= 1 << 30));
            taken.push(start);
        }
        assert!(taken.len() > 500);
        // In any order, with holes between.
        for i in (0..taken.len()).step_by(2).chain((1..taken.len()).step_by(2)) {
            iova.give_back(taken[i], 1 << 30);
        }
        assert_eq!(format!("{iova:?}"), before);
    }

    #[test]
    fn odd_sizes_and_ends() {
        let mut iova = Iova::new(&[(ALIGN, ALIGN + 8191), (u64::MAX - ALIGN, u64::MAX)]);
        assert_eq!(iova.take(4096), Some(ALIGN));
        assert_eq!(iova.take(4096), Some(u64::MAX - ALIGN + 1), "aligned");
        iova.give_back(ALIGN, 4096);
        assert_eq!(iova.take(8192), Some(ALIGN));
        assert_eq!(iova.take(ALIGN), None);
        assert!(Iova::new(&[]).take(1 << 30).is_some_and(|at| at >= 4 << 30));
    }
}
