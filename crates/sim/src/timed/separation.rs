//! What separating queues by class gains on the simulated device of [`super::nvme`]: the loads of UHSFS's tables 4 to 6.
//!
//! Streams of requests run at the same time. Each keeps its part of the depth under way until all its requests are done; the figure is all bytes divided by the
//! time until the last stream is through, as in the paper. Requests are placed by [`sched::queues`].
//!
//! Tested in tests/timed_nvme.rs.

use super::clock::{Ns, Random};
use super::nvme::{Command, Nvme, Profile};
use sched::queues::{Config, Direction, Mode, Placed, Separation};
use std::collections::HashMap;

/// Units of 4 KiB of the part of the device that is used: 1 TiB.
const UNITS: u64 = 1 << 28;

/// Requests of one kind, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// Which way.
    pub direction: Direction,
    /// Units of 4 KiB in each.
    pub units: u32,
    /// Anywhere, or one behind the other.
    pub random: bool,
    /// How many.
    pub count: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// All bytes by all time, MB/s.
    pub rate: f64,
    /// Mean time from out to back of each stream's requests, microseconds.
    pub latency: Vec<f64>,
}

/// A request that is under way.
struct Sent {
    stream: usize,
    placed: Placed,
    at: Ns,
}

/// Runs streams with `depth` requests under way in all.
pub fn run(
    profile: &Profile,
    queues: usize,
    mode: Mode,
    streams: &[Stream],
    depth: u64,
    seed: u64,
) -> Outcome {
    let mut device = Nvme::new(profile.clone(), queues, seed);
    let mut separation = Separation::new(Config { mode, ..Config::new(queues) });
    let mut random = Random(seed ^ 0x5155_4555);
    let each = (depth / streams.len() as u64).max(1);
    let (mut issued, mut done) = (vec![0; streams.len()], vec![0; streams.len()]);
    let mut waited = vec![0u128; streams.len()];
    let mut sent: HashMap<u64, Sent> = HashMap::new();
    let (mut now, mut id) = (0, 0);
    loop {
        // One of each in turn, as threads of equal rights would.
        let mut more = true;
        while std::mem::take(&mut more) {
            for (n, stream) in streams.iter().enumerate() {
                if issued[n] == stream.count || issued[n] - done[n] == each {
                    continue;
                }
                let span = UNITS / stream.units as u64;
                let place = if stream.random { random.below(span) } else { issued[n] % span };
                let placed = separation.place(stream.direction, stream.units as u64 * 4096, now);
                let unit = place * stream.units as u64;
                let command = Command { id, direction: stream.direction, unit, units: stream.units };
                device.submit(now, placed.queue, command);
                sent.insert(id, Sent { stream: n, placed, at: now });
                (id, issued[n], more) = (id + 1, issued[n] + 1, true);
            }
        }
        let Some(next) = device.next_time() else { break };
        now = next;
        for id in device.advance(now) {
            let Some(Sent { stream, placed, at }) = sent.remove(&id) else { continue };
            separation.done(placed, now);
            done[stream] += 1;
            waited[stream] += (now - at) as u128;
        }
    }
    assert!(streams.iter().zip(&done).all(|(stream, &done)| stream.count == done), "all came back");
    let bytes: u64 = streams.iter().map(|s| s.count * s.units as u64 * 4096).sum();
    let latency = waited.iter().zip(&done).map(|(w, d)| *w as f64 / (*d).max(1) as f64 / 1e3).collect();
    Outcome { rate: bytes as f64 * 1e3 / now.max(1) as f64, latency }
}

/// A stream of requests of 4 KiB at random, or of 64 KiB.
pub fn stream(direction: Direction, kib: u32, random: bool, count: u64) -> Stream {
    Stream { direction, units: kib / 4, random, count }
}
