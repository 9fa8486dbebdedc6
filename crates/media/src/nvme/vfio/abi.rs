//! The kernel's interface: requests and structures of linux/vfio.h.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// `_IO(VFIO_TYPE, VFIO_BASE + n)` of linux/vfio.h.
const fn request(n: u32) -> libc::Ioctl {
    ((b';' as u32) << 8 | (100 + n)) as libc::Ioctl
}

pub(super) const GET_API_VERSION: libc::Ioctl = request(0);
pub(super) const CHECK_EXTENSION: libc::Ioctl = request(1);
pub(super) const SET_IOMMU: libc::Ioctl = request(2);
pub(super) const GROUP_GET_STATUS: libc::Ioctl = request(3);
pub(super) const GROUP_SET_CONTAINER: libc::Ioctl = request(4);
pub(super) const GROUP_GET_DEVICE_FD: libc::Ioctl = request(6);
pub(super) const DEVICE_GET_INFO: libc::Ioctl = request(7);
pub(super) const DEVICE_GET_REGION_INFO: libc::Ioctl = request(8);
pub(super) const DEVICE_GET_IRQ_INFO: libc::Ioctl = request(9);
pub(super) const DEVICE_SET_IRQS: libc::Ioctl = request(10);
pub(super) const DEVICE_RESET: libc::Ioctl = request(11);
pub(super) const IOMMU_GET_INFO: libc::Ioctl = request(12);
pub(super) const IOMMU_MAP_DMA: libc::Ioctl = request(13);
pub(super) const IOMMU_UNMAP_DMA: libc::Ioctl = request(14);

pub(super) const TYPE1V2_IOMMU: libc::c_ulong = 3;
pub(super) const GROUP_VIABLE: u32 = 1;
pub(super) const DEVICE_FLAGS_RESET: u32 = 1;
pub(super) const REGION_FLAG_MMAP: u32 = 1 << 2;
pub(super) const REGION_BAR0: u32 = 0;
pub(super) const REGION_CONFIG: u32 = 7;
pub(super) const IRQ_MSIX: u32 = 2;
pub(super) const IRQ_REQUEST: u32 = 4;
pub(super) const IRQ_SET_EVENTFD_TRIGGER: u32 = 1 << 2 | 1 << 5;
pub(super) const MAP_READ_WRITE: u32 = 3;
pub(super) const IOMMU_INFO_CAPS: u32 = 1 << 1;
pub(super) const IOMMU_CAP_IOVA_RANGE: u16 = 1;

#[repr(C)]
#[derive(Default)]
pub(super) struct GroupStatus {
    pub(super) argsz: u32,
    pub(super) flags: u32,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct DeviceInfo {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) regions: u32,
    pub(super) irqs: u32,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct RegionInfo {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) index: u32,
    pub(super) cap_offset: u32,
    pub(super) size: u64,
    pub(super) offset: u64,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct IrqInfo {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) index: u32,
    pub(super) count: u32,
}

#[repr(C)]
pub(super) struct IrqSet {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) index: u32,
    pub(super) start: u32,
    pub(super) count: u32,
    pub(super) eventfd: i32,
}

#[repr(C)]
pub(super) struct DmaMap {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) vaddr: u64,
    pub(super) iova: u64,
    pub(super) size: u64,
}

#[repr(C)]
pub(super) struct DmaUnmap {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) iova: u64,
    pub(super) size: u64,
}

/// `struct vfio_iommu_type1_info` with room for its capabilities.
#[repr(C)]
pub(super) struct IommuInfo {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) page_sizes: u64,
    pub(super) cap_offset: u32,
    pub(super) pad: u32,
    pub(super) caps: [u64; 512],
}

/// An ioctl(2) with a structure, a number or nothing.
///
/// # Safety
/// `argument` is what the request expects; a pointer is valid for what the kernel reads and writes.
pub(super) unsafe fn ioctl(fd: RawFd, request: libc::Ioctl, argument: libc::c_ulong) -> io::Result<i32> {
    // SAFETY: by the caller.
    match unsafe { libc::ioctl(fd, request, argument) } {
        -1 => Err(io::Error::last_os_error()),
        n => Ok(n),
    }
}

/// An ioctl(2) with a structure that begins with its size.
pub(super) fn exchange<T>(fd: &OwnedFd, request: libc::Ioctl, structure: &mut T) -> io::Result<()> {
    // SAFETY: every structure of this module has the layout that linux/vfio.h or linux/iommufd.h gives for the request it is used with,
    // says its own size first, and the kernel reads and writes no more than that.
    unsafe { ioctl(fd.as_raw_fd(), request, structure as *mut T as libc::c_ulong) }.map(|_| ())
}

pub(super) fn size<T>() -> u32 {
    size_of::<T>() as u32
}
