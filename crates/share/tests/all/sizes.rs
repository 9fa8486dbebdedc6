//! How long files are, as a client says without a message of files that it has just written: what is done to them by other handles, by other calls and by others counts.

use crate::rig::{Random, Rig, volume};
use fs::{Cred, FileSystem, Handle, Ino, OpenFlags, SetAttr};
use share::Remote;
use std::pin::pin;
use std::task::{Context, Waker};

/// Room of the longest writes; some are longer than what one message takes.
const LONG: u64 = 700_000;

/// What is done to one file, whose size is reckoned beside it, by a client that has two handles of it, and by another client.
struct Trial<'a> {
    client: &'a Remote,
    other: &'a Remote,
    dir: Ino,
    name: &'a [u8],
    ino: Ino,
    handles: [Handle; 2],
    others: Option<Handle>,
    size: u64,
    /// How often it was known, and not.
    known: [u64; 2],
}

impl Trial<'_> {
    fn cred() -> Cred {
        Cred::root()
    }

    fn write(&mut self, who: usize, at: u64, len: u64) {
        let data = vec![7; len as usize];
        let n = match who {
            2 => self.other.block_on(self.other.write(self.others.unwrap(), at, &data)),
            _ => self.client.block_on(self.client.write(self.handles[who], at, &data)),
        };
        // An appending handle writes at the end.
        let at = if who == 1 { self.size } else { at };
        assert_eq!(n.unwrap() as u64, len);
        self.size = self.size.max(at + len);
    }

    fn set_size(&mut self, remote: &Remote, handle: Option<Handle>, size: u64) {
        let set = SetAttr { size: Some(size), handle, ..SetAttr::default() };
        remote.block_on(remote.setattr(&Self::cred(), self.ino, set)).unwrap();
        self.size = size;
    }

    fn step(&mut self, random: &mut Random) {
        let (kind, at) = (random.below(100), random.below(300_000));
        let len = if random.below(40) == 0 { random.below(LONG) } else { random.below(9000) } + 1;
        match kind {
            0..50 => self.write(0, self.size, len),
            50..80 => self.write(0, at.min(self.size) & !4095, 4096),
            80..85 => self.write(0, at, len),
            85..88 => self.write(1, 0, len),
            88..90 => self.set_size(self.client, Some(self.handles[0]), at),
            90 => self.set_size(self.client, None, at),
            91 => {
                let (flags, cred) = (OpenFlags::WRITE | OpenFlags::TRUNCATE, Self::cred());
                let opened =
                    self.client.block_on(self.client.create(&cred, self.dir, self.name, 0o644, flags));
                self.client.block_on(self.client.release(opened.unwrap().1)).unwrap();
                self.size = 0;
            }
            92 => {
                let opened = self.client.block_on(self.client.open(
                    &Self::cred(),
                    self.ino,
                    OpenFlags::WRITE | OpenFlags::TRUNCATE,
                ));
                self.client.block_on(self.client.release(opened.unwrap())).unwrap();
                self.size = 0;
            }
            93..95 => {
                let [to, from] = [0, 1].map(|n| self.handles[n]);
                let n = self.client.block_on(self.client.copy_range(from, 0, to, self.size, 5000));
                self.size += n.unwrap();
            }
            95 => {
                let mode = fs::Fallocate::Allocate { keep_size: false };
                self.client.block_on(self.client.fallocate(self.handles[0], mode, at, len)).unwrap();
                self.size = self.size.max(at + len);
            }
            96 if self.others.is_none() => {
                let opened = self.other.block_on(self.other.open(
                    &Self::cred(),
                    self.ino,
                    OpenFlags::READ | OpenFlags::WRITE,
                ));
                self.others = Some(opened.unwrap());
            }
            97 if self.others.is_some() => self.write(2, self.size, len),
            98 => self.set_size(self.other, None, at),
            99 => {
                let attr = self.other.block_on(self.other.getattr(self.ino, None)).unwrap();
                assert_eq!(attr.size, self.size);
            }
            _ => {}
        }
        for handle in self.handles {
            let size = self.client.size_now(handle);
            assert!(size.is_none_or(|size| size == self.size), "{size:?}, not {}, after {kind}", self.size);
            self.known[size.is_none() as usize] += 1;
        }
    }
}

fn trial(seed: u64, lends_directories: bool) -> [u64; 2] {
    let fs = volume(512 << 20);
    let rig = if lends_directories { Rig::new(fs) } else { Rig::shared(fs) };
    let [client, other] = [0, 1].map(|_| Remote::connect(rig.server.as_ref().unwrap().path()).unwrap());
    let (cred, mut random, mut known) = (Trial::cred(), Random(seed), [0, 0]);
    let dir = client.block_on(client.mkdir(&cred, Ino::ROOT, b"d", 0o755)).unwrap().ino;
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::TRUNCATE;
    for n in 0..60 {
        let name = format!("f{n}").into_bytes();
        let (attr, made) = client.block_on(client.create(&cred, dir, &name, 0o644, flags)).unwrap();
        let how = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::APPEND;
        let again = client.block_on(client.open(&cred, attr.ino, how)).unwrap();
        let mut trial = Trial {
            client: &client,
            other: &other,
            dir,
            name: &name,
            ino: attr.ino,
            handles: [made, again],
            others: None,
            size: 0,
            known: [0, 0],
        };
        (0..60).for_each(|_| trial.step(&mut random));
        let (others, times) = (trial.others, trial.known);
        known = [known[0] + times[0], known[1] + times[1]];
        for handle in [made, again] {
            client.block_on(client.release(handle)).unwrap();
        }
        others.into_iter().for_each(|handle| other.block_on(other.release(handle)).unwrap());
        client.block_on(client.unlink(&cred, dir, &name)).unwrap();
    }
    known
}

#[test]
fn what_is_known_is_so() {
    let mut all = [0, 0];
    for seed in 0..6 {
        let known = trial(seed, seed % 2 == 0);
        all = [all[0] + known[0], all[1] + known[1]];
    }
    println!("known {} times, not known {} times", all[0], all[1]);
    assert!(all[0] > all[1], "{all:?}");
}

/// An answer is there, and taken in only when the file has changed once more.
#[test]
fn answers_tell_nothing_of_what_was_done_since() {
    let rig = Rig::new(volume(256 << 20));
    let client = Remote::connect(rig.server.as_ref().unwrap().path()).unwrap();
    let (cred, flags) = (Trial::cred(), OpenFlags::READ | OpenFlags::WRITE);
    let (attr, made) = client.block_on(client.create(&cred, Ino::ROOT, b"f", 0o644, flags)).unwrap();
    let again = client.block_on(client.open(&cred, attr.ino, flags | OpenFlags::APPEND)).unwrap();
    let cx = &mut Context::from_waker(Waker::noop());
    let (mut size, mut known) = (0, 0);
    let write = |handle, at, len: u64| {
        client.block_on(client.write(handle, at, &vec![1; len as usize])).unwrap();
    };
    for round in 0..400 {
        write(made, size, 3000);
        size += 3000;
        let mut asks = pin!(client.getattr(attr.ino, Some(made)));
        if asks.as_mut().poll(cx).is_ready() {
            continue;
        }
        client.block_on(client.ping()).unwrap();
        match round % 5 {
            0 => write(made, size, 5000),
            1 => write(again, 0, 5000),
            2 => {
                let set = SetAttr { size: Some(size + 5000), handle: Some(made), ..SetAttr::default() };
                client.block_on(client.setattr(&cred, attr.ino, set)).unwrap();
            }
            3 => {
                let mode = fs::Fallocate::Allocate { keep_size: false };
                client.block_on(client.fallocate(made, mode, size, 5000)).unwrap();
            }
            _ => size -= 5000,
        }
        size += 5000;
        client.block_on(asks).unwrap();
        // Now it is not known by what is kept of the file.
        write(made, 100, 10);
        for handle in [made, again] {
            let said = client.size_now(handle);
            known += said.is_some() as u32;
            assert!(said.is_none_or(|said| said == size), "{round}: {said:?}, not {size}");
        }
    }
    println!("known {known} times");
    assert!(known >= 100, "{known}");
}

/// Who looks for the end of a file before each write asks nobody.
#[test]
fn who_appends_by_looking_for_the_end_waits_for_nobody() {
    let rig = Rig::new(volume(256 << 20));
    let client = Remote::connect(rig.server.as_ref().unwrap().path()).unwrap();
    let (cred, flags) = (Trial::cred(), OpenFlags::READ | OpenFlags::WRITE);
    let (attr, handle) = client.block_on(client.create(&cred, Ino::ROOT, b"f", 0o644, flags)).unwrap();
    for overwrites in [false, true] {
        let (before, asked) = (rig.count("write"), rig.count("getattr"));
        for _ in 0..2000 {
            let end = match client.size_now(handle) {
                Some(size) => size,
                None => client.block_on(client.getattr(attr.ino, Some(handle))).unwrap().size,
            };
            client.block_on(client.write(handle, end, &[1; 8192])).unwrap();
            if overwrites {
                client.block_on(client.write(handle, end - 200 * 4096, &[2; 8192])).unwrap();
            }
        }
        let (written, asked) = (rig.count("write") - before, rig.count("getattr") - asked);
        assert!(written + asked < 50, "{written} writes and {asked} questions were messages");
    }
    assert_eq!(rig.beside.stat("/f").unwrap().size, 4000 * 8192);
}

/// Nor who has windows of a file that was there before, for the size alone.
#[test]
fn windows_leave_the_size_known() {
    let rig = Rig::new(volume(256 << 20));
    rig.beside.write("/f", vec![1; 400_000]).unwrap();
    let ino = rig.beside.stat("/f").unwrap().ino;
    let client = Remote::connect(rig.server.as_ref().unwrap().path()).unwrap();
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let handle = client.block_on(client.open(&Trial::cred(), ino, flags)).unwrap();
    let write = |at, len: usize| {
        client.block_on(client.write(handle, at, &vec![3; len])).unwrap();
    };
    (0..10).for_each(|_| write(0, 4096));
    assert!(rig.doors.lends());
    // What was known before the leases began is not any more.
    client.block_on(client.getattr(ino, Some(handle))).unwrap();
    let (asked, windows) = (rig.count("getattr"), rig.count("lease"));
    let mut size = 400_000;
    for _ in 0..500 {
        write(size, 5000);
        size += 5000;
        assert_eq!(client.size_now(handle), Some(size));
        // In a window, and so the times are not what they were.
        (0..3).for_each(|_| write(4096, 4096));
        assert_eq!(client.size_now(handle), Some(size));
    }
    assert_eq!((rig.count("getattr"), rig.count("lease")), (asked, windows));
    let attr = client.block_on(client.getattr(ino, Some(handle))).unwrap();
    assert_eq!((attr.size, rig.count("getattr")), (size, asked + 1), "its times are asked for");
}
