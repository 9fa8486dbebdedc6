//! What several calls have in common: notes of the clock, requests for locks, and keeping what was answered.

use super::Remote;
use super::call::Answer;
use super::kept::Kept;
use super::windows::OpenFile;
use crate::wire::{self, GARBLED, Op, request};
use format::shared::{AttrImage, Request};
use fs::*;
use zerocopy::FromBytes;

/// Bytes of attributes.
pub(super) const ATTR: usize = size_of::<AttrImage>();

/// The clock of the changes as one session showed it.
#[derive(Clone, Copy)]
pub(super) struct Noted {
    pub session: u64,
    clock: u64,
}

impl Noted {
    /// What can be kept of an answer holds from this clock on; nothing when it came with another session.
    pub fn of(&self, answer: &Answer<'_>) -> Option<u64> {
        (answer.session() == self.session).then_some(self.clock)
    }
}

impl Answer<'_> {
    pub(super) fn attr(&self) -> Result<Attr> {
        let mut bytes = [0; ATTR];
        if self.copy_to(&mut bytes) != bytes.len() {
            return Err(GARBLED);
        }
        wire::attr(&AttrImage::read_from_bytes(&bytes).map_err(|_| GARBLED)?)
    }
}

pub(super) fn kind_number(kind: Option<LockKind>) -> u32 {
    match kind {
        Some(LockKind::Shared) => 0,
        Some(LockKind::Exclusive) => 1,
        None => 2,
    }
}

/// A request for a record lock, or with `Err` for its release.
pub(super) fn lock_request(
    handle: Handle,
    owner: LockOwner,
    lock: std::result::Result<RecordLock, (u64, u64)>,
    wait: bool,
) -> Request {
    let mut r = request(Op::Setlk, handle.0);
    let (start, end, kind, pid) = match lock {
        Ok(lock) => (lock.start, lock.end, Some(lock.kind), lock.pid),
        Err((start, end)) => (start, end, None, 0),
    };
    (r.extra, r.offset, r.len) = (owner.0.into(), start.into(), end.into());
    (r.mode, r.more) = (kind_number(kind).into(), (pid as u64).into());
    r.flags = (wait as u32).into();
    r
}

/// A request for a lock of a whole file, or with `None` for its release.
pub(super) fn flock_request(handle: Handle, kind: Option<LockKind>, wait: bool) -> Request {
    let mut r = request(Op::Flock, handle.0);
    (r.mode, r.flags) = (kind_number(kind).into(), (wait as u32).into());
    r
}

impl Remote {
    pub(super) fn kept(&self) -> &Kept {
        &self.now().kept
    }

    /// To be taken before a call whose answer is to be kept.
    pub(super) fn note(&self) -> Noted {
        let session = self.now();
        Noted { session: session.serial, clock: session.kept.now() }
    }

    /// The inode behind a handle.
    pub(super) fn inode(&self, handle: Handle) -> Option<Ino> {
        self.file(handle).map(|file| file.ino)
    }

    /// What is behind a handle, if this session has it open.
    pub(super) fn file(&self, handle: Handle) -> Option<OpenFile> {
        self.link.file(handle).filter(|file| file.session == self.now().serial && !file.gone)
    }

    /// An inode was opened; `generation` says which one with its number. Answers are of the session with which they came.
    pub(super) fn opened(
        &self,
        answer: &Answer<'_>,
        inode: (Ino, u32),
        kind: FileType,
        flags: OpenFlags,
    ) -> Handle {
        self.link.opened(OpenFile::new(inode, kind, flags, Handle(answer.value), answer.session()))
    }

    /// Reads without a message, if that can be done.
    pub(super) fn read_here(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Option<usize> {
        let session = self.now();
        let file = self.link.file(handle).filter(|file| file.session == session.serial && !file.gone)?;
        session.windows.read(&session.kept, file, offset, to)
    }

    /// Asks for the attributes of what a name leads to, and keeps both.
    pub(super) async fn ask_name(
        &self,
        request: Request,
        parent: Ino,
        name: &[u8],
        second: &[u8],
    ) -> Result<(Attr, u64)> {
        let noted = self.note();
        let answer = self.call_with(request, cut(name), second).await?;
        let attr = answer.attr()?;
        if let Some(clock) = noted.of(&answer) {
            answer.kept().learn(clock, parent, name, &attr);
        }
        Ok((attr, answer.value))
    }

    /// Keeps what a name was made to lead to.
    pub(super) fn learn_made(&self, answer: &Answer<'_>, parent: Ino, name: &[u8], attr: &Attr) {
        if answer.noted != 0 {
            answer.kept().learn(answer.noted, parent, name, attr);
        }
    }

    /// Makes something with a name.
    pub(super) async fn make(
        &self,
        request: Request,
        parent: Ino,
        name: &[u8],
        second: &[u8],
    ) -> Result<Attr> {
        let answer = self.call_with(request, cut(name), second).await?;
        let attr = answer.attr()?;
        self.learn_made(&answer, parent, name, &attr);
        Ok(attr)
    }

    /// Asks for attributes, and keeps them.
    pub(super) async fn ask_attr(&self, request: Request, second: &[u8]) -> Result<(Attr, u64)> {
        let noted = self.note();
        let answer = self.call_with(request, b"", second).await?;
        let attr = answer.attr()?;
        if let Some(clock) = noted.of(&answer) {
            answer.kept().learn_attr(clock, &attr);
        }
        Ok((attr, answer.value))
    }
}

/// A name or target, of which not more is sent than is too long anyway: the engine says so when it comes to it.
pub(super) fn cut(name: &[u8]) -> &[u8] {
    &name[..name.len().min(format::limits::PATH_MAX + 1)]
}
