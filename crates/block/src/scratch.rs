//! Transfer memory for everything that is not file data: log records, inode blocks, extent nodes.

use fs::cache::FreeMap;
use media::{Arena, ArenaId, BufRef};
use std::sync::Arc;

const UNIT: usize = 4096;

/// Memory in units of 4 KiB.
pub(crate) struct Scratch {
    pub arena: Arc<Arena>,
    pub id: ArenaId,
    free: FreeMap,
}

/// Memory taken from [`Scratch`]; must be given back with [`Scratch::give_back`].
#[derive(Debug)]
#[must_use]
pub(crate) struct Buffer {
    first: usize,
    units: usize,
}

impl Buffer {
    pub fn offset(&self) -> u64 {
        (self.first * UNIT) as u64
    }
    pub fn len(&self) -> usize {
        self.units * UNIT
    }
}

impl Scratch {
    pub fn new(arena: Arc<Arena>, id: ArenaId) -> Scratch {
        let free = FreeMap::all_free(arena.len() / UNIT);
        Scratch { arena, id, free }
    }
    /// `blocks` neighbouring blocks of memory, or `None` while too much is in use.
    pub fn take(&mut self, blocks: usize) -> Option<Buffer> {
        Some(Buffer { first: self.free.take_exact(blocks)?, units: blocks })
    }
    pub fn give_back(&mut self, buffer: Buffer) {
        (buffer.first..buffer.first + buffer.units).for_each(|i| self.free.set_free(i));
    }
    pub fn buf_ref(&self, buffer: &Buffer, at: usize, len: usize) -> BufRef {
        debug_assert!(at + len <= buffer.len());
        BufRef { arena: self.id, offset: buffer.offset() + at as u64, len: len as u32 }
    }
    /// Fills a buffer that no transfer uses yet.
    pub fn fill<R>(&mut self, buffer: &Buffer, f: impl FnOnce(&mut [u8]) -> R) -> R {
        // SAFETY: the units belong to `buffer`, which was taken and not given back; `&mut self` and the buffer's owner
        // see to it that no transfer or other caller touches them before the transfer is submitted.
        unsafe { self.arena.with_mut(buffer.offset(), buffer.len(), f) }
    }
    /// Looks at a buffer whose transfer has completed.
    pub fn look<R>(&self, buffer: &Buffer, f: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: as in `fill`; the transfer into the buffer is over.
        unsafe { self.arena.with(buffer.offset(), buffer.len(), f) }
    }
}
