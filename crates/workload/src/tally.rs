//! Counts, bytes and latencies of operations: one tally per thread and kind while the run goes on, added up in shared memory
//! at its end.
//!
//! Latencies stand in a histogram of 32 steps per power of two, so a percentile is at most 1/32 (3.2 %) above the true one.

use crate::mapping::Plain;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

const STEP_BITS: u32 = 5;
const STEPS: usize = 1 << STEP_BITS;
/// Buckets up to 2^40 ns (18 minutes); longer latencies fall into the last.
const BUCKETS: usize = (40 - STEP_BITS as usize + 1) * STEPS;

/// The operations of one kind.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Operations.
    pub count: u64,
    /// Bytes read or written by them.
    pub bytes: u64,
    /// Sum of latencies.
    pub latency_ns_sum: u64,
    /// The longest latency.
    pub latency_ns_max: u64,
    buckets: Box<[u64]>,
}

fn bucket(ns: u64) -> usize {
    let ns = ns.max(1);
    let top = ns.ilog2();
    if top < STEP_BITS {
        return ns as usize;
    }
    let step = (ns >> (top - STEP_BITS)) as usize - STEPS;
    (((top - STEP_BITS + 1) as usize) * STEPS + step).min(BUCKETS - 1)
}

/// The highest latency that falls into bucket `i`.
fn top_of(i: usize) -> u64 {
    if i < STEPS {
        return i as u64;
    }
    let shift = (i / STEPS - 1) as u32;
    (((i % STEPS + STEPS) as u64 + 1) << shift) - 1
}

impl Default for Tally {
    fn default() -> Self {
        Tally {
            count: 0,
            bytes: 0,
            latency_ns_sum: 0,
            latency_ns_max: 0,
            buckets: vec![0; BUCKETS].into_boxed_slice(),
        }
    }
}

impl Tally {
    /// Counts one operation.
    pub fn add(&mut self, latency_ns: u64, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
        self.latency_ns_sum = self.latency_ns_sum.saturating_add(latency_ns);
        self.latency_ns_max = self.latency_ns_max.max(latency_ns);
        self.buckets[bucket(latency_ns)] += 1;
    }

    /// Adds the operations of `other`.
    pub fn merge(&mut self, other: &Tally) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.latency_ns_sum = self.latency_ns_sum.saturating_add(other.latency_ns_sum);
        self.latency_ns_max = self.latency_ns_max.max(other.latency_ns_max);
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(a, b)| *a += b);
    }

    /// Mean latency in nanoseconds; 0 without operations.
    pub fn mean_ns(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.latency_ns_sum as f64 / self.count as f64 }
    }

    /// The latency in nanoseconds that `percent` of the operations do not exceed; 0 without operations.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        let wanted = (self.count as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (i, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= wanted {
                return top_of(i).min(self.latency_ns_max);
            }
        }
        self.latency_ns_max
    }
}

/// A tally in shared memory, to which threads of all processes add theirs.
#[repr(C)]
pub struct SharedTally {
    count: AtomicU64,
    bytes: AtomicU64,
    latency_ns_sum: AtomicU64,
    latency_ns_max: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

// SAFETY: nothing but atomics of plain bits.
unsafe impl Plain for SharedTally {}

impl SharedTally {
    /// Adds the operations of `tally`.
    pub fn add(&self, tally: &Tally) {
        self.count.fetch_add(tally.count, Relaxed);
        self.bytes.fetch_add(tally.bytes, Relaxed);
        self.latency_ns_sum.fetch_add(tally.latency_ns_sum, Relaxed);
        self.latency_ns_max.fetch_max(tally.latency_ns_max, Relaxed);
        for (shared, &n) in self.buckets.iter().zip(&tally.buckets).filter(|(_, n)| **n > 0) {
            shared.fetch_add(n, Relaxed);
        }
    }

    /// What has been added so far.
    pub fn get(&self) -> Tally {
        Tally {
            count: self.count.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            latency_ns_sum: self.latency_ns_sum.load(Relaxed),
            latency_ns_max: self.latency_ns_max.load(Relaxed),
            buckets: self.buckets.iter().map(|n| n.load(Relaxed)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;

    #[test]
    fn buckets_follow_each_other_without_gaps() {
        let mut last = 0;
        for ns in (1..100_000u64).chain((17..40).map(|k| 1 << k)) {
            let i = bucket(ns);
            assert!(i == last || ns >= 100_000 || i == last + 1, "{ns}");
            assert!(top_of(i) >= ns && (top_of(i) - ns) as f64 <= ns as f64 / 32.0, "{ns}");
            last = i;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket(0), 1);
    }

    #[test]
    fn percentiles_are_within_their_error() {
        let mut tally = Tally::default();
        (1..=10_000).for_each(|i| tally.add(i * 100, 1));
        assert_eq!((tally.count, tally.bytes, tally.latency_ns_max), (10_000, 10_000, 1_000_000));
        assert!((tally.mean_ns() - 500_050.0).abs() < 1.0);
        for percent in [1.0, 50.0, 99.0, 100.0] {
            let (got, exact) = (tally.percentile_ns(percent) as f64, percent * 10_000.0);
            assert!(got >= exact && got <= exact * 1.032, "{percent}: {got}");
        }
        assert_eq!(Tally::default().percentile_ns(99.0), 0);
    }

    #[test]
    fn shared_tallies_add_up() {
        let shared = Mapping::<SharedTally>::new(1).unwrap();
        let mut tally = Tally::default();
        tally.add(1000, 5);
        tally.add(90_000, 7);
        shared[0].add(&tally);
        shared[0].add(&tally);
        let sum = shared[0].get();
        tally.merge(&tally.clone());
        assert_eq!((sum.count, sum.bytes, sum.latency_ns_sum), (4, 24, 182_000));
        assert_eq!(sum.buckets, tally.buckets);
    }
}
