//! The order layer over a [`Media`].
//!
//! It needs [`media::Geometry::barrier`], and says so when the medium has none. It must be the only user of the medium's
//! completions. Requests wait here, not inside the medium, once the device has as many as it works on at a time.
//!
//! A failed ordered write breaks the order, since later epochs may be with the device already. The failure latches: what is
//! queued with an order, and whatever is submitted with one later, fails with the same error. Orderless requests go on.
//!
//! A delimiter becomes a write of the *carrier*, a place that holds nothing else.
//!
//! May be used by any thread; one thread at a time reaps. One lock covers the queues, and is not held while the medium waits.

use crate::dispatch::{Sink, pump};
use crate::scheduler::{Command, Config, Counters, Refusal, Request as Queueable, Scheduler};
use media::{BufRef, Completion, Geometry, Media, MediaError, Op, Request, Wait};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;

/// Why a medium or a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// The medium does not promise to honour barriers.
    #[error("{device}: the device has no barriers")]
    NoBarrier {
        /// Which device.
        device: String,
    },
    /// The carrier is not something that can be written to the medium.
    #[error("{device}: the carrier is not aligned or lies outside the device")]
    Carrier {
        /// Which device.
        device: String,
    },
    /// The request cannot be queued.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// An ordered write has failed before.
    #[error("an earlier write in order has failed: {0}")]
    Latched(MediaError),
}

impl OrderError {
    /// The errno(3) value that fits best.
    pub fn errno(&self) -> i32 {
        match self {
            OrderError::NoBarrier { .. } => libc::EOPNOTSUPP,
            OrderError::Carrier { .. } => libc::EINVAL,
            OrderError::Refused(Refusal::Full) => libc::EAGAIN,
            OrderError::Refused(_) => libc::EINVAL,
            OrderError::Latched(e) => e.errno(),
        }
    }
}

/// Where and what a delimiter writes. The memory must not change while the layer lives.
#[derive(Clone, Debug)]
pub struct Carrier {
    /// Where on the device, bytes. Holds nothing else.
    pub offset: u64,
    /// What is written there.
    pub buf: BufRef,
}

/// A submitted request.
struct Part {
    token: u64,
    bufs: SmallVec<[BufRef; 1]>,
}

/// A command that the medium has.
struct Flight {
    ordered: bool,
    tokens: SmallVec<[u64; 1]>,
}

struct Inner {
    scheduler: Scheduler<Part>,
    flights: Flights,
    /// For the next reap.
    done: Vec<Completion>,
    latched: Option<MediaError>,
}

/// Commands with the medium, by the token under which it has them.
#[derive(Default)]
struct Flights {
    slots: Vec<Option<Flight>>,
    free: Vec<usize>,
}

impl Flights {
    fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }
    fn add(&mut self, flight: Flight) -> u64 {
        let slot = self.free.pop().unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[slot] = Some(flight);
        slot as u64
    }
    fn remove(&mut self, token: u64) -> Option<Flight> {
        let flight = self.slots.get_mut(token as usize)?.take()?;
        self.free.push(token as usize);
        Some(flight)
    }
}

/// The layer.
pub struct OrderLayer {
    media: Arc<dyn Media>,
    carrier: Carrier,
    inner: Mutex<Inner>,
}

/// The medium as a sink.
struct ToMedia<'a> {
    media: &'a dyn Media,
    carrier: &'a Carrier,
    flights: &'a mut Flights,
}

impl Sink<Part> for ToMedia<'_> {
    fn room(&self) -> bool {
        self.flights.count() < (self.media.geometry().queue_depth as usize).max(1)
    }

    fn dispatch(&mut self, command: Command<Part>) {
        let ordered = command.epoch.is_some();
        let tokens = command.parts.iter().map(|part| part.token).collect();
        let delimiter = command.is_delimiter();
        let token = self.flights.add(Flight { ordered, tokens });
        let request = match command.op {
            Op::Write if delimiter => {
                Request::transfer(Op::Write, self.carrier.offset, self.carrier.buf, token)
            }
            Op::Read | Op::Write => {
                let bufs = command.parts.into_iter().flat_map(|part| part.bufs).collect();
                Request::vectored(command.op, command.offset, bufs, token)
            }
            Op::Flush => Request::flush(token),
            Op::Discard | Op::WriteZeroes => Request::range(command.op, command.offset, command.len, token),
        };
        self.media.submit(Request { flags: command.flags, ..request });
    }
}

impl OrderLayer {
    /// A layer over `media`, whose limits replace those of `config`. Fails with EOPNOTSUPP when the medium has no barriers,
    /// EINVAL when the carrier cannot be written to it.
    pub fn new(
        media: Arc<dyn Media>,
        mut config: Config,
        carrier: Carrier,
    ) -> Result<OrderLayer, OrderError> {
        let g = media.geometry();
        if !g.barrier {
            return Err(OrderError::NoBarrier { device: g.name.clone() });
        }
        let len = carrier.buf.len as u64;
        let aligned = carrier.offset.is_multiple_of(g.sector as u64) && len.is_multiple_of(g.sector as u64);
        let inside = carrier.offset.checked_add(len).is_some_and(|end| end <= g.bytes);
        if !aligned || !inside || len == 0 {
            return Err(OrderError::Carrier { device: g.name.clone() });
        }
        config.len_max = g.max_transfer as u64;
        config.segments_max = config.segments_max.min(media::MAX_BUFS as u32);
        let scheduler = Scheduler::new(config);
        let inner = Inner { scheduler, flights: Flights::default(), done: Vec::new(), latched: None };
        Ok(OrderLayer { media, carrier, inner: Mutex::new(inner) })
    }

    /// What the device is and promises.
    pub fn geometry(&self) -> &Geometry {
        self.media.geometry()
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        self.inner.lock().scheduler.counters()
    }

    /// Queues a request that may cross epochs. EAGAIN: too many wait, reap first. Leaves nothing behind when it fails.
    pub fn submit(&self, request: Request) -> Result<(), OrderError> {
        let queued = self.inner.lock().scheduler.submit(queueable(request));
        queued.map_err(|refused| refused.why.into())
    }

    /// Queues a write of the open epoch and returns the epoch's number. As [`OrderLayer::submit`], and fails for good once an
    /// ordered write has failed.
    pub fn submit_ordered(&self, request: Request) -> Result<u64, OrderError> {
        let mut inner = self.inner.lock();
        if let Some(error) = &inner.latched {
            return Err(OrderError::Latched(error.clone()));
        }
        inner.scheduler.submit_ordered(queueable(request)).map_err(|refused| refused.why.into())
    }

    /// Ends the open epoch: what was submitted with an order persists before what follows. Waits for nothing. Returns the
    /// number of the newest complete epoch.
    pub fn barrier(&self) -> u64 {
        self.inner.lock().scheduler.barrier()
    }

    /// Hands over as much as the device takes. Never blocks.
    pub fn kick(&self) {
        self.dispatch(&mut self.inner.lock());
    }

    /// Appends completions to `out` under the tokens of the requests, waiting as `wait` says when there are none; a time
    /// limit holds for each wait, and one that ends with delimiters only returns nothing.
    pub fn reap(&self, out: &mut Vec<Completion>, wait: Wait) {
        let wait = {
            let mut inner = self.inner.lock();
            self.dispatch(&mut inner);
            if inner.done.is_empty() { wait } else { Wait::No }
        };
        let mut reaped = Vec::new();
        self.media.reap(&mut reaped, wait);
        let mut inner = self.inner.lock();
        for completion in reaped {
            inner.complete(completion);
        }
        self.dispatch(&mut inner);
        out.append(&mut inner.done);
    }

    fn dispatch(&self, inner: &mut Inner) {
        let Inner { scheduler, flights, .. } = inner;
        let mut sink = ToMedia { media: &*self.media, carrier: &self.carrier, flights };
        if pump(scheduler, &mut sink) > 0 {
            self.media.kick();
        }
    }
}

impl Inner {
    fn complete(&mut self, completion: Completion) {
        let Some(flight) = self.flights.remove(completion.token) else { return };
        let result = &completion.result;
        self.done.extend(flight.tokens.iter().map(|&token| Completion { token, result: result.clone() }));
        if let (true, Err(error), None) = (flight.ordered, result, &self.latched) {
            let fail = |part: Part| Completion { token: part.token, result: Err(error.clone()) };
            self.done.extend(self.scheduler.drain_ordered().into_iter().map(fail));
            self.latched = Some(error.clone());
        }
    }
}

fn queueable(request: Request) -> Queueable<Part> {
    let Request { op, flags, offset, len, bufs, token } = request;
    let segments = bufs.len() as u32;
    Queueable { op, flags, offset, len, segments, payload: Part { token, bufs } }
}
