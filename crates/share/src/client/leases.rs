//! Overwriting without a message: windows of files that this client has under a write lease (see `format::shared` and the manager's side,
//! `server::leases`).
//!
//! A window is asked for when a few writes of whole pages that were there before went to one place of a file as messages. Refusals, and windows that
//! were of little use, make that rarer. What cannot be done here is done by a message, also when it was done here in part and then the window turned out to
//! be taken back: the same bytes go to the same place once more.
//!
//! A place in the session's memory is used for one window after another. Threads that write hold its lock; who asks for another window there first takes the
//! place out of use, with nobody holding it. Until the manager has said that it took what stood there, that part of the file is read by messages.
//!
//! What this client keeps of a file that it has windows of: pages for reading hold for what is in no window, as the manager takes them out when it writes what
//! was in one; the times among the attributes do not hold (`Kept::is_leased`).

use super::records::{Records, Words};
use super::{Remote, Session};
use crate::leased::{Leased, PAGE, WINDOW};
use crate::lock::{self, Apart, Mutex, RwLock};
use crate::wire::{Op, request};
use foldhash::fast::FixedState;
use format::shared::{DATA_MAX, LEASE_WINDOWS, WINDOW_PAGES};
use fs::{Attr, FileSystem, FileType, Handle, Ino, OpenFlags};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

const PAGE64: u64 = PAGE as u64;
/// Writes to one place of a file before a window is asked for there; and the most that it can become.
const NEED: u32 = 4;
const NEED_MAX: u32 = 1 << 9;
/// Writes through a window that make up for asking for it.
const WORTH: u32 = 64;
/// Places of one file at which writes are counted.
const PLACES: usize = 8;

/// What stands in a place of the memory.
#[derive(Clone, Copy, Default)]
struct Held {
    /// Of the grant; 0: nothing that may be used (any more).
    number: u64,
    handle: u64,
    ino: u64,
    place: u64,
    reads: bool,
    noatime: bool,
}

/// An open file that is written.
struct Writing {
    /// At least so many bytes were there before, or have been written since.
    size: u64,
    need: u32,
    places: SmallVec<[(u64, u32); PLACES]>,
}

/// A place in the memory. Threads write through different ones at the same time.
#[derive(Default)]
struct Slot {
    held: RwLock<Held>,
    /// Writes through the window; and of these, those that count no longer when a place is looked for.
    writes: AtomicU32,
    past: AtomicU32,
}

/// Which place has a window: handle | place in the file | number, in words 1 to 3.
#[derive(Default)]
struct Index {
    records: Records<8>,
    /// Windows that are in use.
    count: AtomicUsize,
}

impl Index {
    fn hash(handle: Handle, place: u64) -> u64 {
        const HASHER: FixedState = FixedState::with_seed(0x6c65_6173);
        HASHER.hash_one((handle.0, place))
    }

    fn is(handle: Handle, place: u64) -> impl Fn(&Words<'_, 8>) -> bool {
        move |record| (record.get(1), record.get(2)) == (handle.0, place)
    }

    #[inline]
    fn get(&self, handle: Handle, place: u64) -> Option<usize> {
        let mut slot = 0;
        let found = self.records.find(Self::hash(handle, place), |record| {
            slot = record.get(3);
            Self::is(handle, place)(record)
        });
        found.then_some(slot as usize)
    }

    fn insert(&self, handle: Handle, place: u64, slot: usize) {
        let record = [0, handle.0, place, slot as u64, 0, 0, 0, 0];
        let mut writer = self.records.write();
        writer.put(Self::hash(handle, place), Self::is(handle, place), |_| true, &record);
        self.count.store(writer.len(), Ordering::Relaxed);
    }

    /// Forgets it, if that is where it stands.
    fn remove(&self, handle: Handle, place: u64, slot: usize) {
        let is = |record: &Words<'_, 8>| Self::is(handle, place)(record) && record.get(3) == slot as u64;
        let mut writer = self.records.write();
        writer.remove(Self::hash(handle, place), is);
        self.count.store(writer.len(), Ordering::Relaxed);
    }

    fn clear(&self) {
        self.records.write().clear();
        self.count.store(0, Ordering::Relaxed);
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Leases {
    index: Index,
    slots: [Apart<Slot>; LEASE_WINDOWS],
    /// Places in memory that are being asked for, and for which part of which file: nobody else asks for that meanwhile.
    asking: Mutex<SmallVec<[(usize, Handle, u64); 2]>>,
    /// Held while it is said which files have windows.
    saying: Mutex<()>,
    writing: Mutex<HashMap<Handle, Writing, FixedState>>,
}

impl std::fmt::Debug for Leases {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leases").field("count", &self.index.count).finish_non_exhaustive()
    }
}

/// The parts of a range of one window: page, offset within it, and the part of the range.
fn pages(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> + Clone {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = (offset + done as u64) % WINDOW;
        let (page, within) = ((at / PAGE64) as usize, (at % PAGE64) as usize);
        let n = (PAGE - within).min(len - done);
        done += n;
        (n > 0).then(|| (page, within, done - n..done))
    })
}

/// Whether a read can be answered here.
pub(super) enum Read {
    /// It was.
    Done,
    /// Nothing that it wants is in a window.
    Elsewhere,
    /// Only the manager can tell.
    Ask,
}

/// A place that is being asked for.
struct Asking<'a>(&'a Leases, usize);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.asking.lock().retain(|asked| asked.0 != self.1);
    }
}

impl Leases {
    /// The place in memory of the window that has all of this range; `Err` when windows may have a part of it.
    #[inline]
    fn find(&self, handle: Handle, offset: u64, len: usize) -> Result<Option<usize>, ()> {
        if self.index.is_empty() || len == 0 {
            return Ok(None);
        }
        let (place, last) = (offset / WINDOW, offset.saturating_add(len as u64 - 1) / WINDOW);
        if last != place || len > DATA_MAX {
            return Err(());
        }
        Ok(self.index.get(handle, place))
    }

    /// Whether what stands in a place is the window that was looked for, and was granted still.
    fn is_granted(view: &Leased<'_>, held: &Held, handle: Handle, offset: u64) -> bool {
        held.number != 0
            && (held.handle, held.place) == (handle.0, offset / WINDOW)
            && view.grant().load(Ordering::SeqCst) == held.number
    }

    /// Writes, if that can be done here. When it says no, some of it may be there all the same.
    pub fn write(&self, session: &Session, handle: Handle, offset: u64, from: &[u8]) -> bool {
        let Ok(Some(slot)) = self.find(handle, offset, from.len()) else { return false };
        let held = self.slots[slot].held.read();
        let view = Leased::new(session.region.memory(), slot);
        let parts = pages(offset, from.len());
        let granted = Self::is_granted(&view, &held, handle, offset);
        let done = granted
            && parts.clone().all(|(page, _, part)| view.may_write(page, part.len() == PAGE))
            && parts.clone().all(|(page, within, part)| view.write(page, within, &from[part]));
        // The manager takes the grant back first and then looks for what is dirty; here it is the reverse.
        let granted = granted && Self::is_granted(&view, &held, handle, offset) && !session.is_dead();
        let number = held.number;
        if number != 0 && view.grant().load(Ordering::SeqCst) != number {
            drop(held);
            self.gone(session, slot, number);
        }
        if granted && done {
            lock::count(&self.slots[slot].writes);
        }
        granted && done
    }

    /// Reads, if all of it is here.
    pub fn read(&self, session: &Session, handle: Handle, offset: u64, to: &mut [u8]) -> Read {
        let slot = match self.find(handle, offset, to.len()) {
            Ok(Some(slot)) => slot,
            Ok(None) => return Read::Elsewhere,
            Err(()) => return Read::Ask,
        };
        let held = self.slots[slot].held.read();
        let view = Leased::new(session.region.memory(), slot);
        if !held.reads || !Self::is_granted(&view, &held, handle, offset) {
            return Read::Ask;
        }
        let parts = pages(offset, to.len());
        if parts.clone().all(|(page, ..)| !view.is_there(page)) {
            return Read::Elsewhere;
        }
        if !parts.clone().all(|(page, within, part)| view.copy(page, within, &mut to[part])) {
            return Read::Ask;
        }
        fence(Ordering::SeqCst);
        if !held.noatime && view.read().load(Ordering::Relaxed) == 0 {
            view.read().store(1, Ordering::Relaxed);
        }
        match Self::is_granted(&view, &held, handle, offset) && !session.is_dead() {
            true => Read::Done,
            false => Read::Ask,
        }
    }

    /// The manager has taken a window back.
    fn gone(&self, session: &Session, slot: usize, number: u64) {
        let saying = self.saying.lock();
        let mut held = self.slots[slot].held.write();
        if held.handle == 0 || held.number != number {
            return;
        }
        let was = std::mem::take(&mut *held);
        drop(held);
        let (handle, writes) = (Handle(was.handle), self.slots[slot].writes.load(Ordering::Relaxed));
        self.index.remove(handle, was.place, slot);
        if !self.slots.iter().any(|slot| slot.held.read().ino == was.ino) {
            session.kept.is_leased(Ino(was.ino), None);
        }
        drop(saying);
        if let Some(writing) = self.writing.lock().get_mut(&handle) {
            writing.weigh(writes);
        }
    }

    /// Notices what was taken back.
    pub fn look(&self, session: &Session) {
        for slot in 0..LEASE_WINDOWS {
            let number = self.slots[slot].held.read().number;
            if number != 0
                && Leased::new(session.region.memory(), slot).grant().load(Ordering::SeqCst) != number
            {
                self.gone(session, slot, number);
            }
        }
    }

    /// Whether there is a window of this file.
    pub fn has(&self, handle: Handle) -> bool {
        !self.index.is_empty() && self.slots.iter().any(|slot| slot.held.read().handle == handle.0)
    }

    /// Whether a part of a file touches what a window of it may be written in.
    pub fn touches(&self, session: &Session, handle: Handle, offset: u64, len: usize) -> bool {
        let (first, end) = (offset / PAGE64, offset.saturating_add(len as u64).div_ceil(PAGE64));
        let may_be_written = |slot: usize| {
            let held = *self.slots[slot].held.read();
            let view = Leased::new(session.region.memory(), slot);
            let begin = held.place * WINDOW_PAGES as u64;
            let within = |page: u64| page.saturating_sub(begin).min(WINDOW_PAGES as u64) as usize;
            held.handle == handle.0 && (within(first)..within(end)).any(|page| view.may_write(page, true))
        };
        !self.index.is_empty() && (0..LEASE_WINDOWS).any(may_be_written)
    }

    /// A file is closed, and the manager knows.
    pub fn closed(&self, session: &Session, handle: Handle) {
        if !self.index.is_empty() {
            for slot in 0..LEASE_WINDOWS {
                let held = *self.slots[slot].held.read();
                // Nobody uses a handle that is closed.
                if held.handle == handle.0 {
                    self.gone(session, slot, held.number);
                }
            }
        }
        self.writing.lock().remove(&handle);
    }

    /// Nothing is done here any more.
    pub fn forget(&self) {
        self.slots.iter().for_each(|slot| *slot.held.write() = Held::default());
        self.index.clear();
    }

    /// A place for a window: that of the same window, a free one, or that of one that is little used. Taken out of use.
    fn place(&self, handle: Handle, place: u64) -> Option<Asking<'_>> {
        let mut asking = self.asking.lock();
        if asking.iter().any(|asked| (asked.1, asked.2) == (handle, place)) {
            return None;
        }
        let free = |slot: usize| asking.iter().all(|asked| asked.0 != slot);
        let recent = |slot: usize| {
            self.slots[slot]
                .writes
                .load(Ordering::Relaxed)
                .saturating_sub(self.slots[slot].past.load(Ordering::Relaxed))
        };
        let uses = |slot: usize| match self.slots[slot].held.read().number {
            0 => (false, 0),
            _ => (true, recent(slot)),
        };
        let same = self.index.get(handle, place);
        let slot = match same {
            Some(slot) => Some(slot).filter(|&slot| free(slot))?,
            None => (0..LEASE_WINDOWS).filter(|&slot| free(slot)).min_by_key(|&slot| uses(slot))?,
        };
        if same.is_none() && uses(slot).0 {
            let used = recent(slot);
            for slot in 0..LEASE_WINDOWS {
                self.slots[slot].past.fetch_add(recent(slot).div_ceil(2), Ordering::Relaxed);
            }
            if used > WORTH {
                return None;
            }
        }
        asking.push((slot, handle, place));
        // Nobody who writes there holds the lock.
        self.slots[slot].held.write().number = 0;
        Some(Asking(self, slot))
    }

    /// A window was granted, in a place that was asked for.
    fn granted(&self, session: &Session, asking: &Asking<'_>, held: Held) {
        let _saying = self.saying.lock();
        // Before anything is written there.
        session.kept.is_leased(Ino(held.ino), Some(Handle(held.handle)));
        if session.kept.leased(Ino(held.ino)) != Some(Handle(held.handle)) {
            // There is no memory to remember that, so the window is not used.
            return;
        }
        self.slots[asking.1].writes.store(0, Ordering::Relaxed);
        self.slots[asking.1].past.store(0, Ordering::Relaxed);
        *self.slots[asking.1].held.write() = held;
        self.index.insert(Handle(held.handle), held.place, asking.1);
    }

    /// A write is about to be a message: how long the file was at least is not known afterwards.
    pub fn begins(&self, handle: Handle, size: impl FnOnce() -> u64) {
        self.writing.lock().entry(handle).or_insert_with(|| Writing {
            size: size(),
            need: NEED,
            places: SmallVec::new(),
        });
    }

    /// A write was a message. Whether a window is to be asked for.
    fn counts(&self, handle: Handle, offset: u64, len: usize) -> bool {
        let Some(end) = offset.checked_add(len as u64) else { return false };
        let mut writing = self.writing.lock();
        let Some(file) = writing.get_mut(&handle) else { return false };
        let within = end <= file.size;
        file.size = file.size.max(end);
        if !within {
            // What is written behind the end is a message, or posted, and either is dearer beside a window.
            file.places.iter_mut().for_each(|place| place.1 /= 2);
        }
        let whole = offset.is_multiple_of(PAGE64) && len.is_multiple_of(PAGE) && len > 0;
        if !within || !whole || len > DATA_MAX || offset / WINDOW != (end - 1) / WINDOW {
            return false;
        }
        file.counts(offset / WINDOW)
    }
}

impl Writing {
    fn counts(&mut self, place: u64) -> bool {
        let at = match self.places.iter().position(|p| p.0 == place) {
            Some(at) => at,
            None if self.places.len() < PLACES => {
                self.places.push((place, 0));
                self.places.len() - 1
            }
            // Whoever writes here and there has no place of his own for long.
            None => {
                let at = place as usize % PLACES;
                self.places[at] = (place, 0);
                at
            }
        };
        self.places[at].1 += 1;
        let asks = self.places[at].1 >= self.need;
        if asks {
            self.places.remove(at);
        }
        asks
    }

    /// A window was used so often: 0 also when it was refused.
    fn weigh(&mut self, writes: u32) {
        self.need = match writes {
            0 => (self.need * 4).min(NEED_MAX),
            1..WORTH => (self.need * 2).min(NEED_MAX),
            _ => (self.need / 2).max(1),
        };
    }
}

impl Remote {
    /// As `FileSystem::write`, if that can be done without a message: all of it, and without a future, for callers that would rather have none.
    #[inline]
    pub fn write_now(&self, handle: Handle, offset: u64, from: &[u8]) -> bool {
        let session = self.now();
        let written = session.leases.write(session, handle, offset, from);
        if written {
            self.link.written(handle, session.serial);
        }
        written
    }

    /// Attributes of what a known path leads to, if it is a file that is written here: asked for through the handle with the lease, which any other call
    /// would end.
    pub(super) async fn attr_leased(&self, base: Ino, path: &[u8]) -> Option<Attr> {
        let (ino, handle) = self.kept().walk_leased(base, path)?;
        let attr = self.getattr(ino, Some(handle)).await;
        if attr.is_err() {
            self.now().leases.look(self.now());
        }
        attr.ok()
    }

    /// A write through this handle is about to be a message.
    pub(super) fn writes(&self, handle: Handle) {
        self.now().leases.begins(handle, || self.size_now(handle).unwrap_or(0));
    }

    /// A write through this handle was a message in the session with this serial: asks for a window, if more of them are to be expected.
    pub(super) async fn wrote(&self, handle: Handle, offset: u64, len: usize, serial: u64) {
        let session = self.now();
        let late = OpenFlags::APPEND | OpenFlags::DIRECT | OpenFlags::SYNC | OpenFlags::DSYNC;
        if session.serial != serial || !session.leases.counts(handle, offset, len) {
            return;
        }
        let Some(file) = self.file(handle) else { return };
        if file.kind != FileType::Regular || file.flags.intersects(late) {
            return;
        }
        let Some(asking) = session.leases.place(handle, offset / WINDOW) else { return };
        let posted = session.directories.last_posted();
        let mut r = request(Op::Lease, handle.0);
        (r.offset, r.mode) = (offset.into(), (asking.1 as u32).into());
        let number = match self.call(r).await {
            // What another session granted stands elsewhere.
            Ok(answer) if answer.session() == serial => answer.value,
            // What stood there may not be in the file yet.
            _ => return,
        };
        session.leases.gone(session, asking.1, 0);
        if number == 0 {
            if let Some(writing) = session.leases.writing.lock().get_mut(&handle) {
                writing.weigh(0);
            }
            return;
        }
        let reads = file.flags.contains(OpenFlags::READ);
        let (handle, ino, place) = (handle.0, file.ino.0, offset / WINDOW);
        let held = Held { number, handle, ino, place, reads, noatime: file.noatime };
        let uses = || session.leases.granted(session, &asking, held);
        let may_be_posted = || self.link.look(Handle(handle), |file| file.lent) != Some(0);
        session.directories.unless_posted(posted, may_be_posted, uses);
    }
}
