//! The simulated flash device: what is durable when, tearing, lies, barriers, faults, enumeration of crashes.

use media::flash::{Change, Config, DISCARDED, Event, Failure, Fault, Lies, Order, POISON};
use media::{Arena, ArenaId, BufRef, Completion, Flags, Media, MediaError, Op, Request, SimFlash, Wait};
use std::collections::HashSet;
use std::sync::Arc;

const SIZE: u64 = 1 << 20;

struct Rig {
    flash: SimFlash,
    arena: Arc<Arena>,
    id: ArenaId,
}

impl Rig {
    fn new(config: Config) -> Rig {
        Rig::on(SimFlash::new(config).unwrap())
    }

    fn on(flash: SimFlash) -> Rig {
        let arena = Arc::new(Arena::new(1 << 20).unwrap());
        let id = flash.register(arena.clone()).unwrap();
        Rig { flash, arena, id }
    }

    /// Queues a write of `sectors` sectors of `byte`, from memory of its own (the place on the device says which).
    fn submit(&self, offset: u64, sectors: u32, byte: u8, flags: Flags) {
        let len = sectors * 512;
        self.arena.copy_in(offset, &vec![byte; len as usize]);
        let buf = BufRef { arena: self.id, offset, len };
        self.flash.submit(Request { flags, ..Request::transfer(Op::Write, offset, buf, byte as u64) });
        self.flash.kick();
    }

    fn reap(&self) -> Vec<Completion> {
        let mut done = Vec::new();
        self.flash.reap(&mut done, Wait::For(None));
        done
    }

    fn reap_all(&self) -> Vec<Completion> {
        let mut all = Vec::new();
        loop {
            let more = self.reap();
            if more.is_empty() {
                return all;
            }
            all.extend(more);
        }
    }

    fn write(&self, offset: u64, sectors: u32, byte: u8) {
        self.submit(offset, sectors, byte, Flags::NONE);
        self.reap_all().into_iter().for_each(|c| c.result.unwrap());
    }

    fn flush(&self) {
        self.flash.submit(Request::flush(0));
        self.flash.kick();
        self.reap_all().into_iter().for_each(|c| c.result.unwrap());
    }
}

/// First byte of each of `n` sectors at the beginning.
fn sectors(flash: &SimFlash, n: usize) -> Vec<u8> {
    let mut all = vec![0; n * 512];
    flash.peek(0, &mut all);
    for sector in all.chunks(512) {
        assert!(sector.iter().all(|b| *b == sector[0]), "torn within a sector");
    }
    all.iter().step_by(512).copied().collect()
}

fn lost(flash: &SimFlash) -> SimFlash {
    flash.crash_image(|_, _| false)
}

#[test]
fn flush_covers_what_completed_before_it() {
    let rig = Rig::new(Config::new(SIZE));
    rig.write(0, 1, 1);
    assert_eq!(sectors(&rig.flash, 1), [1]);
    assert_eq!(sectors(&lost(&rig.flash), 1), [0]);
    // In flight when the flush is submitted: not covered, though it completes before the flush.
    rig.submit(512, 1, 2, Flags::NONE);
    rig.flush();
    assert_eq!(sectors(&rig.flash, 2), [1, 2]);
    assert_eq!(sectors(&lost(&rig.flash), 2), [1, 0]);
    assert_eq!(rig.flash.pending().len(), 1);
    rig.flush();
    assert_eq!(sectors(&lost(&rig.flash), 2), [1, 2]);
    assert!(rig.flash.pending().is_empty());
}

#[test]
fn without_a_cache_completed_is_durable() {
    let rig = Rig::new(Config { volatile_cache: false, ..Config::new(SIZE) });
    rig.submit(0, 1, 1, Flags::NONE);
    assert_eq!(sectors(&lost(&rig.flash), 1), [0]);
    assert_eq!(sectors(&rig.flash.crash_image(|_, _| true), 1), [1]);
    rig.reap_all();
    assert_eq!(sectors(&lost(&rig.flash), 1), [1]);
    assert!(rig.flash.pending().is_empty());
    // Of a write that failed nobody knows; the next one is there.
    rig.flash.inject(Fault::nth(Some(Op::Write), 1));
    rig.submit(0, 1, 2, Flags::NONE);
    assert!(rig.reap_all().pop().unwrap().result.is_err());
    assert_eq!(sectors(&rig.flash, 1), [1]);
    assert_eq!(sectors(&rig.flash.crash_image(|_, _| true), 1), [2]);
    rig.write(0, 1, 3);
    for all in [false, true] {
        assert_eq!(sectors(&rig.flash.crash_image(|_, _| all), 1), [3]);
    }
    rig.flush();
    assert!(rig.flash.pending().is_empty());
}

#[test]
fn fua_is_durable_and_not_undone_by_older_writes() {
    let rig = Rig::new(Config::new(SIZE));
    rig.write(0, 8, 1);
    rig.submit(512, 1, 2, Flags::FUA);
    rig.reap_all();
    assert_eq!(sectors(&lost(&rig.flash), 3), [0, 2, 0]);
    assert_eq!(sectors(&rig.flash.crash_image(|_, _| true), 3), [1, 2, 1]);
    assert_eq!(rig.flash.pending().len(), 1);
    rig.write(512, 1, 3);
    assert_eq!(sectors(&rig.flash.crash_image(|w, _| w.token == 3), 3), [0, 3, 0]);
    rig.flush();
    assert_eq!(sectors(&lost(&rig.flash), 3), [1, 3, 1]);
}

#[test]
fn tears_at_the_atomic_unit() {
    let rig = Rig::new(Config::new(SIZE));
    rig.write(0, 16, 1);
    let pending = rig.flash.pending();
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0].units(), 2);
    let image = rig.flash.crash_image(|_, unit| unit == 1);
    assert_eq!(sectors(&image, 16), [[0; 8], [1; 8]].concat());
    // A write that covers units in part tears there at every sector.
    rig.flush();
    rig.write(3 * 512, 16, 2);
    let write = &rig.flash.pending()[0];
    assert_eq!(write.units(), 5 + 1 + 3);
    let ranges: Vec<_> = (0..write.units()).map(|u| write.unit(u)).collect();
    assert_eq!(ranges[0], 1536..2048);
    assert_eq!(ranges[5], 4096..8192);
    assert_eq!(ranges[8], 9216..9728);
    assert!(ranges.windows(2).all(|w| w[0].end == w[1].start));
    // With units of a sector.
    let rig = Rig::new(Config { atomic_unit: 512, ..Config::new(SIZE) });
    rig.write(0, 8, 1);
    assert_eq!(rig.flash.pending()[0].units(), 8);
    assert_eq!(sectors(&rig.flash.crash_image(|_, u| u % 2 == 0), 8), [1, 0, 1, 0, 1, 0, 1, 0]);
}

#[test]
fn enumerates_every_subset() {
    let rig = Rig::new(Config { atomic_unit: 512, ..Config::new(SIZE) });
    rig.write(0, 2, 1);
    rig.write(512, 2, 2);
    let state = rig.flash.crash_state();
    let units: u32 = state.pending().map(|w| w.units()).sum();
    assert_eq!(units, 4);
    let images: HashSet<Vec<u8>> = (0..1 << units)
        .map(|mask: u32| {
            let mut n = 0;
            let image = state.crash_image(|_, _| {
                n += 1;
                mask >> (n - 1) & 1 == 1
            });
            assert_eq!(n, units);
            sectors(&image, 3)
        })
        .collect();
    // Sector 0 is 0 or 1, sector 1 is 0, 1 or 2, sector 2 is 0 or 2.
    assert_eq!(images.len(), 2 * 3 * 2);
    // The device itself goes on unharmed, and so does an image.
    assert_eq!(sectors(&rig.flash, 3), [1, 2, 2]);
    let after = Rig::on(state.crash_image(|_, _| true));
    after.write(0, 1, 9);
    assert_eq!(sectors(&after.flash, 3), [9, 2, 2]);
    assert_eq!(sectors(&rig.flash, 3), [1, 2, 2]);
}

#[test]
fn liars_lose_what_was_flushed() {
    for lies in [Lies { flush: true, ..Lies::default() }, Lies { fua: true, ..Lies::default() }] {
        let rig = Rig::new(Config { lies, ..Config::new(SIZE) });
        rig.submit(0, 1, 1, Flags::FUA);
        rig.reap_all();
        rig.write(512, 1, 2);
        rig.flush();
        let expected = if lies.flush { [1, 0] } else { [1, 2] };
        assert_eq!(sectors(&lost(&rig.flash), 2), expected);
    }
    // FUA ignored, no flush.
    let rig = Rig::new(Config { lies: Lies { fua: true, ..Lies::default() }, ..Config::new(SIZE) });
    rig.submit(0, 1, 1, Flags::FUA);
    rig.reap_all();
    assert_eq!(sectors(&lost(&rig.flash), 1), [0]);
}

#[test]
fn barriers_keep_epochs_in_order() {
    let config = Config { barrier: true, order: Order::Shuffled { batch: 2 }, ..Config::new(SIZE) };
    for seed in 0..50 {
        let rig = Rig::new(Config { seed, ..config.clone() });
        rig.submit(0, 1, 1, Flags::NONE);
        rig.submit(512, 1, 2, Flags::BARRIER);
        rig.submit(1024, 1, 3, Flags::NONE);
        rig.submit(1536, 1, 4, Flags::FUA);
        let epochs: Vec<_> = rig.flash.pending().iter().map(|w| w.epoch).collect();
        assert_eq!(epochs, [0, 0, 1, 1]);
        let without = |token: u64| sectors(&rig.flash.crash_image(|w, _| w.token != token), 4);
        assert_eq!(without(1), [0, 2, 0, 0]);
        assert_eq!(without(2), [1, 0, 0, 0]);
        assert_eq!(without(3), [1, 2, 0, 4]);
        let order: Vec<_> = rig.reap_all().iter().map(|c| c.token).collect();
        assert!(order[..2].contains(&1) && order[..2].contains(&2), "{order:?}");
        // The durable write of epoch 1 carries all of epoch 0 with it.
        let kept = sectors(&lost(&rig.flash), 4);
        assert_eq!(kept, [1, 2, 0, 4]);
    }
    let liar = Rig::new(Config { lies: Lies { barrier: true, ..Lies::default() }, ..config });
    liar.submit(0, 1, 1, Flags::BARRIER);
    liar.submit(512, 1, 2, Flags::NONE);
    assert_eq!(sectors(&liar.flash.crash_image(|w, _| w.token == 2), 2), [0, 2]);
}

#[test]
fn completes_in_any_order_but_the_same_for_a_seed() {
    let run = |seed| {
        let order = Order::Shuffled { batch: 4 };
        let rig = Rig::new(Config { order, seed, ..Config::new(SIZE) });
        (0..32u8).for_each(|n| rig.submit(n as u64 * 512, 1, n, Flags::NONE));
        let first = rig.reap();
        assert!((1..=4).contains(&first.len()));
        first.into_iter().chain(rig.reap_all()).map(|c| c.token).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert_ne!(run(1), (0..32).collect::<Vec<_>>());
    assert_eq!(run(1).iter().collect::<HashSet<_>>().len(), 32);
}

#[test]
fn nothing_happens_before_the_kick() {
    let rig = Rig::new(Config::new(SIZE));
    rig.flash.submit(Request::flush(1));
    assert!(rig.reap().is_empty());
    rig.flash.kick();
    assert_eq!(rig.reap().len(), 1);
    assert!(rig.reap().is_empty());
}

#[test]
fn discarded_ranges_are_garbage() {
    let rig = Rig::new(Config::new(8 << 40));
    rig.write(0, 2, 1);
    rig.flush();
    rig.flash.submit(Request::range(Op::Discard, 512, (8 << 40) - 512, 1));
    rig.flash.kick();
    rig.reap_all();
    assert_eq!(sectors(&rig.flash, 3), [1, DISCARDED, DISCARDED]);
    assert_eq!(sectors(&lost(&rig.flash), 3), [1, 1, 0]);
    let pending = rig.flash.pending();
    assert_eq!(pending[0].change, Change::Discard);
    assert!(pending[0].units() <= 65);
    let last = pending[0].unit(pending[0].units() - 1);
    assert_eq!(last.end, 8 << 40);
    rig.flash.submit(Request::range(Op::WriteZeroes, 512, 512, 1));
    rig.flash.kick();
    rig.reap_all();
    rig.flush();
    assert_eq!(sectors(&lost(&rig.flash), 3), [1, 0, DISCARDED]);
}

#[test]
fn catches_memory_used_too_early() {
    let rig = Rig::new(Config::new(SIZE));
    rig.submit(0, 1, 1, Flags::NONE);
    rig.arena.copy_in(0, &[2]);
    assert!(matches!(rig.reap()[0].result, Err(MediaError::Refused { .. })));
    let buf = BufRef { arena: rig.id, offset: 0, len: 512 };
    rig.flash.submit(Request::transfer(Op::Read, 0, buf, 1));
    rig.flash.kick();
    let mut byte = [0];
    rig.arena.copy_out(0, &mut byte);
    assert_eq!(byte, [POISON]);
    rig.reap_all();
    rig.arena.copy_out(0, &mut byte);
    assert_eq!(byte, [0]);
}

#[test]
fn faults() {
    let rig = Rig::new(Config::new(SIZE));
    let write = |sector: u64, byte| {
        rig.submit(sector * 512, 2, byte, Flags::NONE);
        rig.reap_all().pop().unwrap().result
    };
    rig.flash.inject(Fault::nth(Some(Op::Write), 2));
    rig.flash.inject(Fault::nth(Some(Op::Flush), 1));
    write(0, 1).unwrap();
    assert_eq!(write(0, 2).unwrap_err().errno(), libc::EIO);
    write(4, 3).unwrap();
    assert_eq!(sectors(&rig.flash, 6), [1, 1, 0, 0, 3, 3]);
    // The failed write may be there after a crash, until a flush.
    assert_eq!(sectors(&rig.flash.crash_image(|w, _| w.token == 2), 2), [2, 2]);
    rig.flash.submit(Request::flush(9));
    rig.flash.kick();
    assert!(matches!(rig.reap()[0].result, Err(MediaError::Io { op: "flush", .. })));
    assert_eq!(sectors(&lost(&rig.flash), 1), [0]);
    rig.flush();
    assert_eq!(sectors(&rig.flash.crash_image(|_, _| true), 1), [1]);

    rig.flash.inject(Fault { failure: Failure::Short(700), ..Fault::nth(Some(Op::Write), 1) });
    assert!(matches!(write(0, 4), Err(MediaError::Short { moved: 512, asked: 1024, .. })));
    assert_eq!(sectors(&rig.flash, 2), [4, 1]);

    rig.flash.inject(Fault::bad_range(None, 512..1024));
    assert!(write(0, 5).is_err() && write(1, 5).is_err() && write(2, 6).is_ok() && write(0, 5).is_err());
    rig.flash.clear_faults();
    write(0, 7).unwrap();

    rig.flash.inject(Fault { failure: Failure::Gone, ..Fault::nth(None, 2) });
    rig.submit(0, 1, 8, Flags::NONE);
    rig.submit(512, 1, 9, Flags::NONE);
    let done = rig.reap_all();
    assert!(done.iter().all(|c| matches!(c.result, Err(MediaError::Gone { .. }))) && done.len() == 2);
    assert!(write(0, 1).is_err());
    // What was in flight when it went may have arrived.
    assert_eq!(sectors(&rig.flash.crash_image(|_, _| true), 1), [8]);
    rig.flash.clear_faults();
    write(0, 1).unwrap();
}

#[test]
fn trace_replays_every_moment() {
    let order = Order::Shuffled { batch: 3 };
    let rig = Rig::new(Config { order, seed: 3, ..Config::new(SIZE) });
    rig.write(0, 1, 99);
    rig.flash.set_trace(true);
    for n in 0..100u8 {
        rig.submit(n as u64 % 16 * 512, 1, n, if n % 7 == 0 { Flags::FUA } else { Flags::NONE });
        rig.reap();
        if n % 10 == 9 {
            rig.flush();
            rig.flash.mark(n as u64);
        }
    }
    rig.reap_all();
    let end = rig.flash.crash_state();
    let trace = rig.flash.take_trace().unwrap();
    assert!(rig.flash.take_trace().is_none());
    let marks = trace.events().iter().filter(|e| matches!(e, Event::Mark(_))).count();
    assert_eq!(marks, 10);
    // Walking and jumping meet in the same states.
    let same = |a: &media::flash::CrashState, b: &media::flash::CrashState| {
        assert!(a.pending().map(|w| (w.id, w.completed)).eq(b.pending().map(|w| (w.id, w.completed))));
        for all in [false, true] {
            let image = |s: &media::flash::CrashState| sectors(&s.crash_image(|_, _| all), 16);
            assert_eq!(image(a), image(b));
        }
    };
    let mut cursor = trace.cursor();
    loop {
        same(cursor.state(), &trace.state_at(cursor.index()));
        if cursor.step().is_none() {
            break;
        }
    }
    assert_eq!(cursor.index(), trace.events().len());
    same(cursor.state(), &end);
}

/// After any flush whose completion was seen, what was seen to be written before it is there, whatever else is lost.
#[test]
fn thousands_of_crashes_are_cheap() {
    let order = Order::Shuffled { batch: 4 };
    let rig = Rig::new(Config { order, seed: 11, ..Config::new(64 << 20) });
    rig.flash.set_trace(true);
    for round in 1..=40u8 {
        for n in 0..16 {
            rig.submit(n * 8192, 8, round, Flags::NONE);
        }
        rig.reap_all();
        rig.flush();
        rig.flash.mark(round as u64);
    }
    let trace = rig.flash.take_trace().unwrap();
    let (mut cursor, mut acknowledged, mut images) = (trace.cursor(), 0, 0);
    while let Some(event) = cursor.step() {
        if let Event::Mark(round) = event {
            acknowledged = *round as u8;
        }
        for mask in 0..4u64 {
            let image =
                cursor.state().crash_image(|w, unit| (w.id >> (mask / 2) ^ unit as u64 ^ mask) & 1 == 0);
            let mut back = [0; 4096];
            for n in 0..16 {
                image.peek(n * 8192, &mut back);
                assert!(back[0] == acknowledged || back[0] == acknowledged + 1);
                assert!(back.iter().all(|b| *b == back[0]), "torn within an atomic unit");
            }
            images += 1;
        }
    }
    assert!(images > 5000);
}

#[test]
fn counts() {
    let rig = Rig::new(Config::new(SIZE));
    let before = rig.flash.counters();
    rig.write(0, 2, 1);
    rig.flush();
    rig.flash.submit(Request::range(Op::Discard, 0, 4096, 1));
    rig.flash.submit(Request::range(Op::Discard, 0, 4095, 1));
    let n = rig.flash.counters().since(&before);
    assert_eq!((n.writes, n.bytes_written, n.flushes, n.discards, n.bytes_discarded), (1, 1024, 1, 1, 4096));
    assert_eq!((n.reads, n.kicks), (0, 2));
}

#[test]
fn nonsense_is_refused() {
    for config in [
        Config { sector: 500, ..Config::new(SIZE) },
        Config { atomic_unit: 256, ..Config::new(SIZE) },
        Config { bytes: 1000, ..Config::new(SIZE) },
        Config { bytes: u64::MAX / 512 * 512, ..Config::new(SIZE) },
    ] {
        assert_eq!(SimFlash::new(config).err().unwrap().errno(), libc::EINVAL);
    }
}
