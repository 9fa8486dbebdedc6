//! The moments of a trace, and which states may be found after a power failure at each of them.

use super::record::{CLOSED, END, Recording};
use media::flash::{Event, Trace};
use rand::Rng;
use rand::rngs::SmallRng;

/// A moment at which power may fail.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Events that have happened.
    pub index: usize,
    /// The oldest state that may be found.
    pub floor: usize,
    /// The newest state that may be found: that of the operation in flight.
    pub top: usize,
    /// How often something became durable so far.
    pub durable: usize,
    /// The device was just told to flush, or something was just acknowledged.
    sharp: bool,
}

/// All moments at which the possible images differ from those of the moment before, or what may be found in them, from the
/// beginning of operation `from` on.
pub(super) fn find(trace: &Trace, recording: &Recording, from: usize) -> Vec<Moment> {
    let last_of = |op: usize| recording.states.partition_point(|s| s.op.is_none_or(|o| o <= op)) - 1;
    let mut moment = Moment { index: 0, floor: 0, top: 0, durable: 0, sharp: false };
    let mut moments = vec![moment];
    for (index, event) in trace.events().iter().enumerate() {
        moment.index = index + 1;
        moment.sharp = false;
        match event {
            Event::Submit(_) => {}
            Event::Complete { .. } | Event::FlushDone { .. } => {
                moment.durable += 1;
                // The images before it were the most that there were.
                if let (Event::FlushDone { .. }, Some(before)) = (event, moments.last_mut()) {
                    before.sharp = true;
                }
            }
            Event::FlushSubmit { .. } => continue,
            Event::Mark(note) => {
                if *note == CLOSED {
                    moment.floor = recording.states.len() - 1;
                } else if *note >= END {
                    let op = (*note - END) as usize;
                    if !recording.syncs.contains(&op) {
                        continue;
                    }
                    // A sync that took longer than a later one promises less.
                    moment.floor = moment.floor.max(last_of(op));
                } else {
                    moment.top = last_of(*note as usize);
                    if from > 0 && *note as usize == from {
                        moments.clear();
                        moments.push(moment);
                    }
                    continue;
                }
                moment.sharp = true;
            }
        }
        moments.push(moment);
    }
    moments
}

/// At most `most` of the moments, in order: all sharp ones if there is room for them, others by chance.
pub(super) fn choose(all: Vec<Moment>, most: usize, rng: &mut SmallRng) -> Vec<Moment> {
    if all.len() <= most {
        return all;
    }
    let sharp = all.iter().filter(|m| m.sharp).count();
    let part = |of: usize, want: usize| (want as f64 / of.max(1) as f64).min(1.0);
    let take_sharp = part(sharp, most / 2);
    let take_other = part(all.len() - sharp, most - (most / 2).min(sharp));
    all.into_iter().filter(|m| rng.random_bool(if m.sharp { take_sharp } else { take_other })).collect()
}
