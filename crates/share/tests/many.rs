//! Many clients of one manager, which is a process of its own so that its memory, descriptors and processor time can be measured.
//!
//! Verifies that a thousand sessions with 64 of them busy all work, that a session costs a bounded amount of memory which comes back
//! with its end, and that idle clients cost no processor time. Where the limit of descriptors cannot be raised far enough there are fewer
//! clients, which is said.

use fs::client::OpenOptions as Open;
use fs::{Client, Cred, FileSystem};
use share::{Remote, Server, server::Options};
use sim::{HandClock, Model};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Serves until its parent closes the pipe.
#[test]
#[ignore = "the part of another process"]
fn manager() {
    let Some(path) = std::env::var_os("SHARE_MANY") else { return };
    descriptors();
    let model = Arc::new(Model::new(HandClock::default().clock()));
    let server = Server::start(model, &PathBuf::from(path), Options::default()).unwrap();
    println!("\nserving");
    std::io::stdin().lines().for_each(drop);
    server.stop();
}

/// As many descriptors as may be had, for this process.
fn descriptors() -> u64 {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

struct Manager {
    child: Child,
    path: PathBuf,
    _dir: tempfile::TempDir,
    /// Where it says what it likes; nobody listens.
    _said: BufReader<ChildStdout>,
}

impl Manager {
    fn start() -> Manager {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["manager", "--exact", "--ignored", "--nocapture"])
            .env("SHARE_MANY", &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let serves = said.by_ref().lines().map_while(Result::ok).any(|l| l == "serving");
        assert!(serves, "the manager does not come");
        Manager { child, path, _dir: dir, _said: said }
    }

    fn connect(&self) -> Remote {
        Remote::connect(&self.path).unwrap()
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap()
    }

    /// Resident memory, KiB.
    fn resident(&self) -> u64 {
        self.memory("VmRSS:")
    }

    fn memory(&self, which: &str) -> u64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|l| l.strip_prefix(which)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Descriptors, but for those of windows, of which there are 512 at most, however many clients there are.
    fn open(&self) -> usize {
        let all = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().flatten();
        let to = all.filter_map(|e| std::fs::read_link(e.path()).ok());
        let (windows, others): (Vec<_>, Vec<_>) =
            to.partition(|to| to.to_string_lossy().contains("freehold window"));
        assert!(windows.len() <= 512);
        others.len()
    }

    /// Processor time, in ticks of a hundredth of a second.
    fn ticks(&self) -> u64 {
        let stat = self.proc("stat");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_thousand_clients_of_which_64_work() {
    // A client needs two, the manager three; both have some of their own.
    let room = (descriptors().saturating_sub(900) / 3) as usize;
    let clients = room.min(1000);
    if clients < 1000 {
        eprintln!("with {clients} clients only: the limit of descriptors is too low for 1000");
    }
    let busy = clients.min(64);
    let manager = Manager::start();
    // The first sessions bring in what all need.
    for _ in 0..20 {
        Client::new(Arc::new(manager.connect()), Cred::root()).blocking().write("/warm", b"x").unwrap();
    }
    let (memory, open) = (manager.resident(), manager.open());
    let own = manager.memory("RssAnon:");
    let begun = Instant::now();
    let all: Vec<Arc<Remote>> = (0..clients).map(|_| Arc::new(manager.connect())).collect();
    let took = begun.elapsed();
    let connected = manager.resident();
    std::thread::scope(|s| {
        for (n, remote) in all.iter().enumerate().step_by(clients / busy).take(busy) {
            s.spawn(move || {
                let fs = Client::new(remote.clone(), Cred::root()).blocking();
                let dir = format!("/d{n}");
                fs.mkdir(&dir, 0o755).unwrap();
                for i in 0..12usize {
                    let (name, bytes) = (format!("{dir}/f{}", i % 10), vec![i as u8; 2000 * i]);
                    fs.write(&name, &bytes).unwrap();
                    assert!(fs.read(&name).unwrap() == bytes);
                    let file = fs.open(&name, Open::new().read(true).write(true)).unwrap();
                    file.lock().unwrap();
                    file.fsync().unwrap();
                    assert_eq!(fs.stat(&name).unwrap().size, 2000 * i as u64);
                }
                (0..10).for_each(|i| fs.unlink(format!("{dir}/f{i}")).unwrap());
                fs.rmdir(&dir).unwrap();
            });
        }
    });
    // Everybody else is there still.
    for remote in &all {
        remote.block_on(remote.ping()).unwrap();
    }
    let worked = manager.resident();
    let each = |now: u64| now.saturating_sub(memory) as f64 / clients as f64;
    println!(
        "{clients} sessions begun in {took:?}: {:.1} KiB each, {:.1} KiB after {busy} worked; {} descriptors each",
        each(connected),
        each(worked),
        (manager.open() - open) as f64 / clients as f64,
    );
    assert!(each(connected) < 64.0 && each(worked) < 512.0, "memory of sessions");
    drop(all);
    let begun = Instant::now();
    while manager.open() > open {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} descriptors, {open} before", manager.open());
        std::thread::sleep(Duration::from_millis(20));
    }
    let after = manager.resident();
    println!("KiB before, with all, after work, after the end: {memory} {connected} {worked} {after}");
    // With the descriptors of sessions their memory has gone. What is shared still are windows of files, which have a limit; what is not is what
    // the allocator keeps.
    let left = manager.memory("RssAnon:");
    println!("of it not shared: {own} KiB before, {left} after");
    assert!(left < own + (16 << 10) && after < memory + (136 << 10), "memory does not come back");
}

#[test]
fn idle_clients_cost_no_time() {
    descriptors();
    let manager = Manager::start();
    let all: Vec<_> = (0..100)
        .map(|i| {
            let fs = Client::new(Arc::new(manager.connect()), Cred::root()).blocking();
            let file = fs.open(format!("/f{i}"), Open::new().read(true).write(true).create(true)).unwrap();
            file.lock().unwrap();
            (fs, file)
        })
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    let before = manager.ticks();
    std::thread::sleep(Duration::from_secs(5));
    let ticks = manager.ticks() - before;
    println!("100 idle clients: {ticks} ticks of 10 ms in 5 s");
    assert!(ticks < 5, "{ticks} ticks in 5 s");
    drop(all);
}
