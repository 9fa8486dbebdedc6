//! Which descriptors are ours: a table indexed by descriptor number, of pointers to open file descriptions.
//!
//! Looking up takes no lock: descriptions are never freed (`description`), so that a pointer that was read from the table may be followed at any time. A
//! reference that was taken so counts only if the table still has the pointer after that.
//!
//! What a child of vfork opens and copies is not in the table, which is its parent's, but with the thread on which both run ([`OF_CHILD`]).

use crate::description::{self, Description, LOCKING, MOVING, Open, State};
use crate::hook::{Res, fail, inside};
use crate::memory::{self, Facts};
use crate::mounts::{self, Mount};
use crate::pool::{self, Made, Origin};
use crate::slot::{self, Slot};
use fs::{FileSystem, FileType, Handle, Ino, LockOwner};
use libc::c_int;
use share::Target;
use share::lock::{self, Apart};
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Descriptors from here on cannot be ours (`EMFILE`).
const FDS: usize = 1 << 16;

/// Neighbours stand in different lines of the processors' caches (see [`at`]): other threads open and close those.
static TABLE: Apart<[AtomicPtr<Description>; FDS]> =
    Apart([const { AtomicPtr::new(std::ptr::null_mut()) }; FDS]);
/// Entries in a line.
const ENTRIES: usize = 8;
/// Highest descriptor that ever was ours, plus one.
static TOP: AtomicUsize = AtomicUsize::new(0);

/// The entry of a descriptor.
#[inline]
fn at(fd: c_int) -> Option<&'static AtomicPtr<Description>> {
    const LINES: usize = FDS / ENTRIES;
    let fd = usize::try_from(fd).ok().filter(|&fd| fd < FDS)?;
    Some(&TABLE[fd % LINES * ENTRIES + fd / LINES])
}

/// Whether `fd` is a number that none of ours can have.
pub(crate) fn is_beyond(fd: c_int) -> bool {
    fd >= FDS as c_int
}

/// Whether `fd` is ours.
#[inline]
pub(crate) fn is_ours(fd: c_int) -> bool {
    at(fd).is_some_and(|e| !e.load(Ordering::Relaxed).is_null()) || CHILD_HAS.get() && in_child(fd).is_some()
}

/// The description of a descriptor that is ours.
#[inline]
pub(crate) fn get(fd: c_int) -> Option<Open> {
    let entry = at(fd)?;
    loop {
        let found = entry.load(Ordering::SeqCst);
        // SAFETY: descriptions are never freed.
        let Some(description) = (unsafe { found.as_ref() }) else {
            return if CHILD_HAS.get() { in_child(fd) } else { None };
        };
        // Without references it is not in the table any more.
        let open = Open::to(description, || entry.load(Ordering::SeqCst) == found);
        if open.is_some() {
            return open;
        }
        if is_moving(found) {
            crate::rings::wait();
            // It is still there only if who moved it has not come to an end.
            if is_moving(entry.load(Ordering::SeqCst)) {
                return None;
            }
        }
    }
}

/// A descriptor of a child of vfork: the number of the process, and its descriptor.
type OfChild = (u32, c_int, Open);

thread_local! {
    /// What children of vfork have opened and copied for themselves: such a child runs with the thread-local memory of the thread that made it, which waits until
    /// the child has ended or is another program. Without a destructor, as `hook::INSIDE`.
    static OF_CHILD: RefCell<ManuallyDrop<Vec<OfChild>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
    /// Whether there is anything.
    static CHILD_HAS: Cell<bool> = const { Cell::new(false) };
}

/// The number of the process that calls, which may be a child of vfork.
fn caller() -> u32 {
    // SAFETY: asks for a number.
    unsafe { libc::syscall(libc::SYS_getpid) as u32 }
}

/// What a child of vfork has opened as `fd`, if this is one. If not, what its children had is given up.
#[cold]
fn in_child(fd: c_int) -> Option<Open> {
    if mounts::borrowed_memory() {
        let of =
            |opens: &Vec<OfChild>| opens.iter().find(|o| (o.0, o.1) == (caller(), fd)).map(|o| o.2.clone());
        return OF_CHILD.with(|opens| of(opens.try_borrow().as_deref().ok()?));
    }
    let _inside = inside();
    CHILD_HAS.set(false);
    let gone =
        OF_CHILD.with(|opens| opens.try_borrow_mut().ok().map(|mut opens| std::mem::take(&mut *opens)));
    drop(gone.map(ManuallyDrop::into_inner));
    None
}

/// In a child of vfork these numbers lead nowhere now, or `open` is behind them. Those that are its parent's in the table it cannot have otherwise.
pub(crate) fn set_in_child(fds: std::ops::RangeInclusive<c_int>, open: Option<Open>) {
    if open.is_none() && !CHILD_HAS.get() {
        return;
    }
    let (caller, mut gone) = (caller(), Vec::new());
    OF_CHILD.with(|opens| {
        let Ok(mut opens) = opens.try_borrow_mut() else { return };
        gone.extend(opens.extract_if(.., |o| o.0 == caller && fds.contains(&o.1)));
        opens.extend(open.map(|open| (caller, *fds.start(), open)));
    });
    CHILD_HAS.set(true);
}

/// The description of a descriptor in a child of vfork, which has descriptors of its own, and the table of its parent.
pub(crate) fn of_child(fd: c_int) -> Option<Open> {
    of_memory(memory::number(fd)?).or_else(|| get(fd))
}

/// The description whose memory has this number.
fn of_memory(memory: u64) -> Option<Open> {
    (0..TOP.load(Ordering::Relaxed) as c_int).filter_map(get).find(|open| open.slot.is_of(memory))
}

/// A descriptor of the description that has this slot.
pub(crate) fn descriptor_of(slot: &Slot) -> Option<c_int> {
    (0..TOP.load(Ordering::Relaxed) as c_int)
        .find(|&fd| get(fd).is_some_and(|open| std::ptr::eq(open.slot, slot)))
}

/// Puts a reference into the table, or none, and gives what was there. Whoever reads the entry before that has its own reference before
/// that of the table can be given up.
fn exchange(entry: &AtomicPtr<Description>, open: Option<Open>) -> Option<Open> {
    let new = open.map_or(std::ptr::null_mut(), Open::into_raw);
    let old = lock::swap(entry, new);
    if is_moving(old) {
        // What the caller does to the descriptor now comes behind that.
        crate::rings::wait();
        return None;
    }
    // SAFETY: only this and `move_away` put pointers there, and each is taken once.
    unsafe { Open::from_raw(old) }
}

/// Whether the description that stood there is on its way out of the table.
fn is_moving(found: *mut Description) -> bool {
    std::ptr::eq(found, &raw const MOVING)
}

/// Takes a description out of the table, and has `f` give its descriptors, which have references of their own, to somebody else meanwhile; whoever looks for one waits
/// until that is done. Where it fails all is as it was.
pub(crate) fn move_away(open: &Open, f: impl FnOnce(&[c_int]) -> Res<()>) -> Res<()> {
    let moving = (&raw const MOVING).cast_mut();
    let change = |fd: c_int, from: *mut Description, to: *mut Description| {
        at(fd).is_some_and(|e| e.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok())
    };
    let mut fds = ours_in(0, usize::MAX);
    fds.retain(|&fd| change(fd, open.as_raw(), moving));
    let done = f(&fds);
    for fd in fds {
        let to = if done.is_ok() { std::ptr::null_mut() } else { open.as_raw() };
        if !change(fd, moving, to) || done.is_ok() {
            // SAFETY: the table's reference, which is there no more.
            drop(unsafe { Open::from_raw(open.as_raw()) });
        }
    }
    done
}

/// In a child of fork: a descriptor that was on its way when its parent made it leads nowhere.
pub(crate) fn forget_moving() {
    for fd in 0..TOP.load(Ordering::Relaxed) as c_int {
        let entry = at(fd).filter(|e| is_moving(e.load(Ordering::Relaxed)));
        entry.into_iter().for_each(|e| e.store(std::ptr::null_mut(), Ordering::Relaxed));
    }
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
        flush(old);
    }
    if fd < 3 {
        crate::stdio::follow(fd);
    }
    old
}

/// A descriptor goes away: POSIX has the process lose its record locks on the file, through whichever descriptor it took them.
fn flush(closed: &Open) {
    if !LOCKING.load(Ordering::Relaxed) {
        return;
    }
    closed.give_locks_up();
    for fd in 0..TOP.load(Ordering::Relaxed) as c_int {
        match get(fd) {
            Some(open) if open.is_same_file(closed) => open.give_locks_up(),
            _ => {}
        }
    }
}

/// A descriptor for a file that is opened with these flags of open(2). `EMFILE` also where the number is one that none of ours can have.
pub(crate) fn make(flags: c_int) -> Res<Made> {
    let made = pool::make(flags)?;
    if is_beyond(made.fd()) { fail(libc::EMFILE) } else { Ok(made) }
}

/// A file that was opened becomes a descriptor: `made` by [`make`], or else one that is made now. Without one the handle is closed.
pub(crate) fn insert(
    mount: &'static Mount,
    target: Target,
    flags: c_int,
    path: Option<&[u8]>,
    handle: Option<Handle>,
    made: Option<Res<Made>>,
) -> Res<c_int> {
    let made = made.unwrap_or_else(|| make(flags));
    if let (Err(_), Some(handle)) = (&made, handle) {
        let _ = mount.run(|fs| fs.release(handle));
    }
    let facts = Facts {
        mount: mount.hash,
        ino: target.ino.0,
        generation: target.generation,
        flags: flags as u32,
        kind: target.kind as u32,
        kernel_cwd: 0,
        path,
    };
    let (fd, slot, origin, unused) = made?.fill(&facts);
    let state = State::new(mount, target.ino, target.kind, slot, handle, origin);
    let open = Open::new(state, fd, unused);
    if flags & libc::O_PATH != 0 {
        // What it is of may go at any time. Should it be gone already, it is found to be so later.
        let _ = open.is_there();
    }
    if mounts::borrowed_memory() {
        // For the program that the child becomes: the handle is given up when its parent goes on.
        open.slot.publish_or_withhold(fd);
        let _ = crate::left::before_sending(fd, &open);
        set_in_child(fd..=fd, Some(open));
    } else {
        set(fd, Some(open.clone()));
        if !open.is_alone() {
            // A process is being started, or may be at any time.
            open.slot.publish_or_withhold(fd);
        }
    }
    Ok(fd)
}

/// Other processes are about to get our descriptors, or may at any time. A file that is opened meanwhile is published by who opens it.
pub(crate) fn publish() {
    let _inside = inside();
    for fd in 0..TOP.load(Ordering::Relaxed) as c_int {
        if let Some(open) = get(fd) {
            open.slot.publish_or_withhold(fd);
        }
    }
}

/// Takes in the descriptors that the program was started with.
pub(crate) fn adopt() {
    let Ok(dir) = std::fs::read_dir("/proc/self/fd") else { return };
    let fds: Vec<c_int> = dir.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
    for fd in fds {
        adopt_one(fd, None);
    }
}

/// Takes in a descriptor that another process has given to this one, if it is ours (`memory::inherited`).
pub(crate) fn adopt_one(fd: c_int, owner: Option<libc::uid_t>) {
    let Some(record) = memory::inherited(fd, owner) else { return };
    let Some(mount) = mounts::by_hash(record.mount.get()) else { return };
    let kind = record.kind.get();
    if kind & crate::cwd::CWD_MARK != 0 {
        return crate::cwd::adopt(fd, mount, &record);
    }
    let Some(kind) = FileType::from_mode(kind << 12) else { return };
    // Others of its descriptors may be here already.
    let Some(number) = memory::number(fd) else { return };
    let open = of_memory(number).unwrap_or_else(|| {
        let (ino, slot) = (Ino(record.ino.get()), slot::adopted(record, number, fd));
        let open = Open::new(State::new(mount, ino, kind, slot, None, Origin::SHARED), 0, None);
        open.inherit_locks();
        open
    });
    match mounts::borrowed_memory() {
        true => set_in_child(fd..=fd, Some(open)),
        false => set(fd, Some(open)),
    }
}

/// In a child of fork: no other thread can hold the lock.
pub(crate) fn after_fork() {
    // SAFETY: descriptions are never freed.
    let in_table = |fd| unsafe { at(fd as c_int)?.load(Ordering::Acquire).as_ref() };
    description::after_fork((0..TOP.load(Ordering::Relaxed)).filter_map(in_table));
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
