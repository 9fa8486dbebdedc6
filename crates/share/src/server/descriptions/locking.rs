//! Calls that set locks or look for them, through a handle or through a description that several sessions have.

use super::super::session::Client;
use super::Memory;
use fs::{Error, FileSystem, Handle, Ino, LockKind, LockOwner, RecordLock, Result, Watched};
use std::sync::Arc;

/// How often a call looks for the handle of its description, which may be closed meanwhile.
const TRIES: usize = 8;

/// What is asked for, or given up.
#[derive(Clone, Copy)]
pub(crate) enum Lock {
    /// flock(2).
    Whole(Option<LockKind>),
    /// As [`FileSystem::setlk`] has it; without an owner those of the description.
    Records(Option<LockOwner>, std::result::Result<RecordLock, (u64, u64)>),
}

impl Lock {
    async fn set<F: FileSystem>(self, fs: &F, handle: Handle, wait: bool) -> Result<()> {
        match self {
            Lock::Whole(kind) => fs.flock(handle, kind, wait).await,
            Lock::Records(owner, lock) => {
                let owner = owner.unwrap_or(LockOwner::of_handle(handle));
                fs.setlk(handle, owner, lock, wait).await
            }
        }
    }

    fn gives_up(&self) -> bool {
        matches!(self, Lock::Whole(None) | Lock::Records(_, Err(_)))
    }

    /// Whether nothing of its sort is left.
    pub(super) fn gives_all_up(&self) -> bool {
        matches!(self, Lock::Whole(None) | Lock::Records(_, Err((0, u64::MAX))))
    }
}

/// A call that sets a lock through a handle. Who does not want to wait for one must not find one whose description has just gone.
pub(crate) async fn set<F: FileSystem>(
    fs: &F,
    client: &Client,
    (handle, ino): (Handle, Ino),
    lock: Lock,
    wait: bool,
) -> Result<()> {
    match lock.set(fs, handle, wait).await {
        Err(Error::WouldBlock) if !wait => {
            client.descriptions.asked_again(ino).await;
            // Also when there are none: the last one may have been closed since.
            lock.set(fs, handle, wait).await
        }
        done => done,
    }
}

/// As [`FileSystem::getlk`], as of [`set`].
pub(crate) async fn found<F: FileSystem>(
    fs: &F,
    client: &Client,
    (handle, ino): (Handle, Ino),
    owner: LockOwner,
    lock: RecordLock,
) -> Result<Option<RecordLock>> {
    match fs.getlk(handle, owner, lock).await? {
        Some(found) if found.pid == RecordLock::OF_DESCRIPTION => {
            client.descriptions.asked_again(ino).await;
            fs.getlk(handle, owner, lock).await
        }
        found => Ok(found),
    }
}

/// A call that sets a lock through a description: byte `at` of `memory`. 1: it has locks after that.
pub(crate) async fn set_shared<F: FileSystem>(
    fs: &Watched<F>,
    client: &Client,
    (own, ino): (Handle, Ino),
    (memory, at): (&Arc<Memory>, u64),
    lock: Lock,
    wait: bool,
) -> Result<u64> {
    let all = &client.descriptions;
    if lock.gives_up() {
        let handle = all.held((memory, at), own);
        lock.set(fs, handle, false).await?;
        let (locked, is_over) = all.unlocked(handle, &lock);
        if is_over {
            fs.release(handle).await?;
        }
        return Ok(locked as u64);
    }
    for _ in 0..TRIES {
        let asking = all.holder((memory, at), (own, ino), client.cred.uid, &lock)?;
        match set(fs, client, (asking.handle, ino), lock, wait).await {
            // It was closed, by force, while this call was on its way. Or what was asked for is not what the file is open for.
            Err(Error::BadHandle) if asking.handle != own && fs.opened_with(asking.handle).is_none() => {
                all.forget(asking.handle);
            }
            done => return done.map(|()| 1),
        }
    }
    Err(Error::BadHandle)
}
