//! `freehold bench`: Freehold and its peers, measured in one run on the same disk.
//!
//! Each row is a question with a unit, a subject, peers, and often a goal (`sample`). Workloads are written once and run on
//! anything (`subject`, `driver`): the library in this process (`ours`), system calls on mounted file systems (`sys`), and
//! io_uring without a file system (`raw`). `lab` makes images, loop devices and mounts and takes them away again. What is
//! counted beside time: processor seconds, and requests to the device. The method and its limits: docs/BENCHMARKS.md.
//!
//! Groups of rows are reported as they are done, and kept in the JSON file; a run that ends early reports what it has. `chart` draws a
//! picture of the JSON file.
//!
//! A device below any file system is measured by `device`, and one place, a volume or a directory, by `files`: with rows of their own.
//!
//! Tested in a tiny size by tests/bench_tiny.rs.

mod chart;
mod data;
mod device;
mod driver;
mod durable;
mod exchange;
mod files;
mod first_read;
mod fuse_rows;
mod lab;
mod machine;
mod meta;
mod mount;
mod order;
mod ours;
mod programs;
mod raw;
mod report;
mod sample;
mod stop;
mod subject;
mod sys;
mod varmail;

pub use lab::{Lab, Loop, MountGuard, Mounted};
pub use sample::Kind;

use anyhow::{Context, Result, bail};
use driver::{Bench, Scale};
use sample::Results;
use std::path::{Path, PathBuf};

/// Measure Freehold beside ext4, XFS and raw I/O on this machine's disk.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  freehold bench                               everything; as root; about 70 GB in --dir
  freehold bench --quick --peers none          small, and without ext4 and XFS: needs no root
  freehold bench --only create,stat --json f   two rows, and all samples of them in a file
  freehold bench --json f --svg f.svg          everything, with a picture: Freehold and XFS beside ext4
  freehold bench --from f --svg f.svg          the picture of an earlier run; measures nothing
  freehold bench device nvme:0000:04:00.0      a device below any file system: see freehold bench device --help
  freehold bench files /mnt/ext4               one place, a volume or a directory: see freehold bench files --help

Finished rows are shown as they are done. A run that is interrupted (Ctrl-C) prints and writes what it has measured, and fails.

docs/BENCHMARKS.md says what each row does and what its figures mean.")]
pub struct BenchArgs {
    /// Directory for image files, on the disk to be measured; a file system with direct I/O
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// Size of each image (default 16G, with --quick 2G); one for each subject is allocated and written first
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub size: Option<u64>,
    /// Files of the metadata, memory and mount rows (default 1000000, with --quick 50000)
    #[arg(long, value_name = "N")]
    pub files: Option<u32>,
    /// Bytes of the sequential rows (default 4G, with --quick 512M)
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub sequential: Option<u64>,
    /// Small amounts of work, one repetition: says that everything runs, not how fast
    #[arg(long)]
    pub quick: bool,
    /// Write everything that was measured to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the rows that ext4 was measured for to this file, as a bar chart
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Measure nothing: draw the picture of the run that wrote this file with --json
    #[arg(long, value_name = "FILE", requires = "svg", conflicts_with_all = ["json", "only", "quick", "list"])]
    pub from: Option<PathBuf>,
    /// Measure only these rows (and those that come with them): comma separated; see --list
    #[arg(long, value_name = "ROW,...", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Kernel file systems to measure beside: ext4, xfs, none; needs root
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "ext4,xfs")]
    pub peers: Vec<String>,
    /// Repetitions, of which the median counts (default 3, with --quick 1)
    #[arg(long, value_name = "N")]
    pub repeat: Option<u32>,
    /// Binary of libfuse's passthrough_ll; without it, the source that libfuse3-dev installs is compiled
    #[arg(long, value_name = "FILE")]
    pub passthrough: Option<PathBuf>,
    /// Print the names of the rows and stop
    #[arg(long)]
    pub list: bool,
    /// Program that children are started from, as `PROGRAM bench --child ...`; default: this one
    #[arg(long, value_name = "PROGRAM", hide = true)]
    pub program: Option<PathBuf>,
    /// Be a child: make files on a volume, and report
    #[arg(long, value_name = "JOB", hide = true)]
    pub child: Option<String>,
    /// Measure one device, or one place
    #[command(subcommand)]
    pub other: Option<Other>,
}

/// What is measured by itself.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Other {
    /// A device: an NVMe controller, a block device or a file.
    Device(Box<device::DeviceArgs>),
    /// Names and data in one place: a volume or a directory.
    Files(Box<files::FilesArgs>),
}

const GROUPS: &[&[&str]] = &[
    meta::ROWS,
    durable::ROWS,
    order::ROWS,
    varmail::ROWS,
    data::ROWS,
    mount::ROWS,
    fuse_rows::ROWS,
    programs::ROWS,
];

/// Names of all rows, as `--only` takes them.
pub fn row_names() -> impl Iterator<Item = &'static str> {
    GROUPS.iter().copied().flatten().copied()
}

/// Measures and reports. An error means that the run was interrupted, could not begin, or that a subject failed; what was measured
/// before is reported all the same. A goal that was not reached is no error.
pub fn run(args: BenchArgs) -> Result<()> {
    if let Some(job) = &args.child {
        return mount::child(job);
    }
    match &args.other {
        Some(Other::Device(args)) => return device::run(args),
        Some(Other::Files(args)) => return files::run(args),
        None => {}
    }
    if args.list {
        GROUPS.iter().for_each(|rows| println!("{}", rows.join(" ")));
        return Ok(());
    }
    if let Some(unknown) = args.only.iter().find(|o| !GROUPS.iter().any(|g| g.contains(&o.as_str()))) {
        bail!("there is no row '{unknown}': see --list");
    }
    if let (Some(from), Some(svg)) = (&args.from, &args.svg) {
        let text = std::fs::read_to_string(from).with_context(|| format!("reading {}", from.display()))?;
        return draw(&text, svg).with_context(|| from.display().to_string());
    }
    let scale = scale(&args)?;
    let size = args.size.unwrap_or(if args.quick { 2 << 30 } else { 16 << 30 });
    check_space(&args, size, &scale)?;
    [&args.json, &args.svg].into_iter().flatten().try_for_each(|file| check_file(file))?;
    let mut results = Results::default();
    let peers = peers(&args.peers, &mut results)?;
    let _signals = stop::catch();
    let lab = lab::Lab::new(&args.dir, size)?;
    let program = match args.program {
        Some(program) => Some(program),
        None => std::env::current_exe().ok(),
    };
    let mut bench = Bench {
        lab,
        scale,
        peers,
        only: args.only,
        program,
        passthrough: args.passthrough,
        results,
        failures: Vec::new(),
    };
    let machine = machine::describe(&mut bench)?;
    println!("{machine}");
    let ended = measure(&mut bench, |bench, ended| match &args.json {
        Some(path) => write(path, &report::json(bench, &machine, ended)?),
        None => Ok(()),
    })?;
    report::print(&bench, ended.as_deref());
    if let Some(path) = &args.svg {
        match draw(&report::json(&bench, &machine, ended.as_deref())?, path) {
            // What was measured before an interruption may not be enough for a picture; that is no news then.
            Err(e) if ended.is_some() => eprintln!("no picture: {e:#}"),
            done => done?,
        }
    }
    if let Some(why) = ended {
        let kept = args.json.map(|f| format!(", and in {}", f.display())).unwrap_or_default();
        bail!("the run ended early ({why}): only what was measured until then is above{kept}");
    }
    if !bench.failures.is_empty() {
        bail!("{} failed: {}", bench.failures.len(), bench.failures.join("; "));
    }
    Ok(())
}

/// Measures all groups of rows, and says why it ended early, if it did. `save` is called after each of them. A group that fails is noted, and
/// the next one goes on; only an interruption ends the run.
///
/// # Errors
/// Those of `save`.
fn measure(
    bench: &mut Bench,
    mut save: impl FnMut(&Bench, Option<&str>) -> Result<()>,
) -> Result<Option<String>> {
    type Measure = fn(&mut Bench) -> Result<()>;
    let groups: [Measure; 8] = [
        meta::measure,
        durable::measure,
        order::measure,
        varmail::measure,
        data::measure,
        mount::measure,
        fuse_rows::measure,
        programs::measure,
    ];
    let begun = std::time::Instant::now();
    for group in groups {
        let before = bench.results.rows.len();
        let done = group(bench);
        report::progress(&bench.results.rows[before..], begun.elapsed().as_secs_f64());
        if let Err(e) = stop::check() {
            let why = e.to_string();
            save(bench, Some(&why))?;
            return Ok(Some(why));
        }
        if let Err(e) = done {
            let text = format!("{e:#}");
            eprintln!("failed: {text}");
            bench.failures.push(text);
        }
        save(bench, None)?;
    }
    Ok(None)
}

/// Writes a file as a whole: who interrupts it has the old one. What is no file (a pipe, a terminal) is written to.
fn write(path: &Path, text: &str) -> Result<()> {
    let mut name = path.as_os_str().to_os_string();
    name.push(".new");
    let done = match std::fs::symlink_metadata(path).is_ok_and(|m| !m.is_file()) {
        true => std::fs::write(path, text),
        false => std::fs::write(&name, text).and_then(|()| std::fs::rename(&name, path)),
    };
    done.with_context(|| format!("writing {}", path.display()))
}

/// Draws the picture of a run from its JSON.
fn draw(json: &str, svg: &Path) -> Result<()> {
    let chart = chart::draw(json)?;
    write(svg, &chart.svg)?;
    if !chart.left_out.is_empty() {
        eprintln!("not in {}, having no rate of ext4: {}", svg.display(), chart.left_out.join(", "));
    }
    Ok(())
}

/// Refuses a file that could not be written after an hour of measuring.
fn check_file(path: &Path) -> Result<()> {
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.is_dir() || !dir.is_dir() {
        bail!("{} cannot be written: it is a directory, or there is none to put it in", path.display());
    }
    Ok(())
}

fn scale(args: &BenchArgs) -> Result<Scale> {
    let quick = args.quick;
    let files = args.files.unwrap_or(if quick { 50_000 } else { 1_000_000 });
    let sequential = args.sequential.unwrap_or(if quick { 512 << 20 } else { 4 << 30 }) >> 20 << 20;
    let repeat = args.repeat.unwrap_or(if quick { 1 } else { 3 });
    if files == 0 || files >= 10_000_000 || repeat == 0 || sequential == 0 {
        bail!("--files wants 1 to 9999999, --repeat at least 1, --sequential at least 1M");
    }
    Ok(Scale {
        files,
        fuse_files: (files / 10).clamp(1, 100_000),
        syncs: if quick { (files / 100).clamp(10, 500) } else { 5000 },
        sequential,
        reads: if quick { (sequential >> 14).min(50_000) as u32 } else { 400_000 },
        // The file of the random row must be much larger than the cache.
        cache: (sequential / 16 < 256 << 20).then_some((sequential / 16).max(8 << 20) as usize),
        idle: if quick { 1.0 } else { 5.0 },
        repeat,
    })
}

fn peers(names: &[String], results: &mut Results) -> Result<Vec<Kind>> {
    let mut peers = Vec::new();
    for name in names {
        let kind = match name.as_str() {
            "ext4" => Kind::Ext4,
            "xfs" => Kind::Xfs,
            "none" => continue,
            other => bail!("unknown peer '{other}': ext4, xfs or none"),
        };
        match lab::available(kind) {
            Ok(()) => peers.push(kind),
            Err(e) => results.skip(format!("{name} is not measured: {e:#}")),
        }
    }
    Ok(peers)
}

/// Refuses what cannot fit, before anything is written.
fn check_space(args: &BenchArgs, size: u64, scale: &Scale) -> Result<()> {
    let needed = (scale.files as u64 * 4800 + (128 << 20)).max(scale.sequential / 8 * 9 + (64 << 20));
    if size < needed {
        bail!(
            "--size {size} is too small for this work: at least {needed}, or fewer --files, less --sequential"
        );
    }
    let space =
        rustix::fs::statvfs(&args.dir).with_context(|| format!("looking at {}", args.dir.display()))?;
    let (free, images) =
        (space.f_bavail * space.f_frsize, 2 + args.peers.iter().filter(|p| *p != "none").count());
    if free < size * images as u64 {
        bail!(
            "{} has {free} bytes free; {images} images of {size} bytes are needed (--size)",
            args.dir.display()
        );
    }
    Ok(())
}

/// A size with an optional suffix K, M, G or T.
fn size(text: &str) -> Result<u64, String> {
    let unit = match text.bytes().last().map(|b| b.to_ascii_uppercase()) {
        Some(b'K') => 10,
        Some(b'M') => 20,
        Some(b'G') => 30,
        Some(b'T') => 40,
        _ => 0,
    };
    let digits = if unit > 0 { &text[..text.len() - 1] } else { text };
    let n: u64 =
        digits.parse().map_err(|_| "expected a number, with K, M, G or T if you like".to_string())?;
    n.checked_mul(1 << unit).filter(|n| *n < 1 << 60).ok_or_else(|| "too large".to_string())
}
