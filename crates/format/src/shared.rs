//! Shared memory between the manager and its clients, one region for each session (UHSFS: control headers and control buffers).
//!
//! A region is: [`SessionHeader`] (one page) | [`SLOTS`] times [`SlotHeader`] | padding to a page | [`HOLD_LINES`] lines of
//! [`HOLDS_IN_LINE`] words (one page) | [`MARKS`] bits | for each slot [`PAYLOAD_MAX`] bytes of payload. Both sides may write all of it at any time. The manager therefore copies what it uses
//! before it looks at it, and whatever the client does to the words that both sides change atomically harms that client alone.
//!
//! Beside the regions stands one memory for all sessions, which clients can only read: the changes ([`ChangesHeader`], then
//! [`CHANGE_WORDS`] words). A client that keeps something of the file system notes the clock from before it asked for it; what it keeps
//! holds as long as none of the words it depends on ([`change_word`]) is greater than that. The manager raises the words, after a
//! change and before the call that made it returns.
//!
//! Pages of files, names and attributes that were asked for stand in arenas (`arena`), one for all clients with the same credentials, which can only read it. A
//! client marks the pages that it copies ([`mark`]), so that the manager knows what is of use.
//!
//! Files that a client opens without a message stand in the words of its holds ([`hold_word`], in the line [`hold_line`]). The client writes the word,
//! and then looks whether the inode's word among the changes still allows it. The manager, before it removes a name or changes who may open a
//! file, first sets that word such that it allows nothing, and then looks for the inode in the holds of all clients: one of
//! the two sees the other. What it finds it opens for that client.
//!
//! Behind the payloads a session has room for [`LEASE_WINDOWS`] windows of files that this client may overwrite without a message: a write lease.
//! Each is a [`LeaseHeader`], a word for each page (`lease`), and the pages. The client writes into a page between setting and clearing
//! `lease::BUSY`, then looks at [`LeaseHeader`]'s `grant` again: if that is still the number that it was told, the write has happened. If not, it sends the write
//! as a message. The manager takes a grant back by storing 0 there, and takes what is dirty after that. Each side needs a full fence between its two steps.
//!
//! A client that has a directory to itself, by a directory lease, makes and removes files and directories there, and in these directories, without waiting: it posts the request one way
//! ([`SessionHeader`]'s `one_way`) and goes on at once. Requests that are posted so carry a number that grows (`Request`'s `more`), and are run one after
//! the other; every other call of the session is run behind those that were posted before. With the request goes the number of the lease. After it has posted the
//! client looks whether the lease's word ([`SessionHeader`]'s `directories`) still has that number: then the change has happened, for everybody. If not, it
//! waits for the answer, which may be that nothing was done. The manager takes a lease back by storing 0 there, and runs what is posted after
//! that, before it lets anybody else into the directory.
//!
//! Closing a file that was made so is no request: its handle goes into the ring [`SessionHeader`]'s `closing`, with the same look at the lease's word. The manager takes what is there
//! before it takes what was posted, and closes each behind what was posted before it.
//!
//! A file that a client makes by a message, in a directory that it does not have to itself, is its alone as well until somebody else comes to it. Its data and its closing can
//! be posted in the same way, under the one lease that a session has on all such files that it has open still; that lease's number comes with the answer.
//!
//! Behind the windows a session has room for [`LOCK_LEASES`] lock leases (`locks`): record locks of files of which nobody else has any, which the client takes
//! and gives up without a message.
//!
//! Life of a slot: the client writes request and payload, stores [`state::POSTED`] and sets the slot's bit in
//! `SessionHeader::doorbell`; when it finds `SessionHeader::asleep` set it also writes to the eventfd that it was given. The
//! manager takes the bits, answers in the same memory, and swaps in [`state::DONE`]; if it finds [`state::SLEEPING`] instead of
//! `POSTED` there, it wakes the futex. The client takes the answer and stores [`state::FREE`]. A client that
//! wants no answer any more stores [`state::GIVEN_UP`], unless the answer is there, and then sets the slot's bit in `SessionHeader::cancel`. The bit is for a call that the manager has
//! begun; one that it takes later is given up for what stands in the slot.
//!
//! Payloads stand one behind the other. A call with more data than [`DATA_MAX`] has the payload memory of the slots behind its own too: its
//! client leaves these alone until it has the answer, and says how many they are where the answer is what is long. Whatever a client says there, the memory is
//! its own.

mod arena;
mod leases;
mod locks;
mod open;

use crate::layout::media_struct;
pub use arena::*;
pub use leases::*;
pub use locks::*;
pub use open::*;
use zerocopy::little_endian::{I32, I64, U16, U32, U64};

/// "FHSHARED"
pub const MAGIC: u64 = u64::from_le_bytes(*b"FHSHARED");
/// Version of everything in this file.
pub const VERSION: u32 = 23;
/// Slots of a session: calls that it can have under way.
pub const SLOTS: usize = 64;
/// Most bytes of file data in one slot.
pub const DATA_MAX: usize = 64 << 10;
/// Bytes of payload of one slot: data, and two names or paths.
pub const PAYLOAD_MAX: usize = DATA_MAX + 12 * 1024;
/// Most bytes of file data in one call, a read or a write.
pub const CALL_DATA_MAX: usize = 512 << 10;
const PAGE: usize = 4096;
/// Lines of holds, of 64 bytes each.
pub const HOLD_LINES: usize = 64;
/// Words of one line: files with the same line that a client can hold at a time.
pub const HOLDS_IN_LINE: usize = 8;
/// Where the holds begin.
pub const HOLDS_AT: usize = (PAGE + SLOTS * size_of::<SlotHeader>()).next_multiple_of(PAGE);
/// Bits with which a client says what it uses.
pub const MARKS: usize = 1 << 18;
/// Where these begin.
pub const MARKS_AT: usize = HOLDS_AT + HOLD_LINES * HOLDS_IN_LINE * 8;
/// Where the payload of slot 0 begins.
pub const PAYLOAD_AT: usize = MARKS_AT + MARKS / 8;
/// Windows of files under write leases that a session has room for.
pub const LEASE_WINDOWS: usize = 16;
/// Where the windows under write leases begin.
pub const LEASES_AT: usize = PAYLOAD_AT + SLOTS * PAYLOAD_MAX;
/// Where the words of the pages begin in a window under a lease.
pub const LEASE_WORDS_AT: usize = size_of::<LeaseHeader>();
/// Where the pages begin in a window under a lease.
pub const LEASE_DATA_AT: usize = LEASE_WORDS_AT + 8 * WINDOW_PAGES;
/// Bytes of a window under a lease.
pub const LEASE_BYTES: usize = LEASE_DATA_AT + WINDOW_PAGES * PAGE;
/// Where the lock leases begin.
pub const LOCKS_AT: usize = LEASES_AT + LEASE_WINDOWS * LEASE_BYTES;
/// Bytes of the region of a session.
pub const SESSION_BYTES: usize = LOCKS_AT + LOCK_LEASES * LOCK_LEASE_BYTES;

/// Words of the changes for [`Kept::Access`], which stand first. All names of a directory depend on its own: the far more frequent changes of names
/// and of what files hold are not to share it.
pub const ACCESS_WORDS: usize = 1 << 16;
/// Words of the changes: so many that unrelated things seldom share one.
pub const CHANGE_WORDS: usize = ACCESS_WORDS + (1 << 17);
/// Bytes of the memory of changes.
pub const CHANGES_BYTES: usize = PAGE + 8 * CHANGE_WORDS;

/// Directory leases of one session.
pub const DIRECTORIES: usize = 16;
/// Place of the lease on a session's new files, behind those on directories.
pub const NEW_FILES: usize = DIRECTORIES;

/// Pages of a window of a file under a write lease.
pub const WINDOW_PAGES: usize = 512;

/// Pages of a file that come to an arena, are marked and go together.
pub const PIECE_PAGES: usize = 16;
/// Most pages of an arena that one answer tells of.
pub const ANSWER_PAGES: usize = 4 * PIECE_PAGES;

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

fn mix(h: u64, v: u64) -> u64 {
    let wide = (h ^ v ^ 0xF39C_C060_5CED_C835) as u128 * 0x9E37_79B9_7F4A_7C15;
    wide as u64 ^ (wide >> 64) as u64
}

/// A hash of it.
pub fn kept_hash(kept: Kept<'_>) -> u64 {
    // Mixed before the number: with small numbers alone the attributes of one inode would share their word with what is known of
    // searching another close by, in all likelihood the directory that it is in.
    let of = |kind| mix(0, kind);
    match kept {
        Kept::Attr(ino) => mix(of(1), ino),
        Kept::Access(ino) => mix(of(2), ino),
        Kept::Name(parent, name) => name.chunks(8).fold(mix(of(3), parent), |h, part| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            mix(h, u64::from_le_bytes(word).wrapping_add(part.len() as u64))
        }),
    }
}

/// Index of the word that grows when `kept` changes. Different things may share a word: then both count as changed.
pub fn change_word(kept: Kept<'_>) -> usize {
    let hash = (mix(kept_hash(kept), 4) >> 40) as usize;
    match kept {
        Kept::Access(_) => hash % ACCESS_WORDS,
        Kept::Attr(_) | Kept::Name(..) => ACCESS_WORDS + hash % (CHANGE_WORDS - ACCESS_WORDS),
    }
}

/// Line of the holds in which an inode stands.
pub fn hold_line(ino: u64) -> usize {
    (ino.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % HOLD_LINES
}

/// The word of a hold: the inode, and whether it is open for reading (bit 0) and for writing (bit 1). 0 holds nothing.
pub fn hold_word(ino: u64, read: bool, write: bool) -> u64 {
    ino << 2 | (write as u64) << 1 | read as u64
}

/// The bit that says that something of a piece of a file was used.
pub fn mark(ino: u64, piece: u64) -> usize {
    (ino.wrapping_add(piece << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize % MARKS
}

/// Handles in `SessionHeader::closing`.
pub const CLOSING: usize = 64;

/// Value of a word among the changes that allows nothing to be kept.
pub const NOTHING_HOLDS: u64 = u64::MAX;

/// Memories ([`Show`]) that count in one session: the last ones that were shown.
pub const MEMORIES: usize = 64;

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
    /// Holds a request whose answer nobody wants any more.
    pub const GIVEN_UP: u32 = 4;
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
        /// atomic: one bit for each slot with a request for whose answer nobody waits; set by the client in the order of their numbers, taken by
        /// the manager, which runs all of these that it finds, one after the other, before any call that was posted later
        one_way: U64,
        /// atomic: how many handles the client has put into `closing`; written by the client
        closes: U64,
        /// zero
        reserved1: [u8; 32],
        /// atomic: not 0 when the manager sleeps and must be woken through the eventfd; written by the manager
        asleep: U32,
        /// atomic: grows while the manager works; written by the manager
        pulse: U32,
        /// atomic: how many more processes work now than there are processors, the manager among them: looking for an answer may keep it from giving that;
        /// written by the manager
        crowded: U32,
        /// atomic: not 0 when the manager looks at the holds; written by the manager
        may_hold: U32,
        /// atomic: how many handles of `closing` are closed; written by the manager
        closed: U64,
        /// zero
        reserved2: [u8; 40],
        /// atomic: numbers of the directory leases and of the lease on new files, or 0; written by the manager
        directories: [U64; 17],
        /// zero
        reserved3: [u8; 56],
        /// atomic: a ring of pairs: a handle, of a file made under a directory lease, that is to be closed; and the number of the last request that was posted one way
        /// before that. No request, so no answer; written by the client
        closing: [U64; 128],
        /// atomic: not 0 while so many threads of the client wait for answers that the processors have enough to do when the manager sleeps; written by the client
        throng: U32,
        /// zero
        reserved4: [u8; 2684],
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
        /// atomic: the processor on which the manager takes requests, and one more; 0 when that is not known. Written by the manager
        processor: U32,
        /// zero
        reserved2: [u8; 60],
        /// a robust mutex of the C library that the manager's thread holds; the kernel sets `OWNER_DIED` in its first word when the
        /// thread is gone, however it ended
        holder: [u8; 64],
        /// zero
        reserved3: [u8; 3840],
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
        /// one more value; of a request that is posted one way, its number
        more: U64,
    }
}

media_struct! {
    /// A file or directory that a client may make under a directory lease: what it will be. The bytes of the lease's answer: attributes of the directory, how many of
    /// these as a U64, these, and the names in the directory, each with its length in one byte before it.
    pub struct PromiseImage: 24 {
        /// inode number
        ino: U64,
        /// generation
        generation: U64,
        /// handle, if it is a file
        handle: U64,
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
        /// of a read: how many pages of what was asked for are in the arena; 0: the data itself stands behind the attributes; of a write that
        /// appended: where it ended, or 0 if that is not known
        pages: U64,
        /// of a call that made a name: the clock of the changes from before its attributes were looked at, or 0; of one that opened
        /// an inode: its generation; of a read whose data is in the arena: how many bytes of what was asked for there are; of a write: the clock from before the attributes in the
        /// payload were looked at, or 0
        noted: U64,
        /// of a call that opened its file first: the handle; or 0
        handle: U64,
        /// of such a call: the clock from before it was seen that nothing has been opened for the client's hold of the file; or 0
        unheld: U64,
        /// of one that made a file: number of the lease on new files under which it was made, or 0; of one that wrote to a file: number of the lease under which that is now, or 0
        lent: U64,
        /// pages of room for data that this lease has, if it is one on new files; else 0
        lent_room: U64,
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
        /// 0 when it has no extended attributes, 1 when it has some or may have
        xattrs: U32,
        /// zero
        reserved: [u8; 16],
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
    /// A client shows the manager a memory (a memfd, which comes with it) whose bytes stand for open file descriptions: whoever has such a description
    /// has the byte locked (fcntl(2), open file description locks). One that [`MEMORIES`] others were shown after has to be shown again.
    pub struct Show: 16 {
        /// "FHSHARED"
        magic: U64,
        /// zero
        reserved: [u8; 8],
    }
}

media_struct! {
    /// The manager's answer to `Show`.
    pub struct Shown: 8 {
        /// 0, or why it is not taken
        errno: I32,
        /// the memory's number in this session, from 1
        number: U32,
    }
}

media_struct! {
    /// The manager's answer to `Hello`; with errno 0 the descriptors of the session's memory, of its eventfd, of the changes and of the
    /// arena come with it.
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

const _: () = assert!(NEW_FILES == 16, "words in the header of a session");
const _: () = assert!(SLOTS <= 64, "bits of the doorbell");
const _: () = assert!(PIECE_PAGES * PAGE <= DATA_MAX, "one answer brings a piece");
const _: () = assert!(LEASES_AT.is_multiple_of(PAGE) && LEASE_DATA_AT == 2 * PAGE);
const _: () = assert!(PAYLOAD_AT.is_multiple_of(PAGE) && PAYLOAD_MAX.is_multiple_of(PAGE));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_close_together_shares_no_word() {
        let near = |ino: u64| (ino.saturating_sub(8)..ino + 8).map(Kept::Access).map(change_word);
        let shared: usize =
            (1..4000).map(|ino| near(ino).filter(|&word| word == change_word(Kept::Attr(ino))).count()).sum();
        // By chance about one in 131,072.
        assert!(shared < 5, "{shared} of 64,000");
    }
}
