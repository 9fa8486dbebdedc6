//! The bus of real controllers: VFIO (Linux, Documentation/driver-api/vfio.rst, linux/vfio.h), by iommufd or by a group and a type 1 IOMMU
//! (`ownership`).
//!
//! The function is bound to vfio-pci. Whoever opens it owns it alone (`EBUSY` for others), and when this process ends, however
//! it does, the kernel resets the function and takes its mappings away. Without an IOMMU there is no such way, and
//! the driver refuses to work.

mod abi;
mod group;
mod iommufd;
mod ownership;

use super::bus::Bus;
use super::pci::PciAddress;
use crate::MediaError;
use abi::*;
use ownership::Owned;
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// PCI Command Register, and its bits memory space enable and bus master enable (PCI Local Bus Specification 3.0, 6.2.2).
const COMMAND: u64 = 4;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;

/// Programming interface, subclass and base class (6.2.1): mass storage, non-volatile memory, NVM Express.
const CLASS: u64 = 9;
const NVME: [u8; 3] = [0x02, 0x08, 0x01];

/// Registers and the doorbells of 64 queue pairs at the smallest strides, bytes.
const BAR_MAX: u64 = 64 << 10;

/// What was being done, and its error.
type Failed = (&'static str, io::Error);

/// A controller that this process owns.
pub struct VfioBus {
    name: String,
    numa_node: Option<u32>,
    bar: NonNull<u8>,
    bar_len: usize,
    config: RegionInfo,
    resettable: bool,
    interrupt: Option<OwnedFd>,
    /// Counts how often the kernel has asked for the device.
    wish: Option<OwnedFd>,
    /// What is mapped for it: addresses, and bytes from there on. A leaf.
    mapped: Mutex<HashMap<u64, u64>>,
    owned: Owned,
}

// SAFETY: the mapping of the registers is used by volatile accesses alone, which any thread may make.
unsafe impl Send for VfioBus {}
// SAFETY: as above; the rest is file descriptors and a lock.
unsafe impl Sync for VfioBus {}

impl VfioBus {
    /// Takes the function at this address. Its name is `nvme:` and the address.
    ///
    /// # Errors
    /// `Setup`: `ENODEV` it does not exist, is no NVMe controller, is not bound to vfio-pci, or there is no IOMMU; `EBUSY` somebody else has it;
    /// `EPERM`, `EACCES`, `ENOMEM` (RLIMIT_MEMLOCK) as the system says.
    pub fn open(address: PciAddress) -> Result<VfioBus, MediaError> {
        let name = format!("nvme:{address}");
        let failed = |doing, e: io::Error| MediaError::Setup {
            device: name.clone(),
            doing,
            errno: e.raw_os_error().unwrap_or(libc::EIO),
        };
        let owned = ownership::take(address).map_err(|(doing, errno)| failed(doing, errno))?;
        let device = &owned.device;
        let mut info = DeviceInfo { argsz: size::<DeviceInfo>(), ..Default::default() };
        exchange(device, DEVICE_GET_INFO, &mut info).map_err(|e| failed("asking for it", e))?;
        let region = |index| {
            let mut region = RegionInfo { argsz: size::<RegionInfo>(), index, ..Default::default() };
            exchange(device, DEVICE_GET_REGION_INFO, &mut region).map(|()| region)
        };
        let config = region(REGION_CONFIG).map_err(|e| failed("finding its configuration space", e))?;
        let mut class = [0; 3];
        rustix::io::pread(device, &mut class, config.offset + CLASS)
            .map_err(|e| failed("reading its class", e.into()))?;
        if class != NVME {
            let e = io::Error::from_raw_os_error(libc::ENODEV);
            return Err(failed("taking it; it is not an NVMe controller", e));
        }
        set_master(device, &config, true).map_err(|e| failed("making it a bus master", e))?;
        let registers = region(REGION_BAR0).map_err(|e| failed("finding its registers", e))?;
        if registers.flags & REGION_FLAG_MMAP == 0 || registers.size < 8192 {
            let e = io::Error::from_raw_os_error(libc::ENODEV);
            return Err(failed("mapping its registers, of which it has too few", e));
        }
        let bar_len = registers.size.min(BAR_MAX) as usize;
        let bar =
            map_bar(device, registers.offset, bar_len).map_err(|e| failed("mapping its registers", e))?;
        let signal = |index, what| match signals(device, index) {
            Ok(fd) => Some(fd),
            Err(e) => {
                tracing::warn!(device = name, "no {what}: {e}");
                None
            }
        };
        let interrupt = signal(IRQ_MSIX, "interrupts");
        let wish = signal(IRQ_REQUEST, "word when the kernel wants it back");
        Ok(VfioBus {
            numa_node: address.numa_node(),
            bar,
            bar_len,
            config,
            resettable: info.flags & DEVICE_FLAGS_RESET != 0,
            interrupt,
            wish,
            mapped: Mutex::default(),
            owned,
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

/// An eventfd that counts the first signal of this sort: interrupts of vector 0 (MSI-X), or wishes of the kernel to have the device back.
fn signals(device: &OwnedFd, index: u32) -> io::Result<OwnedFd> {
    let mut info = IrqInfo { argsz: size::<IrqInfo>(), index, ..Default::default() };
    exchange(device, DEVICE_GET_IRQ_INFO, &mut info)?;
    if info.count == 0 {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let mut set = IrqSet {
        argsz: size::<IrqSet>(),
        flags: IRQ_SET_EVENTFD_TRIGGER,
        index,
        start: 0,
        count: 1,
        eventfd: eventfd.as_raw_fd(),
    };
    exchange(device, DEVICE_SET_IRQS, &mut set)?;
    Ok(eventfd)
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
        let mut mapped = self.mapped.lock();
        // SAFETY: by the caller.
        let iova = unsafe { self.owned.domain.map(address, len as u64) }?;
        mapped.insert(iova, len as u64);
        Ok(iova)
    }

    fn unmap(&self, device_address: u64, _len: usize) {
        let mut mapped = self.mapped.lock();
        if let Some(size) = mapped.remove(&device_address) {
            self.unmap_dma(device_address, size);
        }
    }

    fn interrupt(&self) -> Option<BorrowedFd<'_>> {
        self.interrupt.as_ref().map(|fd| fd.as_fd())
    }

    fn is_wanted_back(&self) -> bool {
        let mut count = [0; 8];
        self.wish.as_ref().is_some_and(|fd| rustix::io::read(fd, &mut count).is_ok())
    }

    fn cut_off(&self) {
        // A device that is gone cannot be told; the IOMMU can.
        let _ = set_master(&self.owned.device, &self.config, false);
        self.unmap_all();
    }

    fn reset(&self) -> io::Result<()> {
        if !self.resettable {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        // SAFETY: the request takes nothing.
        unsafe { ioctl(self.owned.device.as_raw_fd(), DEVICE_RESET, 0) }?;
        set_master(&self.owned.device, &self.config, true)
    }
}

impl VfioBus {
    /// Memory that stays mapped could be written by the device when it is somebody else's; the process ends rather than that.
    fn unmap_dma(&self, iova: u64, bytes: u64) {
        if let Err(e) = self.owned.domain.unmap(iova, bytes) {
            tracing::error!(device = self.name, "memory stays mapped for the device: {e}");
            std::process::abort();
        }
    }

    fn unmap_all(&self) {
        self.mapped.lock().drain().for_each(|(iova, bytes)| self.unmap_dma(iova, bytes));
    }
}

impl Drop for VfioBus {
    fn drop(&mut self) {
        let _ = set_master(&self.owned.device, &self.config, false);
        // Others of its group may go on.
        self.unmap_all();
        // SAFETY: our mapping, and the last reference to it.
        unsafe { libc::munmap(self.bar.as_ptr().cast(), self.bar_len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
