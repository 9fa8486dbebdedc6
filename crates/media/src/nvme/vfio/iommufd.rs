//! An address space of iommufd (Linux 6.2, Documentation/userspace-api/iommufd.rst, linux/iommufd.h), to which a function is attached
//! through a character device of its own (Linux 6.6, `VFIO_DEVICE_BIND_IOMMUFD` in linux/vfio.h).

use super::Failed;
use super::abi::{exchange, ioctl, size};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// `_IO(IOMMUFD_TYPE, n)` of linux/iommufd.h.
const fn request(n: u32) -> libc::Ioctl {
    ((b';' as u32) << 8 | n) as libc::Ioctl
}

const IOAS_ALLOC: libc::Ioctl = request(0x81);
const IOAS_IOVA_RANGES: libc::Ioctl = request(0x84);
const IOAS_MAP: libc::Ioctl = request(0x85);
const IOAS_UNMAP: libc::Ioctl = request(0x86);
/// `_IO(VFIO_TYPE, VFIO_BASE + 18)` and 19 of linux/vfio.h.
const DEVICE_BIND_IOMMUFD: libc::Ioctl = request(100 + 18);
const DEVICE_ATTACH_IOMMUFD_PT: libc::Ioctl = request(100 + 19);

/// `IOMMU_IOAS_MAP_FIXED_IOVA`, `_WRITEABLE` and `_READABLE`.
const MAP_FIXED_READ_WRITE: u32 = 7;

#[repr(C)]
#[derive(Default)]
struct BindIommufd {
    argsz: u32,
    flags: u32,
    iommufd: i32,
    out_devid: u32,
}

#[repr(C)]
#[derive(Default)]
struct AttachPt {
    argsz: u32,
    flags: u32,
    pt_id: u32,
}

#[repr(C)]
#[derive(Default)]
struct IoasAlloc {
    size: u32,
    flags: u32,
    out_ioas_id: u32,
}

#[repr(C)]
#[derive(Default)]
struct IoasIovaRanges {
    size: u32,
    ioas_id: u32,
    num_iovas: u32,
    reserved: u32,
    allowed_iovas: u64,
    out_iova_alignment: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct IovaRange {
    start: u64,
    last: u64,
}

#[repr(C)]
#[derive(Default)]
struct IoasMap {
    size: u32,
    flags: u32,
    ioas_id: u32,
    reserved: u32,
    user_va: u64,
    length: u64,
    iova: u64,
}

#[repr(C)]
#[derive(Default)]
struct IoasUnmap {
    size: u32,
    ioas_id: u32,
    iova: u64,
    length: u64,
}

/// An address space, to which functions of one group are attached.
pub(super) struct Space {
    iommufd: OwnedFd,
    id: u32,
}

fn bind(device: &OwnedFd, iommufd: &OwnedFd) -> Result<(), Failed> {
    let mut bind =
        BindIommufd { argsz: size::<BindIommufd>(), iommufd: iommufd.as_raw_fd(), ..BindIommufd::default() };
    exchange(device, DEVICE_BIND_IOMMUFD, &mut bind).map_err(|e| match e.raw_os_error() {
        // So it says of a function that is bound already (vfio_df_open).
        Some(libc::EINVAL) => ("taking it", io::Error::from_raw_os_error(libc::EBUSY)),
        _ => ("taking it", e),
    })
}

impl Space {
    /// Makes the opened function `device` this process's own, with a new address space in `iommufd`.
    pub(super) fn attach(device: &OwnedFd, iommufd: OwnedFd) -> Result<Space, Failed> {
        bind(device, &iommufd)?;
        let mut alloc = IoasAlloc { size: size::<IoasAlloc>(), ..IoasAlloc::default() };
        exchange(&iommufd, IOAS_ALLOC, &mut alloc).map_err(|e| ("making an address space", e))?;
        let space = Space { iommufd, id: alloc.out_ioas_id };
        space.add(device)?;
        Ok(space)
    }

    /// Makes another function of the group this process's own, with this address space.
    pub(super) fn join(&self, device: &OwnedFd) -> Result<(), Failed> {
        bind(device, &self.iommufd)?;
        self.add(device)
    }

    fn add(&self, device: &OwnedFd) -> Result<(), Failed> {
        let mut attach = AttachPt { argsz: size::<AttachPt>(), flags: 0, pt_id: self.id };
        exchange(device, DEVICE_ATTACH_IOMMUFD_PT, &mut attach)
            .map_err(|e| ("attaching it to its address space", e))
    }

    /// First and last addresses that can be translated; empty if the kernel does not say.
    pub(super) fn ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges = [IovaRange::default(); 64];
        let mut ask = IoasIovaRanges {
            size: size::<IoasIovaRanges>(),
            ioas_id: self.id,
            num_iovas: ranges.len() as u32,
            allowed_iovas: ranges.as_mut_ptr() as u64,
            ..IoasIovaRanges::default()
        };
        match exchange(&self.iommufd, IOAS_IOVA_RANGES, &mut ask) {
            Ok(()) => {
                let found = ranges.iter().take(ask.num_iovas as usize);
                found.map(|r| (r.start, r.last)).collect()
            }
            // More than there is room for, too: then the usual ones are tried.
            Err(_) => Vec::new(),
        }
    }

    /// Lets the device reach `len` bytes at `address` by the addresses from `iova` on.
    ///
    /// # Safety
    /// The memory stays as it is until it is unmapped.
    pub(super) unsafe fn map(&self, address: *mut u8, iova: u64, len: u64) -> io::Result<()> {
        let map = IoasMap {
            size: size::<IoasMap>(),
            flags: MAP_FIXED_READ_WRITE,
            ioas_id: self.id,
            reserved: 0,
            user_va: address as u64,
            length: len,
            iova,
        };
        // SAFETY: the request takes this structure; the memory by the caller.
        unsafe { ioctl(self.iommufd.as_raw_fd(), IOAS_MAP, &map as *const IoasMap as libc::c_ulong) }
            .map(|_| ())
    }

    /// Ends what `map` began, of the same addresses.
    pub(super) fn unmap(&self, iova: u64, len: u64) -> io::Result<()> {
        let mut unmap = IoasUnmap { size: size::<IoasUnmap>(), ioas_id: self.id, iova, length: len };
        exchange(&self.iommufd, IOAS_UNMAP, &mut unmap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_those_of_the_kernel() {
        assert_eq!([IOAS_MAP, DEVICE_BIND_IOMMUFD], [0x3B85, 0x3B76]);
        assert_eq!([size::<BindIommufd>(), size::<AttachPt>(), size::<IoasAlloc>()], [16, 12, 12]);
        assert_eq!([size::<IoasIovaRanges>(), size::<IoasMap>(), size::<IoasUnmap>()], [32, 40, 24]);
    }

    #[test]
    fn not_a_device() {
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let (doing, e) = Space::attach(&null(), null()).err().unwrap();
        assert_eq!((doing, e.raw_os_error()), ("taking it", Some(libc::ENOTTY)));
    }
}
