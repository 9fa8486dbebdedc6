//! S3-FIFO: a small queue that new entries must survive, a main queue, and a memory of what was thrown out of the small one.
//!
//! Source: Yang, Zhang, Qiu, Yue and Vinayak, "FIFO queues are all you need for cache eviction", SOSP 2023. Most entries
//! that are brought in are used once; they leave through the small queue, a tenth of the cache, and disturb nothing.
//!
//! - New entries go to the small queue; those that are remembered go to the main queue.
//! - At the front of the small queue, an entry used more than once since it came goes to the main queue; others go out and
//!   are remembered, as many as the main queue has entries.
//! - At the front of the main queue, an entry that was used goes to the end with one use less; others go out.
//!
//! Shares are of bytes, because entries differ in size. Processes make no difference.

use super::list::Queues;
use super::{Key, Policy};

const SMALL: usize = 0;
const MAIN: usize = 1;
/// Keys only: these entries are not in the cache.
const GHOST: usize = 2;

/// Uses are counted up to this.
const MOST_USES: u8 = 3;
/// An entry with more uses than this goes from the small queue to the main one.
const PROVEN: u8 = 1;
/// The small queue gives victims while it has at least one part in this many of the bytes.
const SMALL_PART: u64 = 10;

/// See the module documentation.
#[derive(Debug)]
pub struct S3Fifo<K> {
    queues: Queues<K, 3>,
}

impl<K: Key> S3Fifo<K> {
    /// One without entries.
    pub fn new() -> Self {
        S3Fifo { queues: Queues::new() }
    }

    fn forget_surplus(&mut self) {
        while self.queues.len(GHOST) > self.queues.len(MAIN).max(self.queues.len(SMALL)) {
            if let Some((oldest, _)) = self.queues.front(GHOST) {
                self.queues.take(oldest);
            }
        }
    }
}

impl<K: Key> Default for S3Fifo<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Key> Policy<K> for S3Fifo<K> {
    fn insert(&mut self, key: K, size: u64, process: u32, now: u64) {
        match self.queues.queue_of(key) {
            None => self.queues.push(SMALL, key, size),
            Some(GHOST) => {
                self.queues.take(key);
                self.queues.push(MAIN, key, size);
            }
            Some(_) => {
                self.touch(key, size, process, now);
            }
        }
    }

    fn touch(&mut self, key: K, size: u64, _process: u32, _now: u64) -> bool {
        if !self.contains(key) {
            return false;
        }
        self.queues.used(key, size, MOST_USES);
        true
    }

    /// Ends: each step moves an entry to the main queue for good, or takes one of at most `MOST_USES` uses from one.
    fn victim(&mut self, _now: u64) -> Option<K> {
        loop {
            let small = self.queues.bytes(SMALL);
            let from_small = small >= (small + self.queues.bytes(MAIN)) / SMALL_PART;
            let queue = if self.queues.len(MAIN) == 0 || (from_small && self.queues.len(SMALL) > 0) {
                SMALL
            } else {
                MAIN
            };
            match self.queues.front(queue)? {
                (key, uses) if queue == SMALL && uses > PROVEN => self.queues.shift(MAIN, key, 0),
                (key, uses) if queue == MAIN && uses > 0 => self.queues.shift(MAIN, key, uses - 1),
                (key, _) => return Some(key),
            }
        }
    }

    fn evict(&mut self, key: K) -> Option<u64> {
        let queue = self.queues.queue_of(key).filter(|&q| q != GHOST)?;
        let size = self.queues.take(key);
        if queue == SMALL {
            self.queues.push(GHOST, key, 0);
        }
        self.forget_surplus();
        size
    }

    fn remove(&mut self, key: K) -> Option<u64> {
        let there = self.contains(key);
        self.queues.take(key).filter(|_| there)
    }

    fn contains(&self, key: K) -> bool {
        matches!(self.queues.queue_of(key), Some(SMALL | MAIN))
    }

    fn len(&self) -> usize {
        self.queues.len(SMALL) + self.queues.len(MAIN)
    }

    fn bytes(&self) -> u64 {
        self.queues.bytes(SMALL) + self.queues.bytes(MAIN)
    }
}
