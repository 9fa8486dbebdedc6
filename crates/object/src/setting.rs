//! Changing attributes: with the next commit where the file has one before it, else by copying the object onto itself within the store.

use crate::attrs::{DIRECTORY_TYPE, Xattrs};
use crate::core::Core;
use crate::error;
use crate::file::File;
use crate::inode::About;
use crate::store::{Condition, Store, StoreError};
use bytes::Bytes;
use fs::*;
use std::sync::Arc;

impl<S: Store> Core<S> {
    /// As [`FileSystem::setattr`].
    pub async fn setattr(self: &Arc<Self>, cred: &Cred, ino: Ino, set: SetAttr) -> Result<Attr> {
        let attr = self.attr_now(ino).await?;
        let writable_handle = match set.handle {
            Some(handle) => {
                let open = self.open_file(handle, OpenFlags::empty())?;
                if set.size.is_some() && !open.flags.contains(OpenFlags::WRITE) {
                    return Err(Error::BadHandle);
                }
                if set.size.is_some() && open.file.ino == ino {
                    open.current()?;
                }
                set.size.is_some() && open.file.ino == ino
            }
            None => false,
        };
        let new = perm::setattr(cred, &attr, &set, writable_handle, Time::now())?;
        if (SetAttr { handle: None, ..set }) == SetAttr::default() {
            return Ok(attr);
        }
        self.writable()?;
        if let Some(size) = set.size {
            self.check_about(ino)?;
            let file = self.take_file(ino)?;
            let writer = perm::Writer { root: true, in_group: true };
            let mut done = self.truncate_now(&file, size, writer).await;
            // A file that somebody writes is committed when he closes it; what nobody writes is so now. A kernel that opens with O_TRUNC opens
            // first and then cuts by name: what is there stays until what replaces it is whole.
            if done.is_ok() && set.handle.is_none() && !self.is_written(ino) {
                done = self.commit(&file).await;
            }
            let put = self.put_file(&file).await;
            done.and(put)?;
        }
        let plain_size = SetAttr { size: None, handle: None, ..set } == SetAttr::default();
        if !plain_size || new.perm != attr.perm {
            self.change_about(
                ino,
                move |about| {
                    about.attrs.perm = new.perm;
                    (about.attrs.uid, about.attrs.gid) = (new.uid, new.gid);
                    if set.mtime.is_some() {
                        about.attrs.mtime = Some(new.mtime);
                    }
                    if set.atime.is_some() {
                        about.attrs.atime = Some(new.atime);
                    }
                    Ok(())
                },
                set.mtime.is_some(),
            )
            .await?;
        }
        self.tree.lock().attr(ino)
    }

    /// Changes what an object says of itself. `mtime`: so its time of change is a chosen one.
    pub async fn change_about(
        self: &Arc<Self>,
        ino: Ino,
        change: impl FnOnce(&mut About) -> Result<()>,
        mtime: bool,
    ) -> Result<()> {
        let files = self.use_files([ino]);
        let done = self.change_alone(files.first(), ino, change, mtime).await;
        self.leave_files(files).await;
        done
    }

    async fn change_alone(
        self: &Arc<Self>,
        file: Option<&Arc<File>>,
        ino: Ino,
        change: impl FnOnce(&mut About) -> Result<()>,
        mtime: bool,
    ) -> Result<()> {
        let _names = self.namespace.read().await;
        let _turn = match file {
            Some(file) => Some(file.turn.write().await),
            None => None,
        };
        let (key, etag, size, linked, mut about) = {
            let tree = self.tree.lock();
            let inode = tree.get(ino)?;
            let about = inode.about.as_deref().ok_or(Error::Stale)?.clone();
            (tree.key(ino)?, inode.etag.clone(), inode.size, inode.linked, about)
        };
        // The time that an object has of its store would not survive a copy.
        if about.attrs.mtime.is_none() && about.attrs.kind != FileType::Directory {
            about.attrs.mtime = Some(self.tree.lock().get(ino)?.modified);
        }
        change(&mut about)?;
        let description = about.description()?;
        let later = match file {
            Some(file) => {
                let mut state = file.state.lock();
                let later = state.is_dirty() || state.gone;
                state.about_changed |= later;
                state.mtime_set |= mtime;
                later
            }
            None => !linked,
        };
        let new_etag = match (later || key.is_empty(), &etag) {
            (true, _) => None,
            (false, Some(etag)) if about.attrs.kind == FileType::Directory && size == 0 => {
                let mut description = description;
                description.content_type = Some(DIRECTORY_TYPE.into());
                let on = Condition::Is(etag.clone());
                let done = match self.check(&key, &on).await {
                    Ok(()) => self.store.put(&key, Bytes::new(), &description, &self.condition(&on)).await,
                    Err(e) => Err(e),
                };
                Some(done)
            }
            (false, Some(etag)) => {
                if let Some(file) = file {
                    file.state.lock().copying = true;
                }
                Some(self.copy_object((&key, etag, size), &key, Some(&description)).await)
            }
            (false, None) => match self.put_marker(&key, &about).await? {
                Some(etag) => Some(Ok(etag)),
                None => Some(Err(StoreError::Precondition)),
            },
        };
        let new_etag = match new_etag.transpose() {
            Ok(etag) => etag,
            Err(e) => {
                if let Some(file) = file {
                    file.state.lock().copying = false;
                }
                // What is known of it may be wrong: it is asked for again.
                if let Ok(inode) = self.tree.lock().get_mut(ino)
                    && inode.checked.is_some()
                {
                    inode.about = None;
                }
                return Err(error::of(&key, e));
            }
        };
        let mut tree = self.tree.lock();
        let inode = tree.get_mut(ino)?;
        inode.about = Some(Box::new(about));
        inode.change(Time::now());
        if let Some(etag) = new_etag {
            if let Some(file) = &inode.file {
                let mut state = file.state.lock();
                (state.base, state.copying) = (Some(etag.clone()), false);
            }
            inode.stored(Some(etag));
        }
        Ok(())
    }

    /// The extended attributes of an inode. Those that no caller may see are not among them.
    pub async fn xattrs(self: &Arc<Self>, ino: Ino) -> Result<(Attr, Xattrs)> {
        let attr = self.attr_now(ino).await?;
        let tree = self.tree.lock();
        let about = tree.get(ino)?.about.as_deref();
        let xattrs = about.and_then(|about| about.attrs.xattrs.as_deref().cloned());
        Ok((attr, xattrs.unwrap_or_default()))
    }

    /// As [`FileSystem::setxattr`].
    pub async fn setxattr(
        self: &Arc<Self>,
        cred: &Cred,
        ino: Ino,
        name: &[u8],
        value: Vec<u8>,
        flags: XattrFlags,
    ) -> Result<()> {
        let (attr, _) = self.xattrs(ino).await?;
        perm::check_xattr(cred, &attr, name, true)?;
        self.writable()?;
        if value.len() > format::limits::XATTR_VALUE_MAX {
            return Err(Error::AttributeTooLarge);
        }
        let change = move |about: &mut About| {
            let xattrs = about.attrs.xattrs.get_or_insert_default();
            let there = xattrs.contains_key(name);
            if flags.contains(XattrFlags::CREATE) && there {
                return Err(Error::Exists);
            }
            if flags.contains(XattrFlags::REPLACE) && !there {
                return Err(Error::NoAttribute);
            }
            xattrs.insert(name.into(), value.into());
            Ok(())
        };
        self.change_about(ino, change, false).await
    }

    /// As [`FileSystem::removexattr`].
    pub async fn removexattr(self: &Arc<Self>, cred: &Cred, ino: Ino, name: &[u8]) -> Result<()> {
        let (attr, _) = self.xattrs(ino).await?;
        perm::check_xattr(cred, &attr, name, true)?;
        self.writable()?;
        let change = move |about: &mut About| {
            let xattrs = about.attrs.xattrs.as_mut().ok_or(Error::NoAttribute)?;
            xattrs.remove(name).map(|_| ()).ok_or(Error::NoAttribute)
        };
        self.change_about(ino, change, false).await
    }
}
