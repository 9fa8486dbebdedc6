//! A file system by paths.

use super::RW;
use fs::{Cred, FileSystem, Handle, Ino, LockOwner, OpenFlags};
use object::ObjectFs;
use object::store::Store;
use std::sync::Arc;

/// A file system, to be called by paths, as root.
pub struct Paths<S: Store> {
    pub fs: Arc<ObjectFs<S>>,
}

impl<S: Store> Paths<S> {
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        fs::block_on(future)
    }

    pub fn find(&self, path: &str) -> fs::Result<fs::Attr> {
        self.run(self.fs.walk(&Cred::root(), Ino::ROOT, path.as_bytes()))
    }

    fn split(&self, path: &str) -> fs::Result<(Ino, Vec<u8>)> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.find(dir)?.ino, name.as_bytes().to_vec()))
    }

    pub fn create(&self, path: &str) -> fs::Result<Handle> {
        let (dir, name) = self.split(path)?;
        Ok(self.run(self.fs.create(&Cred::root(), dir, &name, 0o644, RW))?.1)
    }

    pub fn open(&self, path: &str) -> fs::Result<Handle> {
        self.run(self.fs.open(&Cred::root(), self.find(path)?.ino, RW))
    }

    pub fn write_at(&self, handle: Handle, offset: u64, bytes: &[u8]) -> fs::Result<()> {
        assert_eq!(self.run(self.fs.write(handle, offset, bytes))?, bytes.len());
        Ok(())
    }

    pub fn read_at(&self, handle: Handle, offset: u64, len: usize) -> fs::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let n = self.run(self.fs.read(handle, offset, &mut bytes))?;
        bytes.truncate(n);
        Ok(bytes)
    }

    /// As close(2): what a program hears of it.
    pub fn close(&self, handle: Handle) -> fs::Result<()> {
        let closed = self.run(self.fs.flush(handle, LockOwner(1)));
        let released = self.run(self.fs.release(handle));
        closed.and(released)
    }

    pub fn write(&self, path: &str, bytes: &[u8]) -> fs::Result<()> {
        let handle = self.create(path)?;
        let size = fs::SetAttr { size: Some(0), handle: Some(handle), ..Default::default() };
        let ino = self.run(self.fs.getattr(Ino(0), Some(handle)))?.ino;
        let done = self.run(self.fs.setattr(&Cred::root(), ino, size)).and_then(|_| {
            bytes.chunks(50).enumerate().try_for_each(|(i, b)| self.write_at(handle, i as u64 * 50, b))
        });
        let closed = self.close(handle);
        done.and(closed)
    }

    pub fn read(&self, path: &str) -> fs::Result<Vec<u8>> {
        let handle = self.run(self.fs.open(&Cred::root(), self.find(path)?.ino, OpenFlags::READ))?;
        let size = self.run(self.fs.getattr(Ino(0), Some(handle)))?.size as usize;
        let bytes = self.read_at(handle, 0, size);
        self.run(self.fs.release(handle))?;
        bytes
    }

    pub fn mkdir(&self, path: &str) -> fs::Result<()> {
        let (dir, name) = self.split(path)?;
        self.run(self.fs.mkdir(&Cred::root(), dir, &name, 0o755)).map(|_| ())
    }

    pub fn unlink(&self, path: &str) -> fs::Result<()> {
        let (dir, name) = self.split(path)?;
        self.run(self.fs.unlink(&Cred::root(), dir, &name))
    }

    pub fn rmdir(&self, path: &str) -> fs::Result<()> {
        let (dir, name) = self.split(path)?;
        self.run(self.fs.rmdir(&Cred::root(), dir, &name))
    }

    pub fn rename(&self, from: &str, to: &str) -> fs::Result<()> {
        let ((dir, name), (to_dir, to_name)) = (self.split(from)?, self.split(to)?);
        let flags = fs::RenameFlags::empty();
        self.run(self.fs.rename(&Cred::root(), dir, &name, to_dir, &to_name, flags))
    }

    /// Names of a directory, sorted, without "." and "..".
    pub fn list(&self, path: &str) -> fs::Result<Vec<String>> {
        let handle = self.run(self.fs.opendir(&Cred::root(), self.find(path)?.ino))?;
        let mut names = Vec::new();
        let mut offset = 0;
        loop {
            let before = names.len();
            self.run(self.fs.readdir(handle, offset, &mut |entry| {
                offset = entry.next_offset;
                names.push(String::from_utf8(entry.name.to_vec()).unwrap());
                names.len() % 4 != 0
            }))?;
            if names.len() == before {
                break;
            }
        }
        self.run(self.fs.release(handle))?;
        names.retain(|n| n != "." && n != "..");
        names.sort();
        Ok(names)
    }
}
