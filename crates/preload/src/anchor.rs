//! What stays the inode that it is without being open: the current directory, and what descriptors of O_PATH are of. The manager knows of no handle there: without this
//! an inode would be gone with its last name, and programs that have it could ask nothing of it any more (fstat(2)), while with the kernel it is there as long as they have it.
//!
//! A pin (`share::Pin`) belongs to a session. After fork and exec, and with another manager, the inode is pinned again when it is used for the first time; if it is gone by
//! then, so is the place: `ENOENT`.
//!
//! Where tested: `tests/all/processes.rs`.

use crate::hook::{Out, Res, fail};
use crate::mounts::{self, Mount};
use fs::Ino;
use share::Pin;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// See the module.
pub(crate) struct Anchor {
    mount: &'static Mount,
    ino: Ino,
    generation: u32,
    /// The life of the process and the session in which it was looked at for the last time; 0 for never.
    life: AtomicU64,
    session: AtomicU64,
    /// From a box, or null. No lock: a child of fork may come to be at any moment.
    pin: AtomicPtr<Pin>,
}

impl Anchor {
    /// Of an inode that was found just now, or once.
    pub(crate) fn new(mount: &'static Mount, ino: Ino, generation: u32) -> Anchor {
        Anchor {
            mount,
            ino,
            generation,
            life: AtomicU64::new(0),
            session: AtomicU64::new(0),
            pin: AtomicPtr::default(),
        }
    }

    /// The inode's generation.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether nothing has to be done for [`Anchor::holds`].
    #[inline]
    pub(crate) fn holds_now(&self) -> bool {
        // The root is always there.
        self.ino == Ino::ROOT || self.is_ours() && self.session.load(Ordering::Relaxed) == self.now()
    }

    /// Makes sure that it is the inode that it was. `ENOENT`.
    pub(crate) fn holds(&self) -> Res<()> {
        // Without a session the kernel serves what lies below.
        if self.holds_now() || self.now() == 0 { Ok(()) } else { self.pin() }
    }

    /// The session that there is, or 0.
    fn now(&self) -> u64 {
        self.mount.session().map_or(0, |remote| remote.session())
    }

    #[cold]
    fn pin(&self) -> Res<()> {
        let pin = match self.mount.run(|fs| fs.pin((self.ino, self.generation))) {
            Ok(pin) => Box::into_raw(Box::new(pin)),
            // It has no pin, and is told by its generation alone.
            Err(Out::Errno(libc::EINVAL | libc::EMFILE | libc::ENFILE)) => std::ptr::null_mut(),
            Err(Out::Errno(libc::ESTALE)) => return fail(libc::ENOENT),
            Err(e) => return Err(e),
        };
        self.session.store(self.now(), Ordering::Relaxed);
        self.give_back(self.pin.swap(pin, Ordering::AcqRel));
        self.life.store(mounts::life(), Ordering::Release);
        Ok(())
    }

    fn give_back(&self, pin: *mut Pin) {
        if pin.is_null() {
            return;
        }
        // SAFETY: from Box::into_raw, and taken out by who calls.
        let pin = *unsafe { Box::from_raw(pin) };
        // One of another life is that of another process.
        if self.is_ours() && !mounts::borrowed_memory() {
            let _ = self.mount.run(|fs| fs.unpin(pin));
        }
    }

    fn is_ours(&self) -> bool {
        self.life.load(Ordering::Acquire) == mounts::life()
    }
}

/// One that is made when it is needed: open files, which are many, have little room for it.
#[derive(Default)]
pub(crate) struct Later(AtomicPtr<Anchor>);

impl Later {
    #[inline]
    pub(crate) fn get(&self) -> Option<&Anchor> {
        // SAFETY: null, or from Box::into_raw below, and not freed before self is dropped.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    pub(crate) fn get_or(&self, make: impl FnOnce() -> Anchor) -> &Anchor {
        if let Some(anchor) = self.get() {
            return anchor;
        }
        let new = Box::into_raw(Box::new(make()));
        match self.0.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: as above.
            Ok(_) => unsafe { &*new },
            Err(other) => {
                // SAFETY: nobody has seen the new one; the other one is as above.
                unsafe {
                    drop(Box::from_raw(new));
                    &*other
                }
            }
        }
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        let anchor = *self.0.get_mut();
        if !anchor.is_null() {
            // SAFETY: from Box::into_raw, and nobody else's.
            drop(unsafe { Box::from_raw(anchor) });
        }
    }
}

impl Drop for Anchor {
    fn drop(&mut self) {
        let pin = std::mem::replace(self.pin.get_mut(), std::ptr::null_mut());
        self.give_back(pin);
    }
}
