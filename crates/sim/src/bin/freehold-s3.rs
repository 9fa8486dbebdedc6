//! The simulated object store as a process of its own, for scripts: see `sim::s3`. Prints its address, and serves until its standard input ends.

use clap::Parser;
use sim::s3::{BUCKET, Faults, Features, KEY_ID, Rates, Server};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

/// An object store in memory with one bucket, `bucket`, for the access key `tester` and any secret.
#[derive(Parser)]
#[command(name = "freehold-s3")]
struct Arguments {
    /// Where it listens; port 0: any.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// It can do as little as the oldest servers.
    #[arg(long)]
    few: bool,
    /// Smallest part but the last, bytes.
    #[arg(long, default_value_t = 1)]
    part_min: usize,
    /// Of 1,000 requests so many meet each kind of fault.
    #[arg(long, default_value_t = 0)]
    faults: u32,
    /// Seed of the faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    let a = Arguments::parse();
    let features = Features { part_min: a.part_min, ..if a.few { Features::FEW } else { Features::ALL } };
    let faults = match a.faults {
        0 => Faults::none(),
        each => Faults::new(Rates::all(each), a.seed),
    };
    let server = match Server::start_at(a.listen, features, faults) {
        Ok(server) => server,
        Err(e) => {
            eprintln!("freehold-s3: {}: {e}", a.listen);
            return ExitCode::FAILURE;
        }
    };
    println!("{} bucket {BUCKET}, access key {KEY_ID}", server.endpoint());
    let _ = std::io::stdout().flush();
    let mut rest = Vec::new();
    match std::io::stdin().read_to_end(&mut rest) {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
