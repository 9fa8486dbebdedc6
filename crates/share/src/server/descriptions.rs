//! What belongs to open file descriptions that processes share, after fork and exec: locks of whole files (flock(2)), record locks that it owns itself (F_OFD_SETLK), and files
//! that cannot be opened once more.
//!
//! Each process has a session and a handle of its own, and neither knows who else has the description. The kernel knows: a client lets the description
//! stand for one byte of a memory (a memfd) by a lock of the kernel's on that byte (F_OFD_SETLK), which goes with the last descriptor of the
//! description, wherever that is. The client shows the manager the memory; with each call for a lock comes the byte.
//!
//! The locks of a description are those of the first handle through which it was asked for. When that handle is closed, or its session ends, while the
//! description is still there, the handle stays: it is kept here, and a thread asks the kernel again and again, until the description is gone and
//! the handle is closed. That thread does nothing else, as a client could make the kernel's answer take long. Those of other users do not wait for that: they are
//! asked about first, and nobody waits for an answer for longer than a few turns of the thread.
//!
//! In the same way a file is left to who has a description: a process that was started with it opens the file for itself, which it may not be able to by then, as
//! the file has no name any more, or a mode that forbids it. The handle of who left it is kept like one that has a lock, and who shows the memory, with the very same
//! credentials, may open the file with the access of that handle.
//!
//! A client that lies about its descriptions keeps its own locks and files for as long as it lives, which it may anyway; their number is bounded for each user.
//!
//! Tested in tests/all/descriptions.rs and, with programs, in `preload/tests/all/processes.rs`.

mod keeper;
mod locking;
mod memory;

use super::closer::Line;
use super::drains::Drain;
use super::session::Client;
use foldhash::fast::FixedState;
use fs::{Access, Attr, Cred, Error, Handle, Ino, LockOwner, OpenFlags, Result};
pub(crate) use keeper::Keeper;
pub(crate) use locking::{Lock, found, set, set_shared};
pub(crate) use memory::Memory;
use parking_lot::{Condvar, Mutex};
use rustix::fs::SealFlags;
use std::collections::HashMap;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Locked or left descriptions that one user can have: the second half only for locks, which files that are left do not keep anybody from, and of the first a half for files that nobody could
/// open once more, which those that can be, for now, do not keep anybody from.
const USER_MAX: usize = 4096;
const LEFT_MAX: usize = USER_MAX / 2;
const LEFT_NAMED_MAX: usize = LEFT_MAX / 2;
/// What is left with a file.
const ACCESS: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
/// Between two questions about one description: at first, and at last, for one that has a lock, for which others may wait, and for one that has none.
const PAUSE: Duration = Duration::from_micros(100);
const PAUSE_MAX: Duration = Duration::from_millis(20);
const PAUSE_MAX_UNLOCKED: Duration = Duration::from_millis(100);
/// An answer that takes longer is not asked for again: such a description counts as gone.
const SLOW: Duration = Duration::from_millis(50);
/// For how long the kernel is asked before it is looked anew who comes first, and how often somebody who waits is not reached by then; after that nobody waits.
const TURN: Duration = Duration::from_millis(5);
const TURNS: u32 = 10;

/// A description: which memory, and which byte.
type Key = ((u64, u64), u64);

/// The lock of a description.
struct Entry {
    memory: Arc<Memory>,
    /// Has the lock.
    handle: Handle,
    ino: Ino,
    uid: u32,
    /// The handle is nobody's but ours.
    kept: bool,
    /// It has a lock of the whole file, or may have.
    whole: bool,
    /// It has record locks, or may have.
    records: bool,
    /// Calls that may get it locks.
    calls: usize,
    /// To whom the file is left, and the access.
    left: Option<(Cred, OpenFlags)>,
}

impl Entry {
    fn is_locked(&self) -> bool {
        self.whole || self.records
    }

    fn has(&mut self, lock: &Lock) -> &mut bool {
        if matches!(lock, Lock::Whole(_)) { &mut self.whole } else { &mut self.records }
    }
}

/// A handle that is kept: of which description.
struct Watch {
    key: Key,
    ino: Ino,
    due: Instant,
    pause: Duration,
    /// Who waits for the next answer, and turns in which it did not come.
    waiting: Vec<Arc<Drain>>,
    turns: u32,
}

#[derive(Default)]
struct Table {
    memories: HashMap<(u64, u64), Weak<Memory>, FixedState>,
    entries: HashMap<Key, Entry, FixedState>,
    handles: HashMap<Handle, Key, FixedState>,
    /// How many entries a user has.
    users: HashMap<u32, usize, FixedState>,
    watched: HashMap<Handle, Watch, FixedState>,
    /// How long the answers about descriptions of a user took lately.
    spent: HashMap<u32, Duration, FixedState>,
    stopping: bool,
}

/// A call that asks for the lock of a description. The entry stays while there is one: it may get the lock after somebody else has given it up.
struct Asking<'a> {
    all: &'a Descriptions,
    key: Key,
    /// Has the lock, or is to have it.
    handle: Handle,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.all.table.lock().entry_with(self.key, self.handle) {
            entry.calls -= 1;
        }
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Descriptions {
    table: Mutex<Table>,
    /// Entries, so that closing files costs nothing while there are none.
    count: AtomicUsize,
    news: Condvar,
}

impl Table {
    /// The entry of a description of this file, made with the handle of `own` if there is none, and fewer than `most` of that user's.
    fn entry(
        &mut self,
        (memory, at): (&Arc<Memory>, u64),
        (handle, ino): (Handle, Ino),
        (uid, most): (u32, usize),
    ) -> Result<&mut Entry> {
        let key = (memory.id(), at);
        if !self.entries.contains_key(&key) {
            // Two descriptions do not share a handle.
            if self.handles.contains_key(&handle) {
                return Err(Error::BadHandle);
            }
            let of_user = self.users.entry(uid).or_default();
            if *of_user >= most {
                return Err(Error::TooManyOpen);
            }
            *of_user += 1;
            self.handles.insert(handle, key);
            let memory = memory.clone();
            let entry = Entry {
                memory,
                handle,
                ino,
                uid,
                kept: false,
                whole: false,
                records: false,
                calls: 0,
                left: None,
            };
            self.entries.insert(key, entry);
        }
        self.entries.get_mut(&key).filter(|entry| entry.ino == ino).ok_or(Error::BadHandle)
    }

    /// The entry of a description, if it is still the one that has this handle.
    fn entry_with(&mut self, key: Key, handle: Handle) -> Option<&mut Entry> {
        self.entries.get_mut(&key).filter(|entry| entry.handle == handle)
    }

    fn remove(&mut self, key: Key) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        self.handles.remove(&entry.handle);
        if let Some(of_user) = self.users.get_mut(&entry.uid) {
            *of_user -= 1;
            if *of_user == 0 {
                self.users.remove(&entry.uid);
            }
        }
        Some(entry)
    }
}

impl Descriptions {
    /// A memory that a client shows. `Invalid` if it is something else, which is given back: closing it may take as long as the client likes.
    pub fn show(&self, fd: OwnedFd, line: &Line) -> std::result::Result<Arc<Memory>, (Error, OwnedFd)> {
        const UNSEALED: Error = Error::Invalid("memory that is not sealed");
        // Only memory has seals: asking for anything else of other files could make us wait for whoever serves them.
        let seals = rustix::fs::fcntl_get_seals(&fd).unwrap_or(SealFlags::empty());
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err((UNSEALED, fd));
        }
        let Ok(stat) = rustix::fs::fstat(&fd) else { return Err((UNSEALED, fd)) };
        let id = (stat.st_dev, stat.st_ino);
        let mut table = self.table.lock();
        if let Some(known) = table.memories.get(&id).and_then(Weak::upgrade) {
            return Ok(known);
        }
        table.memories.retain(|_, memory| memory.strong_count() > 0);
        let memory = Arc::new(Memory::new(fd, id, line));
        table.memories.insert(id, Arc::downgrade(&memory));
        Ok(memory)
    }

    /// The handle that has the locks of a description of this file, or is to have this one: `own`, if there is none yet.
    fn holder(
        &self,
        (memory, at): (&Arc<Memory>, u64),
        own: (Handle, Ino),
        uid: u32,
        lock: &Lock,
    ) -> Result<Asking<'_>> {
        let mut table = self.table.lock();
        let entry = table.entry((memory, at), own, (uid, USER_MAX))?;
        *entry.has(lock) = true;
        entry.calls += 1;
        let handle = entry.handle;
        self.count.store(table.entries.len(), Ordering::SeqCst);
        Ok(Asking { all: self, key: (memory.id(), at), handle })
    }

    /// A client leaves a file, which has these attributes, to who has a description of it: with the access that it has itself.
    pub fn leave(
        &self,
        client: &Client,
        (memory, at): (&Arc<Memory>, u64),
        (handle, attr): (Handle, &Attr),
        flags: OpenFlags,
    ) -> Result<()> {
        let mut want = Access::empty();
        want.set(Access::READ, flags.contains(OpenFlags::READ));
        want.set(Access::WRITE, flags.contains(OpenFlags::WRITE));
        let can_be_opened = attr.nlink > 0 && fs::perm::check(&client.cred, attr, want).is_ok();
        let most = if can_be_opened { LEFT_NAMED_MAX } else { LEFT_MAX };
        let mut table = self.table.lock();
        let entry = table.entry((memory, at), (handle, attr.ino), (client.cred.uid, most))?;
        entry.left = Some((client.cred.clone(), flags & ACCESS));
        self.count.store(table.entries.len(), Ordering::SeqCst);
        Ok(())
    }

    /// Whether a file was left to this client, which has shown the memory, such that it may open it so.
    pub fn is_left(&self, client: &Client, (memory, at): (&Memory, u64), ino: Ino, flags: OpenFlags) -> bool {
        let table = self.table.lock();
        let entry = table.entries.get(&(memory.id(), at)).filter(|entry| entry.ino == ino);
        let left = entry.and_then(|entry| entry.left.as_ref());
        left.is_some_and(|(cred, access)| {
            *cred == client.cred && access.contains(flags & ACCESS) && !flags.contains(OpenFlags::TRUNCATE)
        })
    }

    /// A handle has given something up. Whether it has locks still, and whether it was kept here for them alone, and is to be closed.
    fn unlocked(&self, handle: Handle, lock: &Lock) -> (bool, bool) {
        let (locked, left) = {
            let Table { entries, handles, .. } = &mut *self.table.lock();
            let Some(entry) = handles.get(&handle).and_then(|key| entries.get_mut(key)) else {
                return (false, false);
            };
            if lock.gives_all_up() {
                *entry.has(lock) = entry.calls > 0;
            }
            (entry.is_locked(), entry.left.is_some())
        };
        (locked, !locked && !left && self.forget(handle))
    }

    /// The handle that has the locks of a description; `own` if there is none.
    fn held(&self, (memory, at): (&Memory, u64), own: Handle) -> Handle {
        self.table.lock().entries.get(&(memory.id(), at)).map_or(own, |entry| entry.handle)
    }

    /// The owner of a description's record locks, for one that has this handle of the file.
    pub fn owner(&self, description: (&Memory, u64), own: Handle) -> LockOwner {
        LockOwner::of_handle(self.held(description, own))
    }

    /// A handle is nothing to a description any more. Whether it was kept here, and is to be closed.
    pub fn forget(&self, handle: Handle) -> bool {
        if self.count.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let mut table = self.table.lock();
        let entry = table.handles.get(&handle).copied().and_then(|key| table.remove(key));
        self.count.store(table.entries.len(), Ordering::SeqCst);
        entry.is_some_and(|entry| entry.kept)
    }

    /// A client gives a handle back. If a description has its lock there, the handle is kept, and closed when the description is gone;
    /// what is given then is over when the kernel was asked for the first time.
    pub fn keep(&self, handle: Handle) -> Option<Arc<Drain>> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut table = self.table.lock();
        let key = *table.handles.get(&handle)?;
        let entry = table.entries.get_mut(&key)?;
        let (ino, due, was_kept) = (entry.ino, Instant::now(), mem::replace(&mut entry.kept, true));
        if was_kept || table.stopping {
            return None;
        }
        let first = Arc::new(Drain::new(None));
        let watch = Watch { key, ino, due, pause: PAUSE, waiting: vec![first.clone()], turns: 0 };
        table.watched.insert(handle, watch);
        self.news.notify_all();
        Some(first)
    }

    /// Has the kernel asked at once about descriptions that keep locks of a file; what is given is over when it was, and handles of those that are gone are closed. `None`: there are none.
    fn ask_again(&self, ino: Ino) -> Option<Arc<Drain>> {
        let asked = Arc::new(Drain::new(None));
        let mut any = false;
        for watch in self.table.lock().watched.values_mut().filter(|watch| watch.ino == ino) {
            asked.add();
            watch.due = Instant::now();
            watch.waiting.push(asked.clone());
            any = true;
        }
        asked.one_less();
        self.news.notify_all();
        any.then_some(asked)
    }

    /// As [`Descriptions::ask_again`], and waits for that.
    async fn asked_again(&self, ino: Ino) {
        if let Some(asked) = self.ask_again(ino) {
            asked.over().await;
        }
    }

    /// Asks about those that are due, for one turn, and closes what nobody has any more.
    fn look(&self, close: impl Fn(Handle)) {
        let (begun, mut due) = (worked(), self.due().into_iter());
        while worked().saturating_sub(begun) < TURN
            && let Some(handle) = due.next()
        {
            self.ask(handle, &close).iter().for_each(|one| one.one_less());
        }
        let mut table = self.table.lock();
        for handle in due {
            let Some(watch) = table.watched.get_mut(&handle) else { continue };
            watch.turns += !watch.waiting.is_empty() as u32;
            if watch.turns >= TURNS {
                watch.turns = 0;
                watch.waiting.drain(..).for_each(|one| one.one_less());
            }
        }
    }

    /// Those that are due: those of users first whose answers took least lately, and of these the new ones.
    fn due(&self) -> Vec<Handle> {
        let now = Instant::now();
        let Table { entries, watched, spent, .. } = &mut *self.table.lock();
        spent.retain(|_, spent| {
            *spent /= 2;
            !spent.is_zero()
        });
        let spent = |watch: &Watch| entries.get(&watch.key).and_then(|e| spent.get(&e.uid)).copied();
        let due = watched.iter().filter(|(_, watch)| watch.due <= now);
        let mut due: Vec<_> = due.map(|(&handle, watch)| (spent(watch), watch, handle)).collect();
        due.sort_by_key(|(spent, watch, _)| (*spent, watch.pause, watch.due));
        due.into_iter().map(|(.., handle)| handle).collect()
    }

    /// Asks about the description of a handle that is kept. Gives those who have waited for that.
    fn ask(&self, handle: Handle, close: impl Fn(Handle)) -> Vec<Arc<Drain>> {
        let mut table = self.table.lock();
        let Some(watch) = table.watched.get_mut(&handle) else { return Vec::new() };
        // Who comes while the kernel is asked waits for the next answer.
        let (key, mut waiting) = (watch.key, mem::take(&mut watch.waiting));
        watch.turns = 0;
        let kept = table.entry_with(key, handle).map(|entry| (entry.memory.clone(), entry.uid));
        drop(table);
        let (mut stays, mut spent) = (false, None);
        if let Some((memory, uid)) = kept {
            let begun = worked();
            stays = memory.has(key.1);
            let took = worked().saturating_sub(begun);
            stays &= took < SLOW;
            spent = Some((uid, took));
        }
        let mut table = self.table.lock();
        if let Some((uid, took)) = spent {
            *table.spent.entry(uid).or_default() += took;
        }
        // Without the entry it was unlocked meanwhile, and closed; the description may have another handle by now.
        let locked = table.entry_with(key, handle).map(|entry| entry.is_locked());
        if let Some(locked) = locked
            && stays
        {
            if let Some(watch) = table.watched.get_mut(&handle) {
                watch.pause = (watch.pause * 2).min(if locked { PAUSE_MAX } else { PAUSE_MAX_UNLOCKED });
                let pause = if watch.waiting.is_empty() { watch.pause } else { Duration::ZERO };
                watch.due = Instant::now() + pause;
            }
            return waiting;
        }
        if locked.is_some() {
            let gone = table.remove(key);
            self.count.store(table.entries.len(), Ordering::SeqCst);
            drop(table);
            // Until it is closed whoever finds its lock waits for that.
            close(handle);
            drop(gone);
            table = self.table.lock();
        }
        waiting.extend(table.watched.remove(&handle).into_iter().flat_map(|watch| watch.waiting));
        waiting
    }
}

/// How long this thread has run: what it is kept from running is nobody's doing.
fn worked() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the time. The clock is there.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
