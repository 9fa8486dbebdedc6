//! Record locks that outlast the program that took them, as the process goes on with another one: two sessions of this process.
//!
//! Verifies that what a session leaves is held without a gap until another one of the process has it, whichever comes first, the end of the one or the beginning of the other; that
//! it is the next one's to give up, and ends with that; that nothing stays that was not left, or when an operator or the manager ends it; and that what keeps the
//! files is given back. What ends with the process is tested with programs (preload, record_locks.rs).

use crate::rig::{NEW, RW, Rig, volume};
use fs::client::BlockingFile;
use fs::{Cred, Error, FileSystem, Handle, LockKind, LockOwner, OpenFlags, RecordLock, Result, block_on};
use share::Remote;
use std::time::{Duration, Instant};

use LockKind::Exclusive;

const ME: LockOwner = LockOwner(7);
const ANOTHER: LockOwner = LockOwner(8);

/// A session of this process, with a file.
struct Program {
    session: Remote,
    file: Handle,
}

impl Program {
    fn new<F: FileSystem>(rig: &Rig<F>, name: &str) -> Program {
        let session = Remote::connect(rig.dir.path().join("socket")).unwrap();
        Program::with(rig, session, name)
    }

    fn with<F: FileSystem>(rig: &Rig<F>, session: Remote, name: &str) -> Program {
        let ino = rig.beside.stat(name).unwrap().ino;
        let file =
            block_on(session.open(&Cred::of_process(), ino, OpenFlags::READ | OpenFlags::WRITE)).unwrap();
        Program { session, file }
    }

    fn lock(&self, owner: LockOwner, start: u64, end: u64) -> Result<()> {
        let lock = RecordLock { start, end, kind: Exclusive, pid: 1 };
        block_on(self.session.setlk(self.file, owner, Ok(lock), false))
    }

    fn unlock(&self, start: u64, end: u64) {
        block_on(self.session.setlk(self.file, ME, Err((start, end)), false)).unwrap();
    }

    fn keep(&self, stay: bool) -> Result<()> {
        block_on(self.session.keep_locks(self.file, stay))
    }

    /// As it is when a program is gone.
    fn ends(self) {
        rustix::net::shutdown(self.session.descriptors()[0], rustix::net::Shutdown::Both).unwrap();
    }
}

fn is_taken<F: FileSystem>(file: &BlockingFile<F>, at: u64) -> bool {
    file.test_range(Exclusive, at, 1).unwrap().is_some()
}

/// It stays so for a while.
fn stays_taken<F: FileSystem>(file: &BlockingFile<F>, at: u64) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(100) {
        assert!(is_taken(file, at), "it is free");
    }
}

fn comes_free<F: FileSystem>(file: &BlockingFile<F>, at: u64) {
    let begun = Instant::now();
    while is_taken(file, at) {
        assert!(begun.elapsed() < Duration::from_secs(5), "it is still locked");
    }
}

#[test]
fn the_next_session_has_them() {
    let rig = Rig::new(volume(64 << 20));
    let beside = rig.beside.open("f", NEW).unwrap();
    // By calls, and without messages, under a lease on the locks of the file.
    for many in [1, 100] {
        let first = Program::new(&rig, "f");
        for _ in 0..many {
            first.lock(ME, 0, 9).unwrap();
            first.unlock(5, 9);
        }
        first.keep(true).unwrap();
        first.ends();
        stays_taken(&beside, 4);
        assert!(!is_taken(&beside, 5));
        // Another owner in that session is somebody else.
        let second = Program::new(&rig, "f");
        assert_eq!(second.lock(ANOTHER, 4, 4), Err(Error::WouldBlock));
        second.lock(ME, 4, 4).unwrap();
        second.lock(ME, 20, 29).unwrap();
        second.unlock(0, 1);
        assert!(!is_taken(&beside, 1) && is_taken(&beside, 2));
        // It leaves them in turn.
        second.keep(true).unwrap();
        second.ends();
        stays_taken(&beside, 20);
        let third = Program::new(&rig, "f");
        third.ends();
        comes_free(&beside, 2);
        comes_free(&beside, 20);
    }
}

#[test]
fn the_next_session_begins_before_the_first_has_ended() {
    let rig = Rig::new(volume(64 << 20));
    let beside = rig.beside.open("f", NEW).unwrap();
    let stranger = Program::new(&rig, "f");
    let first = Program::new(&rig, "f");
    first.lock(ME, 0, 9).unwrap();
    first.keep(true).unwrap();
    assert_eq!(stranger.lock(ME, 0, 0), Err(Error::WouldBlock));
    let second = Program::new(&rig, "f");
    second.lock(ME, 5, 15).unwrap();
    first.ends();
    stays_taken(&beside, 0);
    assert_eq!(stranger.lock(ME, 0, 0), Err(Error::WouldBlock));
    // With its last handle of the file, all of them go.
    block_on(second.session.release(second.file)).unwrap();
    comes_free(&beside, 0);
    comes_free(&beside, 12);
}

#[test]
fn what_was_not_left_ends() {
    let mut rig = Rig::new(volume(64 << 20));
    let beside = rig.beside.open("f", NEW).unwrap();
    // It was to be left, and then not.
    let first = Program::new(&rig, "f");
    first.lock(ME, 0, 9).unwrap();
    first.keep(true).unwrap();
    first.keep(false).unwrap();
    first.ends();
    comes_free(&beside, 0);
    // All were given up, or the file was closed, after they had been left.
    let first = Program::new(&rig, "f");
    first.keep(true).unwrap();
    first.lock(ME, 0, 9).unwrap();
    first.keep(true).unwrap();
    block_on(first.session.release(first.file)).unwrap();
    comes_free(&beside, 0);
    first.ends();
    // An operator ends what is left, which is a session of the process to him.
    let first = Program::new(&rig, "f");
    first.lock(ME, 0, 9).unwrap();
    first.keep(true).unwrap();
    let server = rig.server.as_ref().unwrap();
    let all = || server.stats().sessions.into_iter().map(|s| s.session).max().unwrap();
    let number = all();
    first.ends();
    stays_taken(&beside, 0);
    assert_eq!(all(), number);
    assert!(server.observer().evict(number));
    comes_free(&beside, 0);
    // And so does the manager.
    let first = Program::new(&rig, "f");
    first.lock(ME, 0, 9).unwrap();
    first.keep(true).unwrap();
    first.ends();
    stays_taken(&beside, 0);
    rig.serve();
    assert!(!is_taken(&beside, 0));
}

#[test]
fn what_keeps_the_files_is_given_back() {
    let rig = Rig::new(volume(64 << 20));
    let free = || {
        rig.beside.sync().unwrap();
        rig.beside.statfs().unwrap().blocks_free
    };
    rig.beside.write("/f", b"").unwrap();
    let before = free();
    rig.beside.write("/g", vec![1; 8 << 20]).unwrap();
    let first = Program::new(&rig, "g");
    first.lock(ME, 0, 9).unwrap();
    first.keep(true).unwrap();
    rig.beside.unlink("/g").unwrap();
    first.ends();
    std::thread::sleep(Duration::from_millis(100));
    assert!(before - free() > 1024, "its blocks are there");
    Program::new(&rig, "f").ends();
    let begun = Instant::now();
    while before - free().min(before) > 64 {
        assert!(begun.elapsed() < Duration::from_secs(10), "{} blocks are gone", before - free());
    }
}

#[test]
fn of_so_many_files_and_no_more() {
    let rig = Rig::new(volume(64 << 20));
    rig.beside.write("/f", b"").unwrap();
    let Program { session, .. } = Program::new(&rig, "f");
    let kept = (0..1100).take_while(|i| {
        let name = format!("/{i}");
        rig.beside.write(&name, b"").unwrap();
        let one = Program::with(&rig, session.clone(), &name);
        one.lock(ME, 0, 9).unwrap();
        one.keep(true).is_ok()
    });
    assert_eq!(kept.count(), 1024);
    let probe = rig.beside.open("/1000", RW).unwrap();
    rustix::net::shutdown(session.descriptors()[0], rustix::net::Shutdown::Both).unwrap();
    stays_taken(&probe, 0);
    Program::new(&rig, "f").ends();
    comes_free(&probe, 0);
}
