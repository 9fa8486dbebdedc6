//! What clients post one way: taken out of their memory, put into their order, and run one after the other. Other calls of the same session are run behind
//! it.

use super::Poller;
use super::{Step, Work, runner};
use crate::server::session::STREAM;
use format::shared::{CLOSING, Request, SLOTS};
use fs::FileSystem;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<F: FileSystem> Poller<F> {
    /// Takes what a session has posted one way, and runs it as far as it goes at once. Whether there was anything.
    pub(super) fn take_stream(&mut self, id: u64) -> bool {
        let session = self.connections.get_mut(&id).and_then(|c| c.session.as_mut());
        let Some(session) = session.filter(|s| !s.outlived) else { return false };
        let region = &session.client.region;
        // First of all: what is to be closed stands behind what was posted before it.
        let closes = region.take_closes(&mut session.stream.closes);
        let mut found: SmallVec<[(u64, Step); SLOTS]> =
            closes.map(|(behind, handle)| (behind, Step::Close(handle))).collect();
        let mut slots = match region.one_way().load(Ordering::SeqCst) {
            0 if found.is_empty() => return false,
            0 => 0,
            _ => region.one_way().swap(0, Ordering::SeqCst),
        };
        session.last = self.round;
        // The client posts one at a time, so these are all those behind what was taken before.
        while slots != 0 {
            let slot = slots.trailing_zeros() as usize;
            slots &= slots - 1;
            // A client may post where it waits for an answer, at its own risk.
            if slot < SLOTS && session.tasks[slot].is_none() {
                found.push((region.get::<Request>(slot).more.get(), Step::Call(slot)));
            }
        }
        // A request before what is closed behind it.
        found.sort_unstable();
        // Nothing is there twice, unless the client does not keep to the rules.
        found.truncate((SLOTS + CLOSING).saturating_sub(session.stream.queue.len()));
        session.stream.taken += found.len() as u64;
        session.stream.queue.extend(found.into_iter().map(|(_, step)| step));
        self.run_stream(id);
        true
    }

    /// Runs what a session has posted, and then what waited for that.
    pub(super) fn run_stream(&mut self, id: u64) {
        loop {
            let session = self.connections.get_mut(&id).and_then(|c| c.session.as_mut());
            let Some(session) = session.filter(|s| s.stream.task.is_none()) else { return };
            let stream = &mut session.stream;
            if stream.is_idle() {
                break;
            }
            let steps = std::mem::take(&mut stream.queue);
            stream.running = steps.len() as u64;
            let mut task = self.spare.pop().unwrap_or_else(|| runner(&self.fs));
            task.begin(session.client.clone(), Work::Posted { steps, closed: stream.closes });
            session.stream.task = Some(task);
            self.poll_task(id, STREAM);
        }
        let session = self.connections.get_mut(&id).and_then(|c| c.session.as_mut());
        let Some(session) = session else { return };
        if session.ending {
            return self.clean_up(id);
        }
        let stashed = std::mem::take(&mut session.stream.stashed);
        if stashed != 0 {
            let cancelled = std::mem::take(&mut session.stream.cancelled);
            self.start(id, stashed);
            (0..SLOTS).filter(|slot| cancelled & 1 << slot != 0).for_each(|slot| self.give_up(id, slot));
        }
    }

    /// Sees to those who wait until what was posted before they asked is done. Whether there were any.
    pub(super) fn look_for_drains(&mut self) -> bool {
        let asked = self.drains.take();
        let any = !asked.is_empty();
        for drain in asked {
            let ids: Vec<u64> = match drain.session {
                Some(id) => vec![id],
                None => self.connections.keys().copied().collect(),
            };
            for id in ids {
                self.take_stream(id);
                let session = self.connections.get_mut(&id).and_then(|c| c.session.as_mut());
                if let Some(session) = session.filter(|s| !s.stream.is_idle()) {
                    drain.add();
                    session.stream.waiting.push((session.stream.taken, Arc::clone(&drain)));
                }
            }
            drain.one_less();
        }
        any
    }
}
