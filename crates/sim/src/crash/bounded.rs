//! All workloads of one and of two operations, with every placement of every persistence point: what ACE (CrashMonkey)
//! enumerates, over the same set of operations and files.
//!
//! Operations: creat, mkdir, falloc, write, direct write, write as by a mapping, link, symlink, unlink, remove, rename,
//! setting and removing an attribute, truncate; over foo, bar, A/foo, A/bar, A, B. Persistence points: none, fsync,
//! fdatasync, fbarrier, fdatabarrier on the file or directory that the operation concerns, and sync; in workloads of one
//! operation also on each of the others. Numbered, so that a part can be run and a failure be found again.
//!
//! The tree to begin with: directories A and B, foo of 9000 bytes with an attribute, bar of 5000 bytes, A/foo of 2000 bytes (so
//! that it stands in its inode); all of it durable. A/bar and what is in B does not exist until an operation makes it. What fails
//! because something is missing must fail in the model too.
//!
//! Beyond ACE: barriers. Not here: more than two operations (see [`super::ace::some`], [`super::clients`]).

use super::ace::{A, B, BAR, DIR_A, DIR_B, FILE, FILE_A, FILE_BAR, FOO, NEW, OTHER, ROOT, RW, WHO};
use crate::ops::{Op, Op::*, Space, Space::*};
use fs::OpenFlags;

/// Handles: foo, A/foo, bar, foo for direct transfers, A/bar once it is made; the root, A and B.
const H_FOO: u8 = 0;
const H_A_FOO: u8 = 1;
const H_BAR: u8 = 2;
const H_DIRECT: u8 = 3;
const H_A_BAR: u8 = 4;
const H_ROOT: u8 = 7;
const H_A: u8 = 8;
const H_B: u8 = 9;
const TARGETS: [u8; 7] = [H_FOO, H_A_FOO, H_BAR, H_A_BAR, H_ROOT, H_A, H_B];

/// An operation of the set: the calls it takes, and the handle of what it concerns.
#[derive(Clone, Debug)]
pub struct Step {
    /// The calls, mostly one.
    pub ops: Vec<Op>,
    /// Slot of the handle on which a persistence point behind it is called.
    pub handle: u8,
}

fn create(dir: u8, name: u8, flags: u32, node_into: u8, into: u8) -> Op {
    Create { who: WHO, dir, name, perm: 0o644, flags: RW | flags, node_into, into }
}

/// Finds and opens what [`super::ace::tree`] made. On a recovered volume some of it may be gone.
pub fn opening() -> Vec<Op> {
    let mut ops = super::ace::opening();
    let dir = |node, into| OpenDir { who: WHO, node, into };
    ops.extend([dir(ROOT, H_ROOT), dir(DIR_A, H_A), dir(DIR_B, H_B)]);
    ops
}

/// A page of a mapping that is written back: read as a whole, written as a whole.
fn mapped(handle: u8, page: u64, len: u32) -> Vec<Op> {
    let offset = page * 4096;
    vec![Read { handle, offset, len: 4096 }, Write { handle, offset, len, pattern: 90 + page as u32 }]
}

fn data() -> Vec<Step> {
    let write = |handle, offset, len: u32| Step {
        ops: vec![Write { handle, offset, len, pattern: 7 + offset as u32 + len }],
        handle,
    };
    let falloc = |handle, what: Space, offset, len| Step {
        ops: vec![Fallocate { handle, what, offset, len }],
        handle,
    };
    let mut steps = vec![
        falloc(H_FOO, Allocate, 8192, 12_000),
        falloc(H_FOO, AllocateKeep, 8192, 12_000),
        falloc(H_FOO, Punch, 4096, 4096),
        falloc(H_FOO, Zero, 100, 5000),
        falloc(H_BAR, AllocateKeep, 4096, 8192),
        falloc(H_A_FOO, ZeroKeep, 0, 8192),
        falloc(H_A_FOO, Punch, 100, 500),
        write(H_FOO, 9000, 4096),
        write(H_FOO, 0, 4096),
        write(H_FOO, 4000, 5000),
        write(H_BAR, 5000, 3000),
        write(H_BAR, 100, 300),
        write(H_A_FOO, 2000, 5000),
        write(H_A_FOO, 0, 100),
        write(H_A_BAR, 0, 5000),
        write(H_DIRECT, 0, 4096),
        write(H_DIRECT, 12_288, 4096),
        Step { ops: mapped(H_FOO, 1, 4096), handle: H_FOO },
        Step { ops: mapped(H_BAR, 1, 904), handle: H_BAR },
    ];
    let sizes = [(FILE, H_FOO, 0), (FILE, H_FOO, 5000), (FILE, H_FOO, 20_000), (FILE_BAR, H_BAR, 4096)];
    let sizes = sizes.into_iter().chain([(FILE_A, H_A_FOO, 10_000), (FILE_A, H_A_FOO, 0)]);
    steps.extend(sizes.map(|(node, handle, size)| Step {
        ops: vec![Truncate { who: WHO, node, size, handle: None }],
        handle,
    }));
    let attrs =
        [(FILE, H_FOO, 0, 100), (FILE, H_FOO, 1, 9000), (FILE_BAR, H_BAR, 0, 40), (DIR_A, H_A, 0, 50)];
    steps.extend(attrs.map(|(node, handle, attr, len)| Step {
        ops: vec![SetXattr { who: WHO, node, attr, len, pattern: len, flags: 0 }],
        handle,
    }));
    steps.push(Step { ops: vec![RemoveXattr { who: WHO, node: FILE, attr: 0 }], handle: H_FOO });
    steps
}

fn names() -> Vec<Step> {
    let one = |op, handle| Step { ops: vec![op], handle };
    let dir = |dir, name, handle| one(MkDir { who: WHO, dir, name, perm: 0o755, into: 3 }, handle);
    let link = |node, dir, name, handle| one(Link { who: WHO, node, dir, name }, handle);
    let unlink = |dir, name, handle| one(Unlink { who: WHO, dir, name }, handle);
    let remove = |name| one(RmDir { who: WHO, dir: ROOT, name }, H_ROOT);
    let rename = |dir, name, new_dir, new_name, handle| {
        one(Rename { who: WHO, dir, name, new_dir, new_name, flags: 0 }, handle)
    };
    vec![
        one(create(DIR_A, BAR, 0, 11, H_A_BAR), H_A_BAR),
        one(create(DIR_B, FOO, 0, OTHER, 5), H_B),
        one(create(ROOT, NEW, 0, OTHER, 5), H_ROOT),
        one(create(ROOT, FOO, OpenFlags::TRUNCATE.bits(), OTHER, 5), H_FOO),
        dir(ROOT, NEW, H_ROOT),
        dir(DIR_A, NEW, H_A),
        dir(DIR_B, NEW, H_B),
        one(SymLink { who: WHO, dir: ROOT, name: NEW, target: 3, into: OTHER }, H_ROOT),
        link(FILE, ROOT, NEW, H_FOO),
        link(FILE, DIR_B, FOO, H_FOO),
        link(FILE_BAR, DIR_A, BAR, H_BAR),
        link(FILE_A, ROOT, NEW, H_A_FOO),
        unlink(ROOT, FOO, H_FOO),
        unlink(ROOT, BAR, H_ROOT),
        unlink(DIR_A, FOO, H_A),
        remove(B),
        remove(A),
        rename(ROOT, FOO, ROOT, BAR, H_FOO),
        rename(ROOT, FOO, DIR_A, BAR, H_FOO),
        rename(ROOT, FOO, DIR_A, FOO, H_A),
        rename(DIR_A, FOO, ROOT, FOO, H_ROOT),
        rename(DIR_A, FOO, DIR_A, BAR, H_A_FOO),
        rename(ROOT, BAR, DIR_B, FOO, H_BAR),
        rename(ROOT, A, ROOT, B, H_ROOT),
        rename(ROOT, A, ROOT, NEW, H_A),
        rename(ROOT, B, DIR_A, NEW, H_B),
    ]
}

/// The operations.
pub fn steps() -> Vec<Step> {
    [data(), names()].concat()
}

/// Number of kinds of persistence points.
pub const POINTS: usize = 6;

/// The persistence point of this kind, below [`POINTS`]; 0 is none.
pub fn point(kind: usize, handle: u8) -> Vec<Op> {
    match kind {
        0 => Vec::new(),
        1 => vec![Fsync { handle, datasync: false }],
        2 => vec![Fsync { handle, datasync: true }],
        3 => vec![Barrier { handle, datasync: false }],
        4 => vec![Barrier { handle, datasync: true }],
        _ => vec![Sync],
    }
}

/// A workload, and where what is new in it begins.
pub struct Workload {
    /// Its operations, from an empty set of slots on.
    pub ops: Vec<Op>,
    /// Index of the first that no workload with fewer operations ends with.
    pub from: usize,
}

/// What is done in the end: so much that changes become old and are made durable by themselves, unless the workload ends
/// with a persistence point.
fn end(kind: usize) -> Vec<Op> {
    if kind == 0 || kind == 3 || kind == 4 { vec![StatFs; 7] } else { Vec::new() }
}

/// All workloads of one operation: every pair of points before and behind it, and every kind behind it on every target.
pub fn ones() -> Vec<Workload> {
    let mut all = Vec::new();
    for step in steps() {
        let mut add = |before: Vec<Op>, kind: usize, handle: u8| {
            let mut ops = [opening(), before].concat();
            let from = ops.len();
            ops.extend(step.ops.iter().cloned().chain(point(kind, handle)).chain(end(kind)));
            all.push(Workload { ops, from });
        };
        for before in 0..POINTS {
            for kind in 0..POINTS {
                add(point(before, H_FOO), kind, step.handle);
            }
        }
        for handle in TARGETS.into_iter().filter(|h| *h != step.handle) {
            for kind in 1..POINTS - 1 {
                add(Vec::new(), kind, handle);
            }
        }
    }
    all
}

/// Number of workloads of two operations: each with each, with every kind of point between them and behind them.
pub fn twos() -> usize {
    (steps().len() * POINTS).pow(2)
}

/// The workload of two operations with this number, below [`twos`]. `steps`: what [`steps`] returns.
pub fn two(steps: &[Step], number: usize) -> Workload {
    let n = steps.len();
    let (second, rest) = (number % n, number / n);
    let (last, rest) = (rest % POINTS, rest / POINTS);
    let (between, first) = (rest % POINTS, rest / POINTS);
    let (one, two) = (&steps[first % n], &steps[second]);
    let mut ops = [opening(), one.ops.clone(), point(between, one.handle)].concat();
    let from = ops.len();
    ops.extend(two.ops.iter().cloned().chain(point(last, two.handle)).chain(end(last)));
    Workload { ops, from }
}

/// A number of [`two`] for each number below [`twos`], scattered, so that a beginning is a sample of all.
pub fn scattered(number: usize, seed: u64) -> usize {
    let all = twos();
    // A step without a common divisor visits every number once.
    let gcd = |mut a: usize, mut b: usize| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let step = (all * 618 / 1000..).find(|step| gcd(*step, all) == 1).expect("one of them is prime");
    (number * step + seed as usize % all) % all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_workload_has_one_number() {
        let steps = steps();
        let all: HashSet<usize> = (0..twos()).map(|n| scattered(n, 77)).collect();
        assert_eq!(all.len(), twos());
        let texts: HashSet<String> = (0..3000).map(|n| format!("{:?}", two(&steps, n).ops)).collect();
        assert_eq!(texts.len(), 3000);
        assert!(two(&steps, twos() - 1).ops.len() > two(&steps, 0).from);
        for n in (0..twos()).step_by(997) {
            let workload = two(&steps, n);
            assert!(workload.from > opening().len() && workload.from < workload.ops.len());
        }
    }
}
