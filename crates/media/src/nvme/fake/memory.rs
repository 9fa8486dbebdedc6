//! What the simulated controller reaches of the driver's memory.

use std::collections::BTreeMap;

/// What the device may reach: the IOMMU.
#[derive(Default)]
pub(super) struct Memory {
    /// By device address: where, and how long.
    mapped: BTreeMap<u64, (usize, u64)>,
    next: u64,
    cut: bool,
}

impl Memory {
    pub(super) fn map(&mut self, address: *mut u8, len: usize) -> u64 {
        // Addresses unlike those of the process, with room behind each piece, so that mistakes are noticed.
        self.next = self.next.max(1 << 32);
        let device = self.next;
        self.next += (len as u64).next_multiple_of(1 << 21) + (1 << 21);
        self.mapped.insert(device, (address as usize, len as u64));
        device
    }
    pub(super) fn unmap(&mut self, device: u64) {
        self.mapped.remove(&device);
        // The next one who takes it gets it anew.
        self.cut &= !self.mapped.is_empty();
    }
    pub(super) fn cut_off(&mut self) {
        self.cut = true;
    }
    pub(super) fn pieces(&self) -> usize {
        self.mapped.len()
    }
    /// Address in the process of `len` bytes, if they are mapped in one piece.
    pub(super) fn at(&self, device: u64, len: u64) -> Option<*mut u8> {
        let (start, (address, size)) = self.mapped.range(..=device).next_back()?;
        let inside = device - start;
        let fits = !self.cut && inside.checked_add(len)? <= *size;
        fits.then(|| (*address as u64 + inside) as *mut u8)
    }
}
