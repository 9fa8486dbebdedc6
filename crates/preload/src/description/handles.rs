//! The handle of an open file in this process's session: opened when it is used for the first time, and anew when its flags are changed.

use super::{State, release};
use crate::hook::{Res, fail};
use crate::{mounts, table};
use fs::{FileSystem, FileType, Handle, OpenFlags};
use libc::c_int;
use share::lock::{self, Mutex};
use std::sync::atomic::Ordering;

/// Handles that descriptions had before their flags were changed, which other threads may be using still.
pub(super) static FORMER: Mutex<Vec<Former>> = Mutex::new(Vec::new());

pub(super) struct Former {
    /// Where the state is.
    of: usize,
    /// Those of the flags that a handle has for ever.
    flags: c_int,
    life: u64,
    handle: Handle,
}

/// Flags of fcntl(F_SETFL) that the manager looks at, and which are fixed when a file is opened.
pub(crate) const SEEN: c_int = libc::O_APPEND | libc::O_DIRECT | libc::O_NOATIME;

impl State {
    /// Whether writes go to the end. Where another process has changed that the handle here follows.
    pub(crate) fn appends(&self) -> bool {
        let (known, now) = (self.slot.opened_with(), self.flags());
        if (known ^ now) & libc::O_APPEND != 0 {
            self.slot.note_flags(now);
            let _ = self.reopen((known & SEEN, now & SEEN));
        }
        now & libc::O_APPEND != 0
    }

    /// Opens the inode anew, with the flags as they are now: those that a handle has for ever `were` these, and `are` those. Other threads may be in a call with the
    /// handle that there was: it stays until the description ends, or the flags are such again.
    pub(crate) fn reopen(&self, (were, are): (c_int, c_int)) -> Res<()> {
        let _one = self.opening.lock();
        let (of, life) = (std::ptr::from_ref(self).addr(), mounts::life());
        let old = self.handle_if_open();
        if self.watched.load(Ordering::Relaxed) {
            // What it has locked may be with the handle that is given up.
            self.shared.store(true, Ordering::Relaxed);
        }
        let again = {
            let mut former = FORMER.lock();
            let at = former.iter().position(|f| (f.of, f.life, f.flags) == (of, life, are));
            at.map(|at| former.swap_remove(at).handle)
        };
        match again {
            Some(again) => {
                self.handle.store(again.0, Ordering::Relaxed);
                self.life.store(life, Ordering::Release);
            }
            None => _ = self.open_again()?,
        }
        match old {
            Some(old) if lock::is_single() => self.mount.run(|fs| fs.release(old))?,
            Some(handle) => {
                FORMER.lock().push(Former { of, flags: were, life, handle });
                self.has_former.store(true, Ordering::Relaxed);
            }
            None => {}
        }
        Ok(())
    }

    /// Nobody uses it any more.
    pub(super) fn end_former(&self) {
        if self.has_former.load(Ordering::Relaxed) {
            let of = std::ptr::from_ref(self).addr();
            let former: Vec<_> = FORMER.lock().extract_if(.., |f| f.of == of).collect();
            let ours = former.into_iter().filter(|f| f.life == mounts::life());
            ours.for_each(|f| release(self.mount, Some(f.handle)));
        }
    }

    pub(super) fn open_again(&self) -> Res<Handle> {
        if self.is_path() {
            return fail(libc::EBADF);
        }
        if !self.slot.lock_counts(self.mount.opening()) {
            // Nobody knows of the lock any more; others may have it.
            return fail(libc::EIO);
        }
        let inherits = self.inherits_locks();
        if inherits && self.slot.records_left().is_some_and(|is_known| !is_known(self.mount.opening())) {
            return fail(libc::EIO);
        }
        let flags = self.flags();
        self.slot.note_flags(flags);
        let handle = self.open_with(flags)?;
        if inherits && let Some(fs) = self.mount.session() {
            fs.inherits_locks(handle, table::owner());
        }
        self.handle.store(handle.0, Ordering::Relaxed);
        self.life.store(mounts::life(), Ordering::Release);
        Ok(handle)
    }

    /// Another handle of the inode, with these flags. `EBADF` when there can be none.
    pub(crate) fn open_with(&self, flags: c_int) -> Res<Handle> {
        let flags = OpenFlags::from_posix(flags) - OpenFlags::TRUNCATE - OpenFlags::EXCLUSIVE;
        let (ino, cred) = (self.ino, mounts::cred());
        let opened = self.mount.run(|fs| async move {
            let generation = self.generation();
            if self.kind != FileType::Directory {
                return fs.open_exact(cred, (ino, generation), flags).await;
            }
            let handle = fs.opendir(cred, ino).await?;
            if fs.getattr(ino, Some(handle)).await?.generation != generation {
                fs.release(handle).await?;
                return Err(fs::Error::Stale);
            }
            Ok(handle)
        });
        opened.or_else(
            |_| if self.kind == FileType::Regular { self.open_left(flags) } else { fail(libc::EBADF) },
        )
    }
}
