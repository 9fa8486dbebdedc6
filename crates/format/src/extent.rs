//! Extents, and the tree of extents of a file that has more of them than fit in its inode.
//!
//! Nodes are never changed in place: a changed node is written to a new block, and so are the nodes above it up to the
//! root in the inode. The entry that leads to a node carries its checksum, so a node that was not yet written when the
//! device lost power is recognised.

use crate::checksum::crc32c;
use crate::error::{Result, check_crc, check_len, check_magic, check_range, check_rule};
use crate::ids::{BlockNo, Ino};
use crate::layout::media_struct;
use crate::limits::*;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Extents in the tail of an inode.
pub const EXTENTS_INLINE_MAX: usize = TAIL_MAX / size_of::<Extent>();
/// Entries in a node.
pub const NODE_ENTRIES: usize = (BLOCK_SIZE - size_of::<NodeHeader>()) / size_of::<Extent>();
/// Most levels of nodes below the root.
pub const LEVELS_MAX: usize = 4;
/// "FHXN"
pub const MAGIC: u32 = u32::from_le_bytes(*b"FHXN");
/// Bit in [`Extent::flags`]: allocated by fallocate but never written; reads as zeros.
pub const UNWRITTEN: u32 = 1;

const NAME: &str = "extent node";
const _: () = assert!(size_of::<Extent>() == size_of::<NodeEntry>());
const _: () = assert!(
    EXTENTS_INLINE_MAX * NODE_ENTRIES * NODE_ENTRIES * NODE_ENTRIES > (16usize << 40) / SEGMENT_SIZE,
    "16 TiB of scattered chunks must be addressable"
);

media_struct! {
    /// Extent: neighbouring blocks of a file that are neighbours on the medium too.
    pub struct Extent: 24 {
        /// first block of the file
        file_block: U64,
        /// first block of the volume
        block: U64,
        /// number of blocks
        count: U32,
        /// bit 0: unwritten (allocated, reads as zeros)
        flags: U32,
    }
}

media_struct! {
    /// Entry that leads to a node of the extent tree.
    pub struct NodeEntry: 24 {
        /// first file block that the node covers
        file_block: U64,
        /// where the node stands
        block: U64,
        /// CRC-32C of the node
        node_crc: U32,
        /// entries in the node
        count: U32,
    }
}

media_struct! {
    /// Header of a node of the extent tree; extents (level 0) or entries (above) follow.
    pub struct NodeHeader: 32 {
        /// "FHXN"
        magic: U32,
        /// number of entries
        count: U16,
        /// 0: extents; n: entries that lead to nodes of level n - 1
        level: U16,
        /// the inode that the node belongs to
        ino: U64,
        /// epoch in which the node was written
        epoch: U64,
        /// zero
        reserved: [u8; 8],
    }
}

impl Extent {
    /// An extent from native values.
    pub fn new(file_block: u64, block: BlockNo, count: u32, unwritten: bool) -> Self {
        Extent {
            file_block: file_block.into(),
            block: block.0.into(),
            count: count.into(),
            flags: if unwritten { UNWRITTEN } else { 0 }.into(),
        }
    }
    /// Allocated but never written.
    pub fn unwritten(&self) -> bool {
        self.flags.get() & UNWRITTEN != 0
    }
    /// First file block behind the extent.
    pub fn end(&self) -> u64 {
        self.file_block.get().saturating_add(self.count.get() as u64)
    }
}

/// Extents must be sorted, not empty, and must not overlap.
pub fn check_sorted(structure: &'static str, extents: &[Extent]) -> Result<()> {
    let mut end = 0;
    for e in extents {
        check_rule(structure, e.count.get() > 0, "empty extent")?;
        check_rule(structure, e.file_block.get() >= end, "extents overlap or are out of order")?;
        check_rule(structure, e.flags.get() & !UNWRITTEN == 0, "unknown extent flags")?;
        end = e.end();
        check_range(structure, "extent end", end, FILE_SIZE_MAX / BLOCK_SIZE as u64)?;
        check_range(structure, "extent block", e.block.get(), VOLUME_MAX / BLOCK_SIZE as u64)?;
    }
    Ok(())
}

/// Entries must be strictly sorted and lead to nodes that are not empty.
pub fn check_entries_sorted(structure: &'static str, entries: &[NodeEntry]) -> Result<()> {
    for pair in entries.windows(2) {
        check_rule(
            structure,
            pair[0].file_block.get() < pair[1].file_block.get(),
            "entries are out of order",
        )?;
    }
    for e in entries {
        check_rule(structure, e.count.get() > 0, "entry leads to an empty node")?;
        check_range(structure, "entry count", e.count.get() as u64, NODE_ENTRIES as u64)?;
    }
    Ok(())
}

fn encode(ino: Ino, epoch: u64, level: u16, count: usize, body: &[u8]) -> (Box<[u8]>, u32) {
    assert!(count > 0 && count <= NODE_ENTRIES);
    let mut block = vec![0; BLOCK_SIZE].into_boxed_slice();
    let mut h = NodeHeader::new_zeroed();
    h.magic = MAGIC.into();
    h.count = (count as u16).into();
    h.level = level.into();
    h.ino = ino.0.into();
    h.epoch = epoch.into();
    let at = size_of::<NodeHeader>();
    block[..at].copy_from_slice(h.as_bytes());
    block[at..at + body.len()].copy_from_slice(body);
    let crc = crc32c(&block);
    (block, crc)
}

/// A leaf with these extents, and its checksum.
pub fn encode_leaf(ino: Ino, epoch: u64, extents: &[Extent]) -> (Box<[u8]>, u32) {
    encode(ino, epoch, 0, extents.len(), extents.as_bytes())
}

/// A node of `level` >= 1 with these entries, and its checksum.
pub fn encode_inner(ino: Ino, epoch: u64, level: u16, entries: &[NodeEntry]) -> (Box<[u8]>, u32) {
    assert!(level >= 1);
    encode(ino, epoch, level, entries.len(), entries.as_bytes())
}

/// The content of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// Level 0.
    Leaf(Vec<Extent>),
    /// Level 1 and above.
    Inner(Vec<NodeEntry>),
}

/// Checks the node that `entry`, at one level above `level`, leads to.
pub fn parse(block: &[u8], ino: Ino, level: u16, entry: &NodeEntry) -> Result<Node> {
    check_len(NAME, block.len(), BLOCK_SIZE)?;
    let block = &block[..BLOCK_SIZE];
    let (h, body) = NodeHeader::read_from_prefix(block).expect("length was checked");
    check_magic(NAME, MAGIC as u64, h.magic.get() as u64)?;
    check_crc(NAME, entry.node_crc.get(), crc32c(block))?;
    check_rule(NAME, h.ino.get() == ino.0, "belongs to another inode")?;
    check_rule(NAME, h.level.get() == level, "stands at another level")?;
    check_rule(
        NAME,
        h.count.get() as u32 == entry.count.get(),
        "number of entries differs from its parent's",
    )?;
    check_range(NAME, "count", h.count.get() as u64, NODE_ENTRIES as u64)?;
    let body = &body[..h.count.get() as usize * size_of::<Extent>()];
    if level == 0 {
        let extents = <[Extent]>::ref_from_bytes(body).expect("whole entries");
        check_sorted(NAME, extents)?;
        check_rule(
            NAME,
            extents.first().is_some_and(|e| e.file_block == entry.file_block),
            "does not begin where its parent says",
        )?;
        Ok(Node::Leaf(extents.to_vec()))
    } else {
        let entries = <[NodeEntry]>::ref_from_bytes(body).expect("whole entries");
        check_entries_sorted(NAME, entries)?;
        check_rule(
            NAME,
            entries.first().is_some_and(|e| e.file_block == entry.file_block),
            "does not begin where its parent says",
        )?;
        Ok(Node::Inner(entries.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaf_round_trip_and_damage() {
        let extents = [Extent::new(0, BlockNo(600), 4, false), Extent::new(10, BlockNo(700), 1, true)];
        let (block, crc) = encode_leaf(Ino(5), 3, &extents);
        let entry =
            NodeEntry { file_block: 0.into(), block: 9.into(), node_crc: crc.into(), count: 2.into() };
        assert_eq!(parse(&block, Ino(5), 0, &entry).unwrap(), Node::Leaf(extents.to_vec()));
        assert!(parse(&block, Ino(6), 0, &entry).is_err());
        assert!(parse(&block, Ino(5), 1, &entry).is_err());
        for at in 0..BLOCK_SIZE {
            let mut bytes = block.clone();
            bytes[at] ^= 1;
            assert!(parse(&bytes, Ino(5), 0, &entry).is_err(), "flipped byte {at} was accepted");
        }
    }

    #[test]
    fn overlapping_extents_are_refused() {
        let bad = [Extent::new(0, BlockNo(1), 4, false), Extent::new(3, BlockNo(9), 1, false)];
        assert!(check_sorted(NAME, &bad).is_err());
    }
}
