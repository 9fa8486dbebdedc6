//! The generator of operations: weighted, seeded, with knobs.
//!
//! Most operations are plausible (directories where directories are wanted, open handles, good names), about one in ten
//! is not: slots that hold the wrong thing or nothing, closed handles, bad names, users without the right.

use super::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// What to generate. Start from one of the constructors and change fields.
#[derive(Clone, Debug)]
pub struct Knobs {
    /// How often operations on names come up, against the others.
    pub names: u32,
    /// How often attributes are changed and asked for.
    pub attrs: u32,
    /// How often files are opened and data are read and written.
    pub data: u32,
    /// How often extended attributes come up.
    pub xattrs: u32,
    /// How often locks come up.
    pub locks: u32,
    /// How often fsync, barrier and sync come up.
    pub durability: u32,
    /// Users other than root.
    pub users: bool,
    /// A user that was checked above the contract.
    pub checked: bool,
    /// Names and modes that no kernel passes on.
    pub bad_arguments: bool,
    /// Several attributes changed at once.
    pub set_many: bool,
    /// DIRECT and the SYNC flags.
    pub direct: bool,
    /// Offsets and sizes reach up to this many bytes; most stay far lower.
    pub size_max: u64,
    /// Longest write and read, bytes.
    pub len_max: u32,
    /// Longest range given to fallocate and copy_range, bytes.
    pub range_max: u64,
    /// Sizes and offsets around the largest file, to see `TooLarge`.
    pub file_size_limit: bool,
    /// Longest value of an extended attribute, bytes.
    pub xattr_len_max: u32,
}

impl Knobs {
    /// Everything the contract has, up to its limits.
    pub fn everything() -> Knobs {
        Knobs {
            names: 10,
            attrs: 5,
            data: 10,
            xattrs: 3,
            locks: 3,
            durability: 1,
            users: true,
            checked: true,
            bad_arguments: true,
            set_many: true,
            direct: true,
            size_max: 1 << 44,
            len_max: 20_000,
            range_max: 1 << 20,
            file_size_limit: true,
            xattr_len_max: 70_000,
        }
    }

    /// What the host's file system can do as well: see `host`.
    pub fn host() -> Knobs {
        Knobs {
            checked: false,
            bad_arguments: false,
            set_many: false,
            size_max: 1 << 43,
            file_size_limit: false,
            xattr_len_max: 500,
            ..Knobs::everything()
        }
    }

    /// Mostly names: creating, renaming, removing.
    pub fn name_heavy() -> Knobs {
        Knobs { names: 30, data: 3, ..Knobs::everything() }
    }

    /// Mostly data, with writes beyond 2 MiB.
    pub fn data_heavy() -> Knobs {
        Knobs {
            names: 3,
            attrs: 1,
            data: 30,
            xattrs: 1,
            locks: 0,
            durability: 4,
            users: false,
            checked: false,
            len_max: 3 << 20,
            range_max: 16 << 20,
            ..Knobs::everything()
        }
    }

    /// What a crash test wants: changes and many barriers, by root.
    pub fn crash() -> Knobs {
        Knobs {
            durability: 8,
            locks: 0,
            users: false,
            checked: false,
            bad_arguments: false,
            file_size_limit: false,
            len_max: 100_000,
            ..Knobs::everything()
        }
    }
}

/// An endless source of operations. The same seed and knobs give the same operations.
pub struct Generator {
    rng: SmallRng,
    knobs: Knobs,
    made: usize,
}

const PERMS: [u16; 14] =
    [0o777, 0o777, 0o755, 0o755, 0o700, 0o644, 0o600, 0o666, 0o1777, 0o2775, 0o4755, 0o6777, 0o2644, 0o000];

impl Iterator for Generator {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        self.made += 1;
        // Users may work in the root and in a directory of their own from the start.
        match self.made {
            1 => return Some(Op::Chmod { who: Who::Root, node: 0, perm: 0o777 }),
            2 => return Some(Op::MkDir { who: self.who(), dir: 0, name: 0, perm: 0o777, into: 1 }),
            _ => {}
        }
        let k = &self.knobs;
        let groups = [k.names, k.attrs, k.data, k.xattrs, k.locks, k.durability];
        Some(match self.pick(&groups) {
            0 => self.names(),
            1 => self.attrs(),
            2 => self.data(),
            3 => self.xattrs(),
            4 => self.locks(),
            _ => self.durability(),
        })
    }
}

impl Generator {
    /// A generator with this seed.
    pub fn new(seed: u64, knobs: Knobs) -> Generator {
        Generator { rng: SmallRng::seed_from_u64(seed), knobs, made: 0 }
    }

    /// The first `count` operations.
    pub fn ops(seed: u64, knobs: Knobs, count: usize) -> Vec<Op> {
        Generator::new(seed, knobs).take(count).collect()
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

    fn dir(&mut self) -> u8 {
        match self.rng.random_range(0..20) {
            0 => self.rng.random_range(0..NODE_SLOTS),
            1..7 => 0,
            _ => self.rng.random_range(0..DIR_SLOTS),
        }
    }

    fn dir_into(&mut self) -> u8 {
        self.rng.random_range(1..DIR_SLOTS)
    }

    fn file(&mut self) -> u8 {
        if self.one_in(12) { self.node() } else { self.file_into() }
    }

    fn file_into(&mut self) -> u8 {
        self.rng.random_range(DIR_SLOTS..NODE_SLOTS)
    }

    fn node(&mut self) -> u8 {
        self.rng.random_range(0..NODE_SLOTS)
    }

    fn name(&mut self) -> u8 {
        if self.one_in(30) {
            let all = if self.knobs.bad_arguments { NAMES } else { KERNEL_NAMES };
            self.rng.random_range(0..all)
        } else {
            self.rng.random_range(0..GOOD_NAMES)
        }
    }

    fn perm(&mut self) -> u16 {
        if self.one_in(8) { self.rng.random_range(0..=0o7777) } else { self.of(&PERMS) }
    }

    fn names(&mut self) -> Op {
        let (who, dir, name) = (self.who(), self.dir(), self.name());
        match self.pick(&[5, 1, 3, 5, 3, 3, 5, 3, 7, 3, 3, 1]) {
            0 => {
                let into = if self.one_in(3) { self.dir_into() } else { self.file_into() };
                let name = if self.one_in(12) { 12 + self.rng.random_range(0..2) } else { name };
                Op::Lookup { who, dir, name, into }
            }
            1 => {
                let names = (0..self.rng.random_range(1..4)).map(|_| self.name()).collect();
                Op::Walk { who, dir, names, into: self.node() }
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
                Op::MkNod {
                    who,
                    dir,
                    name,
                    mode,
                    rdev: self.of(&[0x103, 0x501, 0x12345]),
                    into: self.file_into(),
                }
            }
            3 => Op::MkDir { who, dir, name, perm: self.perm(), into: self.dir_into() },
            4 => {
                let target = match self.rng.random_range(0..12) {
                    0 => self.of(&[0, 1000, 4094, 4095, 4096, 5000]),
                    _ => self.rng.random_range(1..999),
                };
                Op::SymLink { who, dir, name, target, into: self.file_into() }
            }
            5 => Op::Link { who, node: self.file(), dir, name },
            6 => Op::Unlink { who, dir, name },
            7 => Op::RmDir { who, dir, name },
            8 => self.rename(who, dir, name),
            9 => Op::OpenDir { who, node: dir, into: self.rng.random_range(FILE_HANDLES..HANDLE_SLOTS) },
            10 => Op::ReadDir { handle: self.dir_handle(), batch: self.rng.random_range(0..4) },
            _ => {
                let changes = (0..self.rng.random_range(1..5)).map(|_| self.change()).collect();
                Op::ScanDuring { handle: self.dir_handle(), batch: self.rng.random_range(1..4), changes }
            }
        }
    }

    fn rename(&mut self, who: Who, dir: u8, name: u8) -> Op {
        let new_dir = if self.one_in(3) { dir } else { self.dir() };
        let flags = match self.pick(&[12, 3, 5, 1]) {
            0 => 0,
            1 => 1,
            2 => 2,
            _ => 3,
        };
        Op::Rename { who, dir, name, new_dir, new_name: self.name(), flags }
    }

    /// A change of names, for the middle of a scan.
    fn change(&mut self) -> Op {
        let (who, dir, name) = (Who::Root, self.dir(), self.name());
        match self.rng.random_range(0..4) {
            0 => Op::MkNod { who, dir, name, mode: libc::S_IFREG | 0o644, rdev: 0, into: self.file_into() },
            1 => Op::Unlink { who, dir, name },
            2 => Op::MkDir { who, dir, name, perm: 0o755, into: self.dir_into() },
            _ => self.rename(who, dir, name),
        }
    }

    fn attrs(&mut self) -> Op {
        let (who, node) = (self.who(), self.node());
        match self.pick(&[6, 4, 4, 4, 3, 2 * self.knobs.set_many as u32, 3, 2, 1]) {
            0 => {
                let handle = self.one_in(4).then(|| self.file_handle());
                Op::GetAttr { node, handle }
            }
            1 => Op::Chmod { who, node, perm: self.perm() },
            2 => {
                let uid = self.one_in(2).then(|| self.of(&[0, 1000, 1001]));
                let gid = (uid.is_none() || self.one_in(2)).then(|| self.of(&[0, 1000, 1001, 2000]));
                Op::Chown { who, node, uid, gid }
            }
            3 => {
                let handle = self.one_in(2).then(|| self.file_handle());
                Op::Truncate { who, node: self.file(), size: self.size(), handle }
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
            7 => Op::ReadLink { who, node: self.file() },
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
        let (who, node) = (self.who(), self.node());
        let attr = match self.knobs.bad_arguments && self.one_in(10) {
            true => self.rng.random_range(0..XATTRS),
            false => self.rng.random_range(0..GOOD_XATTRS),
        };
        match self.pick(&[3, 2, 5, 2]) {
            0 => Op::GetXattr { who, node, attr },
            1 => Op::ListXattr { who, node },
            2 => {
                let max = self.knobs.xattr_len_max;
                let len = match self.rng.random_range(0..20) {
                    0 => 0,
                    1 => max,
                    2 => (64 << 10).min(max),
                    3 => ((64 << 10) + 1).min(max),
                    4 => self.rng.random_range(0..=max),
                    _ => self.rng.random_range(0..=max.min(200)),
                };
                let flags = self.of(&[0, 0, 0, 1, 2, 3]);
                Op::SetXattr { who, node, attr, len, pattern: self.rng.random(), flags }
            }
            _ => Op::RemoveXattr { who, node, attr },
        }
    }

    fn file_handle(&mut self) -> u8 {
        if self.one_in(25) { self.any_handle() } else { self.rng.random_range(0..FILE_HANDLES) }
    }

    fn dir_handle(&mut self) -> u8 {
        if self.one_in(25) { self.any_handle() } else { self.rng.random_range(FILE_HANDLES..HANDLE_SLOTS) }
    }

    fn any_handle(&mut self) -> u8 {
        self.rng.random_range(0..HANDLE_SLOTS)
    }

    /// An offset: mostly small, sometimes at a border of a block or segment, sometimes far out.
    fn offset(&mut self) -> u64 {
        let max = self.knobs.size_max;
        match self.rng.random_range(0..40) {
            0 if self.knobs.file_size_limit => self.of(&[1 << 60, (1 << 60) - 512, (1 << 60) + 512, 1 << 62]),
            0 | 1 => self.rng.random_range(0..=max),
            2 | 3 => (1u64 << self.rng.random_range(12..44)).min(max),
            4..12 => (self.rng.random_range(0..20) * 4096 + self.of(&[0, 1, 4095, 512])).min(max),
            12 | 13 => ((2 << 20) + self.of(&[0, 1, 4096]) - self.of(&[0, 1, 4096])).min(max),
            14..20 => 0,
            _ => self.rng.random_range(0..40_000).min(max),
        }
    }

    fn size(&mut self) -> u64 {
        self.offset()
    }

    fn len(&mut self) -> u32 {
        let max = self.knobs.len_max;
        match self.rng.random_range(0..20) {
            0 => 0,
            1 => self.rng.random_range(0..=max),
            2..8 => (self.rng.random_range(1..6) * 4096).min(max),
            _ => self.rng.random_range(1..=9000.min(max)),
        }
    }

    fn range(&mut self) -> u64 {
        let max = self.knobs.range_max;
        match self.rng.random_range(0..20) {
            0 => 0,
            1 | 2 => self.rng.random_range(0..=max),
            3..8 => (self.rng.random_range(1..6) * 4096).min(max),
            _ => self.rng.random_range(1..=20_000.min(max)),
        }
    }

    fn open_flags(&mut self) -> fs::OpenFlags {
        use fs::OpenFlags as F;
        let mut flags =
            self.of(&[F::READ | F::WRITE, F::READ | F::WRITE, F::READ | F::WRITE, F::READ, F::WRITE]);
        if self.one_in(6) {
            flags |= F::APPEND;
        } else if self.knobs.direct && self.one_in(15) {
            flags |= F::DIRECT;
        }
        let rare = [(F::TRUNCATE, 8), (F::NOATIME, 10), (F::SYNC, 20), (F::DSYNC, 20)];
        for (flag, n) in rare {
            flags.set(flag, self.one_in(n) && (self.knobs.direct || n < 20));
        }
        flags
    }

    /// An offset for a transfer, and a length. Transfers do not reach across the largest size: how much of such a write is
    /// done is up to the file system.
    fn transfer(&mut self) -> (u64, u32) {
        let (offset, len) = (self.offset(), self.len());
        let (offset, len) = if self.one_in(10) { (offset & !511, len & !511) } else { (offset, len) };
        let limit = format::limits::FILE_SIZE_MAX;
        let crosses = offset < limit && offset + len as u64 > limit;
        (offset, if crosses { 512.min(limit - offset) as u32 } else { len })
    }

    fn data(&mut self) -> Op {
        match self.pick(&[4, 4, 1, 8, 14, 4, 5, 3, 4]) {
            0 => {
                let flags = self.open_flags().bits();
                Op::Open {
                    who: self.who(),
                    node: self.file(),
                    flags,
                    into: self.rng.random_range(0..FILE_HANDLES),
                }
            }
            1 => {
                let exclusive = if self.one_in(4) { fs::OpenFlags::EXCLUSIVE.bits() } else { 0 };
                let flags = self.open_flags().bits() | exclusive;
                let (who, dir, name, perm) = (self.who(), self.dir(), self.name(), self.perm());
                let (node_into, into) = (self.file_into(), self.rng.random_range(0..FILE_HANDLES));
                Op::Create { who, dir, name, perm, flags, node_into, into }
            }
            2 => {
                let exclusive = if self.one_in(4) { fs::OpenFlags::EXCLUSIVE.bits() } else { 0 };
                let flags = self.open_flags().bits() | exclusive;
                let (who, dir, perm) = (self.who(), self.dir(), self.perm());
                let (node_into, into) = (self.file_into(), self.rng.random_range(0..FILE_HANDLES));
                Op::TmpFile { who, dir, perm, flags, node_into, into }
            }
            3 => {
                let (offset, len) = self.transfer();
                Op::Read { handle: self.file_handle(), offset, len }
            }
            4 => {
                let (offset, len) = self.transfer();
                Op::Write { handle: self.file_handle(), offset, len, pattern: self.rng.random() }
            }
            5 => Op::Close { handle: self.any_handle() },
            6 => {
                let all = [
                    Space::Allocate,
                    Space::AllocateKeep,
                    Space::Punch,
                    Space::Punch,
                    Space::Zero,
                    Space::ZeroKeep,
                ];
                Op::Fallocate {
                    handle: self.file_handle(),
                    what: self.of(&all),
                    offset: self.offset(),
                    len: self.range(),
                }
            }
            7 => Op::Seek { handle: self.file_handle(), offset: self.offset(), hole: self.one_in(2) },
            _ => {
                let from = self.file_handle();
                let to = if self.one_in(2) { from } else { self.file_handle() };
                let (from_offset, to_offset) = (self.offset(), self.offset());
                let limit = format::limits::FILE_SIZE_MAX;
                let len = self.range();
                let len = if to_offset < limit { len.min(limit - to_offset) } else { len };
                Op::CopyRange { from, from_offset, to, to_offset, len }
            }
        }
    }

    fn locks(&mut self) -> Op {
        let handle = self.file_handle();
        let start = self.rng.random_range(0..20);
        let end = if self.one_in(5) { u64::MAX } else { start + self.rng.random_range(0..10) };
        match self.pick(&[2, 5, 2, 1]) {
            0 => Op::GetLk { handle, start, end, exclusive: self.one_in(2) },
            1 => Op::SetLk { handle, start, end, exclusive: self.of(&[None, Some(true), Some(false)]) },
            2 => Op::Flock { handle, exclusive: self.of(&[None, Some(true), Some(false)]) },
            _ => Op::Flush { handle },
        }
    }

    fn durability(&mut self) -> Op {
        let datasync = self.one_in(2);
        match self.pick(&[4, 4, 1]) {
            0 => Op::Fsync { handle: self.any_handle(), datasync },
            1 => Op::Barrier { handle: self.any_handle(), datasync },
            _ => Op::Sync,
        }
    }
}
