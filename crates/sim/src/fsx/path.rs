//! One file by its path, through the system's calls: of the host, or of a mount.

use super::Target;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr;

/// A file at a path.
pub struct OverPath {
    path: PathBuf,
    file: File,
    /// Use shared memory mappings.
    pub mappings: bool,
}

impl OverPath {
    /// Makes the file, or empties it. Mappings are used.
    pub fn create(path: &Path) -> io::Result<OverPath> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        Ok(OverPath { path: path.to_owned(), file, mappings: true })
    }

    fn fallocate(&self, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        // SAFETY: a call on an open descriptor.
        match unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset as i64, len as i64) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Maps the pages around a range, which must lie within the file, and copies with them.
    fn map(&self, offset: u64, len: usize, copy: impl FnOnce(*mut u8)) -> io::Result<()> {
        let start = offset & !4095;
        let (within, whole) = ((offset - start) as usize, (offset - start) as usize + len);
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, self.file.as_raw_fd());
        // SAFETY: a new mapping at a place of the kernel's choice.
        let map = unsafe { libc::mmap(ptr::null_mut(), whole, access, libc::MAP_SHARED, fd, start as i64) };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range lies within the mapping.
        copy(unsafe { map.cast::<u8>().add(within) });
        // SAFETY: the mapping made above, which nothing refers to any more.
        match unsafe { libc::munmap(map, whole) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Target for OverPath {
    fn read(&mut self, offset: u64, to: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < to.len() {
            match self.file.read_at(&mut to[done..], offset + done as u64)? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }
    fn write(&mut self, offset: u64, from: &[u8]) -> io::Result<usize> {
        self.file.write_at(from, offset)
    }
    fn append(&mut self, from: &[u8]) -> io::Result<usize> {
        OpenOptions::new().append(true).open(&self.path)?.write(from)
    }
    fn truncate(&mut self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }
    fn size(&mut self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
    fn allocate(&mut self, offset: u64, len: u64, keep_size: bool) -> io::Result<()> {
        self.fallocate(if keep_size { libc::FALLOC_FL_KEEP_SIZE } else { 0 }, offset, len)
    }
    fn punch(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.fallocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, len)
    }
    fn zero(&mut self, offset: u64, len: u64, keep_size: bool) -> io::Result<()> {
        let keep = if keep_size { libc::FALLOC_FL_KEEP_SIZE } else { 0 };
        self.fallocate(libc::FALLOC_FL_ZERO_RANGE | keep, offset, len)
    }
    fn copy(&mut self, from: u64, to: u64, len: u64) -> io::Result<u64> {
        let (fd, mut from, mut to) = (self.file.as_raw_fd(), from as i64, to as i64);
        // SAFETY: both offsets are valid places.
        match unsafe { libc::copy_file_range(fd, &mut from, fd, &mut to, len as usize, 0) } {
            n if n >= 0 => Ok(n as u64),
            _ => Err(io::Error::last_os_error()),
        }
    }
    fn seek(&mut self, offset: u64, hole: bool) -> io::Result<Option<u64>> {
        let whence = if hole { libc::SEEK_HOLE } else { libc::SEEK_DATA };
        // SAFETY: a call on an open descriptor; no other call here uses its position.
        match unsafe { libc::lseek(self.file.as_raw_fd(), offset as i64, whence) } {
            at if at >= 0 => Ok(Some(at as u64)),
            _ => match io::Error::last_os_error() {
                e if e.raw_os_error() == Some(libc::ENXIO) => Ok(None),
                e => Err(e),
            },
        }
    }
    fn sync(&mut self, datasync: bool) -> io::Result<()> {
        if datasync { self.file.sync_data() } else { self.file.sync_all() }
    }
    fn reopen(&mut self) -> io::Result<()> {
        self.file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        Ok(())
    }
    fn map_read(&mut self, offset: u64, to: &mut [u8]) -> Option<io::Result<()>> {
        let (place, len) = (to.as_mut_ptr(), to.len());
        // SAFETY: the mapped range and the buffer are valid for the length and apart.
        let copy = |from: *mut u8| unsafe { ptr::copy_nonoverlapping(from, place, len) };
        self.mappings.then(|| self.map(offset, len, copy))
    }
    fn map_write(&mut self, offset: u64, from: &[u8]) -> Option<io::Result<()>> {
        // SAFETY: the mapped range and the bytes are valid for the length and apart.
        let copy = |to: *mut u8| unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        self.mappings.then(|| self.map(offset, from.len(), copy))
    }
}
