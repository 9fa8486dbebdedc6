//! The loads, and carrying one out: one thread keeps so many requests under way, and notes how long each takes.

use crate::bench::{stop, subject::Random};
use anyhow::{Context, Result, bail};
use media::{Arena, BufRef, Completion, Media, Op, Request, Wait};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    pub op: Op,
    /// Bytes of a request.
    pub block: u32,
    /// At random places, else one behind the other.
    pub random: bool,
}

impl Stream {
    /// `4 KiB random read`
    pub fn name(&self) -> String {
        let order = if self.random { "random" } else { "sequential" };
        let op = if self.op == Op::Write { "write" } else { "read" };
        format!("{} KiB {order} {op}", self.block >> 10)
    }
}

/// Streams at the same time, each with its part of the requests under way.
#[derive(Clone, Debug)]
pub struct Load {
    pub streams: Vec<Stream>,
    /// Requests under way of all streams.
    pub depth: usize,
}

impl Load {
    /// All of them; without those that write if nothing may be written.
    pub fn all(writes: bool) -> Vec<Load> {
        let stream = |op, kib: u32, random| Stream { op, block: kib << 10, random };
        let (read, write) = (stream(Op::Read, 4, true), stream(Op::Write, 4, true));
        let (far_read, far_write) = (stream(Op::Read, 64, false), stream(Op::Write, 64, false));
        let one = |stream, depth| Load { streams: vec![stream], depth };
        let mut all = vec![one(read, 1), one(read, 32), one(far_read, 32)];
        let mut mixes = vec![vec![read, far_read]];
        if writes {
            all.extend([one(write, 1), one(write, 32), one(far_write, 32)]);
            mixes = vec![vec![read, write], vec![read, far_read], vec![read, write, far_read, far_write]];
        }
        all.extend(mixes.into_iter().map(|streams| Load { streams, depth: 32 }));
        all
    }
}

/// How one stream fared. Times are microseconds from the submission of a request to the moment its completion was seen.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Figures {
    pub operations: u64,
    pub per_second: f64,
    pub mb_per_second: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Of fewer than 10000 requests it is the longest.
    pub p99_99_us: f64,
}

impl Figures {
    /// Of requests of `block` bytes that took so many nanoseconds each, in `time`.
    pub fn new(mut latencies: Vec<u64>, block: u32, time: Duration) -> Figures {
        latencies.sort_unstable();
        let Some(last) = latencies.len().checked_sub(1) else { return Figures::default() };
        let us = |ns: u64| ns as f64 / 1000.0;
        // The least time that so many of all requests did not exceed.
        let within = |part: f64| {
            us(latencies[((latencies.len() as f64 * part).ceil() as usize).clamp(1, last + 1) - 1])
        };
        let (count, seconds) = (latencies.len() as f64, time.as_secs_f64().max(1e-9));
        Figures {
            operations: latencies.len() as u64,
            per_second: count / seconds,
            mb_per_second: count * block as f64 / seconds / 1e6,
            mean_us: us(latencies.iter().sum()) / count,
            p50_us: within(0.5),
            p99_us: within(0.99),
            p99_99_us: within(0.9999),
        }
    }
}

/// A medium with memory for requests.
pub struct Runner<'a> {
    media: &'a dyn Media,
    arena: ArenaOf,
    /// Bytes at the beginning of the device that are used.
    area: u64,
}

struct ArenaOf {
    id: media::ArenaId,
    _memory: Arc<Arena>,
}

/// Bytes of memory for each request under way.
const ROOM: u64 = 64 << 10;
/// Most requests under way.
const DEPTH_MAX: usize = 32;

struct Slot {
    stream: usize,
    sent: Instant,
}

impl<'a> Runner<'a> {
    /// For requests within the first `area` bytes.
    pub fn new(media: &'a dyn Media, area: u64) -> Result<Runner<'a>> {
        let len = ROOM as usize * DEPTH_MAX;
        let memory = Arc::new(Arena::new(len)?);
        memory.copy_in(0, &Random(7).bytes(len));
        let id = media.register(memory.clone())?;
        Ok(Runner { media, arena: ArenaOf { id, _memory: memory }, area })
    }

    /// Writes the whole area, so that all of it is there to be read.
    pub fn fill(&self) -> Result<()> {
        let (mut next, mut flying, mut free) = (0, 0, (0..DEPTH_MAX as u64).collect::<Vec<_>>());
        let mut done = Vec::new();
        while next < self.area || flying > 0 {
            while next < self.area
                && let Some(slot) = free.pop()
            {
                let len = ROOM.min(self.area - next) as u32;
                let buf = BufRef { arena: self.arena.id, offset: slot * ROOM, len };
                self.media.submit(Request::transfer(Op::Write, next, buf, slot));
                next += len as u64;
                flying += 1;
            }
            self.reap(&mut done)?;
            for completion in done.drain(..) {
                completion.result.context("filling the device")?;
                free.push(completion.token);
                flying -= 1;
            }
        }
        self.media.submit(Request::flush(0));
        while done.is_empty() {
            self.reap(&mut done)?;
        }
        done.pop().map_or(Ok(()), |completion| completion.result).context("flushing the device")
    }

    /// Carries a load out for `time`, after a quarter of that for which nothing counts, and until each stream had a request that counts.
    /// Figures of each stream.
    pub fn run(&self, load: &Load, time: Duration) -> Result<Vec<Figures>> {
        if load.depth > DEPTH_MAX || load.depth < load.streams.len() {
            bail!("a depth of {} is not for {} streams", load.depth, load.streams.len());
        }
        let mut random = Random(load.depth as u64 + 11);
        // Sequential streams begin at different places.
        let part = self.area / load.streams.len() as u64;
        let mut at: Vec<u64> = (0..load.streams.len() as u64).map(|n| n * part / ROOM * ROOM).collect();
        let mut latencies: Vec<Vec<u64>> = load.streams.iter().map(|_| Vec::with_capacity(1 << 16)).collect();
        let begun = Instant::now();
        let (counts_from, end) = (begun + time / 4, begun + time / 4 + time);
        let mut slots: Vec<Slot> =
            (0..load.depth).map(|n| Slot { stream: n % load.streams.len(), sent: begun }).collect();
        let mut ready: Vec<usize> = (0..load.depth).collect();
        let (mut flying, mut done) = (0, Vec::<Completion>::new());
        let mut last = end;
        loop {
            let is_short = latencies.iter().any(Vec::is_empty);
            if is_short || Instant::now() < end {
                for slot in ready.drain(..) {
                    let stream = &load.streams[slots[slot].stream];
                    let block = stream.block as u64;
                    let place = &mut at[slots[slot].stream];
                    let offset = match stream.random {
                        true => random.draw() % (self.area / block) * block,
                        false => std::mem::replace(
                            place,
                            if *place + 2 * block > self.area { 0 } else { *place + block },
                        ),
                    };
                    let buf = BufRef { arena: self.arena.id, offset: slot as u64 * ROOM, len: stream.block };
                    slots[slot].sent = Instant::now();
                    self.media.submit(Request::transfer(stream.op, offset, buf, slot as u64));
                    flying += 1;
                }
            }
            if flying == 0 {
                break;
            }
            self.reap(&mut done)?;
            let now = Instant::now();
            for completion in done.drain(..) {
                completion.result?;
                let slot = completion.token as usize;
                if now >= counts_from && (is_short || now < end) {
                    latencies[slots[slot].stream].push((now - slots[slot].sent).as_nanos() as u64);
                    last = last.max(now);
                }
                ready.push(slot);
                flying -= 1;
            }
        }
        let time = last - counts_from;
        let figures = latencies.into_iter().zip(&load.streams);
        Ok(figures.map(|(all, stream)| Figures::new(all, stream.block, time)).collect())
    }

    /// Hands requests over and waits for completions.
    fn reap(&self, done: &mut Vec<Completion>) -> Result<()> {
        stop::check()?;
        self.media.kick();
        self.media.reap(done, Wait::For(Some(Duration::from_millis(100))));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use media::SimFlash;
    use media::flash::Config;

    #[test]
    fn percentiles() {
        let f = Figures::new((1..=10_000).rev().map(|us| us * 1000).collect(), 4096, Duration::from_secs(2));
        assert_eq!((f.operations, f.per_second, f.mean_us), (10_000, 5000.0, 5000.5));
        assert_eq!((f.p50_us, f.p99_us, f.p99_99_us), (5000.0, 9900.0, 9999.0));
        assert!((f.mb_per_second - 20.48).abs() < 1e-9);
        let f = Figures::new(vec![7000], 4096, Duration::from_secs(1));
        assert_eq!((f.p50_us, f.p99_us, f.p99_99_us), (7.0, 7.0, 7.0));
        assert_eq!(Figures::new(Vec::new(), 4096, Duration::from_secs(1)).operations, 0);
    }

    /// Every load, on memory; nothing beyond the area is touched.
    #[test]
    fn all_loads_are_carried_out() {
        let media = SimFlash::new(Config { wait_when_idle: true, ..Config::new(8 << 20) }).unwrap();
        let runner = Runner::new(&media, 4 << 20).unwrap();
        runner.fill().unwrap();
        for load in Load::all(true) {
            let figures = runner.run(&load, Duration::from_millis(20)).unwrap();
            assert_eq!(figures.len(), load.streams.len());
            assert!(
                figures.iter().all(|f| f.operations > 0 && f.p50_us <= f.p99_us),
                "{load:?}: {figures:?}"
            );
        }
        let mut bytes = vec![1; 4 << 20];
        media.peek(4 << 20, &mut bytes);
        assert!(bytes.iter().all(|b| *b == 0));
        media.peek(0, &mut bytes);
        assert!(bytes.chunks(4096).all(|page| page.iter().any(|b| *b != 0)), "the area is filled");
        assert!(Load::all(false).iter().flat_map(|load| &load.streams).all(|s| s.op == Op::Read));
    }
}
