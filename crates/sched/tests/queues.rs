//! Separation of queues over a device that is as simple as can be: each queue is served in its order, by itself. There, a short read behind a long
//! write waits for it, and everything can be computed.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sched::queues::{Class, Config, Direction, Mode, Ns, Placed, Separation, size_class};
use std::collections::{BTreeSet, VecDeque};

/// Time that the device needs for a request.
fn time(direction: Direction, len: u64) -> Ns {
    match direction {
        Direction::Read => 10_000 + len / 4,
        Direction::Write => 40_000 + len,
    }
}

/// A request that is under way.
struct Sent {
    placed: Placed,
    direction: Direction,
    len: u64,
    at: Ns,
}

/// What became of many requests.
struct Outcome {
    /// Until the last one came back, from when a quarter had: then both ways have been tried.
    time: Ns,
    /// Mean time from out to back of small reads.
    small_reads: f64,
    separation: Separation,
}

/// `depth` requests under way all the time, drawn from `mix`.
fn run(config: Config, depth: usize, count: usize, mix: &[(Direction, u64)], seed: u64) -> Outcome {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut queues, mut free): (Vec<VecDeque<Sent>>, _) =
        ((0..config.queues).map(|_| VecDeque::new()).collect(), vec![0; config.queues]);
    let mut separation = Separation::new(config);
    // The head of each queue ends at its moment.
    let mut ends: BTreeSet<(Ns, usize)> = BTreeSet::new();
    let (mut sent, mut done, mut now) = (0, 0, 0);
    let (mut waited, mut reads, mut begun) = (0, 0, 0);
    while done < count {
        while sent < count && sent - done < depth {
            let (direction, len) = mix[random.random_range(0..mix.len())];
            let placed = separation.place(direction, len, now);
            let queue = placed.queue;
            queues[queue].push_back(Sent { placed, direction, len, at: now });
            if queues[queue].len() == 1 {
                free[queue] = now + time(direction, len);
                ends.insert((free[queue], queue));
            }
            sent += 1;
        }
        let (end, queue) = ends.pop_first().unwrap();
        now = end;
        let request = queues[queue].pop_front().unwrap();
        separation.done(request.placed, now);
        if request.direction == Direction::Read && request.len <= 4096 {
            (waited, reads) = (waited + now - request.at, reads + 1);
        }
        if let Some(next) = queues[queue].front() {
            ends.insert((now + time(next.direction, next.len), queue));
        }
        done += 1;
        if done == count / 4 {
            begun = now;
        }
    }
    assert!(separation.queued().iter().all(|&n| n == 0));
    Outcome { time: now - begun, small_reads: waited as f64 / f64::from(reads.max(1) as u32), separation }
}

const MIX: [(Direction, u64); 4] = [
    (Direction::Read, 4096),
    (Direction::Write, 4096),
    (Direction::Read, 64 << 10),
    (Direction::Write, 64 << 10),
];

fn config(queues: usize, mode: Mode) -> Config {
    Config { mode, ..Config::new(queues) }
}

#[test]
fn sizes() {
    let sizes = [0, 1, 4096, 4097, 8192, 64 << 10, 1 << 20, 1 << 30].map(size_class);
    assert_eq!(sizes, [0, 0, 0, 1, 1, 4, 8, 8]);
}

#[test]
fn each_class_gets_queues_and_short_reads_wait_less() {
    let mixed = run(config(8, Mode::RoundRobin), 64, 60_000, &MIX, 1);
    assert!(mixed.separation.classes().iter().all(Option::is_none) && !mixed.separation.is_separated());
    let separated = run(config(8, Mode::Separated), 64, 60_000, &MIX, 1);
    let classes = separated.separation.classes();
    for class in Class::ALL {
        assert!(classes.contains(&Some(class)), "{class:?} has none of {classes:?}");
    }
    let writes = classes.iter().filter(|&&c| c == Some(Class::LargeWrite)).count();
    assert!(writes > 2, "the longest have the most: {classes:?}");
    assert!(
        separated.small_reads < mixed.small_reads / 3.0,
        "{} {}",
        separated.small_reads,
        mixed.small_reads
    );
}

#[test]
fn one_class_has_all_queues_to_itself() {
    let all = run(config(4, Mode::Separated), 16, 20_000, &MIX[..1], 2);
    assert_eq!(all.separation.classes(), vec![Some(Class::SmallRead); 4]);
    let round = run(config(4, Mode::RoundRobin), 16, 20_000, &MIX[..1], 2);
    assert!(all.time as f64 <= round.time as f64 * 1.001);
    // What is measured is what the device needs.
    for queue in 0..4 {
        let service = all.separation.service(queue, Direction::Read, 4096).unwrap();
        assert_eq!(service.round() as Ns, time(Direction::Read, 4096));
    }
}

#[test]
fn the_number_of_queues_follows_the_load() {
    let mut separation = Separation::new(config(4, Mode::Separated));
    let mut now = 0;
    let mut some = |separation: &mut Separation, direction, count| {
        for _ in 0..count {
            let placed = separation.place(direction, 4096, now);
            now += time(direction, 4096);
            separation.done(placed, now);
        }
    };
    some(&mut separation, Direction::Read, 5000);
    assert_eq!(separation.classes(), vec![Some(Class::SmallRead); 4]);
    some(&mut separation, Direction::Write, 20_000);
    assert_eq!(
        separation.classes(),
        vec![Some(Class::SmallWrite); 4],
        "nothing is kept for what is no longer used"
    );
}

#[test]
fn automatic_is_never_much_slower() {
    for queues in [2, 4, 8] {
        for depth in [4, 64] {
            for mix in [&MIX[..], &MIX[..2], &MIX[2..], &[MIX[0], MIX[3]]] {
                let ways = [Mode::RoundRobin, Mode::Automatic];
                let [round, automatic] = ways.map(|mode| run(config(queues, mode), depth, 300_000, mix, 3));
                let slower = automatic.time as f64 / round.time as f64;
                assert!(slower < 1.02, "{queues} queues, depth {depth}, {mix:?}: {slower}");
            }
        }
    }
}

/// Whoever says that more came back than went out, or times that go backwards, gets no panic.
#[test]
fn nonsense_is_harmless() {
    let mut random = StdRng::seed_from_u64(9);
    let mut separation = Separation::new(config(3, Mode::Automatic));
    let mut placed = vec![separation.place(Direction::Read, 0, 0)];
    for _ in 0..20_000 {
        let direction = if random.random_bool(0.5) { Direction::Read } else { Direction::Write };
        placed.push(separation.place(direction, random.random_range(0..u64::MAX / 2), random.random()));
        separation.done(placed[random.random_range(0..placed.len())], random.random());
    }
}
