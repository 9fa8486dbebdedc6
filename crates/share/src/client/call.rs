//! One call: a slot is taken, the request posted, the answer awaited and read.

use super::waiting::{awaits, is_run_here, register, start_helper};
use super::{GONE, Remote, Session};
use format::shared::{DATA_MAX, PAYLOAD_MAX, Reply, Request, state};
use fs::{Error, Result};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

/// A slot that a call has. Dropping it gives the call up.
struct Slot<'a> {
    session: &'a Arc<Session>,
    number: usize,
    posted: bool,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let word = self.session.region.state(self.number);
        if self.posted && word.load(Ordering::Acquire) != state::DONE {
            self.session.abandon_slot(self.number);
        } else {
            word.store(state::FREE, Ordering::Relaxed);
            self.session.give_slot(self.number);
        }
    }
}

impl Slot<'_> {
    fn post(&mut self, request: &Request) {
        let region = &self.session.region;
        region.put(self.number, request);
        region.state(self.number).store(state::POSTED, Ordering::Release);
        self.posted = true;
        region.doorbell().fetch_or(1 << self.number, Ordering::SeqCst);
        self.session.ring();
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let done = || self.session.region.state(self.number).load(Ordering::Acquire) == state::DONE;
        if done() {
            return Poll::Ready(Ok(()));
        }
        if self.session.is_dead() {
            return Poll::Ready(Err(GONE));
        }
        if !awaits(self.session, self.number) {
            register(self.session, self.number, cx.waker());
            // The answer may have come before the helper knew of it; then it would still find it, a tick later.
        }
        Poll::Pending
    }
}

/// The answer to a call, still in its slot.
pub(super) struct Answer<'a> {
    slot: Slot<'a>,
    len: usize,
    pub value: u64,
    /// See `format::shared::Reply`.
    pub window: u64,
}

impl Answer<'_> {
    /// Bytes of payload.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Copies the payload to the beginning of `to`, as much of it as there is room for.
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        self.copy_from(0, to)
    }
    /// As [`Answer::copy_to`], of the payload from `at` on.
    pub fn copy_from(&self, at: usize, to: &mut [u8]) -> usize {
        let n = self.len.saturating_sub(at).min(to.len());
        self.slot.session.region.get_payload(self.slot.number, at, &mut to[..n]);
        n
    }
    /// The payload.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_to(&mut bytes);
        bytes
    }
}

impl Remote {
    /// Has the manager do something for whose end nobody needs to wait: it is done before any call that this or another client posts later.
    /// False when that cannot be promised now, and nothing was posted.
    pub(super) fn tell(&self, request: &Request) -> bool {
        let session = &self.session;
        let region = &session.region;
        // A manager that sleeps looks at what woke it first.
        if session.is_dead() || region.asleep().load(Ordering::SeqCst) != 0 {
            return false;
        }
        let Some(number) = session.take_slot(None) else { return false };
        region.put(number, request);
        region.state(number).store(state::POSTED, Ordering::Release);
        session.slots.lock().abandoned |= 1 << number;
        region.one_way().fetch_or(1 << number, Ordering::SeqCst);
        if region.asleep().load(Ordering::SeqCst) == 0 {
            return true;
        }
        // It went to sleep meanwhile: then this is a call like any other.
        session.ring();
        while region.state(number).load(Ordering::Acquire) != state::DONE && session.check_alive() {
            std::thread::yield_now();
        }
        true
    }

    /// A call without strings.
    pub(super) async fn call(&self, request: Request) -> Result<Answer<'_>> {
        self.call_with(request, b"", b"").await
    }

    /// A call with two strings, or one and data.
    pub(super) async fn call_with(
        &self,
        mut request: Request,
        first: &[u8],
        second: &[u8],
    ) -> Result<Answer<'_>> {
        // What the manager would find too long to be anything.
        if first.len() > u16::MAX as usize
            || second.len() > DATA_MAX
            || first.len() + second.len() > PAYLOAD_MAX
        {
            return Err(Error::NameTooLong);
        }
        let session = &self.session;
        if session.is_dead() {
            return Err(GONE);
        }
        let number = poll_fn(|cx| match session.take_slot(Some(cx.waker())) {
            Some(slot) => Poll::Ready(Ok(slot)),
            None if session.is_dead() => Poll::Ready(Err(GONE)),
            None => {
                if !is_run_here() {
                    start_helper(session, cx.waker());
                }
                Poll::Pending
            }
        })
        .await?;
        let mut slot = Slot { session, number, posted: false };
        request.first = (first.len() as u16).into();
        request.second = (second.len() as u32).into();
        session.region.put_payload(number, 0, first);
        session.region.put_payload(number, first.len(), second);
        slot.post(&request);
        poll_fn(|cx| slot.poll(cx)).await?;
        let reply: Reply = session.region.get(number);
        let len = (reply.len.get() as usize).min(PAYLOAD_MAX);
        let answer = Answer { slot, len, value: reply.value.get(), window: reply.window.get() };
        match reply.errno.get() {
            0 => Ok(answer),
            errno => {
                let text = String::from_utf8_lossy(&answer.bytes()).into_owned();
                Err(Error::from_errno(errno, text))
            }
        }
    }
}
