//! The NVMe driver on a simulated controller that is within its rights, and on one that fails in every way it can.
//!
//! Checked throughout: every request ends once and in time, what is read is what was written, what was acknowledged is not lost,
//! the driver breaks no rule of the specification, and nothing stays mapped. What every medium does is checked in
//! tests/conformance.rs.

#[path = "nvme/faults.rs"]
mod faults;
#[path = "nvme/inspect.rs"]
mod inspect;
#[path = "nvme/joined.rs"]
mod joined;
#[path = "nvme/rig.rs"]
mod rig;

use format::nvme::queue::nvm;
use media::nvme::Options;
use media::nvme::fake::{Config, Failure, Fault};
use media::{Flags, Media, MediaError, Op, Request, Wait};
use rig::*;
use std::time::{Duration, Instant};

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
    for (seed, config) in kinds().into_iter().enumerate() {
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
            assert!(rig.bytes(&bufs) == model[range.clone()], "seed {seed}, round {round}, {range:?}");
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

/// Warnings of the health too, which a controller reports to those alone who have asked for them; also after a reset.
#[test]
fn events_are_heard_and_asked_for_again() {
    let rig = Rig::new(Config::new(SIZE), impatient());
    let start = Instant::now();
    let wait = || {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", rig.media.health());
        rig.media.reap(&mut Vec::new(), Wait::For(Some(Duration::from_millis(20))));
    };
    let mut heard = 0;
    for reset in [false, true] {
        if reset {
            rig.controller.inject(Fault::next(Some(nvm::READ), Failure::Fatal));
            assert_eq!(rig.read(0).unwrap(), 0);
            assert_eq!(rig.media.health().resets, 1);
        }
        // An error, and warnings of the three kinds.
        for event in [0x0001_0000, 0x0002_0001, 0x0002_0101, 0x0002_0201] {
            while !rig.controller.report(event) {
                wait();
            }
            heard += 1;
            while rig.media.health().events < heard {
                wait();
            }
        }
    }
    assert_eq!(rig.media.smart().unwrap().spare, 100);
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
