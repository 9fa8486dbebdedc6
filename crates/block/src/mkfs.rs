//! Making a volume.

use format::checkpoint::{CHECKPOINTS, Checkpoint};
use format::inode::{InodeHeader, SlotKind, Timespec, encode_compact, fill_block};
use format::limits::{BLOCK_SIZE, LOG_SEGMENTS_MAX, SEGMENT_BLOCKS, SEGMENT_SIZE, VOLUME_MAX, VOLUME_MIN};
use format::superblock::{SUPERBLOCKS, Superblock};
use format::{BlockNo, Epoch, Ino, SegNo};
use fs::{Error, Result, Time};
use media::blocking::Blocking;
use media::{Media, Op};
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes};

/// How a volume is made.
#[derive(Clone, Debug, Default)]
pub struct MkfsOptions {
    /// Name of the volume, at most 64 bytes of UTF-8.
    pub label: String,
    /// Every overwrite is ordered and atomic, not only those that a barrier or sync closes.
    pub strict: bool,
    /// Bytes of the log ring; `None`: a 64th of the volume, between 8 MiB and 256 MiB.
    pub log_bytes: Option<u64>,
    /// Identity of the volume; `None`: random.
    pub uuid: Option<[u8; 16]>,
    /// Overwrite a volume that exists.
    pub force: bool,
    /// Owner and group of the root directory.
    pub owner: (u32, u32),
}

/// What was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MkfsReport {
    /// Bytes of the volume: the medium's, rounded down to whole segments.
    pub bytes: u64,
    /// Bytes of the log ring.
    pub log_bytes: u64,
    /// Identity of the volume.
    pub uuid: [u8; 16],
}

/// Makes an empty volume on the medium; everything on it is lost.
///
/// Errors: `Invalid` (size, label), `Exists` (there is a volume and `force` is not set), `Media`.
pub fn mkfs(media: Arc<dyn Media>, options: &MkfsOptions) -> Result<MkfsReport> {
    let geometry = media.geometry().clone();
    let bytes = geometry.bytes.min(VOLUME_MAX) / SEGMENT_SIZE as u64 * SEGMENT_SIZE as u64;
    if bytes < VOLUME_MIN {
        return Err(Error::Invalid("a volume needs at least 32 MiB"));
    }
    if options.label.len() > 64 {
        return Err(Error::Invalid("a label has at most 64 bytes"));
    }
    let segments = (bytes / SEGMENT_SIZE as u64) as u32;
    let wanted = options.log_bytes.unwrap_or((bytes / 64).clamp(8 << 20, 256 << 20));
    let log = wanted.div_ceil(SEGMENT_SIZE as u64);
    if log < 4 || log > LOG_SEGMENTS_MAX as u64 || log > segments as u64 / 2 {
        return Err(Error::Invalid("the log must have 8 MiB to 1 GiB and at most half of the volume"));
    }
    let device = Blocking::new(media)?;
    let mut block = vec![0; BLOCK_SIZE];
    if !options.force {
        for at in SUPERBLOCKS {
            device.read(at.byte(), &mut block)?;
            if Superblock::parse(&block).is_ok() {
                return Err(Error::Exists);
            }
        }
    }
    // A volume that is there ends first: what lies behind its superblocks is overwritten before there are others.
    for at in SUPERBLOCKS {
        device.write(at.byte(), &vec![0; BLOCK_SIZE])?;
    }
    device.flush()?;
    let uuid = options.uuid.unwrap_or_else(rand::random);
    let now = Time::now();
    let created = Timespec { sec: now.sec.into(), nsec: now.nsec.into() };
    if geometry.discard {
        // Only a hint: what it costs to ignore it is some speed of the device.
        let _ = device.range(Op::Discard, 0, bytes);
    }
    // Where space is only reserved, or not even that, the first write of a place costs the file system below an allocation; the
    // first fsyncs would pay for it. Nobody else has the medium yet: later these zeros could fall on somebody's records.
    let zeros = vec![0; SEGMENT_SIZE];
    for segment in 1..=log as u32 {
        device.write(SegNo(segment).first_block().byte(), &zeros)?;
    }
    let root_segment = SegNo(1 + log as u32);
    write_root(&device, root_segment, created, options.owner)?;
    let table = format::segtable::encode(&uuid, 1, 0, &[Some(root_segment)]);
    let [home, _] = format::segtable::homes(0);
    // Homes that were never written must be zeros, or a check would take what stands there for damage.
    let rest = CHECKPOINTS[1].0 + 1;
    device.write(BlockNo(rest).byte(), &vec![0; SEGMENT_SIZE - rest as usize * BLOCK_SIZE])?;
    device.write(home.byte(), &table)?;
    let checkpoint = Checkpoint {
        uuid,
        sequence: 1,
        epoch: Epoch(1),
        log_position: 0,
        chain: rand::random(),
        clean: true,
        log_segments: (1..=log as u32).map(SegNo).collect(),
        inode_segments: 1,
        durable_epoch: Epoch(1),
        table_crc: format::segtable::table_crc(&[Some(root_segment)]),
        ..Checkpoint::default()
    };
    device.write(CHECKPOINTS[0].byte(), &vec![0; BLOCK_SIZE])?;
    device.write(CHECKPOINTS[1].byte(), &checkpoint.encode())?;
    device.flush()?;
    // The superblock comes last: until then there is no volume, not half of one.
    let sb = Superblock::new(
        uuid,
        segments as u64 * SEGMENT_BLOCKS as u64,
        created,
        geometry.atomic_unit,
        options.strict,
        &options.label,
    );
    for at in SUPERBLOCKS {
        device.write(at.byte(), sb.as_bytes())?;
    }
    device.flush()?;
    Ok(MkfsReport { bytes, log_bytes: log * SEGMENT_SIZE as u64, uuid })
}

fn write_root(device: &Blocking, segment: SegNo, now: Timespec, (uid, gid): (u32, u32)) -> Result<()> {
    let mut h = InodeHeader::new_zeroed();
    h.ino = Ino::ROOT.0.into();
    h.kind = SlotKind::Inode as u8;
    h.generation = 1.into();
    h.epoch = 1.into();
    h.parent = Ino::ROOT.0.into();
    h.mode = 0o040755.into();
    h.uid = uid.into();
    h.gid = gid.into();
    (h.atime, h.mtime, h.ctime, h.btime) = (now, now, now, now);
    let mut compact = Vec::new();
    encode_compact(&h, b"", b"", b"", &mut compact);
    let mut bytes = vec![0; SEGMENT_SIZE];
    let at = Ino::ROOT.slot() * BLOCK_SIZE;
    fill_block(&compact, &mut bytes[at..at + BLOCK_SIZE]);
    device.write(segment.first_block().byte(), &bytes)?;
    Ok(())
}
