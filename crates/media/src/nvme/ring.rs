//! One submission queue with its completion queue (NVMe 1.4, section 4.1), without any idea of what the commands are.
//!
//! Life of a command: `push` writes its entry behind the tail; `ring` tells the controller of all entries since the last
//! time, by one doorbell; the controller writes a completion entry with the phase tag inverted; `pop` takes it;
//! `ring_completions` gives the places back, by one doorbell.
//!
//! The owner has at most `entries - 1` commands under way, so neither queue can overflow: a full submission queue holds one
//! entry less than its size (4.1.2), and the completion queue is of the same size.
//!
//! Where the controller offers shadow doorbells (5.7, 7.13) the doorbells are words in memory, and registers are
//! written only when the controller asks for it through its event index.

use super::bus::Bus;
use super::dma::{PAGE, Region};
use format::nvme::register::{cq_head_doorbell, doorbell_stride, sq_tail_doorbell};
use format::nvme::{Completion, Submission};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::fence;
use zerocopy::{FromBytes, IntoBytes};

const SQE: usize = size_of::<Submission>();
const CQE: usize = size_of::<Completion>();

/// The two pages of Doorbell Buffer Config (5.7).
pub(super) struct Shadow {
    /// Written by the host: what would have been written to the doorbells.
    pub(super) doorbells: Region,
    /// Written by the controller: up to where it looks by itself.
    pub(super) events: Region,
}

/// One doorbell: the tail of a submission queue or the head of a completion queue.
struct Doorbell {
    /// Register.
    at: u32,
    /// Place in the shadow pages.
    shadow_at: usize,
    /// Last value that was announced.
    told: u16,
    /// Last value that was written to the register.
    written: u16,
}

impl Doorbell {
    fn new(at: u32) -> Doorbell {
        let shadow_at = (at - format::nvme::register::DOORBELLS) as usize;
        Doorbell { at, shadow_at, told: 0, written: 0 }
    }

    fn announce(&mut self, value: u16, bus: &dyn Bus, shadow: Option<&Shadow>) {
        let old = std::mem::replace(&mut self.told, value);
        if old == value {
            return;
        }
        // Entries are in memory before the controller is told of them.
        fence(SeqCst);
        if let Some(shadow) = shadow {
            shadow.doorbells.word(self.shadow_at).store(value as u32, SeqCst);
            // The controller writes its event index and then looks at the shadow; we do the opposite, so one of us sees
            // the other (7.13).
            fence(SeqCst);
            let event = shadow.events.word(self.shadow_at).load(SeqCst) as u16;
            if value.wrapping_sub(event).wrapping_sub(1) >= value.wrapping_sub(old) {
                return;
            }
        }
        self.written = value;
        bus.write32(self.at, value as u32);
    }

    /// Writes the register although the controller did not ask for it.
    fn insist(&mut self, bus: &dyn Bus) -> bool {
        // The same value twice would be an error (5.2, invalid doorbell write value).
        let differs = self.written != self.told;
        if differs {
            self.written = self.told;
            bus.write32(self.at, self.told as u32);
        }
        differs
    }
}

/// What a controller needs to know of a pair of queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingFacts {
    pub(super) id: u16,
    pub(super) entries: u16,
    /// Where the submission queue and the completion queue are for the device.
    pub(super) device: [u64; 2],
}

/// A pair of queues.
pub(super) struct Ring {
    bus: Arc<dyn Bus>,
    id: u16,
    entries: u16,
    submissions: Region,
    completions: Region,
    shadow: Option<Arc<Shadow>>,
    tail: u16,
    head: u16,
    /// Phase tag of completions that are new.
    phase: bool,
    tail_doorbell: Doorbell,
    head_doorbell: Doorbell,
}

impl Ring {
    /// Bytes of the two regions of a ring with so many entries.
    pub(super) fn bytes(entries: u16) -> [usize; 2] {
        [entries as usize * SQE, entries as usize * CQE].map(|n| n.next_multiple_of(PAGE))
    }

    /// `id` 0 is the admin queue. `entries` is at least 2.
    pub(super) fn new(bus: Arc<dyn Bus>, id: u16, entries: u16, dstrd: u32, regions: [Region; 2]) -> Ring {
        assert!(entries >= 2);
        let [submissions, completions] = regions;
        Ring {
            bus,
            id,
            entries,
            submissions,
            completions,
            shadow: None,
            tail: 0,
            head: 0,
            phase: true,
            tail_doorbell: Doorbell::new(sq_tail_doorbell(id, dstrd)),
            head_doorbell: Doorbell::new(cq_head_doorbell(id, dstrd)),
        }
    }

    /// Entries of either queue. One less can be under way.
    pub(super) fn entries(&self) -> u16 {
        self.entries
    }

    /// What the controller is told when the queues are made.
    pub(super) fn facts(&self) -> RingFacts {
        let device = [self.submissions.device(), self.completions.device()];
        RingFacts { id: self.id, entries: self.entries, device }
    }

    /// As new, for a controller that has forgotten its queues. The controller must have stopped.
    pub(super) fn reset(&mut self, shadow: Option<Arc<Shadow>>) {
        self.submissions.zero();
        self.completions.zero();
        self.shadow = shadow;
        (self.tail, self.head, self.phase) = (0, 0, true);
        for doorbell in [&mut self.tail_doorbell, &mut self.head_doorbell] {
            (doorbell.told, doorbell.written) = (0, 0);
        }
    }

    /// Writes an entry, of which the controller does not know yet. The owner sees to it that there is room.
    pub(super) fn push(&mut self, entry: &Submission) {
        self.submissions.write(self.tail as usize * SQE, entry.as_bytes());
        self.tail = (self.tail + 1) % self.entries;
    }

    /// Tells the controller of all new entries.
    pub(super) fn ring(&mut self) {
        self.tail_doorbell.announce(self.tail, &*self.bus, self.shadow.as_deref());
    }

    /// Entries were pushed of which the controller was not told.
    pub(super) fn is_unrung(&self) -> bool {
        self.tail_doorbell.told != self.tail
    }

    /// Whether `pop` would find something. One read of memory.
    pub(super) fn has_completion(&self) -> bool {
        let last = self.completions.word(self.head as usize * CQE + 12).load(Acquire);
        (last >> 16 & 1 == 1) == self.phase
    }

    /// Takes the next completion.
    pub(super) fn pop(&mut self) -> Option<Completion> {
        if !self.has_completion() {
            return None;
        }
        // The acquiring load of the phase tag comes first: what else stands in the entry was written before it (4.6).
        let at = self.head as usize * CQE;
        let words = [0, 4, 8, 12].map(|i| self.completions.word(at + i).load(Relaxed).to_le_bytes());
        let entry = Completion::read_from_bytes(words.as_flattened()).expect("sizes are equal");
        self.head += 1;
        if self.head == self.entries {
            self.head = 0;
            self.phase = !self.phase;
        }
        Some(entry)
    }

    /// Gives the places of completions that were taken back to the controller.
    pub(super) fn ring_completions(&mut self) {
        self.head_doorbell.announce(self.head, &*self.bus, self.shadow.as_deref());
    }

    /// Writes doorbells that stand in the shadow pages alone: for controllers that forget to look. True if there were any.
    pub(super) fn insist(&mut self) -> bool {
        let tail = self.tail_doorbell.insist(&*self.bus);
        let head = self.head_doorbell.insist(&*self.bus);
        tail || head
    }
}

/// Bytes of shadow doorbells that `queues` I/O queues need, all in one page or the controller's do not fit (5.7).
pub(super) fn shadow_fits(queues: u16, dstrd: u32) -> bool {
    (2 * (queues as u32 + 1) * doorbell_stride(dstrd)) as usize <= PAGE
}
