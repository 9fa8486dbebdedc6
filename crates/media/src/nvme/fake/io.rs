//! I/O commands of the simulated controller, and its medium.

use super::Failure;
use super::state::{Executing, State};
use crate::flash::{Change, CrashState, DISCARDED, Event, PendingWrite};
use crate::{Flags, Op, Request};
use format::nvme::queue::{PSDT_SGL, SGL_DATA, SGL_LAST_SEGMENT, nvm};
use format::nvme::{DeallocateRange, SglDescriptor, Status, Submission};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

const PAGE: u64 = 4096;
const DNR: u16 = Status::DO_NOT_RETRY;

/// A change that a command makes.
struct Made {
    change: Change,
    offset: u64,
    len: u64,
    data: Vec<u8>,
    fua: bool,
}

impl State {
    /// Carries out an I/O command. Memory is looked at now.
    pub(super) fn carry_out(&mut self, entry: &Submission) -> Status {
        self.carried_out[entry.opcode as usize] += 1;
        match self.try_carry_out(entry) {
            Ok(()) => Status::SUCCESS,
            Err(status) => {
                let (op, code) = (entry.opcode, status.0);
                self.violation(format!("I/O command {op:#x} refused: {code:#x}"));
                status
            }
        }
    }

    fn try_carry_out(&mut self, entry: &Submission) -> Result<(), Status> {
        if entry.nsid.get() != self.config.nsid {
            return Err(Status(Status::INVALID_NAMESPACE.0 | DNR));
        }
        match entry.opcode {
            nvm::READ => self.read_data(entry),
            nvm::FLUSH => {
                self.next_id += 1;
                let id = self.next_id;
                self.power.apply(&Event::FlushSubmit { id });
                self.power.apply(&Event::FlushDone { id, ok: true });
                Ok(())
            }
            _ => {
                for made in self.changes(entry)? {
                    match made.change {
                        Change::Write => self.visible.write(made.offset, &made.data),
                        Change::Zeroes => self.visible.fill(made.offset, made.len, 0),
                        Change::Discard => self.visible.fill(made.offset, made.len, DISCARDED),
                    }
                    let write = self.pending(made);
                    let (id, kept) = (write.id, write.len);
                    self.power.apply(&Event::Submit(write));
                    self.power.apply(&Event::Complete { id, kept });
                }
                Ok(())
            }
        }
    }

    fn pending(&mut self, made: Made) -> PendingWrite {
        self.next_id += 1;
        let flags = if made.fua { Flags::FUA } else { Flags::NONE };
        let request = Request { flags, ..Request::range(Op::Write, made.offset, made.len, self.next_id) };
        PendingWrite::numbered(&self.flash, made.change, &request, Arc::from(made.data))
    }

    /// First byte and number of bytes of a command with LBA and NLB.
    fn place(&mut self, entry: &Submission) -> Result<(u64, u64), Status> {
        let lba = self.config.lba as u64;
        let first = entry.cdw10.get() as u64 | (entry.cdw11.get() as u64) << 32;
        let blocks = (entry.cdw12.get() & 0xFFFF) as u64 + 1;
        let end = first.checked_add(blocks).and_then(|end| end.checked_mul(lba));
        if end.is_none_or(|end| end > self.config.bytes) {
            return Err(Status(Status::LBA_OUT_OF_RANGE.0 | DNR));
        }
        if self.config.mdts != 0 && blocks * lba > PAGE << self.config.mdts {
            return Err(Status(Status::INVALID_FIELD.0 | DNR));
        }
        Ok((first * lba, blocks * lba))
    }

    /// What a command that writes would change.
    fn changes(&mut self, entry: &Submission) -> Result<Vec<Made>, Status> {
        let fua = entry.cdw12.get() & nvm::FUA != 0;
        match entry.opcode {
            nvm::WRITE => {
                let (offset, len) = self.place(entry)?;
                let mut data = Vec::with_capacity(len as usize);
                for (at, n) in self.walk(entry, len)? {
                    // SAFETY: `walk` gives mapped memory, which the driver leaves alone while the command is under way.
                    data.extend_from_slice(unsafe {
                        std::slice::from_raw_parts(at as *const u8, n as usize)
                    });
                }
                Ok(vec![Made { change: Change::Write, offset, len, data, fua }])
            }
            nvm::WRITE_ZEROES if self.config.write_zeroes => {
                let (offset, len) = self.place(entry)?;
                Ok(vec![Made { change: Change::Zeroes, offset, len, data: Vec::new(), fua }])
            }
            nvm::DATASET_MANAGEMENT if self.config.deallocate => self.deallocated(entry),
            _ => Err(Status(Status::INVALID_OPCODE.0 | DNR)),
        }
    }

    fn deallocated(&mut self, entry: &Submission) -> Result<Vec<Made>, Status> {
        if entry.cdw11.get() & nvm::DEALLOCATE == 0 {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        let lba = self.config.lba as u64;
        for i in 0..(entry.cdw10.get() & 0xFF) as u64 + 1 {
            let from = self.bytes(entry.dptr1.get() + i * 16, 16)?;
            let range = DeallocateRange::read_from_bytes(&from).expect("sizes are equal");
            let (offset, len) = (range.lba.get() * lba, range.blocks.get() as u64 * lba);
            if offset + len > self.config.bytes {
                return Err(Status(Status::LBA_OUT_OF_RANGE.0 | DNR));
            }
            all.push(Made { change: Change::Discard, offset, len, data: Vec::new(), fua: false });
        }
        Ok(all)
    }

    fn read_data(&mut self, entry: &Submission) -> Result<(), Status> {
        let (mut offset, len) = self.place(entry)?;
        for (at, n) in self.walk(entry, len)? {
            let mut part = vec![0; n as usize];
            self.visible.read(offset, &mut part);
            // SAFETY: `walk` gives mapped memory, which the driver leaves alone while the command is under way.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), at as *mut u8, part.len()) };
            offset += n;
        }
        Ok(())
    }

    fn bytes(&self, device: u64, len: u64) -> Result<Vec<u8>, Status> {
        let at = self.memory.at(device, len).ok_or(Status(Status::DATA_TRANSFER_ERROR.0 | DNR))?;
        // SAFETY: mapped memory that belongs to a command under way.
        Ok(unsafe { std::slice::from_raw_parts(at, len as usize) }.to_vec())
    }

    /// The memory of a command: addresses in the process and lengths.
    fn walk(&mut self, entry: &Submission, len: u64) -> Result<Vec<(usize, u64)>, Status> {
        let pieces = match entry.flags {
            0 => self.walk_prps(entry.dptr1.get(), entry.dptr2.get(), len)?,
            PSDT_SGL if self.config.sgl => self.walk_sgl(entry, len)?,
            _ => return Err(Status(Status::INVALID_FIELD.0 | DNR)),
        };
        let map = |(device, n)| match self.memory.at(device, n) {
            Some(at) => Ok((at as usize, n)),
            None => Err(Status(Status::DATA_TRANSFER_ERROR.0 | DNR)),
        };
        pieces.into_iter().map(map).collect()
    }

    fn walk_prps(&self, first: u64, second: u64, len: u64) -> Result<Vec<(u64, u64)>, Status> {
        let bad = Status(Status::PRP_OFFSET_INVALID.0 | DNR);
        if !first.is_multiple_of(4) {
            return Err(bad);
        }
        let head = (PAGE - first % PAGE).min(len);
        let mut all = vec![(first, head)];
        let mut left = len - head;
        if left == 0 {
            return Ok(all);
        }
        let list = if left <= PAGE {
            vec![second]
        } else {
            if !second.is_multiple_of(8) {
                return Err(bad);
            }
            // One page of entries is all that this controller needs for the transfers it takes from the driver.
            let room = (PAGE - second % PAGE) / 8;
            let count = left.div_ceil(PAGE);
            if count > room {
                return Err(bad);
            }
            let bytes = self.bytes(second, count * 8)?;
            bytes.chunks_exact(8).map(|e| u64::from_le_bytes(e.try_into().expect("eight bytes"))).collect()
        };
        for page in list {
            if !page.is_multiple_of(PAGE) {
                return Err(bad);
            }
            all.push((page, left.min(PAGE)));
            left -= left.min(PAGE);
        }
        Ok(all)
    }

    fn walk_sgl(&self, entry: &Submission, len: u64) -> Result<Vec<(u64, u64)>, Status> {
        let bad = Status(Status::INVALID_FIELD.0 | DNR);
        let halves = [entry.dptr1.get().to_le_bytes(), entry.dptr2.get().to_le_bytes()];
        let whole = SglDescriptor::read_from_bytes(halves.as_flattened()).expect("sizes are equal");
        let all = match whole.kind {
            SGL_DATA => vec![whole],
            SGL_LAST_SEGMENT if whole.len.get() > 0 && whole.len.get().is_multiple_of(16) => {
                let bytes = self.bytes(whole.address.get(), whole.len.get() as u64)?;
                <[SglDescriptor]>::ref_from_bytes(&bytes).map_err(|_| bad)?.to_vec()
            }
            _ => return Err(bad),
        };
        let fits = all.iter().all(|d| d.kind == SGL_DATA && d.reserved.as_bytes() == [0; 3]);
        let sum: u64 = all.iter().map(|d| d.len.get() as u64).sum();
        if !fits || sum != len {
            return Err(bad);
        }
        Ok(all.iter().map(|d| (d.address.get(), d.len.get() as u64)).collect())
    }

    /// Puts bytes there, durable.
    pub(super) fn poke(&mut self, offset: u64, from: &[u8]) {
        self.visible.write(offset, from);
        self.power = CrashState::new(self.flash.clone(), self.visible.clone());
    }

    /// What a power failure now might leave: what is under way may be there in any part.
    pub(super) fn crash_state(&mut self) -> CrashState {
        let under_way: Vec<Submission> = self
            .executing
            .iter()
            .filter(|e: &&Executing| {
                e.sq != 0 && !matches!(e.failure, Some(Failure::Lost { done: true, .. }))
            })
            .map(|e| e.entry)
            .collect();
        let mut power = self.power.clone();
        for entry in under_way {
            if matches!(entry.opcode, nvm::READ | nvm::FLUSH) {
                continue;
            }
            for made in self.changes(&entry).unwrap_or_default() {
                let write = self.pending(made);
                power.apply(&Event::Submit(write));
            }
        }
        power
    }
}
