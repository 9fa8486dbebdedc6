//! Structures of a volume in words, for people and for programs: what `freehold dump` prints.
//!
//! Names and offsets of fields come from the tables of the format ([`format::layout::Table`]), so this never disagrees with
//! the code. Damaged structures are printed as far as they can be; what is wrong with them is said beside them.
//! Nothing is written. Tested in tests/dump.rs.

mod words;

use crate::load;
use crate::ring::LogRing;
use format::checkpoint::{CHECKPOINTS, Checkpoint, CheckpointHeader};
use format::extent::NodeHeader;
use format::index::PieceHeader;
use format::inode::{InodeHeader, SlotKind, parse_block, parse_compact, slot_block};
use format::layout::Layout;
use format::limits::{BLOCK_SIZE, SEGMENT_BLOCKS};
use format::log::{Record, RecordHeader};
use format::segtable::{SegTableHeader, TABLE_BLOCKS, homes};
use format::superblock::{SUPERBLOCKS, Superblock};
use format::xattr::XattrHeader;
use format::{BlockNo, Ino, SegNo};
use fs::{Error, Result};
use media::Media;
use media::blocking::Blocking;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use words::{describe_record, fields, hex, print};

/// What to print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The superblock and its copy.
    Superblock,
    /// Both checkpoint blocks.
    Checkpoints,
    /// The inode segment table, with the log's assignments.
    Table,
    /// The records of the log that count.
    Log,
    /// One inode, as the log or its slot has it.
    Inode(Ino),
    /// One block, as what it is.
    Block(BlockNo),
    /// The role of a segment, and the blocks in use in it.
    Segment(SegNo),
    /// The inode that a path leads to.
    Path(Vec<u8>),
}

impl What {
    /// Understands `superblock`, `checkpoints`, `table`, `log`, `inode N`, `block N`, `segment N`, `path /a/b`; a word that
    /// begins with `/` is a path. `Invalid` for anything else.
    pub fn parse(text: &str) -> Result<What> {
        let text = text.trim();
        if text.starts_with('/') {
            return Ok(What::Path(text.as_bytes().to_vec()));
        }
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let rest = rest.trim();
        let number = || {
            rest.parse::<u64>().map_err(|_| Error::Invalid("a number is needed: inode N, block N, segment N"))
        };
        Ok(match word {
            "superblock" if rest.is_empty() => What::Superblock,
            "checkpoint" | "checkpoints" if rest.is_empty() => What::Checkpoints,
            "table" if rest.is_empty() => What::Table,
            "log" if rest.is_empty() => What::Log,
            "inode" => What::Inode(Ino(number()?).on_medium()),
            "block" => What::Block(BlockNo(number()?)),
            "segment" => {
                let n = number()?;
                What::Segment(SegNo(n.try_into().map_err(|_| Error::Invalid("there are fewer segments"))?))
            }
            "path" if !rest.is_empty() => What::Path(rest.as_bytes().to_vec()),
            _ => {
                return Err(Error::Invalid(
                    "one of: superblock, checkpoints, table, log, inode N, block N, segment N, path /a/b",
                ));
            }
        })
    }
}

/// Prints `what` to `out`, as text or as one JSON object.
///
/// Errors: `NotFound` (no such inode or path), `Invalid` (beyond the volume), `NotAVolume`, `Corrupt` (what leads to the
/// structure is damaged), `Media`; a failure of `out` is a `Media` error with the errno of the write.
pub fn run(media: Arc<dyn Media>, what: &What, json: bool, out: &mut dyn io::Write) -> Result<()> {
    let device = Blocking::new(media)?;
    let value = Dump { device: &device }.value(what)?;
    let mut text = String::new();
    if json {
        text = serde_json::to_string_pretty(&value).expect("strings and numbers only");
        text.push('\n');
    } else {
        print(&value, 0, &mut text);
    }
    out.write_all(text.as_bytes()).map_err(|e| {
        Error::Media(media::MediaError::Setup {
            device: "output".into(),
            doing: "writing",
            errno: e.raw_os_error().unwrap_or(5),
        })
    })
}

/// The newest image of each inode in the log.
type Images = HashMap<u64, Vec<u8>>;

struct Dump<'d> {
    device: &'d Blocking,
}

impl Dump<'_> {
    fn read(&self, at: BlockNo) -> Result<Vec<u8>> {
        if at.0 >= self.device.media().geometry().bytes / BLOCK_SIZE as u64 {
            return Err(Error::Invalid("lies beyond the volume"));
        }
        let mut block = vec![0; BLOCK_SIZE];
        self.device.read(at.byte(), &mut block)?;
        Ok(block)
    }

    fn value(&self, what: &What) -> Result<Value> {
        match what {
            What::Superblock => self.all(&SUPERBLOCKS),
            What::Checkpoints => self.all(&CHECKPOINTS),
            What::Table => self.table(),
            What::Log => self.log(),
            What::Inode(ino) => self.inode(*ino),
            What::Block(at) => self.block(*at),
            What::Segment(segment) => self.segment(*segment),
            What::Path(path) => self.path(path),
        }
    }

    fn all(&self, places: &[BlockNo]) -> Result<Value> {
        Ok(Value::Array(places.iter().map(|at| self.block(*at)).collect::<Result<_>>()?))
    }

    /// A block as what its magic number says it is.
    fn block(&self, at: BlockNo) -> Result<Value> {
        let block = self.read(at)?;
        let magic = u32::from_le_bytes(block[..4].try_into().expect("four bytes"));
        let long = u64::from_le_bytes(block[..8].try_into().expect("eight bytes"));
        let mut out = Map::new();
        out.insert("block".into(), at.0.into());
        let sb = load::superblock(self.device).ok();
        let (uuid, segments) = sb.as_ref().map_or(([0; 16], u32::MAX), |sb| (sb.uuid, sb.segments()));
        let (structure, table, verdict) = if block.iter().all(|&b| b == 0) {
            out.insert("structure".into(), "zeros".into());
            return Ok(out.into());
        } else if long == format::superblock::MAGIC {
            ("superblock", Superblock::table(), Superblock::parse(&block).err())
        } else if long == format::log::MAGIC {
            let verdict = self.record(at, &block, &mut out)?;
            ("log record", RecordHeader::table(), verdict)
        } else if magic == format::checkpoint::MAGIC {
            let parsed = Checkpoint::parse(&block, &uuid, segments);
            if let Ok(cp) = &parsed {
                out.insert("log_ring".into(), cp.log_segments.iter().map(|s| s.0).collect());
                let runs = cp.index_runs.iter().map(|(s, n)| json!({"segment": s.0, "count": n}));
                out.insert("index_at".into(), runs.collect());
            }
            ("checkpoint", CheckpointHeader::table(), parsed.err())
        } else if magic == format::segtable::MAGIC {
            let index = (0..TABLE_BLOCKS).find(|i| homes(*i).contains(&at)).unwrap_or(0);
            let parsed = format::segtable::parse(&block, &uuid, index, segments);
            if let Ok((_, entries)) = &parsed {
                let used = entries.iter().rposition(Option::is_some).map_or(0, |i| i + 1);
                out.insert("segments".into(), entries[..used].iter().map(|s| s.map_or(0, |s| s.0)).collect());
            }
            ("inode segment table", SegTableHeader::table(), parsed.err())
        } else if magic == format::inode::MAGIC {
            let ino = u64::from_le_bytes(block[8..16].try_into().expect("eight bytes"));
            let verdict = parse_block(&block, Ino(ino)).err();
            self.describe_inode(&block, &mut out);
            ("inode", InodeHeader::table(), verdict)
        } else if magic == format::extent::MAGIC {
            self.node(&block, &mut out);
            ("extent node", NodeHeader::table(), None)
        } else if magic == format::xattr::MAGIC {
            ("extended attributes", XattrHeader::table(), None)
        } else if magic == format::index::MAGIC {
            ("index checkpoint piece", PieceHeader::table(), None)
        } else {
            out.insert("structure".into(), "data".into());
            out.insert("hex".into(), hex(&block));
            return Ok(out.into());
        };
        out.insert("structure".into(), structure.into());
        out.insert("fields".into(), fields(table, &block).into());
        if let Some(e) = verdict {
            out.insert("damaged".into(), e.to_string().into());
        }
        Ok(out.into())
    }

    /// The rest of a record whose first block is `block`; says what is wrong with it.
    fn record(
        &self,
        at: BlockNo,
        block: &[u8],
        out: &mut Map<String, Value>,
    ) -> Result<Option<format::FormatError>> {
        let Ok(fixed) = load::fixed(self.device) else { return Ok(None) };
        let cp = &fixed.checkpoint;
        let ring = LogRing { segments: cp.log_segments.clone(), head: 0, tail: 0, chain: 0, nonce: 0 };
        let Some((_, count)) = format::log::probe_any(block, &fixed.superblock.uuid) else { return Ok(None) };
        let Some(index) = ring.segments.iter().position(|s| *s == at.segment()) else { return Ok(None) };
        let position = (index * SEGMENT_BLOCKS + at.in_segment()) as u64;
        if count as u64 > ring.capacity() {
            return Ok(None);
        }
        let mut bytes = vec![0; count as usize * BLOCK_SIZE];
        for (block, offset, n) in ring.parts(position, count as u64, u64::MAX) {
            self.device
                .read(block.byte(), &mut bytes[offset as usize * BLOCK_SIZE..][..n as usize * BLOCK_SIZE])?;
        }
        match Record::parse(&bytes) {
            Ok(record) => {
                describe_record(&record, out);
                Ok(None)
            }
            Err(e) => Ok(Some(e)),
        }
    }

    fn log(&self) -> Result<Value> {
        let fixed = load::fixed(self.device)?;
        let (cp, sb) = (&fixed.checkpoint, &fixed.superblock);
        let tail = load::log(self.device, cp, &sb.uuid, sb.blocks.get())?;
        let ring = LogRing { segments: cp.log_segments.clone(), head: 0, tail: 0, chain: 0, nonce: 0 };
        let (mut records, mut position) = (Vec::new(), cp.log_position);
        for bytes in &tail.records {
            let record = Record::parse(bytes)?;
            let mut out = Map::new();
            out.insert("block".into(), ring.block(position).0.into());
            out.insert("fields".into(), fields(RecordHeader::table(), bytes).into());
            describe_record(&record, &mut out);
            records.push(Value::Object(out));
            position += (bytes.len() / BLOCK_SIZE) as u64;
        }
        Ok(json!({
            "begins_behind_epoch": cp.epoch.0,
            "last_epoch": tail.last_epoch,
            "durable_epoch": tail.recorded,
            "blocks_used": tail.end,
            "blocks": ring.capacity(),
            "cut": tail.cut,
            "durable_epoch_missing": tail.lost,
            "records": records,
        }))
    }

    /// The inode segment table as mount sees it, and the newest images in the log.
    fn inodes(&self) -> Result<(Vec<Option<SegNo>>, Images)> {
        let fixed = load::fixed(self.device)?;
        let sb = &fixed.superblock;
        let mut table = fixed.table;
        let mut images = HashMap::new();
        for bytes in load::log(self.device, &fixed.checkpoint, &sb.uuid, sb.blocks.get())?.records {
            let record = Record::parse(&bytes)?;
            for a in record
                .assignments
                .iter()
                .filter(|a| (a.index.get() as usize) < format::limits::INODE_SEGMENTS_MAX)
            {
                let index = a.index.get() as usize;
                table.resize(table.len().max(index + 1), None);
                table[index] = (a.segment.get() != 0).then_some(SegNo(a.segment.get()));
            }
            for (image, view) in record.inodes().flatten() {
                images.insert(view.ino().0, image.to_vec());
            }
        }
        Ok((table, images))
    }

    fn table(&self) -> Result<Value> {
        let fixed = load::fixed(self.device)?;
        let (table, _) = self.inodes()?;
        let segments = table.iter().enumerate().filter_map(|(i, s)| {
            let first = i * SEGMENT_BLOCKS;
            s.map(|s| json!({"index": i, "segment": s.0, "inodes": format!("{first}..{}", first + SEGMENT_BLOCKS)}))
        });
        let homes = fixed.homes.iter().enumerate().map(|(i, (home, _))| homes(i)[*home as usize].0);
        Ok(json!({"current_blocks": homes.collect::<Vec<_>>(), "segments": segments.collect::<Vec<_>>()}))
    }

    fn inode(&self, ino: Ino) -> Result<Value> {
        let (table, images) = self.inodes()?;
        let place = table
            .get(ino.table_index())
            .copied()
            .flatten()
            .map(|s| slot_block(s, ino))
            .ok_or(Error::NotFound)?;
        let mut out = Map::new();
        out.insert("inode".into(), ino.0.into());
        out.insert("slot".into(), place.0.into());
        let bytes = match images.get(&ino.0) {
            Some(image) => {
                out.insert("from".into(), "log".into());
                image.clone()
            }
            None => {
                out.insert("from".into(), "slot".into());
                let block = self.read(place)?;
                match parse_block(&block, ino) {
                    Ok(Some(_)) => {}
                    Ok(None) => return Err(Error::NotFound),
                    Err(e) => drop(out.insert("damaged".into(), e.to_string().into())),
                }
                block
            }
        };
        out.insert("fields".into(), fields(InodeHeader::table(), &bytes).into());
        self.describe_inode(&bytes, &mut out);
        Ok(out.into())
    }

    fn segment(&self, segment: SegNo) -> Result<Value> {
        let sb = load::superblock(self.device)?;
        if segment.0 >= sb.segments() {
            return Err(Error::Invalid("lies beyond the volume"));
        }
        let fixed = load::fixed(self.device)?;
        let (table, _) = self.inodes()?;
        let role = if segment.0 == 0 {
            "super".to_string()
        } else if let Some(i) = fixed.checkpoint.log_segments.iter().position(|s| *s == segment) {
            format!("log, place {i} in the ring")
        } else if let Some(i) = table.iter().position(|s| *s == Some(segment)) {
            format!("inodes {} to {}", i * SEGMENT_BLOCKS, (i + 1) * SEGMENT_BLOCKS - 1)
        } else if fixed.checkpoint.clean
            && fixed.checkpoint.index_runs.iter().any(|(s, n)| (s.0..s.0 + n).contains(&segment.0))
        {
            "index checkpoint (counts as free)".to_string()
        } else {
            "data or free".to_string()
        };
        let (used, owners) = crate::fsck::segment_usage(self.device, segment)?;
        let role = if used == 0 && role == "data or free" {
            "free".into()
        } else {
            role.replace("data or free", "data")
        };
        let owners: Vec<Value> = owners
            .into_iter()
            .map(|(ino, block, count)| json!({"inode": ino, "block": block, "count": count}))
            .collect();
        Ok(
            json!({"segment": segment.0, "first_block": segment.first_block().0, "role": role, "blocks_used": used, "owners": owners}),
        )
    }

    fn path(&self, path: &[u8]) -> Result<Value> {
        let (table, images) = self.inodes()?;
        // One look at all slots: name by (parent, name). Bounded by the inodes of the volume.
        let mut names: HashMap<(u64, Vec<u8>), u64> = HashMap::new();
        let mut take = |view: &format::inode::InodeView<'_>| {
            let to = if view.kind == SlotKind::Link { view.header.target.get() } else { view.ino().0 };
            if view.kind != SlotKind::Free && view.ino() != Ino::ROOT {
                names.insert((view.header.parent.get(), view.name.to_vec()), to);
            }
        };
        for (index, segment) in table.iter().enumerate() {
            let Some(segment) = segment else { continue };
            let mut bytes = vec![0; SEGMENT_BLOCKS * BLOCK_SIZE];
            self.device.read(segment.first_block().byte(), &mut bytes)?;
            for (slot, block) in bytes.chunks_exact(BLOCK_SIZE).enumerate() {
                let ino = (index * SEGMENT_BLOCKS + slot) as u64;
                if !images.contains_key(&ino)
                    && let Ok(Some(view)) = parse_block(block, Ino(ino))
                {
                    take(&view);
                }
            }
        }
        images.values().filter_map(|image| parse_compact(image).ok()).for_each(|view| take(&view));
        let mut at = Ino::ROOT.0;
        for part in path.split(|&b| b == b'/').filter(|p| !p.is_empty()) {
            at = *names.get(&(at, part.to_vec())).ok_or(Error::NotFound)?;
        }
        self.inode(Ino(at))
    }
}
