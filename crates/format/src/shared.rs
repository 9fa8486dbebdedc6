//! Shared memory between the manager and its clients, one region for each session (UHSFS: control headers and control buffers).
//!
//! A region is: [`SessionHeader`] (one page) | [`SLOTS`] times [`SlotHeader`] | padding to a page | for each slot
//! [`PAYLOAD_MAX`] bytes of payload. Both sides may write all of it at any time. The manager therefore copies what it uses
//! before it looks at it, and whatever the client does to the words that both sides change atomically harms that client alone.
//!
//! Beside the regions stands one memory for all sessions, which clients can only read: the changes ([`ChangesHeader`], then
//! [`CHANGE_WORDS`] words). A client that keeps something of the file system notes the clock from before it asked for it; what it keeps
//! holds as long as none of the words it depends on ([`change_word`]) is greater than that. The manager raises the words, after a
//! change and before the call that made it returns.
//!
//! Pages of files stand in windows ([`WINDOW_BYTES`] each), which clients can only read: a word for each page, then the pages. A page is there
//! while its word is odd. Whoever copies it looks at the word before and after; if it is the same, and the file's word among the changes
//! has not been raised since the file's size was asked for, the copy is what the file held.
//!
//! Life of a slot: the client writes request and payload, stores [`state::POSTED`] and sets the slot's bit in
//! `SessionHeader::doorbell`; when it finds `SessionHeader::asleep` set it also writes to the eventfd that it was given. The
//! manager takes the bits, answers in the same memory, and swaps in [`state::DONE`]; if it finds [`state::SLEEPING`] instead of
//! `POSTED` there, it wakes the futex. The client takes the answer and stores [`state::FREE`].

use crate::layout::media_struct;
use zerocopy::little_endian::{I32, I64, U16, U32, U64};

/// "FHSHARED"
pub const MAGIC: u64 = u64::from_le_bytes(*b"FHSHARED");
/// Version of everything in this file.
pub const VERSION: u32 = 3;
/// Slots of a session: calls that it can have under way.
pub const SLOTS: usize = 64;
/// Most bytes of file data in one call.
pub const DATA_MAX: usize = 64 << 10;
/// Bytes of payload of one slot: data, and two names or paths.
pub const PAYLOAD_MAX: usize = DATA_MAX + 12 * 1024;
const PAGE: usize = 4096;
/// Where the payload of slot 0 begins.
pub const PAYLOAD_AT: usize = (PAGE + SLOTS * size_of::<SlotHeader>()).next_multiple_of(PAGE);
/// Bytes of the region of a session.
pub const SESSION_BYTES: usize = PAYLOAD_AT + SLOTS * PAYLOAD_MAX;

/// Words of the changes: so many that unrelated things seldom share one.
pub const CHANGE_WORDS: usize = 1 << 17;
/// Bytes of the memory of changes.
pub const CHANGES_BYTES: usize = PAGE + 8 * CHANGE_WORDS;

/// Pages of a window.
pub const WINDOW_PAGES: usize = 512;
/// Where the pages of a window begin, behind a word for each.
pub const WINDOW_DATA_AT: usize = 8 * WINDOW_PAGES;
/// Bytes of the memory of a window.
pub const WINDOW_BYTES: usize = WINDOW_DATA_AT + WINDOW_PAGES * PAGE;

/// Bit of the first word of `ChangesHeader::holder` (futex(2), robust futexes).
pub const OWNER_DIED: u32 = 0x4000_0000;

/// Something that a client can keep and that can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept<'a> {
    /// Attributes of an inode, and what it holds.
    Attr(u64),
    /// Who may search a directory, and where it is.
    Access(u64),
    /// Which inode a name in a directory leads to.
    Name(u64, &'a [u8]),
}

/// Index of the word that grows when `kept` changes. Different things may share a word: then both count as changed.
pub fn change_word(kept: Kept<'_>) -> usize {
    let mix = |h: u64, v: u64| {
        let wide = (h ^ v ^ 0xF39C_C060_5CED_C835) as u128 * 0x9E37_79B9_7F4A_7C15;
        wide as u64 ^ (wide >> 64) as u64
    };
    let hash = match kept {
        Kept::Attr(ino) => mix(1, ino),
        Kept::Access(ino) => mix(2, ino),
        Kept::Name(parent, name) => name.chunks(8).fold(mix(3, parent), |h, part| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            mix(h, u64::from_le_bytes(word).wrapping_add(part.len() as u64))
        }),
    };
    (mix(hash, 4) >> 40) as usize % CHANGE_WORDS
}

/// Values of `SlotHeader::state`.
pub mod state {
    /// The client may use it.
    pub const FREE: u32 = 0;
    /// Holds a request; its client looks at the word again and again.
    pub const POSTED: u32 = 1;
    /// As `POSTED`, but its client sleeps on the word.
    pub const SLEEPING: u32 = 2;
    /// Holds an answer.
    pub const DONE: u32 = 3;
}

media_struct! {
    /// Start of a session's memory. Fields of different writers stand in different cache lines.
    pub struct SessionHeader: 4096 {
        /// "FHSHARED"
        magic: U64,
        /// version
        version: U32,
        /// number of slots
        slots: U32,
        /// zero
        reserved0: [u8; 48],
        /// atomic: one bit for each slot with a new request; set by the client, taken by the manager
        doorbell: U64,
        /// atomic: one bit for each slot whose call shall be given up; set by the client, taken by the manager
        cancel: U64,
        /// atomic: one bit for each slot with a request for whose answer nobody waits; set by the client, taken by the manager, which
        /// runs all of these that it finds before any call that was posted later
        one_way: U64,
        /// zero
        reserved1: [u8; 40],
        /// atomic: not 0 when the manager sleeps and must be woken through the eventfd; written by the manager
        asleep: U32,
        /// atomic: grows while the manager works; written by the manager
        pulse: U32,
        /// atomic: not 0 when more processes work with the manager than there are processors, so that looking for an answer may keep the manager from
        /// giving it; written by the manager
        crowded: U32,
        /// zero
        reserved2: [u8; 3956],
    }
}

media_struct! {
    /// Start of the memory of changes.
    pub struct ChangesHeader: 4096 {
        /// "FHSHARED"
        magic: U64,
        /// version
        version: U32,
        /// number of words
        words: U32,
        /// zero
        reserved0: [u8; 48],
        /// atomic: grows with every change; written by the manager
        clock: U64,
        /// zero
        reserved1: [u8; 56],
        /// a robust mutex of the C library that the manager's thread holds; the kernel sets `OWNER_DIED` in its first word when the
        /// thread is gone, however it ended
        holder: [u8; 64],
        /// zero
        reserved2: [u8; 3904],
    }
}

media_struct! {
    /// One slot: a word that both sides change atomically, and a request or its answer.
    pub struct SlotHeader: 128 {
        /// atomic: see `state`; also a futex
        state: U32,
        /// zero
        reserved: [u8; 60],
        /// a `Request`, or a `Reply` in its place
        message: [u8; 64],
    }
}

media_struct! {
    /// A call. What the fields mean for each operation stands in `share::wire`.
    pub struct Request: 64 {
        /// operation
        op: U16,
        /// bytes of the first string in the payload
        first: U16,
        /// bytes of the second string, or of the data, behind the first one
        second: U32,
        /// flags of the operation
        flags: U32,
        /// permission bits, mode or kind
        mode: U32,
        /// inode or handle
        object: U64,
        /// another inode or handle
        other: U64,
        /// offset, start of a range
        offset: U64,
        /// length, end of a range
        len: U64,
        /// one more value
        extra: U64,
        /// one more value
        more: U64,
    }
}

media_struct! {
    /// The answer to a call.
    pub struct Reply: 64 {
        /// 0, or the errno of what went wrong; then the payload holds a message
        errno: I32,
        /// bytes of payload
        len: U32,
        /// the result: a number of bytes, a handle, an offset
        value: U64,
        /// of a read: the window in which the first page now stands, or 0
        window: U64,
        /// of a call that made a name: the clock of the changes from before its attributes were looked at, or 0; of one that opened
        /// an inode: its generation
        noted: U64,
        /// zero
        reserved: [u8; 32],
    }
}

media_struct! {
    /// Attributes of an inode.
    pub struct AttrImage: 120 {
        /// inode number
        ino: U64,
        /// size
        size: U64,
        /// blocks of 512 bytes
        blocks: U64,
        /// device number
        rdev: U64,
        /// owner
        uid: U32,
        /// group
        gid: U32,
        /// type and permission bits
        mode: U32,
        /// names
        nlink: U32,
        /// generation
        generation: U32,
        /// nanoseconds of the access time
        atime_nsec: U32,
        /// nanoseconds of the modification time
        mtime_nsec: U32,
        /// nanoseconds of the change time
        ctime_nsec: U32,
        /// seconds of the access time
        atime: I64,
        /// seconds of the modification time
        mtime: I64,
        /// seconds of the change time
        ctime: I64,
        /// seconds of the birth time
        btime: I64,
        /// nanoseconds of the birth time
        btime_nsec: U32,
        /// zero
        reserved: [u8; 20],
    }
}

media_struct! {
    /// Head of a directory entry in the payload of a readdir; the name follows, then zeros up to a multiple of 8.
    pub struct EntryHeader: 136 {
        /// where to go on behind this entry
        next_offset: U64,
        /// bytes of the name
        name_len: U16,
        /// zero
        reserved: [u8; 6],
        /// attributes
        attr: [u8; 120],
    }
}

media_struct! {
    /// First message on the socket, from the client.
    pub struct Hello: 64 {
        /// "FHSHARED"
        magic: U64,
        /// version
        version: U32,
        /// zero
        reserved: [u8; 52],
    }
}

media_struct! {
    /// Message on the socket that brings the descriptor of a window, before the call that asked for it is answered.
    pub struct WindowMessage: 32 {
        /// "FHSHARED"
        magic: U64,
        /// number of the window
        number: U64,
        /// inode
        ino: U64,
        /// generation of the inode
        generation: U32,
        /// place in the file, in windows
        place: U32,
    }
}

media_struct! {
    /// The manager's answer to `Hello`; with errno 0 the descriptors of the session's memory, of its eventfd and of the changes
    /// come with it.
    pub struct Welcome: 96 {
        /// "FHSHARED"
        magic: U64,
        /// version
        version: U32,
        /// 0, or why there is no session
        errno: I32,
        /// number of the session
        session: U64,
        /// the volume; all zero: sessions cannot be resumed after the manager's end
        volume: [u8; 16],
        /// number of this opening of the volume
        opening: U64,
        /// openings before it of which nothing was lost, the newest first
        after: [U64; 4],
        /// zero
        reserved: [u8; 16],
    }
}

const _: () = assert!(SLOTS <= 64, "bits of the doorbell");
const _: () = assert!(PAYLOAD_AT.is_multiple_of(PAGE) && PAYLOAD_MAX.is_multiple_of(PAGE));
