//! The contract ([`FileSystem`]) of a volume: each call is one operation of the engine, repeated until it need not wait.
//!
//! What only looks at the state in memory takes the lock once and never waits. Arguments are checked here where they only
//! concern the contract; what depends on the state is checked by the operation. Locks of files are not the engine's: they stand
//! beside it. Tested against the reference model in tests/differential.rs.

use super::Volume;
use crate::core::{Stop, Synchronous};
use crate::files::{ANY_UNIT, DIRECT_UNIT};
use crate::loans::Loans;
use crate::names::New;
use format::Ino;
use fs::*;
use std::future::Future;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Bytes that copy_range moves at a time.
const COPY_CHUNK: usize = 256 << 10;

/// What opening a file with these flags has changed.
fn cut(flags: OpenFlags) -> Option<Synchronous> {
    flags.contains(OpenFlags::TRUNCATE).then_some(Synchronous::Everything)
}

/// A handle that nobody has been told of: a call that fails, or that is given up, leaves none open.
struct Untold<'a>(&'a Volume, Handle);

impl Untold<'_> {
    fn told(self) -> Handle {
        let handle = self.1;
        std::mem::forget(self);
        handle
    }
}

impl Drop for Untold<'_> {
    fn drop(&mut self) {
        let mut core = self.0.inner.shared.lock();
        if core.release(self.1).is_err() {
            core.leave(self.1);
        }
    }
}

impl Volume {
    /// A file was opened, and perhaps made or cut off by `calls`.
    async fn opened(&self, handle: Handle, calls: Option<Synchronous>) -> Result<Handle> {
        let untold = Untold(self, handle);
        if let Some(calls) = calls {
            self.synced(calls).await?;
        }
        Ok(untold.told())
    }

    async fn make(&self, cred: &Cred, parent: Ino, name: &[u8], new: New<'_>) -> Result<Attr> {
        let mut ticket = None;
        self.op_synced(Synchronous::Directories, |core| {
            core.make(cred, parent, name, &new, &mut ticket).map(|slot| core.attr(slot))
        })
        .await
    }
}

impl FileSystem for Volume {
    fn block_on<T: Future>(&self, future: T) -> T::Output {
        self.inner.shared.block_on(future)
    }

    fn attend(&self, stays: bool) -> Devices {
        self.inner.shared.attend(stays)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.inner.shared.media.readiness()
    }

    async fn lookup(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.inner.shared.lock().lookup(cred, parent, name)
    }

    async fn walk(&self, cred: &Cred, base: Ino, path: &[u8]) -> Result<Attr> {
        self.inner.shared.lock().walk(cred, base, path)
    }

    #[inline]
    fn walk_now(&self, cred: &Cred, base: Ino, path: &[u8]) -> Option<Result<Attr>> {
        Some(self.inner.shared.lock().walk(cred, base, path))
    }

    fn is_within(&self, ino: Ino, top: Ino) -> bool {
        self.inner.shared.lock().is_within(ino, top)
    }

    async fn getattr(&self, ino: Ino, handle: Option<Handle>) -> Result<Attr> {
        let core = self.inner.shared.lock();
        match handle {
            Some(handle) => core.handles.get(handle).map(|open| core.attr(open.slot)),
            None => core.inode(ino).map(|(slot, inode)| inode.attr(slot)),
        }
    }

    async fn setattr(&self, cred: &Cred, ino: Ino, set: SetAttr) -> Result<Attr> {
        let mut ticket = None;
        self.op_synced(Synchronous::Everything, move |core| core.setattr(cred, ino, &set, &mut ticket)).await
    }

    async fn access(&self, cred: &Cred, ino: Ino, mask: Access) -> Result<()> {
        let core = self.inner.shared.lock();
        let (slot, inode) = core.inode(ino)?;
        if mask.contains(Access::WRITE)
            && matches!(inode.file_type(), FileType::Regular | FileType::Directory)
        {
            core.writable()?;
        }
        perm::check(cred, &core.attr(slot), mask)
    }

    async fn readlink(&self, _cred: &Cred, ino: Ino) -> Result<Vec<u8>> {
        self.op(move |core| core.readlink(ino)).await
    }

    async fn mknod(&self, cred: &Cred, parent: Ino, name: &[u8], mode: u32, rdev: u64) -> Result<Attr> {
        let kind = FileType::from_mode(mode).ok_or(Error::Invalid("unknown file type"))?;
        match kind {
            FileType::Directory => return Err(Error::NotPermitted),
            FileType::Symlink => return Err(Error::Invalid("not a type that mknod makes")),
            _ => {}
        }
        self.make(cred, parent, name, New { rdev, ..New::plain(kind, (mode & 0o7777) as u16) }).await
    }

    async fn mkdir(&self, cred: &Cred, parent: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        let new = New::plain(FileType::Directory, perm & 0o1777);
        self.make(cred, parent, name, new).await
    }

    async fn symlink(&self, cred: &Cred, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        self.make(cred, parent, name, New { target, ..New::plain(FileType::Symlink, 0o777) }).await
    }

    async fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let mut ticket = None;
        self.op_synced(Synchronous::Directories, move |core| core.link(cred, ino, parent, name, &mut ticket))
            .await
    }

    async fn unlink(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        self.op_synced(Synchronous::Directories, move |core| core.unlink(cred, parent, name)).await
    }

    async fn rmdir(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        self.op_synced(Synchronous::Directories, move |core| core.rmdir(cred, parent, name)).await
    }

    async fn rename(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.op_synced(Synchronous::Directories, move |core| {
            core.rename(cred, (parent, name), (new_parent, new_name), flags)
        })
        .await
    }

    async fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let mut ticket = None;
        let handle = self.op(move |core| core.open(cred, ino, flags, &mut ticket)).await?;
        self.opened(handle, cut(flags)).await
    }

    async fn open_exact(
        &self,
        cred: &Cred,
        (ino, generation): (Ino, u32),
        flags: OpenFlags,
    ) -> Result<Handle> {
        let mut ticket = None;
        let open = self.op(move |core| match core.inode(ino)?.1.generation {
            found if found == generation => core.open(cred, ino, flags, &mut ticket),
            _ => Err(Error::Stale.into()),
        });
        let handle = open.await?;
        self.opened(handle, cut(flags)).await
    }

    async fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let (mut ticket, mut made) = (None, None);
        let opened = self.op(|core| {
            let new = New::plain(FileType::Regular, perm & 0o7777);
            if !flags.intersects(OpenFlags::READ | OpenFlags::WRITE)
                && core.lookup(cred, parent, name).is_err()
            {
                core.inode(parent)?;
                return Err(Error::Invalid("a file is opened for reading, writing or both").into());
            }
            core.another_handle()?;
            let slot = match core.make(cred, parent, name, &new, &mut ticket) {
                Err(Stop::Error(Error::Exists)) if !flags.contains(OpenFlags::EXCLUSIVE) => {
                    let found = core.lookup(cred, parent, name)?;
                    match found.kind {
                        FileType::Directory => return Err(Error::IsDirectory.into()),
                        FileType::Symlink => return Err(Error::SymlinkLoop.into()),
                        _ => {}
                    }
                    let handle = core.open(cred, found.ino, flags, &mut ticket)?;
                    made = flags.contains(OpenFlags::TRUNCATE).then_some(Synchronous::Everything);
                    return Ok((core.attr(found.ino.0 as u32), handle));
                }
                made => made?,
            };
            made = Some(Synchronous::Directories);
            let handle = core.open_slot(cred, slot, flags, false);
            Ok((core.attr(slot), handle))
        });
        let (attr, handle) = opened.await?;
        Ok((attr, self.opened(handle, made).await?))
    }

    fn promise(&self, most: usize) -> Result<Vec<Promise>> {
        self.inner.shared.lock().promise(most)
    }

    fn give_back(&self, promises: &[Promise]) {
        self.inner.shared.lock().give_back_promised(promises);
    }

    async fn create_promised(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        made: MadeAs,
        promise: Promise,
    ) -> Result<Attr> {
        let bits = if made.open.is_some() { 0o7777 } else { 0o1777 };
        let made = MadeAs { perm: made.perm & bits, ..made };
        self.op(move |core| core.create_promised(cred, (parent, name), made, promise)).await
    }

    fn set_room_aside(&self, pages: u64) -> Result<u64> {
        self.inner.shared.lock().set_room_aside(pages)
    }

    fn give_room_back(&self, pages: u64) {
        self.inner.shared.lock().space.give_aside(pages);
    }

    async fn write_promised(&self, handle: Handle, offset: u64, from: &dyn Source) -> Result<()> {
        self.write_promised_now(handle, offset, from).await
    }

    fn names(&self, dir: Ino, most: usize) -> Result<Vec<Vec<u8>>> {
        self.inner.shared.lock().names(dir, most)
    }

    async fn tmpfile(&self, cred: &Cred, parent: Ino, perm: u16, flags: OpenFlags) -> Result<(Attr, Handle)> {
        if !flags.contains(OpenFlags::WRITE) {
            return Err(Error::Invalid("a nameless file must be opened for writing"));
        }
        let mut ticket = None;
        self.op(move |core| {
            let linkable = !flags.contains(OpenFlags::EXCLUSIVE);
            core.another_handle()?;
            let slot = core.make_nameless(cred, parent, perm & 0o7777, linkable, &mut ticket)?;
            let handle = core.open_slot(cred, slot, flags, false);
            Ok((core.attr(slot), handle))
        })
        .await
    }

    async fn read(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Result<usize> {
        self.read_now(handle, (offset, DIRECT_UNIT), to).await
    }

    async fn read_pages(&self, handle: Handle, offset: u64, len: usize) -> Result<Pages> {
        let shared = &self.inner.shared;
        let most = shared.lock().lendable(handle, offset, len)?;
        match Loans::lend(&shared.loans, &shared.arena, &shared.pins, offset, most) {
            Some(pages) => self.lend_now(handle, offset, len, most, pages).await,
            None => contract::read_copy(self, handle, offset, len).await,
        }
    }

    fn is_at_hand(&self, handle: Handle, offset: u64, len: usize) -> bool {
        self.inner.shared.lock().is_at_hand(handle, offset, len)
    }

    async fn write(&self, handle: Handle, offset: u64, from: &[u8]) -> Result<usize> {
        self.write_from(handle, offset, &from).await
    }

    async fn write_from(&self, handle: Handle, offset: u64, from: &dyn Source) -> Result<usize> {
        let (n, syncs) = self.write_now(handle, (offset, DIRECT_UNIT), from).await?;
        if syncs && n > 0 {
            self.sync_all().await?;
        }
        Ok(n)
    }

    fn lend_memory(&self, memory: Arc<dyn Memory>) -> Result<ArenaId> {
        self.lend_memory_now(memory)
    }

    fn return_memory(&self, memory: ArenaId) {
        self.inner.shared.lock().memory_returned(memory);
    }

    async fn read_direct(&self, handle: Handle, offset: u64, to: BufRef) -> Result<Option<usize>> {
        self.direct(|core| core.read_direct(handle, offset, to)).await
    }

    async fn write_direct(&self, handle: Handle, offset: u64, from: BufRef) -> Result<Option<usize>> {
        self.write_direct_now(handle, offset, from).await
    }

    async fn write_atomic(&self, handle: Handle, pieces: &[(u64, &[u8])]) -> Result<()> {
        self.write_atomic_now(handle, pieces).await?;
        self.synced(Synchronous::Everything).await?;
        if self.handle(handle)?.flags.intersects(OpenFlags::SYNC | OpenFlags::DSYNC) {
            self.sync_all().await?;
        }
        Ok(())
    }

    fn appended(&self, handle: Handle) -> Option<u64> {
        self.inner.shared.lock().handles.get(handle).ok()?.appended
    }

    fn overwritable(&self, handle: Handle, offset: u64, len: u64) -> Result<Vec<Range<u64>>> {
        self.inner.shared.lock().overwritable(handle, offset, len)
    }

    async fn flush(&self, handle: Handle, owner: LockOwner) -> Result<()> {
        let ino = self.handle(handle)?.ino;
        self.inner.shared.locks.release_owner(ino, owner);
        Ok(())
    }

    async fn release(&self, handle: Handle) -> Result<()> {
        let ino = self.op(move |core| core.release(handle)).await?;
        if !self.inner.shared.locks.is_empty() {
            self.inner.shared.locks.release_handle(ino, handle);
        }
        Ok(())
    }

    async fn fsync(&self, handle: Handle, _datasync: bool) -> Result<()> {
        self.sync_through(Some(handle)).await
    }

    async fn barrier(&self, handle: Handle, _datasync: bool) -> Result<()> {
        self.op(move |core| {
            core.handles.get(handle)?;
            core.barrier()
        })
        .await
    }

    async fn sync(&self) -> Result<()> {
        self.sync_all().await
    }

    async fn opendir(&self, cred: &Cred, ino: Ino) -> Result<Handle> {
        self.op(move |core| core.opendir(cred, ino)).await
    }

    async fn readdir(
        &self,
        handle: Handle,
        offset: u64,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        let mut core = self.inner.shared.lock();
        let open = *core.handles.get(handle)?;
        if !open.directory {
            return Err(Error::NotDirectory);
        }
        if core.slab.get(open.slot).nlink == 0 {
            return Err(Error::NotFound);
        }
        core.readdir(open.slot, offset, sink);
        core.accessed_by(handle);
        Ok(())
    }

    async fn statfs(&self) -> Result<StatFs> {
        Ok(self.inner.shared.lock().statfs())
    }

    async fn getxattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.op(move |core| core.getxattr(cred, ino, name)).await
    }

    async fn listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.op(move |core| core.listxattr(cred, ino)).await
    }

    async fn setxattr(
        &self,
        cred: &Cred,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let mut ticket = None;
        self.op_synced(Synchronous::Everything, move |core| {
            core.setxattr(cred, ino, name, value, flags, &mut ticket)
        })
        .await
    }

    async fn removexattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<()> {
        let mut ticket = None;
        self.op_synced(Synchronous::Everything, move |core| core.removexattr(cred, ino, name, &mut ticket))
            .await
    }

    async fn fallocate(&self, handle: Handle, what: Fallocate, offset: u64, len: u64) -> Result<()> {
        let mut ticket = None;
        self.op_synced(Synchronous::Everything, move |core| {
            core.fallocate(handle, what, offset, len, &mut ticket)
        })
        .await
    }

    async fn seek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        self.op(move |core| core.seek(handle, offset, what)).await
    }

    async fn copy_range(
        &self,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        mut len: u64,
    ) -> Result<u64> {
        {
            let core = self.inner.shared.lock();
            let (reader, writer) = (core.handles.get(from)?, core.handles.get(to)?);
            if reader.directory || writer.directory {
                return Err(Error::IsDirectory);
            }
            let source = core.handles.file(from, OpenFlags::READ)?.slot;
            let open = core.handles.file(to, OpenFlags::WRITE)?;
            if open.flags.contains(OpenFlags::APPEND) {
                return Err(Error::BadHandle);
            }
            // Only what is there now is copied, not what the copy itself appends.
            len = len.min(core.slab.get(source).size.saturating_sub(from_offset));
            if source == open.slot && from_offset.abs_diff(to_offset) < len {
                return Err(Error::Invalid("the ranges overlap"));
            }
            if len == 0 {
                return Ok(0);
            }
            len = len.min(format::limits::FILE_SIZE_MAX.saturating_sub(to_offset));
            if len == 0 {
                return Err(Error::TooLarge);
            }
        }
        let mut buffer = vec![0; COPY_CHUNK.min(len as usize)];
        let (mut copied, mut syncs) = (0, false);
        while copied < len {
            let want = buffer.len().min((len - copied) as usize);
            let (read_at, write_at) = ((from_offset + copied, ANY_UNIT), (to_offset + copied, ANY_UNIT));
            let copy = match self.read_now(from, read_at, &mut buffer[..want]).await {
                Ok(0) => break,
                Ok(n) => self.write_now(to, write_at, &&buffer[..n]).await,
                Err(e) => Err(e),
            };
            match copy {
                Ok((written, asked)) => {
                    copied += written as u64;
                    syncs = asked;
                }
                Err(e) if copied == 0 => return Err(e),
                // What was copied counts.
                Err(_) => break,
            }
        }
        // The source counts as read when the copy is done: within one file this moves its access time.
        self.inner.shared.lock().accessed_by(from);
        if syncs && copied > 0 {
            self.sync_all().await?;
        }
        Ok(copied)
    }

    async fn getlk(&self, handle: Handle, owner: LockOwner, lock: RecordLock) -> Result<Option<RecordLock>> {
        let ino = self.handle(handle)?.ino;
        Ok(self.inner.shared.locks.getlk(ino, owner, lock))
    }

    async fn setlk(
        &self,
        handle: Handle,
        owner: LockOwner,
        lock: std::result::Result<RecordLock, (u64, u64)>,
        wait: bool,
    ) -> Result<()> {
        let open = self.handle(handle)?;
        if let Ok(lock) = &lock {
            let need = if lock.kind == LockKind::Shared { OpenFlags::READ } else { OpenFlags::WRITE };
            if !open.flags.contains(need) {
                return Err(Error::BadHandle);
            }
        }
        let (ino, locks) = (open.ino, &self.inner.shared.locks);
        locks.setlk(ino, owner, lock, wait).await?;
        if owner.handle().is_some() { self.is_open_still(ino, handle) } else { Ok(()) }
    }

    async fn flock(&self, handle: Handle, kind: Option<LockKind>, wait: bool) -> Result<()> {
        let ino = self.handle(handle)?.ino;
        self.inner.shared.locks.flock(ino, handle, kind, wait).await?;
        self.is_open_still(ino, handle)
    }

    fn lend_locks(&self, handle: Handle, keeper: Arc<dyn Keeper>) -> bool {
        let both = OpenFlags::READ | OpenFlags::WRITE;
        let open = self.handle(handle).ok().filter(|open| open.flags.contains(both));
        open.is_some_and(|open| self.inner.shared.locks.lend(open.ino, keeper))
    }

    fn recall_locks(&self, handle: Handle) {
        if let Ok(open) = self.handle(handle) {
            self.inner.shared.locks.recall(open.ino);
        }
    }

    fn locks(&self) -> Vec<HeldLock> {
        self.inner.shared.locks.held()
    }
}
