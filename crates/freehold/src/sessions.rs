//! Where the sessions of mounted volumes are begun, so that nobody needs to name a socket.
//!
//! The socket of a mount is `MAJOR-MINOR.sock`, after the device number that the kernel gave the mount, in `/run/freehold` for root and in
//! `$XDG_RUNTIME_DIR/freehold` (else `/run/user/UID/freehold`) for others; `FREEHOLD_RUN_DIR` names another directory. With `-o share=SOCKET` a symlink
//! of that name leads to the socket. Which mount point a socket belongs to, the kernel's table of mounts says: no two mounts have a number at the
//! same time, and the table is the one that the asking process sees, so a socket is never taken for that of another volume, whatever was
//! mounted over it, moved, or left behind by a killed server.
//!
//! Beside it stands a symlink named after the mount point alone ([`share::name_at`]): programs whose server has ended find there the next one that serves
//! the same volume at the same place, and ask it which volume it has.
//!
//! Only directories of root and of the asking user are looked into, as whoever owns one can pretend to be the server.
//!
//! Tested in `tests/run.rs`.

use crate::mounts::{self, MountInfo};
use crate::options::Share;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const OF_ROOT: &str = "/run/freehold";

/// The directories in which sockets are looked for: the own one first.
pub fn directories() -> Vec<PathBuf> {
    let own = own_directory();
    let is_named = std::env::var_os("FREEHOLD_RUN_DIR").is_some_and(|d| !d.is_empty());
    let of_root = (!is_named).then(|| PathBuf::from(OF_ROOT)).filter(|d| own.as_ref() != Some(d));
    own.into_iter().chain(of_root).collect()
}

fn euid() -> u32 {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() }
}

/// Where this user's sockets are made. `None`: there is no directory for that.
fn own_directory() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|d| d.is_absolute());
    if let Some(dir) = named("FREEHOLD_RUN_DIR") {
        return Some(dir);
    }
    if euid() == 0 {
        return Some(OF_ROOT.into());
    }
    let dir = named("XDG_RUNTIME_DIR").or_else(|| Some(format!("/run/user/{}", euid()).into()));
    dir.filter(|d| d.is_dir()).map(|d| d.join("freehold"))
}

/// Whether root or this user, and nobody else, decides what is in a directory.
fn is_trusted(dir: &Path) -> bool {
    let ok =
        |m: std::fs::Metadata| m.is_dir() && (m.uid() == 0 || m.uid() == euid()) && m.mode() & 0o022 == 0;
    std::fs::symlink_metadata(dir).is_ok_and(ok)
}

fn name(device: &str) -> String {
    format!("{}.sock", device.replace(':', "-"))
}

/// The place where a server offers sessions. What it put there goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    /// Where the server listens.
    pub socket: PathBuf,
    /// Other names of the socket.
    links: Vec<PathBuf>,
}

impl Place {
    /// The place for the volume mounted at `point`. `None`: there is no usual place for this user, or it is not wanted.
    pub fn make(point: &Path, share: &Share) -> io::Result<Option<Place>> {
        if *share == Share::Off {
            return Ok(None);
        }
        let usual = usual(point);
        let (socket, by_number) = match (share, usual) {
            // Without a usual place it is found by its name alone.
            (Share::At(socket), usual) => (socket.clone(), usual.ok().flatten().filter(|at| at != socket)),
            (_, usual) => match usual? {
                Some(socket) => (socket, None),
                None => return Ok(None),
            },
        };
        let mut links: Vec<PathBuf> = by_number.into_iter().collect();
        if let Ok(point) = point.canonicalize() {
            links.push(socket.with_file_name(share::name_at(point.as_os_str().as_bytes())));
        }
        links.retain(|at| {
            // What a server that ended, or was killed, has left there.
            let left = std::fs::symlink_metadata(at).is_ok_and(|m| m.is_symlink());
            let removed = if left { std::fs::remove_file(at) } else { Ok(()) };
            let linked = removed.and_then(|()| symlink(&socket, at));
            linked.inspect_err(|e| tracing::warn!("{}: {e}", at.display())).is_ok()
        });
        Ok(Some(Place { socket, links }))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for link in &self.links {
            // Another server may have put its own there.
            if std::fs::read_link(link).is_ok_and(|to| to == self.socket) {
                let _ = std::fs::remove_file(link);
            }
        }
    }
}

/// The free usual place for the volume mounted at `point`.
fn usual(point: &Path) -> io::Result<Option<PathBuf>> {
    let Some(dir) = own_directory() else { return Ok(None) };
    let mut builder = std::fs::DirBuilder::new();
    builder.mode(0o755);
    match builder.create(&dir) {
        // The umask may have taken away that others may look into it.
        Ok(()) => std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755))?,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(io::Error::new(e.kind(), format!("{}: {e}", dir.display()))),
    }
    if !is_trusted(&dir) {
        let text = format!("{} belongs to somebody else, or others may write there", dir.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    let mount = mounts::at(point)?.filter(MountInfo::is_freehold).ok_or(io::ErrorKind::NotFound)?;
    let at = dir.join(name(&mount.device));
    // The number was another mount's before: its server may be about to end.
    let until = Instant::now() + Duration::from_secs(1);
    while is_served(&at) {
        if Instant::now() > until {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, format!("{} is in use", at.display())));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    match std::fs::remove_file(&at) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(Some(at)),
    }
}

/// Whether somebody listens at a socket, as far as this user can know.
fn is_served(socket: &Path) -> bool {
    match share::Remote::connect(socket) {
        Ok(_) => true,
        Err(e) => !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused),
    }
}

/// How programs of this user reach a mounted volume.
#[derive(Debug)]
pub enum Reach {
    /// Through sessions at this socket, where somebody has just answered.
    Session(PathBuf),
    /// Only through the kernel. Why, for people.
    Kernel(String),
}

/// A mounted volume.
#[derive(Debug)]
pub struct Offer {
    /// Where it is mounted.
    pub point: PathBuf,
    /// Its image or device.
    pub image: OsString,
    /// How it is reached.
    pub reach: Reach,
    /// Mount points below it, where its paths end.
    pub inner: Vec<PathBuf>,
}

/// All volumes of Freehold that this process sees mounted, in the order of their mount points. Sockets that servers left behind in directories of this user are
/// removed.
///
/// # Errors
/// The table of mounts cannot be read.
pub fn list() -> io::Result<Vec<Offer>> {
    let all = mounts::list()?;
    let directories: Vec<PathBuf> = directories().into_iter().filter(|d| is_trusted(d)).collect();
    directories.iter().for_each(|dir| sweep(dir, &all));
    // Of mounts at one point the last one counts.
    let is_hidden =
        |i: usize, m: &MountInfo| all[i + 1..].iter().any(|later| m.point.starts_with(&later.point));
    let shown = all.iter().enumerate().filter(|(i, m)| m.is_freehold() && !is_hidden(*i, m)).map(|(_, m)| m);
    let mut offers: Vec<Offer> = shown
        .map(|m| Offer {
            point: m.point.clone(),
            image: m.source.clone(),
            reach: reach(m, &directories),
            inner: inner(&all, &m.point),
        })
        .collect();
    offers.sort_by(|a, b| a.point.cmp(&b.point));
    Ok(offers)
}

/// The mount points below `point`.
fn inner(all: &[MountInfo], point: &Path) -> Vec<PathBuf> {
    let below = |m: &&MountInfo| m.point != point && m.point.starts_with(point);
    all.iter().filter(below).map(|m| m.point.clone()).collect()
}

fn reach(m: &MountInfo, directories: &[PathBuf]) -> Reach {
    if m.root != "/" {
        return Reach::Kernel("only a part of a volume is mounted there".into());
    }
    if m.read_only {
        // A session would know nothing of a mount that was made read-only later.
        return Reach::Kernel("it is mounted read-only".into());
    }
    if m.point == Path::new("/") {
        return Reach::Kernel("it is the root directory".into());
    }
    let mut why =
        "its server offers no sessions (it was mounted with -o noshare, or by another user)".to_string();
    for socket in directories.iter().map(|d| d.join(name(&m.device))) {
        match share::Remote::connect(&socket) {
            Ok(_) => return Reach::Session(socket),
            Err(e) => match e.kind() {
                io::ErrorKind::NotFound => {}
                io::ErrorKind::ConnectionRefused => why = "its server does not answer".into(),
                io::ErrorKind::PermissionDenied => {
                    why = "it is for another user alone (mounted without allow_other)".into();
                }
                _ => why = format!("no session can be begun: {e}"),
            },
        }
    }
    Reach::Kernel(why)
}

/// Removes sockets of mounts that are gone. What belongs to a mount stays: its server may be about to listen.
fn sweep(dir: &Path, all: &[MountInfo]) {
    if std::fs::metadata(dir).is_ok_and(|m| m.uid() != euid()) {
        return;
    }
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let file = entry.file_name();
        let Some(device) = file.to_str().and_then(|f| f.strip_suffix(".sock")) else { continue };
        let Some((major, minor)) = device.split_once('-') else { continue };
        if major.parse::<u32>().is_err() || minor.parse::<u32>().is_err() {
            continue;
        }
        let device = format!("{major}:{minor}");
        // In another container it may be mounted still.
        if all.iter().all(|m| m.device != device) && !is_served(&entry.path()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    // What led to one of them.
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let leads = entry.file_name().to_str().is_some_and(|f| f.starts_with("at-") && f.ends_with(".sock"));
        let is_link = entry.file_type().is_ok_and(|t| t.is_symlink());
        if leads && is_link && !entry.path().exists() {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_swept() {
        let dir = tempfile::tempdir().unwrap();
        let (gone, other) = (dir.path().join("4000000000-1.sock"), dir.path().join("notes.sock"));
        let all = mounts::list().unwrap();
        let kept = dir.path().join(name(&all[0].device));
        for path in [&gone, &other, &kept] {
            drop(std::os::unix::net::UnixListener::bind(path).unwrap());
        }
        assert!(is_trusted(dir.path()));
        sweep(dir.path(), &all);
        assert!(!gone.exists() && other.exists() && kept.exists());
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(!is_trusted(dir.path()));
    }

    #[test]
    fn mounts_that_are_covered() {
        let all = mounts::list().unwrap();
        assert!(inner(&all, Path::new("/")).len() + 1 >= all.len().min(2));
        assert!(inner(&all, Path::new("/nowhere")).is_empty());
    }
}
