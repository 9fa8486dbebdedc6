//! The contract over [`Watched`]: each call takes its turn, settles leases, and tells the other doors what it changed.

use super::{Change, OpenFile, Opened, Watched};
use crate::cache::Pages;
use crate::contract::FileSystem;
use crate::cred::Cred;
use crate::error::{Error, Result};
use crate::leases::Call;
use crate::locks::Keeper;
use crate::source::Source;
use crate::types::*;
use format::Ino;
use media::{ArenaId, BufRef, Memory};
use smallvec::smallvec;
use std::future::Future;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

impl<F: FileSystem> FileSystem for Watched<F> {
    fn block_on<T: Future>(&self, future: T) -> T::Output {
        self.fs.block_on(future)
    }

    fn attend(&self, stays: bool) -> Devices {
        self.fs.attend(stays)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.fs.readiness()
    }

    async fn lookup(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Attr> {
        if let Some(handle) = self.hub.passes.find(name)
            && let Some(file) = self.file(handle)
        {
            let dir = self.fs.getattr(parent, None).await?;
            if dir.kind != FileType::Directory {
                return Err(Error::NotDirectory);
            }
            crate::perm::check(cred, &dir, Access::EXEC)?;
            if !self.hub.passes.is_looked_up(handle, parent) {
                return Err(Error::NotFound);
            }
            return self.getattr(file.ino, Some(handle)).await;
        }
        self.settle(parent, Call::Other).await?;
        let attr = self.fs.lookup(cred, parent, name).await?;
        if self.is_settled(&attr).await { Ok(attr) } else { self.fs.lookup(cred, parent, name).await }
    }

    async fn walk(&self, cred: &Cred, base: Ino, path: &[u8]) -> Result<Attr> {
        if self.lends_directories() {
            let mut at = self.getattr(base, None).await?;
            for name in path.split(|&b| b == b'/').filter(|n| !n.is_empty()) {
                if at.kind != FileType::Directory {
                    return Err(Error::NotDirectory);
                }
                at = self.lookup(cred, at.ino, name).await?;
            }
            return Ok(at);
        }
        let attr = self.fs.walk(cred, base, path).await?;
        if self.is_settled(&attr).await { Ok(attr) } else { self.fs.walk(cred, base, path).await }
    }

    fn walk_now(&self, cred: &Cred, base: Ino, path: &[u8]) -> Option<Result<Attr>> {
        if self.lends_directories() {
            return None;
        }
        let found = self.fs.walk_now(cred, base, path);
        found.filter(|found| !found.as_ref().is_ok_and(|attr| self.lends_on(attr.ino)))
    }

    async fn getattr(&self, ino: Ino, handle: Option<Handle>) -> Result<Attr> {
        self.settle_attr(ino, handle).await;
        self.fs.getattr(ino, handle).await
    }

    fn is_within(&self, ino: Ino, top: Ino) -> bool {
        self.fs.is_within(ino, top)
    }

    fn commits_at_close(&self) -> bool {
        self.fs.commits_at_close()
    }

    async fn setattr(&self, cred: &Cred, ino: Ino, set: SetAttr) -> Result<Attr> {
        let ino = set.handle.and_then(|h| self.file(h)).map_or(ino, |file| file.ino);
        let access = set.perm.is_some() || set.uid.is_some() || set.gid.is_some();
        let _declared = self.declared(access.then_some(ino)).await?;
        let _changing = self.changing(ino);
        self.settle(ino, Call::Other).await?;
        let telling = self.telling(smallvec![match set.size {
            // The end of a page beyond the new end may have become zeros too.
            Some(_) => Change::Data { ino, start: 0, end: u64::MAX },
            None => Change::Attr { ino },
        }]);
        telling.over(self.fs.setattr(cred, ino, set)).await
    }

    async fn access(&self, cred: &Cred, ino: Ino, mask: Access) -> Result<()> {
        self.fs.access(cred, ino, mask).await
    }

    async fn readlink(&self, cred: &Cred, ino: Ino) -> Result<Vec<u8>> {
        self.fs.readlink(cred, ino).await
    }

    async fn mknod(&self, cred: &Cred, parent: Ino, name: &[u8], mode: u32, rdev: u64) -> Result<Attr> {
        let _entering = self.entering(parent).await?;
        let turn = self.hub.names.take(&[(parent, name)]).await;
        let telling = self.telling_name(parent, name, None).after(turn);
        telling.over_name(self.fs.mknod(cred, parent, name, mode, rdev)).await
    }

    async fn mkdir(&self, cred: &Cred, parent: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        let _entering = self.entering(parent).await?;
        let turn = self.hub.names.take(&[(parent, name)]).await;
        let telling = self.telling_name(parent, name, None).after(turn);
        telling.over_name(self.fs.mkdir(cred, parent, name, perm)).await
    }

    async fn symlink(&self, cred: &Cred, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        let _entering = self.entering(parent).await?;
        let turn = self.hub.names.take(&[(parent, name)]).await;
        let telling = self.telling_name(parent, name, None).after(turn);
        telling.over_name(self.fs.symlink(cred, parent, name, target)).await
    }

    async fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let _entering = self.entering(parent).await?;
        let _changing = self.changing(ino);
        self.settle(ino, Call::Other).await?;
        let turn = self.hub.names.take(&[(parent, name)]).await;
        let telling = self.telling_name(parent, name, Some(ino)).after(turn);
        telling.over_name(self.fs.link(cred, ino, parent, name)).await
    }

    async fn unlink(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        let _entering = self.entering(parent).await?;
        let turn = self.hub.names.take(&[(parent, name)]).await;
        let victim = self.victim(parent, name).await;
        let _declared = self.declared(victim).await?;
        let telling = self.telling_name(parent, name, victim).after(turn);
        telling.over_name(self.fs.unlink(cred, parent, name)).await
    }

    async fn rmdir(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        self.rmdir_told(cred, parent, name).await.map(drop)
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
        let _entering = (self.entering(parent).await?, self.entering(new_parent).await?);
        let (turn, _leaving, replaced, _) = self.leaving(&[(parent, name), (new_parent, new_name)]).await;
        let moved = self.victim(parent, name).await;
        let _declared = self.declared(replaced).await?;
        let mut telling = self.telling_name(new_parent, new_name, replaced).after(turn);
        if moved.is_some() && moved == replaced {
            // Both names are the same file's: nothing changes.
            telling.changes.clear();
        } else {
            telling.changes.push(Change::Name { parent, name });
            telling.changes.extend(moved.map(|ino| Change::Attr { ino }));
        }
        telling.over_name(self.fs.rename(cred, parent, name, new_parent, new_name, flags)).await
    }

    async fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let _changing = self.changing(ino);
        self.settle(ino, Call::Other).await?;
        let telling = self.telling_open(ino, flags);
        let opened = self.fs.open(cred, ino, flags).await.map(|handle| self.opened(handle, ino, flags));
        telling.end().await;
        opened.map(Opened::taken)
    }

    async fn open_exact(&self, cred: &Cred, inode: (Ino, u32), flags: OpenFlags) -> Result<Handle> {
        let _changing = self.changing(inode.0);
        self.settle(inode.0, Call::Other).await?;
        let telling = self.telling_open(inode.0, flags);
        let opened =
            self.fs.open_exact(cred, inode, flags).await.map(|handle| self.opened(handle, inode.0, flags));
        telling.end().await;
        opened.map(Opened::taken)
    }

    async fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let _entering = self.entering(parent).await?;
        let empties = flags.contains(OpenFlags::TRUNCATE);
        let (turn, _emptying, before) = if empties {
            let (turn, emptying, before, settled) = self.leaving(&[(parent, name)]).await;
            // Of what is gone nothing is left to be written.
            before.map_or(Ok(()), |_| settled)?;
            (turn, emptying, before)
        } else {
            let turn = self.hub.names.take(&[(parent, name)]).await;
            let before = if self.heard() { self.victim(parent, name).await } else { None };
            (turn, None, before)
        };
        let mut telling = self.telling_name(parent, name, None).after(turn);
        if let Some(ino) = before.filter(|_| empties) {
            telling.changes.push(Change::Data { ino, start: 0, end: u64::MAX });
        }
        let made = self.fs.create(cred, parent, name, perm, flags).await;
        let made = made.map(|(attr, handle)| (attr, self.opened(handle, attr.ino, flags)));
        telling.unless_refused(&made);
        if made.as_ref().is_ok_and(|(attr, _)| before == Some(attr.ino)) {
            // It was opened, and its name is what it was.
            telling.changes.retain(|change| !matches!(change, Change::Name { .. }));
        }
        telling.end().await;
        let (attr, opened) = made?;
        if self.is_settled(&attr).await {
            return Ok((attr, opened.taken()));
        }
        let now = self.fs.getattr(attr.ino, Some(opened.handle)).await;
        Ok((now.unwrap_or(attr), opened.taken()))
    }

    fn promise(&self, most: usize) -> Result<Vec<Promise>> {
        self.fs.promise(most)
    }

    fn give_back(&self, promises: &[Promise]) {
        self.fs.give_back(promises);
    }

    fn set_room_aside(&self, pages: u64) -> Result<u64> {
        self.fs.set_room_aside(pages)
    }

    fn give_room_back(&self, pages: u64) {
        self.fs.give_room_back(pages);
    }

    async fn write_promised(&self, handle: Handle, offset: u64, from: &dyn Source) -> Result<()> {
        let prompt = OpenFlags::APPEND | OpenFlags::DIRECT | OpenFlags::SYNC | OpenFlags::DSYNC;
        if self.file(handle).is_none_or(|file| file.flags.intersects(prompt)) {
            self.give_room_back(room_for(offset, from.len()));
            return Err(Error::Invalid("data that is late goes to one place, and is not synced"));
        }
        let _changing = self.changing_behind(handle);
        let telling = self.telling_data(handle, offset, from.len() as u64);
        let settled = self.settle_write(handle, offset, from.len()).await;
        let written = self.fs.write_promised(handle, offset, from).await;
        // As in `make_lent`: only who calls has the file.
        drop(telling);
        settled.and(written)
    }

    fn names(&self, dir: Ino, most: usize) -> Result<Vec<Vec<u8>>> {
        self.fs.names(dir, most)
    }

    async fn tmpfile(&self, cred: &Cred, parent: Ino, perm: u16, flags: OpenFlags) -> Result<(Attr, Handle)> {
        let (attr, handle) = self.fs.tmpfile(cred, parent, perm, flags).await?;
        Ok((attr, self.opened(handle, attr.ino, flags).taken()))
    }

    fn read_now(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Option<Result<usize>> {
        if self.lends_behind(handle) { None } else { self.fs.read_now(handle, offset, to) }
    }

    async fn read(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Result<usize> {
        self.settle_read(handle, offset, to.len()).await?;
        self.fs.read(handle, offset, to).await
    }

    fn is_at_hand(&self, handle: Handle, offset: u64, len: usize) -> bool {
        // What others have of it would have to be asked for.
        !self.lends_behind(handle) && self.fs.is_at_hand(handle, offset, len)
    }

    async fn read_pages(&self, handle: Handle, offset: u64, len: usize) -> Result<Pages> {
        self.settle_read(handle, offset, len).await?;
        self.fs.read_pages(handle, offset, len).await
    }

    async fn write(&self, handle: Handle, offset: u64, from: &[u8]) -> Result<usize> {
        self.write_from(handle, offset, &from).await
    }

    async fn write_from(&self, handle: Handle, offset: u64, from: &dyn Source) -> Result<usize> {
        let file = self.file(handle);
        let _changing = self.changing_behind(handle);
        self.settle_write(handle, offset, from.len()).await?;
        let appends = |file: &OpenFile| file.flags.contains(OpenFlags::APPEND);
        let Some(file) = file.filter(|file| appends(file) && self.heard()) else {
            let telling = self.telling_data(handle, offset, from.len() as u64);
            return telling.over(self.fs.write_from(handle, offset, from)).await;
        };
        // It goes to the end, wherever that is by then.
        let before = self.size(file, handle).await;
        let mut telling = self.telling_data(handle, 0, u64::MAX);
        let written = self.fs.write_from(handle, offset, from).await;
        let after = self.size(file, handle).await;
        if let (Ok(n), Some(before), Some(after)) = (&written, before, after)
            && before + *n as u64 == after
        {
            telling.changes = smallvec![Change::Data { ino: file.ino, start: before, end: after }];
        }
        telling.end().await;
        written
    }

    fn lend_memory(&self, memory: Arc<dyn Memory>) -> Result<ArenaId> {
        self.fs.lend_memory(memory)
    }

    fn return_memory(&self, memory: ArenaId) {
        self.fs.return_memory(memory);
    }

    async fn read_direct(&self, handle: Handle, offset: u64, to: BufRef) -> Result<Option<usize>> {
        self.settle_read(handle, offset, to.len as usize).await?;
        self.fs.read_direct(handle, offset, to).await
    }

    async fn write_direct(&self, handle: Handle, offset: u64, from: BufRef) -> Result<Option<usize>> {
        let _changing = self.changing_behind(handle);
        self.settle_write(handle, offset, from.len as usize).await?;
        let telling = self.telling_data(handle, offset, from.len as u64);
        telling.over(self.fs.write_direct(handle, offset, from)).await
    }

    async fn write_atomic(&self, handle: Handle, pieces: &[(u64, &[u8])]) -> Result<()> {
        let _changing = self.changing_behind(handle);
        self.settle_handle(handle, Call::Other).await?;
        let start = pieces.iter().map(|(at, _)| *at).min().unwrap_or(0);
        let end = pieces.iter().map(|(at, data)| at.saturating_add(data.len() as u64)).max().unwrap_or(0);
        let telling = self.telling_data(handle, start, end - start);
        telling.over(self.fs.write_atomic(handle, pieces)).await
    }

    async fn flush(&self, handle: Handle, owner: LockOwner) -> Result<()> {
        self.fs.flush(handle, owner).await
    }

    async fn release(&self, handle: Handle) -> Result<()> {
        self.release_strays().await;
        let settled = self.settle_handle(handle, Call::Close(handle)).await;
        self.closed(handle);
        self.fs.release(handle).await.and(settled)
    }

    async fn abandon(&self, handle: Handle) -> Result<()> {
        self.release_strays().await;
        let settled = self.settle_handle(handle, Call::Close(handle)).await;
        self.closed(handle);
        self.fs.abandon(handle).await.and(settled)
    }

    fn hurry(&self) {
        self.fs.hurry();
    }

    async fn fsync(&self, handle: Handle, datasync: bool) -> Result<()> {
        self.settle_all().await?;
        self.fs.fsync(handle, datasync).await
    }

    async fn barrier(&self, handle: Handle, datasync: bool) -> Result<()> {
        self.settle_all().await?;
        self.fs.barrier(handle, datasync).await
    }

    async fn sync(&self) -> Result<()> {
        self.settle_all().await?;
        self.fs.sync().await
    }

    async fn opendir(&self, cred: &Cred, ino: Ino) -> Result<Handle> {
        self.settle(ino, Call::Other).await?;
        let handle = self.fs.opendir(cred, ino).await?;
        Ok(self.opened(handle, ino, OpenFlags::empty()).taken())
    }

    async fn readdir(
        &self,
        handle: Handle,
        mut offset: u64,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        self.settle_handle(handle, Call::Other).await?;
        let mut settled = None;
        loop {
            let (mut lent, at) = (None, offset);
            self.fs.readdir(handle, at, &mut self.unlent(sink, settled, &mut offset, &mut lent)).await?;
            let Some(attr) = lent else { return Ok(()) };
            self.is_settled(&attr).await;
            settled = Some(attr.ino);
        }
    }

    async fn statfs(&self) -> Result<StatFs> {
        if self.lends() {
            self.drained().await?;
        }
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
        let telling = self.telling(smallvec![Change::Attr { ino }]);
        telling.over(self.fs.setxattr(cred, ino, name, value, flags)).await
    }

    async fn removexattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<()> {
        let telling = self.telling(smallvec![Change::Attr { ino }]);
        telling.over(self.fs.removexattr(cred, ino, name)).await
    }

    async fn fallocate(&self, handle: Handle, what: Fallocate, offset: u64, len: u64) -> Result<()> {
        let _changing = self.changing_behind(handle);
        self.settle_handle(handle, Call::Other).await?;
        let telling = self.telling_data(handle, offset, len);
        telling.over(self.fs.fallocate(handle, what, offset, len)).await
    }

    async fn seek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        self.settle_handle(handle, Call::Other).await?;
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
        let _changing = self.changing_behind(to);
        self.settle_handle(from, Call::Other).await?;
        self.settle_handle(to, Call::Other).await?;
        let telling = self.telling_data(to, to_offset, len);
        telling.over(self.fs.copy_range(from, from_offset, to, to_offset, len)).await
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

    fn lend_locks(&self, handle: Handle, keeper: Arc<dyn Keeper>) -> bool {
        self.fs.lend_locks(handle, keeper)
    }

    fn recall_locks(&self, handle: Handle) {
        self.fs.recall_locks(handle);
    }

    fn locks(&self) -> Vec<HeldLock> {
        self.fs.locks()
    }
}
