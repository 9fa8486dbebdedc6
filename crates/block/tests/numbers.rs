//! Numbers of inodes, and power failures.
//!
//! Verifies that no inode gets the number of one that was made and lost, whatever is done first after the volume was opened again, nor, after clean
//! stops, of one that was removed, and that an opening does not use more generations than it gives.

mod rig;

use block::Volume;
use fs::{Attr, Cred, FileSystem, Ino, OpenFlags};
use media::SimFlash;
use rig::{ByHand, Setup};
use sim::Driver;
use std::sync::Arc;

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

struct Life {
    media: Arc<SimFlash>,
    volume: Arc<Volume>,
    driver: ByHand,
}

impl Life {
    fn begin(setup: &Setup, media: Arc<SimFlash>) -> Life {
        let (volume, driver) = setup.start(media.clone()).unwrap();
        Life { media, volume, driver }
    }

    fn make(&self, name: &[u8]) -> Attr {
        let cred = Cred::root();
        let call = self.volume.create(&cred, Ino::ROOT, name, 0o600, RW);
        let (attr, handle) = self.driver.block_on(call).unwrap();
        self.driver.block_on(self.volume.release(handle)).unwrap();
        attr
    }

    fn remove(&self, name: &[u8]) {
        self.driver.block_on(self.volume.unlink(&Cred::root(), Ino::ROOT, name)).unwrap();
    }

    /// The process dies: what it had told the device stays, and nothing else.
    fn dies(self) -> Arc<SimFlash> {
        Arc::new(self.media.crash_image(|_, _| true))
    }
}

fn setup() -> Setup {
    Setup { checkpoints: false, ..Setup::new(false, 1) }
}

#[test]
fn a_lost_number_is_not_given_again() {
    for stops_between in [false, true] {
        for made_before in [0, 1, 50] {
            let setup = setup();
            let life = Life::begin(&setup, setup.make());
            for _ in 0..made_before {
                life.make(b"before");
                life.remove(b"before");
            }
            life.driver.block_on(life.volume.sync()).unwrap();
            let lost = life.make(b"lost");
            let mut media = life.dies();
            if stops_between {
                let life = Life::begin(&setup, media);
                life.driver.block_on(life.volume.close()).unwrap();
                media = life.dies();
            }
            let life = Life::begin(&setup, media);
            let other = life.make(b"other");
            assert_eq!(other.ino.on_medium(), lost.ino.on_medium(), "its slot is used again");
            assert!(other.generation != lost.generation && other.ino != lost.ino, "{lost:?} {other:?}");
            let cred = Cred::root();
            let open = life.volume.open_exact(&cred, (lost.ino, lost.generation), RW);
            assert!(life.driver.block_on(open).is_err(), "it leads to a file that was made later");
        }
    }
}

/// The slot of a file that is still there, as its removal was lost as well.
#[test]
fn nor_that_of_an_inode_in_the_slot_of_one_that_is_back() {
    let setup = setup();
    let life = Life::begin(&setup, setup.make());
    let first = life.make(b"first");
    life.driver.block_on(life.volume.sync()).unwrap();
    life.remove(b"first");
    let lost = life.make(b"lost");
    assert_eq!((lost.ino.on_medium(), lost.generation), (first.ino.on_medium(), first.generation + 1));
    let life = Life::begin(&setup, life.dies());
    life.remove(b"first");
    let other = life.make(b"other");
    assert_eq!(other.ino.on_medium(), lost.ino.on_medium());
    assert!(other.generation > lost.generation, "{lost:?} {other:?}");
}

/// What an index checkpoint says of a volume does not have the slots that are free.
#[test]
fn nor_that_of_one_that_was_removed_before_clean_stops() {
    let setup = setup();
    let (mut media, mut before) = (setup.make(), 0);
    for stop in 0..24 {
        let life = Life::begin(&setup, media);
        for _ in 0..3 {
            let made = life.make(b"f").generation;
            assert!(made > before, "{made} behind {before}, after {stop} stops");
            before = made;
            life.remove(b"f");
        }
        life.driver.block_on(life.volume.close()).unwrap();
        media = life.media;
    }
}

#[test]
fn one_opening_uses_up_few() {
    let setup = setup();
    let life = Life::begin(&setup, setup.make());
    let first = life.make(b"f");
    for n in 1..100 {
        life.remove(b"f");
        let next = life.make(b"f");
        assert_eq!((next.ino.on_medium(), next.generation), (first.ino.on_medium(), first.generation + n));
    }
}
