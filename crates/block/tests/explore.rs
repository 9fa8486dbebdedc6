//! Small workloads, all of them, and long ones of several clients, with power failures at every moment: `sim::crash::bounded`,
//! `sim::crash::clients` and `sim::crash` say what is enumerated and verified. Each on four device models: volatile cache
//! with pages or sectors as atomic units, power protection, barriers.
//!
//! The ordinary tests take a sample that the seed `FREEHOLD_SEED` chooses. `all` (ignored) goes through all workloads of one operation,
//! and through those of two, in an order that the seed decides, as far as `FREEHOLD_SOAK` seconds reach: see scripts/crash-explore.sh.
//! Canaries: tests/order_canaries.rs.

mod rig;

use rig::Setup;
use sim::Snapshot;
use sim::crash::bounded::{self, Step, Workload};
use sim::crash::{self, Report, Rig, Settings, ace, clients};
use sim::ops::{Op, Op::*, Space, Who};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(otherwise)
}

/// A kind of volume and device, and a device that holds a tree.
struct Lab {
    setup: Setup,
    media: Arc<media::SimFlash>,
    start: Snapshot,
}

impl Lab {
    fn new(setup: Setup, tree: &[Op]) -> Lab {
        let media = setup.make();
        let start = crash::prepare(&setup, media.clone(), &crash::empty(), tree, true).unwrap();
        Lab { setup, media, start }
    }

    /// The labs for small workloads: four models, plain and strict volumes.
    fn all() -> Vec<Lab> {
        (0..8).map(|n| Lab::new(Setup::on(n, n >= 4), &ace::tree())).collect()
    }

    fn fresh(&self) -> Arc<media::SimFlash> {
        Arc::new(self.media.crash_image(|_, _| true))
    }

    fn explore(&self, ops: &[Op], settings: Settings) -> Result<Report, String> {
        crash::explore(&self.setup, self.fresh(), &self.start, ops, ops, settings)
            .map_err(|e| format!("strict {}, model {}: {e}", self.setup.strict, self.setup.seed))
    }

    fn small(&self, workload: &Workload, seed: u64, settings: Settings) -> Result<Report, String> {
        self.explore(&workload.ops, Settings { seed, from: workload.from, ..settings })
    }
}

/// For workloads of two operations: their number makes up for what each leaves out.
const PAIR: Settings = Settings { stop: false, ..Settings::SMALL };
/// For workloads of one operation: the clean stop and, now and then, what comes after recovery.
const SINGLE: Settings = Settings { exhaustive: 5, go_on: 100, deeper: (6, 1), ..Settings::SMALL };

fn told(what: &str, count: usize, report: &Report, begun: Instant) {
    println!("{what}: {count} workloads, {report:?}, {:.1} s", begun.elapsed().as_secs_f64());
}

#[test]
fn some_workloads_of_one_operation() {
    let (begun, seed, labs) = (Instant::now(), number("FREEHOLD_SEED", 1), Lab::all());
    let all = bounded::ones();
    let mut total = Report::default();
    let chosen = all.iter().skip(seed as usize % 59).step_by(59);
    let count = chosen.clone().count();
    for (n, workload) in chosen.enumerate() {
        let report = labs[n % labs.len()].small(workload, seed + n as u64, SINGLE);
        total.add(&report.unwrap_or_else(|e| panic!("{e}")));
    }
    told("one operation", count, &total, begun);
    assert!(count > 50 && total.states > 10 * count, "{total:?}");
}

#[test]
fn some_workloads_of_two_operations() {
    let (begun, seed, labs) = (Instant::now(), number("FREEHOLD_SEED", 1), Lab::all());
    let (steps, count) = (bounded::steps(), 150);
    let mut total = Report::default();
    for n in 0..count {
        let workload = bounded::two(&steps, bounded::scattered(n, seed * 1000));
        let report = labs[n % labs.len()].small(&workload, seed + n as u64, PAIR);
        total.add(&report.unwrap_or_else(|e| panic!("{e}")));
    }
    told("two operations", count, &total, begun);
    assert!(total.states > 3 * count, "{total:?}");
}

const WHO: Who = Who::Root;

/// CrashMonkey's workload: a file of the root, which is durable, is renamed into a directory. Three files one after another.
fn rename_root_to_sub(point: &Op) -> Vec<Op> {
    let mut ops = ace::opening();
    for name in 4..7 {
        ops.push(Create { who: WHO, dir: 0, name, perm: 0o644, flags: 3, node_into: 12, into: 5 });
        ops.push(Write { handle: 5, offset: 0, len: 9000, pattern: name as u32 });
        ops.push(point.clone());
        ops.push(Rename { who: WHO, dir: 0, name, new_dir: 1, new_name: name, flags: 0 });
        ops.push(point.clone());
    }
    ops
}

/// CrashMonkey's workload: files are created, written and deleted, with a point after each step.
fn create_delete(point: &Op) -> Vec<Op> {
    let mut ops = ace::opening();
    for name in 4..7 {
        ops.push(Create { who: WHO, dir: 1, name, perm: 0o644, flags: 3, node_into: 12, into: 5 });
        ops.push(point.clone());
        ops.push(Write { handle: 5, offset: 0, len: 9000, pattern: name as u32 });
        ops.push(point.clone());
        ops.push(Unlink { who: WHO, dir: 1, name });
        ops.push(point.clone());
    }
    ops
}

/// The two workloads that BarrierFS is tested with (section 6.6), 1,000 crash points each, for durability and for order.
#[test]
fn a_thousand_crash_points_of_the_papers_workloads() {
    let rw = (fs::OpenFlags::READ | fs::OpenFlags::WRITE).bits();
    assert_eq!(rw, 3, "the flags that are written above");
    let points = [
        ("fsync", Fsync { handle: 5, datasync: false }),
        ("fbarrier", Barrier { handle: 5, datasync: false }),
    ];
    let labs = Lab::all();
    let mut seed = number("FREEHOLD_SEED", 1);
    for (name, make) in [
        ("rename_root_to_sub", rename_root_to_sub as fn(&Op) -> Vec<Op>),
        ("create_delete", create_delete as fn(&Op) -> Vec<Op>),
    ] {
        for (call, point) in &points {
            let (begun, mut total, mut ops) = (Instant::now(), Report::default(), make(point));
            if *call == "fbarrier" {
                // Order alone makes nothing durable; after a while it is.
                ops.extend(vec![StatFs; 7]);
            }
            while total.states < 1000 {
                seed += 1;
                let settings = Settings {
                    seed,
                    moments: 100,
                    exhaustive: 6,
                    sampled: 2,
                    stop: false,
                    ..Settings::SMALL
                };
                let lab = &labs[seed as usize % labs.len()];
                total.add(&lab.explore(&ops, settings).unwrap_or_else(|e| panic!("{name}, {call}: {e}")));
            }
            println!("{name}, {call}: {total:?}, {:.1} s", begun.elapsed().as_secs_f64());
        }
    }
}

fn several(model: u64, strict: bool, seed: u64, count: usize, moments: usize) -> Result<Report, String> {
    let setup = Setup {
        seed: model + 4 * seed,
        dirty_bytes_max: if seed.is_multiple_of(3) { 64 << 10 } else { 1 << 20 },
        checkpoints: seed.is_multiple_of(2),
        ..Setup::on(model, strict)
    };
    let lab = Lab::new(setup, &clients::tree());
    let settings = Settings { seed, moments, exhaustive: 4, ..Settings::SMALL };
    let who = 2 + (seed % 3) as usize;
    clients::explore(&lab.setup, lab.fresh(), &lab.start, (who, count), settings)
        .map_err(|e| format!("strict {strict}, model {model}: {}", e.chars().take(6000).collect::<String>()))
}

#[test]
fn several_clients() {
    let (begun, first) = (Instant::now(), number("FREEHOLD_SEED", 1));
    let mut total = Report::default();
    for model in 0..4 {
        let seed = first + 4 + model;
        total.add(&several(model, seed.is_multiple_of(2), seed, 150, 30).unwrap_or_else(|e| panic!("{e}")));
    }
    told("several clients", 4, &total, begun);
    assert!(total.states > 400 && total.older > 50, "{total:?}");
}

/// A page whose older content was on its way to its place stayed dirty when the epoch was closed because of its age, and fell into
/// the next one: after a power failure a file was there that had been made later, and the overwrite was not.
#[test]
fn no_overwrite_is_left_for_a_later_epoch() {
    let report = several(2, false, 3, 150, 30).unwrap_or_else(|e| panic!("{e}"));
    assert!(report.states > 50, "{report:?}");
}

/// Direct writes have no checksum in any record: what is done after one of them must wait for it, on devices with a cache for a flush.
#[test]
fn what_follows_a_direct_write_is_not_there_without_it() {
    let (begun, mut total, mut direct_blocks) = (Instant::now(), Report::default(), 0);
    let direct = 3;
    let write = |block: u64, pattern| Write { handle: direct, offset: block * 4096, len: 4096, pattern };
    let make = |name| MkDir { who: WHO, dir: 0, name, perm: 0o755, into: 9 };
    let mut ops = bounded::opening();
    // So that the file has whole blocks; and the next record says that no recovery has to verify them.
    ops.extend([
        Truncate { who: WHO, node: 8, size: 16_384, handle: None },
        Write { handle: direct, offset: 0, len: 16_384, pattern: 3 },
        Sync,
        make(8),
        Sync,
    ]);
    let from = ops.len();
    for round in 0..3 {
        ops.extend([
            write(0, 10 + round),
            make(4 + round as u8),
            write(1, 20 + round),
            Read { handle: direct, offset: 4096, len: 8192 },
        ]);
        ops.extend(match round {
            0 => vec![Fsync { handle: direct, datasync: false }],
            1 => vec![Barrier { handle: direct, datasync: false }, make(7), Sync],
            _ => vec![StatFs; 12],
        });
    }
    for (number, lab) in Lab::all().iter().enumerate() {
        let settings = Settings {
            seed: number as u64,
            moments: 200,
            exhaustive: 7,
            sampled: 4,
            from,
            ..Settings::SMALL
        };
        total.add(&lab.explore(&ops, settings).unwrap_or_else(|e| panic!("{e}")));
        let (volume, driver) = lab.setup.open(lab.fresh()).unwrap();
        let mut state = sim::ops::State::default();
        ops.iter().for_each(|op| drop(sim::ops::execute(&driver, &*volume, &mut state, op)));
        direct_blocks += volume.counters().direct_written_blocks;
    }
    told("direct writes", 8, &total, begun);
    assert!(total.older > 50 && direct_blocks > 4, "{total:?}, {direct_blocks} blocks");
}

/// Zeros over parts of two pages, of which the second was not in memory: the first was changed before the other was read, and a commit came
/// in between.
#[test]
fn zeros_are_one_change() {
    let mut ops = bounded::opening();
    let from = ops.len() + 2;
    ops.push(Write { handle: 0, offset: 0, len: 4096, pattern: 4103 });
    ops.push(Barrier { handle: 0, datasync: false });
    ops.push(Fallocate { handle: 0, what: Space::Zero, offset: 100, len: 5000 });
    ops.extend(vec![StatFs; 7]);
    let mut total = Report::default();
    for lab in &Lab::all()[4..] {
        for seed in 0..3 {
            let report = lab.explore(&ops, Settings { seed, from, ..PAIR });
            total.add(&report.unwrap_or_else(|e| panic!("{e}")));
        }
    }
    assert!(total.states > 50, "{total:?}");
}

/// What all threads have found.
#[derive(Default)]
struct Found {
    /// Of one operation, of two, of several clients: workloads and what was seen.
    kinds: [(usize, Report); 3],
    violations: Vec<String>,
}

fn work(next: &AtomicUsize, seed: u64, end: Instant, found: &Mutex<Found>) {
    let (labs, steps, ones) = (Lab::all(), bounded::steps(), bounded::ones());
    while Instant::now() < end {
        let n = next.fetch_add(1, Relaxed);
        let at = seed + n as u64;
        let lab = &labs[(n + n / labs.len()) % labs.len()];
        // One of fifty is of several clients; the others are in turn of one operation, as long as there are any, and of two.
        let (k, count) = (n - n / 50, ones.len());
        let (kind, done) = if n % 50 == 49 {
            (2, several(at % 4, at % 8 < 4, at, 400, 60))
        } else if k.is_multiple_of(2) && k / 2 < count {
            // The step is prime and divides no number of workloads, so that a beginning is a sample of all.
            (0, lab.small(&ones[k / 2 * 1297 % count], at, SINGLE))
        } else {
            let pair = if k < 2 * count { k / 2 } else { k - count };
            if pair >= bounded::twos() {
                break;
            }
            (1, lab.small(&bounded::two(&steps, bounded::scattered(pair, seed)), at, PAIR))
        };
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        match done {
            Ok(report) => {
                found.kinds[kind].0 += 1;
                found.kinds[kind].1.add(&report);
            }
            Err(e) => {
                println!("VIOLATION (workload {n} of seed {seed}): {e}");
                found.violations.push(e);
            }
        }
    }
}

#[test]
#[ignore = "runs for FREEHOLD_SOAK seconds"]
fn all() {
    let (begun, seed) = (Instant::now(), number("FREEHOLD_SEED", 1));
    let end = begun + Duration::from_secs(number("FREEHOLD_SOAK", 600));
    // Where to begin, so that a run can go on where another one ended.
    let next = AtomicUsize::new(number("FREEHOLD_FROM", 0) as usize);
    let found = Mutex::<Found>::default();
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            s.spawn(|| work(&next, seed, end, &found));
        }
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let all = [bounded::ones().len(), bounded::twos(), 0];
    for ((what, of), (count, report)) in
        ["one operation", "two operations", "several clients"].into_iter().zip(all).zip(&found.kinds)
    {
        let of = if of > 0 { format!(" of {of}") } else { String::new() };
        println!("{what}: {count} workloads{of}, {report:?}");
    }
    let seconds = begun.elapsed().as_secs();
    println!(
        "seed {seed}, {seconds} s: {} violations; FREEHOLD_FROM={} goes on",
        found.violations.len(),
        next.load(Relaxed)
    );
    assert!(found.violations.is_empty(), "{} violations", found.violations.len());
}

#[test]
fn the_set_is_that_of_ace() {
    let steps: Vec<Step> = bounded::steps();
    let kinds: std::collections::BTreeSet<String> =
        steps.iter().flat_map(|s| s.ops.iter().map(Op::kind)).collect();
    let wanted = [
        "Create",
        "Fallocate",
        "Link",
        "MkDir",
        "RemoveXattr",
        "Rename",
        "RmDir",
        "SetXattr",
        "SymLink",
        "Truncate",
        "Unlink",
        "Write",
    ];
    assert!(wanted.iter().all(|kind| kinds.contains(*kind)), "{kinds:?}");
    println!(
        "{} operations, {} workloads of one, {} of two",
        steps.len(),
        bounded::ones().len(),
        bounded::twos()
    );
}
