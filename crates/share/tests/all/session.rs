//! Sessions between a server and clients of this process, and of others that are killed.
//!
//! Verifies that every call through a session has the outcome that it has without one (a model is served and compared with a model
//! beside it), that many clients and threads get along, and that what a dead client held is given back. Does not verify
//! hostile clients (tests/all/hostile.rs).

use fs::client::OpenOptions as Open;
use fs::{Client, Cred, Error, FileSystem, Ino, LockKind, OpenFlags};
use share::{Remote, Server, server::Options};
use sim::differential::{Settings, Side, Trouble, assert_same};
use sim::{Driver, HandClock, Knobs, Model, Ticking, Tolerance};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn socket() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    (dir, path)
}

/// Runs calls over the session, on the clock of the model that is served.
#[derive(Clone)]
struct OverSession {
    remote: Remote,
    clock: HandClock,
    /// What was posted is done before time goes on.
    settles: bool,
    _server: Arc<(Server, tempfile::TempDir)>,
}

impl Driver for OverSession {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.remote.block_on(future)
    }
    fn before_op(&self, index: usize) {
        if self.settles {
            self.remote.block_on(self.remote.statfs()).unwrap();
        }
        self.clock.set(sim::driver::FIRST_TICK + index as i64);
    }
}

fn model() -> Side<Model, Ticking> {
    let driver = Ticking::default();
    Side::new(Model::new(driver.0.clock()), driver)
}

fn served_model(settles: bool) -> Side<Remote, OverSession> {
    let clock = HandClock::default();
    clock.set(sim::driver::FIRST_TICK - 1);
    let (dir, path) = socket();
    let server = Server::start(Arc::new(Model::new(clock.clock())), &path, Options::default()).unwrap();
    let remote = Remote::connect(&path).unwrap();
    Side::new(remote.clone(), OverSession { remote, clock, settles, _server: Arc::new((server, dir)) })
}

#[test]
fn same_outcomes_as_without_a_session() {
    if Cred::of_process().uid != 0 {
        return eprintln!("skipped: the operations are those of root");
    }
    let plain = |knobs: Knobs| Knobs { users: false, checked: false, ..knobs };
    // That a file was read may be posted, and is dated by when the manager does it.
    for settles in [true, false] {
        let tolerance = Tolerance { atime: settles, ..Tolerance::NONE };
        let settings = Settings { tolerance, tree_every: 500, close_at_end: true, trouble: Trouble::NONE };
        let served = || served_model(settles);
        assert_same(model, served, 1..4, plain(Knobs::everything()), 2000, settings);
        assert_same(model, served, 4..6, plain(Knobs::data_heavy()), 1500, settings);
    }
}

fn served() -> (Arc<Model>, Server, tempfile::TempDir) {
    let (dir, path) = socket();
    let model = Arc::new(Model::new(HandClock::default().clock()));
    let server = Server::start(model.clone(), &path, Options::default()).unwrap();
    (model, server, dir)
}

#[test]
fn many_threads_of_many_clients() {
    let (_, server, _dir) = served();
    std::thread::scope(|s| {
        for client in 0..4 {
            let remote = Remote::connect(server.path()).unwrap();
            let fs = Client::new(Arc::new(remote), Cred::root());
            for thread in 0..10 {
                let fs = fs.clone().blocking();
                s.spawn(move || {
                    let dir = format!("/c{client}-{thread}");
                    fs.mkdir(&dir, 0o755).unwrap();
                    for i in 0..40 {
                        let bytes = vec![i as u8; 1000 * i];
                        fs.write(format!("{dir}/f{i}"), &bytes).unwrap();
                        assert!(fs.read(format!("{dir}/f{i}")).unwrap() == bytes);
                    }
                    assert_eq!(fs.read_dir(&dir).unwrap().count(), 40);
                });
            }
        }
    });
}

#[test]
fn futures_of_other_executors() {
    let (_, server, _dir) = served();
    let remote = Arc::new(Remote::connect(server.path()).unwrap());
    let fs = Client::new(remote, Cred::root());
    fs::block_on(async {
        fs.write("/f", b"hello").await.unwrap();
        assert_eq!(fs.read("/f").await.unwrap(), b"hello");
        assert_eq!(fs.stat("/g").await, Err(Error::NotFound));
    });
}

#[test]
fn a_call_that_is_given_up_frees_its_slot() {
    let (_, server, _dir) = served();
    let remote = Arc::new(Remote::connect(server.path()).unwrap());
    let fs = Client::new(remote.clone(), Cred::root()).blocking();
    let how = Open::new().read(true).write(true).create(true);
    let (a, b) = (fs.open("/f", how).unwrap(), fs.open("/f", how).unwrap());
    a.lock().unwrap();
    // More waits than there are slots, each given up.
    for _ in 0..100 {
        remote.block_on(async {
            let mut wait = std::pin::pin!(remote.flock(b.handle(), Some(LockKind::Shared), true));
            let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(wait.as_mut().poll(cx))).await;
            assert!(polled.is_pending());
        });
    }
    a.unlock().unwrap();
    b.lock().unwrap();
    assert_eq!(a.try_lock(), Err(Error::WouldBlock));
}

/// Whoever is polled once more than he waits, as the requests of a queue are.
#[test]
fn a_sleeping_manager_is_woken_for_what_nobody_waits_for_yet() {
    let (model, server, _dir) = served();
    let remote = Remote::connect(server.path()).unwrap();
    remote.block_on(remote.ping()).unwrap();
    // Long enough for it to sleep.
    std::thread::sleep(Duration::from_millis(50));
    let root = Cred::root();
    let mut made = std::pin::pin!(remote.mkdir(&root, Ino::ROOT, b"d", 0o755));
    remote.block_on(std::future::poll_fn(|cx| {
        assert!(made.as_mut().poll(cx).is_pending());
        std::task::Poll::Ready(())
    }));
    // Not through the manager, which that would wake.
    let is_made = || fs::block_on(model.lookup(&root, Ino::ROOT, b"d")).is_ok();
    let begun = Instant::now();
    while !is_made() {
        assert!(begun.elapsed() < Duration::from_secs(10), "the manager sleeps still");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(remote.block_on(made).is_ok());
}

#[test]
fn the_manager_goes_away() {
    let (model, server, _dir) = served();
    let remote = Arc::new(Remote::connect(server.path()).unwrap());
    let fs = Client::new(remote, Cred::root()).blocking();
    fs.write("/f", b"x").unwrap();
    let file = fs.open("/f", Open::new().read(true).write(true)).unwrap();
    let other = fs.open("/f", Open::new().read(true).write(true)).unwrap();
    file.lock().unwrap();
    std::thread::scope(|s| {
        // One waits in a call, another calls afterwards: both are told.
        let waiting = s.spawn(|| other.lock());
        std::thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        server.stop();
        assert!(matches!(waiting.join().unwrap(), Err(Error::Closed | Error::Interrupted)));
        assert_eq!(fs.stat("/f"), Err(Error::Closed));
        assert!(begun.elapsed() < Duration::from_secs(2));
    });
    let root = Cred::root();
    fs::block_on(async {
        let attr = model.lookup(&root, Ino::ROOT, b"f").await.unwrap();
        let handle = model.open(&root, attr.ino, OpenFlags::READ).await.unwrap();
        model.flock(handle, Some(LockKind::Exclusive), false).await.expect("locks of sessions have ended");
    });
}

#[test]
fn futures_of_other_executors_never_hang() {
    let (_, server, _dir) = served();
    let remote = Arc::new(Remote::connect(server.path()).unwrap());
    let fs = Client::new(remote.clone(), Cred::root());
    let how = Open::new().read(true).write(true).create(true);
    fs::block_on(async {
        let (a, b) = (fs.open("/f", how).await.unwrap(), fs.open("/f", how).await.unwrap());
        a.lock().await.unwrap();
        // Every slot waits and is given up at once: the next call finds none free, and nobody to say when one is.
        let mut waits: Vec<_> =
            (0..32).map(|_| Box::pin(remote.flock(b.handle(), Some(LockKind::Shared), true))).collect();
        std::future::poll_fn(|cx| {
            assert!(waits.iter_mut().all(|w| w.as_mut().poll(cx).is_pending()));
            std::task::Poll::Ready(())
        })
        .await;
        drop(waits);
        assert_eq!(fs.stat("/f").await.unwrap().size, 0);
        // The manager ends while a call waits in it.
        std::thread::scope(|s| {
            let begun = Instant::now();
            s.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                server.stop();
            });
            assert!(matches!(fs::block_on(b.lock()), Err(Error::Closed | Error::Interrupted)));
            assert!(begun.elapsed() < Duration::from_secs(5));
        });
        assert_eq!(fs.stat("/f").await, Err(Error::Closed));
    });
}

/// A close is not waited for; it is done all the same before whatever anybody asks afterwards.
#[test]
fn what_one_client_closed_is_closed_for_all() {
    let (_, server, _dir) = served();
    let connect = || Arc::new(Remote::connect(server.path()).unwrap());
    let (one, two) = (connect(), connect());
    let a = Client::new(one, Cred::root()).blocking();
    let b = Client::new(two.clone(), Cred::root()).blocking();
    let free = || b.statfs().unwrap().inodes_free;
    let before = free();
    for round in 0..300 {
        let file = a.open("/f", Open::new().read(true).write(true).create(true)).unwrap();
        file.write_all_at(b"something", 0).unwrap();
        let ino = b.stat("/f").unwrap().ino;
        a.unlink("/f").unwrap();
        // The manager has just answered, so that it is awake and the close goes one way.
        assert_eq!(free(), before - 1, "open without a name, round {round}");
        drop(file);
        if round % 3 == 0 {
            assert_eq!(two.block_on(two.getattr(ino, None)), Err(Error::Stale), "round {round}");
        }
        assert_eq!(free(), before, "round {round}");
        assert_eq!(two.block_on(two.getattr(ino, None)), Err(Error::Stale), "round {round}");
    }
}

/// Runs as another process: takes a lock, opens files, one of them deleted, and waits to be killed.
#[test]
#[ignore = "the part of another process"]
fn victim() {
    let Ok(path) = std::env::var("SHARE_VICTIM") else { return };
    let fs = Client::new(Arc::new(Remote::connect(path).unwrap()), Cred::root()).blocking();
    let how = Open::new().read(true).write(true).create(true);
    let file = fs.open("/locked", how).unwrap();
    file.lock().unwrap();
    file.lock_range(LockKind::Exclusive, 0, 10, false).unwrap();
    let more: Vec<_> = (0..20).map(|i| fs.open(format!("/open{i}"), how).unwrap()).collect();
    fs.unlink("/open0").unwrap();
    fs.write("/ready", b"").unwrap();
    std::thread::sleep(Duration::from_secs(60));
    drop(more);
}

#[test]
fn what_a_killed_client_held_is_given_back() {
    let (_, server, _dir) = served();
    let fs = Client::new(Arc::new(Remote::connect(server.path()).unwrap()), Cred::root()).blocking();
    let mut victim = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["session::victim", "--exact", "--ignored", "--nocapture"])
        .env("SHARE_VICTIM", server.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while !fs.exists("/ready").unwrap() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the victim does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
    let file = fs.open("/locked", Open::new().read(true).write(true)).unwrap();
    assert_eq!(file.try_lock(), Err(Error::WouldBlock));
    victim.kill().unwrap();
    let killed = Instant::now();
    file.lock().unwrap();
    file.lock_range(LockKind::Exclusive, 0, 10, true).unwrap();
    assert!(killed.elapsed() < Duration::from_secs(2));
    victim.wait().unwrap();
    drop(file);
    let begun = Instant::now();
    while server.counters().handles > 0 || server.counters().sessions > 1 {
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", server.counters());
        fs.exists("/ready").unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
}
