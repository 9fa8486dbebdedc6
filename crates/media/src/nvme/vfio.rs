//! The bus of real controllers: VFIO with a group and a type 1 IOMMU (Linux, Documentation/driver-api/vfio.rst, linux/vfio.h).
//!
//! The function is bound to vfio-pci. Whoever opens its group owns it alone (`EBUSY` for others), and when this process ends, however
//! it does, the kernel resets the function and takes its mappings away. Without an IOMMU there is no such group, and
//! the driver refuses to work; so it does where only iommufd is offered without the group interface.

mod abi;

use super::bus::Bus;
use super::iova::Iova;
use super::pci::PciAddress;
use crate::MediaError;
use abi::*;
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

/// PCI Command Register, and its bits memory space enable and bus master enable (PCI Local Bus Specification 3.0, 6.2.2).
const COMMAND: u64 = 4;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;

/// Registers and the doorbells of 64 queue pairs at the smallest strides, bytes.
const BAR_MAX: u64 = 64 << 10;

/// A controller that this process owns.
pub struct VfioBus {
    name: String,
    numa_node: Option<u32>,
    bar: NonNull<u8>,
    bar_len: usize,
    config: RegionInfo,
    resettable: bool,
    interrupt: Option<OwnedFd>,
    /// Free addresses, and what is mapped. A leaf.
    addresses: Mutex<(Iova, HashMap<u64, u64>)>,
    device: OwnedFd,
    _group: OwnedFd,
    container: OwnedFd,
}

// SAFETY: the mapping of the registers is used by volatile accesses alone, which any thread may make.
unsafe impl Send for VfioBus {}
// SAFETY: as above; the rest is file descriptors and a lock.
unsafe impl Sync for VfioBus {}

impl VfioBus {
    /// Takes the function at this address. Its name is `nvme:` and the address.
    ///
    /// # Errors
    /// `Setup`: `ENODEV` it does not exist, is not bound to vfio-pci, or there is no IOMMU; `EBUSY` somebody else has it;
    /// `EPERM`, `EACCES`, `ENOMEM` (RLIMIT_MEMLOCK) as the system says.
    pub fn open(address: PciAddress) -> Result<VfioBus, MediaError> {
        let name = format!("nvme:{address}");
        let failed = |doing, e: io::Error| MediaError::Setup {
            device: name.clone(),
            doing,
            errno: e.raw_os_error().unwrap_or(libc::EIO),
        };
        let number = address.iommu_group().map_err(|e| match e.raw_os_error() {
            Some(libc::ENOENT) => {
                failed("finding its IOMMU group", io::Error::from_raw_os_error(libc::ENODEV))
            }
            _ => failed("finding its IOMMU group", e),
        })?;
        let open = |path: &str| rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let group = open(&format!("/dev/vfio/{number}")).map_err(|e| match e {
            Errno::NOENT => {
                failed("opening its IOMMU group: it is not bound to vfio-pci", Errno::NODEV.into())
            }
            e => failed("opening its IOMMU group", e.into()),
        })?;
        let mut status = GroupStatus { argsz: size::<GroupStatus>(), ..Default::default() };
        exchange(&group, GROUP_GET_STATUS, &mut status).map_err(|e| failed("asking for its group", e))?;
        if status.flags & GROUP_VIABLE == 0 {
            let e = io::Error::from_raw_os_error(libc::EBUSY);
            return Err(failed("taking its group: other devices of the group have drivers", e));
        }
        let container =
            open("/dev/vfio/vfio").map_err(|e| failed("opening a container of VFIO", e.into()))?;
        // SAFETY: requests that take a number, or nothing.
        let version = unsafe { ioctl(container.as_raw_fd(), GET_API_VERSION, 0) };
        // SAFETY: as above.
        let type1 = unsafe { ioctl(container.as_raw_fd(), CHECK_EXTENSION, TYPE1V2_IOMMU) };
        if version.map_err(|e| failed("asking for VFIO", e))? != 0
            || type1.map_err(|e| failed("asking for its IOMMU", e))? == 0
        {
            let e = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
            return Err(failed("looking for a type 1 IOMMU", e));
        }
        let number = container.as_raw_fd();
        // SAFETY: the request takes a pointer to a file descriptor.
        unsafe { ioctl(group.as_raw_fd(), GROUP_SET_CONTAINER, &number as *const RawFd as libc::c_ulong) }
            .map_err(|e| failed("putting its group into a container", e))?;
        // SAFETY: the request takes a number.
        unsafe { ioctl(container.as_raw_fd(), SET_IOMMU, TYPE1V2_IOMMU) }
            .map_err(|e| failed("setting up its IOMMU", e))?;
        let text = CString::new(address.to_string()).expect("addresses are digits");
        // SAFETY: the request takes a string and returns a new file descriptor.
        let device = unsafe {
            ioctl(group.as_raw_fd(), GROUP_GET_DEVICE_FD, text.as_ptr() as libc::c_ulong)
                .map(|fd| OwnedFd::from_raw_fd(fd))
        }
        .map_err(|e| failed("taking it", e))?;
        let mut info = DeviceInfo { argsz: size::<DeviceInfo>(), ..Default::default() };
        exchange(&device, DEVICE_GET_INFO, &mut info).map_err(|e| failed("asking for it", e))?;
        let region = |index| {
            let mut region = RegionInfo { argsz: size::<RegionInfo>(), index, ..Default::default() };
            exchange(&device, DEVICE_GET_REGION_INFO, &mut region).map(|()| region)
        };
        let config = region(REGION_CONFIG).map_err(|e| failed("finding its configuration space", e))?;
        set_master(&device, &config, true).map_err(|e| failed("making it a bus master", e))?;
        let registers = region(REGION_BAR0).map_err(|e| failed("finding its registers", e))?;
        if registers.flags & REGION_FLAG_MMAP == 0 || registers.size < 8192 {
            let e = io::Error::from_raw_os_error(libc::ENODEV);
            return Err(failed("mapping its registers; it is not an NVMe controller", e));
        }
        let bar_len = registers.size.min(BAR_MAX) as usize;
        let bar =
            map_bar(&device, registers.offset, bar_len).map_err(|e| failed("mapping its registers", e))?;
        let ranges = iova_ranges(&container);
        let interrupt = match interrupts(&device) {
            Ok(fd) => Some(fd),
            Err(e) => {
                tracing::warn!(device = name, "no interrupts: {e}");
                None
            }
        };
        Ok(VfioBus {
            numa_node: address.numa_node(),
            bar,
            bar_len,
            config,
            resettable: info.flags & DEVICE_FLAGS_RESET != 0,
            interrupt,
            addresses: Mutex::new((Iova::new(&ranges), HashMap::new())),
            device,
            _group: group,
            container,
            name,
        })
    }

    fn register(&self, at: u32) -> *mut u32 {
        assert!(at.is_multiple_of(4) && (at as usize) + 4 <= self.bar_len, "register outside of the mapping");
        // SAFETY: just checked.
        unsafe { self.bar.as_ptr().add(at as usize).cast() }
    }
}

/// Sets or clears bus master enable. Memory space is enabled in any case.
fn set_master(device: &OwnedFd, config: &RegionInfo, on: bool) -> io::Result<()> {
    let mut bytes = [0; 2];
    let at = config.offset + COMMAND;
    rustix::io::pread(device, &mut bytes, at)?;
    let command = u16::from_le_bytes(bytes) & !COMMAND_MASTER | COMMAND_MEMORY;
    let command = if on { command | COMMAND_MASTER } else { command };
    match rustix::io::pwrite(device, &command.to_le_bytes(), at)? {
        2 => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

fn map_bar(device: &OwnedFd, offset: u64, len: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: a shared mapping, at an address that the kernel chooses, touches no existing memory.
    let raw = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            device.as_raw_fd(),
            offset as libc::off_t,
        )
    };
    if raw == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(raw.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// An eventfd that counts interrupts of vector 0 (MSI-X).
fn interrupts(device: &OwnedFd) -> io::Result<OwnedFd> {
    let mut info = IrqInfo { argsz: size::<IrqInfo>(), index: IRQ_MSIX, ..Default::default() };
    exchange(device, DEVICE_GET_IRQ_INFO, &mut info)?;
    if info.count == 0 {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let mut set = IrqSet {
        argsz: size::<IrqSet>(),
        flags: IRQ_SET_EVENTFD_TRIGGER,
        index: IRQ_MSIX,
        start: 0,
        count: 1,
        eventfd: eventfd.as_raw_fd(),
    };
    exchange(device, DEVICE_SET_IRQS, &mut set)?;
    Ok(eventfd)
}

/// What the IOMMU can translate, first and last addresses; empty where the kernel does not say.
fn iova_ranges(container: &OwnedFd) -> Vec<(u64, u64)> {
    let mut info = IommuInfo {
        argsz: size::<IommuInfo>(),
        flags: 0,
        page_sizes: 0,
        cap_offset: 0,
        pad: 0,
        caps: [0; 512],
    };
    if exchange(container, IOMMU_GET_INFO, &mut info).is_err() || info.flags & IOMMU_INFO_CAPS == 0 {
        return Vec::new();
    }
    let bytes: Vec<u8> = info.caps.iter().flat_map(|w| w.to_ne_bytes()).collect();
    parse_ranges(&bytes, info.cap_offset as usize, std::mem::offset_of!(IommuInfo, caps))
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

// SAFETY: the IOMMU lets the device reach what is mapped, and nothing else.
unsafe impl Bus for VfioBus {
    fn name(&self) -> &str {
        &self.name
    }

    fn numa_node(&self) -> Option<u32> {
        self.numa_node
    }

    fn registers(&self) -> u32 {
        self.bar_len as u32
    }

    fn read32(&self, at: u32) -> u32 {
        // SAFETY: within the mapping; registers have no other users.
        u32::from_le(unsafe { self.register(at).read_volatile() })
    }

    fn write32(&self, at: u32, value: u32) {
        let register = self.register(at);
        // What was written to memory must be seen first by the device, which is no thread: a barrier for the outer world.
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a barrier.
        unsafe {
            std::arch::asm!("dmb oshst")
        };
        #[cfg(not(target_arch = "aarch64"))]
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        // SAFETY: as in `read32`.
        unsafe { register.write_volatile(value.to_le()) }
    }

    unsafe fn map(&self, address: *mut u8, len: usize) -> io::Result<u64> {
        let mut guard = self.addresses.lock();
        let (free, mapped) = &mut *guard;
        let iova = free.take(len as u64).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut map = DmaMap {
            argsz: size::<DmaMap>(),
            flags: MAP_READ_WRITE,
            vaddr: address as u64,
            iova,
            size: len as u64,
        };
        match exchange(&self.container, IOMMU_MAP_DMA, &mut map) {
            Ok(()) => {
                mapped.insert(iova, len as u64);
                Ok(iova)
            }
            Err(e) => {
                free.give_back(iova, len as u64);
                Err(e)
            }
        }
    }

    fn unmap(&self, device_address: u64, _len: usize) {
        let mut guard = self.addresses.lock();
        let (free, mapped) = &mut *guard;
        if let Some(size) = mapped.remove(&device_address)
            && self.unmap_dma(device_address, size)
        {
            free.give_back(device_address, size);
        }
    }

    fn interrupt(&self) -> Option<BorrowedFd<'_>> {
        self.interrupt.as_ref().map(|fd| fd.as_fd())
    }

    fn cut_off(&self) {
        // A device that is gone cannot be told; the IOMMU can.
        let _ = set_master(&self.device, &self.config, false);
        let mut guard = self.addresses.lock();
        for (iova, size) in guard.1.drain() {
            self.unmap_dma(iova, size);
        }
    }

    fn reset(&self) -> io::Result<()> {
        if !self.resettable {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        // SAFETY: the request takes nothing.
        unsafe { ioctl(self.device.as_raw_fd(), DEVICE_RESET, 0) }?;
        set_master(&self.device, &self.config, true)
    }
}

impl VfioBus {
    /// True if nothing of it is mapped any more. Memory that stays mapped could be written by the device when it is somebody
    /// else's; the process ends rather than that.
    fn unmap_dma(&self, iova: u64, bytes: u64) -> bool {
        let mut unmap = DmaUnmap { argsz: size::<DmaUnmap>(), flags: 0, iova, size: bytes };
        if let Err(e) = exchange(&self.container, IOMMU_UNMAP_DMA, &mut unmap) {
            tracing::error!(device = self.name, "memory stays mapped for the device: {e}");
            std::process::abort();
        }
        true
    }
}

impl Drop for VfioBus {
    fn drop(&mut self) {
        let _ = set_master(&self.device, &self.config, false);
        // SAFETY: our mapping, and the last reference to it.
        unsafe { libc::munmap(self.bar.as_ptr().cast(), self.bar_len) };
    }
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

    #[test]
    fn a_function_that_is_not_there() {
        let address = "ffff:ff:1f.7".parse().unwrap();
        match VfioBus::open(address).err() {
            Some(MediaError::Setup { device, errno, .. }) => {
                assert_eq!((device.as_str(), errno), ("nvme:ffff:ff:1f.7", libc::ENODEV));
            }
            other => panic!("{other:?}"),
        }
    }
}
