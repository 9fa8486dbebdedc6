//! New files under leases in the hands of clients that do not keep to the rules, written without the client's code: raw memory and a raw socket.
//!
//! Verifies, also of files that were there and are lent to who writes to them, that only who asks for it, and opens a new file for writing, has one lent; that what is posted by another session, through another handle, with other numbers, without room,
//! after the file was closed or after somebody else came to it does nothing; that new files are bounded; that creates that are given up leave
//! no lease behind; and that what a client had posted when it was killed is done. Directories: tests/all/directory_attacks.rs.

use crate::attacker::*;
use block::{MkfsOptions, OpenOptions, Volume};
use format::shared::*;
use fs::watched::Watched;
use fs::{Blocking, Client, Cred, OpenFlags};
use media::RamMedia;
use share::{Server, server::Options};
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const CREATE: u16 = 16;
const POST_WRITE: u16 = 45;
const ROOM: u16 = 46;
const FILES_MAX: usize = 100;
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

struct Rig {
    server: Server,
    doors: Watched<Volume>,
    beside: Blocking<Watched<Volume>>,
    _dir: tempfile::TempDir,
}

fn rig() -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let media = Arc::new(RamMedia::new(64 << 20).unwrap());
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    let doors = Watched::new(Arc::new(Volume::open(media, OpenOptions::default()).unwrap()));
    let options = Options { new_files_max: FILES_MAX, ..Options::default() };
    let server = Server::start_at_door(doors.door(), &dir.path().join("socket"), options).unwrap();
    let beside = Client::new(Arc::new(doors.clone()), Cred::root()).blocking();
    Rig { server, doors, beside, _dir: dir }
}

impl Rig {
    fn attacker(&self) -> Attacker {
        Attacker::new(self.server.path())
    }
    fn size(&self, name: &str) -> u64 {
        self.beside.stat(name).unwrap().size
    }
    fn eventually(&self, what: impl Fn() -> bool, why: &str) {
        let begun = Instant::now();
        while !what() {
            assert!(begun.elapsed() < Duration::from_secs(10), "{why}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A file that was made, and its lease.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Made {
    handle: u64,
    lease: u64,
    room: u64,
}

fn create(name: &str, flags: OpenFlags, posts: u64) -> Request {
    let r = Request { mode: 0o644.into(), flags: flags.bits().into(), ..request(CREATE, 1) };
    Request { extra: posts.into(), first: (name.len() as u16).into(), ..r }
}

impl Attacker {
    fn create(&self, name: &str, flags: OpenFlags, posts: u64) -> Made {
        self.bytes(PAYLOAD_AT, name.as_bytes());
        let reply = self.call(&create(name, flags, posts));
        assert_eq!(reply.errno.get(), 0, "{name}");
        Made { handle: reply.value.get(), lease: reply.lent.get(), room: reply.lent_room.get() }
    }
    fn lent(&self) -> &std::sync::atomic::AtomicU64 {
        self.long(offset_of!(SessionHeader, directories) + 8 * NEW_FILES)
    }
}

fn write(made: Made, offset: u64, len: usize) -> Request {
    let r = Request { offset: offset.into(), extra: made.lease.into(), ..request(POST_WRITE, made.handle) };
    Request { second: (len as u32).into(), more: 1.into(), ..r }
}

#[test]
fn who_has_a_new_file_lent() {
    let rig = rig();
    rig.beside.write("there", b"before").unwrap();
    let (one, two) = (rig.attacker(), rig.attacker());
    for (name, flags, posts, is_lent) in [
        ("a", RW, 1, true),
        ("b", RW, 0, false),
        ("c", RW, 2, false),
        ("d", OpenFlags::READ, 1, false),
        ("e", OpenFlags::WRITE | OpenFlags::EXCLUSIVE, 1, true),
        ("there", RW, 1, false),
        ("a", RW, 1, false),
        ("there", RW | OpenFlags::TRUNCATE, 1, false),
    ] {
        let made = one.create(name, flags, posts);
        assert_eq!(made.lease != 0, is_lent, "{name} {posts}");
        if !is_lent {
            assert_eq!(
                one.posted(&write(Made { lease: one.lent().load(Ordering::SeqCst), ..made }, 0, 10)),
                match flags {
                    OpenFlags::READ => libc::ESTALE,
                    // The file is lent, but was made through another handle: whose data counts all the same.
                    _ if name == "a" => 0,
                    _ => libc::ESTALE,
                }
            );
        }
    }
    for flags in [OpenFlags::APPEND, OpenFlags::SYNC | OpenFlags::DSYNC, OpenFlags::DIRECT] {
        let made = one.create(&format!("{flags:?}"), RW | flags, 1);
        assert!(made.lease == 0 || one.posted(&write(made, 0, 10)) != 0, "{flags:?}");
    }
    assert_eq!(
        one.call(&Request { extra: 1.into(), ..create("", OpenFlags::empty(), 1) }).errno.get(),
        libc::EINVAL
    );
    let theirs = two.create("theirs", RW, 1);
    let mine = one.create("mine", RW, 1);
    assert_ne!(theirs.lease, mine.lease);
    for (made, errno) in [
        (Made { lease: 0, ..mine }, libc::ESTALE),
        (Made { lease: u64::MAX, ..mine }, libc::ESTALE),
        (Made { lease: theirs.lease, ..mine }, libc::ESTALE),
        (Made { handle: theirs.handle, ..mine }, libc::EBADF),
        (theirs, libc::EBADF),
        (Made { handle: u64::MAX, ..mine }, libc::EBADF),
    ] {
        assert_eq!(one.posted(&write(made, 0, 10)), errno);
    }
    assert_eq!(one.posted(&write(mine, 0, 10)), 0);
    assert_eq!((rig.size("mine"), rig.size("theirs")), (10, 0));
    rig.beside.sync().unwrap();
}

#[test]
fn after_the_end() {
    let rig = rig();
    let attacker = rig.attacker();
    for round in 0..40 {
        let name = format!("f{round}");
        let made = attacker.create(&name, RW, 1);
        assert_eq!(attacker.lent().load(Ordering::SeqCst), made.lease);
        // The word says what it likes.
        attacker.lent().store(if round % 2 == 0 { u64::MAX } else { made.lease }, Ordering::SeqCst);
        if round % 4 < 2 {
            assert_eq!(rig.size(&name), 0);
        } else {
            assert_eq!(attacker.call(&request(RELEASE, made.handle)).errno.get(), 0);
        }
        assert!(!rig.doors.lends());
        attacker.lent().store(made.lease, Ordering::SeqCst);
        let errno = if round % 4 < 2 { libc::ESTALE } else { libc::EBADF };
        assert_eq!(attacker.posted(&write(made, 0, 10)), errno);
        assert_eq!(rig.size(&name), 0);
    }
}

#[test]
fn room_is_counted() {
    let rig = rig();
    let free = rig.beside.statfs().unwrap().blocks_free;
    let attacker = rig.attacker();
    let made = attacker.create("f", RW, 1);
    assert!((1..=1024).contains(&made.room));
    let (mut room, mut at) = (made.room, 0);
    for _ in 0..3 {
        while attacker.posted(&write(made, at, DATA_MAX)) == 0 {
            room = room.checked_sub(fs::room_for(at, DATA_MAX)).expect("more than there was room for");
            at += DATA_MAX as u64;
        }
        assert!(room < fs::room_for(at, DATA_MAX), "{room} left");
        assert_eq!(attacker.posted(&write(made, at, DATA_MAX)), libc::ESTALE);
        let reply = attacker.call(&Request { extra: made.lease.into(), ..request(ROOM, 0) });
        room = reply.value.get();
        assert!(room <= 1024);
    }
    for at in [u64::MAX, u64::MAX - 5, i64::MAX as u64] {
        assert_ne!(attacker.posted(&write(made, at, 10)), 0, "{at}");
    }
    assert_eq!(attacker.posted(&write(made, 0, DATA_MAX + 1)), libc::EINVAL);
    assert_eq!(rig.size("f"), at);
    drop(attacker);
    rig.eventually(|| rig.server.counters().sessions == 0 && !rig.doors.lends(), "a lease is left");
    // Sessions in hundreds: what they do not use is there for others.
    for _ in 0..10 {
        let many: Vec<Attacker> = (0..60).map(|_| rig.attacker()).collect();
        let made = many.iter().enumerate().map(|(n, a)| a.create(&format!("m{n}"), RW, 1));
        let made: Vec<Made> = made.collect();
        let of_all = |made: &[Made]| made.iter().map(|made| made.room).sum::<u64>();
        assert!((4096..=8192).contains(&of_all(&made)), "{}", of_all(&made));
        // Who has closed what he made keeps no room that others want.
        for (attacker, made) in many.iter().zip(&made) {
            assert_eq!(attacker.call(&request(RELEASE, made.handle)).errno.get(), 0);
        }
        assert!(!rig.doors.lends());
        let late: Vec<Attacker> = (0..8).map(|_| rig.attacker()).collect();
        let made: Vec<Made> =
            late.iter().enumerate().map(|(n, a)| a.create(&format!("l{n}"), RW, 1)).collect();
        assert_eq!(of_all(&made), 8 * 256);
        (0..8).for_each(|n| rig.beside.unlink(format!("l{n}")).unwrap());
        (0..60).for_each(|n| rig.beside.unlink(format!("m{n}")).unwrap());
        drop((many, late));
        rig.eventually(|| rig.server.counters().sessions == 0 && !rig.doors.lends(), "leases are left");
    }
    rig.beside.unlink("f").unwrap();
    rig.beside.sync().unwrap();
    assert!(rig.beside.statfs().unwrap().blocks_free + 2000 > free);
    rig.beside.write("y", vec![1; 40 << 20]).unwrap();
}

#[test]
fn files_in_thousands() {
    let rig = rig();
    let attacker = rig.attacker();
    let all: Vec<Made> = (0..1000).map(|i| attacker.create(&format!("f{i}"), RW, 1)).collect();
    assert_eq!(all.iter().filter(|made| made.lease != 0).count(), FILES_MAX);
    // What is closed makes room for others.
    for made in &all[..50] {
        assert_eq!(attacker.call(&request(RELEASE, made.handle)).errno.get(), 0);
    }
    let more = (0..1000).map(|i| attacker.create(&format!("g{i}"), RW, 1));
    assert_eq!(more.filter(|made| made.lease != 0).count(), 50);
    drop(attacker);
    rig.eventually(|| rig.server.counters().sessions == 0 && !rig.doors.lends(), "leases are left");
}

/// A write by a message, with which the file is asked for.
fn asks(handle: u64, extra: u64) -> Request {
    Request { second: 10.into(), extra: extra.into(), ..request(WRITE, handle) }
}

#[test]
fn files_that_are_there() {
    let rig = rig();
    let names = ["f", "g", "h", "open", "late"];
    // Looking for one of them later would end the lease.
    let inos = names.map(|name| {
        rig.beside.write(name, b"before").unwrap();
        rig.beside.stat(name).unwrap().ino.0
    });
    let ino = |name: &str| inos[names.iter().position(|&known| known == name).unwrap()];
    let (one, two) = (rig.attacker(), rig.attacker());
    let open = |who: &Attacker, name: &str, flags: OpenFlags| {
        let reply = who.call(&Request { flags: flags.bits().into(), ..request(OPEN, ino(name)) });
        assert_eq!(reply.errno.get(), 0, "{name}");
        reply.value.get()
    };
    let lent = |who: &Attacker, r: &Request| {
        let reply = who.call(r);
        let made = Made { handle: r.object.get(), lease: reply.lent.get(), room: reply.lent_room.get() };
        (reply.errno.get(), made)
    };
    let f = open(&one, "f", RW);
    for extra in [0, 2, u64::MAX] {
        assert_eq!(lent(&one, &asks(f, extra)).1.lease, 0, "{extra}");
    }
    let (errno, made) = lent(&one, &asks(f, 1));
    assert!(errno == 0 && made.lease != 0 && made.lease == one.lent().load(Ordering::SeqCst));
    assert!((1..=1024).contains(&made.room));
    assert_eq!(one.posted(&write(made, 100, 10)), 0);
    // Once more, and by another handle: it is lent, and there is nothing new to tell.
    let again = open(&one, "f", RW);
    for handle in [f, again] {
        let (errno, told) = lent(&one, &asks(handle, 1));
        assert_eq!((errno, told.lease, told.room), (0, made.lease, 0));
    }
    // What others have open, or may not be written through.
    let theirs = open(&two, "open", RW);
    assert_eq!(lent(&one, &asks(open(&one, "open", RW), 1)).1.lease, 0);
    for (handle, errno) in
        [(theirs, libc::EBADF), (u64::MAX, libc::EBADF), (open(&one, "g", OpenFlags::READ), libc::EBADF)]
    {
        let (failed, none) = lent(&one, &asks(handle, 1));
        assert_eq!((failed, none.lease), (errno, 0));
    }
    for (name, flags) in [("g", OpenFlags::APPEND), ("h", OpenFlags::SYNC | OpenFlags::DSYNC)] {
        let (_, made) = lent(&one, &asks(open(&one, name, RW | flags), 1));
        assert!(made.lease == 0 || one.posted(&write(made, 0, 10)) != 0, "{flags:?}");
    }
    // Where it is opened on the way.
    let opens = Request { flags: OPENS.into(), mode: RW.bits().into(), ..asks(ino("late"), 1) };
    let reply = two.call(&opens);
    let made = Made { handle: reply.handle.get(), lease: reply.lent.get(), room: 0 };
    assert!(reply.errno.get() == 0 || made.lease == 0);
    if made.lease != 0 {
        assert_eq!(two.posted(&write(made, 0, 10)), 0);
    }
    // Somebody comes, or it is closed.
    assert_eq!(rig.size("f"), 110);
    one.lent().store(made.lease, Ordering::SeqCst);
    assert_eq!(one.posted(&write(Made { handle: f, ..made }, 0, 10)), libc::ESTALE);
    assert_eq!(one.call(&request(RELEASE, again)).errno.get(), 0);
    let (_, made) = lent(&one, &asks(f, 1));
    assert_ne!(made.lease, 0);
    assert_eq!(one.call(&request(RELEASE, f)).errno.get(), 0);
    assert_eq!(one.posted(&write(made, 0, 10)), libc::EBADF);
    drop((one, two));
    rig.eventually(|| rig.server.counters().sessions == 0 && !rig.doors.lends(), "leases are left");
    rig.beside.sync().unwrap();
}

#[test]
fn files_that_are_there_in_thousands() {
    let rig = rig();
    let attacker = rig.attacker();
    let all: Vec<u64> = (0..400).map(|i| attacker.create(&format!("f{i}"), RW, 0).handle).collect();
    let is_lent = |&handle: &u64| attacker.call(&asks(handle, 1)).lent.get() != 0;
    assert_eq!(all.iter().filter(|handle| is_lent(handle)).count(), FILES_MAX);
    for handle in &all[..50] {
        assert_eq!(attacker.call(&request(RELEASE, *handle)).errno.get(), 0);
    }
    assert_eq!(all[100..].iter().filter(|handle| is_lent(handle)).count(), 50);
    // Given up in the middle, and closed.
    for round in 0..100 {
        for slot in 0..40 {
            let handle = all[50 + (round * 7 + slot) % 300];
            attacker.stand(slot, &asks(handle, 1));
        }
        attacker.ring((1 << 40) - 1);
        attacker.long(offset_of!(SessionHeader, cancel)).fetch_or((1 << 40) - 1, Ordering::SeqCst);
        attacker.ring(0);
        for slot in 0..40 {
            attacker.reply(slot);
        }
        if round % 10 == 0 {
            (50..100).for_each(|i| drop(rig.beside.read(format!("f{i}"))));
        }
    }
    drop(attacker);
    rig.eventually(|| rig.server.counters().sessions == 0 && !rig.doors.lends(), "leases are left");
    rig.beside.sync().unwrap();
}

#[test]
fn creates_that_are_given_up() {
    let rig = rig();
    let attacker = rig.attacker();
    for round in 0..300 {
        for slot in 0..40 {
            let name = format!("f{}", (round * 7 + slot) % 60);
            attacker.bytes(PAYLOAD_AT + slot * PAYLOAD_MAX, name.as_bytes());
            attacker.stand(slot, &create(&name, RW, 1));
        }
        attacker.ring((1 << 40) - 1);
        attacker.long(offset_of!(SessionHeader, cancel)).fetch_or((1 << 40) - 1, Ordering::SeqCst);
        attacker.ring(0);
        for slot in 0..40 {
            let reply = attacker.reply(slot);
            if reply.errno.get() == 0 {
                attacker.call(&request(RELEASE, reply.value.get()));
            }
        }
        if round % 3 == 0 {
            (0..60).for_each(|i| drop(rig.beside.unlink(format!("f{i}"))));
        }
    }
    // One that was given up when the file was there leaves it to whoever comes to it.
    (0..60).for_each(|i| drop(rig.beside.read(format!("f{i}"))));
    rig.eventually(|| !rig.doors.lends(), "a lease is left");
    drop(attacker);
    rig.eventually(|| rig.server.counters().sessions == 0, "its session ends");
    (0..60).for_each(|i| drop(rig.beside.unlink(format!("f{i}"))));
    rig.beside.sync().unwrap();
    assert_eq!(rig.beside.read_dir("/").unwrap().count(), 0);
}

#[test]
fn killed_with_a_full_stream() {
    let rig = rig();
    for round in 0..40 {
        let attacker = rig.attacker();
        let name = format!("f{round}");
        let made = attacker.create(&name, RW, 1);
        for slot in 10..30 {
            let r = write(made, 100 * (slot as u64 - 10), 100);
            attacker.stand(slot, &Request { more: (slot as u64).into(), ..r });
            attacker.bytes(PAYLOAD_AT + slot * PAYLOAD_MAX, &[slot as u8; 100]);
        }
        if round % 2 == 0 {
            attacker.stand(30, &Request { more: 30.into(), ..request(RELEASE, made.handle) });
        }
        // Nobody is woken.
        let all = if round % 2 == 0 { 0x7fff_fc00 } else { 0x3fff_fc00 };
        attacker.long(offset_of!(SessionHeader, one_way)).fetch_or(all, Ordering::SeqCst);
        drop(attacker);
        let want: Vec<u8> = (0..2000).map(|i| 10 + (i / 100) as u8).collect();
        assert!(rig.beside.read(&name).unwrap() == want, "{round}");
    }
    rig.eventually(|| rig.server.counters().sessions == 0 && !rig.doors.lends(), "leases are left");
}
