//! Memory of arenas as huge pages: clients that read here and there spend a good part of their time on finding pages (the processor's tables, in a virtual
//! machine those of two systems).

use super::{Arena, PAGE};
use crate::memory::HUGE;
use format::shared::ARENA_DATA_AT;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Between two parts that have something in them, so many times as long passes as one of them takes: who reads there waits meanwhile, and whoever reads here and there
/// soon does.
const REST: u32 = 9;

/// So many parts are made huge pages before they are used, while nobody reads there yet; fewer while few are in use, unless somebody does without memory for now.
const AHEAD: usize = 4;

/// Up to which part that is so when this one is used, of so many.
pub(super) fn ahead(part: usize, wanted: bool, parts: usize) -> usize {
    let more = if wanted { AHEAD } else { part.min(AHEAD) };
    (part + 1 + more).min(parts)
}

/// A part of an arena's memory, as long as a huge page and at a multiple of that.
pub(super) struct Whole {
    pub arena: Arc<Arena>,
    pub offset: usize,
    /// None of its pages was in use when this was sent.
    pub empty: bool,
}

impl Whole {
    /// It was empty, and is no longer.
    fn is_late(&self) -> bool {
        let used = ARENA_DATA_AT + self.arena.used.load(Ordering::Relaxed) as usize * PAGE;
        self.empty && self.offset < used
    }

    fn join(&self) {
        let memory = &self.arena.memory;
        // What was given back to other arenas would come back with the rest, and counts as theirs.
        if !self.empty && self.offset >= ARENA_DATA_AT && !memory.is_there(self.offset, HUGE) {
            return;
        }
        // The kernel joins nothing where there is nothing.
        memory.word(self.offset).load(Ordering::Relaxed);
        if let Err(e) = memory.join(self.offset, HUGE) {
            tracing::debug!("pages stay apart: {e}");
        }
    }
}

/// Starts a thread that has such parts become huge pages, until nobody sends any more: empty ones at once, unless they are in use by then, others one after the
/// other with rests between them. What the kernel does not join stays as it is.
pub(super) fn joining() -> Option<Sender<Whole>> {
    let (send, receive) = channel();
    Builder::new().name("freehold-pages".into()).spawn(move || run(&receive)).is_ok().then_some(send)
}

fn run(receive: &Receiver<Whole>) {
    let (mut full, mut rests_until) = (VecDeque::new(), Instant::now());
    loop {
        let rest = match full.is_empty() {
            true => Duration::MAX,
            false => rests_until.saturating_duration_since(Instant::now()),
        };
        match receive.recv_timeout(rest) {
            Ok(part) if !part.empty => full.push_back(part),
            Ok(part) => {
                if !part.is_late() {
                    part.join();
                }
                let end = (part.offset + HUGE - ARENA_DATA_AT) / PAGE;
                part.arena.ready.fetch_max(end as u32, Ordering::Relaxed);
            }
            Err(RecvTimeoutError::Timeout) => {
                let begun = Instant::now();
                full.pop_front().inspect(Whole::join);
                rests_until = Instant::now() + begun.elapsed() * REST;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::arena::PART;

    #[test]
    fn what_was_given_back_stays_away() {
        let arena = Arc::new(Arena::new(&fs::Cred::root(), 2 * PART).unwrap());
        for part in 0..2 {
            let offset = ARENA_DATA_AT + part * HUGE;
            (0..PART).for_each(|page| arena.memory.copy_in(offset + page * PAGE, &[1]));
            assert!(arena.memory.is_there(offset, HUGE));
            let given_back = offset + 7 * PAGE;
            if part == 1 {
                arena.memory.discard(given_back, PAGE);
            }
            Whole { arena: arena.clone(), offset, empty: false }.join();
            assert_eq!(arena.memory.is_there(given_back, PAGE), part == 0);
            assert!(arena.memory.is_there(offset, PAGE));
        }
    }

    #[test]
    fn few_parts_are_made_while_few_are_used() {
        let ends = |wanted| (0..8).map(|part| ahead(part, wanted, 20)).collect::<Vec<_>>();
        assert_eq!(ends(false), [1, 3, 5, 7, 9, 10, 11, 12]);
        assert_eq!(ends(true), [5, 6, 7, 8, 9, 10, 11, 12]);
    }
}
