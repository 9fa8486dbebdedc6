//! Checking a volume, and repairing it.
//!
//! A check reads everything that mount reads, in the same way: superblock, checkpoint, inode segment table, the log's
//! longest prefix of whole epochs in front of the slots, every inode, every extent node, attributes outside of inodes. Then
//! it compares what is derived: names, directories, links, space, the index checkpoint. It believes nothing that it has
//! not checked: no bytes make it panic, run forever, or take more memory than the volume's inodes and its block map need.
//!
//! What it does not verify: the contents of files (they have no checksums once their epoch is recorded as durable), and
//! blocks that nobody uses.
//!
//! A repair is a check whose findings become new images of inodes. They are committed through the log like any other change,
//! so a crash in the middle of a repair leaves a volume on which the repair can be run again. It runs check after check
//! until nothing is found, or nothing but what the one before it found.
//!
//! Tested by planted damage in tests/fsck.rs, and after every crash of the crash tests.

mod fixed;
mod image;
mod index;
mod inodes;
mod names;
mod rebuild;
mod repair;
mod report;
mod usage;
mod walk;

pub use report::{Counts, PROBLEMS_MAX, Problem, Report, Severity};

use fs::Result;
use media::Media;
use media::blocking::Blocking;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use usage::Usage;

/// What to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsckOptions {
    /// Put in order what is damaged. Without it nothing is written.
    pub repair: bool,
}

/// How far a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub phase: &'static str,
    /// Steps done.
    pub done: u64,
    /// All steps of this phase.
    pub total: u64,
}

/// Passes of a repair before it is given up. Each pass commits as many repairs as the log takes.
const PASSES_MAX: usize = 256;

/// Checks the volume on `media`, which nobody else may have open, and repairs it if asked to.
///
/// Damage is told in the report. Errors: `NotAVolume` (too small to be one), `Media` (the medium cannot be read as a
/// whole, or a repair cannot be written), `NoSpace` (no room for what a repair must write).
pub fn check(
    media: Arc<dyn Media>,
    options: &FsckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    let device = Blocking::new(media)?;
    let mut report = Report::default();
    let mut last = None;
    for _ in 0..PASSES_MAX {
        report.counts = Counts::default();
        let before = report.clone();
        let outcome = one_pass(&device, options, progress, &mut report)?;
        if outcome.again {
            report = before;
            continue;
        }
        if !report.written {
            report.stopped_cleanly = outcome.stopped_cleanly;
        }
        if outcome.sound || !options.repair {
            if outcome.sound && report.written {
                report.repaired();
            }
            return Ok(report);
        }
        if !outcome.wrote {
            // Nothing could be done about what was found.
            tracing::error!(
                "repair found {} problems and could mend none",
                report.problems.len() - before.problems.len()
            );
            break;
        }
        report.written = true;
        if last.replace(outcome.found) == Some(outcome.found) {
            tracing::error!("repair finds what it has found before, and changes nothing about it");
            break;
        }
    }
    Ok(report)
}

/// A run of blocks with the inode that owns it: (inode, block, count).
pub(crate) type Owned = (u64, u64, u64);

/// For dump: how many blocks of a segment are in use, and the runs in it with the inodes that own them (at most 1000).
pub(crate) fn segment_usage(device: &Blocking, segment: format::SegNo) -> Result<(u64, Vec<Owned>)> {
    let mut report = Report::default();
    let mut silent = |_| {};
    let mut pass = Pass::new(device, &mut silent, &mut report);
    let Some(mut base) = fixed::read(&mut pass, 0)? else {
        return Err(fs::Error::NotAVolume("superblock or checkpoint cannot be used".into()));
    };
    pass.blocks = base.superblock.blocks.get();
    pass.usage = Usage::new(pass.blocks);
    inodes::claim_fixed(&mut pass, &mut base);
    inodes::scan(&mut pass, &mut base)?;
    let first = segment.first_block().0;
    let end = (first + format::limits::SEGMENT_BLOCKS as u64).min(pass.blocks);
    let used = (first..end).filter(|&b| pass.usage.get(b)).count() as u64;
    Ok((used, inodes::owners(&pass, &base, first, end)?))
}

/// How a pass ended.
#[derive(Default)]
struct Outcome {
    /// Nothing is damaged.
    sound: bool,
    wrote: bool,
    /// Something that was bad was good when it was looked at once more, before anything was written.
    again: bool,
    /// What had to be put in order, as a number that tells it from anything else.
    found: u64,
    stopped_cleanly: bool,
}

fn one_pass(
    device: &Blocking,
    options: &FsckOptions,
    progress: &mut dyn FnMut(Progress),
    report: &mut Report,
) -> Result<Outcome> {
    let mut evidence = 0;
    // A second look is needed when slots show that the log was longer; a third when that brings other slots.
    for _ in 0..3 {
        let mut pass = Pass::new(device, progress, report);
        pass.step("reading the log", 0, 1);
        let Some(mut base) = fixed::read(&mut pass, evidence)? else {
            return Ok(Outcome::default());
        };
        pass.blocks = base.superblock.blocks.get();
        pass.usage = Usage::new(pass.blocks);
        inodes::claim_fixed(&mut pass, &mut base);
        let beyond = inodes::scan(&mut pass, &mut base)?;
        if let Some(epoch) = beyond.filter(|&e| e > evidence && !base.salvaged) {
            evidence = epoch;
            pass.report.counts = Counts::default();
            continue;
        }
        inodes::resolve_twice(&mut pass, &base)?;
        names::check(&mut pass);
        index::check(&mut pass, &mut base)?;
        pass.finish(&base);
        let sound = pass.sound(&base);
        let stopped_cleanly = base.clean;
        let mut hasher = DefaultHasher::new();
        (&pass.edits, &pass.stray, pass.homeless.len()).hash(&mut hasher);
        (&base.bad_superblocks, &base.bad_homes, base.unread_log, base.rewrite).hash(&mut hasher);
        let found = hasher.finish();
        let again = options.repair && inodes::is_good_again(&pass, &base)?;
        let wrote = match (options.repair && !again, sound) {
            (false, _) => false,
            (true, true) => pass.report.written && repair::finish(&mut pass, &mut base)?,
            (true, false) => repair::run(&mut pass, &mut base)?,
        };
        return Ok(Outcome { sound, wrote, again, found, stopped_cleanly });
    }
    Ok(Outcome::default())
}

/// An inode or additional name, as far as names are concerned.
struct Node {
    link: bool,
    dir: bool,
    parent: u64,
    target: u64,
    epoch: u64,
    cookie: u64,
    name: Box<[u8]>,
}

/// What has to become of an inode. An edit that says nothing makes its image anew from what can be read of it.
#[derive(Default, Hash)]
struct Edit {
    /// The slot becomes free.
    free: bool,
    /// What stands in the slot cannot be read or is damaged.
    bad_slot: bool,
    /// It becomes an empty root directory.
    make_root: bool,
    /// It becomes a new directory, under the name in `rename`.
    make_dir: bool,
    /// Blocks to give up.
    holes: Vec<(u64, u64)>,
    /// Another position in its directory.
    cookie: Option<u64>,
    /// Another directory, name and position.
    rename: Option<(u64, Vec<u8>, u64)>,
}

/// One look at the whole volume.
struct Pass<'a> {
    device: &'a Blocking,
    progress: &'a mut dyn FnMut(Progress),
    report: &'a mut Report,
    blocks: u64,
    usage: Usage,
    nodes: HashMap<u64, Node>,
    edits: BTreeMap<u64, Edit>,
    /// Inodes whose images have no segment to go to.
    homeless: HashSet<u64>,
    /// Names that are given up.
    gone: HashSet<u64>,
    /// Inodes that go to /lost+found.
    stray: Vec<u64>,
    /// Problems of inodes, told when paths are known.
    pending: Vec<Problem>,
}

impl<'a> Pass<'a> {
    fn new<'b: 'a>(
        device: &'a Blocking,
        progress: &'a mut (dyn FnMut(Progress) + 'b),
        report: &'a mut Report,
    ) -> Pass<'a> {
        Pass {
            device,
            progress,
            report,
            blocks: 0,
            usage: Usage::new(0),
            nodes: HashMap::new(),
            edits: BTreeMap::new(),
            homeless: HashSet::new(),
            gone: HashSet::new(),
            stray: Vec::new(),
            pending: Vec::new(),
        }
    }

    fn step(&mut self, phase: &'static str, done: u64, total: u64) {
        (self.progress)(Progress { phase, done, total });
    }

    fn edit(&mut self, ino: u64) -> &mut Edit {
        self.edits.entry(ino).or_default()
    }

    /// Damage to an inode: it will be told, and the inode's image made anew.
    fn damaged(&mut self, ino: u64, problem: Problem) {
        self.edit(ino);
        let problem = problem.inode(ino);
        if self.pending.len() < PROBLEMS_MAX {
            self.pending.push(problem);
        } else {
            self.report.omit(&problem);
        }
    }

    /// Tells the problems of inodes, with their paths, and completes the counts.
    fn finish(&mut self, base: &fixed::Base) {
        for mut problem in std::mem::take(&mut self.pending) {
            problem.path = problem.inode.and_then(|ino| names::path(self, ino));
            self.report.add(problem);
        }
        let counts = &mut self.report.counts;
        counts.blocks = self.blocks;
        counts.blocks_used = self.usage.used;
        counts.checkpoint_epoch = base.checkpoint.epoch.0;
    }

    /// Nothing has to be put in order.
    fn sound(&self, base: &fixed::Base) -> bool {
        self.edits.is_empty()
            && self.stray.is_empty()
            && self.homeless.is_empty()
            && !base.rewrite
            && !base.unread_log
            && base.bad_superblocks.is_empty()
            && base.bad_homes.is_empty()
    }
}
