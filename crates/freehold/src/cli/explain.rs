//! Errors as sentences that say what to do.

use anyhow::anyhow;
use freehold::mounts::{self, Process};
use freehold::service::StartError;
use freehold::{Error, FileSystem};
use media::MediaError;
use std::io;
use std::path::Path;

/// Refuses a bucket where only a volume will do.
pub fn not_bucket(target: &Path) -> anyhow::Result<()> {
    if !freehold::bucket::is_url(target) {
        return Ok(());
    }
    let name = target.display();
    anyhow::bail!(
        "{name} is a bucket, and this is for volumes. What a mount of it does: --metrics and SIGUSR1 (see freehold mount \
         --help). What interrupted uploads left behind: freehold object ls {name}"
    )
}

/// Why a volume in `image` could not be opened, made or used.
pub fn volume(e: Error, image: &Path) -> anyhow::Error {
    let name = image.display();
    let errno = match &e {
        Error::Media(m) => m.errno(),
        _ => e.errno(),
    };
    match &e {
        Error::Media(MediaError::Setup { doing, .. }) => match (errno, *doing) {
            (libc::ENOENT, _) if image.parent().is_some_and(|p| !p.as_os_str().is_empty() && !p.exists()) => {
                anyhow!("{name}: there is no such directory")
            }
            (libc::ENOENT, _) if image.starts_with("/dev") => anyhow!("there is no device {name}"),
            (libc::ENOENT, _) => {
                anyhow!("{name} does not exist. Make a volume there with: freehold mkfs {name} --size 8G")
            }
            (libc::EBUSY, _) => busy(image),
            (libc::EACCES | libc::EPERM, doing) if doing.contains("io_uring") => {
                anyhow!(
                    "io_uring is forbidden here (sysctl kernel.io_uring_disabled, or the container's seccomp profile)"
                )
            }
            (libc::ENOSYS, doing) if doing.contains("io_uring") => {
                anyhow!("this kernel has no io_uring, or one that is too old: Linux 5.18 or later is needed")
            }
            (libc::EACCES | libc::EPERM, _) => {
                anyhow!("{name}: no permission. Run as its owner or as root")
            }
            (libc::EFBIG, _) => {
                anyhow!("{name}: the file system below does not take files of that size")
            }
            (libc::EROFS, _) => {
                anyhow!("{name} is read-only, or on a read-only file system. It can be mounted with: -o ro")
            }
            (libc::ENOSPC, _) => {
                anyhow!(
                    "{name}: not enough space below for an image of that size. Free some, or use --sparse"
                )
            }
            (libc::EINVAL, "it is empty") => {
                anyhow!("{name} is empty. Give it a size and a volume with: freehold mkfs {name} --size 8G")
            }
            (libc::EINVAL, "it is neither a file nor a block device") => {
                anyhow!("{name} is neither an image file nor a block device")
            }
            _ => anyhow!("{e}"),
        },
        Error::NotAVolume(why) if why.contains("shorter than the volume") => anyhow!(
            "{name} is shorter than the volume in it: the image was cut off, or its copy is not complete. \
             Get the whole image, then look at it with: freehold fsck {name}"
        ),
        Error::NotAVolume(why) => {
            // Some of the reasons begin with the name, or say the same.
            let why = why.strip_prefix(&format!("{name} ")).unwrap_or(why);
            let why = if why == "holds no Freehold volume" { String::new() } else { format!(" ({why})") };
            anyhow!(
                "{name} holds no Freehold volume{why}. To make one there, and lose what it holds: freehold mkfs {name}"
            )
        }
        Error::Busy(why) if why.contains("open it once for writing") => anyhow!(
            "{name} was not closed cleanly, and what its log holds must be written home before it can be opened \
             read-only. Mount it once without ro, or copy it and do that to the copy"
        ),
        Error::Corrupt(why) => {
            anyhow!(
                "{name} is damaged: {why}. See all of it with: freehold fsck {name}   Then make a copy, and put \
                 in order what can be with: freehold fsck --repair {name}"
            )
        }
        Error::Latched(why) => anyhow!(
            "{name} takes no more changes after an I/O error: {why}. Look at the device (dmesg), then close and \
             open the volume again: everything that was synced before is there"
        ),
        _ => anyhow!("{name}: {e}"),
    }
}

fn busy(image: &Path) -> anyhow::Error {
    let name = image.display();
    let mounts = mounts::of_image(image).unwrap_or_default();
    let holder = mounts::lock_holder(image).or_else(|| mounts::below_loop(image));
    let holder = holder.map(|p| format!(" by {p}")).unwrap_or_default();
    match mounts.iter().rev().find(|m| m.is_freehold()) {
        Some(m) => {
            let at = m.point.display();
            anyhow!(
                "{name} is in use{holder} and mounted at {at}. Use the files there, or stop it with: freehold umount {at}"
            )
        }
        None => match mounts.first() {
            Some(m) => {
                anyhow!("{name} is mounted at {} as {}. Unmount that first", m.point.display(), m.kind)
            }
            None => {
                anyhow!("{name} is in use{holder}. One process at a time can have a volume open for writing")
            }
        },
    }
}

/// Why a volume could not be served at `point`.
pub fn start(e: StartError, image: &Path, point: &Path) -> anyhow::Error {
    match e {
        StartError::Open(e) => volume(e, image),
        StartError::Mount(e) => mount(&e, point),
    }
}

fn mount(e: &io::Error, point: &Path) -> anyhow::Error {
    let at = point.display();
    match e.raw_os_error() {
        Some(libc::ENOENT) if !Path::new("/dev/fuse").exists() => {
            anyhow!(
                "there is no /dev/fuse. Load the module (modprobe fuse), or give the container the device"
            )
        }
        Some(libc::ENOENT) => anyhow!("{at} does not exist. Make the directory first: mkdir -p {at}"),
        Some(libc::ENOTDIR) => anyhow!("{at} is not a directory; volumes are mounted at directories"),
        Some(libc::ENOTCONN) => dead(point),
        Some(libc::EPERM | libc::EACCES) => {
            anyhow!(
                "no permission to mount at {at}: {e}. Run as root, or install fusermount3 (package fuse3) and own {at}"
            )
        }
        None if e.kind() == io::ErrorKind::PermissionDenied => {
            anyhow!(
                "no permission to mount at {at}: {e}. Run as root, or own {at} and have access to /dev/fuse"
            )
        }
        _ => anyhow!("cannot mount at {at}: {e}"),
    }
}

/// What to say of a mount whose server is gone.
pub fn dead(point: &Path) -> anyhow::Error {
    let at = point.display();
    anyhow!(
        "the server of the mount at {at} died. Clean up with: freehold umount {at}   (the volume itself is not harmed)"
    )
}

/// An error of a system call on a file of the host.
pub fn host(e: impl Into<io::Error>, doing: &str, path: &Path) -> anyhow::Error {
    let e = e.into();
    match e.raw_os_error() {
        Some(libc::ENOTCONN) => dead(path),
        _ => anyhow!("{doing} {}: {e}", path.display()),
    }
}

/// Names some of the processes that keep something busy.
pub fn list(processes: &[Process]) -> String {
    let mut lines: Vec<String> = processes.iter().take(8).map(|p| format!("\n  {p}")).collect();
    if processes.len() > 8 {
        lines.push(format!("\n  and {} more", processes.len() - 8));
    }
    lines.concat()
}

/// Opens the medium of a volume, with errors that say what to do.
pub fn medium(image: &Path, read_only: bool) -> anyhow::Result<std::sync::Arc<dyn media::Media>> {
    not_bucket(image)?;
    let attempt = || freehold::medium(image, read_only);
    freehold::patience::retry(image, attempt).map_err(|e| volume(e, image))
}

/// Opens a volume, with errors that say what to do.
pub fn open(image: &Path, read_only: bool) -> anyhow::Result<freehold::Volume> {
    not_bucket(image)?;
    let options = freehold::VolumeOptions { read_only, ..Default::default() };
    let attempt = || freehold::open(image, options.clone());
    let opened = freehold::patience::retry(image, attempt).map_err(|e| volume(e, image))?;
    fs::block_on(opened.statfs()).map_err(|e| volume(e, image))?;
    Ok(opened)
}
