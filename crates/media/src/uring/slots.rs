//! One request on its way through the ring: which entry it becomes, and what a result means for it.
//!
//! A slot is used by one request at a time; its number is the entry's user data. The kernel may read the vector of
//! buffers until the completion, so the slot owns it and does not touch it before. A request may take several entries,
//! one after the other: the rest of a short transfer, a second try after an interruption, a plainer operation where the
//! better one is not supported.

use crate::front::Front;
use crate::{BufRef, Flags, MediaError, Op, Request};
use io_uring::squeue::Entry;
use io_uring::{opcode, types};

/// Registered buffers are cut into pieces of this size. Pinning fills memory with zeros, which takes the kernel longer than
/// anything else when a medium is opened; so a piece is pinned when it is first used.
pub(super) const PIECE: u64 = 2 << 20;

/// The pieces of one arena.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// Number of the first one among all that the ring has places for; `None` when there were not enough places.
    pub(super) first: Option<u16>,
    /// Which of them the kernel has taken; `None` not asked yet.
    pub(super) taken: Vec<Option<bool>>,
}

impl Pieces {
    /// The piece that holds the whole buffer.
    pub(super) fn index(&self, buf: &BufRef) -> Option<usize> {
        let (at, last) = (buf.offset / PIECE, (buf.offset + buf.len as u64 - 1) / PIECE);
        (self.first.is_some() && at == last).then_some(at as usize)
    }
    /// The registered number of that piece.
    fn number(&self, buf: &BufRef) -> Option<u16> {
        let index = self.index(buf).filter(|&i| self.taken[i] == Some(true))?;
        Some(self.first? + index as u16)
    }
}

/// Zeros that one entry writes where the device cannot set ranges to zero, bytes.
pub(super) const ZEROS: u64 = 1 << 20;

/// Tries of an entry that ends with "try again", before that is an error.
const TRIES: u32 = 1000;

/// `BLOCK_URING_CMD_DISCARD` of linux/blkdev.h: `_IO(0x12, 0)`.
const BLOCK_DISCARD: u32 = 0x1200;

/// The only file that is registered with the ring.
const FILE: types::Fixed = types::Fixed(0);

/// How a request is being carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Transfer,
    Flush,
    /// Discard by command to the block device.
    DiscardCommand,
    /// Discard by punching a hole.
    PunchHole,
    /// Zeroing by the file system or device.
    ZeroRange,
    /// Zeroing by writing zeros.
    ZeroWrites,
}

/// A buffer as the kernel sees it.
#[repr(transparent)]
pub(super) struct IoVec(libc::iovec);

// SAFETY: the pointer leads into an arena, which is plain memory that any thread may use; it lives as long as the medium.
unsafe impl Send for IoVec {}

/// What is the same for all requests of a medium.
pub(super) struct Context<'a> {
    pub(super) front: &'a Front,
    /// The device is a block device, not a file.
    pub(super) block: bool,
    /// Registered pieces of each arena.
    pub(super) pinned: &'a [Pieces],
    /// Address of [`ZEROS`] zeros.
    pub(super) zeros: *const u8,
}

/// What to do after a completion of the ring.
pub(super) enum Verdict {
    /// Build and push another entry.
    Again,
    /// The request has ended.
    Done(Result<(), MediaError>),
}

/// A request in flight.
pub(super) struct Flight {
    pub(super) request: Request,
    stage: Stage,
    /// Bytes transferred so far.
    done: u64,
    tries: u32,
    vector: Vec<IoVec>,
}

impl Flight {
    /// `vector` is empty memory to use.
    pub(super) fn new(request: Request, vector: Vec<IoVec>, context: &Context<'_>) -> Flight {
        let stage = match request.op {
            Op::Read | Op::Write => Stage::Transfer,
            Op::Flush => Stage::Flush,
            Op::Discard if context.block => Stage::DiscardCommand,
            Op::Discard => Stage::PunchHole,
            Op::WriteZeroes => Stage::ZeroRange,
        };
        Flight { request, stage, done: 0, tries: 0, vector }
    }

    /// Gives the memory of the vector back for another request.
    pub(super) fn into_vector(mut self) -> Vec<IoVec> {
        self.vector.clear();
        self.vector
    }

    /// The next entry. The memory that it names stays valid until its completion: arenas live as long as the medium, and
    /// the vector is changed only by the next call.
    pub(super) fn entry(&mut self, context: &Context<'_>) -> Entry {
        let (offset, len) = (self.request.offset, self.request.len);
        match self.stage {
            Stage::Transfer if self.request.bufs.len() == 1 => self.single(context),
            Stage::Transfer => self.vectored(context),
            Stage::Flush => opcode::Fsync::new(FILE).flags(types::FsyncFlags::DATASYNC).build(),
            Stage::DiscardCommand => {
                let mut command = [0; 16];
                command[..8].copy_from_slice(&len.to_ne_bytes());
                opcode::UringCmd16::new(FILE, BLOCK_DISCARD).addr(Some(offset)).cmd(command).build()
            }
            Stage::PunchHole => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(FILE, len).offset(offset).mode(mode).build()
            }
            Stage::ZeroRange => {
                let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(FILE, len).offset(offset).mode(mode).build()
            }
            Stage::ZeroWrites => {
                let n = (len - self.done).min(ZEROS) as u32;
                opcode::Write::new(FILE, context.zeros, n).offset(offset + self.done).build()
            }
        }
    }

    fn rw_flags(&self) -> i32 {
        if self.request.flags.contains(Flags::FUA) { libc::RWF_DSYNC } else { 0 }
    }

    fn single(&self, context: &Context<'_>) -> Entry {
        let whole = self.request.bufs[0];
        let buf = BufRef { offset: whole.offset + self.done, len: whole.len - self.done as u32, ..whole };
        let (address, len) = (context.front.address(&buf), buf.len);
        let at = self.request.offset + self.done;
        let flags = self.rw_flags();
        let piece = context.pinned.get(buf.arena.0 as usize).and_then(|pieces| pieces.number(&buf));
        match (piece, self.request.op) {
            (Some(piece), Op::Read) => opcode::ReadFixed::new(FILE, address, len, piece).offset(at).build(),
            (Some(piece), _) => {
                opcode::WriteFixed::new(FILE, address, len, piece).offset(at).rw_flags(flags).build()
            }
            (None, Op::Read) => opcode::Read::new(FILE, address, len).offset(at).build(),
            (None, _) => opcode::Write::new(FILE, address, len).offset(at).rw_flags(flags).build(),
        }
    }

    fn vectored(&mut self, context: &Context<'_>) -> Entry {
        self.vector.clear();
        let mut skip = self.done;
        for buf in &self.request.bufs {
            let skipped = skip.min(buf.len as u64);
            skip -= skipped;
            let rest = BufRef { offset: buf.offset + skipped, len: buf.len - skipped as u32, ..*buf };
            if rest.len > 0 {
                let iov_base = context.front.address(&rest).cast();
                self.vector.push(IoVec(libc::iovec { iov_base, iov_len: rest.len as usize }));
            }
        }
        let (vector, n) = (self.vector.as_ptr().cast::<libc::iovec>(), self.vector.len() as u32);
        let at = self.request.offset + self.done;
        match self.request.op {
            Op::Read => opcode::Readv::new(FILE, vector, n).offset(at).build(),
            _ => opcode::Writev::new(FILE, vector, n).offset(at).rw_flags(self.rw_flags()).build(),
        }
    }

    /// What `result`, a count of bytes or a negative errno, means.
    pub(super) fn judge(&mut self, result: i32, context: &Context<'_>) -> Verdict {
        let front = context.front;
        if result < 0 {
            return self.failed(-result, front);
        }
        if !matches!(self.stage, Stage::Transfer | Stage::ZeroWrites) {
            return Verdict::Done(Ok(()));
        }
        let before = self.done;
        self.done += result as u64;
        if self.done >= self.request.len {
            return Verdict::Done(Ok(()));
        }
        // The rest must begin at a sector again.
        self.done -= self.done % front.geometry.sector as u64;
        if self.done > before {
            Verdict::Again
        } else {
            Verdict::Done(Err(front.short(&self.request, self.done)))
        }
    }

    fn failed(&mut self, errno: i32, front: &Front) -> Verdict {
        // A thread that ends may take its requests that wait for a kernel worker with it; they are asked again.
        if matches!(errno, libc::EINTR | libc::EAGAIN | libc::ECANCELED) && self.tries < TRIES {
            self.tries += 1;
            return Verdict::Again;
        }
        let unsupported = matches!(errno, libc::EOPNOTSUPP | libc::EINVAL | libc::ENOTTY | libc::ENOSYS);
        let plainer = match self.stage {
            Stage::DiscardCommand if unsupported => Some(Stage::PunchHole),
            Stage::ZeroRange if unsupported => Some(Stage::ZeroWrites),
            // A discard promises nothing.
            Stage::PunchHole if unsupported => return Verdict::Done(Ok(())),
            _ => None,
        };
        if let Some(stage) = plainer {
            if self.request.len == 0 {
                return Verdict::Done(Ok(()));
            }
            self.stage = stage;
            return Verdict::Again;
        }
        Verdict::Done(Err(match errno {
            libc::ENODEV | libc::ENXIO => front.gone(),
            errno => front.io(&self.request, errno),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arena, Geometry};
    use std::sync::Arc;

    fn front() -> Front {
        Front::new(Geometry {
            name: "test".into(),
            bytes: 1 << 20,
            sector: 512,
            atomic_unit: 512,
            volatile_cache: true,
            barrier: false,
            discard: true,
            queue_depth: 1,
            max_transfer: 1 << 20,
            numa_node: None,
        })
    }

    /// Operation of an entry, and its flags for that: those of a transfer and of a sync have the same place.
    fn said(entry: &Entry) -> (u8, i32) {
        // SAFETY: an entry is what linux/io_uring.h calls `struct io_uring_sqe`, 64 bytes of plain data.
        let bytes: [u8; 64] = unsafe { std::mem::transmute_copy(entry) };
        (bytes[0], i32::from_ne_bytes(bytes[28..32].try_into().unwrap()))
    }

    /// No test can take the power from a device, so the kernel must have been told to make durable what is to be.
    #[test]
    fn what_is_to_be_durable_is_asked_for_so() {
        let front = front();
        let arena = front.register(Arc::new(Arena::new(PIECE as usize).unwrap())).unwrap();
        let fixed = [Pieces { first: Some(0), taken: vec![Some(true)] }];
        let context = |pinned| Context { front: &front, block: false, pinned, zeros: std::ptr::null() };
        let (plain, fixed) = (context(&[]), context(&fixed));
        let entry =
            |request: Request, context| said(&Flight::new(request, Vec::new(), context).entry(context));
        let flush = entry(Request::flush(1), &plain);
        assert_eq!(flush, (opcode::Fsync::CODE, types::FsyncFlags::DATASYNC.bits() as i32));
        let buf = |offset| BufRef { arena, offset, len: 4096 };
        let single = Request::transfer(Op::Write, 0, buf(0), 1);
        let several = Request::vectored(Op::Write, 0, [buf(0), buf(8192)][..].into(), 1);
        for (request, context, code) in [
            (&single, &plain, opcode::Write::CODE),
            (&single, &fixed, opcode::WriteFixed::CODE),
            (&several, &plain, opcode::Writev::CODE),
            (&several, &fixed, opcode::Writev::CODE),
        ] {
            assert_eq!(entry(request.clone(), context), (code, 0));
            let durable = Request { flags: Flags::FUA, ..request.clone() };
            assert_eq!(entry(durable.clone(), context), (code, libc::RWF_DSYNC));
            // The rest of a transfer that was cut short, too.
            let mut flight = Flight::new(durable, Vec::new(), context);
            flight.entry(context);
            assert!(matches!(flight.judge(512, context), Verdict::Again));
            assert_eq!(said(&flight.entry(context)), (code, libc::RWF_DSYNC));
        }
    }
}
