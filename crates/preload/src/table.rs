//! Which descriptors are ours: a table indexed by descriptor number, of pointers to open file descriptions.
//!
//! Looking up takes no lock: descriptions are never freed, only used again, so that a pointer that was read from the table may be
//! followed at any time; a reference counts only if the table still has the pointer after it was taken. The last reference
//! closes the handle.
//!
//! A handle belongs to the session of one process. After fork and exec a description has none that counts, and opens the inode again
//! at first use; the offset is shared through the slot. What does not survive so: flock locks, an inode whose last
//! name and last handle went away in between, and files whose mode forbids opening them again (the calls fail with `EBADF`).

use crate::arena::{self, Facts, Place};
use crate::hook::{Res, fail};
use crate::mounts::{self, Mount};
use crate::pool::{self, Origin};
use fs::{FileSystem, FileType, Handle, Ino, LockOwner, OpenFlags};
use libc::c_int;
use parking_lot::{Mutex, RwLock};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Descriptors from here on cannot be ours (`EMFILE`).
const FDS: usize = 1 << 16;

static TABLE: [AtomicPtr<Description>; FDS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; FDS];
static UNUSED: Mutex<Vec<&'static Description>> = Mutex::new(Vec::new());
/// Highest descriptor that ever was ours, plus one.
static TOP: AtomicUsize = AtomicUsize::new(0);

/// An open file description.
#[derive(Default)]
pub(crate) struct Description {
    refs: AtomicUsize,
    /// None only while nobody refers to it.
    state: RwLock<Option<Arc<State>>>,
}

/// What a description is while it is open. All of it that processes share is in the slot.
pub(crate) struct State {
    pub mount: &'static Mount,
    pub ino: Ino,
    pub kind: FileType,
    pub place: Place,
    handle: AtomicU64,
    /// In which life of the process the handle was opened; 0 when there is none.
    life: AtomicU64,
    opening: Mutex<()>,
    /// The program was started with it.
    pub inherited: bool,
    /// Record locks were asked for through it.
    pub locked: AtomicBool,
    /// A copy was sent to another process.
    pub shared: AtomicBool,
    /// How the description was come by; taken when the last descriptor is closed.
    origin: Mutex<Option<Origin>>,
}

/// A reference to a description.
pub(crate) struct Open {
    description: &'static Description,
    state: Arc<State>,
}

impl Deref for Open {
    type Target = State;
    fn deref(&self) -> &State {
        &self.state
    }
}

impl Clone for Open {
    fn clone(&self) -> Open {
        self.description.refs.fetch_add(1, Ordering::Relaxed);
        Open { description: self.description, state: self.state.clone() }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        unref(self.description);
    }
}

fn unref(description: &'static Description) {
    if description.refs.fetch_sub(1, Ordering::AcqRel) == 1 {
        let state = description.state.write().take();
        if let Some(state) = state {
            state.release();
            if let Some(origin) = state.origin.lock().take() {
                let shared = state.shared.load(Ordering::Relaxed) || state.locked.load(Ordering::Relaxed);
                pool::done(state.place.clone(), origin, shared);
            }
            UNUSED.lock().push(description);
        }
    }
}

fn at(fd: c_int) -> Option<&'static AtomicPtr<Description>> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// Whether `fd` is ours.
#[inline]
pub(crate) fn is_ours(fd: c_int) -> bool {
    at(fd).is_some_and(|e| !e.load(Ordering::Relaxed).is_null())
}

/// The description of a descriptor that is ours.
#[inline]
pub(crate) fn get(fd: c_int) -> Option<Open> {
    let entry = at(fd)?;
    loop {
        let found = entry.load(Ordering::Acquire);
        // SAFETY: descriptions are never freed.
        let description: &'static Description = unsafe { found.as_ref()? };
        description.refs.fetch_add(1, Ordering::AcqRel);
        let state = description.state.read().clone();
        match state {
            Some(state) if entry.load(Ordering::Acquire) == found => {
                return Some(Open { description, state });
            }
            _ => unref(description),
        }
    }
}

/// Makes `fd` (a kernel descriptor of its slot) lead to `open`, or to nothing.
pub(crate) fn set(fd: c_int, open: Option<Open>) {
    let Some(entry) = at(fd) else { return };
    let new = match open {
        Some(open) => {
            TOP.fetch_max(fd as usize + 1, Ordering::Relaxed);
            // The table has a reference of its own; that of `open` goes away with it.
            let description = open.description;
            description.refs.fetch_add(1, Ordering::AcqRel);
            std::ptr::from_ref(description).cast_mut()
        }
        None => std::ptr::null_mut(),
    };
    let old = entry.swap(new, Ordering::AcqRel);
    // SAFETY: as in `get`.
    if let Some(old) = unsafe { old.as_ref() } {
        if let Some(state) = old.state.read().clone() {
            state.flush();
        }
        unref(old);
    }
    if fd < 3 {
        crate::stdio::follow(fd);
    }
}

/// A file that was opened becomes a descriptor.
pub(crate) fn insert(
    mount: &'static Mount,
    attr: &fs::Attr,
    flags: c_int,
    path: Option<&[u8]>,
    handle: Option<Handle>,
) -> Res<c_int> {
    let facts = Facts {
        mount: mount.hash,
        ino: attr.ino.0,
        generation: attr.generation,
        flags: flags as u32,
        kind: attr.kind as u32,
        path: path.unwrap_or(&[b'/'; 4096]),
    };
    let (fd, place, origin) = match pool::make(&facts) {
        Ok(made) if (made.0 as usize) < FDS => made,
        other => {
            if let Some(handle) = handle {
                let _ = mount.run(|fs| fs.release(handle));
            }
            let (fd, place, origin) = other?;
            // SAFETY: the descriptor was just made for us.
            unsafe { libc::syscall(libc::SYS_close, fd) };
            pool::done(place, origin, false);
            return fail(libc::EMFILE);
        }
    };
    let state = State::new(mount, attr.ino, attr.kind, place, handle, origin);
    set(fd, Some(describe(state)));
    Ok(fd)
}

fn describe(state: State) -> Open {
    let state = Arc::new(state);
    let unused = UNUSED.lock().pop();
    let description = unused.unwrap_or_else(|| Box::leak(Box::default()));
    description.refs.fetch_add(1, Ordering::AcqRel);
    *description.state.write() = Some(state.clone());
    Open { description, state }
}

/// Takes in the descriptors that the program was started with.
pub(crate) fn adopt() {
    let mut known = Vec::new();
    let Ok(dir) = std::fs::read_dir("/proc/self/fd") else { return };
    let fds: Vec<c_int> = dir.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
    let mut seen: Vec<(u64, Open)> = Vec::new();
    for fd in fds {
        let Some(place) = arena::inherited(fd, &mut known) else { continue };
        let slot = place.slot();
        let Some(mount) = mounts::by_hash(slot.mount.load(Ordering::Relaxed)) else { continue };
        let kind = slot.kind.load(Ordering::Relaxed);
        if kind & crate::cwd::CWD_MARK != 0 {
            crate::cwd::adopt(fd, mount, &place);
            continue;
        }
        let kind = kind << 12;
        let Some(kind) = FileType::from_mode(kind) else { continue };
        let address = std::ptr::from_ref(slot).addr() as u64;
        let open = match seen.iter().find(|(a, _)| *a == address) {
            Some((_, open)) => open.clone(),
            None => {
                let ino = Ino(slot.ino.load(Ordering::Relaxed));
                let state = State::new(mount, ino, kind, place.clone(), None, Origin::SHARED);
                let open = describe(State { inherited: true, ..state });
                seen.push((address, open.clone()));
                open
            }
        };
        set(fd, Some(open));
    }
}

/// In a child of fork: no other thread can hold the lock.
pub(crate) fn after_fork() {
    if UNUSED.is_locked() {
        // SAFETY: the thread that held it exists only in the parent.
        unsafe { UNUSED.force_unlock() };
    }
    for entry in &TABLE[..TOP.load(Ordering::Relaxed)] {
        // SAFETY: descriptions are never freed; the threads that held locks exist only in the parent.
        unsafe {
            let Some(description) = entry.load(Ordering::Acquire).as_ref() else { continue };
            while description.state.is_locked() {
                if description.state.is_locked_exclusive() {
                    description.state.force_unlock_write();
                } else {
                    description.state.force_unlock_read();
                }
            }
            if let Some(state) = &*description.state.read() {
                if state.opening.is_locked() {
                    state.opening.force_unlock();
                }
                if state.origin.is_locked() {
                    state.origin.force_unlock();
                }
            }
        }
    }
}

/// Descriptors of ours in a range.
pub(crate) fn ours_in(first: usize, last: usize) -> Vec<c_int> {
    let end = TOP.load(Ordering::Relaxed).min(last.saturating_add(1));
    (first.min(end)..end).map(|fd| fd as c_int).filter(|&fd| is_ours(fd)).collect()
}

/// This process as the owner of record locks.
pub(crate) fn owner() -> LockOwner {
    LockOwner(mounts::pid() as u64)
}

impl State {
    fn new(
        mount: &'static Mount,
        ino: Ino,
        kind: FileType,
        place: Place,
        handle: Option<Handle>,
        origin: Origin,
    ) -> State {
        State {
            mount,
            ino,
            kind,
            place,
            handle: AtomicU64::new(handle.map_or(0, |h| h.0)),
            life: AtomicU64::new(handle.map_or(0, |_| mounts::life())),
            opening: Mutex::new(()),
            inherited: false,
            locked: AtomicBool::new(false),
            shared: AtomicBool::new(false),
            origin: Mutex::new(Some(origin)),
        }
    }

    /// The flags of open(2).
    pub(crate) fn flags(&self) -> c_int {
        self.place.slot().flags.load(Ordering::Relaxed) as c_int
    }

    pub(crate) fn readable(&self) -> bool {
        self.flags() & libc::O_PATH == 0 && self.flags() & libc::O_ACCMODE != libc::O_WRONLY
    }

    pub(crate) fn writable(&self) -> bool {
        self.flags() & libc::O_PATH == 0 && self.flags() & libc::O_ACCMODE != libc::O_RDONLY
    }

    /// The handle in this process's session; `EBADF` when there can be none.
    pub(crate) fn handle(&self) -> Res<Handle> {
        if let Some(handle) = self.handle_if_open() {
            return Ok(handle);
        }
        let Some(_one) = self.opening.try_lock_for(std::time::Duration::from_secs(5)) else {
            return fail(libc::EIO);
        };
        if let Some(handle) = self.handle_if_open() {
            return Ok(handle);
        }
        self.open_again()
    }

    /// Opens the inode anew, with the flags as they are now.
    pub(crate) fn reopen(&self) -> Res<()> {
        let _one = self.opening.lock();
        let old = self.handle_if_open();
        self.open_again()?;
        if let Some(old) = old {
            self.mount.run(|fs| fs.release(old))?;
        }
        Ok(())
    }

    fn open_again(&self) -> Res<Handle> {
        if self.flags() & libc::O_PATH != 0 {
            return fail(libc::EBADF);
        }
        let flags = OpenFlags::from_posix(self.flags()) - OpenFlags::TRUNCATE - OpenFlags::EXCLUSIVE;
        let (ino, cred) = (self.ino, mounts::cred());
        let opened = self.mount.run(|fs| async move {
            let handle = match self.kind {
                FileType::Directory => fs.opendir(cred, ino).await?,
                _ => fs.open(cred, ino, flags).await?,
            };
            let attr = fs.getattr(ino, Some(handle)).await?;
            if attr.generation != self.place.slot().generation.load(Ordering::Relaxed) {
                fs.release(handle).await?;
                return Err(fs::Error::Stale);
            }
            Ok(handle)
        });
        let Ok(handle) = opened else { return fail(libc::EBADF) };
        self.handle.store(handle.0, Ordering::Relaxed);
        self.life.store(mounts::life(), Ordering::Release);
        Ok(handle)
    }

    /// The handle, if this process has one already.
    pub(crate) fn handle_if_open(&self) -> Option<Handle> {
        let open = self.life.load(Ordering::Acquire) == mounts::life();
        open.then(|| Handle(self.handle.load(Ordering::Relaxed)))
    }

    /// The path below the mount, beginning with a slash unless empty.
    pub(crate) fn path(&self) -> Option<&[u8]> {
        self.place.path()
    }

    /// A descriptor goes away: POSIX has the process lose its record locks on the file.
    fn flush(&self) {
        if self.locked.load(Ordering::Relaxed)
            && let Some(handle) = self.handle_if_open()
        {
            let _ = self.mount.run(|fs| fs.flush(handle, owner()));
        }
    }

    /// Descriptor `fd` of ours is about to be closed.
    pub(crate) fn closing(&self, fd: c_int) {
        if let Some(origin) = &mut *self.origin.lock() {
            origin.keep(fd);
        }
    }

    fn release(&self) {
        if let Some(handle) = self.handle_if_open() {
            let _ = self.mount.run(|fs| fs.release(handle));
        }
    }
}
