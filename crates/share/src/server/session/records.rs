//! Record locks of a client: whose they are, and what becomes of them when it is gone.
//!
//! They end with the session, unless its program is about to make room for another one (exec) and has said of which files they stay: what stays is kept by the manager until
//! the same process begins another session, whose locks they are then, or ends. The process is known by what the kernel says of it (its pidfd). Owners have the same numbers in
//! both sessions: those of the first one.
//!
//! Tested in tests/all/lock_leases.rs and tests/all/records_stay.rs.

use super::{Client, Held};
use crate::wire;
use fs::{Error, FileSystem, Handle, Ino, LockOwner, Result, Watched};

/// Owners of record locks on one file and in one session; more than threads and processes that share a session.
const OWNERS_MAX: usize = 1024;
/// And on all of its files.
const OWNERS_ALL_MAX: usize = 1 << 16;
/// Files whose locks stay behind one session.
const STAY_MAX: usize = 1024;

/// A file whose record locks outlast, or have outlasted, a program.
pub(super) struct Kept {
    /// Keeps the file, and is that through which the locks are given up.
    pin: Handle,
    /// They outlast the program that is there now.
    stay: bool,
}

/// A call that asks for a record lock. While there is one, the last handle of the inode stays: without a handle nobody could take the lock back.
pub(crate) struct Locking<'a> {
    client: &'a Client,
    ino: Ino,
}

impl Locking<'_> {
    /// The call is over. What is to be closed now, as its client gave it back meanwhile.
    pub fn end(self) -> Vec<Handle> {
        let (client, ino) = (self.client, self.ino);
        drop(self);
        let held = client.held.lock();
        let is_over =
            held.locking.get(&ino).is_some_and(|a| a.calls == 0) && held.handles.values().all(|&i| i != ino);
        let left = held.closing.iter().filter(|&(_, &i)| is_over && i == ino);
        left.map(|(&handle, _)| handle).collect()
    }
}

impl Drop for Locking<'_> {
    fn drop(&mut self) {
        if let Some(asked) = self.client.held.lock().locking.get_mut(&self.ino) {
            asked.calls = asked.calls.saturating_sub(1);
        }
    }
}

impl Held {
    /// Another owner of locks on a file, if there is room.
    fn has_owner(&mut self, ino: Ino, owner: LockOwner) -> bool {
        let asked = self.locking.entry(ino).or_default();
        let fits =
            asked.owners.contains(&owner) || asked.owners.len() < OWNERS_MAX && self.owners < OWNERS_ALL_MAX;
        self.owners += (fits && asked.owners.insert(owner)) as usize;
        fits
    }

    /// Nobody locks anything of a file any more: who did, and what was kept for that.
    pub(super) fn ends_locks(&mut self, ino: Ino) -> (Vec<LockOwner>, Option<Handle>) {
        let asked = self.locking.remove(&ino);
        self.owners -= asked.as_ref().map_or(0, |a| a.owners.len());
        (asked.into_iter().flat_map(|a| a.owners).collect(), self.kept.remove(&ino).map(|kept| kept.pin))
    }
}

impl Client {
    /// Owners of one process never meet those of another.
    pub fn owner(&self, owner: u64) -> LockOwner {
        LockOwner(self.owners << 32 | wire::owner(LockOwner(owner)).0)
    }

    /// The other way round; `None`: it is another process's.
    pub fn own(&self, owner: LockOwner) -> Option<u64> {
        let own = wire::owner(LockOwner(owner.0 & 0xffff_ffff)).0;
        (self.owner(own) == owner).then_some(own)
    }

    /// As [`Client::owner`], for taking locks through this handle. `Closed` when the client is gone: nobody would release them;
    /// `TooManyLocks` (owners on this file, or all).
    pub fn locks(&self, owner: u64, handle: Handle) -> Result<(LockOwner, Locking<'_>)> {
        let owner = self.owner(owner);
        let mut held = self.held.lock();
        if held.gone {
            return Err(Error::Closed);
        }
        let ino = held.handles.get(&handle).copied().ok_or(Error::BadHandle)?;
        if !held.has_owner(ino, owner) {
            return Err(Error::TooManyLocks);
        }
        held.locking.entry(ino).or_default().calls += 1;
        Ok((owner, Locking { client: self, ino }))
    }

    /// As [`Client::locks`], for a lock that the client has taken itself. `None`: nobody would release it.
    pub fn adopt(&self, owner: u64, ino: Ino) -> Option<LockOwner> {
        let owner = self.owner(owner);
        let mut held = self.held.lock();
        (!held.gone && held.has(ino) && held.has_owner(ino, owner)).then_some(owner)
    }

    /// Whether there is room for more owners of locks.
    pub fn may_ask_for_locks(&self) -> bool {
        self.held.lock().owners < OWNERS_ALL_MAX
    }

    /// The record locks of this owner on the file behind a handle were given up.
    pub fn unlocked(&self, handle: Handle, owner: LockOwner) {
        let mut held = self.held.lock();
        let Some(ino) = held.handles.get(&handle).copied() else { return };
        // A call may be about to get one.
        if let Some(asked) = held.locking.get_mut(&ino).filter(|a| a.calls == 0) {
            let was = asked.owners.remove(&owner);
            held.owners -= was as usize;
        }
    }

    /// The record locks on the file behind a handle outlast the program that the client is, or do not. `TooManyLocks`: those of so many files cannot.
    pub async fn keep_locks<F: FileSystem>(&self, fs: &Watched<F>, handle: Handle, stay: bool) -> Result<()> {
        let ino = {
            let mut held = self.held.lock();
            let ino = held.handles.get(&handle).copied().ok_or(Error::BadHandle)?;
            if let Some(kept) = held.kept.get_mut(&ino) {
                kept.stay = stay;
                return Ok(());
            }
            if !stay || held.locking.get(&ino).is_none_or(|asked| asked.owners.is_empty()) {
                return Ok(());
            }
            if held.kept.len() >= STAY_MAX {
                return Err(Error::TooManyLocks);
            }
            ino
        };
        let generation = fs.inner().getattr(ino, Some(handle)).await?.generation;
        let pin = fs.pin((ino, generation)).await?;
        let is_kept = {
            let mut held = self.held.lock();
            let fits = !held.gone && held.has(ino) && !held.kept.contains_key(&ino);
            fits && held.kept.insert(ino, Kept { pin, stay }).is_none()
        };
        if is_kept { Ok(()) } else { fs.release(pin).await }
    }

    /// Whether record locks outlast its program.
    pub fn keeps_locks(&self) -> bool {
        self.held.lock().kept.values().any(|kept| kept.stay)
    }

    /// What is lent of locks that stay is taken back, while there is somebody whose they are.
    pub(super) fn recall_kept<F: FileSystem>(&self, fs: &F) {
        let stay: Vec<Handle> = {
            let held = self.held.lock();
            held.kept.values().filter(|kept| kept.stay).map(|kept| kept.pin).collect()
        };
        stay.into_iter().for_each(|pin| fs.recall_locks(pin));
    }

    /// Its program has made room for another one: what it had locked is that one's.
    pub fn hand_locks_over(&self, to: &Client) {
        let (kept, locking) = {
            let mut held = self.held.lock();
            held.owners = 0;
            (std::mem::take(&mut held.kept), std::mem::take(&mut held.locking))
        };
        let mut held = to.held.lock();
        for (ino, kept) in kept {
            for owner in locking.get(&ino).into_iter().flat_map(|asked| &asked.owners) {
                let asked = held.locking.entry(ino).or_default();
                let is_new = asked.owners.insert(*owner);
                held.owners += is_new as usize;
            }
            let stay = held.kept.get(&ino).is_some_and(|own| own.stay);
            if let Some(own) = held.kept.insert(ino, Kept { stay, ..kept }) {
                // One is enough. The other is given back with the session.
                held.pins.insert(own.pin);
            }
        }
    }

    /// Gives up locks that were to outlast a program, or have done so; not those that stay for the next one, if the process `goes_on`.
    pub async fn end_kept<F: FileSystem>(&self, fs: &F, goes_on: bool) {
        let ended: Vec<_> = {
            let held = &mut *self.held.lock();
            let ended = held.kept.extract_if(|_, kept| !(goes_on && kept.stay));
            ended.map(|(ino, kept)| (kept.pin, held.locking.remove(&ino))).collect()
        };
        for (pin, asked) in ended {
            for owner in asked.into_iter().flat_map(|asked| asked.owners) {
                let _ = fs.flush(pin, owner).await;
            }
            self.unpinned(fs.release(pin).await);
        }
    }
}
