//! Locks of open file descriptions that several sessions have, of whole files and of records, and clients that lie about theirs.

use crate::rig::between::Between;
use crate::rig::{NEW, Rig, volume};
use fs::{Cred, FileSystem, Handle, LockKind, LockOwner, OpenFlags, RecordLock};
use rustix::fs::{MemfdFlags, SealFlags};
use share::{Description, Remote, Server, server::Options};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// A memory whose bytes stand for descriptions.
fn memory() -> OwnedFd {
    let fd = rustix::fs::memfd_create(c"test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    fd
}

fn again(fd: &OwnedFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(std::fs::OpenOptions::new().read(true).write(true).open(path)?.into())
}

/// What a process does with its description: from now on it stands for this byte.
fn stands(description: &OwnedFd, at: i64) {
    set(description, libc::F_WRLCK, at, 1);
}

/// Has a description stand for the first so many even bytes. Asked about one behind them the kernel looks at all of them.
fn crowds(description: &OwnedFd, count: i64) {
    set(description, libc::F_WRLCK, 0, 2 * count);
    // From the end: what they are taken out of is the first one.
    (0..count).rev().for_each(|n| set(description, libc::F_UNLCK, 2 * n + 1, 1));
}

fn set(description: &OwnedFd, kind: i32, at: i64, len: i64) {
    call(description, libc::F_OFD_SETLK, kind, at, len);
}

fn call(description: &OwnedFd, command: i32, kind: i32, at: i64, len: i64) {
    // SAFETY: all zeros is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_start, lock.l_len) = (kind as _, at, len);
    // SAFETY: the argument is what the command needs.
    assert_eq!(unsafe { libc::fcntl(description.as_raw_fd(), command, &mut lock) }, 0);
}

/// How long the kernel, on this machine as busy as it is, takes to look at all of a crowd.
fn looking_at(crowd: &OwnedFd) -> Duration {
    const QUESTIONS: u32 = 50;
    let (other, begun) = (again(crowd).unwrap(), Instant::now());
    (0..QUESTIONS).for_each(|_| call(&other, libc::F_OFD_GETLK, libc::F_WRLCK, BEHIND, 1));
    begun.elapsed() / QUESTIONS
}

struct One {
    remote: Remote,
    handle: Handle,
}

impl One {
    fn new<F: FileSystem>(rig: &Rig<F>) -> One {
        let remote = Remote::connect(rig.dir.path().join("socket")).unwrap();
        let handle = remote.block_on(async {
            let attr = remote.lookup(&Cred::of_process(), format::Ino::ROOT, b"f").await.unwrap();
            remote.open(&Cred::of_process(), attr.ino, OpenFlags::READ | OpenFlags::WRITE).await.unwrap()
        });
        One { remote, handle }
    }

    /// As another that it has opened.
    fn again(&self) -> One {
        let open = async {
            let attr = self.remote.lookup(&Cred::of_process(), format::Ino::ROOT, b"f").await.unwrap();
            self.remote.open(&Cred::of_process(), attr.ino, OpenFlags::READ).await.unwrap()
        };
        One { remote: self.remote.clone(), handle: self.remote.block_on(open) }
    }

    fn flock(&self, memory: &OwnedFd, at: u64, kind: Option<LockKind>) -> fs::Result<()> {
        self.flock_waiting(memory, at, kind, false).map(drop)
    }

    fn flock_waiting(
        &self,
        memory: &OwnedFd,
        at: u64,
        kind: Option<LockKind>,
        wait: bool,
    ) -> fs::Result<bool> {
        let call = |d: &Description<'_>| {
            self.remote.block_on(self.remote.flock_description(self.handle, d, kind, wait))
        };
        self.about(memory, at, call)
    }

    /// Makes a call about a description.
    fn about<T>(&self, memory: &OwnedFd, at: u64, call: impl FnOnce(&Description<'_>) -> T) -> T {
        let number = rustix::fs::fstat(memory).unwrap().st_ino;
        let open = || again(memory);
        call(&Description { memory: number, at, open: &open })
    }

    /// Sets a record lock of the description; with `None` it is given up.
    fn record(
        &self,
        memory: &OwnedFd,
        at: u64,
        (start, end): (u64, u64),
        kind: Option<LockKind>,
    ) -> fs::Result<bool> {
        let pid = RecordLock::OF_DESCRIPTION;
        let lock = kind.map(|kind| RecordLock { start, end, kind, pid }).ok_or((start, end));
        let call = |d: &Description<'_>| {
            self.remote.block_on(self.remote.setlk_description(self.handle, d, lock, false))
        };
        self.about(memory, at, call)
    }

    /// The record lock that is in the way of a description's.
    fn found(&self, memory: &OwnedFd, at: u64, (start, end): (u64, u64)) -> Option<(u64, u64, u32)> {
        let lock = RecordLock { start, end, kind: LockKind::Exclusive, pid: 0 };
        let call =
            |d: &Description<'_>| self.remote.block_on(self.remote.getlk_description(self.handle, d, lock));
        self.about(memory, at, call).unwrap().map(|found| (found.start, found.end, found.pid))
    }

    fn close(&self) {
        self.remote.block_on(self.remote.release(self.handle)).unwrap();
    }

    /// Whether it gets a lock of its own.
    fn gets(&self) -> bool {
        let got = self.remote.block_on(self.remote.flock(self.handle, Some(LockKind::Exclusive), false));
        self.remote.block_on(self.remote.flock(self.handle, None, false)).unwrap();
        got.is_ok()
    }

    /// Whether it gets one within that time.
    fn gets_for(&self, time: Duration) -> bool {
        let begun = Instant::now();
        while !self.gets() {
            if begun.elapsed() > time {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    fn gets_soon(&self) -> bool {
        self.gets_for(Duration::from_secs(10))
    }
}

const EX: Option<LockKind> = Some(LockKind::Exclusive);
const SH: Option<LockKind> = Some(LockKind::Shared);

fn rig() -> Rig<block::Volume> {
    let rig = Rig::new(volume(64 << 20));
    rig.beside.open("f", NEW).unwrap();
    rig
}

#[test]
fn a_lock_lasts_as_long_as_its_description() {
    let rig = rig();
    let (a, b, other) = (One::new(&rig), One::new(&rig), One::new(&rig));
    let memory = memory();
    let description = again(&memory).unwrap();
    stands(&description, 1 << 40);
    a.flock(&memory, 1 << 40, EX).unwrap();
    b.flock(&memory, 1 << 40, EX).expect("the same description");
    assert!(!other.gets());
    assert_eq!(One::new(&rig).flock(&memory, 7, EX), Err(fs::Error::WouldBlock), "another description");
    a.close();
    assert!(!other.gets(), "the description is there");
    drop(a);
    assert!(!other.gets(), "without the session that had asked for the lock");
    b.flock(&memory, 1 << 40, None).unwrap();
    assert!(other.gets(), "unlocked by whoever has the description");
    b.flock(&memory, 1 << 40, EX).unwrap();
    drop(b);
    // Long enough for the manager to have noticed the end of that session.
    assert!(!other.gets_for(Duration::from_millis(200)));
    drop(description);
    assert!(other.gets(), "the description is gone, and nobody has said so");
}

#[test]
fn a_lock_goes_with_the_last_close() {
    let rig = rig();
    let (a, other) = (One::new(&rig), One::new(&rig));
    let memory = memory();
    a.flock(&memory, 3, EX).unwrap();
    a.close();
    assert!(other.gets(), "as soon as close has returned");
}

/// As locks of whole files do, record locks of a description belong to all who have it, and last as long as it does.
#[test]
fn record_locks_last_as_long_as_their_description() {
    const ALL: (u64, u64) = (0, u64::MAX);
    let rig = rig();
    let (a, b, other) = (One::new(&rig), One::new(&rig), One::new(&rig));
    let (memory, others) = (memory(), memory());
    let (description, _kept) = (again(&memory).unwrap(), stands(&others, 0));
    stands(&description, 9);
    let refused = Err(fs::Error::WouldBlock);
    assert_eq!(a.record(&memory, 9, (0, 9), EX), Ok(true));
    assert_eq!(b.record(&memory, 9, (5, 7), SH), Ok(true), "the same description");
    assert_eq!(other.record(&others, 0, (0, 5), SH), refused);
    assert_eq!(other.record(&others, 0, (5, 7), SH), Ok(true));
    assert_eq!(b.found(&memory, 9, ALL), Some((5, 7, RecordLock::OF_DESCRIPTION)));
    assert_eq!(other.record(&others, 0, ALL, None), Ok(false), "there are none of its");
    assert_eq!(b.found(&memory, 9, ALL), None, "its own are in nobody's way");
    assert_eq!(other.found(&others, 0, (6, 6)), Some((5, 7, RecordLock::OF_DESCRIPTION)));
    // A process's are in the way of a description's, and the other way round.
    let of_process =
        |lock| other.remote.block_on(other.remote.setlk(other.handle, LockOwner(7), lock, false));
    let one = |at| Ok(RecordLock { start: at, end: at, kind: LockKind::Exclusive, pid: 7 });
    assert_eq!((of_process(one(3)), of_process(one(20))), (Err(fs::Error::WouldBlock), Ok(())));
    assert_eq!(a.record(&memory, 9, (20, 20), EX), refused);
    of_process(Err((20, 20))).unwrap();
    assert_eq!(b.flock_waiting(&memory, 9, EX, false), Ok(true));
    assert_eq!(b.record(&memory, 9, (0, 3), None), Ok(true), "part of them");
    assert_eq!(b.record(&memory, 9, (8, u64::MAX), None), Ok(true));
    assert_eq!(other.record(&others, 0, (0, 3), EX), Ok(true));
    assert_eq!(a.flock_waiting(&memory, 9, None, false), Ok(true), "record locks are left");
    a.close();
    drop((a, b));
    // Long enough for the manager to have noticed the end of those sessions.
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(other.record(&others, 0, (5, 5), EX), refused, "the description is there");
    assert_eq!(other.found(&others, 0, ALL), Some((4, 4, RecordLock::OF_DESCRIPTION)));
    drop(description);
    assert_eq!(other.record(&others, 0, ALL, EX), Ok(true), "nobody has said that it is gone");
    assert_eq!(other.record(&others, 0, ALL, None), Ok(false));
    assert!(rig.doors.locks().is_empty());
}

/// A lock that the file is not open for is refused, and what the description has stays its own.
#[test]
fn a_lock_that_is_refused_loses_none() {
    const ALL: (u64, u64) = (0, u64::MAX);
    let rig = rig();
    let (opener, other) = (One::new(&rig), One::new(&rig));
    let (memory, others) = (memory(), memory());
    let (description, _kept) = (again(&memory).unwrap(), stands(&others, 0));
    stands(&description, 9);
    // Two processes that have it, open for reading alone.
    let (a, b) = (opener.again(), One::new(&rig).again());
    assert_eq!(a.record(&memory, 9, (0, 9), SH), Ok(true));
    let refused = |one: &One| one.record(&memory, 9, (3, 3), EX).unwrap_err().errno();
    assert_eq!((refused(&b), refused(&a)), (libc::EBADF, libc::EBADF));
    assert_eq!(other.record(&others, 0, (0, 0), EX), Err(fs::Error::WouldBlock));
    assert_eq!(b.record(&memory, 9, ALL, None), Ok(false), "it is the description's");
    assert_eq!(other.record(&others, 0, (0, 0), EX), Ok(true));
    // Nor when who has asked for it first is gone.
    assert_eq!(a.record(&memory, 9, (5, 5), SH), Ok(true));
    a.close();
    assert_eq!(refused(&b), libc::EBADF);
    drop(description);
    assert_eq!(other.record(&others, 0, ALL, EX), Ok(true), "they go with the description");
}

/// How many ranges a description can lock is bounded.
#[test]
fn a_description_has_no_more_records_than_it_may() {
    let rig = rig();
    let (one, memory) = (One::new(&rig), memory());
    let got = (0..5000).take_while(|n| one.record(&memory, 3, (2 * n, 2 * n), EX).is_ok()).count();
    assert!((1000..1100).contains(&got), "{got}");
    assert_eq!(one.record(&memory, 3, (9000, 9000), EX).unwrap_err().errno(), libc::ENOLCK);
    assert_eq!(one.record(&memory, 3, (0, u64::MAX), None), Ok(false));
    one.record(&memory, 3, (9000, 9000), EX).unwrap();
    one.close();
    assert!(rig.doors.locks().is_empty(), "they go with the handle");
}

#[test]
fn what_is_no_memory_is_refused() {
    let rig = rig();
    let a = One::new(&rig);
    let file: OwnedFd = tempfile::tempfile().unwrap().into();
    let refused = a.flock(&file, 3, EX).unwrap_err();
    assert_eq!(refused.errno(), libc::EINVAL);
    let unsealed = rustix::fs::memfd_create(c"test", MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(a.flock(&unsealed, 3, EX).unwrap_err().errno(), libc::EINVAL);
    a.flock(&memory(), 3, EX).expect("the session goes on");
    // Bytes that no description can stand for, and what nobody has locked.
    let (b, memory) = (One::new(&rig), memory());
    b.flock(&memory, 3, None).unwrap();
    b.flock(&memory, i64::MAX as u64, None).unwrap();
    b.flock(&memory, u64::MAX, None).unwrap();
}

#[test]
fn a_session_that_is_ended_by_force_loses_its_locks() {
    let rig = rig();
    let (a, other) = (One::new(&rig), One::new(&rig));
    let memory = memory();
    stands(&memory, 5);
    a.flock(&memory, 5, EX).unwrap();
    let observer = rig.server.as_ref().unwrap().observer();
    assert!(observer.evict(a.remote.session()));
    assert!(other.gets_soon());
}

/// A session has ended whose handle has the lock of a description that is still there, as long as what is given.
fn has_one_kept(rig: &Rig<block::Volume>) -> OwnedFd {
    let (one, memory) = (One::new(rig), memory());
    stands(&memory, 5);
    one.flock(&memory, 5, EX).unwrap();
    memory
}

#[test]
fn a_manager_that_stops_closes_what_it_keeps() {
    let mut rig = rig();
    let _memory = has_one_kept(&rig);
    rig.serve();
    assert!(One::new(&rig).gets_soon());
}

#[test]
fn who_waits_gets_the_lock_for_the_description_when_another_has_given_it_up() {
    let rig = rig();
    let (a, b, first, other) = (One::new(&rig), One::new(&rig), One::new(&rig), One::new(&rig));
    let memory = memory();
    let description = again(&memory).unwrap();
    stands(&description, 5);
    let own = |kind| first.remote.block_on(first.remote.flock(first.handle, kind, false)).unwrap();
    own(EX);
    assert_eq!(a.flock(&memory, 5, EX), Err(fs::Error::WouldBlock));
    std::thread::scope(|s| {
        let waits = s.spawn(|| b.flock_waiting(&memory, 5, EX, true));
        let begun = Instant::now();
        while rig.doors.locks().iter().all(|lock| lock.waiting == 0) {
            assert!(begun.elapsed() < Duration::from_secs(10), "nobody waits");
            std::thread::sleep(Duration::from_millis(1));
        }
        a.flock(&memory, 5, None).unwrap();
        own(None);
        waits.join().unwrap().unwrap();
    });
    assert!(!other.gets());
    b.flock(&memory, 5, None).unwrap();
    assert!(other.gets(), "the description has given it up");
}

/// Byte behind all those of a crowd.
const BEHIND: i64 = 1 << 40;

#[test]
fn who_locks_again_while_the_kernel_is_asked_keeps_the_lock() {
    let rig = rig();
    let (b, other) = (One::new(&rig), One::new(&rig));
    let memory = memory();
    crowds(&memory, 200_000);
    let looking = looking_at(&memory);
    for part in [2, 4, 6, 8, 2, 4, 6, 8] {
        let a = One::new(&rig);
        a.flock(&memory, BEHIND as u64, EX).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| a.close());
            std::thread::sleep(looking * part / 8);
            b.flock(&memory, BEHIND as u64, None).unwrap();
            b.flock(&memory, BEHIND as u64, EX).unwrap();
        });
        assert!(!other.gets(), "the handle with the lock was closed");
        b.flock(&memory, BEHIND as u64, None).unwrap();
    }
}

#[test]
fn a_lock_that_has_just_gone_keeps_nobody_who_comes_while_the_kernel_is_asked() {
    let rig = rig();
    let other = One::new(&rig);
    let memory = memory();
    crowds(&memory, 200_000);
    let looking = looking_at(&memory);
    for part in 0..12 {
        let description = again(&memory).unwrap();
        stands(&description, BEHIND);
        let a = One::new(&rig);
        a.flock(&memory, BEHIND as u64, EX).unwrap();
        a.close();
        std::thread::sleep(looking * part / 8);
        drop(description);
        assert!(other.gets());
    }
}

#[test]
fn nobody_waits_until_the_kernel_was_asked_about_all_of_another() {
    const CROWD: i64 = 100_000;
    let rig = rig();
    let (crowded, memory) = (memory(), memory());
    crowds(&crowded, CROWD);
    let (a, b) = (One::new(&rig), One::new(&rig));
    // Less than half of what all questions take.
    let soon = Duration::from_secs(3).max(looking_at(&crowded) * 1024);
    for n in CROWD - 2048..CROWD {
        a.again().flock(&crowded, 2 * n as u64, SH).unwrap();
    }
    drop(a);
    let begun = Instant::now();
    // The session has ended when only one has the file open.
    while rig.server.as_ref().unwrap().stats().sessions.len() > 1 {
        assert!(begun.elapsed() < Duration::from_secs(10), "the session is still there");
        std::thread::sleep(Duration::from_millis(1));
    }
    for at in 0..4 {
        let one = b.again();
        one.flock(&memory, at, SH).unwrap();
        let begun = Instant::now();
        one.close();
        rig.beside.sync().unwrap();
        assert!(begun.elapsed() < soon, "it took {:?}, and not less than {soon:?}", begun.elapsed());
    }
}

#[test]
fn a_server_that_ends_leaves_the_socket_of_the_next_where_it_is() {
    let mut rig = rig();
    let _memory = has_one_kept(&rig);
    // What it keeps takes its time to be closed, when it listens no longer.
    let gate = Between::before(&rig.doors).holds(rig.beside.stat("f").unwrap().ino);
    let (first, path) = (rig.server.take().unwrap(), rig.dir.path().join("socket"));
    let ends = std::thread::spawn(move || first.stop());
    let begun = Instant::now();
    let next = loop {
        match Server::start(volume(64 << 20), &path, Options::default()) {
            Ok(next) => break next,
            Err(e) => assert!(begun.elapsed() < Duration::from_secs(10), "{e}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    gate.opens();
    ends.join().unwrap();
    Remote::connect(&path).expect("the next one is there");
    next.stop();
    assert!(!path.exists());
}
