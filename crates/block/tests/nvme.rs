//! The engine on an NVMe controller: the driver in between is the real one, the controller is simulated. What was synced is there
//! after a clean stop, after power failures, and after the controller failed under load; fsck finds nothing.

use block::fsck::{self, FsckOptions};
use block::{MkfsOptions, OpenOptions, Volume};
use fs::{Cred, FileSystem, OpenFlags, block_on};
use media::nvme::fake::{Config, Failure, FakeController, Fault};
use media::nvme::{NvmeMedia, Options};
use media::{Media, SimFlash};
use sched::Separated;
use sched::queues::Mode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BYTES: u64 = 64 << 20;
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn configs() -> [Config; 3] {
    let usual = Config::new(BYTES);
    [
        Config { shadow_doorbells: true, sgl: false, ..usual.clone() },
        Config { lba: 4096, atomic_blocks: 1, write_zeroes: false, deallocate: false, ..usual },
        // Two entries in a queue, no cache, single sectors atomic.
        Config { atomic_blocks: 8, ..Config::least(BYTES) },
    ]
}

fn drive(controller: &Arc<FakeController>, options: Options) -> Arc<NvmeMedia> {
    Arc::new(NvmeMedia::start(controller.clone(), options).unwrap())
}

fn open(media: Arc<dyn Media>) -> Volume {
    let options = OpenOptions { cache_bytes: 8 << 20, dirty_bytes_max: 2 << 20, ..OpenOptions::default() };
    Volume::open(media, options).unwrap()
}

fn check(media: Arc<dyn Media>) {
    let report = fsck::check(media, &FsckOptions::default(), &mut |_| {}).unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
}

fn content(n: u64) -> Vec<u8> {
    let len = [10, 3000, 5000, 70_000, 300_000][n as usize % 5];
    (0..len as u32).map(|i| (i.wrapping_add(n as u32 * 77).wrapping_mul(2654435761) >> 16) as u8).collect()
}

/// Files `range`, then a sync. Ends with the first error.
fn write(volume: &Volume, range: std::ops::Range<u64>) -> fs::Result<()> {
    block_on(async {
        for n in range {
            let name = format!("file{n}");
            let (_, h) = volume.create(&Cred::root(), fs::Ino::ROOT, name.as_bytes(), 0o644, RW).await?;
            let data = content(n);
            assert_eq!(volume.write(h, 0, &data).await?, data.len());
            volume.release(h).await?;
        }
        volume.sync().await
    })
}

fn verify(volume: &Volume, files: u64) {
    block_on(async {
        for n in 0..files {
            let path = format!("file{n}");
            let attr = volume.walk(&Cred::root(), fs::Ino::ROOT, path.as_bytes()).await.unwrap();
            let h = volume.open(&Cred::root(), attr.ino, OpenFlags::READ).await.unwrap();
            let mut back = vec![0; content(n).len() + 1];
            let len = volume.read(h, 0, &mut back).await.unwrap();
            assert!(back[..len] == content(n)[..], "contents of {path}");
            volume.release(h).await.unwrap();
        }
    });
}

fn rules_were_kept(controller: &FakeController) {
    assert_eq!(controller.violations(), [""; 0]);
    assert_eq!(controller.mapped(), 0);
}

#[test]
fn a_volume_on_a_controller() {
    for config in configs() {
        let controller = FakeController::new(config.clone());
        let media = drive(&controller, Options::default());
        block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
        let volume = open(media.clone());
        write(&volume, 0..40).unwrap();
        // Power fails now: nothing of the cache is left, or all, or some.
        let mut x = 0u64;
        let mut coin = || {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            x >> 63 == 0
        };
        let images = [
            controller.crash_image(|_, _| false),
            controller.crash_image(|_, _| true),
            controller.crash_image(|_, _| coin()),
        ];
        write(&volume, 40..80).unwrap();
        block_on(volume.drop_caches()).unwrap();
        verify(&volume, 80);
        volume.close_blocking().unwrap();
        drop(volume);
        check(media.clone());
        drop(media);
        rules_were_kept(&controller);
        // Another driver finds what the first one left.
        let media =
            drive(&controller, Options { queues: 1, depth: 4, interrupts: false, ..Options::default() });
        let volume = open(media.clone());
        verify(&volume, 80);
        volume.close_blocking().unwrap();
        drop((volume, media));
        rules_were_kept(&controller);
        for image in &images {
            survives(image, &config, 40);
        }
    }
}

/// The image of a power failure, on a controller of this kind, has these files.
fn survives(image: &SimFlash, config: &Config, files: u64) {
    let controller = FakeController::with_contents(config.clone(), image);
    let media = drive(&controller, Options::default());
    check(media.clone());
    let volume = open(media.clone());
    verify(&volume, files);
    volume.close_blocking().unwrap();
    drop(volume);
    check(media);
}

/// The power fails at any moment, with requests in queues by class: a flush must cover what went through every one of them, and what is
/// under way in one says nothing of the others.
#[test]
fn power_fails_with_separated_queues() {
    for mode in [Mode::RoundRobin, Mode::Separated, Mode::Automatic] {
        let config = Config { queues: 8, ..Config::new(BYTES) };
        let controller = FakeController::new(config.clone());
        let driver =
            NvmeMedia::start(controller.clone(), Options { queues: 8, ..Options::default() }).unwrap();
        let media = Arc::new(Separated::new(driver, mode));
        block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
        let volume = open(media.clone());
        let synced = AtomicU64::new(0);
        let mut x = 1u64;
        let mut coin = || {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            x >> 63 == 0
        };
        let mut images = Vec::new();
        std::thread::scope(|s| {
            let writer = s.spawn(|| {
                for n in (0..200).step_by(4) {
                    write(&volume, n..n + 4).unwrap();
                    synced.store(n + 4, Ordering::Release);
                }
            });
            while !writer.is_finished() {
                let files = synced.load(Ordering::Acquire);
                let keep = images.len() % 3;
                let image = controller.crash_image(|_, _| match keep {
                    0 => false,
                    1 => true,
                    _ => coin(),
                });
                images.push((image, files));
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        volume.close_blocking().unwrap();
        drop((volume, media));
        rules_were_kept(&controller);
        assert!(images.len() >= 5, "{mode:?}: only {} power failures", images.len());
        let step = images.len().div_ceil(24);
        for (image, files) in images.iter().step_by(step) {
            survives(image, &config, *files);
        }
    }
}

/// Removed, or reset with an empty cache, in the middle of everything: the engine hears of it and says so, and what it had synced is
/// there.
#[test]
fn a_controller_that_fails_under_a_volume() {
    for (failure, after) in [(Failure::Remove, 300), (Failure::Hang, 200), (Failure::Fatal, 400)] {
        let config = Config { reset_loses_cache: true, ..Config::new(BYTES) };
        let controller = FakeController::new(config.clone());
        let times = Options {
            timeout: Duration::from_millis(300),
            admin_timeout: Duration::from_millis(500),
            ..Options::default()
        };
        let media = drive(&controller, times);
        block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
        let volume = open(media.clone());
        controller.inject(Fault { after, ..Fault::next(None, failure) });
        let (start, mut synced) = (Instant::now(), 0);
        let error = loop {
            assert!(start.elapsed() < Duration::from_secs(120), "{failure:?}: nobody notices");
            match write(&volume, synced..synced + 5) {
                Ok(()) => synced += 5,
                Err(e) => break e,
            }
        };
        assert!(matches!(error.errno(), libc::EIO | libc::ENODEV), "{failure:?}: {error}");
        // It stays so.
        assert!(write(&volume, 1000..1001).is_err());
        let image = controller.crash_image(|_, _| false);
        let _ = volume.close_blocking();
        drop((volume, media));
        rules_were_kept(&controller);
        survives(&image, &config, synced);
    }
}
