//! Trees of files, on the host or in a volume, seen the same way: what `cp` copies between.

use freehold::Attr;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Attributes, and which tree the inode number belongs to.
#[derive(Clone, Copy)]
pub struct Node {
    pub attr: Attr,
    /// Distinguishes file systems.
    pub device: u64,
}

impl Node {
    /// Equal for two names of the same file.
    pub fn identity(&self) -> (u64, u64) {
        (self.device, self.attr.ino.0)
    }
}

pub type Xattrs = Vec<(OsString, Vec<u8>)>;

/// A tree. Errors name the file.
pub trait Tree {
    /// The file's name for messages.
    fn show(&self, path: &Path) -> String;
    /// Attributes; `None` when there is no such file. With `follow`, of what a symlink leads to.
    fn look(&self, path: &Path, follow: bool) -> anyhow::Result<Option<Node>>;
    /// Names in a directory, without dots.
    fn list(&self, path: &Path) -> anyhow::Result<Vec<OsString>>;
    fn read_link(&self, path: &Path) -> anyhow::Result<PathBuf>;
    /// Extended attributes that may be read; symlinks are not followed.
    fn xattrs(&self, path: &Path) -> anyhow::Result<Xattrs>;
    /// Opens a regular file.
    fn open<'a>(&'a self, path: &Path, follow: bool) -> anyhow::Result<Box<dyn Source + 'a>>;
    /// Makes a regular file that only its owner may use yet, or empties one. Symlinks are not followed.
    fn create<'a>(&'a self, path: &Path) -> anyhow::Result<Box<dyn Sink + 'a>>;
    /// Makes a directory that only its owner may use yet.
    fn mkdir(&self, path: &Path) -> anyhow::Result<()>;
    fn symlink(&self, target: &Path, path: &Path) -> anyhow::Result<()>;
    fn link(&self, original: &Path, path: &Path) -> anyhow::Result<()>;
    /// Makes a FIFO, socket or device node.
    fn mknod(&self, path: &Path, attr: &Attr) -> anyhow::Result<()>;
    fn unlink(&self, path: &Path) -> anyhow::Result<()>;
    /// Sets owner, permissions, extended attributes and times. Returns what could not be kept.
    fn dress(&self, path: &Path, attr: &Attr, xattrs: &Xattrs) -> anyhow::Result<Vec<String>>;
}

/// A file that is read.
pub trait Source {
    /// The next range with data at or behind `from`, or `None`.
    fn data(&mut self, from: u64) -> anyhow::Result<Option<(u64, u64)>>;
    /// Reads at an offset; 0 at the end.
    fn read_at(&mut self, to: &mut [u8], at: u64) -> anyhow::Result<usize>;
}

/// A file that is written.
pub trait Sink {
    fn write_at(&mut self, from: &[u8], at: u64) -> anyhow::Result<()>;
    fn set_len(&mut self, len: u64) -> anyhow::Result<()>;
}

/// Where an argument points: to the host, or into an image (`IMAGE:/path`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Host(PathBuf),
    Inside { image: PathBuf, path: PathBuf },
}

impl Place {
    /// `IMAGE:/path` or `IMAGE:` where IMAGE is a file or device that exists; everything else is a path of the host.
    pub fn parse(word: &OsStr) -> Place {
        let bytes = word.as_bytes();
        for at in
            (0..bytes.len()).filter(|&i| bytes[i] == b':' && matches!(bytes.get(i + 1), None | Some(b'/')))
        {
            let image = Path::new(OsStr::from_bytes(&bytes[..at]));
            if image.metadata().is_ok_and(|m| !m.is_dir()) {
                let path = match &bytes[at + 1..] {
                    [] => Path::new("/"),
                    path => Path::new(OsStr::from_bytes(path)),
                };
                return Place::Inside { image: image.into(), path: path.into() };
            }
        }
        Place::Host(word.into())
    }

    /// As [`Place::parse`], for commands that look into images only: an image alone means its root directory.
    pub fn parse_inside(word: &OsStr) -> anyhow::Result<(PathBuf, PathBuf)> {
        match Place::parse(word) {
            Place::Inside { image, path } => Ok((image, path)),
            Place::Host(path) if path.metadata().is_ok_and(|m| !m.is_dir()) => Ok((path, "/".into())),
            Place::Host(path) if path.is_dir() => {
                anyhow::bail!(
                    "{} is a directory of this machine; look at it with ls, cat, ...",
                    path.display()
                )
            }
            Place::Host(path) => {
                let text = path.to_string_lossy();
                let image = text.split_once(":/").map_or(&*text, |(image, _)| image);
                anyhow::bail!("there is no image file or device {image}. Files inside are named IMAGE:/path")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a:b.img");
        std::fs::write(&image, "").unwrap();
        let word = |rest: &str| OsString::from(format!("{}{rest}", image.display()));
        let inside = |path: &str| Place::Inside { image: image.clone(), path: path.into() };
        assert_eq!(Place::parse(&word(":/x:/y")), inside("/x:/y"));
        assert_eq!(Place::parse(&word(":")), inside("/"));
        assert_eq!(Place::parse(&word("")), Place::Host(image.clone()));
        assert_eq!(Place::parse_inside(&word("")).unwrap(), (image.clone(), "/".into()));
        assert_eq!(Place::parse(OsStr::new("no:/x")), Place::Host("no:/x".into()));
        assert!(
            Place::parse_inside(OsStr::new("no:/x")).is_err()
                && Place::parse_inside(dir.path().as_os_str()).is_err()
        );
    }
}
