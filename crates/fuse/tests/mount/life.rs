//! The life of a mount: places where none can be, notifications, an engine that panics, and every way in which it ends.

use crate::helpers::*;
use crate::later;
use fuse::MountOptions;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn a_panic_answers_eio() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let fs = Arc::new(later::Later::new(model()));
    let mount = fuse::mount(fs, dir.path(), MountOptions::default()).unwrap();
    assert_eq!(errno(File::open(dir.path().join("panic"))), libc::EIO);
    fs::write(dir.path().join("fine"), b"still here").unwrap();
    unmount(&mount);
}

/// What was found before is given and counts; then the program hears of it.
#[test]
fn a_listing_that_fails_half_way() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let fs = Arc::new(later::Later::new(model()));
    let mount = fuse::mount(fs, dir.path(), MountOptions::default()).unwrap();
    for name in ["found", "fails", "behind"] {
        File::create(dir.path().join(name)).unwrap();
    }
    let mut list = fs::read_dir(dir.path()).unwrap();
    assert_eq!(list.next().unwrap().unwrap().file_name(), "found");
    assert_eq!(errno(list.next().unwrap()), libc::EINVAL);
    drop(list);
    unmount(&mount);
}

#[test]
fn the_end_of_a_mount() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let fs = Arc::new(model());
    for how in ["outside", "lazy", "drop", "drop while locked"] {
        let mount = fuse::mount(fs.clone(), dir.path(), MountOptions::default()).unwrap();
        let f = File::create(dir.path().join("f")).unwrap();
        assert_eq!(errno(mount.unmount()), libc::EBUSY);
        assert!(mount.is_mounted());
        match how {
            "outside" => {
                drop(f);
                unmount_outside(dir.path());
                mount.wait();
            }
            "lazy" => {
                assert!(Command::new("umount").arg("-l").arg(dir.path()).status().unwrap().success());
                assert!(f.metadata().is_ok());
                drop(f);
                mount.wait();
            }
            "drop" => {
                drop(mount);
                assert!(f.metadata().is_err() || f.write_at(b"x", 0).is_err());
                assert_eq!(Arc::strong_count(&fs), 1, "the engine is let go");
                continue;
            }
            _ => {
                // SAFETY: an open descriptor.
                check(unsafe { libc::flock(f.as_raw_fd(), libc::LOCK_EX) }).unwrap();
                let mut waiting =
                    Command::new("flock").arg(dir.path().join("f")).arg("true").spawn().unwrap();
                std::thread::sleep(Duration::from_millis(100));
                drop(mount);
                waiting.wait().unwrap();
                assert_eq!(Arc::strong_count(&fs), 1, "the engine is let go");
                continue;
            }
        }
        assert!(!mount.is_mounted());
        unmount(&mount);
        drop(mount);
        assert_eq!(Arc::strong_count(&fs), 1, "the engine is let go");
    }
}

#[test]
fn changes_behind_the_kernel_are_seen_after_a_notification() {
    if !can_mount() {
        return;
    }
    use ::fs::{Cred, FileSystem, Ino, OpenFlags, block_on};
    let dir = tempfile::tempdir().unwrap();
    let fs = Arc::new(model());
    let mount = fuse::mount(fs.clone(), dir.path(), MountOptions::default()).unwrap();
    let path = dir.path().join("f");
    assert_eq!(errno(File::open(&path)), libc::ENOENT);
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let (attr, handle) = block_on(fs.create(&Cred::root(), Ino::ROOT, b"f", 0o644, flags)).unwrap();
    assert_eq!(errno(File::open(&path)), libc::ENOENT, "the kernel remembers that it was not there");
    mount.notifier().name(Ino::ROOT, b"f").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
    block_on(fs.write(handle, 0, b"other door")).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
    mount.notifier().data(attr.ino, 0, u64::MAX).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"other door");
    mount.notifier().data(Ino(999_999), 0, 0).unwrap();
    // Again and again: told once, it asks again before it has to be told again.
    for i in 0..5u64 {
        block_on(fs.write(handle, 0, format!("{i} other door").as_bytes())).unwrap();
        mount.notifier().data(attr.ino, 0, 1).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{i} other door"));
        assert_eq!(fs::metadata(&path).unwrap().nlink(), 1 + i);
        block_on(fs.link(&Cred::root(), attr.ino, Ino::ROOT, format!("l{i}").as_bytes())).unwrap();
        mount.notifier().attr(attr.ino).unwrap();
        mount.notifier().name(Ino::ROOT, format!("l{i}").as_bytes()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count() as u64, 2 + i);
    }
    block_on(fs.release(handle)).unwrap();
}

#[test]
fn read_only_and_bad_places() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mount =
        fuse::mount(Arc::new(model()), dir.path(), MountOptions::parse("ro,fsname=a b").unwrap()).unwrap();
    assert_eq!(errno(File::create(dir.path().join("f"))), libc::EROFS);
    assert!(fs::read_to_string("/proc/mounts").unwrap().contains("a\\040b "));
    drop(mount);
    let file = dir.path().join("file");
    File::create(&file).unwrap();
    let bad = fuse::mount(Arc::new(model()), &file, MountOptions::default()).err().unwrap();
    assert_eq!(bad.raw_os_error(), Some(libc::ENOTDIR));
    assert!(fuse::mount(Arc::new(model()), Path::new("/nowhere"), MountOptions::default()).is_err());
    if fuse::has_program("fusermount3") {
        let place = tempfile::tempdir().unwrap();
        let options = MountOptions::parse("auto_unmount").unwrap();
        let mount = fuse::mount(Arc::new(model()), place.path(), options).unwrap();
        fs::write(place.path().join("f"), b"by the helper").unwrap();
        unmount(&mount);
        assert!(!place.path().join("f").exists());
    }
}

/// The kernel looks a name up for the first time while another door changes what it leads to, again and again: in the end it knows how it is.
#[test]
fn a_first_lookup_beside_changes() {
    if !can_mount() {
        return;
    }
    use ::fs::{Cred, FileSystem, Ino, OpenFlags, SetAttr, block_on};
    let dir = tempfile::tempdir().unwrap();
    let fs = Arc::new(model());
    let mount = fuse::mount(fs.clone(), dir.path(), MountOptions::default()).unwrap();
    let notifier = mount.notifier();
    for i in 0..400u32 {
        let name = format!("f{i}");
        let path = dir.path().join(&name);
        let (attr, handle) =
            block_on(fs.create(&Cred::root(), Ino::ROOT, name.as_bytes(), 0o600, OpenFlags::WRITE)).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| fs::metadata(&path).unwrap());
            for perm in [0o640, 0o644, 0o604 + (i as u16 & 7)] {
                let set = SetAttr { perm: Some(perm), ..Default::default() };
                block_on(fs.setattr(&Cred::root(), attr.ino, set)).unwrap();
                notifier.attr(attr.ino).unwrap();
            }
        });
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o604 + (i & 7), "file {i}");
        block_on(fs.release(handle)).unwrap();
    }
}

/// The kernel goes by a name that it keeps to a file that is gone, and whose slot another file has by now.
#[test]
fn a_slot_that_is_used_again() {
    if !can_mount() {
        return;
    }
    let media = Arc::new(media::RamMedia::new(64 << 20).unwrap());
    block::mkfs(media.clone(), &block::MkfsOptions::default()).unwrap();
    let volume = Arc::new(block::Volume::open(media, block::OpenOptions::default()).unwrap());
    let beside = ::fs::Client::new(volume.clone(), ::fs::Cred::root()).blocking();
    let dir = tempfile::tempdir().unwrap();
    let mount = fuse::mount(volume, dir.path(), MountOptions::parse("").unwrap()).unwrap();
    let path = dir.path().join("f");
    fs::write(&path, "one").unwrap();
    let number = ::fs::Ino(std::fs::metadata(&path).unwrap().ino()).on_medium();
    // Behind the kernel's back, as it looks for a moment to a kernel that is being told.
    beside.unlink("f").unwrap();
    let used = (0..1000).find(|n| {
        // The kernel says that it has closed the file when it likes.
        std::thread::sleep(Duration::from_millis(1));
        let name = format!("other{n}");
        beside.write(&name, "two").unwrap();
        beside.stat(&name).unwrap().ino.on_medium() == number
    });
    assert!(used.is_some(), "slots are not used again: this test tests nothing");
    assert_eq!(std::fs::read(&path).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    assert_eq!(std::fs::read(dir.path().join(format!("other{}", used.unwrap()))).unwrap(), b"two");
    unmount(&mount);
}
