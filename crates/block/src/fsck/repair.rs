//! Writing what a check has found necessary.
//!
//! Order, so that a crash anywhere leaves a volume on which the repair can go on:
//! 1. superblocks from the good one; what ends the log and cannot be read becomes something that ends it and can be read;
//! 2. when the log holds something or a fixed structure is damaged: a checkpoint, in the engine's own order: the accepted
//!    epochs are marked durable, then logged pages, slots and table blocks go home, then the checkpoint block frees the log;
//! 3. new images of damaged inodes, as records in the log that is now empty. The next pass finds them there like any
//!    other epochs and brings them home.

use super::fixed::Base;
use super::image::Image;
use super::{Edit, Pass};
use crate::index::{COOKIE_MAX, FIRST_COOKIE};
use crate::load;
use crate::ring::LogRing;
use format::checkpoint::{CHECKPOINTS, Checkpoint};
use format::inode::{fill_block, parse_block};
use format::limits::{BLOCK_SIZE, INODE_SEGMENTS_MAX, SEGMENT_BLOCKS, SEGMENT_SIZE};
use format::log::{RecordBuilder, RecordId};
use format::segtable::{ENTRIES_PER_BLOCK, encode as encode_table, homes, table_crc};
use format::{BlockNo, Epoch, Ino, SegNo};
use fs::{Result, Time};
use media::blocking::Blocking;
use std::collections::BTreeSet;
use zerocopy::IntoBytes;

/// Repairs what one pass has found. True when something was written.
pub(super) fn run(pass: &mut Pass<'_>, base: &mut Base) -> Result<bool> {
    let mut wrote = false;
    if !base.bad_superblocks.is_empty() {
        for at in &base.bad_superblocks {
            pass.device.write(at.byte(), base.superblock.as_bytes())?;
        }
        pass.device.flush()?;
        wrote = true;
    }
    if base.unread_log {
        let cp = &base.checkpoint;
        let segments = cp.log_segments.clone();
        let ring = LogRing { segments, head: base.end, tail: cp.log_position, chain: 0, nonce: 0 };
        crate::recover::destroy_cut(pass.device, &ring, base.end - cp.log_position)?;
        wrote = true;
    }
    let edits = !pass.edits.is_empty() || !pass.stray.is_empty();
    if base.log_pending || base.rewrite || !base.bad_homes.is_empty() || !pass.homeless.is_empty() {
        bring_home(pass.device, base)?;
        wrote = true;
    }
    if edits {
        commit(pass, base)?;
        wrote = true;
    }
    Ok(wrote)
}

/// Ends a repair: brings home what its last records hold, and says that the volume is stopped.
pub(super) fn finish(pass: &mut Pass<'_>, base: &mut Base) -> Result<bool> {
    if base.log_pending {
        bring_home(pass.device, base)?;
    }
    forget_unfinished(pass.device, base)?;
    let last =
        Checkpoint { sequence: base.checkpoint.sequence + 1, clean: true, ..base.checkpoint.running() };
    write_checkpoint(pass.device, base, last)?;
    pass.report.counts.log_epochs = 0;
    pass.report.counts.log_pages = 0;
    pass.report.counts.checkpoint_epoch = base.checkpoint.epoch.0;
    Ok(true)
}

fn write_checkpoint(device: &Blocking, base: &mut Base, block: Checkpoint) -> Result<()> {
    device.write(CHECKPOINTS[(block.sequence % 2) as usize].byte(), &block.encode())?;
    device.flush()?;
    base.checkpoint = block;
    Ok(())
}

/// Empties homes of the table that would count with the next checkpoint's number.
fn forget_unfinished(device: &Blocking, base: &mut Base) -> Result<()> {
    for at in std::mem::take(&mut base.unfinished) {
        device.write(at.byte(), &[0; BLOCK_SIZE])?;
    }
    Ok(device.flush()?)
}

fn bring_home(device: &Blocking, base: &mut Base) -> Result<()> {
    // What was accepted may still be in the device's cache when only its server had died: it must be durable before the mark says so.
    forget_unfinished(device, base)?;
    if base.log_pending && !base.salvaged {
        let mark = Checkpoint {
            sequence: base.checkpoint.sequence + 1,
            durable_epoch: Epoch(base.last_epoch),
            ..base.checkpoint.running()
        };
        write_checkpoint(device, base, mark)?;
    }
    for (&block, bytes) in &base.pages {
        device.write(BlockNo(block).byte(), bytes)?;
    }
    write_slots(device, base)?;
    let used = base.table.iter().rposition(Option::is_some).map_or(0, |i| i + 1);
    base.table.truncate(used);
    let sequence = base.checkpoint.sequence + 1;
    for (index, entries) in base.table.chunks(ENTRIES_PER_BLOCK).enumerate() {
        let start = (index * ENTRIES_PER_BLOCK).min(base.medium_table.len());
        let end = (start + ENTRIES_PER_BLOCK).min(base.medium_table.len());
        let known = index < base.homes.len();
        let bad = base.bad_homes.iter().any(|(i, _)| *i == index);
        if known && !bad && base.medium_table[start..end] == *entries {
            continue;
        }
        let home = if known { 1 - base.homes[index] } else { 0 };
        let block = encode_table(&base.superblock.uuid, sequence, index, entries);
        device.write(homes(index)[home].byte(), &block)?;
    }
    let blocks = base.table.len().div_ceil(ENTRIES_PER_BLOCK);
    for &(index, home) in base.bad_homes.iter().filter(|(index, _)| *index >= blocks) {
        // The table no longer has this block: its homes are empty, as before it had one.
        device.write(homes(index)[home].byte(), &[0; BLOCK_SIZE])?;
    }
    device.flush()?;
    let capacity = (base.checkpoint.log_segments.len() * SEGMENT_BLOCKS) as u64;
    let block = Checkpoint {
        sequence,
        epoch: Epoch(base.last_epoch),
        log_position: base.end % capacity,
        chain: base.chain,
        durable_epoch: Epoch(base.last_epoch),
        inode_segments: base.table.len() as u32,
        table_crc: table_crc(&base.table),
        ..base.checkpoint.running()
    };
    write_checkpoint(device, base, block)?;
    base.end %= capacity;
    base.medium_table = base.table.clone();
    base.log_pending = false;
    Ok(())
}

/// Writes the log's images to their slots; segments that are new to inodes as a whole.
fn write_slots(device: &Blocking, base: &Base) -> Result<()> {
    let mut inos: Vec<u64> = base.images.keys().copied().collect();
    inos.sort_unstable();
    for &index in &base.fresh {
        let Some(segment) = base.table.get(index).copied().flatten() else { continue };
        let mut bytes = vec![0; SEGMENT_SIZE];
        if base.salvaged {
            load::read_places(device, segment.first_block(), &mut bytes)?;
        }
        for (i, block) in bytes.chunks_exact_mut(BLOCK_SIZE).enumerate() {
            let ino = (index * SEGMENT_BLOCKS + i) as u64;
            if let Some(image) = base.images.get(&ino) {
                fill_block(image, block);
            } else if parse_block(block, Ino(ino)).is_err() {
                block.fill(0);
            }
        }
        device.write(segment.first_block().byte(), &bytes)?;
    }
    let mut block = vec![0; BLOCK_SIZE];
    for ino in inos {
        let index = Ino(ino).table_index();
        let Some(segment) = base.table.get(index).copied().flatten().filter(|_| !base.fresh.contains(&index))
        else {
            continue;
        };
        fill_block(&base.images[&ino], &mut block);
        device.write(format::inode::slot_block(segment, Ino(ino)).byte(), &block)?;
    }
    Ok(())
}

/// Commits new images of inodes as records. What does not fit in the log is found again by the next pass.
fn commit(pass: &mut Pass<'_>, base: &mut Base) -> Result<()> {
    let mut ring = LogRing {
        segments: base.checkpoint.log_segments.clone(),
        head: base.end,
        tail: base.end,
        chain: base.chain,
        nonce: rand::random(),
    };
    let mut builder = RecordBuilder::default();
    if pass.edits.get(&Ino::ROOT.0).is_some_and(|edit| edit.make_root)
        && base.slot(Ino::ROOT.0).is_none()
        && let Some(segment) = new_segment(pass, &mut builder, 0)
    {
        base.table.resize(base.table.len().max(1), None);
        base.table[0] = Some(segment);
    }
    plan_lost_and_found(pass, base, &mut builder);
    // What nothing refers to any more may hold what other images still need, so new blocks come from what no pass has
    // seen in use; images in the log hold theirs as well.
    for &block in base.pages.keys() {
        if !pass.usage.get(block) {
            pass.usage.claim(block, 1);
        }
    }
    // What others are renamed into comes first: were it left to the next pass, that would find them without a directory
    // again, and so would each pass after it. Then what only becomes free, which takes little.
    let mut edits: Vec<(u64, Edit)> = std::mem::take(&mut pass.edits).into_iter().collect();
    edits.sort_by_key(|(_, edit)| (!edit.make_dir && !edit.make_root, !edit.free));
    let (mut bytes, mut total) = (0, 0);
    let mut epoch = base.last_epoch + 1;
    let mut records: Vec<(RecordBuilder, u64)> = Vec::new();
    for &(ino, ref edit) in &edits {
        let old = super::inodes::image(pass, base, ino)?;
        if old.is_none() && !edit.free && !edit.make_dir && !edit.make_root {
            // It has become bad since it was looked at: the next pass tells so, and what is lost.
            continue;
        }
        let image = Image::make(pass, ino, edit, old.as_deref(), epoch)?;
        bytes += image.len() + 16;
        total += image.len() + 16;
        builder.inode(|out| {
            out.extend_from_slice(&image);
            image.len()
        });
        if bytes > ring.record_max() / 2 {
            records.push((std::mem::take(&mut builder), epoch));
            (bytes, epoch) = (0, epoch + 1);
        }
        if total > ring.capacity() as usize * BLOCK_SIZE / 4 {
            break;
        }
    }
    if !builder.is_empty() {
        records.push((builder, epoch));
    }
    pass.device.flush()?;
    for (builder, epoch) in records {
        let mut bytes = vec![0; builder.blocks() * BLOCK_SIZE];
        let id = RecordId {
            uuid: base.superblock.uuid,
            epoch: Epoch(epoch),
            durable_epoch: Epoch(base.last_epoch),
            chain: ring.chain,
            time: Time::now().sec as u64,
            nonce: ring.nonce,
        };
        let blocks = builder.blocks() as u64;
        ring.chain = builder.finish(&id, &mut bytes, |_| &[]);
        for (block, at, n) in ring.parts(ring.head, blocks, u64::MAX) {
            pass.device.write(block.byte(), &bytes[at as usize * BLOCK_SIZE..][..n as usize * BLOCK_SIZE])?;
        }
        ring.head += blocks;
        pass.device.flush()?;
    }
    Ok(())
}

/// Gives every inode without a place a name in /lost+found, which is made when it is not there.
fn plan_lost_and_found(pass: &mut Pass<'_>, base: &Base, builder: &mut RecordBuilder) {
    let stray = std::mem::take(&mut pass.stray);
    if stray.is_empty() {
        return;
    }
    let usable = |pass: &Pass<'_>, ino: u64| {
        !stray.contains(&ino) && pass.edits.get(&ino).is_none_or(|e| !e.free && e.rename.is_none())
    };
    let taken: BTreeSet<Vec<u8>> =
        pass.nodes.iter().filter(|(_, n)| n.parent == Ino::ROOT.0).map(|(_, n)| n.name.to_vec()).collect();
    let there = pass.nodes.iter().find(|(ino, n)| {
        n.dir && n.parent == Ino::ROOT.0 && &n.name[..] == b"lost+found" && usable(pass, **ino)
    });
    let home = match there.map(|(ino, _)| *ino) {
        Some(ino) => ino,
        None => match free_slot(pass, base, builder) {
            Some(ino) => {
                let name =
                    (0u64..)
                        .map(|i| {
                            if i == 0 {
                                b"lost+found".to_vec()
                            } else {
                                format!("lost+found.{i}").into_bytes()
                            }
                        })
                        .find(|n| !taken.contains(n))
                        .unwrap_or_default();
                let cookie = next_cookie(pass, Ino::ROOT.0);
                let edit = pass.edit(ino);
                edit.make_dir = true;
                edit.rename = Some((Ino::ROOT.0, name, cookie));
                ino
            }
            None => Ino::ROOT.0,
        },
    };
    let mut used: BTreeSet<Vec<u8>> =
        pass.nodes.values().filter(|n| n.parent == home).map(|n| n.name.to_vec()).collect();
    let first = next_cookie(pass, home);
    for (cookie, ino) in (first..).zip(stray) {
        let name = (0u64..)
            .map(|i| if i == 0 { format!("#{ino}") } else { format!("#{ino}.{i}") }.into_bytes())
            .find(|n| !used.contains(n))
            .unwrap_or_default();
        used.insert(name.clone());
        pass.edit(ino).rename = Some((home, name, cookie));
    }
}

fn next_cookie(pass: &Pass<'_>, dir: u64) -> u64 {
    let known = pass.nodes.values().filter(|n| n.parent == dir).map(|n| n.cookie);
    let planned = pass.edits.values().filter_map(|e| match &e.rename {
        Some((d, _, c)) if *d == dir => Some(*c),
        _ => e.cookie,
    });
    known.chain(planned).filter(|&c| c < COOKIE_MAX).max().map_or(FIRST_COOKIE, |c| (c + 1).max(FIRST_COOKIE))
}

/// A slot that nobody uses; of a new inode segment when there is none.
fn free_slot(pass: &mut Pass<'_>, base: &Base, builder: &mut RecordBuilder) -> Option<u64> {
    for (index, segment) in base.table.iter().enumerate() {
        let first = (index * SEGMENT_BLOCKS) as u64;
        let free = |ino: &u64| *ino > 1 && !pass.nodes.contains_key(ino) && !pass.edits.contains_key(ino);
        if segment.is_some()
            && let Some(ino) = (first..first + SEGMENT_BLOCKS as u64).find(free)
        {
            return Some(ino);
        }
    }
    let index = base.table.iter().position(Option::is_none).unwrap_or(base.table.len());
    if index >= INODE_SEGMENTS_MAX {
        return None;
    }
    new_segment(pass, builder, index)?;
    Some(((index * SEGMENT_BLOCKS) as u64).max(2))
}

/// A segment that nobody uses becomes one of inodes, at a position of the table.
fn new_segment(pass: &mut Pass<'_>, builder: &mut RecordBuilder, index: usize) -> Option<SegNo> {
    let segment = SEGMENT_BLOCKS as u64;
    let seg = (1..pass.blocks / segment).find(|s| pass.usage.is_free(s * segment, segment))?;
    pass.usage.claim(seg * segment, segment);
    builder.assignment(index as u32, seg as u32);
    Some(SegNo(seg as u32))
}
