//! Which entry of a full cache goes: a small contract ([`Policy`]) and three answers to it.
//!
//! - [`SharedUse`]: the E value of UHSFS ("Sharing"), which keeps what many processes use.
//! - [`Lru`]: what was not used for the longest time goes.
//! - [`S3Fifo`]: three queues (Yang and others, "FIFO queues are all you need for cache eviction", SOSP 2023).
//!
//! A policy knows keys and sizes, never contents. It does not know the cache's capacity either: the cache asks for a
//! victim whenever it needs room, for as long as it needs room. So a policy never gives up an entry by itself, and
//!
//! - [`Policy::victim`] names an entry that is there, and names one whenever there is one;
//! - [`Policy::bytes`] is the sum of the sizes of what is there.
//!
//! Policies are plain structures: their owner serialises access. `cargo run --release -p freehold-fs --example eviction`
//! compares them; docs/BENCHMARKS.md has the results. Tested here, all three with the same tests.

mod list;
mod lru;
mod periods;
mod s3fifo;
mod shared_use;
#[cfg(test)]
mod tests;

pub use lru::Lru;
pub use s3fifo::S3Fifo;
pub use shared_use::{Params, SharedUse};

/// Requirements on a key: cheap to copy, and can be found.
pub trait Key: Copy + Eq + std::hash::Hash {}
impl<K: Copy + Eq + std::hash::Hash> Key for K {}

/// Decides what a cache throws out.
///
/// `now` is any clock that does not run backwards (nanoseconds, or a count of accesses); an earlier `now` than the latest
/// one counts as the latest. `process` is a small number for who uses the entry. Sizes are bytes.
pub trait Policy<K: Key> {
    /// The entry was brought in. Counts as a use. An entry that is there already is touched instead.
    fn insert(&mut self, key: K, size: u64, process: u32, now: u64);

    /// The entry was used by `process` and is `size` bytes long now. False, and nothing happens, when it is not there.
    fn touch(&mut self, key: K, size: u64, process: u32, now: u64) -> bool;

    /// The entry whose loss hurts least, by this policy; it stays until [`Policy::evict`]. `None` when nothing is there.
    ///
    /// A caller who finds that the victim is in use touches it and asks again.
    fn victim(&mut self, now: u64) -> Option<K>;

    /// The entry was thrown out to make room; it may come back, and a policy may remember it. Its size, if it was there.
    fn evict(&mut self, key: K) -> Option<u64>;

    /// The entry exists no more (a file was deleted); nothing of it is remembered. Its size, if it was there.
    fn remove(&mut self, key: K) -> Option<u64>;

    /// Whether the entry is there.
    fn contains(&self, key: K) -> bool;

    /// Number of entries.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sum of the entries' sizes.
    fn bytes(&self) -> u64;
}
