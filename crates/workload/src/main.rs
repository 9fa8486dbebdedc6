//! `freehold-workload`: one of Filebench's personalities on a directory. See the library of the same name.
//!
//! Exit status: 0 when all went well, 1 when a call failed or a process died, 2 when it cannot be run as asked, 130 when a
//! signal ended it early.

use clap::Parser;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use workload::{Config, Personality, Report, run, signals};

/// Runs a personality of Filebench on a directory, with ordinary file calls.
///
/// Files, sizes and threads are those of table 7 of the UHSFS paper, which are Filebench's defaults.
#[derive(Parser)]
#[command(name = "freehold-workload", version)]
struct Arguments {
    /// The personality
    personality: Personality,
    /// Directory in which bigfileset (and logfiles) is made; it must exist, they must not
    #[arg(long)]
    dir: PathBuf,
    /// Factor of the number of files
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Processes, among which the threads are divided
    #[arg(long, default_value_t = 1)]
    processes: u32,
    /// Threads in all processes together [default: the personality's]
    #[arg(long)]
    threads: Option<u32>,
    /// How long to run, not counting the making of the files
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// End each thread after so many rounds of the flow, even if time is left
    #[arg(long)]
    rounds: Option<u64>,
    /// Decides sizes, directories and lengths of appends
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the results as JSON to this file too; `-` for standard output, where the table is then left out
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Leave the files behind
    #[arg(long)]
    keep: bool,
    /// Seconds that calls may take to return after the end; then their processes are killed
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0)]
    patience: f64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let times = [arguments.seconds, arguments.patience].map(Duration::try_from_secs_f64);
    let [Ok(time), Ok(patience)] = times else {
        let (seconds, patience) = (arguments.seconds, arguments.patience);
        eprintln!("freehold-workload: --seconds {seconds} --patience {patience}: not a length of time");
        return ExitCode::from(2);
    };
    let config = Config {
        personality: arguments.personality,
        dir: arguments.dir,
        scale: arguments.scale,
        processes: arguments.processes,
        threads: arguments.threads,
        time,
        rounds: arguments.rounds,
        seed: arguments.seed,
        keep: arguments.keep,
        patience,
    };
    signals::catch();
    let report = match run(&config) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("freehold-workload: {error}");
            return ExitCode::from(2);
        }
    };
    let printed = print(&report, arguments.json.as_deref());
    for failed in &report.errors {
        eprintln!(
            "freehold-workload: {} {}: {} (errno {})",
            failed.call, failed.path, failed.message, failed.errno
        );
    }
    let further = report.error_count as usize - report.errors.len().min(report.error_count as usize);
    if further > 0 {
        eprintln!("freehold-workload: and {further} further errors");
    }
    for problem in &report.problems {
        eprintln!("freehold-workload: {problem}");
    }
    if let Err(error) = &printed {
        eprintln!("freehold-workload: cannot write the results: {error}");
    }
    match (report.is_sound() && printed.is_ok(), report.interrupted) {
        (false, _) => ExitCode::FAILURE,
        (true, true) => ExitCode::from(130),
        (true, false) => ExitCode::SUCCESS,
    }
}

fn print(report: &Report, json: Option<&Path>) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let alone = json == Some(Path::new("-"));
    if !alone {
        write!(out, "{report}")?;
    }
    if let Some(path) = json {
        let mut text = serde_json::to_vec_pretty(report)?;
        text.push(b'\n');
        if alone { out.write_all(&text)? } else { std::fs::write(path, &text)? }
    }
    out.flush()
}
