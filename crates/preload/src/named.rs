//! Paths that go through descriptors.
//!
//! Those that name one of ours: `/dev/stdin`, `/dev/stdout`, `/dev/stderr`, `/dev/fd/N`, `/proc/self/fd/N`, also `thread-self` and the number
//! of this process in place of `self`; and those that come into a volume from a directory descriptor of the kernel.
//!
//! For the kernel a descriptor of ours is one of its slot's memory (see `arena`), so that what it finds under these paths is nothing a
//! program may see. Opening such a path opens the inode anew, as the kernel does for its own files; a path through a directory's
//! descriptor goes on there. What readlink says is the path by which it was opened, " (deleted)" behind it when no name is left. Not seen here: descriptors
//! of other processes, relative paths (`cd /proc/self/fd`), and symlinks to these paths.
//!
//! Where tested: `tests/all/more_programs.rs` and below.

use crate::description::Open;
use crate::hook::{Out, Res};
use crate::mounts::{self, mounts};
use crate::path::{self, Found, Text};
use crate::table;
use libc::c_int;
use std::os::unix::ffi::OsStrExt;

/// The number in such a path, the rest of the path behind it, and whether the path itself is a symlink to the file (not one to that symlink).
fn number(path: &[u8]) -> Option<(c_int, &[u8], bool)> {
    let rest = path.strip_prefix(b"/")?;
    if !rest.starts_with(b"dev/") && !rest.starts_with(b"proc/") {
        return None;
    }
    for (name, fd) in [(&b"dev/stdin"[..], 0), (b"dev/stdout", 1), (b"dev/stderr", 2)] {
        match rest.strip_prefix(name) {
            Some(rest) if rest.is_empty() || rest[0] == b'/' => return Some((fd, rest, false)),
            _ => {}
        }
    }
    let digits = match rest.strip_prefix(b"dev/fd/") {
        Some(digits) => digits,
        None => {
            let of = rest.strip_prefix(b"proc/")?;
            let end = of.iter().position(|&b| b == b'/')?;
            let this = matches!(&of[..end], b"self" | b"thread-self")
                || decimal(&of[..end]).is_some_and(|pid| pid as u32 == mounts::pid());
            of[end..].strip_prefix(b"/fd/").filter(|_| this)?
        }
    };
    let end = digits.iter().position(|&b| b == b'/').unwrap_or(digits.len());
    Some((decimal(&digits[..end])?, &digits[end..], true))
}

fn decimal(digits: &[u8]) -> Option<c_int> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The open file of ours that an absolute path names or goes through, and the rest of the path, which is empty or begins with a slash.
pub(crate) fn through(path: &[u8]) -> Option<(Open, &[u8])> {
    let (fd, rest, _) = number(path)?;
    Some((table::get(fd)?, rest))
}

/// Whether a path names an open file of ours when symlinks are followed.
pub(crate) fn names_one(path: &[u8]) -> bool {
    number(path).is_some_and(|(fd, rest, _)| rest.is_empty() && table::is_ours(fd))
}

/// The open file of ours that a symlink of this path leads to.
pub(crate) fn link(path: &[u8]) -> Option<Open> {
    match number(path)? {
        (fd, b"", true) => table::get(fd),
        _ => None,
    }
}

/// What the path names when symlinks are followed, if that is an open file of ours.
pub(crate) fn found(path: &[u8]) -> Option<Res<Found>> {
    match number(path)? {
        (fd, b"", _) => match crate::stat::of_descriptor(fd) {
            Err(Out::Libc) => None,
            found => Some(found),
        },
        _ => None,
    }
}

/// The absolute path of something in a volume that is named from a directory of the kernel's above the mount. Programs that trust no path walk so
/// from the root, descriptor by descriptor (rsync): what they find then is ours, not the mount's.
pub(crate) fn from_above(dirfd: c_int, path: &[u8]) -> Option<Text> {
    let last = |prefix: &'static [u8]| prefix.rsplit(|&b| b == b'/').next();
    // Looked at only if a name is that of a mount.
    path.split(|&b| b == b'/').find(|n| mounts().iter().any(|m| last(&m.prefix) == Some(n)))?;
    let above = std::fs::read_link(format!("/proc/self/fd/{dirfd}")).ok()?;
    let whole = path::join(&[above.as_os_str().as_bytes(), b"/", path]);
    (whole.first() == Some(&b'/') && crate::lexical::below(&whole).is_some()).then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for (path, want) in [
            ("/dev/stdin", Some((0, "", false))),
            ("/dev/stderr/x", Some((2, "/x", false))),
            ("/dev/fd/12", Some((12, "", true))),
            ("/proc/self/fd/3/a/b", Some((3, "/a/b", true))),
            ("/proc/thread-self/fd/3/", Some((3, "/", true))),
            ("/proc/1/fd/3", None),
            ("/proc/self/fd/", None),
            ("/proc/self/fd/3x", None),
            ("/proc/self/fd/99999999999", None),
            ("/dev/stdinx", None),
            ("/device/fd/1", None),
            ("dev/fd/1", None),
        ] {
            let got = number(path.as_bytes());
            let want = want.map(|(fd, rest, link): (c_int, &str, bool)| (fd, rest.as_bytes(), link));
            assert_eq!(got, want, "{path}");
        }
    }
}
