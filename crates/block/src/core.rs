//! The engine's state, and the rules for changing it.
//!
//! [`Core`] is a state machine without threads: operations are ordinary functions that either finish or say what they wait
//! for ([`Stop::Wait`]) having changed nothing that a repetition would not redo; the caller repeats them when woken.
//! Completions of the device come in through `complete` (io.rs), time through `background` (worker.rs). One lock guards
//! all of it; no operation holds the lock while it waits. An uncontended lock costs less than handing a request to
//! another thread, which is why callers run operations themselves (docs/DESIGN.md, "Who runs an operation").
//!
//! Every change goes through [`Core::edit`]: it joins the inode to the running epoch, and preserves the image that a
//! running checkpoint still has to write.

use crate::checkpoint::Checkpointing;
use crate::direct::Directs;
use crate::driver::Driving;
use crate::epoch::{EpochState, Running};
use crate::group::Group;
use crate::handles::Handles;
use crate::index::Index;
use crate::inode::{Inode, NUMBERED, SINCE_CHECKPOINT, Slot};
use crate::io::Ios;
use crate::reads::BadReads;
use crate::ring::LogRing;
use crate::scratch::Scratch;
use crate::slab::Slab;
use crate::space::{Run, Space};
use crate::tails::Loading;
use crate::writeback::Gathered;
use foldhash::fast::FixedState;
use format::BlockNo;
use format::checkpoint::Checkpoint;
use fs::cache::{FrameNo, PageCache, PageKey};
use fs::{Error, Time};
use media::{ArenaId, Geometry, Media};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Waker;
use std::time::Duration;

/// What an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wait {
    /// The tail of this inode to be loaded.
    Tail(Slot),
    /// A page to be read.
    Page(PageKey),
    /// Durability of an epoch.
    Durable(u64),
    /// The end of a direct transfer.
    Direct(u32),
    /// Something that frees memory, log space or blocks.
    Progress,
}

/// Why an operation did not finish.
#[derive(Debug)]
pub(crate) enum Stop {
    Error(Error),
    Wait(Wait),
}

impl From<Error> for Stop {
    fn from(e: Error) -> Self {
        Stop::Error(e)
    }
}
impl From<format::FormatError> for Stop {
    fn from(e: format::FormatError) -> Self {
        Stop::Error(e.into())
    }
}

pub(crate) type Res<T> = Result<T, Stop>;

/// Source of time: the real clocks, or a test's.
pub trait Clock: Send + Sync {
    /// Time for inodes.
    fn now(&self) -> Time;
    /// Time since any fixed moment, for time-outs; never goes back.
    fn monotonic(&self) -> Duration;
}

/// The clocks of the machine.
#[derive(Debug, Default)]
pub struct RealClock;

impl Clock for RealClock {
    fn now(&self) -> Time {
        Time::now()
    }
    fn monotonic(&self) -> Duration {
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        START.get_or_init(std::time::Instant::now).elapsed()
    }
}

/// Which calls return when what they have changed is durable, beside writes through handles that ask for it (O_SYNC, O_DSYNC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Synchronous {
    /// None.
    #[default]
    Nothing,
    /// Those that change directories, as with the mount option `dirsync`.
    Directories,
    /// All, as with `sync`.
    Everything,
}

/// How a volume is opened.
#[derive(Clone)]
pub struct OpenOptions {
    /// Bytes of the page cache.
    pub cache_bytes: usize,
    /// Writers wait while more bytes than this are dirty or on their way to the device, and half of that are written at once. At most half of the
    /// cache; no more than 128 MiB while programs sync, as a sync makes all of it durable.
    pub dirty_bytes_max: usize,
    /// Changes are made durable when they are this old.
    pub dirty_age_max: Duration,
    /// Longest read-ahead of a sequential reader, bytes.
    pub read_ahead_max: usize,
    /// Nothing is written, not even the log of an unclean volume is replayed on the medium.
    pub read_only: bool,
    /// Reads do not move access times; otherwise they follow relatime.
    pub noatime: bool,
    /// Calls that return when what they have changed is durable.
    pub synchronous: Synchronous,
    /// Whole free segments are discarded once their blocks may be reused.
    pub discard: bool,
    /// How long files that were open without a name when the volume was last stopped are kept, so that those who had them can open them
    /// again by their inodes.
    pub orphans_kept: Duration,
    /// Source of time.
    pub clock: Arc<dyn Clock>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            cache_bytes: 256 << 20,
            dirty_bytes_max: 128 << 20,
            dirty_age_max: Duration::from_secs(5),
            read_ahead_max: 8 << 20,
            read_only: false,
            noatime: false,
            synchronous: Synchronous::Nothing,
            discard: false,
            orphans_kept: Duration::ZERO,
            clock: Arc::new(RealClock),
        }
    }
}

/// What an engine did since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Epochs committed.
    pub epochs: u64,
    /// Barriers that were asked for (fbarrier, fdatabarrier, and syncs answered with order).
    pub barriers: u64,
    /// Flushes sent to the device.
    pub flushes: u64,
    /// Log records that were made durable by themselves (FUA), without a flush.
    pub fua_records: u64,
    /// Blocks of log records.
    pub log_blocks: u64,
    /// Data blocks written to new places or into unwritten extents.
    pub data_blocks: u64,
    /// Data blocks overwritten in place.
    pub overwritten_blocks: u64,
    /// Atomic writes.
    pub atomic_writes: u64,
    /// Data blocks whose content went into log records.
    pub logged_pages: u64,
    /// Blocks read for file data, read-ahead included.
    pub read_blocks: u64,
    /// Those of them that went from the device to a door's memory.
    pub direct_read_blocks: u64,
    /// Data blocks that were overwritten in place from a door's memory.
    pub direct_written_blocks: u64,
    /// Pages that reads found in memory, holes included.
    pub read_hits: u64,
    /// Pages that reads had to wait for.
    pub read_misses: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Inode blocks written by checkpoints.
    pub inode_blocks: u64,
    /// Times a writer waited for dirty pages to be written.
    pub throttled: u64,
}

/// A page whose newest content stands in the log and not yet at its block.
pub(crate) struct Logged {
    /// Pinned; the content to be written home.
    pub frame: Option<FrameNo>,
}

/// See the module documentation.
pub(crate) struct Core {
    pub media: Arc<dyn Media>,
    pub geometry: Geometry,
    pub options: OpenOptions,
    pub uuid: [u8; 16],
    /// Drawn by chance; never 0.
    pub opening: u64,
    /// See [`crate::inode::apart`].
    pub apart: u32,
    /// Of the volume's openings before this one, those that ended in clean stops with none of another kind between them and now.
    pub stops: [u64; 4],
    pub strict: bool,
    pub read_only: bool,
    /// After a failed write, memory and medium may differ: nothing more is written, every change is refused.
    pub latched: Option<String>,
    /// No more changes are taken.
    pub closing: bool,
    /// Everything is on the medium; the worker ends.
    pub closed: bool,
    /// Somebody waits for a frame that a reader may be about to let go.
    pub starving: Arc<AtomicBool>,
    /// Who has just said so looks once more: the reader may have let it go before.
    pub look_again: bool,

    pub slab: Slab,
    pub index: Index,
    pub space: Space,
    /// Blocks held back for metadata, at least, and those that nodes of extent trees may need at the next commit ([`Core::keep`]).
    pub keep_min: u64,
    pub nodes: u64,
    pub handles: Handles,

    pub cache: PageCache,
    pub cache_arena: ArenaId,
    pub scratch: Scratch,
    pub ios: Ios,
    pub directs: Directs,
    /// Frames on their way to the device.
    pub frames_in_flight: usize,
    pub bad_reads: BadReads,
    pub loading: HashMap<Slot, Loading, FixedState>,
    /// Inodes with a tail in memory, in the order in which they were loaded.
    pub tails: VecDeque<Slot>,
    /// Of these, how many are to be looked at for whether they can go.
    pub tails_to_look_at: usize,
    /// The running epoch is being closed for a checkpoint.
    pub closes_for_checkpoint: bool,
    /// Inodes found without a name at mount, to be freed.
    /// With their generations; until then they are kept.
    pub orphans: Vec<(Slot, u32)>,
    pub orphans_until: Duration,
    pub discards: crate::discard::Discards,
    /// When [`Core::background`] looked last.
    pub looked_at: Duration,

    pub running: Running,
    /// For the images of the next record.
    pub record_memory: Vec<u8>,
    /// The newest epoch that was closed for order. While it is not durable nothing is overwritten in place: that would be
    /// seen although what was done before the barrier is not.
    pub ordered: u64,
    /// Closed epochs that are not durable, oldest first.
    pub epochs: VecDeque<EpochState>,
    pub log: LogRing,
    pub durable: u64,
    /// An epoch that a durable record or checkpoint names as durable.
    pub recorded: u64,
    pub flush_in_flight: bool,
    pub flush_wanted: u64,
    /// When somebody asked last for what there is to be durable.
    pub synced_at: Option<Duration>,
    /// The epochs that are wanted, and not durable yet.
    pub flushes_due: BTreeSet<u64>,
    /// A caller of fsync waits for the running epoch, which will be closed when the flush in flight is done.
    pub close_wanted: bool,
    /// The epoch that could not be closed for those who had joined it, and why; and how often that has happened.
    pub refused: Option<(u64, Error)>,
    pub refusals: u64,
    /// Blocks written by epochs that are not recorded as durable: (count, epoch) by first block.
    pub guards: BTreeMap<u64, (u32, u64)>,
    /// First blocks of the guards of durable epochs, oldest first.
    pub guard_epochs: VecDeque<(u64, Vec<u64>)>,
    /// File data on its way to the medium, by first block: count, and whether it overwrites in place.
    pub writing: BTreeMap<u64, (u32, bool)>,
    /// The last of it, while pages are being dispatched.
    pub gathered: Option<Gathered>,
    pub logged: HashMap<u64, Logged, FixedState>,
    /// Freed blocks with an image in the log, with the epoch that freed them.
    pub held: Vec<(Run, u64)>,

    pub checkpoint: Checkpoint,
    pub checkpointing: Option<Box<Checkpointing>>,
    pub checkpoint_wanted: bool,
    /// An epoch of which is to be said that it is durable, when it is.
    pub mark_due: Option<u64>,
    /// Somebody waits for the running checkpoint, or for the next one.
    pub checkpoint_hurry: bool,
    pub checkpoints_done: u64,
    /// Inodes changed since the last checkpoint began.
    pub since_checkpoint: Vec<Slot>,
    /// Which home of each table block is current, and its content.
    pub table_homes: Vec<(u8, Vec<u32>)>,

    pub waiters: HashMap<Wait, Vec<Waker>, FixedState>,
    pub durable_waiters: Vec<(u64, Waker)>,
    /// Syncs that share a commit.
    pub group: Group,
    /// To be woken when the lock is released.
    pub woken: Vec<Waker>,
    /// Requests were queued: the medium must be kicked when the lock is released.
    pub kick: bool,
    /// Who takes completions in.
    pub driving: Driving,
    /// See [`crate::shared::Shared::identity`]; 0 until the volume has one.
    pub identity: usize,
    /// The worker must look at the state when the lock is released.
    pub wake_worker: bool,
    /// When the worker will next look by itself.
    pub worker_deadline: Option<Duration>,
    pub counters: Counters,
}

impl Core {
    pub fn now(&self) -> Time {
        self.options.clock.now()
    }
    pub fn monotonic(&self) -> Duration {
        self.options.clock.monotonic()
    }

    /// Fails unless the volume may be changed. Called first by every operation that changes something.
    pub fn writable(&self) -> Result<(), Error> {
        if let Some(why) = &self.latched {
            return Err(Error::Latched(why.clone()));
        }
        if self.closing {
            return Err(Error::Closed);
        }
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        Ok(())
    }

    /// Whether changes may be promised now and made later.
    pub fn takes_late_changes(&self) -> bool {
        !self.strict && self.options.synchronous == Synchronous::Nothing
    }

    /// Latches the volume: the medium may no longer be what memory says.
    pub fn latch(&mut self, why: String) {
        if self.latched.is_none() {
            tracing::error!("{}: volume latched read-only: {why}", self.geometry.name);
            self.latched = Some(why);
        }
        // Everybody who waits must see it.
        let keys: Vec<Wait> = self.waiters.keys().copied().collect();
        keys.into_iter().for_each(|k| self.wake(k));
        self.wake_durable(u64::MAX);
        self.group.over = u32::MAX;
        self.wake_worker = true;
    }

    /// Replaces the content of a slot by a new inode, keeping its place in epoch and checkpoint.
    pub fn put(&mut self, slot: Slot, inode: Inode) {
        let old = self.edit(slot);
        let (flags, epoch) = (old.flags & (SINCE_CHECKPOINT | NUMBERED), old.epoch);
        let numbered = if inode.generation == old.generation { 0 } else { NUMBERED };
        *old = Inode { flags: inode.flags | flags | numbered, epoch, ..inode };
    }

    /// Makes the waiters on `key` try again; so do a checkpoint that could not begin, and inodes that could not be freed.
    pub fn wake(&mut self, key: Wait) {
        let checkpoint = self.checkpoint_wanted && self.checkpointing.is_none();
        self.wake_worker |= key == Wait::Progress && (checkpoint || self.frees_orphans());
        if !self.waiters.is_empty()
            && let Some(wakers) = self.waiters.remove(&key)
        {
            self.woken.extend(wakers);
        }
    }

    /// Whether anybody waits for this. He may have given up.
    pub fn is_awaited(&self, key: Wait) -> bool {
        self.waiters.contains_key(&key)
    }

    /// Lets those go on that wait for an epoch up to this one to be durable. Returns how many they are.
    pub fn wake_durable(&mut self, epoch: u64) -> u32 {
        let before = self.durable_waiters.len();
        let mut i = 0;
        while i < self.durable_waiters.len() {
            if self.durable_waiters[i].0 <= epoch {
                self.woken.push(self.durable_waiters.swap_remove(i).1);
            } else {
                i += 1;
            }
        }
        (before - self.durable_waiters.len()) as u32 + self.group.release(epoch)
    }

    /// Registers a waiter.
    pub fn wait(&mut self, wait: Wait, waker: &Waker) {
        if wait == Wait::Progress && std::mem::take(&mut self.look_again) {
            return self.woken.push(waker.clone());
        }
        let lends = self.caller_waits(wait, waker);
        match wait {
            Wait::Durable(epoch) if lends => self.group.blocks(epoch),
            Wait::Durable(epoch) => self.durable_waiters.push((epoch, waker.clone())),
            Wait::Direct(call) => self.directs.wait(call, waker),
            key => self.waiters.entry(key).or_default().push(waker.clone()),
        }
    }

    /// Gives blocks back that a committed or the running epoch may refer to.
    pub fn give_back(&mut self, run: Run) {
        let epoch = self.running.epoch;
        self.running.covers.forget(run);
        let end = run.block.0 + run.count as u64;
        while let Some((&block, &(_, _, frame))) = self.running.pages.range(run.block.0..end).next() {
            self.running.pages.remove(&block);
            self.cache.unpin(frame);
        }
        let images = self.images_in(run.block.0, end);
        let mut at = run.block.0;
        let mut next = images.into_iter().peekable();
        while at < end {
            // Blocks with images, one behind the other, or all up to the next of them.
            let mut to = at;
            while next.next_if_eq(&to).is_some() {
                to += 1;
            }
            let held = to > at;
            if !held {
                to = next.peek().copied().unwrap_or(end);
            }
            let part = Run { block: BlockNo(at), count: (to - at) as u32 };
            if held {
                self.held.push((part, epoch));
            } else {
                self.space.quarantine(part, epoch);
            }
            at = to;
        }
        self.note_change();
    }

    /// Which of these blocks recovery might write an image from the log to, in order. Looks at the blocks or at the images, whichever are fewer.
    fn images_in(&self, start: u64, end: u64) -> Vec<u64> {
        let brought_home = self.checkpointing.as_ref().map(|c| &c.pages);
        let images = self.logged.len() + brought_home.map_or(0, |pages| pages.len());
        if images as u64 >= end - start {
            return (start..end).filter(|&block| self.has_image(block)).collect();
        }
        let all = self.logged.keys().chain(brought_home.into_iter().flat_map(|pages| pages.keys()));
        let mut found: Vec<u64> = all.copied().filter(|block| (start..end).contains(block)).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Whether recovery might write an image from the log to this block.
    pub fn has_image(&self, block: u64) -> bool {
        self.logged.contains_key(&block)
            || self.checkpointing.as_ref().is_some_and(|c| c.pages.contains_key(&block))
    }

    /// Whether the block may be overwritten in place: no recovery would verify the checksum of what it holds or write an
    /// older image to it, and no barrier stands between.
    pub fn may_overwrite(&self, block: u64) -> bool {
        if self.ordered > self.durable {
            return false;
        }
        let guarded =
            self.guards.range(..=block).next_back().is_some_and(|(s, (n, _))| block < s + *n as u64);
        !guarded
            && (!self.running.covers.contains(block) || self.running.in_place.contains(&block))
            && !self.running.pages.contains_key(&block)
            && !self.has_image(block)
    }

    /// Whether data for this block is on its way to the medium, and if so whether it overwrites in place.
    pub fn writing(&self, block: u64) -> Option<bool> {
        let (first, &(n, in_place)) = self.writing.range(..=block).next_back()?;
        (block < first + n as u64).then_some(in_place)
    }

    /// Whether the block was new to its file in the running epoch: nobody could see it after a crash, whatever it holds.
    pub fn is_own(&self, block: u64) -> bool {
        self.running.covers.contains(block)
            && !self.running.in_place.contains(&block)
            && !self.running.pages.contains_key(&block)
            && !self.has_image(block)
    }

    /// Reserves blocks for a delayed allocation. When space is waiting to be freed, starts freeing it and waits; `ticket`
    /// remembers that between repetitions.
    pub fn reserve(&mut self, blocks: u64, ticket: &mut Option<u64>) -> Res<()> {
        if blocks == 0 {
            return Ok(());
        }
        self.let_checkpoint_by(blocks)?;
        if self.space.reserve(blocks, self.keep()) { Ok(()) } else { self.wait_for_space(ticket) }
    }

    /// Waits for a checkpoint to free what can be freed; `NoSpace` when it did and that was not enough.
    pub fn wait_for_space(&mut self, ticket: &mut Option<u64>) -> Res<()> {
        let discards = self.discards_hold_back();
        if self.space.quarantined() == 0 && self.held.is_empty() && self.nodes == 0 {
            return Err(if discards { Stop::Wait(Wait::Progress) } else { Error::NoSpace.into() });
        }
        // A checkpoint that runs already began before the latest frees; the one after it frees them.
        let due = *ticket.get_or_insert(self.checkpoints_done + 1 + self.checkpointing.is_some() as u64);
        if self.checkpoints_done >= due {
            // What direct reads and discards hold back will be free when they are over, which is soon.
            let held_back = self.reusable() < self.recorded || discards;
            return Err(if held_back { Stop::Wait(Wait::Progress) } else { Error::NoSpace.into() });
        }
        self.hurry_checkpoint();
        Err(Stop::Wait(Wait::Progress))
    }
}
