//! Signals while a server is not ready yet. Its own thread for signals comes with the mount; until then opening a bucket may wait long for a store
//! that does not answer, and nothing would be lost if it ended. So SIGTERM and SIGINT end the process at once, and so does the end of whoever
//! started it and waits to hear of it.

use super::daemon;
use anyhow::Context;
use std::io::{PipeWriter, pipe};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::thread::{Builder, JoinHandle};

/// Watches from when it is made until it is dropped.
pub struct Opening {
    done: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Opening {
    /// SIGTERM and SIGINT must be blocked. `told`: somebody listens on standard output.
    ///
    /// # Errors
    /// Those of making descriptors and threads.
    pub fn watch(told: bool) -> anyhow::Result<Opening> {
        let (over, done) = pipe().context("cannot make a pipe")?;
        // SAFETY: the set is initialised by sigemptyset before it is used; the descriptor is checked before it is owned.
        let signals = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGTERM);
            libc::sigaddset(&mut set, libc::SIGINT);
            match libc::signalfd(-1, &set, libc::SFD_CLOEXEC) {
                -1 => return Err(std::io::Error::last_os_error()).context("cannot watch for signals"),
                fd => OwnedFd::from_raw_fd(fd),
            }
        };
        let wait = move || {
            let on = |fd, events| libc::pollfd { fd, events, revents: 0 };
            // A negative descriptor is passed over. Of a pipe without readers POLLERR is told unasked.
            let listener = if told { libc::STDOUT_FILENO } else { -1 };
            let mut all = [on(over.as_raw_fd(), 0), on(signals.as_raw_fd(), libc::POLLIN), on(listener, 0)];
            // SAFETY: three valid pollfds whose descriptors are open.
            while unsafe { libc::poll(all.as_mut_ptr(), 3, -1) } < 0 {}
            let [over, signal, listener] = all.map(|one| one.revents != 0);
            // A signal that comes with the end is left to those who wait for signals then.
            if !over && (signal || listener) {
                tracing::info!("stopped before the bucket was open");
                if told {
                    let _ = daemon::report("stopped before the bucket was open");
                }
                std::process::exit(1);
            }
        };
        let thread =
            Builder::new().name("freehold-opening".into()).spawn(wait).context("cannot start a thread")?;
        Ok(Opening { done: Some(done), thread: Some(thread) })
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        drop(self.done.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that watches for signals panicked");
        }
    }
}
