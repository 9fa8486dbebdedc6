//! Requests of AIO as programs make them, and what they do with files of ours.

use crate::description::Open;
use crate::hook::{Out, Res, fail, memory, memory_mut, outside};
use crate::limits;
use crate::rw::{position, reader, room_at, vector, writer};
use crate::table;
use fs::{FileSystem, Handle};
use libc::{c_int, c_void};
use share::Remote;

/// struct iocb of io_submit(2), on little-endian machines.
#[repr(C)]
pub(crate) struct Iocb {
    pub data: u64,
    pub key: u32,
    pub rw_flags: c_int,
    opcode: u16,
    priority: i16,
    pub fd: c_int,
    /// Memory, or the entries of a vector.
    memory: *mut c_void,
    /// Bytes, or entries.
    len: u64,
    offset: i64,
    reserved: u64,
    pub flags: u32,
    pub eventfd: c_int,
}

/// struct io_event of io_getevents(2).
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Event {
    pub data: u64,
    pub object: u64,
    pub result: i64,
    pub result2: i64,
}

const _: () = assert!(size_of::<Iocb>() == 64 && size_of::<Event>() == 32);

/// `IOCB_CMD_*`.
const PREAD: u16 = 0;
const PWRITE: u16 = 1;
const FSYNC: u16 = 2;
const FDSYNC: u16 = 3;
const PREADV: u16 = 7;
const PWRITEV: u16 = 8;
/// What a request does, with memory that is the program's until it is done.
enum Work {
    Read(Vec<&'static mut [u8]>, u64),
    Write(Vec<&'static [u8]>, u64, c_int),
    Sync { data: bool },
}

/// # Safety
/// The request is as io_submit(2) wants it: its memory stays until it is done.
unsafe fn work_of(cb: &Iocb) -> Res<(Open, Work)> {
    let (fd, len) = (cb.fd, usize::try_from(cb.len).or(fail(libc::EINVAL))?);
    if cb.reserved != 0 || len > isize::MAX as usize {
        return fail(libc::EINVAL);
    }
    if cb.rw_flags & !(libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC) != 0 {
        return fail(libc::EOPNOTSUPP);
    }
    // SAFETY: as the caller says.
    unsafe {
        let entries = || match cb.opcode {
            PREADV | PWRITEV => vector(cb.memory.cast(), c_int::try_from(len).or(fail(libc::EINVAL))?),
            _ => Ok(&[][..]),
        };
        Ok(match cb.opcode {
            PREAD => (reader(fd)?, Work::Read(vec![memory_mut(cb.memory, len)?], position(cb.offset)?)),
            PREADV => {
                let pieces = entries()?.iter().map(|e| memory_mut(e.iov_base, e.iov_len));
                (reader(fd)?, Work::Read(pieces.collect::<Res<_>>()?, position(cb.offset)?))
            }
            PWRITE => {
                (writer(fd)?, Work::Write(vec![memory(cb.memory, len)?], position(cb.offset)?, cb.rw_flags))
            }
            PWRITEV => {
                let pieces = entries()?.iter().map(|e| memory(e.iov_base, e.iov_len));
                (writer(fd)?, Work::Write(pieces.collect::<Res<_>>()?, position(cb.offset)?, cb.rw_flags))
            }
            FSYNC | FDSYNC => (table::get(fd).ok_or(Out::Libc)?, Work::Sync { data: cb.opcode == FDSYNC }),
            _ => return fail(libc::EINVAL),
        })
    }
}

impl Work {
    /// How many bytes the limit of the process lets it write. Where that is none, the signal comes now, as from the kernel.
    fn room(&self, open: &Open) -> Res<usize> {
        let Work::Write(pieces, at, _) = self else { return Ok(0) };
        let room = room_at(open, *at, pieces.iter().map(|piece| piece.len()).sum());
        if matches!(room, Err(Out::Errno(libc::EFBIG))) {
            outside(limits::signal);
        }
        room
    }

    async fn run(self, remote: &Remote, handle: Handle, room: usize) -> fs::Result<usize> {
        let mut done = 0;
        match self {
            Work::Read(pieces, at) => {
                for piece in pieces {
                    match remote.read(handle, at + done as u64, piece).await {
                        Ok(n) => {
                            done += n;
                            if n < piece.len() {
                                break;
                            }
                        }
                        Err(e) if done == 0 => return Err(e),
                        Err(_) => break,
                    }
                }
            }
            Work::Write(pieces, at, flags) => {
                // One write, so that nobody sees a part of it.
                let bytes = match &pieces[..] {
                    [piece] => piece,
                    pieces => &pieces.concat()[..],
                };
                let bytes = &bytes[..room.min(bytes.len())];
                if !bytes.is_empty() {
                    done = remote.write(handle, at, bytes).await?;
                }
                if flags & (libc::RWF_DSYNC | libc::RWF_SYNC) != 0 {
                    remote.fsync(handle, flags & libc::RWF_SYNC == 0).await?;
                }
            }
            Work::Sync { data } => remote.fsync(handle, data).await?,
        }
        Ok(done)
    }
}

/// A request for a file of ours, ready to begin.
///
/// # Safety
/// As of [`work_of`].
pub unsafe fn request_of(cb: &Iocb) -> Res<(&'static Remote, impl Future<Output = Event> + Send + 'static)> {
    // SAFETY: as the caller says.
    let (open, work) = unsafe { work_of(cb)? };
    let handle = open.handle()?;
    let (data, object) = (cb.data, std::ptr::from_ref(cb).addr() as u64);
    let Some(remote) = open.mount.session() else { return fail(libc::EIO) };
    let room = work.room(&open);
    Ok((remote, async move {
        let result = match room {
            Ok(room) => work.run(remote, handle, room).await.map_err(Out::from),
            Err(e) => Err(e),
        };
        // The file was open until now, whatever the program has closed.
        drop(open);
        let result = match result {
            Ok(n) => n as i64,
            Err(Out::Errno(errno)) => -errno as i64,
            Err(Out::Libc | Out::Memory) => -libc::EIO as i64,
        };
        Event { data, object, result, result2: 0 }
    }))
}
