//! Overwrites that nobody orders stay where they are, epoch after epoch: a file that is overwritten all the time does not go into pieces.

use block::{MkfsOptions, OpenOptions, Volume};
use fs::{Cred, FileSystem, Ino, OpenFlags, block_on};
use media::SimFlash;
use media::flash::Config;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAGES: usize = 256;

#[test]
fn overwritten_pages_stay_where_they_are() {
    // A device with a cache: epochs are durable when it was flushed.
    let config = Config { wait_when_idle: true, volatile_cache: true, ..Config::new(64 << 20) };
    let media = Arc::new(SimFlash::new(config).unwrap());
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    let options = OpenOptions {
        cache_bytes: 8 << 20,
        dirty_age_max: Duration::from_millis(20),
        ..OpenOptions::default()
    };
    let volume = Volume::open(media, options).unwrap();
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let (_, file) = block_on(volume.create(&Cred::root(), Ino::ROOT, b"f", 0o644, flags)).unwrap();
    let overwrite = |byte: u8| {
        for page in 0..PAGES {
            block_on(volume.write(file, (page * 4096) as u64, &[byte; 4096])).unwrap();
        }
        // Until all of it is durable because of its age, and a moment longer.
        let (changes, begun) = (volume.epochs().0, Instant::now());
        while volume.epochs().1 < changes {
            assert!(begun.elapsed() < Duration::from_secs(20), "nothing becomes durable");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(50));
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
    assert_eq!(block_on(volume.read(file, 0, &mut bytes)).unwrap(), bytes.len());
    assert!(bytes.iter().all(|&b| b == 7));
    volume.close_blocking().unwrap();
}
