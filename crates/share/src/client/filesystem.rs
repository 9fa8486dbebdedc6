//! The contract over a session: each call becomes a message.

use super::asking::{cut, flock_request};
use super::directories::may_post;
use super::{Remote, waiting};
use crate::wire::{self, Op, request};
use format::shared::{DATA_MAX, Request};
use fs::*;

const _: () = assert!(fs::ATOMIC_WRITE_MAX <= DATA_MAX, "an atomic write is one message");
/// Bytes of the places of an atomic write's pieces, in a message with the longest data.
const PIECES_MAX: usize = format::shared::PAYLOAD_MAX - DATA_MAX;

impl FileSystem for Remote {
    fn block_on<T: Future>(&self, future: T) -> T::Output {
        waiting::block_on(self, future)
    }

    async fn lookup(&self, _cred: &Cred, parent: Ino, name: &[u8]) -> Result<Attr> {
        if let Some(attr) = self.kept().name(parent, name).and_then(|ino| self.kept().attr(ino)) {
            return Ok(attr);
        }
        if self.kept().misses(parent, name) {
            return Err(Error::NotFound);
        }
        if let Some(found) = self.attr_here(parent, name) {
            return found;
        }
        if let Some(attr) = self.attr_told(parent, name) {
            return Ok(attr);
        }
        if let Some(attr) = self.attr_leased(parent, name).await {
            return Ok(attr);
        }
        Ok(self.ask_name(request(Op::Lookup, parent.0), parent, name, b"").await?.0)
    }

    async fn walk(&self, _cred: &Cred, base: Ino, path: &[u8]) -> Result<Attr> {
        if path.len() > format::limits::PATH_MAX {
            return Err(Error::NameTooLong);
        }
        if let Some(attr) = self.kept().walk(base, path) {
            return Ok(attr);
        }
        let last = self.kept().last(base, path);
        if last.is_some_and(|(dir, name)| self.kept().misses(dir, name)) {
            return Err(Error::NotFound);
        }
        if let Some(found) = self.attr_here(base, path) {
            return found;
        }
        if let Some(attr) = self.attr_told(base, path) {
            return Ok(attr);
        }
        if let Some(attr) = self.attr_leased(base, path).await {
            return Ok(attr);
        }
        self.ask_path(base, path, last).await
    }

    fn find_now(&self, _cred: &Cred, base: Ino, path: &[u8]) -> Option<(Ino, FileType)> {
        self.target_now(base, path).map(|target| (target.ino, target.kind))
    }

    #[inline]
    fn walk_now(&self, _cred: &Cred, base: Ino, path: &[u8]) -> Option<Result<Attr>> {
        self.kept().walk(base, path).map(Ok)
    }

    async fn getattr(&self, ino: Ino, handle: Option<Handle>) -> Result<Attr> {
        let known = handle.map_or(Some(ino), |handle| self.inode(handle));
        if let Some(attr) = known.and_then(|ino| self.kept().known(ino)) {
            return Ok(attr);
        }
        let attr = self.ask_attr(ino, handle).await?;
        if self.kept().leased(attr.ino).is_some() {
            self.now().leases.look(self.now());
        }
        Ok(attr)
    }

    async fn setattr(&self, _cred: &Cred, ino: Ino, set: SetAttr) -> Result<Attr> {
        let of = set.handle.map_or(Some(ino), |handle| self.inode(handle));
        let kind = match set.handle {
            Some(handle) => self.link.look(handle, |file| file.kind),
            None => self.kept().look(ino, |attr| attr.kind),
        };
        // What is known of a directory that is lent while it is changed is not used before that is over.
        let may_be_dir = kind.is_none_or(|kind| kind == FileType::Directory);
        let changing = may_be_dir.then(|| self.naming(&[]));
        self.uses_itself(of);
        let mut r = request(Op::Setattr, ino.0);
        if let Some(handle) = set.handle {
            (r.flags, r.other) = (1.into(), handle.0.into());
        }
        let answer = self.call_with(r, b"", &wire::set_attr(&set)).await;
        if let Some(changing) = changing {
            self.uses_itself(of);
            changing.over();
        }
        let answer = answer?;
        let attr = answer.attr()?;
        self.learn_left(&answer);
        if let Some(handle) = set.handle.filter(|_| set.size.is_some()) {
            self.link.written(handle, answer.session());
        }
        Ok(attr)
    }

    async fn access(&self, _cred: &Cred, ino: Ino, mask: Access) -> Result<()> {
        let r = Request { flags: mask.bits().into(), ..request(Op::Access, ino.0) };
        self.call(r).await.map(drop)
    }

    async fn readlink(&self, _cred: &Cred, ino: Ino) -> Result<Vec<u8>> {
        let target = self.call(request(Op::Readlink, ino.0)).await?.bytes();
        self.kept().was_read(ino);
        Ok(target)
    }

    async fn mknod(&self, _cred: &Cred, parent: Ino, name: &[u8], mode: u32, rdev: u64) -> Result<Attr> {
        let mut r = request(Op::Mknod, parent.0);
        (r.mode, r.extra) = (mode.into(), rdev.into());
        self.make(r, parent, name, b"").await
    }

    async fn mkdir(&self, _cred: &Cred, parent: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        if let Some(done) = self.mkdir_here(parent, name, perm).await {
            return done;
        }
        let mut r = request(Op::Mkdir, parent.0);
        r.mode = (perm as u32).into();
        let made = self.make(r, parent, name, b"").await?;
        self.created(parent).await;
        Ok(made)
    }

    async fn symlink(&self, _cred: &Cred, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.make(request(Op::Symlink, parent.0), parent, name, cut(target)).await
    }

    async fn link(&self, _cred: &Cred, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let mut r = request(Op::Link, ino.0);
        r.other = parent.0.into();
        let naming = self.naming(&[(parent, name)]);
        self.has_more_names(ino);
        let answer = self.call_with(r, cut(name), b"").await;
        naming.over();
        answer?.attr()
    }

    async fn unlink(&self, _cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        if let Some(done) = self.unlink_here(parent, name).await {
            return done;
        }
        let removing = self.removing(parent, name);
        let answer = self.call_with(request(Op::Unlink, parent.0), cut(name), b"").await;
        removing.over(&answer);
        answer.map(drop)
    }

    async fn rmdir(&self, _cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        if let Some(done) = self.rmdir_here(parent, name).await {
            return done;
        }
        let dir = self.made_dir(parent, name).or_else(|| self.kept().name(parent, name));
        let removing = self.removing(parent, name);
        // Whatever it is, it is not used any more; nor, before this is over, when it is lent meanwhile.
        self.uses_itself(dir);
        let answer = self.call_with(request(Op::Rmdir, parent.0), cut(name), b"").await;
        if let Ok(answer) = &answer {
            self.uses_itself(Some(Ino(answer.value)));
        }
        removing.over(&answer);
        answer.map(drop)
    }

    async fn rename(
        &self,
        _cred: &Cred,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let mut r = request(Op::Rename, parent.0);
        (r.other, r.flags) = (new_parent.0.into(), flags.bits().into());
        // What is replaced may be a directory, unless what replaces it is a file.
        let may_be_dir = flags.contains(RenameFlags::EXCHANGE) || !self.made_file(parent, name);
        let naming = self.naming(&[(parent, name), (new_parent, new_name)]);
        let uses_them = || {
            if may_be_dir {
                self.uses_itself(None);
            }
        };
        uses_them();
        let renamed = self.call_with(r, cut(name), cut(new_name)).await.map(drop);
        // Or one that was lent meanwhile.
        uses_them();
        naming.over();
        renamed
    }

    async fn open(&self, _cred: &Cred, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        self.open_inode(ino, None, flags).await
    }

    async fn open_exact(
        &self,
        _cred: &Cred,
        (ino, generation): (Ino, u32),
        flags: OpenFlags,
    ) -> Result<Handle> {
        self.open_inode(ino, Some(generation), flags).await
    }

    async fn create(
        &self,
        _cred: &Cred,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        if let Some(done) = self.create_here(parent, name, perm, flags).await {
            return done;
        }
        if let Some(opened) = self.open_known(parent, name, flags) {
            return opened;
        }
        let mut r = request(Op::Create, parent.0);
        (r.mode, r.flags) = ((perm as u32).into(), flags.bits().into());
        r.extra = (may_post(flags) as u64).into();
        let naming = self.naming(&[(parent, name)]);
        let answer = self.call_with(r, cut(name), b"").await;
        naming.over();
        let answer = answer?;
        let attr = answer.attr()?;
        self.learn_made(&answer, parent, name, &attr);
        if answer.lent != 0 {
            answer.of().directories.made_new(answer.lent, answer.lent_room);
        }
        let handle = self.opened(&answer, (attr.ino, attr.generation), FileType::Regular, flags);
        drop(answer);
        self.created(parent).await;
        Ok((attr, handle))
    }

    async fn tmpfile(
        &self,
        _cred: &Cred,
        parent: Ino,
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let mut r = request(Op::Tmpfile, parent.0);
        (r.mode, r.flags) = ((perm as u32).into(), flags.bits().into());
        let answer = self.call(r).await?;
        let attr = answer.attr()?;
        Ok((attr, self.opened(&answer, (attr.ino, attr.generation), FileType::Regular, flags)))
    }

    #[inline]
    fn read_now(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Option<Result<usize>> {
        self.read_here(handle, offset, to).map(Ok)
    }

    async fn read(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Result<usize> {
        self.read_parts(handle, offset, to).await
    }

    async fn write(&self, handle: Handle, offset: u64, from: &[u8]) -> Result<usize> {
        self.write_parts(handle, offset, from).await
    }

    fn appended(&self, handle: Handle) -> Option<u64> {
        self.link.file(handle)?.appended
    }

    async fn write_atomic(&self, handle: Handle, pieces: &[(u64, &[u8])]) -> Result<()> {
        let (places, bytes) = wire::pieces(pieces);
        if bytes.len() > fs::ATOMIC_WRITE_MAX || places.len() > PIECES_MAX {
            return Err(Error::TooLarge);
        }
        self.writes(handle);
        let answer = self.call_with(request(Op::WriteAtomic, handle.0), &places, &bytes).await?;
        self.learn_left(&answer);
        self.link.written(handle, answer.session());
        Ok(())
    }

    async fn flush(&self, handle: Handle, owner: LockOwner) -> Result<()> {
        let mut r = request(Op::Flush, handle.0);
        r.extra = owner.0.into();
        self.call(r).await?;
        self.link.flushed(handle, owner);
        Ok(())
    }

    async fn release(&self, handle: Handle) -> Result<()> {
        let file = self.link.closed(handle).ok_or(Error::BadHandle)?;
        let session = self.now();
        // It may have been lent at some time.
        if may_post(file.flags) {
            self.link.resizes.closed(file.ino);
        }
        let leased = !file.gone && session.leases.has(handle);
        // Who cannot write has no leases.
        if !leased && file.flags.contains(OpenFlags::WRITE) {
            session.leases.closed(session, handle);
        }
        if file.gone {
            return Ok(());
        }
        if file.held {
            self.let_go(&file, 0).await;
            return Ok(());
        }
        if file.locks && self.link.has_records(file.ino) {
            self.others_keep_locks(file.ino).await;
        }
        let request = request(Op::Release, file.remote.0);
        if file.lent != 0 && !file.locks && !leased && session.close_posted(&file, &request) {
            return Ok(());
        }
        // Who waits for a lock that goes with this handle must not be told that it was closed before it is.
        // And what is kept of a file does not hold before the manager has taken what was written without it.
        if !file.locks && !leased && self.tell(file.session, &request) {
            return Ok(());
        }
        let closed = self.close_there(file.session, request).await;
        session.leases.closed(session, handle);
        closed
    }

    async fn fsync(&self, handle: Handle, datasync: bool) -> Result<()> {
        self.link.may_sync(Some(handle))?;
        let (syncing, barriers) = (self.link.begin_sync(handle), self.link.barriers());
        let mut r = request(Op::Fsync, handle.0);
        r.flags = (datasync as u32).into();
        let ordered = self.call(r).await?.value == wire::ORDERED;
        // The manager may have been another one in the end.
        self.link.may_sync(Some(handle))?;
        if ordered {
            self.link.ordered();
        } else {
            syncing.succeeded();
            self.link.made_durable(barriers);
        }
        Ok(())
    }

    async fn barrier(&self, handle: Handle, datasync: bool) -> Result<()> {
        self.link.may_sync(Some(handle))?;
        // Before the manager has it: what it promises must not be forgotten with the answer.
        self.link.ordered();
        let mut r = request(Op::Barrier, handle.0);
        r.flags = (datasync as u32).into();
        self.call(r).await?;
        self.link.may_sync(Some(handle))
    }

    async fn sync(&self) -> Result<()> {
        self.link.may_sync(None)?;
        let barriers = self.link.barriers();
        self.call(request(Op::Sync, 0)).await?;
        self.link.may_sync(None)?;
        self.link.made_durable(barriers);
        Ok(())
    }

    async fn opendir(&self, _cred: &Cred, ino: Ino) -> Result<Handle> {
        let answer = self.call(request(Op::Opendir, ino.0)).await?;
        let inode = (ino, answer.noted as u32);
        Ok(self.opened(&answer, inode, FileType::Directory, OpenFlags::empty()))
    }

    async fn readdir(
        &self,
        handle: Handle,
        mut offset: u64,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        let dir = self.inode(handle);
        loop {
            let noted = self.note();
            let mut r = request(Op::Readdir, handle.0);
            r.offset = offset.into();
            let answer = self.call(r).await?;
            let (bytes, session) = (answer.bytes(), self.now());
            let clock = noted.of(&answer).filter(|_| session.serial == noted.session);
            drop(answer);
            let mut learn = |entry: DirEntry<'_>| {
                if let (Some(dir), Some(clock)) = (dir.filter(|_| entry.attr.nlink > 0), clock) {
                    session.kept.learn(clock, dir, entry.name, &entry.attr);
                }
                sink(entry)
            };
            dir.inspect(|&dir| self.kept().was_read(dir));
            match wire::entries(&bytes, &mut learn)? {
                Some(next) => offset = next,
                None => return Ok(()),
            }
        }
    }

    async fn statfs(&self) -> Result<StatFs> {
        wire::read_statfs(&self.call(request(Op::Statfs, 0)).await?.bytes())
    }

    async fn getxattr(&self, _cred: &Cred, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        // `ls -l` asks for some of every file.
        if let Some(attr) = self.kept().known(ino).filter(|attr| !attr.xattrs) {
            return fs::perm::check_xattr(&self.now().cred, &attr, name, false).and(Err(Error::NoAttribute));
        }
        Ok(self.call_with(request(Op::Getxattr, ino.0), cut(name), b"").await?.bytes())
    }

    async fn listxattr(&self, _cred: &Cred, ino: Ino) -> Result<Vec<Vec<u8>>> {
        if self.kept().known(ino).is_some_and(|attr| !attr.xattrs) {
            return Ok(Vec::new());
        }
        Ok(wire::read_names(&self.call(request(Op::Listxattr, ino.0)).await?.bytes()))
    }

    async fn setxattr(
        &self,
        _cred: &Cred,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        if value.len() > DATA_MAX {
            // Too long for every engine; whatever else is wrong is not looked at.
            return Err(Error::AttributeTooLarge);
        }
        let mut r = request(Op::Setxattr, ino.0);
        r.flags = flags.bits().into();
        self.call_with(r, cut(name), value).await.map(drop)
    }

    async fn removexattr(&self, _cred: &Cred, ino: Ino, name: &[u8]) -> Result<()> {
        self.call_with(request(Op::Removexattr, ino.0), cut(name), b"").await.map(drop)
    }

    async fn fallocate(&self, handle: Handle, what: Fallocate, offset: u64, len: u64) -> Result<()> {
        let mut r = request(Op::Fallocate, handle.0);
        let mode: u32 = match what {
            Fallocate::Allocate { keep_size } => keep_size as u32,
            Fallocate::PunchHole => 2,
            Fallocate::ZeroRange { keep_size } => 3 + keep_size as u32,
        };
        (r.mode, r.offset, r.len) = (mode.into(), offset.into(), len.into());
        let answer = self.call(r).await?;
        self.link.written(handle, answer.session());
        Ok(())
    }

    async fn seek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        let mut r = request(Op::Seek, handle.0);
        (r.offset, r.mode) = (offset.into(), ((what == Seek::Hole) as u32).into());
        Ok(self.call(r).await?.value)
    }

    async fn copy_range(
        &self,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let mut r = request(Op::CopyRange, from.0);
        (r.other, r.offset) = (to.0.into(), from_offset.into());
        (r.extra, r.len) = (to_offset.into(), len.into());
        let answer = self.call(r).await?;
        self.link.written(to, answer.session());
        Ok(answer.value)
    }

    async fn getlk(&self, handle: Handle, owner: LockOwner, lock: RecordLock) -> Result<Option<RecordLock>> {
        self.test_record(handle, owner, lock).await
    }

    async fn setlk(
        &self,
        handle: Handle,
        owner: LockOwner,
        lock: std::result::Result<RecordLock, (u64, u64)>,
        wait: bool,
    ) -> Result<()> {
        self.set_record(handle, owner, lock, wait).await
    }

    async fn flock(&self, handle: Handle, kind: Option<LockKind>, wait: bool) -> Result<()> {
        self.link.change(handle, |file| file.locks = true);
        loop {
            let turn = self.turn(wait);
            let done = self.call(flock_request(handle, kind, turn.waits())).await;
            if turn.asks_again(&done).await? {
                continue;
            }
            let answer = done?;
            self.link.is_locked(handle, kind.is_some());
            if answer.session() == self.now().serial {
                return Ok(());
            }
        }
    }
}
