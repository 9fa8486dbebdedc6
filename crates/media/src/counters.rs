//! What a medium was asked to do, counted.
//!
//! Device operations are the measure of an engine that does not depend on the machine it runs on. Every medium counts the
//! requests that it accepted; refused ones are not counted. The numbers are independent of each other: a snapshot taken
//! while requests arrive may show one number before and another after the same request.

use crate::{Op, Request};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Numbers since the medium was opened. See [`Counters::since`] for those of a part of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Ranges set to zero.
    pub zeroes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Bytes discarded.
    pub bytes_discarded: u64,
    /// Bytes set to zero.
    pub bytes_zeroed: u64,
    /// Calls of [`crate::Media::kick`] that had something to hand over.
    pub kicks: u64,
}

impl Counters {
    /// What happened since `earlier` was taken from the same medium.
    pub fn since(&self, earlier: &Counters) -> Counters {
        Counters {
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            flushes: self.flushes - earlier.flushes,
            discards: self.discards - earlier.discards,
            zeroes: self.zeroes - earlier.zeroes,
            bytes_read: self.bytes_read - earlier.bytes_read,
            bytes_written: self.bytes_written - earlier.bytes_written,
            bytes_discarded: self.bytes_discarded - earlier.bytes_discarded,
            bytes_zeroed: self.bytes_zeroed - earlier.bytes_zeroed,
            kicks: self.kicks - earlier.kicks,
        }
    }
}

/// The running numbers of one medium.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Requests and bytes by operation, in the order of [`slot`].
    ops: [(AtomicU64, AtomicU64); 5],
    kicks: AtomicU64,
}

fn slot(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Flush => 2,
        Op::Discard => 3,
        Op::WriteZeroes => 4,
    }
}

impl Meter {
    pub(crate) fn count(&self, request: &Request) {
        let (ops, bytes) = &self.ops[slot(request.op)];
        ops.fetch_add(1, Relaxed);
        bytes.fetch_add(request.len, Relaxed);
    }

    pub(crate) fn kicked(&self) {
        self.kicks.fetch_add(1, Relaxed);
    }

    pub(crate) fn read(&self) -> Counters {
        let get = |op| {
            let (ops, bytes) = &self.ops[slot(op)];
            (ops.load(Relaxed), bytes.load(Relaxed))
        };
        let (reads, bytes_read) = get(Op::Read);
        let (writes, bytes_written) = get(Op::Write);
        let (discards, bytes_discarded) = get(Op::Discard);
        let (zeroes, bytes_zeroed) = get(Op::WriteZeroes);
        Counters {
            reads,
            writes,
            flushes: get(Op::Flush).0,
            discards,
            zeroes,
            bytes_read,
            bytes_written,
            bytes_discarded,
            bytes_zeroed,
            kicks: self.kicks.load(Relaxed),
        }
    }
}
