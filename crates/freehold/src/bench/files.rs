//! `freehold bench files`: names, and data past the page cache, in one place: a volume in this process, by the library's calls, or a directory of any file system that is
//! mounted, by system calls. The same flow for both, so that two runs can be put beside each other; nothing but the place is chosen here.
//!
//! Data goes past the caches in both: between the device and memory of this process that is registered with it, so many requests at a time from one thread. On
//! a volume that thread looks for completions all the time ([`fs::join_polled`]); in a directory it waits in io_uring_enter(2).

use super::ours::Ours;
use super::raw::Raw;
use super::stop;
use super::subject::{How, Name, Random, Subject};
use super::sys::Sys;
use crate::options;
use anyhow::{Context, Result, bail, ensure};
use block::Volume;
use fs::client::{Buffer, Buffers};
use fs::{File, OpenOptions, join_polled};
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Measure names and data in one place: a volume, by the library, or a directory, by system calls
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  freehold bench files nvme:0000:04:00.0        a volume that nobody serves, by the library in this process
  freehold bench files disk.img --depth 1       the same on an image, one request at a time
  freehold bench files /mnt/ext4                any file system, by system calls

create is open(O_CREAT|O_EXCL) and close, stat is of a thousand of these files, again and again; mkdir, stat-dir and rmdir are the same of directories. \
Reads and writes are of a file that was written before, past the page cache (O_DIRECT) and with registered memory, one thread having --depth requests \
under way: in a directory by io_uring. Writes overwrite, and are not synced. Rows are operations in a second.")]
pub struct FilesArgs {
    /// A volume (nvme:ADDRESS, a block device or an image), or a directory; what is made there is removed again
    #[arg(value_name = "VOLUME|DIR")]
    place: PathBuf,
    /// Files, and directories
    #[arg(long, value_name = "N", default_value = "50000", value_parser = clap::value_parser!(u32).range(1..10_000_000))]
    files: u32,
    /// Size of the file that is read and written
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = options::parse_size)]
    size: u64,
    /// Requests under way
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// Time of each measurement of reads and writes
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = super::device::seconds)]
    seconds: Duration,
}

/// Transfers of the file: bytes of each, whether they write, and whether to places here and there.
const DATA: &[(&str, usize, bool, bool)] = &[
    ("seq-read-64k", 64 << 10, false, false),
    ("seq-write-64k", 64 << 10, true, false),
    ("rand-read-4k", 4 << 10, false, true),
    ("rand-write-4k", 4 << 10, true, true),
];
/// The largest of them.
const BLOCK_MAX: usize = 64 << 10;
/// Names that are looked at again and again.
const LOOKED_AT: u32 = 1000;
/// Bytes of each write that makes the file, and how many of them are under way.
const PIECE: usize = 1 << 20;
const PIECES: usize = 8;

/// Measures and prints.
///
/// # Errors
/// The place is neither a volume nor a directory, or is in use; something failed; the run was interrupted. What was made is removed all the same, where that
/// can still be done.
pub fn run(args: &FilesArgs) -> Result<()> {
    let size = args.size / PIECE as u64 * PIECE as u64;
    if size == 0 {
        bail!("--size wants at least 1M");
    }
    let depth = args.depth as usize;
    if size < 2 * (depth * BLOCK_MAX) as u64 {
        bail!("--size wants at least twice what --depth requests of 64 KiB take, which would meet otherwise");
    }
    let _signals = stop::catch();
    let at = Place::new(args.files);
    if args.place.is_dir() {
        let sys = Sys::new(&args.place, None)?;
        return at.used(&sys, || {
            at.names(&sys)?;
            let path = args.place.join(at.file.as_str());
            let mut raw = Raw::open(&path, PIECE, PIECES)?;
            raw.run(true, (0..size).step_by(PIECE))?;
            raw.flush()?;
            data(args, size, |block| Raw::open(&path, block, depth))
        });
    }
    let ours = Ours::open(&args.place, None).with_context(|| args.place.display().to_string())?;
    let done = at.used(&ours, || {
        at.names(&ours)?;
        let file = ours.open(&at.file, How::New)?;
        let bytes = Random(7).bytes(PIECE);
        (0..size).step_by(PIECE).try_for_each(|offset| ours.write_at(&file, &bytes, offset))?;
        ours.fsync(&file)?;
        Subject::close(&ours, file)?;
        ours.drop_caches()?;
        data(args, size, |block| Direct::open(&ours, at.file.as_str(), block, depth))
    });
    done.and(ours.close())
}

/// The directory of the run, and the names in it.
struct Place {
    dir: String,
    count: u32,
    /// The file that is read and written.
    file: Name,
}

impl Place {
    fn new(count: u32) -> Place {
        let dir = format!("bench-{}", std::process::id());
        Place { file: Name::new(&dir, b'd'), dir, count }
    }

    /// Makes the directory for `body`, and removes it with all that is in it.
    fn used<S: Subject>(&self, s: &S, body: impl FnOnce() -> Result<()>) -> Result<()> {
        s.mkdir(&self.dir).with_context(|| format!("making {}", self.dir))?;
        let done = body();
        let (mut file, mut dir) = (Name::new(&self.dir, b'f'), Name::new(&self.dir, b's'));
        if done.is_err() {
            for n in 0..self.count {
                let (_, _) = (s.unlink(file.set(n)), s.rmdir(dir.set(n).as_str()));
            }
        }
        // It is not there when the names were not measured to their end.
        let _ = s.unlink(&self.file);
        done.and(s.rmdir(&self.dir).with_context(|| format!("removing {}", self.dir)))
    }

    /// All files, then all directories.
    fn names<S: Subject>(&self, s: &S) -> Result<()> {
        let (mut file, mut dir) = (Name::new(&self.dir, b'f'), Name::new(&self.dir, b's'));
        let looked_at = self.count.min(LOOKED_AT);
        self.each("create", |n| s.close(s.open(file.set(n), How::New)?))?;
        self.each("stat", |n| s.stat(file.set(n % looked_at)).map(drop))?;
        self.each("unlink", |n| s.unlink(file.set(n)))?;
        self.each("mkdir", |n| s.mkdir(dir.set(n).as_str()))?;
        self.each("stat-dir", |n| s.stat(dir.set(n % looked_at)).map(drop))?;
        self.each("rmdir", |n| s.rmdir(dir.set(n).as_str()))
    }

    fn each(&self, row: &str, mut call: impl FnMut(u32) -> Result<()>) -> Result<()> {
        let begun = Instant::now();
        for n in 0..self.count {
            call(n).with_context(|| format!("{row}, number {n}"))?;
            if n.is_multiple_of(1024) {
                stop::check()?;
            }
        }
        report(row, self.count as u64, begun.elapsed());
        Ok(())
    }
}

fn report(row: &str, calls: u64, time: Duration) {
    println!("{row:<14} {:>12.0} /s", calls as f64 / time.as_secs_f64());
}

/// Many transfers of one size, some of them under way at a time.
trait Transfers {
    /// Reads or writes at each of these places: how many they were, and which part of them the device did alone.
    fn run(&mut self, write: bool, places: impl Iterator<Item = u64>) -> Result<(u64, f64)>;
}

impl Transfers for Raw {
    fn run(&mut self, write: bool, places: impl Iterator<Item = u64>) -> Result<(u64, f64)> {
        Ok((Raw::run(self, write, places)?, 1.0))
    }
}

/// The rows of a file of `size` bytes, each after a quarter of its time that does not count.
fn data<T: Transfers>(args: &FilesArgs, size: u64, open: impl Fn(usize) -> Result<T>) -> Result<()> {
    for &(row, block, write, random) in DATA {
        let mut transfers = open(block)?;
        let mut draw = Random(9);
        let mut measured = |time: Duration| {
            let (begun, blocks) = (Instant::now(), size / block as u64);
            let places = (0..).map(|n: u64| if random { draw.draw() } else { n } % blocks * block as u64);
            let done = transfers.run(write, places.take_while(|_| begun.elapsed() < time));
            done.map(|done| (done, begun.elapsed())).with_context(|| row.to_string())
        };
        measured(args.seconds / 4)?;
        let ((done, direct), time) = measured(args.seconds)?;
        // What is copied through a cache is another thing than this measures. The first writes of all are; those do not count.
        ensure!(direct > 0.9, "{row}: only {:.0} % of it went past the cache", direct * 100.0);
        report(row, done, time);
    }
    Ok(())
}

/// A file of a volume, past its cache.
struct Direct<'a> {
    ours: &'a Ours,
    file: File<Volume>,
    buffers: Buffers<Volume>,
    depth: usize,
    /// Of each transfer.
    blocks: u64,
}

impl<'a> Direct<'a> {
    fn open(ours: &'a Ours, name: &str, block: usize, depth: usize) -> Result<Direct<'a>> {
        let client = ours.client.client();
        let options = OpenOptions::new().read(true).write(true).direct(true);
        let file = fs::block_on(client.open(name, options))?;
        let buffers = client.buffers(depth, block)?;
        let mut all: Vec<Buffer<Volume>> = std::iter::from_fn(|| buffers.take()).collect();
        all.iter_mut().for_each(|buffer| buffer.copy_from_slice(&Random(7).bytes(block)));
        drop(all);
        Ok(Direct { ours, file, buffers, depth, blocks: (block / 4096) as u64 })
    }
}

impl Transfers for Direct<'_> {
    fn run(&mut self, write: bool, places: impl Iterator<Item = u64>) -> Result<(u64, f64)> {
        let moved = |counters: block::Counters| match write {
            true => counters.direct_written_blocks,
            false => counters.direct_read_blocks,
        };
        let before = moved(self.ours.volume.counters());
        let (places, done) = (RefCell::new(places.fuse()), Cell::new(0));
        let one = async || {
            let mut buffer = self.buffers.take().context("no buffer is left")?;
            loop {
                let Some(place) = places.borrow_mut().next() else { return anyhow::Ok(()) };
                let (back, moved) = match write {
                    true => self.file.write_fixed_at(buffer, place).await,
                    false => self.file.read_fixed_at(buffer, place).await,
                };
                buffer = back;
                let moved = moved?;
                ensure!(moved == buffer.len(), "moved {moved} of {} bytes", buffer.len());
                done.set(done.get() + 1);
                stop::check()?;
            }
        };
        join_polled(&self.ours.volume, (0..self.depth).map(|_| one()).collect())?;
        let direct = (moved(self.ours.volume.counters()) - before) as f64;
        Ok((done.get(), direct / (done.get() * self.blocks).max(1) as f64))
    }
}
