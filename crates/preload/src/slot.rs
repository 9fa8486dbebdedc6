//! What an open file is to the kernel, so that it survives dup, fork, vfork and exec.
//!
//! Each open file description of ours is a kernel description of a memory of its own (a memfd). Whatever the kernel does with descriptors (dup2 in a child of vfork,
//! file actions of posix_spawn, exec) carries the identity along; a program that starts finds its inherited files by looking at its descriptors.
//!
//! As long as no other process can have the description, all that is known of it stands in a slot of this process. Before a process is started, or a descriptor sent, it is
//! *published*: what was opened is written into the memory, which is sealed against changes by anybody, and from then on the offset and the status flags are
//! those of the kernel's description. So processes have no memory in common that one of them can write to, and whoever gets a descriptor can change of the file's description what the kernel
//! lets him change.
//!
//! Processes that read or write through one description at the same time: each moves the offset first, over the bytes that it is about to read or write, and gives back what it did not need.
//!
//! Where tested: `tests/all/processes.rs`, `tests/all/c_sharers.rs`.

use crate::hook::{Out, Res, fail};
use crate::memory::{self, Facts, close, control, copy_high, flock, lock, reopen, seek};
use crate::{mounts, table};
use format::shared::OpenFile;
use libc::c_int;
use share::Description;
use share::lock::Mutex;
use std::cell::UnsafeCell;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use zerocopy::FromZeros;

/// Instead of an offset: the kernel's description has it.
const PUBLISHED: u64 = u64::MAX;
/// Beside an offset: a call reads or writes there.
const BUSY: u64 = 1 << 63;
/// Flags that are the kernel's, once it is published.
const STATUS: c_int = libc::O_APPEND | libc::O_NONBLOCK | libc::O_ASYNC;

/// An open file description of this process.
pub(crate) struct Slot {
    /// What was opened.
    record: UnsafeCell<OpenFile>,
    /// As given to open(2), with what fcntl(F_SETFL) changed, as far as the kernel has it not.
    flags: AtomicU32,
    /// Or [`PUBLISHED`].
    offset: AtomicU64,
    /// How many bytes a call that is under way may read or write ([`BUSY`]).
    taken: AtomicU64,
    /// A descriptor of the description. Our own, when positive, which is there for as long as the slot is used; `!own` is the program's, when negative; 0 before it is published.
    own: AtomicI32,
    /// The thread that publishes it.
    publisher: AtomicI32,
    /// Inode number of the memory.
    memory: AtomicU64,
    /// Not 0 when the whole file was locked through it (flock): the opening of the volume, by the manager that knows of the lock.
    pub locked: AtomicU64,
    /// Not 0 when this process left the file to who has the description (`left`): the opening of the volume, as above.
    pub left: AtomicU64,
    /// One thread at a time moves the offset.
    moving: Mutex<()>,
    /// Of those that mean nothing now.
    next: UnsafeCell<Option<&'static Slot>>,
}

// SAFETY: the record is written while nobody else has the slot; `next` belongs to the list of those that nobody has.
unsafe impl Sync for Slot {}
// SAFETY: as above.
unsafe impl Send for Slot {}

/// Slots without a memory.
static UNUSED: Mutex<Option<&'static Slot>> = Mutex::new(None);

/// How often is looked whether another thread has published it.
const PATIENCE: usize = 10_000;

/// Which descriptors are our own ones of published descriptions: a bit for each.
static OWN: [AtomicU64; OWN_MAX / 64] = [const { AtomicU64::new(0) }; OWN_MAX / 64];
const OWN_MAX: usize = 1 << 16;

/// A descriptor, the lowest that is free, of a new description; and a slot for it, which says nothing yet. `EMFILE`, `ENFILE`, `ENOMEM`.
pub(crate) fn take(cloexec: c_int) -> Res<(c_int, &'static Slot)> {
    let fd = memory::make(cloexec)?;
    let slot = Slot::unused();
    slot.memory.store(memory::number(fd).unwrap_or(0), Ordering::Relaxed);
    Ok((fd, slot))
}

/// A slot for a published description with the memory of this number, of which `fd` is a descriptor.
pub(crate) fn adopted(record: OpenFile, number: u64, fd: c_int) -> &'static Slot {
    let slot = Slot::unused();
    let status = control(fd, libc::F_GETFL, 0) & STATUS;
    slot.flags.store(record.flags.get() & !STATUS as u32 | status as u32, Ordering::Relaxed);
    slot.memory.store(number, Ordering::Relaxed);
    slot.own.store(slot.copied(fd).unwrap_or(!fd), Ordering::Release);
    slot.locked.store(0, Ordering::Relaxed);
    slot.left.store(0, Ordering::Relaxed);
    // SAFETY: nobody else has the slot.
    unsafe { *slot.record.get() = record };
    slot.offset.store(PUBLISHED, Ordering::Release);
    slot
}

impl Slot {
    fn new() -> Slot {
        Slot {
            record: UnsafeCell::new(OpenFile::new_zeroed()),
            flags: AtomicU32::new(0),
            offset: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            own: AtomicI32::new(0),
            publisher: AtomicI32::new(0),
            memory: AtomicU64::new(0),
            locked: AtomicU64::new(0),
            left: AtomicU64::new(0),
            moving: Mutex::new(()),
            next: UnsafeCell::new(None),
        }
    }

    /// One that nobody has.
    fn unused() -> &'static Slot {
        let mut unused = UNUSED.lock();
        // SAFETY: who takes it from the list has it.
        let slot = unused.take().inspect(|slot| *unused = unsafe { (*slot.next.get()).take() });
        drop(unused);
        slot.unwrap_or_else(|| Box::leak(Box::new(Slot::new())))
    }

    /// In a child of fork, see below.
    pub(crate) fn after_fork(&self) {
        // SAFETY: we are the only thread.
        unsafe { crate::hook::free(&self.moving) };
        self.publisher.store(0, Ordering::Relaxed);
        if !self.is_published() {
            // Its offset is the parent's alone. Without a descriptor nobody goes by it here.
            self.offset.store(PUBLISHED, Ordering::Relaxed);
        }
    }

    /// Says what the slot, which nobody else looks at, is for now.
    pub(crate) fn fill(&self, facts: &Facts<'_>) {
        // SAFETY: as said.
        unsafe { *self.record.get() = facts.record() };
        self.flags.store(facts.flags, Ordering::Relaxed);
        self.offset.store(0, Ordering::Relaxed);
        self.locked.store(0, Ordering::Relaxed);
        self.left.store(0, Ordering::Relaxed);
    }

    /// The description has ended, and so has the memory: nobody has the slot any more.
    pub(crate) fn leave(&'static self) {
        self.give_up_own();
        self.offset.store(0, Ordering::Relaxed);
        let mut unused = UNUSED.lock();
        // SAFETY: as said, until it is in the list.
        unsafe { *self.next.get() = unused.take() };
        *unused = Some(self);
    }

    fn give_up_own(&self) {
        let own = self.own.swap(0, Ordering::AcqRel);
        if own > 0 {
            OWN[own as usize / 64].fetch_and(!(1 << (own % 64)), Ordering::Relaxed);
            close(own);
        }
    }

    /// What was opened.
    pub(crate) fn record(&self) -> &OpenFile {
        // SAFETY: it is written while nobody else has the slot.
        unsafe { &*self.record.get() }
    }

    /// The path below the mount at which the file was opened, when it is known.
    pub(crate) fn path(&self) -> Option<&[u8]> {
        memory::path_of(self.record())
    }

    /// Whether other processes may have the description.
    pub(crate) fn is_published(&self) -> bool {
        self.offset.load(Ordering::Acquire) == PUBLISHED
    }

    /// The flags of open(2), as this process knows them: how the file may be used never changes.
    #[inline]
    pub(crate) fn opened_with(&self) -> c_int {
        self.flags.load(Ordering::Relaxed) as c_int
    }

    /// The flags of open(2), as they are.
    #[inline]
    pub(crate) fn flags(&self) -> c_int {
        let flags = self.opened_with();
        if !self.is_published() {
            return flags;
        }
        match control(self.descriptor(), libc::F_GETFL, 0) {
            now if now >= 0 => flags & !STATUS | now & STATUS,
            _ => flags,
        }
    }

    /// Changes some of them.
    pub(crate) fn set_flags(&self, flags: c_int) {
        self.note_flags(flags);
        if self.is_published() {
            control(self.descriptor(), libc::F_SETFL, (flags & STATUS) as usize);
        }
    }

    /// What another process has made of them is known.
    pub(crate) fn note_flags(&self, flags: c_int) {
        self.flags.store(flags as u32, Ordering::SeqCst);
    }

    /// A descriptor of the description, which is published; -1 when there is none.
    pub(crate) fn descriptor(&self) -> c_int {
        match self.own.load(Ordering::Acquire) {
            own if own > 0 => own,
            0 => -1,
            theirs if self.is_behind(!theirs) => !theirs,
            _ => table::descriptor_of(self).unwrap_or(-1),
        }
    }

    /// Whether `fd` is a descriptor of it now: other threads may close it, and open something else.
    fn is_behind(&self, fd: c_int) -> bool {
        memory::number(fd) == Some(self.memory.load(Ordering::Relaxed))
    }

    /// Takes a copy of `fd`, which was a descriptor of it a moment ago. `None`: it is one no more, or there is no room for a copy. A child of vfork has descriptors of its own, of which our
    /// memory knows nothing; it, and who is alone, can go by the program's.
    fn copied(&self, fd: c_int) -> Option<c_int> {
        if !self.is_behind(fd) {
            return None;
        }
        if mounts::borrowed_memory() {
            return Some(!fd);
        }
        match copy_high(fd) {
            Some(copy) if (copy as usize) < OWN_MAX && self.is_behind(copy) => {
                OWN[copy as usize / 64].fetch_or(1 << (copy % 64), Ordering::Relaxed);
                Some(copy)
            }
            Some(copy) => {
                close(copy);
                None
            }
            None => share::lock::is_single().then_some(!fd),
        }
    }

    /// Other processes may get the description, of which `fd` is a descriptor. Nobody is waited for: what a call that is under way has taken of the file counts as taken.
    pub(crate) fn publish(&self, fd: c_int) -> Res<()> {
        if self.is_published() {
            return Ok(());
        }
        // SAFETY: asks for a number.
        let me = unsafe { libc::syscall(libc::SYS_gettid) as i32 };
        for _ in 0..PATIENCE {
            match self.publisher.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    let done = if self.is_published() { Ok(()) } else { self.publish_alone(fd) };
                    self.publisher.store(0, Ordering::Release);
                    return done;
                }
                // A signal handler on top of that starts a process.
                Err(other) if other == me => break,
                Err(_) => std::thread::yield_now(),
            }
        }
        fail(libc::EDEADLK)
    }

    fn publish_alone(&self, fd: c_int) -> Res<()> {
        let Some(own) = self.copied(fd) else { return fail(libc::EMFILE) };
        self.own.store(own, Ordering::Release);
        let fd = if own < 0 { !own } else { own };
        let told = memory::write(fd, &self.record_now()).and_then(|()| self.hand_over(fd));
        if told.is_err() {
            self.give_up_own();
        }
        told
    }

    fn record_now(&self) -> OpenFile {
        OpenFile { flags: self.flags.load(Ordering::Relaxed).into(), ..*self.record() }
    }

    /// The kernel has the offset and the flags from now on.
    fn hand_over(&self, fd: c_int) -> Res<()> {
        loop {
            let (flags, now) = (self.opened_with(), self.offset.load(Ordering::SeqCst));
            control(fd, libc::F_SETFL, (flags & STATUS) as usize);
            let taken = || if now & BUSY != 0 { self.taken.load(Ordering::SeqCst) } else { 0 };
            let before = taken();
            seek(fd, ((now & !BUSY) + before) as i64, libc::SEEK_SET)?;
            if !self.moves(now, PUBLISHED) {
                continue;
            }
            // Another call has begun at the same place since, and is under way.
            let more = (taken() as i64).wrapping_sub(before as i64);
            if more != 0 {
                seek(fd, more, libc::SEEK_CUR)?;
            }
            if self.opened_with() != flags {
                control(fd, libc::F_SETFL, (self.opened_with() & STATUS) as usize);
            }
            return Ok(());
        }
    }

    /// As [`Slot::publish`]; where that cannot be, other programs do not get the descriptor `fd`.
    pub(crate) fn publish_or_withhold(&self, fd: c_int) {
        match self.publish(fd) {
            // Somebody is at it.
            Ok(()) | Err(Out::Errno(libc::EDEADLK)) => {}
            Err(_) if self.is_behind(fd) => _ = control(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize),
            Err(_) => {}
        }
    }

    /// Whether the memory is the one of this number ([`memory::number`]).
    pub(crate) fn is_of(&self, memory: u64) -> bool {
        self.memory.load(Ordering::Relaxed) == memory
    }

    /// Runs `f` while no other thread moves the offset, which `f` is given and returns anew.
    pub(crate) fn with_offset<T>(&self, f: impl FnOnce(u64) -> Res<(u64, T)>) -> Res<T> {
        let _one = self.moving.lock();
        let at = self.offset()?;
        let (to, out) = f(at)?;
        if to != at {
            self.set_alone(to)?;
        }
        Ok(out)
    }

    /// Runs `f`, which reads or writes `len` bytes at most where it is told, and says how many; no other thread moves the offset meanwhile, and other processes go on behind these bytes.
    pub(crate) fn with_room(&self, len: usize, f: impl FnOnce(u64) -> Res<usize>) -> Res<usize> {
        let _one = self.moving.lock();
        let now = self.offset.load(Ordering::Acquire);
        if now != PUBLISHED {
            let at = now & !BUSY;
            let len = (len as u64).min(i64::MAX as u64 - at);
            if len == 0 {
                // Also at the last offset that there is, beside which nothing can stand.
                return f(at);
            }
            self.taken.store(len, Ordering::SeqCst);
            if self.moves(now, at | BUSY) {
                let done = f(at);
                let n = done.as_ref().map_or(0, |&n| n as u64);
                if !self.moves(at | BUSY, at + n) {
                    self.give_back(len.saturating_sub(n));
                }
                return done;
            }
        }
        let Ok(end) = seek(self.descriptor(), len as i64, libc::SEEK_CUR) else {
            // No offset is that far up.
            let at = self.offset()?;
            let n = f(at)?;
            return seek(self.descriptor(), n as i64, libc::SEEK_CUR).map(|_| n);
        };
        let done = f(end - len as u64);
        self.give_back((len as u64).saturating_sub(done.as_ref().map_or(0, |&n| n as u64)));
        done
    }

    /// Bytes that were taken and not needed. Where others have set the offset meanwhile there may be nothing to go back to; what was done is done.
    fn give_back(&self, bytes: u64) {
        if bytes > 0 {
            let _ = seek(self.descriptor(), -(bytes as i64), libc::SEEK_CUR);
        }
    }

    /// Changes the offset, which is this process's alone. False when it is that no longer, or, without the lock, when it is another one.
    fn moves(&self, from: u64, to: u64) -> bool {
        from != PUBLISHED
            && self.offset.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// The offset as it is now.
    pub(crate) fn offset(&self) -> Res<u64> {
        match self.offset.load(Ordering::Acquire) {
            PUBLISHED => seek(self.descriptor(), 0, libc::SEEK_CUR),
            at => Ok(at & !BUSY),
        }
    }

    /// Sets it, wherever it is.
    pub(crate) fn set_offset(&self, to: u64) -> Res<()> {
        let _one = self.moving.lock();
        self.set_alone(to)
    }

    /// As [`Slot::set_offset`], under the lock.
    fn set_alone(&self, to: u64) -> Res<()> {
        if self.moves(self.offset.load(Ordering::Acquire), to) {
            return Ok(());
        }
        seek(self.descriptor(), to as i64, libc::SEEK_SET).map(drop)
    }

    /// Moves the offset by so much, if other processes may move it, too. `EINVAL`: to before the beginning.
    pub(crate) fn moved_by(&self, by: i64) -> Option<Res<u64>> {
        self.is_published().then(|| seek(self.descriptor(), by, libc::SEEK_CUR))
    }

    /// Has the manager see when the description behind `fd`, which is this one, is gone from all processes (`share::Description`); with false no more.
    pub(crate) fn show(&self, fd: c_int, shown: bool) -> Res<()> {
        lock(fd, (0, 1), shown)
    }

    /// Says to all who have the description behind `fd` by which opening of the volume the whole file was locked through it; or that it is not.
    pub(crate) fn is_locked_by(&self, fd: c_int, opening: Option<u64>) -> Res<()> {
        self.locked.store(opening.unwrap_or(0), Ordering::Relaxed);
        lock(fd, (LOCKED_BY, 0), false)?;
        opening.map_or(Ok(()), |opening| lock(fd, (LOCKED_BY | (opening & OPENINGS) as i64, 1), true))
    }

    /// Whether the lock of the whole file, if there is one, is known of in this opening of the volume.
    pub(crate) fn lock_counts(&self, opening: u64) -> bool {
        if !self.is_published() {
            return [0, opening].contains(&self.locked.load(Ordering::Relaxed));
        }
        self.said((LOCKED_BY, 0)).is_none_or(|said| said & OPENINGS == opening & OPENINGS)
    }

    /// Says to the program that this process runs next by which opening of the volume there are record locks of the process, which it took through the description behind `fd`.
    pub(crate) fn records_stay(&self, fd: c_int, opening: u64) -> Res<()> {
        let (of_process, len) = records_of(mounts::pid());
        lock(fd, (of_process, len), false)?;
        lock(fd, (of_process | (opening & LAST_OPENINGS) as i64, 1), true)
    }

    /// Whether the program before this one has left record locks; if so, `is_known` tells whether they are known of in this opening of the volume.
    pub(crate) fn records_left(&self) -> Option<impl Fn(u64) -> bool + use<>> {
        let said = self.said(records_of(mounts::pid()))?;
        Some(move |opening| (said ^ opening) & LAST_OPENINGS == 0)
    }

    /// What the first lock in this range says: where it begins.
    fn said(&self, range: (i64, i64)) -> Option<u64> {
        let mut found = flock(libc::F_WRLCK, range);
        // Those of descriptions are in the way of those of processes, also of one that has the description.
        let asked = control(self.descriptor(), libc::F_GETLK, (&raw mut found).addr());
        (asked == 0 && found.l_type != libc::F_UNLCK as libc::c_short).then_some(found.l_start as u64)
    }

    /// Makes a call about the description behind `fd`, which is this one.
    pub(crate) fn with_description<T>(&self, fd: c_int, call: impl FnOnce(&Description<'_>) -> T) -> T {
        // Who serves the volume may be another user, and writes to no memory of ours.
        let open = || match reopen(fd, libc::O_RDONLY | libc::O_CLOEXEC) {
            own if own < 0 => Err(std::io::Error::last_os_error()),
            // SAFETY: the descriptor is new, and nobody else's.
            own => Ok(unsafe { OwnedFd::from_raw_fd(own) }),
        };
        call(&Description { memory: self.memory.load(Ordering::Relaxed), at: 0, open: &open })
    }
}

/// Where a lock of a description begins that says by which opening of the volume the file is locked; which one, is in the lower bits.
const LOCKED_BY: i64 = 1 << 62;
const OPENINGS: u64 = (1 << 61) - 1;
/// The same for record locks of processes; which process, is in the bits above those for the opening.
const RECORDS: i64 = 1 << 61;
const LAST_OPENINGS: u64 = (1 << 38) - 1;

/// The locks of a description that speak of this process.
fn records_of(pid: u32) -> (i64, i64) {
    (RECORDS | (pid as i64 & 0x3f_ffff) << 38, 1 << 38)
}

/// Whether `fd` is our own descriptor of a published description.
pub(crate) fn is_own(fd: c_int) -> bool {
    let word = usize::try_from(fd).ok().and_then(|fd| OWN.get(fd / 64));
    word.is_some_and(|word| word.load(Ordering::Relaxed) >> (fd % 64) & 1 != 0)
}

/// In a child of fork, which has one thread: which of these are used. Not on the stack, which may be a small one of a signal handler.
static USED: [AtomicU64; OWN_MAX / 64] = [const { AtomicU64::new(0) }; OWN_MAX / 64];

/// A slot that is used there.
pub(crate) fn is_used(slot: &Slot) {
    let own = slot.own.load(Ordering::Relaxed);
    if own > 0 {
        USED[own as usize / 64].fetch_or(1 << (own % 64), Ordering::Relaxed);
    }
}

/// Closes the others: threads that exist only in the parent were about to do so.
pub(crate) fn close_unused() {
    for (number, (word, used)) in OWN.iter().zip(&USED).enumerate() {
        let used = used.swap(0, Ordering::Relaxed);
        let lost = word.swap(used, Ordering::Relaxed) & !used;
        (0..64).filter(|bit| lost >> bit & 1 != 0).for_each(|bit| close((number * 64 + bit) as c_int));
    }
}

/// In a child of fork: no other thread can hold the locks.
pub(crate) fn after_fork() {
    // SAFETY: we are the only thread.
    unsafe { crate::hook::alone(&UNUSED) };
}
