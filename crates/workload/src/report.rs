//! What a run did, as a table and as JSON.

use crate::board::{Board, Noted};
use crate::config::Config;
use crate::personality::{Kind, Parameters};
use crate::tally::Tally;
use serde::Serialize;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

/// A report. Rates are per second of the run; MB are 10^6 bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Filebench's name of the personality.
    pub personality: &'static str,
    /// The directory.
    pub dir: String,
    /// The seed.
    pub seed: u64,
    /// Factor of the number of files.
    pub scale: f64,
    /// Processes.
    pub processes: u32,
    /// Threads in all processes together.
    pub threads: u32,
    /// Files of the set, existing or not.
    pub files: u32,
    /// Mean size of a file in bytes.
    pub mean_file_size: u64,
    /// Mean width of a directory.
    pub mean_dir_width: u64,
    /// Appends are shorter than this.
    pub append_size: u64,
    /// Length of one read or write of whole files.
    pub io_size: u64,
    /// Making the set, before the run.
    pub made: Made,
    /// Length of the run, until its last operation ended; 0 if there was none.
    pub seconds: f64,
    /// Completed rounds of the flow.
    pub rounds: u64,
    /// All operations together.
    pub all: Row,
    /// Bytes read per second in MB.
    pub read_mb_per_s: f64,
    /// Bytes written per second in MB.
    pub write_mb_per_s: f64,
    /// Each kind of operation that was done.
    pub kinds: Vec<Row>,
    /// Removing the set, after the run; None when it was left.
    pub removed: Option<Made>,
    /// Whether a signal ended it early.
    pub interrupted: bool,
    /// How many calls failed.
    pub error_count: u32,
    /// The first calls that failed.
    pub errors: Vec<Failed>,
    /// Processes that died or had to be killed.
    pub problems: Vec<String>,
}

/// Making or removing the set.
#[derive(Clone, Debug, Serialize)]
pub struct Made {
    /// Files.
    pub files: u64,
    /// Directories of the plan.
    pub dirs: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Time in seconds.
    pub seconds: f64,
    /// Files per second.
    pub files_per_s: f64,
    /// MB written per second.
    pub mb_per_s: f64,
}

/// Operations of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Filebench's name of the operation; `all` for all together.
    pub kind: &'static str,
    /// Operations.
    pub ops: u64,
    /// Operations per second.
    pub ops_per_s: f64,
    /// Bytes read or written.
    pub bytes: u64,
    /// MB per second.
    pub mb_per_s: f64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// 99th percentile of the latency in microseconds, at most 3.2 % too high.
    pub p99_us: f64,
    /// Longest latency in microseconds.
    pub max_us: f64,
}

/// A call that failed.
#[derive(Clone, Debug, Serialize)]
pub struct Failed {
    /// The call.
    pub call: &'static str,
    /// The file.
    pub path: String,
    /// The errno.
    pub errno: i32,
    /// What the errno means.
    pub message: String,
}

/// What an errno means, without its number.
fn meaning(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    text.strip_suffix(&format!(" (os error {errno})")).unwrap_or(&text).to_owned()
}

impl Made {
    pub(crate) fn new(files: u64, dirs: u64, bytes: u64, ns: u64) -> Made {
        let seconds = ns as f64 / 1e9;
        let rate = |n: f64| if ns == 0 { 0.0 } else { n / seconds };
        let mb_per_s = rate(bytes as f64 / 1e6);
        Made { files, dirs, bytes, seconds, files_per_s: rate(files as f64), mb_per_s }
    }
}

impl Row {
    fn new(kind: &'static str, tally: &Tally, seconds: f64) -> Row {
        let rate = |n: f64| if seconds > 0.0 { n / seconds } else { 0.0 };
        Row {
            kind,
            ops: tally.count,
            ops_per_s: rate(tally.count as f64),
            bytes: tally.bytes,
            mb_per_s: rate(tally.bytes as f64 / 1e6),
            mean_us: tally.mean_ns() / 1e3,
            p99_us: tally.percentile_ns(99.0) as f64 / 1e3,
            max_us: tally.latency_ns_max as f64 / 1e3,
        }
    }
}

impl Report {
    /// The report of a run of `run_ns`, without what was made and removed.
    pub(crate) fn new(config: &Config, parameters: &Parameters, board: &Board, run_ns: u64) -> Report {
        let seconds = run_ns as f64 / 1e9;
        let mut all = Tally::default();
        let mut kinds = Vec::new();
        let (mut read, mut written) = (0.0, 0.0);
        for kind in Kind::ALL {
            let tally = board.tallies[kind as usize].get();
            all.merge(&tally);
            let row = Row::new(kind.name(), &tally, seconds);
            *(if kind.reads() { &mut read } else { &mut written }) += row.mb_per_s;
            if row.ops > 0 {
                kinds.push(row);
            }
        }
        let failed = |noted: Noted| Failed {
            call: noted.call,
            path: noted.path,
            errno: noted.errno,
            message: meaning(noted.errno),
        };
        Report {
            personality: config.personality.name(),
            dir: config.dir.to_string_lossy().into_owned(),
            seed: config.seed,
            scale: config.scale,
            processes: config.processes,
            threads: parameters.threads,
            files: parameters.files,
            mean_file_size: parameters.mean_file_size,
            mean_dir_width: parameters.mean_dir_width,
            append_size: parameters.append_size,
            io_size: parameters.io_size,
            made: Made::new(0, 0, 0, 0),
            seconds,
            rounds: board.rounds.load(Relaxed),
            all: Row::new("all", &all, seconds),
            read_mb_per_s: read,
            write_mb_per_s: written,
            kinds,
            removed: None,
            interrupted: board.interrupted(),
            error_count: board.error_count(),
            errors: board.errors().into_iter().map(failed).collect(),
            problems: Vec::new(),
        }
    }

    /// Whether everything that was asked for was done, or a signal ended it early, without any failure.
    pub fn is_sound(&self) -> bool {
        self.error_count == 0 && self.problems.is_empty()
    }

    /// The operations of `kind`; 0 if there were none.
    pub fn ops(&self, kind: Kind) -> u64 {
        self.kinds.iter().find(|row| row.kind == kind.name()).map_or(0, |row| row.ops)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} files of {} KiB on average, {} threads in {} processes, seed {}, on {}",
            self.personality,
            self.files,
            self.mean_file_size >> 10,
            self.threads,
            self.processes,
            self.seed,
            self.dir
        )?;
        let made = &self.made;
        writeln!(
            f,
            "made {} files ({:.1} MB) in {:.2} s: {:.0} files/s, {:.1} MB/s",
            made.files,
            made.bytes as f64 / 1e6,
            made.seconds,
            made.files_per_s,
            made.mb_per_s
        )?;
        if self.seconds > 0.0 {
            writeln!(
                f,
                "{:<15} {:>10} {:>11} {:>9} {:>11} {:>11} {:>11}",
                "operation", "ops", "ops/s", "MB/s", "mean us", "p99 us", "max us"
            )?;
            for row in self.kinds.iter().chain([&self.all]) {
                writeln!(
                    f,
                    "{:<15} {:>10} {:>11.1} {:>9.1} {:>11.1} {:>11.1} {:>11.1}",
                    row.kind, row.ops, row.ops_per_s, row.mb_per_s, row.mean_us, row.p99_us, row.max_us
                )?;
            }
            writeln!(
                f,
                "{:.2} s, {} rounds: {:.1} ops/s, read {:.1} MB/s, written {:.1} MB/s",
                self.seconds, self.rounds, self.all.ops_per_s, self.read_mb_per_s, self.write_mb_per_s
            )?;
        }
        match &self.removed {
            Some(removed) => {
                writeln!(
                    f,
                    "removed {} files in {:.2} s: {:.0} files/s",
                    removed.files, removed.seconds, removed.files_per_s
                )?;
            }
            None => writeln!(f, "the files were left")?,
        }
        if self.interrupted {
            writeln!(f, "ended early")?;
        }
        Ok(())
    }
}
