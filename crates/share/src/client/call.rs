//! One call: a slot is taken, the request posted, the answer awaited and read.

use super::kept::Kept;
use super::resizes::Resize;
use super::unwanted::Opens;
use super::waiting::{NAP, awaits, is_run_here, register, start_helper};
use super::{Remote, Session};
use crate::wire::{self, Op};
use format::shared::{CALL_DATA_MAX, DATA_MAX, PAYLOAD_MAX, Reply, Request, state};
use fs::{Error, Handle, OpenFlags, Result};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

/// A slot that a call has. Dropping it gives the call up.
struct Slot<'a> {
    session: &'a Arc<Session>,
    number: usize,
    posted: bool,
    /// What the manager is told when the answer is no longer needed. Nobody waits for that.
    then: Option<Request>,
    /// What the answer tells of that nobody has yet.
    opens: Option<Opens>,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let word = self.session.region.state(self.number);
        if self.posted && word.load(Ordering::Acquire) != state::DONE {
            self.session.abandon_slot(self.number, self.opens);
        } else if let Some(request) =
            self.then.take().or_else(|| self.session.closing(self.number, self.opens?))
        {
            // In the same slot: who waited for another one while he has this could do so for ever, as all others may do the same.
            self.post(&request);
            self.session.slots.lock().abandoned |= 1 << self.number;
            self.session.ring();
        } else {
            word.store(state::FREE, Ordering::Relaxed);
            self.session.give_slot(self.number);
        }
    }
}

impl Slot<'_> {
    fn post(&mut self, request: &Request) {
        self.session.post(self.number, request);
        self.posted = true;
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<std::result::Result<(), Failed>> {
        let done = || self.session.region.state(self.number).load(Ordering::Acquire) == state::DONE;
        if done() {
            return Poll::Ready(Ok(()));
        }
        if self.session.is_dead() {
            // It may have answered before it ended. What it had not taken still stands in the doorbell.
            let rung = self.session.region.doorbell().load(Ordering::SeqCst) >> self.number & 1 != 0;
            return Poll::Ready(if done() { Ok(()) } else { Err(Failed::Lost { taken: !rung }) });
        }
        if !awaits(self.session, self.number) {
            register(self.session, self.number, cx.waker());
            // The answer may have come before the helper knew of it; then it would still find it, a tick later.
        }
        Poll::Pending
    }
}

/// Why a call has no answer.
pub(super) enum Failed {
    /// This is the answer.
    With(Error),
    /// The manager has ended. Whether it may have done what it was asked for.
    Lost { taken: bool },
}

/// The answer to a call, still in its slot.
pub(super) struct Answer<'a> {
    slot: Slot<'a>,
    len: usize,
    pub value: u64,
    /// Changes that this client had posted when it asked.
    pub posts: u64,
    /// Bytes of data that there was room for, of what was asked for or given.
    pub room: usize,
    /// See `format::shared::Reply`.
    pub pages: u64,
    pub noted: u64,
    pub handle: u64,
    pub unheld: u64,
    pub lent: u64,
    pub lent_room: u64,
}

impl Answer<'_> {
    /// What the manager is told when this is dropped.
    pub(super) fn then(&mut self, request: Option<Request>) {
        self.slot.then = request;
    }

    /// Serial of the session with which it came.
    pub fn session(&self) -> u64 {
        self.slot.session.serial
    }
    /// The session with which it came.
    pub fn of(&self) -> &Session {
        self.slot.session
    }
    /// What that keeps.
    pub fn kept(&self) -> &Kept {
        &self.slot.session.kept
    }

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

impl Session {
    /// The manager may sleep: who waits for the answer wakes it.
    pub(super) fn post(&self, number: usize, request: &Request) {
        let region = &self.region;
        region.put(number, request);
        region.state(number).store(state::POSTED, Ordering::Release);
        // Who gave up what was here before may have said so when it was done already. The manager looks for new calls first.
        if region.cancel().load(Ordering::Relaxed) >> number & 1 != 0 {
            region.cancel().fetch_and(!(1 << number), Ordering::SeqCst);
        }
        region.doorbell().fetch_or(1 << number, Ordering::SeqCst);
    }

    /// See [`Remote::tell`].
    pub(super) fn tell(&self, request: &Request) -> bool {
        let region = &self.region;
        // A manager that sleeps looks at what woke it first.
        if self.is_dead() || region.asleep().load(Ordering::SeqCst) != 0 {
            return false;
        }
        let Some(number) = self.directories.post(self, request) else { return false };
        if region.asleep().load(Ordering::SeqCst) != 0 {
            // It went to sleep meanwhile: then this is a call like any other.
            self.ring();
            let done = || region.state(number).load(Ordering::Acquire) == state::DONE;
            while !self.looks_for(done) && self.check_alive() {
                // Many threads that look would keep the manager from the processor that it was just woken for.
                self.sleep_until_answered(number, NAP);
            }
        }
        // From now on the slot may be another call's.
        self.slots.lock().abandoned |= 1 << number;
        true
    }

    /// A call for which this thread waits, and the two numbers of its answer. [`Error::Closed`]: the manager has ended.
    pub(super) fn call_now(self: &Arc<Session>, request: &Request) -> Result<(u64, u64)> {
        let number = loop {
            match self.take_slot(None) {
                Some(number) => break number,
                None if !self.check_alive() => return Err(Error::Closed),
                None => std::thread::sleep(std::time::Duration::from_micros(100)),
            }
        };
        let mut slot = Slot { session: self, number, posted: false, then: None, opens: None };
        slot.post(request);
        self.ring();
        let done = || self.region.state(number).load(Ordering::Acquire) == state::DONE;
        while !done() {
            if !self.looks_for(done) {
                if !self.check_alive() {
                    return Err(Error::Closed);
                }
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
        }
        let reply: Reply = self.region.get(number);
        match reply.errno.get() {
            0 => Ok((reply.value.get(), reply.noted.get())),
            errno => Err(Error::from_errno(errno, String::new())),
        }
    }

    /// A slot and those behind it, `want` in all if they are free, when there is one. `None`: the manager has ended.
    pub(super) async fn slots_in_turn(self: &Arc<Session>, want: usize) -> Option<(usize, usize)> {
        poll_fn(|cx| match self.take_slots(want, Some(cx.waker())) {
            Some(slots) => Poll::Ready(Some(slots)),
            None if self.is_dead() => Poll::Ready(None),
            None if self.wait_for_room() => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            None => {
                if !is_run_here() {
                    start_helper(self, cx.waker());
                }
                Poll::Pending
            }
        })
        .await
    }

    /// A call with two strings, or one and data. Handles are the manager's numbers. A write with more data than fits is one of a part of it; likewise a read.
    pub(super) async fn call(
        self: &Arc<Session>,
        mut request: Request,
        first: &[u8],
        mut second: &[u8],
    ) -> std::result::Result<Answer<'_>, Failed> {
        const UNTAKEN: Failed = Failed::Lost { taken: false };
        if self.is_dead() {
            return Err(UNTAKEN);
        }
        let reads = request.op.get() == Op::Read as u16 && request.flags.get() & wire::THROUGH_ARENA == 0;
        let data = if reads { request.len.get() as usize } else { second.len() };
        let want = match data {
            0..=DATA_MAX => 1,
            long => (long + PAYLOAD_MAX - DATA_MAX).div_ceil(PAYLOAD_MAX),
        };
        let (number, count) = self.slots_in_turn(want).await.ok_or(UNTAKEN)?;
        let mut slot = Slot { session: self, number, posted: false, then: None, opens: None };
        let room = if count == want { CALL_DATA_MAX } else { DATA_MAX };
        second = &second[..second.len().min(room)];
        if reads {
            (request.len, request.extra) = ((data.min(room) as u64).into(), (count as u64 - 1).into());
        }
        request.first = (first.len() as u16).into();
        request.second = (second.len() as u32).into();
        self.region.put_payload(number, 0, first);
        self.region.put_payload(number, first.len(), second);
        let posts = self.kept.posts();
        slot.opens = Opens::of(&request);
        slot.post(&request);
        poll_fn(|cx| slot.poll(cx)).await?;
        slot.opens = None;
        self.kept.settled(posts);
        let reply: Reply = self.region.get(number);
        let len = (reply.len.get() as usize).min(count * PAYLOAD_MAX);
        let (value, pages, noted) = (reply.value.get(), reply.pages.get(), reply.noted.get());
        let room = if want == 1 { DATA_MAX } else { room };
        let (handle, unheld) = (reply.handle.get(), reply.unheld.get());
        let (lent, lent_room) = (reply.lent.get(), reply.lent_room.get());
        let answer = Answer { slot, len, value, posts, room, pages, noted, handle, unheld, lent, lent_room };
        match reply.errno.get() {
            0 => Ok(answer),
            errno => {
                let text = String::from_utf8_lossy(&answer.bytes()).into_owned();
                Err(Failed::With(Error::from_errno(errno, text)))
            }
        }
    }
}

impl Remote {
    /// Has the manager do something for whose end nobody needs to wait: it is done before any call that this or another client posts later.
    /// False when that cannot be promised now, and nothing was posted. Handles are the manager's numbers in session `serial`.
    pub(super) fn tell(&self, serial: u64, request: &Request) -> bool {
        let session = self.now();
        session.serial == serial && session.tell(request)
    }

    /// Closes what a manager has open, unless it has ended. The handle is its number in session `serial`.
    pub(super) async fn close_there(&self, serial: u64, request: Request) -> Result<()> {
        let session = self.now();
        if session.serial != serial {
            return Ok(());
        }
        match session.call(request, b"", b"").await {
            Err(Failed::With(e)) => Err(e),
            _ => Ok(()),
        }
    }

    /// A call without strings.
    pub(super) async fn call(&self, request: Request) -> Result<Answer<'_>> {
        self.call_with(request, b"", b"").await
    }

    /// A call with two strings, or one and data.
    pub(super) async fn call_with(
        &self,
        request: Request,
        first: &[u8],
        second: &[u8],
    ) -> Result<Answer<'_>> {
        self.call_in(None, request, first, second).await
    }

    /// As [`Remote::call_with`], in the session with this serial, if one is given. `Stale`: another one has begun.
    pub(super) async fn call_in(
        &self,
        only: Option<u64>,
        request: Request,
        first: &[u8],
        second: &[u8],
    ) -> Result<Answer<'_>> {
        // What the manager would find too long to be anything.
        let op = Op::from_u16(request.op.get());
        let data_max = if op == Some(Op::Write) { CALL_DATA_MAX } else { DATA_MAX };
        let names_max = PAYLOAD_MAX - DATA_MAX;
        if first.len() > names_max.min(u16::MAX as usize) || second.len() > data_max {
            return Err(Error::NameTooLong);
        }
        let handles = op.map_or((false, false), |op| op.handles(request.flags.get()));
        let orders = op.is_some_and(|op| op.is_in_order(request.flags.get()));
        let mut resizing = op.and_then(|op| self.resizing(op, &request));
        loop {
            let session = self.now();
            if only.is_some_and(|serial| serial != session.serial) {
                return Err(Error::Stale);
            }
            if orders {
                self.link.keeps_order()?;
            }
            let mut there = request;
            let handle = Handle(request.object.get());
            let opens = match handles.0 && op.is_some_and(Op::may_open) {
                true => self.opens(session, handle, &mut there),
                false => false,
            };
            if handles.0 && !opens {
                there.object = self.there(session, handle).await?.into();
            }
            if handles.1 {
                there.other = self.there(session, Handle(request.other.get())).await?.into();
            }
            let called = session.call(there, first, second).await;
            if !matches!(called, Err(Failed::Lost { .. })) {
                resizing.take().into_iter().for_each(Resize::answered);
            }
            let taken = match called {
                Ok(mut answer) => {
                    if opens && answer.handle != 0 {
                        let opened = (Handle(answer.handle), answer.unheld);
                        answer.then(self.opened_there(session, handle, opened));
                    }
                    return Ok(answer);
                }
                Err(Failed::With(Error::Stale)) => {
                    // A name led to something that went away just now, which nobody has been told yet: the walk that comes next asks.
                    session.kept.forget_names();
                    return Err(Error::Stale);
                }
                Err(Failed::With(e)) => return Err(e),
                Err(Failed::Lost { taken }) => taken,
            };
            self.resumed(session).await?;
            if taken && !op.is_some_and(|op| self.may_repeat(op, &request)) {
                let text = "the manager ended, and may have done this or not".into();
                return Err(Error::from_errno(libc::EIO, text));
            }
        }
    }

    fn may_repeat(&self, op: Op, request: &Request) -> bool {
        let appends = || {
            let file = self.link.file(Handle(request.object.get()));
            file.is_some_and(|file| file.flags.contains(OpenFlags::APPEND))
        };
        match op {
            Op::Create => !OpenFlags::from_bits_retain(request.flags.get()).contains(OpenFlags::EXCLUSIVE),
            Op::Write => !appends(),
            op => op.is_repeatable(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::asking::lock_request;
    use super::*;
    use fs::{Client, Cred, LockKind, LockOwner, RecordLock};
    use std::time::{Duration, Instant};

    /// Who gives up a call that was done already does not end the next one in its slot.
    #[test]
    fn a_call_that_is_given_up_late_is_no_other() {
        const NEW: fs::client::OpenOptions =
            fs::client::OpenOptions::new().read(true).write(true).create(true);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let model = Arc::new(sim::Model::new(sim::HandClock::default().clock()));
        let server = crate::Server::start(model, &path, Default::default()).unwrap();
        let (one, two) = (Remote::connect(&path).unwrap(), Remote::connect(&path).unwrap());
        let session = two.now().clone();
        let open = |remote| Client::new(Arc::new(remote), Cred::root()).blocking().open("/f", NEW).unwrap();
        let (one, two) = (open(one), open(two));
        for _ in 0..5 {
            one.lock_range(LockKind::Exclusive, 0, 10, true).unwrap();
            let begun = Instant::now();
            while session.region.asleep().load(Ordering::SeqCst) == 0 {
                assert!(begun.elapsed() < Duration::from_secs(20), "the manager does not rest");
                std::thread::sleep(Duration::from_millis(1));
            }
            // As if it came when the manager does not look.
            session.region.cancel().store(u64::MAX, Ordering::SeqCst);
            std::thread::scope(|threads| {
                let waits = threads.spawn(|| two.lock_range(LockKind::Exclusive, 0, 10, true));
                std::thread::sleep(Duration::from_millis(50));
                one.unlock_range(0, 10).unwrap();
                waits.join().unwrap().expect("nobody has given it up");
            });
            two.unlock_range(0, 10).unwrap();
        }
        server.stop();
    }

    /// The manager looks for new calls, and then for those that are given up. One that is posted and given up in between is not lost.
    #[test]
    fn a_call_that_is_given_up_early_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let model = Arc::new(sim::Model::new(sim::HandClock::default().clock()));
        let server = crate::Server::start(model, &path, Default::default()).unwrap();
        let (first, second) = (Remote::connect(&path).unwrap(), Remote::connect(&path).unwrap());
        let session = second.now().clone();
        let new = fs::client::OpenOptions::new().read(true).write(true).create(true);
        let open = |remote: &Remote| {
            Client::new(Arc::new(remote.clone()), Cred::root()).blocking().open("/f", new).unwrap()
        };
        let (one, two) = (open(&first), open(&second));
        one.lock_range(LockKind::Exclusive, 0, 10, true).unwrap();
        let there = second.link.file(two.handle()).unwrap().remote;
        let lock = RecordLock { start: 0, end: 9, kind: LockKind::Exclusive, pid: 1 };
        let waits = lock_request(there, LockOwner(99), Ok(lock), true);
        let eventually = |what: &str, is: &dyn Fn() -> bool| {
            let begun = Instant::now();
            while !is() {
                assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        for state_before in [state::POSTED, state::SLEEPING] {
            let region = &session.region;
            eventually("the manager does not rest", &|| region.asleep().load(Ordering::SeqCst) != 0);
            let number = session.take_slot(None).unwrap();
            let mut slot = Slot { session: &session, number, posted: false, then: None, opens: None };
            slot.post(&waits);
            // As if it came just behind the first look.
            region.doorbell().fetch_and(!(1 << number), Ordering::SeqCst);
            region.state(number).store(state_before, Ordering::SeqCst);
            drop(slot);
            eventually("the second look", &|| region.cancel().load(Ordering::SeqCst) == 0);
            region.doorbell().fetch_or(1 << number, Ordering::SeqCst);
            session.ring();
            let is_done = || region.state(number).load(Ordering::SeqCst) == state::DONE;
            eventually("nobody gives it up", &is_done);
            assert_eq!(region.get::<Reply>(number).errno.get(), libc::EINTR);
        }
        one.unlock_range(0, 10).unwrap();
        one.lock_range(LockKind::Exclusive, 0, 10, false).expect("nobody else has it");
        server.stop();
    }
}
