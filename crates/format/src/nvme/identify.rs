//! What Identify answers (section 5.15).

use crate::layout::media_struct;
use zerocopy::little_endian::{U16, U32, U64, U128};

/// CNS of Identify: the namespace in NSID (5.15.2.1).
pub const CNS_NAMESPACE: u32 = 0x00;
/// CNS of Identify: the controller (5.15.2.2).
pub const CNS_CONTROLLER: u32 = 0x01;
/// CNS of Identify: 1024 identifiers of active namespaces greater than NSID, ascending, 0 at the end (5.15.2.3).
pub const CNS_ACTIVE_NAMESPACES: u32 = 0x02;

/// Bits of `Controller::oncs`, optional NVM commands (5.15.2.2).
pub mod oncs {
    /// Dataset Management, bit 2.
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Write Zeroes, bit 3.
    pub const WRITE_ZEROES: u16 = 1 << 3;
    /// What each bit stands for, from bit 0.
    pub const NAMES: [&str; 8] = [
        "compare",
        "write uncorrectable",
        "dataset management",
        "write zeroes",
        "save and select in features",
        "reservations",
        "timestamp",
        "verify",
    ];
}

/// Bit of `Controller::oacs`: Doorbell Buffer Config, bit 8 (5.15.2.2).
pub const OACS_DOORBELL_BUFFER: u16 = 1 << 8;
/// What each bit of `Controller::oacs` stands for, optional admin commands, from bit 0 (5.15.2.2).
pub const OACS_NAMES: [&str; 10] = [
    "security send and receive",
    "format nvm",
    "firmware download and commit",
    "namespace management",
    "device self-test",
    "directives",
    "nvme-mi send and receive",
    "virtualization management",
    "doorbell buffer config",
    "get lba status",
];
/// Bits of `Controller::fuses`: Compare and Write as one, bit 0 (5.15.2.2).
pub const FUSES_COMPARE_AND_WRITE: u16 = 1;
/// Bit of `Controller::vwc`: a volatile write cache is present (5.15.2.2).
pub const VWC_PRESENT: u8 = 1;
/// Bit of `Namespace::nsfeat`: NAWUPF and its fellows are defined (5.15.2.1).
pub const NSFEAT_ATOMICS: u8 = 1 << 1;

media_struct! {
    /// Identify Controller data structure (5.15.2.2). Fields that the driver does not look at are left together.
    pub struct Controller: 4096 {
        /// PCI Vendor ID
        vid: U16,
        /// PCI Subsystem Vendor ID
        ssvid: U16,
        /// Serial Number, ASCII, padded with spaces
        sn: [u8; 20],
        /// Model Number, ASCII, padded with spaces
        mn: [u8; 40],
        /// Firmware Revision, ASCII, padded with spaces
        fr: [u8; 8],
        /// RAB, IEEE, CMIC
        other72: [u8; 5],
        /// Maximum Data Transfer Size: 2^this pages of CAP.MPSMIN; 0 no limit
        mdts: u8,
        /// Controller ID
        cntlid: U16,
        /// Version, as in the register VS
        ver: U32,
        /// RTD3 Resume Latency, microseconds
        rtd3r: U32,
        /// RTD3 Entry Latency, microseconds: typical time of a shutdown; 0 not told
        rtd3e: U32,
        /// OAES to reserved bytes before the admin command set attributes
        other92: [u8; 164],
        /// Optional Admin Command Support
        oacs: U16,
        /// Abort Command Limit, minus one
        acl: u8,
        /// Asynchronous Event Request Limit, minus one
        aerl: u8,
        /// FRMW to MTFA
        other260: [u8; 6],
        /// Warning Composite Temperature Threshold, kelvins; 0 not told
        wctemp: U16,
        /// Critical Composite Temperature Threshold, kelvins; 0 not told
        cctemp: U16,
        /// MTFA, HMPRE, HMMIN
        other270: [u8; 10],
        /// Total NVM Capacity, bytes; 0 not told
        tnvmcap: U128,
        /// Unallocated NVM Capacity, bytes
        unvmcap: U128,
        /// RPMBS to reserved bytes before the NVM command set attributes
        other312: [u8; 200],
        /// Submission Queue Entry Size: required 3:0, maximum 7:4, powers of two
        sqes: u8,
        /// Completion Queue Entry Size: required 3:0, maximum 7:4, powers of two
        cqes: u8,
        /// Maximum Outstanding Commands
        maxcmd: U16,
        /// Number of Namespaces: greatest valid identifier
        nn: U32,
        /// Optional NVM Command Support
        oncs: U16,
        /// Fused Operation Support
        fuses: U16,
        /// Format NVM Attributes
        fna: u8,
        /// Volatile Write Cache
        vwc: u8,
        /// Atomic Write Unit Normal, logical blocks minus one
        awun: U16,
        /// Atomic Write Unit Power Fail, logical blocks minus one
        awupf: U16,
        /// NVSCC, NWPC, ACWU and reserved bytes
        other530: [u8; 6],
        /// SGL Support: 1:0 is 00b none, 01b any alignment, 10b dwords
        sgls: U32,
        /// MNAN to vendor specific
        other540: [u8; 3556],
    }
}

impl Controller {
    /// Serial number without padding.
    pub fn serial(&self) -> String {
        text(&self.sn)
    }
    /// Model number without padding.
    pub fn model(&self) -> String {
        text(&self.mn)
    }
    /// Firmware revision without padding.
    pub fn firmware(&self) -> String {
        text(&self.fr)
    }
}

/// A field of ASCII without its padding.
fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).trim_matches(['\0', ' ']).to_owned()
}

media_struct! {
    /// LBA Format (5.15.2.1).
    pub struct LbaFormat: 4 {
        /// Metadata Size, bytes
        metadata: U16,
        /// LBA Data Size, as a power of two; 0 format not available
        lbads: u8,
        /// Relative Performance
        rp: u8,
    }
}

media_struct! {
    /// Identify Namespace data structure (5.15.2.1).
    pub struct Namespace: 4096 {
        /// Namespace Size, logical blocks; 0 not active
        nsze: U64,
        /// Namespace Capacity, logical blocks
        ncap: U64,
        /// Namespace Utilization, logical blocks
        nuse: U64,
        /// Namespace Features
        nsfeat: u8,
        /// Number of LBA Formats, minus one
        nlbaf: u8,
        /// Formatted LBA Size: index of the format 3:0, metadata behind each block 4
        flbas: u8,
        /// Metadata Capabilities
        mc: u8,
        /// End-to-end Data Protection Capabilities
        dpc: u8,
        /// End-to-end Data Protection Type Settings: type 2:0, 0 none
        dps: u8,
        /// NMIC, RESCAP, FPI
        other30: [u8; 3],
        /// Deallocate Logical Block Features
        dlfeat: u8,
        /// Namespace Atomic Write Unit Normal, logical blocks minus one
        nawun: U16,
        /// Namespace Atomic Write Unit Power Fail, logical blocks minus one
        nawupf: U16,
        /// Namespace Atomic Compare and Write Unit
        nacwu: U16,
        /// Namespace Atomic Boundary Size Normal, logical blocks minus one; 0 no boundaries
        nabsn: U16,
        /// Namespace Atomic Boundary Offset, logical blocks
        nabo: U16,
        /// Namespace Atomic Boundary Size Power Fail, logical blocks minus one; 0 no boundaries
        nabspf: U16,
        /// Namespace Optimal I/O Boundary, logical blocks; 0 not told
        noiob: U16,
        /// NVM Capacity, bytes; 0 not told
        nvmcap: U128,
        /// NPWG to ENDGID
        other64: [u8; 40],
        /// Namespace Globally Unique Identifier; zeros not told
        nguid: [u8; 16],
        /// IEEE Extended Unique Identifier; zeros not told
        eui64: [u8; 8],
        /// LBA formats
        lbaf: [LbaFormat; 16],
        /// Reserved and vendor specific
        other192: [u8; 3904],
    }
}

impl Namespace {
    /// NAWUN, NAWUPF and their fellows count; else those of the controller do.
    pub fn has_atomics(&self) -> bool {
        self.nsfeat & NSFEAT_ATOMICS != 0
    }
    /// The format in use.
    pub fn format(&self) -> LbaFormat {
        self.lbaf[(self.flbas & 0xF) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn fields_stand_where_the_specification_puts_them() {
        assert_eq!((offset_of!(Controller, mdts), offset_of!(Controller, oacs)), (77, 256));
        assert_eq!((offset_of!(Controller, rtd3e), offset_of!(Controller, acl)), (88, 258));
        assert_eq!((offset_of!(Controller, wctemp), offset_of!(Controller, cctemp)), (266, 268));
        assert_eq!((offset_of!(Controller, tnvmcap), offset_of!(Controller, unvmcap)), (280, 296));
        assert_eq!((offset_of!(Controller, sqes), offset_of!(Controller, nn)), (512, 516));
        assert_eq!((offset_of!(Controller, oncs), offset_of!(Controller, vwc)), (520, 525));
        assert_eq!((offset_of!(Controller, awupf), offset_of!(Controller, sgls)), (528, 536));
        assert_eq!((offset_of!(Namespace, flbas), offset_of!(Namespace, dps)), (26, 29));
        assert_eq!((offset_of!(Namespace, dlfeat), offset_of!(Namespace, nawupf)), (33, 36));
        assert_eq!((offset_of!(Namespace, nabo), offset_of!(Namespace, nabspf)), (42, 44));
        assert_eq!((offset_of!(Namespace, noiob), offset_of!(Namespace, nvmcap)), (46, 48));
        assert_eq!((offset_of!(Namespace, nguid), offset_of!(Namespace, lbaf)), (104, 128));
    }
}
