//! Making and removing files and directories without waiting for the manager, in directories that this client has to itself under a directory lease (see
//! `format::shared` and the manager's side, `server::directories`).
//!
//! A lease is asked for after a few files were made in one directory. With it come all names there; from then on they are known here, or known to be
//! unknown: a name stands here from before any message goes out that may make it, and goes when its file was removed ([`messages`]). So a name
//! that does not stand here is free ([`found`] says so without asking), and a file with a name of which it is known that it was made here, under this very lease, can be
//! removed. A directory that is made so stands under the same lease: nothing is in it yet, so its names are known as well, and it can be removed as long as there are none.
//! Anything else in a directory is done by messages, which the manager runs behind what was posted. A client that may change the directory itself uses its lease no more.
//!
//! With the answer to a message that made a file can come the number of the lease on new files: what is written to that file is posted too, and that it is closed. So with the answer to a write
//! to a file that was there ([`super::waits`]).
//!
//! Closing a file that was made so is less than a request: its handle is put into a ring (`Region::put_close`).
//!
//! To post is: the request and its number, the slot's bit, then a look at the lease's word. All of it with one lock held, so that the order of the numbers
//! is that of the bits; a client that is killed in between has acknowledged nothing.
//!
//! What this client keeps of the directory and of what it removes holds no longer from the moment it posts (`Kept::posted`): the manager says so only when it
//! comes to it. What it has made itself, it knows (`Kept::made`).

mod ahead;
mod answers;
mod data;
mod found;
mod making;
mod messages;
mod table;

use super::call::Failed;
use super::files::OpenFile;
use super::{Remote, Session};
use crate::lock::{Mutex, MutexGuard};
use crate::region::SlotNo;
use crate::wire::{self, Op, request};
pub(super) use data::may_post;
use format::shared::{DIRECTORIES, NEW_FILES, Reply, Request, SLOTS, state};
pub(super) use found::Found;
use fs::{Attr, Error, FileType, Handle, Ino, OpenFlags, Result, Time};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use table::{Known, Name, Table};

/// Things made in one directory, one after the other, before a lease is asked for; and the most that it can become when leases are refused.
const NEED: u32 = 3;
const NEED_MAX: u32 = 1 << 9;
/// Promised inodes that are asked for at a time.
const PROMISES: u64 = 96;
/// Calls before something is asked for again that was refused: room for data, or promised inodes.
const PAUSE: u32 = 64;
/// Slots that what is posted leaves to calls that are waited for.
const SPARE: u32 = 8;
/// Slots that are to be free before one that waits for room goes on: fewer turns of waiting.
const ROOM: u32 = 24;

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
            if table.leases[self.place].as_ref().is_some_and(|lease| lease.number == 0) {
                table.end(self.place);
            }
            self.directories.counted(&table);
        }
    }
}

/// What is posted, and under which lease.
struct Post<'a> {
    place: usize,
    request: Request,
    name: &'a [u8],
}

impl Directories {
    fn counted(&self, table: &Table) {
        // Changed with the table's lock held.
        if self.count.load(Ordering::Relaxed) != table.dirs.len() {
            self.count.store(table.dirs.len(), Ordering::SeqCst);
        }
    }

    fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) != 0
    }

    /// Posts a request without strings, one way: the manager runs it behind all that were posted before. `None`: there is no room.
    pub fn post(&self, session: &Session, request: &Request) -> Option<SlotNo> {
        let mut table = self.table.lock();
        let slot = session.take_slot(None)?;
        table.post(session, slot, request, b"", None);
        Some(slot)
    }

    /// Whether the lease with this number lasts: nobody else has come to what is under it.
    pub fn lasts(&self, session: &Session, lent: u64) -> bool {
        let place = self.table.lock().place_of(lent);
        place.is_some_and(|place| session.has_lease(place, lent))
    }

    /// A file was made under the lease on new files that has this number and, if it is not known yet, so many pages of room.
    pub fn made_new(&self, lent: u64, room: u64) {
        let mut table = self.table.lock();
        // Answers of several threads come in any order.
        if table.leases[NEW_FILES].as_ref().is_none_or(|lease| lease.number < lent) {
            table.begin(NEW_FILES, lent, None, room);
        }
    }

    /// A file that is there was lent, or not: the lease is one that is known, or one on new files with so many pages of room.
    pub fn lends(&self, lent: u64, room: u64) -> bool {
        if room > 0 {
            self.made_new(lent, room);
        }
        lent != 0 && self.table.lock().place_of(lent).is_some()
    }

    /// Nothing is done here any more.
    pub fn forget(&self) {
        let mut table = self.table.lock();
        table.end_directories();
        table.leases[NEW_FILES] = None;
        table.forget_promises();
        self.counted(&table);
    }

    /// A directory is changed itself, or one of them may be.
    fn leave(&self, dir: Option<Ino>) {
        if !self.any() {
            return;
        }
        let mut table = self.table.lock();
        match dir {
            None => table.end_directories(),
            Some(dir) => {
                match table.leases.iter().position(|l| l.as_ref().is_some_and(|l| l.dir == Some(dir))) {
                    Some(place) => table.end(place),
                    None => table.forget(dir),
                }
            }
        }
        self.counted(&table);
    }

    /// Posts a change in a directory under a lease, in this slot, or one that it takes; `done` says so in the table when it counts as done.
    fn change<T: Copy>(
        &self,
        session: &Session,
        (dir, name): (Ino, &[u8]),
        slot: Option<SlotNo>,
        prepare: impl FnOnce(&mut Table, u64) -> Posting<(Request, T)>,
        done: impl FnOnce(&mut Table, T),
    ) -> Posting<T> {
        let mut table = self.table.lock();
        let Some((place, number)) = table.find(dir).map(|(dir, number)| (dir.place, number)) else {
            slot.inspect(|slot| session.give_slot(*slot));
            return Posting::Message;
        };
        let Some(slot) = slot.or_else(|| session.slot_to_post()) else { return Posting::Full };
        let (mut request, what) = match prepare(&mut table, number) {
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
        match self.send(session, table, slot, Post { place, request, name }, |table| done(table, what)) {
            true => Posting::Done(what),
            false => Posting::Ask(slot, what),
        }
    }

    /// Posts a request under a lease. False when that was taken back meanwhile; else it counts as done, and `done` says so in the table.
    fn send(
        &self,
        session: &Session,
        mut table: MutexGuard<'_, Table>,
        slot: SlotNo,
        Post { place, mut request, name }: Post<'_>,
        done: impl FnOnce(&mut Table),
    ) -> bool {
        let number = table.leases[place].as_ref().map_or(0, |lease| lease.number);
        request.extra = number.into();
        let posts = session.kept.posts();
        table.post(session, slot, &request, name, Some(place));
        // The manager takes the lease back first and then looks for what was posted.
        fence(Ordering::SeqCst);
        if !session.has_lease(place, number) {
            table.end(place);
            self.counted(&table);
            return false;
        }
        done(&mut table);
        if table.is_full() {
            table.end_directories();
        }
        self.counted(&table);
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

    /// Something was made by a message: asks for a lease if more is to be expected.
    fn wants(&self, session: &Session, dir: Ino) -> Option<Asking<'_>> {
        let mut table = self.table.lock();
        for place in 0..=NEW_FILES {
            let number = table.leases[place].as_ref().map_or(0, |lease| lease.number);
            // What was taken back since it was used last.
            if number != 0 && session.region.directory(place).load(Ordering::Relaxed) != number {
                table.end(place);
            }
        }
        self.counted(&table);
        table.clock += 1;
        let need = table.need.max(NEED);
        table.recent = if table.recent.0 == dir.0 { (dir.0, table.recent.1 + 1) } else { (dir.0, 1) };
        if table.recent.1 < need || table.dirs.contains_key(&dir) {
            return None;
        }
        table.recent.1 = 0;
        let place = table.place()?;
        table.begin(place, 0, Some(dir), 0);
        self.counted(&table);
        Some(Asking { directories: self, place, granted: false })
    }
}
