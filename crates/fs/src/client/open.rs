//! Opening and making files.

use super::{Client, File, OpenOptions, bytes, fresh, ordinary};
use crate::contract::FileSystem;
use crate::error::{Error, Result};
use crate::path::{Walker, split_last, starts_at_root};
use crate::types::*;
use format::Ino;
use std::borrow::Cow;
use std::path::Path;

impl<F: FileSystem> Client<F> {
    /// Opens a regular file, or a directory for reading.
    ///
    /// `AccessDenied`, `Exists` (`create_new`), `IsDirectory` (writing or making a directory), `SymlinkLoop` (`nofollow`),
    /// `NotDirectory` (`directory`), `NotPermitted` (`noatime` of another's file), `Invalid` (options that contradict each
    /// other), `NotSupported` (device, FIFO, socket), `TooManyOpen`.
    pub async fn open(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<File<F>> {
        options.check()?;
        let path = bytes(&path);
        if options.tmpfile {
            fresh!(self.open_tmpfile(path, options))
        } else if options.create {
            fresh!(self.open_create(path, options))
        } else {
            fresh!(self.open_existing(path, options))
        }
    }

    /// Makes a file or empties an existing one, and opens it for reading and writing. Errors as of [`Client::open`].
    pub async fn create(&self, path: impl AsRef<Path>) -> Result<File<F>> {
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(true);
        self.open(path, options).await
    }

    async fn open_existing(&self, path: &[u8], options: OpenOptions) -> Result<File<F>> {
        let attr = self.resolve(path, !options.nofollow).await?;
        let handle = match attr.kind {
            FileType::Directory if options.flags.contains(OpenFlags::WRITE) => {
                return Err(Error::IsDirectory);
            }
            FileType::Directory => self.fs().opendir(self.cred(), attr.ino).await?,
            _ if options.directory => return Err(Error::NotDirectory),
            FileType::Regular => {
                self.fs().open_exact(self.cred(), (attr.ino, attr.generation), options.flags).await?
            }
            FileType::Symlink => return Err(Error::SymlinkLoop),
            _ => return Err(Error::NotSupported("opening a device, FIFO or socket without a kernel")),
        };
        Ok(self.file(attr.ino, attr.kind, handle, options))
    }

    async fn open_tmpfile(&self, path: &[u8], options: OpenOptions) -> Result<File<F>> {
        let dir = self.resolve(path, !options.nofollow).await?;
        if dir.kind != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        let (perm, flags) = (options.mode & !self.umask, options.flags - OpenFlags::TRUNCATE);
        let (attr, handle) = self.fs().tmpfile(self.cred(), dir.ino, perm, flags).await?;
        Ok(self.file(attr.ino, attr.kind, handle, options))
    }

    async fn open_create(&self, path: &[u8], options: OpenOptions) -> Result<File<F>> {
        let (parent, name, trailing) = self.parent(path).await?;
        match self.create_at(parent, name, trailing, options).await {
            Err(Error::SymlinkLoop) if !options.nofollow => Box::pin(self.create_behind(path, options)).await,
            done => done,
        }
    }

    /// Makes or opens the file where the symlinks at the end of `path` lead.
    async fn create_behind(&self, path: &[u8], options: OpenOptions) -> Result<File<F>> {
        let at = if starts_at_root(path)? { self.root } else { self.cwd };
        let rest = Cow::Borrowed(path);
        let mut walker = Walker { fs: &**self.fs(), cred: self.cred(), root: self.root, at, rest, links: 0 };
        loop {
            walker.descend().await?;
            let (_, name, trailing) = split_last(&walker.rest);
            match self.create_at(walker.at, name, trailing, options).await {
                Err(Error::SymlinkLoop) => {}
                done => return done,
            }
            match walker.lookup(name).await {
                Ok(attr) if attr.kind == FileType::Symlink => walker.follow(attr.ino).await?,
                // Another was faster and the symlink is gone: try again, but not for ever.
                Ok(_) | Err(Error::NotFound) => walker.count_link()?,
                Err(e) => return Err(e),
            }
        }
    }

    async fn create_at(
        &self,
        parent: Ino,
        name: &[u8],
        trailing: bool,
        options: OpenOptions,
    ) -> Result<File<F>> {
        if !ordinary(name) && options.flags.contains(OpenFlags::EXCLUSIVE) {
            return Err(Error::Exists);
        }
        if !ordinary(name) || trailing {
            return Err(Error::IsDirectory);
        }
        let perm = options.mode & !self.umask;
        let (attr, handle) = self.fs().create(self.cred(), parent, name, perm, options.flags).await?;
        Ok(self.file(attr.ino, attr.kind, handle, options))
    }

    fn file(&self, ino: Ino, kind: FileType, handle: Handle, options: OpenOptions) -> File<F> {
        File::new(self.shared.clone(), ino, kind, handle, options.flags)
    }
}
