//! Places on the medium for what an inode's tail holds outside of the inode: nodes of the extent tree, large attributes.
//!
//! Nothing is changed in place: a changed leaf, all inner nodes above and a changed set of attributes go to new blocks, as
//! part of the running epoch, before its record is built; the old blocks are given back with that epoch. An entry carries the
//! checksum of its node, so leaves come before the nodes that lead to them. A repetition after waiting keeps the
//! leaves that it has placed. Tested in tests/differential.rs and tests/faults.rs (commits on a full volume).

use crate::core::{Core, Res, Stop, Wait};
use crate::extents::ExtentMap;
use crate::inode::{OutsideXattrs, Slot};
use crate::io::{Io, IoKind};
use crate::space::Run;
use format::extent::{EXTENTS_INLINE_MAX, Extent, NODE_ENTRIES, NodeEntry};
use format::inode::SlotKind;
use format::limits::{BLOCK_SIZE, XATTR_INLINE_MAX};
use format::xattr::Xattr;
use format::{BlockNo, Ino, crc32c};
use fs::Error;
use media::{Op, Request};

impl Core {
    /// Gives extent nodes and large attributes of the running epoch's inodes their places, before its record is built.
    pub fn place_tails(&mut self) -> Res<()> {
        for i in 0..self.running.slots.len() {
            let slot = self.running.slots[i];
            let inode = self.slab.get(slot);
            let Some(tail) = inode.tail.as_ref().filter(|_| inode.kind == SlotKind::Inode) else { continue };
            if tail.xattrs_changed {
                self.place_xattrs(slot)?;
            }
            let has_tree = self
                .slab
                .get(slot)
                .tail
                .as_ref()
                .and_then(|t| t.extents())
                .is_some_and(|m| !m.root.is_empty() || !m.fits_inode());
            if has_tree {
                self.place_tree(slot)?;
            }
        }
        Ok(())
    }

    /// Writes bytes to new neighbouring blocks (`place` when they were taken before), as part of the running epoch.
    fn write_new(&mut self, bytes: &[u8], place: Option<Run>) -> Res<BlockNo> {
        let blocks = bytes.len().div_ceil(BLOCK_SIZE);
        let Some(buffer) = self.scratch.take(blocks) else { return Err(Stop::Wait(Wait::Progress)) };
        debug_assert!(place.is_none_or(|p| p.count as usize == blocks));
        let Some(run) = place.or_else(|| self.space.alloc_exact(blocks as u32)) else {
            self.scratch.give_back(buffer);
            self.hurry_checkpoint();
            // What closed epochs have freed comes back when they are recorded as durable; what this one frees does not help.
            return match self.recorded < self.last_closed() || self.ios.in_flight > 0 {
                true => Err(Stop::Wait(Wait::Progress)),
                false => Err(Error::NoSpace.into()),
            };
        };
        let crcs: Vec<u32> = self.scratch.fill(&buffer, |to| {
            to[..bytes.len()].copy_from_slice(bytes);
            to[bytes.len()..].fill(0);
            to.chunks_exact(BLOCK_SIZE).map(crc32c).collect()
        });
        self.running.covers.insert(run.block.0, &crcs);
        let buf = self.scratch.buf_ref(&buffer, 0, buffer.len());
        let buffer = self.ios.share(buffer, 1);
        let epoch = self.epoch_io_begins();
        let request = Request::transfer(Op::Write, run.block.byte(), buf, 0);
        self.submit(request, Io { kind: IoKind::Buffer { buffer }, epoch: Some(epoch) });
        Ok(run.block)
    }

    fn place_xattrs(&mut self, slot: Slot) -> Res<()> {
        let tail = self.slab.get(slot).tail.as_ref().expect("checked by the caller");
        let outside = if format::xattr::encoded_len(&tail.xattrs) > XATTR_INLINE_MAX {
            let bytes = format::xattr::encode_outside(Ino(slot as u64), &tail.xattrs);
            let block = self.write_new(&bytes, tail.xattrs_place)?;
            Some(OutsideXattrs { block, bytes: bytes.len() as u32, crc: crc32c(&bytes) })
        } else {
            None
        };
        let tail = self.tail_mut(slot);
        tail.xattrs_changed = false;
        tail.xattrs_place = None;
        let old = std::mem::replace(&mut tail.xattrs_outside, outside);
        let inode = self.slab.get_mut(slot);
        inode.blocks += outside.map_or(0, |x| x.blocks() as u64);
        if let Some(old) = old {
            inode.blocks -= old.blocks() as u64;
            self.give_back(Run { block: old.block, count: old.blocks() });
        }
        Ok(())
    }

    /// Takes the blocks that attributes will need at the next commit, and gives back those taken before. `keep`: blocks that
    /// must stay free.
    pub fn take_place_for_xattrs(
        &mut self,
        slot: Slot,
        xattrs: &[Xattr],
        keep: u64,
        ticket: &mut Option<u64>,
    ) -> Res<()> {
        let outside = format::xattr::encoded_len(xattrs) > XATTR_INLINE_MAX;
        let bytes = if outside { format::xattr::encode_outside(Ino(slot as u64), xattrs).len() } else { 0 };
        let blocks = bytes.div_ceil(BLOCK_SIZE) as u32;
        let old = self.tail_mut(slot).xattrs_place;
        if old.map_or(0, |p| p.count) == blocks {
            return Ok(());
        }
        let mut new = None;
        if blocks > 0 {
            let spare = self.space.free_now().saturating_sub(self.space.reserved() + keep);
            new = if spare >= blocks as u64 { self.space.alloc_exact(blocks) } else { None };
            if new.is_none() {
                return self.wait_for_space(ticket);
            }
        }
        self.tail_mut(slot).xattrs_place = new;
        if let Some(old) = old {
            self.space.free(old);
        }
        Ok(())
    }

    fn take_map(&mut self, slot: Slot) -> ExtentMap {
        std::mem::take(self.tail_mut(slot).extents_mut().expect("checked by the caller"))
    }

    /// Writes changed leaves and the inner nodes above them to new blocks, or dissolves the tree when the extents fit in the
    /// inode again.
    fn place_tree(&mut self, slot: Slot) -> Res<()> {
        let mut map = self.take_map(slot);
        let result = self.place_nodes(slot, &mut map);
        *self.tail_mut(slot).extents_mut().expect("taken above") = map;
        result
    }

    fn place_nodes(&mut self, slot: Slot, map: &mut ExtentMap) -> Res<()> {
        let (ino, epoch) = (Ino(slot as u64), self.running.epoch);
        if map.fits_inode() {
            map.drop_tree();
            self.drop_nodes(slot, map);
            return Ok(());
        }
        let mut changed = map.root.is_empty();
        for i in 0..map.leaves().len() {
            let leaf = &map.leaves()[i];
            if leaf.home.is_some() {
                continue;
            }
            changed = true;
            let extents: Vec<Extent> = leaf.extents.iter().map(|e| e.to_media()).collect();
            let (bytes, crc) = format::extent::encode_leaf(ino, epoch, &extents);
            let block = self.write_new(&bytes, None)?;
            self.slab.get_mut(slot).blocks += 1;
            let home = NodeEntry {
                file_block: extents[0].file_block,
                block: block.0.into(),
                node_crc: crc.into(),
                count: (extents.len() as u32).into(),
            };
            map.set_home(i, home);
        }
        if changed || !map.dropped.is_empty() {
            self.place_inner(slot, map)?;
        }
        self.drop_nodes(slot, map);
        Ok(())
    }

    fn place_inner(&mut self, slot: Slot, map: &mut ExtentMap) -> Res<()> {
        let (ino, epoch) = (Ino(slot as u64), self.running.epoch);
        let mut entries: Vec<NodeEntry> = map.leaves().iter().filter_map(|l| l.home).collect();
        let mut level = 1u16;
        let mut inner = Vec::new();
        while entries.len() > EXTENTS_INLINE_MAX {
            let mut above = Vec::with_capacity(entries.len().div_ceil(NODE_ENTRIES));
            for part in entries.chunks(NODE_ENTRIES) {
                let (bytes, crc) = format::extent::encode_inner(ino, epoch, level, part);
                let block = match self.write_new(&bytes, None) {
                    Ok(block) => block,
                    Err(stop) => {
                        // Nothing refers to these nodes yet; the repetition writes them anew.
                        inner.into_iter().for_each(|b| self.give_back(Run { block: b, count: 1 }));
                        return Err(stop);
                    }
                };
                inner.push(block);
                above.push(NodeEntry {
                    file_block: part[0].file_block,
                    block: block.0.into(),
                    node_crc: crc.into(),
                    count: (part.len() as u32).into(),
                });
            }
            entries = above;
            level += 1;
        }
        self.slab.get_mut(slot).blocks += inner.len() as u64;
        map.root = entries;
        map.levels = level as u8;
        let old = std::mem::replace(&mut map.inner, inner);
        map.dropped.extend(old);
        Ok(())
    }

    fn drop_nodes(&mut self, slot: Slot, map: &mut ExtentMap) {
        for block in std::mem::take(&mut map.dropped) {
            self.slab.get_mut(slot).blocks -= 1;
            self.give_back(Run { block, count: 1 });
        }
    }
}
