//! Filebench's varmail over the library and over system calls: the flow, file set and lengths of the program `freehold-workload`, in this
//! process. Where there are barriers, once more with a barrier for each fsync (docs/SEMANTICS.md, "Syncs that give order"): a mail
//! server whose files are consistent, and which loses the newest of them when power fails.

use super::driver::{Bench, Log, Workload};
use super::sample::{Goal, Kind};
use super::stop;
use super::subject::{How, Name, Subject};
use anyhow::{Context, Result, anyhow};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use workload::personality::{Kind as Step, Parameters, Personality};
use workload::plan::Plan;
use workload::random::Random;
use workload::states::{States, Want};

/// The rows of this file.
pub const ROWS: &[&str] = &["varmail"];

struct Varmail {
    /// Rounds of each thread.
    rounds: u32,
}

/// Files, and how many bytes of each there are.
struct Set<'a, S> {
    subject: &'a S,
    dir: &'a str,
    states: States,
    /// Bytes that appends have claimed, and such that are surely there, by file.
    claimed: Vec<AtomicU64>,
    written: Vec<AtomicU64>,
    parameters: Parameters,
    data: Vec<u8>,
    ordered: bool,
}

impl<'a, S: Subject> Set<'a, S> {
    fn new(subject: &'a S, dir: &'a str, ordered: bool) -> Result<Set<'a, S>> {
        let parameters = Personality::Varmail.parameters();
        let plan = Plan::new(Path::new("/"), &parameters, 1)?;
        let data = super::subject::Random(9).bytes(2 * parameters.io_size as usize);
        subject.mkdir(dir)?;
        let mut name = Name::new(dir, b'f');
        let mut sizes = Vec::new();
        for (i, file) in plan.files.iter().enumerate() {
            let size = if file.exists { file.size.min(parameters.io_size) } else { 0 };
            if file.exists {
                let open = subject.open(name.set(i as u32), How::New)?;
                subject.write_at(&open, &data[..size as usize], 0)?;
                subject.close(open)?;
            }
            sizes.push(size);
        }
        subject.sync()?;
        let states = States::new(plan.files.iter().map(|f| f.exists))?;
        let all = || sizes.iter().map(|&n| AtomicU64::new(n)).collect::<Vec<_>>();
        Ok(Set { subject, dir, states, claimed: all(), written: all(), parameters, data, ordered })
    }

    fn pick(&self, want: Want) -> Result<usize> {
        self.states.pick(want).context("all files are in use")
    }

    fn sync(&self, file: &S::File) -> Result<()> {
        match self.ordered.then(|| self.subject.barrier(file)).flatten() {
            Some(done) => done,
            None => self.subject.fsync(file),
        }
    }

    /// One thread.
    fn work(&self, rounds: u32, thread: u64) -> Result<()> {
        let mut random = Random::new(1, thread);
        let mut name = Name::new(self.dir, b'f');
        let mut buffer = vec![0; self.parameters.io_size as usize];
        let mut open: Option<(S::File, usize)> = None;
        for _ in 0..rounds {
            for step in Personality::Varmail.flow() {
                match step {
                    Step::Delete => {
                        let i = self.pick(Want::Delete)?;
                        self.subject.unlink(name.set(i as u32))?;
                        self.claimed[i].store(0, SeqCst);
                        self.written[i].store(0, SeqCst);
                        self.states.deleted(i);
                    }
                    Step::Create | Step::Open => {
                        let (want, how) = match step {
                            Step::Create => (Want::Create, How::New),
                            _ => (Want::Use, How::Write),
                        };
                        let i = self.pick(want)?;
                        open = Some((self.subject.open(name.set(i as u32), how)?, i));
                        self.states.opened(i);
                    }
                    Step::Close => {
                        let (file, i) = open.take().context("nothing is open")?;
                        self.subject.close(file)?;
                        self.states.closed(i);
                    }
                    step => {
                        let (file, i) = open.as_ref().context("nothing is open")?;
                        self.inside(*step, file, *i, &mut random, &mut buffer)?;
                    }
                }
            }
            stop::check()?;
        }
        Ok(())
    }

    /// A step that works on the open file.
    fn inside(
        &self,
        step: Step,
        file: &S::File,
        i: usize,
        random: &mut Random,
        buffer: &mut [u8],
    ) -> Result<()> {
        match step {
            Step::Append => {
                let n = random.below(self.parameters.append_size);
                let at = self.claimed[i].fetch_add(n, SeqCst);
                self.subject.write_at(file, &self.data[..n as usize], at)?;
                self.written[i].fetch_max(at + n, SeqCst);
                Ok(())
            }
            Step::Fsync => self.sync(file),
            Step::ReadWhole => {
                let (size, mut at) = (self.written[i].load(SeqCst), 0);
                while at < size {
                    let n = (size - at).min(buffer.len() as u64);
                    self.subject.read_at(file, &mut buffer[..n as usize], at)?;
                    at += n;
                }
                Ok(())
            }
            other => Err(anyhow!("{} is no step of varmail", other.name())),
        }
    }
}

impl Workload for Varmail {
    fn run<S: Subject>(&self, s: &S, log: &mut Log<'_>) -> Result<()> {
        for (dir, ordered) in [("durable", false), ("ordered", true)] {
            let row = if ordered { "varmail-ordered" } else { "varmail" };
            let set = Set::new(s, dir, ordered)?;
            let threads = set.parameters.threads;
            let steps = (threads * self.rounds) as u64 * Personality::Varmail.flow().len() as u64;
            log.rate(s, row, "ops/s", steps, || {
                std::thread::scope(|scope| {
                    let running: Vec<_> = (0..threads as u64)
                        .map(|thread| (&set, thread))
                        .map(|(set, thread)| scope.spawn(move || set.work(self.rounds, thread)))
                        .collect();
                    running
                        .into_iter()
                        .try_for_each(|t| t.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
                })
            })?;
        }
        Ok(())
    }
}

/// Measures the rows.
pub fn measure(bench: &mut Bench) -> Result<()> {
    if !bench.wants(ROWS) {
        return Ok(());
    }
    let note = "Filebench's varmail, 16 threads, 1000 files, in process";
    bench.describe("varmail", "ops/s", Some(Goal::AtLeast(Kind::Ext4, 3.0)), note);
    let note = "the same, a barrier for each fsync; the kernel's file systems have none, and sync";
    bench.describe("varmail-ordered", "ops/s", Some(Goal::AtLeast(Kind::Ext4, 10.0)), note);
    let rounds = (bench.scale.syncs / Personality::Varmail.parameters().threads).max(1);
    bench.each(&bench.subjects(true), &Varmail { rounds })
}
