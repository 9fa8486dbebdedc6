//! Waiting for an image that its last user is just leaving.
//!
//! A server that was killed holds its lock until the kernel has taken its io_uring apart, some tenths of a second; one that was
//! unmounted by umount(2) holds it until the volume is closed. Whoever opens the image in that moment would hear that it is in
//! use, and find nobody who uses it. So the command tries again for a while, and gives up at once only when
//! somebody goes on using it.
//!
//! Tested in `tests/mount.rs` and `tests/cli.rs`.

use crate::mounts;
use crate::service::Watch;
use crate::{Error, Result};
use media::MediaError;
use std::path::Path;
use std::time::{Duration, Instant};

/// For a user that is about to end, or that cannot be seen.
const LEAVING: Duration = Duration::from_secs(5);
/// For a user that seems to stay: it may have been killed and not know yet.
const STAYING: Duration = Duration::from_millis(500);

/// Does `attempt`, which opens `image`, again while the image is in use by somebody who is leaving: for at most five seconds.
///
/// # Errors
/// Those of `attempt`. `Media` (`EBUSY`) also when the image is mounted through a loop device, or the image below the loop device
/// `image` is in use: locks do not tell that.
pub fn retry<T>(image: &Path, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    if mounts::through_loop(image).is_some() || mounts::below_loop(image).is_some() {
        return Err(busy(image));
    }
    let start = Instant::now();
    loop {
        let e = match attempt() {
            Err(e) if is_busy(&e) => e,
            done => return done,
        };
        let patience = if is_leaving(image) { LEAVING } else { STAYING };
        if start.elapsed() >= patience {
            return Err(e);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits in the same way until nobody holds the lock on `image`, as far as can be seen.
///
/// # Errors
/// `Media` (`EBUSY`).
pub fn until_free(image: &Path) -> Result<()> {
    retry(image, || mounts::lock_holder(image).map_or(Ok(()), |_| Err(busy(image))))
}

fn busy(image: &Path) -> Error {
    let device = image.display().to_string();
    MediaError::Setup { device, doing: "opening: somebody else uses it", errno: libc::EBUSY }.into()
}

fn is_busy(e: &Error) -> bool {
    matches!(e, Error::Media(MediaError::Setup { errno: libc::EBUSY, .. }))
}

/// Whether the user of an image is about to let go of it, as far as can be seen.
fn is_leaving(image: &Path) -> bool {
    let mounts = mounts::of_image(image).unwrap_or_default();
    match mounts::lock_holder(image) {
        Some(holder) if !holder.is_ending() => {
            !mounts.iter().any(mounts::MountInfo::is_freehold) && Watch::new(image).is_ok()
        }
        // Without a holder that can be seen, it may be a mount of another file system; else somebody who is gone already.
        _ => mounts.iter().all(mounts::MountInfo::is_freehold),
    }
}
