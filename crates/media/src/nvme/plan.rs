//! Cuts requests into commands.
//!
//! A command ends where the controller's limit on transfers does (MDTS), where a list of memory would be too long, and, with PRPs
//! alone, where memory does not continue at a page. A write is cut at atomic units only, so that what
//! [`crate::Geometry::atomic_unit`] promises holds for its parts; where memory changes in the middle of a unit, that unit goes
//! through a bounce page. Reads promise nothing of the kind and are cut anywhere.

use super::pointer::{SEGMENTS_MAX, Segment, Segments, prp_continues};

/// What the cutting depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Most bytes of a transfer: a multiple of pages.
    pub(super) bytes_max: u64,
    /// Bytes of an atomic unit, at most a page.
    pub(super) unit: u64,
    /// Memory may continue anywhere.
    pub(super) sgl: bool,
}

/// One command's share of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Bytes.
    pub(super) len: u64,
    /// By way of the bounce page.
    pub(super) bounced: bool,
}

/// Memory of a transfer from byte `from` on, up to `len` bytes of it.
pub(super) fn slice(memory: impl Iterator<Item = Segment>, from: u64, len: u64) -> Segments {
    let (mut skip, mut left) = (from, len);
    let mut out = Segments::new();
    for segment in memory {
        if left == 0 {
            break;
        }
        let skipped = skip.min(segment.len);
        skip -= skipped;
        let n = (segment.len - skipped).min(left);
        if n > 0 {
            out.push(Segment { device: segment.device + skipped, len: n });
            left -= n;
        }
    }
    out
}

/// The next share of a transfer to or from byte `at` of the device, whose memory, as far as it was not dealt with, is `rest`.
pub(super) fn next(cut: &Cut, at: u64, rest: &[Segment], write: bool) -> Share {
    let total: u64 = rest.iter().map(|s| s.len).sum();
    let mut len = 0;
    for (i, segment) in rest.iter().enumerate() {
        let fits = match i.checked_sub(1).map(|before| rest[before]) {
            None => true,
            Some(_) if cut.sgl => i < SEGMENTS_MAX,
            Some(before) => prp_continues(before.device + before.len, segment.device),
        };
        if !fits || len >= cut.bytes_max {
            break;
        }
        len += segment.len;
    }
    len = len.min(cut.bytes_max);
    if !write || len == total {
        return Share { len, bounced: false };
    }
    // The end of the last unit that is written as a whole.
    let end = (at + len) / cut.unit * cut.unit;
    if end > at {
        return Share { len: end - at, bounced: false };
    }
    let unit_end = (at / cut.unit + 1) * cut.unit;
    Share { len: (unit_end - at).min(total), bounced: true }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::pointer::is_prp;

    fn segment(device: u64, len: u64) -> Segment {
        Segment { device, len }
    }

    #[test]
    fn whole_pages_go_in_one_command() {
        let cut = Cut { bytes_max: 16384, unit: 4096, sgl: false };
        let pages = [segment(0x10000, 4096), segment(0x30000, 8192)];
        assert_eq!(next(&cut, 0, &pages, true), Share { len: 12288, bounced: false });
        // Into the first page, out of the last one.
        let ragged = [segment(0x10E00, 512), segment(0x30000, 4096), segment(0x50000, 512)];
        assert_eq!(next(&cut, 512, &ragged, true), Share { len: 5120, bounced: false });
        let long = [segment(0, 1 << 20)];
        assert_eq!(next(&cut, 0, &long, true), Share { len: 16384, bounced: false });
        assert_eq!(
            next(&cut, 512, &long, true),
            Share { len: 16384 - 512, bounced: false },
            "ends at a unit"
        );
        assert_eq!(next(&cut, 512, &long, false), Share { len: 16384, bounced: false });
    }

    #[test]
    fn units_are_not_torn() {
        let cut = Cut { bytes_max: 16384, unit: 4096, sgl: false };
        let split = [segment(0x10000, 512), segment(0x20000, 8192)];
        assert_eq!(next(&cut, 0, &split, true), Share { len: 4096, bounced: true });
        assert_eq!(next(&cut, 0, &split, false), Share { len: 512, bounced: false });
        let rest = slice(split.into_iter(), 4096, 99999);
        assert_eq!(&rest[..], [segment(0x20E00, 4608)]);
        assert_eq!(next(&cut, 4096, &rest, true), Share { len: 4608, bounced: false });
        let sgl = Cut { sgl: true, ..cut };
        assert_eq!(next(&sgl, 0, &split, true), Share { len: 8704, bounced: false });
        // Memory that changes between units needs no bounce.
        let between = [segment(0x10E00, 4096), segment(0x20200, 4096)];
        assert_eq!(next(&cut, 0, &between, true), Share { len: 4096, bounced: false });
    }

    #[test]
    fn random_transfers_are_cut_under_the_rules() {
        let mut x = 1u64;
        let mut below = |n: u64| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33) % n
        };
        let (mut bounced, mut cuts) = (0, 0);
        for _ in 0..20_000 {
            let unit = 512 << below(4);
            let cut = Cut { bytes_max: 4096 << below(4), unit, sgl: below(3) == 0 };
            let (at, write) = (below(64) * 512, below(2) == 0);
            let memory: Vec<Segment> = (0..1 + below(12))
                .map(|i| {
                    segment(
                        (i + 1) << 24 | if below(2) == 0 { 0 } else { below(8) * 512 },
                        (1 + below(24)) * 512,
                    )
                })
                .collect();
            let total: u64 = memory.iter().map(|s| s.len).sum();
            let mut done = 0;
            while done < total {
                let rest = slice(memory.iter().copied(), done, total);
                assert_eq!(rest.iter().map(|s| s.len).sum::<u64>(), total - done);
                let share = next(&cut, at + done, &rest, write);
                assert!(share.len > 0 && share.len <= cut.bytes_max && share.len.is_multiple_of(512));
                let end = done + share.len;
                if write && end < total {
                    assert_eq!((at + end) % unit, 0, "cut within an atomic unit");
                }
                if share.bounced {
                    assert!(write && share.len <= 4096);
                    bounced += 1;
                } else {
                    let part = slice(memory.iter().copied(), done, share.len);
                    assert!(cut.sgl && part.len() <= SEGMENTS_MAX || is_prp(&part));
                }
                done = end;
                cuts += 1;
            }
            assert_eq!(done, total);
        }
        assert!(bounced > 1000 && cuts > 40_000, "{bounced} {cuts}");
    }
}
