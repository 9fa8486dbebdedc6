//! Requests and answers, and how things are written in them.

use super::features::Crc;
use percent_encoding::percent_decode_str;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// A request, decoded.
#[derive(Debug)]
pub(super) struct Request {
    pub method: String,
    /// It is for the bucket that there is.
    pub bucket: bool,
    pub key: String,
    pub query: BTreeMap<String, String>,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// The key that a header names as a source.
    pub fn source(&self, name: &str) -> Option<String> {
        let decoded = percent_decode_str(self.header(name)?).decode_utf8().ok()?;
        Some(decoded.trim_start_matches('/').split_once('/')?.1.to_owned())
    }
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Length that is told of a body that is not sent.
    pub head: Option<usize>,
}

impl Answer {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Answer {
        Answer { status, headers: Vec::new(), body: body.into(), head: None }
    }

    pub fn error(status: u16, code: &str) -> Answer {
        Answer::new(
            status,
            format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>told</Message></Error>"),
        )
    }

    pub fn with(mut self, name: &str, value: impl Into<String>) -> Answer {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// It carries the checksum of its body.
    pub fn is_summed(&self) -> bool {
        let is_sum = |name: &str| Crc::ALL.iter().any(|crc| crc.header == name);
        self.head.is_none() && self.headers.iter().any(|(name, _)| is_sum(name))
    }

    pub fn length(&self) -> usize {
        self.head.unwrap_or(self.body.len())
    }
}

/// The headers that are kept with an object, and come back.
pub(super) fn kept(request: &Request) -> BTreeMap<String, String> {
    const KEPT: [&str; 7] = [
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-type",
        "expires",
        "x-amz-storage-class",
    ];
    let ours = |name: &str| KEPT.contains(&name) || name.starts_with("x-amz-meta-");
    request
        .headers
        .iter()
        .filter(|(name, _)| ours(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// First and last byte of a range.
pub(super) fn range(text: &str) -> Option<(usize, usize)> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().unwrap_or(usize::MAX)))
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn http_time(time: SystemTime) -> String {
    stamp(time).strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

pub(super) fn iso_time(time: SystemTime) -> String {
    stamp(time).strftime("%Y-%m-%dT%H:%M:%S.000Z").to_string()
}

fn stamp(time: SystemTime) -> jiff::Timestamp {
    jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}
