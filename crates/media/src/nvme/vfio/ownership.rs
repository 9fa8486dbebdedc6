//! How a function becomes this process's own: through a character device of its own and iommufd where the kernel offers both and they
//! may be opened, else through its group.

use super::Failed;
use super::group::Container;
use super::iommufd::Space;
use crate::nvme::pci::PciAddress;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// A function that nobody else can take.
pub(super) struct Owned {
    pub(super) device: OwnedFd,
    pub(super) iommu: Iommu,
}

/// What translates the addresses of a function.
pub(super) enum Iommu {
    Space(Space),
    Container(Container),
}

/// Takes a function.
pub(super) fn take(address: PciAddress) -> Result<Owned, Failed> {
    let refused = match open_device(address) {
        Ok((device, iommufd)) => {
            let space = Space::attach(&device, iommufd)?;
            return Ok(Owned { device, iommu: Iommu::Space(space) });
        }
        Err(e) => e,
    };
    match Container::take(address) {
        Ok((device, container)) => Ok(Owned { device, iommu: Iommu::Container(container) }),
        // The other way was the only one.
        Err((_, e)) if e.raw_os_error() == Some(libc::ENODEV) && refused != Errno::NOENT => {
            Err(("opening it and iommufd", refused.into()))
        }
        Err(e) => Err(e),
    }
}

/// The function's character device, and iommufd.
fn open_device(address: PciAddress) -> Result<(OwnedFd, OwnedFd), Errno> {
    let node = address.vfio_device().ok_or(Errno::NOENT)?;
    let open = |path: &Path| rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    Ok((open(&node)?, open(Path::new("/dev/iommu"))?))
}

impl Iommu {
    /// First and last addresses that can be translated; empty if the kernel does not say.
    pub(super) fn ranges(&self) -> Vec<(u64, u64)> {
        match self {
            Iommu::Space(s) => s.ranges(),
            Iommu::Container(c) => c.ranges(),
        }
    }

    /// Lets the device reach `len` bytes at `address` by the addresses from `iova` on.
    ///
    /// # Safety
    /// The memory stays as it is until it is unmapped.
    pub(super) unsafe fn map(&self, address: *mut u8, iova: u64, len: u64) -> io::Result<()> {
        match self {
            // SAFETY: by the caller.
            Iommu::Space(s) => unsafe { s.map(address, iova, len) },
            // SAFETY: by the caller.
            Iommu::Container(c) => unsafe { c.map(address, iova, len) },
        }
    }

    /// Ends what `map` began, of the same addresses.
    pub(super) fn unmap(&self, iova: u64, len: u64) -> io::Result<()> {
        match self {
            Iommu::Space(s) => s.unmap(iova, len),
            Iommu::Container(c) => c.unmap(iova, len),
        }
    }
}
