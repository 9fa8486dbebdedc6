//! Image files and block devices, by io_uring.
//!
//! Any thread submits: it takes a slot and writes an entry into the ring under a short lock; [`Media::kick`] hands all
//! entries to the kernel with one system call outside of that lock. One thread at a time reaps, and waits in the kernel
//! without the lock. At most `depth` requests are with the kernel; later ones wait in a backlog that completions drain, so
//! the rings cannot overflow: each slot has at most one entry in either ring, and the one entry that ends a wait has its
//! own place.
//!
//! Direct I/O where the file system has it; file and arenas are registered with the ring, so that the kernel neither
//! looks the file up nor pins pages for each request. Completions are not deferred to system calls of the submitter
//! (`COOP_TASKRUN`), because a thread that computes after it submitted would hold up the one that waits.
//!
//! Dropping the medium waits for everything that was submitted, because the kernel writes to the arenas until then.
//! Sources: io_uring_enter(2), io_uring_setup(2). Tested in tests/conformance.rs and tests/uring.rs.

mod probe;
mod slots;

use crate::counters::Counters;
use crate::front::{Front, put};
use crate::{Arena, ArenaId, BufRef, Completion, Geometry, Media, MediaError, Op, Request, Wait};
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, opcode};
use parking_lot::Mutex;
use slots::{Context, Flight, IoVec, PIECE, Pieces, Verdict, ZEROS};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How to open a device.
#[derive(Clone, Debug)]
pub struct Options {
    /// Refuse everything that changes the device. Several read-only openers may share it.
    pub read_only: bool,
    /// Refuse a block device that somebody else holds exclusively (mounts do, and whoever changes it), though nothing is to be changed.
    pub exclusive: bool,
    /// Ask for direct I/O. Without it, or where the file system has none, the kernel's page cache is in between.
    pub direct: bool,
    /// Requests with the kernel at a time, 1 to 4096. Fewer if locked memory (RLIMIT_MEMLOCK) is scarce.
    pub depth: u32,
    /// Pin registered arenas in memory, all their pages, at once. Without it, or where RLIMIT_MEMLOCK forbids it, each
    /// transfer pins its own.
    pub pin: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { read_only: false, exclusive: false, direct: true, depth: 256, pin: true }
    }
}

/// A file or block device.
pub struct UringMedia {
    front: Front,
    read_only: bool,
    pin: bool,
    block: bool,
    direct: bool,
    zeros: Arena,
    /// Covers slots, backlog, and the tail of the submission ring.
    queue: Mutex<Queue>,
    /// Held by the thread that reaps; covers the head of the completion ring. Taken before `queue`.
    reaper: Mutex<Vec<(u64, i32)>>,
    /// Completions of requests that never reached the kernel. A leaf: no other lock is taken under it.
    refused: Mutex<Vec<Completion>>,
    any_refused: AtomicBool,
    woken: AtomicBool,
    /// Entries may have stayed in the ring that the kernel would not take.
    left: AtomicBool,
    /// The reaper is about to wait, or waits, in the kernel.
    waiting: AtomicBool,
    ring: IoUring,
    fd: OwnedFd,
}

struct Queue {
    slots: Vec<Option<Flight>>,
    free: Vec<u32>,
    backlog: VecDeque<Request>,
    /// By [`ArenaId`].
    pinned: Vec<Pieces>,
    /// Places given to pieces so far.
    pieces: u32,
    /// Vectors of ended requests, for the next ones.
    spare: Vec<Vec<IoVec>>,
    /// Something was submitted since the last kick.
    unkicked: bool,
    /// The entry that ends a wait is in one of the rings.
    nop: bool,
}

/// User data of the entry that ends a wait.
const WAKE: u64 = u64::MAX;

/// Places for registered pieces, as many as the kernel has: 256 GiB of arenas.
const PIECES: u32 = 16 << 10;

/// Time between tries to hand over what the kernel would not take.
const RETRY: Duration = Duration::from_millis(10);

/// Shortest queue that is tried when locked memory is scarce.
const DEPTH_MIN: u32 = 8;

/// A ring with a place for each of `depth` requests, and one more.
fn make_ring(depth: u32) -> std::io::Result<IoUring> {
    let ring = IoUring::builder().setup_submit_all().build((depth + 1).next_power_of_two())?;
    // Since Linux 5.11; `SUBMIT_ALL`, since 5.18, has been refused before this.
    if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
        return Err(std::io::Error::from_raw_os_error(libc::ENOSYS));
    }
    Ok(ring)
}

impl UringMedia {
    /// Opens a file or block device for one manager. Fails with EBUSY when somebody else uses it.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<UringMedia, MediaError> {
        let mut depth = options.depth.clamp(1, 4096);
        let mut probed = probe::open(path.as_ref(), &options)?;
        let name = probed.geometry.name.clone();
        let setup = |doing, e: std::io::Error| MediaError::Setup {
            device: name.clone(),
            doing,
            errno: e.raw_os_error().unwrap_or(libc::EIO),
        };
        let ring = loop {
            match make_ring(depth) {
                // Rings count as locked memory, which users have little of; a short queue is better than none.
                Err(e) if e.raw_os_error() == Some(libc::ENOMEM) && depth > DEPTH_MIN => {
                    depth = DEPTH_MIN.max(depth / 2)
                }
                ring => break ring.map_err(|e| setup("making an io_uring", e))?,
            }
        };
        if depth < options.depth {
            tracing::warn!(device = name, depth, "shorter queue than asked for");
        }
        probed.geometry.queue_depth = depth;
        let submitter = ring.submitter();
        submitter.register_files(&[probed.fd.as_raw_fd()]).map_err(|e| setup("registering it", e))?;
        let pin = options.pin && submitter.register_buffers_sparse(PIECES).is_ok();
        let zeros = Arena::new(ZEROS as usize).map_err(|e| setup("allocating memory", e))?;
        let queue = Queue {
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            backlog: VecDeque::new(),
            pinned: Vec::new(),
            pieces: 0,
            spare: Vec::new(),
            unkicked: false,
            nop: false,
        };
        Ok(UringMedia {
            front: Front::new(probed.geometry),
            read_only: options.read_only,
            pin,
            block: probed.block,
            direct: probed.direct,
            zeros,
            queue: Mutex::new(queue),
            reaper: Mutex::new(Vec::new()),
            refused: Mutex::new(Vec::new()),
            any_refused: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            left: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            ring,
            fd: probed.fd,
        })
    }

    /// Requests that were submitted and are not completed, those that wait for a place with the kernel included.
    pub fn in_flight(&self) -> usize {
        let queue = self.queue.lock();
        queue.slots.len() - queue.free.len() + queue.backlog.len()
    }

    /// What was asked of it.
    pub fn counters(&self) -> Counters {
        self.front.counters()
    }

    /// Whether transfers bypass the kernel's page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    fn admit(&self, request: &Request) -> Result<(), MediaError> {
        if self.read_only && matches!(request.op, Op::Write | Op::Discard | Op::WriteZeroes) {
            return Err(self.front.refused("opened read-only"));
        }
        self.front.admit(request)
    }

    /// Puts a request into a free slot and its first entry into the ring, or gives it back when no slot is free.
    fn start(&self, queue: &mut Queue, request: Request) -> Result<(), Request> {
        let Some(slot) = queue.free.pop() else { return Err(request) };
        let vector = queue.spare.pop().unwrap_or_default();
        if let [buf] = request.bufs[..] {
            self.pin(queue, &buf);
        }
        let flight = Flight::new(request, vector, &self.context(&queue.pinned));
        queue.slots[slot as usize] = Some(flight);
        self.push(queue, slot);
        Ok(())
    }

    fn context<'a>(&'a self, pinned: &'a [Pieces]) -> Context<'a> {
        Context { front: &self.front, block: self.block, pinned, zeros: self.zeros.ptr(0, ZEROS as usize) }
    }

    /// Puts the next entry of the request in `slot` into the ring.
    fn push(&self, queue: &mut Queue, slot: u32) {
        let Queue { slots, pinned, .. } = queue;
        let Some(flight) = &mut slots[slot as usize] else { return };
        let entry = flight.entry(&self.context(pinned)).user_data(slot as u64);
        self.push_entry(&entry);
    }

    /// Called with the lock of `queue` held.
    fn push_entry(&self, entry: &io_uring::squeue::Entry) {
        // SAFETY: the lock of `queue` makes this the only user of the submission ring. What the entry names stays
        // valid until its completion (see `Flight::entry`), for which `drop` waits.
        let pushed = unsafe { self.ring.submission_shared().push(entry) };
        assert!(pushed.is_ok(), "the ring has a place for each slot");
    }

    /// Entries in the ring that the kernel has not taken.
    fn unsubmitted(&self) -> u32 {
        let _queue = self.queue.lock();
        // SAFETY: as in `push_entry`.
        unsafe { self.ring.submission_shared().len() as u32 }
    }

    /// Hands all entries to the kernel. Those that it does not take for a while are left to the reaper.
    fn enter(&self) {
        let mut tries = 0;
        let e = loop {
            match self.hand_over() {
                Ok(()) => return,
                Err(e) if tries == 1000 => break e,
                Err(_) => std::thread::sleep(Duration::from_micros(100)),
            }
            tries += 1;
        };
        tracing::error!(device = self.front.geometry.name, "io_uring_enter: {e}");
        // The reaper writes `waiting` first and then looks at this: one of us sees the other.
        self.left.store(true, SeqCst);
        // Without memory for requests, which passes. Nothing but an entry ends the sleep of the reaper.
        let passes = matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM | libc::EBUSY));
        while passes && self.waiting.load(SeqCst) && self.hand_over().is_err() {
            std::thread::sleep(RETRY);
        }
    }

    /// Hands all entries to the kernel, as long as it takes them.
    fn hand_over(&self) -> std::io::Result<()> {
        loop {
            let n = self.unsubmitted();
            if n == 0 {
                return Ok(());
            }
            // SAFETY: no argument is passed, and the kernel serialises concurrent calls.
            match unsafe { self.ring.submitter().enter::<libc::sigset_t>(n, 0, 0, None) } {
                Ok(_) => {}
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Ends the wait of the reaper, if it waits. Whoever calls this has set the flag that the reaper looks at after
    /// `waiting`; as both sides write first and then read, one of them sees the other.
    fn interrupt(&self) {
        if !self.waiting.load(SeqCst) {
            return;
        }
        let mut queue = self.queue.lock();
        if !std::mem::replace(&mut queue.nop, true) {
            self.push_entry(&opcode::Nop::new().build().user_data(WAKE));
        }
        drop(queue);
        self.enter();
    }

    /// Takes everything out of the completion ring, ends requests or sends them on, starts those of the backlog.
    fn collect(&self, results: &mut Vec<(u64, i32)>, out: &mut Vec<Completion>) {
        if self.any_refused.swap(false, SeqCst) {
            out.append(&mut self.refused.lock());
        }
        // SAFETY: the lock of `reaper` makes this the only user of the completion ring.
        results.extend(unsafe { self.ring.completion_shared() }.map(|c| (c.user_data(), c.result())));
        if results.is_empty() {
            return;
        }
        let mut guard = self.queue.lock();
        let queue = &mut *guard;
        let mut pushed = false;
        for (slot, result) in results.drain(..) {
            if slot == WAKE {
                queue.nop = false;
                continue;
            }
            let Queue { slots, pinned, .. } = &mut *queue;
            let Some(flight) = &mut slots[slot as usize] else { continue };
            match flight.judge(result, &self.context(pinned)) {
                Verdict::Again => {
                    self.push(queue, slot as u32);
                    pushed = true;
                }
                Verdict::Done(result) => {
                    out.push(Completion { token: flight.request.token, result });
                    let vector = slots[slot as usize].take().map(Flight::into_vector).unwrap_or_default();
                    if vector.capacity() > 0 {
                        queue.spare.push(vector);
                    }
                    queue.free.push(slot as u32);
                }
            }
        }
        while !queue.free.is_empty()
            && let Some(request) = queue.backlog.pop_front()
        {
            pushed |= self.start(queue, request).is_ok();
        }
        drop(guard);
        if pushed {
            self.enter();
        }
    }

    /// Waits in the kernel for a completion, at most until `deadline`.
    fn wait(&self, deadline: Option<Instant>) {
        let left = deadline.map(|d| Timespec::from(d.saturating_duration_since(Instant::now())));
        let args = SubmitArgs::new();
        let args = match &left {
            Some(left) => args.timespec(left),
            None => args,
        };
        let flags = (EnterFlags::GETEVENTS | EnterFlags::EXT_ARG).bits();
        // SAFETY: `args` is what EXT_ARG asks for, and it lives until the call returns.
        let ended = unsafe { self.ring.submitter().enter(0, 1, flags, Some(&args)) };
        if let Err(e) = ended
            && !matches!(e.raw_os_error(), Some(libc::ETIME | libc::EINTR))
        {
            tracing::error!(device = self.front.geometry.name, "io_uring_enter: {e}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Registers the piece that holds this buffer, unless that was tried before.
    fn pin(&self, queue: &mut Queue, buf: &BufRef) {
        let Some(pieces) = queue.pinned.get_mut(buf.arena.0 as usize) else { return };
        let (Some(index), Some(first)) = (pieces.index(buf), pieces.first) else { return };
        if pieces.taken[index].is_some() {
            return;
        }
        let Some(arena) = self.front.arena(buf.arena) else { return };
        let at = index as u64 * PIECE;
        let iov_len = PIECE.min(arena.len() as u64 - at) as usize;
        let vector = [libc::iovec { iov_base: arena.ptr(at, iov_len).cast(), iov_len }];
        let number = first as u32 + index as u32;
        // SAFETY: the kernel pins the memory itself.
        let taken = unsafe { self.ring.submitter().register_buffers_update(number, &vector, None) };
        if let Err(e) = &taken {
            tracing::warn!(device = self.front.geometry.name, "memory is not pinned: {e}");
        }
        pieces.taken[index] = Some(taken.is_ok());
    }

    /// Places for the pieces of an arena.
    fn pieces_of(&self, arena: &Arena, queue: &mut Queue) -> Pieces {
        let count = (arena.len() as u64).div_ceil(PIECE) as u32;
        // Memory of others comes and goes: each transfer pins its own.
        if !self.pin || arena.is_theirs() || queue.pieces + count > PIECES {
            return Pieces::default();
        }
        let first = Some(queue.pieces as u16);
        queue.pieces += count;
        Pieces { first, taken: vec![None; count as usize] }
    }
}

impl Media for UringMedia {
    fn geometry(&self) -> &Geometry {
        &self.front.geometry
    }

    fn register(&self, arena: Arc<Arena>) -> Result<ArenaId, MediaError> {
        // The lock keeps the order of numbers the same here and in the front.
        let mut queue = self.queue.lock();
        let id = self.front.register(arena.clone())?;
        let pieces = self.pieces_of(&arena, &mut queue);
        put(&mut queue.pinned, id.0 as usize, pieces);
        Ok(id)
    }

    fn unregister(&self, arena: ArenaId) {
        // Pieces that the kernel has taken keep their places, and their memory, until the ring is gone: arenas of our own are registered once.
        self.front.unregister(arena);
    }

    fn submit(&self, request: Request) {
        if let Err(e) = self.admit(&request) {
            self.refused.lock().push(Completion { token: request.token, result: Err(e) });
            self.any_refused.store(true, SeqCst);
            return self.interrupt();
        }
        let queue = &mut *self.queue.lock();
        queue.unkicked = true;
        if queue.backlog.is_empty() {
            if let Err(request) = self.start(queue, request) {
                queue.backlog.push_back(request);
            }
        } else {
            queue.backlog.push_back(request);
        }
    }

    fn kick(&self) {
        if std::mem::take(&mut self.queue.lock().unkicked) {
            self.front.meter.kicked();
        }
        self.enter();
    }

    fn reap(&self, out: &mut Vec<Completion>, wait: Wait) {
        let results = &mut *self.reaper.lock();
        let before = out.len();
        let deadline = match wait {
            Wait::For(Some(time)) => Instant::now().checked_add(time),
            _ => None,
        };
        loop {
            if self.left.swap(false, SeqCst) && self.hand_over().is_err() {
                self.left.store(true, SeqCst);
            }
            self.collect(results, out);
            if out.len() > before || wait == Wait::No {
                return;
            }
            if deadline.is_some_and(|d| Instant::now() >= d) {
                return;
            }
            self.waiting.store(true, SeqCst);
            let woken = self.woken.swap(false, SeqCst);
            if !woken && !self.any_refused.load(SeqCst) {
                let retry = self.left.load(SeqCst).then(|| Instant::now() + RETRY);
                self.wait(deadline.into_iter().chain(retry).min());
            }
            self.waiting.store(false, SeqCst);
            if woken {
                return;
            }
        }
    }

    fn wake(&self) {
        self.woken.store(true, SeqCst);
        self.interrupt();
    }

    /// The kernel puts completions into the ring without being asked (no `COOP_TASKRUN`).
    fn is_polled(&self) -> bool {
        true
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the ring's descriptor is open as long as the medium lives.
        Some(unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) })
    }

    fn look(&self, out: &mut Vec<Completion>) {
        if let Some(mut results) = self.reaper.try_lock() {
            self.collect(&mut results, out);
        }
    }
}

impl Drop for UringMedia {
    fn drop(&mut self) {
        let mut ignored = Vec::new();
        loop {
            self.enter();
            let queue = self.queue.get_mut();
            if queue.backlog.is_empty() && queue.free.len() == queue.slots.len() {
                break;
            }
            self.reap(&mut ignored, Wait::For(Some(Duration::from_millis(100))));
            ignored.clear();
        }
        // The kernel takes the ring apart later; the lock and the file must be free at once for whoever comes next.
        let _ = self.ring.submitter().unregister_files();
        let _ = rustix::fs::flock(&self.fd, rustix::fs::FlockOperation::Unlock);
    }
}
