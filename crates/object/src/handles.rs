//! Open files.

use crate::core::Core;
use crate::error;
use crate::file::File;
use crate::inode::About;
use crate::readahead::Window;
use crate::store::Store;
use crate::stream::Stream;
use fs::*;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// An open file.
#[derive(Debug)]
pub struct Open {
    /// The file, shared by all handles of it.
    pub file: Arc<File>,
    /// How it is open.
    pub flags: OpenFlags,
    /// Who opened it, as far as set-id bits are concerned.
    pub writer: perm::Writer,
    /// Which object it is the handle of, see [`crate::file::FileState::replaced`].
    pub replaced: u64,
    /// What was read ahead through this handle.
    pub window: Mutex<Window>,
}

/// What came of a use that is over.
enum Dropped {
    /// It is over. An upload that nobody needs any more.
    Done(Option<Arc<Stream>>),
    /// It is the last, and there are changes to commit before.
    Dirty,
}

impl Open {
    /// `Stale` when somebody else has replaced or removed what was opened.
    pub fn current(&self) -> Result<()> {
        match self.file.state.lock().replaced == self.replaced {
            true => Ok(()),
            false => Err(Error::Stale),
        }
    }
}

impl<S: Store> Core<S> {
    /// A new handle number.
    pub fn next_handle(&self) -> Handle {
        Handle(self.last_handle.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The open file of a handle that is open for `need`. `BadHandle`, `IsDirectory`.
    pub fn open_file(&self, handle: Handle, need: OpenFlags) -> Result<Arc<Open>> {
        match self.opens.lock().get(&handle) {
            Some(open) if open.flags.contains(need) => Ok(open.clone()),
            Some(_) => Err(Error::BadHandle),
            None if self.scans.lock().contains_key(&handle) => Err(Error::IsDirectory),
            None => Err(Error::BadHandle),
        }
    }

    /// The inode of an open file or directory. `BadHandle`.
    pub fn inode_of(&self, handle: Handle) -> Result<Ino> {
        if let Some(open) = self.opens.lock().get(&handle) {
            return Ok(open.file.ino);
        }
        self.scans.lock().get(&handle).map(|scan| scan.dir).ok_or(Error::BadHandle)
    }

    /// A handle has got a lock. Who closed it in between has found none of its, and nobody would ever give this one up. `BadHandle`.
    pub fn is_open_still(&self, ino: Ino, handle: Handle) -> Result<()> {
        self.inode_of(handle).map(drop).inspect_err(|_| self.locks.release_handle(ino, handle))
    }

    /// Takes a handle away, with its locks, and returns what it was open for, if that was a file. `BadHandle`.
    pub fn let_go(&self, handle: Handle) -> Result<Option<Arc<Open>>> {
        if let Some(scan) = self.scans.lock().remove(&handle) {
            self.locks.release_handle(scan.dir, handle);
            return Ok(None);
        }
        let open = self.opens.lock().remove(&handle).ok_or(Error::BadHandle)?;
        self.locks.release_handle(open.file.ino, handle);
        Ok(Some(open))
    }

    /// Whether somebody has a file open for writing.
    pub fn is_written(&self, ino: Ino) -> bool {
        let opens = self.opens.lock();
        opens.values().any(|open| open.file.ino == ino && open.flags.contains(OpenFlags::WRITE))
    }

    /// The file of an inode, for somebody who uses it: [`Core::put_file`] must follow. `Stale`.
    pub fn take_file(&self, ino: Ino) -> Result<Arc<File>> {
        Ok(self.tree.lock().get_mut(ino)?.take_file(ino))
    }

    /// The files of inodes, in the order in which their turns are taken, for somebody who does something to their names or attributes: who opens them meanwhile has the same.
    /// Directories have none, nor what is gone by now. [`Core::leave_files`] must follow, when neither a turn nor the names are held.
    pub fn use_files(&self, inos: impl IntoIterator<Item = Ino>) -> Vec<Arc<File>> {
        let mut inos: Vec<Ino> = inos.into_iter().collect();
        inos.sort_unstable_by_key(|ino| ino.0);
        inos.dedup();
        let mut tree = self.tree.lock();
        let mut take = |ino| {
            let inode = tree.get_mut(ino).ok()?;
            inode.directory.is_none().then(|| inode.take_file(ino))
        };
        inos.into_iter().filter_map(&mut take).collect()
    }

    /// The use of files is over. Who closed one meanwhile was not the last, so his changes are committed now; those of somebody who was torn away are not.
    pub async fn leave_files(self: &Arc<Self>, files: Vec<Arc<File>>) {
        for file in files {
            let abandoned = file.state.lock().abandoned;
            let left = match abandoned {
                true => self.drop_use(&file, true).map(|stream| {
                    if let Dropped::Done(Some(stream)) = stream {
                        stream.abandon(self);
                    }
                }),
                false => self.put_file(&file).await,
            };
            if let Err(e) = left {
                tracing::error!("a file that was closed meanwhile was not made: {e}");
            }
        }
    }

    /// A use of a file is over. With the last one it is committed, if it can be, and what cannot be is dropped.
    pub async fn put_file(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        let mut committed = Ok(());
        loop {
            match self.drop_use(file, committed.is_err())? {
                Dropped::Done(stream) => {
                    if let Some(stream) = stream {
                        stream.abandon(self);
                    }
                    return committed;
                }
                Dropped::Dirty => committed = self.commit(file).await,
            }
        }
    }

    /// As `put_file`, but what was not committed by a close is nobody's: it is dropped with the last use. A commit under way comes to its end. The
    /// unfinished upload is given up in the store, if that takes no longer than until then; `gc` finds it otherwise.
    pub async fn abandon_file(self: &Arc<Self>, file: &Arc<File>, until: Instant) -> Result<()> {
        let turn = file.turn.write().await;
        file.state.lock().abandoned = true;
        let dropped = self.drop_use(file, true)?;
        drop(turn);
        if let Dropped::Done(Some(stream)) = dropped {
            let core = self.clone();
            let aborted = self.runtime.spawn(async move { stream.abort(&core).await });
            let _ = tokio::time::timeout_at(until.into(), aborted).await;
        }
        Ok(())
    }

    /// Counts a use off. With the last one the file is as its object is: what differs is dropped, if that is wanted (`give_up`), else nothing is done.
    fn drop_use(&self, file: &Arc<File>, give_up: bool) -> Result<Dropped> {
        let mut tree = self.tree.lock();
        let inode = tree.get_mut(file.ino)?;
        if inode.opens == 1 && !give_up && file.state.lock().is_dirty() {
            return Ok(Dropped::Dirty);
        }
        inode.opens -= 1;
        if inode.opens > 0 {
            return Ok(Dropped::Done(None));
        }
        inode.file = None;
        let (local, parent, name) = (inode.checked.is_none(), inode.parent, inode.name.clone());
        let (stream, differed) = {
            let mut state = file.state.lock();
            let differed = give_up || state.is_dirty();
            self.writes.give(state.change.bytes());
            state.change = crate::change::Change::none(0);
            state.gone = true;
            (state.stream.take(), differed)
        };
        let linked = tree.get(file.ino).is_ok_and(|inode| inode.linked);
        if local && linked {
            // It never came to be.
            tree.unlink(parent, &name);
        } else if let (true, Ok(inode)) = (linked, tree.get_mut(file.ino))
            && differed
        {
            // What is known of it was not made: the store is to be asked.
            inode.about = None;
        }
        tree.drop_unused(file.ino);
        Ok(Dropped::Done(stream))
    }

    /// Whether a file can be made anew with what its object says of itself: now, and not when what was written is to be kept. `AttributeTooLarge`, `Stale`.
    pub fn check_about(&self, ino: Ino) -> Result<()> {
        self.tree.lock().get(ino)?.about.as_deref().map_or(Ok(()), About::check)
    }

    /// Opens a file that is known to be current.
    pub async fn open(
        self: &Arc<Self>,
        cred: &Cred,
        ino: Ino,
        flags: OpenFlags,
        check: bool,
    ) -> Result<Handle> {
        if !flags.intersects(OpenFlags::READ | OpenFlags::WRITE) {
            return Err(Error::Invalid("a file is opened for reading, writing or both"));
        }
        let write = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE);
        let attr = self.attr_now(ino).await?;
        match attr.kind {
            FileType::Directory if write => return Err(Error::IsDirectory),
            FileType::Regular => {}
            _ => return Err(Error::Invalid("only regular files are opened")),
        }
        if write {
            self.writable()?;
        }
        if check {
            let mut want = Access::empty();
            want.set(Access::READ, flags.contains(OpenFlags::READ));
            want.set(Access::WRITE, write);
            perm::check(cred, &attr, want)?;
        }
        if write {
            self.check_about(ino)?;
        }
        let file = {
            // Who moves a directory waits for those that are open below it for writing, and others wait until they know under which name they write.
            let _names = if write { Some(self.namespace.read().await) } else { None };
            self.take_file(ino)?
        };
        file.state.lock().abandoned = false;
        let writer = perm::Writer::new(cred, &attr);
        if flags.contains(OpenFlags::TRUNCATE)
            && let Err(e) = self.truncate_now(&file, 0, writer).await
        {
            let _ = self.put_file(&file).await;
            return Err(e);
        }
        let handle = self.next_handle();
        let writer = perm::Writer::through_handle(cred, &attr);
        let replaced = file.state.lock().replaced;
        let open = Open { file, flags, writer, replaced, window: Mutex::default() };
        self.opens.lock().insert(handle, Arc::new(open));
        Ok(handle)
    }

    /// Sets the size of a file in use, and what goes with it.
    pub async fn truncate_now(
        self: &Arc<Self>,
        file: &Arc<File>,
        size: u64,
        writer: perm::Writer,
    ) -> Result<()> {
        let _names = self.namespace.read().await;
        let _turn = file.turn.write().await;
        self.truncate_alone(file, size, writer).await
    }

    /// As [`Core::truncate_now`], of a file that is not so large yet.
    pub async fn grow_now(self: &Arc<Self>, file: &Arc<File>, size: u64, writer: perm::Writer) -> Result<()> {
        let _names = self.namespace.read().await;
        let _turn = file.turn.write().await;
        let grows = file.state.lock().change.size() < size;
        if grows { self.truncate_alone(file, size, writer).await } else { Ok(()) }
    }

    /// The caller holds the turn alone, and the names.
    async fn truncate_alone(
        self: &Arc<Self>,
        file: &Arc<File>,
        size: u64,
        writer: perm::Writer,
    ) -> Result<()> {
        self.truncate(file, size).await?;
        let mut tree = self.tree.lock();
        let inode = tree.get_mut(file.ino)?;
        inode.touch(Time::now());
        if let Some(about) = &mut inode.about {
            about.attrs.perm = perm::after_write(writer, about.attrs.perm);
        }
        Ok(())
    }

    /// Bytes of a symlink's object.
    pub async fn target(self: &Arc<Self>, ino: Ino) -> Result<Vec<u8>> {
        let attr = self.attr_now(ino).await?;
        if attr.kind != FileType::Symlink {
            return Err(Error::Invalid("not a symlink"));
        }
        let (key, etag) = {
            let tree = self.tree.lock();
            (tree.key(ino)?, tree.get(ino)?.etag.clone())
        };
        let most = format::limits::PATH_MAX as u64;
        let (bytes, _) =
            self.store.get(&key, 0..most, etag.as_ref()).await.map_err(|e| error::of(&key, e))?;
        if bytes.is_empty() || bytes.len() as u64 >= most || bytes.contains(&0) {
            return Err(Error::Invalid("this object is no target of a symlink"));
        }
        Ok(bytes.to_vec())
    }
}
