//! A server that grants write leases, with a door beside it.

pub mod between;

use block::{MkfsOptions, OpenOptions, Volume};
use fs::client::{BlockingFile, OpenOptions as Open};
use fs::watched::Watched;
use fs::{Blocking, Client, Cred, FileSystem};
use media::RamMedia;
use media::flash::{Config, SimFlash};
use share::{Remote, Server, server::Options};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const PAGE: usize = 4096;
pub const NEW: Open = Open::new().read(true).write(true).create_new(true);
pub const RW: Open = Open::new().read(true).write(true);

pub struct Rig<F: FileSystem> {
    pub server: Option<Server>,
    /// Another door.
    pub beside: Blocking<Watched<F>>,
    pub doors: Watched<F>,
    pub dir: tempfile::TempDir,
    /// How many directories are lent at most.
    directories_max: usize,
}

pub fn volume(bytes: u64) -> Arc<Volume> {
    let media = Arc::new(RamMedia::new(bytes).unwrap());
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    Arc::new(Volume::open(media, OpenOptions::default()).unwrap())
}

/// A volume on a device with a cache of its own.
pub fn volume_on_flash(bytes: u64) -> (Arc<SimFlash>, Arc<Volume>) {
    let flash = Arc::new(SimFlash::new(Config::new(bytes)).unwrap());
    block::mkfs(flash.clone(), &MkfsOptions::default()).unwrap();
    (flash.clone(), Arc::new(Volume::open(flash, OpenOptions::default()).unwrap()))
}

/// What would be there if the power went at this very moment.
pub fn without_power(flash: &SimFlash) -> Blocking<Volume> {
    let image = Arc::new(flash.crash_image(|_, _| false));
    let after = Volume::open(image, OpenOptions::default()).unwrap();
    Client::new(Arc::new(after), Cred::root()).blocking()
}

impl<F: FileSystem> Rig<F> {
    pub fn new(fs: Arc<F>) -> Rig<F> {
        Rig::over(Watched::new(fs))
    }

    /// One that lends no directories, only new files, as it is where several clients make names in one directory.
    pub fn shared(fs: Arc<F>) -> Rig<F> {
        Rig::lending(Watched::new(fs), 0)
    }

    pub fn over(doors: Watched<F>) -> Rig<F> {
        Rig::lending(doors, 64)
    }

    /// One that lends so many directories.
    pub fn lending(doors: Watched<F>, directories_max: usize) -> Rig<F> {
        let dir = tempfile::tempdir().unwrap();
        let beside = Client::new(Arc::new(doors.clone()), Cred::root()).blocking();
        let mut rig = Rig { server: None, beside, doors, dir, directories_max };
        rig.serve();
        rig
    }

    /// Another manager, of a volume of which nothing was lost.
    pub fn serve(&mut self) {
        drop(self.server.take());
        let opening = fs::Opening { volume: [1; 16], number: 7, after: [0; 4] };
        let (directories_max, directory_pause) = (self.directories_max, Duration::ZERO);
        let new_files_max = 1024;
        let options = Options {
            opening,
            lease_windows_max: 64,
            directories_max,
            new_files_max,
            directory_pause,
            ..Options::default()
        };
        let path = self.dir.path().join("socket");
        self.server = Some(Server::start_at_door(self.doors.door(), &path, options).unwrap());
    }

    pub fn client(&self) -> Blocking<Remote> {
        let path = self.dir.path().join("socket");
        Client::new(Arc::new(Remote::connect(path).unwrap()), Cred::of_process()).blocking()
    }

    /// Calls of one kind so far. Those that were answered are counted a moment later.
    pub fn count(&self, name: &str) -> u64 {
        let server = self.server.as_ref().unwrap();
        let begun = Instant::now();
        let is_busy = || server.stats().sessions.iter().any(|session| session.calls_now > 0);
        while is_busy() && begun.elapsed() < Duration::from_secs(1) {
            std::thread::yield_now();
        }
        let stats = server.stats();
        stats.door.calls.iter().find(|c| c.name == name).map_or(0, |c| c.calls())
    }

    pub fn calls(&self) -> u64 {
        let server = self.server.as_ref().unwrap();
        let sleeps = server.counters().sleeps;
        let begun = Instant::now();
        while server.counters().sleeps == sleeps && begun.elapsed() < Duration::from_millis(300) {
            std::thread::sleep(Duration::from_millis(5));
        }
        server.counters().calls
    }
}

/// The client has the directory to itself from now on. What was made for that is there still.
pub fn lent<F: FileSystem>(rig: &Rig<F>, client: &Blocking<Remote>, dir: &str) {
    let ino = client.stat(dir).unwrap().ino;
    for n in 0..40 {
        drop(client.open(format!("{dir}/lent-{n}"), Open::new().write(true).create(true)).unwrap());
        if rig.doors.lends_on(ino) {
            return;
        }
    }
    panic!("no lease on {dir}");
}

/// As [`lent`], of a new directory.
pub fn made_and_lent<F: FileSystem>(rig: &Rig<F>, client: &Blocking<Remote>, dir: &str) {
    client.mkdir(dir, 0o755).unwrap();
    lent(rig, client, dir);
}

/// What is in the directory, in order, without what was made for [`lent`].
pub fn names<F: FileSystem>(client: &Blocking<F>, dir: &str) -> Vec<String> {
    let mut all: Vec<String> = client
        .read_dir(dir)
        .unwrap()
        .map(|e| String::from_utf8_lossy(e.unwrap().name.as_encoded_bytes()).into_owned())
        .filter(|name| !name.starts_with("lent-"))
        .collect();
    all.sort();
    all
}

/// Bytes that no other file has.
pub fn bytes(of: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (of.wrapping_mul(131) + i / 5) as u8).collect()
}

/// Numbers that look random, the same for the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

pub fn page(version: u64) -> Vec<u8> {
    version.to_le_bytes().repeat(PAGE / 8)
}

/// A file of so many pages, and a lease on its first window.
pub fn leased<F: FileSystem>(
    rig: &Rig<F>,
    client: &Blocking<Remote>,
    name: &str,
    pages: usize,
) -> BlockingFile<Remote> {
    let file = client.open(name, NEW).unwrap();
    (0..pages).for_each(|i| file.write_all_at(&page(0), (i * PAGE) as u64).unwrap());
    (0..4).for_each(|_| file.write_all_at(&page(0), 0).unwrap());
    assert!(rig.doors.lends(), "no lease");
    file
}
