//! Calls that wait for locks keep their slots for as long as that takes: there are some for others at all times, for who has the lock and gives it up above all. Where too
//! many wait already, the next ones ask again and again; circles of owners that wait for each other are not found through these.

use super::waiting::pause;
use super::{Remote, Session};
use format::shared::SLOTS;
use fs::{Error, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Calls of a session that may wait for locks at a time.
const MOST: usize = SLOTS - 8;

/// How long who may not wait does nothing before he asks again.
const PAUSE: Duration = Duration::from_millis(5);

/// A call about a lock.
pub(super) struct Turn<'a> {
    /// It is meant to wait.
    wanted: bool,
    /// It may: counted until the turn is over.
    counted: Option<&'a AtomicUsize>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(waiters) = self.counted {
            waiters.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Remote {
    /// To be taken for a call about a lock that is meant to wait for it, or not.
    pub(super) fn turn(&self, wanted: bool) -> Turn<'_> {
        let session: &Session = self.now();
        let one_more = |n| (n < MOST).then_some(n + 1);
        let may =
            wanted && session.waiters.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok();
        Turn { wanted, counted: may.then_some(&session.waiters) }
    }
}

impl Turn<'_> {
    /// Whether the call waits.
    pub(super) fn waits(&self) -> bool {
        self.counted.is_some()
    }

    /// Whether the call, which has ended so, is to be made once more: then it is time for that.
    ///
    /// # Errors
    /// The calls of this thread were interrupted meanwhile.
    pub(super) async fn asks_again<T>(&self, done: &Result<T>) -> Result<bool> {
        if self.waits() || !self.wanted || !matches!(done, Err(Error::WouldBlock)) {
            return Ok(false);
        }
        match pause(PAUSE).await {
            true => Err(Error::Interrupted),
            false => Ok(true),
        }
    }
}
