//! Making and removing files under a lease on their directory.
//!
//! Verifies, over the block engine, that everybody sees what one client does in a directory that it has to itself when that has returned (other sessions, other
//! doors), that it is in order with everything else, that it outlives its client and a clean stop of the manager and is in anybody's sync, that of two who make
//! the same file one does, and that none of it fails on a full volume. Who waits for it: tests/all/unwaited.rs. Random calls:
//! tests/all/directories_random.rs. Clients that do not keep to the rules: tests/all/directory_attacks.rs.

use crate::rig::{NEW, Rig, bytes, lent, made_and_lent, names, volume, volume_on_flash, without_power};
use fs::client::OpenOptions as Open;
use fs::{Blocking, Error, FileSystem, RenameFlags};
use share::Remote;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn everybody_sees_it_at_once() {
    let rig = Rig::new(volume(128 << 20));
    let (a, b) = (rig.client(), rig.client());
    made_and_lent(&rig, &a, "d");
    let mut lost = 0;
    for i in 0..30_000u32 {
        let name = format!("d/f{i}");
        let lends = rig.doors.lends_directories();
        a.open(&name, NEW).unwrap().close().unwrap();
        let seen = match i % 4 {
            0 => b.stat(&name).is_ok(),
            1 => rig.beside.stat(&name).is_ok(),
            2 => rig.beside.read_dir("d").unwrap().any(|e| e.unwrap().name == name[2..]),
            _ => b.open(&name, NEW).is_err_and(|e| e == Error::Exists || e.errno() == libc::EEXIST),
        };
        assert!(seen, "{name} is not there, lease {lends}");
        let again = i % 3 == 0;
        if again {
            again_lent(&rig, &a);
            let (name, other) = (format!("d/g{i}"), if i % 2 == 0 { &b } else { &a });
            a.open(&name, NEW).unwrap().close().unwrap();
            a.unlink(&name).unwrap();
            let gone = match i % 4 {
                0 | 1 => rig.beside.stat(&name).is_err(),
                _ => other.stat(&name).is_err(),
            };
            assert!(gone, "{name} is there still");
        }
        lost += (again && lends) as u32;
        a.unlink(&name).unwrap();
        assert!(b.stat(&name).is_err() && a.stat(&name).is_err());
        again_lent(&rig, &a);
    }
    println!("{lost}, posted {}", rig.count("post_create"));
    assert!(rig.count("post_create") > 5000 && rig.count("post_unlink") > 1000);
}

#[test]
fn who_looks_at_new_files_in_their_order_asks_for_many_at_a_time() {
    let rig = Rig::new(volume(128 << 20));
    let (client, other) = (rig.client(), rig.client());
    made_and_lent(&rig, &client, "d");
    let n = 2000;
    let size = |i: u32| i % 7;
    for i in 0..n {
        let file = client.open(format!("d/f{i}"), NEW).unwrap();
        file.write_at(&vec![1; size(i) as usize], 0).unwrap();
        file.close().unwrap();
        if i % 10 == 9 {
            client.unlink(format!("d/f{i}")).unwrap();
        }
    }
    let there = |i: u32| i % 10 != 9;
    let (walks, stays) = (rig.count("walk"), (0..n).filter(|&i| there(i)));
    let seen: Vec<_> = stays.clone().map(|i| client.stat(format!("d/f{i}")).unwrap()).collect();
    let asked = rig.count("walk") - walks;
    assert!(asked < n as u64 / 20, "{asked} messages");
    // Names that they did not have: these are asked for one by one.
    assert!(client.stat("d/f9").is_err_and(|e| e == Error::NotFound));
    for (i, attr) in stays.zip(seen) {
        assert_eq!((attr.size, attr.nlink), (size(i) as u64, 1));
        assert_eq!(rig.beside.stat(format!("d/f{i}")).unwrap(), attr);
    }
    // What others do to files that were asked for ahead is seen.
    lent(&rig, &client, "d");
    for i in 0..100 {
        drop(client.open(format!("d/g{i}"), NEW).unwrap());
    }
    for i in 0..20 {
        assert_eq!(client.stat(format!("d/g{i}")).unwrap().size, 0);
    }
    for i in 0..100 {
        match i % 2 {
            0 => other.unlink(format!("d/g{i}")).unwrap(),
            _ => drop(other.open(format!("d/g{i}"), Open::new().write(true)).unwrap().write_at(b"more", 0)),
        }
    }
    for i in 0..100 {
        let size = client.stat(format!("d/g{i}")).map(|attr| attr.size);
        assert_eq!(size, if i % 2 == 0 { Err(Error::NotFound) } else { Ok(4) });
    }
}

#[test]
fn everybody_sees_the_data_at_once() {
    let rig = Rig::new(volume(128 << 20));
    let (a, b) = (rig.client(), rig.client());
    made_and_lent(&rig, &a, "d");
    for i in 0..4000u32 {
        let (name, data) = (format!("d/f{i}"), bytes(i, 10 + i as usize % 7000));
        let file = a.open(&name, NEW).unwrap();
        file.write_all_at(&data, 0).unwrap();
        let more = bytes(i + 1, 5000);
        match i % 5 {
            0 => assert!(b.read(&name).unwrap() == data),
            1 => assert!(rig.beside.read(&name).unwrap() == data),
            2 => assert_eq!(b.stat(&name).unwrap().size, data.len() as u64),
            3 => {
                // The lease goes between one write and the next.
                assert!(rig.beside.stat("d").is_ok());
                file.write_all_at(&more, data.len() as u64).unwrap();
                assert!(b.read(&name).unwrap() == [data, more].concat());
            }
            _ => {
                rig.beside.rename(&name, "moved", RenameFlags::empty()).unwrap();
                file.write_all_at(&more, 0).unwrap();
                assert!(rig.beside.read("moved").unwrap()[..5000] == more);
                drop(file);
                again_lent(&rig, &a);
                continue;
            }
        }
        drop(file);
        again_lent(&rig, &a);
    }
    println!("{} posted", rig.count("post_write"));
    assert!(rig.count("post_write") > 2000);
}

fn again_lent<F: FileSystem>(rig: &Rig<F>, client: &Blocking<Remote>) {
    if !rig.doors.lends_directories() {
        lent(rig, client, "d");
    }
}

#[test]
fn of_two_who_make_a_file_one_does() {
    let rig = Rig::new(volume(128 << 20));
    rig.beside.mkdir("d", 0o777).unwrap();
    let (a, b) = (rig.client(), rig.client());
    let made: [AtomicUsize; 3] = Default::default();
    let n = 6_000;
    let work = |who: usize, make: &dyn Fn(&str) -> bool| {
        for i in (0..n).filter(|i| who < 2 || i % 97 == 0) {
            made[who].fetch_add(make(&format!("d/f{i}")) as usize, Ordering::Relaxed);
        }
    };
    std::thread::scope(|s| {
        let (work, rig) = (&work, &rig);
        let beside = &rig.beside;
        s.spawn(move || work(0, &|name| a.open(name, NEW).is_ok()));
        s.spawn(move || work(1, &|name| b.open(name, NEW).is_ok()));
        s.spawn(move || work(2, &|name| beside.open(name, NEW).is_ok()));
    });
    let all: Vec<usize> = made.iter().map(|n| n.load(Ordering::Relaxed)).collect();
    println!("{all:?}, {} posted", rig.count("post_create"));
    assert_eq!(all.iter().sum::<usize>(), n);
    assert_eq!(names(&rig.beside, "d").len(), n);
}

#[test]
fn what_came_before_comes_first() {
    let rig = Rig::new(volume(128 << 20));
    let client = rig.client();
    made_and_lent(&rig, &client, "d");
    for i in 0..2000u32 {
        let (name, other) = (format!("d/f{i}"), format!("d/o{i}"));
        let file = client.open(&name, NEW).unwrap();
        file.write_all_at(&i.to_le_bytes(), 0).unwrap();
        match i % 8 {
            0 => client.rename(&name, &other, RenameFlags::empty()).unwrap(),
            1 => drop(client.link(&name, &other).unwrap()),
            2 => {
                client.unlink(&name).unwrap();
                assert_eq!(file.metadata().unwrap().nlink, 0);
                client.mkdir(&name, 0o700).unwrap();
                assert_eq!(client.open(&name, NEW).unwrap_err().errno(), libc::EEXIST);
                client.rmdir(&name).unwrap();
                client.open(&other, NEW).unwrap().write_all_at(&i.to_le_bytes(), 0).unwrap();
            }
            3 => {
                client.unlink(&name).unwrap();
                client.symlink("nowhere", &name).unwrap();
                assert_eq!(client.open(&name, NEW).unwrap_err().errno(), libc::EEXIST);
                client.unlink(&name).unwrap();
                client.open(&other, NEW).unwrap().write_all_at(&i.to_le_bytes(), 0).unwrap();
            }
            4 => {
                client.open(&other, NEW).unwrap();
                client.rename(&name, &other, RenameFlags::empty()).unwrap();
            }
            5 => {
                client.chmod(&name, 0o600).unwrap();
                client.rename(&name, &other, RenameFlags::empty()).unwrap();
                assert_eq!(client.stat(&other).unwrap().perm, 0o600);
            }
            6 => {
                client.link(&name, &other).unwrap();
                client.unlink(&name).unwrap();
                assert_eq!(client.stat(&other).unwrap().nlink, 1);
            }
            _ => {
                assert_eq!(client.open(&name, NEW).unwrap_err().errno(), libc::EEXIST);
                client.open(&name, Open::new().write(true).truncate(true)).unwrap();
                assert_eq!(client.stat(&name).unwrap().size, 0);
                client.unlink(&name).unwrap();
                client.open(&other, NEW).unwrap().write_all_at(&i.to_le_bytes(), 0).unwrap();
            }
        }
        assert_eq!(client.read(&other).unwrap(), i.to_le_bytes(), "{i}");
        assert_eq!(client.stat(&name).is_ok(), i % 8 == 1, "{i}");
    }
    // A directory that goes while it is lent.
    for i in 0..50 {
        made_and_lent(&rig, &client, &format!("e{i}"));
        names_all(&client, &format!("e{i}")).iter().for_each(|name| client.unlink(name).unwrap());
        client.rmdir(format!("e{i}")).unwrap();
        assert!(client.open(format!("e{i}/f"), NEW).is_err());
        made_and_lent(&rig, &client, &format!("g{i}"));
        assert!(rig.beside.rmdir(format!("g{i}")).is_err(), "it is not empty");
        client.chmod(format!("g{i}"), 0o500).unwrap();
        rig.beside.chmod(format!("g{i}"), 0o700).unwrap();
        client.open(format!("g{i}/f"), NEW).unwrap();
    }
}

fn names_all<F: FileSystem>(client: &Blocking<F>, dir: &str) -> Vec<String> {
    let entries = client.read_dir(dir).unwrap();
    entries.map(|e| format!("{dir}/{}", e.unwrap().name.to_string_lossy())).collect()
}

#[test]
fn it_outlives_its_client_and_its_manager() {
    let mut rig = Rig::new(volume(128 << 20));
    for round in 0..60 {
        let client = rig.client();
        made_and_lent(&rig, &client, &format!("d{round}"));
        let files: Vec<_> = (0..50).map(|i| client.open(format!("d{round}/f{i}"), NEW).unwrap()).collect();
        if round % 3 == 0 {
            // The manager goes, and another one comes.
            rig.serve();
            files.iter().for_each(|file| file.write_all_at(b"after", 0).unwrap());
            assert_eq!(rig.beside.read(format!("d{round}/f49")).unwrap(), b"after");
        } else {
            // As it is when a process ends: nobody closes anything.
            std::mem::forget(files);
            drop(client);
        }
        assert_eq!(names(&rig.beside, &format!("d{round}")).len(), 50);
    }
}

#[test]
fn none_fails_on_a_full_volume() {
    let rig = Rig::new(volume(40 << 20));
    let client = rig.client();
    made_and_lent(&rig, &client, "d");
    // All that promises leave.
    let fill = rig.beside.open("fill", NEW).unwrap();
    let mut at = 0;
    for size in [1 << 20, 4096] {
        while fill.write_all_at(&vec![1; size], at).is_ok() {
            at += size as u64;
        }
    }
    let (mut made, posted) = (0, rig.count("post_create"));
    for i in 0..20_000 {
        match client.open(format!("d/f{i}"), NEW) {
            Ok(_) => made += 1,
            Err(e) => {
                assert_eq!(e.errno(), libc::ENOSPC);
                break;
            }
        }
    }
    println!("{made} made, {} of them posted", rig.count("post_create") - posted);
    assert!(rig.count("post_create") - posted >= 50, "what was promised is there");
    assert_eq!(names(&rig.beside, "d").len(), made);
    rig.beside.sync().unwrap();
}

#[test]
fn it_is_in_the_sync_of_anybody() {
    let (flash, volume) = volume_on_flash(64 << 20);
    let rig = Rig::new(volume);
    let (a, b) = (rig.client(), rig.client());
    let other = b.open("other", NEW).unwrap();
    for round in 0..12 {
        let dir = format!("d{round}");
        made_and_lent(&rig, &a, &dir);
        (0..40).for_each(|i| drop(a.open(format!("{dir}/f{i}"), NEW).unwrap()));
        (0..40).step_by(2).for_each(|i| a.unlink(format!("{dir}/f{i}")).unwrap());
        match round % 4 {
            0 => other.fsync().unwrap(),
            1 => rig.beside.sync().unwrap(),
            2 => b.sync().unwrap(),
            _ => a.sync().unwrap(),
        }
        assert!(rig.doors.lends_directories(), "a sync ends no lease");
        let after = without_power(&flash);
        assert_eq!(names(&after, &dir).len(), 20, "round {round}");
    }
}

#[test]
fn two_who_close_each_others_directories() {
    let rig = Rig::new(volume(128 << 20));
    let (a, b) = (rig.client(), rig.client());
    for round in 0..300 {
        let (mine, theirs) = (format!("a{round}"), format!("b{round}"));
        a.mkdir(&mine, 0o755).unwrap();
        b.mkdir(&theirs, 0o755).unwrap();
        let (to_close, too) = (a.read_dir(&theirs).unwrap(), b.read_dir(&mine).unwrap());
        std::thread::scope(|s| {
            let work = |client: &Blocking<Remote>, dir: &str| {
                (0..20).for_each(|i| drop(client.open(format!("{dir}/f{i}"), NEW).unwrap()));
            };
            let (a, b, mine, theirs) = (&a, &b, &mine, &theirs);
            s.spawn(move || (work(a, mine), drop(to_close), work(a, &format!("{mine}/.."))));
            s.spawn(move || (work(b, theirs), drop(too)));
        });
        (0..20).for_each(|i| rig.beside.unlink(format!("f{i}")).unwrap());
        assert_eq!((names(&b, &mine).len(), names(&a, &theirs).len()), (20, 20));
    }
}

/// What was known of a directory when it was lent counts no more when it is changed itself, although nobody has seen the answer to that yet.
#[test]
fn a_directory_that_is_lent_while_it_is_changed_itself() {
    let rig = Rig::new(volume(64 << 20));
    let client = rig.client();
    let remote = client.client().fs().clone();
    client.mkdir("d", 0o755).unwrap();
    let dir = client.stat("d").unwrap().ino;
    let cred = fs::Cred::of_process();
    let change =
        || Box::pin(remote.setattr(&cred, dir, fs::SetAttr { perm: Some(0o2755), ..Default::default() }));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let mut changing = change();
    while changing.as_mut().poll(&mut cx).is_ready() {
        changing = change();
    }
    let posted = rig.count("post_create");
    (0..100).for_each(|n| client.write(format!("d/meanwhile-{n}"), b"").unwrap());
    assert_eq!(rig.count("post_create"), posted, "what they inherit may be something else by now");
    remote.block_on(changing).unwrap();
    (0..100).for_each(|n| client.write(format!("d/later-{n}"), b"").unwrap());
    assert!(rig.count("post_create") > posted);
}
