//! The plan of a file set: its directories, and the path, size and first state of every file. Made before any process starts, so
//! that all processes know the same files; the same configuration and seed give the same plan.
//!
//! The tree is Filebench's: a directory that is deep enough holds files, another holds directories; depths and widths are
//! gamma-distributed, with mean depth log(files) / log(mean width); the root takes further directories until all files have a
//! place. Names are eight digits. Filebench tosses a coin for each file whether it exists at the start; here exactly the given
//! share exists, chosen by the seed, so that a small set never runs out of files to create.

use crate::personality::Parameters;
use crate::random::Random;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// No tree is deeper than this; the gamma distribution has no end, path names have.
const DEPTH_MAX: u32 = 24;
/// Names of the sets, as in Filebench's own personalities.
const SET: &str = "bigfileset";
const LOGS: &str = "logfiles";

/// A file of the set.
#[derive(Debug)]
pub struct File {
    /// Its path, as it is given to the calls.
    pub path: CString,
    /// Bytes it is written with when it is made.
    pub size: u64,
    /// Whether it exists when the run begins.
    pub exists: bool,
}

/// The file set, and the log if the personality has one.
#[derive(Debug)]
pub struct Plan {
    /// Directories, parents before children.
    pub dirs: Vec<CString>,
    /// The files that operations pick from.
    pub files: Vec<File>,
    /// The log; not one of `files`.
    pub log: Option<File>,
}

struct Tree<'a> {
    parameters: &'a Parameters,
    random: Random,
    mean_depth: f64,
    dirs: Vec<Vec<u8>>,
    files: Vec<Vec<u8>>,
}

impl Plan {
    /// Plans the set below `dir` with `parameters` (of which `files` must not be 0).
    ///
    /// Errors: `dir` holds a zero byte.
    pub fn new(dir: &Path, parameters: &Parameters, seed: u64) -> Result<Plan, std::ffi::NulError> {
        let root = |name: &str| dir.join(name).as_os_str().as_bytes().to_vec();
        let width = parameters.mean_dir_width.max(2) as f64;
        let mut tree = Tree {
            parameters,
            random: Random::new(seed, 0),
            mean_depth: f64::from(parameters.files).ln() / width.ln(),
            dirs: Vec::new(),
            files: Vec::new(),
        };
        tree.grow(root(SET), 1);

        let mut random = tree.random;
        let mut size = || random.gamma(parameters.mean_file_size as f64) as u64;
        let sizes: Vec<u64> = tree.files.iter().map(|_| size()).collect();
        let log_size = size();
        let exists = choose(tree.files.len(), parameters.existing_percent, &mut random);

        let mut dirs = tree.dirs;
        let log = match parameters.log {
            false => None,
            true => {
                dirs.push(root(LOGS));
                let dir = child(&root(LOGS), 1);
                let path = CString::new(child(&dir, 1))?;
                dirs.push(dir);
                Some(File { path, size: log_size, exists: true })
            }
        };
        let files = tree.files.into_iter().zip(sizes).zip(exists);
        Ok(Plan {
            dirs: dirs.into_iter().map(CString::new).collect::<Result<_, _>>()?,
            files: files
                .map(|((path, size), exists)| Ok(File { path: CString::new(path)?, size, exists }))
                .collect::<Result<_, _>>()?,
            log,
        })
    }

    /// The files that are made before the run, the log among them.
    pub fn made(&self) -> impl Iterator<Item = &File> {
        self.files.iter().chain(&self.log).filter(|f| f.exists)
    }

    /// File `i` of the set, or the log for the number behind the last; None further on.
    pub fn any(&self, i: usize) -> Option<&File> {
        if i == self.files.len() { self.log.as_ref() } else { self.files.get(i) }
    }
}

impl Tree<'_> {
    fn full(&self) -> bool {
        self.files.len() >= self.parameters.files as usize
    }

    /// Makes the directory `path`, which is at `depth` (the root is at 1), and fills it.
    fn grow(&mut self, path: Vec<u8>, depth: u32) {
        self.dirs.push(path.clone());
        let own_depth = self.random.gamma(self.mean_depth).floor().max(1.0);
        let width = self.random.gamma(self.parameters.mean_dir_width as f64);
        let root = depth == 1;
        let leaf = !root && (f64::from(depth) >= own_depth || depth >= DEPTH_MAX);
        let mut number = 1u32;
        while (root || f64::from(number) < width + 1.0) && !self.full() {
            let path = child(&path, number);
            if leaf {
                self.files.push(path);
            } else {
                self.grow(path, depth + 1);
            }
            number += 1;
        }
    }
}

fn child(dir: &[u8], number: u32) -> Vec<u8> {
    [dir, format!("/{number:08}").as_bytes()].concat()
}

/// Chooses `percent` of `n` (rounded down).
fn choose(n: usize, percent: u32, random: &mut Random) -> Vec<bool> {
    let mut chosen = vec![false; n];
    let mut order: Vec<usize> = (0..n).collect();
    let count = n * percent as usize / 100;
    for i in 0..count {
        order.swap(i, i + random.below((n - i) as u64) as usize);
        chosen[order[i]] = true;
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::personality::Personality;
    use std::collections::HashSet;

    fn plan(personality: Personality, seed: u64) -> Plan {
        Plan::new(Path::new("/x"), &personality.parameters(), seed).unwrap()
    }

    #[test]
    fn sets_have_their_number_of_files_and_mean_size() {
        for personality in Personality::ALL {
            let parameters = personality.parameters();
            let plan = plan(personality, 1);
            let n = parameters.files as usize;
            assert_eq!(plan.files.len(), n);
            assert_eq!(plan.files.iter().map(|f| &f.path).collect::<HashSet<_>>().len(), n);
            let mean = plan.files.iter().map(|f| f.size).sum::<u64>() as f64 / n as f64;
            let off = mean / parameters.mean_file_size as f64 - 1.0;
            assert!(off.abs() < 0.1, "{personality:?}: mean off by {off}");
            let exist = plan.files.iter().filter(|f| f.exists).count();
            assert_eq!(exist, n * parameters.existing_percent as usize / 100);
            assert_eq!(plan.made().count(), exist + usize::from(parameters.log));
        }
    }

    #[test]
    fn every_directory_stands_behind_its_parent() {
        for personality in Personality::ALL {
            let plan = plan(personality, 2);
            let mut seen = HashSet::from([b"/x".to_vec()]);
            let parent = |path: &[u8]| path[..path.iter().rposition(|&b| b == b'/').unwrap()].to_vec();
            for dir in &plan.dirs {
                assert!(seen.contains(&parent(dir.as_bytes())), "{dir:?}");
                assert!(seen.insert(dir.as_bytes().to_vec()));
            }
            for file in plan.files.iter().chain(&plan.log) {
                assert!(seen.contains(&parent(file.path.as_bytes())));
            }
        }
    }

    /// A fileserver's directories hold about 20 files, a mail server's files are all in few directories.
    #[test]
    fn directories_are_as_wide_as_asked() {
        let leaves = |plan: &Plan| {
            let dirs: HashSet<_> = plan
                .files
                .iter()
                .map(|f| Path::new(f.path.to_str().unwrap()).parent().unwrap().to_owned())
                .collect();
            dirs.len()
        };
        let wide = leaves(&plan(Personality::Fileserver, 3));
        assert!((350..700).contains(&wide), "{wide}");
        assert!(leaves(&plan(Personality::Varmail, 3)) <= 3);
    }

    #[test]
    fn the_seed_decides() {
        let paths = |seed| -> Vec<(CString, u64, bool)> {
            plan(Personality::Fileserver, seed)
                .files
                .into_iter()
                .map(|f| (f.path, f.size, f.exists))
                .collect()
        };
        assert_eq!(paths(5), paths(5));
        assert_ne!(paths(5), paths(6));
    }
}
