//! Calls that are given up while they wait, or refused: what they found is as it was, and what others had made durable is not lost.

mod hand;

use block::{MkfsOptions, OpenOptions, Volume};
use fs::{Cred, Error, FileSystem, Handle, Ino, OpenFlags};
use hand::{ByHand, TestClock};
use media::ram::RamMedia;
use sim::{Driver, HandClock};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
/// MiB of a file that is larger than the cache.
const LARGE: usize = 16;

/// A fresh volume of so many MiB with a cache of four.
struct Rig {
    volume: Volume,
    driver: ByHand,
}

impl Rig {
    fn new(mib: usize) -> Rig {
        let media = Arc::new(RamMedia::new((mib * MIB) as u64).unwrap());
        block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
        let clock = HandClock::default();
        clock.set(sim::driver::FIRST_TICK);
        let options = OpenOptions {
            cache_bytes: 4 * MIB,
            clock: Arc::new(TestClock(clock.clone())),
            ..OpenOptions::default()
        };
        let (volume, worker) = Volume::open_manual(media, options).unwrap();
        Rig { volume, driver: ByHand::new(worker, clock) }
    }

    fn create(&self, name: &[u8]) -> Handle {
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let root = Cred::root();
        self.driver.block_on(self.volume.create(&root, Ino::ROOT, name, 0o644, flags)).unwrap().1
    }

    fn write(&self, file: Handle, at: usize, bytes: &[u8]) -> Result<usize, Error> {
        self.driver.block_on(self.volume.write(file, at as u64, bytes))
    }

    fn read(&self, file: Handle, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![7; len];
        assert_eq!(self.driver.block_on(self.volume.read(file, at as u64, &mut bytes)), Ok(len));
        bytes
    }

    fn sync(&self, file: Handle) {
        self.driver.block_on(self.volume.fsync(file, false)).unwrap();
    }

    fn drop_caches(&self) {
        self.driver.block_on(self.volume.drop_caches()).unwrap();
    }

    /// Begins a write that waits for the page it ends in, and gives it up.
    fn give_up_write(&self, file: Handle, at: usize, bytes: &[u8]) {
        let mut write = pin!(self.volume.write(file, at as u64, bytes));
        let polled = write.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "it waits for a read");
    }
}

/// A page that stands in the log only is made ready for a change that never comes. What a copy of it holds is not on the medium, and it is not thrown out as if it were.
#[test]
fn a_page_in_the_log_outlives_a_write_that_is_given_up() {
    let rig = Rig::new(128);
    let file = rig.create(b"f");
    rig.write(file, 0, &[1; 64 * PAGE]).unwrap();
    let other = rig.create(b"o");
    (0..LARGE).for_each(|i| assert_eq!(rig.write(other, i * MIB, &[9; MIB]), Ok(MIB)));
    rig.drop_caches();
    // Small enough for the log.
    rig.write(file, 100, &[2; 100]).unwrap();
    rig.sync(file);
    rig.give_up_write(file, 150, &[3; 10 * PAGE]);
    // More than the cache has room for, several times.
    (0..LARGE).for_each(|i| assert!(rig.read(other, i * MIB, MIB) == [9; MIB]));
    assert_eq!(rig.read(file, 0, 300), [[1; 100], [2; 100], [1; 100]].concat());
    rig.write(file, 0, &[4; 10]).unwrap();
    rig.sync(file);
    assert_eq!(rig.read(file, 100, 100), [2; 100]);
}

/// A page of a hole was made ready, and a reader holds it. A write for which there is no space does not change it, for it and the next reader.
#[test]
fn a_page_of_a_hole_outlives_a_write_that_is_refused() {
    let rig = Rig::new(64);
    let file = rig.create(b"f");
    rig.write(file, 9 * PAGE, &[1; PAGE]).unwrap();
    rig.drop_caches();
    rig.give_up_write(file, 150, &[3; 9 * PAGE]);
    let lent = rig.driver.block_on(rig.volume.read_pages(file, 0, PAGE)).unwrap();
    let other = rig.create(b"o");
    let full = (0..).find_map(|i| rig.write(other, i * MIB, &[9; MIB]).err());
    assert_eq!(full, Some(Error::NoSpace));
    assert_eq!(rig.write(file, 0, &[5; PAGE]), Err(Error::NoSpace));
    assert!(rig.read(file, 0, PAGE) == [0; PAGE]);
    assert!(lent.to_vec() == [0; PAGE]);
}
