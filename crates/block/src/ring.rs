//! The ring of log segments: positions, free space, and where on the medium a position lies.

use format::limits::{BLOCK_SIZE, LOG_RECORD_MAX, SEGMENT_BLOCKS};
use format::{BlockNo, SegNo};

/// Positions count blocks and only grow; on the medium they wrap around.
#[derive(Clone, Debug)]
pub(crate) struct LogRing {
    pub segments: Vec<SegNo>,
    /// Where the next record goes.
    pub head: u64,
    /// The oldest record that recovery still needs.
    pub tail: u64,
    /// Checksum of the newest record.
    pub chain: u32,
    /// Tells the records of this opening from those of every other one.
    pub nonce: u64,
}

impl LogRing {
    pub fn capacity(&self) -> u64 {
        (self.segments.len() * SEGMENT_BLOCKS) as u64
    }
    pub fn free(&self) -> u64 {
        self.capacity() - (self.head - self.tail)
    }
    /// Bytes that one record may have: an eighth of the ring, so that a checkpoint begun in time finds room for its own.
    pub fn record_max(&self) -> usize {
        (self.capacity() as usize * BLOCK_SIZE / 8).min(LOG_RECORD_MAX)
    }
    /// Where a position lies.
    pub fn block(&self, position: u64) -> BlockNo {
        let at = position % self.capacity();
        let segment = self.segments[at as usize / SEGMENT_BLOCKS];
        BlockNo(segment.first_block().0 + at % SEGMENT_BLOCKS as u64)
    }
    /// The parts of `blocks` blocks from `position` that are neighbours on the medium, of at most `max` blocks each: (first
    /// block, offset, count).
    pub fn parts(&self, position: u64, blocks: u64, max: u64) -> Vec<(BlockNo, u64, u64)> {
        let mut parts: Vec<(BlockNo, u64, u64)> = Vec::new();
        let mut done = 0;
        while done < blocks {
            let first = self.block(position + done);
            let n = (SEGMENT_BLOCKS as u64 - (position + done) % SEGMENT_BLOCKS as u64)
                .min(blocks - done)
                .min(max);
            match parts.last_mut() {
                Some((block, _, count)) if block.0 + *count == first.0 && *count + n <= max => *count += n,
                _ => parts.push((first, done, n)),
            }
            done += n;
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wraps_and_joins() {
        let ring =
            LogRing { segments: vec![SegNo(1), SegNo(2), SegNo(9)], head: 0, tail: 0, chain: 0, nonce: 0 };
        assert_eq!(ring.parts(510, 4, 512), [(BlockNo(512 + 510), 0, 4)]);
        assert_eq!(ring.parts(1022, 4, 512), [(BlockNo(512 + 1022), 0, 2), (BlockNo(9 * 512), 2, 2)]);
        assert_eq!(ring.parts(1534, 4, 512), [(BlockNo(9 * 512 + 510), 0, 2), (BlockNo(512), 2, 2)]);
    }
}
