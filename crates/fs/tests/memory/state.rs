//! The inodes and open files of [`super::Memory`].

use fs::*;
use std::collections::{BTreeMap, HashMap};

pub(super) struct Node {
    pub(super) attr: Attr,
    pub(super) data: Vec<u8>,
    pub(super) names: BTreeMap<Vec<u8>, Ino>,
    /// Offsets of readdir: entries in the order in which they were made.
    pub(super) order: BTreeMap<u64, Vec<u8>>,
    pub(super) parent: Ino,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) opens: u32,
}

#[derive(Clone, Copy)]
pub(super) struct Open {
    pub(super) ino: Ino,
    pub(super) flags: OpenFlags,
    pub(super) root: bool,
}

pub(super) struct State {
    pub(super) nodes: HashMap<Ino, Node>,
    pub(super) opens: HashMap<Handle, Open>,
    pub(super) next: u64,
}

impl State {
    pub(super) fn node(&mut self, ino: Ino) -> Result<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(Error::Stale)
    }

    pub(super) fn dir(&mut self, ino: Ino) -> Result<&mut Node> {
        let node = self.node(ino)?;
        if node.attr.kind == FileType::Directory { Ok(node) } else { Err(Error::NotDirectory) }
    }

    pub(super) fn lookup(&mut self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Attr> {
        let dir = self.dir(parent)?;
        perm::check(cred, &dir.attr, Access::EXEC)?;
        if name.contains(&0) {
            return Err(Error::Invalid("NUL"));
        }
        let ino = match name {
            b"." => parent,
            b".." => dir.parent,
            _ if name.len() > 255 => return Err(Error::NameTooLong),
            _ => *dir.names.get(name).ok_or(Error::NotFound)?,
        };
        Ok(self.node(ino)?.attr)
    }

    pub(super) fn enter(&mut self, dir: Ino, name: &[u8], ino: Ino) {
        let offset = self.next;
        self.next += 1;
        let dir = self.nodes.get_mut(&dir).unwrap();
        dir.names.insert(name.to_vec(), ino);
        dir.order.insert(offset, name.to_vec());
    }

    pub(super) fn leave(&mut self, dir: Ino, name: &[u8]) {
        let dir = self.nodes.get_mut(&dir).unwrap();
        dir.names.remove(name);
        dir.order.retain(|_, n| n != name);
    }

    /// Takes a name from an inode, which goes away when nothing holds it.
    pub(super) fn drop_name(&mut self, ino: Ino) {
        let node = self.nodes.get_mut(&ino).unwrap();
        node.attr.nlink = if node.attr.kind == FileType::Directory { 0 } else { node.attr.nlink - 1 };
        self.reap(ino);
    }

    pub(super) fn reap(&mut self, ino: Ino) {
        if self.nodes.get(&ino).is_some_and(|n| n.attr.nlink == 0 && n.opens == 0) {
            self.nodes.remove(&ino);
        }
    }

    pub(super) fn make(
        &mut self,
        cred: &Cred,
        dir: Ino,
        kind: FileType,
        perm: u16,
        rdev: u64,
    ) -> Result<Ino> {
        let ino = Ino(self.next);
        self.next += 1;
        let (uid, gid, perm) = perm::new_inode(cred, &self.dir(dir)?.attr, kind, perm);
        let nlink = if kind == FileType::Directory { 2 } else { 1 };
        let attr = Attr { ino, kind, perm, nlink, uid, gid, rdev, ..new_attr() };
        self.nodes.insert(ino, Node { attr, parent: dir, ..new_node() });
        Ok(ino)
    }

    pub(super) fn make_named(
        &mut self,
        cred: &Cred,
        dir: Ino,
        name: &[u8],
        mode: u32,
        rdev: u64,
    ) -> Result<Attr> {
        match self.lookup(cred, dir, name) {
            Err(Error::NotFound) => {}
            Ok(_) => return Err(Error::Exists),
            Err(e) => return Err(e),
        }
        perm::check(cred, &self.dir(dir)?.attr, Access::WRITE)?;
        let kind = FileType::from_mode(mode).ok_or(Error::Invalid("type"))?;
        let ino = self.make(cred, dir, kind, mode as u16 & 0o7777, rdev)?;
        self.enter(dir, name, ino);
        Ok(self.node(ino)?.attr)
    }

    pub(super) fn open(&mut self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Handle {
        let handle = Handle(self.next);
        self.next += 1;
        let node = self.nodes.get_mut(&ino).unwrap();
        node.opens += 1;
        if flags.contains(OpenFlags::TRUNCATE) {
            node.data.clear();
            node.attr.size = 0;
        }
        self.opens.insert(handle, Open { ino, flags, root: cred.privileged() });
        handle
    }

    pub(super) fn handle(&mut self, handle: Handle, need: OpenFlags) -> Result<(Open, &mut Node)> {
        let open = *self.opens.get(&handle).ok_or(Error::BadHandle)?;
        if !open.flags.contains(need) {
            return Err(Error::BadHandle);
        }
        Ok((open, self.nodes.get_mut(&open.ino).unwrap()))
    }

    pub(super) fn removable(&mut self, cred: &Cred, dir: Ino, name: &[u8]) -> Result<Attr> {
        let victim = self.lookup(cred, dir, name)?;
        perm::check_delete(cred, &self.dir(dir)?.attr, &victim)?;
        Ok(victim)
    }
}

pub(super) fn new_attr() -> Attr {
    let now = Time::now();
    let (ino, kind) = (Ino::ROOT, FileType::Directory);
    Attr {
        ino,
        generation: 0,
        kind,
        perm: 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        xattrs: true,
    }
}

pub(super) fn new_node() -> Node {
    Node {
        attr: new_attr(),
        data: Vec::new(),
        names: BTreeMap::new(),
        order: BTreeMap::new(),
        parent: Ino::ROOT,
        xattrs: BTreeMap::new(),
        opens: 0,
    }
}
