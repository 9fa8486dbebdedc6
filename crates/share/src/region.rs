//! A session's memory as both sides see it: slots, their words, their messages. Layout: `format::shared`.

use crate::memory::Mapping;
use crate::streams;
use format::shared::*;
use fs::Memory;
use rustix::thread::futex;
use std::io;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use zerocopy::{FromBytes, IntoBytes};

/// Index of a slot, below [`SLOTS`].
pub(crate) type SlotNo = usize;

#[derive(Debug)]
pub(crate) struct Region(Mapping);

impl Region {
    pub fn map(fd: impl AsFd) -> io::Result<Region> {
        Mapping::new(fd, SESSION_BYTES).map(Region)
    }

    /// The memory.
    pub fn memory(&self) -> &Mapping {
        &self.0
    }

    /// Manager: fills in the header of new memory.
    pub fn initialise(&self) {
        self.0.copy_in(offset_of!(SessionHeader, magic), &MAGIC.to_le_bytes());
        self.0.copy_in(offset_of!(SessionHeader, version), &VERSION.to_le_bytes());
        self.0.copy_in(offset_of!(SessionHeader, slots), &(SLOTS as u32).to_le_bytes());
    }

    pub fn doorbell(&self) -> &AtomicU64 {
        self.0.long(offset_of!(SessionHeader, doorbell))
    }
    pub fn cancel(&self) -> &AtomicU64 {
        self.0.long(offset_of!(SessionHeader, cancel))
    }
    pub fn one_way(&self) -> &AtomicU64 {
        self.0.long(offset_of!(SessionHeader, one_way))
    }
    /// Manager: whether the client wants something; also, so many handles of `closing` being taken, whether there are more.
    pub fn rings(&self, taken: u64) -> bool {
        [self.doorbell(), self.one_way(), self.cancel()].iter().any(|w| w.load(Ordering::SeqCst) != 0)
            || self.closes().load(Ordering::SeqCst) != taken
    }
    pub fn closes(&self) -> &AtomicU64 {
        self.0.long(offset_of!(SessionHeader, closes))
    }
    pub fn closed(&self) -> &AtomicU64 {
        self.0.long(offset_of!(SessionHeader, closed))
    }
    /// The handle, and behind which request it is to be closed.
    fn closing(&self, nth: u64) -> [&AtomicU64; 2] {
        let at = offset_of!(SessionHeader, closing) + nth as usize % CLOSING * 16;
        [self.0.long(at), self.0.long(at + 8)]
    }
    /// Client: has a handle closed behind what was posted up to this number, if there is room; `closed` will be so much then. One thread at a time.
    pub fn put_close(&self, handle: u64, posted: u64) -> Option<u64> {
        let nth = self.closes().load(Ordering::Relaxed);
        if nth.wrapping_sub(self.closed().load(Ordering::Acquire)) >= CLOSING as u64 {
            return None;
        }
        let [to_close, behind] = self.closing(nth);
        to_close.store(handle, Ordering::Relaxed);
        behind.store(posted, Ordering::Relaxed);
        self.closes().swap(nth.wrapping_add(1), Ordering::SeqCst);
        Some(nth.wrapping_add(1))
    }
    /// Manager: handles to be closed, without the first so many, which it has taken already; each behind the number of its request.
    pub fn take_closes(&self, taken: &mut u64) -> impl Iterator<Item = (u64, u64)> {
        let put = self.closes().load(Ordering::SeqCst);
        let before = std::mem::replace(taken, put);
        // More than there is room for says a client that does not keep to the rules.
        let count = Some(put.wrapping_sub(before)).filter(|&n| n <= CLOSING as u64).unwrap_or(0);
        (0..count).map(move |n| {
            let [handle, behind] = self.closing(before.wrapping_add(n)).map(|w| w.load(Ordering::Relaxed));
            (behind, handle)
        })
    }
    pub fn asleep(&self) -> &AtomicU32 {
        self.0.word(offset_of!(SessionHeader, asleep))
    }
    pub fn pulse(&self) -> &AtomicU32 {
        self.0.word(offset_of!(SessionHeader, pulse))
    }

    pub fn crowded(&self) -> &AtomicU32 {
        self.0.word(offset_of!(SessionHeader, crowded))
    }
    pub fn throng(&self) -> &AtomicU32 {
        self.0.word(offset_of!(SessionHeader, throng))
    }

    pub fn may_hold(&self) -> &AtomicU32 {
        self.0.word(offset_of!(SessionHeader, may_hold))
    }
    /// The number of the directory lease, or of that on new files, in this place.
    pub fn directory(&self, place: usize) -> &AtomicU64 {
        assert!(place <= NEW_FILES);
        self.0.long(offset_of!(SessionHeader, directories) + 8 * place)
    }
    /// A word of the holds.
    pub fn hold(&self, line: usize, word: usize) -> &AtomicU64 {
        assert!(line < HOLD_LINES && word < HOLDS_IN_LINE);
        self.0.long(HOLDS_AT + (line * HOLDS_IN_LINE + word) * 8)
    }

    /// Sets or takes away the mark of something that was used; whether it was there.
    pub fn mark(&self, bit: usize, used: bool) -> bool {
        assert!(bit < MARKS);
        let (word, bit) = (self.0.long(MARKS_AT + bit / 64 * 8), 1 << (bit % 64));
        let was = word.load(Ordering::Relaxed) & bit != 0;
        match used {
            _ if was == used => {}
            true => drop(word.fetch_or(bit, Ordering::Relaxed)),
            false => drop(word.fetch_and(!bit, Ordering::Relaxed)),
        }
        was
    }

    fn slot_at(slot: SlotNo) -> usize {
        assert!(slot < SLOTS);
        size_of::<SessionHeader>() + slot * size_of::<SlotHeader>()
    }
    fn payload_at(slot: SlotNo) -> usize {
        assert!(slot < SLOTS);
        PAYLOAD_AT + slot * PAYLOAD_MAX
    }

    /// The word of a slot: see `format::shared::state`.
    pub fn state(&self, slot: SlotNo) -> &AtomicU32 {
        self.0.word(Self::slot_at(slot) + offset_of!(SlotHeader, state))
    }

    /// Puts a request or an answer into a slot.
    pub fn put(&self, slot: SlotNo, message: &impl MessageBytes) {
        self.0.copy_in(Self::slot_at(slot) + offset_of!(SlotHeader, message), message.as_bytes());
    }
    /// A copy of the request or answer in a slot.
    pub fn get<M: MessageBytes>(&self, slot: SlotNo) -> M {
        let mut bytes = [0; size_of::<Request>()];
        self.0.copy_out(Self::slot_at(slot) + offset_of!(SlotHeader, message), &mut bytes);
        M::read_from_bytes(&bytes).expect("both messages have this size")
    }
    /// Bytes of payload of a slot and of those behind it.
    pub fn payload_room(slot: SlotNo) -> usize {
        assert!(slot < SLOTS);
        (SLOTS - slot) * PAYLOAD_MAX
    }
    /// Copies bytes to the payload of a slot, from `at` on. It may go on in those behind.
    pub fn put_payload(&self, slot: SlotNo, at: usize, from: &[u8]) {
        assert!(at + from.len() <= Self::payload_room(slot));
        streams::hand_over(&self.0, Self::payload_at(slot) + at, from);
    }
    /// Copies the payload of a slot, from `at` on.
    pub fn get_payload(&self, slot: SlotNo, at: usize, to: &mut [u8]) {
        assert!(at + to.len() <= Self::payload_room(slot));
        self.0.copy_out(Self::payload_at(slot) + at, to);
    }

    /// Manager: says that the answer is there. Whether the client must be woken.
    pub fn answer(&self, slot: SlotNo) -> bool {
        self.state(slot).swap(state::DONE, Ordering::AcqRel) == state::SLEEPING
    }

    /// Manager: wakes the client that sleeps until a slot is answered.
    pub fn wake(&self, slot: SlotNo) {
        let _ = futex::wake(self.state(slot), futex::Flags::empty(), u32::MAX >> 1);
    }
}

/// The payload memory of all slots, as far as devices may reach it.
#[derive(Debug)]
pub(crate) struct Payloads(Arc<Region>);

impl Payloads {
    pub fn of(region: &Arc<Region>) -> Arc<Payloads> {
        Arc::new(Payloads(region.clone()))
    }
    /// Where that of a slot begins.
    pub fn offset(slot: SlotNo) -> u64 {
        (Region::payload_at(slot) - PAYLOAD_AT) as u64
    }
}

// SAFETY: a part of the region's mapping, whose memory is sealed against being shrunk (`memory::sealed`); it is unmapped with the region.
unsafe impl Memory for Payloads {
    fn range(&self) -> (*mut u8, usize) {
        (self.0.memory().at(PAYLOAD_AT, SLOTS * PAYLOAD_MAX), SLOTS * PAYLOAD_MAX)
    }
}

/// [`Request`] and [`Reply`]: what a slot carries.
pub(crate) trait MessageBytes:
    FromBytes + IntoBytes + zerocopy::Immutable + zerocopy::KnownLayout
{
}
impl MessageBytes for Request {}
impl MessageBytes for Reply {}
const _: () = assert!(size_of::<Request>() == 64 && size_of::<Reply>() == 64);
