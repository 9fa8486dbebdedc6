//! What the engine asks of an object store: the seam between `object`'s file system and whoever speaks to a server.
//!
//! The words are those of the S3 API (Amazon S3 API Reference), which is what the stores have in common. Common to all methods:
//! - The futures may be dropped at any point; then nobody knows whether the call took effect.
//! - The implementation retries what may be retried (no answer, 500, 503, slow down), with backoff and a deadline over all tries. An error is
//!   final for the caller. A repeated call has no second effect: where a first try may have been done, the implementation finds out.
//! - What is sent carries a checksum that the store verifies where it can; what is received is verified where its checksum is known.
//! - Keys are UTF-8, 1 to 1024 bytes. They are sent as they are; percent-encoding is the implementation's matter.

use crate::budget::Room;
use crate::checksum::Checksum;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::time::{Instant, SystemTime};

/// Result of a call of a store.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Why a call failed, after all tries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No object of that key (or no upload of that id).
    #[error("no such object")]
    NotFound,
    /// The bucket does not exist.
    #[error("bucket {0} does not exist")]
    NoSuchBucket(String),
    /// The object is not in the state that the condition asks for; nothing was changed.
    #[error("object was changed by somebody else")]
    Precondition,
    /// The store knows who asks, and forbids it; or does not know who asks. The text names the cause (wrong key, wrong region, clock skew).
    #[error("{0}")]
    Denied(String),
    /// The store cannot do this at all.
    #[error("the store cannot do this: {0}")]
    NotSupported(&'static str),
    /// The store has no more room, or lets this bucket have no more.
    #[error("the store is full: {0}")]
    Full(String),
    /// A store that keeps keys as files has something else where the key would lead.
    #[error("{1}")]
    InTheWay(Obstacle, String),
    /// The request is outside the store's limits.
    #[error("refused by the store: {0}")]
    Refused(String),
    /// What came does not fit its checksum, repeatedly.
    #[error("received data is damaged: {0}")]
    Damaged(String),
    /// No answer, or none that can be used, until the deadline.
    #[error("store cannot be reached: {0}")]
    Unavailable(String),
}

/// What stands where a key would lead, in stores where keys are paths of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// An object is at what would be a directory on the way.
    ParentIsFile,
    /// A directory is at the key itself.
    IsDirectory,
    /// Other keys are below it.
    NotEmpty,
}

/// What names one state of an object: its ETag, with the quotes, as the store gave it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ETag(pub Box<str>);

/// User metadata of an object: names without `x-amz-meta-`, in lower case; values of visible ASCII (whoever has other text encodes it).
pub type Metadata = BTreeMap<String, String>;

/// What is known of an object.
#[derive(Clone, Debug)]
pub struct Object {
    /// Its size in bytes.
    pub size: u64,
    /// Names its present content.
    pub etag: ETag,
    /// When the store completed it (Amazon: when an upload of it began).
    pub modified: SystemTime,
    /// Media type, where the store said one.
    pub content_type: Option<String>,
    /// User metadata: all of it from `head` and `get`, none from `list`.
    pub metadata: Metadata,
    /// What else an object has that is to be sent again with it ([`KEPT_HEADERS`]): as for metadata, but `list` may tell of the storage class.
    pub headers: Metadata,
}

/// On which state of the key a change depends. Where the store has no such condition ([`Abilities::conditional`]), an implementation answers
/// [`StoreError::NotSupported`] and never drops it in silence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// On none.
    #[default]
    Always,
    /// There is no object of this key (`If-None-Match: *`).
    Absent,
    /// The object is in this state (`If-Match`).
    Is(ETag),
}

/// Metadata and media type of an object that is to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// Media type; the store's default where `None`.
    pub content_type: Option<String>,
    /// User metadata.
    pub metadata: Metadata,
    /// Other headers, of [`KEPT_HEADERS`].
    pub headers: Metadata,
}

/// Headers that belong to an object and are sent again with it, beside its media type.
pub const KEPT_HEADERS: [&str; 6] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "expires",
    STORAGE_CLASS,
];
/// Where a store is to keep an object. It is not that of the source where a copy does not say it.
pub const STORAGE_CLASS: &str = "x-amz-storage-class";

/// Whether metadata can be sent. What others have put there by other ways perhaps cannot.
pub fn can_be_sent(name: &str, value: &str) -> bool {
    let token = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    !name.is_empty() && token(name) && value.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

impl Description {
    /// That of an object.
    pub fn of(object: Object) -> Description {
        Description { content_type: object.content_type, metadata: object.metadata, headers: object.headers }
    }
}

/// One name of a listing.
#[derive(Clone, Debug)]
pub enum Entry {
    /// An object, by its whole key.
    Object(String, Object),
    /// What several keys have in common up to a delimiter, with it at the end.
    Prefix(String),
}

/// A part of a listing, in the order of the store (S3: of the bytes of the keys; directory buckets: none).
#[derive(Clone, Debug)]
pub struct Page {
    /// Objects and prefixes.
    pub entries: Vec<Entry>,
    /// What to give the next call; `None` at the end.
    pub next: Option<String>,
}

/// Watches that a listing does not go round: from time to time remembers what goes on, and sees it come again. Tested below.
#[derive(Debug, Default)]
pub struct Round {
    seen: Option<String>,
    left: u64,
    most: u64,
}

impl Round {
    /// What a page says is next, if that is not a page that came before.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn next(&mut self, next: Option<String>) -> Result<Option<String>> {
        if next.is_some() && next == self.seen {
            return Err(StoreError::Unavailable("a listing of the store goes round".into()));
        }
        if self.left == 0 {
            // Longer and longer rounds are found so.
            self.most = 2 * self.most + 1;
            (self.left, self.seen) = (self.most, next.clone());
        }
        self.left -= 1;
        Ok(next)
    }
}

/// The id of an unfinished upload, as the store gave it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UploadId(pub String);

/// An uploaded part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// From 1 to 10,000.
    pub number: u16,
    /// Bytes. 0 where the store did not say (copied parts).
    pub size: u64,
    /// Names its content.
    pub etag: ETag,
    /// What the store keeps, where completion wants it again.
    pub checksum: Option<Checksum>,
    /// When it came, in a listing of parts; `None`: the store does not tell.
    pub arrived: Option<SystemTime>,
}

/// An unfinished upload.
#[derive(Clone, Debug)]
pub struct Upload {
    /// The key that it will make.
    pub key: String,
    /// Its id.
    pub id: UploadId,
    /// When it was begun; `None`: the store does not tell.
    pub begun: Option<SystemTime>,
}

/// What this store can do, as found by asking it, and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Smallest size of a part but the last, bytes. S3: 5 MiB.
    pub part_min: u64,
    /// Largest size of a part, bytes. S3: 5 GiB.
    pub part_max: u64,
    /// Most parts of an object. S3: 10,000.
    pub parts_most: u16,
    /// Largest object that one `put` makes, and one `copy` copies, bytes. S3: 5 GiB.
    pub single_max: u64,
    /// `put` and `complete` obey [`Condition`].
    pub conditional: bool,
    /// `delete` obeys a condition.
    pub conditional_delete: bool,
    /// `part_copy` is there.
    pub part_copy: bool,
    /// `rename` is there.
    pub rename: bool,
}

/// An object store, or a prefix of one bucket.
pub trait Store: Send + Sync + 'static {
    /// What the store can do. Does not change once a store is open.
    fn abilities(&self) -> &Abilities;

    /// From now on a call that has failed is not tried again after `until`: whoever made those that are under way has gone.
    fn hurry(&self, _until: Instant) {}

    /// What is known of an object. `NotFound`.
    fn head(&self, key: &str) -> impl Future<Output = Result<Object>> + Send;

    /// Checksum of the whole of an object in this state, if the store has told it lately: for who reads it in pieces.
    fn checksum(&self, _key: &str, _state: &ETag) -> Option<Checksum> {
        None
    }

    /// Bytes of an object, not beyond its end (an empty answer there), and what is known of it; up to `u64::MAX` objects of 1 GiB at most. With an ETag: of that state, else
    /// `Precondition`. `NotFound`.
    fn get(
        &self,
        key: &str,
        range: Range<u64>,
        state: Option<&ETag>,
    ) -> impl Future<Output = Result<(Bytes, Object)>> + Send;

    /// As `get`, of bytes that nobody may wait for yet: they come into memory when there is `room`.
    fn get_ahead(
        &self,
        key: &str,
        range: Range<u64>,
        state: &ETag,
        room: &Room,
    ) -> impl Future<Output = Result<Bytes>> + Send {
        async move {
            room.enter().await;
            Ok(self.get(key, range, Some(state)).await?.0)
        }
    }

    /// Makes or replaces an object in one request, atomically, and names its new state. `Precondition`.
    fn put(
        &self,
        key: &str,
        body: Bytes,
        about: &Description,
        on: &Condition,
    ) -> impl Future<Output = Result<ETag>> + Send;

    /// Makes `to` from `from` within the store, with a new description where one is given (also onto itself). `source`: only if `from` is in
    /// that state. `NotFound`, `Precondition`, `Refused` (larger than `single_max`).
    fn copy(
        &self,
        from: &str,
        to: &str,
        about: Option<&Description>,
        source: Option<&ETag>,
    ) -> impl Future<Output = Result<ETag>> + Send;

    /// Moves an object within the store, atomically, if `from` is in the state `source` and `to` obeys the condition. `NotFound`,
    /// `Precondition`, `NotSupported`.
    fn rename(
        &self,
        from: &str,
        to: &str,
        source: &ETag,
        on: &Condition,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Removes an object; that it is not there is no error. `Precondition`.
    fn delete(&self, key: &str, on: &Condition) -> impl Future<Output = Result<()>> + Send;

    /// The keys that begin with `prefix`; with `delimiter`, those that have a '/' behind it are given as prefixes. `after`: what the page
    /// before gave as `next`.
    fn list(
        &self,
        prefix: &str,
        delimiter: bool,
        after: Option<&str>,
    ) -> impl Future<Output = Result<Page>> + Send;

    /// The first of the keys that begin with `prefix`, in the order of the store; what has a '/' behind it may be given as a prefix.
    fn first(&self, prefix: &str) -> impl Future<Output = Result<Option<Entry>>> + Send {
        async move { Ok(self.list(prefix, true, None).await?.entries.into_iter().next()) }
    }

    /// Begins an upload in parts. Nothing is visible before [`Store::complete`].
    fn begin(&self, key: &str, about: &Description) -> impl Future<Output = Result<UploadId>> + Send;

    /// As [`Store::begin`], of an upload of which parts will be copies: some stores want to know.
    fn begin_with_copies(
        &self,
        key: &str,
        about: &Description,
    ) -> impl Future<Output = Result<UploadId>> + Send {
        self.begin(key, about)
    }

    /// Uploads a part. The same number again replaces it. `NotFound` (the upload is gone).
    fn part(
        &self,
        key: &str,
        upload: &UploadId,
        number: u16,
        body: Bytes,
    ) -> impl Future<Output = Result<Part>> + Send;

    /// Makes a part from a range of an object, if that is in the state `source`. `NotFound`, `Precondition`, `NotSupported`.
    fn part_copy(
        &self,
        key: &str,
        upload: &UploadId,
        number: u16,
        from: &str,
        range: Range<u64>,
        source: &ETag,
    ) -> impl Future<Output = Result<Part>> + Send;

    /// Makes the object of these parts visible, atomically, and names its state. `NotFound`, `Precondition`, `Refused`.
    fn complete(
        &self,
        key: &str,
        upload: &UploadId,
        parts: &[Part],
        on: &Condition,
    ) -> impl Future<Output = Result<ETag>> + Send;

    /// The state of the object, if it is what these parts of an upload make: for who has not heard whether they were completed, which he asked for
    /// `when`. `None` also where that cannot be told.
    fn completed(
        &self,
        key: &str,
        upload: &UploadId,
        parts: &[Part],
        when: &Range<SystemTime>,
    ) -> impl Future<Output = Result<Option<ETag>>> + Send;

    /// Gives up an upload and its parts; that it is not there is no error.
    fn abort(&self, key: &str, upload: &UploadId) -> impl Future<Output = Result<()>> + Send;

    /// The unfinished uploads of keys that begin with `prefix`, all of them.
    fn uploads(&self, prefix: &str) -> impl Future<Output = Result<Vec<Upload>>> + Send;

    /// The parts that an unfinished upload has, by number. `NotFound`.
    fn parts(&self, key: &str, upload: &UploadId) -> impl Future<Output = Result<Vec<Part>>> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_that_go_round_end() {
        let mut round = Round::default();
        assert!((0..10_000).all(|n: u32| round.next(Some(n.to_string())).is_ok()));
        assert!(round.next(None).is_ok());
        for length in 1..40 {
            let mut round = Round::default();
            let pages = (0..).take_while(|n| round.next(Some((n % length).to_string())).is_ok()).count();
            assert!(pages <= 4 * length + 4, "{pages} pages of {length}");
        }
    }
}
