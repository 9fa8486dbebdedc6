//! What a server tells of itself while it serves.
//!
//! Verifies that calls, bytes and sessions are counted, that those who are gone are left out, and that looking at an idle server does
//! not wake it. Does not verify times, which are the machine's.

use fs::client::OpenOptions as Open;
use fs::{Client, Cred};
use share::server::stats::Stats;
use share::{Remote, Server, server::Options};
use sim::{HandClock, Model};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn eventually(server: &Server, what: &str, done: impl Fn(&Stats) -> bool) -> Stats {
    let start = Instant::now();
    loop {
        let stats = server.stats();
        if done(&stats) {
            return stats;
        }
        assert!(start.elapsed().as_secs() < 10, "{what}: {stats:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn calls(stats: &Stats, name: &str) -> (u64, u64) {
    stats.door.calls.iter().find(|c| c.name == name).map_or((0, 0), |c| (c.calls(), c.errors))
}

#[test]
fn calls_and_sessions_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let model = Arc::new(Model::new(HandClock::default().clock()));
    let server = Server::start(model, &dir.path().join("socket"), Options::default()).unwrap();
    assert_eq!(server.stats(), Stats { sleeps: server.stats().sleeps, ..Stats::default() });
    let connect = || {
        let remote = Remote::connect(server.path()).unwrap();
        Client::new(Arc::new(remote), Cred::root()).blocking()
    };
    let (one, two) = (connect(), connect());
    let file = one.open("/f", Open::new().read(true).write(true).create(true)).unwrap();
    file.write_all_at(&[7; 5000], 0).unwrap();
    file.read_at(&mut [0; 3000], 1000).unwrap();
    assert!(two.stat("/none").is_err());
    let stats = eventually(&server, "all are counted", |s| {
        s.sessions.len() == 2 && s.sessions.iter().all(|s| s.calls > 0) && s.door.bytes_read > 0
    });
    assert_eq!((stats.door.bytes_read, stats.door.bytes_written), (3000, 5000));
    assert_eq!(
        (calls(&stats, "write"), calls(&stats, "read"), calls(&stats, "mkdir")),
        ((1, 0), (1, 0), (0, 0))
    );
    assert_eq!(
        stats.door.calls.iter().map(|c| c.errors).sum::<u64>(),
        stats.door.calls.iter().filter(|c| c.errors > 0).count() as u64
    );
    let [a, b] = &stats.sessions[..] else { panic!("{stats:?}") };
    assert_eq!(
        (a.pid as u32, a.uid, a.handles, b.handles),
        (std::process::id(), Cred::of_process().uid, 1, 0)
    );
    assert!(a.session < b.session && a.bytes_written == 5000 && b.bytes_read == 0 && a.idle <= a.age);
    drop((file, one));
    let stats = eventually(&server, "who is gone is left out", |s| s.sessions.len() == 1);
    assert!(stats.sessions[0].session == b.session && stats.door.bytes_written == 5000);

    // Asleep, and looked at.
    std::thread::sleep(Duration::from_millis(50));
    let before = server.counters().sleeps;
    for _ in 0..20 {
        server.stats();
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(server.counters().sleeps, before);
    let observer = server.observer();
    server.stop();
    assert!(observer.stats().sessions.is_empty() && two.stat("/f").is_err());
}
