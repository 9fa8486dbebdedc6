//! From a request of the kernel to a call of the contract, and from its result to the reply.
//!
//! [`serve`] is the life of one request: parse, call, answer exactly once, give the buffer back. Operations stand in
//! `names` (directories and names), `attrs` (attributes), `files` (open files, data, locks).
//! errno values come from [`fs::Error::errno`]; those given here are about the protocol itself.

use crate::abi::{self, InHeader, op};
use crate::changers::Changers;
use crate::device::{Buffer, DATA_AT, Device, REQUEST_AT, Reply, take};
use crate::handles::Handles;
use crate::interrupt::{Gives, Interrupts};
use crate::known::Known;
use crate::meter::class;
use crate::notifications::Notifications;
use crate::options::MountOptions;
use fs::{Attr, Cred, Error, FileSystem, Handle, Ino, Meter};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::{Immutable, IntoBytes};

/// A failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl From<fs::Error> for Errno {
    fn from(e: fs::Error) -> Errno {
        if matches!(e, fs::Error::Corrupt(_) | fs::Error::Media(_)) {
            tracing::warn!(error = %e, "a request failed");
        }
        Errno(e.errno())
    }
}

/// A request that does not have the form the protocol prescribes.
pub const MALFORMED: Errno = Errno(libc::EIO);

/// Bytes of a small reply.
pub struct Small {
    bytes: [u8; size_of::<abi::StatxOut>()],
    len: usize,
}

impl Small {
    /// Empty.
    pub fn new() -> Small {
        Small { bytes: [0; size_of::<abi::StatxOut>()], len: 0 }
    }
    /// With `part` at the end.
    pub fn with<T: IntoBytes + Immutable>(mut self, part: &T) -> Small {
        let part = part.as_bytes();
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        self
    }
}

/// What a request is answered with.
pub enum Answer {
    /// No reply at all.
    Nothing,
    /// Success without data.
    Empty,
    /// A structure or two.
    Small(Small),
    /// The same, and a handle that must be closed again if the kernel does not take the reply.
    Opened(Small, Handle),
    /// Bytes.
    Bytes(Vec<u8>),
    /// So many bytes at [`DATA_AT`] of the request's buffer.
    InBuffer(usize),
    /// Bytes in the memory of the engine.
    Pages(fs::Pages),
}

impl Answer {
    /// One structure.
    pub fn of<T: IntoBytes + Immutable>(part: &T) -> Answer {
        Answer::Small(Small::new().with(part))
    }
}

/// What an operation returns.
pub type Outcome = Result<Answer, Errno>;

/// The state of a mount that requests share.
pub struct Door<F> {
    /// The engine.
    pub fs: Arc<F>,
    /// As mounted.
    pub options: MountOptions,
    /// What was agreed on with the kernel.
    pub caps: abi::Init,
    /// The minor version of the protocol that the kernel speaks.
    pub minor: u32,
    /// Open files.
    pub handles: Handles,
    /// Who changes them, where the engine does more at their closes than release locks.
    pub changers: Option<Changers>,
    /// Calls that can be interrupted while they wait.
    pub interrupts: Interrupts,
    /// What the kernel may keep.
    pub known: Arc<Known>,
    /// Who has it drop what it keeps in the wrong place.
    pub notifications: Notifications,
    /// What was asked for, and how long it took.
    pub meter: Arc<Meter>,
}

/// Credentials for what the door does on the kernel's behalf.
pub fn kernel_cred() -> Cred {
    Cred { checked: true, ..Cred::root() }
}

/// Serves the request of `len` bytes in `buffer`, which was read from `device`, and returns the buffer.
pub async fn serve<F: FileSystem>(
    door: Arc<Door<F>>,
    device: Arc<Device>,
    mut buffer: Buffer,
    len: usize,
) -> Buffer {
    let request = &buffer[REQUEST_AT..][..len];
    let head = match take::<InHeader>(request) {
        Some((head, _)) if head.len as usize == len => head,
        _ => {
            tracing::error!(len, "the kernel sent a request with a wrong length");
            return buffer;
        }
    };
    let begun = Instant::now();
    let reply = Reply::new(device, head.unique);
    let outcome = door.dispatch(&head, &mut buffer, len).await;
    let failed = outcome.is_err();
    match outcome {
        Ok(Answer::Nothing) => reply.nothing(),
        Ok(Answer::Empty) => drop(reply.data(&[])),
        Ok(Answer::Small(s)) => drop(reply.data(&s.bytes[..s.len])),
        Ok(Answer::Bytes(b)) => drop(reply.data(&b)),
        Ok(Answer::InBuffer(n)) => drop(reply.data(&buffer[DATA_AT..][..n])),
        Ok(Answer::Pages(pages)) => drop(reply.pages(&pages)),
        Ok(Answer::Opened(s, handle)) => {
            if !reply.data(&s.bytes[..s.len]) {
                let _ = door.abandon(handle.0).await;
            }
        }
        Err(e) => drop(reply.error(e.0)),
    }
    door.meter.count(class(head.opcode), begun.elapsed(), failed);
    buffer
}

impl<F: FileSystem> Door<F> {
    async fn dispatch(&self, head: &InHeader, buffer: &mut Buffer, len: usize) -> Outcome {
        let body = &buffer[REQUEST_AT + size_of::<InHeader>()..REQUEST_AT + len];
        match head.opcode {
            op::READ => {
                let (a, _) = take(body).ok_or(MALFORMED)?;
                self.read(head, a, &mut buffer[DATA_AT..]).await
            }
            op::WRITE => self.tells(head, self.write(head, body)).await,
            op::GETATTR => self.getattr(head, body).await,
            op::LOOKUP => self.lookup(head, body).await,
            op::FORGET => {
                let (n, _) = take::<abi::ForgetIn>(body).ok_or(MALFORMED)?;
                self.known.forget(Ino(head.nodeid), n.nlookup);
                Ok(Answer::Nothing)
            }
            op::BATCH_FORGET => {
                let (batch, mut rest) = take::<abi::BatchForgetIn>(body).ok_or(MALFORMED)?;
                for _ in 0..batch.count {
                    let (one, behind) = take::<abi::ForgetOne>(rest).ok_or(MALFORMED)?;
                    self.known.forget(Ino(one.nodeid), one.nlookup);
                    rest = behind;
                }
                Ok(Answer::Nothing)
            }
            op::OPEN => self.open(head, body).await,
            op::RELEASE | op::RELEASEDIR => self.release(body).await,
            op::FLUSH => self.tells(head, self.flush(head, body)).await,
            op::READDIR | op::READDIRPLUS => {
                let (a, _) = take(body).ok_or(MALFORMED)?;
                self.readdir(head, a, &mut buffer[DATA_AT..]).await
            }
            op::OPENDIR => self.opendir(head).await,
            op::CREATE => self.create(head, body).await,
            op::TMPFILE => self.tmpfile(head, body).await,
            op::SETATTR => self.tells(head, self.setattr(head, body)).await,
            op::STATX => self.statx(head, body).await,
            op::UNLINK | op::RMDIR => self.tells(head, self.remove(head, body)).await,
            op::MKDIR => self.tells(head, self.mkdir(head, body)).await,
            op::MKNOD => self.tells(head, self.mknod(head, body)).await,
            op::SYMLINK => self.tells(head, self.symlink(head, body)).await,
            op::READLINK => self.readlink(head).await,
            op::LINK => self.tells(head, self.link(head, body)).await,
            op::RENAME | op::RENAME2 => self.tells(head, self.rename(head, body)).await,
            op::FSYNC | op::FSYNCDIR => self.tells(head, self.fsync(head, body)).await,
            op::STATFS => self.statfs().await,
            op::SYNCFS => Ok(self.fs.sync().await.map(|()| Answer::Empty)?),
            op::GETXATTR => self.getxattr(head, body).await,
            op::LISTXATTR => self.listxattr(head, body).await,
            op::SETXATTR => self.tells(head, self.setxattr(head, body)).await,
            op::REMOVEXATTR => self.tells(head, self.removexattr(head, body)).await,
            op::ACCESS => self.access(head, body).await,
            op::FALLOCATE => self.tells(head, self.fallocate(head, body)).await,
            op::LSEEK => self.lseek(head, body).await,
            op::COPY_FILE_RANGE => self.tells(head, self.copy(head, body)).await,
            op::GETLK => self.getlk(body).await,
            op::SETLK | op::SETLKW => self.setlk(head, body).await,
            op::INTERRUPT => {
                let (a, _) = take::<abi::InterruptIn>(body).ok_or(MALFORMED)?;
                self.interrupts.interrupt(a.unique);
                Ok(Answer::Nothing)
            }
            op::DESTROY => Ok(Answer::Empty),
            op::IOCTL => self.tells(head, self.ioctl(body)).await,
            // The kernel then says the same to all later callers without asking: poll, bmap, what is newer than this door.
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    /// The caller. Permissions were checked by the kernel (see the crate's documentation).
    pub fn cred(&self, head: &InHeader) -> Cred {
        Cred { uid: head.uid, gid: head.gid, groups: no_groups(), checked: true, keeps_set_ids: true }
    }

    /// Makes a call that changes nothing, or nothing that stays when it is dropped: it can be interrupted where it waits for a network.
    pub async fn asks<T>(&self, head: &InHeader, call: impl Future<Output = fs::Result<T>>) -> fs::Result<T> {
        match self.changers {
            Some(_) => self.interrupts.guard(head.unique, Gives::Late(head.pid), call).await,
            None => call.await,
        }
    }

    /// Serves a request that may have changed something, whose caller can be killed where it waits for a network.
    async fn tells(&self, head: &InHeader, request: impl Future<Output = Outcome>) -> Outcome {
        match self.changers {
            Some(_) => self.interrupts.guard(head.unique, Gives::Killed(head.pid), request).await,
            None => request.await,
        }
    }

    /// Notes that an inode that was looked up or made goes to the kernel. Its attributes, and perhaps not those that were found: see [`Known`].
    /// `asked`: the request, if it only asks; that something was made must not be answered with `EINTR`.
    pub async fn given(&self, asked: Option<&InHeader>, attr: Attr) -> Result<Attr, Error> {
        if !self.known.looked_up(attr.ino, attr.generation) {
            return Ok(attr);
        }
        let now = self.fs.getattr(attr.ino, None);
        let now = match asked {
            Some(head) => self.asks(head, now).await,
            None => now.await,
        };
        // When it is gone by now, the kernel is not given it.
        now.and_then(|now| if now.generation == attr.generation { Ok(now) } else { Err(Error::Stale) })
            .inspect_err(|_| self.known.forget(attr.ino, 1))
    }

    /// Reply for an inode that was looked up or made.
    pub fn entry(&self, attr: &Attr) -> abi::EntryOut {
        let ((entry_valid, entry_valid_nsec), (attr_valid, attr_valid_nsec)) =
            (split(self.options.entry_timeout), split(self.options.attr_timeout));
        abi::EntryOut {
            nodeid: attr.ino.0,
            generation: attr.generation as u64,
            entry_valid,
            attr_valid,
            entry_valid_nsec,
            attr_valid_nsec,
            attr: raw_attr(attr),
        }
    }
}

/// The empty list of groups, without allocating each time.
fn no_groups() -> Arc<[u32]> {
    static NONE: std::sync::OnceLock<Arc<[u32]>> = std::sync::OnceLock::new();
    NONE.get_or_init(|| Arc::new([])).clone()
}

/// A timeout as seconds and nanoseconds.
pub fn split(t: Duration) -> (u64, u32) {
    (t.as_secs(), t.subsec_nanos())
}

/// Attributes in the kernel's form.
pub fn raw_attr(a: &Attr) -> abi::RawAttr {
    abi::RawAttr {
        ino: a.ino.0,
        size: a.size,
        blocks: a.blocks,
        atime: a.atime.sec,
        mtime: a.mtime.sec,
        ctime: a.ctime.sec,
        atimensec: a.atime.nsec,
        mtimensec: a.mtime.nsec,
        ctimensec: a.ctime.nsec,
        mode: a.mode(),
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: rdev_to_kernel(a.rdev),
        blksize: 4096,
        flags: 0,
    }
}

/// A device number as the kernel passes it: 12 bits of major number between 20 bits of minor number.
pub fn rdev_to_kernel(rdev: u64) -> u32 {
    let (major, minor) = (libc::major(rdev), libc::minor(rdev));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The reverse.
pub fn rdev_from_kernel(dev: u32) -> u64 {
    libc::makedev((dev & 0xfff00) >> 8, (dev & 0xff) | ((dev >> 12) & 0xfff00))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers() {
        for (major, minor) in [(1, 3), (8, 255), (259, 70_000), (4095, 1_048_575)] {
            let dev = libc::makedev(major, minor);
            assert_eq!(rdev_from_kernel(rdev_to_kernel(dev)), dev);
        }
    }
}
