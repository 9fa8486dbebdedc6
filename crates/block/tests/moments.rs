//! Moments that random operations hardly meet: a transfer that comes late, a log that fills up at once, a close in the middle of the end.

mod hand;

use block::{MkfsOptions, OpenOptions, Synchronous, Volume};
use fs::leases::{Call, Caller, Lender, Settling};
use fs::{Cred, Error, FileSystem, Handle, Ino, OpenFlags, Watched};
use hand::{ByHand, TestClock};
use media::ram::RamMedia;
use sim::{Driver, HandClock};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const REGULAR: u32 = libc::S_IFREG | 0o644;

struct Rig {
    media: Arc<RamMedia>,
    volume: Volume,
    driver: ByHand,
}

impl Rig {
    fn new(mib: u64) -> Rig {
        let media = Arc::new(RamMedia::new(mib * MIB).unwrap());
        let log_bytes = Some(8 * MIB);
        block::mkfs(media.clone(), &MkfsOptions { log_bytes, ..MkfsOptions::default() }).unwrap();
        Rig::open(media)
    }

    fn open(media: Arc<RamMedia>) -> Rig {
        Rig::open_as(media, Synchronous::Nothing)
    }

    fn open_as(media: Arc<RamMedia>, synchronous: Synchronous) -> Rig {
        let clock = HandClock::default();
        clock.set(sim::driver::FIRST_TICK);
        let engine_clock = Arc::new(TestClock(clock.clone()));
        let options =
            OpenOptions { cache_bytes: 4 << 20, clock: engine_clock, synchronous, ..OpenOptions::default() };
        let (volume, worker) = Volume::open_manual(media.clone(), options).unwrap();
        Rig { media, volume, driver: ByHand::new(worker, clock) }
    }

    fn make(&self, name: &str) -> Ino {
        let root = Cred::root();
        let made = self.volume.mknod(&root, Ino::ROOT, name.as_bytes(), REGULAR, 0);
        self.driver.block_on(made).unwrap().ino
    }

    fn open_file(&self, ino: Ino) -> Handle {
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        self.driver.block_on(self.volume.open(&Cred::root(), ino, flags)).unwrap()
    }

    fn read(&self, file: Handle) -> Vec<u8> {
        let mut bytes = vec![7; 100];
        let n = self.driver.block_on(self.volume.read(file, 0, &mut bytes)).unwrap();
        bytes.truncate(n);
        bytes
    }

    fn step(&self) {
        self.driver.worker.borrow_mut().step();
    }

    fn sync(&self) {
        self.driver.block_on(self.volume.sync()).unwrap();
    }
}

fn poll<T>(future: &mut Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// What a symlink leads to is being read when it is removed, and a file gets its slot. What arrives then is not the file's.
#[test]
fn what_is_read_of_a_removed_inode_is_not_the_next_ones() {
    let (rig, root) = (Rig::new(64), Cred::root());
    let made = rig.volume.symlink(&root, Ino::ROOT, b"link", b"where it led to");
    let link = rig.driver.block_on(made).unwrap();
    rig.driver.block_on(rig.volume.close()).unwrap();
    let rig = Rig::open(rig.media.clone());
    let volume = &rig.volume;
    let mut target = pin!(volume.readlink(&root, link.ino));
    assert!(poll(&mut target).is_pending(), "it has to be read");
    rig.driver.block_on(volume.unlink(&root, Ino::ROOT, b"link")).unwrap();
    let ino = rig.make("file");
    assert_eq!(ino.on_medium(), link.ino.on_medium(), "it has the slot");
    let file = rig.open_file(ino);
    assert_eq!(rig.driver.block_on(volume.write(file, 0, b"new")), Ok(3));
    (0..20).for_each(|_| rig.step());
    let _ = poll(&mut target);
    assert_eq!(rig.read(file), b"new");
    rig.sync();
    rig.driver.block_on(volume.release(file)).unwrap();
    rig.driver.block_on(volume.drop_caches()).unwrap();
    assert_eq!(rig.read(rig.open_file(ino)), b"new");
    assert!(rig.driver.block_on(volume.readlink(&root, link.ino)).is_err(), "that one is gone");
}

/// More is changed than the log has room for, with nobody but those who wait to bring it home: they do not wait for ever. A checkpoint that began when the log
/// was nearly empty gives no room for what came since.
#[test]
fn a_log_that_fills_up_at_once_is_emptied() {
    for begins in [false, true] {
        let rig = Rig::new(512);
        (0..3).for_each(|i| _ = rig.make(&format!("first{i}")));
        let mut checkpoint = pin!(rig.volume.checkpoint());
        if begins {
            let _ = poll(&mut checkpoint);
        }
        (0..60_000).for_each(|i| _ = rig.make(&format!("{i:0100}")));
        rig.sync();
        rig.driver.block_on(rig.volume.close()).unwrap();
        let again = Rig::open(rig.media.clone());
        let mut names = 0;
        let dir = again.driver.block_on(again.volume.opendir(&Cred::root(), Ino::ROOT)).unwrap();
        let mut count = |_: fs::DirEntry<'_>| {
            names += 1;
            true
        };
        again.driver.block_on(again.volume.readdir(dir, 0, &mut count)).unwrap();
        assert_eq!(names, 2 + 3 + 60_000);
    }
}

/// A file without a name is closed while the volume is being stopped, at every step of that: it goes with the next mount, and the volume is sound.
#[test]
fn closed_while_the_volume_is_stopped() {
    for steps in 0..40 {
        let rig = Rig::new(64);
        let (volume, root) = (&rig.volume, Cred::root());
        let free = |rig: &Rig| rig.driver.block_on(rig.volume.statfs()).unwrap().blocks_free;
        (0..100).for_each(|i| _ = rig.make(&format!("file{i}")));
        rig.sync();
        let before = free(&rig);
        let made = volume.tmpfile(&root, Ino::ROOT, 0o600, OpenFlags::WRITE);
        let file = rig.driver.block_on(made).unwrap().1;
        let all = rig.driver.block_on(volume.write(file, 0, &[5; 300_000]));
        assert_eq!(all, Ok(300_000));
        rig.sync();
        let mut close = pin!(volume.close());
        let is_over = (0..steps).any(|_| {
            rig.step();
            poll(&mut close).is_ready()
        });
        let mut release = pin!(volume.release(file));
        let _ = poll(&mut release);
        if !is_over {
            rig.driver.block_on(close).unwrap();
        }
        let report =
            block::fsck::check(rig.media.clone(), &block::fsck::FsckOptions { repair: false }, &mut |_| {})
                .unwrap();
        assert_eq!(report.damage().count(), 0, "{steps}: {:#?}", report.problems);
        let again = Rig::open(rig.media.clone());
        (0..20).for_each(|_| again.step());
        again.sync();
        assert!(free(&again) + 2 >= before, "{steps}: {} of {before}", free(&again));
        again.driver.block_on(again.volume.close()).unwrap();
    }
}

/// A read has found one of its pages and waits for the other when both are changed at once; so has a write. What is found is before that or after it, and nothing is changed in part.
#[test]
fn what_waits_in_its_middle_is_done_at_once() {
    const PAGE: usize = 4096;
    const AT: u64 = 20 * PAGE as u64;
    let rig = Rig::new(64);
    let volume = &rig.volume;
    let file = rig.open_file(rig.make("file"));
    let write = |at: u64, byte: u8, len: usize| {
        assert_eq!(rig.driver.block_on(volume.write(file, at, &vec![byte; len])), Ok(len));
    };
    for lent in [false, true] {
        write(0, 1, 64 * PAGE);
        rig.sync();
        rig.driver.block_on(volume.drop_caches()).unwrap();
        write(AT, 2, PAGE);
        let mut read = pin!(async {
            let mut bytes = vec![0; 2 * PAGE];
            match lent {
                true => bytes = volume.read_pages(file, AT, 2 * PAGE).await.unwrap().to_vec(),
                false => assert_eq!(volume.read(file, AT, &mut bytes).await, Ok(2 * PAGE)),
            }
            bytes
        });
        assert!(poll(&mut read).is_pending(), "the second page has to be read");
        let both = vec![3; 2 * PAGE];
        let mut change = pin!(volume.write(file, AT, &both));
        assert!(poll(&mut change).is_pending(), "it is being read");
        let mut first = vec![0; PAGE];
        let found =
            pin!(volume.read(file, AT, &mut first)).as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(found, Poll::Ready(Ok(PAGE)));
        assert!(first == [2; PAGE], "half of a write");
        assert_eq!(rig.driver.block_on(change), Ok(2 * PAGE));
        let bytes = rig.driver.block_on(read);
        assert!(bytes == both, "half of a read: {} {}", bytes[0], bytes[PAGE]);
    }
}

/// Has leases in a table, and makes calls of the engine while it has the table locked.
#[derive(Default)]
struct Table(Mutex<()>);

impl Lender for Table {
    fn lends(&self, _: Ino, _: Caller) -> bool {
        drop(self.0.lock().unwrap());
        false
    }

    fn may_lend(&self, _: Ino, _: Caller) -> bool {
        self.0.try_lock().is_err()
    }

    fn settle(&self, _: Option<(Ino, Call)>, _: Caller) -> Settling<'_> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A directory is listed, which asks for each entry whether there is a lease on it, while who keeps the leases waits for the engine.
#[test]
fn a_listing_waits_for_no_lender_within_the_engine() {
    let media = Arc::new(RamMedia::new(64 * MIB).unwrap());
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    let volume = Arc::new(Volume::open(media, OpenOptions::default()).unwrap());
    let doors = Watched::new(volume.clone());
    let table = Arc::<Table>::default();
    doors.lend(table.clone());
    doors.lease_begins();
    let root = Cred::root();
    (0..100).for_each(|i| {
        fs::block_on(volume.mknod(&root, Ino::ROOT, format!("file{i}").as_bytes(), REGULAR, 0)).unwrap();
    });
    let dir = fs::block_on(doors.opendir(&root, Ino::ROOT)).unwrap();
    let (over, is_over) = channel();
    let (locked, is_locked) = channel();
    std::thread::spawn(move || {
        let (mut names, mut locks) = (0, Some((locked, table, volume)));
        let mut sink = |_: fs::DirEntry<'_>| {
            names += 1;
            // From here on somebody has the table, and wants something of the engine.
            if let Some((locked, table, volume)) = locks.take() {
                let (begun, has_begun) = channel();
                locked
                    .send(std::thread::spawn(move || {
                        let _table = table.0.lock().unwrap();
                        begun.send(()).unwrap();
                        volume.set_room_aside(1).map(|pages| volume.give_room_back(pages))
                    }))
                    .unwrap();
                has_begun.recv().unwrap();
            }
            true
        };
        fs::block_on(doors.readdir(dir, 0, &mut sink)).unwrap();
        over.send(names).unwrap();
    });
    assert_eq!(is_over.recv_timeout(Duration::from_secs(60)), Ok(102), "two wait for each other");
    is_locked.recv().unwrap().join().unwrap().unwrap();
}

/// Who makes or opens a file and gives up while that is made durable leaves no handle: the file goes with its name.
#[test]
fn a_file_that_nobody_was_told_of_is_not_open() {
    let (rig, root) = (Rig::new(64), Cred::root());
    rig.driver.block_on(rig.volume.close()).unwrap();
    let rig = Rig::open_as(rig.media.clone(), Synchronous::Everything);
    let volume = &rig.volume;
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    {
        let mut made = pin!(volume.create(&root, Ino::ROOT, b"file", 0o600, flags));
        assert!(poll(&mut made).is_pending(), "it is being made durable");
    }
    rig.sync();
    let ino = rig.driver.block_on(volume.lookup(&root, Ino::ROOT, b"file")).unwrap().ino;
    {
        let mut opened = pin!(volume.open(&root, ino, flags | OpenFlags::TRUNCATE));
        assert!(poll(&mut opened).is_pending(), "it is being made durable");
    }
    rig.sync();
    rig.driver.block_on(volume.unlink(&root, Ino::ROOT, b"file")).unwrap();
    assert_eq!(rig.driver.block_on(volume.getattr(ino, None)).map(drop), Err(Error::Stale));
}
