//! Mounts what a power failure left, and finds the state that it shows.

use super::Rig;
use super::moments::Moment;
use super::record::Recording;
use crate::compare::{Options, Picture};
use crate::model::Body;
use crate::model::data::{Data, PAGE};
use fs::Ino;
use media::SimFlash;
use std::sync::Arc;

/// What was found.
pub(super) struct Found {
    /// Index of the state.
    pub state: usize,
    /// With overwrites from later states.
    pub early: bool,
}

/// Differences that a failure tells, from either end of what may be found.
const TOLD: usize = 6;

/// Mounts what a power failure left, and reads all of it.
pub(super) fn look<R: Rig>(rig: &R, media: Arc<SimFlash>) -> Result<Picture, String> {
    let (fs, driver) = rig.open(media).map_err(|e| format!("the volume does not mount: {e}"))?;
    Picture::of(&driver, &*fs).map_err(|e| format!("the volume cannot be read: {e}"))
}

/// Which of the states that are possible at `moment` was found. `unit`: the device's atomic unit, bytes.
pub(super) fn verify(
    found: &Picture,
    strict: bool,
    unit: u64,
    recording: &Recording,
    moment: &Moment,
) -> Result<Found, String> {
    let mut differences = Vec::new();
    for state in (moment.floor..=moment.top).rev() {
        let expected = Picture::of_snapshot(&recording.states[state].snapshot);
        let mut early = false;
        let last = if strict { state } else { last_early(recording, state, moment.top) };
        let mut excuse = |ino: Ino, a: &Data, b: &Data| {
            early = true;
            last > state && seen_early(recording, state + 1..=last, ino, unit, a, b)
        };
        match expected.compare_but(found, Options::default(), &mut excuse) {
            Ok(()) => return Ok(Found { state, early }),
            Err(difference) => differences.push(format!("state {state}: {difference}")),
        }
    }
    let of = differences.len();
    if of > 2 * TOLD {
        // The newest states and the oldest ones tell most.
        differences.drain(TOLD..of - TOLD);
    }
    Err(format!("in none of the {of} states it may be in\n    {}", differences.join("\n    ")))
}

/// The newest state whose overwrites may be seen when `state` is found: nothing that began after a barrier had returned which
/// orders something that `state` lacks.
fn last_early(recording: &Recording, state: usize, top: usize) -> usize {
    let op = recording.states[state].op;
    let behind = recording.closing.iter().filter(|(called, _)| op.is_none_or(|op| *called > op));
    match behind.map(|(_, returned)| *returned).min() {
        Some(returned) => recording.states.partition_point(|s| s.op.is_none_or(|o| o <= returned)) - 1,
        None => top,
    }
    .min(top)
}

/// Whether every unit of `found` that is not as in `expected` lies in a page that was there, and is as in one of `later`.
fn seen_early(
    recording: &Recording,
    later: std::ops::RangeInclusive<usize>,
    ino: Ino,
    unit: u64,
    expected: &Data,
    found: &Data,
) -> bool {
    let read = |data: &Data, at: u64| {
        let mut bytes = vec![0; unit as usize];
        data.read(at, &mut bytes);
        bytes
    };
    let sources: Vec<&Data> = later
        .filter_map(|state| match &recording.states[state].snapshot.nodes.get(&ino)?.body {
            Body::File(data) => Some(data),
            _ => None,
        })
        .collect();
    let mut offsets: Vec<u64> = expected.present().chain(found.present()).map(|(at, _)| at).collect();
    offsets.sort_unstable();
    offsets.dedup();
    let units =
        offsets.iter().flat_map(|&at| (at..at + PAGE).step_by(unit as usize)).filter(|&at| at < found.size());
    for at in units {
        let there = read(found, at);
        if there == read(expected, at) {
            continue;
        }
        let was_hole = expected.next_data(at).is_none_or(|data| data / PAGE != at / PAGE);
        // Behind the end of the file found, a later state may hold more.
        let len = (found.size() - at).min(unit) as usize;
        if was_hole || !sources.iter().any(|data| read(data, at)[..len] == there[..len]) {
            return false;
        }
    }
    true
}
