//! Compares what the policies of `fs::cache::policy` throw out, on generated traces of processes that share a cache.
//!
//! `cargo run --release -p freehold-fs --example eviction` prints hit rates; with `-- fit` it searches for parameters of the
//! E value instead. Traces are made from fixed seeds, and those of the search are others than those of the comparison.

mod fit;
mod traces;

use fs::cache::policy::{Lru, Params, Policy, S3Fifo, SharedUse};
use fs::cache::{PageCache, PageKey};
use media::Arena;
use std::sync::Arc;
use traces::{PROCESSES, Trace};

/// Cache sizes, as shares of the bytes of all files of a trace.
const CACHES: [f64; 3] = [0.02, 0.1, 0.3];
const EVALUATION_SEED: u64 = 20_000;
const FITTING_SEED: u64 = 1_000;

/// Shares of accesses, and of bytes accessed, that a cache had.
#[derive(Clone, Copy, Debug, Default)]
struct Hits {
    objects: f64,
    bytes: f64,
}

/// Runs a trace against a cache of `capacity` bytes. The first fifth fills the cache and does not count.
fn run(mut policy: impl Policy<u32>, trace: &Trace, capacity: u64) -> Hits {
    let (mut hits, mut hit_bytes, mut all, mut all_bytes) = (0u64, 0u64, 0u64, 0u64);
    for (now, access) in trace.accesses.iter().enumerate() {
        let size = trace.sizes[access.file as usize];
        let hit = policy.touch(access.file, size, access.process as u32, now as u64);
        if now >= trace.accesses.len() / 5 {
            all += 1;
            all_bytes += size;
            if hit {
                hits += 1;
                hit_bytes += size;
            }
        }
        if hit || size > capacity {
            continue;
        }
        while policy.bytes() + size > capacity {
            let Some(victim) = policy.victim(now as u64) else { break };
            policy.evict(victim);
        }
        policy.insert(access.file, size, access.process as u32, now as u64);
    }
    Hits { objects: hits as f64 / all as f64, bytes: hit_bytes as f64 / all_bytes as f64 }
}

/// As [`run`] for the E value, in a cache that is a share of all files.
fn run_shared(params: Params, trace: &Trace, cache: f64) -> Hits {
    run(SharedUse::new(PROCESSES as u32, params), trace, trace.capacity(cache))
}

/// As [`run`] for the page cache, which holds pages of one size and decides by itself.
fn run_pages(trace: &Trace, capacity: u64) -> Hits {
    let arena = Arena::new(capacity as usize).expect("no memory is touched");
    let mut cache = PageCache::new(Arc::new(arena));
    let (mut hits, mut all) = (0u64, 0u64);
    for (now, access) in trace.accesses.iter().enumerate() {
        let key = PageKey { file: access.file.into(), page: 0 };
        let hit = cache.lookup(key).is_some();
        if now >= trace.accesses.len() / 5 {
            (hits, all) = (hits + u64::from(hit), all + 1);
        }
        if !hit && let Some(frame) = cache.insert(key) {
            // As a read that waits for the page and finds it then.
            cache.set_valid(frame);
            cache.lookup(key);
        }
    }
    let hits = hits as f64 / all as f64;
    Hits { objects: hits, bytes: hits }
}

fn compare() {
    let columns = ["E", "E+memory", "LRU", "S3-FIFO", "page cache"];
    for varied in [true, false] {
        println!(
            "\n{}\n",
            if varied { "Files of 4 KiB to 4 MiB:" } else { "All files of 4 KiB (objects = bytes):" }
        );
        let columns = if varied { &columns[..4] } else { &columns[..] };
        let head: Vec<String> = match varied {
            true => columns.iter().map(|c| format!("{c} objects | {c} bytes")).collect(),
            false => columns.iter().map(|c| c.to_string()).collect(),
        };
        println!("| trace | cache | {} |", head.join(" | "));
        println!("|---|---:|{}", "---:|".repeat(head.len() * if varied { 2 } else { 1 }));
        let mut sum = vec![Hits::default(); columns.len()];
        let mut rows = 0;
        for trace in traces::all(EVALUATION_SEED, 200_000, varied) {
            for cache in CACHES {
                let capacity = trace.capacity(cache);
                let mut hits = vec![
                    run_shared(Params::PAPER, &trace, cache),
                    run_shared(Params::REMEMBERING, &trace, cache),
                    run(Lru::new(), &trace, capacity),
                    run(S3Fifo::new(), &trace, capacity),
                ];
                if !varied {
                    hits.push(run_pages(&trace, capacity));
                }
                print_row(trace.name, &format!("{:.0} %", cache * 100.0), &hits, varied);
                for (s, h) in sum.iter_mut().zip(&hits) {
                    s.objects += h.objects;
                    s.bytes += h.bytes;
                }
                rows += 1;
            }
        }
        let n = rows as f64;
        let mean: Vec<Hits> =
            sum.iter().map(|s| Hits { objects: s.objects / n, bytes: s.bytes / n }).collect();
        print_row("mean", "", &mean, varied);
    }
}

/// The best of each kind is bold.
fn print_row(trace: &str, cache: &str, hits: &[Hits], varied: bool) {
    let tenths = |x: f64| (x * 1000.0).round();
    let best_objects = hits.iter().map(|h| tenths(h.objects)).fold(0.0, f64::max);
    let best_bytes = hits.iter().map(|h| tenths(h.bytes)).fold(0.0, f64::max);
    let cell = |x: f64, best: f64| {
        let mark = if tenths(x) == best { "**" } else { "" };
        format!("{mark}{:.1}{mark}", x * 100.0)
    };
    let mut cells = Vec::new();
    for h in hits {
        cells.push(cell(h.objects, best_objects));
        if varied {
            cells.push(cell(h.bytes, best_bytes));
        }
    }
    println!("| {trace} | {cache} | {} |", cells.join(" | "));
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        None => compare(),
        Some("fit") => fit::fit(),
        Some(other) => eprintln!("what is {other:?}? without arguments: compare; fit: search for parameters"),
    }
}
