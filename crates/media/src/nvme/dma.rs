//! Memory of the driver's own that the controller reaches: queues, lists, bounce pages.
//!
//! One allocation per controller: huge pages of 2 MiB where the system has some to give, ordinary ones otherwise, locked,
//! mapped for the device as long as anything refers to it. [`Region`]s are handed out once and keep it alive.

use super::bus::Bus;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Bytes of a page of the controller (CC.MPS = 0).
pub(super) const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;

/// Memory that stays mapped, for CPU and device, until the last reference is gone.
pub(super) struct DmaMemory {
    bus: Arc<dyn Bus>,
    base: NonNull<u8>,
    len: usize,
    device: u64,
}

// SAFETY: plain memory without thread affinity; who may touch which part when is decided by the owners of its regions.
unsafe impl Send for DmaMemory {}
// SAFETY: as above.
unsafe impl Sync for DmaMemory {}

impl DmaMemory {
    /// Zeroed memory of at least `len` bytes.
    pub(super) fn new(bus: Arc<dyn Bus>, len: usize) -> io::Result<Arc<DmaMemory>> {
        let whole = len.next_multiple_of(HUGE);
        let (base, len) = match map_anonymous(whole, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB) {
            Ok(base) => (base, whole),
            Err(_) => {
                let len = len.next_multiple_of(PAGE);
                (map_anonymous(len, 0)?, len)
            }
        };
        // SAFETY: the mapping made above. Whether the limit allows locking does not matter for correctness, as mapping for
        // the device pins the pages.
        if unsafe { libc::mlock(base.as_ptr().cast(), len) } != 0 {
            tracing::debug!(
                device = bus.name(),
                "memory of queues is not locked: {}",
                io::Error::last_os_error()
            );
        }
        // SAFETY: the memory is unmapped for the device, by `drop`, before it goes away.
        match unsafe { bus.map(base.as_ptr(), len) } {
            Ok(device) => Ok(Arc::new(DmaMemory { bus, base, len, device })),
            Err(e) => {
                // SAFETY: nobody else has learned of the mapping.
                unsafe { libc::munmap(base.as_ptr().cast(), len) };
                Err(e)
            }
        }
    }
}

fn map_anonymous(len: usize, flags: libc::c_int) -> io::Result<NonNull<u8>> {
    // SAFETY: an anonymous private mapping at an address that the kernel chooses touches no existing memory.
    let raw = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if raw == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // A child of this process has no use for it, and copying on write after fork(2) would part us from the device.
    // SAFETY: the mapping made above.
    unsafe { libc::madvise(raw, len, libc::MADV_DONTFORK) };
    NonNull::new(raw.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

impl Drop for DmaMemory {
    fn drop(&mut self) {
        self.bus.unmap(self.device, self.len);
        // SAFETY: the mapping is ours, no region refers to it any more, and the device cannot reach it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Hands out [`Region`]s, one behind the other.
pub(super) struct Carver {
    memory: Arc<DmaMemory>,
    used: usize,
}

impl Carver {
    pub(super) fn new(memory: Arc<DmaMemory>) -> Carver {
        Carver { memory, used: 0 }
    }
    /// The next `len` bytes, rounded up to pages.
    pub(super) fn take(&mut self, len: usize) -> Region {
        let len = len.next_multiple_of(PAGE);
        let offset = self.used;
        self.used += len;
        assert!(self.used <= self.memory.len, "sizes were added up before");
        Region { memory: self.memory.clone(), offset, len }
    }
}

/// A part of [`DmaMemory`], on whole pages.
pub(super) struct Region {
    memory: Arc<DmaMemory>,
    offset: usize,
    len: usize,
}

impl Region {
    /// Where the device sees it.
    pub(super) fn device(&self) -> u64 {
        self.memory.device + self.offset as u64
    }

    /// Address of `len` bytes at `at`. Panics when they are not within the region.
    pub(super) fn ptr(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len && len <= self.len - at, "range outside of the region");
        // SAFETY: just checked; the region lies within the mapping.
        unsafe { self.memory.base.as_ptr().add(self.offset + at) }
    }

    /// Copies `from` to `at`.
    pub(super) fn write(&self, at: usize, from: &[u8]) {
        let to = self.ptr(at, from.len());
        // SAFETY: `ptr` checked the range, and regions hand out no references, so `from` is another object.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }

    /// Copies from `at`.
    pub(super) fn read(&self, at: usize, to: &mut [u8]) {
        let from = self.ptr(at, to.len());
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }

    /// Sets all of it to zero.
    pub(super) fn zero(&self) {
        // SAFETY: the whole region.
        unsafe { std::ptr::write_bytes(self.ptr(0, self.len), 0, self.len) }
    }

    /// A word that device and driver share. `at` is a multiple of 4.
    pub(super) fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4));
        // SAFETY: in bounds, aligned, and alive as long as `self`; such words are accessed as atomics alone while both
        // sides use them.
        unsafe { AtomicU32::from_ptr(self.ptr(at, 4).cast()) }
    }
}
