//! Write leases in the hands of clients that do not keep to the rules, written without the client's code: raw memory and a raw socket.
//!
//! Verifies that a client that scribbles over the words of its windows, keeps pages busy for ever, writes after its window was taken back, asks for leases
//! through handles that it has not or that do not write, or asks for thousands, harms nobody but itself; and that what it left behind when it
//! was killed is there. The rest of the threat model: tests/all/hostile.rs.

use crate::attacker::*;
use format::shared::*;
use fs::client::OpenOptions as Open;
use fs::watched::Watched;
use fs::{Blocking, Client, Cred};
use share::{Remote, Server, server::Options};
use sim::{Model, system_clock};
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const LEASE: u16 = 39;

/// What an attacker does with leases.
impl Attacker {
    /// Opens by inode: 1 reads, 2 writes.
    fn open(&self, ino: u64, flags: u32) -> u64 {
        let reply = self.call(&Request { flags: flags.into(), ..request(OPEN, ino) });
        assert_eq!(reply.errno.get(), 0);
        reply.value.get()
    }
    fn lease(&self, handle: u64, offset: u64, slot: u32) -> Reply {
        self.call(&Request { offset: offset.into(), mode: slot.into(), ..request(LEASE, handle) })
    }
    fn window(slot: usize) -> usize {
        LEASES_AT + slot * LEASE_BYTES
    }
    fn page_word(&self, slot: usize, page: usize) -> &AtomicU64 {
        self.long(Self::window(slot) + LEASE_WORDS_AT + 8 * page)
    }
    /// As a client that keeps to the rules.
    fn store(&self, slot: usize, page: usize, byte: u8) {
        self.bytes(Self::window(slot) + LEASE_DATA_AT + page * PAGE, &[byte; PAGE]);
        self.page_word(slot, page).fetch_or(lease::DIRTY | lease::THERE, Ordering::SeqCst);
        self.says_written(slot);
    }
    /// Has the manager look for dirty pages.
    fn says_written(&self, slot: usize) {
        self.word(Self::window(slot) + offset_of!(LeaseHeader, written)).store(1, Ordering::SeqCst);
    }
    /// All words of a window.
    fn scribble(&self, slot: usize, word: u64, byte: u8) {
        for page in 0..WINDOW_PAGES {
            self.bytes(Self::window(slot) + LEASE_DATA_AT + page * PAGE, &[byte; PAGE]);
            self.page_word(slot, page).store(word, Ordering::SeqCst);
        }
        self.says_written(slot);
    }
}

struct Rig {
    server: Server,
    doors: Watched<Model>,
    beside: Blocking<Watched<Model>>,
    _dir: tempfile::TempDir,
}

/// A server, and files of so many pages of ones.
fn rig(files: &[(&str, usize)]) -> (Rig, Vec<u64>) {
    let dir = tempfile::tempdir().unwrap();
    let doors = Watched::new(Arc::new(Model::new(system_clock())));
    let options = Options { lease_windows_max: 64, ..Options::default() };
    let server = Server::start_at_door(doors.door(), &dir.path().join("socket"), options).unwrap();
    let beside = Client::new(Arc::new(doors.clone()), Cred::root()).blocking();
    let inodes = files.iter().map(|(name, pages)| {
        beside.write(name, vec![1; pages * PAGE]).unwrap();
        beside.stat(name).unwrap().ino.0
    });
    let inodes = inodes.collect();
    (Rig { server, doors, beside, _dir: dir }, inodes)
}

impl Rig {
    /// Somebody who behaves is served, with a lease.
    fn still_there(&self) {
        let fs = Client::new(Arc::new(Remote::connect(self.server.path()).unwrap()), Cred::root()).blocking();
        let file = fs.open("/still", Open::new().read(true).write(true).create(true)).unwrap();
        (0..8).for_each(|_| file.write_all_at(&[5; 2 * PAGE], 0).unwrap());
        file.write_all_at(&[6; PAGE], 0).unwrap();
        assert_eq!(self.beside.read("/still").unwrap(), [[6; PAGE], [5; PAGE]].concat());
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
fn pages_that_are_not_open_and_words_of_all_kinds() {
    let (rig, inodes) = rig(&[("f", 600), ("g", 600)]);
    let attacker = Attacker::new(rig.server.path());
    let handle = attacker.open(inodes[0], 3);
    // The file ends in the middle of its second window.
    assert_ne!(attacker.lease(handle, (WINDOW_PAGES * PAGE) as u64, 1).value.get(), 0);
    for word in [u64::MAX, lease::DIRTY, lease::BUSY | lease::DIRTY, 0x5555_5555_5555_5555, 0] {
        attacker.long(Attacker::window(1)).store(word, Ordering::SeqCst);
        attacker.scribble(1, word, 9);
        attacker.scribble(2, word, 9);
        rig.beside.sync().unwrap();
    }
    let seen = rig.beside.read("f").unwrap();
    assert_eq!(seen.len(), 600 * PAGE, "a page behind the end");
    assert!(seen[..512 * PAGE].iter().all(|&b| b == 1), "a window that was never granted");
    assert!(seen[512 * PAGE..].iter().all(|&b| b == 9));
    assert!(rig.beside.read("g").unwrap().iter().all(|&b| b == 1));
    rig.still_there();
}

#[test]
fn pages_that_are_busy_for_ever() {
    let (rig, inodes) = rig(&[("f", 512)]);
    let attacker = Attacker::new(rig.server.path());
    let handle = attacker.open(inodes[0], 3);
    assert_ne!(attacker.lease(handle, 0, 0).value.get(), 0);
    attacker.scribble(0, lease::OPEN | lease::THERE | lease::BUSY | lease::DIRTY, 3);
    let begun = Instant::now();
    (0..20).for_each(|_| rig.beside.sync().unwrap());
    let seen = rig.beside.read("f").unwrap();
    assert!(seen.iter().all(|&b| b == 3), "as they are");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(!rig.doors.lends());
    rig.still_there();
}

#[test]
fn writes_after_the_end_go_nowhere() {
    let (rig, inodes) = rig(&[("f", 512), ("g", 512)]);
    let attacker = Attacker::new(rig.server.path());
    let handle = attacker.open(inodes[0], 3);
    let number = attacker.lease(handle, 0, 0).value.get();
    assert_ne!(number, 0);
    attacker.store(0, 7, 2);
    let seen = rig.beside.read("f").unwrap();
    assert!(seen[7 * PAGE..8 * PAGE].iter().all(|&b| b == 2) && seen[..7 * PAGE].iter().all(|&b| b == 1));
    assert_eq!(attacker.long(Attacker::window(0)).load(Ordering::SeqCst), 0, "it is told");
    attacker.long(Attacker::window(0)).store(number, Ordering::SeqCst);
    attacker.scribble(0, lease::DIRTY | lease::OPEN, 9);
    std::thread::sleep(Duration::from_millis(1500));
    rig.beside.sync().unwrap();
    // Nor into another file for which the same memory is used then.
    let other = attacker.open(inodes[1], 3);
    assert_ne!(attacker.lease(other, 0, 0).value.get(), 0);
    attacker.store(0, 3, 4);
    let seen = rig.beside.read("g").unwrap();
    assert!((0..512).all(|i| seen[i * PAGE..][..PAGE].iter().all(|&b| b == if i == 3 { 4 } else { 1 })));
    assert!(rig.beside.read("f").unwrap().iter().all(|&b| b != 9));
    rig.still_there();
}

#[test]
fn leases_that_may_not_be() {
    let (rig, inodes) = rig(&[("f", 512), ("g", 512), ("suid", 512)]);
    rig.beside.chmod("suid", 0o4755).unwrap();
    let attacker = Attacker::new(rig.server.path());
    let reads = attacker.open(inodes[0], 1);
    assert_eq!(attacker.lease(reads, 0, 0).value.get(), 0, "a file that is open for reading");
    attacker.call(&request(RELEASE, reads));
    for flags in [2 | 4, 2 | 16, 2 | 32, 2 | 64] {
        let handle = attacker.open(inodes[0], flags);
        assert_eq!(attacker.lease(handle, 0, 0).value.get(), 0, "flags {flags}");
        attacker.call(&request(RELEASE, handle));
    }
    let suid = attacker.open(inodes[2], 3);
    assert_eq!(attacker.lease(suid, 0, 0).value.get(), 0, "a set-id file");
    for handle in [0, u64::MAX, suid + 1] {
        assert_eq!(attacker.lease(handle, 0, 0).errno.get(), libc::EBADF);
    }
    let handle = attacker.open(inodes[1], 3);
    for slot in [16, 17, u32::MAX] {
        assert_eq!(attacker.lease(handle, 0, slot).errno.get(), libc::EINVAL);
    }
    for offset in [u64::MAX, 512 * PAGE as u64, 1 << 60] {
        assert_eq!(attacker.lease(handle, offset, 0).value.get(), 0, "behind the end");
    }
    // A file that somebody else has open, or has a lease on.
    let second = Attacker::new(rig.server.path());
    let theirs = second.open(inodes[1], 3);
    assert_eq!(attacker.lease(handle, 0, 0).value.get(), 0);
    second.call(&request(RELEASE, theirs));
    assert_ne!(attacker.lease(handle, 0, 0).value.get(), 0);
    let theirs = second.open(inodes[1], 3);
    assert_eq!(second.lease(theirs, 0, 0).value.get(), 0);
    assert!(!rig.doors.lends());
    rig.still_there();
}

#[test]
fn thousands_of_leases() {
    let (rig, inodes) = rig(&[("f", 40 * 512), ("g", 40 * 512)]);
    let attackers: Vec<Attacker> = (0..3).map(|_| Attacker::new(rig.server.path())).collect();
    let names: Vec<String> = (0..8).map(|i| format!("h{i}")).collect();
    let more: Vec<u64> = names
        .iter()
        .map(|name| {
            rig.beside.write(name, vec![1; 20 * 512 * PAGE]).unwrap();
            rig.beside.stat(name).unwrap().ino.0
        })
        .collect();
    let handle = attackers[0].open(inodes[0], 3);
    for round in 0..2000u64 {
        let granted =
            attackers[0].lease(handle, round % 40 * (WINDOW_PAGES * PAGE) as u64, (round * 7 % 16) as u32);
        assert_eq!(granted.errno.get(), 0);
    }
    let mut granted = 0;
    for (n, &ino) in more.iter().enumerate() {
        let attacker = Attacker::new(rig.server.path());
        let handle = attacker.open(ino, 3);
        for slot in 0..16u32 {
            let place = slot as u64 * (WINDOW_PAGES * PAGE) as u64;
            granted += (attacker.lease(handle, place, slot).value.get() != 0) as u32;
        }
        std::mem::forget(attacker);
        assert!(granted <= 64, "{granted} after {n} files");
    }
    assert!((40..=64).contains(&granted), "{granted}");
    drop(attackers);
    // Reading them ends the leases.
    names.iter().for_each(|name| drop(rig.beside.read(name).unwrap()));
    rig.eventually(|| !rig.doors.lends(), "leases are left");
    rig.still_there();
}

#[test]
fn killed_in_the_middle_of_a_write() {
    let (rig, inodes) = rig(&[("f", 512)]);
    let attacker = Attacker::new(rig.server.path());
    let handle = attacker.open(inodes[0], 3);
    assert_ne!(attacker.lease(handle, 0, 0).value.get(), 0);
    attacker.store(0, 3, 2);
    attacker.store(0, 4, 2);
    // One that begins, of a page that nobody has written; and one over a page that was.
    attacker.page_word(0, 5).fetch_or(lease::BUSY, Ordering::SeqCst);
    attacker.bytes(Attacker::window(0) + LEASE_DATA_AT + 5 * PAGE, &[9; 100]);
    attacker.page_word(0, 4).fetch_or(lease::BUSY, Ordering::SeqCst);
    attacker.bytes(Attacker::window(0) + LEASE_DATA_AT + 4 * PAGE, &[9; 100]);
    drop(attacker);
    rig.eventually(|| !rig.doors.lends(), "the lease of a client that is gone");
    let seen = rig.beside.read("f").unwrap();
    assert!(seen[3 * PAGE..4 * PAGE].iter().all(|&b| b == 2), "what it had written");
    assert!(seen[4 * PAGE + 100..5 * PAGE].iter().all(|&b| b == 2));
    assert!(seen[5 * PAGE..].iter().all(|&b| b == 1), "what it had not");
    rig.still_there();
}

#[test]
fn messages_of_its_own_between_its_writes() {
    let (rig, inodes) = rig(&[("f", 512)]);
    let attacker = Attacker::new(rig.server.path());
    let handle = attacker.open(inodes[0], 3);
    assert_ne!(attacker.lease(handle, 0, 0).value.get(), 0);
    attacker.store(0, 7, 2);
    let payload = PAYLOAD_AT;
    attacker.bytes(payload, &[3; 100]);
    let r = Request { offset: (7 * PAGE as u64 + 50).into(), second: 100.into(), ..request(WRITE, handle) };
    assert_eq!(attacker.call(&r).value.get(), 100);
    let seen = rig.beside.read("f").unwrap();
    let page = &seen[7 * PAGE..8 * PAGE];
    assert!(page[..50].iter().all(|&b| b == 2) && page[50..150].iter().all(|&b| b == 3));
    assert!(page[150..].iter().all(|&b| b == 2));
}
