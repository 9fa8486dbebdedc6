//! A record of everything that mattered for power failures, to be replayed to any moment.
//!
//! An enumerator runs a workload once with tracing on, then visits each moment: in order with a [`Cursor`], which costs
//! one event per step, or anywhere with [`Trace::state_at`], which replays from the nearest checkpoint.

use super::cache::{CrashState, Event};

/// Events between checkpoints.
const STEP: usize = 64;

/// Events since tracing began.
#[derive(Clone)]
pub struct Trace {
    events: Vec<Event>,
    /// State before event 0, `STEP`, 2 `STEP`, ... Copies share their contents.
    checkpoints: Vec<CrashState>,
}

impl Trace {
    pub(super) fn new(start: CrashState) -> Trace {
        Trace { events: Vec::new(), checkpoints: vec![start] }
    }

    /// Appends an event; `after` is the state behind it.
    pub(super) fn record(&mut self, event: Event, after: &CrashState) {
        self.events.push(event);
        if self.events.len().is_multiple_of(STEP) {
            self.checkpoints.push(after.clone());
        }
    }

    /// What happened, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The state when the first `index` events have happened. Panics when there are not so many.
    pub fn state_at(&self, index: usize) -> CrashState {
        assert!(index <= self.events.len(), "moment behind the end of the trace");
        let near = index / STEP;
        let mut state = self.checkpoints[near].clone();
        self.events[near * STEP..index].iter().for_each(|event| state.apply(event));
        state
    }

    /// A walk through all moments, beginning before the first event.
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor { trace: self, state: self.checkpoints[0].clone(), index: 0 }
    }
}

/// A moment of a trace.
pub struct Cursor<'a> {
    trace: &'a Trace,
    state: CrashState,
    index: usize,
}

impl<'a> Cursor<'a> {
    /// The state at this moment.
    pub fn state(&self) -> &CrashState {
        &self.state
    }

    /// Number of events that have happened.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Goes on to the moment after the next event and returns that event; `None` at the end.
    pub fn step(&mut self) -> Option<&'a Event> {
        let event = self.trace.events.get(self.index)?;
        self.state.apply(event);
        self.index += 1;
        Some(event)
    }
}
