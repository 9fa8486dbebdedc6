//! Walking what an inode points to: extents, nodes of the extent tree, extended attributes outside of it. Nothing that is
//! read is believed before it was checked, and the walk ends on any bytes: a block that a visitor refuses is not
//! entered, and visitors refuse blocks that are in use already.

use crate::load::read_place;
use format::extent::{Extent, LEVELS_MAX, Node, NodeEntry};
use format::inode::{InodeView, TailKind};
use format::limits::{BLOCK_SIZE, XATTR_TOTAL_MAX};
use format::xattr::{Xattr, XattrHeader};
use format::{BlockNo, FormatError, Ino, crc32c};
use fs::Result;
use media::blocking::Blocking;

/// Receives what a walk finds.
pub(super) trait Visit {
    /// A node of the extent tree; false: do not look into it.
    fn node(&mut self, block: u64) -> bool;
    /// An extent within the volume, behind all extents before it.
    fn extent(&mut self, extent: &Extent);
    /// Blocks of extended attributes.
    fn xattr_blocks(&mut self, block: u64, count: u32);
    /// The extended attributes, from wherever they stand.
    fn xattrs(&mut self, xattrs: Vec<Xattr>);
    /// Something is wrong, and what is lost with it.
    fn fault(&mut self, error: FormatError, lost: String);
}

pub(super) fn rule(structure: &'static str, rule: &'static str) -> FormatError {
    FormatError::new(structure, format::error::Fault::Rule(rule))
}

struct Walk<'a, V> {
    device: &'a Blocking,
    ino: Ino,
    blocks: u64,
    /// First file block that the next extent may have.
    next: u64,
    visit: &'a mut V,
}

/// Walks everything that `view` points to, on a volume of `blocks` blocks. Fails when the device does as a whole.
pub(super) fn walk(
    device: &Blocking,
    view: &InodeView<'_>,
    blocks: u64,
    visit: &mut impl Visit,
) -> Result<()> {
    let mut w = Walk { device, ino: view.ino(), blocks, next: 0, visit };
    match view.tail_kind {
        TailKind::None | TailKind::Inline => {}
        TailKind::Extents => view.extents().iter().for_each(|e| w.extent(e)),
        TailKind::Tree => {
            let levels = view.header.tree_levels as usize;
            if (1..=LEVELS_MAX).contains(&levels) && !view.tree_root().is_empty() {
                w.nodes(view.tree_root(), levels as u16 - 1)?;
            } else {
                w.visit.fault(rule("extent node", "tree without levels or entries"), "all data".into());
            }
        }
    }
    w.xattrs(view)
}

impl<V: Visit> Walk<'_, V> {
    fn extent(&mut self, e: &Extent) {
        let (at, count) = (e.block.get(), e.count.get() as u64);
        let lost =
            || format!("bytes {} to {}", e.file_block.get() * BLOCK_SIZE as u64, e.end() * BLOCK_SIZE as u64);
        if at.checked_add(count).is_none_or(|end| end > self.blocks) || at == 0 {
            let error = rule("extent", "lies outside of the volume").at(BlockNo(at));
            return self.visit.fault(error, lost());
        }
        if e.file_block.get() < self.next {
            let error = rule("extent", "overlaps the one before it").at(BlockNo(at));
            return self.visit.fault(error, lost());
        }
        self.next = e.end();
        self.visit.extent(e);
    }

    fn nodes(&mut self, entries: &[NodeEntry], level: u16) -> Result<()> {
        for entry in entries {
            let at = entry.block.get();
            let lost = || {
                format!(
                    "what stands at and behind byte {} in this node",
                    entry.file_block.get() * BLOCK_SIZE as u64
                )
            };
            if at == 0 || at >= self.blocks {
                self.visit.fault(rule("extent node", "lies outside of the volume").at(BlockNo(at)), lost());
                continue;
            }
            if !self.visit.node(at) {
                continue;
            }
            let mut block = vec![0; BLOCK_SIZE];
            if read_place(self.device, BlockNo(at), &mut block)?.is_err() {
                self.visit.fault(rule("extent node", "cannot be read").at(BlockNo(at)), lost());
                continue;
            }
            match format::extent::parse(&block, self.ino, level, entry) {
                Ok(Node::Leaf(extents)) => extents.iter().for_each(|e| self.extent(e)),
                Ok(Node::Inner(below)) if level > 0 => self.nodes(&below, level - 1)?,
                Ok(Node::Inner(_)) => {}
                Err(e) => self.visit.fault(e.at(BlockNo(at)), lost()),
            }
        }
        Ok(())
    }

    fn xattrs(&mut self, view: &InodeView<'_>) -> Result<()> {
        const NAME: &str = "extended attributes";
        let lost = || "all extended attributes".to_string();
        let h = view.header;
        if !view.xattrs.is_empty() {
            match format::xattr::decode(view.xattrs) {
                Ok(xattrs) => self.visit.xattrs(xattrs),
                Err(e) => self.visit.fault(e, lost()),
            }
        }
        let (at, bytes) = (h.xattr_block.get(), h.xattr_bytes.get());
        if at == 0 {
            if bytes != 0 || h.xattr_crc.get() != 0 {
                self.visit.fault(rule(NAME, "length without a place"), lost());
            }
            return Ok(());
        }
        let count = bytes.div_ceil(BLOCK_SIZE as u32);
        let fits = (size_of::<XattrHeader>()..=XATTR_TOTAL_MAX + BLOCK_SIZE).contains(&(bytes as usize));
        if !fits
            || at.checked_add(count as u64).is_none_or(|end| end > self.blocks)
            || !view.xattrs.is_empty()
        {
            let error = rule(NAME, "have a wrong length, lie outside of the volume, or stand in two places");
            self.visit.fault(error.at(BlockNo(at)), lost());
            return Ok(());
        }
        let mut raw = vec![0; count as usize * BLOCK_SIZE];
        if read_place(self.device, BlockNo(at), &mut raw)?.is_err() {
            self.visit.fault(rule(NAME, "cannot be read").at(BlockNo(at)), lost());
            return Ok(());
        }
        let used = &raw[..bytes as usize];
        let decoded = format::error::check_crc(NAME, h.xattr_crc.get(), crc32c(used))
            .and_then(|()| format::xattr::decode_outside(used, self.ino));
        match decoded {
            Ok(xattrs) => {
                self.visit.xattr_blocks(at, count);
                self.visit.xattrs(xattrs);
            }
            Err(e) => self.visit.fault(e.at(BlockNo(at)), lost()),
        }
        Ok(())
    }
}
