//! What a door does beside lenders and openers that fail or wait, over the small file system in `memory`.

use crate::memory::Memory;
use fs::leases::{Call, Caller, Lender, Settling};
use fs::watched::{Change, Opener, Told, Undeclared, Watcher};
use fs::*;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

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

/// Has one file open, of which the engine does not know.
struct Holds(Ino, Cred);

impl Watcher for Holds {
    fn changed(&self, _: &Change<'_>) -> Option<Told> {
        None
    }
    fn undeclared(&self, ino: Ino) -> Undeclared {
        let openers = (ino == self.0).then(|| Box::new(Holder(self.1.clone())) as Box<dyn Opener>);
        Undeclared { openers: openers.into_iter().collect(), until: None }
    }
}

struct Holder(Cred);

impl Opener for Holder {
    fn cred(&self) -> &Cred {
        &self.0
    }
    fn flags(&self) -> OpenFlags {
        OpenFlags::READ
    }
    fn opened(self: Box<Self>, _: Handle) -> std::result::Result<(), Handle> {
        Ok(())
    }
}

#[test]
fn what_cannot_be_opened_for_its_holders_stays() {
    let (doors, client) = doors();
    ["f", "other"].iter().for_each(|name| client.write(name, "x").unwrap());
    let ino = client.stat("f").unwrap().ino;
    doors.door().watch(Arc::new(Holds(ino, Cred::root())));
    let engine = doors.inner();
    engine.opens_max.store(0, Ordering::Relaxed);
    assert_eq!(client.unlink("f"), Err(Error::TooManyOpen));
    assert_eq!(client.rename("other", "f", RenameFlags::empty()), Err(Error::TooManyOpen));
    assert_eq!(client.chmod("f", 0), Err(Error::TooManyOpen));
    let lent = fs::block_on(doors.unlink_lent(&Cred::root(), Ino::ROOT, b"f"));
    assert_eq!(lent, Err(Error::TooManyOpen));
    let seen = client.stat("f").unwrap();
    assert_eq!((seen.ino, seen.nlink, seen.perm), (ino, 1, 0o644));
    engine.opens_max.store(usize::MAX, Ordering::Relaxed);
    client.unlink("f").unwrap();
    assert_eq!(engine.held().0, 1, "it is open for who held it");
}

#[test]
fn who_may_not_open_a_file_keeps_nobody_from_removing_it() {
    let (doors, client) = doors();
    client.write("f", "x").unwrap();
    client.chmod("f", 0o600).unwrap();
    doors.door().watch(Arc::new(Holds(client.stat("f").unwrap().ino, Cred::user(7, 7, &[]))));
    client.unlink("f").unwrap();
    assert_eq!(doors.inner().held().0, 0);
}

#[test]
fn how_often_a_file_is_open_is_known_at_once() {
    let (doors, client) = doors();
    ["f", "other"].iter().for_each(|name| client.write(name, "x").unwrap());
    let ino = client.stat("f").unwrap().ino;
    let open = || fs::block_on(doors.open(&Cred::root(), ino, OpenFlags::READ)).unwrap();
    let all: Vec<Handle> = (0..100_000).map(|_| open()).collect();
    let begun = Instant::now();
    let other = client.stat("other").unwrap().ino;
    (0..50_000).for_each(|_| assert_eq!((doors.openers(ino), doors.openers(other)), (all.len(), 0)));
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    for (closed, handle) in all.into_iter().enumerate().skip(99_000) {
        fs::block_on(doors.release(handle)).unwrap();
        assert_eq!(doors.openers(ino), 100_000 - (closed - 99_000) - 1);
    }
}

/// The engine may know better than a sleeping thread how to go on.
#[test]
fn a_directory_is_read_as_the_file_system_waits() {
    let memory = Arc::new(Memory::new());
    let client = Client::new(memory.clone(), Cred::root()).blocking();
    client.write("f", "x").unwrap();
    let mut entries = client.read_dir("/").unwrap();
    let before = memory.waits.load(Ordering::Relaxed);
    assert!(entries.next().is_some());
    assert_eq!(memory.waits.load(Ordering::Relaxed), before + 1);
}
