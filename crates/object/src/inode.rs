//! What is known of a file or directory.

use crate::attrs::{Attrs, Defaults};
use crate::file::File;
use crate::store::{Description, ETag, Metadata, Object, can_be_sent};
use fs::{Attr, FileType, Ino, Result, Time};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// What an object says about itself beside its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// What the file system understands.
    pub attrs: Attrs,
    /// All metadata as it was found, to be given back with changes.
    pub metadata: Metadata,
    /// Media type.
    pub content_type: Option<String>,
    /// Other headers that are given back.
    pub headers: Metadata,
}

impl About {
    /// As the object with this key says.
    pub fn of(key: &str, object: &Object, defaults: &Defaults) -> About {
        About {
            attrs: Attrs::of(key, object, defaults),
            metadata: object.metadata.clone(),
            content_type: object.content_type.clone(),
            headers: object.headers.clone(),
        }
    }

    /// Of a new object.
    pub fn new(attrs: Attrs) -> About {
        About { attrs, metadata: Metadata::new(), content_type: None, headers: Metadata::new() }
    }

    /// As it is sent to the store, without what of others' metadata cannot be sent. `AttributeTooLarge`.
    pub fn description(&self) -> Result<Description> {
        let mut metadata = self.metadata.clone();
        metadata.retain(|name, value| {
            let can = can_be_sent(name, value);
            if !can {
                tracing::warn!("metadata {name:?} of an object is not visible ASCII; it is dropped");
            }
            can
        });
        self.attrs.write(&mut metadata)?;
        let (content_type, headers) = (self.content_type.clone(), self.headers.clone());
        Ok(Description { content_type, metadata, headers })
    }

    /// Whether an object with other content can say this of itself: `AttributeTooLarge`, where others have left too little room for what is said of files.
    pub fn check(&self) -> Result<()> {
        let mut longest = self.clone();
        longest.attrs.mtime = Some(Time { nsec: 999_999_999, ..Time::now() });
        longest.description().map(drop)
    }
}

/// The names in a directory, as far as they are known.
#[derive(Debug, Default)]
pub struct Directory {
    /// Names that lead somewhere.
    pub children: HashMap<Box<str>, Ino>,
    /// Names that led nowhere, and when that was asked.
    pub absent: HashMap<Box<str>, Instant>,
    /// When some of what was known of names was forgotten last.
    pub forgot: Option<Instant>,
    /// When all names were known last.
    pub complete: Option<Instant>,
    /// Names that were asked for and not there, since all were asked for last.
    pub misses: u32,
    /// More names than a listing has on a page, and when that was seen.
    pub large: Option<Instant>,
    /// Counts the changes of names made here: what was asked before one of them is out of date.
    pub version: u64,
}

/// Names of a directory that are remembered to be absent.
const ABSENT_MAX: usize = 4096;

impl Directory {
    /// Notes that a name leads nowhere.
    pub fn note_absent(&mut self, name: Box<str>) {
        if self.absent.len() >= ABSENT_MAX {
            self.absent.clear();
            self.forgot = Some(Instant::now());
        }
        self.absent.insert(name, Instant::now());
    }
}

/// See the module. An inode is in the tree while it has a name or is open.
#[derive(Debug)]
pub struct Inode {
    /// The directory that it is in; the root's is itself.
    pub parent: Ino,
    /// Its name there.
    pub name: Box<str>,
    /// `None`: it was only listed.
    pub about: Option<Box<About>>,
    /// State of its object; `None`: a directory without a marker, or a file that is not in the store yet.
    pub etag: Option<ETag>,
    /// Size of the object.
    pub size: u64,
    /// Time of the last change: by this clock when it was made here, else when the store completed the object.
    pub modified: Time,
    /// What the store told of that time, which is in whole seconds for most; `None`: nothing since a change was made here.
    pub told: Option<Time>,
    /// When the store had last taken a change that was made here: what it was asked before that is old.
    pub changed: Option<Instant>,
    /// When the store was asked; `None`: it is not in the store yet, and only known here.
    pub checked: Option<Instant>,
    /// What makes it a directory.
    pub directory: Option<Box<Directory>>,
    /// While it is open, or being changed.
    pub file: Option<Arc<File>>,
    /// Handles.
    pub opens: u32,
    /// Has a name.
    pub linked: bool,
    /// It is being renamed: that its old name leads nowhere is our own doing.
    pub moving: bool,
}

impl Inode {
    /// The store tells when it completed the object, of which it is known whether it is the `same` as before. The first time after a change that was
    /// made here that is not news: it is the same time by another clock, rounded, and would move the time of a file that nobody touches.
    pub fn told(&mut self, time: Time, same: bool) {
        let news = !same || self.told.is_some_and(|told| told != time);
        self.told = Some(time);
        if news {
            self.modified = time;
        }
    }

    /// The store has taken a change that was made here, by which it has the state `etag`.
    pub fn stored(&mut self, etag: Option<ETag>) {
        let now = Instant::now();
        (self.etag, self.checked, self.changed) = (etag, Some(now), Some(now));
    }

    /// Whether what the store was `asked` then may be older than what it has taken since.
    pub fn is_newer(&self, asked: Instant) -> bool {
        self.changed.is_some_and(|changed| changed >= asked)
    }

    /// It was changed here.
    pub fn change(&mut self, now: Time) {
        (self.modified, self.told) = (now, None);
    }

    /// Its content has changed, just now.
    pub fn touch(&mut self, now: Time) {
        self.change(now);
        if let Some(about) = &mut self.about {
            about.attrs.mtime = Some(now);
        }
    }

    /// What it is, as far as that is known.
    pub fn kind(&self) -> FileType {
        match (&self.directory, &self.about) {
            (Some(_), _) => FileType::Directory,
            (None, Some(about)) => about.attrs.kind,
            (None, None) => FileType::Regular,
        }
    }

    /// Its file, for one more who uses it.
    pub fn take_file(&mut self, ino: Ino) -> Arc<File> {
        self.opens += 1;
        let file = self.file.get_or_insert_with(|| Arc::new(File::new(ino, self.etag.clone(), self.size)));
        file.clone()
    }

    /// Whether changes of it are on their way.
    pub fn is_dirty(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.state.lock().is_dirty())
    }

    /// Attributes as stat(2) has them. The time of access is that of the last change, unless somebody has set one. Directories have one link, which tells programs like find that it does
    /// not count its subdirectories.
    pub fn attr(&self, ino: Ino, defaults: &Defaults) -> Attr {
        let default;
        let attrs = match &self.about {
            Some(about) => &about.attrs,
            None => {
                default = Attrs::default_of(self.kind(), defaults);
                &default
            }
        };
        let kind = self.kind();
        let size = match &self.file {
            _ if kind == FileType::Directory => 0,
            Some(file) => file.state.lock().change.size(),
            None => self.size,
        };
        let mtime = attrs.mtime.unwrap_or(self.modified);
        Attr {
            ino,
            generation: 0,
            kind,
            perm: attrs.perm,
            nlink: self.linked as u32,
            uid: attrs.uid,
            gid: attrs.gid,
            rdev: attrs.rdev,
            size,
            blocks: size.div_ceil(512),
            atime: attrs.atime.unwrap_or(mtime),
            mtime,
            ctime: self.modified,
            btime: mtime.min(self.modified),
            // Of an object that was only listed nobody knows.
            xattrs: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_change_made_here_stays() {
        let at = |sec, nsec| Time { sec, nsec };
        let defaults = Defaults { uid: 0, gid: 0, umask: 0 };
        let mut tree = crate::tree::Tree::new(String::new(), defaults, 1000, false);
        let inode = tree.get_mut(Ino::ROOT).unwrap();
        let told = |inode: &mut Inode, sec, same| {
            inode.told(at(sec, 0), same);
            inode.modified
        };
        for (first, then) in [(110, 111), (111, 112), (40, 41)] {
            inode.change(at(110, 900));
            assert_eq!(told(inode, first, true), at(110, 900));
            assert_eq!(told(inode, first, true), at(110, 900));
            assert_eq!(told(inode, then, true), at(then, 0), "a copy onto itself");
            assert_eq!(told(inode, first, false), at(first, 0), "another object");
        }
    }
}
