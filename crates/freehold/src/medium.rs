//! Opening media by name: image files and block devices by io_uring, NVMe controllers that are bound to vfio-pci as `nvme:ADDRESS`,
//! or `nvme:ADDRESSnN` for a namespace that is not the first.
//!
//! Such a name is a path of one component, so a file of that name can be reached as `./nvme:...`.

use crate::{Result, image};
use media::nvme::PciAddress;
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
    /// The driver of the NVMe controller; `None`: there is none that is driven here.
    fn nvme(&self) -> Option<&NvmeMedia> {
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
    fn nvme(&self) -> Option<&NvmeMedia> {
        Some(self)
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
    fn nvme(&self) -> Option<&NvmeMedia> {
        Some(self.below())
    }
}

/// Queue pairs of a controller whose requests are separated: two for each class, if it has so many.
pub(crate) const SEPARATED_QUEUES: u16 = 8;

/// A namespace of a controller, as it is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NvmeName {
    pub address: PciAddress,
    /// Its identifier; `None`: the active one with the smallest.
    pub namespace: Option<u32>,
}

impl NvmeName {
    /// What `nvme:ADDRESS` or, as the kernel numbers namespaces, `nvme:ADDRESSnN` names; `None` for everything else.
    pub fn parse(path: &Path) -> Option<NvmeName> {
        let name = path.to_str()?.strip_prefix("nvme:")?;
        let Some((address, number)) = name.split_once('n') else {
            return Some(NvmeName { address: name.parse().ok()?, namespace: None });
        };
        // FFFFFFFFh stands for all of them (NVMe 1.4, section 6.1).
        let plain = number.bytes().all(|b| b.is_ascii_digit()) && !number.starts_with('0');
        let namespace = number.parse().ok().filter(|n| plain && *n < u32::MAX)?;
        Some(NvmeName { address: address.parse().ok()?, namespace: Some(namespace) })
    }
}

/// The PCI address in a name `nvme:ADDRESS` or `nvme:ADDRESSnN`; `None` for everything else.
pub fn nvme_address(path: impl AsRef<Path>) -> Option<PciAddress> {
    NvmeName::parse(path.as_ref()).map(|name| name.address)
}

/// The absolute path of an image or device; the name of an NVMe controller or namespace as it is.
///
/// # Errors
/// Those of [`std::path::absolute`].
pub fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    if nvme_address(path).is_some() { Ok(path.into()) } else { std::path::absolute(path) }
}

/// As [`crate::medium`], with what only devices tell. `queues`: how requests are placed among a controller's queues; `None`: each
/// thread has its own.
pub(crate) fn open_media(path: &Path, read_only: bool, queues: Option<Mode>) -> Result<Arc<dyn Device>> {
    if let Some(name) = NvmeName::parse(path) {
        return Ok(match queues {
            None => Arc::new(open_nvme(name, read_only, None)?),
            Some(mode) => Arc::new(Separated::new(open_nvme(name, read_only, Some(SEPARATED_QUEUES))?, mode)),
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

/// A namespace, by way of so many queue pairs, or as many as usual.
pub(crate) fn open_nvme(
    NvmeName { address, namespace }: NvmeName,
    read_only: bool,
    queues: Option<u16>,
) -> std::result::Result<NvmeMedia, MediaError> {
    let usual = media::nvme::Options::default();
    let queues = queues.unwrap_or(usual.queues);
    let options = media::nvme::Options { read_only, namespace, queues, ..usual };
    NvmeMedia::open(address, options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_controllers() {
        assert_eq!(nvme_address("nvme:0000:00:04.0").unwrap().to_string(), "0000:00:04.0");
        assert_eq!(nvme_address("nvme:00:04.0").unwrap().to_string(), "0000:00:04.0");
        let other = ["nvme:", "nvme:disk.img", "/x/nvme:0000:00:04.0", "./nvme:0000:00:04.0", "0000:00:04.0"];
        let wrong = ["", "0", "01", "+1", "x", "1n2", "4294967295", "4294967296"];
        let wrong = wrong.map(|number| format!("nvme:0000:00:04.0n{number}"));
        for name in other.into_iter().chain(wrong.iter().map(String::as_str)) {
            assert_eq!(nvme_address(name), None, "{name}");
        }
        let parse =
            |name: &str| NvmeName::parse(Path::new(name)).map(|n| (n.address.to_string(), n.namespace));
        assert_eq!(parse("nvme:00:04.0"), Some(("0000:00:04.0".into(), None)));
        assert_eq!(parse("nvme:00:04.0n2"), Some(("0000:00:04.0".into(), Some(2))));
        assert_eq!(parse("nvme:00:04.0n4294967294"), Some(("0000:00:04.0".into(), Some(u32::MAX - 1))));
        assert_eq!(absolute(Path::new("nvme:00:04.0")).unwrap(), Path::new("nvme:00:04.0"));
        assert!(absolute(Path::new("disk.img")).unwrap().is_absolute());
        let errno = |name, queues| match open_media(Path::new(name), true, queues).err() {
            Some(crate::Error::Media(e)) => e.errno(),
            other => panic!("{other:?}"),
        };
        assert_eq!(errno("nvme:ffff:ff:1f.7", None), libc::ENODEV);
        assert_eq!(errno("nvme:ffff:ff:1f.7n2", None), libc::ENODEV);
        assert_eq!(errno("nvme:ffff:ff:1f.7", Some(Mode::Separated)), libc::ENODEV);
        assert_eq!(errno("disk.img", Some(Mode::Separated)), libc::EOPNOTSUPP);
    }
}
