//! Mounts of the model for the tests of this binary, and system calls whose failure is an errno.

use crate::later;
use fuse::{Mount, MountOptions};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub fn can_mount() -> bool {
    // SAFETY: geteuid has no preconditions.
    let ok = unsafe { libc::geteuid() } == 0 && Path::new("/dev/fuse").exists();
    if !ok {
        println!("skipped: needs root and /dev/fuse");
    }
    ok
}

pub fn model() -> sim::Model {
    sim::Model::new(sim::model::system_clock())
}

/// Runs `test` on each kind of mount.
pub fn on_mounts(test: impl Fn(&Path, &Mount)) {
    if !can_mount() {
        return;
    }
    for (waits, options) in [(false, ""), (true, ""), (true, "writeback"), (false, "shared,writeback")] {
        println!("waits: {waits}, options: '{options}'");
        let dir = tempfile::tempdir().unwrap();
        let options = MountOptions::parse(options).unwrap();
        let mount = match waits {
            true => fuse::mount(Arc::new(later::Later::new(model())), dir.path(), options),
            false => fuse::mount(Arc::new(model()), dir.path(), options),
        };
        let mount = mount.unwrap();
        test(dir.path(), &mount);
        unmount(&mount);
        assert!(!mount.is_mounted());
    }
}

/// Unmounts. A process that another test is just starting has all our files, for a moment.
pub fn unmount(mount: &Mount) {
    let begun = Instant::now();
    while let Err(e) = mount.unmount() {
        assert!(e.raw_os_error() == Some(libc::EBUSY) && begun.elapsed() < Duration::from_secs(10), "{e}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Takes away what is mounted at `point`, as umount(8) does; waits as [`unmount`] does.
#[track_caller]
pub fn unmount_outside(point: &Path) {
    let (begun, path) = (Instant::now(), c(point));
    // SAFETY: a string that ends with a null byte.
    while let Err(e) = check(unsafe { libc::umount(path.as_ptr()) }) {
        let patience = Duration::from_secs(10);
        assert!(e.raw_os_error() == Some(libc::EBUSY) && begun.elapsed() < patience, "{point:?}: {e}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn check(rc: impl Into<i64>) -> io::Result<i64> {
    let rc = rc.into();
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

pub fn errno<T: std::fmt::Debug>(r: io::Result<T>) -> i32 {
    r.unwrap_err().raw_os_error().unwrap()
}

pub fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}
