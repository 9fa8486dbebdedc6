//! The inode: one self-describing 4 KiB block in a slot of an inode segment (UHSFS, section 2.1).
//!
//! `header (192) | name | tail, 8-aligned | extended attributes, 8-aligned | zeros`. The tail is inline data, extents, or
//! the root of an extent tree. In the log the bytes in use (`used`) stand without their checksum,
//! which the record covers. Everything else in memory is rebuilt from these blocks: directories hold no entries, they
//! are named as `parent` by the inodes in them.

use crate::checksum::crc32c_without_field;
use crate::error::{Result, check_crc, check_len, check_magic, check_range, check_rule};
use crate::extent::{Extent, NodeEntry};
use crate::ids::{BlockNo, Epoch, Ino, SegNo};
use crate::layout::media_struct;
use crate::limits::*;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// "FHIN"
pub const MAGIC: u32 = u32::from_le_bytes(*b"FHIN");
/// Flag of an entry of the index checkpoint: the inode's block has a tail or extended attributes.
pub const ENTRY_HAS_TAIL: u32 = 1;
/// Flag of an entry of the index checkpoint: the inode has no extended attributes. Without it, it may have some.
pub const ENTRY_NO_XATTRS: u32 = 2;
/// Flag of an inode without a name: it may get one, as it was made without.
pub const LINKABLE: u32 = 4;
const NAME: &str = "inode";
const CRC_AT: usize = 4;
const _: () = assert!(size_of::<InodeHeader>() == INODE_HEADER);

media_struct! {
    /// A point in time.
    pub struct Timespec: 12 {
        /// seconds since 1970-01-01 00:00 UTC
        sec: I64,
        /// nanoseconds, below 1,000,000,000
        nsec: U32,
    }
}

impl Default for Timespec {
    fn default() -> Self {
        Timespec::new_zeroed()
    }
}

media_struct! {
    /// Header of an inode block.
    pub struct InodeHeader: 192 {
        /// "FHIN"
        magic: U32,
        /// CRC-32C of the 4096 bytes, this field counted as zero; 0 in the log
        crc: U32,
        /// number of this inode; must match the slot it stands in
        ino: U64,
        /// tells apart the inodes that had this slot: more than that of the one before, and at least the low 32 bits of the
        /// epoch in which the slot was given; the first since an opening of the volume is 2^16 to 2^17 more than that, and
        /// than `generation` of the clean stop before, by chance, so that it is none that was given in epochs that were lost
        generation: U32,
        /// bytes in use from the start of the block
        used: U16,
        /// what the slot holds: 0 free, 1 inode, 2 additional name (hard link) of another inode
        kind: u8,
        /// what the tail holds: 0 nothing, 1 inline data, 2 extents, 3 root of an extent tree
        tail_kind: u8,
        /// epoch of the last change
        epoch: U64,
        /// inode number of the directory that holds this name; 0 for an inode without a name (unlinked while open, or made without one)
        parent: U64,
        /// file size, bytes; length of the target of a symlink; 0 for directories
        size: U64,
        /// blocks allocated outside of this block: data, extent nodes, extended attributes
        blocks: U64,
        /// additional names: the inode they lead to; else 0
        target: U64,
        /// type and permission bits as in stat(2)
        mode: U32,
        /// owner
        uid: U32,
        /// group
        gid: U32,
        /// only in the index checkpoint: bit 0: the inode's block has a tail or extended attributes; bit 1: it has no extended attributes. bit 2: without a name, it may get one
        flags: U32,
        /// device number of device nodes: major << 32 | minor
        rdev: U64,
        /// last access
        atime: Timespec,
        /// last change of the data
        mtime: Timespec,
        /// last change of data or attributes
        ctime: Timespec,
        /// creation
        btime: Timespec,
        /// position of the name among its directory's names; the offset that readdir returns
        cookie: U64,
        /// bytes of the name
        name_len: U16,
        /// bytes of the tail
        tail_len: U16,
        /// bytes of the extended attributes in this block
        xattr_len: U16,
        /// levels of the extent tree below the root: 1 when the root's entries point to leaves
        tree_levels: u8,
        /// zero
        pad: u8,
        /// first block of the extended attributes when they do not fit in this block; else 0
        xattr_block: U64,
        /// bytes of the extended attributes at `xattr_block`, header included
        xattr_bytes: U32,
        /// CRC-32C of those bytes
        xattr_crc: U32,
        /// zero
        reserved: [u8; 24],
    }
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SlotKind {
    /// Nothing; the slot can be given to a new inode.
    Free = 0,
    /// An inode.
    Inode = 1,
    /// An additional name of another inode.
    Link = 2,
}

/// What the tail of an inode holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TailKind {
    /// Nothing: no data, or a hole only.
    None = 0,
    /// The file's bytes.
    Inline = 1,
    /// Extents of the file, sorted.
    Extents = 2,
    /// Entries that point to nodes of the extent tree, sorted.
    Tree = 3,
}

/// An inode as parsed from bytes that it borrows.
#[derive(Clone, Copy, Debug)]
pub struct InodeView<'a> {
    /// The header.
    pub header: &'a InodeHeader,
    /// What the slot holds.
    pub kind: SlotKind,
    /// What the tail holds.
    pub tail_kind: TailKind,
    /// The name within the parent directory.
    pub name: &'a [u8],
    /// The tail's bytes.
    pub tail: &'a [u8],
    /// The extended attributes that stand in the block, encoded as in [`crate::xattr`].
    pub xattrs: &'a [u8],
}

fn align8(n: usize) -> usize {
    n.next_multiple_of(8)
}

/// Bytes in use by an inode with parts of these lengths.
pub fn used_bytes(name: usize, tail: usize, xattrs: usize) -> usize {
    let tail_at = align8(INODE_HEADER + name);
    if xattrs > 0 {
        align8(tail_at + tail) + xattrs
    } else if tail > 0 {
        tail_at + tail
    } else {
        INODE_HEADER + name
    }
}

/// Writes the compact image (no checksum, the bytes in use) of an inode behind what `out` holds, and returns its length.
/// Sets the magic and the length fields of the header. Requires parts within the limits of [`crate::limits`].
pub fn encode_compact(
    header: &InodeHeader,
    name: &[u8],
    tail: &[u8],
    xattrs: &[u8],
    out: &mut Vec<u8>,
) -> usize {
    assert!(name.len() <= NAME_MAX && tail.len() <= TAIL_MAX && xattrs.len() <= XATTR_INLINE_MAX);
    let used = used_bytes(name.len(), tail.len(), xattrs.len());
    let mut h = *header;
    h.magic = MAGIC.into();
    h.crc = 0.into();
    h.used = (used as u16).into();
    h.name_len = (name.len() as u16).into();
    h.tail_len = (tail.len() as u16).into();
    h.xattr_len = (xattrs.len() as u16).into();
    let start = out.len();
    out.extend_from_slice(h.as_bytes());
    out.extend_from_slice(name);
    if !tail.is_empty() || !xattrs.is_empty() {
        out.resize(start + align8(INODE_HEADER + name.len()), 0);
        out.extend_from_slice(tail);
    }
    if !xattrs.is_empty() {
        out.resize(start + align8(out.len() - start), 0);
        out.extend_from_slice(xattrs);
    }
    debug_assert_eq!(out.len() - start, used);
    used
}

/// Fills `block` (4096 bytes) with the inode block for a compact image: the image, zeros, and the checksum.
pub fn fill_block(compact: &[u8], block: &mut [u8]) {
    assert!(compact.len() <= BLOCK_SIZE && block.len() == BLOCK_SIZE);
    block[..compact.len()].copy_from_slice(compact);
    block[compact.len()..].fill(0);
    let crc = crc32c_without_field(block, CRC_AT);
    block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Checks an inode block read from slot `ino`. A block of zeros is a slot that was never used: `Ok(None)`.
pub fn parse_block(block: &[u8], ino: Ino) -> Result<Option<InodeView<'_>>> {
    check_len(NAME, block.len(), BLOCK_SIZE)?;
    let block = &block[..BLOCK_SIZE];
    let (header, _) = InodeHeader::ref_from_prefix(block).expect("length was checked");
    if header.magic.get() == 0 && block.iter().all(|&b| b == 0) {
        return Ok(None);
    }
    check_magic(NAME, MAGIC as u64, header.magic.get() as u64)?;
    check_crc(NAME, header.crc.get(), crc32c_without_field(block, CRC_AT))?;
    let view = parse_compact(block)?;
    check_rule(NAME, view.ino() == ino, "stands in another inode's slot")?;
    check_rule(
        NAME,
        block[header.used.get() as usize..].iter().all(|&b| b == 0),
        "bytes behind the inode are not zero",
    )?;
    Ok(Some(view))
}

/// Checks a compact image (or the front of a block whose checksum was verified).
pub fn parse_compact(bytes: &[u8]) -> Result<InodeView<'_>> {
    check_len(NAME, bytes.len(), INODE_HEADER)?;
    let (header, _) = InodeHeader::ref_from_prefix(bytes).expect("length was checked");
    check_magic(NAME, MAGIC as u64, header.magic.get() as u64)?;
    let kind = match header.kind {
        0 => SlotKind::Free,
        1 => SlotKind::Inode,
        2 => SlotKind::Link,
        k => return Err(check_range(NAME, "kind", k as u64, 2).unwrap_err()),
    };
    let tail_kind = match header.tail_kind {
        0 => TailKind::None,
        1 => TailKind::Inline,
        2 => TailKind::Extents,
        3 => TailKind::Tree,
        k => return Err(check_range(NAME, "tail_kind", k as u64, 3).unwrap_err()),
    };
    let (name_len, tail_len) = (header.name_len.get() as usize, header.tail_len.get() as usize);
    let xattr_len = header.xattr_len.get() as usize;
    check_range(NAME, "name_len", name_len as u64, NAME_MAX as u64)?;
    check_range(NAME, "tail_len", tail_len as u64, TAIL_MAX as u64)?;
    check_range(NAME, "xattr_len", xattr_len as u64, XATTR_INLINE_MAX as u64)?;
    check_range(NAME, "size", header.size.get(), FILE_SIZE_MAX)?;
    check_range(NAME, "tree_levels", header.tree_levels as u64, crate::extent::LEVELS_MAX as u64)?;
    let xattr_max = XATTR_TOTAL_MAX + size_of::<crate::xattr::XattrHeader>();
    check_range(NAME, "xattr_bytes", header.xattr_bytes.get() as u64, xattr_max as u64)?;
    let used = used_bytes(name_len, tail_len, xattr_len);
    check_rule(NAME, header.used.get() as usize == used, "lengths of the parts and of the whole disagree")?;
    check_len(NAME, bytes.len(), used)?;
    let tail_at = align8(INODE_HEADER + name_len);
    let tail = if tail_len > 0 { &bytes[tail_at..tail_at + tail_len] } else { &[][..] };
    let xattrs = if xattr_len > 0 { &bytes[align8(tail_at + tail_len)..][..xattr_len] } else { &[][..] };
    let view = InodeView {
        header,
        kind,
        tail_kind,
        name: &bytes[INODE_HEADER..INODE_HEADER + name_len],
        tail,
        xattrs,
    };
    view.check()?;
    Ok(view)
}

impl<'a> InodeView<'a> {
    /// Number of this inode.
    pub fn ino(&self) -> Ino {
        Ino(self.header.ino.get())
    }
    /// Epoch of its last change.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.header.epoch.get())
    }

    /// The extents in the tail; empty unless `tail_kind` is [`TailKind::Extents`].
    pub fn extents(&self) -> &'a [Extent] {
        match self.tail_kind {
            TailKind::Extents => <[Extent]>::ref_from_bytes(self.tail).expect("checked by `check`"),
            _ => &[],
        }
    }
    /// The entries of the extent tree's root; empty unless `tail_kind` is [`TailKind::Tree`].
    pub fn tree_root(&self) -> &'a [NodeEntry] {
        match self.tail_kind {
            TailKind::Tree => <[NodeEntry]>::ref_from_bytes(self.tail).expect("checked by `check`"),
            _ => &[],
        }
    }

    /// Rules among the fields of one inode.
    fn check(&self) -> Result<()> {
        let h = self.header;
        check_rule(NAME, !self.name.contains(&b'/') && !self.name.contains(&0), "name holds '/' or NUL")?;
        check_rule(NAME, self.name != b"." && self.name != b"..", "name is a dot entry")?;
        for t in [&h.atime, &h.mtime, &h.ctime, &h.btime] {
            check_range(NAME, "nsec", t.nsec.get() as u64, 999_999_999)?;
        }
        match self.kind {
            SlotKind::Free => {}
            SlotKind::Link => {
                check_rule(NAME, h.target.get() != 0 && h.target != h.ino, "additional name leads nowhere")?;
                check_rule(
                    NAME,
                    !self.name.is_empty() && h.parent.get() != 0,
                    "additional name without a name",
                )?;
                check_rule(NAME, self.tail_kind == TailKind::None, "additional name with a tail")?;
            }
            SlotKind::Inode => {
                check_rule(NAME, h.target.get() == 0, "inode with a link target")?;
                check_rule(
                    NAME,
                    self.name.is_empty() == (h.parent.get() == 0) || h.ino.get() == Ino::ROOT.0,
                    "name without a parent or parent without a name",
                )?;
            }
        }
        let entry = size_of::<Extent>();
        match self.tail_kind {
            TailKind::None => check_rule(NAME, self.tail.is_empty(), "tail without a kind")?,
            TailKind::Inline => {
                check_rule(NAME, self.tail.len() as u64 <= h.size.get(), "inline data beyond the size")?
            }
            TailKind::Extents => {
                check_rule(
                    NAME,
                    self.tail.len().is_multiple_of(entry),
                    "tail is not a whole number of extents",
                )?;
                crate::extent::check_sorted(NAME, self.extents())?;
            }
            TailKind::Tree => {
                check_rule(
                    NAME,
                    self.tail.len().is_multiple_of(entry),
                    "tail is not a whole number of entries",
                )?;
                check_rule(NAME, h.tree_levels > 0, "extent tree without levels")?;
                crate::extent::check_entries_sorted(NAME, self.tree_root())?;
            }
        }
        Ok(())
    }
}

/// The block that holds the slot of `ino`, given the segment at its place in the inode segment table.
pub fn slot_block(segment: SegNo, ino: Ino) -> BlockNo {
    BlockNo(segment.first_block().0 + ino.slot() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (InodeHeader, Vec<u8>) {
        let mut h = InodeHeader::new_zeroed();
        h.ino = 77.into();
        h.kind = SlotKind::Inode as u8;
        h.tail_kind = TailKind::Inline as u8;
        h.parent = 1.into();
        h.size = 5.into();
        let mut compact = Vec::new();
        encode_compact(&h, b"name", b"bytes", b"xattr", &mut compact);
        (h, compact)
    }

    #[test]
    fn compact_and_block_round_trip() {
        let (_, compact) = sample();
        let view = parse_compact(&compact).unwrap();
        assert_eq!((view.name, view.tail, view.xattrs), (&b"name"[..], &b"bytes"[..], &b"xattr"[..]));
        let mut block = vec![0xff; BLOCK_SIZE];
        fill_block(&compact, &mut block);
        let view = parse_block(&block, Ino(77)).unwrap().unwrap();
        assert_eq!((view.name, view.tail, view.xattrs), (&b"name"[..], &b"bytes"[..], &b"xattr"[..]));
        assert!(parse_block(&block, Ino(78)).is_err(), "misplaced inode was accepted");
        assert!(parse_block(&vec![0; BLOCK_SIZE], Ino(1)).unwrap().is_none());
    }

    #[test]
    fn every_flipped_byte_is_found() {
        let (_, compact) = sample();
        let mut block = vec![0; BLOCK_SIZE];
        fill_block(&compact, &mut block);
        for at in 0..BLOCK_SIZE {
            block[at] ^= 0x10;
            assert!(parse_block(&block, Ino(77)).is_err(), "flipped byte {at} was accepted");
            block[at] ^= 0x10;
        }
    }

    #[test]
    fn parser_survives_any_header() {
        // The log's checksum is verified before its images are parsed, but fsck looks at damaged ones too.
        let (_, compact) = sample();
        for at in 0..compact.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = compact.clone();
                bytes[at] = value;
                let _ = parse_compact(&bytes);
                let _ = parse_compact(&bytes[..at]);
            }
        }
    }
}
