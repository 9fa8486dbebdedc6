//! The host above the device: page cache and system calls as costs, the scheduler of `sched`, dispatch, interrupts, wake-ups.
//!
//! Requests go through the same [`Scheduler`] that an engine uses over a real medium. Commands are handed over one after the other,
//! each taking [`Host::dispatch_ns`]; that goes on by itself whenever the device has room. Threads of the modelled programs are
//! state machines of their owners: the stack tells them what happened ([`Happened`]), and lets them set timers.

use super::clock::{Agenda, Ns, Random};
use super::device::{Command, Flash, Kind};
use super::profile::{Host, Profile};
use media::{Flags, Op};
use sched::{Config, Request, Scheduler, Sink, dispatch_one};
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};

/// What the owner of a stack is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// A timer has run down, under the number that it was given.
    Timer(u64),
    /// A request has been handed to the device.
    Dispatched(u64),
    /// A request is complete, and its interrupt is over.
    Done(u64),
}

/// Whether a write has an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// None.
    Orderless,
    /// After the epochs before, before those behind.
    Ordered,
}

enum Event {
    Timer(u64),
    /// A command has been handed over.
    Dispatch,
    Interrupt(u64),
}

/// A request in the scheduler.
struct Payload {
    token: u64,
    units: Vec<u64>,
}

/// A host with its device.
pub struct Stack {
    now: Ns,
    flash: Flash,
    host: Host,
    scheduler: Scheduler<Payload>,
    agenda: Agenda<Event>,
    /// A command is being handed over.
    dispatching: bool,
    in_flight: HashMap<u64, SmallVec<[u64; 1]>>,
    tokens: u64,
    units: u64,
    happened: VecDeque<Happened>,
    switches: u64,
    random: Random,
}

/// The device as the scheduler's sink.
struct ToFlash<'a> {
    now: Ns,
    flash: &'a mut Flash,
    in_flight: &'a mut HashMap<u64, SmallVec<[u64; 1]>>,
    tokens: &'a mut u64,
    happened: &'a mut VecDeque<Happened>,
}

impl Sink<Payload> for ToFlash<'_> {
    fn room(&self) -> bool {
        self.flash.room()
    }

    fn dispatch(&mut self, command: sched::Command<Payload>) {
        *self.tokens += 1;
        let id = *self.tokens;
        let (op, barrier, offset) = (command.op, command.is_barrier(), command.offset);
        let tokens: SmallVec<[u64; 1]> = command.parts.iter().map(|part| part.token).collect();
        self.happened.extend(tokens.iter().map(|&token| Happened::Dispatched(token)));
        self.in_flight.insert(id, tokens);
        let kind = match op {
            Op::Read => Kind::Read(offset / UNIT),
            Op::Flush => Kind::Flush,
            _ => Kind::Write(command.parts.into_iter().flat_map(|part| part.units).collect()),
        };
        self.flash.submit(self.now, Command { id, kind, barrier });
    }
}

/// Bytes of a unit.
const UNIT: u64 = 4096;

impl Stack {
    /// A host and an empty device. The seed decides what the device chooses.
    pub fn new(profile: Profile, host: Host, seed: u64) -> Stack {
        let config = Config { queued_max: host.queued_max, ..Config::default() };
        Stack {
            now: 0,
            flash: Flash::new(profile, seed),
            host,
            scheduler: Scheduler::new(config),
            agenda: Agenda::default(),
            dispatching: false,
            in_flight: HashMap::new(),
            tokens: 0,
            units: 0,
            happened: VecDeque::new(),
            switches: 0,
            random: Random(seed ^ 0x57AC),
        }
    }

    /// The moment.
    pub fn now(&self) -> Ns {
        self.now
    }

    /// What things cost.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The device.
    pub fn flash(&self) -> &Flash {
        &self.flash
    }

    /// Notes each change of the device's queue depth from now on.
    pub fn trace_depth(&mut self) {
        self.flash.trace_depth();
    }

    /// Requests in the scheduler.
    pub fn queued(&self) -> usize {
        self.scheduler.len()
    }

    /// Wake-ups of threads so far.
    pub fn switches(&self) -> u64 {
        self.switches
    }

    /// The number of the unit that is written next: units count up with each write.
    pub fn next_unit(&self) -> u64 {
        self.units
    }

    /// Tells `number` to the owner after `delay`.
    pub fn timer(&mut self, delay: Ns, number: u64) {
        self.agenda.at(self.now + delay, Event::Timer(number));
    }

    /// As a timer after a context switch: a thread that slept runs.
    pub fn wake(&mut self, number: u64) {
        self.wake_after(0, number);
    }

    /// As [`Stack::wake`], and `delay` later: the thread computes first.
    pub fn wake_after(&mut self, delay: Ns, number: u64) {
        self.switches += 1;
        let wake = self.host.wake_ns / 2 + self.random.below(self.host.wake_ns + 1);
        self.timer(wake + delay, number);
    }

    /// Submits a write of `units` units from the block `block` on. `None`: the scheduler is full, or has a write there.
    pub fn write(&mut self, class: Class, block: u64, units: u64) -> Option<u64> {
        let token = self.tokens + 1;
        let numbers = (self.units..self.units + units).collect();
        let payload = Payload { token, units: numbers };
        let request = request(Op::Write, block, units, payload);
        let taken = match class {
            Class::Orderless => self.scheduler.submit(request).is_ok(),
            Class::Ordered => self.scheduler.submit_ordered(request).is_ok(),
        };
        taken.then(|| {
            self.units += units;
            self.submitted(token)
        })
    }

    /// Submits a flush, or a read of a block. `None`: the scheduler is full.
    pub fn immediate(&mut self, op: Op, block: u64) -> Option<u64> {
        let token = self.tokens + 1;
        let units = (op != Op::Flush) as u64;
        let request = request(op, block, units, Payload { token, units: Vec::new() });
        self.scheduler.submit(request).is_ok().then(|| self.submitted(token))
    }

    /// Ends the epoch.
    pub fn barrier(&mut self) {
        self.scheduler.barrier();
        self.kick();
    }

    fn submitted(&mut self, token: u64) -> u64 {
        self.tokens = token;
        self.kick();
        token
    }

    /// Begins to hand over a command, if there is one and room for it.
    fn kick(&mut self) {
        if !self.dispatching && self.flash.room() && !self.scheduler.is_empty() {
            self.dispatching = true;
            self.agenda.at(self.now + self.host.dispatch_ns, Event::Dispatch);
        }
    }

    /// Lets time go on until something happens that concerns the owner. `None`: nothing will happen any more.
    pub fn step(&mut self) -> Option<Happened> {
        self.step_before(Ns::MAX)
    }

    /// As [`Stack::step`]; `None` as well when it would happen at `limit` or later. Then everything before `limit` has happened.
    pub fn step_before(&mut self, limit: Ns) -> Option<Happened> {
        loop {
            if let Some(happened) = self.happened.pop_front() {
                return Some(happened);
            }
            let times = [self.flash.next_time(), self.agenda.next_time()];
            self.now = times.into_iter().flatten().min().filter(|time| *time < limit)?;
            if times[0] == Some(self.now) {
                for id in self.flash.advance(self.now) {
                    self.agenda.at(self.now + self.host.interrupt_ns, Event::Interrupt(id));
                }
                self.kick();
            } else if let Some(event) = self.agenda.pop(self.now) {
                self.carry_out(event);
            }
        }
    }

    fn carry_out(&mut self, event: Event) {
        match event {
            Event::Timer(number) => self.happened.push_back(Happened::Timer(number)),
            Event::Interrupt(id) => {
                let tokens = self.in_flight.remove(&id).unwrap_or_default();
                self.happened.extend(tokens.into_iter().map(Happened::Done));
            }
            Event::Dispatch => {
                let Stack { now, flash, scheduler, in_flight, tokens, happened, .. } = self;
                let mut sink = ToFlash { now: *now, flash, in_flight, tokens, happened };
                dispatch_one(scheduler, &mut sink);
                self.dispatching = false;
                self.kick();
            }
        }
    }
}

fn request(op: Op, block: u64, units: u64, payload: Payload) -> Request<Payload> {
    Request { op, flags: Flags::NONE, offset: block * UNIT, len: units * UNIT, segments: 1, payload }
}
