//! Power failures: what is on the medium after one, at any moment and with any subset of the writes that were not durable
//! yet, is a state that the volume passed through, not older than the last sync. See `sim::crash` for what is verified.
//!
//! `make test` enumerates at least 10,000 images. `FREEHOLD_SEED` chooses other seeds, and the soak test (ignored) runs for
//! `FREEHOLD_SOAK` seconds:
//!
//!     FREEHOLD_SOAK=3600 cargo test -p freehold-block --test power -- --ignored --nocapture soak

mod rig;

use fs::OpenFlags;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rig::Setup;
use sim::crash::{self, Report, Rig, Settings, ace};
use sim::ops::{Generator, Op, Space, Who};
use sim::{Knobs, Snapshot};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SETTINGS: Settings =
    Settings { moments: 60, exhaustive: 8, sampled: 2, go_on: 40, deeper: (8, 1), ..Settings::SMALL };

fn first_seed() -> u64 {
    std::env::var("FREEHOLD_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1)
}

/// A device with the tree that the small workloads begin with.
fn small(setup: &Setup) -> (Arc<media::SimFlash>, Snapshot) {
    let media = setup.make();
    let start = crash::prepare(setup, media.clone(), &crash::empty(), &ace::tree(), true).unwrap();
    (media, start)
}

/// What is done on recovered volumes: what was done before, so that the same bytes come to the same blocks, and more.
fn next(ops: &[Op]) -> Vec<Op> {
    [ops, &[Op::Sync][..], &ops[ace::opening().len()..]].concat()
}

fn run_small(setup: &Setup, workloads: &[Vec<Op>], settings: Settings) -> Report {
    let (media, start) = small(setup);
    let mut total = Report::default();
    for ops in workloads {
        let fresh = Arc::new(media.crash_image(|_, _| true));
        match crash::explore(setup, fresh, &start, ops, &next(ops), settings) {
            Ok(report) => total.add(&report),
            Err(failure) => panic!("{failure}"),
        }
    }
    total
}

/// Every `parts`-th of the single workloads.
fn singles(strict: bool, seed: u64, part: usize, parts: usize) {
    let setup = Setup { bytes: 32 << 20, ..Setup::new(strict, seed) };
    let workloads: Vec<Vec<Op>> = ace::singles().into_iter().skip(part).step_by(parts).collect();
    let settings = Settings { seed, moments: 8, exhaustive: 5, sampled: 1, go_on: 60, ..SETTINGS };
    let report = run_small(&setup, &workloads, settings);
    println!("seed {seed}, {} workloads: {report:?}", workloads.len());
    assert!(report.states > workloads.len() * 10, "{report:?}");
}

#[test]
fn every_operation() {
    singles(true, first_seed(), 0, 2);
}

#[test]
fn every_operation_with_plain_overwrites() {
    singles(false, first_seed() + 1, 1, 2);
}

#[test]
fn pairs_of_operations() {
    for seed in first_seed()..first_seed() + 3 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let setup = Setup { bytes: 32 << 20, ..Setup::new(seed % 2 == 1, seed / 2) };
        let workloads: Vec<Vec<Op>> = (0..10).map(|_| ace::some(rng.random_range(2..5), &mut rng)).collect();
        let settings = Settings { seed, moments: 20, exhaustive: 5, sampled: 1, ..SETTINGS };
        println!("seed {seed}: {:?}", run_small(&setup, &workloads, settings));
    }
}

fn long(setup: &Setup, seed: u64, count: usize, settings: Settings) -> Report {
    let knobs = Knobs { size_max: 3 << 20, range_max: 2 << 20, xattr_len_max: 20_000, ..Knobs::crash() };
    let ops = Generator::ops(seed, knobs.clone(), count);
    let next = Generator::ops(seed + 1000, knobs, 12);
    match crash::explore(setup, setup.make(), &crash::empty(), &ops, &next, settings) {
        Ok(report) => report,
        Err(failure) => {
            let head: String = failure.chars().take(6000).collect();
            panic!("seed {seed}, strict {}: {head}", setup.strict)
        }
    }
}

#[test]
fn long_workloads() {
    let settings = Settings { moments: 60, exhaustive: 4, sampled: 1, go_on: 60, ..SETTINGS };
    for seed in first_seed()..first_seed() + 3 {
        let setup = Setup::new(seed.is_multiple_of(2), seed / 2);
        let report = long(&setup, seed, 500, Settings { seed, ..settings });
        println!("seed {seed}: {report:?}");
    }
}

/// Enumerates one small workload, and goes on after every image.
fn thorough(strict: bool, body: Vec<Op>) {
    for seed in [2, 3] {
        let setup = Setup { bytes: 32 << 20, checkpoints: false, ..Setup::new(strict, seed) };
        let ops = [ace::opening(), body.clone()].concat();
        let settings =
            Settings { seed, moments: 25, exhaustive: 4, sampled: 1, go_on: 8, deeper: (16, 2), ..SETTINGS };
        println!("seed {seed}: {:?}", run_small(&setup, &[ops], settings));
    }
}

fn write(handle: u8, offset: u64, len: u32, pattern: u32) -> Op {
    Op::Write { handle, offset, len, pattern }
}

/// A record that was whole when its data were lost became valid when the same data were written to the same blocks again:
/// after a second power failure a file was back that everybody had seen to be lost.
#[test]
fn a_lost_epoch_does_not_come_back() {
    thorough(true, vec![write(2, 8192, 12_288, 5), Op::Barrier { handle: 0, datasync: false }, Op::Sync]);
}

/// Recovery brought logged pages home before anything said that their epochs were durable; a power failure in between
/// made the checksum of an older epoch wrong, and with it acknowledged epochs were lost.
#[test]
fn a_recovery_that_is_cut_short_loses_nothing() {
    let barrier = Op::Barrier { handle: 0, datasync: false };
    let body = vec![write(2, 8192, 80_000, 5), barrier.clone(), write(2, 8192, 4096, 6), barrier, Op::Sync];
    thorough(true, body);
}

/// A record was taken as whole although an overwrite in place of its epoch was missing: the new size with the old bytes.
#[test]
fn nothing_is_shown_without_the_overwrites_before_it() {
    thorough(false, [vec![write(0, 0, 12_288, 9)], vec![Op::StatFs; 7]].concat());
}

/// Pages overwritten in place for lack of memory, behind a barrier whose epoch was not durable, were seen without it.
#[test]
fn overwrites_wait_for_the_barrier_before_them() {
    let who = Who::Root;
    let setup = Setup { bytes: 32 << 20, dirty_bytes_max: 64 << 10, ..Setup::new(false, 2) };
    let mut body = vec![write(2, 0, 200_000, 1), Op::Sync];
    for i in 0..3 {
        body.push(Op::MkDir { who, dir: 0, name: 5 + i, perm: 0o755, into: 3 });
        body.push(Op::Barrier { handle: 0, datasync: false });
        body.push(write(2, 0, 200_000, 2 + i as u32));
        body.extend(vec![Op::StatFs; 4]);
    }
    let settings = Settings { seed: 1, moments: 60, exhaustive: 4, sampled: 1, go_on: 0, ..SETTINGS };
    println!("{:?}", run_small(&setup, &[[ace::opening(), body].concat()], settings));
}

/// Hundreds of files in their own directories, and later all of them gone and others made: inode segments come and go.
fn many_files() -> Vec<Op> {
    let who = Who::Root;
    let mut ops = Vec::new();
    for round in 0..2 {
        for a in 0..7 {
            ops.push(Op::MkDir { who, dir: 0, name: a, perm: 0o755, into: 1 });
            for b in 0..8 {
                ops.push(Op::MkDir { who, dir: 1, name: b, perm: 0o755, into: 2 });
                ops.extend((0..10).map(|name| Op::MkNod {
                    who,
                    dir: 2,
                    name,
                    mode: 0o100644,
                    rdev: 0,
                    into: 9,
                }));
            }
            ops.push(Op::Sync);
        }
        if round == 1 {
            break;
        }
        for a in 0..7 {
            ops.push(Op::Lookup { who, dir: 0, name: a, into: 1 });
            for b in 0..8 {
                ops.push(Op::Lookup { who, dir: 1, name: b, into: 2 });
                ops.extend((0..10).map(|name| Op::Unlink { who, dir: 2, name }));
                ops.push(Op::RmDir { who, dir: 1, name: b });
            }
            ops.extend([Op::RmDir { who, dir: 0, name: a }, Op::Sync]);
        }
        ops.extend(vec![Op::StatFs; 60]);
    }
    ops
}

#[test]
fn inode_segments_come_and_go() {
    for seed in first_seed()..first_seed() + 2 {
        let setup = Setup::new(seed.is_multiple_of(2), seed);
        let settings =
            Settings { seed, moments: 40, exhaustive: 3, sampled: 1, go_on: 20, deeper: (6, 1), ..SETTINGS };
        let report = explore(&setup, &many_files(), &many_files()[..40], settings);
        println!("seed {seed}: {report:?}, {:?}", setup.seen.borrow());
    }
}

/// A file in hundreds of pieces, attributes outside of the inode, overwrites that are logged until the log wraps.
fn heavy() -> Vec<Op> {
    let who = Who::Root;
    let rw = (OpenFlags::READ | OpenFlags::WRITE).bits();
    let create =
        |name, node_into, into| Op::Create { who, dir: 0, name, perm: 0o644, flags: rw, node_into, into };
    let mut ops = vec![create(0, 8, 0), create(1, 9, 1)];
    let write = |handle, offset, len, pattern| Op::Write { handle, offset, len, pattern };
    for i in 0..400u32 {
        ops.push(write(0, i as u64 * 8192, 4096, i));
        if i % 100 == 99 {
            ops.push(Op::Fsync { handle: 0, datasync: false });
        }
    }
    ops.push(write(1, 0, 250_000, 1));
    for round in 0..260u32 {
        let at = (round as u64 * 7919) % 180_000;
        ops.push(write(1, at, 50_000, round + 2));
        match round % 5 {
            0 => {
                ops.push(Op::SetXattr { who, node: 8, attr: 0, len: 3000 + round, pattern: round, flags: 0 })
            }
            1 => ops.push(write(0, round as u64 * 16_384, 5000, round)),
            2 => ops.push(Op::Fallocate {
                handle: 0,
                what: Space::Punch,
                offset: round as u64 * 10_000,
                len: 20_000,
            }),
            3 => ops.push(Op::Fallocate {
                handle: 0,
                what: Space::Allocate,
                offset: round as u64 * 9000,
                len: 9000,
            }),
            _ => ops.push(write(1, 100_000, 100, round)),
        }
        let end = match round % 7 {
            3 => Op::Barrier { handle: 1, datasync: false },
            5 => Op::StatFs,
            _ => Op::Fsync { handle: 1, datasync: true },
        };
        ops.push(end);
    }
    ops.push(Op::Truncate { who, node: 8, size: 1_000_000, handle: None });
    ops.push(Op::Truncate { who, node: 8, size: 300_000, handle: None });
    ops.extend([Op::Sync, Op::Unlink { who, dir: 0, name: 0 }, Op::Close { handle: 0 }, Op::Sync]);
    ops
}

fn explore(setup: &Setup, ops: &[Op], next: &[Op], settings: Settings) -> Report {
    match crash::explore(setup, setup.make(), &crash::empty(), ops, next, settings) {
        Ok(report) => report,
        Err(failure) => panic!("{}", failure.chars().take(5000).collect::<String>()),
    }
}

#[test]
fn extent_trees_and_a_log_that_wraps() {
    for seed in first_seed()..first_seed() + 2 {
        let setup = Setup {
            dirty_bytes_max: 128 << 10,
            checkpoints: seed.is_multiple_of(2),
            ..Setup::new(seed.is_multiple_of(2), seed + 1)
        };
        let settings =
            Settings { seed, moments: 40, exhaustive: 3, sampled: 1, go_on: 30, deeper: (6, 1), ..SETTINGS };
        let report = explore(&setup, &heavy(), &heavy()[..30], settings);
        let seen = *setup.seen.borrow();
        println!("seed {seed}: {report:?}, {seen:?}");
        assert!(seen.log_blocks > 2048 && seen.checkpoints > 4 && seen.logged_pages > 100, "{seen:?}");
        assert!(setup.strict || seen.overwritten_blocks > 0, "nothing was overwritten in place: {seen:?}");
    }
}

#[test]
#[ignore = "runs for FREEHOLD_SOAK seconds"]
fn soak() {
    let seconds = std::env::var("FREEHOLD_SOAK").ok().and_then(|s| s.parse().ok()).unwrap_or(600);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut total = Report::default();
    let mut seed = first_seed() * 1_000_000;
    while Instant::now() < end {
        seed += 1;
        let setup = Setup::new(seed.is_multiple_of(2), seed / 2);
        let settings =
            Settings { seed, moments: 60, exhaustive: 5, sampled: 2, go_on: 30, deeper: (10, 1), ..SETTINGS };
        total.add(&long(&setup, seed, 600, settings));
        let mut rng = SmallRng::seed_from_u64(seed);
        let workloads: Vec<Vec<Op>> = (0..5).map(|_| ace::some(rng.random_range(2..6), &mut rng)).collect();
        total.add(&run_small(&Setup { bytes: 32 << 20, ..setup }, &workloads, settings));
        println!("seed {seed}: {total:?}");
    }
}

/// The canary: a device that answers flushes and does nothing must be caught, or this checker is blind.
#[test]
fn catches_a_device_that_lies_about_flushes() {
    let honest = Setup { bytes: 32 << 20, ..Setup::new(true, 2) };
    let (media, start) = small(&honest);
    let lies = media::flash::Lies { flush: true, fua: true, barrier: false };
    let liar = Setup { lies, ..honest };
    let mut bytes = vec![0; liar.bytes as usize];
    media.peek(0, &mut bytes);
    let lying = liar.make();
    lying.poke(0, &bytes);
    let ops = [ace::opening(), vec![ace::operations()[0].clone(), Op::Sync]].concat();
    let settings = Settings { go_on: 0, ..SETTINGS };
    let found = crash::explore(&liar, lying, &start, &ops, &[], settings);
    assert!(found.is_err_and(|e| e.contains("power failure")), "the liar was not caught");
    assert!(liar.strict());
}

/// A record behind a lost one came back when the lost one was written again, equal byte for byte: what was chained to the
/// one was chained to the other.
#[test]
fn what_follows_a_lost_epoch_does_not_come_back() {
    use fs::{Cred, Error, FileSystem, Ino};
    use sim::Driver;
    let setup = Setup { checkpoints: false, ..Setup::new(true, 1) };
    let media = setup.make();
    let mkdir = |volume: &block::Volume, driver: &rig::ByHand, name: &[u8]| {
        driver.clock.set(1000);
        driver.block_on(volume.mkdir(&Cred::root(), Ino::ROOT, name, 0o755)).unwrap();
    };
    let lookup = |volume: &block::Volume, driver: &rig::ByHand, name: &[u8]| {
        driver.block_on(volume.lookup(&Cred::root(), Ino::ROOT, name)).map(|_| ())
    };
    let (volume, driver) = setup.start(media.clone()).unwrap();
    let root = driver.block_on(volume.opendir(&Cred::root(), Ino::ROOT)).unwrap();
    // A barrier closes an epoch when it is old enough, in both lives at the same moment.
    let close = |volume: &block::Volume, driver: &rig::ByHand, root| {
        driver.block_on(volume.barrier(root, false)).unwrap();
        driver.clock.set(1001);
        driver.settle();
    };
    for name in [b"lost", b"next"] {
        mkdir(&volume, &driver, name);
        close(&volume, &driver, root);
    }
    // The record of the first epoch is lost: the place of its first block is as it was.
    let written = media.crash_image(|_, _| true);
    let (mut before, mut after) = ([0; 4096], [0; 4096]);
    let first = (0..setup.bytes).step_by(4096).find(|&at| {
        media.crash_image(|_, _| false).peek(at, &mut before);
        written.peek(at, &mut after);
        before != after && after.starts_with(b"FHLOGREC")
    });
    let first = first.expect("two records were written");
    media.crash_image(|_, _| false).peek(first, &mut before);
    written.poke(first, &before);

    let media = Arc::new(written);
    let (volume, driver) = setup.start(media.clone()).unwrap();
    for name in [b"lost", b"next"] {
        assert_eq!(lookup(&volume, &driver, name), Err(Error::NotFound));
    }
    let root = driver.block_on(volume.opendir(&Cred::root(), Ino::ROOT)).unwrap();
    mkdir(&volume, &driver, b"lost");
    close(&volume, &driver, root);
    driver.block_on(volume.sync()).unwrap();
    let media = Arc::new(media.crash_image(|_, _| true));
    let (volume, driver) = setup.start(media).unwrap();
    lookup(&volume, &driver, b"lost").unwrap();
    assert_eq!(lookup(&volume, &driver, b"next"), Err(Error::NotFound));
}
