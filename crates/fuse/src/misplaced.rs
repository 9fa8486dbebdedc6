//! Appended bytes that the kernel has put in the wrong place. It takes them for the end of the file as it knows it, keeps them in its pages there, and sends them on; the
//! engine puts them where the end is, which another door may have moved. So the kernel is told to drop the pages of such a file.
//!
//! Telling it waits for pages that are being read or written, and the write in question holds its own until it is answered. So a thread does it that no request
//! needs, and for an instant after the answer the bytes can be seen in the wrong place. Past the pages (FOPEN_DIRECT_IO) they would never be
//! there, but then readers who fill a page from the end of the file meanwhile keep zeros in place of what was appended, without another door too.
//!
//! Tested by crates/freehold/tests/run_more.rs.

use crate::device::Notifier;
use fs::Ino;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;

/// See the module. The thread ends when this is dropped.
pub struct Misplaced(Sender<Ino>);

impl Misplaced {
    /// Starts the thread.
    pub fn start(notifier: Notifier) -> io::Result<Misplaced> {
        let (send, receive) = channel();
        Builder::new().name("fuse-misplaced".into()).spawn(move || {
            for ino in receive {
                // Without a mount nobody keeps anything.
                if let Err(e) = notifier.data(ino, 0, u64::MAX) {
                    tracing::debug!(error = %e, "the kernel did not drop pages");
                }
            }
        })?;
        Ok(Misplaced(send))
    }

    /// Something was appended to this file elsewhere than the kernel believes.
    pub fn tell(&self, ino: Ino) {
        // The thread lives as long as this does.
        let _ = self.0.send(ino);
    }
}
