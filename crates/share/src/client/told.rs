//! What comes back of what was posted: when a file is closed that was made here by a message, the manager answers with its attributes, for which nobody waits. They are kept when they
//! are looked for, or when the slot is used again, so that whoever looks at the file, or opens it, seldom has to ask.
//!
//! Not those of files that were made under a lease on their directory: one after the other without a message, they would drive out what is of use.

use super::asking::ATTR;
use super::kept::Since;
use super::{Remote, SLOTS, Session, Slots};
use crate::wire;
use format::shared::{AttrImage, Reply, state};
use fs::{Attr, Ino};
use std::sync::atomic::Ordering;
use zerocopy::{FromZeros, IntoBytes};

/// Slots whose answers bring attributes, and how many changes this client had posted before it asked.
#[derive(Debug)]
pub(super) struct Telling {
    slots: u64,
    posts: [u64; SLOTS],
}

impl Default for Telling {
    fn default() -> Telling {
        Telling { slots: 0, posts: [0; SLOTS] }
    }
}

impl Slots {
    /// The answer in this slot will bring attributes, as of after so many posted changes.
    pub fn tells(&mut self, slot: usize, posts: u64) {
        self.telling.slots |= 1 << slot;
        self.telling.posts[slot] = posts;
    }

    /// Nothing more comes from this slot.
    pub fn told(&mut self, slot: usize) {
        self.telling.slots &= !(1 << slot);
    }
}

impl Session {
    /// Keeps what the answer in a slot has brought, if it was to bring something. The answer is there.
    pub(super) fn take_told(&self, slots: &mut Slots, slot: usize) {
        if slots.telling.slots >> slot & 1 == 0 {
            return;
        }
        slots.told(slot);
        let reply: Reply = self.region.get(slot);
        if reply.errno.get() != 0 || reply.noted.get() == 0 || (reply.len.get() as usize) < ATTR {
            return;
        }
        let mut image = AttrImage::new_zeroed();
        self.region.get_payload(slot, 0, image.as_mut_bytes());
        if let Ok(attr) = wire::attr(&image) {
            let since = Since { clock: reply.noted.get(), posts: slots.telling.posts[slot] };
            self.kept.learn_attr(since, &attr);
        }
    }

    /// Keeps what answers have brought that nobody waited for. Whether there was anything.
    pub(super) fn gather(&self) -> bool {
        let mut slots = self.slots.lock();
        let mut there = slots.telling.slots;
        let mut any = false;
        while there != 0 {
            let slot = there.trailing_zeros() as usize;
            there &= there - 1;
            if self.region.state(slot).load(Ordering::Acquire) == state::DONE {
                self.take_told(&mut slots, slot);
                any = true;
            }
        }
        any
    }
}

impl Remote {
    /// As [`super::kept::Kept::walk`], after what has come back meanwhile is kept.
    pub(super) fn attr_told(&self, base: Ino, path: &[u8]) -> Option<Attr> {
        let session = self.now();
        session.gather().then(|| session.kept.walk(base, path)).flatten()
    }
}
