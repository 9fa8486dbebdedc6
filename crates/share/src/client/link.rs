//! What lasts from one session to the next: open files. When a manager ends, another one may serve the volume after it; the
//! client then begins a session there, opens its files again by their inodes, and goes on. Not with files that it had locked: somebody else may
//! have had the lock between the two sessions, and nobody would know.
//!
//! What was acknowledged and not synced may be gone with a manager that was killed. The openings of the volume tell
//! ([`fs::Opening::keeps`]), and then each file that was written and not synced since fails its next fsync, once, with `EIO`. A file that is
//! not there any more, may no longer be opened, or was locked, fails every call with `EIO`. What came before a barrier and is gone would break the order that was promised
//! as soon as something later is there: the next call that changes or orders something fails with `EIO`, once. Calls that were under way are made again if
//! the manager had not taken them, or if that does no harm (`wire::Op::is_repeatable`); others fail with `EIO`, because they may have been done.

use super::aside::Aside;
use super::asking::open_request;
use super::files::{Files, OpenFile};
use super::resizes::Resizes;
use super::{GONE, Remote, Session};
use crate::lock::Mutex;
use crate::spin::Patience;
use crate::wire::{HAD_OPEN, Op, request};
use foldhash::fast::FixedState;
use format::shared::Request;
use fs::locks::ranges::Ranges;
use fs::{Error, FileType, Handle, Ino, LockOwner, OpenFlags, RecordLock, Result};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Time between two looks for a new manager.
const LOOK: Duration = Duration::from_millis(20);
/// Files that are remembered as not synced after they were closed; with more, every file counts as one of them.
const UNSYNCED_MAX: usize = 1 << 16;

/// How a client finds its manager, and what it does without one.
#[derive(Clone, Debug)]
pub struct Connect {
    /// Sockets at which a manager may listen: the first that answers is taken.
    pub sockets: Vec<PathBuf>,
    /// How long calls wait for an answer before they sleep.
    pub patience: Patience,
    /// How long calls wait for another manager when theirs has ended, before they fail. The threads that make them wait, also those that poll
    /// futures, except in queues that are polled [aside](super::Queue::aside). Zero: they fail at once.
    pub resume: Duration,
}

impl Connect {
    /// One socket; the default patience; 30 seconds.
    pub fn at(socket: impl Into<PathBuf>) -> Connect {
        Connect {
            sockets: vec![socket.into()],
            patience: Patience::default(),
            resume: Duration::from_secs(30),
        }
    }
}

/// Locks that are held.
#[derive(Debug, Default)]
struct Locks {
    records: HashMap<Ino, Ranges, FixedState>,
    /// Open files that have locks of their own, and what they are handles of.
    own: HashMap<Handle, Ino, FixedState>,
}

impl Locks {
    /// Changes what is held of the records of a file.
    fn change(&mut self, ino: Ino, change: impl FnOnce(&mut Ranges)) {
        let held = self.records.entry(ino).or_default();
        change(held);
        if held.is_empty() {
            self.records.remove(&ino);
        }
    }
}

/// Files that were written, not synced, and closed.
#[derive(Debug, Default)]
struct Unsynced {
    files: HashSet<Ino, FixedState>,
    /// There were more than are remembered.
    many: bool,
    /// How many were ever closed so.
    closed: u64,
}

/// A sync of an open file under way. What is written meanwhile may be in it or not, and counts as not synced.
pub(super) struct Syncing<'a> {
    link: &'a Link,
    handle: Handle,
    closed: u64,
}

impl Syncing<'_> {
    /// What had been written when it began is durable.
    pub fn succeeded(self) {
        let Some(file) = self.link.file(self.handle) else { return };
        if file.unsynced {
            self.link.change(self.handle, |file| file.unsynced &= file.rewritten);
        }
        let mut unsynced = self.link.unsynced.lock();
        if unsynced.closed == self.closed {
            unsynced.files.remove(&file.ino);
        }
    }
}

impl Drop for Syncing<'_> {
    fn drop(&mut self) {
        self.link.change(self.handle, |file| file.syncing -= 1);
    }
}

#[derive(Debug)]
pub(super) struct Link {
    connect: Connect,
    /// The session that calls use; in `sessions`.
    current: AtomicPtr<Arc<Session>>,
    /// All so far, never freed before the link: calls may still look at theirs. Boxed, so that they stay where they are.
    #[allow(clippy::vec_box)]
    sessions: Mutex<Vec<Box<Arc<Session>>>>,
    /// Open files under this client's own numbers.
    files: Files,
    locks: Mutex<Locks>,
    unsynced: Mutex<Unsynced>,
    /// What was written and not synced when a manager was killed, and no sync has said so yet. Whoever opens one is told when it syncs.
    lost_files: Mutex<HashSet<Ino, FixedState>>,
    /// Something that was not synced went away with a manager, and no call for the whole volume has said so yet.
    lost: AtomicBool,
    /// There were `lost_files`; and too many to know them.
    has_lost: AtomicBool,
    lost_many: AtomicBool,
    /// What was written in sessions before this one, and noted only now, is lost.
    lost_before: AtomicU64,
    /// Barriers that were asked for, and how many of them a sync has made durable since.
    barriers: AtomicU64,
    barriers_durable: AtomicU64,
    /// What a barrier had closed was lost with a manager, and no call has said so yet.
    order_broken: AtomicBool,
    /// Requests of queues that are with the manager (`super::queue`).
    pub under_way: AtomicUsize,
    /// Calls under way that may make or remove names, in all sessions.
    pub changing: AtomicUsize,
    pub resizes: Resizes,
    /// Held while a session is resumed. Says that no manager came the last time.
    resuming: Mutex<bool>,
    pub aside: Aside,
}

impl Link {
    pub fn new(connect: Connect, session: Arc<Session>) -> Link {
        let first = Box::new(session);
        Link {
            connect,
            current: AtomicPtr::new(std::ptr::from_ref(&*first).cast_mut()),
            sessions: Mutex::new(vec![first]),
            files: Files::default(),
            locks: Mutex::default(),
            unsynced: Mutex::default(),
            lost_files: Mutex::default(),
            lost: AtomicBool::new(false),
            has_lost: AtomicBool::new(false),
            lost_many: AtomicBool::new(false),
            lost_before: AtomicU64::new(0),
            barriers: AtomicU64::new(0),
            barriers_durable: AtomicU64::new(0),
            order_broken: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            changing: AtomicUsize::new(0),
            resizes: Resizes::default(),
            resuming: Mutex::new(false),
            aside: Aside::default(),
        }
    }

    /// The session that calls use now.
    #[inline]
    pub fn session(&self) -> &Arc<Session> {
        // SAFETY: points into one of `sessions`, whose boxes live as long as self.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    /// What is behind an open handle.
    #[inline]
    pub fn file(&self, handle: Handle) -> Option<OpenFile> {
        self.files.look(handle, |file| *file)
    }

    /// What `f` says of it: most calls need little of what [`Link::file`] copies.
    #[inline]
    pub fn look<T>(&self, handle: Handle, f: impl FnOnce(&OpenFile) -> T) -> Option<T> {
        self.files.look(handle, f)
    }

    /// A file that the session's manager has opened gets a number here.
    pub fn opened(&self, mut file: OpenFile) -> Handle {
        if self.has_lost.load(Ordering::Relaxed) {
            file.lost = self.lost_many.load(Ordering::Relaxed) || self.lost_files.lock().contains(&file.ino);
        }
        self.files.insert(file)
    }

    pub fn closed(&self, handle: Handle) -> Option<OpenFile> {
        self.closed_if(handle, |_| true)
    }

    /// As [`Link::closed`], if the file is as it should be; else it stays open.
    pub fn closed_if(&self, handle: Handle, is: impl Fn(&OpenFile) -> bool) -> Option<OpenFile> {
        let file = self.files.remove_if(handle, is)?;
        if file.unsynced {
            let mut unsynced = self.unsynced.lock();
            unsynced.closed += 1;
            if unsynced.files.len() < UNSYNCED_MAX {
                unsynced.files.insert(file.ino);
            } else {
                unsynced.many = true;
            }
        }
        if file.locks {
            self.locks.lock().own.remove(&handle);
        }
        Some(file)
    }

    pub fn change(&self, handle: Handle, change: impl FnOnce(&mut OpenFile)) {
        self.files.change(handle, change);
    }

    /// What is open of a file.
    pub fn files_of(&self, ino: Ino) -> Vec<Handle> {
        self.files.handles_of(|file| file.ino == ino)
    }

    /// A write through a handle was acknowledged in the session with this serial.
    #[inline]
    pub fn written(&self, handle: Handle, serial: u64) {
        let is_noted = |file: OpenFile| file.unsynced && (file.syncing == 0 || file.rewritten);
        if !self.file(handle).is_some_and(is_noted) {
            self.change(handle, |file| {
                (file.unsynced, file.rewritten) = (true, true);
                // Its manager was killed before this was noted.
                file.lost |= serial < self.lost_before.load(Ordering::Relaxed);
            });
        }
    }

    /// An append through this handle ended here, as far as that is known.
    pub fn appended(&self, handle: Handle, end: Option<u64>) {
        self.change(handle, |file| file.appended = end);
    }

    /// A sync of an open file begins.
    pub fn begin_sync(&self, handle: Handle) -> Syncing<'_> {
        self.change(handle, |file| {
            file.rewritten &= file.syncing > 0;
            file.syncing += 1;
        });
        Syncing { link: self, handle, closed: self.unsynced.lock().closed }
    }

    /// Whether a sync may begin: not when something that it would have made durable is gone. That is said once, to all that have the file open by then.
    pub fn may_sync(&self, handle: Option<Handle>) -> Result<()> {
        let lost = match handle {
            None => {
                let lost = self.lost.swap(false, Ordering::Relaxed);
                if lost {
                    self.lost_many.store(false, Ordering::Relaxed);
                }
                lost
            }
            Some(handle) => self.look(handle, |file| file.lost).unwrap_or(false),
        };
        if !lost {
            return Ok(());
        }
        if let Some(handle) = handle {
            let mut ino = None;
            self.change(handle, |file| (ino, file.lost) = (Some(file.ino), false));
            ino.inspect(|ino| _ = self.lost_files.lock().remove(ino));
        }
        Err(lost_writes())
    }

    /// A barrier begins, or was made where a sync was asked for.
    pub fn ordered(&self) {
        self.barriers.fetch_add(1, Ordering::Relaxed);
    }

    /// How many barriers there were; after a sync that began then, [`Link::made_durable`] takes it.
    pub fn barriers(&self) -> u64 {
        self.barriers.load(Ordering::Relaxed)
    }

    /// What those barriers had closed is durable.
    pub fn made_durable(&self, barriers: u64) {
        self.barriers_durable.fetch_max(barriers, Ordering::Relaxed);
    }

    /// Whether something may be changed or ordered: not when it would be there without what a barrier put before it. That is said once.
    #[inline]
    pub fn keeps_order(&self) -> Result<()> {
        if self.order_broken.load(Ordering::Relaxed) && self.order_broken.swap(false, Ordering::Relaxed) {
            return Err(lost_writes());
        }
        Ok(())
    }

    /// A record lock was granted, or released with `Err`.
    pub fn locked(
        &self,
        handle: Handle,
        owner: LockOwner,
        range: std::result::Result<RecordLock, (u64, u64)>,
    ) {
        let Some(file) = self.file(handle) else { return };
        self.locks.lock().change(file.ino, |held| match range {
            Ok(lock) => held.insert(owner, lock),
            Err((start, end)) => _ = held.remove(owner, start, end),
        });
    }

    /// An open file has locks of its own now, or none.
    pub fn is_locked(&self, handle: Handle, locked: bool) {
        let Some(file) = self.file(handle) else { return };
        let mut locks = self.locks.lock();
        match locked {
            true => locks.own.insert(handle, file.ino),
            false => locks.own.remove(&handle),
        };
    }

    /// Whether record locks are held on a file.
    pub fn has_records(&self, ino: Ino) -> bool {
        self.locks.lock().records.contains_key(&ino)
    }

    /// All record locks of an owner on the file behind a handle are gone.
    pub fn flushed(&self, handle: Handle, owner: LockOwner) {
        let Some(file) = self.file(handle) else { return };
        self.locks.lock().change(file.ino, |held| _ = held.remove(owner, 0, u64::MAX));
    }
}

fn lost_writes() -> Error {
    Error::from_errno(libc::EIO, "the manager ended before this was durable, and it is gone".into())
}

impl Remote {
    /// The number that a handle has in a session. `EIO` when the file could not be taken along.
    pub(super) async fn there(&self, session: &Arc<Session>, handle: Handle) -> Result<u64> {
        let mut file = self.link.file(handle).ok_or(Error::BadHandle)?;
        if file.session != session.serial && !file.gone {
            // It was opened with a manager that ended before it was in the table. If this one ends too, the call finds out.
            let _one = self.link.resuming.lock();
            match self.take_along(session, handle) {
                Ok(()) | Err(Error::Closed) => {}
                Err(e) => return Err(e),
            }
            file = self.link.file(handle).ok_or(Error::BadHandle)?;
        }
        if file.held && !file.gone {
            self.open_there(session, handle).await?;
            file = self.link.file(handle).ok_or(Error::BadHandle)?;
        }
        if file.gone { Err(lost_file()) } else { Ok(file.remote.0) }
    }

    /// Begins a session with the next manager, unless somebody has done so. [`GONE`] when there is none.
    pub(super) fn resume(&self, old: &Arc<Session>) -> Result<()> {
        let link = &*self.link;
        old.end();
        if link.connect.resume.is_zero() || old.opening.number == 0 {
            return Err(GONE);
        }
        let mut gave_up = link.resuming.lock();
        if !Arc::ptr_eq(link.session(), old) {
            return Ok(());
        }
        // Without an end where that is too far away to be said.
        let until = Instant::now().checked_add(link.connect.resume);
        let mut serial = old.serial;
        loop {
            serial += 1;
            let found = link.connect.sockets.iter().find_map(|socket| {
                let session = Session::connect(socket, link.connect.patience, serial).ok()?;
                (session.opening.volume == old.opening.volume).then_some(session)
            });
            // A manager may end while files are opened with it: then another one is looked for.
            if let Some(new) = found.map(Arc::new)
                && self.take_all_along(old, &new).is_ok()
            {
                *gave_up = false;
                let kept = Box::new(new);
                let at = std::ptr::from_ref(&*kept).cast_mut();
                link.sessions.lock().push(kept);
                link.current.store(at, Ordering::Release);
                return Ok(());
            }
            if *gave_up || until.is_some_and(|until| Instant::now() > until) {
                *gave_up = true;
                return Err(GONE);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Opens everything in another session, and notes what is lost. [`Error::Closed`] when that one ends meanwhile.
    fn take_all_along(&self, old: &Session, new: &Arc<Session>) -> Result<()> {
        let link = &*self.link;
        if !new.opening.keeps(&old.opening) {
            link.lost_before.store(new.serial, Ordering::Relaxed);
            let closed = std::mem::take(&mut *link.unsynced.lock());
            let mut lost = closed.files;
            link.files.change_all(|file| _ = file.unsynced.then(|| lost.insert(file.ino)));
            link.lost_files.lock().extend(&lost);
            link.lost_many.fetch_or(closed.many, Ordering::Relaxed);
            link.lost.store(true, Ordering::Relaxed);
            link.has_lost.store(true, Ordering::Relaxed);
            let barriers = link.barriers();
            if link.barriers_durable.swap(barriers, Ordering::Relaxed) < barriers {
                link.order_broken.store(true, Ordering::Relaxed);
            }
            link.files.change_all(|file| {
                // What was made in a directory is not noted one by one. And whoever has a file open may sync it, not only who wrote it.
                file.lost |= closed.many || lost.contains(&file.ino) || file.kind == FileType::Directory;
                file.unsynced = false;
            });
        }
        let locks = std::mem::take(&mut *link.locks.lock());
        let locked: HashSet<Ino, FixedState> =
            locks.records.into_keys().chain(locks.own.into_values()).collect();
        link.files.change_all(|file| file.gone |= locked.contains(&file.ino));
        link.files.handles().into_iter().try_for_each(|handle| match self.take_along(new, handle) {
            Err(Error::Closed) => Err(Error::Closed),
            // It is tried again when the file is used.
            _ => Ok(()),
        })
    }

    /// Opens a file of ours in another session. What fails in passing may be tried again.
    fn take_along(&self, session: &Arc<Session>, handle: Handle) -> Result<()> {
        let file = self.link.file(handle).filter(|file| file.session != session.serial && !file.gone);
        let Some(file) = file else { return Ok(()) };
        let directory = file.kind == FileType::Directory;
        let r = match directory {
            true => request(Op::Opendir, file.ino.0),
            false => {
                let flags = file.flags - OpenFlags::TRUNCATE - OpenFlags::EXCLUSIVE;
                let r = open_request(file.ino, Some(file.generation), flags);
                Request { extra: HAD_OPEN.into(), ..r }
            }
        };
        let opened = match session.call_now(&r) {
            Err(e) if is_passing(&e) => return Err(e),
            opened => opened.ok(),
        };
        // Another directory may have the inode's number now.
        let opened = opened.filter(|&(remote, generation)| {
            let same = generation == file.generation as u64;
            if !same {
                let _ = session.call_now(&request(Op::Release, remote));
            }
            same
        });
        self.link.change(handle, |file| match opened {
            Some((remote, _)) => {
                (file.remote, file.session, file.held) = (Handle(remote), session.serial, false);
                // Leases have ended with the manager that gave them. The next one gives others the same numbers.
                file.lent = 0;
            }
            None => file.gone = true,
        });
        Ok(())
    }
}

/// Whether a file may be opened later that cannot be opened now.
fn is_passing(e: &Error) -> bool {
    let passing = [libc::EINTR, libc::EAGAIN, libc::ENFILE, libc::EMFILE, libc::ENOMEM, libc::EIO];
    matches!(e, Error::Closed) || passing.contains(&e.errno())
}

fn lost_file() -> Error {
    Error::from_errno(libc::EIO, "the file, or a lock on it, is gone with the manager that had it".into())
}
