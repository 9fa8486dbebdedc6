//! What a descriptor of ours leads to in this process: an open file description.
//!
//! Descriptions are never freed, only used again, so that a pointer to one may be followed at any time. One that nobody refers to gets no reference. The last
//! reference closes the handle.
//!
//! A handle belongs to the session of one process. After fork and exec a description has none that counts, and opens the inode again
//! at first use, or as one to whom it was left (`left`); the offset is the kernel's (`slot`), and a lock of flock(2) through the manager.

mod handles;

pub(crate) use handles::SEEN;

use crate::anchor::{Anchor, Later};
use crate::hook::{Res, free};
use crate::mounts::{self, Mount};
use crate::pool::{self, Made, Origin, Since};
use crate::slot::{self, Slot};
use crate::table;
use fs::{FileSystem, FileType, Handle, Ino};
use libc::c_int;
use share::lock::{self, Apart, Mutex};
use std::cell::UnsafeCell;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// Descriptions that nobody uses: those that were given up on one processor are used on that one again, as long as there are some.
static UNUSED: [Apart<Mutex<Vec<&'static Description>>>; PARTS] =
    [const { Apart(Mutex::new(Vec::new())) }; PARTS];
const PARTS: usize = 8;
/// How many descriptions there are.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// A file of ours was locked by this process or one that it comes from.
pub(crate) static LOCKING: AtomicBool = AtomicBool::new(false);

/// An open file description. Two do not share a line of the processors' caches.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Description {
    refs: AtomicUsize,
    /// The descriptor with which it was opened; 0 when there were others, or it was changed.
    number: AtomicI32,
    /// Whoever has a reference may read it. While there are none, it belongs to who gave up the last one, and then to who takes the
    /// description from [`UNUSED`].
    state: UnsafeCell<Option<State>>,
}

const _: () = assert!(size_of::<Description>() == 128);

// SAFETY: the state can be shared and sent (checked below), and is written only by its one owner as said above.
unsafe impl Sync for Description {}
const _: fn() = || {
    fn both<T: Send + Sync>() {}
    both::<State>();
};

/// What a description is while it is open. What processes share of it is in the slot.
pub(crate) struct State {
    pub mount: &'static Mount,
    pub ino: Ino,
    pub kind: FileType,
    pub slot: &'static Slot,
    handle: AtomicU64,
    /// In which life of the process the handle was opened; 0 when there is none.
    life: AtomicU64,
    /// One thread at a time opens it, or says what it has locked.
    opening: parking_lot::Mutex<()>,
    /// What keeps the inode while there is no handle.
    anchor: Later,
    /// The process asked for record locks through it.
    locked: AtomicBool,
    /// In which life of the process there are some that an earlier program of the process took; 0 when there are none.
    inherits: AtomicU64,
    /// There may be some in [`FORMER`].
    has_former: AtomicBool,
    /// The manager may look whether others have it: a lock of its own was asked for, or the file was left to them.
    watched: AtomicBool,
    /// A copy was sent to another process.
    pub shared: AtomicBool,
    /// How the description was come by, since when, and whether it was kept from the beginning.
    origin: Mutex<Origin>,
    since: Since,
    is_kept: bool,
}

/// A reference to a description.
pub(crate) struct Open {
    description: &'static Description,
}

/// One that nobody uses: it stands in the table for a description that is on its way out, so that whoever looks there looks again (`rings`).
pub(crate) static MOVING: Description =
    Description { refs: AtomicUsize::new(0), number: AtomicI32::new(0), state: UnsafeCell::new(None) };

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

impl Open {
    /// A description that was opened with this descriptor; 0 when that is not known. `unused` is one that nobody uses, if the caller has it.
    pub(crate) fn new(state: State, number: c_int, unused: Option<&'static Description>) -> Open {
        let description = unused.or_else(unused_one).unwrap_or_else(new_one);
        // SAFETY: without references it is this thread's alone.
        unsafe { *description.state.get() = Some(state) };
        description.number.store(number, Ordering::Relaxed);
        // Whoever still looks at it for another descriptor gets the state with the reference.
        description.refs.store(1, Ordering::Release);
        Open { description }
    }

    /// A new reference, if there are others, and it is `still` the description that is looked for when there is one more.
    #[inline]
    pub(crate) fn to(description: &'static Description, still: impl FnOnce() -> bool) -> Option<Open> {
        let refs = description.refs.load(Ordering::Relaxed);
        if refs == 0 || !lock::exchange(&description.refs, refs, refs + 1) {
            return None;
        }
        let open = Open { description };
        still().then_some(open)
    }

    /// The reference as a pointer.
    pub(crate) fn into_raw(self) -> *mut Description {
        std::ptr::from_ref(std::mem::ManuallyDrop::new(self).description).cast_mut()
    }

    /// The reference that was made such a pointer.
    ///
    /// # Safety
    /// Null or from [`Open::into_raw`], once.
    pub(crate) unsafe fn from_raw(raw: *mut Description) -> Option<Open> {
        // SAFETY: as the caller says; descriptions are never freed.
        unsafe { raw.as_ref() }.map(|description| Open { description })
    }

    /// Whether there are so many references, and no more.
    pub(crate) fn has_only(&self, count: usize) -> bool {
        self.description.refs.load(Ordering::SeqCst) == count
    }

    /// The description, for comparisons.
    pub(crate) fn as_raw(&self) -> *mut Description {
        std::ptr::from_ref(self.description).cast_mut()
    }

    /// The descriptor has company, or other flags than it was opened with.
    pub(crate) fn changed(&self) {
        self.description.number.store(0, Ordering::Relaxed);
    }

    /// Whether nobody but `fd` means the description, and that as it was opened.
    pub(crate) fn is_as_opened(&self, fd: c_int) -> bool {
        self.description.number() == fd && !self.is_shared() && self.since.is_alone()
    }

    /// Gives up the only reference, which the table has no more, and the handle. The rest stays as it is, and means nothing to anybody.
    pub(crate) fn into_parked(self) -> Result<&'static Description, Open> {
        if !lock::exchange(&self.description.refs, 1, 0) {
            return Err(self);
        }
        let description = std::mem::ManuallyDrop::new(self).description;
        // SAFETY: without references it is this thread's alone, as long as it is in no table.
        if let Some(state) = unsafe { &*description.state.get() } {
            release(state.mount, state.handle_if_open());
            state.life.store(0, Ordering::Relaxed);
        }
        Ok(description)
    }
}

/// What is done with a description from [`Open::into_parked`]: by its owner alone.
impl Description {
    /// The descriptor with which it was opened.
    #[inline]
    pub(crate) fn number(&self) -> c_int {
        self.number.load(Ordering::Relaxed)
    }

    /// Its descriptor for a file to be opened, if its state is such, and no process was started meanwhile.
    pub(crate) fn made_again(&'static self, fits: impl FnOnce(&State) -> bool) -> Option<Made> {
        // SAFETY: it is this thread's alone.
        let state = unsafe { &mut *self.state.get() };
        let state = state.take_if(|state| fits(state) && state.since.is_alone())?;
        Some(Made::again(self.number(), state.slot, state.origin.into_inner(), self))
    }

    /// Nobody uses it any more.
    pub(crate) fn leave(&'static self) {
        UNUSED[lock::part_here(PARTS)].lock().push(self);
    }

    /// Closes its descriptor, which is all that is left of it.
    pub(crate) fn end_parked(&'static self) {
        self.close_number();
        end(self);
    }

    /// As [`Description::end_parked`], without what needs locks: it is lost.
    pub(crate) fn close_number(&'static self) {
        // SAFETY: the descriptor is ours, and closed for the program.
        unsafe { libc::syscall(libc::SYS_close, self.number()) };
        crate::parked::freed(self.number());
    }
}

/// One that nobody uses, rather one of this processor.
fn unused_one() -> Option<&'static Description> {
    let here = lock::part_here(PARTS);
    (here..here + PARTS).find_map(|part| UNUSED[part % PARTS].lock().pop())
}

/// A new one. All that there are have room in each part of [`UNUSED`]: they are left there by calls that go to libc, which handlers of signals may make in the middle of malloc.
#[cold]
fn new_one() -> &'static Description {
    let made = MADE.fetch_add(1, Ordering::Relaxed) + 1;
    if made == 1 || made >= 16 && made.is_power_of_two() {
        for part in &UNUSED {
            let mut roomy = Vec::with_capacity((2 * made).max(32));
            // Nothing is allocated or freed while others may wait for the lock.
            let mut unused = part.lock();
            roomy.append(&mut unused);
            std::mem::swap(&mut *unused, &mut roomy);
            drop(unused);
        }
    }
    Box::leak(Box::default())
}

/// The last reference is gone.
#[inline(never)]
fn end(description: &'static Description) {
    // SAFETY: nobody gets a reference from none (see `get`), so it is this thread's alone until it is in `UNUSED`.
    let state = unsafe { &mut *description.state.get() };
    state.iter().for_each(State::end_former);
    let state = state.take();
    if let Some(state) = state {
        let (mount, handle) = (state.mount, state.handle_if_open());
        crate::left::at_end(&state);
        let watched = state.watched.load(Ordering::Relaxed);
        let mut shared = state.is_known_to_others() || state.slot.is_published();
        let origin = state.origin.into_inner();
        if !watched {
            release(mount, handle);
        } else if !shared
            && let (Some(fd), Some(handle)) = (origin.kept(), handle)
            && state.slot.is_locked_by(fd, None).and_then(|()| state.slot.show(fd, false)).is_ok()
        {
            // Nobody has it any more. What it had locked is free before another file is opened with it.
            shared = mount.run(|fs| fs.release(handle)).is_err();
        } else {
            shared = true;
        }
        pool::done(state.slot, origin, shared);
        if watched && shared {
            // The manager looks whether others have the description, which this process has no longer.
            release(mount, handle);
        }
    }
    description.leave();
}

fn release(mount: &'static Mount, handle: Option<Handle>) {
    let Some(handle) = handle else { return };
    if !mount.session().is_some_and(|fs| fs.close_now(handle)) {
        let _ = mount.run(|fs| fs.release(handle));
    }
}

impl State {
    pub(crate) fn new(
        mount: &'static Mount,
        ino: Ino,
        kind: FileType,
        slot: &'static Slot,
        handle: Option<Handle>,
        origin: Origin,
    ) -> State {
        State {
            mount,
            ino,
            kind,
            slot,
            handle: AtomicU64::new(handle.map_or(0, |h| h.0)),
            life: AtomicU64::new(handle.map_or(0, |_| mounts::life())),
            opening: parking_lot::Mutex::new(()),
            anchor: Later::default(),
            locked: AtomicBool::new(false),
            inherits: AtomicU64::new(0),
            has_former: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            shared: AtomicBool::new(false),
            since: origin.since(),
            is_kept: origin.is_kept(),
            origin: Mutex::new(origin),
        }
    }

    /// The flags of open(2).
    pub(crate) fn flags(&self) -> c_int {
        self.slot.flags()
    }

    /// Whether it can only be looked at.
    pub(crate) fn is_path(&self) -> bool {
        self.slot.opened_with() & libc::O_PATH != 0
    }

    /// The generation of the inode.
    pub(crate) fn generation(&self) -> u32 {
        self.slot.record().generation.get()
    }

    pub(crate) fn readable(&self) -> bool {
        let flags = self.slot.opened_with();
        flags & libc::O_PATH == 0 && flags & libc::O_ACCMODE != libc::O_WRONLY
    }

    pub(crate) fn writable(&self) -> bool {
        let flags = self.slot.opened_with();
        flags & libc::O_PATH == 0 && flags & libc::O_ACCMODE != libc::O_RDONLY
    }

    /// The handle in this process's session; `EBADF` when there can be none.
    pub(crate) fn handle(&self) -> Res<Handle> {
        if let Some(handle) = self.handle_if_open() {
            return Ok(handle);
        }
        let _one = self.opening.lock();
        if let Some(handle) = self.handle_if_open() {
            return Ok(handle);
        }
        self.open_again()
    }

    /// Makes sure, where it has no handle here, that it is still the inode that it was: nothing else would tell. `ENOENT`.
    pub(crate) fn is_there(&self) -> Res<()> {
        if self.handle_if_open().is_some() {
            return Ok(());
        }
        self.anchor.get_or(|| Anchor::new(self.mount, self.ino, self.generation())).holds()
    }

    /// Whether that is known.
    #[inline]
    pub(crate) fn is_there_now(&self) -> bool {
        self.handle_if_open().is_some() || self.anchor.get().is_some_and(|anchor| anchor.holds_now())
    }

    /// The handle, if this process has one already.
    pub(crate) fn handle_if_open(&self) -> Option<Handle> {
        let open = self.life.load(Ordering::Acquire) == mounts::life();
        open.then(|| Handle(self.handle.load(Ordering::Relaxed)))
    }

    /// The path below the mount, beginning with a slash unless empty.
    pub(crate) fn path(&self) -> Option<&[u8]> {
        self.slot.path()
    }

    /// Whether it is of the same file.
    pub(crate) fn is_same_file(&self, other: &State) -> bool {
        self.ino == other.ino && std::ptr::eq(self.mount, other.mount)
    }

    /// The process asks for record locks through it.
    pub(crate) fn locks(&self) {
        self.locked.store(true, Ordering::SeqCst);
        LOCKING.store(true, Ordering::SeqCst);
    }

    /// The record locks of this process on the file, as far as they were asked for through it.
    pub(crate) fn give_locks_up(&self) {
        if let Some(Ok(handle)) = self.handle_for_locks() {
            let _ = self.mount.run(|fs| fs.flush(handle, table::owner()));
        }
    }

    /// This process is about to become another program. Record locks on the file `stay`, if this description does, or end with the session.
    pub(crate) fn keep_locks(&self, stay: bool) -> Res<()> {
        let Some(handle) = self.handle_for_locks() else { return Ok(()) };
        let handle = handle?;
        if stay {
            self.slot.records_stay(self.slot.descriptor(), self.mount.opening())?;
        }
        self.mount.run(|fs| fs.keep_locks(handle, stay))
    }

    /// The handle, if this process may have record locks through it.
    fn handle_for_locks(&self) -> Option<Res<Handle>> {
        if !self.locked.load(Ordering::SeqCst) {
            return None;
        }
        if self.inherits_locks() { Some(self.handle()) } else { self.handle_if_open().map(Ok) }
    }

    /// Whether an earlier program of this process has left record locks that it took through it.
    fn inherits_locks(&self) -> bool {
        self.inherits.load(Ordering::Relaxed) == mounts::life()
    }

    /// The program has just begun, with this description. There may be record locks that the program before it took.
    pub(crate) fn inherit_locks(&self) {
        if self.slot.records_left().is_some() {
            self.inherits.store(mounts::life(), Ordering::Relaxed);
            self.locks();
        }
    }

    /// From now on the manager may have to know who else has the description behind `fd`, should this process end.
    pub(crate) fn watch(&self, fd: c_int) -> Res<()> {
        self.slot.show(fd, true)?;
        self.watched.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Runs a call that has the description behind `fd` lock something, or give it up, and says whether it has locks then: all who have it are told.
    pub(crate) fn locked_by(&self, fd: c_int, locks: bool, call: impl FnOnce() -> Res<bool>) -> Res<()> {
        // Giving up is over, and said, before another thread says that it has got something; who waits for that keeps nobody back.
        let first = (!locks).then(|| self.opening.lock());
        let locked = call()?;
        let _one = first.unwrap_or_else(|| self.opening.lock());
        self.slot.is_locked_by(fd, locked.then(|| self.mount.opening()))?;
        if locks {
            self.slot.show(fd, true)
        } else if locked || self.slot.is_published() {
            // Another process may be about to lock something.
            Ok(())
        } else {
            self.slot.show(fd, false)
        }
    }

    /// Whether no other process can have the description, nor could since it was opened.
    pub(crate) fn is_alone(&self) -> bool {
        self.since.is_alone()
    }

    /// As [`State::is_alone`], and there is no lock by it.
    pub(crate) fn is_private(&self) -> bool {
        self.is_alone() && !self.is_shared() && !self.slot.is_published()
    }

    /// Whether others may have the description, or a lock by it.
    fn is_shared(&self) -> bool {
        self.is_known_to_others() || self.watched.load(Ordering::Relaxed)
    }

    /// Whether a copy was sent, or it has record locks.
    fn is_known_to_others(&self) -> bool {
        [&self.shared, &self.locked].iter().any(|is| is.load(Ordering::Relaxed))
    }

    /// Descriptor `fd` of ours is about to be closed.
    pub(crate) fn closing(&self, fd: c_int) {
        if !self.is_kept {
            self.origin.lock().keep(fd);
        }
    }
}

/// In a child of fork: no other thread can hold the locks.
pub(crate) fn after_fork(in_table: impl Iterator<Item = &'static Description>) {
    // SAFETY: we are the only thread.
    unsafe {
        UNUSED.iter().for_each(|part| crate::hook::alone(part));
        crate::hook::alone(&handles::FORMER);
    }
    for description in in_table {
        // SAFETY: the threads that held locks exist only in the parent.
        unsafe {
            if let Some(state) = &*description.state.get() {
                free(&state.opening);
                state.slot.after_fork();
                free(&state.origin);
                slot::is_used(state.slot);
            }
        }
    }
    slot::close_unused();
}
