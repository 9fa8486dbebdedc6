//! The quick way for the paths that programs use most: those whose names are all ordinary, below a mount that has no others in it, or
//! below a directory there. They are taken as they are, without a copy, and what is known of them is found without a message.
//!
//! Nothing is decided here that `path` would decide otherwise: where this says nothing, the call goes that way. Where tested: below,
//! where both ways are compared, and with programs in `tests/`.

use crate::cwd;
use crate::mounts::{Mount, mounts};
use crate::path::{PATH_MAX, Text};
use crate::table;
use fs::{Attr, FileType, Ino};
use libc::{AT_FDCWD, c_int};
use share::Target;
use std::ops::Deref;

/// Such a path.
#[derive(Clone, Copy)]
pub(crate) struct Plain<'p> {
    pub mount: &'static Mount,
    /// Where it begins: the root of the mount, or the directory of `from`.
    base: Ino,
    /// Below that: "/a/b", or "a/b" as it came; "" for the root.
    path: &'p [u8],
    /// The descriptor of the directory, `AT_FDCWD`, or nothing.
    from: Option<c_int>,
}

/// Whether the path, apart from a slash at its beginning, has a name that is empty, "." or "..", also at its end.
#[inline]
fn has_odd_names(path: &[u8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = ONES << 7;
    // The high bit of each byte that is `byte`.
    let are = |word: u64, byte: u8| {
        let differs = word ^ (ONES * byte as u64);
        !(((differs & !HIGH) + !HIGH) | differs) & HIGH
    };
    // A slash before another one or a dot: seldom, as in ".git", and then looked at name by name.
    let pair = |a: u8, b: u8| a == b'/' && (b == b'/' || b == b'.');
    let mut rest = path;
    let mut found = path.last() == Some(&b'/') || path.first() == Some(&b'.');
    while let Some(nine) = rest.first_chunk::<9>() {
        let [low, high] = [0, 1].map(|at| u64::from_le_bytes(std::array::from_fn(|i| nine[i + at])));
        found |= are(low, b'/') & (are(high, b'/') | are(high, b'.')) != 0;
        rest = &rest[8..];
    }
    found |= rest.windows(2).any(|w| pair(w[0], w[1]));
    let names = path.strip_prefix(b"/").unwrap_or(path);
    found && names.split(|&b| b == b'/').any(|n| matches!(n, b"" | b"." | b".."))
}

/// A relative path without each "./" at its beginning, as `find .` and `tar -c .` have them.
#[inline]
fn without_dots(mut path: &[u8]) -> &[u8] {
    while let Some(rest) = path.strip_prefix(b"./") {
        let names = rest.iter().position(|&b| b != b'/').unwrap_or(rest.len());
        path = &rest[names..];
    }
    path
}

/// The part of a path below `prefix`, when it begins with that and has ordinary names behind it.
#[inline]
fn below<'p>(prefix: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(prefix)?;
    match rest.first() {
        None => Some(rest),
        Some(b'/') => (!has_odd_names(rest)).then_some(rest),
        Some(_) => None,
    }
}

impl<'p> Plain<'p> {
    #[inline]
    pub(crate) fn of(dirfd: c_int, path: &'p [u8]) -> Option<Plain<'p>> {
        if path.len() >= PATH_MAX {
            return None;
        }
        let plain = if path.first() == Some(&b'/') {
            // The innermost mounts come first. A path with odd names before one of them leads to one that has it inside.
            let (mount, path) = mounts().iter().find_map(|m| below(&m.prefix, path).map(|rest| (m, rest)))?;
            Plain { mount, base: Ino::ROOT, path, from: None }
        } else {
            let path = without_dots(path);
            match directory(dirfd) {
                Some(_) if path.is_empty() || has_odd_names(path) => return None,
                Some((mount, base)) => Plain { mount, base, path, from: Some(dirfd) },
                None if dirfd == AT_FDCWD => from_above(path)?,
                None => return None,
            }
        };
        (!plain.mount.has_inner).then_some(plain)
    }

    /// The path below the mount, or what of it leads to a directory on the way. Unknown when the way to where it begins is, or is not
    /// the one any more.
    pub(crate) fn below_mount(&self, part: &'p [u8]) -> Option<Below<'p>> {
        let Some(from) = self.from else { return Some(Below::Part(part)) };
        let mut whole = path_of(from, self.base)?;
        if !part.is_empty() {
            whole.push(b'/');
            whole.extend_from_slice(part);
        }
        Some(Below::Whole(whole))
    }

    /// As [`Plain::below_mount`], all of it.
    pub(crate) fn whole(&self) -> Option<Below<'p>> {
        self.below_mount(self.path)
    }

    /// What `f` says of the attributes of what the path leads to. With `follow`, not of those of a symlink.
    #[inline]
    pub(crate) fn look<T>(&self, follow: bool, f: impl FnOnce(&Attr) -> T) -> Option<T> {
        let f = |attr: &Attr| (!follow || attr.kind != FileType::Symlink).then(|| f(attr));
        self.mount.for_paths()?.look_at(self.base, self.path, f)?
    }

    /// What the path leads to, unless that is the root. With `follow`, not a symlink.
    #[inline]
    pub(crate) fn target(&self, follow: bool) -> Option<Target> {
        let target = self.mount.for_paths()?.target_now(self.base, self.path)?;
        (!follow || target.kind != FileType::Symlink).then_some(target)
    }

    /// The directory that the path's last name is in, what of the path leads there, and the name.
    #[inline]
    pub(crate) fn parent(&self) -> Option<(Ino, &'p [u8], &'p [u8])> {
        let remote = self.mount.for_paths()?;
        let slash = self.path.iter().rposition(|&b| b == b'/');
        let (dir, name) = match slash {
            Some(slash) => (&self.path[..slash], &self.path[slash + 1..]),
            None => (&self.path[..0], self.path),
        };
        match (dir, name) {
            (_, b"") => None,
            (b"", _) => Some((self.base, dir, name)),
            _ => {
                let target = remote.target_now(self.base, dir)?;
                (target.kind == FileType::Directory).then_some((target.ino, dir, name))
            }
        }
    }
}

/// A path below the mount: "" or "/a/b".
pub(crate) enum Below<'p> {
    Part(&'p [u8]),
    Whole(Text),
}

impl Deref for Below<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Below::Part(part) => part,
            Below::Whole(whole) => whole,
        }
    }
}

/// A relative path into a mount below the directory in which we stand.
#[inline]
fn from_above(path: &[u8]) -> Option<Plain<'_>> {
    cwd::above(|here| {
        mounts().iter().find_map(|mount| {
            let way = mount.prefix.strip_prefix(here)?.strip_prefix(b"/")?;
            below(way, path).map(|path| Plain { mount, base: Ino::ROOT, path, from: None })
        })
    })
}

/// Where relative paths begin, if that is in a volume.
fn directory(dirfd: c_int) -> Option<(&'static Mount, Ino)> {
    if dirfd == AT_FDCWD {
        return cwd::with(|dir| (dir.mount, dir.ino));
    }
    let open = table::get(dirfd)?;
    (open.kind == FileType::Directory && open.is_there_now()).then_some((open.mount, open.ino))
}

/// The path of such a directory, if it is still this one and its path is known.
fn path_of(dirfd: c_int, ino: Ino) -> Option<Text> {
    if dirfd == AT_FDCWD {
        return cwd::with(|dir| dir.path.clone().filter(|_| dir.ino == ino))?;
    }
    let open = table::get(dirfd).filter(|open| open.ino == ino)?;
    open.path().map(Text::from_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lexical::{plain, strip};

    /// Paths of a few letters, in which everything that counts happens.
    fn paths() -> impl Iterator<Item = Vec<u8>> {
        let mut state = 1u64;
        let mut next = move |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        const PARTS: &[&[u8]] = &[
            b"/",
            b"/",
            b".",
            b"..",
            b"m",
            b"v",
            b"/m/v",
            b"/m/v/",
            b"name",
            b"/a/b",
            b"..x",
            b".git",
            b"longer name",
            b"\xaf\x2e",
            b"\0",
        ];
        (0..200_000).map(move |_| (0..next(9)).flat_map(|_| PARTS[next(PARTS.len())].to_vec()).collect())
    }

    #[test]
    fn as_the_long_way() {
        let mut quick = 0;
        for path in paths() {
            let Some(rest) = below(b"/m/v", &path) else { continue };
            quick += 1;
            let text = String::from_utf8_lossy(&path);
            let at = strip(b"/m/v", &path).unwrap_or_else(|| panic!("{text} is below"));
            assert_eq!(&path[at..], rest, "{text}");
            let names = plain(&path[at..]).unwrap_or(b"");
            assert_eq!(rest, [if names.is_empty() { &b""[..] } else { b"/" }, names].concat(), "{text}");
        }
        assert!(quick > 1000, "{quick}");
    }

    #[test]
    fn from_above_as_the_long_way() {
        let mut quick = 0;
        for path in paths().filter(|path| path.first() != Some(&b'/')) {
            let Some(rest) = below(b"m/v", without_dots(&path)) else { continue };
            quick += 1;
            let whole = [b"/", &path[..]].concat();
            let text = String::from_utf8_lossy(&path);
            let at = strip(b"/m/v", &whole).unwrap_or_else(|| panic!("{text} is below"));
            assert_eq!(plain(&whole[at..]).unwrap_or(b""), rest.strip_prefix(b"/").unwrap_or(rest), "{text}");
        }
        assert!(quick > 100, "{quick}");
    }

    #[test]
    fn dots_at_the_beginning() {
        for (path, rest) in
            [("./a/b", "a/b"), (".///./a", "a"), ("./", ""), ("./.", "."), (".a/b", ".a/b"), ("./..", "..")]
        {
            assert_eq!(without_dots(path.as_bytes()), rest.as_bytes(), "{path}");
        }
        for path in paths().filter(|path| path.first() != Some(&b'/')) {
            let names = |path: &[u8]| -> Vec<Vec<u8>> {
                path.split(|&b| b == b'/').filter(|n| !matches!(*n, b"" | b".")).map(<[u8]>::to_vec).collect()
            };
            assert_eq!(names(&path), names(without_dots(&path)), "{}", String::from_utf8_lossy(&path));
        }
    }

    #[test]
    fn odd_names() {
        for path in paths().filter(|p| !p.is_empty()) {
            let names = path.strip_prefix(b"/").unwrap_or(&path);
            let odd = names.split(|&b| b == b'/').any(|n| matches!(n, b"" | b"." | b".."));
            assert_eq!(has_odd_names(&path), odd, "{}", String::from_utf8_lossy(&path));
            assert!(odd || plain(&path).is_some_and(|p| p == names), "{}", String::from_utf8_lossy(&path));
        }
    }
}
