//! Discards: the device is told of segments that became free as a whole, and never of a block that somebody may still need.
//!
//! - Nothing is discarded before a record or checkpoint names the epoch that freed it as durable: until then a power failure
//!   may bring back what was freed. Segments with a block in use are not discarded at all.
//! - At every moment of a run, whatever of the pending writes and discards a power failure keeps: other files hold what they
//!   held, the deleted file is there as a whole or gone, and gone once its end was synced.
//! - While a discard is on its way nothing else goes to its segment, and it meets nothing on its way there.
//! - Few are on their way at a time, and who needs room that they hold back waits for them.
//! - A discard that fails costs nothing; without the option there is none.
//!
//! The device fills discarded ranges with a byte of its own, so that what was discarded too early cannot look right. Canary: an
//! image in which those ranges were discarded a moment too early must be found wrong.

mod rig;

use block::Volume;
use fs::{Cred, Error, FileSystem, Ino, OpenFlags};
use media::flash::{Change, CrashState, DISCARDED, Event, Failure, Fault, PendingWrite};
use media::{Op as Request, SimFlash};
use rig::{ByHand, Setup};
use sim::Driver;
use sim::crash::{self, Settings};
use sim::ops::{Op, Who, pattern};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

const SEGMENT: u64 = format::limits::SEGMENT_SIZE as u64;
const VICTIM: u32 = 7 << 20;
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
/// Which units of pending changes a power failure keeps.
type Keep = fn(&PendingWrite, u32) -> bool;

fn is_discard(w: &PendingWrite) -> bool {
    w.change == Change::Discard
}

fn setup(strict: bool, seed: u64) -> Setup {
    Setup { bytes: 48 << 20, discard: true, checkpoints: false, ..Setup::new(strict, seed) }
}

fn put(volume: &Volume, driver: &ByHand, name: &str, seed: u32, len: u32) {
    let root = Cred::root();
    let made = driver.block_on(volume.create(&root, Ino::ROOT, name.as_bytes(), 0o600, RW));
    let (_, handle) = made.unwrap();
    let n = driver.block_on(volume.write(handle, 0, &pattern(seed, len))).unwrap();
    assert_eq!(n, len as usize, "{name}");
    driver.block_on(volume.release(handle)).unwrap();
}

fn unlink(volume: &Volume, driver: &ByHand, name: &str) {
    driver.block_on(volume.unlink(&Cred::root(), Ino::ROOT, name.as_bytes())).unwrap();
}

fn sync(volume: &Volume, driver: &ByHand) {
    driver.block_on(volume.sync()).unwrap();
}

/// What a file holds, `None` when there is none.
fn get(volume: &Volume, driver: &ByHand, name: &str) -> fs::Result<Option<Vec<u8>>> {
    let attr = match driver.block_on(volume.lookup(&Cred::root(), Ino::ROOT, name.as_bytes())) {
        Err(Error::NotFound) => return Ok(None),
        found => found?,
    };
    let handle = driver.block_on(volume.open(&Cred::root(), attr.ino, OpenFlags::READ))?;
    let mut bytes = vec![0; attr.size as usize];
    let read = driver.block_on(volume.read(handle, 0, &mut bytes));
    driver.block_on(volume.release(handle))?;
    assert_eq!(read?, bytes.len(), "{name}");
    Ok(Some(bytes))
}

/// Files beside the one that is deleted: some share segments with it, one fills segments of its own.
fn others() -> impl Iterator<Item = (String, u32, u32)> {
    let small = (0..12).map(|i| (format!("small{i}"), 100 + i, 30_000 + 5000 * i));
    small.chain([("large".to_string(), 99, 3_000_000)])
}

/// The device with these files, synced, and everything brought home.
fn begin(setup: &Setup) -> (Arc<SimFlash>, Arc<Volume>, ByHand) {
    let media = setup.make();
    let (volume, driver) = setup.start(media.clone()).unwrap();
    for (i, (name, seed, len)) in others().enumerate() {
        if i == 5 {
            put(&volume, &driver, "victim", 1, VICTIM);
        }
        put(&volume, &driver, &name, seed, len);
    }
    driver.block_on(volume.drop_caches()).unwrap();
    driver.settle();
    assert_eq!(media.counters().discards, 0, "nothing was freed");
    (media, volume, driver)
}

/// Reads everything. `gone`: the deleted file must not be there; else it is there as a whole, or gone.
fn look(volume: &Volume, driver: &ByHand, gone: bool) -> Result<bool, String> {
    for (name, seed, len) in others() {
        match get(volume, driver, &name) {
            Ok(Some(bytes)) if bytes == pattern(seed, len) => {}
            Ok(Some(_)) => return Err(format!("{name} holds something else")),
            found => return Err(format!("{name}: {:?}", found.map(|_| "gone"))),
        }
    }
    match get(volume, driver, "victim") {
        Ok(None) => Ok(true),
        Ok(Some(_)) if gone => Err("what was deleted and synced is back".into()),
        Ok(Some(bytes)) if bytes == pattern(1, VICTIM) => Ok(false),
        Ok(Some(_)) => Err("the deleted file is back with something else in it".into()),
        Err(e) => Err(format!("the deleted file is back and cannot be read: {e}")),
    }
}

/// As [`look`], after a power failure.
fn reopen(setup: &Setup, image: SimFlash, gone: bool) -> Result<bool, String> {
    let (volume, driver) = setup.start(Arc::new(image)).map_err(|e| format!("open: {e}"))?;
    let found = look(&volume, &driver, gone)?;
    driver.block_on(volume.close()).map_err(|e| format!("close: {e}"))?;
    Ok(found)
}

/// Where the discards of a trace went.
fn discards(events: &[Event]) -> Vec<Range<u64>> {
    let of = |event: &Event| match event {
        Event::Submit(w) if is_discard(w) => Some(w.offset..w.offset + w.len),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

/// Deletes the file, makes that durable, and lets `record` write what names that epoch as durable. Returns the device, with
/// its trace, and its state before the deletion was durable.
fn delete(setup: &Setup, record: fn(&Volume, &ByHand)) -> (Arc<SimFlash>, CrashState) {
    let (media, volume, driver) = begin(setup);
    media.set_trace(true);
    unlink(&volume, &driver, "victim");
    driver.settle();
    let before = media.crash_state();
    sync(&volume, &driver);
    media.mark(1);
    driver.settle();
    assert_eq!(media.counters().discards, 0, "no record says yet that the deletion is durable");
    record(&volume, &driver);
    driver.settle();
    let found = media.counters();
    assert!(found.discards > 0 && found.bytes_discarded >= 2 * SEGMENT, "{found:?}");
    driver.block_on(volume.drop_caches()).unwrap();
    assert_eq!(look(&volume, &driver, true), Ok(true));
    (media, before)
}

fn by_sync(volume: &Volume, driver: &ByHand) {
    put(volume, driver, "new", 3, 1000);
    sync(volume, driver);
}

fn by_checkpoint(volume: &Volume, driver: &ByHand) {
    driver.block_on(volume.checkpoint()).unwrap();
}

#[test]
fn freed_segments_are_discarded_when_nothing_needs_them_any_more() {
    for (strict, record) in [(true, by_sync as fn(&Volume, &ByHand)), (false, by_checkpoint)] {
        let setup = setup(strict, 2);
        let (media, before) = delete(&setup, record);
        let trace = media.take_trace().unwrap();
        let ranges = discards(trace.events());
        assert_eq!(ranges.len() as u64, media.counters().discards);
        for range in &ranges {
            assert!(range.start.is_multiple_of(SEGMENT) && range.end.is_multiple_of(SEGMENT), "{range:?}");
            let mut bytes = vec![0; (range.end - range.start) as usize];
            media.peek(range.start, &mut bytes);
            assert!(bytes.iter().all(|&b| b == DISCARDED), "{range:?} is in use again");
        }
        // They were needed until the deletion was durable.
        assert_eq!(reopen(&setup, before.crash_image(|_, _| false), false), Ok(false));
        let early = before.crash_image(|_, _| false);
        for range in &ranges {
            early.poke(range.start, &vec![DISCARDED; (range.end - range.start) as usize]);
        }
        reopen(&setup, early, false).expect_err("a discard that came too early was not noticed");
    }
}

#[test]
fn power_cuts_around_discards() {
    for (strict, seed, record) in
        [(true, 2, by_checkpoint as fn(&Volume, &ByHand)), (true, 3, by_sync), (false, 4, by_sync)]
    {
        let setup = setup(strict, seed);
        let (media, _) = delete(&setup, record);
        let trace = media.take_trace().unwrap();
        let mut cursor = trace.cursor();
        let (mut images, mut cut, mut synced) = (0, 0, false);
        loop {
            cut += cursor.state().pending().any(is_discard) as u32;
            let ways: [Keep; 5] = [
                |_, _| true,
                |_, _| false,
                |w, _| is_discard(w),
                |w, _| !is_discard(w),
                |w, unit| (w.id + unit as u64).is_multiple_of(3),
            ];
            for (n, way) in ways.into_iter().enumerate() {
                reopen(&setup, cursor.state().crash_image(way), synced)
                    .unwrap_or_else(|e| panic!("strict {strict}, event {}, way {n}: {e}", cursor.index()));
                images += 1;
            }
            match cursor.step() {
                None => break,
                Some(event) => synced |= matches!(event, Event::Mark(1)),
            }
        }
        println!(
            "strict {strict}, seed {seed}: {images} images, {cut} moments with discards that were not durable"
        );
        assert!(cut > 3, "no power failure met a discard");
    }
}

/// Against the model, with everything that is verified of power failures elsewhere: whole segments freed by deleting,
/// truncating and punching, and used again at once.
#[test]
fn power_cuts_of_mixed_work() {
    let who = Who::Root;
    let create = |name: u8| Op::Create {
        who,
        dir: 0,
        name,
        perm: 0o644,
        flags: RW.bits(),
        node_into: 10 + name,
        into: name,
    };
    let write =
        |handle: u8, offset: u64, len: u32| Op::Write { handle, offset, len, pattern: len + handle as u32 };
    let ops = vec![
        create(0),
        write(0, 0, 5 << 20),
        create(1),
        write(1, 0, 90_000),
        create(2),
        write(2, 0, 5 << 20),
        Op::Sync,
        Op::Unlink { who, dir: 0, name: 0 },
        Op::Close { handle: 0 },
        Op::Sync,
        write(1, 20_000, 50_000),
        Op::Sync,
        create(3),
        write(3, 0, 4 << 20),
        Op::Barrier { handle: 3, datasync: false },
        Op::Truncate { who, node: 12, size: 100_000, handle: None },
        Op::Fsync { handle: 1, datasync: false },
        Op::Fallocate { handle: 3, what: sim::ops::Space::Punch, offset: 0, len: 4 << 20 },
        Op::Sync,
        create(4),
        write(4, 0, 3 << 20),
        Op::Sync,
        Op::StatFs,
    ];
    let next = vec![create(5), write(5, 0, 5 << 20), Op::Sync, Op::Unlink { who, dir: 0, name: 5 }, Op::Sync];
    for (strict, seed) in [(true, 2), (false, 3)] {
        let setup = Setup { checkpoints: true, ..setup(strict, seed) };
        let media = setup.make();
        let settings = Settings {
            seed,
            moments: 14,
            exhaustive: 3,
            sampled: 1,
            go_on: 30,
            deeper: (3, 1),
            ..Settings::SMALL
        };
        let report = crash::explore(&setup, media.clone(), &crash::empty(), &ops, &next, settings)
            .unwrap_or_else(|e| panic!("{}", e.chars().take(6000).collect::<String>()));
        println!("strict {strict}: {report:?}, {} discards", media.counters().discards);
        assert!(media.counters().bytes_discarded > 3 * SEGMENT, "nothing was discarded");
    }
}

/// Files of a size that needs most of the space come and go, with requests that complete in any order.
fn churn(setup: &Setup, media: &Arc<SimFlash>) -> Arc<Volume> {
    let (volume, driver) = setup.start(media.clone()).unwrap();
    let empty = driver.block_on(volume.statfs()).unwrap().blocks_free;
    put(&volume, &driver, "keeper", 5, 700_000);
    for round in 0..25u32 {
        driver.before_op(round as usize);
        put(&volume, &driver, &format!("f{round}"), round, 9 << 20);
        if round % 3 == 0 {
            sync(&volume, &driver);
        }
        if round > 0 {
            let old = format!("f{}", round - 1);
            assert!(get(&volume, &driver, &old).unwrap() == Some(pattern(round - 1, 9 << 20)), "{old}");
            unlink(&volume, &driver, &old);
            driver.before_op(round as usize);
        }
        if round % 4 == 2 {
            driver.block_on(volume.drop_caches()).unwrap();
        }
        let now = format!("f{round}");
        assert!(get(&volume, &driver, &now).unwrap() == Some(pattern(round, 9 << 20)), "{now}");
        assert!(get(&volume, &driver, "keeper").unwrap() == Some(pattern(5, 700_000)));
    }
    unlink(&volume, &driver, "f24");
    unlink(&volume, &driver, "keeper");
    for _ in 0..3 {
        driver.block_on(volume.checkpoint()).unwrap();
        driver.settle();
    }
    let free = driver.block_on(volume.statfs()).unwrap().blocks_free;
    assert!(free >= empty, "discarded segments were not given back: {free} of {empty}");
    assert_eq!(volume.latched(), None);
    driver.block_on(volume.close()).unwrap();
    volume
}

#[test]
fn nothing_meets_a_discard_on_its_way() {
    for seed in 1..4 {
        let setup = Setup { bytes: 40 << 20, cache_bytes: 4 << 20, ..setup(seed % 2 == 0, seed) };
        let media = setup.make();
        media.set_trace(true);
        churn(&setup, &media);
        let trace = media.take_trace().unwrap();
        let mut flying = HashMap::new();
        let mut done: Vec<Range<u64>> = Vec::new();
        let (mut beside, mut reused) = (0, 0);
        for event in trace.events() {
            match event {
                Event::Submit(w) => {
                    let (range, discard) = (w.offset..w.offset + w.len, is_discard(w));
                    for (other, is_discard) in flying.values() {
                        let other: &Range<u64> = other;
                        let meets = other.start < range.end && range.start < other.end;
                        assert!(!meets || !(discard || *is_discard), "{range:?} meets {other:?}");
                        beside += (!discard && *is_discard) as u32;
                    }
                    let others = flying.values().filter(|(_, is_discard)| *is_discard).count();
                    assert!(!discard || others < 2, "{others} discards before {range:?}");
                    reused += done.iter().any(|d| !discard && d.contains(&range.start)) as u32;
                    flying.insert(w.id, (range, discard));
                }
                Event::Complete { id, .. } => {
                    if let Some((range, true)) = flying.remove(id) {
                        done.push(range);
                    }
                }
                _ => {}
            }
        }
        println!("seed {seed}: {} discards, {beside} writes beside one, {reused} behind one", done.len());
        assert!(done.len() > 20 && beside > 0 && reused > 0, "the run did not show anything");
    }
}

/// What was full is emptied and filled again at once, so that there is only room which is being discarded.
#[test]
fn what_discards_hold_back_is_waited_for() {
    for seed in 1..9 {
        let setup = Setup { cache_bytes: 4 << 20, ..setup(seed % 2 == 0, seed) };
        let media = setup.make();
        let (volume, driver) = setup.start(media.clone()).unwrap();
        let free = || driver.block_on(volume.statfs()).unwrap().blocks_free;
        // What is held back for metadata stays free.
        let most = (free() as u32 - 1024) * 4096;
        for round in 0..4 {
            put(&volume, &driver, "all", round, most);
            sync(&volume, &driver);
            let full = free();
            unlink(&volume, &driver, "all");
            assert!(free() >= full + most as u64 / 4096, "seed {seed}: {} of {full} + {most}", free());
        }
        assert!(media.counters().bytes_discarded > 3 * (most as u64 / 2), "{:?}", media.counters());
        driver.block_on(volume.close()).unwrap();
    }
}

#[test]
fn a_failed_discard_costs_nothing() {
    let setup = Setup { bytes: 40 << 20, cache_bytes: 4 << 20, ..setup(true, 2) };
    let media = setup.make();
    media.inject(Fault {
        op: Some(Request::Discard),
        range: None,
        after: 0,
        forever: true,
        failure: Failure::Errno(libc::EIO),
    });
    churn(&setup, &media);
    assert!(media.counters().discards > 20);
}

#[test]
fn without_the_option_there_is_none() {
    let setup = Setup { bytes: 40 << 20, cache_bytes: 4 << 20, discard: false, ..setup(false, 2) };
    let media = setup.make();
    churn(&setup, &media);
    assert_eq!(media.counters().discards, 0);
}
