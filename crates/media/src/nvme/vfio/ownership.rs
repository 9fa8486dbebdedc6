//! How a function becomes this process's own: through a character device of its own and iommufd where the kernel offers both and they
//! may be opened, else through its group.
//!
//! The IOMMU cannot tell devices of one group apart, so the kernel gives a group to one owner, who can open it once. Who drives several of its functions
//! has one address space for all of them ([`Domain`]).

use super::Failed;
use super::group::Container;
use super::iommufd::Space;
use crate::nvme::iova::{Iova, windows};
use crate::nvme::pci::PciAddress;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Weak};

/// A function that nobody else can take.
pub(super) struct Owned {
    address: PciAddress,
    pub(super) device: OwnedFd,
    pub(super) domain: Arc<Domain>,
}

/// The address space of a function, and of those of its group that this process drives too.
pub(super) struct Domain {
    /// Number of the group; `None`: the kernel has none.
    group: Option<u32>,
    /// Functions that are taken. A leaf.
    taken: Mutex<Vec<PciAddress>>,
    /// Free addresses. A leaf.
    free: Mutex<Iova>,
    iommu: Iommu,
}

/// What translates the addresses.
enum Iommu {
    Space(Space),
    Container(Container),
}

/// All of this process, and those that are gone.
static DOMAINS: Mutex<Vec<Weak<Domain>>> = Mutex::new(Vec::new());

/// Takes a function. `EBUSY`: this process has it, or another one has it or one of its group.
pub(super) fn take(address: PciAddress) -> Result<Owned, Failed> {
    let group = address.iommu_group().ok();
    let mut domains = DOMAINS.lock();
    domains.retain(|domain| domain.strong_count() > 0);
    let mut ours = domains.iter().filter_map(Weak::upgrade);
    let (device, domain) = match ours.find(|domain| group.is_some() && domain.group == group) {
        Some(domain) if domain.taken.lock().contains(&address) => {
            return Err(("taking it", io::Error::from_raw_os_error(libc::EBUSY)));
        }
        Some(domain) => (domain.iommu.open(address)?, domain),
        None => {
            let (device, iommu) = open(address)?;
            let free = Mutex::new(Iova::new(&iommu.ranges(), &windows()));
            let domain = Arc::new(Domain { group, taken: Mutex::default(), free, iommu });
            domains.push(Arc::downgrade(&domain));
            (device, domain)
        }
    };
    domain.taken.lock().push(address);
    Ok(Owned { address, device, domain })
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.domain.taken.lock().retain(|taken| *taken != self.address);
    }
}

/// Opens a function of a group of which this process has none.
fn open(address: PciAddress) -> Result<(OwnedFd, Iommu), Failed> {
    let refused = match open_device(address).and_then(|device| Ok((device, open_iommufd()?))) {
        Ok((device, iommufd)) => {
            let space = Space::attach(&device, iommufd)?;
            return Ok((device, Iommu::Space(space)));
        }
        Err(e) => e,
    };
    match Container::take(address) {
        Ok((device, container)) => Ok((device, Iommu::Container(container))),
        // The other way was the only one.
        Err((_, e)) if e.raw_os_error() == Some(libc::ENODEV) && refused != Errno::NOENT => {
            Err(("opening it and iommufd", refused.into()))
        }
        Err(e) => Err(e),
    }
}

/// The function's character device.
fn open_device(address: PciAddress) -> Result<OwnedFd, Errno> {
    open_node(&address.vfio_device().ok_or(Errno::NOENT)?)
}

fn open_iommufd() -> Result<OwnedFd, Errno> {
    open_node(Path::new("/dev/iommu"))
}

fn open_node(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

impl Domain {
    /// Lets its devices reach `len` bytes at `address`, and says by which addresses from there on. `OutOfMemory`: there are no more addresses.
    ///
    /// # Safety
    /// The memory stays as it is until it is unmapped.
    pub(super) unsafe fn map(&self, address: *mut u8, len: u64) -> io::Result<u64> {
        let iova = self.free.lock().take(len).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: by the caller.
        unsafe { self.iommu.map(address, iova, len) }
            .map(|()| iova)
            .inspect_err(|_| self.free.lock().give_back(iova, len))
    }

    /// Ends what `map` began.
    pub(super) fn unmap(&self, iova: u64, len: u64) -> io::Result<()> {
        self.iommu.unmap(iova, len)?;
        self.free.lock().give_back(iova, len);
        Ok(())
    }
}

impl Iommu {
    /// Opens another function of the group.
    fn open(&self, address: PciAddress) -> Result<OwnedFd, Failed> {
        match self {
            Iommu::Space(space) => {
                let device = open_device(address).map_err(|e| ("opening it", e.into()))?;
                space.join(&device)?;
                Ok(device)
            }
            Iommu::Container(container) => container.open(address),
        }
    }

    /// First and last addresses that can be translated; empty if the kernel does not say.
    fn ranges(&self) -> Vec<(u64, u64)> {
        match self {
            Iommu::Space(s) => s.ranges(),
            Iommu::Container(c) => c.ranges(),
        }
    }

    /// Lets the device reach `len` bytes at `address` by the addresses from `iova` on.
    ///
    /// # Safety
    /// The memory stays as it is until it is unmapped.
    unsafe fn map(&self, address: *mut u8, iova: u64, len: u64) -> io::Result<()> {
        match self {
            // SAFETY: by the caller.
            Iommu::Space(s) => unsafe { s.map(address, iova, len) },
            // SAFETY: by the caller.
            Iommu::Container(c) => unsafe { c.map(address, iova, len) },
        }
    }

    /// Ends what `map` began, of the same addresses.
    fn unmap(&self, iova: u64, len: u64) -> io::Result<()> {
        match self {
            Iommu::Space(s) => s.unmap(iova, len),
            Iommu::Container(c) => c.unmap(iova, len),
        }
    }
}
