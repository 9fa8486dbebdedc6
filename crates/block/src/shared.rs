//! The state of a volume behind its lock, and what it shares with callers and the worker without the lock.

use crate::core::Core;
use crate::driver::{Attendant, Bed, Driver};
use crate::group::Durable;
use crate::loans::Loans;
use fs::cache::Pins;
use fs::{Interrupt, LockTable};
use media::{Arena, Media};
use parking_lot::{Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) struct Shared {
    core: Mutex<Core>,
    pub media: Arc<dyn Media>,
    pub arena: Arc<Arena>,
    pub pins: Pins,
    /// A writer waits for memory that readers have pinned.
    pub starving: Arc<AtomicBool>,
    /// Frames that readers hold.
    pub loans: Arc<Loans>,
    pub locks: LockTable,
    /// Where the worker sleeps while it does not drive.
    pub bed: Bed,
    pub attendant: Attendant,
    /// Makes a driving caller look whether its call is over.
    pub interrupt: Interrupt,
    /// What callers look at that wait for durability.
    pub durable: Arc<Durable>,
    /// Makes them look.
    pub rouse: Interrupt,
}

/// The lock on the state. When it is released, transfers that were queued are handed to the device, and whoever was
/// woken is woken: neither happens under the lock.
pub(crate) struct Locked<'a> {
    core: Option<MutexGuard<'a, Core>>,
    shared: &'a Shared,
}

impl Deref for Locked<'_> {
    type Target = Core;
    fn deref(&self) -> &Core {
        self.core.as_ref().expect("held until drop")
    }
}
impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        self.core.as_mut().expect("held until drop")
    }
}
impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let Some(mut core) = self.core.take() else { return };
        let kick = std::mem::take(&mut core.kick);
        let wake = std::mem::take(&mut core.wake_worker);
        let driven = core.driving.by == Driver::Worker;
        let call = core.needs_driver() || (wake && !driven);
        let attended = core.driving.by == Driver::Attendant;
        self.shared.attendant.drives.store(attended, Ordering::Relaxed);
        let woken = std::mem::take(&mut core.woken);
        let over = std::mem::take(&mut core.group.over);
        self.shared.durable.note(core.durable, core.latched.is_some(), core.refusals);
        drop(core);
        if kick && !(attended && self.shared.attendant.gathers()) {
            self.shared.media.kick();
        }
        self.shared.durable.wake(over);
        woken.into_iter().for_each(|w| w.wake());
        if wake && driven {
            self.shared.media.wake();
        }
        if call {
            self.shared.bed.call();
        }
    }
}

impl Shared {
    pub fn new(core: Core) -> Arc<Shared> {
        let media = core.media.clone();
        let durable = Arc::new(Durable::default());
        let shared = Arc::new_cyclic(|shared| Shared {
            loans: Arc::new(Loans::new(core.cache.arena().len(), core.starving.clone(), shared.clone())),
            arena: core.cache.arena().clone(),
            pins: core.cache.pins().clone(),
            starving: core.starving.clone(),
            core: Mutex::new(core),
            locks: LockTable::new(),
            bed: Bed::default(),
            attendant: Attendant::default(),
            interrupt: Arc::new({
                let media = media.clone();
                move || media.wake()
            }),
            rouse: Arc::new({
                let durable = durable.clone();
                move || durable.wake_all()
            }),
            durable,
            media,
        });
        shared.core.lock().identity = shared.identity();
        shared
    }
    pub fn lock(&self) -> Locked<'_> {
        Locked { core: Some(self.core.lock()), shared: self }
    }
    /// Has the worker look at the state, wherever it is.
    pub fn call_worker(&self) {
        self.media.wake();
        self.bed.call();
    }
}
