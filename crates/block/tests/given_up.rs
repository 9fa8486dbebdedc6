//! Calls that are given up while they wait, or refused: what they found is as it was, and what others had made durable is not lost.

mod hand;

use block::{MkfsOptions, OpenOptions, Volume};
use fs::{Attr, Cred, Error, Fallocate, FileSystem, Handle, Ino, OpenFlags, SetAttr};
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

    /// Takes all space there is.
    fn fill(&self) {
        let other = self.create(b"filler");
        for size in [MIB, PAGE] {
            let mut at = self.attr(other).size as usize;
            while let Ok(n) = self.write(other, at, &vec![9; size]) {
                at += n;
            }
        }
    }

    fn attr(&self, file: Handle) -> Attr {
        let set = SetAttr { handle: Some(file), ..SetAttr::default() };
        self.driver.block_on(self.volume.setattr(&Cred::root(), Ino::ROOT, set)).unwrap()
    }

    fn fallocate(&self, file: Handle, what: Fallocate, len: usize) -> Result<(), Error> {
        self.driver.block_on(self.volume.fallocate(file, what, 0, len as u64))
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
    rig.fill();
    assert_eq!(rig.write(file, 0, &[5; PAGE]), Err(Error::NoSpace));
    assert!(rig.read(file, 0, PAGE) == [0; PAGE]);
    assert!(lent.to_vec() == [0; PAGE]);
}

/// A page of a hole was made ready, and then the file was emptied. When it holds something again, the page is not taken for its first one.
#[test]
fn a_page_of_a_hole_is_not_that_of_a_later_file() {
    let rig = Rig::new(64);
    let file = rig.create(b"f");
    rig.write(file, 9 * PAGE, &[1; PAGE]).unwrap();
    rig.drop_caches();
    rig.give_up_write(file, 150, &[3; 9 * PAGE]);
    let empty = SetAttr { size: Some(0), handle: Some(file), ..SetAttr::default() };
    rig.driver.block_on(rig.volume.setattr(&Cred::root(), Ino::ROOT, empty)).unwrap();
    // So little that it stands in the inode, and then more.
    rig.write(file, 0, &[5; 10]).unwrap();
    rig.write(file, 10, &[6; 2 * PAGE]).unwrap();
    assert!(rig.read(file, 0, 20) == [[5; 10], [6; 10]].concat());
    rig.sync(file);
    rig.drop_caches();
    assert!(rig.read(file, 0, 20) == [[5; 10], [6; 10]].concat());
}

/// Zeros for which there is no space are not written.
#[test]
fn a_range_outlives_zeros_that_are_refused() {
    let rig = Rig::new(64);
    let file = rig.create(b"f");
    rig.write(file, 0, &[1; 100 * PAGE]).unwrap();
    rig.sync(file);
    rig.fill();
    let zeros = Fallocate::ZeroRange { keep_size: true };
    for len in [10 * PAGE + 5, 200 * PAGE] {
        assert_eq!(rig.fallocate(file, zeros, len), Err(Error::NoSpace), "{len}");
        assert!(rig.read(file, 0, 100 * PAGE) == [1; 100 * PAGE], "{len}");
    }
    // Parts of pages need none, nor do holes.
    rig.fallocate(file, zeros, PAGE - 1).unwrap();
    assert!(rig.read(file, PAGE - 2, 2) == [0, 1]);
    rig.fallocate(file, Fallocate::PunchHole, 10 * PAGE).unwrap();
    assert!(rig.read(file, 9 * PAGE, PAGE + 1) == [&[0; PAGE][..], &[1]].concat());
}

/// Space that is refused is not taken in part either, and a file that stands in its inode stays there.
#[test]
fn a_refused_allocation_takes_nothing() {
    let rig = Rig::new(64);
    let (file, small) = (rig.create(b"f"), rig.create(b"small"));
    rig.write(file, 0, &[1; 10 * PAGE]).unwrap();
    rig.write(small, 0, &[2; 100]).unwrap();
    rig.sync(file);
    // Wait for their blocks.
    rig.write(file, 20 * PAGE, &[3; 5 * PAGE]).unwrap();
    let seen = || {
        let free = rig.driver.block_on(rig.volume.statfs()).unwrap().blocks_free;
        let of = |file| (rig.attr(file).size, rig.attr(file).blocks);
        (free, of(file), of(small))
    };
    let before = seen();
    let kinds = [
        Fallocate::Allocate { keep_size: false },
        Fallocate::Allocate { keep_size: true },
        Fallocate::ZeroRange { keep_size: false },
    ];
    for what in kinds {
        for file in [file, small] {
            for len in [64 * MIB, 2 << 40] {
                assert_eq!(rig.fallocate(file, what, len), Err(Error::NoSpace), "{what:?}, {len}");
                assert_eq!(seen(), before, "{what:?}, {len}");
            }
        }
    }
    assert!(rig.read(file, 0, 10 * PAGE) == [1; 10 * PAGE]);
    assert!(rig.read(file, 20 * PAGE, 5 * PAGE) == [3; 5 * PAGE]);
    // What is promised to pages that wait can be had when nothing else can.
    rig.driver.block_on(rig.volume.sync()).unwrap();
    rig.fill();
    rig.driver.block_on(rig.volume.fallocate(file, Fallocate::PunchHole, 0, 4 * PAGE as u64)).unwrap();
    let mut page = 30;
    while rig.write(file, page * PAGE, &[4; PAGE]).is_ok() {
        page += 1;
    }
    assert!(page > 30, "nothing was freed");
    let waiting = (page - 30) * PAGE;
    let allocate = Fallocate::Allocate { keep_size: false };
    let allocated = rig.volume.fallocate(file, allocate, 30 * PAGE as u64, waiting as u64);
    assert_eq!(rig.driver.block_on(allocated), Ok(()));
    assert_eq!(rig.fallocate(file, allocate, page * PAGE), Err(Error::NoSpace));
    rig.sync(file);
    assert!(rig.read(file, 30 * PAGE, waiting) == vec![4; waiting]);
}

/// A write that comes to an end before all of it is there has changed the file: what it could do by its owner's rights it can no longer.
#[test]
fn what_is_written_in_part_loses_its_set_id_bits() {
    let rig = Rig::new(64);
    let file = rig.create(b"f");
    rig.write(file, 0, &[1; PAGE]).unwrap();
    let set = SetAttr { perm: Some(0o6777), handle: Some(file), ..SetAttr::default() };
    let Attr { ino, .. } = rig.driver.block_on(rig.volume.setattr(&Cred::root(), Ino::ROOT, set)).unwrap();
    let user = Cred::user(1000, 1000, &[]);
    let by_user = rig.driver.block_on(rig.volume.open(&user, ino, OpenFlags::WRITE)).unwrap();
    rig.fill();
    assert_eq!(rig.write(by_user, PAGE, &[2; PAGE]), Err(Error::NoSpace));
    assert_eq!(rig.attr(file).perm, 0o6777);
    assert_eq!(rig.write(by_user, 0, &[2; 2 * PAGE]), Ok(PAGE));
    assert_eq!(rig.attr(file).perm, 0o777);
}
