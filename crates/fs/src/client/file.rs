//! An open file.

use super::Shared;
use crate::cache::Pages;
use crate::contract::FileSystem;
use crate::error::{Error, Result};
use crate::types::*;
use format::Ino;
use format::limits::FILE_SIZE_MAX;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where to put the cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SeekTo {
    /// This many bytes from the start (SEEK_SET).
    Start(u64),
    /// From the end of the file (SEEK_END).
    End(i64),
    /// From where it is (SEEK_CUR).
    Current(i64),
    /// The next byte at or behind this offset that may hold data (SEEK_DATA).
    Data(u64),
    /// The next hole at or behind this offset, or the end of the file (SEEK_HOLE).
    Hole(u64),
}

impl From<std::io::SeekFrom> for SeekTo {
    fn from(to: std::io::SeekFrom) -> SeekTo {
        match to {
            std::io::SeekFrom::Start(n) => SeekTo::Start(n),
            std::io::SeekFrom::End(n) => SeekTo::End(n),
            std::io::SeekFrom::Current(n) => SeekTo::Current(n),
        }
    }
}

/// An open file, or a directory opened for reading. Calls for which it is not open fail with `BadHandle`.
///
/// Dropping it closes it and waits on the thread until that is done, ignoring errors; async programs, above all those that run on the
/// thread of an engine, call [`File::close`]. Closing any file of a client releases all record locks which that client holds on
/// the inode, as POSIX wants it.
#[derive(Debug)]
pub struct File<F: FileSystem> {
    shared: Arc<Shared<F>>,
    handle: Handle,
    ino: Ino,
    kind: FileType,
    flags: OpenFlags,
    open: bool,
    pos: u64,
    /// An appending write has left the cursor at the end of the file, wherever that is.
    at_end: bool,
}

impl<F: FileSystem> File<F> {
    pub(super) fn new(
        shared: Arc<Shared<F>>,
        ino: Ino,
        kind: FileType,
        handle: Handle,
        flags: OpenFlags,
    ) -> File<F> {
        File { shared, handle, ino, kind, flags, open: true, pos: 0, at_end: false }
    }

    #[inline]
    pub(super) fn fs(&self) -> &Arc<F> {
        &self.shared.fs
    }

    /// The inode.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Regular file or directory.
    pub fn kind(&self) -> FileType {
        self.kind
    }

    /// The engine's handle.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// How it was opened.
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }

    /// Reads at an offset, and returns less than asked only at the end of the file. `Invalid` (DIRECT: not in units of 512).
    #[inline]
    pub fn read_at<'a>(
        &'a self,
        to: &'a mut [u8],
        offset: u64,
    ) -> impl Future<Output = Result<usize>> + Send + use<'a, F> {
        self.fs().read(self.handle, offset, to)
    }

    /// As [`File::read_at`] for up to `len` bytes, without a copy: the memory of the page cache is lent, and what it holds does
    /// not change until it is given back. An engine lends a part of its cache at a time and copies what goes beyond.
    #[inline]
    pub fn read_pages_at(
        &self,
        len: usize,
        offset: u64,
    ) -> impl Future<Output = Result<Pages>> + Send + use<'_, F> {
        self.fs().read_pages(self.handle, offset, len)
    }

    /// Writes at an offset (with APPEND: at the end). Returns the number of bytes: all, unless an error came after a part.
    /// `TooLarge`, `Invalid` (DIRECT: not in units of 512).
    #[inline]
    pub fn write_at<'a>(
        &'a self,
        from: &'a [u8],
        offset: u64,
    ) -> impl Future<Output = Result<usize>> + Send + use<'a, F> {
        self.fs().write(self.handle, offset, from)
    }

    /// Writes all of it at an offset, or returns the error that came after a part. Errors as of [`File::write_at`].
    pub async fn write_all_at(&self, mut from: &[u8], mut offset: u64) -> Result<()> {
        while !from.is_empty() {
            let n = self.write_at(from, offset).await?;
            if n == 0 {
                return Err(Error::NoSpace);
            }
            offset = offset.saturating_add(n as u64);
            from = &from[n..];
        }
        Ok(())
    }

    /// Writes pieces at offsets as one change: see [`FileSystem::write_atomic`].
    pub async fn write_atomic_at(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        self.fs().write_atomic(self.handle, pieces).await
    }

    /// Writes at the end of the file, atomically with other appending writers. The cursor stays.
    /// `BadHandle` (not opened with APPEND), `TooLarge`.
    pub async fn append(&self, from: &[u8]) -> Result<usize> {
        if !self.flags.contains(OpenFlags::APPEND) {
            return Err(Error::BadHandle);
        }
        self.write_at(from, 0).await
    }

    /// The cursor: after appending writes, the end of the file as it is now.
    pub async fn position(&mut self) -> Result<u64> {
        if self.at_end {
            self.pos = self.metadata().await?.size;
            self.at_end = false;
        }
        Ok(self.pos)
    }

    /// Reads at the cursor and moves it. Errors as of [`File::read_at`].
    pub async fn read(&mut self, to: &mut [u8]) -> Result<usize> {
        let pos = self.position().await?;
        let n = self.read_at(to, pos).await?;
        self.pos += n as u64;
        Ok(n)
    }

    /// Reads from the cursor to the end of the file, behind what `to` holds, and returns the number of bytes.
    /// `TooLarge` (memory does not suffice). What was read before an error is kept.
    pub async fn read_to_end(&mut self, to: &mut Vec<u8>) -> Result<usize> {
        let before = to.len();
        let mut pos = self.position().await?;
        loop {
            let left = self.metadata().await?.size.saturating_sub(pos);
            // One byte more than is left shows the end without another round; large files come in parts.
            let want = (left + 1).min(64 << 20) as usize;
            to.try_reserve(want).map_err(|_| Error::TooLarge)?;
            let len = to.len();
            to.resize(len + want, 0);
            let read = self.read_at(&mut to[len..], pos).await;
            to.truncate(len + *read.as_ref().unwrap_or(&0));
            let n = read?;
            pos += n as u64;
            self.pos = pos;
            if n < want {
                return Ok(to.len() - before);
            }
        }
    }

    /// Writes at the cursor (with APPEND: at the end) and moves it behind. Errors as of [`File::write_at`].
    pub async fn write(&mut self, from: &[u8]) -> Result<usize> {
        if self.flags.contains(OpenFlags::APPEND) {
            let n = self.write_at(from, 0).await?;
            self.at_end |= n > 0;
            return Ok(n);
        }
        let n = self.write_at(from, self.pos).await?;
        self.pos += n as u64;
        Ok(n)
    }

    /// Moves the cursor and returns where it is. `Invalid` (before the start, or beyond the largest file), `NoSuchOffset` (data or
    /// hole at or behind the end).
    pub async fn seek(&mut self, to: impl Into<SeekTo>) -> Result<u64> {
        let pos = match to.into() {
            SeekTo::Start(n) => Some(n),
            SeekTo::End(n) => self.metadata().await?.size.checked_add_signed(n),
            SeekTo::Current(n) => self.position().await?.checked_add_signed(n),
            SeekTo::Data(n) => Some(self.fs().seek(self.handle, n, Seek::Data).await?),
            SeekTo::Hole(n) => Some(self.fs().seek(self.handle, n, Seek::Hole).await?),
        };
        self.pos = pos.filter(|&p| p <= FILE_SIZE_MAX).ok_or(Error::Invalid("offset of a seek"))?;
        self.at_end = false;
        Ok(self.pos)
    }

    /// Attributes.
    pub async fn metadata(&self) -> Result<Attr> {
        self.fs().getattr(self.ino, Some(self.handle)).await
    }

    /// Cuts the file off, or extends it with a hole. `TooLarge`.
    pub async fn set_len(&self, size: u64) -> Result<()> {
        if !self.flags.contains(OpenFlags::WRITE) {
            return Err(Error::BadHandle);
        }
        self.setattr(SetAttr { size: Some(size), ..SetAttr::default() }).await.map(drop)
    }

    /// Sets permission, set-id and sticky bits. `NotPermitted` (not the owner).
    pub async fn chmod(&self, perm: u16) -> Result<Attr> {
        self.setattr(SetAttr { perm: Some(perm), ..SetAttr::default() }).await
    }

    /// Sets owner and group; `None` leaves one alone. `NotPermitted`, see [`super::Client::chown`].
    pub async fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> Result<Attr> {
        self.setattr(SetAttr { uid, gid, ..SetAttr::default() }).await
    }

    /// Sets access and modification time. Errors as of [`super::Client::utimens`].
    pub async fn utimens(&self, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<Attr> {
        self.setattr(SetAttr { atime, mtime, ..SetAttr::default() }).await
    }

    async fn setattr(&self, set: SetAttr) -> Result<Attr> {
        let set = SetAttr { handle: Some(self.handle), ..set };
        self.fs().setattr(&self.shared.cred, self.ino, set).await
    }

    /// Reserves, punches or zeroes a range, as fallocate(2). `Invalid` (empty range), `TooLarge`.
    pub async fn fallocate(&self, what: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.fs().fallocate(self.handle, what, offset, len).await
    }

    /// Returns when everything done to the volume before is durable.
    pub async fn fsync(&self) -> Result<()> {
        self.fs().fsync(self.handle, false).await
    }

    /// As [`File::fsync`], but times of the file may be left out.
    pub async fn fdatasync(&self) -> Result<()> {
        self.fs().fsync(self.handle, true).await
    }

    /// Order without durability: everything done before on the volume, by anybody and on whichever file, persists before anything done
    /// after this returned. It waits for no device. What is durable, and when, it does not say: for that there is [`File::fsync`].
    ///
    /// Fails with `Latched` when what was done before cannot become durable any more. Through a session also with `EIO`, once, when a
    /// manager was killed that had taken writes to this file (docs/SEMANTICS.md, "Order").
    ///
    /// For descriptors of the kernel there is [`crate::descriptor::fbarrier`].
    pub async fn fbarrier(&self) -> Result<()> {
        self.fs().barrier(self.handle, false).await
    }

    /// As [`File::fbarrier`], but times of the file may be left out.
    pub async fn fdatabarrier(&self) -> Result<()> {
        self.fs().barrier(self.handle, true).await
    }

    /// Copies bytes to another open file of the volume and returns how many, 0 at the end of this one.
    /// `Invalid` (ranges of one file overlap), `TooLarge`, `CrossDevice` (another client's file system).
    pub async fn copy_range(&self, offset: u64, to: &File<F>, to_offset: u64, len: u64) -> Result<u64> {
        if !Arc::ptr_eq(&self.shared.fs, &to.shared.fs) {
            return Err(Error::CrossDevice);
        }
        self.fs().copy_range(self.handle, offset, to.handle, to_offset, len).await
    }

    /// Gets an exclusive lock on the whole file, waiting for it (flock(2)). A shared one is given up first.
    pub async fn lock(&self) -> Result<()> {
        self.fs().flock(self.handle, Some(LockKind::Exclusive), true).await
    }

    /// Gets a shared lock on the whole file, waiting for it (flock(2)). An exclusive one is given up first.
    pub async fn lock_shared(&self) -> Result<()> {
        self.fs().flock(self.handle, Some(LockKind::Shared), true).await
    }

    /// As [`File::lock`], but fails with `WouldBlock` where that waits; a shared lock is lost then.
    pub async fn try_lock(&self) -> Result<()> {
        self.fs().flock(self.handle, Some(LockKind::Exclusive), false).await
    }

    /// As [`File::lock_shared`], but fails with `WouldBlock` where that waits; an exclusive lock is lost then.
    pub async fn try_lock_shared(&self) -> Result<()> {
        self.fs().flock(self.handle, Some(LockKind::Shared), false).await
    }

    /// Releases the lock on the whole file.
    pub async fn unlock(&self) -> Result<()> {
        self.fs().flock(self.handle, None, false).await
    }

    /// Gets a record lock for this client on `len` bytes (0: to the end, however far that moves), waiting for it when `wait`.
    /// `WouldBlock`, `Deadlock`, `BadHandle` (shared needs READ, exclusive WRITE), `Invalid` (range).
    pub async fn lock_range(&self, kind: LockKind, start: u64, len: u64, wait: bool) -> Result<()> {
        let lock = record(kind, start, len)?;
        self.shared.locked.store(true, Ordering::Release);
        self.fs().setlk(self.handle, self.shared.owner, Ok(lock), wait).await
    }

    /// Releases what this client has locked of the range. `Invalid` (range).
    pub async fn unlock_range(&self, start: u64, len: u64) -> Result<()> {
        let lock = record(LockKind::Shared, start, len)?;
        self.fs().setlk(self.handle, self.shared.owner, Err((lock.start, lock.end)), false).await
    }

    /// A lock that keeps this client from locking the range, or `None`. `Invalid` (range).
    pub async fn test_range(&self, kind: LockKind, start: u64, len: u64) -> Result<Option<RecordLock>> {
        let lock = record(kind, start, len)?;
        self.fs().getlk(self.handle, self.shared.owner, lock).await
    }

    /// Closes the file and says how that went. Nothing is written by it, data that must be durable need [`File::fsync`] before; but where a close makes
    /// a file visible, in a bucket, it is there when this returns without an error.
    pub async fn close(mut self) -> Result<()> {
        let done = self.release().await;
        self.open = false;
        done
    }

    async fn release(&self) -> Result<()> {
        // Not only the last close of a file makes it visible, where a close does.
        let commits = self.flags.contains(OpenFlags::WRITE) && self.fs().commits_at_close();
        let flushed = match commits || self.shared.locked.load(Ordering::Acquire) {
            true => self.fs().flush(self.handle, self.shared.owner).await,
            false => Ok(()),
        };
        self.fs().release(self.handle).await.and(flushed)
    }

    /// Entries of a directory behind `offset`, for the reader of directories.
    pub(super) async fn readdir(
        &self,
        offset: u64,
        sink: &mut (dyn FnMut(DirEntry<'_>) -> bool + Send),
    ) -> Result<()> {
        self.fs().readdir(self.handle, offset, sink).await
    }
}

impl<F: FileSystem> Drop for File<F> {
    fn drop(&mut self) {
        if self.open {
            // Whoever wants to know calls close().
            let fs = self.fs().clone();
            let _ = fs.block_on(self.release());
        }
    }
}

/// A record lock of this process.
fn record(kind: LockKind, start: u64, len: u64) -> Result<RecordLock> {
    let end = match len {
        0 => u64::MAX,
        _ => start.checked_add(len - 1).ok_or(Error::Invalid("range of a lock"))?,
    };
    Ok(RecordLock { start, end, kind, pid: std::process::id() })
}
