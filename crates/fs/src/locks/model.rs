//! Tests of the lock table: random histories against a map of single bytes, and the cases worth naming.

use super::spans::SPANS_MAX;
use super::*;
use crate::block_on;
use proptest::prelude::*;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Wake};

pub(super) const INO: Ino = Ino(7);
/// Bytes of the model; the last one stands for everything behind it.
const BYTES: usize = 12;

fn lock(start: u64, end: u64, kind: LockKind) -> RecordLock {
    RecordLock { start, end, kind, pid: 1 }
}
pub(super) fn shared(start: u64, end: u64) -> RecordLock {
    lock(start, end, LockKind::Shared)
}
pub(super) fn excl(start: u64, end: u64) -> RecordLock {
    lock(start, end, LockKind::Exclusive)
}
pub(super) fn owner(n: u64) -> LockOwner {
    LockOwner(n)
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

type Call<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// A call that waits, polled by hand.
pub(super) struct Pending<'a> {
    call: Call<'a>,
    flag: Arc<Flag>,
}

impl<'a> Pending<'a> {
    pub(super) fn new(call: impl Future<Output = Result<()>> + Send + 'a) -> Pending<'a> {
        Pending { call: Box::pin(call), flag: Arc::default() }
    }
    pub(super) fn poll(&mut self) -> Poll<Result<()>> {
        self.flag.0.store(false, Ordering::Release);
        let waker = Waker::from(self.flag.clone());
        self.call.as_mut().poll(&mut Context::from_waker(&waker))
    }
    pub(super) fn woken(&self) -> bool {
        self.flag.0.load(Ordering::Acquire)
    }
}

/// Who holds each byte, the naive way, and since when they hold anything.
#[derive(Clone, Default)]
struct Model([Vec<(u64, LockKind)>; BYTES], Vec<u64>);

impl Model {
    fn free_for(&self, who: u64, l: RecordLock) -> bool {
        bytes(l.start, l.end).all(|b| self.0[b].iter().all(|&(o, k)| o == who || !exclusive(k, l.kind)))
    }
    fn take(&mut self, who: u64, start: u64, end: u64) {
        bytes(start, end).for_each(|b| self.0[b].retain(|&(o, _)| o != who));
    }
    fn clear(&mut self, who: u64, start: u64, end: u64) {
        self.take(who, start, end);
        if self.spans(who).is_empty() {
            self.1.retain(|&o| o != who);
        }
    }
    fn set(&mut self, who: u64, l: RecordLock) {
        self.take(who, l.start, l.end);
        bytes(l.start, l.end).for_each(|b| self.0[b].push((who, l.kind)));
        if !self.1.contains(&who) {
            self.1.push(who);
        }
    }
    /// The spans of an owner, merged.
    fn spans(&self, who: u64) -> Vec<RecordLock> {
        let mut out: Vec<RecordLock> = Vec::new();
        for (b, held) in self.0.iter().enumerate() {
            let Some(&(_, kind)) = held.iter().find(|(o, _)| *o == who) else { continue };
            let end = if b == BYTES - 1 { u64::MAX } else { b as u64 };
            match out.last_mut().filter(|l| l.kind == kind && l.end.checked_add(1) == Some(b as u64)) {
                Some(last) => last.end = end,
                None => out.push(lock(b as u64, end, kind)),
            }
        }
        out
    }
}

fn bytes(start: u64, end: u64) -> impl Iterator<Item = usize> {
    start as usize..=(end.min(BYTES as u64 - 1) as usize)
}

#[derive(Clone, Debug)]
enum Op {
    Lock { who: u64, lock: RecordLock, wait: bool },
    Unlock { who: u64, start: u64, end: u64 },
    Leave(u64),
    Test { who: u64, lock: RecordLock },
    Abandon(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let range = (0..BYTES as u64, 0..BYTES as u64).prop_map(|(a, b)| {
        let (start, end) = (a.min(b), a.max(b));
        (start, if end == BYTES as u64 - 1 { u64::MAX } else { end })
    });
    let kind = prop_oneof![Just(LockKind::Shared), Just(LockKind::Exclusive)];
    let locks = (range.clone(), kind).prop_map(|((start, end), kind)| lock(start, end, kind));
    prop_oneof![
        6 => (0..4u64, locks.clone(), any::<bool>()).prop_map(|(who, lock, wait)| Op::Lock { who, lock, wait }),
        3 => (0..4u64, range).prop_map(|(who, (start, end))| Op::Unlock { who, start, end }),
        1 => (0..4u64).prop_map(Op::Leave),
        1 => (0..4u64, locks).prop_map(|(who, lock)| Op::Test { who, lock }),
        1 => (0..8usize).prop_map(Op::Abandon),
    ]
}

/// Polls what was woken until nothing is, and enters what was granted into the model.
fn settle(pending: &mut Vec<(u64, RecordLock, Pending<'_>)>, model: &mut Model) {
    while let Some(at) = pending.iter().position(|(.., p)| p.woken()) {
        let (who, lock, p) = &mut pending[at];
        match p.poll() {
            Poll::Ready(Ok(())) => {
                assert!(model.free_for(*who, *lock), "granted against a lock");
                model.set(*who, *lock);
            }
            Poll::Ready(Err(e)) => assert_eq!(e, Error::Deadlock),
            Poll::Pending => continue,
        }
        pending.remove(at);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn like_a_map_of_bytes(ops in proptest::collection::vec(op(), 1..60)) {
        let table = LockTable::new();
        let mut model = Model::default();
        let mut pending: Vec<(u64, RecordLock, Pending<'_>)> = Vec::new();
        for op in ops {
            match op {
                Op::Lock { who, lock, wait } => {
                    let mut call = Pending::new(table.setlk(INO, owner(who), Ok(lock), wait));
                    let free = model.free_for(who, lock);
                    match call.poll() {
                        Poll::Ready(Ok(())) => {
                            prop_assert!(free);
                            model.set(who, lock);
                        }
                        Poll::Ready(Err(Error::WouldBlock)) => prop_assert!(!free && !wait),
                        Poll::Ready(Err(e)) => prop_assert!(!free && wait && e == Error::Deadlock),
                        Poll::Pending => {
                            prop_assert!(!free && wait);
                            pending.push((who, lock, call));
                        }
                    }
                }
                Op::Unlock { who, start, end } => {
                    block_on(table.setlk(INO, owner(who), Err((start, end)), true)).unwrap();
                    model.clear(who, start, end);
                }
                Op::Leave(who) => {
                    table.release_owner(INO, owner(who));
                    model.clear(who, 0, u64::MAX);
                }
                Op::Test { who, lock } => {
                    let got = table.getlk(INO, owner(who), lock);
                    prop_assert_eq!(got.is_none(), model.free_for(who, lock));
                    if let Some(got) = got {
                        let owners = model.1.iter().filter(|&&o| o != who);
                        let mut spans = owners.flat_map(|&o| model.spans(o));
                        let stands = |l: &RecordLock| {
                            l.start <= lock.end && lock.start <= l.end && exclusive(l.kind, lock.kind)
                        };
                        prop_assert_eq!(got.start, spans.find(stands).unwrap().start);
                    }
                }
                Op::Abandon(at) if at < pending.len() => drop(pending.remove(at)),
                Op::Abandon(_) => {}
            }
            settle(&mut pending, &mut model);
            for (who, lock, _) in &pending {
                prop_assert!(!model.free_for(*who, *lock), "a wake-up was lost");
            }
            let inner = table.inner.lock();
            for who in 0..4 {
                let have = inner.inodes.get(&INO).map_or(Vec::new(), |l| l.records.of(owner(who)));
                prop_assert_eq!(have, model.spans(who));
            }
            let waiters = inner.inodes.get(&INO).map_or(0, |l| l.waiters.len());
            prop_assert_eq!(waiters, pending.len());
            prop_assert_eq!(inner.waiting.values().map(Vec::len).sum::<usize>(), pending.len());
            // All of them are counted together.
            prop_assert_eq!(inner.spans.of(owner(0)), (0..4).map(|who| model.spans(who).len()).sum::<usize>());
        }
        drop(pending);
        (0..4).for_each(|who| table.release_owner(INO, owner(who)));
        prop_assert!(table.is_empty() && table.inner.lock().inodes.is_empty());
        prop_assert_eq!(table.inner.lock().spans.of(owner(0)), 0);
    }
}

/// What one session can lock is bounded, over all of its owners and files, in whichever way it makes more of it; and it is the bound of that session alone.
#[test]
fn there_are_not_too_many_locks() {
    let table = LockTable::new();
    let of = |session: u64, who: u64| LockOwner(session << 32 | who);
    let set = |ino, who, lock| block_on(table.setlk(Ino(ino), who, lock, false));
    let one = |at: u64| (2 * at, 2 * at);
    let lock = |(start, end)| Ok(shared(start, end));
    set(9, of(1, 0), lock((0, u64::MAX))).unwrap();
    let held = (0..2 * SPANS_MAX as u64).take_while(|&i| set(i % 3, of(1, i % 5), lock(one(i))).is_ok());
    assert_eq!(held.count(), SPANS_MAX - 2, "as one more could have been three");
    assert_eq!(set(1, of(1, 7), lock(one(0))), Err(Error::TooManyLocks));
    assert_eq!(set(9, of(1, 0), Err(one(5))), Ok(()), "one more of a range");
    assert_eq!(set(9, of(1, 0), Err(one(7))), Err(Error::TooManyLocks));
    assert_eq!(set(9, of(1, 0), Err((0, 3))), Ok(()), "no more of them than before");
    for i in 0..10 {
        set(1, of(2, i), lock(one(i))).unwrap();
    }
    // What is not held any more does not count.
    set(9, of(1, 0), Err((0, u64::MAX))).unwrap();
    set(1, of(1, 7), lock(one(0))).unwrap();
    for ino in 0..3 {
        (0..8).for_each(|who| table.release_owner(Ino(ino), of(1, who)));
    }
    let inner = table.inner.lock();
    assert_eq!((inner.spans.of(of(1, 0)), inner.spans.of(of(2, 0))), (0, 10));
}

fn set(table: &LockTable, who: u64, l: RecordLock) -> Result<()> {
    block_on(table.setlk(INO, owner(who), Ok(l), false))
}

#[test]
fn a_circle_is_refused() {
    let table = LockTable::new();
    for who in 0..3 {
        set(&table, who, excl(who, who)).unwrap();
    }
    let mut waits: Vec<Pending<'_>> = Vec::new();
    for who in 0..2 {
        waits.push(Pending::new(table.setlk(INO, owner(who), Ok(shared(who + 1, who + 1)), true)));
        assert!(waits[who as usize].poll().is_pending());
    }
    let last = table.setlk(INO, owner(2), Ok(excl(0, 0)), true);
    assert_eq!(block_on(last), Err(Error::Deadlock));
    // The circle is open again when one of them gives up waiting.
    drop(waits.remove(0));
    assert!(Pending::new(table.setlk(INO, owner(2), Ok(excl(0, 0)), true)).poll().is_pending());
}

/// A thread that has an open file description can give up what is waited for, while another one waits through the same.
#[test]
fn descriptions_wait_in_circles() {
    let table = LockTable::new();
    let of = |at| RecordLock { pid: RecordLock::OF_DESCRIPTION, ..excl(at, at) };
    let (a, b, process) = (8, 9, 3);
    for (who, lock) in [(a, of(1)), (b, of(2)), (process, excl(3, 3))] {
        set(&table, who, lock).unwrap();
    }
    let wait = |who, lock| Pending::new(table.setlk(INO, owner(who), Ok(lock), true));
    let mut waits = [wait(a, of(2)), wait(b, of(1)), wait(a, of(3)), wait(process, excl(1, 1))];
    assert!(waits.iter_mut().all(|w| w.poll().is_pending()));
    block_on(table.setlk(INO, owner(a), Err((1, 1)), true)).unwrap();
    assert!(waits[1].woken());
    assert_eq!(waits[1].poll(), Poll::Ready(Ok(())));
    drop(waits);
    for who in [a, b, process] {
        table.release_owner(INO, owner(who));
    }
    let inner = table.inner.lock();
    assert!(inner.inodes.is_empty() && inner.waiting.is_empty());
}

#[test]
fn two_upgrades_deadlock() {
    let table = LockTable::new();
    set(&table, 1, shared(0, 9)).unwrap();
    set(&table, 2, shared(0, 9)).unwrap();
    let mut first = Pending::new(table.setlk(INO, owner(1), Ok(excl(0, 9)), true));
    assert!(first.poll().is_pending());
    assert_eq!(block_on(table.setlk(INO, owner(2), Ok(excl(3, 4)), true)), Err(Error::Deadlock));
    table.release_owner(INO, owner(2));
    assert!(first.woken());
    assert_eq!(first.poll(), Poll::Ready(Ok(())));
}

#[test]
fn waiters_come_in_their_order_and_pass_wakeups_on() {
    let table = LockTable::new();
    set(&table, 0, excl(0, 9)).unwrap();
    let mut waits: Vec<_> =
        (1..4).map(|who| Pending::new(table.setlk(INO, owner(who), Ok(excl(0, 9)), true))).collect();
    assert!(waits.iter_mut().all(|w| w.poll().is_pending()));
    table.release_owner(INO, owner(0));
    assert_eq!(waits.iter().map(Pending::woken).collect::<Vec<_>>(), [true, false, false]);
    drop(waits.remove(0));
    assert!(waits[0].woken(), "the one that went away had the wake-up");
    // A newcomer may be faster; the waiter stays in front of the other one.
    set(&table, 9, shared(0, 0)).unwrap();
    assert!(waits[0].poll().is_pending());
    table.release_owner(INO, owner(9));
    assert_eq!(waits.iter().map(Pending::woken).collect::<Vec<_>>(), [true, false]);
    drop(waits);
    assert!(table.is_empty());
}

#[test]
fn bad_ranges_and_ends_of_the_world() {
    let table = LockTable::new();
    assert!(matches!(set(&table, 1, excl(2, 1)), Err(Error::Invalid(_))));
    set(&table, 1, excl(5, u64::MAX)).unwrap();
    set(&table, 1, excl(0, 4)).unwrap();
    assert_eq!(table.getlk(INO, owner(2), shared(3, 3)), Some(excl(0, u64::MAX)));
    assert_eq!(table.getlk(INO, owner(2), shared(3, 2)), None);
    block_on(table.setlk(INO, owner(1), Err((u64::MAX, u64::MAX)), false)).unwrap();
    assert_eq!(table.getlk(INO, owner(2), shared(9, 9)), Some(excl(0, u64::MAX - 1)));
}

#[test]
fn whole_file_locks() {
    let table = LockTable::new();
    let (a, b, c) = (Handle(1), Handle(2), Handle(3));
    let (sh, ex) = (Some(LockKind::Shared), Some(LockKind::Exclusive));
    let now = |h, kind| block_on(table.flock(INO, h, kind, false));
    assert_eq!((now(a, sh), now(b, sh), now(a, sh)), (Ok(()), Ok(()), Ok(())));
    // A failed conversion loses the lock that was there.
    assert_eq!(now(a, ex), Err(Error::WouldBlock));
    assert_eq!((now(b, ex), now(a, sh)), (Ok(()), Err(Error::WouldBlock)));
    let mut wait = Pending::new(table.flock(INO, a, ex, true));
    let mut cancelled = Pending::new(table.flock(INO, c, sh, true));
    assert!(wait.poll().is_pending() && cancelled.poll().is_pending());
    table.release_handle(INO, c);
    assert!(cancelled.woken());
    assert_eq!(cancelled.poll(), Poll::Ready(Err(Error::BadHandle)));
    assert_eq!(now(b, None), Ok(()));
    assert_eq!(wait.poll(), Poll::Ready(Ok(())));
    // Record locks are another matter.
    assert_eq!(set(&table, 5, excl(0, 9)), Ok(()));
    table.release_owner(INO, owner(5));
    table.release_handle(INO, a);
    assert!(table.is_empty());
}

/// Record locks of open files: they go with the handle, and so does who waits for one; and no circle of waiting is ever refused.
#[test]
fn record_locks_of_handles() {
    let table = LockTable::new();
    let (a, b) = (Handle(1), Handle(2));
    let of = LockOwner::of_handle;
    assert_eq!((of(a).handle(), owner(3).handle()), (Some(a), None));
    let now = |owner, lock| block_on(table.setlk(INO, owner, lock, false));
    assert_eq!(now(of(a), Ok(excl(0, 9))), Ok(()));
    assert_eq!(now(of(a), Err((3, 3))), Ok(()));
    assert_eq!((now(of(b), Ok(excl(3, 3))), now(of(b), Ok(excl(4, 4)))), (Ok(()), Err(Error::WouldBlock)));
    assert_eq!(
        (now(owner(1), Ok(excl(20, 20))), now(owner(1), Ok(excl(0, 0)))),
        (Ok(()), Err(Error::WouldBlock))
    );
    let mut process = Pending::new(table.setlk(INO, owner(1), Ok(excl(0, 0)), true));
    let mut waits = Pending::new(table.setlk(INO, of(a), Ok(excl(20, 20)), true));
    let mut other = Pending::new(table.setlk(INO, of(b), Ok(excl(5, 5)), true));
    assert!(process.poll().is_pending() && waits.poll().is_pending() && other.poll().is_pending());
    table.release_handle(INO, a);
    assert_eq!(waits.poll(), Poll::Ready(Err(Error::BadHandle)));
    assert_eq!((process.poll(), other.poll()), (Poll::Ready(Ok(())), Poll::Ready(Ok(()))));
    assert_eq!(
        table.getlk(INO, of(a), excl(0, u64::MAX)).map(|l| l.start),
        Some(3),
        "that of the older owner"
    );
    table.release_handle(INO, b);
    table.release_owner(INO, owner(1));
    assert!(table.is_empty());
}

#[test]
fn threads_take_turns() {
    let table = LockTable::new();
    let inside = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for who in 0..8 {
            let (table, inside) = (&table, &inside);
            s.spawn(move || {
                for _ in 0..200 {
                    block_on(table.setlk(INO, owner(who), Ok(excl(0, 0)), true)).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    block_on(table.setlk(INO, owner(who), Err((0, 0)), true)).unwrap();
                }
            });
        }
    });
    assert!(table.is_empty());
}

#[test]
fn who_holds_what_and_who_waits_for_it() {
    let table = LockTable::new();
    assert!(table.held().is_empty());
    let take = |n, lock| block_on(table.setlk(INO, owner(n), Ok(lock), false)).unwrap();
    take(1, excl(0, 9));
    take(1, excl(20, 29));
    take(2, shared(40, 49));
    block_on(table.flock(INO, Handle(5), Some(LockKind::Exclusive), false)).unwrap();
    let waker = Waker::noop();
    let cx = &mut Context::from_waker(waker);
    let mut waits: [Call<'_>; 3] = [
        Box::pin(table.setlk(INO, owner(3), Ok(shared(25, 45)), true)),
        Box::pin(table.setlk(INO, owner(4), Ok(excl(29, 60)), true)),
        Box::pin(table.flock(INO, Handle(6), Some(LockKind::Shared), true)),
    ];
    waits.iter_mut().for_each(|w| assert!(w.as_mut().poll(cx).is_pending()));
    std::thread::sleep(Duration::from_millis(5));
    let mut held: Vec<_> = table.held();
    held.sort_by_key(|h| format!("{:?}", h.holder));
    let seen: Vec<_> = held.iter().map(|h| (h.holder, h.waiting)).collect();
    let (whole, record) = (LockHolder::Handle, |n| LockHolder::Owner(owner(n)));
    assert_eq!(seen, [(whole(Handle(5)), 1), (record(1), 2), (record(2), 1)]);
    assert!(held.iter().all(|h| h.ino == INO && h.held >= h.waited && h.waited >= Duration::from_millis(5)));
    drop(waits);
    // A conversion is no new lock; one that was given up and taken again is.
    take(2, excl(40, 49));
    table.release_owner(INO, owner(1));
    take(1, excl(0, 0));
    let of = |holder| table.held().into_iter().find(|h| h.holder == holder).unwrap();
    assert!(of(record(2)).held >= Duration::from_millis(5) && of(record(1)).held < of(record(2)).held);
    assert_eq!((of(record(2)).waiting, of(record(2)).waited), (0, Duration::ZERO));
    table.release_owner(INO, owner(1));
    table.release_owner(INO, owner(2));
    table.release_handle(INO, Handle(5));
    assert!(table.held().is_empty() && table.is_empty());
}
