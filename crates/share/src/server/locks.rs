//! Lock leases: clients take and give up record locks without a message (see `format::shared::locks`).
//!
//! A lease is for one file and one session, and begins when nobody waits for a record lock of the file and nobody else holds one; what the session itself holds goes
//! with it. The engine's table of locks knows who keeps them
//! ([`fs::locks::LockTable::lend`]) and takes them back before any call, through any door, that has to do with them: also one of the same client, as it comes here only with what it
//! could not do itself, and with the closing of files. Nobody waits for the client: what it holds stands in its memory. What it says there is
//! no more than it could have got by calls, as nobody else had a lock; whose the locks are is decided here.
//!
//! A lease ends at the latest when the handle is closed with which it was asked for. When a session ends its locks end, whatever its memory says.
//! Tested in tests/all/lock_leases.rs.

use super::session::Client;
use crate::locked::Locked;
use crate::region::Region;
use crate::wire::GARBLED;
use format::shared::LOCK_LEASES;
use fs::locks::ranges::Ranges;
use fs::{FileSystem, Handle, Ino, Keeper, LockOwner, RecordLock, Result};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Weak};

/// Keeps the locks of one file in the memory of a session.
struct LockLease {
    ino: Ino,
    place: usize,
    number: u64,
    region: Arc<Region>,
    client: Weak<Client>,
    /// One of its client's owners.
    owner: LockOwner,
    /// Its locks are here again, or gone.
    ended: AtomicBool,
}

impl std::fmt::Debug for LockLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockLease")
            .field("ino", &self.ino)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl LockLease {
    fn view(&self) -> Locked<'_> {
        Locked::new(self.region.memory(), self.place)
    }

    /// The client finds the lease gone. What it has said before it looks is to be seen after this.
    fn revoke(&self) {
        self.ended.store(true, Ordering::SeqCst);
        let _ = self.view().grant().compare_exchange(self.number, 0, Ordering::SeqCst, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

impl Keeper for LockLease {
    fn of(&self) -> LockOwner {
        self.owner
    }

    fn keep(&self, held: &Ranges) -> bool {
        let Some(client) = self.client.upgrade() else { return false };
        let mut own = Ranges::default();
        for (owner, lock) in held.all() {
            let Some(owner) = client.own(owner) else { return false };
            own.insert(LockOwner(owner), lock);
        }
        self.view().publish(&own)
    }

    fn take_back(&self) -> Vec<(LockOwner, RecordLock)> {
        self.revoke();
        let Some(client) = self.client.upgrade() else { return Vec::new() };
        let locks = self.view().read().into_iter();
        // What cannot be given back when the session ends must not be held.
        locks.filter_map(|(owner, lock)| Some((client.adopt(owner.0, self.ino)?, lock))).collect()
    }
}

/// The lock leases of a session, with the handles through which they were asked for.
#[derive(Default)]
pub(crate) struct LockLeases {
    last: u64,
    places: [Option<(Handle, Arc<LockLease>)>; LOCK_LEASES],
}

impl Client {
    /// Lends the record locks of a file, in a place of the client's memory; what stood there before is taken back. The number of the lease, or 0.
    pub fn lend_locks<F: FileSystem>(
        self: &Arc<Client>,
        fs: &F,
        handle: Handle,
        place: usize,
    ) -> Result<u64> {
        let ino = self.inode(handle)?;
        let (number, before) = {
            let mut leases = self.lock_leases.lock();
            let before = leases.places.get_mut(place).ok_or(GARBLED)?.take();
            leases.last += 1;
            (leases.last, before)
        };
        if let Some((handle, _)) = before {
            fs.recall_locks(handle);
        }
        if !self.may_ask_for_locks() {
            return Ok(0);
        }
        let (region, client, ended) = (self.region.clone(), Arc::downgrade(self), AtomicBool::new(false));
        let owner = self.owner(0);
        let lease = Arc::new(LockLease { ino, place, number, region, client, owner, ended });
        if !fs.lend_locks(handle, lease.clone()) {
            return Ok(0);
        }
        self.lock_leases.lock().places[place] = Some((handle, lease.clone()));
        lease.view().grant().store(number, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // Whoever ends it at this moment has looked at the word before, or sees it.
        if lease.ended.load(Ordering::SeqCst) {
            lease.revoke();
            return Ok(0);
        }
        Ok(number)
    }

    /// A handle is about to be closed: its leases end.
    pub fn return_locks<F: FileSystem>(&self, fs: &F, handle: Handle) {
        let mut leases = self.lock_leases.lock();
        let of = leases.places.iter_mut().filter(|place| place.as_ref().is_some_and(|(h, _)| *h == handle));
        let any = of.map(Option::take).count() > 0;
        drop(leases);
        if any {
            fs.recall_locks(handle);
        }
    }

    /// The session is over, and with it all locks.
    pub fn drop_locks<F: FileSystem>(&self, fs: &F) {
        let places = std::mem::take(&mut self.lock_leases.lock().places);
        for (handle, _) in places.into_iter().flatten() {
            fs.recall_locks(handle);
        }
    }
}
