//! Calls that open something and are given up: nobody else knows of what they have opened, so it is closed when their answers are found, which is when the client
//! takes a slot for another call.

use super::{Session, Slots};
use crate::wire::{self, Op, request};
use format::shared::{Reply, Request};

/// What an answer tells of that is to be closed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Opens {
    /// Its value is a handle.
    File,
    /// Its value is a pin.
    Pin,
    /// The file that the call was about has been opened for that.
    Beside,
}

impl Opens {
    pub fn of(request: &Request) -> Option<Opens> {
        match Op::from_u16(request.op.get())? {
            Op::Open | Op::Create | Op::Tmpfile | Op::Opendir => Some(Opens::File),
            Op::Pin => Some(Opens::Pin),
            op if op.may_open() && request.flags.get() & wire::OPENS != 0 => Some(Opens::Beside),
            _ => None,
        }
    }
}

/// The slots of such calls.
#[derive(Debug, Default)]
pub(super) struct Unwanted {
    slots: u64,
    opens: Vec<(usize, Opens)>,
}

impl Unwanted {
    pub fn slots(&self) -> u64 {
        self.slots
    }

    pub fn add(&mut self, slot: usize, opens: Opens) {
        self.slots |= 1 << slot;
        self.opens.push((slot, opens));
    }

    pub fn take(&mut self, slot: usize) -> Option<Opens> {
        if self.slots >> slot & 1 == 0 {
            return None;
        }
        self.slots &= !(1 << slot);
        let at = self.opens.iter().position(|(of, _)| *of == slot)?;
        Some(self.opens.swap_remove(at).1)
    }
}

impl Session {
    /// The request that closes what the answer in a slot tells of. The answer is there.
    pub(super) fn closing(&self, slot: usize, opens: Opens) -> Option<Request> {
        let reply: Reply = self.region.get(slot);
        let (op, number) = match opens {
            Opens::File => (Op::Release, reply.value.get()),
            Opens::Pin => (Op::Unpin, reply.value.get()),
            Opens::Beside => (Op::Release, reply.handle.get()),
        };
        (reply.errno.get() == 0 && number != 0).then(|| request(op, number))
    }

    /// Closes what the answer in a slot tells of that was given up, if there is something. Then the slot is in use still. The answer is there.
    pub(super) fn closes_unwanted(&self, slots: &mut Slots, slot: usize) -> bool {
        let opens = slots.unwanted.take(slot);
        let Some(request) = opens.and_then(|opens| self.closing(slot, opens)) else { return false };
        self.post(slot, &request);
        self.ring();
        true
    }
}
