//! The generator reaches every operation, and every operation succeeds and fails often enough to mean something.

use sim::*;
use std::collections::BTreeMap;

#[test]
fn every_operation_succeeds_and_fails() {
    let mut counts: BTreeMap<String, BTreeMap<i32, usize>> = BTreeMap::new();
    for seed in 0..20 {
        let fs = Model::new(system_clock());
        let mut state = ops::State::default();
        for op in Generator::new(seed, Knobs::everything()).take(3000) {
            let errno = match ops::execute(&Blocking, &fs, &mut state, &op) {
                Outcome::Failed(errno) => errno,
                Outcome::Broken(why) => panic!("seed {seed}: {op:?}: {why}"),
                _ => 0,
            };
            *counts.entry(op.kind()).or_default().entry(errno).or_default() += 1;
        }
    }
    assert_eq!(counts.len(), 41, "kinds of operations");
    for (kind, outcomes) in &counts {
        let total: usize = outcomes.values().sum();
        let good = outcomes.get(&0).copied().unwrap_or(0);
        println!("{kind:12} {:3}% of {total:5}: {outcomes:?}", 100 * good / total);
        assert!(total >= 100 && good * 10 >= total, "{kind}: {good} of {total} succeed");
        assert!(good < total || ["Sync", "StatFs"].contains(&&kind[..]), "{kind} never fails");
    }
}
