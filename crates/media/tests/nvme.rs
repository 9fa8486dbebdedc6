//! The NVMe driver on a simulated controller that is within its rights, and on one that fails in every way it can.
//!
//! Checked throughout: every request ends once and in time, what is read is what was written, what was acknowledged is not lost,
//! the driver breaks no rule of the specification, and nothing stays mapped. What every medium does is checked in
//! tests/conformance.rs.

use format::nvme::Status;
use format::nvme::queue::nvm;
use media::nvme::fake::{Config, Failure, FakeController, Fault};
use media::nvme::{Health, NvmeMedia, Options};
use media::{Arena, ArenaId, BufRef, Completion, Flags, Media, MediaError, Op, Request, Wait};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: u64 = 8 << 20;
const ARENA: u64 = 4 << 20;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

struct Rig {
    media: NvmeMedia,
    controller: Arc<FakeController>,
    arena: Arc<Arena>,
    id: ArenaId,
}

fn patient() -> Options {
    Options { queues: 2, depth: 32, ..Options::default() }
}

/// Short times, for commands that are lost.
fn impatient() -> Options {
    Options { timeout: Duration::from_millis(250), admin_timeout: Duration::from_millis(400), ..patient() }
}

impl Rig {
    fn new(config: Config, options: Options) -> Rig {
        Rig::on(FakeController::new(config), options)
    }

    fn on(controller: Arc<FakeController>, options: Options) -> Rig {
        let media = NvmeMedia::start(controller.clone(), options).unwrap();
        let arena = Arc::new(Arena::new(ARENA as usize).unwrap());
        let id = media.register(arena.clone()).unwrap();
        Rig { media, controller, arena, id }
    }

    fn buf(&self, offset: u64, len: u32) -> BufRef {
        BufRef { arena: self.id, offset, len }
    }

    fn finish(&self, n: usize) -> Vec<Completion> {
        self.media.kick();
        let (mut done, start) = (Vec::new(), Instant::now());
        while done.len() < n {
            self.media.reap(&mut done, Wait::For(Some(Duration::from_secs(1))));
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "requests do not end: {:?}",
                self.media.health()
            );
        }
        done.sort_by_key(|c| c.token);
        done
    }

    fn one(&self, request: Request) -> Result<(), MediaError> {
        self.media.submit(request);
        self.finish(1).pop().unwrap().result
    }

    fn write(&self, place: u64, byte: u8) -> Result<(), MediaError> {
        self.arena.copy_in(0, &[byte; 4096]);
        self.one(Request::transfer(Op::Write, place, self.buf(0, 4096), 1))
    }

    fn read(&self, place: u64) -> Result<u8, MediaError> {
        self.one(Request::transfer(Op::Read, place, self.buf(8192, 4096), 2))?;
        let mut back = [0; 4096];
        self.arena.copy_out(8192, &mut back);
        assert!(back.iter().all(|b| *b == back[0]), "a page is torn");
        Ok(back[0])
    }

    fn flush(&self) -> Result<(), MediaError> {
        self.one(Request::flush(3))
    }

    /// Ends it; the driver has kept the rules and left nothing behind.
    fn end(self) -> Arc<FakeController> {
        drop(self.media);
        assert_eq!(self.controller.violations(), [""; 0]);
        assert_eq!(self.controller.mapped(), 0);
        self.controller
    }
}

fn errno(result: Result<impl std::fmt::Debug, MediaError>) -> i32 {
    result.unwrap_err().errno()
}

#[test]
fn what_it_is() {
    let rig = Rig::new(Config::new(SIZE), Options { queues: 9, ..patient() });
    let g = rig.media.geometry();
    assert_eq!((g.bytes, g.sector, g.atomic_unit, g.volatile_cache), (SIZE, 512, 4096, true));
    assert_eq!((rig.media.queues(), g.queue_depth, g.discard), (4, 4 * 32, true));
    rig.end();
    let large =
        Config { lba: 4096, atomic_blocks: 1, volatile_cache: false, deallocate: false, ..Config::new(SIZE) };
    let rig = Rig::new(large, patient());
    let g = rig.media.geometry();
    assert_eq!(
        (g.bytes, g.sector, g.atomic_unit, g.volatile_cache, g.discard),
        (SIZE, 4096, 4096, false, false)
    );
    // Nothing to flush, nothing to discard: no command.
    rig.flush().unwrap();
    rig.one(Request::range(Op::Discard, 0, 1 << 20, 1)).unwrap();
    assert_eq!(
        (rig.controller.commands(nvm::FLUSH), rig.controller.commands(nvm::DATASET_MANAGEMENT)),
        (0, 0)
    );
    rig.end();
    let rig = Rig::new(Config::least(SIZE), patient());
    assert_eq!((rig.media.queues(), rig.media.geometry().queue_depth), (1, 1));
    rig.end();
}

/// Random requests of all kinds with memory in pieces, on controllers of many kinds; every byte is compared.
#[test]
fn random_requests_against_bytes_in_memory() {
    let all = Config::new(SIZE);
    let kinds = [
        all.clone(),
        Config::least(SIZE),
        Config { sgl: false, mdts: 1, queues: 2, entries_max: 3, ..all.clone() },
        Config { lba: 4096, atomic_blocks: 1, sgl: false, ..all.clone() },
        Config { atomic_blocks: 3, sgl: false, shadow_doorbells: true, dstrd: 1, ..all.clone() },
        Config { mdts: 0, write_zeroes: false, interrupts: false, volatile_cache: false, ..all },
    ];
    for (seed, config) in kinds.into_iter().enumerate() {
        random_requests(config, seed as u64);
    }
}

fn random_requests(config: Config, seed: u64) {
    let sector = config.lba as u64;
    let rig = Rig::new(config, Options { depth: 7, ..patient() });
    let mut random = Random(seed);
    let mut model = vec![0u8; SIZE as usize];
    for round in 0..25u64 {
        // Requests of a round touch different parts of the device and of memory.
        let (parts, part, room) = (16, SIZE / 16, ARENA / 16);
        let mut reads = Vec::new();
        for n in 0..parts {
            let place = n * part + random.below(part / 2 / sector) * sector;
            let mut bufs = Vec::new();
            let mut at = n * room;
            let many = if random.below(2) == 0 { 1 } else { 1 + random.below(12) };
            for _ in 0..many {
                // Whole pages now and then, so that some memory fits PRPs and some does not.
                let unit = if random.below(2) == 0 { 4096 } else { sector };
                at = at.next_multiple_of(unit) + random.below(3) * unit;
                let len = (1 + random.below(4)) * unit;
                if at + len > (n + 1) * room {
                    break;
                }
                bufs.push(rig.buf(at, len as u32));
                at += len;
            }
            let len: u64 = bufs.iter().map(|b| b.len as u64).sum();
            let range = place as usize..(place + len) as usize;
            match random.below(8) {
                0..3 => {
                    let mut filled = place as usize;
                    for buf in &bufs {
                        let data: Vec<u8> = (0..buf.len).map(|_| random.below(256) as u8).collect();
                        rig.arena.copy_in(buf.offset, &data);
                        model[filled..filled + data.len()].copy_from_slice(&data);
                        filled += data.len();
                    }
                    let flags = if random.below(4) == 0 { Flags::FUA } else { Flags::NONE };
                    rig.media
                        .submit(Request { flags, ..Request::vectored(Op::Write, place, bufs.into(), n) });
                }
                3 => {
                    model[range].fill(0);
                    rig.media.submit(Request::range(Op::WriteZeroes, place, len, n));
                }
                4 if round % 3 == 0 => rig.media.submit(Request::flush(n)),
                _ => {
                    reads.push((range, bufs.clone()));
                    rig.media.submit_to(
                        n as usize % rig.media.queues(),
                        Request::vectored(Op::Read, place, bufs.into(), n),
                    );
                }
            }
        }
        let done = rig.finish(parts as usize);
        assert_eq!(done.iter().map(|c| c.token).collect::<Vec<_>>(), (0..parts).collect::<Vec<_>>());
        done.into_iter().for_each(|c| c.result.unwrap());
        for (range, bufs) in reads {
            let mut back = Vec::new();
            for buf in bufs {
                let mut part = vec![0; buf.len as usize];
                rig.arena.copy_out(buf.offset, &mut part);
                back.extend(part);
            }
            assert!(back == model[range.clone()], "seed {seed}, round {round}, {range:?}");
        }
    }
    let controller = rig.end();
    let mut all = vec![0; SIZE as usize];
    controller.peek(0, &mut all);
    assert!(all == model, "seed {seed}");
}

#[test]
fn one_doorbell_for_a_batch() {
    let rig = Rig::new(Config::new(SIZE), patient());
    let before = rig.controller.doorbells();
    for n in 0..20 {
        rig.media.submit_to(0, Request::transfer(Op::Read, n * 4096, rig.buf(n * 4096, 4096), n));
    }
    assert_eq!(rig.controller.doorbells(), before);
    rig.media.kick();
    assert_eq!(rig.controller.doorbells(), before + 1);
    rig.finish(20);
    rig.end();
}

#[test]
fn shadow_doorbells_save_registers() {
    let run = |shadow_doorbells| {
        let rig = Rig::new(Config { shadow_doorbells, ..Config::new(SIZE) }, patient());
        let before = rig.controller.doorbells();
        // The controller is busy with something else, and has asked to be told of the first entry.
        rig.controller.stall(true);
        for n in 0..20 {
            rig.media.submit_to(0, Request::transfer(Op::Write, n * 512, rig.buf(n * 512, 512), n));
            rig.media.kick();
        }
        let written = rig.controller.doorbells() - before;
        rig.controller.stall(false);
        rig.finish(20);
        rig.end();
        written
    };
    assert_eq!((run(true), run(false)), (1, 20));
}

#[test]
fn errors_are_told_and_transient_ones_are_not() {
    let rig = Rig::new(Config::new(SIZE), patient());
    for (opcode, status, expected) in [
        (nvm::WRITE, Status::WRITE_FAULT.0, libc::EIO),
        (nvm::WRITE, Status::CAPACITY_EXCEEDED.0, libc::ENOSPC),
        (nvm::WRITE, Status::WRITE_PROTECTED.0, libc::EROFS),
        (nvm::READ, Status::UNRECOVERED_READ.0, libc::EIO),
        (nvm::FLUSH, Status::INTERNAL_ERROR.0, libc::EIO),
    ] {
        let failure = Failure::Status(status | Status::DO_NOT_RETRY);
        let run = || match opcode {
            nvm::WRITE => rig.write(4096, 7),
            nvm::READ => rig.read(4096).map(drop),
            _ => rig.flush(),
        };
        rig.controller.inject(Fault::next(Some(opcode), failure));
        assert_eq!(errno(run()), expected);
        run().unwrap();
        // May be tried again, and works then.
        rig.controller.inject(Fault::next(Some(opcode), Failure::Status(status)));
        run().unwrap();
        // Works never.
        rig.controller.inject(Fault { forever: true, ..Fault::next(Some(opcode), Failure::Status(status)) });
        assert_eq!(errno(run()), expected);
        rig.controller.clear_faults();
        run().unwrap();
    }
    assert_eq!(rig.media.health(), Health::default());
    rig.end();
}

/// A request of several commands, one of which fails, ends once and after all of them.
#[test]
fn one_failed_part_fails_the_whole() {
    let rig = Rig::new(Config { mdts: 1, ..Config::new(SIZE) }, patient());
    for after in [0, 1, 60, 127] {
        let failure = Failure::Status(Status::WRITE_FAULT.0 | Status::DO_NOT_RETRY);
        rig.controller.inject(Fault { after, ..Fault::next(Some(nvm::WRITE), failure) });
        let whole = Request::transfer(Op::Write, 0, rig.buf(0, 1 << 20), 9);
        assert_eq!(errno(rig.one(whole.clone())), libc::EIO);
        rig.one(whole).unwrap();
    }
    rig.end();
}

#[test]
fn write_zeroes_that_is_refused_is_written() {
    let rig = Rig::new(Config::new(SIZE), patient());
    rig.write(8192, 7).unwrap();
    let failure = Failure::Status(Status::INVALID_FIELD.0 | Status::DO_NOT_RETRY);
    rig.controller.inject(Fault { forever: true, ..Fault::next(Some(nvm::WRITE_ZEROES), failure) });
    rig.one(Request::range(Op::WriteZeroes, 512, 1 << 20, 1)).unwrap();
    assert_eq!((rig.read(8192).unwrap(), rig.controller.commands(nvm::WRITE_ZEROES)), (0, 0));
    rig.end();
}

#[test]
fn a_command_that_is_aborted() {
    let rig = Rig::new(Config::new(SIZE), impatient());
    rig.write(0, 1).unwrap();
    rig.flush().unwrap();
    let lost = Failure::Lost { done: false, abortable: true };
    rig.controller.inject(Fault::next(Some(nvm::READ), lost));
    assert_eq!(rig.read(0).unwrap(), 1, "a read is made again");
    rig.controller.inject(Fault::next(Some(nvm::WRITE), lost));
    assert_eq!(errno(rig.write(0, 2)), libc::EIO, "a write is not");
    rig.controller.inject(Fault::next(Some(nvm::WRITE), Failure::Delay(Duration::from_secs(30))));
    assert_eq!(errno(rig.write(0, 3)), libc::EIO);
    assert_eq!(rig.media.health(), Health { aborts: 3, ..Health::default() });
    rig.end();
}

/// Delays shorter than the limit are nobody's business.
#[test]
fn a_command_that_takes_its_time() {
    let rig = Rig::new(Config::new(SIZE), patient());
    let delay = Failure::Delay(Duration::from_millis(60));
    rig.controller.inject(Fault { forever: true, ..Fault::next(Some(nvm::WRITE), delay) });
    rig.write(0, 5).unwrap();
    assert_eq!(rig.media.health(), Health::default());
    rig.end();
}

/// All that leads to a reset: reads under way are made again, writes fail, and everything works afterwards.
#[test]
fn resets() {
    let lost = |done| Failure::Lost { done, abortable: false };
    for failure in [lost(false), lost(true), Failure::Hang, Failure::Fatal, Failure::Restart] {
        // Without a cache nothing is in doubt after a reset.
        let rig = Rig::new(Config { volatile_cache: false, ..Config::new(SIZE) }, impatient());
        rig.write(0, 1).unwrap();
        rig.controller.inject(Fault::next(Some(nvm::READ), failure));
        assert_eq!(rig.read(0).unwrap(), 1, "{failure:?}");
        assert_eq!(rig.media.health().resets, 1, "{failure:?}");
        rig.controller.inject(Fault::next(Some(nvm::WRITE), failure));
        assert_eq!(errno(rig.write(4096, 2)), libc::EIO, "{failure:?}");
        assert_eq!(rig.media.health().resets, 2);
        assert!([0, 2].contains(&rig.read(4096).unwrap()));
        rig.write(4096, 3).unwrap();
        rig.flush().unwrap();
        assert_eq!((rig.read(0).unwrap(), rig.read(4096).unwrap()), (1, 3));
        rig.end();
    }
}

#[test]
fn completions_of_nothing_lead_to_a_reset() {
    let rig = Rig::new(Config { volatile_cache: false, ..Config::new(SIZE) }, patient());
    rig.controller.inject(Fault::next(Some(nvm::WRITE), Failure::Twice));
    rig.write(0, 1).unwrap();
    for _ in 0..20 {
        rig.read(0).unwrap();
    }
    assert_eq!((rig.media.health().resets, rig.read(0).unwrap()), (1, 1));
    rig.end();
}

#[test]
fn a_reset_with_many_requests_under_way() {
    for seed in 0..4 {
        let config = Config {
            volatile_cache: false,
            seed,
            mdts: 2,
            shadow_doorbells: seed % 2 == 1,
            ..Config::new(SIZE)
        };
        let rig = Rig::new(config, impatient());
        for n in 0..512u64 {
            rig.arena.copy_in(n * 4096, &n.to_le_bytes());
            rig.one(Request::transfer(Op::Write, n * 4096, rig.buf(n * 4096, 4096), n)).unwrap();
        }
        rig.controller.inject(Fault { after: 100, ..Fault::next(None, Failure::Hang) });
        // Half are read into other memory, half are overwritten; more than there are places.
        for n in 0..512u64 {
            let buf = rig.buf((n % 512 + 512) * 4096, 4096);
            let op = if n % 2 == 0 { Op::Read } else { Op::Write };
            rig.media.submit_to(n as usize / 7 % 2, Request::transfer(op, n * 4096, buf, n));
        }
        let done = rig.finish(512);
        let failed = done.iter().filter(|c| c.result.is_err()).count();
        assert!(done.iter().filter(|c| c.token % 2 == 0).all(|c| c.result.is_ok()), "reads are made again");
        assert!(failed > 0 && failed < 64, "{failed} writes were under way");
        for n in (0..512u64).step_by(2) {
            let mut back = [0; 8];
            rig.arena.copy_out((n + 512) * 4096, &mut back);
            assert_eq!(u64::from_le_bytes(back), n);
        }
        assert_eq!(rig.media.health().resets, 1);
        rig.end();
    }
}

/// A controller whose cache does not survive a reset: nobody may be told that what was in it is durable.
#[test]
fn no_flush_succeeds_after_the_cache_is_in_doubt() {
    let rig = Rig::new(Config { reset_loses_cache: true, ..Config::new(SIZE) }, impatient());
    rig.write(0, 1).unwrap();
    rig.flush().unwrap();
    rig.controller.inject(Fault::next(Some(nvm::READ), Failure::Hang));
    assert_eq!(rig.read(0).unwrap(), 1);
    assert_eq!(rig.media.health().resets, 1);
    rig.flush().expect("everything was durable before the reset");
    rig.write(4096, 2).unwrap();
    rig.controller.inject(Fault::next(Some(nvm::READ), Failure::Hang));
    assert_eq!(rig.read(4096).unwrap(), 0, "the cache is lost");
    for _ in 0..3 {
        assert_eq!(errno(rig.flush()), libc::EIO);
    }
    let fua = Request { flags: Flags::FUA, ..Request::transfer(Op::Write, 8192, rig.buf(0, 4096), 1) };
    rig.one(fua).expect("is durable by itself");
    rig.end();
}

fn gone(result: Result<impl std::fmt::Debug, MediaError>) {
    assert!(matches!(result, Err(MediaError::Gone { .. })), "{result:?}");
}

#[test]
fn removal() {
    for idle in [true, false] {
        let rig = Rig::new(Config::new(SIZE), patient());
        rig.write(0, 1).unwrap();
        let start = Instant::now();
        if idle {
            rig.controller.remove();
            gone(rig.write(0, 2));
        } else {
            rig.controller.inject(Fault { after: 10, ..Fault::next(None, Failure::Remove) });
            for n in 0..500 {
                rig.media.submit(Request::transfer(Op::Read, n * 4096, rig.buf(n * 4096, 4096), n));
            }
            let done = rig.finish(500);
            assert!(done.iter().filter(|c| c.result.is_err()).count() >= 400);
            done.into_iter().filter(|c| c.result.is_err()).for_each(|c| gone(c.result));
        }
        gone(rig.read(0));
        gone(rig.flush());
        assert!(start.elapsed() < Duration::from_secs(5));
        rig.end();
    }
}

#[test]
fn a_controller_that_does_not_stop() {
    // The function is reset instead.
    let rig = Rig::new(Config { volatile_cache: false, ..Config::new(SIZE) }, impatient());
    rig.write(0, 1).unwrap();
    rig.controller.refuse_to_stop(false);
    rig.controller.inject(Fault::next(Some(nvm::READ), Failure::Hang));
    assert_eq!(rig.read(0).unwrap(), 1);
    rig.end();
    // That does not work either: it is cut off, and given up.
    let rig = Rig::new(Config::new(SIZE), impatient());
    rig.controller.refuse_to_stop(true);
    rig.controller.inject(Fault::next(Some(nvm::WRITE), Failure::Hang));
    gone(rig.write(0, 1));
    gone(rig.read(0));
    rig.end();
}

/// Reads that hang again and again: the controller is given up in the end.
#[test]
fn a_controller_that_resets_do_not_help() {
    let rig = Rig::new(Config::new(SIZE), Options { timeout: Duration::from_millis(50), ..patient() });
    rig.controller.inject(Fault { forever: true, ..Fault::next(None, Failure::Fatal) });
    assert!(rig.read(0).is_err());
    gone(rig.read(0));
    rig.end();
}

#[test]
fn events_are_heard_and_asked_for_again() {
    let rig = Rig::new(Config::new(SIZE), patient());
    let start = Instant::now();
    for n in 1..=3 {
        while !rig.controller.report(0x0002_0001) {
            assert!(start.elapsed() < Duration::from_secs(20), "no request for events");
            rig.media.reap(&mut Vec::new(), Wait::For(Some(Duration::from_millis(20))));
        }
        while rig.media.health().events < n {
            assert!(start.elapsed() < Duration::from_secs(20), "events are not heard");
            rig.media.reap(&mut Vec::new(), Wait::For(Some(Duration::from_millis(20))));
        }
    }
    rig.write(0, 1).unwrap();
    rig.end();
}

#[test]
fn reading_alone() {
    let rig = Rig::new(Config::new(SIZE), Options { read_only: true, ..patient() });
    for op in [Op::Discard, Op::WriteZeroes] {
        assert!(matches!(rig.one(Request::range(op, 0, 4096, 1)), Err(MediaError::Refused { .. })));
    }
    assert!(matches!(rig.write(0, 1), Err(MediaError::Refused { .. })));
    assert_eq!(rig.read(0).unwrap(), 0);
    rig.end();
}

/// Dropped with commands under way, one of which never completes.
#[test]
fn dropped_while_something_is_lost() {
    let rig = Rig::new(Config::new(SIZE), impatient());
    rig.controller
        .inject(Fault { after: 5, ..Fault::next(None, Failure::Lost { done: true, abortable: false }) });
    for n in 0..100 {
        rig.media.submit(Request::transfer(Op::Write, n * 4096, rig.buf(n * 4096, 4096), n));
    }
    rig.media.kick();
    rig.end();
}

/// What was acknowledged and flushed is there after a power failure, whatever went wrong before.
#[test]
fn nothing_that_was_flushed_is_lost() {
    const PAGES: u64 = 64;
    let (mut failed, mut resets) = (0, 0);
    for seed in 0..12u64 {
        let mut random = Random(seed);
        let config = Config {
            seed,
            volatile_cache: seed % 4 != 3,
            reset_loses_cache: seed % 2 == 0,
            shadow_doorbells: seed % 3 == 0,
            sgl: seed % 5 == 0,
            ..Config::new(SIZE)
        };
        let cache = config.volatile_cache;
        let rig = Rig::new(config, impatient());
        // Of each page: values that it may have, oldest first; the first is known to be durable.
        let mut values: Vec<Vec<u8>> = vec![vec![0]; PAGES as usize];
        for round in 0..12u8 {
            if random.below(3) == 0 {
                let failure = match random.below(6) {
                    0 => Failure::Status(Status::WRITE_FAULT.0 | (random.below(2) as u16) << 14),
                    1 => Failure::Lost { done: random.below(2) == 0, abortable: random.below(2) == 0 },
                    2 => Failure::Hang,
                    3 => Failure::Fatal,
                    4 => Failure::Restart,
                    _ => Failure::Twice,
                };
                rig.controller.inject(Fault { after: random.below(40), ..Fault::next(None, failure) });
            }
            let touched: Vec<u64> = (0..PAGES).filter(|_| random.below(3) == 0).collect();
            for &page in &touched {
                rig.arena.copy_in(page * 4096, &[round + 1; 4096]);
                let flags = if random.below(4) == 0 { Flags::FUA } else { Flags::NONE };
                let write = Request::transfer(Op::Write, page * 4096, rig.buf(page * 4096, 4096), page);
                rig.media.submit(Request { flags, ..write });
                values[page as usize].push(round + 1);
            }
            let mut acknowledged = Vec::new();
            for done in rig.finish(touched.len()) {
                match done.result {
                    Ok(()) => acknowledged.push(done.token as usize),
                    Err(_) => failed += 1,
                }
            }
            let flushed = random.below(2) == 0 && rig.flush().is_ok();
            if flushed || !cache {
                // Pages whose newest write succeeded have that value; of others nobody knows more than before.
                for &page in &acknowledged {
                    let newest = *values[page].last().unwrap();
                    values[page] = vec![newest];
                }
            }
            let image = rig.controller.crash_image(|_, _| random.below(2) == 0);
            for (page, allowed) in values.iter().enumerate() {
                let mut bytes = [0; 4096];
                image.peek(page as u64 * 4096, &mut bytes);
                assert!(
                    bytes.iter().all(|b| *b == bytes[0]),
                    "seed {seed}, round {round}: page {page} is torn"
                );
                assert!(
                    allowed.contains(&bytes[0]),
                    "seed {seed}, round {round}, page {page}: {} of {allowed:?}",
                    bytes[0]
                );
            }
        }
        resets += rig.media.health().resets;
        rig.end();
    }
    assert!(
        failed > 20 && resets > 10,
        "{failed} requests failed, {resets} resets: too few to mean anything"
    );
}
