//! A directory of the host's file system behind the contract, by system calls. The model is proven against it: what the
//! kernel and ext4 do with the same operations is what the model has to do.
//!
//! Works as root on a directory of a local file system (ext4, tmpfs, ...). Every call takes on the caller's identity in
//! the calling thread alone (raw system calls, so that other threads keep theirs) and gives it back. Every inode that was
//! ever seen is held by an `O_PATH` descriptor, so its number is not used again; the limit of open files is raised for it.
//!
//! Where the contract is not what the kernel does, it is evened out here, each place with the reason. In short:
//! - names that a path cannot carry, calls on inodes that are gone, unknown handles, setting a size through a handle that
//!   cannot write, seeking in directories, and opening what is no regular file are answered here, as the contract says;
//! - record locks are OFD locks of one descriptor per owner and inode (so `Deadlock` and waiting are not covered);
//! - `fs.protected_hardlinks` is circumvented; a flock that cannot be converted keeps the old lock;
//! - DIRECT is checked here and not passed on; SYNC, DSYNC, fsync, barrier and sync do nothing;
//! - several attributes set in one call are set one after the other (so not atomically): generate them one by one.
//!
//! Times: with [`HostFs::tick`] called before each operation, times of the host's clock are shown as the time of the
//! operation during which they were taken, so that they compare with those of a [`crate::Ticking`] model.

mod attrs;
mod calls;
mod filesystem;
mod identity;
mod locks;
mod making;

use calls::{Fd, check};
use fs::{Attr, Cred, Error, FileType, Handle, Ino, LockOwner, OpenFlags, Result, Time};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A time so many seconds in the future was not taken from the clock.
const SET_BY_CALLER: i64 = 24 * 60 * 60;

/// A directory of the host as a file system.
pub struct HostFs {
    root: u64,
    state: Mutex<State>,
    /// Removed when this is dropped, if the directory was made for it.
    _temporary: Option<tempfile::TempDir>,
}

struct State {
    /// `O_PATH` descriptors of all inodes seen, by the host's inode number.
    inodes: HashMap<u64, Fd>,
    opens: HashMap<Handle, Open>,
    locks: HashMap<(u64, LockOwner), Fd>,
    last_handle: u64,
    /// Real times: when the volume was made, and when each operation began.
    ticks: Vec<Time>,
}

struct Open {
    fd: Fd,
    ino: u64,
    flags: OpenFlags,
    cred: Cred,
    directory: bool,
    flock: Option<fs::LockKind>,
}

impl HostFs {
    /// The directory as a volume: it becomes the root, with mode 0755 and owned by root. `NotPermitted` unless the process
    /// is root.
    pub fn new(directory: &Path) -> Result<HostFs> {
        // SAFETY: reads an id.
        if unsafe { libc::geteuid() } != 0 {
            return Err(Error::NotPermitted);
        }
        calls::raise_file_limit();
        // SAFETY: sets a number of the process.
        unsafe { libc::umask(0) };
        let made = next_tick();
        let path = CString::new(directory.as_os_str().as_bytes()).map_err(|_| Error::Invalid("path"))?;
        // SAFETY: the path ends with NUL.
        check(unsafe { libc::chmod(path.as_ptr(), 0o755) })?;
        let fd = Fd::open_at(libc::AT_FDCWD, &path, libc::O_PATH | libc::O_DIRECTORY, 0)?;
        // SAFETY: the path ends with NUL; no times means now.
        check(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), std::ptr::null(), 0) })?;
        let root = fd.stat()?.st_ino;
        let state = State {
            inodes: HashMap::from([(root, fd)]),
            opens: HashMap::new(),
            locks: HashMap::new(),
            last_handle: 0,
            ticks: vec![made],
        };
        Ok(HostFs { root, state: Mutex::new(state), _temporary: None })
    }

    /// A new directory under `parent` as a volume, removed in the end. Errors as [`HostFs::new`].
    pub fn temporary(parent: &Path) -> Result<HostFs> {
        let dir = tempfile::tempdir_in(parent).map_err(|e| Error::Busy(e.to_string()))?;
        let fs = HostFs::new(dir.path())?;
        Ok(HostFs { _temporary: Some(dir), ..fs })
    }

    /// Begins the time of the next operation: waits until the clock that stamps inodes has left the last one behind.
    pub fn tick(&self) {
        let tick = next_tick();
        self.state.lock().ticks.push(tick);
    }

    /// The contract's inode number: the root is 1, and the host's inode 1 cannot come up beside it.
    fn show_ino(&self, ino: u64) -> Ino {
        if ino == self.root { Ino::ROOT } else { Ino(ino) }
    }

    fn real_ino(&self, ino: Ino) -> u64 {
        if ino == Ino::ROOT { self.root } else { ino.0 }
    }
}

/// Waits until the coarse clock, which stamps inodes at least, is later than the present moment, and returns its time.
fn next_tick() -> Time {
    let now = Time::from(std::time::SystemTime::now());
    loop {
        let coarse = Time::now();
        if coarse > now {
            return coarse;
        }
        std::thread::sleep(std::time::Duration::from_micros(300));
    }
}

impl State {
    /// The descriptor of an inode that has a name or is open; `Stale` for others.
    fn inode(&self, ino: u64) -> Result<RawFd> {
        let fd = self.inodes.get(&ino).ok_or(Error::Stale)?;
        if fd.stat()?.st_nlink == 0 && !self.opens.values().any(|open| open.ino == ino) {
            return Err(Error::Stale);
        }
        Ok(fd.as_raw_fd())
    }

    fn handle(&self, handle: Handle) -> Result<&Open> {
        self.opens.get(&handle).ok_or(Error::BadHandle)
    }

    /// Remembers an inode by a new `O_PATH` descriptor of it.
    fn keep(&mut self, fd: Fd) -> Result<u64> {
        let ino = fd.stat()?.st_ino;
        self.inodes.entry(ino).or_insert(fd);
        Ok(ino)
    }

    fn add_open(&mut self, fd: Fd, ino: u64, flags: OpenFlags, cred: &Cred, directory: bool) -> Handle {
        self.last_handle += 1;
        let handle = Handle(self.last_handle);
        self.opens.insert(handle, Open { fd, ino, flags, cred: cred.clone(), directory, flock: None });
        handle
    }

    /// The time as tests see it: that of the operation in which it was taken, or itself when it was set by a caller.
    fn show_time(&self, sec: i64, nsec: i64) -> Time {
        let time = Time { sec, nsec: nsec as u32 };
        let last = self.ticks.last().map_or(0, |tick| tick.sec);
        match self.ticks.partition_point(|&tick| tick <= time) {
            n if n > 0 && sec < last + SET_BY_CALLER => {
                Time { sec: crate::driver::FIRST_TICK - 2 + n as i64, nsec: 0 }
            }
            _ => time,
        }
    }
}

impl HostFs {
    fn attr(&self, state: &State, fd: RawFd) -> Result<Attr> {
        let st = calls::stat(fd)?;
        Ok(Attr {
            ino: self.show_ino(st.st_ino),
            generation: 0,
            kind: FileType::from_mode(st.st_mode).ok_or(Error::Invalid("type of an inode"))?,
            perm: (st.st_mode & 0o7777) as u16,
            nlink: st.st_nlink as u32,
            uid: st.st_uid,
            gid: st.st_gid,
            rdev: st.st_rdev,
            size: st.st_size as u64,
            blocks: st.st_blocks as u64,
            atime: state.show_time(st.st_atime, st.st_atime_nsec),
            mtime: state.show_time(st.st_mtime, st.st_mtime_nsec),
            ctime: state.show_time(st.st_ctime, st.st_ctime_nsec),
            btime: Time::default(),
            xattrs: true,
        })
    }
}

/// Runs operations on a [`HostFs`] that is shared with it: begins a tick before each.
pub struct HostTicking(pub std::sync::Arc<HostFs>);

impl crate::Driver for HostTicking {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        fs::block_on(future)
    }
    fn before_op(&self, _index: usize) {
        self.0.tick();
    }
}
