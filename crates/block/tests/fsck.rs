//! Planted damage: no byte of any structure may be changed without being noticed, nothing wrong may be shown, and what a
//! repair does not report as lost is there afterwards.
//!
//! Not found, because nothing depends on it: free blocks, the log behind its end, homes of the inode segment table that are
//! not in use, reserved blocks of the super segment. Not found, because nothing covers it: contents of files.

#[path = "fsck/lab.rs"]
#[allow(dead_code, reason = "shared with the tests of contradictions")]
mod lab;

use format::checkpoint::CHECKPOINTS;
use format::limits::{BLOCK_SIZE, SEGMENT_BLOCKS};
use fs::{Cred, FileSystem, Ino, OpenFlags, block_on};
use lab::*;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::sync::Arc;

fn seed(name: &str) -> SmallRng {
    let seed = std::env::var("FSCK_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("{name}: FSCK_SEED={seed}");
    SmallRng::seed_from_u64(seed)
}

/// Flips bytes of one block: all of `every` and some of the rest. fsck must tell all of them, mount must not show anything
/// wrong, repair must mend it.
fn plant(lab: &Lab, block: u64, every: usize, samples: usize, deep: usize, what: &str, rng: &mut SmallRng) {
    let mut offsets: Vec<usize> = (0..every).collect();
    offsets.extend((0..samples).map(|_| rng.random_range(every..BLOCK_SIZE)));
    for (n, at) in offsets.into_iter().enumerate() {
        let what = format!("{what}, block {block}, byte {at}");
        let image = lab.flipped(block * BLOCK_SIZE as u64 + at as u64, 1 << rng.random_range(0..8));
        let report = fsck(&image, false);
        assert!(!report.is_clean(), "{what}: silently accepted");
        assert!(!report.written);
        if n % deep == 0 {
            mounts_right(&image, &lab.truth, &what);
            repairs(&image, &lab.truth, &what);
        }
    }
}

#[test]
fn good_volumes_are_clean_and_stay_as_they_are() {
    for (lab, clean) in [(Lab::clean(), true), (Lab::crashed(), false)] {
        let image = lab.clone_image();
        let report = fsck(&image, true);
        assert_eq!(report.damage().count(), 0, "{:#?}", report.problems);
        assert!(report.is_clean() && !report.written);
        assert_eq!(report.stopped_cleanly, clean);
        let c = report.counts;
        assert!(
            c.trees >= 2 && c.outside_xattrs >= 2 && c.links >= 4 && c.symlinks == 4 && c.special == 4,
            "{c:?}"
        );
        assert_eq!(
            (c.index_inodes > 0, c.log_epochs > 0, c.log_pages > 0, c.orphans),
            (clean, !clean, !clean, !clean as u64)
        );
        for at in (0..BYTES).step_by(1 << 20) {
            let (mut a, mut b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
            lab.image.peek(at, &mut a);
            image.peek(at, &mut b);
            assert!(a == b, "fsck changed a good volume");
        }
        assert!(mounts_right(&image, &lab.truth, "good volume"));
        let json = serde_json::to_string(&report).unwrap();
        assert!(json.contains("\"counts\""));
    }
}

#[test]
fn superblocks() {
    let mut rng = seed("superblocks");
    let lab = Lab::clean();
    for block in 0..2 {
        plant(&lab, block, 128, 60, 25, "superblock", &mut rng);
    }
}

#[test]
fn checkpoints() {
    let mut rng = seed("checkpoints");
    for lab in [Lab::clean(), Lab::crashed()] {
        for at in CHECKPOINTS {
            plant(&lab, at.0, 136, 60, 20, "checkpoint", &mut rng);
        }
    }
}

#[test]
fn inode_segment_table() {
    let mut rng = seed("inode_segment_table");
    for lab in [Lab::clean(), Lab::crashed()] {
        let homes = format::segtable::homes(0);
        for at in homes.into_iter().filter(|at| lab.block(at.0).iter().any(|&b| b != 0)) {
            plant(&lab, at.0, 60, 30, 15, "table", &mut rng);
        }
    }
}

#[test]
fn inode_slots() {
    let mut rng = seed("inode_slots");
    let lab = Lab::clean();
    let slots = lab.slots();
    assert!(slots.len() > 30);
    let some = slots[7].1;
    plant(&lab, some, 200, 40, 60, "inode", &mut rng);
    for (_, block) in slots {
        plant(&lab, block, 0, 2, 2, "inode", &mut rng);
    }
}

#[test]
fn extent_nodes_and_attributes() {
    let mut rng = seed("extent_nodes_and_attributes");
    let lab = Lab::clean();
    let (nodes, xattrs) = lab.outside();
    assert!(nodes.len() >= 4 && xattrs.len() >= 2);
    for node in nodes {
        plant(&lab, node, 40, 20, 30, "extent node", &mut rng);
    }
    for block in xattrs {
        plant(&lab, block, 40, 20, 30, "attributes", &mut rng);
    }
}

#[test]
fn index_checkpoint() {
    let mut rng = seed("index_checkpoint");
    let lab = Lab::clean();
    let (cp, _) = lab.checkpoint();
    assert!(cp.index_pieces >= 2);
    for (first, count) in cp.index_runs {
        for segment in first.0..first.0 + count {
            let block = segment as u64 * SEGMENT_BLOCKS as u64;
            // Header and entries; behind them stands nothing.
            let piece = lab.block(block);
            let used = 64 + u32::from_le_bytes(piece[44..48].try_into().unwrap()) as usize;
            for at in (0..64).chain((0..60).map(|_| rng.random_range(64..used.max(65)))) {
                let what = format!("index piece in segment {segment}, byte {at}");
                if at >= used {
                    continue;
                }
                let image = lab.flipped(block * BLOCK_SIZE as u64 + at as u64, 4);
                let report = fsck(&image, false);
                // What says that it is this piece is good, so the rest may as well be new data.
                let same = (4..8).contains(&at) || at >= 36;
                assert!(
                    !report.problems.is_empty() && (same || !report.is_clean()),
                    "{what}: silently accepted"
                );
                if at % 29 == 0 {
                    assert!(
                        mounts_right(&image, &lab.truth, &what),
                        "{what}: mount could have done without the index"
                    );
                    repairs(&image, &lab.truth, &what);
                }
            }
        }
    }
}

/// A server that is killed soon after it was started has written data where the index checkpoint stands, and no record yet. Nothing is damaged.
#[test]
fn index_checkpoint_under_new_data() {
    let lab = Lab::clean();
    let (cp, _) = lab.checkpoint();
    let image = lab.clone_image();
    for (first, count) in cp.index_runs {
        for segment in first.0..first.0 + count {
            image.poke(
                segment as u64 * SEGMENT_BLOCKS as u64 * BLOCK_SIZE as u64,
                &pattern(3 * BLOCK_SIZE, segment),
            );
        }
    }
    let report = fsck(&image, false);
    assert!(report.is_clean() && !report.problems.is_empty(), "{report:?}");
    assert!(mounts_right(&image, &lab.truth, "an index under new data"));
}

/// Names enough for a long piece of the index checkpoint.
fn many_names() -> Lab {
    let image = made(|volume| {
        block_on(async {
            for i in 0..1500 {
                let name = format!("{i:0200}");
                let made =
                    volume.create(&Cred::root(), Ino::ROOT, name.as_bytes(), 0o644, OpenFlags::WRITE).await;
                volume.release(made.unwrap().1).await.unwrap();
            }
        });
    });
    let volume = block::Volume::open(Arc::new(image.crash_image(|_, _| true)), options()).unwrap();
    Lab { truth: picture(&volume).unwrap(), image: image.crash_image(|_, _| true) }
}

/// As above, where the data has its place further within the segment.
#[test]
fn index_checkpoint_with_new_data_in_it() {
    let lab = many_names();
    let first = lab.checkpoint().0.index_runs[0].0.first_block().0;
    let used = u32::from_le_bytes(lab.block(first)[44..48].try_into().unwrap()) as usize;
    assert!(used > 131 * BLOCK_SIZE, "{used}");
    let image = lab.clone_image();
    image.poke((first + 128) * BLOCK_SIZE as u64, &pattern(3 * BLOCK_SIZE, 1));
    let report = fsck(&image, false);
    assert!(report.is_clean() && !report.problems.is_empty(), "{report:?}");
    assert!(mounts_right(&image, &lab.truth, "an index with new data in it"));
}

/// Inodes are read in large pieces, also when the index checkpoint is compared with them.
#[test]
fn a_check_reads_few_times() {
    let image = many_names().clone_image();
    assert!(fsck(&image, false).is_clean());
    assert!(image.counters().reads < 150, "{:?}", image.counters());
}

/// The log is a chain: damage cuts it. What was durable before the last record is missed; the last records may be told as
/// a cut, as after a loss of power. Mount never shows a state that was not there.
#[test]
fn log_records() {
    let mut rng = seed("log_records");
    let lab = Lab::crashed();
    let (cp, _) = lab.checkpoint();
    let first = cp.log_segments[0].first_block().0 + cp.log_position;
    let mut at = first;
    let mut records = Vec::new();
    while let Some((_, blocks)) = format::log::probe_any(&lab.block(at), &cp.uuid) {
        records.push((at, blocks as u64));
        at += blocks as u64;
    }
    assert!(records.len() >= 6, "{records:?}");
    let durable_from = records.len() - 2;
    for (n, &(block, blocks)) in records.iter().enumerate() {
        for i in 0..24 {
            let byte = if i < 12 {
                rng.random_range(0..96)
            } else {
                rng.random_range(0..blocks as usize * BLOCK_SIZE)
            };
            let what = format!("log record {n} of {}, byte {byte}", records.len());
            let image = lab.flipped(block * BLOCK_SIZE as u64 + byte as u64, 2);
            let report = fsck(&image, false);
            if n < durable_from {
                assert!(!report.is_clean(), "{what}: silently accepted");
            }
            let copy = std::sync::Arc::new(image.crash_image(|_, _| true));
            let mounted = block::Volume::open(copy, options());
            assert!(n >= durable_from || mounted.is_err(), "{what}: mounted without a durable epoch");
            drop(mounted);
            if i % 8 == 0 {
                let report = fsck(&image, true);
                assert!(report.is_clean(), "{what}: {:#?}", report.problems);
                let again = fsck(&image, false);
                assert_eq!(again.damage().count(), 0, "{what}: {:#?}", again.problems);
                let volume = block::Volume::open(image, options()).unwrap_or_else(|e| panic!("{what}: {e}"));
                picture(&volume).unwrap_or_else(|e| panic!("{what}: {e}"));
                volume.close_blocking().unwrap();
            }
        }
    }
}

/// Everything was synced, one record is damaged: what stands behind it was durable as well, and can be read.
#[test]
fn records_behind_a_damaged_one() {
    const FILES: usize = 300;
    let content = |i: usize| pattern(1000, i as u32);
    let image = made(|_| {});
    let volume = block::Volume::open(image.clone(), options()).unwrap();
    block_on(async {
        for i in 0..FILES {
            let name = format!("file {i}");
            let made =
                volume.create(&Cred::root(), Ino::ROOT, name.as_bytes(), 0o644, OpenFlags::WRITE).await;
            let (_, h) = made.unwrap();
            volume.write(h, 0, &content(i)).await.unwrap();
            volume.fsync(h, false).await.unwrap();
            volume.release(h).await.unwrap();
        }
    });
    let lab = Lab { image: image.crash_image(|_, _| false), truth: picture(&volume).unwrap() };
    drop(volume);
    let (cp, _) = lab.checkpoint();
    let mut at = cp.log_segments[0].first_block().0 + cp.log_position;
    // Where each record is, and the names in it.
    let mut records: Vec<(u64, Vec<Vec<u8>>)> = Vec::new();
    while let Some((_, blocks)) = format::log::probe_any(&lab.block(at), &cp.uuid) {
        let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
        lab.image.peek(at * BLOCK_SIZE as u64, &mut bytes);
        let images = format::log::Record::parse(&bytes).unwrap();
        records.push((at, images.inodes().map(|image| image.unwrap().1.name.to_vec()).collect()));
        at += blocks as u64;
    }
    let count = records.len();
    assert!(count > 280, "{count}");
    for n in [1, 20, 150, count - 3, count - 2] {
        let what = format!("record {n} of {count}");
        let image = lab.flipped(records[n].0 * BLOCK_SIZE as u64 + 100, 2);
        let report = fsck(&image, true);
        assert!(report.is_clean(), "{what}: {:#?}", report.problems);
        let told = report.damage().find_map(|p| p.lost.clone()).unwrap_or_default();
        // Nothing says of the last one that it was durable, and what it follows is gone.
        let last = n == count - 2;
        assert!(told.contains(" 1 epochs;") && told.contains("; 1 behind them") == last, "{what}: {told}");
        let gone = if last { &records[n..] } else { &records[n..=n] };
        let volume = block::Volume::open(image, options()).unwrap_or_else(|e| panic!("{what}: {e}"));
        let found = picture(&volume).unwrap();
        for i in 0..FILES {
            let name = format!("file {i}");
            if gone.iter().all(|(_, names)| !names.contains(&name.clone().into_bytes())) {
                let file = found.get(&format!("/{name}")).unwrap_or_else(|| panic!("{what}: {name} is gone"));
                assert!(file.content == Ok(content(i)), "{what}: {name}");
            }
        }
        volume.close_blocking().unwrap();
    }
}
