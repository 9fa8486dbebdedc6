//! The contract of `Media`, checked on every medium with the same tests: round trips, every request completes exactly
//! once, refusals, zeroing, waking, time limits, several submitting threads with one that reaps.
//!
//! Does not check durability: tests/flash.rs does.

use media::blocking::Blocking;
use media::flash::{Config, Order};
use media::nvme::fake::{self, FakeController};
use media::nvme::{NvmeMedia, Options as NvmeOptions};
use media::uring::Options;
use media::{
    Arena, ArenaId, BufRef, Completion, Flags, Media, MediaError, Memory, Op, RamMedia, Request, SimFlash,
    UringMedia, Wait,
};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const SIZE: u64 = 64 << 20;

struct Device {
    media: Arc<dyn Media>,
    arena: Arc<Arena>,
    id: ArenaId,
    /// Keeps the directory of an image file.
    _home: Option<tempfile::TempDir>,
    /// Dropped after the medium.
    _rules: Option<Rules>,
}

/// The driver of a simulated controller has kept the rules to the end, and left nothing mapped.
struct Rules(Arc<FakeController>);

impl Drop for Rules {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.0.violations(), [""; 0]);
            assert_eq!(self.0.mapped(), 0);
        }
    }
}

impl Device {
    fn new(media: Arc<dyn Media>) -> Device {
        let arena = Arc::new(Arena::new(8 << 20).unwrap());
        let id = media.register(arena.clone()).unwrap();
        Device { media, arena, id, _home: None, _rules: None }
    }

    fn buf(&self, offset: u64, len: u32) -> BufRef {
        BufRef { arena: self.id, offset, len }
    }

    /// Completions of `n` requests, by token.
    fn finish(&self, n: usize) -> Vec<Completion> {
        self.media.kick();
        let mut done = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(60);
        while done.len() < n {
            self.media.reap(&mut done, Wait::For(Some(Duration::from_secs(1))));
            assert!(Instant::now() < deadline, "requests do not complete");
        }
        done.sort_by_key(|c| c.token);
        done
    }

    fn one(&self, request: Request) -> Result<(), MediaError> {
        self.media.submit(request);
        self.finish(1).pop().unwrap().result
    }

    fn refused(&self, request: Request) {
        match self.one(request) {
            Err(MediaError::Refused { .. }) => {}
            other => panic!("not refused: {other:?}"),
        }
    }
}

fn ram() -> Device {
    Device::new(Arc::new(RamMedia::new(SIZE).unwrap()))
}

fn flash() -> Device {
    let config = Config { wait_when_idle: true, ..Config::new(SIZE) };
    Device::new(Arc::new(SimFlash::new(config).unwrap()))
}

fn flash_shuffled() -> Device {
    let order = Order::Shuffled { batch: 3 };
    let config = Config { wait_when_idle: true, order, seed: 42, barrier: true, ..Config::new(SIZE) };
    Device::new(Arc::new(SimFlash::new(config).unwrap()))
}

fn image(home: tempfile::TempDir, options: Options) -> Device {
    let path = home.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    let media = UringMedia::open(&path, options).unwrap();
    Device { _home: Some(home), ..Device::new(Arc::new(media)) }
}

fn uring() -> Device {
    image(tempfile::tempdir().unwrap(), Options::default())
}

/// Page cache of the kernel in between, memory not pinned, a short queue.
fn uring_plain() -> Device {
    image(tempfile::tempdir().unwrap(), Options { direct: false, pin: false, depth: 5, ..Options::default() })
}

/// A file system that cannot set ranges to zero.
fn uring_tmpfs() -> Device {
    image(tempfile::tempdir_in("/dev/shm").unwrap(), Options::default())
}

fn controller(config: fake::Config, options: NvmeOptions) -> Device {
    let controller = FakeController::new(config);
    let media = NvmeMedia::start(controller.clone(), options).unwrap();
    Device { _rules: Some(Rules(controller)), ..Device::new(Arc::new(media)) }
}

fn nvme() -> Device {
    controller(fake::Config::new(SIZE), NvmeOptions { queues: 3, ..Default::default() })
}

/// Two entries in a queue, transfers of two pages, nothing optional.
fn nvme_least() -> Device {
    controller(fake::Config::least(SIZE), NvmeOptions::default())
}

/// Doorbells in memory, PRPs alone.
fn nvme_shadow() -> Device {
    let config = fake::Config { shadow_doorbells: true, sgl: false, mdts: 0, ..fake::Config::new(SIZE) };
    controller(config, NvmeOptions { queues: 2, depth: 16, ..Default::default() })
}

/// Without interrupts.
fn nvme_polled() -> Device {
    let config = fake::Config { interrupts: false, write_zeroes: false, ..fake::Config::new(SIZE) };
    controller(config, NvmeOptions { poll: Duration::ZERO, ..Default::default() })
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut r = Random(seed);
    (0..len).map(|_| r.below(256) as u8).collect()
}

fn round_trips(device: Device) {
    let data = pattern(1, 1 << 20);
    device.arena.copy_in(0, &data);
    // One sector, one page, a page at an odd sector, a large transfer, and buffers in disorder.
    for (offset, len) in [(0, 512), (4096, 4096), (512 * 3, 4096), (1 << 20, 1 << 20), (SIZE - 512, 512)] {
        device.one(Request::transfer(Op::Write, offset, device.buf(0, len), 1)).unwrap();
        device.one(Request::transfer(Op::Read, offset, device.buf(4 << 20, len), 2)).unwrap();
        let mut back = vec![0; len as usize];
        device.arena.copy_out(4 << 20, &mut back);
        assert!(back == data[..len as usize], "{len} bytes at {offset}");
    }
    let bufs = [device.buf(8192, 4096), device.buf(0, 512), device.buf(65536, 12288)];
    device.one(Request::vectored(Op::Write, 8 << 20, bufs[..].into(), 3)).unwrap();
    let whole = device.buf(4 << 20, 4096 + 512 + 12288);
    device.one(Request::transfer(Op::Read, 8 << 20, whole, 4)).unwrap();
    let mut back = vec![0; whole.len as usize];
    device.arena.copy_out(4 << 20, &mut back);
    assert!(back == [&data[8192..12288], &data[..512], &data[65536..77824]].concat());
    // Scatter what was gathered.
    let bufs = [device.buf(5 << 20, 512), device.buf(6 << 20, 4096 + 12288)];
    device.one(Request::vectored(Op::Read, 8 << 20, bufs[..].into(), 5)).unwrap();
    let mut again = vec![0; 512];
    device.arena.copy_out(5 << 20, &mut again);
    assert!(again == back[..512]);
    device
        .one(Request { flags: Flags::FUA, ..Request::transfer(Op::Write, 0, device.buf(0, 4096), 6) })
        .unwrap();
    device.one(Request::flush(7)).unwrap();
}

/// Many requests at once, more than any queue is deep, to places that do not overlap within a round.
fn model(device: Device) {
    const PAGES: u64 = 600;
    let mut random = Random(5);
    let mut model = vec![0u8; (PAGES * 4096) as usize];
    for round in 0..8u64 {
        let mut reads = Vec::new();
        for page in 0..PAGES {
            let (place, buf) = (page * 4096, device.buf(page * 4096, 4096));
            if random.below(2) == 0 {
                let data = pattern(round * PAGES + page, 4096);
                device.arena.copy_in(buf.offset, &data);
                model[place as usize..place as usize + 4096].copy_from_slice(&data);
                device.media.submit(Request::transfer(Op::Write, place, buf, page));
            } else {
                reads.push(page);
                device.media.submit(Request::transfer(Op::Read, place, buf, page));
            }
            if random.below(20) == 0 {
                device.media.kick();
            }
        }
        let done = device.finish(PAGES as usize);
        assert_eq!(done.len(), PAGES as usize);
        for (page, completion) in done.into_iter().enumerate() {
            assert_eq!(completion.token, page as u64, "each request completes once");
            completion.result.unwrap();
        }
        for page in reads {
            let mut back = vec![0; 4096];
            device.arena.copy_out(page * 4096, &mut back);
            assert!(back == model[page as usize * 4096..][..4096], "page {page} in round {round}");
        }
    }
}

fn refusals(device: Device) {
    let (d, g) = (&device, device.media.geometry().clone());
    d.refused(Request::transfer(Op::Read, 100, d.buf(0, 512), 1));
    d.refused(Request::transfer(Op::Write, 512, d.buf(0, 100), 1));
    d.refused(Request::transfer(Op::Write, 512, d.buf(8, 512), 1));
    d.refused(Request::transfer(Op::Read, g.bytes, d.buf(0, 512), 1));
    d.refused(Request::transfer(Op::Read, g.bytes - 512, d.buf(0, 1024), 1));
    d.refused(Request::transfer(Op::Read, u64::MAX - 511, d.buf(0, 512), 1));
    d.refused(Request::transfer(Op::Read, 0, d.buf(8 << 20, 512), 1));
    d.refused(Request::transfer(Op::Read, 0, d.buf(u64::MAX - 511, 512), 1));
    d.refused(Request::transfer(Op::Read, 0, BufRef { arena: ArenaId(9), ..d.buf(0, 512) }, 1));
    d.refused(Request::vectored(Op::Write, 0, Default::default(), 1));
    d.refused(Request::transfer(Op::Read, 0, d.buf(0, g.max_transfer + 512), 1));
    d.refused(Request::range(Op::Discard, 0, g.bytes + 512, 1));
    d.refused(Request::range(Op::WriteZeroes, 1, 512, 1));
    d.refused(Request { len: 1024, ..Request::transfer(Op::Write, 0, d.buf(0, 512), 1) });
    d.refused(Request { flags: Flags::FUA, ..Request::transfer(Op::Read, 0, d.buf(0, 512), 1) });
    if !g.barrier {
        d.refused(Request { flags: Flags::BARRIER, ..Request::transfer(Op::Write, 0, d.buf(0, 512), 1) });
    }
    // Still in order after all that.
    d.one(Request::transfer(Op::Write, 0, d.buf(0, 512), 1)).unwrap();
}

fn ranges(device: Device) {
    let data = vec![7; 1 << 20];
    device.arena.copy_in(0, &data);
    device.one(Request::transfer(Op::Write, 0, device.buf(0, 1 << 20), 1)).unwrap();
    let (from, to) = (4096 - 512, (512 << 10) + 512);
    device.one(Request::range(Op::WriteZeroes, from, to - from, 2)).unwrap();
    device.one(Request::transfer(Op::Read, 0, device.buf(1 << 20, 1 << 20), 3)).unwrap();
    let mut back = vec![1; 1 << 20];
    device.arena.copy_out(1 << 20, &mut back);
    let expected: Vec<u8> = (0..1 << 20).map(|i: u64| if (from..to).contains(&i) { 0 } else { 7 }).collect();
    assert!(back == expected);
    device.one(Request::range(Op::Discard, 0, 1 << 20, 4)).unwrap();
    device.one(Request::range(Op::Discard, 0, SIZE, 4)).unwrap();
    device.one(Request::range(Op::WriteZeroes, 512, 0, 4)).unwrap();
    device.one(Request::transfer(Op::Write, 8192, device.buf(0, 4096), 5)).unwrap();
    device.one(Request::transfer(Op::Read, 8192, device.buf(1 << 20, 4096), 6)).unwrap();
    device.arena.copy_out(1 << 20, &mut back[..4096]);
    assert!(back[..4096] == data[..4096]);
    // Larger than any transfer.
    device.one(Request::range(Op::WriteZeroes, 0, SIZE, 7)).unwrap();
    device.one(Request::transfer(Op::Read, SIZE - 4096, device.buf(1 << 20, 4096), 8)).unwrap();
    device.arena.copy_out(1 << 20, &mut back[..4096]);
    assert!(back[..4096].iter().all(|b| *b == 0));
}

fn waking(device: Device) {
    let mut done = Vec::new();
    let start = Instant::now();
    device.media.reap(&mut done, Wait::No);
    device.media.reap(&mut done, Wait::For(Some(Duration::from_millis(30))));
    assert!(start.elapsed() >= Duration::from_millis(29) && done.is_empty());
    // Before the wait.
    device.media.wake();
    device.media.reap(&mut done, Wait::For(None));
    // During the wait, many times over.
    let (media, stop) = (device.media.clone(), Arc::new(AtomicBool::new(false)));
    let returned = Arc::new(AtomicU64::new(0));
    let waiter = std::thread::spawn({
        let (stop, returned) = (stop.clone(), returned.clone());
        move || {
            while !stop.load(SeqCst) {
                media.reap(&mut Vec::new(), Wait::For(None));
                returned.fetch_add(1, SeqCst);
            }
        }
    });
    let deadline = Instant::now() + Duration::from_secs(30);
    for n in 0..200 {
        if n % 10 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        let before = returned.load(SeqCst);
        device.media.wake();
        while returned.load(SeqCst) == before {
            assert!(Instant::now() < deadline, "wake does not end the wait");
            std::thread::yield_now();
        }
    }
    stop.store(true, SeqCst);
    device.media.wake();
    waiter.join().unwrap();
}

/// Four threads submit and end; a fifth reaps all of it.
fn threads(device: Device) {
    const EACH: u64 = 500;
    let device = Arc::new(device);
    let submitters: Vec<_> = (0..4u64)
        .map(|t| {
            let device = device.clone();
            std::thread::spawn(move || {
                for n in 0..EACH {
                    let token = t * EACH + n;
                    let place = token * 4096;
                    let op = if n % 3 == 0 { Op::Write } else { Op::Read };
                    match n % 50 {
                        0 => device.media.submit(Request::flush(token)),
                        _ => {
                            device.media.submit(Request::transfer(op, place, device.buf(place, 4096), token))
                        }
                    }
                    device.media.kick();
                }
            })
        })
        .collect();
    let reaper = std::thread::spawn({
        let device = device.clone();
        move || device.finish(4 * EACH as usize)
    });
    submitters.into_iter().for_each(|s| s.join().unwrap());
    let done = reaper.join().unwrap();
    assert_eq!(done.iter().map(|c| c.token).collect::<HashSet<_>>().len(), 4 * EACH as usize);
    done.into_iter().for_each(|c| c.result.unwrap());
}

fn blocking(device: Device) {
    let plain = Blocking::new(device.media.clone()).unwrap();
    let data = pattern(3, 9 << 20);
    plain.write(4096, &data).unwrap();
    plain.flush().unwrap();
    let mut back = vec![0; data.len()];
    plain.read(4096, &mut back).unwrap();
    assert!(back == data);
    assert!(plain.read(SIZE, &mut back[..512]).is_err());
}

/// Requests in flight, or not even kicked, when the medium is dropped. Their memory must outlive them.
#[derive(Debug)]
struct Theirs(Arena);

// SAFETY: the arena is mapped as long as this lives.
unsafe impl Memory for Theirs {
    fn range(&self) -> (*mut u8, usize) {
        (self.0.ptr(0, self.0.len()), self.0.len())
    }
}

/// Memory that comes and goes: it can be used meanwhile, and is forgotten then.
fn memory_of_others(device: Device) {
    let len = device.media.geometry().max_transfer.min(24 << 10);
    for round in 0..3 {
        let theirs = Arc::new(Theirs(Arena::new(64 << 10).unwrap()));
        let id = device.media.register(Arc::new(Arena::of(theirs.clone()).unwrap())).unwrap();
        assert_ne!(id, device.id);
        let bytes = pattern(round, len as usize);
        theirs.0.copy_in(8192, &bytes);
        let buf = BufRef { arena: id, offset: 8192, len };
        device.one(Request::transfer(Op::Write, round << 20, buf, 1)).unwrap();
        theirs.0.zero(0, 64 << 10);
        device.one(Request::transfer(Op::Read, round << 20, device.buf(0, len), 2)).unwrap();
        device.one(Request::transfer(Op::Read, round << 20, buf, 3)).unwrap();
        let (mut one, mut other) = (vec![0; len as usize], vec![0; len as usize]);
        device.arena.copy_out(0, &mut one);
        theirs.0.copy_out(8192, &mut other);
        assert!(one == bytes && other == bytes);
        device.media.unregister(id);
        assert_eq!(Arc::strong_count(&theirs), 1, "nothing keeps it");
        device.refused(Request::transfer(Op::Read, 0, buf, 4));
    }
    // Of many that came and went the numbers are used again.
    let theirs = Arc::new(Theirs(Arena::new(4096).unwrap()));
    let one = || device.media.register(Arc::new(Arena::of(theirs.clone()).unwrap())).unwrap();
    let (first, second) = (one(), one());
    device.media.unregister(first);
    assert_eq!(one(), first);
    device.media.unregister(second);
}

fn dropped_in_flight(device: Device) {
    for n in 0..1000u64 {
        let op = if n % 2 == 0 { Op::Read } else { Op::Write };
        device.media.submit(Request::transfer(op, n * 8192, device.buf(n * 8192, 8192), n));
        if n == 700 {
            device.media.kick();
        }
    }
}

macro_rules! conform {
    ($($medium:ident),*) => { $(mod $medium {
        #[test] fn round_trips() { super::round_trips(super::$medium()) }
        #[test] fn model() { super::model(super::$medium()) }
        #[test] fn refusals() { super::refusals(super::$medium()) }
        #[test] fn ranges() { super::ranges(super::$medium()) }
        #[test] fn waking() { super::waking(super::$medium()) }
        #[test] fn threads() { super::threads(super::$medium()) }
        #[test] fn blocking() { super::blocking(super::$medium()) }
        #[test] fn memory_of_others() { super::memory_of_others(super::$medium()) }
        #[test] fn dropped_in_flight() { super::dropped_in_flight(super::$medium()) }
    })* };
}

conform!(
    ram,
    flash,
    flash_shuffled,
    uring,
    uring_plain,
    uring_tmpfs,
    nvme,
    nvme_least,
    nvme_shadow,
    nvme_polled
);
