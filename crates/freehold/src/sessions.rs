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
pub use share::offers::{Offer, Reach, directories};
use share::offers::{is_open, is_trusted, own_directory, socket_name};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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
    let at = dir.join(socket_name(&mount.device));
    // The number was another mount's before: its server may be about to end.
    let until = Instant::now() + Duration::from_secs(1);
    while is_open(&at) {
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

/// All volumes of Freehold that this process sees mounted, in the order of their mount points. Sockets that servers left behind in directories of this user are
/// removed.
///
/// # Errors
/// The table of mounts cannot be read.
pub fn list() -> io::Result<Vec<Offer>> {
    let all = mounts::list()?;
    directories().iter().filter(|dir| is_trusted(dir)).for_each(|dir| sweep(dir, &all));
    Ok(share::offers::list_of(&all))
}

/// Removes sockets of mounts that are gone. What belongs to a mount stays: its server may be about to listen.
fn sweep(dir: &Path, all: &[MountInfo]) {
    if std::fs::metadata(dir).is_ok_and(|m| m.uid() != rustix::process::geteuid().as_raw()) {
        return;
    }
    let entries: Vec<_> = std::fs::read_dir(dir).into_iter().flatten().flatten().collect();
    for entry in &entries {
        let file = entry.file_name();
        let Some(device) = file.to_str().and_then(|f| f.strip_suffix(".sock")) else { continue };
        let Some((major, minor)) = device.split_once('-') else { continue };
        if major.parse::<u32>().is_err() || minor.parse::<u32>().is_err() {
            continue;
        }
        let device = format!("{major}:{minor}");
        // In another container it may be mounted still.
        if all.iter().all(|m| m.device != device) && !is_open(&entry.path()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    // What led to one of them.
    for entry in &entries {
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
        let kept = dir.path().join(socket_name(&all[0].device));
        for path in [&gone, &other, &kept] {
            drop(std::os::unix::net::UnixListener::bind(path).unwrap());
        }
        assert!(is_trusted(dir.path()));
        sweep(dir.path(), &all);
        assert!(!gone.exists() && other.exists() && kept.exists());
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(!is_trusted(dir.path()));
    }
}
