//! The control socket of a served volume: whoever connects and has nothing to say is told its [`Snapshot`] as JSON. What can be said is
//! `evict SESSION`, which ends a session by force; the answer is `yes` or `no`. And `inspect`: what the volume's NVMe controller tells of
//! itself ([`Facts`]), or why that cannot be had, as JSON.
//!
//! It is a Unix socket in the abstract namespace, beside the one on which [`crate::service::Watch`] waits, and named after the image in
//! the same way. Only the user who serves the volume, and root, are answered (SO_PEERCRED): the names of programs and what
//! they do are nobody else's business. In turn [`ask`] believes only root and its own user, because anybody may take a name that is
//! free. Who has been let in and then says nothing, without an end, is waited for as long as `PATIENCE`.
//!
//! Tested in `tests/observe.rs`.

use crate::device::Facts;
use crate::observe::{Observed, Snapshot};
use crate::service::{address, is_trusted, peer_uid};
use std::io::{self, Read, Write};
use std::net::Shutdown;
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
/// Longest question, bytes.
const QUESTION_MAX: u64 = 64;

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
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut question = String::new();
    (&stream).take(QUESTION_MAX).read_to_string(&mut question)?;
    let Some(observed) = observed.upgrade() else { return Ok(()) };
    let text = match question.trim_end().split_once(' ') {
        _ if question.is_empty() => serde_json::to_vec(&observed.snapshot())?,
        None if question.trim_end() == "inspect" => serde_json::to_vec(&observed.inspect())?,
        Some(("evict", session)) => {
            let done = session.parse().is_ok_and(|session| observed.evict(session));
            if done { "yes" } else { "no" }.into()
        }
        _ => return Ok(()),
    };
    drop(observed);
    stream.write_all(&text)
}

/// Asks whoever serves the volume in `image`.
///
/// # Errors
/// `ConnectionRefused` when nobody serves it (or does so in another network namespace); `PermissionDenied` when it is served by
/// another user, who then does not answer, or must not be believed; `InvalidData` when another version of Freehold answers.
pub fn ask(image: &Path) -> io::Result<Snapshot> {
    let text = talk(image, "")?;
    serde_json::from_slice(&text).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Has whoever serves the volume in `image` end a session by force: its calls fail, and its handles and locks are given back. False when there is
/// no session of this number.
///
/// # Errors
/// As [`ask`].
pub fn evict(image: &Path, session: u64) -> io::Result<bool> {
    match &talk(image, &format!("evict {session}\n"))?[..] {
        b"yes" => Ok(true),
        b"no" => Ok(false),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it does not understand")),
    }
}

/// Has whoever serves a volume on an NVMe controller ask that controller. `Ok(Err)`: why it could not.
///
/// # Errors
/// As [`ask`].
pub fn inspect(image: &Path) -> io::Result<Result<Facts, String>> {
    let text = talk(image, "inspect\n")?;
    serde_json::from_slice(&text).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

fn talk(image: &Path, question: &str) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect_addr(&address(image, SUFFIX)?)?;
    if !is_trusted(peer_uid(&stream)?) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    // Who does not let us in closes at once, perhaps before we have spoken.
    let said = stream.write_all(question.as_bytes()).and_then(|()| stream.shutdown(Shutdown::Write));
    if let Err(e) = said {
        let closed = matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::NotConnected);
        return Err(if closed { io::ErrorKind::PermissionDenied.into() } else { e });
    }
    let mut text = Vec::new();
    match stream.take(ANSWER_MAX).read_to_end(&mut text) {
        Err(e) if e.kind() != io::ErrorKind::ConnectionReset => return Err(e),
        _ if text.is_empty() => return Err(io::ErrorKind::PermissionDenied.into()),
        _ => {}
    }
    Ok(text)
}
