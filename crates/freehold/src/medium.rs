//! Opening media by name: image files and block devices by io_uring, NVMe controllers that are bound to vfio-pci as `nvme:ADDRESS`.
//!
//! Such a name is a path of one component, so a file of that name can be reached as `./nvme:...`.

use crate::{Result, image};
use media::nvme::{Inspection, PciAddress};
use media::uring;
use media::{Counters, Media, MediaError, NvmeMedia, UringMedia};
use sched::Separated;
use sched::queues::Mode;
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

/// The requests go to the controller's queues by class, or in turn.
impl Device for Separated<NvmeMedia> {
    fn counters(&self) -> Counters {
        self.below().counters()
    }
    fn in_flight(&self) -> usize {
        self.below().in_flight()
    }
    fn inspect(&self) -> Option<std::result::Result<Inspection, MediaError>> {
        Some(self.below().inspect())
    }
}

/// Queue pairs of a controller whose requests are separated: two for each class, if it has so many.
pub(crate) const SEPARATED_QUEUES: u16 = 8;

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

/// As [`crate::medium`], with what only devices tell. `queues`: how requests are placed among a controller's queues; `None`: each
/// thread has its own.
pub(crate) fn open_media(path: &Path, read_only: bool, queues: Option<Mode>) -> Result<Arc<dyn Device>> {
    if let Some(address) = nvme_address(path) {
        return Ok(match queues {
            None => Arc::new(open_nvme(address, read_only, None)?),
            Some(mode) => {
                Arc::new(Separated::new(open_nvme(address, read_only, Some(SEPARATED_QUEUES))?, mode))
            }
        });
    }
    if queues.is_some() {
        let doing = "choosing among its queues, which the kernel does on all but nvme:ADDRESS";
        let device = path.display().to_string();
        return Err(MediaError::Setup { device, doing, errno: libc::EOPNOTSUPP }.into());
    }
    if !read_only && image::is_read_only_device(path) {
        // The kernel would let it be opened, and fail every write.
        let device = path.display().to_string();
        return Err(MediaError::Setup { device, doing: "opening", errno: libc::EROFS }.into());
    }
    let options = uring::Options { read_only, ..Default::default() };
    Ok(Arc::new(UringMedia::open(path, options)?))
}

/// The controller at an address, with so many queue pairs, or as many as usual.
pub(crate) fn open_nvme(
    address: PciAddress,
    read_only: bool,
    queues: Option<u16>,
) -> std::result::Result<NvmeMedia, MediaError> {
    let usual = media::nvme::Options::default();
    let options = media::nvme::Options { read_only, queues: queues.unwrap_or(usual.queues), ..usual };
    NvmeMedia::open(address, options)
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
        let errno = |name, queues| match open_media(Path::new(name), true, queues).err() {
            Some(crate::Error::Media(e)) => e.errno(),
            other => panic!("{other:?}"),
        };
        assert_eq!(errno("nvme:ffff:ff:1f.7", None), libc::ENODEV);
        assert_eq!(errno("nvme:ffff:ff:1f.7", Some(Mode::Separated)), libc::ENODEV);
        assert_eq!(errno("disk.img", Some(Mode::Separated)), libc::EOPNOTSUPP);
    }
}
