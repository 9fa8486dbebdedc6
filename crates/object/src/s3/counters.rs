//! What a client asked of its store, counted: for benchmarks and metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The kinds of requests, by their names in the S3 API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Kind {
    /// HeadObject.
    Head,
    /// GetObject.
    Get,
    /// PutObject.
    Put,
    /// CopyObject.
    Copy,
    /// RenameObject.
    Rename,
    /// DeleteObject.
    Delete,
    /// ListObjectsV2.
    List,
    /// CreateMultipartUpload.
    Begin,
    /// UploadPart.
    Part,
    /// UploadPartCopy.
    PartCopy,
    /// CompleteMultipartUpload.
    Complete,
    /// AbortMultipartUpload.
    Abort,
    /// ListMultipartUploads.
    Uploads,
    /// ListParts.
    Parts,
}

impl Kind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Kind; 14] = [
        Kind::Head,
        Kind::Get,
        Kind::Put,
        Kind::Copy,
        Kind::Rename,
        Kind::Delete,
        Kind::List,
        Kind::Begin,
        Kind::Part,
        Kind::PartCopy,
        Kind::Complete,
        Kind::Abort,
        Kind::Uploads,
        Kind::Parts,
    ];

    /// Its name in the S3 API.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Head => "HeadObject",
            Kind::Get => "GetObject",
            Kind::Put => "PutObject",
            Kind::Copy => "CopyObject",
            Kind::Rename => "RenameObject",
            Kind::Delete => "DeleteObject",
            Kind::List => "ListObjectsV2",
            Kind::Begin => "CreateMultipartUpload",
            Kind::Part => "UploadPart",
            Kind::PartCopy => "UploadPartCopy",
            Kind::Complete => "CompleteMultipartUpload",
            Kind::Abort => "AbortMultipartUpload",
            Kind::Uploads => "ListMultipartUploads",
            Kind::Parts => "ListParts",
        }
    }
}

/// Sums since the client was opened. All threads add to them.
#[derive(Debug, Default)]
pub struct Counters {
    requests: [AtomicU64; Kind::ALL.len()],
    retries: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Counters {
    /// Requests of this kind that were sent, repetitions counted too.
    pub fn requests(&self, kind: Kind) -> u64 {
        self.requests[kind as usize].load(Relaxed)
    }

    /// Requests of all kinds, repetitions counted too.
    pub fn total(&self) -> u64 {
        self.requests.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// Requests that were sent again.
    pub fn retries(&self) -> u64 {
        self.retries.load(Relaxed)
    }

    /// Bytes of bodies sent.
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Bytes of bodies received.
    pub fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    pub(super) fn asked(&self, kind: Kind, again: bool, bytes: usize) {
        self.requests[kind as usize].fetch_add(1, Relaxed);
        self.retries.fetch_add(again as u64, Relaxed);
        self.sent.fetch_add(bytes as u64, Relaxed);
    }

    pub(super) fn answered(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_counted_apart() {
        assert!(Kind::ALL.iter().enumerate().all(|(at, kind)| *kind as usize == at));
        let counters = Counters::default();
        counters.asked(Kind::Put, false, 10);
        counters.asked(Kind::Put, true, 10);
        counters.asked(Kind::Get, false, 0);
        counters.answered(7);
        assert_eq!((counters.requests(Kind::Put), counters.requests(Kind::Get), counters.total()), (2, 1, 3));
        assert_eq!((counters.retries(), counters.sent(), counters.received()), (1, 20, 7));
    }
}
