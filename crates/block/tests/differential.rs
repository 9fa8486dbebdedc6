//! The engine against the reference model: the same operations, every outcome and the final tree compared.
//!
//! Verifies results, attributes, times and contents of all operations, with a cache so small that pages and tails come and
//! go, with calls that are given up while they wait, on a device of which reads fail, and on a volume that is nearly full; and in the end that nothing is left that is
//! nobody's: fsck, and the space that is free. Does not verify crashes (tests/power.rs) nor concurrency.

mod hand;

use block::{MkfsOptions, OpenOptions, Volume};
use fs::FileSystem;
use hand::{ByHand, TestClock};
use media::flash::{Config, Fault};
use media::ram::RamMedia;
use media::{Media, SimFlash};
use sim::differential::{Settings, Side, Trouble, assert_same};
use sim::{Driver, HandClock, Knobs, Model, Ticking, Tolerance};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A fresh volume of 256 MiB with a small log, and a cache of 2 MiB.
fn engine(strict: bool) -> Side<Volume, Hasty> {
    engine_with(strict, 256 << 20, 2 << 20)
}

fn engine_with(strict: bool, bytes: u64, cache_bytes: usize) -> Side<Volume, Hasty> {
    let media = Arc::new(RamMedia::new(bytes).unwrap());
    let (volume, driver) = open(media.clone(), strict, cache_bytes);
    Side::new(volume.clone(), Hasty { driver, volume, media })
}

/// On a device of which reads fail now and then.
fn on_a_bad_device(strict: bool) -> Side<Volume, Unlucky> {
    let flash = Arc::new(SimFlash::new(Config::new(256 << 20)).unwrap());
    let (volume, driver) = open(flash.clone(), strict, 256 << 10);
    Side::new(volume.clone(), Unlucky { driver, volume, flash })
}

fn open(media: Arc<dyn Media>, strict: bool, cache_bytes: usize) -> (Arc<Volume>, ByHand) {
    let mkfs = MkfsOptions { strict, log_bytes: Some(8 << 20), ..MkfsOptions::default() };
    block::mkfs(media.clone(), &mkfs).unwrap();
    let clock = HandClock::default();
    clock.set(sim::driver::FIRST_TICK - 1);
    let options = OpenOptions {
        cache_bytes,
        dirty_bytes_max: cache_bytes / 2,
        clock: Arc::new(TestClock(clock.clone())),
        ..OpenOptions::default()
    };
    let (volume, worker) = Volume::open_manual(media, options).unwrap();
    let driver = ByHand::new(worker, clock);
    // mkfs took the time of day; the model begins one tick before the first operation.
    let first = fs::Time { sec: sim::driver::FIRST_TICK - 1, nsec: 0 };
    let set = fs::SetAttr {
        atime: Some(fs::SetTime::At(first)),
        mtime: Some(fs::SetTime::At(first)),
        ..Default::default()
    };
    driver.block_on(volume.setattr(&fs::Cred::root(), fs::Ino::ROOT, set)).unwrap();
    (Arc::new(volume), driver)
}

/// Runs a volume by hand, and empties its caches after some of the calls that are given up.
struct Hasty {
    driver: ByHand,
    volume: Arc<Volume>,
    media: Arc<RamMedia>,
}

/// Runs a volume by hand. Instead of giving a call up, the device fails one of the reads that it needs.
struct Unlucky {
    driver: ByHand,
    volume: Arc<Volume>,
    flash: Arc<SimFlash>,
}

/// What is wrong with a volume of which nothing is open: what fsck finds when it is stopped, and space or inodes that only the volume takes for used.
fn what_is_left(driver: &ByHand, volume: &Volume, media: Arc<dyn Media>) -> Option<String> {
    // What a checkpoint frees can be used behind the next one.
    (0..3).for_each(|_| driver.block_on(volume.drop_caches()).unwrap());
    let counted = driver.block_on(volume.statfs()).unwrap();
    driver.block_on(volume.close()).unwrap();
    let report = block::fsck::check(media.clone(), &Default::default(), &mut |_| {}).unwrap();
    if !report.is_clean() {
        return Some(format!("fsck: {report:?}"));
    }
    let (volume, worker) = Volume::open_manual(media, OpenOptions::default()).unwrap();
    let found = ByHand::new(worker, driver.clock.clone()).block_on(volume.statfs()).unwrap();
    (counted != found).then(|| format!("space: counted {counted:?}, there is {found:?}"))
}

impl Driver for Unlucky {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.driver.block_on(future)
    }

    fn give_up<T>(&self, future: impl Future<Output = T>, patience: u32) -> Option<T> {
        self.block_on(self.volume.drop_caches()).unwrap();
        self.flash.inject(Fault::nth(Some(media::Op::Read), (patience as u64 % 4).max(1)));
        let out = self.block_on(future);
        self.flash.clear_faults();
        assert!(self.volume.latched().is_none(), "a failed read latched the volume");
        Some(out)
    }

    fn before_op(&self, index: usize) {
        self.driver.before_op(index);
    }

    fn at_end(&self) -> Option<String> {
        what_is_left(&self.driver, &self.volume, self.flash.clone())
    }
}

impl Driver for Hasty {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.driver.block_on(future)
    }

    fn give_up<T>(&self, future: impl Future<Output = T>, patience: u32) -> Option<T> {
        let given_up = {
            let mut future = pin!(future);
            let mut waits = 0;
            loop {
                match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(out) => break Some(out),
                    Poll::Pending if waits == patience % 4 => break None,
                    Poll::Pending => waits += 1,
                }
                self.driver.worker.borrow_mut().step();
            }
        };
        if given_up.is_none() && (patience / 4).is_multiple_of(2) {
            self.block_on(self.volume.drop_caches()).unwrap();
        }
        given_up
    }

    fn before_op(&self, index: usize) {
        self.driver.before_op(index);
    }

    fn at_end(&self) -> Option<String> {
        what_is_left(&self.driver, &self.volume, self.media.clone())
    }
}

fn model() -> Side<Model, Ticking> {
    let driver = Ticking::default();
    Side::new(Model::new(driver.0.clock()), driver)
}

const STRICT: Settings =
    Settings { tolerance: Tolerance::NONE, tree_every: 500, close_at_end: true, trouble: Trouble::NONE };

fn seeds(count: u64) -> std::ops::Range<u64> {
    let from = std::env::var("FREEHOLD_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    from..from + count
}

#[test]
fn everything() {
    assert_same(model, || engine(false), seeds(8), Knobs::everything(), 3000, STRICT);
}

#[test]
fn names() {
    assert_same(model, || engine(false), seeds(8), Knobs::name_heavy(), 3000, STRICT);
}

#[test]
fn data() {
    assert_same(model, || engine(false), seeds(8), Knobs::data_heavy(), 2000, STRICT);
}

/// Pages go as soon as they may.
#[test]
fn data_with_hardly_any_cache() {
    assert_same(
        model,
        || engine_with(false, 256 << 20, 256 << 10),
        seeds(8),
        Knobs::data_heavy(),
        2000,
        STRICT,
    );
}

#[test]
fn data_with_every_overwrite_ordered() {
    assert_same(model, || engine(true), seeds(4), Knobs::data_heavy(), 2000, STRICT);
}

/// Many calls are begun and given up first.
const HASTY: Settings = Settings { trouble: Trouble { given_up: 2, ..Trouble::NONE }, ..STRICT };

#[test]
fn data_when_calls_are_given_up() {
    assert_same(
        model,
        || engine_with(false, 256 << 20, 256 << 10),
        seeds(4),
        Knobs::data_heavy(),
        2000,
        HASTY,
    );
    assert_same(
        model,
        || engine_with(true, 256 << 20, 256 << 10),
        seeds(4),
        Knobs::data_heavy(),
        2000,
        HASTY,
    );
}

#[test]
fn everything_when_calls_are_given_up() {
    assert_same(
        model,
        || engine_with(false, 256 << 20, 256 << 10),
        seeds(4),
        Knobs::everything(),
        3000,
        HASTY,
    );
}

/// The volume has room for hardly anything. What a copy has read counts as read also when there was no room for it.
const FULL: Settings = Settings {
    tolerance: Tolerance { atime: false, ..Tolerance::NONE },
    trouble: Trouble { full: true, ..Trouble::NONE },
    ..STRICT
};
const HASTY_AND_FULL: Settings =
    Settings { trouble: Trouble { given_up: 2, full: true, fails: false }, ..FULL };

#[test]
fn data_without_space() {
    assert_same(model, || engine_with(false, 32 << 20, 256 << 10), seeds(4), Knobs::data_heavy(), 2000, FULL);
}

#[test]
fn everything_without_space_when_calls_are_given_up() {
    let knobs = Knobs { range_max: 16 << 20, len_max: 1 << 20, ..Knobs::everything() };
    assert_same(model, || engine_with(false, 32 << 20, 256 << 10), seeds(4), knobs, 3000, HASTY_AND_FULL);
}

#[test]
fn data_without_space_when_calls_are_given_up() {
    assert_same(
        model,
        || engine_with(false, 32 << 20, 256 << 10),
        seeds(4),
        Knobs::data_heavy(),
        2000,
        HASTY_AND_FULL,
    );
}

const UNLUCKY: Settings = Settings { trouble: Trouble { given_up: 1, fails: true, full: false }, ..STRICT };

#[test]
fn data_when_reads_fail() {
    assert_same(model, || on_a_bad_device(false), seeds(4), Knobs::data_heavy(), 2000, UNLUCKY);
    assert_same(model, || on_a_bad_device(true), seeds(4), Knobs::data_heavy(), 2000, UNLUCKY);
}

#[test]
fn everything_when_reads_fail() {
    assert_same(model, || on_a_bad_device(false), seeds(4), Knobs::everything(), 3000, UNLUCKY);
}
