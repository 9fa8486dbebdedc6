//! Waking clients whose calls are answered, several at a time.
//!
//! A thread that is woken may run at once on the manager's processor, before the manager is through: then each call costs two switches of threads
//! on either side. So who sleeps is woken when the calls that were there are answered, or when that takes long.

use crate::region::{Region, SlotNo};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Clients that are not woken yet, at most: the other processors may have nothing else to do.
const MOST: usize = 8;
/// How long somebody waits for others' answers, at most one call's time longer.
const AGE: Duration = Duration::from_micros(50);

/// Slots that are answered, and whose clients sleep.
#[derive(Default)]
pub(crate) struct Wakes(Mutex<Pending>);

#[derive(Default)]
struct Pending {
    slots: Vec<(Arc<Region>, SlotNo)>,
    since: Option<Instant>,
}

impl Pending {
    fn wake_all(&mut self) {
        self.since = None;
        self.slots.drain(..).for_each(|(region, slot)| region.wake(slot));
    }
}

impl Wakes {
    /// Says that a slot is answered. Its client is woken soon, if it sleeps.
    pub fn answered(&self, region: &Arc<Region>, slot: SlotNo) {
        if region.answer(slot) {
            let mut pending = self.0.lock();
            pending.slots.push((region.clone(), slot));
            match pending.since {
                None => pending.since = Some(Instant::now()),
                Some(since) if pending.slots.len() >= MOST || since.elapsed() > AGE => pending.wake_all(),
                Some(_) => {}
            }
        }
    }

    /// Wakes everybody whose call is answered.
    pub fn wake_all(&self) {
        self.0.lock().wake_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;
    use format::shared::{SESSION_BYTES, state};
    use std::sync::atomic::Ordering;

    /// Slots that are said to be answered while their clients sleep, and how many of them wait to be woken after each.
    #[test]
    fn sleepers_are_woken_together_and_soon() {
        let region = Arc::new(Region::map(memory::sealed(c"test", SESSION_BYTES).unwrap()).unwrap());
        let wakes = Wakes::default();
        let answer = |slot, was| {
            region.state(slot).store(was, Ordering::SeqCst);
            wakes.answered(&region, slot);
            assert_eq!(region.state(slot).load(Ordering::SeqCst), state::DONE, "it is answered at once");
            wakes.0.lock().slots.len()
        };
        assert_eq!(answer(0, state::POSTED), 0, "it does not sleep");
        assert_eq!(answer(1, state::SLEEPING), 1);
        wakes.wake_all();
        assert!(wakes.0.lock().slots.is_empty() && wakes.0.lock().since.is_none());
        answer(2, state::SLEEPING);
        std::thread::sleep(2 * AGE);
        assert_eq!(answer(3, state::SLEEPING), 0, "the first of them has waited long enough");
        for slot in 0..2 * MOST {
            assert!(answer(slot, state::SLEEPING) < MOST);
        }
    }
}
