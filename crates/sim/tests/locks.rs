//! Waiting for locks in the model: what single-caller sequences of operations cannot show.

use fs::*;
use sim::{Model, system_clock};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

fn lock(start: u64, end: u64, kind: LockKind) -> std::result::Result<RecordLock, (u64, u64)> {
    Ok(RecordLock { start, end, kind, pid: 1 })
}

fn model() -> (Arc<Model>, Handle, Handle) {
    let fs = Arc::new(Model::new(system_clock()));
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let root = Cred::root();
    let (attr, a) = block_on(fs.create(&root, Ino::ROOT, b"file", 0o600, flags)).unwrap();
    let b = block_on(fs.open(&root, attr.ino, flags)).unwrap();
    (fs, a, b)
}

const A: LockOwner = LockOwner(1);
const B: LockOwner = LockOwner(2);

#[test]
fn a_waiter_gets_the_lock_when_it_is_released() {
    let (fs, a, b) = model();
    let exclusive = LockKind::Exclusive;
    block_on(fs.setlk(a, A, lock(0, 9, exclusive), false)).unwrap();
    let waiter = std::thread::spawn({
        let fs = fs.clone();
        move || block_on(fs.setlk(b, B, lock(5, 20, exclusive), true))
    });
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!waiter.is_finished());
    block_on(fs.setlk(a, A, Err((0, u64::MAX)), false)).unwrap();
    waiter.join().unwrap().unwrap();
    assert_eq!(block_on(fs.setlk(a, A, lock(20, 20, exclusive), false)), Err(Error::WouldBlock));
}

#[test]
fn a_circle_of_waiters_is_a_deadlock() {
    let (fs, a, b) = model();
    let mut cx = Context::from_waker(Waker::noop());
    block_on(fs.setlk(a, A, lock(0, 0, LockKind::Exclusive), false)).unwrap();
    block_on(fs.setlk(b, B, lock(1, 1, LockKind::Shared), false)).unwrap();
    let mut waits = Box::pin(fs.setlk(a, A, lock(1, 1, LockKind::Exclusive), true));
    assert!(waits.as_mut().poll(&mut cx).is_pending());
    let closes = fs.setlk(b, B, lock(0, 0, LockKind::Shared), true);
    assert_eq!(block_on(closes), Err(Error::Deadlock));
    // A call that was dropped waits no more, so there is no circle.
    drop(waits);
    let mut closes = pin!(fs.setlk(b, B, lock(0, 0, LockKind::Shared), true));
    assert!(closes.as_mut().poll(&mut cx).is_pending());
}

#[test]
fn closing_releases() {
    let (fs, a, b) = model();
    let mut cx = Context::from_waker(Waker::noop());
    block_on(fs.flock(a, Some(LockKind::Exclusive), false)).unwrap();
    assert_eq!(block_on(fs.flock(b, Some(LockKind::Shared), false)), Err(Error::WouldBlock));
    let mut waits = pin!(fs.flock(b, Some(LockKind::Shared), true));
    assert!(waits.as_mut().poll(&mut cx).is_pending());
    block_on(fs.release(a)).unwrap();
    assert_eq!(waits.as_mut().poll(&mut cx), Poll::Ready(Ok(())));
    // A waiter whose handle is closed is told so.
    let root = Cred::root();
    let ino = block_on(fs.lookup(&root, Ino::ROOT, b"file")).unwrap().ino;
    let c = block_on(fs.open(&root, ino, OpenFlags::READ)).unwrap();
    let mut waits = pin!(fs.flock(c, Some(LockKind::Exclusive), true));
    assert!(waits.as_mut().poll(&mut cx).is_pending());
    block_on(fs.release(c)).unwrap();
    assert_eq!(waits.as_mut().poll(&mut cx), Poll::Ready(Err(Error::BadHandle)));
}
