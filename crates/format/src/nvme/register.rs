//! Registers of a controller, in BAR0 (section 3.1). All are little-endian; fields are given with their bits.

/// Controller Capabilities, 64 bits (3.1.1). See [`Cap`].
pub const CAP: u32 = 0x00;
/// Version: major 31:16, minor 15:8, tertiary 7:0 (3.1.2).
pub const VS: u32 = 0x08;
/// Interrupt Mask Set (3.1.3). Not used with MSI-X.
pub const INTMS: u32 = 0x0C;
/// Interrupt Mask Clear (3.1.4). Not used with MSI-X.
pub const INTMC: u32 = 0x10;
/// Controller Configuration (3.1.5). See [`cc`].
pub const CC: u32 = 0x14;
/// Controller Status (3.1.6). See [`csts`].
pub const CSTS: u32 = 0x1C;
/// Admin Queue Attributes: completion queue size 27:16, submission queue size 11:0, both minus one (3.1.8).
pub const AQA: u32 = 0x24;
/// Admin Submission Queue Base Address, 64 bits (3.1.9).
pub const ASQ: u32 = 0x28;
/// Admin Completion Queue Base Address, 64 bits (3.1.10).
pub const ACQ: u32 = 0x30;
/// First doorbell (3.1.24, 3.1.25).
pub const DOORBELLS: u32 = 0x1000;

/// What a 32-bit read gives when no controller answers any more (PCI Express: completion timeout, surprise removal).
pub const ALL_ONES: u32 = u32::MAX;

/// Bytes between the tail doorbell of a submission queue and the next doorbell (3.1.24), by CAP.DSTRD.
pub fn doorbell_stride(dstrd: u32) -> u32 {
    4 << dstrd
}

/// Address of the tail doorbell of submission queue `queue` (3.1.24).
pub fn sq_tail_doorbell(queue: u16, dstrd: u32) -> u32 {
    DOORBELLS + 2 * queue as u32 * doorbell_stride(dstrd)
}

/// Address of the head doorbell of completion queue `queue` (3.1.25).
pub fn cq_head_doorbell(queue: u16, dstrd: u32) -> u32 {
    DOORBELLS + (2 * queue as u32 + 1) * doorbell_stride(dstrd)
}

/// Controller Capabilities (3.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap(pub u64);

impl Cap {
    /// Maximum Queue Entries Supported, 15:0, here as a number of entries: the field plus one, at least 2.
    pub fn entries_max(self) -> u32 {
        (self.0 as u32 & 0xFFFF) + 1
    }
    /// Timeout, 31:24: longest wait for CSTS.RDY to follow CC.EN, in units of 500 ms; here in milliseconds.
    pub fn timeout_ms(self) -> u64 {
        (self.0 >> 24 & 0xFF) * 500
    }
    /// Doorbell Stride, 35:32. See [`doorbell_stride`].
    pub fn dstrd(self) -> u32 {
        (self.0 >> 32) as u32 & 0xF
    }
    /// Command Sets Supported, bit 37: the NVM command set.
    pub fn has_nvm_command_set(self) -> bool {
        self.0 >> 37 & 1 == 1
    }
    /// Memory Page Size Minimum, 51:48: smallest page is 2^(12 + this) bytes.
    pub fn mpsmin(self) -> u32 {
        (self.0 >> 48) as u32 & 0xF
    }
    /// Memory Page Size Maximum, 55:52.
    pub fn mpsmax(self) -> u32 {
        (self.0 >> 52) as u32 & 0xF
    }
}

/// Fields of Controller Configuration (3.1.5).
pub mod cc {
    /// Enable, bit 0.
    pub const EN: u32 = 1;
    /// Memory Page Size, 10:7: pages of 2^(12 + this) bytes.
    pub const MPS_SHIFT: u32 = 7;
    /// Shutdown Notification, 15:14.
    pub const SHN_MASK: u32 = 3 << 14;
    /// Normal shutdown.
    pub const SHN_NORMAL: u32 = 1 << 14;
    /// I/O Submission Queue Entry Size, 19:16, as a power of two.
    pub const IOSQES_SHIFT: u32 = 16;
    /// I/O Completion Queue Entry Size, 23:20, as a power of two.
    pub const IOCQES_SHIFT: u32 = 20;
}

/// Fields of Controller Status (3.1.6).
pub mod csts {
    /// Ready, bit 0.
    pub const RDY: u32 = 1;
    /// Controller Fatal Status, bit 1.
    pub const CFS: u32 = 1 << 1;
    /// Shutdown Status, 3:2.
    pub const SHST_MASK: u32 = 3 << 2;
    /// Shutdown is under way.
    pub const SHST_OCCURRING: u32 = 1 << 2;
    /// Shutdown is complete.
    pub const SHST_COMPLETE: u32 = 2 << 2;
}
