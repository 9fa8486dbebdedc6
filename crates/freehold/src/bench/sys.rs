//! A mounted directory, through system calls.

use super::sample::DeviceOps;
use super::subject::{How, Name, Subject};
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{AtFlags, Mode, OFlags};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// A directory on a mounted file system; all paths are relative to it.
pub struct Sys {
    root: OwnedFd,
    /// `/sys/block/X/stat` of the device below.
    stat: Option<PathBuf>,
    may_drop_caches: bool,
    server: Option<DropCaches>,
}

/// Drops the caches of a server in user space.
pub type DropCaches = Box<dyn Fn() -> Result<()> + Send + Sync>;

impl Sys {
    /// `device` is the block device below, for its counters.
    pub fn new(dir: &Path, device: Option<&Path>) -> Result<Sys> {
        let root = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .with_context(|| format!("opening {}", dir.display()))?;
        let stat = device
            .and_then(Path::file_name)
            .map(|name| Path::new("/sys/block").join(name).join("stat"))
            .filter(|p| p.exists());
        Ok(Sys { root, stat, may_drop_caches: rustix::process::geteuid().is_root(), server: None })
    }

    /// Says that a server in user space stands behind the mount, which has caches too.
    pub fn with_server(self, drop_caches: DropCaches) -> Sys {
        Sys { server: Some(drop_caches), ..self }
    }
}

impl Subject for Sys {
    type File = OwnedFd;

    fn mkdir(&self, dir: &str) -> Result<()> {
        Ok(rustix::fs::mkdirat(&self.root, dir, Mode::from_raw_mode(0o755))?)
    }

    #[inline]
    fn open(&self, name: &Name, how: How) -> Result<OwnedFd> {
        let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let flags = match how {
            How::New => new,
            How::NewAppend => new | OFlags::APPEND,
            How::Read => OFlags::RDONLY,
            How::Write => OFlags::RDWR,
        };
        let mode = Mode::from_raw_mode(0o644);
        Ok(rustix::fs::openat(&self.root, name.as_c_str(), flags | OFlags::CLOEXEC, mode)?)
    }

    #[inline]
    fn close(&self, file: OwnedFd) -> Result<()> {
        drop(file);
        Ok(())
    }

    #[inline]
    fn stat(&self, name: &Name) -> Result<u64> {
        Ok(rustix::fs::statat(&self.root, name.as_c_str(), AtFlags::empty())?.st_size as u64)
    }

    #[inline]
    fn unlink(&self, name: &Name) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.root, name.as_c_str(), AtFlags::empty())?)
    }

    #[inline]
    fn rmdir(&self, dir: &str) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.root, dir, AtFlags::REMOVEDIR)?)
    }

    #[inline]
    fn rename(&self, from: &Name, to: &Name) -> Result<()> {
        Ok(rustix::fs::renameat(&self.root, from.as_c_str(), &self.root, to.as_c_str())?)
    }

    fn list(&self, dir: &str) -> Result<(u64, u64)> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&self.root, dir, flags, Mode::empty())?;
        // The size that readdir(3) uses.
        let mut buffer = [MaybeUninit::<u8>::uninit(); 32 << 10];
        let mut entries = rustix::fs::RawDir::new(dir, &mut buffer);
        let (mut n, mut bytes) = (0, 0);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                n += 1;
                bytes += name.len() as u64;
            }
        }
        Ok((n, bytes))
    }

    fn read_at(&self, file: &OwnedFd, mut to: &mut [u8], mut offset: u64) -> Result<()> {
        while !to.is_empty() {
            let n = rustix::io::pread(file, &mut *to, offset)?;
            ensure!(n > 0, "end of file at {offset}");
            to = &mut to[n..];
            offset += n as u64;
        }
        Ok(())
    }

    fn write_at(&self, file: &OwnedFd, mut from: &[u8], mut offset: u64) -> Result<()> {
        while !from.is_empty() {
            let n = rustix::io::pwrite(file, from, offset)?;
            from = &from[n..];
            offset += n as u64;
        }
        Ok(())
    }

    fn fsync(&self, file: &OwnedFd) -> Result<()> {
        Ok(rustix::fs::fsync(file)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(&self.root)?)
    }

    fn drop_caches(&self) -> Result<()> {
        if !self.may_drop_caches {
            bail!("only root can drop the kernel's caches");
        }
        self.sync()?;
        std::fs::write("/proc/sys/vm/drop_caches", "3").context("dropping the kernel's caches")?;
        self.server.as_ref().map_or(Ok(()), |drop_caches| drop_caches())
    }

    fn device(&self) -> Option<DeviceOps> {
        device_ops(self.stat.as_deref()?)
    }
}

/// The counters of a block device (Documentation/block/stat.rst of the kernel).
fn device_ops(stat: &Path) -> Option<DeviceOps> {
    let text = std::fs::read_to_string(stat).ok()?;
    let n: Vec<u64> = text.split_whitespace().filter_map(|w| w.parse().ok()).collect();
    let at = |i: usize| n.get(i).copied().unwrap_or(0);
    Some(DeviceOps {
        reads: at(0),
        bytes_read: at(2) * 512,
        writes: at(4),
        bytes_written: at(6) * 512,
        flushes: at(15),
        ..DeviceOps::default()
    })
}
