//! The fixed structures, read leniently: superblocks, checkpoints, inode segment table, log.
//!
//! The log is taken as mount takes it: the longest prefix of whole epochs. Only when something proves that a durable epoch
//! lies behind its end (a checkpoint, a slot, or a later record says so), what can still be read of those epochs is
//! taken too.

use super::Pass;
use super::report::{Problem, Severity};
use crate::load;
use crate::ring::LogRing;
use format::checkpoint::{CHECKPOINTS, Checkpoint};
use format::limits::{BLOCK_SIZE, INODE_SEGMENTS_MAX};
use format::log::Record;
use format::segtable::{ENTRIES_PER_BLOCK, homes};
use format::superblock::{SUPERBLOCKS, Superblock};
use format::{BlockNo, Ino, SegNo};
use fs::Result;
use media::MediaError;
use media::blocking::Blocking;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use zerocopy::IntoBytes;

/// What the fixed structures say.
pub(super) struct Base {
    pub superblock: Superblock,
    /// Superblocks to be written from the good one.
    pub bad_superblocks: Vec<BlockNo>,
    pub checkpoint: Checkpoint,
    /// The inode segment table on the medium, and with the log's assignments.
    pub medium_table: Vec<Option<SegNo>>,
    pub table: Vec<Option<SegNo>>,
    /// Current home of each block of the table.
    pub homes: Vec<usize>,
    /// Homes that hold neither a table nor zeros, or cannot be read, with the table block they belong to.
    pub bad_homes: Vec<(usize, usize)>,
    /// Homes that do not count, but would, by their number, after the next checkpoints: those of one that did not finish; also those that
    /// cannot be read, which may be such.
    pub unfinished: Vec<BlockNo>,
    home_faults: Vec<(usize, usize, Problem)>,
    /// Table positions whose segments the log assigned: their slots were never written.
    pub fresh: BTreeSet<usize>,
    /// The newest image of each inode in the log.
    pub images: HashMap<u64, Vec<u8>>,
    /// Pages of the log, by block.
    pub pages: BTreeMap<u64, Vec<u8>>,
    pub last_epoch: u64,
    pub chain: u32,
    /// Ring position behind the log.
    pub end: u64,
    /// The log holds something that is not in its home place.
    pub log_pending: bool,
    /// What ends the log cannot be read, and stands in the way of a mount.
    pub unread_log: bool,
    /// A checkpoint must be written to put something in order.
    pub rewrite: bool,
    /// The index checkpoint can be trusted, if there is one.
    pub clean: bool,
    /// Images of epochs that were cut off, taken in only where they are newer than the slot.
    pub salvaged: bool,
}

fn is_zero(block: &[u8]) -> bool {
    block.iter().all(|&b| b == 0)
}

impl Base {
    /// Where the slot of an inode is.
    pub fn slot(&self, ino: u64) -> Option<BlockNo> {
        let segment = (*self.table.get(Ino(ino).table_index())?)?;
        Some(format::inode::slot_block(segment, Ino(ino)))
    }
}

/// Reads a block as [`load::read_place`].
fn read_block(device: &Blocking, at: BlockNo) -> Result<std::result::Result<Vec<u8>, MediaError>> {
    let mut block = vec![0; BLOCK_SIZE];
    Ok(load::read_place(device, at, &mut block)?.map(|()| block))
}

/// A block cannot be read, which is damage like any other.
fn unread(structure: &'static str, at: BlockNo, e: &MediaError) -> Problem {
    Problem::damage(structure, format!("cannot be read: {e}")).block(at.0)
}

/// Reads everything fixed. `evidence`: an epoch that slots show to have been durable.
pub(super) fn read(pass: &mut Pass<'_>, evidence: u64) -> Result<Option<Base>> {
    let Some((superblock, bad_superblocks)) = superblocks(pass)? else { return Ok(None) };
    let Some((checkpoint, bad)) = checkpoints(pass, &superblock)? else { return Ok(None) };
    let bad_checkpoint = !bad.is_empty();
    let mut base = Base {
        superblock,
        bad_superblocks,
        last_epoch: checkpoint.epoch.0,
        chain: checkpoint.chain,
        end: checkpoint.log_position,
        clean: checkpoint.clean && !bad_checkpoint,
        checkpoint,
        medium_table: Vec::new(),
        table: Vec::new(),
        homes: Vec::new(),
        bad_homes: Vec::new(),
        unfinished: Vec::new(),
        home_faults: Vec::new(),
        fresh: BTreeSet::new(),
        images: HashMap::new(),
        pages: BTreeMap::new(),
        log_pending: false,
        unread_log: false,
        rewrite: false,
        salvaged: false,
    };
    let mut segments = BTreeSet::new();
    for s in &base.checkpoint.log_segments {
        if !segments.insert(s.0) {
            pass.report.add(Problem::new(
                Severity::Fatal,
                "checkpoint",
                format!("{s:?} stands twice in the log ring"),
            ));
            return Ok(None);
        }
    }
    let whole = table(pass, &mut base)?;
    base.table = base.medium_table.clone();
    log(pass, &mut base, evidence)?;
    torn(pass, &mut base, bad);
    if !whole {
        super::rebuild::table(pass, &mut base)?;
    }
    Ok(Some(base))
}

fn superblocks(pass: &mut Pass<'_>) -> Result<Option<(Superblock, Vec<BlockNo>)>> {
    let geometry = pass.device.media().geometry().clone();
    if load::is_too_small(pass.device) {
        return Err(fs::Error::NotAVolume(format!("{} is too small to be one", geometry.name)));
    }
    let mut good: Option<Superblock> = None;
    let mut bad = Vec::new();
    for at in SUPERBLOCKS {
        let block = match read_block(pass.device, at)? {
            Ok(block) => block,
            Err(e) => {
                pass.report.add(unread("superblock", at, &e));
                bad.push(at);
                continue;
            }
        };
        match Superblock::parse(&block) {
            Ok(sb) if sb.blocks.get() * BLOCK_SIZE as u64 > geometry.bytes => {
                pass.report.add(
                    Problem::new(
                        Severity::Fatal,
                        "superblock",
                        "the medium is shorter than the volume on it",
                    )
                    .block(at.0)
                    .values(sb.blocks.get() * BLOCK_SIZE as u64, geometry.bytes),
                );
                return Ok(None);
            }
            Ok(sb) => match &good {
                Some(first) if first.as_bytes() != sb.as_bytes() => {
                    pass.report.add(Problem::damage("superblock", "differs from the first one").block(at.0));
                    bad.push(at);
                }
                Some(_) => {}
                None => good = Some(sb),
            },
            Err(e) => {
                pass.report.add(Problem::from_format(Severity::Damage, &e.at(at)));
                bad.push(at);
            }
        }
    }
    match good {
        Some(sb) => Ok(Some((sb, bad))),
        None => {
            pass.report.add(Problem::new(
                Severity::Fatal,
                "superblock",
                "neither of the two can be used: this is no Freehold volume, or one of another version",
            ));
            Ok(None)
        }
    }
}

/// A checkpoint or table block that was being written when power failed may be torn, where the device's atomic unit is
/// smaller than a block. That is no damage: the block did not count yet.
fn torn(pass: &mut Pass<'_>, base: &mut Base, checkpoints: Vec<Problem>) {
    let running = base.log_pending || !base.checkpoint.clean;
    let may_tear = running && !base.salvaged && (base.superblock.atomic_unit.get() as usize) < BLOCK_SIZE;
    for mut p in checkpoints {
        if may_tear {
            p.severity = Severity::Note;
        } else {
            base.rewrite = true;
        }
        pass.report.add(p);
    }
    let assigned: BTreeSet<usize> = base.fresh.iter().map(|i| i / ENTRIES_PER_BLOCK).collect();
    for (index, home, mut p) in std::mem::take(&mut base.home_faults) {
        if may_tear && assigned.contains(&index) {
            p.severity = Severity::Note;
        } else {
            base.bad_homes.push((index, home));
        }
        pass.report.add(p);
    }
}

fn checkpoints(pass: &mut Pass<'_>, superblock: &Superblock) -> Result<Option<(Checkpoint, Vec<Problem>)>> {
    let mut good: Vec<(Checkpoint, BlockNo)> = Vec::new();
    let mut bad = Vec::new();
    let mut zero = None;
    for (i, at) in CHECKPOINTS.into_iter().enumerate() {
        let block = match read_block(pass.device, at)? {
            Ok(block) => block,
            Err(e) => {
                bad.push(unread("checkpoint", at, &e));
                continue;
            }
        };
        match Checkpoint::parse(&block, &superblock.uuid, superblock.segments()) {
            Ok(cp)
                if cp.sequence % 2 != i as u64 || cp.sequence > u64::MAX / 2 || cp.epoch.0 > u64::MAX / 2 =>
            {
                bad.push(Problem::damage("checkpoint", "stands in the other's place").block(at.0));
            }
            Ok(cp) => good.push((cp, at)),
            Err(_) if is_zero(&block) => zero = Some(at),
            Err(e) => bad.push(Problem::from_format(Severity::Damage, &e.at(at))),
        }
    }
    good.sort_by_key(|(cp, _)| cp.sequence);
    let Some((newest, _)) = good.pop() else {
        bad.into_iter().for_each(|p| pass.report.add(p));
        pass.report.add(Problem::new(Severity::Fatal, "checkpoint", "neither of the two can be used"));
        return Ok(None);
    };
    if let Some(at) = zero.filter(|_| newest.sequence > 1) {
        bad.push(Problem::damage("checkpoint", "is empty").block(at.0));
    }
    Ok(Some((newest, bad)))
}

/// A valid home of a table block: which of the two, its sequence number, its entries.
type HomeFound = (usize, u64, Vec<Option<SegNo>>);

/// Reads the table; false when it is not the one that the checkpoint was made with.
fn table(pass: &mut Pass<'_>, base: &mut Base) -> Result<bool> {
    let (uuid, segments) = (base.superblock.uuid, base.superblock.segments());
    let used = base.checkpoint.inode_segments as usize;
    // The homes of each block: the current one first, as mount chooses.
    let mut choices: Vec<Vec<HomeFound>> = Vec::new();
    let mut unreadable = Vec::new();
    for index in 0..used.div_ceil(ENTRIES_PER_BLOCK) {
        let mut found = Vec::new();
        for (home, at) in homes(index).into_iter().enumerate() {
            let block = match read_block(pass.device, at)? {
                Ok(block) => block,
                Err(e) => {
                    base.home_faults.push((index, home, unread("inode segment table", at, &e)));
                    unreadable.push(at);
                    continue;
                }
            };
            match format::segtable::parse(&block, &uuid, index, segments) {
                Ok((sequence, entries)) => found.push((home, sequence, entries)),
                Err(_) if is_zero(&block) => {}
                Err(e) => {
                    base.home_faults.push((index, home, Problem::from_format(Severity::Damage, &e.at(at))));
                }
            }
        }
        found.sort_by_key(|(home, sequence, _)| {
            (*sequence > base.checkpoint.sequence, u64::MAX - sequence, *home)
        });
        choices.push(found);
    }
    let pick = |flip: Option<usize>| -> (Vec<usize>, Vec<Option<SegNo>>) {
        let (mut homes, mut table) = (Vec::new(), Vec::new());
        for (index, found) in choices.iter().enumerate() {
            let chosen = found.get((flip == Some(index)) as usize).or(found.first());
            homes.push(chosen.map_or(0, |c| c.0));
            match chosen {
                Some(c) => table.extend_from_slice(&c.2),
                None => table.resize(table.len() + ENTRIES_PER_BLOCK, None),
            }
        }
        table.truncate(used);
        (homes, table)
    };
    for flip in std::iter::once(None).chain((0..choices.len()).map(Some)) {
        let (homes, table) = pick(flip);
        if format::segtable::table_crc(&table) == base.checkpoint.table_crc {
            for (index, (found, &chosen)) in choices.iter().zip(&homes).enumerate() {
                let number =
                    found.iter().find(|(home, ..)| *home == chosen).map_or(0, |(_, number, _)| *number);
                let newer = found.iter().filter(|(home, other, _)| *home != chosen && *other >= number);
                base.unfinished.extend(newer.map(|(home, ..)| format::segtable::homes(index)[*home]));
            }
            base.unfinished.append(&mut unreadable);
            (base.homes, base.medium_table) = (homes, table);
            return Ok(true);
        }
    }
    pass.report.add(Problem::damage(
        "inode segment table",
        "is not the one that the checkpoint was made with; it can be rebuilt from the inodes",
    ));
    (base.homes, base.medium_table) = pick(None);
    Ok(false)
}

fn log(pass: &mut Pass<'_>, base: &mut Base, evidence: u64) -> Result<()> {
    let cp = base.checkpoint.clone();
    let (uuid, blocks) = (base.superblock.uuid, base.superblock.blocks.get());
    let tail = match load::log(pass.device, &cp, &uuid, blocks) {
        Ok(tail) => tail,
        Err(fs::Error::Media(e)) => {
            pass.report.add(Problem::new(Severity::Fatal, "log", format!("cannot be read: {e}")));
            return Err(fs::Error::Media(e));
        }
        Err(e) => return Err(e),
    };
    pass.report.log_cut = tail.cut.clone();
    base.unread_log = tail.unread;
    if let (Some(cut), true) = (&tail.cut, tail.unread) {
        pass.report.add(Problem::damage("log", format!("cannot be read, and may have been durable: {cut}")));
    } else if let Some(cut) = &tail.cut {
        pass.report.add(Problem::new(
            Severity::Note,
            "log",
            format!("ends behind epoch {}, as it does after a loss of power: {cut}", tail.last_epoch),
        ));
    }
    (base.last_epoch, base.chain, base.end) = (tail.last_epoch, tail.chain, cp.log_position + tail.end);
    base.log_pending = !tail.records.is_empty();
    pass.report.counts.log_epochs = tail.records.len() as u64;
    let reached = tail.last_epoch;
    for bytes in &tail.records {
        take_record(pass, base, &Record::parse(bytes)?);
    }
    drop(tail.records);
    let lost = tail.lost.unwrap_or(0).max(evidence);
    if lost > reached {
        salvage(pass, base, lost, tail.end)?;
    }
    base.clean &= !base.log_pending && tail.cut.is_none();
    pass.report.counts.log_pages = base.pages.len() as u64;
    Ok(())
}

/// Takes in what can be read of epochs that were durable and are cut off from the log. `proven`: one of them.
fn salvage(pass: &mut Pass<'_>, base: &mut Base, proven: u64, from: u64) -> Result<()> {
    let cp = base.checkpoint.clone();
    let ring = LogRing { segments: cp.log_segments.clone(), head: 0, tail: 0, chain: 0, nonce: 0 };
    let reached = base.last_epoch;
    let mut lost = proven;
    // Of records of one epoch the one that was made last counts: an epoch that did not come to count is made again.
    let mut found: BTreeMap<u64, (u64, u64, u64)> = BTreeMap::new();
    load::scan_ring(
        pass.device,
        &cp,
        &base.superblock.uuid,
        from,
        u64::MAX,
        |position, bytes| {
            if let Ok(record) = Record::parse(bytes) {
                let (h, epoch) = (record.header, record.epoch().0);
                // The first that proves something lost is not the last that does.
                lost = lost.max(h.durable_epoch.get().min(epoch - 1));
                let this = (h.time.get(), position, h.blocks.get() as u64);
                found.entry(epoch).and_modify(|other| *other = this.max(*other)).or_insert(this);
            }
            true
        },
        reached,
    )?;
    let (mut kept, mut left_out) = (0, 0);
    let mut chain = None;
    for (epoch, (_, position, blocks)) in found {
        let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
        let read = load::read_ring(pass.device, &ring, position, &mut bytes)?;
        let (Ok(()), Ok(record)) = (read, Record::parse(&bytes)) else { continue };
        // Beyond what was durable there may be leftovers, so there a record counts as it does in a whole log.
        let durable = epoch <= lost;
        if !durable && !goes_on(pass, base, &record, chain)? {
            left_out += 1;
            chain = None;
            // Its number must not be given out again.
            base.last_epoch = base.last_epoch.max(epoch.min(lost.saturating_add(1 << 32)));
            continue;
        }
        take_record(pass, base, &record);
        base.last_epoch = base.last_epoch.max(epoch);
        chain = Some(record.header.crc.get());
        kept += durable as u64;
    }
    let missing = (lost - reached).saturating_sub(kept);
    let mut gone = format!("what only the log held of {missing} epochs; {kept} could still be read");
    if left_out > 0 {
        gone += &format!("; {left_out} behind them, of which nothing says that they were durable");
    }
    pass.report.add(
        Problem::damage(
            "log",
            format!("epochs {} to {lost} were durable, but the log is damaged there", reached + 1),
        )
        .values(format!("epoch {lost}"), format!("epoch {reached}"))
        .lost(gone),
    );
    base.salvaged = true;
    base.rewrite = true;
    base.clean = false;
    base.log_pending = true;
    base.chain = rand::random();
    Ok(())
}

/// Whether a record follows the last one that was taken in, and the data that it covers is there.
fn goes_on(pass: &Pass<'_>, base: &Base, record: &Record<'_>, chain: Option<u32>) -> Result<bool> {
    if record.epoch().0 != base.last_epoch + 1 || chain != Some(record.header.chain.get()) {
        return Ok(false);
    }
    let blocks = base.superblock.blocks.get();
    match load::verify(pass.device, record, blocks, &mut false) {
        Err(Err(e)) => Err(e),
        outcome => Ok(outcome.is_ok()),
    }
}

fn take_record(pass: &mut Pass<'_>, base: &mut Base, record: &Record<'_>) {
    let epoch = record.epoch().0;
    let mut bad = |what: String| {
        pass.report.add(Problem::damage("log", format!("record of epoch {epoch}: {what}")));
        base.rewrite = true;
    };
    let segments = base.superblock.segments();
    for a in record.assignments {
        let (index, segment) = (a.index.get() as usize, a.segment.get());
        if index >= INODE_SEGMENTS_MAX || segment >= segments {
            bad(format!("assigns segment {segment} to position {index} of the inode segment table"));
            continue;
        }
        if base.table.len() <= index {
            base.table.resize(index + 1, None);
        }
        base.table[index] = (segment != 0).then_some(SegNo(segment));
        base.fresh.insert(index);
    }
    for image in record.inodes() {
        match image {
            Ok((bytes, view)) => drop(base.images.insert(view.ino().0, bytes.to_vec())),
            Err(e) => bad(format!("inode image: {e}")),
        }
    }
    crate::recover::drop_overtaken(&mut base.pages, record);
    for (i, page) in record.pages.iter().enumerate() {
        if page.block.get() >= base.superblock.blocks.get() {
            bad(format!("page of block {}, beyond the volume", page.block.get()));
            continue;
        }
        base.pages.insert(page.block.get(), record.page(i).to_vec());
    }
}
