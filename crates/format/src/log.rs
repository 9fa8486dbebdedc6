//! The epoch log: one record for each epoch, in a ring of log segments (BarrierFS: journal descriptor and commit in one).
//!
//! A record holds the images of the inodes that changed in the epoch, the checksums of the data blocks that were written
//! for it, segments that became inode segments, and the content of small overwrites. Records are chained: each carries the
//! checksum of the one before. Recovery therefore accepts exactly the longest prefix of whole epochs.
//!
//! Layout of a record, a whole number of blocks: header | segment assignments | covers | page entries | inode images (each
//! a u32 length and a compact image, padded to 8) | zeros up to a block | one block for each page entry.

use crate::checksum::crc32c_without_field;
use crate::error::Fault;
use crate::error::{FormatError, Result, check_crc, check_len, check_magic, check_range, check_rule};
use crate::ids::{BlockNo, Epoch, Ino};
use crate::inode::InodeView;
use crate::layout::media_struct;
use crate::limits::*;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// "FHLOGREC"
pub const MAGIC: u64 = u64::from_le_bytes(*b"FHLOGREC");
const NAME: &str = "log record";
const CRC_AT: usize = 8;
const HEADER: usize = size_of::<RecordHeader>();

media_struct! {
    /// Header of a log record.
    pub struct RecordHeader: 96 {
        /// "FHLOGREC"
        magic: U64,
        /// CRC-32C of the whole record, this field counted as zero
        crc: U32,
        /// checksum of the record of the previous epoch
        chain: U32,
        /// the volume
        uuid: [u8; 16],
        /// the epoch that this record commits
        epoch: U64,
        /// an epoch that was durable when this record was made; blocks freed up to it may have been reused
        durable_epoch: U64,
        /// length of the record, blocks
        blocks: U32,
        /// number of segment assignments
        assignments: U32,
        /// number of covers
        covers: U32,
        /// number of pages
        pages: U32,
        /// number of inode images
        inodes: U32,
        /// bytes of the inode images with their lengths and padding
        inode_bytes: U32,
        /// seconds since 1970 when the epoch was closed
        time: U64,
        /// drawn by chance whenever the volume is opened: no record is ever equal to one of another opening, so that what is
        /// chained to a record that was lost stays lost even when the same changes are made again
        nonce: U64,
        /// zero
        reserved: [u8; 8],
    }
}

media_struct! {
    /// A segment that became, or ceased to be, an inode segment in this epoch.
    pub struct SegmentAssignment: 8 {
        /// position in the inode segment table
        index: U32,
        /// the segment; 0 when the position was given up
        segment: U32,
    }
}

media_struct! {
    /// Cover: data blocks written for this epoch and their checksum.
    pub struct Cover: 16 {
        /// first block
        block: U64,
        /// number of blocks
        count: U32,
        /// CRC-32C of the row of the blocks' own CRC-32Cs (4 bytes each)
        data_crc: U32,
    }
}

media_struct! {
    /// A page whose content stands in the record itself.
    pub struct PageEntry: 24 {
        /// the file
        ino: U64,
        /// the page of the file
        file_block: U64,
        /// the block that the content belongs to
        block: U64,
    }
}

/// The checksum of a cover, from the checksums of its blocks.
pub fn cover_crc(block_crcs: &[u32]) -> u32 {
    let row: Vec<u8> = block_crcs.iter().flat_map(|crc| crc.to_le_bytes()).collect();
    crate::crc32c(&row)
}

/// Builds one record. Feed the parts in any order, then call [`RecordBuilder::finish`].
#[derive(Debug, Default)]
pub struct RecordBuilder {
    assignments: Vec<SegmentAssignment>,
    covers: Vec<Cover>,
    pages: Vec<PageEntry>,
    inodes: u32,
    inode_bytes: Vec<u8>,
}

/// The identity of a record within the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordId {
    /// The volume.
    pub uuid: [u8; 16],
    /// The epoch that the record commits.
    pub epoch: Epoch,
    /// An epoch known to be durable.
    pub durable_epoch: Epoch,
    /// Checksum of the previous record.
    pub chain: u32,
    /// Seconds since 1970.
    pub time: u64,
    /// Drawn by chance whenever the volume is opened.
    pub nonce: u64,
}

impl RecordBuilder {
    /// A builder that keeps inode images in memory that an earlier one had, so that this need not be had anew.
    pub fn in_memory(mut inode_bytes: Vec<u8>) -> RecordBuilder {
        inode_bytes.clear();
        RecordBuilder { inode_bytes, ..RecordBuilder::default() }
    }
    /// The memory of the inode images.
    pub fn into_memory(self) -> Vec<u8> {
        self.inode_bytes
    }

    /// Adds a segment assignment; `segment` 0 gives the position up.
    pub fn assignment(&mut self, index: u32, segment: u32) {
        self.assignments.push(SegmentAssignment { index: index.into(), segment: segment.into() });
    }
    /// Adds the checksum of `count` data blocks.
    pub fn cover(&mut self, block: BlockNo, count: u32, data_crc: u32) {
        self.covers.push(Cover { block: block.0.into(), count: count.into(), data_crc: data_crc.into() });
    }
    /// Adds a page whose content will stand in the record, in the order of these calls.
    pub fn page(&mut self, ino: Ino, file_block: u64, block: BlockNo) {
        self.pages.push(PageEntry {
            ino: ino.0.into(),
            file_block: file_block.into(),
            block: block.0.into(),
        });
    }
    /// Adds an inode image that `write` appends to the buffer it is given.
    pub fn inode(&mut self, write: impl FnOnce(&mut Vec<u8>) -> usize) {
        let at = self.inode_bytes.len();
        self.inode_bytes.extend_from_slice(&[0; 4]);
        let len = write(&mut self.inode_bytes);
        self.inode_bytes[at..at + 4].copy_from_slice(&(len as u32).to_le_bytes());
        self.inode_bytes.resize(self.inode_bytes.len().next_multiple_of(8), 0);
        self.inodes += 1;
    }
    /// Nothing was added.
    pub fn is_empty(&self) -> bool {
        self.assignments.is_empty() && self.covers.is_empty() && self.pages.is_empty() && self.inodes == 0
    }
    /// Bytes in front of the page contents.
    fn front(&self) -> usize {
        let n = HEADER
            + self.assignments.len() * size_of::<SegmentAssignment>()
            + self.covers.len() * size_of::<Cover>()
            + self.pages.len() * size_of::<PageEntry>();
        n.next_multiple_of(8) + self.inode_bytes.len()
    }
    /// Length of the record in blocks.
    pub fn blocks(&self) -> usize {
        self.front().div_ceil(BLOCK_SIZE) + self.pages.len()
    }
    /// Number of inode images.
    pub fn inodes(&self) -> u32 {
        self.inodes
    }

    /// Writes the record to `out` ([`RecordBuilder::blocks`] blocks); `page(i)` is the content of the i-th page. Returns
    /// the checksum, to which the next record is chained.
    pub fn finish<'p>(&self, id: &RecordId, out: &mut [u8], page: impl Fn(usize) -> &'p [u8]) -> u32 {
        let blocks = self.blocks();
        assert_eq!(out.len(), blocks * BLOCK_SIZE);
        let mut h = RecordHeader::new_zeroed();
        h.magic = MAGIC.into();
        h.chain = id.chain.into();
        h.uuid = id.uuid;
        h.epoch = id.epoch.0.into();
        h.durable_epoch = id.durable_epoch.0.into();
        h.blocks = (blocks as u32).into();
        h.assignments = (self.assignments.len() as u32).into();
        h.covers = (self.covers.len() as u32).into();
        h.pages = (self.pages.len() as u32).into();
        h.inodes = self.inodes.into();
        h.inode_bytes = (self.inode_bytes.len() as u32).into();
        h.time = id.time.into();
        h.nonce = id.nonce.into();
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(h.as_bytes());
        put(self.assignments.as_bytes());
        put(self.covers.as_bytes());
        put(self.pages.as_bytes());
        let aligned = at.next_multiple_of(8);
        out[at..aligned].fill(0);
        out[aligned..aligned + self.inode_bytes.len()].copy_from_slice(&self.inode_bytes);
        let pages_at = (blocks - self.pages.len()) * BLOCK_SIZE;
        out[aligned + self.inode_bytes.len()..pages_at].fill(0);
        for i in 0..self.pages.len() {
            out[pages_at + i * BLOCK_SIZE..][..BLOCK_SIZE].copy_from_slice(page(i));
        }
        let crc = crc32c_without_field(out, CRC_AT);
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        crc
    }
}

/// Looks at the first block of what may be a record: `Some(blocks)` when it is the header of the record that follows the
/// chain `(epoch - 1, chain)`, `None` when the log ends here.
pub fn probe(block: &[u8], uuid: &[u8; 16], epoch: Epoch, chain: u32) -> Option<u32> {
    let (h, _) = RecordHeader::read_from_prefix(block).ok()?;
    let fits = h.magic.get() == MAGIC
        && &h.uuid == uuid
        && h.epoch.get() == epoch.0
        && h.chain.get() == chain
        && h.blocks.get() > 0
        && h.blocks.get() as usize <= LOG_RECORD_MAX / BLOCK_SIZE;
    fits.then_some(h.blocks.get())
}

/// Looks at a block for the header of a record of any epoch of this volume: its epoch and length in blocks.
pub fn probe_any(block: &[u8], uuid: &[u8; 16]) -> Option<(Epoch, u32)> {
    let (h, _) = RecordHeader::read_from_prefix(block).ok()?;
    let (epoch, chain) = (Epoch(h.epoch.get()), h.chain.get());
    probe(block, uuid, epoch, chain).map(|blocks| (epoch, blocks))
}

/// A record as parsed from bytes that it borrows.
#[derive(Debug)]
pub struct Record<'a> {
    /// The header.
    pub header: RecordHeader,
    /// Segments that changed their role.
    pub assignments: &'a [SegmentAssignment],
    /// Data blocks written for this epoch.
    pub covers: &'a [Cover],
    /// Pages whose content stands in the record.
    pub pages: &'a [PageEntry],
    inode_bytes: &'a [u8],
    page_bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// Checks a whole record, checksum first.
    pub fn parse(bytes: &'a [u8]) -> Result<Record<'a>> {
        check_len(NAME, bytes.len(), BLOCK_SIZE)?;
        let (h, _) = RecordHeader::read_from_prefix(bytes).expect("length was checked");
        check_magic(NAME, MAGIC, h.magic.get())?;
        check_range(NAME, "blocks", h.blocks.get() as u64, (LOG_RECORD_MAX / BLOCK_SIZE) as u64)?;
        check_len(NAME, bytes.len(), h.blocks.get() as usize * BLOCK_SIZE)?;
        let bytes = &bytes[..h.blocks.get() as usize * BLOCK_SIZE];
        check_rule(NAME, !bytes.is_empty(), "length is zero")?;
        check_crc(NAME, h.crc.get(), crc32c_without_field(bytes, CRC_AT))?;
        let mut at = HEADER;
        let mut take = |count: u32, size: usize| -> Result<&'a [u8]> {
            let len = count as usize * size;
            check_len(NAME, bytes.len(), at.saturating_add(len))?;
            let part = &bytes[at..at + len];
            at += len;
            Ok(part)
        };
        let assignments = take(h.assignments.get(), size_of::<SegmentAssignment>())?;
        let covers = take(h.covers.get(), size_of::<Cover>())?;
        let pages = take(h.pages.get(), size_of::<PageEntry>())?;
        at = at.next_multiple_of(8);
        check_len(NAME, bytes.len(), at.saturating_add(h.inode_bytes.get() as usize))?;
        let inode_bytes = &bytes[at..at + h.inode_bytes.get() as usize];
        let blocks = (at + inode_bytes.len()).div_ceil(BLOCK_SIZE) + h.pages.get() as usize;
        check_rule(NAME, blocks == h.blocks.get() as usize, "length and contents disagree")?;
        Ok(Record {
            header: h,
            assignments: <[SegmentAssignment]>::ref_from_bytes(assignments).expect("whole entries"),
            covers: <[Cover]>::ref_from_bytes(covers).expect("whole entries"),
            pages: <[PageEntry]>::ref_from_bytes(pages).expect("whole entries"),
            inode_bytes,
            page_bytes: &bytes[bytes.len() - h.pages.get() as usize * BLOCK_SIZE..],
        })
    }

    /// The epoch that this record commits.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.header.epoch.get())
    }

    /// The content of the i-th page.
    pub fn page(&self, i: usize) -> &'a [u8] {
        &self.page_bytes[i * BLOCK_SIZE..][..BLOCK_SIZE]
    }

    /// The inode images: each compact image and its parse.
    pub fn inodes(&self) -> impl Iterator<Item = Result<(&'a [u8], InodeView<'a>)>> + use<'a> {
        let mut rest = self.inode_bytes;
        let mut left = self.header.inodes.get();
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            left -= 1;
            let short = FormatError::new(NAME, Fault::Rule("inode images are cut short"));
            let Some((len, body)) = rest.split_first_chunk::<4>() else {
                left = 0;
                return Some(Err(short));
            };
            let len = u32::from_le_bytes(*len) as usize;
            if len > body.len() {
                left = 0;
                return Some(Err(short));
            }
            let step = (4 + len).next_multiple_of(8).min(rest.len());
            rest = &rest[step..];
            Some(crate::inode::parse_compact(&body[..len]).map(|view| (&body[..len], view)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::{InodeHeader, SlotKind, encode_compact};

    #[test]
    fn round_trip_and_damage() {
        let mut b = RecordBuilder::default();
        b.assignment(3, 17);
        b.cover(BlockNo(900), 2, 0xabcd);
        b.page(Ino(8), 1, BlockNo(901));
        let mut h = InodeHeader::new_zeroed();
        h.ino = 8.into();
        h.kind = SlotKind::Inode as u8;
        h.parent = 1.into();
        b.inode(|out| encode_compact(&h, b"x", b"", b"", out));
        b.inode(|out| encode_compact(&h, b"longer name", b"", b"", out));
        let id = RecordId {
            uuid: [5; 16],
            epoch: Epoch(12),
            durable_epoch: Epoch(10),
            chain: 77,
            time: 1,
            nonce: 2,
        };
        let mut bytes = vec![0xee; b.blocks() * BLOCK_SIZE];
        let content = [9u8; BLOCK_SIZE];
        let crc = b.finish(&id, &mut bytes, |_| &content);
        assert_eq!(probe(&bytes, &[5; 16], Epoch(12), 77), Some(2));
        assert_eq!(probe(&bytes, &[5; 16], Epoch(12), 78), None);
        let record = Record::parse(&bytes).unwrap();
        assert_eq!(record.header.crc.get(), crc);
        assert_eq!((record.assignments.len(), record.covers.len(), record.pages.len()), (1, 1, 1));
        assert_eq!(record.page(0), content);
        let names: Vec<_> = record.inodes().map(|r| r.unwrap().1.name.to_vec()).collect();
        assert_eq!(names, [b"x".to_vec(), b"longer name".to_vec()]);
        for at in (0..bytes.len()).step_by(3) {
            let mut bad = bytes.clone();
            bad[at] ^= 4;
            assert!(Record::parse(&bad).is_err(), "flipped byte {at} was accepted");
        }
    }
}
