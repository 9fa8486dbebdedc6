//! The kernel's FUSE protocol: every structure that crosses `/dev/fuse`, native endian, as in
//! `include/uapi/linux/fuse.h` (version 7.40; kernels down to 7.31 and up to any later 7.x are spoken to).
//!
//! Sizes are asserted below. Nothing here does I/O; parsing is in `door`, transport in `device`.
//! Tested by the mount tests in `crates/fuse/tests`.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Protocol version spoken.
pub const MAJOR: u32 = 7;
/// Minor version spoken; what the kernel offers beyond it is not used.
pub const MINOR: u32 = 40;
/// Oldest minor version accepted (Linux 5.2: `max_pages`, `FUSE_EXPLICIT_INVAL_DATA`).
pub const MINOR_MIN: u32 = 31;
/// From this minor version on (Linux 6.18) the kernel drops the pages that it keeps of what is written with [`FOPEN_DIRECT_IO`], before the write and after it.
/// From 7.39 on (Linux 6.6) it does so before alone, so that a reader may bring old bytes back meanwhile; earlier ones leave them for ever.
pub const MINOR_DIRECT: u32 = 45;

macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident: $size:literal { $($field:ident: $ty:ty,)* })*) => { $(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
        pub struct $name { $(#[allow(missing_docs, reason = "named as in fuse.h")] pub $field: $ty,)* }
        const _: () = assert!(size_of::<$name>() == $size);
    )* };
}

wire! {
    /// Head of every request.
    InHeader: 40 { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, extlen: u16, padding: u16, }
    /// Head of every reply; `error` is a negated errno, or a notification code when `unique` is 0.
    OutHeader: 16 { len: u32, error: i32, unique: u64, }
    /// Attributes.
    RawAttr: 88 {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    /// Reply of lookup and of everything that makes an inode.
    EntryOut: 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
        attr: RawAttr,
    }
    /// Reply of getattr and setattr.
    AttrOut: 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: RawAttr, }
    /// INIT.
    InitIn: 64 { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11], }
    /// Reply of INIT.
    InitOut: 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    /// GETATTR.
    GetAttrIn: 16 { flags: u32, dummy: u32, fh: u64, }
    /// STATX.
    StatxIn: 24 { flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    /// A time of statx.
    SxTime: 16 { sec: i64, nsec: u32, reserved: i32, }
    /// Reply of STATX.
    StatxOut: 288 {
        attr_valid: u64, attr_valid_nsec: u32, out_flags: u32, spare: [u64; 2],
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16, ino: u64,
        size: u64, blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    /// SETATTR.
    SetAttrIn: 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64, ctime: i64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    /// MKNOD; the name follows.
    MknodIn: 16 { mode: u32, rdev: u32, umask: u32, padding: u32, }
    /// MKDIR; the name follows.
    MkdirIn: 8 { mode: u32, umask: u32, }
    /// RENAME; both names follow.
    RenameIn: 8 { newdir: u64, }
    /// RENAME2; both names follow.
    Rename2In: 16 { newdir: u64, flags: u32, padding: u32, }
    /// LINK; the name follows.
    LinkIn: 8 { oldnodeid: u64, }
    /// FORGET.
    ForgetIn: 8 { nlookup: u64, }
    /// BATCH_FORGET; so many [`ForgetOne`] follow.
    BatchForgetIn: 8 { count: u32, dummy: u32, }
    /// One inode of BATCH_FORGET.
    ForgetOne: 16 { nodeid: u64, nlookup: u64, }
    /// OPEN and OPENDIR.
    OpenIn: 8 { flags: u32, open_flags: u32, }
    /// CREATE and TMPFILE; the name follows.
    CreateIn: 16 { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    /// Reply of open; follows an [`EntryOut`] in the reply of create.
    OpenOut: 16 { fh: u64, open_flags: u32, backing_id: i32, }
    /// RELEASE and RELEASEDIR.
    ReleaseIn: 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    /// FLUSH.
    FlushIn: 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    /// READ, READDIR and READDIRPLUS.
    ReadIn: 40 { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    /// WRITE; the data follow.
    WriteIn: 40 { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    /// Reply of WRITE and COPY_FILE_RANGE.
    WriteOut: 8 { size: u32, padding: u32, }
    /// Reply of STATFS.
    StatfsOut: 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
    /// IOCTL.
    IoctlIn: 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    /// Reply of IOCTL.
    IoctlOut: 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    /// FSYNC and FSYNCDIR.
    FsyncIn: 16 { fh: u64, fsync_flags: u32, padding: u32, }
    /// SETXATTR (short form); name and value follow.
    SetXattrIn: 8 { size: u32, flags: u32, }
    /// GETXATTR and LISTXATTR, and their reply when `size` is 0.
    GetXattr: 8 { size: u32, padding: u32, }
    /// GETLK, SETLK, SETLKW.
    LkIn: 48 { fh: u64, owner: u64, start: u64, end: u64, kind: u32, pid: u32, lk_flags: u32, padding: u32, }
    /// Reply of GETLK.
    LkOut: 24 { start: u64, end: u64, kind: u32, pid: u32, }
    /// ACCESS.
    AccessIn: 8 { mask: u32, padding: u32, }
    /// INTERRUPT.
    InterruptIn: 8 { unique: u64, }
    /// FALLOCATE.
    FallocateIn: 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    /// LSEEK.
    LseekIn: 24 { fh: u64, offset: u64, whence: u32, padding: u32, }
    /// Reply of LSEEK.
    LseekOut: 8 { offset: u64, }
    /// COPY_FILE_RANGE.
    CopyIn: 56 { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64, }
    /// Head of a directory entry; the name follows, padded to 8 bytes.
    Dirent: 24 { ino: u64, off: u64, namelen: u32, kind: u32, }
    /// Notification: drop cached attributes and data of an inode.
    InvalInode: 24 { ino: u64, off: i64, len: i64, }
    /// Notification: drop a cached name; the name and a NUL follow.
    InvalEntry: 16 { parent: u64, namelen: u32, flags: u32, }
}

/// Request codes.
#[allow(missing_docs, reason = "named as in fuse.h")]
pub mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
}

/// Notification codes.
pub mod notify {
    /// Drop attributes and data of an inode.
    pub const INVAL_INODE: i32 = 2;
    /// Drop a name.
    pub const INVAL_ENTRY: i32 = 3;
}

bitflags! {
    /// Capabilities agreed on in INIT (`flags` and, shifted by 32, `flags2`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[allow(missing_docs, reason = "named as in fuse.h")]
    pub struct Init: u64 {
        const ASYNC_READ = 1;
        const POSIX_LOCKS = 1 << 1;
        const FILE_OPS = 1 << 2;
        const EXPORT_SUPPORT = 1 << 4;
        const BIG_WRITES = 1 << 5;
        const DONT_MASK = 1 << 6;
        const FLOCK_LOCKS = 1 << 10;
        const AUTO_INVAL_DATA = 1 << 12;
        const DO_READDIRPLUS = 1 << 13;
        const READDIRPLUS_AUTO = 1 << 14;
        const ASYNC_DIO = 1 << 15;
        const WRITEBACK_CACHE = 1 << 16;
        const PARALLEL_DIROPS = 1 << 18;
        const MAX_PAGES = 1 << 22;
        const CACHE_SYMLINKS = 1 << 23;
        const EXPLICIT_INVAL_DATA = 1 << 25;
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        const INIT_EXT = 1 << 30;
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
    }

    /// Which fields of [`SetAttrIn`] count.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[allow(missing_docs, reason = "named as in fuse.h")]
    pub struct Fattr: u32 {
        const MODE = 1;
        const UID = 1 << 1;
        const GID = 1 << 2;
        const SIZE = 1 << 3;
        const ATIME = 1 << 4;
        const MTIME = 1 << 5;
        const FH = 1 << 6;
        const ATIME_NOW = 1 << 7;
        const MTIME_NOW = 1 << 8;
        const KILL_SUIDGID = 1 << 11;
    }
}

/// `GetAttrIn::flags`: `fh` is valid.
pub const GETATTR_FH: u32 = 1;
/// `WriteIn::write_flags`: the data come from the page cache; handle and offset are the kernel's choice.
pub const WRITE_CACHE: u32 = 1;
/// `WriteIn::write_flags`: clear set-id bits.
pub const WRITE_KILL_SUIDGID: u32 = 4;
/// `LkIn::lk_flags`: a flock(2) lock.
pub const LK_FLOCK: u32 = 1;
/// `FsyncIn::fsync_flags`: fdatasync.
pub const FSYNC_DATASYNC: u32 = 1;
/// `OpenOut::open_flags`: every transfer goes to the server.
pub const FOPEN_DIRECT_IO: u32 = 1;
/// `OpenOut::open_flags`: cached data stay.
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// `OpenOut::open_flags`: direct writes of one file need not wait for each other.
pub const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
/// `ioctl(2)` on `/dev/fuse`: make this descriptor another one of the mount whose descriptor is given.
pub const DEV_IOC_CLONE: u64 = 0x8004_e500;
