//! Rows of order and durability: what one fsync takes, on the average and at worst; threads that sync files of their own; what a
//! barrier costs.

use super::driver::{Bench, Log, Workload};
use super::lab::available;
use super::raw::Raw;
use super::sample::{Goal, Kind, Sample, Stamp};
use super::stop;
use super::subject::{How, Name, Random, Subject};
use anyhow::{Result, anyhow};
use fs::client::BlockingFile;
use fs::{Blocking, Client, Cred, OpenOptions};
use std::sync::Arc;
use std::time::Instant;

/// The rows of this file; each name selects a group of them.
pub const ROWS: &[&str] = &["fsync-latency", "dwsl", "barrier"];
const PAGE: usize = 4096;
/// One barrier of so many is timed.
const TIMED_OF: usize = 16;
/// Numbers of threads of the rows `dwsl-tN`.
const THREADS: [u32; 5] = [1, 2, 4, 8, 16];

/// Times of single operations, seconds.
struct Times(Vec<f64>);

impl Times {
    fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    /// The time that this part of the operations does not exceed.
    fn quantile(&mut self, part: f64) -> f64 {
        self.0.sort_by(f64::total_cmp);
        let last = self.0.len().saturating_sub(1);
        self.0.get(((last as f64) * part).ceil() as usize).copied().unwrap_or(0.0)
    }
}

/// Context switches of this thread so far, of its own will or not.
fn switches() -> u64 {
    // SAFETY: all zeros is a valid rusage, which is written by the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    };
    (usage.ru_nvcsw + usage.ru_nivcsw) as u64
}

/// Times `ops` calls of `work`, and how often the thread was switched for them.
fn timed(ops: u32, mut work: impl FnMut(u32) -> Result<()>) -> Result<(Times, f64)> {
    let (mut times, before) = (Vec::with_capacity(ops as usize), switches());
    for n in 0..ops {
        let begun = Instant::now();
        work(n)?;
        times.push(begun.elapsed().as_secs_f64());
        stop::check()?;
    }
    Ok((Times(times), (switches() - before) as f64 / ops.max(1) as f64))
}

/// Notes the rows of `fsync-latency`.
fn note(log: &mut Log<'_>, whole: &Sample, (mut times, switches): (Times, f64)) {
    let sample = |value| Sample { value, ..whole.clone() };
    log.add("fsync-mean", "us", sample(times.mean() * 1e6));
    log.add("fsync-p99.99", "us", sample(times.quantile(0.9999) * 1e6));
    log.add("fsync-switches", "per fsync", sample(switches));
}

struct Latency {
    ops: u32,
}

impl Workload for Latency {
    fn run<S: Subject>(&self, s: &S, log: &mut Log<'_>) -> Result<()> {
        let data = Random(3).bytes(PAGE);
        s.mkdir("a")?;
        let file = s.open(&Name::new("a", b'f'), How::NewAppend)?;
        s.sync()?;
        let stamp = Stamp::now(s.device());
        let times = timed(self.ops, |_| {
            s.write_at(&file, &data, 0)?;
            s.fsync(&file)
        })?;
        note(log, &stamp.rate(self.ops as u64, s.device()), times);
        s.close(file)
    }
}

/// Threads, each with a directory and a file of its own, to which it appends a page that it syncs (fxmark: DWSL).
struct Dwsl {
    ops: u32,
}

impl Workload for Dwsl {
    fn run<S: Subject>(&self, s: &S, log: &mut Log<'_>) -> Result<()> {
        let data = Random(3).bytes(PAGE);
        for threads in THREADS {
            let open = |i: u32| {
                let dir = format!("d{threads}-{i}");
                s.mkdir(&dir)?;
                s.open(&Name::new(&dir, b'f'), How::NewAppend)
            };
            let files = (0..threads).map(open).collect::<Result<Vec<_>>>()?;
            s.sync()?;
            let each = (self.ops / threads).max(1);
            let work = |file: &S::File| {
                (0..each).try_for_each(|_| {
                    s.write_at(file, &data, 0)?;
                    s.fsync(file)?;
                    stop::check()
                })
            };
            log.rate(s, &format!("dwsl-t{threads}"), "ops/s", (each * threads) as u64, || {
                std::thread::scope(|scope| {
                    let running: Vec<_> = files.iter().map(|f| scope.spawn(|| work(f))).collect();
                    running
                        .into_iter()
                        .try_for_each(|t| t.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
                })
            })?;
            files.into_iter().try_for_each(|f| s.close(f))?;
        }
        Ok(())
    }
}

/// One durable write of a page after the other, each over the last: what the medium takes for it.
fn raw(bench: &mut Bench) -> Result<()> {
    let image = bench.lab.image(Kind::Raw)?;
    let ops = bench.scale.syncs;
    for _ in 0..bench.scale.repeat {
        let mut raw = Raw::open(&image, PAGE, 1)?;
        let stamp = Stamp::now(None);
        let times = timed(ops, |n| {
            raw.run(true, std::iter::once(n as u64 * PAGE as u64))?;
            raw.flush()
        })?;
        let whole = stamp.rate(ops as u64, None);
        note(&mut Log { results: &mut bench.results, kind: Kind::Raw, prefix: "" }, &whole, times);
    }
    Ok(())
}

/// Writes of a page at a time, with a barrier after each of them and without; and what such a call takes.
fn barriers(bench: &mut Bench) -> Result<()> {
    let data = Random(5).bytes(PAGE);
    let writes = bench.scale.syncs * 32;
    // Once without counting: memory that the machine gives for the first time costs more than either, and whoever comes first would pay.
    for repetition in 0..=bench.scale.repeat {
        let mut kinds = [Kind::Freehold, Kind::Unordered];
        kinds.rotate_left(repetition as usize % 2);
        for kind in kinds {
            let ours = bench.lab.freehold(None)?;
            let client: Blocking<_> =
                Client::new(Arc::new(ours.volume.clone()), Cred::of_process()).blocking();
            let options = OpenOptions::new().write(true).create_new(true).append(true);
            let file: BlockingFile<_> = client.open("f", options)?;
            client.sync()?;
            let stamp = Stamp::now(ours.device());
            let mut spent = Times(Vec::with_capacity(writes as usize / TIMED_OF + 1));
            for n in 0..writes as usize {
                file.write_all_at(&data, 0)?;
                if kind == Kind::Freehold {
                    // To look at the clock takes half as long as the call.
                    let begun = n.is_multiple_of(TIMED_OF).then(Instant::now);
                    file.fdatabarrier()?;
                    spent.0.extend(begun.map(|begun| begun.elapsed().as_secs_f64()));
                }
                stop::check()?;
            }
            let sample = stamp.rate(writes as u64, ours.device());
            let call = Sample { value: spent.mean() * 1e6, ..sample.clone() };
            if repetition > 0 {
                if kind == Kind::Freehold {
                    bench.results.add("barrier-call", "us", kind, call);
                }
                bench.results.add("barrier-write", "ops/s", kind, sample);
            }
            file.close()?;
            drop(client);
            ours.close()?;
        }
    }
    Ok(())
}

/// Measures the rows.
pub fn measure(bench: &mut Bench) -> Result<()> {
    let mut subjects = bench.subjects(true);
    if bench.peers.contains(&Kind::Ext4) && available(Kind::Ext4Journal).is_ok() {
        subjects.push(Kind::Ext4Journal);
    }
    if bench.wants(&["fsync-latency"]) {
        let note = "append 4 KiB + fsync, one file, one thread; raw: a page and a flush, on a file";
        bench.describe("fsync-mean", "us", Some(Goal::AtMost(Kind::Raw, 1.2)), note);
        bench.describe("fsync-p99.99", "us", None, "the same, what one call in 10 000 exceeds");
        bench.describe(
            "fsync-switches",
            "per fsync",
            None,
            "the same, context switches of the calling thread",
        );
        raw(bench)?;
        let workload = Latency { ops: bench.scale.syncs };
        bench.each(&subjects, &workload)?;
    }
    if bench.wants(&["dwsl"]) {
        for n in THREADS {
            let note = format!("{n} threads, each append 4 KiB + fsync on its own file in its own directory");
            let goal = (n == 16).then_some(Goal::AtLeast(Kind::Ext4, 4.0));
            bench.describe(&format!("dwsl-t{n}"), "ops/s", goal, &note);
        }
        let workload = Dwsl { ops: bench.scale.syncs };
        bench.each(&subjects, &workload)?;
    }
    if bench.wants(&["barrier"]) {
        bench.describe("barrier-call", "us", Some(Goal::Max(2.0)), "fdatabarrier after each append of 4 KiB");
        let goal = Some(Goal::AtLeast(Kind::Unordered, 0.9));
        let note = "appends of 4 KiB, fdatabarrier after each; unordered: without, nor any sync";
        bench.describe("barrier-write", "ops/s", goal, note);
        barriers(bench)?;
    }
    Ok(())
}
