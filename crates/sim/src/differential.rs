//! The same operations on two file systems, outcome by outcome, and their trees compared in between and at the end.
//!
//! Verifies: every outcome of every operation (values and errnos, but for what [`crate::ops::outcome`] leaves out and the
//! [`Tolerance`] allows), the whole trees (see [`crate::compare`]), and what the right side's driver looks at in the end. Does not verify: durability, concurrent callers,
//! waiting for locks, how long anything takes.
//!
//! A failure names the seed and the operation, is made small by leaving operations out as long as it still fails, and is
//! printed as Rust code for a named regression test. Canary: `tests/canaries.rs`, wrong variants that must be caught.

mod trouble;

pub use trouble::Trouble;

use crate::compare::{self, Picture};
use crate::driver::Driver;
use crate::ops::{self, Generator, Knobs, Op, Outcome, Tolerance};
use fs::FileSystem;
use std::fmt;
use std::sync::Arc;

/// A file system and what drives it.
pub struct Side<F, D> {
    /// The file system, freshly made.
    pub fs: Arc<F>,
    /// Runs its futures.
    pub driver: D,
}

impl<F: FileSystem, D: Driver> Side<F, D> {
    /// A side of a comparison.
    pub fn new(fs: impl Into<Arc<F>>, driver: D) -> Side<F, D> {
        Side { fs: fs.into(), driver }
    }
}

/// How to compare.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What may differ.
    pub tolerance: Tolerance,
    /// Compare the trees after every so many operations (0: only at the end). Walking a tree moves access times.
    pub tree_every: usize,
    /// Close what is open before the trees are compared at the end.
    pub close_at_end: bool,
    /// What the right side has to bear.
    pub trouble: Trouble,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { tolerance: Tolerance::TIMES, tree_every: 500, close_at_end: true, trouble: Trouble::NONE }
    }
}

/// The first difference between two file systems.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// Index of the operation after which it showed; the number of operations when only the trees at the end differ.
    pub index: usize,
    /// What differs.
    pub what: String,
}

impl Mismatch {
    fn operation(&self) -> Option<&str> {
        self.what.split_whitespace().next()
    }

    /// Of the trees, which begin with a path.
    fn is_of_trees(&self) -> bool {
        self.what.starts_with('/')
    }
}

/// How a sequence of operations went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Operations executed.
    pub ops: usize,
    /// Those that succeeded.
    pub succeeded: usize,
    /// Times an operation was given up.
    pub given_up: usize,
    /// Operations that were refused for lack of space.
    pub refused: usize,
    /// Paths in the tree at the end.
    pub paths: usize,
}

/// Executes `ops` on both sides; the left one is taken to be right.
pub fn run<F: FileSystem, D: Driver, G: FileSystem, E: Driver>(
    left: &Side<F, D>,
    right: &Side<G, E>,
    ops: &[Op],
    settings: Settings,
) -> Result<Report, Box<Mismatch>> {
    let (mut a, mut b) = (ops::State::default(), ops::State::default());
    let mut report = Report::default();
    let trees = |index: usize| {
        let options = compare::Options { times: settings.tolerance.times, atime: settings.tolerance.atime };
        let picture = Picture::of(&left.driver, &*left.fs);
        let result = picture.and_then(|expected| {
            expected.compare(&Picture::of(&right.driver, &*right.fs)?, options)?;
            Ok(expected.len())
        });
        result.map_err(|difference| Box::new(Mismatch { index, what: difference.to_string() }))
    };
    for (index, op) in ops.iter().enumerate() {
        left.driver.before_op(index);
        right.driver.before_op(index);
        let (found, given_up) = settings.trouble.execute(right, &mut b, op);
        report.given_up += given_up as usize;
        let Some(op) = &settings.trouble.as_far_as_it_came(op, &found) else {
            report.refused += 1;
            continue;
        };
        let expected = ops::execute(&left.driver, &*left.fs, &mut a, op);
        if !expected.same(&found, settings.tolerance) {
            let what = format!("{op:?}\n  expected {expected:?}\n  found    {found:?}");
            return Err(Box::new(Mismatch { index, what }));
        }
        report.ops += 1;
        report.succeeded += !matches!(expected, Outcome::Failed(_)) as usize;
        if settings.tree_every > 0 && (index + 1) % settings.tree_every == 0 {
            trees(index)?;
        }
    }
    if settings.close_at_end {
        ops::execute::close_all(&left.driver, &*left.fs, &mut a);
        ops::execute::close_all(&right.driver, &*right.fs, &mut b);
    }
    report.paths = trees(ops.len())?;
    let wrong = right.driver.at_end().filter(|_| settings.close_at_end);
    wrong.map_or(Ok(report), |what| Err(Box::new(Mismatch { index: ops.len(), what })))
}

/// A failure with everything needed to see it again.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Seed of the generator.
    pub seed: u64,
    /// The failure as it was found.
    pub first: Mismatch,
    /// The failure of the smaller sequence.
    pub small: Mismatch,
    /// The smaller sequence.
    pub ops: Vec<Op>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, operation {}: {}", self.seed, self.first.index, self.first.what)?;
        writeln!(f, "made small, operation {} of {}: {}", self.small.index, self.ops.len(), self.small.what)?;
        write!(f, "let ops = {};", ops::code(&self.ops))
    }
}

/// Generates `count` operations from `seed`, runs them on fresh sides, and makes a failure small.
pub fn check<F: FileSystem, D: Driver, G: FileSystem, E: Driver>(
    left: impl Fn() -> Side<F, D>,
    right: impl Fn() -> Side<G, E>,
    seed: u64,
    knobs: Knobs,
    count: usize,
    settings: Settings,
) -> Result<Report, Box<Failure>> {
    let ops = Generator::ops(seed, knobs, count);
    let attempt = |ops: &[Op]| run(&left(), &right(), ops, settings).map_err(|mismatch| *mismatch);
    match attempt(&ops) {
        Ok(report) => Ok(report),
        Err(first) => {
            // Operations out of their context may show another difference.
            let same = |found: &Mismatch| found.is_of_trees() || found.operation() == first.operation();
            let (ops, small) = minimise(ops, first.clone(), |ops| attempt(ops).err().filter(same));
            Err(Box::new(Failure { seed, first, small, ops }))
        }
    }
}

/// As [`check`] for many seeds, printing each; panics with the failure as text.
pub fn assert_same<F: FileSystem, D: Driver, G: FileSystem, E: Driver>(
    left: impl Fn() -> Side<F, D>,
    right: impl Fn() -> Side<G, E>,
    seeds: std::ops::Range<u64>,
    knobs: Knobs,
    count: usize,
    settings: Settings,
) {
    for seed in seeds {
        match check(&left, &right, seed, knobs.clone(), count, settings) {
            Ok(report) => println!("seed {seed}: {report:?}"),
            Err(failure) => panic!("{failure}"),
        }
    }
}

/// Most attempts to make a failing sequence smaller.
const ATTEMPTS_MAX: usize = 1500;

/// Leaves operations out as long as `fails` still returns a failure (delta debugging). Returns what is left and its
/// failure.
pub fn minimise(
    mut ops: Vec<Op>,
    mut failure: Mismatch,
    mut fails: impl FnMut(&[Op]) -> Option<Mismatch>,
) -> (Vec<Op>, Mismatch) {
    ops.truncate(failure.index + 1);
    let mut attempts = 0;
    let mut chunk = ops.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        let mut smaller = false;
        while at < ops.len() && attempts < ATTEMPTS_MAX {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + chunk).min(ops.len()));
            attempts += 1;
            match fails(&fewer) {
                Some(found) => {
                    fewer.truncate(found.index + 1);
                    (ops, failure, smaller) = (fewer, found, true);
                }
                None => at += chunk,
            }
        }
        if attempts >= ATTEMPTS_MAX || chunk == 1 && !smaller {
            return (ops, failure);
        }
        chunk = chunk.div_ceil(2).max(1);
    }
}
