//! Opening media by name: image files and block devices by io_uring, NVMe controllers that are bound to vfio-pci as `nvme:ADDRESS`.
//!
//! Such a name is a path of one component, so a file of that name can be reached as `./nvme:...`.

use crate::{Result, image};
use media::nvme::{Inspection, PciAddress};
use media::uring;
use media::{Counters, Media, MediaError, NvmeMedia, UringMedia};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A medium that says how it is used.
pub(crate) trait Device: Media {
    /// What was asked of it.
    fn counters(&self) -> Counters;
    /// Requests that have not completed.
    fn in_flight(&self) -> usize;
    /// What the NVMe controller tells of itself; `None`: there is none that is driven here.
    fn inspect(&self) -> Option<std::result::Result<Inspection, MediaError>> {
        None
    }
}

impl Device for UringMedia {
    fn counters(&self) -> Counters {
        UringMedia::counters(self)
    }
    fn in_flight(&self) -> usize {
        UringMedia::in_flight(self)
    }
}

impl Device for NvmeMedia {
    fn counters(&self) -> Counters {
        NvmeMedia::counters(self)
    }
    fn in_flight(&self) -> usize {
        NvmeMedia::in_flight(self)
    }
    fn inspect(&self) -> Option<std::result::Result<Inspection, MediaError>> {
        Some(NvmeMedia::inspect(self))
    }
}

/// The PCI address in a name `nvme:ADDRESS`; `None` for everything else.
pub fn nvme_address(path: impl AsRef<Path>) -> Option<PciAddress> {
    path.as_ref().to_str()?.strip_prefix("nvme:")?.parse().ok()
}

/// The absolute path of an image or device; a name `nvme:ADDRESS` as it is.
///
/// # Errors
/// Those of [`std::path::absolute`].
pub fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    if nvme_address(path).is_some() { Ok(path.into()) } else { std::path::absolute(path) }
}

/// As [`crate::medium`], with what only devices tell.
pub(crate) fn open_media(path: &Path, read_only: bool) -> Result<Arc<dyn Device>> {
    if let Some(address) = nvme_address(path) {
        let options = media::nvme::Options { read_only, ..Default::default() };
        return Ok(Arc::new(NvmeMedia::open(address, options)?));
    }
    if !read_only && image::is_read_only_device(path) {
        // The kernel would let it be opened, and fail every write.
        let device = path.display().to_string();
        return Err(MediaError::Setup { device, doing: "opening", errno: libc::EROFS }.into());
    }
    let options = uring::Options { read_only, ..Default::default() };
    Ok(Arc::new(UringMedia::open(path, options)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_controllers() {
        assert_eq!(nvme_address("nvme:0000:00:04.0").unwrap().to_string(), "0000:00:04.0");
        assert_eq!(nvme_address("nvme:00:04.0").unwrap().to_string(), "0000:00:04.0");
        for name in ["nvme:", "nvme:disk.img", "/x/nvme:0000:00:04.0", "./nvme:0000:00:04.0", "0000:00:04.0"]
        {
            assert_eq!(nvme_address(name), None, "{name}");
        }
        assert_eq!(absolute(Path::new("nvme:00:04.0")).unwrap(), Path::new("nvme:00:04.0"));
        assert!(absolute(Path::new("disk.img")).unwrap().is_absolute());
        match open_media(Path::new("nvme:ffff:ff:1f.7"), true).err() {
            Some(crate::Error::Media(e)) => assert_eq!(e.errno(), libc::ENODEV),
            other => panic!("{other:?}"),
        }
    }
}
