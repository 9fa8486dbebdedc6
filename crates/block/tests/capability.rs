//! Capabilities of a file (`security.capability`) go when its content or owner changes, whoever changes it and through whatever door; and whether a file has
//! extended attributes at all is said with its other attributes, also behind a mount.

use block::{MkfsOptions, OpenOptions, Volume};
use fs::{Cred, Error, Fallocate, FileSystem, Handle, Ino, OpenFlags, SetAttr, XattrFlags};
use media::ram::RamMedia;
use std::sync::Arc;

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
const NAME: &[u8] = b"security.capability";

#[test]
fn they_go_with_every_change() {
    let media = Arc::new(RamMedia::new(64 << 20).unwrap());
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    let volume = Volume::open(media, OpenOptions::default()).unwrap();
    let (root, run) = (Cred::root(), &|call: &dyn Fn(&Volume, Ino, Handle) -> fs::Result<()>| {
        for size in [100, 9000] {
            let name = b"file";
            let (attr, handle) =
                volume.block_on(volume.create(&Cred::root(), Ino::ROOT, name, 0o666, RW)).unwrap();
            volume.block_on(volume.write(handle, 0, &vec![1; size])).unwrap();
            for (name, value) in [(NAME, &[7; 20][..]), (b"user.other", b"stays")] {
                volume
                    .block_on(volume.setxattr(&Cred::root(), attr.ino, name, value, XattrFlags::empty()))
                    .unwrap();
            }
            // What changes neither leaves them.
            volume.block_on(volume.read(handle, 0, &mut [0; 10])).unwrap();
            let set = SetAttr { perm: Some(0o666), ..SetAttr::default() };
            volume.block_on(volume.setattr(&Cred::root(), attr.ino, set)).unwrap();
            assert!(volume.block_on(volume.getxattr(&Cred::root(), attr.ino, NAME)).is_ok());
            call(&volume, attr.ino, handle).unwrap();
            let found = volume.block_on(volume.listxattr(&Cred::root(), attr.ino)).unwrap();
            assert_eq!(found, [b"user.other"], "{size}");
            assert_eq!(
                volume.block_on(volume.getxattr(&Cred::root(), attr.ino, NAME)),
                Err(Error::NoAttribute)
            );
            volume.block_on(volume.release(handle)).unwrap();
            volume.block_on(volume.unlink(&Cred::root(), Ino::ROOT, name)).unwrap();
        }
    });
    run(&|v, _, h| v.block_on(v.write(h, 50, b"x")).map(drop));
    run(&|v, _, h| v.block_on(v.write_atomic(h, &[(0, b"x"), (50, b"y")])));
    run(&|v, _, h| v.block_on(v.copy_range(h, 0, h, 50, 10)).map(drop));
    run(&|v, _, h| v.block_on(v.fallocate(h, Fallocate::ZeroRange { keep_size: true }, 0, 10)));
    run(&|v, _, h| v.block_on(v.fallocate(h, Fallocate::Allocate { keep_size: false }, 0, 30_000)));
    run(&|v, _, h| v.block_on(v.fallocate(h, Fallocate::PunchHole, 0, 10)));
    run(&|v, i, _| {
        v.block_on(v.open(&root, i, RW | OpenFlags::TRUNCATE)).map(|h| v.block_on(v.release(h)).unwrap())
    });
    run(&|v, i, _| {
        v.block_on(v.setattr(&root, i, SetAttr { size: Some(50), ..SetAttr::default() })).map(drop)
    });
    run(&|v, i, _| v.block_on(v.setattr(&root, i, SetAttr { uid: Some(5), ..SetAttr::default() })).map(drop));
    run(&|v, i, _| v.block_on(v.setattr(&root, i, SetAttr { gid: Some(5), ..SetAttr::default() })).map(drop));
}

#[test]
fn whether_there_are_any_is_known() {
    let media = Arc::new(RamMedia::new(64 << 20).unwrap());
    block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
    let open = || Volume::open(media.clone(), OpenOptions::default()).unwrap();
    let mut volume = open();
    let (root, any) = (Cred::root(), XattrFlags::empty());
    let name = |n: u64| format!("file-{n}").into_bytes();
    // None, some in the inode, some outside of it, one that went again; with and without data.
    for n in 0..8 {
        let (attr, handle) = volume.block_on(volume.create(&root, Ino::ROOT, &name(n), 0o644, RW)).unwrap();
        volume.block_on(volume.write(handle, 0, &vec![1; (n / 4 * 9000) as usize])).unwrap();
        let value = vec![3; [0, 10, 5000, 10][n as usize % 4]];
        if !value.is_empty() {
            volume.block_on(volume.setxattr(&root, attr.ino, b"user.x", &value, any)).unwrap();
        }
        if n % 4 == 3 {
            volume.block_on(volume.removexattr(&root, attr.ino, b"user.x")).unwrap();
        }
        volume.block_on(volume.release(handle)).unwrap();
    }
    let check = |volume: &Volume| {
        for n in 0..8 {
            let attr = volume.block_on(volume.lookup(&root, Ino::ROOT, &name(n))).unwrap();
            assert_eq!(attr.xattrs, matches!(n % 4, 1 | 2), "{n}");
            let list = volume.block_on(volume.listxattr(&root, attr.ino)).unwrap();
            assert_eq!(attr.xattrs, !list.is_empty());
        }
    };
    check(&volume);
    volume.block_on(volume.sync()).unwrap();
    // From the log first, then from a checkpoint.
    for clean in [false, true, true] {
        if clean {
            volume.close_blocking().unwrap();
        }
        drop(volume);
        volume = open();
        check(&volume);
    }
}
