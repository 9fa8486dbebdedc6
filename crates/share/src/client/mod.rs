//! The client's side: a file system ([`Remote`]) whose calls a manager runs.
//!
//! Each call takes a free slot of the session for as long as it lasts. A thread that runs calls with [`fs::FileSystem::block_on`] looks at
//! its slot and then sleeps on it; for other executors a helper thread, started when it is first needed, wakes the futures.
//!
//! When the manager is gone, calls wait for another one to serve the volume ([`link`](Connect)); when none comes they fail with
//! [`Error::Closed`].

mod again;
mod arena;
mod aside;
mod asking;
mod call;
mod descriptions;
mod directories;
mod files;
mod filesystem;
pub mod high;
mod holds;
mod kept;
mod leases;
mod link;
mod locks;
mod parts;
mod pins;
mod queue;
mod records;
mod resizes;
mod throng;
mod told;
mod turns;
mod unwanted;
mod waiting;
mod waits;

use crate::changes::Seen;
use crate::lock::Mutex;
use crate::region::Region;
use crate::spin::Patience;
use crate::wire::{Op, request};
use crate::{memory, socket};
use again::LongReads;
use arena::Arena;
pub use descriptions::Description;
use descriptions::Memories;
use directories::Directories;
use format::shared::{Hello, MAGIC, SESSION_BYTES, SLOTS, VERSION, Welcome, state};
use fs::{Cred, Error, Handle};
use holds::Holds;
use kept::Kept;
pub use kept::Target;
use leases::Leases;
pub use link::Connect;
use link::Link;
use locks::LockLeases;
pub use pins::Pin;
pub use queue::Queue;
use rustix::event::{PollFd, PollFlags};
use rustix::thread::futex;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;
use throng::Throng;
use told::Telling;
use unwanted::{Opens, Unwanted};
use waiting::Helper;
pub use waiting::interruptible;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// A file system in another process. Clones share the session.
///
/// The manager takes the credentials of calls from the kernel, as they were when the session began: those that are passed
/// to the calls count for nothing.
#[derive(Clone, Debug)]
pub struct Remote {
    link: Arc<Link>,
}

#[derive(Debug)]
struct Session {
    /// Which of the client's sessions this is.
    serial: u64,
    /// What the manager has opened.
    opening: fs::Opening,
    region: Region,
    socket: OwnedFd,
    /// Wakes the manager when it sleeps.
    event: OwnedFd,
    number: u64,
    patience: Patience,
    slots: Mutex<Slots>,
    /// Threads that look for their answers, and do not sleep.
    lookers: AtomicUsize,
    lookers_max: usize,
    /// Calls that wait for locks.
    waiters: AtomicUsize,
    throng: Throng,
    kept: Kept,
    arena: Arena,
    long_reads: LongReads,
    holds: Holds,
    /// As the kernel told the manager.
    cred: Cred,
    leases: Leases,
    locks: LockLeases,
    directories: Directories,
    memories: Memories,
    /// The manager is gone.
    dead: AtomicBool,
    helper: Helper,
}

/// Which slots are in use.
#[derive(Debug)]
struct Slots {
    taken: u64,
    /// How many of the slots behind go with one that is taken.
    behind: [u8; SLOTS],
    /// Of them those for whose answer nobody waits (any more): free again when the manager has answered.
    abandoned: u64,
    /// Futures that wait for a slot, each once; the first is woken when one is given back.
    waiting: VecDeque<Waker>,
    telling: Telling,
    unwanted: Unwanted,
}

impl Default for Slots {
    fn default() -> Slots {
        let (telling, unwanted) = (Telling::default(), Unwanted::default());
        Slots { taken: 0, behind: [0; SLOTS], abandoned: 0, waiting: VecDeque::new(), telling, unwanted }
    }
}

impl Slots {
    /// Takes as many neighbouring slots, the first free ones; the first of them.
    fn take(&mut self, count: usize) -> Option<usize> {
        let free = !self.taken;
        let runs = (1..count).fold(free, |runs, n| runs & free >> n);
        let slot = runs.trailing_zeros() as usize;
        if slot + count > SLOTS {
            return None;
        }
        self.behind[slot] = (count - 1) as u8;
        self.taken |= Self::bits(slot, count);
        Some(slot)
    }

    fn give(&mut self, slot: usize) {
        let behind = std::mem::take(&mut self.behind[slot]) as usize;
        self.taken &= !Self::bits(slot, behind + 1);
        self.abandoned &= !(1 << slot);
        self.told(slot);
        self.unwanted.take(slot);
    }

    fn bits(slot: usize, count: usize) -> u64 {
        (u64::MAX >> (SLOTS - count)) << slot
    }
}

impl Remote {
    /// Begins a session with the manager that listens at `path`.
    ///
    /// # Errors
    /// Those of connect(2), and what the manager says: `EACCES` when it does not serve this user, `EMFILE` when it has too many sessions.
    pub fn connect(path: impl AsRef<Path>) -> io::Result<Remote> {
        Remote::connect_with(Connect::at(path.as_ref()))
    }

    /// As [`Remote::connect`], in another way.
    ///
    /// # Errors
    /// As of [`Remote::connect`], from the last socket.
    pub fn connect_with(connect: Connect) -> io::Result<Remote> {
        let mut failed = io::Error::from(io::ErrorKind::NotFound);
        for socket in &connect.sockets {
            match Session::connect(socket, connect.patience, 0) {
                Ok(session) => return Ok(Remote { link: Arc::new(Link::new(connect, Arc::new(session))) }),
                Err(e) => failed = e,
            }
        }
        Err(failed)
    }

    /// The session that calls use now.
    #[inline]
    fn now(&self) -> &Arc<Session> {
        self.link.session()
    }

    /// The manager's number of this session.
    pub fn session(&self) -> u64 {
        self.now().number
    }

    /// The number of the volume's opening by the manager of this session; 0 when there is none.
    pub fn opening(&self) -> u64 {
        self.now().opening.number
    }

    /// The descriptors that the session needs: whoever closes them ends it.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        let session = self.now();
        [session.socket.as_fd(), session.event.as_fd()]
    }

    /// A message to the manager and back that does nothing else.
    pub async fn ping(&self) -> fs::Result<()> {
        self.call(request(Op::Ping, 0)).await.map(drop)
    }

    /// A name by which the open file can be looked up through other doors, the kernel's for one, in any directory, until it is closed here.
    ///
    /// # Errors
    /// `BadHandle`.
    pub async fn pass(&self, handle: Handle) -> fs::Result<Vec<u8>> {
        Ok(self.call(request(Op::Pass, handle.0)).await?.bytes())
    }
}

impl Session {
    fn connect(path: &Path, patience: Patience, serial: u64) -> io::Result<Session> {
        let (cred, socket) = (Cred::of_process(), socket::connect(path)?);
        let hello = Hello { magic: MAGIC.into(), version: VERSION.into(), ..Hello::new_zeroed() };
        let mut bytes = [0; size_of::<Welcome>()];
        // A manager that refuses us says so and closes, perhaps before we have spoken: what it said is there to be read, behind the
        // news that it did not listen.
        let gone = |e: &io::Error| matches!(e.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET));
        match socket::send(&socket, hello.as_bytes(), &[]) {
            Err(e) if !gone(&e) => return Err(e),
            _ => {}
        }
        let (n, fds) = match socket::receive(&socket, &mut bytes) {
            Err(e) if gone(&e) => socket::receive(&socket, &mut bytes)?,
            received => received?,
        };
        let refused = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        let welcome =
            Welcome::read_from_bytes(&bytes[..n]).map_err(|_| refused("no manager answers there"))?;
        match welcome.errno.get() {
            0 => {}
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
        if welcome.magic.get() != MAGIC || welcome.version.get() != VERSION {
            return Err(refused("the manager speaks another language"));
        }
        let [memory, event, changes, arena] =
            <[OwnedFd; 4]>::try_from(fds).map_err(|_| refused("the manager gave no memory"))?;
        memory::check_sealed(&memory, SESSION_BYTES)?;
        let arena = Arena::map(&arena)?;
        let opening = fs::Opening {
            volume: welcome.volume,
            number: welcome.opening.get(),
            after: welcome.after.map(|n| n.get()),
        };
        Ok(Session {
            serial,
            opening,
            region: Region::map(&memory)?,
            socket: high::moved(socket),
            event: high::moved(event),
            number: welcome.session.get(),
            patience,
            slots: Mutex::default(),
            lookers: AtomicUsize::new(0),
            // One processor is the manager's.
            lookers_max: (crate::spin::processors() - 1).max(1),
            waiters: AtomicUsize::new(0),
            throng: Throng::default(),
            kept: Kept::new(Seen::map(&changes)?, arena.memory()),
            arena,
            long_reads: LongReads::default(),
            holds: Holds::default(),
            cred,
            leases: Leases::default(),
            locks: LockLeases::default(),
            directories: Directories::default(),
            memories: Memories::default(),
            dead: AtomicBool::new(false),
            helper: Helper::default(),
        })
    }

    /// Nothing is done in this session any more.
    fn end(&self) {
        self.dead.store(true, Ordering::Release);
        self.kept.forget();
        self.leases.forget();
        self.directories.forget();
        self.arena.forget();
    }

    /// A free slot; without one, `waker` is woken when that may have changed.
    fn take_slot(&self, waker: Option<&Waker>) -> Option<usize> {
        self.take_slots(1, waker).map(|(slot, _)| slot)
    }

    /// As [`Session::take_slot`], with the slots behind it, `want` in all; or without them, when they or most others are in use. The slot, and how many there are.
    fn take_slots(&self, want: usize, waker: Option<&Waker>) -> Option<(usize, usize)> {
        let mut slots = self.slots.lock();
        let many = want > 1 || slots.taken.count_ones() >= MANY;
        let (mut abandoned, mut freed) = (if many { slots.abandoned } else { slots.unwanted.slots() }, 0);
        while abandoned != 0 {
            let slot = abandoned.trailing_zeros() as usize;
            abandoned &= abandoned - 1;
            if self.region.state(slot).load(Ordering::Acquire) == state::DONE {
                self.take_told(&mut slots, slot);
                if !self.closes_unwanted(&mut slots, slot) {
                    slots.give(slot);
                    freed += 1;
                }
            }
        }
        let enough = slots.taken.count_ones() as usize + want <= SLOTS_FOR_SEVERAL;
        let several = Some(want).filter(|want| *want > 1 && enough);
        let taken = several.and_then(|want| Some((slots.take(want)?, want)));
        let Some(taken) = taken.or_else(|| Some((slots.take(1)?, 1))) else {
            if let Some(waker) = waker.filter(|w| !slots.waiting.iter().any(|known| known.will_wake(w))) {
                slots.waiting.push_back(waker.clone());
            }
            return None;
        };
        if let Some(waker) = waker.filter(|_| !slots.waiting.is_empty()) {
            slots.waiting.retain(|known| !known.will_wake(waker));
        }
        if freed > 0 && !slots.waiting.is_empty() {
            // Nobody gives these back: who waits for them would do so until he looks by himself.
            let free = SLOTS - slots.taken.count_ones() as usize;
            let first = slots.waiting.len().min(freed).min(free);
            let woken: SmallVec<[Waker; 8]> = slots.waiting.drain(..first).collect();
            drop(slots);
            woken.into_iter().for_each(Waker::wake);
        }
        Some(taken)
    }

    fn give_slot(&self, slot: usize) {
        let mut slots = self.slots.lock();
        slots.give(slot);
        let next = slots.waiting.pop_front();
        drop(slots);
        next.into_iter().for_each(Waker::wake);
    }

    /// The call in this slot is no longer wanted; if it has opened something, that is to be closed.
    fn abandon_slot(&self, slot: usize, opens: Option<Opens>) {
        // The manager may look at the bit before it comes to the call.
        let word = self.region.state(slot);
        let give_up =
            |from| word.compare_exchange(from, state::GIVEN_UP, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if !give_up(state::POSTED) && give_up(state::SLEEPING) {
            let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
        }
        // From then on it may be another call's, which is not meant.
        self.region.cancel().fetch_or(1 << slot, Ordering::SeqCst);
        let mut slots = self.slots.lock();
        slots.abandoned |= 1 << slot;
        opens.inspect(|&opens| slots.unwanted.add(slot, opens));
        drop(slots);
        self.ring();
    }

    /// Wakes the manager if it sleeps.
    fn ring(&self) {
        if self.region.asleep().load(Ordering::SeqCst) != 0 {
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Looks for a while whether the manager has done something. False when it is time to sleep, which it is at once for a thread that has
    /// the manager's processor (one that the manager woke before it was through, for instance), unless there is a crowd: then it offers that.
    fn looks_for(&self, ready: impl FnMut() -> bool) -> bool {
        let crowded = self.region.crowded().load(Ordering::Relaxed) != 0;
        self.patience.wait(crowded, || self.kept.in_the_way(), || self.throng.offer(), ready)
    }

    fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire) || !self.kept.alive()
    }

    /// Asks the kernel whether the manager is still there. The socket says nothing else: a manager speaks only when it is spoken to.
    fn check_alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        let polled = rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }));
        if polled.is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
            self.dead.store(true, Ordering::Release);
        }
        !self.is_dead()
    }
}

/// Slots in use up to which a call may have several.
const SLOTS_FOR_SEVERAL: usize = SLOTS - SLOTS / 4;

/// Slots in use from which on it is looked which of them are free again: each look may have to fetch what the manager has just written.
const MANY: u32 = 16;

/// What calls fail with when the manager is gone.
const GONE: Error = Error::Closed;
