//! Writes of bytes that somebody changes meanwhile, as a client can with memory that it shares with the manager.
//!
//! Verifies that what is read, what is summed and what goes to the medium are one copy: after a power failure that keeps everything that
//! was written, of which nothing was flushed, the epochs are accepted and the file is as it was read before.

mod rig;

use fs::{Cred, FileSystem, Ino, OpenFlags, Source};
use rig::Setup;
use sim::Driver;
use sim::crash::Rig;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Other bytes whenever they are copied.
struct Restless(usize, AtomicU8);

impl Source for Restless {
    fn len(&self) -> usize {
        self.0
    }

    fn copy(&self, at: usize, to: &mut [u8]) {
        assert!(at + to.len() <= self.0);
        to.fill(self.1.fetch_add(1, Relaxed));
    }

    fn bytes(&self) -> Option<&[u8]> {
        None
    }
}

#[test]
fn one_copy_is_read_summed_and_written() {
    let cred = Cred::root();
    for (strict, model) in [(false, 0), (true, 0), (false, 1), (true, 3)] {
        let setup = Setup::on(model, strict);
        let media = setup.make();
        let (volume, driver) = setup.start(media.clone()).unwrap();
        let source = |len| Restless(len, AtomicU8::new(len as u8));
        // Within the inode, parts of pages, overwrites, and more than one step of a long write.
        let sizes = [(0, 100), (50, 5000), (4096, 8192), (5000, 100), (0, 300_000), (100_000, 70_000)];
        let (_, file) = driver.block_on(volume.create(&cred, Ino::ROOT, b"file", 0o600, RW)).unwrap();
        for (n, (at, len)) in sizes.into_iter().enumerate() {
            assert_eq!(driver.block_on(volume.write_from(file, at, &source(len))), Ok(len));
            driver.before_op(60 * n);
            if n % 2 == 0 {
                driver.block_on(volume.barrier(file, false)).unwrap();
            }
        }
        driver.block_on(volume.barrier(file, false)).unwrap();
        driver.before_op(1000);
        driver.settle();
        let mut before = vec![0; 300_001];
        assert_eq!(driver.block_on(volume.read(file, 0, &mut before)), Ok(300_000));
        let image = media.crash_image(|_, _| true);
        setup.audit(&image).unwrap();
        let (volume, driver) = setup.start(Arc::new(image)).unwrap();
        let ino = driver.block_on(volume.lookup(&cred, Ino::ROOT, b"file")).unwrap().ino;
        let file = driver.block_on(volume.open(&cred, ino, RW)).unwrap();
        let mut after = vec![0; 300_001];
        assert_eq!(driver.block_on(volume.read(file, 0, &mut after)), Ok(300_000));
        assert!(before == after, "strict {strict}, model {model}");
    }
}
