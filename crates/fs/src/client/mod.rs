//! The library's file API over any [`FileSystem`]: paths, open files, directories, as `std::fs` has them and completely.
//!
//! A [`Client`] is what a process is to a kernel: it has credentials, a root and a current directory, a umask, and owns record
//! locks. Its methods are async; [`Client::blocking`] gives the same calls for a thread that may sleep.
//!
//! Common to all calls with a path:
//! - `NotFound` (no such name, or an empty path), `NotDirectory` (on the way, or before a trailing slash), `AccessDenied` (no
//!   search permission on the way), `NameTooLong`, `SymlinkLoop`, `Invalid` (NUL in the path). Each call names only what else
//!   can happen, beside what [`crate::contract`] says of all calls (`ReadOnly`, `NoSpace`, `Media`, `Corrupt`, ...).
//! - An inode that goes away between the walk and the call makes the call start again, so that nobody sees `Stale`: the call
//!   fails with `NotFound` when this happens over and over, or when the current directory was removed.
//!
//! A plain path costs one engine call for the walk and one for what is done at its end; stat is done with the walk. Nothing
//! is allocated on the way, except where symlinks or ".." have to be followed.
//!
//! Tested in `tests/client.rs`.

mod attrs;
mod blocking;
mod dir;
mod file;
mod fixed;
mod names;
mod open;
mod options;
mod tree;

pub use blocking::{Blocking, BlockingFile, BlockingReadDir};
pub use dir::{Entry, ReadDir};
pub use file::{File, SeekTo};
pub use fixed::{Buffer, Buffers};
pub use options::OpenOptions;

use crate::contract::FileSystem;
use crate::cred::Cred;
use crate::error::{Error, Result};
use crate::path;
use crate::types::*;
use format::Ino;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How often a call is made again: others may replace a name about as fast as it is looked up.
const TRIES: u32 = 1000;

/// Does a call again when an inode went away under it; see the module documentation.
macro_rules! fresh {
    ($call:expr) => {{
        let mut tries = 0;
        loop {
            match $call.await {
                Err($crate::error::Error::Stale) if tries < $crate::client::TRIES => tries += 1,
                Err($crate::error::Error::Stale) => break Err($crate::error::Error::NotFound),
                done => break done,
            }
        }
    }};
}
pub(crate) use fresh;

/// What a client and its open files share.
#[derive(Debug)]
struct Shared<F> {
    fs: Arc<F>,
    cred: Cred,
    owner: LockOwner,
    /// Whether a record lock was ever asked for, so that closing a file must release the owner's locks.
    locked: AtomicBool,
}

/// A user of a file system. Clones share credentials and record locks, and have their own current directory and umask.
#[derive(Debug)]
pub struct Client<F> {
    shared: Arc<Shared<F>>,
    root: Ino,
    cwd: Ino,
    umask: u16,
}

impl<F> Clone for Client<F> {
    fn clone(&self) -> Self {
        Client { shared: self.shared.clone(), ..*self }
    }
}

impl<F: FileSystem> Client<F> {
    /// A client that stands in the root directory with umask 022.
    pub fn new(fs: Arc<F>, cred: Cred) -> Client<F> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let owner = LockOwner((std::process::id() as u64) << 32 | (number & 0xffff_ffff));
        let shared = Arc::new(Shared { fs, cred, owner, locked: AtomicBool::new(false) });
        Client { shared, root: Ino::ROOT, cwd: Ino::ROOT, umask: 0o022 }
    }

    /// The file system.
    pub fn fs(&self) -> &Arc<F> {
        &self.shared.fs
    }

    /// In whose name calls are made.
    pub fn cred(&self) -> &Cred {
        &self.shared.cred
    }

    /// The owner of record locks taken through files of this client and its clones.
    pub fn lock_owner(&self) -> LockOwner {
        self.shared.owner
    }

    /// The permission bits that new files do not get.
    pub fn umask(&self) -> u16 {
        self.umask
    }

    /// Sets the umask and returns the former one.
    pub fn set_umask(&mut self, umask: u16) -> u16 {
        std::mem::replace(&mut self.umask, umask & 0o777)
    }

    /// The current directory, at which relative paths begin.
    pub fn cwd(&self) -> Ino {
        self.cwd
    }

    /// Goes to another directory. `NotDirectory`, `AccessDenied` (no search permission).
    pub async fn change_dir(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.cwd = self.enterable(bytes(&path)).await?;
        Ok(())
    }

    /// Makes a directory the root of all paths and goes there. No path leads out of it, ".." included.
    /// `NotDirectory`, `AccessDenied` (no search permission).
    pub async fn change_root(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let ino = self.enterable(bytes(&path)).await?;
        (self.root, self.cwd) = (ino, ino);
        Ok(())
    }

    /// A client whose relative paths begin at an open directory, as those of openat(2) and its kin do. The directory need not
    /// stay open.
    pub fn at(&self, dir: &File<F>) -> Client<F> {
        Client { cwd: dir.ino(), ..self.clone() }
    }

    /// The same calls for a thread that may sleep.
    pub fn blocking(&self) -> Blocking<F> {
        Blocking::from(self.clone())
    }

    async fn enterable(&self, path: &[u8]) -> Result<Ino> {
        fresh!(async {
            let attr = self.resolve(path, true).await?;
            if attr.kind != FileType::Directory {
                return Err(Error::NotDirectory);
            }
            self.shared.fs.access(self.cred(), attr.ino, Access::EXEC).await?;
            Ok(attr.ino)
        })
    }

    async fn resolve(&self, path: &[u8], follow: bool) -> Result<Attr> {
        path::resolve(&*self.shared.fs, self.cred(), self.cwd, self.root, path, follow).await
    }

    async fn parent<'p>(&self, path: &'p [u8]) -> Result<(Ino, &'p [u8], bool)> {
        path::resolve_parent(&*self.shared.fs, self.cred(), self.cwd, self.root, path).await
    }
}

/// The bytes of a path.
fn bytes(path: &impl AsRef<Path>) -> &[u8] {
    path.as_ref().as_os_str().as_bytes()
}

/// Whether a last name is one that can be made or removed: not "/", "." or "..".
fn ordinary(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
}
