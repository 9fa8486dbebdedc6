//! The path of a directory of a volume, found from below: its parent by "..", and there the name that leads to it, up to the root. For a current
//! directory whose path was changed by others, or is longer than what is kept of it.
//!
//! As libc's getcwd does where the kernel has no answer: the directories above must be readable (`EACCES`), and a directory that was removed has no
//! path (`ENOENT`). Where tested: `tests/all/processes.rs`, crates/freehold/tests/run_more.rs.

use crate::hook::{Res, fail};
use crate::mounts::{self, Mount};
use crate::path::Text;
use fs::{FileSystem, Ino};

/// Directories above each other, at most: a volume whose directories are moved all the time is not followed for ever.
const DEPTH_MAX: usize = 100_000;

/// The path below the mount: "" for the root, else "/a/b".
pub(crate) fn path_of(mount: &'static Mount, dir: Ino) -> Res<Text> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut at = dir;
    while at != Ino::ROOT {
        if names.len() == DEPTH_MAX {
            return fail(libc::ELOOP);
        }
        let above = mount.run(|fs| fs.lookup(mounts::cred(), at, b".."))?.ino;
        names.push(name_in(mount, above, at)?);
        at = above;
    }
    let mut path = Text::new();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    Ok(path)
}

/// The name that leads from directory `above` to directory `dir`.
fn name_in(mount: &'static Mount, above: Ino, dir: Ino) -> Res<Vec<u8>> {
    let handle = mount.run(|fs| fs.opendir(mounts::cred(), above))?;
    let (mut from, mut name) = (0, Ok(None));
    while matches!(name, Ok(None)) {
        let (mut found, mut next) = (None, None);
        let mut sink = |e: fs::DirEntry<'_>| {
            next = Some(e.next_offset);
            if e.attr.ino == dir && !matches!(e.name, b"." | b"..") {
                found = Some(e.name.to_vec());
            }
            found.is_none()
        };
        let read = mount.run(|fs| fs.readdir(handle, from, &mut sink));
        let Some(next) = next else {
            name = read.and(fail(libc::ENOENT));
            break;
        };
        from = next;
        name = read.map(|()| found);
    }
    mount.run(|fs| fs.release(handle))?;
    name?.map_or(fail(libc::ENOENT), Ok)
}
