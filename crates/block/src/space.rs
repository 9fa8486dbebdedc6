//! Space: segments with elastic roles, and the blocks in them (UHSFS, section 2.1; DESIGN "Block engine").
//!
//! A segment is free, wholly given to one use (log, inodes, a 2 MiB chunk of a file), or partly used by small data. Nothing
//! of this is stored: at mount it is derived from the inodes. Rules that keep a crash harmless:
//! - Blocks freed in an epoch go to quarantine. They are given out again only when a durable record says that this epoch is
//!   durable: until then recovery may need their content, or may verify its checksum.
//! - A reservation is a promise to a delayed allocation: reserved blocks are not given to anybody else.
//!
//! Tested here against a naive map, and by `freehold fsck` after every crash test.

use format::limits::SEGMENT_BLOCKS;
use format::{BlockNo, SegNo};
use std::collections::{BTreeMap, BTreeSet};

const SEG: u32 = SEGMENT_BLOCKS as u32;

/// A run of neighbouring blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Run {
    pub block: BlockNo,
    pub count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// No block in use.
    Free,
    /// Some or all blocks in use, one bit each.
    Partial,
    /// All blocks in use, no map kept.
    Full,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    role: Role,
    free: u16,
    /// Index into `maps` when partial.
    map: u32,
}

#[derive(Debug)]
pub(crate) struct Space {
    segments: Vec<Segment>,
    /// Bits of partial segments; 1 means in use.
    maps: Vec<[u64; 8]>,
    spare_maps: Vec<u32>,
    free_segments: BTreeSet<u32>,
    /// Partial segments by number of free blocks.
    partial: BTreeSet<(u16, u32)>,
    /// Where small allocations go on.
    active: Option<u32>,
    /// Blocks that nobody uses and nobody waits to reuse.
    free_blocks: u64,
    reserved: u64,
    /// Of what is reserved: set aside for writes that are still to come, and the part that the write under way may take.
    aside: u64,
    drawn: u64,
    /// Blocks that are free and nobody may have for a while.
    apart: u64,
    quarantine: BTreeMap<u64, Vec<Run>>,
    quarantined: u64,
}

impl Space {
    /// All segments free but segment 0 (super segment).
    pub fn new(segments: u32) -> Space {
        let mut s = Space {
            segments: vec![Segment { role: Role::Free, free: SEG as u16, map: 0 }; segments as usize],
            maps: Vec::new(),
            spare_maps: Vec::new(),
            free_segments: (1..segments).collect(),
            partial: BTreeSet::new(),
            active: None,
            free_blocks: (segments as u64 - 1) * SEG as u64,
            reserved: 0,
            aside: 0,
            drawn: 0,
            apart: 0,
            quarantine: BTreeMap::new(),
            quarantined: 0,
        };
        s.segments[0] = Segment { role: Role::Full, free: 0, map: 0 };
        s
    }

    /// Blocks in the volume.
    pub fn total(&self) -> u64 {
        self.segments.len() as u64 * SEG as u64
    }
    /// Blocks that a new write could get, now or when quarantine ends.
    pub fn available(&self) -> u64 {
        (self.free_blocks + self.apart + self.quarantined + self.aside).saturating_sub(self.reserved)
    }
    /// Blocks in segments of which nothing is used. Those that wait to be reused count, as most of them are given back together.
    pub fn free_in_segments(&self) -> u64 {
        self.free_segments.len() as u64 * SEG as u64 + self.apart + self.quarantined
    }
    /// Blocks that can be given out at once, reservations included.
    pub fn free_now(&self) -> u64 {
        self.free_blocks
    }
    /// Blocks that wait for their epoch to be recorded as durable.
    pub fn quarantined(&self) -> u64 {
        self.quarantined
    }

    /// Promises `blocks` to a delayed allocation; false when there are not so many besides the `keep` blocks that
    /// are held back for metadata.
    pub fn reserve(&mut self, blocks: u64, keep: u64) -> bool {
        if blocks <= self.drawn {
            // It was reserved before, and now belongs to the delayed allocation.
            self.drawn -= blocks;
            self.aside -= blocks;
            return true;
        }
        if self.free_blocks < self.reserved + blocks + keep {
            return false;
        }
        self.reserved += blocks;
        true
    }
    /// Gives a promise back, because it was kept (the blocks were allocated) or is no longer needed.
    pub fn unreserve(&mut self, blocks: u64) {
        debug_assert!(self.reserved >= blocks, "reservation underflow");
        self.reserved = self.reserved.saturating_sub(blocks);
    }
    /// Sets blocks aside for writes that are still to come: reserved, but free for who asks how full the volume is. False as for [`Space::reserve`].
    pub fn set_aside(&mut self, blocks: u64, keep: u64) -> bool {
        debug_assert_eq!(self.drawn, 0, "in the middle of a write");
        let there = self.reserve(blocks, keep);
        if there {
            self.aside += blocks;
        }
        there
    }
    /// Gives blocks back that were set aside.
    pub fn give_aside(&mut self, blocks: u64) {
        debug_assert!(self.aside >= blocks, "more than was set aside");
        let blocks = blocks.min(self.aside);
        self.aside -= blocks;
        self.unreserve(blocks);
    }
    /// Until [`Space::end_drawing`], what is reserved comes out of so many blocks that were set aside. Within one hold of the lock.
    pub fn begin_drawing(&mut self, blocks: u64) {
        self.drawn = blocks.min(self.aside);
    }
    /// Whether the write under way may take any of them.
    pub fn is_drawing(&self) -> bool {
        self.drawn > 0
    }
    /// How many of them are left, set aside still.
    pub fn end_drawing(&mut self) -> u64 {
        std::mem::take(&mut self.drawn)
    }

    /// Blocks promised to delayed allocations.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Of these, the blocks of delayed allocations that there are already: not what is set aside.
    pub fn delayed(&self) -> u64 {
        self.reserved - self.aside
    }

    /// Blocks that can be given out at once besides what is promised and the `keep` blocks.
    pub fn spare(&self, keep: u64) -> u64 {
        self.free_blocks.saturating_sub(self.reserved + keep)
    }
    /// As [`Space::spare`], for the write under way.
    pub fn spare_to_write(&self, keep: u64) -> u64 {
        self.spare(keep) + self.drawn
    }

    /// Of how many runs so many blocks consist at most, if whole segments are taken where there are any.
    pub fn runs_max(&self, blocks: u64) -> u64 {
        let whole = self.free_segments.len() as u64 * SEG as u64;
        blocks.saturating_sub(whole) + 2 * blocks.div_ceil(SEG as u64)
    }

    fn map_of(&mut self, seg: u32) -> &mut [u64; 8] {
        let index = self.segments[seg as usize].map;
        &mut self.maps[index as usize]
    }

    /// Gives a free or full segment a map of its own.
    fn make_partial(&mut self, seg: u32) {
        let s = self.segments[seg as usize];
        let fill = match s.role {
            Role::Partial => return,
            Role::Free => {
                self.free_segments.remove(&seg);
                0
            }
            Role::Full => u64::MAX,
        };
        let map = self.spare_maps.pop().unwrap_or_else(|| {
            self.maps.push([0; 8]);
            self.maps.len() as u32 - 1
        });
        self.maps[map as usize] = [fill; 8];
        self.segments[seg as usize] = Segment { role: Role::Partial, map, ..s };
        self.partial.insert((s.free, seg));
    }

    /// Sets or clears the bits of blocks `at..at + count` of a segment; they must all be in the other state.
    fn change(&mut self, seg: u32, at: u32, count: u32, used: bool) {
        self.make_partial(seg);
        let map = self.map_of(seg);
        for bit in at..at + count {
            let (word, mask) = (bit as usize / 64, 1 << (bit % 64));
            debug_assert_eq!(
                map[word] & mask != 0,
                !used,
                "block is already {}",
                if used { "used" } else { "free" }
            );
            if used {
                map[word] |= mask;
            } else {
                map[word] &= !mask;
            }
        }
        let s = &mut self.segments[seg as usize];
        let before = s.free;
        s.free = if used { before - count as u16 } else { before + count as u16 };
        let after = s.free;
        let map = s.map;
        self.partial.remove(&(before, seg));
        match after as u32 {
            0 | SEG => {
                let role = if after == 0 { Role::Full } else { Role::Free };
                self.segments[seg as usize] = Segment { role, free: after, map: 0 };
                self.spare_maps.push(map);
                if role == Role::Free {
                    self.free_segments.insert(seg);
                    if self.active == Some(seg) {
                        self.active = None;
                    }
                }
            }
            _ => {
                self.partial.insert((after, seg));
            }
        }
    }

    /// Calls `f(segment, first, count)` for the part of the run in each segment.
    fn split(run: Run, mut f: impl FnMut(u32, u32, u32)) {
        let (mut at, end) = (run.block.0, run.block.0 + run.count as u64);
        while at < end {
            let seg = BlockNo(at).segment().0;
            let first = BlockNo(at).in_segment() as u32;
            let count = (SEG - first).min((end - at) as u32);
            f(seg, first, count);
            at += count as u64;
        }
    }

    fn take(&mut self, run: Run) -> Run {
        self.free_blocks -= run.count as u64;
        Space::split(run, |seg, first, count| {
            if count == SEG {
                self.free_segments.remove(&seg);
                self.segments[seg as usize] = Segment { role: Role::Full, free: 0, map: 0 };
            } else {
                self.change(seg, first, count, true);
            }
        });
        run
    }

    /// Frees a run at once. Only for blocks that no epoch ever referred to, or whose quarantine is over.
    pub fn free(&mut self, run: Run) {
        self.free_blocks += run.count as u64;
        Space::split(run, |seg, first, count| {
            if count == SEG {
                debug_assert_eq!(self.segments[seg as usize].role, Role::Full, "segment is not in use");
                self.segments[seg as usize] = Segment { role: Role::Free, free: SEG as u16, map: 0 };
                self.free_segments.insert(seg);
            } else {
                self.change(seg, first, count, false);
            }
        });
    }

    /// At mount: the run is in use. False when some of it lies outside of the volume or is in use already.
    pub fn claim(&mut self, run: Run) -> bool {
        let end = run.block.0.checked_add(run.count as u64);
        if run.count == 0 || end.is_none_or(|e| e > self.total()) || !self.is_free(run) {
            return false;
        }
        self.take(run);
        true
    }

    /// Keeps whole segments that are free from everybody until [`Space::put_back`]. False when they are not, or when so many blocks are not spare.
    pub fn set_apart(&mut self, run: Run, keep: u64) -> bool {
        let apart = self.spare(keep) >= run.count as u64 && self.claim(run);
        if apart {
            self.apart += run.count as u64;
        }
        apart
    }
    /// They may be used again.
    pub fn put_back(&mut self, run: Run) {
        self.apart -= run.count as u64;
        self.free(run);
    }

    /// Whether the run is one of the volume, behind its super segment, and every block of it is in use.
    pub fn in_use(&self, run: Run) -> bool {
        let end = run.block.0.checked_add(run.count as u64);
        let is_its = run.count > 0 && run.block.0 >= SEG as u64 && end.is_some_and(|e| e <= self.total());
        is_its && self.all_are(run, Role::Full)
    }

    /// Whether every block of the run is free.
    pub fn is_free(&self, run: Run) -> bool {
        self.all_are(run, Role::Free)
    }

    /// Whether every block of the run is what all are in a segment of this role, which is not `Partial`.
    fn all_are(&self, run: Run, role: Role) -> bool {
        let bit = (role == Role::Full) as u64;
        let mut all = true;
        Space::split(run, |seg, first, count| {
            let s = self.segments[seg as usize];
            all &= match s.role {
                Role::Partial => {
                    let map = &self.maps[s.map as usize];
                    (first..first + count).all(|b| map[b as usize / 64] >> (b % 64) & 1 == bit)
                }
                whole => whole == role,
            };
        });
        all
    }

    /// The usage of each segment for the index checkpoint: `Ok(bits)` when partly used, `Err(true)` when full.
    pub fn usage(&self, seg: u32) -> Result<[u64; 8], bool> {
        let s = self.segments[seg as usize];
        match s.role {
            Role::Free => Err(false),
            Role::Full => Err(true),
            Role::Partial => Ok(self.maps[s.map as usize]),
        }
    }

    /// Takes `count` whole neighbouring segments if they can be had, else fewer; `None` when no segment is free.
    /// Looks onwards from `near`.
    pub fn alloc_segments(&mut self, count: u32, near: Option<SegNo>) -> Option<(SegNo, u32)> {
        let hint = near.map_or(0, |s| s.0);
        let first = *self.free_segments.range(hint..).next().or_else(|| self.free_segments.first())?;
        let mut n = 1;
        while n < count && self.free_segments.contains(&(first + n)) {
            n += 1;
        }
        let run = self.take(Run { block: SegNo(first).first_block(), count: n * SEG });
        Some((SegNo(first), run.count / SEG))
    }

    /// Takes a run of 1 to `want` blocks: behind `goal` when that block is free, else from small-data segments.
    pub fn alloc(&mut self, want: u32, goal: Option<BlockNo>) -> Option<Run> {
        debug_assert!(want > 0);
        if let Some(goal) = goal
            && goal.0 < self.total()
            && goal.in_segment() != 0
            && let Some(run) = self.free_run_at(goal, want)
        {
            return Some(self.take(run));
        }
        for attempt in 0..3 {
            let seg = match attempt {
                0 => self.active.filter(|&s| self.segments[s as usize].role == Role::Partial),
                // A segment with a quarter free is worth filling; else a fresh one keeps files together; else anything.
                1 => self
                    .partial
                    .last()
                    .filter(|p| p.0 as u32 >= SEG / 4)
                    .map(|p| p.1)
                    .or_else(|| self.free_segments.first().copied()),
                _ => self.partial.last().map(|p| p.1),
            };
            if let Some(seg) = seg
                && let Some(run) = self.best_run(seg, want)
            {
                self.active = Some(seg);
                return Some(self.take(run));
            }
        }
        None
    }

    /// As [`Space::alloc`] with a goal, for a file that grows: when the goal is taken, the run begins at a free place with room
    /// for `room` blocks (a power of two, at most a segment), so that files that grow side by side do not end up in single
    /// blocks that alternate.
    pub fn alloc_growing(&mut self, want: u32, goal: Option<BlockNo>, room: u32) -> Option<Run> {
        let usable =
            |g: BlockNo| g.0 < self.total() && g.in_segment() != 0 && self.free_run_at(g, 1).is_some();
        let taken = goal.is_some_and(|g| !usable(g));
        if taken && want < room {
            let active = self.active.filter(|&s| self.segments[s as usize].role == Role::Partial);
            let emptiest = self.partial.iter().rev().take(4).map(|p| p.1);
            let mut candidates =
                active.into_iter().chain(emptiest).chain(self.free_segments.first().copied());
            if let Some(at) = candidates.find_map(|s| self.place(s, room)) {
                return Some(self.take(Run { block: at, count: want }));
            }
        }
        self.alloc(want, goal)
    }

    /// The first free place for `room` blocks in a segment, at a multiple of `room`.
    fn place(&self, seg: u32, room: u32) -> Option<BlockNo> {
        let first = SegNo(seg).first_block().0;
        let mut places = (0..SEG).step_by(room as usize).map(|at| BlockNo(first + at as u64));
        places.find(|&at| self.free_run_at(at, room).is_some_and(|run| run.count == room))
    }

    /// Takes exactly `count` neighbouring blocks (at most a segment), or nothing.
    pub fn alloc_exact(&mut self, count: u32) -> Option<Run> {
        debug_assert!(count > 0 && count <= SEG);
        let candidates = self.active.into_iter().chain(self.partial.iter().rev().map(|p| p.1)).take(64);
        let found = candidates.filter_map(|seg| self.best_run(seg, count)).find(|run| run.count == count);
        if let Some(run) = found {
            return Some(self.take(run));
        }
        let seg = *self.free_segments.first()?;
        Some(self.take(Run { block: SegNo(seg).first_block(), count }))
    }

    fn free_run_at(&self, block: BlockNo, max: u32) -> Option<Run> {
        let s = self.segments[block.segment().0 as usize];
        let at = block.in_segment() as u32;
        let count = match s.role {
            Role::Full => 0,
            Role::Free => max.min(SEG - at),
            Role::Partial => {
                let map = &self.maps[s.map as usize];
                (at..SEG.min(at + max)).take_while(|&b| map[b as usize / 64] >> (b % 64) & 1 == 0).count()
                    as u32
            }
        };
        (count > 0).then_some(Run { block, count })
    }

    /// The first free run of `want` blocks in the segment, or its longest.
    fn best_run(&self, seg: u32, want: u32) -> Option<Run> {
        let mut best: Option<Run> = None;
        let mut at = 0;
        while at < SEG {
            let block = BlockNo(SegNo(seg).first_block().0 + at as u64);
            match self.free_run_at(block, want) {
                Some(run) => {
                    if best.is_none_or(|b| run.count > b.count) {
                        best = Some(run);
                    }
                    if run.count == want {
                        break;
                    }
                    at += run.count;
                }
                // Small files fill a segment from its beginning: what is taken is mostly all that is before.
                None => match self.next_free(seg, at) {
                    Some(next) => at = next,
                    None => break,
                },
            }
        }
        best
    }

    /// The first free block of a segment from this one on.
    fn next_free(&self, seg: u32, from: u32) -> Option<u32> {
        let s = self.segments[seg as usize];
        match s.role {
            Role::Full => None,
            Role::Free => Some(from),
            Role::Partial => {
                let map = &self.maps[s.map as usize];
                let (word, bit) = (from as usize / 64, from % 64);
                let first = !map.get(word)? & u64::MAX << bit;
                let words = map[word + 1..].iter().map(|word| !word);
                let mut free = std::iter::once(first).chain(words).zip(word as u32..);
                free.find_map(|(free, at)| (free != 0).then(|| at * 64 + free.trailing_zeros()))
            }
        }
    }

    /// The run was freed in `epoch`; it becomes free by [`Space::release`].
    pub fn quarantine(&mut self, run: Run, epoch: u64) {
        self.quarantined += run.count as u64;
        self.quarantine.entry(epoch).or_default().push(run);
    }

    /// A durable record says that epochs up to `epoch` are durable: what they freed can be used again. Returns the runs
    /// that became free.
    pub fn release(&mut self, epoch: u64) -> Vec<Run> {
        let later = self.quarantine.split_off(&(epoch + 1));
        let released: Vec<Run> =
            std::mem::replace(&mut self.quarantine, later).into_values().flatten().collect();
        for &run in &released {
            self.quarantined -= run.count as u64;
            self.free(run);
        }
        released
    }

    /// The segments that are entirely free, in order, as runs.
    pub fn free_segment_runs(&self) -> Vec<(SegNo, u32)> {
        let mut runs: Vec<(SegNo, u32)> = Vec::new();
        for &seg in &self.free_segments {
            match runs.last_mut() {
                Some((first, count)) if first.0 + *count == seg => *count += 1,
                _ => runs.push((SegNo(seg), 1)),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests;
