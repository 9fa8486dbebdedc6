//! One file of any file system behind the contract.

use super::Target;
use crate::Driver;
use fs::{
    Attr, Cred, Error, Fallocate, FileSystem, Handle, Ino, LockOwner, OpenFlags, Pages, Result, Seek, SetAttr,
};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// A file in the root of a file system in this process.
pub struct OverContract<F: FileSystem, D> {
    fs: Arc<F>,
    driver: D,
    cred: Cred,
    attr: Attr,
    handle: Handle,
    /// Pages that were read lately, with what they held then.
    held: VecDeque<(Pages, Vec<u8>)>,
    reads: u64,
}

/// Pages held at a time: what is read without a copy must not change, whatever is done to the file meanwhile.
const HELD: usize = 3;

impl<F: FileSystem, D: Driver> OverContract<F, D> {
    /// Makes the file, or empties it.
    pub fn new(fs: Arc<F>, driver: D, name: &[u8]) -> Result<Self> {
        let cred = Cred::root();
        let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::TRUNCATE;
        let (attr, handle) = driver.block_on(fs.create(&cred, Ino::ROOT, name, 0o600, flags))?;
        Ok(OverContract { fs, driver, cred, attr, handle, held: VecDeque::new(), reads: 0 })
    }

    /// Closes the file.
    pub fn close(self) -> Result<()> {
        self.driver.block_on(self.fs.release(self.handle))
    }

    fn call<T>(&self, call: impl Future<Output = Result<T>>) -> io::Result<T> {
        self.driver.block_on(call).map_err(io::Error::from)
    }

    fn fallocate(&self, what: Fallocate, offset: u64, len: u64) -> io::Result<()> {
        self.call(self.fs.fallocate(self.handle, what, offset, len))
    }
}

impl<F: FileSystem, D: Driver> Target for OverContract<F, D> {
    fn read(&mut self, offset: u64, to: &mut [u8]) -> io::Result<usize> {
        self.reads += 1;
        if self.reads.is_multiple_of(2) {
            return self.call(self.fs.read(self.handle, offset, to));
        }
        let pages = self.call(self.fs.read_pages(self.handle, offset, to.len()))?;
        let bytes = pages.to_vec();
        to[..bytes.len()].copy_from_slice(&bytes);
        let n = bytes.len();
        self.held.push_back((pages, bytes));
        if self.held.len() > HELD
            && let Some((pages, before)) = self.held.pop_front()
            && pages.to_vec() != before
        {
            return Err(io::Error::other("pages have changed while they were lent"));
        }
        Ok(n)
    }
    fn write(&mut self, offset: u64, from: &[u8]) -> io::Result<usize> {
        self.call(self.fs.write(self.handle, offset, from))
    }
    fn append(&mut self, from: &[u8]) -> io::Result<usize> {
        let flags = OpenFlags::WRITE | OpenFlags::APPEND;
        let handle = self.call(self.fs.open(&self.cred, self.attr.ino, flags))?;
        let n = self.call(self.fs.write(handle, 0, from));
        self.call(self.fs.release(handle))?;
        n
    }
    fn truncate(&mut self, size: u64) -> io::Result<()> {
        let set = SetAttr { size: Some(size), handle: Some(self.handle), ..SetAttr::default() };
        self.call(self.fs.setattr(&self.cred, self.attr.ino, set)).map(|_| ())
    }
    fn size(&mut self) -> io::Result<u64> {
        self.call(self.fs.getattr(self.attr.ino, Some(self.handle))).map(|attr| attr.size)
    }
    fn allocate(&mut self, offset: u64, len: u64, keep_size: bool) -> io::Result<()> {
        self.fallocate(Fallocate::Allocate { keep_size }, offset, len)
    }
    fn punch(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.fallocate(Fallocate::PunchHole, offset, len)
    }
    fn zero(&mut self, offset: u64, len: u64, keep_size: bool) -> io::Result<()> {
        self.fallocate(Fallocate::ZeroRange { keep_size }, offset, len)
    }
    fn copy(&mut self, from: u64, to: u64, len: u64) -> io::Result<u64> {
        self.call(self.fs.copy_range(self.handle, from, self.handle, to, len))
    }
    fn seek(&mut self, offset: u64, hole: bool) -> io::Result<Option<u64>> {
        let what = if hole { Seek::Hole } else { Seek::Data };
        match self.driver.block_on(self.fs.seek(self.handle, offset, what)) {
            Ok(at) => Ok(Some(at)),
            Err(Error::NoSuchOffset) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
    fn sync(&mut self, datasync: bool) -> io::Result<()> {
        self.call(self.fs.fsync(self.handle, datasync))
    }
    fn reopen(&mut self) -> io::Result<()> {
        self.call(self.fs.flush(self.handle, LockOwner(1)))?;
        self.call(self.fs.release(self.handle))?;
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        self.handle = self.call(self.fs.open(&self.cred, self.attr.ino, flags))?;
        Ok(())
    }
    fn map_read(&mut self, _: u64, _: &mut [u8]) -> Option<io::Result<()>> {
        None
    }
    fn map_write(&mut self, _: u64, _: &[u8]) -> Option<io::Result<()>> {
        None
    }
}
