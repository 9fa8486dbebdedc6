//! What a check finds: problems with their places, and counts.

use format::FormatError;
use format::error::Fault;
use serde::Serialize;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Normal after a crash, or worth knowing; nothing has to be done.
    Note,
    /// The volume contradicts its format. Repair can bring it in order.
    Damage,
    /// Damage that repair cannot mend.
    Fatal,
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// The structure: "superblock", "checkpoint", "inode segment table", "log", "inode", "extent node", "extent", "name",
    /// "extended attributes", "index checkpoint", "block".
    pub structure: &'static str,
    /// The block of the volume, when known.
    pub block: Option<u64>,
    /// The inode, when known.
    pub inode: Option<u64>,
    /// A path of that inode, when it has one.
    pub path: Option<String>,
    /// What is wrong.
    pub what: String,
    /// The value that was expected, when there is one.
    pub expected: Option<String>,
    /// The value that was found.
    pub found: Option<String>,
    /// It was put in order.
    pub repaired: bool,
    /// What is gone, or goes with a repair.
    pub lost: Option<String>,
}

impl Problem {
    /// A problem without a place.
    pub(crate) fn new(severity: Severity, structure: &'static str, what: impl Into<String>) -> Problem {
        Problem {
            severity,
            structure,
            block: None,
            inode: None,
            path: None,
            what: what.into(),
            expected: None,
            found: None,
            repaired: false,
            lost: None,
        }
    }
    /// Damage in a structure.
    pub(crate) fn damage(structure: &'static str, what: impl Into<String>) -> Problem {
        Problem::new(Severity::Damage, structure, what)
    }
    /// What a parser complained about.
    pub(crate) fn from_format(severity: Severity, e: &FormatError) -> Problem {
        let mut p = Problem::new(severity, e.structure, "");
        p.block = e.block.map(|b| b.0);
        let hex = |v: u64| Some(format!("{v:#x}"));
        match &e.fault {
            Fault::Magic { expected, found } => {
                p.what = "magic number is wrong".into();
                (p.expected, p.found) = (hex(*expected), hex(*found));
            }
            Fault::Checksum { stored, computed } => {
                p.what = "checksum is wrong".into();
                (p.expected, p.found) = (hex(*stored as u64), hex(*computed as u64));
            }
            Fault::Range { field, value, max } => {
                p.what = format!("{field} is out of range");
                (p.expected, p.found) = (Some(format!("at most {max}")), Some(value.to_string()));
            }
            Fault::Short { need, have } => {
                p.what = "is cut short".into();
                (p.expected, p.found) = (Some(format!("{need} bytes")), Some(format!("{have} bytes")));
            }
            Fault::Rule(rule) => p.what = (*rule).into(),
        }
        p
    }
    pub(crate) fn block(mut self, block: u64) -> Problem {
        self.block = Some(block);
        self
    }
    pub(crate) fn inode(mut self, inode: u64) -> Problem {
        self.inode = Some(inode);
        self
    }
    pub(crate) fn lost(mut self, lost: impl Into<String>) -> Problem {
        self.lost = Some(lost.into());
        self
    }
    pub(crate) fn values(mut self, expected: impl ToString, found: impl ToString) -> Problem {
        (self.expected, self.found) = (Some(expected.to_string()), Some(found.to_string()));
        self
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.structure)?;
        if let Some(inode) = self.inode {
            write!(f, ", inode {inode}")?;
        }
        if let Some(path) = &self.path {
            write!(f, " ({path})")?;
        }
        if let Some(block) = self.block {
            write!(f, ", block {block}")?;
        }
        write!(f, ": {}", self.what)?;
        if let (Some(expected), Some(found)) = (&self.expected, &self.found) {
            write!(f, " (expected {expected}, found {found})")?;
        }
        if let Some(lost) = &self.lost {
            write!(f, "; lost: {lost}")?;
        }
        if self.repaired { write!(f, "; repaired") } else { Ok(()) }
    }
}

/// What there is on the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Regular files.
    pub files: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// Symlinks.
    pub symlinks: u64,
    /// Devices, FIFOs and sockets.
    pub special: u64,
    /// Additional names (hard links beyond a file's first name).
    pub links: u64,
    /// Inodes without a name: open when the volume was last used, and unlinked by then or made without one.
    pub orphans: u64,
    /// Inodes whose extents stand in a tree.
    pub trees: u64,
    /// Inodes with extended attributes in blocks of their own.
    pub outside_xattrs: u64,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Blocks in use, for whatever.
    pub blocks_used: u64,
    /// Segments that hold inodes.
    pub inode_segments: u64,
    /// Epoch of the checkpoint.
    pub checkpoint_epoch: u64,
    /// Whole epochs in the log behind the checkpoint.
    pub log_epochs: u64,
    /// Pages of data that stand only in the log.
    pub log_pages: u64,
    /// Inodes in the index checkpoint; 0 when there is none.
    pub index_inodes: u64,
}

/// The outcome of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Everything found, notes included, in the order found.
    pub problems: Vec<Problem>,
    /// Problems beyond the [`PROBLEMS_MAX`] that are listed, without notes.
    pub omitted: u64,
    /// Those were put in order.
    pub omitted_repaired: bool,
    /// What there is, after repair when that was asked for.
    pub counts: Counts,
    /// The volume was stopped cleanly.
    pub stopped_cleanly: bool,
    /// Why the log ends where it does, when something that is no whole epoch stands behind it.
    pub log_cut: Option<String>,
    /// Something was written to the medium.
    pub written: bool,
    #[serde(skip)]
    seen: HashSet<u64>,
}

/// Most problems that a report lists.
pub const PROBLEMS_MAX: usize = 10_000;

impl Report {
    /// Nothing is damaged, or everything that was is repaired.
    pub fn is_clean(&self) -> bool {
        (self.omitted == 0 || self.omitted_repaired) && self.damage().all(|p| p.repaired)
    }
    /// The problems that are more than notes.
    pub fn damage(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter().filter(|p| p.severity > Severity::Note)
    }

    /// Adds a problem, unless an earlier pass of a repair has told it already.
    pub(crate) fn add(&mut self, problem: Problem) {
        if self.problems.len() >= PROBLEMS_MAX {
            self.omit(&problem);
        } else if self.is_new(&problem) {
            self.problems.push(problem);
        }
    }
    /// Counts a problem that is not listed.
    pub(crate) fn omit(&mut self, problem: &Problem) {
        self.omitted += (self.is_new(problem) && problem.severity > Severity::Note) as u64;
    }
    /// Everything that was found is in order now.
    pub(crate) fn repaired(&mut self) {
        let damage = self.problems.iter_mut().filter(|p| p.severity == Severity::Damage);
        damage.for_each(|p| p.repaired = true);
        self.omitted_repaired = true;
    }

    fn is_new(&mut self, problem: &Problem) -> bool {
        let mut hasher = DefaultHasher::new();
        (problem.structure, problem.block, problem.inode, &problem.what).hash(&mut hasher);
        self.seen.insert(hasher.finish())
    }
}
