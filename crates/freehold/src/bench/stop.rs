//! Ending early: SIGINT and SIGTERM set a flag that every loop looks at, so that guards get to clean
//! up. The second is ignored, the third ends the program at once.

use anyhow::{Result, bail};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(signal: libc::c_int) {
    if STOP.swap(true, Relaxed) {
        // SAFETY: signal(2) may be called in a handler. The next signal ends a run that hangs, and cleans up nothing.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// The former handlers; restored on drop.
pub struct Signals([(libc::c_int, libc::sighandler_t); 3]);

/// Has the signals that end a program set the flag.
pub fn catch() -> Signals {
    STOP.store(false, Relaxed);
    Signals([libc::SIGINT, libc::SIGTERM, libc::SIGHUP].map(|signal| {
        // SAFETY: the handler only stores to an atomic, which a signal handler may do.
        (signal, unsafe { libc::signal(signal, on_signal as *const () as libc::sighandler_t) })
    }))
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (signal, handler) in self.0 {
            if handler != libc::SIG_ERR {
                // SAFETY: the handler is the one that was in force before `catch`.
                unsafe { libc::signal(signal, handler) };
            }
        }
    }
}

/// An error when the run is to end.
#[inline]
pub fn check() -> Result<()> {
    if STOP.load(Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}
