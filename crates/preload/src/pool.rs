//! Kernel descriptions that are used again: making one (see `slot`) takes several calls, a copy of one that is at hand is cheap.
//!
//! A description that the program has closed is kept open by a descriptor of ours, out of the program's way and closed by exec; opening
//! the next file makes a copy of it, as always with the lowest number that is free, and its slot gets new contents. That is allowed only
//! if nobody else can have the description: it was not there while a process was started (fork, posix_spawn, system, popen,
//! wordexp), it was not sent to another process, and no record locks were asked for through it. A child of fork has none of its parent's. After vfork nothing is used again until the thread that called it
//! comes again; after clone, of which only the beginning is seen, nothing at all.
//!
//! Where tested: `tests/all/processes.rs`.

use crate::description::Description;
use crate::hook::{Res, errno, fail};
use crate::memory::Facts;
use crate::slot::{self, Slot};
use crate::{mounts, parked, table};
use libc::c_int;
use share::client::high;
use share::lock::{Apart, Mutex};
use std::cell::Cell;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// Descriptions that are kept for files to come.
const SPARE_MAX: usize = 16;
/// Descriptions that stay kept while a file uses them; others are kept again when they are closed.
const USED_MAX: usize = 16;

/// Our descriptors of them; 0 where there is none, -1 where one is being made.
static KEPT: Apart<[AtomicI32; SPARE_MAX + USED_MAX]> =
    Apart([const { AtomicI32::new(0) }; SPARE_MAX + USED_MAX]);
/// The kept descriptions. Files that are opened with a parked descriptor (`parked`) need nothing of it.
static STOCK: Apart<Mutex<Stock>> =
    Apart(Mutex::new(Stock { spare: [const { None }; SPARE_MAX], count: 0, used: 0 }));

#[derive(Default)]
struct Stock {
    /// Those that no file uses, and how many these are. Not in memory of malloc, in the middle of which handlers of signals may make calls that bring some here.
    spare: [Option<(Keeper, &'static Slot)>; SPARE_MAX],
    count: usize,
    /// How many files use.
    used: usize,
}

impl Stock {
    /// Gives it back where there is no room.
    fn put(&mut self, spare: (Keeper, &'static Slot)) -> Result<(), (Keeper, &'static Slot)> {
        let Some(room) = self.spare.get_mut(self.count) else { return Err(spare) };
        *room = Some(spare);
        self.count += 1;
        Ok(())
    }

    fn take(&mut self) -> Option<(Keeper, &'static Slot)> {
        self.count = self.count.checked_sub(1)?;
        self.spare[self.count].take()
    }
}

/// What each open and close looks at.
static STARTED: Apart<Started> = Apart(Started {
    starts: AtomicU64::new(1),
    starting: AtomicUsize::new(0),
    never: AtomicBool::new(!cfg!(target_arch = "x86_64")),
    with_memory: AtomicBool::new(!cfg!(target_arch = "x86_64")),
});

struct Started {
    /// Starts of processes, and one.
    starts: AtomicU64,
    /// How many of them are under way.
    starting: AtomicUsize,
    /// A start was seen whose end cannot be seen (clone). Where calls that start processes are not all seen (`spawn`), from the beginning.
    never: AtomicBool,
    /// There may be, or have been, children that have our memory.
    with_memory: AtomicBool,
}

/// What keeps a description open.
struct Keeper {
    entry: usize,
    /// Of which life of the process.
    life: u64,
}

/// How a description that is in use was come by.
pub(crate) struct Origin {
    keeper: Option<Keeper>,
    since: Since,
}

/// [`starts`] before a description existed; `None`: one was under way.
#[derive(Clone, Copy)]
pub(crate) struct Since(Option<NonZeroU64>);

impl Origin {
    /// Whether the description is there still when its last descriptor is closed.
    pub(crate) fn is_kept(&self) -> bool {
        self.keeper.is_some()
    }

    pub(crate) fn since(&self) -> Since {
        self.since
    }

    /// Our descriptor that keeps the description, which no other process has, nor had.
    pub(crate) fn kept(&self) -> Option<c_int> {
        self.keeper.as_ref().filter(|keeper| keeper.counts() && self.since.is_alone()).map(Keeper::fd)
    }

    /// Of a description that others have too.
    pub(crate) const SHARED: Origin = Origin { keeper: None, since: Since(None) };
}

thread_local! {
    /// This thread has called vfork, and was not seen again since, but for its child, which has its memory.
    static IN_VFORK: Cell<bool> = const { Cell::new(false) };
}

/// vfork is about to be called.
pub(crate) fn begin_vfork() {
    STARTED.with_memory.store(true, Ordering::SeqCst);
    end_vfork();
    if !IN_VFORK.get() {
        begin_start();
        IN_VFORK.set(true);
    }
}

/// If this thread has called vfork, and goes on: its child has its own memory by now, or has ended.
#[inline]
fn end_vfork() {
    if IN_VFORK.get() && !is_child_with_memory() {
        IN_VFORK.set(false);
        end_start();
    }
}

/// Whether this is a child that has our memory, its parent's.
#[inline]
pub(crate) fn is_child_with_memory() -> bool {
    // SAFETY: asks for a number.
    STARTED.with_memory.load(Ordering::SeqCst)
        && unsafe { libc::syscall(libc::SYS_getpid) as u32 } != mounts::pid()
}

/// What changes with each start of a process, unless one is under way or cannot be seen.
#[inline]
fn starts() -> Option<NonZeroU64> {
    end_vfork();
    let starts = STARTED.starts.load(Ordering::SeqCst);
    let quiet = STARTED.starting.load(Ordering::SeqCst) == 0 && !is_never();
    NonZeroU64::new(starts).filter(|_| quiet)
}

/// Whether a start was seen whose end cannot be seen.
#[inline]
fn is_never() -> bool {
    STARTED.never.load(Ordering::SeqCst)
}

/// A start is seen whose end will not be.
pub(crate) fn never_again() {
    STARTED.with_memory.store(true, Ordering::SeqCst);
    STARTED.never.store(true, Ordering::SeqCst);
}

/// Whether descriptions may be used again now.
pub(crate) fn is_quiet() -> bool {
    starts().is_some()
}

/// A process is being started until the value is dropped.
pub(crate) struct Starting(());

pub(crate) fn starting() -> Starting {
    crate::left::before_start();
    parked::close();
    begin_start();
    Starting(())
}

impl Drop for Starting {
    fn drop(&mut self) {
        end_start();
    }
}

pub(crate) extern "C" fn begin_start() {
    STARTED.starting.fetch_add(1, Ordering::SeqCst);
    STARTED.starts.fetch_add(1, Ordering::SeqCst);
    parked::close_for_start();
    table::publish();
}

pub(crate) extern "C" fn end_start() {
    STARTED.starting.fetch_sub(1, Ordering::SeqCst);
}

impl Keeper {
    /// Keeps the description of `fd`, if there is room for one more: among the highest numbers only, which programs can spare.
    fn of(fd: c_int) -> Option<Keeper> {
        let claim = |k: &AtomicI32| k.compare_exchange(0, -1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let entry = KEPT.iter().position(claim)?;
        // SAFETY: only descriptors are touched.
        let own = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, high::FROM) } as c_int;
        if own >= 0 {
            high::note(own);
        }
        KEPT[entry].store(own.max(0), Ordering::Release);
        (own >= 0).then(|| Keeper { entry, life: mounts::life() })
    }

    fn fd(&self) -> c_int {
        KEPT[self.entry].load(Ordering::Acquire)
    }

    /// Whether it is this process's own.
    fn counts(&self) -> bool {
        self.life == mounts::life()
    }

    fn close(self) {
        if self.counts() {
            let fd = KEPT[self.entry].swap(0, Ordering::AcqRel);
            // SAFETY: the descriptor is ours.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
    }
}

/// A kernel descriptor of ours, the lowest that was free, whose slot says nothing yet. Closed when it is dropped.
pub(crate) struct Made {
    fd: c_int,
    /// Taken by [`Made::fill`].
    parts: Option<(&'static Slot, Origin)>,
    /// What the descriptor led to before.
    unused: Option<&'static Description>,
}

/// Makes a descriptor for a file to be opened with these flags of open(2). `EMFILE`, `ENFILE`, `ENOMEM`.
pub(crate) fn make(flags: c_int) -> Res<Made> {
    let cloexec = flags & libc::O_CLOEXEC;
    let since = Since(starts());
    if since.0.is_some()
        && let Some(made) = parked::take(flags)
    {
        return Ok(made);
    }
    let spare = since.0.and_then(|_| {
        let mut stock = STOCK.lock();
        let (keeper, slot) = stock.take()?;
        let stays = stock.used < USED_MAX;
        stock.used += stays as usize;
        Some((keeper, slot, stays))
    });
    let full = parked::full();
    let Some((keeper, slot, stays)) = spare else {
        let (fd, slot) = slot::take(cloexec)?;
        parked::given(fd, full);
        return Ok(Made { fd, parts: Some((slot, Origin { keeper: None, since })), unused: None });
    };
    let command = if cloexec != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    // SAFETY: only descriptors are touched.
    let fd = unsafe { libc::syscall(libc::SYS_fcntl, keeper.fd(), command, 0) } as c_int;
    if fd < 0 {
        let why = errno();
        let mut stock = STOCK.lock();
        stock.used -= stays as usize;
        let left = stock.put((keeper, slot));
        drop(stock);
        if let Err((keeper, slot)) = left {
            keeper.close();
            slot.leave();
        }
        return fail(why);
    }
    parked::given(fd, full);
    let mut origin = Origin { keeper: None, since };
    if stays {
        origin.keeper = Some(keeper);
    } else {
        keeper.close();
    }
    Ok(Made { fd, parts: Some((slot, origin)), unused: None })
}

impl Made {
    /// A descriptor that was another file's, and the description of that.
    pub(crate) fn again(
        fd: c_int,
        slot: &'static Slot,
        origin: Origin,
        unused: &'static Description,
    ) -> Made {
        Made { fd, parts: Some((slot, origin)), unused: Some(unused) }
    }

    /// Its number.
    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }

    /// Says what it is. With what that is made of comes a description that nobody uses, if there is one at hand.
    pub(crate) fn fill(
        mut self,
        facts: &Facts<'_>,
    ) -> (c_int, &'static Slot, Origin, Option<&'static Description>) {
        let (slot, origin) = self.parts.take().expect("only this takes them, once");
        slot.fill(facts);
        (self.fd, slot, origin, self.unused.take())
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some((slot, origin)) = self.parts.take() {
            // SAFETY: the descriptor was made for us, and nobody has heard of it.
            unsafe { libc::syscall(libc::SYS_close, self.fd) };
            parked::freed(self.fd);
            done(slot, origin, false);
        }
        if let Some(unused) = self.unused.take() {
            unused.leave();
        }
    }
}

impl Since {
    /// Whether no other process can have the description.
    #[inline]
    pub(crate) fn is_alone(self) -> bool {
        self.0.is_some() && self.0 == starts()
    }
}

impl Origin {
    /// Descriptor `fd` of this description is about to be closed. It may be the last one.
    pub(crate) fn keep(&mut self, fd: c_int) {
        if self.keeper.is_none() && self.since.is_alone() && STOCK.lock().count < SPARE_MAX {
            self.keeper = Keeper::of(fd);
            STOCK.lock().used += self.keeper.is_some() as usize;
        }
    }
}

/// The last descriptor of a description is closed here.
pub(crate) fn done(slot: &'static Slot, origin: Origin, shared: bool) {
    let alone = !shared && origin.since.is_alone() && !slot.is_published();
    let Some(keeper) = origin.keeper.filter(Keeper::counts) else { return slot.leave() };
    let mut stock = STOCK.lock();
    stock.used -= 1;
    let left = if alone { stock.put((keeper, slot)) } else { Err((keeper, slot)) };
    drop(stock);
    if let Err((keeper, slot)) = left {
        keeper.close();
        slot.leave();
    }
}

/// Whether `fd` keeps a description.
pub(crate) fn is_own(fd: c_int) -> bool {
    KEPT.iter().any(|k| k.load(Ordering::Relaxed) == fd)
}

/// In a child of fork: the descriptions are its parent's. No other thread can hold the lock.
pub(crate) fn after_fork() {
    STARTED.starting.store(0, Ordering::Relaxed);
    IN_VFORK.set(false);
    // SAFETY: we are the only thread.
    unsafe { crate::hook::alone(&STOCK) };
    let spare = std::mem::take(&mut *STOCK.lock()).spare;
    spare.into_iter().flatten().for_each(|(_, slot)| slot.leave());
    for kept in KEPT.iter() {
        let fd = kept.swap(0, Ordering::Relaxed);
        if fd > 0 {
            // SAFETY: our copy of the parent's descriptor.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
    }
}
