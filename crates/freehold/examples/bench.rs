//! `bench ...`: the benchmark of the command line, on its own.

use clap::Parser;

#[derive(Parser)]
enum Command {
    /// Measure
    Bench(freehold::bench::BenchArgs),
}

fn main() -> anyhow::Result<()> {
    let Command::Bench(args) = Command::parse();
    freehold::bench::run(args)
}
