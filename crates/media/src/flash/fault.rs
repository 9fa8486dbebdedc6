//! Failures on demand.
//!
//! Faults count requests in the order of submission, so that the same run meets the same fault whatever the order of
//! completions is.

use crate::{Op, Request};
use std::ops::Range;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The request fails with this errno(3) value. A write that fails may still be there after a power failure, in any
    /// part, until a flush; reads do not see it.
    Errno(i32),
    /// Only this many bytes are transferred, rounded down to sectors; always less than asked for. Flushes, discards and
    /// zeroing fail with EIO instead.
    Short(u64),
    /// The device goes away: this and all requests that have not completed fail, and all later ones.
    Gone,
}

/// A fault that waits for its request.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Kind of request; `None` for any.
    pub op: Option<Op>,
    /// Only requests that touch this range, bytes; `None` for all.
    pub range: Option<Range<u64>>,
    /// Requests of that kind that pass before one fails: 0 for the next.
    pub after: u64,
    /// All requests of that kind fail from then on, not only one.
    pub forever: bool,
    /// What happens.
    pub failure: Failure,
}

impl Fault {
    /// The `n`-th request of a kind fails with EIO, counting from 1 and from now on.
    pub fn nth(op: Option<Op>, n: u64) -> Fault {
        Fault {
            op,
            range: None,
            after: n.saturating_sub(1),
            forever: false,
            failure: Failure::Errno(libc::EIO),
        }
    }

    /// From now on requests of a kind that touch `range` fail with EIO: a bad place on the device.
    pub fn bad_range(op: Option<Op>, range: Range<u64>) -> Fault {
        Fault { op, range: Some(range), after: 0, forever: true, failure: Failure::Errno(libc::EIO) }
    }

    fn concerns(&self, request: &Request) -> bool {
        self.op.is_none_or(|op| op == request.op)
            && self.range.as_ref().is_none_or(|range| {
                request.offset < range.end && range.start < request.offset.saturating_add(request.len)
            })
    }
}

/// Faults in the order of injection. The first that strikes decides; all count.
#[derive(Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn inject(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// What happens to the next request, if anything.
    pub(super) fn strike(&mut self, request: &Request) -> Option<Failure> {
        let mut verdict = None;
        self.0.retain_mut(|fault| {
            if !fault.concerns(request) {
                return true;
            }
            if fault.after > 0 {
                fault.after -= 1;
                return true;
            }
            verdict = verdict.or(Some(fault.failure));
            fault.forever
        });
        verdict
    }
}
