//! The page cache: a bounded number of 4 KiB frames in one arena, found by (file, page).
//!
//! Invariants:
//! - A frame with pins is immutable. Transfers and readers pin the frames they use; who wants to change a pinned page gets
//!   a new frame for it ([`PageCache::replace`]) and the old one lives until its last pin is dropped.
//! - A dirty frame is never evicted. Which of the others goes is chosen by S3-FIFO (`queues`).
//! - Free frames and evictable ones are handed out in runs of neighbours, so that a long transfer is one buffer.
//! - Frames that were used before are handed out before fresh ones, for which the system must find and clear memory, unless
//!   only short runs of them are free where a long one is asked for.
//!
//! The cache is a plain structure: its owner serialises access. Only pins are atomic, so that readers can drop them
//! without taking the owner's lock. Tested here and by the engine's property tests.

mod ahead;
mod bitmap;
mod lent;
pub mod policy;
mod queues;
pub use bitmap::FreeMap;
pub use lent::{Lender, Pages};

use ahead::Ahead;
use hashbrown::HashTable;
use media::Arena;
use queues::{Place, Queues};
use std::hash::BuildHasher;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes in a page and in a frame.
pub const PAGE: usize = 4096;

/// A run of so many frames that were used before is as good as a longer one of fresh frames.
const LONG: usize = 32;
/// How many runs that are too short are looked at before fresh frames are taken.
const LOOKS: usize = 8;

/// Index of a frame in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameNo(pub u32);

impl FrameNo {
    /// Byte offset of the frame in the arena.
    pub fn offset(self) -> u64 {
        self.0 as u64 * PAGE as u64
    }
}

/// Which page a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageKey {
    /// The file (an inode number that the engine chooses).
    pub file: u64,
    /// The page of the file.
    pub page: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the free map.
    Free,
    /// In the index, same as the medium (or being read: then it is pinned and not yet valid).
    Clean,
    /// In the index, newer than the medium.
    Dirty,
    /// In no index; freed with its last pin.
    Detached,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// It waits for a read, or is about to be written.
    Absent,
    Valid,
    /// And its checksum is known.
    Summed,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    key: PageKey,
    /// Of the content, when that is `Summed`.
    checksum: u32,
    state: State,
    content: Content,
    place: Place,
    uses: u8,
}

// There is one for each page of memory.
const _: () = assert!(size_of::<Frame>() == 24);

impl Frame {
    fn new(key: PageKey, state: State) -> Frame {
        Frame { key, checksum: 0, state, content: Content::Absent, place: Place::New, uses: 0 }
    }
}

/// The frames' pin counts, shared with readers that drop pins outside of the owner's lock.
#[derive(Clone, Debug)]
pub struct Pins(Arc<[AtomicU32]>);

impl Pins {
    /// Drops one pin.
    pub fn unpin(&self, frame: FrameNo) {
        let before = self.0[frame.0 as usize].fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "pin count below zero");
    }
    fn count(&self, frame: u32) -> u32 {
        self.0[frame as usize].load(Ordering::Acquire)
    }
}

/// Detached frames that may always wait to be noticed, of so many frames.
fn limbo_min(frames: usize) -> usize {
    (frames / 16).clamp(1, 1024)
}

/// See the module documentation.
#[derive(Debug)]
pub struct PageCache {
    arena: Arc<Arena>,
    frames: Vec<Frame>,
    pins: Pins,
    index: HashTable<u32>,
    hasher: foldhash::fast::FixedState,
    free: FreeMap,
    /// Detached frames whose pins were not all dropped when last looked at.
    limbo: Vec<u32>,
    /// How long that list may become before it is looked through: twice what stayed last time, so that looking costs little for each frame.
    limbo_max: usize,
    /// What goes when room is needed.
    queues: Queues,
    hand: u32,
    /// Where frames that were used before are looked for next.
    look: u32,
    /// No frame from here on was ever used.
    fresh: u32,
    /// Has memory for frames that were never used ready, when that is wanted.
    ahead: Option<Ahead>,
    dirty: usize,
    counters: CacheCounters,
}

/// What the cache did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Lookups that found a valid page.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Clean pages thrown out to make room.
    pub evictions: u64,
}

impl PageCache {
    /// A cache of all whole frames in `arena`.
    pub fn new(arena: Arc<Arena>) -> PageCache {
        let n = arena.len() / PAGE;
        let empty = Frame::new(PageKey { file: 0, page: 0 }, State::Free);
        PageCache {
            frames: vec![empty; n],
            pins: Pins((0..n).map(|_| AtomicU32::new(0)).collect()),
            index: HashTable::new(),
            hasher: foldhash::fast::FixedState::with_seed(0x5eed),
            free: FreeMap::all_free(n),
            limbo: Vec::new(),
            limbo_max: limbo_min(n),
            queues: Queues::new(n),
            hand: 0,
            look: 0,
            fresh: 0,
            ahead: None,
            dirty: 0,
            counters: CacheCounters::default(),
            arena,
        }
    }

    /// Has a thread get memory for frames before they are first used, in idle moments.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn get_memory_ahead(&mut self) -> io::Result<()> {
        self.ahead = Some(Ahead::start(self.arena.clone())?);
        Ok(())
    }

    /// The memory of the frames.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }
    /// The pin counts.
    pub fn pins(&self) -> &Pins {
        &self.pins
    }
    /// Number of frames.
    pub fn len(&self) -> usize {
        self.frames.len()
    }
    /// Whether the cache has no frames at all.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
    /// Frames that hold changes the medium does not have.
    pub fn dirty(&self) -> usize {
        self.dirty
    }
    /// Frames that hold something.
    pub fn used(&self) -> usize {
        self.frames.len() - self.free.free()
    }
    /// Counters since the start.
    pub fn counters(&self) -> CacheCounters {
        self.counters
    }

    fn hash(&self, key: PageKey) -> u64 {
        self.hasher.hash_one(key)
    }

    /// The frame that holds `key`, if any; it may still be being read (see [`PageCache::is_valid`]).
    pub fn find(&self, key: PageKey) -> Option<FrameNo> {
        self.index.find(self.hash(key), |&f| self.frames[f as usize].key == key).map(|&f| FrameNo(f))
    }

    /// As [`PageCache::find`], for use: counts hit or miss and marks the page as used.
    pub fn lookup(&mut self, key: PageKey) -> Option<FrameNo> {
        let found = self.find(key);
        match found {
            Some(f) => {
                self.counters.hits += 1;
                self.use_frame(f.0);
            }
            None => self.counters.misses += 1,
        }
        found
    }

    /// Whether the frame's content is there (not waiting for a read).
    pub fn is_valid(&self, frame: FrameNo) -> bool {
        self.frames[frame.0 as usize].content != Content::Absent
    }
    /// Marks the content as there.
    pub fn set_valid(&mut self, frame: FrameNo) {
        let content = &mut self.frames[frame.0 as usize].content;
        if *content == Content::Absent {
            *content = Content::Valid;
            self.arrives(frame.0);
        }
    }
    /// Whether the frame holds changes that the medium does not have.
    pub fn is_dirty(&self, frame: FrameNo) -> bool {
        self.frames[frame.0 as usize].state == State::Dirty
    }
    /// A checksum of the content that its owner computed while the content was at hand.
    pub fn checksum(&self, frame: FrameNo) -> Option<u32> {
        let f = &self.frames[frame.0 as usize];
        (f.content == Content::Summed).then_some(f.checksum)
    }
    /// Remembers a checksum of the content, which is there; `None` when it is about to change.
    pub fn set_checksum(&mut self, frame: FrameNo, checksum: Option<u32>) {
        let f = &mut self.frames[frame.0 as usize];
        debug_assert!(f.content != Content::Absent || checksum.is_none());
        if f.content != Content::Absent {
            f.content = if checksum.is_some() { Content::Summed } else { Content::Valid };
        }
        f.checksum = checksum.unwrap_or(0);
    }
    /// The page that the frame holds.
    pub fn key(&self, frame: FrameNo) -> PageKey {
        self.frames[frame.0 as usize].key
    }
    /// Whether anyone uses the frame outside of the owner's lock.
    pub fn is_pinned(&self, frame: FrameNo) -> bool {
        self.pins.count(frame.0) > 0
    }
    /// Keeps the frame and its content until [`PageCache::unpin`].
    pub fn pin(&mut self, frame: FrameNo) {
        self.pins.0[frame.0 as usize].fetch_add(1, Ordering::Relaxed);
    }
    /// Drops one pin.
    pub fn unpin(&mut self, frame: FrameNo) {
        self.pins.unpin(frame);
        if self.frames[frame.0 as usize].state == State::Detached && !self.is_pinned(frame) {
            self.release(frame.0);
        }
    }

    /// Marks a frame of the index as dirty or clean.
    pub fn set_dirty(&mut self, frame: FrameNo, dirty: bool) {
        let state = self.frames[frame.0 as usize].state;
        debug_assert!(matches!(state, State::Clean | State::Dirty));
        match (state, dirty) {
            (State::Clean, true) => {
                self.dequeue(frame.0);
                self.dirty += 1;
                self.frames[frame.0 as usize].state = State::Dirty;
            }
            (State::Dirty, false) => {
                self.dirty -= 1;
                self.frames[frame.0 as usize].state = State::Clean;
                self.written_back(frame.0);
            }
            _ => {}
        }
    }

    /// Takes a run of 1 to `max` neighbouring frames and enters the pages `key`, `key + 1`, ... for them, clean and not
    /// yet valid. `None` when every frame is dirty or pinned. Requires that none of these pages is in the cache.
    pub fn insert_run(&mut self, key: PageKey, max: usize) -> Option<(FrameNo, usize)> {
        let (first, n) = self.take_run(max)?;
        for i in 0..n {
            let f = first + i as u32;
            let key = PageKey { page: key.page + i as u64, ..key };
            debug_assert!(self.find(key).is_none(), "page is already cached");
            self.frames[f as usize] = Frame::new(key, State::Clean);
            self.enter(f);
        }
        Some((FrameNo(first), n))
    }

    /// As [`PageCache::insert_run`] for one page.
    pub fn insert(&mut self, key: PageKey) -> Option<FrameNo> {
        self.insert_run(key, 1).map(|(f, _)| f)
    }

    /// Puts a new frame in the place of `frame`, which lives on, detached, until its pins are gone. The new one is valid
    /// and holds a copy when `copy`. Dirtiness moves along. `None` when no frame can be had.
    pub fn replace(&mut self, frame: FrameNo, copy: bool) -> Option<FrameNo> {
        let (new, _) = self.take_run(1)?;
        if copy {
            self.arena.copy_within(frame.offset(), FrameNo(new).offset(), PAGE);
        }
        let original = self.original(frame.0);
        self.dequeue(frame.0);
        self.leave(frame.0);
        let old = self.frames[frame.0 as usize];
        let content = if old.content == Content::Absent { Content::Valid } else { old.content };
        self.frames[new as usize] = Frame { content, ..old };
        self.enter(new);
        self.detach(frame.0);
        if old.state == State::Clean {
            self.enqueue_copy(new, original);
        }
        Some(FrameNo(new))
    }

    /// Takes the page out of the cache, changes included. The frame lives on until its pins are gone.
    pub fn remove(&mut self, frame: FrameNo) {
        if self.frames[frame.0 as usize].state == State::Dirty {
            self.dirty -= 1;
        }
        self.dequeue(frame.0);
        self.leave(frame.0);
        self.detach(frame.0);
    }

    /// Takes all clean pages that nobody uses out of the cache.
    pub fn drop_clean(&mut self) {
        self.sweep_limbo();
        for f in 0..self.frames.len() as u32 {
            if self.frames[f as usize].state == State::Clean && !self.is_held(f) {
                self.dequeue(f);
                self.leave(f);
                self.release(f);
            }
        }
    }

    fn enter(&mut self, f: u32) {
        let hash = self.hash(self.frames[f as usize].key);
        let (frames, hasher) = (&self.frames, &self.hasher);
        self.index.insert_unique(hash, f, |&g| hasher.hash_one(frames[g as usize].key));
    }

    fn leave(&mut self, f: u32) {
        let hash = self.hash(self.frames[f as usize].key);
        if let Ok(entry) = self.index.find_entry(hash, |&g| g == f) {
            entry.remove();
        }
    }

    fn detach(&mut self, f: u32) {
        self.frames[f as usize].state = State::Detached;
        if self.pins.count(f) == 0 {
            self.release(f);
        } else {
            self.limbo.push(f);
        }
    }

    fn release(&mut self, f: u32) {
        self.frames[f as usize].state = State::Free;
        self.free.set_free(f as usize);
    }

    /// Frees detached frames whose last pin was dropped outside of the owner's lock.
    fn sweep_limbo(&mut self) {
        let mut limbo = std::mem::take(&mut self.limbo);
        limbo.retain(|&f| {
            if self.frames[f as usize].state != State::Detached {
                return false;
            }
            if self.pins.count(f) == 0 {
                self.release(f);
                return false;
            }
            true
        });
        self.limbo_max = (2 * limbo.len()).max(limbo_min(self.frames.len()));
        self.limbo = limbo;
    }

    /// Takes a run out of the free map, evicting when nothing is free.
    fn take_run(&mut self, max: usize) -> Option<(u32, usize)> {
        debug_assert!(max > 0);
        if self.limbo.len() >= self.limbo_max {
            self.sweep_limbo();
        }
        if self.free.free() == 0 {
            match self.evict_run(max) {
                Some(first) => self.hand = first,
                None => self.sweep_limbo(),
            }
        }
        let (first, n) = self.choose_run(max)?;
        self.free.take(first, n);
        self.hand = ((first + n) % self.frames.len()) as u32;
        if first + n > self.fresh as usize {
            self.fresh = (first + n) as u32;
            if let Some(ahead) = &mut self.ahead {
                ahead.reached(first + n);
            }
        }
        Some((first as u32, n))
    }

    /// Which run to take: one of frames that were used before if one that is long enough is soon found, else a fresh one, else what there is.
    fn choose_run(&mut self, max: usize) -> Option<(usize, usize)> {
        let fresh = self.fresh as usize;
        if fresh == self.frames.len() {
            return self.free.next_run(self.hand as usize, max).or_else(|| self.free.next_run(0, max));
        }
        let used = |run: &(usize, usize)| run.0 < fresh;
        for _ in 0..LOOKS {
            let found = self.free.next_run(self.look as usize, max).filter(used);
            let Some((first, n)) = found.or_else(|| self.free.next_run(0, max).filter(used)) else { break };
            // What is too short is not looked at again before all others were.
            self.look = (first + n) as u32;
            if n >= max.min(LONG) {
                return Some((first, n));
            }
        }
        self.free.next_run(fresh, max)
    }

    /// Throws out a page that may go.
    fn evict(&mut self, frame: FrameNo) {
        self.dequeue(frame.0);
        self.leave(frame.0);
        self.release(frame.0);
        self.counters.evictions += 1;
    }
}

#[cfg(test)]
mod tests;
