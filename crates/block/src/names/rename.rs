//! Moving names: rename, within a directory or to another, over an existing name, or exchanging two.
//!
//! What moves is the (parent, name) of an inode (or additional-name inode). Everything that one rename changes joins one epoch,
//! so after a power failure it has happened or not. All checks come before the first change, in the order in which Linux makes
//! them; a directory never comes to lie below itself. Tested in tests/differential.rs and tests/power.rs.

use super::{ROOT, is_dots};
use crate::core::{Core, Res};
use crate::inode::Slot;
use format::Ino;
use format::limits::LINK_MAX;
use fs::{Access, Cred, Error, RenameFlags, perm};

impl Core {
    /// Whether `dir` is `of` or lies below it.
    fn is_below(&self, dir: Slot, of: Slot) -> bool {
        let mut at = dir;
        loop {
            if at == of {
                return true;
            }
            if at == ROOT || at == 0 {
                return false;
            }
            at = self.slab.get(at).parent;
        }
    }

    pub fn rename(
        &mut self,
        cred: &Cred,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Res<()> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let noreplace = flags.contains(RenameFlags::NOREPLACE);
        if exchange && noreplace {
            return Err(Error::Invalid("NOREPLACE and EXCHANGE exclude each other").into());
        }
        let from_dir = self.directory(parent)?;
        self.check(cred, from_dir, Access::EXEC)?;
        let to_dir = self.directory(new_parent)?;
        self.check(cred, to_dir, Access::EXEC)?;
        if noreplace && !is_dots(name) && is_dots(new_name) {
            return Err(Error::Exists.into());
        }
        if is_dots(name) || is_dots(new_name) {
            return Err(Error::Busy("'.' and '..' cannot be moved".into()).into());
        }
        self.check_name_in(from_dir, name)?;
        let from = self.index.find(&self.slab, from_dir, name).ok_or(Error::NotFound)?;
        self.check_name_in(to_dir, new_name)?;
        let to = self.index.find(&self.slab, to_dir, new_name);
        if noreplace && to.is_some() {
            return Err(Error::Exists.into());
        }
        if exchange && to.is_none() {
            return Err(Error::NotFound.into());
        }
        let source = self.target(from);
        let source_dir = self.slab.get(source).is_dir();
        if source_dir && self.is_below(to_dir, source) {
            return Err(Error::IntoItself.into());
        }
        if let Some(to) = to {
            let target = self.target(to);
            let target_dir = self.slab.get(target).is_dir();
            if target_dir && self.is_below(from_dir, target) {
                return Err(if exchange { Error::IntoItself } else { Error::NotEmpty }.into());
            }
            if target == source {
                return Ok(());
            }
        }
        self.check_rename(cred, (from_dir, source), (to_dir, to.map(|t| self.target(t))), exchange)?;
        self.admit()?;
        for slot in [from_dir, to_dir, source] {
            self.need_tail(slot)?;
        }
        match to {
            Some(to) if exchange => {
                self.need_tail(self.target(to))?;
                self.exchange(from, to);
            }
            Some(to) => {
                self.need_for_removal(to)?;
                let dir = self.slab.get(self.target(to)).is_dir();
                // A name that is replaced keeps its place, so that scans under way do not miss it.
                let place = self.slab.get(to).cookie;
                self.remove_name(to);
                self.slab.get_mut(to_dir).nlink -= dir as u32;
                self.move_name(from, to_dir, new_name, Some(place));
            }
            None => self.move_name(from, to_dir, new_name, None),
        }
        self.touch_dir(from_dir);
        self.touch_dir(to_dir);
        Ok(())
    }

    /// Permissions and types, in the order in which Linux checks them.
    fn check_rename(
        &self,
        cred: &Cred,
        (from_dir, source): (Slot, Slot),
        (to_dir, target): (Slot, Option<Slot>),
        exchange: bool,
    ) -> Result<(), Error> {
        let source_dir = self.slab.get(source).is_dir();
        if !cred.checked {
            perm::check_delete(cred, &self.attr(from_dir), &self.attr(source))?;
        }
        match target {
            None => {
                if self.slab.get(to_dir).nlink == 0 {
                    return Err(Error::NotFound);
                }
                self.check(cred, to_dir, Access::WRITE)?;
            }
            Some(target) => {
                if !cred.checked {
                    perm::check_delete(cred, &self.attr(to_dir), &self.attr(target))?;
                }
                let target_dir = self.slab.get(target).is_dir();
                if !exchange {
                    match (source_dir, target_dir) {
                        (true, false) => return Err(Error::NotDirectory),
                        (false, true) => return Err(Error::IsDirectory),
                        _ => {}
                    }
                }
                if exchange && target_dir && from_dir != to_dir {
                    self.check(cred, target, Access::WRITE)?;
                }
            }
        }
        if source_dir && from_dir != to_dir {
            // Its ".." changes.
            self.check(cred, source, Access::WRITE)?;
        }
        if let Some(target) = target.filter(|_| !exchange)
            && source_dir
            && !self.index.is_empty_dir(target)
        {
            return Err(Error::NotEmpty);
        }
        if from_dir != to_dir {
            let target_dir = target.is_some_and(|t| self.slab.get(t).is_dir());
            // The directory that holds one more afterwards.
            let grows = match (source_dir, target_dir) {
                (true, false) => Some(to_dir),
                (false, true) => Some(from_dir),
                _ => None,
            };
            if grows.is_some_and(|dir| self.slab.get(dir).nlink >= LINK_MAX) {
                return Err(Error::TooManyLinks);
            }
        }
        Ok(())
    }

    fn move_name(&mut self, entry: Slot, to_dir: Slot, name: &[u8], place: Option<u64>) {
        let source = self.target(entry);
        let from_dir = self.slab.get(entry).parent;
        self.edit(entry);
        self.index.remove(&self.slab, entry);
        self.enter(entry, to_dir, name, place);
        if self.slab.get(source).is_dir() && from_dir != to_dir {
            self.slab.get_mut(from_dir).nlink -= 1;
            self.slab.get_mut(to_dir).nlink += 1;
        }
        let now = self.now().into();
        self.edit(source).ctime = now;
    }

    fn exchange(&mut self, a: Slot, b: Slot) {
        let (dir_a, dir_b) = (self.slab.get(a).parent, self.slab.get(b).parent);
        let (name_a, name_b) = (self.slab.get(a).name.clone(), self.slab.get(b).name.clone());
        let (place_a, place_b) = (self.slab.get(a).cookie, self.slab.get(b).cookie);
        self.edit(a);
        self.edit(b);
        self.index.remove(&self.slab, a);
        self.index.remove(&self.slab, b);
        self.enter(a, dir_b, name_b.bytes(), Some(place_b));
        self.enter(b, dir_a, name_a.bytes(), Some(place_a));
        let (source_a, source_b) = (self.target(a), self.target(b));
        for (slot, from, to) in [(source_a, dir_a, dir_b), (source_b, dir_b, dir_a)] {
            if self.slab.get(slot).is_dir() && from != to {
                self.slab.get_mut(from).nlink -= 1;
                self.slab.get_mut(to).nlink += 1;
            }
        }
        let now = self.now().into();
        self.edit(source_a).ctime = now;
        self.edit(source_b).ctime = now;
    }
}
