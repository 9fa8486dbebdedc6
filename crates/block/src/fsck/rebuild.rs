//! The inode segment table without its homes: inode segments are found by the inodes in them, each of which knows its number, and so the
//! position of its segment.
//!
//! Contents of a file may look like such a segment. Which ones are segments of inodes the checkpoint's checksum of the table says. Where it
//! says nothing, as one of them is lost, what belongs to a file is none, and of the others those with most inodes are.

use super::Pass;
use super::fixed::Base;
use super::walk::{Visit, walk};
use crate::load;
use format::checkpoint::Checkpoint;
use format::extent::Extent;
use format::inode::{InodeView, SlotKind, parse_block};
use format::limits::{BLOCK_SIZE, INODE_SEGMENTS_MAX, SEGMENT_BLOCKS, SEGMENT_SIZE};
use format::xattr::Xattr;
use format::{FormatError, Ino, SegNo};
use fs::Result;
use media::blocking::Blocking;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Most entries of tables that are tried against the checkpoint's checksum.
const ENTRIES_TRIED_MAX: usize = 1 << 26;

/// Positions of the table, and what may belong there: the likeliest first, nothing at last.
type Found = Vec<(usize, Vec<Option<SegNo>>)>;

/// Fills the positions of the table of which nothing is known.
pub(super) fn table(pass: &mut Pass<'_>, base: &mut Base) -> Result<()> {
    let taken: BTreeSet<u32> = base.checkpoint.log_segments.iter().map(|s| s.0).collect();
    let mut votes: BTreeMap<usize, Vec<(usize, SegNo)>> = BTreeMap::new();
    let segments = base.superblock.segments();
    for seg in 1..segments {
        pass.step("looking for inode segments", seg as u64, segments as u64);
        if taken.contains(&seg) {
            continue;
        }
        if let Some((index, count)) = vote(pass.device, SegNo(seg), base.last_epoch)? {
            votes.entry(index).or_default().push((count, SegNo(seg)));
        }
    }
    let len = base.checkpoint.inode_segments.max(base.table.len() as u32) as usize;
    base.table.resize(len, None);
    let known: BTreeSet<SegNo> = base.table.iter().flatten().copied().collect();
    let mut found = Found::new();
    for (index, mut segments) in votes {
        // What a home of the table or the log says counts more than a vote.
        segments.retain(|(_, seg)| !known.contains(seg));
        if index < len && base.table[index].is_none() && !base.fresh.contains(&index) {
            segments.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
            found.push((index, segments.into_iter().map(|(_, seg)| Some(seg)).chain([None]).collect()));
        }
    }
    let picks = match matching(&base.checkpoint, &base.medium_table, &found) {
        Some(picks) => picks,
        None => {
            let contents = contents(pass.device, base, &found)?;
            let place = |seg: &Option<SegNo>| seg.is_none_or(|seg| !contents.contains(&seg));
            found.iter().map(|(_, segments)| segments.iter().position(place).unwrap_or(0)).collect()
        }
    };
    for ((index, segments), pick) in found.iter().zip(picks) {
        base.table[*index] = segments[pick];
    }
    base.rewrite = true;
    base.clean = false;
    Ok(())
}

/// Which choice at each of these positions makes the table that the checkpoint was made with.
fn matching(checkpoint: &Checkpoint, table: &[Option<SegNo>], found: &Found) -> Option<Vec<usize>> {
    let mut table = table.to_vec();
    table.resize(checkpoint.inode_segments as usize, None);
    let mut picks = vec![0; found.len()];
    for _ in 0..ENTRIES_TRIED_MAX / table.len().max(1) {
        for ((index, segments), &pick) in found.iter().zip(&picks) {
            if let Some(entry) = table.get_mut(*index) {
                *entry = segments[pick];
            }
        }
        if format::segtable::table_crc(&table) == checkpoint.table_crc {
            return Some(picks);
        }
        let next = (0..picks.len()).find(|&i| picks[i] + 1 < found[i].1.len())?;
        picks[..next].fill(0);
        picks[next] += 1;
    }
    None
}

/// Those of the segments in which files of other ones have their data, unless the data of a file claims these as well.
fn contents(device: &Blocking, base: &Base, found: &Found) -> Result<BTreeSet<SegNo>> {
    struct Owners {
        of: BTreeMap<SegNo, BTreeSet<SegNo>>,
        candidates: BTreeSet<SegNo>,
        by: SegNo,
        seen: HashSet<u64>,
    }
    impl Visit for Owners {
        fn node(&mut self, block: u64) -> bool {
            self.seen.insert(block)
        }
        fn extent(&mut self, e: &Extent) {
            let (first, end) = (e.block.get(), e.block.get() + e.count.get() as u64);
            let segment = SEGMENT_BLOCKS as u64;
            let touched = SegNo((first / segment) as u32)..SegNo(end.div_ceil(segment) as u32);
            for seg in self.candidates.range(touched) {
                self.of.entry(*seg).or_default().insert(self.by);
            }
        }
        fn xattr_blocks(&mut self, _: u64, _: u32) {}
        fn xattrs(&mut self, _: Vec<Xattr>) {}
        fn fault(&mut self, _: FormatError, _: String) {}
    }
    let candidates: BTreeSet<SegNo> =
        found.iter().flat_map(|(_, segments)| segments.iter().flatten().copied()).collect();
    let mut owners =
        Owners { of: BTreeMap::new(), candidates: candidates.clone(), by: SegNo(0), seen: HashSet::new() };
    let mut bytes = vec![0; SEGMENT_SIZE];
    for seg in candidates {
        owners.by = seg;
        load::read_places(device, seg.first_block(), &mut bytes)?;
        for view in inodes(&bytes, base.last_epoch).filter(|view| view.kind == SlotKind::Inode) {
            walk(device, &view, base.superblock.blocks.get(), &mut owners)?;
        }
    }
    let of = owners.of;
    let good = |by: &BTreeSet<SegNo>| by.iter().any(|seg| !of.contains_key(seg));
    Ok(of.iter().filter(|(_, by)| good(by)).map(|(seg, _)| *seg).collect())
}

/// What in a segment is an inode in its slot, free ones included.
fn inodes(bytes: &[u8], last_epoch: u64) -> impl Iterator<Item = InodeView<'_>> {
    bytes.chunks_exact(BLOCK_SIZE).enumerate().filter_map(move |(slot, block)| {
        if block[..4] != format::inode::MAGIC.to_le_bytes() {
            return None;
        }
        let ino = Ino(u64::from_le_bytes(block[8..16].try_into().expect("eight bytes")));
        if ino.slot() != slot || ino.table_index() >= INODE_SEGMENTS_MAX {
            return None;
        }
        parse_block(block, ino).ok().flatten().filter(|view| view.epoch().0 <= last_epoch)
    })
}

/// The table position for which the inodes in a segment speak, and how many do.
fn vote(device: &Blocking, seg: SegNo, last_epoch: u64) -> Result<Option<(usize, usize)>> {
    let mut bytes = vec![0; SEGMENT_SIZE];
    load::read_places(device, seg.first_block(), &mut bytes)?;
    let mut counts: HashMap<usize, usize> = HashMap::new();
    for view in inodes(&bytes, last_epoch) {
        *counts.entry(view.ino().table_index()).or_default() += 1;
    }
    Ok(counts.into_iter().max_by_key(|(index, count)| (*count, usize::MAX - index)))
}
