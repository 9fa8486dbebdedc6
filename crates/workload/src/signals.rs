//! Ending early: the first SIGINT, SIGTERM or SIGHUP ends the run, which then tidies up and reports what it has done; the next is
//! ignored, the third ends the program at once and leaves the files behind.

use crate::board::INTERRUPTED;
use std::sync::atomic::Ordering::Relaxed;

extern "C" fn on_signal(signal: libc::c_int) {
    if INTERRUPTED.swap(true, Relaxed) {
        // SAFETY: signal(2) may be called in a handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// From now on these signals end runs of this process, and of the processes it forks, early.
pub fn catch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler stores to an atomic and may call signal(2), both of which a handler may do.
        unsafe { libc::signal(signal, on_signal as *const () as libc::sighandler_t) };
    }
}
