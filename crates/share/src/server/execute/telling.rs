//! What a client is answered about names and attributes is told to all clients of its arena, so that they need not ask ([`crate::notices`]).
//!
//! Not while there is a lease on what was asked for, be it the client's own: whoever has one may have changed it, and said so, before we hear of it. A
//! lease that begins later ends what was told before, since it raises a word among the changes above the clock that was noted before the question.

use crate::server::session::Client;
use fs::{Attr, Error, FileSystem, Ino, Result, Time, Watched};

/// Tells what a name was found to lead to after the clock was `noted`, or that there is none.
pub(in crate::server) fn name<F: FileSystem>(
    fs: &Watched<F>,
    client: &Client,
    (dir, name): (Ino, &[u8]),
    found: &Result<Attr>,
    noted: u64,
) {
    let attr = match found {
        Ok(attr) => Some(attr),
        Err(Error::NotFound) => None,
        Err(_) => return,
    };
    if !matches!(name, b"" | b"." | b"..") && !fs.is_lent(dir) {
        client.arena.tell_name(dir, name, attr, noted);
    }
    attr.inspect(|attr| inode(fs, client, attr, noted));
}

/// Looks for a name for a client, and tells what it leads to.
pub(super) async fn lookup<F: FileSystem>(
    fs: &Watched<F>,
    client: &Client,
    dir: Ino,
    text: &[u8],
) -> Result<Attr> {
    let noted = client.arenas.clock();
    let found = fs.lookup(&client.cred, dir, text).await;
    name(fs, client, (dir, text), &found, noted);
    found
}

/// Tells attributes that were asked for after the clock was `noted`.
pub(in crate::server) fn inode<F: FileSystem>(fs: &Watched<F>, client: &Client, attr: &Attr, noted: u64) {
    // Nobody says when one without names goes.
    if attr.nlink > 0 && !fs.is_lent(attr.ino) {
        client.arena.tell_inode(attr, noted);
    }
}

/// Tells the attributes of an inode that was read, if that may have moved its time of access: the memory of changes says nothing of this.
pub(super) async fn was_read<F: FileSystem>(fs: &Watched<F>, client: &Client, ino: Ino) {
    let noted = client.arenas.clock();
    if client.arena.told(ino).is_some_and(|attr| attr.moves_atime(Time::now()))
        && let Ok(attr) = fs.getattr(ino, None).await
    {
        inode(fs, client, &attr, noted);
    }
}

/// Tells the attributes of a file for which nobody has asked, and waits for nobody.
pub(super) async fn unasked<F: FileSystem>(fs: &Watched<F>, client: &Client, file: Ino) {
    let noted = client.arenas.clock();
    if !fs.is_lent(file)
        && let Ok(attr) = fs.inner().getattr(file, None).await
    {
        inode(fs, client, &attr, noted);
    }
}
