//! What a controller tells of itself.

use crate::rig::*;
use format::nvme::identify::oncs;
use format::nvme::queue::admin::GET_LOG_PAGE;
use format::nvme::queue::nvm;
use media::nvme::fake::{Config, Failure, FakeController, Fault};
use media::nvme::{Health, Inspection, NvmeMedia, Options, inspect};
use media::{Media, MediaError, Op, Request, Wait};
use std::time::{Duration, Instant};

fn check(i: &Inspection, config: &Config) {
    assert_eq!(i.version, 0x0001_0400);
    assert_eq!((i.controller.model(), i.controller.firmware()), ("Simulated".into(), "1.0".into()));
    assert_eq!(i.controller.serial(), "SIM00000000000000001");
    assert_eq!(i.controller.mdts, config.mdts);
    assert_eq!(i.controller.oncs.get() & oncs::WRITE_ZEROES != 0, config.write_zeroes);
    assert_eq!(i.cap.entries_max(), config.entries_max);
    assert_eq!(i.write_cache, config.volatile_cache.then_some(true));
    let [(1, namespace)] = &i.namespaces[..] else { panic!("{:?}", i.namespaces) };
    assert_eq!(namespace.nsze.get() * config.lba as u64, config.bytes);
    assert_eq!(
        (1 << namespace.format().lbads, namespace.format().metadata.get()),
        (config.lba, config.metadata)
    );
    assert_eq!((i.health.temperature.get(), i.health.spare, i.health.used), (310, 100, 3));
    assert_eq!((i.health.critical_warning, i.health.power_cycles.get()), (config.warning, 1 << 100));
}

#[test]
fn a_controller_that_nobody_drives() {
    for config in [
        Config::new(SIZE),
        Config { warning: 4, ..Config::least(SIZE) },
        Config { queues: 64, lba: 4096, atomic_blocks: 1, ..Config::new(SIZE) },
    ] {
        let controller = FakeController::new(config.clone());
        let i = inspect(controller.clone()).unwrap();
        check(&i, &config);
        assert_eq!(i.queues, config.queues);
        assert_eq!(controller.violations(), [""; 0]);
        assert_eq!(controller.mapped(), 0);
        // It can be driven afterwards.
        Rig::on(controller, patient()).end();
    }
}

/// What the driver does not take it tells all the same.
#[test]
fn a_namespace_that_is_not_for_this_driver() {
    let config = Config { metadata: 8, ..Config::new(SIZE) };
    let controller = FakeController::new(config.clone());
    assert_eq!(errno(NvmeMedia::start(controller.clone(), patient()).map(drop)), libc::EOPNOTSUPP);
    check(&inspect(controller.clone()).unwrap(), &config);
    assert_eq!(controller.mapped(), 0);
}

/// The driver takes the namespace that it is told, or the first; one that is not there is said to be missing.
#[test]
fn namespaces_are_chosen() {
    let config = Config { nsid: 7, ..Config::new(SIZE) };
    for (wanted, there) in [
        (None, true),
        (Some(7), true),
        (Some(1), false),
        (Some(6), false),
        (Some(8), false),
        (Some(0), false),
    ] {
        let controller = FakeController::new(config.clone());
        let result = NvmeMedia::start(controller.clone(), Options { namespace: wanted, ..patient() });
        match there {
            true => drop(result.unwrap()),
            false => assert_eq!(errno(result.map(drop)), libc::ENODEV, "{wanted:?}"),
        }
        assert_eq!((controller.mapped(), controller.violations().len()), (0, 0), "{wanted:?}");
    }
}

/// A driven controller is asked beside its requests, which all end as they should.
#[test]
fn a_controller_that_is_driven() {
    let config = Config::new(SIZE);
    let rig = Rig::new(config.clone(), patient());
    rig.write(0, 7).unwrap();
    for round in 0..20 {
        for n in 0..100 {
            rig.media.submit(Request::transfer(Op::Read, n * 8192, rig.buf(n * 4096, 4096), n));
        }
        rig.media.kick();
        let i = rig.media.inspect().unwrap();
        check(&i, &config);
        assert_eq!(i.queues, 2, "those in use");
        let done = rig.finish(100);
        assert!(done.iter().all(|c| c.result.is_ok()));
        assert!(i.health.read_commands.get() <= 100 * (round + 1));
    }
    let health = rig.media.inspect().unwrap().health;
    assert_eq!((health.read_commands.get(), health.write_commands.get()), (2000, 1));
    rig.end();
}

#[test]
fn a_controller_that_does_not_answer() {
    let controller = FakeController::new(Config::new(SIZE));
    controller.remove();
    assert_eq!(errno(inspect(controller)), libc::ENODEV);
    // One that hangs is reset by the medium, and answers again.
    let rig = Rig::new(Config { volatile_cache: false, ..Config::new(SIZE) }, impatient());
    rig.controller.inject(Fault::next(None, Failure::Hang));
    rig.media.submit(Request::transfer(Op::Read, 0, rig.buf(0, 4096), 1));
    rig.media.kick();
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(errno(rig.media.inspect()), libc::ETIMEDOUT);
    rig.finish(1).pop().unwrap().result.unwrap();
    rig.media.inspect().unwrap();
    rig.controller.remove();
    assert!(rig.read(0).is_err());
    assert!(matches!(rig.media.inspect(), Err(MediaError::Gone { .. })));
    rig.end();
}

/// While an answer is long in coming, requests end as always.
#[test]
fn slow_answers_hold_up_no_requests() {
    let rig = Rig::new(Config::new(SIZE), patient());
    rig.write(0, 1).unwrap();
    let slow = Duration::from_millis(1500);
    rig.controller.inject(Fault::delay_admin(GET_LOG_PAGE, slow));
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| rig.media.inspect().map(drop));
        let begun = Instant::now();
        let mut longest = Duration::ZERO;
        while !asked.is_finished() {
            let read = Instant::now();
            rig.read(0).unwrap();
            longest = longest.max(read.elapsed());
        }
        asked.join().unwrap().unwrap();
        assert!(begun.elapsed() >= slow && longest < slow / 2, "a read took {longest:?}");
    });
    rig.end();
}

/// An event is heard that comes while another answer is waited for, and the next one is asked for.
#[test]
fn events_between_answers_are_heard() {
    let rig = Rig::new(Config::new(SIZE), patient());
    for round in 1..=3 {
        let begun = Instant::now();
        while !rig.controller.report(0x0002_0001) {
            assert!(begun.elapsed() < Duration::from_secs(20), "round {round}: no event is asked for");
            rig.read(0).unwrap();
        }
        rig.media.inspect().unwrap();
        while rig.media.health().events < round {
            assert!(begun.elapsed() < Duration::from_secs(20), "round {round}: not heard");
            rig.read(0).unwrap();
        }
        rig.media.inspect().unwrap();
    }
    rig.end();
}

/// An answer that never comes is nobody's end: requests go on, without a reset. One that is to be aborted then needs it; after
/// which there are answers again.
#[test]
fn an_answer_that_is_lost() {
    let rig = Rig::new(Config { volatile_cache: false, ..Config::new(SIZE) }, impatient());
    rig.write(0, 1).unwrap();
    rig.controller.inject(Fault::delay_admin(GET_LOG_PAGE, Duration::from_secs(3600)));
    assert_eq!(errno(rig.media.inspect()), libc::ETIMEDOUT);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(600) {
        assert_eq!(rig.read(0).unwrap(), 1);
        rig.write(4096, 2).unwrap();
    }
    // An idle controller is left alone, too.
    rig.media.reap(&mut Vec::new(), Wait::For(Some(Duration::from_millis(300))));
    for asked in [rig.media.smart().map(drop), rig.media.inspect().map(drop)] {
        assert_eq!(errno(asked), libc::ETIMEDOUT, "nothing is asked that could not be answered");
    }
    assert_eq!(rig.media.health(), Health::default());
    let lost = Failure::Lost { done: false, abortable: true };
    rig.controller.inject(Fault::next(Some(nvm::READ), lost));
    assert_eq!(rig.read(0).unwrap(), 1, "a read is made again");
    assert_eq!(rig.media.health().resets, 1);
    rig.media.inspect().unwrap();
    rig.end();
}

/// An answer that nobody waits for any more: afterwards all is as before, events included.
#[test]
fn an_answer_that_is_late() {
    let rig = Rig::new(Config::new(SIZE), impatient());
    rig.write(0, 1).unwrap();
    for round in 1..=3 {
        rig.controller.inject(Fault::delay_admin(GET_LOG_PAGE, Duration::from_millis(900)));
        assert_eq!(errno(rig.media.smart()), libc::ETIMEDOUT);
        assert!(rig.controller.report(0x0002_0001), "round {round}: no event is asked for");
        let begun = Instant::now();
        while rig.media.health().events < round {
            assert!(begun.elapsed() < Duration::from_secs(20), "round {round}: the event is not heard");
            assert_eq!(rig.read(0).unwrap(), 1);
        }
        assert_eq!(rig.media.smart().unwrap().spare, 100);
    }
    assert_eq!(rig.media.health(), Health { events: 3, ..Health::default() });
    rig.flush().expect("nothing is in doubt");
    rig.end();
}

/// An event whose log page is late: it is told without, and the next one is asked for when that can be done.
#[test]
fn an_event_whose_page_is_late() {
    let rig = Rig::new(Config::new(SIZE), impatient());
    rig.controller.inject(Fault::delay_admin(GET_LOG_PAGE, Duration::from_millis(700)));
    let begun = Instant::now();
    for round in 1..=2 {
        while !rig.controller.report(0x0002_0001) {
            assert!(begun.elapsed() < Duration::from_secs(20), "round {round}: no event is asked for");
            rig.read(0).unwrap();
        }
        while rig.media.health().events < round {
            assert!(begun.elapsed() < Duration::from_secs(20), "round {round}: not heard");
            rig.read(0).unwrap();
        }
    }
    assert_eq!(rig.media.health(), Health { events: 2, ..Health::default() });
    rig.end();
}

/// Who needs the admin queue because a request does not end gets it before a question has had all of its time.
#[test]
fn a_question_makes_room_for_an_abort() {
    let options = Options { admin_timeout: Duration::from_secs(50), ..impatient() };
    let rig = Rig::new(Config { volatile_cache: false, ..Config::new(SIZE) }, options);
    rig.write(0, 1).unwrap();
    rig.controller.inject(Fault::delay_admin(GET_LOG_PAGE, Duration::from_secs(3600)));
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| rig.media.smart().map(drop));
        std::thread::sleep(Duration::from_millis(50));
        rig.controller.inject(Fault::next(Some(nvm::READ), Failure::Lost { done: false, abortable: true }));
        let begun = Instant::now();
        assert_eq!(rig.read(0).unwrap(), 1, "a read is made again");
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        assert_eq!(errno(asked.join().unwrap()), libc::ETIMEDOUT);
    });
    assert_eq!(rig.media.health().resets, 1);
    rig.media.smart().unwrap();
    rig.end();
}

/// Doorbells so far apart that those of the admin queue are not mapped.
#[test]
fn doorbells_that_are_out_of_reach() {
    for (dstrd, reads) in [(15, false), (14, false), (13, true)] {
        let controller = FakeController::new(Config { dstrd, ..Config::new(SIZE) });
        match inspect(controller.clone()) {
            Ok(_) => assert!(reads, "{dstrd}"),
            Err(e) => assert!(!reads && e.errno() == libc::EOPNOTSUPP, "{dstrd}: {e}"),
        }
        let driven = NvmeMedia::start(controller.clone(), patient()).map(drop);
        assert_eq!(errno(driven), libc::EOPNOTSUPP, "{dstrd}");
        assert_eq!((controller.mapped(), controller.violations().len()), (0, 0), "{dstrd}");
    }
}
