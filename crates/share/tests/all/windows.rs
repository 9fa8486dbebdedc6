//! What happens in the middle of calls that others make: each moment is brought about ([`Between`]), not waited for.
//!
//! Verifies that a write that is posted does not come after one that is made in a window later, though both are on their way while the window is granted; that attributes
//! that were found before a write are not kept as those of after it; and that a volume's figures count what was posted before. What is removed while it is opened:
//! tests/all/holds.rs.

use crate::rig::between::{Between, Moment};
use crate::rig::{NEW, RW, Rig, page, volume};
use block::Volume;
use format::shared::SLOTS;
use fs::FileSystem;
use fs::watched::Watched;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Waker};
use std::time::Duration;

/// Nothing here takes so long.
const LONG: Duration = Duration::from_secs(10);

/// One that lends new files, and what happens in between.
fn rig() -> (Rig<Volume>, Arc<Between>) {
    let doors = Watched::new(volume(64 << 20));
    let between = Between::before(&doors);
    let rig = Rig::lending(doors, 0);
    between.watches(&rig);
    (rig, between)
}

/// Overwrites a page until a window is asked for.
fn until(asked: &AtomicBool, overwrite: impl Fn()) {
    for _ in 0..20 {
        overwrite();
        if asked.load(Ordering::SeqCst) {
            return;
        }
    }
    panic!("no window was asked for");
}

/// Whoever asks for a window does not use it when something was posted meanwhile.
#[test]
fn what_is_posted_while_a_window_is_asked_for_comes_first() {
    let (rig, between) = rig();
    let client = rig.client();
    let file = Arc::new(client.open("f", NEW).unwrap());
    let ino = file.ino();
    let (goes_on, waits) = mpsc::channel();
    let asked = Arc::new(AtomicBool::new(false));
    between.at(Moment::TellsAll(ino), {
        let (file, between, asked) = (file.clone(), between.clone(), asked.clone());
        move || {
            // The manager waits for this, which needs it for nothing.
            std::thread::spawn(move || file.write_all_at(&page(1), 0).unwrap()).join().unwrap();
            // And when it comes to what was posted.
            between.at(Moment::Looks(ino), move || waits.recv_timeout(LONG).unwrap());
            asked.store(true, Ordering::SeqCst);
        }
    });
    until(&asked, || file.write_all_at(&page(0), 0).unwrap());
    file.write_all_at(&page(2), 0).unwrap();
    goes_on.send(()).unwrap();
    assert!(rig.beside.read("f").unwrap() == page(2), "an older write came later");
    let mut bytes = page(0);
    file.read_at(&mut bytes, 0).unwrap();
    assert!(bytes == page(2));
    assert_eq!(rig.count("write"), 0, "all of it was posted");
}

/// Whoever waits for a slot to post does not post any more when he has it and there is a window.
#[test]
fn what_waits_to_be_posted_while_a_window_is_granted_comes_first() {
    let (rig, between) = rig();
    let client = Arc::new(rig.client());
    let remote = client.client().fs().clone();
    let file = Arc::new(client.open("f", NEW).unwrap());
    let (ino, handle) = (file.ino(), file.handle());
    let asked = Arc::new(AtomicBool::new(false));
    let (reaches, reached) = mpsc::channel();
    let (grants, granting) = mpsc::channel();
    between.at(Moment::TellsAll(ino), {
        let asked = asked.clone();
        move || {
            asked.store(true, Ordering::SeqCst);
            reaches.send(()).unwrap();
            granting.recv_timeout(LONG).unwrap();
        }
    });
    let cx = &mut Context::from_waker(Waker::noop());
    let old = page(1);
    let mut posts = pin!(remote.write(handle, 0, &old));
    std::thread::scope(|s| {
        let (file, asked, remote) = (&file, &asked, &remote);
        let writer = s.spawn(move || until(asked, || file.write_all_at(&page(0), 0).unwrap()));
        reached.recv_timeout(LONG).unwrap();
        // All slots are taken.
        let mut pings: Vec<_> = (0..SLOTS).map(|_| Box::pin(remote.ping())).collect();
        assert!(pings.iter_mut().all(|ping| ping.as_mut().poll(cx).is_pending()));
        assert!(posts.as_mut().poll(cx).is_pending(), "there is a slot");
        grants.send(()).unwrap();
        writer.join().unwrap();
        pings.into_iter().for_each(|ping| remote.block_on(ping).unwrap());
    });
    // As soon as the manager comes to it.
    let (goes_on, waits) = mpsc::channel();
    between.at(Moment::Looks(ino), move || waits.recv_timeout(LONG).unwrap());
    match posts.as_mut().poll(cx).is_ready() {
        true => {
            file.write_all_at(&page(2), 0).unwrap();
            goes_on.send(()).unwrap();
        }
        false => {
            goes_on.send(()).unwrap();
            assert_eq!(remote.block_on(posts), Ok(old.len()));
            file.write_all_at(&page(2), 0).unwrap();
        }
    }
    assert!(rig.beside.read("f").unwrap() == page(2), "an older write came later");
}

/// A file is opened by creating it, and somebody writes to it when its attributes have been found.
#[test]
fn attributes_from_before_a_write_are_not_kept_as_those_of_after_it() {
    let (rig, between) = rig();
    rig.beside.write("f", b"short").unwrap();
    let theirs = rig.beside.open("f", RW).unwrap();
    let client = rig.client();
    between.at(Moment::Looks(theirs.ino()), move || theirs.write_all_at(b"much longer", 0).unwrap());
    let file = client.open("f", RW.create(true)).unwrap();
    assert!(between.is_over() && rig.count("create") == 1);
    assert_eq!(client.stat("f").unwrap().size, 11);
    let mut bytes = [0; 20];
    assert_eq!(file.read_at(&mut bytes, 0), Ok(11));
}

/// Who asks for the figures of the volume when somebody else has closed a file that was all that is left of it, which takes the manager long.
#[test]
fn the_figures_of_a_volume_count_what_was_posted() {
    let (rig, between) = rig();
    let (one, other) = (rig.client(), Arc::new(rig.client()));
    let file = one.open("f", NEW).unwrap();
    file.write_all_at(&[7; 100 << 10], 0).unwrap();
    one.unlink("f").unwrap();
    let before = other.statfs().unwrap();
    let gate = between.holds(file.ino());
    file.close().unwrap();
    let (tells, told) = mpsc::channel();
    let asks = std::thread::spawn({
        let other = other.clone();
        move || tells.send(other.statfs().unwrap()).unwrap()
    });
    // What does not wait for that is told now.
    let early = told.recv_timeout(Duration::from_millis(300));
    gate.opens();
    let seen = early.unwrap_or_else(|_| told.recv_timeout(LONG).unwrap());
    asks.join().unwrap();
    assert!(seen.blocks_free >= before.blocks_free + 25, "{before:?} {seen:?}");
    assert!(seen.inodes_free > before.inodes_free, "{before:?} {seen:?}");
}
