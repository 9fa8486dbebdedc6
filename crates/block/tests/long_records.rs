//! Epochs that much joins: none gets a record that is longer than a recovery takes for one, or than there is room for.

mod rig;

use block::{Volume, fsck};
use fs::{Cred, FileSystem, Handle, Ino, OpenFlags};
use media::SimFlash;
use rig::{ByHand, Setup};
use sim::Driver;
use std::sync::Arc;
use std::time::Duration;

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

struct Lab {
    setup: Setup,
    flash: Arc<SimFlash>,
    volume: Arc<Volume>,
    hand: ByHand,
    cred: Cred,
}

impl Lab {
    fn new(bytes: u64) -> Lab {
        let setup = Setup { bytes, checkpoints: false, ..Setup::new(false, 2) };
        let flash = setup.make();
        Lab::of(setup, flash)
    }

    fn of(setup: Setup, flash: Arc<SimFlash>) -> Lab {
        let (volume, hand) = setup.start(flash.clone()).unwrap();
        Lab { setup, flash, volume, hand, cred: Cred::root() }
    }

    /// As after a loss of power that has lost nothing.
    fn crashed(self) -> Lab {
        let image = Arc::new(self.flash.crash_image(|_, _| true));
        Lab::of(self.setup, image)
    }

    fn sync(&self) {
        self.hand.block_on(self.volume.sync()).unwrap();
    }

    fn inodes(&self) -> u64 {
        let space = self.hand.block_on(self.volume.statfs()).unwrap();
        space.inodes - space.inodes_free
    }

    fn nameless(&self, many: usize) -> Vec<Handle> {
        let one = |_| self.volume.tmpfile(&self.cred, Ino::ROOT, 0o600, RW);
        (0..many).map(|n| self.hand.block_on(one(n)).unwrap().1).collect()
    }

    /// Stops it cleanly, and has it looked at.
    fn ends(self) {
        self.hand.block_on(self.volume.close()).unwrap();
        let image = Arc::new(self.flash.crash_image(|_, _| true));
        let report = fsck::check(image, &Default::default(), &mut |_| {}).unwrap();
        assert!(report.is_clean(), "{report:?}");
    }
}

/// Each read moves a time of access, and with it all that an inode holds joins the epoch.
#[test]
fn small_files_are_read() {
    let lab = Lab::new(64 << 20);
    let bytes = [7; 3000];
    let files: Vec<(Ino, Handle)> = (0..3000)
        .map(|n| {
            lab.hand.block_on(async {
                let name = format!("file {n}");
                let (attr, handle) =
                    lab.volume.create(&lab.cred, Ino::ROOT, name.as_bytes(), 0o600, RW).await.unwrap();
                lab.volume.write(handle, 0, &bytes).await.unwrap();
                (attr.ino, handle)
            })
        })
        .collect();
    lab.sync();
    lab.hand.block_on(lab.volume.checkpoint()).unwrap();
    let read = |lab: &Lab, handle: Handle| {
        let mut found = [0; 3000];
        assert_eq!(lab.hand.block_on(lab.volume.read(handle, 0, &mut found)).unwrap(), 3000);
        assert!(found == bytes);
    };
    lab.hand.clock.set(sim::driver::FIRST_TICK + 1);
    files.iter().for_each(|&(_, handle)| read(&lab, handle));
    lab.sync();
    // Where the epoch had grown the time stayed what it was, until the next read.
    for _ in 0..20 {
        lab.hand.settle();
        files.iter().for_each(|&(_, handle)| read(&lab, handle));
    }
    for &(ino, _) in &files {
        let attr = lab.hand.block_on(lab.volume.getattr(ino, None)).unwrap();
        assert!(attr.atime > attr.mtime, "{attr:?}");
    }
    lab.sync();
    let lab = lab.crashed();
    for n in [0, 1499, 2999] {
        let name = format!("file {n}");
        let found = lab.hand.block_on(lab.volume.lookup(&lab.cred, Ino::ROOT, name.as_bytes())).unwrap();
        assert!(found.size == 3000 && found.atime > found.mtime, "{found:?}");
    }
    lab.ends();
}

/// A symlink joins the epoch before it has a name and a target.
#[test]
fn long_symlinks_are_made() {
    let lab = Lab::new(64 << 20);
    let target = [b'x'; 3000];
    let name = |n| format!("{n}{}", "y".repeat(200));
    for n in 0..3000 {
        lab.hand.block_on(lab.volume.symlink(&lab.cred, Ino::ROOT, name(n).as_bytes(), &target)).unwrap();
    }
    lab.sync();
    let lab = lab.crashed();
    for n in 0..3000 {
        let found = lab.hand.block_on(lab.volume.lookup(&lab.cred, Ino::ROOT, name(n).as_bytes())).unwrap();
        assert_eq!(lab.hand.block_on(lab.volume.readlink(&lab.cred, found.ino)).unwrap(), target);
    }
    lab.ends();
}

#[test]
fn files_without_names_are_closed() {
    let lab = Lab::new(512 << 20);
    let before = lab.inodes();
    let handles = lab.nameless(45_000);
    lab.sync();
    handles.into_iter().for_each(|handle| lab.hand.block_on(lab.volume.release(handle)).unwrap());
    lab.sync();
    assert_eq!(lab.inodes(), before);
    lab.ends();
}

/// Files that were open when the volume was stopped go some time after the next mount.
#[test]
fn files_without_names_are_found() {
    let lab = Lab::new(512 << 20);
    let before = lab.inodes();
    lab.nameless(45_000);
    lab.sync();
    let lab = lab.crashed();
    assert_eq!(lab.inodes(), before + 45_000);
    let later = Duration::from_secs(3600).as_secs() as i64;
    lab.hand.clock.set(sim::driver::FIRST_TICK + later);
    for _ in 0..1000 {
        lab.hand.settle();
    }
    assert_eq!(lab.inodes(), before);
    lab.ends();
}
