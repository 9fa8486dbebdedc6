//! Files that are open and written by messages, for whose answers programs wait: after a few of these the file is asked for, to be lent as a new one is (see `server::directories`), and what
//! is written from then on is posted.
//!
//! What counts are writes that the manager can make without the device: of whole pages, or at the end of a file. Of others it may have to read a page first, which it
//! does for one posted write after the other, and for messages of several threads at the same time. Refusals, and leases that ended after little use, make asking rarer.

use super::Remote;
use super::call::Answer;
use super::directories::may_post;
use super::files::OpenFile;
use super::resizes::Since;
use fs::{FileType, Handle};

const PAGE: u64 = 4096;
/// Writes by messages before a file is asked for; and the most that it can become.
const NEED: u32 = 4;
const NEED_MAX: u32 = 1 << 10;
/// Posted writes that make up for asking for the file.
const WORTH: u32 = 64;

/// What counts for asking for an open file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    /// Writes by messages since it was not lent any more, or was refused.
    messages: u32,
    need: u32,
    /// Writes that were posted since it was lent.
    posted: u32,
}

impl Default for Waits {
    fn default() -> Waits {
        Waits { messages: 0, need: NEED, posted: 0 }
    }
}

impl Waits {
    /// A write was posted.
    pub fn has_posted(&mut self) {
        self.posted = self.posted.saturating_add(1);
    }

    /// A write was a message.
    fn has_waited(&mut self) {
        self.messages = self.messages.saturating_add(1);
    }

    /// The lease is over, or was refused.
    fn weigh(&mut self) {
        self.need = match self.posted {
            ..WORTH => (self.need * 2).min(NEED_MAX),
            _ => (self.need / 2).max(NEED),
        };
        (self.messages, self.posted) = (0, 0);
    }
}

impl Remote {
    /// Whether a file is to be asked for with a write that is about to be a message.
    pub(super) fn asks_for(&self, handle: Handle) -> bool {
        let session = self.now();
        let may_be_lent =
            |file: &OpenFile| !file.held && file.kind == FileType::Regular && may_post(file.flags);
        let Some(file) = self.file(handle).filter(may_be_lent) else { return false };
        if file.lent == 0 {
            return file.waits.messages >= file.waits.need;
        }
        if !session.directories.lasts(session, file.lent) {
            self.link.change(handle, |now| {
                if now.lent == file.lent {
                    now.lent = 0;
                    now.waits.weigh();
                }
            });
        }
        false
    }

    /// A write was a message, with which the file was asked for or not.
    pub(super) fn has_waited(
        &self,
        handle: Handle,
        (offset, len): (u64, usize),
        (asked, before): (bool, Option<Since>),
        answer: &Answer<'_>,
    ) {
        let serial = answer.session();
        let is_lent = asked && answer.of().directories.lends(answer.lent, answer.lent_room);
        let end = offset.saturating_add(len as u64);
        let whole_pages = offset.is_multiple_of(PAGE) && end.is_multiple_of(PAGE);
        let counts = whole_pages || answer.attr().is_ok_and(|attr| attr.size == end);
        if !(asked || counts) {
            return;
        }
        self.link.change(handle, |file| {
            match asked {
                true if is_lent && file.session == serial => {
                    file.lent = answer.lent;
                    self.own_by(file, answer.lent, (before, 1), answer);
                }
                true => file.waits.weigh(),
                false => {}
            }
            if counts {
                file.waits.has_waited();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_use_makes_asking_rarer() {
        let mut waits = Waits::default();
        let lease = |waits: &mut Waits, posted: u32| {
            (0..posted).for_each(|_| waits.has_posted());
            waits.weigh();
            waits.need
        };
        assert_eq!([3, 0, WORTH - 1].map(|posted| lease(&mut waits, posted)), [2, 4, 8].map(|n| n * NEED));
        assert_eq!(
            [WORTH, 1000, 1000, 1000].map(|posted| lease(&mut waits, posted)),
            [4, 2, 1, 1].map(|n| n * NEED)
        );
        (0..40).for_each(|_| assert!(lease(&mut waits, 0) > NEED));
        assert_eq!((waits.need, waits.messages), (NEED_MAX, 0));
    }
}
