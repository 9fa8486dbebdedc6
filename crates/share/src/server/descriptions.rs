//! What belongs to open file descriptions that processes share, after fork and exec: locks of whole files (flock(2)), and files that cannot be opened once more.
//!
//! Each process has a session and a handle of its own, and neither knows who else has the description. The kernel knows: a client lets the description
//! stand for one byte of a memory (a memfd) by a lock of the kernel's on that byte (F_OFD_SETLK), which goes with the last descriptor of the
//! description, wherever that is. The client shows the manager the memory once in each session; with each call for a lock comes the byte.
//!
//! The lock of a description is that of the first handle through which it was asked for. When that handle is closed, or its session ends, while the
//! description is still there, the handle stays: it is kept here, and a thread asks the kernel again and again, until the description is gone and
//! the handle is closed. That thread does nothing else, as a client could make the kernel's answer take long.
//!
//! In the same way a file is left to who has a description: a process that was started with it opens the file for itself, which it may not be able to by then, as
//! the file has no name any more, or a mode that forbids it. The handle of who left it is kept like one that has a lock, and who shows the memory, with the very same
//! credentials, may open the file with the access of that handle.
//!
//! A client that lies about its descriptions keeps its own locks and files for as long as it lives, which it may anyway; their number is bounded for each user.
//!
//! Tested in tests/all/descriptions.rs and, with programs, in `preload/tests/all/processes.rs`.

use super::drains::Drain;
use super::session::Client;
use foldhash::fast::FixedState;
use fs::{Cred, Error, FileSystem, Handle, Ino, LockKind, OpenFlags, Result};
use parking_lot::{Condvar, Mutex};
use rustix::fs::SealFlags;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, mem};

/// Locked or left descriptions that one user can have: the second half only for locks, which files that are left do not keep anybody from.
const USER_MAX: usize = 4096;
/// Memories that one session can show.
pub(crate) const MEMORIES_MAX: usize = 64;
/// What is left with a file.
const ACCESS: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
/// Between two questions about one description: at first, and at last, for one that has a lock, for which others may wait, and for one that has none.
const PAUSE: Duration = Duration::from_micros(100);
const PAUSE_MAX: Duration = Duration::from_millis(20);
const PAUSE_MAX_UNLOCKED: Duration = Duration::from_millis(100);
/// An answer that takes longer is not asked for again: such a description counts as gone.
const SLOW: Duration = Duration::from_millis(50);
/// How often a call looks for the handle of its description, which may be closed meanwhile.
const TRIES: usize = 8;

/// A memory whose bytes stand for descriptions.
#[derive(Debug)]
pub(crate) struct Memory {
    fd: OwnedFd,
    id: (u64, u64),
}

impl Memory {
    /// Whether there is a description that stands for this byte.
    fn has(&self, at: u64) -> bool {
        // SAFETY: all zeros is a valid value.
        let mut lock: libc::flock = unsafe { mem::zeroed() };
        lock.l_type = libc::F_WRLCK as _;
        lock.l_whence = libc::SEEK_SET as _;
        (lock.l_start, lock.l_len) = (at as i64, 1);
        // SAFETY: the descriptor is ours, and the argument is what the command needs.
        let asked = unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
        asked == 0 && lock.l_type != libc::F_UNLCK as libc::c_short
    }
}

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
    /// It has a lock, or may have.
    locked: bool,
    /// To whom the file is left, and the access.
    left: Option<(Cred, OpenFlags)>,
}

/// A description whose handle is kept.
struct Watch {
    key: Key,
    due: Instant,
    pause: Duration,
    /// Who waits for the next answer.
    waiting: Vec<Arc<Drain>>,
}

#[derive(Default)]
struct Table {
    memories: HashMap<(u64, u64), Weak<Memory>, FixedState>,
    entries: HashMap<Key, Entry, FixedState>,
    handles: HashMap<Handle, Key, FixedState>,
    watched: Vec<Watch>,
    stopping: bool,
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
        let key = (memory.id, at);
        if !self.entries.contains_key(&key) {
            // Two descriptions do not share a handle.
            if self.handles.contains_key(&handle) {
                return Err(Error::BadHandle);
            }
            if self.entries.values().filter(|e| e.uid == uid).count() >= most {
                return Err(Error::TooManyOpen);
            }
            self.handles.insert(handle, key);
            let entry =
                Entry { memory: memory.clone(), handle, ino, uid, kept: false, locked: false, left: None };
            self.entries.insert(key, entry);
        }
        self.entries.get_mut(&key).filter(|entry| entry.ino == ino).ok_or(Error::BadHandle)
    }

    fn remove(&mut self, key: Key) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        self.handles.remove(&entry.handle);
        Some(entry)
    }
}

impl Descriptions {
    /// A memory that a client shows. `Invalid` if it is something else, which is given back: closing it may take as long as the client likes.
    pub fn show(&self, fd: OwnedFd) -> std::result::Result<Arc<Memory>, (Error, OwnedFd)> {
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
        let memory = Arc::new(Memory { fd, id });
        table.memories.insert(id, Arc::downgrade(&memory));
        Ok(memory)
    }

    /// The handle that has the lock of a description of this file, or is to have it: `own`, if there is none yet.
    fn holder(&self, memory: &Arc<Memory>, at: u64, own: (Handle, Ino), uid: u32) -> Result<Handle> {
        let mut table = self.table.lock();
        let entry = table.entry((memory, at), own, (uid, USER_MAX))?;
        entry.locked = true;
        let handle = entry.handle;
        self.count.store(table.entries.len(), Ordering::SeqCst);
        Ok(handle)
    }

    /// A client leaves a file to who has a description of it: with the access that it has itself.
    pub fn leave(
        &self,
        client: &Client,
        (memory, at): (&Arc<Memory>, u64),
        own: (Handle, Ino),
        flags: OpenFlags,
    ) -> Result<()> {
        let mut table = self.table.lock();
        let entry = table.entry((memory, at), own, (client.cred.uid, USER_MAX / 2))?;
        entry.left = Some((client.cred.clone(), flags & ACCESS));
        self.count.store(table.entries.len(), Ordering::SeqCst);
        Ok(())
    }

    /// Whether a file was left to this client, which has shown the memory, such that it may open it so.
    pub fn is_left(&self, client: &Client, (memory, at): (&Memory, u64), ino: Ino, flags: OpenFlags) -> bool {
        let table = self.table.lock();
        let entry = table.entries.get(&(memory.id, at)).filter(|entry| entry.ino == ino);
        let left = entry.and_then(|entry| entry.left.as_ref());
        left.is_some_and(|(cred, access)| {
            *cred == client.cred && access.contains(flags & ACCESS) && !flags.contains(OpenFlags::TRUNCATE)
        })
    }

    /// A handle has no lock any more. Whether it was kept here for that alone, and is to be closed.
    fn unlocked(&self, handle: Handle) -> bool {
        let is_left = {
            let Table { entries, handles, .. } = &mut *self.table.lock();
            let entry = handles.get(&handle).and_then(|key| entries.get_mut(key));
            entry.is_some_and(|entry| {
                entry.locked = false;
                entry.left.is_some()
            })
        };
        !is_left && self.forget(handle)
    }

    /// The handle that has the lock of a description, if there is one.
    fn held(&self, memory: &Memory, at: u64) -> Option<Handle> {
        self.table.lock().entries.get(&(memory.id, at)).map(|entry| entry.handle)
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
        if mem::replace(&mut entry.kept, true) || table.stopping {
            return None;
        }
        let first = Arc::new(Drain::new(None));
        table.watched.push(Watch { key, due: Instant::now(), pause: PAUSE, waiting: vec![first.clone()] });
        self.news.notify_all();
        Some(first)
    }

    /// Has the kernel asked at once about descriptions that keep locks of a file; what is given is over when it was. `None`: there are none.
    fn ask_again(&self, ino: Ino) -> Option<Arc<Drain>> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let Table { entries, watched, .. } = &mut *self.table.lock();
        let asked = Arc::new(Drain::new(None));
        let mut any = false;
        for watch in watched.iter_mut().filter(|w| entries.get(&w.key).is_some_and(|e| e.ino == ino)) {
            asked.add();
            watch.due = Instant::now();
            watch.waiting.push(asked.clone());
            any = true;
        }
        asked.one_less();
        self.news.notify_all();
        any.then_some(asked)
    }

    /// Asks about those that are due; gives the handles of descriptions that are gone, and those who wait for them.
    fn look(&self) -> Vec<(Option<Handle>, Vec<Arc<Drain>>)> {
        let now = Instant::now();
        let due: Vec<(Watch, Option<Arc<Memory>>)> = {
            let mut table = self.table.lock();
            let due: Vec<Watch> = table.watched.extract_if(.., |watch| watch.due <= now).collect();
            let memory = |watch: &Watch| {
                table.entries.get(&watch.key).filter(|e| e.kept).map(|entry| entry.memory.clone())
            };
            due.into_iter().map(|watch| (memory(&watch), watch)).map(|(m, w)| (w, m)).collect()
        };
        let mut seen = Vec::new();
        for (mut watch, memory) in due {
            let waiting = mem::take(&mut watch.waiting);
            // Without an entry it was unlocked meanwhile, and closed.
            let Some(memory) = memory else {
                seen.push((None, waiting));
                continue;
            };
            let begun = worked();
            let stays = memory.has(watch.key.1) && worked().saturating_sub(begun) < SLOW;
            let mut table = self.table.lock();
            if stays {
                let locked = table.entries.get(&watch.key).is_none_or(|entry| entry.locked);
                watch.pause = (watch.pause * 2).min(if locked { PAUSE_MAX } else { PAUSE_MAX_UNLOCKED });
                watch.due = Instant::now() + watch.pause;
                table.watched.push(watch);
                seen.push((None, waiting));
            } else {
                let entry = table.remove(watch.key);
                self.count.store(table.entries.len(), Ordering::SeqCst);
                seen.push((entry.map(|entry| entry.handle), waiting));
            }
        }
        seen
    }
}

/// How long this thread has run: what it is kept from running is nobody's doing.
fn worked() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the time. The clock is there.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// A call of flock(2). Who does not want to wait for a lock must not find one whose description has just gone.
pub(crate) async fn flock_now<F: FileSystem>(
    fs: &F,
    client: &Client,
    (handle, ino): (Handle, Ino),
    kind: Option<LockKind>,
    wait: bool,
) -> Result<()> {
    match fs.flock(handle, kind, wait).await {
        Err(Error::WouldBlock) if !wait => {
            let Some(asked) = client.descriptions.ask_again(ino) else { return Err(Error::WouldBlock) };
            asked.over().await;
            fs.flock(handle, kind, wait).await
        }
        done => done,
    }
}

/// A call of flock(2) through a description: byte `at` of `memory`.
pub(crate) async fn flock<F: FileSystem>(
    fs: &F,
    client: &Client,
    own: Handle,
    (memory, at): (&Arc<Memory>, u64),
    kind: Option<LockKind>,
    wait: bool,
) -> Result<()> {
    let (all, ino) = (&client.descriptions, client.inode(own)?);
    let Some(kind) = kind else {
        let handle = all.held(memory, at).unwrap_or(own);
        fs.flock(handle, None, false).await?;
        if all.unlocked(handle) {
            fs.release(handle).await?;
        }
        return Ok(());
    };
    for _ in 0..TRIES {
        let handle = all.holder(memory, at, (own, ino), client.cred.uid)?;
        match flock_now(fs, client, (handle, ino), Some(kind), wait).await {
            // It was closed, by force, while this call was on its way.
            Err(Error::BadHandle) if handle != own => drop(all.forget(handle)),
            done => return done,
        }
    }
    Err(Error::BadHandle)
}

/// The thread that asks the kernel. Sleeps while no handle is kept.
pub(crate) struct Keeper {
    all: Arc<Descriptions>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

impl Keeper {
    /// Starts the thread. When it ends it closes what is kept, but with `leaves_nameless` files without a name, which others may come for.
    pub fn start<F: FileSystem>(
        fs: fs::Watched<F>,
        all: Arc<Descriptions>,
        leaves_nameless: bool,
    ) -> io::Result<Keeper> {
        let table = all.clone();
        let thread = std::thread::Builder::new().name("freehold-flock".into()).spawn(move || {
            let close = |handle| {
                if let Err(e) = fs.block_on(fs.release(handle)) {
                    tracing::warn!("closing a file whose lock outlived its session: {e}");
                }
            };
            loop {
                {
                    let mut table = all.table.lock();
                    while !table.stopping {
                        let Some(due) = table.watched.iter().map(|w| w.due).min() else {
                            all.news.wait(&mut table);
                            continue;
                        };
                        if all.news.wait_until(&mut table, due).timed_out() {
                            break;
                        }
                    }
                    if table.stopping {
                        break;
                    }
                }
                for (handle, waiting) in all.look() {
                    handle.into_iter().for_each(close);
                    waiting.iter().for_each(|one| one.one_less());
                }
            }
            let table = mem::take(&mut *all.table.lock());
            table.watched.iter().flat_map(|w| &w.waiting).for_each(|one| one.one_less());
            for ((_, at), entry) in table.entries.into_iter().filter(|(_, entry)| entry.kept) {
                let attr = fs.block_on(fs.getattr(entry.ino, Some(entry.handle)));
                let nameless = leaves_nameless && attr.is_ok_and(|attr| attr.nlink == 0);
                if !(nameless && entry.memory.has(at)) {
                    close(entry.handle);
                }
            }
        })?;
        Ok(Keeper { all: table, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.all.table.lock().stopping = true;
        self.all.news.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
