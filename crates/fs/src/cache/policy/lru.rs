//! Least recently used: the entry that was not used for the longest time goes.
//!
//! The measure for the other policies: it needs no parameter and no history, but one pass over many files pushes
//! everything else out, and a loop over more than the cache holds never hits. Sizes and processes make no difference.

use super::list::Queues;
use super::{Key, Policy};

/// See the module documentation.
#[derive(Debug)]
pub struct Lru<K> {
    /// One queue, the least recently used entry in front.
    order: Queues<K, 1>,
}

impl<K: Key> Lru<K> {
    /// One without entries.
    pub fn new() -> Self {
        Lru { order: Queues::new() }
    }
}

impl<K: Key> Default for Lru<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Key> Policy<K> for Lru<K> {
    fn insert(&mut self, key: K, size: u64, process: u32, now: u64) {
        if !self.touch(key, size, process, now) {
            self.order.push(0, key, size);
        }
    }

    fn touch(&mut self, key: K, size: u64, _process: u32, _now: u64) -> bool {
        if !self.contains(key) {
            return false;
        }
        self.order.used(key, size, 0);
        self.order.shift(0, key, 0);
        true
    }

    fn victim(&mut self, _now: u64) -> Option<K> {
        self.order.front(0).map(|(key, _)| key)
    }

    fn evict(&mut self, key: K) -> Option<u64> {
        self.order.take(key)
    }

    fn remove(&mut self, key: K) -> Option<u64> {
        self.order.take(key)
    }

    fn contains(&self, key: K) -> bool {
        self.order.queue_of(key).is_some()
    }

    fn len(&self) -> usize {
        self.order.len(0)
    }

    fn bytes(&self) -> u64 {
        self.order.bytes(0)
    }
}
