//! Rows of ordinary programs in processes of their own: on a volume through `freehold run`, and on ext4 and XFS.
//!
//! The programs are `freehold-calls` (calls of one kind after the other) and `freehold-workload` (Filebench's personalities), which know nothing
//! of Freehold and stand beside this program; and `dd` ([`first_read`]). The volume is served by a process of its own, so with two busy programs there are three busy
//! processes.

use super::driver::Bench;
use super::exchange;
use super::first_read;
use super::lab::MountGuard;
use super::ours;
use super::sample::{Goal, Kind, Sample};
use super::stop;
use crate::sessions;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The rows of this file: `run` for calls, `filebench` for the personalities.
pub const ROWS: &[&str] = &["run", "filebench"];

const CALLS: &str = "freehold-calls";
const WORKLOAD: &str = "freehold-workload";

/// How the programs of `run` are started, and what is asked of them.
struct Case {
    prefix: &'static str,
    processes: u32,
    shared: bool,
    note: &'static str,
    /// Kinds of calls, and how many times ext4's rate is asked for.
    kinds: &'static [(&'static str, f64)],
}

const CASES: &[Case] = &[
    Case {
        prefix: "run1",
        processes: 1,
        shared: false,
        note: "one process",
        kinds: &[
            ("create", 5.0),
            ("stat", 4.0),
            ("open-close", 2.0),
            ("pread-4k", 3.0),
            ("pwrite-4k", 2.0),
            ("small-write", 4.0),
            ("unlink", 4.0),
        ],
    },
    Case {
        prefix: "run2",
        processes: 2,
        shared: false,
        note: "two processes at once, each in a directory of its own",
        kinds: &[
            ("create", 3.0),
            ("stat", 1.0),
            ("open-close", 1.0),
            ("pread-4k", 1.0),
            ("pwrite-4k", 1.0),
            ("small-write", 1.0),
            ("unlink", 3.0),
        ],
    },
    Case {
        prefix: "grow1",
        processes: 1,
        shared: false,
        note: "one process adds to a file whose end it looks for each time",
        kinds: &[("extend-8k", 1.0), ("extend-over-8k", 1.0)],
    },
    Case {
        prefix: "data2",
        processes: 2,
        shared: false,
        note: "two processes read at random places of one file of 512 MiB that each has read twice",
        kinds: &[("rand-4k", 1.0), ("rand-64k", 1.0)],
    },
    Case {
        prefix: "run8",
        processes: 8,
        shared: true,
        note: "eight processes in one directory",
        kinds: &[("create", 1.0)],
    },
];

const PERSONALITIES: &[(&str, f64)] =
    &[("fileserver", 2.0), ("varmail", 5.0), ("webserver", 2.0), ("webproxy", 2.0)];
/// The personality that syncs, once more with `-o ordered`, and how many times the rate of ext4, which syncs, is asked for.
const ORDERED: (&str, f64) = ("varmail", 10.0);

/// A volume served by a process of its own. Unmounted and ended when dropped.
pub(super) struct Served {
    mount: Option<MountGuard>,
    child: Child,
    dir: PathBuf,
}

impl Served {
    /// Serves the volume that is in `image`.
    pub fn start(program: &Path, image: &Path, dir: PathBuf, options: &str) -> Result<Served> {
        let before = std::fs::metadata(&dir)?.dev();
        let child = Command::new(program)
            .arg("mount")
            .args([image, &dir])
            .args(["--foreground", "-o", options])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // An interruption from the terminal is ours to handle: we unmount, then it ends.
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let mut served = Served { mount: None, child, dir };
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(20) {
            if std::fs::metadata(&served.dir)?.dev() != before {
                served.mount.get_or_insert_with(|| MountGuard { dir: served.dir.clone() });
                // It is mounted a moment before it offers sessions.
                if served.offers_sessions()? {
                    return Ok(served);
                }
            }
            if let Some(status) = served.child.try_wait()? {
                bail!("the server ended: {status}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("not served within 20 s")
    }

    fn offers_sessions(&self) -> Result<bool> {
        let point = std::fs::canonicalize(&self.dir)?;
        let offers = sessions::list().context("the table of mounts")?;
        Ok(offers.iter().any(|o| o.point == point && matches!(o.reach, sessions::Reach::Session(_))))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.mount.take());
        for _ in 0..500 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program to its end and returns what it printed, which is JSON.
fn output(mut command: Command, name: &str) -> Result<Value> {
    let out = command.stdin(Stdio::null()).output().with_context(|| format!("starting {name}"))?;
    stop::check()?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "{name}: {} ({})", said.trim(), out.status);
    serde_json::from_slice(&out.stdout).with_context(|| format!("{name} printed no JSON"))
}

/// Whether the programs work on as much as the rows are meant for.
pub(super) fn is_full(bench: &Bench) -> bool {
    bench.scale.files >= 500_000
}

/// A sample of which only the rate and the time are known, and what was measured before.
pub(super) fn sample(value: f64, seconds: f64, ops: u64, line_round_trip: Option<f64>) -> Sample {
    Sample { value, seconds, ops, line_round_trip, ..Sample::default() }
}

/// Where a program runs.
pub(super) struct Place<'a> {
    pub kind: Kind,
    pub dir: &'a Path,
    /// `freehold`, when the program runs under it.
    pub under: Option<&'a Path>,
}

impl Place<'_> {
    pub fn command(&self, program: &Path) -> Command {
        match self.under {
            None => Command::new(program),
            Some(freehold) => {
                let mut command = Command::new(freehold);
                command.args(["run", "--"]).arg(program);
                command
            }
        }
    }
}

fn calls(bench: &mut Bench, place: &Place<'_>, program: &Path) -> Result<()> {
    let (files, calls) = ((bench.scale.files / 20).max(50), (bench.scale.files / 5).max(200));
    let data = if is_full(bench) { "512" } else { "4" };
    for case in CASES {
        let mut command = place.command(program);
        command.arg("--json").arg("--dir").arg(place.dir);
        command.args(["--processes", &case.processes.to_string(), "--data", data]);
        command.args(["--files", &(files / case.processes).to_string(), "--calls", &calls.to_string()]);
        if case.shared {
            command.arg("--shared");
        }
        command.args(["--only", &case.kinds.iter().map(|k| k.0).collect::<Vec<_>>().join(",")]);
        let apart = exchange::round_trip();
        let rows = output(command, CALLS)?;
        for row in rows.as_array().context("no rows")? {
            let number = |name: &str| row[name].as_f64().with_context(|| format!("no {name}"));
            let found = sample(number("per_second")?, number("seconds")?, number("calls")? as u64, apart);
            let kind = row["kind"].as_str().unwrap_or("?");
            if !case.kinds.iter().any(|asked| asked.0 == kind) {
                // Files are made in any case.
                continue;
            }
            let name = format!("{}-{kind}", case.prefix);
            bench.results.add(&name, "calls/s", place.kind, found);
        }
    }
    Ok(())
}

fn personalities(bench: &mut Bench, place: &Place<'_>, program: &Path) -> Result<()> {
    for (name, _) in PERSONALITIES {
        let found = personality(bench, place, program, name)?;
        if *name == ORDERED.0 && place.under.is_none() {
            bench.results.add(&ordered_row(), "ops/s", place.kind, found.clone());
        }
        bench.results.add(&format!("filebench-{name}"), "ops/s", place.kind, found);
    }
    Ok(())
}

fn ordered_row() -> String {
    format!("filebench-{}-ordered", ORDERED.0)
}

fn personality(bench: &Bench, place: &Place<'_>, program: &Path, name: &str) -> Result<Sample> {
    let (scale, seconds) = if is_full(bench) { ("0.2", "10") } else { ("0.002", "0.3") };
    let dir = place.dir.join(name);
    std::fs::create_dir(&dir)?;
    let mut command = place.command(program);
    command.arg(name).arg("--dir").arg(&dir);
    command.args(["--json", "-", "--processes", "2", "--scale", scale, "--seconds", seconds]);
    let apart = exchange::round_trip();
    let report = output(command, name)?;
    let all = report["all"]["ops_per_s"].as_f64().context("no rate")?;
    let seconds = report["seconds"].as_f64().context("no time")?;
    ensure!(report["error_count"] == 0, "{name}: {}", report["errors"]);
    Ok(sample(all, seconds, 0, apart))
}

/// Measures the rows.
pub fn measure(bench: &mut Bench) -> Result<()> {
    if !bench.wants(ROWS) {
        return Ok(());
    }
    let Some(freehold) = bench.program.clone() else { return Ok(()) };
    if let Err(e) = super::lab::available(Kind::Fuse) {
        bench.results.skip(format!("rows of programs: {e:#}"));
        return Ok(());
    }
    let beside = |name: &str| freehold.with_file_name(name);
    let missing = [CALLS, WORKLOAD, "libfreehold_preload.so"].into_iter().find(|n| !beside(n).is_file());
    if let Some(name) = missing {
        bench.results.skip(format!("rows of programs: {name} is not beside {}", freehold.display()));
        return Ok(());
    }
    let wants = |name: &str| bench.wants(&[name]);
    let (wants_calls, wants_personalities) = (wants("run"), wants("filebench"));
    for case in CASES.iter().filter(|_| wants_calls) {
        for (kind, times) in case.kinds {
            let goal = Some(Goal::AtLeast(Kind::Ext4, *times));
            bench.describe(&format!("{}-{kind}", case.prefix), "calls/s", goal, case.note).subject =
                Kind::Run;
        }
    }
    if wants_calls {
        first_read::describe(bench);
    }
    for (name, times) in PERSONALITIES.iter().filter(|_| wants_personalities) {
        let goal = Some(Goal::AtLeast(Kind::Ext4, *times));
        let note = "two processes with the threads of Filebench, a fifth of its files";
        bench.describe(&format!("filebench-{name}"), "ops/s", goal, note).subject = Kind::Run;
    }
    if wants_personalities {
        let goal = Some(Goal::AtLeast(Kind::Ext4, ORDERED.1));
        let note =
            "the same on a volume with -o ordered: fsync gives order; the others sync, as in the row before";
        bench.describe(&ordered_row(), "ops/s", goal, note).subject = Kind::Run;
    }
    let mut kinds = vec![Kind::Run];
    kinds.extend(bench.mounted_peers());
    for repetition in 0..bench.scale.repeat as usize {
        for i in 0..kinds.len() {
            let kind = kinds[(i + repetition) % kinds.len()];
            let done = one(bench, kind, &freehold, wants_calls, wants_personalities);
            bench.note(kind, done)?;
        }
    }
    Ok(())
}

fn one(
    bench: &mut Bench,
    kind: Kind,
    freehold: &Path,
    calls_too: bool,
    personalities_too: bool,
) -> Result<()> {
    let both = |bench: &mut Bench, place: &Place<'_>| -> Result<()> {
        if calls_too {
            calls(bench, place, &freehold.with_file_name(CALLS))?;
        }
        if personalities_too {
            personalities(bench, place, &freehold.with_file_name(WORKLOAD))?;
        }
        Ok(())
    };
    if kind == Kind::Run {
        let (image, dir) = (bench.lab.image(Kind::Freehold)?, bench.lab.mountpoint("run.mnt")?);
        ours::mkfs(&image)?;
        let served = Served::start(freehold, &image, dir.clone(), "allow_other")?;
        both(bench, &Place { kind, dir: &served.dir, under: Some(freehold) })?;
        drop(served);
        if calls_too {
            first_read::ours(bench, freehold, &image, &dir)?;
        }
        if personalities_too {
            ours::mkfs(&image)?;
            let served = Served::start(freehold, &image, dir, "allow_other,ordered")?;
            let place = Place { kind, dir: &served.dir, under: Some(freehold) };
            let found = personality(bench, &place, &freehold.with_file_name(WORKLOAD), ORDERED.0)?;
            bench.results.add(&ordered_row(), "ops/s", kind, found);
        }
        return Ok(());
    }
    let mounted = bench.lab.peer(kind)?;
    let place = Place { kind, dir: &mounted.dir, under: None };
    both(bench, &place)?;
    if calls_too {
        first_read::peer(bench, &place)?;
    }
    Ok(())
}
