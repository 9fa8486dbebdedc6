//! The client of stores that speak the S3 API: [`S3`] is a [`Store`] of one bucket, or of what is behind a prefix of it.
//!
//! Its futures must be polled within a tokio runtime that has its timer and its sockets enabled. From the inside out:
//! - `sign`, `encode`, `checksum`, `clock`, `xml`: what the protocol is made of.
//! - `http`: connections. `credentials`, `config`, `profile`: who asks whom.
//! - `call`: one call, with all its tries; `error`, `retry`: when there is another.
//! - `objects`, `list`, `multipart`: the requests themselves; `probe`: which of them there are.
//!
//! What a call does that had an unknown end: puts and completions without a condition, copies, parts, deletes and aborts are simply repeated, for
//! the second time changes nothing. With a condition, or for a rename, the repetition may be refused because of the first try: then the
//! store is asked whether things are as the call was to make them, and only then is it a success. Where that does not tell either, the error is
//! `Unavailable`, never one that says that nothing was changed. Two clients that make the same
//! object with the same content and metadata at the same time, under [`Condition::Absent`], can both be told that they made it when an answer
//! was lost. A creation of an upload whose answer was lost leaves an upload without parts, which listings of uploads show.
//!
//! Directory buckets of Amazon S3 (names that end in `--x-s3`) want sessions, which this client does not open: it refuses them.

mod call;
mod checksum;
mod clock;
mod config;
mod counters;
mod credentials;
mod encode;
mod error;
mod http;
mod list;
mod multipart;
mod objects;
mod probe;
mod profile;
mod retry;
mod sign;
mod sums;
mod xml;

pub use config::{Config, Payload, Source};
pub use counters::{Counters, Kind};
pub use http::Patience;
pub use probe::PROBE;
pub use profile::Environment;
pub use sign::{Keys, Secret};

use crate::budget::Room;
use crate::checksum::{Checksum, Crc};
use crate::store::{
    Abilities, Condition, Description, ETag, Entry, Object, Page, Part, Result, Round, Store, StoreError,
    Upload, UploadId,
};
use bytes::Bytes;
use call::Caller;
use checksum::Sum;
use list::Writing;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tokio::sync::OnceCell;

/// Longest key, bytes.
const KEY_MOST: usize = 1024;

/// What becomes of checksums in uploads of which parts are copies: some stores cannot copy parts where they keep checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mixed {
    /// The store keeps them with the object, as in other uploads.
    Kept,
    /// It verifies them, and forgets them.
    Verified,
    /// It verifies `Content-MD5` alone.
    Md5,
}

/// A client of one bucket.
#[derive(Debug)]
pub struct S3 {
    caller: Caller,
    abilities: Abilities,
    /// The checksum that goes with bodies.
    sum: Sum,
    /// How uploads go of which parts are copies.
    mixed: Mixed,
    /// Uploads on their way whose parts' checksums the store does not keep.
    unkept: Mutex<HashSet<String>>,
    writing: OnceCell<Writing>,
    sums: sums::Sums,
}

impl S3 {
    /// Asks for the bucket and, if the configuration lets it write, for what the store can do. Errors: `NoSuchBucket`, `Denied`,
    /// `Unavailable`, `Refused` (of the configuration).
    pub async fn open(config: Config) -> Result<S3> {
        if config.bucket.ends_with("--x-s3") {
            return Err(StoreError::Refused(format!(
                "{}: directory buckets are not supported",
                config.bucket
            )));
        }
        let amazon = config.endpoint.is_none();
        let (writable, known) = (config.writable, config.abilities.clone());
        let caller = Caller::new(config)?;
        let mut s3 = S3 {
            caller,
            abilities: probe::NOTHING,
            sum: Sum::Crc(Crc::Crc64Nvme),
            mixed: Mixed::Kept,
            unkept: Mutex::default(),
            writing: OnceCell::new(),
            sums: sums::Sums::default(),
        };
        s3.listing(&s3.caller.config.prefix.clone(), false, None, Some("1")).await?;
        match (writable, known) {
            (_, Some(abilities)) => s3.abilities = abilities,
            (true, None) if amazon => s3.abilities = probe::AMAZON,
            (true, None) => s3.probe().await?,
            (false, None) => {}
        }
        Ok(s3)
    }

    /// What has been asked of the store so far.
    pub fn counters(&self) -> Arc<Counters> {
        self.caller.counters.clone()
    }

    /// A key with the prefix of this client.
    fn whole(&self, key: &str) -> Result<String> {
        let whole = format!("{}{key}", self.caller.config.prefix);
        match key.len() {
            1.. if whole.len() <= KEY_MOST => Ok(whole),
            _ => Err(StoreError::Refused(format!("a key has 1 to {KEY_MOST} bytes, not {}", whole.len()))),
        }
    }

    /// Refuses a condition that the store would drop.
    fn obeys(&self, able: bool, on: &Condition) -> Result<()> {
        if able || *on == Condition::Always {
            Ok(())
        } else {
            Err(StoreError::NotSupported("conditions on this request"))
        }
    }
}

impl Store for S3 {
    fn hurry(&self, until: Instant) {
        self.caller.hurry(until);
    }

    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    async fn head(&self, key: &str) -> Result<Object> {
        self.head_if(key, None).await
    }

    fn checksum(&self, key: &str, state: &ETag) -> Option<Checksum> {
        self.sums.get(key, state)
    }

    async fn get(&self, key: &str, range: Range<u64>, state: Option<&ETag>) -> Result<(Bytes, Object)> {
        self.get_range(key, range, state, None).await
    }

    async fn get_ahead(&self, key: &str, range: Range<u64>, state: &ETag, room: &Room) -> Result<Bytes> {
        Ok(self.get_range(key, range, Some(state), Some(room)).await?.0)
    }

    async fn put(&self, key: &str, body: Bytes, about: &Description, on: &Condition) -> Result<ETag> {
        self.obeys(self.abilities.conditional, on)?;
        self.put_if(key, body, about, on).await
    }

    async fn copy(
        &self,
        from: &str,
        to: &str,
        about: Option<&Description>,
        source: Option<&ETag>,
    ) -> Result<ETag> {
        self.copy_if(from, to, about, source).await
    }

    async fn rename(&self, from: &str, to: &str, source: &ETag, on: &Condition) -> Result<()> {
        if !self.abilities.rename {
            return Err(StoreError::NotSupported("RenameObject"));
        }
        self.rename_if(from, to, source, on).await
    }

    async fn delete(&self, key: &str, on: &Condition) -> Result<()> {
        self.obeys(self.abilities.conditional_delete, on)?;
        self.delete_if(key, on).await
    }

    async fn list(&self, prefix: &str, delimiter: bool, after: Option<&str>) -> Result<Page> {
        self.list_page(prefix, delimiter, after, None).await
    }

    async fn first(&self, prefix: &str) -> Result<Option<Entry>> {
        // A page may be empty and not the last.
        let (mut after, mut round) = (None, Round::default());
        loop {
            let page = self.list_page(prefix, true, after.as_deref(), Some("1")).await?;
            match (page.entries.into_iter().next(), page.next) {
                (None, Some(next)) => after = round.next(Some(next))?,
                (first, _) => return Ok(first),
            }
        }
    }

    async fn begin(&self, key: &str, about: &Description) -> Result<UploadId> {
        self.begin_upload(key, about, true).await
    }

    async fn begin_with_copies(&self, key: &str, about: &Description) -> Result<UploadId> {
        self.begin_upload(key, about, self.mixed == Mixed::Kept).await
    }

    async fn part(&self, key: &str, upload: &UploadId, number: u16, body: Bytes) -> Result<Part> {
        self.upload_part(key, upload, number, body).await
    }

    async fn part_copy(
        &self,
        key: &str,
        upload: &UploadId,
        number: u16,
        from: &str,
        range: Range<u64>,
        source: &ETag,
    ) -> Result<Part> {
        if !self.abilities.part_copy {
            return Err(StoreError::NotSupported("UploadPartCopy"));
        }
        self.copy_part(key, upload, number, from, range, source).await
    }

    async fn complete(&self, key: &str, upload: &UploadId, parts: &[Part], on: &Condition) -> Result<ETag> {
        self.obeys(self.abilities.conditional, on)?;
        self.complete_upload(key, upload, parts, on).await
    }

    async fn completed(
        &self,
        key: &str,
        upload: &UploadId,
        parts: &[Part],
        when: &Range<SystemTime>,
    ) -> Result<Option<ETag>> {
        let when = when.start..when.end + 2 * multipart::CLOCKS;
        self.is_completed(key, parts, self.sum_of(upload, parts), when).await
    }

    async fn abort(&self, key: &str, upload: &UploadId) -> Result<()> {
        self.abort_upload(key, upload).await
    }

    async fn uploads(&self, prefix: &str) -> Result<Vec<Upload>> {
        self.all_uploads(prefix).await
    }

    async fn parts(&self, key: &str, upload: &UploadId) -> Result<Vec<Part>> {
        self.all_parts(key, upload).await
    }
}
