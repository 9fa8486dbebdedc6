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

/// The process at the other end: its number, and the credentials it had when it connected.
pub(crate) fn peer(socket: impl AsFd) -> io::Result<(i32, Cred)> {
    let peer = rustix::net::sockopt::socket_peercred(&socket)?;
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
    Ok((peer.pid.as_raw_nonzero().get(), Cred::user(peer.uid.as_raw(), peer.gid.as_raw(), &groups)))
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
