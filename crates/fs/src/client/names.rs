//! Making, moving and removing names.

use super::{Client, File, bytes, fresh, ordinary};
use crate::contract::FileSystem;
use crate::error::{Error, Result};
use crate::types::*;
use format::Ino;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

impl<F: FileSystem> Client<F> {
    /// Makes a directory with these permission bits, less the umask. `Exists`, `AccessDenied`, `TooManyLinks`.
    pub async fn mkdir(&self, path: impl AsRef<Path>, perm: u16) -> Result<Attr> {
        self.mkdir_bytes(bytes(&path), perm).await
    }

    pub(super) async fn mkdir_bytes(&self, path: &[u8], perm: u16) -> Result<Attr> {
        fresh!(async {
            let (dir, name, _) = self.parent(path).await?;
            if !ordinary(name) {
                return Err(Error::Exists);
            }
            self.fs().mkdir(self.cred(), dir, name, perm & !self.umask).await
        })
    }

    /// Makes a regular file, FIFO, socket or device node; `mode` holds type and permission bits (less the umask), and without
    /// a type asks for a regular file. `Exists`, `AccessDenied`, `NotPermitted` (device nodes, for other than root), `Invalid` (type).
    pub async fn mknod(&self, path: impl AsRef<Path>, mode: u32, rdev: u64) -> Result<Attr> {
        let plain = if mode & libc::S_IFMT == 0 { libc::S_IFREG } else { 0 };
        let mode = (mode | plain) & !(self.umask as u32);
        fresh!(async {
            let (dir, name) = self.new_name(bytes(&path)).await?;
            self.fs().mknod(self.cred(), dir, name, mode, rdev).await
        })
    }

    /// Makes a symlink at `path` that holds `target`, which need not exist.
    /// `Exists`, `AccessDenied`, `NameTooLong` (target above 4095 bytes), `NotFound` (empty target).
    pub async fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<Attr> {
        fresh!(async {
            let (dir, name) = self.new_name(bytes(&path)).await?;
            self.fs().symlink(self.cred(), dir, name, bytes(&target)).await
        })
    }

    /// The target of a symlink. `Invalid` when it is none.
    pub async fn readlink(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let target = fresh!(async {
            let attr = self.resolve(bytes(&path), false).await?;
            self.fs().readlink(self.cred(), attr.ino).await
        })?;
        Ok(OsString::from_vec(target).into())
    }

    /// Gives a file another name. A symlink at the end of `original` gets the name itself.
    /// `Exists`, `AccessDenied`, `NotPermitted` (directories), `TooManyLinks`.
    pub async fn link(&self, original: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<Attr> {
        self.link_bytes(bytes(&original), bytes(&path), false).await
    }

    /// As [`Client::link`], but a symlink at the end of `original` is followed (AT_SYMLINK_FOLLOW).
    pub async fn link_followed(&self, original: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<Attr> {
        self.link_bytes(bytes(&original), bytes(&path), true).await
    }

    async fn link_bytes(&self, original: &[u8], path: &[u8], follow: bool) -> Result<Attr> {
        fresh!(async {
            let attr = self.resolve(original, follow).await?;
            let (dir, name) = self.new_name(path).await?;
            self.fs().link(self.cred(), attr.ino, dir, name).await
        })
    }

    /// Gives an open file a name: the first one, when it was opened with `tmpfile`.
    /// `Exists`, `AccessDenied`, `NotPermitted` (directories), `NotFound` (removed, or not to be linked), `TooManyLinks`.
    pub async fn link_file(&self, file: &File<F>, path: impl AsRef<Path>) -> Result<Attr> {
        fresh!(async {
            let (dir, name) = self.new_name(bytes(&path)).await?;
            self.fs().link(self.cred(), file.ino(), dir, name).await
        })
    }

    /// Removes a name of anything but a directory. `AccessDenied`, `IsDirectory`, `NotPermitted` (sticky directory).
    pub async fn unlink(&self, path: impl AsRef<Path>) -> Result<()> {
        fresh!(async {
            let (dir, name, trailing) = self.parent(bytes(&path)).await?;
            if !ordinary(name) {
                return Err(Error::IsDirectory);
            }
            if trailing {
                let attr = self.fs().lookup(self.cred(), dir, name).await?;
                let is_dir = attr.kind == FileType::Directory;
                return Err(if is_dir { Error::IsDirectory } else { Error::NotDirectory });
            }
            self.fs().unlink(self.cred(), dir, name).await
        })
    }

    /// Removes an empty directory.
    /// `AccessDenied`, `NotEmpty` (and ".."), `Invalid` ("."), `Busy` (the root), `NotPermitted` (sticky directory).
    pub async fn rmdir(&self, path: impl AsRef<Path>) -> Result<()> {
        fresh!(async {
            let (dir, name, _) = self.parent(bytes(&path)).await?;
            match name {
                b"" => Err(Error::Busy("the root directory".into())),
                b"." => Err(Error::Invalid("a directory cannot be removed by the name \".\"")),
                b".." => Err(Error::NotEmpty),
                _ => self.fs().rmdir(self.cred(), dir, name).await,
            }
        })
    }

    /// Moves a name, replacing what the new name led to; symlinks at the ends are not followed.
    /// `AccessDenied`, `Exists` (NOREPLACE), `IsDirectory`, `NotDirectory`, `NotEmpty`, `IntoItself`, `Invalid` (both flags),
    /// `Busy` ("/", ".", ".."), `NotPermitted` (sticky directory).
    pub async fn rename(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        flags: RenameFlags,
    ) -> Result<()> {
        fresh!(async {
            let (from_dir, from_name, from_slash) = self.parent(bytes(&from)).await?;
            let (to_dir, to_name, to_slash) = self.parent(bytes(&to)).await?;
            if !ordinary(from_name) {
                return Err(Error::Busy("\"/\", \".\" and \"..\" cannot be moved".into()));
            }
            if !ordinary(to_name) {
                let exists = flags.contains(RenameFlags::NOREPLACE);
                return Err(if exists { Error::Exists } else { Error::Busy("cannot be replaced".into()) });
            }
            let exchange = flags.contains(RenameFlags::EXCHANGE);
            // A trailing slash promises a directory: what is moved is one, and in an exchange the other is one too.
            if from_slash || (to_slash && !exchange) {
                self.must_be_directory(from_dir, from_name).await?;
            }
            if to_slash && exchange {
                self.must_be_directory(to_dir, to_name).await?;
            }
            self.fs().rename(self.cred(), from_dir, from_name, to_dir, to_name, flags).await
        })
    }

    async fn must_be_directory(&self, dir: Ino, name: &[u8]) -> Result<()> {
        match self.fs().lookup(self.cred(), dir, name).await?.kind {
            FileType::Directory => Ok(()),
            _ => Err(Error::NotDirectory),
        }
    }

    /// Directory and name for something new that is not a directory.
    async fn new_name<'p>(&self, path: &'p [u8]) -> Result<(Ino, &'p [u8])> {
        let (dir, name, trailing) = self.parent(path).await?;
        if !ordinary(name) {
            return Err(Error::Exists);
        }
        if trailing {
            // Only a directory could have this path: the name is taken, or the path leads nowhere.
            self.fs().lookup(self.cred(), dir, name).await?;
            return Err(Error::Exists);
        }
        Ok((dir, name))
    }
}
