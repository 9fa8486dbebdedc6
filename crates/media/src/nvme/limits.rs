//! What a controller and a namespace can do, as the driver uses it: every limit that commands have to obey.

use super::dma::PAGE;
use super::plan::Cut;
use super::pointer::BYTES_MAX;
use format::nvme::identify::{Controller, Namespace, OACS_DOORBELL_BUFFER, VWC_PRESENT, oncs};
use format::nvme::queue::nvm::BLOCKS_MAX;
use format::nvme::register::Cap;
use std::time::Duration;

/// Larger atomic units than this are of no use to anybody here, bytes.
const ATOMIC_MAX: u64 = PAGE as u64;

/// Logical blocks of one range of Dataset Management: 32 bits (NVMe 1.4, section 6.7).
pub(super) const DEALLOCATE_MAX: u64 = u32::MAX as u64;

/// Shutdown takes at least so long, whatever RTD3 Entry Latency says.
const SHUTDOWN_MIN: Duration = Duration::from_secs(10);

/// And at most so long: it may say 71 minutes. What was to be durable was flushed before.
const SHUTDOWN_MAX: Duration = Duration::from_secs(60);

/// Largest namespace, bytes: offsets of files have a sign.
const SIZE_MAX: u64 = i64::MAX as u64;

/// Facts of one namespace of one controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) nsid: u32,
    /// Bytes of a logical block.
    pub(super) lba: u64,
    /// Size, logical blocks.
    pub(super) blocks: u64,
    pub(super) cut: Cut,
    /// Bytes of one Write Zeroes; 0: there is none.
    pub(super) zeroes_max: u64,
    /// Dataset Management is there.
    pub(super) deallocate: bool,
    /// Doorbell Buffer Config is there.
    pub(super) shadow: bool,
    /// A volatile write cache is there, on or off.
    pub(super) cache: bool,
    pub(super) shutdown: Duration,
    /// Tells namespaces apart: serial number of the controller, NGUID, EUI64.
    identity: ([u8; 20], [u8; 16], [u8; 8]),
}

impl Limits {
    /// What stands in the answers to Identify. Fails with what the driver does not support.
    pub(super) fn new(cap: Cap, c: &Controller, n: &Namespace, nsid: u32) -> Result<Limits, &'static str> {
        if cap.mpsmin() != 0 {
            return Err("its pages are larger than 4 KiB");
        }
        if c.sqes & 0xF > 6 || c.cqes & 0xF > 4 {
            return Err("its queue entries are larger than those of the NVM command set");
        }
        if n.nsze.get() == 0 {
            return Err("the namespace is not active");
        }
        let format = n.format();
        if format.metadata.get() != 0 || n.dps & 7 != 0 {
            return Err("the namespace is formatted with metadata");
        }
        if !(9..=12).contains(&format.lbads) {
            return Err("its logical blocks are not of 512 to 4096 bytes");
        }
        let lba = 1u64 << format.lbads;
        if n.nsze.get().checked_mul(lba).is_none_or(|bytes| bytes > SIZE_MAX) {
            return Err("the namespace is larger than any can be");
        }
        // MDTS counts pages of CAP.MPSMIN, as a power of two; 0 is no limit.
        let bytes_max = match c.mdts {
            0 => BYTES_MAX,
            n => (PAGE as u64).checked_shl(n as u32).filter(|b| *b > 0).unwrap_or(BYTES_MAX).min(BYTES_MAX),
        };
        let bytes_max = bytes_max.min(BLOCKS_MAX * lba);
        let optional = c.oncs.get();
        // The specification does not apply MDTS to Write Zeroes, but there are controllers that do.
        let zeroes_max = if optional & oncs::WRITE_ZEROES != 0 { bytes_max } else { 0 };
        Ok(Limits {
            nsid,
            lba,
            blocks: n.nsze.get(),
            cut: Cut { bytes_max, unit: atomic_unit(c, n, lba), sgl: matches!(c.sgls.get() & 3, 1 | 2) },
            zeroes_max,
            deallocate: optional & oncs::DATASET_MANAGEMENT != 0,
            shadow: c.oacs.get() & OACS_DOORBELL_BUFFER != 0,
            cache: c.vwc & VWC_PRESENT != 0,
            shutdown: Duration::from_micros(c.rtd3e.get() as u64).clamp(SHUTDOWN_MIN, SHUTDOWN_MAX),
            identity: (c.sn, n.nguid, n.eui64),
        })
    }
}

/// Bytes of aligned writes that are kept or lost as a whole when power fails (AWUPF or NAWUPF; NVMe 1.4, section 6.4).
fn atomic_unit(c: &Controller, n: &Namespace, lba: u64) -> u64 {
    let own = n.has_atomics();
    let blocks = if own { n.nawupf.get() } else { c.awupf.get() } as u64 + 1;
    let bytes = (blocks * lba).min(ATOMIC_MAX);
    // Aligned writes need a power of two.
    let unit = if bytes.is_power_of_two() { bytes } else { bytes.next_power_of_two() / 2 };
    if own && n.nabspf.get() != 0 {
        // A write across an atomic boundary is not atomic. Aligned units never cross one if boundaries are aligned to units.
        let boundary = (n.nabspf.get() as u64 + 1) * lba;
        let offset = n.nabo.get() as u64 * lba;
        if !boundary.is_multiple_of(unit) || !offset.is_multiple_of(unit) {
            return lba;
        }
    }
    unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::nvme::identify::NSFEAT_ATOMICS;
    use zerocopy::FromZeros;

    fn parts() -> (Controller, Namespace) {
        let (mut c, mut n) = (Controller::new_zeroed(), Namespace::new_zeroed());
        (c.sqes, c.cqes) = (0x66, 0x44);
        n.nsze = 1000.into();
        n.lbaf[0].lbads = 9;
        n.lbaf[1].lbads = 12;
        n.lbaf[2].metadata = 8.into();
        n.lbaf[2].lbads = 9;
        n.lbaf[3].lbads = 16;
        (c, n)
    }

    fn limits(c: &Controller, n: &Namespace) -> Result<Limits, &'static str> {
        Limits::new(Cap(1 << 37 | 0xFF), c, n, 1)
    }

    #[test]
    fn a_plain_controller_promises_little() {
        let (c, n) = parts();
        let l = limits(&c, &n).unwrap();
        assert_eq!(
            (l.lba, l.blocks, l.zeroes_max, l.deallocate, l.shadow, l.cache),
            (512, 1000, 0, false, false, false)
        );
        assert_eq!(l.cut, Cut { bytes_max: BYTES_MAX, unit: 512, sgl: false });
    }

    #[test]
    fn limits_of_transfers() {
        let (mut c, n) = parts();
        for (mdts, bytes) in
            [(0, BYTES_MAX), (1, 8192), (5, 128 << 10), (9, 2 << 20), (10, BYTES_MAX), (255, BYTES_MAX)]
        {
            c.mdts = mdts;
            assert_eq!(limits(&c, &n).unwrap().cut.bytes_max, bytes, "{mdts}");
        }
        c.mdts = 3;
        c.oncs = oncs::WRITE_ZEROES.into();
        assert_eq!(limits(&c, &n).unwrap().zeroes_max, 32 << 10);
    }

    #[test]
    fn atomic_units() {
        let (mut c, mut n) = parts();
        let mut unit = |awupf: u16, own: Option<(u16, u16, u16)>, flbas| {
            c.awupf = awupf.into();
            n.flbas = flbas;
            n.nsfeat = if own.is_some() { NSFEAT_ATOMICS } else { 0 };
            let (nawupf, nabspf, nabo) = own.unwrap_or((77, 77, 77));
            (n.nawupf, n.nabspf, n.nabo) = (nawupf.into(), nabspf.into(), nabo.into());
            limits(&c, &n).unwrap().cut.unit
        };
        assert_eq!(unit(0, None, 0), 512);
        assert_eq!(unit(7, None, 0), 4096);
        assert_eq!(unit(6, None, 0), 2048, "seven blocks hold aligned units of four");
        assert_eq!(unit(u16::MAX, None, 0), 4096);
        assert_eq!(unit(0, None, 1), 4096);
        assert_eq!(unit(0, Some((7, 0, 0)), 0), 4096, "the namespace's own value counts");
        assert_eq!(unit(7, Some((7, 15, 0)), 0), 4096);
        assert_eq!(unit(7, Some((7, 15, 1)), 0), 512, "boundaries in the middle of units");
        assert_eq!(unit(7, Some((7, 11, 0)), 0), 512);
    }

    #[test]
    fn what_is_not_supported_is_said() {
        let (c, mut n) = parts();
        for flbas in [2, 3, 4] {
            n.flbas = flbas;
            assert!(limits(&c, &n).is_err(), "format {flbas}");
        }
        n.flbas = 0;
        n.dps = 1;
        assert!(limits(&c, &n).is_err());
        n.dps = 0;
        n.nsze = 0.into();
        assert!(limits(&c, &n).is_err());
        n.nsze = 1.into();
        assert!(Limits::new(Cap(1 << 48), &c, &n, 1).is_err());
    }

    #[test]
    fn sizes_that_cannot_be() {
        let (c, mut n) = parts();
        for (blocks, fits) in [(u64::MAX, false), (1 << 55, false), (1 << 54, false), ((1 << 54) - 1, true)] {
            n.nsze = blocks.into();
            assert_eq!(limits(&c, &n).is_ok(), fits, "{blocks:#x} blocks");
        }
    }

    #[test]
    fn a_shutdown_has_an_end() {
        let (mut c, n) = parts();
        for (micros, seconds) in [(0, 10), (25_000_000, 25), (u32::MAX, 60)] {
            c.rtd3e = micros.into();
            assert_eq!(limits(&c, &n).unwrap().shutdown, Duration::from_secs(seconds));
        }
    }
}
