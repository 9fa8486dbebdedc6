//! Pages that clients read without a message (UHSFS: page headers and page buffers, in groups by who may see them).
//!
//! There is an arena for each set of credentials: memory of its own, which all clients with these credentials can read, and nobody else. It
//! holds pages of files that such a client has read through an open handle and that these credentials may read. So what a
//! client finds there it could have had by opening the file. (It may not have known its name; docs/SECURITY.md says what follows.)
//!
//! A page is put in when the manager has read it for somebody, unless the file changed since before it was read, and taken out before the
//! call that changes it returns (layout and rule of reading: `format::shared`). Every client of the arena finds it there from then on. So it does the names and
//! attributes that one of them has asked for ([`crate::notices`]).
//! The memory of all arenas together is bounded; what goes is chosen by the E value of the paper ([`SharedUse`]), for pieces of
//! [`PIECE_PAGES`] pages. Clients mark what they use in their own memory, where it is looked at when a piece is about to go.

mod aligned;
mod foresight;
mod memory;
mod pass;
mod pieces;
mod whole;

use super::session::Client;
use crate::changes::Changes;
use crate::memory::HUGE;
pub(crate) use aligned::Aligned;
use foldhash::fast::FixedState;
use foresight::Foresight;
use format::shared::{ANSWER_PAGES, ARENA_DATA_AT, ARENA_PAGES, NAMES_AT, PIECE_PAGES, mark};
use fs::cache::policy::{Params, Policy, SharedUse};
use fs::watched::Change;
use fs::{Cred, Ino};
pub(crate) use memory::Arena;
use parking_lot::Mutex;
use pass::Pass;
use pieces::Pieces;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use whole::Whole;

const PAGE: usize = 4096;
/// Most that are read ahead.
const CHUNK: usize = PIECE_PAGES;
/// Bytes of that.
pub(crate) const PIECE_BYTES: usize = CHUNK * PAGE;
/// Pieces of a file of which pages are there, from which on whoever asks for one page of another gets it all, if it is at hand: the file is read here and there.
const SCATTERED: usize = 4;
const _: () = assert!(
    ARENA_DATA_AT.is_multiple_of(HUGE) && NAMES_AT.is_multiple_of(HUGE) && TABLES_FROM.is_multiple_of(HUGE)
);
/// Pages of a part of the memory that is as long as a huge page.
const PART: usize = HUGE / PAGE;
/// Memory of pages from which on what says where they stand is in huge pages, too, which then takes a fourth of that.
const TABLES_FROM: usize = 4 * NAMES_AT;
/// No page.
const NONE: u32 = u32::MAX;
/// Arenas that are kept although no client has their credentials now.
const IDLE_MAX: usize = 16;

/// All arenas of a server.
pub(crate) struct Arenas {
    changes: Arc<Changes>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    arenas: Vec<Inner>,
    /// Pages of memory that arenas have taken, and most of them.
    resident: usize,
    resident_max: usize,
    /// Counts uses, as the clock of the policies.
    now: u64,
    /// To the thread that joins pages, as long as there is one.
    whole: Option<Sender<Whole>>,
}

struct Inner {
    arena: Arc<Arena>,
    clients: Vec<Weak<Client>>,
    files: HashMap<Ino, File, FixedState>,
    policy: SharedUse<(Ino, u64)>,
    foresight: Foresight,
    /// Pages that hold nothing; pages whose memory was given back; and all from this one on.
    free: Vec<u32>,
    discarded: Vec<u32>,
    next: u32,
    /// Parts up to here are made ready.
    asked: usize,
}

struct File {
    generation: u32,
    chunks: HashMap<u64, [u32; CHUNK], FixedState>,
    /// Where a reader is who reads one page after the other, and how many pages it was given last.
    next: u64,
    given: usize,
    pass: Pass,
    /// Nobody had asked for its pages, and nobody has read them yet.
    shown: bool,
}

/// Chunk of a page, and place in it.
fn chunk(page: u64) -> (u64, usize) {
    (page / CHUNK as u64, (page % CHUNK as u64) as usize)
}

impl Arenas {
    /// No arenas yet; all of them together will have `bytes` at most.
    pub fn new(changes: Arc<Changes>, bytes: usize) -> Arenas {
        let resident_max = (bytes / PAGE).min(ARENA_PAGES);
        let state = State { resident_max, whole: whole::joining(), ..State::default() };
        Arenas { changes, state: Mutex::new(state) }
    }

    /// The clock of the changes.
    pub fn clock(&self) -> u64 {
        self.changes.now()
    }

    /// Whether a file has not changed since the clock was `noted`.
    pub fn holds_still(&self, ino: Ino, noted: u64) -> bool {
        self.changes.holds_still(ino, noted)
    }

    /// The arena of clients with these credentials.
    pub fn of(&self, cred: &Cred) -> io::Result<Arc<Arena>> {
        let mut state = self.state.lock();
        if let Some(inner) = state.arenas.iter().find(|inner| inner.arena.cred == *cred) {
            return Ok(inner.arena.clone());
        }
        state.drop_idle();
        let arena = Arc::new(Arena::new(cred, state.resident_max)?);
        state.arenas.push(Inner {
            arena: arena.clone(),
            clients: Vec::new(),
            files: HashMap::default(),
            policy: SharedUse::new(1, Params::default()),
            foresight: Foresight::default(),
            free: Vec::new(),
            discarded: Vec::new(),
            next: 0,
            asked: 0,
        });
        Ok(arena)
    }

    /// A client of an arena, whose marks count.
    pub fn enter(&self, client: &Arc<Client>) {
        let mut state = self.state.lock();
        if let Some(inner) = state.inner(&client.arena) {
            inner.clients.retain(|c| c.strong_count() > 0);
            inner.clients.push(Arc::downgrade(client));
            client.arena.is_shared.fetch_or(inner.clients.len() > 1, Ordering::Relaxed);
            inner.policy.set_processes(inner.clients.len() as u32);
        }
    }

    /// What to read for a client that wants `len` bytes at `offset`. `None` when that is too much for one answer, or there is no memory.
    pub fn plan(&self, arena: &Arc<Arena>, ino: Ino, offset: u64, len: usize) -> Option<Aligned> {
        let noted = self.changes.now();
        let first = offset / PAGE as u64;
        let end = offset.checked_add(len as u64)?.checked_next_multiple_of(PAGE as u64)? / PAGE as u64;
        let asked = (end - first) as usize;
        let mut state = self.state.lock();
        if state.resident_max < asked.next_multiple_of(CHUNK) || asked > ANSWER_PAGES || len == 0 {
            return None;
        }
        let mut pages = asked;
        // Up to the end of the first chunk.
        let place = chunk(first).1;
        // What nobody has asked for drives nothing out.
        let has_room = place + asked <= CHUNK && state.resident + CHUNK <= state.resident_max;
        let (mut may_be_wider, mut goes_on) = (false, false);
        if let Some(file) = state.inner(arena).and_then(|inner| inner.files.get_mut(&ino)) {
            // Perhaps he was given the rest of a piece.
            goes_on = file.next == first || file.next.checked_next_multiple_of(CHUNK as u64) == Some(first);
            if goes_on {
                pages = pages.max((file.given * 2).min(CHUNK - place));
            }
            may_be_wider = has_room && !goes_on && file.chunks.len() >= SCATTERED;
            (file.next, file.given) = (first + pages as u64, pages);
        }
        let (start, len, is_more) = (first * PAGE as u64, pages * PAGE, pages > asked);
        Some(Aligned { start, len, asked, is_more, goes_on, size: 0, noted, may_be_wider })
    }

    /// How many pages of what was planned are there, from the first one on, if all that were asked for are. `got` bytes were read: a page with less of the file is from before
    /// it grew, of which nobody may have been told yet.
    pub fn find(
        &self,
        client: &Client,
        ino: Ino,
        generation: u32,
        plan: &Aligned,
        got: usize,
    ) -> Option<usize> {
        let mut state = self.state.lock();
        state.now += 1;
        let now = state.now;
        let inner = state.inner(&client.arena)?;
        let file = inner.files.get(&ino).filter(|f| f.generation == generation)?;
        let there = (plan.first()..).take(plan.len / PAGE).enumerate().map_while(|(i, number)| {
            let (chunk, at) = chunk(number);
            let page = file.chunks.get(&chunk).map(|chunk| chunk[at]).filter(|&page| page != NONE)?;
            if client.arena.len(page) < got.saturating_sub(i * PAGE).min(PAGE) {
                return None;
            }
            // It was asked for, so it may not have been found.
            client.arena.show(page, ino, number);
            Some(())
        });
        let there = there.count();
        if there == 0 || there < plan.asked {
            return None;
        }
        let last = plan.first() + there as u64 - 1;
        for number in chunk(plan.first()).0..=chunk(last).0 {
            inner.policy.touch((ino, number), PIECE_BYTES as u64, client.session as u32, now);
        }
        client.arena.hits.fetch_add(1, Ordering::Relaxed);
        inner.was_read(ino);
        Some(there)
    }

    /// Puts in what was read as `plan` said: `bytes`, less than planned at the end of the file. How many pages are there now, from the first one on; none
    /// if the file has changed meanwhile.
    pub fn fill(&self, client: &Client, ino: Ino, generation: u32, plan: &Aligned, bytes: &[&[u8]]) -> usize {
        let got: usize = bytes.iter().map(|b| b.len()).sum();
        let mut pieces = Pieces::new(bytes);
        let state = &mut *self.state.lock();
        if got == 0 || !self.changes.holds_still(ino, plan.noted) {
            return 0;
        }
        state.now += 1;
        let (session, now) = (client.session as u32, state.now);
        let Some(at) = state.arenas.iter().position(|inner| Arc::ptr_eq(&inner.arena, &client.arena)) else {
            return 0;
        };
        state.arenas[at].enter_file(ino, generation);
        let mut buffer = [0; PAGE];
        let mut filled = 0;
        for number in (plan.first()..).take(got.div_ceil(PAGE)) {
            let bytes = pieces.next(&mut buffer);
            let (chunk, within) = chunk(number);
            // Room first: what goes may be of this file.
            let is_there = state.arenas[at].page(ino, chunk, within);
            let Some(page) = is_there.or_else(|| state.room(at, (ino, chunk))) else { break };
            let inner = &mut state.arenas[at];
            // It has less of the file than there is by now.
            let is_short = is_there.is_some() && inner.arena.len(page) < bytes.len();
            if is_short {
                inner.arena.take(page);
            }
            if is_short || is_there.is_none() {
                inner.keep(ino, generation, chunk, within, page);
                inner.arena.put(page, (ino, generation), number, bytes);
            }
            inner.arena.show(page, ino, number);
            filled += 1;
        }
        if filled > 0 {
            let last = plan.first() + filled as u64 - 1;
            for number in chunk(plan.first()).0..=chunk(last).0 {
                state.arenas[at].policy.insert((ino, number), PIECE_BYTES as u64, session, now);
                if plan.goes_on {
                    state.passes(at, (ino, number), plan.size);
                }
            }
        }
        filled
    }

    /// Whether what clients of an arena write is mostly read soon, as far as is known; now and then it is tried.
    pub fn expects_reads(&self, arena: &Arc<Arena>) -> bool {
        self.state.lock().inner(arena).is_some_and(|inner| inner.foresight.expects())
    }

    /// Whether a page of a file is there.
    pub fn has(&self, arena: &Arc<Arena>, (ino, generation): (Ino, u32), page: u64) -> bool {
        let (chunk, place) = chunk(page);
        self.state.lock().inner(arena).is_some_and(|inner| {
            let is_known = inner.files.get(&ino).is_some_and(|file| file.generation == generation);
            is_known && inner.page(ino, chunk, place).is_some()
        })
    }

    /// Pages of a file were put in for which nobody had asked.
    pub fn shown(&self, arena: &Arc<Arena>, ino: Ino) {
        let mut state = self.state.lock();
        let Some(inner) = state.inner(arena) else { return };
        // One that is shown again before anybody has read it counts once.
        if inner.files.get_mut(&ino).is_some_and(|file| !std::mem::replace(&mut file.shown, true)) {
            inner.foresight.shown();
        }
    }

    /// A file was read out of an arena.
    pub fn was_read(&self, arena: &Arc<Arena>, ino: Ino) {
        if let Some(inner) = self.state.lock().inner(arena) {
            inner.was_read(ino);
        }
    }

    /// Takes out the pages that changed, and those of files that others may open from now on, or nobody. The words of the change are
    /// raised before.
    pub fn changed(&self, change: &Change<'_>) {
        let (ino, first, last) = match *change {
            Change::Data { ino, start, end } => (ino, start / PAGE as u64, end.div_ceil(PAGE as u64)),
            Change::Attr { ino } => (ino, 0, u64::MAX),
            Change::Name { .. } => return,
        };
        self.state.lock().arenas.iter_mut().for_each(|inner| inner.drop_pages(ino, first, last));
    }

    /// Pages of memory that are taken.
    #[cfg(test)]
    fn resident(&self) -> usize {
        self.state.lock().resident
    }
}

impl State {
    fn inner(&mut self, arena: &Arc<Arena>) -> Option<&mut Inner> {
        self.arenas.iter_mut().find(|inner| Arc::ptr_eq(&inner.arena, arena))
    }

    /// Gives up arenas of credentials that nobody has.
    fn drop_idle(&mut self) {
        let is_idle = |inner: &Inner| Arc::strong_count(&inner.arena) == 1;
        while self.arenas.iter().filter(|inner| is_idle(inner)).count() >= IDLE_MAX {
            let Some(at) = self.arenas.iter().position(is_idle) else { return };
            let inner = self.arenas.remove(at);
            self.resident -= inner.resident();
        }
    }

    /// A piece of a file of this size was put in for somebody who reads one after the other: another may go for it.
    fn passes(&mut self, at: usize, (ino, piece): (Ino, u64), size: u64) {
        let most = self.resident_max;
        let inner = &mut self.arenas[at];
        let Some(pass) = inner.files.get_mut(&ino).map(|file| &mut file.pass) else { return };
        // What is larger than all of the arenas would never be there when it is read again.
        let stays = pass.is_again(piece) && size <= (most * PAGE) as u64;
        if stays {
            // In a full arena it has the memory of what went for it.
            let waits = self.resident < most && !inner.has_memory(most);
            let Some(whole) = self.whole.as_ref().filter(|_| waits) else { return };
            inner.make_ready(whole, true, most);
        }
        let pass = inner.files.get_mut(&ino).map(|file| &mut file.pass);
        if let Some(gone) = pass.and_then(|pass| pass.goes_on(piece, size)) {
            inner.drop_pages(ino, gone * CHUNK as u64, (gone + 1) * CHUNK as u64);
        }
    }

    /// A page of an arena that holds nothing, if need be in place of another. `for_chunk` does not go.
    fn room(&mut self, at: usize, for_chunk: (Ino, u64)) -> Option<u32> {
        loop {
            let full = self.resident >= self.resident_max;
            let inner = &mut self.arenas[at];
            if let Some(page) = inner.free.pop() {
                return Some(page);
            }
            if !full {
                let page =
                    inner.discarded.pop().or_else(|| inner.next_page(&self.whole, self.resident_max))?;
                self.resident += 1;
                return Some(page);
            }
            let largest = (0..self.arenas.len()).max_by_key(|&i| self.arenas[i].resident())?;
            let inner = &mut self.arenas[largest];
            if inner.free.is_empty() && !inner.evict(for_chunk, self.now) {
                return None;
            }
            if largest != at {
                // Its memory is somebody else's business from now on.
                let freed = inner.free.len();
                for page in std::mem::take(&mut inner.free) {
                    inner.arena.memory.discard(ARENA_DATA_AT + page as usize * PAGE, PAGE);
                    inner.discarded.push(page);
                }
                self.resident -= freed;
            }
        }
    }
}

impl Inner {
    /// A page that was never used.
    fn next_page(&mut self, whole: &Option<Sender<Whole>>, most: usize) -> Option<u32> {
        let page = Some(self.next).filter(|&page| (page as usize) < most)?;
        self.next += 1;
        self.arena.used.store(self.next, Ordering::Relaxed);
        let Some(whole) = whole else { return Some(page) };
        let (part, last) = (page as usize / PART, (self.next as usize).is_multiple_of(PART));
        if (page as usize).is_multiple_of(PART) {
            self.make_ready(whole, false, most);
        }
        if last {
            // When nobody takes it, it stays as it is.
            let send = |offset, empty| drop(whole.send(Whole { arena: self.arena.clone(), offset, empty }));
            // What was not ready in time. And what says where pages stand, when there are so many.
            let tables = if (part + 1) * HUGE == TABLES_FROM { NAMES_AT } else { 0 };
            (0..tables).step_by(HUGE).chain([ARENA_DATA_AT + part * HUGE]).for_each(|at| send(at, false));
        }
        Some(page)
    }

    /// Has memory made ahead of its use; `wanted`: somebody does without it for now.
    fn make_ready(&mut self, whole: &Sender<Whole>, wanted: bool, most: usize) {
        let part = (self.next as usize).saturating_sub(1) / PART;
        let end = whole::ahead(part, wanted, most / PART);
        for part in self.asked.max(part + 1)..end {
            let offset = ARENA_DATA_AT + part * HUGE;
            // When nobody takes it, there is none.
            drop(whole.send(Whole { arena: self.arena.clone(), offset, empty: true }));
        }
        self.asked = self.asked.max(end);
    }

    /// Whether there is memory for another piece, such that nobody waits for it, or none of which that could be said.
    fn has_memory(&self, most: usize) -> bool {
        let ready = self.arena.ready.load(Ordering::Relaxed) as usize;
        self.free.len() >= CHUNK || self.next as usize + CHUNK <= ready || ready >= most / PART * PART
    }

    fn was_read(&mut self, ino: Ino) {
        let file = self.files.get_mut(&ino);
        if file.is_some_and(|file| std::mem::take(&mut file.shown)) {
            self.foresight.was_read();
        }
    }

    fn resident(&self) -> usize {
        self.next as usize - self.discarded.len()
    }

    /// Knows a file, and nothing of another one that had its number.
    fn enter_file(&mut self, ino: Ino, generation: u32) {
        if self.files.get(&ino).is_some_and(|f| f.generation != generation) {
            self.drop_pages(ino, 0, u64::MAX);
        }
    }

    fn page(&self, ino: Ino, chunk: u64, place: usize) -> Option<u32> {
        let page = self.files.get(&ino)?.chunks.get(&chunk)?[place];
        (page != NONE).then_some(page)
    }

    fn keep(&mut self, ino: Ino, generation: u32, chunk: u64, place: usize, page: u32) {
        let new = || File {
            generation,
            chunks: HashMap::default(),
            next: u64::MAX,
            given: 1,
            pass: Pass::default(),
            shown: false,
        };
        let file = self.files.entry(ino).or_insert_with(new);
        file.chunks.entry(chunk).or_insert([NONE; CHUNK])[place] = page;
    }

    /// Throws out a chunk; false when there is none but `not`.
    fn evict(&mut self, not: (Ino, u64), now: u64) -> bool {
        // Each look takes a client's mark away, so this ends; a client that marks all the time does not stop it.
        for _ in 0..64 {
            let Some(victim) = self.policy.victim(now) else { return false };
            let (ino, number) = victim;
            // All marks are taken away; who used it counts once.
            let users = self.clients.iter().filter_map(Weak::upgrade);
            let user = users
                .filter(|client| client.used(mark(ino.0, number)))
                .fold(None, |_, client| Some(client.session as u32));
            match user {
                Some(user) => self.policy.touch(victim, PIECE_BYTES as u64, user, now),
                None if victim == not => false,
                None => return self.drop_chunk(victim),
            };
        }
        let other = self.policy.victim(now).filter(|victim| *victim != not);
        other.is_some_and(|victim| self.drop_chunk(victim))
    }

    fn drop_chunk(&mut self, (ino, number): (Ino, u64)) -> bool {
        self.policy.evict((ino, number));
        let Some(file) = self.files.get_mut(&ino) else { return false };
        let Some(pages) = file.chunks.remove(&number) else { return false };
        for page in pages.into_iter().filter(|&p| p != NONE) {
            self.arena.take(page);
            self.free.push(page);
        }
        if file.chunks.is_empty() {
            self.files.remove(&ino);
        }
        true
    }

    /// Takes pages `first..last` of a file out.
    fn drop_pages(&mut self, ino: Ino, first: u64, last: u64) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let (from, to) = (chunk(first).0, last.div_ceil(CHUNK as u64));
        let few = to.saturating_sub(from) <= file.chunks.len() as u64;
        let numbers: SmallVec<[u64; 8]> = match few {
            true => (from..to).collect(),
            false => file.chunks.keys().copied().filter(|n| (from..to).contains(n)).collect(),
        };
        for number in numbers {
            let Some(pages) = file.chunks.get_mut(&number) else { continue };
            for (i, page) in pages.iter_mut().enumerate() {
                let at = number * CHUNK as u64 + i as u64;
                if *page != NONE && (first..last).contains(&at) {
                    self.arena.take(*page);
                    self.free.push(std::mem::replace(page, NONE));
                }
            }
            if pages.iter().all(|&p| p == NONE) {
                file.chunks.remove(&number);
                self.policy.remove((ino, number));
            }
        }
        if file.chunks.is_empty() {
            self.files.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests;
