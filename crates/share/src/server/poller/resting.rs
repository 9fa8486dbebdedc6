//! What the thread of a server does when there is nothing to do: it looks for a while, and sleeps.

use super::{DEVICES, PUBLISH, Poller};
use crate::region::Region;
use fs::{Devices, FileSystem};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// In a crowd the thread sleeps soon when there is nothing to do for longer than this: being woken costs less than looking for so long.
const GAP: Duration = Duration::from_micros(20);
/// How long it offers the processor to others there, when it has more to do: who has just been answered often asks again at once.
const YIELDS: Duration = Duration::from_micros(10);
/// What counts of a longer time.
const GAP_MAX: Duration = Duration::from_millis(1);

/// Looks at sessions between two looks at the sockets: somebody who connects, or has just done so, would wait until the thread sleeps.
const SOCKETS: u32 = 64;

/// Milliseconds after which it is tried again to have closed what there was no thread for.
const AGAIN: i64 = 100;

/// How long the thread looks for transfers that are in flight, if devices are seen without the kernel.
const FLIGHT: Duration = Duration::from_micros(500);

impl<F: FileSystem> Poller<F> {
    /// Nothing to do: looks for a while, then sleeps until something happens.
    pub(super) fn rest(&mut self) {
        if self.crowded && self.gap > GAP {
            self.stand_back(true);
        } else if !self.crowded || self.gap < GAP / 2 {
            self.stand_back(false);
        }
        let sessions = self.active.iter().filter_map(|id| self.connections.get(id)?.session.as_ref());
        let regions: Vec<(&Region, u64)> = sessions.map(|s| (&*s.client.region, s.stream.closes)).collect();
        let rung = || self.bell.any() || regions.iter().any(|(r, closes)| r.rings(*closes));
        let (mut looks, mut heard) = (0u32, false);
        let looked = || {
            looks = looks.wrapping_add(1);
            heard = looks.is_multiple_of(SOCKETS) && self.has_events();
            heard || rung() || self.fs.attend(true) == Devices::Done
        };
        let begun = Instant::now();
        let mut patience = self.options.patience;
        let mut crowded = self.crowded;
        if crowded {
            // Others could use the processor better than for giving it to each other.
            patience.yields = if self.gap > GAP { Duration::ZERO } else { patience.yields.min(YIELDS) };
        }
        let in_flight = self.fs.attend(true) == Devices::Busy;
        let are_many = |(region, _): &(&Region, u64)| region.throng().load(Ordering::Relaxed) != 0;
        let in_throng = crowded && !in_flight && regions.iter().any(are_many);
        if in_throng {
            // Who has been answered goes on meanwhile, on this processor too, and several have asked for something when one of them wakes this thread.
            (patience.looks_in_a_crowd, patience.yields) = (Duration::ZERO, Duration::ZERO);
        }
        if in_flight && !self.devices_tell {
            // Whoever does not wait for transfers that are in flight has another thread wait for them.
            crowded = false;
            patience.yields = patience.yields.max(FLIGHT);
        }
        if !regions.is_empty() && patience.wait(crowded, || false, || self.yields.offer(), looked) {
            if heard {
                self.events(Some(0));
            }
            return self.rested(begun);
        }
        regions.iter().for_each(|(r, _)| r.asleep().store(1, Ordering::SeqCst));
        self.bell.set_asleep(true);
        self.ask_devices(in_flight && self.devices_tell);
        // Whoever sleeps and has said that he takes completions in must be woken for them.
        let told = self.asked_devices.get();
        let busy = match told {
            true => rung() || self.fs.attend(true) == Devices::Done,
            false => {
                self.fs.attend(false);
                rung()
            }
        };
        // That looks at every session, and somebody rings soon.
        let publishes_later = in_throng && self.published_at.elapsed() < PUBLISH;
        if !busy && !publishes_later {
            self.publish();
        }
        self.counters.sleeps += !busy as u64;
        self.changes.runs_nowhere();
        let again = self.closer.tries_again().then_some(AGAIN);
        let again = if publishes_later { Some(PUBLISH.as_millis() as i64) } else { again };
        self.events(if busy { Some(0) } else { again });
        self.rested(begun);
        self.bell.set_asleep(false);
        // Who is looked at need not ring; who rang is looked at from now on.
        for id in &self.active {
            if let Some(session) = self.connections.get(id).and_then(|c| c.session.as_ref()) {
                session.client.region.asleep().store(0, Ordering::SeqCst);
            }
        }
    }

    /// Whether there is something that [`Poller::events`] would take in.
    fn has_events(&self) -> bool {
        let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|n| n > 0)
    }

    /// Whether completions of devices are to wake the thread, which otherwise takes them in as it comes by.
    fn ask_devices(&self, ask: bool) {
        let Some(fd) = self.fs.readiness().filter(|_| ask != self.asked_devices.get()) else { return };
        let flags = if ask { EventFlags::IN | EventFlags::ONESHOT } else { EventFlags::ONESHOT };
        let done = epoll::modify(&self.epoll, fd, EventData::new_u64(DEVICES), flags);
        self.asked_devices.set(ask && done.is_ok());
    }

    /// Whether whoever runs where this thread is woken goes on until it waits or its time is over: in a crowd that wants something seldom, several calls have come by then.
    fn stand_back(&mut self, stands_back: bool) {
        if std::mem::replace(&mut self.stands_back, stands_back) != stands_back {
            let policy = if stands_back { libc::SCHED_BATCH } else { libc::SCHED_OTHER };
            let param = libc::sched_param { sched_priority: 0 };
            // SAFETY: `param` lives during the call, which is about this thread. Where it is refused, all stays as it was.
            unsafe { libc::sched_setscheduler(0, policy, &raw const param) };
        }
    }

    fn rested(&mut self, since: Instant) {
        self.gap = (self.gap * 7 + since.elapsed().min(GAP_MAX)) / 8;
    }
}
