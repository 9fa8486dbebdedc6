//! Capabilities of a file (`security.capability`) go when its content or owner changes, whoever changes it and through whatever door.

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
