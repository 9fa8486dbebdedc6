//! The part of the generator that works on open files: data, space, locks, durability.

use super::super::*;
use super::Generator;
use fs::{FileType, OpenFlags};
use rand::Rng;

impl Generator {
    /// A handle slot, mostly one that is open for all that `need` names.
    fn handle(&mut self, directory: bool, need: OpenFlags) -> u8 {
        let good = self.shadow.handles(directory, need);
        self.mostly(&good, Self::any_handle)
    }

    pub(super) fn file_handle(&mut self) -> u8 {
        self.handle(false, OpenFlags::empty())
    }

    pub(super) fn reader(&mut self) -> u8 {
        self.handle(false, OpenFlags::READ)
    }

    pub(super) fn writer(&mut self) -> u8 {
        self.handle(false, OpenFlags::WRITE)
    }

    pub(super) fn dir_handle(&mut self) -> u8 {
        self.handle(true, OpenFlags::empty())
    }

    pub(super) fn any_handle(&mut self) -> u8 {
        self.rng.random_range(0..HANDLE_SLOTS)
    }

    /// An offset: mostly small, sometimes at a border of a block or segment, sometimes far out.
    pub(super) fn offset(&mut self) -> u64 {
        let max = self.knobs.size_max;
        match self.rng.random_range(0..40) {
            0 if self.knobs.file_size_limit => self.of(&[1 << 60, (1 << 60) - 512, (1 << 60) + 512, 1 << 62]),
            0 | 1 => self.rng.random_range(0..=max),
            2 | 3 => (1u64 << self.rng.random_range(12..44)).min(max),
            4..12 => (self.rng.random_range(0..20) * 4096 + self.of(&[0, 1, 4095, 512])).min(max),
            12 | 13 => ((2 << 20) + self.of(&[0, 1, 4096]) - self.of(&[0, 1, 4096])).min(max),
            14..20 => 0,
            _ => self.rng.random_range(0..40_000).min(max),
        }
    }

    pub(super) fn size(&mut self) -> u64 {
        self.offset()
    }

    fn len(&mut self) -> u32 {
        let max = self.knobs.len_max;
        match self.rng.random_range(0..20) {
            0 => 0,
            1 => self.rng.random_range(0..=max),
            2..8 => (self.rng.random_range(1..6) * 4096).min(max),
            _ => self.rng.random_range(1..=9000.min(max)),
        }
    }

    fn range(&mut self) -> u64 {
        let max = self.knobs.range_max;
        match self.rng.random_range(0..20) {
            0 => 0,
            1 | 2 => self.rng.random_range(0..=max),
            3..8 => (self.rng.random_range(1..6) * 4096).min(max),
            _ => self.rng.random_range(1..=20_000.min(max)),
        }
    }

    fn open_flags(&mut self) -> OpenFlags {
        use OpenFlags as F;
        let mut flags =
            self.of(&[F::READ | F::WRITE, F::READ | F::WRITE, F::READ | F::WRITE, F::READ, F::WRITE]);
        if self.one_in(6) {
            flags |= F::APPEND;
        } else if self.knobs.direct && self.one_in(15) {
            flags |= F::DIRECT;
        }
        let rare = [(F::TRUNCATE, 8), (F::NOATIME, 10), (F::SYNC, 20), (F::DSYNC, 20)];
        for (flag, n) in rare {
            flags.set(flag, self.one_in(n) && (self.knobs.direct || n < 20));
        }
        flags
    }

    /// An offset for a transfer, and a length. Transfers do not reach across the largest size: how much of such a write is
    /// done is up to the file system.
    fn transfer(&mut self) -> (u64, u32) {
        let (offset, len) = (self.offset(), self.len());
        let (offset, len) = if self.one_in(10) { (offset & !511, len & !511) } else { (offset, len) };
        let limit = format::limits::FILE_SIZE_MAX;
        let crosses = offset < limit && offset + len as u64 > limit;
        (offset, if crosses { 512.min(limit - offset) as u32 } else { len })
    }

    pub(super) fn data(&mut self) -> Op {
        match self.pick(&[4, 4, 1, 8, 14, 3, 5, 3, 5]) {
            0 => {
                let flags = self.open_flags().bits();
                Op::Open {
                    who: self.who(),
                    node: self.file(),
                    flags,
                    into: self.rng.random_range(0..FILE_HANDLES),
                }
            }
            1 => {
                let exclusive = if self.one_in(4) { OpenFlags::EXCLUSIVE.bits() } else { 0 };
                let flags = self.open_flags().bits() | exclusive;
                let (who, dir, perm) = (self.who(), self.dir(), self.perm());
                let name = match self.one_in(3) {
                    true => self.old_name(dir, |kind| kind == FileType::Regular),
                    false => self.new_name(dir),
                };
                let (node_into, into) = (self.file_into(), self.rng.random_range(0..FILE_HANDLES));
                Op::Create { who, dir, name, perm, flags, node_into, into }
            }
            2 => {
                let exclusive = if self.one_in(4) { OpenFlags::EXCLUSIVE.bits() } else { 0 };
                let flags = self.open_flags().bits() | exclusive;
                let (who, dir, perm) = (self.who(), self.dir(), self.perm());
                let (node_into, into) = (self.file_into(), self.rng.random_range(0..FILE_HANDLES));
                Op::TmpFile { who, dir, perm, flags, node_into, into }
            }
            3 => {
                let (offset, len) = self.transfer();
                Op::Read { handle: self.reader(), offset, len }
            }
            4 => {
                let (offset, len) = self.transfer();
                Op::Write { handle: self.writer(), offset, len, pattern: self.rng.random() }
            }
            5 => Op::Close { handle: self.any_handle() },
            6 => {
                let all = [
                    Space::Allocate,
                    Space::AllocateKeep,
                    Space::Punch,
                    Space::Punch,
                    Space::Zero,
                    Space::ZeroKeep,
                ];
                Op::Fallocate {
                    handle: self.writer(),
                    what: self.of(&all),
                    offset: self.offset(),
                    len: self.range(),
                }
            }
            7 => Op::Seek { handle: self.reader(), offset: self.offset(), hole: self.one_in(2) },
            _ => {
                let from = self.reader();
                let to = if self.one_in(3) { from } else { self.writer() };
                // Whether a copy through a DIRECT handle must be aligned is not settled.
                let direct = self.shadow.handles(false, OpenFlags::DIRECT);
                if direct.contains(&from) || direct.contains(&to) {
                    return Op::Close { handle: from };
                }
                let (from_offset, to_offset) = (self.offset(), self.offset());
                let limit = format::limits::FILE_SIZE_MAX;
                let len = self.range();
                let len = if to_offset < limit { len.min(limit - to_offset) } else { len };
                Op::CopyRange { from, from_offset, to, to_offset, len }
            }
        }
    }

    pub(super) fn locks(&mut self) -> Op {
        let handle = self.file_handle();
        let start = self.rng.random_range(0..20);
        let end = if self.one_in(5) { u64::MAX } else { start + self.rng.random_range(0..10) };
        match self.pick(&[2, 5, 2, 1]) {
            0 => Op::GetLk { handle, start, end, exclusive: self.one_in(2) },
            1 => {
                let exclusive = self.of(&[None, Some(true), Some(false)]);
                let handle = if exclusive == Some(true) { self.writer() } else { handle };
                Op::SetLk { handle, start, end, exclusive }
            }
            2 => Op::Flock { handle, exclusive: self.of(&[None, Some(true), Some(false)]) },
            _ => Op::Flush { handle },
        }
    }

    pub(super) fn durability(&mut self) -> Op {
        let datasync = self.one_in(2);
        match self.pick(&[4, 4, 1]) {
            0 => Op::Fsync { handle: self.file_handle(), datasync },
            1 => Op::Barrier { handle: self.file_handle(), datasync },
            _ => Op::Sync,
        }
    }
}
