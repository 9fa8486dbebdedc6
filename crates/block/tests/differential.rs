//! The engine against the reference model: the same operations, every outcome and the final tree compared.
//!
//! Verifies results, attributes, times and contents of all operations, with a cache so small that pages and tails come and
//! go. Does not verify crashes (tests/power.rs) nor concurrency.

mod hand;

use block::{MkfsOptions, OpenOptions, Volume};
use fs::FileSystem;
use hand::{ByHand, TestClock};
use media::ram::RamMedia;
use sim::differential::{Settings, Side, assert_same};
use sim::{Driver, HandClock, Knobs, Model, Ticking, Tolerance};
use std::sync::Arc;

/// A fresh volume of 256 MiB with a small log, and a cache of 2 MiB.
fn engine(strict: bool) -> Side<Volume, ByHand> {
    engine_with(strict, 2 << 20)
}

fn engine_with(strict: bool, cache_bytes: usize) -> Side<Volume, ByHand> {
    let media = Arc::new(RamMedia::new(256 << 20).unwrap());
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
    Side::new(volume, driver)
}

fn model() -> Side<Model, Ticking> {
    let driver = Ticking::default();
    Side::new(Model::new(driver.0.clock()), driver)
}

const STRICT: Settings = Settings { tolerance: Tolerance::NONE, tree_every: 500, close_at_end: true };

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
    assert_same(model, || engine_with(false, 256 << 10), seeds(8), Knobs::data_heavy(), 2000, STRICT);
}

#[test]
fn data_with_every_overwrite_ordered() {
    assert_same(model, || engine(true), seeds(4), Knobs::data_heavy(), 2000, STRICT);
}
