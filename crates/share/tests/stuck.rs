//! Clients whose process is stopped while they hold something: real processes, and SIGSTOP.
//!
//! Verifies that a stopped client holds nobody up but by its locks, that a lock is nobody's but its holder's for as long as the operator wants
//! nothing else, that the operator sees who keeps others waiting, and that a session that is ended by force, or by the time that the operator
//! has set, gives everything back and harms nobody else.

use block::{MkfsOptions, OpenOptions, Volume};
use fs::client::OpenOptions as Open;
use fs::{Blocking, Client, Cred, Error, LockKind, RenameFlags};
use media::RamMedia;
use share::server::stats::SessionStats;
use share::{Remote, Server, server::Options};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const RW: Open = Open::new().read(true).write(true).create(true);

struct Rig {
    server: Server,
    volume: Volume,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new(lock_timeout: Option<Duration>) -> Rig {
        let media = Arc::new(RamMedia::new(64 << 20).unwrap());
        block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
        let volume = Volume::open(media, OpenOptions::default()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let options = Options { lock_timeout, ..Options::default() };
        let server = Server::start(Arc::new(volume.clone()), &dir.path().join("socket"), options).unwrap();
        Rig { server, volume, _dir: dir }
    }

    fn connect(&self) -> Blocking<Remote> {
        Client::new(Arc::new(Remote::connect(self.server.path()).unwrap()), Cred::root()).blocking()
    }

    fn session_of(&self, pid: u32) -> Option<SessionStats> {
        self.server.stats().sessions.into_iter().find(|s| s.pid == pid as i32)
    }

    fn done(self) {
        self.server.stop();
        self.volume.close_blocking().unwrap();
    }
}

/// Another process with a session, which does what it is told and says how that ended.
struct Other {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// What it does.
#[test]
#[ignore = "the part of another process"]
fn other() {
    let Ok(path) = std::env::var("SHARE_OTHER") else { return };
    let fs = Client::new(Arc::new(Remote::connect(path).unwrap()), Cred::root()).blocking();
    let file = fs.open("/f", RW).unwrap();
    println!("\n=ready");
    for line in std::io::stdin().lines() {
        let done = match line.unwrap().as_str() {
            "flock" => file.lock(),
            "record" => file.lock_range(LockKind::Exclusive, 0, 10, true),
            "read" => file.read_at(&mut [0; 4096], 0).map(drop),
            "orphan" => fs.unlink("/f"),
            what => panic!("{what}"),
        };
        println!("={done:?}");
    }
}

impl Other {
    fn new(rig: &Rig) -> Other {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["other", "--exact", "--ignored", "--nocapture"])
            .env("SHARE_OTHER", rig.server.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut other = Other { child, to, from };
        assert_eq!(other.said(), "ready");
        other
    }
    fn said(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.from.read_line(&mut line).unwrap() > 0, "the other process ended");
            if let Some(said) = line.trim_end().strip_prefix('=') {
                return said.into();
            }
        }
    }
    fn asked(&mut self, what: &str) -> String {
        writeln!(self.to, "{what}").unwrap();
        self.said()
    }
    fn signal(&self, signal: i32) {
        // SAFETY: kill has no memory arguments; the process is a child that was not waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `wait` beside `during`, which is told whether it has ended; how long it took.
fn beside(wait: impl FnOnce() + Send, during: impl FnOnce(&AtomicBool)) -> Duration {
    let (over, begun) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|s| {
        let waiting = s.spawn(|| {
            wait();
            over.store(true, Ordering::Release);
            begun.elapsed()
        });
        during(&over);
        waiting.join().unwrap()
    })
}

#[test]
fn a_stopped_client_keeps_its_locks_and_nothing_else() {
    let rig = Rig::new(None);
    let (mut other, fs) = (Other::new(&rig), rig.connect());
    for lock in ["flock", "record"] {
        assert_eq!(other.asked(lock), "Ok(())");
    }
    fs.write("/f", vec![1; 100_000]).unwrap();
    assert_eq!(other.asked("read"), "Ok(())");
    other.signal(libc::SIGSTOP);
    // Everything but the locks is as if it were not there, though it has the file open, mapped and known.
    let begun = Instant::now();
    let file = fs.open("/f", RW).unwrap();
    for round in 0..50u8 {
        file.write_all_at(&vec![round; 50_000], 1000).unwrap();
        file.fsync().unwrap();
        fs.rename("/f", "/g", RenameFlags::empty()).unwrap();
        fs.rename("/g", "/f", RenameFlags::empty()).unwrap();
        fs.chmod("/f", 0o600 + (round as u16 & 7)).unwrap();
    }
    file.set_len(0).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5));
    // The locks are its own for as long as it lives; who looks sees that.
    let pid = other.child.id();
    assert_eq!((file.try_lock(), fs.stat("/f").unwrap().size), (Err(Error::WouldBlock), 0));
    let observer = rig.server.observer();
    let took = beside(
        || file.lock().unwrap(),
        |over| {
            std::thread::sleep(Duration::from_millis(600));
            assert!(!over.load(Ordering::Acquire), "robbed of a lock");
            let s = rig.session_of(pid).unwrap();
            assert_eq!((s.locks, s.waiting, s.calls_now, s.handles), (2, 1, 0, 1));
            let seen = Duration::from_millis(500);
            assert!(s.waited >= seen && s.locks_held >= s.waited && s.idle >= seen, "{s:?}");
            // Whoever waits makes nobody wait.
            let of_others = rig.server.stats().sessions.into_iter().filter(|s| s.pid != pid as i32);
            assert_eq!(of_others.map(|s| (s.locks, s.waiting, s.calls_now)).collect::<Vec<_>>(), [(0, 0, 1)]);
            assert!(observer.evict(s.session) && !observer.evict(u64::MAX));
        },
    );
    assert!(took < Duration::from_secs(2));
    file.lock_range(LockKind::Exclusive, 0, 10, false).unwrap();
    assert!(rig.session_of(pid).is_none());
    // It finds out when it goes on.
    other.signal(libc::SIGCONT);
    for call in ["orphan", "flock"] {
        assert!(other.asked(call).contains("Closed"), "a session that was ended");
    }
    assert!(fs.exists("/f").unwrap());
    assert_eq!(rig.server.counters().sessions.min(1), 1);
    drop((file, fs));
    rig.done();
}

#[test]
fn the_operator_may_set_a_time() {
    let rig = Rig::new(Some(Duration::from_millis(400)));
    let fs = rig.connect();
    let file = fs.open("/f", RW).unwrap();
    for lock in ["flock", "record"] {
        let mut other = Other::new(&rig);
        assert_eq!(other.asked(lock), "Ok(())");
        other.signal(libc::SIGSTOP);
        // Nobody waits: nothing happens.
        std::thread::sleep(Duration::from_millis(900));
        assert!(rig.session_of(other.child.id()).is_some_and(|s| s.locks == 1));
        let took = beside(
            || match lock {
                "flock" => file.lock().unwrap(),
                _ => file.lock_range(LockKind::Exclusive, 5, 1, true).unwrap(),
            },
            |_| {},
        );
        assert!((Duration::from_millis(390)..Duration::from_secs(3)).contains(&took), "{took:?}");
        file.unlock().unwrap();
        file.unlock_range(0, 100).unwrap();
    }
    // Who is at work is left alone, however long it keeps others waiting.
    let mut other = Other::new(&rig);
    assert_eq!(other.asked("flock"), "Ok(())");
    beside(
        || file.lock().unwrap(),
        |over| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(1200) {
                assert_eq!(other.asked("record"), "Ok(())");
                assert!(!over.load(Ordering::Acquire), "robbed of a lock");
                std::thread::sleep(Duration::from_millis(20));
            }
            drop(other);
        },
    );
    // Nor is one whose call waits for somebody else.
    let mut other = Other::new(&rig);
    assert_eq!(other.asked("record"), "Ok(())");
    let (third, pid) = (rig.connect(), other.child.id());
    let again = third.open("/f", RW).unwrap();
    writeln!(other.to, "flock").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    beside(
        || again.lock_range(LockKind::Exclusive, 0, 1, true).unwrap(),
        |over| {
            for _ in 0..12 {
                std::thread::sleep(Duration::from_millis(100));
                // The one that it waits for is no idler either.
                fs.stat("/").unwrap();
                file.read_at(&mut [0], 0).unwrap();
                fs.chmod("/f", 0o644).unwrap();
            }
            assert!(!over.load(Ordering::Acquire) && rig.session_of(pid).is_some(), "robbed of a lock");
            file.unlock().unwrap();
            assert_eq!(other.said(), "Ok(())");
            drop(other);
        },
    );
    drop((again, third, file, fs));
    rig.done();
}
