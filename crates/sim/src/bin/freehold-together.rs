//! Several programs that work on the same files at the same time. See `sim::together`.

use clap::Parser;
use sim::programs::Start;
use sim::together::{Plan, run, work};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Has several programs work on the same files at the same time, and looks whether what each has been told holds for all.
///
/// One program is started as it is, three with the command of --under before them, of which one is another user where the caller is root.
#[derive(Parser)]
#[command(name = "freehold-together")]
struct Arguments {
    /// A directory, in which one is made, and removed if everything held.
    dir: PathBuf,
    /// What programs are started with, words with blanks between them.
    #[arg(long, default_value = "")]
    under: String,
    /// The last program is started so, too.
    #[arg(long)]
    all_under: bool,
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads of each program, at most eight.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Kinds of what is worked on, or parts of their names, with commas between them; otherwise all.
    #[arg(long, value_delimiter = ',')]
    kinds: Vec<String>,
    /// Changes are said to be made before they are: this must be found.
    #[arg(long)]
    early: bool,
    /// To be one of the programs.
    #[arg(long, hide = true, requires_all = ["number", "shared"])]
    worker: bool,
    #[arg(long, hide = true)]
    number: Option<usize>,
    #[arg(long, hide = true)]
    shared: Option<i32>,
    #[arg(long, hide = true)]
    through_mount: bool,
}

fn main() -> ExitCode {
    match done(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("freehold-together: {e}");
            ExitCode::FAILURE
        }
    }
}

fn done(arguments: &Arguments) -> io::Result<bool> {
    if let (true, Some(number), Some(shared)) = (arguments.worker, arguments.number, arguments.shared) {
        return work(
            &arguments.dir,
            number,
            arguments.threads,
            shared,
            arguments.seed,
            arguments.through_mount,
        );
    }
    let own = std::env::current_exe()?.to_string_lossy().into_owned();
    let last = if arguments.all_under { &arguments.under } else { "" };
    run(&Plan {
        dir: arguments.dir.canonicalize()?,
        starts: Start::four(&own, &arguments.under, last),
        through_mount: last.is_empty() && !arguments.under.is_empty(),
        threads: arguments.threads,
        time: Duration::from_secs(arguments.seconds),
        seed: arguments.seed,
        kinds: arguments.kinds.clone(),
        early: arguments.early,
    })
}
