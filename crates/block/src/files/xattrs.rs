//! Extended attributes of inodes.
//!
//! They are a part of the inode's tail, changed as a whole set. A set that does not fit into the inode stands in blocks of its own:
//! their place is taken when the set is changed, so that the commit does not fail for lack of space, and written at the commit
//! (see `tails`). Tested in tests/differential.rs.

use crate::core::{Core, Res};
use crate::inode::{HAS_XATTRS, Slot};
use format::Ino;
use format::limits::{XATTR_TOTAL_MAX, XATTR_VALUE_MAX};
use fs::{Cred, Error, XattrFlags, perm};

/// What a program may do beyond its user's rights (capabilities(7)).
const CAPABILITY: &[u8] = b"security.capability";

impl Core {
    /// The file's content or owner is about to change: capabilities were given to what it was, so they go, as with Linux, whoever does that.
    pub fn drop_capability(&mut self, slot: Slot, ticket: &mut Option<u64>) -> Res<()> {
        self.need_tail(slot)?;
        match self.slab.get(slot).tail.as_ref() {
            Some(tail) if tail.xattrs.iter().any(|(n, _)| **n == *CAPABILITY) => {}
            _ => return Ok(()),
        }
        self.admit()?;
        self.change_xattrs(slot, 0, ticket, |xattrs| xattrs.retain(|(n, _)| **n != *CAPABILITY))
    }

    pub fn getxattr(&mut self, cred: &Cred, ino: Ino, name: &[u8]) -> Res<Vec<u8>> {
        let (slot, _) = self.inode(ino)?;
        perm::check_xattr(cred, &self.attr(slot), name, false)?;
        self.need_tail(slot)?;
        let tail = self.slab.get(slot).tail.as_ref().ok_or(Error::NoAttribute)?;
        let found = tail.xattrs.iter().find(|(n, _)| **n == *name).ok_or(Error::NoAttribute)?;
        Ok(found.1.to_vec())
    }

    pub fn listxattr(&mut self, cred: &Cred, ino: Ino) -> Res<Vec<Vec<u8>>> {
        let (slot, _) = self.inode(ino)?;
        self.need_tail(slot)?;
        let tail = self.slab.get(slot).tail.as_ref();
        let names = tail.map_or(&[][..], |t| &t.xattrs).iter().map(|(n, _)| n.to_vec());
        Ok(names.filter(|n| cred.privileged() || !n.starts_with(b"trusted.")).collect())
    }

    pub fn setxattr(
        &mut self,
        cred: &Cred,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
        ticket: &mut Option<u64>,
    ) -> Res<()> {
        let (slot, _) = self.inode(ino)?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(Error::AttributeTooLarge.into());
        }
        perm::check_xattr(cred, &self.attr(slot), name, true)?;
        self.admit()?;
        self.need_tail(slot)?;
        let xattrs = self.slab.get(slot).tail.as_ref().map_or(&[][..], |t| &t.xattrs);
        let exists = xattrs.iter().find(|(n, _)| **n == *name).map(|(n, v)| 8 + n.len() + v.len());
        if exists.is_some() && flags.contains(XattrFlags::CREATE) {
            return Err(Error::Exists.into());
        }
        if exists.is_none() && flags.contains(XattrFlags::REPLACE) {
            return Err(Error::NoAttribute.into());
        }
        let total = format::xattr::encoded_len(xattrs) + 8 + name.len() + value.len() - exists.unwrap_or(0);
        // With the header that stands in front of them outside of the inode.
        if total + size_of::<format::xattr::XattrHeader>() > XATTR_TOTAL_MAX {
            return Err(Error::AttributeTooLarge.into());
        }
        self.change_xattrs(slot, self.keep(), ticket, |xattrs| {
            xattrs.retain(|(n, _)| **n != *name);
            xattrs.push((name.into(), value.into()));
        })
    }

    pub fn removexattr(&mut self, cred: &Cred, ino: Ino, name: &[u8], ticket: &mut Option<u64>) -> Res<()> {
        let (slot, _) = self.inode(ino)?;
        perm::check_xattr(cred, &self.attr(slot), name, true)?;
        self.admit()?;
        self.need_tail(slot)?;
        let tail = self.slab.get(slot).tail.as_ref();
        if !tail.is_some_and(|t| t.xattrs.iter().any(|(n, _)| **n == *name)) {
            return Err(Error::NoAttribute.into());
        }
        // What makes the set smaller may use the last blocks.
        self.change_xattrs(slot, 0, ticket, |xattrs| xattrs.retain(|(n, _)| **n != *name))
    }

    fn change_xattrs(
        &mut self,
        slot: Slot,
        keep: u64,
        ticket: &mut Option<u64>,
        change: impl FnOnce(&mut Vec<format::xattr::Xattr>),
    ) -> Res<()> {
        let mut xattrs = self.slab.get(slot).tail.as_ref().map_or_else(Vec::new, |t| t.xattrs.clone());
        change(&mut xattrs);
        self.edit(slot);
        self.take_place_for_xattrs(slot, &xattrs, keep, ticket)?;
        let now = self.now().into();
        let inode = self.edit(slot);
        inode.ctime = now;
        inode.flags = if xattrs.is_empty() { inode.flags & !HAS_XATTRS } else { inode.flags | HAS_XATTRS };
        let tail = self.tail_mut(slot);
        tail.xattrs = xattrs;
        tail.xattrs_changed = true;
        let len = format::xattr::encoded_len(&tail.xattrs);
        self.running.bytes += len.min(format::limits::XATTR_INLINE_MAX);
        Ok(())
    }
}
