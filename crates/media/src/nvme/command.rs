//! One command of a request on an I/O queue pair: what it does, and its entry in the queue (NVMe 1.4, sections 4.2 and 6).

use super::dma::Region;
use super::pair::Context;
use super::plan;
use super::pointer::{self, Segment, Segments};
use crate::{Flags, Op, Request};
use format::nvme::queue::{PSDT_SGL, nvm};
use format::nvme::{DeallocateRange, Status, Submission};
use zerocopy::{FromZeros, IntoBytes};

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Transfer,
    /// A write by way of the bounce page.
    Bounced,
    Flush,
    Zeroes,
    /// A write of zeros, where Write Zeroes is missing.
    ZeroWrite,
    Deallocate,
}

/// One command's part of a request; or several requests, whole, that go on where each other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// The first of them.
    pub(super) request: u32,
    pub(super) kind: Kind,
    /// Within the request, bytes.
    pub(super) from: u64,
    pub(super) len: u64,
    pub(super) tries: u8,
}

/// Memory of a transfer as the device sees it.
pub(super) fn memory(request: &Request, context: &Context) -> Segments {
    let mut segments = Segments::new();
    add_memory(&mut segments, request, context);
    segments
}

/// Adds the memory of a transfer, behind that of one before it.
pub(super) fn add_memory(segments: &mut Segments, request: &Request, context: &Context) {
    let arenas = context.arenas.read();
    for b in &request.bufs {
        let (device, len) = (arenas[b.arena.0 as usize] + b.offset, b.len as u64);
        match segments.last_mut() {
            Some(last) if last.device + last.len == device => last.len += len,
            _ => segments.push(Segment { device, len }),
        }
    }
}

/// Copies bytes of a request's memory to the beginning of `page`.
fn gather(request: &Request, from: u64, len: u64, context: &Context, page: &Region) {
    let (mut skip, mut at) = (from, 0);
    for buf in &request.bufs {
        let skipped = skip.min(buf.len as u64);
        skip -= skipped;
        let n = (buf.len as u64 - skipped).min(len - at);
        if n > 0 {
            let part = crate::BufRef { offset: buf.offset + skipped, len: n as u32, ..*buf };
            let mut bytes = [0; super::dma::PAGE];
            context.front.copy_out(&part, &mut bytes[..n as usize]);
            page.write(at as usize, &bytes[..n as usize]);
            at += n;
        }
    }
}

/// The command of a piece, without its identifier. `request` is the first of those that it belongs to, `memory` that of all of them, if it is a transfer.
pub(super) fn entry(
    piece: &Piece,
    request: &Request,
    memory: Segments,
    context: &Context,
    pages: &[Region; 2],
) -> Submission {
    let limits = &context.limits;
    let [list, bounce] = pages;
    let mut entry = Submission::new_zeroed();
    entry.nsid = limits.nsid.into();
    let lba = (request.offset + piece.from) / limits.lba;
    let blocks = piece.len / limits.lba;
    let at = |entry: &mut Submission, opcode: u8, flags: u32| {
        entry.opcode = opcode;
        (entry.cdw10, entry.cdw11) = ((lba as u32).into(), ((lba >> 32) as u32).into());
        entry.cdw12 = ((blocks as u32 - 1) | flags).into();
    };
    let fua = if request.flags.contains(Flags::FUA) { nvm::FUA } else { 0 };
    let segments = match piece.kind {
        Kind::Transfer => {
            at(&mut entry, if request.op == Op::Read { nvm::READ } else { nvm::WRITE }, fua);
            plan::slice(memory.into_iter(), piece.from, piece.len)
        }
        Kind::Bounced => {
            at(&mut entry, nvm::WRITE, fua);
            gather(request, piece.from, piece.len, context, bounce);
            Segments::from_elem(Segment { device: bounce.device(), len: piece.len }, 1)
        }
        Kind::ZeroWrite => {
            at(&mut entry, nvm::WRITE, 0);
            let page = super::dma::PAGE as u64;
            let zeros = |from| Segment { device: context.zeros.device(), len: page.min(piece.len - from) };
            (0..piece.len).step_by(page as usize).map(zeros).collect()
        }
        Kind::Zeroes => {
            at(&mut entry, nvm::WRITE_ZEROES, 0);
            return entry;
        }
        Kind::Flush => {
            entry.opcode = nvm::FLUSH;
            return entry;
        }
        Kind::Deallocate => {
            entry.opcode = nvm::DATASET_MANAGEMENT;
            let mut range = DeallocateRange::new_zeroed();
            (range.lba, range.blocks) = (lba.into(), (blocks as u32).into());
            list.write(0, range.as_bytes());
            entry.dptr1 = list.device().into();
            // One range: the number minus one.
            entry.cdw11 = nvm::DEALLOCATE.into();
            return entry;
        }
    };
    let shorter = limits.cut.sgl && pointer::is_shorter_as_sgl(&segments);
    let (first, second) = if shorter || !pointer::is_prp(&segments) {
        entry.flags = PSDT_SGL;
        pointer::sgl(&segments, list)
    } else {
        pointer::prp(&segments, list)
    };
    (entry.dptr1, entry.dptr2) = (first.into(), second.into());
    entry
}

/// The errno(3) value for a failed command.
pub(super) fn errno(status: Status) -> i32 {
    match status.code() {
        Status::CAPACITY_EXCEEDED => libc::ENOSPC,
        Status::WRITE_PROTECTED => libc::EROFS,
        Status::INVALID_NAMESPACE => libc::ENXIO,
        _ => libc::EIO,
    }
}
