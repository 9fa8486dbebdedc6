//! Registers, queues and the firmware's loop.

use super::memory::Memory;
use super::{Config, Failure, Fault};
use crate::flash::{self, Contents, CrashState};
use format::nvme::register::{self, ALL_ONES, cc, csts};
use format::nvme::{Completion, Status, Submission};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Release, SeqCst};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const PAGE: u64 = 4096;

/// A submission queue.
pub(super) struct Sq {
    pub(super) base: u64,
    pub(super) entries: u16,
    pub(super) cq: u16,
    head: u16,
    tail: u16,
}

/// A completion queue.
pub(super) struct Cq {
    pub(super) base: u64,
    pub(super) entries: u16,
    pub(super) interrupts: bool,
    tail: u16,
    head: u16,
    phase: bool,
}

impl Sq {
    pub(super) fn new(base: u64, entries: u16, cq: u16) -> Sq {
        Sq { base, entries, cq, head: 0, tail: 0 }
    }
}

impl Cq {
    pub(super) fn new(base: u64, entries: u16, interrupts: bool) -> Cq {
        Cq { base, entries, interrupts, tail: 0, head: 0, phase: true }
    }
}

/// A command that was fetched and has not completed.
pub(super) struct Executing {
    pub(super) sq: u16,
    pub(super) entry: Submission,
    /// What will go wrong.
    pub(super) failure: Option<Failure>,
    due: Instant,
}

/// What the firmware does next.
pub(super) enum Next {
    Again,
    After(Duration),
}

pub(super) struct State {
    pub(super) config: Config,
    pub(super) memory: Memory,
    pub(super) visible: Contents,
    pub(super) power: CrashState,
    pub(super) flash: Arc<flash::Config>,
    pub(super) next_id: u64,
    pub(super) faults: Vec<Fault>,
    pub(super) gone: bool,
    pub(super) stalled: bool,
    /// Clearing CC.EN stops it.
    pub(super) stops: bool,
    /// A shutdown ends with CSTS.CFS.
    pub(super) dies_at_shutdown: bool,
    /// A function level reset works.
    pub(super) resettable: bool,
    pub(super) violations: Vec<String>,
    pub(super) carried_out: [u64; 256],
    pub(super) doorbells: u64,
    pub(super) submission: BTreeMap<u16, Sq>,
    pub(super) completion: BTreeMap<u16, Cq>,
    pub(super) executing: Vec<Executing>,
    pub(super) event_request: Option<u16>,
    /// Feature Asynchronous Event Configuration: warnings of the health that are reported.
    pub(super) wanted_warnings: u8,
    pub(super) cache_on: bool,
    pub(super) shadow: Option<[u64; 2]>,
    /// Identifiers under way, by submission queue.
    cids: HashSet<(u16, u16)>,
    /// Completions that found their queue full.
    waiting: VecDeque<(u16, Completion)>,
    config_register: u32,
    status: u32,
    aqa: u32,
    asq: u64,
    acq: u64,
    hung: bool,
    interrupt: Arc<OwnedFd>,
    random: u64,
}

impl State {
    pub(super) fn new(config: Config, interrupt: Arc<OwnedFd>) -> State {
        let flash = flash::Config {
            sector: config.lba,
            atomic_unit: (config.lba * config.atomic_blocks as u32).clamp(config.lba, 4096),
            volatile_cache: config.volatile_cache,
            ..flash::Config::new(config.bytes)
        };
        let (flash, visible) = (Arc::new(flash), Contents::new(config.bytes));
        State {
            memory: Memory::default(),
            power: CrashState::new(flash.clone(), visible.clone()),
            visible,
            flash,
            next_id: 0,
            faults: Vec::new(),
            gone: false,
            stalled: false,
            stops: true,
            dies_at_shutdown: false,
            resettable: true,
            violations: Vec::new(),
            carried_out: [0; 256],
            doorbells: 0,
            submission: BTreeMap::new(),
            completion: BTreeMap::new(),
            executing: Vec::new(),
            event_request: None,
            wanted_warnings: 0,
            cache_on: config.volatile_cache && !config.cache_off,
            shadow: None,
            cids: HashSet::new(),
            waiting: VecDeque::new(),
            config_register: 0,
            status: 0,
            aqa: 0,
            asq: 0,
            acq: 0,
            hung: false,
            interrupt,
            random: config.seed,
            config,
        }
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.random >> 33) as usize % n
    }

    pub(super) fn violation(&mut self, what: impl Into<String>) {
        self.violations.push(what.into());
    }

    pub(super) fn read(&self, at: u32) -> u32 {
        if self.gone {
            return ALL_ONES;
        }
        let cap = (self.config.entries_max as u64 - 1)
            | 1 << 16
            | 2 << 24
            | (self.config.dstrd as u64) << 32
            | 1 << 37;
        match at {
            register::CAP => cap as u32,
            0x04 => (cap >> 32) as u32,
            register::VS => 0x0001_0400,
            register::CC => self.config_register,
            register::CSTS => self.status,
            register::AQA => self.aqa,
            _ => 0,
        }
    }

    pub(super) fn write(&mut self, at: u32, value: u32) {
        if self.gone {
            return;
        }
        let low = |old: u64| old & !0xFFFF_FFFF | value as u64;
        let high = |old: u64| old & 0xFFFF_FFFF | (value as u64) << 32;
        match at {
            register::AQA => self.aqa = value,
            register::ASQ => self.asq = low(self.asq),
            0x2C => self.asq = high(self.asq),
            register::ACQ => self.acq = low(self.acq),
            0x34 => self.acq = high(self.acq),
            register::CC => self.configure(value),
            at if at >= register::DOORBELLS => self.doorbell(at, value),
            _ => self.violation(format!("write to register {at:#x}")),
        }
    }

    fn configure(&mut self, value: u32) {
        let old = std::mem::replace(&mut self.config_register, value);
        match (old & cc::EN != 0, value & cc::EN != 0) {
            (false, true) => {
                if self.status & csts::RDY != 0 {
                    self.violation("enabled before it had stopped");
                }
                if value >> cc::IOSQES_SHIFT & 0xF != 6 || value >> cc::IOCQES_SHIFT & 0xF != 4 {
                    self.violation("sizes of queue entries");
                }
                if (self.asq | self.acq) & (PAGE - 1) != 0 {
                    self.violation("admin queues not on pages");
                }
                let (sqs, cqs) = ((self.aqa & 0xFFF) as u16 + 1, (self.aqa >> 16 & 0xFFF) as u16 + 1);
                self.submission.insert(0, Sq::new(self.asq, sqs, 0));
                self.completion.insert(0, Cq::new(self.acq, cqs, true));
            }
            (true, false) if self.stops => self.forget(),
            _ => {}
        }
        if value & cc::SHN_MASK != 0 && self.dies_at_shutdown {
            self.status |= csts::CFS;
        } else if value & cc::SHN_MASK != 0 && !self.hung {
            // Everything is durable.
            self.power = CrashState::new(self.flash.clone(), self.visible.clone());
            self.status = self.status & !csts::SHST_MASK | csts::SHST_COMPLETE;
        }
    }

    /// A controller level reset. Some commands are carried out, others are not.
    fn forget(&mut self) {
        for executing in std::mem::take(&mut self.executing) {
            if executing.sq != 0 && self.below(2) == 0 {
                self.carry_out(&executing.entry);
            }
        }
        if self.config.reset_loses_cache {
            let left = self.power.crash_image(|_, _| false);
            let mut part = vec![0; 1 << 20];
            for at in (0..self.config.bytes).step_by(part.len()) {
                let part = &mut part[..(self.config.bytes - at).min(1 << 20) as usize];
                left.peek(at, part);
                self.visible.write(at, part);
            }
            self.power = CrashState::new(self.flash.clone(), self.visible.clone());
        }
        self.submission.clear();
        self.completion.clear();
        self.cids.clear();
        self.waiting.clear();
        (self.event_request, self.wanted_warnings) = (None, 0);
        self.shadow = None;
        self.cache_on = self.config.volatile_cache && !self.config.cache_off;
        (self.status, self.hung) = (0, false);
    }

    pub(super) fn reset_function(&mut self) -> bool {
        if self.gone || !self.resettable {
            return false;
        }
        self.forget();
        (self.config_register, self.aqa, self.asq, self.acq) = (0, 0, 0, 0);
        self.stops = true;
        true
    }

    fn doorbell(&mut self, at: u32, value: u32) {
        self.doorbells += 1;
        let stride = register::doorbell_stride(self.config.dstrd);
        let number = (at - register::DOORBELLS) / stride;
        if !(at - register::DOORBELLS).is_multiple_of(stride) {
            return self.violation(format!("no doorbell at {at:#x}"));
        }
        let id = (number / 2) as u16;
        if self.shadow.is_some() && id != 0 {
            // Only says that there is something in the shadow.
            return;
        }
        self.set_doorbell(id, number.is_multiple_of(2), value);
    }

    fn set_doorbell(&mut self, id: u16, tail: bool, value: u32) {
        let queue = match tail {
            true => self.submission.get_mut(&id).map(|q| (&mut q.tail, q.head, q.entries)),
            false => self.completion.get_mut(&id).map(|q| (&mut q.head, q.tail, q.entries)),
        };
        let Some((place, other, entries)) = queue else {
            if self.hung {
                return;
            }
            return self.violation(format!("doorbell of queue {id}, which does not exist"));
        };
        if value >= entries as u32 || value == *place as u32 {
            let old = *place;
            return self.violation(format!("doorbell of queue {id} set to {value} of {entries}, was {old}"));
        }
        // A head must not pass the tail: entries that were never completed.
        let entries = entries as u32;
        let (old, limit) = (*place as u32, other as u32);
        let moved = (value + entries - old) % entries;
        let room =
            if tail { (limit + entries - old - 1) % entries } else { (limit + entries - old) % entries };
        *place = value as u16;
        if moved > room {
            self.violation(format!("doorbell of queue {id} moved by {moved}, with {room} entries"));
        }
    }

    /// Takes doorbells from the shadow pages, and says up to where it has looked (7.13).
    fn look_at_shadow(&mut self) {
        let Some([doorbells, events]) = self.shadow else { return };
        let stride = register::doorbell_stride(self.config.dstrd) as u64;
        let ids: Vec<u16> = self.submission.keys().copied().filter(|id| *id != 0).collect();
        for (id, tail) in ids.iter().flat_map(|id| [(*id, true), (*id, false)]) {
            let at = (2 * id as u64 + !tail as u64) * stride;
            let (Some(bell), Some(event)) = (self.word(doorbells + at), self.word(events + at)) else {
                self.violation("shadow doorbells are not mapped");
                return;
            };
            let (bell, event) = (bell as *const AtomicU32, event as *const AtomicU32);
            loop {
                // SAFETY: words within mapped memory, which stays mapped while the lock of the state is held.
                let value = unsafe { (*bell).load(SeqCst) };
                let known = match tail {
                    true => self.submission[&id].tail,
                    false => self.completion[&id].head,
                };
                if value != known as u32 {
                    self.set_doorbell(id, tail, value);
                    continue;
                }
                // SAFETY: as above.
                unsafe { (*event).store(value, SeqCst) };
                fence(SeqCst);
                // SAFETY: as above.
                if unsafe { (*bell).load(SeqCst) } == value {
                    break;
                }
            }
        }
    }

    fn word(&self, device: u64) -> Option<*mut u8> {
        self.memory.at(device, 4).filter(|at| (*at as usize).is_multiple_of(4))
    }

    /// One step of the firmware.
    pub(super) fn step(&mut self) -> Next {
        const LONG: Duration = Duration::from_millis(200);
        if self.gone || self.stalled {
            return Next::After(LONG);
        }
        let enabled = self.config_register & cc::EN != 0;
        if enabled && !self.hung && self.status & csts::RDY == 0 {
            self.status |= csts::RDY;
        }
        if !enabled || self.hung || self.status & csts::CFS != 0 {
            return Next::After(LONG);
        }
        while let Some((cq, done)) = self.waiting.pop_front() {
            if !self.post(cq, done) {
                break;
            }
        }
        self.look_at_shadow();
        let fetched = self.fetch();
        let now = Instant::now();
        let due: Vec<usize> = (0..self.executing.len()).filter(|i| self.executing[*i].due <= now).collect();
        if !due.is_empty() {
            let chosen = due[self.below(due.len())];
            let executing = self.executing.swap_remove(chosen);
            self.complete(executing);
            return Next::Again;
        }
        if fetched || self.gone {
            return Next::Again;
        }
        let first = self.executing.iter().map(|e| e.due).min();
        Next::After(first.map_or(LONG, |due| due.saturating_duration_since(now).min(LONG)))
    }

    /// Fetches some commands.
    fn fetch(&mut self) -> bool {
        let mut any = false;
        let ids: Vec<u16> = self.submission.keys().copied().collect();
        for id in ids {
            for _ in 0..1 + self.below(8) {
                let Some(sq) = self.submission.get_mut(&id).filter(|sq| sq.head != sq.tail) else { break };
                let at = sq.base + sq.head as u64 * 64;
                sq.head = (sq.head + 1) % sq.entries;
                let Some(memory) = self.memory.at(at, 64) else {
                    self.violation(format!("submission queue {id} is not mapped"));
                    break;
                };
                let mut bytes = [0; 64];
                // SAFETY: 64 mapped bytes; the driver has written them before it rang the doorbell.
                unsafe { std::ptr::copy_nonoverlapping(memory, bytes.as_mut_ptr(), 64) };
                let entry = Submission::read_from_bytes(&bytes).expect("sizes are equal");
                any = true;
                if !self.cids.insert((id, entry.cid.get())) {
                    self.violation(format!("identifier {:#x} of queue {id} is under way already", entry.cid));
                }
                let failure = self.strike(id == 0, entry.opcode);
                let late = match failure {
                    Some(Failure::Delay(time)) => time,
                    _ => Duration::ZERO,
                };
                self.executing.push(Executing { sq: id, entry, failure, due: Instant::now() + late });
            }
        }
        any
    }

    fn strike(&mut self, admin: bool, opcode: u8) -> Option<Failure> {
        let mut verdict = None;
        self.faults.retain_mut(|fault| {
            if fault.admin != admin || fault.opcode.is_some_and(|o| o != opcode) || verdict.is_some() {
                return true;
            }
            if fault.after > 0 {
                fault.after -= 1;
                return true;
            }
            verdict = Some(fault.failure);
            fault.forever
        });
        verdict
    }

    fn complete(&mut self, executing: Executing) {
        let (id, cid) = (executing.sq, executing.entry.cid.get());
        if id == 0 {
            return match executing.failure {
                Some(Failure::Status(status)) => self.answer(0, cid, 0, Status(status)),
                _ => self.admin(executing.entry),
            };
        }
        match executing.failure {
            Some(Failure::Hang) => {
                self.hung = true;
                self.executing.push(executing);
            }
            Some(Failure::Fatal) => {
                self.status |= csts::CFS;
                self.executing.push(executing);
            }
            Some(Failure::Restart) => {
                self.executing.push(executing);
                self.forget();
                self.hung = true;
            }
            Some(Failure::Remove) => self.gone = true,
            Some(Failure::Lost { done, .. }) => {
                if done {
                    self.carry_out(&executing.entry);
                }
                // It stays, for Abort to find.
                let never = Instant::now() + Duration::from_secs(3600);
                self.executing.push(Executing { due: never, ..executing });
            }
            Some(Failure::Status(status)) => self.answer(id, cid, 0, Status(status)),
            Some(Failure::Twice) => {
                let status = self.carry_out(&executing.entry);
                self.answer(id, cid, 0, status);
                self.cids.insert((id, cid));
                self.answer(id, cid, 0, status);
            }
            Some(Failure::Delay(_)) | None => {
                let status = self.carry_out(&executing.entry);
                self.answer(id, cid, 0, status);
            }
        }
    }

    /// Completes a command.
    pub(super) fn answer(&mut self, sq: u16, cid: u16, dw0: u32, status: Status) {
        self.cids.remove(&(sq, cid));
        let Some(queue) = self.submission.get(&sq) else { return };
        let mut done = Completion::new_zeroed();
        (done.dw0, done.sq_id, done.cid) = (dw0.into(), sq.into(), cid.into());
        done.sq_head = queue.head.into();
        done.status = (status.0 << 1).into();
        let cq = queue.cq;
        self.post(cq, done);
    }

    /// Writes a completion, or keeps it until there is room. True if it was written.
    fn post(&mut self, id: u16, mut done: Completion) -> bool {
        let Some(cq) = self.completion.get_mut(&id) else { return true };
        let next = (cq.tail + 1) % cq.entries;
        if next == cq.head {
            self.waiting.push_front((id, done));
            return false;
        }
        done.status = (done.status.get() & !1 | cq.phase as u16).into();
        let at = cq.base + cq.tail as u64 * 16;
        cq.tail = next;
        if next == 0 {
            cq.phase = !cq.phase;
        }
        let interrupts = cq.interrupts;
        let Some(memory) = self.memory.at(at, 16) else {
            self.violation(format!("completion queue {id} is not mapped"));
            return true;
        };
        let bytes = done.as_bytes();
        let last = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
        // SAFETY: 16 mapped bytes on a multiple of 16; the driver reads them when the phase tag, written last, has changed.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory, 12);
            (*memory.add(12).cast::<AtomicU32>()).store(last, Release);
        }
        if interrupts && self.config.interrupts {
            let _ = rustix::io::write(&*self.interrupt, &1u64.to_ne_bytes());
        }
        true
    }
}
