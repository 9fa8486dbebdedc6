//! The Unix socket over which a session begins: messages with descriptors, and who is on the other side, as the kernel says.

use fs::Cred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Most descriptors of one message.
const FDS_MAX: usize = 4;

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// A socket at `path` to which clients connect. A file left there by a manager that is gone is removed.
pub(crate) fn listen(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let listener = socket()?;
    rustix::io::ioctl_fionbio(&listener, true)?;
    match rustix::net::bind(&listener, &address) {
        Err(rustix::io::Errno::ADDRINUSE) => {
            if rustix::net::connect(socket()?, &address).is_ok() {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "another manager serves there"));
            }
            std::fs::remove_file(path)?;
            rustix::net::bind(&listener, &address)?;
        }
        bound => bound?,
    }
    // Everybody may connect: what a client may do is decided by its credentials.
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
    rustix::net::listen(&listener, 1024)?;
    Ok(listener)
}

/// A connection to the manager at `path`.
pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// As [`connect`], without waiting for room in the manager's queue (`WouldBlock`); nor does the connection wait for anything.
pub(crate) fn connect_now(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// The next connection, if there is one. It does not block either.
pub(crate) fn accept(listener: impl AsFd) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match rustix::net::accept_with(listener, flags) {
        Ok(socket) => Ok(Some(socket)),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::CONNABORTED) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// The process at the other end, as the kernel reports it. It has the number 0 when this one does not see it, as one in another PID namespace may.
pub(crate) fn process(socket: impl AsFd) -> io::Result<libc::ucred> {
    let mut process = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are to a ucred and its length, which live during the call.
    let got = unsafe {
        let to = (&raw mut process).cast();
        libc::getsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut len)
    };
    if got == 0 { Ok(process) } else { Err(io::Error::last_os_error()) }
}

/// The process at the other end: its number, and the credentials it had when it connected.
pub(crate) fn peer(socket: impl AsFd) -> io::Result<(i32, Cred)> {
    let peer = process(&socket)?;
    let mut groups = vec![0u32; 64];
    loop {
        let mut len = (groups.len() * 4) as libc::socklen_t;
        // SAFETY: the buffer has `len` bytes, and the kernel writes no more than that.
        let got = unsafe {
            let to = groups.as_mut_ptr().cast();
            libc::getsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERGROUPS, to, &mut len)
        };
        let needed = len as usize / 4;
        match got {
            0 => {
                groups.truncate(needed);
                break;
            }
            _ if io::Error::last_os_error().raw_os_error() == Some(libc::ERANGE) && needed > groups.len() => {
                groups.resize(needed, 0)
            }
            _ => return Err(io::Error::last_os_error()),
        }
    }
    Ok((peer.pid, Cred::user(peer.uid, peer.gid, &groups)))
}

/// Sends a message with descriptors. Does not wait for room.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(fds.len() <= FDS_MAX);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// What stands first in a socket. Nobody gets any of its descriptors by looking.
pub(crate) struct Head {
    /// Bytes, as many of them as there was room for; 0 also when the other side is gone.
    pub len: usize,
    /// Descriptors come with it.
    pub brings: bool,
}

/// Looks at the message that stands first, without taking it.
///
/// # Errors
/// `WouldBlock`: there is none.
pub(crate) fn head(socket: impl AsFd, to: &mut [u8]) -> io::Result<Head> {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    // Without room for descriptors the kernel says that something is left out, and what waits in the socket stays open there.
    let got = loop {
        let mut none = RecvAncillaryBuffer::default();
        match rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(to)], &mut none, flags) {
            Err(rustix::io::Errno::INTR) => {}
            got => break got?,
        }
    };
    Ok(Head { len: got.bytes, brings: got.flags.contains(rustix::net::ReturnFlags::CTRUNC) })
}

/// Takes the message that stands first and throws it away.
pub(crate) fn skip(socket: impl AsFd) {
    let _ = rustix::net::recv(socket, &mut [0; 1], RecvFlags::DONTWAIT);
}

/// Messages without descriptors that are thrown away where a socket is closed.
const SKIPPED_MAX: usize = 64;

/// The other side can send nothing more. Whether nothing is left that has descriptors: then closing the socket closes nothing else.
pub(crate) fn brings_nothing(socket: &OwnedFd) -> bool {
    let ends = rustix::net::shutdown(socket, rustix::net::Shutdown::Read);
    // With each message, be it empty, come credentials from now on; with the end of all messages none.
    let names = rustix::net::sockopt::set_socket_passcred(socket, true);
    if ends.is_err() || names.is_err() {
        return false;
    }
    for _ in 0..SKIPPED_MAX {
        match stands_first(socket) {
            First::Nothing => return true,
            First::Plain => skip(socket),
            First::Brings => return false,
        }
    }
    false
}

enum First {
    Nothing,
    /// A message without descriptors.
    Plain,
    Brings,
}

/// What stands first in a socket that wants credentials.
fn stands_first(socket: &OwnedFd) -> First {
    // Room for credentials, and no descriptor behind them.
    const ROOM: usize = 32;
    // SAFETY: a function of a number alone.
    const { assert!(ROOM == unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) } as usize) };
    let (mut byte, mut control) = ([0u8; 1], [0u64; ROOM / 8]);
    let mut place = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: all zeros is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut place, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), ROOM as _);
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the message says where there is room, and how much, for as long as the call lasts.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    match (got, message.msg_flags & libc::MSG_CTRUNC, message.msg_controllen) {
        (0.., 0, 0) => First::Nothing,
        (0.., 0, _) => First::Plain,
        (0.., ..) => First::Brings,
        _ if io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock => First::Nothing,
        // As if there were something.
        _ => First::Brings,
    }
}

/// Receives a message and its descriptors. 0 bytes: the other side is gone.
///
/// # Errors
/// `EMFILE` when this process can have no more descriptors, and so did not get all that came.
pub(crate) fn receive(socket: impl AsFd, to: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match rustix::net::recvmsg(
            &socket,
            &mut [IoSliceMut::new(to)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(rustix::io::Errno::INTR) => {}
            got => break got?,
        }
    };
    if got.flags.contains(rustix::net::ReturnFlags::CTRUNC) {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            fds.extend(more);
        }
    }
    Ok((got.bytes, fds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_in_a_socket_is_seen_without_taking_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = listen(&path).unwrap();
        let pair = || {
            let client = connect(&path).unwrap();
            (client, accept(&listener).unwrap().unwrap())
        };
        let memory = crate::memory::sealed(c"test", 4096).unwrap();
        let sent: &[(&[u8], bool)] = &[(b"plain", false), (b"", false), (b"x", true), (b"", true)];
        for &(bytes, brings) in sent {
            let (client, server) = pair();
            let fds = [memory.as_fd()];
            let mut to = [0; 16];
            assert_eq!(head(&server, &mut to).err().unwrap().kind(), io::ErrorKind::WouldBlock);
            send(&client, bytes, if brings { &fds } else { &[] }).unwrap();
            for _ in 0..2 {
                let seen = head(&server, &mut to).unwrap();
                assert_eq!((&to[..seen.len], seen.brings), (bytes, brings));
            }
            send(&client, b"second", &fds).unwrap();
            assert!(!brings_nothing(&server), "behind {bytes:?}");
            assert!(send(&client, b"third", &[]).is_err());
            // It is all there still, but for what has no descriptors.
            rustix::net::sockopt::set_socket_passcred(&server, false).unwrap();
            let (n, fds) = receive(&server, &mut to).unwrap();
            assert_eq!((n, fds.len()), (if brings { bytes.len() } else { 6 }, 1));
        }
        for leaves in [false, true] {
            let (client, server) = pair();
            for bytes in [b"plain", &b""[..], b"more"] {
                send(&client, bytes, &[]).unwrap();
            }
            let client = (!leaves).then_some(client);
            assert!(brings_nothing(&server));
            assert!(brings_nothing(&server), "and after that, {leaves}");
            drop(client);
        }
        let (client, server) = pair();
        (0..2 * SKIPPED_MAX).for_each(|_| send(&client, b"", &[]).unwrap());
        assert!(!brings_nothing(&server), "nobody looks at so much");
    }

    #[test]
    fn descriptors_and_credentials() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = listen(&path).unwrap();
        assert!(accept(&listener).unwrap().is_none());
        let client = connect(&path).unwrap();
        let server = accept(&listener).unwrap().unwrap();
        let (pid, cred) = peer(&server).unwrap();
        assert_eq!((pid as u32, cred), (std::process::id(), Cred::of_process()));
        let memory = crate::memory::sealed(c"test", 4096).unwrap();
        send(&server, b"hello", &[memory.as_fd()]).unwrap();
        let mut bytes = [0; 16];
        let (n, fds) = receive(&client, &mut bytes).unwrap();
        assert_eq!((&bytes[..n], fds.len()), (&b"hello"[..], 1));
        assert_eq!(rustix::fs::fstat(&fds[0]).unwrap().st_size, 4096);
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop((listener, client, server));
        listen(&path).expect("what a dead manager left is replaced");
    }
}
