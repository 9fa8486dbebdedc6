//! The simulated NVMe device: rates that were published, nothing lost, the same figures each time; and what separation is worth on it.

use sched::queues::Direction::{self, Read, Write};
use sched::queues::Mode;
use sim::timed::clock::Random;
use sim::timed::nvme::{Command, Nvme, Profile};
use sim::timed::separation::{Outcome, Stream, run, stream};
use std::collections::BTreeSet;

fn both(streams: &[Stream], depth: u64) -> [Outcome; 2] {
    [Mode::RoundRobin, Mode::Automatic].map(|mode| run(&Profile::sn260(), 8, mode, streams, depth, 3))
}

#[test]
fn rates_as_published() {
    for (published, s) in [
        (6400.0, stream(Read, 64, false, 20_000)),
        (2291.0, stream(Write, 64, false, 20_000)),
        (508_928.0 * 0.004096, stream(Read, 4, true, 40_000)),
        (500_736.0 * 0.004096, stream(Write, 4, true, 200_000)),
    ] {
        let rate = run(&Profile::sn260(), 8, Mode::RoundRobin, &[s], 32, 1).rate;
        assert!((0.85..1.15).contains(&(rate / published)), "{s:?}: {rate} instead of {published}");
    }
}

#[test]
fn what_is_submitted_comes_back_once() {
    let mut random = Random(7);
    let mut device = Nvme::new(Profile::sn260(), 3, 1);
    let (mut out, mut now) = (BTreeSet::new(), 0);
    for id in 0..20_000 {
        let direction: Direction = if random.below(2) == 0 { Read } else { Write };
        let (unit, units) = (random.below(1 << 30), 1 + random.below(64) as u32);
        device.submit(now, random.below(3) as usize, Command { id, direction, unit, units });
        assert!(out.insert(id));
        while out.len() > 200 {
            now = device.next_time().expect("something is under way");
            device.advance(now).iter().for_each(|id| assert!(out.remove(id)));
        }
    }
    while let Some(next) = device.next_time() {
        device.advance(next).iter().for_each(|id| assert!(out.remove(id)));
    }
    assert!(out.is_empty());
}

#[test]
fn the_same_each_time() {
    let streams = [stream(Read, 4, true, 5000), stream(Write, 64, false, 500)];
    let [a, b] = [(); 2].map(|()| run(&Profile::sn260(), 4, Mode::Separated, &streams, 32, 5));
    assert_eq!((a.rate.to_bits(), a.latency), (b.rate.to_bits(), b.latency));
}

#[test]
fn separation_gains_where_writes_wait_for_room_and_never_costs_much() {
    let n = 60_000;
    let mixed = [stream(Read, 4, true, n), stream(Write, 4, true, n)];
    let [off, automatic] = both(&mixed, 256);
    assert!(automatic.rate > off.rate * 1.2, "{automatic:?} {off:?}");
    let loads = [
        vec![stream(Read, 64, true, n / 4), stream(Write, 64, true, n / 4)],
        vec![stream(Read, 4, true, n), stream(Read, 64, false, n / 10)],
        vec![stream(Write, 4, true, n), stream(Write, 64, false, n / 10)],
    ];
    for streams in loads {
        for depth in [16, 256] {
            let [off, automatic] = both(&streams, depth);
            assert!(automatic.rate > off.rate * 0.95, "{depth} {streams:?}: {automatic:?} {off:?}");
        }
    }
}
