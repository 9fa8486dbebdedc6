//! The engine against the reference model: the same operations, every outcome and the final tree compared.
//!
//! Verifies results, attributes, times and contents of all operations, with a cache so small that pages and tails come and
//! go. Does not verify crashes (tests/crash.rs) nor concurrency.

use block::{MkfsOptions, OpenOptions, Volume, Worker};
use media::ram::RamMedia;
use sim::differential::{Settings, Side, assert_same};
use sim::{Driver, HandClock, Knobs, Model, Ticking, Tolerance};
use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

struct TestClock(HandClock);

impl block::Clock for TestClock {
    fn now(&self) -> fs::Time {
        (self.0.clock())()
    }
    fn monotonic(&self) -> Duration {
        let now = self.now();
        Duration::new(now.sec.max(0) as u64, now.nsec)
    }
}

/// Runs the engine by hand: polls the future, then steps the worker.
#[derive(Clone)]
struct ByHand {
    worker: Rc<RefCell<Worker>>,
    clock: HandClock,
}

impl Driver for ByHand {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..100_000 {
            if let Poll::Ready(out) = future.as_mut().poll(&mut cx) {
                return out;
            }
            self.worker.borrow_mut().step();
        }
        panic!("the operation does not end");
    }
    fn before_op(&self, index: usize) {
        self.clock.set(sim::driver::FIRST_TICK + index as i64);
    }
}

/// A fresh volume of 256 MiB with a small log, and a cache of 2 MiB.
fn engine(strict: bool) -> Side<Volume, ByHand> {
    let media = Arc::new(RamMedia::new(256 << 20).unwrap());
    let mkfs = MkfsOptions { strict, log_bytes: Some(8 << 20), ..MkfsOptions::default() };
    block::mkfs(media.clone(), &mkfs).unwrap();
    let clock = HandClock::default();
    clock.set(sim::driver::FIRST_TICK - 1);
    let options = OpenOptions {
        cache_bytes: 2 << 20,
        dirty_bytes_max: 1 << 20,
        clock: Arc::new(TestClock(clock.clone())),
        ..OpenOptions::default()
    };
    let (volume, worker) = Volume::open_manual(media, options).unwrap();
    let driver = ByHand { worker: Rc::new(RefCell::new(worker)), clock };
    Side::new(volume, driver)
}

fn model() -> Side<Model, Ticking> {
    let driver = Ticking::default();
    Side::new(Model::new(driver.0.clock()), driver)
}

const STRICT: Settings = Settings { tolerance: Tolerance::TIMES, tree_every: 500, close_at_end: true };

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

#[test]
fn data_with_every_overwrite_ordered() {
    assert_same(model, || engine(true), seeds(4), Knobs::data_heavy(), 2000, STRICT);
}
