//! What a client has posted lately: an answer that was asked for before something was posted may be older than that, and is not kept if it tells of the same thing.

use crate::lock::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Changes that are told apart; who asked before more of them came keeps nothing.
const LAST: usize = 256;

/// Changes that were posted: how many, and what the last of them concern.
#[derive(Debug)]
pub(super) struct Posts {
    count: AtomicU64,
    /// So many have come into force, as far as is known.
    settled: AtomicU64,
    last: Mutex<[u64; LAST]>,
}

impl Default for Posts {
    fn default() -> Posts {
        Posts { count: AtomicU64::new(0), settled: AtomicU64::new(0), last: Mutex::new([0; LAST]) }
    }
}

impl Posts {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// One more, of what has this hash. What is dropped because of it is dropped after this.
    pub fn add(&self, hash: u64) {
        let mut last = self.last.lock();
        let count = self.count.load(Ordering::SeqCst);
        last[count as usize % LAST] = hash;
        self.count.store(count + 1, Ordering::SeqCst);
    }

    /// The first `count` have come into force.
    pub fn settled(&self, count: u64) {
        if self.settled.load(Ordering::Relaxed) < count {
            self.settled.fetch_max(count, Ordering::SeqCst);
        }
    }

    /// Whether one of those that may not be in force yet may concern what has this hash.
    pub fn is_pending(&self, hash: u64) -> bool {
        self.concern(self.settled.load(Ordering::SeqCst), hash)
    }

    /// Whether one of those that came after the first `since` may concern what has this hash.
    pub fn concern(&self, since: u64, hash: u64) -> bool {
        if self.count() == since {
            return false;
        }
        let last = self.last.lock();
        let count = self.count();
        let (from, to) = (since as usize % LAST, count as usize % LAST);
        let has = |part: &[u64]| part.contains(&hash);
        match count.wrapping_sub(since) {
            0 => false,
            more if more > LAST as u64 => true,
            _ if from < to => has(&last[from..to]),
            _ => has(&last[from..]) || has(&last[..to]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_posted_since() {
        let posts = Posts::default();
        posts.add(7);
        let since = posts.count();
        assert!(!posts.concern(since, 7) && posts.concern(since - 1, 7));
        posts.add(8);
        assert!(posts.concern(since, 8) && !posts.concern(since, 7) && !posts.concern(since, 0));
        (1..LAST as u64).for_each(|_| posts.add(9));
        assert!(posts.concern(since, 8) && posts.concern(since, 9) && !posts.concern(since, 7));
        posts.add(9);
        assert!(posts.concern(since, 7), "there were too many to know");
        assert!(!posts.concern(since + 1, 8) && !posts.concern(posts.count(), 9));
        assert!(posts.is_pending(8) && posts.is_pending(5), "more than are remembered");
        posts.settled(since + 1);
        assert!(!posts.is_pending(8) && posts.is_pending(9));
        posts.settled(since);
        assert!(!posts.is_pending(8), "it was known before");
        posts.settled(posts.count());
        assert!(!posts.is_pending(9));
    }
}
