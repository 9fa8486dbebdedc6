//! Making and removing files without waiting for the manager, in directories that this client has to itself under a directory lease (see
//! `format::shared` and the manager's side, `server::directories`).
//!
//! A lease is asked for after a few files were made in one directory. With it come all names there; from then on they are known here, or known to be
//! unknown: a name stands here from before any message goes out that may make it, and goes when its file was removed without a message. So a name
//! that does not stand here is free, and a file with a name of which it is known that it was made here, under this very lease, can be removed. Anything else in the directory
//! is done by messages, which the manager runs behind what was posted. A client that may change the directory itself uses its lease no more.
//!
//! To post is: the request and its number, the slot's bit, then a look at the lease's word. All of it with one lock held, so that the order of the numbers
//! is that of the bits; a client that is killed in between has acknowledged nothing.
//!
//! What this client keeps of the directory and of what it removes holds no longer from the moment it posts (`Kept::posted`): the manager says so only when it
//! comes to it.

use super::call::Failed;
use super::files::OpenFile;
use super::link::Link;
use super::{Remote, Session};
use crate::region::SlotNo;
use crate::wire::{self, Op, request};
use foldhash::fast::FixedState;
use format::shared::{DIRECTORIES, Reply, Request, SLOTS, state};
use fs::{Attr, Error, FileType, Handle, Ino, OpenFlags, Promise, Result, Time};
use parking_lot::Mutex;
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

/// A directory under a lease, or for which one is asked.
struct Dir {
    ino: Ino,
    /// 0 while it is asked for.
    number: u64,
    place: usize,
    attr: Option<Attr>,
    /// Names that may be there. With the inode, if it was made here and has no other name; else 0.
    names: HashMap<Name, u64, FixedState>,
    /// When it was used last.
    used: u64,
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
    /// When there is room again.
    Full,
    /// It is done.
    Done(T),
    /// The lease was taken back meanwhile: the answer, in this slot, tells whether it was done.
    Ask(SlotNo, T),
}

/// A call that may make names; see the module.
pub(super) struct Naming<'a> {
    link: &'a Link,
    over: bool,
}

impl Naming<'_> {
    /// It was answered.
    pub fn over(mut self) {
        self.over = true;
    }
}

impl Drop for Naming<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.link.naming_lost.store(true, Ordering::SeqCst);
        }
        self.link.naming.fetch_sub(1, Ordering::SeqCst);
    }
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

/// Whether a name can be made as it is.
fn is_plain(name: &[u8]) -> bool {
    (1..=format::limits::NAME_MAX).contains(&name.len())
        && !matches!(name, b"." | b"..")
        && !name.iter().any(|b| matches!(b, b'/' | 0))
}

impl Directories {
    fn counted(&self, table: &Table) {
        self.count.store(table.dirs.len(), Ordering::SeqCst);
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
            table.dirs.retain(|known| dir.is_some_and(|dir| known.ino != dir));
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
        let Some(at) = table.dirs.iter().position(|d| d.ino == dir && d.number != 0) else {
            return Posting::Message;
        };
        let slot = match session.take_slot(None) {
            Some(slot) if session.is_roomy() => slot,
            slot => {
                slot.into_iter().for_each(|slot| session.give_slot(slot));
                return Posting::Full;
            }
        };
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
        let (number, place) = (dirs[at].number, dirs[at].place);
        (request.extra, request.first) = (number.into(), (name.len() as u16).into());
        table.post(session, slot, &request, name);
        // The manager takes the lease back first and then looks for what was posted.
        fence(Ordering::SeqCst);
        let is_lent = session.region.directory(place).load(Ordering::SeqCst) == number;
        if !is_lent || session.is_dead() {
            table.dirs.remove(at);
            self.counted(&table);
            return Posting::Ask(slot, what);
        }
        table.dirs[at].used = table.posted;
        done(&mut table.dirs[at], what);
        let many = table.dirs[at].names.len() > NAMES_MAX;
        if many {
            table.dirs.remove(at);
            self.counted(&table);
        }
        drop(table);
        session.slots.lock().abandoned |= 1 << slot;
        session.ring();
        Posting::Done(what)
    }

    fn create(
        &self,
        session: &Session,
        dir: Ino,
        name: &[u8],
        (perm, flags): (u16, OpenFlags),
    ) -> Posting<(Promise, (u32, u32, u16))> {
        let prepare = |dir: &Dir, promises: &mut Vec<Promise>| {
            let Some(attr) = dir.attr.filter(|_| !dir.names.contains_key(name)) else {
                return Posting::Message;
            };
            let Some(promise) = promises.pop() else { return Posting::Promises };
            let mut r = request(Op::PostCreate, dir.ino.0);
            (r.mode, r.flags, r.other) = ((perm as u32).into(), flags.bits().into(), promise.ino.0.into());
            let owner = fs::perm::new_inode(&session.cred, &attr, FileType::Regular, perm & 0o7777);
            Posting::Done((r, (promise, owner)))
        };
        self.change(session, dir, prepare, name, |dir, (promise, _)| {
            dir.names.insert(SmallVec::from_slice(name), promise.ino.0);
        })
    }

    fn unlink(&self, session: &Session, dir: Ino, name: &[u8]) -> Posting<u64> {
        let prepare = |dir: &Dir, _: &mut Vec<Promise>| match dir.names.get(name) {
            Some(&ino) if ino != 0 => Posting::Done((request(Op::PostUnlink, dir.ino.0), ino)),
            _ => Posting::Message,
        };
        self.change(session, dir, prepare, name, |dir, _| {
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
        if table.recent.1 < need || table.dirs.iter().any(|known| known.ino == dir) {
            return None;
        }
        table.recent.1 = 0;
        if table.dirs.len() == DIRECTORIES {
            let oldest = (0..DIRECTORIES).min_by_key(|&at| table.dirs[at].used)?;
            table.dirs.remove(oldest);
        }
        let place = (0..DIRECTORIES).find(|place| table.dirs.iter().all(|dir| dir.place != *place))?;
        let (names, used) = (HashMap::default(), table.posted);
        table.dirs.push(Dir { ino: dir, number: 0, place, attr: None, names, used });
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

impl Session {
    /// Whether there are slots beside those that are taken.
    fn is_roomy(&self) -> bool {
        self.slots.lock().taken.count_ones() <= SLOTS as u32 - SPARE
    }

    /// Waits for a while until the manager has done a part of what was posted. False when nothing was.
    pub(super) fn wait_for_room(&self) -> bool {
        let abandoned = self.slots.lock().abandoned;
        if abandoned == 0 {
            return false;
        }
        let want = abandoned.count_ones().min(ROOM);
        let ready = || {
            let is_done = |slot: &usize| {
                abandoned & 1 << slot != 0 && self.region.state(*slot).load(Ordering::Acquire) == state::DONE
            };
            (0..SLOTS).filter(is_done).count() as u32 >= want || self.is_dead()
        };
        if !self.patience.wait(self.is_crowded(), ready) {
            self.ring();
            std::thread::sleep(std::time::Duration::from_micros(50));
            self.check_alive();
        }
        true
    }

    /// The answer to what was posted in a slot and does not count as done.
    fn answer_in(&self, slot: SlotNo) -> std::result::Result<(), Failed> {
        let region = &self.region;
        self.ring();
        let done = || region.state(slot).load(Ordering::Acquire) == state::DONE;
        loop {
            if self.patience.wait(self.is_crowded(), || done() || self.is_dead()) && done() {
                break;
            }
            if !self.check_alive() && !done() {
                // What it had not taken still stands there.
                let taken = region.one_way().load(Ordering::SeqCst) >> slot & 1 == 0;
                return Err(Failed::Lost { taken });
            }
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        let reply: Reply = region.get(slot);
        region.state(slot).store(state::FREE, Ordering::Relaxed);
        self.give_slot(slot);
        match reply.errno.get() {
            0 => Ok(()),
            errno => Err(Failed::With(Error::from_errno(errno, String::new()))),
        }
    }
}

/// What became of something that was posted when its lease was taken back. `None`: it was not done, and is to be a message.
fn asked(answer: std::result::Result<(), Failed>, may_repeat: bool) -> Option<Result<()>> {
    match answer {
        Ok(()) => Some(Ok(())),
        Err(Failed::With(Error::Stale)) => None,
        Err(Failed::With(e)) => Some(Err(e)),
        Err(Failed::Lost { taken }) if !taken || may_repeat => None,
        Err(Failed::Lost { .. }) => {
            let text = "the manager ended, and may have done this or not".into();
            Some(Err(Error::from_errno(libc::EIO, text)))
        }
    }
}

impl Remote {
    /// A message is about to go out that may make these names.
    pub(super) fn naming(&self, names: &[(Ino, &[u8])]) -> Naming<'_> {
        let link = &*self.link;
        link.naming.fetch_add(1, Ordering::SeqCst);
        let directories = &self.now().directories;
        if directories.any() {
            let mut table = directories.table.lock();
            for (parent, name) in names {
                for dir in table.dirs.iter_mut().filter(|dir| dir.ino == *parent) {
                    dir.names.insert(SmallVec::from_slice(name), 0);
                }
            }
        }
        Naming { link, over: false }
    }

    /// A directory, or any of them, is about to be changed itself.
    pub(super) fn uses_itself(&self, dir: Option<Ino>) {
        self.now().directories.leave(dir);
    }

    /// Whether a name leads to a file that was made here, and is nobody else's.
    pub(super) fn made_here(&self, parent: Ino, name: &[u8]) -> bool {
        let directories = &self.now().directories;
        if !directories.any() {
            return false;
        }
        let table = directories.table.lock();
        let dir = table.dirs.iter().find(|dir| dir.ino == parent && dir.number != 0);
        dir.is_some_and(|dir| dir.names.get(name).is_some_and(|&ino| ino != 0))
    }

    /// A file is about to get another name.
    pub(super) fn has_more_names(&self, ino: Ino) {
        let directories = &self.now().directories;
        if directories.any() {
            let mut table = directories.table.lock();
            for dir in &mut table.dirs {
                dir.names.values_mut().filter(|made| **made == ino.0).for_each(|made| *made = 0);
            }
        }
    }

    /// Makes a file without a message that is waited for, if that can be done.
    pub(super) async fn create_here(
        &self,
        parent: Ino,
        name: &[u8],
        perm: u16,
        flags: OpenFlags,
    ) -> Option<Result<(Attr, Handle)>> {
        use OpenFlags as Flags;
        let session: &Arc<Session> = self.now();
        let others = !(Flags::READ | Flags::WRITE | Flags::APPEND | Flags::TRUNCATE | Flags::EXCLUSIVE);
        if !session.directories.any()
            || flags.intersects(others)
            || !flags.intersects(Flags::READ | Flags::WRITE)
            || !is_plain(name)
        {
            return None;
        }
        if let Err(e) = self.link.keeps_order() {
            return Some(Err(e));
        }
        let (promise, (uid, gid, perm)) = loop {
            match session.directories.create(session, parent, name, (perm, flags)) {
                Posting::Message => return None,
                // Other futures of this thread may have to give slots back.
                Posting::Full if !session.wait_for_room() => return None,
                Posting::Full => {}
                Posting::Promises => {
                    if !self.asks_promises(session).await {
                        session.directories.leave(None);
                        return None;
                    }
                }
                Posting::Done(made) => break made,
                Posting::Ask(slot, made) => {
                    match asked(session.answer_in(slot), !flags.contains(Flags::EXCLUSIVE))? {
                        Ok(()) => break made,
                        Err(e) => return Some(Err(e)),
                    }
                }
            }
        };
        session.kept.posted(parent, None);
        session.was_opened(flags);
        let inode = (promise.ino, promise.generation);
        let file = OpenFile::new(inode, FileType::Regular, flags, promise.handle, session.serial);
        let now = Time::now();
        let attr = Attr {
            ino: promise.ino,
            generation: promise.generation,
            kind: FileType::Regular,
            perm,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        };
        Some(Ok((attr, self.link.opened(file))))
    }

    /// Removes a file without a message that is waited for, if that can be done.
    pub(super) fn unlink_here(&self, parent: Ino, name: &[u8]) -> Option<Result<()>> {
        let session: &Arc<Session> = self.now();
        if !session.directories.any() || !self.made_here(parent, name) {
            return None;
        }
        if let Err(e) = self.link.keeps_order() {
            return Some(Err(e));
        }
        let ino = loop {
            match session.directories.unlink(session, parent, name) {
                Posting::Message | Posting::Promises => return None,
                // Other futures of this thread may have to give slots back.
                Posting::Full if !session.wait_for_room() => return None,
                Posting::Full => {}
                Posting::Done(ino) => break ino,
                Posting::Ask(slot, ino) => match asked(session.answer_in(slot), false)? {
                    Ok(()) => break ino,
                    Err(e) => return Some(Err(e)),
                },
            }
        };
        session.kept.posted(parent, Some((name, Ino(ino))));
        Some(Ok(()))
    }

    /// Whether there are promised inodes now.
    async fn asks_promises(&self, session: &Arc<Session>) -> bool {
        let mut r = request(Op::Promise, 0);
        r.len = PROMISES.into();
        let Ok(answer) = session.call(r, b"", b"").await else { return false };
        let Ok(mut promises) = wire::read_promises(&answer.bytes()) else { return false };
        // The lowest number first, as files are made otherwise.
        promises.reverse();
        let mut table = session.directories.table.lock();
        table.promises.splice(0..0, promises);
        !table.promises.is_empty()
    }

    /// A file was made in a directory by a message.
    pub(super) async fn created(&self, parent: Ino) {
        let session: &Arc<Session> = self.now();
        let Some(mut asking) = session.directories.wants(session, parent) else { return };
        // Whoever makes a name there now is counted, or finds the directory in the table.
        if self.link.naming.load(Ordering::SeqCst) != 0 || self.link.naming_lost.load(Ordering::SeqCst) {
            return;
        }
        let mut r = request(Op::LendDirectory, parent.0);
        (r.mode, r.len) = ((asking.place as u32).into(), PROMISES.into());
        let lent = match session.call(r, b"", b"").await {
            Ok(answer) if answer.value != 0 => {
                wire::read_lent(&answer.bytes()).ok().map(|lent| (answer.value, lent))
            }
            _ => None,
        };
        let mut table = session.directories.table.lock();
        let place = asking.place;
        let dir =
            table.dirs.iter().position(|dir| dir.place == place && dir.number == 0 && dir.ino == parent);
        let (Some(at), Some((number, (attr, mut promises, names)))) = (dir, lent) else {
            table.need = (table.need.max(NEED) * 4).min(NEED_MAX);
            return;
        };
        for name in names {
            table.dirs[at].names.insert(Name::from_vec(name), 0);
        }
        (table.dirs[at].number, table.dirs[at].attr) = (number, Some(attr));
        promises.reverse();
        table.promises.splice(0..0, promises);
        table.need = NEED;
        asking.granted = true;
    }
}
