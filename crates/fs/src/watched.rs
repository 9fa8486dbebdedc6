//! Several doors to one file system: each learns what changed through the others.
//!
//! Doors keep things: a kernel keeps names, attributes and pages, a session keeps what its clients have mapped. A change that comes
//! through one door makes that stale behind the others. [`Watched`] stands between the doors and the engine; every door has one of its own
//! ([`Watched::door`]) and tells through it what it wants to hear ([`Watched::watch`]). A call that changes something returns only when
//! the watchers of the other doors have been told, so that whoever sees the call return sees the change everywhere.
//!
//! They are told too when the call failed or was given up half-way, as nobody knows then what it changed.
//!
//! A door that fills its cache while another one changes the same thing must look again after it has filled it: what it was told before
//! it had anything to drop does not come twice. Times of access are not told.
//!
//! Tested here with the cases of each call, and by the doors' own tests.

use crate::cache::Pages;
use crate::contract::FileSystem;
use crate::cred::Cred;
use crate::error::Result;
use crate::types::*;
use foldhash::fast::FixedState;
use format::Ino;
use parking_lot::RwLock;
use smallvec::{SmallVec, smallvec};
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a call changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Bytes of a file from `start` to before `end` (`u64::MAX`: all behind), and its attributes.
    Data {
        /// The file.
        ino: Ino,
        /// First byte.
        start: u64,
        /// Behind the last byte.
        end: u64,
    },
    /// Attributes of an inode.
    Attr {
        /// The inode.
        ino: Ino,
    },
    /// A name was made, removed, or leads elsewhere; and the attributes of its directory.
    Name {
        /// The directory.
        parent: Ino,
        /// The name.
        name: &'a [u8],
    },
}

/// Hears of changes.
pub trait Watcher: Send + Sync {
    /// Something changed through another door. Called on the thread of the call that changed it, which waits: what takes long keeps
    /// others waiting, and what waits for that door never ends.
    fn changed(&self, change: &Change<'_>);
}

#[derive(Default)]
struct Hub {
    doors: AtomicU64,
    watchers: RwLock<Vec<(u64, Arc<dyn Watcher>)>>,
    files: RwLock<HashMap<Handle, OpenFile, FixedState>>,
}

/// What must be known of an open file to say what a call on it changes.
#[derive(Clone, Copy)]
struct OpenFile {
    ino: Ino,
    append: bool,
}

/// A file system with several doors, as one of them sees it. See the module documentation. Clones are the same door.
pub struct Watched<F> {
    fs: Arc<F>,
    hub: Arc<Hub>,
    door: u64,
}

impl<F> Clone for Watched<F> {
    fn clone(&self) -> Self {
        Watched { fs: self.fs.clone(), hub: self.hub.clone(), door: self.door }
    }
}

/// Tells the other doors what a call changes, when the call is over, however it ends.
struct Telling<'a, F> {
    watched: &'a Watched<F>,
    changes: SmallVec<[Change<'a>; 4]>,
}

impl<F> Drop for Telling<'_, F> {
    fn drop(&mut self) {
        self.watched.tell(&self.changes);
    }
}

impl<F> Watched<F> {
    fn tell(&self, changes: &[Change<'_>]) {
        let others: SmallVec<[Arc<dyn Watcher>; 2]> = {
            let watchers = self.hub.watchers.read();
            watchers.iter().filter(|(door, _)| *door != self.door).map(|(_, w)| w.clone()).collect()
        };
        for watcher in others {
            changes.iter().for_each(|change| watcher.changed(change));
        }
    }

    fn telling<'a>(&'a self, changes: SmallVec<[Change<'a>; 4]>) -> Telling<'a, F> {
        Telling { watched: self, changes }
    }
}

impl<F: FileSystem> Watched<F> {
    /// A file system with one door.
    pub fn new(fs: Arc<F>) -> Watched<F> {
        Watched { fs, hub: Arc::default(), door: 0 }
    }

    /// One more door to the same file system.
    pub fn door(&self) -> Watched<F> {
        let door = self.hub.doors.fetch_add(1, Ordering::Relaxed) + 1;
        Watched { door, ..self.clone() }
    }

    /// The file system behind the doors. What is changed there directly, nobody is told.
    pub fn inner(&self) -> &Arc<F> {
        &self.fs
    }

    /// From now on `watcher` hears what changes through other doors than this one.
    pub fn watch(&self, watcher: Arc<dyn Watcher>) {
        self.hub.watchers.write().push((self.door, watcher));
    }

    /// This door hears no more.
    pub fn unwatch(&self) {
        self.hub.watchers.write().retain(|(door, _)| *door != self.door);
    }

    /// Whether there is anybody to tell.
    fn heard(&self) -> bool {
        self.hub.watchers.read().iter().any(|(door, _)| *door != self.door)
    }

    /// A file was opened.
    fn opened(&self, handle: Handle, ino: Ino, flags: OpenFlags) {
        let file = OpenFile { ino, append: flags.contains(OpenFlags::APPEND) };
        self.hub.files.write().insert(handle, file);
    }

    fn file(&self, handle: Handle) -> Option<OpenFile> {
        self.hub.files.read().get(&handle).copied()
    }

    /// The inode of a name that is about to lose it; `None` when there is nobody to tell or no such name.
    async fn victim(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        if !self.heard() {
            return None;
        }
        let cred = Cred { checked: true, ..Cred::root() };
        self.fs.lookup(&cred, parent, name).await.ok().map(|a| a.ino)
    }

    fn telling_name<'a>(&'a self, parent: Ino, name: &'a [u8], inode: Option<Ino>) -> Telling<'a, F> {
        let mut changes = smallvec![Change::Name { parent, name }];
        changes.extend(inode.map(|ino| Change::Attr { ino }));
        self.telling(changes)
    }

    /// Tells of a range of an open file; all of it when nobody knows the file's range.
    fn telling_data(&self, handle: Handle, start: u64, len: u64) -> Telling<'_, F> {
        let change = |file: OpenFile| Change::Data { ino: file.ino, start, end: start.saturating_add(len) };
        self.telling(self.file(handle).map(change).into_iter().collect())
    }

    async fn size(&self, file: OpenFile, handle: Handle) -> Option<u64> {
        self.fs.getattr(file.ino, Some(handle)).await.ok().map(|a| a.size)
    }
}

impl<F: FileSystem> FileSystem for Watched<F> {
    fn block_on<T: Future>(&self, future: T) -> T::Output {
        self.fs.block_on(future)
    }

    async fn lookup(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.fs.lookup(cred, parent, name).await
    }

    async fn walk(&self, cred: &Cred, base: Ino, path: &[u8]) -> Result<Attr> {
        self.fs.walk(cred, base, path).await
    }

    fn walk_now(&self, cred: &Cred, base: Ino, path: &[u8]) -> Option<Result<Attr>> {
        self.fs.walk_now(cred, base, path)
    }

    async fn getattr(&self, ino: Ino, handle: Option<Handle>) -> Result<Attr> {
        self.fs.getattr(ino, handle).await
    }

    async fn setattr(&self, cred: &Cred, ino: Ino, set: SetAttr) -> Result<Attr> {
        let ino = set.handle.and_then(|h| self.file(h)).map_or(ino, |file| file.ino);
        let _telling = self.telling(smallvec![match set.size {
            // The end of a page beyond the new end may have become zeros too.
            Some(_) => Change::Data { ino, start: 0, end: u64::MAX },
            None => Change::Attr { ino },
        }]);
        self.fs.setattr(cred, ino, set).await
    }

    async fn access(&self, cred: &Cred, ino: Ino, mask: Access) -> Result<()> {
        self.fs.access(cred, ino, mask).await
    }

    async fn readlink(&self, cred: &Cred, ino: Ino) -> Result<Vec<u8>> {
        self.fs.readlink(cred, ino).await
    }

    async fn mknod(&self, cred: &Cred, parent: Ino, name: &[u8], mode: u32, rdev: u64) -> Result<Attr> {
        let _telling = self.telling_name(parent, name, None);
        self.fs.mknod(cred, parent, name, mode, rdev).await
    }

    async fn mkdir(&self, cred: &Cred, parent: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        let _telling = self.telling_name(parent, name, None);
        self.fs.mkdir(cred, parent, name, perm).await
    }

    async fn symlink(&self, cred: &Cred, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        let _telling = self.telling_name(parent, name, None);
        self.fs.symlink(cred, parent, name, target).await
    }

    async fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let _telling = self.telling_name(parent, name, Some(ino));
        self.fs.link(cred, ino, parent, name).await
    }

    async fn unlink(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        let _telling = self.telling_name(parent, name, self.victim(parent, name).await);
        self.fs.unlink(cred, parent, name).await
    }

    async fn rmdir(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        let _telling = self.telling_name(parent, name, self.victim(parent, name).await);
        self.fs.rmdir(cred, parent, name).await
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
        let (moved, replaced) = (self.victim(parent, name).await, self.victim(new_parent, new_name).await);
        let _old = self.telling_name(parent, name, moved);
        let _new = self.telling_name(new_parent, new_name, replaced);
        self.fs.rename(cred, parent, name, new_parent, new_name, flags).await
    }

    async fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let _telling = flags
            .contains(OpenFlags::TRUNCATE)
            .then(|| self.telling(smallvec![Change::Data { ino, start: 0, end: u64::MAX }]));
        let handle = self.fs.open(cred, ino, flags).await?;
        self.opened(handle, ino, flags);
        Ok(handle)
    }

    async fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let mut telling = self.telling_name(parent, name, None);
        if flags.contains(OpenFlags::TRUNCATE)
            && let Some(ino) = self.victim(parent, name).await
        {
            telling.changes.push(Change::Data { ino, start: 0, end: u64::MAX });
        }
        let (attr, handle) = self.fs.create(cred, parent, name, perm, flags).await?;
        self.opened(handle, attr.ino, flags);
        Ok((attr, handle))
    }

    async fn tmpfile(&self, cred: &Cred, parent: Ino, perm: u16, flags: OpenFlags) -> Result<(Attr, Handle)> {
        let (attr, handle) = self.fs.tmpfile(cred, parent, perm, flags).await?;
        self.opened(handle, attr.ino, flags);
        Ok((attr, handle))
    }

    fn read_now(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Option<Result<usize>> {
        self.fs.read_now(handle, offset, to)
    }

    async fn read(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Result<usize> {
        self.fs.read(handle, offset, to).await
    }

    async fn read_pages(&self, handle: Handle, offset: u64, len: usize) -> Result<Pages> {
        self.fs.read_pages(handle, offset, len).await
    }

    async fn write(&self, handle: Handle, offset: u64, from: &[u8]) -> Result<usize> {
        let file = self.file(handle);
        let Some(file) = file.filter(|file| file.append && self.heard()) else {
            let _telling = self.telling_data(handle, offset, from.len() as u64);
            return self.fs.write(handle, offset, from).await;
        };
        // It goes to the end, wherever that is by then.
        let before = self.size(file, handle).await;
        let mut telling = self.telling_data(handle, 0, u64::MAX);
        let n = self.fs.write(handle, offset, from).await?;
        let after = self.size(file, handle).await;
        if let (Some(before), Some(after)) = (before, after)
            && before + n as u64 == after
        {
            telling.changes = smallvec![Change::Data { ino: file.ino, start: before, end: after }];
        }
        Ok(n)
    }

    async fn flush(&self, handle: Handle, owner: LockOwner) -> Result<()> {
        self.fs.flush(handle, owner).await
    }

    async fn release(&self, handle: Handle) -> Result<()> {
        self.hub.files.write().remove(&handle);
        self.fs.release(handle).await
    }

    async fn fsync(&self, handle: Handle, datasync: bool) -> Result<()> {
        self.fs.fsync(handle, datasync).await
    }

    async fn barrier(&self, handle: Handle, datasync: bool) -> Result<()> {
        self.fs.barrier(handle, datasync).await
    }

    async fn sync(&self) -> Result<()> {
        self.fs.sync().await
    }

    async fn opendir(&self, cred: &Cred, ino: Ino) -> Result<Handle> {
        self.fs.opendir(cred, ino).await
    }

    async fn readdir(
        &self,
        handle: Handle,
        offset: u64,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        self.fs.readdir(handle, offset, sink).await
    }

    async fn statfs(&self) -> Result<StatFs> {
        self.fs.statfs().await
    }

    async fn getxattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.fs.getxattr(cred, ino, name).await
    }

    async fn listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.fs.listxattr(cred, ino).await
    }

    async fn setxattr(
        &self,
        cred: &Cred,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let _telling = self.telling(smallvec![Change::Attr { ino }]);
        self.fs.setxattr(cred, ino, name, value, flags).await
    }

    async fn removexattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<()> {
        let _telling = self.telling(smallvec![Change::Attr { ino }]);
        self.fs.removexattr(cred, ino, name).await
    }

    async fn fallocate(&self, handle: Handle, what: Fallocate, offset: u64, len: u64) -> Result<()> {
        let _telling = self.telling_data(handle, offset, len);
        self.fs.fallocate(handle, what, offset, len).await
    }

    async fn seek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        self.fs.seek(handle, offset, what).await
    }

    async fn copy_range(
        &self,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let _telling = self.telling_data(to, to_offset, len);
        self.fs.copy_range(from, from_offset, to, to_offset, len).await
    }

    async fn getlk(&self, handle: Handle, owner: LockOwner, lock: RecordLock) -> Result<Option<RecordLock>> {
        self.fs.getlk(handle, owner, lock).await
    }

    async fn setlk(
        &self,
        handle: Handle,
        owner: LockOwner,
        lock: std::result::Result<RecordLock, (u64, u64)>,
        wait: bool,
    ) -> Result<()> {
        self.fs.setlk(handle, owner, lock, wait).await
    }

    async fn flock(&self, handle: Handle, kind: Option<LockKind>, wait: bool) -> Result<()> {
        self.fs.flock(handle, kind, wait).await
    }

    fn locks(&self) -> Vec<HeldLock> {
        self.fs.locks()
    }
}
