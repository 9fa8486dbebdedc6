//! A device that is to be looked after is, while nothing happens and nobody drives; one that needs nobody is left alone.

mod polled;

use block::{MkfsOptions, OpenOptions, Volume};
use fs::{Cred, FileSystem, Handle, Ino, OpenFlags, block_on};
use media::Media;
use media::nvme::fake::{Config, FakeController};
use media::nvme::{NvmeMedia, Options};
use polled::Polled;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

fn open(media: Arc<dyn Media>) -> Volume {
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    Volume::open(media, OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() }).unwrap()
}

fn make(volume: &Volume) -> Handle {
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    volume.block_on(volume.create(&Cred::root(), Ino::ROOT, b"f", 0o644, flags)).unwrap().1
}

/// Callers that wait for themselves, so many that the worker leaves it to the next of them.
fn call(volume: &Volume, handle: Handle) {
    for i in 0..100 {
        volume.block_on(volume.write(handle, i * 4096, &[i as u8; 4096])).unwrap();
        volume.block_on(volume.fsync(handle, false)).unwrap();
    }
}

/// Callers that others wait for, as those of a manager, beside a thread that looks all the time, and then sleeps without saying that it leaves.
fn call_attended(volume: &Volume, handle: Handle) {
    let over = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                volume.attend(true);
                thread::yield_now();
            }
        });
        for i in 0..100 {
            block_on(volume.write(handle, i * 4096, &[i as u8; 4096])).unwrap();
            block_on(volume.fsync(handle, false)).unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
}

type Work = fn(&Volume, Handle);

#[test]
fn an_idle_device_is_looked_after_if_it_needs_that() {
    let works: [Work; 2] = [call, call_attended];
    for (work, care) in works.into_iter().flat_map(|w| [(w, None), (w, Some(Duration::from_millis(20)))]) {
        let media = Arc::new(Polled::new(care));
        let volume = open(media.clone());
        let handle = make(&volume);
        work(&volume, handle);
        // What was left to do in the background is done after a while.
        let begun = Instant::now();
        let limit = Duration::from_secs(if care.is_some() { 2 } else { 30 });
        let unseen = loop {
            let before = media.reaps();
            thread::sleep(Duration::from_millis(400));
            let is_seen = media.reaps() != before || care.is_some() && media.is_attended();
            if !is_seen || begun.elapsed() > limit {
                break !is_seen;
            }
        };
        assert_eq!(unseen, care.is_none(), "{care:?}");
        // It does its work as before.
        call(&volume, handle);
        volume.close_blocking().unwrap();
    }
}

#[test]
fn an_idle_controller_is_heard() {
    let works: [Work; 2] = [call, call_attended];
    for work in works {
        let controller = FakeController::new(Config::new(64 << 20));
        let media = Arc::new(NvmeMedia::start(controller.clone(), Options::default()).unwrap());
        let volume = open(media.clone());
        let handle = make(&volume);
        work(&volume, handle);
        // Nothing is left to do.
        thread::sleep(Duration::from_millis(300));
        let begun = Instant::now();
        for heard in 1..=2 {
            while !controller.report(0x0002_0001) {
                assert!(begun.elapsed() < Duration::from_secs(30), "no event is asked for");
                thread::sleep(Duration::from_millis(10));
            }
            while media.health().events < heard {
                assert!(begun.elapsed() < Duration::from_secs(30), "it is not heard");
                thread::sleep(Duration::from_millis(10));
            }
        }
        volume.close_blocking().unwrap();
        drop((volume, media));
        assert_eq!(controller.violations(), [""; 0]);
    }
}
