//! The tree in memory: inodes by number, and names by directory.
//!
//! Numbers are given in order and never used again; an inode keeps its number for as long as it is known. Files that nobody has open are forgotten
//! when there are too many, the longest unasked first; directories stay while something below them is known.
//! One lock covers all of it, held for map accesses only. Order of locks: the tree, then the state of a file.

use crate::attrs::Defaults;
use crate::file::FileState;
use crate::inode::{Directory, Inode};
use crate::names;
use fs::{Attr, Error, Ino, Result, Time};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// See the module.
#[derive(Debug)]
pub struct Tree {
    inodes: HashMap<Ino, Inode>,
    last: u64,
    most: usize,
    root: String,
    defaults: Defaults,
    /// What a listing tells of a file is enough to know it.
    listed: bool,
}

impl Tree {
    /// With nothing but a root, whose keys begin with `root`. `listed`: what a listing tells of a file is enough to know its name.
    pub fn new(root: String, defaults: Defaults, most: usize, listed: bool) -> Tree {
        let inode = Inode {
            parent: Ino::ROOT,
            name: "".into(),
            about: None,
            etag: None,
            size: 0,
            modified: Time::now(),
            told: None,
            changed: None,
            checked: None,
            directory: Some(Box::default()),
            file: None,
            opens: 0,
            linked: true,
            moving: false,
        };
        Tree { inodes: HashMap::from([(Ino::ROOT, inode)]), last: Ino::ROOT.0, most, root, defaults, listed }
    }

    /// The inode. `Stale`.
    pub fn get(&self, ino: Ino) -> Result<&Inode> {
        self.inodes.get(&ino).ok_or(Error::Stale)
    }

    /// The inode. `Stale`.
    pub fn get_mut(&mut self, ino: Ino) -> Result<&mut Inode> {
        self.inodes.get_mut(&ino).ok_or(Error::Stale)
    }

    /// Number of inodes.
    pub fn len(&self) -> usize {
        self.inodes.len()
    }

    /// Attributes.
    pub fn attr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.get(ino)?.attr(ino, &self.defaults))
    }

    /// The directory. `Stale`, `NotDirectory`.
    pub fn directory(&self, ino: Ino) -> Result<&Directory> {
        self.get(ino)?.directory.as_deref().ok_or(Error::NotDirectory)
    }

    /// The directory. `Stale`, `NotDirectory`.
    pub fn directory_mut(&mut self, ino: Ino) -> Result<&mut Directory> {
        self.get_mut(ino)?.directory.as_deref_mut().ok_or(Error::NotDirectory)
    }

    /// The key of an inode's object; of a directory with '/' at the end. Empty for the root of a bucket. `Stale`.
    pub fn key(&self, ino: Ino) -> Result<String> {
        let mut parts = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT {
            let inode = self.get(at)?;
            parts.push(&*inode.name);
            at = inode.parent;
        }
        let mut key = self.root.clone();
        while let Some(part) = parts.pop() {
            key.push_str(part);
            if !parts.is_empty() {
                key.push('/');
            }
        }
        if ino != Ino::ROOT && self.get(ino)?.directory.is_some() {
            key.push('/');
        }
        Ok(key)
    }

    /// The key that `name` in a directory has, or would have. `Stale`, `NotDirectory`, `NameTooLong`.
    pub fn child_key(&self, dir: Ino, name: &str, directory: bool) -> Result<String> {
        self.directory(dir)?;
        names::key(&self.key(dir)?, name, directory)
    }

    /// What a name is known to lead to.
    pub fn child(&self, dir: Ino, name: &str) -> Option<Ino> {
        self.directory(dir).ok()?.children.get(name).copied()
    }

    /// Whether `ino` is `top` or below it.
    pub fn is_within(&self, mut ino: Ino, top: Ino) -> bool {
        loop {
            if ino == top {
                return true;
            }
            match self.inodes.get(&ino) {
                Some(inode) if ino != Ino::ROOT && inode.linked => ino = inode.parent,
                _ => return false,
            }
        }
    }

    /// The inodes below `top`, and itself.
    pub fn within(&self, top: Ino) -> Vec<Ino> {
        let mut found = vec![top];
        let mut at = 0;
        while let Some(&ino) = found.get(at) {
            if let Ok(dir) = self.directory(ino) {
                found.extend(dir.children.values());
            }
            at += 1;
        }
        found
    }

    /// Puts a new inode where its parent and name say, and returns its number. Nothing has the name.
    pub fn add(&mut self, inode: Inode) -> Result<Ino> {
        self.directory(inode.parent)?;
        self.make_room();
        self.last += 1;
        let ino = Ino(self.last);
        let dir = self.directory_mut(inode.parent)?;
        dir.absent.remove(&inode.name);
        dir.children.insert(inode.name.clone(), ino);
        self.inodes.insert(ino, inode);
        Ok(ino)
    }

    /// Takes a name away that was removed here. What it led to is forgotten, with all below it, unless it is open: then what is written to it is nobody's.
    pub fn unlink(&mut self, dir: Ino, name: &str) {
        self.cut(dir, name, |state| state.gone = true);
    }

    /// Takes a name away that somebody else has removed: who has a file open there or below is told (`Stale`). False: there are changes that are only here,
    /// or we move it ourselves, so it stays.
    pub fn lose(&mut self, dir: Ino, name: &str) -> bool {
        if let Some(&ino) = self.directory(dir).ok().and_then(|directory| directory.children.get(name))
            && (self.is_moving(ino) || self.is_changed(ino))
        {
            return false;
        }
        self.cut(dir, name, |state| {
            // Also where it is unchanged: a write may have come in between.
            state.lost = Some(Error::Stale);
            state.replaced += 1;
        });
        true
    }

    /// Whether an inode, or a directory that it is in, is being moved.
    fn is_moving(&self, mut ino: Ino) -> bool {
        while let Ok(inode) = self.get(ino) {
            if inode.moving || ino == Ino::ROOT {
                return inode.moving;
            }
            ino = inode.parent;
        }
        false
    }

    /// Whether an inode, or anything below it, was made or changed here and is not in the store yet, or is being moved.
    pub fn is_changed(&self, top: Ino) -> bool {
        let changed = |inode: &Inode| inode.checked.is_none() || inode.moving || inode.is_dirty();
        let changed = |ino| self.get(ino).is_ok_and(changed);
        self.within(top).into_iter().any(changed)
    }

    fn cut(&mut self, dir: Ino, name: &str, end: impl Fn(&mut FileState)) {
        let Ok(directory) = self.directory_mut(dir) else { return };
        let Some(ino) = directory.children.remove(name) else { return };
        let mut below = self.within(ino);
        while let Some(ino) = below.pop() {
            if let Some(inode) = self.inodes.get_mut(&ino) {
                inode.linked = false;
                if let Some(dir) = &mut inode.directory {
                    dir.children.clear();
                }
                if let Some(file) = &inode.file {
                    end(&mut file.state.lock());
                }
            }
            self.drop_unused(ino);
        }
    }

    /// Forgets an inode that has no name and is not open.
    pub fn drop_unused(&mut self, ino: Ino) {
        if self.inodes.get(&ino).is_some_and(|inode| !inode.linked && inode.opens == 0) {
            self.inodes.remove(&ino);
        }
    }

    /// Notes that a name leads nowhere.
    pub fn note_absent(&mut self, dir: Ino, name: &str) {
        if let Ok(dir) = self.directory_mut(dir) {
            dir.note_absent(name.into());
            dir.misses += 1;
        }
    }

    /// Moves an inode to another name; what was there is unlinked.
    pub fn rename(&mut self, ino: Ino, dir: Ino, name: &str) -> Result<()> {
        let (old_dir, old_name) = {
            let inode = self.get(ino)?;
            (inode.parent, inode.name.clone())
        };
        self.unlink(dir, name);
        let from = self.directory_mut(old_dir)?;
        if from.children.get(&old_name) == Some(&ino) {
            from.children.remove(&old_name);
            from.note_absent(old_name);
        }
        from.version += 1;
        let to = self.directory_mut(dir)?;
        to.absent.remove(name);
        to.children.insert(name.into(), ino);
        to.version += 1;
        let inode = self.get_mut(ino)?;
        (inode.parent, inode.name, inode.linked) = (dir, name.into(), true);
        Ok(())
    }

    /// What is known of a name without asking: an inode, or that there is none.
    pub fn known(&self, dir: Ino, name: &str, expiry: Duration) -> Result<Option<Option<Ino>>> {
        let directory = self.directory(dir)?;
        let current = |at: Instant| at.elapsed() < expiry;
        if let Some(&ino) = directory.children.get(name) {
            let inode = self.get(ino)?;
            let here = inode.checked.is_none() || inode.is_dirty();
            let told = inode.about.is_some() || self.listed;
            let known = here || (told && inode.checked.is_some_and(current));
            return Ok(known.then_some(Some(ino)));
        }
        let absent = directory.absent.get(name).is_some_and(|&at| current(at));
        Ok((absent || directory.complete.is_some_and(current)).then_some(None))
    }

    /// Forgets files that nobody uses when there are as many as there may be.
    fn make_room(&mut self) {
        if self.inodes.len() < self.most {
            return;
        }
        let idle = |inode: &Inode| {
            inode.file.is_none()
                && inode.opens == 0
                && inode.directory.as_ref().is_none_or(|dir| dir.children.is_empty())
        };
        let mut found: Vec<(Instant, Ino)> = self
            .inodes
            .iter()
            .filter(|&(&ino, inode)| ino != Ino::ROOT && idle(inode))
            .filter_map(|(&ino, inode)| Some((inode.checked?, ino)))
            .collect();
        let n = (self.most / 4).min(found.len());
        if n < found.len() {
            found.select_nth_unstable(n);
        }
        for &(_, ino) in &found[..n] {
            let Some(inode) = self.inodes.remove(&ino) else { continue };
            if let Ok(dir) = self.directory_mut(inode.parent) {
                dir.children.remove(&inode.name);
                (dir.complete, dir.forgot) = (None, Some(Instant::now()));
            }
        }
    }
}
