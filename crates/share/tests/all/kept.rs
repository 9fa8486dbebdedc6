//! What clients keep: calls that cost no message, and that nothing kept outlives a change.
//!
//! Verifies, over the block engine, that repeated stats and small reads send nothing, and that no client ever sees what was so before
//! a change that has returned, whichever door it came through. Does not verify the memory's protection (tests/all/hostile.rs).

use block::{MkfsOptions, OpenOptions, Volume};
use fs::client::OpenOptions as Open;
use fs::watched::Watched;
use fs::{Blocking, Client, Cred, Error, RenameFlags, XattrFlags};
use media::RamMedia;
use share::{Remote, Server, server::Options};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const NEW: Open = Open::new().read(true).write(true).create_new(true);

struct Rig {
    server: Server,
    volume: Arc<Volume>,
    /// Another door.
    beside: Blocking<Watched<Volume>>,
    _dir: tempfile::TempDir,
}

fn rig(options: Options) -> Rig {
    sized_rig(128 << 20, options)
}

fn sized_rig(bytes: u64, options: Options) -> Rig {
    let media = Arc::new(RamMedia::new(bytes).unwrap());
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    let volume = Arc::new(Volume::open(media, OpenOptions::default()).unwrap());
    let doors = Watched::new(volume.clone());
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_at_door(doors.door(), &dir.path().join("socket"), options).unwrap();
    Rig { server, volume, beside: Client::new(Arc::new(doors), Cred::root()).blocking(), _dir: dir }
}

impl Rig {
    fn client(&self) -> Blocking<Remote> {
        Client::new(Arc::new(Remote::connect(self.server.path()).unwrap()), Cred::of_process()).blocking()
    }

    /// Calls that the manager has answered, when it has come to rest.
    fn calls(&self) -> u64 {
        let sleeps = self.server.counters().sleeps;
        let begun = Instant::now();
        while self.server.counters().sleeps == sleeps && begun.elapsed() < Duration::from_millis(300) {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.server.counters().calls
    }
}

fn page(version: u64) -> Vec<u8> {
    version.to_le_bytes().repeat(PAGE / 8)
}

#[test]
fn what_is_known_costs_no_message() {
    let rig = rig(Options::default());
    let (writer, reader) = (rig.client(), rig.client());
    writer.mkdir("d", 0o755).unwrap();
    let file = writer.open("d/file", NEW).unwrap();
    for i in 0..32 {
        file.write_all_at(&page(i), i * PAGE as u64).unwrap();
    }
    std::thread::sleep(Duration::from_millis(20));
    let seen = reader.open("d/file", Open::new().read(true)).unwrap();
    let mut bytes = vec![0; PAGE];
    let pass = |bytes: &mut Vec<u8>| {
        for i in (0..32u64).map(|i| i * 13 % 32) {
            assert_eq!(seen.read_at(bytes, i * PAGE as u64).unwrap(), PAGE);
            assert_eq!(*bytes, page(i));
            assert_eq!(seen.read_at(&mut bytes[..100], i * PAGE as u64 + 3900).unwrap(), 100);
            assert_eq!(reader.stat("d/file").unwrap().size, 32 * PAGE as u64);
        }
    };
    (0..3).for_each(|_| pass(&mut bytes));
    let before = rig.calls();
    (0..10).for_each(|_| pass(&mut bytes));
    assert_eq!(rig.calls() - before, 0, "calls for what is known");
}

#[test]
fn changes_are_seen_at_once() {
    let rig = rig(Options::default());
    let (a, b) = (rig.client(), rig.client());
    a.mkdir("d", 0o755).unwrap();
    let file = a.open("d/f", NEW).unwrap();
    let seen = b.open_retry("d/f");
    let mut bytes = vec![0; 3 * PAGE];
    let mut check = |want: &[u8]| {
        for _ in 0..3 {
            let n = seen.read_at(&mut bytes, 0).unwrap();
            assert_eq!((n, &bytes[..n] == want), (want.len(), true));
            assert_eq!(b.stat("d/f").unwrap().size, want.len() as u64);
        }
    };
    file.write_all_at(&[1; 5000], 0).unwrap();
    check(&[1; 5000]);
    file.write_all_at(&[2; 10], 4990).unwrap();
    check(&[&[1; 4990][..], &[2; 10]].concat());
    let beside = rig.beside.open("d/f", Open::new().write(true)).unwrap();
    beside.write_all_at(&[3; 4], 0).unwrap();
    check(&[&[3; 4][..], &[1; 4986], &[2; 10]].concat());
    beside.set_len(6).unwrap();
    check(&[3, 3, 3, 3, 1, 1]);
    file.set_len(5000).unwrap();
    check(&[&[3, 3, 3, 3, 1, 1][..], &[0; 4994]].concat());
    let append = rig.beside.open("d/f", Open::new().append(true)).unwrap();
    append.append(&[4; 7]).unwrap();
    check(&[&[3, 3, 3, 3, 1, 1][..], &[0; 4994], &[4; 7]].concat());
    // Names and permissions.
    rig.beside.rename("d/f", "d/g", Default::default()).unwrap();
    assert!(b.stat("d/f").is_err() && b.stat("d/g").is_ok());
    rig.beside.rename("d", "e", Default::default()).unwrap();
    assert!(b.stat("d/g").is_err() && b.stat("e/g").is_ok());
    a.chmod("e/g", 0o600).unwrap();
    assert_eq!(b.stat("e/g").unwrap().perm, 0o600);
    a.link("e/g", "e/h").unwrap();
    assert_eq!(b.stat("e/g").unwrap().nlink, 2);
    a.unlink("e/g").unwrap();
    assert!(b.stat("e/g").is_err());
    assert_eq!(b.stat("e/h").unwrap().nlink, 1);
}

trait OpenRetry {
    fn open_retry(&self, path: &str) -> fs::client::BlockingFile<Remote>;
}
impl OpenRetry for Blocking<Remote> {
    fn open_retry(&self, path: &str) -> fs::client::BlockingFile<Remote> {
        self.open(path, Open::new().read(true)).unwrap()
    }
}

/// That there is no such name is kept, too, until there is one: made by whomever, under a lease or not, or moved there, or made visible by permissions.
#[test]
fn what_is_not_there() {
    let rig = rig(Options::default());
    let (client, other) = (rig.client(), rig.client());
    client.mkdir("d", 0o755).unwrap();
    client.mkdir("e", 0o755).unwrap();
    client.write("d/x", b"x").unwrap();
    let misses = |path: &str| client.stat(path).map_err(|e| e.errno()) == Err(libc::ENOENT);
    assert!(misses("d/f") && misses("d/none/f"));
    let before = rig.calls();
    for _ in 0..1000 {
        assert!(misses("d/f") && client.open("d/f", Open::new().read(true)).is_err());
    }
    let calls = rig.calls() - before;
    assert!(calls <= 4, "{calls} calls for 2000 questions");
    for round in 0..300u32 {
        let (name, at) = (format!("f{round}"), format!("d/f{round}"));
        assert!(misses(&at) && misses(&at));
        match round % 6 {
            0 => drop(other.open(&at, NEW).unwrap()),
            1 => rig.beside.write(&at, b"f").unwrap(),
            // Those that this client makes itself, many of them under a lease of the directory.
            2 | 3 => drop(client.open(&at, NEW).unwrap()),
            4 => drop(rig.beside.link("d/x", &at).unwrap()),
            _ => {
                other.write(format!("e/{name}"), b"f").unwrap();
                other.rename(format!("e/{name}"), &at, RenameFlags::empty()).unwrap();
            }
        }
        assert!(!misses(&at), "round {round}");
        if round % 3 == 0 {
            client.unlink(&at).unwrap();
            assert!(misses(&at));
            client.write(&at, b"again").unwrap();
            assert!(!misses(&at));
        }
    }
    // Another directory in the same place, and the old one in another.
    assert!(misses("d/only") && misses("e/f1"));
    rig.beside.write("e/only", b"only").unwrap();
    rig.beside.rename("d", "old", RenameFlags::empty()).unwrap();
    assert!(misses("d/only") && misses("d/f1"));
    rig.beside.rename("e", "d", RenameFlags::empty()).unwrap();
    assert!(!misses("d/only") && misses("d/f1") && misses("old/only") && !misses("old/f1"));
}

#[test]
fn a_new_file_with_an_old_inode() {
    let rig = rig(Options::default());
    let (a, b) = (rig.client(), rig.client());
    let mut inodes = std::collections::HashSet::new();
    let mut again = 0;
    for round in 0..200u64 {
        let file = a.open("f", NEW).unwrap();
        file.write_all_at(&page(round), 0).unwrap();
        let seen = b.open_retry("f");
        again += !inodes.insert(seen.metadata().unwrap().ino.on_medium()) as usize;
        let mut bytes = vec![0; PAGE];
        for _ in 0..4 {
            seen.read_at(&mut bytes, 0).unwrap();
            assert_eq!(bytes, page(round));
        }
        file.close().unwrap();
        seen.close().unwrap();
        a.unlink("f").unwrap();
    }
    assert!(again > 100, "slots are used again ({again} of 200), or this tests nothing");
}

#[test]
fn nobody_asks_for_attributes_that_are_not_there() {
    let rig = rig(Options::default());
    let (client, other) = (rig.client(), rig.client());
    client.mkdir("d", 0o755).unwrap();
    for n in 0..10 {
        drop(client.open(format!("d/f{n}"), NEW).unwrap());
    }
    let none = || {
        for n in 0..10 {
            let path = format!("d/f{n}");
            assert!(!client.stat(&path).unwrap().xattrs);
            let get = |name: &str| client.get_xattr(&path, name).unwrap_err();
            assert_eq!((get("security.selinux"), get("user.x")), (Error::NoAttribute, Error::NoAttribute));
            assert!(matches!(get("system.posix_acl_access"), Error::NotSupported(_)));
            assert!(client.list_xattr(&path).unwrap().is_empty());
        }
    };
    none();
    let asked = rig.calls();
    none();
    assert_eq!(rig.calls(), asked);
    for n in 0..3 {
        let (path, who) = (format!("d/f{n}"), [&client, &other][n % 2]);
        let set = |name: &str| match n {
            2 => rig.beside.set_xattr(&path, name, b"value", XattrFlags::empty()),
            _ => who.set_xattr(&path, name, b"value", XattrFlags::empty()),
        };
        set("user.x").unwrap();
        assert_eq!(client.get_xattr(&path, "user.x").unwrap(), b"value");
        assert_eq!(client.list_xattr(&path).unwrap(), ["user.x"]);
        assert_eq!(other.list_xattr(&path).unwrap(), ["user.x"]);
        assert!(client.stat(&path).unwrap().xattrs);
        other.remove_xattr(&path, "user.x").unwrap();
        assert_eq!(client.get_xattr(&path, "user.x"), Err(Error::NoAttribute));
    }
    none();
}

/// What is read again, as much as the manager is told to show, is read without a message in the end, by whoever comes later, too; and no more than that.
#[test]
fn large_files_are_read_without_a_message() {
    const BYTES: usize = 160 << 20;
    for (pages_max, all) in [(BYTES + (8 << 20), true), (BYTES / 2, false)] {
        let rig = sized_rig(256 << 20, Options { pages_max, ..Options::default() });
        let file = rig.beside.open("large", NEW).unwrap();
        let part: Vec<u8> = (0..256).flat_map(page).collect();
        (0..BYTES).step_by(part.len()).for_each(|at| file.write_all_at(&part, at as u64).unwrap());
        let read_all = || {
            let client = rig.client();
            let file = client.open("large", Open::new().read(true)).unwrap();
            let mut bytes = vec![0; 4 * PAGE];
            let before = rig.calls();
            for at in (0..BYTES).step_by(bytes.len()) {
                assert_eq!(file.read_at(&mut bytes, at as u64).unwrap(), bytes.len());
                assert_eq!(bytes, part[at % part.len()..][..4 * PAGE]);
            }
            rig.calls() - before
        };
        assert!(read_all() > 1000, "nothing was there");
        assert!(read_all() > 1000, "what is read once takes no place");
        if all {
            let begun = Instant::now();
            while read_all() >= 10 {
                assert!(begun.elapsed() < Duration::from_secs(120), "it is not there yet");
            }
        } else {
            (0..3).for_each(|_| assert!(read_all() > 1000, "it has no place"));
        }
    }
}

const BYTES: usize = 24 << 20;
const LEN: usize = 64 << 10;
const ALL: u64 = (BYTES / LEN) as u64;

/// What is read in long pieces is put where it is read without a message when it is read for the second time.
#[test]
fn what_is_read_again_in_long_pieces() {
    for pages_max in [32 << 20, 16 << 20] {
        let messages = passes(pages_max);
        assert!(messages[0] >= ALL && messages[1] >= ALL / 2, "{messages:?}");
        match pages_max > BYTES {
            true => assert!(messages[2] < ALL / 10 && messages[3] < 10, "{messages:?}"),
            // It would have no place.
            false => assert!(messages[3] >= ALL, "{messages:?}"),
        }
    }
}

/// A file that is read here and there is found whole soon if the page cache has it, and nothing is read from the medium that nobody asked for.
#[test]
fn what_is_read_here_and_there() {
    const PAGES: usize = 2048;
    let rig = rig(Options { pages_max: 32 << 20, ..Options::default() });
    let bytes: Vec<u8> = (0..PAGES as u64).flat_map(page).collect();
    rig.beside.write("f", &bytes).unwrap();
    let file = rig.client().open("f", Open::new().read(true)).unwrap();
    let mut back = vec![0; PAGE];
    let mut read = |range: std::ops::Range<usize>| {
        let before = (rig.calls(), rig.volume.counters().read_blocks);
        for i in range {
            // Each of them once.
            let at = i * 997 % PAGES * PAGE;
            assert_eq!(file.read_at(&mut back, at as u64).unwrap(), PAGE);
            assert!(back == bytes[at..at + PAGE], "at {at}");
        }
        (rig.calls() - before.0, rig.volume.counters().read_blocks - before.1)
    };
    fs::block_on(rig.volume.drop_caches()).unwrap();
    assert_eq!(read(0..50), (50, 50), "from the medium");
    rig.beside.read("f").unwrap();
    let (messages, blocks) = read(50..PAGES);
    // So many pieces there are.
    assert!(messages <= PAGES as u64 / 16 && blocks == 0, "{messages}, {blocks}");
}

/// Messages of each of some passes, with so many bytes of pages.
fn passes(pages_max: usize) -> [u64; 4] {
    let rig = rig(Options { pages_max, ..Options::default() });
    let bytes: Vec<u8> = (0..(BYTES / PAGE) as u64).flat_map(page).collect();
    rig.beside.write("f", &bytes).unwrap();
    let client = rig.client();
    let file = client.open("f", Open::new().read(true)).unwrap();
    client.stat("f").unwrap();
    let mut back = vec![0; LEN];
    let mut pass = || {
        let before = rig.calls();
        for at in (0..BYTES).step_by(LEN) {
            assert_eq!(file.read_at(&mut back, at as u64).unwrap(), LEN);
            assert!(back == bytes[at..at + LEN], "at {at}");
        }
        rig.calls() - before
    };
    let messages = [pass(), pass(), pass(), pass()];
    // A change is seen.
    rig.beside.open("f", Open::new().write(true)).unwrap().write_all_at(b"new", LEN as u64 + 7).unwrap();
    assert_eq!(file.read_at(&mut back, LEN as u64).unwrap(), LEN);
    assert_eq!(&back[7..10], b"new");
    messages
}

/// Writers count up; no reader ever finds less than what was acknowledged before it read, or half of a write.
#[test]
fn readers_beside_writers() {
    const PAGES: usize = 64;
    // So few pages that windows come and go.
    let rig = rig(Options { pages_max: 16 * PAGE, ..Options::default() });
    let (a, place) = (rig.client(), |i: usize| (i * 37 * PAGE) as u64);
    let file = a.open("f", NEW).unwrap();
    (0..PAGES).for_each(|i| file.write_all_at(&page(0), place(i)).unwrap());
    let done: [AtomicU64; PAGES] = [const { AtomicU64::new(0) }; PAGES];
    let over = AtomicBool::new(false);
    let (mut reads, writes) = (0, AtomicU64::new(0));
    std::thread::scope(|s| {
        let (rig, done, over, writes) = (&rig, &done, &over, &writes);
        for writer in 0..2 {
            s.spawn(move || {
                let client = rig.client();
                let through = client.open("f", Open::new().write(true)).unwrap();
                let beside = rig.beside.open("f", Open::new().write(true)).unwrap();
                let mut n = 1;
                while !over.load(Ordering::Relaxed) {
                    let i = (n as usize * 7 + writer) % (PAGES / 2) * 2 + writer;
                    match writer {
                        0 => through.write_all_at(&page(n), place(i)).unwrap(),
                        _ => beside.write_all_at(&page(n), place(i)).unwrap(),
                    }
                    done[i].store(n, Ordering::SeqCst);
                    writes.fetch_add(1, Ordering::Relaxed);
                    n += 1;
                    if n & 7 == 0 {
                        std::thread::sleep(Duration::from_micros(300));
                    }
                }
            });
        }
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                s.spawn(move || {
                    let client = rig.client();
                    let file = client.open_retry("f");
                    let (mut bytes, mut n) = (vec![0; PAGE], 0);
                    let begun = Instant::now();
                    while begun.elapsed() < Duration::from_secs(4) {
                        let i = (n * (5 + reader)) % PAGES;
                        let least = done[i].load(Ordering::SeqCst);
                        assert_eq!(file.read_at(&mut bytes, place(i)).unwrap(), PAGE);
                        let found = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                        assert!(found >= least, "page {i} holds {found} after {least} was written");
                        assert_eq!(bytes, page(found), "half of a write");
                        n += 1;
                    }
                    n
                })
            })
            .collect();
        reads = readers.into_iter().map(|r| r.join().unwrap()).sum();
        over.store(true, Ordering::Relaxed);
    });
    assert!(reads > 1000 && writes.load(Ordering::Relaxed) > 100);
}
