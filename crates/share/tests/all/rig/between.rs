//! Something that happens at a certain moment of somebody else's call.

use super::Rig;
use fs::leases::{Call, Caller, Lender, Settling};
use fs::watched::{Change, Told, Undeclared, Watched, Watcher};
use fs::{FileSystem, Ino};
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

type Act = Box<dyn FnOnce() + Send>;

/// Those who come to it wait until it is open.
#[derive(Default)]
pub struct Gate(Mutex<(bool, Vec<Waker>)>);

impl Gate {
    pub fn opens(&self) {
        let wakers = {
            let mut state = self.0.lock();
            state.0 = true;
            std::mem::take(&mut state.1)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    pub fn is_open(&self) -> bool {
        self.0.lock().0
    }

    pub async fn passes(&self) {
        poll_fn(|cx| {
            let mut state = self.0.lock();
            if state.0 {
                return Poll::Ready(());
            }
            state.1.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// A moment of a call, known by the inode that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// It is looked whether somebody else has a lease.
    Looks(Ino),
    /// It is told that attributes have changed.
    Changes(Ino),
    /// All of a file is told to have changed, as when a window of it is about to be granted.
    TellsAll(Ino),
    /// A name of it is about to go, and clients of sessions have been looked for that hold it.
    Declared(Ino),
}

/// Acts once in a moment, on the thread that comes to it.
#[derive(Default)]
pub struct Between {
    acts: Mutex<Vec<(Moment, Act)>>,
    held: Mutex<Option<(Ino, Arc<Gate>)>>,
}

impl Between {
    /// Before there is a server: it is asked first then.
    pub fn before<F: FileSystem>(doors: &Watched<F>) -> Arc<Between> {
        let between = Arc::new(Between::default());
        doors.lend(between.clone());
        // Who lends nothing is not asked.
        doors.lease_begins();
        between
    }

    /// Beside a server: it is told last then.
    pub fn beside<F: FileSystem>(rig: &Rig<F>) -> Arc<Between> {
        let between = Arc::new(Between::default());
        between.watches(rig);
        between
    }

    /// From now on it is told, too.
    pub fn watches<F: FileSystem>(self: &Arc<Between>, rig: &Rig<F>) {
        rig.doors.door().watch(self.clone());
    }

    /// Does something when somebody comes to that moment the next time.
    pub fn at(&self, moment: Moment, act: impl FnOnce() + Send + 'static) {
        self.acts.lock().push((moment, Box::new(act)));
    }

    /// From now on calls on a file, one that closes it for one, wait until the gate is open.
    pub fn holds(&self, ino: Ino) -> Arc<Gate> {
        let gate = Arc::new(Gate::default());
        *self.held.lock() = Some((ino, gate.clone()));
        gate
    }

    fn gate(&self, ino: Ino) -> Option<Arc<Gate>> {
        let held = self.held.lock();
        held.as_ref().filter(|(held, gate)| *held == ino && !gate.is_open()).map(|(_, gate)| gate.clone())
    }

    /// Whether all of it was done, or begun.
    pub fn is_over(&self) -> bool {
        self.acts.lock().is_empty()
    }

    fn comes(&self, moment: Moment) {
        let act = {
            let mut all = self.acts.lock();
            all.iter().position(|(at, _)| *at == moment).map(|n| all.remove(n).1)
        };
        act.into_iter().for_each(|act| act());
    }
}

impl Lender for Between {
    fn lends(&self, ino: Ino, _: Caller) -> bool {
        self.comes(Moment::Looks(ino));
        self.gate(ino).is_some()
    }
    fn may_lend(&self, _: Ino, _: Caller) -> bool {
        false
    }
    fn settle(&self, file: Option<(Ino, Call)>, _: Caller) -> Settling<'_> {
        let gate = file.and_then(|(ino, _)| self.gate(ino));
        Box::pin(async move {
            if let Some(gate) = gate {
                gate.passes().await;
            }
            Ok(())
        })
    }
}

impl Watcher for Between {
    fn changed(&self, change: &Change<'_>) -> Option<Told> {
        match *change {
            Change::Data { ino, start: 0, end: u64::MAX } => self.comes(Moment::TellsAll(ino)),
            Change::Attr { ino } => self.comes(Moment::Changes(ino)),
            _ => {}
        }
        None
    }
    fn undeclared(&self, ino: Ino) -> Undeclared {
        self.comes(Moment::Declared(ino));
        Undeclared::default()
    }
}
