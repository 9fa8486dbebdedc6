//! Rows through a FUSE mount: Freehold's, beside libfuse's passthrough over ext4, and ext4 itself.
//!
//! The passthrough is what FUSE costs without a file system of one's own: passthrough_ll of libfuse, compiled from the source
//! that Debian's libfuse3-dev installs, run with `cache=always` (the kernel keeps names, attributes and pages, as it does for
//! Freehold's mount).

use super::driver::{Bench, Log, Workload};
use super::lab::{MountGuard, Mounted, available, find, run};
use super::meta::make;
use super::mount::idle_cpu;
use super::sample::{Goal, Kind};
use super::stop;
use super::subject::{How, Name, Random, Subject};
use super::sys::Sys;
use anyhow::{Context, Result, bail, ensure};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The rows of this file; `fuse` selects them.
pub const ROWS: &[&str] = &["fuse"];
const SOURCE: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";
const CALL: usize = 1 << 20;
const PAGE: usize = 4096;

struct Fuse {
    files: u32,
    bytes: u64,
    calls: u32,
}

impl Workload for Fuse {
    fn run<S: Subject>(&self, s: &S, log: &mut Log<'_>) -> Result<()> {
        let (files, ops) = (self.files, self.files as u64);
        log.prefix = "fuse-";
        s.mkdir("d")?;
        log.rate(s, "create", "files/s", ops, || make(s, "d", 0..files))?;
        let order = Random(1).order(files);
        let mut name = Name::new("d", b'f');
        let mut stat_all = || {
            for &n in &order {
                ensure!(s.stat(name.set(n))? == 0, "an empty file has a size");
            }
            stop::check()
        };
        log.rate(s, "stat", "stats/s", ops, &mut stat_all)?;
        s.drop_caches()?;
        log.rate(s, "stat-cold", "stats/s", ops, &mut stat_all)?;
        log.rate(s, "readdir", "entries/s", ops, || {
            let (n, _) = s.list("d")?;
            ensure!(n == ops, "{n} entries, expected {ops}");
            Ok(())
        })?;
        log.rate(s, "unlink", "files/s", ops, || {
            for n in 0..files {
                s.unlink(name.set(n))?;
            }
            stop::check()
        })?;
        self.data(s, log)
    }
}

impl Fuse {
    fn data<S: Subject>(&self, s: &S, log: &mut Log<'_>) -> Result<()> {
        let (bytes, calls) = (self.bytes, self.calls as u64);
        let mut data = Random(5).bytes(CALL);
        let name = Name::new("d", b'x');
        let file = s.open(&name, How::New)?;
        let megabytes = |mut sample: super::sample::Sample| {
            sample.value /= 1e6;
            sample
        };
        let stamp = super::sample::Stamp::now(s.device());
        for i in 0..bytes / CALL as u64 {
            s.write_at(&file, &data, i * CALL as u64)?;
            stop::check()?;
        }
        s.fsync(&file)?;
        log.add("seq-write", "MB/s", megabytes(stamp.rate(bytes, s.device())));
        s.close(file)?;
        s.drop_caches()?;
        let file = s.open(&name, How::Write)?;
        let stamp = super::sample::Stamp::now(s.device());
        for i in 0..bytes / CALL as u64 {
            s.read_at(&file, &mut data, i * CALL as u64)?;
            stop::check()?;
        }
        log.add("seq-read", "MB/s", megabytes(stamp.rate(bytes, s.device())));
        let places = |seed| {
            let mut random = Random(seed);
            (0..calls).map(move |_| random.draw() % (bytes / PAGE as u64) * PAGE as u64)
        };
        log.rate(s, "pwrite-4k", "ops/s", calls, || {
            places(2).try_for_each(|at| s.write_at(&file, &data[..PAGE], at))
        })?;
        s.fsync(&file)?;
        log.rate(s, "pread-4k", "ops/s", calls, || {
            places(2).try_for_each(|at| s.read_at(&file, &mut data[..PAGE], at))
        })?;
        s.close(file)
    }
}

/// A passthrough that serves a directory. Unmounted and ended when dropped.
struct Passthrough {
    mount: Option<MountGuard>,
    child: Child,
}

impl Passthrough {
    fn start(program: &Path, source: &Path, at: &Path) -> Result<Passthrough> {
        let before = std::fs::metadata(at)?.dev();
        let child = Command::new(program)
            .args(["-f", "-o", &format!("source={},cache=always", source.display())])
            .arg(at)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // An interruption from the terminal is ours to handle: we unmount, then it ends.
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let mut served = Passthrough { mount: None, child };
        for _ in 0..100 {
            if std::fs::metadata(at)?.dev() != before {
                served.mount = Some(MountGuard { dir: at.to_path_buf() });
                return Ok(served);
            }
            if let Some(status) = served.child.try_wait()? {
                bail!("{} ended: {status}", program.display());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("{} did not mount within 5 s", program.display())
    }
}

impl Drop for Passthrough {
    fn drop(&mut self) {
        drop(self.mount.take());
        for _ in 0..100 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The passthrough's binary: the one given, or compiled in the directory of the run.
fn passthrough_binary(bench: &Bench) -> Result<PathBuf> {
    if let Some(given) = &bench.passthrough {
        return Ok(given.clone());
    }
    available(Kind::Passthrough)?;
    if !Path::new(SOURCE).exists() {
        bail!("{SOURCE} is not there: install libfuse3-dev, or give --passthrough FILE");
    }
    find("pkg-config")?;
    let binary = bench.lab.scratch_file("passthrough_ll");
    let flags = run("pkg-config", &["--cflags", "--libs", "fuse3"])?;
    let to = binary.to_string_lossy().into_owned();
    let mut args = vec!["-O2", "-w", "-o", &to, SOURCE];
    args.extend(flags.split_whitespace());
    run("cc", &args).context("compiling the passthrough")?;
    Ok(binary)
}

/// The passthrough keeps a descriptor for each inode that the kernel knows: asks for `n` of them, and says how many it may
/// have.
fn descriptors(n: u64) -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(n);
    // Only some may raise the hard limit; all may go up to it.
    for wanted in [n, n.min(most)] {
        let raised = Rlimit { current: Some(wanted), maximum: limit.maximum.map(|m| m.max(wanted)) };
        if limit.current.is_none_or(|l| l >= wanted) || setrlimit(Resource::Nofile, raised).is_ok() {
            return wanted;
        }
    }
    limit.current.unwrap_or(n)
}

fn one(bench: &mut Bench, kind: Kind, binary: Option<&Path>, workload: &Fuse) -> Result<()> {
    match kind {
        Kind::Fuse => {
            let ours = bench.lab.freehold(None)?;
            let dir = bench.lab.mountpoint("freehold.mnt")?;
            let volume = Arc::new(ours.volume.clone());
            let options = fuse::MountOptions { subtype: "freehold-bench".into(), ..Default::default() };
            let mount = fuse::mount(volume, &dir, options).context("mounting")?;
            let server = ours.volume.clone();
            let sys =
                Sys::new(&dir, None)?.with_server(Box::new(move || Ok(fs::block_on(server.drop_caches())?)));
            workload.run(&sys, &mut Log { results: &mut bench.results, kind, prefix: "" })?;
            ours.sync()?;
            let idle = idle_cpu(&bench.scale)?;
            let row = bench.results.row("fuse-idle-cpu", "% of a core");
            row.samples.entry(kind).or_default().push(idle);
            drop(sys);
            drop(mount);
            ours.close()
        }
        Kind::Passthrough => {
            let mounted: Mounted = bench.lab.peer(Kind::Ext4)?;
            let dir = bench.lab.mountpoint("passthrough.mnt")?;
            let source = mounted.dir.join("source");
            std::fs::create_dir(&source)?;
            let served = Passthrough::start(binary.context("no passthrough")?, &source, &dir)?;
            let sys = Sys::new(&dir, None)?;
            let done = workload.run(&sys, &mut Log { results: &mut bench.results, kind, prefix: "" });
            drop(sys);
            drop(served);
            done
        }
        _ => {
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
    if let Err(e) = available(Kind::Fuse) {
        bench.results.skip(format!("FUSE rows: {e:#}"));
        return Ok(());
    }
    let mut scale = bench.scale.clone();
    let mut kinds = vec![Kind::Fuse];
    let mut binary = None;
    if bench.peers.contains(&Kind::Ext4) {
        match passthrough_binary(bench) {
            Ok(found) => {
                const OTHERS: u64 = 1024;
                let may = descriptors(scale.fuse_files as u64 + OTHERS).saturating_sub(OTHERS).max(1);
                scale.fuse_files = scale.fuse_files.min(may as u32);
                binary = Some(found);
                kinds.push(Kind::Passthrough);
            }
            Err(e) => bench.results.skip(format!("passthrough: {e:#}")),
        }
        kinds.push(Kind::Ext4);
    }
    let bytes = scale.sequential.min(1 << 30);
    let workload = Fuse { files: scale.fuse_files, bytes, calls: scale.syncs.max(100) * 10 };
    let rows = [
        ("create", "files/s", format!("{} empty files, one directory", scale.fuse_files)),
        ("stat", "stats/s", "by path, random order, warm: the kernel answers".into()),
        ("stat-cold", "stats/s", "the same after dropping all caches: the server answers".into()),
        ("readdir", "entries/s", "raw getdents64 of the whole directory".into()),
        ("unlink", "files/s", "in order of creation".into()),
        ("seq-write", "MB/s", format!("{} MiB in 1 MiB calls, final fsync included", bytes >> 20)),
        ("seq-read", "MB/s", "1 MiB calls, all caches dropped".into()),
        ("pwrite-4k", "ops/s", "random overwrites of the file just read, not synced".into()),
        (
            "pread-4k",
            "ops/s",
            "the same places, just written; libfuse has the kernel drop the pages of a file that changed"
                .into(),
        ),
    ];
    for (name, unit, note) in rows {
        let goal = Some(Goal::AtLeast(Kind::Passthrough, 0.5));
        bench.describe(&format!("fuse-{name}"), unit, goal, &note).subject = Kind::Fuse;
    }
    let note = "mounted, nobody uses it";
    bench.describe("fuse-idle-cpu", "% of a core", Some(Goal::Max(1.0)), note).subject = Kind::Fuse;
    for repetition in 0..scale.repeat as usize {
        for i in 0..kinds.len() {
            let kind = kinds[(i + repetition) % kinds.len()];
            let done = one(bench, kind, binary.as_deref(), &workload);
            bench.note(kind, done)?;
        }
    }
    Ok(())
}
