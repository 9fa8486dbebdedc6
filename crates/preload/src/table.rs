//! Which descriptors are ours: a table indexed by descriptor number, of pointers to open file descriptions.
//!
//! Looking up takes no lock: descriptions are never freed (`description`), so that a pointer that was read from the table may be followed at any time. A
//! reference that was taken so counts only if the table still has the pointer after that.

use crate::arena::{self, Facts};
use crate::description::{self, Description, LOCKING, Open, State};
use crate::hook::{Res, fail};
use crate::mounts::{self, Mount};
use crate::pool::{self, Made, Origin};
use fs::{FileSystem, FileType, Handle, Ino, LockOwner};
use libc::c_int;
use share::Target;
use share::lock::{self, Apart};
use std::sync::Arc;
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
        // Without references it is not in the table any more.
        let open = Open::to(description, || entry.load(Ordering::SeqCst) == found);
        if open.is_some() {
            return open;
        }
    }
}

/// The description of a descriptor in a child of vfork, which has descriptors of its own, and the table of its parent.
pub(crate) fn of_child(fd: c_int) -> Option<Open> {
    let place = arena::where_is(fd)?;
    (0..TOP.load(Ordering::Relaxed)).filter_map(|fd| get(fd as c_int)).find(|open| open.place.is_at(place))
}

/// A descriptor of the description that means this slot.
pub(crate) fn descriptor_of(place: &arena::Place) -> Option<c_int> {
    (0..TOP.load(Ordering::Relaxed) as c_int).find(|&fd| get(fd).is_some_and(|open| open.place.is(place)))
}

/// Puts a reference into the table, or none, and gives what was there. Whoever reads the entry before that has its own reference before
/// that of the table can be given up.
fn exchange(entry: &AtomicPtr<Description>, open: Option<Open>) -> Option<Open> {
    let new = open.map_or(std::ptr::null_mut(), Open::into_raw);
    // SAFETY: only this puts pointers there, and each is taken once.
    unsafe { Open::from_raw(lock::swap(entry, new)) }
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
            Some(open) if open.ino == closed.ino && std::ptr::eq(open.mount, closed.mount) => {
                open.give_locks_up()
            }
            _ => {}
        }
    }
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
    let (fd, place, origin, unused) = made?.fill(&facts);
    let state = State::new(mount, target.ino, target.kind, place, handle, origin);
    let open = Open::new(state, fd, unused);
    if flags & libc::O_PATH != 0 {
        // What it is of may go at any time. Should it be gone already, it is found to be so later.
        let _ = open.is_there();
    }
    set(fd, Some(open));
    Ok(fd)
}

/// Takes in the descriptors that the program was started with.
pub(crate) fn adopt() {
    let mut known = Vec::new();
    let Ok(dir) = std::fs::read_dir("/proc/self/fd") else { return };
    let fds: Vec<c_int> = dir.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
    fds.into_iter().for_each(|fd| adopt_one(fd, &mut known));
}

/// Takes in a descriptor that another process has given to this one, if it is ours. `known` are arenas mapped already.
pub(crate) fn adopt_one(fd: c_int, known: &mut Vec<Arc<arena::Arena>>) {
    let Some(place) = arena::inherited(fd, known) else { return };
    let slot = place.slot();
    let Some(mount) = mounts::by_hash(slot.mount.load(Ordering::Relaxed)) else { return };
    let kind = slot.kind.load(Ordering::Relaxed);
    if kind & crate::cwd::CWD_MARK != 0 {
        return crate::cwd::adopt(fd, mount, &place);
    }
    let Some(kind) = FileType::from_mode(kind << 12) else { return };
    // Others of its descriptors may be here already.
    let open = descriptor_of(&place).and_then(get).unwrap_or_else(|| {
        let ino = Ino(slot.ino.load(Ordering::Relaxed));
        Open::new(State::new(mount, ino, kind, place.clone(), None, Origin::SHARED), 0, None)
    });
    set(fd, Some(open));
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
