//! The index of a WAL: the `-shm` file beside the database, mapped through the kernel's mount of the volume, so that all processes that map it
//! there have the same pages, whichever VFS they use. Its locks are record locks on the same bytes as those of SQLite's VFS for
//! Unix, but taken in the session, each connection as an owner of its own.
//!
//! Where the volume is not mounted for this process there is no such memory, and the databases have no `xShmMap`: SQLite then uses a WAL only with
//! `locking_mode=EXCLUSIVE`, which locks the whole database and keeps the index to itself. So there are never two indexes of one WAL.

use crate::abi::*;
use crate::locks::try_lock;
use crate::volumes::{READ_WRITE, Session};
use fs::client::BlockingFile;
use fs::{Blocking, LockKind};
use share::Remote;
use std::ffi::c_int;
use std::fs::File as KernelFile;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Locks of a WAL.
const LOCKS: u64 = 8;
/// Where they begin in the file: behind the two copies of the index header and the checkpoint info.
const LOCK_BASE: u64 = (22 + LOCKS) * 4;
/// Held shared by everybody who uses the index, exclusively by who sets it to nothing.
const DEAD_MANS_SWITCH: u64 = LOCK_BASE + LOCKS;
const PAGE: u64 = 4096;

pub(crate) struct Shm {
    session: Arc<Session>,
    client: Blocking<Remote>,
    /// For locks.
    file: BlockingFile<Remote>,
    /// Within the volume.
    path: PathBuf,
    /// For memory.
    kernel: KernelFile,
    regions: Vec<(*mut libc::c_void, usize)>,
}

// SAFETY: the regions are mappings that belong to this value alone; SQLite's own synchronisation governs what is in them.
unsafe impl Send for Shm {}

impl Shm {
    /// Joins those who use the index of the database at `db` (in the volume; `kernel_path` for the kernel).
    pub fn open(session: &Arc<Session>, db: &Path, kernel_path: &Path) -> Result<Shm, c_int> {
        let (path, kernel_path) = (suffixed(db), suffixed(kernel_path));
        let client = session.client();
        let of_db = session.heed(client.stat(db)).map_err(|_| IOERR_FSTAT)?;
        let options = READ_WRITE.create(true).nofollow(true).mode(of_db.perm & 0o777);
        let file = session.heed(client.open(&path, options)).map_err(|_| CANTOPEN)?;
        let attr = session.heed(file.metadata()).map_err(|_| IOERR_FSTAT)?;
        if session.is_root() && (attr.uid, attr.gid) != (of_db.uid, of_db.gid) {
            let _ = file.chown(Some(of_db.uid), Some(of_db.gid));
        }
        let kernel = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&kernel_path)
            .map_err(|_| CANTOPEN)?;
        // Something else may be mounted there by now.
        if kernel.metadata().map_err(|_| IOERR_FSTAT)?.ino() != attr.ino.0 {
            return Err(IOERR_SHMOPEN);
        }
        let shm = Shm { session: session.clone(), client, file, path, kernel, regions: Vec::new() };
        shm.join()?;
        Ok(shm)
    }

    /// Takes part; the first to do so empties the file, which may be left from a crash.
    fn join(&self) -> Result<(), c_int> {
        let io = |_| IOERR_SHMLOCK;
        let switch = DEAD_MANS_SWITCH;
        match self.heed(self.file.test_range(LockKind::Exclusive, switch, 1)).map_err(io)? {
            Some(lock) if lock.kind == LockKind::Exclusive => return Err(BUSY),
            Some(_) => {}
            None => {
                if !self.heed(try_lock(&self.file, LockKind::Exclusive, switch, 1)).map_err(io)? {
                    return Err(BUSY);
                }
                // Three bytes, as SQLite does it: less than a header, and not the length of any file that was never used.
                self.kernel.set_len(3).map_err(|_| IOERR_SHMOPEN)?;
            }
        }
        match self.heed(try_lock(&self.file, LockKind::Shared, switch, 1)).map_err(io)? {
            true => Ok(()),
            false => Err(BUSY),
        }
    }

    fn heed<T>(&self, result: fs::Result<T>) -> fs::Result<T> {
        self.session.heed(result)
    }

    /// The memory of a region of `bytes`; null when the file is not so long and must not be extended.
    pub fn map(&mut self, region: usize, bytes: usize, extend: bool) -> Result<*mut libc::c_void, c_int> {
        if let Some(&(at, _)) = self.regions.get(region) {
            return Ok(at);
        }
        let size = self.kernel.metadata().map_err(|_| IOERR_SHMSIZE)?.len();
        let want = (region as u64 + 1) * bytes as u64;
        if size < want {
            if !extend {
                return Ok(std::ptr::null_mut());
            }
            // Every page gets its block now: later nobody could be told that there is none.
            for page in size / PAGE..want / PAGE {
                self.kernel.write_all_at(&[0], page * PAGE + PAGE - 1).map_err(|_| IOERR_SHMSIZE)?;
            }
        }
        while self.regions.len() <= region {
            let offset = (self.regions.len() * bytes) as libc::off_t;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let fd = self.kernel.as_raw_fd();
            // SAFETY: a new mapping of a file of ours.
            let at =
                unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, offset) };
            if at == libc::MAP_FAILED {
                return Err(IOERR_SHMMAP);
            }
            self.regions.push((at, bytes));
        }
        Ok(self.regions[region].0)
    }

    /// SQLite's `xShmLock`.
    pub fn lock(&self, first: c_int, count: c_int, flags: c_int) -> c_int {
        if first < 0 || count < 1 || (first + count) as u64 > LOCKS {
            return MISUSE;
        }
        let (at, len) = (LOCK_BASE + first as u64, count as u64);
        let done = if flags & SHM_UNLOCK != 0 {
            self.file.unlock_range(at, len).map(|()| true)
        } else {
            let shared = flags & SHM_SHARED != 0;
            let kind = if shared { LockKind::Shared } else { LockKind::Exclusive };
            try_lock(&self.file, kind, at, len)
        };
        match self.heed(done) {
            Ok(true) => OK,
            Ok(false) => BUSY,
            Err(_) => IOERR_SHMLOCK,
        }
    }

    /// Leaves. `delete`: nobody else is there, as SQLite knows, and the file goes.
    pub fn close(self, delete: bool) {
        if delete {
            let _ = self.heed(self.client.unlink(&self.path));
        }
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        for &(at, len) in &self.regions {
            // SAFETY: our own mapping, which SQLite no longer uses: it unmaps before it closes.
            unsafe { libc::munmap(at, len) };
        }
    }
}

fn suffixed(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push("-shm");
    name.into()
}
