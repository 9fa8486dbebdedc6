//! Attributes by path: stat and what changes what it shows, extended attributes, the volume.

use super::{Client, bytes, fresh};
use crate::contract::FileSystem;
use crate::error::{Error, Result};
use crate::types::*;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

impl<F: FileSystem> Client<F> {
    /// Attributes of what the path leads to. Costs one engine call for a plain path.
    pub async fn stat(&self, path: impl AsRef<Path>) -> Result<Attr> {
        if let Some(done) = self.stat_now(bytes(&path), true) {
            return done;
        }
        fresh!(self.resolve(bytes(&path), true))
    }

    /// As [`Client::stat`], but a symlink at the end of the path is not followed.
    pub async fn lstat(&self, path: impl AsRef<Path>) -> Result<Attr> {
        if let Some(done) = self.stat_now(bytes(&path), false) {
            return done;
        }
        fresh!(self.resolve(bytes(&path), false))
    }

    /// The attributes if they can be had at once: an async call, however short, costs as much again.
    #[inline]
    pub(super) fn stat_now(&self, path: &[u8], follow: bool) -> Option<Result<Attr>> {
        crate::path::resolve_now(&**self.fs(), self.cred(), self.cwd, self.root, path, follow)
    }

    /// As [`Client::stat`], under the name that `std::fs` has for it.
    pub async fn metadata(&self, path: impl AsRef<Path>) -> Result<Attr> {
        self.stat(path).await
    }

    /// Whether the path leads to something. A dangling symlink does not. Errors other than `NotFound` and `NotDirectory` are
    /// returned: then nobody knows.
    pub async fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.stat(path).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound | Error::NotDirectory) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Checks whether this client may do all of `mask`; an empty mask asks for existence only. `AccessDenied`, `ReadOnly`.
    pub async fn access(&self, path: impl AsRef<Path>, mask: Access) -> Result<()> {
        fresh!(async {
            let attr = self.resolve(bytes(&path), true).await?;
            self.fs().access(self.cred(), attr.ino, mask).await
        })
    }

    /// Sets permission, set-id and sticky bits. `NotPermitted` (not the owner).
    pub async fn chmod(&self, path: impl AsRef<Path>, perm: u16) -> Result<Attr> {
        self.setattr(bytes(&path), true, SetAttr { perm: Some(perm), ..SetAttr::default() }).await
    }

    /// Sets owner and group; `None` leaves one alone. Clears set-id bits of programs. `NotPermitted` (only root gives files
    /// away; an owner chooses among the own groups).
    pub async fn chown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<Attr> {
        self.setattr(bytes(&path), true, SetAttr { uid, gid, ..SetAttr::default() }).await
    }

    /// As [`Client::chown`], but a symlink at the end of the path is not followed.
    pub async fn lchown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<Attr> {
        self.setattr(bytes(&path), false, SetAttr { uid, gid, ..SetAttr::default() }).await
    }

    /// Sets access and modification time; `None` leaves one alone.
    /// `AccessDenied` (both to now, without write permission), `NotPermitted` (else, not the owner), `Invalid` (nanoseconds).
    pub async fn utimens(
        &self,
        path: impl AsRef<Path>,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<Attr> {
        self.setattr(bytes(&path), true, SetAttr { atime, mtime, ..SetAttr::default() }).await
    }

    /// As [`Client::utimens`], but a symlink at the end of the path is not followed.
    pub async fn lutimens(
        &self,
        path: impl AsRef<Path>,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<Attr> {
        self.setattr(bytes(&path), false, SetAttr { atime, mtime, ..SetAttr::default() }).await
    }

    /// Cuts a file off, or extends it with a hole. `AccessDenied`, `IsDirectory`, `Invalid` (not a regular file), `TooLarge`.
    pub async fn truncate(&self, path: impl AsRef<Path>, size: u64) -> Result<Attr> {
        self.setattr(bytes(&path), true, SetAttr { size: Some(size), ..SetAttr::default() }).await
    }

    async fn setattr(&self, path: &[u8], follow: bool, set: SetAttr) -> Result<Attr> {
        fresh!(async {
            let attr = self.resolve(path, follow).await?;
            self.fs().setattr(self.cred(), attr.ino, set).await
        })
    }

    /// Value of an extended attribute. `NoAttribute`, `AccessDenied`, `NotSupported` (namespace).
    pub async fn get_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Vec<u8>> {
        self.get_xattr_bytes(bytes(&path), name.as_ref().as_bytes(), true).await
    }

    /// As [`Client::get_xattr`], but a symlink at the end of the path is not followed.
    pub async fn lget_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Vec<u8>> {
        self.get_xattr_bytes(bytes(&path), name.as_ref().as_bytes(), false).await
    }

    async fn get_xattr_bytes(&self, path: &[u8], name: &[u8], follow: bool) -> Result<Vec<u8>> {
        fresh!(async {
            let attr = self.resolve(path, follow).await?;
            self.fs().getxattr(self.cred(), attr.ino, name).await
        })
    }

    /// Names of the extended attributes.
    pub async fn list_xattr(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        self.list_xattr_bytes(bytes(&path), true).await
    }

    /// As [`Client::list_xattr`], but a symlink at the end of the path is not followed.
    pub async fn llist_xattr(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        self.list_xattr_bytes(bytes(&path), false).await
    }

    async fn list_xattr_bytes(&self, path: &[u8], follow: bool) -> Result<Vec<OsString>> {
        let names = fresh!(async {
            let attr = self.resolve(path, follow).await?;
            self.fs().listxattr(self.cred(), attr.ino).await
        })?;
        Ok(names.into_iter().map(OsString::from_vec).collect())
    }

    /// Sets an extended attribute. `AccessDenied`, `NotPermitted`, `Exists` (CREATE), `NoAttribute` (REPLACE),
    /// `AttributeTooLarge`, `BufferTooSmall` (name above 255 bytes), `NotSupported` (namespace).
    pub async fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.set_xattr_bytes(bytes(&path), name.as_ref().as_bytes(), value, flags, true).await
    }

    /// As [`Client::set_xattr`], but a symlink at the end of the path is not followed.
    pub async fn lset_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.set_xattr_bytes(bytes(&path), name.as_ref().as_bytes(), value, flags, false).await
    }

    async fn set_xattr_bytes(
        &self,
        path: &[u8],
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
        follow: bool,
    ) -> Result<()> {
        fresh!(async {
            let attr = self.resolve(path, follow).await?;
            self.fs().setxattr(self.cred(), attr.ino, name, value, flags).await
        })
    }

    /// Removes an extended attribute. `NoAttribute`, `AccessDenied`, `NotPermitted`, `NotSupported` (namespace).
    pub async fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        self.remove_xattr_bytes(bytes(&path), name.as_ref().as_bytes(), true).await
    }

    /// As [`Client::remove_xattr`], but a symlink at the end of the path is not followed.
    pub async fn lremove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        self.remove_xattr_bytes(bytes(&path), name.as_ref().as_bytes(), false).await
    }

    async fn remove_xattr_bytes(&self, path: &[u8], name: &[u8], follow: bool) -> Result<()> {
        fresh!(async {
            let attr = self.resolve(path, follow).await?;
            self.fs().removexattr(self.cred(), attr.ino, name).await
        })
    }

    /// Space and inodes of the volume.
    pub async fn statfs(&self) -> Result<StatFs> {
        self.fs().statfs().await
    }

    /// Makes the whole volume durable.
    pub async fn sync(&self) -> Result<()> {
        self.fs().sync().await
    }
}
