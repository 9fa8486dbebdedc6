//! Transfers between the medium and memory of a door's, without the page cache: reads and overwrites through handles with
//! DIRECT, of whole blocks.
//!
//! What is in the cache, has no block, or must not go to its block as it is, goes the ordinary way; whoever asks is told so
//! before anything has begun. A direct transfer differs from that of a page in three things:
//!
//! - *Its memory may change while it is under way*, as a client can write it at any time. So what is written has no checksum that a
//!   recovery could verify: a client could make an epoch invalid, with everything of others in it. An epoch with such writes is ordered
//!   by waiting instead: its record is written when they have completed, and been flushed ([`Core::awaits_direct`]). For the same reason
//!   they go to no block whose content a recovery may verify or replace ([`Core::may_overwrite`]).
//! - *No frame stands for the block.* Nobody reads a block into the cache while it is being written ([`Core::start_reads`]), and what a
//!   block held that is being read is not given to another file before that is over ([`Core::reusable`]); a block that is being written is protected by
//!   the epoch that the write belongs to.
//! - *Its memory belongs to somebody who may go away.* It is kept until the last transfer is over, also when nobody waits for that any more.
//!
//! Where tested: tests/direct.rs, and the crash tests, whose programs write through such handles.

use crate::core::{Core, Res, Stop, Wait};
use crate::extents::Mapping;
use crate::inode::{Data, Slot};
use crate::io::{Io, IoKind};
use crate::pages::key;
use crate::space::Run;
use format::BlockNo;
use fs::cache::PAGE;
use fs::{Error, Handle, OpenFlags};
use media::{ArenaId, BufRef, MediaError, Op, Request};
use smallvec::SmallVec;
use std::task::Waker;

const PAGE64: u64 = PAGE as u64;

/// Neighbouring blocks of a transfer.
type Runs = SmallVec<[Run; 2]>;

/// Calls under way, and memory that doors have lent.
#[derive(Default)]
pub(crate) struct Directs {
    calls: Calls,
    /// How many reads are under way that began while this epoch was running, in the order of epochs.
    reads: SmallVec<[(u64, u32); 2]>,
    /// Writes under way.
    pub writes: usize,
    /// By number of the arena.
    memories: Vec<Option<Lent>>,
}

/// Calls by number. A number is given again when its call is forgotten: nobody has it any more then.
#[derive(Default)]
struct Calls {
    places: Vec<Option<Call>>,
    free: Vec<u32>,
    /// How many somebody waits for.
    awaited: usize,
}

struct Call {
    waker: Option<Waker>,
    /// Requests that have not completed.
    left: u32,
    result: Result<(), MediaError>,
    memory: ArenaId,
    /// Of a read: the epoch in which it began.
    reads: Option<u64>,
    /// Nobody waits for it any more.
    abandoned: bool,
}

impl Calls {
    fn insert(&mut self, call: Call) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        });
        self.places[number as usize] = Some(call);
        number
    }

    fn get(&mut self, number: u32) -> Option<&mut Call> {
        self.places.get_mut(number as usize)?.as_mut()
    }

    fn forget(&mut self, number: u32) -> Option<Call> {
        let call = self.places.get_mut(number as usize)?.take()?;
        self.awaited -= call.waker.is_some() as usize;
        self.free.push(number);
        Some(call)
    }
}

impl Directs {
    /// Somebody waits for the end of a call.
    pub fn wait(&mut self, number: u32, waker: &Waker) {
        if let Some(call) = self.calls.get(number) {
            let before = call.waker.replace(waker.clone());
            self.calls.awaited += before.is_none() as usize;
        }
    }

    /// Whether somebody waits for the end of any.
    pub fn is_awaited(&self) -> bool {
        self.calls.awaited > 0
    }

    fn lent(&mut self, memory: ArenaId) -> Option<&mut Lent> {
        self.memories.get_mut(memory.0 as usize)?.as_mut()
    }
}

#[derive(Default)]
struct Lent {
    calls: u32,
    /// To be given back when none is left.
    leaves: bool,
}

/// What an epoch has overwritten that its record says nothing of (`direct`), and how far it is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Uncovered {
    /// There is nothing.
    Nothing,
    /// It is on its way, or was not flushed.
    Written,
    /// It was complete when the flush was sent that is on its way.
    Flushing,
    /// The record may be written.
    Flushed,
}

impl Core {
    /// Transfers may name this memory from now on.
    pub fn memory_lent(&mut self, memory: ArenaId) {
        let (memories, n) = (&mut self.directs.memories, memory.0 as usize);
        memories.resize_with(memories.len().max(n + 1), || None);
        memories[n] = Some(Lent::default());
    }

    /// No more transfers will name it. The medium is told now, or when the last of them is over.
    pub fn memory_returned(&mut self, memory: ArenaId) {
        if let Some(lent) = self.directs.lent(memory) {
            lent.leaves = true;
        }
        self.let_go(memory);
    }

    fn let_go(&mut self, memory: ArenaId) {
        if self.directs.lent(memory).is_some_and(|lent| lent.leaves && lent.calls == 0) {
            self.directs.memories[memory.0 as usize] = None;
            self.media.unregister(memory);
        }
    }

    /// What quarantine may give out again: freed in an epoch that is recorded, and before all reads began that are under way.
    pub fn reusable(&self) -> u64 {
        match self.directs.reads.first() {
            Some(&(began, _)) => self.recorded.min(began - 1),
            None => self.recorded,
        }
    }

    /// Begins to read through a handle. `None`: it cannot be done so, or not now. The call's number, and bytes.
    pub fn read_direct(&mut self, handle: Handle, offset: u64, to: BufRef) -> Res<Option<(u32, usize)>> {
        let open = *self.handles.file(handle, OpenFlags::READ)?;
        if !self.is_direct(open.flags, offset, to) {
            return Ok(None);
        }
        self.need_tail(open.slot)?;
        self.reachable()?;
        let end = (offset + to.len as u64).min(self.slab.get(open.slot).size);
        // What is behind the end of a file within its last block is nobody's to see.
        if end <= offset || !end.is_multiple_of(PAGE64) {
            return Ok(None);
        }
        let idle = |core: &Core, block: u64| !core.has_image(block) && core.writing(block).is_none();
        let absent = |core: &mut Core, page: u64| core.cache.find(key(open.slot, page)).is_none();
        let Some(runs) = self.direct_runs(open.slot, (offset, end), absent, idle) else { return Ok(None) };
        let epoch = self.running.epoch;
        match self.directs.reads.last_mut() {
            Some((latest, n)) if *latest == epoch => *n += 1,
            _ => self.directs.reads.push((epoch, 1)),
        }
        let pages = (end - offset) / PAGE64;
        self.counters.read_blocks += pages;
        self.counters.direct_read_blocks += pages;
        let call = self.begin_direct(Op::Read, &runs, to, Some(epoch));
        self.accessed_by(handle);
        Ok(Some((call, (end - offset) as usize)))
    }

    /// Begins to overwrite through a handle; as [`Core::read_direct`].
    pub fn write_direct(
        &mut self,
        handle: Handle,
        offset: u64,
        from: BufRef,
        ticket: &mut Option<u64>,
    ) -> Res<Option<(u32, usize)>> {
        let open = *self.handles.file(handle, OpenFlags::WRITE)?;
        if !self.is_direct(open.flags, offset, from) || open.flags.contains(OpenFlags::APPEND) {
            return Ok(None);
        }
        let (slot, end) = (open.slot, offset + from.len as u64);
        if self.strict || end > self.slab.get(slot).size {
            return Ok(None);
        }
        self.admit()?;
        // May close the epoch, so it comes before anything is looked at.
        self.drop_capability(slot, ticket)?;
        if self.running.keeps_places() {
            return Ok(None);
        }
        let idle = |core: &Core, block: u64| {
            (core.may_overwrite(block) || core.is_own(block)) && core.writing(block).is_none()
        };
        // What nobody has changed or uses is forgotten.
        let absent = |core: &mut Core, page: u64| match core.cache.find(key(slot, page)) {
            None => true,
            Some(f) if core.cache.is_dirty(f) || core.cache.is_pinned(f) || !core.cache.is_valid(f) => false,
            Some(f) => {
                core.cache.remove(f);
                true
            }
        };
        let Some(runs) = self.direct_runs(slot, (offset, end), absent, idle) else {
            self.end_guards_of(slot, offset, end);
            return Ok(None);
        };
        for &run in &runs {
            // A checksum of what is no longer there must not be verified.
            self.running.covers.forget(run);
        }
        self.bad_reads.forget(slot, offset / PAGE64, end / PAGE64);
        self.running.uncovered = true;
        let now = self.now();
        let inode = self.edit(slot);
        (inode.mtime, inode.ctime) = (now.into(), now.into());
        let pages = (end - offset) / PAGE64;
        self.counters.overwritten_blocks += pages;
        self.counters.direct_written_blocks += pages;
        self.directs.writes += 1;
        let call = self.begin_direct(Op::Write, &runs, from, None);
        self.wrote_through(handle, slot);
        Ok(Some((call, from.len as usize)))
    }

    /// Whether such a transfer can be a direct one at all.
    fn is_direct(&mut self, flags: OpenFlags, offset: u64, memory: BufRef) -> bool {
        let len = memory.len as u64;
        let aligned = |n: u64, unit: u64| n.is_multiple_of(unit);
        flags.contains(OpenFlags::DIRECT)
            && len > 0
            && aligned(offset, PAGE64)
            && aligned(len, PAGE64)
            && aligned(memory.offset, self.geometry.sector as u64)
            && offset.checked_add(len).is_some()
            && self.directs.lent(memory.arena).is_some_and(|lent| !lent.leaves)
    }

    /// The blocks of a range of whole pages, if all of them have blocks whose content counts, and these and the pages are as is asked for.
    fn direct_runs(
        &mut self,
        slot: Slot,
        (offset, end): (u64, u64),
        mut page_may: impl FnMut(&mut Core, u64) -> bool,
        block_may: impl Fn(&Core, u64) -> bool,
    ) -> Option<Runs> {
        if !matches!(self.slab.get(slot).tail.as_ref().map(|t| &t.data), Some(Data::Extents(_))) {
            return None;
        }
        let (mut page, last) = (offset / PAGE64, end / PAGE64);
        let mut runs = Runs::new();
        while page < last {
            let Mapping::Block { block, count, unwritten: false } = self.map(slot).lookup(page) else {
                return None;
            };
            let count = (count as u64).min(last - page);
            if !(block.0..block.0 + count).all(|block| block_may(self, block)) {
                return None;
            }
            match runs.last_mut() {
                Some(run) if run.block.0 + run.count as u64 == block.0 => run.count += count as u32,
                _ => runs.push(Run { block, count: count as u32 }),
            }
            page += count;
        }
        (offset / PAGE64..last).all(|page| page_may(self, page)).then_some(runs)
    }

    /// Submits the requests of a call.
    fn begin_direct(&mut self, op: Op, runs: &[Run], memory: BufRef, reads: Option<u64>) -> u32 {
        if let Some(lent) = self.directs.lent(memory.arena) {
            lent.calls += 1;
        }
        let of_call =
            Call { waker: None, left: 0, result: Ok(()), memory: memory.arena, reads, abandoned: false };
        let call = self.directs.calls.insert(of_call);
        let max = self.geometry.max_transfer as u64 / PAGE64;
        let (mut at, mut left) = (memory.offset, 0);
        for &run in runs {
            let mut done = 0;
            while done < run.count as u64 {
                let n = (run.count as u64 - done).min(max);
                let (block, len) = (run.block.0 + done, n * PAGE64);
                let buf = BufRef { arena: memory.arena, offset: at, len: len as u32 };
                let request = Request::transfer(op, BlockNo(block).byte(), buf, 0);
                let io = match op {
                    Op::Write => {
                        self.writing.insert(block, (n as u32, true));
                        let kind = IoKind::Direct { call, writes: Some(block) };
                        Io { kind, epoch: Some(self.epoch_io_begins()) }
                    }
                    _ => Io { kind: IoKind::Direct { call, writes: None }, epoch: None },
                };
                self.submit(request, io);
                (at, done, left) = (at + len, done + n, left + 1);
            }
        }
        if let Some(of_call) = self.directs.calls.get(call) {
            of_call.left = left;
        }
        call
    }

    /// A request of a call has completed.
    pub fn direct_ended(&mut self, call: u32, writes: Option<u64>, result: Result<(), MediaError>) {
        if let Some(block) = writes {
            self.writing.remove(&block);
            if let Err(e) = &result {
                self.latch(e.to_string());
            }
        }
        let Some(entry) = self.directs.calls.get(call) else { return };
        entry.left -= 1;
        if entry.result.is_ok() {
            entry.result = result;
        }
        if entry.left > 0 {
            return;
        }
        let (memory, reads, abandoned) = (entry.memory, entry.reads, entry.abandoned);
        if let Some(waker) = entry.waker.take() {
            self.directs.calls.awaited -= 1;
            self.woken.push(waker);
        }
        if abandoned {
            self.directs.calls.forget(call);
        }
        if let Some(lent) = self.directs.lent(memory) {
            lent.calls -= 1;
        }
        self.let_go(memory);
        match reads {
            Some(epoch) => self.direct_read_over(epoch),
            None => self.directs.writes -= 1,
        }
        // Who wants to read what was being written, or to write it once more, or waits for the last transfer.
        self.wake(Wait::Progress);
    }

    fn direct_read_over(&mut self, epoch: u64) {
        let before = self.reusable();
        let reads = &mut self.directs.reads;
        if let Some(at) = reads.iter().position(|&(began, _)| began == epoch) {
            reads[at].1 -= 1;
            if reads[at].1 == 0 {
                reads.remove(at);
            }
        }
        if self.reusable() > before {
            self.release_freed();
        }
    }

    /// How a call has ended, if it has. It is forgotten then.
    pub fn direct_result(&mut self, call: u32) -> Res<()> {
        match self.directs.calls.get(call) {
            Some(entry) if entry.left > 0 => Err(Stop::Wait(Wait::Direct(call))),
            _ => {
                let entry = self.directs.calls.forget(call);
                Ok(entry.map_or(Ok(()), |entry| entry.result).map_err(Error::Media)?)
            }
        }
    }

    /// Nobody waits for a call any more.
    pub fn abandon_direct(&mut self, call: u32) {
        match self.directs.calls.get(call) {
            Some(entry) if entry.left > 0 => {
                entry.abandoned = true;
                let waker = entry.waker.take();
                self.directs.calls.awaited -= waker.is_some() as usize;
            }
            _ => drop(self.directs.calls.forget(call)),
        }
    }

    /// Somebody wants to overwrite what a recovery might still verify, and goes the ordinary way now: the next one need not, if the epochs are
    /// said to be durable.
    fn end_guards_of(&mut self, slot: Slot, offset: u64, end: u64) {
        let guarded = self.map(slot).within(offset / PAGE64, end / PAGE64).iter().any(|e| {
            let before = self.guards.range(..e.block + e.count as u64).next_back();
            before.is_some_and(|(first, (n, _))| e.block < first + *n as u64)
        });
        if guarded && self.ordered <= self.durable {
            self.begin_mark();
        }
    }

    /// Whether the record of a closed epoch waits for direct writes: until they have completed and were flushed. The flush is sent here.
    pub fn awaits_direct(&mut self, index: usize) -> bool {
        let state = &self.epochs[index];
        match state.uncovered {
            Uncovered::Nothing | Uncovered::Flushed => false,
            Uncovered::Written if state.in_flight > 0 => true,
            Uncovered::Written if !self.geometry.volatile_cache => false,
            Uncovered::Written if self.flush_in_flight => true,
            Uncovered::Written => {
                self.epochs[index].uncovered = Uncovered::Flushing;
                self.flush_now();
                true
            }
            Uncovered::Flushing => true,
        }
    }

    /// A flush has succeeded.
    pub fn direct_writes_flushed(&mut self) {
        let flushing = self.epochs.iter_mut().filter(|e| e.uncovered == Uncovered::Flushing);
        flushing.for_each(|e| e.uncovered = Uncovered::Flushed);
    }
}
