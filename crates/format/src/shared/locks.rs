//! Lock leases: a client that alone has to do with the record locks of a file takes and gives up locks there without a message.
//!
//! Each is a [`LockLeaseHeader`] and two tables ([`LockTableImage`]). The table that counts is the one that the lowest bit of `current` names: the client writes what
//! is held then into the other one, and raises `current`. After that it looks at `grant` again: if that is still the number that it was told, the lock has been taken
//! or given up, for everybody. If not, it asks the manager, as if it had done nothing. The manager stores 0 in `grant` and reads the table that counts after that, before anybody else's call
//! on these locks goes on. What the client wrote too late to count it asks for again, so it does no harm where the manager found it.

use super::PAGE;
use crate::layout::media_struct;
use zerocopy::little_endian::{U32, U64};

/// Lock leases that a session has room for.
pub const LOCK_LEASES: usize = 8;
/// Record locks of all owners that one of them has room for.
pub const LEASED_LOCKS: usize = 31;
/// Where the first table begins in a lock lease.
pub const LOCK_TABLES_AT: usize = size_of::<LockLeaseHeader>();
/// Bytes of a lock lease.
pub const LOCK_LEASE_BYTES: usize = PAGE;

media_struct! {
    /// Start of a lock lease.
    pub struct LockLeaseHeader: 128 {
        /// atomic: number of the lease, or 0; written by the manager
        grant: U64,
        /// zero
        reserved0: [u8; 56],
        /// atomic: grows with each change; the lowest bit names the table that counts; written by the client
        current: U64,
        /// zero
        reserved1: [u8; 56],
    }
}

media_struct! {
    /// Record locks that are held under a lock lease.
    pub struct LockTableImage: 1024 {
        /// how many there are
        count: U64,
        /// zero
        reserved: [u8; 24],
        /// that many `LockImage`s
        locks: [[u8; 32]; 31],
    }
}

media_struct! {
    /// A record lock that is held.
    pub struct LockImage: 32 {
        /// first byte
        start: U64,
        /// last byte
        end: U64,
        /// whose it is, in the client's own numbers
        owner: U64,
        /// 0: shared, 1: exclusive
        kind: U32,
        /// the process
        pid: U32,
    }
}

const _: () = assert!(LOCK_TABLES_AT + 2 * size_of::<LockTableImage>() <= LOCK_LEASE_BYTES);
const _: () = assert!(size_of::<LockImage>() == 32 && LEASED_LOCKS == 31, "the entries of a table");
