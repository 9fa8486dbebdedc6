//! How many ranges are locked, and by whom: each takes memory for as long as its owner likes.
//!
//! They are counted for all owners together whose numbers have the same upper half. For the owners of a session that is the session. The numbers that a kernel gives
//! its owners look random: there it is each by itself, a process with its threads. Open files as owners are counted by themselves, too, and have less room: who looks after them
//! bounds how many there are.

use super::ranges::Ranges;
use crate::types::LockOwner;
use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// Spans that are counted together, at most. What somebody else has kept comes back also where there is no room; nothing more is lent then.
pub(super) const SPANS_MAX: usize = 1 << 16;
pub(super) const OF_HANDLE_MAX: usize = 1 << 10;

/// How many spans there are.
#[derive(Debug, Default)]
pub(super) struct Spans(HashMap<u64, usize, RandomState>);

fn group(owner: LockOwner) -> u64 {
    if owner.handle().is_some() { owner.0 } else { owner.0 >> 32 }
}

impl Spans {
    /// Whether there may be so many more.
    pub fn have_room(&self, owner: LockOwner, more: usize) -> bool {
        let most = if owner.handle().is_some() { OF_HANDLE_MAX } else { SPANS_MAX };
        self.of(owner) + more <= most
    }

    pub fn of(&self, owner: LockOwner) -> usize {
        self.0.get(&group(owner)).copied().unwrap_or(0)
    }

    /// Changes what an owner holds of an inode.
    pub fn counting<T>(
        &mut self,
        ranges: &mut Ranges,
        owner: LockOwner,
        change: impl FnOnce(&mut Ranges) -> T,
    ) -> T {
        let before = ranges.count(owner);
        let result = change(ranges);
        let after = ranges.count(owner);
        if after != before {
            let all = self.0.entry(group(owner)).or_insert(0);
            *all = (*all + after).saturating_sub(before);
            if *all == 0 {
                self.0.remove(&group(owner));
            }
        }
        result
    }

    /// All locks of an inode are kept elsewhere.
    pub fn forget(&mut self, ranges: &mut Ranges) {
        let first = |ranges: &Ranges| ranges.all().next().map(|(owner, _)| owner);
        while let Some(owner) = first(ranges) {
            self.counting(ranges, owner, |all| all.remove(owner, 0, u64::MAX));
        }
    }
}
