//! Names that are looked for, made, moved and removed at the same time, here and by others.

use crate::rig::*;
use fs::{Cred, Error, FileSystem, FileType, Ino, OpenFlags};
use object::store::Abilities;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const MOMENT: Duration = Duration::from_millis(300);

/// The old name of what is moved goes in the store before it goes here: that is no removal.
#[test]
fn what_is_open_while_it_is_renamed_stays_open() {
    for (rename, call) in [(true, "rename"), (false, "delete")] {
        for listing in [false, true] {
            let bucket = bucket();
            let rig = mount_with(&bucket, Abilities { rename, ..SMALL }, options(), Faults::default(), 100);
            let bytes = pattern(1, 9000);
            rig.write("f", &bytes).unwrap();
            let (handle, ino) = (rig.open("f").unwrap(), rig.find("f").unwrap().ino);
            rig.fs.store().answer_late(call, Some(MOMENT));
            thread::scope(|s| {
                let moves = s.spawn(|| rig.rename("f", "g"));
                while rig.count(call) == 0 {
                    thread::yield_now();
                }
                match listing {
                    true => drop(rig.list("").unwrap()),
                    false => drop(rig.find("f")),
                }
                assert!(rig.run(rig.fs.getattr(ino, None)).is_ok());
                assert!(rig.read_at(handle, 50, 10).unwrap() == bytes[50..60]);
                assert_eq!(moves.join().unwrap(), Ok(()));
            });
            assert_eq!(rig.list("").unwrap(), ["g"]);
            assert_eq!(rig.find("f"), Err(Error::NotFound));
            rig.write_at(handle, 0, b"head").unwrap();
            rig.close(handle).unwrap();
            assert_eq!(rig.find("g").unwrap().ino, ino);
            assert!(rig.read("g").unwrap() == [b"head", &bytes[4..]].concat());
        }
    }
}

#[test]
fn what_is_open_while_its_directory_is_moved_stays_open() {
    let bucket = bucket();
    let rig = mount_with(&bucket, SMALL, options(), Faults::default(), 100);
    rig.mkdir("from").unwrap();
    rig.mkdir("from/sub").unwrap();
    let bytes = pattern(1, 9000);
    rig.write("from/sub/f", &bytes).unwrap();
    let (written, ino) = (rig.open("from/sub/f").unwrap(), rig.find("from/sub/f").unwrap().ino);
    // All are removed, and the first answer of these comes late.
    rig.fs.store().answer_late("delete", Some(MOMENT));
    thread::scope(|s| {
        let moves = s.spawn(|| rig.rename("from", "to"));
        while rig.count("delete") < 2 {
            thread::yield_now();
        }
        let read = rig.run(rig.fs.open(&Cred::root(), ino, OpenFlags::READ)).unwrap();
        assert!(rig.run(rig.fs.getattr(ino, None)).is_ok());
        drop(rig.find("from/sub/f"));
        drop(rig.list("from"));
        drop(rig.find("from/sub"));
        assert!(rig.read_at(read, 50, 10).unwrap() == bytes[50..60]);
        assert_eq!(moves.join().unwrap(), Ok(()));
        assert!(rig.read_at(read, 8000, 10).unwrap() == bytes[8000..8010]);
        rig.close(read).unwrap();
    });
    rig.write_at(written, 0, b"head").unwrap();
    rig.close(written).unwrap();
    assert_eq!(rig.find("to/sub/f").unwrap().ino, ino);
    assert!(rig.read("to/sub/f").unwrap() == [b"head", &bytes[4..]].concat());
    assert_eq!((rig.list("").unwrap(), rig.list("to").unwrap()), (vec!["to".into()], vec!["sub".into()]));
}

/// Others remove the old name while it is copied: it is moved all the same.
#[test]
fn a_file_that_others_remove_while_it_is_renamed_has_its_new_name() {
    let bucket = bucket();
    let slow_copy = Arc::<AtomicU64>::default();
    let faults = Faults { slow_copy: slow_copy.clone(), ..Faults::default() };
    let rig = mount_with(&bucket, SMALL, options(), faults, 100);
    rig.write("f", b"bytes").unwrap();
    slow_copy.store(300, Ordering::SeqCst);
    thread::scope(|s| {
        let moves = s.spawn(|| rig.rename("f", "g"));
        while slow_copy.load(Ordering::SeqCst) != 0 {
            thread::yield_now();
        }
        bucket.lock().objects.remove("f");
        drop(rig.find("f"));
        assert_eq!(moves.join().unwrap(), Ok(()));
    });
    assert_eq!(rig.list("").unwrap(), ["g"]);
    assert_eq!(rig.read("g").unwrap(), b"bytes");
}

/// Keys have 1024 bytes, and metadata of objects little more.
#[test]
fn a_directory_is_moved_to_a_long_name() {
    let bucket = bucket();
    let name = "\u{fc}".repeat(120);
    let rig = mount_with(&bucket, SMALL, options(), Faults::default(), 100);
    let top = format!("{name}/{name}/{name}");
    for dir in [&name, &format!("{name}/{name}"), &top, "d"] {
        rig.mkdir(dir).unwrap();
    }
    rig.write("d/f", b"bytes").unwrap();
    let to = format!("{top}/{name}");
    // Also when it is repeated.
    rig.fs.store().refuse("delete", Some(object::store::StoreError::Denied("no".into())));
    assert_eq!(rig.rename("d", &to), Err(Error::AccessDenied));
    mount(&bucket).rename("d", &to).unwrap();
    assert_eq!(mount(&bucket).read(&format!("{to}/f")).unwrap(), b"bytes");
    assert!(bucket.lock().keys().iter().all(|key| !key.starts_with("d/")));
}

/// Through a library names are looked for by calls that run side by side, and not under a lock of the kernel's.
#[test]
fn what_a_name_leads_to_is_looked_for_again_after_a_wait() {
    let bucket = bucket();
    let rig = mount_with(&bucket, SMALL, options(), Faults::default(), 100);
    let beside = |call: &'static str,
                  first: &(dyn Fn() -> fs::Result<()> + Sync),
                  then: &dyn Fn() -> fs::Result<()>| {
        rig.fs.store().slow(call, MOMENT);
        thread::scope(|s| {
            let first = s.spawn(first);
            while !rig.fs.store().all_slow() {
                thread::yield_now();
            }
            let then = then();
            (first.join().unwrap(), then)
        })
    };
    rig.write("f", b"f").unwrap();
    let done = beside("copy", &|| rig.rename("f", "g"), &|| rig.unlink("f"));
    assert_eq!(done, (Ok(()), Err(Error::NotFound)));
    assert_eq!(bucket.lock().keys(), ["g"]);
    let done = beside("copy", &|| rig.rename("g", "h"), &|| rig.rename("g", "i"));
    assert_eq!(done, (Ok(()), Err(Error::NotFound)));
    assert_eq!(bucket.lock().keys(), ["h"]);
    assert_eq!(rig.list("").unwrap(), ["h"]);
    // What is made in the store is removed where the name was given to something else here.
    let symlink = || rig.run(rig.fs.symlink(&Cred::root(), Ino::ROOT, b"l", b"to")).map(drop);
    for (name, make) in [("d", &(|| rig.mkdir("d")) as &(dyn Fn() -> fs::Result<()> + Sync)), ("l", &symlink)]
    {
        let handle = parking_lot::Mutex::new(None);
        let done = beside("put", make, &|| rig.create(name).map(|made| *handle.lock() = Some(made)));
        if done.0.is_ok() {
            // Where others have the processor for long, it is made by now.
            assert!(done.1.is_err(), "{name}");
            let removed = if name == "d" { rig.rmdir(name) } else { rig.unlink(name) };
            removed.unwrap();
            continue;
        }
        assert_eq!(done, (Err(Error::Exists), Ok(())), "{name}");
        assert_eq!(bucket.lock().keys(), ["h"], "{name}");
        let handle = handle.lock().unwrap();
        rig.write_at(handle, 0, b"bytes").unwrap();
        rig.close(handle).unwrap();
        assert_eq!(rig.read(name).unwrap(), b"bytes");
        rig.unlink(name).unwrap();
    }
}

/// Stores that list what was not asked for, or the same again and again.
#[test]
fn listings_that_cannot_be_are_no_ones_harm() {
    let bucket = bucket();
    let rig = mount_with(&bucket, SMALL, options(), Faults::default(), 100);
    rig.mkdir("from").unwrap();
    rig.write("from/in", b"in").unwrap();
    for foreign in ["x", "a long key that lies elsewhere"] {
        bucket.lock().put_plain(foreign, b"foreign");
        rig.fs.store().list_foreign(foreign);
        rig.rename("from", "to").unwrap();
        rig.rename("to", "from").unwrap();
        assert_eq!(bucket.lock().body(foreign), Some(&b"foreign"[..]));
    }
    rig.mkdir("empty").unwrap();
    rig.rmdir("empty").unwrap();
    rig.mkdir("empty").unwrap();
    rig.fs.store().list_endless();
    assert!(rig.rmdir("empty").is_err());
    assert!(rig.rename("from", "to").is_err());
    assert!(rig.list("empty").is_err());
}

/// Names that come and go all the time beside a name are no reason to ask for it again.
#[test]
fn a_name_is_found_although_others_go() {
    let rig = mount(&bucket());
    rig.write("old", b"old").unwrap();
    let handles: Vec<_> = (0..600).map(|n| rig.create(&format!("n{n}")).unwrap()).collect();
    for _ in 0..1000 {
        rig.fs.store().slow("head", Duration::from_millis(20));
    }
    thread::scope(|s| {
        let goes = s.spawn(|| {
            for n in 0..600 {
                rig.unlink(&format!("n{n}")).unwrap();
                thread::sleep(Duration::from_millis(2));
            }
        });
        assert_eq!(rig.find("old").unwrap().size, 3);
        assert!(!goes.is_finished(), "it was asked for as long as names went");
    });
    handles.into_iter().for_each(|handle| rig.close(handle).unwrap());
}

/// Answers that are older than a change of names made here.
#[test]
fn a_name_that_was_made_or_removed_meanwhile_is_as_it_is_now() {
    let late = Arc::<AtomicU64>::default();
    let faults = Faults { late: late.clone(), ..Faults::default() };
    let rig = mount_with(&bucket(), SMALL, options(), faults, 100);
    let meanwhile = |name: &str, change: &dyn Fn()| {
        let asked = rig.count("head");
        late.store(300, Ordering::SeqCst);
        thread::scope(|s| {
            let looking = s.spawn(|| rig.find(name));
            while rig.count("head") == asked {
                thread::yield_now();
            }
            change();
            looking.join().unwrap().map(|attr| attr.kind)
        })
    };
    assert_eq!(meanwhile("d", &|| rig.mkdir("d").unwrap()), Ok(FileType::Directory));
    assert_eq!(meanwhile("f", &|| rig.write("f", b"f").unwrap()), Ok(FileType::Regular));
    assert_eq!(meanwhile("g", &|| rig.rename("f", "g").unwrap()), Ok(FileType::Regular));
    assert_eq!(meanwhile("g", &|| rig.rename("g", "f").unwrap()), Err(Error::NotFound));
    assert_eq!(meanwhile("f", &|| rig.unlink("f").unwrap()), Err(Error::NotFound));
    rig.write("d/in", b"in").unwrap();
    let (dir, asked) = (rig.find("d").unwrap().ino, rig.count("head"));
    late.store(300, Ordering::SeqCst);
    thread::scope(|s| {
        let looking = s.spawn(|| rig.run(rig.fs.lookup(&Cred::root(), dir, b"in")));
        while rig.count("head") == asked {
            thread::yield_now();
        }
        rig.rename("d", "e").unwrap();
        assert_eq!(looking.join().unwrap().unwrap().size, 2);
    });
    assert_eq!((rig.read("e/in").unwrap(), rig.list("").unwrap()), (b"in".to_vec(), vec!["e".to_string()]));
}
