//! What is derived from the inodes: free space, both indexes, link counts, and which inodes have lost their names.
//!
//! Mount refuses a volume whose inodes contradict one another (blocks used twice, a name or a place in a directory given twice, a parent that is no
//! directory); `fsck` tells them all and repairs.

use crate::core::Core;
use crate::extents::Ext;
use crate::index::{COOKIE_MAX, FIRST_COOKIE};
use crate::inode::{HAS_XATTRS, Inode, LINKABLE, SINCE_CHECKPOINT, Slot, TAIL_ON_MEDIUM, Tail, slot_of};
use crate::names::ROOT;
use crate::space::Run;
use crate::tails::{check_whole, tail_of_view};
use format::extent::{Node, NodeEntry};
use format::inode::{InodeView, SlotKind, TailKind, parse_block, parse_compact};
use format::limits::{BLOCK_SIZE, SEGMENT_BLOCKS};
use format::{BlockNo, FormatError, Ino, SegNo};
use fs::{Error, Result};
use media::blocking::Blocking;
use std::collections::HashMap;

/// Collects inodes from segments and log, then derives the rest.
pub(crate) struct Builder<'c> {
    core: &'c mut Core,
    images: HashMap<Ino, Vec<u8>>,
    /// Inodes with an extent tree, whose nodes must be read: root entries and levels.
    trees: Vec<(Ino, Vec<NodeEntry>, u8)>,
}

fn rule(structure: &'static str, rule: &'static str) -> FormatError {
    FormatError::new(structure, format::error::Fault::Rule(rule))
}

impl<'c> Builder<'c> {
    pub fn new(core: &'c mut Core, log_segments: &[SegNo]) -> Result<Self> {
        for segment in log_segments {
            claim_segment(core, *segment, "log ring")?;
        }
        Ok(Builder { core, images: HashMap::new(), trees: Vec::new() })
    }

    /// An image of the log; later ones take the place of earlier ones.
    pub fn image(&mut self, ino: Ino, bytes: &[u8]) {
        self.images.insert(ino, bytes.to_vec());
    }

    pub fn chunk(&mut self, index: u32, segment: SegNo, initialized: bool) -> Result<()> {
        claim_segment(self.core, segment, "inode segment table")?;
        self.core.slab.add_chunk(index, segment, initialized);
        Ok(())
    }

    pub fn is_initialized(&self, index: u32) -> bool {
        self.core.slab.chunk(index).is_some_and(|c| c.initialized)
    }

    /// A slot as it stands on the medium, at byte `at`.
    pub fn slot(&mut self, ino: Ino, block: &[u8], at: u64) -> Result<()> {
        if self.images.contains_key(&ino) {
            // The log is newer, and repairs a torn slot.
            return Ok(());
        }
        let view = parse_block(block, ino).map_err(|e| e.at(BlockNo(at / BLOCK_SIZE as u64)))?;
        match view {
            Some(view) => self.take(&view, false),
            None => Ok(()),
        }
    }

    fn take(&mut self, view: &InodeView<'_>, from_log: bool) -> Result<()> {
        let ino = view.ino();
        let at = |e: FormatError| Error::from(e);
        if view.epoch().0 >= self.core.running.epoch {
            // Slots are written when their epochs are durable: what the log does not hold was lost.
            return Err(rule("inode", "was changed in an epoch that the log has lost").into());
        }
        let Ok(slot) = Slot::try_from(ino.0) else {
            return Err(rule("inode", "number is too large").into());
        };
        if self.core.slab.chunk(slot / SEGMENT_BLOCKS as u32).is_none() || slot == 0 {
            // The image of a slot whose segment was given up later in the log.
            return match view.kind {
                SlotKind::Free => Ok(()),
                _ => Err(rule("inode", "has no segment in the inode segment table").into()),
            };
        }
        let mut inode = Inode::from_view(view);
        if from_log {
            inode.flags = inode.flags & (HAS_XATTRS | LINKABLE) | SINCE_CHECKPOINT;
            self.core.since_checkpoint.push(slot);
        }
        if view.kind == SlotKind::Free {
            *self.core.slab.get_mut(slot) = inode;
            return Ok(());
        }
        if !self.core.slab.claim(slot) {
            return Err(rule("inode", "slot is used twice").into());
        }
        if view.kind == SlotKind::Inode {
            for e in view.extents() {
                self.claim(Run { block: BlockNo(e.block.get()), count: e.count.get() })?;
            }
            let (tail, outside) = tail_of_view(view).map_err(at)?;
            if let Some(x) = outside {
                self.claim(Run { block: x.block, count: x.blocks() })?;
            }
            let tree = view.tail_kind == TailKind::Tree;
            if tree {
                self.trees.push((ino, view.tree_root().to_vec(), view.header.tree_levels));
            }
            // A tail that points elsewhere is loaded when it is needed, but what the log holds must stay in memory: the slot
            // does not have it yet. `finish` loads those.
            if from_log {
                if tree || outside.is_some() {
                    inode.flags |= TAIL_ON_MEDIUM;
                } else if !tail.is_empty() {
                    inode.tail = Some(Box::new(tail));
                    self.core.tails.push_back(slot);
                }
            }
        }
        *self.core.slab.get_mut(slot) = inode;
        Ok(())
    }

    fn claim(&mut self, run: Run) -> Result<()> {
        if self.core.space.claim(run) {
            return Ok(());
        }
        Err(rule("extent", "block is used twice or lies outside of the volume").at(run.block).into())
    }

    /// Takes the log's images in, reads extent trees, and derives names and link counts.
    pub fn finish(mut self, device: &Blocking) -> Result<()> {
        let images = std::mem::take(&mut self.images);
        let mut sorted: Vec<(&Ino, &Vec<u8>)> = images.iter().collect();
        sorted.sort_unstable();
        for (_, bytes) in sorted {
            self.take(&parse_compact(bytes)?, true)?;
        }
        for (ino, root, levels) in std::mem::take(&mut self.trees) {
            self.walk_tree(device, ino, root, levels)?;
        }
        for (ino, bytes) in &images {
            self.load_tail(device, *ino, bytes)?;
        }
        let none = Tail::default();
        for inode in images.keys().filter_map(|ino| self.core.slab.inode_in(ino.0 as Slot)) {
            check_whole(inode.tail.as_deref().unwrap_or(&none), inode.blocks)?;
        }
        derive(self.core)
    }

    fn walk_tree(&mut self, device: &Blocking, ino: Ino, root: Vec<NodeEntry>, levels: u8) -> Result<()> {
        let mut entries = root;
        let mut level = levels.saturating_sub(1) as u16;
        while !entries.is_empty() {
            let mut below = Vec::new();
            for entry in &entries {
                self.claim(Run { block: BlockNo(entry.block.get()), count: 1 })?;
            }
            for node in read_nodes(device, ino, &entries, level)? {
                match node {
                    Node::Leaf(extents) => {
                        for e in extents {
                            self.claim(Run { block: BlockNo(e.block.get()), count: e.count.get() })?;
                        }
                    }
                    Node::Inner(more) => below.extend(more),
                }
            }
            entries = below;
            level = level.saturating_sub(1);
        }
        Ok(())
    }

    /// Loads a tail of the log that points elsewhere.
    fn load_tail(&mut self, device: &Blocking, ino: Ino, bytes: &[u8]) -> Result<()> {
        let slot = ino.0 as Slot;
        if self.core.slab.chunk(slot / SEGMENT_BLOCKS as u32).is_none()
            || self.core.slab.get(slot).flags & TAIL_ON_MEDIUM == 0
        {
            return Ok(());
        }
        let view = parse_compact(bytes)?;
        let (mut tail, outside) = tail_of_view(&view)?;
        if let Some(x) = outside {
            let mut raw = vec![0; x.blocks() as usize * BLOCK_SIZE];
            device.read(x.block.byte(), &mut raw)?;
            let used = &raw[..x.bytes as usize];
            format::error::check_crc("extended attributes", x.crc, format::crc32c(used))
                .map_err(|e| e.at(x.block))?;
            tail.xattrs = format::xattr::decode_outside(used, ino).map_err(|e| e.at(x.block))?;
            tail.xattrs_outside = Some(x);
        }
        if view.tail_kind == TailKind::Tree {
            let (mut leaves, mut inner) = (Vec::new(), Vec::new());
            let mut entries = view.tree_root().to_vec();
            let mut level = view.header.tree_levels.saturating_sub(1) as u16;
            while !entries.is_empty() {
                let mut below = Vec::new();
                for (entry, node) in entries.iter().zip(read_nodes(device, ino, &entries, level)?) {
                    match node {
                        Node::Leaf(extents) => leaves.push(crate::extents::Leaf {
                            extents: extents.iter().map(Ext::from_media).collect(),
                            home: Some(*entry),
                        }),
                        Node::Inner(more) => {
                            inner.push(BlockNo(entry.block.get()));
                            below.extend(more);
                        }
                    }
                }
                entries = below;
                level = level.saturating_sub(1);
            }
            tail.data = crate::inode::Data::Extents(crate::extents::ExtentMap::from_tree(
                leaves,
                view.tree_root().to_vec(),
                view.header.tree_levels,
                inner,
            ));
        }
        let inode = self.core.slab.get_mut(slot);
        inode.flags &= !TAIL_ON_MEDIUM;
        inode.tail = Some(Box::new(tail));
        self.core.tails.push_back(slot);
        Ok(())
    }
}

fn read_nodes(device: &Blocking, ino: Ino, entries: &[NodeEntry], level: u16) -> Result<Vec<Node>> {
    let blocks = device.media().geometry().bytes / BLOCK_SIZE as u64;
    if entries.iter().any(|e| e.block.get() >= blocks) {
        return Err(rule("extent node", "lies outside of the volume").into());
    }
    let ranges: Vec<(u64, usize)> =
        entries.iter().map(|e| (BlockNo(e.block.get()).byte(), BLOCK_SIZE)).collect();
    let mut nodes: Vec<Option<Node>> = vec![None; entries.len()];
    device.read_many(&ranges, |i, bytes| -> Result<()> {
        let at = BlockNo(entries[i].block.get());
        nodes[i] = Some(format::extent::parse(bytes, ino, level, &entries[i]).map_err(|e| e.at(at))?);
        Ok(())
    })?;
    Ok(nodes.into_iter().flatten().collect())
}

pub(crate) fn claim_segment(core: &mut Core, segment: SegNo, structure: &'static str) -> Result<()> {
    let run = Run { block: segment.first_block(), count: SEGMENT_BLOCKS as u32 };
    if core.space.claim(run) {
        return Ok(());
    }
    Err(rule(structure, "segment has two roles or lies outside of the volume").at(run.block).into())
}

/// Enters all names, counts links, and finds inodes without names.
pub(crate) fn derive(core: &mut Core) -> Result<()> {
    let count = core.slab.used as usize;
    core.index.reserve(count);
    let slots: Vec<Slot> = core.slab.iter().map(|(slot, _)| slot).collect();
    if !core.slab.inode_in(ROOT).is_some_and(Inode::is_dir) {
        return Err(rule("inode", "the root directory is missing").into());
    }
    for &slot in &slots {
        let inode = core.slab.get(slot);
        let (kind, parent, target) = (inode.kind, inode.parent, slot_of(inode.size));
        if slot == ROOT {
            continue;
        }
        if parent == 0 {
            core.orphans.push((slot, inode.generation));
            continue;
        }
        let Some(dir) = core.slab.inode_in(parent).filter(|dir| dir.is_dir()) else {
            return Err(rule("inode", "parent is not a directory").into());
        };
        if dir.parent == 0 && parent != ROOT {
            // It was empty when it was removed, and nobody makes names in it since.
            return Err(rule("inode", "stands in a directory that has no name").into());
        }
        if kind == SlotKind::Link && core.slab.inode_in(target).is_none_or(Inode::is_dir) {
            return Err(rule("inode", "additional name leads to no file").into());
        }
        if !(FIRST_COOKIE..COOKIE_MAX).contains(&inode.cookie) {
            return Err(rule("inode", "position in its directory is out of range").into());
        }
        if !core.index.insert_known(&core.slab, slot) {
            return Err(rule("inode", "name exists twice in its directory").into());
        }
    }
    if !core.index.settle() {
        return Err(rule("inode", "position in its directory is taken").into());
    }
    for &slot in &slots {
        let inode = core.slab.get(slot);
        let (kind, parent, target, dir) = (inode.kind, inode.parent, inode.size as Slot, inode.is_dir());
        match kind {
            SlotKind::Link => {
                core.index.add_link(target, slot);
                core.slab.get_mut(target).nlink += 1;
            }
            // One without a name has no links, as when it was removed: by that it is known that it takes no names.
            _ if dir && parent == 0 && slot != ROOT => {}
            _ if dir => {
                core.slab.get_mut(slot).nlink += 2;
                if slot != ROOT {
                    core.slab.get_mut(parent).nlink += 1;
                }
            }
            _ => core.slab.get_mut(slot).nlink += (parent != 0) as u32,
        }
    }
    check_reachable(core, &slots)?;
    Ok(())
}

/// Every directory must lead up to the root: a ring of directories would never end.
fn check_reachable(core: &Core, slots: &[Slot]) -> Result<()> {
    let mut good: std::collections::HashSet<Slot> = [ROOT].into();
    let mut path = Vec::new();
    for &slot in slots.iter().filter(|&&s| core.slab.get(s).is_dir()) {
        let mut at = slot;
        path.clear();
        while at != 0 && !good.contains(&at) {
            path.push(at);
            if path.len() > 1 && core.slab.get(at).parent == slot {
                return Err(rule("inode", "directories form a ring").into());
            }
            if path.len() > slots.len() {
                return Err(rule("inode", "directories form a ring").into());
            }
            at = core.slab.get(at).parent;
        }
        good.extend(path.iter().copied());
    }
    Ok(())
}
