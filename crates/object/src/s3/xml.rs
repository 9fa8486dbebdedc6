//! The bodies of the S3 API in XML: what is read of each, and the one that is written.

use crate::checksum::{Checksum, Crc};
use crate::store::Part;
use quick_xml::escape::escape;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Reads a body. The text says what is wrong with it.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
    quick_xml::de::from_str(text).map_err(|error| format!("answer cannot be understood: {error}"))
}

/// Whether the root of a body is an error: some requests answer 200 first and fail later.
pub fn is_error(body: &[u8]) -> bool {
    let text = body.trim_ascii_start();
    let text = match text.strip_prefix(b"<?") {
        Some(rest) => match rest.windows(2).position(|pair| pair == b"?>") {
            Some(end) => rest[end + 2..].trim_ascii_start(),
            None => return false,
        },
        None => text,
    };
    text.strip_prefix(b"<Error").is_some_and(|rest| matches!(rest.first(), Some(b'>' | b' ')))
}

/// What the store says of a request that it did not do.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Complaint {
    /// Error code.
    pub code: String,
    /// For people.
    pub message: String,
    /// The bucket's region, where the request went to another.
    pub region: Option<String>,
}

/// ListObjectsV2.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Listing {
    #[serde(default)]
    pub prefix: String,
    #[serde(default)]
    pub is_truncated: bool,
    pub next_continuation_token: Option<String>,
    pub encoding_type: Option<String>,
    #[serde(default)]
    pub contents: Vec<Listed>,
    #[serde(default)]
    pub common_prefixes: Vec<CommonPrefix>,
}

/// An object of a listing.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Listed {
    pub key: String,
    pub size: u64,
    #[serde(rename = "ETag", default)]
    pub etag: String,
    pub last_modified: String,
    pub storage_class: Option<String>,
}

/// A prefix of a listing.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct CommonPrefix {
    pub prefix: String,
}

/// CreateMultipartUpload.
#[derive(Debug, Deserialize)]
pub struct Begun {
    #[serde(rename = "UploadId")]
    pub upload_id: String,
}

/// CopyObject, UploadPartCopy, CompleteMultipartUpload: what was made.
#[derive(Debug, Deserialize)]
pub struct Made {
    #[serde(rename = "ETag")]
    pub etag: String,
    #[serde(rename = "ChecksumCRC32C")]
    crc32c: Option<String>,
    #[serde(rename = "ChecksumCRC64NVME")]
    crc64nvme: Option<String>,
}

impl Made {
    /// The checksum of a part.
    pub fn checksum(&self, crc: Crc) -> Option<Checksum> {
        read_sum(crc, &self.crc32c, &self.crc64nvme)
    }
}

fn read_sum(crc: Crc, crc32c: &Option<String>, crc64nvme: &Option<String>) -> Option<Checksum> {
    let text = match crc {
        Crc::Crc32c => crc32c,
        Crc::Crc64Nvme => crc64nvme,
    };
    crc.read(text.as_ref()?)
}

/// ListMultipartUploads.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Uploads {
    #[serde(default)]
    pub is_truncated: bool,
    pub encoding_type: Option<String>,
    #[serde(rename = "Upload", default)]
    pub uploads: Vec<Unfinished>,
}

/// An upload of [`Uploads`].
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Unfinished {
    pub key: String,
    pub upload_id: String,
    #[serde(default)]
    pub initiated: String,
}

/// ListParts.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Parts {
    #[serde(default)]
    pub is_truncated: bool,
    #[serde(rename = "Part", default)]
    pub parts: Vec<Uploaded>,
}

/// A part of [`Parts`].
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Uploaded {
    pub part_number: u16,
    pub size: u64,
    #[serde(default)]
    pub last_modified: String,
    #[serde(rename = "ETag")]
    pub etag: String,
    #[serde(rename = "ChecksumCRC32C")]
    crc32c: Option<String>,
    #[serde(rename = "ChecksumCRC64NVME")]
    crc64nvme: Option<String>,
}

impl Uploaded {
    /// The checksum of a part.
    pub fn checksum(&self, crc: Crc) -> Option<Checksum> {
        read_sum(crc, &self.crc32c, &self.crc64nvme)
    }
}

/// AssumeRole and AssumeRoleWithWebIdentity.
#[derive(Debug, Deserialize)]
pub struct Assumed {
    #[serde(rename = "AssumeRoleResult", alias = "AssumeRoleWithWebIdentityResult")]
    pub result: AssumedResult,
}

/// See [`Assumed`].
#[derive(Debug, Deserialize)]
pub struct AssumedResult {
    #[serde(rename = "Credentials")]
    pub credentials: AssumedKeys,
}

/// See [`Assumed`].
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct AssumedKeys {
    pub access_key_id: String,
    pub secret_access_key: String,
    pub session_token: String,
    pub expiration: String,
}

// The keys are not shown.
impl std::fmt::Debug for AssumedKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AssumedKeys({}, until {})", self.access_key_id, self.expiration)
    }
}

/// The body of CompleteMultipartUpload. With `sums`, the parts' checksums are named where they are known.
pub fn completion(parts: &[Part], sums: bool) -> String {
    let mut text = String::with_capacity(64 + parts.len() * 160);
    text.push_str("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for part in parts {
        text.push_str(&format!("<Part><PartNumber>{}</PartNumber>", part.number));
        text.push_str(&format!("<ETag>{}</ETag>", escape(&*part.etag.0)));
        if let (true, Some(sum)) = (sums, part.checksum) {
            let name = sum.crc.name();
            text.push_str(&format!("<Checksum{name}>{}</Checksum{name}>", escape(&*sum.text())));
        }
        text.push_str("</Part>");
    }
    text.push_str("</CompleteMultipartUpload>");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ETag;

    #[test]
    fn a_listing_is_read() {
        let listing: Listing = read(
            br#"<?xml version="1.0" encoding="UTF-8"?>
            <ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix>a%2B</Prefix><KeyCount>3</KeyCount>
            <MaxKeys>1000</MaxKeys><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>
            <NextContinuationToken>t&amp;1</NextContinuationToken>
            <Contents><Key>a%2B1</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><ETag>&quot;e&quot;</ETag><Size>5</Size>
            <StorageClass>STANDARD</StorageClass></Contents><CommonPrefixes><Prefix>a%2Bd/</Prefix></CommonPrefixes>
            <Contents><Key>a%2B2</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><ETag>"f"</ETag><Size>0</Size></Contents>
            </ListBucketResult>"#,
        )
        .unwrap();
        assert!(listing.is_truncated);
        assert_eq!(listing.next_continuation_token.as_deref(), Some("t&1"));
        assert_eq!(listing.contents.iter().map(|object| object.size).collect::<Vec<_>>(), [5, 0]);
        assert_eq!(listing.contents[0].etag, "\"e\"");
        assert_eq!(listing.common_prefixes[0].prefix, "a%2Bd/");
    }

    #[test]
    fn an_empty_listing_is_read() {
        let listing: Listing = read(b"<ListBucketResult><Prefix></Prefix></ListBucketResult>").unwrap();
        assert!(listing.contents.is_empty() && !listing.is_truncated);
    }

    #[test]
    fn errors_are_told_from_results() {
        assert!(is_error(b"  \n<?xml version=\"1.0\"?>\n<Error><Code>InternalError</Code></Error>"));
        assert!(is_error(b"<Error><Code>InternalError</Code></Error>"));
        assert!(!is_error(b"<?xml version=\"1.0\"?><CopyObjectResult/>"));
        assert!(!is_error(b"<ErrorList/>"));
        let complaint: Complaint =
            read(b"<Error><Code>SlowDown</Code><RequestId>1</RequestId></Error>").unwrap();
        assert_eq!(complaint.code, "SlowDown");
        assert!(read::<Made>(b"<CopyObjectResult><ETag>").is_err());
    }

    #[test]
    fn a_completion_names_parts_and_sums() {
        let part = Part {
            number: 3,
            size: 1,
            etag: ETag("\"a\"".into()),
            checksum: Some(Crc::Crc32c.of(b"")),
            arrived: None,
        };
        let text = completion(std::slice::from_ref(&part), true);
        assert!(text.contains(
            "<Part><PartNumber>3</PartNumber><ETag>&quot;a&quot;</ETag><ChecksumCRC32C>AAAAAA==</ChecksumCRC32C></Part>"
        ));
        assert!(!completion(&[part], false).contains("Checksum"));
    }

    #[test]
    fn lent_keys_are_read_and_not_shown() {
        let assumed: Assumed = read(
            b"<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>id</AccessKeyId>\
              <SecretAccessKey>hidden</SecretAccessKey><SessionToken>hidden</SessionToken><Expiration>2026-01-01T00:00:00Z</Expiration>\
              </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
        )
        .unwrap();
        assert_eq!(assumed.result.credentials.access_key_id, "id");
        assert!(!format!("{assumed:?}").contains("hidden"));
    }
}
