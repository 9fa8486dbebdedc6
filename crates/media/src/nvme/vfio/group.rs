//! The group of a function, in a container with a type 1 IOMMU: the interface that every kernel with VFIO has had, and that newer ones can do without.

use super::Failed;
use super::abi::*;
use crate::nvme::pci::PciAddress;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A container with one group.
pub(super) struct Container {
    container: OwnedFd,
    group: OwnedFd,
}

impl Container {
    /// Takes the group of a function, and opens the function.
    pub(super) fn take(address: PciAddress) -> Result<(OwnedFd, Container), Failed> {
        let number = address.iommu_group().map_err(|e| match e.raw_os_error() {
            Some(libc::ENOENT) => ("finding its IOMMU group", io::Error::from_raw_os_error(libc::ENODEV)),
            _ => ("finding its IOMMU group", e),
        })?;
        let open = |path: &str| rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let group = open(&format!("/dev/vfio/{number}")).map_err(|e| match e {
            Errno::NOENT => ("opening its IOMMU group: it is not bound to vfio-pci", Errno::NODEV.into()),
            e => ("opening its IOMMU group", e.into()),
        })?;
        let mut status = GroupStatus { argsz: size::<GroupStatus>(), ..Default::default() };
        exchange(&group, GROUP_GET_STATUS, &mut status).map_err(|e| ("asking for its group", e))?;
        if status.flags & GROUP_VIABLE == 0 {
            let e = io::Error::from_raw_os_error(libc::EBUSY);
            return Err(("taking its group: other devices of the group have drivers", e));
        }
        let container = open("/dev/vfio/vfio").map_err(|e| ("opening a container of VFIO", e.into()))?;
        // SAFETY: requests that take a number, or nothing.
        let version = unsafe { ioctl(container.as_raw_fd(), GET_API_VERSION, 0) };
        // SAFETY: as above.
        let type1 = unsafe { ioctl(container.as_raw_fd(), CHECK_EXTENSION, TYPE1V2_IOMMU) };
        if version.map_err(|e| ("asking for VFIO", e))? != 0
            || type1.map_err(|e| ("asking for its IOMMU", e))? == 0
        {
            let e = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
            return Err(("looking for a type 1 IOMMU", e));
        }
        let number = container.as_raw_fd();
        // SAFETY: the request takes a pointer to a file descriptor.
        unsafe { ioctl(group.as_raw_fd(), GROUP_SET_CONTAINER, &number as *const RawFd as libc::c_ulong) }
            .map_err(|e| ("putting its group into a container", e))?;
        // SAFETY: the request takes a number.
        unsafe { ioctl(container.as_raw_fd(), SET_IOMMU, TYPE1V2_IOMMU) }
            .map_err(|e| ("setting up its IOMMU", e))?;
        let container = Container { container, group };
        Ok((container.open(address)?, container))
    }

    /// Opens a function of the group, be it open already.
    pub(super) fn open(&self, address: PciAddress) -> Result<OwnedFd, Failed> {
        let text = CString::new(address.to_string()).expect("addresses are digits");
        // SAFETY: the request takes a string and returns a new file descriptor.
        unsafe {
            ioctl(self.group.as_raw_fd(), GROUP_GET_DEVICE_FD, text.as_ptr() as libc::c_ulong)
                .map(|fd| OwnedFd::from_raw_fd(fd))
        }
        .map_err(|e| ("taking it", e))
    }

    /// First and last addresses that can be translated; empty if the kernel does not say.
    pub(super) fn ranges(&self) -> Vec<(u64, u64)> {
        let mut info = IommuInfo {
            argsz: size::<IommuInfo>(),
            flags: 0,
            page_sizes: 0,
            cap_offset: 0,
            pad: 0,
            caps: [0; 512],
        };
        if exchange(&self.container, IOMMU_GET_INFO, &mut info).is_err() || info.flags & IOMMU_INFO_CAPS == 0
        {
            return Vec::new();
        }
        let bytes: Vec<u8> = info.caps.iter().flat_map(|w| w.to_ne_bytes()).collect();
        parse_ranges(&bytes, info.cap_offset as usize, std::mem::offset_of!(IommuInfo, caps))
    }

    /// Lets the device reach `len` bytes at `address` by the addresses from `iova` on.
    ///
    /// # Safety
    /// The memory stays as it is until it is unmapped.
    pub(super) unsafe fn map(&self, address: *mut u8, iova: u64, len: u64) -> io::Result<()> {
        let mut map =
            DmaMap { argsz: size::<DmaMap>(), flags: MAP_READ_WRITE, vaddr: address as u64, iova, size: len };
        exchange(&self.container, IOMMU_MAP_DMA, &mut map)
    }

    /// Ends what `map` began, of the same addresses.
    pub(super) fn unmap(&self, iova: u64, len: u64) -> io::Result<()> {
        let mut unmap = DmaUnmap { argsz: size::<DmaUnmap>(), flags: 0, iova, size: len };
        exchange(&self.container, IOMMU_UNMAP_DMA, &mut unmap)
    }
}

/// Looks through the chain of capabilities, whose offsets count from `base` bytes before `bytes`.
fn parse_ranges(bytes: &[u8], first: usize, base: usize) -> Vec<(u64, u64)> {
    let number = |at: usize, n: usize| {
        let mut word = [0; 8];
        word[..n].copy_from_slice(bytes.get(at..at + n)?);
        Some(u64::from_le_bytes(word))
    };
    let mut next = first;
    // A chain is not longer than what it stands in.
    for _ in 0..bytes.len() / 8 {
        let Some(at) = next.checked_sub(base) else { break };
        let (Some(id), Some(after)) = (number(at, 2), number(at + 4, 4)) else { break };
        if id as u16 == IOMMU_CAP_IOVA_RANGE {
            let count = number(at + 8, 4).unwrap_or(0) as usize;
            let range = |i| Some((number(at + 16 + i * 16, 8)?, number(at + 24 + i * 16, 8)?));
            return (0..count).map_while(range).collect();
        }
        next = after as usize;
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_those_of_the_kernel() {
        assert_eq!(GET_API_VERSION, 0x3B64);
        assert_eq!(IOMMU_UNMAP_DMA, 0x3B72);
        assert_eq!([size::<GroupStatus>(), size::<DeviceInfo>(), size::<RegionInfo>()], [8, 16, 32]);
        assert_eq!(
            [size::<IrqInfo>(), size::<IrqSet>(), size::<DmaMap>(), size::<DmaUnmap>()],
            [16, 24, 32, 24]
        );
        assert_eq!(std::mem::offset_of!(IommuInfo, caps), 24);
    }

    #[test]
    fn ranges_are_found_in_the_chain() {
        let mut bytes = vec![0u8; 128];
        let mut put =
            |at: usize, value: u64, n: usize| bytes[at..at + n].copy_from_slice(&value.to_le_bytes()[..n]);
        // Another capability, then the ranges.
        put(0, 2, 2);
        put(4, 24 + 32, 4);
        put(32, 1, 2);
        put(40, 2, 4);
        for (i, n) in [0, 0xFEDF_FFFF, 0xFEF0_0000, 0x7F_FFFF_FFFF].into_iter().enumerate() {
            put(48 + i * 8, n, 8);
        }
        assert_eq!(parse_ranges(&bytes, 24, 24), [(0, 0xFEDF_FFFF), (0xFEF0_0000, 0x7F_FFFF_FFFF)]);
        // Chains that lead nowhere or in circles.
        assert_eq!(parse_ranges(&bytes, 0, 24), []);
        assert_eq!(parse_ranges(&bytes, 24 + 126, 24), []);
        bytes[4] = 24;
        assert_eq!(parse_ranges(&bytes, 24, 24), []);
    }
}
