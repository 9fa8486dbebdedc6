//! Reading what a volume holds, without changing it: superblock, checkpoint, inode segment table, and the log's longest
//! prefix of whole epochs. Mount and fsck both begin here.
//!
//! What cannot be read is taken for damaged: a sector that was being written when power failed may be unreadable ever since.
//! So of what is there twice the other copy is used. In the log it may as well be what somebody was told to be durable, and can
//! be read another time: that is not for a mount to give up, but for a repair. A device that cannot be read at all is an error.

use format::checkpoint::{CHECKPOINTS, Checkpoint};
use format::limits::{BLOCK_SIZE, SEGMENT_BLOCKS};
use format::log::{Record, cover_crc, probe};
use format::segtable::ENTRIES_PER_BLOCK;
use format::superblock::{SUPERBLOCKS, Superblock};
use format::{BlockNo, Epoch, FormatError, SegNo, crc32c};
use fs::{Error, Result};
use media::MediaError;
use media::blocking::Blocking;
use std::collections::BTreeSet;

use crate::ring::LogRing;

/// The fixed structures of a volume.
pub(crate) struct Fixed {
    pub superblock: Superblock,
    pub checkpoint: Checkpoint,
    /// The inode segment table as of the checkpoint, and for each of its blocks which home is current.
    pub table: Vec<Option<SegNo>>,
    pub homes: Vec<(u8, Vec<u32>)>,
    /// Homes of the table that a checkpoint has written which did not finish: newer than the checkpoint. Also those that
    /// cannot be read, which may be such.
    pub unfinished: Vec<BlockNo>,
    /// The other checkpoint block holds something that is no checkpoint. If it was the newer one, an index checkpoint is
    /// not to be trusted.
    pub damaged_checkpoint: bool,
}

/// The part of the log that counts.
pub(crate) struct LogTail {
    /// Records of whole epochs behind the checkpoint, in order, as bytes.
    pub records: Vec<Vec<u8>>,
    pub last_epoch: u64,
    pub chain: u32,
    /// Ring position behind the last record, counted from the checkpoint's position.
    pub end: u64,
    /// Newest epoch that the medium says is durable.
    pub recorded: u64,
    /// Why the record behind the last one was not accepted, when there was one.
    pub cut: Option<String>,
    /// What ends it cannot be read: it may have been durable.
    pub unread: bool,
    /// An epoch behind the last one that the medium says was durable: the log is damaged.
    pub lost: Option<u64>,
}

/// Reads a block; tries again, as what fails in passing is no damage.
pub(crate) fn read_block(device: &Blocking, at: BlockNo) -> std::result::Result<Vec<u8>, MediaError> {
    let mut block = vec![0; BLOCK_SIZE];
    device.read(at.byte(), &mut block).or_else(|_| device.read(at.byte(), &mut block))?;
    Ok(block)
}

/// Reads into `to` from a block on. `Ok(Err(_))`: this place cannot be read, also when it is tried again, while others can.
pub(crate) fn read_place(
    device: &Blocking,
    at: BlockNo,
    to: &mut [u8],
) -> Result<std::result::Result<(), MediaError>> {
    let Err(failure) = device.read(at.byte(), to) else { return Ok(Ok(())) };
    let of_a_place = matches!(failure, MediaError::Io { .. } | MediaError::Short { .. });
    // One of these was read before.
    let mut known = CHECKPOINTS.into_iter().chain(SUPERBLOCKS);
    if !of_a_place || !known.any(|at| device.read(at.byte(), &mut [0; BLOCK_SIZE]).is_ok()) {
        return Err(failure.into());
    }
    Ok(device.read(at.byte(), to))
}

/// Reads blocks as [`read_place`], each by itself when that is needed. Those that cannot be read become zeros, and are returned.
pub(crate) fn read_places(device: &Blocking, at: BlockNo, to: &mut [u8]) -> Result<BTreeSet<usize>> {
    let mut unread = BTreeSet::new();
    if read_place(device, at, to)?.is_err() {
        for (i, block) in to.chunks_exact_mut(BLOCK_SIZE).enumerate() {
            if read_place(device, BlockNo(at.0 + i as u64), block)?.is_err() {
                block.fill(0);
                unread.insert(i);
            }
        }
    }
    Ok(unread)
}

/// Reads from a position of the ring on, as [`read_place`].
pub(crate) fn read_ring(
    device: &Blocking,
    ring: &LogRing,
    position: u64,
    to: &mut [u8],
) -> Result<std::result::Result<(), MediaError>> {
    for (block, at, n) in ring.parts(position, (to.len() / BLOCK_SIZE) as u64, u64::MAX) {
        let part = &mut to[at as usize * BLOCK_SIZE..][..n as usize * BLOCK_SIZE];
        if let Err(e) = read_place(device, block, part)? {
            return Ok(Err(e));
        }
    }
    Ok(Ok(()))
}

/// Whether a medium can hold neither a volume nor what is left of one that was cut off: that its superblocks tell.
pub(crate) fn is_too_small(device: &Blocking) -> bool {
    let bytes = device.media().geometry().bytes;
    let begins = |at: &BlockNo| read_block(device, *at).is_ok_and(|block| Superblock::parse(&block).is_ok());
    let has_superblocks = bytes >= (SUPERBLOCKS.len() * BLOCK_SIZE) as u64;
    bytes < format::limits::VOLUME_MIN && !(has_superblocks && SUPERBLOCKS.iter().any(begins))
}

/// Reads the superblock, from its copy when the first is damaged.
pub(crate) fn superblock(device: &Blocking) -> Result<Superblock> {
    let geometry = device.media().geometry();
    if is_too_small(device) {
        return Err(Error::NotAVolume(format!("{} is too small to be one", geometry.name)));
    }
    let (mut first, mut unread) = (None, None);
    for at in SUPERBLOCKS {
        let block = match read_block(device, at) {
            Ok(block) => block,
            Err(e) => {
                tracing::warn!("superblock: {e}");
                unread = unread.or(Some(e));
                continue;
            }
        };
        match Superblock::parse(&block) {
            Ok(sb) if sb.blocks.get() * BLOCK_SIZE as u64 <= geometry.bytes => return Ok(sb),
            Ok(_) => {
                return Err(Error::NotAVolume(format!("{} is shorter than the volume on it", geometry.name)));
            }
            Err(e) => first = first.or(Some(e.at(at))),
        }
    }
    if let Some(e) = unread {
        // It may have been good.
        return Err(e.into());
    }
    let e = first.expect("two attempts were made");
    match e.fault {
        format::error::Fault::Magic { .. } => {
            Err(Error::NotAVolume(format!("{} holds no Freehold volume", geometry.name)))
        }
        _ => Err(e.into()),
    }
}

/// Reads superblock, newest checkpoint and table.
pub(crate) fn fixed(device: &Blocking) -> Result<Fixed> {
    let superblock = superblock(device)?;
    let (checkpoint, damaged_checkpoint) = checkpoint(device, &superblock)?;
    let (mut table, mut homes, mut unfinished) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..(checkpoint.inode_segments as usize).div_ceil(ENTRIES_PER_BLOCK) {
        let (home, entries) = table_block(device, &superblock, index, checkpoint.sequence, &mut unfinished)?;
        let used = (checkpoint.inode_segments as usize - index * ENTRIES_PER_BLOCK).min(ENTRIES_PER_BLOCK);
        homes.push((home, entries[..used].iter().map(|s| s.map_or(0, |s| s.0)).collect()));
        table.extend_from_slice(&entries[..used]);
    }
    if format::segtable::table_crc(&table) != checkpoint.table_crc {
        return Err(FormatError::new(
            "inode segment table",
            format::error::Fault::Rule(
                "is not the one that the checkpoint was made with; a home of it is damaged",
            ),
        )
        .into());
    }
    Ok(Fixed { superblock, checkpoint, table, homes, unfinished, damaged_checkpoint })
}

/// The newest checkpoint, and whether the other block is damaged.
fn checkpoint(device: &Blocking, superblock: &Superblock) -> Result<(Checkpoint, bool)> {
    let mut best: Option<Checkpoint> = None;
    let (mut first, mut unread) = (None, None);
    let mut damaged = false;
    for at in CHECKPOINTS {
        let block = match read_block(device, at) {
            Ok(block) => block,
            Err(e) => {
                tracing::warn!("checkpoint: {e}");
                damaged = true;
                unread = unread.or(Some(e));
                continue;
            }
        };
        match Checkpoint::parse(&block, &superblock.uuid, superblock.segments()) {
            Ok(cp) if best.as_ref().is_none_or(|b| b.sequence < cp.sequence) => best = Some(cp),
            Ok(_) => {}
            Err(e) => {
                // Zeros are a block that was never written.
                damaged |= block.iter().any(|&b| b != 0);
                first = first.or(Some(e.at(at)));
            }
        }
    }
    match (best, unread) {
        (Some(best), _) => Ok((best, damaged)),
        (None, Some(e)) => Err(e.into()),
        (None, None) => Err(first.expect("none was valid").into()),
    }
}

fn table_block(
    device: &Blocking,
    superblock: &Superblock,
    index: usize,
    sequence: u64,
    unfinished: &mut Vec<BlockNo>,
) -> Result<(u8, Vec<Option<SegNo>>)> {
    let mut best: Option<(u64, u8, Vec<Option<SegNo>>)> = None;
    let (mut error, mut unread) = (None, None);
    for (home, at) in format::segtable::homes(index).into_iter().enumerate() {
        let block = match read_block(device, at) {
            Ok(block) => block,
            Err(e) => {
                tracing::warn!("inode segment table: {e}");
                unread = unread.or(Some(e));
                unfinished.push(at);
                continue;
            }
        };
        match format::segtable::parse(&block, &superblock.uuid, index, superblock.segments()) {
            Ok((seq, entries)) if seq <= sequence && best.as_ref().is_none_or(|b| b.0 < seq) => {
                best = Some((seq, home as u8, entries));
            }
            Ok((seq, _)) if seq > sequence => unfinished.push(at),
            Ok(_) => {}
            Err(e) => error = error.or(Some(e.at(at))),
        }
    }
    match (best, unread) {
        (Some((_, home, entries)), _) => Ok((home, entries)),
        (None, Some(e)) => Err(e.into()),
        (None, None) => Err(error
            .unwrap_or_else(|| {
                FormatError::new(
                    "inode segment table",
                    format::error::Fault::Rule("no home is as old as the checkpoint"),
                )
                .at(format::segtable::homes(index)[0])
            })
            .into()),
    }
}

/// Reads the log and finds its longest prefix of whole epochs: first the records that are chained and whole, then, for epochs
/// that nothing on the medium says to be durable, the checksums of the data that they cover.
pub(crate) fn log(
    device: &Blocking,
    checkpoint: &Checkpoint,
    uuid: &[u8; 16],
    blocks: u64,
) -> Result<LogTail> {
    let ring = LogRing { segments: checkpoint.log_segments.clone(), head: 0, tail: 0, chain: 0, nonce: 0 };
    let mut tail = LogTail {
        records: Vec::new(),
        last_epoch: checkpoint.epoch.0,
        chain: checkpoint.chain,
        end: 0,
        recorded: checkpoint.durable_epoch.0,
        cut: None,
        unread: false,
        lost: None,
    };
    let mut ends: Vec<(u64, u64, u32)> = Vec::new();
    loop {
        let position = checkpoint.log_position + tail.end;
        if tail.end >= ring.capacity() {
            break;
        }
        let epoch = Epoch(tail.last_epoch + 1);
        let mut first = vec![0; BLOCK_SIZE];
        if let Err(e) = read_place(device, ring.block(position), &mut first)? {
            // There may be a record, or nothing.
            tail.cut = Some(format!("record of {epoch:?}, if there is one: {e}"));
            tail.unread = true;
            break;
        }
        let Some(count) = probe(&first, uuid, epoch, tail.chain) else { break };
        if tail.end + count as u64 > ring.capacity() {
            tail.cut = Some(format!("record of {epoch:?} is longer than the log"));
            break;
        }
        let mut bytes = vec![0; count as usize * BLOCK_SIZE];
        if let Err(e) = read_ring(device, &ring, position, &mut bytes)? {
            tail.cut = Some(format!("record of {epoch:?}: {e}"));
            tail.unread = true;
            break;
        }
        match Record::parse(&bytes) {
            Ok(record) => {
                tail.chain = record.header.crc.get();
                tail.recorded = tail.recorded.max(record.header.durable_epoch.get().min(epoch.0 - 1));
            }
            Err(e) => {
                tail.cut = Some(format!("record of {epoch:?}: {e}"));
                break;
            }
        }
        tail.last_epoch = epoch.0;
        tail.end += count as u64;
        tail.records.push(bytes);
        ends.push((tail.last_epoch, tail.end, tail.chain));
    }
    for i in 0..tail.records.len() {
        let epoch = ends[i].0;
        if epoch <= tail.recorded {
            continue;
        }
        let record = Record::parse(&tail.records[i])?;
        if let Err(why) = verify(device, &record, blocks, &mut tail.unread) {
            let why = why?;
            tail.cut = Some(format!("data of {:?}: {why}", Epoch(epoch)));
            tail.records.truncate(i);
            let before = if i > 0 { ends[i - 1] } else { (checkpoint.epoch.0, 0, checkpoint.chain) };
            (tail.last_epoch, tail.end, tail.chain) = before;
            break;
        }
    }
    tail.lost = (tail.recorded > tail.last_epoch).then_some(tail.recorded);
    if tail.lost.is_none() {
        // After a clean stop nothing stands behind; only the place of the next record is looked at then.
        let limit = if checkpoint.clean && tail.end == 0 {
            ring.record_max() as u64 / BLOCK_SIZE as u64
        } else {
            ring.capacity()
        };
        let all_read = scan_ring(
            device,
            checkpoint,
            uuid,
            tail.end,
            limit,
            |_, bytes| {
                let durable = Record::parse(bytes).map_or(0, |r| r.header.durable_epoch.get());
                if durable > tail.last_epoch {
                    tail.lost = tail.lost.max(Some(durable));
                }
                tail.lost.is_none()
            },
            tail.last_epoch,
        )?;
        // What cannot be read might have said that what is damaged was durable.
        tail.unread |= tail.cut.is_some() && !all_read;
    }
    Ok(tail)
}

/// Looks for whole records of later epochs behind ring position `from` (counted from the checkpoint's) and calls
/// `each(position, bytes)` until it returns false. Such records are leftovers of epochs that were on their way when power
/// failed, or what damage has cut off; a record that says that a lost epoch was durable proves the latter. Blocks that cannot be
/// read hold nothing; whether there are none. What looks like a record within a whole one is contents of a file. Records do not
/// overlap, so of what headers promise no more is read than twice the ring holds.
pub(crate) fn scan_ring(
    device: &Blocking,
    checkpoint: &Checkpoint,
    uuid: &[u8; 16],
    from: u64,
    limit: u64,
    mut each: impl FnMut(u64, &[u8]) -> bool,
    last_epoch: u64,
) -> Result<bool> {
    let mut all_read = true;
    let ring = LogRing { segments: checkpoint.log_segments.clone(), head: 0, tail: 0, chain: 0, nonce: 0 };
    let end = ring.capacity().min(from.saturating_add(limit));
    let mut found: Vec<(u64, u64)> = Vec::new();
    let mut bytes = vec![0; 1 << 20];
    let mut at = from;
    while at < end {
        let n = (end - at).min((bytes.len() / BLOCK_SIZE) as u64);
        let position = checkpoint.log_position + at;
        let piece = &mut bytes[..n as usize * BLOCK_SIZE];
        if read_ring(device, &ring, position, piece)?.is_err() {
            for (i, block) in piece.chunks_exact_mut(BLOCK_SIZE).enumerate() {
                if read_ring(device, &ring, position + i as u64, block)?.is_err() {
                    all_read = false;
                    block.fill(0);
                }
            }
        }
        for (i, block) in piece.chunks_exact(BLOCK_SIZE).enumerate() {
            if let Some((epoch, blocks)) = format::log::probe_any(block, uuid)
                && epoch.0 > last_epoch
                && blocks as u64 <= ring.capacity()
            {
                found.push((position + i as u64, blocks as u64));
            }
        }
        at += n;
    }
    let (mut left, mut behind) = (2 * ring.capacity(), 0);
    for (position, count) in found {
        if position < behind || count > left {
            continue;
        }
        left -= count;
        let mut record = vec![0; count as usize * BLOCK_SIZE];
        if read_ring(device, &ring, position, &mut record)?.is_err() || Record::parse(&record).is_err() {
            continue;
        }
        behind = position + count;
        if !each(position, &record) {
            break;
        }
    }
    Ok(all_read)
}

/// Checks the data that a record covers: `Err(Ok(why))` when it is not what was written or cannot be read there (`unread`),
/// `Err(Err(_))` when the device fails as a whole.
pub(crate) fn verify(
    device: &Blocking,
    record: &Record<'_>,
    blocks: u64,
    unread: &mut bool,
) -> std::result::Result<(), Result<String>> {
    let mut bytes = Vec::new();
    for cover in record.covers {
        let (first, count) = (cover.block.get(), cover.count.get() as usize);
        if first.checked_add(count as u64).is_none_or(|end| end > blocks) {
            return Err(Ok(format!("covers block {first}, beyond the volume")));
        }
        let mut crcs = Vec::with_capacity(count);
        let mut at = 0;
        while at < count {
            let n = (count - at).min(2 * SEGMENT_BLOCKS);
            bytes.resize(n * BLOCK_SIZE, 0);
            if let Err(e) = read_place(device, BlockNo(first + at as u64), &mut bytes).map_err(Err)? {
                *unread = true;
                return Err(Ok(e.to_string()));
            }
            crcs.extend(bytes.chunks_exact(BLOCK_SIZE).map(crc32c));
            at += n;
        }
        if cover_crc(&crcs) != cover.data_crc.get() {
            return Err(Ok(format!("{count} blocks at {first} are not what the record covers")));
        }
    }
    Ok(())
}
