//! What becomes of calls when the manager is stopped.
//!
//! Verifies that what a client counts as done is done however long it takes; that it is said when that cannot be, and that who asks the next opening of the volume hears
//! of it; that calls which were not begun are made by the next manager; and that what a client has open goes on with that one.

use crate::rig::between::{Between, Gate};
use crate::rig::*;
use block::{MkfsOptions, OpenOptions, Volume};
use fs::watched::Watched;
use fs::{Cred, Error, FileSystem, LockKind, OpenFlags};
use media::RamMedia;
use rustix::fs::{MemfdFlags, SealFlags};
use share::{Connect, Description, Remote, Server, server::Options};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// A manager and its client, whose last posted request waits for the gate; and a call that comes behind that.
struct Held {
    rig: Rig<Volume>,
    gate: Arc<Gate>,
    behind: std::thread::JoinHandle<fs::Result<()>>,
}

fn held(stop_patience: Duration) -> Held {
    let doors = Watched::new(volume(64 << 20));
    let between = Between::before(&doors);
    let mut rig = Rig::over(doors);
    rig.server = None;
    let opening = fs::Opening { volume: [1; 16], number: 7, after: [0; 4] };
    let options = Options { opening, new_files_max: 1024, stop_patience, ..Options::default() };
    let path = rig.dir.path().join("socket");
    rig.server = Some(Server::start_at_door(rig.doors.door(), &path, options).unwrap());
    let client = rig.client();
    let file = client.open("f", NEW).unwrap();
    file.write_all_at(&[7; 100 << 10], 0).unwrap();
    let gate = between.holds(file.ino());
    file.close().unwrap();
    let behind = std::thread::spawn(move || client.mkdir("d", 0o755).map(drop));
    std::thread::sleep(Duration::from_millis(100));
    Held { rig, gate, behind }
}

#[test]
fn what_counts_as_done_is_done_however_long_it_takes() {
    let Held { mut rig, gate, behind } = held(Duration::from_secs(60));
    let opens = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(800));
        gate.opens();
    });
    assert!(rig.server.take().unwrap().stop());
    opens.join().unwrap();
    rig.serve();
    behind.join().unwrap().expect("it was made once");
    assert_eq!(rig.beside.read("f").unwrap().len(), 100 << 10);
}

#[test]
fn what_is_given_up_is_said_and_what_was_not_begun_is_made_later() {
    let Held { mut rig, gate, behind } = held(Duration::from_millis(100));
    let begun = Instant::now();
    assert!(!rig.server.take().unwrap().stop(), "a file that its client has closed is open still");
    assert!(begun.elapsed() < Duration::from_secs(5));
    gate.opens();
    rig.serve();
    behind.join().unwrap().expect("the next manager makes it");
}

/// Who waits for a lock may do so for ever.
#[test]
fn nobody_waits_for_those_who_wait_for_locks() {
    let mut rig = Rig::new(volume(64 << 20));
    let (one, other) = (rig.client().open("f", NEW).unwrap(), rig.client().open("f", RW).unwrap());
    one.lock_range(LockKind::Exclusive, 0, 1, false).unwrap();
    let waits = std::thread::spawn(move || other.lock_range(LockKind::Exclusive, 0, 1, true));
    while !rig.doors.locks().iter().any(|held| held.waiting > 0) {
        std::thread::yield_now();
    }
    let begun = Instant::now();
    assert!(rig.server.take().unwrap().stop());
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    rig.serve();
    waits.join().unwrap().expect("whoever had it is told that it is lost");
}

#[test]
fn a_clean_stop_that_has_lost_something_says_so() {
    let media = Arc::new(RamMedia::new(64 << 20).unwrap());
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    let open = || Volume::open(media.clone(), OpenOptions::default()).unwrap();
    let mut openings = Vec::new();
    for lost in [false, true, false] {
        let volume = open();
        openings.push(volume.opening());
        if lost {
            volume.has_lost_some();
        }
        volume.close_blocking().unwrap();
    }
    let last = open().opening();
    assert!(openings[1].keeps(&openings[0]) && last.keeps(&openings[2]));
    assert!(!openings[2].keeps(&openings[1]) && !last.keeps(&openings[1]));
}

/// Another manager, of a volume of which nothing was lost, with whom a session may have so many files open.
fn serve_few<F: FileSystem>(rig: &mut Rig<F>, handles_max: usize) {
    drop(rig.server.take());
    let opening = fs::Opening { volume: [1; 16], number: 7, after: [0; 4] };
    let options = Options { opening, handles_max, ..Options::default() };
    let path = rig.dir.path().join("socket");
    rig.server = Some(Server::start_at_door(rig.doors.door(), &path, options).unwrap());
}

#[test]
fn a_file_that_cannot_be_opened_now_can_be_later() {
    let mut rig = Rig::new(volume(64 << 20));
    let mut connect = Connect::at(rig.dir.path().join("socket"));
    // For ever.
    connect.resume = Duration::MAX;
    let remote = Remote::connect_with(connect).unwrap();
    let client = fs::Client::new(Arc::new(remote), Cred::of_process()).blocking();
    let files = ["a", "b", "c"].map(|name| client.open(name, NEW).unwrap());
    files.iter().for_each(|file| file.write_all_at(b"here", 0).unwrap());
    serve_few(&mut rig, 2);
    let refused = |file: &fs::client::BlockingFile<Remote>| file.fsync() == Err(Error::TooManyOpen);
    let (later, now): (Vec<_>, Vec<_>) = files.into_iter().partition(refused);
    assert_eq!((later.len(), now.len()), (1, 2));
    drop(now);
    later[0].fsync().expect("there is room for it");
    later[0].write_all_at(b"there", 0).unwrap();
}

#[test]
fn a_lock_that_was_given_up_in_parts_is_none() {
    let mut rig = Rig::new(volume(64 << 20));
    let client = rig.client();
    let (file, locked) = (client.open("f", NEW).unwrap(), client.open("g", NEW).unwrap());
    for file in [&file, &locked] {
        file.lock_range(LockKind::Exclusive, 0, 10, false).unwrap();
        file.unlock_range(0, 5).unwrap();
    }
    file.unlock_range(5, 5).unwrap();
    rig.serve();
    file.write_all_at(b"x", 0).unwrap();
    assert_eq!(locked.write_all_at(b"x", 0).map_err(|e| e.errno()), Err(libc::EIO));
}

/// A memory in which a description stands for a byte, and that description.
fn described(at: i64) -> (OwnedFd, OwnedFd) {
    let memory = rustix::fs::memfd_create(c"test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    let description = again(&memory).unwrap();
    // SAFETY: all zeros is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_start, lock.l_len) = (libc::F_WRLCK as _, at, 1);
    // SAFETY: the argument is what the command needs.
    assert_eq!(unsafe { libc::fcntl(description.as_raw_fd(), libc::F_OFD_SETLK, &lock) }, 0);
    (memory, description)
}

fn again(fd: &OwnedFd) -> std::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(std::fs::OpenOptions::new().read(true).write(true).open(path)?.into())
}

/// A call about a description that is made again is about that description, whatever the next manager was shown first.
#[test]
fn descriptions_are_not_taken_for_one_another() {
    const EX: Option<LockKind> = Some(LockKind::Exclusive);
    let mut rig = Rig::new(volume(64 << 20));
    let ino = rig.beside.open("f", NEW).unwrap().ino();
    let connect = || Remote::connect(rig.dir.path().join("socket")).unwrap();
    let (remote, other) = (connect(), connect());
    let open =
        |remote: &Remote| remote.block_on(remote.open(&Cred::of_process(), ino, OpenFlags::READ)).unwrap();
    let (mine, second, theirs) = (open(&remote), open(&remote), open(&other));
    other.block_on(other.flock(theirs, EX, false)).unwrap();
    let (memories, at) = ([described(7), described(7)], 7);
    let opens = [0, 1].map(|n| {
        let memory = &memories[n].0;
        move || again(memory)
    });
    let description = |n: usize| {
        let memory = rustix::fs::fstat(&memories[n].0).unwrap().st_ino;
        Description { memory, at, open: &opens[n] }
    };
    let (first, next) = (description(0), description(1));
    let mut waits = Box::pin(remote.flock_description(mine, &first, EX, true));
    let mut cx = Context::from_waker(Waker::noop());
    while !rig.doors.locks().iter().any(|held| held.waiting > 0) {
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        std::thread::sleep(Duration::from_millis(1));
    }
    rig.serve();
    remote.block_on(remote.flock_description(second, &next, EX, false)).unwrap();
    for _ in 0..300 {
        assert!(waits.as_mut().poll(&mut cx).is_pending(), "it is locked");
        std::thread::sleep(Duration::from_millis(1));
    }
    remote.block_on(remote.flock_description(second, &next, None, false)).unwrap();
    remote.block_on(waits).unwrap();
}
