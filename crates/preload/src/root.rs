//! chroot(2). The paths of mounts begin at the root directory with which the program was started. Once a process has another one they lead nowhere, or elsewhere, and what is
//! above a directory may be out of its reach: from then on its paths go to the kernel, which has the FUSE mount. What is open stays open.
//!
//! A program that is executed there finds no manager at the path that it was told, and the kernel serves it. Not seen: `pivot_root`, `setns`, `unshare`.
//!
//! Where tested: crates/freehold/tests/run_more.rs.

use crate::hook::hook;
use crate::{cwd, mounts};
use libc::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

static CHANGED: AtomicBool = AtomicBool::new(false);

/// Whether the process has another root directory than at its beginning.
#[inline]
pub(crate) fn changed() -> bool {
    CHANGED.load(Ordering::Relaxed)
}

hook! {
    fn chroot(path: *const c_char) -> c_int {
        // What is open is used through a session, which could not begin from there.
        if !mounts::borrowed_memory() {
            for mount in mounts::mounts() {
                let _ = mount.session();
            }
        }
        let done = chroot::real(path);
        // A child of vfork has a root directory of its own, and our memory.
        if done == 0 && !mounts::borrowed_memory() {
            CHANGED.store(true, Ordering::Relaxed);
            cwd::begin();
        }
        Ok(done)
    }
}
