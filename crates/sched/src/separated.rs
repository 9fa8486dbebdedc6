//! A medium whose queues are chosen by [`Separation`]: what it is told by [`Media::submit`] goes to one of the queues that the medium below has.
//!
//! What the medium below promises holds here: nothing is held back, split or merged, each request goes down at once and comes back
//! once, with the token that it came with. Between queues a device keeps no order; nor does a medium with one queue, so nobody
//! above relies on any. A flush goes into the queue in which least is under way, and covers what had completed through any of
//! them ([`Queues::submit_to`]). Flushes, discards and zeroing are not measured: they do not say how fast a queue is.
//!
//! Tested in tests/separated.rs.

use crate::queues::{Config, Direction, Mode, Ns, Placed, Separation};
use media::{Arena, ArenaId, Completion, Geometry, Media, MediaError, Op, Queues, Request, Wait};
use parking_lot::Mutex;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// See the module.
pub struct Separated<M> {
    media: M,
    begun: Instant,
    /// Held for a placement or the completions of one reap; the medium below is not called under it.
    state: Mutex<State>,
}

struct State {
    separation: Separation,
    /// By the token that the medium below knows.
    flights: Vec<Flight>,
    free: Vec<usize>,
}

#[derive(Clone, Copy)]
struct Flight {
    token: u64,
    /// `None`: it is not measured.
    placed: Option<Placed>,
}

impl State {
    fn keep(&mut self, flight: Flight) -> u64 {
        match self.free.pop() {
            Some(slot) => {
                self.flights[slot] = flight;
                slot as u64
            }
            None => {
                self.flights.push(flight);
                self.flights.len() as u64 - 1
            }
        }
    }

    fn back(&mut self, completion: &mut Completion, now: Ns) {
        let slot = completion.token as usize;
        let Flight { token, placed } = self.flights[slot];
        self.free.push(slot);
        completion.token = token;
        match (placed, &completion.result) {
            (Some(placed), Ok(())) => self.separation.done(placed, now),
            (Some(placed), Err(_)) => self.separation.failed(placed, now),
            (None, _) => {}
        }
    }
}

impl<M: Queues> Separated<M> {
    /// Over `media`, none of whose requests is under way. Nobody else may submit to it or reap from it any more.
    pub fn new(media: M, mode: Mode) -> Separated<M> {
        let config = Config { mode, ..Config::new(media.queues()) };
        let state = State { separation: Separation::new(config), flights: Vec::new(), free: Vec::new() };
        Separated { media, begun: Instant::now(), state: Mutex::new(state) }
    }

    /// The medium below.
    pub fn below(&self) -> &M {
        &self.media
    }

    /// How requests are placed now: a copy.
    pub fn separation(&self) -> Separation {
        self.state.lock().separation.clone()
    }

    fn now(&self) -> Ns {
        self.begun.elapsed().as_nanos() as Ns
    }

    /// What has completed gets its own tokens again.
    fn back(&self, done: &mut [Completion]) {
        if !done.is_empty() {
            let now = self.now();
            let mut state = self.state.lock();
            done.iter_mut().for_each(|completion| state.back(completion, now));
        }
    }
}

impl<M: Queues> Media for Separated<M> {
    fn geometry(&self) -> &Geometry {
        self.media.geometry()
    }

    fn register(&self, arena: Arc<Arena>) -> Result<ArenaId, MediaError> {
        self.media.register(arena)
    }
    fn unregister(&self, arena: ArenaId) {
        self.media.unregister(arena);
    }

    fn submit(&self, request: Request) {
        let direction = match request.op {
            Op::Read => Some(Direction::Read),
            Op::Write => Some(Direction::Write),
            Op::Flush | Op::Discard | Op::WriteZeroes => None,
        };
        let now = self.now();
        let (queue, token) = {
            let mut state = self.state.lock();
            let placed = direction.map(|direction| state.separation.place(direction, request.len, now));
            let queue = placed.map_or_else(|| state.separation.idlest(), |placed| placed.queue);
            (queue, state.keep(Flight { token: request.token, placed }))
        };
        self.media.submit_to(queue, Request { token, ..request });
    }

    fn kick(&self) {
        self.media.kick();
    }

    fn reap(&self, out: &mut Vec<Completion>, wait: Wait) {
        let before = out.len();
        self.media.reap(out, wait);
        self.back(&mut out[before..]);
    }

    fn wake(&self) {
        self.media.wake();
    }

    fn is_polled(&self) -> bool {
        self.media.is_polled()
    }

    fn care(&self) -> Option<Duration> {
        self.media.care()
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.media.readiness()
    }

    fn look(&self, out: &mut Vec<Completion>) {
        let before = out.len();
        self.media.look(out);
        self.back(&mut out[before..]);
    }
}
