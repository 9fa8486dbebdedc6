//! Devices, and what each of them promises.
//!
//! A [`Media`] takes requests, hands them to the device and returns completions, in any order. It knows nothing of files.
//! Three assumptions hold for every medium, and [`Geometry`] says the rest:
//! 1. a write that was not yet flushed may be kept, lost, or torn at [`Geometry::atomic_unit`], independently of others;
//! 2. a flush covers the writes that completed before it was submitted, and no others;
//! 3. what was written and flushed is read back, or an error is returned.
//!
//! Real and simulated devices are equals: engines see `dyn Media` and cannot tell which one they drive.

pub mod arena;
pub mod blocking;
pub mod counters;
pub mod error;
pub mod flash;
mod front;
pub mod logged;
pub mod nvme;
pub mod ram;
pub mod uring;

pub use arena::{Arena, ArenaId, BufRef, Memory, are_huge_pages_dear, set_huge_pages_dear};
pub use counters::Counters;
pub use error::MediaError;
pub use flash::SimFlash;
pub use front::MAX_BUFS;
pub use logged::Logged;
pub use nvme::NvmeMedia;
pub use ram::RamMedia;
use smallvec::SmallVec;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
pub use uring::UringMedia;

/// What a device is and what it promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Name for messages: a path, a PCI address.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Offsets and lengths of reads and writes must be multiples of this, bytes.
    pub sector: u32,
    /// Aligned writes of this many bytes are kept or lost as a whole when power fails. At least `sector`.
    pub atomic_unit: u32,
    /// Completed writes may be lost until a flush.
    pub volatile_cache: bool,
    /// [`Flags::BARRIER`] is honoured: what is written before persists before what is written after.
    pub barrier: bool,
    /// [`Op::Discard`] does something.
    pub discard: bool,
    /// Requests that the device works on at the same time. More may be submitted; they wait inside the medium.
    pub queue_depth: u32,
    /// Largest single transfer, bytes.
    pub max_transfer: u32,
    /// NUMA node of the device, when known.
    pub numa_node: Option<u32>,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// Makes all writes durable that completed before this request was submitted.
    Flush,
    /// The range is no longer needed; reads of it return anything until it is written again.
    Discard,
    /// The range reads as zeros afterwards.
    WriteZeroes,
}

/// Modifiers of a write. See [`Flags::FUA`] and [`Flags::BARRIER`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// No modifier.
    pub const NONE: Flags = Flags(0);
    /// The write is durable when it completes.
    pub const FUA: Flags = Flags(1);
    /// Everything written before persists before anything written after. Only where [`Geometry::barrier`] is set.
    pub const BARRIER: Flags = Flags(2);

    /// Whether all of `other` is set.
    pub fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// One request. The memory it names lies in arenas that were registered with the medium, so it cannot disappear; whoever
/// submits must not change it before the completion of a write, nor read it before the completion of a read.
#[derive(Clone, Debug)]
pub struct Request {
    /// What to do.
    pub op: Op,
    /// Modifiers of a write.
    pub flags: Flags,
    /// Where on the device, bytes.
    pub offset: u64,
    /// How much, bytes. For reads and writes the sum of the buffers' lengths; 0 for a flush.
    pub len: u64,
    /// Memory, in the order of the device's bytes. Empty unless a read or a write.
    pub bufs: SmallVec<[BufRef; 1]>,
    /// Returned with the completion.
    pub token: u64,
}

impl Request {
    /// A read or write of one buffer.
    pub fn transfer(op: Op, offset: u64, buf: BufRef, token: u64) -> Request {
        let mut bufs = SmallVec::new();
        bufs.push(buf);
        Request { op, flags: Flags::NONE, offset, len: buf.len as u64, bufs, token }
    }
    /// A read or write of several buffers.
    pub fn vectored(op: Op, offset: u64, bufs: SmallVec<[BufRef; 1]>, token: u64) -> Request {
        let len = bufs.iter().map(|b| b.len as u64).sum();
        Request { op, flags: Flags::NONE, offset, len, bufs, token }
    }
    /// A flush.
    pub fn flush(token: u64) -> Request {
        Request { op: Op::Flush, flags: Flags::NONE, offset: 0, len: 0, bufs: SmallVec::new(), token }
    }
    /// A discard or zeroing of a range.
    pub fn range(op: Op, offset: u64, len: u64, token: u64) -> Request {
        Request { op, flags: Flags::NONE, offset, len, bufs: SmallVec::new(), token }
    }
}

/// The end of a request.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The request's token.
    pub token: u64,
    /// How it ended. Short transfers are errors.
    pub result: Result<(), MediaError>,
}

/// How long [`Media::reap`] waits when no completion is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until there is a completion, [`Media::wake`] is called, or the time is over (`None`: no limit).
    For(Option<Duration>),
}

/// A device. All methods may be called from any thread; one thread at a time reaps.
pub trait Media: Send + Sync {
    /// What the device is and promises. Does not change while it is open.
    fn geometry(&self) -> &Geometry;

    /// Makes the memory of `arena` usable in requests (pins it, maps it for DMA), until it is unregistered or the medium is dropped.
    fn register(&self, arena: Arc<Arena>) -> Result<ArenaId, MediaError>;

    /// Ends that: the device reaches the memory no more when this returns, and the medium has forgotten the arena. There are no requests under way that
    /// name it; the number may become another arena's.
    fn unregister(&self, arena: ArenaId);

    /// Queues a request. Never blocks; what is wrong with the request or the device is said by its completion. The
    /// request may stay with the medium until [`Media::kick`].
    fn submit(&self, request: Request);

    /// Hands everything queued to the device. Never blocks.
    fn kick(&self);

    /// Appends completions to `out`, waiting as `wait` says when there are none.
    fn reap(&self, out: &mut Vec<Completion>, wait: Wait);

    /// Makes a thread that waits in [`Media::reap`], or the next one that would, return at once.
    fn wake(&self);

    /// Whether completions are seen in memory, as soon as they are there: then a thread that looks for work all the time
    /// can [`look`](Media::look) for them too.
    fn is_polled(&self) -> bool {
        false
    }

    /// A descriptor that can be read from, as poll(2) has it, once there are completions: such a thread can sleep until then. It asks for it before each
    /// sleep, which may forget what was announced before, and looks once more.
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// How often somebody is to [`reap`](Media::reap), if only without waiting, though nothing is under way: the device is looked after by that.
    /// `None`: it needs nobody.
    fn care(&self) -> Option<Duration> {
        None
    }

    /// As [`Media::reap`] without waiting, where that [is worth it](Media::is_polled), by a thread that has other things to do: while another thread
    /// reaps there is nothing, and what may take time, as to look after the device, is left to that.
    fn look(&self, _out: &mut Vec<Completion>) {}
}

/// A medium with submission queues of its own, among which whoever submits may choose.
pub trait Queues: Media {
    /// How many there are, at least one.
    fn queues(&self) -> usize;

    /// As [`Media::submit`], through a queue below [`Queues::queues`]. Between queues there is no order. A flush covers what completed
    /// before it through any of them.
    fn submit_to(&self, queue: usize, request: Request);
}
