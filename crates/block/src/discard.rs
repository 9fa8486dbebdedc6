//! Discards of segments that became free as a whole (`OpenOptions::discard`).
//!
//! Whatever is on its way in front of other transfers holds them up, so few discards are on their way at a time, and the rest is only noted. Nobody is given
//! what is on its way; what is noted anybody may take, and then it is not discarded.

use crate::core::{Core, Wait};
use crate::io::{Io, IoKind};
use crate::space::Run;
use format::BlockNo;
use format::ids::SegNo;
use media::{Op, Request};
use std::collections::BTreeSet;

const PER_CHUNK: u32 = format::limits::SEGMENT_BLOCKS as u32;

/// Requests on their way at most.
const REQUESTS: u32 = 2;
/// Segments in one of them at most: 64 MiB.
const SEGMENTS: u32 = 32;

#[derive(Debug, Default)]
pub(crate) struct Discards {
    /// Segments that were free as a whole when they were noted.
    due: BTreeSet<u32>,
    in_flight: u32,
}

impl Core {
    /// Blocks became free: has the segments discarded that are free as a whole.
    pub fn discard_freed(&mut self, runs: &[Run]) {
        if !self.options.discard || !self.geometry.discard {
            return;
        }
        for run in runs {
            let last = BlockNo(run.block.0 + run.count as u64 - 1).segment().0;
            let whole = |seg: &u32| self.space.is_free(segment(*seg));
            self.discards.due.extend((run.block.segment().0..=last).filter(whole));
        }
        self.send_discards();
    }

    fn send_discards(&mut self) {
        while self.discards.in_flight < REQUESTS
            && self.latched.is_none()
            && let Some(seg) = self.discards.due.pop_first()
        {
            let mut run = segment(seg);
            let keep = self.keep();
            if !self.space.set_apart(run, keep) {
                continue;
            }
            while run.count < SEGMENTS * PER_CHUNK
                && let next = segment(seg + run.count / PER_CHUNK)
                && self.discards.due.remove(&next.block.segment().0)
                && self.space.set_apart(next, keep)
            {
                run.count += PER_CHUNK;
            }
            let bytes = run.count as u64 * format::limits::BLOCK_SIZE as u64;
            let request = Request::range(Op::Discard, run.block.byte(), bytes, 0);
            self.discards.in_flight += 1;
            self.submit(request, Io { kind: IoKind::Discard { run }, epoch: None });
        }
    }

    /// A discard is over, whether it was done or not.
    pub fn discarded(&mut self, run: Run, result: Result<(), media::MediaError>) {
        if let Err(e) = result {
            tracing::warn!("{}: discard failed: {e}", self.geometry.name);
        }
        self.discards.in_flight -= 1;
        self.space.put_back(run);
        self.wake(Wait::Progress);
        self.send_discards();
    }

    /// Whether discards hold blocks back, which will be free when they are over.
    pub fn discards_hold_back(&self) -> bool {
        self.discards.in_flight > 0
    }
}

fn segment(seg: u32) -> Run {
    Run { block: SegNo(seg).first_block(), count: PER_CHUNK }
}
