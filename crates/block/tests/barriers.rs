//! What a barrier costs, and when what it put in order reaches the medium: marks and no transfers, bounded in size and in time.
//!
//! That the order holds is the matter of power.rs, explore.rs and order_canaries.rs.

use block::{MkfsOptions, OpenOptions, Volume, Worker};
use fs::{Attr, Cred, FileSystem, Handle, Ino, OpenFlags, block_on};
use media::flash::{Config, SimFlash};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Milliseconds, as the test moves them.
#[derive(Default)]
struct Millis(AtomicU64);

impl block::Clock for Millis {
    fn now(&self) -> fs::Time {
        let ms = self.0.load(Ordering::SeqCst);
        fs::Time { sec: (ms / 1000) as i64, nsec: (ms % 1000) as u32 * 1_000_000 }
    }
    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }
}

struct Rig {
    volume: Volume,
    worker: Worker,
    clock: Arc<Millis>,
    file: Handle,
}

impl Rig {
    fn new(bytes: u64) -> Rig {
        Rig::with_cache(bytes, 16 << 20)
    }

    fn with_cache(bytes: u64, cache_bytes: usize) -> Rig {
        Rig::made(bytes, &MkfsOptions::default(), cache_bytes)
    }

    fn made(bytes: u64, mkfs: &MkfsOptions, cache_bytes: usize) -> Rig {
        let flash = Arc::new(SimFlash::new(Config::new(bytes)).unwrap());
        block::mkfs(flash.clone(), mkfs).unwrap();
        let clock = Arc::new(Millis::default());
        let options = OpenOptions { cache_bytes, clock: clock.clone(), ..OpenOptions::default() };
        let (volume, worker) = Volume::open_manual(flash, options).unwrap();
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let (_, file): (Attr, Handle) =
            block_on(volume.create(&Cred::root(), Ino::ROOT, b"f", 0o644, flags)).unwrap();
        let mut rig = Rig { volume, worker, clock, file };
        rig.sync();
        rig
    }

    /// Lets the worker do what it has to, until nothing is in flight.
    fn settle(&mut self) {
        while self.worker.step() {}
    }

    /// Runs a call to its end.
    fn wait<T>(&mut self, call: impl Future<Output = T>) -> T {
        let mut call = pin!(call);
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..100_000 {
            if let Poll::Ready(done) = call.as_mut().poll(&mut context) {
                return done;
            }
            self.worker.step();
        }
        panic!("a call does not end");
    }

    fn sync(&mut self) {
        let volume = self.volume.clone();
        self.wait(volume.sync()).unwrap();
    }

    /// Writes to a file until there is no block left.
    fn fill(&mut self, file: Handle) {
        let (volume, data) = (self.volume.clone(), vec![1; 256 << 10]);
        let mut end = 0;
        while let Ok(n) = self.wait(volume.write(file, end, &data)) {
            end += n as u64;
        }
        self.sync();
    }

    fn pass(&mut self, ms: u64) {
        self.clock.0.fetch_add(ms, Ordering::SeqCst);
        self.settle();
    }

    fn write(&self, page: u64) {
        let data = [(page % 251) as u8 + 1; 4096];
        assert_eq!(block_on(self.volume.write(self.file, page * 4096, &data)).unwrap(), 4096);
    }

    fn barrier(&self) {
        block_on(self.volume.barrier(self.file, true)).unwrap();
    }
}

#[test]
fn barriers_are_marks() {
    let mut rig = Rig::new(256 << 20);
    let before = rig.volume.counters();
    for page in 0..20 {
        rig.write(page);
        rig.barrier();
    }
    rig.settle();
    let now = rig.volume.counters();
    assert_eq!(now.barriers - before.barriers, 20);
    assert_eq!(
        (now.epochs, now.flushes, now.data_blocks),
        (before.epochs, before.flushes, before.data_blocks)
    );
    rig.sync();
    assert_eq!(rig.volume.counters().epochs - before.epochs, 1, "all of them are one record");
}

/// Pages of an epoch with a barrier in it go elsewhere, however they are written back.
#[test]
fn behind_a_barrier_nothing_is_overwritten() {
    let mut rig = Rig::new(256 << 20);
    (0..200).for_each(|page| rig.write(page));
    rig.sync();
    let volume = rig.volume.clone();
    rig.wait(volume.checkpoint()).unwrap();
    let before = rig.volume.counters().overwritten_blocks;
    (0..100).for_each(|page| rig.write(page));
    rig.barrier();
    (100..200).for_each(|page| rig.write(page));
    // By age, which alone would overwrite.
    rig.pass(10_000);
    let now = rig.volume.counters();
    assert_eq!((now.overwritten_blocks, rig.volume.cache_usage().dirty), (before, 0));
    // Without a barrier it does.
    rig.sync();
    let volume = rig.volume.clone();
    rig.wait(volume.checkpoint()).unwrap();
    (0..200).for_each(|page| rig.write(page));
    rig.pass(10_000);
    assert_eq!(rig.volume.counters().overwritten_blocks, before + 200);
}

#[test]
fn they_reach_the_medium_in_time() {
    let mut rig = Rig::new(256 << 20);
    let before = rig.volume.counters();
    rig.write(0);
    rig.barrier();
    rig.pass(9);
    assert_eq!(rig.volume.counters().epochs, before.epochs);
    rig.pass(1);
    let now = rig.volume.counters();
    assert_eq!(
        (now.epochs, now.flushes, now.fua_records),
        (before.epochs + 1, before.flushes, before.fua_records)
    );
    // Barriers that never end keep nothing from becoming durable.
    let epoch = rig.volume.epochs().0 - 1;
    for page in 1..60 {
        rig.write(page);
        rig.barrier();
        rig.pass(100);
        let ms = 10 + page * 100;
        assert_eq!(rig.volume.epochs().1 >= epoch, ms >= 5000, "{ms} ms");
    }
    assert!(rig.volume.counters().flushes - before.flushes <= 2);
}

/// The worker closes an epoch that has grown, whoever asks for the barriers: earlier when it is overwrites that have to go elsewhere.
#[test]
fn the_worker_closes_what_has_grown() {
    let mut rig = Rig::with_cache(256 << 20, 64 << 20);
    for (pages, bound, epochs) in [(4096, 8 << 20, 1..=3), (512, 1 << 20, 2..=32)] {
        let before = rig.volume.counters().epochs;
        for page in 0..pages {
            // No two neighbours: a growing file is written in any case.
            rig.write(page * 2);
            rig.barrier();
            let closed = rig.volume.counters().epochs;
            rig.settle();
            let dirty = rig.volume.cache_usage().dirty;
            assert!(closed == rig.volume.counters().epochs || dirty == 0, "what is closed is written");
            assert!(dirty <= bound);
        }
        let closed = rig.volume.counters().epochs - before;
        assert!(epochs.contains(&closed), "{closed}");
        rig.sync();
    }
}

/// Without the worker those close it that change something, some time later; never the one who asks for a barrier.
#[test]
fn an_epoch_with_barriers_is_bounded() {
    let mut rig = Rig::with_cache(256 << 20, 128 << 20);
    // Room for writes to come is no place for what is overwritten.
    assert!(rig.volume.set_room_aside(4096).unwrap() > 512);
    for (pages, bound, epochs) in [(6000, 16 << 20, 1..=3), (512, 1 << 20, 2..=32)] {
        let before = rig.volume.counters().epochs;
        for page in 0..pages {
            // No two neighbours: a growing file is written in any case.
            rig.write(page * 2);
            let closed = rig.volume.counters().epochs;
            rig.barrier();
            assert_eq!(rig.volume.counters().epochs, closed);
            assert!(rig.volume.cache_usage().dirty <= bound + 4096);
        }
        let closed = rig.volume.counters().epochs - before;
        assert!(epochs.contains(&closed), "{closed}");
        rig.sync();
    }
}

/// Where there are hardly free blocks, a barrier closes its epoch, so that nothing has to be overwritten behind it.
#[test]
fn a_full_volume_keeps_the_order() {
    let mut rig = Rig::new(64 << 20);
    let (volume, file) = (rig.volume.clone(), rig.file);
    rig.fill(file);
    let before = rig.volume.counters();
    for page in 0..200 {
        rig.wait(volume.write(file, page * 4096, &[page as u8; 4096])).unwrap();
        rig.wait(volume.barrier(file, true)).unwrap();
    }
    rig.sync();
    let now = rig.volume.counters();
    assert_eq!(now.barriers - before.barriers, 200);
    assert!(now.epochs - before.epochs >= 100, "{now:?}");
}

/// An epoch with an atomic write in it must not overwrite in place either. So that its record can take what others overwrite meanwhile, it is
/// closed in time.
#[test]
fn a_full_volume_takes_atomic_writes_beside_plain_ones() {
    let mut rig = Rig::new(64 << 20);
    let (volume, file) = (rig.volume.clone(), rig.file);
    rig.fill(file);
    let (mut taken, data) = (0, vec![1; 256 << 10]);
    for round in 0..40u64 {
        // What is dirty may be too much already: then it changes nothing.
        match rig
            .wait(volume.write_atomic(file, &[(0, &[round as u8; 8192]), (1 << 20, &[round as u8; 4096])]))
        {
            Ok(()) => taken += 1,
            Err(e) => assert!(matches!(e, fs::Error::NoSpace), "{e}"),
        }
        for piece in 0..round % 20 {
            let at = (2 << 20) + piece * (256 << 10);
            assert_eq!(rig.wait(volume.write(file, at, &data)).unwrap(), data.len());
        }
        if round % 3 == 0 {
            rig.sync();
        }
    }
    rig.sync();
    assert!(taken > 10, "{taken}");
}

/// Overwrites, atomic writes, barriers, syncs, holes and their blocks in any order, where there is hardly a free one: every call ends, and the
/// file is as they left it. From the seed `FREEHOLD_SEED` on, `FREEHOLD_SEEDS` of them.
#[test]
fn nothing_waits_for_ever_on_a_full_volume() {
    const LEN: u64 = 8 << 20;
    let number =
        |name: &str, usual: u64| std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(usual);
    let first = number("FREEHOLD_SEED", 1);
    for seed in first..first + number("FREEHOLD_SEEDS", 24) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mkfs = MkfsOptions { strict: seed % 4 == 3, ..MkfsOptions::default() };
        let mut rig = Rig::made(64 << 20, &mkfs, [4 << 20, 16 << 20][seed as usize % 2]);
        let (volume, file) = (rig.volume.clone(), rig.file);
        let mut model = vec![0xee; LEN as usize];
        rig.wait(volume.write(file, 0, &model)).unwrap();
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let (_, other) = block_on(volume.create(&Cred::root(), Ino::ROOT, b"g", 0o644, flags)).unwrap();
        rig.fill(other);
        let (mut taken, mut refused) = (0, 0);
        for number in 0..400u32 {
            let fill = number as u8;
            let piece = |rng: &mut SmallRng, most: u64| {
                let len = rng.random_range(1..=most);
                (rng.random_range(0..=(LEN - len)), len as usize)
            };
            match rng.random_range(0..16) {
                0..5 => {
                    let (at, len) = piece(&mut rng, 300 << 10);
                    // A hole may find no block: then the write ends there.
                    let done = rig.wait(volume.write(file, at, &vec![fill; len])).unwrap_or(0);
                    model[at as usize..][..done].fill(fill);
                    refused += (done < len) as u32;
                }
                5..9 => {
                    let pieces: Vec<_> = (0..4).map(|_| piece(&mut rng, 16 << 10)).collect();
                    let data = vec![fill; 16 << 10];
                    let all: Vec<_> = pieces.iter().map(|&(at, len)| (at, &data[..len])).collect();
                    match rig.wait(volume.write_atomic(file, &all)) {
                        Ok(()) => {
                            pieces.iter().for_each(|&(at, len)| model[at as usize..][..len].fill(fill));
                            taken += 1;
                        }
                        Err(e) => assert!(matches!(e, fs::Error::NoSpace), "{e}"),
                    }
                }
                9..11 => rig.wait(volume.barrier(file, true)).unwrap(),
                11 if number % 2 == 0 => {
                    let (at, len) = piece(&mut rng, 3 << 20);
                    let whole = fs::Fallocate::Allocate { keep_size: true };
                    refused += rig.wait(volume.fallocate(file, whole, at, len as u64)).is_err() as u32;
                }
                11 => rig.sync(),
                12 => rig.wait(volume.checkpoint()).unwrap(),
                13 => rig.pass(rng.random_range(1..6000)),
                14 => rig.settle(),
                _ => {
                    let (at, len) = piece(&mut rng, 64 << 10);
                    let hole = fs::Fallocate::PunchHole;
                    if rig.wait(volume.fallocate(file, hole, at, len as u64)).is_ok() {
                        model[at as usize..][..len].fill(0);
                    }
                }
            }
        }
        rig.sync();
        let mut found = vec![1; LEN as usize];
        assert_eq!(rig.wait(volume.read(file, 0, &mut found)).unwrap(), found.len());
        let wrong = found.iter().zip(&model).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "seed {seed}");
        println!("seed {seed}: {taken} atomic writes, {refused} short ones");
        assert!(taken > 10, "seed {seed}: {taken}");
    }
}
