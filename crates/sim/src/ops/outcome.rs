//! What came out of an operation, without what may differ between two correct file systems.
//!
//! Left out of every outcome: inode numbers (replaced by the order in which inodes were first seen), generations,
//! sizes of directories, allocated blocks, creation times, offsets and order of directory entries, where exactly data and
//! holes begin, which of several locks stands in the way. Checked inside, and reported as [`Outcome::Broken`]: that
//! these are sane on their own.

use fs::{FileType, Time};
use std::fmt;

/// What may differ between the two sides of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tolerance {
    /// Compare mtime and ctime.
    pub times: bool,
    /// Compare atime.
    pub atime: bool,
    /// Two failures must have the same errno. Without it, it is enough that both fail.
    pub errno: bool,
}

impl Tolerance {
    /// Nothing may differ.
    pub const NONE: Tolerance = Tolerance { times: true, atime: true, errno: true };
    /// Times may differ: for two file systems with clocks of their own.
    pub const TIMES: Tolerance = Tolerance { times: false, atime: false, errno: true };
}

/// Attributes of an inode that two file systems must agree on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    /// The how-manieth inode that was seen.
    pub id: usize,
    /// What it is.
    pub kind: FileType,
    /// Permission bits.
    pub perm: u16,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u64,
    /// Size; 0 for directories.
    pub size: u64,
    /// Times: access, data, attributes.
    pub times: [Time; 3],
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shown { id, kind, perm, nlink, uid, gid, rdev, size, times: [a, m, c] } = self;
        let t = |t: &Time| format!("{}.{:09}", t.sec, t.nsec);
        write!(f, "#{id} {kind:?} {perm:04o} links {nlink} {uid}:{gid} rdev {rdev:#x} size {size}")?;
        write!(f, " a {} m {} c {}", t(a), t(m), t(c))
    }
}

/// What an operation returned.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Success without a value.
    Done,
    /// An inode.
    Node(Shown),
    /// Bytes that were read.
    Bytes(Vec<u8>),
    /// A count of bytes.
    Count(u64),
    /// Names, sorted, with the inode each leads to where that is known.
    Names(Vec<(Vec<u8>, Option<usize>)>),
    /// Whether a lock stands in the way.
    Locked(bool),
    /// The errno of a failure.
    Failed(i32),
    /// The file system contradicts itself or the contract; no other outcome equals this.
    Broken(String),
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done => write!(f, "done"),
            Outcome::Node(node) => write!(f, "{node:?}"),
            Outcome::Bytes(bytes) => {
                let head = &bytes[..bytes.len().min(24)];
                let sum = format::crc32c(bytes);
                write!(f, "{} bytes \"{}\"... crc {sum:08x}", bytes.len(), head.escape_ascii())
            }
            Outcome::Count(n) => write!(f, "count {n}"),
            Outcome::Names(names) => {
                write!(f, "{} names:", names.len())?;
                for (name, id) in names {
                    let short = &name[..name.len().min(24)];
                    write!(f, " {}", short.escape_ascii())?;
                    if let Some(id) = id {
                        write!(f, "#{id}")?;
                    }
                }
                Ok(())
            }
            Outcome::Locked(locked) => write!(f, "lock in the way: {locked}"),
            Outcome::Failed(errno) => write!(f, "{}", std::io::Error::from_raw_os_error(*errno)),
            Outcome::Broken(why) => write!(f, "BROKEN: {why}"),
        }
    }
}

impl Outcome {
    /// Whether `other` is the same as this outcome, which is taken to be right, but for what is tolerated.
    pub fn same(&self, other: &Outcome, tolerance: Tolerance) -> bool {
        match (self, other) {
            (Outcome::Broken(_), _) | (_, Outcome::Broken(_)) => false,
            (Outcome::Failed(_), Outcome::Failed(_)) if !tolerance.errno => true,
            // Calls on inodes that are gone fail; when there is another reason as well, either may come first.
            (Outcome::Failed(libc::ESTALE), Outcome::Failed(_)) => true,
            (Outcome::Node(a), Outcome::Node(b)) => {
                let level = |shown: &Shown| {
                    let mut shown = *shown;
                    if !tolerance.times {
                        (shown.times[1], shown.times[2]) = (Time::default(), Time::default());
                    }
                    if !tolerance.atime {
                        shown.times[0] = Time::default();
                    }
                    shown
                };
                level(a) == level(b)
            }
            _ => self == other,
        }
    }
}
