//! Which descriptors are ours: a table indexed by descriptor number, of pointers to open file descriptions.
//!
//! Looking up takes no lock: descriptions are never freed, only used again, so that a pointer that was read from the table may be
//! followed at any time. A description that nobody refers to gets no reference that way; one that was taken counts only if the table
//! still has the pointer after that. The last reference closes the handle.
//!
//! A handle belongs to the session of one process. After fork and exec a description has none that counts, and opens the inode again
//! at first use; the offset is shared through the slot, and a lock of flock(2) through the manager. What does not survive so: an inode whose last
//! name and last handle went away in between, and files whose mode forbids opening them again (the calls fail with `EBADF`).

use crate::arena::{self, Facts, Place};
use crate::hook::{Res, fail};
use crate::mounts::{self, Mount};
use crate::pool::{self, Made, Origin};
use fs::{FileSystem, FileType, Handle, Ino, LockOwner, OpenFlags};
use libc::c_int;
use share::Target;
use share::lock::{self, Mutex};
use std::cell::UnsafeCell;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Descriptors from here on cannot be ours (`EMFILE`).
const FDS: usize = 1 << 16;

static TABLE: [AtomicPtr<Description>; FDS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; FDS];
static UNUSED: Mutex<Vec<&'static Description>> = Mutex::new(Vec::new());
/// Highest descriptor that ever was ours, plus one.
static TOP: AtomicUsize = AtomicUsize::new(0);

/// A file of ours was locked by this process or one that it comes from.
static LOCKING: AtomicBool = AtomicBool::new(false);

/// An open file description.
#[derive(Default)]
pub(crate) struct Description {
    refs: AtomicUsize,
    /// Whoever has a reference may read it. While there are none, it belongs to who gave up the last one, and then to who takes the
    /// description from [`UNUSED`].
    state: UnsafeCell<Option<State>>,
}

// SAFETY: the state can be shared and sent (checked below), and is written only by its one owner as said above.
unsafe impl Sync for Description {}
const _: fn() = || {
    fn both<T: Send + Sync>() {}
    both::<State>();
};

/// What a description is while it is open. All of it that processes share is in the slot.
pub(crate) struct State {
    pub mount: &'static Mount,
    pub ino: Ino,
    pub kind: FileType,
    pub place: Place,
    handle: AtomicU64,
    /// In which life of the process the handle was opened; 0 when there is none.
    life: AtomicU64,
    opening: parking_lot::Mutex<()>,
    /// Record locks were asked for through it.
    locked: AtomicBool,
    /// A lock of the whole file was asked for through it.
    pub flocked: AtomicBool,
    /// A copy was sent to another process.
    pub shared: AtomicBool,
    /// How the description was come by, and whether it was kept from the beginning.
    origin: Mutex<Origin>,
    is_kept: bool,
}

/// A reference to a description.
pub(crate) struct Open {
    description: &'static Description,
}

impl Deref for Open {
    type Target = State;
    #[inline]
    fn deref(&self) -> &State {
        // SAFETY: nobody writes while there is a reference.
        unsafe { (*self.description.state.get()).as_ref() }
            .expect("it has a state while there are references")
    }
}

impl Clone for Open {
    fn clone(&self) -> Open {
        self.description.refs.fetch_add(1, Ordering::Relaxed);
        Open { description: self.description }
    }
}

impl Drop for Open {
    #[inline]
    fn drop(&mut self) {
        if lock::decrease(&self.description.refs) == 1 {
            end(self.description);
        }
    }
}

/// The last reference is gone.
#[inline(never)]
fn end(description: &'static Description) {
    // SAFETY: nobody gets a reference from none (see `get`), so it is this thread's alone until it is in `UNUSED`.
    let state = unsafe { (*description.state.get()).take() };
    if let Some(state) = state {
        let flocked = state.flocked.load(Ordering::Relaxed);
        let shared = flocked || state.shared.load(Ordering::Relaxed) || state.locked.load(Ordering::Relaxed);
        let (mount, handle) = (state.mount, state.handle_if_open());
        let done = || pool::done(state.place, state.origin.into_inner(), shared);
        // The manager looks whether others have the description of a locked file, which this process has no longer: also not for another
        // file (`pool`).
        if flocked {
            done();
            release(mount, handle);
        } else {
            release(mount, handle);
            done();
        }
    }
    UNUSED.lock().push(description);
}

fn release(mount: &'static Mount, handle: Option<Handle>) {
    let Some(handle) = handle else { return };
    if !mount.session().is_some_and(|fs| fs.close_now(handle)) {
        let _ = mount.run(|fs| fs.release(handle));
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
        let found = entry.load(Ordering::SeqCst);
        // SAFETY: descriptions are never freed.
        let description: &'static Description = unsafe { found.as_ref()? };
        let refs = description.refs.load(Ordering::Relaxed);
        // Without references it is not in the table any more.
        if refs > 0 && lock::exchange(&description.refs, refs, refs + 1) {
            let open = Open { description };
            if entry.load(Ordering::SeqCst) == found {
                return Some(open);
            }
        }
    }
}

/// The description of a descriptor in a child of vfork, which has descriptors of its own, and the table of its parent.
pub(crate) fn of_child(fd: c_int) -> Option<Open> {
    let place = arena::where_is(fd)?;
    (0..TOP.load(Ordering::Relaxed)).filter_map(|fd| get(fd as c_int)).find(|open| open.place.is_at(place))
}

/// Puts a reference into the table, or none, and gives what was there. Whoever reads the entry before that has its own reference before
/// that of the table can be given up.
fn exchange(entry: &AtomicPtr<Description>, open: Option<Open>) -> Option<Open> {
    let new = open.map_or(std::ptr::null_mut(), |open| {
        let description = std::mem::ManuallyDrop::new(open).description;
        std::ptr::from_ref(description).cast_mut()
    });
    // SAFETY: as in `get`; the reference was the table's.
    unsafe { entry.swap(new, Ordering::SeqCst).as_ref() }.map(|description| Open { description })
}

/// Makes `fd` (a kernel descriptor of its slot) lead to `open`, or to nothing.
pub(crate) fn set(fd: c_int, open: Option<Open>) {
    drop(replace(fd, open));
}

/// As [`set`], and gives what was there.
pub(crate) fn replace(fd: c_int, open: Option<Open>) -> Option<Open> {
    let entry = at(fd)?;
    if open.is_some() && TOP.load(Ordering::Relaxed) <= fd as usize {
        TOP.fetch_max(fd as usize + 1, Ordering::Relaxed);
    }
    let old = exchange(entry, open);
    if let Some(old) = &old {
        old.flush();
    }
    if fd < 3 {
        crate::stdio::follow(fd);
    }
    old
}

/// A file that was opened becomes a descriptor: `made`, or else one that is made now. Without one the handle is closed.
pub(crate) fn insert(
    mount: &'static Mount,
    target: Target,
    flags: c_int,
    path: Option<&[u8]>,
    handle: Option<Handle>,
    made: Option<Res<Made>>,
) -> Res<c_int> {
    let made = match made.unwrap_or_else(|| pool::make(flags)) {
        Ok(made) if (made.fd() as usize) < FDS => Ok(made),
        Ok(_) => fail(libc::EMFILE),
        Err(e) => Err(e),
    };
    if let (Err(_), Some(handle)) = (&made, handle) {
        let _ = mount.run(|fs| fs.release(handle));
    }
    let facts = Facts {
        mount: mount.hash,
        ino: target.ino.0,
        generation: target.generation,
        flags: flags as u32,
        kind: target.kind as u32,
        path: path.unwrap_or(&[b'/'; 4096]),
    };
    let (fd, place, origin) = made?.fill(&facts);
    set(fd, Some(describe(State::new(mount, target.ino, target.kind, place, handle, origin))));
    Ok(fd)
}

fn describe(state: State) -> Open {
    let unused = UNUSED.lock().pop();
    let description = unused.unwrap_or_else(|| Box::leak(Box::default()));
    // SAFETY: without references it is this thread's alone.
    unsafe { *description.state.get() = Some(state) };
    // Whoever still looks at it for another descriptor gets the state with the reference.
    description.refs.store(1, Ordering::Release);
    Open { description }
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
                let open = describe(state);
                seen.push((address, open.clone()));
                open
            }
        };
        set(fd, Some(open));
    }
}

/// In a child of fork: no other thread can hold the lock.
pub(crate) fn after_fork() {
    // SAFETY: we are the only thread.
    unsafe { crate::hook::alone(&UNUSED) };
    for entry in &TABLE[..TOP.load(Ordering::Relaxed)] {
        // SAFETY: descriptions are never freed; the threads that held locks exist only in the parent.
        unsafe {
            let Some(description) = entry.load(Ordering::Acquire).as_ref() else { continue };
            if let Some(state) = &*description.state.get() {
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
            opening: parking_lot::Mutex::new(()),
            locked: AtomicBool::new(false),
            flocked: AtomicBool::new(false),
            shared: AtomicBool::new(false),
            is_kept: origin.is_kept(),
            origin: Mutex::new(origin),
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
        let locked = self.place.slot().locked.load(Ordering::Relaxed);
        if locked != 0 && locked != self.mount.opening() {
            // Nobody knows of the lock any more; others may have it.
            return fail(libc::EIO);
        }
        let flags = OpenFlags::from_posix(self.flags()) - OpenFlags::TRUNCATE - OpenFlags::EXCLUSIVE;
        let (ino, cred) = (self.ino, mounts::cred());
        let opened = self.mount.run(|fs| async move {
            let generation = self.place.slot().generation.load(Ordering::Relaxed);
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

    /// Record locks are asked for through it.
    pub(crate) fn locks(&self) {
        self.locked.store(true, Ordering::SeqCst);
        LOCKING.store(true, Ordering::SeqCst);
    }

    /// A descriptor goes away: POSIX has the process lose its record locks on the file, through whichever descriptor it took them.
    fn flush(&self) {
        if !LOCKING.load(Ordering::Relaxed) {
            return;
        }
        self.give_locks_up();
        for fd in 0..TOP.load(Ordering::Relaxed) as c_int {
            match get(fd) {
                Some(open) if open.ino == self.ino && std::ptr::eq(open.mount, self.mount) => {
                    open.give_locks_up()
                }
                _ => {}
            }
        }
    }

    fn give_locks_up(&self) {
        if self.locked.load(Ordering::SeqCst)
            && let Some(handle) = self.handle_if_open()
        {
            let _ = self.mount.run(|fs| fs.flush(handle, owner()));
        }
    }

    /// Descriptor `fd` of ours is about to be closed.
    pub(crate) fn closing(&self, fd: c_int) {
        if !self.is_kept {
            self.origin.lock().keep(fd);
        }
    }
}
