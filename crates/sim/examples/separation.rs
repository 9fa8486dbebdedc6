//! UHSFS's tables 4 to 6 on the simulated device: throughput without separation of queues, with it, and where trials choose. Prints what
//! docs/BENCHMARKS.md shows.

use sched::queues::{Direction::*, Mode};
use sim::timed::nvme::Profile;
use sim::timed::separation::{Stream, run, stream};

/// Chosen: two for each class.
const QUEUES: usize = 8;

fn main() {
    let profile = Profile::sn260();
    println!("| alone, depth 32 | paper | simulated |\n|---|---:|---:|");
    for (name, published, s) in [
        ("64 KiB sequential read, MB/s", 6400, stream(Read, 64, false, 100_000)),
        ("64 KiB sequential write, MB/s", 2291, stream(Write, 64, false, 100_000)),
        ("4 KiB random read, in a second", 508_928, stream(Read, 4, true, 400_000)),
        ("4 KiB random write, in a second", 500_736, stream(Write, 4, true, 800_000)),
    ] {
        let rate = run(&profile, QUEUES, Mode::RoundRobin, &[s], 32, 1).rate;
        let rate = if s.units == 1 { rate * 1e6 / 4096.0 } else { rate };
        println!("| {name} | {published} | {rate:.0} |");
    }
    let n = 200_000;
    let loads: [(&str, Vec<Stream>); 5] = [
        ("table 4, 4 KiB reads and writes", vec![stream(Read, 4, true, n), stream(Write, 4, true, n)]),
        (
            "table 4, 64 KiB reads and writes",
            vec![stream(Read, 64, true, n / 4), stream(Write, 64, true, n / 4)],
        ),
        ("table 5, writes of both sizes", vec![stream(Write, 4, true, n), stream(Write, 64, false, n / 10)]),
        ("table 5, reads of both sizes", vec![stream(Read, 4, true, n), stream(Read, 64, false, n / 10)]),
        (
            "table 6, all",
            vec![
                stream(Read, 4, true, n / 2),
                stream(Write, 4, true, n / 2),
                stream(Read, 64, false, n / 20),
                stream(Write, 64, false, n / 20),
            ],
        ),
    ];
    println!("\n| load | depth | off, MB/s | separated | | automatic | | latency off, us | separated, us |");
    println!("|---|---:|---:|---:|---:|---:|---:|---|---|");
    for (name, streams) in loads {
        for depth in [16, 32, 128, 256] {
            let [off, on, auto] = [Mode::RoundRobin, Mode::Separated, Mode::Automatic]
                .map(|mode| run(&profile, QUEUES, mode, &streams, depth, 1));
            let gain = |rate: f64| format!("{:+.1} %", (rate / off.rate - 1.0) * 100.0);
            let times = |all: &[f64]| all.iter().map(|us| format!("{us:.0}")).collect::<Vec<_>>().join(" ");
            println!(
                "| {name} | {depth} | {:.0} | {:.0} | {} | {:.0} | {} | {} | {} |",
                off.rate,
                on.rate,
                gain(on.rate),
                auto.rate,
                gain(auto.rate),
                times(&off.latency),
                times(&on.latency)
            );
        }
    }
}
