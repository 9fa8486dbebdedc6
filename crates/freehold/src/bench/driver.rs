//! Runs a workload on all subjects, interleaved: one repetition on each, in an order that rotates, then the next.

use super::lab::{Lab, available};
use super::sample::{Goal, Kind, Results, Row, Sample, Stamp};
use super::stop;
use super::subject::Subject;
use anyhow::Result;

/// Amounts of work.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Scale {
    /// Files of the metadata rows.
    pub files: u32,
    /// Files of the FUSE rows.
    pub fuse_files: u32,
    /// Operations of the fsync rows.
    pub syncs: u32,
    /// Bytes of the sequential rows.
    pub sequential: u64,
    /// Reads of the random row.
    pub reads: u32,
    /// Bytes of the page cache of the data rows; `None`: the default.
    pub cache: Option<usize>,
    /// Seconds of the idle row.
    pub idle: f64,
    /// Repetitions.
    pub repeat: u32,
}

/// What a run needs everywhere.
pub struct Bench {
    /// Images, loops, mounts.
    pub lab: Lab,
    /// Amounts of work.
    pub scale: Scale,
    /// Peers that were asked for and can be measured here.
    pub peers: Vec<Kind>,
    /// Rows to measure; empty: all.
    pub only: Vec<String>,
    /// The program that runs children: `SELF bench --child ...`; `None`: no rows that need children.
    pub program: Option<std::path::PathBuf>,
    /// Binary of libfuse's passthrough_ll, when given.
    pub passthrough: Option<std::path::PathBuf>,
    /// What was found.
    pub results: Results,
    /// Subjects that failed.
    pub failures: Vec<String>,
}

/// A workload on a fresh file system.
pub trait Workload {
    /// Does it and logs the rows.
    fn run<S: Subject>(&self, subject: &S, log: &mut Log<'_>) -> Result<()>;
    /// Bytes of Freehold's page cache, when not the default.
    fn cache(&self) -> Option<usize> {
        None
    }
}

/// Where a workload puts what it measured.
pub struct Log<'a> {
    /// All rows.
    pub results: &'a mut Results,
    /// Whom it runs on.
    pub kind: Kind,
    /// Goes before each row's name.
    pub prefix: &'static str,
}

impl Log<'_> {
    /// Measures `ops` operations and notes their rate.
    pub fn rate<S: Subject>(
        &mut self,
        subject: &S,
        row: &str,
        unit: &'static str,
        ops: u64,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<Sample> {
        let stamp = Stamp::now(subject.device());
        work()?;
        let sample = stamp.rate(ops, subject.device());
        stop::check()?;
        self.add(row, unit, sample.clone());
        Ok(sample)
    }

    /// Notes a sample.
    pub fn add(&mut self, row: &str, unit: &'static str, sample: Sample) {
        let name = format!("{}{row}", self.prefix);
        self.results.add(&name, unit, self.kind, sample);
    }

    /// Notes what follows of `first` and something done after it, as one row: `first` with the time of `then` added.
    pub fn with<S: Subject>(
        &mut self,
        subject: &S,
        row: &str,
        unit: &'static str,
        first: &Sample,
        then: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let stamp = Stamp::now(subject.device());
        then()?;
        let mut sample = stamp.rate(0, subject.device());
        stop::check()?;
        sample.ops = first.ops;
        sample.seconds += first.seconds;
        sample.cpu_seconds += first.cpu_seconds;
        sample.machine_cpu_seconds += first.machine_cpu_seconds;
        sample.value = sample.ops as f64 / sample.seconds.max(1e-9);
        if let (Some(a), Some(b)) = (&mut sample.device, &first.device) {
            a.reads += b.reads;
            a.writes += b.writes;
            a.flushes += b.flushes;
            a.bytes_read += b.bytes_read;
            a.bytes_written += b.bytes_written;
            a.log_blocks += b.log_blocks;
            a.epochs += b.epochs;
        }
        self.add(row, unit, sample);
        Ok(())
    }
}

impl Bench {
    /// Whether a group is wanted that measures these rows.
    pub fn wants(&self, rows: &[&str]) -> bool {
        self.only.is_empty() || rows.iter().any(|r| self.only.iter().any(|o| o == r))
    }

    /// The kernel's file systems among the peers.
    pub fn mounted_peers(&self) -> Vec<Kind> {
        self.peers.iter().copied().filter(|k| matches!(k, Kind::Ext4 | Kind::Xfs)).collect()
    }

    /// Freehold, on the loop device too where that makes sense, and the peers.
    pub fn subjects(&self, on_loop: bool) -> Vec<Kind> {
        let peers = self.mounted_peers();
        let mut kinds = vec![Kind::Freehold];
        if on_loop && !peers.is_empty() && available(Kind::FreeholdLoop).is_ok() {
            kinds.push(Kind::FreeholdLoop);
        }
        kinds.extend(peers);
        kinds
    }

    /// Runs `workload` on fresh file systems, interleaved. What fails is noted, and the rest goes on.
    pub fn each(&mut self, kinds: &[Kind], workload: &impl Workload) -> Result<()> {
        for repetition in 0..self.scale.repeat as usize {
            for i in 0..kinds.len() {
                let kind = kinds[(i + repetition) % kinds.len()];
                let done = self.once(kind, workload);
                self.note(kind, done)?;
            }
        }
        Ok(())
    }

    /// Notes the failure of a subject; only an interruption ends the run.
    pub fn note(&mut self, kind: Kind, done: Result<()>) -> Result<()> {
        stop::check()?;
        if let Err(e) = done {
            let text = format!("{}: {e:#}", kind.name());
            eprintln!("failed: {text}");
            self.failures.push(text);
        }
        Ok(())
    }

    fn once(&mut self, kind: Kind, workload: &impl Workload) -> Result<()> {
        let mut log = Log { results: &mut self.results, kind, prefix: "" };
        match kind {
            Kind::Freehold => {
                let ours = self.lab.freehold(workload.cache())?;
                workload.run(&ours, &mut log)?;
                ours.close()
            }
            Kind::FreeholdLoop => {
                let (ours, _device) = self.lab.freehold_on_loop(workload.cache())?;
                workload.run(&ours, &mut log)?;
                ours.close()
            }
            _ => workload.run(&self.lab.peer(kind)?.sys, &mut log),
        }
    }

    /// Says what a row means.
    pub fn describe(&mut self, row: &str, unit: &'static str, goal: Option<Goal>, note: &str) -> &mut Row {
        let row = self.results.row(row, unit);
        row.goal = goal;
        row.note = note.to_string();
        row
    }
}
