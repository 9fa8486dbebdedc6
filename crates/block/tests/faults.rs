//! Devices that fail, and volumes that are full.
//!
//! - One request of a run fails, for every request of the run: whoever waits for it is told, a failed write or flush latches
//!   the volume (no later change succeeds), a failed read is told to its reader alone, if it is needed at all; after reopening on a healthy device
//!   the tree is one that was passed through, not older than the last acknowledged sync.
//! - Of a file with a bad sector everything else can be read, and nobody is told of a failure who has not asked for what could not be read.
//! - The device goes away.
//! - The volume is filled in every way: what was there stays, a sync still works, it stops cleanly, and when everything is
//!   deleted exactly as much space is free as before.
//! - No call waits when nothing is in flight that could end the wait (the driver panics then).
//!
//! Not verified: several failures in one run, failures during recovery other than of reads.

mod rig;

use block::{OpenOptions, Volume};
use fs::{Cred, Error, FileSystem, Ino, OpenFlags};
use media::flash::{Failure, Fault};
use media::{MediaError, SimFlash};
use rig::{ByHand, Setup};
use sim::compare::{Options, one_of};
use sim::crash::ace;
use sim::ops::{self, Op, Outcome, State};
use sim::{Blocking, Driver, HandClock, Model, Snapshot, Tolerance};
use std::sync::Arc;
use std::time::Duration;

fn root() -> Cred {
    Cred::root()
}

/// Some of everything, with syncs in between, and time for background work at the end.
fn workload() -> Vec<Op> {
    let mut ops = ace::opening();
    for (i, op) in ace::operations().into_iter().enumerate() {
        ops.push(op);
        match i % 9 {
            3 => ops.push(Op::Fsync { handle: 0, datasync: false }),
            5 => ops.push(Op::Read { handle: 0, offset: 0, len: 20_000 }),
            7 => ops.push(Op::Barrier { handle: 1, datasync: false }),
            8 => ops.push(Op::Sync),
            _ => {}
        }
    }
    ops.extend(vec![Op::StatFs; 8]);
    ops
}

fn eio(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Failed(libc::EIO | libc::ENODEV))
}

/// Runs the workload with one fault. Returns whether the request came that was to fail, and what went wrong.
fn run_with(
    base: &SimFlash,
    start: &Snapshot,
    setup: &Setup,
    ops: &[Op],
    fault: Fault,
) -> Result<bool, String> {
    let flash = Arc::new(base.crash_image(|_, _| true));
    let (failing, after) = (fault.op, fault.after);
    let reads = failing == Some(media::Op::Read);
    flash.inject(fault);
    let (volume, driver) = match setup.start(flash.clone()) {
        Ok(opened) => opened,
        Err(Error::Media(_)) => return Ok(true),
        Err(e) => return Err(format!("open: {e}")),
    };
    let clock = HandClock::default();
    let model = Model::from_snapshot(start, clock.clock());
    let (mut a, mut b) = (State::default(), State::default());
    let mut states = vec![model.snapshot()];
    let (mut floor, mut struck) = (0, false);
    for (index, op) in ops.iter().enumerate() {
        driver.before_op(index);
        let latched = volume.latched().is_some();
        let found = ops::execute(&driver, &*volume, &mut a, op);
        struck |= eio(&found);
        if latched && changes(op) && !matches!(found, Outcome::Failed(_) | Outcome::Count(0)) {
            return Err(format!("operation {index}, {op:?}, succeeded on a latched volume: {found:?}"));
        }
        if eio(&found) && reads && volume.latched().is_some() {
            return Err(format!("a failed read latched the volume: {:?}", volume.latched()));
        }
        if eio(&found) || latched {
            // It may have happened in memory only; a model that goes on with it is as good as one that does not.
            if !reads && !latched {
                ops::execute(&Blocking, &model, &mut b, op);
                states.push(model.snapshot());
            }
            continue;
        }
        let expected = ops::execute(&Blocking, &model, &mut b, op);
        states.push(model.snapshot());
        if !struck && !expected.same(&found, Tolerance::TIMES) {
            return Err(format!("operation {index}, {op:?}: expected {expected:?}, found {found:?}"));
        }
        if matches!(op, Op::Sync | Op::Fsync { .. }) && matches!(found, Outcome::Done) {
            floor = states.len() - 1;
        }
        if struck && reads {
            // The slots of the two sides differ from here on.
            break;
        }
    }
    driver.settle();
    struck |= volume.latched().is_some();
    let closed = driver.block_on(volume.close());
    if struck && !reads && closed.is_ok() {
        return Err("a volume that had failed was stopped cleanly".into());
    }
    if closed.is_ok() {
        floor = states.len() - 1;
    }
    struck |= closed.is_err();
    drop((volume, driver));
    let counters = flash.counters();
    let asked = match failing {
        Some(media::Op::Read) => counters.reads,
        Some(media::Op::Write) => counters.writes,
        Some(media::Op::Flush) => counters.flushes,
        other => panic!("{other:?} is not counted here"),
    };
    let came = asked > after;
    // When the volume is opened some reads can be done without, or are made again.
    struck |= reads && came;
    if came && !struck {
        return Err("it failed, and nobody was told".into());
    }
    flash.clear_faults();
    let candidates: Vec<Snapshot> = states[floor..].iter().rev().cloned().collect();
    let ways: [fn(u64) -> bool; 3] = [|_| true, |_| false, |i| i % 3 == 0];
    for (n, way) in ways.into_iter().enumerate() {
        let mut i = 0;
        let image = flash.crash_image(|_, _| {
            i += 1;
            way(i)
        });
        let (volume, driver) = setup.start(Arc::new(image)).map_err(|e| format!("reopen {n}: {e}"))?;
        one_of(&driver, &*volume, &candidates, Options::default())
            .map_err(|d| format!("reopened ({n}), in none of {} states: {}", candidates.len(), d[0]))?;
        driver.block_on(volume.close()).map_err(|e| format!("close after reopening: {e}"))?;
    }
    Ok(came)
}

/// Operations that change something when they succeed.
fn changes(op: &Op) -> bool {
    !matches!(
        op,
        Op::Lookup { .. }
            | Op::Read { .. }
            | Op::StatFs
            | Op::Open { .. }
            | Op::Barrier { .. }
            | Op::GetAttr { .. }
    )
}

fn every_request(op: media::Op, failure: Failure, step: u64) {
    let setup = Setup { bytes: 32 << 20, cache_bytes: 1 << 20, checkpoints: true, ..Setup::new(true, 4) };
    let media = setup.make();
    let start = sim::crash::prepare(&setup, media.clone(), &sim::crash::empty(), &ace::tree(), true).unwrap();
    let ops = workload();
    let mut struck = 0;
    for n in (1..20_000).step_by(step as usize) {
        let fault = Fault { failure, ..Fault::nth(Some(op), n) };
        match run_with(&media, &start, &setup, &ops, fault) {
            Ok(true) => struck += 1,
            Ok(false) => break,
            Err(e) => panic!("{op:?} number {n}, {failure:?}: {e}"),
        }
        if failure == Failure::Gone && struck > 60 {
            break;
        }
    }
    println!("{op:?}, {failure:?}: {struck} requests failed, one in each run");
    assert!(struck > 5, "only {struck} faults struck");
}

#[test]
fn every_write_fails_once() {
    every_request(media::Op::Write, Failure::Errno(libc::EIO), 1);
}

#[test]
fn every_write_is_short_once() {
    every_request(media::Op::Write, Failure::Short(512), 3);
}

#[test]
fn every_flush_fails_once() {
    every_request(media::Op::Flush, Failure::Errno(libc::EIO), 1);
}

#[test]
fn every_read_fails_once() {
    every_request(media::Op::Read, Failure::Errno(libc::EIO), 1);
}

#[test]
fn the_device_goes_away() {
    every_request(media::Op::Write, Failure::Gone, 5);
}

/// Pages that are read together with one that cannot be read are there all the same, and read-ahead that failed is forgotten.
#[test]
fn what_lies_beside_a_bad_sector_is_read() {
    const PAGE: usize = 4096;
    let setup = Setup::new(false, 1);
    let flash = setup.make();
    let (volume, driver) = setup.start(flash.clone()).unwrap();
    let file = make(&volume, &driver, Ino::ROOT, 0).unwrap();
    let bytes = ops::pattern(0, 64 * PAGE as u32);
    write_all(&volume, &driver, file, 0, 64 * PAGE as u32).unwrap();
    let start = || driver.block_on(volume.drop_caches()).unwrap();
    let read = |at: usize, len: usize| {
        let mut to = vec![0; len];
        driver
            .block_on(volume.read(file, at as u64, &mut to))
            .map(|n| assert!(to[..n] == bytes[at..at + len]))
    };
    let every = Some(media::Op::Read);
    start();
    flash.inject(Fault::nth(every, 1));
    let Err(Error::Media(MediaError::Io { offset, .. })) = read(20 * PAGE, PAGE) else { panic!("no error") };
    flash.inject(Fault::bad_range(every, offset + 512..offset + 1024));
    for len in [PAGE, 4 * PAGE, 16 * PAGE] {
        start();
        for at in (0..64 * PAGE).step_by(len) {
            let is_bad = (at..at + len).contains(&(20 * PAGE));
            assert_eq!(read(at, len).is_err(), is_bad, "{len} bytes at {at}");
        }
    }
    // Its pages stay where they are, but what was read ahead is not there.
    start();
    read(0, 16 * PAGE).unwrap();
    driver.settle();
    flash.clear_faults();
    assert_eq!(read(16 * PAGE, 16 * PAGE), Ok(()), "an error of read-ahead outlived its cause");
}

/// A way to fill a volume: makes the `i`-th thing in the directory.
type Fill = fn(&Volume, &ByHand, Ino, usize) -> fs::Result<()>;

fn make(volume: &Volume, driver: &ByHand, dir: Ino, i: usize) -> fs::Result<fs::Handle> {
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let name = format!("f{i}");
    driver.block_on(volume.create(&root(), dir, name.as_bytes(), 0o644, flags)).map(|(_, handle)| handle)
}

fn write_all(volume: &Volume, driver: &ByHand, handle: fs::Handle, at: u64, len: u32) -> fs::Result<()> {
    let n = driver.block_on(volume.write(handle, at, &ops::pattern(at as u32, len)))?;
    if n < len as usize { Err(Error::NoSpace) } else { Ok(()) }
}

fn small_file(volume: &Volume, driver: &ByHand, dir: Ino, i: usize) -> fs::Result<()> {
    let handle = make(volume, driver, dir, i)?;
    let result = write_all(volume, driver, handle, 0, 9000);
    driver.block_on(volume.release(handle))?;
    result
}

fn tiny_file(volume: &Volume, driver: &ByHand, dir: Ino, i: usize) -> fs::Result<()> {
    let handle = make(volume, driver, dir, i)?;
    let result = write_all(volume, driver, handle, 0, 100);
    driver.block_on(volume.release(handle))?;
    result
}

fn big_file(volume: &Volume, driver: &ByHand, dir: Ino, i: usize) -> fs::Result<()> {
    let handle = make(volume, driver, dir, i / 16)?;
    let result = write_all(volume, driver, handle, (i % 16) as u64 * 700_000, 700_000);
    driver.block_on(volume.release(handle))?;
    result
}

fn pieces(volume: &Volume, driver: &ByHand, dir: Ino, i: usize) -> fs::Result<()> {
    let handle = make(volume, driver, dir, i / 2000)?;
    let result = write_all(volume, driver, handle, (i % 2000) as u64 * 8192, 4096);
    driver.block_on(volume.release(handle))?;
    result
}

fn attributes(volume: &Volume, driver: &ByHand, dir: Ino, i: usize) -> fs::Result<()> {
    let handle = make(volume, driver, dir, i)?;
    driver.block_on(volume.release(handle))?;
    let attr = driver.block_on(volume.lookup(&root(), dir, format!("f{i}").as_bytes()))?;
    let value = ops::pattern(i as u32, 30_000);
    driver.block_on(volume.setxattr(&root(), attr.ino, b"user.a", &value, fs::XattrFlags::empty()))
}

fn directories(volume: &Volume, driver: &ByHand, dir: Ino, i: usize) -> fs::Result<()> {
    driver.block_on(volume.mkdir(&root(), dir, format!("f{i}").as_bytes(), 0o755)).map(drop)
}

fn preallocated(volume: &Volume, driver: &ByHand, dir: Ino, i: usize) -> fs::Result<()> {
    let handle = make(volume, driver, dir, i)?;
    let result =
        driver.block_on(volume.fallocate(handle, fs::Fallocate::Allocate { keep_size: false }, 0, 1_500_000));
    driver.block_on(volume.release(handle))?;
    result
}

fn free(volume: &Volume, driver: &ByHand) -> u64 {
    // Two: what the first one frees (inode segments) can be reused behind the second.
    for _ in 0..3 {
        driver.block_on(volume.checkpoint()).unwrap();
        driver.settle();
    }
    driver.block_on(volume.statfs()).unwrap().blocks_free
}

fn names(volume: &Volume, driver: &ByHand, dir: Ino) -> Vec<(Vec<u8>, fs::FileType)> {
    let handle = driver.block_on(volume.opendir(&root(), dir)).unwrap();
    let mut out = Vec::new();
    let mut sink = |e: fs::DirEntry<'_>| {
        if e.name != b"." && e.name != b".." {
            out.push((e.name.to_vec(), e.attr.kind));
        }
        true
    };
    driver.block_on(volume.readdir(handle, 0, &mut sink)).unwrap();
    driver.block_on(volume.release(handle)).unwrap();
    out
}

fn check_keeper(volume: &Volume, driver: &ByHand, seed: u32) {
    let attr = driver.block_on(volume.lookup(&root(), Ino::ROOT, b"keeper")).unwrap();
    let handle = driver.block_on(volume.open(&root(), attr.ino, OpenFlags::READ)).unwrap();
    let mut bytes = vec![0; 400_000];
    let n = driver.block_on(volume.read(handle, 0, &mut bytes)).unwrap();
    driver.block_on(volume.release(handle)).unwrap();
    assert!(
        n == 400_000 && bytes == ops::pattern(seed, 400_000),
        "data from before the volume was full are damaged"
    );
}

fn fill(strict: bool, what: Fill) {
    let setup = Setup { bytes: 32 << 20, discard: false, ..Setup::new(strict, 2) };
    let media = setup.make();
    let (volume, driver) = setup.start(media.clone()).unwrap();
    let empty = free(&volume, &driver);
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let (_, keeper) = driver.block_on(volume.create(&root(), Ino::ROOT, b"keeper", 0o600, flags)).unwrap();
    driver.block_on(volume.write(keeper, 0, &ops::pattern(1, 400_000))).unwrap();
    driver.block_on(volume.sync()).unwrap();
    let dir = driver.block_on(volume.mkdir(&root(), Ino::ROOT, b"dir", 0o755)).unwrap().ino;
    let mut sizes = Vec::new();
    for round in 0..2 {
        let mut made = 0;
        loop {
            driver.before_op(round * 100_000 + made / 50);
            match what(&volume, &driver, dir, made) {
                Ok(()) => made += 1,
                Err(Error::NoSpace) => break,
                Err(e) => panic!("{e} after {made}"),
            }
            assert!(made < 100_000, "the volume never fills up");
        }
        sizes.push(made);
        driver.block_on(volume.sync()).unwrap();
        check_keeper(&volume, &driver, 1 + round as u32);
        // Overwrites of a full volume: they must work, or say that they do not.
        let seed = 2 + round as u32;
        match driver.block_on(volume.write(keeper, 0, &ops::pattern(seed, 400_000))) {
            Ok(n) => assert_eq!(n, 400_000, "an overwrite of a full volume was cut short"),
            Err(e) => panic!("an overwrite of a full volume failed: {e}"),
        }
        driver.block_on(volume.sync()).unwrap();
        check_keeper(&volume, &driver, seed);
        let listed = names(&volume, &driver, dir);
        {
            let (volume, driver) = setup.start(Arc::new(media.crash_image(|_, _| false))).unwrap();
            check_keeper(&volume, &driver, seed);
            assert_eq!(names(&volume, &driver, dir), listed);
            driver.block_on(volume.close()).unwrap();
        }
        for (i, (name, kind)) in listed.iter().enumerate() {
            driver.before_op(round * 100_000 + 50_000 + i / 50);
            let gone = match kind {
                fs::FileType::Directory => driver.block_on(volume.rmdir(&root(), dir, name)),
                _ => driver.block_on(volume.unlink(&root(), dir, name)),
            };
            gone.unwrap_or_else(|e| panic!("deleting on a full volume: {e}"));
        }
        driver.block_on(volume.sync()).unwrap();
    }
    println!("filled with {sizes:?}");
    assert!(
        sizes[1] + sizes[0] / 20 + 1 >= sizes[0],
        "deleting did not make the space usable again: {sizes:?}"
    );
    driver.block_on(volume.release(keeper)).unwrap();
    driver.block_on(volume.unlink(&root(), Ino::ROOT, b"keeper")).unwrap();
    driver.block_on(volume.rmdir(&root(), Ino::ROOT, b"dir")).unwrap();
    assert_eq!(free(&volume, &driver), empty, "blocks leaked");
    driver.block_on(volume.close()).unwrap();
    drop((volume, driver));
    let (volume, driver) = setup.start(media).unwrap();
    assert_eq!(free(&volume, &driver), empty, "blocks leaked, seen after reopening");
    driver.block_on(volume.close()).unwrap();
}

macro_rules! full {
    ($($name:ident: $fill:ident;)*) => {$(
        #[test]
        fn $name() {
            fill(true, $fill);
            fill(false, $fill);
        }
    )*};
}

full! {
    full_of_small_files: small_file;
    full_of_tiny_files: tiny_file;
    full_of_big_files: big_file;
    full_of_pieces: pieces;
    full_of_attributes: attributes;
    full_of_directories: directories;
    full_of_preallocated_files: preallocated;
}

/// Random operations on a volume that is nearly full all the time: a call that says that there is no space has changed
/// nothing, and everything else is as the model says.
#[test]
fn random_operations_on_a_nearly_full_volume() {
    for seed in 1..7 {
        let setup = Setup { bytes: 32 << 20, ..Setup::new(seed % 2 == 0, seed) };
        let media = setup.make();
        let mut ops = vec![
            Op::Create {
                who: ops::Who::Root,
                dir: 0,
                name: 9,
                perm: 0o600,
                flags: 3,
                node_into: 19,
                into: 6,
            },
            Op::Fallocate { handle: 6, what: ops::Space::Allocate, offset: 0, len: 19 << 20 },
            Op::Sync,
        ];
        let knobs = sim::Knobs {
            size_max: 200_000,
            len_max: 30_000,
            range_max: 50_000,
            xattr_len_max: 9000,
            ..sim::Knobs::crash()
        };
        ops.extend(sim::Generator::ops(seed, knobs, 1500).into_iter().filter(|op| match op {
            // Long writes that end half way are not compared.
            Op::Write { len, .. } => *len <= 30_000,
            Op::CopyRange { .. } => false,
            _ => true,
        }));
        sim::crash::prepare(&setup, media, &sim::crash::empty(), &ops, true)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// Hundreds of changed extent leaves at each commit of a volume without a free block: commits need new blocks for them.
#[test]
fn commits_of_a_fragmented_file_on_a_full_volume() {
    for strict in [true, false] {
        let setup = Setup { bytes: 32 << 20, discard: false, ..Setup::new(strict, 2) };
        let media = setup.make();
        let (volume, driver) = setup.start(media.clone()).unwrap();
        let handle = make(&volume, &driver, Ino::ROOT, 0).unwrap();
        let mut made = 0;
        while write_all(&volume, &driver, handle, made * 8192, 4096).is_ok() {
            made += 1;
        }
        driver.block_on(volume.sync()).unwrap();
        for round in 1..40u64 {
            driver.before_op(round as usize);
            // One page in each leaf.
            for i in (round % 50..made).step_by(150) {
                write_all(&volume, &driver, handle, i * 8192, 4096).unwrap();
            }
            driver.block_on(volume.sync()).unwrap();
        }
        let set = fs::SetAttr { size: Some(0), ..fs::SetAttr::default() };
        let attr = driver.block_on(volume.lookup(&root(), Ino::ROOT, b"f0")).unwrap();
        driver.block_on(volume.setattr(&root(), attr.ino, set)).unwrap();
        driver.block_on(volume.sync()).unwrap();
        assert!(free(&volume, &driver) > 4500);
        driver.block_on(volume.close()).unwrap();
    }
}

/// A file without a name of which the blocks cannot be found is closed all the same, and found by the next mount.
#[test]
fn a_nameless_file_that_cannot_be_read_is_closed() {
    let setup = Setup { bytes: 64 << 20, ..Setup::new(false, 1) };
    let flash = setup.make();
    let root = Cred::root();
    let free = |volume: &Volume, driver: &ByHand| {
        (0..3).for_each(|_| driver.block_on(volume.checkpoint()).unwrap());
        driver.block_on(volume.statfs()).unwrap().blocks_free
    };
    let (volume, driver) = setup.start(flash.clone()).unwrap();
    let before = free(&volume, &driver);
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let (attr, file) = driver.block_on(volume.create(&root, Ino::ROOT, b"file", 0o600, flags)).unwrap();
    driver.block_on(volume.write(file, 0, &[7; 200_000])).unwrap();
    driver.block_on(volume.unlink(&root, Ino::ROOT, b"file")).unwrap();
    driver.block_on(volume.close()).unwrap();
    drop((volume, driver));

    // Who had it open comes back, and closes it.
    let clock = HandClock::default();
    clock.set(sim::driver::FIRST_TICK);
    let options = OpenOptions { orphans_kept: Duration::from_secs(3600), ..setup.options(&clock) };
    let (volume, worker) = Volume::open_manual(flash.clone(), options).unwrap();
    let driver = ByHand::new(&volume, worker, clock, 1);
    let file = driver.block_on(volume.open(&root, attr.ino, flags)).unwrap();
    flash.inject(Fault::bad_range(Some(media::Op::Read), 0..64 << 20));
    driver.block_on(volume.release(file)).unwrap();
    assert_eq!(driver.block_on(volume.release(file)), Err(Error::BadHandle));
    driver.settle();
    flash.clear_faults();
    driver.block_on(volume.close()).unwrap();
    drop((volume, driver));
    let (volume, driver) = setup.start(flash).unwrap();
    driver.settle();
    assert_eq!(free(&volume, &driver), before);
    driver.block_on(volume.close()).unwrap();
}
