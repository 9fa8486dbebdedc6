//! What happens when a controller does not do what it should.
//!
//! The thread that reaps looks after it, every [`LOOK`] while nothing completes:
//! - registers read as all ones: the controller is gone; all requests fail;
//! - CSTS.CFS, CSTS.RDY that is 0, or a completion of something that is not under way: reset;
//! - a command takes longer than [`Options::timeout`](super::Options): Abort (NVMe 1.4, section 5.1); its completion comes, and says
//!   what happened. If it does not come within the time for admin commands, 10 seconds at most, or Abort gets no answer, or cannot be sent
//!   because a question (for the health, say) has got none: reset. Such a question alone is no reason.
//!
//! A reset (7.3.2) stops the controller: after CSTS.RDY is 0 it has forgotten its commands and leaves memory alone. If it does not
//! stop, the function is reset; if that fails, the device is cut off from memory. Only then may the memory of requests be given
//! back, so only then do they fail. A controller that stopped is started again, must be the same with the same namespace, and
//! gets its queues back. After [`RESETS`] resets without a single completion in between it is given up; and at once where completed writes
//! may have been in its cache alone, which a reset may have emptied.

use super::admin::{self, Admin, Trouble};
use super::{NvmeMedia, start};
use format::nvme::register::csts;
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// Time between two looks at the controller.
pub(super) const LOOK: Duration = Duration::from_millis(10);

/// Resets without progress before the controller is given up.
const RESETS: u32 = 3;

/// What the thread that looks after the controller remembers.
pub(super) struct Watch {
    looked: Instant,
    /// [`super::pair::Context::progress`] at that time.
    seen: u64,
    /// [`super::pair::Context::progress`] at the last reset, and resets since it was different.
    progress: u64,
    resets: u32,
}

impl Watch {
    pub(super) fn new() -> Watch {
        Watch { looked: Instant::now(), seen: 0, progress: 0, resets: 0 }
    }
}

impl NvmeMedia {
    /// Looks whether the controller lives, and for commands that take too long, unless that was done just now: whether it was done.
    pub(super) fn look_after(&self, watch: &mut Watch, now: Instant) -> bool {
        if now.saturating_duration_since(watch.looked) < LOOK || self.dead.load(SeqCst) {
            return false;
        }
        watch.looked = now;
        self.examine(watch, now);
        true
    }

    fn examine(&self, watch: &mut Watch, now: Instant) {
        // It says so again and again. Whose volume it is must decide: what it has written is not durable yet.
        if self.bus.is_wanted_back() {
            tracing::error!(
                device = self.bus.name(),
                "the kernel wants it back, to unbind or remove it, and waits: unmount what is on it"
            );
        }
        // Who waits for an answer to an admin command meanwhile looks at the status himself, and is not waited for: completions must be taken in.
        let status = self.admin.try_lock().map(|mut admin| {
            self.take_events(&mut admin);
            (admin.status(), admin.is_stuck())
        });
        match status {
            Some((Err(_), _)) => return self.give_up(self.admin.lock(), "it is gone"),
            Some((Ok(status), _)) if status & csts::CFS != 0 => {
                return self.recover(watch, "it reports a fatal error");
            }
            Some((Ok(status), _)) if status & csts::RDY == 0 => {
                return self.recover(watch, "it has stopped by itself");
            }
            Some((Ok(_), true)) => return self.recover(watch, "it does not answer"),
            Some((Ok(_), false)) | None => {}
        }
        // Nothing has completed since the last look.
        let progress = self.context.progress.load(Relaxed);
        let stalled = std::mem::replace(&mut watch.seen, progress) == progress;
        self.admin_needed.store(false, SeqCst);
        for pair in &self.pairs {
            let mut guard = pair.lock();
            if stalled && guard.commands() > 0 && guard.insist() {
                self.nudges.fetch_add(1, Relaxed);
            }
            let id = guard.ring_facts().id;
            let grace = self.options.admin_timeout.min(admin::PRESSED);
            let late = guard.late(now, self.options.timeout, grace);
            drop(guard);
            for late in late {
                if late.aborted {
                    return self.recover(watch, "a command can not be aborted");
                }
                tracing::warn!(
                    device = self.bus.name(),
                    "command {:#x} of queue {id} takes too long",
                    late.cid
                );
                // Who asks for something meanwhile does not keep it for long any more.
                self.admin_needed.store(true, SeqCst);
                let Some(mut admin) = self.admin.try_lock() else { return };
                self.admin_needed.store(false, SeqCst);
                self.aborts.fetch_add(1, Relaxed);
                pair.lock().note_abort(&late);
                let asked = admin.abort(id, late.cid);
                drop(admin);
                if asked.is_err() {
                    return self.recover(watch, "it does not answer");
                }
            }
        }
    }

    fn take_events(&self, admin: &mut Admin) {
        if !admin.has_news() {
            return;
        }
        for event in admin.events() {
            self.events.fetch_add(1, Relaxed);
            tracing::warn!(device = self.bus.name(), "the controller reports {event}");
        }
    }

    /// Stops the controller, decides about everything under way, and starts it again.
    pub(super) fn recover(&self, watch: &mut Watch, why: &'static str) {
        if self.dead.load(SeqCst) {
            return;
        }
        tracing::warn!(device = self.bus.name(), "resetting the controller: {why}");
        self.resets.fetch_add(1, Relaxed);
        let progress = self.context.progress.load(Relaxed);
        watch.resets = if progress == watch.progress { watch.resets + 1 } else { 1 };
        watch.progress = progress;
        for pair in &self.pairs {
            pair.lock().close();
        }
        self.admin_needed.store(true, SeqCst);
        let mut admin = self.admin.lock();
        self.admin_needed.store(false, SeqCst);
        let stopped = match admin.stop() {
            Err(Trouble::Gone) => Err(Trouble::Gone),
            Err(_) => match self.bus.reset() {
                Ok(()) => admin.stop(),
                Err(_) => Err(Trouble::Timeout("resetting it")),
            },
            Ok(()) => Ok(()),
        };
        if let Err(trouble) = stopped {
            return self.give_up(admin, trouble.told().0);
        }
        // It keeps its cache over a reset, or has lost it, or has written it: nobody knows, least of all after a failure. So nobody
        // can say what is durable, and what is read may be older than what was written.
        let context = &self.context;
        if context.front.geometry.volatile_cache
            && context.written.load(SeqCst) > context.flushed.load(SeqCst)
        {
            return self.give_up(admin, "its cache may be lost, with what was not flushed");
        }
        for pair in &self.pairs {
            pair.lock().forget_commands(context);
        }
        if watch.resets > RESETS {
            return self.give_up(admin, "resetting it does not help");
        }
        match start::restart(self, &mut admin) {
            Ok(()) => self.pairs.iter().for_each(|pair| pair.lock().resume(context)),
            Err(trouble) => self.give_up(admin, trouble.told().0),
        }
    }

    /// Nothing works from now on. All requests fail, after the device can do no harm to their memory. Who waits to ask it something is not
    /// let in before that: there would be no answer.
    fn give_up(&self, mut admin: MutexGuard<'_, Admin>, why: &'static str) {
        tracing::error!(device = self.bus.name(), "the controller is given up: {why}");
        self.bus.cut_off();
        admin.is_cut_off();
        drop(admin);
        self.dead.store(true, SeqCst);
        for pair in &self.pairs {
            pair.lock().fail_all(&self.context);
        }
    }
}
