//! `freehold umount`: ends a mount, waits until the volume behind it is closed, and clears away mounts whose server died.
//!
//! A volume may be mounted at several places: bind mounts, and copies in other mount namespaces. It is closed when the last of them is gone, so
//! only then is that waited for; and only the last may be taken from programs that use it, as that ends the
//! connection which all of them share.

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
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Stop serving a volume, and wait until it is closed
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  freehold umount /mnt
  freehold umount disk.img          wherever it is mounted
  freehold umount --force /mnt      though programs use it: their calls fail from then on
  freehold umount --lazy /mnt       though programs use it: they keep what they have open

When it returns, the image can be used again at once; with --lazy it is closed later. While the volume is mounted at other places \
(bind mounts, containers) it goes on being served there, whatever is done to one of them: --force then takes nothing from \
anybody, and works as --lazy. A mount whose server was killed is cleared \
away; the next mount of the volume finds everything that was synced.")]
pub struct Args {
    /// Mount point, image file or block device
    #[arg(value_name = "DIR|IMAGE")]
    target: PathBuf,
    /// Unmount even if files are open: calls on them fail from then on
    #[arg(long, short)]
    force: bool,
    /// Take the mount out of sight, and do not wait: the volume is closed when nobody uses it any more
    #[arg(long, short)]
    lazy: bool,
    /// Give up waiting after this many seconds (the volume is then closed later)
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
}

impl Args {
    /// What umount(8) asks its helper for.
    pub fn from_helper(target: PathBuf, force: bool, lazy: bool) -> Args {
        Args { target, force, lazy, timeout: 600 }
    }
}

/// How a mount is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Only when nobody uses it.
    Idle,
    /// Those who use it keep what they have open.
    Detach,
    /// As well the connection to the server ends, for all mounts of the volume: every call from then on fails.
    Abort,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let mount = find(&args.target)?;
    let at = mount.point.display();
    let image = Path::new(&mount.source);
    // Who does not wait asks nobody: the server may be one that hangs.
    let watch = if args.lazy { Err(io::ErrorKind::NotConnected.into()) } else { Watch::new(image) };
    let hangs = watch.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock);
    let watch = watch.ok();
    // Nor is a mount asked that is to go in any case.
    let dead = !args.lazy && !args.force && watch.is_none() && is_dead(&mount);
    let is_last = || !mounts::others(&mount).iter().any(|other| other.outlives(&mount));
    let how = match (args.force, args.lazy) {
        _ if dead => How::Abort,
        (true, _) if is_last() => How::Abort,
        (false, false) => How::Idle,
        _ => How::Detach,
    };
    let until = Instant::now() + Duration::from_secs(args.timeout);
    if how == How::Abort && !dead {
        // As much as possible reaches the server before files lose it, unless it seems to hang.
        sync(&mount.point, Duration::from_secs(if watch.is_some() { 60 } else { 5 }));
    }
    match unmount(&mount, how) {
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
    if args.lazy {
        return Ok(());
    }
    if let [other, ..] = mounts::others(&mount).as_slice() {
        if args.force || mount.root == "/" {
            let more = if args.force { ", so programs keep what they had open here" } else { "" };
            eprintln!("freehold: {at} is unmounted; {} is still mounted at {other}{more}", image.display());
        }
        return Ok(());
    }
    if hangs {
        bail!(
            "{at} is unmounted, but its server does not answer: {} is closed when it goes on, and free when it is killed",
            image.display()
        );
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

/// Whether nobody serves a mount. A server that holds the image but does not answer may be about to end: it gets a second. One that was killed may not
/// come to an end before its connection does: a thread of it tells the kernel of a change, and waits there for a lock that a program has whose request
/// nobody answers any more.
/// Only without a server is the mount itself asked, because one that hangs would not answer.
pub(super) fn is_dead(mount: &MountInfo) -> bool {
    let until = Instant::now() + Duration::from_secs(1);
    while let Some(holder) = mounts::lock_holder(Path::new(&mount.source)) {
        if Instant::now() >= until {
            return holder.is_ending();
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
            // All of the volume rather than a part of it that is bound somewhere.
            let mut ours: Vec<MountInfo> = all.into_iter().rev().filter(MountInfo::is_freehold).collect();
            ours.sort_by_key(|m| m.root != "/");
            ours.into_iter().next()
        }
    };
    match found {
        Some(m) if m.is_freehold() => Ok(m),
        Some(m) => bail!("{name} is a mount of type {}, not of Freehold. Use umount", m.kind),
        None => bail!("{name} is not mounted"),
    }
}

/// umount(2), or `fusermount3 -u` for those who may not call it.
pub(super) fn unmount(mount: &MountInfo, how: How) -> io::Result<()> {
    let point = &mount.point;
    let target = CString::new(point.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW
        | match how {
            How::Idle => 0,
            How::Detach => libc::MNT_DETACH,
            How::Abort => libc::MNT_FORCE | libc::MNT_DETACH,
        };
    // SAFETY: target is a NUL-terminated string that lives during the call.
    if unsafe { libc::umount2(target.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let e = io::Error::last_os_error();
    if e.raw_os_error() != Some(libc::EPERM) {
        return Err(e);
    }
    // The helper only takes it out of sight, and those who have files open would go on.
    let connection = (how == How::Abort).then(|| fuse::Connection::of(&mount.device).ok()).flatten();
    let mut helper = Command::new("fusermount3");
    helper.arg("-u").args((how != How::Idle).then_some("-z")).arg("--").arg(point).stdin(Stdio::null());
    let out =
        helper.output().map_err(|e| io::Error::new(e.kind(), format!("fusermount3 (package fuse3): {e}")))?;
    if out.status.success() {
        return connection.map_or(Ok(()), |connection| connection.abort());
    }
    let said = String::from_utf8_lossy(&out.stderr).trim().to_string();
    Err(if said.contains("busy") {
        io::Error::from_raw_os_error(libc::EBUSY)
    } else {
        io::Error::other(said)
    })
}

/// Has a mount write what is changed, for at most `patience`. The thread that still waits then ends with the connection.
fn sync(point: &Path, patience: Duration) {
    let (done, end) = mpsc::channel();
    let point = point.to_path_buf();
    let ask = move || {
        if let Ok(dir) = std::fs::File::open(point) {
            let _ = rustix::fs::syncfs(&dir);
        }
        let _ = done.send(());
    };
    if std::thread::Builder::new().spawn(ask).is_ok() {
        let _ = end.recv_timeout(patience);
    }
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
