//! Making and removing files without waiting for the manager, in directories that this client has to itself under a directory lease (see
//! `format::shared` and the manager's side, `server::directories`).
//!
//! A lease is asked for after a few files were made in one directory. With it come all names there; from then on they are known here, or known to be
//! unknown: a name stands here from before any message goes out that may make it, and goes when its file was removed without a message. So a name
//! that does not stand here is free, and a file with a name of which it is known that it was made here, under this very lease, can be removed. Anything else in the directory
//! is done by messages, which the manager runs behind what was posted. A client that may change the directory itself uses its lease no more.
//!
//! With the answer to a message that made a file can come the number of the lease on new files: what is written to that file is posted too, and that it is closed.
//!
//! To post is: the request and its number, the slot's bit, then a look at the lease's word. All of it with one lock held, so that the order of the numbers
//! is that of the bits; a client that is killed in between has acknowledged nothing.
//!
//! What this client keeps of the directory and of what it removes holds no longer from the moment it posts (`Kept::posted`): the manager says so only when it
//! comes to it.

mod ahead;
mod answers;
mod data;
mod making;

use super::call::Failed;
use super::files::OpenFile;
use super::link::Link;
use super::{Remote, Session};
use crate::region::SlotNo;
use crate::wire::{self, Op, request};
use ahead::Made;
pub(super) use data::may_post;
use foldhash::fast::FixedState;
use format::shared::{DIRECTORIES, NEW_FILES, Reply, Request, SLOTS, state};
use fs::{Attr, Error, FileType, Handle, Ino, OpenFlags, Promise, Result, Time};
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

/// Files made in one directory, one after the other, before a lease is asked for; and the most that it can become when leases are refused.
const NEED: u32 = 3;
const NEED_MAX: u32 = 1 << 9;
/// Promised inodes that are asked for at a time.
const PROMISES: u64 = 96;
/// Names of one directory that are remembered.
const NAMES_MAX: usize = 1 << 18;
/// Slots that what is posted leaves to calls that are waited for.
const SPARE: u32 = 8;
/// Slots that are to be free before one that waits for room goes on: fewer turns of waiting.
const ROOM: u32 = 24;

type Name = SmallVec<[u8; 24]>;

/// What is known of a name.
#[derive(Clone, Copy, Default)]
struct Known {
    /// The inode, if it was made here and has no other name; else 0.
    ino: u64,
    /// Which one it is of those that were made here.
    nth: u64,
}

/// A directory under a lease, or for which one is asked.
struct Dir {
    /// `None`: it is the lease on new files, wherever they are.
    ino: Option<Ino>,
    /// 0 while it is asked for.
    number: u64,
    place: usize,
    attr: Option<Attr>,
    /// Names that may be there.
    names: HashMap<Name, Known, FixedState>,
    /// The names that were made here, in their order.
    made: Made,
    /// When it was used last.
    used: u64,
    /// Pages of room for data that the lease has, as the manager will count when it comes to it.
    room: u64,
    /// That is being asked for.
    asking: bool,
    /// Writes that are not posted before it is asked for again.
    pause: u32,
}

impl Dir {
    fn new(ino: Option<Ino>, place: usize, used: u64) -> Dir {
        let (names, made) = (HashMap::default(), Made::default());
        Dir { ino, number: 0, place, attr: None, names, made, used, room: 0, asking: false, pause: 0 }
    }
}

#[derive(Default)]
struct Table {
    /// Requests that were posted one way.
    posted: u64,
    dirs: SmallVec<[Dir; 2]>,
    promises: Vec<Promise>,
    /// The directory in which files were made last, and how many.
    recent: (u64, u32),
    need: u32,
}

/// See the module.
#[derive(Default)]
pub(super) struct Directories {
    /// Directories in the table.
    count: AtomicUsize,
    table: Mutex<Table>,
}

impl std::fmt::Debug for Directories {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Directories").field("count", &self.count).finish_non_exhaustive()
    }
}

/// What became of something that was to be posted.
enum Posting<T> {
    /// Not here.
    Message,
    /// When there are promises again.
    Promises,
    /// When the lease has room for data again.
    Room,
    /// When there are slots again.
    Full,
    /// It is done.
    Done(T),
    /// The lease was taken back meanwhile: the answer, in this slot, tells whether it was done.
    Ask(SlotNo, T),
}

/// A lease that is being asked for.
struct Asking<'a> {
    directories: &'a Directories,
    place: usize,
    granted: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.granted {
            let mut table = self.directories.table.lock();
            table.dirs.retain(|dir| dir.place != self.place || dir.number != 0);
            self.directories.counted(&table);
        }
    }
}

impl Directories {
    fn counted(&self, table: &Table) {
        let count = table.dirs.iter().filter(|dir| dir.ino.is_some()).count();
        self.count.store(count, Ordering::SeqCst);
    }

    fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) != 0
    }

    /// Posts a request without strings, one way: the manager runs it behind all that were posted before. `None`: there is no room.
    pub fn post(&self, session: &Session, request: &Request) -> Option<SlotNo> {
        let mut table = self.table.lock();
        let slot = session.take_slot(None)?;
        table.post(session, slot, request, b"");
        Some(slot)
    }

    /// A file was made under the lease on new files that has this number and, if it is not known yet, so many pages of room.
    pub fn made_new(&self, lent: u64, room: u64) {
        let mut table = self.table.lock();
        let used = table.posted;
        let at = table.dirs.iter().position(|dir| dir.ino.is_none());
        match at {
            // Answers of several threads come in any order.
            Some(at) if table.dirs[at].number >= lent => return,
            Some(at) => drop(table.dirs.remove(at)),
            None => {}
        }
        table.dirs.push(Dir { number: lent, room, ..Dir::new(None, NEW_FILES, used) });
    }

    /// Nothing is done here any more.
    pub fn forget(&self) {
        let mut table = self.table.lock();
        table.dirs.clear();
        table.promises.clear();
        self.counted(&table);
    }

    /// A directory is changed itself, or one of them may be.
    fn leave(&self, dir: Option<Ino>) {
        if self.any() {
            let mut table = self.table.lock();
            table.dirs.retain(|known| known.ino.is_none() || dir.is_some_and(|dir| known.ino != Some(dir)));
            self.counted(&table);
        }
    }

    /// Posts a change in a directory under a lease; `names` is changed when it counts as done.
    fn change<T: Copy>(
        &self,
        session: &Session,
        dir: Ino,
        prepare: impl FnOnce(&Dir, &mut Vec<Promise>) -> Posting<(Request, T)>,
        name: &[u8],
        done: impl FnOnce(&mut Dir, T),
    ) -> Posting<T> {
        let mut table = self.table.lock();
        let Some(at) = table.dirs.iter().position(|d| d.ino == Some(dir) && d.number != 0) else {
            return Posting::Message;
        };
        let Some(slot) = session.slot_to_post() else { return Posting::Full };
        let Table { dirs, promises, .. } = &mut *table;
        let (mut request, what) = match prepare(&dirs[at], promises) {
            Posting::Done(prepared) => prepared,
            other => {
                session.give_slot(slot);
                return match other {
                    Posting::Promises => Posting::Promises,
                    _ => Posting::Message,
                };
            }
        };
        request.first = (name.len() as u16).into();
        match self.send(session, table, (at, slot), &mut request, name, |dir| done(dir, what)) {
            true => Posting::Done(what),
            false => Posting::Ask(slot, what),
        }
    }

    /// Posts a request under the lease that stands at `at`. False when that was taken back meanwhile; else it counts as done, and `done` says so in the table.
    fn send(
        &self,
        session: &Session,
        mut table: MutexGuard<'_, Table>,
        (at, slot): (usize, SlotNo),
        request: &mut Request,
        name: &[u8],
        done: impl FnOnce(&mut Dir),
    ) -> bool {
        let (number, place) = (table.dirs[at].number, table.dirs[at].place);
        request.extra = number.into();
        let posts = session.kept.posts();
        table.post(session, slot, request, name);
        // The manager takes the lease back first and then looks for what was posted.
        fence(Ordering::SeqCst);
        let is_lent = session.region.directory(place).load(Ordering::SeqCst) == number;
        if !is_lent || session.is_dead() {
            table.dirs.remove(at);
            self.counted(&table);
            return false;
        }
        table.dirs[at].used = table.posted;
        done(&mut table.dirs[at]);
        let many = table.dirs[at].names.len() > NAMES_MAX;
        if many {
            table.dirs.remove(at);
            self.counted(&table);
        }
        drop(table);
        let mut slots = session.slots.lock();
        slots.abandoned |= 1 << slot;
        if request.op.get() == Op::Release as u16 && request.flags.get() == wire::LEFT {
            slots.tells(slot, posts);
        }
        drop(slots);
        session.ring();
        true
    }

    fn create(
        &self,
        session: &Session,
        parent: Ino,
        name: &[u8],
        (perm, flags): (u16, OpenFlags),
    ) -> Posting<(Promise, (u32, u32, u16), u64)> {
        let prepare = |dir: &Dir, promises: &mut Vec<Promise>| {
            let Some(attr) = dir.attr.filter(|_| !dir.names.contains_key(name)) else {
                return Posting::Message;
            };
            let Some(promise) = promises.pop() else { return Posting::Promises };
            let mut r = request(Op::PostCreate, parent.0);
            (r.mode, r.flags, r.other) = ((perm as u32).into(), flags.bits().into(), promise.ino.0.into());
            let owner = fs::perm::new_inode(&session.cred, &attr, FileType::Regular, perm & 0o7777);
            Posting::Done((r, (promise, owner, dir.number)))
        };
        self.change(session, parent, prepare, name, |dir, (promise, ..)| {
            let nth = dir.made.add(name);
            dir.names.insert(SmallVec::from_slice(name), Known { ino: promise.ino.0, nth });
        })
    }

    fn unlink(&self, session: &Session, parent: Ino, name: &[u8]) -> Posting<u64> {
        let prepare = |dir: &Dir, _: &mut Vec<Promise>| match dir.names.get(name) {
            Some(&Known { ino, .. }) if ino != 0 => Posting::Done((request(Op::PostUnlink, parent.0), ino)),
            _ => Posting::Message,
        };
        self.change(session, parent, prepare, name, |dir, _| {
            dir.names.remove(name);
        })
    }

    /// A file was made by a message: asks for a lease if more of them are to be expected.
    fn wants(&self, session: &Session, dir: Ino) -> Option<Asking<'_>> {
        let mut table = self.table.lock();
        // What was taken back since it was used last.
        let is_lent = |d: &mut Dir| {
            d.number == 0 || session.region.directory(d.place).load(Ordering::Relaxed) == d.number
        };
        table.dirs.retain(is_lent);
        self.counted(&table);
        let need = table.need.max(NEED);
        table.recent = if table.recent.0 == dir.0 { (dir.0, table.recent.1 + 1) } else { (dir.0, 1) };
        if table.recent.1 < need || table.dirs.iter().any(|known| known.ino == Some(dir)) {
            return None;
        }
        table.recent.1 = 0;
        let free =
            |table: &Table| (0..DIRECTORIES).find(|place| table.dirs.iter().all(|d| d.place != *place));
        if free(&table).is_none() {
            let on_directories = (0..table.dirs.len()).filter(|&at| table.dirs[at].ino.is_some());
            let oldest = on_directories.min_by_key(|&at| table.dirs[at].used)?;
            table.dirs.remove(oldest);
        }
        let place = free(&table)?;
        let used = table.posted;
        table.dirs.push(Dir::new(Some(dir), place, used));
        self.counted(&table);
        Some(Asking { directories: self, place, granted: false })
    }
}

impl Table {
    /// Posts a request in a slot.
    fn post(&mut self, session: &Session, slot: SlotNo, request: &Request, name: &[u8]) {
        let region = &session.region;
        self.posted += 1;
        region.put_payload(slot, 0, name);
        region.put(slot, &Request { more: self.posted.into(), ..*request });
        region.state(slot).store(state::POSTED, Ordering::Release);
        region.one_way().fetch_or(1 << slot, Ordering::SeqCst);
    }
}
