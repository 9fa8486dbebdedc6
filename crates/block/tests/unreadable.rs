//! Places of the device that cannot be read: what is there twice, or is not needed, is done without; where the log cannot be read it
//! ends, as where it is damaged; and a device that fails as a whole is not taken for one whose log has ended. A repair gives up only what
//! cannot be read at all.
//!
//! Not verified: places that cannot be written either.

#[path = "fsck/lab.rs"]
#[allow(dead_code, reason = "shared with the tests of single bytes")]
mod lab;

use block::Volume;
use format::checkpoint::CHECKPOINTS;
use format::limits::{BLOCK_SIZE, SEGMENT_BLOCKS};
use format::log::Record;
use fs::{Cred, Error, FileSystem, Ino, OpenFlags, block_on};
use lab::*;
use media::Op;
use media::flash::{Failure, Fault, SimFlash};
use std::sync::Arc;

/// A sector of a block that cannot be read, from now on.
fn bad_sector(image: &SimFlash, block: u64) {
    let at = block * BLOCK_SIZE as u64 + 512;
    image.inject(Fault::bad_range(Some(Op::Read), at..at + 512));
}

/// A copy with such a sector.
fn with_bad_sector(lab: &Lab, block: u64) -> Arc<SimFlash> {
    let image = lab.clone_image();
    bad_sector(&image, block);
    image
}

/// The volume is there in full in spite of its bad places, and in order when it is stopped and they are gone.
fn is_whole(image: Arc<SimFlash>, truth: &Picture, what: &str) {
    let volume = Volume::open(image.clone(), options()).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(&picture(&volume).unwrap(), truth, "{what}");
    volume.close_blocking().unwrap();
    image.clear_faults();
    let report = fsck(&image, false);
    assert!(report.is_clean() && report.damage().count() == 0, "{what}: {:#?}", report.problems);
    let volume = Volume::open(image, options()).unwrap_or_else(|e| panic!("{what}, opened again: {e}"));
    assert_eq!(&picture(&volume).unwrap(), truth, "{what}, opened again");
    volume.close_blocking().unwrap();
}

/// fsck tells that something is damaged, and nothing that it could not mend.
fn is_told(image: &Arc<SimFlash>, what: &str) {
    let report = fsck(image, false);
    let fatal = report.problems.iter().any(|p| p.severity == block::fsck::Severity::Fatal);
    assert!(!report.is_clean() && !fatal, "{what}: {:#?}", report.problems);
}

fn labs() -> [(&'static str, Lab); 2] {
    [("clean", Lab::clean()), ("crashed", Lab::crashed())]
}

#[test]
fn superblocks() {
    for (state, lab) in labs() {
        for block in 0..2 {
            let what = format!("{state}, superblock {block}");
            let image = with_bad_sector(&lab, block);
            is_told(&image, &what);
            is_whole(image, &lab.truth, &what);
        }
        let image = with_bad_sector(&lab, 0);
        bad_sector(&image, 1);
        assert!(matches!(Volume::open(image, options()), Err(Error::Media(_))), "{state}: both");
    }
}

/// The older checkpoint is not needed. Without the newer one the volume is refused, or nothing was only there.
#[test]
fn checkpoints() {
    for (state, lab) in labs() {
        let (newest, at) = lab.checkpoint();
        let older = CHECKPOINTS.iter().find(|b| b.0 != at).unwrap().0;
        let image = with_bad_sector(&lab, older);
        is_told(&image, &format!("{state}, older checkpoint"));
        is_whole(image, &lab.truth, &format!("{state}, older checkpoint"));
        let image = with_bad_sector(&lab, at);
        is_told(&image, &format!("{state}, checkpoint {}", newest.sequence));
        match Volume::open(image.clone(), options()) {
            Ok(volume) => {
                drop(volume);
                is_whole(with_bad_sector(&lab, at), &lab.truth, state);
            }
            Err(e) => assert!(matches!(e, Error::Corrupt(_)), "{state}: {e}"),
        }
        bad_sector(&image, older);
        assert!(matches!(Volume::open(image, options()), Err(Error::Media(_))), "{state}: both");
    }
}

#[test]
fn inode_segment_table() {
    for (state, lab) in labs() {
        let (cp, _) = lab.checkpoint();
        let (uuid, segments) = (lab.superblock().uuid, lab.superblock().segments());
        let sequence = |at: &format::BlockNo| {
            let parsed = format::segtable::parse(&lab.block(at.0), &uuid, 0, segments);
            parsed.map_or(0, |(n, _)| if n <= cp.sequence { n } else { 0 })
        };
        let homes = format::segtable::homes(0);
        let current = homes.into_iter().max_by_key(sequence).unwrap();
        for home in homes {
            let image = with_bad_sector(&lab, home.0);
            is_told(&image, state);
            if home != current {
                is_whole(image, &lab.truth, &format!("{state}, a home that is not current"));
            } else {
                assert!(Volume::open(image, options()).is_err(), "{state}: without its table");
            }
        }
    }
}

/// A repair writes what cannot be read, and in that way makes it readable.
#[test]
fn repairs_write_what_cannot_be_read() {
    let lab = Lab::clean();
    let (_, at) = lab.checkpoint();
    let older = CHECKPOINTS.iter().find(|b| b.0 != at).unwrap().0;
    for block in [0, older, 16, 264] {
        let image = lab.clone_image();
        // What a device gives for such a place once it can be read again is any bytes.
        image.poke(block * BLOCK_SIZE as u64, &[0xee; BLOCK_SIZE]);
        image.inject(Fault {
            forever: false,
            ..Fault::bad_range(Some(Op::Read), block * 4096..block * 4096 + 1)
        });
        repairs(&image, &lab.truth, &format!("block {block}"));
    }
}

/// The index checkpoint is derived, so the inodes are read instead.
#[test]
fn index_checkpoint() {
    let lab = Lab::clean();
    let (cp, _) = lab.checkpoint();
    for (first, count) in cp.index_runs {
        for segment in first.0..first.0 + count {
            let image = with_bad_sector(&lab, segment as u64 * SEGMENT_BLOCKS as u64);
            is_whole(image, &lab.truth, &format!("index piece in segment {segment}"));
        }
    }
}

/// First block and length of each record, and the block behind the last one.
fn records(lab: &Lab) -> (Vec<(u64, u64)>, u64) {
    let (cp, _) = lab.checkpoint();
    let mut at = cp.log_segments[0].first_block().0 + cp.log_position;
    let mut records = Vec::new();
    while let Some((_, blocks)) = format::log::probe_any(&lab.block(at), &cp.uuid) {
        records.push((at, blocks as u64));
        at += blocks as u64;
    }
    assert!(records.len() >= 2, "{records:?}");
    (records, at)
}

/// The volume is refused and left as it was, so all is there when it can be read again; or a repair gives up what cannot be.
fn is_refused(image: &Arc<SimFlash>, block: u64, truth: &Picture, what: &str) {
    let given_up = Arc::new(image.crash_image(|_, _| true));
    match Volume::open(image.clone(), options()).map(drop) {
        Err(Error::Corrupt(_)) => is_told(image, what),
        other => panic!("{what}: {other:?}"),
    }
    assert_eq!(image.counters().writes, 0, "{what}");
    image.clear_faults();
    is_whole(image.clone(), truth, what);
    bad_sector(&given_up, block);
    let device = given_up.clone();
    // What is written can be read from then on.
    let mut progress = |_| {
        if device.counters().writes > 0 {
            device.clear_faults();
        }
    };
    let repair = block::fsck::FsckOptions { repair: true };
    let report = block::fsck::check(given_up.clone(), &repair, &mut progress).unwrap();
    given_up.clear_faults();
    assert!(report.is_clean() && report.damage().count() > 0, "{what}: {:#?}", report.problems);
    let volume =
        Volume::open(given_up.clone(), options()).unwrap_or_else(|e| panic!("{what}, repaired: {e}"));
    stays_lost(&given_up, volume, what);
}

/// What lies in the ring behind the last record is not needed, but for the place of the next one: that there was none cannot be known.
#[test]
fn unused_log() {
    let lab = Lab::crashed();
    let (_, end) = records(&lab);
    let (cp, _) = lab.checkpoint();
    let last = cp.log_segments.last().unwrap().first_block().0 + SEGMENT_BLOCKS as u64 - 1;
    for block in [end + 1, end + 5, end + 300, last] {
        let image = with_bad_sector(&lab, block);
        let report = fsck(&image, false);
        assert!(report.is_clean() && report.damage().count() == 0, "{block}: {:#?}", report.problems);
        is_whole(image, &lab.truth, &format!("log, block {block} behind {end}"));
    }
    let image = lab.clone_image();
    (end + 1..end + 40).for_each(|block| bad_sector(&image, block));
    is_whole(image, &lab.truth, "many blocks");
    is_refused(&with_bad_sector(&lab, end), end, &lab.truth, "the place of the next record");
    let lab = Lab::clean();
    let (cp, _) = lab.checkpoint();
    let head = cp.log_segments[0].first_block().0 + cp.log_position;
    is_whole(with_bad_sector(&lab, head + 3), &lab.truth, "an empty log");
    is_refused(&with_bad_sector(&lab, head), head, &lab.truth, "the place of the first record");
}

/// A record of which something cannot be read may have been durable.
#[test]
fn log_records() {
    let lab = Lab::crashed();
    let (records, _) = records(&lab);
    for (n, &(first, blocks)) in records.iter().enumerate() {
        for place in [first, first + blocks - 1] {
            let what = format!("record {n} of {}, block {place}", records.len());
            is_refused(&with_bad_sector(&lab, place), place, &lab.truth, &what);
        }
    }
}

/// What is not there when a volume is opened is not there after a loss of power either, although all of it can be read then.
fn stays_lost(image: &SimFlash, volume: Volume, what: &str) {
    let found = picture(&volume).unwrap();
    let readable = Arc::new(image.crash_image(|_, _| false));
    drop(volume);
    let volume = Volume::open(readable, options()).unwrap_or_else(|e| panic!("{what}, again: {e}"));
    assert!(picture(&volume).unwrap() == found, "{what}: what was lost is back");
    volume.close_blocking().unwrap();
}

/// The last epoch before a loss of power was synced. Its record, or data that it covers, cannot be read: nobody says that it is not there.
#[test]
fn last_epoch() {
    let image = made(|_| {});
    let volume = Volume::open(image.clone(), options()).unwrap();
    let root = Cred::root();
    block_on(async {
        volume.mkdir(&root, Ino::ROOT, b"earlier", 0o755).await.unwrap();
        volume.sync().await.unwrap();
        let rw = OpenFlags::READ | OpenFlags::WRITE;
        let (_, file) = volume.create(&root, Ino::ROOT, b"file", 0o644, rw).await.unwrap();
        volume.write(file, 0, &pattern(100_000, 1)).await.unwrap();
        volume.sync().await.unwrap();
    });
    let lab = Lab { image: image.crash_image(|_, _| false), truth: picture(&volume).unwrap() };
    drop(volume);
    let (records, _) = records(&lab);
    let &(first, blocks) = records.last().unwrap();
    let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
    lab.image.peek(first * BLOCK_SIZE as u64, &mut bytes);
    let mut places = vec![first, first + blocks - 1];
    places.extend(Record::parse(&bytes).unwrap().covers.iter().map(|c| c.block.get()));
    assert!(places.len() > 2);
    for block in places {
        is_refused(&with_bad_sector(&lab, block), block, &lab.truth, &format!("block {block}"));
    }
}

/// A device that stops reading at any point is an error and no end of the log: nothing is changed, and all is there when it reads again.
#[test]
fn devices_that_fail_as_a_whole() {
    let lab = Lab::crashed();
    for failure in [Failure::Errno(libc::EIO), Failure::Gone] {
        let mut n = 0;
        loop {
            let image = lab.clone_image();
            image.inject(Fault { failure, forever: true, ..Fault::nth(Some(Op::Read), n + 1) });
            match Volume::open(image.clone(), options()).map(drop) {
                Ok(()) => break,
                Err(e) => assert!(matches!(e, Error::Media(_)), "read {n}: {e}"),
            }
            assert_eq!(image.counters().writes, 0, "read {n}");
            image.clear_faults();
            assert!(mounts_right(&image, &lab.truth, &format!("{failure:?} from read {n} on")));
            n += 1;
        }
        assert!(n > 20, "{n}");
    }
}

/// Reads that fail for a moment, one or some in a row, cost nothing that was durable.
#[test]
fn reads_that_fail_for_a_moment() {
    let lab = Lab::crashed();
    for (n, count) in (1..).flat_map(|n| [1, 2, 3, 5, 6, 12].map(|count| (n, count))) {
        let what = format!("{count} reads from {n} on");
        let image = lab.clone_image();
        (n..n + count).for_each(|n| image.inject(Fault::nth(Some(Op::Read), n)));
        match Volume::open(image.clone(), options()) {
            Ok(volume) => {
                let all = image.counters().reads < n;
                image.clear_faults();
                assert_eq!(picture(&volume).unwrap(), lab.truth, "{what}");
                volume.close_blocking().unwrap();
                if all {
                    break;
                }
            }
            Err(e) => {
                assert!(matches!(e, Error::Media(_)), "{what}: {e}");
                image.clear_faults();
                assert!(mounts_right(&image, &lab.truth, &what));
            }
        }
    }
}

/// A volume to be repaired: a directory is lost, and what is in it has to be made anew elsewhere. The slot of the directory, and
/// what there is after the repair.
fn without_a_directory(lab: &Lab) -> (Arc<SimFlash>, u64, Picture) {
    let ino = lab.truth["/a/sub"].ino;
    let (_, slot) = lab.slots().into_iter().find(|(i, _)| *i == ino).unwrap();
    let image = lab.flipped(slot * BLOCK_SIZE as u64 + 50, 1);
    let repaired = Arc::new(image.crash_image(|_, _| true));
    repairs(&repaired, &lab.truth, "a lost directory");
    (image, slot, timeless(seen(&repaired)))
}

/// Without the times, which are those of the repair where it has made something.
fn timeless(mut picture: Picture) -> Picture {
    picture.values_mut().for_each(|seen| seen.times = Default::default());
    picture
}

fn seen(image: &SimFlash) -> Picture {
    let volume = Volume::open(Arc::new(image.crash_image(|_, _| true)), options()).unwrap();
    let found = picture(&volume).unwrap();
    volume.close_blocking().unwrap();
    found
}

fn repair(image: &Arc<SimFlash>) -> fs::Result<block::fsck::Report> {
    block::fsck::check(image.clone(), &block::fsck::FsckOptions { repair: true }, &mut |_| {})
}

/// Nothing is given up by a repair because it could not be read for a moment, nor when the device stops reading at any point.
#[test]
fn repairs_while_reads_fail() {
    let lab = Lab::clean();
    let (damaged, _, expected) = without_a_directory(&lab);
    let moments = [(2, 2), (6, 7)].map(|(count, step)| (Failure::Errno(libc::EIO), count, step));
    let ends = [Failure::Errno(libc::EIO), Failure::Gone].map(|failure| (failure, 0, 9));
    for (failure, count, step) in moments.into_iter().chain(ends) {
        let mut finished = 0;
        // All passes of a repair read about a hundred times.
        for n in (1..120).step_by(step) {
            let what = format!("{failure:?}, {count} reads from {n} on");
            let image = Arc::new(damaged.crash_image(|_, _| true));
            if count == 0 {
                image.inject(Fault { failure, forever: true, ..Fault::nth(Some(Op::Read), n) });
            }
            (n..n + count).for_each(|n| image.inject(Fault::nth(Some(Op::Read), n)));
            let outcome = repair(&image);
            image.clear_faults();
            match outcome {
                Ok(report) => {
                    assert!(report.is_clean(), "{what}: {:#?}", report.problems);
                    finished += 1;
                }
                Err(Error::Media(_)) => assert!(repair(&image).unwrap().is_clean(), "{what}"),
                Err(e) => panic!("{what}: {e}"),
            }
            assert!(timeless(seen(&image)) == expected, "{what}: something is lost");
        }
        assert!(finished > 0, "{failure:?}, {count}");
    }
}

/// A slot can be read again before a repair gives up what is in it, or cannot any more when it is about to be made anew.
#[test]
fn slots_that_change_their_mind() {
    let lab = Lab::clean();
    let (damaged, directory, expected) = without_a_directory(&lab);
    let file = lab.truth["/a/sub/small"].ino;
    let (_, file) = lab.slots().into_iter().find(|(i, _)| *i == file).unwrap();
    let repair = |image: &Arc<SimFlash>, then: &dyn Fn(u64)| {
        let device = image.clone();
        let mut scanned = false;
        let mut progress = |p: block::fsck::Progress| {
            // All slots were read by then, and nothing was written.
            scanned |= p.phase == "checking the index checkpoint";
            if scanned {
                then(device.counters().writes);
            }
        };
        let repair = block::fsck::FsckOptions { repair: true };
        block::fsck::check(image.clone(), &repair, &mut progress).unwrap()
    };
    for slot in [directory, file] {
        let image = with_bad_sector(&lab, slot);
        let report = repair(&image, &|_| image.clear_faults());
        assert!(report.is_clean() && !report.written, "{:#?}", report.problems);
        assert_eq!(report.damage().count(), 0, "{:#?}", report.problems);
        assert_eq!(seen(&image), lab.truth);
    }
    let image = Arc::new(damaged.crash_image(|_, _| true));
    let report = repair(&image, &|writes| match writes {
        0 => bad_sector(&image, file),
        _ => image.clear_faults(),
    });
    assert!(report.is_clean(), "{:#?}", report.problems);
    assert!(timeless(seen(&image)) == expected, "{:#?}", report.problems);
}

/// A place that cannot be read after it was written either: a repair says so, and does not go on for ever.
#[test]
fn a_repair_that_changes_nothing() {
    let lab = Lab::clean();
    let image = with_bad_sector(&lab, 1);
    let mut passes = 0;
    let mut progress =
        |p: block::fsck::Progress| passes += (p.phase == "checking inodes" && p.done == 0) as u32;
    let repair = block::fsck::FsckOptions { repair: true };
    let report = block::fsck::check(image.clone(), &repair, &mut progress).unwrap();
    assert!(!report.is_clean() && passes == 2, "{passes}: {:#?}", report.problems);
    assert!(mounts_right(&image, &lab.truth, "a superblock that stays bad"));
}
