//! The one checksum of the format: CRC-32C (Castagnoli), as in iSCSI, ext4 and NVMe.

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    ::crc32c::crc32c(bytes)
}

/// CRC-32C of several pieces as if they stood in a row.
pub fn crc32c_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    parts.into_iter().fold(0, ::crc32c::crc32c_append)
}

/// CRC-32C of a block whose own checksum field (4 bytes at `field`) counts as zero.
pub fn crc32c_without_field(bytes: &[u8], field: usize) -> u32 {
    crc32c_parts([&bytes[..field], &[0; 4][..], &bytes[field + 4..]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value_of_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c_parts([&b"1234"[..], &b"56789"[..]]), 0xE306_9283);
        assert_eq!(crc32c_without_field(b"12345678", 2), crc32c(b"12\x00\x00\x00\x0078"));
    }
}
