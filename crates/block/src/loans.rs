//! What is lent of the page cache (`fs::Pages`): bounded, so that transfers and writers always find frames.

use crate::core::Wait;
use crate::shared::Shared;
use fs::cache::{Lender, PAGE, Pages, Pins};
use media::Arena;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

pub(crate) struct Loans {
    /// Bytes lent now, and how many may be.
    lent: AtomicUsize,
    max: usize,
    starving: Arc<AtomicBool>,
    /// Weak, because pages may be kept longer than their volume, which must not keep the device open.
    shared: Weak<Shared>,
}

impl Loans {
    /// At most a quarter of the cache is lent.
    pub fn new(cache: usize, starving: Arc<AtomicBool>, shared: Weak<Shared>) -> Loans {
        Loans { lent: AtomicUsize::new(0), max: cache / 4, starving, shared }
    }

    /// An empty loan for `len` bytes at `offset` of a file; `None` when too much is lent already.
    pub fn lend(
        this: &Arc<Loans>,
        arena: &Arc<Arena>,
        pins: &Pins,
        offset: u64,
        len: usize,
    ) -> Option<Pages> {
        // Whole frames are pinned, whatever part of them is wanted.
        let bytes = (len.checked_add(offset as usize % PAGE)?).checked_next_multiple_of(PAGE)?;
        let more = |lent: usize| lent.checked_add(bytes).filter(|&sum| sum <= this.max);
        this.lent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Pages::lent(arena.clone(), pins.clone(), this.clone(), bytes))
    }
}

impl Lender for Loans {
    fn returned(&self, bytes: usize) {
        self.lent.fetch_sub(bytes, Ordering::Relaxed);
        if self.starving.swap(false, Ordering::AcqRel)
            && let Some(shared) = self.shared.upgrade()
        {
            shared.lock().wake(Wait::Progress);
        }
    }
}
