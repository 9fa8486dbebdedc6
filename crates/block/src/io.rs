//! Transfers in flight: what each of them is for, and what happens when it completes.

use crate::core::{Core, Wait};
use crate::inode::Slot;
use crate::scratch::Buffer;
use crate::tails::TailPart;
use fs::cache::FrameNo;
use media::{Completion, Request};
use smallvec::SmallVec;
use std::collections::HashMap;

/// Frames of one transfer.
pub(crate) type Frames = SmallVec<[FrameNo; 4]>;

/// What a transfer is for.
pub(crate) enum IoKind {
    /// A write from scratch memory that only its epoch cares about: a part of a record, an extent node, attributes.
    Buffer { buffer: u32 },
    /// A flush; everything up to this epoch had been written when it was submitted.
    Flush { written: u64 },
    /// File data on its way to the medium, from this block on.
    WritePages { frames: Frames, block: u64 },
    /// File data on its way from the medium.
    ReadPages { frames: Frames },
    /// A part of a direct transfer, to these blocks on if it is a write.
    Direct { call: u32, writes: Option<u64> },
    /// A part of an inode's tail on its way from the medium.
    Tail { slot: Slot, part: TailPart, buffer: Buffer },
    /// A write or flush of the running checkpoint. `frames`: images on their way home.
    Checkpoint { buffer: Option<u32>, frames: Frames },
    /// A discard of free segments, which nobody gets before it is over.
    Discard { run: crate::space::Run },
}

pub(crate) struct Io {
    pub kind: IoKind,
    /// The epoch that is not written before this transfer completes.
    pub epoch: Option<u64>,
}

/// Transfers by token, and scratch buffers that several transfers share.
#[derive(Default)]
pub(crate) struct Ios {
    slots: Vec<Option<Io>>,
    free: Vec<u32>,
    shared: HashMap<u32, (Buffer, usize)>,
    next_shared: u32,
    pub in_flight: usize,
}

impl Ios {
    fn insert(&mut self, io: Io) -> u64 {
        self.in_flight += 1;
        match self.free.pop() {
            Some(i) => {
                self.slots[i as usize] = Some(io);
                i as u64
            }
            None => {
                self.slots.push(Some(io));
                self.slots.len() as u64 - 1
            }
        }
    }
    fn take(&mut self, token: u64) -> Option<Io> {
        let io = self.slots.get_mut(token as usize)?.take()?;
        self.free.push(token as u32);
        self.in_flight -= 1;
        Some(io)
    }
    /// A buffer that `count` transfers use; the last one to complete gives it back.
    pub fn share(&mut self, buffer: Buffer, count: usize) -> u32 {
        self.next_shared = self.next_shared.wrapping_add(1);
        self.shared.insert(self.next_shared, (buffer, count));
        self.next_shared
    }
}

impl Core {
    /// Queues a transfer; the medium is kicked when the lock is released.
    pub fn submit(&mut self, mut request: Request, io: Io) {
        request.token = self.ios.insert(io);
        self.media.submit(request);
        self.kick = true;
    }

    fn drop_shared(&mut self, id: u32) {
        if let Some(entry) = self.ios.shared.get_mut(&id) {
            entry.1 -= 1;
            if entry.1 == 0
                && let Some((buffer, _)) = self.ios.shared.remove(&id)
            {
                self.scratch.give_back(buffer);
            }
        }
    }

    /// Takes in the end of a transfer.
    pub fn complete(&mut self, completion: Completion) {
        let Some(io) = self.ios.take(completion.token) else {
            debug_assert!(false, "completion of an unknown transfer");
            return;
        };
        let result = completion.result;
        match io.kind {
            IoKind::Buffer { buffer } => {
                self.drop_shared(buffer);
                self.write_ended(result);
                self.wake(Wait::Progress);
            }
            IoKind::Flush { written } => {
                self.flush_in_flight = false;
                let ok = result.is_ok();
                self.write_ended(result);
                if ok {
                    self.direct_writes_flushed();
                    match written > self.durable {
                        true => self.became_durable(written),
                        // It was sent for direct writes alone.
                        false => self.advance(),
                    }
                }
                self.wake(Wait::Progress);
            }
            IoKind::WritePages { frames, block } => {
                self.frames_in_flight -= frames.len();
                for frame in frames {
                    self.cache.unpin(frame);
                }
                self.writing.remove(&block);
                self.write_ended(result);
                self.wake(Wait::Progress);
            }
            IoKind::ReadPages { frames } => self.read_ended(frames, result),
            IoKind::Direct { call, writes } => self.direct_ended(call, writes, result),
            IoKind::Tail { slot, part, buffer } => {
                self.tail_part_loaded(slot, part, &buffer, result);
                self.scratch.give_back(buffer);
            }
            IoKind::Checkpoint { buffer, frames } => {
                if let Some(buffer) = buffer {
                    self.drop_shared(buffer);
                }
                for frame in frames {
                    self.cache.unpin(frame);
                }
                self.write_ended(result);
                self.checkpoint_written();
                self.wake(Wait::Progress);
                self.wake_worker = true;
            }
            IoKind::Discard { run } => self.discarded(run, result),
        }
        if let Some(epoch) = io.epoch {
            self.epoch_io_done(epoch);
            self.advance();
        }
    }

    fn write_ended(&mut self, result: Result<(), media::MediaError>) {
        if let Err(e) = result {
            self.latch(e.to_string());
        }
    }
}
