//! Clients that send descriptors which take as long to close as they like: of connections that linger until the other side has taken everything, which it
//! never does.
//!
//! Verifies that the manager goes on with everybody else, and with what it does for that very client, and that it can be stopped. Files of file systems that the client
//! serves itself are not tried, as they need privileges; they are closed in the same places.

use crate::attacker::*;
use format::shared::*;
use fs::FileSystem;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use share::{Remote, Server, server::Options};
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Who has not answered by then has something else to do, however busy the machine is: nobody who answers needs so long.
const SILENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// How long closing one takes.
const LINGERS: Duration = Duration::from_secs(120);
/// What nobody needs who does not wait for that.
const SOON: Duration = Duration::from_secs(30);

/// Connections whose last close takes long, as long as their other sides are there.
#[derive(Default)]
struct Lingering(Vec<TcpStream>);

impl Lingering {
    fn one(&mut self) -> OwnedFd {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        self.0.push(listener.accept().unwrap().0);
        rustix::net::sockopt::set_socket_linger(&stream, Some(LINGERS)).unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 1 << 16]).is_ok() {}
        stream.into()
    }

    /// Sends a message with some, and keeps none. Whoever closes them last, which is usually the other side, waits: here that is a thread of its own.
    fn send(&mut self, socket: &OwnedFd, bytes: &[u8], count: usize) -> rustix::io::Result<()> {
        let fds: Vec<OwnedFd> = (0..count).map(|_| self.one()).collect();
        let (socket, bytes) = (socket.try_clone().unwrap(), bytes.to_vec());
        let done = Arc::new(OnceLock::new());
        let set = done.clone();
        std::thread::spawn(move || {
            let sent = {
                let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                send(&socket, &bytes, &borrowed)
            };
            let _ = set.set(sent);
            drop(socket);
            drop(fds);
        });
        loop {
            match done.get() {
                Some(sent) => return *sent,
                None => std::thread::yield_now(),
            }
        }
    }
}

fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(fds)));
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).map(drop)
}

/// A memory as clients show it.
fn memory() -> OwnedFd {
    let fd = rustix::fs::memfd_create(c"test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    fd
}

fn hello() -> Hello {
    Hello { magic: MAGIC.into(), version: VERSION.into(), ..Hello::new_zeroed() }
}

fn show() -> Show {
    Show { magic: MAGIC.into(), ..Show::new_zeroed() }
}

/// What the manager says to a memory that was shown: an errno and a number. `None`: nothing more comes.
fn shown(socket: &OwnedFd) -> Option<(i32, u64)> {
    let mut bytes = [0; size_of::<Shown>()];
    let (n, _) = rustix::net::recv(socket, &mut bytes, RecvFlags::empty()).ok()?;
    let shown = Shown::read_from_bytes(&bytes[..n]).ok()?;
    Some((shown.errno.get(), shown.number.get().into()))
}

/// Waits until this happens.
fn soon(what: &str, happens: impl Fn() -> bool) {
    let begun = Instant::now();
    while !happens() {
        assert!(begun.elapsed() < SOON, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The manager serves others, and did not wait for what takes so long.
fn goes_on(server: &Server, begun: Instant) {
    still_there(server);
    assert!(begun.elapsed() < SOON, "others wait until it is closed");
}

#[test]
fn before_there_is_a_session() {
    let (server, _dir) = server(Options::default());
    let (begun, mut lingering) = (Instant::now(), Lingering::default());
    let hello = hello();
    for leaves in [true, false] {
        // With the first message, with none, with what nobody reads any more.
        for case in 0..4 {
            let socket = connect(server.path());
            match case {
                0 => lingering.send(&socket, hello.as_bytes(), 1).unwrap(),
                1 => lingering.send(&socket, b"", 1).unwrap(),
                2 => lingering.send(&socket, b"garbage", 8).unwrap(),
                _ => {
                    send(&socket, b"", &[]).unwrap();
                    // Refused if that was read already.
                    let _ = lingering.send(&socket, b"behind it", 1);
                }
            }
            if leaves {
                drop(socket);
            } else {
                // It hears that it is not wanted, though its socket is not closed yet.
                let end = rustix::net::recv(&socket, &mut [0; 64], RecvFlags::empty());
                assert!(!matches!(end, Ok((1.., _))), "case {case}");
            }
            goes_on(&server, begun);
        }
    }
    server.stop();
    assert!(begun.elapsed() < SOON, "stopping waits until it is closed");
}

#[test]
fn in_a_session() {
    let (server, _dir) = server(Options::default());
    let (begun, mut lingering) = (Instant::now(), Lingering::default());
    let show = show();
    // What is no memory is refused; where that may take long the session goes on meanwhile.
    let attacker = Attacker::new(server.path());
    let file: OwnedFd = tempfile::tempfile().unwrap().into();
    for (fd, answer) in [(&memory(), (0, 1)), (&file, (libc::EINVAL, 0)), (&memory(), (0, 2))] {
        send(&attacker.socket, show.as_bytes(), &[fd.as_fd()]).unwrap();
        assert_eq!(shown(&attacker.socket), Some(answer));
    }
    lingering.send(&attacker.socket, show.as_bytes(), 1).unwrap();
    assert_eq!(shown(&attacker.socket), Some((libc::EINVAL, 0)));
    send(&attacker.socket, show.as_bytes(), &[memory().as_fd()]).unwrap();
    assert_eq!(shown(&attacker.socket), Some((0, 3)));
    assert_eq!(attacker.call(&request(1, 0)).errno.get(), 0);
    goes_on(&server, begun);
    // More than one descriptor, more than anybody receives, none, and no such message.
    for case in 0..5 {
        let attacker = Attacker::new(server.path());
        match case {
            0 => lingering.send(&attacker.socket, show.as_bytes(), 2).unwrap(),
            1 => lingering.send(&attacker.socket, show.as_bytes(), 8).unwrap(),
            2 => lingering.send(&attacker.socket, b"garbage", 1).unwrap(),
            3 => {
                send(&attacker.socket, show.as_bytes(), &[]).unwrap();
                let _ = lingering.send(&attacker.socket, show.as_bytes(), 1);
            }
            _ => {
                // The client is gone before anybody looks.
                for _ in 0..8 {
                    lingering.send(&attacker.socket, show.as_bytes(), 1).unwrap();
                }
            }
        }
        if matches!(case, 0 | 2 | 3) {
            assert_eq!(shown(&attacker.socket), None, "case {case}: the session ends");
        }
        goes_on(&server, begun);
        drop(attacker);
        goes_on(&server, begun);
    }
    soon("sessions of clients that are gone stay", || {
        still_there(&server);
        server.counters().sessions <= 2
    });
    drop(attacker);
    server.stop();
    assert!(begun.elapsed() < SOON, "stopping waits until it is closed");
}

/// Who is refused may bring something, too; and how much waits to be closed is bounded.
#[test]
fn where_there_is_no_room() {
    const MOST: usize = 12;
    let (server, _dir) = server(Options { sessions_max: MOST, ..Options::default() });
    let (begun, mut lingering) = (Instant::now(), Lingering::default());
    let client = Remote::connect(server.path()).unwrap();
    let hello = hello();
    let mut waiting = Vec::new();
    for _ in 0..3 * MOST {
        let socket = connect(server.path());
        if lingering.send(&socket, hello.as_bytes(), 1).is_ok() {
            waiting.push(socket);
        }
        client.block_on(client.ping()).unwrap();
        assert!(begun.elapsed() < SOON, "a session waits until it is closed");
    }
    // As soon as these are gone others come in.
    drop(waiting);
    drop(lingering);
    soon("nobody comes in again", || Remote::connect(server.path()).is_ok());
    goes_on(&server, begun);
    // Sessions that end before anybody comes to look at what they have sent, as all who could have something else to close.
    let mut lingering = Lingering::default();
    let show = show();
    loop {
        let attacker = Attacker::new(server.path());
        lingering.send(&attacker.socket, show.as_bytes(), 1).unwrap();
        // Until nobody answers, as all of them wait. Not all do who have taken one: we may have closed it last.
        let mut answer = [PollFd::new(&attacker.socket, PollFlags::IN)];
        if rustix::event::poll(&mut answer, Some(&SILENCE)).unwrap() == 0 {
            break;
        }
    }
    let memory = memory();
    let mut welcome = 0;
    for _ in 0..3 * MOST {
        let socket = connect(server.path());
        // The manager refuses us as soon as we knock, perhaps before we have spoken: the answer is then behind the news that it did not listen.
        let heard = send(&socket, hello.as_bytes(), &[]);
        assert!(matches!(heard, Ok(()) | Err(Errno::PIPE)), "{heard:?}");
        let mut bytes = [0; size_of::<Welcome>()];
        let mut answer = || rustix::net::recv(&socket, &mut bytes, RecvFlags::empty());
        let (n, _) = match answer() {
            Err(Errno::CONNRESET) => answer(),
            answer => answer,
        }
        .unwrap();
        if Welcome::read_from_bytes(&bytes[..n]).unwrap().errno.get() == 0 {
            welcome += 1;
            send(&socket, show.as_bytes(), &[memory.as_fd()]).unwrap();
        }
    }
    assert!((1..MOST).contains(&welcome), "{welcome} sockets wait to be closed");
    drop(lingering);
    soon("nobody comes in again", || Remote::connect(server.path()).is_ok());
    // And some that the manager does not come to look at before it ends.
    let mut lingering = Lingering::default();
    for _ in 0..MOST {
        let _ = lingering.send(&connect(server.path()), hello.as_bytes(), 1);
    }
    server.stop();
    assert!(begun.elapsed() < SOON, "stopping waits until it is closed");
}
