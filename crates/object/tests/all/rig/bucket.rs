//! What a store has, and what its calls do to it; without failures and without anybody who waits.

use bytes::Bytes;
use object::store::*;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What is durable.
#[derive(Default)]
pub struct Bucket {
    pub objects: BTreeMap<String, (Bytes, Object)>,
    pub(super) uploads: BTreeMap<String, Pending>,
    pub(super) last: u64,
    /// What completed uploads have made.
    pub(super) made: BTreeMap<String, ETag>,
    /// Calls by name, of all mounts.
    pub calls: BTreeMap<&'static str, u64>,
    /// Bytes that were received and sent.
    pub moved: (u64, u64),
    /// ETags are numbers from now on, not sums of the content.
    pub numbered: bool,
}

pub(super) struct Pending {
    pub key: String,
    pub about: Description,
    pub parts: BTreeMap<u16, (Bytes, ETag)>,
}

pub(super) fn etag(bytes: &[u8], parts: usize) -> ETag {
    let mut hash = DefaultHasher::new();
    bytes.hash(&mut hash);
    ETag(format!("\"{:016x}-{parts}\"", hash.finish()).into())
}

impl Bucket {
    pub(super) fn now(&mut self) -> SystemTime {
        self.last += 1;
        UNIX_EPOCH + Duration::from_secs(1_600_000_000 + self.last)
    }

    pub(super) fn put(&mut self, key: &str, body: Bytes, about: &Description, parts: usize) -> ETag {
        let modified = self.now();
        let object = Object {
            size: body.len() as u64,
            etag: match self.numbered {
                true => ETag(format!("\"{}\"", self.last).into()),
                false => etag(&body, parts),
            },
            modified,
            content_type: about.content_type.clone(),
            metadata: about.metadata.clone(),
            headers: about.headers.clone(),
        };
        let etag = object.etag.clone();
        self.objects.insert(key.into(), (body, object));
        etag
    }

    pub(super) fn object(&self, key: &str, state: Option<&ETag>) -> Result<&(Bytes, Object)> {
        let found = self.objects.get(key).ok_or(StoreError::NotFound)?;
        match state {
            Some(etag) if *etag != found.1.etag => Err(StoreError::Precondition),
            _ => Ok(found),
        }
    }

    pub(super) fn holds(&self, key: &str, on: &Condition) -> Result<()> {
        let found = self.objects.get(key).map(|(_, o)| &o.etag);
        let holds = match on {
            Condition::Always => true,
            Condition::Absent => found.is_none(),
            Condition::Is(etag) => found == Some(etag),
        };
        if holds { Ok(()) } else { Err(StoreError::Precondition) }
    }

    /// Bytes of an object.
    pub fn body(&self, key: &str) -> Option<&[u8]> {
        self.objects.get(key).map(|(body, _)| &body[..])
    }

    /// Makes an object as another tool does, with what it says of itself.
    pub fn put_about(&mut self, key: &str, body: &[u8], about: &Description) {
        self.put(key, Bytes::copy_from_slice(body), about, 0);
    }

    /// All keys.
    pub fn keys(&self) -> Vec<&str> {
        self.objects.keys().map(String::as_str).collect()
    }

    /// Makes an object as another tool does.
    pub fn put_plain(&mut self, key: &str, body: &[u8]) {
        self.put(key, Bytes::copy_from_slice(body), &Description::default(), 0);
    }

    /// Unfinished uploads.
    pub fn unfinished(&self) -> usize {
        self.uploads.len()
    }

    /// Calls of this name.
    pub fn count(&self, name: &str) -> u64 {
        self.calls.get(name).copied().unwrap_or(0)
    }
}
