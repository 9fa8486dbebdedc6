//! Files and directories with as many links as there can be. No volume has so many inodes, so the test sets the counts.

use super::Slot;
use crate::shared::Shared;
use crate::{MkfsOptions, OpenOptions, Volume};
use format::Ino;
use format::limits::LINK_MAX;
use fs::{Attr, Cred, Error, FileSystem, RenameFlags, block_on};
use media::ram::RamMedia;
use std::sync::Arc;

const NONE: RenameFlags = RenameFlags::empty();
const REGULAR: u32 = 0o100600;

struct Lab {
    media: Arc<RamMedia>,
    volume: Volume,
    shared: Arc<Shared>,
    worker: std::thread::JoinHandle<()>,
}

impl Lab {
    fn new() -> Lab {
        let media = Arc::new(RamMedia::new(48 << 20).unwrap());
        crate::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
        let options =
            OpenOptions { cache_bytes: 4 << 20, dirty_bytes_max: 1 << 20, ..OpenOptions::default() };
        let (volume, worker) = Volume::open_manual(media.clone(), options).unwrap();
        let shared = worker.shared.clone();
        let worker = std::thread::spawn(move || worker.run());
        Lab { media, volume, shared, worker }
    }

    /// Adds links that are not there; returns how many.
    fn add(&self, ino: Ino, up_to: u32) -> u32 {
        let mut core = self.shared.lock();
        let count = &mut core.slab.get_mut(ino.0 as Slot).nlink;
        let more = up_to - *count;
        *count = up_to;
        more
    }

    fn take(&self, ino: Ino, count: u32) {
        self.shared.lock().slab.get_mut(ino.0 as Slot).nlink -= count;
    }

    fn links(&self, ino: Ino) -> u32 {
        block_on(self.volume.getattr(ino, None)).unwrap().nlink
    }

    fn file(&self, dir: Ino, name: &[u8]) -> Ino {
        block_on(self.volume.mknod(&Cred::root(), dir, name, REGULAR, 0)).unwrap().ino
    }

    fn mkdir(&self, dir: Ino, name: &[u8]) -> fs::Result<Ino> {
        block_on(self.volume.mkdir(&Cred::root(), dir, name, 0o755)).map(|attr| attr.ino)
    }

    fn link(&self, ino: Ino, name: &[u8]) -> fs::Result<Attr> {
        block_on(self.volume.link(&Cred::root(), ino, Ino::ROOT, name))
    }

    fn found(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        block_on(self.volume.lookup(&Cred::root(), dir, name)).ok().map(|attr| attr.ino)
    }

    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> fs::Result<()> {
        block_on(self.volume.rename(&Cred::root(), from.0, from.1, to.0, to.1, flags))
    }

    /// Stops the volume, which must be sound once the counts are true again.
    fn end(self) {
        self.volume.close_blocking().unwrap();
        self.worker.join().unwrap();
        drop((self.volume, self.shared));
        let report = crate::fsck::check(self.media, &Default::default(), &mut |_| {}).unwrap();
        assert!(report.is_clean(), "{report:?}");
    }
}

fn too_many<T: std::fmt::Debug>(result: fs::Result<T>) {
    match result {
        Err(e @ Error::TooManyLinks) => assert_eq!(e.errno(), libc::EMLINK),
        other => panic!("{other:?}"),
    }
}

#[test]
fn names_of_a_file() {
    let lab = Lab::new();
    let f = lab.file(Ino::ROOT, b"f");
    let more = lab.add(f, LINK_MAX - 1);
    assert_eq!(lab.link(f, b"last").unwrap().nlink, LINK_MAX);
    too_many(lab.link(f, b"beyond"));
    assert_eq!((lab.links(f), lab.found(Ino::ROOT, b"beyond")), (LINK_MAX, None));
    // Other names for the same number of links.
    lab.rename((Ino::ROOT, b"last"), (Ino::ROOT, b"moved"), NONE).unwrap();
    block_on(lab.volume.unlink(&Cred::root(), Ino::ROOT, b"f")).unwrap();
    assert_eq!(lab.link(f, b"again").unwrap().nlink, LINK_MAX);
    lab.take(f, more);
    assert_eq!(lab.link(f, b"third").unwrap().nlink, 3);
    lab.end();
}

#[test]
fn directories_in_a_directory() {
    let lab = Lab::new();
    let (full, other) = (lab.mkdir(Ino::ROOT, b"full").unwrap(), lab.mkdir(Ino::ROOT, b"other").unwrap());
    let (a, x) = (lab.mkdir(full, b"a").unwrap(), lab.mkdir(other, b"x").unwrap());
    let (file, theirs) = (lab.file(full, b"file"), lab.file(other, b"theirs"));
    let more = lab.add(full, LINK_MAX);
    too_many(lab.mkdir(full, b"b"));
    too_many(lab.rename((other, b"x"), (full, b"x"), NONE));
    too_many(lab.rename((other, b"x"), (full, b"file"), RenameFlags::EXCHANGE));
    too_many(lab.rename((full, b"file"), (other, b"x"), RenameFlags::EXCHANGE));
    assert_eq!((lab.links(full), lab.links(other)), (LINK_MAX, 3));
    assert_eq!((lab.found(full, b"b"), lab.found(full, b"x")), (None, None));
    assert_eq!((lab.found(other, b"x"), lab.found(full, b"file")), (Some(x), Some(file)));
    // What brings no directory more.
    lab.file(full, b"another");
    lab.rename((full, b"a"), (full, b"renamed"), NONE).unwrap();
    lab.rename((other, b"theirs"), (full, b"theirs"), NONE).unwrap();
    lab.rename((full, b"renamed"), (other, b"x"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!((lab.found(full, b"renamed"), lab.found(other, b"x")), (Some(x), Some(a)));
    lab.rename((other, b"x"), (full, b"renamed"), NONE).unwrap();
    assert_eq!((lab.found(full, b"renamed"), lab.found(full, b"theirs")), (Some(a), Some(theirs)));
    assert_eq!((lab.links(full), lab.links(other)), (LINK_MAX, 2));
    // One goes, another comes.
    block_on(lab.volume.rmdir(&Cred::root(), full, b"renamed")).unwrap();
    lab.mkdir(full, b"b").unwrap();
    too_many(lab.mkdir(full, b"c"));
    lab.take(full, more);
    lab.mkdir(full, b"c").unwrap();
    assert_eq!(lab.links(full), 4);
    lab.end();
}
