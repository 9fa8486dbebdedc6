//! The generator of operations: weighted, seeded, with knobs.
//!
//! Most operations are plausible (directories where directories are wanted, open handles, names that are there or are
//! not), some are not: slots that hold the wrong thing or nothing, closed handles, bad names, users without the right.
//! To know what is plausible the generator executes what it generates on a model of its own.
//!
//! Tested in `tests/generator.rs`: every operation succeeds and fails often enough.

mod files;

use super::knobs::Knobs;
use super::shadow::Shadow;
use super::*;
use fs::FileType;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// An endless source of operations. The same seed and knobs give the same operations.
pub struct Generator {
    rng: SmallRng,
    knobs: Knobs,
    shadow: Shadow,
    made: usize,
}

const PERMS: [u16; 14] =
    [0o777, 0o777, 0o755, 0o755, 0o700, 0o644, 0o600, 0o666, 0o1777, 0o2775, 0o4755, 0o6777, 0o2644, 0o000];

impl Iterator for Generator {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        // Users may work in the root and in a directory of their own from the start.
        let op = match self.made {
            0 => Op::Chmod { who: Who::Root, node: 0, perm: 0o777 },
            1 => Op::MkDir { who: self.who(), dir: 0, name: 0, perm: 0o777, into: 1 },
            _ => self.op(),
        };
        self.shadow.execute(self.made, &op);
        self.made += 1;
        Some(op)
    }
}

impl Generator {
    /// A generator with this seed.
    pub fn new(seed: u64, knobs: Knobs) -> Generator {
        Generator { rng: SmallRng::seed_from_u64(seed), knobs, shadow: Shadow::default(), made: 0 }
    }

    /// The first `count` operations.
    pub fn ops(seed: u64, knobs: Knobs, count: usize) -> Vec<Op> {
        Generator::new(seed, knobs).take(count).collect()
    }

    fn op(&mut self) -> Op {
        let k = &self.knobs;
        let groups = [k.names, k.attrs, k.data, k.xattrs, k.locks, k.durability];
        match self.pick(&groups) {
            0 => self.names(),
            1 => self.attrs(),
            2 => self.data(),
            3 => self.xattrs(),
            4 => self.locks(),
            _ => self.durability(),
        }
    }

    fn pick(&mut self, weights: &[u32]) -> usize {
        let mut at = self.rng.random_range(0..weights.iter().sum::<u32>().max(1));
        for (i, &weight) in weights.iter().enumerate() {
            if at < weight {
                return i;
            }
            at -= weight;
        }
        0
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.rng.random_range(0..n) == 0
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.rng.random_range(0..choices.len())]
    }

    fn who(&mut self) -> Who {
        match self.pick(&[
            4,
            3 * self.knobs.users as u32,
            2 * self.knobs.users as u32,
            self.knobs.checked as u32,
        ]) {
            0 => Who::Root,
            1 => Who::Alice,
            2 => Who::Bob,
            _ => Who::CheckedAlice,
        }
    }

    /// One of these, or what comes from `other` when there are none and now and then anyway.
    fn mostly(&mut self, good: &[u8], other: impl FnOnce(&mut Self) -> u8) -> u8 {
        if good.is_empty() || self.one_in(12) { other(self) } else { self.of(good) }
    }

    fn dir(&mut self) -> u8 {
        let dirs = self.shadow.nodes(|kind| kind == FileType::Directory);
        match self.one_in(4) {
            true => 0,
            false => self.mostly(&dirs, Self::any_node),
        }
    }

    fn dir_into(&mut self) -> u8 {
        self.rng.random_range(1..DIR_SLOTS)
    }

    fn file(&mut self) -> u8 {
        let files = self.shadow.nodes(|kind| kind == FileType::Regular);
        self.mostly(&files, Self::node)
    }

    fn file_into(&mut self) -> u8 {
        self.rng.random_range(DIR_SLOTS..NODE_SLOTS)
    }

    fn any_node(&mut self) -> u8 {
        self.rng.random_range(0..NODE_SLOTS)
    }

    /// A node of any kind, mostly one that exists.
    fn node(&mut self) -> u8 {
        let all = self.shadow.nodes(|_| true);
        self.mostly(&all, Self::any_node)
    }

    fn any_name(&mut self) -> u8 {
        if self.one_in(12) {
            let all = if self.knobs.bad_arguments { NAMES } else { KERNEL_NAMES };
            self.rng.random_range(0..all)
        } else {
            self.rng.random_range(0..GOOD_NAMES)
        }
    }

    /// A name that is not yet in the directory, mostly.
    fn new_name(&mut self, dir: u8) -> u8 {
        let used = self.shadow.names(dir, |_| true);
        let free: Vec<u8> = (0..GOOD_NAMES).filter(|name| !used.contains(name)).collect();
        if self.one_in(5) { self.any_name() } else { self.mostly(&free, Self::any_name) }
    }

    /// A name that is in the directory and leads to such an inode, mostly.
    fn old_name(&mut self, dir: u8, wanted: impl Fn(FileType) -> bool) -> u8 {
        let names = self.shadow.names(dir, wanted);
        if self.one_in(6) { self.any_name() } else { self.mostly(&names, Self::any_name) }
    }

    fn perm(&mut self) -> u16 {
        if self.one_in(8) { self.rng.random_range(0..=0o7777) } else { self.of(&PERMS) }
    }

    fn names(&mut self) -> Op {
        let (who, dir) = (self.who(), self.dir());
        match self.pick(&[5, 1, 3, 5, 3, 3, 4, 2, 8, 3, 3, self.knobs.scan_changes as u32]) {
            0 => {
                let into = if self.one_in(3) { self.dir_into() } else { self.file_into() };
                let name = match self.one_in(12) {
                    true => self.of(&[DOT, DOT_DOT]),
                    false => self.old_name(dir, |_| true),
                };
                Op::Lookup { who, dir, name, into }
            }
            1 => {
                let mut names = vec![self.old_name(dir, |kind| kind == FileType::Directory)];
                names.extend((0..self.rng.random_range(0..3)).map(|_| self.any_name()));
                Op::Walk { who, dir, names, into: self.any_node() }
            }
            2 => {
                let kinds = [
                    libc::S_IFREG,
                    libc::S_IFREG,
                    libc::S_IFIFO,
                    libc::S_IFSOCK,
                    libc::S_IFCHR,
                    libc::S_IFBLK,
                ];
                let mut mode = self.of(&kinds) | self.perm() as u32;
                if self.knobs.bad_arguments && self.one_in(20) {
                    mode = self.of(&[libc::S_IFDIR, libc::S_IFLNK, 0o030000]) | 0o644;
                }
                let (name, rdev) = (self.new_name(dir), self.of(&[0x103, 0x501, 0x12345]));
                Op::MkNod { who, dir, name, mode, rdev, into: self.file_into() }
            }
            3 => {
                let (name, perm) = (self.new_name(dir), self.perm());
                Op::MkDir { who, dir, name, perm, into: self.dir_into() }
            }
            4 => {
                let target = match self.rng.random_range(0..12) {
                    0 => self.of(&[0, 1000, 4094, 4095, 4096, 5000]),
                    _ => self.rng.random_range(1..999),
                };
                Op::SymLink { who, dir, name: self.new_name(dir), target, into: self.file_into() }
            }
            5 => {
                let node = if self.one_in(3) { self.node() } else { self.file() };
                Op::Link { who, node, dir, name: self.new_name(dir) }
            }
            6 => Op::Unlink { who, dir, name: self.old_name(dir, |kind| kind != FileType::Directory) },
            7 => {
                let empty = self.shadow.empty_directories(dir);
                let name = self.mostly(&empty, |g| g.old_name(dir, |kind| kind == FileType::Directory));
                Op::RmDir { who, dir, name }
            }
            8 => self.rename(who, dir),
            9 => Op::OpenDir { who, node: dir, into: self.rng.random_range(FILE_HANDLES..HANDLE_SLOTS) },
            10 => Op::ReadDir { handle: self.dir_handle(), batch: self.rng.random_range(0..4) },
            _ => {
                let changes = (0..self.rng.random_range(1..5)).map(|_| self.change()).collect();
                Op::ScanDuring { handle: self.dir_handle(), batch: self.rng.random_range(1..4), changes }
            }
        }
    }

    fn rename(&mut self, who: Who, dir: u8) -> Op {
        let new_dir = if self.one_in(3) { dir } else { self.dir() };
        let name = self.old_name(dir, |_| true);
        let (flags, replaces) = match self.pick(&[8, 6, 3, 5, 1]) {
            0 => (0, false),
            1 => (0, true),
            2 => (1, false),
            3 => (2, true),
            _ => (3, true),
        };
        let new_name = if replaces {
            let directory = self.shadow.leads_to_directory(dir, name);
            let any = flags != 0 || self.one_in(5);
            self.old_name(new_dir, |kind| any || (kind == FileType::Directory) == directory)
        } else {
            self.new_name(new_dir)
        };
        Op::Rename { who, dir, name, new_dir, new_name, flags }
    }

    /// A change of names, for the middle of a scan.
    fn change(&mut self) -> Op {
        let (who, dir) = (Who::Root, self.dir());
        match self.rng.random_range(0..4) {
            0 => {
                let mode = libc::S_IFREG | 0o644;
                Op::MkNod { who, dir, name: self.new_name(dir), mode, rdev: 0, into: self.file_into() }
            }
            1 => Op::Unlink { who, dir, name: self.old_name(dir, |kind| kind != FileType::Directory) },
            2 => Op::MkDir { who, dir, name: self.new_name(dir), perm: 0o755, into: self.dir_into() },
            _ => self.rename(who, dir),
        }
    }

    fn attrs(&mut self) -> Op {
        let (who, node) = (self.who(), self.node());
        match self.pick(&[6, 4, 4, 4, 3, 2 * self.knobs.set_many as u32, 3, 2, 1]) {
            0 => {
                let handle = self.one_in(4).then(|| self.any_handle());
                let node = handle.and_then(|handle| self.shadow.node_of_handle(handle)).unwrap_or(node);
                Op::GetAttr { node, handle }
            }
            1 => Op::Chmod { who, node, perm: self.perm() },
            2 => {
                let uid = self.one_in(2).then(|| self.of(&[0, 1000, 1001]));
                let gid = (uid.is_none() || self.one_in(2)).then(|| self.of(&[0, 1000, 1001, 2000]));
                Op::Chown { who, node, uid, gid }
            }
            3 => {
                let handle = self.one_in(2).then(|| self.writer());
                let node = handle.and_then(|handle| self.shadow.node_of_handle(handle));
                let node = node.unwrap_or_else(|| self.file());
                Op::Truncate { who, node, size: self.size(), handle }
            }
            4 => {
                let atime = (!self.one_in(3)).then(|| self.when());
                let mtime = (atime.is_none() || !self.one_in(3)).then(|| self.when());
                Op::SetTimes { who, node, atime, mtime }
            }
            5 => Op::SetMany {
                who,
                node: self.file(),
                perm: self.one_in(2).then(|| self.perm()),
                uid: self.one_in(3).then(|| self.of(&[0, 1000, 1001])),
                gid: self.one_in(3).then(|| self.of(&[0, 1000, 2000])),
                size: self.one_in(2).then(|| self.size()),
                mtime: self.one_in(2).then(|| self.when()),
            },
            6 => Op::Access { who, node, mask: self.rng.random_range(0..8) },
            7 => {
                let links = self.shadow.nodes(|kind| kind == FileType::Symlink);
                Op::ReadLink { who, node: self.mostly(&links, Self::node) }
            }
            _ => Op::StatFs,
        }
    }

    fn when(&mut self) -> When {
        match self.rng.random_range(0..4) {
            0 | 1 => When::Now,
            2 => When::At(
                self.of(&[0, -1, -1_000_000, 1, i32::MAX as i64, 1 << 32]),
                self.of(&[0, 999_999_999]),
            ),
            _ => When::At(self.rng.random_range(0..900_000_000), self.rng.random_range(0..1_000_000_000)),
        }
    }

    fn xattrs(&mut self) -> Op {
        let node = if self.one_in(3) { self.node() } else { self.file() };
        let who = if self.one_in(2) { Who::Root } else { self.who() };
        let names = match self.one_in(10) {
            true if self.knobs.bad_arguments => XATTRS,
            true => KERNEL_XATTRS,
            false => GOOD_XATTRS,
        };
        let attr = self.rng.random_range(0..names);
        let set = self.shadow.xattrs(node);
        let old = self.mostly(&set, |_| attr);
        match self.pick(&[3, 2, 5, 2]) {
            0 => Op::GetXattr { who, node, attr: old },
            1 => Op::ListXattr { who, node },
            2 => {
                let max = self.knobs.xattr_len_max;
                let len = match self.rng.random_range(0..20) {
                    0 => 0,
                    1 => max,
                    2 => (64 << 10).min(max),
                    3 if self.one_in(2) => ((64 << 10) + 1).min(max),
                    4 => self.rng.random_range(0..=max),
                    _ => self.rng.random_range(0..=max.min(200)),
                };
                let flags = self.of(&[0, 0, 0, 1, 2, 3]);
                Op::SetXattr { who, node, attr, len, pattern: self.rng.random(), flags }
            }
            _ => Op::RemoveXattr { who, node, attr: old },
        }
    }
}
