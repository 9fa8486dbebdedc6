//! Calls that get a lock, and wait for it where they are to.

use super::{Inner, LockTable, Locks, Waiter, Want};
use crate::error::{Error, Result};
use format::Ino;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// A call that gets a lock. `id` names its waiter once it has one.
pub(super) struct Acquire<'a> {
    pub table: &'a LockTable,
    pub ino: Ino,
    pub want: Want,
    pub wait: bool,
    pub id: Option<u64>,
}

impl Acquire<'_> {
    /// Tries to get the lock; `Pending` leaves a waiter behind. A waker that it replaces goes to `old`. `freed`: somebody else may be able to go on.
    fn attempt(
        &mut self,
        inner: &mut Inner,
        cx: &Context<'_>,
        old: &mut Option<Waker>,
        freed: &mut bool,
    ) -> Poll<Result<()>> {
        let want = self.want;
        let Inner { inodes, spans, .. } = &mut *inner;
        let locks = inodes.entry(self.ino).or_default();
        if matches!(want, Want::Record(..)) {
            locks.settle(spans);
        }
        if !locks.refuses(&want) {
            // In the middle of another it makes three of one.
            if let Want::Record(owner, _) = want
                && !spans.have_room(owner, 2)
            {
                return Poll::Ready(Err(Error::TooManyLocks));
            }
            *freed = locks.grant(want, spans);
            return Poll::Ready(Ok(()));
        }
        if !self.wait {
            return Poll::Ready(Err(Error::WouldBlock));
        }
        if let Some((owner, lock)) = want.for_ever()
            && inner.deadlocks(owner, self.ino, lock)
        {
            return Poll::Ready(Err(Error::Deadlock));
        }
        if let Some(id) = self.id {
            let locks = inner.locks(self.ino);
            if let Some(waiter) = locks.place(id).and_then(|at| locks.waiters.get_mut(at)) {
                if !waiter.waker.will_wake(cx.waker()) {
                    *old = Some(std::mem::replace(&mut waiter.waker, cx.waker().clone()));
                }
                // One that failed again stands aside.
                *freed = std::mem::take(&mut waiter.woken);
            }
            return Poll::Pending;
        }
        let id = inner.next_waiter;
        inner.next_waiter += 1;
        self.id = Some(id);
        if let Some((owner, lock)) = want.for_ever() {
            inner.waiting.entry(owner).or_default().push((id, self.ino, lock));
        }
        let waiter = Waiter { id, want, waker: cx.waker().clone(), woken: false, since: Instant::now() };
        inner.locks(self.ino).waiters.push_back(waiter);
        Poll::Pending
    }

    /// Takes the waiter out of the queue and returns it, for the caller to drop without the mutex: that may drop a task which waits here.
    /// Where the waiter has not got its lock, whom it kept back can go on: `freed`.
    fn finish(&mut self, inner: &mut Inner, granted: bool, freed: &mut bool) -> Option<Waiter> {
        let waiter = self.id.take().and_then(|id| inner.forget(self.ino, id));
        *freed |= !granted && waiter.as_ref().is_some_and(|w| w.woken);
        waiter
    }

    /// The wakers of those that can go on now, when there may be any.
    fn others(&self, inner: &mut Inner, freed: bool) -> Vec<Waker> {
        let locks = inner.inodes.get_mut(&self.ino).filter(|_| freed);
        let wakers = locks.map_or_else(Vec::new, Locks::wake);
        self.table.tidy(inner, self.ino);
        wakers
    }
}

impl Future for Acquire<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        let (mut old, mut freed, mut waiter) = (None, false, None);
        let mut inner = this.table.inner.lock();
        let cancelled =
            this.id.is_some_and(|id| inner.inodes.get(&this.ino).is_none_or(|l| l.place(id).is_none()));
        let result = if cancelled {
            Poll::Ready(Err(Error::BadHandle))
        } else {
            this.attempt(&mut inner, cx, &mut old, &mut freed)
        };
        if let Poll::Ready(outcome) = &result {
            waiter = this.finish(&mut inner, outcome.is_ok(), &mut freed);
        }
        let wakers = this.others(&mut inner, freed);
        drop(inner);
        drop((old, waiter));
        wakers.into_iter().for_each(Waker::wake);
        result
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        if self.id.is_some() {
            let mut inner = self.table.inner.lock();
            let mut freed = false;
            let _waiter = self.finish(&mut inner, false, &mut freed);
            let wakers = self.others(&mut inner, freed);
            drop(inner);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}
