//! AWS signature version 4 in the `Authorization` header.
//!
//! A signature covers the method, the path, the query, the headers that are named in it, and the hash of the payload or a word that stands in
//! its place. Source: "Authenticating Requests: Using the Authorization Header (AWS Signature Version 4)" of the Amazon S3 API Reference,
//! whose examples are the tests below.

use ring::{digest, hmac};
use std::fmt::{self, Write};

/// SHA-256 of nothing.
pub const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// Stands where the payload's hash would be: its integrity is left to TLS and the checksum header.
pub const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// Text that no log shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps `text`.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Who signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Names the key; not secret.
    pub id: String,
    /// The key.
    pub secret: Secret,
    /// Comes with keys that are lent for a time.
    pub token: Option<Secret>,
}

/// What is signed.
#[derive(Debug)]
pub struct Signing<'a> {
    /// `GET`, `PUT`, ...
    pub method: &'a str,
    /// The path as it is sent, encoded.
    pub path: &'a str,
    /// The query as it is sent, encoded and sorted (`encode::sorted`).
    pub query: &'a str,
    /// All headers to be signed, with `host`, `x-amz-date` and what else begins with `x-amz-`; names in lower case.
    pub headers: &'a [(&'a str, &'a str)],
    /// Hash of the payload in hexadecimal digits, or [`UNSIGNED`].
    pub payload: &'a str,
    /// When, as in `x-amz-date`: `20130524T000000Z`.
    pub at: &'a str,
    /// Region of the bucket.
    pub region: &'a str,
    /// `s3` or `sts`.
    pub service: &'a str,
}

impl Signing<'_> {
    /// The value of the `Authorization` header.
    pub fn authorization(&self, keys: &Keys) -> String {
        let mut headers: Vec<(&str, &str)> = self.headers.to_vec();
        headers.sort();
        let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let day = &self.at[..8];
        let scope = format!("{day}/{}/{}/aws4_request", self.region, self.service);
        let request = sha256(self.canonical(&headers, &names).as_bytes());
        let text = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{request}", self.at);
        let signature = hex(mac(self.key(keys, day), text.as_bytes()).as_ref());
        format!("AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={names},Signature={signature}", keys.id)
    }

    /// The request as the signature sees it.
    fn canonical(&self, headers: &[(&str, &str)], names: &str) -> String {
        let mut text = format!("{}\n{}\n{}\n", self.method, self.path, self.query);
        for (name, value) in headers {
            text.push_str(name);
            text.push(':');
            // Runs of spaces count as one.
            for (at, word) in value.split(' ').filter(|word| !word.is_empty()).enumerate() {
                if at > 0 {
                    text.push(' ');
                }
                text.push_str(word);
            }
            text.push('\n');
        }
        write!(text, "\n{names}\n{}", self.payload).expect("a string takes it");
        text
    }

    /// The key for one day, region and service.
    fn key(&self, keys: &Keys, day: &str) -> hmac::Tag {
        let first = format!("AWS4{}", keys.secret.reveal());
        let day = mac(first.as_bytes(), day.as_bytes());
        let region = mac(day.as_ref(), self.region.as_bytes());
        let service = mac(region.as_ref(), self.service.as_bytes());
        mac(service.as_ref(), b"aws4_request")
    }
}

fn mac(key: impl AsRef<[u8]>, data: &[u8]) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key.as_ref()), data)
}

/// SHA-256 in hexadecimal digits.
pub fn sha256(data: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, data).as_ref())
}

/// Bytes in hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a string takes it");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::encode;
    use super::*;

    /// The keys, host and time of the examples in the Amazon S3 API Reference.
    fn signature(method: &str, path: &str, query: &str, headers: &[(&str, &str)], payload: &str) -> String {
        let keys = Keys {
            id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: Secret::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
            token: None,
        };
        let mut all = vec![
            ("host", "examplebucket.s3.amazonaws.com"),
            ("x-amz-content-sha256", payload),
            ("x-amz-date", "20130524T000000Z"),
        ];
        all.extend_from_slice(headers);
        let signing = Signing {
            method,
            path,
            query,
            headers: &all,
            payload,
            at: "20130524T000000Z",
            region: "us-east-1",
            service: "s3",
        };
        signing.authorization(&keys)
    }

    #[test]
    fn get_object_with_a_range() {
        assert_eq!(
            signature("GET", "/test.txt", "", &[("range", "bytes=0-9")], EMPTY_SHA256),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,\
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
    }

    #[test]
    fn put_object_with_a_signed_payload() {
        let payload = sha256(b"Welcome to Amazon S3.");
        assert_eq!(payload, "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072");
        let headers =
            [("date", "Fri, 24 May 2013 00:00:00 GMT"), ("x-amz-storage-class", "REDUCED_REDUNDANCY")];
        let text = signature("PUT", "/test%24file.text", "", &headers, &payload);
        assert!(
            text.ends_with("Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
            "{text}"
        );
    }

    #[test]
    fn a_parameter_without_a_value() {
        let text = signature("GET", "/", &encode::sorted(&[("lifecycle", "")]), &[], EMPTY_SHA256);
        assert!(
            text.ends_with("Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
            "{text}"
        );
    }

    #[test]
    fn a_listing() {
        let query = encode::sorted(&[("prefix", "J"), ("max-keys", "2")]);
        let text = signature("GET", "/", &query, &[], EMPTY_SHA256);
        assert!(
            text.ends_with("Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
            "{text}"
        );
    }

    #[test]
    fn runs_of_spaces_are_signed_as_one() {
        let one = signature("GET", "/", "", &[("x-amz-meta-a", "b c")], EMPTY_SHA256);
        assert_eq!(one, signature("GET", "/", "", &[("x-amz-meta-a", "  b   c ")], EMPTY_SHA256));
    }

    #[test]
    fn secrets_are_not_shown() {
        let keys =
            Keys { id: "id".into(), secret: Secret::new("hidden"), token: Some(Secret::new("hidden")) };
        assert!(!format!("{keys:?}").contains("hidden"));
    }
}
