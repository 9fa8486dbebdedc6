//! The control socket of a served volume: whoever connects is told its [`Snapshot`] as JSON, and that is all.
//!
//! It is a Unix socket in the abstract namespace, beside the one on which [`crate::service::Watch`] waits, and named after the image in
//! the same way. Only the user who serves the volume, and root, are answered (SO_PEERCRED): the names of programs and what
//! they do are nobody else's business. In turn [`ask`] believes only root and its own user, because anybody may take a name that is
//! free. Nothing that the other side sends is read.
//!
//! Tested in `tests/observe.rs`.

use crate::observe::{Observed, Snapshot};
use crate::service::{address, peer_uid};
use std::io::{self, Read, Write};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// What the name of the socket ends with.
const SUFFIX: &str = "-control";
/// How long one side waits for the other.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer that is taken in, bytes: 4096 sessions need about a megabyte.
const ANSWER_MAX: u64 = 16 << 20;

/// Answers until it is dropped.
pub(crate) struct Control {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Answers for the volume in `image`, on a thread that sleeps until somebody asks.
    pub fn open(image: &Path, observed: Weak<Observed>) -> io::Result<Control> {
        let address = address(image, SUFFIX)?;
        let listener = UnixListener::bind_addr(&address)?;
        let over = Arc::<AtomicBool>::default();
        let stop = over.clone();
        let thread = std::thread::Builder::new().name("freehold-control".into()).spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                let answered = stream.and_then(|stream| answer(stream, &observed));
                if let Err(e) = answered {
                    tracing::debug!("control socket: {e}");
                    // Out of descriptors, perhaps: no hurry then.
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        })?;
        Ok(Control { address, over, thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        // Wakes the thread, which then lets go of the name.
        let woken = UnixStream::connect_addr(&self.address);
        if let Some(thread) = self.thread.take().filter(|_| woken.is_ok()) {
            let _ = thread.join();
        }
    }
}

fn answer(mut stream: UnixStream, observed: &Weak<Observed>) -> io::Result<()> {
    if !is_trusted(peer_uid(&stream)?) {
        return Ok(());
    }
    let Some(observed) = observed.upgrade() else { return Ok(()) };
    stream.set_write_timeout(Some(PATIENCE))?;
    let text = serde_json::to_vec(&observed.snapshot())?;
    drop(observed);
    stream.write_all(&text)
}

/// Root, and the user of this process.
fn is_trusted(uid: u32) -> bool {
    // SAFETY: geteuid has no preconditions.
    uid == 0 || uid == unsafe { libc::geteuid() }
}

/// Asks whoever serves the volume in `image`.
///
/// # Errors
/// `ConnectionRefused` when nobody serves it (or does so in another network namespace); `PermissionDenied` when it is served by
/// another user, who then does not answer, or must not be believed; `InvalidData` when another version of Freehold answers.
pub fn ask(image: &Path) -> io::Result<Snapshot> {
    let stream = UnixStream::connect_addr(&address(image, SUFFIX)?)?;
    if !is_trusted(peer_uid(&stream)?) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = Vec::new();
    match stream.take(ANSWER_MAX).read_to_end(&mut text) {
        Err(e) if e.kind() != io::ErrorKind::ConnectionReset => return Err(e),
        _ if text.is_empty() => return Err(io::ErrorKind::PermissionDenied.into()),
        _ => {}
    }
    serde_json::from_slice(&text).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}
