//! What others do to a bucket, and what is done here at the same time: nothing that was acknowledged is lost, and who has lost something is told.

use crate::rig::*;
use crate::stack;
use bytes::Bytes;
use fs::{Cred, Error, FileSystem, Ino, OpenFlags, RenameFlags, SetAttr};
use object::store::{Condition, Description, Metadata, STORAGE_CLASS, Store};
use sim::s3::{Faults as NetFaults, Features, Server};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

const MOMENT: Duration = Duration::from_millis(300);

#[test]
fn what_is_written_below_a_directory_that_others_remove_is_there() {
    let bucket = bucket();
    let rig = mount(&bucket);
    rig.mkdir("d").unwrap();
    rig.mkdir("d/e").unwrap();
    rig.write("d/e/old", b"old").unwrap();
    let (new, old) = (rig.create("d/e/new").unwrap(), rig.open("d/e/old").unwrap());
    rig.write_at(new, 0, b"new").unwrap();
    rig.write_at(old, 0, b"OLD").unwrap();
    bucket.lock().objects.clear();
    // Each way in which it may be noticed.
    assert!(rig.find("d/e").is_ok());
    assert!(rig.list("").unwrap().is_empty() && rig.find("d").is_ok());
    assert_eq!(rig.list("d/e").unwrap(), ["new"]);
    rig.write_at(new, 3, b"er").unwrap();
    rig.close(new).unwrap();
    assert_eq!(bucket.lock().body("d/e/new"), Some(&b"newer"[..]));
    assert_eq!(rig.close(old), Err(Error::Stale), "it was removed while it was open");
    assert_eq!(rig.find("d/e/old"), Err(Error::NotFound));
    assert_eq!(bucket.lock().keys(), ["d/e/new"]);
    // Nothing is written here any more: now it goes.
    rig.unlink("d/e/new").unwrap();
    bucket.lock().objects.clear();
    assert_eq!(rig.find("d"), Err(Error::NotFound));
}

#[test]
fn who_has_a_file_open_that_others_remove_is_told() {
    for listing in [false, true] {
        let bucket = bucket();
        let rig = mount(&bucket);
        rig.mkdir("d").unwrap();
        rig.write("d/f", b"first").unwrap();
        let (handle, ino) = (rig.open("d/f").unwrap(), rig.find("d/f").unwrap().ino);
        bucket.lock().objects.remove("d/f");
        match listing {
            true => assert!(rig.list("d").unwrap().is_empty()),
            false => assert_eq!(rig.find("d/f"), Err(Error::NotFound)),
        }
        assert_eq!(rig.write_at(handle, 0, b"second"), Err(Error::Stale));
        assert_eq!(rig.read_at(handle, 0, 5), Err(Error::Stale));
        let cut = SetAttr { size: Some(1), handle: Some(handle), ..SetAttr::default() };
        assert_eq!(rig.run(rig.fs.setattr(&Cred::root(), ino, cut)), Err(Error::Stale));
        assert_eq!(rig.close(handle), Ok(()), "nothing is lost");
        // The name is free.
        rig.write("d/f", b"third").unwrap();
        assert_eq!(rig.read("d/f").unwrap(), b"third");
    }
}

#[test]
fn a_file_that_is_written_is_not_hidden_by_a_directory() {
    for listing in [false, true] {
        let bucket = bucket();
        let rig = mount(&bucket);
        rig.write("f", b"first").unwrap();
        let handle = rig.open("f").unwrap();
        rig.write_at(handle, 0, b"FIRST").unwrap();
        bucket.lock().put_plain("f/in", b"");
        match listing {
            true => assert_eq!(rig.list("").unwrap(), ["f"]),
            false => assert!(rig.find("f").is_ok()),
        }
        rig.write_at(handle, 5, b" and more").unwrap();
        rig.close(handle).unwrap();
        assert_eq!(bucket.lock().body("f"), Some(&b"FIRST and more"[..]));
        assert_eq!(rig.list("").unwrap(), ["f"]);
        assert_eq!(rig.list("f").unwrap(), ["in"], "now it is");
    }
}

/// Files that are made or opened below a directory while it is moved go with it.
#[test]
fn what_is_written_while_its_directory_is_moved_goes_with_it() {
    let bucket = bucket();
    let slow_copy = Arc::<AtomicU64>::default();
    let faults = Faults { slow_copy: slow_copy.clone(), ..Faults::default() };
    let rig = mount_with(&bucket, SMALL, options(), faults, 100);
    rig.mkdir("from").unwrap();
    rig.write("from/old", b"old").unwrap();
    let (dir, old) = (rig.find("from").unwrap().ino, rig.find("from/old").unwrap().ino);
    let (new_bytes, old_bytes) = (pattern(1, 1000), pattern(2, 1500));
    let write = |handle, bytes: &[u8]| {
        rig.write_at(handle, 0, bytes).unwrap();
        rig.close(handle).unwrap();
    };
    slow_copy.store(300, Ordering::SeqCst);
    thread::scope(|s| {
        let moves = s.spawn(|| rig.rename("from", "to"));
        while slow_copy.load(Ordering::SeqCst) != 0 {
            thread::yield_now();
        }
        s.spawn(|| write(rig.run(rig.fs.open(&Cred::root(), old, RW)).unwrap(), &old_bytes));
        let (_, made) = rig.run(rig.fs.create(&Cred::root(), dir, b"new", 0o644, RW)).unwrap();
        write(made, &new_bytes);
        moves.join().unwrap().unwrap();
    });
    assert_eq!(bucket.lock().keys(), ["to/", "to/new", "to/old"]);
    assert_eq!(bucket.lock().body("to/new"), Some(&new_bytes[..]));
    assert_eq!(bucket.lock().body("to/old"), Some(&old_bytes[..]));
    assert_eq!(bucket.lock().unfinished(), 0);
}

/// A change of attributes makes the object anew: nobody who has it open takes that for another one.
#[test]
fn our_own_copy_of_an_object_is_not_that_of_others() {
    for (len, call) in [(100, "put"), (9000, "complete")] {
        let bucket = bucket();
        let rig = mount_with(&bucket, SMALL, options(), Faults::default(), 100);
        let bytes = pattern(1, len);
        rig.write("f", &bytes).unwrap();
        let (handle, ino) = (rig.open("f").unwrap(), rig.find("f").unwrap().ino);
        let before = rig.count(call);
        // As stores do whose ETags are no sums of the content.
        bucket.lock().numbered = true;
        rig.fs.store().answer_late(call, Some(MOMENT));
        thread::scope(|s| {
            let changes = s.spawn(|| {
                let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
                rig.run(rig.fs.setattr(&Cred::root(), ino, set))
            });
            while rig.count(call) == before {
                thread::yield_now();
            }
            drop(rig.find("f"));
            assert!(rig.read_at(handle, 50, 10).unwrap() == bytes[50..60], "{len} bytes");
            assert_eq!(changes.join().unwrap().unwrap().perm, 0o600);
        });
        rig.write_at(handle, 0, b"head").unwrap();
        rig.close(handle).unwrap();
        assert!(rig.read("f").unwrap() == [b"head", &bytes[4..]].concat(), "{len} bytes");
        assert_eq!(mount(&bucket).find("f").unwrap().perm, 0o600);
    }
}

/// Stores read the object that they copy, and then write it: others may have made another one in between.
#[test]
fn a_change_of_attributes_undoes_nobodys_close() {
    for len in [5, 9000] {
        let bucket = bucket();
        let slow_copy = Arc::<AtomicU64>::default();
        let faults = Faults { slow_copy: slow_copy.clone(), ..Faults::default() };
        let (here, there) = (mount_with(&bucket, SMALL, options(), faults, 3), mount(&bucket));
        here.write("f", &pattern(1, len)).unwrap();
        let ino = here.find("f").unwrap().ino;
        slow_copy.store(300, Ordering::SeqCst);
        thread::scope(|s| {
            let changes = s.spawn(|| {
                let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
                here.run(here.fs.setattr(&Cred::root(), ino, set))
            });
            thread::sleep(MOMENT / 3);
            there.write("f", &pattern(2, len)).unwrap();
            assert!(matches!(changes.join().unwrap(), Ok(_) | Err(Error::Stale)));
        });
        assert!(there.read("f").unwrap() == pattern(2, len), "{len} bytes: what was closed is undone");
        let set = SetAttr { perm: Some(0o640), ..SetAttr::default() };
        let ino = here.find("f").unwrap().ino;
        assert_eq!(here.run(here.fs.setattr(&Cred::root(), ino, set)).unwrap().perm, 0o640);
        let seen = there.find("f").unwrap();
        assert_eq!((seen.perm, seen.size), (0o640, len as u64));
        assert!(there.read("f").unwrap() == pattern(2, len));
    }
}

#[test]
fn a_file_is_replaced_while_it_is_closed() {
    let bucket = bucket();
    let rig = mount(&bucket);
    for round in 0..4 {
        rig.write("new", b"new").unwrap();
        let handle = rig.create("name").unwrap();
        rig.write_at(handle, 0, &pattern(1, 1000)).unwrap();
        let call = ["part", "complete", "put", "head"][round];
        rig.fs.store().slow(call, MOMENT);
        rig.write_at(handle, 1000, &pattern(1, 1000)).unwrap();
        thread::scope(|s| {
            let closes = s.spawn(|| rig.close(handle));
            thread::sleep(MOMENT / 3);
            let flags = RenameFlags::empty();
            let replaced =
                rig.run(rig.fs.rename(&Cred::root(), Ino::ROOT, b"new", Ino::ROOT, b"name", flags));
            assert_eq!(replaced, Ok(()), "{call}");
            assert_eq!(closes.join().unwrap(), Ok(()), "{call}");
        });
        assert_eq!(rig.read("name").unwrap(), b"new", "{call}");
        assert_eq!(bucket.lock().keys(), ["name"]);
        rig.unlink("name").unwrap();
    }
    assert_eq!(rig.fs.memory()[0].0, 0);
}

/// A program is interrupted while its open waits for a commit.
#[test]
fn an_open_that_is_given_up_leaves_nothing_open() {
    let bucket = bucket();
    let rig = mount(&bucket);
    rig.write("f", &pattern(1, 10)).unwrap();
    let (ino, root) = (rig.find("f").unwrap().ino, Cred::root());
    let writer = rig.open("f").unwrap();
    rig.write_at(writer, 0, &pattern(2, 10)).unwrap();
    rig.fs.store().slow("put", MOMENT);
    thread::scope(|s| {
        let commits = s.spawn(|| rig.close(writer));
        while !rig.fs.store().all_slow() {
            thread::yield_now();
        }
        let mut opens = Box::pin(rig.fs.open_exact(&root, (ino, 0), RW | OpenFlags::TRUNCATE));
        let mut opened = Poll::Pending;
        for _ in 0..10 {
            opened = opens.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if opened.is_ready() {
                break;
            }
            thread::sleep(MOMENT / 100);
        }
        // Where others have the processor for long, the commit is over by now.
        if let Poll::Ready(handle) = opened {
            rig.close(handle.unwrap()).unwrap();
        }
        drop(opens);
        assert_eq!(commits.join().unwrap(), Ok(()));
    });
    let begun = Instant::now();
    while rig.fs.opens() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(5), "it is open still");
        thread::sleep(MOMENT / 50);
    }
    // Nobody writes to it: who cuts it by its name makes the object anew.
    let set = SetAttr { size: Some(3), ..SetAttr::default() };
    assert_eq!(rig.run(rig.fs.setattr(&root, ino, set)).unwrap().size, 3);
    assert_eq!(mount(&bucket).find("f").unwrap().size, 3);
}

fn pairs(pairs: &[(&str, &str)]) -> Metadata {
    pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

/// What other tools have said of an object stays when it is renamed, written, or its attributes change.
#[test]
fn headers_of_others_stay() {
    let headers = pairs(&[
        ("cache-control", "max-age=60"),
        ("content-disposition", "attachment; filename=\"a b\""),
        ("content-encoding", "gzip"),
        ("content-language", "de"),
        ("expires", "Thu, 01 Dec 2044 16:00:00 GMT"),
        (STORAGE_CLASS, "STANDARD_IA"),
    ]);
    let about = Description {
        content_type: Some("text/html".into()),
        metadata: pairs(&[("a", "b")]),
        headers: headers.clone(),
    };
    for features in [Features { rename: false, ..Features::ALL }, Features::FEW] {
        let server = Server::start(Features { part_min: 1, ..features }, NetFaults::none()).unwrap();
        let paths = stack::mount(&server);
        // The last is changed by copies of its parts, where there are any.
        for len in [0, 100, 9 << 20] {
            let (body, about) = (Bytes::from(pattern(1, len)), about.clone());
            let put = move |store: Arc<object::s3::S3>| async move {
                store.put("d/f", body, &about, &Condition::Always).await
            };
            paths.fs.ask(put).unwrap();
            let kept = |key: &str, what: &str| {
                let found = server.look(|bucket| bucket.objects()[key].headers.clone());
                for (name, value) in &headers {
                    assert_eq!(found.get(name), Some(value), "{len} bytes, {what}: {name}");
                }
                assert_eq!(found.get("content-type").map(String::as_str), Some("text/html"), "{what}");
                assert_eq!(found.get("x-amz-meta-a").map(String::as_str), Some("b"), "{what}");
            };
            kept("d/f", "made");
            let ino = paths.find("d/f").unwrap().ino;
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            paths.run(paths.fs.setattr(&Cred::root(), ino, set)).unwrap();
            kept("d/f", "chmod");
            paths.rename("d/f", "d/g").unwrap();
            kept("d/g", "rename");
            paths.rename("d", "e").unwrap();
            kept("e/g", "rename of the directory");
            let ino = paths.find("e").unwrap().ino;
            let absent = RenameFlags::NOREPLACE;
            paths.run(paths.fs.rename(&Cred::root(), ino, b"g", ino, b"h", absent)).unwrap();
            kept("e/h", "rename without replacing");
            let handle = paths.open("e/h").unwrap();
            paths.write_at(handle, len as u64, b"more").unwrap();
            paths.close(handle).unwrap();
            kept("e/h", "append");
            paths.unlink("e/h").unwrap();
            paths.rmdir("e").unwrap();
        }
    }
}

/// What cannot be sent again is no reason to lose what was written, nor is what leaves no room.
#[test]
fn metadata_of_others_that_cannot_be_sent_again() {
    let server = Server::start(Features { part_min: 1, ..Features::ALL }, NetFaults::none()).unwrap();
    let paths = stack::mount(&server);
    let put = |key: &'static str, name: &str, value: String| {
        let about = Description { metadata: pairs(&[("a", "b"), (name, &value)]), ..Description::default() };
        let put = move |store: Arc<object::s3::S3>| async move {
            store.put(key, Bytes::from_static(b"old"), &about, &Condition::Always).await
        };
        paths.fs.ask(put).unwrap();
    };
    // Somebody has written text there, by a way on which this is possible.
    put("text", "note", "x".into());
    server.look(|bucket| bucket.set_header("text", "x-amz-meta-note", "gr\u{fc}\u{df}e"));
    let handle = paths.open("text").unwrap();
    paths.write_at(handle, 3, b" and new").unwrap();
    paths.close(handle).unwrap();
    assert_eq!(paths.read("text").unwrap(), b"old and new");
    let headers = server.look(|bucket| bucket.objects()["text"].headers.clone());
    assert_eq!(headers.get("x-amz-meta-a").map(String::as_str), Some("b"));
    assert!(!headers.contains_key("x-amz-meta-note"), "it is dropped");
    // As much as a store takes.
    put("full", "long", "x".repeat(2020));
    assert_eq!(paths.read("full").unwrap(), b"old");
    let ino = paths.find("full").unwrap().ino;
    for flags in [OpenFlags::WRITE, RW, OpenFlags::READ | OpenFlags::TRUNCATE] {
        let opened = paths.run(paths.fs.open(&Cred::root(), ino, flags));
        assert_eq!(opened, Err(Error::AttributeTooLarge), "before anything is written");
    }
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(paths.run(paths.fs.setattr(&Cred::root(), ino, cut)), Err(Error::AttributeTooLarge));
    assert_eq!(paths.read("full").unwrap(), b"old");
    paths.unlink("full").unwrap();
}
