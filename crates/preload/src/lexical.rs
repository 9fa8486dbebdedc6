//! Paths as text: what their names say without anybody being asked.

use crate::mounts::{Mount, mounts};
use smallvec::SmallVec;

/// A path, or a part of one: those of common length need no allocation.
pub(crate) type Text = SmallVec<[u8; 96]>;

/// The parts one after the other.
pub(crate) fn join(parts: &[&[u8]]) -> Text {
    let mut text = Text::with_capacity(parts.iter().map(|p| p.len()).sum());
    parts.iter().for_each(|part| text.extend_from_slice(part));
    text
}

/// The path below the mount to which an absolute path leads by its names.
pub(crate) fn below(path: &[u8]) -> Option<(&'static Mount, usize)> {
    mounts().iter().find_map(|m| strip(&m.prefix, path).map(|at| (m, at)))
}

/// Where in `path` the part behind `prefix` begins, if the path lies there. Without "..", which is for [`flat`].
pub(crate) fn strip(prefix: &[u8], path: &[u8]) -> Option<usize> {
    let mut at = 0;
    for want in prefix[1..].split(|&b| b == b'/') {
        loop {
            at += path[at..].iter().position(|&b| b != b'/')?;
            let len = path[at..].iter().position(|&b| b == b'/').unwrap_or(path.len() - at);
            let name = &path[at..at + len];
            at += len;
            match name {
                b"." => {}
                _ if name == want => break,
                _ => return None,
            }
        }
    }
    Some(at)
}

/// As [`below`] for paths with ".." before the mount: they are taken back by name until the path is in a mount. Gives the mount and the
/// rest.
pub(crate) fn flat(path: &[u8]) -> Option<(&'static Mount, Text)> {
    let mut kept = Text::new();
    let mut rest = path;
    loop {
        if mounts().iter().any(|m| *m.prefix == *kept) {
            // Another may be mounted further down.
            let whole = join(&[&kept[..], rest]);
            return below(&whole).map(|(mount, at)| (mount, Text::from_slice(&whole[at..])));
        }
        let start = rest.iter().position(|&b| b != b'/')?;
        let len = rest[start..].iter().position(|&b| b == b'/').unwrap_or(rest.len() - start);
        match &rest[start..start + len] {
            b"." => {}
            b".." => kept.truncate(kept.iter().rposition(|&b| b == b'/').unwrap_or(0)),
            name => {
                kept.push(b'/');
                kept.extend_from_slice(name);
            }
        }
        rest = &rest[start + len..];
    }
}

/// Whether one of the names is "..".
pub(crate) fn has_dotdot(path: &[u8]) -> bool {
    path.windows(2).any(|w| w == b"..") && path.split(|&b| b == b'/').any(|n| n == b"..")
}

/// The path without slashes around it, when all its names are such that the engine walks them at once.
pub(crate) fn plain(path: &[u8]) -> Option<&[u8]> {
    let start = path.iter().position(|&b| b != b'/')?;
    let end = path.iter().rposition(|&b| b != b'/')? + 1;
    let names = &path[start..end];
    names.split(|&b| b == b'/').all(|n| !matches!(n, b"" | b"." | b"..") && n.len() <= 255).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        for (path, rest) in [
            ("/m/v/a", Some("/a")),
            ("//m/.//v", Some("")),
            ("/m/v/", Some("/")),
            ("/m/vv/a", None),
            ("/m", None),
            ("/x/m/v", None),
        ] {
            let got = strip(b"/m/v", path.as_bytes()).map(|at| &path[at..]);
            assert_eq!(got, rest, "{path}");
        }
    }

    #[test]
    fn dots() {
        assert!(has_dotdot(b"a/.."));
        assert!(has_dotdot(b"../a"));
        assert!(!has_dotdot(b"a..b/..c/c.."));
        assert_eq!(plain(b"/a/b/"), Some(&b"a/b"[..]));
        assert_eq!(plain(b"a/./b"), None);
    }
}
