//! Many requests of one program under way at the same time, and their results, for whoever takes them: what completion queues are made of.
//!
//! A request is a future. It starts when there is a place for it, and goes on whenever the queue is polled; a call that is with the manager goes on
//! anyway. There is no thread behind a queue.

use super::waiting::{self, Answers};
use super::{Remote, aside};
use format::shared::SLOTS;
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;

/// Requests of one client that are with the manager. Some slots are left, so that other calls go on although nobody takes results.
const UNDER_WAY_MAX: usize = SLOTS - 8;
/// So many more may be in queues that have no other, one in each: they go on although nobody polls the queues that have all places.
const LONELY_MAX: usize = 4;

/// A place for a request; dropping it gives it back.
struct Place(Remote);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.link.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Place {
    fn take(remote: &Remote, most: usize) -> Option<Place> {
        let more = |n| (n < most).then_some(n + 1);
        remote.link.under_way.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Place(remote.clone()))
    }
}

struct Request<F: ?Sized> {
    /// Whose places it needs, if it needs one.
    remote: Option<Remote>,
    /// Taken when it starts.
    place: Option<Place>,
    /// What it waits for: it need not be polled before.
    answers: Option<Answers>,
    future: Pin<Box<F>>,
}

impl<F: ?Sized> Request<F> {
    /// For a place.
    fn waits(&self) -> bool {
        self.remote.is_some() && self.place.is_none()
    }
}

/// Requests under way, and the results of those that are done. Dropping it gives up the requests: those under way may or may not happen.
pub struct Queue<F: Future + ?Sized> {
    aside: bool,
    under_way: Vec<Request<F>>,
    done: VecDeque<F::Output>,
}

impl<F: Future + ?Sized> Default for Queue<F> {
    fn default() -> Self {
        Queue { aside: false, under_way: Vec::new(), done: VecDeque::new() }
    }
}

impl<F: Future + ?Sized> fmt::Debug for Queue<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} under way, {} done", self.under_way.len(), self.done.len())
    }
}

impl<F: Future + ?Sized> Queue<F> {
    /// An empty queue that never keeps the thread waiting that polls it, not even while there is no manager ([`super::Connect::resume`]).
    pub fn aside() -> Self {
        Queue { aside: true, ..Queue::default() }
    }

    /// Adds a request, made of calls, one after the other, of `remote`, or of something that has places for any number. It starts when the queue is polled.
    pub fn push(&mut self, remote: Option<&Remote>, future: Pin<Box<F>>) {
        self.under_way.push(Request { remote: remote.cloned(), place: None, answers: None, future });
    }

    /// Lets all requests go on as far as they can.
    pub fn poll(&mut self, cx: &mut Context<'_>) {
        let Queue { aside, under_way, done } = self;
        let mut has_place = under_way.iter().any(|request| request.place.is_some());
        under_way.retain_mut(|request| {
            if request.place.is_none() {
                let most = if has_place { UNDER_WAY_MAX } else { UNDER_WAY_MAX + LONELY_MAX };
                request.place = request.remote.as_ref().and_then(|remote| Place::take(remote, most));
                has_place |= request.place.is_some();
            }
            if request.waits() {
                return true;
            }
            if request.answers.as_ref().is_some_and(Answers::are_missing) {
                return true;
            }
            let (polled, answers) =
                waiting::noting(|| aside::polling(*aside, || request.future.as_mut().poll(cx)));
            request.answers = answers;
            match polled {
                Poll::Pending => true,
                Poll::Ready(result) => {
                    done.push_back(result);
                    false
                }
            }
        });
        // Other queues have the places, and nobody says when there is one.
        let starved = under_way.iter().all(Request::waits);
        if starved && !under_way.is_empty() && !waiting::looks_again() {
            cx.waker().wake_by_ref();
        }
    }

    /// Requests that have no result yet.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Results that were not taken.
    pub fn done(&self) -> usize {
        self.done.len()
    }

    /// Takes the oldest result.
    pub fn take(&mut self) -> Option<F::Output> {
        self.done.pop_front()
    }
}

impl Remote {
    /// As [`fs::FileSystem::block_on`], of a future that other threads wake too, until the time is over (`None`: never).
    pub fn wait_until<T: Future>(&self, future: T, until: Option<Instant>) -> Option<T::Output> {
        waiting::wait_until(self, future, until)
    }
}
