//! First steps of a volume: make, open, use, stop, open again, lose power, open again.

use block::{MkfsOptions, OpenOptions, Volume};
use fs::{Cred, FileSystem, OpenFlags, block_on};
use media::flash::{Config, SimFlash};
use media::ram::RamMedia;
use std::sync::Arc;

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2654435761).to_le_bytes()[2] ^ seed).collect()
}

fn write_tree(volume: &Volume, sizes: &[usize]) {
    let root = Cred::root();
    block_on(async {
        let dir = volume.mkdir(&root, fs::Ino::ROOT, b"dir", 0o755).await.unwrap();
        for (i, &size) in sizes.iter().enumerate() {
            let name = format!("file{i}");
            let (_, h) = volume.create(&root, dir.ino, name.as_bytes(), 0o644, RW).await.unwrap();
            let data = pattern(size, i as u8);
            assert_eq!(volume.write(h, 0, &data).await.unwrap(), size);
            volume.release(h).await.unwrap();
        }
    });
}

fn check_tree(volume: &Volume, sizes: &[usize]) {
    let root = Cred::root();
    block_on(async {
        for (i, &size) in sizes.iter().enumerate() {
            let path = format!("dir/file{i}");
            let attr = volume.walk(&root, fs::Ino::ROOT, path.as_bytes()).await.unwrap();
            assert_eq!(attr.size, size as u64);
            // Nothing of it is a hole, wherever it stands: programs that look for holes believe this.
            assert!(attr.blocks * 512 >= attr.size, "{} blocks for {size} bytes", attr.blocks);
            let h = volume.open(&root, attr.ino, OpenFlags::READ).await.unwrap();
            let mut data = vec![0; size + 10];
            let n = volume.read(h, 0, &mut data).await.unwrap();
            assert_eq!(n, size);
            assert!(data[..n] == pattern(size, i as u8)[..], "contents of {path}");
            volume.release(h).await.unwrap();
        }
    });
}

const SIZES: [usize; 8] = [0, 1, 3000, 3073, 4096, 70_000, 2 << 20, 9_000_001];

#[test]
fn survives_a_clean_stop() {
    let media = Arc::new(RamMedia::new(256 << 20).unwrap());
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    let options = OpenOptions { cache_bytes: 8 << 20, dirty_bytes_max: 2 << 20, ..OpenOptions::default() };
    let volume = Volume::open(media.clone(), options.clone()).unwrap();
    write_tree(&volume, &SIZES);
    check_tree(&volume, &SIZES);
    volume.close_blocking().unwrap();
    drop(volume);
    let volume = Volume::open(media, options).unwrap();
    check_tree(&volume, &SIZES);
    block_on(volume.drop_caches()).unwrap();
    check_tree(&volume, &SIZES);
    volume.close_blocking().unwrap();
}

#[test]
fn survives_power_loss_after_sync() {
    let flash = Arc::new(SimFlash::new(Config { wait_when_idle: true, ..Config::new(256 << 20) }).unwrap());
    block::mkfs(flash.clone(), &MkfsOptions::default()).unwrap();
    let volume =
        Volume::open(flash.clone(), OpenOptions { cache_bytes: 32 << 20, ..OpenOptions::default() }).unwrap();
    write_tree(&volume, &SIZES);
    block_on(volume.sync()).unwrap();
    let image = Arc::new(flash.crash_image(|_, _| false));
    volume.close_blocking().unwrap();
    let volume =
        Volume::open(image, OpenOptions { cache_bytes: 32 << 20, ..OpenOptions::default() }).unwrap();
    check_tree(&volume, &SIZES);
}

/// A directory that was removed while it was open is still that when the volume is opened again: nobody makes a name in it, and it
/// goes with its last handle. After a clean stop, and after a loss of power.
#[test]
fn a_removed_directory_stays_removed() {
    let root = Cred::root();
    let flash = Arc::new(SimFlash::new(Config { wait_when_idle: true, ..Config::new(64 << 20) }).unwrap());
    block::mkfs(flash.clone(), &MkfsOptions::default()).unwrap();
    let orphans_kept = std::time::Duration::from_secs(30);
    let options = OpenOptions { cache_bytes: 8 << 20, orphans_kept, ..OpenOptions::default() };
    let volume = Volume::open(flash.clone(), options.clone()).unwrap();
    let dir = block_on(async {
        let dir = volume.mkdir(&root, fs::Ino::ROOT, b"dir", 0o755).await.unwrap().ino;
        volume.opendir(&root, dir).await.unwrap();
        volume.rmdir(&root, fs::Ino::ROOT, b"dir").await.unwrap();
        volume.sync().await.unwrap();
        dir
    });
    let lost_power = Arc::new(flash.crash_image(|_, _| false));
    volume.close_blocking().unwrap();
    for media in [flash, lost_power] {
        let volume = Volume::open(media.clone(), options.clone()).unwrap();
        block_on(async {
            assert_eq!(volume.getattr(dir, None).await.unwrap().nlink, 0);
            let handle = volume.opendir(&root, dir).await.unwrap();
            let made = volume.create(&root, dir, b"x", 0o644, RW).await.map(drop);
            assert_eq!(made, Err(fs::Error::NotFound));
            let made = volume.mkdir(&root, dir, b"x", 0o755).await.map(drop);
            assert_eq!(made, Err(fs::Error::NotFound));
            volume.release(handle).await.unwrap();
            assert!(volume.getattr(dir, None).await.is_err(), "nobody has it any more");
        });
        volume.close_blocking().unwrap();
        drop(volume);
        let report = block::fsck::check(media, &Default::default(), &mut |_| {}).unwrap();
        assert!(report.is_clean() && report.counts.orphans == 0, "{report:?}");
    }
}

/// Much may be dirty while nobody syncs; while somebody does there is no more of it than a sync writes in a moment.
#[test]
fn less_is_dirty_while_programs_sync() {
    let media = Arc::new(RamMedia::new(1 << 30).unwrap());
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    let options = OpenOptions {
        cache_bytes: 512 << 20,
        dirty_bytes_max: 256 << 20,
        dirty_age_max: std::time::Duration::from_secs(3600),
        ..OpenOptions::default()
    };
    let volume = Volume::open(media, options).unwrap();
    let data = pattern(1 << 20, 7);
    // How many blocks of data were written by the time that so many files of 1 MiB have been.
    let write = |names: std::ops::Range<u32>| {
        for i in names {
            block_on(async {
                let name = format!("file{i}");
                let (_, h) =
                    volume.create(&Cred::root(), fs::Ino::ROOT, name.as_bytes(), 0o644, RW).await.unwrap();
                volume.write(h, 0, &data).await.unwrap();
                volume.release(h).await.unwrap();
            });
        }
        volume.counters().data_blocks
    };
    assert_eq!(write(0..110), 0, "nobody has synced");
    block_on(volume.sync()).unwrap();
    let synced = volume.counters().data_blocks;
    assert_eq!(write(110..160), synced, "there is little of it");
    assert!(write(160..220) > synced, "more than half of what may be dirty is written");
    volume.close_blocking().unwrap();
}

/// Files that were made one after the other have their blocks side by side, and their pages go to the device in few transfers.
#[test]
fn small_files_are_written_together() {
    let media = Arc::new(RamMedia::new(256 << 20).unwrap());
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    let options = OpenOptions {
        cache_bytes: 64 << 20,
        dirty_bytes_max: 32 << 20,
        dirty_age_max: std::time::Duration::from_secs(3600),
        ..OpenOptions::default()
    };
    let volume = Volume::open(media.clone(), options.clone()).unwrap();
    let sizes = [4096, 8192].repeat(1000);
    let before = (media.counters().writes, volume.counters().data_blocks);
    write_tree(&volume, &sizes);
    block_on(volume.checkpoint()).unwrap();
    assert_eq!(volume.counters().data_blocks - before.1, 3000);
    let writes = media.counters().writes - before.0;
    assert!(writes < 100, "{writes} writes of 2000 files");
    check_tree(&volume, &sizes);
    volume.close_blocking().unwrap();
    let volume = Volume::open(media, options).unwrap();
    check_tree(&volume, &sizes);
    volume.close_blocking().unwrap();
}
