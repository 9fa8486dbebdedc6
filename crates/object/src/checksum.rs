//! Checksums of objects that come and go in pieces: that of a whole follows from those of its pieces.

use crc_fast::{CrcAlgorithm, checksum, checksum_combine};

/// How they are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crc {
    /// CRC-32C (Castagnoli), 4 bytes. Processors have instructions for it.
    Crc32c,
    /// CRC-64/NVME, 8 bytes.
    Crc64Nvme,
}

/// One of them. Those of different kinds are never equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// How it was computed.
    pub crc: Crc,
    /// What came out.
    pub value: u64,
}

impl Crc {
    fn algorithm(self) -> CrcAlgorithm {
        match self {
            Crc::Crc32c => CrcAlgorithm::Crc32Iscsi,
            Crc::Crc64Nvme => CrcAlgorithm::Crc64Nvme,
        }
    }

    /// The checksum of these bytes.
    pub fn of(self, bytes: &[u8]) -> Checksum {
        Checksum { crc: self, value: checksum(self.algorithm(), bytes) }
    }
}

impl Checksum {
    /// The checksum of what has this one, with the `len` bytes behind it that have the other, which is of the same kind.
    pub fn then(self, next: Checksum, len: u64) -> Checksum {
        debug_assert_eq!(self.crc, next.crc);
        Checksum { value: checksum_combine(self.crc.algorithm(), self.value, next.value, len), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check values of the catalogue of CRCs ("123456789").
    #[test]
    fn pieces_make_the_whole() {
        for (crc, value) in [(Crc::Crc32c, 0xe306_9283), (Crc::Crc64Nvme, 0xae8b_1486_0a79_9888)] {
            assert_eq!(crc.of(b"123456789"), Checksum { crc, value });
            let pieces = [&b"12345"[..], b"", b"6789"];
            let whole =
                pieces.iter().fold(crc.of(b""), |sum, piece| sum.then(crc.of(piece), piece.len() as u64));
            assert_eq!(whole, Checksum { crc, value });
        }
    }
}
