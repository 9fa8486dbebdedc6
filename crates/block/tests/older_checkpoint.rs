//! The newest checkpoint is damaged, so recovery begins at the one before.
//!
//! Verifies that what the log holds from before the damaged checkpoint does not come to stand in files that were written after it.

mod rig;

use block::Volume;
use block::fsck::FsckOptions;
use format::checkpoint::{CHECKPOINTS, Checkpoint};
use format::limits::BLOCK_SIZE;
use format::superblock::Superblock;
use fs::{Cred, FileSystem, Ino, OpenFlags};
use media::SimFlash;
use media::flash::Event;
use rig::{ByHand, Setup};
use sim::Driver;
use std::sync::Arc;

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
const FILES: u8 = 4;
const LEN: usize = 5 * BLOCK_SIZE;

fn write(volume: &Volume, driver: &ByHand, name: &str, byte: u8) {
    let cred = Cred::root();
    let made = driver.block_on(volume.create(&cred, Ino::ROOT, name.as_bytes(), 0o644, RW));
    let handle = match made {
        Ok((_, handle)) => handle,
        Err(_) => {
            let ino = driver.block_on(volume.lookup(&cred, Ino::ROOT, name.as_bytes())).unwrap().ino;
            driver.block_on(volume.open(&cred, ino, RW)).unwrap()
        }
    };
    driver.block_on(volume.write(handle, 0, &vec![byte; LEN])).unwrap();
    driver.block_on(volume.release(handle)).unwrap();
}

fn reads(volume: &Volume, driver: &ByHand, name: &str) -> Vec<u8> {
    let cred = Cred::root();
    let ino = driver.block_on(volume.lookup(&cred, Ino::ROOT, name.as_bytes())).unwrap().ino;
    let handle = driver.block_on(volume.open(&cred, ino, RW)).unwrap();
    let mut bytes = vec![0; LEN];
    assert_eq!(driver.block_on(volume.read(handle, 0, &mut bytes)).unwrap(), LEN);
    driver.block_on(volume.release(handle)).unwrap();
    bytes
}

/// The checkpoints, the newest last.
fn checkpoints(media: &SimFlash) -> Vec<(Checkpoint, u64)> {
    let read = |at: u64| {
        let mut block = vec![0; BLOCK_SIZE];
        media.peek(at, &mut block);
        block
    };
    let superblock = Superblock::parse(&read(0)).unwrap();
    let parse = |at: u64| Checkpoint::parse(&read(at), &superblock.uuid, superblock.segments()).unwrap();
    let mut both: Vec<(Checkpoint, u64)> =
        CHECKPOINTS.iter().map(|at| (parse(at.byte()), at.byte())).collect();
    both.sort_by_key(|(checkpoint, _)| checkpoint.sequence);
    both
}

#[test]
fn an_image_does_not_go_over_what_was_written_later() {
    let setup = Setup { checkpoints: false, ..Setup::new(true, 2) };
    let media = setup.make();
    let (volume, driver) = setup.start(media.clone()).unwrap();
    let sync = || driver.block_on(volume.sync()).unwrap();
    let name = |what: &str, i: u8| format!("{what} {i}");
    (0..FILES).for_each(|i| write(&volume, &driver, &name("old", i), 1));
    sync();
    driver.block_on(volume.checkpoint()).unwrap();
    let before = volume.counters().logged_pages;
    // Overwrites of a strict volume go by the log.
    for i in 0..FILES {
        write(&volume, &driver, &name("old", i), 2);
        sync();
    }
    assert!(volume.counters().logged_pages > before);
    for i in 0..FILES {
        driver.block_on(volume.unlink(&Cred::root(), Ino::ROOT, name("old", i).as_bytes())).unwrap();
    }
    sync();
    driver.block_on(volume.checkpoint()).unwrap();
    let both = checkpoints(&media.crash_image(|_, _| true));
    let newest = both[1].1;
    media.set_trace(true);
    (0..FILES).for_each(|i| write(&volume, &driver, &name("new", i), 100 + i));
    sync();
    let trace = media.take_trace().unwrap();
    // Before the other checkpoint says, of this one, that there is more in the log by now.
    let is_checkpoint = |at: u64| CHECKPOINTS.iter().any(|c| c.byte() == at);
    let mut cursor = trace.cursor();
    while let Some(event) = cursor.step() {
        if matches!(event, Event::Submit(write) if is_checkpoint(write.offset)) {
            break;
        }
    }
    let image = cursor.state().crash_image(|write, _| !is_checkpoint(write.offset));
    image.poke(newest + 100, b"??");
    for repairs in [false, true] {
        let image = Arc::new(image.crash_image(|_, _| true));
        if repairs {
            let report = block::fsck::check(image.clone(), &FsckOptions { repair: true }, &mut |_| {});
            assert!(report.unwrap().is_clean());
        }
        let (volume, driver) = setup.start(image).unwrap();
        for i in 0..FILES {
            let found = reads(&volume, &driver, &name("new", i));
            assert!(
                found.iter().all(|&byte| byte == 100 + i),
                "new {i} holds {}, repaired: {repairs}",
                found[0]
            );
        }
    }
}
