//! What a tail from the medium must obey before it is believed. A scan of all inodes finds blocks used twice and refuses the volume; after
//! a clean stop nobody has read the tails, and the index checkpoint says only which blocks are in use.
//!
//! Not found here: blocks that two files have, both of which are in use. `fsck` tells them.

use super::Partial;
use crate::core::Core;
use crate::extents::Leaf;
use crate::inode::{Data, Slot, Tail};
use crate::space::Run;
use format::BlockNo;
use format::error::{Fault, FormatError, check_rule};
use format::extent::NodeEntry;

type Checked = Result<(), FormatError>;

impl Core {
    /// A file's run: blocks that are in use, and no more than the inode says that it has, which bounds what a load can bring.
    pub(super) fn check_run(
        &self,
        slot: Slot,
        p: &mut Partial,
        structure: &'static str,
        run: Run,
    ) -> Checked {
        p.blocks = p.blocks.saturating_add(run.count as u64);
        let own = self.space.in_use(run);
        check_rule(structure, own, "lies outside of the volume or in what is free")
            .and_then(|()| check_blocks(p.blocks <= self.slab.get(slot).blocks))
            .map_err(|e| e.at(run.block))
    }

    /// Nodes that are about to be read, all of one level. What is in order leads to no node twice, as each begins where its entry says.
    pub(super) fn check_nodes(&self, slot: Slot, p: &mut Partial) -> Checked {
        let entries = std::mem::take(&mut p.entries);
        let begin = |e: &NodeEntry| e.file_block.get();
        let in_order = entries.is_sorted_by(|a, b| begin(a) < begin(b));
        check_rule("extent node", in_order, "entries are out of order")?;
        for entry in &entries {
            let run = Run { block: BlockNo(entry.block.get()), count: 1 };
            self.check_run(slot, p, "extent node", run)?;
        }
        p.entries = entries;
        Ok(())
    }
}

fn check_blocks(right: bool) -> Checked {
    check_rule("inode", right, "number of blocks is wrong")
}

/// A tail that is there as a whole, of an inode that says it has so many blocks.
pub(crate) fn check_whole(tail: &Tail, blocks: u64) -> Checked {
    let mut found = tail.xattrs_outside.map_or(0, |x| x.blocks() as u64);
    if let Data::Extents(map) = &tail.data {
        let nodes = map.leaves().iter().filter(|leaf| leaf.home.is_some()).count() + map.inner.len();
        found += nodes as u64 + map.iter().map(|e| e.count as u64).sum::<u64>();
        check_leaves(map.leaves())?;
    }
    check_blocks(found == blocks)
}

/// Each leaf is in order, or it would not have been parsed: they must be so among each other.
fn check_leaves(leaves: &[Leaf]) -> Checked {
    let mut end = 0;
    for extents in leaves.iter().map(|leaf| &leaf.extents) {
        let (Some(first), Some(last)) = (extents.first(), extents.last()) else { continue };
        if first.file_block < end {
            let fault = Fault::Rule("extents overlap or are out of order");
            return Err(FormatError::new("extent node", fault).at(BlockNo(first.block)));
        }
        end = last.end();
    }
    Ok(())
}
