//! What programs have open when a server is stopped, for the next server of the same volume (`share::server::rights`).
//!
//! It is a file `open-VOLUME` in the directory where this user's servers have their sockets, which nobody else can write to; the next server takes it away. It counts
//! for the one that follows the stop directly, and of which nothing was lost. Of volumes that are not served again it goes after a day.
//!
//! Tested in `tests/resume.rs`.

use fs::{Ino, OpenFlags, Opening};
use serde::{Deserialize, Serialize};
use share::offers::{is_trusted, own_directory};
use share::server::rights::Right;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// More is nobody's doing.
const BYTES_MAX: u64 = 64 << 20;
/// After so long nobody comes for what was left of a volume.
const KEPT: Duration = Duration::from_secs(24 * 3600);

#[derive(Serialize, Deserialize)]
struct Left {
    /// Number of the opening that ended.
    opening: u64,
    /// User, group and other groups; inode and generation; access.
    open: Vec<(u32, u32, Vec<u32>, u64, u32, u32)>,
}

fn place(opening: &Opening) -> Option<PathBuf> {
    let dir = own_directory().filter(|dir| is_trusted(dir))?;
    Some(dir.join(format!("open-{:032x}", u128::from_be_bytes(opening.volume))))
}

/// Says what is open, when the opening of the volume ends.
///
/// # Errors
/// Those of files.
pub(crate) fn leave(opening: &Opening, rights: Vec<Right>) -> io::Result<()> {
    let Some(at) = place(opening).filter(|_| !rights.is_empty()) else { return Ok(()) };
    at.parent().inspect(|dir| sweep(dir, KEPT));
    let all = rights
        .into_iter()
        .map(|Right { cred, inode, access }| (cred.0, cred.1, cred.2, inode.0.0, inode.1, access.bits()));
    let left = Left { opening: opening.number, open: all.collect() };
    let new = at.with_extension("new");
    let _ = std::fs::remove_file(&new);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(&serde_json::to_vec(&left)?)?;
    std::fs::rename(&new, &at)
}

/// Removes what is older in this directory: its volumes are served no more.
fn sweep(dir: &Path, kept: Duration) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_left = entry.file_name().as_encoded_bytes().starts_with(b"open-");
        let modified = entry.metadata().and_then(|meta| meta.modified());
        let age = modified.ok().and_then(|at| at.elapsed().ok());
        if is_left && age.is_some_and(|age| age > kept) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// What the server before this opening of the volume has left.
pub(crate) fn take(opening: &Opening) -> Vec<Right> {
    let Some(at) = place(opening) else { return Vec::new() };
    let left = read(&at);
    let _ = std::fs::remove_file(&at);
    let left = match left {
        Ok(left) => left,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(e) => {
            tracing::warn!("{}: {e}", at.display());
            return Vec::new();
        }
    };
    if !opening.keeps(&Opening { number: left.opening, ..*opening }) {
        return Vec::new();
    }
    let right = |(uid, gid, groups, ino, generation, access)| Right {
        cred: (uid, gid, groups),
        inode: (Ino(ino), generation),
        access: OpenFlags::from_bits_truncate(access),
    };
    left.open.into_iter().map(right).collect()
}

fn read(at: &Path) -> io::Result<Left> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(at)?;
    let meta = file.metadata()?;
    if !meta.is_file() || meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o077 != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not what a server has left"));
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_old_goes() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str| std::fs::write(dir.path().join(name), b"").unwrap();
        let all = || {
            let names = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name());
            let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
            names.sort();
            names
        };
        ["open-1", "at-2.sock"].into_iter().for_each(put);
        std::thread::sleep(Duration::from_millis(20));
        sweep(dir.path(), KEPT);
        assert_eq!(all(), ["at-2.sock", "open-1"]);
        sweep(dir.path(), Duration::from_millis(10));
        assert_eq!(all(), ["at-2.sock"]);
    }
}
