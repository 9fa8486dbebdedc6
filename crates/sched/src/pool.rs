//! Writes that may leave in any order: those of one epoch, or the orderless ones.
//!
//! Invariants: ranges do not overlap; no two adjacent requests could be merged and are not; `by_age` names each request once.
//! A request leaves after at most `patience` others that came later have left before it, plus those that are as late as it.

use crate::Discipline;
use crate::scheduler::{Config, Request};
use media::{Flags, Op};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// A request in a pool: one that was submitted, or several adjacent ones that became one.
pub(crate) struct Queued<T> {
    pub op: Op,
    pub flags: Flags,
    pub offset: u64,
    pub len: u64,
    pub segments: u32,
    /// What was submitted, by ascending offset.
    pub parts: SmallVec<[T; 1]>,
    /// Number of the oldest part.
    age: u64,
    /// Requests that had left when the oldest part came.
    pops: u64,
}

impl<T> Queued<T> {
    fn end(&self) -> u64 {
        self.offset + self.len
    }

    fn fits(&self, next: &Queued<T>, config: &Config) -> bool {
        (self.op, self.flags, self.end()) == (next.op, next.flags, next.offset)
            && self.len + next.len <= config.len_max
            && self.segments + next.segments <= config.segments_max
    }

    fn append(&mut self, next: Queued<T>) {
        self.len += next.len;
        self.segments += next.segments;
        self.parts.extend(next.parts);
        self.age = self.age.min(next.age);
        self.pops = self.pops.min(next.pops);
    }
}

pub(crate) struct Pool<T> {
    by_offset: BTreeMap<u64, Queued<T>>,
    /// Offsets by age.
    by_age: BTreeMap<u64, u64>,
    /// Requests that have left.
    pops: u64,
    /// End of the last request that left.
    position: u64,
}

impl<T> Default for Pool<T> {
    fn default() -> Pool<T> {
        Pool { by_offset: BTreeMap::new(), by_age: BTreeMap::new(), pops: 0, position: 0 }
    }
}

impl<T> Pool<T> {
    pub fn is_empty(&self) -> bool {
        self.by_offset.is_empty()
    }

    /// Whether the range meets one that is queued.
    pub fn overlaps(&self, offset: u64, len: u64) -> bool {
        let before = self.by_offset.range(..offset + len).next_back();
        before.is_some_and(|(_, q)| q.end() > offset)
    }

    /// Adds a request that overlaps no other, as the youngest. Returns how many merges that caused (0 to 2).
    pub fn insert(&mut self, request: Request<T>, age: u64, config: &Config) -> u64 {
        debug_assert!(!self.overlaps(request.offset, request.len));
        let mut parts = SmallVec::new();
        parts.push(request.payload);
        let Request { op, flags, offset, len, segments, .. } = request;
        let mut new = Queued { op, flags, offset, len, segments, parts, age, pops: self.pops };
        let mut merged = 0;
        let before =
            self.by_offset.range(..offset).next_back().filter(|(_, q)| q.fits(&new, config)).map(|(o, _)| *o);
        if let Some(mut before) = before.and_then(|at| self.take(at)) {
            before.append(new);
            new = before;
            merged += 1;
        }
        let after = self.by_offset.get(&new.end()).filter(|q| new.fits(q, config)).map(|q| q.offset);
        if let Some(after) = after.and_then(|at| self.take(at)) {
            new.append(after);
            merged += 1;
        }
        self.by_age.insert(new.age, new.offset);
        self.by_offset.insert(new.offset, new);
        merged
    }

    fn take(&mut self, offset: u64) -> Option<Queued<T>> {
        let taken = self.by_offset.remove(&offset)?;
        self.by_age.remove(&taken.age);
        Some(taken)
    }

    /// Removes the request that leaves next.
    pub fn pop(&mut self, config: &Config) -> Option<Queued<T>> {
        let oldest = *self.by_age.first_key_value()?.1;
        let overdue = self.pops - self.by_offset[&oldest].pops >= config.patience;
        let next = match config.discipline {
            Discipline::Ascending if !overdue => {
                let ahead = self.by_offset.range(self.position..).next();
                ahead.or(self.by_offset.first_key_value()).map_or(oldest, |(offset, _)| *offset)
            }
            _ => oldest,
        };
        let taken = self.take(next)?;
        self.pops += 1;
        self.position = taken.end();
        Some(taken)
    }

    /// Everything, by ascending offset.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.by_age.clear();
        std::mem::take(&mut self.by_offset).into_values().flat_map(|q| q.parts)
    }
}
