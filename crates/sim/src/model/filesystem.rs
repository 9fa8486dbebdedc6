//! The contract, answered by the model. Every call takes effect in one step when it is first polled; only calls that wait
//! for a lock are ever pending.

use super::files::Listed;
use super::locks::{Held, Who};
use super::names::{New, special_kind};
use super::node::Body;
use super::rules;
use super::{Model, State};
use fs::*;
use std::future::poll_fn;
use std::ops::Range;
use std::task::Poll;

impl FileSystem for Model {
    async fn lookup(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.with(|state, _| state.lookup(cred, parent, name))
    }

    async fn getattr(&self, ino: Ino, handle: Option<Handle>) -> Result<Attr> {
        self.with(|state, _| {
            if let Some(handle) = handle
                && state.handle(handle)?.ino != ino
            {
                return Err(Error::BadHandle);
            }
            Ok(state.node(ino)?.attr())
        })
    }

    async fn setattr(&self, cred: &Cred, ino: Ino, set: SetAttr) -> Result<Attr> {
        self.with(|state, now| state.setattr(cred, ino, set, now))
    }

    async fn access(&self, cred: &Cred, ino: Ino, mask: Access) -> Result<()> {
        self.with(|state, _| rules::may(cred, &state.node(ino)?.attr, mask))
    }

    async fn readlink(&self, _cred: &Cred, ino: Ino) -> Result<Vec<u8>> {
        self.with(|state, now| {
            let node = state.node_mut(ino)?;
            let Body::Symlink(target) = &node.body else {
                return Err(Error::Invalid("not a symlink"));
            };
            let target = target.to_vec();
            node.was_read(now);
            Ok(target)
        })
    }

    async fn mknod(&self, cred: &Cred, parent: Ino, name: &[u8], mode: u32, rdev: u64) -> Result<Attr> {
        let perm = (mode & 0o7777) as u16;
        self.with(|state, now| {
            state.node(parent)?;
            let (kind, body) = special_kind(mode)?;
            state.make(cred, parent, name, New { kind, perm, rdev, body }, now)
        })
    }

    async fn mkdir(&self, cred: &Cred, parent: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        let new = New { kind: FileType::Directory, perm, rdev: 0, body: Body::directory(parent) };
        self.with(|state, now| state.make(cred, parent, name, new, now))
    }

    async fn symlink(&self, cred: &Cred, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.with(|state, now| {
            state.node(parent)?;
            match target.len() {
                0 => return Err(Error::NotFound),
                format::limits::PATH_MAX.. => return Err(Error::NameTooLong),
                _ => {}
            }
            let body = Body::Symlink(target.into());
            let new = New { kind: FileType::Symlink, perm: 0o777, rdev: 0, body };
            state.make(cred, parent, name, new, now)
        })
    }

    async fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.with(|state, now| state.link(cred, ino, parent, name, now))
    }

    async fn unlink(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        self.with(|state, now| state.remove(cred, parent, name, false, now))
    }

    async fn rmdir(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        self.with(|state, now| state.remove(cred, parent, name, true, now))
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
        self.with(|state, now| state.rename(cred, parent, name, new_parent, new_name, flags, now))
    }

    async fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        self.with(|state, now| state.open(cred, ino, flags, now))
    }

    async fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        self.with(|state, now| state.create(cred, parent, name, perm, flags, now))
    }

    async fn tmpfile(&self, cred: &Cred, parent: Ino, perm: u16, flags: OpenFlags) -> Result<(Attr, Handle)> {
        self.with(|state, now| state.tmpfile(cred, parent, perm, flags, now))
    }

    async fn read(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Result<usize> {
        self.with(|state, now| state.read(handle, offset, to, now))
    }

    async fn write(&self, handle: Handle, offset: u64, from: &[u8]) -> Result<usize> {
        self.with(|state, now| state.write(handle, offset, from, now))
    }

    fn overwritable(&self, handle: Handle, offset: u64, len: u64) -> Result<Vec<Range<u64>>> {
        self.with(|state, _| state.overwritable(handle, offset, len))
    }

    async fn flush(&self, handle: Handle, owner: LockOwner) -> Result<()> {
        self.with(|state, _| {
            let ino = state.handle(handle)?.ino;
            state.locks.release(ino, Who::Owner(owner), 0, u64::MAX);
            Ok(())
        })
    }

    async fn release(&self, handle: Handle) -> Result<()> {
        self.with(|state, _| state.release(handle))
    }

    async fn fsync(&self, handle: Handle, _datasync: bool) -> Result<()> {
        self.with(|state, _| state.handle(handle).map(|_| ()))
    }

    async fn barrier(&self, handle: Handle, _datasync: bool) -> Result<()> {
        self.with(|state, _| state.handle(handle).map(|_| ()))
    }

    async fn sync(&self) -> Result<()> {
        Ok(())
    }

    async fn opendir(&self, cred: &Cred, ino: Ino) -> Result<Handle> {
        self.with(|state, _| state.opendir(cred, ino))
    }

    async fn readdir(
        &self,
        handle: Handle,
        offset: u64,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        // The sink runs without the lock, so it may call the file system.
        let entries: Vec<Listed> = self.with(|state, now| state.list(handle, offset, now))?;
        for (name, next_offset, attr) in entries {
            if !sink(DirEntry { name: &name, next_offset, attr }) {
                break;
            }
        }
        Ok(())
    }

    async fn statfs(&self) -> Result<StatFs> {
        self.with(|state, _| {
            let (blocks, inodes) = (1 << 40, 1 << 32);
            let used = state.nodes.values().map(|node| node.attr().blocks / 8).sum::<u64>();
            Ok(StatFs {
                block_size: format::limits::BLOCK_SIZE as u32,
                blocks,
                blocks_free: blocks - used,
                blocks_available: blocks - used,
                inodes,
                inodes_free: inodes - state.nodes.len() as u64,
                name_max: format::limits::NAME_MAX as u32,
            })
        })
    }

    async fn getxattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.with(|state, _| state.getxattr(cred, ino, name))
    }

    async fn listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.with(|state, _| state.listxattr(cred, ino))
    }

    async fn setxattr(
        &self,
        cred: &Cred,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.with(|state, now| state.setxattr(cred, ino, name, value, flags, now))
    }

    async fn removexattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<()> {
        self.with(|state, now| state.removexattr(cred, ino, name, now))
    }

    async fn fallocate(&self, handle: Handle, what: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.with(|state, now| state.fallocate(handle, what, offset, len, now))
    }

    async fn seek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        self.with(|state, _| state.seek(handle, offset, what))
    }

    async fn copy_range(
        &self,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        self.with(|state, now| state.copy_range(from, from_offset, to, to_offset, len, now))
    }

    async fn getlk(&self, handle: Handle, owner: LockOwner, lock: RecordLock) -> Result<Option<RecordLock>> {
        self.with(|state, _| {
            let ino = lockable(state, handle)?;
            check_range(lock.start, lock.end)?;
            let asked = Held { ino, who: Who::Owner(owner), lock };
            Ok(state.locks.conflict(&asked).map(|held| held.lock))
        })
    }

    async fn setlk(
        &self,
        handle: Handle,
        owner: LockOwner,
        lock: std::result::Result<RecordLock, (u64, u64)>,
        wait: bool,
    ) -> Result<()> {
        let asked = self.with(|state, _| -> Result<Option<Held>> {
            let ino = lockable(state, handle)?;
            let who = Who::Owner(owner);
            match lock {
                Err((start, end)) => {
                    check_range(start, end)?;
                    state.locks.release(ino, who, start, end);
                    Ok(None)
                }
                Ok(lock) => {
                    check_range(lock.start, lock.end)?;
                    let need = match lock.kind {
                        LockKind::Shared => OpenFlags::READ,
                        LockKind::Exclusive => OpenFlags::WRITE,
                    };
                    state.open_for(handle, need)?;
                    Ok(Some(Held { ino, who, lock }))
                }
            }
        })?;
        match asked {
            Some(asked) => self.take_lock(handle, asked, wait).await,
            None => Ok(()),
        }
    }

    async fn flock(&self, handle: Handle, kind: Option<LockKind>, wait: bool) -> Result<()> {
        let asked = self.with(|state, _| -> Result<Option<Held>> {
            let (ino, who) = (state.handle(handle)?.ino, Who::Handle(handle));
            match kind {
                None => {
                    state.locks.release(ino, who, 0, u64::MAX);
                    Ok(None)
                }
                Some(kind) => {
                    let lock = RecordLock { start: 0, end: u64::MAX, kind, pid: 0 };
                    let asked = Held { ino, who, lock };
                    if !state.locks.holds(&asked) {
                        // A lock of the other kind is lost, also when this one is refused.
                        state.locks.release(ino, who, 0, u64::MAX);
                    }
                    Ok(Some(asked))
                }
            }
        })?;
        match asked {
            Some(asked) => self.take_lock(handle, asked, wait).await,
            None => Ok(()),
        }
    }
}

/// The inode of a handle; directories can be locked as well.
fn lockable(state: &State, handle: Handle) -> Result<Ino> {
    Ok(state.handle(handle)?.ino)
}

fn check_range(start: u64, end: u64) -> Result<()> {
    if start <= end { Ok(()) } else { Err(Error::Invalid("a lock ends before it begins")) }
}

/// Takes a waiting call out of the list when its future is dropped.
struct Ticket<'a> {
    model: &'a Model,
    number: Option<u64>,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.model.state.lock().locks.leave(self.number);
    }
}

impl Model {
    async fn take_lock(&self, handle: Handle, asked: Held, wait: bool) -> Result<()> {
        let mut ticket = Ticket { model: self, number: None };
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if let Err(e) = state.handle(handle) {
                return Poll::Ready(Err(e));
            }
            match state.locks.take(asked) {
                Err(Error::WouldBlock) if wait => {
                    match state.locks.wait(&mut ticket.number, asked, cx.waker()) {
                        Ok(()) => Poll::Pending,
                        Err(e) => Poll::Ready(Err(e)),
                    }
                }
                done => Poll::Ready(done),
            }
        })
        .await
    }
}
