//! Direct transfers between the device and the memory of sessions: they are made, agree with everything else, and neither a client that gives its calls
//! up nor one that goes away has the device write where something else stands by then.

use block::{MkfsOptions, OpenOptions, Volume};
use fs::client::OpenOptions as Open;
use fs::{Client, Cred, Error, FileSystem, block_on};
use share::{Remote, Server, server::Options};
use sim::Gate;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
const MIB: usize = 1 << 20;

/// How many clients have their memory lent is counted for the process: who wants all of it is alone.
static PROCESS: RwLock<()> = RwLock::new(());

struct Rig {
    gate: Arc<Gate>,
    volume: Volume,
    server: Server,
    _dir: tempfile::TempDir,
    #[allow(dead_code, reason = "held")]
    among_others: Option<RwLockReadGuard<'static, ()>>,
}

impl Drop for Rig {
    /// So that a test that fails ends.
    fn drop(&mut self) {
        self.gate.open();
    }
}

impl Rig {
    fn new() -> Rig {
        let among_others = PROCESS.read().unwrap_or_else(PoisonError::into_inner);
        let mut rig = Rig::alone();
        rig.among_others = Some(among_others);
        rig
    }

    fn alone() -> Rig {
        let gate = Arc::new(Gate::new(64 << 20).unwrap());
        block::mkfs(gate.clone(), &MkfsOptions::default()).unwrap();
        let options = OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() };
        let volume = Volume::open(gate.clone(), options).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let server =
            Server::start(Arc::new(volume.clone()), &dir.path().join("socket"), Options::default()).unwrap();
        Rig { gate, volume, server, _dir: dir, among_others: None }
    }

    /// A file of so many MiB that is durable and not in the page cache.
    fn file(&self, mib: usize) -> Vec<u8> {
        let client = self.client();
        let bytes: Vec<u8> =
            (0..(mib * MIB) as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let file = client.open("/f", Open::new().write(true).create_new(true)).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        drop(file);
        block_on(self.volume.drop_caches()).unwrap();
        bytes
    }

    fn remote(&self) -> Arc<Remote> {
        Arc::new(Remote::connect(self.server.path()).unwrap())
    }

    fn client(&self) -> fs::Blocking<Remote> {
        Client::new(self.remote(), Cred::root()).blocking()
    }
}

fn direct() -> Open {
    Open::new().read(true).write(true).direct(true)
}

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn many_clients_read_and_write_directly() {
    let rig = Rig::new();
    let bytes = rig.file(8);
    let before = rig.volume.counters();
    // Each has a part of the file to itself; reads and writes of one block and of more than a message takes.
    std::thread::scope(|s| {
        for (part, bytes) in bytes.chunks(MIB).enumerate() {
            let client = rig.client();
            s.spawn(move || {
                let (file, start) = (client.open("/f", direct()).unwrap(), (part * MIB) as u64);
                let mut expected = bytes.to_vec();
                for round in 0..40usize {
                    let (at, len) = match round % 4 {
                        0 => (0, MIB),
                        1 => (round * 7 % 200 * BLOCK, 17 * BLOCK),
                        _ => (round * 13 % 255 * BLOCK, BLOCK),
                    };
                    let mut read = vec![0; len];
                    assert_eq!(file.read_at(&mut read, start + at as u64).unwrap(), len);
                    assert!(read == expected[at..at + len], "part {part}, round {round}");
                    expected[at..at + len].fill(round as u8);
                    file.write_all_at(&expected[at..at + len], start + at as u64).unwrap();
                }
                file.fsync().unwrap();
                let mut read = vec![0; MIB];
                assert_eq!(
                    client.open("/f", Open::new().read(true)).unwrap().read_at(&mut read, start).unwrap(),
                    MIB
                );
                assert!(read == expected);
            });
        }
    });
    let after = rig.volume.counters();
    let (read, written) = (
        after.direct_read_blocks - before.direct_read_blocks,
        after.direct_written_blocks - before.direct_written_blocks,
    );
    assert!(read > 8 * 2000 && written > 8 * 1000, "{read} blocks read, {written} written");
}

/// Memory of so many clients is lent; what others read and write is copied.
#[test]
fn more_clients_than_have_their_memory_lent() {
    let _alone = PROCESS.write().unwrap_or_else(PoisonError::into_inner);
    let rig = Rig::alone();
    let bytes = rig.file(1);
    let before = rig.volume.counters().direct_read_blocks;
    let clients: Vec<_> = (0..100).map(|_| rig.client()).collect();
    for round in 0..2usize {
        for (n, client) in clients.iter().enumerate() {
            let (file, at) = (client.open("/f", direct()).unwrap(), (n + round) * BLOCK);
            let mut read = vec![0; BLOCK];
            assert_eq!(file.read_at(&mut read, at as u64).unwrap(), BLOCK);
            assert!(read == bytes[at..at + BLOCK]);
        }
    }
    let read = rig.volume.counters().direct_read_blocks - before;
    // All 64, once or twice: of what others have read meanwhile there is something in the page cache.
    assert!((64..=2 * 64).contains(&read), "{read}");
    drop(clients);
    eventually("all is given back", || rig.gate.given_back() >= 60);
}

#[test]
fn a_transfer_under_way_is_not_given_up() {
    let rig = Rig::new();
    let bytes = rig.file(1);
    let remote = rig.remote();
    let client = Client::new(remote.clone(), Cred::root()).blocking();
    let file = client.open("/f", direct()).unwrap();
    let other = client.open("/g", Open::new().read(true).write(true).create(true)).unwrap();
    let mut read = vec![0; BLOCK];
    assert_eq!(file.read_at(&mut read, 0).unwrap(), BLOCK);
    rig.gate.close();
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        let reader = s.spawn(|| {
            let mut read = vec![0; 16 * BLOCK];
            // It is asked for to be given up all the time.
            let n = share::client::interruptible(&|| true, || file.read_at(&mut read, 4096));
            over.store(true, Ordering::SeqCst);
            assert_eq!(n, Ok(read.len()), "what the device had begun is done");
            assert!(read == bytes[BLOCK..17 * BLOCK]);
        });
        eventually("the device has it", || rig.gate.held() > 0);
        // Others go on, in other memory.
        for round in 0..300usize {
            let data = vec![round as u8; 5 * BLOCK];
            other.write_all_at(&data, (round * 100) as u64).unwrap();
            let mut back = vec![1; data.len()];
            assert_eq!(other.read_at(&mut back, (round * 100) as u64).unwrap(), data.len());
            assert!(back == data);
        }
        std::thread::sleep(Duration::from_millis(100));
        assert!(!over.load(Ordering::SeqCst), "the memory was given back while the device writes there");
        rig.gate.open();
        reader.join().unwrap();
    });
}

#[test]
fn who_goes_away_leaves_the_device_its_memory() {
    let rig = Rig::new();
    rig.file(1);
    let remote = rig.remote();
    rig.gate.close();
    {
        let client = Client::new(remote.clone(), Cred::root()).blocking();
        let file = client.open("/f", direct()).unwrap();
        // Begun, and left alone.
        remote.block_on(async {
            let mut bytes = vec![0; BLOCK];
            let mut read = std::pin::pin!(remote.read(file.handle(), 0, &mut bytes));
            let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(read.as_mut().poll(cx))).await;
            assert!(polled.is_pending());
            // So that it is posted before anybody waits for it.
            assert_eq!(remote.lookup(&Cred::root(), fs::Ino::ROOT, b"missing").await, Err(Error::NotFound));
        });
        eventually("the device has it", || rig.gate.held() > 0);
    }
    drop(remote);
    eventually("the session has ended", || rig.server.counters().sessions == 0);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(rig.gate.given_back(), 0, "the device writes there still");
    rig.gate.open();
    eventually("memory is given back", || rig.gate.given_back() == 1);
    // And the next one has its own.
    let file = rig.client().open("/f", direct()).unwrap();
    let mut read = vec![0; BLOCK];
    assert_eq!(file.read_at(&mut read, 0).unwrap(), BLOCK);
}
