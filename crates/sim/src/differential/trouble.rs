//! What happens to one of two file systems that are compared, and must not show: calls that are given up while they wait, and too little space.

use super::Side;
use crate::driver::Driver;
use crate::ops::{self, Op, Outcome, State};
use fs::FileSystem;

/// What the right side has to bear. Which operations it happens to depends on them alone, so that they can be left out one by one.
#[derive(Clone, Copy, Debug)]
pub struct Trouble {
    /// One operation of so many is begun, given up when it has to wait ([`Driver::give_up`]), and made after that. 0: none.
    pub given_up: u32,
    /// The file system is small. What it refuses for lack of space has changed nothing, and what it writes in part counts as far as it came.
    pub full: bool,
    /// Instead of giving a call up the driver lets the device fail. A call that says EIO has changed nothing, and one that writes in part counts as far as it came.
    pub fails: bool,
}

impl Trouble {
    /// None.
    pub const NONE: Trouble = Trouble { given_up: 0, full: false, fails: false };

    /// Executes an operation, some after they have been given up once. Returns what came out, and whether it was.
    pub(super) fn execute<F: FileSystem, D: Driver>(
        self,
        side: &Side<F, D>,
        state: &mut State,
        op: &Op,
    ) -> (Outcome, bool) {
        let number = format::crc32c(format!("{op:?}").as_bytes());
        // What a seek has found is looked at with reads, which may fail unseen.
        let may_be_begun = state.may_be_repeated(op) && !(self.fails && matches!(op, Op::Seek { .. }));
        let begun = self.given_up > 0 && number.is_multiple_of(self.given_up) && may_be_begun;
        if begun {
            match side.driver.give_up(ops::execute::perform(&*side.fs, state, op), number / self.given_up) {
                Some(Outcome::Failed(libc::EIO)) if self.fails => state.forget_lent(),
                Some(outcome) => return (outcome, false),
                None => state.forget_lent(),
            }
        }
        (ops::execute(&side.driver, &*side.fs, state, op), begun)
    }

    /// What the other side is to make of an operation that came to this: `None` if it was refused for lack of space.
    pub fn as_far_as_it_came(self, op: &Op, found: &Outcome) -> Option<Op> {
        let mut op = op.clone();
        match (&mut op, found) {
            _ if !self.full && !self.fails => {}
            (Op::Write { len, .. }, &Outcome::Count(n)) if n < *len as u64 => *len = n as u32,
            (Op::CopyRange { len, .. }, &Outcome::Count(n)) => *len = n.min(*len),
            (op, &Outcome::Failed(libc::ENOSPC)) if self.full && takes_space(op) => return None,
            _ => {}
        }
        Some(op)
    }
}

/// Whether a full file system may refuse an operation.
fn takes_space(op: &Op) -> bool {
    let frees =
        matches!(op, Op::Unlink { .. } | Op::RmDir { .. } | Op::RemoveXattr { .. } | Op::Close { .. });
    let syncs = matches!(op, Op::Flush { .. } | Op::Fsync { .. } | Op::Barrier { .. } | Op::Sync);
    let reads = matches!(
        op,
        Op::Lookup { .. }
            | Op::Walk { .. }
            | Op::GetAttr { .. }
            | Op::Access { .. }
            | Op::ReadLink { .. }
            | Op::Read { .. }
            | Op::Seek { .. }
            | Op::ReadDir { .. }
            | Op::GetXattr { .. }
            | Op::ListXattr { .. }
    );
    !(frees || syncs || reads)
}
