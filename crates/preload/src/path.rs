//! Where a path leads: into a volume, or to the kernel.
//!
//! A path is first made absolute as far as is needed, and compared with the mounts name by name ("." and empty names left out, ".."
//! taken back by name: outside of volumes the kernel's own symlinks are not looked at). Inside of a volume it is walked as
//! path_resolution(7) says: ".." is the true parent; a ".." above the volume's root, and a symlink with an absolute target, leave
//! it, and what is left of the path is routed again, as it is where another mount covers a name. What ends up outside goes to libc with the path that resulted.
//!
//! A plain path costs one call, or none (`plain`). Where tested: with programs in `tests/`.

use crate::cwd;
use crate::description::Open;
use crate::hook::{Out, Res, fail};
pub(crate) use crate::lexical::{Text, join};
use crate::lexical::{below, flat, has_dotdot, plain};
use crate::mounts::{self, Mount, mounts};
use crate::plain::Plain;
use crate::table;
use fs::{Access, Attr, FileSystem, FileType, Ino};
use libc::{AT_FDCWD, c_int};
use std::ffi::CString;

pub(crate) const PATH_MAX: usize = 4096;
const LINKS_MAX: usize = 40;

/// A directory in a volume, and its path below the mount ("" for the root, else "/a/b"; `None`: not known).
#[derive(Clone)]
pub(crate) struct Dir {
    pub mount: &'static Mount,
    pub ino: Ino,
    pub path: Option<Text>,
}

/// Something in a volume.
pub(crate) struct Found {
    pub mount: &'static Mount,
    pub attr: Attr,
    pub path: Option<Text>,
}

/// A name in a directory of a volume. The name is empty for the root, and can be "." or "..".
pub(crate) struct Entry {
    pub dir: Dir,
    pub name: Text,
    /// Slashes follow it.
    pub trailing: bool,
}

/// Where a path leads.
pub(crate) enum To<T> {
    /// Into a volume.
    Volume(T),
    /// To the kernel, by this absolute path.
    Kernel(CString),
}

/// Where a walk begins.
enum Start<'p> {
    In(Dir, &'p [u8]),
    Again(Text),
}

/// Where the walk of `path` from `dirfd` begins. `Libc` when the kernel has it as it is.
fn start(dirfd: c_int, path: &[u8]) -> Res<Start<'_>> {
    if path.len() >= PATH_MAX {
        // As long as any kernel's limit: it says so itself.
        return Err(Out::Libc);
    }
    if path.first() == Some(&b'/') {
        return match below(path) {
            Some((mount, at)) => Ok(Start::In(root(mount), &path[at..])),
            None if has_dotdot(path) && flat(path).is_some() => Ok(Start::Again(Text::from_slice(path))),
            None => match crate::named::through(path) {
                Some((open, rest)) if !rest.is_empty() => inside_of(&open, rest),
                _ => Err(Out::Libc),
            },
        };
    }
    if dirfd == AT_FDCWD {
        return match cwd::now() {
            cwd::Cwd::Volume(dir, _) => Ok(Start::In(dir, path)),
            cwd::Cwd::Gone => fail(libc::ENOENT),
            cwd::Cwd::Kernel { above, text } if above || has_dotdot(path) && !text.is_empty() => {
                let mut whole = text;
                whole.push(b'/');
                whole.extend_from_slice(path);
                if flat(&whole).is_some() { Ok(Start::Again(whole.into())) } else { Err(Out::Libc) }
            }
            _ => Err(Out::Libc),
        };
    }
    let Some(open) = table::get(dirfd) else {
        return crate::named::from_above(dirfd, path).map(Start::Again).ok_or(Out::Libc);
    };
    if path.is_empty() {
        return fail(libc::ENOENT);
    }
    inside_of(&open, path)
}

/// The walk of `path` from an open directory.
fn inside_of<'p>(open: &Open, path: &'p [u8]) -> Res<Start<'p>> {
    if open.kind != FileType::Directory {
        return fail(libc::ENOTDIR);
    }
    open.is_there()?;
    let dir = Dir { mount: open.mount, ino: open.ino, path: open.path().map(Text::from_slice) };
    Ok(Start::In(dir, path))
}

fn root(mount: &'static Mount) -> Dir {
    Dir { mount, ino: Ino::ROOT, path: Some(Text::new()) }
}

fn kernel(path: Text) -> Res<CString> {
    CString::new(path.into_vec()).or(fail(libc::EINVAL))
}

/// A walk under way.
struct Walk {
    dir: Dir,
    rest: Text,
    links: usize,
}

/// What a walk came to.
enum Step {
    /// Only the last name is left.
    Last,
    /// The kernel has the rest.
    Outside(CString),
}

impl Walk {
    /// Begins, or the path for the kernel. `Libc`: as it came.
    fn begin(dirfd: c_int, path: &[u8]) -> Res<std::result::Result<Walk, CString>> {
        match start(dirfd, path)? {
            Start::In(dir, rest) if dir.mount.for_paths().is_some() => {
                Ok(Ok(Walk { dir, rest: Text::from_slice(rest), links: 0 }))
            }
            Start::In(dir, rest) => {
                // No manager, or not for these credentials: the FUSE mount serves it. A relative path is made absolute, as the kernel may not stand there.
                if dirfd == AT_FDCWD && path.first() == Some(&b'/') {
                    return Err(Out::Libc);
                }
                let Some(at) = dir.path else { return fail(libc::EIO) };
                Ok(Err(kernel(join(&[&dir.mount.prefix[..], &at, b"/", rest]))?))
            }
            Start::Again(whole) => Walk::route(whole, 0),
        }
    }

    /// Routes an absolute path anew.
    fn route(path: Text, links: usize) -> Res<std::result::Result<Walk, CString>> {
        match flat(&path) {
            Some((mount, rest)) if mount.for_paths().is_some() => {
                Ok(Ok(Walk { dir: root(mount), rest, links }))
            }
            _ => Ok(Err(kernel(path)?)),
        }
    }

    /// Goes on with an absolute path, the rest of this walk.
    fn jump(&mut self, path: Text) -> Res<Option<CString>> {
        match Walk::route(path, self.links)? {
            Ok(walk) => {
                *self = walk;
                Ok(None)
            }
            Err(path) => Ok(Some(path)),
        }
    }

    /// The first name of the rest: where it begins and ends, and whether it is the last.
    fn first(&self) -> Option<(usize, usize, bool)> {
        let start = self.rest.iter().position(|&b| b != b'/')?;
        let len = self.rest[start..].iter().position(|&b| b == b'/').unwrap_or(self.rest.len() - start);
        let last = self.rest[start + len..].iter().all(|&b| b == b'/');
        Some((start, start + len, last))
    }

    /// What names on the way are known to lead to. That is known longer than attributes are: each change of a directory makes those unknown.
    fn known(&self, names: &[u8]) -> Option<(Ino, FileType)> {
        let target = self.dir.mount.for_paths()?.target_now(self.dir.ino, names)?;
        Some((target.ino, target.kind))
    }

    /// Whether it is known here that the directory may be searched.
    fn may_search_here(&self) -> bool {
        let cred = mounts::cred();
        let may = |attr: &Attr| fs::perm::check(cred, attr, Access::EXEC).is_ok();
        let look = || self.dir.mount.for_paths()?.look_at_inode(self.dir.ino, None, may);
        cred.privileged() || look() == Some(true)
    }

    fn lookup(&self, name: &[u8]) -> Res<Attr> {
        self.dir.mount.run(|fs| fs.lookup(mounts::cred(), self.dir.ino, name))
    }

    /// The path of `rest` from `name` (which ends at `end`) on, when another mount covers that name here.
    fn covered(&self, name: &[u8], end: usize) -> Option<Text> {
        let mount = self.dir.mount;
        let path = self.dir.path.as_ref().filter(|_| mount.has_inner)?;
        let whole = join(&[&mount.prefix[..], path, b"/", name]);
        mounts().iter().any(|m| *m.prefix == *whole).then(|| join(&[&whole[..], &self.rest[end..]]))
    }

    /// Goes up. True when that leaves the volume.
    fn up(&mut self) -> Res<bool> {
        if self.dir.ino == Ino::ROOT {
            return Ok(true);
        }
        self.dir.ino = self.lookup(b"..")?.ino;
        if let Some(path) = &mut self.dir.path {
            path.truncate(path.iter().rposition(|&b| b == b'/').unwrap_or(0));
        }
        Ok(false)
    }

    fn enter(&mut self, name: &[u8], ino: Ino) {
        self.dir.ino = ino;
        if let Some(path) = &mut self.dir.path {
            path.push(b'/');
            path.extend_from_slice(name);
        }
    }

    /// Puts the target of a symlink, whose name was consumed, before the rest.
    fn follow(&mut self, link: Ino) -> Res<Option<CString>> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return fail(libc::ELOOP);
        }
        let mut target: Text = self.dir.mount.run(|fs| fs.readlink(mounts::cred(), link))?.into();
        target.extend_from_slice(&self.rest);
        if target.len() >= PATH_MAX {
            return fail(libc::ENAMETOOLONG);
        }
        if target.first() == Some(&b'/') {
            return self.jump(target);
        }
        self.rest = target;
        Ok(None)
    }

    /// Enters directories until only the last name is left; with `dots`, a last "." or ".." is walked too and leaves none.
    fn descend(&mut self, dots: bool) -> Res<Step> {
        if let Some(dir) = self.quick_parent()? {
            self.dir = dir;
        }
        while let Some((start, end, last)) = self.first() {
            let name = Text::from_slice(&self.rest[start..end]);
            if let Some(path) = self.covered(&name, end) {
                match self.jump(path)? {
                    Some(path) => return Ok(Step::Outside(path)),
                    None => continue,
                }
            }
            match &name[..] {
                b"." if !last || dots => {
                    if last && !self.may_search_here() {
                        // Nothing else asks whether this directory may be searched.
                        self.lookup(b".")?;
                    }
                    self.rest.drain(..end);
                }
                b".." if !last || dots || self.dir.ino == Ino::ROOT => {
                    if self.up()? {
                        let prefix = &self.dir.mount.prefix;
                        let above = prefix.iter().rposition(|&b| b == b'/').unwrap_or(0);
                        let path = join(&[&prefix[..above], b"/", &self.rest[end..]]);
                        match self.jump(path)? {
                            Some(path) => return Ok(Step::Outside(path)),
                            None => continue,
                        }
                    }
                    self.rest.drain(..end);
                }
                _ if last => return Ok(Step::Last),
                name => {
                    let (ino, kind) = match self.known(name) {
                        Some(known) => known,
                        None => self.lookup(name).map(|attr| (attr.ino, attr.kind))?,
                    };
                    self.rest.drain(..end);
                    match kind {
                        FileType::Directory => self.enter(name, ino),
                        FileType::Symlink => {
                            if let Some(path) = self.follow(ino)? {
                                return Ok(Step::Outside(path));
                            }
                        }
                        _ => return fail(libc::ENOTDIR),
                    }
                }
            }
        }
        Ok(Step::Last)
    }

    /// The directory of the last name at once, when all names before it are plain and no symlink is among them.
    fn quick_parent(&mut self) -> Res<Option<Dir>> {
        if self.dir.mount.has_inner {
            return Ok(None);
        }
        let end = self.rest.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
        let head = self.rest[..end].iter().rposition(|&b| b == b'/').unwrap_or(0);
        let Some(names) = plain(&self.rest[..head]).map(Text::from_slice) else { return Ok(None) };
        let found = match self.known(&names) {
            Some(known) => Ok(known),
            None => {
                let walked = self.dir.mount.run(|fs| fs.walk(mounts::cred(), self.dir.ino, &names));
                walked.map(|attr| (attr.ino, attr.kind))
            }
        };
        match found {
            Ok((ino, FileType::Directory)) => {
                let path = self.dir.path.as_ref().map(|p| join(&[&p[..], b"/", &names]));
                self.rest.drain(..head);
                Ok(Some(Dir { mount: self.dir.mount, ino, path }))
            }
            Ok(_) | Err(Out::Errno(libc::ENOTDIR)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The last name, and whether slashes follow it.
    fn last(&self) -> (Text, bool) {
        match self.first() {
            Some((start, end, _)) => (Text::from_slice(&self.rest[start..end]), end < self.rest.len()),
            None => (Text::new(), true),
        }
    }
}

/// What `path` leads to. A symlink at its end is followed when `follow`, or when a slash stands behind it.
pub(crate) fn resolve(dirfd: c_int, path: &[u8], follow: bool) -> Res<To<Found>> {
    if let Some(found) = follow.then(|| crate::named::found(path)).flatten() {
        return found.map(To::Volume);
    }
    let mut walk = match Walk::begin(dirfd, path)? {
        Ok(walk) => walk,
        Err(path) => return Ok(To::Kernel(path)),
    };
    if path.is_empty() {
        return fail(libc::ENOENT);
    }
    let mount = walk.dir.mount;
    if let Some(names) = plain(&walk.rest).filter(|_| !mount.has_inner) {
        let trailing = walk.rest.ends_with(b"/");
        match mount.run(|fs| fs.walk(mounts::cred(), walk.dir.ino, names)) {
            Ok(a) if a.kind == FileType::Symlink && (follow || trailing) => {}
            Ok(a) if a.kind != FileType::Directory && trailing => return fail(libc::ENOTDIR),
            Ok(attr) => {
                let path = walk.dir.path.as_ref().map(|p| join(&[&p[..], b"/", names]));
                return Ok(To::Volume(Found { mount, attr, path }));
            }
            Err(Out::Errno(libc::ENOTDIR)) => {}
            Err(e) => return Err(e),
        }
    }
    loop {
        if let Step::Outside(path) = walk.descend(true)? {
            return Ok(To::Kernel(path));
        }
        let (name, trailing) = walk.last();
        let (mount, dir) = (walk.dir.mount, walk.dir.ino);
        if name.is_empty() {
            let attr = mount.run(|fs| fs.getattr(dir, None))?;
            return Ok(To::Volume(Found { mount, attr, path: walk.dir.path }));
        }
        let attr = walk.lookup(&name)?;
        if attr.kind != FileType::Symlink || !(follow || trailing) {
            if trailing && attr.kind != FileType::Directory {
                return fail(libc::ENOTDIR);
            }
            let path = walk.dir.path.map(|p| join(&[&p[..], b"/", &name]));
            return Ok(To::Volume(Found { mount, attr, path }));
        }
        walk.rest.clear();
        if trailing {
            walk.rest.push(b'/');
        }
        if let Some(path) = walk.follow(attr.ino)? {
            return Ok(To::Kernel(path));
        }
    }
}

/// The directory and last name of `path`; a symlink of that name is not followed.
pub(crate) fn parent(dirfd: c_int, path: &[u8]) -> Res<To<Entry>> {
    if let Some(plain) = Plain::of(dirfd, path)
        && let Some((ino, dir, name)) = plain.parent()
    {
        let path = plain.below_mount(dir).map(|path| Text::from_slice(&path));
        let dir = Dir { mount: plain.mount, ino, path };
        return Ok(To::Volume(Entry { dir, name: Text::from_slice(name), trailing: false }));
    }
    let mut walk = match Walk::begin(dirfd, path)? {
        Ok(walk) => walk,
        Err(path) => return Ok(To::Kernel(path)),
    };
    if path.is_empty() {
        return fail(libc::ENOENT);
    }
    if let Step::Outside(path) = walk.descend(false)? {
        return Ok(To::Kernel(path));
    }
    let (name, trailing) = walk.last();
    Ok(To::Volume(Entry { dir: walk.dir, name, trailing }))
}

/// Where a symlink at `entry` leads: the entry that its target names.
pub(crate) fn behind(entry: Entry, link: Ino, links: &mut usize) -> Res<To<Entry>> {
    let mut walk = Walk { dir: entry.dir, rest: Text::new(), links: *links };
    if let Some(path) = walk.follow(link)? {
        return Ok(To::Kernel(path));
    }
    if let Step::Outside(path) = walk.descend(false)? {
        return Ok(To::Kernel(path));
    }
    *links = walk.links;
    let (name, trailing) = walk.last();
    Ok(To::Volume(Entry { dir: walk.dir, name, trailing }))
}

impl Entry {
    /// Whether the name is one that can be made or removed.
    pub(crate) fn ordinary(&self) -> bool {
        !matches!(&self.name[..], b"" | b"." | b"..")
    }
}
