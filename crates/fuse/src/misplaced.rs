//! Appended bytes that the kernel has put in the wrong place. It takes them for the end of the file as it knows it, keeps them in its pages there, and sends them on; the
//! engine puts them where the end is, which another door may have moved. So the kernel is told to drop the pages of such a file.
//!
//! Telling it waits for pages that are being read or written, so a thread does it that no request needs. A write that went past the pages is answered
//! when that is done. One that went through them holds them until it is answered: for an instant after that they can be seen. The kernel
//! is asked for such writes only of files that were not opened to append, but came to it by fcntl(F_SETFL), or that it could not map otherwise (`Door::appends_past`).
//!
//! Tested by crates/freehold/tests/run_more.rs.

use crate::device::Notifier;
use fs::Ino;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::task::{Poll, Waker};
use std::thread::Builder;

/// Whether it is done, and who waits for that.
type Told = Arc<Mutex<(bool, Option<Waker>)>>;

/// See the module. The thread ends when this is dropped.
pub struct Misplaced(Sender<(Ino, Told)>);

impl Misplaced {
    /// Starts the thread.
    pub fn start(notifier: Notifier) -> io::Result<Misplaced> {
        let (send, receive) = channel::<(Ino, Told)>();
        Builder::new().name("fuse-misplaced".into()).spawn(move || {
            for (ino, told) in receive {
                // Without a mount nobody keeps anything.
                if let Err(e) = notifier.data(ino, 0, u64::MAX) {
                    tracing::debug!(error = %e, "the kernel did not drop pages");
                }
                let waiting = {
                    let mut told = told.lock();
                    told.0 = true;
                    told.1.take()
                };
                waiting.into_iter().for_each(Waker::wake);
            }
        })?;
        Ok(Misplaced(send))
    }

    /// Something was appended to this file elsewhere than the kernel believes. What is returned need not be waited for.
    pub fn tell(&self, ino: Ino) -> impl Future<Output = ()> + Send + use<> {
        let told = Told::default();
        let sent = self.0.send((ino, told.clone())).is_ok();
        poll_fn(move |cx| {
            let mut told = told.lock();
            if told.0 || !sent {
                return Poll::Ready(());
            }
            told.1 = Some(cx.waker().clone());
            Poll::Pending
        })
    }
}
