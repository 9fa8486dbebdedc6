//! One inode of the model and what it holds.

use super::data::Data;
use fs::{Attr, Error, FileType, Ino, Result, Time};
use std::collections::BTreeMap;
use std::sync::Arc;

/// First offset given to an entry: 1 and 2 stand behind "." and "..".
pub const FIRST_OFFSET: u64 = 3;

#[derive(Clone)]
pub struct Node {
    /// Size and blocks here are not kept; [`Node::attr`] fills them in.
    pub attr: Attr,
    pub body: Body,
    pub xattrs: BTreeMap<Vec<u8>, Arc<[u8]>>,
    /// Made by tmpfile without EXCLUSIVE and never linked: link may give it its first name.
    pub linkable: bool,
}

#[derive(Clone)]
pub enum Body {
    File(Data),
    Directory(Directory),
    Symlink(Arc<[u8]>),
    Special,
}

/// Entries by offset (the order of readdir) and by name.
#[derive(Clone)]
pub struct Directory {
    pub parent: Ino,
    pub entries: BTreeMap<u64, (Arc<[u8]>, Ino)>,
    names: BTreeMap<Arc<[u8]>, u64>,
    next_offset: u64,
}

impl Body {
    pub fn directory(parent: Ino) -> Body {
        Body::Directory(Directory {
            parent,
            entries: BTreeMap::new(),
            names: BTreeMap::new(),
            next_offset: FIRST_OFFSET,
        })
    }
}

impl Directory {
    pub fn get(&self, name: &[u8]) -> Option<Ino> {
        self.names.get(name).map(|offset| self.entries[offset].1)
    }

    /// Adds an entry at the end; an older one of this name is replaced.
    pub fn insert(&mut self, name: &[u8], ino: Ino) {
        self.remove(name);
        let name: Arc<[u8]> = name.into();
        self.names.insert(name.clone(), self.next_offset);
        self.entries.insert(self.next_offset, (name, ino));
        self.next_offset += 1;
    }

    pub fn remove(&mut self, name: &[u8]) {
        if let Some(offset) = self.names.remove(name) {
            self.entries.remove(&offset);
        }
    }
}

/// What a program may do beyond its user's rights (capabilities(7)).
const CAPABILITY: &[u8] = b"security.capability";

impl Node {
    pub fn new(attr: Attr, body: Body) -> Node {
        Node { attr, body, xattrs: BTreeMap::new(), linkable: false }
    }

    /// Content or owner change: capabilities were given to what the file was.
    pub fn drop_capability(&mut self) {
        self.xattrs.remove(CAPABILITY);
    }

    /// Attributes with size and blocks.
    pub fn attr(&self) -> Attr {
        let (size, blocks) = match &self.body {
            Body::File(data) => (data.size(), data.pages() * (super::data::PAGE / 512)),
            Body::Symlink(target) => (target.len() as u64, 0),
            Body::Directory(_) | Body::Special => (0, 0),
        };
        Attr { size, blocks, xattrs: !self.xattrs.is_empty(), ..self.attr }
    }

    pub fn is_dir(&self) -> bool {
        self.attr.kind == FileType::Directory
    }

    pub fn dir(&self) -> Result<&Directory> {
        match &self.body {
            Body::Directory(dir) => Ok(dir),
            _ => Err(Error::NotDirectory),
        }
    }

    pub fn dir_mut(&mut self) -> Result<&mut Directory> {
        match &mut self.body {
            Body::Directory(dir) => Ok(dir),
            _ => Err(Error::NotDirectory),
        }
    }

    pub fn data(&self) -> Result<&Data> {
        match &self.body {
            Body::File(data) => Ok(data),
            _ => Err(Error::BadHandle),
        }
    }

    pub fn data_mut(&mut self) -> Result<&mut Data> {
        match &mut self.body {
            Body::File(data) => Ok(data),
            _ => Err(Error::BadHandle),
        }
    }

    /// The data, or the entries, changed.
    pub fn changed(&mut self, now: Time) {
        (self.attr.mtime, self.attr.ctime) = (now, now);
    }

    /// The inode was read.
    pub fn was_read(&mut self, now: Time) {
        if super::rules::moves_atime(&self.attr, now) {
            self.attr.atime = now;
        }
    }
}
