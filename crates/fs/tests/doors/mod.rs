//! What a door does beside lenders and openers that fail or wait, over the small file system in `memory`.

use crate::memory::Memory;
use fs::leases::{Call, Caller, Lender, Settling};
use fs::*;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

type Doors = Watched<Memory>;

/// Far more than it takes.
const SOON: Duration = Duration::from_secs(5);

fn doors() -> (Doors, Blocking<Doors>) {
    let doors = Watched::new(Arc::new(Memory::new()));
    let client = Client::new(Arc::new(doors.clone()), Cred::root()).blocking();
    (doors, client)
}

/// What `call` gives on another thread, if it comes back.
fn soon<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (gives, given) = mpsc::channel();
    std::thread::spawn(move || gives.send(call()));
    given.recv_timeout(SOON).ok()
}

fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Has a lease on one inode for ever: settling it does `settles`, and fails.
struct Lends<S> {
    ino: Ino,
    settles: S,
}

impl<S: Fn() + Send + Sync + 'static> Lends<S> {
    fn on(doors: &Doors, ino: Ino, settles: S) {
        doors.lend(Arc::new(Lends { ino, settles }));
        doors.lease_begins();
    }
}

impl<S: Fn() + Send + Sync> Lender for Lends<S> {
    fn lends(&self, ino: Ino, _: Caller) -> bool {
        ino == self.ino
    }
    fn may_lend(&self, ino: Ino, caller: Caller) -> bool {
        self.lends(ino, caller)
    }
    fn settle(&self, _: Option<(Ino, Call)>, _: Caller) -> Settling<'_> {
        (self.settles)();
        Box::pin(std::future::ready(Err(Error::Latched("it does not write".into()))))
    }
}

#[test]
fn what_cannot_be_settled_is_listed() {
    let (doors, client) = doors();
    ["a", "b", "c", "d"].iter().for_each(|name| client.write(name, "x").unwrap());
    for name in ["b", "c"] {
        Lends::on(&doors, client.stat(name).unwrap().ino, || ());
    }
    let list = move || client.read_dir("/").unwrap().map(|e| e.unwrap().name).collect::<Vec<_>>();
    assert_eq!(soon(list).expect("it never ends"), ["a", "b", "c", "d"]);
}

/// What settles may need the turn of the very name that is being made.
#[test]
fn turns_are_taken_after_leases_are_settled() {
    let (doors, client) = doors();
    client.write("f", "x").unwrap();
    let ino = client.stat("f").unwrap().ino;
    let others = doors.door();
    Lends::on(&doors, ino, move || {
        for name in ["f", "new"] {
            let gone = fs::block_on(others.unlink_lent(&Cred::root(), Ino::ROOT, name.as_bytes()));
            assert!(matches!(gone, Ok(_) | Err(Error::NotFound)));
        }
    });
    let root = Cred::root();
    let flags = OpenFlags::WRITE | OpenFlags::TRUNCATE;
    let (of, cred) = (doors.clone(), root.clone());
    let made =
        soon(move || fs::block_on(of.create(&cred, Ino::ROOT, b"f", 0o644, flags)).map(|(attr, _)| attr.ino));
    // What was to be emptied was removed meanwhile.
    assert!(matches!(made, Some(Ok(new)) if new != ino), "{made:?}");
    let linked = soon(move || fs::block_on(doors.link(&root, ino, Ino::ROOT, b"new")));
    assert!(matches!(linked, Some(Err(Error::Latched(_)))), "{linked:?}");
}

/// Nobody waits in the turn of what another lease stands on, which came to the name meanwhile.
#[test]
fn a_directory_that_came_to_the_name_is_not_waited_for() {
    let (doors, client) = doors();
    client.mkdir("d", 0o755).unwrap();
    client.mkdir("o", 0o755).unwrap();
    let settled = Arc::new(AtomicBool::new(false));
    let seen = settled.clone();
    Lends::on(&doors, client.stat("o").unwrap().ino, move || seen.store(true, Ordering::SeqCst));
    doors.inner().lazy.store(true, Ordering::Relaxed);
    let root = Cred::root();
    let mut renames = pin!(doors.rename(&root, Ino::ROOT, b"o", Ino::ROOT, b"d", RenameFlags::empty()));
    // It has looked once what is there, and has the turn.
    assert!(poll(renames.as_mut()).is_pending() && poll(renames.as_mut()).is_pending());
    let mut removes = pin!(doors.rmdir_lent(&root, Ino::ROOT, b"d"));
    assert!(poll(removes.as_mut()).is_pending() && poll(removes.as_mut()).is_pending());
    assert_eq!(fs::block_on(renames), Ok(()));
    assert_eq!(soon_here(removes), Err(Error::Stale));
    assert!(!settled.load(Ordering::SeqCst));
    doors.inner().lazy.store(false, Ordering::Relaxed);
    assert!(client.stat("d").is_ok());
}

/// Runs what is `Pending` a few times at most.
fn soon_here<T>(mut future: std::pin::Pin<&mut impl Future<Output = T>>) -> T {
    for _ in 0..20 {
        if let Poll::Ready(out) = poll(future.as_mut()) {
            return out;
        }
    }
    panic!("it waits")
}
