//! The one checksum of the format: CRC-32C (Castagnoli), as in iSCSI, ext4 and NVMe.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC-32C of several pieces as if they stood in a row.
pub fn crc32c_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.into_iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}

/// CRC-32C of a block whose own checksum field (4 bytes at `field`) counts as zero.
pub fn crc32c_without_field(bytes: &[u8], field: usize) -> u32 {
    crc32c_parts([&bytes[..field], &[0; 4][..], &bytes[field + 4..]])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit by bit, as the definition says.
    fn by_bits(bytes: &[u8]) -> u32 {
        let shift = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
        !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ byte as u32, shift))
    }

    #[test]
    fn check_value_of_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c_parts([&b"1234"[..], &b"56789"[..]]), 0xE306_9283);
        assert_eq!(crc32c_without_field(b"12345678", 2), crc32c(b"12\x00\x00\x00\x0078"));
    }

    /// What the processor is given depends on length and place, so all of them are tried.
    #[test]
    fn all_lengths_and_places() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for len in (0..700).chain([1023, 1024, 4092, 4095, 4096, 4097]) {
            for at in [0, 1, 7, 8, 63, 64] {
                let bytes = &bytes[at..at + len];
                assert_eq!(crc32c(bytes), by_bits(bytes), "{len} at {at}");
                let (a, b) = bytes.split_at(len * 3 / 7);
                assert_eq!(crc32c_parts([a, b]), by_bits(bytes), "{len} at {at}");
            }
        }
    }
}
