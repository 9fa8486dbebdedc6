//! The write-back cache and the dies behind it: which units are programmed when, and which of them a power failure keeps.
//!
//! A unit's life: transferred (it has a place in the transfer order and takes room) -> programming (a die has it) -> programmed (its
//! room is free again; with transactional write-back when its batch is complete) -> *kept*: a power failure does not lose it.
//!
//! Kept are, with a protected cache, all transferred units; with [`Barrier::Recovery`] those in front of the first unit in
//! transfer order that is not programmed; with [`Barrier::Transactional`] those of complete batches; else all programmed
//! ones. Pages are written to the next free place, so a program that the power cut ends leaves nothing.

use super::clock::{Agenda, Ns, Random};
use super::device::Event;
use super::profile::{Barrier, Profile};
use std::collections::VecDeque;

/// A unit that waits for its program.
#[derive(Clone, Copy)]
struct Waiting {
    /// Place in the transfer order.
    place: u64,
    epoch: u64,
}

#[derive(Default)]
struct Die {
    /// Until when it works on what it was given.
    free_at: Ns,
    /// Places of the units that it programs.
    programming: Option<Vec<u64>>,
    /// Pages of the log that it will program (in-order recovery only).
    queue: VecDeque<Vec<u64>>,
    /// Programs until garbage is collected.
    until_gc: u32,
}

/// Which units may be programmed next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// The oldest, on any die.
    Oldest,
    /// Any.
    Any,
    /// The oldest, while no other epoch is being programmed.
    Epoch,
    /// The oldest of the batch.
    Batch,
    /// The oldest, on the die whose turn it is.
    Log,
}

pub(super) struct Cache {
    profile: Profile,
    choice: Choice,
    dies: Vec<Die>,
    /// When each channel is free.
    channels: Vec<Ns>,
    /// The die that is asked first.
    next_die: usize,
    /// In transfer order, unless any may be next.
    waiting: VecDeque<Waiting>,
    /// Room taken, units.
    used: u32,
    /// Numbers of the transferred units, by place.
    units: Vec<u64>,
    programmed: Vec<bool>,
    /// Everything before this place is programmed.
    prefix: u64,
    /// The epoch that transferred units join.
    epoch: u64,
    /// Epoch and number of the units being programmed, while only one epoch may be.
    flying: (u64, usize),
    /// End of the batch being programmed, and of the complete ones.
    batch: (u64, u64),
    /// Units before this place are wanted on flash, even if they do not fill a page.
    wanted: u64,
}

impl Cache {
    pub fn new(profile: &Profile, random: &mut Random) -> Cache {
        let choice = match profile.barrier {
            Barrier::Ignored => Choice::Any,
            _ if profile.protected => Choice::Oldest,
            Barrier::InOrder => Choice::Epoch,
            Barrier::Transactional => Choice::Batch,
            Barrier::Recovery => Choice::Log,
        };
        // Dies do not collect garbage at the same moment.
        let mut until_gc = || 1 + random.below(profile.gc_interval.max(1) as u64) as u32;
        let dies = (0..profile.dies()).map(|_| Die { until_gc: until_gc(), ..Die::default() }).collect();
        Cache {
            choice,
            dies,
            channels: vec![0; profile.channels as usize],
            next_die: 0,
            waiting: VecDeque::new(),
            used: 0,
            units: Vec::new(),
            programmed: Vec::new(),
            prefix: 0,
            epoch: 0,
            flying: (0, 0),
            batch: (0, 0),
            wanted: 0,
            profile: profile.clone(),
        }
    }

    /// Units that have been transferred: the next place.
    pub fn transferred(&self) -> u64 {
        self.units.len() as u64
    }

    pub fn fits(&self, units: usize) -> bool {
        self.used as usize + units <= self.profile.cache_units as usize
    }

    /// Takes units whose transfer is complete.
    pub fn admit(&mut self, units: &[u64]) {
        for &unit in units {
            self.waiting.push_back(Waiting { place: self.transferred(), epoch: self.epoch });
            self.units.push(unit);
            self.programmed.push(false);
        }
        self.used += units.len() as u32;
    }

    pub fn end_epoch(&mut self) {
        self.epoch += 1;
    }

    /// Everything transferred so far is wanted on flash soon.
    pub fn want_all(&mut self) {
        self.wanted = self.transferred();
    }

    /// Whether no die programs anything.
    pub fn is_idle(&self) -> bool {
        self.dies.iter().all(|die| die.programming.is_none())
    }

    /// Whether all units before `place` are kept.
    pub fn kept_before(&self, place: u64) -> bool {
        match self.choice {
            _ if self.profile.protected => true,
            Choice::Batch => self.batch.1 >= place,
            _ => self.prefix >= place,
        }
    }

    /// Numbers of the units that a power failure now would not lose.
    pub fn kept(&self) -> Vec<u64> {
        let prefix = |end: u64| self.units[..end as usize].to_vec();
        match self.choice {
            _ if self.profile.protected => self.units.clone(),
            Choice::Batch => prefix(self.batch.1),
            Choice::Log => prefix(self.prefix),
            _ => self
                .units
                .iter()
                .zip(&self.programmed)
                .filter(|(_, done)| **done)
                .map(|(unit, _)| *unit)
                .collect(),
        }
    }

    /// Starts all programs that can start.
    pub fn start(&mut self, now: Ns, agenda: &mut Agenda<Event>, random: &mut Random) {
        if self.choice == Choice::Log {
            while let Some(page) = self.oldest(u64::MAX, false) {
                self.dies[self.next_die].queue.push_back(page);
                self.next_die = (self.next_die + 1) % self.dies.len();
            }
            for die in 0..self.dies.len() {
                if self.dies[die].programming.is_none()
                    && let Some(page) = self.dies[die].queue.pop_front()
                {
                    self.program(die, page, now, agenda);
                }
            }
            return;
        }
        let dies = self.dies.len();
        while !self.waiting.is_empty() {
            let from = self.next_die;
            let idle =
                (from..from + dies).map(|i| i % dies).find(|&die| self.dies[die].programming.is_none());
            let Some(die) = idle else { return };
            let Some(page) = self.choose(random) else { return };
            self.next_die = (die + 1) % dies;
            self.program(die, page, now, agenda);
        }
    }

    /// The units of the next program, if there are enough or they are wanted.
    fn choose(&mut self, random: &mut Random) -> Option<Vec<u64>> {
        match self.choice {
            Choice::Oldest | Choice::Log => self.oldest(u64::MAX, false),
            Choice::Any => self.any(random),
            Choice::Epoch => {
                let epoch = self.waiting.front()?.epoch;
                if self.flying.1 > 0 && self.flying.0 != epoch {
                    return None;
                }
                // An epoch that is complete holds up those behind it: its rest goes, full page or not.
                let end = self.waiting.partition_point(|w| w.epoch == epoch);
                let end = self.waiting.get(end).map_or(u64::MAX, |w| w.place);
                let page = self.oldest(end, epoch < self.epoch)?;
                self.flying = (epoch, self.flying.1 + page.len());
                Some(page)
            }
            Choice::Batch => {
                if self.batch.0 == self.batch.1 {
                    let oldest = self.waiting.front()?.place;
                    let stripe = self.profile.dies() * self.profile.units_per_program;
                    let enough = stripe.min(self.profile.cache_units / 2) as usize;
                    if self.waiting.len() < enough && oldest >= self.wanted {
                        return None;
                    }
                    self.batch.0 = self.transferred();
                }
                self.oldest(self.batch.0, true)
            }
        }
    }

    /// The oldest units before `end`: a page, or less if `part` says so or they are wanted.
    fn oldest(&mut self, end: u64, part: bool) -> Option<Vec<u64>> {
        let full = self.profile.units_per_program as usize;
        let count = self.waiting.iter().take(full).take_while(|w| w.place < end).count();
        let wanted = part || self.waiting.front()?.place < self.wanted;
        (count == full || (count > 0 && wanted))
            .then(|| self.waiting.drain(..count).map(|w| w.place).collect())
    }

    /// Any units; those that are wanted first.
    fn any(&mut self, random: &mut Random) -> Option<Vec<u64>> {
        let full = self.profile.units_per_program as usize;
        let mut page = Vec::new();
        if self.prefix < self.wanted {
            let wanted = self.wanted;
            self.waiting.retain(|w| {
                let take = w.place < wanted && page.len() < full;
                if take {
                    page.push(w.place);
                }
                !take
            });
        }
        // A device that owes no order lets writes gather in its cache.
        let stripes = 2 * self.profile.dies() * self.profile.units_per_program;
        let gathered = stripes.min(self.profile.cache_units / 2) as usize;
        if page.is_empty() && self.waiting.len() < gathered {
            return None;
        }
        while page.len() < full && !self.waiting.is_empty() {
            let index = random.below(self.waiting.len() as u64) as usize;
            page.extend(self.waiting.swap_remove_back(index).map(|w| w.place));
        }
        Some(page)
    }

    fn program(&mut self, index: usize, page: Vec<u64>, now: Ns, agenda: &mut Agenda<Event>) {
        let profile = &self.profile;
        let die = &mut self.dies[index];
        let channel = &mut self.channels[index % profile.channels as usize];
        let mut start = now.max(die.free_at);
        if profile.gc_interval > 0 {
            die.until_gc -= 1;
            if die.until_gc == 0 {
                die.until_gc = profile.gc_interval;
                start += profile.gc_ns;
            }
        }
        *channel = start.max(*channel) + page.len() as u64 * profile.bus_ns;
        die.free_at = *channel + profile.program_ns;
        die.programming = Some(page);
        agenda.at(die.free_at, Event::Programmed { die: index });
    }

    /// A die has finished its program.
    pub fn finish(&mut self, die: usize) {
        let page = self.dies[die].programming.take().unwrap_or_default();
        for &place in &page {
            self.programmed[place as usize] = true;
        }
        let rest = &self.programmed[self.prefix as usize..];
        self.prefix += rest.iter().take_while(|done| **done).count() as u64;
        match self.choice {
            Choice::Batch => {
                if self.prefix >= self.batch.0 {
                    self.used -= (self.batch.0 - self.batch.1) as u32;
                    self.batch.1 = self.batch.0;
                }
                return;
            }
            Choice::Epoch => self.flying.1 -= page.len(),
            _ => {}
        }
        self.used -= page.len() as u32;
    }

    /// When a die has read the page of `block`, which waits for what the die does now.
    pub fn read(&mut self, block: u64, now: Ns) -> Ns {
        let index = (block % self.dies.len() as u64) as usize;
        let die = &mut self.dies[index];
        die.free_at = now.max(die.free_at) + self.profile.read_ns;
        let channel = &mut self.channels[index % self.profile.channels as usize];
        *channel = die.free_at.max(*channel) + self.profile.bus_ns;
        *channel
    }
}
