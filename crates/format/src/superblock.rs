//! The superblock: what never changes after mkfs. It stands in block 0, with a copy in block 1.

use crate::checksum::crc32c_without_field;
use crate::error::{Result, check_crc, check_len, check_magic, check_range, check_rule};
use crate::ids::BlockNo;
use crate::inode::Timespec;
use crate::layout::media_struct;
use crate::limits::*;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Blocks that hold the superblock and its copy.
pub const SUPERBLOCKS: [BlockNo; 2] = [BlockNo(0), BlockNo(1)];
/// "FREEHOLD" in ASCII.
pub const MAGIC: u64 = u64::from_le_bytes(*b"FREEHOLD");
/// Version of the format, not of the software. Rule: raise it when software of the previous version would misread a
/// volume or lose data on it; an addition that old software can ignore does not raise it.
pub const VERSION: u32 = 1;

const NAME: &str = "superblock";
const CRC_AT: usize = 8;

media_struct! {
    /// Superblock: identity and geometry of the volume, written once by mkfs.
    pub struct Superblock: 4096 {
        /// "FREEHOLD"
        magic: U64,
        /// CRC-32C of the block, this field counted as zero
        crc: U32,
        /// version of the format
        version: U32,
        /// random identity of the volume; part of every log record and checkpoint
        uuid: [u8; 16],
        /// bytes in a block, 4096
        block_size: U32,
        /// bytes in a segment, 2 MiB
        segment_size: U32,
        /// blocks of the volume, a multiple of 512
        blocks: U64,
        /// when the volume was made
        created: Timespec,
        /// bytes that the device was known to write atomically at mkfs
        atomic_unit: U32,
        /// 1: every overwrite is ordered and atomic (`mkfs --strict`)
        strict: U32,
        /// name of the volume, UTF-8, padded with zeros
        label: [u8; 64],
        /// zero
        reserved: [u8; 3964],
    }
}

impl Superblock {
    /// A superblock for a volume of `blocks` blocks.
    pub fn new(
        uuid: [u8; 16],
        blocks: u64,
        created: Timespec,
        atomic_unit: u32,
        strict: bool,
        label: &str,
    ) -> Self {
        let mut sb = Superblock::new_zeroed();
        sb.magic = MAGIC.into();
        sb.version = VERSION.into();
        sb.uuid = uuid;
        sb.block_size = (BLOCK_SIZE as u32).into();
        sb.segment_size = (SEGMENT_SIZE as u32).into();
        sb.blocks = blocks.into();
        sb.created = created;
        sb.atomic_unit = atomic_unit.into();
        sb.strict = (strict as u32).into();
        let n = label.len().min(64);
        sb.label[..n].copy_from_slice(&label.as_bytes()[..n]);
        sb.crc = crc32c_without_field(sb.as_bytes(), CRC_AT).into();
        sb
    }

    /// Checks a block and returns the superblock in it.
    pub fn parse(block: &[u8]) -> Result<Superblock> {
        check_len(NAME, block.len(), BLOCK_SIZE)?;
        let (sb, _) = Superblock::read_from_prefix(block).expect("length was checked");
        check_magic(NAME, MAGIC, sb.magic.get())?;
        check_crc(NAME, sb.crc.get(), crc32c_without_field(&block[..BLOCK_SIZE], CRC_AT))?;
        check_rule(NAME, sb.version.get() == VERSION, "format version is not one this software reads")?;
        check_rule(NAME, sb.block_size.get() == BLOCK_SIZE as u32, "block size is not 4096")?;
        check_rule(NAME, sb.segment_size.get() == SEGMENT_SIZE as u32, "segment size is not 2 MiB")?;
        check_range(NAME, "blocks", sb.blocks.get(), VOLUME_MAX / BLOCK_SIZE as u64)?;
        check_rule(
            NAME,
            sb.blocks.get() >= VOLUME_MIN / BLOCK_SIZE as u64,
            "volume is smaller than the minimum",
        )?;
        check_rule(
            NAME,
            sb.blocks.get() % SEGMENT_BLOCKS as u64 == 0,
            "blocks is not a multiple of a segment",
        )?;
        Ok(sb)
    }

    /// Segments of the volume.
    pub fn segments(&self) -> u32 {
        (self.blocks.get() / SEGMENT_BLOCKS as u64) as u32
    }

    /// The label as text.
    pub fn label(&self) -> String {
        let end = self.label.iter().position(|&b| b == 0).unwrap_or(self.label.len());
        String::from_utf8_lossy(&self.label[..end]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_damage() {
        let sb = Superblock::new([7; 16], 512 * 64, Timespec::default(), 4096, false, "scratch");
        assert_eq!(Superblock::parse(sb.as_bytes()).unwrap(), sb);
        assert_eq!(sb.label(), "scratch");
        for at in [0, 9, 12, 40, 60, 4095] {
            let mut bytes = sb.as_bytes().to_vec();
            bytes[at] ^= 1;
            assert!(Superblock::parse(&bytes).is_err(), "flipped byte {at} was accepted");
        }
    }
}
