//! The extents of one file in memory: what lies where, and which leaves of the tree on the medium are still current.
//!
//! Extents stand in leaves of at most [`NODE_ENTRIES`], sorted; a file with few of them has one leaf, which is stored in the
//! inode itself. A leaf that was changed has no home until the next commit writes it to a new block.

use crate::space::Run;
use format::BlockNo;
use format::extent::{EXTENTS_INLINE_MAX, Extent, NODE_ENTRIES, NodeEntry};
use smallvec::SmallVec;

/// One extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ext {
    pub file_block: u64,
    pub block: u64,
    pub count: u32,
    pub unwritten: bool,
}

impl Ext {
    pub fn end(&self) -> u64 {
        self.file_block + self.count as u64
    }
    fn part(&self, start: u64, end: u64) -> Ext {
        let (s, e) = (self.file_block.max(start), self.end().min(end));
        Ext { file_block: s, block: self.block + (s - self.file_block), count: (e - s) as u32, ..*self }
    }
    fn joins(&self, next: &Ext) -> bool {
        self.end() == next.file_block
            && self.block + self.count as u64 == next.block
            && self.unwritten == next.unwritten
            && self.count.checked_add(next.count).is_some()
    }
    pub fn to_media(self) -> Extent {
        Extent::new(self.file_block, BlockNo(self.block), self.count, self.unwritten)
    }
    pub fn from_media(e: &Extent) -> Ext {
        Ext {
            file_block: e.file_block.get(),
            block: e.block.get(),
            count: e.count.get(),
            unwritten: e.unwritten(),
        }
    }
}

/// What is at a file block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// This block, and `count - 1` more behind it.
    Block { block: BlockNo, count: u32, unwritten: bool },
    /// Nothing, up to the given file block (`u64::MAX`: to the end).
    Hole { until: u64 },
}

/// A leaf of the tree. Most files have one, with one extent: neither takes memory of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leaf {
    pub extents: SmallVec<[Ext; 1]>,
    /// Where the leaf stands on the medium, unless it was changed since.
    pub home: Option<NodeEntry>,
}

impl Leaf {
    fn first(&self) -> u64 {
        self.extents.first().map_or(0, |e| e.file_block)
    }
}

/// See the module documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExtentMap {
    leaves: SmallVec<[Leaf; 1]>,
    len: usize,
    /// Leaves without a home.
    homeless: usize,
    /// Root entries as last written, with the number of levels below; valid while no leaf is without a home.
    pub root: Vec<NodeEntry>,
    pub levels: u8,
    /// Blocks of the inner nodes (above the leaves) on the medium.
    pub inner: Vec<BlockNo>,
    /// Leaf homes that were given up since the last commit.
    pub dropped: Vec<BlockNo>,
}

impl ExtentMap {
    pub fn from_extents(extents: &[Extent]) -> ExtentMap {
        let mut map = ExtentMap::default();
        let native: SmallVec<[Ext; 1]> = extents.iter().map(Ext::from_media).collect();
        map.len = native.len();
        if !native.is_empty() {
            map.leaves.push(Leaf { extents: native, home: None });
            map.homeless = 1;
        }
        map
    }

    /// From the leaves of a tree, in order.
    pub fn from_tree(leaves: Vec<Leaf>, root: Vec<NodeEntry>, levels: u8, inner: Vec<BlockNo>) -> ExtentMap {
        let len = leaves.iter().map(|l| l.extents.len()).sum();
        let homeless = leaves.iter().filter(|l| l.home.is_none()).count();
        ExtentMap { leaves: leaves.into(), len, homeless, root, levels, inner, dropped: Vec::new() }
    }

    /// Number of extents.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether the extents fit in the inode.
    pub fn fits_inode(&self) -> bool {
        self.len <= EXTENTS_INLINE_MAX
    }
    /// A leaf was written to the medium.
    pub fn set_home(&mut self, li: usize, home: NodeEntry) {
        self.homeless -= self.leaves[li].home.replace(home).is_none() as usize;
    }
    /// The extents are in the inode: all nodes are given up.
    pub fn drop_tree(&mut self) {
        let homes = self.leaves.iter_mut().filter_map(|l| l.home.take());
        self.dropped.extend(homes.map(|home| BlockNo(home.block.get())));
        self.dropped.append(&mut self.inner);
        self.homeless = self.leaves.len();
        self.root.clear();
        self.levels = 0;
    }
    /// How many blocks the next commit takes for nodes at most, when up to `more` extents are added before. A change touches one leaf for each extent
    /// that it may add.
    pub fn nodes_max(&self, more: u64) -> u64 {
        let (len, leaves, homeless) = (self.len as u64, self.leaves.len() as u64, self.homeless as u64);
        if len + more <= EXTENTS_INLINE_MAX as u64 || (homeless == 0 && more == 0 && self.dropped.is_empty())
        {
            return 0;
        }
        // Of a full leaf one more extent makes two; from then on there is room for half as many as one holds before the next.
        let split = more.min(leaves + 1 + more / (NODE_ENTRIES as u64 / 2)) + 1;
        let mut above = leaves + split;
        let mut all = homeless + more.min(leaves - homeless) + split;
        while above > EXTENTS_INLINE_MAX as u64 {
            above = above.div_ceil(NODE_ENTRIES as u64);
            all += above;
        }
        all
    }
    pub fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }
    pub fn iter(&self) -> impl Iterator<Item = Ext> + '_ {
        self.leaves.iter().flat_map(|l| l.extents.iter().copied())
    }

    fn leaf_of(&self, fb: u64) -> usize {
        self.leaves.partition_point(|l| l.first() <= fb).saturating_sub(1)
    }

    /// What is at file block `fb`.
    pub fn lookup(&self, fb: u64) -> Mapping {
        let li = self.leaf_of(fb);
        let Some(leaf) = self.leaves.get(li) else { return Mapping::Hole { until: u64::MAX } };
        let i = leaf.extents.partition_point(|e| e.end() <= fb);
        match leaf.extents.get(i) {
            Some(e) if e.file_block <= fb => {
                let skip = fb - e.file_block;
                Mapping::Block {
                    block: BlockNo(e.block + skip),
                    count: e.count - skip as u32,
                    unwritten: e.unwritten,
                }
            }
            Some(e) => Mapping::Hole { until: e.file_block },
            None => Mapping::Hole { until: self.leaves.get(li + 1).map_or(u64::MAX, Leaf::first) },
        }
    }

    /// The block that would continue what lies in front of `fb`.
    pub fn goal(&self, fb: u64) -> Option<BlockNo> {
        match fb.checked_sub(1).map(|before| self.lookup(before)) {
            Some(Mapping::Block { block, .. }) => Some(BlockNo(block.0 + 1)),
            _ => None,
        }
    }

    fn change(&mut self, li: usize) -> &mut Leaf {
        let leaf = &mut self.leaves[li];
        if let Some(home) = leaf.home.take() {
            self.dropped.push(BlockNo(home.block.get()));
            self.homeless += 1;
        }
        leaf
    }

    /// The file block behind the last one that is mapped.
    pub fn end(&self) -> u64 {
        self.leaves.last().and_then(|leaf| leaf.extents.last()).map_or(0, Ext::end)
    }

    /// Maps a hole. Requires that nothing in the range is mapped.
    pub fn insert(&mut self, new: Ext) {
        debug_assert!(new.count > 0);
        if self.leaves.is_empty() {
            self.leaves.push(Leaf::default());
            self.homeless += 1;
        }
        let li = self.leaf_of(new.file_block);
        let leaf = self.change(li);
        let i = leaf.extents.partition_point(|e| e.file_block < new.file_block);
        debug_assert!(i == 0 || leaf.extents[i - 1].end() <= new.file_block, "range is mapped");
        debug_assert!(leaf.extents.get(i).is_none_or(|e| new.end() <= e.file_block), "range is mapped");
        let before = i > 0 && leaf.extents[i - 1].joins(&new);
        let after = leaf.extents.get(i).is_some_and(|e| new.joins(e));
        match (before, after) {
            (true, true)
                if leaf.extents[i - 1].count.checked_add(new.count + leaf.extents[i].count).is_some() =>
            {
                let next = leaf.extents.remove(i);
                leaf.extents[i - 1].count += new.count + next.count;
                self.len -= 1;
            }
            (true, _) => leaf.extents[i - 1].count += new.count,
            (false, true) => {
                let next = &mut leaf.extents[i];
                next.file_block = new.file_block;
                next.block = new.block;
                next.count += new.count;
            }
            (false, false) => {
                leaf.extents.insert(i, new);
                self.len += 1;
            }
        }
        self.split(li);
    }

    fn split(&mut self, li: usize) {
        let len = self.leaves[li].extents.len();
        if len <= NODE_ENTRIES {
            return;
        }
        // Appending is the common way to grow: keep full leaves full.
        let at = if li + 1 == self.leaves.len() { NODE_ENTRIES } else { len / 2 };
        let leaf = &mut self.leaves[li];
        let right = Leaf { extents: leaf.extents.drain(at..).collect(), home: None };
        self.leaves.insert(li + 1, right);
        self.homeless += 1;
    }

    /// Unmaps `start..end` and returns what was mapped there.
    pub fn remove(&mut self, start: u64, end: u64) -> Vec<Ext> {
        let mut removed = Vec::new();
        if start >= end || self.leaves.is_empty() {
            return removed;
        }
        let mut li = self.leaf_of(start);
        while li < self.leaves.len() && self.leaves[li].first() < end {
            let touched = {
                let leaf = &self.leaves[li];
                let i = leaf.extents.partition_point(|e| e.end() <= start);
                leaf.extents.get(i).is_some_and(|e| e.file_block < end)
            };
            if touched {
                let leaf = self.change(li);
                let i = leaf.extents.partition_point(|e| e.end() <= start);
                let j = leaf.extents.partition_point(|e| e.file_block < end);
                let mut keep: SmallVec<[Ext; 2]> = SmallVec::new();
                for e in &leaf.extents[i..j] {
                    removed.push(e.part(start, end));
                    if e.file_block < start {
                        keep.push(e.part(0, start));
                    }
                    if e.end() > end {
                        keep.push(e.part(end, u64::MAX));
                    }
                }
                let (gone, kept) = (j - i, keep.len());
                leaf.extents.drain(i..j);
                leaf.extents.insert_many(i, keep);
                self.len = self.len + kept - gone;
                if self.leaves[li].extents.is_empty() {
                    self.leaves.remove(li);
                    self.homeless -= 1;
                    continue;
                }
                self.split(li);
            }
            li += 1;
        }
        removed
    }

    /// Marks mapped blocks in `start..end` as written.
    pub fn set_written(&mut self, start: u64, end: u64) {
        for mut e in self.remove_if(start, end, |e| e.unwritten) {
            e.unwritten = false;
            self.insert(e);
        }
    }

    /// Unmaps the parts of `start..end` for which `which` holds.
    pub fn remove_if(&mut self, start: u64, end: u64, which: impl Fn(&Ext) -> bool) -> Vec<Ext> {
        let parts: Vec<Ext> = self.within(start, end).into_iter().filter(|e| which(e)).collect();
        parts.into_iter().flat_map(|e| self.remove(e.file_block, e.end())).collect()
    }

    /// What is mapped in `start..end`, cut to it.
    pub fn within(&self, start: u64, end: u64) -> Vec<Ext> {
        let mut out = Vec::new();
        let mut li = self.leaf_of(start);
        while let Some(leaf) = self.leaves.get(li).filter(|l| l.first() < end) {
            let i = leaf.extents.partition_point(|e| e.end() <= start);
            out.extend(
                leaf.extents[i..].iter().take_while(|e| e.file_block < end).map(|e| e.part(start, end)),
            );
            li += 1;
        }
        out
    }
}

/// The blocks of extents as runs.
pub(crate) fn runs(extents: &[Ext]) -> impl Iterator<Item = Run> + '_ {
    extents.iter().map(|e| Run { block: BlockNo(e.block), count: e.count })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn blocks(map: &ExtentMap) -> BTreeMap<u64, (u64, bool)> {
        map.iter()
            .flat_map(|e| (0..e.count as u64).map(move |i| (e.file_block + i, (e.block + i, e.unwritten))))
            .collect()
    }

    proptest! {
        #[test]
        fn like_a_map_of_blocks(ops in prop::collection::vec((0u8..3, 0u64..2000, 1u64..9, 0u64..4000, any::<bool>()), 1..700)) {
            let mut map = ExtentMap::default();
            let mut naive: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
            for (op, start, len, block, unwritten) in ops {
                match op {
                    0 => {
                        if naive.range(start..start + len).next().is_none() {
                            map.insert(Ext { file_block: start, block, count: len as u32, unwritten });
                            naive.extend((0..len).map(|i| (start + i, (block + i, unwritten))));
                        }
                    }
                    1 => {
                        let removed = map.remove(start, start + len);
                        let n: u64 = removed.iter().map(|e| e.count as u64).sum();
                        let before = naive.len();
                        naive.retain(|&k, _| k < start || k >= start + len);
                        prop_assert_eq!(n as usize, before - naive.len());
                    }
                    _ => {
                        map.set_written(start, start + len);
                        naive.range_mut(start..start + len).for_each(|(_, v)| v.1 = false);
                    }
                }
                prop_assert_eq!(map.iter().count(), map.len());
            }
            prop_assert_eq!(blocks(&map), naive.clone());
            for leaf in map.leaves() {
                prop_assert!(!leaf.extents.is_empty() && leaf.extents.len() <= NODE_ENTRIES);
            }
            for fb in 0..2010 {
                match (map.lookup(fb), naive.get(&fb)) {
                    (Mapping::Block { block, unwritten, .. }, Some(&n)) => prop_assert_eq!((block.0, unwritten), n),
                    (Mapping::Hole { until }, None) => {
                        let next = naive.range(fb..).next().map_or(u64::MAX, |(&k, _)| k);
                        prop_assert_eq!(until, next);
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
    }

    #[test]
    fn a_million_appended_extents() {
        let mut map = ExtentMap::default();
        for i in 0..1_000_000u64 {
            map.insert(Ext { file_block: i * 2, block: i * 2, count: 1, unwritten: false });
        }
        assert_eq!((map.len(), map.leaves().len()), (1_000_000, 1_000_000usize.div_ceil(NODE_ENTRIES)));
        assert!(matches!(map.lookup(1_000_000), Mapping::Block { block: BlockNo(1_000_000), .. }));
    }
}
