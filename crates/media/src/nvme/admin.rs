//! The controller as a whole: enabling, disabling, shutdown, and the admin queue (NVMe 1.4, sections 3.1, 5 and 7).
//!
//! States are those of CC.EN and CSTS.RDY: *stopped* (both 0), *running* (both 1). [`Admin::stop`] leads from anywhere to
//! stopped, [`Admin::start`] from stopped to running with an empty admin queue and no I/O queues. A controller that
//! does not follow within CAP.TO, that is gone (all ones) or says CSTS.CFS gives [`Trouble`], never a wait without end.
//!
//! One admin command at a time waits for its end here; beside it one Asynchronous Event Request is under way. One that only asks and gets no
//! answer in time is left to itself: requests do not need it, and a reset would cost those that are under way. Until its answer comes, or
//! the controller is reset because the admin queue is needed, nothing else is asked.

use super::bus::Bus;
use super::dma::{PAGE, Region};
use super::event::{self, Event};
use super::ring::{Ring, RingFacts, Shadow};
use crate::MediaError;
use format::nvme::health;
use format::nvme::identify::{self, CNS_ACTIVE_NAMESPACES, CNS_CONTROLLER, CNS_NAMESPACE};
use format::nvme::queue::{admin as opcode, feature};
use format::nvme::register::{self, ALL_ONES, Cap, cc, csts};
use format::nvme::{Completion, Status, Submission};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, FromZeros};

/// Entries of the admin queues.
pub(super) const ENTRIES: u16 = 32;
/// Identifier of the Asynchronous Event Request. Other admin commands have smaller ones.
const EVENT_CID: u16 = 0x8000;
/// Longest wait for an answer while completions wait to be taken in, or somebody needs the admin queue for them.
pub(super) const PRESSED: Duration = Duration::from_secs(10);
/// Bytes of a log page that are read.
const LOG: usize = 512;
/// NSID of commands that concern the controller.
const ALL_NAMESPACES: u32 = u32::MAX;

/// Why something with the controller did not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Registers read as all ones.
    Gone,
    /// CSTS.CFS: the controller is not able to say more.
    Fatal,
    /// It does not answer in time. What was waited for.
    Timeout(&'static str),
    /// A command failed.
    Failed(&'static str, Status),
    /// The driver does not support this.
    Unfit(&'static str),
    /// The namespace that was asked for is not there, or not active.
    NoNamespace,
}

/// What is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stuck {
    /// A command of this identifier that only asks: with its answer all is well again.
    Question(u16),
    /// One that matters.
    Whole,
}

/// The answer to a command that the driver can do without; `None` when the controller answered with an error.
fn unless_refused<T>(answer: Result<T, Trouble>) -> Result<Option<T>, Trouble> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(Trouble::Failed(..)) => Ok(None),
        Err(trouble) => Err(trouble),
    }
}

impl Trouble {
    /// What to say, and the errno(3) value.
    pub(super) fn told(self) -> (&'static str, i32) {
        match self {
            Trouble::Gone => ("the controller is gone", libc::ENODEV),
            Trouble::Fatal => ("the controller reports a fatal error", libc::EIO),
            Trouble::Timeout(what) => (what, libc::ETIMEDOUT),
            Trouble::Failed(what, _) => (what, libc::EIO),
            Trouble::Unfit(what) => (what, libc::EOPNOTSUPP),
            Trouble::NoNamespace => {
                ("looking for the namespace, which is not there or not active", libc::ENODEV)
            }
        }
    }

    /// The same as an error of a device that is being set up.
    pub(super) fn setup(self, device: &str) -> MediaError {
        let (doing, errno) = self.told();
        MediaError::Setup { device: device.into(), doing, errno }
    }
}

/// The admin queue of a controller.
pub(super) struct Admin {
    bus: Arc<dyn Bus>,
    cap: Cap,
    ring: Ring,
    /// One page that answers come to.
    answer: Region,
    next_cid: u16,
    /// The controller is or may be running.
    running: bool,
    /// A command got no answer in time: its memory and identifier are not free. Until then, or the next start, nothing more is asked.
    stuck: Option<Stuck>,
    /// Somebody waits for the admin queue on whom requests depend.
    needed: Arc<AtomicBool>,
    event_asked: bool,
    /// An event is to be asked for when that can be done again.
    event_owed: bool,
    /// Dword 0 of completed event requests.
    events: Vec<u32>,
    timeout: Duration,
}

impl Admin {
    /// Takes the controller over in whatever state it is. `timeout` is that of each admin command.
    pub(super) fn new(
        bus: Arc<dyn Bus>,
        cap: Cap,
        rings: [Region; 2],
        answer: Region,
        timeout: Duration,
    ) -> Admin {
        let ring = Ring::new(bus.clone(), 0, ENTRIES, cap.dstrd(), rings);
        Admin {
            bus,
            cap,
            ring,
            answer,
            next_cid: 0,
            running: true,
            stuck: None,
            needed: Arc::default(),
            event_asked: false,
            event_owed: false,
            events: Vec::new(),
            timeout,
        }
    }

    /// CSTS, or that there is no such register any more.
    pub(super) fn status(&self) -> Result<u32, Trouble> {
        match self.bus.read32(register::CSTS) {
            ALL_ONES => Err(Trouble::Gone),
            status => Ok(status),
        }
    }

    /// Waits until the bits of CSTS in `mask` are `value`.
    fn await_status(
        &self,
        mask: u32,
        value: u32,
        limit: Duration,
        what: &'static str,
    ) -> Result<(), Trouble> {
        let start = Instant::now();
        loop {
            let late = start.elapsed() > limit;
            let status = self.status()?;
            if status & mask == value {
                return Ok(());
            }
            // One that is to be disabled may still be: that clears it.
            if status & csts::CFS != 0 && value != 0 {
                return Err(Trouble::Fatal);
            }
            if late {
                return Err(Trouble::Timeout(what));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// CAP.TO (3.1.1), at least a second.
    fn ready_limit(&self) -> Duration {
        Duration::from_millis(self.cap.timeout_ms().max(1000))
    }

    /// Stops the controller (3.1.5, 7.3.2). When this returns well it has forgotten its queues and accesses no memory.
    pub(super) fn stop(&mut self) -> Result<(), Trouble> {
        self.status()?;
        let config = self.bus.read32(register::CC);
        if config & cc::EN != 0 {
            // A controller that is starting must have finished before it may be stopped (3.1.5).
            let started =
                self.await_status(csts::RDY, csts::RDY, self.ready_limit(), "waiting until it is enabled");
            if started == Err(Trouble::Gone) {
                return started;
            }
            self.bus.write32(register::CC, config & !(cc::EN | cc::SHN_MASK));
        }
        self.await_status(csts::RDY, 0, self.ready_limit(), "waiting until it is disabled")?;
        self.running = false;
        Ok(())
    }

    /// Starts a stopped controller (7.6.1).
    pub(super) fn start(&mut self) -> Result<(), Trouble> {
        self.ring.reset(None);
        (self.stuck, self.event_asked, self.event_owed) = (None, false, false);
        self.events.clear();
        let last = ENTRIES as u32 - 1;
        self.bus.write32(register::AQA, last << 16 | last);
        let [submissions, completions] = self.ring.facts().device;
        self.bus.write64(register::ASQ, submissions);
        self.bus.write64(register::ACQ, completions);
        self.running = true;
        // Pages of 4 KiB, the NVM command set, round robin; entries of 64 and 16 bytes.
        let config = 6 << cc::IOSQES_SHIFT | 4 << cc::IOCQES_SHIFT | 0 << cc::MPS_SHIFT | cc::EN;
        self.bus.write32(register::CC, config);
        self.await_status(csts::RDY, csts::RDY, self.ready_limit(), "waiting until it is enabled")
    }

    /// Tells the controller that it is about to lose power (7.6.2): it writes its caches. Then stops it.
    pub(super) fn shut_down(&mut self, limit: Duration) -> Result<(), Trouble> {
        let config = self.bus.read32(register::CC);
        self.status()?;
        self.bus.write32(register::CC, config & !cc::SHN_MASK | cc::SHN_NORMAL);
        self.await_status(csts::SHST_MASK, csts::SHST_COMPLETE, limit, "waiting for its shutdown")?;
        self.stop()
    }

    /// Carries out one command. What it answers into memory stands in `answer`.
    fn execute(&mut self, what: &'static str, entry: Submission) -> Result<Completion, Trouble> {
        self.execute_within(self.timeout, what, entry)
    }

    fn execute_within(
        &mut self,
        limit: Duration,
        what: &'static str,
        mut entry: Submission,
    ) -> Result<Completion, Trouble> {
        if self.stuck.is_some() {
            self.take(None);
        }
        if self.stuck.is_some() {
            return Err(Trouble::Timeout(what));
        }
        let asks = [opcode::IDENTIFY, opcode::GET_LOG_PAGE, opcode::GET_FEATURES].contains(&entry.opcode);
        let cid = self.next_cid;
        self.next_cid = (cid + 1) % EVENT_CID;
        entry.cid = cid.into();
        self.ring.push(&entry);
        self.ring.ring();
        let start = Instant::now();
        let mut looked = start;
        loop {
            let now = Instant::now();
            let done = self.take(Some(cid));
            if let Some(done) = done {
                return match done.status() {
                    s if s.is_success() => Ok(done),
                    s => Err(Trouble::Failed(what, s)),
                };
            }
            if now - looked > Duration::from_millis(10) {
                looked = now;
                let is_pressed = self.needed.load(SeqCst);
                let limit = if is_pressed { limit.min(PRESSED) } else { limit };
                let dead = match self.status() {
                    Ok(s) if s & csts::CFS != 0 => Some(Trouble::Fatal),
                    Ok(_) => (now - start > limit).then_some(Trouble::Timeout(what)),
                    Err(e) => Some(e),
                };
                if let Some(trouble) = dead {
                    let is_question = asks && matches!(trouble, Trouble::Timeout(_));
                    self.stuck = Some(if is_question { Stuck::Question(cid) } else { Stuck::Whole });
                    return Err(trouble);
                }
            }
            match now - start {
                waited if waited < Duration::from_micros(50) => std::hint::spin_loop(),
                _ => std::thread::sleep(Duration::from_micros(100)),
            }
        }
    }

    /// Takes completions until that of `cid`; notes events.
    fn take(&mut self, cid: Option<u16>) -> Option<Completion> {
        let mut found = None;
        while found.is_none()
            && let Some(done) = self.ring.pop()
        {
            match done.cid.get() {
                EVENT_CID => {
                    self.event_asked = false;
                    if done.status().is_success() {
                        self.events.push(done.dw0.get());
                    }
                }
                got if Some(got) == cid => found = Some(done),
                got if self.stuck == Some(Stuck::Question(got)) => {
                    tracing::warn!(device = self.bus.name(), "an answer came late");
                    self.stuck = None;
                }
                got => tracing::warn!(
                    device = self.bus.name(),
                    "answer to an admin command that nobody waits for: {got}"
                ),
            }
        }
        self.ring.ring_completions();
        found
    }

    /// Whether something came that [`Admin::events`] should look at, perhaps while a command was waited for.
    pub(super) fn has_news(&self) -> bool {
        self.ring.has_completion() || self.stuck.is_none() && (self.event_owed || !self.events.is_empty())
    }

    /// A command that matters was not answered. Nothing more is asked before the controller was reset.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck == Some(Stuck::Whole)
    }

    /// Set by who waits for the admin queue because requests do not end.
    pub(super) fn needed(&self) -> Arc<AtomicBool> {
        self.needed.clone()
    }

    /// Asynchronous events since the last call. The log page of each was read, if it came, so that the controller may report the next event of
    /// its type, and another request was made. Called while completions wait.
    pub(super) fn events(&mut self) -> Vec<Event> {
        self.take(None);
        let mut events = Vec::new();
        while self.stuck.is_none() && !self.events.is_empty() {
            let event = Event::new(self.events.remove(0));
            let limit = self.timeout.min(PRESSED);
            match self.log_page(limit, "reading a log page", event.page) {
                Ok(page) => events.push(event.with(&page)),
                Err(_) => events.push(event),
            }
        }
        if !events.is_empty() || self.event_owed {
            self.ask_event();
        }
        events
    }

    /// Has the controller report warnings of its health as events (5.21.1.11), which it need not without. Errors it reports in any case.
    pub(super) fn want_warnings(&mut self) -> Result<(), Trouble> {
        let set = self.set_feature("asking for its warnings", feature::ASYNC_EVENT_CONFIG, event::WANTED);
        unless_refused(set).map(drop)
    }

    /// Sends an Asynchronous Event Request (5.2), which completes when something happens.
    pub(super) fn ask_event(&mut self) {
        self.event_owed = self.stuck.is_some();
        if self.event_asked || self.event_owed {
            return;
        }
        let mut entry = command(opcode::ASYNC_EVENT);
        entry.cid = EVENT_CID.into();
        self.event_asked = true;
        self.ring.push(&entry);
        self.ring.ring();
    }

    /// Before a command that answers into memory. While another has that memory it is left alone; nothing is asked then.
    fn zero_answer(&self) {
        if self.stuck.is_none() {
            self.answer.zero();
        }
    }

    /// Get Log Page (5.14) of the controller: its first 512 bytes.
    fn log_page(&mut self, limit: Duration, what: &'static str, page: u32) -> Result<[u8; LOG], Trouble> {
        self.zero_answer();
        let mut entry = command(opcode::GET_LOG_PAGE);
        entry.nsid = ALL_NAMESPACES.into();
        entry.dptr1 = self.answer.device().into();
        entry.cdw10 = ((LOG as u32 / 4 - 1) << 16 | page).into();
        self.execute_within(limit, what, entry)?;
        let mut bytes = [0; LOG];
        self.answer.read(0, &mut bytes);
        Ok(bytes)
    }

    /// SMART / Health Information (5.14.1.2), of the controller as a whole.
    pub(super) fn health(&mut self) -> Result<health::Health, Trouble> {
        let page = self.log_page(self.timeout, "reading its health", health::LOG_PAGE)?;
        Ok(health::Health::read_from_bytes(&page).expect("sizes are equal"))
    }

    fn identify(&mut self, what: &'static str, cns: u32, nsid: u32) -> Result<[u8; PAGE], Trouble> {
        self.zero_answer();
        let mut entry = command(opcode::IDENTIFY);
        entry.nsid = nsid.into();
        entry.dptr1 = self.answer.device().into();
        entry.cdw10 = cns.into();
        self.execute(what, entry)?;
        let mut page = [0; PAGE];
        self.answer.read(0, &mut page);
        Ok(page)
    }

    /// Identify Controller (5.15.2.2).
    pub(super) fn identify_controller(&mut self) -> Result<identify::Controller, Trouble> {
        let page = self.identify("identifying the controller", CNS_CONTROLLER, 0)?;
        Ok(identify::Controller::read_from_bytes(&page).expect("sizes are equal"))
    }

    /// Identify Namespace (5.15.2.1).
    pub(super) fn identify_namespace(&mut self, nsid: u32) -> Result<identify::Namespace, Trouble> {
        let page = self.identify("identifying the namespace", CNS_NAMESPACE, nsid)?;
        Ok(identify::Namespace::read_from_bytes(&page).expect("sizes are equal"))
    }

    /// The active namespaces with identifiers above `after` (5.15.2.3), up to 1024; the next identifier from controllers that are too
    /// old to tell.
    pub(super) fn namespaces(&mut self, after: u32) -> Result<Vec<u32>, Trouble> {
        match self.identify("listing namespaces", CNS_ACTIVE_NAMESPACES, after) {
            Ok(page) => {
                let all = page.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
                Ok(all.take_while(|n| *n != 0).collect())
            }
            Err(Trouble::Failed(..)) => Ok(vec![after + 1]),
            Err(e) => Err(e),
        }
    }

    /// Asks for so many I/O queues of either kind (5.21.1.7); returns how many pairs there may be.
    pub(super) fn number_of_queues(&mut self, wanted: u16) -> Result<u16, Trouble> {
        // FFFFh is not a number of queues.
        let n = wanted.clamp(1, u16::MAX) as u32 - 1;
        let got = self.set_feature("setting the number of queues", feature::NUMBER_OF_QUEUES, n << 16 | n)?;
        Ok((got & 0xFFFF).min(got >> 16).min(n) as u16 + 1)
    }

    /// Whether the volatile write cache is on (5.21.1.6). `None`: it does not say.
    pub(super) fn write_cache(&mut self) -> Result<Option<bool>, Trouble> {
        let mut entry = command(opcode::GET_FEATURES);
        entry.cdw10 = feature::VOLATILE_WRITE_CACHE.into();
        let told = unless_refused(self.execute("asking for its write cache", entry))?;
        Ok(told.map(|answer| answer.dw0.get() & 1 == 1))
    }

    /// Turns the volatile write cache on or off (5.21.1.6). False when it refuses.
    pub(super) fn set_write_cache(&mut self, on: bool) -> Result<bool, Trouble> {
        let set = self.set_feature("setting its write cache", feature::VOLATILE_WRITE_CACHE, on as u32);
        Ok(unless_refused(set)?.is_some())
    }

    fn set_feature(&mut self, what: &'static str, feature: u32, value: u32) -> Result<u32, Trouble> {
        let mut entry = command(opcode::SET_FEATURES);
        entry.cdw10 = feature.into();
        entry.cdw11 = value.into();
        Ok(self.execute(what, entry)?.dw0.get())
    }

    /// Doorbell Buffer Config (5.7). False when it refuses: then all doorbells are rung.
    pub(super) fn set_shadow(&mut self, shadow: &Shadow) -> Result<bool, Trouble> {
        shadow.doorbells.zero();
        shadow.events.zero();
        let mut entry = command(opcode::DOORBELL_BUFFER);
        entry.dptr1 = shadow.doorbells.device().into();
        entry.dptr2 = shadow.events.device().into();
        Ok(unless_refused(self.execute("setting shadow doorbells", entry))?.is_some())
    }

    /// Create I/O Completion Queue and Submission Queue (5.3, 5.4), in that order, both contiguous.
    pub(super) fn create_queues(&mut self, ring: RingFacts, interrupts: bool) -> Result<(), Trouble> {
        let [submissions, completions] = ring.device;
        let size_and_id = (ring.entries as u32 - 1) << 16 | ring.id as u32;
        let mut entry = command(opcode::CREATE_CQ);
        entry.dptr1 = completions.into();
        entry.cdw10 = size_and_id.into();
        // Vector 0 for all, bit 1 interrupts enabled, bit 0 physically contiguous.
        entry.cdw11 = ((interrupts as u32) << 1 | 1).into();
        self.execute("creating a completion queue", entry)?;
        let mut entry = command(opcode::CREATE_SQ);
        entry.dptr1 = submissions.into();
        entry.cdw10 = size_and_id.into();
        entry.cdw11 = ((ring.id as u32) << 16 | 1).into();
        self.execute("creating a submission queue", entry).map(|_| ())
    }

    /// Abort (5.1), while completions wait. Whether the controller aborted the command or not, its completion comes.
    pub(super) fn abort(&mut self, queue: u16, cid: u16) -> Result<(), Trouble> {
        let mut entry = command(opcode::ABORT);
        entry.cdw10 = ((cid as u32) << 16 | queue as u32).into();
        match self.execute_within(self.timeout.min(PRESSED), "aborting a command", entry) {
            Ok(_) | Err(Trouble::Failed(..)) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// The controller is known not to reach memory any more.
    pub(super) fn is_cut_off(&mut self) {
        self.running = false;
        self.stuck = Some(Stuck::Whole);
    }
}

impl Drop for Admin {
    /// A controller that is still running would write to memory that goes away.
    fn drop(&mut self) {
        if self.running && self.stop().is_err() {
            self.bus.cut_off();
        }
    }
}

fn command(opcode: u8) -> Submission {
    let mut entry = Submission::new_zeroed();
    entry.opcode = opcode;
    entry
}
