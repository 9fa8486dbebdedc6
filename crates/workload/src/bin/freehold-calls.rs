//! `freehold-calls`: how many calls of each kind some processes make in a second, on any directory.
//!
//! An ordinary program: it knows nothing of Freehold. Each process works in a directory of its own, or all in one with `--shared`; its files and calls
//! are divided among its threads. The processes begin each kind of call together; the figure is all calls divided by the time until the last
//! process was through.

use clap::Parser;
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Instant;
use workload::calls::{self, Fd};

/// Makes calls of one kind after the other on a directory, and says how many it made in a second.
#[derive(Parser)]
#[command(name = "freehold-calls", version)]
struct Arguments {
    /// Directory, in which one of its own is made and removed again
    #[arg(long)]
    dir: PathBuf,
    /// Processes
    #[arg(long, default_value_t = 1)]
    processes: u32,
    /// Threads of each process
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    threads: u32,
    /// Files of each process
    #[arg(long, default_value_t = 20_000)]
    files: u32,
    /// Reads, writes, opens and stats of each process
    #[arg(long, default_value_t = 100_000)]
    calls: u32,
    /// All processes make and remove their files in one directory
    #[arg(long)]
    shared: bool,
    /// MiB of the file that all processes read (rand-4k, rand-64k)
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=65536))]
    data: u64,
    /// Only these kinds of calls (create is always made); mkdir, stat-dir, rmdir, extend-8k, extend-over-8k, rand-4k and rand-64k are made only when they are named here
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Results as JSON
    #[arg(long)]
    json: bool,
    /// For this program's own use
    #[arg(long, hide = true)]
    number: Option<u32>,
}

/// What is measured, in this order. Each leaves behind what the next one needs.
const KINDS: &[&str] = &["create", "stat", "open-close", "pread-4k", "pwrite-4k", "small-write", "unlink"];
/// Of directories, after the others, where they are asked for.
const DIRECTORIES: &[&str] = &["mkdir", "stat-dir", "rmdir"];
/// Of files that grow, a tenth of the calls, after those; and how many bytes behind what is added is overwritten each time.
const GROWING: &[(&str, Option<u64>)] = &[("extend-8k", None), ("extend-over-8k", Some(100 * BLOCK as u64))];
/// What is added.
const BLOCK: usize = 8 << 10;
/// Reads of one file by all processes, after the others, where they are asked for; and the bytes of each.
const DATA: &[(&str, usize)] = &[("rand-4k", 4 << 10), ("rand-64k", 64 << 10)];
/// The name of that file; the bytes of each read that gets it ready.
const DATA_NAME: &str = "data";
const DATA_PIECE: usize = 64 << 10;
/// How new files are opened.
const NEW: libc::c_int = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
/// Bytes of the file that is read and written.
const BIG: u64 = 8 << 20;

#[derive(Serialize, Deserialize)]
struct Row {
    kind: String,
    calls: u64,
    seconds: f64,
    per_second: f64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.number {
        Some(number) => child(&arguments, number),
        None => parent(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("freehold-calls: {e}");
            ExitCode::FAILURE
        }
    }
}

fn wanted(arguments: &Arguments) -> impl Iterator<Item = &'static str> {
    let all = arguments.only.is_empty();
    let is_named = |kind: &str| arguments.only.iter().any(|o| o == kind);
    let usual = KINDS.iter().copied().filter(move |k| all || *k == "create" || is_named(k));
    usual.chain(others().filter(move |k| is_named(k)))
}

/// What is measured where it is asked for.
fn others() -> impl Iterator<Item = &'static str> {
    DIRECTORIES.iter().copied().chain(GROWING.iter().map(|kind| kind.0)).chain(data_kinds())
}

fn data_kinds() -> impl Iterator<Item = &'static str> {
    DATA.iter().map(|kind| kind.0)
}

/// Whether there is a file that all processes read.
fn has_data(arguments: &Arguments) -> bool {
    data_kinds().any(|kind| arguments.only.iter().any(|only| only == kind))
}

struct Worker {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Worker {
    fn hears(&mut self) -> io::Result<u64> {
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            return Err(io::Error::other("a process ended early"));
        }
        line.trim().parse().map_err(|_| io::Error::other(format!("a process says {line:?}")))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn parent(arguments: &Arguments) -> io::Result<()> {
    let known: Vec<&str> = KINDS.iter().copied().chain(others()).collect();
    if let Some(unknown) = arguments.only.iter().find(|kind| !known.contains(&kind.as_str())) {
        let all = known.join(", ");
        return Err(io::Error::other(format!("there is no {unknown}: {all}")));
    }
    let own = arguments.dir.join(format!("calls-{}", std::process::id()));
    std::fs::create_dir(&own)?;
    let done = measure(arguments, &own);
    let removed = std::fs::remove_dir_all(&own);
    let rows = done?;
    removed?;
    if arguments.json {
        println!("{}", serde_json::to_string(&rows)?);
    } else {
        rows.iter().for_each(|r| println!("{:<12} {:>12.0} /s", r.kind, r.per_second));
    }
    Ok(())
}

fn measure(arguments: &Arguments, own: &Path) -> io::Result<Vec<Row>> {
    let program = std::env::current_exe()?;
    if has_data(arguments) {
        let mut file = File::create_new(own.join(DATA_NAME))?;
        let bytes = vec![0x5a; MIB];
        (0..arguments.data).try_for_each(|_| file.write_all(&bytes))?;
        // Nobody is to write it back while something else is measured.
        file.sync_all()?;
    }
    let start = |number: u32| {
        let mut command = Command::new(&program);
        command.arg("--dir").arg(own).args(["--number", &number.to_string()]);
        command.args(["--files", &arguments.files.to_string(), "--calls", &arguments.calls.to_string()]);
        command.args(["--threads", &arguments.threads.to_string(), "--data", &arguments.data.to_string()]);
        if arguments.shared {
            command.arg("--shared");
        }
        if !arguments.only.is_empty() {
            command.args(["--only", &arguments.only.join(",")]);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("no pipes"));
        };
        Ok(Worker { child, to, from: BufReader::new(from) })
    };
    let mut workers = (0..arguments.processes).map(start).collect::<io::Result<Vec<Worker>>>()?;
    workers.iter_mut().try_for_each(|w| w.hears().map(drop))?;
    let mut rows = Vec::new();
    for kind in wanted(arguments) {
        let begun = Instant::now();
        workers.iter_mut().try_for_each(|w| writeln!(w.to, "{kind}"))?;
        let mut calls = 0;
        for worker in &mut workers {
            calls += worker.hears()?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        rows.push(Row { kind: kind.into(), calls, seconds, per_second: calls as f64 / seconds });
        // What a kind needs before it is measured is made now.
        workers.iter_mut().try_for_each(|w| writeln!(w.to, "prepare"))?;
        workers.iter_mut().try_for_each(|w| w.hears().map(drop))?;
    }
    for mut worker in workers {
        writeln!(worker.to, "end")?;
        worker.child.wait()?;
    }
    Ok(rows)
}

/// One process: does what it is told, and answers with the number of calls.
fn child(arguments: &Arguments, number: u32) -> io::Result<()> {
    let own = match arguments.shared {
        true => arguments.dir.clone(),
        false => arguments.dir.join(format!("p{number}")),
    };
    if !arguments.shared {
        std::fs::create_dir(&own)?;
    }
    let path = |letter: char, i: u32| own.join(format!("{letter}{number}-{i:06}"));
    // For the C library, so that nothing is measured but its calls.
    let all = |letter| {
        let path = |i| CString::new(path(letter, i).into_os_string().into_vec());
        (0..arguments.files).map(path).collect::<std::result::Result<Vec<CString>, _>>()
    };
    let (paths, small, directories) = (all('f')?, all('s')?, all('d')?);
    let mut page = vec![number as u8 + 1; PAGE];
    let big = File::options().read(true).write(true).create_new(true).open(path('b', 0))?;
    let data = has_data(arguments).then(|| File::open(arguments.dir.join(DATA_NAME))).transpose()?;
    let mut unread = data.as_ref();
    let mut out = io::stdout();
    writeln!(out, "0")?;
    out.flush()?;
    for line in io::stdin().lock().lines() {
        let done = match line?.as_str() {
            "end" => break,
            "prepare" => {
                if big.metadata()?.len() < BIG {
                    (0..BIG / PAGE as u64).try_for_each(|i| big.write_all_at(&page, i * PAGE as u64))?;
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                // Twice, so that whoever keeps pages has them.
                for at in (0..2 * BIG).step_by(PAGE) {
                    big.read_exact_at(&mut page, at % BIG)?;
                }
                if let Some(data) = unread.take() {
                    let mut bytes = vec![0; DATA_PIECE];
                    let all = arguments.data * MIB as u64;
                    for at in (0..2 * all).step_by(DATA_PIECE) {
                        data.read_exact_at(&mut bytes, at % all)?;
                    }
                }
                0
            }
            kind => in_parts(arguments.threads, |part| match kind {
                kind if DIRECTORIES.contains(&kind) => {
                    calls_of_directories(kind, arguments, &directories, part)
                }
                kind if GROWING.iter().any(|growing| growing.0 == kind) => {
                    let name = format!("{kind}-{number}-{}", part.number);
                    calls_of_growing(kind, &own.join(name), arguments, part)
                }
                kind if data_kinds().any(|data| data == kind) => {
                    calls_of_data(kind, arguments, number, &data, part)
                }
                kind => calls_of_files(kind, arguments, part, &paths, &small, &big, &mut page.clone()),
            })?,
        };
        writeln!(out, "{done}")?;
        out.flush()?;
    }
    Ok(())
}

/// One of several threads, and how many there are.
#[derive(Clone, Copy)]
struct Part {
    number: usize,
    of: usize,
}

impl Part {
    /// The numbers up to `all` that are its own.
    fn range(self, all: usize) -> std::ops::Range<usize> {
        all * self.number / self.of..all * (self.number + 1) / self.of
    }
}

/// Runs `f` in so many threads, of which this one is one; the sum of what they return.
fn in_parts(threads: u32, f: impl Fn(Part) -> io::Result<u64> + Sync) -> io::Result<u64> {
    let part = |number: u32| Part { number: number as usize, of: threads as usize };
    std::thread::scope(|scope| {
        let f = &f;
        let others: Vec<_> = (1..threads).map(|number| scope.spawn(move || f(part(number)))).collect();
        let own = f(part(0))?;
        let join = |thread: std::thread::ScopedJoinHandle<'_, io::Result<u64>>| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
        };
        others.into_iter().try_fold(own, |sum, thread| Ok(sum + join(thread)?))
    })
}

fn calls_of_files(
    kind: &str,
    arguments: &Arguments,
    part: Part,
    paths: &[CString],
    small: &[CString],
    big: &File,
    page: &mut [u8],
) -> io::Result<u64> {
    let some = &paths[..paths.len().min(1000)];
    let calls = part.range(arguments.calls as usize);
    let (made, paths, small) =
        (calls.len() as u64, &paths[part.range(paths.len())], &small[part.range(small.len())]);
    let often = calls.clone().map(|i| i % some.len());
    let places = calls.map(|i| ((i as u32).wrapping_mul(2_654_435_761) >> 8) as u64 % (BIG / PAGE as u64));
    let mut places = places.map(|p| p * PAGE as u64);
    match kind {
        "create" => paths.iter().try_for_each(|p| Fd::open(p, NEW)?.close())?,
        "stat" => often.clone().try_for_each(|i| calls::stat(&some[i]).map(drop))?,
        "open-close" => often.clone().try_for_each(|i| Fd::open(&some[i], libc::O_RDONLY)?.close())?,
        "pread-4k" => places.try_for_each(|at| big.read_exact_at(page, at))?,
        "pwrite-4k" => places.try_for_each(|at| big.write_all_at(page, at))?,
        "small-write" => small.iter().try_for_each(|p| {
            let file = Fd::open(p, NEW)?;
            file.write_all(page)?;
            file.close()
        })?,
        "unlink" => paths.iter().try_for_each(|p| calls::unlink(p))?,
        other => return Err(io::Error::other(format!("there is no {other}"))),
    }
    Ok(match kind {
        "create" | "unlink" | "small-write" => paths.len() as u64,
        _ => made,
    })
}

fn calls_of_directories(kind: &str, arguments: &Arguments, paths: &[CString], part: Part) -> io::Result<u64> {
    let some = &paths[..paths.len().min(1000)];
    let (mut calls, paths) = (part.range(arguments.calls as usize), &paths[part.range(paths.len())]);
    let made = calls.len();
    match kind {
        "mkdir" => paths.iter().try_for_each(|p| calls::mkdir(p))?,
        "stat-dir" => calls.try_for_each(|i| calls::stat(&some[i % some.len()]).map(drop))?,
        _ => paths.iter().try_for_each(|p| calls::rmdir(p))?,
    }
    Ok(if kind == "stat-dir" { made } else { paths.len() } as u64)
}

/// Adds to a new file, whose end is looked for each time, as databases do; and overwrites so far behind.
fn calls_of_growing(kind: &str, path: &Path, arguments: &Arguments, part: Part) -> io::Result<u64> {
    let behind = GROWING.iter().find(|growing| growing.0 == kind).and_then(|growing| growing.1);
    let mut file = File::options().read(true).write(true).create_new(true).open(path)?;
    let (calls, block) = (part.range(arguments.calls as usize / 10), [0x5a; BLOCK]);
    for _ in calls.clone() {
        let end = file.seek(SeekFrom::End(0))?;
        file.write_all_at(&block, end)?;
        if let Some(at) = behind.and_then(|behind| end.checked_sub(behind)) {
            file.write_all_at(&block, at)?;
        }
    }
    Ok(calls.len() as u64)
}

/// Reads at places here and there of the file that all processes read, each at others.
fn calls_of_data(
    kind: &str,
    arguments: &Arguments,
    number: u32,
    data: &Option<File>,
    part: Part,
) -> io::Result<u64> {
    let found = DATA.iter().find(|data| data.0 == kind);
    let (Some(&(_, len)), Some(data)) = (found, data) else {
        return Err(io::Error::other(format!("there is no {kind}")));
    };
    let (mut calls, mut bytes) = (part.range(arguments.calls as usize), vec![0; len]);
    let (made, places) = (calls.len() as u64, arguments.data * MIB as u64 / len as u64);
    calls.try_for_each(|i| {
        let nth = (i as u32).wrapping_add(number.wrapping_mul(40_503));
        let place = (nth.wrapping_mul(2_654_435_761) >> 8) as u64 % places;
        data.read_exact_at(&mut bytes, place * len as u64)
    })?;
    Ok(made)
}
