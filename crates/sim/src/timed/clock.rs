//! Virtual time: events by the moment at which they happen, and random numbers that are the same everywhere.

use std::collections::BTreeMap;

/// Virtual time or a duration, nanoseconds.
pub type Ns = u64;

/// A microsecond.
pub const US: Ns = 1_000;
/// A millisecond.
pub const MS: Ns = 1_000_000;
/// A second.
pub const SECOND: Ns = 1_000_000_000;

/// Events to come. Those of one moment happen in the order in which they were added.
pub struct Agenda<E> {
    events: BTreeMap<(Ns, u64), E>,
    added: u64,
}

impl<E> Default for Agenda<E> {
    fn default() -> Agenda<E> {
        Agenda { events: BTreeMap::new(), added: 0 }
    }
}

impl<E> Agenda<E> {
    /// Adds an event.
    pub fn at(&mut self, time: Ns, event: E) {
        self.events.insert((time, self.added), event);
        self.added += 1;
    }

    /// When the next event happens.
    pub fn next_time(&self) -> Option<Ns> {
        self.events.first_key_value().map(|((time, _), _)| *time)
    }

    /// Removes the next event, if it happens no later than `now`.
    pub fn pop(&mut self, now: Ns) -> Option<E> {
        let entry = self.events.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}

/// Random numbers (splitmix64), whose sequence no library can change.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.number() % n
    }
}
