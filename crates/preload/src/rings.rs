//! Programs that have the kernel read and write for them: io_uring knows the kernel's files only. So from the moment at which a process sets one up, what it opens are files of the FUSE mount, which the kernel can use; what is open already stays a session's, and
//! is refused in requests as before (`EBADF`).
//!
//! Seen are the functions of liburing. Who sets up a ring by a system call of its own (syscall(2) too: libuv does so in
//! every process of node, for other things than files) is not.
//!
//! Where tested: crates/freehold/tests/run.rs.

use crate::hook::hook;
use libc::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

static USED: AtomicBool = AtomicBool::new(false);

/// Whether this process opens files for the kernel to read and write.
#[inline]
pub(crate) fn used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// Before the kernel makes one: no file that is opened afterwards is one that it cannot use.
fn begin() {
    USED.store(true, Ordering::Relaxed);
}

hook! {
    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
        begin();
        Ok(io_uring_queue_init::real(entries, ring, flags))
    }
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, params: *mut c_void) -> c_int {
        begin();
        Ok(io_uring_queue_init_params::real(entries, ring, params))
    }
    fn io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, params: *mut c_void, memory: *mut c_void, size: usize) -> c_int {
        begin();
        Ok(io_uring_queue_init_mem::real(entries, ring, params, memory, size))
    }
}
