//! Calls that are given up while they wait: what they found is as it was, and what others had made durable is not lost.

mod hand;

use block::{MkfsOptions, OpenOptions, Volume};
use fs::{Cred, FileSystem, Ino, OpenFlags};
use hand::{ByHand, TestClock};
use media::ram::RamMedia;
use sim::{Driver, HandClock};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

const PAGE: usize = 4096;
const PAGES: usize = 64;
const MIB: u64 = 1 << 20;
/// MiB of a file that is larger than the cache.
const LARGE: u64 = 16;

/// A page that stands in the log only is made ready for a change that never comes. What a copy of it holds is not on the medium, and it is not thrown out as if it were.
#[test]
fn a_page_in_the_log_outlives_a_write_that_is_given_up() {
    let media = Arc::new(RamMedia::new(128 << 20).unwrap());
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    let clock = HandClock::default();
    clock.set(sim::driver::FIRST_TICK);
    let options = OpenOptions {
        cache_bytes: 4 << 20,
        clock: Arc::new(TestClock(clock.clone())),
        ..OpenOptions::default()
    };
    let (volume, worker) = Volume::open_manual(media, options).unwrap();
    let driver = ByHand::new(worker, clock);
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let (_, file) = driver.block_on(volume.create(&Cred::root(), Ino::ROOT, b"f", 0o644, flags)).unwrap();
    driver.block_on(volume.write(file, 0, &[1; PAGES * PAGE])).unwrap();
    let (_, other) = driver.block_on(volume.create(&Cred::root(), Ino::ROOT, b"o", 0o644, flags)).unwrap();
    (0..LARGE).for_each(|i| {
        assert_eq!(driver.block_on(volume.write(other, i * MIB, &[9; MIB as usize])), Ok(MIB as usize))
    });
    driver.block_on(volume.drop_caches()).unwrap();
    // Small enough for the log.
    driver.block_on(volume.write(file, 100, &[2; 100])).unwrap();
    driver.block_on(volume.fsync(file, false)).unwrap();
    {
        // It begins in that page and ends in one that has to be read.
        let mut write = pin!(volume.write(file, 150, &[3; 10 * PAGE]));
        let polled = write.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "it waits for a read");
    }
    // More than the cache has room for, several times.
    let mut much = vec![0; MIB as usize];
    (0..LARGE)
        .for_each(|i| assert_eq!(driver.block_on(volume.read(other, i * MIB, &mut much)), Ok(MIB as usize)));
    let mut bytes = [0; 300];
    driver.block_on(volume.read(file, 0, &mut bytes)).unwrap();
    let want = [[1; 100], [2; 100], [1; 100]].concat();
    assert!(bytes[..] == want, "{:?}", &bytes[90..210]);
    driver.block_on(volume.write(file, 0, &[4; 10])).unwrap();
    driver.block_on(volume.fsync(file, false)).unwrap();
    driver.block_on(volume.read(file, 0, &mut bytes)).unwrap();
    assert_eq!(bytes[100..200], [2; 100]);
}
