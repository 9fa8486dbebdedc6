//! Syncs answered with order: which files are below a path, and that the engine gives a barrier then.
//!
//! Verifies ancestry through renames, additional names and removed ones, and that paths with symlinks in them name nothing. Does not verify
//! who asks, which the doors know (freehold/tests/order.rs).

use block::{MkfsOptions, OpenOptions, Volume};
use fs::client::OpenOptions as Open;
use fs::ordered::Synced;
use fs::{Attr, Blocking, Client, Cred, FileSystem, Ino, Ordered, RenameFlags};
use media::flash::{Config, SimFlash};
use std::sync::Arc;

const RW: Open = Open::new().read(true).write(true).create(true);

fn volume() -> (Arc<Volume>, Blocking<Volume>) {
    let flash = SimFlash::new(Config { wait_when_idle: true, ..Config::new(64 << 20) }).unwrap();
    let flash = Arc::new(flash);
    block::mkfs(flash.clone(), &MkfsOptions::default()).unwrap();
    let volume = Arc::new(Volume::open(flash, OpenOptions::default()).unwrap());
    let client = Client::new(volume.clone(), Cred::root()).blocking();
    (volume, client)
}

#[test]
fn ancestry() {
    let (volume, client) = volume();
    let ino = |path: &str| client.lstat(path).unwrap().ino;
    client.create_dir_all("/a/b/c").unwrap();
    client.create_dir_all("/d").unwrap();
    client.write("/a/b/c/f", "f").unwrap();
    let (a, b, d, f) = (ino("/a"), ino("/a/b"), ino("/d"), ino("/a/b/c/f"));
    for top in [Ino::ROOT, a, b, f] {
        assert!(volume.is_within(f, top), "{top:?}");
    }
    assert!(volume.is_within(a, a) && volume.is_within(Ino::ROOT, Ino::ROOT));
    assert!(!volume.is_within(f, d) && !volume.is_within(a, b) && !volume.is_within(Ino::ROOT, a));
    client.rename("/a/b", "/d/b", RenameFlags::empty()).unwrap();
    assert!(volume.is_within(f, d) && volume.is_within(f, b) && !volume.is_within(f, a));
    // Of several names, the one that is left.
    client.link("/d/b/c/f", "/a/f").unwrap();
    assert!(volume.is_within(f, d) && !volume.is_within(f, a));
    client.unlink("/d/b/c/f").unwrap();
    assert!(!volume.is_within(f, d) && volume.is_within(f, a));
    let file = client.open("/a/f", RW).unwrap();
    client.unlink("/a/f").unwrap();
    assert!(!volume.is_within(f, a) && !volume.is_within(f, Ino::ROOT), "it has no name");
    drop(file);
    for unknown in [Ino(0), Ino(u64::MAX), Ino(1 << 20), f] {
        assert!(!volume.is_within(unknown, Ino::ROOT) && !volume.is_within(a, unknown), "{unknown:?}");
    }
    volume.close_blocking().unwrap();
}

#[test]
fn paths_decide() {
    let (volume, client) = volume();
    client.create_dir_all("/a/b").unwrap();
    client.symlink("/a", "/link").unwrap();
    let ordered =
        |paths: &[&str]| Ordered { paths: paths.iter().map(Into::into).collect(), ..Ordered::default() };
    let sync = |ordered: &Ordered, path: &str, program: bool| {
        let file = client.open(path, RW).unwrap();
        file.write_all_at(b"data", 0).unwrap();
        let attr: Attr = file.metadata().unwrap();
        let before = (volume.counters().barriers, volume.epochs().1);
        let done = fs::block_on(ordered.sync(&*volume, (file.handle(), attr.ino), true, program)).unwrap();
        let moved = (volume.counters().barriers - before.0, volume.epochs().1 > before.1);
        assert_eq!(moved, if done == Synced::Ordered { (1, false) } else { (0, true) }, "{path}");
        done
    };
    for (paths, path, wanted) in [
        (&["/a"][..], "/a/f", Synced::Ordered),
        (&["/a"], "/f", Synced::Durable),
        (&["/none", "/a/b"], "/a/b/f", Synced::Ordered),
        (&["/none", "/a/b"], "/a/f", Synced::Durable),
        (&["/"], "/f", Synced::Ordered),
        (&["/a/f"], "/a/f", Synced::Ordered),
        (&["/link"], "/a/f", Synced::Durable),
        (&["/link/b"], "/a/b/f", Synced::Durable),
        (&["/a/f/x"], "/a/f", Synced::Durable),
        (&[], "/a/f", Synced::Durable),
    ] {
        assert_eq!(sync(&ordered(paths), path, false), wanted, "{paths:?} {path}");
        assert_eq!(sync(&ordered(paths), path, true), Synced::Ordered, "its program is one of them");
    }
    volume.close_blocking().unwrap();
}
