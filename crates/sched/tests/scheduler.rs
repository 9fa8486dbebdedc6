//! The scheduler's promises over all short histories and many long ones: epochs leave in order, each epoch that ends has one
//! flag and it is the last, nothing is lost, merging stays within an epoch, nobody starves.

use media::{Flags, Op};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sched::{Command, Config, Discipline, Refusal, Request, Scheduler, Sink, Turns, pump};
use std::collections::BTreeMap;

const BLOCK: u64 = 4096;

/// What is known of a submitted request.
#[derive(Clone, Debug)]
struct Submitted {
    op: Op,
    block: u64,
    epoch: Option<u64>,
}

/// A scheduler, and everything that went in and came out.
struct Rig {
    scheduler: Scheduler<usize>,
    submitted: Vec<Submitted>,
    left: Vec<Command<usize>>,
    ended: u64,
}

fn request(op: Op, block: u64, payload: usize) -> Request<usize> {
    let len = if op == Op::Flush { 0 } else { BLOCK };
    Request { op, flags: Flags::NONE, offset: block * BLOCK, len, segments: 1, payload }
}

impl Rig {
    fn new(config: Config) -> Rig {
        Rig { scheduler: Scheduler::new(config), submitted: Vec::new(), left: Vec::new(), ended: 0 }
    }

    /// Submits, unless the scheduler refuses for a reason that the model agrees with.
    fn submit(&mut self, op: Op, block: u64, ordered: bool) {
        let request = request(op, block, self.submitted.len());
        let taken = match ordered {
            true => self.scheduler.submit_ordered(request).map(Some),
            false => self.scheduler.submit(request).map(|()| None),
        };
        match taken {
            Ok(epoch) => self.submitted.push(Submitted { op, block, epoch }),
            Err(refused) if refused.why == Refusal::Overlap => {
                let epoch = ordered.then(|| self.scheduler.open_epoch());
                let gone: Vec<usize> = self.left.iter().flat_map(|c| c.parts.to_vec()).collect();
                let same = |(id, s): (usize, &Submitted)| {
                    !gone.contains(&id) && s.op == Op::Write && s.epoch == epoch && s.block == block
                };
                assert!(self.submitted.iter().enumerate().any(same), "refused without an overlap");
            }
            Err(refused) => {
                assert_eq!(refused.why, Refusal::Full);
                assert_eq!(self.scheduler.len(), self.scheduler.config().queued_max);
            }
        }
    }

    fn barrier(&mut self) {
        self.ended = self.scheduler.barrier();
    }

    fn leave(&mut self) {
        self.left.extend(self.scheduler.next_command());
    }

    /// Lets everything leave, and verifies the whole history.
    fn finish(&mut self) {
        while let Some(command) = self.scheduler.next_command() {
            self.left.push(command);
        }
        assert!(self.scheduler.is_empty());
        assert_eq!(self.scheduler.len(), 0);
        if let Err(why) = verify(&self.submitted, &self.left, self.ended) {
            panic!("{why}\nsubmitted: {:#?}\nleft: {:#?}", self.submitted, self.left);
        }
    }
}

/// Whether what left is right for what was submitted, when the epochs up to `ended` were closed.
fn verify(submitted: &[Submitted], left: &[Command<usize>], ended: u64) -> Result<(), String> {
    let mut seen = vec![0; submitted.len()];
    let mut flags: BTreeMap<u64, u32> = BTreeMap::new();
    let mut current = 0;
    for command in left {
        if command.op != Op::Flush
            && !command.is_delimiter()
            && command.len != BLOCK * command.parts.len() as u64
        {
            return Err("length is not that of the parts".into());
        }
        for (i, &id) in command.parts.iter().enumerate() {
            seen[id] += 1;
            let s = &submitted[id];
            if (s.op, s.epoch) != (command.op, command.epoch) {
                return Err(format!("request {id} left as another, or merged across epochs"));
            }
            if s.op != Op::Flush && s.block * BLOCK != command.offset + i as u64 * BLOCK {
                return Err(format!("request {id} left for another place"));
            }
        }
        let Some(epoch) = command.epoch else {
            if command.is_barrier() {
                return Err("a flag on an orderless request".into());
            }
            continue;
        };
        if epoch < current || flags.contains_key(&epoch) {
            return Err(format!("epoch {epoch} after {current}, or behind its own flag"));
        }
        let begun =
            submitted.iter().filter_map(|s| s.epoch).filter(|e| *e < epoch).all(|e| flags.contains_key(&e));
        if !begun {
            return Err(format!("epoch {epoch} began before the flags of those before it"));
        }
        current = epoch;
        if command.is_barrier() {
            *flags.entry(epoch).or_default() += 1;
        } else if command.is_delimiter() {
            return Err("a delimiter without the flag".into());
        }
    }
    if let Some(id) = seen.iter().position(|n| *n != 1) {
        return Err(format!("request {id} left {} times", seen[id]));
    }
    for epoch in submitted.iter().filter_map(|s| s.epoch) {
        let expected = if epoch <= ended { Some(&1) } else { None };
        if flags.get(&epoch) != expected {
            return Err(format!("epoch {epoch}: {:?} flags instead of {expected:?}", flags.get(&epoch)));
        }
    }
    Ok(())
}

fn configs() -> Vec<Config> {
    let mut all = Vec::new();
    for discipline in [Discipline::Arrival, Discipline::Ascending] {
        for (len_max, turns) in [(u64::MAX, 1), (BLOCK, 3), (2 * BLOCK, 2)] {
            let turns = Turns { immediate: turns, ordered: turns, orderless: turns };
            all.push(Config { discipline, len_max, turns, patience: 3, queued_max: 64, ..Config::default() });
        }
    }
    all
}

fn act(rig: &mut Rig, what: u32) {
    match what {
        0 => rig.submit(Op::Write, 1, true),
        1 => rig.submit(Op::Write, 2, true),
        2 => rig.submit(Op::Write, 0, true),
        3 => rig.barrier(),
        4 => rig.leave(),
        5 => rig.submit(Op::Write, 2, false),
        _ => rig.submit(Op::Read, 1, false),
    }
}

#[test]
fn all_short_histories_keep_the_promises() {
    const LENGTH: u32 = 6;
    let mut histories = 0;
    for config in configs() {
        for number in 0..7u32.pow(LENGTH) {
            let mut rig = Rig::new(config.clone());
            let mut rest = number;
            for _ in 0..LENGTH {
                act(&mut rig, rest % 7);
                rest /= 7;
            }
            rig.finish();
            histories += 1;
        }
    }
    assert_eq!(histories, 6 * 117_649);
}

#[test]
fn long_random_histories_keep_the_promises() {
    for seed in 0..400 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut config = configs()[seed as usize % 6].clone();
        config.queued_max = random.random_range(1..40);
        let mut rig = Rig::new(config);
        for _ in 0..300 {
            let block = random.random_range(0..24);
            match random.random_range(0..12) {
                0..4 => rig.submit(Op::Write, block, true),
                4 => rig.submit(Op::Write, block, false),
                5 => rig.submit(Op::Read, block, false),
                6 => rig.submit(Op::Flush, 0, false),
                7 | 8 => rig.barrier(),
                _ => rig.leave(),
            }
        }
        rig.finish();
        let c = rig.scheduler.counters();
        assert_eq!(c.submitted, rig.submitted.len() as u64);
        assert_eq!(c.dispatched, rig.left.len() as u64);
        assert_eq!(c.dispatched + c.merged, c.submitted + c.delimiters, "seed {seed}");
        assert_eq!(c.barriers, rig.left.iter().filter(|c| c.is_barrier()).count() as u64);
    }
}

#[test]
fn the_check_notices_what_is_wrong() {
    let mut rig = Rig::new(configs()[1].clone());
    for block in [1, 5, 9] {
        rig.submit(Op::Write, block, true);
        rig.submit(Op::Write, block + 20, true);
        rig.barrier();
    }
    rig.finish();
    let check = |change: &dyn Fn(&mut Vec<Command<usize>>)| {
        let mut left = rig.left.clone();
        change(&mut left);
        verify(&rig.submitted, &left, rig.ended)
    };
    assert!(check(&|_| {}).is_ok());
    assert!(check(&|left| left.swap(1, 2)).is_err(), "epochs mixed");
    assert!(check(&|left| left.swap(0, 1)).is_err(), "the flag is not last");
    assert!(check(&|left| left[1].flags = Flags::NONE).is_err(), "no flag");
    assert!(check(&|left| left[0].flags = Flags::BARRIER).is_err(), "two flags");
    assert!(check(&|left| drop(left.pop())).is_err(), "lost");
    assert!(check(&|left| left.push(left[5].clone())).is_err(), "doubled");
}

#[test]
fn the_flag_goes_to_the_last_that_leaves() {
    let mut rig = Rig::new(Config::default());
    for block in [30, 10, 20] {
        rig.submit(Op::Write, block, true);
    }
    rig.barrier();
    rig.finish();
    let left: Vec<_> = rig.left.iter().map(|c| (c.offset / BLOCK, c.is_barrier())).collect();
    assert_eq!(left, [(10, false), (20, false), (30, true)], "the barrier came with 20, 30 leaves last");
}

#[test]
fn orderless_requests_cross_epochs_both_ways() {
    let mut rig =
        Rig::new(Config { turns: Turns { immediate: 1, ordered: 1, orderless: 1 }, ..Config::default() });
    rig.submit(Op::Write, 1, true);
    rig.submit(Op::Write, 3, true);
    rig.barrier();
    rig.submit(Op::Write, 5, true);
    rig.barrier();
    rig.submit(Op::Write, 7, false);
    rig.submit(Op::Read, 9, false);
    rig.finish();
    let left: Vec<_> = rig.left.iter().map(|c| c.offset / BLOCK).collect();
    assert_eq!(left, [9, 1, 7, 3, 5], "the read and the orderless write came last");
}

#[test]
fn a_barrier_with_nothing_queued_still_ends_the_epoch() {
    let mut rig = Rig::new(Config::default());
    assert_eq!(rig.scheduler.barrier(), 0, "there is nothing to end");
    assert!(rig.scheduler.is_empty());
    rig.submit(Op::Write, 1, true);
    rig.leave();
    assert!(!rig.left[0].is_barrier());
    assert_eq!(rig.scheduler.barrier(), 1);
    assert_eq!(rig.scheduler.barrier(), 1, "epoch 2 is empty");
    assert!(!rig.scheduler.is_empty(), "a delimiter is due");
    rig.submit(Op::Write, 1, true);
    rig.ended = 1;
    rig.finish();
    assert!(rig.left[1].is_delimiter() && rig.left[1].is_barrier());
    assert_eq!((rig.left[2].epoch, rig.left.len()), (Some(2), 3));
}

#[test]
fn adjacent_requests_merge_within_an_epoch_only() {
    let mut rig = Rig::new(Config::default());
    for block in [4, 6, 5] {
        rig.submit(Op::Write, block, true);
    }
    rig.barrier();
    rig.submit(Op::Write, 7, true);
    rig.submit(Op::Write, 8, false);
    rig.finish();
    let left: Vec<_> = rig.left.iter().map(|c| (c.epoch, c.offset / BLOCK, c.parts.to_vec())).collect();
    assert_eq!(left, [(Some(1), 4, vec![0, 2, 1]), (Some(2), 7, vec![3]), (None, 8, vec![4])]);

    let mut rig = Rig::new(Config { len_max: 2 * BLOCK, ..Config::default() });
    (0..5).for_each(|block| rig.submit(Op::Write, block, false));
    rig.finish();
    assert_eq!(rig.left.iter().map(|c| c.parts.len()).collect::<Vec<_>>(), [2, 2, 1]);
}

#[test]
fn nobody_starves() {
    let turns = Turns { immediate: 4, ordered: 4, orderless: 2 };
    let mut rig = Rig::new(Config { turns, queued_max: 1000, ..Config::default() });
    // A flood of ordered writes and of reads, kept up while a read and an orderless write wait.
    for block in 0..100 {
        rig.submit(Op::Write, 2 * block, true);
        rig.submit(Op::Read, 1000 + block, false);
    }
    let (read, write) = (rig.submitted.len(), rig.submitted.len() + 1);
    rig.submit(Op::Read, 5000, false);
    rig.submit(Op::Write, 6000, false);
    for block in 0..400 {
        rig.submit(Op::Write, 500 + 2 * block, true);
        rig.leave();
    }
    let at = |id| rig.left.iter().position(|c| c.parts.contains(&id)).expect("it has left");
    assert!(at(write) <= 8, "an orderless write waited for {}", at(write));
    // 100 reads are ahead of it; behind every 4 of them leave at most 4 + 2 others.
    assert!(at(read) <= 100 + 100 / 4 * 6, "a read waited for {}", at(read));
}

#[test]
fn an_old_request_is_not_passed_for_ever() {
    let config = Config { patience: 5, queued_max: 1000, len_max: BLOCK, ..Config::default() };
    let mut rig = Rig::new(config);
    rig.submit(Op::Write, 500, true);
    rig.leave();
    rig.submit(Op::Write, 1, true);
    for block in 501..600 {
        rig.submit(Op::Write, block, true);
        rig.leave();
    }
    let at = rig.left.iter().position(|c| c.offset == BLOCK).expect("it has left");
    assert_eq!(at, 1 + 5, "five younger ones ahead of the elevator leave first");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut s: Scheduler<usize> = Scheduler::new(Config { queued_max: 1, ..Config::default() });
    let mut flagged = request(Op::Write, 0, 0);
    flagged.flags = Flags::BARRIER;
    assert_eq!(s.submit_ordered(flagged).unwrap_err().why, Refusal::Malformed);
    assert_eq!(s.submit(Request { len: 0, ..request(Op::Write, 0, 0) }).unwrap_err().why, Refusal::Malformed);
    assert_eq!(
        s.submit(Request { len: u64::MAX, ..request(Op::Write, 1, 0) }).unwrap_err().why,
        Refusal::Malformed
    );
    assert_eq!(s.submit_ordered(request(Op::Read, 0, 0)).unwrap_err().why, Refusal::NotOrderable);
    s.submit(request(Op::Flush, 0, 0)).unwrap();
    let refused = s.submit(request(Op::Read, 0, 7)).unwrap_err();
    assert_eq!((refused.why, refused.request.payload), (Refusal::Full, 7));
}

/// A sink with little room.
struct Narrow(Vec<Command<usize>>, usize);

impl Sink<usize> for Narrow {
    fn room(&self) -> bool {
        self.0.len() < self.1
    }
    fn dispatch(&mut self, command: Command<usize>) {
        assert!(self.room());
        self.0.push(command);
    }
}

#[test]
fn dispatch_stops_at_a_full_sink_and_goes_on() {
    let mut rig = Rig::new(Config::default());
    (0..5).for_each(|block| rig.submit(Op::Write, 2 * block, true));
    rig.barrier();
    let mut sink = Narrow(Vec::new(), 3);
    assert_eq!(pump(&mut rig.scheduler, &mut sink), 3);
    assert_eq!(pump(&mut rig.scheduler, &mut sink), 0);
    sink.1 = 9;
    assert_eq!(pump(&mut rig.scheduler, &mut sink), 2);
    rig.left = sink.0;
    rig.finish();
}

#[test]
fn what_is_drained_has_left() {
    let mut rig = Rig::new(Config::default());
    for block in [1, 5] {
        rig.submit(Op::Write, block, true);
        rig.barrier();
    }
    rig.submit(Op::Read, 3, false);
    assert_eq!(rig.scheduler.drain_ordered(), [0, 1]);
    assert_eq!(rig.scheduler.len(), 1);
    assert_eq!(rig.scheduler.next_command().map(|c| c.op), Some(Op::Read));
    assert!(rig.scheduler.is_empty());
}
