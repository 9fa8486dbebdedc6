//! What kind of device to simulate: size, units, cache, what it promises and what it does not keep.

use crate::Geometry;

/// Promises that the device makes and does not keep. A crash test must find each of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lies {
    /// A flush does nothing.
    pub flush: bool,
    /// FUA is taken and ignored.
    pub fua: bool,
    /// Barriers are taken and ignored.
    pub barrier: bool,
}

/// In which order requests complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As submitted, all at the next reap.
    Submission,
    /// Any, a few at a time: each reap delivers between 1 and `batch`.
    Shuffled {
        /// Most completions of one reap, at least 1.
        batch: u32,
    },
}

/// What kind of device to simulate.
#[derive(Clone, Debug)]
pub struct Config {
    /// Size in bytes, a multiple of `sector`.
    pub bytes: u64,
    /// See [`Geometry::sector`].
    pub sector: u32,
    /// See [`Geometry::atomic_unit`].
    pub atomic_unit: u32,
    /// See [`Geometry::volatile_cache`].
    pub volatile_cache: bool,
    /// See [`Geometry::barrier`].
    pub barrier: bool,
    /// See [`Geometry::max_transfer`].
    pub max_transfer: u32,
    /// What it promises in vain.
    pub lies: Lies,
    /// Order of completions.
    pub order: Order,
    /// Decides everything random.
    pub seed: u64,
    /// A reap without time limit waits when nothing is in flight, as other media do. Otherwise it returns at once, because
    /// with one thread nobody could end the wait. Set this where a thread of its own reaps.
    pub wait_when_idle: bool,
}

impl Config {
    /// An honest device with a volatile cache, 512-byte sectors, 4 KiB atomic units, completions in order.
    pub fn new(bytes: u64) -> Config {
        Config {
            bytes,
            sector: 512,
            atomic_unit: 4096,
            volatile_cache: true,
            barrier: false,
            max_transfer: 2 << 20,
            lies: Lies::default(),
            order: Order::Submission,
            seed: 0,
            wait_when_idle: false,
        }
    }

    pub(super) fn check(&self) -> bool {
        self.sector.is_power_of_two()
            && self.atomic_unit.is_power_of_two()
            && self.sector >= 512
            && self.atomic_unit >= self.sector
            && self.bytes.is_multiple_of(self.sector as u64)
            && self.bytes <= 1 << 60
            && self.max_transfer >= self.atomic_unit
    }

    pub(super) fn geometry(&self) -> Geometry {
        Geometry {
            name: "simulated flash".into(),
            bytes: self.bytes,
            sector: self.sector,
            atomic_unit: self.atomic_unit,
            volatile_cache: self.volatile_cache,
            barrier: self.barrier,
            discard: true,
            queue_depth: 256,
            max_transfer: self.max_transfer,
            numa_node: None,
        }
    }
}
