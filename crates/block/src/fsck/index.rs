//! The index checkpoint against the truth: it is what a mount after a clean stop believes instead of looking.

use super::fixed::Base;
use super::report::{Problem, Severity};
use super::usage::Usage;
use super::walk::rule;
use super::{Pass, inodes};
use crate::load::{read_place, read_places};
use format::checkpoint::SegmentRun;
use format::error::Fault;
use format::index::{MAGIC, PieceHeader, PieceKind, SegmentUsage, parse};
use format::inode::{ENTRY_HAS_TAIL, ENTRY_NO_XATTRS, InodeView, SlotKind, parse_block, parse_compact};
use format::limits::{BLOCK_SIZE, SEGMENT_BLOCKS, SEGMENT_SIZE};
use format::{Ino, SegNo};
use fs::{Error, Result};
use std::collections::HashSet;
use zerocopy::FromBytes;

const NAME: &str = "index checkpoint";
/// Differences that are told one by one.
const TOLD_MAX: usize = 100;

/// Whether other data stands where a piece was: nothing of the start of one of this volume's is there. Data may be written there as soon as the
/// volume is open again, before anything else on the medium says that it is. It may also have its place further within the segment: then
/// the header is good, and the checksum wrong.
fn is_overwritten(piece: &[u8], uuid: &[u8; 16]) -> bool {
    PieceHeader::read_from_prefix(piece).is_ok_and(|(h, _)| h.magic.get() != MAGIC && &h.uuid != uuid)
}

/// Compares the index checkpoint, when there is one that counts, with what the scan has found.
pub(super) fn check(pass: &mut Pass<'_>, base: &mut Base) -> Result<()> {
    let cp = base.checkpoint.clone();
    if cp.index_pieces == 0 || !cp.clean {
        return Ok(());
    }
    if !base.clean {
        // Mount does not look at it any more.
        return Ok(());
    }
    pass.report.counts.index_inodes = cp.index_inodes;
    let mut c = Compare {
        seen: HashSet::new(),
        usage: Usage::new(pass.blocks),
        faults: Vec::new(),
        emptied: Vec::new(),
        inodes: 0,
        slots: None,
    };
    c.usage.claim(0, SEGMENT_BLOCKS as u64);
    let segments: Vec<SegNo> =
        cp.index_runs.iter().flat_map(|&(first, count)| (first.0..first.0 + count).map(SegNo)).collect();
    let mut piece = vec![0; SEGMENT_SIZE];
    let mut readable = true;
    for (number, segment) in segments.into_iter().enumerate() {
        pass.step("checking the index checkpoint", number as u64, cp.index_pieces as u64);
        let free = pass.usage.is_free(segment.first_block().0, SEGMENT_BLOCKS as u64);
        if !free {
            c.fault(format!("{segment:?} of it is in use"));
        }
        let read = read_place(pass.device, segment.first_block(), &mut piece)?;
        let parsed = parse(&piece, &cp.uuid, cp.sequence, number as u32);
        let changed = free && matches!(&parsed, Err(e) if matches!(e.fault, Fault::Checksum { .. }));
        if read.is_ok() && (changed || is_overwritten(&piece, &cp.uuid)) {
            let what = format!(
                "{segment:?} of it holds other data{}: the volume was open since, and not stopped. A mount looks at the inodes instead",
                if changed { ", or is damaged" } else { "" }
            );
            pass.report.add(Problem::new(Severity::Note, NAME, what));
            readable = false;
            continue;
        }
        let outcome = match read {
            Err(e) => Err(e.to_string()),
            Ok(()) => match parsed
                .map_err(Error::Corrupt)
                .and_then(|(kind, entries, bytes)| c.piece(pass, base, kind, entries, bytes))
            {
                Err(Error::Corrupt(e)) => Err(e.at(segment.first_block()).to_string()),
                other => Ok(other?),
            },
        };
        if let Err(e) = outcome {
            c.fault(e);
            readable = false;
        }
    }
    if readable {
        c.finish(pass, cp.index_inodes);
    }
    for fault in c.faults {
        pass.report.add(Problem::damage(NAME, fault));
        base.rewrite = true;
    }
    for ino in c.emptied {
        let p =
            Problem::damage("inode", "slot is empty, but the index checkpoint has an inode there").inode(ino);
        pass.report.add(p.lost("the inode: name, attributes and contents"));
        base.rewrite = true;
    }
    Ok(())
}

struct Compare {
    seen: HashSet<u64>,
    usage: Usage,
    faults: Vec<String>,
    /// Inodes whose slots hold nothing.
    emptied: Vec<u64>,
    inodes: u64,
    /// The segment of inodes that was read last: its position in the table, and its slots.
    slots: Option<(usize, Vec<u8>)>,
}

impl Compare {
    fn fault(&mut self, what: impl Into<String>) {
        if self.faults.len() < TOLD_MAX {
            self.faults.push(what.into());
        }
    }

    fn piece(
        &mut self,
        pass: &Pass<'_>,
        base: &Base,
        kind: PieceKind,
        entries: u32,
        bytes: &[u8],
    ) -> Result<()> {
        let short = || rule(NAME, "piece is cut short");
        match kind {
            PieceKind::Inodes => return self.entries(pass, base, entries, bytes),
            PieceKind::Partial => {
                for u in <[SegmentUsage]>::ref_from_bytes(bytes).map_err(|_| short())? {
                    let seg = u.segment.get();
                    if seg == 0 || seg as u64 >= pass.blocks / SEGMENT_BLOCKS as u64 {
                        self.fault(format!("segment {seg} lies outside of the volume"));
                        continue;
                    }
                    for bit in 0..SEGMENT_BLOCKS {
                        let block = SegNo(seg).first_block().0 + bit as u64;
                        if u.bitmap[bit / 64].get() >> (bit % 64) & 1 == 1 && !self.usage.claim(block, 1) {
                            self.fault(format!("block {block} is counted twice"));
                        }
                    }
                }
            }
            PieceKind::Full => {
                for run in <[SegmentRun]>::ref_from_bytes(bytes).map_err(|_| short())? {
                    let (first, end) =
                        (run.first.get() as u64, run.first.get() as u64 + run.count.get() as u64);
                    if end > pass.blocks / SEGMENT_BLOCKS as u64 {
                        self.fault(format!("segments {first} to {end} lie outside of the volume"));
                        continue;
                    }
                    for seg in first.max(1)..end {
                        self.usage.claim(seg * SEGMENT_BLOCKS as u64, SEGMENT_BLOCKS as u64);
                    }
                }
            }
        }
        Ok(())
    }

    fn entries(&mut self, pass: &Pass<'_>, base: &Base, entries: u32, mut bytes: &[u8]) -> Result<()> {
        for _ in 0..entries {
            let (len, rest) =
                bytes.split_first_chunk::<4>().ok_or_else(|| rule(NAME, "piece is cut short"))?;
            let len = u32::from_le_bytes(*len) as usize;
            if len > rest.len() {
                return Err(rule(NAME, "piece is cut short").into());
            }
            let view = parse_compact(&rest[..len])?;
            bytes = &bytes[(4 + len).next_multiple_of(8).min(bytes.len())..];
            let ino = view.ino().0;
            self.inodes += 1;
            if !self.seen.insert(ino) {
                self.fault(format!("inode {ino} stands in it twice"));
                continue;
            }
            let truth = self.truth(pass, base, ino)?;
            if truth.is_none() && !pass.edits.contains_key(&ino) && !pass.nodes.contains_key(&ino) {
                self.emptied.push(ino);
                continue;
            }
            let same =
                truth.as_deref().and_then(|t| parse_compact(t).ok()).is_some_and(|t| agrees(&view, &t));
            if !same {
                self.fault(format!("inode {ino} is not as it stands in its slot"));
            }
        }
        Ok(())
    }

    /// The image of an inode as it stands in its slot. Entries are in the order of slots, so each segment is read once; what is not in order
    /// is read by itself.
    fn truth(&mut self, pass: &Pass<'_>, base: &Base, ino: u64) -> Result<Option<Vec<u8>>> {
        let index = Ino(ino).table_index();
        if let Some(Some(segment)) = base.table.get(index)
            && self.slots.as_ref().is_none_or(|(last, _)| *last < index)
        {
            let mut slots = vec![0; SEGMENT_SIZE];
            read_places(pass.device, segment.first_block(), &mut slots)?;
            self.slots = Some((index, slots));
        }
        match &self.slots {
            Some((last, slots)) if *last == index => {
                let block = &slots[Ino(ino).slot() * BLOCK_SIZE..][..BLOCK_SIZE];
                let view = parse_block(block, Ino(ino)).ok().flatten();
                Ok(view.map(|view| block[..view.header.used.get() as usize].to_vec()))
            }
            _ => inodes::image(pass, base, ino),
        }
    }

    fn finish(&mut self, pass: &Pass<'_>, expected: u64) {
        if self.inodes != expected {
            self.fault(format!("{} inodes in it, {expected} according to the checkpoint", self.inodes));
        }
        let mut missing: Vec<u64> = pass.nodes.keys().filter(|i| !self.seen.contains(i)).copied().collect();
        missing.sort_unstable();
        for ino in missing.into_iter().take(TOLD_MAX) {
            self.fault(format!("inode {ino} is missing"));
        }
        let wrong = (0..pass.blocks).filter(|&b| self.usage.get(b) != pass.usage.get(b));
        let wrong: Vec<u64> = wrong.take(TOLD_MAX).collect();
        for block in wrong {
            let (says, is) = if pass.usage.get(block) { ("free", "in use") } else { ("in use", "free") };
            self.fault(format!("block {block} is {is}, not {says}"));
        }
    }
}

/// Whether an entry says the same as the inode: everything but what only the inode's own block holds.
fn agrees(entry: &InodeView<'_>, inode: &InodeView<'_>) -> bool {
    let has_xattrs = !inode.xattrs.is_empty() || inode.header.xattr_block.get() != 0;
    let tail = inode.kind == SlotKind::Inode && (!inode.tail.is_empty() || has_xattrs);
    // A file that only has holes may be noted as having a tail; the reverse would hide data.
    let flags = entry.header.flags.get();
    let hides = tail && flags & ENTRY_HAS_TAIL == 0 || has_xattrs && flags & ENTRY_NO_XATTRS != 0;
    let plain = |v: &InodeView<'_>| {
        let mut h = *v.header;
        (h.crc, h.used, h.flags, h.tail_kind) = (0.into(), 0.into(), 0.into(), 0);
        (h.tail_len, h.xattr_len, h.tree_levels) = (0.into(), 0.into(), 0);
        (h.xattr_block, h.xattr_bytes, h.xattr_crc) = (0.into(), 0.into(), 0.into());
        h
    };
    plain(entry) == plain(inode) && entry.name == inode.name && !hides
}
