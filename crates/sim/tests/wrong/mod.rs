//! The model with one mistake: what checkers must find.

use fs::*;
use sim::Model;
use std::sync::atomic::{AtomicU64, Ordering};

/// The mistakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Every fiftieth write says that it wrote and did not.
    LosesWrite,
    /// A chmod does not move ctime.
    ForgetsCtime,
    /// Names are removed for everyone.
    RemovesForAll,
    /// NOREPLACE is ignored.
    Replaces,
    /// The last entry of a directory is given twice.
    ListsTwice,
    /// Removing an extended attribute does nothing.
    KeepsXattr,
    /// Punching does nothing.
    KeepsHole,
    /// A new directory is not counted in its parent's links as lookup shows them.
    MiscountsLinks,
    /// An exclusive lock is given as a shared one.
    SharesLocks,
    /// ENOTEMPTY comes as EEXIST.
    OtherErrno,
}

pub struct Wrong {
    pub inner: Model,
    pub mistake: Mistake,
    pub writes: AtomicU64,
}

impl Wrong {
    pub fn new(inner: Model, mistake: Mistake) -> Wrong {
        Wrong { inner, mistake, writes: AtomicU64::new(0) }
    }

    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == mistake
    }
}

impl FileSystem for Wrong {
    async fn lookup(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Attr> {
        let mut attr = self.inner.lookup(cred, parent, name).await?;
        if self.is(Mistake::MiscountsLinks) && attr.kind == FileType::Directory && attr.nlink > 2 {
            attr.nlink -= 1;
        }
        Ok(attr)
    }
    async fn getattr(&self, ino: Ino, handle: Option<Handle>) -> Result<Attr> {
        self.inner.getattr(ino, handle).await
    }
    async fn setattr(&self, cred: &Cred, ino: Ino, set: SetAttr) -> Result<Attr> {
        let before = self.inner.getattr(ino, None).await;
        let mut attr = self.inner.setattr(cred, ino, set).await?;
        if self.is(Mistake::ForgetsCtime) && set.perm.is_some() {
            attr.ctime = before?.ctime;
        }
        Ok(attr)
    }
    async fn access(&self, cred: &Cred, ino: Ino, mask: Access) -> Result<()> {
        self.inner.access(cred, ino, mask).await
    }
    async fn readlink(&self, cred: &Cred, ino: Ino) -> Result<Vec<u8>> {
        self.inner.readlink(cred, ino).await
    }
    async fn mknod(&self, cred: &Cred, parent: Ino, name: &[u8], mode: u32, rdev: u64) -> Result<Attr> {
        self.inner.mknod(cred, parent, name, mode, rdev).await
    }
    async fn mkdir(&self, cred: &Cred, parent: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        self.inner.mkdir(cred, parent, name, perm).await
    }
    async fn symlink(&self, cred: &Cred, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.inner.symlink(cred, parent, name, target).await
    }
    async fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.inner.link(cred, ino, parent, name).await
    }
    async fn unlink(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        let root = Cred::root();
        let cred = if self.is(Mistake::RemovesForAll) { &root } else { cred };
        self.inner.unlink(cred, parent, name).await
    }
    async fn rmdir(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        match self.inner.rmdir(cred, parent, name).await {
            Err(Error::NotEmpty) if self.is(Mistake::OtherErrno) => Err(Error::Exists),
            done => done,
        }
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
        let flags = if self.is(Mistake::Replaces) { flags - RenameFlags::NOREPLACE } else { flags };
        self.inner.rename(cred, parent, name, new_parent, new_name, flags).await
    }
    async fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        self.inner.open(cred, ino, flags).await
    }
    async fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        self.inner.create(cred, parent, name, perm, flags).await
    }
    async fn tmpfile(&self, cred: &Cred, parent: Ino, perm: u16, flags: OpenFlags) -> Result<(Attr, Handle)> {
        self.inner.tmpfile(cred, parent, perm, flags).await
    }
    async fn read(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Result<usize> {
        self.inner.read(handle, offset, to).await
    }
    async fn write(&self, handle: Handle, offset: u64, from: &[u8]) -> Result<usize> {
        let count = self.writes.fetch_add(1, Ordering::Relaxed) + 1;
        if self.is(Mistake::LosesWrite) && count.is_multiple_of(50) {
            self.inner.write(handle, offset, &[]).await?;
            return Ok(from.len());
        }
        self.inner.write(handle, offset, from).await
    }
    async fn flush(&self, handle: Handle, owner: LockOwner) -> Result<()> {
        self.inner.flush(handle, owner).await
    }
    async fn release(&self, handle: Handle) -> Result<()> {
        self.inner.release(handle).await
    }
    async fn fsync(&self, handle: Handle, datasync: bool) -> Result<()> {
        self.inner.fsync(handle, datasync).await
    }
    async fn barrier(&self, handle: Handle, datasync: bool) -> Result<()> {
        self.inner.barrier(handle, datasync).await
    }
    async fn sync(&self) -> Result<()> {
        self.inner.sync().await
    }
    async fn opendir(&self, cred: &Cred, ino: Ino) -> Result<Handle> {
        self.inner.opendir(cred, ino).await
    }
    async fn readdir(
        &self,
        handle: Handle,
        offset: u64,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        if !self.is(Mistake::ListsTwice) {
            return self.inner.readdir(handle, offset, sink).await;
        }
        let mut all = Vec::new();
        let mut keep = |entry: DirEntry<'_>| {
            all.push((entry.name.to_vec(), entry.next_offset, entry.attr));
            true
        };
        self.inner.readdir(handle, offset, &mut keep).await?;
        all.extend(all.last().cloned());
        for (name, next_offset, attr) in all {
            if !sink(DirEntry { name: &name, next_offset, attr }) {
                break;
            }
        }
        Ok(())
    }
    async fn statfs(&self) -> Result<StatFs> {
        self.inner.statfs().await
    }
    async fn getxattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.inner.getxattr(cred, ino, name).await
    }
    async fn listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.inner.listxattr(cred, ino).await
    }
    async fn setxattr(
        &self,
        cred: &Cred,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.inner.setxattr(cred, ino, name, value, flags).await
    }
    async fn removexattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<()> {
        if self.is(Mistake::KeepsXattr) {
            return self.inner.getxattr(cred, ino, name).await.map(|_| ());
        }
        self.inner.removexattr(cred, ino, name).await
    }
    async fn fallocate(&self, handle: Handle, what: Fallocate, offset: u64, len: u64) -> Result<()> {
        let what = match what {
            Fallocate::PunchHole if self.is(Mistake::KeepsHole) => Fallocate::Allocate { keep_size: true },
            what => what,
        };
        self.inner.fallocate(handle, what, offset, len).await
    }
    async fn seek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        self.inner.seek(handle, offset, what).await
    }
    async fn copy_range(&self, from: Handle, from_at: u64, to: Handle, to_at: u64, len: u64) -> Result<u64> {
        self.inner.copy_range(from, from_at, to, to_at, len).await
    }
    async fn getlk(&self, handle: Handle, owner: LockOwner, lock: RecordLock) -> Result<Option<RecordLock>> {
        self.inner.getlk(handle, owner, lock).await
    }
    async fn setlk(
        &self,
        handle: Handle,
        owner: LockOwner,
        lock: std::result::Result<RecordLock, (u64, u64)>,
        wait: bool,
    ) -> Result<()> {
        self.inner.setlk(handle, owner, lock, wait).await
    }
    async fn flock(&self, handle: Handle, kind: Option<LockKind>, wait: bool) -> Result<()> {
        let kind = if self.is(Mistake::SharesLocks) { kind.map(|_| LockKind::Shared) } else { kind };
        self.inner.flock(handle, kind, wait).await
    }
}
