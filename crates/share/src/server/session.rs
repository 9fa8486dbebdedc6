//! One client as the manager sees it.

mod records;

use super::arena::{Arena, Arenas};
use super::closer::Line;
use super::descriptions::{Descriptions, Memory};
use super::direct::Lent;
use super::directories::{Making, PROMISES_MAX};
use super::drains::Drain;
use super::holds::Holders;
use super::leases::Lending;
use super::locks::LockLeases;
use super::rights::Rights;
use super::stats::Tally;
use super::tasks::{Runs, Steps};
use super::wakes::Wakes;
use crate::region::{Region, SlotNo};
use foldhash::fast::FixedState;
use format::shared::{HOLD_LINES, HOLDS_IN_LINE, MEMORIES, Reply, SLOTS};
use fs::{
    Cred, Error, FileSystem, FileType, Handle, Ino, LockHolder, LockOwner, OpenFlags, Ordered, Promise,
    Result, Watched,
};
use parking_lot::Mutex;
use records::Kept;
use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use zerocopy::FromZeros;

/// What calls need to know of their client; shared with the futures that run them.
pub(crate) struct Client {
    pub session: u64,
    /// The session whose owners of record locks are its own: that of the program that made room for its, or itself.
    pub owners: u64,
    pub region: Arc<Region>,
    /// Of all clients.
    pub wakes: Arc<Wakes>,
    /// As the kernel reports it for the socket.
    pub cred: Cred,
    pub handles_max: usize,
    pub tally: Tally,
    /// Of all clients.
    pub arenas: Arc<Arenas>,
    pub holders: Arc<Holders>,
    pub leases: Arc<dyn Lending>,
    pub directories: Arc<dyn Making>,
    pub descriptions: Arc<Descriptions>,
    pub rights: Arc<Rights>,
    /// Of those with its credentials.
    pub arena: Arc<Arena>,
    pub order: Order,
    /// Its memory, as far as devices reach it.
    pub(super) lent: Lent,
    /// Slots whose calls may wait for a lock, of those that have begun.
    waiting: AtomicU64,
    /// It is ended because of its locks: none of them outlives it.
    pub evicted: AtomicBool,
    pub(super) lock_leases: Mutex<LockLeases>,
    /// What it has shown last of its open file descriptions, and how much before that.
    memories: Mutex<(VecDeque<Arc<Memory>>, u32)>,
    held: Mutex<Held>,
}

/// Which of its syncs are answered with order.
pub(crate) struct Order {
    pub of: Ordered,
    /// All of them: its process had one of the programs' names when the session began.
    pub program: bool,
}

/// What is given back when the client is gone.
#[derive(Default)]
struct Held {
    /// With the inodes behind them.
    handles: HashMap<Handle, Ino, FixedState>,
    /// No longer the client's, and not closed yet.
    closing: HashMap<Handle, Ino, FixedState>,
    /// Inodes on which record locks were asked for.
    locking: HashMap<Ino, Asked, FixedState>,
    /// Owners of them, on each inode.
    owners: usize,
    /// Those that outlast a program.
    kept: HashMap<Ino, Kept, FixedState>,
    /// Files that it holds and that were opened for it (`super::holds`).
    holds: HashMap<Ino, Vec<(Handle, OpenFlags)>, FixedState>,
    /// Handles that keep inodes what they are, and that no call can use.
    pins: HashSet<Handle>,
    gone: bool,
}

/// Record locks that were asked for on one inode.
#[derive(Default)]
struct Asked {
    /// Calls that ask now.
    calls: usize,
    /// For whom.
    owners: HashSet<LockOwner>,
}

impl Held {
    fn has(&self, ino: Ino) -> bool {
        self.handles.values().chain(self.closing.values()).any(|&i| i == ino)
    }
}

impl Client {
    pub fn new(
        (session, owners): (u64, u64),
        (region, wakes): (Arc<Region>, Arc<Wakes>),
        (cred, order, rights): (Cred, Order, Arc<Rights>),
        handles_max: usize,
        (arenas, arena, holders): (Arc<Arenas>, Arc<Arena>, Arc<Holders>),
        (leases, directories, descriptions): (Arc<dyn Lending>, Arc<dyn Making>, Arc<Descriptions>),
        tally: Tally,
    ) -> Client {
        let held = Mutex::default();
        Client {
            session,
            owners,
            region,
            wakes,
            cred,
            handles_max,
            arenas,
            holders,
            leases,
            directories,
            descriptions,
            rights,
            arena,
            tally,
            order,
            lent: Lent::default(),
            waiting: AtomicU64::new(0),
            evicted: AtomicBool::new(false),
            lock_leases: Mutex::default(),
            memories: Mutex::default(),
            held,
        }
    }

    /// It shows a memory, whose number in this session is given.
    pub fn shows(&self, memory: Arc<Memory>) -> u32 {
        let mut memories = self.memories.lock();
        let (last, before) = &mut *memories;
        let oldest = if last.len() == MEMORIES { last.pop_front() } else { None };
        *before = before.wrapping_add(oldest.is_some() as u32);
        last.push_back(memory);
        let number = before.wrapping_add(last.len() as u32);
        drop(memories);
        drop(oldest);
        number
    }

    /// The memory of this number. `Stale`: it was shown in another session, or too many others since, or it was not shown at all.
    pub fn shown(&self, session: u64, number: u64) -> Result<Arc<Memory>> {
        let memories = self.memories.lock();
        let (last, before) = &*memories;
        let at = u32::try_from(number).ok().and_then(|n| n.wrapping_sub(*before).checked_sub(1));
        let memory = at.filter(|_| session == self.session).and_then(|at| last.get(at as usize));
        memory.cloned().ok_or(Error::Stale)
    }

    /// A file that it holds was opened for it. False when it holds it no longer, it was opened for it so before, or it has too many.
    pub fn holds_open(&self, ino: Ino, handle: Handle, flags: OpenFlags) -> bool {
        let mut held = self.held.lock();
        let is_held = !held.gone && !super::holds::held(self, ino).is_empty();
        let has = held.holds.get(&ino).is_some_and(|all| all.iter().any(|(_, had)| had.contains(flags)));
        let fits = is_held && !has && held.holds.len() < HOLD_LINES * HOLDS_IN_LINE;
        if fits {
            held.holds.entry(ino).or_default().push((handle, flags));
        }
        fits
    }

    /// Whether a file that it holds was opened for it such that it may open it so again.
    pub fn may_open_again(&self, ino: Ino, flags: OpenFlags) -> bool {
        let access = flags & (OpenFlags::READ | OpenFlags::WRITE);
        let held = self.held.lock();
        held.holds.get(&ino).is_some_and(|all| all.iter().any(|(_, had)| had.contains(access)))
    }

    /// Whether something was opened for it because it holds this file.
    pub fn has_opened(&self, ino: Ino) -> bool {
        self.held.lock().holds.contains_key(&ino)
    }

    /// What was opened for it while it held a file that it holds no longer, to be closed.
    pub fn held_no_longer(&self, ino: Ino) -> Vec<Handle> {
        let mut held = self.held.lock();
        if !super::holds::held(self, ino).is_empty() {
            return Vec::new();
        }
        held.holds.remove(&ino).into_iter().flatten().map(|(handle, _)| handle).collect()
    }

    /// Whether it has used what has this mark since it was asked last.
    pub fn used(&self, mark: usize) -> bool {
        self.region.mark(mark, false)
    }

    /// A handle that this client has open.
    pub fn handle(&self, number: u64) -> Result<Handle> {
        let handle = Handle(number);
        if self.held.lock().handles.contains_key(&handle) { Ok(handle) } else { Err(Error::BadHandle) }
    }

    /// Whether it may open one more.
    pub fn may_open(&self) -> Result<()> {
        let held = self.held.lock();
        let open = held.handles.len() + held.closing.len() + held.pins.len();
        if open < self.handles_max { Ok(()) } else { Err(Error::TooManyOpen) }
    }

    /// Inodes that are promised to it: so many, or fewer.
    pub fn promised(&self, most: u64) -> Result<Vec<Promise>> {
        // Each will be one more open file.
        let room = self.handles_max.saturating_sub(self.held.lock().handles.len() + PROMISES_MAX);
        Ok(self.directories.promise(self.session, (most as usize).min(PROMISES_MAX).min(room)))
    }

    /// The client has this handle now.
    pub fn opened(&self, handle: Handle, ino: Ino) {
        self.held.lock().handles.insert(handle, ino);
    }

    /// The client has pinned an inode.
    pub fn pins(&self, pin: Handle) {
        self.held.lock().pins.insert(pin);
    }

    /// It gives a pin back, which is to be released.
    pub fn unpins(&self, number: u64) -> Result<Handle> {
        self.held.lock().pins.take(&Handle(number)).ok_or(Error::BadHandle)
    }

    /// The inode behind a handle.
    pub fn inode(&self, handle: Handle) -> Result<Ino> {
        self.held.lock().handles.get(&handle).copied().ok_or(Error::BadHandle)
    }

    /// The client gives a handle back: no other call of it can use it any more. Whether it can be closed now; else that is done when the calls
    /// have ended that ask for locks on its file ([`Locking::end`]).
    pub fn closes(&self, number: u64) -> Result<Option<Handle>> {
        let handle = Handle(number);
        let mut held = self.held.lock();
        let ino = held.handles.remove(&handle).ok_or(Error::BadHandle)?;
        let stays = held.locking.get(&ino).is_some_and(|a| a.calls > 0) && !held.has(ino);
        held.closing.insert(handle, ino);
        Ok((!stays).then_some(handle))
    }

    /// Closes a handle that was given back. With the last one of a file go all record locks on it: clients that keep to the rules
    /// have given them up before.
    pub async fn close<F: FileSystem>(&self, fs: &F, handle: Handle) -> Result<()> {
        if let Some(looked) = self.close_or_keep(fs, handle).await? {
            looked.over().await;
        }
        Ok(())
    }

    /// As [`Client::close`]. When the handle is kept, as a description may be there still, it is not waited until that is known, which is over with what is given.
    pub async fn close_or_keep<F: FileSystem>(&self, fs: &F, handle: Handle) -> Result<Option<Arc<Drain>>> {
        self.return_locks(fs, handle);
        let (owners, pin) = {
            let mut held = self.held.lock();
            // Until it is closed it is known, in case that the call is given up.
            let Some(ino) = held.closing.get(&handle).copied() else { return Ok(None) };
            self.directories.closed(ino, handle);
            let is_last = || {
                held.handles.values().all(|&i| i != ino)
                    && held.closing.iter().all(|(&h, &i)| i != ino || h == handle)
            };
            let all_go = held.locking.contains_key(&ino) && is_last();
            if all_go { held.ends_locks(ino) } else { Default::default() }
        };
        for owner in owners {
            let _ = fs.flush(handle, owner).await;
        }
        if let Some(pin) = pin {
            self.unpinned(fs.release(pin).await);
        }
        let looked = self.descriptions.keep(handle);
        let released = if looked.is_none() { fs.release(handle).await } else { Ok(()) };
        self.held.lock().closing.remove(&handle);
        released.map(|()| looked)
    }

    /// Whether locks of this holder are the client's.
    pub fn holds(&self, holder: LockHolder) -> bool {
        let held = self.held.lock();
        let has = |handle| held.handles.contains_key(&handle) || held.closing.contains_key(&handle);
        match holder {
            // Most are another client's, which the number alone tells.
            LockHolder::Owner(owner) => owner.handle().map_or_else(
                || self.own(owner).is_some() && held.locking.values().any(|a| a.owners.contains(&owner)),
                has,
            ),
            LockHolder::Handle(handle) => has(handle),
        }
    }

    /// Number of open handles.
    pub fn handles(&self) -> usize {
        self.held.lock().handles.len()
    }

    /// Gives back everything the client held, but for locks that stay if its process `goes_on`. When it is the manager that ends, files without names stay
    /// open: they would go with their handles, and the client may come for them again, as for all others.
    pub async fn clean_up<F: FileSystem>(&self, fs: &Watched<F>, manager_ends: bool, goes_on: bool) {
        let goes_on = goes_on && !self.evicted.load(Ordering::SeqCst);
        if goes_on {
            self.recall_kept(fs);
        }
        self.lent.give_back(fs);
        self.holders.part(self.session);
        self.directories.part(self.session);
        // While its handles are there still.
        if let Err(e) = self.leases.end(self.session).await {
            tracing::error!("session {}: writes of its client are lost: {e}", self.session);
        }
        let (handles, closing, mut locking, holds, pins) = {
            let mut held = self.held.lock();
            held.gone = true;
            let held = &mut *held;
            let ended = held.locking.extract_if(|ino, _| !held.kept.contains_key(ino));
            let locking: HashMap<Ino, Asked, FixedState> = ended.collect();
            let pins = std::mem::take(&mut held.pins);
            let (handles, closing) = (std::mem::take(&mut held.handles), std::mem::take(&mut held.closing));
            (handles, closing, locking, std::mem::take(&mut held.holds), pins)
        };
        self.drop_locks(fs);
        for pin in pins {
            self.unpinned(fs.release(pin).await);
        }
        self.end_kept(fs, goes_on).await;
        let holds = holds.into_iter().flat_map(|(ino, all)| all.into_iter().map(move |(h, _)| (h, ino)));
        for (handle, ino) in handles.into_iter().chain(closing).chain(holds) {
            // Through whichever handle of the file.
            for owner in locking.remove(&ino).into_iter().flat_map(|a| a.owners) {
                let _ = fs.flush(handle, owner).await;
            }
            let attr = if manager_ends { fs.getattr(ino, Some(handle)).await.ok() } else { None };
            if let Some(attr) = attr.as_ref().filter(|attr| attr.kind == FileType::Regular)
                && let Some(flags) = fs.opened_with(handle)
            {
                self.rights.leave(&self.cred, (ino, attr.generation), flags);
            }
            if self.evicted.load(Ordering::SeqCst) {
                self.descriptions.forget(handle);
            } else if self.descriptions.keep(handle).is_some() {
                continue;
            }
            if attr.is_some_and(|attr| attr.nlink == 0) {
                continue;
            }
            match fs.release(handle).await {
                // It was being closed, and was when that call was given up.
                Ok(()) | Err(Error::BadHandle) => {}
                Err(e) => {
                    tracing::warn!("session {}: closing a file that its client left open: {e}", self.session);
                }
            }
        }
    }

    /// Something that kept an inode is released.
    fn unpinned(&self, released: Result<()>) {
        if let Err(e) = released {
            tracing::warn!("session {}: giving up what its client has pinned: {e}", self.session);
        }
    }

    /// A call begins in this slot, which may wait for a lock or not. Only the server's thread says so.
    pub fn may_wait_for_lock(&self, slot: SlotNo, may: bool) {
        let (before, bit) = (self.waiting.load(Ordering::Relaxed), 1 << slot);
        if (before & bit != 0) != may {
            self.waiting.store(before ^ bit, Ordering::Relaxed);
        }
    }

    /// Whether the call in this slot may wait for a lock.
    pub fn waits_for_lock(&self, slot: SlotNo) -> bool {
        self.waiting.load(Ordering::Relaxed) >> slot & 1 != 0
    }

    /// Answers that a call was given up.
    pub fn interrupted(&self, slot: SlotNo) {
        self.region.put(slot, &Reply { errno: libc::EINTR.into(), ..Reply::new_zeroed() });
        self.wakes.answered(&self.region, slot);
    }
}

pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The task that cleans up behind a client stands behind those of the slots.
pub(crate) const CLEAN_UP: usize = SLOTS;
/// And behind it what runs what was posted one way.
pub(crate) const STREAM: usize = SLOTS + 1;
/// Tasks of a session.
pub(crate) const TASKS: usize = SLOTS + 2;

/// A client with a session.
pub(crate) struct Session {
    pub client: Arc<Client>,
    /// Calls under way, by their slots; and what is done at the end.
    pub tasks: [Option<Box<dyn Runs>>; SLOTS],
    pub clean_up: Option<Task>,
    pub stream: Stream,
    pub wakers: Vec<Option<Waker>>,
    /// The manager looks at its doorbell; otherwise the client must write to the eventfd.
    pub active: bool,
    /// When it last did something, in rounds of the poller.
    pub last: u64,
    pub ending: bool,
    /// Nothing is left of it but record locks, until its process ends or begins another session.
    pub outlived: bool,
    pub event: OwnedFd,
}

/// What a session has posted one way: run in order, as much at a time as there is.
#[derive(Default)]
pub(crate) struct Stream {
    /// Not begun.
    pub queue: Steps,
    /// How much was ever taken out of the ring of handles to be closed.
    pub closes: u64,
    /// What is done now, and how much that is.
    pub task: Option<Box<dyn Runs>>,
    pub running: u64,
    /// How much was ever taken out of the client's memory, and how much of that is done.
    pub taken: u64,
    pub done: u64,
    /// Who waits until so much is done.
    pub waiting: Vec<(u64, Arc<Drain>)>,
    /// Calls that came meanwhile, and those of them that are not wanted any more.
    pub stashed: u64,
    pub cancelled: u64,
}

impl Stream {
    pub fn is_idle(&self) -> bool {
        self.task.is_none() && self.queue.is_empty()
    }

    /// What was running is done.
    pub fn over(&mut self) {
        self.done += std::mem::take(&mut self.running);
        let done = self.done;
        self.waiting.extract_if(.., |(until, _)| *until <= done).for_each(|(_, drain)| drain.one_less());
    }
}

/// A connection, which becomes a session with the client's first message.
pub(crate) struct Connection {
    pub line: Arc<Line>,
    /// A message is taken elsewhere: until that is done nobody listens.
    pub hears: bool,
    /// Readable when the process has ended, although others may have the socket still.
    pub process: Option<OwnedFd>,
    pub pid: i32,
    pub cred: Cred,
    pub session: Option<Session>,
}
