//! Opening a file or block device, alone, and finding out what it promises.
//!
//! Block devices: the kernel knows (`/sys/dev/block/*/queue`). Files: little can be known, so little is promised. A file
//! system may put neighbouring sectors anywhere and keep or lose them separately, hence an atomic unit of one sector, and
//! completed writes count as volatile until fdatasync.
//!
//! Exclusion: writers, and those who ask for it, hold `O_EXCL` on a block device (also keeps mounts out); writers hold an exclusive
//! flock(2), which read-only openers share. It goes away with the process.

use super::Options;
use crate::{Geometry, MediaError};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// An open device.
pub(super) struct Probed {
    pub(super) fd: OwnedFd,
    /// All but the depth of the queue, which the ring decides.
    pub(super) geometry: Geometry,
    pub(super) block: bool,
    pub(super) direct: bool,
}

/// The kernel writes at most this much at once without RWF_ATOMIC, which may split larger units.
const ATOMIC_MAX: u64 = 4096;

/// Largest transfer that is not worth splitting, bytes.
const MAX_TRANSFER: u64 = 2 << 20;

pub(super) fn open(path: &Path, options: &Options) -> Result<Probed, MediaError> {
    let &Options { read_only, exclusive, direct, .. } = options;
    let name = path.display().to_string();
    let setup = |doing, e: Errno| MediaError::Setup { device: name.clone(), doing, errno: e.raw_os_error() };
    let stat = rustix::fs::stat(path).map_err(|e| setup("looking it up", e))?;
    let block = match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => true,
        FileType::RegularFile => false,
        _ => return Err(setup("it is neither a file nor a block device", Errno::INVAL)),
    };
    let mut flags = OFlags::CLOEXEC | if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if block && (exclusive || !read_only) {
        flags |= OFlags::EXCL;
    }
    let mut is_direct = direct;
    let mut opened = Err(Errno::INVAL);
    if direct {
        opened = rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty());
    }
    if !direct || matches!(opened, Err(Errno::INVAL | Errno::OPNOTSUPP)) {
        is_direct = false;
        opened = rustix::fs::open(path, flags, Mode::empty());
    }
    let fd = opened.map_err(|e| match e {
        Errno::BUSY => setup("opening: somebody else uses it", e),
        e => setup("opening", e),
    })?;
    if direct && !is_direct {
        tracing::warn!(device = name, "no direct I/O here; the page cache of the kernel is in between");
    }
    let lock = if read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    rustix::fs::flock(&fd, lock).map_err(|e| match e {
        Errno::WOULDBLOCK => setup("locking: somebody else uses it", Errno::BUSY),
        e => setup("locking", e),
    })?;
    let size =
        rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0)).map_err(|e| setup("finding its size", e))?;
    let (device, queue) = if block { sys_paths(stat.st_rdev) } else { sys_paths(stat.st_dev) };
    let sector = if block {
        rustix::fs::ioctl_blksszget(&fd).map_err(|e| setup("finding its sector size", e))?.max(512)
    } else {
        file_sector(&fd, is_direct)
    };
    let number = |file: &str| -> u64 {
        let text = std::fs::read_to_string(queue.join(file)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    let mut atomic_unit = sector as u64;
    let (mut volatile_cache, mut discard) = (true, true);
    if block {
        let unit = match number("atomic_write_unit_max_bytes") {
            0 => number("physical_block_size"),
            unit => unit,
        };
        if unit.is_power_of_two() {
            atomic_unit = unit.min(ATOMIC_MAX).max(sector as u64);
        }
        let cache = std::fs::read_to_string(queue.join("write_cache")).unwrap_or_default();
        volatile_cache = cache.trim() != "write through";
        discard = number("discard_max_bytes") > 0;
    }
    let bytes = size / sector as u64 * sector as u64;
    if bytes == 0 {
        return Err(setup("it is empty", Errno::INVAL));
    }
    let geometry = Geometry {
        name: name.clone(),
        bytes,
        sector,
        atomic_unit: atomic_unit as u32,
        volatile_cache,
        barrier: false,
        discard,
        queue_depth: 0,
        max_transfer: MAX_TRANSFER as u32,
        numa_node: numa_node(&device),
    };
    Ok(Probed { fd, geometry, block, direct: is_direct })
}

/// Directories of a block device and of its queue in sysfs. A partition's queue is that of the whole device.
fn sys_paths(device: u64) -> (PathBuf, PathBuf) {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let link = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let device = std::fs::canonicalize(&link).unwrap_or(link);
    let own = device.join("queue");
    let queue = match (own.exists(), device.parent()) {
        (false, Some(parent)) => parent.join("queue"),
        _ => own,
    };
    (device, queue)
}

/// The node named by the device or, usually, by the controller above it.
fn numa_node(device: &Path) -> Option<u32> {
    let texts = device.ancestors().filter_map(|dir| std::fs::read_to_string(dir.join("numa_node")).ok());
    texts.filter_map(|text| text.trim().parse::<i32>().ok()).next().and_then(|node| u32::try_from(node).ok())
}

/// Smallest unit of direct I/O on a file. Trying is the only way that works on all kernels.
fn file_sector(fd: impl AsFd, direct: bool) -> u32 {
    #[repr(align(4096))]
    struct Aligned([u8; 512]);
    let mut buffer = Aligned([0; 512]);
    match rustix::io::pread(fd, &mut buffer.0[..], 0) {
        Err(_) if direct => 4096,
        _ => 512,
    }
}
