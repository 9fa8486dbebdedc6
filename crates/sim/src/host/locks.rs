//! Locks on the host: OFD locks of one descriptor for each owner and inode, and flock.

use super::calls::{Fd, check};
use super::filesystem::offset;
use super::{HostFs, State};
use fs::*;
use std::os::fd::{AsRawFd, RawFd};

impl State {
    /// The descriptor on which an owner's locks on an inode stand.
    fn lock_fd(&mut self, ino: u64, owner: LockOwner) -> Result<RawFd> {
        if !self.locks.contains_key(&(ino, owner)) {
            let inode = self.inode(ino)?;
            // A directory can only be opened for reading, and is only ever locked through such handles.
            let fd = match Fd::reopen(inode, libc::O_RDWR) {
                Err(Error::IsDirectory) => Fd::reopen(inode, libc::O_RDONLY)?,
                fd => fd?,
            };
            self.locks.insert((ino, owner), fd);
        }
        Ok(self.locks[&(ino, owner)].as_raw_fd())
    }
}

impl HostFs {
    pub(super) fn host_getlk(
        &self,
        handle: Handle,
        owner: LockOwner,
        lock: RecordLock,
    ) -> Result<Option<RecordLock>> {
        let mut state = self.state.lock();
        let ino = state.handle(handle)?.ino;
        let fd = state.lock_fd(ino, owner)?;
        let mut flock = to_flock(Some(lock.kind), lock.start, lock.end)?;
        // SAFETY: `flock` is a valid place.
        check(unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &mut flock) })?;
        let kind = match flock.l_type as i32 {
            libc::F_UNLCK => return Ok(None),
            libc::F_RDLCK => LockKind::Shared,
            _ => LockKind::Exclusive,
        };
        let start = flock.l_start as u64;
        let end = if flock.l_len == 0 { u64::MAX } else { start + flock.l_len as u64 - 1 };
        Ok(Some(RecordLock { start, end, kind, pid: 0 }))
    }

    pub(super) fn host_setlk(
        &self,
        handle: Handle,
        owner: LockOwner,
        lock: std::result::Result<RecordLock, (u64, u64)>,
        wait: bool,
    ) -> Result<()> {
        if wait {
            return Err(Error::NotSupported("waiting for locks of the host"));
        }
        let mut state = self.state.lock();
        let ino = state.handle(handle)?.ino;
        let mut flock = match lock {
            Err((start, end)) => to_flock(None, start, end)?,
            Ok(lock) => {
                let need = match lock.kind {
                    LockKind::Shared => OpenFlags::READ,
                    LockKind::Exclusive => OpenFlags::WRITE,
                };
                if !state.handle(handle)?.flags.contains(need) {
                    return Err(Error::BadHandle);
                }
                to_flock(Some(lock.kind), lock.start, lock.end)?
            }
        };
        let fd = state.lock_fd(ino, owner)?;
        // SAFETY: `flock` is a valid place.
        check(unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &mut flock) }).map(|_| ())
    }

    pub(super) fn host_flock(&self, handle: Handle, kind: Option<LockKind>, wait: bool) -> Result<()> {
        if wait {
            return Err(Error::NotSupported("waiting for locks of the host"));
        }
        let mut state = self.state.lock();
        let open = state.opens.get_mut(&handle).ok_or(Error::BadHandle)?;
        let fd = open.fd.as_raw_fd();
        // SAFETY: a call on a descriptor.
        let call = |kind| check(unsafe { libc::flock(fd, flock_op(kind) | libc::LOCK_NB) });
        if let Err(e) = call(kind) {
            // The kernel gives the old lock back before it tries the new one.
            call(open.flock)?;
            return Err(e);
        }
        open.flock = kind;
        Ok(())
    }
}

fn flock_op(kind: Option<LockKind>) -> i32 {
    match kind {
        None => libc::LOCK_UN,
        Some(LockKind::Shared) => libc::LOCK_SH,
        Some(LockKind::Exclusive) => libc::LOCK_EX,
    }
}

fn to_flock(kind: Option<LockKind>, start: u64, end: u64) -> Result<libc::flock> {
    let kind = match kind {
        None => libc::F_UNLCK,
        Some(LockKind::Shared) => libc::F_RDLCK,
        Some(LockKind::Exclusive) => libc::F_WRLCK,
    };
    let len = if end >= i64::MAX as u64 { 0 } else { offset(end - start + 1)? };
    Ok(libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: offset(start)?,
        l_len: len,
        l_pid: 0,
    })
}
