//! Record locks and locks of whole files, of processes and of open file descriptions that several sessions have (`server::descriptions`).

use super::super::descriptions::{self, Lock};
use super::super::payload::Out;
use super::super::session::Client;
use crate::wire::GARBLED;
use format::shared::Request;
use fs::{FileSystem, Handle, Ino, LockKind, RecordLock, Result, Watched};

fn kind(request: &Request) -> Result<Option<LockKind>> {
    match request.mode.get() {
        0 => Ok(Some(LockKind::Shared)),
        1 => Ok(Some(LockKind::Exclusive)),
        2 => Ok(None),
        _ => Err(GARBLED),
    }
}

fn own(client: &Client, r: &Request) -> Result<(Handle, Ino)> {
    let handle = client.handle(r.object.get())?;
    Ok((handle, client.inode(handle)?))
}

fn waits(r: &Request) -> bool {
    r.flags.get() & 1 != 0
}

/// Answers `Getlk`.
pub(super) async fn test<F: FileSystem>(
    fs: &F,
    client: &Client,
    r: &Request,
    out: &mut Out<'_>,
) -> Result<()> {
    let Some(kind) = kind(r)? else { return Err(GARBLED) };
    let own = own(client, r)?;
    let lock = |pid| RecordLock { start: r.offset.get(), end: r.len.get(), kind, pid };
    let found = match r.other.get() {
        0 => {
            let (owner, lock) = (client.owner(r.extra.get()), lock(r.more.get() as u32));
            descriptions::found(fs, client, own, owner, lock).await?
        }
        number => {
            let memory = client.shown(r.more.get(), number)?;
            let owner = client.descriptions.owner((&memory, r.extra.get()), own.0);
            descriptions::found(fs, client, own, owner, lock(RecordLock::OF_DESCRIPTION)).await?
        }
    };
    if let Some(found) = found {
        let kind = (found.kind == LockKind::Exclusive) as u64;
        let all = [found.start, found.end, kind, found.pid as u64];
        out.push(all.map(u64::to_le_bytes).as_flattened())?;
    }
    Ok(())
}

/// Answers `Setlk`.
pub(super) async fn record<F: FileSystem>(fs: &Watched<F>, client: &Client, r: &Request) -> Result<u64> {
    let own = own(client, r)?;
    let (start, end, kind) = (r.offset.get(), r.len.get(), kind(r)?);
    let lock = |pid| kind.map(|kind| RecordLock { start, end, kind, pid }).ok_or((start, end));
    match r.other.get() {
        0 => {
            let (owner, locking) = client.locks(r.extra.get(), own.0)?;
            let lock = Lock::Records(Some(owner), lock(r.more.get() as u32));
            let done = descriptions::set(fs, client, own, lock, waits(r)).await;
            for handle in locking.end() {
                client.close(fs, handle).await?;
            }
            done?;
            Ok(0)
        }
        number => {
            let (memory, at) = (client.shown(r.more.get(), number)?, r.extra.get());
            let lock = Lock::Records(None, lock(RecordLock::OF_DESCRIPTION));
            descriptions::set_shared(fs, client, own, (&memory, at), lock, waits(r)).await
        }
    }
}

/// Answers `Flock`.
pub(super) async fn whole<F: FileSystem>(fs: &Watched<F>, client: &Client, r: &Request) -> Result<u64> {
    let (own, lock) = (own(client, r)?, Lock::Whole(kind(r)?));
    match r.other.get() {
        0 => descriptions::set(fs, client, own, lock, waits(r)).await.map(|()| 0),
        number => {
            let (memory, at) = (client.shown(r.more.get(), number)?, r.offset.get());
            descriptions::set_shared(fs, client, own, (&memory, at), lock, waits(r)).await
        }
    }
}
