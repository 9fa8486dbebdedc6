//! Which page goes when room is needed: S3-FIFO (see [`super::policy::S3Fifo`]), with links between frames where that has a table of keys.
//!
//! - A page that was brought in or written back stands in the small queue. What was used again after the use that it was brought in for goes from its
//!   front to the main queue; the rest goes out and is remembered, and goes to the main queue when it comes back.
//! - The front of the main queue goes to its end when it was used, with one use less, and else goes out.
//! - The small queue gives pages while it has a tenth of all. What was read ahead and not used yet does not count there, and has a second chance:
//!   readers would otherwise throw out what they will want next.
//! - Clean pages whose content is there stand in a queue, and no others. One that is pinned goes to the end of its queue; where there are many of these, a
//!   page of the other queue goes. So a frame costs a bounded number of steps as long as not nearly all pages are pinned.
//! - A page in a frame that took the place of a pinned one ([`PageCache::replace`]) stays as long as that: the pins may be those of a transfer that has yet to bring
//!   its content to the medium, or of the log.
//!
//! So a file that is read once from start to end takes a tenth of the cache, and what is used again and again stays.

use super::{Content, FrameNo, PageCache, PageKey, State};
use std::collections::HashMap;
use std::hash::BuildHasher;

/// Uses are counted up to this.
const MOST_USES: u8 = 3;
/// A page with more uses than this goes from the small queue to the main one: the first is that for which it was brought in.
const PROVEN: u8 = 1;
/// The small queue gives pages while it has at least one in so many, ...
const SMALL_PART: usize = 10;
/// ... and more than so many: in a cache of a few frames, what was just brought in would be the next to go.
const FEW: usize = 16;
/// Pages of a file that are remembered beside each other.
const TOGETHER: u64 = 16;
/// Pages that are given another chance before the next one goes without: in a large cache of which everything is used a lot, all others would wait for as long as that takes.
const CHANCES_MAX: usize = 256;
/// Pages that are pinned, or copies of such, that are passed by before the other queue is looked at.
const HELD_MAX: usize = 64;
/// No frame.
const NONE: u32 = u32::MAX;

/// In which queue a page stands, or will when it is clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The small one; not used yet.
    New,
    Small,
    Main,
    /// The small one; a copy of a page in another frame, [`Queues::copies`], which may be newer than the medium.
    Copy,
}

const QUEUES: usize = 2;
const SMALL: usize = 0;
const MAIN: usize = 1;

impl Place {
    fn queue(self) -> usize {
        match self {
            Place::New | Place::Small | Place::Copy => SMALL,
            Place::Main => MAIN,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    behind: u32,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    first: u32,
    last: u32,
    len: usize,
}

/// See the module. Its memory is not touched before it is needed.
#[derive(Debug)]
pub(super) struct Queues {
    links: Vec<Link>,
    queues: [Queue; QUEUES],
    /// Pages of the small queue that were not used yet.
    new: usize,
    /// Used last: to read a page in small pieces is one use.
    used_last: u32,
    /// The frame that each page of [`Place::Copy`] was copied from.
    copies: HashMap<u32, u32, foldhash::fast::FixedState>,
    gone: Gone,
}

impl Queues {
    pub fn new(frames: usize) -> Queues {
        Queues {
            links: vec![Link { before: 0, behind: 0 }; frames],
            queues: [Queue { first: NONE, last: NONE, len: 0 }; QUEUES],
            new: 0,
            used_last: NONE,
            copies: HashMap::default(),
            gone: Gone { marks: Vec::new(), len: frames.next_multiple_of(TOGETHER as usize) },
        }
    }

    fn push(&mut self, queue: usize, frame: u32) {
        let Queue { last, .. } = self.queues[queue];
        self.links[frame as usize] = Link { before: last, behind: NONE };
        match last {
            NONE => self.queues[queue].first = frame,
            last => self.links[last as usize].behind = frame,
        }
        self.queues[queue].last = frame;
        self.queues[queue].len += 1;
    }

    fn take(&mut self, queue: usize, frame: u32) {
        let Link { before, behind } = self.links[frame as usize];
        match before {
            NONE => self.queues[queue].first = behind,
            before => self.links[before as usize].behind = behind,
        }
        match behind {
            NONE => self.queues[queue].last = before,
            behind => self.links[behind as usize].before = before,
        }
        self.queues[queue].len -= 1;
    }
}

/// Pages that went from the small queue lately: as many as there are frames at most, each until another takes its place.
#[derive(Debug)]
struct Gone {
    marks: Vec<u32>,
    len: usize,
}

impl Gone {
    /// Where a page is remembered, and by what. Neighbours stand beside each other, so that a run of them costs one look at memory.
    fn mark(&self, key: PageKey, hasher: &impl BuildHasher) -> (usize, u32) {
        let hash = hasher.hash_one((key.file, key.page / TOGETHER));
        let together = hash as u32 as usize % (self.len / TOGETHER as usize);
        // Never 0, which is that of nothing.
        (together * TOGETHER as usize + (key.page % TOGETHER) as usize, (hash >> 32) as u32 | 1)
    }

    fn remember(&mut self, key: PageKey, hasher: &impl BuildHasher) {
        if self.marks.is_empty() {
            self.marks = vec![0; self.len];
        }
        let (at, mark) = self.mark(key, hasher);
        self.marks[at] = mark;
    }

    /// Whether a page is remembered, which it is no longer then.
    fn recall(&mut self, key: PageKey, hasher: &impl BuildHasher) -> bool {
        if self.marks.is_empty() {
            return false;
        }
        let (at, mark) = self.mark(key, hasher);
        let found = self.marks[at] == mark;
        if found {
            self.marks[at] = 0;
        }
        found
    }
}

impl PageCache {
    fn is_queued(&self, frame: u32) -> bool {
        let frame = &self.frames[frame as usize];
        frame.state == State::Clean && frame.content != Content::Absent
    }

    /// Its content was just brought in.
    pub(super) fn arrives(&mut self, frame: u32) {
        if !self.is_queued(frame) {
            return;
        }
        if self.queues.gone.recall(self.frames[frame as usize].key, &self.hasher) {
            self.frames[frame as usize].place = Place::Main;
        }
        self.enqueue(frame);
    }

    /// It has become one that stands in a queue.
    pub(super) fn enqueue(&mut self, frame: u32) {
        let f = &self.frames[frame as usize];
        self.queues.new += usize::from(f.place == Place::New);
        self.queues.push(f.place.queue(), frame);
    }

    /// It will not be one that stands in a queue, if it is one.
    pub(super) fn dequeue(&mut self, frame: u32) {
        if self.is_queued(frame) {
            let place = self.frames[frame as usize].place;
            self.queues.new -= usize::from(place == Place::New);
            self.queues.take(place.queue(), frame);
        }
        if self.frames[frame as usize].place == Place::Copy {
            self.frames[frame as usize].place = Place::Small;
            self.queues.copies.remove(&frame);
        }
    }

    /// The frame that a page was copied from, or its own: who copies a copy copies what that was copied from.
    pub(super) fn original(&self, frame: u32) -> u32 {
        match self.frames[frame as usize].place {
            Place::Copy => self.queues.copies.get(&frame).copied().unwrap_or(frame),
            _ => frame,
        }
    }

    /// The clean page in `frame` is a copy of what `original` holds, which is detached.
    pub(super) fn enqueue_copy(&mut self, frame: u32, original: u32) {
        self.frames[frame as usize].place = Place::Copy;
        self.queues.copies.insert(frame, original);
        self.enqueue(frame);
    }

    /// Whether a page must not go now, wherever it stands.
    pub(super) fn is_held(&self, frame: u32) -> bool {
        let is_original_held = || {
            let original = self.queues.copies.get(&frame);
            original.is_some_and(|&original| {
                self.frames[original as usize].state == State::Detached && self.pins.count(original) > 0
            })
        };
        self.pins.count(frame) > 0 || self.frames[frame as usize].place == Place::Copy && is_original_held()
    }

    /// Somebody uses it.
    pub(super) fn use_frame(&mut self, frame: u32) {
        let queued = self.is_queued(frame);
        let f = &mut self.frames[frame as usize];
        if f.content == Content::Absent || std::mem::replace(&mut self.queues.used_last, frame) == frame {
            return;
        }
        f.uses = (f.uses + 1).min(MOST_USES);
        if f.place == Place::New {
            f.place = Place::Small;
            self.queues.new -= usize::from(queued);
        }
    }

    /// A changed page is on the medium: what was used much in the meantime is no newcomer.
    pub(super) fn written_back(&mut self, frame: u32) {
        let f = &mut self.frames[frame as usize];
        if f.place == Place::New {
            f.place = Place::Small;
        }
        if f.content != Content::Absent {
            self.enqueue(frame);
        }
    }

    fn move_to(&mut self, frame: u32, place: Place) {
        self.dequeue(frame);
        self.frames[frame as usize].place = place;
        self.enqueue(frame);
    }

    fn move_to_end(&mut self, frame: u32) {
        let queue = self.frames[frame as usize].place.queue();
        self.queues.take(queue, frame);
        self.queues.push(queue, frame);
    }

    /// The page that goes next from a queue; what stood before it is moved elsewhere. `None`: there is none that may go, or too many of those before it are held.
    fn next_of(&mut self, queue: usize, mut held_max: usize) -> Option<u32> {
        let mut chances = CHANCES_MAX;
        for _ in 0..self.queues.queues[queue].len + CHANCES_MAX {
            let first = self.queues.queues[queue].first;
            if first == NONE {
                break;
            }
            if self.is_held(first) {
                held_max = held_max.checked_sub(1)?;
                self.move_to_end(first);
                continue;
            }
            if chances == 0 || self.has_no_chance(first) {
                return Some(first);
            }
            chances -= 1;
            let f = &mut self.frames[first as usize];
            let to = match f.place {
                Place::New => Place::Small,
                Place::Small | Place::Copy => {
                    f.uses = 0;
                    Place::Main
                }
                Place::Main => {
                    f.uses -= 1;
                    Place::Main
                }
            };
            self.move_to(first, to);
        }
        None
    }

    /// Whether a page that stands at the front of its queue, and is not held, goes.
    fn has_no_chance(&self, frame: u32) -> bool {
        let f = &self.frames[frame as usize];
        match f.place {
            Place::New => false,
            Place::Small | Place::Copy => f.uses <= PROVEN,
            Place::Main => f.uses == 0,
        }
    }

    /// Throws out a page that is the first to go, and those behind it that stand in the frames behind its own, `max` at most. The first frame; `None`: all are dirty or pinned.
    pub(super) fn evict_run(&mut self, max: usize) -> Option<u32> {
        let [small, main] = self.queues.queues.map(|queue| queue.len);
        let gives = small - self.queues.new > ((small + main) / SMALL_PART).max(FEW);
        let [one, other] = if gives || main == 0 { [SMALL, MAIN] } else { [MAIN, SMALL] };
        // What the small queue moves to the main one may go from there.
        let tries = [(one, HELD_MAX), (other, HELD_MAX), (one, usize::MAX), (other, usize::MAX)];
        let (queue, first) =
            tries.into_iter().find_map(|(queue, held)| Some((queue, self.next_of(queue, held)?)))?;
        for next in (first..).take(max) {
            let goes_on =
                || self.queues.queues[queue].first == next && !self.is_held(next) && self.has_no_chance(next);
            if next != first && !goes_on() {
                break;
            }
            if queue == SMALL {
                self.queues.gone.remember(self.frames[next as usize].key, &self.hasher);
            }
            self.evict(FrameNo(next));
        }
        Some(first)
    }
}

#[cfg(test)]
impl PageCache {
    /// Panics unless every page stands where it belongs, and nowhere else.
    pub(super) fn check_queues(&self) {
        let mut queued = 0;
        for (number, queue) in self.queues.queues.iter().enumerate() {
            let (mut at, mut before, mut len) = (queue.first, NONE, 0);
            while at != NONE {
                assert!(self.is_queued(at) && self.frames[at as usize].place.queue() == number);
                assert_eq!(self.queues.links[at as usize].before, before);
                (before, at, len) = (at, self.queues.links[at as usize].behind, len + 1);
            }
            assert_eq!((queue.last, queue.len), (before, len));
            queued += len;
        }
        let all = (0..self.frames.len() as u32).filter(|&f| self.is_queued(f));
        let copies = all.clone().filter(|&f| self.frames[f as usize].place == Place::Copy);
        assert_eq!(self.queues.copies.len(), copies.count());
        let new = all.clone().filter(|&f| self.frames[f as usize].place == Place::New);
        assert_eq!((queued, self.queues.new), (all.count(), new.count()));
    }
}
