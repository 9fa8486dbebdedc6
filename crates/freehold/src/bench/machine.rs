//! What the figures were measured on.

use super::driver::Bench;
use super::lab::{Loop, run};
use super::raw::Raw;
use super::sample::Kind;
use anyhow::Result;
use serde::Serialize;
use std::fmt;

/// Machine, kernel, disk and tools.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Version of this program.
    pub freehold: &'static str,
    /// Optimized build or not.
    pub build: &'static str,
    /// Kernel release.
    pub kernel: String,
    /// Name of the processor.
    pub processor: String,
    /// Processors.
    pub processors: usize,
    /// Memory, bytes.
    pub memory: u64,
    /// Runnable processes at the start, mean of a minute.
    pub load: f64,
    /// File system and device below the images.
    pub below: String,
    /// Scheduler and write cache of that device.
    pub queue: String,
    /// Seconds of a 4 KiB overwrite of an image with fdatasync.
    pub flush_cost: f64,
    /// The same through a loop device; what the peers have.
    pub flush_cost_loop: Option<f64>,
    /// How far the processors were from each other at the start, seconds ([`super::exchange`]).
    pub line_round_trip: Option<f64>,
    /// Versions of the tools that made the peers.
    pub tools: Vec<String>,
}

/// Looks at the machine and measures what a flush costs.
pub fn describe(bench: &mut Bench) -> Result<Machine> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let processor = info.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or_default();
    let memory = read("/proc/meminfo");
    let kib: u64 = memory.split_whitespace().nth(1).and_then(|w| w.parse().ok()).unwrap_or(0);
    let image = bench.lab.image(Kind::Raw)?;
    let n = bench.scale.syncs.min(500);
    let flush_cost = Raw::open(&image, 4096, 1)?.flush_cost(n)?;
    let mut tools = Vec::new();
    let mut flush_cost_loop = None;
    if !bench.mounted_peers().is_empty() {
        let device = Loop::attach(&image)?;
        flush_cost_loop = Some(Raw::open(&device.path, 4096, 1)?.flush_cost(n)?);
        for (kind, program) in [(Kind::Ext4, "mkfs.ext4"), (Kind::Xfs, "mkfs.xfs")] {
            if bench.peers.contains(&kind) {
                tools.push(version(program));
            }
        }
    }
    let (below, queue) = below(&image);
    Ok(Machine {
        freehold: env!("CARGO_PKG_VERSION"),
        build: if cfg!(debug_assertions) { "development" } else { "release" },
        kernel: read("/proc/sys/kernel/osrelease").trim().to_string(),
        processor: processor.trim_start_matches([' ', '\t', ':']).to_string(),
        processors: std::thread::available_parallelism().map_or(1, |n| n.get()),
        memory: kib << 10,
        load: read("/proc/loadavg").split(' ').next().and_then(|w| w.parse().ok()).unwrap_or(0.0),
        below,
        queue,
        flush_cost,
        flush_cost_loop,
        line_round_trip: super::exchange::round_trip(),
        tools,
    })
}

/// First line of what a tool says about itself (mkfs.ext4 says it on standard error).
fn version(program: &str) -> String {
    let said = run("sh", &["-c", &format!("{program} -V 2>&1 | head -n 1")]);
    said.map(|s| s.trim().to_string()).unwrap_or_else(|_| format!("{program}: unknown version"))
}

/// The mount that holds a file, and the queue of its device.
fn below(path: &std::path::Path) -> (String, String) {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let best = mounts
        .lines()
        .filter_map(|l| {
            let mut words = l.split(' ');
            let (device, dir) = (words.next()?, words.next()?);
            Some((device, dir, words.next()?, words.next()?))
        })
        .filter(|(_, dir, ..)| path.starts_with(dir))
        .max_by_key(|(_, dir, ..)| dir.len());
    let Some((device, _, fstype, options)) = best else { return ("unknown".into(), "unknown".into()) };
    let name = device.rsplit('/').next().unwrap_or_default();
    let attribute = |file: &str| {
        let path = format!("/sys/block/{name}/queue/{file}");
        std::fs::read_to_string(path).map_or("unknown".to_string(), |s| s.trim().to_string())
    };
    let queue = format!("scheduler {}, write cache: {}", attribute("scheduler"), attribute("write_cache"));
    (format!("{fstype} on {device} ({options})"), queue)
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "freehold {} ({} build), Linux {}", self.freehold, self.build, self.kernel)?;
        writeln!(
            f,
            "{} x {}, {} MiB of memory, load {}",
            self.processors,
            self.processor,
            self.memory >> 20,
            self.load
        )?;
        if let Some(time) = self.line_round_trip {
            writeln!(f, "a line of the caches to another processor and back: {:.0} ns", time * 1e9)?;
        }
        writeln!(f, "images on {}; {}", self.below, self.queue)?;
        write!(f, "4 KiB overwrite + flush: {:.0} us on a file", self.flush_cost * 1e6)?;
        if let Some(cost) = self.flush_cost_loop {
            write!(f, ", {:.0} us on a loop device", cost * 1e6)?;
        }
        writeln!(f)?;
        self.tools.iter().try_for_each(|t| writeln!(f, "{t}"))
    }
}
