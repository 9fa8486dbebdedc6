//! The device: a command queue, a link over which one command is served at a time, a cache, and dies behind it.
//!
//! A command takes a place in the queue from its submission to its completion. A write completes when its data is in the cache.
//! Commands are served in any order (three times in four the oldest, else by chance), with two exceptions: a write with the
//! barrier flag is served after all before it and before all behind it (what the ordered priority of SCSI does), and so is a
//! flush where it cannot be queued. A flush completes when all that was transferred when it was served is kept, and the
//! mapping table is written.
//!
//! Simplified: the controller works on one command at a time, its time adds to that of the link.

use super::cache::Cache;
use super::clock::{Agenda, Ns, Random};
use super::profile::{Barrier, Profile};
use std::collections::VecDeque;

/// What a command does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Writes units, whose numbers are whatever the host calls them.
    Write(Vec<u64>),
    /// Reads one unit.
    Read(u64),
    /// Makes everything durable that has been transferred.
    Flush,
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Returned when it is complete.
    pub id: u64,
    /// What it does.
    pub kind: Kind,
    /// The flag of a write: an epoch ends here.
    pub barrier: bool,
}

/// What happens inside.
pub(super) enum Event {
    /// The command that is being served has been transferred.
    Served,
    Programmed {
        die: usize,
    },
    /// A read or flush is complete.
    Complete {
        id: u64,
        flush: bool,
    },
}

/// A flush that waits for programs.
struct Flush {
    id: u64,
    /// Units before this place are to be kept.
    cover: u64,
}

/// The device.
pub struct Flash {
    profile: Profile,
    random: Random,
    agenda: Agenda<Event>,
    /// Not served yet, oldest first.
    queue: VecDeque<Command>,
    serving: Option<Command>,
    cache: Cache,
    /// Waiting for programs.
    flushes: Vec<Flush>,
    /// Flushes that were served and are not complete.
    flushing: u32,
    /// Transferred units that the mapping on flash knows.
    mapped: u64,
    complete: Vec<u64>,
    depth: Depth,
}

/// Commands that the device holds, over time.
#[derive(Clone, Debug, Default)]
pub struct Depth {
    /// Now.
    pub now: u32,
    /// Highest so far.
    pub max: u32,
    /// Sum of commands times nanoseconds.
    area: u128,
    since: Ns,
    /// Each change, when asked for: moment and depth.
    pub changes: Option<Vec<(Ns, u32)>>,
}

impl Depth {
    fn set(&mut self, now: Ns, depth: u32) {
        self.area += self.now as u128 * (now - self.since) as u128;
        (self.since, self.now, self.max) = (now, depth, self.max.max(depth));
        if let Some(changes) = &mut self.changes {
            changes.push((now, depth));
        }
    }

    /// The mean from the beginning to `now`.
    pub fn mean(&self, now: Ns) -> f64 {
        let area = self.area + self.now as u128 * (now - self.since) as u128;
        area as f64 / now.max(1) as f64
    }
}

impl Flash {
    /// An empty device. Panics on a profile without dies, queue or cache.
    pub fn new(profile: Profile, seed: u64) -> Flash {
        assert!(profile.dies() > 0 && profile.queue_depth > 0 && profile.units_per_program > 0);
        assert!(profile.cache_units >= profile.units_per_program);
        let mut random = Random(seed);
        Flash {
            cache: Cache::new(&profile, &mut random),
            profile,
            random,
            agenda: Agenda::default(),
            queue: VecDeque::new(),
            serving: None,
            flushes: Vec::new(),
            flushing: 0,
            mapped: 0,
            complete: Vec::new(),
            depth: Depth::default(),
        }
    }

    /// What kind of device it is.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Whether it takes a command.
    pub fn room(&self) -> bool {
        self.depth.now < self.profile.queue_depth
    }

    /// Commands that it holds.
    pub fn depth(&self) -> &Depth {
        &self.depth
    }

    /// Notes each change of the depth from now on.
    pub fn trace_depth(&mut self) {
        self.depth.changes = Some(Vec::new());
    }

    /// Takes a command. There must be room, and a write must not be larger than the cache.
    pub fn submit(&mut self, now: Ns, command: Command) {
        assert!(self.room(), "the queue is full");
        if let Kind::Write(units) = &command.kind {
            assert!(units.len() <= self.profile.cache_units as usize, "larger than the cache");
        }
        self.depth.set(now, self.depth.now + 1);
        self.queue.push_back(command);
        self.serve(now);
    }

    /// When something happens inside next.
    pub fn next_time(&self) -> Option<Ns> {
        self.agenda.next_time()
    }

    /// Lets everything happen up to `now`, which must not lie behind [`Flash::next_time`]. Returns the commands that completed.
    pub fn advance(&mut self, now: Ns) -> Vec<u64> {
        while let Some(event) = self.agenda.pop(now) {
            match event {
                Event::Served => self.served(now),
                Event::Programmed { die } => self.cache.finish(die),
                Event::Complete { id, flush } => {
                    self.flushing -= flush as u32;
                    self.completed(now, id);
                }
            }
            self.cache.start(now, &mut self.agenda, &mut self.random);
            self.settle_flushes(now);
            self.serve(now);
        }
        std::mem::take(&mut self.complete)
    }

    /// Numbers of the units that a power failure now would not lose.
    pub fn kept(&self) -> Vec<u64> {
        self.cache.kept()
    }

    fn completed(&mut self, now: Ns, id: u64) {
        self.depth.set(now, self.depth.now - 1);
        self.complete.push(id);
    }

    /// Begins to serve a command, if it can.
    fn serve(&mut self, now: Ns) {
        if self.serving.is_some() || (self.profile.flush_exclusive && self.flushing > 0) {
            return;
        }
        let Some(command) = self.pick(now) else { return };
        let units = if let Kind::Write(units) = &command.kind { units.len() as u64 } else { 0 };
        let flag = if command.barrier { self.profile.barrier_ns } else { 0 };
        self.agenda.at(now + self.profile.command_ns + flag + units * self.profile.link_ns, Event::Served);
        self.flushing += (command.kind == Kind::Flush) as u32;
        self.serving = Some(command);
    }

    fn pick(&mut self, now: Ns) -> Option<Command> {
        let fence = |c: &Command| match c.kind {
            Kind::Flush => self.profile.flush_exclusive,
            _ => c.barrier && self.profile.barrier != Barrier::Ignored,
        };
        let first = self.queue.front()?;
        let free = if fence(first) { 1 } else { self.queue.iter().take_while(|c| !fence(c)).count() };
        let fits = |c: &Command| !matches!(&c.kind, Kind::Write(units) if !self.cache.fits(units.len()));
        let candidates: Vec<usize> = (0..free).filter(|&i| fits(&self.queue[i])).collect();
        if candidates.is_empty() {
            // Nothing to serve until there is room. If no die makes any, what is cached must go although it fills no page.
            if self.cache.is_idle() {
                self.cache.want_all();
                self.cache.start(now, &mut self.agenda, &mut self.random);
            }
            return None;
        }
        let any = self.random.below(4) == 0;
        let chosen = if any { self.random.below(candidates.len() as u64) as usize } else { 0 };
        self.queue.remove(candidates[chosen])
    }

    /// The command that was being served has moved its data.
    fn served(&mut self, now: Ns) {
        let Some(command) = self.serving.take() else { return };
        match command.kind {
            Kind::Write(units) => {
                self.cache.admit(&units);
                if command.barrier {
                    self.cache.end_epoch();
                }
                self.completed(now, command.id);
            }
            Kind::Read(block) => {
                let read = self.cache.read(block, now) + self.profile.link_ns;
                self.agenda.at(read, Event::Complete { id: command.id, flush: false });
            }
            Kind::Flush => {
                self.cache.want_all();
                self.flushes.push(Flush { id: command.id, cover: self.cache.transferred() });
            }
        }
    }

    /// Goes on with flushes whose data is kept.
    fn settle_flushes(&mut self, now: Ns) {
        let Flash { flushes, cache, agenda, profile, mapped, .. } = self;
        flushes.retain(|flush| {
            if !cache.kept_before(flush.cover) {
                return true;
            }
            let programs = if *mapped < flush.cover { profile.map_programs as u64 } else { 0 };
            *mapped = flush.cover.max(*mapped);
            let done = now + profile.flush_ns + programs * profile.program_ns;
            agenda.at(done, Event::Complete { id: flush.id, flush: true });
            false
        });
    }
}
