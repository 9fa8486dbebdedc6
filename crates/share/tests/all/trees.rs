//! Directories that are made without waiting, and what is made in them.
//!
//! Verifies that a client with a lease on a directory makes directories there, and files and directories in these, without waiting, removes them as long as nothing is in
//! them, and knows what it has made, and what is not there, without asking; that what it knows is what everybody else sees; that whoever comes to any of it ends the lease, and each
//! sees what the other has done; and that all of it outlives a power failure behind a sync. Random calls: tests/all/directories_random.rs.

use crate::rig::{NEW, Rig, lent, volume, volume_on_flash, without_power};
use fs::client::OpenOptions as Open;
use fs::watched::{Change, Watcher};
use fs::{Attr, Blocking, Error, FileSystem, FileType, RenameFlags};
use share::Remote;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn messages<F: FileSystem>(rig: &Rig<F>) -> u64 {
    ["create", "mkdir", "rmdir", "unlink", "walk", "lookup", "getattr"]
        .map(|kind| rig.count(kind))
        .iter()
        .sum()
}

#[test]
fn nobody_waits_for_a_tree() {
    let rig = Rig::new(volume(128 << 20));
    let client = rig.client();
    client.mkdir("d", 0o755).unwrap();
    lent(&rig, &client, "d");
    let before = messages(&rig);
    let mut all: Vec<(String, Attr)> = Vec::new();
    let know = |path: String| (path.clone(), client.stat(&path).unwrap());
    for i in 0..400 {
        assert_eq!(client.stat(format!("d/{i}")).unwrap_err(), Error::NotFound);
        client.mkdir(format!("d/{i}"), 0o750).unwrap();
        if i % 2 == 0 {
            client.mkdir(format!("d/{i}/deep"), 0o755).unwrap();
            for name in ["deep/a", "deep/b", "c"] {
                assert_eq!(client.stat(format!("d/{i}/{name}")).unwrap_err(), Error::NotFound);
                let file = client.open(format!("d/{i}/{name}"), NEW).unwrap();
                if name == "deep/a" {
                    file.write_all_at(name.as_bytes(), 0).unwrap();
                } else {
                    all.push((format!("d/{i}/{name}"), file.metadata().unwrap()));
                }
            }
        }
        if i % 5 == 0 {
            assert_eq!(client.rmdir(format!("d/{i}")).is_ok(), i % 2 == 1, "{i}");
        }
        assert_eq!(client.mkdir(format!("d/{i}"), 0o750).is_ok(), i % 10 == 5, "{i}");
        if i % 2 == 1 {
            all.push(know(format!("d/{i}")));
        }
    }
    // A message, behind all that was posted.
    assert!(client.read_dir("d").unwrap().count() > 300);
    // Those that cannot be removed, as something is in them, are asked about, and then whether they are there.
    let asked = messages(&rig) - before;
    println!("{asked} messages, {} directories posted", rig.count("post_mkdir"));
    assert!(asked < 100 && rig.count("post_mkdir") >= 600 && rig.count("post_rmdir") == 40, "{asked}");
    assert!(rig.doors.lends_directories());
    for (path, attr) in all {
        assert_eq!(rig.beside.stat(&path).unwrap(), attr, "{path}");
        assert_eq!(client.stat(&path).unwrap(), attr, "{path}");
    }
    assert_eq!(rig.beside.read("d/0/deep/a").unwrap(), b"deep/a");
    assert!(!rig.doors.lends_directories());
}

/// A door that counts the names it is told of, and the other changes.
#[derive(Default)]
struct Told {
    names: AtomicU64,
    others: AtomicU64,
}

impl Watcher for Told {
    fn changed(&self, change: &Change<'_>) -> Option<fs::watched::Told> {
        let is_name = matches!(change, Change::Name { .. });
        let counter = if is_name { &self.names } else { &self.others };
        counter.fetch_add(1, Ordering::SeqCst);
        None
    }
}

#[test]
fn nobody_is_told_of_names_that_nobody_can_know() {
    let rig = Rig::new(volume(128 << 20));
    let told = Arc::new(Told::default());
    let count = |of: &AtomicU64| of.swap(0, Ordering::SeqCst);
    rig.doors.watch(told.clone());
    let client = rig.client();
    client.mkdir("d", 0o755).unwrap();
    lent(&rig, &client, "d");
    // A message, behind all that was posted.
    let settle = || assert!(client.read_dir("d").unwrap().count() > 0);
    settle();
    assert!(count(&told.names) > 0, "the first ones were made by messages");
    count(&told.others);
    let posted = ["post_mkdir", "post_create", "post_rmdir", "post_unlink"];
    let before = posted.map(|kind| rig.count(kind));
    for i in 0..50 {
        client.mkdir(format!("d/{i}"), 0o755).unwrap();
        drop(client.open(format!("d/{i}/f"), NEW).unwrap());
        if i < 10 {
            client.unlink(format!("d/{i}/f")).unwrap();
            client.rmdir(format!("d/{i}")).unwrap();
        }
    }
    settle();
    let posted = [0, 1, 2, 3].map(|i| rig.count(posted[i]) - before[i]);
    assert_eq!(posted, [50, 50, 10, 10]);
    assert_eq!((count(&told.names), count(&told.others)), (0, 20), "only what is gone");
    assert!(rig.beside.stat("d/49/f").is_ok() && rig.beside.stat("d/0").is_err());
    client.mkdir("d/more", 0o755).unwrap();
    settle();
    assert_eq!(count(&told.names), 1, "somebody else came");
}

#[test]
fn what_was_known_before_a_lease_is_known_under_it() {
    let rig = Rig::new(volume(128 << 20));
    let (client, other) = (rig.client(), rig.client());
    client.mkdir("d", 0o755).unwrap();
    drop(client.open("d/gone", NEW).unwrap());
    drop(client.open("d/other", NEW).unwrap());
    let old = client.stat("d/other").unwrap();
    other.unlink("d/gone").unwrap();
    other.rename("d/other", "d/old", RenameFlags::empty()).unwrap();
    drop(other.open("d/other", Open::new().write(true).create(true).mode(0o600)).unwrap());
    lent(&rig, &client, "d");
    for i in 0..10 {
        drop(client.open(format!("d/f{i}"), NEW).unwrap());
    }
    assert!(client.stat("d/gone").is_err_and(|e| e == Error::NotFound));
    let now = client.stat("d/other").unwrap();
    assert!(now.ino != old.ino && now.perm == 0o600, "{now:?}");
    assert_eq!(client.stat("d/old").unwrap().ino, old.ino);
    // A call is counted when the next one is run at the latest.
    let walks = || {
        client.statfs().unwrap();
        rig.count("walk")
    };
    let before = walks();
    let looks = || {
        let made = (0..10).map(|i| format!("d/f{i}"));
        let all = made.chain(["d/lent-0", "d/other", "d/old"].map(String::from));
        all.map(|path| client.stat(path).unwrap()).collect::<Vec<_>>()
    };
    let first = looks();
    assert!((0..3).all(|_| looks() == first));
    assert_eq!(walks(), before, "files that were made by messages are known still");
    assert!(rig.doors.lends_directories());
}

/// Nobody is told of names that others make and remove under a lease.
#[test]
fn what_was_known_before_the_lease_of_another_may_be_something_else() {
    let rig = Rig::new(volume(128 << 20));
    let (client, other) = (rig.client(), rig.client());
    client.mkdir("d", 0o755).unwrap();
    let names = ["a", "b", "stays"].map(|name| format!("d/{name}"));
    names.iter().for_each(|name| drop(client.open(name, NEW).unwrap()));
    let before = names.each_ref().map(|name| client.stat(name).unwrap());
    let numbers = AtomicU64::new(0);
    let posted = |by: &Blocking<Remote>| {
        by.statfs().unwrap();
        rig.count("post_create") + rig.count("post_mkdir")
    };
    // A client that has the directory to itself makes files without a message.
    let to_itself = |who: &Blocking<Remote>| {
        let before = posted(who);
        while posted(who) == before {
            let number = numbers.fetch_add(1, Ordering::Relaxed);
            assert!(number < 1000);
            drop(who.open(format!("d/own-{number}"), NEW).unwrap());
        }
    };
    for round in 0..10 {
        to_itself(&other);
        let without = posted(&other);
        // What is there already goes by a message.
        let new = format!("d/new-{round}");
        for name in [&names[0], &names[1], &new] {
            match other.stat(name).map(|attr| attr.kind) {
                Ok(FileType::Directory) => other.rmdir(name).unwrap(),
                Ok(_) => other.unlink(name).unwrap(),
                Err(e) => assert_eq!((e, name), (Error::NotFound, &new)),
            }
            for _ in 0..3 {
                drop(other.open(name, NEW).unwrap());
                other.unlink(name).unwrap();
            }
            other.mkdir(name, 0o700).unwrap();
        }
        assert!(posted(&other) >= without + 4, "without messages");
        to_itself(&client);
        let seen = names.each_ref().map(|name| client.stat(name).unwrap());
        assert_eq!(client.stat(&new).unwrap().perm, 0o700);
        assert_eq!(seen, names.each_ref().map(|name| rig.beside.stat(name).unwrap()));
        assert!(seen[2] == before[2] && seen[0].ino != before[0].ino && seen[1].ino != before[1].ino);
    }
}

#[test]
fn what_was_just_made_is_known() {
    let rig = Rig::new(volume(128 << 20));
    let client = rig.client();
    client.mkdir("d", 0o2755).unwrap();
    lent(&rig, &client, "d");
    let n = 2000;
    for i in 0..n {
        match i % 2 {
            0 => client
                .open(format!("d/{i}"), Open::new().write(true).create_new(true))
                .unwrap()
                .close()
                .unwrap(),
            _ => drop(client.mkdir(format!("d/{i}"), 0o755).unwrap()),
        }
    }
    let before = messages(&rig);
    let known: Vec<Attr> = (0..n).map(|i| client.stat(format!("d/{i}")).unwrap()).collect();
    let asked = messages(&rig) - before;
    // A word of the changes has more than one meaning.
    assert!(asked < n / 20, "{asked} messages");
    assert!(rig.doors.lends_directories());
    for (i, attr) in known.iter().enumerate() {
        assert_eq!(rig.beside.stat(format!("d/{i}")).unwrap(), *attr);
    }
    // As it is, not as it was made.
    lent(&rig, &client, "d");
    for i in 0..200 {
        let name = format!("d/more{i}");
        let file = client.open(&name, NEW).unwrap();
        match i % 6 {
            0 => file.write_all_at(b"bytes", 0).unwrap(),
            1 => drop(client.chmod(&name, 0o600).unwrap()),
            2 => drop(client.link(&name, format!("d/link{i}")).unwrap()),
            3 => file.set_len(100).unwrap(),
            4 => rig.beside.write(&name, b"others").unwrap(),
            _ => client.rename(&name, format!("d/other{i}"), RenameFlags::empty()).unwrap(),
        }
        let name = if i % 6 == 5 { format!("d/other{i}") } else { name };
        let attr = client.stat(&name).unwrap();
        assert_eq!((file.metadata().unwrap(), rig.beside.stat(&name).unwrap()), (attr, attr), "{i}");
        assert_eq!((attr.size, attr.nlink), ([5, 0, 0, 100, 6, 0][i % 6], 1 + (i % 6 == 2) as u32));
        lent(&rig, &client, "d");
    }
}

#[test]
fn everybody_sees_it_at_once() {
    let rig = Rig::new(volume(128 << 20));
    let (a, b) = (rig.client(), rig.client());
    a.mkdir("d", 0o777).unwrap();
    let mut under = 0;
    for i in 0..4000 {
        lent(&rig, &a, "d");
        let (dir, file) = (format!("d/{i}"), format!("d/{i}/f"));
        a.mkdir(&dir, 0o777).unwrap();
        // Somebody who finds the directory through its number alone ends the lease as well.
        let ino = a.stat(&dir).unwrap().ino;
        under += rig.doors.lends_directories() as u32;
        match i % 8 {
            0 => {
                a.open(&file, NEW).unwrap();
                assert!(b.stat(&file).is_ok());
            }
            1 => {
                b.open(&file, NEW).unwrap();
                assert_eq!(a.rmdir(&dir).unwrap_err(), Error::NotEmpty);
                assert_eq!(a.open(&file, NEW).unwrap_err(), Error::Exists);
            }
            2 => {
                a.open(&file, NEW).unwrap();
                assert_eq!(rig.beside.rmdir(&dir).unwrap_err(), Error::NotEmpty);
                a.unlink(&file).unwrap();
                rig.beside.rmdir(&dir).unwrap();
                assert_eq!(a.open(&file, NEW).unwrap_err(), Error::NotFound);
                assert_eq!(a.rmdir(&dir).unwrap_err(), Error::NotFound);
            }
            3 => {
                a.rmdir(&dir).unwrap();
                assert_eq!(b.open(&file, NEW).unwrap_err(), Error::NotFound);
                b.mkdir(&dir, 0o777).unwrap();
                assert_eq!(a.mkdir(&dir, 0o777).unwrap_err(), Error::Exists);
            }
            4 => {
                a.mkdir(&file, 0o777).unwrap();
                b.rename(&file, format!("d/moved{i}"), RenameFlags::empty()).unwrap();
                a.open(format!("d/moved{i}/x"), NEW).unwrap();
                a.rmdir(&dir).unwrap();
                assert_eq!(b.rmdir(format!("d/moved{i}")).unwrap_err(), Error::NotEmpty);
            }
            5 => {
                a.chmod(&dir, 0o500).unwrap();
                assert_eq!(b.stat(&dir).unwrap().perm, 0o500);
                a.rename(&dir, format!("d/moved{i}"), RenameFlags::empty()).unwrap();
                assert_eq!(a.mkdir(format!("{dir}/x"), 0o700).unwrap_err(), Error::NotFound);
                a.rmdir(format!("d/moved{i}")).unwrap();
                assert_eq!(b.stat(&dir).unwrap_err(), Error::NotFound);
            }
            6 => {
                a.mkdir(&file, 0o777).unwrap();
                let handle = fs::block_on(rig.doors.opendir(&fs::Cred::root(), ino)).unwrap();
                assert!(!rig.doors.lends_on(a.stat("d").unwrap().ino), "found by its number");
                a.rmdir(&file).unwrap();
                a.rmdir(&dir).unwrap();
                assert_eq!(b.stat(&dir).unwrap_err(), Error::NotFound);
                fs::block_on(rig.doors.release(handle)).unwrap();
            }
            _ => {
                a.mkdir(&file, 0o777).unwrap();
                assert_eq!(rig.beside.stat(&dir).unwrap().nlink, 3);
                assert_eq!(a.unlink(&file).unwrap_err().errno(), libc::EISDIR);
                assert_eq!(b.read_dir(&dir).unwrap().count(), 1);
                lent(&rig, &a, &dir);
                assert_eq!(a.rmdir(&dir).unwrap_err(), Error::NotEmpty);
            }
        }
    }
    println!("{under} under a lease, {} posted", rig.count("post_mkdir"));
    assert!(under > 3500 && rig.count("post_mkdir") > 3500);
}

#[test]
fn a_tree_is_in_the_sync_of_anybody() {
    let (flash, volume) = volume_on_flash(64 << 20);
    let rig = Rig::new(volume);
    let (a, b) = (rig.client(), rig.client());
    a.mkdir("d", 0o777).unwrap();
    for round in 0..8 {
        lent(&rig, &a, "d");
        for i in 0..20 {
            let dir = format!("d/{round}-{i}");
            a.mkdir(&dir, 0o755).unwrap();
            a.open(format!("{dir}/f"), NEW).unwrap().write_all_at(dir.as_bytes(), 0).unwrap();
            a.mkdir(format!("{dir}/gone"), 0o755).unwrap();
            a.rmdir(format!("{dir}/gone")).unwrap();
        }
        assert!(rig.doors.lends_directories());
        if round % 2 == 0 {
            a.sync().unwrap()
        } else {
            b.sync().unwrap()
        }
        let after = without_power(&flash);
        for i in 0..20 {
            let dir = format!("d/{round}-{i}");
            assert_eq!(after.read(format!("{dir}/f")).unwrap(), dir.as_bytes());
            assert_eq!(after.read_dir(&dir).unwrap().count(), 1);
        }
    }
}
