//! The model's directory tree: looking up, making, linking, removing and renaming.
//!
//! Precedence of errors, as in the kernel's path walk: the directory's inode (`Stale`, `NotDirectory`), the right to
//! search it, whether it still has a name, the name itself, whether there is such an entry, the right to change the
//! directory, and then what is special to the call.

use super::node::Body;
use super::rules;
use super::{Model, State};
use fs::{Access, Attr, Cred, Error, FileType, Ino, RenameFlags, Result, Time};

const WRITE_DIR: Access = Access::WRITE.union(Access::EXEC);

/// What a new inode is to be.
pub(super) struct New {
    pub kind: FileType,
    pub perm: u16,
    pub rdev: u64,
    pub body: Body,
}

impl New {
    pub fn file(perm: u16) -> New {
        New { kind: FileType::Regular, perm, rdev: 0, body: Body::File(Default::default()) }
    }
}

pub(super) fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

impl State {
    /// The caller may search this directory.
    pub(super) fn may_search(&self, cred: &Cred, dir: Ino) -> Result<()> {
        let node = self.node(dir)?;
        node.dir()?;
        rules::may(cred, &node.attr, Access::EXEC)
    }

    /// The entry of a directory that may be searched, for calls that make, remove or rename it.
    pub(super) fn entry(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>> {
        if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
            return Err(Error::Invalid("name is empty or holds '/' or NUL"));
        }
        if is_dots(name) {
            return Err(Error::Exists);
        }
        let node = self.node(dir)?;
        if node.attr.nlink == 0 {
            return Err(Error::NotFound);
        }
        if name.len() > format::limits::NAME_MAX {
            return Err(Error::NameTooLong);
        }
        Ok(node.dir()?.get(name))
    }

    pub(super) fn lookup(&self, cred: &Cred, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.may_search(cred, dir)?;
        let ino = match name {
            b"." => dir,
            b".." if self.node(dir)?.attr.nlink == 0 => return Err(Error::NotFound),
            b".." => self.node(dir)?.dir()?.parent,
            name => self.entry(dir, name)?.ok_or(Error::NotFound)?,
        };
        Ok(self.node(ino)?.attr())
    }

    /// Checks that `name` can be made in `dir`.
    fn may_make(&self, cred: &Cred, dir: Ino, name: &[u8]) -> Result<()> {
        self.may_search(cred, dir)?;
        if self.entry(dir, name)?.is_some() {
            return Err(Error::Exists);
        }
        rules::may(cred, &self.node(dir)?.attr, WRITE_DIR)
    }

    /// Adds an inode that has no name yet.
    pub(super) fn make_node(&mut self, cred: &Cred, dir: Ino, new: New, now: Time) -> Result<Ino> {
        let New { kind, perm, rdev, body } = new;
        let (uid, gid, perm) = rules::identity(cred, &self.node(dir)?.attr, kind, perm);
        let attr = Attr {
            ino: dir,
            generation: 0,
            kind,
            perm,
            nlink: 0,
            uid,
            gid,
            rdev,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            xattrs: false,
        };
        Ok(self.add_node(attr, body))
    }

    /// Gives an inode a name; link counts and times follow.
    pub(super) fn add_name(&mut self, dir: Ino, name: &[u8], ino: Ino, now: Time) -> Result<()> {
        let parent = self.node_mut(dir)?;
        parent.dir_mut()?.insert(name, ino);
        parent.changed(now);
        let node = self.node_mut(ino)?;
        node.attr.nlink += 1;
        node.attr.ctime = now;
        if let Body::Directory(inner) = &mut node.body {
            inner.parent = dir;
            node.attr.nlink += 1;
            self.node_mut(dir)?.attr.nlink += 1;
        }
        Ok(())
    }

    /// Takes a name from an inode. A directory loses its "." as well and has no links left.
    fn drop_name(&mut self, dir: Ino, name: &[u8], ino: Ino, now: Time) -> Result<()> {
        let parent = self.node_mut(dir)?;
        parent.dir_mut()?.remove(name);
        parent.changed(now);
        let node = self.node_mut(ino)?;
        node.attr.nlink -= 1;
        node.attr.ctime = now;
        if node.is_dir() {
            node.attr.nlink -= 1;
            self.node_mut(dir)?.attr.nlink -= 1;
        }
        Ok(())
    }

    pub(super) fn make(&mut self, cred: &Cred, dir: Ino, name: &[u8], new: New, now: Time) -> Result<Attr> {
        self.may_make(cred, dir, name)?;
        let device = matches!(new.kind, FileType::CharDevice | FileType::BlockDevice);
        if device && !cred.privileged() {
            return Err(Error::NotPermitted);
        }
        let rdev = if device { new.rdev } else { 0 };
        let ino = self.make_node(cred, dir, New { rdev, ..new }, now)?;
        self.add_name(dir, name, ino, now)?;
        Ok(self.node(ino)?.attr())
    }

    pub(super) fn link(&mut self, cred: &Cred, ino: Ino, dir: Ino, name: &[u8], now: Time) -> Result<Attr> {
        self.node(ino)?;
        self.may_make(cred, dir, name)?;
        let node = self.node_mut(ino)?;
        if node.is_dir() {
            return Err(Error::NotPermitted);
        }
        if node.attr.nlink == 0 && !node.linkable {
            return Err(Error::NotFound);
        }
        if node.attr.nlink >= format::limits::LINK_MAX {
            return Err(Error::TooManyLinks);
        }
        node.linkable = false;
        self.add_name(dir, name, ino, now)?;
        Ok(self.node(ino)?.attr())
    }

    /// Removes a name: of a directory when `directory`, else of anything else.
    pub(super) fn remove(
        &mut self,
        cred: &Cred,
        dir: Ino,
        name: &[u8],
        directory: bool,
        now: Time,
    ) -> Result<()> {
        self.may_search(cred, dir)?;
        match (name, directory) {
            (b"." | b"..", false) => return Err(Error::IsDirectory),
            (b".", true) => return Err(Error::Invalid("the directory itself cannot be removed from it")),
            (b"..", true) => return Err(Error::NotEmpty),
            _ => {}
        }
        let ino = self.entry(dir, name)?.ok_or(Error::NotFound)?;
        self.may_take(cred, dir, ino, directory)?;
        self.must_be_empty(ino)?;
        self.drop_name(dir, name, ino, now)?;
        self.drop_if_unused(ino);
        Ok(())
    }

    /// The caller may take this entry out of `dir`, and it is a directory just when `directory`.
    fn may_take(&self, cred: &Cred, dir: Ino, ino: Ino, directory: bool) -> Result<()> {
        let node = self.node(ino)?;
        rules::may_remove(cred, &self.node(dir)?.attr, &node.attr)?;
        match (directory, node.is_dir()) {
            (true, false) => Err(Error::NotDirectory),
            (false, true) => Err(Error::IsDirectory),
            _ => Ok(()),
        }
    }

    fn must_be_empty(&self, ino: Ino) -> Result<()> {
        match &self.node(ino)?.body {
            Body::Directory(dir) if !dir.entries.is_empty() => Err(Error::NotEmpty),
            _ => Ok(()),
        }
    }

    /// Whether `ino` is `below` or one of the directories above it.
    fn is_above(&self, ino: Ino, mut below: Ino) -> Result<bool> {
        loop {
            if ino == below {
                return Ok(true);
            }
            let parent = self.node(below)?.dir()?.parent;
            if parent == below {
                return Ok(false);
            }
            below = parent;
        }
    }

    #[allow(clippy::too_many_arguments, reason = "those of renameat2(2)")]
    pub(super) fn rename(
        &mut self,
        cred: &Cred,
        from: Ino,
        from_name: &[u8],
        to: Ino,
        to_name: &[u8],
        flags: RenameFlags,
        now: Time,
    ) -> Result<()> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if flags.contains(RenameFlags::NOREPLACE) && exchange {
            return Err(Error::Invalid("both to replace nothing and to exchange"));
        }
        self.node(to)?;
        self.may_search(cred, from)?;
        self.may_search(cred, to)?;
        if is_dots(from_name) || is_dots(to_name) {
            let exists = flags.contains(RenameFlags::NOREPLACE) && !is_dots(from_name);
            return Err(if exists { Error::Exists } else { Error::Busy("'.' and '..' stay".into()) });
        }
        let moved = self.entry(from, from_name)?.ok_or(Error::NotFound)?;
        let replaced = self.entry(to, to_name)?;
        if replaced.is_some() && flags.contains(RenameFlags::NOREPLACE) {
            return Err(Error::Exists);
        }
        if replaced.is_none() && exchange {
            return Err(Error::NotFound);
        }
        let moves_dir = self.node(moved)?.is_dir();
        if moves_dir && self.is_above(moved, to)? {
            return Err(Error::IntoItself);
        }
        if let Some(replaced) = replaced
            && self.node(replaced)?.is_dir()
            && self.is_above(replaced, from)?
        {
            return Err(if exchange { Error::IntoItself } else { Error::NotEmpty });
        }
        if replaced == Some(moved) {
            return Ok(());
        }
        self.may_take(cred, from, moved, moves_dir)?;
        let gets_dir = match replaced {
            None => {
                rules::may(cred, &self.node(to)?.attr, WRITE_DIR)?;
                false
            }
            Some(replaced) => {
                let gets_dir = self.node(replaced)?.is_dir();
                self.may_take(cred, to, replaced, if exchange { gets_dir } else { moves_dir })?;
                gets_dir
            }
        };
        // A directory that changes its parent has its ".." written.
        if from != to {
            if moves_dir {
                rules::may(cred, &self.node(moved)?.attr, Access::WRITE)?;
            }
            if let Some(replaced) = replaced
                && exchange
                && gets_dir
            {
                rules::may(cred, &self.node(replaced)?.attr, Access::WRITE)?;
            }
        }
        if let Some(replaced) = replaced {
            if !exchange {
                self.must_be_empty(replaced)?;
            }
            self.drop_name(to, to_name, replaced, now)?;
        }
        self.drop_name(from, from_name, moved, now)?;
        self.add_name(to, to_name, moved, now)?;
        match replaced {
            Some(replaced) if exchange => self.add_name(from, from_name, replaced, now)?,
            Some(replaced) => self.drop_if_unused(replaced),
            None => {}
        }
        Ok(())
    }
}

impl Model {
    /// Runs `change` on the state at the present time.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut State, Time) -> T) -> T {
        let now = (self.clock)();
        change(&mut self.state.lock(), now)
    }
}

/// The type and permission bits of a mode given to mknod.
pub(super) fn special_kind(mode: u32) -> Result<(FileType, Body)> {
    match FileType::from_mode(mode) {
        Some(FileType::Regular) => Ok((FileType::Regular, Body::File(Default::default()))),
        Some(FileType::Directory) => Err(Error::NotPermitted),
        Some(FileType::Symlink) | None => Err(Error::Invalid("type of a node")),
        Some(kind) => Ok((kind, Body::Special)),
    }
}
