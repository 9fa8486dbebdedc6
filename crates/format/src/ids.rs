//! Identifiers whose unit is part of their type, so that a block number cannot be used where a segment is meant.

use crate::limits::{BLOCK_SIZE, SEGMENT_BLOCKS};
use std::fmt;

macro_rules! id {
    ($(#[$meta:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id!(
    /// A 4 KiB block of the volume, counted from its start.
    BlockNo(u64), "block "
);
id!(
    /// A 2 MiB segment of the volume, counted from its start.
    SegNo(u32), "segment "
);
id!(
    /// An inode number. On the medium: the index of the inode's slot in the inode segment table; elsewhere [`Ino::of`] says what stands above that. 0 is
    /// never used, 1 is the root.
    Ino(u64), "inode "
);
id!(
    /// The number of an epoch: all changes between two barriers. Grows by one with each committed epoch.
    Epoch(u64), "epoch "
);

impl BlockNo {
    /// The segment that holds this block.
    pub fn segment(self) -> SegNo {
        SegNo((self.0 / SEGMENT_BLOCKS as u64) as u32)
    }
    /// The index of this block within its segment, 0..512.
    pub fn in_segment(self) -> usize {
        (self.0 % SEGMENT_BLOCKS as u64) as usize
    }
    /// The byte offset of this block on the medium.
    pub fn byte(self) -> u64 {
        self.0 * BLOCK_SIZE as u64
    }
}

impl SegNo {
    /// The first block of this segment.
    pub fn first_block(self) -> BlockNo {
        BlockNo(self.0 as u64 * SEGMENT_BLOCKS as u64)
    }
}

/// Inodes of one slot that have different numbers, as long as no more than that many follow each other.
const GENERATIONS: u32 = 1 << 30;

impl Ino {
    /// The root directory of every volume.
    pub const ROOT: Ino = Ino(1);

    /// What an inode is called outside of its volume: the number of its slot, which other inodes had before and will have, in the lower 32 bits, and
    /// above them what tells these apart, in 30 bits (a word of the shared memory has two more, see `shared::hold_word`). The root is [`Ino::ROOT`].
    pub fn of(slot: u32, generation: u32) -> Ino {
        let which = if slot as u64 == Ino::ROOT.0 { 0 } else { generation % (GENERATIONS - 1) + 1 };
        Ino((which as u64) << 32 | slot as u64)
    }

    /// The number of its slot: what it is called on the medium.
    pub fn on_medium(self) -> Ino {
        Ino(self.0 & u32::MAX as u64)
    }

    /// The index of the inode segment that holds this inode's slot (a position in the inode segment table). Of a number [`Ino::on_medium`].
    pub fn table_index(self) -> usize {
        (self.0 / SEGMENT_BLOCKS as u64) as usize
    }
    /// The slot within that segment, 0..512. Of a number [`Ino::on_medium`].
    pub fn slot(self) -> usize {
        (self.0 % SEGMENT_BLOCKS as u64) as usize
    }
}
