//! Mounts of the model for the tests of this binary, and system calls whose failure is an errno.

use crate::later;
use fuse::{Mount, MountOptions};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

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
    let begun = std::time::Instant::now();
    while let Err(e) = mount.unmount() {
        assert!(e.raw_os_error() == Some(libc::EBUSY) && begun.elapsed().as_secs() < 10, "{e}");
        std::thread::sleep(std::time::Duration::from_millis(5));
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
