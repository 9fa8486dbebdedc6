//! Requests that go on where each other end, and are one command.

use crate::rig::*;
use format::nvme::Status;
use format::nvme::queue::nvm;
use media::nvme::fake::{Config, Failure, Fault};
use media::{Flags, Op, Request};

/// Submits writes of a page each, one behind the other from the start of the device, from as many pages of memory.
fn submit_pages(rig: &Rig, pages: u64) {
    for n in 0..pages {
        rig.arena.copy_in(n * 8192, &[n as u8 + 1; 4096]);
        rig.media.submit_to(0, Request::transfer(Op::Write, n * 4096, rig.buf(n * 8192, 4096), n));
    }
}

fn results(rig: &Rig, pages: u64) -> Vec<Result<(), i32>> {
    let done = rig.finish(pages as usize);
    assert_eq!(done.iter().map(|c| c.token).collect::<Vec<_>>(), (0..pages).collect::<Vec<_>>());
    done.into_iter().map(|c| c.result.map_err(|e| e.errno())).collect()
}

fn check_pages(rig: &Rig, pages: u64) {
    for n in 0..pages {
        assert_eq!(rig.read(n * 4096).unwrap(), n as u8 + 1);
    }
}

#[test]
fn neighbours_are_one_command() {
    let rig = Rig::new(Config::new(SIZE), patient());
    submit_pages(&rig, 8);
    assert_eq!(results(&rig, 8), [Ok(()); 8]);
    assert_eq!(rig.controller.commands(nvm::WRITE), 1);
    check_pages(&rig, 8);
    // Durable and not, and not quite behind each other.
    let two = |flags, gap: u64| {
        let before = rig.controller.commands(nvm::WRITE);
        rig.media.submit_to(0, Request::transfer(Op::Write, 0, rig.buf(0, 4096), 0));
        let second = Request::transfer(Op::Write, 4096 + gap, rig.buf(8192, 4096), 1);
        rig.media.submit_to(0, Request { flags, ..second });
        assert_eq!(results(&rig, 2), [Ok(()); 2]);
        rig.controller.commands(nvm::WRITE) - before
    };
    assert_eq!([two(Flags::NONE, 0), two(Flags::FUA, 0), two(Flags::NONE, 512)], [1, 2, 2]);
    rig.end();
    // Two pages are the most that this one takes.
    let rig = Rig::new(Config { mdts: 1, ..Config::new(SIZE) }, patient());
    submit_pages(&rig, 8);
    assert_eq!(results(&rig, 8), [Ok(()); 8]);
    assert_eq!(rig.controller.commands(nvm::WRITE), 4);
    check_pages(&rig, 8);
    rig.end();
}

#[test]
fn one_bad_request_fails_alone() {
    let rig = Rig::new(Config::new(SIZE), patient());
    let fault = Failure::Status(Status::WRITE_FAULT.0 | Status::DO_NOT_RETRY);
    // The command of all fails, and of those that follow for each request the third.
    rig.controller.inject(Fault::next(Some(nvm::WRITE), fault));
    submit_pages(&rig, 5);
    assert_eq!(results(&rig, 5), [Ok(()); 5]);
    check_pages(&rig, 5);
    rig.controller.inject(Fault::next(Some(nvm::WRITE), fault));
    rig.controller.inject(Fault { after: 3, ..Fault::next(Some(nvm::WRITE), fault) });
    submit_pages(&rig, 5);
    let failed: Vec<bool> = results(&rig, 5).into_iter().map(|r| r == Err(libc::EIO)).collect();
    assert_eq!(failed.iter().filter(|&&f| f).count(), 1, "{failed:?}");
    rig.controller.inject(Fault { forever: true, ..Fault::next(Some(nvm::WRITE), fault) });
    submit_pages(&rig, 5);
    assert_eq!(results(&rig, 5), [Err(libc::EIO); 5]);
    rig.controller.clear_faults();
    submit_pages(&rig, 5);
    assert_eq!(results(&rig, 5), [Ok(()); 5]);
    check_pages(&rig, 5);
    rig.end();
}

#[test]
fn a_lost_command_loses_none_of_its_requests() {
    // Without a cache nothing is in doubt after a reset.
    let rig = Rig::new(Config { volatile_cache: false, ..Config::new(SIZE) }, impatient());
    submit_pages(&rig, 6);
    assert_eq!(results(&rig, 6), [Ok(()); 6]);
    for abortable in [true, false] {
        let lost = Failure::Lost { done: false, abortable };
        rig.controller.inject(Fault::next(Some(nvm::READ), lost));
        for n in 0..6 {
            rig.media.submit_to(0, Request::transfer(Op::Read, n * 4096, rig.buf(n * 4096, 4096), n));
        }
        assert_eq!(results(&rig, 6), [Ok(()); 6], "reads are made again");
        for n in 0..6 {
            let mut page = [0; 4096];
            rig.arena.copy_out(n * 4096, &mut page);
            assert_eq!(page, [n as u8 + 1; 4096]);
        }
        rig.controller.inject(Fault::next(Some(nvm::WRITE), lost));
        submit_pages(&rig, 6);
        assert_eq!(results(&rig, 6), [Err(libc::EIO); 6], "nobody knows whether they were made");
    }
    rig.end();
}

/// Runs of requests of random lengths whose memory is in random pieces, on controllers of many kinds; every byte is compared.
#[test]
fn random_neighbours() {
    for (seed, config) in kinds().into_iter().enumerate() {
        random_runs(config, seed as u64 + 1);
    }
}

fn random_runs(config: Config, seed: u64) {
    let sector = config.lba as u64;
    let rig = Rig::new(config, patient());
    let mut random = Random(seed);
    let mut model = vec![0u8; SIZE as usize];
    for round in 0..60 {
        let write = random.below(2) == 0;
        let (mut place, mut at, mut reads) = (random.below(SIZE / 2 / sector) * sector, 0u64, Vec::new());
        let mut count = 0;
        while count < 20 && random.below(20) > 0 {
            let mut bufs = Vec::new();
            for _ in 0..1 + random.below(3) {
                let unit = if random.below(2) == 0 { 4096 } else { sector };
                // Memory goes on where it ended, or does not.
                at = at.next_multiple_of(unit) + random.below(2) * unit;
                let len = (1 + random.below(5)) * unit;
                bufs.push(rig.buf(at, len as u32));
                at += len;
            }
            let len: u64 = bufs.iter().map(|b| b.len as u64).sum();
            let range = place as usize..(place + len) as usize;
            let op = if write { Op::Write } else { Op::Read };
            if write {
                let data: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
                let mut filled = 0;
                for buf in &bufs {
                    rig.arena.copy_in(buf.offset, &data[filled..filled + buf.len as usize]);
                    filled += buf.len as usize;
                }
                model[range].copy_from_slice(&data);
            } else {
                reads.push((range, bufs.clone()));
            }
            rig.media.submit_to(0, Request::vectored(op, place, bufs.into(), count));
            place += len + if random.below(6) == 0 { sector } else { 0 };
            count += 1;
        }
        assert_eq!(results(&rig, count), vec![Ok(()); count as usize]);
        for (range, bufs) in reads {
            assert!(rig.bytes(&bufs) == model[range.clone()], "seed {seed}, round {round}, {range:?}");
        }
    }
    let controller = rig.end();
    let mut all = vec![0; SIZE as usize];
    controller.peek(0, &mut all);
    assert!(all == model, "seed {seed}");
}
