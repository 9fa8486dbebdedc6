//! An I/O queue pair and the requests that go through it. One thread at a time owns it: the one that holds its lock.
//!
//! A request becomes one or more commands ([`Piece`]s, cut by `plan`, built by `command`), several of which may be under way at once; it ends when
//! all of them have. Requests that are handed over together and go on where each other end become one command, as in the kernel's block layer. Requests that find no free place wait in the backlog, in order. A command's identifier is the number of
//! its place (10 bits) and a count (6 bits) of the uses of that place: a place is used again only after the completion of its
//! command, or when the controller was stopped, and a completion that does not fit is noticed.
//!
//! A command that failed and may be tried again (no DNR bit) is sent again: its memory has not changed, as the
//! request has not ended. What happens to commands whose end nobody knows is decided by `recover`.

use super::command::{Kind, Piece, add_memory, entry, errno, memory};
use super::dma::Region;
use super::limits::{DEALLOCATE_MAX, Limits};
use super::plan;
use super::pointer::Segments;
use super::ring::{Ring, RingFacts, Shadow};
use crate::front::Front;
use crate::{Completion, Flags, MediaError, Op, Request};
use format::nvme::Status;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// Bits of a command identifier that are the number of a place.
const PLACE_BITS: u32 = 10;
/// Most places: the last number stays free, so that FFFFh, which means no command, never occurs (NVMe 1.4, 5.14.1.1).
pub(super) const PLACES_MAX: u16 = (1 << PLACE_BITS) - 1;
/// Most requests of a command: who submitted the first of them waits for the last.
const JOINED_MAX: usize = 32;
/// Sends of a command, before its failure is final.
const TRIES: u8 = 5;

/// What the pairs of a medium share.
pub(super) struct Context {
    pub(super) front: Front,
    pub(super) limits: Limits,
    /// Where the device sees each arena.
    pub(super) arenas: parking_lot::RwLock<Vec<u64>>,
    /// A page of zeros.
    pub(super) zeros: Region,
    /// Writes that completed and are not durable by themselves.
    pub(super) written: AtomicU64,
    /// Of these, how many a flush has made durable.
    pub(super) flushed: AtomicU64,
    /// Completions that were seen, of whatever status.
    pub(super) progress: AtomicU64,
}

/// A request that has not ended.
struct Pending {
    request: Request,
    /// Bytes that pieces were made of; `u64::MAX` when no more are to be made.
    cut: u64,
    /// Pieces that have not ended.
    pieces: u32,
    error: Option<MediaError>,
    /// [`Context::written`] when a flush was sent.
    written: u64,
    zero_by_writing: bool,
    /// The next request of its only command.
    joined: Option<u32>,
}

/// Requests of one command.
type Joined = SmallVec<[u32; 8]>;

struct Flight {
    piece: Piece,
    sent: Instant,
    /// When it was asked to be aborted.
    aborted: Option<Instant>,
}

struct Place {
    uses: u8,
    flight: Option<Flight>,
}

/// A command that takes too long.
pub(super) struct Late {
    pub(super) cid: u16,
    pub(super) aborted: bool,
}

pub(super) struct Pair {
    ring: Ring,
    /// Commands may be sent. Otherwise everything waits.
    open: bool,
    places: Vec<Place>,
    free: Vec<u16>,
    /// For each place a page for PRP lists and the like, then one to bounce through.
    pages: Vec<[Region; 2]>,
    pending: Vec<Option<Pending>>,
    free_pending: Vec<u32>,
    backlog: VecDeque<u32>,
    again: VecDeque<Piece>,
    /// Requests that ended without the device.
    ended: Vec<Completion>,
}

impl Pair {
    /// `pages`: two for each place, one place less than the ring has entries.
    pub(super) fn new(ring: Ring, pages: Vec<[Region; 2]>) -> Pair {
        let n = pages.len() as u16;
        assert!(n < ring.entries() && n <= PLACES_MAX);
        Pair {
            ring,
            open: false,
            places: (0..n).map(|_| Place { uses: 0, flight: None }).collect(),
            free: (0..n).rev().collect(),
            pages,
            pending: Vec::new(),
            free_pending: Vec::new(),
            backlog: VecDeque::new(),
            again: VecDeque::new(),
            ended: Vec::new(),
        }
    }

    /// What the controller is told of its queues.
    pub(super) fn ring_facts(&self) -> RingFacts {
        self.ring.facts()
    }

    /// Requests that have not ended.
    pub(super) fn requests(&self) -> usize {
        self.pending.len() - self.free_pending.len()
    }

    /// Commands that the controller has.
    pub(super) fn commands(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Takes an admitted request, which waits for [`Pair::send_all`].
    pub(super) fn submit(&mut self, request: Request, context: &Context) {
        let zero_by_writing = context.limits.zeroes_max == 0;
        let pending =
            Pending { request, cut: 0, pieces: 0, error: None, written: 0, zero_by_writing, joined: None };
        let id = match self.free_pending.pop() {
            Some(id) => {
                self.pending[id as usize] = Some(pending);
                id
            }
            None => {
                self.pending.push(Some(pending));
                self.pending.len() as u32 - 1
            }
        };
        self.backlog.push_back(id);
    }

    /// Sends what can be sent, and tells the controller. True if a request has ended.
    pub(super) fn send_all(&mut self, context: &Context) -> bool {
        self.fill(context);
        self.ring();
        !self.ended.is_empty()
    }

    /// Tells the controller what was sent.
    fn ring(&mut self) {
        if self.ring.is_unrung() {
            self.ring.ring();
        }
    }

    /// Writes doorbells that the controller may have missed. True if there were any.
    pub(super) fn insist(&mut self) -> bool {
        self.ring.insist()
    }

    /// Sends commands as long as there are places.
    fn fill(&mut self, context: &Context) {
        if !self.open {
            return;
        }
        while !self.free.is_empty()
            && let Some(piece) = self.again.pop_front()
        {
            self.send(piece, context);
        }
        while !self.free.is_empty()
            && let Some(&id) = self.backlog.front()
        {
            match self.cut_next(id, context) {
                Some(piece) => {
                    let piece = self.join(piece, context);
                    self.send(piece, context);
                }
                None => {
                    self.backlog.pop_front();
                    self.end_if_done(id);
                }
            }
        }
    }

    /// The next piece of a request; `None` when there is no more.
    fn cut_next(&mut self, id: u32, context: &Context) -> Option<Piece> {
        let limits = &context.limits;
        let pending = self.pending[id as usize].as_mut()?;
        let request = &pending.request;
        if pending.error.is_some() || pending.cut == u64::MAX {
            return None;
        }
        let left = request.len - pending.cut;
        let (kind, len) = match request.op {
            Op::Flush => {
                pending.cut = u64::MAX;
                if !context.front.geometry.volatile_cache {
                    return None;
                }
                pending.written = context.written.load(SeqCst);
                pending.pieces += 1;
                return Some(Piece { request: id, kind: Kind::Flush, from: 0, len: 0, tries: 0 });
            }
            _ if left == 0 => return None,
            Op::Discard if !limits.deallocate => return None,
            Op::Discard => (Kind::Deallocate, left.min(DEALLOCATE_MAX * limits.lba)),
            Op::WriteZeroes if pending.zero_by_writing => (Kind::ZeroWrite, left.min(limits.cut.bytes_max)),
            Op::WriteZeroes => (Kind::Zeroes, left.min(limits.zeroes_max)),
            Op::Read | Op::Write => {
                let rest = plan::slice(memory(request, context).into_iter(), pending.cut, left);
                let at = request.offset + pending.cut;
                let share = plan::next(&limits.cut, at, &rest, request.op == Op::Write);
                (if share.bounced { Kind::Bounced } else { Kind::Transfer }, share.len)
            }
        };
        let piece = Piece { request: id, kind, from: pending.cut, len, tries: 0 };
        pending.cut += len;
        pending.pieces += 1;
        Some(piece)
    }

    /// Takes the requests behind that of a piece into its command that go on where the one before them ends, if it is all of its request.
    fn join(&mut self, mut piece: Piece, context: &Context) -> Piece {
        let whole = |p: &Pending| piece.kind == Kind::Transfer && piece.len == p.request.len;
        if !self.pending[piece.request as usize].as_ref().is_some_and(whole) {
            return piece;
        }
        let mut memory = Segments::new();
        let mut last = piece.request;
        let mut count = 1;
        while count < JOINED_MAX
            && let Some(&next) = self.backlog.get(1)
        {
            let (Some(before), Some(behind)) = (&self.pending[last as usize], &self.pending[next as usize])
            else {
                break;
            };
            let (before, behind) = (&before.request, &behind.request);
            let goes_on = behind.op == before.op
                && behind.flags == before.flags
                && behind.offset == before.offset + before.len;
            if !goes_on {
                break;
            }
            if memory.is_empty() {
                add_memory(&mut memory, before, context);
            }
            let (mut both, len) = (memory.clone(), piece.len + behind.len);
            add_memory(&mut both, behind, context);
            let first = before.offset + before.len - piece.len;
            let share = plan::next(&context.limits.cut, first, &both, before.op == Op::Write);
            if share.bounced || share.len != len {
                break;
            }
            (memory, piece.len) = (both, len);
            self.backlog.remove(1);
            if let Some(pending) = &mut self.pending[last as usize] {
                pending.joined = Some(next);
            }
            if let Some(pending) = &mut self.pending[next as usize] {
                (pending.cut, pending.pieces) = (pending.request.len, 1);
            }
            last = next;
            count += 1;
        }
        piece
    }

    /// The requests of a command, of which this is the first.
    fn joined(&self, first: u32) -> Joined {
        let next = |&id: &u32| self.pending[id as usize].as_ref().and_then(|p| p.joined);
        std::iter::successors(Some(first), next).collect()
    }

    /// Writes the command of a piece into the queue. There is a free place.
    fn send(&mut self, mut piece: Piece, context: &Context) {
        let Some(number) = self.free.pop() else { return self.again.push_front(piece) };
        piece.tries += 1;
        let mut memory = Segments::new();
        if piece.kind == Kind::Transfer {
            let requests = self.joined(piece.request);
            let pending = requests.iter().filter_map(|&id| self.pending[id as usize].as_ref());
            pending.for_each(|p| add_memory(&mut memory, &p.request, context));
        }
        let pending = self.pending[piece.request as usize].as_ref().expect("its pieces have not ended");
        let place = &mut self.places[number as usize];
        place.uses = place.uses.wrapping_add(1);
        let mut entry = entry(&piece, &pending.request, memory, context, &self.pages[number as usize]);
        entry.cid = cid(number, place.uses).into();
        place.flight = Some(Flight { piece, sent: Instant::now(), aborted: None });
        self.ring.push(&entry);
    }

    /// Takes completions in and sends what waits. Fails when the controller completes what is not under way.
    pub(super) fn collect(
        &mut self,
        context: &Context,
        out: &mut Vec<Completion>,
    ) -> Result<(), &'static str> {
        out.append(&mut self.ended);
        if !self.open || !self.ring.has_completion() {
            return Ok(());
        }
        let mut result = Ok(());
        while let Some(done) = self.ring.pop() {
            context.progress.fetch_add(1, Relaxed);
            let (number, uses) = (done.cid.get() & PLACES_MAX, (done.cid.get() >> PLACE_BITS) as u8);
            let place = self.places.get_mut(number as usize).filter(|p| p.uses & 0x3F == uses);
            let Some(flight) = place.and_then(|p| p.flight.take()) else {
                result = Err("it completes commands that are not under way");
                continue;
            };
            self.free.push(number);
            self.finish(flight.piece, done.status(), context);
        }
        self.ring.ring_completions();
        self.send_all(context);
        out.append(&mut self.ended);
        result
    }

    /// A command has completed.
    fn finish(&mut self, piece: Piece, status: Status, context: &Context) {
        let Some(pending) = self.pending[piece.request as usize].as_mut() else { return };
        if status.is_success() {
            match piece.kind {
                Kind::Flush => drop(context.flushed.fetch_max(pending.written, SeqCst)),
                Kind::Transfer if pending.request.op == Op::Read => {}
                // Nothing is lost when it has no effect.
                Kind::Deallocate => {}
                Kind::Transfer | Kind::Bounced if pending.request.flags.contains(Flags::FUA) => {}
                _ => drop(context.written.fetch_add(1, SeqCst)),
            }
            return self.joined(piece.request).iter().for_each(|&id| self.piece_ended(id, None));
        }
        let device = &context.front.geometry.name;
        let unsupported = matches!(status.code(), Status::INVALID_OPCODE | Status::INVALID_FIELD);
        if piece.kind == Kind::Zeroes && unsupported {
            pending.zero_by_writing = true;
            return self.again.push_back(Piece { kind: Kind::ZeroWrite, tries: 0, ..piece });
        }
        // A write that was aborted because it took too long is not begun once more.
        let given_up = status.code() == Status::ABORT_REQUESTED && pending.request.op != Op::Read;
        if !status.dnr() && !given_up && piece.tries < TRIES {
            tracing::debug!(device, "{:?} fails with status {:#x}, again", piece.kind, status.0);
            return self.again.push_back(piece);
        }
        tracing::warn!(device, "{:?} of {} bytes fails with status {:#x}", piece.kind, piece.len, status.0);
        let requests = self.joined(piece.request);
        if requests.len() > 1 && !given_up {
            // It may be the fault of one of them.
            return requests.iter().for_each(|&id| self.part(id));
        }
        requests.iter().for_each(|&id| self.piece_failed(id, errno(status), context));
    }

    /// A request that was joined with others is sent by itself.
    fn part(&mut self, id: u32) {
        let Some(pending) = &mut self.pending[id as usize] else { return };
        pending.joined = None;
        let len = pending.request.len;
        self.again.push_back(Piece { request: id, kind: Kind::Transfer, from: 0, len, tries: 0 });
    }

    fn piece_failed(&mut self, id: u32, errno: i32, context: &Context) {
        let Some(pending) = &self.pending[id as usize] else { return };
        let error = context.front.io(&pending.request, errno);
        self.piece_ended(id, Some(error));
    }

    fn piece_ended(&mut self, id: u32, error: Option<MediaError>) {
        let Some(pending) = self.pending[id as usize].as_mut() else { return };
        pending.pieces -= 1;
        if pending.error.is_none() {
            pending.error = error;
        }
        // A request that is still being cut is ended by `fill`.
        if self.backlog.front() != Some(&id) {
            self.end_if_done(id);
        }
    }

    fn end_if_done(&mut self, id: u32) {
        let slot = &mut self.pending[id as usize];
        if slot.as_ref().is_some_and(|p| p.pieces == 0)
            && let Some(pending) = slot.take()
        {
            self.free_pending.push(id);
            let result = pending.error.map_or(Ok(()), Err);
            self.ended.push(Completion { token: pending.request.token, result });
        }
    }

    /// Commands that were sent longer than `limit` ago, or, if they were to be aborted, were so longer than `grace` ago.
    pub(super) fn late(&self, now: Instant, limit: Duration, grace: Duration) -> Vec<Late> {
        let places =
            self.places.iter().enumerate().filter_map(|(n, p)| Some((n, p.uses, p.flight.as_ref()?)));
        places
            .filter(|(_, _, f)| {
                let (since, limit) = f.aborted.map_or((f.sent, limit), |aborted| (aborted, grace));
                now.saturating_duration_since(since) > limit
            })
            .map(|(n, uses, f)| Late { cid: cid(n as u16, uses), aborted: f.aborted.is_some() })
            .collect()
    }

    /// Notes that a command was to be aborted.
    pub(super) fn note_abort(&mut self, late: &Late) {
        let place = &mut self.places[(late.cid & PLACES_MAX) as usize];
        if cid(late.cid & PLACES_MAX, place.uses) == late.cid
            && let Some(flight) = &mut place.flight
        {
            flight.aborted = Some(Instant::now());
        }
    }

    /// From now on everything waits.
    pub(super) fn close(&mut self) {
        self.open = false;
    }

    /// The controller has stopped and accesses no memory: it has forgotten its commands, and nobody knows how far they had come.
    /// Reads are made again. Everything else fails: a write may be there, or not, or in part.
    pub(super) fn forget_commands(&mut self, context: &Context) {
        for number in 0..self.places.len() as u16 {
            let Some(flight) = self.places[number as usize].flight.take() else { continue };
            self.free.push(number);
            let piece = flight.piece;
            let Some(pending) = self.pending[piece.request as usize].as_ref() else { continue };
            if pending.request.op == Op::Read && piece.tries < TRIES {
                self.again.push_back(piece);
            } else {
                let requests = self.joined(piece.request);
                requests.iter().for_each(|&id| self.piece_failed(id, libc::EIO, context));
            }
        }
    }

    /// Empty queues, of which the controller knows nothing yet. Nothing is under way.
    pub(super) fn renew(&mut self, shadow: Option<Arc<Shadow>>) {
        assert!(!self.open && self.commands() == 0);
        self.ring.reset(shadow);
    }

    /// The controller knows its queues.
    pub(super) fn open(&mut self) {
        self.open = true;
    }

    /// Sends what waits.
    pub(super) fn resume(&mut self, context: &Context) {
        self.send_all(context);
    }

    /// Nothing will ever be sent again: all requests fail. The controller accesses no memory.
    pub(super) fn fail_all(&mut self, context: &Context) {
        self.open = false;
        for number in 0..self.places.len() as u16 {
            if self.places[number as usize].flight.take().is_some() {
                self.free.push(number);
            }
        }
        self.again.clear();
        self.backlog.clear();
        for id in 0..self.pending.len() as u32 {
            if let Some(pending) = self.pending[id as usize].as_mut() {
                pending.pieces = 0;
                let gone = context.front.gone();
                pending.error.get_or_insert(gone);
                self.end_if_done(id);
            }
        }
    }

    /// Whether [`Pair::collect`] would find something.
    pub(super) fn has_news(&self) -> bool {
        !self.ended.is_empty() || self.open && self.ring.has_completion()
    }
}

fn cid(number: u16, uses: u8) -> u16 {
    number | (uses as u16 & 0x3F) << PLACE_BITS
}
