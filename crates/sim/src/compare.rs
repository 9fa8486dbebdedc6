//! Compares whole trees: that of a snapshot, and those found in file systems by walking them as root.
//!
//! Verifies: names; which names lead to the same inode; types, permission bits, owners, link counts, device numbers;
//! sizes and contents of files (holes are zeros), targets of symlinks, extended attributes; that "." and ".." lead where
//! they should; optionally times. Does not verify: sizes of directories, allocated blocks, where holes are, creation
//! times, the order of entries, inodes without a name, locks, free space.
//!
//! Files up to [`READ_WHOLE_MAX`] are read in whole; larger ones where the file system reports data, and there at most
//! [`READ_SPARSE_MAX`] bytes: a file system that reports more of a sparse file as data fails the comparison.
//!
//! Tested by the canaries of `tests/canaries.rs`.

use crate::driver::{Blocking, Driver};
use crate::model::data::{Data, PAGE};
use crate::model::{Body, Node};
use crate::snapshot::Snapshot;
use fs::{Attr, Cred, FileSystem, FileType, Handle, Ino, OpenFlags, Seek};
use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// Files up to this size are read in whole, bytes.
pub const READ_WHOLE_MAX: u64 = 32 << 20;
/// Most bytes read of a larger file.
pub const READ_SPARSE_MAX: u64 = 256 << 20;

/// What to compare beyond what is always compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Compare mtime and ctime.
    pub times: bool,
    /// Compare atime.
    pub atime: bool,
}

/// The first thing found that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Path from the root, "/" for the root itself.
    pub path: String,
    /// What differs there.
    pub what: String,
    /// How it should be.
    pub expected: String,
    /// How it is.
    pub found: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: expected {}, found {}", self.path, self.what, self.expected, self.found)
    }
}

impl std::error::Error for Difference {}

/// A tree with every path spelled out.
#[derive(Clone, Default)]
pub struct Picture {
    paths: BTreeMap<Vec<u8>, Seen>,
}

#[derive(Clone)]
struct Seen {
    attr: Attr,
    /// The first path that leads to the same inode.
    first: Vec<u8>,
    body: SeenBody,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Clone)]
enum SeenBody {
    File(Data),
    Symlink(Vec<u8>),
    Other,
}

/// Compares the tree of `fs` with the snapshot. `Err` names the first difference by path.
pub fn tree<F: FileSystem>(fs: &F, expected: &Snapshot) -> Result<(), Difference> {
    tree_with(&Blocking, fs, expected, Options::default())
}

/// As [`tree`], with a driver and options.
pub fn tree_with<F: FileSystem, D: Driver>(
    driver: &D,
    fs: &F,
    expected: &Snapshot,
    options: Options,
) -> Result<(), Difference> {
    Picture::of_snapshot(expected).compare(&Picture::of(driver, fs)?, options)
}

/// Compares the tree of `fs` with each snapshot, and returns the index of the first that is the same. `Err` holds the
/// differences from each: what a crash test prints when the volume is in none of the states it may be in.
pub fn one_of<F: FileSystem, D: Driver>(
    driver: &D,
    fs: &F,
    candidates: &[Snapshot],
    options: Options,
) -> Result<usize, Vec<Difference>> {
    let found = Picture::of(driver, fs).map_err(|e| vec![e])?;
    let mut differences = Vec::new();
    for (index, candidate) in candidates.iter().enumerate() {
        match Picture::of_snapshot(candidate).compare(&found, options) {
            Ok(()) => return Ok(index),
            Err(difference) => differences.push(difference),
        }
    }
    Err(differences)
}

fn show(path: &[u8]) -> String {
    if path.is_empty() { "/".into() } else { path.escape_ascii().to_string() }
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    [dir, b"/", name].concat()
}

impl Picture {
    /// The tree of a snapshot.
    pub fn of_snapshot(snapshot: &Snapshot) -> Picture {
        let mut picture = Picture::default();
        let mut firsts: HashMap<Ino, Vec<u8>> = HashMap::new();
        let mut todo = vec![(Vec::new(), Ino::ROOT)];
        while let Some((path, ino)) = todo.pop() {
            let node: &Node = &snapshot.nodes[&ino];
            let body = match &node.body {
                Body::File(data) => SeenBody::File(data.clone()),
                Body::Symlink(target) => SeenBody::Symlink(target.to_vec()),
                Body::Special => SeenBody::Other,
                Body::Directory(dir) => {
                    todo.extend(dir.entries.values().map(|(name, ino)| (join(&path, name), *ino)));
                    SeenBody::Other
                }
            };
            let xattrs = node.xattrs.iter().map(|(name, value)| (name.clone(), value.to_vec())).collect();
            picture.add(&mut firsts, path, Seen { attr: node.attr(), first: Vec::new(), body, xattrs });
        }
        picture
    }

    /// The tree found by walking `fs` as root. `Err` when a call fails or directory entries contradict each other.
    pub fn of<F: FileSystem, D: Driver>(driver: &D, fs: &F) -> Result<Picture, Difference> {
        let walker = Walker { driver, fs, root: Cred::root() };
        let mut picture = Picture::default();
        let mut firsts: HashMap<Ino, Vec<u8>> = HashMap::new();
        let root = walker.call(b"", "getattr", walker.fs.getattr(Ino::ROOT, None))?;
        let mut todo = vec![(Vec::new(), root, Ino::ROOT)];
        while let Some((path, attr, parent)) = todo.pop() {
            let mut body = SeenBody::Other;
            match attr.kind {
                FileType::Directory => {
                    if let Some(first) = firsts.get(&attr.ino) {
                        return difference(&path, "directory", "one name", show(first));
                    }
                    let entries = walker.entries(&path, attr.ino, parent)?;
                    todo.extend(entries.into_iter().map(|(name, a)| (join(&path, &name), a, attr.ino)));
                }
                FileType::Regular => body = SeenBody::File(walker.data(&path, &attr)?),
                FileType::Symlink => {
                    let target = walker.fs.readlink(&walker.root, attr.ino);
                    body = SeenBody::Symlink(walker.call(&path, "readlink", target)?);
                }
                _ => {}
            }
            let xattrs = walker.xattrs(&path, attr.ino)?;
            picture.add(&mut firsts, path, Seen { attr, first: Vec::new(), body, xattrs });
        }
        Ok(picture)
    }

    fn add(&mut self, firsts: &mut HashMap<Ino, Vec<u8>>, path: Vec<u8>, mut seen: Seen) {
        // The smallest path stands for the inode, whatever the order of the walk.
        let first = firsts.entry(seen.attr.ino).or_insert_with(|| path.clone());
        if path < *first {
            let old = std::mem::replace(first, path.clone());
            for other in self.paths.values_mut().filter(|other| other.first == old) {
                other.first = path.clone();
            }
        }
        seen.first = first.clone();
        self.paths.insert(path, seen);
    }

    /// Number of paths.
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// Whether there is not even a root.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Compares this tree, as it should be, with the one found.
    pub fn compare(&self, found: &Picture, options: Options) -> Result<(), Difference> {
        self.compare_but(found, options, &mut |_, _, _| false)
    }

    /// As [`Picture::compare`]. Where contents of a file differ, `excuse` is asked, with the inode's number in this tree, the
    /// contents expected and those found, whether they may.
    pub fn compare_but(
        &self,
        found: &Picture,
        options: Options,
        excuse: &mut dyn FnMut(Ino, &Data, &Data) -> bool,
    ) -> Result<(), Difference> {
        let mut paths: Vec<&Vec<u8>> = self.paths.keys().chain(found.paths.keys()).collect();
        paths.sort_unstable();
        paths.dedup();
        for path in paths {
            match (self.paths.get(path), found.paths.get(path)) {
                (Some(a), Some(b)) => a.compare(path, b, options, excuse)?,
                (Some(a), None) => return difference(path, "name", format!("{:?}", a.attr.kind), "nothing"),
                (None, Some(b)) => return difference(path, "name", "nothing", format!("{:?}", b.attr.kind)),
                (None, None) => {}
            }
        }
        Ok(())
    }
}

fn difference<T>(
    path: &[u8],
    what: impl Into<String>,
    expected: impl fmt::Display,
    found: impl fmt::Display,
) -> Result<T, Difference> {
    Err(Difference {
        path: show(path),
        what: what.into(),
        expected: expected.to_string(),
        found: found.to_string(),
    })
}

impl Seen {
    fn compare(
        &self,
        path: &[u8],
        found: &Seen,
        options: Options,
        excuse: &mut dyn FnMut(Ino, &Data, &Data) -> bool,
    ) -> Result<(), Difference> {
        let (a, b) = (&self.attr, &found.attr);
        let size = |attr: &Attr| if attr.kind == FileType::Directory { 0 } else { attr.size };
        let facts = [
            ("type", format!("{:?}", a.kind), format!("{:?}", b.kind)),
            ("permission bits", format!("{:o}", a.perm), format!("{:o}", b.perm)),
            ("links", a.nlink.to_string(), b.nlink.to_string()),
            ("owner", a.uid.to_string(), b.uid.to_string()),
            ("group", a.gid.to_string(), b.gid.to_string()),
            ("device", format!("{:#x}", a.rdev), format!("{:#x}", b.rdev)),
            ("size", size(a).to_string(), size(b).to_string()),
            ("other name of the inode", show(&self.first), show(&found.first)),
        ];
        for (what, a, b) in facts {
            if a != b {
                return difference(path, what, a, b);
            }
        }
        let times = [
            (options.times, "mtime", a.mtime, b.mtime),
            (options.times, "ctime", a.ctime, b.ctime),
            (options.atime, "atime", a.atime, b.atime),
        ];
        for (wanted, what, a, b) in times {
            if wanted && a != b {
                return difference(path, what, format!("{a:?}"), format!("{b:?}"));
            }
        }
        match (&self.body, &found.body) {
            (SeenBody::File(a), SeenBody::File(b)) => {
                if let Err((offset, what)) = a.same(b)
                    && (a.size() != b.size() || !excuse(self.attr.ino, a, b))
                {
                    let byte =
                        |data: &Data| data.byte(offset).map_or("the end".into(), |b| format!("{b:#04x}"));
                    return difference(path, format!("{what} at offset {offset}"), byte(a), byte(b));
                }
            }
            (SeenBody::Symlink(a), SeenBody::Symlink(b)) if a != b => {
                return difference(path, "target", show(a), show(b));
            }
            _ => {}
        }
        let mut names: Vec<&Vec<u8>> = self.xattrs.keys().chain(found.xattrs.keys()).collect();
        names.sort_unstable();
        for name in names {
            let (a, b) = (self.xattrs.get(name), found.xattrs.get(name));
            if a != b {
                let value = |v: Option<&Vec<u8>>| {
                    v.map_or("none".into(), |v| {
                        let head = &v[..v.len().min(32)];
                        format!("{} bytes \"{}\"", v.len(), head.escape_ascii())
                    })
                };
                return difference(path, format!("attribute {}", show(name)), value(a), value(b));
            }
        }
        Ok(())
    }
}

struct Walker<'a, D, F> {
    driver: &'a D,
    fs: &'a F,
    root: Cred,
}

impl<D: Driver, F: FileSystem> Walker<'_, D, F> {
    fn call<T>(
        &self,
        path: &[u8],
        what: &str,
        call: impl Future<Output = fs::Result<T>>,
    ) -> Result<T, Difference> {
        self.driver.block_on(call).or_else(|e| difference(path, what, "success", format!("\"{e}\"")))
    }

    /// Entries but "." and "..", which are checked here; each name must be found by lookup with the same attributes.
    fn entries(&self, path: &[u8], ino: Ino, parent: Ino) -> Result<Vec<(Vec<u8>, Attr)>, Difference> {
        let handle = self.call(path, "opendir", self.fs.opendir(&self.root, ino))?;
        let mut entries = Vec::new();
        let mut sink = |entry: fs::DirEntry<'_>| {
            entries.push((entry.name.to_vec(), entry.attr));
            true
        };
        let done = self.call(path, "readdir", self.fs.readdir(handle, 0, &mut sink));
        self.call(path, "release", self.fs.release(handle))?;
        done?;
        let mut names: Vec<&[u8]> = entries.iter().map(|(name, _)| &name[..]).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return difference(&join(path, pair[0]), "entry", "once", "twice");
        }
        for (name, own) in [(&b"."[..], ino), (b"..", parent)] {
            let found = entries.iter().find(|(n, _)| n == name).map(|(_, attr)| attr.ino);
            if found != Some(own) {
                return difference(&join(path, name), "entry", own, format!("{found:?}"));
            }
        }
        entries.retain(|(name, _)| name != b"." && name != b"..");
        // Walking moves access times, so every file system is walked in the same order.
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, listed) in &mut entries {
            let full = join(path, name);
            let attr = self.call(&full, "lookup", self.fs.lookup(&self.root, ino, name))?;
            if (attr.ino, attr.kind) != (listed.ino, listed.kind) {
                return difference(&full, "inode by readdir", attr.ino, listed.ino);
            }
            *listed = attr;
        }
        Ok(entries)
    }

    fn data(&self, path: &[u8], attr: &Attr) -> Result<Data, Difference> {
        let flags = OpenFlags::READ | OpenFlags::NOATIME;
        let handle = self.call(path, "open", self.fs.open(&self.root, attr.ino, flags))?;
        let data = self.read(path, attr, handle);
        self.call(path, "release", self.fs.release(handle))?;
        data
    }

    fn read(&self, path: &[u8], attr: &Attr, handle: Handle) -> Result<Data, Difference> {
        let mut data = Data::default();
        let mut buffer = vec![0; 1 << 20];
        let mut fetch = |mut at: u64, end: u64| {
            while at < end {
                let want = (end - at).min(buffer.len() as u64) as usize;
                let n = self.call(path, "read", self.fs.read(handle, at, &mut buffer[..want]))?;
                if n != want {
                    return difference(path, format!("read of {want} bytes at {at}"), want, n);
                }
                // Pages of zeros stay absent.
                for (i, page) in buffer[..n].chunks(PAGE as usize).enumerate() {
                    if page.iter().any(|&b| b != 0) {
                        data.write(at + i as u64 * PAGE, page);
                    }
                }
                at += n as u64;
            }
            Ok(())
        };
        if attr.size <= READ_WHOLE_MAX {
            fetch(0, attr.size)?;
        } else {
            let (mut at, mut total) = (0, 0);
            while at < attr.size {
                let from = match self.driver.block_on(self.fs.seek(handle, at, Seek::Data)) {
                    Ok(from) => from,
                    Err(fs::Error::NoSuchOffset) => break,
                    Err(e) => return difference(path, "seek", "success", e),
                };
                let to = self.call(path, "seek", self.fs.seek(handle, from, Seek::Hole))?.min(attr.size);
                total += to.saturating_sub(from);
                if from < at || to <= from || total > READ_SPARSE_MAX {
                    return difference(
                        path,
                        format!("data behind offset {at}"),
                        format!("at most {READ_SPARSE_MAX} bytes"),
                        format!("{from}..{to}, {total} bytes so far"),
                    );
                }
                fetch(from / PAGE * PAGE, to)?;
                at = to;
            }
        }
        data.set_size(attr.size);
        Ok(data)
    }

    fn xattrs(&self, path: &[u8], ino: Ino) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Difference> {
        let names = self.call(path, "listxattr", self.fs.listxattr(&self.root, ino))?;
        let mut out = BTreeMap::new();
        for name in names {
            let value = self.fs.getxattr(&self.root, ino, &name);
            let value = self.call(path, "getxattr", value)?;
            if out.insert(name.clone(), value).is_some() {
                return difference(path, format!("attribute {}", show(&name)), "listed once", "listed twice");
            }
        }
        Ok(out)
    }
}
