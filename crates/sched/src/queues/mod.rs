//! Elastic separation of a device's queues by direction and size (UHSFS, section 2.2 and formula 1).
//!
//! A device with several submission queues takes commands from each in turn, and those of one queue in their order. So a short read waits
//! behind the long writes that came to its queue before, while other queues have nothing of the kind. Requests fall into four classes
//! ([`Class`]: small and large, read and write); each class has zero or more queues, as many as its share of the work asks for.
//!
//! [`Separation`] says for each request into which queue it goes: into the one in which it is likely to be done first. That is the time for which
//! what is queued there already keeps the queue busy, and the time of the request itself, both by means that are measured all the time: a matrix of
//! queues and sizes for reads, and one for writes. A queue that belongs to a class takes requests of others at a large penalty only, as in the paper.
//! The paper gives the formula for a batch of requests that is placed as a whole; here each is placed when it comes, which is the same
//! formula for a batch of one.
//!
//! Beyond the paper: how many queues a class has follows the load ([`elastic`]), and separation is left off where it costs more than it
//! gives, which is tried now and then ([`trial`]).
//!
//! A plain data structure, without threads, time or device: whoever has them says when a request went out and came back. One thread uses it.
//!
//! Used over a medium by [`Separated`](crate::Separated). Tested in tests/queues.rs; measured with a simulated device in `sim::timed`.

pub mod elastic;
pub mod trial;

use elastic::Shares;
use trial::Trial;

/// Nanoseconds, of a moment or a duration.
pub type Ns = u64;

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
}

/// The four kinds of requests that get queues of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Reads below [`Config::large`].
    SmallRead,
    /// Writes below it.
    SmallWrite,
    /// Reads from there on.
    LargeRead,
    /// Writes from there on.
    LargeWrite,
}

impl Class {
    /// All of them; `ALL[class as usize] == class`.
    pub const ALL: [Class; 4] = [Class::SmallRead, Class::SmallWrite, Class::LargeRead, Class::LargeWrite];

    /// Of a request.
    pub fn of(direction: Direction, is_large: bool) -> Class {
        match (direction, is_large) {
            (Direction::Read, false) => Class::SmallRead,
            (Direction::Write, false) => Class::SmallWrite,
            (Direction::Read, true) => Class::LargeRead,
            (Direction::Write, true) => Class::LargeWrite,
        }
    }
}

/// Size classes of the matrices: up to 4 KiB, 8 KiB, and so on to 1 MiB and above.
pub const SIZES: usize = 9;

/// The size class of a request of `len` bytes.
pub fn size_class(len: u64) -> usize {
    let pages = len.div_ceil(4096).max(1);
    (pages.next_power_of_two().trailing_zeros() as usize).min(SIZES - 1)
}

/// How requests are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One queue after the other, whatever the request: no separation.
    RoundRobin,
    /// By class.
    Separated,
    /// By class while that is faster; the other way is tried now and then.
    Automatic,
}

/// What a separation may do.
#[derive(Clone, Debug)]
pub struct Config {
    /// Queues of the device.
    pub queues: usize,
    /// Bytes from which a request is large.
    pub large: u64,
    /// How requests are placed.
    pub mode: Mode,
    /// Requests after which the shares of the classes are looked at again.
    pub period: u32,
}

impl Config {
    /// Separation on, requests of 32 KiB and more large.
    pub fn new(queues: usize) -> Config {
        Config { queues, large: 32 << 10, mode: Mode::Automatic, period: 1024 }
    }
}

/// Added to the time of a request in a queue that is another class's: more than any queue is ever busy for.
const PENALTY: Ns = 1 << 40;

/// A mean that follows what is measured: the newest value counts for an eighth.
#[derive(Clone, Copy, Debug, Default)]
struct Mean(Option<f64>);

impl Mean {
    fn add(&mut self, value: f64) {
        self.0 = Some(self.0.map_or(value, |mean| mean + (value - mean) / 8.0));
    }
}

#[derive(Clone, Debug, Default)]
struct Queue {
    /// The class that it belongs to; `None`: anybody's.
    class: Option<Class>,
    /// Time that a request keeps the queue busy, by direction and size class (the matrices r and w).
    service: [[Mean; SIZES]; 2],
    /// Requests that are in it.
    queued: [[u32; SIZES]; 2],
    count: u32,
    /// When a request of it came back last.
    last: Ns,
}

/// Where a request went, to be given back with its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The queue.
    pub queue: usize,
    direction: Direction,
    size: usize,
    len: u64,
    at: Ns,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Separation {
    config: Config,
    queues: Vec<Queue>,
    /// Of a request of this direction and size in any queue; for queues that have had none yet.
    anywhere: [[Mean; SIZES]; 2],
    shares: Shares,
    trial: Trial,
    next: usize,
    since: u32,
}

impl Separation {
    /// No requests under way. Panics without a queue.
    pub fn new(config: Config) -> Separation {
        assert!(config.queues > 0, "a device has a queue");
        Separation {
            queues: vec![Queue::default(); config.queues],
            anywhere: Default::default(),
            shares: Shares::default(),
            trial: Trial::default(),
            next: 0,
            since: 0,
            config,
        }
    }

    /// Chooses a queue for a request of `len` bytes that goes out now, at `now`.
    pub fn place(&mut self, direction: Direction, len: u64, now: Ns) -> Placed {
        let size = size_class(len);
        let separated = match self.config.mode {
            Mode::RoundRobin => false,
            Mode::Separated => true,
            Mode::Automatic => self.trial.is_separated(),
        };
        let queue = if separated {
            self.since += 1;
            if self.since >= self.config.period {
                self.since = 0;
                let classes = self.shares.assign(self.config.queues);
                self.queues.iter_mut().zip(classes).for_each(|(queue, class)| queue.class = class);
            }
            self.best(direction, len, size)
        } else {
            self.next = (self.next + 1) % self.queues.len();
            self.next
        };
        let q = &mut self.queues[queue];
        q.queued[direction as usize][size] += 1;
        q.count += 1;
        Placed { queue, direction, size, len, at: now }
    }

    /// A request came back at `now`.
    pub fn done(&mut self, placed: Placed, now: Ns) {
        let Placed { queue, direction, size, len, at } = placed;
        let q = &mut self.queues[queue];
        q.queued[direction as usize][size] = q.queued[direction as usize][size].saturating_sub(1);
        q.count = q.count.saturating_sub(1);
        // The queue worked on it since then at the earliest: with several under way at a time this is the time between two, which is what the next
        // one has to wait for.
        let busy = now.saturating_sub(at.max(q.last)) as f64;
        q.last = q.last.max(now);
        q.service[direction as usize][size].add(busy);
        self.anywhere[direction as usize][size].add(busy);
        let class = Class::of(direction, len >= self.config.large);
        self.shares.add(class, busy);
        if self.config.mode == Mode::Automatic {
            self.trial.done(class, len, now);
        }
    }

    /// A request failed at `now`: how long that took says nothing of the queue.
    pub fn failed(&mut self, placed: Placed, now: Ns) {
        let q = &mut self.queues[placed.queue];
        let queued = &mut q.queued[placed.direction as usize][placed.size];
        *queued = queued.saturating_sub(1);
        q.count = q.count.saturating_sub(1);
        q.last = q.last.max(now);
    }

    /// The queue in which least is under way: for requests that have no direction and size. With round-robin the next one.
    pub fn idlest(&mut self) -> usize {
        self.next = (self.next + 1) % self.queues.len();
        if !self.is_separated() {
            return self.next;
        }
        let turns = (0..self.queues.len()).map(|i| (self.next + i) % self.queues.len());
        turns.min_by_key(|&i| self.queues[i].count).unwrap_or(self.next)
    }

    /// Which class each queue belongs to; `None`: anybody's.
    pub fn classes(&self) -> Vec<Option<Class>> {
        self.queues.iter().map(|q| q.class).collect()
    }

    /// Requests in each queue.
    pub fn queued(&self) -> Vec<u32> {
        self.queues.iter().map(|q| q.count).collect()
    }

    /// Whether requests are placed by class now.
    pub fn is_separated(&self) -> bool {
        match self.config.mode {
            Mode::RoundRobin => false,
            Mode::Separated => true,
            Mode::Automatic => self.trial.is_separated(),
        }
    }

    /// Mean time that a request of `len` bytes keeps a queue busy, when that was ever measured, nanoseconds.
    pub fn service(&self, queue: usize, direction: Direction, len: u64) -> Option<f64> {
        self.queues[queue].service[direction as usize][size_class(len)].0
    }

    /// The queue in which a request is likely to be done first.
    fn best(&mut self, direction: Direction, len: u64, size: usize) -> usize {
        let class = Class::of(direction, len >= self.config.large);
        let count = self.queues.len();
        self.next = (self.next + 1) % count;
        let cost = |q: &Queue| {
            let own = self.time(q, direction as usize, size);
            let waits: f64 = [Direction::Read, Direction::Write]
                .iter()
                .flat_map(|&d| (0..SIZES).map(move |s| (d as usize, s)))
                .filter(|&(d, s)| q.queued[d][s] > 0)
                .map(|(d, s)| q.queued[d][s] as f64 * self.time(q, d, s))
                .sum();
            let foreign = q.class.is_some_and(|of| of != class);
            waits + own + if foreign { PENALTY as f64 } else { 0.0 }
        };
        // Of several that are as good the next one in turn.
        let turns = (0..count).map(|i| (self.next + i) % count);
        let best = turns.map(|i| (i, cost(&self.queues[i]))).min_by(|a, b| a.1.total_cmp(&b.1));
        best.map_or(0, |(queue, _)| queue)
    }

    /// How long a request keeps a queue busy, as far as anybody knows.
    fn time(&self, queue: &Queue, direction: usize, size: usize) -> f64 {
        let known = queue.service[direction][size].0.or(self.anywhere[direction][size].0);
        // A guess by size: 10 us and 1 us for each page. It is replaced by the first request that comes back.
        known.unwrap_or((10_000 + (1_000 << size)) as f64)
    }
}
