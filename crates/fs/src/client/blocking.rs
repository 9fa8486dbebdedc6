//! The file API for threads that may sleep: the same calls under the same names, each run to its end with
//! [`FileSystem::block_on`], which costs a few nanoseconds and no allocation. Errors are those of the async calls.

use super::{Buffer, Client, Entry, File, OpenOptions, ReadDir, SeekTo, bytes};
use crate::cache::Pages;
use crate::contract::FileSystem;
use crate::error::Result;
use crate::types::*;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

/// Twins of async methods of the wrapped type (field `$inner`); `$wrap` turns a result into its blocking kind.
macro_rules! twins {
    ($inner:ident of $of:literal: $(
        fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;
    )*) => {
        $(
            #[doc = concat!("Blocking twin of [`", $of, "::", stringify!($name), "`].")]
            #[inline]
            pub fn $name(&self, $($arg: $ty),*) -> Result<$ret> {
                self.$inner.fs().block_on(self.$inner.$name($($arg),*)).map(Into::into)
            }
        )*
    };
    (mut $inner:ident of $of:literal: $(
        fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;
    )*) => {
        $(
            #[doc = concat!("Blocking twin of [`", $of, "::", stringify!($name), "`].")]
            #[inline]
            pub fn $name(&mut self, $($arg: $ty),*) -> Result<$ret> {
                let fs = self.$inner.fs().clone();
                fs.block_on(self.$inner.$name($($arg),*)).map(Into::into)
            }
        )*
    };
}

/// A [`Client`] whose calls block. What does not wait (the umask, the credentials) is reached through it.
#[derive(Debug)]
pub struct Blocking<F> {
    client: Client<F>,
}

impl<F> Clone for Blocking<F> {
    fn clone(&self) -> Self {
        Blocking { client: self.client.clone() }
    }
}

impl<F> From<Client<F>> for Blocking<F> {
    fn from(client: Client<F>) -> Self {
        Blocking { client }
    }
}

impl<F: FileSystem> Blocking<F> {
    /// The client whose calls are async.
    pub fn client(&self) -> &Client<F> {
        &self.client
    }

    /// The client whose calls are async, for changes.
    pub fn client_mut(&mut self) -> &mut Client<F> {
        &mut self.client
    }

    /// A blocking client whose relative paths begin at an open directory.
    pub fn at(&self, dir: &File<F>) -> Blocking<F> {
        self.client.at(dir).into()
    }

    twins! { mut client of "Client":
        fn change_dir(path: impl AsRef<Path>) -> ();
        fn change_root(path: impl AsRef<Path>) -> ();
    }

    /// Blocking twin of [`Client::stat`].
    #[inline]
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Attr> {
        match self.client.stat_now(bytes(&path), true) {
            Some(done) => done,
            None => self.client.fs().block_on(self.client.stat(path)),
        }
    }

    /// Blocking twin of [`Client::lstat`].
    #[inline]
    pub fn lstat(&self, path: impl AsRef<Path>) -> Result<Attr> {
        match self.client.stat_now(bytes(&path), false) {
            Some(done) => done,
            None => self.client.fs().block_on(self.client.lstat(path)),
        }
    }

    twins! { client of "Client":
        fn open(path: impl AsRef<Path>, options: OpenOptions) -> BlockingFile<F>;
        fn create(path: impl AsRef<Path>) -> BlockingFile<F>;
        fn read_dir(path: impl AsRef<Path>) -> BlockingReadDir<F>;
        fn metadata(path: impl AsRef<Path>) -> Attr;
        fn exists(path: impl AsRef<Path>) -> bool;
        fn access(path: impl AsRef<Path>, mask: Access) -> ();
        fn chmod(path: impl AsRef<Path>, perm: u16) -> Attr;
        fn chown(path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Attr;
        fn lchown(path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Attr;
        fn utimens(path: impl AsRef<Path>, atime: Option<SetTime>, mtime: Option<SetTime>) -> Attr;
        fn lutimens(path: impl AsRef<Path>, atime: Option<SetTime>, mtime: Option<SetTime>) -> Attr;
        fn truncate(path: impl AsRef<Path>, size: u64) -> Attr;
        fn get_xattr(path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Vec<u8>;
        fn lget_xattr(path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Vec<u8>;
        fn list_xattr(path: impl AsRef<Path>) -> Vec<OsString>;
        fn llist_xattr(path: impl AsRef<Path>) -> Vec<OsString>;
        fn set_xattr(path: impl AsRef<Path>, name: impl AsRef<OsStr>, value: &[u8], flags: XattrFlags) -> ();
        fn lset_xattr(path: impl AsRef<Path>, name: impl AsRef<OsStr>, value: &[u8], flags: XattrFlags) -> ();
        fn remove_xattr(path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> ();
        fn lremove_xattr(path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> ();
        fn statfs() -> StatFs;
        fn sync() -> ();
        fn mkdir(path: impl AsRef<Path>, perm: u16) -> Attr;
        fn mknod(path: impl AsRef<Path>, mode: u32, rdev: u64) -> Attr;
        fn symlink(target: impl AsRef<Path>, path: impl AsRef<Path>) -> Attr;
        fn readlink(path: impl AsRef<Path>) -> PathBuf;
        fn link(original: impl AsRef<Path>, path: impl AsRef<Path>) -> Attr;
        fn link_followed(original: impl AsRef<Path>, path: impl AsRef<Path>) -> Attr;
        fn link_file(file: &File<F>, path: impl AsRef<Path>) -> Attr;
        fn unlink(path: impl AsRef<Path>) -> ();
        fn rmdir(path: impl AsRef<Path>) -> ();
        fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>, flags: RenameFlags) -> ();
        fn read(path: impl AsRef<Path>) -> Vec<u8>;
        fn write(path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> ();
        fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> u64;
        fn create_dir_all(path: impl AsRef<Path>) -> ();
        fn remove_dir_all(path: impl AsRef<Path>) -> ();
    }
}

/// A [`File`] whose calls block. It reads, writes and seeks as `std::io` wants it; the async file is reached through it
/// (`&*file`).
#[derive(Debug)]
pub struct BlockingFile<F: FileSystem> {
    file: File<F>,
}

impl<F: FileSystem> From<File<F>> for BlockingFile<F> {
    fn from(file: File<F>) -> Self {
        BlockingFile { file }
    }
}

impl<F: FileSystem> From<BlockingFile<F>> for File<F> {
    fn from(file: BlockingFile<F>) -> Self {
        file.file
    }
}

impl<F: FileSystem> Deref for BlockingFile<F> {
    type Target = File<F>;
    fn deref(&self) -> &File<F> {
        &self.file
    }
}

impl<F: FileSystem> DerefMut for BlockingFile<F> {
    fn deref_mut(&mut self) -> &mut File<F> {
        &mut self.file
    }
}

impl<F: FileSystem> BlockingFile<F> {
    /// Blocking twin of [`File::read_at`].
    #[inline]
    pub fn read_at(&self, to: &mut [u8], offset: u64) -> Result<usize> {
        match self.file.fs().read_now(self.file.handle(), offset, to) {
            Some(done) => done,
            None => self.file.fs().block_on(self.file.read_at(to, offset)),
        }
    }

    twins! { file of "File":
        fn write_at(from: &[u8], offset: u64) -> usize;
        fn write_all_at(from: &[u8], offset: u64) -> ();
        fn write_atomic_at(pieces: &[(u64, &[u8])]) -> ();
        fn append(from: &[u8]) -> usize;
        fn metadata() -> Attr;
        fn set_len(size: u64) -> ();
        fn chmod(perm: u16) -> Attr;
        fn chown(uid: Option<u32>, gid: Option<u32>) -> Attr;
        fn utimens(atime: Option<SetTime>, mtime: Option<SetTime>) -> Attr;
        fn fallocate(what: Fallocate, offset: u64, len: u64) -> ();
        fn read_pages_at(len: usize, offset: u64) -> Pages;
        fn fsync() -> ();
        fn fdatasync() -> ();
        fn fbarrier() -> ();
        fn fdatabarrier() -> ();
        fn copy_range(offset: u64, to: &File<F>, to_offset: u64, len: u64) -> u64;
        fn lock() -> ();
        fn lock_shared() -> ();
        fn try_lock() -> ();
        fn try_lock_shared() -> ();
        fn unlock() -> ();
        fn lock_range(kind: LockKind, start: u64, len: u64, wait: bool) -> ();
        fn unlock_range(start: u64, len: u64) -> ();
        fn test_range(kind: LockKind, start: u64, len: u64) -> Option<RecordLock>;
    }

    twins! { mut file of "File":
        fn position() -> u64;
        fn read(to: &mut [u8]) -> usize;
        fn read_to_end(to: &mut Vec<u8>) -> usize;
        fn write(from: &[u8]) -> usize;
        fn seek(to: impl Into<SeekTo>) -> u64;
    }

    /// Blocking twin of [`File::read_fixed_at`].
    pub fn read_fixed_at(&self, buffer: Buffer<F>, offset: u64) -> (Buffer<F>, Result<usize>) {
        self.file.fs().block_on(self.file.read_fixed_at(buffer, offset))
    }

    /// Blocking twin of [`File::write_fixed_at`].
    pub fn write_fixed_at(&self, buffer: Buffer<F>, offset: u64) -> (Buffer<F>, Result<usize>) {
        self.file.fs().block_on(self.file.write_fixed_at(buffer, offset))
    }

    /// Blocking twin of [`File::close`].
    pub fn close(self) -> Result<()> {
        let fs = self.file.fs().clone();
        fs.block_on(self.file.close())
    }
}

impl<F: FileSystem> io::Read for BlockingFile<F> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let fs = self.file.fs().clone();
        Ok(fs.block_on(self.file.read(to))?)
    }
    fn read_to_end(&mut self, to: &mut Vec<u8>) -> io::Result<usize> {
        let fs = self.file.fs().clone();
        Ok(fs.block_on(self.file.read_to_end(to))?)
    }
}

impl<F: FileSystem> io::Write for BlockingFile<F> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let fs = self.file.fs().clone();
        Ok(fs.block_on(self.file.write(from))?)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<F: FileSystem> io::Seek for BlockingFile<F> {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        let fs = self.file.fs().clone();
        Ok(fs.block_on(self.file.seek(to))?)
    }
}

/// A [`ReadDir`] as an iterator that blocks.
#[derive(Debug)]
pub struct BlockingReadDir<F: FileSystem> {
    scan: ReadDir<F>,
}

impl<F: FileSystem> From<ReadDir<F>> for BlockingReadDir<F> {
    fn from(scan: ReadDir<F>) -> Self {
        BlockingReadDir { scan }
    }
}

impl<F: FileSystem> BlockingReadDir<F> {
    /// Whether "." and ".." are given too.
    #[must_use]
    pub fn dots(self, on: bool) -> Self {
        BlockingReadDir { scan: self.scan.dots(on) }
    }

    /// Goes on behind the entry that had this `next_offset`; 0: from the start.
    pub fn seek(&mut self, offset: u64) {
        self.scan.seek(offset);
    }
}

impl<F: FileSystem> Iterator for BlockingReadDir<F> {
    type Item = Result<Entry>;
    fn next(&mut self) -> Option<Result<Entry>> {
        let fs = self.scan.dir().fs().clone();
        fs.block_on(self.scan.next())
    }
}
