//! The contract: what every engine gives and every door uses. Inode based; paths are walked above it (`fs::path`).
//!
//! Common to all methods:
//! - They may be called from any thread, and many at a time. The futures may be dropped at any point; a dropped call
//!   either took effect or did not.
//! - After a crash the volume is in a state between two calls, not older than the last durable one (docs/SEMANTICS.md).
//! - Besides the errors named at each method, every method may fail with `Media`, `Corrupt`, `Latched`, `Closed`, and those
//!   that change something with `ReadOnly` and `NoSpace`. A failed call has changed nothing, unless the method says so.
//! - Methods that take an inode number fail with `Stale` when it does not exist; methods that take a handle fail with
//!   `BadHandle` when it is not open or not open for what is asked.
//! - Permissions are checked as POSIX says, unless [`Cred::checked`] is set; failures are `AccessDenied`
//!   (mode bits forbid) and `NotPermitted` (only the owner or root may).
//! - Names are 1 to 255 bytes without '/' and NUL, and not "." or "..": else `NameTooLong`, `Invalid`, `Exists`.

use crate::cache::Pages;
use crate::cred::Cred;
use crate::error::{Error, Result};
use crate::locks::Keeper;
use crate::source::Source;
use crate::types::*;
use format::Ino;
use media::{ArenaId, BufRef, Memory};
use std::future::Future;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Bytes of one atomic write.
pub const ATOMIC_WRITE_MAX: usize = 64 << 10;

/// A file system. See the module documentation for what holds for all methods.
#[allow(clippy::too_many_arguments, reason = "the argument lists are those of the system calls")]
pub trait FileSystem: Send + Sync + 'static {
    /// Runs a future of this engine's calls to its end on the calling thread. An engine may have the thread work for it while
    /// it waits, which saves waking others. The future must not itself block the thread with an executor other than
    /// [`block_on`](crate::block_on()) on calls of the same engine: nobody would take in what they wait for.
    fn block_on<T: Future>(&self, future: T) -> T::Output {
        crate::block_on(future)
    }

    /// A thread that looks for work all the time, one for each engine, says so: with `stays` again and again, and without before it does anything
    /// else for long. An engine may have it take in what devices have completed, which saves waking others; calls that go on by that are woken. What
    /// calls begin on this thread may be handed to devices when it attends next, all together; [`FileSystem::block_on`] on it means that it leaves for so long.
    fn attend(&self, _stays: bool) -> Devices {
        Devices::Idle
    }

    /// A descriptor that can be read from, as poll(2) has it, once devices have completed something: a thread that attends and finds them busy may sleep until then, instead of
    /// saying that it does something else. It asks for it before each sleep and attends once more, as what was announced before may be forgotten.
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The inode called `name` in directory `parent`. `NotFound`, `NotDirectory`. "." and ".." are understood.
    fn lookup(&self, cred: &Cred, parent: Ino, name: &[u8]) -> impl Future<Output = Result<Attr>> + Send;

    /// Walks a relative path of plain names from directory `base` and returns the last inode, symlinks not followed
    /// (a symlink on the way is `NotDirectory`; callers then walk step by step). Engines that can do it at once override it.
    fn walk(&self, cred: &Cred, base: Ino, path: &[u8]) -> impl Future<Output = Result<Attr>> + Send {
        async move {
            let mut at = self.getattr(base, None).await?;
            for name in path.split(|&b| b == b'/').filter(|n| !n.is_empty()) {
                if at.kind != FileType::Directory {
                    return Err(Error::NotDirectory);
                }
                at = self.lookup(cred, at.ino, name).await?;
            }
            Ok(at)
        }
    }

    /// As [`FileSystem::walk`] for callers that would rather have no future: the answer if it can be given without waiting for
    /// anything, else `None`. What it says is as true as what `walk` says.
    fn walk_now(&self, _cred: &Cred, _base: Ino, _path: &[u8]) -> Option<Result<Attr>> {
        None
    }

    /// As [`FileSystem::walk_now`], for callers that need not know more than which inode the path leads to, and what it is. That can be known when its attributes
    /// are not.
    fn find_now(&self, _cred: &Cred, _base: Ino, _path: &[u8]) -> Option<(Ino, FileType)> {
        None
    }

    /// As [`FileSystem::read`] for callers that would rather have no future: what was read if that can be done without waiting for
    /// anything, else `None`; then `to` holds anything.
    fn read_now(&self, _handle: Handle, _offset: u64, _to: &mut [u8]) -> Option<Result<usize>> {
        None
    }

    /// Attributes of an inode. With a handle, inodes without a name are found too.
    fn getattr(&self, ino: Ino, handle: Option<Handle>) -> impl Future<Output = Result<Attr>> + Send;

    /// Whether an inode is `top` or stands below it, by the name that the inode keeps itself; of a file with several names that is one of
    /// them. False for inodes without a name, and from engines that cannot tell.
    fn is_within(&self, _ino: Ino, _top: Ino) -> bool {
        false
    }

    /// Changes attributes and returns the new ones. A change of the owner or size clears set-id bits as POSIX says.
    /// `TooLarge`, `IsDirectory` (size of a directory), `Invalid` (size of what is not a regular file).
    fn setattr(&self, cred: &Cred, ino: Ino, set: SetAttr) -> impl Future<Output = Result<Attr>> + Send;

    /// Checks whether the caller may do this (access(2), with the credentials given).
    fn access(&self, cred: &Cred, ino: Ino, mask: Access) -> impl Future<Output = Result<()>> + Send;

    /// Target of a symlink. `Invalid` when it is none.
    fn readlink(&self, cred: &Cred, ino: Ino) -> impl Future<Output = Result<Vec<u8>>> + Send;

    /// Makes a regular file, FIFO, socket or device node. `mode` holds type and permission bits (the door applied the umask).
    /// The group is the caller's, or the directory's when that has the set-group-id bit. `Exists`, `NotDirectory`, `NotPermitted`
    /// (device nodes by other than root).
    fn mknod(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        mode: u32,
        rdev: u64,
    ) -> impl Future<Output = Result<Attr>> + Send;

    /// Makes a directory. It inherits the set-group-id bit. `Exists`, `NotDirectory`, `TooManyLinks`.
    fn mkdir(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        perm: u16,
    ) -> impl Future<Output = Result<Attr>> + Send;

    /// Makes a symlink. `Exists`, `NotDirectory`, `NameTooLong` (target above 4095 bytes), `NotFound` (empty target).
    fn symlink(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> impl Future<Output = Result<Attr>> + Send;

    /// Gives an inode another name. `Exists`, `NotDirectory`, `NotPermitted` (directories), `TooManyLinks`. An inode made by
    /// [`FileSystem::tmpfile`] gets its first name so.
    fn link(
        &self,
        cred: &Cred,
        ino: Ino,
        parent: Ino,
        name: &[u8],
    ) -> impl Future<Output = Result<Attr>> + Send;

    /// Removes a name of anything but a directory. The inode lives on while it is open. `NotFound`, `IsDirectory`.
    fn unlink(&self, cred: &Cred, parent: Ino, name: &[u8]) -> impl Future<Output = Result<()>> + Send;

    /// Removes an empty directory. `NotFound`, `NotDirectory`, `NotEmpty`.
    fn rmdir(&self, cred: &Cred, parent: Ino, name: &[u8]) -> impl Future<Output = Result<()>> + Send;

    /// Moves a name, replacing what the new name led to, atomically. Two names of the same inode: nothing happens.
    /// `NotFound`, `Exists` (NOREPLACE), `IsDirectory`, `NotDirectory`, `NotEmpty`, `IntoItself`, `TooManyLinks` (a directory, into a full
    /// one), `Invalid` (both flags).
    fn rename(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Opens a regular file (devices and FIFOs are opened by kernels, not by engines). `IsDirectory` for writing a directory,
    /// `Invalid`.
    fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> impl Future<Output = Result<Handle>> + Send;

    /// As [`FileSystem::open`] for the inode of this number and generation, which a lookup has found: `Stale` when the file is gone, even
    /// if another one has its number by now. Where numbers are given once, `open` does the same; and one that is given up between the two calls made here leaves a
    /// file open.
    fn open_exact(
        &self,
        cred: &Cred,
        (ino, generation): (Ino, u32),
        flags: OpenFlags,
    ) -> impl Future<Output = Result<Handle>> + Send {
        async move {
            // An open file keeps its number: then it is safe to change it.
            let handle = self.open(cred, ino, flags - OpenFlags::TRUNCATE).await?;
            let done = match self.getattr(ino, Some(handle)).await {
                Ok(attr) if attr.generation != generation => Err(Error::Stale),
                Ok(_) if flags.contains(OpenFlags::TRUNCATE) => self.open(cred, ino, flags).await,
                Ok(_) => return Ok(handle),
                Err(e) => Err(e),
            };
            self.release(handle).await?;
            done
        }
    }

    /// Makes and opens a regular file; opens it when it exists, unless EXCLUSIVE (`Exists`). As open(2) with O_CREAT; a symlink
    /// at `name` is `SymlinkLoop` (the path walk above follows it first). The permission bits of a new file do not restrict
    /// this handle.
    fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> impl Future<Output = Result<(Attr, Handle)>> + Send;

    /// Sets inodes and handles aside, `most` of them or fewer, for files and directories that [`FileSystem::create_promised`] is to make: for those who
    /// acknowledge a create or mkdir before they make it. They are nobody else's until they are used or given back, or the volume is closed; nothing of them reaches the
    /// medium. Waits for nothing: a volume that is nearly full promises nothing. `NotSupported` where that cannot be done, or creates must not be
    /// late (volumes that keep the order of overwrites).
    fn promise(&self, _most: usize) -> Result<Vec<Promise>> {
        Err(Error::NotSupported("promised inodes"))
    }

    /// Gives back what was promised and not used.
    fn give_back(&self, _promises: &[Promise]) {}

    /// As [`FileSystem::create`] with EXCLUSIVE, or [`FileSystem::mkdir`], of what was promised. Does not fail with `NoSpace` or `TooManyOpen`. After an error
    /// the promise is there still.
    fn create_promised(
        &self,
        _cred: &Cred,
        _parent: Ino,
        _name: &[u8],
        _made: MadeAs,
        _promise: Promise,
    ) -> impl Future<Output = Result<Attr>> + Send {
        async { Err(Error::NotSupported("promised inodes")) }
    }

    /// Sets room for so many pages of files aside, or fewer, for writes that [`FileSystem::write_promised`] is to make: for those who acknowledge a
    /// write before they make it. It is nobody else's until it is used or given back, or the volume is closed, but counts as free. Waits for nothing;
    /// of a volume that is nearly full there is none. `NotSupported` where writes must not be late.
    fn set_room_aside(&self, _pages: u64) -> Result<u64> {
        Ok(0)
    }

    /// Gives back room that was set aside and not used.
    fn give_room_back(&self, _pages: u64) {}

    /// As [`FileSystem::write`], of everything, through a handle that neither appends nor syncs. Takes [`room_for`] pages out of the room that was set aside, whatever
    /// comes of it, and does not fail with `NoSpace`.
    fn write_promised(
        &self,
        _handle: Handle,
        _offset: u64,
        _from: &dyn Source,
    ) -> impl Future<Output = Result<()>> + Send {
        async { Err(Error::NotSupported("promised room")) }
    }

    /// The names in a directory, `most` of them at most (`TooLarge`), without "." and "..", and without moving its time of access. For those who
    /// keep books of it; no permissions are checked. `NotDirectory`, `NotSupported`.
    fn names(&self, _dir: Ino, _most: usize) -> Result<Vec<Vec<u8>>> {
        Err(Error::NotSupported("all names of a directory"))
    }

    /// Makes and opens a regular file without a name in the volume of directory `parent` (O_TMPFILE). With EXCLUSIVE it may
    /// never be linked.
    fn tmpfile(
        &self,
        cred: &Cred,
        parent: Ino,
        perm: u16,
        flags: OpenFlags,
    ) -> impl Future<Output = Result<(Attr, Handle)>> + Send;

    /// Reads at `offset` and returns the number of bytes, less than asked only at the end of the file.
    fn read(&self, handle: Handle, offset: u64, to: &mut [u8]) -> impl Future<Output = Result<usize>> + Send;

    /// As [`FileSystem::read`], but lends the memory in which the bytes are instead of copying them, where the engine can.
    fn read_pages(
        &self,
        handle: Handle,
        offset: u64,
        len: usize,
    ) -> impl Future<Output = Result<Pages>> + Send {
        read_copy(self, handle, offset, len)
    }

    /// Whether reading this range would not have to wait for a device, as far as is known: for who may read more than was asked for. Reads nothing.
    fn is_at_hand(&self, _handle: Handle, _offset: u64, _len: usize) -> bool {
        false
    }

    /// Writes at `offset` (at the end, with APPEND) and returns the number of bytes: all, unless an error came after a part
    /// was written (then the part). `TooLarge`.
    fn write(&self, handle: Handle, offset: u64, from: &[u8]) -> impl Future<Output = Result<usize>> + Send;

    /// Where the last write through this handle ended, if that appends: others may have appended since. `None` by engines that do not know.
    fn appended(&self, _handle: Handle) -> Option<u64> {
        None
    }

    /// As [`FileSystem::write`], of bytes that others may change meanwhile; without copying them first, where the engine can.
    fn write_from(
        &self,
        handle: Handle,
        offset: u64,
        from: &dyn Source,
    ) -> impl Future<Output = Result<usize>> + Send {
        write_copy(self, handle, offset, from)
    }

    /// Lets direct transfers go into and out of this memory, which others may change at any time, until it is returned. What is sealed against being
    /// shrunk and mapped by this process is such memory. `NotSupported` by engines without a device; `Media` (it cannot be pinned or mapped for the device).
    fn lend_memory(&self, _memory: Arc<dyn Memory>) -> Result<ArenaId> {
        Err(Error::NotSupported("direct transfers"))
    }

    /// Ends that; it is let go when the last transfer is over.
    fn return_memory(&self, _memory: ArenaId) {}

    /// As [`FileSystem::read`] through a handle with DIRECT, into lent memory and without a copy. `None`: it cannot be done so, or not now (it is not
    /// of whole blocks of 4 KiB, or something of it is in the page cache), and has to be read otherwise. A call that is given up may go on writing to that memory.
    fn read_direct(
        &self,
        _handle: Handle,
        _offset: u64,
        _to: BufRef,
    ) -> impl Future<Output = Result<Option<usize>>> + Send {
        async { Ok(None) }
    }

    /// As [`FileSystem::write`] through a handle with DIRECT, of what is in lent memory while it is transferred; see [`FileSystem::read_direct`].
    /// `None` also where blocks must be found first, or the volume keeps the order of overwrites.
    fn write_direct(
        &self,
        _handle: Handle,
        _offset: u64,
        _from: BufRef,
    ) -> impl Future<Output = Result<Option<usize>>> + Send {
        async { Ok(None) }
    }

    /// Writes several pieces of a file, [`ATOMIC_WRITE_MAX`] bytes at most, as one change: after a crash all of them are there or none, and no
    /// call sees a part. It is durable, and ordered, when another write would be. Where two pieces overlap the later one counts.
    /// `TooLarge`; `Invalid` (with APPEND or DIRECT); `NotSupported` by engines that cannot promise it.
    fn write_atomic(
        &self,
        _handle: Handle,
        _pieces: &[(u64, &[u8])],
    ) -> impl Future<Output = Result<()>> + Send {
        async { Err(Error::NotSupported("atomic writes")) }
    }

    /// Those whole pages of a range of an open file, as ranges of bytes in order, of which overwrites through this handle never fail with `NoSpace`, until
    /// a call takes space away from the file (truncating it, punching holes). For those who acknowledge writes before they make
    /// them. `NotSupported` where that cannot be promised, where writes must not be late (O_DSYNC, O_SYNC, volumes that keep the order of overwrites), and
    /// for handles that append or bypass the cache.
    fn overwritable(&self, _handle: Handle, _offset: u64, _len: u64) -> Result<Vec<Range<u64>>> {
        Err(Error::NotSupported("overwriting later"))
    }

    /// Whether [`FileSystem::flush`] does more than release locks: what was written becomes visible and durable then.
    fn commits_at_close(&self) -> bool {
        false
    }

    /// A descriptor of the file was closed: `owner`'s record locks on it are released.
    fn flush(&self, handle: Handle, owner: LockOwner) -> impl Future<Output = Result<()>> + Send;

    /// Closes a file or directory: its flock locks and the record locks that it owns itself ([`LockOwner::of_handle`]) are released, and an inode without a name goes away with its last handle.
    fn release(&self, handle: Handle) -> impl Future<Output = Result<()>> + Send;

    /// As [`FileSystem::release`], of a handle that nobody has closed: its door is gone, and the program behind it was told nothing of what it wrote.
    /// Engines where a close makes a file visible ([`FileSystem::commits_at_close`]) drop what no close has made; others keep what was written.
    fn abandon(&self, handle: Handle) -> impl Future<Output = Result<()>> + Send {
        self.release(handle)
    }

    /// The door is gone, and nobody waits any more for the calls that are still under way. They are to come to an end soon: engines that try again when a
    /// network fails do so for some seconds more, and then no longer.
    fn hurry(&self) {}

    /// Returns when everything done to the volume before this call is durable. `datasync` may skip times of the inode.
    fn fsync(&self, handle: Handle, datasync: bool) -> impl Future<Output = Result<()>> + Send;

    /// Order without durability (BarrierFS fbarrier, fdatabarrier): of everything done on the volume, by anybody, what was done before this call
    /// persists before anything done after it returned. Waits for no flush and no transfer; only, as any change does, for memory or log
    /// space. `datasync` may skip times of the inode. `Latched` when what was done before can no longer become durable.
    fn barrier(&self, handle: Handle, datasync: bool) -> impl Future<Output = Result<()>> + Send;

    /// Makes the whole volume durable.
    fn sync(&self) -> impl Future<Output = Result<()>> + Send;

    /// Opens a directory. `NotDirectory`.
    fn opendir(&self, cred: &Cred, ino: Ino) -> impl Future<Output = Result<Handle>> + Send;

    /// Gives the entries behind `offset` (0: from the start) to `sink`, in order, until it returns false (that entry counts as
    /// not taken) or there are no more. Entries that exist during the whole scan are given exactly once; what is made after it began
    /// may be left out.
    fn readdir(
        &self,
        handle: Handle,
        offset: u64,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> impl Future<Output = Result<()>> + Send;

    /// Space and inodes.
    fn statfs(&self) -> impl Future<Output = Result<StatFs>> + Send;

    /// Value of an extended attribute. `NoAttribute`.
    fn getxattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> impl Future<Output = Result<Vec<u8>>> + Send;

    /// Names of the extended attributes.
    fn listxattr(&self, cred: &Cred, ino: Ino) -> impl Future<Output = Result<Vec<Vec<u8>>>> + Send;

    /// Sets an extended attribute. `Exists`, `NoAttribute`, `AttributeTooLarge`, `NotSupported` (namespace).
    fn setxattr(
        &self,
        cred: &Cred,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Removes an extended attribute. `NoAttribute`.
    fn removexattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> impl Future<Output = Result<()>> + Send;

    /// As fallocate(2). `Invalid` (empty range), `TooLarge`.
    fn fallocate(
        &self,
        handle: Handle,
        what: Fallocate,
        offset: u64,
        len: u64,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Offset of the next data or hole at or behind `offset`. `NoSuchOffset` at or beyond the end of the file.
    fn seek(&self, handle: Handle, offset: u64, what: Seek) -> impl Future<Output = Result<u64>> + Send;

    /// Copies bytes between two open files of the volume and returns how many, 0 at the end of the source. Overlapping
    /// ranges of one file are `Invalid`.
    fn copy_range(
        &self,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// A lock that keeps `owner` from getting `lock`, or `None`.
    fn getlk(
        &self,
        handle: Handle,
        owner: LockOwner,
        lock: RecordLock,
    ) -> impl Future<Output = Result<Option<RecordLock>>> + Send;

    /// Gets a record lock (waiting for it when `wait`), or releases the range when `lock` is `Err(range)`.
    /// `WouldBlock`, `Deadlock`, `BadHandle` (a shared lock needs READ, an exclusive one WRITE).
    fn setlk(
        &self,
        handle: Handle,
        owner: LockOwner,
        lock: std::result::Result<RecordLock, (u64, u64)>,
        wait: bool,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Has `keeper` keep the record locks of a file, as long as no call but his has to do with them (`fs::locks`). The handle is open for
    /// reading and writing. False: it is not, or not now, or this engine does not.
    fn lend_locks(&self, _handle: Handle, _keeper: Arc<dyn Keeper>) -> bool {
        false
    }

    /// Takes back what somebody keeps of a file's record locks.
    fn recall_locks(&self, _handle: Handle) {}

    /// The file locks that are held, for those who look after a volume. Engines that cannot tell say that there are none.
    fn locks(&self) -> Vec<HeldLock> {
        Vec::new()
    }

    /// Gets a lock on the whole file for this handle, or releases it when `kind` is `None` (flock(2)). `WouldBlock`.
    fn flock(
        &self,
        handle: Handle,
        kind: Option<LockKind>,
        wait: bool,
    ) -> impl Future<Output = Result<()>> + Send;
}

/// Pages that are a copy: what [`FileSystem::read_pages`] gives where nothing can be lent. `TooLarge` (memory does not suffice).
pub async fn read_copy<F>(fs: &F, handle: Handle, offset: u64, len: usize) -> Result<Pages>
where
    F: FileSystem + ?Sized,
{
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| Error::TooLarge)?;
    bytes.resize(len, 0);
    let n = fs.read(handle, offset, &mut bytes).await?;
    bytes.truncate(n);
    Ok(Pages::owned(bytes))
}

/// Writes a copy: what [`FileSystem::write_from`] does where an engine takes nothing but slices. `TooLarge` (memory does not suffice).
async fn write_copy<F>(fs: &F, handle: Handle, offset: u64, from: &dyn Source) -> Result<usize>
where
    F: FileSystem + ?Sized,
{
    if let Some(bytes) = from.bytes() {
        return fs.write(handle, offset, bytes).await;
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(from.len()).map_err(|_| Error::TooLarge)?;
    bytes.resize(from.len(), 0);
    from.copy(0, &mut bytes);
    fs.write(handle, offset, &bytes).await
}
