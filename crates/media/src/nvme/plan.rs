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
