//! The inode segment table: which segments hold inodes, in the order of inode numbers.
//!
//! The table fills the rest of the super segment. Each of its blocks has two homes that are written in turn, so that a
//! torn write, or one whose checkpoint was never completed, leaves the previous state, from which the log leads on.

use crate::checksum::crc32c_without_field;
use crate::error::{Result, check_crc, check_len, check_magic, check_range, check_rule};
use crate::ids::{BlockNo, SegNo};
use crate::layout::media_struct;
use crate::limits::BLOCK_SIZE;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// First block of the table.
pub const TABLE_START: BlockNo = BlockNo(16);
/// Blocks of the table (each with two homes).
pub const TABLE_BLOCKS: usize = 248;
/// Segment numbers in one block.
pub const ENTRIES_PER_BLOCK: usize = (BLOCK_SIZE - size_of::<SegTableHeader>()) / 4;
/// "FHST"
pub const MAGIC: u32 = u32::from_le_bytes(*b"FHST");

const NAME: &str = "inode segment table";
const CRC_AT: usize = 4;
const _: () = assert!(TABLE_START.0 as usize + 2 * TABLE_BLOCKS == crate::limits::SEGMENT_BLOCKS);

media_struct! {
    /// Header of a block of the inode segment table. 1012 segment numbers follow (32 bits each); 0 means "no segment".
    pub struct SegTableHeader: 48 {
        /// "FHST"
        magic: U32,
        /// CRC-32C of the block, this field counted as zero
        crc: U32,
        /// the volume
        uuid: [u8; 16],
        /// number of the checkpoint that wrote this block; a home with a number beyond the checkpoint's does not count
        sequence: U64,
        /// position of this block in the table
        index: U32,
        /// zero
        reserved: [u8; 12],
    }
}

/// Both homes of table block `index`. A write goes to the one that does not hold the current content; of two valid ones
/// that count the one with the larger sequence number that is not beyond the checkpoint's.
pub fn homes(index: usize) -> [BlockNo; 2] {
    assert!(index < TABLE_BLOCKS);
    let first = TABLE_START.0 + index as u64;
    [BlockNo(first), BlockNo(first + TABLE_BLOCKS as u64)]
}

/// The checksum of the whole table, as checkpoints carry it: of all entries in use, 0 where no segment is assigned.
pub fn table_crc(entries: &[Option<SegNo>]) -> u32 {
    let bytes: Vec<u8> = entries.iter().flat_map(|e| e.map_or(0, |s| s.0).to_le_bytes()).collect();
    crate::crc32c(&bytes)
}

/// The block to write: `entries` are at most [`ENTRIES_PER_BLOCK`] segments, `None` where no segment is assigned.
pub fn encode(uuid: &[u8; 16], sequence: u64, index: usize, entries: &[Option<SegNo>]) -> Box<[u8]> {
    assert!(entries.len() <= ENTRIES_PER_BLOCK);
    let mut block = vec![0; BLOCK_SIZE].into_boxed_slice();
    let mut h = SegTableHeader::new_zeroed();
    h.magic = MAGIC.into();
    h.uuid = *uuid;
    h.sequence = sequence.into();
    h.index = (index as u32).into();
    let start = size_of::<SegTableHeader>();
    block[..start].copy_from_slice(h.as_bytes());
    for (i, entry) in entries.iter().enumerate() {
        block[start + 4 * i..][..4].copy_from_slice(&entry.map_or(0, |s| s.0).to_le_bytes());
    }
    let crc = crc32c_without_field(&block, CRC_AT);
    block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    block
}

/// Checks one home of table block `index` and returns its sequence number and entries.
pub fn parse(
    block: &[u8],
    uuid: &[u8; 16],
    index: usize,
    segments: u32,
) -> Result<(u64, Vec<Option<SegNo>>)> {
    check_len(NAME, block.len(), BLOCK_SIZE)?;
    let (h, _) = SegTableHeader::read_from_prefix(block).expect("length was checked");
    check_magic(NAME, MAGIC as u64, h.magic.get() as u64)?;
    check_crc(NAME, h.crc.get(), crc32c_without_field(&block[..BLOCK_SIZE], CRC_AT))?;
    check_rule(NAME, &h.uuid == uuid, "belongs to another volume")?;
    check_rule(NAME, h.index.get() as usize == index, "stands in another block's place")?;
    let mut entries = Vec::with_capacity(ENTRIES_PER_BLOCK);
    for raw in block[size_of::<SegTableHeader>()..BLOCK_SIZE].chunks_exact(4) {
        let seg = u32::from_le_bytes(raw.try_into().expect("four bytes"));
        check_range(NAME, "segment", seg as u64, segments as u64 - 1)?;
        entries.push((seg != 0).then_some(SegNo(seg)));
    }
    Ok((h.sequence.get(), entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_damage() {
        let entries = [Some(SegNo(5)), None, Some(SegNo(7))];
        let block = encode(&[1; 16], 4, 2, &entries);
        let (sequence, found) = parse(&block, &[1; 16], 2, 8).unwrap();
        assert_eq!((sequence, &found[..3]), (4, &entries[..]));
        assert!(found[3..].iter().all(Option::is_none));
        assert!(parse(&block, &[1; 16], 3, 8).is_err(), "misplaced block was accepted");
        assert!(parse(&block, &[1; 16], 2, 7).is_err(), "segment beyond the volume was accepted");
        for at in (0..BLOCK_SIZE).step_by(7) {
            let mut bytes = block.clone();
            bytes[at] ^= 2;
            assert!(parse(&bytes, &[1; 16], 2, 8).is_err(), "flipped byte {at} was accepted");
        }
    }
}
