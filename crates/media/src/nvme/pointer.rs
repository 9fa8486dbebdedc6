//! Data pointers of commands: PRP entries and lists (NVMe 1.4, section 4.3), SGL descriptors (4.4).
//!
//! Rules of PRPs, which [`is_prp`] checks and [`prp`] relies on: every piece of memory but the first begins at a page, every
//! one but the last ends at one. PRP entry 1 may point into a page. Entry 2 is the second page, or, when there
//! are more, a list of all further ones. A list of one page holds 512 entries: enough for [`BYTES_MAX`] at any offset.

use super::dma::{PAGE, Region};
use format::nvme::SglDescriptor;
use format::nvme::queue::{SGL_DATA, SGL_LAST_SEGMENT};
use smallvec::SmallVec;
use zerocopy::{FromZeros, IntoBytes};

/// Most bytes of one command.
pub(super) const BYTES_MAX: u64 = 2 << 20;
/// Most pieces of memory of one command with an SGL: descriptors in one page.
pub(super) const SEGMENTS_MAX: usize = PAGE / size_of::<SglDescriptor>();

const _: () = assert!(BYTES_MAX as usize / PAGE <= PAGE / size_of::<u64>());

/// Memory in one piece, as the device sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) device: u64,
    pub(super) len: u64,
}

/// The memory of one command.
pub(super) type Segments = SmallVec<[Segment; 4]>;

const MASK: u64 = PAGE as u64 - 1;

/// Whether memory that ends at `end` may be followed by memory at `start` under the rules of PRPs.
pub(super) fn prp_continues(end: u64, start: u64) -> bool {
    end & MASK == 0 && start & MASK == 0
}

/// Whether PRPs can express these.
pub(super) fn is_prp(segments: &[Segment]) -> bool {
    segments.windows(2).all(|w| prp_continues(w[0].device + w[0].len, w[1].device))
}

/// Whether a controller has less to do for the descriptors of these than for PRP entries, of which there is one for each page: where PRPs
/// need a list and pieces are large. (32 KiB on average, as Linux has it; a single piece needs no list at all.)
pub(super) fn is_shorter_as_sgl(segments: &[Segment]) -> bool {
    const LARGE: u64 = 32 << 10;
    let total: u64 = segments.iter().map(|s| s.len).sum();
    total > 2 * PAGE as u64 && (segments.len() == 1 || total / segments.len() as u64 >= LARGE)
}

/// The two PRP entries for memory for which [`is_prp`] holds. `list` is written when it is needed.
pub(super) fn prp(segments: &[Segment], list: &Region) -> (u64, u64) {
    debug_assert!(is_prp(segments) && !segments.is_empty());
    let first = segments[0].device;
    let mut rest = segments.iter().flat_map(|s| {
        // The page in which the segment begins, and all further ones that it reaches.
        let start = s.device & !MASK;
        (start..s.device + s.len).step_by(PAGE)
    });
    rest.next();
    let mut count = 0;
    let mut second = 0;
    for page in rest {
        if count == 0 {
            second = page;
        }
        list.write(count * 8, &page.to_le_bytes());
        count += 1;
    }
    match count {
        0 | 1 => (first, second),
        _ => (first, list.device()),
    }
}

/// The SGL descriptor, as the two halves of a data pointer. `list` is written when it is needed.
pub(super) fn sgl(segments: &[Segment], list: &Region) -> (u64, u64) {
    let data = |s: &Segment| descriptor(s.device, s.len as u32, SGL_DATA);
    let whole = match segments {
        [one] => data(one),
        many => {
            for (i, segment) in many.iter().enumerate() {
                list.write(i * size_of::<SglDescriptor>(), data(segment).as_bytes());
            }
            descriptor(
                list.device(),
                size_of_val(&[data(&many[0])]) as u32 * many.len() as u32,
                SGL_LAST_SEGMENT,
            )
        }
    };
    let bytes = whole.as_bytes();
    let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    (half(0), half(8))
}

fn descriptor(address: u64, len: u32, kind: u8) -> SglDescriptor {
    let mut d = SglDescriptor::new_zeroed();
    (d.address, d.len, d.kind) = (address.into(), len.into(), kind);
    d
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::dma::{Carver, DmaMemory};
    use crate::nvme::fake::{Config, FakeController};
    use zerocopy::FromBytes;

    fn list() -> Region {
        let bus = FakeController::new(Config::new(1 << 20));
        Carver::new(DmaMemory::new(bus, PAGE).unwrap()).take(PAGE)
    }

    fn entries(list: &Region, n: usize) -> Vec<u64> {
        (0..n)
            .map(|i| {
                let mut bytes = [0; 8];
                list.read(i * 8, &mut bytes);
                u64::from_le_bytes(bytes)
            })
            .collect()
    }

    #[test]
    fn prps_of_one_two_and_many_pages() {
        let list = list();
        let s = |device, len| Segment { device, len };
        assert_eq!(prp(&[s(0x5000, 512)], &list), (0x5000, 0));
        assert_eq!(prp(&[s(0x5200, 4096 - 512)], &list), (0x5200, 0));
        assert_eq!(prp(&[s(0x5200, 4096)], &list), (0x5200, 0x6000));
        assert_eq!(prp(&[s(0x5E00, 512), s(0x9000, 4096)], &list), (0x5E00, 0x9000));
        assert_eq!(prp(&[s(0x5E00, 512), s(0x9000, 8192)], &list), (0x5E00, list.device()));
        assert_eq!(entries(&list, 2), [0x9000, 0xA000]);
        // The largest transfer, at an odd offset, fills the list exactly.
        assert_eq!(prp(&[s(0x20_0200, BYTES_MAX)], &list), (0x20_0200, list.device()));
        let all = entries(&list, 512);
        assert!(all.iter().enumerate().all(|(i, e)| *e == 0x20_1000 + i as u64 * 4096));
    }

    #[test]
    fn which_memory_prps_can_express() {
        let s = |device, len| Segment { device, len };
        assert!(is_prp(&[s(0x200, 512)]));
        assert!(is_prp(&[s(0x200, 0xE00), s(0x5000, 4096), s(0x9000, 512)]));
        assert!(!is_prp(&[s(0x200, 512), s(0x5000, 512)]));
        assert!(!is_prp(&[s(0, 4096), s(0x5200, 512)]));
    }

    #[test]
    fn few_large_pieces_are_shorter_as_sgl() {
        let pieces = |n: usize, len| vec![Segment { device: 0, len }; n];
        assert!(!is_shorter_as_sgl(&pieces(1, 8192)));
        assert!(is_shorter_as_sgl(&pieces(1, 12288)));
        assert!(!is_shorter_as_sgl(&pieces(16, 4096)));
        assert!(is_shorter_as_sgl(&pieces(2, 32768)));
    }

    #[test]
    fn sgls_of_one_and_many_pieces() {
        let list = list();
        let s = |device, len| Segment { device, len };
        let (low, high) = sgl(&[s(0x5200, 512)], &list);
        assert_eq!((low, high), (0x5200, 512));
        let (low, high) = sgl(&[s(0x5200, 512), s(0x9000, 1024)], &list);
        assert_eq!((low, high), (list.device(), 32 | (SGL_LAST_SEGMENT as u64) << 56));
        let mut bytes = [0; 32];
        list.read(0, &mut bytes);
        let all = <[SglDescriptor]>::ref_from_bytes(&bytes[..]).unwrap();
        assert_eq!(
            all.iter().map(|d| (d.address.get(), d.len.get())).collect::<Vec<_>>(),
            [(0x5200, 512), (0x9000, 1024)]
        );
    }
}
