//! What the kernel says about mounts and about who uses an image: `/proc/self/mountinfo` and `/proc/locks`.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
pub use share::mounts::{MountInfo, list};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A path with its symlinks resolved, where the last component may be a mount that does not answer: it is not touched.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => Ok(std::fs::canonicalize(parent)?.join(name)),
        _ => std::fs::canonicalize(path),
    }
}

/// What stands at a path, as far as the kernel knows it without asking anybody: a server of the file system may not answer. `None`: it does not know.
pub(crate) fn known(path: &Path) -> Option<Statx> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let fd = rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED).ok()?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(&fd, "", flags, StatxFlags::TYPE | StatxFlags::INO).ok()
}

/// The mount that is on top at `path` exactly.
pub fn at(path: &Path) -> io::Result<Option<MountInfo>> {
    let all = list()?;
    let find = |path: &Path| all.iter().rev().find(|m| m.point == path).cloned();
    if let Some(found) = find(&resolve(path)?) {
        return Ok(Some(found));
    }
    // A symlink to a mount point. What does not answer is no symlink.
    match std::fs::canonicalize(path) {
        Ok(whole) => Ok(find(&whole)),
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Mounts of an image or device: those of Freehold that name it as their source, for a block device those of any
/// file system on it, for a file those on its loop devices.
pub fn of_image(image: &Path) -> io::Result<Vec<MountInfo>> {
    if crate::nvme_address(image).is_some() {
        let source = crate::service::source(image);
        return Ok(list()?.into_iter().filter(|m| m.source == *source).collect());
    }
    let meta = std::fs::metadata(image)?;
    let path = std::fs::canonicalize(image)?;
    let is_block = meta.mode() & libc::S_IFMT == libc::S_IFBLK;
    let number = format!("{}:{}", libc::major(meta.rdev()), libc::minor(meta.rdev()));
    let loops = if is_block { Vec::new() } else { loop_devices(&path) };
    let same_device = |source: &OsStr| {
        is_block
            && source.as_bytes().starts_with(b"/")
            && std::fs::metadata(source)
                .is_ok_and(|m| m.mode() & libc::S_IFMT == libc::S_IFBLK && m.rdev() == meta.rdev())
    };
    Ok(list()?
        .into_iter()
        .filter(|m| {
            m.source == path.as_os_str()
                || (is_block && m.device == number)
                || same_device(&m.source)
                || loops.iter().any(|l| m.source == l.as_os_str())
        })
        .collect())
}

/// Another mount of the same file system.
#[derive(Clone, Debug)]
pub struct Elsewhere {
    /// The mount.
    pub mount: MountInfo,
    /// When it is in another mount namespace: a process that sees it there.
    pub seen_by: Option<Process>,
}

impl Elsewhere {
    /// Whether unmounting `mount` leaves this one: the kernel takes copies in other namespaces along when they are of its peer group or follow
    /// it.
    pub fn outlives(&self, mount: &MountInfo) -> bool {
        let goes_along = |group| self.mount.shared == Some(group) || self.mount.master == Some(group);
        self.seen_by.is_none() || !mount.shared.is_some_and(goes_along)
    }
}

impl std::fmt::Display for Elsewhere {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.mount.point.display())?;
        self.seen_by.as_ref().map_or(Ok(()), |p| write!(f, " of {p}"))
    }
}

/// The other mounts of the file system behind `mount`, which need not be mounted any more: bind mounts, and copies in other mount namespaces
/// of which a process can be seen.
pub fn others(mount: &MountInfo) -> Vec<Elsewhere> {
    // A number alone may be that of the next file system already.
    let is_same = |m: &MountInfo| m.device == mount.device && m.source == mount.source && m.id != mount.id;
    let here = list().unwrap_or_default().into_iter().filter(is_same);
    let mut found: Vec<Elsewhere> = here.map(|mount| Elsewhere { mount, seen_by: None }).collect();
    let mut namespaces: Vec<PathBuf> = std::fs::read_link("/proc/self/ns/mnt").into_iter().collect();
    for pid in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = pid.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let Ok(namespace) = std::fs::read_link(format!("/proc/{pid}/ns/mnt")) else { continue };
        if namespaces.contains(&namespace) {
            continue;
        }
        namespaces.push(namespace);
        let table = std::fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        let there = share::mounts::table(&table).into_iter().filter(is_same);
        found.extend(there.map(|mount| Elsewhere { mount, seen_by: Some(Process::named(pid)) }));
    }
    found
}

/// The mount of a loop device on this image file, when there is one.
pub fn through_loop(image: &Path) -> Option<MountInfo> {
    let path = std::fs::canonicalize(image).ok().filter(|p| p.is_file())?;
    let loops = loop_devices(&path);
    if loops.is_empty() {
        return None;
    }
    list().ok()?.into_iter().find(|m| loops.iter().any(|l| m.source == l.as_os_str()))
}

/// Who holds the lock on the image file below a loop device.
pub fn below_loop(device: &Path) -> Option<Process> {
    let meta = std::fs::metadata(device).ok().filter(|m| m.mode() & libc::S_IFMT == libc::S_IFBLK)?;
    let number = format!("{}:{}", libc::major(meta.rdev()), libc::minor(meta.rdev()));
    let below = std::fs::read(format!("/sys/dev/block/{number}/loop/backing_file")).ok()?;
    lock_holder(Path::new(OsStr::from_bytes(below.trim_ascii_end())))
}

/// The loop devices that stand on a file or block device, by whatever name.
pub(crate) fn loop_devices(file: &Path) -> Vec<PathBuf> {
    let Ok(devices) = std::fs::read_dir("/sys/block") else { return Vec::new() };
    let names = devices.flatten().map(|d| d.file_name()).filter(|n| n.as_bytes().starts_with(b"loop"));
    let stat = known(file);
    let on_it = |name: &OsString| {
        let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
        let Ok(backing) = std::fs::read(backing) else { return false };
        let backing = Path::new(OsStr::from_bytes(backing.trim_ascii_end()));
        // By name in any case: the file may be deleted, or not be known.
        backing == file || stat.zip(known(backing)).is_some_and(|(a, b)| is_same(&a, &b))
    };
    names.filter(on_it).map(|name| Path::new("/dev").join(name)).collect()
}

/// Whether two names lead to one file, or two nodes to one block device.
fn is_same(a: &Statx, b: &Statx) -> bool {
    let is_block = |s: &Statx| s.stx_mode as libc::mode_t & libc::S_IFMT == libc::S_IFBLK;
    let file = |s: &Statx| (s.stx_dev_major, s.stx_dev_minor, s.stx_ino);
    let device = |s: &Statx| (s.stx_rdev_major, s.stx_rdev_minor);
    file(a) == file(b) || (is_block(a) && is_block(b) && device(a) == device(b))
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its command line, shortened, or its name.
    pub command: String,
}

impl Process {
    fn new(pid: u32) -> Process {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = words.split(|&b| b == 0).filter(|w| !w.is_empty()).map(String::from_utf8_lossy);
        let mut command = words.collect::<Vec<_>>().join(" ");
        if command.is_empty() {
            return Process::named(pid);
        }
        if command.chars().count() > 120 {
            command = command.chars().take(117).chain("...".chars()).collect();
        }
        Process { pid, command }
    }

    /// With its name alone, which can be read though its memory cannot: a command line waits for a process that waits for a page of a server
    /// that hangs.
    fn named(pid: u32) -> Process {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Process { pid, command: format!("[{}]", name.trim()) }
    }

    /// Whether it was killed, and only the kernel is still busy with it.
    pub fn is_ending(&self) -> bool {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)) else { return true };
        // "4711 (name) S ...", where the name may hold anything.
        let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
        // Its memory goes before its files do.
        matches!(state, Some('Z' | 'X') | None)
            || std::fs::read(format!("/proc/{}/cmdline", self.pid)).is_ok_and(|c| c.is_empty())
    }
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} ({})", self.pid, self.command)
    }
}

/// How often the table of locks is read before a lock counts as not there.
const LOCKS_READ: u32 = 4;

/// Who holds the lock on an image, as far as `/proc/locks` tells (not across containers).
pub fn lock_holder(image: &Path) -> Option<Process> {
    let meta = std::fs::metadata(image).ok()?;
    let (major, minor) = (libc::major(meta.dev()), libc::minor(meta.dev()));
    let file = format!("{major:02x}:{minor:02x}:{}", meta.ino());
    // The kernel gives the table in pieces, and leaves out lines of it when others take and drop locks in between.
    let line = (0..LOCKS_READ).find_map(|_| {
        let table = std::fs::read_to_string("/proc/locks").ok()?;
        table.lines().find(|l| l.contains("FLOCK") && l.split(' ').any(|w| w == file)).map(str::to_string)
    })?;
    // "1: FLOCK  ADVISORY  WRITE 4711 fe:00:12345 0 EOF"
    // 0 or -1: it has ended, or is in another container.
    let pid = line.split_whitespace().nth(4)?.parse().ok().filter(|pid| *pid > 0)?;
    Some(Process::new(pid))
}

/// Processes that keep a mount busy: with an open file, a mapping, a program or a current directory below it.
pub fn users(mount: &MountInfo) -> Vec<Process> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|p| p.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<Process> = pids.filter(|pid| uses(*pid, &mount.point)).map(Process::new).collect();
    found.sort_by_key(|p| p.pid);
    found
}

fn uses(pid: u32, point: &Path) -> bool {
    let root = PathBuf::from(format!("/proc/{pid}"));
    let links = ["cwd", "root", "exe"].map(|n| root.join(n));
    let files = std::fs::read_dir(root.join("fd")).into_iter().flatten().flatten().map(|e| e.path());
    // Links are read, never followed: following them could wait for the mount.
    links.into_iter().chain(files).any(|l| std::fs::read_link(l).is_ok_and(|to| to.starts_with(point)))
        || std::fs::read(root.join("maps")).is_ok_and(|maps| {
            maps.split(|&b| b == b'\n').any(|line| {
                let at = line.iter().position(|&b| b == b'/').unwrap_or(line.len());
                Path::new(OsStr::from_bytes(&line[at..])).starts_with(point)
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_mounted_and_locks_are_found() {
        assert!(at(Path::new("/")).unwrap().is_some());
        let dir = tempfile::tempdir().unwrap();
        assert!(at(dir.path()).unwrap().is_none());
        let path = dir.path().join("image");
        let file = std::fs::File::create(&path).unwrap();
        assert_eq!(lock_holder(&path), None);
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(lock_holder(&path).map(|p| p.pid), Some(std::process::id()));
    }
}
