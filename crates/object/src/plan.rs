//! How an object is made of its parts.
//!
//! A stream of new bytes is cut where [`part_size`] says. A change of an old object is cut by [`plan`]: what is untouched is copied within the
//! store, and what is new is uploaded together with as much of its neighbourhood as makes a part of the least size.
//!
//! Pure functions, tested below with random changes.

use crate::store::Abilities;
use std::ops::Range;

/// Size of the first parts, where the store allows it, bytes (the paper's).
pub const PART_SIZE: u64 = 4 << 20;
/// After so many parts the size of a part doubles.
const PARTS_OF_A_SIZE: u64 = 960;
/// Largest piece that is copied with one request where many would do, bytes: stores copy pieces side by side.
const COPY_PIECE: u64 = 64 << 20;

/// Size of part `number` (from 1) of a stream whose length is not known, bytes: `first`, doubled after every 960 parts. With 5 MiB and 10,000
/// parts that suffices for the largest object of S3 (5 TiB); 32 GiB are reached with parts of 20 MiB.
pub fn part_size(number: u16, first: u64, abilities: &Abilities) -> u64 {
    let doublings = (u64::from(number.max(1)) - 1) / PARTS_OF_A_SIZE;
    (first.max(abilities.part_min) << doublings.min(20)).min(abilities.part_max)
}

/// What a part is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The same range of the old object, copied within the store.
    Copied,
    /// Bytes that are sent: new ones, and those of the old object around them.
    Uploaded,
}

/// A part to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its bytes in the file.
    pub range: Range<u64>,
    /// Where they come from.
    pub source: Source,
}

/// Cuts the bytes from `from` (where `used` parts end) up to `size`. `old`: which ranges are as in the old object, in order. `first`: the size
/// of parts that are uploaded, unless there would be too many. `None` when the store's limits do not allow such an object.
pub fn plan(
    (from, used): (u64, u16),
    size: u64,
    old: &[Range<u64>],
    first: u64,
    abilities: &Abilities,
) -> Option<Vec<Piece>> {
    let most = usize::from(abilities.parts_most.saturating_sub(used));
    // Small untouched ranges between many changes cost parts; the coarser the cut, the fewer of them.
    for coarser in 0..24 {
        let part = (first << coarser).clamp(abilities.part_min, abilities.part_max);
        let least = (abilities.part_min << coarser).clamp(abilities.part_min, abilities.part_max);
        let pieces = cut(from, size, if abilities.part_copy { old } else { &[] }, part, least, abilities);
        if pieces.len() <= most {
            return Some(pieces);
        }
        if part == abilities.part_max {
            break;
        }
    }
    None
}

/// Cuts the first `end` bytes, which are as in the old object, behind which more parts are to come: these need numbers, and the larger those are the more
/// memory. `None` as of [`plan`].
pub fn copies(end: u64, first: u64, abilities: &Abilities) -> Option<Vec<Piece>> {
    let few = first.max(end.div_ceil(PARTS_OF_A_SIZE));
    plan((0, 0), end, std::slice::from_ref(&(0..end)), few, abilities)
}

/// `least`: untouched ranges below it are uploaded with their neighbours.
fn cut(from: u64, size: u64, old: &[Range<u64>], part: u64, least: u64, abilities: &Abilities) -> Vec<Piece> {
    let (min, max) = (abilities.part_min, abilities.part_max);
    let mut pieces = Vec::new();
    let mut at = from;
    // The first untouched range that ends behind `at`.
    let mut next = 0;
    while at < size {
        while next < old.len() && old[next].end <= at {
            next += 1;
        }
        let run = old.get(next).map(|r| r.start.max(at)..r.end.min(size));
        match run {
            Some(run) if run.start == at && (run.end - at >= least || run.end == size) => {
                let copy = COPY_PIECE.max(part).clamp(min, max);
                let len = run.end - at;
                // The last piece of a run takes what would be too little for one of its own.
                let take = if len <= copy || (len < copy + min && len <= max) { len } else { copy };
                let take = if len > take && len - take < min { len - min } else { take };
                pieces.push(Piece { range: at..at + take, source: Source::Copied });
                at += take;
            }
            _ => {
                // Up to the next range that is worth a copy, at least as much as a part must have, at most a part.
                let worth = old[next..].iter().find(|r| {
                    let start = r.start.max(at + min);
                    start < r.end.min(size) && (r.end.min(size) - start >= least || r.end >= size)
                });
                let stop = worth.map_or(size, |r| r.start.max(at + min));
                let end = stop.min(at + part).min(size);
                pieces.push(Piece { range: at..end, source: Source::Uploaded });
                at = end;
            }
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn abilities(part_min: u64, part_max: u64, parts_most: u16) -> Abilities {
        Abilities {
            part_min,
            part_max,
            parts_most,
            single_max: part_max,
            conditional: true,
            conditional_delete: true,
            part_copy: true,
            rename: false,
        }
    }

    #[test]
    fn ten_thousand_parts_suffice_for_the_largest_object() {
        let s3 = abilities(5 << 20, 5 << 30, 10_000);
        let total: u64 = (1..=10_000).map(|n| part_size(n, PART_SIZE, &s3)).sum();
        assert!(total >= 5 << 40, "{total}");
        assert_eq!((part_size(1, PART_SIZE, &s3), part_size(961, 5 << 20, &s3)), (5 << 20, 10 << 20));
        assert_eq!(part_size(1, PART_SIZE, &abilities(1, 5 << 30, 10_000)), 4 << 20);
    }

    #[test]
    fn an_append_copies_what_was_there() {
        let s3 = abilities(5 << 20, 5 << 30, 10_000);
        let (old, size) = (1 << 30, (1 << 30) + (1 << 20));
        let pieces = plan((0, 0), size, std::slice::from_ref(&(0..old)), 5 << 20, &s3).unwrap();
        assert_eq!(pieces.len(), 17);
        assert_eq!(pieces.last().unwrap(), &Piece { range: old..size, source: Source::Uploaded });
        // A change of a byte in the middle uploads one least part, or two around a border.
        let (a, b) = (0..(1 << 29), (1 << 29) + 1..old);
        let pieces = plan((0, 0), old, &[a, b], 5 << 20, &s3).unwrap();
        let sent: u64 =
            pieces.iter().filter(|p| p.source == Source::Uploaded).map(|p| p.range.end - p.range.start).sum();
        assert_eq!(sent, 5 << 20);
    }

    #[test]
    fn what_is_copied_ahead_leaves_numbers_for_what_follows() {
        let s3 = abilities(5 << 20, 5 << 30, 10_000);
        for gib in [1, 60, 400, 625, 4096] {
            let old = gib << 30;
            let pieces = copies(old, 5 << 20, &s3).unwrap();
            assert!(pieces.iter().all(|piece| piece.source == Source::Copied));
            assert!(pieces.len() <= 1000, "{gib} GiB: {} pieces", pieces.len());
            assert!(part_size(pieces.len() as u16 + 1, 5 << 20, &s3) <= 10 << 20, "{gib} GiB");
        }
    }

    proptest! {
        #[test]
        fn parts_cover_the_object_within_the_limits(
            cuts in proptest::collection::btree_set(0..400u64, 0..24), size in 1..500u64, from in 0..50u64,
            first in 1..40u64, min in 1..20u64, max in 40..80u64, most in 20..200u16, part_copy: bool,
        ) {
            let from = from.min(size);
            let cuts: Vec<u64> = cuts.into_iter().filter(|&c| c >= from && c <= size).collect();
            let old: Vec<Range<u64>> = cuts.chunks_exact(2).map(|c| c[0]..c[1]).collect();
            let a = Abilities { part_copy, ..abilities(min, max, most) };
            let Some(pieces) = plan((from, 3), size, &old, first, &a) else {
                // Only where even the largest parts do not suffice.
                prop_assert!((size - from) / (max / 2) + 2 * old.len() as u64 + 1 >= u64::from(most - 3));
                return Ok(());
            };
            prop_assert!(pieces.len() <= usize::from(most - 3));
            let mut at = from;
            for (i, piece) in pieces.iter().enumerate() {
                let len = piece.range.end - piece.range.start;
                prop_assert_eq!(piece.range.start, at);
                prop_assert!(len > 0 && len <= max);
                prop_assert!(len >= min || i + 1 == pieces.len(), "{:?}", pieces);
                if piece.source == Source::Copied {
                    prop_assert!(part_copy && old.iter().any(|r| r.start <= at && piece.range.end <= r.end));
                }
                at = piece.range.end;
            }
            prop_assert_eq!(at, size);
        }
    }
}
