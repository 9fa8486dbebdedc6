//! Path walking above the contract, as path_resolution(7) says.
//!
//! A path of plain names costs one call of the engine ([`FileSystem::walk`]). What needs more (".", "..", empty names, a
//! symlink on the way) goes step by step up to the next symlink, and then the rest is tried at once again.
//!
//! - Paths have 1 to 4095 bytes (`NotFound`, `NameTooLong`), names 255; NUL is `Invalid`.
//! - At most 40 symlinks are followed (`SymlinkLoop`). Absolute paths and targets begin at `root`, above which ".." does not lead.
//! - A trailing slash asks for a directory (`NotDirectory`) and has the last symlink followed in any case.
//! - Each directory that is passed needs search permission (`AccessDenied`), which the engine checks.
//!
//! Tested in `tests/client.rs`, over a real tree.

use crate::contract::FileSystem;
use crate::cred::Cred;
use crate::error::{Error, Result};
use crate::types::*;
use format::Ino;
use format::limits::{NAME_MAX, PATH_MAX, SYMLOOP_MAX};
use std::borrow::Cow;

/// The inode that `path` leads to, starting at `base` when it is relative. A symlink at its end is followed when `follow_last`.
/// Errors: see the module.
pub async fn resolve<F: FileSystem>(
    fs: &F,
    cred: &Cred,
    base: Ino,
    root: Ino,
    path: &[u8],
    follow_last: bool,
) -> Result<Attr> {
    let at = if starts_at_root(path)? { root } else { base };
    if let Some(names) = plain(path) {
        let trailing = path.ends_with(b"/");
        match fs.walk(cred, at, names).await {
            Ok(a) if a.kind == FileType::Symlink && (follow_last || trailing) => {}
            Ok(a) => return directory_if(trailing, a),
            Err(Error::NotDirectory) => {}
            Err(e) => return Err(e),
        }
    }
    // The long way has a future of its own on the heap, so that the short one stays small.
    let walker = Walker { fs, cred, root, at, rest: Cow::Borrowed(path), links: 0 };
    Box::pin(walker.resolve(follow_last)).await
}

/// As [`resolve`], if that can be done at once (see [`FileSystem::walk_now`]) and no symlink must be followed.
#[inline]
pub(crate) fn resolve_now<F: FileSystem>(
    fs: &F,
    cred: &Cred,
    base: Ino,
    root: Ino,
    path: &[u8],
    follow_last: bool,
) -> Option<Result<Attr>> {
    let at = if starts_at_root(path).ok()? { root } else { base };
    let names = plain(path)?;
    let trailing = path.ends_with(b"/");
    // What the engine says is looked at where it lies: moving attributes about costs as much as finding a name.
    let said = fs.walk_now(cred, at, names);
    let done = match &said {
        None => false,
        Some(Ok(a)) if a.kind == FileType::Symlink => !(follow_last || trailing),
        Some(Ok(a)) if trailing && a.kind != FileType::Directory => return Some(Err(Error::NotDirectory)),
        Some(Ok(_)) => true,
        // These have more to them: a symlink on the way, a directory that went away meanwhile.
        Some(Err(e)) => !matches!(e, Error::NotDirectory | Error::Stale),
    };
    if done { said } else { None }
}

/// The directory that holds the last name of `path`, that name, and whether slashes follow it. A symlink of that name is not
/// followed; whether the name exists is not asked, nor whether the directory is one (the call for which it is needed will say).
/// The name can be "." or "..", and is empty when the path leads to the root ("/").
pub async fn resolve_parent<'p, F: FileSystem>(
    fs: &F,
    cred: &Cred,
    base: Ino,
    root: Ino,
    path: &'p [u8],
) -> Result<(Ino, &'p [u8], bool)> {
    let mut at = if starts_at_root(path)? { root } else { base };
    let (head, name, trailing) = split_last(path);
    if !head.iter().all(|&b| b == b'/') {
        let names = plain(head);
        if let Some((ino, FileType::Directory)) = names.and_then(|names| fs.find_now(cred, at, names)) {
            return Ok((ino, name, trailing));
        }
        let quick = match names {
            Some(names) => fs.walk(cred, at, names).await,
            None => Err(Error::NotDirectory),
        };
        at = match quick {
            Ok(a) if a.kind == FileType::Directory => a.ino,
            Ok(_) | Err(Error::NotDirectory) => {
                let mut walker = Walker { fs, cred, root, at, rest: Cow::Borrowed(path), links: 0 };
                Box::pin(walker.descend()).await?;
                walker.at
            }
            Err(e) => return Err(e),
        };
    }
    Ok((at, name, trailing))
}

/// Checks the length of a path and says where it begins.
pub(crate) fn starts_at_root(path: &[u8]) -> Result<bool> {
    match path.first() {
        None => Err(Error::NotFound),
        Some(_) if path.len() >= PATH_MAX => Err(Error::NameTooLong),
        Some(&first) => Ok(first == b'/'),
    }
}

/// Everything before the last name, the last name (empty when there is none), and whether slashes follow it.
pub(crate) fn split_last(path: &[u8]) -> (&[u8], &[u8], bool) {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
    let start = path[..end].iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
    (&path[..start], &path[start..end], end < path.len())
}

/// The path without slashes around it, when all its names are such that [`FileSystem::walk`] takes them.
fn plain(path: &[u8]) -> Option<&[u8]> {
    let start = path.iter().position(|&b| b != b'/')?;
    let end = path.iter().rposition(|&b| b != b'/')? + 1;
    let names = &path[start..end];
    let is_plain = |name: &[u8]| match name {
        [] => false,
        [b'.', rest @ ..] => !matches!(rest, [] | [b'.']) && name.len() <= NAME_MAX,
        _ => name.len() <= NAME_MAX,
    };
    names.split(|&b| b == b'/').all(is_plain).then_some(names)
}

fn directory_if(wanted: bool, attr: Attr) -> Result<Attr> {
    if wanted && attr.kind != FileType::Directory { Err(Error::NotDirectory) } else { Ok(attr) }
}

/// A walk step by step.
pub(crate) struct Walker<'a, F> {
    pub(crate) fs: &'a F,
    pub(crate) cred: &'a Cred,
    pub(crate) root: Ino,
    /// The directory reached.
    pub(crate) at: Ino,
    /// What is left of the path, seen from there. A slash at its start means nothing.
    pub(crate) rest: Cow<'a, [u8]>,
    /// Symlinks followed.
    pub(crate) links: usize,
}

impl<F: FileSystem> Walker<'_, F> {
    async fn resolve(mut self, follow_last: bool) -> Result<Attr> {
        loop {
            self.descend().await?;
            let (_, name, trailing) = split_last(&self.rest);
            if name.is_empty() {
                return self.fs.getattr(self.at, None).await;
            }
            let attr = self.lookup(name).await?;
            if attr.kind != FileType::Symlink || !(follow_last || trailing) {
                return directory_if(trailing, attr);
            }
            self.follow(attr.ino).await?;
        }
    }

    /// Enters directories until only the last name is left.
    pub(crate) async fn descend(&mut self) -> Result<()> {
        loop {
            let (head, ..) = split_last(&self.rest);
            let head_len = head.len();
            let start = head.iter().position(|&b| b != b'/').unwrap_or(head_len);
            if start == head_len {
                self.consume(head_len);
                return Ok(());
            }
            if let Some(names) = plain(head) {
                match self.fs.walk(self.cred, self.at, names).await {
                    Ok(a) if a.kind == FileType::Directory => {
                        self.at = a.ino;
                        self.consume(head_len);
                        return Ok(());
                    }
                    Ok(_) | Err(Error::NotDirectory) => {}
                    Err(e) => return Err(e),
                }
            }
            self.step_to_symlink().await?;
        }
    }

    /// Enters directories up to the next symlink, and puts its target in its place; or until the last name.
    async fn step_to_symlink(&mut self) -> Result<()> {
        loop {
            let (head, ..) = split_last(&self.rest);
            let Some(start) = head.iter().position(|&b| b != b'/') else { return Ok(()) };
            let len = head[start..].iter().position(|&b| b == b'/').unwrap_or(head.len() - start);
            let attr = self.lookup(&head[start..start + len]).await?;
            self.consume(start + len);
            match attr.kind {
                FileType::Directory => self.at = attr.ino,
                FileType::Symlink => return self.splice(attr.ino).await,
                _ => return Err(Error::NotDirectory),
            }
        }
    }

    /// Follows the symlink `link`, which the last name leads to.
    pub(crate) async fn follow(&mut self, link: Ino) -> Result<()> {
        let (head, name, _) = split_last(&self.rest);
        self.consume(head.len() + name.len());
        self.splice(link).await
    }

    /// Puts the target of `link` before the rest of the path.
    async fn splice(&mut self, link: Ino) -> Result<()> {
        self.count_link()?;
        let mut target = self.fs.readlink(self.cred, link).await?;
        if starts_at_root(&target)? {
            self.at = self.root;
        }
        target.extend_from_slice(&self.rest);
        self.rest = Cow::Owned(target);
        Ok(())
    }

    /// Counts a symlink that is followed.
    pub(crate) fn count_link(&mut self) -> Result<()> {
        self.links += 1;
        if self.links > SYMLOOP_MAX { Err(Error::SymlinkLoop) } else { Ok(()) }
    }

    /// The inode called `name` in the directory reached.
    pub(crate) async fn lookup(&self, name: &[u8]) -> Result<Attr> {
        let stay = name == b".." && self.at == self.root;
        self.fs.lookup(self.cred, self.at, if stay { b"." } else { name }).await
    }

    fn consume(&mut self, len: usize) {
        match &mut self.rest {
            Cow::Borrowed(rest) => *rest = &rest[len..],
            Cow::Owned(rest) => drop(rest.drain(..len)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_names() {
        for (path, head, name, trailing) in [
            ("a", "", "a", false),
            ("a/", "", "a", true),
            ("/a", "/", "a", false),
            ("//a//b//", "//a//", "b", true),
            ("/", "", "", true),
            ("a/..", "a/", "..", false),
        ] {
            let want = (head.as_bytes(), name.as_bytes(), trailing);
            assert_eq!(split_last(path.as_bytes()), want, "{path}");
        }
    }

    #[test]
    fn plain_paths() {
        for (path, want) in [
            ("a", Some("a")),
            ("//a/b/", Some("a/b")),
            (".a/..b/...", Some(".a/..b/...")),
            ("a//b", None),
            ("/", None),
            ("", None),
            (".", None),
            ("a/.", None),
            ("../a", None),
            ("a/../b", None),
        ] {
            assert_eq!(plain(path.as_bytes()), want.map(str::as_bytes), "{path}");
        }
        assert!(plain(&[b'x'; 255]).is_some());
        assert!(plain(&[b'x'; 256]).is_none());
    }
}
