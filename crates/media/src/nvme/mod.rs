//! NVMe controllers, driven from this process through VFIO: no kernel between the engine and the device (UHSFS).
//!
//! Layers, each known to the one above only: [`bus`] (registers, memory for the device, interrupts) | `ring` (a pair of queues in
//! memory) | `admin` (the controller as a whole) and `pair` (requests on an I/O queue pair; `plan`, `pointer` and `command` build commands) |
//! this file (the medium) with `recover` (timeouts, resets, removal). [`vfio`] is the bus of real devices; the simulated
//! controller, `fake`, is another.
//!
//! Any thread submits: it takes the lock of one queue pair, its own as long as there are enough, and writes entries; the doorbell
//! is rung once for a batch, by [`Media::kick`]. One thread at a time reaps: it looks at the queues for a while
//! ([`Options::poll`]), then sleeps until an interrupt. Requests that find no place wait in the pair.
//!
//! What is acknowledged is what the controller completed with success. A command that does not complete is aborted; if that does
//! not help the controller is reset. Reads are then made again; writes and flushes that were under way fail, for nobody knows
//! their fate. If completed writes may have been in the controller's cache alone, no later flush succeeds either. A
//! controller that is gone or stays stuck is cut off from memory before its requests fail; all later ones fail.
//!
//! Source: NVM Express Base Specification 1.4. Tested in tests/nvme.rs and tests/conformance.rs over the simulated controller.

mod admin;
pub mod bus;
mod command;
mod dma;
mod event;
pub mod fake;
mod inspect;
mod iova;
mod limits;
mod pair;
mod pci;
mod plan;
mod pointer;
mod recover;
mod ring;
mod start;
pub mod vfio;

pub use inspect::{Inspection, inspect};
pub use pci::PciAddress;

use crate::counters::Counters;
use crate::front::put;
use crate::{Arena, ArenaId, Completion, Geometry, Media, MediaError, Op, Queues, Request, Wait};
use admin::Admin;
use bus::Bus;
use pair::{Context, Pair};
use parking_lot::Mutex;
use recover::Watch;
use ring::Shadow;
use rustix::event::{PollFd, PollFlags};
use smallvec::SmallVec;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

/// How to drive a controller.
#[derive(Clone, Debug)]
pub struct Options {
    /// Refuse everything that changes the device.
    pub read_only: bool,
    /// The namespace; `None`: the active one with the smallest identifier.
    pub namespace: Option<u32>,
    /// I/O queue pairs, 1 to 64; fewer if the controller has fewer.
    pub queues: u16,
    /// Commands under way in each queue pair, 1 to 1023; fewer if the controller's queues are shorter.
    pub depth: u16,
    /// How long a thread that reaps looks at the queues before it sleeps until an interrupt.
    pub poll: Duration,
    /// Sleep until interrupts. Without, a thread that waits for commands looks every 50 microseconds.
    pub interrupts: bool,
    /// Doorbells in memory, where the controller has such.
    pub shadow_doorbells: bool,
    /// A command that takes longer is aborted.
    pub timeout: Duration,
    /// An admin command that takes longer gets no answer: one that only asks is left to itself then, any other leads to a reset. So does a command
    /// that was to be aborted and takes longer, or 10 seconds.
    pub admin_timeout: Duration,
}

impl Default for Options {
    fn default() -> Options {
        let queues = std::thread::available_parallelism().map_or(1, |n| n.get().min(4)) as u16;
        Options {
            read_only: false,
            namespace: None,
            queues,
            depth: 127,
            poll: Duration::from_micros(100),
            interrupts: true,
            shadow_doorbells: true,
            timeout: Duration::from_secs(30),
            admin_timeout: Duration::from_secs(60),
        }
    }
}

/// Longest time between two looks at a controller that has nothing to do.
const CARE: Duration = Duration::from_secs(1);

/// How the driver fared, beside [`Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Commands that were to be aborted.
    pub aborts: u64,
    /// Resets of the controller.
    pub resets: u64,
    /// Asynchronous events that the controller reported.
    pub events: u64,
    /// Doorbells in memory that the controller may have missed, and was told of a second time.
    pub nudges: u64,
}

/// A namespace of an NVMe controller.
pub struct NvmeMedia {
    context: Context,
    options: Options,
    /// Covers the admin queue. Taken after `reaper`, before those of the pairs.
    admin: Mutex<Admin>,
    /// Whoever reaps waits for `admin`.
    admin_needed: Arc<AtomicBool>,
    /// Each covers one queue pair. No other lock but a leaf is taken under it.
    pairs: Vec<Mutex<Pair>>,
    /// [`Pair::submit`] wrote entries that wait for a doorbell. By pair.
    unrung: Vec<AtomicBool>,
    shadow: Option<Arc<Shadow>>,
    /// Arenas: where the device sees them, and how long they are. A leaf.
    mapped: Mutex<Vec<(u64, usize)>>,
    /// Held by the thread that reaps.
    reaper: Mutex<Watch>,
    /// Completions of requests that never reached a pair. A leaf.
    refused: Mutex<Vec<Completion>>,
    any_refused: AtomicBool,
    /// Nothing works any more.
    dead: AtomicBool,
    woken: AtomicBool,
    /// The reaper is about to sleep, or sleeps.
    waiting: AtomicBool,
    aborts: AtomicU64,
    resets: AtomicU64,
    events: AtomicU64,
    nudges: AtomicU64,
    /// eventfd(2) that ends the sleep of the reaper.
    alarm: OwnedFd,
    bus: Arc<dyn Bus>,
}

/// Queue pair of this thread, modulo their number.
fn own_queue() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static OWN: usize = NEXT.fetch_add(1, Relaxed));
    OWN.with(|own| *own)
}

impl NvmeMedia {
    /// Opens the controller at a PCI address, which is bound to vfio-pci and which nobody else uses (`EBUSY`).
    pub fn open(address: PciAddress, options: Options) -> Result<NvmeMedia, MediaError> {
        NvmeMedia::start(Arc::new(vfio::VfioBus::open(address)?), options)
    }

    /// Takes over the controller behind `bus`. The name of the medium is that of the bus.
    pub fn start(bus: Arc<dyn Bus>, options: Options) -> Result<NvmeMedia, MediaError> {
        start::start(bus, options)
    }

    /// What was asked of it.
    pub fn counters(&self) -> Counters {
        self.context.front.counters()
    }

    /// What went wrong so far.
    pub fn health(&self) -> Health {
        let numbers = [&self.aborts, &self.resets, &self.events, &self.nudges];
        let [aborts, resets, events, nudges] = numbers.map(|n| n.load(Relaxed));
        Health { aborts, resets, events, nudges }
    }

    /// Requests that were submitted and are not completed, those that wait for a place included.
    pub fn in_flight(&self) -> usize {
        self.pairs.iter().map(|pair| pair.lock().requests()).sum()
    }

    /// I/O queue pairs in use.
    pub fn queues(&self) -> usize {
        self.pairs.len()
    }

    /// As [`Media::submit`], through a queue pair of the caller's choice, below [`NvmeMedia::queues`].
    pub fn submit_to(&self, queue: usize, request: Request) {
        let checked = self.admit(&request);
        if checked.is_err() || self.dead.load(SeqCst) {
            let result = checked.and_then(|()| Err(self.context.front.gone()));
            return self.refuse(Completion { token: request.token, result });
        }
        self.pairs[queue].lock().submit(request, &self.context);
        self.unrung[queue].store(true, SeqCst);
        // Whoever declared it dead in between has failed the requests of all pairs, but perhaps not this one.
        if self.dead.load(SeqCst) {
            self.pairs[queue].lock().fail_all(&self.context);
            self.interrupt();
        }
    }

    fn admit(&self, request: &Request) -> Result<(), MediaError> {
        if self.options.read_only && matches!(request.op, Op::Write | Op::Discard | Op::WriteZeroes) {
            return Err(self.context.front.refused("it is open for reading alone"));
        }
        self.context.front.admit(request)
    }

    fn refuse(&self, completion: Completion) {
        self.refused.lock().push(completion);
        self.any_refused.store(true, SeqCst);
        self.interrupt();
    }

    /// Ends the sleep of the reaper, if it sleeps. Whoever calls this has changed what the reaper looks at after setting
    /// `waiting`; as both sides write first and then read, one of them sees the other.
    fn interrupt(&self) {
        if self.waiting.load(SeqCst) {
            let _ = rustix::io::write(&self.alarm, &1u64.to_ne_bytes());
        }
    }

    /// Takes in everything that has ended.
    fn collect(&self, watch: &mut Watch, out: &mut Vec<Completion>) {
        if self.any_refused.swap(false, SeqCst) {
            out.append(&mut self.refused.lock());
        }
        let mut broken = None;
        for pair in &self.pairs {
            if let Err(why) = pair.lock().collect(&self.context, out) {
                broken = Some(why);
            }
        }
        if let Some(why) = broken {
            self.recover(watch, why);
        }
    }

    fn has_news(&self) -> bool {
        self.any_refused.load(SeqCst)
            || self.pairs.iter().any(|pair| pair.lock().has_news())
            || !self.dead.load(SeqCst) && self.admin.try_lock().is_some_and(|admin| admin.has_news())
    }

    /// Commands with the controller.
    fn commands(&self) -> usize {
        self.pairs.iter().map(|pair| pair.lock().commands()).sum()
    }

    /// Sleeps until an interrupt, a call of [`NvmeMedia::interrupt`], or `limit`.
    fn sleep(&self, limit: Duration) {
        let interrupt = self.bus.interrupt().filter(|_| self.options.interrupts);
        let mut fds: SmallVec<[PollFd<'_>; 2]> = SmallVec::new();
        fds.push(PollFd::new(&self.alarm, PollFlags::IN));
        fds.extend(interrupt.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let limit = rustix::event::Timespec::try_from(limit).ok();
        let _ = rustix::event::poll(&mut fds, limit.as_ref());
    }

    /// Forgets interrupts and alarms. What they announced is looked for afterwards.
    fn drain(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.alarm, &mut count);
        if let Some(fd) = self.bus.interrupt() {
            let _ = rustix::io::read(fd, &mut count);
        }
    }

    fn has_interrupts(&self) -> bool {
        self.options.interrupts && self.bus.interrupt().is_some()
    }

    /// Longest sleep in one piece. With commands under way somebody has to look whether the controller still lives; without, other
    /// threads may send some whose completions never interrupt the sleep.
    fn nap(&self, deadline: Option<Instant>) -> Duration {
        let longest = match (self.commands(), self.has_interrupts()) {
            (0, _) => CARE,
            (_, true) => recover::LOOK,
            (_, false) => Duration::from_micros(50),
        };
        deadline.map_or(longest, |d| d.saturating_duration_since(Instant::now()).min(longest))
    }
}

impl Media for NvmeMedia {
    fn geometry(&self) -> &Geometry {
        &self.context.front.geometry
    }

    fn register(&self, arena: Arc<Arena>) -> Result<ArenaId, MediaError> {
        if self.dead.load(SeqCst) {
            return Err(self.context.front.gone());
        }
        // The lock keeps the order of numbers the same here and in the front.
        let mut arenas = self.context.arenas.write();
        // SAFETY: the front keeps the arena until it is unmapped: by `unregister`, or when the medium is dropped.
        let device = unsafe { self.bus.map(arena.ptr(0, arena.len()), arena.len()) }.map_err(|e| {
            let errno = e.raw_os_error().unwrap_or(libc::EIO);
            MediaError::Setup {
                device: self.bus.name().into(),
                doing: "mapping memory for the device",
                errno,
            }
        })?;
        let len = arena.len();
        let id = self.context.front.register(arena).inspect_err(|_| self.bus.unmap(device, len))?;
        self.mapped.lock().push((device, len));
        put(&mut arenas, id.0 as usize, device);
        Ok(id)
    }

    fn unregister(&self, arena: ArenaId) {
        let device = self.context.arenas.read().get(arena.0 as usize).copied();
        let mapping = {
            let mut mapped = self.mapped.lock();
            let at = mapped.iter().position(|&(at, _)| Some(at) == device);
            at.map(|at| mapped.swap_remove(at))
        };
        if let Some((device, len)) = mapping {
            self.bus.unmap(device, len);
        }
        self.context.front.unregister(arena);
    }

    fn submit(&self, request: Request) {
        self.submit_to(own_queue() % self.pairs.len(), request);
    }

    fn kick(&self) {
        let (mut kicked, mut ended) = (false, false);
        for (pair, unrung) in self.pairs.iter().zip(&self.unrung) {
            if unrung.swap(false, SeqCst) {
                ended |= pair.lock().send_all(&self.context);
                kicked = true;
            }
        }
        if kicked {
            self.context.front.meter.kicked();
            if ended || !self.has_interrupts() {
                self.interrupt();
            }
        }
    }

    fn reap(&self, out: &mut Vec<Completion>, wait: Wait) {
        let mut watch = match wait {
            // Who reaps looks after the device, and may do so for long.
            Wait::No => match self.reaper.try_lock() {
                Some(watch) => watch,
                None => return,
            },
            Wait::For(_) => self.reaper.lock(),
        };
        let watch = &mut *watch;
        let before = out.len();
        let start = Instant::now();
        let deadline = match wait {
            Wait::For(Some(time)) => start.checked_add(time),
            _ => None,
        };
        loop {
            let now = Instant::now();
            // What has completed is not late, however long nobody looked.
            self.collect(watch, out);
            if self.look_after(watch, now) {
                self.collect(watch, out);
            }
            if out.len() > before || wait == Wait::No {
                return;
            }
            if self.woken.swap(false, SeqCst) {
                return;
            }
            if deadline.is_some_and(|d| now >= d) {
                return;
            }
            if now - start < self.options.poll && self.commands() > 0 {
                std::hint::spin_loop();
                continue;
            }
            self.waiting.store(true, SeqCst);
            self.drain();
            if !self.woken.load(SeqCst) && !self.has_news() {
                self.sleep(self.nap(deadline));
            }
            self.waiting.store(false, SeqCst);
        }
    }

    fn wake(&self) {
        self.woken.store(true, SeqCst);
        self.interrupt();
    }

    fn is_polled(&self) -> bool {
        !self.options.poll.is_zero()
    }

    fn care(&self) -> Option<Duration> {
        Some(CARE)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        let interrupt = self.bus.interrupt().filter(|_| self.options.interrupts)?;
        let _ = rustix::io::read(interrupt, &mut [0; 8]);
        // A reaper that was about to sleep was told by what is forgotten now.
        self.interrupt();
        Some(interrupt)
    }

    fn look(&self, out: &mut Vec<Completion>) {
        if let Some(mut watch) = self.reaper.try_lock() {
            self.collect(&mut watch, out);
        }
    }
}

impl Queues for NvmeMedia {
    fn queues(&self) -> usize {
        NvmeMedia::queues(self)
    }

    fn submit_to(&self, queue: usize, request: Request) {
        NvmeMedia::submit_to(self, queue, request);
    }
}

impl Drop for NvmeMedia {
    fn drop(&mut self) {
        let mut ignored = Vec::new();
        while self.pairs.iter().any(|pair| pair.lock().requests() > 0) {
            self.kick();
            self.reap(&mut ignored, Wait::For(Some(Duration::from_millis(100))));
            ignored.clear();
        }
        let admin = self.admin.get_mut();
        if !*self.dead.get_mut()
            && let Err(trouble) = admin.shut_down(self.context.limits.shutdown)
        {
            tracing::warn!(device = self.bus.name(), "shutting it down: {}", trouble.told().0);
            if admin.stop().is_err() {
                self.bus.cut_off();
                admin.is_cut_off();
            }
        }
        for (device, len) in self.mapped.get_mut().drain(..) {
            self.bus.unmap(device, len);
        }
    }
}
