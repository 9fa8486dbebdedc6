//! Attributes and extended attributes of the model.

use super::State;
use super::node::Body;
use super::rules;
use format::limits::{XATTR_TOTAL_MAX, XATTR_VALUE_MAX};
use fs::{Attr, Cred, Error, Ino, OpenFlags, Result, SetAttr, Time, XattrFlags};

impl State {
    pub(super) fn setattr(&mut self, cred: &Cred, ino: Ino, set: SetAttr, now: Time) -> Result<Attr> {
        if let Some(handle) = set.handle {
            let open = self.handle(handle)?;
            let writes = open.flags.contains(OpenFlags::WRITE) && !open.directory;
            if open.ino != ino || set.size.is_some() && !writes {
                return Err(Error::BadHandle);
            }
        }
        let node = self.node_mut(ino)?;
        rules::may_set(cred, &node.attr, &set, set.handle.is_some())?;
        rules::set(cred, &mut node.attr, &set, now);
        if let (Some(size), Body::File(data)) = (set.size, &mut node.body) {
            data.set_size(size);
        }
        if matches!(node.body, Body::File(_))
            && (set.size.is_some() || set.uid.is_some() || set.gid.is_some())
        {
            node.drop_capability();
        }
        Ok(node.attr())
    }

    pub(super) fn getxattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let node = self.node(ino)?;
        rules::may_xattr(cred, &node.attr, name, false)?;
        node.xattrs.get(name).map(|value| value.to_vec()).ok_or(Error::NoAttribute)
    }

    pub(super) fn listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let names = self.node(ino)?.xattrs.keys();
        Ok(names.filter(|name| rules::lists_xattr(cred, name)).cloned().collect())
    }

    pub(super) fn setxattr(
        &mut self,
        cred: &Cred,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
        now: Time,
    ) -> Result<()> {
        let node = self.node_mut(ino)?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(Error::AttributeTooLarge);
        }
        rules::may_xattr(cred, &node.attr, name, true)?;
        let exists = node.xattrs.contains_key(name);
        if exists && flags.contains(XattrFlags::CREATE) {
            return Err(Error::Exists);
        }
        if !exists && flags.contains(XattrFlags::REPLACE) {
            return Err(Error::NoAttribute);
        }
        let mut new = node.xattrs.clone();
        new.insert(name.to_vec(), value.into());
        let row: Vec<format::xattr::Xattr> =
            new.iter().map(|(name, value)| (name[..].into(), value[..].into())).collect();
        if format::xattr::encoded_len(&row) > XATTR_TOTAL_MAX {
            return Err(Error::AttributeTooLarge);
        }
        node.xattrs = new;
        node.attr.ctime = now;
        Ok(())
    }

    pub(super) fn removexattr(&mut self, cred: &Cred, ino: Ino, name: &[u8], now: Time) -> Result<()> {
        let node = self.node_mut(ino)?;
        rules::may_xattr(cred, &node.attr, name, true)?;
        node.xattrs.remove(name).ok_or(Error::NoAttribute)?;
        node.attr.ctime = now;
        Ok(())
    }
}
