//! Overwriting without messages.
//!
//! Verifies, over the block engine, that overwrites through a session cost a bounded number of messages, that everybody sees each of them when it has
//! returned (other sessions, other doors, stat), that they are durable after anybody's sync, that they outlive their client and a clean stop of the manager, and that
//! a full volume has room for them; and that directories are listed in which there is what cannot be written. Random calls: tests/all/leases_random.rs. Clients that do not keep to the rules: tests/all/lease_attacks.rs.

use crate::rig::{NEW, PAGE, RW, Rig, leased, page, volume, volume_on_flash};
use block::{MkfsOptions, OpenOptions, Volume};
use fs::client::OpenOptions as Open;
use fs::{Client, Cred, Error, Fallocate};
use media::RamMedia;
use media::flash::{Config, Failure, Fault, SimFlash};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

#[test]
fn overwrites_cost_no_messages() {
    let rig = Rig::new(volume(128 << 20));
    let client = rig.client();
    let file = leased(&rig, &client, "f", 1024);
    let before = rig.calls();
    for i in 0..20_000u64 {
        file.write_all_at(&page(i), i * 7 % 1024 * PAGE as u64).unwrap();
        if i % 3 == 0 {
            file.write_all_at(&i.to_le_bytes(), i * 7 % 1024 * PAGE as u64 + 80).unwrap();
        }
    }
    let calls = rig.calls() - before;
    println!("{calls} calls for 26667 writes");
    assert!(calls < 20, "{calls} calls");
    // Reads of what was written, too.
    let mut bytes = vec![0; PAGE];
    for i in 19_000..20_000u64 {
        assert_eq!(file.read_at(&mut bytes, i * 7 % 1024 * PAGE as u64).unwrap(), PAGE);
        let mut want = page(i);
        if i % 3 == 0 {
            want[80..88].copy_from_slice(&i.to_le_bytes());
        }
        assert!(bytes == want);
    }
    assert!(rig.calls() - before < 25);
    let begun = Instant::now();
    let n = 200_000u64;
    let data = page(5);
    (0..n).for_each(|i| file.write_all_at(&data, i % 1024 * PAGE as u64).unwrap());
    println!("{:?} for a write", begun.elapsed() / n as u32);
    // As a file is rewritten from its beginning to its end.
    drop(file);
    let file = client.open("long", NEW).unwrap();
    let (pages, chunk) = (24 * 512u64, vec![1; 64 * PAGE]);
    (0..pages / 64).for_each(|i| file.write_all_at(&chunk, i * 64 * PAGE as u64).unwrap());
    let before = rig.calls();
    (0..pages).for_each(|i| file.write_all_at(&page(i), i * PAGE as u64).unwrap());
    let calls = rig.calls() - before;
    println!("{calls} calls for {pages} writes one after the other");
    assert!(calls < 400, "{calls} calls");
    for i in (0..pages).step_by(97) {
        file.read_at(&mut bytes, i * PAGE as u64).unwrap();
        assert!(bytes == page(i), "page {i}");
    }
}

#[test]
fn everybody_sees_it_at_once() {
    let rig = Rig::new(volume(128 << 20));
    let (a, b) = (rig.client(), rig.client());
    a.mkdir("d", 0o755).unwrap();
    let mut bytes = vec![0; PAGE];
    for round in 0..40u64 {
        let name = format!("d/f{round}");
        let file = leased(&rig, &a, &name, 64);
        // What b keeps from before.
        let before = b.stat(&name).unwrap();
        let kept = b.open(&name, RW).unwrap();
        (0..4).for_each(|_| assert_eq!(kept.read_at(&mut bytes, 8 * PAGE as u64).unwrap(), PAGE));
        kept.close().unwrap();
        (0..300).for_each(|i| file.write_all_at(&page(i), i % 64 * PAGE as u64).unwrap());
        assert!(rig.doors.lends());
        std::thread::sleep(Duration::from_millis(10));
        file.write_all_at(&page(1000 + round), 8 * PAGE as u64).unwrap();
        match round % 8 {
            0 => {
                assert!(b.stat(&name).unwrap().mtime > before.mtime, "the time of the write");
                file.write_all_at(&page(1000 + round), 8 * PAGE as u64).unwrap();
            }
            1 => {
                let mut entries = Vec::new();
                for entry in b.read_dir("d").unwrap().by_ref() {
                    entries.push(entry.unwrap());
                }
                assert_eq!(entries.len() as u64, round + 1);
            }
            2 => {
                let beside = rig.beside.open(&name, RW).unwrap();
                beside.read_at(&mut bytes, 8 * PAGE as u64).unwrap();
                assert!(bytes == page(1000 + round));
                beside.write_all_at(&page(7), 9 * PAGE as u64).unwrap();
                file.read_at(&mut bytes, 9 * PAGE as u64).unwrap();
                assert!(bytes == page(7), "what was written beside");
            }
            3 => {
                assert!(file.metadata().unwrap().mtime > before.mtime);
                assert!(rig.doors.lends(), "who has the lease may look");
                file.write_all_at(&page(1000 + round), 8 * PAGE as u64).unwrap();
                assert!(a.stat(&name).unwrap().mtime > before.mtime);
            }
            4 => {
                file.set_len(8 * PAGE as u64 + 100).unwrap();
                file.set_len(64 * PAGE as u64).unwrap();
                file.read_at(&mut bytes, 8 * PAGE as u64).unwrap();
                assert!(bytes[..100] == page(1000 + round)[..100] && bytes[100..].iter().all(|&b| b == 0));
                file.write_all_at(&page(1000 + round), 8 * PAGE as u64).unwrap();
            }
            5 => {
                // A part of a page, and a write across two: the first as a message in between.
                file.write_all_at(&[9; 6000], 7 * PAGE as u64 + 100).unwrap();
                file.write_all_at(&page(1000 + round), 8 * PAGE as u64).unwrap();
            }
            6 => file.fallocate(Fallocate::PunchHole, 0, PAGE as u64).unwrap(),
            _ => file.close().unwrap(),
        }
        if round % 8 == 7 {
            assert!(b.stat(&name).unwrap().mtime > before.mtime);
        }
        let seen = b.open(&name, RW).unwrap();
        for _ in 0..4 {
            seen.read_at(&mut bytes, 8 * PAGE as u64).unwrap();
            assert!(bytes == page(1000 + round), "round {round}");
        }
    }
}

/// A file is read without messages again once the lease on it was taken back, though its writer does nothing more.
#[test]
fn readers_of_what_was_taken_back_ask_no_longer() {
    let rig = Rig::new(crate::rig::volume(64 << 20));
    let client = rig.client();
    let writer = leased(&rig, &client, "f", 4);
    writer.write_all_at(&page(7), 0).unwrap();
    let reader = client.open("f", Open::new().read(true)).unwrap();
    let mut bytes = vec![0; PAGE];
    let mut read = |times: usize| {
        (0..times).for_each(|_| {
            reader.read_at(&mut bytes, 0).unwrap();
            assert_eq!(bytes, page(7));
        });
    };
    read(3);
    let before = rig.calls();
    read(100);
    assert!(rig.calls() - before <= 1, "{} calls", rig.calls() - before);
    drop(writer);
}

/// Threads that write into the same pages wait for each other, and not for the manager; each page is one of them's.
#[test]
fn threads_write_the_same_pages() {
    let rig = Rig::new(volume(64 << 20));
    let client = rig.client();
    let file = leased(&rig, &client, "f", 2);
    let before = rig.calls();
    std::thread::scope(|scope| {
        for thread in 1..=4u64 {
            let file = &file;
            let write =
                move |i: u64| file.write_all_at(&page(thread << 32 | i), (i + thread) % 2 * PAGE as u64);
            scope.spawn(move || (0..5000).for_each(|i| write(i).unwrap()));
        }
    });
    // A window is taken back after a second, for instance.
    assert!(rig.calls() - before < 200, "{} calls", rig.calls() - before);
    for at in 0..2 {
        let mut bytes = vec![0; PAGE];
        file.read_at(&mut bytes, at * PAGE as u64).unwrap();
        let version = u64::from_le_bytes(*bytes.first_chunk().unwrap());
        assert!(bytes == page(version) && (1..=4).contains(&(version >> 32)), "{version:#x}");
    }
}

#[test]
fn syncs_and_stops_lose_nothing() {
    let flash = Arc::new(SimFlash::new(Config { wait_when_idle: true, ..Config::new(128 << 20) }).unwrap());
    block::mkfs(flash.clone(), &MkfsOptions::default()).unwrap();
    let options = OpenOptions { dirty_age_max: Duration::from_secs(1000), ..OpenOptions::default() };
    let volume = Arc::new(Volume::open(flash.clone(), options).unwrap());
    let mut rig = Rig::new(volume);
    let (a, b) = (rig.client(), rig.client());
    let other = b.open("other", NEW).unwrap();
    let mut version = 0;
    let mut file = leased(&rig, &a, "f", 600);
    let check = |fs: &dyn Fn(&mut [u8], u64), version: u64, why: &str| {
        let mut bytes = vec![0; PAGE];
        for i in 0..600 {
            fs(&mut bytes, i * PAGE as u64);
            assert!(bytes == page(version + i), "{why}: page {i}");
        }
    };
    for round in 0..6 {
        version += 1000;
        (0..600).for_each(|i| file.write_all_at(&page(version + i), i * PAGE as u64).unwrap());
        assert!(rig.doors.lends());
        match round {
            0 => file.fsync().unwrap(),
            1 => other.fdatasync().unwrap(),
            2 => rig.beside.sync().unwrap(),
            3 => {
                let sync = rig.beside.open("other", Open::new().write(true).sync(true)).unwrap();
                sync.write_all_at(b"x", 0).unwrap();
            }
            4 => {
                // The client is gone without a word.
                drop(file);
                drop(a.client().fs().clone());
                rig.beside.sync().unwrap();
                file = a.open("f", RW).unwrap();
            }
            _ => {
                rig.serve();
                file.fsync().unwrap();
            }
        }
        let image = Arc::new(flash.crash_image(|_, _| false));
        let after = Arc::new(Volume::open(image, OpenOptions::default()).unwrap());
        let after = Client::new(after, Cred::root()).blocking();
        let there = after.open("f", RW).unwrap();
        let read = |to: &mut [u8], at: u64| assert_eq!(there.read_at(to, at).unwrap(), PAGE);
        check(&read, version, &format!("after the power failure in round {round}"));
        let read = |to: &mut [u8], at: u64| assert_eq!(file.read_at(to, at).unwrap(), PAGE);
        check(&read, version, &format!("in round {round}"));
    }
}

#[test]
fn what_a_client_wrote_outlives_it() {
    let rig = Rig::new(volume(128 << 20));
    for round in 0..10u64 {
        let a = rig.client();
        let name = format!("f{round}");
        let file = leased(&rig, &a, &name, 300);
        (0..300).for_each(|i| file.write_all_at(&page(round + i), i * PAGE as u64).unwrap());
        // Its descriptors go, as those of a process that is killed.
        std::mem::forget(file);
        for fd in a.client().fs().descriptors() {
            rustix::net::shutdown(fd, rustix::net::Shutdown::Both).ok();
        }
        std::mem::forget(a);
        let seen = rig.beside.open(&name, RW).unwrap();
        let mut bytes = vec![0; PAGE];
        for i in 0..300 {
            seen.read_at(&mut bytes, i * PAGE as u64).unwrap();
            assert!(bytes == page(round + i), "page {i}");
        }
    }
}

#[test]
fn they_do_not_stay_for_long() {
    let fs = volume(128 << 20);
    let rig = Rig::new(fs.clone());
    let a = rig.client();
    let file = leased(&rig, &a, "f", 64);
    file.write_all_at(&page(77), 5 * PAGE as u64).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    assert!(rig.doors.lends());
    // Not through a door.
    let inside = Client::new(fs, Cred::root()).blocking();
    let mut bytes = vec![0; PAGE];
    inside.open("f", RW).unwrap().read_at(&mut bytes, 5 * PAGE as u64).unwrap();
    assert!(bytes == page(77));
    drop(file);
}

#[test]
fn a_full_volume_has_room() {
    let media = Arc::new(RamMedia::new(64 << 20).unwrap());
    block::mkfs(media.clone(), &MkfsOptions { log_bytes: Some(8 << 20), ..MkfsOptions::default() }).unwrap();
    let fs = Arc::new(Volume::open(media.clone(), OpenOptions::default()).unwrap());
    let mut rig = Rig::new(fs.clone());
    let a = rig.client();
    // With holes, in which nothing may be promised.
    let file = a.open("f", NEW).unwrap();
    for i in (0..1000u64).filter(|i| i % 5 != 0) {
        file.write_all_at(&page(0), i * PAGE as u64).unwrap();
    }
    for _ in 0..4 {
        file.write_all_at(&page(0), PAGE as u64).unwrap();
        file.write_all_at(&page(0), 601 * PAGE as u64).unwrap();
    }
    assert!(rig.doors.lends());
    let filler = rig.beside.open("filler", NEW).unwrap();
    let mut version = 0;
    for round in 0..6 {
        let mut at = filler.metadata().unwrap().size;
        for len in [1 << 20, 16 * PAGE, PAGE] {
            loop {
                match filler.write_all_at(&vec![1; len], at) {
                    Ok(()) => at += len as u64,
                    Err(Error::NoSpace) => break,
                    Err(e) => panic!("{e}"),
                }
            }
        }
        version += 1000;
        for i in (0..1000u64).filter(|i| i % 5 != 0) {
            file.write_all_at(&page(version + i), i * PAGE as u64).unwrap();
        }
        // More than has been set aside for what is posted.
        let hole = file.write_all_at(&vec![1; 8 << 20], 1000 * PAGE as u64);
        assert!(matches!(hole, Err(Error::NoSpace)), "{hole:?}");
        match round % 3 {
            0 => filler.fsync().unwrap(),
            1 => file.fsync().unwrap(),
            _ => drop(rig.beside.stat("f").unwrap()),
        }
        let seen = rig.beside.open("f", RW).unwrap();
        let mut bytes = vec![0; PAGE];
        for i in (0..1000u64).filter(|i| i % 5 != 0) {
            seen.read_at(&mut bytes, i * PAGE as u64).unwrap();
            assert!(bytes == page(version + i), "page {i} in round {round}");
        }
    }
    drop((file, filler, a));
    drop(rig.server.take());
    fs.close_blocking().unwrap();
    drop((rig, fs));
    let report = block::fsck::check(media, &Default::default(), &mut |_| {}).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn directories_are_listed_where_nothing_can_be_written() {
    let (flash, fs) = volume_on_flash(128 << 20);
    let rig = Rig::new(fs);
    let a = rig.client();
    let file = leased(&rig, &a, "f", 64);
    rig.beside.sync().unwrap();
    let failure = Failure::Errno(libc::EIO);
    flash.inject(Fault { op: Some(media::Op::Write), range: None, after: 0, forever: true, failure });
    file.write_all_at(&page(1), 0).unwrap();
    assert!(rig.beside.sync().is_err());
    file.write_all_at(&page(2), 0).unwrap();
    let (lists, listed) = mpsc::channel();
    let (through_session, beside) = (lists.clone(), rig.beside.clone());
    std::thread::spawn(move || lists.send(beside.read_dir("/").unwrap().count()));
    assert_eq!(listed.recv_timeout(Duration::from_secs(5)), Ok(1));
    let session = rig.client();
    std::thread::spawn(move || through_session.send(session.read_dir("/").unwrap().count()));
    assert_eq!(listed.recv_timeout(Duration::from_secs(5)), Ok(1));
    assert!(rig.doors.lends(), "what could not be written is kept");
}
