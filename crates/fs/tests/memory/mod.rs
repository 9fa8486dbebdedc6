//! A small file system in memory, enough to test what stands above the contract: paths, the client, permissions, locks.
//! It keeps the rules of [`fs::perm`], counts calls, and may make each call wait once. It is no measure of engines.

mod state;

use fs::*;
use state::{Open, State, new_node};
use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::task::Poll;

pub struct Memory {
    state: Mutex<State>,
    locks: LockTable,
    pub calls: AtomicU64,
    /// Futures that were run to their end as this file system does it.
    pub waits: AtomicU64,
    /// When so many files are open, no more are.
    pub opens_max: AtomicUsize,
    /// Every call is `Pending` once.
    pub lazy: AtomicBool,
}

impl Memory {
    pub fn new() -> Memory {
        let nodes = HashMap::from([(Ino::ROOT, new_node())]);
        let state = Mutex::new(State { nodes, opens: HashMap::new(), next: 100 });
        Memory {
            state,
            locks: LockTable::new(),
            calls: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            opens_max: AtomicUsize::new(usize::MAX),
            lazy: AtomicBool::new(false),
        }
    }

    /// Open handles and inodes, to see that nothing is left behind.
    pub fn held(&self) -> (usize, usize, bool) {
        let state = self.state.lock().unwrap();
        (state.opens.len(), state.nodes.len(), self.locks.is_empty())
    }

    async fn enter(&self) -> MutexGuard<'_, State> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut wait = self.lazy.load(Ordering::Relaxed);
        std::future::poll_fn(|cx| {
            if std::mem::take(&mut wait) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        self.state.lock().unwrap()
    }

    async fn ino_of(&self, handle: Handle) -> Result<Open> {
        Ok(self.enter().await.handle(handle, OpenFlags::empty())?.0)
    }
}

impl FileSystem for Memory {
    fn block_on<T: Future>(&self, future: T) -> T::Output {
        self.waits.fetch_add(1, Ordering::Relaxed);
        block_on(future)
    }
    async fn lookup(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.enter().await.lookup(cred, parent, name)
    }
    async fn walk(&self, cred: &Cred, base: Ino, path: &[u8]) -> Result<Attr> {
        let mut state = self.enter().await;
        let mut attr = state.node(base)?.attr;
        for name in path.split(|&b| b == b'/') {
            assert!(!matches!(name, b"" | b"." | b".."), "walk takes plain names only");
            attr = state.lookup(cred, attr.ino, name)?;
        }
        Ok(attr)
    }
    async fn getattr(&self, ino: Ino, _: Option<Handle>) -> Result<Attr> {
        Ok(self.enter().await.node(ino)?.attr)
    }
    async fn setattr(&self, cred: &Cred, ino: Ino, set: SetAttr) -> Result<Attr> {
        let mut state = self.enter().await;
        let writable = match set.handle {
            Some(handle) => state.handle(handle, OpenFlags::empty())?.0.flags.contains(OpenFlags::WRITE),
            None => false,
        };
        let node = state.node(ino)?;
        node.attr = perm::setattr(cred, &node.attr, &set, writable, Time::now())?;
        if let Some(size) = set.size {
            node.data.resize(size as usize, 0);
        }
        Ok(node.attr)
    }
    async fn access(&self, cred: &Cred, ino: Ino, mask: Access) -> Result<()> {
        perm::check(cred, &self.enter().await.node(ino)?.attr, mask)
    }
    async fn readlink(&self, _: &Cred, ino: Ino) -> Result<Vec<u8>> {
        let mut state = self.enter().await;
        let node = state.node(ino)?;
        if node.attr.kind == FileType::Symlink {
            Ok(node.data.clone())
        } else {
            Err(Error::Invalid("no symlink"))
        }
    }
    async fn mknod(&self, cred: &Cred, parent: Ino, name: &[u8], mode: u32, rdev: u64) -> Result<Attr> {
        self.enter().await.make_named(cred, parent, name, mode, rdev)
    }
    async fn mkdir(&self, cred: &Cred, parent: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        let mut state = self.enter().await;
        let attr = state.make_named(cred, parent, name, libc::S_IFDIR | perm as u32, 0)?;
        state.node(parent)?.attr.nlink += 1;
        Ok(attr)
    }
    async fn symlink(&self, cred: &Cred, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        let mut state = self.enter().await;
        let attr = state.make_named(cred, parent, name, libc::S_IFLNK | 0o777, 0)?;
        state.node(attr.ino)?.data = target.to_vec();
        Ok(attr)
    }
    async fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let mut state = self.enter().await;
        if state.node(ino)?.attr.kind == FileType::Directory {
            return Err(Error::NotPermitted);
        }
        match state.lookup(cred, parent, name) {
            Err(Error::NotFound) => perm::check(cred, &state.dir(parent)?.attr, Access::WRITE)?,
            Ok(_) => return Err(Error::Exists),
            Err(e) => return Err(e),
        }
        state.enter(parent, name, ino);
        let node = state.node(ino)?;
        node.attr.nlink += 1;
        Ok(node.attr)
    }
    async fn unlink(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        let mut state = self.enter().await;
        let victim = state.removable(cred, parent, name)?;
        if victim.kind == FileType::Directory {
            return Err(Error::IsDirectory);
        }
        state.leave(parent, name);
        state.drop_name(victim.ino);
        Ok(())
    }
    async fn rmdir(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        let mut state = self.enter().await;
        let victim = state.removable(cred, parent, name)?;
        if !state.dir(victim.ino)?.names.is_empty() {
            return Err(Error::NotEmpty);
        }
        state.leave(parent, name);
        state.node(parent)?.attr.nlink -= 1;
        state.drop_name(victim.ino);
        Ok(())
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
        let mut state = self.enter().await;
        let moved = state.removable(cred, parent, name)?;
        let target = match state.removable(cred, new_parent, new_name) {
            Ok(target) => Some(target),
            Err(Error::NotFound) => None,
            Err(e) => return Err(e),
        };
        match target {
            Some(_) if flags.contains(RenameFlags::NOREPLACE) => return Err(Error::Exists),
            Some(target) if flags.contains(RenameFlags::EXCHANGE) => {
                state.leave(parent, name);
                state.leave(new_parent, new_name);
                state.enter(parent, name, target.ino);
            }
            None if flags.contains(RenameFlags::EXCHANGE) => return Err(Error::NotFound),
            Some(target) => {
                state.leave(parent, name);
                state.leave(new_parent, new_name);
                state.drop_name(target.ino);
            }
            None => state.leave(parent, name),
        }
        state.enter(new_parent, new_name, moved.ino);
        state.node(moved.ino)?.parent = new_parent;
        Ok(())
    }
    async fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let mut state = self.enter().await;
        let attr = state.node(ino)?.attr;
        let mut want = Access::empty();
        want.set(Access::READ, flags.contains(OpenFlags::READ));
        want.set(Access::WRITE, flags.contains(OpenFlags::WRITE));
        perm::check(cred, &attr, want)?;
        if state.opens.len() >= self.opens_max.load(Ordering::Relaxed) {
            return Err(Error::TooManyOpen);
        }
        Ok(state.open(cred, ino, flags))
    }
    async fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let existing = self.lookup(cred, parent, name).await;
        let attr = match existing {
            Ok(_) if flags.contains(OpenFlags::EXCLUSIVE) => return Err(Error::Exists),
            Ok(a) if a.kind == FileType::Symlink => return Err(Error::SymlinkLoop),
            Ok(a) if a.kind == FileType::Directory => return Err(Error::IsDirectory),
            Ok(a) => return Ok((a, self.open(cred, a.ino, flags).await?)),
            Err(Error::NotFound) => self.mknod(cred, parent, name, libc::S_IFREG | perm as u32, 0).await?,
            Err(e) => return Err(e),
        };
        Ok((attr, self.enter().await.open(cred, attr.ino, flags)))
    }
    async fn tmpfile(&self, cred: &Cred, parent: Ino, perm: u16, flags: OpenFlags) -> Result<(Attr, Handle)> {
        let mut state = self.enter().await;
        perm::check(cred, &state.dir(parent)?.attr, Access::WRITE | Access::EXEC)?;
        let ino = state.make(cred, parent, FileType::Regular, perm, 0)?;
        state.node(ino)?.attr.nlink = 0;
        let handle = state.open(cred, ino, flags);
        Ok((state.node(ino)?.attr, handle))
    }
    async fn read(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Result<usize> {
        let mut state = self.enter().await;
        let (_, node) = state.handle(handle, OpenFlags::READ)?;
        let from = node.data.get(offset as usize..).unwrap_or(&[]);
        let n = from.len().min(to.len());
        to[..n].copy_from_slice(&from[..n]);
        Ok(n)
    }
    async fn write(&self, handle: Handle, offset: u64, from: &[u8]) -> Result<usize> {
        let mut state = self.enter().await;
        let (open, node) = state.handle(handle, OpenFlags::WRITE)?;
        let append = open.flags.contains(OpenFlags::APPEND);
        let start = if append { node.data.len() } else { offset as usize };
        let end = start + from.len();
        if node.data.len() < end {
            node.data.resize(end, 0);
        }
        node.data[start..end].copy_from_slice(from);
        node.attr.size = node.data.len() as u64;
        node.attr.perm = perm::after_write(perm::Writer { root: open.root, in_group: true }, node.attr.perm);
        Ok(from.len())
    }
    async fn flush(&self, handle: Handle, owner: LockOwner) -> Result<()> {
        self.locks.release_owner(self.ino_of(handle).await?.ino, owner);
        Ok(())
    }
    async fn release(&self, handle: Handle) -> Result<()> {
        let mut state = self.enter().await;
        let (open, node) = state.handle(handle, OpenFlags::empty())?;
        node.opens -= 1;
        state.opens.remove(&handle);
        state.reap(open.ino);
        self.locks.release_handle(open.ino, handle);
        Ok(())
    }
    async fn fsync(&self, handle: Handle, _: bool) -> Result<()> {
        self.ino_of(handle).await.map(drop)
    }
    async fn barrier(&self, handle: Handle, _: bool) -> Result<()> {
        self.ino_of(handle).await.map(drop)
    }
    async fn sync(&self) -> Result<()> {
        Ok(())
    }
    async fn opendir(&self, cred: &Cred, ino: Ino) -> Result<Handle> {
        let mut state = self.enter().await;
        perm::check(cred, &state.dir(ino)?.attr, Access::READ)?;
        Ok(state.open(cred, ino, OpenFlags::empty()))
    }
    async fn readdir(
        &self,
        handle: Handle,
        offset: u64,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        let mut state = self.enter().await;
        let (open, node) = state.handle(handle, OpenFlags::empty())?;
        let mut all = vec![(1, b".".to_vec(), open.ino), (2, b"..".to_vec(), node.parent)];
        all.extend(node.order.iter().map(|(at, name)| (*at, name.clone(), node.names[name])));
        for (next_offset, name, ino) in all.into_iter().filter(|e| e.0 > offset) {
            let Ok(node) = state.node(ino) else { continue };
            if !sink(DirEntry { name: &name, next_offset, attr: node.attr }) {
                break;
            }
        }
        Ok(())
    }
    async fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs { name_max: 255, ..StatFs::default() })
    }
    async fn getxattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let mut state = self.enter().await;
        let node = state.node(ino)?;
        perm::check_xattr(cred, &node.attr, name, false)?;
        node.xattrs.get(name).cloned().ok_or(Error::NoAttribute)
    }
    async fn listxattr(&self, _: &Cred, ino: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(self.enter().await.node(ino)?.xattrs.keys().cloned().collect())
    }
    async fn setxattr(
        &self,
        cred: &Cred,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let mut state = self.enter().await;
        let node = state.node(ino)?;
        perm::check_xattr(cred, &node.attr, name, true)?;
        match node.xattrs.contains_key(name) {
            true if flags.contains(XattrFlags::CREATE) => return Err(Error::Exists),
            false if flags.contains(XattrFlags::REPLACE) => return Err(Error::NoAttribute),
            _ => node.xattrs.insert(name.to_vec(), value.to_vec()),
        };
        Ok(())
    }
    async fn removexattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<()> {
        let mut state = self.enter().await;
        let node = state.node(ino)?;
        perm::check_xattr(cred, &node.attr, name, true)?;
        node.xattrs.remove(name).map(drop).ok_or(Error::NoAttribute)
    }
    async fn fallocate(&self, handle: Handle, what: Fallocate, offset: u64, len: u64) -> Result<()> {
        let mut state = self.enter().await;
        let (_, node) = state.handle(handle, OpenFlags::WRITE)?;
        let end = (offset + len) as usize;
        if !matches!(what, Fallocate::PunchHole) && end > node.data.len() {
            node.data.resize(end, 0);
        }
        if !matches!(what, Fallocate::Allocate { .. }) {
            let end = end.min(node.data.len());
            node.data[(offset as usize).min(end)..end].fill(0);
        }
        node.attr.size = node.data.len() as u64;
        Ok(())
    }
    async fn seek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        let mut state = self.enter().await;
        let (_, node) = state.handle(handle, OpenFlags::empty())?;
        match what {
            _ if offset >= node.attr.size => Err(Error::NoSuchOffset),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(node.attr.size),
        }
    }
    async fn copy_range(&self, from: Handle, at: u64, to: Handle, to_at: u64, len: u64) -> Result<u64> {
        let mut data = vec![0; len.min(1 << 20) as usize];
        let n = self.read(from, at, &mut data).await?;
        Ok(self.write(to, to_at, &data[..n]).await? as u64)
    }
    async fn getlk(&self, handle: Handle, owner: LockOwner, lock: RecordLock) -> Result<Option<RecordLock>> {
        Ok(self.locks.getlk(self.ino_of(handle).await?.ino, owner, lock))
    }
    async fn setlk(
        &self,
        handle: Handle,
        owner: LockOwner,
        lock: std::result::Result<RecordLock, (u64, u64)>,
        wait: bool,
    ) -> Result<()> {
        self.locks.setlk(self.ino_of(handle).await?.ino, owner, lock, wait).await
    }
    async fn flock(&self, handle: Handle, kind: Option<LockKind>, wait: bool) -> Result<()> {
        self.locks.flock(self.ino_of(handle).await?.ino, handle, kind, wait).await
    }
}
