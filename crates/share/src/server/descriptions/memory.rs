//! Memories that clients have shown.

use crate::server::closer::{Closer, Line};
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// A memory whose bytes stand for descriptions. Whoever closes it last gives all that is in it back, which takes long if it is large: it is closed where nobody waits.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Until it is closed.
    fd: Option<OwnedFd>,
    id: (u64, u64),
    /// Who has shown it.
    uid: u32,
    closer: Arc<Closer>,
}

impl Memory {
    /// One with this device and inode number, which came over `line`.
    pub fn new(fd: OwnedFd, id: (u64, u64), line: &Line) -> Memory {
        Memory { fd: Some(fd), id, uid: line.uid, closer: line.closer().clone() }
    }

    pub fn id(&self) -> (u64, u64) {
        self.id
    }

    /// Whether there is a description that stands for this byte.
    pub fn has(&self, at: u64) -> bool {
        let Some(fd) = &self.fd else { return false };
        // SAFETY: all zeros is a valid value.
        let mut lock: libc::flock = unsafe { mem::zeroed() };
        lock.l_type = libc::F_WRLCK as _;
        lock.l_whence = libc::SEEK_SET as _;
        (lock.l_start, lock.l_len) = (at as i64, 1);
        // SAFETY: the descriptor is ours, and the argument is what the command needs.
        let asked = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
        asked == 0 && lock.l_type != libc::F_UNLCK as libc::c_short
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let fd = self.fd.take();
        self.closer.run(self.uid, move || drop(fd));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::tasks::Bell;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    #[test]
    fn what_was_shown_is_closed_elsewhere() {
        let closer = Arc::new(Closer::new(Arc::new(Bell::new().unwrap())));
        let (socket, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let line = Line::new(socket.into(), 7, &closer);
        // Whether it is open is seen by its lock, which goes with it.
        let shown = crate::memory::sealed(c"test", 4096).unwrap();
        let again = std::fs::File::open(format!("/proc/self/fd/{}", shown.as_raw_fd())).unwrap();
        let lock = |fd: &dyn AsRawFd| {
            // SAFETY: a call without memory.
            unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
        };
        assert!(lock(&shown) && !lock(&again));
        // All threads of that user have something else to do.
        let (end, ends) = channel::<()>();
        let ends = Arc::new(parking_lot::Mutex::new(ends));
        for _ in 0..64 {
            let ends = ends.clone();
            closer.run(7, move || {
                let _ = ends.lock().recv();
            });
        }
        drop(Memory::new(shown, (1, 1), &line));
        assert!(!lock(&again), "who dropped it has closed it");
        drop(end);
        let begun = Instant::now();
        while !lock(&again) {
            assert!(begun.elapsed() < Duration::from_secs(10), "nobody closes it");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(other);
    }
}
