//! Tests of the lock table: locks of whole files against the plain rules, and what many holders and waiters of one file cost.

use super::model::{INO, Pending, excl, owner, shared};
use super::*;
use crate::block_on;
use proptest::prelude::*;
use std::task::Poll;

const HANDLES: u64 = 5;

#[derive(Clone, Debug)]
enum Op {
    Lock {
        handle: u64,
        kind: LockKind,
        wait: bool,
    },
    Unlock(u64),
    Close(u64),
    Abandon(usize),
    /// The waiter is polled though nobody woke it.
    Poll(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let kind = prop_oneof![Just(LockKind::Shared), Just(LockKind::Exclusive)];
    let lock = (0..HANDLES, kind, any::<bool>());
    prop_oneof![
        6 => lock.prop_map(|(handle, kind, wait)| Op::Lock { handle, kind, wait }),
        3 => (0..HANDLES).prop_map(Op::Unlock),
        1 => (0..HANDLES).prop_map(Op::Close),
        1 => (0..8usize).prop_map(Op::Abandon),
        1 => (0..8usize).prop_map(Op::Poll),
    ]
}

/// Who holds what, and who waits for what, in the order of their coming.
#[derive(Default)]
struct Model<'a> {
    held: Vec<(u64, LockKind)>,
    waiting: Vec<(u64, LockKind, Pending<'a>)>,
}

impl Model<'_> {
    fn free_for(&self, handle: u64, kind: LockKind) -> bool {
        self.held.iter().all(|&(h, k)| h == handle || !exclusive(k, kind))
    }

    fn take(&mut self, handle: u64) {
        self.held.retain(|&(h, _)| h != handle);
    }

    fn give(&mut self, handle: u64, kind: LockKind) {
        assert!(self.free_for(handle, kind), "granted against a lock");
        self.take(handle);
        self.held.push((handle, kind));
    }

    fn poll(&mut self, at: usize) {
        let (handle, kind, call) = &mut self.waiting[at];
        let (handle, kind) = (*handle, *kind);
        match call.poll() {
            Poll::Ready(Ok(())) => self.give(handle, kind),
            Poll::Ready(Err(e)) => assert_eq!(e, Error::BadHandle),
            Poll::Pending => return assert!(!self.free_for(handle, kind)),
        }
        self.waiting.remove(at);
    }

    /// As many as can go on together are woken, from the front.
    fn check_woken(&self) {
        let mut woken: Vec<(u64, LockKind)> = Vec::new();
        for (handle, kind, call) in &self.waiting {
            let stands_back = woken.iter().any(|&(h, k)| h != *handle && exclusive(k, *kind));
            let goes_on = self.free_for(*handle, *kind) && !stands_back;
            assert!(call.woken() || !goes_on, "a wake-up was lost");
            if call.woken() {
                woken.push((*handle, *kind));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn whole_files_by_the_plain_rules(ops in proptest::collection::vec(op(), 1..80), lazy in any::<bool>()) {
        let table = LockTable::new();
        let mut model = Model::default();
        for op in ops {
            match op {
                Op::Lock { handle, kind, wait } => {
                    let mut call = Pending::new(table.flock(INO, Handle(handle), Some(kind), wait));
                    if !model.held.contains(&(handle, kind)) {
                        model.take(handle);
                    }
                    match call.poll() {
                        Poll::Ready(Ok(())) => model.give(handle, kind),
                        Poll::Ready(Err(e)) => {
                            prop_assert!(!wait && e == Error::WouldBlock && !model.free_for(handle, kind));
                        }
                        Poll::Pending => {
                            prop_assert!(wait && !model.free_for(handle, kind));
                            model.waiting.push((handle, kind, call));
                        }
                    }
                }
                Op::Unlock(handle) => {
                    block_on(table.flock(INO, Handle(handle), None, false)).unwrap();
                    model.take(handle);
                }
                Op::Close(handle) => {
                    table.release_handle(INO, Handle(handle));
                    model.take(handle);
                    while let Some(at) = model.waiting.iter().position(|w| w.0 == handle) {
                        prop_assert!(model.waiting[at].2.woken());
                        let (.., mut call) = model.waiting.remove(at);
                        prop_assert_eq!(call.poll(), Poll::Ready(Err(Error::BadHandle)));
                    }
                }
                Op::Abandon(at) if at < model.waiting.len() => drop(model.waiting.remove(at)),
                Op::Poll(at) if at < model.waiting.len() => model.poll(at),
                Op::Abandon(_) | Op::Poll(_) => {}
            }
            model.check_woken();
            // Else who was woken stays so for a while, and keeps others back.
            while !lazy && let Some(at) = model.waiting.iter().position(|w| w.2.woken()) {
                model.poll(at);
                model.check_woken();
            }
            let mut held: Vec<_> = table.held().into_iter().map(|h| h.holder).collect();
            let mut known: Vec<_> = model.held.iter().map(|&(h, _)| LockHolder::Handle(Handle(h))).collect();
            held.sort_by_key(|h| format!("{h:?}"));
            known.sort_by_key(|h| format!("{h:?}"));
            prop_assert_eq!(held, known);
        }
        model.waiting.clear();
        (0..HANDLES).for_each(|handle| table.release_handle(INO, Handle(handle)));
        prop_assert!(table.is_empty() && table.inner.lock().inodes.is_empty());
    }
}

/// Far more than it takes, and far less than what grows with the square of their number for each.
const SOON: Duration = Duration::from_secs(5);
const MANY: u64 = 10_000;

#[test]
fn many_hold_one_file() {
    let (table, begun) = (LockTable::new(), Instant::now());
    for handle in 0..MANY {
        block_on(table.flock(INO, Handle(handle), Some(LockKind::Shared), false)).unwrap();
    }
    let last = block_on(table.flock(INO, Handle(MANY), Some(LockKind::Exclusive), false));
    assert_eq!(last, Err(Error::WouldBlock));
    assert_eq!(table.held().len() as u64, MANY);
    (0..MANY).for_each(|handle| table.release_handle(INO, Handle(handle)));
    assert!(table.is_empty() && begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

#[test]
fn many_wait_for_one_file() {
    let (table, begun) = (LockTable::new(), Instant::now());
    block_on(table.flock(INO, Handle(MANY), Some(LockKind::Exclusive), false)).unwrap();
    let wait = |handle| Pending::new(table.flock(INO, Handle(handle), Some(LockKind::Shared), true));
    let mut waits: Vec<_> = (0..MANY).map(wait).collect();
    assert!(waits.iter_mut().all(|w| w.poll().is_pending()));
    assert!(!waits.iter().any(Pending::woken));
    table.release_handle(INO, Handle(MANY));
    assert!(waits.iter().all(Pending::woken), "all of them can hold it together");
    assert!(waits.iter_mut().all(|w| w.poll() == Poll::Ready(Ok(()))));
    (0..MANY).for_each(|handle| table.release_handle(INO, Handle(handle)));
    assert!(table.is_empty() && begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

#[test]
fn many_wait_for_one_record() {
    let (table, begun) = (LockTable::new(), Instant::now());
    let set = |who, wait| table.setlk(INO, owner(who), Ok(excl(3, 3)), wait);
    block_on(set(MANY, false)).unwrap();
    let mut waits: Vec<_> = (0..MANY).map(|who| Pending::new(set(who, true))).collect();
    assert!(waits.iter_mut().all(|w| w.poll().is_pending()));
    table.release_owner(INO, owner(MANY));
    assert!(waits[0].woken() && !waits[1..].iter().any(Pending::woken), "one of them can hold it");
    drop(waits);
    assert!(table.is_empty() && begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

#[test]
fn many_hold_what_many_wait_for() {
    const HOLDERS: u64 = 4096;
    const WAITERS: u64 = 256;
    let table = LockTable::new();
    let whole = Ino(8);
    for who in 0..HOLDERS {
        block_on(table.setlk(INO, owner(who), Ok(shared(3, 3)), false)).unwrap();
        block_on(table.flock(whole, Handle(who), Some(LockKind::Shared), false)).unwrap();
    }
    // Who waits there holds something else, for which nobody waits.
    let waits = |who| Pending::new(table.setlk(INO, owner(who), Ok(excl(3, 3)), true));
    let mut all: Vec<_> = (HOLDERS..HOLDERS + WAITERS).map(waits).collect();
    let waits = |who| Pending::new(table.flock(whole, Handle(who), Some(LockKind::Exclusive), true));
    all.extend((HOLDERS..HOLDERS + WAITERS).map(waits));
    for who in HOLDERS..HOLDERS + WAITERS {
        block_on(table.setlk(INO, owner(who), Ok(excl(who, who)), false)).unwrap();
    }
    assert!(all.iter_mut().all(|w| w.poll().is_pending()));
    let begun = Instant::now();
    let held = table.held();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(held.len() as u64, 2 * HOLDERS + WAITERS);
    for lock in held {
        let is_wanted = match lock.holder {
            LockHolder::Owner(LockOwner(who)) | LockHolder::Handle(Handle(who)) => who < HOLDERS,
        };
        let (waiting, waits) = (lock.waiting as u64, lock.waited > Duration::ZERO);
        assert_eq!((waiting, waits), if is_wanted { (WAITERS, true) } else { (0, false) }, "{lock:?}");
    }
    drop(all);
    assert!(table.held().iter().all(|lock| lock.waiting == 0));
}
