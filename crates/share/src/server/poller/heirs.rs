//! Programs that make room for others in the same process: record locks stay (`session::records`).
//!
//! What is left of the first one's session is its locks. They go over to the session that the next one begins, also when that is before the first one's is cleaned up; or they end
//! with the process.

use super::{KINDS, PROCESS, Poller};
use crate::server::session::{Client, Connection};
use fs::FileSystem;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Connection {
    /// Whether its process is there. The number of one that is gone may be another's by now.
    fn is_there(&self) -> bool {
        let Some(process) = &self.process else { return false };
        matches!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&Timespec::default())), Ok(0))
    }

    /// The client, if locks of its program stay for the next one.
    fn leaves(&self) -> Option<&Arc<Client>> {
        let client = self.session.as_ref().map(|session| &session.client)?;
        (client.keeps_locks() && !client.evicted.load(Ordering::SeqCst)).then_some(client)
    }
}

impl<F: FileSystem> Poller<F> {
    /// Whose owners of locks a session of this process has that begins now: its own, unless an earlier program of the process has left locks.
    pub(super) fn owners_for(&self, id: u64, pid: i32) -> u64 {
        let before = self.connections.values().filter(|c| c.pid == pid && c.leaves().is_some());
        before.filter(|c| c.is_there()).find_map(|c| Some(c.leaves()?.owners)).unwrap_or(id)
    }

    /// A session has begun: what earlier ones of its process have left is its own.
    pub(super) fn takes_over(&mut self, id: u64) {
        let session = self.connections.get(&id).and_then(|c| c.session.as_ref());
        let Some(client) = session.map(|session| session.client.clone()) else { return };
        let is_left = |c: &Connection| {
            c.session.as_ref().is_some_and(|s| s.outlived && s.client.owners == client.owners)
        };
        for (_, left) in self.connections.extract_if(|_, c| is_left(c)) {
            left.session.iter().for_each(|session| session.client.hand_locks_over(&client));
        }
    }

    /// A session is cleaned up, and goes, unless locks are left.
    pub(super) fn is_clean(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(session) = &mut connection.session else { return };
        session.clean_up = None;
        if !session.client.keeps_locks() {
            self.connections.remove(&id);
            return;
        }
        session.outlived = true;
        let owners = session.client.owners;
        let watched = connection.process.as_ref().is_some_and(|process| {
            epoll::add(&self.epoll, process, EventData::new_u64(id << KINDS | PROCESS), EventFlags::IN)
                .is_ok()
        });
        let follows =
            |c: &Connection| c.session.as_ref().is_some_and(|s| !s.ending && s.client.owners == owners);
        if let Some(&next) = self.connections.iter().find_map(|(id, c)| follows(c).then_some(id)) {
            self.takes_over(next);
        } else if !watched {
            self.end_left(id);
        }
    }

    /// Ends the locks that are left of a session: its process has ended, or the manager ends.
    pub(super) fn end_left(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(process) = &connection.process {
            let _ = epoll::delete(&self.epoll, process);
        }
        let Some(session) = connection.session.as_mut().filter(|s| s.outlived && s.clean_up.is_none()) else {
            return;
        };
        let (fs, client) = (self.fs.calling(id), session.client.clone());
        session.clean_up = Some(Box::pin(async move { client.end_kept(&fs, false).await }));
        self.poll_task(id, super::CLEAN_UP);
    }
}
