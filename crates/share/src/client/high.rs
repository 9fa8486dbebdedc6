//! Where descriptors go that the program does not know of: those of sessions, and those of the library of `freehold run`. Programs like to choose low numbers themselves.

use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// From here on, if the process may have such numbers.
pub const FROM: RawFd = 700;

/// The lowest and the highest number that such a descriptor ever had.
static LOWEST: AtomicI32 = AtomicI32::new(RawFd::MAX);
static HIGHEST: AtomicI32 = AtomicI32::new(-1);

/// A copy with a high number, which exec closes: from [`FROM`] on, or as high as the process may have. `None`: all of these are in use.
pub fn copy(fd: impl AsFd) -> Option<OwnedFd> {
    let limit = getrlimit(Resource::Nofile).current.map_or(RawFd::MAX, |n| n.min(1 << 30) as RawFd);
    // Below the limit there is room for a few, and for the program still.
    let last = limit - (limit / 4).min(16);
    let froms = [FROM, 200, 64, last].into_iter().filter(|&from| from <= last);
    let copy = froms.filter_map(|from| rustix::io::fcntl_dupfd_cloexec(&fd, from).ok()).next()?;
    note(copy.as_raw_fd());
    Some(copy)
}

/// Gives a descriptor a high number.
pub(super) fn moved(fd: OwnedFd) -> OwnedFd {
    copy(&fd).unwrap_or_else(|| {
        note(fd.as_raw_fd());
        fd
    })
}

/// Another descriptor is one that the program does not know of.
pub fn note(fd: RawFd) {
    LOWEST.fetch_min(fd, Ordering::Relaxed);
    HIGHEST.fetch_max(fd, Ordering::Relaxed);
}

/// The numbers among which all such descriptors are.
#[inline]
pub fn range() -> std::ops::RangeInclusive<RawFd> {
    LOWEST.load(Ordering::Relaxed)..=HIGHEST.load(Ordering::Relaxed)
}
