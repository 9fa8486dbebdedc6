//! Every byte that leaves memory: on-media structures, identifiers with units in their types, and limits.
//!
//! A struct declared here has one home, a fixed size checked at compile time, little-endian fields without padding,
//! and a field table ([`layout::Layout`]) from which `docs/FORMAT.md` and `freehold dump` are produced. This crate
//! does no I/O and knows no policy; the meaning of the bytes stands in `docs/FORMAT.md`, the reasons in `docs/DESIGN.md`.
//!
//! Tested in each module, by the pinned image in `crates/block/tests`, and by `freehold fsck`'s planted damage.

pub mod checkpoint;
pub mod checksum;
pub mod error;
pub mod extent;
pub mod ids;
pub mod index;
pub mod inode;
pub mod layout;
pub mod limits;
pub mod log;
pub mod nvme;
pub mod segtable;
pub mod shared;
pub mod superblock;
pub mod xattr;

pub use checksum::crc32c;
pub use error::{FormatError, Result};
pub use ids::{BlockNo, Epoch, Ino, SegNo};

/// Every structure of the format, in the order in which `docs/FORMAT.md` presents them.
pub fn all_layouts() -> Vec<layout::Table> {
    use layout::Layout;
    vec![
        superblock::Superblock::table(),
        checkpoint::CheckpointHeader::table(),
        checkpoint::SegmentRun::table(),
        segtable::SegTableHeader::table(),
        inode::InodeHeader::table(),
        inode::Timespec::table(),
        extent::Extent::table(),
        extent::NodeEntry::table(),
        extent::NodeHeader::table(),
        xattr::XattrHeader::table(),
        log::RecordHeader::table(),
        log::SegmentAssignment::table(),
        log::Cover::table(),
        log::PageEntry::table(),
        index::PieceHeader::table(),
        index::SegmentUsage::table(),
    ]
}
