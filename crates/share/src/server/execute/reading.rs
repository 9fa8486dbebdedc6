//! Reading: through a handle, or through one for this read alone; and what a client tells of what it has read without us.

use super::super::arena::PIECE_BYTES;
use super::super::payload::Out;
use super::super::session::Client;
use super::telling;
use crate::wire;
use format::shared::{CALL_DATA_MAX, Request};
use fs::{Cred, FileSystem, Handle, Ino, OpenFlags, Result, Watched};

/// Answers a read through an open handle.
pub(super) async fn read<F: FileSystem>(
    fs: &Watched<F>,
    r: &Request,
    out: &mut Out<'_>,
    handle: Handle,
    ino: Ino,
) -> Result<u64> {
    let client = out.client;
    let (offset, len) = (r.offset.get(), r.len.get().min(CALL_DATA_MAX as u64) as usize);
    let at_once = len.min(out.data_max());
    let wanted = r.flags.get() & wire::THROUGH_ARENA != 0;
    if r.flags.get() & wire::DIRECT != 0
        && let Some(place) = client.place(fs, out.slot, (offset, at_once))
        && let Some(n) = fs.read_direct(handle, offset, place.memory).await?
    {
        out.len = n;
        telling::was_read(fs, client, ino).await;
        return Ok(0);
    }
    let plan = wanted.then(|| client.arenas.plan(&client.arena, ino, offset, len)).flatten();
    let Some(mut plan) = plan else { return read_plainly(fs, out, (handle, ino), (offset, at_once)).await };
    if plan.may_be_wider && fs.is_at_hand(handle, plan.piece(), PIECE_BYTES) {
        plan.widen();
    }
    let pages = match fs.read_pages(handle, plan.start, plan.len).await {
        // What nobody has asked for may be all that cannot be read.
        Err(_) if plan.is_more => return read_plainly(fs, out, (handle, ino), (offset, at_once)).await,
        pages => pages?,
    };
    // From after the read, which may have moved the time of access.
    let noted = client.arenas.clock();
    let attr = fs.getattr(ino, Some(handle)).await?;
    out.attr(&attr)?;
    telling::inode(fs, client, &attr, noted);
    let again = r.flags.get() & wire::AGAIN != 0;
    out.through_arena((ino, &attr), &mut plan, &pages, (offset, len), again);
    if out.pages == 0 {
        out.pages(&pages, (offset - plan.start) as usize, at_once)?;
    }
    Ok(1)
}

/// Answers a read with the data.
async fn read_plainly<F: FileSystem>(
    fs: &Watched<F>,
    out: &mut Out<'_>,
    (handle, ino): (Handle, Ino),
    (offset, len): (u64, usize),
) -> Result<u64> {
    out.pages(&fs.read_pages(handle, offset, len).await?, 0, len)?;
    telling::was_read(fs, out.client, ino).await;
    Ok(0)
}

/// Answers a read of a file that the client has open without us.
pub(super) async fn read_once<F: FileSystem>(
    fs: &Watched<F>,
    r: &Request,
    out: &mut Out<'_>,
    inode: (Ino, u32),
) -> Result<u64> {
    let client = out.client;
    let handle = open_once(fs, client, inode, OpenFlags::READ).await?;
    let done = read(fs, r, out, handle, inode.0).await;
    close_once(fs, client, handle).await?;
    done
}

/// Opens a file for one read of a client, whose handle it is until [`close_once`]: if the call is given up, it stays open until the session ends and no longer.
pub(super) async fn open_once<F: FileSystem>(
    fs: &F,
    client: &Client,
    inode: (Ino, u32),
    flags: OpenFlags,
) -> Result<Handle> {
    // It was opened for the client when that was allowed for the last time.
    let again = flags == OpenFlags::READ && client.may_open_again(inode.0, flags);
    let checked = again.then(|| Cred { checked: true, ..client.cred.clone() });
    let handle = fs.open_exact(checked.as_ref().unwrap_or(&client.cred), inode, flags).await?;
    client.opened(handle, inode.0);
    Ok(handle)
}

pub(super) async fn close_once<F: FileSystem>(fs: &F, client: &Client, handle: Handle) -> Result<()> {
    match client.closes(handle.0)? {
        Some(handle) => client.close(fs, handle).await,
        None => Ok(()),
    }
}

/// A client has read a file in its arena.
pub(super) async fn was_read<F: FileSystem>(
    fs: &Watched<F>,
    client: &Client,
    inode: (Ino, u32),
) -> Result<u64> {
    let inner = &**fs.inner();
    let handle = open_once(inner, client, inode, OpenFlags::READ).await?;
    // One byte moves the time of access as all of them do.
    let read = inner.read_pages(handle, 0, 1).await;
    close_once(inner, client, handle).await?;
    read?;
    client.arenas.was_read(&client.arena, inode.0);
    telling::unasked(fs, client, inode.0).await;
    Ok(0)
}
