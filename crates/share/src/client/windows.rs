//! Open files, and pages that this client reads without a message: windows of files, mapped for reading (see `format::shared` and the manager's side,
//! `server::windows`).

use super::Remote;
use super::kept::Kept;
use crate::memory::{self, Mapping};
use crate::socket;
use crate::wire::{Op, request};
use foldhash::fast::FixedState;
use format::shared::{DATA_MAX, MAGIC, WINDOW_BYTES, WINDOW_DATA_AT, WINDOW_PAGES, WindowMessage};
use fs::{Attr, FileType, Handle, Ino, OpenFlags, Time};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use zerocopy::FromBytes;

const PAGE: u64 = 4096;
/// Most windows that a client has mapped. With more it begins anew.
const MAPPED_MAX: usize = 256;
/// Reads of so many bytes are messages: their cost is in the copy.
const LONG: usize = 32 << 10;
const _: () = assert!(LONG <= DATA_MAX);
/// Messages for reads of one open file before a window is asked for.
pub(super) const READS: u8 = 2;

/// The end of a file, from which reads bring nothing and change nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    at: u64,
    /// The clock from before the read that met it.
    noted: u64,
    /// Until then, in seconds, reads do not move the time of access.
    until: i64,
}

impl End {
    /// A read ended at `at`, as asked for after `noted`. Nothing if another one might move the time of access: that of the read that was made is
    /// behind those of changes, unless they were just now, or are said to be in the future.
    pub fn met(at: u64, noted: u64, noatime: bool, before: Option<Attr>) -> Option<End> {
        const HOUR: i64 = 3600;
        let now = Time::now().sec;
        let settled = before.is_some_and(|a| a.mtime.sec.max(a.ctime.sec) < now - 1);
        (noatime || settled).then_some(End { at, noted, until: if noatime { i64::MAX } else { now + HOUR } })
    }
}

/// What a client remembers of an open file.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenFile {
    pub ino: Ino,
    pub generation: u32,
    pub kind: FileType,
    pub flags: OpenFlags,
    /// The manager's number of it, in the session with this serial.
    pub remote: Handle,
    pub session: u64,
    /// It could not be taken along to that session.
    pub gone: bool,
    /// Something was written that is not durable yet.
    pub unsynced: bool,
    /// Syncs under way, and whether something was written since the first of them began.
    pub syncing: u32,
    pub rewritten: bool,
    /// Something that was written is gone, and no sync has said so yet.
    pub lost: bool,
    /// Reads may come out of windows.
    windows: bool,
    /// Reads that were messages, up to [`READS`].
    pub reads: u8,
    /// Where a read met the end of the file.
    pub end: Option<End>,
    /// Reads do not move the time of access.
    pub noatime: bool,
    /// It was asked for a lock.
    pub locks: bool,
}

impl OpenFile {
    pub fn new(
        (ino, generation): (Ino, u32),
        kind: FileType,
        flags: OpenFlags,
        remote: Handle,
        session: u64,
    ) -> OpenFile {
        let windows = flags.contains(OpenFlags::READ) && !flags.contains(OpenFlags::DIRECT);
        let noatime = flags.contains(OpenFlags::NOATIME);
        let (gone, unsynced, lost, locks) = (false, false, false, false);
        OpenFile {
            ino,
            generation,
            kind,
            flags,
            remote,
            session,
            gone,
            unsynced,
            syncing: 0,
            rewritten: false,
            lost,
            windows,
            reads: 0,
            end: None,
            noatime,
            locks,
        }
    }

    /// Whether a read of so many bytes should be answered through a window the next time. A window costs as much as some messages:
    /// a file that is read once as a whole gets none.
    pub fn wants_window(&self, len: usize) -> bool {
        self.windows && len < LONG && self.reads >= READS
    }
}

/// Inode, its generation, and the place in the file.
type Place = (Ino, u32, u64);

#[derive(Debug)]
struct Mapped {
    number: u64,
    memory: Mapping,
}

/// The windows that are mapped.
#[derive(Debug, Default)]
pub(super) struct Windows {
    mapped: RwLock<HashMap<Place, Arc<Mapped>, FixedState>>,
    /// One thread at a time takes a descriptor from the socket.
    receiving: Mutex<()>,
}

impl Mapped {
    /// Copies a part of one page. False when the page is not there, or changed meanwhile.
    fn copy(&self, page: usize, within: usize, to: &mut [u8]) -> bool {
        let head = self.memory.long(8 * page);
        let before = head.load(Ordering::Acquire);
        if before & 1 == 0 {
            return false;
        }
        self.memory.copy_out(WINDOW_DATA_AT + page * PAGE as usize + within, to);
        fence(Ordering::Acquire);
        head.load(Ordering::Relaxed) == before
    }
}

impl Windows {
    /// Reads, if everything that is needed is here and holds.
    pub fn read(&self, kept: &Kept, file: OpenFile, offset: u64, to: &mut [u8]) -> Option<usize> {
        if !file.windows {
            return None;
        }
        if let Some(end) = file.end
            && offset >= end.at
            && kept.alive()
            && kept.unchanged(file.ino, end.noted)
            && Time::now().sec < end.until
        {
            return Some(0);
        }
        if to.len() >= LONG {
            return None;
        }
        let (attr, noted) = kept.noted_attr(file.ino)?;
        let len = attr.size.saturating_sub(offset).min(to.len() as u64) as usize;
        if len == 0 || (!file.noatime && attr.moves_atime(Time::now())) {
            return None;
        }
        let mapped = self.mapped.read();
        let (mut done, mut current) = (0, None);
        while done < len {
            let at = offset + done as u64;
            let (place, page) = (at / PAGE / WINDOW_PAGES as u64, (at / PAGE) as usize % WINDOW_PAGES);
            let window = match current {
                Some((known, window)) if known == place => window,
                _ => mapped.get(&(file.ino, attr.generation, place))?,
            };
            current = Some((place, window));
            let within = (at % PAGE) as usize;
            let n = (PAGE as usize - within).min(len - done);
            if !window.copy(page, within, &mut to[done..done + n]) {
                return None;
            }
            done += n;
        }
        // The file had this size and these bytes at one moment: now.
        kept.unchanged(file.ino, noted).then_some(len)
    }

    /// Drops everything.
    pub fn forget(&self) {
        self.mapped.write().clear();
    }

    fn has(&self, place: Place, number: u64) -> bool {
        self.mapped.read().get(&place).is_some_and(|w| w.number == number)
    }

    /// Maps the window whose descriptor is the next message on the socket.
    fn receive(&self, socket: &OwnedFd) -> Option<()> {
        let _one = self.receiving.lock();
        let mut bytes = [0; size_of::<WindowMessage>()];
        let (n, fds) = socket::receive_now(socket, &mut bytes).ok()?;
        let message = WindowMessage::read_from_bytes(&bytes[..n]).ok().filter(|m| m.magic.get() == MAGIC)?;
        let fd = fds.first()?;
        memory::check_sealed(fd, WINDOW_BYTES).ok()?;
        let memory = Mapping::read_only(fd, WINDOW_BYTES).ok()?;
        let place = (Ino(message.ino.get()), message.generation.get(), message.place.get() as u64);
        let mut mapped = self.mapped.write();
        if mapped.len() >= MAPPED_MAX {
            mapped.clear();
        }
        mapped.insert(place, Arc::new(Mapped { number: message.number.get(), memory }));
        Some(())
    }
}

impl Remote {
    /// The page at `offset` stands in window `number` now: maps it, unless that is done. What goes wrong costs messages only.
    pub(super) async fn learn_window(&self, handle: Handle, attr: &Attr, offset: u64, number: u64) {
        let session = self.now();
        let place = offset / PAGE / WINDOW_PAGES as u64;
        if number == 0 || session.windows.has((attr.ino, attr.generation, place), number) {
            return;
        }
        let mut r = request(Op::Window, handle.0);
        r.offset = offset.into();
        // The answer may be that of a later session; then this one's socket has nothing.
        if self.call(r).await.is_ok_and(|answer| answer.value != 0) {
            session.windows.receive(&session.socket);
        }
    }
}
