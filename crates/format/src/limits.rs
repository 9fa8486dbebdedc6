//! Sizes and limits, with the relations among them asserted at compile time.

/// Bytes in a block: the unit of allocation and of I/O (UHSFS "page").
pub const BLOCK_SIZE: usize = 4096;
/// Bytes in a segment: the unit in which space is given a role, aligned with the erase unit of flash.
pub const SEGMENT_SIZE: usize = 2 << 20;
/// Blocks in a segment.
pub const SEGMENT_BLOCKS: usize = SEGMENT_SIZE / BLOCK_SIZE;

/// Longest name of a directory entry, bytes (POSIX NAME_MAX).
pub const NAME_MAX: usize = 255;
/// Longest path, bytes, with the terminating NUL (POSIX PATH_MAX). Longest symlink target is one less.
pub const PATH_MAX: usize = 4096;
/// Most symlinks followed in one path walk (Linux: 40).
pub const SYMLOOP_MAX: usize = 40;
/// Most names of one file.
pub const LINK_MAX: u32 = 1 << 30;

/// Bytes of the fixed inode header.
pub const INODE_HEADER: usize = 192;
/// Bytes of the inode's tail: inline data, extents, or entries of the extent tree's root (UHSFS: "about 3 KiB").
pub const TAIL_MAX: usize = 3072;
/// Largest file kept inline in its inode, bytes.
pub const INLINE_MAX: usize = TAIL_MAX;
/// Bytes left in the inode block for extended attributes; larger sets move to blocks of their own.
pub const XATTR_INLINE_MAX: usize = BLOCK_SIZE - INODE_HEADER - (NAME_MAX + 1) - TAIL_MAX;
/// Largest encoded set of extended attributes of one inode, bytes.
pub const XATTR_TOTAL_MAX: usize = 128 << 10;
/// Largest value of one extended attribute, bytes (Linux XATTR_SIZE_MAX).
pub const XATTR_VALUE_MAX: usize = 64 << 10;

/// Most inode segments of a volume: bounds the inode segment table (128 million inodes).
pub const INODE_SEGMENTS_MAX: usize = crate::segtable::TABLE_BLOCKS * crate::segtable::ENTRIES_PER_BLOCK;
/// Most segments of the log ring.
pub const LOG_SEGMENTS_MAX: usize = 512;
/// Largest log record, bytes. An epoch that would need more is closed before it grows so large.
pub const LOG_RECORD_MAX: usize = 16 << 20;
/// Largest file, bytes: 2^48 blocks would be possible; 1 EiB keeps every offset in an i64 with room to spare.
pub const FILE_SIZE_MAX: u64 = 1 << 60;
/// Smallest volume, bytes: super segment, log of four segments, inodes, and room for data.
pub const VOLUME_MIN: u64 = 16 * SEGMENT_SIZE as u64;
/// Largest volume, bytes: the number of segments has 32 bits. Segment 0 is the super segment, so 0 marks "none".
pub const VOLUME_MAX: u64 = (u32::MAX as u64) * SEGMENT_SIZE as u64;

const _: () = assert!(SEGMENT_BLOCKS == 512);
const _: () = assert!(INODE_HEADER + NAME_MAX + 1 + TAIL_MAX + XATTR_INLINE_MAX == BLOCK_SIZE);
const _: () = assert!(XATTR_INLINE_MAX >= 512, "SELinux labels and POSIX ACLs should fit beside the tail");
const _: () = assert!(INODE_SEGMENTS_MAX * SEGMENT_BLOCKS >= 10_000_000, "ten million files in a volume");
const _: () = assert!(XATTR_TOTAL_MAX >= XATTR_VALUE_MAX + NAME_MAX + 64);
const _: () = assert!(FILE_SIZE_MAX >= 16 << 40, "files of at least 16 TiB");
