//! Runs a workload on the engine and on the model, and keeps every state that the model passed through.

use super::Rig;
use crate::differential::Trouble;
use crate::driver::Driver;
use crate::model::{HandClock, Model};
use crate::ops::{self, HANDLE_SLOTS, Op, Outcome, Tolerance};
use crate::snapshot::Snapshot;
use fs::{FileSystem, OpenFlags};
use media::SimFlash;
use std::sync::Arc;

/// Writes up to this many bytes are atomic; longer ones may be cut between pieces of this size.
const CHUNK: usize = 256 << 10;

/// A tree, and the operation that led to it.
pub(super) struct State {
    pub snapshot: Snapshot,
    /// `None` for the first.
    pub op: Option<usize>,
}

/// A run.
pub(super) struct Recording {
    pub states: Vec<State>,
    /// Operations that returned success and order or make durable what was before them; and the newest operation that had
    /// begun when they returned.
    pub closing: Vec<(usize, usize)>,
    /// Those of them that make it durable.
    pub syncs: Vec<usize>,
    /// Events of the trace, for messages.
    pub events: usize,
    /// Who did what, for messages, where it is not told otherwise.
    pub told: Vec<String>,
}

/// Notes in the trace: an operation begins, or has ended.
pub(super) const BEGIN: u64 = 0;
pub(super) const END: u64 = 1 << 32;
/// The volume was stopped: everything is durable.
pub(super) const CLOSED: u64 = 2 << 32;

pub(super) fn record<R: Rig>(
    rig: &R,
    media: Arc<SimFlash>,
    start: &Snapshot,
    ops: &[Op],
    close: bool,
) -> Result<Recording, String> {
    let clock = HandClock::default();
    let model = Model::from_snapshot(start, clock.clock());
    let (fs, driver) = rig.open(media.clone()).map_err(|e| format!("open failed: {e}"))?;
    let mut recording = Recording {
        states: vec![State { snapshot: model.snapshot(), op: None }],
        closing: Vec::new(),
        syncs: Vec::new(),
        events: 0,
        told: Vec::new(),
    };
    let (mut a, mut b) = (ops::State::default(), ops::State::default());
    let mut synced = [false; HANDLE_SLOTS as usize];
    for (index, op) in ops.iter().enumerate() {
        driver.before_op(index);
        clock.set(crate::driver::FIRST_TICK + index as i64);
        media.mark(BEGIN + index as u64);
        let found = match rig.ignores(op) {
            true => ops::execute(&crate::driver::Blocking, &model, &mut b, op),
            false => ops::execute(&driver, &*fs, &mut a, op),
        };
        media.mark(END + index as u64);
        let Some(op) = &on_the_model(rig.full(&fs), op, &found) else { continue };
        let mut part = |snapshot| recording.states.push(State { snapshot, op: Some(index) });
        let expected = match found {
            Outcome::Count(_) => execute_in_chunks(&model, &mut b, op, &mut part),
            _ => ops::execute(&crate::driver::Blocking, &model, &mut b, op),
        };
        part(model.snapshot());
        if !expected.same(&found, Tolerance::TIMES) {
            return Err(format!("operation {index}, {op:?}: expected {expected:?}, found {found:?}"));
        }
        note_sync(&mut recording, &mut synced, index, op, &found);
    }
    ops::execute::close_all(&driver, &*fs, &mut a);
    if close {
        rig.close(&fs, &driver).map_err(|e| format!("close failed: {e}"))?;
        media.mark(CLOSED);
    }
    Ok(recording)
}

/// What the model is to make of an operation that came to this: `None` if it was refused for lack of space. The model has no end.
pub(super) fn on_the_model(full: bool, op: &Op, found: &Outcome) -> Option<Op> {
    let full = full || matches!(found, Outcome::Failed(libc::ENOSPC));
    Trouble { full, ..Trouble::NONE }.as_far_as_it_came(op, found)
}

fn note_sync(recording: &mut Recording, synced: &mut [bool], index: usize, op: &Op, found: &Outcome) {
    if matches!(found, Outcome::Failed(_)) {
        return;
    }
    let slot = |handle: u8| (handle % HANDLE_SLOTS) as usize;
    let sync = match *op {
        Op::Fsync { .. } | Op::Sync => true,
        Op::Write { handle, .. } => synced[slot(handle)] && matches!(found, Outcome::Count(1..)),
        Op::Open { flags, into, .. } | Op::Create { flags, into, .. } | Op::TmpFile { flags, into, .. } => {
            let flags = OpenFlags::from_bits_truncate(flags);
            synced[slot(into)] = flags.intersects(OpenFlags::SYNC | OpenFlags::DSYNC);
            false
        }
        Op::OpenDir { into, .. } => {
            synced[slot(into)] = false;
            false
        }
        _ => false,
    };
    if sync {
        recording.syncs.push(index);
    }
    if sync || matches!(op, Op::Barrier { .. }) {
        recording.closing.push((index, index));
    }
}

/// Executes an operation on the model; between the parts of a long write or copy, `part` gets the tree.
fn execute_in_chunks(
    model: &Model,
    state: &mut ops::State,
    op: &Op,
    part: &mut impl FnMut(Snapshot),
) -> Outcome {
    let driver = crate::driver::Blocking;
    match *op {
        Op::Write { handle, offset, len, pattern } if len as usize > CHUNK => {
            let handle = state.handle(handle);
            let bytes = ops::pattern(pattern, len);
            let mut done = 0;
            for chunk in bytes.chunks(CHUNK) {
                match driver.block_on(model.write(handle, offset + done, chunk)) {
                    Ok(n) => done += n as u64,
                    Err(e) if done == 0 => return Outcome::Failed(e.errno()),
                    Err(_) => break,
                }
                part(model.snapshot());
            }
            Outcome::Count(done)
        }
        Op::CopyRange { from, from_offset, to, to_offset, len } if len > CHUNK as u64 => {
            let mut done = 0;
            while done < len {
                let (from_offset, to_offset) = (from_offset + done, to_offset + done);
                let op =
                    Op::CopyRange { from, from_offset, to, to_offset, len: (len - done).min(CHUNK as u64) };
                match ops::execute(&driver, model, state, &op) {
                    Outcome::Count(0) => break,
                    Outcome::Count(n) => done += n,
                    other => return other,
                }
                part(model.snapshot());
            }
            Outcome::Count(done)
        }
        _ => ops::execute(&driver, model, state, op),
    }
}
