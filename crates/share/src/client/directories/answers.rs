//! Waiting for what was posted: for room in the slots, or for an answer after all.

use super::*;
use std::time::Duration;

/// How long somebody sleeps at most who waits for room: the manager wakes him, unless it is gone.
const LONG_NAP: Duration = Duration::from_millis(2);

impl Session {
    /// Whether the lease with this number is this session's still.
    pub(super) fn has_lease(&self, place: usize, number: u64) -> bool {
        self.region.directory(place).load(Ordering::SeqCst) == number && !self.is_dead()
    }

    /// A slot for what is posted, if there are some beside it.
    pub(super) fn slot_to_post(&self) -> Option<SlotNo> {
        let slot = self.take_slot(None)?;
        if self.slots.lock().taken.count_ones() <= SLOTS as u32 - SPARE {
            return Some(slot);
        }
        self.give_slot(slot);
        None
    }

    /// There is no slot for what is to be posted: waits until there is room, or else for a slot as if it were a call, which is taken then. False when the manager has ended.
    pub(super) async fn waits_for_slot(self: &Arc<Session>, slot: &mut Option<SlotNo>) -> bool {
        if self.wait_for_room() {
            return true;
        }
        *slot = self.slots_in_turn(1).await.map(|(slot, _)| slot);
        slot.is_some()
    }

    /// Waits for a while until the manager has done a part of what was posted. False when that is little: most slots are those of calls for whose answers threads wait.
    pub(in crate::client) fn wait_for_room(&self) -> bool {
        let abandoned = self.slots.lock().abandoned;
        // Of a manager that is gone there is nothing to wait for: who makes a call instead finds the next one.
        if abandoned.count_ones() < ROOM || self.is_dead() {
            return false;
        }
        let ready = || {
            let is_done = |slot: &usize| {
                abandoned & 1 << slot != 0 && self.region.state(*slot).load(Ordering::Acquire) == state::DONE
            };
            (0..SLOTS).filter(is_done).count() as u32 >= ROOM || self.is_dead()
        };
        // Where other threads have something to do, somebody who sleeps is not in their way.
        let waiting = self.throng.enter(self.region.throng());
        waiting.let_others_go_first();
        if !(ready() || waiting.are_few() && self.looks_for(ready)) {
            self.ring();
            // With this one so many are done as there is to be room for; the manager goes on with those behind it while this thread wakes.
            let behind = (abandoned.count_ones() - ROOM) as usize;
            let expected = self.directories.table.lock().posted_before(behind);
            let is_under_way = |slot: &SlotNo| {
                abandoned & 1 << slot != 0 && self.region.state(*slot).load(Ordering::Acquire) != state::DONE
            };
            // Among them are others than what was posted under leases, so it may be done already.
            let slot = Some(expected).filter(is_under_way).or_else(|| (0..SLOTS).find(is_under_way));
            // Whoever neither waits nor sleeps is in the way of the manager: many such threads have kept it from its processor for seconds.
            if slot.is_some_and(|slot| !self.sleep_until_answered(slot, LONG_NAP)) {
                std::thread::sleep(Duration::from_micros(50));
            }
            self.check_alive();
        }
        true
    }

    /// Waits until so many files are closed that were to be closed without a request, or the manager is gone.
    pub(super) fn wait_closed(&self, nth: u64) {
        self.ring();
        let done = || self.region.closed().load(Ordering::Acquire).wrapping_sub(nth) as i64 >= 0;
        while !(self.looks_for(|| done() || self.is_dead()) && done()) && self.check_alive() {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// The answer to what was posted in a slot and does not count as done.
    pub(super) fn answer_in(&self, slot: SlotNo) -> std::result::Result<(), Failed> {
        let region = &self.region;
        self.ring();
        let done = || region.state(slot).load(Ordering::Acquire) == state::DONE;
        loop {
            if self.looks_for(|| done() || self.is_dead()) && done() {
                break;
            }
            if !self.check_alive() && !done() {
                // What it had not taken still stands there.
                let taken = region.one_way().load(Ordering::SeqCst) >> slot & 1 == 0;
                return Err(Failed::Lost { taken });
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        let reply: Reply = region.get(slot);
        region.state(slot).store(state::FREE, Ordering::Relaxed);
        self.give_slot(slot);
        match reply.errno.get() {
            0 => Ok(()),
            errno => Err(Failed::With(Error::from_errno(errno, String::new()))),
        }
    }
}

/// What became of something that was posted when its lease was taken back. `None`: it was not done, and is to be a message.
pub(super) fn asked(answer: std::result::Result<(), Failed>, may_repeat: bool) -> Option<Result<()>> {
    match answer {
        Ok(()) => Some(Ok(())),
        Err(Failed::With(Error::Stale)) => None,
        Err(Failed::With(e)) => Some(Err(e)),
        Err(Failed::Lost { taken }) if !taken || may_repeat => None,
        Err(Failed::Lost { .. }) => {
            let text = "the manager ended, and may have done this or not".into();
            Some(Err(Error::from_errno(libc::EIO, text)))
        }
    }
}
