//! How a process finds the sessions of the volumes that it sees mounted: the client's half of what `freehold::sessions` lays out, where the places
//! of sockets are described.
//!
//! Only directories of root and of the asking user are looked into, as whoever owns one can pretend to be the server.
//! Tested in `freehold/tests/run.rs`.

use crate::knock;
use crate::mounts::{self, MountInfo};
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const OF_ROOT: &str = "/run/freehold";

pub use crate::knock::is_open;

/// The directories in which sockets are looked for: the own one first.
pub fn directories() -> Vec<PathBuf> {
    let own = own_directory();
    let is_named = std::env::var_os("FREEHOLD_RUN_DIR").is_some_and(|d| !d.is_empty());
    let of_root = (!is_named).then(|| PathBuf::from(OF_ROOT)).filter(|d| own.as_ref() != Some(d));
    own.into_iter().chain(of_root).collect()
}

pub(crate) fn euid() -> u32 {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() }
}

/// Where this user's sockets are made. `None`: there is no directory for that.
pub fn own_directory() -> Option<PathBuf> {
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
pub fn is_trusted(dir: &Path) -> bool {
    let ok =
        |m: std::fs::Metadata| m.is_dir() && (m.uid() == 0 || m.uid() == euid()) && m.mode() & 0o022 == 0;
    std::fs::symlink_metadata(dir).is_ok_and(ok)
}

/// Name of the socket of the mount with this device number (`major:minor`).
pub fn socket_name(device: &str) -> String {
    format!("{}.sock", device.replace(':', "-"))
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

/// All volumes of Freehold that this process sees mounted, in the order of their mount points.
///
/// # Errors
/// The table of mounts cannot be read.
pub fn list() -> io::Result<Vec<Offer>> {
    Ok(list_of(&mounts::list()?))
}

/// As [`list`], of a table of mounts.
pub fn list_of(all: &[MountInfo]) -> Vec<Offer> {
    let directories: Vec<PathBuf> = directories().into_iter().filter(|d| is_trusted(d)).collect();
    // Of mounts at one point the last one counts.
    let is_hidden =
        |i: usize, m: &MountInfo| all[i + 1..].iter().any(|later| m.point.starts_with(&later.point));
    let shown: Vec<&MountInfo> = all
        .iter()
        .enumerate()
        .filter(|(i, m)| m.is_freehold() && !is_hidden(*i, m))
        .map(|(_, m)| m)
        .collect();
    let places: Vec<Vec<PathBuf>> = shown
        .iter()
        .map(|m| match only_kernel(m) {
            Some(_) => Vec::new(),
            None => directories.iter().map(|d| d.join(socket_name(&m.device))).collect(),
        })
        .collect();
    let mut answers = knock::knock(&places.concat()).into_iter();
    let offer = |(m, sockets): (&&MountInfo, Vec<PathBuf>)| Offer {
        point: m.point.clone(),
        image: m.source.clone(),
        reach: reach(m, sockets.into_iter().zip(answers.by_ref())),
        inner: inner(all, &m.point),
    };
    let mut offers: Vec<Offer> = shown.iter().zip(places).map(offer).collect();
    offers.sort_by(|a, b| a.point.cmp(&b.point));
    offers
}

/// The mount points below `point`.
pub fn inner(all: &[MountInfo], point: &Path) -> Vec<PathBuf> {
    let below = |m: &&MountInfo| m.point != point && m.point.starts_with(point);
    all.iter().filter(below).map(|m| m.point.clone()).collect()
}

/// Why there can be no sessions, whoever serves it.
fn only_kernel(m: &MountInfo) -> Option<&'static str> {
    match m {
        m if m.root != "/" => Some("only a part of a volume is mounted there"),
        // A session would know nothing of a mount that was made read-only later.
        m if m.read_only => Some("it is mounted read-only"),
        m if m.point == Path::new("/") => Some("it is the root directory"),
        _ => None,
    }
}

/// `answers`: of all sockets where it could be served.
fn reach(m: &MountInfo, answers: impl Iterator<Item = (PathBuf, io::Result<()>)>) -> Reach {
    if let Some(why) = only_kernel(m) {
        return Reach::Kernel(why.into());
    }
    let mut why =
        "its server offers no sessions (it was mounted with -o noshare, or by another user)".to_string();
    let (mut found, mut answers) = (None, answers);
    // All of the answers: the next ones are of the next mount.
    answers.by_ref().for_each(|(socket, answer)| match answer {
        _ if found.is_some() => {}
        Ok(()) => found = Some(socket),
        Err(e) if e.raw_os_error() == Some(libc::EMFILE) => {
            why = "this process has too few descriptors for a session (ulimit -n)".into();
        }
        Err(e) => match e.kind() {
            io::ErrorKind::NotFound => {}
            io::ErrorKind::ConnectionRefused | io::ErrorKind::TimedOut => {
                why = "its server does not answer".into();
            }
            io::ErrorKind::PermissionDenied => {
                why = "it is for another user alone (mounted without allow_other)".into();
            }
            _ => why = format!("no session can be begun: {e}"),
        },
    });
    found.map_or(Reach::Kernel(why), Reach::Session)
}

/// The value of `FREEHOLD_MOUNTS`: mount paths, absolute, normal and without a slash at their end, and sockets. Parts that make no sense are left out:
/// their paths go to the kernel.
pub fn parse(value: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    value
        .split(|&b| b == b';')
        .filter_map(|part| {
            let at = part.iter().position(|&b| b == b'=')?;
            let (path, socket) = (&part[..at], &part[at + 1..]);
            let plain =
                path.first() == Some(&b'/') && !path.split(|&b| b == b'/').any(|n| n == b"." || n == b"..");
            let names: Vec<&[u8]> = path.split(|&b| b == b'/').filter(|n| !n.is_empty()).collect();
            if !plain || names.is_empty() || socket.is_empty() {
                return None;
            }
            Some((names.iter().flat_map(|n| [b"/", *n].concat()).collect(), socket.to_vec()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable() {
        let got = parse(b"/mnt/a=/run/a.sock;//mnt//b/=/run/b;/=x;rel=y;/a/../b=z;/c=;nonsense");
        let want: Vec<(Vec<u8>, Vec<u8>)> =
            vec![(b"/mnt/a".to_vec(), b"/run/a.sock".to_vec()), (b"/mnt/b".to_vec(), b"/run/b".to_vec())];
        assert_eq!(got, want);
    }

    #[test]
    fn mounts_that_are_covered() {
        let all = mounts::list().unwrap();
        assert!(inner(&all, Path::new("/")).len() + 1 >= all.len().min(2));
        assert!(inner(&all, Path::new("/nowhere")).is_empty());
    }
}
