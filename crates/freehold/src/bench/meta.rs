//! Metadata rows: one thread, one directory, many empty files.

use super::driver::{Bench, Log, Workload};
use super::sample::{Goal, Kind};
use super::stop;
use super::subject::{How, Name, Random, Subject};
use anyhow::{Result, ensure};

/// The rows of this file.
pub const ROWS: &[&str] =
    &["create", "create+sync", "stat", "readdir", "rename", "rename+sync", "unlink", "unlink+sync"];

/// The life of `files` empty files; the stat row makes `stats` calls.
pub struct Meta {
    /// How many files.
    pub files: u32,
}

impl Workload for Meta {
    fn run<S: Subject>(&self, s: &S, log: &mut Log<'_>) -> Result<()> {
        let files = self.files;
        let ops = files as u64;
        s.mkdir("d")?;
        s.sync()?;
        let made = log.rate(s, "create", "files/s", ops, || make(s, "d", 0..files))?;
        log.with(s, "create+sync", "files/s", &made, || s.sync())?;

        let order = Random(1).order(files);
        let mut name = Name::new("d", b'f');
        log.rate(s, "stat", "stats/s", ops, || {
            for (i, &n) in order.iter().enumerate() {
                ensure!(s.stat(name.set(n))? == 0, "an empty file has a size");
                every(i)?;
            }
            Ok(())
        })?;

        log.rate(s, "readdir", "entries/s", ops, || {
            let (n, bytes) = s.list("d")?;
            ensure!(n == ops && bytes == ops * 8, "{n} entries with {bytes} bytes of names, expected {ops}");
            Ok(())
        })?;

        let (mut from, mut to) = (Name::new("d", b'f'), Name::new("d", b'g'));
        let moved = log.rate(s, "rename", "files/s", ops, || {
            for n in 0..files {
                s.rename(from.set(n), to.set(n))?;
                every(n as usize)?;
            }
            Ok(())
        })?;
        log.with(s, "rename+sync", "files/s", &moved, || s.sync())?;

        let removed = log.rate(s, "unlink", "files/s", ops, || {
            for n in 0..files {
                s.unlink(to.set(n))?;
                every(n as usize)?;
            }
            Ok(())
        })?;
        log.with(s, "unlink+sync", "files/s", &removed, || s.sync())
    }
}

/// Makes empty files and closes them.
pub fn make<S: Subject>(s: &S, dir: &str, numbers: std::ops::Range<u32>) -> Result<()> {
    let mut name = Name::new(dir, b'f');
    for n in numbers {
        let file = s.open(name.set(n), How::New)?;
        s.close(file)?;
        every(n as usize)?;
    }
    Ok(())
}

/// Looks now and then whether the run is to end.
#[inline]
fn every(i: usize) -> Result<()> {
    if i.is_multiple_of(1024) { stop::check() } else { Ok(()) }
}

/// Measures the rows.
pub fn measure(bench: &mut Bench) -> Result<()> {
    if !bench.wants(ROWS) {
        return Ok(());
    }
    let goal = |min| Some(Goal::AtLeast(Kind::Ext4, min));
    let sync = "the same with a sync of the whole volume at the end";
    bench.describe(
        "create",
        "files/s",
        goal(10.0),
        "open(O_CREAT|O_EXCL) + close, nothing synced; fresh directory",
    );
    bench.describe("create+sync", "files/s", None, sync);
    bench.describe(
        "stat",
        "stats/s",
        goal(4.0),
        "by path, random order, caches warm as the creation left them",
    );
    bench.describe(
        "readdir",
        "entries/s",
        goal(1.0),
        "whole directory once, caches warm; peers: raw getdents64",
    );
    bench.describe("rename", "files/s", goal(5.0), "within the directory, in order of creation, caches warm");
    bench.describe("rename+sync", "files/s", None, sync);
    bench.describe("unlink", "files/s", goal(5.0), "in order of creation, caches warm");
    bench.describe("unlink+sync", "files/s", None, sync);
    bench.each(&bench.subjects(false), &Meta { files: bench.scale.files })
}
