//! The engine driven by hand on simulated flash: one thread, a clock that the test moves, small caches.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use block::{Counters, MkfsOptions, OpenOptions, Volume, Worker};
use fs::{Error, FileSystem, block_on};
use media::SimFlash;
use media::flash::{Config, Lies, Order};
use sim::crash::Rig;
use sim::{Driver, HandClock};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub struct TestClock(pub HandClock);

impl block::Clock for TestClock {
    fn now(&self) -> fs::Time {
        (self.0.clock())()
    }
    fn monotonic(&self) -> Duration {
        Duration::from_secs(self.now().sec.max(0) as u64)
    }
}

/// Polls a future and steps the worker in turn. A wait that nothing in flight can end is a hang, and panics.
#[derive(Clone)]
pub struct ByHand {
    pub worker: Rc<RefCell<Worker>>,
    pub volume: Volume,
    pub clock: HandClock,
    random: Rc<Cell<u64>>,
    /// Begin checkpoints now and then.
    pub checkpoints: bool,
}

impl ByHand {
    pub fn new(volume: &Volume, worker: Worker, clock: HandClock, seed: u64) -> ByHand {
        let worker = Rc::new(RefCell::new(worker));
        ByHand { worker, volume: volume.clone(), clock, random: Rc::new(Cell::new(seed)), checkpoints: false }
    }

    fn below(&self, n: u64) -> u64 {
        let x = self.random.get().wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.random.set(x);
        (x >> 33) % n
    }

    /// Steps until nothing is in flight.
    pub fn settle(&self) {
        for _ in 0..100_000 {
            if !self.worker.borrow_mut().step() {
                return;
            }
        }
        panic!("the volume does not come to rest: {}", self.state());
    }

    fn state(&self) -> String {
        let volume = &self.volume;
        let space = block_on(volume.statfs());
        let (epochs, latched, counters) = (volume.epochs(), volume.latched(), volume.counters());
        format!(
            "epochs {epochs:?}, latched {latched:?}, {space:?}, {counters:?}, {:?}",
            volume.cache_counters()
        )
    }
}

impl Driver for ByHand {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let mut cx = Context::from_waker(Waker::noop());
        let mut idle = 0;
        for _ in 0..1_000_000 {
            if let Poll::Ready(out) = future.as_mut().poll(&mut cx) {
                return out;
            }
            let busy = self.worker.borrow_mut().step();
            idle = if busy { 0 } else { idle + 1 };
            if idle > 1000 {
                panic!("a call waits, nothing is in flight and nothing goes on: {}", self.state());
            }
        }
        panic!("a call does not end: {}", self.state());
    }

    fn before_op(&self, index: usize) {
        self.clock.set(sim::driver::FIRST_TICK + index as i64);
        for _ in 0..self.below(4) {
            self.worker.borrow_mut().step();
        }
        if self.checkpoints && self.below(40) == 0 {
            // Begins, and goes on beside the operations that follow.
            let mut checkpoint = pin!(self.volume.checkpoint());
            let _ = checkpoint.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}

/// A kind of volume and device.
#[derive(Clone)]
pub struct Setup {
    pub strict: bool,
    pub bytes: u64,
    pub atomic_unit: u32,
    pub volatile_cache: bool,
    pub order: Order,
    pub seed: u64,
    pub cache_bytes: usize,
    pub dirty_bytes_max: usize,
    pub discard: bool,
    pub lies: Lies,
    /// The device takes barriers.
    pub barrier: bool,
    pub checkpoints: bool,
    /// Counters of all volumes that were opened and closed.
    pub seen: Rc<RefCell<Counters>>,
}

impl Setup {
    pub fn new(strict: bool, seed: u64) -> Setup {
        Setup {
            strict,
            bytes: 64 << 20,
            atomic_unit: if seed.is_multiple_of(2) { 4096 } else { 512 },
            volatile_cache: true,
            order: Order::Shuffled { batch: 3 },
            seed,
            cache_bytes: 2 << 20,
            dirty_bytes_max: 1 << 20,
            discard: seed.is_multiple_of(3),
            lies: Lies::default(),
            barrier: false,
            checkpoints: true,
            seen: Rc::default(),
        }
    }

    /// A small volume on one of the device models: with a volatile cache and pages or sectors as atomic units, with power
    /// protection, with barriers.
    pub fn on(model: u64, strict: bool) -> Setup {
        let setup = Setup { bytes: 32 << 20, checkpoints: false, ..Setup::new(strict, model % 4) };
        match model % 4 {
            2 => Setup { volatile_cache: false, atomic_unit: 512, ..setup },
            3 => Setup { barrier: true, atomic_unit: 4096, ..setup },
            _ => setup,
        }
    }

    /// A device with a volume on it.
    pub fn make(&self) -> Arc<SimFlash> {
        let config = Config {
            atomic_unit: self.atomic_unit,
            volatile_cache: self.volatile_cache,
            order: self.order,
            seed: self.seed,
            barrier: self.barrier,
            lies: self.lies,
            ..Config::new(self.bytes)
        };
        let media = Arc::new(SimFlash::new(config).unwrap());
        let mkfs = MkfsOptions {
            strict: self.strict,
            log_bytes: Some(8 << 20),
            uuid: Some([7; 16]),
            ..MkfsOptions::default()
        };
        block::mkfs(media.clone(), &mkfs).unwrap();
        Arc::new(media.crash_image(|_, _| true))
    }

    pub fn options(&self, clock: &HandClock) -> OpenOptions {
        OpenOptions {
            cache_bytes: self.cache_bytes,
            dirty_bytes_max: self.dirty_bytes_max,
            discard: self.discard,
            clock: Arc::new(TestClock(clock.clone())),
            ..OpenOptions::default()
        }
    }

    pub fn start(&self, media: Arc<SimFlash>) -> fs::Result<(Arc<Volume>, ByHand)> {
        self.start_on(media)
    }

    /// As [`Setup::start`], where something stands between engine and device.
    pub fn start_on(&self, media: Arc<dyn media::Media>) -> fs::Result<(Arc<Volume>, ByHand)> {
        let clock = HandClock::default();
        clock.set(sim::driver::FIRST_TICK - 1);
        let (volume, worker) = Volume::open_manual(media, self.options(&clock))?;
        let mut driver = ByHand::new(&volume, worker, clock, self.seed);
        driver.checkpoints = self.checkpoints;
        Ok((Arc::new(volume), driver))
    }

    fn free(&self, volume: &Volume) -> u64 {
        block_on(volume.statfs()).map_or(0, |s| s.blocks_free)
    }
}

pub fn add(to: &mut Counters, more: &Counters) {
    to.epochs += more.epochs;
    to.flushes += more.flushes;
    to.log_blocks += more.log_blocks;
    to.data_blocks += more.data_blocks;
    to.overwritten_blocks += more.overwritten_blocks;
    to.logged_pages += more.logged_pages;
    to.read_blocks += more.read_blocks;
    to.checkpoints += more.checkpoints;
    to.inode_blocks += more.inode_blocks;
    to.throttled += more.throttled;
}

impl Rig for Setup {
    type Fs = Volume;
    type Driver = ByHand;

    fn open(&self, media: Arc<SimFlash>) -> fs::Result<(Arc<Volume>, ByHand)> {
        self.start(media)
    }

    fn close(&self, volume: &Volume, driver: &ByHand) -> fs::Result<()> {
        let result = driver.block_on(volume.close());
        add(&mut self.seen.borrow_mut(), &volume.counters());
        result
    }

    fn strict(&self) -> bool {
        self.strict
    }

    fn full(&self, volume: &Volume) -> bool {
        block_on(volume.statfs()).is_ok_and(|s| s.blocks_available < 64)
    }

    /// Free space must be the same after recovery and a checkpoint, found by a scan, and read from the index.
    fn audit(&self, media: &SimFlash) -> Result<(), String> {
        let told = |e: Error| e.to_string();
        let media = Arc::new(media.crash_image(|_, _| true));
        let (volume, driver) = self.start(media.clone()).map_err(told)?;
        driver.block_on(volume.checkpoint()).map_err(told)?;
        driver.block_on(volume.checkpoint()).map_err(told)?;
        driver.settle();
        let recovered = self.free(&volume);
        let scanned = {
            let (volume, driver) = self.start(Arc::new(media.crash_image(|_, _| true))).map_err(told)?;
            driver.settle();
            self.free(&volume)
        };
        driver.block_on(volume.close()).map_err(told)?;
        let (volume, driver) = self.start(media).map_err(told)?;
        driver.settle();
        let indexed = self.free(&volume);
        driver.block_on(volume.close()).map_err(told)?;
        match recovered == scanned && scanned == indexed {
            true => Ok(()),
            false => {
                Err(format!("free blocks: {recovered} after recovery, {scanned} by scan, {indexed} by index"))
            }
        }
    }
}
