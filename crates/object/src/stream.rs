//! An upload in parts on its way: parts leave in the background, and are asked for when the object is completed.
//!
//! The upload is begun with its first part. Parts go side by side, as many as there are tokens. A part that could not be uploaded keeps its bytes
//! and their memory, so that it can be tried again: by the next write, which fails where that does, so that no more than what is on its way is kept, or
//! by the next commit. An upload that is dropped without being completed is given up in the store too; if
//! the process dies before that, `gc` finds it.

use crate::budget::Held;
use crate::core::Core;
use crate::inode::About;
use crate::store::{Condition, Description, ETag, Part, Store, StoreError, UploadId};
use bytes::Bytes;
use fs::Result;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;

/// What a part is made of.
#[derive(Debug)]
enum Content {
    Bytes(Bytes, #[allow(dead_code, reason = "gives memory back when dropped")] Held),
    Copy(String, Range<u64>, ETag),
}

#[derive(Debug)]
enum Slot {
    Moving(JoinHandle<std::result::Result<Part, (StoreError, Content)>>),
    Done(Part),
    Kept(Content),
}

/// See the module.
#[derive(Debug)]
pub struct Stream {
    /// The key that it makes.
    pub key: String,
    /// What the object will say of itself, of a file that is being written.
    pub about: Option<About>,
    description: Description,
    /// Some of its parts may be copies.
    copies: bool,
    id: OnceCell<UploadId>,
    slots: Mutex<Vec<Option<Slot>>>,
    /// Some part could not be uploaded.
    failed: AtomicBool,
}

impl Stream {
    /// A new upload of a file; nothing is sent yet. `mtime`: the object says when it was changed. `copies`: some of its parts may be copies.
    /// `AttributeTooLarge`.
    pub fn new(key: String, mut about: About, mtime: bool, copies: bool) -> Result<Stream> {
        if !mtime {
            about.attrs.mtime = None;
        }
        let description = about.description()?;
        Ok(Stream { about: Some(about), copies, ..Stream::copied(key, description) })
    }

    /// A new upload of copies, with a description of its own.
    pub fn copied(key: String, description: Description) -> Stream {
        let (id, slots, failed) = (OnceCell::new(), Mutex::default(), AtomicBool::new(false));
        Stream { key, about: None, description, copies: true, id, slots, failed }
    }

    /// Whether some part could not be uploaded, and nobody has tried it again since.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// Takes back the parts behind the first `len`, which all have arrived or failed: others will have their numbers.
    pub fn cut(&self, len: usize) {
        self.slots.lock().truncate(len);
    }

    /// Number of parts.
    pub fn len(&self) -> usize {
        self.slots.lock().len()
    }

    async fn id<S: Store>(&self, core: &Core<S>) -> std::result::Result<&UploadId, StoreError> {
        let begin = || async {
            match self.copies {
                true => core.store.begin_with_copies(&self.key, &self.description).await,
                false => core.store.begin(&self.key, &self.description).await,
            }
        };
        self.id.get_or_try_init(begin).await
    }

    /// Sends the next part. Its bytes were taken from the memory for writes.
    pub fn send<S: Store>(self: &Arc<Self>, core: &Arc<Core<S>>, bytes: Bytes) {
        let held = core.writes.held(bytes.len() as u64);
        self.start(core, Content::Bytes(bytes, held));
    }

    /// Copies a range of an object as the next part.
    pub fn copy<S: Store>(
        self: &Arc<Self>,
        core: &Arc<Core<S>>,
        from: String,
        range: Range<u64>,
        etag: ETag,
    ) {
        self.start(core, Content::Copy(from, range, etag));
    }

    fn start<S: Store>(self: &Arc<Self>, core: &Arc<Core<S>>, content: Content) {
        let mut slots = self.slots.lock();
        let number = slots.len() as u16 + 1;
        slots.push(Some(self.moving(core, number, content)));
    }

    fn moving<S: Store>(self: &Arc<Self>, core: &Arc<Core<S>>, number: u16, content: Content) -> Slot {
        let (stream, core) = (self.clone(), core.clone());
        let moving = match &content {
            Content::Bytes(bytes, _) => Some(core.writes.moving(bytes.len() as u64)),
            Content::Copy(..) => None,
        };
        let runtime = core.runtime.clone();
        Slot::Moving(runtime.spawn(async move {
            let done = stream.upload(&core, number, &content).await;
            if done.is_err() {
                stream.failed.store(true, Relaxed);
            }
            let out = done.map_err(|e| (e, content));
            // The memory is given back first, or stays with the content.
            drop(moving);
            out
        }))
    }

    async fn upload<S: Store>(
        &self,
        core: &Core<S>,
        number: u16,
        content: &Content,
    ) -> std::result::Result<Part, StoreError> {
        let _token = core.uploads.acquire().await;
        let id = self.id(core).await?;
        match content {
            Content::Bytes(bytes, _) => core.store.part(&self.key, id, number, bytes.clone()).await,
            Content::Copy(from, range, etag) => {
                core.store.part_copy(&self.key, id, number, from, range.clone(), etag).await
            }
        }
    }

    /// Waits for all parts, trying once more those that failed before. One at a time may do so, and nobody sends meanwhile.
    pub async fn settle<S: Store>(
        self: &Arc<Self>,
        core: &Arc<Core<S>>,
    ) -> std::result::Result<Vec<Part>, StoreError> {
        let put = |i, slot| {
            if let Some(place) = self.slots.lock().get_mut(i) {
                *place = slot;
            }
        };
        let take = |i| self.slots.lock().get_mut(i).and_then(Option::take);
        self.failed.store(false, Relaxed);
        for i in 0..self.len() {
            let content = match take(i) {
                Some(Slot::Kept(content)) => content,
                Some(Slot::Moving(task)) if task.is_finished() => match task.await {
                    Ok(Ok(part)) => {
                        put(i, Some(Slot::Done(part)));
                        continue;
                    }
                    Ok(Err((_, content))) => content,
                    Err(_) => continue,
                },
                slot => {
                    put(i, slot);
                    continue;
                }
            };
            put(i, Some(self.moving(core, i as u16 + 1, content)));
        }
        let mut error = None;
        let mut parts = Vec::new();
        for i in 0..self.len() {
            let slot = match take(i) {
                Some(Slot::Moving(task)) => match task.await {
                    Ok(Ok(part)) => Some(Slot::Done(part)),
                    Ok(Err((e, content))) => {
                        error = error.or(Some(e));
                        Some(Slot::Kept(content))
                    }
                    Err(_) => None,
                },
                slot => slot,
            };
            match &slot {
                Some(Slot::Done(part)) => parts.push(part.clone()),
                Some(_) => {}
                // Its bytes went with a task that ended before its time, or with the upload.
                None => error = error.or(Some(StoreError::Damaged("a part has been given up".into()))),
            }
            put(i, slot);
        }
        if error.is_some() {
            self.failed.store(true, Relaxed);
        }
        error.map_or(Ok(parts), Err)
    }

    /// The upload, for completing it.
    pub fn upload_id(&self) -> Option<&UploadId> {
        self.id.get()
    }

    /// Gives the upload up, in the background.
    pub fn abandon<S: Store>(self: Arc<Self>, core: &Arc<Core<S>>) {
        let core = core.clone();
        let runtime = core.runtime.clone();
        runtime.spawn(async move { self.abort(&core).await });
    }

    /// Gives the upload up: what is on its way is waited for, because a part that came after the end would stay behind.
    pub async fn abort<S: Store>(self: &Arc<Self>, core: &Arc<Core<S>>) {
        let slots: Vec<Option<Slot>> = std::mem::take(&mut *self.slots.lock());
        for slot in slots {
            if let Some(Slot::Moving(task)) = slot {
                let _ = task.await;
            }
        }
        if let Some(id) = self.id.get()
            && let Err(e) = core.store.abort(&self.key, id).await
        {
            tracing::warn!("{}: an unfinished upload stays behind: {e}", self.key);
        }
    }
}

impl<S: Store> Core<S> {
    /// Completes a stream of these parts, which have arrived. They are there afterwards still, if it failed.
    pub async fn complete(
        self: &Arc<Self>,
        stream: &Arc<Stream>,
        parts: &[Part],
        on: &Condition,
    ) -> std::result::Result<ETag, StoreError> {
        let id = stream.upload_id().ok_or_else(|| StoreError::Refused("an upload without parts".into()))?;
        self.check(&stream.key, on).await?;
        self.store.complete(&stream.key, id, parts, &self.condition(on)).await
    }
}
