//! Where inodes stand in memory: a slab in the order of inode numbers, one chunk for each inode segment.

use crate::huge::HugePages;
use crate::inode::{Inode, Slot};
use allocator_api2::vec::Vec as HugeVec;
use format::inode::SlotKind;
use format::limits::SEGMENT_BLOCKS;
use format::{Ino, SegNo};
use std::collections::BTreeSet;

/// The inodes of one inode segment.
pub(crate) struct Chunk {
    pub segment: SegNo,
    /// Every slot of the segment was written since it became an inode segment.
    pub initialized: bool,
    free: [u64; 8],
    pub used: u32,
}

/// Chunks whose inodes stand together in memory: as many as fill whole huge pages.
const CHUNKS_PER_BLOCK: u32 = 128;
const PER_BLOCK: u32 = CHUNKS_PER_BLOCK * SEGMENT_BLOCKS as u32;
const _: () = assert!((PER_BLOCK as usize * size_of::<Inode>()).is_multiple_of(crate::huge::HUGE));

/// All inodes.
#[derive(Default)]
pub(crate) struct Slab {
    blocks: Vec<HugeVec<Inode, HugePages>>,
    chunks: Vec<Option<Chunk>>,
    with_free: BTreeSet<u32>,
    vacant: BTreeSet<u32>,
    pub used: u64,
    /// Slots that were set aside, and are not used.
    pub promised: u64,
    /// The highest generation that any slot had before, as far as its slot does not say so: an index checkpoint has used slots alone, and segments of slots are given back.
    pub generation_before: u32,
}

const PER_CHUNK: u32 = SEGMENT_BLOCKS as u32;

impl Slab {
    /// Adds the chunk at table position `index`, all slots free. Inode 0 is never given out.
    pub fn add_chunk(&mut self, index: u32, segment: SegNo, initialized: bool) {
        while self.chunks.len() <= index as usize {
            self.vacant.insert(self.chunks.len() as u32);
            self.chunks.push(None);
        }
        self.vacant.remove(&index);
        let mut free = [u64::MAX; 8];
        if index == 0 {
            free[0] &= !1;
        }
        let block = (index / CHUNKS_PER_BLOCK) as usize;
        while self.blocks.len() <= block {
            self.blocks.push(HugeVec::new_in(HugePages));
        }
        let inodes = &mut self.blocks[block];
        if inodes.capacity() == 0 {
            inodes.reserve_exact(PER_BLOCK as usize);
        }
        let need = ((index % CHUNKS_PER_BLOCK + 1) * PER_CHUNK) as usize;
        if inodes.len() < need {
            inodes.resize_with(need, || Inode::free(0));
        }
        self.chunks[index as usize] = Some(Chunk { segment, initialized, free, used: 0 });
        self.with_free.insert(index);
    }

    /// Has the processor fetch all of an inode that will be read at once, so that the waits for its lines overlap.
    #[inline]
    pub fn prefetch(&self, slot: Slot) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let inode: *const Inode = self.get(slot);
            for line in 0..size_of::<Inode>().div_ceil(64) {
                // SAFETY: a prefetch reads nothing that the program sees, and faults nowhere.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(inode.cast::<i8>().wrapping_add(line * 64)) };
            }
        }
    }

    /// The position where a new chunk should be added.
    pub fn next_index(&self) -> u32 {
        self.vacant.first().copied().unwrap_or(self.chunks.len() as u32)
    }
    /// Number of positions in the table.
    pub fn table_len(&self) -> u32 {
        self.chunks.len() as u32
    }
    pub fn chunk(&self, index: u32) -> Option<&Chunk> {
        self.chunks.get(index as usize)?.as_ref()
    }
    pub fn chunk_mut(&mut self, index: u32) -> Option<&mut Chunk> {
        self.chunks.get_mut(index as usize)?.as_mut()
    }
    /// The inode segment table as it should stand on the medium.
    pub fn table(&self) -> impl Iterator<Item = Option<SegNo>> + '_ {
        self.chunks.iter().map(|c| c.as_ref().map(|c| c.segment))
    }

    /// Takes a free slot, if any chunk has one.
    pub fn alloc(&mut self) -> Option<Slot> {
        let index = *self.with_free.first()?;
        let chunk = self.chunks[index as usize].as_mut()?;
        let word = chunk.free.iter().position(|&w| w != 0)?;
        let slot = index * PER_CHUNK + word as u32 * 64 + chunk.free[word].trailing_zeros();
        self.claim(slot);
        Some(slot)
    }

    /// Marks a slot as used; false when it was used already or has no chunk.
    pub fn claim(&mut self, slot: Slot) -> bool {
        let index = slot / PER_CHUNK;
        let Some(chunk) = self.chunk_mut(index) else { return false };
        let bit = slot % PER_CHUNK;
        let (word, mask) = (bit as usize / 64, 1u64 << (bit % 64));
        if chunk.free[word] & mask == 0 {
            return false;
        }
        chunk.free[word] &= !mask;
        chunk.used += 1;
        if chunk.free.iter().all(|&w| w == 0) {
            self.with_free.remove(&index);
        }
        self.used += 1;
        true
    }

    /// Takes a free slot for a promise: it counts as neither used nor free.
    pub fn set_aside(&mut self) -> Option<Slot> {
        let slot = self.alloc()?;
        self.used -= 1;
        self.promised += 1;
        Some(slot)
    }

    /// A slot that was set aside is used from now on.
    pub fn redeem(&mut self) {
        self.promised -= 1;
        self.used += 1;
    }

    /// Gives a slot back. Its content (kind `Free`, generation) stays.
    pub fn release(&mut self, slot: Slot) {
        let index = slot / PER_CHUNK;
        if let Some(chunk) = self.chunk_mut(index) {
            let bit = slot % PER_CHUNK;
            debug_assert!(chunk.free[bit as usize / 64] >> (bit % 64) & 1 == 0, "slot is free already");
            chunk.free[bit as usize / 64] |= 1 << (bit % 64);
            chunk.used -= 1;
            self.with_free.insert(index);
            self.used -= 1;
        }
    }

    /// The inode in a slot that is known to exist.
    pub fn get(&self, slot: Slot) -> &Inode {
        &self.blocks[(slot / PER_BLOCK) as usize][(slot % PER_BLOCK) as usize]
    }
    pub fn get_mut(&mut self, slot: Slot) -> &mut Inode {
        &mut self.blocks[(slot / PER_BLOCK) as usize][(slot % PER_BLOCK) as usize]
    }
    /// This inode, if it still exists: not one that has its slot by now.
    pub fn find(&self, ino: Ino) -> Option<(Slot, &Inode)> {
        let slot = ino.0 as Slot;
        self.inode_in(slot).filter(|inode| Ino::of(slot, inode.generation) == ino).map(|inode| (slot, inode))
    }
    /// The inode in a slot, if there is one (additional names are not inodes).
    pub fn inode_in(&self, slot: Slot) -> Option<&Inode> {
        let inode = self.blocks.get((slot / PER_BLOCK) as usize)?.get((slot % PER_BLOCK) as usize)?;
        (inode.kind == SlotKind::Inode).then_some(inode)
    }
    /// Every used slot with its content.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &Inode)> + '_ {
        self.blocks.iter().enumerate().flat_map(|(block, inodes)| {
            let first = block as u32 * PER_BLOCK;
            let used = inodes.iter().enumerate().filter(|(_, inode)| inode.kind != SlotKind::Free);
            used.map(move |(i, inode)| (first + i as u32, inode))
        })
    }
    /// The highest generation that any slot has, or had before.
    pub fn generation_max(&self) -> u32 {
        let all = self.blocks.iter().flat_map(|inodes| inodes.iter());
        all.map(|inode| inode.generation).max().unwrap_or(0).max(self.generation_before)
    }
    /// Positions of chunks without a used slot.
    pub fn empty_chunks(&self) -> Vec<u32> {
        let empty = |i: &u32| self.chunk(*i).is_some_and(|c| c.used == 0);
        (1..self.chunks.len() as u32).filter(empty).collect()
    }
    /// Drops an empty chunk and returns its segment.
    pub fn remove_chunk(&mut self, index: u32) -> Option<SegNo> {
        let chunk = self.chunks.get_mut(index as usize)?.take()?;
        debug_assert_eq!(chunk.used, 0);
        self.with_free.remove(&index);
        self.vacant.insert(index);
        Some(chunk.segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_back() {
        let mut slab = Slab::default();
        assert_eq!(slab.alloc(), None);
        slab.add_chunk(0, SegNo(9), true);
        assert_eq!((slab.alloc(), slab.alloc()), (Some(1), Some(2)));
        slab.release(1);
        assert_eq!(slab.alloc(), Some(1));
        while slab.alloc().is_some() {}
        assert_eq!(slab.used, 511);
        assert_eq!(slab.next_index(), 1);
        slab.add_chunk(1, SegNo(10), false);
        assert_eq!(slab.alloc(), Some(512));
        slab.release(512);
        assert_eq!(slab.empty_chunks(), [1]);
        assert_eq!(slab.remove_chunk(1), Some(SegNo(10)));
        assert_eq!((slab.alloc(), slab.next_index()), (None, 1));
    }
}
