//! Callers that drive the volume while they wait, beside others that do not: nobody waits for ever, and nothing is lost.

use block::{MkfsOptions, OpenOptions, Volume};
use fs::client::OpenOptions as Open;
use fs::{Client, Cred, FileSystem, block_on};
use media::ram::RamMedia;
use media::uring::{Options, UringMedia};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn volume(dir: &std::path::Path) -> Volume {
    let path = dir.join("image");
    std::fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
    let media = Arc::new(UringMedia::open(&path, Options::default()).unwrap());
    block::mkfs(media.clone(), &MkfsOptions { log_bytes: Some(8 << 20), ..MkfsOptions::default() }).unwrap();
    // So small a log that checkpoints come all the time.
    let options = OpenOptions { cache_bytes: 4 << 20, dirty_bytes_max: 1 << 20, ..OpenOptions::default() };
    Volume::open(media, options).unwrap()
}

/// One file, written and synced again and again.
fn busy(volume: &Volume, name: &str, rounds: u64, lends: bool) {
    let client = Client::new(Arc::new(volume.clone()), Cred::root());
    let how = Open::new().read(true).write(true).create_new(true);
    if lends {
        let file = client.blocking().open(name, how).unwrap();
        for i in 0..rounds {
            file.write_all_at(&i.to_le_bytes().repeat(600), i * 4800).unwrap();
            file.fsync().unwrap();
        }
    } else {
        let file = block_on(client.open(name, how)).unwrap();
        for i in 0..rounds {
            block_on(file.write_all_at(&i.to_le_bytes().repeat(600), i * 4800)).unwrap();
            block_on(file.fsync()).unwrap();
        }
        block_on(file.close()).unwrap();
    }
}

fn check(volume: &Volume, name: &str, rounds: u64) {
    let client = Client::new(Arc::new(volume.clone()), Cred::root());
    let bytes = client.blocking().read(name).unwrap();
    assert_eq!(bytes.len() as u64, rounds * 4800);
    for (i, part) in bytes.chunks(4800).enumerate() {
        assert_eq!(part, (i as u64).to_le_bytes().repeat(600));
    }
}

#[test]
fn callers_and_worker_take_turns() {
    let dir = tempfile::tempdir().unwrap();
    let volume = volume(dir.path());
    const ROUNDS: u64 = 150;
    // Alone, so that the caller drives; then some at a time of both kinds; then alone again, and at once a stop.
    busy(&volume, "/first", ROUNDS, true);
    std::thread::scope(|s| {
        for i in 0..6 {
            let volume = &volume;
            s.spawn(move || busy(volume, &format!("/f{i}"), ROUNDS, i % 2 == 0));
        }
    });
    busy(&volume, "/async", ROUNDS, false);
    busy(&volume, "/last", ROUNDS, true);
    for name in ["/first", "/f0", "/f1", "/f2", "/f3", "/f4", "/f5", "/async", "/last"] {
        check(&volume, name, ROUNDS);
    }
    assert!(volume.counters().checkpoints > 0);
    volume.close_blocking().unwrap();
}

/// A caller that drives gives way to somebody who only wakes it: here a lock that another thread gives up.
#[test]
fn a_driving_caller_is_woken_by_others() {
    let dir = tempfile::tempdir().unwrap();
    let volume = volume(dir.path());
    busy(&volume, "/first", 40, true);
    let client = Client::new(Arc::new(volume.clone()), Cred::root()).blocking();
    let how = Open::new().read(true).write(true).create(true);
    let (a, b) = (client.open("/lock", how).unwrap(), client.open("/lock", how).unwrap());
    a.lock().unwrap();
    let locked = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            b.lock().unwrap();
            locked.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!locked.load(Ordering::SeqCst));
        a.unlock().unwrap();
        let start = Instant::now();
        while !locked.load(Ordering::SeqCst) {
            assert!(
                start.elapsed() < Duration::from_secs(5),
                "nobody woke the caller that waits for the lock"
            );
            std::thread::yield_now();
        }
    });
}

/// Threads that sync files of their own, all at the same time and with others that come and go: each gets its answer, and they share commits.
#[test]
fn syncs_share_commits() {
    let dir = tempfile::tempdir().unwrap();
    let volume = volume(dir.path());
    busy(&volume, "/first", 40, true);
    let before = volume.counters().epochs;
    const ROUNDS: u64 = 100;
    std::thread::scope(|s| {
        for i in 0..8 {
            let volume = &volume;
            // The later ones end earlier: those that are left must not wait for them.
            s.spawn(move || busy(volume, &format!("/f{i}"), ROUNDS / (i % 4 + 1), i != 5));
        }
    });
    let syncs: u64 = (0..8).map(|i| ROUNDS / (i % 4 + 1)).sum();
    let epochs = volume.counters().epochs - before;
    assert!(epochs < syncs, "{epochs} epochs for {syncs} syncs");
    (0..8).for_each(|i| check(&volume, &format!("/f{i}"), ROUNDS / (i % 4 + 1)));
    volume.close_blocking().unwrap();
}

/// A call within a call that is to drive, as when a file is dropped there: the thread waits for the inner one, and nobody for the outer one to drive.
#[test]
fn a_call_within_one_that_drives_is_served() {
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let media = Arc::new(RamMedia::new(64 << 20).unwrap());
        block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
        let volume = Volume::open(media, OpenOptions::default()).unwrap();
        let client = Client::new(Arc::new(volume.clone()), Cred::root()).blocking();
        let how = Open::new().read(true).write(true).create_new(true);
        let files = ["/outer", "/inner"].map(|name| client.open(name, how).unwrap());
        files.iter().for_each(|file| file.write_all_at(&[7; 64 << 10], 0).unwrap());
        for round in 0..40 {
            // So many that wait alone that they drive.
            busy(&volume, &format!("/f{round}"), 20, true);
            volume.block_on(volume.drop_caches()).unwrap();
            let [outer, inner] = &files;
            let (mut first, mut second) = ([0; 4096], [0; 4096]);
            {
                let mut first = pin!(volume.read(outer.handle(), 0, &mut first));
                let mut second = Some(volume.read(inner.handle(), 0, &mut second));
                let read = volume.block_on(poll_fn(|cx| {
                    let read = first.as_mut().poll(cx);
                    if let Some(second) = second.take() {
                        let read = if round % 2 == 0 { volume.block_on(second) } else { block_on(second) };
                        assert_eq!(read, Ok(4096));
                    }
                    read
                }));
                assert_eq!(read, Ok(4096));
            }
            assert!(first == [7; 4096] && second == first);
        }
        drop(files);
        volume.close_blocking().unwrap();
        ended.send(()).unwrap();
    });
    end.recv_timeout(Duration::from_secs(30)).expect("it waits for ever");
}
