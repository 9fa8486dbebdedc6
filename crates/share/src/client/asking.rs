//! What several calls have in common: notes of the clock, requests for locks, and keeping what was answered.

use super::Remote;
use super::call::Answer;
use super::files::OpenFile;
use super::kept::{Kept, Since};
use super::leases::Read;
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
    pub fn of(&self, answer: &Answer<'_>) -> Option<Since> {
        (answer.session() == self.session).then_some(Since { clock: self.clock, posts: answer.posts })
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

/// A request to open a file, of a certain generation or any.
pub(super) fn open_request(ino: Ino, generation: Option<u32>, flags: OpenFlags) -> Request {
    let mut r = request(Op::Open, ino.0);
    r.flags = flags.bits().into();
    if let Some(generation) = generation {
        (r.mode, r.other) = (1.into(), (generation as u64).into());
    }
    r
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

/// A request for a lock that keeps `owner` from getting this one.
pub(super) fn test_request(handle: Handle, owner: LockOwner, lock: RecordLock) -> Request {
    let set = lock_request(handle, owner, Ok(lock), false);
    Request { op: (Op::Getlk as u16).into(), ..set }
}

/// The lock that was found.
pub(super) fn found(answer: &Answer<'_>) -> Result<Option<RecordLock>> {
    if answer.len() == 0 {
        return Ok(None);
    }
    let bytes: [u8; 32] = answer.bytes().try_into().map_err(|_| GARBLED)?;
    let n = |i: usize| u64::from_le_bytes(std::array::from_fn(|b| bytes[8 * i + b]));
    let kind = if n(2) == 1 { LockKind::Exclusive } else { LockKind::Shared };
    Ok(Some(RecordLock { start: n(0), end: n(1), kind, pid: n(3) as u32 }))
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
        answer.of().was_opened(flags);
        let file = OpenFile::new(inode, kind, flags, Handle(answer.value), answer.session());
        // What is lent was just made.
        if answer.lent != 0 {
            self.link.resizes.just_made(inode.0, answer.lent);
        }
        self.link.opened(OpenFile { lent: answer.lent, ..file })
    }

    /// Opens a file, without a message if that can be done; of a certain generation, or any.
    pub(super) async fn open_inode(
        &self,
        ino: Ino,
        generation: Option<u32>,
        flags: OpenFlags,
    ) -> Result<Handle> {
        if let Some(handle) = self.open_here(ino, generation, flags) {
            return Ok(handle);
        }
        let answer = self.call(open_request(ino, generation, flags)).await?;
        Ok(self.opened(&answer, (ino, answer.noted as u32), FileType::Regular, flags))
    }

    /// Reads without a message, if that can be done.
    pub(super) fn read_here(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Option<usize> {
        let session = self.now();
        match session.leases.read(session, handle, offset, to) {
            Read::Done => return Some(to.len()),
            Read::Ask => return None,
            Read::Elsewhere => {}
        }
        let look = |file: &OpenFile| {
            let may = file.session == session.serial && !file.gone && file.through_arena;
            may.then_some((file.ino, file.noatime))
        };
        let (ino, noatime) = self.link.look(handle, look)??;
        // Another handle of this client may write there without a message; the manager knows nothing of this one if it was opened so, too.
        let is_elsewhere = || session.kept.leased(ino).is_some_and(|through| through != handle);
        if is_elsewhere() {
            // It may have been taken back, which only who writes there notices by himself.
            session.leases.look(session);
            if is_elsewhere() {
                return None;
            }
        }
        session.read_here(ino, noatime, offset, to)
    }

    /// Asks for a part of a file, once; how many bytes there are, and of how many. `through_arena`: for what it can also be found by without a message the next
    /// time; `again`: also if it is long. `None`: it could not be had in this way.
    pub(super) async fn ask_data(
        &self,
        (handle, file): (Handle, Option<OpenFile>),
        (through_arena, again): (bool, bool),
        offset: u64,
        to: &mut [u8],
    ) -> Result<Option<(usize, usize)>> {
        let noted = self.note();
        let mut r = request(Op::Read, handle.0);
        let direct = file.is_some_and(|file| file.flags.contains(OpenFlags::DIRECT));
        r.flags = match through_arena {
            true => (wire::THROUGH_ARENA | (again as u32 * wire::AGAIN)).into(),
            false => (direct as u32 * wire::DIRECT).into(),
        };
        (r.offset, r.len) = (offset.into(), (to.len() as u64).into());
        // Most files are read once: for that the manager need not open them.
        let first = file.filter(|file| file.held && !file.asked && through_arena);
        let answer = match first {
            None => self.call(r).await?,
            Some(file) => {
                self.link.change(handle, |file| file.asked = true);
                let mut once = Request { object: file.ino.0.into(), ..r };
                once.flags = (r.flags.get() | wire::OF_INODE).into();
                once.other = (file.generation as u64).into();
                match self.call(once).await {
                    // The manager was another one in the end.
                    Err(Error::Stale) => self.call(r).await?,
                    answer => answer?,
                }
            }
        };
        let attr = if answer.value == 1 { Some(answer.attr()?) } else { None };
        let clock = noted.of(&answer);
        match attr.as_ref().zip(clock) {
            Some((attr, clock)) => answer.kept().learn_attr(clock, attr),
            None => drop(file.filter(|f| !f.noatime).map(|f| self.kept().was_read(f.ino))),
        }
        if answer.pages == 0 {
            let asked = to.len().min(answer.room);
            return Ok(Some((answer.copy_from(attr.map_or(0, |_| ATTR), &mut to[..asked]), asked)));
        }
        let (Some(attr), Some(clock)) = (attr, clock) else { return Ok(None) };
        let session = answer.of();
        let len = attr.size.saturating_sub(offset).min(to.len() as u64) as usize;
        let copied = session.copy_noted((attr.ino, attr.generation), clock.clock, offset, &mut to[..len]);
        Ok(copied.filter(|&n| n == len).map(|n| (n, to.len())))
    }

    /// Creates a file that is known to be there, which is to open it, if that can be done without a message.
    pub(super) fn open_known(
        &self,
        parent: Ino,
        name: &[u8],
        flags: OpenFlags,
    ) -> Option<Result<(Attr, Handle)>> {
        if flags.intersects(OpenFlags::EXCLUSIVE | OpenFlags::TRUNCATE) {
            return None;
        }
        let session = self.now();
        let ino = session.kept.name(parent, name).filter(|&ino| session.kept.leased(ino).is_none())?;
        let attr = session.kept.attr(ino).filter(|attr| attr.kind == FileType::Regular)?;
        // Should the name be taken away meanwhile the attributes hold no longer.
        let (generation, part) = session.hold(ino, Some(attr.generation), flags)?;
        Some(Ok((attr, self.held((ino, generation), part, flags, session.serial))))
    }

    /// A file is open without a message, by that part of the holds.
    pub(super) fn held(&self, inode: (Ino, u32), part: usize, flags: OpenFlags, serial: u64) -> Handle {
        let file = OpenFile::new(inode, FileType::Regular, flags, Handle(0), serial);
        self.link.opened(OpenFile { held: true, hold: part, ..file })
    }

    /// Keeps the attributes that a change left behind.
    pub(super) fn learn_left(&self, answer: &Answer<'_>) {
        if answer.noted != 0
            && let Ok(attr) = answer.attr()
        {
            answer.kept().learn_attr(Since { clock: answer.noted, posts: answer.posts }, &attr);
        }
    }

    /// Asks for the attributes of what a name leads to, and keeps both.
    pub(super) async fn ask_name(
        &self,
        request: Request,
        parent: Ino,
        name: &[u8],
        second: &[u8],
    ) -> Result<(Attr, u64)> {
        let (noted, posts) = (self.note(), self.kept().posts());
        let answer = self.call_with(request, cut(name), second).await;
        if let Err(Error::NotFound) = answer {
            self.learn_missing((noted, posts), parent, name);
        }
        let answer = answer?;
        let attr = answer.attr()?;
        if let Some(clock) = noted.of(&answer) {
            answer.kept().learn(clock, parent, name, &attr);
        }
        Ok((attr, answer.value))
    }

    /// Asks for what a path leads to, whose last name and its directory are `last` if the rest is known, and keeps what there is on the way.
    pub(super) async fn ask_path(&self, base: Ino, path: &[u8], last: Option<(Ino, &[u8])>) -> Result<Attr> {
        // As far as it is known it need not be asked for; and what is not there then is the last name.
        let (base, path) = last.unwrap_or((base, path));
        let (noted, posts) = (self.note(), self.kept().posts());
        let ahead = self.look_ahead(base, path);
        let answer = self.call_with(request(Op::Walk, base.0), path, &ahead).await;
        if let (Err(Error::NotFound), Some((dir, name))) = (&answer, last) {
            self.learn_missing((noted, posts), dir, name);
        }
        let answer = answer?;
        let mut attrs = wire::read_attrs(&answer.bytes())?;
        let names = path.split(|&b| b == b'/').filter(|n| !n.is_empty());
        let more = attrs.split_off(names.clone().count().clamp(1, attrs.len().max(1)).min(attrs.len()));
        let last = *attrs.last().ok_or(GARBLED)?;
        // A long path is answered with its end alone.
        if let Some(clock) = noted.of(&answer).filter(|_| names.clone().count() == attrs.len()) {
            let mut at = base;
            let mut dir = base;
            for (name, attr) in names.zip(&attrs) {
                answer.kept().learn(clock, at, name, attr);
                (dir, at) = (at, attr.ino);
            }
            for (name, attr) in ahead.split(|&b| b == b'/').zip(&more) {
                answer.kept().learn(clock, dir, name, attr);
            }
        }
        Ok(last)
    }

    /// Keeps that there is no such name: what a call was answered with that was made after the clock and the posted changes were noted.
    pub(super) fn learn_missing(&self, (noted, posts): (Noted, u64), parent: Ino, name: &[u8]) {
        let session = self.now();
        // An answer that is an error does not say with which session it came: the one of the note, if that is the one of now.
        if session.serial == noted.session {
            session.kept.learn_name(Since { clock: noted.clock, posts }, parent, name, None);
        }
    }

    /// Keeps what a name was made to lead to.
    pub(super) fn learn_made(&self, answer: &Answer<'_>, parent: Ino, name: &[u8], attr: &Attr) {
        if answer.noted != 0 {
            let since = Since { clock: answer.noted, posts: answer.posts };
            answer.kept().learn(since, parent, name, attr);
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
        let naming = self.naming(&[(parent, name)]);
        let answer = self.call_with(request, cut(name), second).await;
        naming.over();
        let answer = answer?;
        let attr = answer.attr()?;
        self.learn_made(&answer, parent, name, &attr);
        Ok(attr)
    }

    /// Asks for attributes, and keeps them; and how long the file is behind a handle, if only this client comes to it.
    pub(super) async fn ask_attr(&self, ino: Ino, handle: Option<Handle>) -> Result<Attr> {
        let mut r = request(Op::Getattr, ino.0);
        if let Some(handle) = handle {
            (r.flags, r.other) = (1.into(), handle.0.into());
        }
        let noted = self.note();
        let before = handle.and_then(|handle| self.inode(handle)).and_then(|ino| self.link.resizes.now(ino));
        let answer = self.call(r).await?;
        let attr = answer.attr()?;
        if let Some(clock) = noted.of(&answer) {
            answer.kept().learn_attr(clock, &attr);
        }
        if let Some(file) = handle.and_then(|handle| self.file(handle)).filter(|file| file.lent != 0) {
            self.own_by(&file, file.lent, (before, 0), &answer);
        }
        Ok(attr)
    }
}

/// A name or target, of which not more is sent than is too long anyway: the engine says so when it comes to it.
pub(super) fn cut(name: &[u8]) -> &[u8] {
    &name[..name.len().min(format::limits::PATH_MAX + 1)]
}
