//! Small workloads in the manner of ACE (CrashMonkey): every operation on every sensible argument, with every placement of
//! a sync or barrier, and pairs of them.
//!
//! The tree to begin with: directories A (empty but for foo) and B (empty), foo of 9000 bytes, bar of 5000 bytes, A/foo of
//! 2000 bytes (inline), an attribute on foo.

use crate::ops::{Op, Op::*, Space::*, Who};
use fs::{OpenFlags, RenameFlags};
use rand::Rng;
use rand::rngs::SmallRng;

pub(super) const A: u8 = 0;
pub(super) const B: u8 = 1;
pub(super) const FOO: u8 = 2;
pub(super) const BAR: u8 = 3;
pub(super) const NEW: u8 = 4;
pub(super) const ROOT: u8 = 0;
/// Slots of A and B, and of files.
pub(super) const DIR_A: u8 = 1;
pub(super) const DIR_B: u8 = 2;
pub(super) const FILE: u8 = 8;
pub(super) const FILE_BAR: u8 = 9;
pub(super) const FILE_A: u8 = 10;
pub(super) const OTHER: u8 = 12;
pub(super) const RW: u32 = OpenFlags::READ.union(OpenFlags::WRITE).bits();
pub(super) const WHO: Who = Who::Root;

fn create(dir: u8, name: u8, flags: u32) -> Op {
    Create { who: WHO, dir, name, perm: 0o644, flags, node_into: OTHER, into: 5 }
}
fn write(handle: u8, offset: u64, len: u32) -> Op {
    Write { handle, offset, len, pattern: 7 + offset as u32 + len }
}
fn rename(dir: u8, name: u8, new_dir: u8, new_name: u8) -> Op {
    Rename { who: WHO, dir, name, new_dir, new_name, flags: 0 }
}
fn exchange(dir: u8, name: u8, new_dir: u8, new_name: u8) -> Op {
    Rename { who: WHO, dir, name, new_dir, new_name, flags: RenameFlags::EXCHANGE.bits() }
}
fn truncate(node: u8, size: u64) -> Op {
    Truncate { who: WHO, node, size, handle: None }
}
fn set(node: u8, attr: u8, len: u32) -> Op {
    SetXattr { who: WHO, node, attr, len, pattern: len, flags: 0 }
}

/// Makes the tree to begin with, durably.
pub fn tree() -> Vec<Op> {
    vec![
        MkDir { who: WHO, dir: ROOT, name: A, perm: 0o755, into: DIR_A },
        MkDir { who: WHO, dir: ROOT, name: B, perm: 0o755, into: DIR_B },
        create(ROOT, FOO, RW),
        write(5, 0, 9000),
        set(OTHER, 0, 20),
        create(ROOT, BAR, RW),
        write(5, 0, 5000),
        create(DIR_A, FOO, RW),
        write(5, 0, 2000),
        Sync,
    ]
}

/// Finds and opens what [`tree`] made: handles 0 foo, 1 A/foo, 2 bar, 3 foo for direct transfers. On a recovered volume
/// some of it may be gone, and what needs it then fails.
pub fn opening() -> Vec<Op> {
    let direct = RW | OpenFlags::DIRECT.bits();
    let look = |dir, name, into| Lookup { who: WHO, dir, name, into };
    let open = |node, flags, into| Open { who: WHO, node, flags, into };
    vec![
        look(ROOT, A, DIR_A),
        look(ROOT, B, DIR_B),
        look(ROOT, FOO, FILE),
        look(ROOT, BAR, FILE_BAR),
        look(DIR_A, FOO, FILE_A),
        open(FILE, RW, 0),
        open(FILE_A, RW, 1),
        open(FILE_BAR, RW, 2),
        open(FILE, direct, 3),
    ]
}

/// Every operation with every sensible argument.
pub fn operations() -> Vec<Op> {
    let mut ops = vec![
        create(ROOT, NEW, RW),
        create(DIR_A, BAR, RW),
        create(ROOT, FOO, RW | OpenFlags::TRUNCATE.bits()),
        MkDir { who: WHO, dir: ROOT, name: NEW, perm: 0o755, into: 3 },
        MkDir { who: WHO, dir: DIR_A, name: NEW, perm: 0o755, into: 3 },
        MkDir { who: WHO, dir: DIR_B, name: NEW, perm: 0o755, into: 3 },
        SymLink { who: WHO, dir: ROOT, name: NEW, target: 3, into: OTHER },
        SymLink { who: WHO, dir: DIR_A, name: NEW, target: 4000, into: OTHER },
        MkNod { who: WHO, dir: ROOT, name: NEW, mode: 0o020644, rdev: 5, into: OTHER },
        Chmod { who: WHO, node: FILE, perm: 0o600 },
        Chown { who: WHO, node: DIR_A, uid: Some(5), gid: Some(6) },
        Link { who: WHO, node: FILE, dir: ROOT, name: NEW },
        Link { who: WHO, node: FILE, dir: DIR_B, name: NEW },
        Link { who: WHO, node: FILE_A, dir: ROOT, name: NEW },
        Unlink { who: WHO, dir: ROOT, name: FOO },
        Unlink { who: WHO, dir: ROOT, name: BAR },
        Unlink { who: WHO, dir: DIR_A, name: FOO },
        RmDir { who: WHO, dir: ROOT, name: B },
        rename(ROOT, FOO, ROOT, NEW),
        rename(ROOT, FOO, ROOT, BAR),
        rename(ROOT, FOO, DIR_A, BAR),
        rename(ROOT, FOO, DIR_A, FOO),
        rename(DIR_A, FOO, ROOT, FOO),
        rename(ROOT, A, ROOT, NEW),
        rename(ROOT, A, ROOT, B),
        rename(ROOT, B, DIR_A, NEW),
        exchange(ROOT, FOO, DIR_A, FOO),
        exchange(ROOT, FOO, ROOT, A),
        set(FILE, 0, 100),
        set(FILE, 1, 3000),
        set(FILE, 1, 9000),
        set(DIR_A, 0, 50),
        set(FILE_A, 2, 1000),
        RemoveXattr { who: WHO, node: FILE, attr: 0 },
        CopyRange { from: 0, from_offset: 0, to: 2, to_offset: 4096, len: 9000 },
        CopyRange { from: 2, from_offset: 0, to: 1, to_offset: 0, len: 5000 },
    ];
    ops.extend([0, 4096, 5000, 20_000].map(|size| truncate(FILE, size)));
    ops.extend([0, 1000, 10_000].map(|size| truncate(FILE_A, size)));
    let falloc = |handle, what, offset, len| Fallocate { handle, what, offset, len };
    for what in [Allocate, AllocateKeep, Punch, Zero, ZeroKeep] {
        ops.extend([(4096, 4096), (100, 5000), (8192, 12_000)].map(|(at, len)| falloc(0, what, at, len)));
        ops.extend([(100, 500), (0, 8192)].map(|(at, len)| falloc(1, what, at, len)));
    }
    let places =
        [(0, 4096), (100, 300), (4000, 5000), (0, 12_288), (9000, 4096), (20_000, 5000), (0, 100_000)];
    ops.extend(places.map(|(at, len)| write(0, at, len)));
    ops.extend([(0, 100), (1500, 1000), (2000, 5000)].map(|(at, len)| write(1, at, len)));
    ops.extend([(0, 4096), (4096, 8192), (512, 1024), (12_288, 4096)].map(|(at, len)| write(3, at, len)));
    ops
}

/// Ways to end, or to go on after, an operation.
pub fn persistences() -> Vec<Vec<Op>> {
    let idle = vec![StatFs; 7];
    vec![
        idle,
        vec![Sync],
        vec![Fsync { handle: 0, datasync: false }],
        vec![Barrier { handle: 0, datasync: false }],
        vec![Barrier { handle: 1, datasync: true }, Fsync { handle: 1, datasync: true }],
    ]
}

/// All workloads of one operation and one persistence.
pub fn singles() -> Vec<Vec<Op>> {
    let all = persistences();
    operations()
        .into_iter()
        .flat_map(|op| all.iter().map(move |p| [opening(), vec![op.clone()], p.clone()].concat()))
        .collect()
}

/// A workload of `count` operations, each with a persistence or none, by chance.
pub fn some(count: usize, rng: &mut SmallRng) -> Vec<Op> {
    let (ops, ends) = (operations(), persistences());
    let mut out = opening();
    for _ in 0..count {
        out.push(ops[rng.random_range(0..ops.len())].clone());
        let end = rng.random_range(0..ends.len() + 3);
        out.extend(ends.get(end).into_iter().flatten().cloned());
    }
    out
}
