//! What becomes of calls when the manager is stopped.
//!
//! Verifies that what a client counts as done is done however long it takes; that it is said when that cannot be, and that who asks the next opening of the volume hears
//! of it; and that calls which were not begun are made by the next manager.

use crate::rig::between::{Between, Gate};
use crate::rig::*;
use block::{MkfsOptions, OpenOptions, Volume};
use fs::watched::Watched;
use fs::{FileSystem, LockKind};
use media::RamMedia;
use share::{Server, server::Options};
use std::sync::Arc;
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
