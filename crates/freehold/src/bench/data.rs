//! Data rows: sequential writes and reads in 1 MiB calls, random reads at depth 32, against raw io_uring.

use super::driver::{Bench, Log, Workload};
use super::ours::Ours;
use super::raw::Raw;
use super::sample::{Goal, Kind, Stamp};
use super::stop;
use super::subject::{How, Name, Random, Subject};
use anyhow::{Context, Result, ensure};
use fs::join_all;
use std::cell::Cell;
use std::path::Path;

/// The rows of this file.
pub const ROWS: &[&str] = &["seq-write", "seq-read", "seq-read-lent", "rand-read"];
const CALL: usize = 1 << 20;
const PAGE: usize = 4096;
const DEPTH: usize = 32;
/// Requests of 1 MiB in flight in the raw sequential rows.
const RAW_DEPTH: usize = 8;
/// Written and deleted before the sequential rows, so that no subject pays for memory that nobody has touched before.
const WARM_UP: u64 = 512 << 20;
const UNIT: &str = "MB/s";

struct Sequential {
    bytes: u64,
    cache: Option<usize>,
}

impl Workload for Sequential {
    fn run<S: Subject>(&self, s: &S, log: &mut Log<'_>) -> Result<()> {
        let mut data = Random(5).bytes(CALL);
        s.mkdir("d")?;
        let name = Name::new("d", b'f');
        let file = s.open(&name, How::New)?;
        for offset in offsets(self.bytes.min(WARM_UP)) {
            s.write_at(&file, &data, offset)?;
        }
        s.close(file)?;
        s.unlink(&name)?;
        let file = s.open(&name, How::New)?;
        s.sync()?;
        let stamp = Stamp::now(s.device());
        for offset in offsets(self.bytes) {
            s.write_at(&file, &data, offset)?;
            stop::check()?;
        }
        s.fsync(&file)?;
        let mut sample = stamp.rate(self.bytes, s.device());
        sample.value /= 1e6;
        log.add("seq-write", UNIT, sample);
        s.close(file)?;

        s.drop_caches()?;
        let file = s.open(&name, How::Read)?;
        let stamp = Stamp::now(s.device());
        for offset in offsets(self.bytes) {
            s.read_at(&file, &mut data, offset)?;
            stop::check()?;
        }
        let mut sample = stamp.rate(self.bytes, s.device());
        sample.value /= 1e6;
        log.add("seq-read", UNIT, sample);
        s.close(file)?;
        ensure!(data == Random(5).bytes(CALL), "read something else than was written");
        Ok(())
    }

    fn cache(&self) -> Option<usize> {
        self.cache
    }
}

fn offsets(bytes: u64) -> impl Iterator<Item = u64> {
    (0..bytes / CALL as u64).map(|i| i * CALL as u64)
}

/// Offsets of random reads, the same for everybody.
fn random(bytes: u64, n: u32) -> impl Iterator<Item = u64> {
    let mut random = Random(9);
    (0..n).map(move |_| random.draw() % (bytes / PAGE as u64) * PAGE as u64)
}

/// Sequential reads through the library that lend the memory of the page cache instead of copying it.
fn seq_read_lent(ours: &Ours, bytes: u64) -> Result<super::sample::Sample> {
    ours.drop_caches()?;
    let file = ours.open(&Name::new("d", b'f'), How::Read)?;
    let expected = Random(5).bytes(CALL);
    let stamp = Stamp::now(ours.device());
    for offset in offsets(bytes) {
        let pages = file.read_pages_at(CALL, offset)?;
        ensure!(pages.len() == CALL, "read {} of {CALL} bytes at {offset}", pages.len());
        ensure!(pages.slices().next().map(|s| s[0]) == Some(expected[0]), "read something else at {offset}");
        stop::check()?;
    }
    let mut sample = stamp.rate(bytes, ours.device());
    sample.value /= 1e6;
    ours.close_file(file)?;
    Ok(sample)
}

/// Random reads through the library: one thread, async calls, the page cache as it is.
fn rand_read_ours(ours: &Ours, bytes: u64, n: u32) -> Result<super::sample::Sample> {
    ours.drop_caches()?;
    let file = ours.open(&Name::new("d", b'f'), How::Read)?;
    let places: Vec<u64> = random(bytes, n).collect();
    let next = Cell::new(0);
    let stamp = Stamp::now(ours.device());
    join_all((0..DEPTH).map(|_| one_reader(&file, &places, &next)).collect())?;
    let sample = stamp.rate(n as u64, ours.device());
    ours.close_file(file)?;
    Ok(sample)
}

async fn one_reader(file: &fs::File<block::Volume>, places: &[u64], next: &Cell<usize>) -> Result<()> {
    let mut page = [0; PAGE];
    while let Some(&offset) = places.get(next.replace(next.get() + 1)) {
        let got = file.read_at(&mut page, offset).await?;
        ensure!(got == PAGE, "read {got} of {PAGE} bytes at {offset}");
        stop::check()?;
    }
    Ok(())
}

impl Ours {
    fn close_file(&self, file: <Ours as Subject>::File) -> Result<()> {
        Subject::close(self, file)
    }
}

/// The three rows by io_uring on a file that is allocated and written before.
fn raw_rows(bench: &mut Bench, kind: Kind, path: &Path) -> Result<()> {
    let (bytes, reads) = (bench.scale.sequential, bench.scale.reads);
    let mut log = Log { results: &mut bench.results, kind, prefix: "" };
    let mut raw = Raw::open(path, CALL, RAW_DEPTH)?;
    if kind == Kind::Ext4Direct {
        raw.allocate(bytes)?;
    }
    let stamp = Stamp::now(None);
    raw.run(true, offsets(bytes))?;
    raw.flush()?;
    let mut sample = stamp.rate(bytes, None);
    sample.value /= 1e6;
    log.add("seq-write", UNIT, sample);
    let stamp = Stamp::now(None);
    raw.run(false, offsets(bytes))?;
    let mut sample = stamp.rate(bytes, None);
    sample.value /= 1e6;
    log.add("seq-read", UNIT, sample.clone());
    log.add("seq-read-lent", UNIT, sample);
    let mut raw = Raw::open(path, PAGE, DEPTH)?;
    let stamp = Stamp::now(None);
    raw.run(false, random(bytes, reads))?;
    log.add("rand-read", "reads/s", stamp.rate(reads as u64, None));
    stop::check()
}

fn ours_rows(bench: &mut Bench, kind: Kind) -> Result<()> {
    let scale = bench.scale.clone();
    let workload = Sequential { bytes: scale.sequential, cache: scale.cache };
    let (ours, device) = match kind {
        Kind::Freehold => (bench.lab.freehold(scale.cache)?, None),
        _ => {
            let (ours, device) = bench.lab.freehold_on_loop(scale.cache)?;
            (ours, Some(device))
        }
    };
    workload.run(&ours, &mut Log { results: &mut bench.results, kind, prefix: "" })?;
    bench.results.add("seq-read-lent", UNIT, kind, seq_read_lent(&ours, scale.sequential)?);
    let sample = rand_read_ours(&ours, scale.sequential, scale.reads)?;
    bench.results.add("rand-read", "reads/s", kind, sample);
    ours.close()?;
    drop(device);
    Ok(())
}

fn one(bench: &mut Bench, kind: Kind) -> Result<()> {
    match kind {
        Kind::Freehold | Kind::FreeholdLoop => ours_rows(bench, kind),
        Kind::Raw => {
            let path = bench.lab.image(Kind::Raw)?;
            raw_rows(bench, kind, &path)
        }
        Kind::Ext4Direct => {
            let mounted = bench.lab.peer(Kind::Ext4Direct)?;
            raw_rows(bench, kind, &mounted.dir.join("raw")).context("io_uring on ext4")
        }
        _ => {
            let workload = Sequential { bytes: bench.scale.sequential, cache: None };
            let mounted = bench.lab.peer(kind)?;
            workload.run(&mounted.sys, &mut Log { results: &mut bench.results, kind, prefix: "" })
        }
    }
}

/// Measures the rows.
pub fn measure(bench: &mut Bench) -> Result<()> {
    if !bench.wants(ROWS) {
        return Ok(());
    }
    let goal = Some(Goal::AtLeast(Kind::Raw, 0.95));
    let raw = format!("raw: 1 MiB at depth {RAW_DEPTH}, O_DIRECT");
    let write = format!(
        "1 MiB calls to a new file, final fsync included; {raw}, fdatasync, overwriting a written file"
    );
    let read = format!("1 MiB calls, all caches dropped; {raw}");
    bench.describe("seq-write", UNIT, goal, &write);
    bench.describe("seq-read", UNIT, goal, &read);
    let lent = format!("1 MiB calls that lend pages of the cache instead of copying, caches dropped; {raw}");
    bench.describe("seq-read-lent", UNIT, goal, &lent);
    let note = format!(
        "4 KiB at depth {DEPTH} from one thread, file of {} times the page cache, caches dropped before",
        bench.scale.sequential / bench.scale.cache.unwrap_or(256 << 20).max(1) as u64
    );
    bench.describe("rand-read", "reads/s", goal, &note);
    let mut kinds = bench.subjects(true);
    kinds.push(Kind::Raw);
    if kinds.contains(&Kind::Ext4) {
        kinds.push(Kind::Ext4Direct);
    }
    for repetition in 0..bench.scale.repeat as usize {
        for i in 0..kinds.len() {
            let kind = kinds[(i + repetition) % kinds.len()];
            let done = one(bench, kind);
            bench.note(kind, done)?;
        }
    }
    Ok(())
}
