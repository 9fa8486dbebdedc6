//! Files and directories of a bucket, and what other tools see of them.

use crate::rig::*;
use fs::{
    Access, Cred, Error, Fallocate, FileSystem, FileType, Ino, LockOwner, OpenFlags, SetAttr, SetTime, Time,
    XattrFlags,
};
use object::Options;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

#[test]
fn a_small_file_is_one_put_and_visible_at_close() {
    let rig = mount(&bucket());
    let handle = rig.create("a").unwrap();
    rig.write_at(handle, 0, b"hello").unwrap();
    assert_eq!(rig.read_at(handle, 1, 9).unwrap(), b"ello", "who writes reads what is written");
    assert_eq!(rig.list("").unwrap(), ["a"], "it is here for this mount");
    assert!(rig.bucket.lock().keys().is_empty(), "and for nobody else");
    rig.close(handle).unwrap();
    assert_eq!(rig.bucket.lock().body("a"), Some(&b"hello"[..]));
    assert_eq!((rig.count("put"), rig.count("begin")), (1, 0));
    assert_eq!(rig.read("a").unwrap(), b"hello");
}

/// Within the second in which what is known of a name counts: an open may get what was there, but not again after that has been found out.
#[test]
fn who_finds_an_object_replaced_opens_the_new_one() {
    let bucket = bucket();
    let keeps = Options { expiry: Duration::from_secs(3600), ..options() };
    let (here, there) = (mount(&bucket), mount_with(&bucket, SMALL, keeps, Faults::default(), 3));
    here.write("a", b"old").unwrap();
    assert_eq!(there.read("a").unwrap(), b"old");
    here.write("a", b"newer").unwrap();
    assert_eq!(there.read("a"), Err(Error::Stale));
    assert_eq!(there.read("a").unwrap(), b"newer");
}

/// Through the library's files, which close a handle and have no other word for it.
#[test]
fn each_close_of_a_writer_makes_the_object() {
    let rig = mount(&bucket());
    let files = fs::Client::new(rig.fs.clone(), Cred::root()).blocking();
    let writer = files.create("/a").unwrap();
    writer.write_at(b"one", 0).unwrap();
    writer.fsync().unwrap();
    let reader = files.open("/a", fs::OpenOptions::new().read(true)).unwrap();
    writer.write_at(b"two", 0).unwrap();
    assert_eq!(rig.bucket.lock().body("a"), Some(&b"one"[..]));
    writer.close().unwrap();
    assert_eq!(rig.bucket.lock().body("a"), Some(&b"two"[..]), "although somebody has it open");
    reader.close().unwrap();
}

#[test]
fn a_large_file_leaves_in_parts_and_memory_is_bounded() {
    let rig = mount(&bucket());
    let bytes = pattern(1, 100_000);
    let handle = rig.create("big").unwrap();
    for (i, chunk) in bytes.chunks(1000).enumerate() {
        rig.write_at(handle, i as u64 * 1000, chunk).unwrap();
    }
    assert!(rig.bucket.lock().keys().is_empty());
    rig.close(handle).unwrap();
    assert_eq!(rig.bucket.lock().body("big"), Some(&bytes[..]));
    assert!(rig.count("part") > 100);
    let [(used, most), (reading, _)] = rig.fs.memory();
    assert_eq!((used, reading), (0, 0));
    assert!(most <= 4096 + 1000, "{most} bytes for writing");
    assert_eq!(rig.read("big").unwrap(), bytes);
    assert_eq!(rig.bucket.lock().unfinished(), 0);
    // A reader that goes on where it was asks seldom, and a jump for just what it wants.
    let gets = rig.count("get");
    let handle = rig.open("big").unwrap();
    for at in (0..100_000).step_by(500) {
        assert_eq!(rig.read_at(handle, at, 500).unwrap(), bytes[at as usize..][..500]);
    }
    assert!(rig.count("get") - gets < 5, "{} requests", rig.count("get") - gets);
    let moved = rig.bucket.lock().moved.1;
    let other = rig.open("big").unwrap();
    assert_eq!(rig.read_at(other, 70_000, 10).unwrap(), bytes[70_000..70_010]);
    assert_eq!(rig.bucket.lock().moved.1 - moved, 10);
    rig.close(handle).unwrap();
    rig.close(other).unwrap();
}

#[test]
fn an_append_copies_what_is_there_within_the_store() {
    let rig = mount(&bucket());
    let bytes = pattern(2, 20_000);
    rig.write("log", &bytes).unwrap();
    let sent = rig.bucket.lock().moved;
    let handle =
        rig.run(rig.fs.open(&Cred::root(), rig.find("log").unwrap().ino, RW | OpenFlags::APPEND)).unwrap();
    rig.write_at(handle, 0, b"one more line").unwrap();
    rig.close(handle).unwrap();
    let now = rig.bucket.lock().moved;
    assert_eq!((now.0 - sent.0, now.1 - sent.1), (13, 0), "nothing but the new bytes moves");
    assert_eq!(rig.read("log").unwrap(), [&bytes[..], b"one more line"].concat());
    // Much is appended: it leaves as it comes, behind copies.
    let handle = rig.open("log").unwrap();
    let more = pattern(3, 30_000);
    for (i, chunk) in more.chunks(100).enumerate() {
        rig.write_at(handle, 20_013 + i as u64 * 100, chunk).unwrap();
    }
    assert_eq!(rig.bucket.lock().body("log").unwrap().len(), 20_013, "not visible before the close");
    rig.close(handle).unwrap();
    assert_eq!(rig.read("log").unwrap(), [&bytes[..], b"one more line", &more].concat());
    assert!(rig.fs.memory()[0].1 < 6000);
}

#[test]
fn changes_of_old_objects_are_conditional() {
    let bucket = bucket();
    let (one, two) = (mount(&bucket), mount(&bucket));
    one.write("f", b"first").unwrap();
    let (a, b) = (one.open("f").unwrap(), two.open("f").unwrap());
    one.write_at(a, 0, b"FIRST").unwrap();
    two.write_at(b, 4, b"T").unwrap();
    one.close(a).unwrap();
    assert_eq!(two.run(two.fs.flush(b, fs::LockOwner(1))), Err(Error::Stale));
    assert_eq!(two.run(two.fs.fsync(b, false)), Err(Error::Stale), "it does not go away by asking again");
    assert_eq!(two.write_at(b, 0, b"x"), Err(Error::Stale));
    assert_eq!(two.run(two.fs.release(b)), Err(Error::Stale));
    assert_eq!(bucket.lock().body("f"), Some(&b"FIRST"[..]));
    assert_eq!(two.read("f").unwrap(), b"FIRST");
    // Two that make the same name.
    let (a, b) = (one.create("new").unwrap(), two.create("new").unwrap());
    two.close(b).unwrap();
    one.write_at(a, 0, b"x").unwrap();
    assert_eq!(one.close(a), Err(Error::Stale));
    assert_eq!(one.read("new").unwrap(), b"");
    // Who reads an object that is replaced hears of it.
    one.write("r", &pattern(4, 5000)).unwrap();
    let reader = one.open("r").unwrap();
    two.write("r", &pattern(5, 5000)).unwrap();
    assert_eq!(one.read_at(reader, 0, 10), Err(Error::Stale));
    assert_eq!(one.read("r").unwrap(), pattern(5, 5000), "who opens it now reads the new one");
    assert_eq!(one.read_at(reader, 0, 10), Err(Error::Stale), "and nobody reads a bit of each");
    one.close(reader).unwrap();
}

#[test]
fn what_has_left_is_changed_after_a_commit_in_between() {
    let rig = mount(&bucket());
    let mut bytes = pattern(6, 10_000);
    let handle = rig.create("zip").unwrap();
    for (i, chunk) in bytes.chunks(500).enumerate() {
        rig.write_at(handle, i as u64 * 500, chunk).unwrap();
    }
    rig.write_at(handle, 3, b"header").unwrap();
    bytes[3..9].copy_from_slice(b"header");
    assert_eq!(rig.read_at(handle, 0, 10_000).unwrap(), bytes);
    rig.close(handle).unwrap();
    assert_eq!(rig.bucket.lock().body("zip"), Some(&bytes[..]));
}

#[test]
fn attributes_are_kept_in_metadata() {
    let bucket = bucket();
    let rig = mount(&bucket);
    rig.mkdir("d").unwrap();
    rig.write("d/f", b"x").unwrap();
    let root = Cred::root();
    let ino = rig.find("d/f").unwrap().ino;
    let t = Time { sec: 1_500_000_000, nsec: 250_000_000 };
    let set = SetAttr {
        perm: Some(0o4750),
        uid: Some(5),
        gid: Some(6),
        mtime: Some(SetTime::At(t)),
        ..Default::default()
    };
    rig.run(rig.fs.setattr(&root, ino, set)).unwrap();
    rig.run(rig.fs.setxattr(&root, ino, b"user.colour", b"red\0", XattrFlags::CREATE)).unwrap();
    let dir = rig.find("d").unwrap().ino;
    rig.run(rig.fs.setattr(&root, dir, SetAttr { perm: Some(0o1777), ..Default::default() })).unwrap();
    rig.run(rig.fs.symlink(&root, dir, b"l", b"../to")).unwrap();
    let meta = bucket.lock().objects["d/f"].1.metadata.clone();
    assert_eq!(
        (&*meta["uid"], &*meta["gid"], &*meta["mode"], &*meta["mtime"]),
        ("5", "6", "35304", "1500000000.250000000")
    );
    // As a mount sees it that knows nothing.
    let other = mount(&bucket);
    let attr = other.find("d/f").unwrap();
    assert_eq!((attr.uid, attr.gid, attr.perm, attr.mtime, attr.size), (5, 6, 0o4750, t, 1));
    assert_eq!(other.run(other.fs.getxattr(&root, attr.ino, b"user.colour")).unwrap(), b"red\0");
    assert_eq!(other.find("d").unwrap().perm, 0o1777);
    let link = other.find("d/l").unwrap();
    assert_eq!((link.kind, link.size), (FileType::Symlink, 5));
    assert_eq!(other.run(other.fs.readlink(&root, link.ino)).unwrap(), b"../to");
    // A large object whose attributes change after its bytes have left.
    let handle = rig.create("big").unwrap();
    rig.write_at(handle, 0, &pattern(7, 9000)).unwrap();
    let big = rig.find("big").unwrap().ino;
    rig.run(rig.fs.setattr(
        &root,
        big,
        SetAttr { mtime: Some(SetTime::At(t)), perm: Some(0o600), ..Default::default() },
    ))
    .unwrap();
    rig.close(handle).unwrap();
    let attr = other.find("big").unwrap();
    assert_eq!((attr.mtime, attr.perm, attr.size), (t, 0o600, 9000));
    assert_eq!(other.read("big").unwrap(), pattern(7, 9000));
    // Too much for the store.
    let huge = rig.run(rig.fs.setxattr(&root, big, b"user.huge", &[1; 3000], XattrFlags::empty()));
    assert_eq!(huge, Err(Error::AttributeTooLarge));
}

#[test]
fn objects_of_others_and_odd_keys() {
    let bucket = bucket();
    for key in [
        "plain",
        "both",
        "both/in",
        "both-x",
        "dir/deep/er",
        "odd//x",
        "odd/./y",
        "odd/ok",
        "top//z",
        "empty/",
    ] {
        bucket.lock().put_plain(key, b"12345");
    }
    let long = format!("odd/{}", "n".repeat(256));
    bucket.lock().put_plain(&long, b"");
    for page in [1, 2, 1000] {
        let rig = mount_with(&bucket, SMALL, options(), Faults::default(), page);
        assert_eq!(rig.list("").unwrap(), ["both", "both-x", "dir", "empty", "odd", "plain", "top"]);
        assert_eq!(
            (rig.list("both").unwrap(), rig.list("odd").unwrap()),
            (vec!["in".into()], vec!["ok".into()])
        );
        assert!(rig.list("top").unwrap().is_empty() && rig.list("empty").unwrap().is_empty());
        assert_eq!(rig.rmdir("top"), Err(Error::NotEmpty));
        let plain = rig.find("plain").unwrap();
        assert_eq!((plain.kind, plain.perm, plain.size), (FileType::Regular, 0o644, 5));
        assert_eq!(rig.find("both").unwrap().kind, FileType::Directory);
        assert_eq!(rig.find("dir/deep/er").unwrap().size, 5);
        assert_eq!(rig.find("nothing"), Err(Error::NotFound));
        assert_eq!(rig.find(&"n".repeat(256)), Err(Error::NameTooLong));
        let odd = rig.run(rig.fs.lookup(&Cred::root(), Ino::ROOT, b"\xff"));
        assert_eq!(odd, Err(Error::NotFound));
        let made = rig.run(rig.fs.create(&Cred::root(), Ino::ROOT, b"\xff", 0o644, RW));
        assert!(matches!(made, Err(Error::Invalid(_))));
    }
    let rig = mount(&bucket);
    // A directory without a marker is there still when its last file goes.
    rig.unlink("dir/deep/er").unwrap();
    assert!(rig.list("dir/deep").unwrap().is_empty());
    assert!(bucket.lock().keys().contains(&"dir/deep/"));
    rig.rmdir("dir/deep").unwrap();
    rig.rmdir("dir").unwrap();
    // Below a prefix.
    let rig = mount_with(
        &bucket,
        SMALL,
        object::Options { prefix: "/both/".into(), ..options() },
        Faults::default(),
        3,
    );
    assert_eq!(rig.list("").unwrap(), ["in"]);
    rig.write("new", b"n").unwrap();
    assert_eq!(bucket.lock().body("both/new"), Some(&b"n"[..]));
}

#[test]
fn renames() {
    for rename in [false, true] {
        let bucket = bucket();
        let rig = mount_with(
            &bucket,
            object::store::Abilities { rename, ..SMALL },
            options(),
            Faults::default(),
            3,
        );
        rig.mkdir("a").unwrap();
        rig.mkdir("a/sub").unwrap();
        let big = pattern(8, 9000);
        rig.write("a/big", &big).unwrap();
        for i in 0..10 {
            rig.write(&format!("a/sub/{i}"), &[i]).unwrap();
        }
        rig.write("old", b"old").unwrap();
        // A file over a file; one that is open goes on.
        let handle = rig.open("a/big").unwrap();
        rig.write_at(handle, 9000, b"tail").unwrap();
        rig.rename("a/big", "old").unwrap();
        rig.write_at(handle, 0, b"head").unwrap();
        rig.close(handle).unwrap();
        let expected = [b"head", &big[4..], b"tail"].concat();
        assert_eq!(bucket.lock().body("old"), Some(&expected[..]));
        assert_eq!(rig.find("a/big"), Err(Error::NotFound));
        // A directory, with an open file in it.
        let handle = rig.open("a/sub/3").unwrap();
        rig.rename("a", "b").unwrap();
        assert_eq!(rig.find("a"), Err(Error::NotFound));
        assert_eq!(rig.list("b/sub").unwrap().len(), 10);
        rig.write_at(handle, 0, b"!").unwrap();
        rig.close(handle).unwrap();
        assert_eq!(bucket.lock().body("b/sub/3"), Some(&b"!"[..]));
        assert!(bucket.lock().objects.values().all(|(_, o)| !o.metadata.contains_key("freehold-moving-to")));
        assert!(bucket.lock().keys().iter().all(|k| !k.starts_with("a/")));
        // What cannot be.
        rig.mkdir("c").unwrap();
        assert_eq!(rig.rename("c", "b"), Err(Error::NotEmpty));
        assert_eq!(rig.rename("b", "b/sub/x"), Err(Error::IntoItself));
        assert_eq!(rig.rename("old", "b"), Err(Error::IsDirectory));
        assert_eq!(rig.rename("b", "old"), Err(Error::NotDirectory));
        assert_eq!(rig.rename("b", "c"), Ok(()), "an empty directory is replaced");
    }
}

#[test]
fn permissions_and_what_is_not_supported() {
    let rig = mount(&bucket());
    rig.write("f", b"x").unwrap();
    let (root, me) = (Cred::root(), Cred::user(1000, 1000, &[]));
    let ino = rig.find("f").unwrap().ino;
    assert_eq!(rig.run(rig.fs.open(&me, ino, RW)), Err(Error::AccessDenied));
    assert_eq!(rig.run(rig.fs.access(&me, ino, Access::READ)), Ok(()));
    assert_eq!(rig.run(rig.fs.unlink(&me, Ino::ROOT, b"f")), Err(Error::AccessDenied));
    assert!(matches!(rig.run(rig.fs.link(&root, ino, Ino::ROOT, b"g")), Err(Error::NotSupported(_))));
    let device = rig.run(rig.fs.mknod(&me, Ino::ROOT, b"p", libc::S_IFCHR | 0o644, 0x103));
    assert_eq!(device, Err(Error::NotPermitted));
    rig.run(rig.fs.mknod(&root, Ino::ROOT, b"p", libc::S_IFCHR | 0o644, 0x103)).unwrap();
    let device = mount(&rig.bucket).find("p").unwrap();
    assert_eq!((device.kind, device.perm, device.rdev), (FileType::CharDevice, 0o644, 0x103));
    let opened = rig.run(rig.fs.open(&root, rig.find("p").unwrap().ino, OpenFlags::READ));
    assert!(opened.is_err(), "the kernel opens those");
    rig.unlink("p").unwrap();
    rig.run(rig.fs.mknod(&root, Ino::ROOT, b"n", libc::S_IFREG | 0o600, 0)).unwrap();
    assert_eq!(rig.bucket.lock().body("n"), Some(&b""[..]));
    let read_only = mount_with(
        &rig.bucket,
        SMALL,
        object::Options { read_only: true, ..options() },
        Faults::default(),
        3,
    );
    assert_eq!(read_only.write("f", b"y"), Err(Error::ReadOnly));
    assert_eq!(read_only.unlink("f"), Err(Error::ReadOnly));
    assert_eq!(read_only.read("f").unwrap(), b"x");
}

#[test]
fn a_removed_file_that_is_open_leaves_nothing_behind() {
    let rig = mount(&bucket());
    let handle = rig.create("f").unwrap();
    rig.write_at(handle, 0, &pattern(9, 5000)).unwrap();
    rig.unlink("f").unwrap();
    assert_eq!(rig.write_at(handle, 0, b"still"), Err(Error::Stale), "the first parts have left");
    rig.write_at(handle, 5000, b"still").unwrap();
    let ino = rig.run(rig.fs.getattr(Ino(0), Some(handle))).unwrap().ino;
    let cut = |size| {
        let set = SetAttr { size: Some(size), handle: Some(handle), ..SetAttr::default() };
        rig.run(rig.fs.setattr(&Cred::root(), ino, set)).map(|attr| attr.size)
    };
    assert_eq!((cut(5002), cut(100)), (Ok(5002), Err(Error::Stale)));
    rig.close(handle).unwrap();
    assert_eq!(rig.find("f"), Err(Error::NotFound));
    assert!(rig.bucket.lock().keys().is_empty());
    assert_eq!(rig.fs.memory()[0].0, 0);
}

#[test]
fn many_names_in_little_memory() {
    let bucket = bucket();
    for i in 0..5000 {
        bucket.lock().put_plain(&format!("d/{i:05}"), b"");
    }
    let options = object::Options { inodes: 500, listed_attributes: true, ..options() };
    let rig = mount_with(&bucket, SMALL, options, Faults::default(), 100);
    assert_eq!(rig.list("d").unwrap().len(), 5000);
    assert!(rig.fs.known() <= 501, "{}", rig.fs.known());
    assert!(rig.count("head") <= 1, "no request for each name");
    assert!(rig.find("d/00001").is_ok() && rig.find("d/04999").is_ok());
}

#[test]
fn many_new_files_are_a_request_each() {
    let bucket = bucket();
    for i in 0..10 {
        bucket.lock().put_plain(&format!("d/old{i}"), b"old");
    }
    let options = object::Options { expiry: Duration::from_secs(60), ..options() };
    let rig = mount_with(&bucket, SMALL, options, Faults::default(), 100);
    for i in 0..50 {
        rig.write(&format!("d/new{i}"), b"new").unwrap();
    }
    let [heads, lists, puts] = ["head", "list", "put"].map(|name| rig.count(name));
    assert!(puts == 50 && heads + lists < 12, "{heads} heads, {lists} lists, {puts} puts");
    assert_eq!(
        (rig.read("d/old3").unwrap(), rig.read("d/new7").unwrap()),
        (b"old".to_vec(), b"new".to_vec())
    );
    rig.unlink("d/old3").unwrap();
    assert_eq!(rig.find("d/old3"), Err(Error::NotFound));
    assert_eq!(rig.list("d").unwrap().len(), 59);
}

#[test]
fn what_a_listing_tells_is_enough_to_show_files_and_not_to_change_them() {
    let bucket = bucket();
    for i in 0..20 {
        bucket.lock().put_plain(&format!("d/{i:02}"), b"four");
    }
    let options = object::Options { expiry: Duration::from_secs(60), listed_attributes: true, ..options() };
    let rig = mount_with(&bucket, SMALL, options, Faults::default(), 100);
    assert_eq!(rig.list("d").unwrap().len(), 20);
    let before = rig.count("head");
    for i in 0..20 {
        let attr = rig.find(&format!("d/{i:02}")).unwrap();
        assert_eq!(rig.run(rig.fs.getattr(attr.ino, None)).unwrap().size, 4);
    }
    let ino = rig.find("d/03").unwrap().ino;
    let asked = rig.run(rig.fs.getxattr(&Cred::root(), ino, b"security.selinux"));
    assert_eq!(asked, Err(Error::NoAttribute));
    assert_eq!(rig.count("head"), before, "nobody was asked");
    let ino = rig.find("d/07").unwrap().ino;
    let mode = SetAttr { perm: Some(0o600), ..Default::default() };
    assert_eq!(rig.run(rig.fs.setattr(&Cred::root(), ino, mode)).unwrap().perm, 0o600);
    let handle = rig.open("d/08").unwrap();
    rig.write_at(handle, 4, b"more").unwrap();
    rig.close(handle).unwrap();
    assert_eq!(rig.read("d/08").unwrap(), b"fourmore");
}

#[test]
fn an_answer_that_is_older_than_a_change_is_not_believed() {
    let late = Arc::<AtomicU64>::default();
    let faults = Faults { late: late.clone(), ..Faults::default() };
    let rig = mount_with(&bucket(), SMALL, options(), faults, 100);
    rig.write("f", b"old").unwrap();
    let handle = rig.open("f").unwrap();
    let asked = rig.count("head");
    late.store(300, Ordering::SeqCst);
    thread::scope(|s| {
        let looking = s.spawn(|| rig.find("f"));
        while rig.count("head") == asked {
            thread::yield_now();
        }
        rig.write_at(handle, 0, b"newer").unwrap();
        rig.run(rig.fs.flush(handle, LockOwner(1))).unwrap();
        assert!(!looking.is_finished(), "the answer is still on its way");
        assert_eq!(looking.join().unwrap().unwrap().size, 5);
    });
    rig.write_at(handle, 5, b" and newest").unwrap();
    rig.close(handle).unwrap();
    assert_eq!(rig.read("f").unwrap(), b"newer and newest");
}

#[test]
fn times_of_what_is_made_here_stay_as_they_were_shown() {
    let options = object::Options { expiry: Duration::from_millis(20), ..options() };
    let rig = mount_with(&bucket(), SMALL, options, Faults::default(), 100);
    let handle = rig.create("f").unwrap();
    rig.write_at(handle, 0, b"x").unwrap();
    let times = || {
        let attr = rig.find("f").unwrap();
        (attr.mtime, attr.ctime)
    };
    // The clock of the store is years behind.
    let shown = times();
    rig.close(handle).unwrap();
    assert_eq!(times(), shown);
    thread::sleep(Duration::from_millis(30));
    assert_eq!(rig.list("").unwrap(), ["f"]);
    assert_eq!(times(), shown, "after a listing");
    thread::sleep(Duration::from_millis(30));
    assert_eq!(times(), shown, "after a look at the name");
}

/// Between the look at its size and the turn of an allocation others may have written.
#[test]
fn an_allocation_cuts_nothing() {
    let rig = mount(&bucket());
    rig.mkdir("d").unwrap();
    rig.write("d/in", b"in").unwrap();
    let handle = rig.create("f").unwrap();
    rig.write_at(handle, 0, b"0123456789").unwrap();
    let bytes = pattern(1, 300);
    rig.fs.store().slow("copy", Duration::from_millis(300));
    let what = Fallocate::Allocate { keep_size: false };
    thread::scope(|s| {
        let moves = s.spawn(|| rig.rename("d", "e"));
        while !rig.fs.store().all_slow() {
            thread::yield_now();
        }
        let allocates = s.spawn(|| rig.run(rig.fs.fallocate(handle, what, 0, 100)));
        thread::sleep(Duration::from_millis(100));
        rig.write_at(handle, 0, &bytes).unwrap();
        assert_eq!((moves.join().unwrap(), allocates.join().unwrap()), (Ok(()), Ok(())));
    });
    assert!(rig.read_at(handle, 0, 1000).unwrap() == bytes);
    rig.close(handle).unwrap();
    assert!(rig.read("f").unwrap() == bytes);
}

/// Who stops reading keeps what was read ahead for him, but not for ever.
#[test]
fn a_reader_that_pauses_leaves_room_for_others() {
    let options = object::Options { read_memory: 1 << 20, read_ahead: 8 << 20, ..options() };
    let rig = mount_with(&bucket(), SMALL, options, Faults::default(), 3);
    rig.bucket.lock().put_plain("f", &pattern(1, 4 << 20));
    let (first, second) = (rig.open("f").unwrap(), rig.open("f").unwrap());
    let reads = |handle, to: u64| {
        for at in (0..to).step_by(4096) {
            assert_eq!(rig.read_at(handle, at, 4096).unwrap().len(), 4096);
        }
    };
    reads(first, 1 << 20);
    thread::sleep(Duration::from_millis(2500));
    let before = rig.count("get");
    reads(second, 2 << 20);
    let asked = rig.count("get") - before;
    assert!(asked < 50, "{asked} requests");
    let rest = rig.read_at(first, 1 << 20, 4096).unwrap();
    assert!(rest == pattern(1, 4 << 20)[1 << 20..][..4096]);
    rig.close(first).unwrap();
    rig.close(second).unwrap();
}
