//! The path of a directory of a volume, found from below: its parent by "..", and there the name that leads to it, up to the root. For a current
//! directory whose path was changed by others, or is longer than what is kept of it.
//!
//! As libc's getcwd does where the kernel has no answer: the directories above must be readable (`EACCES`), and a directory that was removed has no
//! path (`ENOENT`). And the other way: how the kernel is sent there. Where tested: `tests/all/processes.rs`, crates/freehold/tests/run_more.rs.

use crate::hook::{Res, fail};
use crate::mounts::{self, Mount};
use crate::path::{PATH_MAX, Text};
use fs::{FileSystem, Ino};
use libc::{AT_FDCWD, c_int};
use std::ffi::CString;

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

/// Sends the kernel to a path of a volume on the FUSE mount; one that is too long for a call in several. It stays where it was when that fails.
pub(crate) fn send_kernel(mount: &Mount, below: &[u8]) -> bool {
    let go = |path: &[u8]| {
        // SAFETY: a C string of our own.
        CString::new(path).is_ok_and(|path| unsafe { libc::syscall(libc::SYS_chdir, path.as_ptr()) } == 0)
    };
    let whole = [&mount.prefix[..], below].concat();
    if whole.len() < PATH_MAX {
        return go(&whole);
    }
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: a C string; descriptors of our own, here and below.
    let back = unsafe { libc::syscall(libc::SYS_openat, AT_FDCWD, c".".as_ptr(), flags, 0) } as c_int;
    let mut rest = &whole[1..];
    let mut gone = back >= 0 && go(b"/");
    while gone && !rest.is_empty() {
        // Names are at most 255 bytes.
        let end = match rest.len() {
            ..PATH_MAX => rest.len(),
            _ => rest[..PATH_MAX - 1].iter().rposition(|&b| b == b'/').unwrap_or(rest.len()),
        };
        gone = go(&rest[..end]);
        rest = rest.get(end + 1..).unwrap_or(&[]);
    }
    // SAFETY: as above.
    unsafe {
        if !gone && back >= 0 {
            libc::syscall(libc::SYS_fchdir, back);
        }
        libc::syscall(libc::SYS_close, back);
    }
    gone
}
