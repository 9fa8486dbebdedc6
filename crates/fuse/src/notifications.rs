//! Notifications that wait for nobody but the kernel.
//!
//! The kernel takes a notification in when it gets its own lock of the inode or directory that it is about (or of a page of it). A request that has that
//! lock may wait for the very call that notifies, so threads notify that no request needs. And whoever can have the kernel hold such a lock for ever, for
//! instance by listing a directory into memory that nobody fills, must not keep others from being heard: each inode has a
//! queue, told in order of what was changed, and when no thread gets on, there will be one more. Pages have one of their own ([`Lock`]).
//!
//! Tested here and by `tests/mount/told.rs`.

use crate::device::Notifier;
use fs::Ino;
use fs::watched::{Change, Told, Watcher};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Threads at most. Each that is held up costs whoever does it a process.
const THREADS_MAX: usize = 256;
/// No thread got on for so long, and there is something to do: one more.
const STEP: Duration = Duration::from_millis(10);
/// The kernel takes things in at once, unless somebody has it hold a lock.
const SLOW: Duration = Duration::from_secs(5);

/// What the kernel is told: a [`Change`] that owns what it speaks of, or to write changed pages back.
#[derive(Clone, Debug, PartialEq)]
enum Notification {
    Data { ino: Ino, start: u64, end: u64 },
    Attr { ino: Ino },
    Name { parent: Ino, name: Vec<u8> },
    WriteBack { ino: Ino, start: u64 },
}

/// What the kernel may have to get before it takes a notification in. Each has a queue of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Lock {
    /// That of an inode or a directory.
    Inode(Ino),
    /// Those of a file's pages, for a request that has the inode locked: it must not wait for those who wait for that.
    Pages(Ino),
}

impl Lock {
    fn ino(self) -> u64 {
        let (Lock::Inode(Ino(ino)) | Lock::Pages(Ino(ino))) = self;
        ino
    }
}

impl From<&Change<'_>> for Notification {
    fn from(change: &Change<'_>) -> Notification {
        match *change {
            Change::Data { ino, start, end } => Notification::Data { ino, start, end },
            Change::Attr { ino } => Notification::Attr { ino },
            Change::Name { parent, name } => Notification::Name { parent, name: name.to_vec() },
        }
    }
}

impl Notification {
    /// For what it may wait in the kernel.
    fn lock(&self) -> Lock {
        match self {
            Notification::Data { ino, .. } | Notification::Attr { ino } => Lock::Inode(*ino),
            Notification::Name { parent, .. } => Lock::Inode(*parent),
            Notification::WriteBack { ino, .. } => Lock::Pages(*ino),
        }
    }

    /// Becomes what says both, if there is such a thing. Who changes a file again and again does not fill the memory.
    fn takes(&mut self, other: &Notification) -> bool {
        use Notification::*;
        match (&mut *self, other) {
            (Data { start, end, .. }, Data { start: from, end: to, .. }) => {
                (*start, *end) = ((*start).min(*from), (*end).max(*to));
                true
            }
            (Data { .. }, Attr { .. }) => true,
            (Attr { .. }, Data { .. }) => {
                *self = other.clone();
                true
            }
            (WriteBack { start, .. }, WriteBack { start: from, .. }) => {
                *start = (*start).min(*from);
                true
            }
            (this, other) => *this == *other,
        }
    }

    fn send(&self, notifier: &Notifier) {
        let sent = match self {
            Notification::Data { ino, start, end } => notifier.data(*ino, *start, *end),
            Notification::Attr { ino } => notifier.attr(*ino),
            Notification::Name { parent, name } => notifier.name(*parent, name),
            Notification::WriteBack { ino, start } => notifier.write_back(*ino, *start),
        };
        // Without a mount nobody keeps anything.
        if let Err(e) = sent
            && !matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ENOTCONN | libc::ENOTDIR))
        {
            tracing::warn!("the kernel did not take in {self:?}: {e}");
        }
    }
}

struct Item {
    /// Those of the first and the last that it says.
    first: u64,
    last: u64,
    notification: Notification,
    wakers: Vec<Waker>,
}

/// Of one [`Lock`], in order of what was changed.
#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    /// The first is being sent since then.
    since: Option<Instant>,
    complained: bool,
}

#[derive(Default)]
struct State {
    /// None is empty.
    queues: HashMap<Lock, Queue>,
    /// Those of which nothing is being sent.
    ready: VecDeque<Lock>,
    /// How many there ever were, and how often one was taken in.
    sent: u64,
    done: u64,
    threads: usize,
    idle: usize,
    /// The thread that watches looks again after [`STEP`].
    is_watched: bool,
    over: bool,
}

impl State {
    /// Puts one in its queue, and returns its number.
    fn put(&mut self, notification: Notification) -> u64 {
        self.sent += 1;
        let (lock, number) = (notification.lock(), self.sent);
        let queue = self.queues.entry(lock).or_default();
        let being_sent = queue.since.is_some() as usize;
        if let Some(last) = queue.items.range_mut(being_sent..).next_back()
            && last.notification.takes(&notification)
        {
            last.last = number;
            return number;
        }
        queue.items.push_back(Item { first: number, last: number, notification, wakers: Vec::new() });
        if queue.items.len() == 1 {
            self.ready.push_back(lock);
        }
        number
    }

    /// Whether the kernel has taken in what was put there as this number; else `waker` is told when it has.
    fn poll(&mut self, lock: Lock, number: u64, waker: &Waker) -> Poll<()> {
        let Some(queue) = self.queues.get_mut(&lock) else { return Poll::Ready(()) };
        let at = queue.items.partition_point(|item| item.last < number);
        let Some(item) = queue.items.get_mut(at).filter(|item| item.first <= number) else {
            return Poll::Ready(());
        };
        if !item.wakers.iter().any(|other| other.will_wake(waker)) {
            item.wakers.push(waker.clone());
        }
        Poll::Pending
    }

    /// The next to send, which stays first in its queue until it is [`State::taken_in`].
    fn take(&mut self, now: Instant) -> Option<(Lock, Notification)> {
        let lock = self.ready.pop_front()?;
        let queue = self.queues.get_mut(&lock)?;
        (queue.since, queue.complained) = (Some(now), false);
        queue.items.front().map(|item| (lock, item.notification.clone()))
    }

    /// Who waits for what was taken, and for how long it was being sent.
    fn taken_in(&mut self, lock: Lock, now: Instant) -> (Vec<Waker>, Duration) {
        self.done += 1;
        let Some(queue) = self.queues.get_mut(&lock) else { return Default::default() };
        let took = queue.since.take().map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let wakers = queue.items.pop_front().map_or(Vec::new(), |item| item.wakers);
        if queue.items.is_empty() {
            self.queues.remove(&lock);
        } else {
            self.ready.push_back(lock);
        }
        (wakers, took)
    }

    /// Of which inodes the kernel has not taken something in for long, each said once; and when to ask again, if nothing else happens.
    fn stuck(&mut self, now: Instant) -> (Vec<Lock>, Option<Instant>) {
        let (mut stuck, mut next) = (Vec::new(), None::<Instant>);
        for (lock, queue) in self.queues.iter_mut().filter(|(_, queue)| !queue.complained) {
            let Some(at) = queue.since.map(|since| since + SLOW) else { continue };
            if at <= now {
                queue.complained = true;
                stuck.push(*lock);
            } else {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        (stuck, next)
    }
}

struct Shared {
    notifier: Notifier,
    state: Mutex<State>,
    /// There is something to send, or all is over.
    work: Condvar,
    /// There is more to send than threads wait for; or all is over.
    watch: Condvar,
}

impl Shared {
    /// Sends what there is. One thread waits for more, all others end.
    fn send(&self) {
        let mut state = self.state.lock();
        loop {
            let Some((lock, notification)) = state.take(Instant::now()) else {
                if state.over || state.idle > 0 {
                    state.threads -= 1;
                    return;
                }
                state.idle += 1;
                self.work.wait(&mut state);
                state.idle -= 1;
                continue;
            };
            self.see_to(&state);
            drop(state);
            notification.send(&self.notifier);
            state = self.state.lock();
            let (wakers, took) = state.taken_in(lock, Instant::now());
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
            if took >= SLOW {
                let (ino, seconds) = (lock.ino(), took.as_secs());
                tracing::warn!("the kernel has taken in a change of inode {ino} after {seconds} seconds");
            }
            state = self.state.lock();
        }
    }

    /// Sees to it that somebody sends what there is, and says when the kernel does not take it in.
    fn watch(self: &Arc<Shared>) {
        let mut state = self.state.lock();
        while !state.over {
            let (stuck, next) = state.stuck(Instant::now());
            for ino in stuck.into_iter().map(Lock::ino) {
                tracing::warn!(
                    "the kernel does not take in a change of inode {ino}: somebody has it hold that locked; changes of it by sessions wait"
                );
            }
            if state.ready.is_empty() {
                match next {
                    Some(next) => _ = self.watch.wait_until(&mut state, next),
                    None => self.watch.wait(&mut state),
                }
                continue;
            }
            let done = state.done;
            state.is_watched = true;
            self.watch.wait_for(&mut state, STEP);
            state.is_watched = false;
            if state.done == done
                && state.idle == 0
                && !state.ready.is_empty()
                && state.threads < THREADS_MAX
                && let Err(e) = self.add(&mut state)
            {
                tracing::warn!("no thread to tell the kernel of changes: {e}");
            }
        }
    }

    /// Who sends something is held up by it, maybe for ever: what else there is to send is watched.
    fn see_to(&self, state: &State) {
        if !state.ready.is_empty() && !state.is_watched {
            self.watch.notify_one();
        }
    }

    /// One more thread that sends.
    fn add(self: &Arc<Shared>, state: &mut State) -> io::Result<()> {
        let shared = self.clone();
        Builder::new().name("fuse-notify".into()).spawn(move || shared.send())?;
        state.threads += 1;
        Ok(())
    }
}

/// The kernel as one who keeps things: it is told what changes through other doors. Most changes concern nothing that it keeps, and cost a look. Clones are
/// the same; threads end with the last one.
#[derive(Clone)]
pub struct Notifications(Arc<Owner>);

struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.state.lock().over = true;
        self.0.work.notify_all();
        self.0.watch.notify_all();
    }
}

impl Notifications {
    /// Starts two threads.
    pub(crate) fn start(notifier: Notifier) -> io::Result<Notifications> {
        let (state, work, watch) = Default::default();
        let shared = Arc::new(Shared { notifier, state, work, watch });
        let owner = Owner(shared.clone());
        shared.add(&mut shared.state.lock())?;
        Builder::new().name("fuse-watch".into()).spawn(move || shared.watch())?;
        Ok(Notifications(Arc::new(owner)))
    }

    /// Has the kernel told of a change.
    pub(crate) fn tell(&self, change: &Change<'_>) -> Told {
        self.put(change.into())
    }

    /// Has the kernel write back what programs have changed in pages of a file, from `start` on. May be waited for by a request for which the kernel has
    /// that file locked.
    pub(crate) fn write_back(&self, ino: Ino, start: u64) -> Told {
        self.put(Notification::WriteBack { ino, start })
    }

    fn put(&self, notification: Notification) -> Told {
        let (shared, lock) = (self.0.0.clone(), notification.lock());
        let mut state = shared.state.lock();
        let number = state.put(notification);
        match state.idle {
            0 => shared.see_to(&state),
            _ => _ = shared.work.notify_one(),
        }
        drop(state);
        Box::pin(poll_fn(move |cx| shared.state.lock().poll(lock, number, cx.waker())))
    }
}

impl Watcher for Notifications {
    fn keeps(&self, ino: Ino) -> bool {
        ino == Ino::ROOT || self.0.0.notifier.has(ino)
    }

    fn changed(&self, change: &Change<'_>) -> Option<Told> {
        let notifier = &self.0.0.notifier;
        let concerns = match *change {
            Change::Data { ino, .. } => notifier.keeps_data(ino),
            Change::Attr { ino } => notifier.keeps_attr(ino),
            Change::Name { parent, name } => notifier.keeps_name(parent, name),
        };
        concerns.then(|| self.tell(change))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(7);
    const LOCK: Lock = Lock::Inode(INO);

    fn poll(state: &mut State, lock: Lock, number: u64) -> bool {
        state.poll(lock, number, Waker::noop()).is_ready()
    }

    fn name(parent: Ino, name: &[u8]) -> Notification {
        Notification::Name { parent, name: name.to_vec() }
    }

    #[test]
    fn each_inode_has_an_order_of_its_own() {
        let (mut state, now) = (State::default(), Instant::now());
        let other_lock = Lock::Inode(Ino(8));
        let [a, b, other] = [name(INO, b"a"), name(INO, b"b"), name(Ino(8), b"a")];
        let numbers = [&a, &b, &other].map(|n| state.put(n.clone()));
        assert_eq!(state.take(now), Some((LOCK, a)));
        assert_eq!(state.take(now), Some((other_lock, other)));
        assert_eq!(state.take(now), None, "the second waits for the first");
        assert_eq!(
            [poll(&mut state, LOCK, numbers[0]), poll(&mut state, other_lock, numbers[2])],
            [false; 2]
        );
        let (wakers, took) = state.taken_in(LOCK, now + SLOW);
        assert_eq!((wakers.len(), took), (1, SLOW));
        assert!(poll(&mut state, LOCK, numbers[0]), "whatever comes behind it");
        assert!(!poll(&mut state, LOCK, numbers[1]));
        assert_eq!(state.take(now), Some((LOCK, b)));
        state.taken_in(LOCK, now);
        state.taken_in(other_lock, now);
        assert!(poll(&mut state, LOCK, numbers[1]) && poll(&mut state, other_lock, numbers[2]));
        assert!(state.queues.is_empty() && state.ready.is_empty());
    }

    /// The kernel has the inode locked for who waits for its pages, and something that was changed before waits for that lock.
    #[test]
    fn pages_are_written_back_past_what_waits_for_the_inode() {
        let (mut state, now, pages) = (State::default(), Instant::now(), Lock::Pages(INO));
        let from = |start| Notification::WriteBack { ino: INO, start };
        let changed = state.put(Notification::Attr { ino: INO });
        assert!(state.take(now).is_some_and(|(lock, _)| lock == LOCK));
        let numbers = [9, 4, 7].map(|start| state.put(from(start)));
        assert_eq!(state.take(now), Some((pages, from(4))), "all of them at once");
        state.taken_in(pages, now);
        assert!(numbers.iter().all(|&n| poll(&mut state, pages, n)) && !poll(&mut state, LOCK, changed));
    }

    #[test]
    fn what_waits_is_said_together() {
        let (mut state, now) = (State::default(), Instant::now());
        let data = |start, end| Notification::Data { ino: INO, start, end };
        let first = state.put(data(0, 4));
        assert_eq!(state.take(now), Some((LOCK, data(0, 4))));
        let numbers: Vec<u64> = [data(8, 12), Notification::Attr { ino: INO }, data(4, 9), data(20, 24)]
            .into_iter()
            .map(|n| state.put(n))
            .collect();
        assert_eq!(state.queues[&LOCK].items.len(), 2, "what is being said is left as it is");
        assert!(numbers.iter().all(|&n| !poll(&mut state, LOCK, n)));
        state.taken_in(LOCK, now);
        assert!(poll(&mut state, LOCK, first) && !poll(&mut state, LOCK, numbers[0]));
        assert_eq!(state.take(now), Some((LOCK, data(4, 24))));
        state.taken_in(LOCK, now);
        assert!(numbers.iter().all(|&n| poll(&mut state, LOCK, n)));
        let attr = Notification::Attr { ino: INO };
        [
            attr.clone(),
            attr.clone(),
            data(1, 2),
            name(INO, b"a"),
            name(INO, b"a"),
            name(INO, b"b"),
            attr.clone(),
        ]
        .into_iter()
        .for_each(|n| _ = state.put(n));
        let items = state.queues[&LOCK].items.iter().map(|item| item.notification.clone());
        assert_eq!(items.collect::<Vec<_>>(), [data(1, 2), name(INO, b"a"), name(INO, b"b"), attr]);
    }

    #[test]
    fn a_kernel_that_is_stuck_is_complained_of_once() {
        let (mut state, now) = (State::default(), Instant::now());
        assert_eq!(state.stuck(now), (vec![], None));
        state.put(name(INO, b"x"));
        assert_eq!(state.stuck(now), (vec![], None), "nobody has begun");
        state.take(now);
        assert_eq!(state.stuck(now + SLOW / 2), (vec![], Some(now + SLOW)));
        assert_eq!(state.stuck(now + SLOW), (vec![LOCK], None));
        assert_eq!(state.stuck(now + SLOW * 2), (vec![], None));
    }
}
