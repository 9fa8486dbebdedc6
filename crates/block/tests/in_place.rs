//! Overwrites that nobody orders stay where they are, epoch after epoch: a file that is overwritten all the time does not go into pieces.

mod rig;

use fs::{Cred, FileSystem, Ino, OpenFlags};
use rig::Setup;
use sim::Driver;
use sim::driver::FIRST_TICK;

const PAGES: usize = 256;

#[test]
fn overwritten_pages_stay_where_they_are() {
    // A device with a cache: epochs are durable when it was flushed.
    let setup = Setup {
        volatile_cache: true,
        cache_bytes: 8 << 20,
        dirty_bytes_max: 4 << 20,
        ..Setup::new(false, 2)
    };
    let (volume, driver) = setup.start(setup.make()).unwrap();
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let (_, file) = driver.block_on(volume.create(&Cred::root(), Ino::ROOT, b"f", 0o644, flags)).unwrap();
    let overwrite = |byte: u8| {
        for page in 0..PAGES {
            driver.block_on(volume.write(file, (page * 4096) as u64, &[byte; 4096])).unwrap();
        }
        // Until all of it is durable because of its age, and nothing goes on any more.
        let changes = volume.epochs().0;
        for second in 0..30 {
            driver.clock.set(FIRST_TICK + 1000 * byte as i64 + second);
            driver.settle();
        }
        assert!(volume.epochs().1 >= changes, "nothing becomes durable");
    };
    overwrite(1);
    overwrite(2);
    let before = volume.counters();
    (3..8).for_each(overwrite);
    let after = volume.counters();
    let moved = after.data_blocks - before.data_blocks;
    assert!(moved <= PAGES as u64 / 4, "{moved} of {} pages went to new places", 5 * PAGES);
    assert!(after.overwritten_blocks - before.overwritten_blocks >= 4 * PAGES as u64);
    let mut bytes = vec![0; PAGES * 4096];
    assert_eq!(driver.block_on(volume.read(file, 0, &mut bytes)).unwrap(), bytes.len());
    assert!(bytes.iter().all(|&b| b == 7));
    driver.block_on(volume.close()).unwrap();
}
