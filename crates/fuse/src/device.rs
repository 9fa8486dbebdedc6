//! Transport: a descriptor of `/dev/fuse`, the buffers requests are read into, and replies.
//!
//! A [`Buffer`] holds one request and later its reply's data. Requests are read at [`REQUEST_AT`], so that the
//! data of a WRITE begin at [`DATA_AT`], a page boundary, without being moved. Reply data are put at [`DATA_AT`] too.
//!
//! A [`Reply`] answers exactly once: sending consumes it, and when it is dropped unsent (a panic) it answers `EIO`.
//! A request must be answered through the descriptor from which it was read, so each reply knows its [`Device`].
//!
//! Replies are copied by the kernel (writev): from the buffer, or for larger reads from memory that the engine lends. Splice would need pages
//! that nobody changes afterwards, and a loan ends when the reply has been sent.

use crate::abi::{self, InHeader, OutHeader};
use crate::known::Known;
use fs::Pages;
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// How long an answer that the kernel was given may take to be taken in, on a busy machine.
const ON_ITS_WAY: Duration = Duration::from_millis(100);

/// Most pieces that one writev(2) takes (UIO_MAXIOV).
const SLICES_MAX: usize = 1024;

/// Where data of writes and of replies stand in a buffer.
pub const DATA_AT: usize = 4096;
/// Where a request is read to: its header and the body of WRITE end at [`DATA_AT`].
pub const REQUEST_AT: usize = DATA_AT - size_of::<InHeader>() - size_of::<abi::WriteIn>();

/// Page-aligned memory for one request. Always initialised (anonymous mapping), touched only as far as it is used.
pub struct Buffer {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a Buffer owns its mapping and gives access through & and &mut only.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Memory for transfers of `max_transfer` bytes.
    pub fn new(max_transfer: usize) -> io::Result<Buffer> {
        let len = DATA_AT + max_transfer.next_multiple_of(4096);
        // SAFETY: a fresh private anonymous mapping; no existing memory is touched.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Buffer { at: NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mmap returned 0"))?, len })
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is `len` bytes long, readable, initialised, and lives as long as self.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in deref, and &mut self is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in new with this address and length, and nothing borrows from it any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// Buffers that are not in use. Tasks that wait keep theirs, so as many exist as requests are on the way; at most
/// [`BufferPool::KEPT`] outlive them.
pub struct BufferPool {
    max_transfer: usize,
    free: Mutex<Vec<Buffer>>,
}

impl BufferPool {
    const KEPT: usize = 64;

    /// A pool of buffers for transfers of `max_transfer` bytes.
    pub fn new(max_transfer: usize) -> BufferPool {
        BufferPool { max_transfer, free: Mutex::new(Vec::new()) }
    }
    /// A buffer with any contents.
    pub fn take(&self) -> io::Result<Buffer> {
        let free = self.free.lock().pop();
        free.map_or_else(|| Buffer::new(self.max_transfer), Ok)
    }
    /// Gives one back.
    pub fn put(&self, buffer: Buffer) {
        let mut free = self.free.lock();
        if free.len() < Self::KEPT {
            free.push(buffer);
        }
    }
}

/// One descriptor of a FUSE mount.
pub struct Device(File);

impl Device {
    /// Takes a descriptor of `/dev/fuse` that is or will be mounted.
    pub fn new(file: File) -> Device {
        Device(file)
    }
    /// Another descriptor of the same mount, with a request queue lock of its own.
    pub fn duplicate(&self) -> io::Result<Device> {
        let other = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        let source = self.0.as_raw_fd() as u32;
        // SAFETY: the ioctl reads one u32 from the pointer, which is valid; both descriptors are open.
        let rc = unsafe { libc::ioctl(other.as_raw_fd(), abi::DEV_IOC_CLONE as _, &source) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(Device(other)) }
    }
    /// Another descriptor of the same mount, for [`Device::look`].
    pub fn duplicate_without_waiting(&self) -> io::Result<Device> {
        let other = self.duplicate()?;
        let on: libc::c_int = 1;
        // SAFETY: the ioctl reads one int from the pointer, which is valid; the descriptor is open.
        let rc = unsafe { libc::ioctl(other.0.as_raw_fd(), libc::FIONBIO, &on) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(other) }
    }
    /// Reads a request if there is one. `Ready(None)` when the mount is gone. For descriptors that do not wait.
    pub fn look(&self, buffer: &mut Buffer) -> io::Result<Poll<Option<usize>>> {
        match (&self.0).read(&mut buffer[REQUEST_AT..]) {
            Ok(n) => Ok(Poll::Ready(Some(n))),
            Err(e) => match e.raw_os_error() {
                Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => Ok(Poll::Pending),
                Some(libc::ENODEV | libc::ECONNABORTED) => Ok(Poll::Ready(None)),
                _ => Err(e),
            },
        }
    }
    /// Waits for a request and reads it. `None` when the mount is gone.
    pub fn receive(&self, buffer: &mut Buffer) -> io::Result<Option<usize>> {
        loop {
            match (&self.0).read(&mut buffer[REQUEST_AT..]) {
                Ok(n) => return Ok(Some(n)),
                Err(e) => match e.raw_os_error() {
                    // ENOENT: the request was taken back (its caller was killed) before it could be read.
                    Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => {}
                    Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(None),
                    _ => return Err(e),
                },
            }
        }
    }
    /// Whether the kernel has ended the connection.
    pub fn is_gone(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one valid pollfd.
        let n = unsafe { libc::poll(&mut poll, 1, 0) };
        n == 1 && poll.revents & (libc::POLLERR | libc::POLLNVAL) != 0
    }

    fn send(&self, error: i32, unique: u64, parts: [&[u8]; 2]) -> io::Result<()> {
        let len = size_of::<OutHeader>() + parts[0].len() + parts[1].len();
        let header = OutHeader { len: len as u32, error, unique };
        let all = [IoSlice::new(header.as_bytes()), IoSlice::new(parts[0]), IoSlice::new(parts[1])];
        let used = if parts[1].is_empty() { 2 - parts[0].is_empty() as usize } else { 3 };
        self.write(&all[..used])
    }

    fn write(&self, all: &[IoSlice<'_>]) -> io::Result<()> {
        loop {
            match (&self.0).write_vectored(all) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                done => return done.map(|_| ()),
            }
        }
    }

    /// Answers `unique` with bytes that stand in several places.
    fn send_pages(&self, unique: u64, pages: &Pages) -> io::Result<()> {
        let header = OutHeader { len: (size_of::<OutHeader>() + pages.len()) as u32, error: 0, unique };
        let mut all: SmallVec<[IoSlice<'_>; 16]> = smallvec![IoSlice::new(header.as_bytes())];
        all.extend(pages.slices().map(IoSlice::new));
        if all.len() > SLICES_MAX {
            return self.send(0, unique, [&pages.to_vec(), &[]]);
        }
        self.write(&all)
    }

    /// Sends a notification.
    pub fn notify(&self, code: i32, head: &[u8], tail: &[u8]) -> io::Result<()> {
        self.send(code, 0, [head, tail])
    }
}

/// The right and the duty to answer one request.
pub struct Reply {
    device: Arc<Device>,
    unique: u64,
    open: bool,
}

impl Reply {
    /// For the request `unique` that was read from `device`.
    pub fn new(device: Arc<Device>, unique: u64) -> Reply {
        Reply { device, unique, open: true }
    }
    /// Answers with data. Returns whether the kernel took it: it does not when the caller was killed meanwhile.
    pub fn data(mut self, data: &[u8]) -> bool {
        self.send(0, data)
    }
    /// As [`Reply::data`], of bytes in the memory of an engine.
    pub fn pages(mut self, pages: &Pages) -> bool {
        self.open = false;
        let sent = self.device.send_pages(self.unique, pages);
        self.judge(sent)
    }
    /// Answers with an errno.
    pub fn error(mut self, errno: i32) -> bool {
        self.send(-errno, &[])
    }
    /// The request wants no answer (FORGET, INTERRUPT).
    pub fn nothing(mut self) {
        self.open = false;
    }
    fn send(&mut self, error: i32, data: &[u8]) -> bool {
        self.open = false;
        let sent = self.device.send(error, self.unique, [data, &[]]);
        self.judge(sent)
    }
    fn judge(&self, sent: io::Result<()>) -> bool {
        match sent {
            Ok(()) => true,
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED)) => {
                false
            }
            // The kernel refused the reply's form. The request still waits and must get an answer.
            Err(e) => {
                tracing::error!(unique = self.unique, error = %e, "the kernel refused a reply");
                let _ = self.device.send(-libc::EIO, self.unique, [&[], &[]]);
                false
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.open {
            self.send(-libc::EIO, &[]);
        }
    }
}

/// Tells the kernel that something it keeps changed behind its back, through another door.
///
/// Calls may wait for requests on the same inode or directory, so make them on a thread that no request needs to go on, or have
/// [`crate::Notifications`] make them. The `keeps_` functions do not wait: without anything kept, nothing need be told.
#[derive(Clone)]
pub struct Notifier {
    device: Arc<Device>,
    known: Arc<Known>,
}

impl Notifier {
    pub(crate) fn new(device: Arc<Device>, known: Arc<Known>) -> Notifier {
        Notifier { device, known }
    }

    /// Whether the kernel has an inode other than the root, or an answer that brings it is on its way.
    pub fn has(&self, ino: fs::Ino) -> bool {
        self.known.generation(ino).is_some()
    }

    /// Whether the kernel may keep attributes of an inode.
    pub fn keeps_attr(&self, ino: fs::Ino) -> bool {
        self.known.has_attr(ino) || self.known.is_telling(ino)
    }

    /// Whether the kernel may keep attributes or pages of a file.
    pub fn keeps_data(&self, ino: fs::Ino) -> bool {
        self.known.has_data(ino) || self.known.is_telling(ino)
    }

    /// Whether the kernel may keep a name, or attributes of its directory.
    pub fn keeps_name(&self, parent: fs::Ino, name: &[u8]) -> bool {
        self.known.has_name(parent, name) || self.known.has_attr(parent) || self.known.is_telling(parent)
    }

    /// Attributes of an inode changed: the kernel drops them, if it keeps them.
    pub fn attr(&self, ino: fs::Ino) -> io::Result<()> {
        let _telling = self.known.telling(ino);
        if self.known.take_attr(ino) { self.inode(ino, -1, 0) } else { Ok(()) }
    }

    /// Bytes of a file from `start` to before `end` changed, and its attributes: the kernel drops what it keeps of both.
    pub fn data(&self, ino: fs::Ino, start: u64, end: u64) -> io::Result<()> {
        let _telling = self.known.telling(ino);
        // To the end is 0 for the kernel, and so is what it could not say.
        let (from, to) = (i64::try_from(start).unwrap_or(i64::MAX), i64::try_from(end).ok());
        let len = to.map_or(0, |to| to.saturating_sub(from).max(1));
        match self.known.take_data(ino, from == 0 && len == 0) {
            None => Ok(()),
            Some(false) => self.inode(ino, -1, 0),
            Some(true) => self.inode(ino, from, len),
        }
    }

    /// A name was made, removed or leads elsewhere, and so the attributes of its directory changed: the kernel drops what it keeps of both.
    pub fn name(&self, parent: fs::Ino, name: &[u8]) -> io::Result<()> {
        let _telling = self.known.telling(parent);
        if self.known.take_name(parent, name) {
            let head = abi::InvalEntry { parent: parent.0, namelen: name.len() as u32, flags: 0 };
            let tail: Vec<u8> = [name, &[0]].concat();
            Self::done(self.device.notify(abi::notify::INVAL_ENTRY, head.as_bytes(), &tail))?;
        }
        if self.known.take_attr(parent) { self.inode(parent, -1, 0) } else { Ok(()) }
    }

    /// The kernel writes changed pages of a file back, from `start` on. It drops the pages on the way, which counts for nothing here: they may be asked for anew at once.
    /// Waits for no lock of the inode, whoever asks may have that.
    pub(crate) fn write_back(&self, ino: fs::Ino, start: u64) -> io::Result<()> {
        let head = abi::InvalInode { ino: ino.0, off: i64::try_from(start).unwrap_or(i64::MAX), len: 0 };
        Self::done(self.device.notify(abi::notify::INVAL_INODE, head.as_bytes(), &[]))
    }

    /// A negative `offset` drops the attributes only.
    fn inode(&self, ino: fs::Ino, offset: i64, len: i64) -> io::Result<()> {
        if self.known.take_changing(ino) {
            self.settle(ino)?;
        }
        let head = abi::InvalInode { ino: ino.0, off: offset, len };
        let begun = Instant::now();
        loop {
            let told = self.device.notify(abi::notify::INVAL_INODE, head.as_bytes(), &[]);
            let unknown = told.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::ENOENT));
            if !unknown || !self.known.expects(ino) {
                return Self::done(told);
            }
            if begun.elapsed() > ON_ITS_WAY {
                self.known.lost(ino);
                return Ok(());
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Waits until the kernel has taken in the answers to requests for which it has an inode locked. What it is told of a name in an inode it looks at with that
    /// locked too (Linux 6.18 and before), and finds that there is no such name, or that this is no directory.
    fn settle(&self, ino: fs::Ino) -> io::Result<()> {
        let name = b".\0";
        let head = abi::InvalEntry { parent: ino.0, namelen: name.len() as u32 - 1, flags: 0 };
        match self.device.notify(abi::notify::INVAL_ENTRY, head.as_bytes(), name) {
            Err(e) if e.raw_os_error() == Some(libc::ENOTDIR) => Ok(()),
            told => Self::done(told),
        }
    }

    fn done(result: io::Result<()>) -> io::Result<()> {
        match result {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            r => r,
        }
    }
}

/// Reads a structure from the front of `bytes` and returns it with the rest.
pub fn take<T: FromBytes>(bytes: &[u8]) -> Option<(T, &[u8])> {
    T::read_from_prefix(bytes).ok()
}

/// Reads a NUL-terminated name from the front of `bytes` and returns it with the rest.
pub fn take_name(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|&b| b == 0)?;
    Some((&bytes[..end], &bytes[end + 1..]))
}
