//! Making the image of an inode anew from what can be read of it.

use super::walk::{Visit, walk};
use super::{Edit, Pass};
use format::extent::{EXTENTS_INLINE_MAX, Extent, NODE_ENTRIES, NodeEntry, encode_inner, encode_leaf};
use format::inode::{InodeHeader, InodeView, SlotKind, TailKind, Timespec, encode_compact, parse_compact};
use format::limits::{BLOCK_SIZE, PATH_MAX};
use format::xattr::Xattr;
use format::{BlockNo, FormatError, Ino, crc32c};
use fs::{Error, FileType, Result, Time};
use std::collections::HashSet;
use zerocopy::{FromZeros, IntoBytes};

pub(super) struct Image;

/// What is good of an inode's contents.
struct Load<'e> {
    edit: &'e Edit,
    extents: Vec<Extent>,
    nodes: HashSet<u64>,
    xattrs: Vec<Xattr>,
    /// Attributes outside of the inode that stay where they are.
    outside: u32,
    outside_lost: bool,
    /// A name stands twice among the attributes.
    twice: bool,
    changed: bool,
}

impl Visit for Load<'_> {
    fn node(&mut self, block: u64) -> bool {
        let good = !self.edit.gives_up(block, 1) && self.nodes.insert(block);
        self.changed |= !good;
        good
    }
    fn extent(&mut self, e: &Extent) {
        let (first, end) = (e.block.get(), e.block.get() + e.count.get() as u64);
        let mut holes: Vec<(u64, u64)> =
            self.edit.holes.iter().filter(|(s, t)| *s < end && first < *t).copied().collect();
        holes.sort_unstable();
        holes.push((end, end));
        let mut at = first;
        for (start, stop) in holes {
            if start > at {
                let file_block = e.file_block.get() + (at - first);
                self.extents.push(Extent::new(file_block, BlockNo(at), (start - at) as u32, e.unwritten()));
            }
            self.changed |= start < end;
            at = at.max(stop);
        }
    }
    fn xattr_blocks(&mut self, block: u64, count: u32) {
        self.outside_lost = self.edit.gives_up(block, count as u64);
        self.outside = if self.outside_lost { 0 } else { count };
    }
    fn xattrs(&mut self, xattrs: Vec<Xattr>) {
        for (name, value) in xattrs {
            let twice = self.xattrs.iter().any(|(n, _)| *n == name);
            if !self.outside_lost && !twice {
                self.xattrs.push((name, value));
            }
            self.twice |= twice;
        }
    }
    fn fault(&mut self, _: FormatError, _: String) {
        self.changed = true;
    }
}

impl Image {
    /// The image that `edit` asks for; `old` is the one there is, if any can be read.
    pub fn make(
        pass: &mut Pass<'_>,
        ino: u64,
        edit: &Edit,
        old: Option<&[u8]>,
        epoch: u64,
    ) -> Result<Vec<u8>> {
        let view = old.and_then(|o| parse_compact(o).ok());
        let mut out = Vec::new();
        let live = view.as_ref().is_some_and(|v| v.kind != SlotKind::Free);
        if edit.make_dir || edit.make_root {
            let h = directory(ino, edit, view.as_ref(), epoch);
            let name = edit.rename.as_ref().map_or(&b""[..], |r| &r.1);
            encode_compact(&h, name, b"", b"", &mut out);
            return Ok(out);
        }
        let (Some(view), false, true) = (view, edit.free, live) else {
            let generation = view.map_or(0, |v| v.header.generation.get()).max(epoch as u32);
            let mut h = InodeHeader::new_zeroed();
            (h.ino, h.generation, h.epoch) = (ino.into(), generation.into(), epoch.into());
            encode_compact(&h, b"", b"", b"", &mut out);
            return Ok(out);
        };
        let mut h = *view.header;
        h.epoch = epoch.into();
        let mut name = view.name;
        if let Some((parent, new, cookie)) = &edit.rename {
            (h.parent, h.cookie) = ((*parent).into(), (*cookie).into());
            name = new;
        } else if let Some(cookie) = edit.cookie {
            h.cookie = cookie.into();
        }
        if view.kind == SlotKind::Link {
            encode_compact(&h, name, b"", b"", &mut out);
            return Ok(out);
        }
        let mut load = Load {
            edit,
            extents: Vec::new(),
            nodes: HashSet::new(),
            xattrs: Vec::new(),
            outside: 0,
            outside_lost: false,
            twice: false,
            changed: false,
        };
        walk(pass.device, &view, pass.blocks, &mut load)?;
        let tail = tail(pass, &view, &mut h, &mut load, epoch)?;
        if load.outside > 0 && load.twice {
            let bytes = format::xattr::encode_outside(view.ino(), &load.xattrs);
            h.xattr_block = put(pass, &bytes)?.into();
            (h.xattr_bytes, h.xattr_crc) = ((bytes.len() as u32).into(), crc32c(&bytes).into());
            load.outside = bytes.len().div_ceil(BLOCK_SIZE) as u32;
        }
        let mut xattrs = Vec::new();
        if load.outside == 0 {
            (h.xattr_block, h.xattr_bytes, h.xattr_crc) = (0.into(), 0.into(), 0.into());
            if !view.xattrs.is_empty() {
                xattrs = format::xattr::encode(&load.xattrs);
            }
        }
        h.blocks = (h.blocks.get() + load.outside as u64).into();
        encode_compact(&h, name, &tail, &xattrs, &mut out);
        debug_assert!(parse_compact(&out).is_ok());
        Ok(out)
    }
}

fn directory(ino: u64, edit: &Edit, old: Option<&InodeView<'_>>, epoch: u64) -> InodeHeader {
    let mut h = InodeHeader::new_zeroed();
    let now = Time::now();
    let now = Timespec { sec: now.sec.into(), nsec: now.nsec.into() };
    h.ino = ino.into();
    h.kind = SlotKind::Inode as u8;
    let next = old.map_or(0, |v| v.header.generation.get()).wrapping_add(1).max(epoch as u32);
    h.generation = next.wrapping_add(crate::inode::apart()).into();
    h.epoch = epoch.into();
    h.mode = if edit.make_root { 0o040755 } else { 0o040700 }.into();
    (h.atime, h.mtime, h.ctime, h.btime) = (now, now, now, now);
    match &edit.rename {
        Some((parent, _, cookie)) => (h.parent, h.cookie) = ((*parent).into(), (*cookie).into()),
        None => h.parent = Ino::ROOT.0.into(),
    }
    h
}

/// The tail, with the fields of the header that depend on it; `blocks` counts data and nodes.
fn tail(
    pass: &mut Pass<'_>,
    view: &InodeView<'_>,
    h: &mut InodeHeader,
    load: &mut Load<'_>,
    epoch: u64,
) -> Result<Vec<u8>> {
    let kind = FileType::from_mode(h.mode.get()).unwrap_or(FileType::Regular);
    h.mode = (kind.mode_bits() | h.mode.get() & 0o7777).into();
    h.flags = 0.into();
    if !matches!(kind, FileType::CharDevice | FileType::BlockDevice) {
        h.rdev = 0.into();
    }
    h.blocks = 0.into();
    h.tree_levels = 0;
    let data = matches!(kind, FileType::Regular | FileType::Symlink);
    let extents = std::mem::take(&mut load.extents);
    if !data {
        h.size = 0.into();
        h.tail_kind = TailKind::None as u8;
        return Ok(Vec::new());
    }
    if kind == FileType::Symlink {
        let inline = view.tail_kind == TailKind::Inline && (1..PATH_MAX).contains(&view.tail.len());
        if inline {
            h.size = (view.tail.len() as u64).into();
        } else if load.changed || extents.is_empty() || h.size.get() == 0 || h.size.get() >= PATH_MAX as u64 {
            // Without its whole target it is no symlink any more.
            h.mode = (FileType::Regular.mode_bits() | h.mode.get() & 0o777).into();
        }
    }
    if view.tail_kind == TailKind::Inline {
        return Ok(view.tail.to_vec());
    }
    let data: u64 = extents.iter().map(|e| e.count.get() as u64).sum();
    if view.tail_kind == TailKind::Tree && !load.changed {
        h.tree_levels = view.header.tree_levels;
        h.blocks = (data + load.nodes.len() as u64).into();
        return Ok(view.tail.to_vec());
    }
    if extents.len() <= EXTENTS_INLINE_MAX {
        h.blocks = data.into();
        h.tail_kind = if extents.is_empty() { TailKind::None } else { TailKind::Extents } as u8;
        return Ok(extents.as_bytes().to_vec());
    }
    let ino = view.ino();
    let mut nodes = 0;
    let mut entries = Vec::new();
    for part in extents.chunks(NODE_ENTRIES) {
        let (bytes, crc) = encode_leaf(ino, epoch, part);
        entries.push(place(pass, &bytes, crc, part[0].file_block.get(), part.len())?);
        nodes += 1;
    }
    let mut level = 1;
    while entries.len() > EXTENTS_INLINE_MAX {
        let mut above = Vec::new();
        for part in entries.chunks(NODE_ENTRIES) {
            let (bytes, crc) = encode_inner(ino, epoch, level, part);
            above.push(place(pass, &bytes, crc, part[0].file_block.get(), part.len())?);
            nodes += 1;
        }
        entries = above;
        level += 1;
    }
    h.tree_levels = level as u8;
    h.tail_kind = TailKind::Tree as u8;
    h.blocks = (data + nodes).into();
    Ok(entries.as_bytes().to_vec())
}

/// Writes to new blocks.
fn put(pass: &mut Pass<'_>, bytes: &[u8]) -> Result<u64> {
    let count = bytes.len().div_ceil(BLOCK_SIZE);
    let block = pass.usage.take_free(count as u64).ok_or(Error::NoSpace)?;
    if block + count as u64 > pass.blocks {
        return Err(Error::NoSpace);
    }
    let mut blocks = bytes.to_vec();
    blocks.resize(count * BLOCK_SIZE, 0);
    pass.device.write(BlockNo(block).byte(), &blocks)?;
    Ok(block)
}

fn place(pass: &mut Pass<'_>, bytes: &[u8], crc: u32, file_block: u64, count: usize) -> Result<NodeEntry> {
    let block = put(pass, bytes)?;
    Ok(NodeEntry {
        file_block: file_block.into(),
        block: block.into(),
        node_crc: crc.into(),
        count: (count as u32).into(),
    })
}
