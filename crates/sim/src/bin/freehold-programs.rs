//! Random system calls of several programs in two places, compared. See `sim::programs`.

use clap::Parser;
use sim::programs::{Actor, Call, Generator, INTERLUDE, Place, Start, compare, confine, smaller};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

/// Compares what random system calls of several programs give in two directories.
///
/// The first is an ordinary one. In the second, one program is started as it is, the others with the command of --under before them. Where the
/// caller is root one of these is another user, and nothing outside of the two directories can be written.
#[derive(Parser)]
#[command(name = "freehold-programs")]
struct Arguments {
    /// An ordinary directory.
    #[arg(required_unless_present = "actor")]
    plain: Option<PathBuf>,
    /// The directory to be compared with it.
    #[arg(required_unless_present = "actor")]
    other: Option<PathBuf>,
    /// What the programs in the second directory are started with, words with blanks between them.
    #[arg(long, default_value = "")]
    under: String,
    /// All programs are started so, also the last one.
    #[arg(long)]
    all: bool,
    /// Before every 20th call of each seed, a shell does this.
    #[arg(long)]
    interlude: Option<String>,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds.
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// Calls of each seed.
    #[arg(long, default_value_t = 500)]
    calls: usize,
    /// Makes the calls of a file, in the form in which they are shown, instead of random ones.
    #[arg(long)]
    replay: Option<PathBuf>,
    /// Shows all calls up to a difference instead of the fewest.
    #[arg(long)]
    whole: bool,
    /// To be one of the programs, in this directory.
    #[arg(long, hide = true)]
    actor: Option<String>,
    /// What it has open.
    #[arg(long, hide = true, requires = "actor")]
    slots: Option<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(top) = &arguments.actor {
        Actor::new(top, arguments.slots.as_deref()).run();
        return ExitCode::SUCCESS;
    }
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("freehold-programs: {e}");
            ExitCode::FAILURE
        }
    }
}

fn places(arguments: &Arguments) -> io::Result<[Place; 2]> {
    let own = std::env::current_exe()?.to_string_lossy().into_owned();
    // SAFETY: a system call without arguments.
    let root = unsafe { libc::geteuid() } == 0;
    let dirs = [&arguments.plain, &arguments.other].map(|dir| dir.clone().expect("required").canonicalize());
    let [plain, other] = dirs;
    let (plain, other) = (plain?, other?);
    if root {
        confine(&[&plain, &other])?;
    }
    let last = if arguments.all { &arguments.under } else { "" };
    let (plain_starts, starts) = (Start::four(&own, "", ""), Start::four(&own, &arguments.under, last));
    let interlude = arguments.interlude.clone();
    Ok([Place { dir: plain, starts: plain_starts, interlude: None }, Place { dir: other, starts, interlude }])
}

fn run(arguments: &Arguments) -> io::Result<bool> {
    let places = places(arguments)?;
    let case = std::process::id();
    if let Some(file) = &arguments.replay {
        let call = |line: &str| {
            let (actor, line) = line.split_once(' ')?;
            Some(Call { actor: actor.parse().ok()?, line: line.to_owned() })
        };
        let calls: Vec<_> = std::fs::read_to_string(file)?.lines().filter_map(call).collect();
        let (_, found) = compare(&places, &format!("replay.{case}"), &calls)?;
        println!("{} calls: {}", calls.len(), if found.is_some() { "a difference" } else { "all the same" });
        return Ok(found.inspect(|difference| print!("{difference}")).is_none());
    }
    let (mut same, mut made) = (true, 0);
    for seed in arguments.seed..arguments.seed + arguments.seeds {
        let mut calls: Vec<_> = Generator::new(seed, places[0].starts.len()).take(arguments.calls).collect();
        if arguments.interlude.is_some() {
            // Locks do not outlast a manager.
            calls.retain(|call| !call.line.contains("lock "));
            let rests = (0..calls.len()).step_by(20).skip(1).rev().collect::<Vec<_>>();
            rests.into_iter().for_each(|at| calls.insert(at, Call { actor: 0, line: INTERLUDE.to_owned() }));
        }
        let name = format!("case.{case}.{seed}");
        let (alike, found) = compare(&places, &name, &calls)?;
        made += alike;
        if let Some(mut found) = found {
            if !arguments.whole {
                found = smaller(&places, &name, found)?;
            }
            println!("seed {seed}: a difference\n{found}");
            same = false;
        }
    }
    println!(
        "{} seeds, {made} calls: {}",
        arguments.seeds,
        if same { "all the same" } else { "differences, above" }
    );
    Ok(same)
}
