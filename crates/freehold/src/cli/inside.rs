//! The tree inside an image that nobody serves. Whoever may open the image may see and change everything in it.

use super::explain;
use super::tree::{Node, Sink, Source, Tree, Xattrs};
use anyhow::anyhow;
use freehold::{Attr, Blocking, Cred, Error, OpenOptions, Volume};
use fs::client::{BlockingFile, SeekTo};
use fs::{SetTime, XattrFlags};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// An open image.
pub struct Inside {
    image: PathBuf,
    volume: Volume,
    pub files: Blocking<Volume>,
    device: u64,
}

impl Inside {
    /// Opens the image. `number` tells it from other trees of the same copy.
    pub fn open(image: &Path, read_only: bool, number: u64) -> anyhow::Result<Inside> {
        let volume = explain::open(image, read_only)?;
        let mut client = freehold::client(&volume, Cred::root());
        client.set_umask(0);
        // Device numbers of the host have 32 bits.
        Ok(Inside { image: image.into(), volume, files: client.blocking(), device: 1 << 40 | number })
    }

    /// Makes everything durable and closes the volume.
    pub fn close(self) -> anyhow::Result<()> {
        self.volume.close_blocking().map_err(|e| explain::volume(e, &self.image))
    }

    /// An error with the file's name.
    pub fn error(&self, e: Error, path: &Path) -> anyhow::Error {
        match e {
            Error::Media(_) | Error::Corrupt(_) | Error::Latched(_) => explain::volume(e, &self.image),
            e => anyhow!("{}: {e}", self.show(path)),
        }
    }
}

impl Tree for Inside {
    fn show(&self, path: &Path) -> String {
        format!("{}:{}", self.image.display(), path.display())
    }

    fn look(&self, path: &Path, follow: bool) -> anyhow::Result<Option<Node>> {
        match if follow { self.files.stat(path) } else { self.files.lstat(path) } {
            Ok(attr) => Ok(Some(Node { attr, device: self.device })),
            Err(Error::NotFound) => Ok(None),
            Err(e) => Err(self.error(e, path)),
        }
    }

    fn list(&self, path: &Path) -> anyhow::Result<Vec<OsString>> {
        let entries = self.files.read_dir(path).map_err(|e| self.error(e, path))?;
        entries.map(|e| e.map(|e| e.name).map_err(|e| self.error(e, path))).collect()
    }

    fn read_link(&self, path: &Path) -> anyhow::Result<PathBuf> {
        self.files.readlink(path).map_err(|e| self.error(e, path))
    }

    fn xattrs(&self, path: &Path) -> anyhow::Result<Xattrs> {
        let names = self.files.llist_xattr(path).map_err(|e| self.error(e, path))?;
        let value = |name: OsString| {
            let value = self.files.lget_xattr(path, &name).map_err(|e| self.error(e, path))?;
            Ok((name, value))
        };
        names.into_iter().map(value).collect()
    }

    fn open<'a>(&'a self, path: &Path, follow: bool) -> anyhow::Result<Box<dyn Source + 'a>> {
        let options = OpenOptions::new().read(true).noatime(true).nofollow(!follow);
        let file = self.files.open(path, options).map_err(|e| self.error(e, path))?;
        Ok(Box::new(InsideFile { tree: self, path: path.into(), file }))
    }

    fn create<'a>(&'a self, path: &Path) -> anyhow::Result<Box<dyn Sink + 'a>> {
        let options = OpenOptions::new().write(true).create(true).truncate(true).nofollow(true).mode(0o600);
        let file = self.files.open(path, options).map_err(|e| self.error(e, path))?;
        Ok(Box::new(InsideFile { tree: self, path: path.into(), file }))
    }

    fn mkdir(&self, path: &Path) -> anyhow::Result<()> {
        self.files.mkdir(path, 0o700).map(drop).map_err(|e| self.error(e, path))
    }

    fn symlink(&self, target: &Path, path: &Path) -> anyhow::Result<()> {
        self.files.symlink(target, path).map(drop).map_err(|e| self.error(e, path))
    }

    fn link(&self, original: &Path, path: &Path) -> anyhow::Result<()> {
        self.files.link(original, path).map(drop).map_err(|e| self.error(e, path))
    }

    fn mknod(&self, path: &Path, attr: &Attr) -> anyhow::Result<()> {
        let mode = attr.kind.mode_bits() | 0o600;
        self.files.mknod(path, mode, attr.rdev).map(drop).map_err(|e| self.error(e, path))
    }

    fn unlink(&self, path: &Path) -> anyhow::Result<()> {
        self.files.unlink(path).map_err(|e| self.error(e, path))
    }

    fn dress(&self, path: &Path, attr: &Attr, xattrs: &Xattrs) -> anyhow::Result<Vec<String>> {
        let named = |e| self.error(e, path);
        let mut lost = Vec::new();
        self.files.lchown(path, Some(attr.uid), Some(attr.gid)).map_err(named)?;
        if attr.kind != freehold::FileType::Symlink {
            self.files.chmod(path, attr.perm).map_err(named)?;
        }
        for (name, value) in xattrs {
            match self.files.lset_xattr(path, name, value, XattrFlags::empty()) {
                Err(Error::NotSupported(_) | Error::NotPermitted) => {
                    lost.push(name.to_string_lossy().into_owned())
                }
                set => set.map_err(named)?,
            }
        }
        let (atime, mtime) = (SetTime::At(attr.atime), SetTime::At(attr.mtime));
        self.files.lutimens(path, Some(atime), Some(mtime)).map_err(named)?;
        Ok(lost)
    }
}

struct InsideFile<'a> {
    tree: &'a Inside,
    path: PathBuf,
    file: BlockingFile<Volume>,
}

impl InsideFile<'_> {
    fn seek(&mut self, to: SeekTo) -> anyhow::Result<Option<u64>> {
        match self.file.seek(to) {
            Ok(at) => Ok(Some(at)),
            Err(Error::NoSuchOffset) => Ok(None),
            Err(e) => Err(self.tree.error(e, &self.path)),
        }
    }
}

impl Source for InsideFile<'_> {
    fn data(&mut self, from: u64) -> anyhow::Result<Option<(u64, u64)>> {
        let Some(start) = self.seek(SeekTo::Data(from))? else { return Ok(None) };
        Ok(self.seek(SeekTo::Hole(start))?.map(|end| (start, end)))
    }
    fn read_at(&mut self, to: &mut [u8], at: u64) -> anyhow::Result<usize> {
        self.file.read_at(to, at).map_err(|e| self.tree.error(e, &self.path))
    }
}

impl Sink for InsideFile<'_> {
    fn write_at(&mut self, from: &[u8], at: u64) -> anyhow::Result<()> {
        self.file.write_all_at(from, at).map_err(|e| self.tree.error(e, &self.path))
    }
    fn set_len(&mut self, len: u64) -> anyhow::Result<()> {
        self.file.set_len(len).map_err(|e| self.tree.error(e, &self.path))
    }
}
