//! Checksums of bodies, as the S3 API carries them: base64 in headers and XML.
//!
//! Source: "Checking object integrity for data uploads in Amazon S3". A checksum covers the whole object, also one of many parts (`FULL_OBJECT`), or it is
//! the sum of the parts' sums (`COMPOSITE`), which says nothing that a reader of the whole could verify. CRC64NVME is always of the first sort, CRC32C
//! where it is asked for.

use crate::checksum::{Checksum, Crc};
use base64::{Engine, prelude::BASE64_STANDARD};
use crc_fast::{CrcAlgorithm, checksum};
use http::HeaderMap;
use md5::{Digest, Md5};

/// Header that tells what a checksum covers.
pub const TYPE: &str = "x-amz-checksum-type";
/// Value of [`TYPE`].
pub const WHOLE: &str = "FULL_OBJECT";

impl Crc {
    /// All of them, those first that cost stores least.
    pub const ALL: [Crc; 2] = [Crc::Crc32c, Crc::Crc64Nvme];

    /// The name in requests.
    pub fn name(self) -> &'static str {
        match self {
            Crc::Crc32c => "CRC32C",
            Crc::Crc64Nvme => "CRC64NVME",
        }
    }

    /// The header of a body's, or of an object's.
    pub fn header(self) -> &'static str {
        match self {
            Crc::Crc32c => "x-amz-checksum-crc32c",
            Crc::Crc64Nvme => "x-amz-checksum-crc64nvme",
        }
    }

    /// Reads what stands in a header or in XML. `None`: it is none of a whole.
    pub fn read(self, text: &str) -> Option<Checksum> {
        let bytes = BASE64_STANDARD.decode(text).ok()?;
        let value = match self {
            Crc::Crc32c => u32::from_be_bytes(bytes.try_into().ok()?).into(),
            Crc::Crc64Nvme => u64::from_be_bytes(bytes.try_into().ok()?),
        };
        Some(Checksum { crc: self, value })
    }
}

impl Checksum {
    /// As it stands in headers and in XML.
    pub fn text(self) -> String {
        match self.crc {
            Crc::Crc32c => BASE64_STANDARD.encode((self.value as u32).to_be_bytes()),
            Crc::Crc64Nvme => BASE64_STANDARD.encode(self.value.to_be_bytes()),
        }
    }
}

/// What headers tell of a whole object.
pub fn told(headers: &HeaderMap) -> Option<Checksum> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if text(TYPE) == Some("COMPOSITE") {
        return None;
    }
    Crc::ALL.iter().find_map(|crc| text(crc.header()).and_then(|said| crc.read(said)))
}

/// What goes with a body, so that the store can verify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// The store keeps it with the object.
    Crc(Crc),
    /// `Content-MD5`, for stores that do not know the others; verified and forgotten.
    Md5,
}

impl Sum {
    /// The header, and its value for this body.
    pub fn header(self, body: &[u8]) -> (&'static str, String) {
        match self {
            Sum::Crc(crc) => (crc.header(), crc.of(body).text()),
            Sum::Md5 => ("content-md5", BASE64_STANDARD.encode(Md5::digest(body))),
        }
    }
}

/// The checksum of what parts make in their order, of their own and their sizes. `None` where one of them is not known.
pub fn combined(crc: Crc, mut parts: impl Iterator<Item = (Option<Checksum>, u64)>) -> Option<Checksum> {
    parts.try_fold(crc.of(b""), |whole, (sum, size)| {
        sum.filter(|sum| sum.crc == crc).map(|sum| whole.then(sum, size))
    })
}

/// Whether a body that is a whole object fits what the answer's headers say of it. The text tells what does not fit.
pub fn verify(headers: &HeaderMap, body: &[u8]) -> Result<(), String> {
    let known = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if known(TYPE) == Some("COMPOSITE") {
        return Ok(());
    }
    // Others write objects with a sort that is not computed of pieces here.
    let iso = || known("x-amz-checksum-crc32").map(|said| (said, crc32(body)));
    let ours = Crc::ALL.iter().find_map(|crc| known(crc.header()).map(|said| (said, crc.of(body).text())));
    match ours.or_else(iso) {
        // With the number of parts behind a dash, it is a composite sum.
        Some((said, found)) if said != found && !said.contains('-') => {
            Err(format!("checksum {found} instead of {said}"))
        }
        _ => Ok(()),
    }
}

fn crc32(body: &[u8]) -> String {
    BASE64_STANDARD.encode((checksum(CrcAlgorithm::Crc32IsoHdlc, body) as u32).to_be_bytes())
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
        assert_eq!(Sum::Crc(Crc::Crc64Nvme).header(b"123456789"), ("x-amz-checksum-crc64nvme", crc64));
        let crc32c = BASE64_STANDARD.encode(0xe306_9283_u32.to_be_bytes());
        assert_eq!(Sum::Crc(Crc::Crc32c).header(b"123456789"), ("x-amz-checksum-crc32c", crc32c));
        assert_eq!(crc32(b"123456789"), BASE64_STANDARD.encode(0xcbf4_3926_u32.to_be_bytes()));
        assert_eq!(Sum::Md5.header(b"").1, "1B2M2Y8AsgTpgAmY7PhCfg==");
    }

    #[test]
    fn sums_of_parts_make_the_sum_of_the_whole() {
        for crc in Crc::ALL {
            let parts = || [(Some(crc.of(b"12345")), 5), (Some(crc.of(b"6789")), 4)].into_iter();
            let whole = combined(crc, parts()).unwrap();
            assert_eq!(whole, crc.of(b"123456789"));
            assert_eq!(crc.read(&whole.text()), Some(whole));
            assert_eq!(combined(crc, [(None, 5)].into_iter()), None);
            let other = Crc::ALL.into_iter().find(|other| *other != crc).unwrap();
            assert_eq!(combined(other, parts()), None);
            assert_eq!(other.read(&whole.text()), None);
        }
    }

    #[test]
    fn damage_is_noticed_and_composite_sums_are_not_compared() {
        let with = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            headers
        };
        let right = Crc::Crc64Nvme.of(b"body").text();
        let crc64 = with(Crc::Crc64Nvme.header(), &right);
        assert!(verify(&crc64, b"body").is_ok() && verify(&crc64, b"bodi").is_err());
        assert_eq!(told(&crc64), Some(Crc::Crc64Nvme.of(b"body")));
        assert_eq!(told(&with("x-amz-checksum-crc32c", "AAAAAA==-2")), None);
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
