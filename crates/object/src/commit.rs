//! Making an object of a changed file: [`Core::commit`].
//!
//! What is small goes with one PUT. What is large is an upload in parts: those that have left already, copies of what is untouched, and the rest. Either
//! way the store makes the object visible in one step, and only if the key is still in the state in which the file was opened: else somebody
//! else has changed it, the error is `Stale`, nothing is overwritten, and the file stays uncommittable until its last close.
//! After any other error everything that is needed for another try is kept. Where nobody has heard whether the object was made the next one finds out
//! ([`crate::tried`]).
//!
//! Attributes are sent with the bytes. Where an upload was begun with others, and for changes of attributes alone, the object is copied onto itself.

use crate::change::Place;
use crate::core::Core;
use crate::error;
use crate::file::File;
use crate::inode::About;
use crate::plan::{self, Source};
use crate::pool::Buffer;
use crate::store::{Condition, Description, ETag, Store, StoreError};
use crate::stream::Stream;
use crate::tried::{Tried, is_unheard};
use bytes::Bytes;
use fs::{Error, Result, Time};
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

/// Files up to this size, or up to the least part where that is larger, are sent with one request, bytes.
const SINGLE: u64 = 8 << 20;
/// Objects up to this size are copied with one request, bytes.
const COPY_AT_ONCE: u64 = 128 << 20;

impl<S: Store> Core<S> {
    /// Runs [`Core::commit`] on the worker.
    pub async fn spawn_commit(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        if !file.state.lock().is_dirty() {
            return Ok(());
        }
        let (core, file) = (self.clone(), file.clone());
        self.spawn(async move { core.commit(&file).await }).await
    }

    /// Makes the changes of a file visible and durable. See the module.
    pub async fn commit(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        let _names = self.namespace.read().await;
        let _turn = file.turn.write().await;
        self.commit_alone(file).await
    }

    /// As `commit`; the caller holds the turn of the file alone, and the names.
    pub async fn commit_alone(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        {
            let state = file.state.lock();
            if !state.is_dirty() {
                return Ok(());
            }
            if let Some(e) = &state.lost {
                return Err(e.clone());
            }
        }
        let key = self.tree.lock().key(file.ino)?;
        if let Some(etag) = self.hear(file, &key).await? {
            return self.committed(file, &key, etag, true).await;
        }
        let (on, base_size, size, bytes_changed) = {
            let state = file.state.lock();
            let on = state.base.clone().map_or(Condition::Absent, Condition::Is);
            let changed = state.base.is_none() || !state.change.is_none(state.base_size);
            (on, state.base_size, state.change.size(), changed)
        };
        let about = self.tree.lock().get(file.ino)?.about.as_deref().ok_or(Error::Stale)?.clone();
        let done = match &on {
            Condition::Is(etag) if !bytes_changed => self
                .describe(file, (&key, etag, base_size), about.description()?)
                .await
                .map(|etag| (etag, false)),
            _ => self.send_all(file, (&key, &about), size, &on).await,
        };
        match done {
            Ok((etag, streamed)) => self.committed(file, &key, etag, streamed).await,
            Err(e) => Err(self.not_made(file, &key, e).await),
        }
    }

    /// Tries once more to send the parts that failed. Nothing becomes visible. The error is that of the commit that would come now.
    pub async fn send_again(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        let _names = self.namespace.read().await;
        let _turn = file.turn.write().await;
        let key = self.tree.lock().key(file.ino)?;
        if let Some(etag) = self.hear(file, &key).await? {
            return self.committed(file, &key, etag, true).await;
        }
        let stream = {
            let state = file.state.lock();
            match (&state.lost, &state.stream) {
                (Some(e), _) => return Err(e.clone()),
                (None, Some(stream)) if !state.gone => stream.clone(),
                _ => return Ok(()),
            }
        };
        match stream.settle(self).await {
            Ok(_) => Ok(()),
            Err(e) => Err(self.not_made(file, &stream.key, e).await),
        }
    }

    /// What is told of a commit that failed. Where the object or the upload is another's by now, or gone, no later one can succeed.
    async fn not_made(&self, file: &File, key: &str, e: StoreError) -> Error {
        let lost = match &e {
            StoreError::Precondition => true,
            StoreError::NotFound => self.is_lost(file, key).await,
            _ => false,
        };
        if lost {
            tracing::error!(
                "{key}: changed by somebody else since it was opened; what was written is not in the store"
            );
            file.state.lock().lost = Some(Error::Stale);
            return Error::Stale;
        }
        match e {
            StoreError::NotFound => {
                error::of(key, StoreError::Unavailable("something was not found that is there".into()))
            }
            e => error::of(key, e),
        }
    }

    /// Whether what a commit begins from is really not there: asked once more, by requests whose answers say what it is that they did not find.
    async fn is_lost(&self, file: &File, key: &str) -> bool {
        let (base, stream) = {
            let state = file.state.lock();
            (state.base.clone(), state.stream.clone())
        };
        if let Some((stream, id)) = stream.as_ref().and_then(|stream| Some((stream, stream.upload_id()?)))
            && self.store.parts(&stream.key, id).await.err() == Some(StoreError::NotFound)
        {
            return true;
        }
        let Some(base) = base else { return false };
        match self.store.get(key, 0..1, None).await {
            Ok((_, object)) => object.etag != base,
            Err(e) => e == StoreError::NotFound,
        }
    }

    /// Sends the bytes of a file. True: as a stream, whose description may be older than the file's.
    async fn send_all(
        self: &Arc<Self>,
        file: &Arc<File>,
        (key, about): (&str, &About),
        size: u64,
        on: &Condition,
    ) -> std::result::Result<(ETag, bool), StoreError> {
        let refused = |e: Error| StoreError::Refused(e.to_string());
        let abilities = self.store.abilities();
        let streaming = file.state.lock().stream.is_some();
        if !streaming && size <= SINGLE.max(abilities.part_min).min(abilities.single_max) {
            let _token = self.uploads.acquire().await;
            let body = self.bytes_of(file, key, 0..size).await?;
            let about = about.description().map_err(refused)?;
            self.check(key, on).await?;
            let done = self.store.put(key, body.clone(), &about, &self.condition(on)).await;
            if is_unheard(&done) {
                file.state.lock().tried = Some(Arc::new(Tried::whole(size, Some(&body), about)));
            }
            return Ok((done?, false));
        }
        // Of a stream that was begun the rest is sent in its order; of a new one with the time of change that is known by now.
        let (stream, pieces, base) = {
            let mut state = file.state.lock();
            let old: Vec<Range<u64>> = state
                .change
                .places(state.change.sent()..u64::MAX)
                .into_iter()
                .filter_map(|(range, place)| (place == Place::Old).then_some(range))
                .collect();
            let stream = match &state.stream {
                Some(stream) => stream.clone(),
                None => {
                    let copies = !old.is_empty();
                    let stream = Stream::new(key.into(), about.clone(), true, copies).map_err(refused)?;
                    state.stream.insert(Arc::new(stream)).clone()
                }
            };
            let used = stream.len() as u16;
            let first = self.part_size(&state);
            let pieces = plan::plan((state.change.sent(), used), size, &old, first, abilities)
                .ok_or_else(|| StoreError::Refused("too many parts for one object".into()))?;
            (stream, pieces, state.base.clone())
        };
        let mut whole = stream.len();
        for piece in pieces {
            let len = piece.range.end - piece.range.start;
            // Only the last can be less than a part must have. It counts as sent when the object is made: where it is not, more may be written behind it,
            // and a part in the middle must not be so small.
            let counts = len >= abilities.part_min;
            match (piece.source, &base) {
                (Source::Copied, Some(etag)) => {
                    if counts {
                        self.sent(file, piece.range.end);
                    }
                    stream.copy(self, key.into(), piece.range, etag.clone());
                }
                _ => {
                    self.writes.take(file.ino.0, len, &self.runtime).await;
                    let held = self.writes.held(len);
                    let bytes = self.bytes_of(file, key, piece.range.clone()).await?;
                    held.keep(len);
                    if counts {
                        self.sent(file, piece.range.end);
                    }
                    stream.send(self, bytes);
                    self.writes.filled(file.ino.0);
                }
            }
            whole += usize::from(counts);
        }
        let done = match stream.settle(self).await {
            Ok(parts) => {
                let begun = SystemTime::now();
                let done = self.complete(&stream, &parts, on).await;
                if is_unheard(&done) {
                    let when = begun..SystemTime::now();
                    let tried = Tried::Parts { size, stream: stream.clone(), parts, when };
                    file.state.lock().tried = Some(Arc::new(tried));
                }
                done
            }
            Err(e) => Err(e),
        };
        if done.is_err() {
            stream.cut(whole);
        }
        Ok((done?, true))
    }

    /// Notes that the bytes up to `to` are on their way; what of them was in memory is there no longer.
    fn sent(&self, file: &File, to: u64) {
        self.writes.give(file.state.lock().change.forget(to));
    }

    /// The bytes of a range of a file, from memory and from its object.
    async fn bytes_of(
        &self,
        file: &File,
        key: &str,
        range: Range<u64>,
    ) -> std::result::Result<Bytes, StoreError> {
        let mut out = Buffer::zeroed((range.end - range.start) as usize);
        let at = |r: &Range<u64>| (r.start - range.start) as usize..(r.end - range.start) as usize;
        let (old, base) = {
            let state = file.state.lock();
            let mut old = Vec::new();
            for (r, place) in state.change.places(range.clone()) {
                match place {
                    Place::Memory => state.change.copy(r.clone(), &mut out[at(&r)]),
                    Place::Old => old.push(r),
                    Place::Hole => {}
                    Place::Sent => unreachable!("what has left is not sent again"),
                }
            }
            (old, state.base.clone())
        };
        for r in old {
            let (bytes, _) = self.store.get(key, r.clone(), base.as_ref()).await?;
            if bytes.len() as u64 != r.end - r.start {
                return Err(StoreError::Damaged("an object is shorter than it was".into()));
            }
            out[at(&r)].copy_from_slice(&bytes);
        }
        Ok(out.freeze())
    }

    /// After a commit: the file is what the object is. Where it says something else of itself the file is changed still until that is in the store too.
    async fn committed(
        self: &Arc<Self>,
        file: &Arc<File>,
        key: &str,
        etag: ETag,
        streamed: bool,
    ) -> Result<()> {
        let (now, differs, size) = {
            let mut tree = self.tree.lock();
            let inode = tree.get_mut(file.ino)?;
            let mut now = inode.about.as_deref().ok_or(Error::Stale)?.clone();
            let mut state = file.state.lock();
            let size = state.change.size();
            self.writes.give(state.change.bytes());
            state.change = crate::change::Change::none(size);
            (state.base, state.base_size) = (Some(etag.clone()), size);
            let stream = state.stream.take();
            let sent = stream.as_ref().and_then(|s| s.about.as_ref()).filter(|_| streamed);
            if sent.is_some_and(|sent| sent.attrs.mtime.is_none()) && !state.mtime_set {
                now.attrs.mtime = None;
            }
            state.about_changed = sent.is_some_and(|sent| *sent != now);
            inode.stored(Some(etag.clone()));
            inode.size = size;
            (now, state.about_changed, size)
        };
        if differs {
            let about = now.description()?;
            let done = self.describe(file, (key, &etag, size), about).await;
            let etag = done.map_err(|e| error::of(key, e))?;
            let mut tree = self.tree.lock();
            let mut state = file.state.lock();
            (state.base, state.about_changed) = (Some(etag.clone()), false);
            tree.get_mut(file.ino)?.stored(Some(etag));
        }
        let completed = match streamed && now.attrs.mtime.is_none() {
            true => self.store.head(key).await.ok().map(|object| Time::from(object.modified)),
            false => None,
        };
        let mut tree = self.tree.lock();
        let inode = tree.get_mut(file.ino)?;
        if let Some(about) = &mut inode.about {
            about.attrs.mtime = now.attrs.mtime;
        }
        if let Some(completed) = completed {
            (inode.modified, inode.told) = (completed, Some(completed));
        }
        Ok(())
    }

    /// Gives the object of a file another description.
    async fn describe(
        self: &Arc<Self>,
        file: &File,
        (key, etag, size): (&str, &ETag, u64),
        about: Description,
    ) -> std::result::Result<ETag, StoreError> {
        let done = self.copy_object((key, etag, size), key, Some(&about)).await;
        if is_unheard(&done) {
            file.state.lock().tried = Some(Arc::new(Tried::whole(size, None, about)));
        }
        done
    }

    /// Copies an object within the store, with another description where one is given; large ones in parts, side by side. Onto itself only if it is in
    /// that state still when it is made anew, where the store has conditions, and copies parts or the object is small; else if it was when it was read.
    pub async fn copy_object(
        self: &Arc<Self>,
        (from, etag, size): (&str, &ETag, u64),
        to: &str,
        about: Option<&Description>,
    ) -> std::result::Result<ETag, StoreError> {
        let abilities = self.store.abilities();
        // What stands for a directory some stores (versitygw) do not copy: it is made anew.
        let marker = size == 0 && to.ends_with('/');
        // Between reading and writing of a copy somebody else may make the object, whom the copy would undo.
        let guarded = from == to && abilities.conditional && !marker;
        if guarded && size <= SINGLE.min(abilities.single_max) {
            return self.make_again((from, etag, size), about).await;
        }
        let many = (size > COPY_AT_ONCE && from != to || guarded) && abilities.part_copy;
        if !marker && size <= abilities.single_max && !many {
            return self.store.copy(from, to, about, Some(etag)).await;
        }
        if !marker && !abilities.part_copy {
            return Err(StoreError::NotSupported("copying large objects"));
        }
        let object = self.store.head(from).await?;
        let same = object.etag == *etag;
        let about = about.cloned().unwrap_or_else(|| Description::of(object));
        let on = if from == to { Condition::Is(etag.clone()) } else { Condition::Always };
        if marker {
            return match same {
                true => self.store.put(to, Bytes::new(), &about, &self.condition(&on)).await,
                false => Err(StoreError::Precondition),
            };
        }
        self.copy_in_parts((from, etag, size), to, about, &on).await
    }

    /// Makes a small object anew with another description, if it is in this state.
    async fn make_again(
        self: &Arc<Self>,
        (key, etag, size): (&str, &ETag, u64),
        about: Option<&Description>,
    ) -> std::result::Result<ETag, StoreError> {
        let _token = self.uploads.acquire().await;
        self.reads.force(size);
        let _held = self.reads.held(size);
        let (body, object) = self.store.get(key, 0..size, Some(etag)).await?;
        if body.len() as u64 != size {
            return Err(StoreError::Damaged("an object is shorter than it was".into()));
        }
        let about = about.cloned().unwrap_or_else(|| Description::of(object));
        self.store.put(key, body, &about, &Condition::Is(etag.clone())).await
    }

    /// Copies an object that is not empty by copies of its parts, and makes the new one on a condition.
    async fn copy_in_parts(
        self: &Arc<Self>,
        (from, etag, size): (&str, &ETag, u64),
        to: &str,
        about: Description,
        on: &Condition,
    ) -> std::result::Result<ETag, StoreError> {
        let (whole, abilities) = (0..size, self.store.abilities());
        let pieces =
            plan::plan((0, 0), size, std::slice::from_ref(&whole), self.options.part_size, abilities)
                .ok_or_else(|| StoreError::Refused("too many parts for one object".into()))?;
        let stream = Arc::new(Stream::copied(to.into(), about));
        for piece in pieces {
            stream.copy(self, from.into(), piece.range, etag.clone());
        }
        let done = match stream.settle(self).await {
            Ok(parts) => self.complete(&stream, &parts, on).await,
            Err(e) => Err(e),
        };
        if done.is_err() {
            stream.abort(self).await;
        }
        done
    }

    /// Copies an object to a key where nothing is; `Exists` if there is something. In one step of the store, where that has conditions and copies parts
    /// or the object is small; else it looks first. `class`: as for [`Core::copy_kept`].
    pub async fn copy_absent(
        self: &Arc<Self>,
        (from, etag, size): (&str, &ETag, u64),
        to: &str,
        class: bool,
    ) -> Result<ETag> {
        let (abilities, on) = (self.store.abilities(), Condition::Absent);
        let at_source = |e| error::of(from, e);
        let at_target = |e| match e {
            StoreError::Precondition => Error::Exists,
            e => error::of(to, e),
        };
        self.compare(to, &on).await.map_err(at_target)?;
        let small = size <= SINGLE.min(abilities.single_max);
        if !abilities.conditional || (!small && !abilities.part_copy) {
            return self.copy_kept((from, etag, size), to, class).await.map_err(at_source);
        }
        if small {
            let _token = self.uploads.acquire().await;
            self.reads.force(size);
            let _held = self.reads.held(size);
            let (body, object) = self.store.get(from, 0..size, Some(etag)).await.map_err(at_source)?;
            return self.store.put(to, body, &Description::of(object), &on).await.map_err(at_target);
        }
        let object = self.store.head(from).await.map_err(at_source)?;
        if object.etag != *etag {
            return Err(at_source(StoreError::Precondition));
        }
        self.copy_in_parts((from, etag, size), to, Description::of(object), &on).await.map_err(at_target)
    }
}
