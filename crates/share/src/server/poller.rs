//! The thread of a server: looks for requests, polls what waits, sleeps.

mod arriving;
mod ending;
mod heirs;
mod resting;
mod stream;

use super::arena::Arenas;
use super::closer::Closer;
use super::descriptions::Descriptions;
use super::directories::Making;
use super::drains::Drains;
use super::ear::Ear;
use super::holds::Holders;
use super::leases::Lending;
use super::session::{CLEAN_UP, Connection, STREAM};
use super::stats::Board;
use super::tasks::{Bell, Runs, Step, TaskId, TaskWaker, Work, runner};
use super::wakes::Wakes;
use super::{Counters, Options};
use crate::changes::Changes;
use crate::yields::{ALONE, Yields};
use arriving::Refusals;
use foldhash::fast::FixedState;
use format::shared::{SLOTS, state};
use fs::{Devices, FileSystem, Watched};
use parking_lot::Mutex;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// What an event of epoll is about; the connection's number stands above these bits.
const LISTENER: u64 = 0;
const BELL: u64 = 1;
const SOCKET: u64 = 2;
const DOORBELL: u64 = 3;
const PROCESS: u64 = 4;
const DEVICES: u64 = 5;
const KINDS: u32 = 3;

/// Rounds between two looks at the sockets while there is work all the time.
const ROUNDS: u64 = 256;
/// Rounds after which a session that does nothing is no longer looked at.
const QUIET: u64 = 4096;

/// How often the counters are published while there is work all the time: that looks at every session.
const PUBLISH: Duration = Duration::from_millis(20);

/// What the thread works with, besides the file system.
pub(super) type Parts<'a> = (&'a Ear, Arc<dyn Lending>, Arc<dyn Making>, Arc<Drains>, Arc<Descriptions>);

pub(super) struct Poller<F> {
    fs: Arc<Watched<F>>,
    changes: Arc<Changes>,
    arenas: Arc<Arenas>,
    holders: Arc<Holders>,
    leases: Arc<dyn Lending>,
    directories: Arc<dyn Making>,
    drains: Arc<Drains>,
    descriptions: Arc<Descriptions>,
    listener: OwnedFd,
    /// Nobody is let in, as too many sockets wait to be closed.
    is_full: bool,
    refusals: Refusals,
    closer: Arc<Closer>,
    epoll: OwnedFd,
    /// Completions of devices wake the thread when it asks for that (`rest`); and it has asked.
    devices_tell: bool,
    asked_devices: Cell<bool>,
    bell: Arc<Bell>,
    wakes: Arc<Wakes>,
    published: Arc<Mutex<Counters>>,
    board: Arc<Board>,
    counters: Counters,
    options: Options,
    connections: HashMap<u64, Connection, FixedState>,
    /// Sessions whose doorbells are looked at.
    active: Vec<u64>,
    /// More processes than processors: those that are looked at, and this one.
    crowded: bool,
    /// How long there is nothing to do, on the average of the last times.
    gap: Duration,
    /// The thread takes no processor from others when it is woken.
    stands_back: bool,
    yields: Yields,
    processors: usize,
    next: u64,
    round: u64,
    ready: Vec<TaskId>,
    /// Nothing runs in these.
    spare: Vec<Box<dyn Runs>>,
    /// Of this round: session, posted and cancelled slots.
    taken: Vec<(u64, u64, u64)>,
    published_at: Instant,
}

impl<F: FileSystem> Poller<F> {
    pub fn new(
        fs: Arc<Watched<F>>,
        (ear, leases, directories, drains, descriptions): Parts<'_>,
        listener: OwnedFd,
        bell: Arc<Bell>,
        (published, board): (Arc<Mutex<Counters>>, Arc<Board>),
        options: Options,
    ) -> io::Result<Poller<F>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&epoll, &bell.event, EventData::new_u64(BELL), EventFlags::IN)?;
        let devices = fs.readiness();
        let asks = |fd| epoll::add(&epoll, fd, EventData::new_u64(DEVICES), EventFlags::ONESHOT);
        let devices_tell = devices.is_some_and(|fd| asks(fd).is_ok());
        Ok(Poller {
            fs,
            changes: ear.changes.clone(),
            arenas: ear.arenas.clone(),
            holders: ear.holders.clone(),
            leases,
            directories,
            drains,
            descriptions,
            listener,
            is_full: false,
            refusals: Refusals::default(),
            closer: Arc::new(Closer::new(bell.clone())),
            epoll,
            devices_tell,
            asked_devices: Cell::new(false),
            bell,
            wakes: Arc::default(),
            published,
            board,
            counters: Counters::default(),
            options,
            connections: HashMap::default(),
            active: Vec::new(),
            crowded: false,
            gap: Duration::ZERO,
            stands_back: false,
            yields: Yields::new(ALONE),
            // As its control group's share of their time counts, too: with more of them it looks for longer.
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            next: 1,
            round: 0,
            ready: Vec::new(),
            spare: Vec::new(),
            taken: Vec::new(),
            published_at: Instant::now(),
        })
    }

    /// Whether all was done that clients count as done.
    pub fn run(mut self) -> bool {
        while !self.bell.stopping() {
            self.round += 1;
            self.changes.runs_here();
            let worked = self.poll_ready()
                | self.take_requests()
                | self.look_for_drains()
                // Behind them: what they have begun goes to the device before anybody is woken or let in.
                | (self.fs.attend(true) == Devices::Done);
            self.wakes.wake_all();
            if self.round.is_multiple_of(ROUNDS) {
                self.events(Some(0));
                self.retire();
                if self.published_at.elapsed() >= PUBLISH {
                    self.closer.tries_again();
                    self.publish();
                }
            }
            if !worked {
                self.rest();
            }
        }
        self.fs.attend(false);
        self.end_all()
    }

    /// Polls the tasks that were woken.
    fn poll_ready(&mut self) -> bool {
        let mut ready = std::mem::take(&mut self.ready);
        let rung = self.bell.take(&mut ready);
        let worked = !ready.is_empty();
        if rung {
            for id in self.bell.take_evicted() {
                self.evict(id);
            }
            for (id, good) in self.bell.take_heard() {
                self.listen_again(id, good);
            }
            self.let_in_again();
        }
        for (id, slot) in ready.drain(..) {
            if self.poll_task(id, slot) {
                self.run_stream(id);
            }
        }
        self.ready = ready;
        worked
    }

    /// Goes on with a task. Whether that was one of the session's stream, and is done.
    fn poll_task(&mut self, id: u64, slot: usize) -> bool {
        let session = self.connections.get_mut(&id).and_then(|c| c.session.as_mut());
        let Some(session) = session else { return false };
        let waker = session.wakers[slot].get_or_insert_with(|| {
            Waker::from(Arc::new(TaskWaker { task: (id, slot), bell: self.bell.clone() }))
        });
        let mut cx = Context::from_waker(waker);
        match slot {
            CLEAN_UP => {
                if session.clean_up.as_mut().is_some_and(|task| task.as_mut().poll(&mut cx).is_ready()) {
                    self.counters.calls += 1;
                    self.is_clean(id);
                }
            }
            STREAM => {
                if session.stream.task.as_mut().is_some_and(|task| task.poll(&mut cx).is_ready()) {
                    self.counters.calls += session.stream.running;
                    self.spare.extend(session.stream.task.take().map(ended));
                    session.stream.over();
                    return true;
                }
            }
            _ => {
                if session.tasks[slot].as_mut().is_some_and(|task| task.poll(&mut cx).is_ready()) {
                    self.counters.calls += 1;
                    self.spare.extend(session.tasks[slot].take().map(ended));
                }
            }
        }
        false
    }

    /// Takes new requests out of the sessions' memory and starts them. What nobody waits for is taken last and run first: whoever posted a
    /// call knew of everything that others had posted one way before.
    fn take_requests(&mut self) -> bool {
        let mut taken = std::mem::take(&mut self.taken);
        for &id in &self.active {
            let session = self.connections.get_mut(&id).and_then(|c| c.session.as_mut());
            let Some(session) = session.filter(|s| !s.ending) else { continue };
            let region = &session.client.region;
            let take = |word: &AtomicU64| match word.load(Ordering::Relaxed) {
                0 => 0,
                _ => word.swap(0, Ordering::SeqCst),
            };
            let (posted, cancelled) = (take(region.doorbell()), take(region.cancel()));
            if posted | cancelled != 0 {
                session.last = self.round;
                taken.push((id, posted, cancelled));
            }
        }
        let mut worked = !taken.is_empty();
        for i in 0..self.active.len() {
            let id = self.active[i];
            let Some(session) = self.connections.get_mut(&id).and_then(|c| c.session.as_mut()) else {
                continue;
            };
            let region = &session.client.region;
            if region.one_way().load(Ordering::SeqCst) != 0
                || region.closes().load(Ordering::SeqCst) != session.stream.closes
            {
                worked |= self.take_stream(id);
            }
        }
        for (id, posted, cancelled) in taken.drain(..) {
            self.start(id, posted);
            (0..SLOTS).filter(|slot| cancelled & 1 << slot != 0).for_each(|slot| self.give_up(id, slot));
        }
        self.taken = taken;
        worked
    }

    /// Runs the calls in these slots as far as they go at once; behind what their session has posted before.
    fn start(&mut self, id: u64, mut slots: u64) {
        let session = self.connections.get_mut(&id).and_then(|c| c.session.as_mut());
        if let Some(session) = session.filter(|s| !s.stream.is_idle()) {
            session.stream.stashed |= slots;
            return;
        }
        while slots != 0 {
            let slot = slots.trailing_zeros() as usize;
            slots &= slots - 1;
            let session = self.connections.get_mut(&id).and_then(|c| c.session.as_mut());
            let Some(session) = session.filter(|s| !s.ending) else { return };
            // A slot whose call is under way takes no other; whoever rings for it anyway is not answered twice.
            if slot < SLOTS && session.tasks[slot].is_none() {
                let mut task = self.spare.pop().unwrap_or_else(|| runner(&self.fs));
                task.begin(session.client.clone(), Work::Call(slot));
                session.tasks[slot] = Some(task);
                self.poll_task(id, slot);
                self.give_up_early(id, slot);
            }
        }
    }

    /// Drops a call that was begun just now if its client had given it up before: the bit that says so may have been taken before the one of the call.
    fn give_up_early(&mut self, id: u64, slot: usize) {
        let session = self.connections.get_mut(&id).and_then(|c| c.session.as_mut());
        let waits = session.is_some_and(|s| {
            s.tasks[slot].is_some() && s.client.region.state(slot).load(Ordering::SeqCst) == state::GIVEN_UP
        });
        if waits {
            self.give_up(id, slot);
        }
    }

    /// Drops a call that its client no longer wants. It took effect or did not.
    fn give_up(&mut self, id: u64, slot: usize) {
        let session = self.connections.get_mut(&id).and_then(|c| c.session.as_mut());
        let Some(session) = session else { return };
        if session.client.is_transferring(slot) {
            // What a device does ends soon.
            return;
        }
        if session.stream.stashed & 1 << slot != 0 {
            session.stream.cancelled |= 1 << slot;
            return;
        }
        if slot < SLOTS
            && let Some(task) = session.tasks[slot].take()
        {
            self.spare.push(ended(task));
            session.client.interrupted(slot);
        }
    }

    /// Takes in what epoll has, waiting for it at most so many milliseconds.
    fn events(&mut self, milliseconds: Option<i64>) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let timeout = milliseconds
            .map(|ms| rustix::event::Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 });
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => {
                tracing::error!("epoll_wait: {e}");
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
        for event in events {
            let data = event.data.u64();
            let (id, kind) = (data >> KINDS, data & ((1 << KINDS) - 1));
            match kind {
                LISTENER => self.accept(),
                BELL => drain(&self.bell.event),
                SOCKET => self.heard(id, event.flags),
                PROCESS => self.end(id),
                DEVICES => self.asked_devices.set(false),
                _ => self.rung(id),
            }
        }
    }

    /// Tells clients whether there is a crowd.
    fn look_around(&mut self) {
        // With the manager itself.
        let crowd = (self.active.len() + 1).saturating_sub(self.processors) as u32;
        self.crowded = crowd > 0;
        for id in &self.active {
            if let Some(session) = self.connections.get(id).and_then(|c| c.session.as_ref()) {
                session.client.region.crowded().store(crowd, Ordering::Relaxed);
            }
        }
    }

    /// A client that was not looked at has something.
    fn rung(&mut self, id: u64) {
        let session = self.connections.get_mut(&id).and_then(|c| c.session.as_mut());
        let Some(session) = session else { return };
        drain(&session.event);
        session.last = self.round;
        if !std::mem::replace(&mut session.active, true) {
            session.client.region.asleep().store(0, Ordering::SeqCst);
            self.active.push(id);
            self.look_around();
        }
    }

    /// Looks no longer at sessions that have done nothing for long.
    fn retire(&mut self) {
        let (connections, round) = (&mut self.connections, self.round);
        self.active.retain(|id| {
            let Some(session) = connections.get_mut(id).and_then(|c| c.session.as_mut()) else {
                return false;
            };
            if session.last + QUIET > round {
                session.client.region.pulse().fetch_add(1, Ordering::Relaxed);
                return true;
            }
            let region = &session.client.region;
            region.asleep().store(1, Ordering::SeqCst);
            let quiet = !region.rings(session.stream.closes);
            if !quiet {
                region.asleep().store(0, Ordering::SeqCst);
            }
            session.active = !quiet;
            !quiet
        });
        self.look_around();
    }

    fn publish(&mut self) {
        let sessions = self.connections.values().filter_map(|c| c.session.as_ref()).filter(|s| !s.outlived);
        self.counters.sessions = 0;
        self.counters.handles = 0;
        for session in sessions {
            self.counters.sessions += 1;
            self.counters.handles += session.client.handles() as u64;
        }
        self.published_at = Instant::now();
        *self.published.lock() = self.counters;
    }
}

/// A call is over, or given up.
fn ended(mut task: Box<dyn Runs>) -> Box<dyn Runs> {
    task.end();
    task
}

/// Empties an eventfd.
fn drain(event: &OwnedFd) {
    let mut count = [0; 8];
    let _ = rustix::io::read(event, &mut count);
}
