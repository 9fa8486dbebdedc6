//! Space that is allocated and given back: all of it, and in a time that does not grow with it.

use super::*;
use fs::client::{BlockingFile, OpenOptions as Open};
use fs::{Blocking, Client, Cred, Fallocate};
use media::ram::RamMedia;
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const KEEP: Fallocate = Fallocate::Allocate { keep_size: true };

fn volume(bytes: u64) -> (Volume, Blocking<Volume>) {
    let media = Arc::new(RamMedia::new(bytes).unwrap());
    crate::mkfs(media.clone(), &Default::default()).unwrap();
    let volume = Volume::open(media, OpenOptions::default()).unwrap();
    let client = Client::new(Arc::new(volume.clone()), Cred::root()).blocking();
    (volume, client)
}

fn blocks(file: &BlockingFile<Volume>) -> u64 {
    file.fsync().unwrap();
    file.metadata().unwrap().blocks
}

/// Space behind the end goes when the size is set to what it is, and with the content of a file that has none.
#[test]
fn space_behind_the_end_goes_with_a_truncation_that_changes_no_byte() {
    let (volume, client) = volume(64 * MIB);
    let open = |name: &str| client.open(name, Open::new().read(true).write(true).create(true)).unwrap();
    for size in [1, PAGE - 1, PAGE, 5000, 40 * PAGE] {
        let file = open(&format!("/f{size}"));
        file.write_all_at(&vec![7; size as usize], 0).unwrap();
        file.fallocate(KEEP, 0, size).unwrap();
        let before = blocks(&file);
        file.fallocate(KEEP, 0, MIB).unwrap();
        assert!(blocks(&file) > before);
        let changed = file.metadata().unwrap();
        file.set_len(size).unwrap();
        assert_eq!(blocks(&file), before, "{size}");
        let after = file.metadata().unwrap();
        assert!(after.size == size && after.ctime >= changed.ctime);
        let mut bytes = vec![0; size as usize + 1];
        assert_eq!(file.read_at(&mut bytes, 0), Ok(size as usize));
        assert!(bytes[..size as usize].iter().all(|&b| b == 7));
        // Growing gives nothing back.
        file.fallocate(KEEP, 0, MIB).unwrap();
        let all = blocks(&file);
        file.set_len(size + PAGE).unwrap();
        assert_eq!(blocks(&file), all, "{size}");
    }
    let empty = open("/empty");
    empty.fallocate(KEEP, 0, MIB).unwrap();
    assert!(blocks(&empty) > 0);
    drop(client.open("/empty", Open::new().write(true).truncate(true)).unwrap());
    assert_eq!(blocks(&empty), 0);
    empty.fallocate(KEEP, MIB, MIB).unwrap();
    empty.set_len(0).unwrap();
    assert_eq!(blocks(&empty), 0);
    drop(empty);
    volume.close_blocking().unwrap();
}

/// Free space in pieces is no space for inodes, which come in whole segments: as many are said to be free as can be made.
#[test]
fn as_many_inodes_can_be_made_as_are_free() {
    let (volume, client) = volume(64 * MIB);
    let file = client.open("/f", Open::new().read(true).write(true).create(true)).unwrap();
    let mut more = 8192;
    let mut pages = 0;
    while more > 0 {
        match file.fallocate(Fallocate::Allocate { keep_size: false }, pages * PAGE, more * PAGE) {
            Ok(()) => pages += more,
            Err(Error::NoSpace) => more /= 2,
            Err(e) => panic!("{e}"),
        }
    }
    // Half of all segments but for a few, which are free as a whole.
    let whole = pages - 4 * 512;
    (0..whole)
        .step_by(16)
        .for_each(|page| file.fallocate(Fallocate::PunchHole, page * PAGE, 8 * PAGE).unwrap());
    file.fallocate(Fallocate::PunchHole, whole * PAGE, 4 * 512 * PAGE).unwrap();
    // The second one has it on the medium that the first is there.
    for _ in 0..2 {
        file.fsync().unwrap();
        fs::block_on(volume.checkpoint()).unwrap();
    }
    let before = client.statfs().unwrap();
    let mut made = 0;
    loop {
        match client.open(format!("/{made}"), Open::new().write(true).create_new(true)) {
            Ok(_) => made += 1,
            Err(Error::NoSpace) => break,
            Err(e) => panic!("{e}"),
        }
    }
    let after = client.statfs().unwrap();
    assert!(made > 1000 && after.blocks_available > 2000, "{made} {after:?}");
    assert_eq!((before.inodes_free, after.inodes_free), (made, 0));
    drop(file);
    volume.close_blocking().unwrap();
}

/// A terabyte is given back at once, by each of the ways, also while the log holds content of blocks and pages of the file are in the cache.
#[test]
fn much_space_is_given_back_in_no_time() {
    const MUCH: u64 = 1000 << 30;
    let (volume, client) = volume(1 << 40);
    let open = |name: &str| client.open(name, Open::new().read(true).write(true).create(true)).unwrap();
    let (small, file) = (open("/small"), open("/large"));
    let quick = |what: &str, f: &dyn Fn()| {
        // What is freed is there again before the next takes as much.
        fs::block_on(volume.checkpoint()).unwrap();
        for byte in 0..2 {
            small.write_all_at(&[byte; PAGE as usize], 0).unwrap();
            small.fsync().unwrap();
        }
        assert!(!volume.inner.shared.lock().logged.is_empty());
        let began = Instant::now();
        f();
        let took = began.elapsed();
        assert!(took < Duration::from_secs(5), "{what} took {took:?}");
    };
    let allocate = || {
        file.fallocate(Fallocate::Allocate { keep_size: false }, 0, MUCH).unwrap();
        for page in [0, 1, 1 << 20, (MUCH / PAGE) - 1] {
            file.write_all_at(&[1; PAGE as usize], page * PAGE).unwrap();
        }
    };
    let left = || {
        let core = volume.inner.shared.lock();
        (0..core.cache.len() as u32).filter(|&f| core.cache.is_dirty(fs::cache::FrameNo(f))).count()
    };
    quick("allocating", &allocate);
    quick("punching", &|| file.fallocate(Fallocate::PunchHole, PAGE, MUCH).unwrap());
    let mut bytes = [0; 2 * PAGE as usize];
    assert_eq!(file.read_at(&mut bytes, 0), Ok(bytes.len()));
    assert!(bytes[..PAGE as usize].iter().all(|&b| b == 1) && bytes[PAGE as usize..].iter().all(|&b| b == 0));
    quick("allocating again", &allocate);
    quick("truncating", &|| file.set_len(0).unwrap());
    assert_eq!(left(), 0);
    assert_eq!(blocks(&file), 0);
    drop((file, small));
    volume.close_blocking().unwrap();
}
