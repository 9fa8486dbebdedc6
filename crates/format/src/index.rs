//! The index checkpoint: a clean stop writes the inodes without their tails and the usage of segments to free segments, so
//! that the next mount need not scan the inode segments. It is derived from the inodes and thrown away when it is damaged.
//!
//! It consists of pieces of one segment each; every piece can be checked and decoded alone, and in parallel.
//! A piece holds either compact inode images (see [`crate::inode`]) without tail and extended attributes, each behind its
//! length (u32) and padded to 8 bytes, or [`SegmentUsage`] entries of the segments that are in use but not entirely so, or runs of full segments.

use crate::checksum::crc32c_without_field;
use crate::error::{Result, check_crc, check_len, check_magic, check_range, check_rule};
use crate::layout::media_struct;
use crate::limits::SEGMENT_SIZE;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// "FHIX"
pub const MAGIC: u32 = u32::from_le_bytes(*b"FHIX");
/// Bytes of entries in a piece.
pub const PIECE_BYTES: usize = SEGMENT_SIZE - size_of::<PieceHeader>();
const NAME: &str = "index checkpoint";
const CRC_AT: usize = 4;

media_struct! {
    /// Header of a piece of the index checkpoint.
    pub struct PieceHeader: 64 {
        /// "FHIX"
        magic: U32,
        /// CRC-32C of the header and the bytes in use, this field counted as zero
        crc: U32,
        /// the volume
        uuid: [u8; 16],
        /// number of the checkpoint that this piece belongs to
        sequence: U64,
        /// position of this piece
        piece: U32,
        /// 1: inodes; 2: partly used segments; 3: runs of full segments
        kind: U32,
        /// entries in this piece
        entries: U32,
        /// bytes in use behind the header
        used: U32,
        /// zero
        reserved: [u8; 16],
    }
}

media_struct! {
    /// A segment of which some blocks are in use.
    pub struct SegmentUsage: 72 {
        /// the segment
        segment: U32,
        /// blocks in use
        used: U32,
        /// one bit a block, lowest first; 1 means in use
        bitmap: [U64; 8],
    }
}

/// What a piece holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PieceKind {
    /// Compact inode images without tails.
    Inodes = 1,
    /// [`SegmentUsage`] entries.
    Partial = 2,
    /// [`crate::checkpoint::SegmentRun`] entries: segments whose blocks are all in use.
    Full = 3,
}

/// Completes a piece: `piece` is a segment whose bytes behind the header hold `used` bytes of entries.
pub fn seal(
    uuid: &[u8; 16],
    sequence: u64,
    number: u32,
    kind: PieceKind,
    entries: u32,
    used: usize,
    piece: &mut [u8],
) {
    assert!(piece.len() == SEGMENT_SIZE && used <= PIECE_BYTES);
    let mut h = PieceHeader::new_zeroed();
    h.magic = MAGIC.into();
    h.uuid = *uuid;
    h.sequence = sequence.into();
    h.piece = number.into();
    h.kind = (kind as u32).into();
    h.entries = entries.into();
    h.used = (used as u32).into();
    let at = size_of::<PieceHeader>();
    piece[..at].copy_from_slice(h.as_bytes());
    let crc = crc32c_without_field(&piece[..at + used], CRC_AT);
    piece[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Checks piece `number` and returns its kind, the number of entries and their bytes.
pub fn parse<'a>(
    piece: &'a [u8],
    uuid: &[u8; 16],
    sequence: u64,
    number: u32,
) -> Result<(PieceKind, u32, &'a [u8])> {
    check_len(NAME, piece.len(), size_of::<PieceHeader>())?;
    let (h, body) = PieceHeader::read_from_prefix(piece).expect("length was checked");
    check_magic(NAME, MAGIC as u64, h.magic.get() as u64)?;
    check_rule(NAME, &h.uuid == uuid, "belongs to another volume")?;
    check_rule(NAME, h.sequence.get() == sequence, "belongs to another checkpoint")?;
    check_rule(NAME, h.piece.get() == number, "pieces are out of order")?;
    check_range(NAME, "used", h.used.get() as u64, PIECE_BYTES as u64)?;
    let used = h.used.get() as usize;
    check_len(NAME, body.len(), used)?;
    check_crc(NAME, h.crc.get(), crc32c_without_field(&piece[..size_of::<PieceHeader>() + used], CRC_AT))?;
    let kind = match h.kind.get() {
        1 => PieceKind::Inodes,
        2 => PieceKind::Partial,
        3 => PieceKind::Full,
        k => return Err(check_range(NAME, "kind", k as u64, 3).unwrap_err()),
    };
    Ok((kind, h.entries.get(), &body[..used]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_damage() {
        let mut piece = vec![0; SEGMENT_SIZE];
        piece[64..72].copy_from_slice(b"contents");
        seal(&[1; 16], 9, 3, PieceKind::Full, 1, 8, &mut piece);
        assert_eq!(parse(&piece, &[1; 16], 9, 3).unwrap(), (PieceKind::Full, 1, &b"contents"[..]));
        assert!(parse(&piece, &[1; 16], 8, 3).is_err());
        for at in 0..72 {
            piece[at] ^= 1;
            assert!(parse(&piece, &[1; 16], 9, 3).is_err(), "flipped byte {at} was accepted");
            piece[at] ^= 1;
        }
    }
}
