//! Power cuts: random workloads on simulated flash, cut at random moments with random losses.
//!
//! Verifies, on volumes made with `strict`: whatever subset of the writes that were not flushed is kept, torn at the atomic unit,
//! the volume opens and holds exactly a tree that it held between two calls, none older than the last acknowledged sync; and
//! that this holds again when power is cut during or after recovery, when nothing is left that is nobody's (fsck); also where there is hardly any space. Does not verify: plain overwrites on volumes without
//! `strict`, writes above 256 KiB. Prints each seed and how many states were checked. Canary: a device that lies about
//! flushes must be caught.

mod hand;

use block::{MkfsOptions, OpenOptions, Volume};
use fs::FileSystem;
use hand::{ByHand, TestClock};
use media::flash::{Config, Lies, Order, SimFlash};
use sim::compare::{self, Options};
use sim::differential::Trouble;
use sim::ops::Who::Root;
use sim::ops::{self, Op, Space, State};
use sim::{Driver, Generator, HandClock, Knobs, Model, Snapshot, Ticking, Tolerance};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// A small generator of random numbers (SplitMix64).
#[derive(Clone)]
struct Dice(Rc<Cell<u64>>);

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice(Rc::new(Cell::new(seed)))
    }
    fn roll(&self) -> u64 {
        let s = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(s);
        let z = (s ^ (s >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn one_in(&self, n: u64) -> bool {
        self.roll().is_multiple_of(n)
    }
}

fn options(clock: &HandClock) -> OpenOptions {
    OpenOptions {
        cache_bytes: 2 << 20,
        dirty_bytes_max: 512 << 10,
        clock: Arc::new(TestClock(clock.clone())),
        ..OpenOptions::default()
    }
}

/// Cuts power now: each atomic unit that is not durable is kept or lost, by one of several characters of loss.
fn cut(flash: &SimFlash, dice: &Dice) -> SimFlash {
    let character = dice.roll() % 5;
    flash.crash_image(|_, _| match character {
        0 => false,
        1 => true,
        2 => dice.one_in(2),
        3 => dice.one_in(8),
        _ => !dice.one_in(8),
    })
}

/// Opens a volume after a power cut and finds which of the candidates it holds; then cuts power again during recovery, and after
/// some more work. Returns the number of states checked.
fn check(
    image: SimFlash,
    candidates: &[Snapshot],
    dice: &Dice,
    clock: &HandClock,
    again: bool,
) -> Result<usize, String> {
    let flash = Arc::new(image);
    let (volume, worker) =
        Volume::open_manual(flash.clone(), options(clock)).map_err(|e| format!("does not open: {e}"))?;
    let driver = ByHand::new(worker, clock.clone());
    let times = Options { times: true, atime: false };
    let found = compare::one_of(&driver, &volume, candidates, times).map_err(|differences| {
        let all: Vec<String> = differences.iter().map(|d| format!("      {d}")).collect();
        format!("is in none of {} states:\n{}", candidates.len(), all.join("\n"))
    })?;
    let mut states = 1;
    if again {
        let recovered = &candidates[found..=found];
        states += check(cut(&flash, dice), recovered, dice, clock, false)?;
        driver.block_on(volume.close()).map_err(|e| format!("does not close after recovery: {e}"))?;
        let report = block::fsck::check(flash.clone(), &Default::default(), &mut |_| {});
        let report = report.map_err(|e| format!("cannot be checked after recovery: {e}"))?;
        if !report.is_clean() {
            return Err(format!("is not clean after recovery: {report:?}"));
        }
        states += check(cut(&flash, dice), recovered, dice, clock, false)?;
    }
    Ok(states)
}

/// Runs one workload and checks power cuts all along. `Err` says what went wrong where.
/// Only so many blocks are free when it begins, if that is said.
fn workload(
    seed: u64,
    count: usize,
    config: Config,
    every: u64,
    spare: Option<u64>,
) -> Result<usize, String> {
    let dice = Dice::new(seed);
    let flash = Arc::new(SimFlash::new(Config { seed, ..config }).unwrap());
    let mkfs =
        MkfsOptions { strict: true, log_bytes: Some(8 << 20), uuid: Some([7; 16]), ..MkfsOptions::default() };
    block::mkfs(flash.clone(), &mkfs).unwrap();
    let clock = HandClock::default();
    clock.set(sim::driver::FIRST_TICK - 1);
    let (volume, worker) = Volume::open_manual(flash.clone(), options(&clock)).unwrap();
    let mut driver = ByHand::new(worker, clock.clone());
    // The root directory has the time of mkfs: give it one that the model has too.
    let first = fs::SetTime::At(fs::Time { sec: sim::driver::FIRST_TICK - 1, nsec: 0 });
    let set = fs::SetAttr { atime: Some(first), mtime: Some(first), ..fs::SetAttr::default() };
    driver.block_on(volume.setattr(&fs::Cred::root(), fs::Ino::ROOT, set)).unwrap();
    driver.block_on(volume.sync()).unwrap();
    let images: Rc<RefCell<Vec<SimFlash>>> = Rc::default();
    driver.between = {
        let (flash, dice, images) = (flash.clone(), dice.clone(), images.clone());
        Rc::new(move || {
            if dice.one_in(every) && images.borrow().len() < 4 {
                images.borrow_mut().push(cut(&flash, &dice));
            }
        })
    };
    let reference = Ticking::default();
    let model = Model::new(reference.0.clock());
    let (mut a, mut b) = (State::default(), State::default());
    if let Some(spare) = spare {
        let space = driver.block_on(volume.statfs()).unwrap();
        let len = (space.blocks_available - spare) * space.block_size as u64;
        // Blocks behind the end of a file, of which the model knows nothing.
        let fill = [
            Op::Create { who: Root, dir: 0, name: 9, perm: 0o600, flags: 3, node_into: 1, into: 1 },
            Op::Fallocate { handle: 1, what: Space::AllocateKeep, offset: 0, len },
            Op::Close { handle: 1 },
        ];
        for op in &fill {
            let expected = ops::execute(&reference, &model, &mut a, op);
            let found = ops::execute(&driver, &volume, &mut b, op);
            assert!(expected.same(&found, Tolerance::NONE), "{op:?}: {found:?}");
        }
        driver.block_on(volume.sync()).unwrap();
        images.take();
    }
    let touch = Op::Sync;
    let mut history = vec![model.snapshot()];
    let (mut states, mut refused) = (0, 0);
    let trouble = Trouble { full: spare.is_some(), ..Trouble::NONE };
    // Every third workload is mostly about data, in calls that are taken in under one hold of the lock; all are when there is no space.
    let of_data = seed.is_multiple_of(3) || spare.is_some();
    let base = if of_data { Knobs::data_heavy() } else { Knobs::crash() };
    let crash = Knobs::crash();
    let knobs = Knobs {
        durability: 4,
        locks: 0,
        users: false,
        checked: false,
        bad_arguments: false,
        file_size_limit: false,
        range_max: if spare.is_some() { 250_000 } else { 1 << 20 },
        len_max: if of_data { 250_000 } else { crash.len_max },
        ..base
    };
    for (index, op) in Generator::ops(seed, knobs, count).into_iter().enumerate() {
        reference.before_op(index);
        driver.before_op(index);
        let outcome = ops::execute(&driver, &volume, &mut b, &op);
        // What was refused has changed nothing.
        if let Some(op) = trouble.as_far_as_it_came(&op, &outcome) {
            let expected = ops::execute(&reference, &model, &mut a, &op);
            if !expected.same(&outcome, Tolerance::TIMES) {
                return Err(format!(
                    "seed {seed}, operation {index} ({op:?}): expected {expected:?}, found {outcome:?}"
                ));
            }
            history.push(model.snapshot());
        } else {
            refused += 1;
        }
        for image in images.take() {
            let candidates: Vec<Snapshot> = history.iter().rev().cloned().collect();
            states += check(image, &candidates, &dice, &clock, dice.one_in(4))
                .map_err(|why| format!("seed {seed}, power cut in operation {index} ({op:?}): {why}"))?;
        }
        if matches!(op, Op::Sync | Op::Fsync { .. }) && !matches!(outcome, ops::Outcome::Failed(_)) {
            history.drain(..history.len() - 1);
        }
        if dice.one_in(200) {
            driver.block_on(volume.checkpoint()).map_err(|e| format!("seed {seed}: checkpoint: {e}"))?;
            images.take();
            history.drain(..history.len() - 1);
        }
        if history.len() > 60 {
            ops::execute(&driver, &volume, &mut b, &touch);
            images.take();
            history.drain(..history.len() - 1);
        }
    }
    println!("seed {seed}: {states} states, {refused} refused, {:?}", volume.counters());
    Ok(states)
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    let from = std::env::var("FREEHOLD_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    from..from + count
}

fn run(count: u64, config: impl Fn() -> Config) {
    run_with(count, config, None);
}

fn run_with(count: u64, config: impl Fn() -> Config, spare: Option<u64>) {
    let mut states = 0;
    for seed in seeds(count) {
        states += workload(seed, 800, config(), 4, spare).unwrap_or_else(|why| panic!("{why}"));
    }
    println!("{states} crash states");
}

#[test]
fn whole_blocks_in_order() {
    run(10, || Config { atomic_unit: 4096, ..Config::new(512 << 20) });
}

#[test]
fn torn_sectors_in_any_order() {
    run(10, || Config { atomic_unit: 512, order: Order::Shuffled { batch: 3 }, ..Config::new(512 << 20) });
}

#[test]
fn a_volume_that_is_nearly_full() {
    let config = || Config { atomic_unit: 512, order: Order::Shuffled { batch: 3 }, ..Config::new(32 << 20) };
    for spare in [0, 30, 300] {
        run_with(3, config, Some(spare));
    }
}

#[test]
fn a_device_that_lies_about_flushes_is_caught() {
    let lies = || Config { lies: Lies { flush: true, fua: true, barrier: false }, ..Config::new(512 << 20) };
    let caught = (1..6).any(|seed| workload(seed, 300, lies(), 6, None).is_err());
    assert!(caught, "the checker does not notice lost flushes");
}
