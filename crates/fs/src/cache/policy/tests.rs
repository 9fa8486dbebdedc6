//! The same tests for each policy, LRU against a naive model, and E against the formula written down naively.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(u8, u16, u8),
    Touch(u8, u16, u8),
    Victim { evict: bool },
    Evict(u8),
    Remove(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (any::<u8>(), any::<u16>(), 0..80u8).prop_map(|(k, s, p)| Step::Insert(k, s, p)),
        4 => (any::<u8>(), any::<u16>(), 0..80u8).prop_map(|(k, s, p)| Step::Touch(k, s, p)),
        3 => any::<bool>().prop_map(|evict| Step::Victim { evict }),
        1 => any::<u8>().prop_map(Step::Evict),
        1 => any::<u8>().prop_map(Step::Remove),
    ];
    prop::collection::vec(step, 0..600)
}

/// A policy and a map of what must be there agree after every step.
fn agrees(mut policy: impl Policy<u8>, steps: &[Step]) {
    let mut there: HashMap<u8, u64> = HashMap::new();
    for (now, &step) in steps.iter().enumerate() {
        // Clocks of different processors: now and then one is behind.
        let now = now as u64 * 10 - if now % 7 == 6 { 30 } else { 0 };
        match step {
            Step::Insert(k, s, p) => {
                policy.insert(k, s as u64, p as u32, now);
                there.insert(k, s as u64);
            }
            Step::Touch(k, s, p) => {
                assert_eq!(policy.touch(k, s as u64, p as u32, now), there.contains_key(&k));
                there.entry(k).and_modify(|size| *size = s as u64);
            }
            Step::Victim { evict } => {
                let victim = policy.victim(now);
                assert_eq!(victim.is_some(), !there.is_empty());
                if let Some(v) = victim {
                    assert!(there.contains_key(&v), "a victim that is not there");
                    if evict {
                        assert_eq!(policy.evict(v), there.remove(&v));
                    }
                }
            }
            Step::Evict(k) => assert_eq!(policy.evict(k), there.remove(&k)),
            Step::Remove(k) => assert_eq!(policy.remove(k), there.remove(&k)),
        }
        assert_eq!(policy.len(), there.len());
        assert_eq!(policy.bytes(), there.values().sum::<u64>());
        assert!((0..=255).all(|k| policy.contains(k) == there.contains_key(&k)));
    }
    while let Some(v) = policy.victim(u64::MAX) {
        assert_eq!(policy.evict(v), there.remove(&v));
    }
    assert!(policy.is_empty() && policy.bytes() == 0 && there.is_empty());
}

/// Least recently used, first come in front.
fn lru_equals_model(steps: &[Step]) {
    let mut policy = Lru::new();
    let mut order: Vec<u8> = Vec::new();
    for &step in steps {
        match step {
            Step::Insert(k, s, p) => {
                policy.insert(k, s as u64, p as u32, 0);
                order.retain(|&o| o != k);
                order.push(k);
            }
            Step::Touch(k, s, p) => {
                if policy.touch(k, s as u64, p as u32, 0) {
                    order.retain(|&o| o != k);
                    order.push(k);
                }
            }
            Step::Victim { evict } => {
                assert_eq!(policy.victim(0), order.first().copied());
                if evict && !order.is_empty() {
                    policy.evict(order.remove(0));
                }
            }
            Step::Evict(k) | Step::Remove(k) => {
                policy.remove(k);
                order.retain(|&o| o != k);
            }
        }
    }
}

/// E from everything that ever happened to the entries, by the words of the formula.
struct Naive {
    params: Params,
    processes: f64,
    /// Starts of all periods.
    starts: Vec<u64>,
    came: u64,
    sizes: HashMap<u8, u64>,
    /// Of each entry that is there: when it came, and its uses (time, process, number of the period).
    uses: HashMap<u8, Vec<(u64, u8, usize)>>,
}

impl Naive {
    fn insert(&mut self, key: u8, size: u64, process: u8, now: u64) {
        if !self.uses.contains_key(&key) {
            let bytes: u64 = self.sizes.values().sum();
            if self.came as f64 > bytes as f64 * self.params.turnover {
                self.starts.push(now);
                self.came = 0;
            }
            self.came += size;
            self.uses.insert(key, Vec::new());
        }
        self.touch(key, size, process, now);
    }

    fn touch(&mut self, key: u8, size: u64, process: u8, now: u64) {
        let period = self.starts.len() - 1;
        if let Some(uses) = self.uses.get_mut(&key) {
            uses.push((now, process, period));
            self.sizes.insert(key, size);
        }
    }

    fn e_value(&self, key: u8, now: u64) -> f64 {
        let Params { alpha, beta, gamma, .. } = self.params;
        let running = self.starts.len() - 1;
        let term = |i: usize| {
            let (start, next) = (self.starts[i], self.starts.get(i + 1).copied());
            let end = next.unwrap_or(now);
            let length = match next {
                Some(end) => end - start,
                None => (end - start).max(if i > 0 { start - self.starts[i - 1] } else { 0 }),
            };
            let uses: Vec<_> = self.uses[&key].iter().filter(|u| u.2 == i).collect();
            let last = uses.iter().map(|u| u.0).max();
            let users: std::collections::BTreeSet<u8> = uses.iter().map(|u| u.1).collect();
            let t = match last {
                Some(last) => (end - last) as f64 / length.max(1) as f64,
                None if next.is_some() => 1.0,
                None => (end - start) as f64 / length.max(1) as f64,
            };
            t.powf(alpha) / ((users.len() as f64 / self.processes).powf(beta) + gamma)
        };
        // Seven periods that have ended; the last of the seven is averaged with those before it. What was before all
        // periods counts as not used.
        let mut past = vec![1.0 / gamma; 7];
        for i in 0..running {
            let oldest = past.pop().unwrap_or_default();
            past.insert(0, term(i));
            past[6] = (past[6] + oldest) / 2.0;
        }
        self.sizes[&key] as f64 * (term(running) + past.iter().sum::<f64>())
    }
}

proptest! {
    #[test]
    fn every_policy_knows_what_is_there(steps in steps()) {
        agrees(Lru::new(), &steps);
        agrees(S3Fifo::new(), &steps);
        agrees(SharedUse::new(8, Params::PAPER), &steps);
        agrees(SharedUse::new(0, Params::REMEMBERING), &steps);
    }

    #[test]
    fn lru_is_the_naive_one(steps in steps()) {
        lru_equals_model(&steps);
    }

    #[test]
    fn e_is_the_formula(
        uses in prop::collection::vec((0..12u8, 1..5000u64, 0..10u8, 0..50u64), 1..200),
        alpha in 0.0..3.0f64, beta in 0.1..3.0f64, gamma in 0.001..1.0f64, turnover in 0.05..2.0f64,
    ) {
        let params = Params { alpha, beta, gamma, turnover, remember: false };
        let mut policy = SharedUse::new(10, params);
        let mut naive = Naive {
            params, processes: 10.0, starts: vec![0], came: 0, sizes: HashMap::new(), uses: HashMap::new(),
        };
        let mut now = 0;
        for (i, (key, size, process, wait)) in uses.into_iter().enumerate() {
            now += wait;
            policy.insert(key, size, process as u32, now);
            naive.insert(key, size, process, now);
            // Entries that come again start anew; looking at some entries late must make no difference.
            if i % 5 == 4 {
                policy.remove(key);
                naive.uses.remove(&key);
                naive.sizes.remove(&key);
            }
            for k in (0..12).filter(|k| (i + *k as usize).is_multiple_of(3)) {
                let e = policy.e_value(k, now);
                prop_assert_eq!(e.is_some(), naive.uses.contains_key(&k));
                if let Some(e) = e {
                    let expected = naive.e_value(k, now);
                    prop_assert!((e - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{} not {}", e, expected);
                }
            }
        }
    }
}

/// Parameters that are not fitted to anything: short periods in which use counts for much.
const PLAIN: Params = Params { alpha: 1.0, beta: 1.0, gamma: 0.1, turnover: 0.25, remember: false };

#[test]
fn what_many_use_outlives_what_one_just_used() {
    let mut policy = SharedUse::new(8, PLAIN);
    let mut now = 0;
    for round in 0..6 {
        for process in 0..8 {
            now += 1;
            policy.insert(1u32, 4096, process, now);
        }
        for i in 0..40 {
            now += 1;
            policy.insert(1000 + round * 100 + i, 4096, 0, now);
        }
    }
    let shared = policy.e_value(1, now).unwrap();
    let just_used = policy.e_value(1539, now).unwrap();
    assert!(shared < just_used, "{shared} {just_used}");
    for _ in 0..200 {
        let victim = policy.victim(now).unwrap();
        assert_ne!(victim, 1);
        policy.evict(victim);
    }
}

#[test]
fn of_two_alike_the_larger_one_goes() {
    let mut policy = SharedUse::new(2, PLAIN);
    policy.insert('s', 4096, 0, 1);
    policy.insert('l', 8192, 0, 1);
    assert_eq!(policy.victim(100), Some('l'));
}

#[test]
fn an_entry_that_comes_back_is_known_only_when_remembered() {
    for (params, known) in [(PLAIN, false), (Params { remember: true, ..PLAIN }, true)] {
        let mut policy = SharedUse::new(1, params);
        for now in 0..100 {
            policy.insert(now % 10, 4096, 0, now);
            policy.insert(50 + now, 4096, 0, now);
        }
        policy.evict(3);
        policy.insert(3, 4096, 0, 100);
        policy.insert(49, 4096, 0, 100);
        assert_eq!(policy.e_value(3, 100) < policy.e_value(49, 100), known);
        policy.remove(3);
        policy.insert(3, 4096, 0, 100);
        assert_eq!(policy.e_value(3, 100), policy.e_value(49, 100));
    }
}

#[test]
fn a_scan_passes_through_the_small_queue() {
    let mut policy = S3Fifo::new();
    for _ in 0..3 {
        (0..90u32).for_each(|k| policy.insert(k, 1, 0, 0));
    }
    for k in 1000..5000 {
        while policy.bytes() > 99 {
            let victim = policy.victim(0).unwrap();
            policy.evict(victim);
        }
        policy.insert(k, 1, 0, 0);
    }
    assert!((0..90).all(|k| policy.contains(k)));
}
