//! fsync rows: small appends and small new files, by one thread and by many.

use super::driver::{Bench, Log, Workload};
use super::sample::{Goal, Kind};
use super::stop;
use super::subject::{How, Name, Random, Subject};
use anyhow::{Result, anyhow};

/// Numbers of threads of the rows `fsync-tN`.
const THREADS: [u32; 5] = [1, 2, 4, 8, 16];
/// The rows of this file; `fsync-threads` selects all of `fsync-tN`.
pub const ROWS: &[&str] = &["append-fsync", "create-write-fsync", "fsync-threads"];
const PAGE: usize = 4096;

struct Durable {
    ops: u32,
    threads: bool,
}

impl Workload for Durable {
    fn run<S: Subject>(&self, s: &S, log: &mut Log<'_>) -> Result<()> {
        let data = Random(3).bytes(PAGE);
        let ops = self.ops;
        s.mkdir("a")?;
        let file = s.open(&Name::new("a", b'f'), How::NewAppend)?;
        s.sync()?;
        log.rate(s, "append-fsync", "ops/s", ops as u64, || append(s, &file, &data, ops))?;
        s.close(file)?;

        s.mkdir("c")?;
        s.sync()?;
        let mut name = Name::new("c", b'f');
        log.rate(s, "create-write-fsync", "ops/s", ops as u64, || {
            for n in 0..ops {
                let file = s.open(name.set(n), How::New)?;
                s.write_at(&file, &data, 0)?;
                s.fsync(&file)?;
                s.close(file)?;
                stop::check()?;
            }
            Ok(())
        })?;
        if !self.threads {
            return Ok(());
        }
        s.mkdir("t")?;
        let mut name = Name::new("t", b'f');
        for threads in THREADS {
            let files = (0..threads)
                .map(|i| s.open(name.set(threads * 100 + i), How::NewAppend))
                .collect::<Result<Vec<_>>>()?;
            s.sync()?;
            let each = (ops / threads).max(1);
            let row = format!("fsync-t{threads}");
            log.rate(s, &row, "ops/s", (each * threads) as u64, || {
                std::thread::scope(|scope| {
                    let running: Vec<_> =
                        files.iter().map(|f| scope.spawn(|| append(s, f, &data, each))).collect();
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

fn append<S: Subject>(s: &S, file: &S::File, data: &[u8], ops: u32) -> Result<()> {
    for _ in 0..ops {
        s.write_at(file, data, 0)?;
        s.fsync(file)?;
        stop::check()?;
    }
    Ok(())
}

/// Measures the rows.
pub fn measure(bench: &mut Bench) -> Result<()> {
    if !bench.wants(ROWS) {
        return Ok(());
    }
    let goal = Some(Goal::AtLeast(Kind::Ext4, 3.0));
    bench.describe("append-fsync", "ops/s", goal, "append 4 KiB + fsync, one file, one thread");
    bench.describe(
        "create-write-fsync",
        "ops/s",
        goal,
        "create + write 4 KiB + fsync + close, one directory, one thread",
    );
    let threads = bench.wants(&["fsync-threads"]);
    if threads {
        for n in THREADS {
            let note = format!("{n} threads, each append 4 KiB + fsync on its own file; all together");
            bench.describe(&format!("fsync-t{n}"), "ops/s", None, &note);
        }
    }
    let workload = Durable { ops: bench.scale.syncs, threads };
    bench.each(&bench.subjects(true), &workload)
}
