//! Power failures on the timed device: at random moments, what has persisted is compared with what was promised.
//!
//! Verified, for writes without a file system ([`cut_epochs`]): when a unit of an epoch is lost, none of a later epoch is kept; what
//! completed before a flush was submitted is kept once the flush is complete. For journals ([`cut_journal`]): when a commit
//! block is kept, so are the descriptor and the data of its transaction, and the commit blocks of all transactions before; a transaction
//! that somebody was told is durable is kept.
//!
//! Not verified: contents, for there are none; single pages that are damaged. A device that takes barriers and ignores them must be
//! caught, and a host that expects order of it: tests/timed_power.rs.

use super::clock::{Ns, Random, US};
use super::journal::{self, Remains, Role, System};
use super::profile::{Host, Profile};
use super::stack::{Class, Happened, Stack};
use media::Op;
use std::collections::HashSet;

/// What many power failures left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Power failures.
    pub cuts: u64,
    /// Of them, those after which a promise was broken.
    pub broken: u64,
    /// The first broken promise.
    pub first: Option<String>,
}

impl Tally {
    fn add(&mut self, seed: u64, moment: Ns, result: Result<(), String>) {
        self.cuts += 1;
        if let Err(why) = result {
            self.broken += 1;
            self.first.get_or_insert_with(|| format!("seed {seed}, {moment} ns: {why}"));
        }
    }

    /// Sums.
    pub fn join(mut self, other: Tally) -> Tally {
        self.cuts += other.cuts;
        self.broken += other.broken;
        self.first = self.first.or(other.first);
        self
    }
}

/// Which units a power failure does not lose.
struct Kept(Vec<bool>);

impl Kept {
    fn new(kept: &[u64], units: u64) -> Kept {
        let mut all = vec![false; units as usize];
        for &unit in kept {
            all[unit as usize] = true;
        }
        Kept(all)
    }

    fn has(&self, unit: u64) -> bool {
        self.0[unit as usize]
    }
}

/// Random writes with epochs, orderless writes and flushes.
struct Writer {
    stack: Stack,
    random: Random,
    /// Epoch of each unit; `None`: orderless.
    epochs: Vec<Option<u64>>,
    epoch: u64,
    /// Units of requests that are not complete.
    flying: Vec<(u64, std::ops::Range<u64>)>,
    complete: Vec<u64>,
    /// Flushes that are not complete, with how many of `complete` each covers.
    flushes: Vec<(u64, usize)>,
    /// How many of `complete` are durable.
    durable: usize,
}

impl Writer {
    fn acts(&mut self) {
        let class = if self.random.below(5) == 0 { Class::Orderless } else { Class::Ordered };
        let units = 1 + self.random.below(3);
        let block = 4 * self.random.below(1 << 28);
        let first = self.stack.next_unit();
        if let Some(token) = self.stack.write(class, block, units) {
            let epoch = (class == Class::Ordered).then_some(self.epoch);
            self.epochs.extend((0..units).map(|_| epoch));
            self.flying.push((token, first..first + units));
        }
        if self.random.below(4) == 0 {
            self.epoch += 1;
            self.stack.barrier();
        }
        if self.random.below(60) == 0
            && let Some(token) = self.stack.immediate(Op::Flush, 0)
        {
            self.flushes.push((token, self.complete.len()));
        }
        let pause = self.random.below(30 * US);
        self.stack.timer(pause, 0);
    }

    fn done(&mut self, token: u64) {
        if let Some(index) = self.flying.iter().position(|(t, _)| *t == token) {
            self.complete.extend(self.flying.swap_remove(index).1);
        }
        if let Some(index) = self.flushes.iter().position(|(t, _)| *t == token) {
            self.durable = self.durable.max(self.flushes.swap_remove(index).1);
        }
    }

    fn verify(&self) -> Result<(), String> {
        let kept = Kept::new(&self.stack.flash().kept(), self.stack.next_unit());
        if let Some(unit) = self.complete[..self.durable].iter().find(|unit| !kept.has(**unit)) {
            return Err(format!("unit {unit} is lost behind a flush"));
        }
        let mut lost: Option<(usize, u64)> = None;
        for (unit, epoch) in self.epochs.iter().enumerate() {
            let Some(epoch) = *epoch else { continue };
            match (kept.has(unit as u64), lost) {
                (false, None) => lost = Some((unit, epoch)),
                (true, Some((before, of))) if of < epoch => {
                    return Err(format!(
                        "unit {unit} of epoch {epoch} is kept, unit {before} of epoch {of} is lost"
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Runs random writes with epochs for `length`, and looks at `cuts` random moments what a power failure would leave.
pub fn cut_epochs(profile: &Profile, host: &Host, seed: u64, length: Ns, cuts: u64) -> Tally {
    let mut random = Random(seed);
    let moments = moments(&mut random, length, cuts);
    let mut writer = Writer {
        stack: Stack::new(profile.clone(), host.clone(), seed),
        random,
        epochs: Vec::new(),
        epoch: 0,
        flying: Vec::new(),
        complete: Vec::new(),
        flushes: Vec::new(),
        durable: 0,
    };
    writer.stack.timer(0, 0);
    let mut tally = Tally::default();
    for moment in moments {
        while let Some(happened) = writer.stack.step_before(moment) {
            match happened {
                Happened::Timer(_) => writer.acts(),
                Happened::Done(token) => writer.done(token),
                Happened::Dispatched(_) => {}
            }
        }
        tally.add(seed, moment, writer.verify());
    }
    tally
}

/// Runs a journaling load for `length`, and judges what a power failure leaves at `cuts` random moments.
pub fn cut_journal(
    profile: &Profile,
    host: &Host,
    system: System,
    load: journal::Load,
    length: Ns,
    cuts: u64,
) -> Tally {
    let seed = load.seed;
    let mut tally = Tally::default();
    let moments = moments(&mut Random(seed), length, cuts);
    journal::cut(profile, host, system, load, &moments, |moment, remains| {
        tally.add(seed, moment, judge(remains))
    });
    tally
}

/// Random moments, ascending.
fn moments(random: &mut Random, length: Ns, count: u64) -> Vec<Ns> {
    let mut moments: Vec<Ns> = (0..count).map(|_| 1 + random.below(length)).collect();
    moments.sort_unstable();
    moments
}

/// Whether the journal that a power failure leaves can be replayed: see the head of this file.
fn judge(remains: &Remains<'_>) -> Result<(), String> {
    let kept = Kept::new(&remains.kept, remains.units);
    let whole = |units: &std::ops::Range<u64>| units.clone().all(|unit| kept.has(unit));
    let mut committed = HashSet::new();
    let mut lost_commit = None;
    for w in remains.written {
        if let Role::Commit(number) = w.role {
            if !whole(&w.units) {
                lost_commit.get_or_insert(number);
                continue;
            }
            committed.insert(number);
            if let Some(before) = lost_commit {
                return Err(format!("the commit block of {number} is kept, that of {before} is lost"));
            }
        }
    }
    for w in remains.written {
        if let Role::Descriptor(number) | Role::Data(number) = w.role
            && committed.contains(&number)
            && !whole(&w.units)
        {
            return Err(format!(
                "the commit block of {number} is kept, {:?} at {:?} is lost",
                w.role, w.units
            ));
        }
    }
    match remains.promised.iter().find(|number| !committed.contains(number)) {
        Some(number) => Err(format!("transaction {number} was said to be durable, and is lost")),
        None => Ok(()),
    }
}
