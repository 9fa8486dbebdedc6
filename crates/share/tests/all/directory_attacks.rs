//! Directory leases in the hands of clients that do not keep to the rules, written without the client's code: raw memory and a raw socket.
//!
//! Verifies that what is posted without a lease, under one that is over, or with inodes that were not promised to this session does nothing; that numbers that
//! repeat or jump, slots that are posted twice, and calls of all kinds in the stream harm nobody else; that leases and promises are bounded and come
//! back; that none of two waits for the other for ever; that data goes only where there is room for it, into files that were made under that very lease; and that what a client had posted when it was killed is done. The rest of the threat model: tests/all/hostile.rs.

mod lent;

use crate::attacker::*;
use crate::rig::between::{Between, Moment};
use block::{MkfsOptions, OpenOptions, Volume};
use format::shared::*;
use fs::client::OpenOptions as Open;
use fs::watched::Watched;
use fs::{Blocking, Client, Cred, Time};
use lent::*;
use media::RamMedia;
use share::{Remote, Server, server::Options};
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const NEW: Open = Open::new().read(true).write(true).create_new(true);

struct Rig {
    server: Server,
    doors: Watched<Volume>,
    beside: Blocking<Watched<Volume>>,
    _dir: tempfile::TempDir,
}

/// A server, and some directories.
fn rig(dirs: &[&str]) -> (Rig, Vec<u64>) {
    let dir = tempfile::tempdir().unwrap();
    let media = Arc::new(RamMedia::new(64 << 20).unwrap());
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    let doors = Watched::new(Arc::new(Volume::open(media, OpenOptions::default()).unwrap()));
    let (directories_max, new_files_max, directory_pause) = (64, 1024, Duration::ZERO);
    let options = Options { directories_max, new_files_max, directory_pause, ..Options::default() };
    let server = Server::start_at_door(doors.door(), &dir.path().join("socket"), options).unwrap();
    let beside = Client::new(Arc::new(doors.clone()), Cred::root()).blocking();
    let inodes = dirs.iter().map(|name| {
        beside.mkdir(name, 0o755).unwrap();
        beside.stat(name).unwrap().ino.0
    });
    let inodes = inodes.collect();
    (Rig { server, doors, beside, _dir: dir }, inodes)
}

impl Rig {
    /// Somebody who behaves is served, with a lease.
    fn still_there(&self) {
        let fs = Client::new(Arc::new(Remote::connect(self.server.path()).unwrap()), Cred::root()).blocking();
        let name = format!("still{}", self.beside.statfs().unwrap().inodes_free);
        fs.mkdir(&name, 0o755).unwrap();
        for i in 0..200 {
            fs.open(format!("{name}/{i}"), NEW).unwrap();
            if i % 2 == 0 {
                fs.unlink(format!("{name}/{i}")).unwrap();
            }
        }
        assert_eq!(self.names(&name), 100);
        self.beside.sync().unwrap();
    }
    fn names(&self, dir: &str) -> usize {
        self.beside.read_dir(dir).unwrap().count()
    }
    fn eventually(&self, what: impl Fn() -> bool, why: &str) {
        let begun = Instant::now();
        while !what() {
            assert!(begun.elapsed() < Duration::from_secs(10), "{why}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn what_is_not_lent_or_promised() {
    let (rig, dirs) = rig(&["d", "e"]);
    let (one, two) = (Attacker::new(rig.server.path()), Attacker::new(rig.server.path()));
    let lent = one.lend(dirs[0], 0).unwrap();
    let theirs = two.lend(dirs[1], 0).unwrap();
    assert!(two.lend(dirs[0], 1).is_none(), "two leases on one directory");
    for (number, ino, dir) in [
        (0, lent.inodes[0], dirs[0]),
        (lent.number, 0, dirs[0]),
        (lent.number, u64::MAX, dirs[0]),
        (lent.number, 1, dirs[0]),
        (lent.number, dirs[0], dirs[0]),
        (lent.number, theirs.inodes[0], dirs[0]),
        (lent.number, lent.inodes[1], dirs[1]),
        (theirs.number, lent.inodes[2], dirs[1]),
        (u64::MAX, lent.inodes[3], dirs[0]),
        (lent.number, lent.inodes[4], u64::MAX),
    ] {
        let r = one.create_under(&Lent { dir, number, inodes: Vec::new() }, ino);
        assert_eq!(one.posted_as(&r, b"f"), libc::ESTALE, "{number} {ino} {dir}");
        for op in [UNLINK, RMDIR] {
            let r = Request { extra: number.into(), ..request(op, dir) };
            if (number, dir) != (lent.number, dirs[0]) {
                assert_eq!(one.posted_as(&r, b"f"), libc::ESTALE);
            }
        }
    }
    assert_eq!(one.posted_as(&one.create_under(&lent, lent.inodes[5]), b"f"), 0);
    assert_eq!(one.posted_as(&one.create_under(&lent, lent.inodes[5]), b"g"), libc::ESTALE, "twice");
    for (name, errno) in [
        (&b"f"[..], libc::EEXIST),
        (b"..", libc::EEXIST),
        (b"a/b", libc::EINVAL),
        (b"", libc::EINVAL),
        (&[b'x'; 256], libc::ENAMETOOLONG),
    ] {
        let more = one.call(&Request { len: 1.into(), ..request(PROMISE, 0) });
        let inodes = Attacker::inodes(&one.payload(more.len.get() as usize));
        assert_eq!(one.posted_as(&one.create_under(&lent, inodes[0]), name), errno);
    }
    let how = Request { flags: 0.into(), ..one.create_under(&lent, lent.inodes[6]) };
    assert_ne!(one.posted_as(&how, b"h"), 0, "neither read nor written");
    // Nobody else's sync tells of all that.
    rig.beside.sync().unwrap();
    assert_eq!((rig.names("d"), rig.names("e")), (1, 0));
    rig.still_there();
}

#[test]
fn trees_of_others_and_times_that_are_not_so() {
    let (rig, dirs) = rig(&["d", "e", "f"]);
    let (one, two) = (Attacker::new(rig.server.path()), Attacker::new(rig.server.path()));
    let begun = Time::now();
    let (lent, also) = (one.lend(dirs[0], 0).unwrap(), one.lend(dirs[1], 1).unwrap());
    let theirs = two.lend(dirs[2], 0).unwrap();
    let mkdir = |lent: &Lent, n: usize| Request {
        op: MKDIR.into(),
        flags: 0.into(),
        ..one.create_under(lent, lent.inodes[n])
    };
    assert_eq!(one.posted_as(&mkdir(&lent, 0), b"x"), 0);
    let within = |number| Lent { dir: lent.inodes[0], number, inodes: Vec::new() };
    // Nobody else's number, nor another of its own, nor another lease on it.
    assert_eq!(
        two.posted_as(&two.create_under(&within(theirs.number), theirs.inodes[0]), b"f"),
        libc::ESTALE
    );
    assert_eq!(two.posted_as(&two.create_under(&within(lent.number), theirs.inodes[1]), b"f"), libc::ESTALE);
    assert_eq!(one.posted_as(&one.create_under(&within(also.number), also.inodes[0]), b"f"), libc::ESTALE);
    assert!(two.lend(lent.inodes[0], 1).is_none());
    assert_eq!(one.posted_as(&one.create_under(&within(lent.number), lent.inodes[1]), b"f"), 0);
    // A file is no directory, and what is not empty stays.
    let in_file = Lent { dir: lent.inodes[1], ..within(lent.number) };
    assert_eq!(one.posted_as(&one.create_under(&in_file, lent.inodes[2]), b"f"), libc::ENOTDIR);
    let remove = |op, dir, number: u64| Request { extra: number.into(), ..request(op, dir) };
    assert_eq!(one.posted_as(&remove(RMDIR, dirs[0], lent.number), b"x"), libc::ENOTEMPTY);
    assert_eq!(one.posted_as(&remove(UNLINK, dirs[0], lent.number), b"x"), libc::EISDIR);
    assert_eq!(one.posted_as(&remove(RMDIR, lent.inodes[0], lent.number), b"f"), libc::ENOTDIR);
    assert_eq!(one.posted_as(&remove(UNLINK, lent.inodes[0], lent.number), b"f"), 0);
    assert_eq!(one.posted_as(&remove(RMDIR, dirs[0], lent.number), b"x"), 0);
    assert_eq!(one.posted_as(&one.create_under(&within(lent.number), lent.inodes[3]), b"f"), libc::ESTALE);
    // When it was made: not before the lease, and not later than now.
    for (n, word) in [0, 1, u64::MAX, u64::MAX / 2, 1_000_000_000].into_iter().enumerate() {
        let name = format!("t{n}");
        assert_eq!(
            one.posted_as(&Request { offset: word.into(), ..mkdir(&lent, 4 + n) }, name.as_bytes()),
            0
        );
    }
    assert_eq!(rig.names("d"), 5);
    for entry in rig.beside.read_dir("d").unwrap() {
        let attr = entry.unwrap().attr;
        assert!(begun <= attr.btime && attr.btime <= Time::now(), "{:?}", attr.btime);
        assert_eq!([attr.atime, attr.mtime, attr.ctime], [attr.btime; 3]);
    }
    // Somebody came to the directory: there is nothing left of the lease.
    assert_eq!(one.posted_as(&remove(RMDIR, dirs[0], lent.number), b"t0"), libc::ESTALE);
    assert_eq!(
        one.posted_as(
            &one.create_under(&Lent { dir: lent.inodes[4], ..within(lent.number) }, lent.inodes[10]),
            b"f"
        ),
        libc::ESTALE
    );
    assert_eq!(rig.names("d/t0"), 0);
    rig.beside.sync().unwrap();
    rig.still_there();
}

#[test]
fn after_the_end() {
    let (rig, dirs) = rig(&["d"]);
    let attacker = Attacker::new(rig.server.path());
    let word = offset_of!(SessionHeader, directories);
    for round in 0..20 {
        let lent = attacker.lend(dirs[0], round % 16).unwrap();
        let word = word + 8 * (round as usize % 16);
        assert_eq!(attacker.long(word).load(Ordering::SeqCst), lent.number);
        // The word says what it likes.
        attacker.long(word).store(if round % 2 == 0 { u64::MAX } else { lent.number }, Ordering::SeqCst);
        assert_eq!(rig.names("d"), 0);
        assert!(!rig.doors.lends_directories());
        attacker.long(word).store(lent.number, Ordering::SeqCst);
        assert_eq!(attacker.posted_as(&attacker.create_under(&lent, lent.inodes[0]), b"f"), libc::ESTALE);
        assert_eq!(rig.names("d"), 0);
    }
    rig.still_there();
}

#[test]
fn numbers_that_repeat_and_jump() {
    let (rig, dirs) = rig(&["d"]);
    let attacker = Attacker::new(rig.server.path());
    let lent = attacker.lend(dirs[0], 0).unwrap();
    for (slot, number) in [5, 5, 0, u64::MAX, 5, 1 << 40, 3, 3].into_iter().enumerate() {
        let r = attacker.create_under(&lent, lent.inodes[slot]);
        attacker.stand_as(slot + 8, &r, format!("f{slot}").as_bytes(), number);
    }
    attacker.send(0xff << 8);
    (8..16).for_each(|slot| assert_eq!(attacker.reply(slot).errno.get(), 0));
    assert_eq!(rig.names("d"), 8);
    rig.still_there();
}

#[test]
fn data_without_room_or_lease() {
    let (rig, dirs) = rig(&["d", "e"]);
    rig.beside.write("other", b"theirs").unwrap();
    let other = rig.beside.stat("other").unwrap().ino.0;
    let (one, two) = (Attacker::new(rig.server.path()), Attacker::new(rig.server.path()));
    let (lent, theirs) = (one.lend(dirs[0], 0).unwrap(), two.lend(dirs[1], 0).unwrap());
    let file = one.made(&lent, lent.inodes[0], b"f");
    let second = two.made(&theirs, theirs.inodes[0], b"g");
    let posted = |r: &Request| one.posted_as(r, b"");
    assert_eq!(posted(&one.write(&lent, file, 0, 10)), libc::ESTALE, "no room");
    for number in [0, u64::MAX, theirs.number] {
        assert_eq!(one.room(number), 0, "{number}");
    }
    let room = one.room(lent.number);
    assert!(room >= 512 && two.room(theirs.number) > 0);
    assert_eq!(one.room(lent.number), room.max(1024), "what there is is counted");
    let open =
        |ino: u64, flags: u32| one.call(&Request { flags: flags.into(), ..request(OPEN, ino) }).value.get();
    let numbers = |number| Lent { dir: dirs[0], number, inodes: Vec::new() };
    let (reads, appends, syncs) =
        (open(lent.inodes[0], 1), open(lent.inodes[0], 2 | 4), open(lent.inodes[0], 2 | 32 | 64));
    for (lent, handle, errno) in [
        (&numbers(0), file, libc::ESTALE),
        (&numbers(theirs.number), file, libc::ESTALE),
        (&numbers(u64::MAX), file, libc::ESTALE),
        (&lent, second, libc::EBADF),
        (&lent, u64::MAX, libc::EBADF),
        (&lent, open(other, 3), libc::ESTALE),
        (&lent, reads, libc::EBADF),
    ] {
        assert_eq!(posted(&one.write(lent, handle, 0, 10)), errno, "{handle}");
    }
    for handle in [appends, syncs] {
        assert_ne!(posted(&one.write(&lent, handle, 0, 10)), 0);
    }
    assert_eq!(posted(&one.write(&lent, file, 0, DATA_MAX + 1)), libc::EINVAL);
    for at in [u64::MAX, u64::MAX - 5, 1 << 60, i64::MAX as u64] {
        assert_ne!(posted(&one.write(&lent, file, at, 10)), 0, "{at}");
    }
    // As much as there is room for and not more, whatever was refused before.
    let (room, mut pieces) = (one.room(lent.number), 0);
    assert_eq!(room, 1024);
    while posted(&one.write(&lent, file, pieces * DATA_MAX as u64, DATA_MAX)) == 0 {
        pieces += 1;
    }
    let pages = DATA_MAX as u64 / 4096;
    assert_eq!(pieces, 1 + (room - pages) / (pages + 1));
    assert_eq!(posted(&one.write(&lent, file, 0, DATA_MAX)), libc::ESTALE);
    rig.beside.sync().unwrap();
    assert_eq!(rig.beside.stat("d/f").unwrap().size, pieces * DATA_MAX as u64);
    assert_eq!(posted(&one.write(&lent, file, 0, 1)), libc::ESTALE, "the lease is over");
    assert_eq!(
        (rig.beside.stat("e/g").unwrap().size, rig.beside.read("other").unwrap()),
        (0, b"theirs".to_vec())
    );
    rig.still_there();
}

#[test]
fn room_in_thousands() {
    let names: Vec<String> = (0..64).map(|i| format!("d{i}")).collect();
    let (rig, dirs) = rig(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let free = rig.beside.statfs().unwrap().blocks_free;
    for _ in 0..20 {
        let attackers: Vec<Attacker> = (0..4).map(|_| Attacker::new(rig.server.path())).collect();
        let mut rooms = Vec::new();
        for (n, &dir) in dirs.iter().enumerate() {
            let attacker = &attackers[n / 16];
            let lent = attacker.lend(dir, n as u32 % 16).unwrap();
            for _ in 0..3 {
                rooms.push(attacker.room(lent.number));
            }
            // Every other lease ends at once, and takes its room along.
            if n % 2 == 0 {
                assert_eq!(rig.names(&names[n]), 0);
                assert_eq!(attacker.room(lent.number), 0);
            }
        }
        assert_eq!(rooms[0], 1024, "nothing of the others' is left");
        assert!(rooms.chunks(3).skip(1).step_by(2).map(|all| all[2]).sum::<u64>() <= 8192);
        assert!(rooms.iter().all(|&room| room <= 1024));
        rig.beside.write("x", vec![1; 1 << 20]).unwrap();
        drop(attackers);
        rig.eventually(
            || rig.server.counters().sessions == 0 && !rig.doors.lends_directories(),
            "leases are left",
        );
    }
    rig.still_there();
    // All of it can be written to now.
    rig.beside.unlink("x").unwrap();
    rig.beside.sync().unwrap();
    assert!(rig.beside.statfs().unwrap().blocks_free + 2000 > free);
    rig.beside.write("y", vec![1; 40 << 20]).unwrap();
}

#[test]
fn everything_at_once() {
    let (rig, dirs) = rig(&["d", "e"]);
    let attacker = Attacker::new(rig.server.path());
    let mut random = 0x9E37_79B9u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        for slot in 0..64 {
            let r = Request {
                op: ((next() % OPS as u64) as u16).into(),
                second: (next() as u32 % 3000).into(),
                offset: (next() % 20_000).into(),
                object: [dirs[0], dirs[1], 1, next() % 300][next() as usize % 4].into(),
                other: (next() % 600).into(),
                extra: (next() % 40).into(),
                mode: (next() as u32 % 20).into(),
                flags: (next() as u32 % 4).into(),
                len: (next() % 200).into(),
                ..request(1, 0)
            };
            // Those that would wait for a lock for ever are not of interest here.
            if !matches!(r.op.get(), 35..=37) {
                attacker.stand_as(slot, &r, &b"abcdefgh"[..next() as usize % 8], next() % 4);
            }
        }
        attacker.send(next() | next() << 32);
        attacker.long(offset_of!(SessionHeader, doorbell)).fetch_or(next() | next() << 32, Ordering::SeqCst);
        attacker.long(offset_of!(SessionHeader, cancel)).fetch_or(next() | next() << 32, Ordering::SeqCst);
        attacker.ring(0);
        rig.beside.stat("d").ok();
        rig.beside.sync().unwrap();
    }
    rig.still_there();
    drop(attacker);
    rig.eventually(|| rig.server.counters().sessions <= 1, "its session ends");
    rig.still_there();
}

#[test]
fn thousands_of_leases_and_promises() {
    let names: Vec<String> = (0..200).map(|i| format!("d{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (rig, dirs) = rig(&names);
    let before = rig.beside.statfs().unwrap();
    let attackers: Vec<Attacker> = (0..12).map(|_| Attacker::new(rig.server.path())).collect();
    let mut promised = 0;
    for (n, attacker) in attackers.iter().enumerate() {
        let mut of_one = 0;
        for round in 0..100 {
            if let Some(lent) = attacker.lend(dirs[(n * 16 + round) % 200], round as u32 % 16) {
                of_one += lent.inodes.len();
            }
            let more = attacker.call(&Request { len: u64::MAX.into(), ..request(PROMISE, 0) });
            of_one += more.len.get() as usize / 24;
        }
        assert!((16..=256).contains(&of_one), "{of_one} promised to one");
        promised += of_one;
    }
    println!("{promised} promised");
    for place in [16, 17, u32::MAX] {
        let r = Request { mode: place.into(), ..request(LEND, dirs[0]) };
        assert_eq!(attackers[0].call(&r).errno.get(), libc::EINVAL);
    }
    for ino in [0, u64::MAX, 1 << 32] {
        assert_eq!(attackers[0].call(&request(LEND, ino)).value.get(), 0);
    }
    rig.still_there();
    drop(attackers);
    rig.eventually(
        || rig.server.counters().sessions == 0 && !rig.doors.lends_directories(),
        "leases are left",
    );
    rig.still_there();
    let after = rig.beside.statfs().unwrap();
    assert!(
        before.inodes - before.inodes_free + 250 > after.inodes - after.inodes_free,
        "{before:?} {after:?}"
    );
}

#[test]
fn handles_closed_without_a_request() {
    let (rig, dirs) = rig(&["d", "e"]);
    let (one, two) = (Attacker::new(rig.server.path()), Attacker::new(rig.server.path()));
    let (lent, theirs) = (one.lend(dirs[0], 0).unwrap(), two.lend(dirs[1], 0).unwrap());
    assert!(one.room(lent.number) > 10 && two.room(theirs.number) > 10);
    let mine: Vec<u64> = (0..4).map(|n| one.made(&lent, lent.inodes[n], &[b'a' + n as u8])).collect();
    let other = two.made(&theirs, theirs.inodes[0], b"t");
    let closes = one.long(offset_of!(SessionHeader, closes));
    let closed = one.long(offset_of!(SessionHeader, closed));
    let write = |handle: u64, behind: u64| {
        let nth = closes.load(Ordering::SeqCst);
        let at = offset_of!(SessionHeader, closing) + nth as usize % CLOSING * 16;
        one.long(at).store(handle, Ordering::SeqCst);
        one.long(at + 8).store(behind, Ordering::SeqCst);
        closes.store(nth.wrapping_add(1), Ordering::SeqCst);
    };
    let put = |handles: &[u64]| {
        // Behind anything.
        handles.iter().for_each(|&handle| write(handle, handle.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        one.ring(0);
        rig.eventually(|| closed.load(Ordering::SeqCst) == closes.load(Ordering::SeqCst), "it is not done");
    };
    let writes = |handle: u64| one.posted(&one.write(&lent, handle, 0, 10));
    put(&[mine[0], mine[0], other, 0, u64::MAX, mine[1]]);
    assert_eq!((writes(mine[0]), writes(mine[1])), (libc::EBADF, libc::EBADF));
    assert_eq!((writes(mine[2]), two.posted(&two.write(&theirs, other, 0, 10))), (0, 0));
    // More than there is room for, also backwards, is nothing; and the manager does not go on with it for ever.
    for to in [1 << 40, 3, u64::MAX, u64::MAX - 1, closes.load(Ordering::SeqCst) + CLOSING as u64 + 1] {
        closes.store(to, Ordering::SeqCst);
        // It may sleep already, and is woken then: the second sleep is one of which all lies behind that.
        let before = rig.server.stats().sleeps;
        let rests = || {
            one.ring(0);
            rig.server.stats().sleeps > before + 1
        };
        rig.eventually(rests, "it does not come to rest");
    }
    assert_eq!((writes(mine[2]), writes(mine[3])), (0, 0));
    put(&[mine[2]]);
    assert_eq!((writes(mine[2]), writes(mine[3])), (libc::EBADF, 0));
    // Between what was posted before and after it, while the manager sleeps.
    rig.eventually(|| one.word(offset_of!(SessionHeader, asleep)).load(Ordering::SeqCst) != 0, "it is awake");
    std::thread::sleep(Duration::from_millis(20));
    for (slot, number) in [(3, 7), (4, 9)] {
        one.stand_as(slot, &one.write(&lent, mine[3], 5, 10), b"", number);
    }
    write(mine[3], 8);
    one.send(1 << 3 | 1 << 4);
    assert_eq!((one.reply(3).errno.get(), one.reply(4).errno.get()), (0, libc::EBADF));
    // A full ring.
    put(&[other; CLOSING]);
    rig.still_there();
    drop((one, two));
    rig.eventually(|| rig.server.counters().sessions == 0, "a session is left");
    assert_eq!((rig.names("d"), rig.names("e")), (4, 1));
}

#[test]
fn killed_with_a_full_stream() {
    let (rig, dirs) = rig(&["d"]);
    for round in 0..30 {
        let attacker = Attacker::new(rig.server.path());
        let lent = attacker.lend(dirs[0], 0).unwrap();
        assert!(attacker.room(lent.number) > 100);
        let file = attacker.made(&lent, lent.inodes[15], format!("data{round}").as_bytes());
        for slot in 0..15 {
            let r = attacker.create_under(&lent, lent.inodes[slot]);
            attacker.stand_as(slot, &r, format!("f{round}-{slot}").as_bytes(), slot as u64);
            let r = attacker.write(&lent, file, 100 * slot as u64, 100);
            attacker.stand_as(20 + slot, &r, b"", 100 + slot as u64);
            attacker.bytes(PAYLOAD_AT + (20 + slot) * PAYLOAD_MAX, &[slot as u8; 100]);
        }
        // Nobody is woken.
        let all = 0x7fff | 0x7fff << 20;
        attacker.long(offset_of!(SessionHeader, one_way)).fetch_or(all, Ordering::SeqCst);
        drop(attacker);
        assert_eq!(rig.names("d"), 16 * (round + 1));
        let want: Vec<u8> = (0..1500).map(|i| (i / 100) as u8).collect();
        assert!(rig.beside.read(format!("d/data{round}")).unwrap() == want);
    }
    rig.still_there();
}

/// Two that have leases on directories in each other's post that these are removed, before the manager looks: neither waits for what the other one has posted.
#[test]
fn two_who_remove_each_others_directories() {
    let (rig, dirs) = rig(&["d", "e", "d/x", "e/y", "other"]);
    let [d, e, x, y, other] = dirs[..] else { panic!() };
    let (one, two) = (Attacker::new(rig.server.path()), Attacker::new(rig.server.path()));
    let (first, second) = (one.lend(d, 0).unwrap(), two.lend(e, 0).unwrap());
    assert!(one.lend(y, 1).is_some() && two.lend(x, 1).is_some());
    let between = Arc::new(Between::default());
    rig.doors.door().watch(between.clone());
    let (reaches, reached) = mpsc::channel();
    let (goes_on, waits) = mpsc::channel();
    between.at(Moment::Changes(fs::Ino(other)), move || {
        reaches.send(()).unwrap();
        waits.recv_timeout(Duration::from_secs(10)).unwrap();
    });
    let third = Attacker::new(rig.server.path());
    third.bytes(PAYLOAD_AT, b"user.ax");
    let set = Request { first: 6.into(), second: 1.into(), ..request(SETXATTR, other) };
    third.post(0, &set);
    reached.recv_timeout(Duration::from_secs(10)).unwrap();
    for (who, lent, name) in [(&one, &first, b"x"), (&two, &second, b"y")] {
        let r = Request { extra: lent.number.into(), ..request(RMDIR, lent.dir) };
        who.stand_as(3, &r, name, 1);
        who.send(1 << 3);
    }
    goes_on.send(()).unwrap();
    assert_eq!(third.reply(0).errno.get(), 0);
    assert_eq!([one.reply(3).errno.get(), two.reply(3).errno.get()], [libc::ESTALE; 2]);
    // Nor does anybody who waits for both.
    rig.beside.sync().unwrap();
    rig.beside.rmdir("d/x").unwrap();
    rig.beside.rmdir("e/y").unwrap();
    rig.still_there();
}

/// Two that have leases on directories in each other's empty files there by messages (creates), and post what needs the turns of these names while that waits.
#[test]
fn two_who_empty_what_the_other_has() {
    let (rig, dirs) = rig(&["d", "e", "d/x", "e/y", "other"]);
    let [d, e, x, y, other] = dirs[..] else { panic!() };
    let (one, two) = (Attacker::new(rig.server.path()), Attacker::new(rig.server.path()));
    let (first, second) = (one.lend(d, 0).unwrap(), two.lend(e, 0).unwrap());
    assert!(one.lend(y, 1).is_some() && two.lend(x, 1).is_some());
    let third = Attacker::new(rig.server.path());
    let (between, (reaches, reached)) = (Arc::new(Between::default()), mpsc::channel());
    rig.doors.door().watch(between.clone());
    // The manager waits here twice: what comes before the second time it takes together, and what comes then it finds when it looks who waits for what was posted.
    let goes_on = [(); 2].map(|()| {
        let (reaches, (goes_on, waits)) = (reaches.clone(), mpsc::channel());
        between.at(Moment::Changes(fs::Ino(other)), move || {
            reaches.send(()).unwrap();
            waits.recv_timeout(Duration::from_secs(10)).unwrap();
        });
        goes_on
    });
    let reach = |slot: usize| {
        third.bytes(PAYLOAD_AT + slot * PAYLOAD_MAX, b"user.ax");
        let set = Request { first: 6.into(), second: 1.into(), ..request(SETXATTR, other) };
        third.post(slot, &set);
    };
    let all = [(&one, &first, b"x"), (&two, &second, b"y")];
    reach(0);
    reached.recv_timeout(Duration::from_secs(10)).unwrap();
    for (who, lent, name) in all {
        who.bytes(PAYLOAD_AT + 4 * PAYLOAD_MAX, name);
        // For writing, emptied.
        let r =
            Request { first: 1.into(), mode: 0o644.into(), flags: (2 | 8).into(), ..request(MAKE, lent.dir) };
        who.post(4, &r);
    }
    reach(1);
    goes_on[0].send(()).unwrap();
    reached.recv_timeout(Duration::from_secs(10)).unwrap();
    for (who, lent, name) in all {
        who.stand_as(3, &Request { extra: lent.number.into(), ..request(UNLINK, lent.dir) }, name, 1);
        who.send(1 << 3);
    }
    goes_on[1].send(()).unwrap();
    for (who, ..) in all {
        assert_eq!([who.reply(3).errno.get(), who.reply(4).errno.get()], [libc::EISDIR; 2]);
    }
    rig.beside.sync().unwrap();
    rig.still_there();
}
