//! Executing operations on a file system, and the slots they refer to.

mod checked;
mod lent;

use super::outcome::{Outcome, Shown};
use super::*;
use crate::driver::Driver;
use fs::{
    Access, Attr, Fallocate, FileSystem, FileType, Handle, Ino, LockKind, LockOwner, OpenFlags, RecordLock,
    RenameFlags, Result, SetAttr, XattrFlags,
};
use std::collections::HashMap;

/// What the slots hold on one file system.
pub struct State {
    nodes: Vec<Ino>,
    handles: Vec<OpenSlot>,
    /// Inodes in the order in which they were seen.
    ids: HashMap<(Ino, u32), usize>,
    lent: lent::Lent,
}

#[derive(Clone, Copy)]
struct OpenSlot {
    handle: Handle,
    ino: Ino,
    open: bool,
    append: bool,
}

/// An inode number that no volume has, for slots that were never filled.
const NO_INO: Ino = Ino(u64::MAX >> 8);
const NO_HANDLE: Handle = Handle(u64::MAX >> 8);

impl Default for State {
    fn default() -> State {
        let mut nodes = vec![NO_INO; NODE_SLOTS as usize];
        nodes[0] = Ino::ROOT;
        let handles = vec![
            OpenSlot { handle: NO_HANDLE, ino: NO_INO, open: false, append: false };
            HANDLE_SLOTS as usize
        ];
        State { nodes, handles, ids: HashMap::new(), lent: lent::Lent::default() }
    }
}

impl State {
    pub(super) fn node(&self, slot: u8) -> Ino {
        self.nodes[(slot % NODE_SLOTS) as usize]
    }

    fn slot(&self, slot: u8) -> &OpenSlot {
        &self.handles[(slot % HANDLE_SLOTS) as usize]
    }

    pub(crate) fn handle(&self, slot: u8) -> Handle {
        self.slot(slot).handle
    }

    /// The handle in a slot, if it is open.
    pub(crate) fn open_handle(&self, slot: u8) -> Option<Handle> {
        let slot = self.slot(slot);
        slot.open.then_some(slot.handle)
    }

    /// Whether an operation that was given up may be made again, and is the same as if it had been made once: what it had done until then it does
    /// once more.
    pub(crate) fn may_be_repeated(&self, op: &Op) -> bool {
        match op {
            Op::Write { handle, .. } => !self.slot(*handle).append,
            // It would copy what it has copied.
            Op::CopyRange { from, to, .. } => self.slot(*from).ino != self.slot(*to).ino,
            Op::ScanDuring { .. } => false,
            _ => true,
        }
    }

    /// What is lent is not touched again: a call that was given up may still be using it.
    pub(crate) fn forget_lent(&mut self) {
        self.lent = lent::Lent::default();
    }

    /// The inode and handle for a call that takes both: they always belong together, so with a handle its inode counts.
    fn with_handle(&self, node: u8, handle: Option<u8>) -> (Ino, Option<Handle>) {
        let slot = handle.map(|slot| self.slot(slot));
        slot.map_or((self.node(node), None), |slot| (slot.ino, Some(slot.handle)))
    }

    /// The lock owner that goes with a slot: three owners share the slots.
    fn owner(slot: u8) -> LockOwner {
        LockOwner((slot % HANDLE_SLOTS % 3) as u64 + 1)
    }

    /// Puts an inode into a slot. The root's slot is never given away.
    fn fill(&mut self, slot: u8, ino: Ino) {
        let slot = slot % NODE_SLOTS;
        if slot != 0 {
            self.nodes[slot as usize] = ino;
        }
    }

    fn show(&mut self, attr: &Attr) -> Shown {
        let next = self.ids.len();
        let id = *self.ids.entry((attr.ino, attr.generation)).or_insert(next);
        if id == next {
            // The number is used again: slots that meant the earlier inode mean nothing now.
            let again = self.ids.keys().any(|&(ino, g)| ino == attr.ino && g != attr.generation);
            if again {
                self.nodes.iter_mut().filter(|ino| **ino == attr.ino).for_each(|ino| *ino = NO_INO);
            }
        }
        Shown {
            id,
            kind: attr.kind,
            perm: attr.perm,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: if attr.kind == FileType::Directory { 0 } else { attr.size },
            times: [attr.atime, attr.mtime, attr.ctime],
        }
    }
}

/// Executes one operation with a driver and returns what came out.
pub fn execute<F: FileSystem, D: Driver>(driver: &D, fs: &F, state: &mut State, op: &Op) -> Outcome {
    driver.block_on(perform(fs, state, op))
}

/// One operation as a future, for who may not wait for its end.
pub async fn perform<F: FileSystem>(fs: &F, state: &mut State, op: &Op) -> Outcome {
    let mut run = Run { fs, state };
    run.op(op).await.unwrap_or_else(|e| Outcome::Failed(e.errno()))
}

/// Closes all handles that are still open, in the order of their slots.
pub fn close_all<F: FileSystem, D: Driver>(driver: &D, fs: &F, state: &mut State) {
    let mut run = Run { fs, state };
    for slot in 0..HANDLE_SLOTS {
        driver.block_on(run.close(slot));
    }
}

struct Run<'a, F> {
    fs: &'a F,
    state: &'a mut State,
}

type Out = Result<Outcome>;

impl<F: FileSystem> Run<'_, F> {
    async fn close(&mut self, slot: u8) {
        let slot = slot % HANDLE_SLOTS;
        let open = &mut self.state.handles[slot as usize];
        if std::mem::take(&mut open.open) {
            let handle = open.handle;
            let _ = self.fs.flush(handle, State::owner(slot)).await;
            let _ = self.fs.release(handle).await;
        }
    }

    /// Puts a handle into a slot; what was open there before is closed.
    async fn opened(&mut self, slot: u8, (handle, ino): (Handle, Ino), append: bool) {
        self.close(slot).await;
        self.state.handles[(slot % HANDLE_SLOTS) as usize] = OpenSlot { handle, ino, open: true, append };
    }

    fn shown(&mut self, attr: Attr) -> Out {
        Ok(Outcome::Node(self.state.show(&attr)))
    }

    fn found(&mut self, attr: Attr, into: u8) -> Out {
        let shown = self.state.show(&attr);
        self.state.fill(into, attr.ino);
        Ok(Outcome::Node(shown))
    }

    async fn set(&mut self, who: Who, node: u8, set: SetAttr) -> Out {
        let attr = self.fs.setattr(&who.cred(), self.state.node(node), set).await?;
        self.shown(attr)
    }

    async fn op(&mut self, op: &Op) -> Out {
        let fs = self.fs;
        match *op {
            Op::Lookup { who, dir, name: n, into } => {
                let attr = fs.lookup(&who.cred(), self.state.node(dir), &name(n)).await?;
                self.found(attr, into)
            }
            Op::Walk { who, dir, ref names, into } => {
                let path = names.iter().map(|&n| name(n)).collect::<Vec<_>>().join(&b'/');
                let attr = fs.walk(&who.cred(), self.state.node(dir), &path).await?;
                self.found(attr, into)
            }
            Op::GetAttr { node, handle } => {
                let (ino, handle) = self.state.with_handle(node, handle);
                let attr = fs.getattr(ino, handle).await?;
                self.shown(attr)
            }
            Op::Chmod { who, node, perm } => {
                self.set(who, node, SetAttr { perm: Some(perm), ..SetAttr::default() }).await
            }
            Op::Chown { who, node, uid, gid } => {
                self.set(who, node, SetAttr { uid, gid, ..SetAttr::default() }).await
            }
            Op::Truncate { who, node, size, handle } => {
                let (ino, handle) = self.state.with_handle(node, handle);
                let set = SetAttr { size: Some(size), handle, ..SetAttr::default() };
                let attr = fs.setattr(&who.cred(), ino, set).await?;
                self.shown(attr)
            }
            Op::SetTimes { who, node, atime, mtime } => {
                let (atime, mtime) = (atime.map(When::set_time), mtime.map(When::set_time));
                self.set(who, node, SetAttr { atime, mtime, ..SetAttr::default() }).await
            }
            Op::SetMany { who, node, perm, uid, gid, size, mtime } => {
                let mtime = mtime.map(When::set_time);
                self.set(who, node, SetAttr { perm, uid, gid, size, mtime, ..SetAttr::default() }).await
            }
            Op::Access { who, node, mask } => {
                let mask = Access::from_bits_truncate(mask);
                fs.access(&who.cred(), self.state.node(node), mask).await?;
                Ok(Outcome::Done)
            }
            Op::ReadLink { who, node } => {
                let target = fs.readlink(&who.cred(), self.state.node(node)).await?;
                Ok(Outcome::Bytes(target))
            }
            Op::MkNod { who, dir, name: n, mode, rdev, into } => {
                let dir = self.state.node(dir);
                let attr = fs.mknod(&who.cred(), dir, &name(n), mode, rdev).await?;
                self.found(attr, into)
            }
            Op::MkDir { who, dir, name: n, perm, into } => {
                let attr = fs.mkdir(&who.cred(), self.state.node(dir), &name(n), perm).await?;
                self.found(attr, into)
            }
            Op::SymLink { who, dir, name: n, target: t, into } => {
                let (dir, target) = (self.state.node(dir), target(t));
                let attr = fs.symlink(&who.cred(), dir, &name(n), &target).await?;
                self.found(attr, into)
            }
            Op::Link { who, node, dir, name: n } => {
                let (node, dir) = (self.state.node(node), self.state.node(dir));
                let attr = fs.link(&who.cred(), node, dir, &name(n)).await?;
                self.shown(attr)
            }
            Op::Unlink { who, dir, name: n } => {
                fs.unlink(&who.cred(), self.state.node(dir), &name(n)).await?;
                Ok(Outcome::Done)
            }
            Op::RmDir { who, dir, name: n } => {
                fs.rmdir(&who.cred(), self.state.node(dir), &name(n)).await?;
                Ok(Outcome::Done)
            }
            Op::Rename { who, dir, name: n, new_dir, new_name, flags } => {
                let (dir, new_dir) = (self.state.node(dir), self.state.node(new_dir));
                let flags = RenameFlags::from_bits_truncate(flags);
                fs.rename(&who.cred(), dir, &name(n), new_dir, &name(new_name), flags).await?;
                Ok(Outcome::Done)
            }
            Op::Sync => {
                fs.sync().await?;
                Ok(Outcome::Done)
            }
            Op::StatFs => {
                let s = fs.statfs().await?;
                let sane = s.block_size.is_power_of_two()
                    && s.blocks_free <= s.blocks
                    && s.blocks_available <= s.blocks_free
                    && s.inodes_free <= s.inodes
                    && s.name_max == 255;
                Ok(if sane { Outcome::Done } else { Outcome::Broken(format!("statfs: {s:?}")) })
            }
            Op::GetXattr { who, node, attr } => {
                let value = fs.getxattr(&who.cred(), self.state.node(node), &xattr_name(attr)).await?;
                Ok(Outcome::Bytes(value))
            }
            Op::ListXattr { who, node } => {
                let mut names = fs.listxattr(&who.cred(), self.state.node(node)).await?;
                names.sort();
                Ok(Outcome::Names(names.into_iter().map(|name| (name, None)).collect()))
            }
            Op::SetXattr { who, node, attr, len, pattern: seed, flags } => {
                let (node, value) = (self.state.node(node), pattern(seed, len));
                let flags = XattrFlags::from_bits_truncate(flags);
                fs.setxattr(&who.cred(), node, &xattr_name(attr), &value, flags).await?;
                Ok(Outcome::Done)
            }
            Op::RemoveXattr { who, node, attr } => {
                fs.removexattr(&who.cred(), self.state.node(node), &xattr_name(attr)).await?;
                Ok(Outcome::Done)
            }
            _ => self.handle_op(op).await,
        }
    }

    /// Operations that open or use handles.
    async fn handle_op(&mut self, op: &Op) -> Out {
        let fs = self.fs;
        match *op {
            Op::Open { who, node, flags, into } => {
                let flags = OpenFlags::from_bits_truncate(flags);
                let ino = self.state.node(node);
                let handle = fs.open(&who.cred(), ino, flags).await?;
                self.opened(into, (handle, ino), flags.contains(OpenFlags::APPEND)).await;
                Ok(Outcome::Done)
            }
            Op::Create { who, dir, name: n, perm, flags, node_into, into } => {
                let flags = OpenFlags::from_bits_truncate(flags);
                let dir = self.state.node(dir);
                let (attr, handle) = fs.create(&who.cred(), dir, &name(n), perm, flags).await?;
                self.opened(into, (handle, attr.ino), flags.contains(OpenFlags::APPEND)).await;
                self.found(attr, node_into)
            }
            Op::TmpFile { who, dir, perm, flags, node_into, into } => {
                let flags = OpenFlags::from_bits_truncate(flags);
                let dir = self.state.node(dir);
                let (attr, handle) = fs.tmpfile(&who.cred(), dir, perm, flags).await?;
                self.opened(into, (handle, attr.ino), flags.contains(OpenFlags::APPEND)).await;
                self.found(attr, node_into)
            }
            Op::Read { handle, offset, len } => {
                let handle = self.state.handle(handle);
                if offset % 3 == 1 {
                    let pages = fs.read_pages(handle, offset, len as usize).await?;
                    return Ok(Outcome::Bytes(pages.to_vec()));
                }
                if let Some(bytes) = self.state.lent.read(fs, (handle, offset, len as usize)).await? {
                    return Ok(Outcome::Bytes(bytes));
                }
                let mut bytes = vec![0xa5; len as usize];
                let n = fs.read(handle, offset, &mut bytes).await?;
                if n > bytes.len() {
                    return Ok(Outcome::Broken(format!("read {n} of {len} bytes")));
                }
                bytes.truncate(n);
                Ok(Outcome::Bytes(bytes))
            }
            Op::Write { handle, offset, len, pattern: seed } => {
                let (bytes, handle) = (pattern(seed, len), self.state.handle(handle));
                let n = match self.state.lent.write(fs, (handle, offset), &bytes).await? {
                    Some(n) => n,
                    None => fs.write(handle, offset, &bytes).await?,
                };
                Ok(Outcome::Count(n as u64))
            }
            Op::Flush { handle } => {
                fs.flush(self.state.handle(handle), State::owner(handle)).await?;
                Ok(Outcome::Done)
            }
            Op::Close { handle } => {
                let slot = (handle % HANDLE_SLOTS) as usize;
                let flushed = fs.flush(self.state.handle(handle), State::owner(handle)).await;
                self.state.handles[slot].open = false;
                fs.release(self.state.handle(handle)).await?;
                flushed?;
                Ok(Outcome::Done)
            }
            Op::Fsync { handle, datasync } => {
                fs.fsync(self.state.handle(handle), datasync).await?;
                Ok(Outcome::Done)
            }
            Op::Barrier { handle, datasync } => {
                fs.barrier(self.state.handle(handle), datasync).await?;
                Ok(Outcome::Done)
            }
            Op::OpenDir { who, node, into } => {
                let ino = self.state.node(node);
                let handle = fs.opendir(&who.cred(), ino).await?;
                self.opened(into, (handle, ino), false).await;
                Ok(Outcome::Done)
            }
            Op::ReadDir { handle, batch } => self.scan(handle, batch, &[]).await,
            Op::ScanDuring { handle, batch, ref changes } => self.scan(handle, batch, changes).await,
            Op::Fallocate { handle, what, offset, len } => {
                let what = match what {
                    Space::Allocate => Fallocate::Allocate { keep_size: false },
                    Space::AllocateKeep => Fallocate::Allocate { keep_size: true },
                    Space::Punch => Fallocate::PunchHole,
                    Space::Zero => Fallocate::ZeroRange { keep_size: false },
                    Space::ZeroKeep => Fallocate::ZeroRange { keep_size: true },
                };
                fs.fallocate(self.state.handle(handle), what, offset, len).await?;
                Ok(Outcome::Done)
            }
            Op::Seek { handle, offset, hole } => self.seek(self.state.handle(handle), offset, hole).await,
            Op::CopyRange { from, from_offset, to, to_offset, len } => {
                let (from, to) = (self.state.handle(from), self.state.handle(to));
                let n = fs.copy_range(from, from_offset, to, to_offset, len).await?;
                Ok(Outcome::Count(n))
            }
            Op::GetLk { handle, start, end, exclusive } => {
                let lock = RecordLock { start, end, kind: lock_kind(exclusive), pid: 1 };
                let owner = State::owner(handle);
                let Some(held) = fs.getlk(self.state.handle(handle), owner, lock).await? else {
                    return Ok(Outcome::Locked(false));
                };
                let conflicts =
                    held.start <= end && start <= held.end && (exclusive || held.kind == LockKind::Exclusive);
                Ok(if conflicts {
                    Outcome::Locked(true)
                } else {
                    Outcome::Broken(format!("{held:?} does not stand in the way of {lock:?}"))
                })
            }
            Op::SetLk { handle, start, end, exclusive } => {
                let lock = match exclusive {
                    Some(exclusive) => Ok(RecordLock { start, end, kind: lock_kind(exclusive), pid: 1 }),
                    None => Err((start, end)),
                };
                fs.setlk(self.state.handle(handle), State::owner(handle), lock, false).await?;
                Ok(Outcome::Done)
            }
            Op::Flock { handle, exclusive } => {
                fs.flock(self.state.handle(handle), exclusive.map(lock_kind), false).await?;
                Ok(Outcome::Done)
            }
            _ => Ok(Outcome::Broken(format!("{op:?} is not executed"))),
        }
    }
}

fn lock_kind(exclusive: bool) -> LockKind {
    if exclusive { LockKind::Exclusive } else { LockKind::Shared }
}
