//! How long files are to which only this client comes: those that it has made under a lease, and to which it writes without waiting.
//!
//! Nobody tells a client how such a file is after what it has posted, but it can reckon: while the lease lasts nobody else has come to the file, so it is as long as it was, or as what was
//! posted reaches; or as an answer has said since. Other calls of this client that may change how long a file is are messages, which are counted here, when they begin and when they are
//! answered. What was reckoned counts as long as none has begun since, and for all handles of the file. Tested in tests/all/sizes.rs and
//! tests/all/handles.rs.

use super::Remote;
use super::call::Answer;
use super::files::OpenFile;
use crate::lock::{Apart, Mutex};
use crate::wire::Op;
use foldhash::fast::FixedState;
use format::shared::Request;
use fs::{Handle, Ino, OpenFlags};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Files that are told apart.
const FILES: usize = 64;
/// Parts of what is reckoned.
const PARTS: usize = 16;

/// Messages that may change how long some file is.
#[derive(Debug, Default)]
struct Count {
    begun: AtomicU64,
    answered: AtomicU64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Resizes {
    of: [Count; FILES],
    /// Of files that are not known.
    any: Count,
    /// Of files to which something is posted. All handles of a file have one length.
    own: [Apart<Mutex<HashMap<Ino, Own, FixedState>>>; PARTS],
}

impl Default for Resizes {
    fn default() -> Resizes {
        let of = std::array::from_fn(|_| Count::default());
        Resizes { of, any: Count::default(), own: Default::default() }
    }
}

/// How many messages had begun, and were answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Since(u64, u64);

/// How long a file is to which only this client comes, as of when none of its messages was under way that may change that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    size: u64,
    since: Since,
    /// The lease under which it was reckoned.
    lent: u64,
}

/// A message that is not answered yet. One that is given up may be done at any time, and counts for ever.
pub(super) struct Resize<'a>(&'a Count);

impl Resize<'_> {
    pub fn answered(self) {
        self.0.answered.fetch_add(1, Ordering::SeqCst);
    }
}

impl Resizes {
    fn count(&self, ino: Ino) -> &Count {
        &self.of[mixed(ino) as usize % FILES]
    }

    /// A message is about to be sent that may change how long this file is, or any.
    pub fn begin(&self, ino: Option<Ino>) -> Resize<'_> {
        let count = ino.map_or(&self.any, |ino| self.count(ino));
        count.begun.fetch_add(1, Ordering::SeqCst);
        Resize(count)
    }

    fn own(&self, ino: Ino) -> &Mutex<HashMap<Ino, Own, FixedState>> {
        &self.own[mixed(ino) as usize % PARTS]
    }

    /// A file was just made under a lease.
    pub fn just_made(&self, ino: Ino, lent: u64) {
        if let Some(since) = self.now(ino) {
            self.own(ino).lock().insert(ino, Own { size: 0, since, lent });
        }
    }

    /// A file to which something may have been posted is closed by one of its handles: who has another one asks.
    pub fn closed(&self, ino: Ino) {
        self.own(ino).lock().remove(&ino);
    }

    /// Now, unless one is under way that concerns this file.
    pub fn now(&self, ino: Ino) -> Option<Since> {
        let none = |count: &Count| {
            // In this order: what begins in between is under way.
            let answered = count.answered.load(Ordering::SeqCst);
            (count.begun.load(Ordering::SeqCst) == answered).then_some(answered)
        };
        Some(Since(none(self.count(ino))?, none(&self.any)?))
    }

    /// Whether none has begun since then.
    fn none_since(&self, ino: Ino, since: Since) -> bool {
        let begun = |count: &Count| count.begun.load(Ordering::SeqCst);
        Since(begun(self.count(ino)), begun(&self.any)) == since
    }
}

impl Remote {
    /// Counts a request if it may change how long a file is. Handles are this client's.
    pub(super) fn resizing(&self, op: Op, request: &Request) -> Option<Resize<'_>> {
        let (object, flags) = (request.object.get(), request.flags.get());
        let empties = OpenFlags::from_bits_retain(flags).contains(OpenFlags::TRUNCATE);
        let ino = match op {
            Op::Write | Op::WriteAtomic | Op::Fallocate => self.inode(Handle(object)),
            Op::Setattr if flags & 1 == 0 => Some(Ino(object)),
            Op::Open if empties => Some(Ino(object)),
            Op::Create if empties => None,
            Op::Setattr | Op::CopyRange => None,
            _ => return None,
        };
        Some(self.link.resizes.begin(ino))
    }

    /// How long a file is, if only this client comes to it and that is known.
    pub(super) fn own_size(&self, file: &OpenFile) -> Option<u64> {
        if file.lent == 0 {
            return None;
        }
        let resizes = &self.link.resizes;
        let own = resizes.own(file.ino).lock().get(&file.ino).copied().filter(|own| own.lent == file.lent)?;
        let holds =
            self.now().directories.lasts(self.now(), file.lent) && resizes.none_since(file.ino, own.since);
        holds.then_some(own.size)
    }

    /// How long such a file is, as an answer says to a question from `before`, which was itself one of so many messages that may change that.
    pub(super) fn own_by(
        &self,
        file: &OpenFile,
        lent: u64,
        (before, messages): (Option<Since>, u64),
        answer: &Answer<'_>,
    ) {
        let resizes = &self.link.resizes;
        // Whoever has posted something since then says so before he looks here.
        let mut own = resizes.own(file.ino).lock();
        let said = || {
            let size = answer.attr().ok()?.size;
            let Since(of, any) = before?;
            let since = resizes.now(file.ino).filter(|&now| now == Since(of + messages, any))?;
            let holds = file.session == answer.session() && !answer.kept().has_posted(file.ino, answer.posts);
            holds.then_some(Own { size, since, lent })
        };
        match said() {
            Some(said) => drop(own.insert(file.ino, said)),
            // Of a lease that is over.
            None if own.get(&file.ino).is_some_and(|own| own.lent != lent) => drop(own.remove(&file.ino)),
            None => {}
        }
    }

    /// How long a file is before something is posted to it.
    pub(super) fn before_posting(&self, file: &OpenFile) -> Option<Own> {
        let since = self.link.resizes.now(file.ino)?;
        let size = self.kept().size(file.ino).or_else(|| self.own_size(file))?;
        Some(Own { size, since, lent: file.lent })
    }

    /// Something was posted to a file, as far as `end`.
    pub(super) fn has_posted(&self, handle: Handle, ino: Ino, before: Option<Own>, end: u64) {
        self.link.change(handle, |file| file.waits.has_posted());
        let resizes = &self.link.resizes;
        let mut all = resizes.own(ino).lock();
        let Some(before) = before else {
            all.remove(&ino);
            return;
        };
        // Other threads may have posted more meanwhile.
        let by_others =
            all.get(&ino).filter(|own| own.lent == before.lent && resizes.none_since(ino, own.since));
        let others_end = by_others.map_or(0, |own| own.size);
        if !by_others.is_some_and(|own| own.since == before.since && own.size >= end) {
            all.insert(ino, Own { size: before.size.max(end).max(others_end), ..before });
        }
    }
}

fn mixed(ino: Ino) -> u64 {
    ino.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_reckoned_ends_with_the_next_message() {
        let resizes = Resizes::default();
        let (ino, since) = (Ino(7), resizes.now(Ino(7)).unwrap());
        assert!(resizes.none_since(ino, since));
        let message = resizes.begin(Some(ino));
        assert!(!resizes.none_since(ino, since) && resizes.now(ino).is_none());
        message.answered();
        assert!(!resizes.none_since(ino, since));
        let since = resizes.now(ino).unwrap();
        // Of an unknown file, which is given up.
        let _given_up = resizes.begin(None);
        assert!(!resizes.none_since(ino, since) && resizes.now(ino).is_none());
    }
}
