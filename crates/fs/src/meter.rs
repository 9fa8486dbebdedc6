//! What a door was asked to do, and how long it took: a count, errors and a histogram of times for each class of calls.
//!
//! A call costs two additions and, for the caller, the readings of a clock. The numbers are independent of each other and
//! never reset; a reader takes them at any time, without disturbing those who count, and subtracts what it saw before.
//!
//! Times fall into buckets whose bounds grow by less than 25 %: four to each power of two, from 64 ns to 137 s. What is shorter or
//! longer is counted in the first or the last one.
//!
//! Tested at the end of this file.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Powers of two below the first bucket's end.
const FIRST: u32 = 6;
/// Powers of two that are told apart.
const OCTAVES: u32 = 31;
/// Buckets of a histogram.
pub const BUCKETS: usize = OCTAVES as usize * 4;

/// The bucket of a time in nanoseconds.
fn bucket(ns: u64) -> usize {
    let power = (63 - (ns | 1).leading_zeros()).clamp(FIRST, FIRST + OCTAVES - 1);
    let quarter = if ns < 1 << FIRST { 0 } else { (ns >> (power - 2)).min(7) & 3 };
    ((power - FIRST) * 4) as usize + quarter as usize
}

/// The end of a bucket, in nanoseconds: all times in it are shorter. Of the last one that need not be true.
pub fn bucket_end_ns(bucket: usize) -> u64 {
    let (power, quarter) = (FIRST + bucket as u32 / 4, bucket as u64 % 4);
    (5 + quarter) << (power - 2)
}

/// The running numbers of one door.
#[derive(Debug)]
pub struct Meter {
    names: &'static [&'static str],
    classes: Box<[Class]>,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

#[derive(Debug)]
struct Class {
    buckets: [AtomicU64; BUCKETS],
    errors: AtomicU64,
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

/// Calls of one class since the door was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallStats {
    /// The class.
    pub name: &'static str,
    /// Calls that failed; they are among the others too.
    pub errors: u64,
    /// Time of all calls together, nanoseconds.
    pub sum_ns: u64,
    /// The longest one, nanoseconds.
    pub max_ns: u64,
    /// Calls by the time they took, see [`bucket_end_ns`].
    pub buckets: Vec<u64>,
}

impl CallStats {
    /// All of them.
    pub fn calls(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// What a door did since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DoorStats {
    /// The classes that were called.
    pub calls: Vec<CallStats>,
    /// Bytes of file data read.
    pub bytes_read: u64,
    /// Bytes of file data written.
    pub bytes_written: u64,
}

impl Meter {
    /// For calls of these classes. They are known by their index from then on.
    pub fn new(names: &'static [&'static str]) -> Meter {
        let class = |_: &_| Class {
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            errors: AtomicU64::new(0),
            sum_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
        };
        let classes = names.iter().map(class).collect();
        Meter { names, classes, bytes_read: AtomicU64::new(0), bytes_written: AtomicU64::new(0) }
    }

    /// Counts a call. Unknown classes are left out.
    pub fn count(&self, class: usize, time: Duration, failed: bool) {
        let Some(class) = self.classes.get(class) else { return };
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        class.buckets[bucket(ns)].fetch_add(1, Relaxed);
        class.sum_ns.fetch_add(ns, Relaxed);
        // Nearly always only looked at.
        if ns > class.max_ns.load(Relaxed) {
            class.max_ns.fetch_max(ns, Relaxed);
        }
        if failed {
            class.errors.fetch_add(1, Relaxed);
        }
    }

    /// Counts file data.
    pub fn moved(&self, read: u64, written: u64) {
        if read > 0 {
            self.bytes_read.fetch_add(read, Relaxed);
        }
        if written > 0 {
            self.bytes_written.fetch_add(written, Relaxed);
        }
    }

    /// The numbers now.
    pub fn stats(&self) -> DoorStats {
        let read = |(name, class): (&&'static str, &Class)| CallStats {
            name,
            errors: class.errors.load(Relaxed),
            sum_ns: class.sum_ns.load(Relaxed),
            max_ns: class.max_ns.load(Relaxed),
            buckets: class.buckets.iter().map(|b| b.load(Relaxed)).collect(),
        };
        let all = self.names.iter().zip(&self.classes).map(read);
        DoorStats {
            calls: all.filter(|c| c.calls() > 0).collect(),
            bytes_read: self.bytes_read.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_hold_their_times() {
        let mut last = 0;
        for i in 0..BUCKETS {
            let end = bucket_end_ns(i);
            assert!(end > last && bucket(end - 1) == i, "{i}: {end}");
            assert!(i + 1 == BUCKETS || bucket(end) == i + 1, "{i}: {end}");
            assert!(i == 0 || end as f64 / last as f64 <= 1.2501, "{i}: {last} {end}");
            last = end;
        }
        assert_eq!((bucket(0), bucket(63), bucket(64), bucket(u64::MAX)), (0, 0, 0, BUCKETS - 1));
    }

    #[test]
    fn calls_are_counted_by_class() {
        let meter = Meter::new(&["read", "write", "sync"]);
        for ns in [100, 100, 1_000_000] {
            meter.count(1, Duration::from_nanos(ns), ns > 1000);
        }
        meter.count(99, Duration::ZERO, true);
        meter.moved(7, 0);
        let stats = meter.stats();
        let [write] = &stats.calls[..] else { panic!("{stats:?}") };
        assert_eq!((write.name, write.calls(), write.errors), ("write", 3, 1));
        assert_eq!((write.sum_ns, write.max_ns, write.buckets[bucket(100)]), (1_000_200, 1_000_000, 2));
        assert_eq!((stats.bytes_read, stats.bytes_written), (7, 0));
    }

    /// Not a limit, which a busy machine would break, but a figure to look at: what a call pays.
    #[test]
    fn the_cost_of_counting() {
        let meter = Meter::new(&["read"]);
        let (start, calls) = (std::time::Instant::now(), 200_000);
        for _ in 0..calls {
            let begun = std::time::Instant::now();
            meter.count(0, begun.elapsed(), false);
        }
        println!("{} ns for two readings of the clock and a count", start.elapsed().as_nanos() / calls);
        assert_eq!(meter.stats().calls[0].calls(), calls as u64);
    }
}
