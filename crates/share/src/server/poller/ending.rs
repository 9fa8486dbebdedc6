//! The end of sessions: of one whose client is gone, or is put out, and of all when the server stops.

use super::{Poller, ended};
use crate::server::session::{CLEAN_UP, Connection};
use format::shared::SLOTS;
use fs::FileSystem;
use rustix::event::epoll;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl<F: FileSystem> Poller<F> {
    /// A client is gone: its calls are given up, and what it held is given back.
    pub(super) fn end(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let _ = epoll::delete(&self.epoll, &*connection.line);
        if let Some(process) = &connection.process {
            let _ = epoll::delete(&self.epoll, process);
        }
        let Some(session) = &mut connection.session else {
            self.connections.remove(&id);
            return;
        };
        if std::mem::replace(&mut session.ending, true) {
            return self.end_left(id);
        }
        tracing::debug!(pid = connection.pid, session = id, "a session ends");
        let _ = epoll::delete(&self.epoll, &session.event);
        // What it has posted counts as done, and is done first.
        self.spare.extend(session.tasks.iter_mut().filter_map(|task| task.take().map(ended)));
        self.spare.truncate(SLOTS);
        let stashed = std::mem::take(&mut session.stream.stashed);
        if self.bell.stopping() {
            // What was not begun the next manager gets.
            session.client.region.doorbell().fetch_or(stashed, Ordering::SeqCst);
        }
        self.directories.revoke(Some(id));
        self.active.retain(|&a| a != id);
        self.look_around();
        self.take_stream(id);
        self.run_stream(id);
    }

    /// Nothing of a session that is over is left but what it held.
    pub(super) fn clean_up(&mut self, id: u64) {
        let session = self.connections.get_mut(&id).and_then(|c| c.session.as_mut());
        let Some(session) = session.filter(|s| s.clean_up.is_none()) else { return };
        let (fs, client) = (self.fs.calling(id), session.client.clone());
        let stopping = self.bell.stopping();
        let ends = stopping && self.options.opening.number != 0;
        session.clean_up = Some(Box::pin(async move { client.clean_up(&fs, ends, !stopping).await }));
        self.poll_task(id, CLEAN_UP);
    }

    /// Goes on as long as something is under way, unless nothing moves for too long.
    fn go_on(&mut self, is_under_way: impl Fn(&Connection) -> bool) {
        let mut moved = Instant::now();
        while self.connections.values().any(&is_under_way) && moved.elapsed() < self.options.stop_patience {
            let worked = self.poll_ready() | self.look_for_drains();
            self.wakes.wake_all();
            if worked {
                moved = Instant::now();
            } else {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }

    /// Goes on with the calls that were begun: their clients would not know what became of them. Who waits for a lock does so no longer.
    fn finish(&mut self) {
        self.go_on(|c| {
            c.session.as_ref().is_some_and(|s| {
                let is_busy = |slot: usize| s.tasks[slot].is_some() && !s.client.waits_for_lock(slot);
                s.clean_up.is_some() || s.stream.task.is_some() || (0..SLOTS).any(is_busy)
            })
        });
    }

    /// Ends a session whose client is there still, and lets it know.
    pub(super) fn evict(&mut self, id: u64) {
        let Some(connection) = self.connections.get(&id) else { return };
        tracing::warn!(pid = connection.pid, session = id, "a session is ended by force");
        let _ = rustix::net::shutdown(&*connection.line, rustix::net::Shutdown::Both);
        if let Some(session) = &connection.session {
            session.client.evicted.store(true, Ordering::SeqCst);
        }
        self.end(id);
    }

    pub(super) fn end_all(&mut self) -> bool {
        // What is posted from now on its client does not count as done.
        self.directories.revoke(None);
        let all: Vec<u64> = self.connections.keys().copied().collect();
        for id in all {
            self.take_stream(id);
        }
        self.finish();
        let all: Vec<u64> = self.connections.keys().copied().collect();
        all.into_iter().for_each(|id| self.end(id));
        self.go_on(|_| true);
        let all_done = self.connections.is_empty();
        self.drains.over();
        for (id, connection) in self.connections.drain() {
            tracing::error!(pid = connection.pid, session = id, "what a client had posted is not done");
            let waiting = connection.session.into_iter().flat_map(|s| s.stream.waiting);
            waiting.for_each(|(_, drain)| drain.one_less());
            self.directories.part(id);
        }
        self.turn_away();
        self.publish();
        all_done
    }
}
