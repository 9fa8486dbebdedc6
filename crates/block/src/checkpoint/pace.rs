//! How fast a checkpoint goes: at full speed when somebody waits for it or the log fills up, else in the background of everything.
//!
//! The worker keeps the time ([`Core::rest_ends`] is one of its deadlines). Clocks that stand still, as in tests, mean no pauses.

use crate::core::Core;
use format::limits::BLOCK_SIZE;
use std::time::Duration;

/// Images kept for a checkpoint that takes its time.
const STASHED_MAX: usize = 10_000;

impl Core {
    /// A checkpoint is wanted, and somebody waits for it.
    pub fn hurry_checkpoint(&mut self) {
        self.checkpoint_wanted = true;
        self.checkpoint_hurry = true;
        self.wake_worker = true;
    }

    /// How many times as long as a home write took the next one waits. While there is log space left and nobody waits, home
    /// writes come one at a time with pauses between them: they are many, and would slow down whatever else goes on.
    fn rest(&self) -> u32 {
        let stashed = self.checkpointing.as_ref().map_or(0, |c| c.stashed.len());
        if self.checkpoint_hurry || stashed > STASHED_MAX {
            return 0;
        }
        // Without what is left for the checkpoint after this one ([`Core::leaves_log_space`]).
        let left = (self.log.record_max() / BLOCK_SIZE) as u64;
        match self.log.free().saturating_sub(left) * 8 / (self.log.capacity() - left) {
            0 => 0,
            1 => 1,
            _ => 3,
        }
    }

    /// Whether the next home write waits for the one before, or until [`Core::rest_ends`].
    pub(super) fn rests(&mut self) -> bool {
        let (rest, now) = (self.rest(), self.monotonic());
        let Some(c) = &mut self.checkpointing else { return false };
        c.resting = rest > 0 && c.in_flight == 0 && now < c.rest_until;
        rest > 0 && (c.in_flight > 0 || c.resting)
    }

    /// When the next home write is due, if it waits for nothing but time.
    pub fn rest_ends(&self) -> Option<Duration> {
        let c = self.checkpointing.as_ref()?;
        c.resting.then_some(c.rest_until)
    }

    /// A transfer of the checkpoint is on its way.
    pub(super) fn checkpoint_sent(&mut self) {
        let now = self.monotonic();
        if let Some(c) = &mut self.checkpointing {
            c.in_flight += 1;
            c.sent = now;
        }
    }

    /// A transfer of the checkpoint has completed.
    pub fn checkpoint_written(&mut self) {
        let (rest, now) = (self.rest(), self.monotonic());
        if let Some(c) = &mut self.checkpointing {
            c.in_flight -= 1;
            c.rest_until = now + now.saturating_sub(c.sent) * rest;
        }
    }
}
