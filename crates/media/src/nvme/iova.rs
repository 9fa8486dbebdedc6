//! Addresses that the device uses (I/O virtual addresses): which are free, given what the IOMMU can translate.
//!
//! Where a bridge on the way sends what is addressed to a register of another device to that device (no ACS, or not on), memory at such an address would be
//! missed, and the other device hit. So the places of registers are left out, as far as they are known; and those below 4 GiB, where most of
//! them are and others may appear, are taken when there are no more above.

/// Alignment of what is given out: pieces of 2 MiB can be translated by one entry.
const ALIGN: u64 = 2 << 20;

/// Ranges that the IOMMU translates where the kernel does not say: those that all of them do, without low memory and the window of
/// message signalled interrupts below 4 GiB.
const USUAL: (u64, u64) = (4 << 30, (1 << 39) - 1);

/// Addresses from here on are taken first.
const HIGH: u64 = 4 << 30;

/// Free ranges, ascending, not touching each other.
#[derive(Debug)]
pub(super) struct Iova {
    /// First and last address.
    free: Vec<(u64, u64)>,
}

impl Iova {
    /// `ranges` are first and last addresses, as the kernel tells them; empty if it does not. `windows` of the same kind are left out of them.
    pub(super) fn new(ranges: &[(u64, u64)], windows: &[(u64, u64)]) -> Iova {
        let ranges = if ranges.is_empty() { &[USUAL][..] } else { ranges };
        let mut windows = windows.to_vec();
        windows.sort_unstable();
        let mut iova = Iova { free: Vec::new() };
        for &(first, last) in ranges {
            // Address 0 looks like none.
            let mut first = first.max(ALIGN);
            for &(from, to) in windows.iter().filter(|w| w.0 <= w.1 && w.0 <= last) {
                if first < from {
                    iova.insert(first, from - 1);
                }
                // What ends with the last address of all leaves nothing.
                first = first.max(to.saturating_add(1));
            }
            let is_over = windows.iter().any(|w| w.0 <= last && w.1 == u64::MAX);
            if first <= last && !is_over {
                iova.insert(first, last);
            }
        }
        iova
    }

    /// Takes `len` bytes; `None` when there is no such room.
    pub(super) fn take(&mut self, len: u64) -> Option<u64> {
        self.take_from(HIGH, len).or_else(|| self.take_from(0, len))
    }

    /// Takes `len` bytes from `floor` on.
    fn take_from(&mut self, floor: u64, len: u64) -> Option<u64> {
        let fits = |&(first, last): &(u64, u64)| {
            let start = first.max(floor).checked_next_multiple_of(ALIGN)?;
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

/// First and last addresses of the memory of all PCI devices, windows of bridges included, as sysfs tells them.
pub(super) fn windows() -> Vec<(u64, u64)> {
    let devices = std::fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let texts = devices.filter_map(|d| std::fs::read_to_string(d.path().join("resource")).ok());
    texts.flat_map(|text| parse_windows(&text)).collect()
}

/// Lines of a file `resource`: first address, last address, flags; zeros where there is nothing.
fn parse_windows(text: &str) -> Vec<(u64, u64)> {
    /// `IORESOURCE_MEM` of linux/ioport.h.
    const MEMORY: u64 = 0x200;
    let window = |line: &str| {
        let mut words = line.split_whitespace();
        let mut number = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
        let (first, last, flags) = (number()?, number()?, number()?);
        (flags & MEMORY != 0 && first <= last && last > 0).then_some((first, last))
    };
    text.lines().filter_map(window).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_addresses_are_the_last() {
        let mut iova = Iova::new(&[(0, (6 << 30) - 1)], &[]);
        let taken: Vec<u64> = std::iter::from_fn(|| iova.take(1 << 30)).collect();
        assert_eq!(taken, [4 << 30, 5 << 30, ALIGN, ALIGN + (1 << 30), ALIGN + (2 << 30)]);
        // One that can do no others.
        assert_eq!(Iova::new(&[(0, u32::MAX.into())], &[]).take(4096), Some(ALIGN));
    }

    #[test]
    fn registers_of_devices_are_left_out() {
        let text = "0x00000000fe000000 0x00000000fe003fff 0x0000000000040200\n\
                    0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                    0x000000000000c000 0x000000000000c0ff 0x0000000000040101\n\
                    0x0000000180000000 0x00000001ffffffff 0x000000000014220c\nnonsense\n0x1 0x2\n";
        let windows = parse_windows(text);
        assert_eq!(windows, [(0xFE00_0000, 0xFE00_3FFF), (0x1_8000_0000, 0x1_FFFF_FFFF)]);
        let overlapping = [windows[1], windows[0], (0x1_C000_0000, 0x2_3FFF_FFFF), (0, 0xFFFF), (9, 8)];
        let mut iova = Iova::new(&[(0, (10 << 30) - 1)], &overlapping);
        let taken: Vec<u64> = std::iter::from_fn(|| iova.take(ALIGN)).collect();
        assert_eq!(taken.first(), Some(&(4 << 30)));
        for (from, to) in overlapping {
            assert!(
                from > to || taken.iter().all(|t| *t > to || t + ALIGN - 1 < from),
                "{from:#x} to {to:#x}"
            );
        }
        // 6 to 9 GiB are no room, nor is the piece at 0xFE000000; 0 is never taken.
        assert_eq!(taken.len() as u64 * ALIGN, (10 << 30) - (3 << 30) - 2 * ALIGN);
        assert_eq!(Iova::new(&[(0, u64::MAX)], &[(1 << 32, u64::MAX)]).take(1 << 32), None);
        assert_eq!(Iova::new(&[(0, u64::MAX)], &[(0, u64::MAX)]).take(4096), None);
    }

    #[test]
    fn takes_what_lies_in_the_ranges() {
        let window = (0xFEE0_0000, 0xFEEF_FFFF);
        let mut iova = Iova::new(&[(0, window.0 - 1), (window.1 + 1, (1 << 39) - 1)], &[]);
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
        let mut iova = Iova::new(&[(ALIGN, ALIGN + 8191), (u64::MAX - ALIGN, u64::MAX)], &[]);
        assert_eq!(iova.take(4096), Some(u64::MAX - ALIGN + 1), "aligned");
        assert_eq!(iova.take(4096), Some(ALIGN));
        iova.give_back(ALIGN, 4096);
        assert_eq!(iova.take(8192), Some(ALIGN));
        assert_eq!(iova.take(ALIGN), None);
        assert!(Iova::new(&[], &[]).take(1 << 30).is_some_and(|at| at >= 4 << 30));
    }
}
