//! The nouns of the contract.

use bitflags::bitflags;
use format::Ino;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A point in time: seconds since 1970-01-01 00:00 UTC (may be negative) and nanoseconds below 1,000,000,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds.
    pub sec: i64,
    /// Nanoseconds.
    pub nsec: u32,
}

impl Time {
    /// The time of the coarse real-time clock (resolution of a few milliseconds, no system call).
    pub fn now() -> Time {
        let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `ts` is a valid place for the result.
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &mut ts) };
        Time { sec: ts.tv_sec, nsec: ts.tv_nsec as u32 }
    }
}

impl From<Time> for SystemTime {
    fn from(t: Time) -> SystemTime {
        let whole = Duration::from_secs(t.sec.unsigned_abs());
        let base = if t.sec >= 0 { UNIX_EPOCH.checked_add(whole) } else { UNIX_EPOCH.checked_sub(whole) };
        base.and_then(|b| b.checked_add(Duration::from_nanos(t.nsec as u64))).unwrap_or(UNIX_EPOCH)
    }
}

impl From<SystemTime> for Time {
    fn from(t: SystemTime) -> Time {
        match t.duration_since(UNIX_EPOCH) {
            Ok(d) => Time { sec: d.as_secs() as i64, nsec: d.subsec_nanos() },
            Err(e) => {
                let d = e.duration();
                let up = (d.subsec_nanos() > 0) as i64;
                Time {
                    sec: -(d.as_secs() as i64) - up,
                    nsec: (1_000_000_000 - d.subsec_nanos()) % 1_000_000_000,
                }
            }
        }
    }
}

/// What a thread that attends finds ([`FileSystem::attend`](crate::FileSystem::attend)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Devices {
    /// There is nothing to wait for, or somebody else does.
    Idle,
    /// Nothing has completed yet.
    Busy,
    /// Something has completed.
    Done,
}

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum FileType {
    /// FIFO.
    Fifo = 1,
    /// Character device.
    CharDevice = 2,
    /// Directory.
    Directory = 4,
    /// Block device.
    BlockDevice = 6,
    /// Regular file.
    Regular = 8,
    /// Symbolic link.
    Symlink = 10,
    /// Socket.
    Socket = 12,
}

impl FileType {
    /// From the type bits of a `mode_t`.
    pub fn from_mode(mode: u32) -> Option<FileType> {
        Some(match mode & libc::S_IFMT {
            libc::S_IFIFO => FileType::Fifo,
            libc::S_IFCHR => FileType::CharDevice,
            libc::S_IFDIR => FileType::Directory,
            libc::S_IFBLK => FileType::BlockDevice,
            libc::S_IFREG => FileType::Regular,
            libc::S_IFLNK => FileType::Symlink,
            libc::S_IFSOCK => FileType::Socket,
            _ => return None,
        })
    }
    /// The type bits of a `mode_t` (also the value of `d_type`, shifted by 12).
    pub fn mode_bits(self) -> u32 {
        (self as u32) << 12
    }
}

/// Attributes of an inode, as stat(2) reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Distinguishes the inodes that had this number one after another.
    pub generation: u32,
    /// What it is.
    pub kind: FileType,
    /// Permission bits, set-id and sticky bits: `mode & 0o7777`.
    pub perm: u16,
    /// Number of names; for a directory 2 plus the number of its subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as in `st_rdev`.
    pub rdev: u64,
    /// Size in bytes.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of data or attributes.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
    /// It has extended attributes, or may have: where this is false, it has none.
    pub xattrs: bool,
}

impl Attr {
    /// Type and permission bits as in `st_mode`.
    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | self.perm as u32
    }

    /// Those of an empty regular file or directory that was made at that moment.
    pub const fn just_made(
        kind: FileType,
        (ino, generation): (Ino, u32),
        (uid, gid, perm): (u32, u32, u16),
        at: Time,
    ) -> Attr {
        let nlink = if matches!(kind, FileType::Directory) { 2 } else { 1 };
        let (rdev, size, blocks) = (0, 0, 0);
        let (atime, mtime, ctime, btime, xattrs) = (at, at, at, at, false);
        Attr {
            ino,
            generation,
            kind,
            perm,
            nlink,
            uid,
            gid,
            rdev,
            size,
            blocks,
            atime,
            mtime,
            ctime,
            btime,
            xattrs,
        }
    }

    /// Whether reading at `now` moves the time of access: relatime, Linux's default. After a change, and else once a day.
    #[inline]
    pub fn moves_atime(&self, now: Time) -> bool {
        const DAY: i64 = 24 * 60 * 60;
        self.atime <= self.mtime || self.atime <= self.ctime || now.sec.saturating_sub(self.atime.sec) >= DAY
    }
}

impl OpenFlags {
    /// Those that open(2) calls so. Creation and symlinks are matters of the path walk; bits without a meaning here are ignored.
    pub fn from_posix(flags: i32) -> OpenFlags {
        let mut out = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => OpenFlags::READ,
            libc::O_WRONLY => OpenFlags::WRITE,
            _ => OpenFlags::READ | OpenFlags::WRITE,
        };
        for (bits, flag) in [
            (libc::O_APPEND, OpenFlags::APPEND),
            (libc::O_TRUNC, OpenFlags::TRUNCATE),
            (libc::O_DIRECT, OpenFlags::DIRECT),
            (libc::O_DSYNC, OpenFlags::DSYNC),
            (libc::O_SYNC, OpenFlags::SYNC),
            (libc::O_NOATIME, OpenFlags::NOATIME),
            (libc::O_EXCL, OpenFlags::EXCLUSIVE),
        ] {
            out.set(flag, flags & bits == bits);
        }
        // O_SYNC contains O_DSYNC.
        if out.contains(OpenFlags::SYNC) { out - OpenFlags::DSYNC } else { out }
    }
}

/// A time to be set by setattr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time (anyone who may write the file may do that).
    Now,
    /// This time (the owner and root may do that).
    At(Time),
}

/// What setattr changes; `None` leaves an attribute alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits, set-id and sticky bits.
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: truncates, or extends with a hole.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the data.
    pub mtime: Option<SetTime>,
    /// The open file through which the call was made (ftruncate): its access mode decides instead of the permissions.
    pub handle: Option<Handle>,
}

/// An open file or directory. Handles are not reused while the volume is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// A regular file or directory that is to be made, and what it will be: see [`FileSystem::promise`](crate::FileSystem::promise).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Promise {
    /// Its inode.
    pub ino: Ino,
    /// Which one with this number.
    pub generation: u32,
    /// As what it will be open, if it is a file.
    pub handle: Handle,
}

/// What a promised inode is made: see [`FileSystem::create_promised`](crate::FileSystem::create_promised).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeAs {
    /// Permission bits, as for create and mkdir.
    pub perm: u16,
    /// How the file is opened that is made. `None`: a directory is made.
    pub open: Option<OpenFlags>,
    /// When it was made, for those who have acknowledged it before. `None`: now.
    pub time: Option<Time>,
}

/// Pages of room that a write needs at most: those that it touches, and the first one, should the file stand elsewhere until it grows.
pub fn room_for(offset: u64, len: usize) -> u64 {
    const PAGE: u64 = crate::cache::PAGE as u64;
    let (first, end) = (offset / PAGE, offset.saturating_add(len as u64).div_ceil(PAGE));
    end.saturating_sub(first) + (first > 0) as u64
}

/// One time that a volume was opened: tells who worked with it before whether all of that is still there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// The volume's own number; all zero for none.
    pub volume: [u8; 16],
    /// Drawn by chance for each opening; 0 for none.
    pub number: u64,
    /// Openings before this one, of which nothing was lost: they ended in clean stops, one after the other. The newest first, 0 for none.
    pub after: [u64; 4],
}

impl Opening {
    /// Whether everything that was acknowledged in `earlier` is in this opening, synced or not.
    pub fn keeps(&self, earlier: &Opening) -> bool {
        let number = earlier.number;
        self.volume == earlier.volume
            && number != 0
            && (number == self.number || self.after.contains(&number))
    }
}

bitflags! {
    /// How a file is opened. Creation, exclusiveness and symlinks are matters of the path walk above the contract.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct OpenFlags: u32 {
        /// Reading is allowed.
        const READ = 1;
        /// Writing is allowed.
        const WRITE = 2;
        /// Every write goes to the end of the file, atomically with other appending writers.
        const APPEND = 4;
        /// Set the size to 0.
        const TRUNCATE = 8;
        /// Transfers bypass the page cache. Offsets and lengths must be multiples of 512, else `EINVAL`.
        const DIRECT = 16;
        /// A write returns when its data and all metadata are durable (O_SYNC).
        const SYNC = 32;
        /// A write returns when its data, and the metadata needed to read it, are durable (O_DSYNC).
        const DSYNC = 64;
        /// Reads do not update the access time.
        const NOATIME = 128;
        /// With create: fail with `EEXIST` when the name exists (O_EXCL). With tmpfile: the file may never be linked.
        const EXCLUSIVE = 256;
    }

    /// What to check in access(2): a mask of R_OK, W_OK, X_OK.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Search (directories) or execute.
        const EXEC = 1;
        /// Write.
        const WRITE = 2;
        /// Read.
        const READ = 4;
    }

    /// Flags of rename, as in renameat2(2).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RenameFlags: u32 {
        /// Fail with `EEXIST` when the target exists.
        const NOREPLACE = 1;
        /// Exchange both names atomically; both must exist.
        const EXCHANGE = 2;
    }

    /// Flags of setxattr.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct XattrFlags: u32 {
        /// Fail with `EEXIST` when the attribute exists.
        const CREATE = 1;
        /// Fail with `ENODATA` when the attribute does not exist.
        const REPLACE = 2;
    }
}

/// What fallocate does, as in fallocate(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fallocate {
    /// Reserve space; the size grows to the end of the range unless `keep_size`.
    Allocate {
        /// Leave the size alone.
        keep_size: bool,
    },
    /// Give the space of the range back; it reads as zeros. The size stays.
    PunchHole,
    /// The range reads as zeros and stays allocated.
    ZeroRange {
        /// Leave the size alone.
        keep_size: bool,
    },
}

/// What lseek looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Seek {
    /// The next byte that may hold data (SEEK_DATA).
    Data,
    /// The next hole; the end of the file counts as one (SEEK_HOLE).
    Hole,
}

/// One entry of a directory, as given to the sink of readdir. "." and ".." are included.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The offset at which a later readdir goes on behind this entry. It stays valid while other entries come and go.
    pub next_offset: u64,
    /// Attributes of the inode.
    pub attr: Attr,
}

/// Space and inodes of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for anyone but root.
    pub blocks_available: u64,
    /// Inodes that exist or could be made.
    pub inodes: u64,
    /// Inodes that could still be made.
    pub inodes_free: u64,
    /// Longest name.
    pub name_max: u32,
}

/// Who holds a file lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockHolder {
    /// Of record locks.
    Owner(LockOwner),
    /// Of a lock on the whole file.
    Handle(Handle),
}

/// The locks that somebody holds on one inode, for those who look after a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// The inode.
    pub ino: Ino,
    /// Who holds them.
    pub holder: LockHolder,
    /// Since the holder, without a lock on this inode until then, got the first of them.
    pub held: Duration,
    /// Calls that wait for them.
    pub waiting: usize,
    /// How long the one that has waited longest does; zero without any.
    pub waited: Duration,
}

/// Kind of a file lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// Many at a time.
    Shared,
    /// One at a time.
    Exclusive,
}

/// A POSIX record lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLock {
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `u64::MAX` for "to the end".
    pub end: u64,
    /// Kind.
    pub kind: LockKind,
    /// Process that holds it, for F_GETLK; [`RecordLock::OF_DESCRIPTION`].
    pub pid: u32,
}

impl RecordLock {
    /// In place of a process: the lock belongs to an open file description (F_OFD_SETLK). Nobody is refused such a lock as one who would wait for ever: any thread that
    /// has the description can give up what others wait for.
    pub const OF_DESCRIPTION: u32 = u32::MAX;
}

/// Who holds record locks: one value for each process and file table, chosen by the door, of 63 bits; or a handle ([`LockOwner::of_handle`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockOwner(pub u64);

impl LockOwner {
    const HANDLE: u64 = 1 << 63;

    /// An open file as the owner of record locks (F_OFD_SETLK). They go with the handle.
    pub const fn of_handle(handle: Handle) -> LockOwner {
        LockOwner(Self::HANDLE | handle.0)
    }

    /// The other way round; `None`: it is a process.
    pub fn handle(self) -> Option<Handle> {
        (self.0 & Self::HANDLE != 0).then_some(Handle(self.0 & !Self::HANDLE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_1970() {
        for t in [Time { sec: 5, nsec: 7 }, Time { sec: -5, nsec: 0 }, Time { sec: -5, nsec: 999_999_999 }] {
            assert_eq!(Time::from(SystemTime::from(t)), t);
        }
    }
}
