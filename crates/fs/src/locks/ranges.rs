//! The record locks of one inode: who holds which ranges.
//!
//! Invariant: the spans of one owner do not overlap, and two that touch differ in kind or process (else they are one span).
//! So an owner has at most as many spans as it made calls, and finding a conflict costs a logarithm for each owner.

use crate::types::{LockKind, LockOwner, RecordLock};
use std::collections::BTreeMap;

/// What is known of a span besides its first byte, which is its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    end: u64,
    kind: LockKind,
    pid: u32,
}

/// The record locks of one inode.
#[derive(Clone, Debug, Default)]
pub struct Ranges {
    /// In the order in which they got the first of what they hold.
    owners: Vec<(LockOwner, BTreeMap<u64, Span>)>,
}

/// The first span that touches `start..=end` and, with `exclusive_only`, is exclusive.
fn first(spans: &BTreeMap<u64, Span>, start: u64, end: u64, exclusive_only: bool) -> Option<RecordLock> {
    let before = spans.range(..start).next_back().filter(|(_, s)| s.end >= start);
    let inside = spans.range(start..=end);
    before
        .into_iter()
        .chain(inside)
        .find(|(_, s)| !exclusive_only || s.kind == LockKind::Exclusive)
        .map(|(&start, s)| RecordLock { start, end: s.end, kind: s.kind, pid: s.pid })
}

/// Takes `start..=end` out of the spans of an owner, splitting what sticks out. Tells whether there was any of it.
fn take(spans: &mut BTreeMap<u64, Span>, start: u64, end: u64) -> bool {
    let mut found = false;
    while let Some(hit) = first(spans, start, end, false) {
        found = true;
        spans.remove(&hit.start);
        let rest = Span { end: hit.end, kind: hit.kind, pid: hit.pid };
        if hit.start < start {
            spans.insert(hit.start, Span { end: start - 1, ..rest });
        }
        if hit.end > end {
            spans.insert(end + 1, rest);
        }
    }
    found
}

impl Ranges {
    /// Whether nobody holds anything.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// The locks that keep `owner` from getting `lock`: of each other owner, in their order, the first one.
    pub fn conflicts(
        &self,
        owner: LockOwner,
        lock: RecordLock,
    ) -> impl Iterator<Item = (LockOwner, RecordLock)> + '_ {
        let exclusive_only = lock.kind == LockKind::Shared;
        self.owners
            .iter()
            .filter(move |(o, _)| *o != owner)
            .filter_map(move |(o, spans)| Some((*o, first(spans, lock.start, lock.end, exclusive_only)?)))
    }

    /// Gives `lock` to `owner`, in place of what it holds of that range. The caller has checked for conflicts.
    pub fn insert(&mut self, owner: LockOwner, mut lock: RecordLock) {
        let at = self.owners.iter().position(|(o, _)| *o == owner).unwrap_or_else(|| {
            self.owners.push((owner, BTreeMap::new()));
            self.owners.len() - 1
        });
        let spans = &mut self.owners[at].1;
        take(spans, lock.start, lock.end);
        let same = |s: &Span| s.kind == lock.kind && s.pid == lock.pid;
        if let Some((&start, _)) = spans
            .range(..lock.start)
            .next_back()
            .filter(|(_, s)| same(s) && s.end.checked_add(1) == Some(lock.start))
        {
            spans.remove(&start);
            lock.start = start;
        }
        if let Some(next) = lock.end.checked_add(1)
            && let Some(s) = spans.get(&next).copied().filter(same)
        {
            spans.remove(&next);
            lock.end = s.end;
        }
        spans.insert(lock.start, Span { end: lock.end, kind: lock.kind, pid: lock.pid });
    }

    /// Takes `start..=end` from `owner`. Tells whether it held any of it.
    pub fn remove(&mut self, owner: LockOwner, start: u64, end: u64) -> bool {
        let Some(at) = self.owners.iter().position(|(o, _)| *o == owner) else {
            return false;
        };
        let spans = &mut self.owners[at].1;
        let found = take(spans, start, end);
        if spans.is_empty() {
            self.owners.remove(at);
        }
        found
    }

    /// Whether an owner holds anything.
    pub fn has(&self, owner: LockOwner) -> bool {
        self.owners.iter().any(|(o, _)| *o == owner)
    }

    /// How many spans an owner has.
    pub fn count(&self, owner: LockOwner) -> usize {
        self.owners.iter().find(|(o, _)| *o == owner).map_or(0, |(_, spans)| spans.len())
    }

    /// Whether taking `start..=end` from `owner` leaves more spans than there are.
    pub fn splits(&self, owner: LockOwner, start: u64, end: u64) -> bool {
        let spans = self.owners.iter().find(|(o, _)| *o == owner).map(|(_, spans)| spans);
        let before = spans.and_then(|spans| spans.range(..start).next_back());
        before.is_some_and(|(_, span)| span.end > end)
    }

    /// All locks that are held, of each owner in the order of their places.
    pub fn all(&self) -> impl Iterator<Item = (LockOwner, RecordLock)> + '_ {
        self.owners.iter().flat_map(|(owner, spans)| {
            spans
                .iter()
                .map(|(&start, s)| (*owner, RecordLock { start, end: s.end, kind: s.kind, pid: s.pid }))
        })
    }

    /// All spans of an owner, for tests.
    #[cfg(test)]
    pub(super) fn of(&self, owner: LockOwner) -> Vec<RecordLock> {
        let spans = self.owners.iter().find(|(o, _)| *o == owner).map(|(_, s)| s);
        let all = spans.into_iter().flatten();
        all.map(|(&start, s)| RecordLock { start, end: s.end, kind: s.kind, pid: s.pid }).collect()
    }
}
