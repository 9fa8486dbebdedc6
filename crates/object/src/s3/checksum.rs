//! Checksums of bodies, as the S3 API carries them: base64 in headers.
//!
//! Source: "Checking object integrity for data uploads in Amazon S3". CRC64NVME always covers a whole object, also one of many parts; the
//! others may be sums of the parts' sums (composite), which says nothing that a reader of the whole could verify.

use base64::{Engine, prelude::BASE64_STANDARD};
use crc_fast::{CrcAlgorithm, checksum, checksum_combine};
use http::HeaderMap;
use md5::{Digest, Md5};

/// Header of the CRC64NVME of a body, or of an object.
pub const CRC64NVME: &str = "x-amz-checksum-crc64nvme";

/// What goes with a body, so that the store can verify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// CRC64NVME: the store keeps it with the object.
    Crc64Nvme,
    /// `Content-MD5`, for stores that do not know the other; verified and forgotten.
    Md5,
}

impl Sum {
    /// The header, and its value for this body.
    pub fn header(self, body: &[u8]) -> (&'static str, String) {
        match self {
            Sum::Crc64Nvme => (CRC64NVME, crc64nvme(body)),
            Sum::Md5 => ("content-md5", BASE64_STANDARD.encode(Md5::digest(body))),
        }
    }
}

/// CRC64NVME in base64.
pub fn crc64nvme(body: &[u8]) -> String {
    BASE64_STANDARD.encode(checksum(CrcAlgorithm::Crc64Nvme, body).to_be_bytes())
}

/// The CRC64NVME of what parts make in their order, of their own sums and sizes. `None` where one of them is not known.
pub fn combined<'a>(parts: impl Iterator<Item = (Option<&'a str>, u64)>) -> Option<String> {
    let mut whole = checksum(CrcAlgorithm::Crc64Nvme, b"");
    for (sum, size) in parts {
        let bytes = BASE64_STANDARD.decode(sum?).ok()?;
        let sum = u64::from_be_bytes(bytes.try_into().ok()?);
        whole = checksum_combine(CrcAlgorithm::Crc64Nvme, whole, sum, size);
    }
    Some(BASE64_STANDARD.encode(whole.to_be_bytes()))
}

/// Whether a body that is a whole object fits what the answer's headers say of it. The text tells what does not fit.
pub fn verify(headers: &HeaderMap, body: &[u8]) -> Result<(), String> {
    let known = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if known("x-amz-checksum-type") == Some("COMPOSITE") {
        return Ok(());
    }
    let found = if let Some(said) = known(CRC64NVME) {
        (said, crc64nvme(body))
    } else if let Some(said) = known("x-amz-checksum-crc32c") {
        (said, crc32(CrcAlgorithm::Crc32Iscsi, body))
    } else if let Some(said) = known("x-amz-checksum-crc32") {
        (said, crc32(CrcAlgorithm::Crc32IsoHdlc, body))
    } else {
        return Ok(());
    };
    // With the number of parts behind a dash, it is a composite sum.
    if found.0 == found.1 || found.0.contains('-') {
        return Ok(());
    }
    Err(format!("checksum {} instead of {}", found.1, found.0))
}

fn crc32(algorithm: CrcAlgorithm, body: &[u8]) -> String {
    BASE64_STANDARD.encode((checksum(algorithm, body) as u32).to_be_bytes())
}

/// The ETag, with its quotes, of an object of these parts, in stores whose ETags of parts are MD5 sums. `None`: they are not.
pub fn etag_of_parts<'a>(parts: impl ExactSizeIterator<Item = &'a str>) -> Option<String> {
    let count = parts.len();
    let mut all = Md5::new();
    for etag in parts {
        let digits = etag.trim_matches('"').as_bytes();
        if digits.len() != 32 {
            return None;
        }
        for pair in digits.chunks(2) {
            all.update([u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?]);
        }
    }
    Some(format!("\"{}-{count}\"", super::sign::hex(&all.finalize())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check values of the catalogue of CRCs ("123456789"), and of RFC 1321.
    #[test]
    fn sums_have_their_published_values() {
        let crc64 = BASE64_STANDARD.encode(0xae8b_1486_0a79_9888_u64.to_be_bytes());
        assert_eq!(Sum::Crc64Nvme.header(b"123456789"), (CRC64NVME, crc64));
        assert_eq!(
            crc32(CrcAlgorithm::Crc32Iscsi, b"123456789"),
            BASE64_STANDARD.encode(0xe306_9283_u32.to_be_bytes())
        );
        assert_eq!(
            crc32(CrcAlgorithm::Crc32IsoHdlc, b"123456789"),
            BASE64_STANDARD.encode(0xcbf4_3926_u32.to_be_bytes())
        );
        assert_eq!(Sum::Md5.header(b"").1, "1B2M2Y8AsgTpgAmY7PhCfg==");
    }

    #[test]
    fn sums_of_parts_make_the_sum_of_the_whole() {
        let (one, two) = (crc64nvme(b"12345"), crc64nvme(b"6789"));
        let parts = [(Some(one.as_str()), 5), (Some(two.as_str()), 4)];
        assert_eq!(combined(parts.into_iter()), Some(crc64nvme(b"123456789")));
        assert_eq!(combined([(None, 5)].into_iter()), None);
    }

    #[test]
    fn damage_is_noticed_and_composite_sums_are_not_compared() {
        let with = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            headers
        };
        let right = crc64nvme(b"body");
        assert!(verify(&with(CRC64NVME, &right), b"body").is_ok());
        assert!(verify(&with(CRC64NVME, &right), b"bodi").is_err());
        assert!(verify(&with("x-amz-checksum-crc32c", "AAAAAA=="), b"body").is_err());
        assert!(verify(&with("x-amz-checksum-crc32c", "AAAAAA==-2"), b"body").is_ok());
        assert!(verify(&HeaderMap::new(), b"body").is_ok());
    }

    #[test]
    fn the_etag_of_parts_is_the_sum_of_their_sums() {
        // md5 of the 16 bytes of md5("").
        let part = "\"d41d8cd98f00b204e9800998ecf8427e\"";
        assert_eq!(
            etag_of_parts([part].into_iter()).as_deref(),
            Some("\"59adb24ef3cdbe0297f05b395827453f-1\"")
        );
        assert_eq!(etag_of_parts(["\"0x8D\""].into_iter()), None);
        assert_eq!(etag_of_parts(["\"ü41d8cd98f00b204e9800998ecf8427\""].into_iter()), None);
    }
}
