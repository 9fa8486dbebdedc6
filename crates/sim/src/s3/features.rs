//! What the server can do.

use base64::{Engine, prelude::BASE64_STANDARD};
use crc_fast::{CrcAlgorithm, checksum};

/// What this server can do: servers differ.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Conditions on puts and completions are obeyed; else they are dropped in silence.
    pub conditional: bool,
    /// Conditions on deletes are obeyed; else they are dropped in silence.
    pub conditional_delete: bool,
    /// UploadPartCopy is there.
    pub part_copy: bool,
    /// RenameObject is there; else it is taken for a PutObject without a body.
    pub rename: bool,
    /// Checksums that are verified and kept; others are dropped in silence.
    pub checksums: &'static [Crc],
    /// CRC32C of an object of parts is that of the parts' sums, and nothing else is taken for it.
    pub composite: bool,
    /// Smallest part but the last, bytes.
    pub part_min: usize,
    /// ETags are MD5 sums; else they are numbers.
    pub md5_etags: bool,
    /// Listings write a space as '+'.
    pub plus: bool,
    /// Listings write the prefix as they write keys; else as it was asked for.
    pub echo: bool,
}

impl Features {
    /// Everything there is, with parts of at least 16 KiB.
    pub const ALL: Features = Features {
        conditional: true,
        conditional_delete: true,
        part_copy: true,
        rename: true,
        checksums: &[Crc::CRC64NVME, Crc::CRC32C],
        composite: false,
        part_min: 16 << 10,
        md5_etags: true,
        plus: true,
        echo: true,
    };
    /// What the oldest servers have.
    pub const FEW: Features = Features {
        conditional: false,
        conditional_delete: false,
        part_copy: false,
        rename: false,
        checksums: &[],
        composite: false,
        part_min: 16 << 10,
        md5_etags: false,
        plus: false,
        echo: true,
    };
}

/// A sort of checksum.
#[derive(Debug)]
pub struct Crc {
    /// As requests name it.
    pub name: &'static str,
    pub(super) header: &'static str,
    algorithm: CrcAlgorithm,
    /// Bytes of its value.
    size: usize,
}

impl Crc {
    /// CRC-64/NVME.
    pub const CRC64NVME: Crc = Crc {
        name: "CRC64NVME",
        header: "x-amz-checksum-crc64nvme",
        algorithm: CrcAlgorithm::Crc64Nvme,
        size: 8,
    };
    /// CRC-32C.
    pub const CRC32C: Crc =
        Crc { name: "CRC32C", header: "x-amz-checksum-crc32c", algorithm: CrcAlgorithm::Crc32Iscsi, size: 4 };
    pub(super) const ALL: [Crc; 2] = [Crc::CRC64NVME, Crc::CRC32C];

    /// In base64.
    pub(super) fn of(&self, body: &[u8]) -> String {
        BASE64_STANDARD.encode(&checksum(self.algorithm, body).to_be_bytes()[8 - self.size..])
    }
}
