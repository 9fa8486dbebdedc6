//! The contract ([`FileSystem`]) of a bucket. What needs the store runs on the worker to its end; see [`crate::core`].

use crate::core::{Core, Worker};
use crate::given::Given;
use crate::list::Scan;
use crate::options::Options;
use crate::progress::Progress;
use crate::store::{Store, StoreError};
use fs::*;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// For how long calls that are under way when their door goes are still tried again.
const RETRIES_AT_END: Duration = Duration::from_secs(10);
/// For how long the end of a door waits until unfinished uploads are given up in the store.
pub(crate) const ABORTS_AT_END: Duration = Duration::from_secs(5);
/// Bytes that copy_range moves at a time.
const COPY_CHUNK: u64 = 1 << 20;
/// A bucket has no size; statfs says so much, bytes.
const SPACE: u64 = 1 << 50;

/// A bucket, or the keys of one below a prefix, as a file system. See the crate's documentation.
pub struct ObjectFs<S: Store> {
    core: Arc<Core<S>>,
    _worker: Option<Worker>,
}

impl<S: Store> ObjectFs<S> {
    /// Opens it with a worker thread of its own. `make` makes the store on that thread's runtime, and may probe what it can do; `what` is asked for
    /// then, so that a wrong name or key shows now.
    ///
    /// # Errors
    /// Those of the store; `Invalid` (prefix).
    pub fn start<T>(
        make: impl FnOnce() -> T + Send + 'static,
        options: Options,
    ) -> std::result::Result<ObjectFs<S>, StoreError>
    where
        T: Future<Output = std::result::Result<S, StoreError>> + Send + 'static,
    {
        let failed = |e: String| StoreError::Unavailable(e);
        let (worker, runtime) = Worker::start().map_err(|e| failed(e.to_string()))?;
        let opened = fs::block_on(runtime.spawn(async move { make().await }));
        let store = opened.map_err(|e| failed(e.to_string()))??;
        let core = Core::new(store, options, runtime).map_err(|e| StoreError::Refused(e.to_string()))?;
        Ok(ObjectFs { core, _worker: Some(worker) })
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.core.store
    }

    /// Asks the store something, on the worker, for those who look after a bucket. `Unavailable` when the worker has stopped.
    pub fn ask<T, F>(&self, call: impl FnOnce(Arc<S>) -> F) -> std::result::Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = std::result::Result<T, StoreError>> + Send + 'static,
    {
        let asked = self.core.runtime.spawn(call(self.core.store.clone()));
        fs::block_on(asked).map_err(|e| StoreError::Unavailable(e.to_string()))?
    }

    /// Memory for data, bytes: in use and the most that was, for writing and for reading.
    pub fn memory(&self) -> [(u64, u64); 2] {
        [self.core.writes.used(), self.core.reads.used()]
    }

    /// Operations that take long.
    pub fn progress(&self) -> &Progress {
        &self.core.progress
    }

    /// Open files, directories not counted.
    pub fn opens(&self) -> usize {
        self.core.opens.lock().len()
    }

    /// Number of files and directories that are known.
    pub fn known(&self) -> usize {
        self.core.tree.lock().len()
    }

    /// Runs a call on the worker.
    async fn run<T, F>(&self, call: impl FnOnce(Arc<Core<S>>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.core.spawn(call(self.core.clone())).await
    }
}

impl<S: Store> FileSystem for ObjectFs<S> {
    async fn lookup(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Attr> {
        let dir = self.core.attr_now(parent).await?;
        if dir.kind != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        perm::check(cred, &dir, Access::EXEC)?;
        let found = match self.core.resolve(parent, name).await {
            // No name that could be made is there.
            Err(Error::Invalid(_)) if std::str::from_utf8(name).is_err() => return Err(Error::NotFound),
            found => found?,
        };
        match self.core.attr_shown(found).await {
            Err(Error::Stale) => Err(Error::NotFound),
            attr => attr,
        }
    }

    async fn getattr(&self, ino: Ino, handle: Option<Handle>) -> Result<Attr> {
        match handle {
            Some(handle) => {
                let ino = self.core.inode_of(handle)?;
                self.core.tree.lock().attr(ino)
            }
            None => self.core.attr_shown(ino).await,
        }
    }

    fn is_within(&self, ino: Ino, top: Ino) -> bool {
        self.core.tree.lock().is_within(ino, top)
    }

    async fn setattr(&self, cred: &Cred, ino: Ino, set: SetAttr) -> Result<Attr> {
        let cred = cred.clone();
        self.run(|core| async move { core.setattr(&cred, ino, set).await }).await
    }

    async fn access(&self, cred: &Cred, ino: Ino, mask: Access) -> Result<()> {
        let attr = self.core.attr_now(ino).await?;
        if mask.contains(Access::WRITE) {
            self.core.writable()?;
        }
        perm::check(cred, &attr, mask)
    }

    async fn readlink(&self, _cred: &Cred, ino: Ino) -> Result<Vec<u8>> {
        self.run(|core| async move { core.target(ino).await }).await
    }

    async fn mknod(&self, cred: &Cred, parent: Ino, name: &[u8], mode: u32, rdev: u64) -> Result<Attr> {
        match FileType::from_mode(mode) {
            Some(FileType::Regular) => {}
            Some(FileType::Directory) => return Err(Error::NotPermitted),
            Some(FileType::Symlink) | None => return Err(Error::Invalid("not a type that mknod makes")),
            Some(kind) => {
                let (cred, name, what) = (cred.clone(), name.to_vec(), (kind, (mode & 0o7777) as u16));
                let made =
                    |core: Arc<Core<S>>| async move { core.special(&cred, parent, &name, what, rdev).await };
                return self.run(made).await;
            }
        }
        let flags = OpenFlags::WRITE | OpenFlags::EXCLUSIVE;
        let (attr, handle) = self.create(cred, parent, name, (mode & 0o7777) as u16, flags).await?;
        self.release(handle).await?;
        self.getattr(attr.ino, None).await
    }

    async fn mkdir(&self, cred: &Cred, parent: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        let (cred, name) = (cred.clone(), name.to_vec());
        self.run(|core| async move { core.mkdir(&cred, parent, &name, perm).await }).await
    }

    async fn symlink(&self, cred: &Cred, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        let (cred, name, target) = (cred.clone(), name.to_vec(), target.to_vec());
        self.run(|core| async move { core.symlink(&cred, parent, &name, target).await }).await
    }

    async fn link(&self, _cred: &Cred, _ino: Ino, _parent: Ino, _name: &[u8]) -> Result<Attr> {
        Err(Error::NotSupported("several names of one object"))
    }

    async fn unlink(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        let (cred, name) = (cred.clone(), name.to_vec());
        self.run(|core| async move { core.unlink(&cred, parent, &name).await }).await
    }

    async fn rmdir(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        let (cred, name) = (cred.clone(), name.to_vec());
        self.run(|core| async move { core.rmdir(&cred, parent, &name).await }).await
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
        let (cred, name, new_name) = (cred.clone(), name.to_vec(), new_name.to_vec());
        self.run(
            |core| async move { core.rename(&cred, (parent, &name), (new_parent, &new_name), flags).await },
        )
        .await
    }

    async fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let cred = cred.clone();
        let opened = |core: Arc<Core<S>>| async move {
            let handle = core.open(&cred, ino, flags, true).await?;
            Ok(Given { core, handle: Some(handle), new: false })
        };
        Ok(self.run(opened).await?.taken())
    }

    async fn open_exact(&self, cred: &Cred, (ino, _): (Ino, u32), flags: OpenFlags) -> Result<Handle> {
        // Numbers are given once. And it is one call, which goes on when whoever waits for it is gone.
        self.open(cred, ino, flags).await
    }

    async fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let (cred, name) = (cred.clone(), name.to_vec());
        let new = flags.contains(OpenFlags::EXCLUSIVE);
        let made = |core: Arc<Core<S>>| async move {
            let (attr, handle) = core.create(&cred, parent, &name, perm, flags).await?;
            Ok((attr, Given { core, handle: Some(handle), new }))
        };
        let (attr, given) = self.run(made).await?;
        Ok((attr, given.taken()))
    }

    async fn tmpfile(&self, _: &Cred, _: Ino, _: u16, _: OpenFlags) -> Result<(Attr, Handle)> {
        Err(Error::NotSupported("files without a name in a bucket"))
    }

    async fn read(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Result<usize> {
        let pages = self.read_pages(handle, offset, to.len()).await?;
        let mut at = 0;
        for bytes in pages.slices() {
            to[at..][..bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
        Ok(at)
    }

    async fn read_pages(&self, handle: Handle, offset: u64, len: usize) -> Result<Pages> {
        let open = self.core.open_file(handle, OpenFlags::READ)?;
        self.core.read(&open, offset, len).await
    }

    async fn write(&self, handle: Handle, offset: u64, from: &[u8]) -> Result<usize> {
        let open = self.core.open_file(handle, OpenFlags::WRITE)?;
        let n = self.core.write(&open, offset, from).await?;
        if open.flags.intersects(OpenFlags::SYNC | OpenFlags::DSYNC) {
            self.core.spawn_commit(&open.file).await?;
        }
        Ok(n)
    }

    fn commits_at_close(&self) -> bool {
        true
    }

    async fn flush(&self, handle: Handle, owner: LockOwner) -> Result<()> {
        let ino = self.core.inode_of(handle)?;
        self.core.locks.release_owner(ino, owner);
        match self.core.open_file(handle, OpenFlags::WRITE) {
            Ok(open) => self.core.spawn_commit(&open.file).await,
            Err(_) => Ok(()),
        }
    }

    async fn release(&self, handle: Handle) -> Result<()> {
        let Some(open) = self.core.let_go(handle)? else { return Ok(()) };
        self.run(|core| async move { core.put_file(&open.file).await }).await
    }

    async fn abandon(&self, handle: Handle) -> Result<()> {
        let Some(open) = self.core.let_go(handle)? else { return Ok(()) };
        let until = self.core.ends_by(ABORTS_AT_END);
        self.run(|core| async move { core.abandon_file(&open.file, until).await }).await
    }

    fn hurry(&self) {
        self.core.store.hurry(self.core.ends_by(RETRIES_AT_END));
    }

    async fn fsync(&self, handle: Handle, _datasync: bool) -> Result<()> {
        self.core.inode_of(handle)?;
        match self.core.open_file(handle, OpenFlags::empty()) {
            Ok(open) => self.core.spawn_commit(&open.file).await,
            // Names are made and removed in the store at once.
            Err(_) => Ok(()),
        }
    }

    async fn barrier(&self, handle: Handle, datasync: bool) -> Result<()> {
        // A store knows no order but that of its answers.
        self.fsync(handle, datasync).await
    }

    async fn sync(&self) -> Result<()> {
        let opens: Vec<_> = self.core.opens.lock().values().cloned().collect();
        let mut done = Ok(());
        for open in opens {
            done = done.and(self.core.spawn_commit(&open.file).await);
        }
        done
    }

    async fn opendir(&self, cred: &Cred, ino: Ino) -> Result<Handle> {
        let attr = self.core.attr_now(ino).await?;
        if attr.kind != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        perm::check(cred, &attr, Access::READ)?;
        let handle = self.core.next_handle();
        self.core.scans.lock().insert(handle, Arc::new(Scan::new(ino)));
        Ok(handle)
    }

    async fn readdir(
        &self,
        handle: Handle,
        mut offset: u64,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        let scan = self.core.scans.lock().get(&handle).cloned();
        let scan = match scan {
            Some(scan) => scan,
            None if self.core.opens.lock().contains_key(&handle) => return Err(Error::NotDirectory),
            None => return Err(Error::BadHandle),
        };
        loop {
            let rows = self.core.rows(&scan, offset).await?;
            if rows.is_empty() {
                return Ok(());
            }
            for (name, attr) in rows {
                offset += 1;
                if !sink(DirEntry { name: name.as_bytes(), next_offset: offset, attr }) {
                    return Ok(());
                }
            }
        }
    }

    async fn statfs(&self) -> Result<StatFs> {
        let block_size = format::limits::BLOCK_SIZE as u32;
        let blocks = SPACE / u64::from(block_size);
        Ok(StatFs {
            block_size,
            blocks,
            blocks_free: blocks,
            blocks_available: blocks,
            inodes: 1 << 40,
            inodes_free: 1 << 40,
            name_max: format::limits::NAME_MAX as u32,
        })
    }

    async fn getxattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        // `ls -l` asks for these of every file.
        let of_the_system = name.starts_with(b"system.") || name.starts_with(b"security.");
        if of_the_system && self.core.is_only_listed(ino)? {
            return Err(Error::NoAttribute);
        }
        let (attr, xattrs) = self.core.xattrs(ino).await?;
        perm::check_xattr(cred, &attr, name, false)?;
        xattrs.get(name).map(|value| value.to_vec()).ok_or(Error::NoAttribute)
    }

    async fn listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let (_, xattrs) = self.core.xattrs(ino).await?;
        let shown = |name: &[u8]| cred.privileged() || !name.starts_with(b"trusted.");
        Ok(xattrs.keys().filter(|name| shown(name)).map(|name| name.to_vec()).collect())
    }

    async fn setxattr(
        &self,
        cred: &Cred,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let (cred, name, value) = (cred.clone(), name.to_vec(), value.to_vec());
        self.run(|core| async move { core.setxattr(&cred, ino, &name, value, flags).await }).await
    }

    async fn removexattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<()> {
        let (cred, name) = (cred.clone(), name.to_vec());
        self.run(|core| async move { core.removexattr(&cred, ino, &name).await }).await
    }

    async fn fallocate(&self, handle: Handle, what: Fallocate, offset: u64, len: u64) -> Result<()> {
        let open = self.core.open_file(handle, OpenFlags::WRITE)?;
        if len == 0 {
            return Err(Error::Invalid("an empty range"));
        }
        let end = offset.checked_add(len).ok_or(Error::TooLarge)?;
        let Fallocate::Allocate { keep_size } = what else {
            return Err(Error::NotSupported("holes in objects"));
        };
        open.current()?;
        let size = open.file.state.lock().change.size();
        if keep_size || end <= size {
            return Ok(());
        }
        let core = self.core.clone();
        self.run(|_| async move { core.grow_now(&open.file, end, open.writer).await }).await
    }

    async fn seek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        // An object is one run of data.
        let open = self.core.open_file(handle, OpenFlags::empty())?;
        let size = open.file.state.lock().change.size();
        match what {
            _ if offset >= size => Err(Error::NoSuchOffset),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    async fn copy_range(
        &self,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let source = self.core.open_file(from, OpenFlags::READ)?;
        let target = self.core.open_file(to, OpenFlags::WRITE)?;
        if target.flags.contains(OpenFlags::APPEND) {
            return Err(Error::BadHandle);
        }
        let size = source.file.state.lock().change.size();
        let len = len.min(size.saturating_sub(from_offset));
        if Arc::ptr_eq(&source.file, &target.file) && from_offset.abs_diff(to_offset) < len {
            return Err(Error::Invalid("the ranges overlap"));
        }
        let mut copied = 0;
        while copied < len {
            let want = COPY_CHUNK.min(len - copied) as usize;
            let pages = self.core.read(&source, from_offset + copied, want).await?;
            if pages.is_empty() {
                break;
            }
            for bytes in pages.slices() {
                match self.core.write(&target, to_offset + copied, bytes).await {
                    Ok(n) => copied += n as u64,
                    Err(e) if copied == 0 => return Err(e),
                    Err(_) => return Ok(copied),
                }
            }
        }
        Ok(copied)
    }

    async fn getlk(&self, handle: Handle, owner: LockOwner, lock: RecordLock) -> Result<Option<RecordLock>> {
        let ino = self.core.inode_of(handle)?;
        Ok(self.core.locks.getlk(ino, owner, lock))
    }

    async fn setlk(
        &self,
        handle: Handle,
        owner: LockOwner,
        lock: std::result::Result<RecordLock, (u64, u64)>,
        wait: bool,
    ) -> Result<()> {
        let ino = self.core.inode_of(handle)?;
        if let Ok(lock) = lock {
            let need = match lock.kind {
                LockKind::Shared => OpenFlags::READ,
                LockKind::Exclusive => OpenFlags::WRITE,
            };
            self.core.open_file(handle, need)?;
        }
        self.core.locks.setlk(ino, owner, lock, wait).await?;
        if owner.handle().is_some() { self.core.is_open_still(ino, handle) } else { Ok(()) }
    }

    fn lend_locks(&self, handle: Handle, keeper: Arc<dyn Keeper>) -> bool {
        let both = self.core.open_file(handle, OpenFlags::READ | OpenFlags::WRITE);
        both.is_ok() && self.core.inode_of(handle).is_ok_and(|ino| self.core.locks.lend(ino, keeper))
    }

    fn recall_locks(&self, handle: Handle) {
        if let Ok(ino) = self.core.inode_of(handle) {
            self.core.locks.recall(ino);
        }
    }

    fn locks(&self) -> Vec<HeldLock> {
        self.core.locks.held()
    }

    async fn flock(&self, handle: Handle, kind: Option<LockKind>, wait: bool) -> Result<()> {
        let ino = self.core.inode_of(handle)?;
        self.core.locks.flock(ino, handle, kind, wait).await?;
        self.core.is_open_still(ino, handle)
    }
}
