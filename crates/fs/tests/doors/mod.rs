//! What a door does beside lenders and openers that fail or wait, over the small file system in `memory`.

use crate::memory::Memory;
use fs::leases::{Call, Caller, Lender, Settling};
use fs::*;
use std::sync::{Arc, mpsc};
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
