//! Inodes in memory.
//!
//! What most files need stands in [`Inode`] (160 bytes); extents, inline data and extended attributes stand in a [`Tail`]
//! that is loaded when it is first needed and dropped when it is clean. An inode whose tail is empty needs none, which is
//! how a million empty files take little memory.

use crate::extents::ExtentMap;
use crate::rangeset::RangeSet;
use format::inode::{
    self, ENTRY_HAS_TAIL, ENTRY_NO_XATTRS, InodeHeader, InodeView, SlotKind, TailKind, Timespec,
};
use format::xattr::Xattr;
use format::{BlockNo, Ino};
use fs::{Attr, FileType, Time};
use zerocopy::FromZeros;

/// Index of an inode: its number. Volumes have fewer than 2^32 inodes (`format::limits::INODE_SEGMENTS_MAX`).
pub(crate) type Slot = u32;

/// A name of up to 22 bytes stands in the inode, a longer one in memory of its own.
#[derive(Clone)]
pub(crate) enum Name {
    Short(u8, [u8; 22]),
    Long(Box<[u8]>),
}

impl Name {
    pub fn new(name: &[u8]) -> Name {
        if name.len() <= 22 {
            let mut bytes = [0; 22];
            bytes[..name.len()].copy_from_slice(name);
            Name::Short(name.len() as u8, bytes)
        } else {
            Name::Long(name.into())
        }
    }
    pub fn bytes(&self) -> &[u8] {
        match self {
            Name::Short(len, bytes) => &bytes[..*len as usize],
            Name::Long(bytes) => bytes,
        }
    }
}

/// A time in 12 bytes.
#[derive(Clone, Copy, Default)]
#[repr(C, packed(4))]
pub(crate) struct PackedTime {
    sec: i64,
    nsec: u32,
}

impl From<Time> for PackedTime {
    fn from(t: Time) -> Self {
        PackedTime { sec: t.sec, nsec: t.nsec }
    }
}
impl From<PackedTime> for Time {
    fn from(t: PackedTime) -> Self {
        Time { sec: t.sec, nsec: t.nsec }
    }
}
impl From<Timespec> for PackedTime {
    fn from(t: Timespec) -> Self {
        PackedTime { sec: t.sec.get(), nsec: t.nsec.get() }
    }
}
impl From<PackedTime> for Timespec {
    fn from(t: PackedTime) -> Self {
        Timespec { sec: t.sec.into(), nsec: t.nsec.into() }
    }
}

/// The tail is on the medium and has not been loaded.
pub(crate) const TAIL_ON_MEDIUM: u8 = 1;
/// The running checkpoint has yet to write this inode as it was when the checkpoint began.
pub(crate) const IN_CHECKPOINT: u8 = 2;
/// Changed since the last checkpoint: the tail must stay in memory.
pub(crate) const SINCE_CHECKPOINT: u8 = 4;

/// It has extended attributes; or may have, as long as its tail has not been loaded.
pub(crate) const HAS_XATTRS: u8 = 8;

/// Made by tmpfile: may get a first name although it has none.
pub(crate) const LINKABLE: u8 = 16;

/// Its slot got its generation since the volume was opened.
pub(crate) const NUMBERED: u8 = 32;

/// How far the generations that an opening gives are from those that are known: by chance, and more than the openings before it can
/// have given that were lost again with their epochs. Who still knows a file that was lost so must not take another one for it.
pub(crate) fn apart() -> u32 {
    rand::random_range(1 << 16..1 << 17)
}

/// One inode, or an additional name (hard link).
#[derive(Clone)]
#[repr(align(32))]
pub(crate) struct Inode {
    pub kind: SlotKind,
    pub flags: u8,
    pub generation: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Names of this inode; for directories 2 plus subdirectories. Derived.
    pub nlink: u32,
    /// Directory of the name; 0 without a name.
    pub parent: Slot,
    /// Open handles.
    pub opens: u32,
    /// Size; for additional names the slot of the inode; for device nodes the device number.
    pub size: u64,
    pub blocks: u64,
    /// Position of the name in its directory.
    pub cookie: u64,
    /// Epoch of the last change.
    pub epoch: u64,
    pub tail: Option<Box<Tail>>,
    pub name: Name,
    pub atime: PackedTime,
    pub mtime: PackedTime,
    pub ctime: PackedTime,
    pub btime: PackedTime,
}

const _: () = assert!(size_of::<Inode>() == 160, "memory per file is a promise");

/// Where the bytes of a file are.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    /// In the inode.
    Inline(Vec<u8>),
    /// In blocks.
    Extents(ExtentMap),
}

/// Extended attributes that stand in blocks of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutsideXattrs {
    pub block: BlockNo,
    pub bytes: u32,
    pub crc: u32,
}

impl OutsideXattrs {
    pub fn blocks(&self) -> u32 {
        self.bytes.div_ceil(format::limits::BLOCK_SIZE as u32)
    }
}

/// What does not fit in [`Inode`].
#[derive(Clone, Debug)]
pub(crate) struct Tail {
    pub data: Data,
    pub xattrs: Vec<Xattr>,
    /// Where `xattrs` stand when not in the inode; `None` also while they were changed and not yet written.
    pub xattrs_outside: Option<OutsideXattrs>,
    /// Blocks that the changed `xattrs` will be written to, taken when they were changed so that a commit never lacks space.
    pub xattrs_place: Option<crate::space::Run>,
    /// `xattrs` were changed since the last commit.
    pub xattrs_changed: bool,
    /// Dirty pages.
    pub dirty: RangeSet,
    /// Dirty pages for which a block is reserved.
    pub reserved: u64,
    /// Extents that pages which became dirty since the last commit may add at most, and blocks that this may need for nodes (`tails::nodes`).
    pub grows: u64,
    pub nodes: u64,
    /// Counts changes of the inode while this is in memory: a call that waits in its middle finds out whether what it has seen is so still.
    pub changes: u32,
}

impl Default for Tail {
    fn default() -> Self {
        Tail {
            data: Data::Inline(Vec::new()),
            xattrs: Vec::new(),
            xattrs_outside: None,
            xattrs_place: None,
            xattrs_changed: false,
            dirty: RangeSet::default(),
            reserved: 0,
            grows: 0,
            nodes: 0,
            changes: 0,
        }
    }
}

impl Tail {
    /// Nothing in it: the inode needs no tail in memory.
    pub fn is_empty(&self) -> bool {
        matches!(&self.data, Data::Inline(bytes) if bytes.is_empty())
            && self.xattrs.is_empty()
            && self.xattrs_outside.is_none()
            && self.dirty.is_empty()
    }
    pub fn extents(&self) -> Option<&ExtentMap> {
        match &self.data {
            Data::Extents(map) => Some(map),
            Data::Inline(_) => None,
        }
    }
    pub fn extents_mut(&mut self) -> Option<&mut ExtentMap> {
        match &mut self.data {
            Data::Extents(map) => Some(map),
            Data::Inline(_) => None,
        }
    }
}

impl Inode {
    pub fn free(generation: u32) -> Inode {
        let t = PackedTime::default();
        Inode {
            kind: SlotKind::Free,
            flags: 0,
            generation,
            mode: 0,
            uid: 0,
            gid: 0,
            nlink: 0,
            parent: 0,
            opens: 0,
            size: 0,
            blocks: 0,
            cookie: 0,
            epoch: 0,
            tail: None,
            name: Name::Short(0, [0; 22]),
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
        }
    }

    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode).unwrap_or(FileType::Regular)
    }
    pub fn is_dir(&self) -> bool {
        self.kind == SlotKind::Inode && self.mode & 0o170000 == 0o040000
    }
    fn is_device(&self) -> bool {
        matches!(self.file_type(), FileType::CharDevice | FileType::BlockDevice)
    }

    pub fn attr(&self, slot: Slot) -> Attr {
        let device = self.is_device();
        Attr {
            ino: Ino::of(slot, self.generation),
            generation: self.generation,
            kind: self.file_type(),
            perm: (self.mode & 0o7777) as u16,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: if device { self.size } else { 0 },
            size: if device { 0 } else { self.size },
            blocks: self.sectors(),
            atime: self.atime.into(),
            mtime: self.mtime.into(),
            ctime: self.ctime.into(),
            btime: self.btime.into(),
            xattrs: self.flags & HAS_XATTRS != 0,
        }
    }

    /// What the file occupies, in units of 512 bytes: also what is not written yet, and what may stand in the inode. A program that finds
    /// nothing there takes the file for one hole (tar --sparse).
    fn sectors(&self) -> u64 {
        let blocks = self.blocks + self.tail.as_ref().map_or(0, |tail| tail.reserved);
        let small = self.size <= format::limits::INLINE_MAX as u64 && self.file_type() == FileType::Regular;
        if blocks == 0 && small { self.size.div_ceil(512) } else { blocks * 8 }
    }

    /// The header for the medium; the fields of the tail are left for the caller.
    pub fn header(&self, slot: Slot) -> InodeHeader {
        let mut h = InodeHeader::new_zeroed();
        h.ino = (slot as u64).into();
        h.generation = self.generation.into();
        h.kind = self.kind as u8;
        h.epoch = self.epoch.into();
        if self.kind == SlotKind::Free {
            return h;
        }
        h.parent = (self.parent as u64).into();
        h.cookie = self.cookie.into();
        if self.kind == SlotKind::Link {
            h.target = self.size.into();
            return h;
        }
        if self.is_device() {
            h.rdev = self.size.into();
        } else {
            h.size = self.size.into();
        }
        if self.flags & LINKABLE != 0 {
            h.flags = inode::LINKABLE.into();
        }
        h.blocks = self.blocks.into();
        h.mode = self.mode.into();
        h.uid = self.uid.into();
        h.gid = self.gid.into();
        h.atime = self.atime.into();
        h.mtime = self.mtime.into();
        h.ctime = self.ctime.into();
        h.btime = self.btime.into();
        h
    }

    /// From the medium, without its tail (see [`TAIL_ON_MEDIUM`]) and with nothing derived.
    pub fn from_view(view: &InodeView<'_>) -> Inode {
        let h = view.header;
        let mut inode = Inode::free(h.generation.get());
        inode.kind = view.kind;
        inode.epoch = h.epoch.get();
        inode.parent = slot_of(h.parent.get());
        inode.cookie = h.cookie.get();
        inode.name = Name::new(view.name);
        inode.mode = h.mode.get();
        inode.uid = h.uid.get();
        inode.gid = h.gid.get();
        inode.size = match view.kind {
            SlotKind::Link => h.target.get(),
            _ if inode.is_device() => h.rdev.get(),
            _ => h.size.get(),
        };
        inode.blocks = h.blocks.get();
        inode.atime = h.atime.into();
        inode.mtime = h.mtime.into();
        inode.ctime = h.ctime.into();
        inode.btime = h.btime.into();
        let has_tail = view.tail_kind != TailKind::None
            || h.flags.get() & ENTRY_HAS_TAIL != 0
            || h.xattr_len.get() > 0
            || h.xattr_block.get() != 0;
        if has_tail && view.kind == SlotKind::Inode {
            inode.flags |= TAIL_ON_MEDIUM;
        }
        let may_have = h.flags.get() & (ENTRY_HAS_TAIL | ENTRY_NO_XATTRS) == ENTRY_HAS_TAIL;
        if may_have || h.xattr_len.get() > 0 || h.xattr_block.get() != 0 {
            inode.flags |= HAS_XATTRS;
        }
        if h.flags.get() & inode::LINKABLE != 0 {
            inode.flags |= LINKABLE;
        }
        inode
    }
}

/// The slot of a number on the medium; one that holds nothing if the number is too large for any.
pub(crate) fn slot_of(number: u64) -> Slot {
    Slot::try_from(number).unwrap_or(Slot::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_names() {
        for len in [0, 1, 22, 23, 255] {
            let bytes = vec![b'x'; len];
            assert_eq!(Name::new(&bytes).bytes(), &bytes[..]);
        }
    }
}
