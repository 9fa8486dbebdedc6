//! First steps of a volume: make, open, use, stop, open again, lose power, open again; make another one in its place.

use block::{MkfsOptions, OpenOptions, Volume};
use format::superblock::{SUPERBLOCKS, Superblock};
use fs::{Cred, FileSystem, OpenFlags, block_on};
use media::flash::{Config, SimFlash};
use media::ram::RamMedia;
use rand::{Rng, SeedableRng, rngs::SmallRng};
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

/// A volume is made over another one, and power fails at each moment of that: there is the old one as it was, none, or the new one.
#[test]
fn power_fails_while_a_volume_is_made() {
    let options = OpenOptions { cache_bytes: 16 << 20, ..OpenOptions::default() };
    for stopped in [true, false] {
        let config = Config { wait_when_idle: true, ..Config::new(64 << 20) };
        let flash = Arc::new(SimFlash::new(config).unwrap());
        let made = |byte| MkfsOptions { uuid: Some([byte; 16]), force: true, ..MkfsOptions::default() };
        block::mkfs(flash.clone(), &made(1)).unwrap();
        let volume = Volume::open(flash.clone(), options.clone()).unwrap();
        write_tree(&volume, &SIZES);
        block_on(volume.sync()).unwrap();
        let old = if stopped {
            volume.close_blocking().unwrap();
            flash
        } else {
            // Its log is not empty.
            Arc::new(flash.crash_image(|_, _| true))
        };
        old.set_trace(true);
        block::mkfs(old.clone(), &made(2)).unwrap();
        let trace = old.take_trace().unwrap();
        let mut rng = SmallRng::seed_from_u64(3);
        let (mut cursor, mut seen) = (trace.cursor(), [0; 3]);
        loop {
            for (number, share) in [1.0, 0.0, 0.5, 0.5, 0.1, 0.9].into_iter().enumerate() {
                let image = Arc::new(cursor.state().crash_image(|_, _| rng.random_bool(share)));
                let superblock = SUPERBLOCKS.iter().find_map(|at| {
                    let mut block = vec![0; format::limits::BLOCK_SIZE];
                    image.peek(at.byte(), &mut block);
                    Superblock::parse(&block).ok()
                });
                let which = superblock.map_or(0, |sb| sb.uuid[0] as usize);
                seen[which] += 1;
                let what = format!("stopped: {stopped}, event {}, {number}: {which}", cursor.index());
                let volume = match Volume::open(image, options.clone()) {
                    Ok(volume) => volume,
                    Err(e) => {
                        assert_eq!(which, 0, "{what}: {e}");
                        continue;
                    }
                };
                match which {
                    1 => check_tree(&volume, &SIZES),
                    _ => assert!(volume.names(fs::Ino::ROOT, 1).unwrap().is_empty(), "{what}"),
                }
                volume.close_blocking().unwrap();
            }
            if cursor.step().is_none() {
                break;
            }
        }
        assert!(seen.iter().all(|&n| n > 0), "{seen:?}");
        let end = Arc::new(cursor.state().crash_image(|_, _| false));
        assert!(Volume::open(end, options.clone()).is_ok(), "what was made is durable");
    }
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

/// A file that was made without a name may get one, also when the volume is opened again: by its log, and by its checkpoint. One that lost its name, or was made such that it never
/// gets one, may not; nor may one lose that for good by having had one.
#[test]
fn a_file_without_a_name_gets_one_later() {
    let (root, top) = (Cred::root(), fs::Ino::ROOT);
    let flash = Arc::new(SimFlash::new(Config { wait_when_idle: true, ..Config::new(64 << 20) }).unwrap());
    block::mkfs(flash.clone(), &MkfsOptions::default()).unwrap();
    let orphans_kept = std::time::Duration::from_secs(30);
    let options = OpenOptions { cache_bytes: 8 << 20, orphans_kept, ..OpenOptions::default() };
    let volume = Volume::open(flash.clone(), options.clone()).unwrap();
    let files = block_on(async {
        let nameless = async |flags| volume.tmpfile(&root, top, 0o644, RW | flags).await.unwrap();
        let (made, handle) = nameless(fs::OpenFlags::empty()).await;
        volume.write(handle, 0, b"later").await.unwrap();
        let (never, _) = nameless(fs::OpenFlags::EXCLUSIVE).await;
        let (once, _) = nameless(fs::OpenFlags::empty()).await;
        volume.link(&root, once.ino, top, b"once").await.unwrap();
        volume.unlink(&root, top, b"once").await.unwrap();
        let (lost, _) = volume.create(&root, top, b"lost", 0o644, RW).await.unwrap();
        volume.unlink(&root, top, b"lost").await.unwrap();
        volume.sync().await.unwrap();
        [made, never, once, lost].map(|attr| attr.ino)
    });
    let lost_power = Arc::new(flash.crash_image(|_, _| false));
    volume.close_blocking().unwrap();
    for media in [flash, lost_power] {
        let volume = Volume::open(media.clone(), options.clone()).unwrap();
        block_on(async {
            for never in &files[1..] {
                let linked = volume.link(&root, *never, top, b"never").await.map(drop);
                assert_eq!(linked, Err(fs::Error::NotFound), "{files:?}: {never}");
            }
            volume.link(&root, files[0], top, b"later").await.unwrap();
            let handle = volume.open(&root, files[0], RW).await.unwrap();
            let mut bytes = [0; 9];
            assert_eq!(volume.read(handle, 0, &mut bytes).await, Ok(5));
        });
        volume.close_blocking().unwrap();
        drop(volume);
        let report = block::fsck::check(media, &Default::default(), &mut |_| {}).unwrap();
        assert!(report.is_clean(), "{report:?}");
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
