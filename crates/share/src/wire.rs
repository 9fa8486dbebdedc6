//! How calls and their results are written into requests and answers. What is read here may come from the other side of a trust
//! boundary: everything is checked.

mod attrs;

pub use attrs::{attr, attr_image, read_attrs, read_set_attr, read_statfs, set_attr, statfs};

use format::shared::{AttrImage, EntryHeader, PromiseImage, Reply, Request};
use fs::{Attr, DirEntry, Error, Handle, Ino, LockOwner, OpenFlags, Promise, Result, Time};
use std::mem::offset_of;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Flag of a read: through the arena if that is of use.
pub const THROUGH_ARENA: u32 = 1;
/// Flag of a read: of a file that the client has open, and the manager not.
pub const OF_INODE: u32 = 2;
/// Flag of a call that [may open](Op::may_open) its file first: object is the inode, other its generation, mode the flags with which it was opened. The
/// handle comes with the answer, unless the call fails.
pub const OPENS: u32 = 4;
/// Flag of a read or write: the client has opened the file with DIRECT.
pub const DIRECT: u32 = 8;
/// Flag of a read through the arena: it is of use however long the read is, as the client has read that before.
pub const AGAIN: u32 = 16;
/// Flag of a write: the client has opened the file with APPEND, and wants to know where what was written ends.
pub const APPENDS: u32 = 32;
/// Flag of a release that is posted: answered with the attributes, when it has a clock.
pub const LEFT: u32 = 1;
/// Value of a sync that was answered with order alone.
pub const ORDERED: u64 = 1;

macro_rules! ops {
    ($( $(#[doc = $doc:literal])* $name:ident = $value:literal, )*) => {
        /// Operations: the calls of `fs::FileSystem`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Op { $( $(#[doc = $doc])* $name = $value, )* }
        impl Op {
            /// All of them.
            #[cfg(test)]
            pub const ALL: &[Op] = &[$( Op::$name ),*];
            /// The operation with this number.
            pub fn from_u16(n: u16) -> Option<Op> {
                match n { $( $value => Some(Op::$name), )* _ => None }
            }
        }
    };
}

ops! {
    /// Nothing, at once.
    Ping = 1,
    /// object: directory; first: name.
    Lookup = 2,
    /// object: directory; first: path. Answered with the attributes of each name on the way, or of the last one if the path has more than
    /// [`WALK_NAMES`]. second: other names in the directory of the last one, with slashes between them; the attributes of the first [`WALK_AHEAD`] of them
    /// come behind, as far as all of them are there.
    Walk = 3,
    /// object: inode; other: handle, with flag 1.
    Getattr = 4,
    /// object: inode; second: `SetAttr` as [`set_attr`] writes it; other: handle, with flag 1.
    Setattr = 5,
    /// object: inode; flags: mask.
    Access = 6,
    /// object: inode.
    Readlink = 7,
    /// object: directory; first: name; mode; extra: device.
    Mknod = 8,
    /// object: directory; first: name; mode.
    Mkdir = 9,
    /// object: directory; first: name; second: target.
    Symlink = 10,
    /// object: inode; other: directory; first: name.
    Link = 11,
    /// object: directory; first: name.
    Unlink = 12,
    /// object: directory; first: name. Value: the inode that is gone, where somebody keeps books of that; else 0.
    Rmdir = 13,
    /// object: directory; first: name; other: new directory; second: new name; flags.
    Rename = 14,
    /// object: inode; other: its generation, with mode 1; flags; extra 1: it is one of the client's holds; 2: it was left ([`Op::Leave`]) to who has a description:
    /// len, offset and more as other, offset and more of [`Op::Flock`]; [`HAD_OPEN`]. Value: handle.
    Open = 15,
    /// object: directory; first: name; mode; flags; extra 1: data of a new file may come posted. Value: handle.
    Create = 16,
    /// object: directory; mode; flags. Value: handle.
    Tmpfile = 17,
    /// object: handle, or with [`OF_INODE`] an inode, of generation other; offset; len; flags ([`DIRECT`], ...); extra: slots behind whose payload memory the answer may use. Value 1: the
    /// answer begins with the attributes; the rest are the places of the pages from the one of the offset on, or the data.
    Read = 18,
    /// object: handle; offset; second: data; flags: [`DIRECT`], [`APPENDS`]; extra 1: more data may come posted. Value: bytes. Answered with the attributes, when it has a clock.
    Write = 19,
    /// object: handle; extra: owner.
    Flush = 20,
    /// object: handle; flags: [`LEFT`].
    Release = 21,
    /// object: handle; flags 1: data only. Value: [`ORDERED`], or 0.
    Fsync = 22,
    /// object: handle; flags 1: data only.
    Barrier = 23,
    Sync = 24,
    /// object: directory. Value: handle.
    Opendir = 25,
    /// object: handle; offset.
    Readdir = 26,
    Statfs = 27,
    /// object: inode; first: name.
    Getxattr = 28,
    /// object: inode.
    Listxattr = 29,
    /// object: inode; first: name; second: value; flags.
    Setxattr = 30,
    /// object: inode; first: name.
    Removexattr = 31,
    /// object: handle; mode: what; offset; len.
    Fallocate = 32,
    /// object: handle; offset; mode 1: hole. Value: offset.
    Seek = 33,
    /// object, other: handles; offset, extra: offsets; len. Value: bytes.
    CopyRange = 34,
    /// object: handle; extra: owner; offset, len: first and last byte; mode: kind; more: process. For those of a description that processes share: other: number of the memory that
    /// was shown; extra: the byte; more: the session. `ESTALE`: it was shown in another session.
    Getlk = 35,
    /// As `Getlk`; mode 2: release; flags 1: wait. Value 1: the description has locks after that.
    Setlk = 36,
    /// object: handle; mode: kind, 2: release; flags 1: wait. For a description that processes share: other: number of the memory that was shown; offset: the
    /// byte; more: the session. `ESTALE`: it was shown in another session. Value 1: the description has locks after that.
    Flock = 37,
    /// object: inode, which no longer is one of the client's holds.
    Unhold = 38,
    /// object: handle; offset; mode: place in the memory of the session. Value: number of the grant of a window under a write lease, or 0.
    Lease = 39,
    /// object: handle; first: offset and length of each piece; second: their bytes, one behind the other.
    WriteAtomic = 40,
    /// object: directory; mode: place in the memory of the session; len: inodes that are wanted. Value: number of a directory lease, or 0. Answered with what
    /// [`lent`] writes.
    LendDirectory = 41,
    /// len: inodes that are wanted. Answered with promises ([`promises`]).
    Promise = 42,
    /// Posted. object: directory; first: name; mode; flags; other: the inode that was promised; extra: number of the lease; offset: when it was made
    /// ([`time`]). `ESTALE`: nothing was done.
    PostCreate = 43,
    /// Posted. object: directory; first: name; extra: number of the lease. `ESTALE`: nothing was done.
    PostUnlink = 44,
    /// Posted. object: handle of a file that was made under a lease; offset; second: data; extra: number of the lease. Takes `fs::room_for` pages of
    /// its room. `ESTALE`: nothing was done.
    PostWrite = 45,
    /// extra: number of a lease. Value: pages of room for data that it has now.
    Room = 46,
    /// object: handle, open for reading and writing; mode: place in the memory of the session. Value: number of a lock lease, or 0.
    LendLocks = 47,
    /// object: handle. Answered with the file's pass (`fs::passes`).
    Pass = 48,
    /// Posted. As `PostCreate`, without flags.
    PostMkdir = 49,
    /// Posted. object: directory; first: name; extra: number of the lease. `ESTALE`: nothing was done.
    PostRmdir = 50,
    /// Posted. object: inode; other: its generation. It was read out of the arena, which may move its time of access.
    WasRead = 51,
    /// object: handle; other, offset, more: a description, as for [`Op::Flock`]. Who has it may open the file as it is open now, for as long as it is there.
    Leave = 52,
    /// object: inode; other: its generation. Value: the number of the pin, which keeps it what it is. `ESTALE`: it is another one.
    Pin = 53,
    /// object: number of a pin.
    Unpin = 54,
    /// object: handle; flags 1: record locks on the file outlast the program that the process runs, 0: they do not.
    KeepLocks = 55,
}

/// Whether a read is answered with the data, unless it was made [`AGAIN`]: the cost of a long one is in the copy, and such reads of large files would drive out of the arena
/// what is read again and again.
pub fn is_long_read(len: usize, size: u64) -> bool {
    const LONG: usize = 32 << 10;
    const SMALL: u64 = 256 << 10;
    len >= LONG && size > SMALL
}

impl Op {
    /// Whether the object, and the other object, of a request with these flags are handles.
    pub fn handles(self, flags: u32) -> (bool, bool) {
        use Op::*;
        match self {
            Getattr | Setattr => (false, flags & 1 != 0),
            Read => (flags & OF_INODE == 0, false),
            Lease | LendLocks | Pass | Write | PostWrite | WriteAtomic | Flush | Release | Fsync
            | Barrier | Readdir | Fallocate | Seek | Getlk | Setlk | Flock | Leave | KeepLocks => {
                (true, false)
            }
            CopyRange => (true, true),
            _ => (false, false),
        }
    }

    /// Whether it can open its file first ([`OPENS`]).
    pub fn may_open(self) -> bool {
        matches!(self, Op::Read | Op::Write | Op::Fsync | Op::Barrier)
    }

    /// Whether it changes names, or what stands beside the data of a file: what was written before it must not come later.
    pub fn is_ordered(self) -> bool {
        use Op::*;
        matches!(
            self,
            Mknod
                | Mkdir
                | Symlink
                | Link
                | Unlink
                | Rmdir
                | Rename
                | Create
                | Setattr
                | Setxattr
                | Removexattr
                | PostCreate
                | PostMkdir
                | PostUnlink
                | PostRmdir
        )
    }

    /// Whether a request with these flags changes something that lasts, or says what is durable or in order.
    pub fn is_in_order(self, flags: u32) -> bool {
        use Op::*;
        let truncates = self == Open && OpenFlags::from_bits_retain(flags).contains(OpenFlags::TRUNCATE);
        self.is_ordered()
            || truncates
            || matches!(self, Write | Fallocate | CopyRange | Tmpfile | Fsync | Barrier | Sync)
    }

    /// Whether doing it once more, when it may have been done already, does no harm and has the same answer. What writes through a handle that appends
    /// does not count here.
    pub fn is_repeatable(self) -> bool {
        use Op::*;
        !matches!(
            self,
            PostCreate
                | PostMkdir
                | PostUnlink
                | PostRmdir
                | Mknod
                | Mkdir
                | Symlink
                | Link
                | Unlink
                | Rmdir
                | Rename
                | Setxattr
                | Removexattr
        )
    }
}

/// In `extra` of [`Op::Open`]: the client had it open in a session with an earlier manager.
pub const HAD_OPEN: u64 = 3;

/// A request without operands.
pub fn request(op: Op, object: u64) -> Request {
    Request { op: (op as u16).into(), object: object.into(), ..Request::new_zeroed() }
}

/// What is told apart of the owners of record locks in one session.
pub fn owner(owner: LockOwner) -> LockOwner {
    LockOwner((owner.0 ^ owner.0 >> 32) & 0xffff_ffff)
}

/// A time as one word, in nanoseconds since 1970; before that there is none.
pub fn time(time: Time) -> u64 {
    u64::try_from(time.sec).unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(time.nsec as u64)
}

/// Reads what [`time`] wrote.
pub fn read_time(word: u64) -> Time {
    Time { sec: (word / 1_000_000_000) as i64, nsec: (word % 1_000_000_000) as u32 }
}

/// Most names of a path that are answered one by one.
pub const WALK_NAMES: usize = 32;
/// Most names that are answered beside a path.
pub const WALK_AHEAD: usize = 31;

/// What cannot be understood.
pub const GARBLED: Error = Error::Invalid("message of a session");

/// Writes where the pieces of an atomic write go, and their bytes.
pub fn pieces(pieces: &[(u64, &[u8])]) -> (Vec<u8>, Vec<u8>) {
    let place = |(at, data): &(u64, &[u8])| [at.to_le_bytes(), (data.len() as u64).to_le_bytes()];
    let places = pieces.iter().flat_map(place).collect::<Vec<_>>();
    (places.as_flattened().to_vec(), pieces.iter().flat_map(|(_, data)| data.iter().copied()).collect())
}

/// Reads what [`pieces`] wrote.
pub fn read_pieces<'a>(places: &[u8], mut bytes: &'a [u8]) -> Result<Vec<(u64, &'a [u8])>> {
    let (places, rest) = places.as_chunks::<16>();
    let mut all = Vec::with_capacity(places.len());
    for place in places {
        let number = |i: usize| u64::from_le_bytes(std::array::from_fn(|b| place[8 * i + b]));
        let len = usize::try_from(number(1)).map_err(|_| GARBLED)?;
        let (data, rest) = bytes.split_at_checked(len).ok_or(GARBLED)?;
        all.push((number(0), data));
        bytes = rest;
    }
    if rest.is_empty() && bytes.is_empty() { Ok(all) } else { Err(GARBLED) }
}

/// Appends a directory entry, unless it does not fit.
pub fn push_entry(out: &mut Vec<u8>, entry: &DirEntry<'_>, max: usize) -> bool {
    let len = size_of::<EntryHeader>() + entry.name.len().next_multiple_of(8);
    if out.len() + len > max {
        return false;
    }
    let end = out.len() + len;
    let head = EntryHeader {
        next_offset: entry.next_offset.into(),
        name_len: (entry.name.len() as u16).into(),
        reserved: [0; 6],
        attr: attr_image(&entry.attr).as_bytes().try_into().expect("the sizes are the same"),
    };
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(entry.name);
    out.resize(end, 0);
    true
}

/// Gives the entries of a payload to `sink` until it returns false; returns whether it took all, and where to go on.
pub fn entries(mut bytes: &[u8], sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send)) -> Result<Option<u64>> {
    let mut last = None;
    while !bytes.is_empty() {
        let (head, rest) = EntryHeader::read_from_prefix(bytes).map_err(|_| GARBLED)?;
        let len = head.name_len.get() as usize;
        let name = rest.get(..len).ok_or(GARBLED)?;
        let image = AttrImage::read_from_bytes(&head.attr).map_err(|_| GARBLED)?;
        let next_offset = head.next_offset.get();
        if !sink(DirEntry { name, next_offset, attr: attr(&image)? }) {
            return Ok(None);
        }
        last = Some(next_offset);
        bytes = rest.get(len.next_multiple_of(8)..).ok_or(GARBLED)?;
    }
    Ok(last)
}

/// Writes what was promised.
pub fn promises(all: &[Promise]) -> Vec<u8> {
    let image = |p: &Promise| PromiseImage {
        ino: p.ino.0.into(),
        generation: (p.generation as u64).into(),
        handle: p.handle.0.into(),
    };
    all.iter().flat_map(|p| image(p).as_bytes().to_vec()).collect()
}

/// Reads what [`promises`] wrote.
pub fn read_promises(bytes: &[u8]) -> Result<Vec<Promise>> {
    let read = |bytes: &[u8]| {
        let p = PromiseImage::read_from_bytes(bytes).map_err(|_| GARBLED)?;
        let generation = u32::try_from(p.generation.get()).map_err(|_| GARBLED)?;
        Ok(Promise { ino: Ino(p.ino.get()), generation, handle: Handle(p.handle.get()) })
    };
    bytes.chunks(size_of::<PromiseImage>()).map(read).collect()
}

/// Writes what a client is told with a directory lease. Names have 255 bytes at most.
pub fn lent(attr: &Attr, promised: &[Promise], names: &[Vec<u8>]) -> Vec<u8> {
    let mut out = attr_image(attr).as_bytes().to_vec();
    out.extend((promised.len() as u64).to_le_bytes());
    out.extend(promises(promised));
    for name in names {
        out.push(name.len() as u8);
        out.extend(name);
    }
    out
}

/// Reads what [`lent`] wrote.
pub fn read_lent(bytes: &[u8]) -> Result<(Attr, Vec<Promise>, Vec<Vec<u8>>)> {
    let (image, rest) = AttrImage::read_from_prefix(bytes).map_err(|_| GARBLED)?;
    let (count, rest) = rest.split_first_chunk::<8>().ok_or(GARBLED)?;
    let len = (u64::from_le_bytes(*count) as usize).checked_mul(size_of::<PromiseImage>()).ok_or(GARBLED)?;
    let (promised, mut rest) = rest.split_at_checked(len).ok_or(GARBLED)?;
    let mut names = Vec::new();
    while let Some((&len, more)) = rest.split_first() {
        let (name, more) = more.split_at_checked(len as usize).ok_or(GARBLED)?;
        names.push(name.to_vec());
        rest = more;
    }
    Ok((attr(&image)?, read_promises(promised)?, names))
}

/// Writes names one behind the other, each with a NUL.
pub fn names(all: &[Vec<u8>]) -> Vec<u8> {
    all.iter().flat_map(|name| name.iter().copied().chain([0])).collect()
}

/// Reads what [`names`] wrote.
pub fn read_names(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.split_inclusive(|&b| b == 0).map(|n| n.strip_suffix(&[0]).unwrap_or(n).to_vec()).collect()
}

/// An answer that says what went wrong, and its payload.
pub fn failure(e: &Error) -> (Reply, Vec<u8>) {
    let text = e.to_string();
    let text = text.as_bytes()[..text.len().min(1024)].to_vec();
    (Reply { errno: e.errno().into(), len: (text.len() as u32).into(), ..Reply::new_zeroed() }, text)
}

const _: () = assert!(offset_of!(EntryHeader, attr) == 16);

/// Attributes of a file, for tests.
#[cfg(test)]
pub fn some_attr(ino: u64, size: u64) -> Attr {
    use fs::{FileType, Time};
    Attr {
        ino: Ino(ino),
        generation: 1,
        kind: FileType::Regular,
        perm: 0o644,
        nlink: 1,
        uid: 1,
        gid: 2,
        rdev: 0,
        size,
        blocks: 8,
        atime: Time { sec: 1, nsec: 2 },
        mtime: Time { sec: -3, nsec: 4 },
        ctime: Time { sec: 5, nsec: 6 },
        btime: Time { sec: 7, nsec: 8 },
        xattrs: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let all = vec![b"user.a".to_vec(), b"user.b".to_vec()];
        assert_eq!(read_names(&names(&all)), all);
        assert!(read_names(&[]).is_empty());
        for &op in Op::ALL {
            assert_eq!(Op::from_u16(op as u16), Some(op));
        }
    }

    #[test]
    fn entries_that_are_cut_off_are_refused() {
        let attr = some_attr(3, 7);
        let mut bytes = Vec::new();
        for name in [&b"a"[..], b"longer name"] {
            assert!(push_entry(&mut bytes, &DirEntry { name, next_offset: 5, attr }, 400));
        }
        assert!(!push_entry(&mut bytes, &DirEntry { name: b"c", next_offset: 6, attr }, 400));
        let mut found = Vec::new();
        let last = entries(&bytes, &mut |e| {
            assert_eq!(e.attr, attr);
            found.push(e.name.to_vec());
            true
        });
        assert_eq!((last.unwrap(), found.len()), (Some(5), 2));
        for cut in 1..bytes.len() {
            if cut != 144 {
                assert!(entries(&bytes[..cut], &mut |_| true).is_err(), "{cut}");
            }
        }
    }
}
