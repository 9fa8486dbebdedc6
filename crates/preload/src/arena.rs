//! What an open file is to the kernel, so that it survives dup, fork, vfork and exec.
//!
//! State that all sharers of an open file description must agree on (which inode, flags, offset) lies in a slot of an arena: a sealed
//! memfd that processes map. The description itself is a kernel description of that memfd, opened anew for each file, whose
//! position says which slot is meant. Whatever the kernel does with descriptors (dup2 in a child of vfork, file actions of
//! posix_spawn, exec) carries the identity along; a program that starts finds its inherited files by looking at its descriptors.
//!
//! Such a descriptor is write-only and stands beyond the end of a memfd that cannot grow: should somebody use it without us (a
//! static program), reads fail with `EBADF` and writes with `EPERM`, rather than going somewhere.
//!
//! A slot is used again only together with its description, when nobody else can have that (`pool`): a child may still have one that
//! its parent has closed. A full arena is replaced by a new one, and goes away with its last open file.

use crate::holder::Held;
use crate::hook::{Res, errno, fail};
use crate::mounts::borrowed_memory;
use libc::c_int;
use share::Description;
use share::client::high;
use share::lock::Mutex;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

const NAME: &std::ffi::CStr = c"freehold-open-files";
const LINK: &[u8] = b"/memfd:freehold-open-files";
const SLOT: usize = 512;
const SLOTS: usize = 512;
pub(crate) const BYTES: usize = SLOT * SLOTS;
/// Position of slot 0, far beyond the end of the memfd.
const BASE: i64 = 1 << 40;
/// See `Slot::used`.
const ADOPTED: u32 = 2;
/// Longest path kept in a slot.
const PATH_MAX: usize = SLOT - 64;

/// State of an open file description, shared by the processes that have it.
#[repr(C)]
pub(crate) struct Slot {
    /// Not 0 when the slot was filled, [`ADOPTED`] when a program was started with it. In slot 0: the next free slot.
    pub used: AtomicU32,
    /// Who works with the offset ([`Held`]).
    lock: AtomicU32,
    /// Which volume: a hash of the mount path.
    pub mount: AtomicU64,
    pub ino: AtomicU64,
    pub generation: AtomicU32,
    /// As given to open(2), with what fcntl(F_SETFL) changed.
    pub flags: AtomicU32,
    /// `FileType` as a number.
    pub kind: AtomicU32,
    path_len: AtomicU32,
    pub offset: AtomicU64,
    /// Not 0 when the whole file was locked through it (flock): the opening of the volume, by the manager that knows of the lock.
    pub locked: AtomicU64,
    /// Not 0 when the file was left to who has the description (`left`): the opening of the volume, as above.
    pub left: AtomicU64,
    path: [u8; PATH_MAX],
}
const _: () = assert!(size_of::<Slot>() == SLOT);

/// A mapped arena.
pub(crate) struct Arena {
    base: *mut Slot,
    /// Of the memfd; -1 when no more slots are taken from it.
    fd: AtomicI32,
    /// Inode of the memfd.
    ino: u64,
}

// SAFETY: slots consist of atomics, and of paths that are written once before the slot is given out.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping and the descriptor are ours; no slot of it is used any more.
        unsafe {
            libc::munmap(self.base.cast(), BYTES);
        }
        self.close();
    }
}

/// A slot and what keeps it mapped.
#[derive(Clone)]
pub(crate) struct Place {
    arena: Arc<Arena>,
    number: usize,
}

static CURRENT: Mutex<Option<Arc<Arena>>> = Mutex::new(None);

/// Moves a descriptor of ours out of the way, and has it closed by exec.
fn high(fd: c_int) -> c_int {
    let Some(moved) = copy_high(fd) else {
        high::note(fd);
        return fd;
    };
    // SAFETY: `fd` was ours.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    moved
}

/// A copy of a descriptor out of the way, which exec closes.
pub(crate) fn copy_high(fd: c_int) -> Option<c_int> {
    // SAFETY: it is open as long as the call takes.
    high::copy(unsafe { BorrowedFd::borrow_raw(fd) }).map(OwnedFd::into_raw_fd)
}

fn map(fd: c_int) -> Option<(*mut Slot, u64)> {
    // SAFETY: a zeroed stat is a valid place for the result, and the mapping is new.
    unsafe {
        let mut st: libc::stat = std::mem::zeroed();
        if libc::syscall(libc::SYS_fstat, fd, &mut st) != 0 || st.st_size < BYTES as i64 {
            return None;
        }
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let base = libc::syscall(libc::SYS_mmap, 0usize, BYTES, prot, libc::MAP_SHARED, fd, 0i64);
        (base != -1).then_some((base as *mut Slot, st.st_ino))
    }
}

impl Arena {
    fn close(&self) {
        let fd = self.fd.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: the descriptor is ours.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
    }

    fn new() -> Res<Arena> {
        // SAFETY: system calls on a descriptor of our own.
        let fd = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return fail(errno());
        }
        let fd = high(fd);
        let seals = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
        // SAFETY: as above.
        let sealed = unsafe {
            libc::syscall(libc::SYS_ftruncate, fd, BYTES) == 0
                && libc::syscall(libc::SYS_fcntl, fd, libc::F_ADD_SEALS, seals) == 0
        };
        let Some((base, ino)) = map(fd).filter(|_| sealed) else { return fail(libc::ENOMEM) };
        let arena = Arena { base, fd: AtomicI32::new(fd), ino };
        arena.slot(0).used.store(1, Ordering::Relaxed);
        Ok(arena)
    }

    /// See [`take`]; `None` when it is full.
    fn take(self: &Arc<Arena>, cloexec: c_int) -> Option<Res<(c_int, Place)>> {
        let number = self.slot(0).used.fetch_add(1, Ordering::Relaxed) as usize;
        if number >= SLOTS {
            return None;
        }
        let fd = reopen(self.fd.load(Ordering::Relaxed), libc::O_WRONLY | cloexec);
        if fd < 0 {
            return Some(fail(errno()));
        }
        let to = BASE + number as i64;
        // SAFETY: a position is set.
        let at = unsafe { libc::syscall(libc::SYS_lseek, fd, to, libc::SEEK_SET) };
        assert!(at == to, "a memfd can be positioned anywhere");
        Some(Ok((fd, Place { arena: self.clone(), number })))
    }

    fn slot(&self, number: usize) -> &Slot {
        assert!(number < SLOTS);
        // SAFETY: in the mapping, which has SLOTS slots and lives as long as self.
        unsafe { &*self.base.add(number) }
    }
}

/// What a new slot says.
pub(crate) struct Facts<'a> {
    pub mount: u64,
    pub ino: u64,
    pub generation: u32,
    pub flags: u32,
    pub kind: u32,
    pub path: &'a [u8],
}

/// A new kernel descriptor, the lowest that is free, and its slot. `EMFILE`, `ENFILE`, `ENOMEM`.
pub(crate) fn make(facts: &Facts<'_>) -> Res<(c_int, Place)> {
    let (fd, place) = take(facts.flags as c_int & libc::O_CLOEXEC)?;
    place.fill(facts);
    Ok((fd, place))
}

/// Another description of the file that `fd` leads to.
fn reopen(fd: c_int, flags: c_int) -> c_int {
    let mut path = [0u8; 32];
    let written = std::io::Write::write_fmt(&mut &mut path[..31], format_args!("/proc/self/fd/{fd}"));
    assert!(written.is_ok());
    // SAFETY: a C string of our own.
    unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) as c_int }
}

/// A slot that nobody has used, and a kernel descriptor that means it. The lock is held until the descriptor exists, because a full
/// arena's own descriptor is closed.
pub(crate) fn take(cloexec: c_int) -> Res<(c_int, Place)> {
    let mut current = CURRENT.lock();
    if let Some(arena) = &*current
        && let Some(taken) = arena.take(cloexec)
    {
        return taken;
    }
    let new = Arc::new(Arena::new()?);
    let taken = new.take(cloexec).unwrap_or_else(|| fail(libc::ENFILE));
    if borrowed_memory() {
        // Of a child of vfork: its parent, whose memory this is, would take it for an arena of its own, without the descriptor.
        new.close();
    } else if let Some(full) = current.replace(new) {
        full.close();
    }
    taken
}

/// Which memfd is behind a descriptor, and where in it the description stands, if that can be a slot of ours.
pub(crate) fn where_is(fd: c_int) -> Option<(u64, i64)> {
    // SAFETY: all zeros is a valid value, which the call fills; a position is asked for.
    unsafe {
        let at = libc::syscall(libc::SYS_lseek, fd, 0i64, libc::SEEK_CUR);
        let mut st: libc::stat = std::mem::zeroed();
        (at > BASE && libc::syscall(libc::SYS_fstat, fd, &mut st) == 0).then_some((st.st_ino, at))
    }
}

/// The slot of a descriptor that was inherited, or came in a message, if it is one of ours. `known` are arenas mapped already. `owner`: whose arena it must be, where anybody may
/// have sent it. What a slot says is believed: who can write it has this process open files for him.
pub(crate) fn inherited(fd: c_int, known: &mut Vec<Arc<Arena>>, owner: Option<libc::uid_t>) -> Option<Place> {
    let mut path = [0u8; 32];
    std::io::Write::write_fmt(&mut &mut path[..31], format_args!("/proc/self/fd/{fd}")).ok()?;
    let mut link = [0u8; 64];
    // SAFETY: buffers of our own with their lengths; positions and statistics of descriptors are read.
    unsafe {
        let n =
            libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), link.as_mut_ptr(), link.len());
        if n < LINK.len() as i64 || !link.starts_with(LINK) {
            return None;
        }
        // One that could be cut would end us (SIGBUS). Only memory has seals: a file of this name is asked for nothing, as its server may have us wait.
        let seals = libc::syscall(libc::SYS_fcntl, fd, libc::F_GET_SEALS, 0) as c_int;
        if seals < 0 || !seals & (libc::F_SEAL_GROW | libc::F_SEAL_SHRINK) != 0 {
            return None;
        }
        let at = libc::syscall(libc::SYS_lseek, fd, 0i64, libc::SEEK_CUR) - BASE;
        if !(1..SLOTS as i64).contains(&at) {
            return None;
        }
        let mut st: libc::stat = std::mem::zeroed();
        if libc::syscall(libc::SYS_fstat, fd, &mut st) != 0 || owner.is_some_and(|owner| owner != st.st_uid) {
            return None;
        }
        let found = known.iter().find(|a| a.ino == st.st_ino).cloned();
        let arena = match found {
            Some(arena) => arena,
            None => {
                let own = reopen(fd, libc::O_RDWR | libc::O_CLOEXEC);
                if own < 0 {
                    return None;
                }
                let mapped = map(own);
                libc::syscall(libc::SYS_close, own);
                let (base, ino) = mapped?;
                let arena = Arc::new(Arena { base, fd: AtomicI32::new(-1), ino });
                known.push(arena.clone());
                arena
            }
        };
        let place = Place { arena, number: at as usize };
        let used = place.slot().used.swap(ADOPTED, Ordering::AcqRel) != 0;
        used.then_some(place)
    }
}

impl Place {
    pub(crate) fn slot(&self) -> &Slot {
        self.arena.slot(self.number)
    }

    /// The slot, which nobody else looks at, means nothing for now.
    pub(crate) fn empty(&self) {
        self.slot().used.store(0, Ordering::Release);
    }

    /// Says what the slot, which nobody else looks at, is for now.
    pub(crate) fn fill(&self, facts: &Facts<'_>) {
        let slot = self.slot();
        slot.mount.store(facts.mount, Ordering::Relaxed);
        slot.ino.store(facts.ino, Ordering::Relaxed);
        slot.generation.store(facts.generation, Ordering::Relaxed);
        slot.flags.store(facts.flags, Ordering::Relaxed);
        slot.kind.store(facts.kind, Ordering::Relaxed);
        slot.offset.store(0, Ordering::Relaxed);
        slot.locked.store(0, Ordering::Relaxed);
        slot.left.store(0, Ordering::Relaxed);
        let known = facts.path.len() <= PATH_MAX;
        if known {
            let to = slot.path.as_ptr().cast_mut();
            // SAFETY: nobody else looks at the slot; the length was checked.
            unsafe { std::ptr::copy_nonoverlapping(facts.path.as_ptr(), to, facts.path.len()) };
        }
        slot.path_len.store(if known { facts.path.len() as u32 + 1 } else { 0 }, Ordering::Relaxed);
        slot.used.store(1, Ordering::Release);
    }

    /// Whether it is the same slot.
    pub(crate) fn is(&self, other: &Place) -> bool {
        std::ptr::eq(self.slot(), other.slot())
    }

    /// Whether such descriptions mean this slot (`where_is`).
    pub(crate) fn is_at(&self, place: (u64, i64)) -> bool {
        (self.arena.ino, self.position()) == place
    }

    /// Where the kernel's descriptions that mean this slot stand in the memfd.
    fn position(&self) -> i64 {
        BASE + self.number as i64
    }

    /// Has the manager see when the description behind `fd`, which means this slot, is gone from all processes (`share::Description`); with false no more.
    pub(crate) fn show(&self, fd: c_int, shown: bool) -> Res<()> {
        // SAFETY: all zeros is a valid value.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = if shown { libc::F_WRLCK } else { libc::F_UNLCK } as _;
        lock.l_whence = libc::SEEK_SET as _;
        (lock.l_start, lock.l_len) = (self.position(), 1);
        // SAFETY: nothing is touched but the kernel's description; the argument is what the command needs.
        match unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_OFD_SETLK, &lock) } {
            0 => Ok(()),
            _ => fail(errno()),
        }
    }

    /// Makes a call about the description behind `fd`, which means this slot.
    pub(crate) fn with_description<T>(&self, fd: c_int, call: impl FnOnce(&Description<'_>) -> T) -> T {
        let open = || match reopen(fd, libc::O_RDWR | libc::O_CLOEXEC) {
            own if own < 0 => Err(std::io::Error::last_os_error()),
            // SAFETY: the descriptor is new, and nobody else's.
            own => Ok(unsafe { OwnedFd::from_raw_fd(own) }),
        };
        call(&Description { memory: self.arena.ino, at: self.position() as u64, open: &open })
    }

    /// Whether another program was started with it.
    pub(crate) fn is_adopted(&self) -> bool {
        self.slot().used.load(Ordering::Acquire) == ADOPTED
    }

    /// The path below the mount at which the file was opened, when it is known.
    pub(crate) fn path(&self) -> Option<&[u8]> {
        let slot = self.slot();
        let len = (slot.path_len.load(Ordering::Relaxed) as usize).checked_sub(1)?;
        slot.path.get(..len)
    }

    /// Runs `f` while nobody else moves the offset, which `f` is given and returns anew.
    pub(crate) fn with_offset<T>(&self, f: impl FnOnce(u64) -> Res<(u64, T)>) -> Res<T> {
        let slot = self.slot();
        let _held = Held::take(&slot.lock);
        let (offset, out) = f(slot.offset.load(Ordering::Relaxed))?;
        slot.offset.store(offset, Ordering::Relaxed);
        Ok(out)
    }
}

/// Whether `fd` is a descriptor that arenas need.
pub(crate) fn is_own(fd: c_int) -> bool {
    CURRENT.lock().as_ref().is_some_and(|a| a.fd.load(Ordering::Relaxed) == fd)
}

/// In a child of fork: no other thread can hold the lock.
pub(crate) fn after_fork() {
    // SAFETY: we are the only thread.
    unsafe { crate::hook::alone(&CURRENT) };
}
