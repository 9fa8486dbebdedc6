//! Opening a volume: building everything in memory from what the medium holds.
//!
//! After a clean stop the index checkpoint gives inodes and usage (clean.rs). Otherwise the inode segments are scanned at
//! full queue depth, and the log's images take the place of what stands in their slots. The log is not replayed to the
//! slots: its inodes are simply "changed since the last checkpoint" and the next checkpoint writes them. Only logged page
//! images are written to their blocks at once, after one checkpoint block says that all accepted epochs are durable.
//! A record that was not accepted is destroyed, so that it cannot come to be accepted later.
//! A crash in the middle of this repeats it: the log stays whole until that next checkpoint.

use crate::core::{Core, Logged, OpenOptions};
use crate::derive::Builder;
use crate::epoch::Running;
use crate::index::Index;
use crate::load::{self, Fixed, LogTail};
use crate::ring::LogRing;
use crate::scratch::Scratch;
use crate::slab::Slab;
use crate::space::{Run, Space};
use format::checkpoint::CHECKPOINTS;
use format::limits::{BLOCK_SIZE, SEGMENT_BLOCKS};
use format::log::Record;
use format::{BlockNo, Epoch, Ino, SegNo};
use fs::cache::PageCache;
use fs::{Error, Result};
use media::blocking::Blocking;
use media::{Arena, Media};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Memory for records, inode blocks and extent nodes on their way.
const SCRATCH_BYTES: usize = 48 << 20;
const MIN_CACHE: usize = 1 << 20;

fn arena(media: &dyn Media, bytes: usize) -> Result<Arc<Arena>> {
    let arena = Arena::new(bytes).map_err(|e| media::MediaError::Setup {
        device: media.geometry().name.clone(),
        doing: "allocating memory for transfers",
        errno: e.raw_os_error().unwrap_or(12),
    })?;
    Ok(Arc::new(arena))
}

/// Opens the volume on `media`. Everything that fails leaves the medium as it was, but for page images of accepted epochs.
pub(crate) fn open(media: Arc<dyn Media>, options: OpenOptions) -> Result<Core> {
    let device = Blocking::new(media.clone())?;
    let fixed = load::fixed(&device)?;
    let blocks = fixed.superblock.blocks.get();
    let log = load::log(&device, &fixed.checkpoint, &fixed.superblock.uuid, blocks)?;
    if let Some(cut) = &log.cut {
        tracing::info!("{}: log ends behind {:?}: {cut}", media.geometry().name, Epoch(log.last_epoch));
    }
    if let Some(lost) = log.lost {
        tracing::error!(
            "{}: log ends behind {:?}, but {:?} was durable",
            media.geometry().name,
            Epoch(log.last_epoch),
            Epoch(lost)
        );
        return Err(damage("log record", "the log is damaged: epochs that were durable are missing"));
    }
    if log.unread {
        tracing::error!(
            "{}: the log ends where it cannot be read; a repair gives up what is there",
            media.geometry().name
        );
        return Err(damage("log record", "cannot be read, and may have been durable"));
    }
    let mut core = new_core(media, options, &fixed, &log)?;
    let clean =
        fixed.checkpoint.clean && log.records.is_empty() && log.cut.is_none() && !fixed.damaged_checkpoint;
    let loaded = clean && fixed.checkpoint.index_pieces > 0 && load_index(&mut core, &device, &fixed)?;
    if !loaded {
        reset(&mut core, &fixed);
        scan(&mut core, &device, &fixed, &log)?;
    }
    if clean {
        core.stops = fixed.checkpoint.stops;
        core.slab.generation_before = fixed.checkpoint.generation;
    }
    let total = core.space.total();
    core.keep_min = (total / 64).min(2048);
    if !core.read_only && log.cut.is_some() {
        destroy_cut(&device, &core.log, log.end)?;
    }
    if !log.records.is_empty() {
        take_over_log(&mut core, &device, &fixed, &log)?;
    }
    Ok(core)
}

fn load_index(core: &mut Core, device: &Blocking, fixed: &Fixed) -> Result<bool> {
    match crate::clean::load_index(core, device, fixed) {
        Ok(()) => Ok(true),
        Err(e @ (Error::Corrupt(_) | Error::Media(_))) => {
            tracing::warn!("{}: index checkpoint not usable, scanning inodes: {e}", core.geometry.name);
            Ok(false)
        }
        Err(e) => Err(e),
    }
}

/// Forgets what a damaged index checkpoint has brought.
fn reset(core: &mut Core, fixed: &Fixed) {
    core.slab = Slab::default();
    core.index = Index::new(rand::random());
    core.space = Space::new(fixed.superblock.segments());
}

fn new_core(media: Arc<dyn Media>, options: OpenOptions, fixed: &Fixed, log: &LogTail) -> Result<Core> {
    let geometry = media.geometry().clone();
    let cache_arena = arena(&*media, options.cache_bytes.max(MIN_CACHE))?;
    let cache_id = media.register(cache_arena.clone())?;
    let ring = LogRing {
        segments: fixed.checkpoint.log_segments.clone(),
        head: fixed.checkpoint.log_position + log.end,
        tail: fixed.checkpoint.log_position,
        chain: log.chain,
        nonce: rand::random(),
    };
    let scratch_arena = arena(&*media, SCRATCH_BYTES.min(4 * ring.record_max() + (8 << 20)))?;
    let scratch_id = media.register(scratch_arena.clone())?;
    Ok(Core {
        geometry,
        uuid: fixed.superblock.uuid,
        opening: rand::random::<u64>() | 1,
        apart: crate::inode::apart(),
        stops: [0; 4],
        strict: fixed.superblock.strict.get() == 1,
        read_only: options.read_only,
        latched: None,
        closing: false,
        closed: false,
        starving: Arc::default(),
        look_again: false,
        slab: Slab::default(),
        index: Index::new(rand::random()),
        space: Space::new(fixed.superblock.segments()),
        keep_min: 0,
        nodes: 0,
        handles: Default::default(),
        cache: PageCache::new(cache_arena),
        cache_arena: cache_id,
        scratch: Scratch::new(scratch_arena, scratch_id),
        ios: Default::default(),
        frames_in_flight: 0,
        bad_reads: Default::default(),
        loading: Default::default(),
        tails: VecDeque::new(),
        tails_to_look_at: 0,
        closes_for_checkpoint: false,
        orphans: Vec::new(),
        discards: Default::default(),
        looked_at: std::time::Duration::ZERO,
        orphans_until: options.clock.monotonic() + options.orphans_kept,
        running: Running::new(log.last_epoch + 1),
        record_memory: Vec::new(),
        ordered: 0,
        epochs: VecDeque::new(),
        log: ring,
        durable: log.last_epoch,
        recorded: fixed.checkpoint.durable_epoch.0.max(log.recorded),
        flush_in_flight: false,
        flush_wanted: 0,
        synced_at: None,
        flushes_due: BTreeSet::new(),
        close_wanted: false,
        refused: None,
        refusals: 0,
        guards: BTreeMap::new(),
        guard_epochs: VecDeque::new(),
        writing: Default::default(),
        mark_due: None,
        directs: Default::default(),
        gathered: None,
        logged: Default::default(),
        held: Vec::new(),
        checkpoint: fixed.checkpoint.clone(),
        checkpointing: None,
        checkpoint_wanted: false,
        checkpoint_hurry: false,
        driving: Default::default(),
        identity: 0,
        checkpoints_done: 0,
        since_checkpoint: Vec::new(),
        table_homes: fixed.homes.clone(),
        waiters: Default::default(),
        durable_waiters: Vec::new(),
        group: Default::default(),
        woken: Vec::new(),
        kick: false,
        wake_worker: false,
        worker_deadline: None,
        counters: Default::default(),
        options,
        media,
    })
}

/// Builds the state from the inode segments and the log's images.
fn scan(core: &mut Core, device: &Blocking, fixed: &Fixed, log: &LogTail) -> Result<()> {
    let mut builder = Builder::new(core, &fixed.checkpoint.log_segments)?;
    let mut table = fixed.table.clone();
    let mut from_log = Vec::new();
    for bytes in &log.records {
        let record = Record::parse(bytes)?;
        for a in record.assignments {
            let index = a.index.get() as usize;
            if index >= format::limits::INODE_SEGMENTS_MAX {
                return Err(damage("log record", "assigns a position beyond the inode segment table"));
            }
            if table.len() <= index {
                table.resize(index + 1, None);
            }
            table[index] = (a.segment.get() != 0).then_some(format::SegNo(a.segment.get()));
            from_log.push((index, table[index]));
        }
        for image in record.inodes() {
            let (bytes, view) = image?;
            builder.image(view.ino(), bytes);
        }
    }
    for (index, segment) in table.iter().enumerate() {
        if let Some(segment) = segment {
            let initialized = fixed.table.get(index).copied().flatten() == Some(*segment)
                && !from_log.iter().any(|(i, s)| *i == index && *s == Some(*segment));
            builder.chunk(index as u32, *segment, initialized)?;
        }
    }
    const PIECE: usize = 128;
    let mut ranges = Vec::new();
    let mut first_slots = Vec::new();
    for (index, segment) in table.iter().enumerate() {
        let Some(segment) = segment else { continue };
        if !builder.is_initialized(index as u32) {
            continue;
        }
        for at in (0..SEGMENT_BLOCKS).step_by(PIECE) {
            ranges.push((BlockNo(segment.first_block().0 + at as u64).byte(), PIECE * BLOCK_SIZE));
            first_slots.push((index * SEGMENT_BLOCKS + at) as u32);
        }
    }
    device.read_many(&ranges, |i, bytes| -> Result<()> {
        for (j, block) in bytes.chunks_exact(BLOCK_SIZE).enumerate() {
            builder.slot(
                Ino(first_slots[i] as u64 + j as u64),
                block,
                ranges[i].0 + (j * BLOCK_SIZE) as u64,
            )?;
        }
        Ok(())
    })?;
    builder.finish(device)
}

/// Makes the record behind the last accepted one unreadable. Its epoch is lost; but if its data came to be written again,
/// by the same program to the same blocks, before the next record takes its place, it would be found whole after another
/// crash, and what everybody saw to be lost would be back. Records further behind are chained to one that is gone, and no
/// record that will be written is equal to it ([`LogRing::nonce`]).
pub(crate) fn destroy_cut(device: &Blocking, ring: &LogRing, end: u64) -> Result<()> {
    if end < ring.capacity() {
        let at = ring.block(ring.head);
        let mut block = [0; BLOCK_SIZE];
        if load::read_place(device, at, &mut block)?.is_err() {
            // To be written makes it readable again. It is no longer what it was, and with noise in it completes no record.
            block = std::array::from_fn(|_| rand::random());
        }
        // Otherwise nothing but the sector of the header changes: were this write torn in the middle of other changes, it
        // could complete a record that had been torn.
        block[..512].fill(0);
        device.write(at.byte(), &block)?;
        device.flush()?;
    }
    Ok(())
}

/// Forgets images of blocks that this record, a later one, gives new contents without an image. A block that has an image is given to nobody
/// before the next checkpoint, but where that one is damaged, recovery begins at the one before it.
pub(crate) fn drop_overtaken<T>(pages: &mut BTreeMap<u64, T>, record: &Record<'_>) {
    let covers = record.covers.iter().map(|c| (c.block.get(), c.count.get() as u64));
    let given = record.assignments.iter().map(|a| a.segment.get()).filter(|&segment| segment != 0);
    let segments = given.map(|segment| (SegNo(segment).first_block().0, SEGMENT_BLOCKS as u64));
    for (first, count) in covers.chain(segments) {
        let run = first..first.saturating_add(count);
        while let Some((&block, _)) = pages.range(run.clone()).next() {
            pages.remove(&block);
        }
    }
}

/// Brings logged pages home, says on the medium that the accepted epochs are durable, and protects what the log still holds.
fn take_over_log(core: &mut Core, device: &Blocking, fixed: &Fixed, log: &LogTail) -> Result<()> {
    let mut pages: BTreeMap<u64, &[u8]> = BTreeMap::new();
    let records: Vec<Record<'_>> =
        log.records.iter().map(|r| Record::parse(r)).collect::<format::Result<_>>()?;
    for record in &records {
        drop_overtaken(&mut pages, record);
        for (i, page) in record.pages.iter().enumerate() {
            if page.block.get() >= core.space.total() {
                return Err(damage("log record", "holds a page of a block beyond the volume"));
            }
            pages.insert(page.block.get(), record.page(i));
        }
    }
    if core.read_only {
        if pages.is_empty() {
            return Ok(());
        }
        return Err(Error::Busy(
            "it was not stopped cleanly and its log must be replayed: open it once for writing".into(),
        ));
    }
    // What was accepted may still be in the device's cache when only this process had died: it must be durable before
    // anything says so. And something must say so before any image goes home, because that changes blocks whose checksums
    // earlier records hold.
    // A checkpoint that did not finish may have left table blocks whose sequence number would count from now on.
    for at in &fixed.unfinished {
        device.write(at.byte(), &vec![0; BLOCK_SIZE])?;
    }
    device.flush()?;
    let mut mark = fixed.checkpoint.running();
    mark.sequence += 1;
    mark.durable_epoch = Epoch(log.last_epoch);
    device.write(CHECKPOINTS[(mark.sequence % 2) as usize].byte(), &mark.encode())?;
    device.flush()?;
    for (&block, bytes) in &pages {
        device.write(BlockNo(block).byte(), bytes)?;
    }
    device.flush()?;
    core.checkpoint = mark;
    core.recorded = log.last_epoch;
    // The images stay in the log until the next checkpoint: their blocks must not be overwritten in place, nor given to
    // anybody else, before that.
    for &block in pages.keys() {
        core.logged.insert(block, Logged { frame: None });
        let run = Run { block: BlockNo(block), count: 1 };
        if core.space.claim(run) {
            core.held.push((run, log.last_epoch));
        }
    }
    if core.log.free() < core.log.capacity() / 2 {
        core.checkpoint_wanted = true;
    }
    Ok(())
}

fn damage(structure: &'static str, rule: &'static str) -> Error {
    format::FormatError::new(structure, format::error::Fault::Rule(rule)).into()
}
