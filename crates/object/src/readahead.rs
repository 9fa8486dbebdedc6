//! Reading ahead, as US3FS does it: after a read of `n` bytes the next window is asked for, with a trigger in its middle; a sequential read that
//! passes the trigger doubles the window, up to a limit, where the trigger comes with every request's length; a jump resets it.
//!
//! A jump asks for the bytes that are wanted and no more, so random readers make small requests. Who goes on where a read ended is sequential, and
//! is never served by requests below [`WINDOW_MIN`]. Reads of a kernel come side by side and out of order: what lies a little before
//! or behind counts as sequential too.
//!
//! A chunk has no checksum of its own. Where the store has told that of the whole object, the chunks of who reads it from start to end are added up,
//! and the last read fails if they are not what the sum says.
//!
//! A window is a row of chunks without gaps, each asked for with one request, several at a time. How much of that all readers may have asked for is
//! limited, and beyond that only what is wanted is asked for; who has stopped reading loses what was asked for ahead of him. Memory is taken when an answer arrives; where there is none, answers wait for it,
//! but those that a reader waits for.

use crate::budget::{Held, Room};
use crate::checksum::Checksum;
use crate::core::Core;
use crate::store::{ETag, Store, StoreError};
use bytes::Bytes;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Smallest window, and smallest request of a sequential reader, bytes.
pub const WINDOW_MIN: u64 = 512 << 10;
/// Largest request, bytes.
const CHUNK: u64 = 4 << 20;
/// Reads out of order by less than this are sequential still, bytes.
const SLACK: u64 = 2 << 20;
/// Smallest request for what is ahead of a window that there is memory for, bytes.
const AHEAD_MIN: u64 = 256 << 10;
/// What was read ahead for who has not read for so long is given up where others lack it.
const IDLE: Duration = Duration::from_secs(2);

type Arrived = Option<std::result::Result<Bytes, StoreError>>;

/// The checksum of what was read from the start without a gap.
#[derive(Clone, Copy, Debug)]
struct Read {
    upto: u64,
    sum: Checksum,
    /// That of the whole, as the store told it when the read began: the same content may be put again with a checksum of another sort.
    whole: Checksum,
}

/// A range that was asked for.
#[derive(Debug)]
pub struct Chunk {
    range: Range<u64>,
    arrived: watch::Receiver<Arrived>,
    /// Bytes of it that were read.
    read: AtomicU64,
    room: Arc<Room>,
    _asked: Held,
}

impl Chunk {
    /// Whether all of it was read, as far as a count can tell.
    fn is_over(&self) -> bool {
        self.read.load(Relaxed) >= self.range.end - self.range.start
    }

    /// Waits for its bytes, all of them.
    async fn bytes(&self) -> std::result::Result<Bytes, StoreError> {
        let mut arrived = self.arrived.clone();
        self.room.want();
        let bytes = match arrived.wait_for(|a| a.is_some()).await {
            Ok(done) => done.clone().expect("it was waited for")?,
            Err(_) => return Err(StoreError::Unavailable("the worker was stopped".into())),
        };
        match bytes.len() as u64 == self.range.end - self.range.start {
            true => Ok(bytes),
            false => Err(StoreError::Damaged("an object is shorter than it was".into())),
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Window {
    etag: Option<ETag>,
    chunks: VecDeque<Arc<Chunk>>,
    /// Where the last read ended.
    next: u64,
    /// Present length; 0 after a jump.
    len: u64,
    trigger: u64,
    /// When somebody read last.
    used: Option<Instant>,
    /// What was read from the start; `None`: nobody reads from there, or there is nothing to compare it with.
    read: Option<Read>,
}

impl Window {
    fn start(&self) -> u64 {
        self.chunks.front().map_or(self.next, |chunk| chunk.range.start)
    }

    fn stop(&self) -> u64 {
        self.chunks.back().map_or(self.next, |chunk| chunk.range.end)
    }

    /// Forgets what was read ahead: who goes on asks anew, from where he was.
    fn pause(&mut self) {
        self.chunks.clear();
        (self.len, self.trigger, self.read) = (0, 0, None);
    }

    /// Forgets what was read.
    fn let_go(&mut self) {
        self.add_up();
        while self.chunks.front().is_some_and(|chunk| chunk.is_over()) {
            self.chunks.pop_front();
        }
    }

    /// Decides what to ask for so that `range` comes: the ranges, each with whether it is wanted now. `end`: that of the object. `most`: the
    /// largest window.
    fn advance(&mut self, range: Range<u64>, end: u64, most: u64) -> Vec<(Range<u64>, bool)> {
        if range.start < self.start() && range.start + SLACK >= self.start() && !self.chunks.is_empty() {
            // One that comes late, or once more: what it wants has been given away, and nothing else changes.
            return Vec::new();
        }
        let sequential = range.start >= self.start() && range.start <= self.stop() + SLACK;
        if !sequential || (self.chunks.is_empty() && range.start != self.next) {
            self.chunks.clear();
            (self.len, self.trigger) = (0, 0);
            self.next = range.end;
            return vec![(range, true)];
        }
        let mut upto = range.end;
        if self.len == 0 || range.end > self.trigger {
            self.len = (self.len * 2).clamp(WINDOW_MIN.min(most), most);
            // The largest window is kept full: what half of it is still to come for would be waited for where requests take long.
            let half = self.len / 2;
            self.trigger = range.end + if self.len == most { half.min(CHUNK) } else { half };
            upto = (range.end + self.len).min(end);
        }
        self.add_up();
        let behind = range.start.saturating_sub(SLACK);
        while self.chunks.front().is_some_and(|chunk| chunk.range.end <= behind) {
            self.chunks.pop_front();
        }
        self.let_go();
        let mut asked = Vec::new();
        let mut at = self.chunks.back().map_or(range.start, |chunk| chunk.range.end);
        self.next = self.next.max(range.end);
        while at < upto {
            let to = upto.min(at + CHUNK);
            if at >= range.end && to - at < CHUNK && to < end && self.len >= 2 * CHUNK {
                // The next time there is enough for a request.
                break;
            }
            asked.push((at..to, at < range.end));
            at = to;
        }
        asked
    }
}

impl Window {
    /// Adds up the checksums of the chunks that have arrived, before any of them is let go.
    fn add_up(&mut self) {
        let Some(mut read) = self.read.take() else { return };
        for chunk in &self.chunks {
            if chunk.range.start > read.upto {
                // A gap: a read that was out of order has come too late.
                return;
            }
            if chunk.range.start < read.upto {
                continue;
            }
            let arrived = chunk.arrived.borrow();
            let Some(Ok(bytes)) = &*arrived else { break };
            read.sum = read.sum.then(read.sum.crc.of(bytes), bytes.len() as u64);
            read.upto = chunk.range.end;
        }
        self.read = Some(read);
    }
}

impl<S: Store> Core<S> {
    /// Bytes of an object, from the window of a handle or from the store, in the pieces in which they arrived. Errors of the store; `Precondition` when it is in
    /// another state.
    pub async fn read_object(
        self: &Arc<Self>,
        window: &parking_lot::Mutex<Window>,
        (key, etag, end): (&str, &ETag, u64),
        range: Range<u64>,
    ) -> std::result::Result<SmallVec<[Bytes; 2]>, StoreError> {
        let chunks: Vec<Arc<Chunk>> = {
            let mut window = window.lock();
            if window.etag.as_ref() != Some(etag) {
                *window = Window { etag: Some(etag.clone()), ..Window::default() };
            }
            window.used = Some(Instant::now());
            if range.start == 0 {
                let whole = self.store.checksum(key, etag);
                window.read = whole.map(|whole| Read { upto: 0, sum: whole.crc.of(b""), whole });
            }
            for (asked, wanted) in window.advance(range.clone(), end, self.options.read_ahead) {
                let got = self.may_ask(asked.clone(), if wanted { range.end } else { 0 });
                let whole = got.as_ref().is_some_and(|(range, _)| range.end == asked.end);
                if let Some((range, held)) = got {
                    window.chunks.push_back(Arc::new(self.ask(key, etag, range, held)));
                }
                if !whole {
                    // Who comes to the end of what there is tries again.
                    window.trigger = window.trigger.min(window.stop());
                    break;
                }
            }
            let covers = |c: &&Arc<Chunk>| c.range.start < range.end && range.start < c.range.end;
            match window.start() <= range.start {
                true => window.chunks.iter().filter(covers).cloned().collect(),
                false => Vec::new(),
            }
        };
        let (mut at, mut found) = (range.start, SmallVec::new());
        for chunk in &chunks {
            let bytes = match chunk.bytes().await {
                Ok(bytes) => bytes,
                Err(e) => {
                    // The next read asks again.
                    *window.lock() = Window::default();
                    return Err(e);
                }
            };
            let upto = range.end.min(chunk.range.end);
            found.push(bytes.slice((at - chunk.range.start) as usize..(upto - chunk.range.start) as usize));
            chunk.read.fetch_add(upto - at, Relaxed);
            at = upto;
        }
        let read = {
            let mut window = window.lock();
            window.let_go();
            window.used = Some(Instant::now());
            // Compared once, by who comes to the end.
            window.read.take_if(|read| read.upto == end)
        };
        if read.is_some_and(|read| read.sum != read.whole) {
            *window.lock() = Window::default();
            return Err(StoreError::Damaged("the object is not what its checksum says".into()));
        }
        if at < range.end {
            // Another read through the same handle has jumped in between.
            found.push(self.read_beside(key, at..range.end, etag).await?);
        }
        Ok(found)
    }

    /// Whether a range may be asked for, or the beginning of it. Up to `wanted` it is read now, and must be.
    fn may_ask(&self, range: Range<u64>, wanted: u64) -> Option<(Range<u64>, Held)> {
        let mut len = range.end - range.start;
        while !self.asked.try_take(len) {
            self.end_pauses();
            let least = wanted.saturating_sub(range.start).min(len);
            len = if len / 2 > least && len / 2 >= AHEAD_MIN { len / 2 } else { least };
            if len == least {
                if len == 0 {
                    return None;
                }
                self.asked.force(len);
                break;
            }
        }
        Some((range.start..range.start + len, self.asked.held(len)))
    }

    /// Gives up what was read ahead for those who have paused.
    fn end_pauses(&self) {
        let now = Instant::now();
        let mut looked = self.looked.lock();
        if now.duration_since(*looked) < IDLE / 4 {
            return;
        }
        *looked = now;
        for open in self.opens.lock().values() {
            // One that is held is in use; that of the caller is.
            let Some(mut window) = open.window.try_lock() else { continue };
            let idle = window.used.is_some_and(|used| now.duration_since(used) > IDLE);
            // Where somebody waits for an answer it is the store that takes so long.
            if idle && window.chunks.iter().all(|chunk| Arc::strong_count(chunk) == 1) {
                window.pause();
            }
        }
    }

    /// Reads beside the window.
    async fn read_beside(
        self: &Arc<Self>,
        key: &str,
        range: Range<u64>,
        etag: &ETag,
    ) -> std::result::Result<Bytes, StoreError> {
        let len = range.end - range.start;
        self.asked.force(len);
        self.ask(key, etag, range, self.asked.held(len)).bytes().await
    }

    /// Asks for a range, in the background.
    fn ask(self: &Arc<Self>, key: &str, etag: &ETag, range: Range<u64>, held: Held) -> Chunk {
        let (tell, arrived) = watch::channel(None);
        let (core, key, etag, asked) = (self.clone(), key.to_string(), etag.clone(), range.clone());
        let room = Arc::new(Room::new(self.reads.clone(), range.end - range.start));
        let ours = room.clone();
        self.runtime.spawn(async move {
            let done = core.store.get_ahead(&key, asked, &etag, &ours).await;
            // When the chunk is dropped its memory is free.
            drop(ours);
            let _ = tell.send(Some(done));
        });
        Chunk { range, arrived, read: AtomicU64::new(0), room, _asked: held }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    /// Asks as `read_object` does, without a store.
    fn read(window: &mut Window, at: u64, len: u64, end: u64) -> Vec<u64> {
        let asked = window.advance(at..(at + len).min(end), end, 32 << 20);
        let budget = Arc::new(crate::budget::Budget::new(u64::MAX));
        for (range, _) in &asked {
            budget.force(range.end - range.start);
            let _asked = budget.held(range.end - range.start);
            let room = Arc::new(Room::new(budget.clone(), range.end - range.start));
            let range = range.clone();
            let (arrived, read) = (watch::channel(None).1, AtomicU64::new(0));
            window.chunks.push_back(Arc::new(Chunk { range, arrived, read, room, _asked }));
        }
        asked.into_iter().map(|(r, _)| r.end - r.start).collect()
    }

    #[test]
    fn a_sequential_reader_asks_ever_more() {
        let mut window = Window::default();
        let end = 1 << 30;
        let mut requests = Vec::new();
        for at in (0..256 << 20).step_by(128 << 10) {
            requests.extend(read(&mut window, at, 128 * KIB, end));
        }
        assert_eq!(requests[0], 640 * KIB, "the first read comes with the first window");
        assert!(requests.iter().all(|&r| r >= 128 * KIB), "{requests:?}");
        assert!(requests.len() < 90, "{}", requests.len());
        assert_eq!(window.len, 32 << 20);
        let held: u64 = window.chunks.iter().map(|c| c.range.end - c.range.start).sum();
        assert!(held <= (32 << 20) + SLACK + 2 * CHUNK, "{held}");
    }

    #[test]
    fn a_jump_asks_for_what_is_wanted_alone() {
        let mut window = Window::default();
        let end = 1 << 30;
        for at in [77 << 20, 5 << 20, 900 << 20, 33 << 20] {
            assert_eq!(read(&mut window, at, 4096, end), [4096]);
        }
        // Going on from there is sequential.
        assert_eq!(read(&mut window, (33 << 20) + 4096, 4096, end), [4096 + WINDOW_MIN]);
        assert!(read(&mut window, (33 << 20) + 8192, 4096, end).is_empty());
    }

    #[test]
    fn a_kernel_reads_out_of_order() {
        let mut window = Window::default();
        let end = 1 << 30;
        let mut requests = 0;
        for block in 0..100u64 {
            for part in [1, 0, 3, 2] {
                requests += read(&mut window, (block * 4 + part) * 128 * KIB, 128 * KIB, end).len();
            }
        }
        assert!(requests < 40, "{requests}");
        assert_eq!(read(&mut Window::default(), 0, 128 * KIB, 3000), [3000], "no more than there is");
    }
}
