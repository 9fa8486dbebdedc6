//! What is known of leases on directories, and of what was made under them.

use super::new_files::NewFiles;
use super::numbers::Numbers;
use crate::region::Region;
use foldhash::fast::FixedState;
use fs::{Ino, Promise, Time};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Instant;

pub(super) struct Lease {
    /// `None`: it is for new files of the session.
    pub dir: Option<Ino>,
    pub session: u64,
    pub place: usize,
    pub number: u64,
    pub region: Arc<Region>,
    /// When it began.
    pub since: Time,
    /// Pages that are set aside for what will be written to files made under it. Changed with the table's lock held.
    pub room: AtomicU64,
    /// Nothing more is acknowledged.
    pub ending: AtomicBool,
}

impl Lease {
    /// The client finds the lease gone. What it has posted before it looks is to be seen after this.
    pub fn revoke(&self) {
        self.ending.store(true, Ordering::SeqCst);
        let word = self.region.directory(self.place);
        let _ = word.compare_exchange(self.number, 0, Ordering::SeqCst, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

/// An inode that was promised.
pub(super) struct Promised {
    pub session: u64,
    pub promise: Promise,
    /// It is being made.
    pub begun: bool,
}

/// A directory that others came to.
pub(super) struct Shared {
    pub until: Instant,
    pub times: u32,
}

#[derive(Default)]
pub(super) struct Table {
    /// By their numbers.
    pub leases: HashMap<u64, Arc<Lease>, FixedState>,
    /// Directories, and the numbers of the leases on them.
    pub dirs: HashMap<Ino, u64, FixedState>,
    /// Files and directories that were made under these, and their numbers.
    pub made: Numbers,
    pub new: NewFiles,
    pub promised: HashMap<Ino, Promised, FixedState>,
    pub shared: HashMap<Ino, Shared, FixedState>,
    /// Room of all leases.
    pub room: u64,
}

impl Table {
    /// The leases that an inode stands under: one on it if it is a directory, and one under which it was made.
    pub fn on(&self, ino: Ino) -> impl Iterator<Item = &Arc<Lease>> {
        let numbers = [self.dirs.get(&ino).copied(), self.made.get(ino), self.new.of(ino)];
        numbers.into_iter().flatten().filter_map(|number| self.leases.get(&number))
    }

    /// Whether an inode stands under a lease of others than `session`, or may be made by them.
    pub fn lends(&self, ino: Ino, session: u64) -> bool {
        self.on(ino).any(|lease| lease.session != session)
            || self.promised.get(&ino).is_some_and(|p| p.session != session)
    }

    /// The lease with this number, if it is the session's.
    pub fn of(&self, session: u64, number: u64) -> Option<&Arc<Lease>> {
        self.leases.get(&number).filter(|lease| lease.session == session)
    }

    /// As [`Table::of`], of one on this directory, or under which it was made.
    pub fn admits(&self, session: u64, (dir, number): (Ino, u64)) -> Option<&Arc<Lease>> {
        let is_here = |lease: &&Arc<Lease>| lease.dir == Some(dir) || self.made.get(dir) == Some(number);
        self.of(session, number).filter(is_here)
    }

    pub fn promised_to(&self, session: u64) -> usize {
        self.promised.values().filter(|p| p.session == session).count()
    }
}
