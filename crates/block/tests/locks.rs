//! File locks belong to an inode, not to its slot: who makes a file has it alone, whoever had the slot before.

use block::{MkfsOptions, OpenOptions, Volume};
use fs::client::OpenOptions as Open;
use fs::{Client, Cred, Error, FileSystem, Handle, Ino, LockKind, OpenFlags, block_on};
use media::ram::RamMedia;
use media::uring::{Options, UringMedia};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[test]
fn a_new_file_is_locked_by_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
    let media = Arc::new(UringMedia::open(&path, Options::default()).unwrap());
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    let volume = Volume::open(media, OpenOptions::default()).unwrap();
    std::thread::scope(|s| {
        for thread in 0..4 {
            let client = Client::new(Arc::new(volume.clone()), Cred::root());
            s.spawn(move || {
                let name = format!("/f{thread}");
                let how = Open::new().read(true).write(true).create_new(true);
                for round in 0..10_000 {
                    let file = block_on(client.open(&name, how)).unwrap();
                    assert_eq!(block_on(file.try_lock()), Ok(()), "round {round}");
                    block_on(client.unlink(&name)).unwrap();
                    block_on(file.close()).unwrap();
                }
            });
        }
    });
    volume.close_blocking().unwrap();
}

/// A handle is closed on one thread while another one takes a lock through it: no lock is left on what nobody has open.
#[test]
fn a_lock_goes_with_its_handle() {
    let media = Arc::new(RamMedia::new(64 << 20).unwrap());
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    let volume = Volume::open(media, OpenOptions::default()).unwrap();
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let (file, first) = block_on(volume.create(&Cred::root(), Ino::ROOT, b"f", 0o600, flags)).unwrap();
    const ROUNDS: u64 = 50_000;
    // What is to be closed.
    let given = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        // Who takes a lock has to wait for this, and who closes a handle has not while there are no locks.
        s.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                volume.locks();
            }
        });
        s.spawn(|| {
            for round in 0..ROUNDS {
                while given.load(Ordering::Acquire) == 0 {
                    std::thread::yield_now();
                }
                // A little later each time.
                (0..round % 50).for_each(|_| std::hint::spin_loop());
                block_on(volume.release(Handle(given.load(Ordering::Acquire)))).unwrap();
                given.store(0, Ordering::Release);
            }
        });
        for _ in 0..ROUNDS {
            let handle = block_on(volume.open(&Cred::root(), file.ino, flags)).unwrap();
            given.store(handle.0, Ordering::Release);
            let locked = block_on(volume.flock(handle, Some(LockKind::Shared), false));
            assert!(matches!(locked, Ok(()) | Err(Error::BadHandle)), "{locked:?}");
            while given.load(Ordering::Acquire) != 0 {
                std::thread::yield_now();
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(volume.locks(), []);
    block_on(volume.release(first)).unwrap();
    volume.close_blocking().unwrap();
}
