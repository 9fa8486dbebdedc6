//! A thread that looks for work all the time takes completions in, and nobody is left waiting when it does so no longer.

mod polled;

use block::{MkfsOptions, OpenOptions, Volume};
use fs::{Cred, Devices, FileSystem, Handle, Ino, OpenFlags, block_on};
use media::Media;
use media::nvme::fake::{Config, FakeController};
use media::nvme::{NvmeMedia, Options};
use polled::Polled;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

fn volume() -> (Arc<Volume>, Arc<Polled>) {
    let media = Arc::new(Polled::new(None));
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    let volume = Volume::open(media.clone(), OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() });
    (Arc::new(volume.unwrap()), media)
}

fn make(volume: &Volume, name: &str) -> Handle {
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    block_on(volume.create(&Cred::root(), Ino::ROOT, name.as_bytes(), 0o644, flags)).unwrap().1
}

/// Writes and syncs, by an executor of which the volume knows nothing, so many times.
fn work(volume: &Volume, handle: Handle, times: u64) {
    for i in 0..times {
        block_on(volume.write(handle, i * 4096, &[i as u8; 4096])).unwrap();
        block_on(volume.fsync(handle, false)).unwrap();
    }
}

#[test]
fn who_looks_takes_completions_in() {
    let (volume, media) = volume();
    let handle = make(&volume, "f");
    let (over, dones) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|s| {
        let attendant = s.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if volume.attend(true) == Devices::Done {
                    dones.fetch_add(1, Ordering::Relaxed);
                }
                thread::yield_now();
            }
            volume.attend(false);
            assert_eq!(volume.attend(false), Devices::Idle);
        });
        let taken = || media.taken_by(attendant.thread().id());
        // Nearly all of them on a quiet machine; on a busy one the worker helps whenever the attendant does not get a processor in time.
        let (begun, is_seen) = (Instant::now(), || taken() > 0 && dones.load(Ordering::Relaxed) > 0);
        while !is_seen() && begun.elapsed() < Duration::from_secs(30) {
            work(&volume, handle, 300);
        }
        over.store(true, Ordering::Relaxed);
        assert!(is_seen(), "{:?}", media.taken());
    });
    // It has left: the worker does it again.
    work(&volume, handle, 20);
    volume.close_blocking().unwrap();
}

#[test]
fn nobody_waits_for_one_who_does_not_come_back() {
    let (volume, _) = volume();
    let handle = make(&volume, "f");
    // Once in a while it looks, and never says that it leaves; the volume is closed under it.
    let over = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                volume.attend(true);
                thread::sleep(Duration::from_millis(30));
            }
        });
        work(&volume, handle, 100);
        volume.close_blocking().unwrap();
        over.store(true, Ordering::Relaxed);
    });
}

/// It went while nothing happened, without a word: what is read then, and whatever comes later, is not left to it.
#[test]
fn nobody_waits_for_one_who_went_while_nothing_happened() {
    for (idle, lends) in [(1, false), (20, false), (400, false), (1, true)] {
        let media = Arc::new(Polled::new(None));
        block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
        // No change is due meanwhile.
        let dirty_age_max = Duration::from_secs(3600);
        let options =
            OpenOptions { cache_bytes: 8 << 20, noatime: true, dirty_age_max, ..OpenOptions::default() };
        let volume = Arc::new(Volume::open(media, options).unwrap());
        let handle = make(&volume, "f");
        work(&volume, handle, 20);
        if lends {
            // The worker leaves the role to callers, and sleeps.
            for _ in 0..20 {
                volume.block_on(volume.write(handle, 0, &[0; 4096])).unwrap();
                volume.block_on(volume.fsync(handle, false)).unwrap();
            }
        }
        block_on(volume.drop_caches()).unwrap();
        for page in 0..3 {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(if lends { 1 } else { 50 }) {
                volume.attend(true);
            }
            thread::sleep(Duration::from_millis(idle));
            let (ended, end) = std::sync::mpsc::channel();
            let volume = volume.clone();
            thread::spawn(move || {
                let mut bytes = [0; 4096];
                assert_eq!(block_on(volume.read(handle, page * 4096, &mut bytes)), Ok(4096));
                ended.send(bytes == [page as u8; 4096]).unwrap();
            });
            assert_eq!(end.recv_timeout(Duration::from_secs(2)), Ok(true), "page {page}, {idle} ms");
        }
        volume.close_blocking().unwrap();
    }
}

/// A file of so many pages that are not in the cache, in a volume in which nothing else is due.
fn cold(pages: u64) -> (Arc<Volume>, Arc<Polled>, Handle) {
    let media = Arc::new(Polled::new(None));
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    let dirty_age_max = Duration::from_secs(3600);
    let options =
        OpenOptions { cache_bytes: 8 << 20, noatime: true, dirty_age_max, ..OpenOptions::default() };
    let volume = Arc::new(Volume::open(media.clone(), options).unwrap());
    let handle = make(&volume, "f");
    work(&volume, handle, pages);
    block_on(volume.drop_caches()).unwrap();
    (volume, media, handle)
}

/// One thread runs many calls at a time and looks for completions meanwhile; then it has left.
#[test]
fn many_calls_of_a_thread_that_polls() {
    const PAGES: u64 = 64;
    let (volume, media, handle) = cold(PAGES);
    let (begun, here) = (Instant::now(), thread::current().id());
    let mut seen = false;
    while !seen && begun.elapsed() < Duration::from_secs(30) {
        block_on(volume.drop_caches()).unwrap();
        let before = (media.taken_by(here), media.kicks());
        let calls = (0..16).map(async |n| {
            let mut bytes = [0; 4096];
            for page in (n..PAGES).step_by(16) {
                assert_eq!(volume.read(handle, page * 4096, &mut bytes).await?, 4096);
                assert_eq!(bytes, [page as u8; 4096]);
            }
            fs::Result::Ok(())
        });
        fs::join_polled(&*volume, calls.collect()).unwrap();
        // What the calls of a round have begun goes to the device together. On a busy machine the worker may be in between.
        seen = media.taken_by(here) - before.0 >= 16 && media.kicks() - before.1 <= 8;
    }
    assert!(seen, "{:?}, told {} times", media.taken(), media.kicks());
    let before = media.taken_by(here);
    work(&volume, handle, 20);
    assert_eq!(media.taken_by(here), before, "it still takes completions in");
    volume.close_blocking().unwrap();
}

type Read<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Pages of which none is brought by reading the one before.
const PAGES: [u64; 4] = [0, 2, 4, 6];

/// Begins to read these pages, which are not in the cache.
fn begin<'a>(volume: &'a Volume, handle: Handle, pages: &[u64]) -> Vec<Read<'a>> {
    let read = |&page: &u64| -> Read<'a> {
        Box::pin(async move {
            let mut bytes = [0; 4096];
            assert_eq!(volume.read(handle, page * 4096, &mut bytes).await, Ok(4096));
            assert_eq!(bytes, [page as u8; 4096]);
        })
    };
    let mut reads: Vec<Read<'_>> = pages.iter().map(read).collect();
    assert!(!reads.iter_mut().any(is_over), "they are in the cache");
    reads
}

fn is_over(read: &mut Read<'_>) -> bool {
    read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Polls them until they are through, and does this between.
fn finish(reads: Vec<Read<'_>>, mut between: impl FnMut()) {
    let begun = Instant::now();
    for mut read in reads {
        while !is_over(&mut read) {
            assert!(begun.elapsed() < Duration::from_secs(10), "a read does not end");
            between();
        }
    }
}

/// Begins to read the pages as a thread that takes completions in: nobody is told of that. While somebody else takes them in all goes to the device at once, as nobody would look
/// after what stays with the thread; so it is tried until the thread has the role, and keeps it meanwhile.
fn gathered<'a>(volume: &'a Volume, media: &Polled, handle: Handle) -> Vec<Read<'a>> {
    let begun = Instant::now();
    loop {
        volume.attend(true);
        // With the next completion whoever waits for it leaves the role to the thread that attends.
        finish(begin(volume, handle, &[8]), || _ = volume.attend(true));
        volume.attend(true);
        let before = media.kicks();
        let reads = begin(volume, handle, &PAGES);
        if media.kicks() == before && media.queued() >= reads.len() {
            return reads;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{} are queued", media.queued());
        finish(reads, || _ = volume.attend(true));
        block_on(volume.drop_caches()).unwrap();
    }
}

#[test]
fn what_it_begins_between_two_looks_goes_to_the_device_together() {
    let (volume, media, handle) = cold(10);
    let (reads, before) = (gathered(&volume, &media, handle), media.kicks());
    volume.attend(true);
    assert_eq!((media.kicks() - before, media.queued()), (1, 0));
    finish(reads, || _ = volume.attend(true));

    // It leaves: what it has begun is handed over, and what it begins later at once.
    block_on(volume.drop_caches()).unwrap();
    let mut reads = gathered(&volume, &media, handle);
    volume.attend(false);
    assert_eq!(media.queued(), 0);
    finish(reads, thread::yield_now);
    block_on(volume.drop_caches()).unwrap();
    reads = begin(&volume, handle, &PAGES);
    assert_eq!(media.queued(), 0);
    finish(reads, thread::yield_now);
    volume.close_blocking().unwrap();
}

/// The device works on the first of many while the thread begins the others.
#[test]
fn of_many_the_device_is_told_before_the_next_look() {
    let (volume, media, handle) = cold(64);
    let (mut reads, before) = (gathered(&volume, &media, handle), media.kicks());
    let more: Vec<u64> = (10..58).step_by(2).collect();
    reads.extend(begin(&volume, handle, &more));
    assert!(media.kicks() > before && media.queued() < 16, "{} are queued", media.queued());
    finish(reads, || _ = volume.attend(true));
    volume.close_blocking().unwrap();
}

#[test]
fn what_others_begin_meanwhile_goes_to_the_device_at_once() {
    let (volume, media, handle) = cold(32);
    let reads = gathered(&volume, &media, handle);
    thread::scope(|s| {
        s.spawn(|| {
            let mut bytes = [0; 4096];
            let mut read = std::pin::pin!(volume.read(handle, 30 * 4096, &mut bytes));
            assert!(read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert_eq!(media.queued(), 0);
        });
    });
    finish(reads, thread::yield_now);
    volume.close_blocking().unwrap();
}

#[test]
fn what_it_has_begun_is_not_left_behind_when_it_does_not_come_back() {
    let (volume, media, handle) = cold(10);
    for idle in [0, 1, 20, 300] {
        finish(gathered(&volume, &media, handle), thread::yield_now);
        block_on(volume.drop_caches()).unwrap();
        thread::sleep(Duration::from_millis(idle));
    }
    volume.close_blocking().unwrap();
}

#[test]
fn nothing_stays_with_it_while_the_worker_takes_completions_in() {
    for _ in 0..4 {
        let (volume, _, handle) = cold(10);
        // The worker is with the device until that has something.
        volume.attend(true);
        finish(begin(&volume, handle, &PAGES), thread::yield_now);
        volume.close_blocking().unwrap();
    }
}

/// A call in the way that this volume knows, on the thread that attends: nobody else would hand over what it queues.
#[test]
fn it_may_wait_itself() {
    let (volume, media, handle) = cold(64);
    let mut bytes = [0; 4096];
    let mut shortest = Duration::MAX;
    for page in 16..24 {
        block_on(volume.drop_caches()).unwrap();
        drop(gathered(&volume, &media, handle));
        let begun = Instant::now();
        let reads = volume.block_on(volume.read(handle, page * 2 * 4096, &mut bytes));
        assert_eq!((reads, bytes), (Ok(4096), [2 * page as u8; 4096]));
        assert_eq!(media.queued(), 0);
        shortest = shortest.min(begun.elapsed());
    }
    // Before the worker would have come to its help.
    assert!(shortest < Duration::from_millis(4), "{shortest:?}");
    volume.attend(true);
    volume.block_on(volume.write(handle, 0, &[7; 4096])).unwrap();
    volume.block_on(volume.fsync(handle, false)).unwrap();
    volume.close_blocking().unwrap();
}

#[test]
fn callers_that_block_are_served_beside_it() {
    let (volume, _) = volume();
    let handles: Vec<Handle> = (0..4).map(|i| make(&volume, &format!("f{i}"))).collect();
    let over = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            // It comes and goes.
            for turn in 0u64.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                volume.attend(turn % 1000 < 900);
                thread::yield_now();
            }
            volume.attend(false);
        });
        let callers: Vec<_> = handles
            .iter()
            .map(|&handle| {
                let volume = &volume;
                s.spawn(move || {
                    for i in 0..200u64 {
                        volume.block_on(volume.write(handle, i * 4096, &[7; 4096])).unwrap();
                        volume.block_on(volume.fsync(handle, true)).unwrap();
                    }
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        over.store(true, Ordering::Relaxed);
    });
    volume.close_blocking().unwrap();
}

/// A thread that sleeps until devices have something, as a manager's does, takes completions in: nobody else is woken for that.
#[test]
fn who_sleeps_until_then_is_woken() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(128 << 20).unwrap();
    is_woken(Arc::new(media::UringMedia::open(&path, media::uring::Options::default()).unwrap()));
}

/// The same where an interrupt announces completions, once.
#[test]
fn who_sleeps_until_then_is_woken_by_an_interrupt() {
    let controller = FakeController::new(Config::new(128 << 20));
    is_woken(Arc::new(NvmeMedia::start(controller, Options::default()).unwrap()));
}

fn is_woken(media: Arc<dyn Media>) {
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    let options = OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() };
    let volume = Arc::new(Volume::open(media, options).unwrap());
    let handle = make(&volume, "f");
    let over = AtomicBool::new(false);
    let [woken, waited, dones] = [const { AtomicU64::new(0) }; 3];
    thread::scope(|s| {
        s.spawn(|| {
            let second = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
            while !over.load(Ordering::Relaxed) {
                let readiness = volume.readiness().expect("the device has a descriptor");
                match volume.attend(true) {
                    Devices::Done => drop(dones.fetch_add(1, Ordering::Relaxed)),
                    Devices::Busy => {
                        let mut fds = [rustix::event::PollFd::new(&readiness, rustix::event::PollFlags::IN)];
                        let ready = rustix::event::poll(&mut fds, Some(&second)).unwrap();
                        if ready > 0 { &woken } else { &waited }.fetch_add(1, Ordering::Relaxed);
                    }
                    Devices::Idle => thread::yield_now(),
                }
            }
            volume.attend(false);
        });
        let begun = Instant::now();
        // A simulated device may be through before anybody looks.
        while woken.load(Ordering::Relaxed) < 20 && begun.elapsed() < Duration::from_secs(20) {
            work(&volume, handle, 100);
        }
        over.store(true, Ordering::Relaxed);
    });
    let [woken, waited, dones] = [woken, waited, dones].map(AtomicU64::into_inner);
    let told = format!("{woken} times woken, {waited} times not, {dones} times something had completed");
    println!("{told}");
    // What completes while it sleeps wakes it, unless the worker had to take it in; a device that works on something for a second is a rare one.
    assert!(woken >= 20 && waited <= 1 + woken / 10 && dones > 0, "{told}");
    volume.close_blocking().unwrap();
}

/// The caller takes the role between two looks, or in the middle of one: what a look takes in then is what the caller waits for.
#[test]
fn a_caller_that_drives_is_not_left_with_what_it_takes_in() {
    let (ended, end) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let controller = FakeController::new(Config::new(64 << 20));
        let media = Arc::new(NvmeMedia::start(controller, Options::default()).unwrap());
        block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
        let volume =
            Volume::open(media, OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() }).unwrap();
        let handle = make(&volume, "f");
        for round in 0..20 {
            let over = AtomicBool::new(false);
            thread::scope(|s| {
                s.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        volume.attend(true);
                    }
                    volume.attend(false);
                });
                for i in 0..100u64 {
                    volume.block_on(async {
                        volume.write(handle, i * 4096, &[round as u8; 4096]).await.unwrap();
                        volume.fsync(handle, false).await.unwrap();
                    });
                }
                over.store(true, Ordering::Relaxed);
            });
        }
        volume.close_blocking().unwrap();
        ended.send(()).unwrap();
    });
    end.recv_timeout(Duration::from_secs(60)).expect("it waits for ever");
}
