//! `freehold umount`: ends a mount, waits until the volume behind it is closed, and clears away mounts whose server died.

use super::explain;
use anyhow::{Context, anyhow, bail};
use freehold::mounts::{self, MountInfo};
use freehold::service::{Ended, Watch};
use rustix::fs::FlockOperation;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Stop serving a volume, and wait until it is closed
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  freehold umount /mnt
  freehold umount disk.img          wherever it is mounted
  freehold umount --force /mnt      though programs use it: their calls fail from then on

When it returns, the image can be used again at once. A mount whose server was killed is cleared \
away; the next mount of the volume finds everything that was synced.")]
pub struct Args {
    /// Mount point, image file or block device
    #[arg(value_name = "DIR|IMAGE")]
    target: PathBuf,
    /// Unmount even if files are open: calls on them fail from then on
    #[arg(long, short)]
    force: bool,
    /// Give up waiting after this many seconds (the volume is then closed later)
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
}

impl Args {
    /// What umount(8) asks its helper for.
    pub fn from_helper(target: PathBuf, force: bool) -> Args {
        Args { target, force, timeout: 600 }
    }
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let mount = find(&args.target)?;
    let at = mount.point.display();
    let image = Path::new(&mount.source);
    let watch = Watch::new(image).ok();
    let dead = watch.is_none() && is_dead(&mount);
    let until = Instant::now() + Duration::from_secs(args.timeout);
    match unmount(&mount.point, args.force || dead) {
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
            let users = mounts::users(&mount);
            let who = match users.as_slice() {
                [] => " by something (another mount below it, or a process that you may not see)".to_string(),
                users => format!(" by{}", explain::list(users)),
            };
            bail!("{at} is in use{who}\nEnd these, or use --force: their calls fail from then on");
        }
        done => done.map_err(|e| anyhow!("cannot unmount {at}: {e}"))?,
    }
    if dead {
        eprintln!("freehold: the server of {at} had died; the mount is cleared away");
        return Ok(());
    }
    let ended = match watch {
        Some(watch) => watch.wait(until.saturating_duration_since(Instant::now())),
        None => Ok(Ended::Closed),
    };
    let name = image.display();
    match ended {
        Ok(Ended::Closed) => wait_for_lock(image, until),
        Ok(Ended::Failed(why)) => bail!(
            "{at} is unmounted, but {name} could not be closed cleanly: {why}\n\
             What was synced is safe; later changes may be lost"
        ),
        Ok(Ended::Died) => bail!(
            "{at} is unmounted, but its server died before {name} was closed\n\
             What was synced is safe; later changes may be lost"
        ),
        Err(e) => bail!("{at} is unmounted, but {name} is not closed yet ({e}); the server goes on"),
    }
}

/// Whether nobody serves a mount. A server that holds the image but does not answer may be about to end: it gets a second.
/// Only without a server is the mount itself asked, because one that hangs would not answer.
pub(super) fn is_dead(mount: &MountInfo) -> bool {
    let until = Instant::now() + Duration::from_secs(1);
    while mounts::lock_holder(Path::new(&mount.source)).is_some() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    mount.is_dead()
}

fn find(target: &Path) -> anyhow::Result<MountInfo> {
    let name = target.display();
    let found = mounts::at(target).map_err(|e| explain::host(e, "looking for", target))?;
    let found = match found {
        Some(m) => Some(m),
        None if target.is_dir() => None,
        None => {
            let all =
                mounts::of_image(target).map_err(|e| explain::host(e, "looking for mounts of", target))?;
            all.into_iter().rev().find(MountInfo::is_freehold)
        }
    };
    match found {
        Some(m) if m.is_freehold() => Ok(m),
        Some(m) => bail!("{name} is a mount of type {}, not of Freehold. Use umount", m.kind),
        None => bail!("{name} is not mounted"),
    }
}

/// umount(2), or `fusermount3 -u` for those who may not call it.
pub(super) fn unmount(point: &Path, force: bool) -> io::Result<()> {
    if force && let Ok(dir) = std::fs::File::open(point) {
        // As much as possible reaches the server before files lose it.
        let _ = rustix::fs::syncfs(&dir);
    }
    let target = CString::new(point.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW | if force { libc::MNT_FORCE | libc::MNT_DETACH } else { 0 };
    // SAFETY: target is a NUL-terminated string that lives during the call.
    if unsafe { libc::umount2(target.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let e = io::Error::last_os_error();
    if e.raw_os_error() != Some(libc::EPERM) {
        return Err(e);
    }
    let mut helper = Command::new("fusermount3");
    helper.arg("-u").args(force.then_some("-z")).arg("--").arg(point).stdin(Stdio::null());
    let out =
        helper.output().map_err(|e| io::Error::new(e.kind(), format!("fusermount3 (package fuse3): {e}")))?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr).trim().to_string();
    Err(if said.contains("busy") {
        io::Error::from_raw_os_error(libc::EBUSY)
    } else {
        io::Error::other(said)
    })
}

/// Waits until nobody has the image open for writing.
fn wait_for_lock(image: &Path, until: Instant) -> anyhow::Result<()> {
    let Ok(file) = std::fs::File::open(image) else { return Ok(()) };
    while let Err(e) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        if e != rustix::io::Errno::WOULDBLOCK {
            return Err(e).context(format!("waiting for {}", image.display()));
        }
        if Instant::now() >= until {
            bail!("{} is still in use; its server goes on closing it", image.display());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
