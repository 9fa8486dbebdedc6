//! Making and removing names.
//!
//! A new file is known here alone until it is committed. Directories, symlinks and special files are objects at once, made on condition that nothing is there.

use crate::attrs::{Attrs, DIRECTORY_TYPE};
use crate::core::Core;
use crate::error;
use crate::file::File;
use crate::handles::Open;
use crate::inode::{About, Inode};
use crate::names;
use crate::store::{Condition, ETag, Store, StoreError};
use crate::tree::Tree;
use bytes::Bytes;
use fs::*;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;

impl<S: Store> Core<S> {
    /// Checks that the caller may make `name` in a directory where it is not, and returns the attributes that the new inode has.
    async fn may_make(
        self: &Arc<Self>,
        cred: &Cred,
        dir: Ino,
        name: &[u8],
        (kind, perm): (FileType, u16),
    ) -> Result<(String, Attrs)> {
        let attr = self.attr_now(dir).await?;
        if attr.kind != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        perm::check(cred, &attr, Access::EXEC)?;
        match self.resolve(dir, name).await {
            Ok(_) => return Err(Error::Exists),
            Err(Error::NotFound) => {}
            Err(e) => return Err(e),
        }
        if !self.tree.lock().get(dir)?.linked {
            return Err(Error::NotFound);
        }
        self.writable()?;
        perm::check(cred, &attr, Access::WRITE | Access::EXEC)?;
        let name = names::check(name)?.to_string();
        let (uid, gid, perm) = perm::new_inode(cred, &attr, kind, perm);
        let mtime = Some(Time::now());
        Ok((name, Attrs { kind, perm, uid, gid, mtime, atime: None, rdev: 0, xattrs: None }))
    }

    fn inode(&self, parent: Ino, name: &str, about: About) -> Inode {
        let directory = (about.attrs.kind == FileType::Directory).then(Box::default);
        Inode {
            parent,
            name: name.into(),
            about: Some(Box::new(about)),
            etag: None,
            size: 0,
            modified: Time::now(),
            told: None,
            changed: None,
            checked: None,
            directory,
            file: None,
            opens: 0,
            linked: true,
            moving: false,
        }
    }

    /// Puts a new inode into the tree, unless the name is there by now.
    fn add(&self, dir: Ino, name: &str, about: About, etag: Option<ETag>, size: u64) -> Result<Ino> {
        self.add_to(&mut self.tree.lock(), (dir, name), about, etag, size)
    }

    fn add_to(
        &self,
        tree: &mut Tree,
        (dir, name): (Ino, &str),
        about: About,
        etag: Option<ETag>,
        size: u64,
    ) -> Result<Ino> {
        if !tree.get(dir)?.linked {
            // Removed meanwhile.
            return Err(Error::NotFound);
        }
        let directory = tree.directory_mut(dir)?;
        if directory.children.contains_key(name) {
            return Err(Error::Exists);
        }
        directory.version += 1;
        let mut inode = self.inode(dir, name, about);
        if etag.is_some() {
            inode.stored(etag.clone());
        }
        // A directory that was just made has nothing in it.
        if let (Some(directory), true) = (&mut inode.directory, etag.is_some()) {
            directory.complete = Some(Instant::now());
        }
        inode.size = size;
        let ino = tree.add(inode)?;
        tree.get_mut(dir)?.touch(Time::now());
        Ok(ino)
    }

    /// Puts a new file into the tree, in use. While a directory is moved no name in it is made: what is written would go to the old one.
    async fn add_file(self: &Arc<Self>, dir: Ino, name: &str, attrs: Attrs) -> Result<Arc<File>> {
        let _names = self.namespace.read().await;
        let mut tree = self.tree.lock();
        tree.child_key(dir, name, false)?;
        let ino = self.add_to(&mut tree, (dir, name), About::new(attrs), None, 0)?;
        Ok(tree.get_mut(ino)?.take_file(ino))
    }

    /// As [`FileSystem::create`].
    pub async fn create(
        self: &Arc<Self>,
        cred: &Cred,
        dir: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        if !flags.intersects(OpenFlags::READ | OpenFlags::WRITE) {
            return Err(Error::Invalid("a file is opened for reading, writing or both"));
        }
        let made = async {
            let (name, attrs) = self.may_make(cred, dir, name, (FileType::Regular, perm & 0o7777)).await?;
            self.add_file(dir, &name, attrs).await
        };
        let file = match made.await {
            Ok(file) => file,
            Err(Error::Exists) if !flags.contains(OpenFlags::EXCLUSIVE) => {
                let ino = self.resolve(dir, name).await?;
                match self.attr_now(ino).await?.kind {
                    FileType::Directory => return Err(Error::IsDirectory),
                    FileType::Symlink => return Err(Error::SymlinkLoop),
                    _ => {}
                }
                let handle = self.open(cred, ino, flags, true).await?;
                return Ok((self.tree.lock().attr(ino)?, handle));
            }
            Err(e) => return Err(e),
        };
        let attr = self.tree.lock().attr(file.ino)?;
        let writer = perm::Writer::through_handle(cred, &attr);
        let handle = self.next_handle();
        let open = Open { file, flags, writer, replaced: 0, window: Mutex::default() };
        self.opens.lock().insert(handle, Arc::new(open));
        Ok((attr, handle))
    }

    /// As [`FileSystem::mkdir`].
    pub async fn mkdir(self: &Arc<Self>, cred: &Cred, dir: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        let (name, attrs) = self.may_make(cred, dir, name, (FileType::Directory, perm & 0o1777)).await?;
        let _names = self.namespace.read().await;
        let key = self.tree.lock().child_key(dir, &name, true)?;
        let about = About::new(attrs);
        let etag = self.put_marker(&key, &about).await?.ok_or(Error::Exists)?;
        self.add_made(&key, (dir, &name), about, etag, 0).await
    }

    /// Puts what was made in the store into the tree. If the name was given to something else here meanwhile it is removed again.
    async fn add_made(
        self: &Arc<Self>,
        key: &str,
        (dir, name): (Ino, &str),
        about: About,
        etag: ETag,
        size: u64,
    ) -> Result<Attr> {
        match self.add(dir, name, about, Some(etag.clone()), size) {
            Ok(ino) => self.tree.lock().attr(ino),
            Err(e) => {
                if let Err(e) = self.delete_if(key, &etag).await {
                    tracing::warn!("{key}: made, and not removed again: {e}");
                }
                Err(e)
            }
        }
    }

    /// Makes the marker of a directory that has none; `None` if there is one.
    pub async fn put_marker(&self, key: &str, about: &About) -> Result<Option<ETag>> {
        let mut description = about.description()?;
        description.content_type = Some(DIRECTORY_TYPE.into());
        let on = Condition::Absent;
        let done = match self.check(key, &on).await {
            Ok(()) => self.store.put(key, Bytes::new(), &description, &self.condition(&on)).await,
            Err(e) => Err(e),
        };
        match done {
            Ok(etag) => Ok(Some(etag)),
            Err(StoreError::Precondition) => Ok(None),
            Err(e) => Err(error::of(key, e)),
        }
    }

    /// As [`FileSystem::symlink`].
    pub async fn symlink(
        self: &Arc<Self>,
        cred: &Cred,
        dir: Ino,
        name: &[u8],
        target: Vec<u8>,
    ) -> Result<Attr> {
        match target.len() {
            0 => return Err(Error::NotFound),
            format::limits::PATH_MAX.. => return Err(Error::NameTooLong),
            _ => {}
        }
        let (name, attrs) = self.may_make(cred, dir, name, (FileType::Symlink, 0o777)).await?;
        self.make_object(dir, &name, attrs, target.into()).await
    }

    /// Makes a FIFO, a socket or a device, as [`FileSystem::mknod`] does.
    pub async fn special(
        self: &Arc<Self>,
        cred: &Cred,
        dir: Ino,
        name: &[u8],
        what: (FileType, u16),
        rdev: u64,
    ) -> Result<Attr> {
        let is_device = matches!(what.0, FileType::CharDevice | FileType::BlockDevice);
        if is_device && !cred.privileged() {
            return Err(Error::NotPermitted);
        }
        let (name, attrs) = self.may_make(cred, dir, name, what).await?;
        let rdev = if is_device { rdev } else { 0 };
        self.make_object(dir, &name, Attrs { rdev, ..attrs }, Bytes::new()).await
    }

    /// Makes an object that is no regular file, at once.
    async fn make_object(self: &Arc<Self>, dir: Ino, name: &str, attrs: Attrs, body: Bytes) -> Result<Attr> {
        let _names = self.namespace.read().await;
        let key = self.tree.lock().child_key(dir, name, false)?;
        let about = About::new(attrs);
        let (on, size) = (Condition::Absent, body.len() as u64);
        let description = about.description()?;
        let done = match self.check(&key, &on).await {
            Ok(()) => self.store.put(&key, body, &description, &self.condition(&on)).await,
            Err(e) => Err(e),
        };
        let etag = match done {
            Err(StoreError::Precondition) => return Err(Error::Exists),
            done => done.map_err(|e| error::of(&key, e))?,
        };
        self.add_made(&key, (dir, name), about, etag, size).await
    }

    /// Checks that the caller may remove a name, and returns what it leads to.
    async fn may_remove(self: &Arc<Self>, cred: &Cred, dir: Ino, name: &[u8]) -> Result<Attr> {
        let attr = self.attr_now(dir).await?;
        if attr.kind != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        perm::check(cred, &attr, Access::EXEC)?;
        let ino = self.resolve(dir, name).await?;
        let victim = self.attr_now(ino).await?;
        self.writable()?;
        perm::check_delete(cred, &attr, &victim)?;
        Ok(victim)
    }

    /// As [`FileSystem::unlink`]. What was not committed of an open file is nobody's any more, and what stands in the object cannot be read any
    /// more.
    pub async fn unlink(self: &Arc<Self>, cred: &Cred, dir: Ino, name: &[u8]) -> Result<()> {
        if matches!(name, b"." | b"..") {
            return Err(Error::IsDirectory);
        }
        loop {
            let victim = self.may_remove(cred, dir, name).await?;
            if victim.kind == FileType::Directory {
                return Err(Error::IsDirectory);
            }
            let files = self.use_files([victim.ino]);
            let done = self.unlink_file(&files, (dir, names::check(name)?), victim.ino).await;
            self.leave_files(files).await;
            if done? {
                return Ok(());
            }
        }
    }

    /// False: the name leads elsewhere by now.
    async fn unlink_file(
        self: &Arc<Self>,
        files: &[Arc<File>],
        (dir, name): (Ino, &str),
        victim: Ino,
    ) -> Result<bool> {
        let _names = self.namespace.read().await;
        let _turn = match files.first() {
            Some(file) => Some(file.turn.write().await),
            None => None,
        };
        let (key, local) = {
            let tree = self.tree.lock();
            if tree.child(dir, name) != Some(victim) {
                return Ok(false);
            }
            let inode = tree.get(victim)?;
            let heard = inode.file.as_ref().is_none_or(|file| file.state.lock().tried.is_none());
            (tree.key(victim)?, inode.checked.is_none() && heard)
        };
        if !local {
            let done = self.store.delete(&key, &Condition::Always).await;
            done.map_err(|e| error::of(&key, e))?;
        }
        self.removed(dir, name, local).await?;
        Ok(true)
    }

    /// A name is gone from the store (`local`: it never was there): it goes from the tree too.
    async fn removed(self: &Arc<Self>, dir: Ino, name: &str, local: bool) -> Result<()> {
        {
            let mut tree = self.tree.lock();
            let directory = tree.directory_mut(dir)?;
            directory.version += 1;
            if let Some(&ino) = directory.children.get(name) {
                if tree.get(ino)?.directory.is_some() && tree.is_changed(ino) {
                    // Somebody made a file in it meanwhile: it is there as long as that is.
                    tree.get_mut(ino)?.etag = None;
                    return Err(Error::NotEmpty);
                }
                if let Some(file) = &tree.get(ino)?.file {
                    let stream = file.state.lock().stream.take();
                    if let Some(stream) = stream {
                        stream.abandon(self);
                    }
                }
            }
            tree.unlink(dir, name);
            tree.note_absent(dir, name);
            tree.get_mut(dir)?.touch(Time::now());
        }
        // The name is gone, whatever becomes of its directory.
        if !local && let Err(e) = self.keep(dir).await {
            tracing::warn!("an empty directory may be gone: {e}");
        }
        Ok(())
    }

    /// As [`FileSystem::rmdir`].
    pub async fn rmdir(self: &Arc<Self>, cred: &Cred, dir: Ino, name: &[u8]) -> Result<()> {
        match name {
            b"." => return Err(Error::Invalid("'.' cannot be removed")),
            b".." => return Err(Error::NotEmpty),
            _ => {}
        }
        loop {
            let victim = self.may_remove(cred, dir, name).await?;
            if victim.kind != FileType::Directory {
                return Err(Error::NotDirectory);
            }
            if self.rmdir_as_found((dir, names::check(name)?), victim.ino).await? {
                return Ok(());
            }
        }
    }

    /// False: the name leads elsewhere by now.
    async fn rmdir_as_found(self: &Arc<Self>, (dir, name): (Ino, &str), victim: Ino) -> Result<bool> {
        let _names = self.namespace.read().await;
        let key = {
            let tree = self.tree.lock();
            if tree.child(dir, name) != Some(victim) {
                return Ok(false);
            }
            let children = tree.directory(victim)?.children.values();
            if children.into_iter().any(|&ino| tree.get(ino).is_ok_and(|i| i.checked.is_none())) {
                return Err(Error::NotEmpty);
            }
            tree.key(victim)?
        };
        if self.has_entries(&key).await? {
            return Err(Error::NotEmpty);
        }
        let done = self.store.delete(&key, &Condition::Always).await;
        done.map_err(|e| error::of(&key, e))?;
        self.removed(dir, name, false).await?;
        Ok(true)
    }
}
