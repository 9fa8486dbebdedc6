//! The engine over the S3 client over a store and a network that fail: what a program was told is done is in the store, and what it was not told is as it
//! was before or as it was to be, never in between. The store itself is looked at for that, past client and network.
//!
//! `FREEHOLD_SEEDS` says how many seeds are run (default 20); a failure names its seed, which `FREEHOLD_SEED` runs alone.

use crate::rig::{Paths, RW, pattern};
use fs::{Cred, Error, FileSystem, SetAttr};
use object::s3::{Config, Environment, Keys, Patience, S3, Secret, Source};
use object::store::{Abilities, Store, StoreError};
use object::{ObjectFs, Options};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sim::s3::{BUCKET, Crc, Faults, Features, KEY_ID, Rates, Server};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Size of parts, bytes: files of a few of them have many parts.
const PART: u64 = 16 << 10;
/// Steps of one seed.
const STEPS: u64 = 40;

pub fn mount(server: &Server) -> Paths<S3> {
    mount_as(server, None)
}

/// With these abilities, which are not found out.
fn mount_as(server: &Server, abilities: Option<Abilities>) -> Paths<S3> {
    mount_with(server, |config| config.abilities = abilities)
}

/// One that soon gives a call up, but not for others that have the processor.
pub fn mount_hasty(server: &Server) -> Paths<S3> {
    mount_with(server, |config| {
        config.patience.silence = Duration::from_secs(2);
        config.deadline = Duration::from_secs(2);
    })
}

fn mount_with(server: &Server, change: impl FnOnce(&mut Config)) -> Paths<S3> {
    Paths { fs: std::sync::Arc::new(open_with(server, change).unwrap()) }
}

fn open_with(server: &Server, change: impl FnOnce(&mut Config)) -> Result<ObjectFs<S3>, StoreError> {
    let mut config = Config::new(&format!("s3://{BUCKET}"), Environment::default()).unwrap();
    config.endpoint = Some(server.endpoint());
    config.credentials = Source::Fixed(Keys { id: KEY_ID.into(), secret: Secret::new("s"), token: None });
    config.patience = Patience { connect: Duration::from_secs(5), silence: Duration::from_millis(400) };
    config.deadline = Duration::from_secs(100);
    change(&mut config);
    let options = Options {
        part_size: PART,
        expiry: Duration::ZERO,
        write_memory: 16 * PART,
        read_memory: 32 * PART,
        ..Options::default()
    };
    ObjectFs::start(move || S3::open(config), options)
}

/// Content and permission bits of a file.
type File = (Vec<u8>, u16);

/// The files and the directories that are in the store.
fn stored(server: &Server) -> (BTreeMap<String, File>, BTreeSet<String>) {
    let (mut files, mut dirs) = (BTreeMap::new(), BTreeSet::new());
    server.look(|bucket| {
        for (key, object) in bucket.objects() {
            match key.strip_suffix('/') {
                Some(dir) => drop(dirs.insert(dir.to_owned())),
                None => {
                    let mode =
                        object.headers.get("x-amz-meta-mode").and_then(|text| text.parse::<u32>().ok());
                    let perm = (mode.unwrap_or_default() & 0o7777) as u16;
                    files.insert(key.clone(), (object.body.to_vec(), perm));
                }
            }
        }
    });
    (files, dirs)
}

struct Run {
    seed: u64,
    rates: Rates,
    server: Server,
    paths: Paths<S3>,
    random: SmallRng,
    files: BTreeMap<String, File>,
    made: u64,
    done: u64,
    failed: u64,
}

impl Run {
    fn new(seed: u64, rates: Rates) -> Run {
        // A probe finds out no other least sizes than one and that of S3, which files here do not reach.
        let part_min = [1, PART as usize - 1000][seed as usize / 3 % 2];
        let features = match seed % 3 {
            0 => Features { part_min, ..Features::ALL },
            1 => Features {
                part_min,
                rename: false,
                md5_etags: false,
                checksums: &[Crc::CRC64NVME],
                ..Features::ALL
            },
            // Which checksum there is is found out together with the size.
            _ => Features { part_min: 1, part_copy: true, ..Features::FEW },
        };
        let server = Server::start(features, Faults::none()).unwrap();
        let mut paths = mount(&server);
        if features.part_min > 1 {
            let found = paths.fs.store().abilities().clone();
            paths = mount_as(&server, Some(Abilities { part_min: part_min as u64, ..found }));
        }
        for dir in ["d", "e"] {
            paths.mkdir(dir).unwrap();
        }
        server.set_faults(Faults::new(rates, seed));
        let random = SmallRng::seed_from_u64(seed);
        Run { seed, rates, server, paths, random, files: BTreeMap::new(), made: 0, done: 0, failed: 0 }
    }

    fn path(&mut self) -> String {
        let name = self.random.random_range(0..4);
        match self.random.random_range(0..4) {
            0 => format!("d/{name}"),
            1 => format!("e/{name}"),
            _ => format!("{name}"),
        }
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        self.made += 1;
        let len = self.random.random_range(1..most) as usize;
        pattern(self.seed << 20 | self.made, len)
    }

    fn size(&mut self) -> u64 {
        [300, PART, 3 * PART, 9 * PART][self.random.random_range(0..4)]
    }

    fn failed(&mut self, what: &str) {
        println!("seed {}: failed: {what}", self.seed);
        self.failed += 1;
    }

    /// What a change of one file must have come to: done, or nothing of it (or what was in between, as `also` says).
    fn changed(&mut self, path: &str, done: fs::Result<()>, new: Option<File>, also: &[Option<File>]) {
        let now = stored(&self.server).0.remove(path);
        let same = |a: &Option<File>, b: &Option<File>| a == b;
        match done {
            Ok(()) => {
                self.done += 1;
                assert!(same(&now, &new), "seed {}: {path}: what was acknowledged is not there", self.seed);
            }
            Err(e) => {
                self.failed(&format!("{path}: {e}"));
                let before = self.files.get(path).cloned();
                let fits = same(&now, &new) || same(&now, &before) || also.iter().any(|a| same(&now, a));
                assert!(fits, "seed {}: {path}: neither old nor new after {e}", self.seed);
            }
        }
        match now {
            Some(file) => self.files.insert(path.to_owned(), file),
            None => self.files.remove(path),
        };
    }

    /// Opens, writes at an offset, and closes.
    fn patch(&mut self, path: &str, offset: u64, bytes: &[u8]) -> fs::Result<()> {
        let handle = self.paths.open(path)?;
        let mut done = Ok(());
        for (at, piece) in (0..).zip(bytes.chunks(4096)) {
            done = done.and_then(|()| self.paths.write_at(handle, offset + at * 4096, piece));
        }
        let closed = self.paths.close(handle);
        done.and(closed)
    }

    fn step(&mut self) {
        let path = self.path();
        let old = self.files.get(&path).cloned();
        match (self.random.random_range(0..12), old) {
            (0..=3, old) => {
                let most = self.size();
                let bytes = self.bytes(most);
                let perm = old.map_or(0o644, |(_, perm)| perm);
                let done = self.paths.write(&path, &bytes);
                // It is cut first, and a failed step of the writing may have been a commit in between.
                self.changed(&path, done, Some((bytes, perm)), &[Some((Vec::new(), perm))]);
            }
            (4 | 5, Some((mut bytes, perm))) => {
                let offset = if self.random.random() {
                    bytes.len()
                } else {
                    self.random.random_range(0..=bytes.len())
                };
                let most = self.size().min(4 * PART);
                let new = self.bytes(most);
                bytes.resize(bytes.len().max(offset + new.len()), 0);
                bytes[offset..offset + new.len()].copy_from_slice(&new);
                let done = self.patch(&path, offset as u64, &new);
                self.changed(&path, done, Some((bytes, perm)), &[]);
            }
            (6, Some((bytes, _))) => {
                let perm = [0o600, 0o640, 0o755][self.random.random_range(0..3)];
                let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
                let ino = self.paths.find(&path).map(|attr| attr.ino);
                let done = ino
                    .and_then(|ino| self.paths.run(self.paths.fs.setattr(&Cred::root(), ino, set)))
                    .map(drop);
                self.changed(&path, done, Some((bytes, perm)), &[]);
            }
            (7, Some(_)) => {
                let done = self.paths.unlink(&path);
                self.changed(&path, done, None, &[]);
            }
            (8 | 9, Some(file)) => {
                let to = self.path();
                if to != path {
                    self.rename(&path, &to, file);
                }
            }
            (10, _) => self.rename_directory(),
            (_, Some((bytes, perm))) => {
                // Reading may fail, and not be wrong.
                let read = self.paths.read(&path);
                assert!(read.is_err() || read == Ok(bytes), "seed {}: {path}: wrong bytes", self.seed);
                let attr = self.paths.find(&path);
                assert!(
                    attr.is_err() || attr.is_ok_and(|attr| attr.perm == perm),
                    "seed {}: {path}",
                    self.seed
                );
            }
            (_, None) => {
                let found = self.paths.find(&path);
                assert!(found.is_err(), "seed {}: {path} is not there", self.seed);
            }
        }
    }

    fn rename(&mut self, from: &str, to: &str, file: File) {
        let before = self.files.get(to).cloned();
        let done = self.paths.rename(from, to);
        let (now, _) = stored(&self.server);
        let (at_from, at_to) = (now.get(from), now.get(to));
        match done {
            Ok(()) => {
                self.done += 1;
                assert!(at_from.is_none() && at_to == Some(&file), "seed {}: {from} to {to}", self.seed);
            }
            Err(e) => {
                self.failed(&format!("{from} to {to}: {e}"));
                let kept = at_from == Some(&file) && (at_to == before.as_ref() || at_to == Some(&file));
                let moved = at_from.is_none() && at_to == Some(&file);
                assert!(kept || moved, "seed {}: {from} to {to}: lost after {e}", self.seed);
            }
        }
        self.files = now;
    }

    /// Moves a directory away and back; nothing may be lost on the way, and a move that failed can be repeated.
    fn rename_directory(&mut self) {
        for (from, to) in [("d", "gone"), ("gone", "d")] {
            let below = |files: &BTreeMap<String, File>, dir: &str| -> BTreeMap<String, File> {
                let start = format!("{dir}/");
                let name = |path: &String| path.strip_prefix(&start).map(str::to_owned);
                files.iter().filter_map(|(path, file)| Some((name(path)?, file.clone()))).collect()
            };
            let all = below(&self.files, from);
            let done = self.paths.rename(from, to);
            if let Err(e) = &done {
                self.failed(&format!("{from} to {to}: {e}"));
                let (now, _) = stored(&self.server);
                let (old, new) = (below(&now, from), below(&now, to));
                for (name, file) in &all {
                    let there = old.get(name) == Some(file) || new.get(name) == Some(file);
                    assert!(there, "seed {}: {from}/{name} is lost after {e}", self.seed);
                }
                // It may have been done but for the answer.
                self.server.set_faults(Faults::none());
                if self.paths.find(from).is_ok() {
                    let done = self.paths.rename(from, to);
                    assert!(done.is_ok(), "seed {}: {from} to {to} again: {done:?} after {e}", self.seed);
                }
                let again = self.random.random();
                self.server.set_faults(Faults::new(self.rates, again));
            }
            let (now, dirs) = stored(&self.server);
            assert!(
                below(&now, from).is_empty() && !dirs.contains(from),
                "seed {}: {from} is there",
                self.seed
            );
            assert!(below(&now, to) == all && dirs.contains(to), "seed {}: {to} is not whole", self.seed);
            self.files = now;
            self.done += 1;
        }
    }

    /// What is left when nothing fails any more.
    fn end(self) -> (u64, u64, u64) {
        let struck = self.server.struck();
        self.server.set_faults(Faults::none());
        assert!(stored(&self.server).0 == self.files, "seed {}", self.seed);
        for (path, (bytes, _)) in &self.files {
            assert!(self.paths.read(path).as_ref() == Ok(bytes), "seed {}: {path}", self.seed);
        }
        // Memory of what failed is given back.
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while self.paths.fs.memory()[0].0 != 0 {
            assert!(std::time::Instant::now() < until, "seed {}: memory is not given back", self.seed);
            std::thread::sleep(Duration::from_millis(1));
        }
        // Another mount finds the same.
        let other = mount(&self.server);
        for (path, (bytes, perm)) in &self.files {
            assert!(other.read(path).as_ref() == Ok(bytes), "seed {}: {path}", self.seed);
            assert_eq!(other.find(path).unwrap().perm, *perm, "seed {}: {path}", self.seed);
        }
        (self.done, self.failed, struck)
    }
}

fn seeds() -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    match number("FREEHOLD_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("FREEHOLD_SEEDS").unwrap_or(20)).collect(),
    }
}

#[test]
fn what_was_acknowledged_is_there() {
    let (mut done, mut failed, mut struck) = (0, 0, 0);
    for seed in seeds() {
        println!("seed {seed}");
        let mut run = Run::new(seed, Rates::all(8));
        for _ in 0..STEPS {
            run.step();
        }
        let (d, f, s) = run.end();
        (done, failed, struck) = (done + d, failed + f, struck + s);
    }
    println!("{done} changes done, {failed} failed, {struck} faults");
    assert!(struck > done / 20, "too few faults struck: nothing was tested");
    assert!(failed <= done / 20, "{failed} of {done} changes failed, although everything can be tried again");
}

/// Listings that show the past mislead those who look for names, and harm no file.
#[test]
fn listings_of_the_past_harm_no_file() {
    let mut struck = 0;
    for seed in seeds() {
        println!("seed {seed}");
        let mut run = Run::new(seed, Rates { stale: 300, ..Rates::all(4) });
        let mut written: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for step in 0..STEPS {
            let path = run.path();
            let most = run.size();
            let bytes = run.bytes(most);
            // Directories that seem not to be there are errors.
            match run.paths.write(&path, &bytes) {
                Ok(()) => drop(written.insert(path, bytes)),
                Err(_) => drop(written.remove(&path)),
            }
            if step == STEPS / 2 {
                let _ = run.paths.rename("d", "gone");
            }
            let now = stored(&run.server).0;
            for (path, bytes) in &written {
                let moved = path.replace("d/", "gone/");
                let there =
                    [path, &moved].iter().any(|path| now.get(*path).is_some_and(|(found, _)| found == bytes));
                assert!(there, "seed {seed}: {path} is lost");
            }
        }
        struck += run.server.struck();
    }
    assert!(struck > 0, "no fault struck: nothing was tested");
}

/// Of two mounts that change the same files one is told when it was too late: nothing that was acknowledged to anybody is overwritten unseen.
#[test]
fn two_mounts_on_the_same_names() {
    let (mut done, mut refused) = (0, 0);
    for seed in seeds() {
        println!("seed {seed}");
        let server = Server::start(Features { part_min: 1, ..Features::ALL }, Faults::none()).unwrap();
        mount(&server).write("log", b"").unwrap();
        // Each line is added by opening, appending and closing. Who is told that it is too late does so again.
        let add = |who: u64| {
            let paths = mount(&server);
            let mut random = SmallRng::seed_from_u64(seed << 8 | who);
            let (mut lines, mut late) = (Vec::new(), 0);
            for number in 0..12 {
                let line = format!("{who} {number} {}\n", "x".repeat(random.random_range(0..3000)));
                loop {
                    let appended = (|| {
                        let ino = paths.find("log")?.ino;
                        let flags = RW | fs::OpenFlags::APPEND;
                        let handle = paths.run(paths.fs.open(&Cred::root(), ino, flags))?;
                        let written = paths.write_at(handle, 0, line.as_bytes());
                        std::thread::sleep(Duration::from_millis(random.random_range(0..4)));
                        let closed = paths.close(handle);
                        written.and(closed)
                    })();
                    match appended {
                        Ok(()) => break,
                        Err(Error::Stale) => late += 1,
                        Err(e) => panic!("seed {seed}: {e}"),
                    }
                }
                lines.push(line);
            }
            (lines, late)
        };
        let all = std::thread::scope(|scope| {
            let others: Vec<_> = (0..3).map(|who| scope.spawn(move || add(who))).collect();
            others.into_iter().map(|other| other.join().unwrap()).collect::<Vec<_>>()
        });
        let log = server.look(|bucket| String::from_utf8(bucket.objects()["log"].body.to_vec()).unwrap());
        let mut found: Vec<&str> = log.split_inclusive('\n').collect();
        let mut expected: Vec<&str> =
            all.iter().flat_map(|(lines, _)| lines.iter().map(String::as_str)).collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert!(found == expected, "seed {seed}: lines are missing, or there twice");
        done += expected.len();
        refused += all.iter().map(|(_, late)| late).sum::<u64>();
    }
    println!("{done} lines, {refused} refused");
    assert!(refused > 0, "nobody was in anybody's way: nothing was tested");
}

/// Of several mounts that give the same name to files of their own, without replacing, one does; the others keep theirs.
#[test]
fn a_name_is_given_once() {
    for seed in seeds() {
        println!("seed {seed}");
        let features = match seed % 3 {
            0 => Features { part_min: 1, ..Features::ALL },
            1 => Features { part_min: 1, rename: false, ..Features::ALL },
            _ => Features { part_min: 1, rename: false, part_copy: false, ..Features::ALL },
        };
        let server = Server::start(features, Faults::none()).unwrap();
        let gate = std::sync::Barrier::new(4);
        let give = |who: u8| {
            let paths = mount(&server);
            let own = format!("own-{who}");
            // Large ones are given their name by copies of parts.
            let bytes = vec![who; if seed % 6 == 1 { 9 << 20 } else { 3 * PART as usize }];
            paths.write(&own, &bytes).unwrap();
            let root = fs::Ino::ROOT;
            gate.wait();
            let flags = fs::RenameFlags::NOREPLACE;
            let given = paths.run(paths.fs.rename(&Cred::root(), root, own.as_bytes(), root, b"name", flags));
            assert!(matches!(given, Ok(()) | Err(Error::Exists)), "seed {seed}: {given:?}");
            given.is_ok()
        };
        let given: Vec<bool> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|who| scope.spawn(move || give(who))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(given.iter().filter(|given| **given).count(), 1, "seed {seed}: {given:?}");
        let (files, _) = stored(&server);
        for (who, given) in given.iter().enumerate() {
            let name = if *given { "name".to_owned() } else { format!("own-{who}") };
            assert!(files[&name].0.iter().all(|byte| *byte == who as u8), "seed {seed}: {name}");
        }
        assert_eq!(files.len(), 4, "seed {seed}");
    }
}

/// Bytes that have changed in the store are noticed by who reads a file from start to end, however it was written.
#[test]
fn rot_is_noticed() {
    let server = Server::start(Features { part_min: 1, ..Features::ALL }, Faults::none()).unwrap();
    let paths = mount(&server);
    for len in [100, 3 * PART, 40 * PART] {
        paths.write("file", &pattern(len, len as usize)).unwrap();
        let read_in_pieces = || {
            let handle = paths.open("file")?;
            let pieces = (0..len.div_ceil(3000)).map(|n| paths.read_at(handle, n * 3000, 3000));
            let read = pieces.collect::<fs::Result<Vec<_>>>();
            paths.close(handle)?;
            read.map(|pieces| pieces.concat())
        };
        assert_eq!(read_in_pieces(), Ok(pattern(len, len as usize)), "{len} bytes");
        for at in [0, len / 2, len - 1] {
            server.look(|bucket| bucket.rot("file", at as usize));
            assert!(
                matches!(read_in_pieces(), Err(Error::Remote { errno: libc::EIO, .. })),
                "{len} bytes, at {at}"
            );
            server.look(|bucket| bucket.rot("file", at as usize));
        }
        assert!(read_in_pieces().is_ok());
    }
}

/// Somebody puts the same content again, with a checksum of another sort, while it is read: that is no damage.
#[test]
fn another_sort_of_checksum_is_no_damage() {
    let server = Server::start(Features { part_min: 1, ..Features::ALL }, Faults::none()).unwrap();
    // More than is read ahead at first.
    let content = pattern(1, 400 * PART as usize);
    mount(&server).write("file", &content).unwrap();
    let paths = mount(&server);
    let handle = paths.open("file").unwrap();
    let reads = |at: u64| {
        let read = paths.read_at(handle, at * PART, PART as usize).unwrap();
        assert!(read == content[(at * PART) as usize..][..PART as usize], "{at}");
    };
    reads(0);
    server.look(|bucket| bucket.sum_anew("file", &Crc::CRC64NVME));
    let again = paths.open("file").unwrap();
    (1..400).for_each(reads);
    paths.close(handle).unwrap();
    paths.close(again).unwrap();
}

/// No memory is taken for what a store only claims.
#[test]
fn answers_longer_than_can_be_are_refused() {
    let server = Server::start(Features { part_min: 1, ..Features::ALL }, Faults::none()).unwrap();
    server.set_faults(Faults::new(Rates { endless: 1000, ..Rates::default() }, 1));
    assert!(matches!(open_with(&server, |_| {}), Err(StoreError::Refused(_))));
    server.set_faults(Faults::none());
    let paths = mount(&server);
    paths.write("f", b"bytes").unwrap();
    server.set_faults(Faults::new(Rates { endless: 1000, ..Rates::default() }, 1));
    assert!(paths.read("f").is_err());
}
