//! Whether managers answer, without beginning sessions with them: that would cost each of them memory and this process its mappings.
//!
//! Who knocks says hello in a version that nobody speaks. A manager refuses that with its own version, makes nothing and forgets us; one that would
//! refuse this user says so as always. All are asked at once, so that one that hangs costs the others nothing, and itself little.
//!
//! Tested in `freehold/tests/several.rs`.

use crate::socket;
use format::shared::{Hello, MAGIC, VERSION, Welcome};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// For an answer from anybody.
const PATIENCE: Duration = Duration::from_millis(50);
/// For one from a manager whose process is not stopped: the machine may be busy.
const PATIENCE_MAX: Duration = Duration::from_millis(500);
/// The version of nobody.
const NONE: u32 = 0;
const _: () = assert!(VERSION != NONE);

/// Whether somebody listens at a socket, as far as this user can know. Nobody needs to answer for that.
pub fn is_open(socket: &Path) -> bool {
    match socket::connect_now(socket) {
        Ok(_) => true,
        Err(e) => !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused),
    }
}

/// Whether the manager at each of `sockets` would begin a session with this process.
///
/// Errors as of [`crate::Remote::connect`], and `TimedOut` when it does not answer.
pub(crate) fn knock(sockets: &[PathBuf]) -> Vec<io::Result<()>> {
    let unknown = || Err(io::Error::from_raw_os_error(libc::EMFILE));
    let mut answers: Vec<io::Result<()>> = sockets.iter().map(|_| unknown()).collect();
    let mut todo: Vec<usize> = (0..sockets.len()).collect();
    while !todo.is_empty() {
        let asked = todo.len();
        let mut waiting = Vec::new();
        // With few descriptors it takes several rounds.
        todo.retain(|&i| match hello(&sockets[i]) {
            Err(e) if e.raw_os_error() == Some(libc::EMFILE) => true,
            Err(e) => {
                answers[i] = Err(e);
                false
            }
            Ok(socket) => {
                waiting.push((i, socket));
                false
            }
        });
        if todo.len() == asked {
            break;
        }
        hear(waiting, &mut answers);
    }
    answers
}

fn hello(path: &Path) -> io::Result<OwnedFd> {
    let socket = match socket::connect_now(path) {
        // Its queue is full.
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
        connected => connected?,
    };
    let hello = Hello { magic: MAGIC.into(), version: NONE.into(), ..Hello::new_zeroed() };
    match socket::send(&socket, hello.as_bytes(), &[]) {
        // Who refuses us before we have spoken has said so.
        Err(e) if !matches!(e.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET)) => Err(e),
        _ => Ok(socket),
    }
}

fn hear(mut waiting: Vec<(usize, OwnedFd)>, answers: &mut [io::Result<()>]) {
    let begun = Instant::now();
    let mut until = PATIENCE;
    while !waiting.is_empty() {
        let left = until.saturating_sub(begun.elapsed());
        if left.is_zero() {
            if until == PATIENCE {
                until = PATIENCE_MAX;
                let is_stopped = |(_, socket): &mut (usize, OwnedFd)| is_stopped(socket);
                waiting.extract_if(.., is_stopped).for_each(|(i, _)| answers[i] = Err(silent()));
            } else {
                waiting.drain(..).for_each(|(i, _)| answers[i] = Err(silent()));
            }
            continue;
        }
        let time = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        let mut polled: Vec<PollFd<'_>> =
            waiting.iter().map(|(_, socket)| PollFd::new(socket, PollFlags::IN)).collect();
        if poll(&mut polled, Some(&time)).is_err() {
            continue;
        }
        let mut ready = polled.iter().map(|p| !p.revents().is_empty()).collect::<Vec<_>>().into_iter();
        drop(polled);
        for (i, socket) in waiting.extract_if(.., |_| ready.next().unwrap_or(false)) {
            answers[i] = answer(&socket);
        }
    }
}

fn silent() -> io::Error {
    io::ErrorKind::TimedOut.into()
}

fn answer(socket: &OwnedFd) -> io::Result<()> {
    let wrong = |why| io::Error::new(io::ErrorKind::InvalidData, why);
    let mut bytes = [0; size_of::<Welcome>()];
    let (n, _) = match socket::receive(socket, &mut bytes) {
        // Behind the news that it did not listen is what it said.
        Err(e) if e.raw_os_error() == Some(libc::ECONNRESET) => socket::receive(socket, &mut bytes)?,
        received => received?,
    };
    let welcome = Welcome::read_from_bytes(&bytes[..n]).map_err(|_| wrong("no manager answers there"))?;
    match welcome.errno.get() {
        libc::EMFILE => Err(io::Error::other("its server has as many sessions as it takes")),
        errno if errno != 0 && errno != libc::EPROTONOSUPPORT => Err(io::Error::from_raw_os_error(errno)),
        _ if welcome.magic.get() != MAGIC || welcome.version.get() != VERSION => {
            Err(wrong("the manager speaks another language"))
        }
        _ => Ok(()),
    }
}

/// Whether the process at the other end was stopped, as far as can be seen.
fn is_stopped(socket: &OwnedFd) -> bool {
    let Ok(peer) = socket::process(socket) else { return false };
    let stat = std::fs::read(format!("/proc/{}/stat", peer.pid)).unwrap_or_default();
    // "4711 (name) S ...", where the name may hold anything.
    let state = stat.iter().rposition(|&b| b == b')').and_then(|at| stat.get(at + 2));
    matches!(state, Some(b'T' | b't'))
}
