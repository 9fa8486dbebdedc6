//! Rows about a whole volume: memory for each file, mount after a clean stop and after a crash, processor time when idle.
//!
//! Memory and crashes need a process of their own: this program starts itself as `bench --child JOB`. The crash is a SIGKILL
//! after a sync; the kernel below lives on, so what is measured is recovery's time, not what a power failure would leave.

use super::driver::{Bench, Scale};
use super::meta::make;
use super::ours::{self, Ours};
use super::raw::Raw;
use super::sample::{Goal, Kind, Sample, Stamp, process_cpu};
use super::stop;
use super::subject::{Name, Subject};
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The rows of this file.
pub const ROWS: &[&str] = &["memory-per-file", "mount-clean", "mount-crash", "idle-cpu"];

/// What a child does.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Job {
    image: PathBuf,
    files: u32,
    /// Wait to be killed, instead of stopping the volume.
    wait: bool,
}

/// What a child saw: resident memory, bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Seen {
    /// With the volume open.
    opened: u64,
    /// When the files were made.
    made: u64,
    /// When everything was synced and written home.
    settled: u64,
}

/// The child's side.
pub fn child(job: &str) -> Result<()> {
    let job: Job = serde_json::from_str(job).context("--child is for this program's own use")?;
    let ours = Ours::open(&job.image, None)?;
    ours.mkdir("d")?;
    ours.sync()?;
    let opened = resident()?;
    make(&ours, "d", 0..job.files)?;
    let made = resident()?;
    ours.sync()?;
    if job.wait {
        say("synced")?;
        // Ends by SIGKILL, or with the parent, whose end closes this pipe.
        let _ = std::io::stdin().read(&mut [0]);
        bail!("the parent went away");
    }
    fs::block_on(ours.volume.checkpoint())?;
    let seen = Seen { opened, made, settled: resident()? };
    say(&serde_json::to_string(&seen)?)?;
    ours.close()
}

fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

/// VmRSS of this process, bytes.
fn resident() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find(|l| l.starts_with("VmRSS:")).context("no VmRSS")?;
    let kib: u64 = line.split_whitespace().nth(1).unwrap_or_default().parse()?;
    Ok(kib << 10)
}

/// A child process; killed when dropped.
struct Running(Child);

impl Running {
    fn start(program: &Path, job: &Job) -> Result<Running> {
        let child = Command::new(program)
            .args(["bench", "--child", &serde_json::to_string(job)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        Ok(Running(child))
    }

    fn line(&mut self) -> Result<String> {
        let out = self.0.stdout.as_mut().context("no output")?;
        let mut line = String::new();
        ensure!(BufReader::new(out).read_line(&mut line)? > 0, "the child ended without an answer");
        Ok(line)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn memory(bench: &mut Bench, program: &Path) -> Result<()> {
    let image = bench.lab.image(Kind::Freehold)?;
    ours::mkfs(&image)?;
    let files = bench.scale.files;
    let stamp = Stamp::now(None);
    let mut child = Running::start(program, &Job { image: image.clone(), files, wait: false })?;
    let seen: Seen = serde_json::from_str(&child.line()?)?;
    ensure!(child.0.wait()?.success(), "the child failed");
    let bytes = seen.settled.saturating_sub(seen.opened) as f64 / files as f64;
    let sample = Sample { value: bytes, ..stamp.rate(files as u64, None) };
    bench.results.add("memory-per-file", "bytes", Kind::Freehold, sample);

    // The child stopped the volume cleanly.
    let stamp = Stamp::now(None);
    let ours = Ours::open(&image, None)?;
    let mut sample = stamp.rate(files as u64, None);
    sample.value = sample.seconds;
    ours.stat(Name::new("d", b'f').set(files - 1))?;
    sample.device = ours.device();
    bench.results.add("mount-clean", "s", Kind::Freehold, sample);
    ours.close()
}

fn crash(bench: &mut Bench, program: &Path, raw_first: bool) -> Result<()> {
    let image = bench.lab.image(Kind::Freehold)?;
    ours::mkfs(&image)?;
    let files = bench.scale.files;
    let mut child = Running::start(program, &Job { image: image.clone(), files, wait: true })?;
    ensure!(child.line()?.trim() == "synced", "the child did not get as far as its sync");
    drop(child);
    wait_until_free(&image)?;
    if raw_first {
        read_segments(bench, &image)?;
    }
    let stamp = Stamp::now(None);
    let ours = Ours::open(&image, None)?;
    let mut sample = stamp.rate(files as u64, None);
    sample.value = sample.seconds;
    sample.device = ours.device();
    bench.results.add("mount-crash", "s", Kind::Freehold, sample);
    let (found, _) = ours.list("d")?;
    ensure!(found == files as u64, "{found} of {files} files are there after the crash");
    ours.close()?;
    if !raw_first {
        read_segments(bench, &image)?;
    }
    Ok(())
}

/// Waits until nobody has the image locked. The kernel lets go of what an io_uring held a moment after its process is gone.
fn wait_until_free(image: &Path) -> Result<()> {
    let file = std::fs::File::open(image)?;
    for _ in 0..1000 {
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(10)),
            Err(e) => return Err(e.into()),
        }
        stop::check()?;
    }
    bail!("{} stays locked although its process was killed", image.display())
}

/// Reads as much as the inode segments hold (512 inodes in 2 MiB), from where they usually begin.
fn read_segments(bench: &mut Bench, image: &Path) -> Result<()> {
    const BLOCK: u64 = 512 << 10;
    let bytes = (bench.scale.files as u64 + 1).div_ceil(512) * (2 << 20);
    let start = (bench.lab.size / 64).clamp(8 << 20, 256 << 20) + (2 << 20);
    let bytes = bytes.min((bench.lab.size - start) / BLOCK * BLOCK);
    let mut raw = Raw::open(image, BLOCK as usize, 64)?;
    let stamp = Stamp::now(None);
    raw.run(false, (0..bytes / BLOCK).map(|i| start + i * BLOCK))?;
    let mut sample = stamp.rate(bytes, None);
    sample.value = sample.seconds;
    bench.results.add("mount-crash", "s", Kind::Raw, sample);
    stop::check()
}

fn idle(bench: &mut Bench) -> Result<()> {
    let ours = bench.lab.freehold(None)?;
    ours.mkdir("d")?;
    make(&ours, "d", 0..bench.scale.files.min(1000))?;
    ours.sync()?;
    let sample = idle_cpu(&bench.scale)?;
    bench.results.add("idle-cpu", "% of a core", Kind::Freehold, sample);
    ours.close()
}

/// Processor time of this process while it does nothing. Waits first, for what is done in the background.
pub fn idle_cpu(scale: &Scale) -> Result<Sample> {
    let nap = |seconds: f64| {
        let start = std::time::Instant::now();
        while start.elapsed().as_secs_f64() < seconds {
            stop::check()?;
            std::thread::sleep(Duration::from_secs_f64(seconds.min(0.5)));
        }
        anyhow::Ok(())
    };
    nap(scale.idle.min(1.0))?;
    let (stamp, cpu) = (Stamp::now(None), process_cpu());
    nap(scale.idle)?;
    let spent = process_cpu() - cpu;
    let mut sample = stamp.rate(0, None);
    sample.value = spent / sample.seconds * 100.0;
    Ok(sample)
}

/// Measures the rows.
pub fn measure(bench: &mut Bench) -> Result<()> {
    if !bench.wants(ROWS) {
        return Ok(());
    }
    let files = bench.scale.files;
    let children = bench.wants(&["memory-per-file", "mount-clean", "mount-crash"]);
    match bench.program.clone() {
        Some(program) if children => {
            let few =
                (files < 1_000_000).then(|| format!("the goal is for 1000000 files, these are {files}"));
            let note = format!("{files} empty files; growth of VmRSS in a child, after sync and checkpoint");
            bench.describe("memory-per-file", "bytes", Some(Goal::Max(400.0)), &note).unjudged =
                few.clone().filter(|_| files < 100_000);
            let note =
                format!("{files} empty files; O_DIRECT, so nothing is cached; until the volume can be used");
            bench.describe("mount-clean", "s", Some(Goal::Max(1.0)), &note).unjudged = few.clone();
            let note = format!(
                "{files} empty files, child killed after sync; raw: reading as many bytes as the inode segments have, \
                 512 KiB at depth 64, O_DIRECT"
            );
            bench.describe("mount-crash", "s", Some(Goal::AtMost(Kind::Raw, 1.3)), &note).unjudged = few;
            for repetition in 0..bench.scale.repeat {
                let done = memory(bench, &program);
                bench.note(Kind::Freehold, done)?;
                let done = crash(bench, &program, repetition % 2 == 1);
                bench.note(Kind::Freehold, done)?;
            }
        }
        None if children => bench.results.skip("memory and mount rows: no program to start children from"),
        _ => {}
    }
    if bench.wants(&["idle-cpu"]) {
        let note = format!("open volume, nobody uses it, {} s", bench.scale.idle);
        bench.describe("idle-cpu", "% of a core", Some(Goal::Max(1.0)), &note);
        let done = idle(bench);
        bench.note(Kind::Freehold, done)?;
    }
    Ok(())
}
