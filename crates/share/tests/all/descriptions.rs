//! Locks of open file descriptions that several sessions have, and clients that lie about theirs.

use crate::rig::{NEW, Rig, volume};
use fs::{Cred, FileSystem, Handle, LockKind, OpenFlags};
use rustix::fs::{MemfdFlags, SealFlags};
use share::{Description, Remote};
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
    // SAFETY: all zeros is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_start, lock.l_len) = (libc::F_WRLCK as _, at, 1);
    // SAFETY: the argument is what the command needs.
    assert_eq!(unsafe { libc::fcntl(description.as_raw_fd(), libc::F_OFD_SETLK, &lock) }, 0);
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

    fn flock(&self, memory: &OwnedFd, at: u64, kind: Option<LockKind>) -> fs::Result<()> {
        let number = rustix::fs::fstat(memory).unwrap().st_ino;
        let open = || again(memory);
        let description = Description { memory: number, at, open: &open };
        self.remote.block_on(self.remote.flock_description(self.handle, &description, kind, false))
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

#[test]
fn a_manager_that_stops_closes_what_it_keeps() {
    let mut rig = rig();
    let a = One::new(&rig);
    let memory = memory();
    stands(&memory, 5);
    a.flock(&memory, 5, EX).unwrap();
    drop(a);
    rig.serve();
    assert!(One::new(&rig).gets_soon());
}
