//! Barriers: order without a transfer (beyond BarrierFS, section 4.1, whose fbarrier dispatches).
//!
//! Usually the running epoch goes on behind a barrier: recovery takes it as a whole or not at all, so nothing of what follows is there without what
//! came before, as long as none of it overwrites in place. So a barrier is a mark ([`Running::barrier`](crate::epoch::Running)), and all pages of its
//! epoch get blocks of their own. The worker closes the epoch when it has grown or is old, so that a sync that comes next finds little to
//! do and little is lost with a process that is killed; whoever makes changes closes it only when the worker does not follow, or when the
//! volume is nearly full. Tested in tests/barriers.rs, tests/power.rs and tests/explore.rs.

use crate::core::{Core, Res, Stop, Wait};
use crate::epoch::Reason;
use fs::Error;
use fs::cache::PAGE;
use std::time::Duration;

/// The worker closes an epoch with a barrier in it when its changes are of this size, bytes, or at this age.
const BARRIER_BYTES: usize = 8 << 20;
pub(crate) const BARRIER_AGE: Duration = Duration::from_millis(10);
/// Who changes something closes it when the worker did not come to it before this size, bytes.
const BARRIER_BYTES_MAX: usize = 2 * BARRIER_BYTES;

/// So many blocks more than there are overwritten pages must be free for changes to join an epoch with a barrier in it: more than one call changes
/// under one hold of the lock.
const BARRIER_SPARE: u64 = 256;

impl Core {
    /// Order between everything done so far and everything done later.
    pub fn barrier(&mut self) -> Res<()> {
        if let Some(why) = &self.latched {
            return Err(Error::Latched(why.clone()).into());
        }
        if self.running.is_empty() {
            // Closed epochs are on their way, perhaps by age alone.
            self.ordered = self.last_closed();
        } else if self.running.gate.is_some() || self.lacks_room_for_order(0) {
            self.close_epoch_for(Reason::Barrier)?;
        } else {
            if !std::mem::replace(&mut self.running.barrier, true) {
                let due = self.running.since.map(|since| since + BARRIER_AGE);
                self.wake_worker |= due.is_some_and(|due| self.worker_deadline.is_none_or(|d| d > due));
            }
            self.tell_of_growth();
        }
        self.counters.barriers += 1;
        Ok(())
    }

    /// Whether the running epoch must be closed before anything else changes, because nothing of it overwrites in place (there is a barrier
    /// in it, or an atomic write): the worker does not follow, or its pages might not find a place.
    pub fn order_ends_epoch(&mut self) -> bool {
        if !self.running.keeps_places() {
            return false;
        }
        if self.running.barrier {
            self.tell_of_growth();
        }
        self.is_larger(BARRIER_BYTES_MAX, 3) || self.lacks_room_for_order(0)
    }

    /// Whether the worker should close the running epoch, if there is a barrier in it, because of its size.
    pub fn barrier_is_due(&self) -> bool {
        self.is_larger(BARRIER_BYTES, 8)
    }

    /// Tells the worker, once, when that is so.
    fn tell_of_growth(&mut self) {
        if !self.running.grown && self.barrier_is_due() {
            self.running.grown = true;
            self.wake_worker = true;
        }
    }

    /// Whether the running epoch is larger than `bytes`, or its overwrites than this part of the longest record. Should a single call
    /// take the blocks that those were to have, they go into the record (`place_overwrite`).
    fn is_larger(&self, bytes: usize, part: usize) -> bool {
        let size = |pages: usize| self.running.bytes + pages * PAGE;
        size(self.cache.dirty()) > bytes || size(self.overwrites()) > self.log.record_max() / part
    }

    /// Whether the dirty pages might not all find a place other than their own when so many more blocks are `taken`. Each may make two nodes of the file's tree new.
    fn lacks_room_for_order(&self, taken: u64) -> bool {
        self.space.spare(self.keep()) < 3 * self.overwrites() as u64 + taken + BARRIER_SPARE
    }

    /// Waits for a checkpoint where [`Core::checkpoint_comes_first`]. Called before a change, and before blocks are taken for one.
    pub fn let_checkpoint_by(&mut self, taken: u64) -> Res<()> {
        if self.checkpoint_comes_first(taken) {
            self.hurry_checkpoint();
            return Err(Stop::Wait(Wait::Progress));
        }
        Ok(())
    }

    /// Whether a checkpoint must come before so many more pages are changed, each of which overwrites a block or has one `taken` for it. A block whose image is in the log is
    /// not overwritten before a checkpoint has passed that image, and a checkpoint begins by closing the running epoch. So an epoch must
    /// not have more such pages than find new blocks or fit into its record, beside what else may be in there and what one call adds.
    pub fn checkpoint_comes_first(&self, taken: u64) -> bool {
        let images = (self.overwrites() + taken as usize).min(self.logged.len());
        if images == 0 || !self.lacks_room_for_order(taken) {
            return false;
        }
        let max = self.log.record_max();
        let held = self.running.bytes + self.running.pages.len() * PAGE;
        held.max(max / 2) + images * PAGE > max / 16 * 9
    }

    /// Dirty pages for which no block is reserved.
    fn overwrites(&self) -> usize {
        self.cache.dirty().saturating_sub(self.space.delayed() as usize)
    }
}
