//! The seam below the driver: registers, memory that the controller reaches, interrupts.
//!
//! [`super::vfio`] is the real one; the simulated controller is another, so that everything above runs without a device.

use std::io;
use std::os::fd::BorrowedFd;

/// How a driver reaches one controller. Methods may be called from any thread.
///
/// # Safety
/// [`Bus::map`] and [`Bus::unmap`] decide which memory a device writes. An implementation must not let the device reach
/// memory that is not mapped.
pub unsafe trait Bus: Send + Sync {
    /// Name for messages.
    fn name(&self) -> &str;

    /// NUMA node of the device, when known.
    fn numa_node(&self) -> Option<u32>;

    /// Bytes of registers that can be reached, at least 8 KiB.
    fn registers(&self) -> u32;

    /// Reads a register of BAR0. All ones when the device is gone.
    fn read32(&self, at: u32) -> u32;

    /// Writes a register of BAR0. What was written to memory before is visible to the device before the register is.
    fn write32(&self, at: u32, value: u32);

    /// Reads a 64-bit register as two halves, which every controller allows (NVMe 1.4, section 3).
    fn read64(&self, at: u32) -> u64 {
        self.read32(at) as u64 | (self.read32(at + 4) as u64) << 32
    }

    /// Writes a 64-bit register as two halves, low one first.
    fn write64(&self, at: u32, value: u64) {
        self.write32(at, value as u32);
        self.write32(at + 4, (value >> 32) as u32);
    }

    /// Makes `len` bytes at `address` (both multiples of 4 KiB) reachable for the device, which sees them in one piece at
    /// the address that is returned.
    ///
    /// # Safety
    /// The memory must stay as it is until it is unmapped.
    unsafe fn map(&self, address: *mut u8, len: usize) -> io::Result<u64>;

    /// Ends a mapping. The device reaches that memory no more when this returns.
    fn unmap(&self, device_address: u64, len: usize);

    /// An eventfd(2), in non-blocking mode, that counts interrupts of vector 0; `None` where there are none.
    fn interrupt(&self) -> Option<BorrowedFd<'_>>;

    /// Whether the kernel has asked for the device since the last call: it is to be unbound or removed, and that waits until nobody has it open.
    fn is_wanted_back(&self) -> bool {
        false
    }

    /// Ends all access of the device to memory, even if it answers nothing any more.
    fn cut_off(&self);

    /// Resets the device as a whole (function level reset) and allows it access to memory again. Fails where it cannot.
    fn reset(&self) -> io::Result<()>;
}
