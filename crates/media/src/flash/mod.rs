//! A simulated flash device for crash tests: deterministic, sparse, with every freedom that a real device has.
//!
//! The device holds two copies of its contents: what reads see, and what is durable ([`CrashState`], whose module states
//! the rules of power failures). A request is carried out when its completion is reaped, and then at once and in an order
//! that the seed decides, so engines meet every legal order of overlapping requests. It checks the engine as well:
//! memory of a read is filled with [`POISON`] until the read is done, memory of a write must not change before its
//! completion, discarded ranges read as [`DISCARDED`].
//!
//! Deterministic when used by one thread; may be used by many. Tested in tests/flash.rs and tests/conformance.rs.

mod cache;
mod config;
mod contents;
mod fault;
mod trace;

pub use cache::{Change, CrashState, DISCARDED, Event, PendingWrite};
pub use config::{Config, Lies, Order};
pub use contents::Contents;
pub use fault::{Failure, Fault};
pub use trace::{Cursor, Trace};

use crate::counters::Counters;
use crate::front::Front;
use crate::{Arena, ArenaId, Completion, Geometry, Media, MediaError, Op, Request, Wait};
use fault::Faults;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Byte that the memory of a read holds until the read is done.
pub const POISON: u8 = 0xA5;

/// The device.
pub struct SimFlash {
    front: Front,
    config: Arc<Config>,
    inner: Mutex<Inner>,
    arrived: Condvar,
}

/// A request between submission and completion.
struct InFlight {
    request: Request,
    /// Number of the change or flush.
    id: u64,
    epoch: u32,
    /// Memory of a write as it was when submitted.
    data: Arc<[u8]>,
    failure: Option<Failure>,
}

struct Inner {
    /// What reads see.
    visible: Contents,
    power: CrashState,
    trace: Option<Trace>,
    /// Waits for a kick.
    queued: Vec<InFlight>,
    /// With the device.
    flying: VecDeque<InFlight>,
    /// Refused requests.
    done: VecDeque<Completion>,
    faults: Faults,
    gone: bool,
    woken: bool,
    next_id: u64,
    random: u64,
}

impl SimFlash {
    /// A device full of zeros. Fails with EINVAL when the configuration makes no sense.
    pub fn new(config: Config) -> Result<SimFlash, MediaError> {
        if !config.check() {
            return Err(MediaError::Setup {
                device: "simulated flash".into(),
                doing: "checking the configuration",
                errno: libc::EINVAL,
            });
        }
        let contents = Contents::new(config.bytes);
        Ok(SimFlash::from_contents(Arc::new(config), contents))
    }

    fn from_contents(config: Arc<Config>, contents: Contents) -> SimFlash {
        let inner = Inner {
            visible: contents.clone(),
            power: CrashState::new(config.clone(), contents),
            trace: None,
            queued: Vec::new(),
            flying: VecDeque::new(),
            done: VecDeque::new(),
            faults: Faults::default(),
            gone: false,
            woken: false,
            next_id: 0,
            random: config.seed,
        };
        let front = Front::new(config.geometry());
        SimFlash { front, config, inner: Mutex::new(inner), arrived: Condvar::new() }
    }

    /// What kind of device it is.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What was asked of it.
    pub fn counters(&self) -> Counters {
        self.front.counters()
    }

    /// Adds a fault to those that wait.
    pub fn inject(&self, fault: Fault) {
        self.inner.lock().faults.inject(fault);
    }

    /// Removes all faults that wait, and brings back a device that was gone.
    pub fn clear_faults(&self) {
        let mut inner = self.inner.lock();
        inner.faults.clear();
        inner.gone = false;
    }

    /// Changes that a power failure now might undo, completed ones first.
    pub fn pending(&self) -> Vec<PendingWrite> {
        self.inner.lock().power.pending().cloned().collect()
    }

    /// What a power failure now might leave. Cheap: contents are shared.
    pub fn crash_state(&self) -> CrashState {
        self.inner.lock().power.clone()
    }

    /// A device like this one after a power failure now. See [`CrashState::crash_image`].
    pub fn crash_image(&self, choose: impl FnMut(&PendingWrite, u32) -> bool) -> SimFlash {
        self.crash_state().crash_image(choose)
    }

    /// Begins a trace, or ends it and forgets it.
    pub fn set_trace(&self, on: bool) {
        let mut inner = self.inner.lock();
        inner.trace = on.then(|| Trace::new(inner.power.clone()));
    }

    /// Ends the trace and returns it, if there is one.
    pub fn take_trace(&self) -> Option<Trace> {
        self.inner.lock().trace.take()
    }

    /// Puts a note into the trace: "here the engine said that operation `note` is durable".
    pub fn mark(&self, note: u64) {
        self.inner.lock().event(Event::Mark(note));
    }

    /// What reads would see now. The range must lie within the device.
    pub fn peek(&self, offset: u64, to: &mut [u8]) {
        assert!(offset + to.len() as u64 <= self.config.bytes);
        self.inner.lock().visible.read(offset, to);
    }

    /// Changes bytes behind the engine's back, durably: bit rot. Not part of a trace. The range must lie within the device.
    pub fn poke(&self, offset: u64, from: &[u8]) {
        assert!(offset + from.len() as u64 <= self.config.bytes);
        let mut inner = self.inner.lock();
        inner.visible.write(offset, from);
        inner.power.durable_mut().write(offset, from);
    }

    /// Carries out a request. `Err` is what the engine is told.
    fn perform(&self, inner: &mut Inner, flying: &InFlight) -> Result<(), MediaError> {
        let request = &flying.request;
        if inner.gone {
            return Err(self.front.gone());
        }
        let (moved, result) = self.moved(flying);
        match request.op {
            Op::Flush => inner.event(Event::FlushDone { id: flying.id, ok: result.is_ok() }),
            Op::Read => self.read(inner, request, moved),
            Op::Write | Op::WriteZeroes | Op::Discard => {
                if request.op == Op::Write && self.gather(request)[..] != flying.data[..] {
                    inner.event(Event::Complete { id: flying.id, kept: 0 });
                    return Err(self.front.refused("memory changed while it was being written"));
                }
                inner.put(&self.config, flying, moved);
                inner.event(Event::Complete { id: flying.id, kept: moved });
            }
        }
        result
    }

    /// How many bytes a request moves, and what it says.
    fn moved(&self, flying: &InFlight) -> (u64, Result<(), MediaError>) {
        let request = &flying.request;
        match flying.failure {
            None => (request.len, Ok(())),
            Some(Failure::Short(bytes)) if matches!(request.op, Op::Read | Op::Write) => {
                let sector = self.config.sector as u64;
                let moved = (bytes / sector * sector).min(request.len - sector);
                (moved, Err(self.front.short(request, moved)))
            }
            Some(Failure::Errno(errno)) => (0, Err(self.front.io(request, errno))),
            Some(_) => (0, Err(self.front.io(request, libc::EIO))),
        }
    }

    fn read(&self, inner: &Inner, request: &Request, moved: u64) {
        let mut data = vec![0; moved as usize];
        inner.visible.read(request.offset, &mut data);
        let mut rest = &data[..];
        for buf in &request.bufs {
            let (part, more) = rest.split_at(rest.len().min(buf.len as usize));
            self.front.copy_in(buf, part);
            rest = more;
        }
    }

    fn gather(&self, request: &Request) -> Vec<u8> {
        let mut data = vec![0; request.len as usize];
        let mut rest = &mut data[..];
        for buf in &request.bufs {
            let (part, more) = rest.split_at_mut(buf.len as usize);
            self.front.copy_out(buf, part);
            rest = more;
        }
        data
    }
}

impl Inner {
    fn event(&mut self, event: Event) {
        self.power.apply(&event);
        if let Some(trace) = &mut self.trace {
            trace.record(event, &self.power);
        }
    }

    /// A number below `n` (splitmix64).
    fn below(&mut self, n: usize) -> usize {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.random;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((x ^ (x >> 31)) % n as u64) as usize
    }

    fn put(&mut self, config: &Config, flying: &InFlight, moved: u64) {
        if let Some(change) = change(flying.request.op) {
            let write = PendingWrite::new(config, change, &flying.request, flying.data.clone());
            write.apply(write.offset..write.offset + moved, &mut self.visible);
        }
    }

    /// Index in `flying` of the request that completes next. Where there are barriers, changes of an epoch complete
    /// only after those of the epochs before.
    fn pick(&mut self, order: Order) -> Option<usize> {
        if order == Order::Submission || self.flying.len() < 2 {
            return (!self.flying.is_empty()).then_some(0);
        }
        let oldest = self.power.oldest_epoch();
        let may = |f: &InFlight| change(f.request.op).is_none() || f.epoch == oldest;
        let candidates: Vec<usize> = (0..self.flying.len()).filter(|&i| may(&self.flying[i])).collect();
        if candidates.is_empty() {
            return Some(0);
        }
        let n = self.below(candidates.len());
        Some(candidates[n])
    }
}

fn change(op: Op) -> Option<Change> {
    match op {
        Op::Write => Some(Change::Write),
        Op::WriteZeroes => Some(Change::Zeroes),
        Op::Discard => Some(Change::Discard),
        Op::Read | Op::Flush => None,
    }
}

impl Media for SimFlash {
    fn geometry(&self) -> &Geometry {
        &self.front.geometry
    }

    fn register(&self, arena: Arc<Arena>) -> Result<ArenaId, MediaError> {
        self.front.register(arena)
    }

    fn unregister(&self, arena: ArenaId) {
        self.front.unregister(arena);
    }

    fn submit(&self, request: Request) {
        let mut inner = self.inner.lock();
        if let Err(e) = self.front.admit(&request) {
            inner.done.push_back(Completion { token: request.token, result: Err(e) });
            return;
        }
        let failure = inner.faults.strike(&request);
        inner.gone |= failure == Some(Failure::Gone);
        let id = inner.next_id;
        inner.next_id += 1;
        let epoch = inner.power.next_epoch();
        let mut data: Arc<[u8]> = Arc::new([]);
        match request.op {
            Op::Read => request.bufs.iter().for_each(|buf| self.front.poison(buf, POISON)),
            Op::Flush => inner.event(Event::FlushSubmit { id }),
            Op::Write => data = self.gather(&request).into(),
            Op::Discard | Op::WriteZeroes => {}
        }
        if let (Some(change), false) = (change(request.op), inner.gone) {
            let mut write = PendingWrite::new(&self.config, change, &request, data.clone());
            (write.id, write.epoch) = (id, epoch);
            inner.event(Event::Submit(write));
        }
        inner.queued.push(InFlight { request, id, epoch, data, failure });
    }

    fn kick(&self) {
        let inner = &mut *self.inner.lock();
        if !inner.queued.is_empty() {
            self.front.meter.kicked();
            inner.flying.extend(inner.queued.drain(..));
        }
        self.arrived.notify_all();
    }

    fn reap(&self, out: &mut Vec<Completion>, wait: Wait) {
        let deadline = match wait {
            Wait::For(Some(time)) => Instant::now().checked_add(time),
            _ => None,
        };
        let mut guard = self.inner.lock();
        while guard.done.is_empty() && guard.flying.is_empty() {
            if wait == Wait::No {
                return;
            }
            if std::mem::take(&mut guard.woken) || (deadline.is_none() && !self.config.wait_when_idle) {
                return;
            }
            match deadline {
                Some(deadline) if self.arrived.wait_until(&mut guard, deadline).timed_out() => return,
                Some(_) => {}
                None => self.arrived.wait(&mut guard),
            }
        }
        let inner = &mut *guard;
        out.extend(inner.done.drain(..));
        let most = match self.config.order {
            Order::Submission => usize::MAX,
            Order::Shuffled { batch } => 1 + inner.below(batch.max(1) as usize),
        };
        for _ in 0..most {
            let Some(index) = inner.pick(self.config.order) else { break };
            let Some(flying) = inner.flying.remove(index) else { break };
            let result = self.perform(inner, &flying);
            out.push(Completion { token: flying.request.token, result });
        }
    }

    fn wake(&self) {
        self.inner.lock().woken = true;
        self.arrived.notify_all();
    }
}
