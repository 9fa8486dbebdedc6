//! Separation of queues over the NVMe driver, whose controller is simulated: it carries out commands in any order. Each request comes back once and with
//! its own token, what is read is what was written, and what a flush covers survives power failures, through whichever queue it went.

use media::nvme::fake::{Config, Failure, FakeController, Fault};
use media::nvme::{NvmeMedia, Options};
use media::{Arena, ArenaId, BufRef, Completion, Flags, Media, MediaError, Op, Request, Wait};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sched::Separated;
use sched::queues::{Class, Direction, Mode};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: u64 = 8 << 20;
const MODES: [Mode; 3] = [Mode::RoundRobin, Mode::Separated, Mode::Automatic];

struct Rig {
    media: Separated<NvmeMedia>,
    controller: Arc<FakeController>,
    arena: Arc<Arena>,
    id: ArenaId,
}

impl Rig {
    fn new(config: Config, mode: Mode) -> Rig {
        let controller = FakeController::new(config);
        let options = Options { queues: 8, depth: 32, ..Options::default() };
        let media = Separated::new(NvmeMedia::start(controller.clone(), options).unwrap(), mode);
        let arena = Arc::new(Arena::new(SIZE as usize).unwrap());
        let id = media.register(arena.clone()).unwrap();
        Rig { media, controller, arena, id }
    }

    fn buf(&self, offset: u64, len: u64) -> BufRef {
        BufRef { arena: self.id, offset, len: len as u32 }
    }

    fn finish(&self, n: usize) -> Vec<Completion> {
        self.media.kick();
        let (mut done, start) = (Vec::new(), Instant::now());
        while done.len() < n {
            self.media.reap(&mut done, Wait::For(Some(Duration::from_secs(1))));
            assert!(start.elapsed() < Duration::from_secs(60), "requests do not end");
        }
        assert_eq!(done.len(), n);
        done.sort_by_key(|c| c.token);
        done
    }

    fn one(&self, request: Request) -> Result<(), MediaError> {
        self.media.submit(request);
        self.finish(1).pop().unwrap().result
    }

    fn end(self) {
        drop(self.media);
        assert_eq!(self.controller.violations(), [""; 0]);
        assert_eq!(self.controller.mapped(), 0);
    }
}

#[test]
fn it_is_what_the_medium_below_is() {
    for mode in MODES {
        let rig = Rig::new(Config { queues: 8, ..Config::new(SIZE) }, mode);
        assert_eq!(rig.media.geometry(), rig.media.below().geometry());
        assert_eq!((rig.media.below().queues(), rig.media.separation().queued().len()), (8, 8));
        // Fewer than classes, too.
        rig.end();
        let rig = Rig::new(Config::least(SIZE), mode);
        assert_eq!(rig.media.separation().queued(), [0]);
        rig.one(Request::transfer(Op::Write, 0, rig.buf(0, 4096), 1)).unwrap();
        rig.end();
    }
}

/// Tokens are the caller's: any number, several times at once.
#[test]
fn random_requests_against_bytes_in_memory() {
    for (seed, mode) in MODES.into_iter().enumerate() {
        let rig = Rig::new(Config { queues: 5 + seed as u16, ..Config::new(SIZE) }, mode);
        let mut random = StdRng::seed_from_u64(seed as u64);
        let mut model = vec![0u8; SIZE as usize];
        // More requests than a period, so that queues are given to classes.
        for round in 0..80u8 {
            let (parts, part) = (32u64, SIZE / 32);
            let mut reads = Vec::new();
            for n in 0..parts {
                let len = if random.random_bool(0.5) { 4096 } else { 65536 };
                let at = n * part + random.random_range(0..(part - len) / 4096 + 1) * 4096;
                let range = at as usize..(at + len) as usize;
                let token = u64::MAX - n / 2;
                match random.random_range(0..12) {
                    0..5 => {
                        model[range.clone()].fill(round ^ n as u8);
                        rig.arena.copy_in(at, &model[range]);
                        rig.media.submit(Request::transfer(Op::Write, at, rig.buf(at, len), token));
                    }
                    5 => {
                        model[range].fill(0);
                        rig.media.submit(Request::range(Op::WriteZeroes, at, len, token));
                    }
                    6 => rig.media.submit(Request::flush(token)),
                    _ => {
                        rig.media.submit(Request::transfer(Op::Read, at, rig.buf(at, len), token));
                        reads.push(range);
                    }
                }
            }
            let done = rig.finish(parts as usize);
            let tokens: Vec<u64> = (0..parts).map(|n| u64::MAX - n / 2).rev().collect();
            assert_eq!(done.iter().map(|c| c.token).collect::<Vec<_>>(), tokens);
            done.into_iter().for_each(|c| c.result.unwrap());
            for range in reads {
                let mut back = vec![0; range.len()];
                rig.arena.copy_out(range.start as u64, &mut back);
                assert!(back == model[range.clone()], "{mode:?}, round {round}, {range:?}");
            }
        }
        let state = rig.media.separation();
        assert!(state.queued().iter().all(|n| *n == 0), "{:?}", state.queued());
        if mode == Mode::Separated {
            for class in Class::ALL {
                assert!(state.classes().contains(&Some(class)), "{:?}", state.classes());
            }
            assert!(state.service(0, Direction::Read, 4096).is_some());
        }
        rig.end();
    }
}

/// What is refused or fails comes back with its own token as well, and is not taken for fast.
#[test]
fn failures_are_not_measured() {
    let rig = Rig::new(Config::new(SIZE), Mode::Separated);
    let write = |token| Request::transfer(Op::Write, 0, rig.buf(0, 4096), token);
    assert!(matches!(rig.one(Request { offset: SIZE, ..write(9) }), Err(MediaError::Refused { .. })));
    rig.controller.inject(Fault::next(None, Failure::Status(1 << 14 | 0x280)));
    assert_eq!(rig.one(write(10)).unwrap_err().errno(), libc::EIO);
    let state = rig.media.separation();
    assert_eq!(state.queued().iter().sum::<u32>(), 0);
    assert!((0..4).all(|queue| state.service(queue, Direction::Write, 4096).is_none()));
    rig.controller.inject(Fault::next(None, Failure::Remove));
    for token in 0..50 {
        rig.media.submit(write(token));
    }
    let done = rig.finish(50);
    assert!(done.iter().zip(0..).all(|(c, token)| c.token == token));
    assert!(done.iter().any(|c| c.result.is_err()));
    assert!(matches!(rig.one(write(77)), Err(MediaError::Gone { .. })));
    assert_eq!(rig.media.separation().queued().iter().sum::<u32>(), 0);
    rig.end();
}

/// Writes of all sizes through all queues, a flush through one: everything that had completed before it is there after the power fails.
#[test]
fn a_flush_covers_all_queues() {
    const PAGES: u64 = 256;
    for seed in 0..8u64 {
        let mode = MODES[seed as usize % 3];
        let rig = Rig::new(Config { queues: 8, seed, ..Config::new(SIZE) }, mode);
        let mut random = StdRng::seed_from_u64(seed);
        // Of each page: values that it may have, the oldest first, which is known to be durable.
        let mut values: Vec<Vec<u8>> = vec![vec![0]; PAGES as usize];
        for round in 1..24u8 {
            let (mut page, mut sent) = (0, Vec::new());
            while page < PAGES {
                let pages = if random.random_bool(0.3) { 16 } else { 1 }.min(PAGES - page);
                if random.random_bool(0.4) {
                    rig.arena.copy_in(page * 4096, &vec![round; pages as usize * 4096]);
                    let flags = if random.random_bool(0.1) { Flags::FUA } else { Flags::NONE };
                    let buf = rig.buf(page * 4096, pages * 4096);
                    let write = Request::transfer(Op::Write, page * 4096, buf, sent.len() as u64);
                    rig.media.submit(Request { flags, ..write });
                    (page..page + pages).for_each(|page| values[page as usize].push(round));
                    sent.push((page, pages));
                }
                page += pages;
            }
            // A flush beside them covers none of them for sure.
            rig.media.submit(Request::flush(sent.len() as u64));
            rig.finish(sent.len() + 1).into_iter().for_each(|c| c.result.unwrap());
            if random.random_bool(0.5) {
                rig.one(Request::flush(0)).unwrap();
                for &(page, pages) in &sent {
                    (page..page + pages).for_each(|page| values[page as usize] = vec![round]);
                }
                // What was not written in this round was complete before.
                values.iter_mut().for_each(|all| *all = vec![*all.last().unwrap()]);
            }
            let image = rig.controller.crash_image(|_, _| random.random_bool(0.5));
            for (page, allowed) in values.iter().enumerate() {
                let mut bytes = [0; 4096];
                image.peek(page as u64 * 4096, &mut bytes);
                assert!(
                    bytes.iter().all(|b| *b == bytes[0]),
                    "seed {seed}, round {round}: page {page} is torn"
                );
                assert!(
                    allowed.contains(&bytes[0]),
                    "seed {seed}, {mode:?}, page {page}: {} of {allowed:?}",
                    bytes[0]
                );
            }
        }
        rig.end();
    }
}

/// Several threads submit, one reaps.
#[test]
fn many_threads() {
    let rig = Rig::new(Config::new(SIZE), Mode::Separated);
    let (threads, each) = (4u64, 500u64);
    let mut done = Vec::new();
    std::thread::scope(|s| {
        for t in 0..threads {
            let rig = &rig;
            s.spawn(move || {
                for n in 0..each {
                    let at = (t * each + n) * 4096;
                    let op = if n % 3 == 0 { Op::Write } else { Op::Read };
                    rig.media.submit(Request::transfer(op, at, rig.buf(at, 4096), t * each + n));
                    rig.media.kick();
                }
            });
        }
        let start = Instant::now();
        while done.len() < (threads * each) as usize {
            rig.media.reap(&mut done, Wait::For(Some(Duration::from_millis(10))));
            assert!(start.elapsed() < Duration::from_secs(60), "requests do not end");
        }
    });
    let mut tokens: Vec<u64> = done.iter().map(|c| c.token).collect();
    tokens.sort();
    assert_eq!(tokens, (0..threads * each).collect::<Vec<_>>());
    rig.end();
}
