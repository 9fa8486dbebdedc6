//! Calls that return when what they have changed is durable: through handles that ask for it, and on volumes opened so.
//!
//! Verifies that a power failure right after such a call, which loses all that may be lost, loses nothing of it; and that without the option
//! it would have been lost, or the test would see nothing.

use block::{MkfsOptions, OpenOptions, Synchronous, Volume};
use fs::{
    Cred, Error, Fallocate, FileSystem, Handle, Ino, OpenFlags, RenameFlags, SetAttr, XattrFlags, block_on,
};
use media::flash::{Config, SimFlash};
use std::sync::Arc;

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn open(media: Arc<SimFlash>, synchronous: Synchronous) -> Volume {
    Volume::open(media, OpenOptions { cache_bytes: 8 << 20, synchronous, ..OpenOptions::default() }).unwrap()
}

struct Rig {
    media: Arc<SimFlash>,
    volume: Volume,
}

impl Rig {
    fn new(synchronous: Synchronous) -> Rig {
        let media = Arc::new(SimFlash::new(Config::new(64 << 20)).unwrap());
        block::mkfs(media.clone(), &MkfsOptions::default()).unwrap();
        Rig { volume: open(media.clone(), synchronous), media }
    }

    fn file(&self, name: &str, flags: OpenFlags) -> Handle {
        self.volume
            .block_on(self.volume.create(&Cred::root(), Ino::ROOT, name.as_bytes(), 0o600, flags))
            .unwrap()
            .1
    }

    fn ino(volume: &Volume, name: &str) -> fs::Result<Ino> {
        block_on(volume.lookup(&Cred::root(), Ino::ROOT, name.as_bytes())).map(|attr| attr.ino)
    }

    /// The volume as it is found after a power failure that loses what was not flushed.
    fn after_power_failure(&self) -> Volume {
        open(Arc::new(self.media.crash_image(|_, _| false)), Synchronous::Nothing)
    }
}

fn content(volume: &Volume, name: &str) -> fs::Result<Vec<u8>> {
    let ino = Rig::ino(volume, name)?;
    let handle = block_on(volume.open(&Cred::root(), ino, OpenFlags::READ))?;
    let mut bytes = vec![0; 1 << 20];
    let n = volume.block_on(volume.read(handle, 0, &mut bytes))?;
    bytes.truncate(n);
    Ok(bytes)
}

/// Writes and copies through handles that ask for it.
#[test]
fn handles_that_ask_for_it() {
    for flag in [OpenFlags::SYNC, OpenFlags::DSYNC, OpenFlags::empty()] {
        let rig = Rig::new(Synchronous::Nothing);
        let volume = &rig.volume;
        let source = rig.file("source", RW);
        volume.block_on(volume.write(source, 0, &[7; 100_000])).unwrap();
        volume.block_on(volume.sync()).unwrap();
        let durable = !flag.is_empty();
        let copy = rig.file("copy", RW | flag);
        assert_eq!(volume.block_on(volume.copy_range(source, 0, copy, 0, 100_000)).unwrap(), 100_000);
        assert_eq!(
            content(&rig.after_power_failure(), "copy").is_ok_and(|c| c == [7; 100_000]),
            durable,
            "{flag:?}"
        );
        let written = rig.file("written", RW | flag);
        volume.block_on(volume.write(written, 0, b"words")).unwrap();
        assert_eq!(
            content(&rig.after_power_failure(), "written").is_ok_and(|c| c == b"words"),
            durable,
            "{flag:?}"
        );
    }
}

/// Every call that changes something, on a volume where all of them or those of directories are synchronous.
#[test]
fn volumes_opened_so() {
    for synchronous in [Synchronous::Everything, Synchronous::Directories, Synchronous::Nothing] {
        let rig = Rig::new(synchronous);
        let (volume, root, cred) = (&rig.volume, Ino::ROOT, Cred::root());
        let run = |what: &str, of_directories: bool, there: &dyn Fn(&Volume) -> bool| {
            let durable = match synchronous {
                Synchronous::Everything => true,
                Synchronous::Directories => of_directories,
                Synchronous::Nothing => false,
            };
            assert_eq!(there(&rig.after_power_failure()), durable, "{what}, {synchronous:?}");
            // What is not durable yet must not become it by the next call.
            volume.block_on(volume.sync()).unwrap();
        };
        let has = |name: &'static str| move |v: &Volume| Rig::ino(v, name).is_ok();
        let lacks = |name: &'static str| move |v: &Volume| matches!(Rig::ino(v, name), Err(Error::NotFound));
        let file = rig.file("file", RW);
        run("create", true, &has("file"));
        let ino = Rig::ino(volume, "file").unwrap();
        volume.block_on(volume.mkdir(&cred, root, b"dir", 0o755)).unwrap();
        run("mkdir", true, &has("dir"));
        volume.block_on(volume.symlink(&cred, root, b"symlink", b"file")).unwrap();
        run("symlink", true, &has("symlink"));
        volume.block_on(volume.mknod(&cred, root, b"fifo", libc::S_IFIFO | 0o600, 0)).unwrap();
        run("mknod", true, &has("fifo"));
        volume.block_on(volume.link(&cred, ino, root, b"other")).unwrap();
        run("link", true, &has("other"));
        volume
            .block_on(volume.rename(&cred, root, b"other", root, b"renamed", RenameFlags::empty()))
            .unwrap();
        run("rename", true, &has("renamed"));
        volume.block_on(volume.unlink(&cred, root, b"renamed")).unwrap();
        run("unlink", true, &lacks("renamed"));
        volume.block_on(volume.rmdir(&cred, root, b"dir")).unwrap();
        run("rmdir", true, &lacks("dir"));

        volume.block_on(volume.write(file, 0, &[1; 9000])).unwrap();
        run("write", false, &|v| content(v, "file").is_ok_and(|c| c == [1; 9000]));
        volume.block_on(volume.write_atomic(file, &[(0, &[2; 10]), (5000, &[2; 10])])).unwrap();
        run("write_atomic", false, &|v| content(v, "file").is_ok_and(|c| c[0] == 2 && c[5009] == 2));
        let copy = rig.file("copy", RW);
        volume.block_on(volume.copy_range(file, 0, copy, 0, 9000)).unwrap();
        run("copy_range", false, &|v| content(v, "copy").is_ok_and(|c| c.len() == 9000));
        let allocate = Fallocate::Allocate { keep_size: false };
        volume.block_on(volume.fallocate(file, allocate, 0, 20_000)).unwrap();
        run("fallocate", false, &|v| content(v, "file").is_ok_and(|c| c.len() == 20_000));
        let set = SetAttr { size: Some(3), ..SetAttr::default() };
        volume.block_on(volume.setattr(&cred, ino, set)).unwrap();
        run("setattr", false, &|v| content(v, "file").is_ok_and(|c| c.len() == 3));
        volume.block_on(volume.setxattr(&cred, ino, b"user.a", b"b", XattrFlags::empty())).unwrap();
        let attribute =
            |v: &Volume| block_on(v.getxattr(&Cred::root(), Rig::ino(v, "file").unwrap(), b"user.a"));
        run("setxattr", false, &|v| attribute(v).is_ok());
        volume.block_on(volume.removexattr(&cred, ino, b"user.a")).unwrap();
        run("removexattr", false, &|v| attribute(v).is_err());
        volume.block_on(volume.open(&cred, ino, RW | OpenFlags::TRUNCATE)).unwrap();
        run("open that truncates", false, &|v| content(v, "file").is_ok_and(|c| c.is_empty()));
        volume.block_on(volume.create(&cred, root, b"copy", 0o600, RW | OpenFlags::TRUNCATE)).unwrap();
        run("create that truncates", false, &|v| content(v, "copy").is_ok_and(|c| c.is_empty()));

        // What is promised first and done later is not durable when the caller goes on.
        let late = volume.promise(1).is_ok();
        assert_eq!(late, synchronous == Synchronous::Nothing);
        assert_eq!(volume.set_room_aside(1).is_ok(), late);
        assert_eq!(volume.overwritable(copy, 0, 1).is_ok(), late);
    }
}
