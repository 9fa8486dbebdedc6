//! A file that is open or being changed, and writing to it.
//!
//! Life of a change: bytes come into memory ([`Change`]); what stands there without a gap from the start of the file leaves for the store in parts as
//! it fills them ([`Stream`]); `Core::commit` sends the rest and makes the object visible, in one step of the store, if the object is still the
//! one that was opened. Then the file is unchanged again.
//!
//! `turn` orders those who change a file: writes hold it shared, whatever replaces or moves the object alone.

use crate::budget::Held;
use crate::change::{Change, Place};
use crate::core::Core;
use crate::handles::Open;
use crate::plan::{self, Source};
use crate::store::{ETag, Store};
use crate::stream::Stream;
use crate::tried::Tried;
use fs::{Error, Ino, OpenFlags, Result, Time, perm};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::RwLock;

/// Largest file, bytes (S3's largest object).
pub const FILE_MAX: u64 = 5 << 40;
/// A file whose changes cannot leave in order keeps so many parts in memory before it is committed in between.
const PARTS_KEPT: u64 = 3;

/// See the module.
#[derive(Debug)]
pub struct File {
    /// Its inode.
    pub ino: Ino,
    /// See the module.
    pub turn: RwLock<()>,
    /// How it differs from its object.
    pub state: Mutex<FileState>,
}

/// What is written to a file that has no name any more stays in memory: this part of it at most.
const NAMELESS: u64 = 4;

/// How far a write came.
enum Written {
    /// It is done.
    Done,
    /// There are too many changes in memory already that cannot leave in order.
    Stuck,
    /// The file must be committed before.
    NotYet,
}

/// How a file differs from its object.
#[derive(Debug)]
pub struct FileState {
    /// The object that is changed; `None`: there must be none.
    pub base: Option<ETag>,
    /// Its size, bytes.
    pub base_size: u64,
    /// The bytes that differ.
    pub change: Change,
    /// Parts that have left.
    pub stream: Option<Arc<Stream>>,
    /// Attributes differ.
    pub about_changed: bool,
    /// The object is being copied onto itself: what the store has may be newer than `base`, and is ours.
    pub copying: bool,
    /// The time of change was set by somebody, so it must not be that of the store.
    pub mtime_set: bool,
    /// What the last commit was to make, where nobody has heard whether it has.
    pub tried: Option<Arc<Tried>>,
    /// Somebody else has changed the object: nothing of this can be committed any more.
    pub lost: Option<Error>,
    /// It has no name any more: changes are nobody's.
    pub gone: bool,
    /// Somebody who wrote it was torn away: what is not committed is dropped.
    pub abandoned: bool,
    /// How often somebody else has replaced the object while it was open here: handles of the one before read and write no more.
    pub replaced: u64,
}

impl FileState {
    /// Whether parts have failed that nobody has tried again, or the upload may be over.
    fn has_failed(&self) -> bool {
        let failed = |stream: &Arc<Stream>| stream.has_failed() || self.may_be_over(stream);
        !self.gone && self.lost.is_none() && self.stream.as_ref().is_some_and(failed)
    }

    /// Whether an upload may be an object by now, so that no part can be added.
    fn may_be_over(&self, stream: &Arc<Stream>) -> bool {
        self.tried.as_ref().is_some_and(|tried| tried.is_of(stream))
    }

    /// Whether something is to be committed.
    pub fn is_dirty(&self) -> bool {
        !self.gone && (self.base.is_none() || self.about_changed || !self.change.is_none(self.base_size))
    }
}

impl File {
    /// A file whose object is in this state, unchanged.
    pub fn new(ino: Ino, base: Option<ETag>, size: u64) -> File {
        let state = FileState {
            base,
            base_size: size,
            change: Change::none(size),
            stream: None,
            about_changed: false,
            copying: false,
            mtime_set: false,
            tried: None,
            lost: None,
            gone: false,
            abandoned: false,
            replaced: 0,
        };
        File { ino, turn: RwLock::new(()), state: Mutex::new(state) }
    }
}

impl<S: Store> Core<S> {
    /// Writes to an open file. As [`fs::FileSystem::write`].
    pub async fn write(self: &Arc<Self>, open: &Open, offset: u64, from: &[u8]) -> Result<usize> {
        let file = &open.file;
        let len = from.len() as u64;
        if len == 0 {
            return Ok(0);
        }
        loop {
            if file.state.lock().has_failed() {
                // Its bytes are kept, so who writes on is to know: he would fill the memory.
                let (core, file) = (self.clone(), file.clone());
                self.spawn(async move { core.send_again(&file).await }).await?;
            }
            self.writes.take(file.ino.0, len, &self.runtime).await;
            let memory = self.writes.held(len);
            let turn = file.turn.read().await;
            let written = self.put_bytes(open, offset, from, memory)?;
            drop(turn);
            match written {
                Written::Done => return Ok(from.len()),
                Written::Stuck => {
                    let (core, file) = (self.clone(), file.clone());
                    self.spawn(async move { core.relieve(&file).await }).await?;
                }
                // What has left cannot be changed before it is an object.
                Written::NotYet => self.spawn_commit(file).await?,
            }
        }
    }

    /// The part of a write that waits for nothing. The caller holds the turn.
    fn put_bytes(self: &Arc<Self>, open: &Open, offset: u64, from: &[u8], memory: Held) -> Result<Written> {
        let file = &open.file;
        {
            let mut state = file.state.lock();
            if let Some(e) = &state.lost {
                return Err(e.clone());
            }
            if state.replaced != open.replaced {
                return Err(Error::Stale);
            }
            let append = open.flags.contains(OpenFlags::APPEND);
            let offset = if append { state.change.size() } else { offset };
            if offset.checked_add(from.len() as u64).is_none_or(|end| end > FILE_MAX) {
                return Err(Error::TooLarge);
            }
            if offset < state.change.sent() {
                // A removed file is never made: what has left of it is gone.
                return if state.gone { Err(Error::Stale) } else { Ok(Written::NotYet) };
            }
            if state.gone && !self.may_keep(state.change.bytes() + from.len() as u64) {
                return Err(Error::NoSpace);
            }
            let part = self.part_size(&state);
            // Before it is written: who hears of an error has changed nothing.
            if !state.gone && state.change.ready() < part && state.change.bytes() >= PARTS_KEPT * part {
                return Ok(Written::Stuck);
            }
            memory.keep(state.change.write(offset, from, part as usize));
            state.mtime_set = false;
        }
        self.touched(open)?;
        self.send_ready(file)?;
        Ok(Written::Done)
    }

    /// Whether a file that has no name any more may have so many bytes: they never leave, so it gets a share of the memory, and nothing beyond the limit.
    fn may_keep(&self, bytes: u64) -> bool {
        bytes <= self.options.write_memory / NAMELESS && self.writes.used().0 <= self.options.write_memory
    }

    /// Size of the next part of a file's stream.
    pub fn part_size(&self, state: &FileState) -> u64 {
        let sent = state.stream.as_ref().map_or(0, |stream| stream.len());
        plan::part_size(sent as u16 + 1, self.options.part_size, self.store.abilities())
    }

    /// Sends the whole parts that are ready.
    fn send_ready(self: &Arc<Self>, file: &File) -> Result<()> {
        loop {
            let (mtime, key_is_needed, copies) = {
                let state = file.state.lock();
                let over = state.stream.as_ref().is_some_and(|stream| state.may_be_over(stream));
                if state.gone || over || state.change.ready() < self.part_size(&state) {
                    return Ok(());
                }
                (state.mtime_set, state.stream.is_none(), state.change.keeps())
            };
            // The tree is looked at without the state, see the order of locks.
            let new = match key_is_needed {
                true => Some(Arc::new(self.stream_of(file.ino, mtime, copies)?)),
                false => None,
            };
            let mut state = file.state.lock();
            if let (None, Some(new)) = (&state.stream, new) {
                state.stream = Some(new);
            }
            let (Some(stream), part) = (state.stream.clone(), self.part_size(&state)) else { continue };
            if stream.len() + 1 >= usize::from(self.store.abilities().parts_most) {
                return Err(Error::TooLarge);
            }
            if state.change.ready() >= part {
                let (bytes, shrank) = state.change.send(part as usize);
                self.writes.held(shrank).keep(part);
                stream.send(self, bytes);
                self.writes.filled(file.ino.0);
            }
        }
    }

    /// A new upload of a file. It says no time of change, because that is not over: who sees the object sees what the store tells of it.
    /// `copies`: some of its parts may be copies.
    pub fn stream_of(&self, ino: Ino, mtime: bool, copies: bool) -> Result<Stream> {
        let tree = self.tree.lock();
        let about = tree.get(ino)?.about.as_deref().ok_or(Error::Stale)?;
        Stream::new(tree.key(ino)?, about.clone(), mtime, copies)
    }

    /// Time and set-id bits after a write.
    fn touched(&self, open: &Open) -> Result<()> {
        let now = Time::now();
        let mut tree = self.tree.lock();
        let inode = tree.get_mut(open.file.ino)?;
        inode.touch(now);
        let about = inode.about.as_deref_mut().ok_or(Error::Stale)?;
        about.attrs.perm = perm::after_write(open.writer, about.attrs.perm);
        Ok(())
    }

    /// Makes room for a file whose changes do not leave by themselves: where they stand behind an untouched part of the object, that is copied and
    /// they can leave; else they are committed.
    async fn relieve(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        let copied = {
            let _names = self.namespace.read().await;
            let _turn = file.turn.write().await;
            self.copy_ahead(file).await?
        };
        if copied { Ok(()) } else { self.commit(file).await }
    }

    /// Begins an upload with copies of the untouched bytes in front of the first change. False where that cannot be done.
    async fn copy_ahead(self: &Arc<Self>, file: &Arc<File>) -> Result<bool> {
        let mtime = file.state.lock().mtime_set;
        let stream = Arc::new(self.stream_of(file.ino, mtime, true)?);
        {
            let mut state = file.state.lock();
            let abilities = self.store.abilities();
            let places = state.change.places(0..u64::MAX);
            let (old, base) = match (&places[..], &state.base) {
                ([(old, Place::Old), (_, Place::Memory)], Some(base)) if state.stream.is_none() => {
                    (old.clone(), base.clone())
                }
                _ => return Ok(false),
            };
            if !abilities.part_copy || old.end < abilities.part_min || state.gone || state.lost.is_some() {
                return Ok(false);
            }
            if state.tried.is_some() {
                // The commit finds out which object there is.
                return Ok(false);
            }
            let Some(pieces) = plan::copies(old.end, self.options.part_size, abilities) else {
                return Ok(false);
            };
            for piece in pieces {
                assert!(piece.source == Source::Copied, "all of it is untouched");
                stream.copy(self, stream.key.clone(), piece.range, base.clone());
            }
            state.change.forget(old.end);
            state.stream = Some(stream);
        }
        self.send_ready(file)?;
        Ok(true)
    }

    /// Sets the size of an open file. The caller holds the turn alone, and has permission.
    pub async fn truncate(self: &Arc<Self>, file: &Arc<File>, size: u64) -> Result<()> {
        if size > FILE_MAX {
            return Err(Error::TooLarge);
        }
        let within_sent = {
            let mut state = file.state.lock();
            if let Some(e) = &state.lost {
                return Err(e.clone());
            }
            if size == 0 {
                // All that has left is wanted no more.
                if let Some(stream) = state.stream.take() {
                    stream.abandon(self);
                }
                self.writes.give(state.change.bytes());
                state.change = Change::none(0);
                return Ok(());
            }
            let within_sent = size < state.change.sent();
            if within_sent && state.gone {
                // A removed file is never made: what has left of it is gone.
                return Err(Error::Stale);
            }
            within_sent
        };
        if within_sent {
            self.commit_alone(file).await?;
        }
        let mut state = file.state.lock();
        self.writes.give(state.change.truncate(size));
        state.mtime_set = false;
        Ok(())
    }
}
