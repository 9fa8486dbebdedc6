//! Eviction for many users: the E value of UHSFS ("Sharing").
//!
//! ```text
//! E = S * sum over periods i of ( t_i^alpha / (R_i^beta + gamma) )
//! ```
//!
//! S is the size; R_i = M_i / N, the share of the N processes that used the entry in period i; t_i the time that passed
//! from the entry's last use in period i to the end of that period (to now, in the period that runs), as a share of the
//! period; all of the period when it was not used. The largest E goes. So an entry that many processes used is not thrown
//! out because nobody did for a moment, and of two alike entries the larger one goes.
//!
//! What the paper leaves open, and how it is settled here:
//! - A period ends when entries of a share of the cache's bytes ([`Params::turnover`]) came in. So periods are short when
//!   the cache turns over fast, long when nearly all uses are hits, and need no tuning to the clock.
//! - The sum has eight terms. An older term is averaged into the last one, so old use fades by half each period.
//! - The term of a period that has ended does not change any more: it is kept as one number.
//! - Periods before an entry came in count as not used. With [`Params::remember`] (beyond the paper) the terms of entries
//!   thrown out are kept, as many as there are entries, and an entry that comes back has its history.
//! - Processes are told apart by their number modulo 64.
//!
//! Finding the largest E: the terms of running periods grow at different speeds, so no order of entries holds for long, and
//! heaps and buckets would have to be remade all the time. Instead the largest of [`SAMPLE`] entries drawn at random goes:
//! constant work, and it is among the worst tenth of all with a probability of 1 - 0.9^32 = 97 %.

use super::periods::{Clock, History};
use super::{Key, Policy};
use hashbrown::HashMap;
use std::collections::VecDeque;

/// Entries that are looked at to find a victim.
pub const SAMPLE: usize = 32;

/// What can be fitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Exponent of the time not used; not negative.
    pub alpha: f64,
    /// Exponent of the share of processes; above 0.
    pub beta: f64,
    /// What keeps the quotient finite when nobody used the entry; above 0.
    pub gamma: f64,
    /// Bytes brought in during one period, as a share of the bytes that are there; above 0.
    pub turnover: f64,
    /// Whether the history of entries thrown out is kept.
    pub remember: bool,
}

impl Params {
    /// The paper's formula, fitted with `cargo run --release -p freehold-fs --example eviction -- fit`.
    pub const PAPER: Params = Params { alpha: 1.0, beta: 0.25, gamma: 0.03, turnover: 1.0, remember: false };
    /// The same with memory of what was thrown out, fitted by the same command.
    pub const REMEMBERING: Params =
        Params { alpha: 0.125, beta: 0.25, gamma: 0.001, turnover: 2.0, remember: true };

    /// One term of the sum: `t` is the share of the period since the last use, `r` the share of the processes.
    pub fn term(&self, t: f64, r: f64) -> f64 {
        t.powf(self.alpha) / (r.powf(self.beta) + self.gamma)
    }
}

impl Default for Params {
    fn default() -> Self {
        Params::REMEMBERING
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry<K> {
    key: K,
    size: u64,
    history: History,
}

type Map<K, V> = HashMap<K, V, foldhash::fast::FixedState>;

/// See the module documentation.
#[derive(Debug)]
pub struct SharedUse<K> {
    params: Params,
    processes: u32,
    entries: Vec<Entry<K>>,
    index: Map<K, u32>,
    bytes: u64,
    clock: Clock,
    ghosts: Map<K, (History, u64)>,
    /// Keys of ghosts as they came, with the number that says whether the ghost is still that one.
    ghost_order: VecDeque<(K, u64)>,
    ghost_count: u64,
    random: u64,
}

impl<K: Key> SharedUse<K> {
    /// One without entries, for `processes` processes (at least one).
    pub fn new(processes: u32, params: Params) -> Self {
        let map = foldhash::fast::FixedState::with_seed(0x5eed);
        SharedUse {
            params,
            processes: processes.max(1),
            entries: Vec::new(),
            index: Map::with_hasher(map.clone()),
            bytes: 0,
            clock: Clock::new(),
            ghosts: Map::with_hasher(map),
            ghost_order: VecDeque::new(),
            ghost_count: 0,
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Says how many processes there are now (N); the terms of periods that have ended stay.
    pub fn set_processes(&mut self, processes: u32) {
        self.processes = processes.max(1);
    }

    /// E of an entry, as of `now`; `None` when it is not there.
    pub fn e_value(&mut self, key: K, now: u64) -> Option<f64> {
        self.clock.advance(now);
        let at = *self.index.get(&key)? as usize;
        Some(self.e_at(at))
    }

    fn e_at(&mut self, at: usize) -> f64 {
        self.roll_at(at);
        let Entry { size, history, .. } = &self.entries[at];
        *size as f64 * history.sum(&self.clock, &self.params, self.processes)
    }

    fn roll_at(&mut self, at: usize) {
        self.entries[at].history.roll(&self.clock, &self.params, self.processes);
    }

    fn take(&mut self, key: K) -> Option<Entry<K>> {
        let at = self.index.remove(&key)? as usize;
        let entry = self.entries.swap_remove(at);
        if let Some(moved) = self.entries.get(at) {
            self.index.insert(moved.key, at as u32);
        }
        self.bytes -= entry.size;
        Some(entry)
    }

    fn keep_ghost(&mut self, key: K, history: History) {
        self.ghost_count += 1;
        self.ghosts.insert(key, (history, self.ghost_count));
        self.ghost_order.push_back((key, self.ghost_count));
        while self.ghost_order.len() > self.entries.len().max(1) {
            if let Some((old, number)) = self.ghost_order.pop_front()
                && self.ghosts.get(&old).is_some_and(|g| g.1 == number)
            {
                self.ghosts.remove(&old);
            }
        }
    }

    /// xorshift64*: where samples are is of no importance, only that they are everywhere.
    fn random_below(&mut self, n: usize) -> usize {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let x = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d);
        ((x as u128 * n as u128) >> 64) as usize
    }
}

impl<K: Key> Policy<K> for SharedUse<K> {
    fn insert(&mut self, key: K, size: u64, process: u32, now: u64) {
        if self.touch(key, size, process, now) {
            return;
        }
        if self.clock.came() as f64 > self.bytes as f64 * self.params.turnover {
            self.clock.next_period();
        }
        self.clock.came_in(size);
        let remembered = self.ghosts.remove(&key).map(|(history, _)| history);
        let history = remembered.unwrap_or_else(|| History::new(&self.clock, &self.params));
        self.index.insert(key, self.entries.len() as u32);
        self.entries.push(Entry { key, size, history });
        self.bytes += size;
        self.touch(key, size, process, now);
    }

    fn touch(&mut self, key: K, size: u64, process: u32, now: u64) -> bool {
        self.clock.advance(now);
        let Some(&at) = self.index.get(&key) else { return false };
        self.roll_at(at as usize);
        let entry = &mut self.entries[at as usize];
        entry.history.used(&self.clock, process);
        self.bytes = self.bytes - entry.size + size;
        entry.size = size;
        true
    }

    fn victim(&mut self, now: u64) -> Option<K> {
        self.clock.advance(now);
        let n = self.entries.len();
        let mut worst: Option<(f64, usize)> = None;
        for i in 0..n.min(SAMPLE) {
            let at = if n <= SAMPLE { i } else { self.random_below(n) };
            let e = self.e_at(at);
            if worst.is_none_or(|(w, _)| e > w) {
                worst = Some((e, at));
            }
        }
        worst.map(|(_, at)| self.entries[at].key)
    }

    fn evict(&mut self, key: K) -> Option<u64> {
        let entry = self.take(key)?;
        if self.params.remember {
            self.keep_ghost(key, entry.history);
        }
        Some(entry.size)
    }

    fn remove(&mut self, key: K) -> Option<u64> {
        self.ghosts.remove(&key);
        self.take(key).map(|e| e.size)
    }

    fn contains(&self, key: K) -> bool {
        self.index.contains_key(&key)
    }

    fn len(&self) -> usize {
        self.entries.len()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}
