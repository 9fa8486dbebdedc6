//! Plain reads and writes for code that runs before the engine's worker does: mkfs, mount, fsck.

use crate::{Arena, ArenaId, BufRef, Completion, Media, MediaError, Op, Request, Wait};
use std::sync::Arc;

/// A medium used by one thread, one or many requests at a time, waiting for each batch. Must be the only one to reap.
pub struct Blocking {
    media: Arc<dyn Media>,
    arena: Arc<Arena>,
    id: ArenaId,
}

impl Drop for Blocking {
    /// Nothing is under way: each call waits for what it began.
    fn drop(&mut self) {
        self.media.unregister(self.id);
    }
}

/// Bytes of the bounce buffer.
const BOUNCE: usize = 4 << 20;
/// Bytes of one request of [`Blocking::read_many`].
const PIECE: usize = 512 << 10;

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

    /// Reads many ranges (each at most 512 KiB) with several requests in flight, and calls `each(index, bytes)` for every one,
    /// in any order. Stops at the first error of a read or of `each`.
    pub fn read_many<E: From<MediaError>>(
        &self,
        ranges: &[(u64, usize)],
        mut each: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut next, mut left) = (0, 0);
        let mut places: Vec<u64> = (0..BOUNCE / PIECE).map(|i| (i * PIECE) as u64).collect();
        let mut at = vec![0; ranges.len().min(places.len())];
        let mut slots: Vec<usize> = (0..at.len()).collect();
        let mut using: Vec<usize> = vec![0; at.len()];
        let mut done = Vec::new();
        let mut outcome = Ok(());
        loop {
            while outcome.is_ok() && next < ranges.len() && !slots.is_empty() {
                let (Some(slot), Some(place)) = (slots.pop(), places.pop()) else { break };
                let (offset, len) = ranges[next];
                assert!(len <= PIECE, "range is longer than a piece");
                at[slot] = place;
                using[slot] = next;
                let buf = BufRef { arena: self.id, offset: place, len: len as u32 };
                self.media.submit(Request::transfer(Op::Read, offset, buf, slot as u64));
                next += 1;
                left += 1;
            }
            if left == 0 {
                return outcome;
            }
            self.media.kick();
            self.media.reap(&mut done, Wait::For(None));
            for completion in done.drain(..) {
                let slot = completion.token as usize;
                left -= 1;
                if outcome.is_ok() {
                    outcome = completion.result.map_err(E::from).and_then(|()| {
                        let index = using[slot];
                        // SAFETY: the transfer into this part of the buffer is over, and the part is free again only below.
                        unsafe { self.arena.with(at[slot], ranges[index].1, |bytes| each(index, bytes)) }
                    });
                }
                places.push(at[slot]);
                slots.push(slot);
            }
        }
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
