//! Who waits for the manager, and who does not.
//!
//! Verifies that creates, unlinks, closes and the data of new files in a directory that one client has to itself are posted, also of many threads at once, and that
//! those who do have to wait for room sleep meanwhile. What the others see of it: tests/all/directories.rs.

use crate::rig::between::Between;
use crate::rig::{NEW, Rig, bytes, lent, made_and_lent, names, volume};
use fs::client::OpenOptions as Open;
use fs::{Blocking, Error, FileSystem, Watched};
use share::Remote;
use std::time::Duration;

#[test]
fn nobody_waits_for_creates_and_unlinks() {
    let rig = Rig::new(volume(128 << 20));
    let client = rig.client();
    made_and_lent(&rig, &client, "d");
    let n = 20_000;
    for i in 0..n {
        let file = client.open(format!("d/f{i}"), NEW).unwrap();
        if i % 1000 == 0 {
            let attr = file.metadata().unwrap();
            assert_eq!(attr, client.stat(format!("d/f{i}")).unwrap());
            assert_eq!((attr.size, attr.nlink), (0, 1));
        }
    }
    assert!(rig.doors.lends_directories());
    // A message, behind all that was posted.
    assert_eq!(names(&client, "d").len(), n as usize);
    let stats = |name: &str| rig.count(name);
    let (posted, asked) = (stats("post_create"), stats("create"));
    assert!(posted > n - 10 && asked < 10, "{posted} posted, {asked} asked");
    assert!(stats("release") >= posted, "closed: {}", stats("release"));
    for i in 0..n {
        client.unlink(format!("d/f{i}")).unwrap();
    }
    assert!(names(&client, "d").is_empty());
    assert!(stats("post_unlink") > n - 10 && stats("unlink") < 10);
    assert!(rig.doors.lends_directories());
    assert!(names(&rig.beside, "d").is_empty() && !rig.doors.lends_directories());
}

/// Whoever removes and makes what he found in the directory waits for each name once.
#[test]
fn nobody_waits_twice_for_what_was_there() {
    let rig = Rig::new(volume(128 << 20));
    let client = rig.client();
    client.mkdir("d", 0o755).unwrap();
    let n = 500;
    let make = |client: &Blocking<Remote>, i: u32| {
        client.open(format!("d/f{i}"), Open::new().write(true).create(true)).unwrap().close().unwrap();
    };
    (0..n).for_each(|i| drop(rig.beside.open(format!("d/f{i}"), NEW).unwrap()));
    lent(&rig, &client, "d");
    for _ in 0..4 {
        for i in 0..n {
            client.unlink(format!("d/f{i}")).unwrap();
            assert!(client.stat(format!("d/f{i}")).is_err());
            assert_eq!(client.unlink(format!("d/f{i}")).map_err(|e| e.errno()), Err(libc::ENOENT));
            make(&client, i);
        }
    }
    assert!(rig.doors.lends_directories());
    assert_eq!(names(&rig.beside, "d").len(), n as usize);
    let removed = (rig.count("unlink"), rig.count("post_unlink"));
    assert_eq!(removed, (5 * n as u64, 3 * n as u64), "once each, and when it is not there");
    let made = (rig.count("create"), rig.count("post_create"));
    assert!(made.0 < 45 && made.1 == 4 * n as u64, "{made:?}");
}

/// Threads of one program, more than there are slots: they get the lease while others are about to make and remove files there, and then none of them needs a message that others
/// do not need. Each name has its own thread at any time, which knows whether it is there.
#[test]
fn nobody_waits_in_a_throng() {
    let rig = Rig::new(volume(128 << 20));
    let (client, threads, rounds) = (rig.client(), 80, 100);
    client.mkdir("d", 0o755).unwrap();
    (0..threads).for_each(|i| drop(rig.beside.open(format!("d/f{i}"), NEW).unwrap()));
    std::thread::scope(|s| {
        for i in 0..threads {
            let client = &client;
            s.spawn(move || {
                let name = format!("d/f{i}");
                for round in 0..rounds {
                    client.unlink(&name).unwrap();
                    assert!(client.stat(&name).is_err());
                    if round % 8 == 0 {
                        assert_eq!(client.unlink(&name).map_err(|e| e.errno()), Err(libc::ENOENT));
                    }
                    let file = client.open(&name, NEW).unwrap();
                    file.write_at(name.as_bytes(), 0).unwrap();
                    file.close().unwrap();
                    assert_eq!(
                        client.open(&name, Open::new().write(true).create_new(true)).map(drop),
                        Err(Error::Exists)
                    );
                    assert_eq!(client.stat(&name).unwrap().size, name.len() as u64);
                }
            });
        }
    });
    let all = threads * rounds;
    let (posted, asked) = (rig.count("post_create"), rig.count("create"));
    assert!(posted > all * 3 / 4, "{posted} posted of {all}, {asked} messages");
    for i in 0..threads {
        let name = format!("d/f{i}");
        assert_eq!(rig.beside.read(&name).unwrap(), name.as_bytes());
    }
    assert_eq!(names(&rig.beside, "d").len(), threads as usize);
}

/// Threads that find all slots taken, most of them by calls whose threads have not come by for the answers yet, sleep until there is room, and leave the processors to the manager.
#[test]
fn whoever_waits_for_room_sleeps() {
    let doors = Watched::new(volume(128 << 20));
    let between = Between::before(&doors);
    let rig = Rig::over(doors);
    let client = rig.client();
    made_and_lent(&rig, &client, "d");
    let held = client.open("d/held", NEW).unwrap();
    (0..40).for_each(|i| drop(client.open(format!("d/e{i}"), NEW).unwrap()));
    let remote = client.client().fs().clone();
    let mut answered: Vec<_> = (0..32).map(|_| Box::pin(remote.statfs())).collect();
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(answered.iter_mut().all(|call| call.as_mut().poll(&mut cx).is_pending()));
    std::thread::sleep(Duration::from_millis(100));
    // The manager stands at the first of these, and all others are behind it.
    let gate = between.holds(held.ino());
    held.write_at(b"held", 0).unwrap();
    (0..23).for_each(|i| drop(client.open(format!("d/f{i}"), NEW).unwrap()));
    let processor_time = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    let (client, wait) = (&client, Duration::from_millis(500));
    let took: Vec<Duration> = std::thread::scope(|s| {
        let makes = |i: usize| {
            s.spawn(move || {
                let begun = processor_time();
                (0..20).for_each(|k| drop(client.open(format!("d/g{i}-{k}"), NEW).unwrap()));
                processor_time() - begun
            })
        };
        let threads: Vec<_> = (0..4).map(makes).collect();
        std::thread::sleep(wait);
        assert!(threads.iter().all(|thread| !thread.is_finished()), "there was room");
        gate.opens();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(took.iter().all(|took| *took < wait / 5), "{took:?}");
    drop(answered);
    assert_eq!(names(&rig.beside, "d").len(), 1 + 40 + 23 + 4 * 20);
}

/// Closing such a file is not even a request; many are closed at once, also when the manager sleeps and when the lease was taken back meanwhile.
#[test]
fn nobody_waits_for_closing() {
    let rig = Rig::new(volume(128 << 20));
    let client = rig.client();
    made_and_lent(&rig, &client, "d");
    let handles = || rig.server.as_ref().unwrap().stats().sessions.iter().map(|s| s.handles).sum::<u64>();
    // The manager counts after it has gone to sleep, too.
    let eventually = |want: u64| {
        let begun = std::time::Instant::now();
        while handles() != want {
            assert!(begun.elapsed().as_secs() < 10, "{} open, not {want}", handles());
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    };
    eventually(0);
    for round in 0..20 {
        let files: Vec<_> = (0..200).map(|i| client.open(format!("d/f{round}-{i}"), NEW).unwrap()).collect();
        eventually(200);
        let taken_back = round % 4 == 3;
        if taken_back {
            assert_eq!(names(&rig.beside, "d").len(), 200 * (round + 1));
        }
        if round % 4 == 2 {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        for file in files {
            file.close().unwrap();
        }
        eventually(0);
        if taken_back {
            lent(&rig, &client, "d");
        }
    }
    assert_eq!(names(&rig.beside, "d").len(), 20 * 200);
}

#[test]
fn nobody_waits_for_the_data_of_new_files() {
    let rig = Rig::new(volume(256 << 20));
    let client = rig.client();
    made_and_lent(&rig, &client, "d");
    let (n, before) = (4000, rig.calls());
    let len = |i: u32| match i % 100 {
        0 => 200_000,
        _ => 1 + i as usize * 37 % 9000,
    };
    for i in 0..n {
        let file = client.open(format!("d/f{i}"), NEW).unwrap();
        let data = bytes(i, len(i));
        let (first, rest) = data.split_at(data.len() / 3);
        file.write_all_at(first, 0).unwrap();
        file.write_all_at(rest, first.len() as u64).unwrap();
        file.close().unwrap();
    }
    let (posted, all) = (rig.count("post_write"), rig.calls() - before);
    let waited: u64 = ["write", "create", "promise", "room"].iter().map(|name| rig.count(name)).sum();
    println!("{all} calls, {posted} writes posted, {waited} messages");
    assert!(rig.doors.lends_directories() && posted >= 2 * n as u64 - 10);
    // The way to the directory is asked for each time, as its attributes change.
    let rest = all - rig.count("walk");
    assert!(waited < 80 && rest < 4 * n as u64 + 300, "{waited} messages were waited for, of {all} calls");
    for i in (0..n).filter(|i| i % 100 == 0 || i % 61 == 3) {
        let (name, want) = (format!("d/f{i}"), bytes(i, len(i)));
        assert_eq!(client.stat(&name).unwrap().size, want.len() as u64);
        assert!(client.read(&name).unwrap() == want, "{name}");
    }
    for i in 0..n {
        assert!(rig.beside.read(format!("d/f{i}")).unwrap() == bytes(i, len(i)), "f{i}");
    }
    assert!(!rig.doors.lends_directories());
}
