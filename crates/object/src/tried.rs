//! Commits of which nobody has heard whether they were done: the store could not be reached any more.
//!
//! The object may be there. So what was tried is remembered, and before anything else is done with the file's object the store is asked
//! ([`Core::hear`]): if that is what was tried, the file goes on from it. Otherwise it would seem to be somebody else's, and what is written from then
//! on would be lost.

use crate::checksum::{Checksum, Crc};
use crate::core::Core;
use crate::error;
use crate::file::File;
use crate::store::{Description, ETag, Metadata, Part, Store, StoreError};
use crate::stream::Stream;
use bytes::Bytes;
use fs::Result;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

/// What a commit was to make.
#[derive(Debug)]
pub enum Tried {
    /// An object in one step, of this size and with this metadata. `sum`: of its bytes; `None`: they are those that were there.
    Whole { size: u64, sum: Option<Checksum>, metadata: Metadata },
    /// An object of these parts. `when`: from the first try on to the end of the last.
    Parts { size: u64, stream: Arc<Stream>, parts: Vec<Part>, when: Range<SystemTime> },
}

/// Whether a call may have been done all the same.
pub fn is_unheard<T>(done: &std::result::Result<T, StoreError>) -> bool {
    matches!(done, Err(StoreError::Unavailable(_) | StoreError::Damaged(_)))
}

impl Tried {
    /// An object with other content, or with other metadata alone.
    pub fn whole(size: u64, bytes: Option<&Bytes>, about: Description) -> Tried {
        let sum = bytes.map(|bytes| Crc::Crc64Nvme.of(bytes));
        Tried::Whole { size, sum, metadata: about.metadata }
    }

    /// Whether it is that of this stream.
    pub fn is_of(&self, stream: &Arc<Stream>) -> bool {
        matches!(self, Tried::Parts { stream: tried, .. } if Arc::ptr_eq(tried, stream))
    }

    fn size(&self) -> u64 {
        match self {
            Tried::Whole { size, .. } | Tried::Parts { size, .. } => *size,
        }
    }
}

impl<S: Store> Core<S> {
    /// Finds out what became of the last commit, if nobody has heard of it: if it was done, the file differs from that object only in what
    /// was changed since. The ETag: in nothing but perhaps its attributes, and the stream is at its end. The caller holds the turn alone, and the names.
    pub async fn hear(&self, file: &File, key: &str) -> Result<Option<ETag>> {
        let Some(tried) = file.state.lock().tried.clone() else { return Ok(None) };
        let made = self.was_made(key, &tried).await.map_err(|e| error::of(key, e))?;
        let mut tree = self.tree.lock();
        let mut state = file.state.lock();
        state.tried = None;
        let Some(etag) = made else { return Ok(None) };
        let inode = tree.get_mut(file.ino)?;
        inode.stored(Some(etag.clone()));
        inode.size = tried.size();
        (state.base, state.base_size) = (Some(etag.clone()), tried.size());
        // They may have changed since.
        state.about_changed = true;
        if state.stream.as_ref().is_some_and(|stream| tried.is_of(stream)) {
            state.change.land();
            if state.change.is_none(tried.size()) {
                return Ok(Some(etag));
            }
            state.stream = None;
        }
        Ok(None)
    }

    /// The ETag of the object, if it is what was tried.
    async fn was_made(&self, key: &str, tried: &Tried) -> std::result::Result<Option<ETag>, StoreError> {
        let (size, sum, metadata) = match tried {
            Tried::Whole { size, sum, metadata } => (*size, *sum, metadata),
            Tried::Parts { stream, parts, when, .. } => {
                let Some(id) = stream.upload_id() else { return Ok(None) };
                return self.store.completed(key, id, parts, when).await;
            }
        };
        let found = match self.store.head(key).await {
            Ok(object) if object.size == size && object.metadata == *metadata => object.etag,
            Ok(_) | Err(StoreError::NotFound) => return Ok(None),
            Err(e) => return Err(e),
        };
        let Some(sum) = sum else { return Ok(Some(found)) };
        self.reads.force(size);
        let _held = self.reads.held(size);
        match self.store.get(key, 0..size, Some(&found)).await {
            Ok((bytes, _)) => Ok((Crc::Crc64Nvme.of(&bytes) == sum).then_some(found)),
            Err(StoreError::NotFound | StoreError::Precondition) => Ok(None),
            Err(e) => Err(e),
        }
    }
}
