//! Write leases: windows of files that a client may overwrite without a message; see the module above.

use crate::layout::media_struct;
use zerocopy::little_endian::{U32, U64};

/// Bits of the word of a page under a write lease. The bits above them count writes.
pub mod lease {
    /// The client is writing into the page.
    pub const BUSY: u64 = 1;
    /// The page holds what the file does not hold yet. Set by the client, taken by the manager.
    pub const DIRTY: u64 = 2;
    /// The page holds what the file holds, or will hold. Without it only a write of the whole page may go there.
    pub const THERE: u64 = 4;
    /// The client may write into the page.
    pub const OPEN: u64 = 8;
    /// One write.
    pub const WRITE: u64 = 16;
}

media_struct! {
    /// Start of a window under a write lease.
    pub struct LeaseHeader: 4096 {
        /// atomic: number of the grant, or 0; written by the manager
        grant: U64,
        /// zero
        reserved0: [u8; 56],
        /// atomic: not 0 when pages were read here, for the time of access; set by the client, taken by the manager
        read: U32,
        /// zero
        reserved1: [u8; 60],
        /// atomic: not 0 when a page became dirty; set by the client afterwards, taken by the manager before it looks for dirty pages
        written: U32,
        /// zero
        reserved2: [u8; 3964],
    }
}
