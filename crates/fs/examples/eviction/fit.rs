//! Search for parameters of the E value: one coordinate after the other over a grid, until a round changes nothing.
//!
//! What is made large is the mean of the hit rates by objects and by bytes, over all traces and cache sizes, files of equal
//! and of varied sizes, on seeds of their own.

use crate::{CACHES, FITTING_SEED, run_shared, traces};
use fs::cache::policy::Params;
use std::thread;

const ALPHA: [f64; 6] = [0.125, 0.25, 0.5, 1.0, 2.0, 4.0];
const BETA: [f64; 5] = [0.25, 0.5, 1.0, 2.0, 4.0];
const GAMMA: [f64; 7] = [0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0];
const TURNOVER: [f64; 6] = [0.05, 0.125, 0.25, 0.5, 1.0, 2.0];

fn score(params: Params, traces: &[traces::Trace]) -> f64 {
    let mut sum = 0.0;
    for trace in traces {
        for cache in CACHES {
            let hits = run_shared(params, trace, cache);
            sum += (hits.objects + hits.bytes) / 2.0;
        }
    }
    sum / (traces.len() * CACHES.len()) as f64
}

fn search(start: Params, traces: &[traces::Trace]) -> (Params, f64) {
    let (mut best, mut best_score) = (start, score(start, traces));
    loop {
        let before = best_score;
        for coordinate in 0..4 {
            let values: &[f64] = match coordinate {
                0 => &ALPHA,
                1 => &BETA,
                2 => &GAMMA,
                _ => &TURNOVER,
            };
            let base = best;
            for &value in values {
                let mut tried = base;
                *[&mut tried.alpha, &mut tried.beta, &mut tried.gamma, &mut tried.turnover][coordinate] =
                    value;
                if tried == base {
                    continue;
                }
                let s = score(tried, traces);
                if s > best_score {
                    (best, best_score) = (tried, s);
                }
            }
        }
        println!("{best_score:.4} {best:?}");
        if best_score - before < 1e-4 {
            return (best, best_score);
        }
    }
}

/// Where searches begin.
const START: Params = Params { alpha: 1.0, beta: 1.0, gamma: 0.1, turnover: 0.25, remember: false };

/// Searches for both kinds, side by side.
pub fn fit() {
    let traces: Vec<_> =
        [true, false].into_iter().flat_map(|varied| traces::all(FITTING_SEED, 60_000, varied)).collect();
    thread::scope(|scope| {
        for (name, start) in [("PAPER", START), ("REMEMBERING", Params { remember: true, ..START })] {
            let traces = &traces;
            scope.spawn(move || {
                let (best, score) = search(start, traces);
                println!("{name}: {best:?}, mean hit rate {:.2} %", score * 100.0);
            });
        }
    });
}
