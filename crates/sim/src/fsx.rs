//! Random data operations on one file against a vector of bytes, in the manner of fsx.
//!
//! Verifies: after every operation that reads, and at the end, that the file holds exactly the bytes and has exactly the
//! size that the operations so far give it: through reads and writes at offsets, appends, truncation both ways, punched
//! and zeroed ranges, preallocation, copies within the file, closing and opening again, and (on paths) shared memory
//! mappings. Holes that SEEK_DATA and SEEK_HOLE report must be zeros, and the ends must be right. Does not verify:
//! attributes, names, durability (fsync is called, but nothing crashes), several writers.
//!
//! Two targets: [`OverContract`] for any [`fs::FileSystem`] in the process, [`OverPath`] for a real path, such as one on a
//! mount; the binary `freehold-fsx` runs the latter. The seed stands in every failure. Canary: in the tests of this module, a
//! target that loses bytes.

mod contract;
mod path;

pub use contract::OverContract;
pub use path::OverPath;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;
use std::fmt;
use std::io;

/// A file under test. Offsets and lengths in bytes.
#[allow(missing_docs, reason = "the calls are those of the system")]
pub trait Target {
    fn read(&mut self, offset: u64, to: &mut [u8]) -> io::Result<usize>;
    fn write(&mut self, offset: u64, from: &[u8]) -> io::Result<usize>;
    fn append(&mut self, from: &[u8]) -> io::Result<usize>;
    fn truncate(&mut self, size: u64) -> io::Result<()>;
    fn size(&mut self) -> io::Result<u64>;
    fn allocate(&mut self, offset: u64, len: u64, keep_size: bool) -> io::Result<()>;
    fn punch(&mut self, offset: u64, len: u64) -> io::Result<()>;
    fn zero(&mut self, offset: u64, len: u64, keep_size: bool) -> io::Result<()>;
    fn copy(&mut self, from: u64, to: u64, len: u64) -> io::Result<u64>;
    /// SEEK_DATA, or SEEK_HOLE; `None` for `ENXIO`.
    fn seek(&mut self, offset: u64, hole: bool) -> io::Result<Option<u64>>;
    fn sync(&mut self, datasync: bool) -> io::Result<()>;
    fn reopen(&mut self) -> io::Result<()>;
    /// Reads through a shared mapping. `None` when the target has none.
    fn map_read(&mut self, offset: u64, to: &mut [u8]) -> Option<io::Result<()>>;
    /// Writes through a shared mapping, within the size. `None` when the target has none.
    fn map_write(&mut self, offset: u64, from: &[u8]) -> Option<io::Result<()>>;
}

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Seed of all choices.
    pub seed: u64,
    /// Number of operations.
    pub ops: u64,
    /// The file grows to at most this many bytes.
    pub size_max: u64,
    /// Most bytes that one operation writes, reads, clears or copies.
    pub len_max: u64,
    /// Ranges are punched and zeroed; else they are only preallocated.
    pub holes: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config { seed: 1, ops: 1000, size_max: 256 << 10, len_max: 64 << 10, holes: true }
    }
}

/// A file that does not hold what it should, or a call that failed.
#[derive(Debug)]
pub struct Failure {
    seed: u64,
    op: u64,
    what: String,
    last: VecDeque<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "fsx: seed {}, operation {}: {}", self.seed, self.op, self.what)?;
        writeln!(f, "the operations before it:")?;
        self.last.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

impl std::error::Error for Failure {}

/// Operations that a failure shows.
const SHOWN: usize = 24;

/// Runs random operations on an empty file and compares. Returns how many bytes were compared.
pub fn run(target: &mut impl Target, config: Config) -> Result<u64, Failure> {
    let mut run = Run {
        rng: SmallRng::seed_from_u64(config.seed),
        config,
        bytes: Vec::new(),
        compared: 0,
        log: VecDeque::new(),
        target,
    };
    for op in 0..config.ops {
        run.step().and_then(|()| run.check_size()).map_err(|what| run.failure(op, what))?;
    }
    let all = run.bytes.len() as u64;
    run.check(0, all.max(1)).map_err(|what| run.failure(config.ops, what))?;
    Ok(run.compared)
}

struct Run<'a, T> {
    rng: SmallRng,
    config: Config,
    bytes: Vec<u8>,
    compared: u64,
    log: VecDeque<String>,
    target: &'a mut T,
}

type Step = Result<(), String>;

fn done<T>(what: &str, result: io::Result<T>) -> Result<T, String> {
    result.map_err(|e| format!("{what} failed: {e}"))
}

impl<T: Target> Run<'_, T> {
    fn failure(&mut self, op: u64, what: String) -> Failure {
        Failure { seed: self.config.seed, op, what, last: std::mem::take(&mut self.log) }
    }

    fn note(&mut self, line: String) {
        if self.log.len() == SHOWN {
            self.log.pop_front();
        }
        self.log.push_back(line);
    }

    /// A range that fits the largest size; often aligned to blocks, which is where file systems err.
    fn range(&mut self) -> (u64, u64) {
        let Config { size_max, len_max, .. } = self.config;
        let mut offset = self.rng.random_range(0..size_max);
        let mut len = self.rng.random_range(1..=len_max);
        if self.rng.random_range(0..3) == 0 {
            offset &= !4095;
        }
        if self.rng.random_range(0..3) == 0 {
            len = len.next_multiple_of(4096);
        }
        if self.rng.random_range(0..4) == 0 {
            len = self.rng.random_range(1..200);
        }
        (offset, len.min(size_max - offset))
    }

    /// A range within the file, if it is not empty.
    fn inside(&mut self) -> Option<(u64, u64)> {
        let size = self.bytes.len() as u64;
        let (offset, len) = self.range();
        if size == 0 {
            return None;
        }
        let offset = offset % size;
        Some((offset, len.min(size - offset)))
    }

    fn fresh(&mut self, len: u64) -> Vec<u8> {
        let seed = self.rng.random();
        crate::ops::pattern(seed, len as u32)
    }

    fn put(&mut self, offset: u64, from: &[u8]) {
        let end = offset as usize + from.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset as usize..end].copy_from_slice(from);
    }

    fn clear(&mut self, offset: u64, len: u64) {
        let size = self.bytes.len() as u64;
        let (from, to) = (offset.min(size), (offset + len).min(size));
        self.bytes[from as usize..to as usize].fill(0);
    }

    fn grow(&mut self, size: u64) {
        let size = self.bytes.len().max(size as usize);
        self.bytes.resize(size, 0);
    }

    fn step(&mut self) -> Step {
        match self.rng.random_range(0..100) {
            0..25 => {
                let (offset, len) = self.range();
                self.note(format!("read {offset} {len}"));
                self.check(offset, len)
            }
            25..50 => {
                let (offset, len) = self.range();
                let from = self.fresh(len);
                self.note(format!("write {offset} {len}"));
                let n = done("write", self.target.write(offset, &from))?;
                self.put(offset, &from);
                expect("bytes written", len, n as u64)
            }
            50..55 => {
                let room = self.config.size_max - self.bytes.len() as u64;
                let len = self.range().1.min(room);
                let (from, end) = (self.fresh(len), self.bytes.len() as u64);
                self.note(format!("append {len} (at {end})"));
                let n = done("append", self.target.append(&from))?;
                self.put(end, &from);
                expect("bytes appended", len, n as u64)
            }
            55..63 => {
                let size = self.range().0;
                self.note(format!("truncate {size} (was {})", self.bytes.len()));
                done("truncate", self.target.truncate(size))?;
                self.bytes.resize(size as usize, 0);
                Ok(())
            }
            63..75 => self.space(),
            75..80 => self.copy(),
            80..84 => self.seek(),
            84..88 => {
                let datasync = self.rng.random();
                self.note(format!("sync, datasync {datasync}"));
                done("sync", self.target.sync(datasync))
            }
            88..92 => {
                self.note("close and open".into());
                done("reopening", self.target.reopen())
            }
            _ => self.map(),
        }
    }

    fn space(&mut self) -> Step {
        let (offset, len) = self.range();
        let keep_size = self.rng.random();
        match self.rng.random_range(0..if self.config.holes { 3 } else { 1 }) {
            0 => {
                self.note(format!("allocate {offset} {len}, keep size {keep_size}"));
                done("allocate", self.target.allocate(offset, len, keep_size))?;
            }
            1 => {
                self.note(format!("punch {offset} {len}"));
                done("punch", self.target.punch(offset, len))?;
                self.clear(offset, len);
                return Ok(());
            }
            _ => {
                self.note(format!("zero {offset} {len}, keep size {keep_size}"));
                done("zero", self.target.zero(offset, len, keep_size))?;
                self.clear(offset, len);
            }
        }
        if !keep_size {
            self.grow(offset + len);
        }
        Ok(())
    }

    fn copy(&mut self) -> Step {
        let Some((from, len)) = self.inside() else { return Ok(()) };
        let (to, _) = self.range();
        let len = len.min(self.config.size_max - to);
        if to < from + len && from < to + len {
            return Ok(());
        }
        self.note(format!("copy {from} to {to} {len}"));
        let mut copied = 0;
        while copied < len {
            let n = done("copy", self.target.copy(from + copied, to + copied, len - copied))?;
            if n == 0 || n > len - copied {
                return Err(format!("copied {n} of {} bytes", len - copied));
            }
            copied += n;
        }
        let part = self.bytes[from as usize..(from + len) as usize].to_vec();
        self.put(to, &part);
        Ok(())
    }

    fn seek(&mut self) -> Step {
        let (offset, _) = self.range();
        let hole = self.rng.random();
        self.note(format!("seek from {offset}, hole {hole}"));
        let (found, size) = (done("seek", self.target.seek(offset, hole))?, self.bytes.len() as u64);
        let wrong = |why: &str| Err(format!("seek gave {found:?} with size {size}: {why}"));
        let skipped = match found {
            Some(_) if offset >= size => return wrong("the offset is behind the end"),
            None if offset >= size => return Ok(()),
            None if hole => return wrong("the end is a hole"),
            Some(at) if at < offset || at > size || !hole && at == size => return wrong("out of place"),
            Some(at) if hole => at..(at + 1).min(size),
            Some(at) => offset..at,
            None => offset..size,
        };
        match self.bytes[skipped.start as usize..skipped.end as usize].iter().position(|&b| b != 0) {
            Some(at) => wrong(&format!("there are data at {}", skipped.start + at as u64)),
            None => Ok(()),
        }
    }

    fn map(&mut self) -> Step {
        let Some((offset, len)) = self.inside() else { return Ok(()) };
        if self.rng.random() {
            let from = self.fresh(len);
            self.note(format!("write by mapping {offset} {len}"));
            if let Some(result) = self.target.map_write(offset, &from) {
                done("writing a mapping", result)?;
                self.put(offset, &from);
            }
            return Ok(());
        }
        self.note(format!("read by mapping {offset} {len}"));
        let mut found = vec![0xa5; len as usize];
        match self.target.map_read(offset, &mut found) {
            Some(result) => done("reading a mapping", result).and_then(|()| self.same(offset, &found)),
            None => Ok(()),
        }
    }

    /// Reads a range, which may reach beyond the end, and compares it.
    fn check(&mut self, offset: u64, len: u64) -> Step {
        let mut found = vec![0xa5; len as usize];
        let n = done("read", self.target.read(offset, &mut found))? as u64;
        expect("bytes read", len.min((self.bytes.len() as u64).saturating_sub(offset)), n)?;
        self.same(offset, &found[..n as usize])
    }

    fn same(&mut self, offset: u64, found: &[u8]) -> Step {
        let offset = offset.min(self.bytes.len() as u64);
        let expected = &self.bytes[offset as usize..offset as usize + found.len()];
        self.compared += found.len() as u64;
        let Some(first) = expected.iter().zip(found).position(|(a, b)| a != b) else { return Ok(()) };
        let wrong = expected.iter().zip(found).filter(|(a, b)| a != b).count();
        let (at, a, b) = (offset + first as u64, expected[first], found[first]);
        Err(format!("{wrong} bytes differ, the first at {at} ({at:#x}): expected {a:#04x}, found {b:#04x}"))
    }

    fn check_size(&mut self) -> Step {
        let found = done("asking for the size", self.target.size())?;
        expect("size", self.bytes.len() as u64, found)
    }
}

fn expect(what: &str, expected: u64, found: u64) -> Step {
    if expected == found { Ok(()) } else { Err(format!("{what}: expected {expected}, found {found}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Blocking, Model, system_clock};
    use std::sync::Arc;

    #[test]
    fn the_model_passes() {
        for seed in 0..5 {
            let model = Arc::new(Model::new(system_clock()));
            let mut target = OverContract::new(model, Blocking, b"file").unwrap();
            run(&mut target, Config { seed, ops: 2000, ..Config::default() }).unwrap();
        }
    }

    #[test]
    fn a_path_on_the_host_passes() {
        let dir = tempfile::tempdir().unwrap();
        for seed in 0..3 {
            let mut target = OverPath::create(&dir.path().join("file")).unwrap();
            run(&mut target, Config { seed, ops: 2000, ..Config::default() }).unwrap();
        }
    }

    /// Forgets the last byte of every hundredth write.
    struct Loses(OverContract<Model, Blocking>, u64);

    impl Target for Loses {
        fn write(&mut self, offset: u64, from: &[u8]) -> io::Result<usize> {
            self.1 += 1;
            let cut = self.1.is_multiple_of(100) as usize;
            self.0.write(offset, &from[..from.len() - cut]).map(|n| n + cut)
        }
        fn read(&mut self, offset: u64, to: &mut [u8]) -> io::Result<usize> {
            self.0.read(offset, to)
        }
        fn append(&mut self, from: &[u8]) -> io::Result<usize> {
            self.0.append(from)
        }
        fn truncate(&mut self, size: u64) -> io::Result<()> {
            self.0.truncate(size)
        }
        fn size(&mut self) -> io::Result<u64> {
            self.0.size()
        }
        fn allocate(&mut self, offset: u64, len: u64, keep_size: bool) -> io::Result<()> {
            self.0.allocate(offset, len, keep_size)
        }
        fn punch(&mut self, offset: u64, len: u64) -> io::Result<()> {
            self.0.punch(offset, len)
        }
        fn zero(&mut self, offset: u64, len: u64, keep_size: bool) -> io::Result<()> {
            self.0.zero(offset, len, keep_size)
        }
        fn copy(&mut self, from: u64, to: u64, len: u64) -> io::Result<u64> {
            self.0.copy(from, to, len)
        }
        fn seek(&mut self, offset: u64, hole: bool) -> io::Result<Option<u64>> {
            self.0.seek(offset, hole)
        }
        fn sync(&mut self, datasync: bool) -> io::Result<()> {
            self.0.sync(datasync)
        }
        fn reopen(&mut self) -> io::Result<()> {
            self.0.reopen()
        }
        fn map_read(&mut self, _: u64, _: &mut [u8]) -> Option<io::Result<()>> {
            None
        }
        fn map_write(&mut self, _: u64, _: &[u8]) -> Option<io::Result<()>> {
            None
        }
    }

    #[test]
    fn canary_a_lost_byte_is_found() {
        let model = Arc::new(Model::new(system_clock()));
        let mut target = Loses(OverContract::new(model, Blocking, b"file").unwrap(), 0);
        let failure = run(&mut target, Config { ops: 5000, ..Config::default() }).unwrap_err();
        println!("{failure}");
    }
}
