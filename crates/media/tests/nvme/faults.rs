//! A controller that fails in every way it can.

use crate::rig::*;
use format::nvme::Status;
use format::nvme::queue::nvm;
use media::nvme::fake::{Config, Failure, FakeController, Fault};
use media::nvme::{Health, Options};
use media::{Flags, Media, MediaError, Op, Request};
use std::time::{Duration, Instant};

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

/// A controller whose cache does not survive a reset: nobody may be told that what was in it is durable, or shown what was there before.
#[test]
fn nothing_works_once_the_cache_is_in_doubt() {
    let rig = Rig::new(Config { reset_loses_cache: true, ..Config::new(SIZE) }, impatient());
    let hang = Fault::next(Some(nvm::READ), Failure::Hang);
    rig.write(0, 1).unwrap();
    rig.flush().unwrap();
    // Durable by itself, and nothing to lose.
    let fua = Request { flags: Flags::FUA, ..Request::transfer(Op::Write, 8192, rig.buf(0, 4096), 1) };
    rig.one(fua).unwrap();
    rig.one(Request::range(Op::Discard, 1 << 20, 1 << 20, 1)).unwrap();
    rig.controller.inject(hang.clone());
    assert_eq!(rig.read(0).unwrap(), 1);
    assert_eq!(rig.media.health().resets, 1);
    rig.flush().unwrap();
    rig.write(4096, 2).unwrap();
    rig.controller.inject(hang);
    gone(rig.read(0));
    gone(rig.read(4096));
    gone(rig.flush());
    gone(rig.write(0, 3));
    // Opened anew it is as after a power failure.
    let rig = Rig::on(rig.end(), impatient());
    assert_eq!((rig.read(0).unwrap(), rig.read(4096).unwrap()), (1, 0));
    rig.write(4096, 2).unwrap();
    rig.flush().unwrap();
    rig.end();
}

/// Nobody looked for long, and all was done in time.
#[test]
fn what_has_completed_is_not_late() {
    let rig = Rig::new(Config::new(SIZE), impatient());
    rig.write(0, 1).unwrap();
    rig.media.submit(Request::transfer(Op::Read, 0, rig.buf(8192, 4096), 1));
    rig.media.kick();
    std::thread::sleep(Duration::from_millis(400));
    rig.finish(1).pop().unwrap().result.unwrap();
    assert_eq!(rig.media.health(), Health::default());
    rig.end();
}

/// Whoever asks it something all the time does not get between a controller that is given up and its requests.
#[test]
fn a_question_does_not_hold_up_what_is_given_up() {
    let options = Options { admin_timeout: Duration::from_secs(5), ..impatient() };
    let rig = Rig::new(Config::new(SIZE), options);
    rig.controller.refuse_to_stop(true);
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // Not so fast that it never finds room for an Abort.
                while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                    _ = rig.media.smart();
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        }
        let begun = Instant::now();
        // Its Abort is answered; what then stops nothing is asked for 5 seconds.
        let lost = Failure::Lost { done: false, abortable: false };
        rig.controller.inject(Fault::next(Some(nvm::READ), lost));
        gone(rig.read(0));
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    });
    rig.end();
}

/// A write with FUA is there when it is acknowledged, however it was sent: whole, in parts, through another buffer.
#[test]
fn what_is_written_with_fua_is_durable() {
    for (mdts, from, len) in [(5, 0, 4096), (1, 0, 64 << 10), (5, 512, 1024)] {
        let rig = Rig::new(Config { mdts, sgl: false, ..Config::new(SIZE) }, patient());
        rig.arena.copy_in(0, &[7; 128 << 10]);
        let write = Request::transfer(Op::Write, 4096, rig.buf(from, len), 1);
        rig.one(Request { flags: Flags::FUA, ..write.clone() }).unwrap();
        rig.one(Request { offset: 1 << 20, ..write }).unwrap();
        let image = rig.controller.crash_image(|_, _| false);
        let at = |place| {
            let mut bytes = vec![0; len as usize];
            image.peek(place, &mut bytes);
            bytes
        };
        assert_eq!((at(4096), at(1 << 20)), (vec![7; len as usize], vec![0; len as usize]));
        rig.end();
    }
}

/// A flush that fails for a moment while there is no place to send it again, and a controller that loses its cache before there is.
#[test]
fn a_flush_that_waits_to_be_sent_again_knows_of_a_reset() {
    for seed in 0..20 {
        let config = Config { reset_loses_cache: true, seed, ..Config::new(SIZE) };
        let rig = Rig::new(config, Options { queues: 1, depth: 2, ..impatient() });
        rig.write(0, 9).unwrap();
        let bad_page = Failure::Status(Status::UNRECOVERED_READ.0 | Status::DO_NOT_RETRY);
        rig.controller.inject(Fault::next(Some(nvm::READ), bad_page));
        rig.controller.inject(Fault::next(Some(nvm::READ), Failure::Fatal));
        rig.controller.inject(Fault::next(Some(nvm::FLUSH), Failure::Status(Status::INTERNAL_ERROR.0)));
        for n in 0..8 {
            let read = Request::transfer(Op::Read, (100 + n) * 4096, rig.buf((20 + n) * 4096, 4096), n);
            rig.media.submit(read);
        }
        rig.media.submit(Request::flush(100));
        rig.media.kick();
        let done = rig.finish(9);
        let flush = done.iter().find(|c| c.token == 100).unwrap();
        let there = rig.read(0).is_ok_and(|byte| byte == 9);
        assert!(there || flush.result.is_err(), "seed {seed}: a write is lost that a flush says is durable");
        rig.end();
    }
}

/// Get Features, Set Features, Doorbell Buffer Config; Invalid Field in Command.
const OPTIONAL: [u8; 3] = [0x0A, 0x09, 0x7C];
const INVALID: u16 = 0x02;

/// A controller that offers more than it does: the driver goes without, and takes a cache of which it cannot learn for one that is on.
#[test]
fn what_is_offered_and_then_refused_is_done_without() {
    let [get, set, shadow] = OPTIONAL;
    let offers = Config { shadow_doorbells: true, ..Config::new(SIZE) };
    let controller = FakeController::new(offers);
    for opcode in [get, shadow] {
        controller.inject(Fault { forever: true, ..Fault::refuse_admin(opcode, INVALID) });
    }
    let rig = Rig::on(controller, impatient());
    assert!(rig.media.geometry().volatile_cache);
    rig.write(0, 1).unwrap();
    rig.flush().unwrap();
    // After a reset the cache is to be turned on, which is the first feature that is set.
    rig.controller.inject(Fault::refuse_admin(set, INVALID));
    rig.controller.inject(Fault::next(None, Failure::Hang));
    assert_eq!(rig.read(0).unwrap(), 1);
    assert_eq!(rig.media.health().resets, 1);
    rig.write(4096, 2).unwrap();
    assert_eq!((rig.read(0).unwrap(), rig.read(4096).unwrap()), (1, 2));
    rig.end();
}

/// A cache that was off, and may be on since a reset: what was written without a flush would not be safe.
#[test]
fn a_cache_that_may_be_on_after_a_reset_is_not_trusted() {
    let rig = Rig::new(Config { cache_off: true, ..Config::new(SIZE) }, impatient());
    assert!(!rig.media.geometry().volatile_cache);
    rig.write(0, 1).unwrap();
    rig.controller.inject(Fault::refuse_admin(OPTIONAL[1], INVALID));
    rig.controller.inject(Fault::next(None, Failure::Hang));
    assert!(rig.read(0).is_err());
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
                rig.media.submit(Request::transfer(Op::Read, n * 8192, rig.buf(n * 4096, 4096), n));
            }
            let done = rig.finish(500);
            // What both queues held may have ended before the one that takes the controller away.
            assert!(done.iter().filter(|c| c.result.is_err()).count() >= 100);
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

/// One that fails while it shuts down is not waited for any longer.
#[test]
fn a_shutdown_that_fails() {
    let rig = Rig::new(Config::new(SIZE), patient());
    rig.write(0, 1).unwrap();
    rig.flush().unwrap();
    rig.controller.die_at_shutdown();
    let begun = Instant::now();
    let controller = rig.end();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let mut there = [0; 4096];
    controller.peek(0, &mut there);
    assert_eq!(there, [1; 4096]);
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
        let mut rig = Rig::new(config, impatient());
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
            let mut forced = Vec::new();
            let touched: Vec<u64> = (0..PAGES).filter(|_| random.below(3) == 0).collect();
            for &page in &touched {
                rig.arena.copy_in(page * 4096, &[round + 1; 4096]);
                let flags = if random.below(4) == 0 { Flags::FUA } else { Flags::NONE };
                if flags == Flags::FUA {
                    forced.push(page as usize);
                }
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
            for &page in &acknowledged {
                // Pages whose newest write succeeded have that value; of others nobody knows more than before.
                if flushed || !cache || forced.contains(&page) {
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
            // Given up; what it had not been told to keep is in doubt.
            if matches!(rig.read(0), Err(MediaError::Gone { .. })) {
                resets += rig.media.health().resets;
                rig = Rig::on(rig.end(), impatient());
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
