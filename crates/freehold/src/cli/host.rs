//! The tree of this machine.

use super::explain;
use super::tree::{Node, Sink, Source, Tree, Xattrs};
use freehold::{Attr, FileType, Time};
use fs::Ino;
use rustix::fs::{AtFlags, CWD, SeekFrom, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub struct Host;

impl Tree for Host {
    fn show(&self, path: &Path) -> String {
        path.display().to_string()
    }

    fn look(&self, path: &Path, follow: bool) -> anyhow::Result<Option<Node>> {
        match if follow { path.metadata() } else { path.symlink_metadata() } {
            Ok(m) => Ok(Some(node(&m))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(explain::host(e, "looking at", path)),
        }
    }

    fn list(&self, path: &Path) -> anyhow::Result<Vec<OsString>> {
        let named = |e| explain::host(e, "reading directory", path);
        path.read_dir().map_err(named)?.map(|e| e.map(|e| e.file_name()).map_err(named)).collect()
    }

    fn read_link(&self, path: &Path) -> anyhow::Result<PathBuf> {
        path.read_link().map_err(|e| explain::host(e, "reading symlink", path))
    }

    fn xattrs(&self, path: &Path) -> anyhow::Result<Xattrs> {
        let mut buffer = vec![0u8; 64 << 10];
        let names = match rustix::fs::llistxattr(path, &mut buffer[..]) {
            Ok(n) => buffer[..n].to_vec(),
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(e) => return Err(explain::host(e, "reading attributes of", path)),
        };
        let mut all = Vec::new();
        for name in names.split(|&b| b == 0).filter(|n| !n.is_empty()) {
            let name = OsStr::from_bytes(name);
            match rustix::fs::lgetxattr(path, name, &mut buffer[..]) {
                Ok(n) => all.push((name.to_os_string(), buffer[..n].to_vec())),
                // Gone, or not for this user.
                Err(Errno::NODATA | Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) => {}
                Err(e) => return Err(explain::host(e, "reading attributes of", path)),
            }
        }
        Ok(all)
    }

    fn open<'a>(&'a self, path: &Path, follow: bool) -> anyhow::Result<Box<dyn Source + 'a>> {
        // A FIFO that took the file's place must not make this wait.
        let flags = libc::O_NONBLOCK | if follow { 0 } else { libc::O_NOFOLLOW };
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let file = file.map_err(|e| explain::host(e, "opening", path))?;
        Ok(Box::new(HostFile { path: path.into(), file }))
    }

    fn create<'a>(&'a self, path: &Path) -> anyhow::Result<Box<dyn Sink + 'a>> {
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = options.open(path).map_err(|e| explain::host(e, "making", path))?;
        Ok(Box::new(HostFile { path: path.into(), file }))
    }

    fn mkdir(&self, path: &Path) -> anyhow::Result<()> {
        let made = std::fs::DirBuilder::new().mode(0o700).create(path);
        made.map_err(|e| explain::host(e, "making directory", path))
    }

    fn symlink(&self, target: &Path, path: &Path) -> anyhow::Result<()> {
        std::os::unix::fs::symlink(target, path).map_err(|e| explain::host(e, "making symlink", path))
    }

    fn link(&self, original: &Path, path: &Path) -> anyhow::Result<()> {
        std::fs::hard_link(original, path).map_err(|e| explain::host(e, "making", path))
    }

    fn mknod(&self, path: &Path, attr: &Attr) -> anyhow::Result<()> {
        let kind = rustix::fs::FileType::from_raw_mode(attr.kind.mode_bits());
        let made =
            rustix::fs::mknodat(CWD, path, kind, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR, attr.rdev);
        made.map_err(|e| explain::host(e, "making", path))
    }

    fn unlink(&self, path: &Path) -> anyhow::Result<()> {
        std::fs::remove_file(path).map_err(|e| explain::host(e, "removing", path))
    }

    fn dress(&self, path: &Path, attr: &Attr, xattrs: &Xattrs) -> anyhow::Result<Vec<String>> {
        let named = |e: io::Error| explain::host(e, "setting attributes of", path);
        let mut lost = Vec::new();
        let mut perm = attr.perm as u32;
        match std::os::unix::fs::lchown(path, Some(attr.uid), Some(attr.gid)) {
            // Only root gives files away; others own what they copy, and set-id bits must not go over to them.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => perm &= 0o1777,
            done => done.map_err(named)?,
        }
        if attr.kind != FileType::Symlink {
            std::fs::set_permissions(path, Permissions::from_mode(perm)).map_err(named)?;
        }
        for (name, value) in xattrs {
            match rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => {
                    lost.push(name.to_string_lossy().into_owned())
                }
                Err(e) => return Err(named(e.into())),
            }
        }
        let spec = |t: Time| Timespec { tv_sec: t.sec, tv_nsec: t.nsec as _ };
        let times = Timestamps { last_access: spec(attr.atime), last_modification: spec(attr.mtime) };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| named(e.into()))?;
        Ok(lost)
    }
}

fn node(m: &std::fs::Metadata) -> Node {
    let time = |sec, nsec| Time { sec, nsec: nsec as u32 };
    let attr = Attr {
        ino: Ino(m.ino()),
        generation: 0,
        kind: FileType::from_mode(m.mode()).unwrap_or(FileType::Regular),
        perm: (m.mode() & 0o7777) as u16,
        nlink: m.nlink() as u32,
        uid: m.uid(),
        gid: m.gid(),
        rdev: m.rdev(),
        size: m.size(),
        blocks: m.blocks(),
        atime: time(m.atime(), m.atime_nsec()),
        mtime: time(m.mtime(), m.mtime_nsec()),
        ctime: time(m.ctime(), m.ctime_nsec()),
        btime: Time::default(),
        xattrs: true,
    };
    Node { attr, device: m.dev() }
}

struct HostFile {
    path: PathBuf,
    file: File,
}

impl Source for HostFile {
    fn data(&mut self, from: u64) -> anyhow::Result<Option<(u64, u64)>> {
        let start = match rustix::fs::seek(&self.file, SeekFrom::Data(from)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // A file system that does not tell holes.
            Err(Errno::INVAL) => {
                let len = self.file.metadata().map_err(|e| explain::host(e, "reading", &self.path))?.len();
                return Ok((from < len).then_some((from, len)));
            }
            Err(e) => return Err(explain::host(e, "reading", &self.path)),
        };
        let end = rustix::fs::seek(&self.file, SeekFrom::Hole(start));
        Ok(Some((start, end.map_err(|e| explain::host(e, "reading", &self.path))?)))
    }
    fn read_at(&mut self, to: &mut [u8], at: u64) -> anyhow::Result<usize> {
        self.file.read_at(to, at).map_err(|e| explain::host(e, "reading", &self.path))
    }
}

impl Sink for HostFile {
    fn write_at(&mut self, from: &[u8], at: u64) -> anyhow::Result<()> {
        self.file.write_all_at(from, at).map_err(|e| explain::host(e, "writing", &self.path))
    }
    fn set_len(&mut self, len: u64) -> anyhow::Result<()> {
        self.file.set_len(len).map_err(|e| explain::host(e, "writing", &self.path))
    }
}
