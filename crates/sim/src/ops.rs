//! Operations over the whole contract, in a form that can be generated, executed on any file system, compared, made
//! smaller and printed as Rust code.
//!
//! An operation names inodes and open files by slots: what it makes or finds goes into the slot `into`, and later
//! operations refer to it there. So the same list means the same on every file system, whatever its inode numbers are,
//! and still means something after a part of it was left out. Slot 0 of the inodes is always the root.
//!
//! - [`generate`]: the seeded generator and its knobs ([`Knobs`]).
//! - [`mod@execute`]: executing an operation.
//! - [`outcome`]: what came out, and how two outcomes are compared.
//!
//! Not generated: waiting for locks (one caller at a time), running out of space, lost devices.

pub mod execute;
pub mod generate;
mod knobs;
pub mod outcome;
mod shadow;

pub use execute::{State, execute};
pub use generate::Generator;
pub use knobs::Knobs;
pub use outcome::{Outcome, Tolerance};

use fs::{Cred, SetTime, Time};
use std::fmt::Write as _;

/// Number of inode slots; the lower [`DIR_SLOTS`] are mostly used for directories.
pub const NODE_SLOTS: u8 = 20;
/// Number of inode slots that are mostly used for directories.
pub const DIR_SLOTS: u8 = 8;
/// Number of slots of open files; the lower [`FILE_HANDLES`] are mostly used for files, the others for directories.
pub const HANDLE_SLOTS: u8 = 10;
/// Number of handle slots that are mostly used for files.
pub const FILE_HANDLES: u8 = 7;

/// Who makes the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// User 0.
    Root,
    /// User 1000, group 1000, also in group 2000.
    Alice,
    /// User 1001, group 1001, also in group 2000.
    Bob,
    /// Alice, checked by a kernel above the contract, which clears set-id bits by itself when she writes.
    CheckedAlice,
}

impl Who {
    /// The credentials.
    pub fn cred(self) -> Cred {
        match self {
            Who::Root => Cred::root(),
            Who::Alice => Cred::user(1000, 1000, &[2000]),
            Who::Bob => Cred::user(1001, 1001, &[2000]),
            Who::CheckedAlice => Cred { checked: true, keeps_set_ids: true, ..Who::Alice.cred() },
        }
    }
}

/// A time given to setattr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Now.
    Now,
    /// Seconds since 1970 and nanoseconds.
    At(i64, u32),
}

impl When {
    pub(crate) fn set_time(self) -> SetTime {
        match self {
            When::Now => SetTime::Now,
            When::At(sec, nsec) => SetTime::At(Time { sec, nsec }),
        }
    }
}

/// What fallocate does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "as fs::Fallocate")]
pub enum Space {
    Allocate,
    AllocateKeep,
    Punch,
    Zero,
    ZeroKeep,
}

/// One operation. `who`, `dir`, `node`, `handle` and `into` are slots or users as above; `name` is an index into [`name`];
/// flags are the bits of the contract's flags. Where a call takes an inode and a handle, the handle's
/// inode is used if there is a handle. Everything else is as in the contract.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields are the arguments of the contract's methods")]
pub enum Op {
    Lookup {
        who: Who,
        dir: u8,
        name: u8,
        into: u8,
    },
    Walk {
        who: Who,
        dir: u8,
        names: Vec<u8>,
        into: u8,
    },
    GetAttr {
        node: u8,
        handle: Option<u8>,
    },
    Chmod {
        who: Who,
        node: u8,
        perm: u16,
    },
    Chown {
        who: Who,
        node: u8,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    Truncate {
        who: Who,
        node: u8,
        size: u64,
        handle: Option<u8>,
    },
    SetTimes {
        who: Who,
        node: u8,
        atime: Option<When>,
        mtime: Option<When>,
    },
    SetMany {
        who: Who,
        node: u8,
        perm: Option<u16>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        mtime: Option<When>,
    },
    Access {
        who: Who,
        node: u8,
        mask: u32,
    },
    ReadLink {
        who: Who,
        node: u8,
    },
    MkNod {
        who: Who,
        dir: u8,
        name: u8,
        mode: u32,
        rdev: u64,
        into: u8,
    },
    MkDir {
        who: Who,
        dir: u8,
        name: u8,
        perm: u16,
        into: u8,
    },
    SymLink {
        who: Who,
        dir: u8,
        name: u8,
        target: u32,
        into: u8,
    },
    Link {
        who: Who,
        node: u8,
        dir: u8,
        name: u8,
    },
    Unlink {
        who: Who,
        dir: u8,
        name: u8,
    },
    RmDir {
        who: Who,
        dir: u8,
        name: u8,
    },
    Rename {
        who: Who,
        dir: u8,
        name: u8,
        new_dir: u8,
        new_name: u8,
        flags: u32,
    },
    Open {
        who: Who,
        node: u8,
        flags: u32,
        into: u8,
    },
    Create {
        who: Who,
        dir: u8,
        name: u8,
        perm: u16,
        flags: u32,
        node_into: u8,
        into: u8,
    },
    TmpFile {
        who: Who,
        dir: u8,
        perm: u16,
        flags: u32,
        node_into: u8,
        into: u8,
    },
    Read {
        handle: u8,
        offset: u64,
        len: u32,
    },
    Write {
        handle: u8,
        offset: u64,
        len: u32,
        pattern: u32,
    },
    Flush {
        handle: u8,
    },
    Close {
        handle: u8,
    },
    Fsync {
        handle: u8,
        datasync: bool,
    },
    Barrier {
        handle: u8,
        datasync: bool,
    },
    Sync,
    OpenDir {
        who: Who,
        node: u8,
        into: u8,
    },
    ReadDir {
        handle: u8,
        batch: u8,
    },
    ScanDuring {
        handle: u8,
        batch: u8,
        changes: Vec<Op>,
    },
    StatFs,
    GetXattr {
        who: Who,
        node: u8,
        attr: u8,
    },
    ListXattr {
        who: Who,
        node: u8,
    },
    SetXattr {
        who: Who,
        node: u8,
        attr: u8,
        len: u32,
        pattern: u32,
        flags: u32,
    },
    RemoveXattr {
        who: Who,
        node: u8,
        attr: u8,
    },
    Fallocate {
        handle: u8,
        what: Space,
        offset: u64,
        len: u64,
    },
    Seek {
        handle: u8,
        offset: u64,
        hole: bool,
    },
    CopyRange {
        from: u8,
        from_offset: u64,
        to: u8,
        to_offset: u64,
        len: u64,
    },
    GetLk {
        handle: u8,
        start: u64,
        end: u64,
        exclusive: bool,
    },
    SetLk {
        handle: u8,
        start: u64,
        end: u64,
        exclusive: Option<bool>,
    },
    Flock {
        handle: u8,
        exclusive: Option<bool>,
    },
}

impl Op {
    /// The operation's name.
    pub fn kind(&self) -> String {
        format!("{self:?}").chars().take_while(char::is_ascii_alphanumeric).collect()
    }
}

/// Names below this index are good ones.
pub const GOOD_NAMES: u8 = 10;
/// Number of names that a kernel can pass on: the good ones, one that is too long, "." and "..".
pub const KERNEL_NAMES: u8 = 13;
/// Number of names, bad ones included.
pub const NAMES: u8 = 17;

/// Index of the name ".".
pub const DOT: u8 = 11;
/// Index of the name "..".
pub const DOT_DOT: u8 = 12;

/// The name with this index.
pub fn name(index: u8) -> Vec<u8> {
    match index % NAMES {
        n @ 0..7 => vec![b'a' + n],
        7 => vec![b'n'; 255],
        8 => b"\xff\xfe not UTF-8 \x01".to_vec(),
        9 => b"a name with blanks.txt".to_vec(),
        10 => vec![b'n'; 256],
        DOT => b".".to_vec(),
        DOT_DOT => b"..".to_vec(),
        13 => Vec::new(),
        14 => b"a/b".to_vec(),
        15 => b"a\0b".to_vec(),
        _ => vec![b'n'; 5000],
    }
}

/// Extended attributes below this index have good names.
pub const GOOD_XATTRS: u8 = 4;
/// Number of extended attribute names that a kernel passes on: the good ones and two in no namespace.
pub const KERNEL_XATTRS: u8 = 6;
/// Number of extended attribute names, bad ones included.
pub const XATTRS: u8 = 11;

/// The name of the extended attribute with this index.
pub fn xattr_name(index: u8) -> Vec<u8> {
    match index % XATTRS {
        0 => b"user.a".to_vec(),
        1 => b"user.some longer name".to_vec(),
        2 => b"trusted.t".to_vec(),
        3 => b"security.s".to_vec(),
        4 => b"user.".to_vec(),
        5 => b"other.x".to_vec(),
        6 => [&b"user."[..], &[b'x'; 250]].concat(),
        7 => [&b"user."[..], &[b'x'; 251]].concat(),
        8 => Vec::new(),
        9 => b"user".to_vec(),
        _ => b"trusted.".to_vec(),
    }
}

/// The symlink target with this index: short ones, and above 1000 one of that length (so 4095 fits and 4096 does not).
pub fn target(index: u32) -> Vec<u8> {
    match index {
        0 => Vec::new(),
        1..1000 => format!("../to/{index}").into_bytes(),
        len => vec![b't'; len as usize],
    }
}

/// Bytes that tell where they were written and by which operation.
pub fn pattern(seed: u32, len: u32) -> Vec<u8> {
    let mut word = seed.wrapping_mul(0x9e37_79b9) | 1;
    (0..len)
        .map(|i| {
            if i % 64 == 0 {
                word = word.wrapping_mul(0x85eb_ca6b).wrapping_add(i);
            }
            // Never zero, so that written bytes differ from holes.
            ((word >> 16) as u8 ^ i as u8).max(1)
        })
        .collect()
}

/// Operations as Rust code: a vector for a regression test. Needs `use sim::ops::{Op::*, Space::*, When::*, Who::*}`.
pub fn code(ops: &[Op]) -> String {
    let mut out = String::from("vec![\n");
    for op in ops {
        let _ = writeln!(out, "    {},", op_code(op));
    }
    out.push(']');
    out
}

fn op_code(op: &Op) -> String {
    match op {
        Op::Walk { names, .. } => {
            format!("{op:?}").replace(&format!("names: {names:?}"), &format!("names: vec!{names:?}"))
        }
        Op::ScanDuring { handle, batch, changes } => {
            let changes: Vec<String> = changes.iter().map(op_code).collect();
            let changes = changes.join(", ");
            format!("ScanDuring {{ handle: {handle}, batch: {batch}, changes: vec![{changes}] }}")
        }
        op => format!("{op:?}"),
    }
}
