//! The checkpoint: where the volume stood when everything up to one epoch was in its home place, and where the log goes
//! on from there. Two blocks are used in turn, so that a torn write leaves the other one whole.

use crate::checksum::crc32c_without_field;
use crate::error::{Result, check_crc, check_len, check_magic, check_range, check_rule};
use crate::ids::{BlockNo, Epoch, SegNo};
use crate::layout::media_struct;
use crate::limits::*;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The two blocks; checkpoint number `n` is written to `CHECKPOINTS[n % 2]`.
pub const CHECKPOINTS: [BlockNo; 2] = [BlockNo(2), BlockNo(3)];
/// "FHCP"
pub const MAGIC: u32 = u32::from_le_bytes(*b"FHCP");
/// Most runs of segments that an index checkpoint may occupy.
pub const INDEX_RUNS_MAX: usize = 192;

const NAME: &str = "checkpoint";
const CRC_AT: usize = 4;
const LOG_AT: usize = size_of::<CheckpointHeader>();
const RUNS_AT: usize = LOG_AT + 4 * LOG_SEGMENTS_MAX;
const _: () = assert!(RUNS_AT + INDEX_RUNS_MAX * size_of::<SegmentRun>() <= BLOCK_SIZE);

media_struct! {
    /// Checkpoint header. Behind it stand 512 segment numbers of the log ring, then 192 runs of the index checkpoint.
    pub struct CheckpointHeader: 128 {
        /// "FHCP"
        magic: U32,
        /// CRC-32C of the block, this field counted as zero
        crc: U32,
        /// the volume this checkpoint belongs to
        uuid: [u8; 16],
        /// number of this checkpoint; the valid one with the larger number counts
        sequence: U64,
        /// every change up to this epoch is in its home place
        epoch: U64,
        /// position in the log ring, in blocks, of the record of the next epoch
        log_position: U64,
        /// checksum of the record of `epoch`, to which the next record is chained; drawn by chance by mkfs
        chain: U32,
        /// 1 after a clean stop: the log is empty and the index checkpoint, when present, is current
        clean: U32,
        /// segments in the log ring
        log_segments: U32,
        /// entries of the inode segment table in use
        inode_segments: U32,
        /// runs of segments that hold the index checkpoint; 0 when there is none
        index_runs: U32,
        /// pieces (segments) of the index checkpoint
        index_pieces: U32,
        /// inodes in the index checkpoint
        index_inodes: U64,
        /// epoch known to be durable; at least `epoch`
        durable_epoch: U64,
        /// CRC-32C of the inode segment table's entries in use; tells which homes of its blocks belong to this checkpoint
        table_crc: U32,
        /// numbers of the openings that ended in clean stops one after the other, the newest first; 0: none. Not zero only when clean
        stops: [U64; 4],
        /// the highest generation that any slot has had, also slots that are free; 0: not known. Not zero only when clean
        generation: U32,
    }
}

media_struct! {
    /// A run of neighbouring segments.
    pub struct SegmentRun: 8 {
        /// first segment
        first: U32,
        /// number of segments
        count: U32,
    }
}

/// A checkpoint in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The volume.
    pub uuid: [u8; 16],
    /// Number of this checkpoint.
    pub sequence: u64,
    /// Everything up to this epoch is in its home place.
    pub epoch: Epoch,
    /// Where in the log ring, in blocks, the next record stands.
    pub log_position: u64,
    /// Checksum of the record of `epoch`.
    pub chain: u32,
    /// Written by a clean stop.
    pub clean: bool,
    /// The log ring, in ring order.
    pub log_segments: Vec<SegNo>,
    /// Entries of the inode segment table in use.
    pub inode_segments: u32,
    /// Where the index checkpoint stands: (first segment, count).
    pub index_runs: Vec<(SegNo, u32)>,
    /// Pieces of the index checkpoint.
    pub index_pieces: u32,
    /// Inodes in the index checkpoint.
    pub index_inodes: u64,
    /// Epoch known to be durable.
    pub durable_epoch: Epoch,
    /// Checksum of the inode segment table ([`crate::segtable::table_crc`]).
    pub table_crc: u32,
    /// Openings that ended in clean stops one after the other, the newest first; 0: none.
    pub stops: [u64; 4],
    /// The highest generation of any slot, also of those that are free; 0: not known.
    pub generation: u32,
}

impl Checkpoint {
    /// The same without what only holds after a clean stop.
    pub fn running(&self) -> Checkpoint {
        Checkpoint {
            clean: false,
            index_runs: Vec::new(),
            index_pieces: 0,
            index_inodes: 0,
            stops: [0; 4],
            generation: 0,
            ..self.clone()
        }
    }

    /// The block to write. Requires `log_segments` and `index_runs` within their limits.
    pub fn encode(&self) -> Box<[u8]> {
        assert!(self.log_segments.len() <= LOG_SEGMENTS_MAX && self.index_runs.len() <= INDEX_RUNS_MAX);
        let mut block = vec![0; BLOCK_SIZE].into_boxed_slice();
        let mut h = CheckpointHeader::new_zeroed();
        h.magic = MAGIC.into();
        h.uuid = self.uuid;
        h.sequence = self.sequence.into();
        h.epoch = self.epoch.0.into();
        h.log_position = self.log_position.into();
        h.chain = self.chain.into();
        h.clean = (self.clean as u32).into();
        h.log_segments = (self.log_segments.len() as u32).into();
        h.inode_segments = self.inode_segments.into();
        h.index_runs = (self.index_runs.len() as u32).into();
        h.index_pieces = self.index_pieces.into();
        h.index_inodes = self.index_inodes.into();
        h.durable_epoch = self.durable_epoch.0.into();
        h.table_crc = self.table_crc.into();
        h.stops = self.stops.map(U64::new);
        h.generation = self.generation.into();
        block[..LOG_AT].copy_from_slice(h.as_bytes());
        for (i, seg) in self.log_segments.iter().enumerate() {
            block[LOG_AT + 4 * i..][..4].copy_from_slice(&seg.0.to_le_bytes());
        }
        for (i, (first, count)) in self.index_runs.iter().enumerate() {
            let run = SegmentRun { first: first.0.into(), count: (*count).into() };
            block[RUNS_AT + 8 * i..][..8].copy_from_slice(run.as_bytes());
        }
        let crc = crc32c_without_field(&block, CRC_AT);
        block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Checks a block of a volume with `segments` segments and returns the checkpoint in it.
    pub fn parse(block: &[u8], uuid: &[u8; 16], segments: u32) -> Result<Checkpoint> {
        check_len(NAME, block.len(), BLOCK_SIZE)?;
        let (h, _) = CheckpointHeader::read_from_prefix(block).expect("length was checked");
        check_magic(NAME, MAGIC as u64, h.magic.get() as u64)?;
        check_crc(NAME, h.crc.get(), crc32c_without_field(&block[..BLOCK_SIZE], CRC_AT))?;
        check_rule(NAME, &h.uuid == uuid, "belongs to another volume")?;
        check_range(NAME, "log_segments", h.log_segments.get() as u64, LOG_SEGMENTS_MAX as u64)?;
        check_rule(NAME, h.log_segments.get() > 0, "log ring is empty")?;
        check_range(NAME, "inode_segments", h.inode_segments.get() as u64, INODE_SEGMENTS_MAX as u64)?;
        check_range(NAME, "index_runs", h.index_runs.get() as u64, INDEX_RUNS_MAX as u64)?;
        let ring = h.log_segments.get() as u64 * SEGMENT_BLOCKS as u64;
        check_range(NAME, "log_position", h.log_position.get(), ring - 1)?;
        check_rule(NAME, h.durable_epoch.get() >= h.epoch.get(), "durable epoch lies before the checkpoint")?;
        let mut log_segments = Vec::with_capacity(h.log_segments.get() as usize);
        for i in 0..h.log_segments.get() as usize {
            let bytes = block[LOG_AT + 4 * i..][..4].try_into().expect("four bytes");
            let seg = u32::from_le_bytes(bytes);
            check_range(NAME, "log segment", seg as u64, segments as u64 - 1)?;
            check_rule(NAME, seg != 0, "log ring holds the super segment")?;
            log_segments.push(SegNo(seg));
        }
        let mut index_runs = Vec::with_capacity(h.index_runs.get() as usize);
        let mut pieces = 0u64;
        for i in 0..h.index_runs.get() as usize {
            let (run, _) = SegmentRun::read_from_prefix(&block[RUNS_AT + 8 * i..]).expect("within the block");
            let end = run.first.get() as u64 + run.count.get() as u64;
            check_range(NAME, "index run end", end, segments as u64)?;
            check_rule(
                NAME,
                run.first.get() != 0 && run.count.get() != 0,
                "index run is empty or in the super segment",
            )?;
            pieces += run.count.get() as u64;
            index_runs.push((SegNo(run.first.get()), run.count.get()));
        }
        check_rule(NAME, pieces == h.index_pieces.get() as u64, "index runs and pieces disagree")?;
        Ok(Checkpoint {
            uuid: h.uuid,
            sequence: h.sequence.get(),
            epoch: Epoch(h.epoch.get()),
            log_position: h.log_position.get(),
            chain: h.chain.get(),
            clean: h.clean.get() == 1,
            log_segments,
            inode_segments: h.inode_segments.get(),
            index_runs,
            index_pieces: h.index_pieces.get(),
            index_inodes: h.index_inodes.get(),
            durable_epoch: Epoch(h.durable_epoch.get()),
            table_crc: h.table_crc.get(),
            stops: h.stops.map(U64::get),
            generation: h.generation.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_damage() {
        let cp = Checkpoint {
            uuid: [3; 16],
            sequence: 9,
            epoch: Epoch(100),
            log_position: 700,
            chain: 0xdead_beef,
            clean: true,
            log_segments: vec![SegNo(1), SegNo(2), SegNo(9)],
            inode_segments: 4,
            index_runs: vec![(SegNo(20), 3), (SegNo(40), 1)],
            index_pieces: 4,
            index_inodes: 1000,
            durable_epoch: Epoch(101),
            table_crc: 7,
            stops: [5, 4, 3, 0],
            generation: 77,
        };
        let block = cp.encode();
        assert_eq!(Checkpoint::parse(&block, &[3; 16], 64).unwrap(), cp);
        assert!(Checkpoint::parse(&block, &[4; 16], 64).is_err(), "another volume's");
        assert!(Checkpoint::parse(&block, &[3; 16], 30).is_err(), "segment beyond the volume");
        for at in 0..BLOCK_SIZE {
            let mut bytes = block.clone();
            bytes[at] ^= 0x40;
            assert!(Checkpoint::parse(&bytes, &[3; 16], 64).is_err(), "flipped byte {at} was accepted");
        }
    }
}
