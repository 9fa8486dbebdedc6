//! What the manager tells all clients of a user.
//!
//! Verifies that names, attributes and pages that one client has asked for cost another one no message; and that everybody sees each change when it has returned, also of
//! what is posted under a lease of somebody else. Users are told nothing of what others have asked for: src/server/arena/tests.rs.

use crate::rig::{NEW, RW, Rig, volume};
use fs::client::OpenOptions as Open;
use fs::{Blocking, FileSystem};
use share::Remote;

const READ: Open = Open::new().read(true);

/// Messages by which something is looked for.
fn asked<F: FileSystem>(rig: &Rig<F>) -> u64 {
    ["walk", "lookup", "getattr", "open", "read"].map(|name| rig.count(name)).iter().sum()
}

/// Times are those of the system's last tick: what is read within that of its last change has its time of access moved by the next reader as well.
fn a_tick() {
    std::thread::sleep(std::time::Duration::from_millis(20));
}

fn read(client: &Blocking<Remote>, name: &str) -> Vec<u8> {
    let mut bytes = vec![0; 40_000];
    let n = client.open(name, READ).unwrap().read_at(&mut bytes, 0).unwrap();
    bytes.truncate(n);
    bytes
}

#[test]
fn what_one_has_asked_for_costs_the_others_nothing() {
    let rig = Rig::shared(volume(64 << 20));
    rig.beside.mkdir("d", 0o777).unwrap();
    let content = |i: usize| vec![i as u8; i * 317];
    (1..100).for_each(|i| rig.beside.write(format!("d/f{i}"), content(i)).unwrap());
    a_tick();
    let first = rig.client();
    let missing = |client: &Blocking<Remote>, i| client.stat(format!("d/g{i}")).is_err();
    for i in 1..100 {
        assert!(read(&first, &format!("d/f{i}")) == content(i) && missing(&first, i));
    }
    let before = asked(&rig);
    let second = rig.client();
    for i in 1..100 {
        let name = format!("d/f{i}");
        assert!(second.stat(&name).unwrap().size == content(i).len() as u64 && missing(&second, i));
        assert_eq!(second.stat(&name).unwrap(), rig.beside.stat(&name).unwrap());
        assert!(read(&second, &name) == content(i), "{name}");
    }
    // The first look at the root is nobody's before.
    assert!(asked(&rig) - before <= 3, "{} messages", asked(&rig) - before);
}

#[test]
fn what_changes_is_seen_at_once() {
    let rig = Rig::shared(volume(64 << 20));
    rig.beside.mkdir("d", 0o777).unwrap();
    let clients = [rig.client(), rig.client(), rig.client()];
    for i in 0..600 {
        let by = |n: usize| &clients[(i + n) % 3];
        let name = format!("d/f{}", i % 7);
        assert!(by(0).stat(&name).is_err() && by(1).stat(&name).is_err());
        // Made by a message; its data is posted.
        let file = by(0).open(&name, NEW).unwrap();
        assert_eq!(by(1).stat(&name).unwrap().size, 0);
        file.write_all_at(&[i as u8; 100], 0).unwrap();
        assert_eq!(by(2).stat(&name).unwrap().size, 100);
        file.write_all_at(&[i as u8; 5000], 100).unwrap();
        if i % 2 == 0 {
            file.close().unwrap();
        }
        assert_eq!(by(1).stat(&name).unwrap().size, 5100);
        assert!(read(by(2), &name) == [i as u8; 5100] && read(by(1), &name) == [i as u8; 5100]);
        let other = by(2).open(&name, RW).unwrap();
        other.write_all_at(b"end", 5100).unwrap();
        assert_eq!(read(by(1), &name).len(), 5103);
        by(1).rename(&name, "d/other", fs::RenameFlags::empty()).unwrap();
        assert!(by(0).stat(&name).is_err() && by(2).stat("d/other").unwrap().size == 5103);
        by(0).unlink("d/other").unwrap();
        assert!(by(1).stat("d/other").is_err() && by(2).stat("d/other").is_err());
    }
}

#[test]
fn one_reader_moves_the_time_of_access_for_all() {
    let rig = Rig::shared(volume(64 << 20));
    rig.beside.mkdir("d", 0o777).unwrap();
    (0..50).for_each(|i| rig.beside.write(format!("d/f{i}"), b"some bytes").unwrap());
    a_tick();
    let clients = [rig.client(), rig.client()];
    // Both know the files as they are before somebody reads them.
    for (client, i) in clients.iter().flat_map(|c| (0..50).map(move |i| (c, i))) {
        client.stat(format!("d/f{i}")).unwrap();
    }
    let reads = |client: &Blocking<Remote>| {
        let before = rig.count("read");
        (0..50).for_each(|i| assert_eq!(read(client, &format!("d/f{i}")), b"some bytes"));
        rig.count("read") - before
    };
    assert_eq!((reads(&clients[0]), reads(&clients[1])), (50, 0));
}

/// Files that are mostly read after they were written: neither their bytes nor that they are read costs a message that is waited for.
#[test]
fn what_was_just_written_is_read_without_asking() {
    let rig = Rig::shared(volume(64 << 20));
    rig.beside.mkdir("d", 0o777).unwrap();
    let (client, other) = (rig.client(), rig.client());
    let name = |i: usize| format!("d/f{i}");
    let text = |i: usize| vec![i as u8 + 1; 317 * (i + 1)];
    let (mut asked, mut opened) = (0, 0);
    for i in 0..60 {
        let file = client.open(name(i), if i % 2 == 0 { NEW } else { RW.create(true) }).unwrap();
        file.write_all_at(&text(i), 0).unwrap();
        file.close().unwrap();
        // A message, for which the manager wakes; and then all that was posted is done.
        client.stat(name(i)).unwrap();
        let before = client.stat(name(i)).unwrap();
        a_tick();
        client.statfs().unwrap();
        let (reads, opens) = (rig.count("read"), rig.count("open"));
        assert!(read(&client, &name(i)) == text(i) && read(&client, &name(i)) == text(i));
        (asked, opened) = (asked + rig.count("read") - reads, opened + rig.count("open") - opens);
        // Whoever asks, and the reader himself, sees that it was read.
        let after = client.stat(name(i)).unwrap();
        assert!(after.atime > before.mtime && after.mtime == before.mtime, "{before:?} {after:?}");
        assert_eq!(rig.beside.stat(name(i)).unwrap(), after);
        assert_eq!(other.stat(name(i)).unwrap(), after);
        // Once more: it does not move again.
        assert!(read(&client, &name(i)) == text(i));
        assert_eq!(client.stat(name(i)).unwrap(), after);
    }
    let told = rig.count("was_read");
    println!("{asked} reads by messages, {told} posted; {opened} opens by messages");
    assert!(asked + told >= 60 && asked <= 30, "{asked} reads by messages, {told} posted");
    assert!(opened <= 30, "{opened} opens by messages");
}

/// Who has a directory to himself says that he did something before it is done: nothing that the manager has told counts.
#[test]
fn nothing_is_told_of_what_is_lent() {
    let rig = Rig::new(volume(64 << 20));
    let (owner, other) = (rig.client(), rig.client());
    for round in 0..60 {
        let dir = format!("d{round}");
        owner.mkdir(&dir, 0o755).unwrap();
        let name = |i: usize| format!("{dir}/f{i}");
        // Until the directory is lent, and under the lease.
        for i in 0..40 {
            owner.open(name(i), NEW).unwrap().close().unwrap();
            // A message, whose answer others could be told.
            owner.chmod(name(i), 0o600).unwrap();
            owner.read_dir(&dir).unwrap();
        }
        (0..40).filter(|i| i % 3 != 0).for_each(|i| owner.unlink(name(i)).unwrap());
        for i in 0..40 {
            assert_eq!(other.stat(name(i)).is_ok(), i % 3 == 0, "{}", name(i));
        }
        (0..40).filter(|i| i % 3 == 0).for_each(|i| other.unlink(name(i)).unwrap());
        assert!((0..40).all(|i| owner.stat(name(i)).is_err()));
        owner.open(name(7), NEW).unwrap().write_all_at(b"new", 0).unwrap();
        assert_eq!(other.stat(name(7)).unwrap().size, 3);
    }
}
