//! Tails of inodes: loading them from the medium, encoding images for the log and the slots, and dropping them again. `place`
//! gives blocks to what stands outside of the inode.

mod check;
mod nodes;
mod place;

pub(crate) use check::check_whole;

use crate::core::{Core, Res, Stop, Wait};
use crate::extents::{Ext, ExtentMap, Leaf};
use crate::inode::{
    Data, HAS_XATTRS, IN_CHECKPOINT, Inode, OutsideXattrs, SINCE_CHECKPOINT, Slot, TAIL_ON_MEDIUM, Tail,
};
use crate::io::{Io, IoKind};
use crate::space::Run;
use format::extent::{Extent, Node, NodeEntry};
use format::inode::{InodeView, SlotKind, TailKind};
use format::limits::BLOCK_SIZE;
use format::xattr::Xattr;
use format::{BlockNo, FormatError, Ino, crc32c};
use fs::Error;
use media::{MediaError, Op, Request};
use zerocopy::IntoBytes;

/// Tails kept in memory before clean ones are dropped.
const TAILS_MAX: usize = 64 << 10;

/// Which part of a tail a transfer brings.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TailPart {
    Inode,
    Xattrs,
    /// The node that the i-th entry of the current level leads to.
    Node(usize),
}

/// A tail on its way into memory.
pub(crate) enum Loading {
    Busy(Box<Partial>),
    Failed(Error),
}

/// What is there so far.
#[derive(Default)]
pub(crate) struct Partial {
    /// Transfers on their way. A load that failed is over only when the last of them has arrived.
    pending: usize,
    error: Option<Error>,
    tail: Tail,
    outside: Option<OutsideXattrs>,
    xattrs_pending: bool,
    root: Vec<NodeEntry>,
    levels: u8,
    /// Entries of the level being read, the level of the nodes they lead to, and those nodes.
    entries: Vec<NodeEntry>,
    level: u16,
    nodes: Vec<Option<Node>>,
    next: usize,
    arrived: usize,
    inner: Vec<BlockNo>,
    /// Blocks that were found so far.
    blocks: u64,
}

impl Core {
    /// Makes sure that the tail is in memory (or empty).
    pub fn need_tail(&mut self, slot: Slot) -> Res<()> {
        if self.slab.get(slot).flags & TAIL_ON_MEDIUM == 0 {
            return Ok(());
        }
        match self.loading.get(&slot) {
            Some(Loading::Busy(_)) => return Err(Stop::Wait(Wait::Tail(slot))),
            Some(Loading::Failed(e)) => {
                let e = e.clone();
                self.loading.remove(&slot);
                return Err(e.into());
            }
            None => {}
        }
        self.reachable()?;
        let block = self.slot_block(slot)?;
        self.loading.insert(slot, Loading::Busy(Box::new(Partial { pending: 1, ..Partial::default() })));
        if !self.load(slot, TailPart::Inode, block, 1) {
            self.loading.remove(&slot);
            return Err(Stop::Wait(Wait::Progress));
        }
        Err(Stop::Wait(Wait::Tail(slot)))
    }

    /// Makes sure that no part of a tail is on its way into this slot.
    pub fn need_no_load(&self, slot: Slot) -> Res<()> {
        if self.is_loading(slot) { Err(Stop::Wait(Wait::Tail(slot))) } else { Ok(()) }
    }

    pub fn is_loading(&self, slot: Slot) -> bool {
        matches!(self.loading.get(&slot), Some(Loading::Busy(_)))
    }

    /// Where the slot lies on the medium.
    pub fn slot_block(&self, slot: Slot) -> Res<BlockNo> {
        let ino = Ino(slot as u64);
        let chunk = self.slab.chunk(ino.table_index() as u32).ok_or(Error::Stale)?;
        Ok(format::inode::slot_block(chunk.segment, ino))
    }

    /// The tail, to be changed; made when the inode had none. It must be in memory.
    pub fn tail_mut(&mut self, slot: Slot) -> &mut Tail {
        let inode = self.slab.get_mut(slot);
        debug_assert!(inode.flags & TAIL_ON_MEDIUM == 0, "tail is not loaded");
        if inode.tail.is_none() {
            inode.tail = Some(Box::default());
            self.tails.push_back(slot);
        }
        self.slab.get_mut(slot).tail.as_mut().expect("made above")
    }

    fn load(&mut self, slot: Slot, part: TailPart, block: BlockNo, count: usize) -> bool {
        let Some(buffer) = self.scratch.take(count) else { return false };
        let buf = self.scratch.buf_ref(&buffer, 0, count * BLOCK_SIZE);
        let request = Request::transfer(Op::Read, block.byte(), buf, 0);
        self.submit(request, Io { kind: IoKind::Tail { slot, part, buffer }, epoch: None });
        true
    }

    /// A part of a tail has arrived, or failed to.
    pub fn tail_part_loaded(
        &mut self,
        slot: Slot,
        part: TailPart,
        buffer: &crate::scratch::Buffer,
        result: Result<(), MediaError>,
    ) {
        let Some(Loading::Busy(mut partial)) = self.loading.remove(&slot) else { return };
        partial.pending -= 1;
        let outcome = match result {
            _ if partial.error.is_some() => Ok(false),
            Err(e) => Err(Error::Media(e)),
            Ok(()) => {
                let bytes = self.scratch.look(buffer, |b| b.to_vec());
                self.take_part(slot, &mut partial, part, &bytes)
            }
        };
        match outcome {
            Ok(true) => {
                let inode = self.slab.get_mut(slot);
                inode.flags &= !TAIL_ON_MEDIUM;
                if partial.tail.xattrs.is_empty() {
                    inode.flags &= !HAS_XATTRS;
                }
                inode.tail = Some(Box::new(std::mem::take(&mut partial.tail)));
                self.tails.push_back(slot);
                self.wake(Wait::Tail(slot));
                self.drop_clean_tails(64);
            }
            Ok(false) => self.still_loading(slot, partial),
            Err(e) => {
                partial.error = Some(e);
                self.still_loading(slot, partial);
            }
        }
    }

    fn still_loading(&mut self, slot: Slot, mut partial: Box<Partial>) {
        match partial.error.take() {
            Some(e) if partial.pending == 0 => {
                // Who comes later tries again.
                if self.is_awaited(Wait::Tail(slot)) {
                    self.loading.insert(slot, Loading::Failed(e));
                }
                self.wake(Wait::Tail(slot));
            }
            error => {
                partial.error = error;
                self.loading.insert(slot, Loading::Busy(partial));
            }
        }
    }

    /// Takes one part in; true when the tail is complete.
    fn take_part(
        &mut self,
        slot: Slot,
        p: &mut Partial,
        part: TailPart,
        bytes: &[u8],
    ) -> Result<bool, Error> {
        let ino = Ino(slot as u64);
        match part {
            TailPart::Inode => {
                let block = self.slot_block(slot).map_err(|_| Error::Stale)?;
                let view = format::inode::parse_block(bytes, ino).map_err(|e| e.at(block))?;
                let view = view.ok_or_else(|| missing(block))?;
                let (tail, outside) = tail_of_view(&view)?;
                p.tail = tail;
                p.outside = outside;
                p.root = view.tree_root().to_vec();
                p.levels = view.header.tree_levels;
                for e in view.extents() {
                    let run = Run { block: BlockNo(e.block.get()), count: e.count.get() };
                    self.check_run(slot, p, "extent", run)?;
                }
                if let Some(x) = outside {
                    let run = Run { block: x.block, count: x.blocks() };
                    self.check_run(slot, p, "extended attributes", run)?;
                    p.xattrs_pending = true;
                    if !self.load(slot, TailPart::Xattrs, x.block, x.blocks() as usize) {
                        return Err(Error::Busy("memory for transfers is in use".into()));
                    }
                    p.pending += 1;
                }
                p.entries = p.root.clone();
                p.level = p.levels.saturating_sub(1) as u16;
                self.check_nodes(slot, p)?;
            }
            TailPart::Xattrs => {
                let x = p.outside.ok_or(Error::Stale)?;
                let used = &bytes[..x.bytes as usize];
                format::error::check_crc("extended attributes", x.crc, crc32c(used))
                    .map_err(|e| e.at(x.block))?;
                p.tail.xattrs = format::xattr::decode_outside(used, ino).map_err(|e| e.at(x.block))?;
                p.tail.xattrs_outside = Some(x);
                p.xattrs_pending = false;
            }
            TailPart::Node(i) => {
                let at = BlockNo(p.entries[i].block.get());
                let node = format::extent::parse(bytes, ino, p.level, &p.entries[i]).map_err(|e| e.at(at))?;
                if let Node::Leaf(extents) = &node {
                    for e in extents {
                        let run = Run { block: BlockNo(e.block.get()), count: e.count.get() };
                        self.check_run(slot, p, "extent", run)?;
                    }
                }
                p.nodes[i] = Some(node);
                p.arrived += 1;
            }
        }
        while !p.entries.is_empty() {
            if p.nodes.is_empty() {
                p.nodes = vec![None; p.entries.len()];
            }
            // A bounded number of nodes at a time, so that a huge tree does not take all memory for transfers.
            while p.next < p.entries.len() && p.next < p.arrived + 256 {
                let at = BlockNo(p.entries[p.next].block.get());
                if !self.load(slot, TailPart::Node(p.next), at, 1) {
                    if p.next == p.arrived {
                        return Err(Error::Busy("memory for transfers is in use".into()));
                    }
                    break;
                }
                p.pending += 1;
                p.next += 1;
            }
            if p.arrived < p.entries.len() {
                return Ok(false);
            }
            self.next_level(p);
            self.check_nodes(slot, p)?;
        }
        if p.xattrs_pending {
            return Ok(false);
        }
        check_whole(&p.tail, self.slab.get(slot).blocks)?;
        Ok(true)
    }

    /// All nodes of a level are there: go down, or build the map from the leaves.
    fn next_level(&mut self, p: &mut Partial) {
        let entries = std::mem::take(&mut p.entries);
        let nodes = std::mem::take(&mut p.nodes);
        let mut leaves = Vec::new();
        for (entry, node) in entries.iter().zip(nodes) {
            match node.expect("all arrived") {
                Node::Leaf(extents) => leaves.push(Leaf {
                    extents: extents.iter().map(Ext::from_media).collect(),
                    home: Some(*entry),
                }),
                Node::Inner(below) => {
                    p.inner.push(BlockNo(entry.block.get()));
                    p.entries.extend(below);
                }
            }
        }
        (p.next, p.arrived) = (0, 0);
        p.level = p.level.saturating_sub(1);
        if p.entries.is_empty() {
            let (root, inner) = (std::mem::take(&mut p.root), std::mem::take(&mut p.inner));
            p.tail.data = Data::Extents(ExtentMap::from_tree(leaves, root, p.levels, inner));
        }
    }

    /// Drops tails that can be loaded again, oldest first, `most` of them. Not while a checkpoint runs: slots may be on their way.
    pub fn drop_clean_tails(&mut self, most: usize) {
        if self.checkpointing.is_some() {
            return;
        }
        for _ in 0..self.tails.len().saturating_sub(TAILS_MAX).min(most) {
            let Some(slot) = self.tails.pop_front() else { return };
            if !self.drop_tail(slot) {
                self.tails.push_back(slot);
            }
        }
    }

    /// Looks at some of the tails that were in memory when the last checkpoint ended, from which on most of them are clean. Whether there are more: all at once would keep others waiting.
    pub fn drop_some_tails(&mut self) -> bool {
        let some = self.tails_to_look_at.min(1024);
        self.tails_to_look_at -= some;
        self.drop_clean_tails(some);
        self.tails_to_look_at > 0 && self.checkpointing.is_none() && self.tails.len() > TAILS_MAX
    }

    /// Drops the tail unless it is needed; false when it stays.
    pub fn drop_tail(&mut self, slot: Slot) -> bool {
        if self.slab.chunk(slot / format::limits::SEGMENT_BLOCKS as u32).is_none() {
            return true;
        }
        let inode = self.slab.get_mut(slot);
        let Some(tail) = &inode.tail else { return true };
        let busy = inode.flags & (SINCE_CHECKPOINT | IN_CHECKPOINT) != 0 || !tail.dirty.is_empty();
        if busy || self.checkpointing.is_some() || inode.opens > 0 {
            return false;
        }
        if !tail.is_empty() {
            inode.flags |= TAIL_ON_MEDIUM;
        }
        inode.tail = None;
        // What was told to somebody who had given up.
        self.loading.remove(&slot);
        true
    }

    /// Appends the compact image of an inode as it is now. Extent nodes and attributes outside must have their places.
    pub fn encode_image(&self, slot: Slot, out: &mut Vec<u8>) -> usize {
        let inode = self.slab.get(slot);
        encode(inode, slot, out)
    }

    /// Keeps the image that the running checkpoint has to write, before the inode is changed.
    pub fn stash(&mut self, slot: Slot) {
        let mut image = Vec::with_capacity(256);
        self.encode_image(slot, &mut image);
        self.slab.get_mut(slot).flags &= !IN_CHECKPOINT;
        if let Some(c) = &mut self.checkpointing {
            c.stashed.insert(slot, image.into_boxed_slice());
        }
    }
}

fn missing(block: BlockNo) -> FormatError {
    FormatError::new("inode", format::error::Fault::Rule("slot is empty")).at(block)
}

/// The tail that an inode block holds, without what it points to.
pub(crate) fn tail_of_view(view: &InodeView<'_>) -> Result<(Tail, Option<OutsideXattrs>), FormatError> {
    let mut tail = Tail::default();
    tail.data = match view.tail_kind {
        TailKind::None if view.header.blocks.get() == 0 => Data::Inline(Vec::new()),
        TailKind::None => Data::Extents(ExtentMap::default()),
        TailKind::Inline => Data::Inline(view.tail.to_vec()),
        TailKind::Extents => Data::Extents(ExtentMap::from_extents(view.extents())),
        TailKind::Tree => Data::Extents(ExtentMap::default()),
    };
    tail.xattrs = format::xattr::decode(view.xattrs)?;
    let outside = (view.header.xattr_block.get() != 0).then(|| OutsideXattrs {
        block: BlockNo(view.header.xattr_block.get()),
        bytes: view.header.xattr_bytes.get(),
        crc: view.header.xattr_crc.get(),
    });
    Ok((tail, outside))
}

/// Appends the compact image of `inode`.
pub(crate) fn encode(inode: &Inode, slot: Slot, out: &mut Vec<u8>) -> usize {
    let mut header = inode.header(slot);
    let (mut tail_bytes, mut xattr_bytes): (&[u8], Vec<u8>) = (&[], Vec::new());
    let extents: Vec<Extent>;
    if let Some(tail) = inode.tail.as_ref().filter(|_| inode.kind == SlotKind::Inode) {
        match &tail.data {
            Data::Inline(bytes) => {
                // A shrunken inline file may keep bytes that no longer count.
                tail_bytes = &bytes[..bytes.len().min(inode.size as usize)];
                header.tail_kind =
                    if tail_bytes.is_empty() { TailKind::None } else { TailKind::Inline } as u8;
            }
            Data::Extents(map) if map.fits_inode() => {
                extents = map.iter().map(Ext::to_media).collect();
                tail_bytes = extents.as_bytes();
                header.tail_kind = if extents.is_empty() { TailKind::None } else { TailKind::Extents } as u8;
            }
            Data::Extents(map) => {
                tail_bytes = map.root.as_bytes();
                header.tail_kind = TailKind::Tree as u8;
                header.tree_levels = map.levels;
            }
        }
        match tail.xattrs_outside {
            Some(x) => {
                header.xattr_block = x.block.0.into();
                header.xattr_bytes = x.bytes.into();
                header.xattr_crc = x.crc.into();
            }
            None => xattr_bytes = encode_xattrs(&tail.xattrs),
        }
    }
    debug_assert!(inode.flags & TAIL_ON_MEDIUM == 0 || inode.kind != SlotKind::Inode);
    format::inode::encode_compact(
        &header,
        if inode.kind == SlotKind::Free { b"" } else { inode.name.bytes() },
        tail_bytes,
        &xattr_bytes,
        out,
    )
}

fn encode_xattrs(xattrs: &[Xattr]) -> Vec<u8> {
    if xattrs.is_empty() { Vec::new() } else { format::xattr::encode(xattrs) }
}
