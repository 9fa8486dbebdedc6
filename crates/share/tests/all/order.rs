//! Barriers of a session across the end of its manager.
//!
//! Verifies that a program that asked for order, and whose manager was killed before it became durable, is told before anything it does
//! later can be there; that it is told once; and that nothing is said where nothing was lost, or where a sync had made it durable. What barriers do
//! on the medium is tested in freehold/tests/order.rs.

use crate::rig::{NEW, PAGE, RW, Rig, leased, page, volume};
use fs::client::BlockingFile;
use fs::{Blocking, Error, Opening, Ordered, RenameFlags};
use share::{Remote, Server, server::Options};

fn errno<T: std::fmt::Debug>(result: fs::Result<T>) -> i32 {
    result.unwrap_err().errno()
}

/// Another manager after one that was killed, as far as clients can see; or one that was stopped.
fn next_manager(rig: &mut Rig<block::Volume>, killed: bool, ordered: Ordered) {
    drop(rig.server.take());
    let number = if killed { 8 } else { 7 };
    let opening = Opening { volume: [1; 16], number, after: [0; 4] };
    let options = Options { opening, ordered, ..Options::default() };
    rig.server =
        Some(Server::start_at_door(rig.doors.door(), &rig.dir.path().join("socket"), options).unwrap());
}

fn begin() -> (Rig<block::Volume>, Blocking<Remote>, [BlockingFile<Remote>; 2]) {
    let rig = Rig::new(volume(128 << 20));
    let client = rig.client();
    let files = ["a", "b"].map(|name| client.open(name, NEW).unwrap());
    client.sync().unwrap();
    (rig, client, files)
}

#[test]
fn what_came_before_a_barrier_and_is_lost_is_told_before_anything_later_is_done() {
    type Later = fn(&Blocking<Remote>, &BlockingFile<Remote>) -> fs::Result<()>;
    let later: [Later; 7] = [
        |_, b| b.write_all_at(b"later", 0),
        |_, b| b.set_len(0),
        |_, b| b.fdatabarrier(),
        |_, b| b.fsync(),
        |client, _| client.rename("b", "c", RenameFlags::empty()),
        |client, _| client.mkdir("d", 0o755).map(drop),
        |client, _| client.open("b", RW.truncate(true)).map(drop),
    ];
    for (i, later) in later.into_iter().enumerate() {
        let (mut rig, client, [a, b]) = begin();
        a.write_all_at(b"before", 0).unwrap();
        a.fdatabarrier().unwrap();
        next_manager(&mut rig, true, Ordered::default());
        if i % 2 == 0 {
            // Reading does no harm.
            assert_eq!(client.read("b").unwrap(), b"");
        }
        assert_eq!(errno(later(&client, &b)), libc::EIO, "{i}");
        assert_eq!(rig.beside.read("b").unwrap(), b"", "{i}: it was not done");
        // It knows now.
        later(&client, &b).unwrap_or_else(|e| panic!("{i}: {e}"));
        assert_eq!(errno(a.fdatabarrier()), libc::EIO, "the file that was written says so, too");
        a.fdatabarrier().unwrap();
    }
}

#[test]
fn nothing_is_said_without_a_loss() {
    // The manager was stopped.
    let (mut rig, _client, [a, b]) = begin();
    a.write_all_at(b"before", 0).unwrap();
    a.fbarrier().unwrap();
    next_manager(&mut rig, false, Ordered::default());
    b.write_all_at(b"later", 0).unwrap();
    a.fbarrier().unwrap();
    // All of it was durable.
    let (mut rig, client, [a, b]) = begin();
    a.write_all_at(b"before", 0).unwrap();
    a.fbarrier().unwrap();
    client.sync().unwrap();
    next_manager(&mut rig, true, Ordered::default());
    b.write_all_at(b"later", 0).unwrap();
    // Nobody had asked for order.
    let (mut rig, _client, [a, b]) = begin();
    a.write_all_at(b"before", 0).unwrap();
    next_manager(&mut rig, true, Ordered::default());
    b.write_all_at(b"later", 0).unwrap();
    assert_eq!(errno(a.fsync()), libc::EIO);
}

/// Not only who wrote a file may sync it.
#[test]
fn whoever_has_a_file_open_is_told_that_what_was_written_is_lost() {
    let (mut rig, client, [a, b]) = begin();
    let open = |name: &str| client.open(name, RW).unwrap();
    let [second, others] = ["a", "b"].map(open);
    a.write_all_at(b"lost", 0).unwrap();
    next_manager(&mut rig, true, Ordered::default());
    assert_eq!(errno(second.fsync()), libc::EIO);
    assert_eq!(errno(a.fsync()), libc::EIO);
    [&a, &second, &b, &others, &open("a")].into_iter().for_each(|file| file.fsync().unwrap());
    // As fcntl(F_SETFL) opens a file anew; and what is opened and closed without a sync hides nothing.
    let (mut rig, client, [a, b]) = begin();
    let open = |name: &str| client.open(name, RW).unwrap();
    a.write_all_at(b"lost", 0).unwrap();
    let anew = open("a");
    drop(a);
    b.write_all_at(b"lost", 0).unwrap();
    drop(b);
    next_manager(&mut rig, true, Ordered::default());
    for name in ["a", "b"] {
        assert_eq!(client.read(name).unwrap(), b"lost", "the medium has it still");
    }
    assert_eq!(errno(anew.fsync()), libc::EIO);
    let later = open("b");
    assert_eq!(errno(later.fsync()), libc::EIO);
    [&anew, &later, &open("a"), &open("b")].into_iter().for_each(|file| file.fsync().unwrap());
}

/// A sync that was answered with order has made nothing durable.
#[test]
fn a_sync_answered_with_order_is_no_sync() {
    let (mut rig, _, _) = begin();
    let all = Ordered { all: true, ..Ordered::default() };
    next_manager(&mut rig, true, all.clone());
    let client = rig.client();
    let (a, b) = (client.open("c", NEW).unwrap(), client.open("d", NEW).unwrap());
    a.write_all_at(b"before", 0).unwrap();
    a.fsync().unwrap();
    let opening = Opening { volume: [1; 16], number: 9, after: [0; 4] };
    drop(rig.server.take());
    let options = Options { opening, ordered: all, ..Options::default() };
    let at = rig.dir.path().join("socket");
    rig.server = Some(Server::start_at_door(rig.doors.door(), &at, options).unwrap());
    assert_eq!(errno(b.write_all_at(b"later", 0)), libc::EIO);
    b.write_all_at(b"later", 0).unwrap();
    assert_eq!(errno(a.fsync()), libc::EIO);
    assert!(matches!(a.fsync(), Ok(())));
}

#[test]
fn writes_under_a_lease_come_before_a_barrier() {
    let rig = Rig::new(volume(128 << 20));
    let (one, other) = (rig.client(), rig.client());
    let file = leased(&rig, &one, "a", 16);
    let before = rig.doors.inner().counters();
    let calls = rig.calls();
    file.write_all_at(&page(7), 3 * PAGE as u64).unwrap();
    assert_eq!(rig.calls(), calls, "without a message");
    assert_eq!(rig.doors.inner().counters(), before, "nor is it with the engine");
    // Anybody's, on any file.
    other.open("b", NEW).unwrap().fdatabarrier().unwrap();
    let bytes = fs::Client::new(rig.doors.inner().clone(), fs::Cred::root()).blocking().read("a").unwrap();
    assert!(bytes[3 * PAGE..][..PAGE] == page(7), "the engine has it");
    assert_eq!(rig.doors.inner().counters().barriers, before.barriers + 1);
}

#[test]
fn a_barrier_needs_an_open_file() {
    let (rig, _client, [a, _]) = begin();
    use fs::FileSystem;
    let remote = Remote::connect(rig.dir.path().join("socket")).unwrap();
    let wrong = remote.block_on(remote.barrier(fs::Handle(u64::MAX), true));
    assert!(matches!(wrong, Err(Error::BadHandle)), "{wrong:?}");
    a.fbarrier().unwrap();
}
