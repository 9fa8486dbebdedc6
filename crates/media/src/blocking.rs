//! Plain reads and writes for code that runs before the engine's worker does: mkfs, mount, fsck.

use crate::{Arena, ArenaId, BufRef, Completion, Media, MediaError, Op, Request, Wait};
use std::sync::Arc;

/// A medium used by one thread, one or many requests at a time, waiting for each batch. Must be the only one to reap.
pub struct Blocking {
    media: Arc<dyn Media>,
    arena: Arc<Arena>,
    id: ArenaId,
}

/// Bytes of the bounce buffer.
const BOUNCE: usize = 4 << 20;

impl Blocking {
    /// Prepares a bounce buffer.
    pub fn new(media: Arc<dyn Media>) -> Result<Blocking, MediaError> {
        let arena = Arc::new(Arena::new(BOUNCE).map_err(|e| MediaError::Setup {
            device: media.geometry().name.clone(),
            doing: "allocating a buffer",
            errno: e.raw_os_error().unwrap_or(libc::ENOMEM),
        })?);
        let id = media.register(arena.clone())?;
        Ok(Blocking { media, arena, id })
    }

    /// The medium.
    pub fn media(&self) -> &Arc<dyn Media> {
        &self.media
    }

    fn run(&self, requests: Vec<Request>) -> Result<(), MediaError> {
        let mut left = requests.len();
        for request in requests {
            self.media.submit(request);
        }
        self.media.kick();
        let mut done: Vec<Completion> = Vec::new();
        let mut first_error = None;
        while left > 0 {
            self.media.reap(&mut done, Wait::For(None));
            for completion in done.drain(..) {
                left -= 1;
                if let (Err(e), None) = (completion.result, &first_error) {
                    first_error = Some(e);
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Reads `to.len()` bytes at `offset`.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), MediaError> {
        for (i, part) in to.chunks_mut(BOUNCE).enumerate() {
            let at = offset + (i * BOUNCE) as u64;
            let buf = BufRef { arena: self.id, offset: 0, len: part.len() as u32 };
            self.run(self.pieces(Op::Read, at, buf))?;
            self.arena.copy_out(0, part);
        }
        Ok(())
    }

    /// Writes `from` at `offset`. Durable only after [`Blocking::flush`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), MediaError> {
        for (i, part) in from.chunks(BOUNCE).enumerate() {
            let at = offset + (i * BOUNCE) as u64;
            self.arena.copy_in(0, part);
            let buf = BufRef { arena: self.id, offset: 0, len: part.len() as u32 };
            self.run(self.pieces(Op::Write, at, buf))?;
        }
        Ok(())
    }

    /// Makes everything written durable.
    pub fn flush(&self) -> Result<(), MediaError> {
        self.run(vec![Request::flush(0)])
    }

    /// Discards a range, or sets it to zero.
    pub fn range(&self, op: Op, offset: u64, len: u64) -> Result<(), MediaError> {
        self.run(vec![Request::range(op, offset, len, 0)])
    }

    fn pieces(&self, op: Op, offset: u64, buf: BufRef) -> Vec<Request> {
        let step = self.media.geometry().max_transfer;
        (0..buf.len)
            .step_by(step as usize)
            .map(|at| {
                let piece = BufRef { offset: buf.offset + at as u64, len: step.min(buf.len - at), ..buf };
                Request::transfer(op, offset + at as u64, piece, at as u64)
            })
            .collect()
    }
}
