//! A client that does not keep to the rules, without the client's code: raw memory and a raw socket.

use format::shared::*;
use fs::{Client, Cred};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketType,
};
use share::{Remote, Server, server::Options};
use sim::{HandClock, Model};
use std::io::IoSliceMut;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// A session in the hands of an attacker.
pub struct Attacker {
    pub base: *mut u8,
    pub memory: OwnedFd,
    event: OwnedFd,
    pub changes: OwnedFd,
    pub arena: OwnedFd,
    pub socket: OwnedFd,
}

pub fn connect(path: &Path) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

impl Attacker {
    pub fn new(path: &Path) -> Attacker {
        let socket = connect(path);
        let hello = Hello { magic: MAGIC.into(), version: VERSION.into(), ..Hello::new_zeroed() };
        rustix::net::send(&socket, hello.as_bytes(), SendFlags::empty()).unwrap();
        let mut bytes = [0; 64];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let to = &mut [IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(&socket, to, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
        let mut fds = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                fds.extend(more);
            }
        }
        let [memory, event, changes, arena] = <[OwnedFd; 4]>::try_from(fds).unwrap();
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), SESSION_BYTES, prot, MapFlags::SHARED, &memory, 0).unwrap()
        };
        Attacker { base: base.cast(), memory, event, changes, arena, socket }
    }

    pub fn bytes(&self, at: usize, from: &[u8]) {
        assert!(at + from.len() <= SESSION_BYTES);
        // SAFETY: within the mapping; the server copies whatever stands there.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.base.add(at), from.len()) }
    }
    pub fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: within the mapping, aligned.
        unsafe { AtomicU32::from_ptr(self.base.add(at).cast()) }
    }
    pub fn long(&self, at: usize) -> &AtomicU64 {
        // SAFETY: within the mapping, aligned.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }
    pub fn slot(slot: usize) -> usize {
        size_of::<SessionHeader>() + slot * size_of::<SlotHeader>()
    }
    pub fn ring(&self, bits: u64) {
        self.long(offset_of!(SessionHeader, doorbell)).fetch_or(bits, Ordering::SeqCst);
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
    pub fn post(&self, slot: usize, request: &Request) {
        self.bytes(Self::slot(slot) + offset_of!(SlotHeader, message), request.as_bytes());
        self.word(Self::slot(slot)).store(state::POSTED, Ordering::SeqCst);
        self.ring(1 << slot);
    }
    /// Has something stand in a slot as a posted request, without its bit.
    pub fn stand(&self, slot: usize, r: &Request) {
        let at = Self::slot(slot);
        self.bytes(at + offset_of!(SlotHeader, message), zerocopy::IntoBytes::as_bytes(r));
        self.word(at).store(state::POSTED, Ordering::SeqCst);
    }
    /// Posts one way what stands in slots.
    pub fn send(&self, bits: u64) {
        self.long(offset_of!(SessionHeader, one_way)).fetch_or(bits, Ordering::SeqCst);
        self.ring(0);
    }
    /// Posts something one way, and says what became of it.
    pub fn posted(&self, r: &Request) -> i32 {
        self.stand(3, r);
        self.send(1 << 3);
        self.reply(3).errno.get()
    }
    pub fn reply(&self, slot: usize) -> Reply {
        let begun = Instant::now();
        while self.word(Self::slot(slot)).load(Ordering::SeqCst) != state::DONE {
            assert!(begun.elapsed() < Duration::from_secs(5), "no answer");
            std::thread::yield_now();
        }
        let mut bytes = [0; 64];
        let from = Self::slot(slot) + offset_of!(SlotHeader, message);
        // SAFETY: within the mapping.
        unsafe { std::ptr::copy_nonoverlapping(self.base.add(from), bytes.as_mut_ptr(), 64) }
        Reply::read_from_bytes(&bytes).unwrap()
    }
    pub fn call(&self, request: &Request) -> Reply {
        self.post(0, request);
        self.reply(0)
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours.
        unsafe {
            let _ = rustix::mm::munmap(self.base.cast(), SESSION_BYTES);
        }
    }
}

pub fn server(options: Options) -> (Server, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let model = Arc::new(Model::new(HandClock::default().clock()));
    let server = Server::start(model, &dir.path().join("socket"), options).unwrap();
    (server, dir)
}

/// The server serves somebody who behaves.
pub fn still_there(server: &Server) {
    let fs = Client::new(Arc::new(Remote::connect(server.path()).unwrap()), Cred::root()).blocking();
    fs.write("/still", b"there").unwrap();
    assert_eq!(fs.read("/still").unwrap(), b"there");
}

pub fn request(op: u16, object: u64) -> Request {
    Request { op: op.into(), object: object.into(), ..Request::new_zeroed() }
}

pub const OPEN: u16 = 15;
pub const READ: u16 = 18;
pub const WRITE: u16 = 19;
pub const RELEASE: u16 = 21;
pub const SETXATTR: u16 = 30;
pub const WAS_READ: u16 = 51;
pub const PIN: u16 = 53;
pub const UNPIN: u16 = 54;
/// One more than the number of the last call.
pub const OPS: u16 = 56;
/// Flag of a call that opens its file first.
pub const OPENS: u32 = 4;
