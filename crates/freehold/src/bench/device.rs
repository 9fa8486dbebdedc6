//! `freehold bench device`: latency and throughput of one device below any file system, and what separation of queues gives there.
//!
//! On an NVMe controller that Freehold drives itself each load is carried out in several ways ([`Way`]): through one queue, through the
//! thread's own as an engine's thread would, through eight in turn, and through eight by class. On files and block devices the kernel chooses
//! the queue, so there is one way, io_uring. Rounds go through all ways, so that drift meets all of them; the figures of the round whose
//! throughput is the median count.
//!
//! Only a part of the device is used, the first bytes. Nothing is written unless `--destroy` says so; then the part is written as a whole first,
//! as SSDs answer reads of what was never written without looking.
//!
//! What is in use is refused, as far as that can be seen: see [`check_unused`]. Each time it is opened, as it is closed in between.

mod load;
mod report;

use super::stop;
use crate::medium::{NvmeName, open_media, open_nvme};
use crate::{mounts, options};
use anyhow::{Context, Result, bail};
use load::{Figures, Load, Runner};
use media::{Media, Queues, Request, UringMedia, uring};
use report::Row;
use sched::Separated;
use sched::queues::Mode;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Measure a device below any file system: an NVMe controller, a block device or a file
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  freehold bench device nvme:0000:04:00.0               reads alone: nothing is written
  freehold bench device nvme:0000:04:00.0 --destroy     writes as well: what is on it is lost
  freehold bench device disk.img --json f --svg f.svg   a file or block device, by io_uring

4 KiB at random places with 1 and 32 requests under way, 64 KiB one behind the other with 32, and mixtures of them. On an NVMe controller \
that Freehold drives, through one queue (one), the thread's own (threads), all in turn (turns) and by class (classes, auto): see docs/DEVICES.md. \
Latencies are those of one request, from its submission to the moment its completion was seen.

A device or file that is in use is refused, with --destroy or without: one that is mounted, is held exclusively or locked by somebody, or \
stands below a loop device. A program that has it open without any of that cannot be seen.")]
pub struct DeviceArgs {
    /// nvme:ADDRESS of a claimed controller, a block device, or a file
    #[arg(value_name = "DEVICE|FILE")]
    device: PathBuf,
    /// Measure writes too: what is on the first --size bytes of it is lost
    #[arg(long)]
    destroy: bool,
    /// Use the first BYTES of the device; at most all of it
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = options::parse_size)]
    size: u64,
    /// Time of each measurement
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    seconds: Duration,
    /// Rounds, of which the median counts
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=99))]
    repeat: u32,
    /// Measure each queue of an NVMe controller by itself, too
    #[arg(long)]
    each_queue: bool,
    /// Write all figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw them to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A time of measurements.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s| (0.01..=3600.0).contains(s));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds from 0.01 to 3600".into())
}

/// Which queue takes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// That of io_uring: the kernel decides.
    Kernel,
    /// One of the driver's, counted from 0.
    Queue(usize),
    /// The thread's own.
    Threads,
    /// As [`Mode`] says.
    Separated(Mode),
}

impl Way {
    fn name(self) -> String {
        match self {
            Way::Kernel => "io_uring".into(),
            Way::Queue(0) => "one".into(),
            Way::Queue(n) => format!("queue {}", n + 1),
            Way::Threads => "threads".into(),
            Way::Separated(Mode::RoundRobin) => "turns".into(),
            Way::Separated(Mode::Separated) => "classes".into(),
            Way::Separated(Mode::Automatic) => "auto".into(),
        }
    }

    fn open(self, device: &Path, read_only: bool) -> crate::Result<Arc<dyn Media>> {
        let Some(name) = NvmeName::parse(device) else {
            if !read_only {
                return Ok(open_media(device, false, None)?);
            }
            let options = uring::Options { read_only, exclusive: true, ..Default::default() };
            return Ok(Arc::new(UringMedia::open(device, options)?));
        };
        Ok(match self {
            Way::Queue(queue) => {
                Arc::new(OneQueue { media: open_nvme(name, read_only, Some(QUEUES))?, queue })
            }
            Way::Separated(mode) => Arc::new(Separated::new(open_nvme(name, read_only, Some(QUEUES))?, mode)),
            Way::Kernel | Way::Threads => Arc::new(open_nvme(name, read_only, None)?),
        })
    }
}

/// Queue pairs that a controller is asked for: those of a server that separates.
const QUEUES: u16 = crate::medium::SEPARATED_QUEUES;

/// All requests go into one queue.
struct OneQueue<M> {
    media: M,
    queue: usize,
}

impl<M: Queues> Media for OneQueue<M> {
    fn geometry(&self) -> &media::Geometry {
        self.media.geometry()
    }
    fn register(&self, arena: Arc<media::Arena>) -> Result<media::ArenaId, media::MediaError> {
        self.media.register(arena)
    }
    fn unregister(&self, arena: media::ArenaId) {
        self.media.unregister(arena);
    }
    fn submit(&self, request: Request) {
        self.media.submit_to(self.queue, request);
    }
    fn kick(&self) {
        self.media.kick();
    }
    fn reap(&self, out: &mut Vec<media::Completion>, wait: media::Wait) {
        self.media.reap(out, wait);
    }
    fn wake(&self) {
        self.media.wake();
    }
}

/// Fails when a file or block device is mounted, or stands below a loop device: that holds no lock on a file. Who holds a lock, or a block device
/// exclusively, is found when it is opened; and a controller has one driver at a time.
///
/// # Errors
/// It is in use; it is not there; the table of mounts cannot be read.
fn check_unused(device: &Path) -> Result<()> {
    if NvmeName::parse(device).is_some() {
        return Ok(());
    }
    if let Some(mount) = mounts::of_image(device)?.first() {
        bail!("it is in use: mounted at {} ({})", mount.point.display(), mount.kind);
    }
    if let Some(above) = mounts::loop_devices(&std::fs::canonicalize(device)?).first() {
        bail!("it is in use: {} stands on it (losetup --detach {0})", above.display());
    }
    Ok(())
}

/// Measures and reports.
///
/// # Errors
/// The device cannot be opened, is in use, or fails; the run was interrupted; a file cannot be written.
pub fn run(args: &DeviceArgs) -> Result<()> {
    let name = args.device.display().to_string();
    [&args.json, &args.svg].into_iter().flatten().try_for_each(|file| super::check_file(file))?;
    let _signals = stop::catch();
    let open = |way: Way| {
        let media = way.open(&args.device, !args.destroy).with_context(|| name.clone())?;
        check_unused(&args.device).with_context(|| name.clone())?;
        Ok(media)
    };
    let mut ways = vec![Way::Kernel];
    if let Some(device) = NvmeName::parse(&args.device) {
        let queues = open_nvme(device, true, Some(QUEUES)).with_context(|| name.clone())?.queues();
        let separated = [Mode::RoundRobin, Mode::Separated, Mode::Automatic].map(Way::Separated);
        ways = [Way::Queue(0), Way::Threads].into_iter().chain(separated).collect();
        ways.extend((1..queues).filter(|_| args.each_queue).map(Way::Queue));
    }
    let media = open(ways[0])?;
    let geometry = media.geometry().clone();
    let area = args.size.min(geometry.bytes) / (64 << 10) * (64 << 10);
    if area < 1 << 20 {
        bail!("{name}: at least 1 MiB is needed, it has {}", options::format_size(area));
    }
    if args.destroy {
        eprintln!("writing the first {} of {name}", options::format_size(area));
        Runner::new(&*media, area)?.fill()?;
    }
    drop(media);
    let loads = Load::all(args.destroy);
    let mut rows = Vec::new();
    let rounds = measure(args, &ways, &loads, area, open)?;
    for (load, by_way) in loads.iter().zip(&rounds) {
        for (n, stream) in load.streams.iter().enumerate() {
            let ways = ways.iter().zip(by_way).map(|(way, rounds)| (way.name(), median(rounds, n))).collect();
            rows.push(Row { name: stream.name(), load: load.clone(), ways });
        }
    }
    let run = report::Run {
        device: name,
        geometry,
        area,
        destroy: args.destroy,
        seconds: args.seconds.as_secs_f64(),
        rows,
    };
    print!("{}", report::table(&run));
    if let Some(path) = &args.json {
        super::write(path, &report::json(&run)?)?;
    }
    match &args.svg {
        Some(path) => super::write(path, &report::svg(&run)),
        None => Ok(()),
    }
}

/// Of each load and way: the rounds, and of each the figures of its streams.
fn measure(
    args: &DeviceArgs,
    ways: &[Way],
    loads: &[Load],
    area: u64,
    open: impl Fn(Way) -> Result<Arc<dyn Media>>,
) -> Result<Vec<Vec<Vec<Vec<Figures>>>>> {
    let mut all = vec![vec![Vec::new(); ways.len()]; loads.len()];
    for round in 0..args.repeat as usize {
        for n in 0..ways.len() {
            // Each round begins with another way.
            let way = (n + round) % ways.len();
            let media = open(ways[way])?;
            let runner = Runner::new(&*media, area)?;
            for (load, of_load) in loads.iter().zip(&mut all) {
                of_load[way].push(runner.run(load, args.seconds)?);
            }
        }
    }
    Ok(all)
}

/// The round whose throughput of stream `n` is the median.
fn median(rounds: &[Vec<Figures>], n: usize) -> Figures {
    let mut figures: Vec<&Figures> = rounds.iter().filter_map(|streams| streams.get(n)).collect();
    figures.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    figures.get((figures.len().max(1) - 1) / 2).copied().cloned().unwrap_or_default()
}
