//! What is posted under a lease: nobody waits for the answer, and what fails here may have been acknowledged (see `server::directories`).

use super::super::session::Client;
use super::{flags, foresight, perm, telling};
use crate::wire::{self, GARBLED, Op};
use format::shared::Request;
use fs::{Error, FileSystem, Handle, Ino, MadeAs, OpenFlags, Result, Source, Watched};
use std::sync::Arc;
use std::time::Instant;

/// Whether a call is posted under a lease, and never sent as a message.
pub(super) fn is(op: Op) -> bool {
    matches!(op, Op::PostCreate | Op::PostMkdir | Op::PostUnlink | Op::PostRmdir | Op::PostWrite)
}

/// Makes a file, whose handle is answered, or a directory.
pub(super) async fn make<F: FileSystem>(
    fs: &Watched<F>,
    client: &Client,
    op: Op,
    r: &Request,
    name: &[u8],
) -> Result<u64> {
    let (dir, time) = (Ino(r.object.get()), wire::read_time(r.offset.get()));
    let lease = (dir, r.extra.get());
    let open = if op == Op::PostCreate { Some(flags::<OpenFlags>(r)?) } else { None };
    let (promise, time) = client.directories.begin(client.session, Ino(r.other.get()), lease, time)?;
    let makes = MadeAs { perm: perm(r), open, time: Some(time) };
    let made = match open.is_none_or(|flags| flags.intersects(OpenFlags::READ | OpenFlags::WRITE)) {
        true => fs.make_lent(&client.cred, (dir, name), makes, promise).await,
        false => Err(GARBLED),
    };
    client.directories.end(promise, lease, &made);
    let ino = made?.ino;
    if open.is_none() {
        return Ok(0);
    }
    client.opened(promise.handle, ino);
    Ok(promise.handle.0)
}

/// Removes a file or a directory.
pub(super) async fn remove<F: FileSystem>(
    fs: &Watched<F>,
    client: &Client,
    op: Op,
    r: &Request,
    name: &[u8],
) -> Result<u64> {
    let dir = Ino(r.object.get());
    if !client.directories.admits(client.session, (dir, r.extra.get())) {
        return Err(Error::Stale);
    }
    let removed = match op {
        Op::PostRmdir => fs.rmdir_lent(&client.cred, dir, name).await,
        _ => fs.unlink_lent(&client.cred, dir, name).await,
    };
    match removed.inspect_err(|e| client.directories.failed(e))? {
        Some(gone) if op == Op::PostRmdir => client.directories.removed_dir(client.session, gone),
        // What is open still is written to as before.
        Some(gone) if client.handles() == 0 || fs.inner().getattr(gone, None).await.is_err() => {
            client.directories.removed(gone);
        }
        _ => {}
    }
    Ok(0)
}

/// Writes to a file that was made under a lease.
pub(super) async fn write<F: FileSystem>(
    fs: &Watched<F>,
    client: &Client,
    r: &Request,
    data: &dyn Source,
) -> Result<u64> {
    let (handle, offset) = (client.handle(r.object.get())?, r.offset.get());
    let (file, room) = (client.inode(handle)?, fs::room_for(offset, data.len()));
    client.directories.spend(client.session, file, r.extra.get(), room)?;
    let written = fs.write_promised(handle, offset, data).await;
    written.inspect_err(|e| client.directories.failed(e))?;
    Ok(data.len() as u64)
}

/// Closes a handle that a client has given back without a request; one that is not its own is its own affair. It is begun at `begun`; says when it was over.
pub(crate) async fn close<F: FileSystem>(
    fs: &Watched<F>,
    client: &Arc<Client>,
    number: u64,
    begun: Instant,
) -> Instant {
    let file = client.inode(Handle(number));
    if let Ok(Some(handle)) = client.closes(number) {
        if let Err(e) = client.close_or_keep(fs, handle).await {
            tracing::warn!("session {}: closing a file that its client had made: {e}", client.session);
        }
        if let Ok(file) = file
            && !foresight::closed(fs, client, file).await
            // If there is somebody whom that may save a question.
            && client.arena.is_shared()
        {
            telling::unasked(fs, client, file).await;
        }
    }
    client.tally.closed(begun)
}
