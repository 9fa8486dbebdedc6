//! Memory of arenas as huge pages: clients that read here and there spend a good part of their time on finding pages (the processor's tables, in a virtual
//! machine those of two systems).

use super::Arena;
use crate::memory::HUGE;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;

/// A part of an arena's memory, as long as a huge page and at a multiple of that, of which all pages are in use, or should be.
pub(super) struct Whole {
    pub arena: Arc<Arena>,
    pub offset: usize,
}

/// Starts a thread that has such parts become huge pages, until nobody sends any more. What the kernel does not join stays as it is.
pub(super) fn joining() -> Option<Sender<Whole>> {
    let (send, receive) = channel::<Whole>();
    let join = move || {
        for Whole { arena, offset } in receive {
            if let Err(e) = arena.memory.join(offset, HUGE) {
                tracing::debug!("pages stay apart: {e}");
            }
        }
    };
    Builder::new().name("freehold-pages".into()).spawn(join).is_ok().then_some(send)
}
