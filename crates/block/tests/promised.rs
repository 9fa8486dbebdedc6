//! Inodes, and room for data, that are promised before they are made.
//!
//! Verifies that what was promised is what is made, that nobody else gets it meanwhile, that what is given back is free again, that nothing of a promise outlives a
//! stop, and that a promise is kept on a volume that others have filled; all of that also of room for the data of such files.

use block::{MkfsOptions, OpenOptions, Volume};
use fs::{Cred, Error, FileSystem, FileType, Ino, MadeAs, OpenFlags, Time, block_on};
use media::RamMedia;
use std::collections::HashSet;
use std::sync::Arc;

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn as_file(perm: u16) -> MadeAs {
    MadeAs { perm, open: Some(RW), time: None }
}

fn volume(bytes: u64, strict: bool) -> (Arc<RamMedia>, Volume) {
    let media = Arc::new(RamMedia::new(bytes).unwrap());
    block::mkfs(media.clone(), &MkfsOptions { strict, ..Default::default() }).unwrap();
    let volume = Volume::open(media.clone(), OpenOptions::default()).unwrap();
    (media, volume)
}

#[test]
fn what_is_promised_is_made() {
    let (media, volume) = volume(64 << 20, false);
    let cred = Cred::root();
    let before = block_on(volume.statfs()).unwrap();
    let promised = volume.promise(900).unwrap();
    assert_eq!(promised.len(), 900);
    assert_eq!(block_on(volume.statfs()).unwrap().inodes_free % 512, before.inodes_free % 512);
    let mine: HashSet<Ino> = promised.iter().map(|p| p.ino).collect();
    assert_eq!(mine.len(), 900);
    for i in 0..700 {
        let (attr, handle) =
            block_on(volume.create(&cred, Ino::ROOT, format!("other{i}").as_bytes(), 0o600, RW)).unwrap();
        assert!(!mine.contains(&attr.ino) && promised.iter().all(|p| p.handle != handle));
        block_on(volume.release(handle)).unwrap();
    }
    let (used, back) = promised.split_at(500);
    for (i, &promise) in used.iter().enumerate() {
        let name = format!("f{i}");
        assert_eq!(block_on(volume.getattr(promise.ino, None)), Err(Error::Stale));
        let make =
            || block_on(volume.create_promised(&cred, Ino::ROOT, name.as_bytes(), as_file(0o640), promise));
        let attr = make().unwrap();
        assert_eq!((attr.ino, attr.generation, attr.perm), (promise.ino, promise.generation, 0o640));
        assert_eq!(block_on(volume.lookup(&cred, Ino::ROOT, name.as_bytes())).unwrap(), attr);
        assert_eq!(block_on(volume.write(promise.handle, 0, b"bytes")), Ok(5));
        block_on(volume.release(promise.handle)).unwrap();
    }
    let taken = block_on(volume.create_promised(&cred, Ino::ROOT, b"f0", as_file(0o640), back[0]));
    assert_eq!(taken, Err(Error::Exists));
    volume.give_back(&back[..300]);
    let names = volume.names(Ino::ROOT, 5000).unwrap();
    assert_eq!(names.len(), 1200);
    assert_eq!(volume.names(Ino::ROOT, 1199), Err(Error::TooLarge));
    // 100 are promised still.
    drop(volume);
    let volume = Volume::open(media, OpenOptions::default()).unwrap();
    let after = block_on(volume.statfs()).unwrap();
    assert_eq!(after.inodes - after.inodes_free, before.inodes - before.inodes_free + 1200);
    assert_eq!(volume.names(Ino::ROOT, 5000).unwrap().len(), 1200);
    assert_eq!(block_on(volume.getattr(back[350].ino, None)), Err(Error::Stale));
}

#[test]
fn a_full_volume_keeps_what_it_promised() {
    let (_media, volume) = volume(40 << 20, false);
    let cred = Cred::root();
    let promised = volume.promise(100).unwrap();
    let mut made = 0;
    let file = block_on(volume.create(&cred, Ino::ROOT, b"fill", 0o600, RW)).unwrap().1;
    let mut at = 0;
    while let Ok(n) = block_on(volume.write(file, at, &[1; 4096])) {
        at += n as u64;
    }
    while let Ok((_, handle)) =
        block_on(volume.create(&cred, Ino::ROOT, format!("o{made}").as_bytes(), 0o600, RW))
    {
        block_on(volume.release(handle)).unwrap();
        made += 1;
    }
    assert!(made < 2000, "{made}");
    assert_eq!(volume.promise(10), Ok(Vec::new()), "nothing is left to promise");
    for (i, &promise) in promised.iter().enumerate() {
        let name = format!("f{i}");
        block_on(volume.create_promised(&cred, Ino::ROOT, name.as_bytes(), as_file(0o600), promise)).unwrap();
    }
}

/// Writes until there is no room, in pieces of one page.
fn fill(volume: &Volume, name: &str) -> u64 {
    let file = block_on(volume.create(&Cred::root(), Ino::ROOT, name.as_bytes(), 0o600, RW)).unwrap().1;
    let mut at = 0;
    while let Ok(n) = block_on(volume.write(file, at, &[1; 4096])) {
        at += n as u64;
    }
    block_on(volume.release(file)).unwrap();
    at
}

/// Bytes that no other file has.
fn bytes(of: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (of * 31 + i / 7) as u8).collect()
}

#[test]
fn what_was_acknowledged_has_room_on_a_full_volume() {
    let (media, volume) = volume(64 << 20, false);
    let cred = Cred::root();
    let before = block_on(volume.statfs()).unwrap();
    let promised = volume.promise(100).unwrap();
    let room = volume.set_room_aside(900).unwrap();
    assert_eq!(room, 900);
    assert_eq!(block_on(volume.statfs()).unwrap().blocks_free, before.blocks_free, "it counts as free");
    assert!(fill(&volume, "fill") > 20 << 20);
    assert_eq!(volume.set_room_aside(1), Ok(0), "of a full volume nothing is set aside");
    let handles = &promised[..50];
    for (i, &promise) in handles.iter().enumerate() {
        let name = format!("f{i}");
        block_on(volume.create_promised(&cred, Ino::ROOT, name.as_bytes(), as_file(0o600), promise)).unwrap();
    }
    let mut left = room;
    let mut write = |i: usize, at: u64, len: usize| {
        let need = fs::room_for(at, len);
        (need <= left).then(|| {
            left -= need;
            block_on(volume.write_promised(handles[i].handle, at, &&bytes(i, len)[..]))
        })
    };
    // Within the inode first, and out of it from somewhere behind; whole pages and parts of them.
    for i in 0..50 {
        assert_eq!(write(i, 0, 100), Some(Ok(())));
        assert_eq!(write(i, 40_000 + i as u64, 9000), Some(Ok(())));
        block_on(volume.fsync(handles[0].handle, false)).unwrap();
    }
    let (mut at, mut more) = (1 << 20, 0);
    while let Some(written) = write(7, at, 20_000) {
        assert_eq!(written, Ok(()));
        (at, more) = (at + 20_000, more + 1);
    }
    assert!(more > 50, "{more}");
    volume.give_room_back(left);
    block_on(volume.sync()).unwrap();
    drop(volume);
    let after = Volume::open(media.clone(), OpenOptions::default()).unwrap();
    for (i, promise) in handles.iter().enumerate() {
        let file = block_on(after.open(&cred, promise.ino, RW)).unwrap();
        let mut found = vec![0; 49_000 + i];
        assert_eq!(block_on(after.read(file, 0, &mut found)), Ok(49_000 + i));
        let mut want = bytes(i, 100);
        want.resize(40_000 + i, 0);
        want.extend(bytes(i, 9000));
        assert!(found == want, "{i}");
        block_on(after.release(file)).unwrap();
    }
    block_on(after.unlink(&cred, Ino::ROOT, b"fill")).unwrap();
    drop(after);
    let report = block::fsck::check(media, &Default::default(), &mut |_| {}).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn room_that_is_not_used_comes_back() {
    let (_media, volume) = volume(64 << 20, false);
    let room = volume.set_room_aside(1000).unwrap();
    // A write that fails gives back what it would have needed, too.
    for _ in 0..room / 16 {
        assert_eq!(
            block_on(volume.write_promised(fs::Handle(0), 0, &&[1; 16 * 4096][..])),
            Err(Error::BadHandle)
        );
    }
    volume.give_room_back(room % 16);
    let room = volume.set_room_aside(1000).unwrap();
    assert_eq!(room, 1000);
    let without = fill(&volume, "a");
    block_on(volume.unlink(&Cred::root(), Ino::ROOT, b"a")).unwrap();
    block_on(volume.sync()).unwrap();
    volume.give_room_back(room);
    let with = fill(&volume, "b");
    assert!(with >= without + (room - 8) * 4096, "{with} {without}");
}

#[test]
fn a_strict_volume_promises_nothing() {
    let (_media, volume) = volume(64 << 20, true);
    assert!(matches!(volume.set_room_aside(1), Err(Error::NotSupported(_))));
    assert!(matches!(volume.promise(1), Err(Error::NotSupported(_))));
}

#[test]
fn a_directory_is_made_of_a_promise_when_it_was_made() {
    let (media, volume) = volume(64 << 20, false);
    let (cred, open_before) = (Cred::root(), volume.promise(3).unwrap());
    let time = Time { sec: 1_000_000_000, nsec: 5 };
    let made = MadeAs { perm: 0o7755, open: None, time: Some(time) };
    let [dir, file, back] = open_before[..] else { panic!("three were promised") };
    let attr = block_on(volume.create_promised(&cred, Ino::ROOT, b"dir", made, dir)).unwrap();
    assert_eq!((attr.kind, attr.perm, attr.nlink), (FileType::Directory, 0o1755, 2));
    assert_eq!([attr.atime, attr.mtime, attr.ctime, attr.btime], [time; 4]);
    let root = block_on(volume.getattr(Ino::ROOT, None)).unwrap();
    assert_eq!((root.nlink, root.mtime > time), (3, true), "the directory that it is in changes now");
    let made = MadeAs { open: Some(RW), ..made };
    let attr = block_on(volume.create_promised(&cred, dir.ino, b"file", made, file)).unwrap();
    assert_eq!((attr.perm, attr.btime), (0o7755, time));
    assert_eq!(block_on(volume.rmdir(&cred, Ino::ROOT, b"dir")), Err(Error::NotEmpty));
    let taken = block_on(volume.create_promised(&cred, Ino::ROOT, b"dir", made, back));
    assert_eq!(taken, Err(Error::Exists));
    volume.give_back(&[back]);
    block_on(volume.release(file.handle)).unwrap();
    // No handle came with the directory.
    assert_eq!(block_on(volume.release(dir.handle)), Err(Error::BadHandle));
    drop(volume);
    let volume = Volume::open(media, OpenOptions::default()).unwrap();
    let found = block_on(volume.lookup(&cred, Ino::ROOT, b"dir")).unwrap();
    assert_eq!((found.ino, found.btime, found.nlink), (dir.ino, time, 2));
}
