//! What was written is often read soon. Whoever reads it out of the arena asks for nothing: its pages are put there when it is closed, and that it was read is
//! posted ([`super::reading`]). How often that was of use says whether it is done ([`crate::server::arena`]).
//!
//! Nothing here waits for another client, since others may wait for what is posted.

use super::super::session::Client;
use super::reading::{close_once, open_once};
use super::telling;
use format::shared::ANSWER_PAGES;
use fs::{FileSystem, Ino, OpenFlags, Result, Time, Watched};
use smallvec::SmallVec;

/// Most bytes of a file of which pages are put into an arena so.
const SIZE_MAX: u64 = (ANSWER_PAGES * 4096) as u64;

/// A client has closed a file. If it was written since it was read last, and such files are mostly read, its pages can be found in the client's arena from now on,
/// and its attributes are told. Whether they are.
pub(super) async fn closed<F: FileSystem>(fs: &Watched<F>, client: &Client, file: Ino) -> bool {
    client.arenas.expects_reads(&client.arena) && show(fs, client, file).await.unwrap_or(false)
}

async fn show<F: FileSystem>(fs: &Watched<F>, client: &Client, file: Ino) -> Result<bool> {
    let (arenas, inner) = (&client.arenas, &**fs.inner());
    let now = inner.getattr(file, None).await?;
    if !(1..=SIZE_MAX).contains(&now.size) || !now.moves_atime(Time::now()) {
        return Ok(false);
    }
    let last = (now.size - 1) / 4096;
    if arenas.has(&client.arena, (file, now.generation), last) {
        return Ok(false);
    }
    let Some(mut plan) = arenas.plan(&client.arena, file, 0, now.size as usize) else { return Ok(false) };
    // Whoever is lent it from now on raises a word after the clock that the plan has noted.
    if fs.is_lent(file) {
        return Ok(false);
    }
    // This client must be allowed to read it; and nobody has done so yet.
    let flags = OpenFlags::READ | OpenFlags::NOATIME;
    let handle = open_once(inner, client, (file, now.generation), flags).await?;
    let pages = inner.read_pages(handle, 0, now.size as usize).await;
    let attr = inner.getattr(file, Some(handle)).await;
    close_once(inner, client, handle).await?;
    let (pages, attr) = (pages?, attr?);
    // A change since the plan is noticed; one from before it is not, and may have made the file longer.
    if attr.size != now.size || attr.nlink == 0 {
        return Ok(false);
    }
    let pieces: SmallVec<[&[u8]; 4]> = pages.slices().collect();
    plan.ends_at(attr.size);
    let shown = arenas.fill(client, file, attr.generation, &plan, &pieces) > 0;
    if shown {
        arenas.shown(&client.arena, file);
        telling::inode(fs, client, &attr, plan.noted());
    }
    Ok(shown)
}
