//! Repairs of volumes whose log is not home yet, cut off by a loss of power.
//!
//! A mount would have taken the log over. Verifies that a repair, which does so in its place, leaves at each moment what a mount can go
//! on with: also when the device had not flushed what a killed server wrote, and when a checkpoint had not finished.

#[path = "fsck/lab.rs"]
#[allow(dead_code, reason = "shared with the tests of fsck")]
mod lab;
mod rig;

use block::Volume;
use format::BlockNo;
use format::checkpoint::CHECKPOINTS;
use format::limits::BLOCK_SIZE;
use fs::{Cred, FileSystem, Ino, OpenFlags, block_on};
use lab::{Lab, Picture};
use media::flash::{Event, SimFlash};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use rig::Setup;
use sim::Driver;
use std::sync::Arc;

/// Repairs the volume, and calls `look` with what there may be after a loss of power, at each moment so many times.
fn cut_anywhere(image: &Arc<SimFlash>, tries: u32, mut look: impl FnMut(Arc<SimFlash>, &str)) {
    image.set_trace(true);
    let report = lab::fsck(image, true);
    assert!(report.is_clean() && report.written, "{:#?}", report.problems);
    let trace = image.take_trace().unwrap();
    let mut rng = SmallRng::seed_from_u64(11);
    let mut cursor = trace.cursor();
    loop {
        for kept in 0..tries {
            let state = cursor.state();
            let image = state.crash_image(|_, _| kept == 1 || kept > 1 && rng.random_bool(0.5));
            look(Arc::new(image), &format!("cut at event {}, {kept}", cursor.index()));
        }
        // Writes of slots and pages are many, and all alike.
        let fixed = |event: Option<&Event>| match event {
            Some(Event::Submit(write)) => write.offset < format::limits::SEGMENT_SIZE as u64,
            Some(Event::FlushSubmit { .. } | Event::FlushDone { .. }) => true,
            _ => false,
        };
        let mut next = cursor.step();
        while next.is_some() && !fixed(next) {
            next = cursor.step();
        }
        if next.is_none() {
            break;
        }
    }
}

/// A checkpoint has written the table without a segment that no longer is one of inodes, and was cut off before its own block.
#[test]
fn a_checkpoint_that_did_not_finish() {
    let flash = lab::made(|_| {});
    let volume = Volume::open(flash.clone(), lab::options()).unwrap();
    block_on(async {
        let root = Cred::root();
        let name = |i: u32| format!("file {i}").into_bytes();
        for i in 0..700 {
            let made = volume.create(&root, Ino::ROOT, &name(i), 0o644, OpenFlags::WRITE).await;
            volume.release(made.unwrap().1).await.unwrap();
        }
        volume.checkpoint().await.unwrap();
        for i in 300..700 {
            volume.unlink(&root, Ino::ROOT, &name(i)).await.unwrap();
        }
        volume.sync().await.unwrap();
        flash.set_trace(true);
        volume.checkpoint().await.unwrap();
    });
    let trace = flash.take_trace().unwrap();
    drop(volume);
    let homes = format::segtable::homes(0).map(BlockNo::byte);
    let mut cursor = trace.cursor();
    while !matches!(cursor.step().expect("the table is written"), Event::Submit(w) if homes.contains(&w.offset))
    {
    }
    let image = Arc::new(cursor.state().crash_image(|_, _| true));
    // A mount does without the second superblock.
    image.poke(BLOCK_SIZE as u64, b"??");
    cut_anywhere(&image, 3, |image, what| {
        let volume = Volume::open(image, lab::options()).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(volume.names(Ino::ROOT, 5000).unwrap().len(), 300, "{what}");
    });
}

/// What a killed server has written is accepted, and still in the device's cache.
#[test]
fn records_that_are_not_flushed() {
    let setup = Setup { checkpoints: false, ..Setup::new(true, 2) };
    let media = setup.make();
    let (volume, driver) = setup.start(media.clone()).unwrap();
    let root = driver.block_on(volume.opendir(&Cred::root(), Ino::ROOT)).unwrap();
    for name in [b"a", b"b", b"c"] {
        // A barrier closes an epoch when it is old enough.
        driver.clock.set(1000);
        driver.block_on(volume.mkdir(&Cred::root(), Ino::ROOT, name, 0o755)).unwrap();
        driver.block_on(volume.barrier(root, false)).unwrap();
        driver.clock.set(1001);
        driver.settle();
    }
    drop((volume, driver));
    assert!(!media.pending().is_empty(), "all of it was flushed");
    // A mount does without the checkpoint that is not the newest.
    let lab = Lab { image: media.crash_image(|_, _| true), truth: Picture::new() };
    let newest = lab.checkpoint().1;
    let other = CHECKPOINTS.into_iter().find(|at| at.0 != newest).unwrap();
    media.poke(other.byte(), b"??");
    let mut all = 0;
    cut_anywhere(&media, 10, |image, what| {
        let (volume, _) = setup.start(image).unwrap_or_else(|e| panic!("{what}: {e}"));
        all += (volume.names(Ino::ROOT, 10).unwrap().len() == 3) as u32;
    });
    assert!(all > 10, "{all}");
}
