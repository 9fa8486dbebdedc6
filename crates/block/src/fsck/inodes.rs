//! Every inode slot: checksum, number, ranges, and what the inode points to.

use super::fixed::Base;
use super::report::{Problem, Severity};
use super::walk::{Visit, rule, walk};
use super::{Edit, Node, Pass};
use crate::load;
use format::extent::Extent;
use format::inode::{InodeView, SlotKind, TailKind, parse_block, parse_compact};
use format::limits::{BLOCK_SIZE, PATH_MAX, SEGMENT_BLOCKS};
use format::xattr::Xattr;
use format::{BlockNo, FormatError, Ino};
use fs::{FileType, Result};
use std::collections::HashSet;

/// Blocks in one read of slots.
const PIECE: usize = 128;

/// Claims the blocks of the fixed structures. Segments with two roles lose the later one.
pub(super) fn claim_fixed(pass: &mut Pass<'_>, base: &mut Base) {
    let segment = SEGMENT_BLOCKS as u64;
    pass.usage.claim(0, segment);
    for s in &base.checkpoint.log_segments {
        pass.usage.claim(s.first_block().0, segment);
    }
    for index in 0..base.table.len() {
        let Some(s) = base.table[index] else { continue };
        if !pass.usage.is_free(s.first_block().0, segment) {
            pass.report.add(
                Problem::damage(
                    "inode segment table",
                    format!("position {index}: {s:?} has another role already"),
                )
                .block(s.first_block().0)
                .lost(format!(
                    "inodes {} to {}",
                    index * SEGMENT_BLOCKS,
                    (index + 1) * SEGMENT_BLOCKS - 1
                )),
            );
            base.table[index] = None;
            base.rewrite = true;
            continue;
        }
        pass.usage.claim(s.first_block().0, segment);
    }
    pass.report.counts.inode_segments = base.table.iter().flatten().count() as u64;
}

/// Reads every slot and checks what is in it. Returns the largest epoch of a slot beyond the log's last one, if any.
pub(super) fn scan(pass: &mut Pass<'_>, base: &mut Base) -> Result<Option<u64>> {
    let mut beyond = None;
    let total = base.table.len();
    for index in 0..total {
        pass.step("checking inodes", index as u64, total as u64);
        let Some(segment) = base.table[index] else { continue };
        let fresh = base.fresh.contains(&index);
        if fresh && !base.salvaged {
            continue;
        }
        for first in (0..SEGMENT_BLOCKS).step_by(PIECE) {
            let at = BlockNo(segment.first_block().0 + first as u64);
            let mut bytes = vec![0; PIECE * BLOCK_SIZE];
            let unread = load::read_places(pass.device, at, &mut bytes)?;
            for i in 0..PIECE {
                let ino = (index * SEGMENT_BLOCKS + first + i) as u64;
                let place = BlockNo(at.0 + i as u64);
                let block = &bytes[i * BLOCK_SIZE..][..BLOCK_SIZE];
                if let Some(epoch) = slot(pass, base, ino, block, place, unread.contains(&i), fresh)? {
                    beyond = beyond.max(Some(epoch));
                }
            }
        }
    }
    let images = std::mem::take(&mut base.images);
    let mut inos: Vec<u64> = images.keys().copied().collect();
    inos.sort_unstable();
    for ino in inos {
        let Ok(view) = parse_compact(&images[&ino]) else { continue };
        let known = base.table.get(Ino(ino).table_index()).is_some_and(Option::is_some) && ino != 0;
        if known {
            inode(pass, &view)?;
        } else if view.kind != SlotKind::Free {
            // The segment was given up later; an image that is in use contradicts that.
            pass.report.add(
                Problem::damage("inode", "has no segment in the inode segment table")
                    .inode(ino)
                    .lost("the inode"),
            );
            pass.homeless.insert(ino);
        }
    }
    base.images = images;
    Ok(beyond)
}

/// One slot. Returns its epoch when that lies beyond the log.
fn slot(
    pass: &mut Pass<'_>,
    base: &mut Base,
    ino: u64,
    block: &[u8],
    place: BlockNo,
    failed: bool,
    fresh: bool,
) -> Result<Option<u64>> {
    if base.images.contains_key(&ino) && !base.salvaged {
        // The log is newer, and repairs a torn slot.
        return Ok(None);
    }
    let parsed = match failed {
        true => Err(rule("inode", "cannot be read").at(place)),
        false => parse_block(block, Ino(ino)).map_err(|e| e.at(place)),
    };
    match parsed {
        Ok(None) => {}
        Ok(Some(view)) => {
            if let Some(image) = base.images.get(&ino) {
                let image_epoch = parse_compact(image).map_or(0, |v| v.epoch().0);
                if image_epoch >= view.epoch().0 {
                    return Ok(None);
                }
                base.images.remove(&ino);
            }
            if ino == 0 && view.kind != SlotKind::Free {
                pass.damaged(
                    0,
                    Problem::damage("inode", "number 0 is in use").block(place.0).lost("the inode"),
                );
                pass.edit(0).free = true;
                return Ok(None);
            }
            let beyond = (view.epoch().0 > base.last_epoch).then_some(view.epoch().0);
            if beyond.is_some() && !fresh {
                let p = Problem::damage("inode", "was changed in an epoch that the log does not hold")
                    .values(
                        format!("at most epoch {}", base.last_epoch),
                        format!("epoch {}", view.epoch().0),
                    );
                pass.damaged(ino, p.block(place.0));
            }
            inode(pass, &view)?;
            return Ok(beyond);
        }
        Err(_) if base.images.contains_key(&ino) || fresh => {}
        Err(e) => {
            let lost = if ino == 1 {
                "attributes of the root directory"
            } else {
                "the inode: name, attributes and contents"
            };
            pass.damaged(ino, Problem::from_format(Severity::Damage, &e).lost(lost));
            let edit = pass.edit(ino);
            (edit.free, edit.bad_slot) = (ino != 1, true);
        }
    }
    Ok(None)
}

/// Whether a slot that was bad is good when it is looked at once more: what fails in passing is no damage.
pub(super) fn is_good_again(pass: &Pass<'_>, base: &Base) -> Result<bool> {
    for (&ino, _) in pass.edits.iter().filter(|(_, edit)| edit.bad_slot) {
        let mut block = vec![0; BLOCK_SIZE];
        if let Some(at) = base.slot(ino)
            && load::read_place(pass.device, at, &mut block)?.is_ok()
            && parse_block(&block, Ino(ino)).is_ok()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Claims what one inode points to, and counts it.
struct Claim<'p, 'd> {
    pass: &'p mut Pass<'d>,
    ino: u64,
    blocks: u64,
    faults: Vec<(FormatError, String)>,
    names: HashSet<Box<[u8]>>,
    outside: bool,
}

impl Claim<'_, '_> {
    fn claim(&mut self, block: u64, count: u64) -> bool {
        self.blocks += count;
        self.pass.usage.claim(block, count)
    }
}

impl Visit for Claim<'_, '_> {
    fn node(&mut self, block: u64) -> bool {
        self.claim(block, 1)
    }
    fn extent(&mut self, e: &Extent) {
        self.claim(e.block.get(), e.count.get() as u64);
    }
    fn xattr_blocks(&mut self, block: u64, count: u32) {
        self.outside = true;
        self.claim(block, count as u64);
    }
    fn xattrs(&mut self, xattrs: Vec<Xattr>) {
        for (name, _) in xattrs {
            if !self.names.insert(name) {
                self.fault(rule("extended attributes", "a name stands twice"), "the later value".into());
            }
        }
    }
    fn fault(&mut self, error: FormatError, lost: String) {
        self.faults.push((error, lost));
    }
}

/// Rules that the parser does not know, because they need the type.
fn type_rules(view: &InodeView<'_>) -> Option<&'static str> {
    let h = view.header;
    let Some(kind) = FileType::from_mode(h.mode.get()) else { return Some("type is none that exists") };
    let device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
    let size = h.size.get();
    match kind {
        _ if h.rdev.get() != 0 && !device => Some("device number on what is no device"),
        _ if view.tail_kind != TailKind::Tree && h.tree_levels != 0 => Some("levels without an extent tree"),
        FileType::Regular => None,
        FileType::Symlink if size == 0 || size >= PATH_MAX as u64 => {
            Some("target of a symlink is empty or too long")
        }
        FileType::Symlink if view.tail_kind == TailKind::None => Some("symlink without a target"),
        FileType::Symlink if view.tail_kind == TailKind::Inline && view.tail.len() as u64 != size => {
            Some("target of a symlink is cut short")
        }
        FileType::Symlink => None,
        _ if view.tail_kind != TailKind::None || size != 0 => Some("data in what is no file"),
        _ => None,
    }
}

/// Checks one inode or additional name and takes it in.
fn inode(pass: &mut Pass<'_>, view: &InodeView<'_>) -> Result<()> {
    let (h, ino) = (view.header, view.ino().0);
    if view.kind == SlotKind::Free {
        if view.tail_kind != TailKind::None || !view.name.is_empty() || h.parent.get() != 0 {
            pass.damaged(ino, Problem::damage("inode", "slot is free but not empty"));
            pass.edit(ino).free = true;
        }
        return Ok(());
    }
    if view.kind == SlotKind::Inode {
        let volume = pass.blocks;
        let mut claim =
            Claim { ino, blocks: 0, faults: Vec::new(), names: HashSet::new(), outside: false, pass };
        let device = claim.pass.device;
        walk(device, view, volume, &mut claim)?;
        let Claim { blocks, faults, outside, ino, pass, .. } = claim;
        let broken = !faults.is_empty();
        for (error, lost) in faults {
            pass.damaged(ino, Problem::from_format(Severity::Damage, &error).lost(lost));
        }
        if let Some(what) = type_rules(view) {
            pass.damaged(ino, Problem::damage("inode", what));
        }
        if !broken && blocks != h.blocks.get() {
            let p = Problem::damage("inode", "number of blocks is wrong").values(blocks, h.blocks.get());
            pass.damaged(ino, p);
        }
        let counts = &mut pass.report.counts;
        counts.trees += (view.tail_kind == TailKind::Tree) as u64;
        counts.outside_xattrs += outside as u64;
        match FileType::from_mode(h.mode.get()) {
            Some(FileType::Directory) => counts.directories += 1,
            Some(FileType::Symlink) => counts.symlinks += 1,
            Some(FileType::Regular) | None => counts.files += 1,
            Some(_) => counts.special += 1,
        }
    } else {
        pass.report.counts.links += 1;
    }
    pass.nodes.insert(
        ino,
        Node {
            link: view.kind == SlotKind::Link,
            dir: view.kind == SlotKind::Inode
                && FileType::from_mode(h.mode.get()) == Some(FileType::Directory),
            parent: h.parent.get(),
            target: h.target.get(),
            epoch: h.epoch.get(),
            cookie: h.cookie.get(),
            name: view.name.into(),
        },
    );
    Ok(())
}

/// The current image of an inode: from the log, else from its slot. `None` when neither can be read and parsed.
pub(super) fn image(pass: &Pass<'_>, base: &Base, ino: u64) -> Result<Option<Vec<u8>>> {
    if let Some(image) = base.images.get(&ino) {
        return Ok(Some(image.clone()));
    }
    let Some(at) = base.slot(ino) else { return Ok(None) };
    let mut block = vec![0; BLOCK_SIZE];
    if load::read_place(pass.device, at, &mut block)?.is_err() {
        return Ok(None);
    }
    let Ok(Some(view)) = parse_block(&block, Ino(ino)) else { return Ok(None) };
    let used = view.header.used.get() as usize;
    block.truncate(used);
    Ok(Some(block))
}

/// Finds the owners of blocks used twice and takes them from all but one: fixed structures keep theirs, then the inode
/// with the newest epoch does.
pub(super) fn resolve_twice(pass: &mut Pass<'_>, base: &Base) -> Result<()> {
    struct Owned<'u> {
        usage: &'u super::usage::Usage,
        parts: Vec<(u64, u64)>,
    }
    impl Owned<'_> {
        fn run(&mut self, block: u64, count: u64) {
            self.parts.extend(self.usage.twice_within(block, count));
        }
    }
    impl Visit for Owned<'_> {
        fn node(&mut self, block: u64) -> bool {
            self.run(block, 1);
            self.parts.is_empty() || self.parts.last() != Some(&(block, block + 1))
        }
        fn extent(&mut self, e: &Extent) {
            self.run(e.block.get(), e.count.get() as u64);
        }
        fn xattr_blocks(&mut self, block: u64, count: u32) {
            self.run(block, count as u64);
        }
        fn xattrs(&mut self, _: Vec<Xattr>) {}
        fn fault(&mut self, _: FormatError, _: String) {}
    }
    if pass.usage.twice.is_empty() {
        return Ok(());
    }
    let mut fixed = super::usage::Usage::new(pass.blocks);
    let segment = SEGMENT_BLOCKS as u64;
    fixed.claim(0, segment);
    for s in base.checkpoint.log_segments.iter().chain(base.table.iter().flatten()) {
        fixed.claim(s.first_block().0, segment);
    }
    let mut inos: Vec<(u64, u64)> =
        pass.nodes.iter().filter(|(_, n)| !n.link).map(|(&ino, n)| (n.epoch, ino)).collect();
    inos.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    // Newest first: the first to claim a block keeps it.
    for (_, ino) in inos {
        let Some(image) = image(pass, base, ino)? else { continue };
        let Ok(view) = parse_compact(&image) else { continue };
        let mut owned = Owned { usage: &pass.usage, parts: Vec::new() };
        walk(pass.device, &view, pass.blocks, &mut owned)?;
        let parts = owned.parts;
        for (start, end) in parts {
            let mut lost: Vec<(u64, u64)> = Vec::new();
            for block in start..end {
                if fixed.claim(block, 1) {
                    continue;
                }
                match lost.last_mut() {
                    Some((_, e)) if *e == block => *e += 1,
                    _ => lost.push((block, block + 1)),
                }
            }
            for (start, end) in lost {
                let p = Problem::damage("extent", "block is used twice, and the other user is newer");
                let p =
                    p.block(start).lost(format!("{} blocks of the file, which become a hole", end - start));
                pass.damaged(ino, p);
                pass.edit(ino).holes.push((start, end));
            }
        }
    }
    Ok(())
}

/// Most runs that [`owners`] returns.
const OWNERS_MAX: usize = 1000;

/// The runs within `first..end` with the inodes that own them: (inode, block, count).
pub(super) fn owners(pass: &Pass<'_>, base: &Base, first: u64, end: u64) -> Result<Vec<super::Owned>> {
    struct Within {
        ino: u64,
        range: (u64, u64),
        seen: HashSet<u64>,
        found: Vec<(u64, u64, u64)>,
    }
    impl Within {
        fn run(&mut self, block: u64, count: u64) {
            let (start, stop) = (block.max(self.range.0), (block + count).min(self.range.1));
            if start < stop && self.found.len() < OWNERS_MAX {
                self.found.push((self.ino, start, stop - start));
            }
        }
    }
    impl Visit for Within {
        fn node(&mut self, block: u64) -> bool {
            self.run(block, 1);
            self.seen.insert(block)
        }
        fn extent(&mut self, e: &Extent) {
            self.run(e.block.get(), e.count.get() as u64);
        }
        fn xattr_blocks(&mut self, block: u64, count: u32) {
            self.run(block, count as u64);
        }
        fn xattrs(&mut self, _: Vec<Xattr>) {}
        fn fault(&mut self, _: FormatError, _: String) {}
    }
    let mut inos: Vec<u64> = pass.nodes.iter().filter(|(_, n)| !n.link).map(|(&ino, _)| ino).collect();
    inos.sort_unstable();
    let mut v = Within { ino: 0, range: (first, end), seen: HashSet::new(), found: Vec::new() };
    for ino in inos {
        let Some(image) = image(pass, base, ino)? else { continue };
        if let Ok(view) = parse_compact(&image) {
            v.ino = ino;
            v.seen.clear();
            walk(pass.device, &view, pass.blocks, &mut v)?;
        }
    }
    Ok(v.found)
}

impl Edit {
    /// Whether a run touches blocks that the inode has to give up.
    pub(super) fn gives_up(&self, first: u64, count: u64) -> bool {
        self.holes.iter().any(|&(s, e)| s < first + count && first < e)
    }
}
