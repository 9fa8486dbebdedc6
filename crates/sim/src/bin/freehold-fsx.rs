//! Random data operations on a file at a path, against a vector of bytes: for mounts. See `sim::fsx`.

use clap::Parser;
use sim::fsx::{Config, OverPath, run};
use std::path::PathBuf;
use std::process::ExitCode;

/// Tests a file with random reads, writes, truncations and so on. The file is made, or emptied.
#[derive(Parser)]
#[command(name = "freehold-fsx")]
struct Arguments {
    /// The file; it need not exist.
    path: PathBuf,
    /// Number of operations.
    #[arg(long, default_value_t = 10_000)]
    ops: u64,
    /// Seed of all choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Largest size of the file, bytes.
    #[arg(long, default_value_t = 4 << 20)]
    size: u64,
    /// Most bytes of one operation.
    #[arg(long, default_value_t = 256 << 10)]
    len: u64,
    /// Use no memory mappings.
    #[arg(long)]
    no_mappings: bool,
    /// Punch no holes and zero no ranges.
    #[arg(long)]
    no_holes: bool,
}

fn main() -> ExitCode {
    let a = Arguments::parse();
    if a.size == 0 || a.len == 0 || a.size > 1 << 32 || a.len > 1 << 30 {
        eprintln!("freehold-fsx: sizes are from 1 byte to 4 GiB, lengths from 1 byte to 1 GiB");
        return ExitCode::FAILURE;
    }
    let mut target = match OverPath::create(&a.path) {
        Ok(target) => target,
        Err(e) => {
            eprintln!("freehold-fsx: cannot make {}: {e}", a.path.display());
            return ExitCode::FAILURE;
        }
    };
    target.mappings = !a.no_mappings;
    let config = Config { seed: a.seed, ops: a.ops, size_max: a.size, len_max: a.len, holes: !a.no_holes };
    match run(&mut target, config) {
        Ok(compared) => {
            println!("seed {}: {} operations, {compared} bytes compared, all right", a.seed, a.ops);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprint!("{failure}");
            ExitCode::FAILURE
        }
    }
}
