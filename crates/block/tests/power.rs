//! Power failures: what is on the medium after one, at any moment and with any subset of the writes that were not durable
//! yet, is a state that the volume passed through, not older than the last sync. See `sim::crash` for what is verified.
//!
//! `make test` enumerates at least 10,000 images. `FREEHOLD_SEED` chooses other seeds, and the soak test (ignored) runs for
//! `FREEHOLD_SOAK` seconds:
//!
//!     FREEHOLD_SOAK=3600 cargo test -p freehold-block --test crash -- --ignored --nocapture soak

mod rig;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rig::Setup;
use sim::crash::{self, Report, Rig, Settings, ace};
use sim::ops::{Generator, Op};
use sim::{Knobs, Snapshot};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SETTINGS: Settings =
    Settings { seed: 0, moments: 60, exhaustive: 8, sampled: 2, go_on: 40, deeper: (8, 1) };

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
    let settings = Settings { seed, moments: 30, ..SETTINGS };
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
    for seed in first_seed()..first_seed() + 4 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let setup = Setup { bytes: 32 << 20, ..Setup::new(seed % 2 == 1, seed / 2) };
        let workloads: Vec<Vec<Op>> = (0..15).map(|_| ace::some(rng.random_range(2..5), &mut rng)).collect();
        let settings = Settings { seed, moments: 30, exhaustive: 6, ..SETTINGS };
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
    for seed in first_seed()..first_seed() + 6 {
        let setup = Setup::new(seed.is_multiple_of(2), seed / 2);
        let report = long(&setup, seed, 500, Settings { seed, ..settings });
        println!("seed {seed}: {report:?}");
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
        let settings = Settings { seed, moments: 60, exhaustive: 5, sampled: 2, go_on: 30, deeper: (10, 1) };
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
    let liar = Setup { lies: true, ..honest };
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
