//! read, write and their many variants; lseek; what copies between descriptors.

use crate::description::Open;
use crate::hook::{Out, Res, fail, hook, memory, memory_mut, nowhere};
use crate::limits;
use crate::mapped;
use crate::table;
use fs::{FileSystem, FileType, Seek};
use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};
use std::borrow::Cow;

/// The description, if reading is allowed.
pub(crate) fn reader(fd: c_int) -> Res<Open> {
    let open = table::get(fd).ok_or(Out::Libc)?;
    match open.kind {
        _ if !open.readable() => fail(libc::EBADF),
        FileType::Directory => fail(libc::EISDIR),
        _ => Ok(open),
    }
}

pub(crate) fn writer(fd: c_int) -> Res<Open> {
    let open = table::get(fd).ok_or(Out::Libc)?;
    if open.writable() { Ok(open) } else { fail(libc::EBADF) }
}

/// Most bytes that the kernel moves in one call.
const CALL_MAX: usize = 0x7fff_f000;

pub(crate) fn read_at(open: &Open, offset: u64, to: &mut [u8]) -> Res<usize> {
    let handle = open.handle()?;
    let len = to.len().min(CALL_MAX);
    let to = &mut to[..len];
    if let Some(done) = open.mount.session().and_then(|fs| fs.read_now(handle, offset, to)) {
        return Ok(done?);
    }
    open.mount.run(|fs| fs.read(handle, offset, to))
}

/// How many bytes of `len` one call may write at `offset`, or at the end of a file that is open for that.
pub(crate) fn room_at(open: &Open, offset: u64, len: usize) -> Res<usize> {
    limits::room(len.min(CALL_MAX), || if appends(open) { size(open) } else { Ok(offset) })
}

pub(crate) fn write_at(open: &Open, offset: u64, from: &[u8]) -> Res<usize> {
    let handle = open.handle()?;
    if from.is_empty() {
        return Ok(0);
    }
    let len = room_at(open, offset, from.len())?;
    let from = &from[..len];
    let n = match open.mount.session().is_some_and(|fs| fs.write_now(handle, offset, from)) {
        true => len,
        false => open.mount.run(|fs| fs.write(handle, offset, from))?,
    };
    mapped::grown((open.mount, open.ino), || if appends(open) { None } else { Some(offset + n as u64) });
    Ok(n)
}

fn read_here(open: &Open, to: &mut [u8]) -> Res<ssize_t> {
    let len = to.len().min(CALL_MAX);
    Ok(open.slot.with_room(len, |at| read_at(open, at, to))? as ssize_t)
}

/// As [`read_here`].
///
/// # Safety
/// The buffers of the vector are writable.
unsafe fn read_vector_here(open: &Open, v: &[iovec]) -> Res<ssize_t> {
    // SAFETY: as the caller says.
    Ok(open.slot.with_room(length(v), |at| unsafe { scatter(open, at, v) })? as ssize_t)
}

/// How many bytes the buffers of a vector have.
fn length(v: &[iovec]) -> usize {
    v.iter().map(|e| e.iov_len).sum()
}

fn appends(open: &Open) -> bool {
    open.appends()
}

fn write_here(open: &Open, from: &[u8]) -> Res<ssize_t> {
    write_on(open, from.len(), |at| write_at(open, at, from))
}

/// Runs `write`, which writes `len` bytes at most where the offset is, or to the end of a file that is open for that.
fn write_on(open: &Open, len: usize, write: impl FnOnce(u64) -> Res<usize>) -> Res<ssize_t> {
    let n = match appends(open) {
        false => open.slot.with_room(len.min(CALL_MAX), write)?,
        true => open.slot.with_offset(|at| {
            let n = write(at)?;
            Ok((if n > 0 { appended(open)? } else { at }, n))
        })?,
    };
    Ok(n as ssize_t)
}

/// Where what was just appended ends; others may have appended since.
fn appended(open: &Open) -> Res<u64> {
    let handle = open.handle()?;
    match open.mount.session().and_then(|fs| fs.appended(handle)) {
        Some(end) => Ok(end),
        None => size(open),
    }
}

/// Writes to the end of a file that is not open for that, and gives where it ends then: through another handle, which the file's mode may forbid (`EOPNOTSUPP`).
fn append(open: &Open, from: &[u8]) -> Res<(u64, usize)> {
    let len = limits::room(from.len().min(CALL_MAX), || size(open))?;
    let handle = open.open_with(open.flags() | libc::O_APPEND).or(fail(libc::EOPNOTSUPP))?;
    let written = open.mount.run(|fs| fs.write(handle, 0, &from[..len]));
    let end = match open.mount.session().and_then(|fs| fs.appended(handle)) {
        Some(end) => Ok(end),
        None => open.mount.run(|fs| fs.getattr(open.ino, Some(handle))).map(|attr| attr.size),
    };
    open.mount.run(|fs| fs.release(handle))?;
    let n = written?;
    mapped::grown((open.mount, open.ino), || None);
    Ok((end?, n))
}

pub(crate) fn size(open: &Open) -> Res<u64> {
    let handle = open.handle()?;
    match open.mount.session().and_then(|fs| fs.size_now(handle)) {
        Some(size) => Ok(size),
        None => Ok(open.mount.run(|fs| fs.getattr(open.ino, Some(handle)))?.size),
    }
}

pub(crate) fn position(offset: off_t) -> Res<u64> {
    u64::try_from(offset).or(fail(libc::EINVAL))
}

/// The buffers of a vector.
///
/// # Safety
/// `v` points to `n` entries.
pub(crate) unsafe fn vector<'a>(v: *const iovec, n: c_int) -> Res<&'a [iovec]> {
    if !(0..=1024).contains(&n) {
        return fail(libc::EINVAL);
    }
    if n == 0 {
        return Ok(&[]);
    }
    if nowhere(v) {
        return fail(libc::EFAULT);
    }
    // SAFETY: as the caller says.
    let v = unsafe { std::slice::from_raw_parts(v, n as usize) };
    let total = v.iter().try_fold(0usize, |sum, e| sum.checked_add(e.iov_len));
    if total.is_none_or(|t| t > isize::MAX as usize) { fail(libc::EINVAL) } else { Ok(v) }
}

/// # Safety
/// The buffers of the vector are writable.
unsafe fn scatter(open: &Open, mut at: u64, v: &[iovec]) -> Res<usize> {
    let mut done = 0;
    for e in v {
        // SAFETY: as the caller says.
        let to = unsafe { memory_mut(e.iov_base, e.iov_len) }?;
        match read_at(open, at, to) {
            Ok(n) => {
                done += n;
                at += n as u64;
                if n < e.iov_len {
                    break;
                }
            }
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// From so many bytes on those of a vector are written in several pieces.
const PIECE: usize = 1 << 24;

/// The bytes of a vector in one piece, so that a write is one call, and the buffers for the next piece. One that is long enough for a piece is not copied.
///
/// # Safety
/// The buffers of the vector are readable.
unsafe fn gather(v: &[iovec], most: usize) -> Res<(Cow<'_, [u8]>, &[iovec])> {
    let mut bytes = Vec::new();
    for (i, e) in v.iter().enumerate() {
        let room = e.iov_len.min(most - bytes.len());
        if room >= PIECE && !bytes.is_empty() {
            return Ok((bytes.into(), &v[i..]));
        }
        // SAFETY: as the caller says.
        let these = unsafe { memory(e.iov_base, room) }?;
        if room >= PIECE {
            return Ok((these.into(), &v[i + 1..]));
        }
        bytes.try_reserve(room).or(fail(libc::ENOMEM))?;
        bytes.extend_from_slice(these);
        if bytes.len() >= PIECE {
            return Ok((bytes.into(), &v[i + 1..]));
        }
    }
    Ok((bytes.into(), &[]))
}

/// Writes the bytes of a vector by calls of `write`, which is told how many were written before.
///
/// # Safety
/// The buffers of the vector are readable.
unsafe fn write_pieces(v: &[iovec], mut write: impl FnMut(usize, &[u8]) -> Res<usize>) -> Res<usize> {
    let (mut done, mut rest) = (0, v);
    loop {
        // SAFETY: as the caller says.
        let piece = unsafe { gather(rest, CALL_MAX - done) };
        let wrote = piece.and_then(|(bytes, next)| Ok((write(done, &bytes)?, bytes.len(), next)));
        match wrote {
            Ok((n, len, next)) => {
                done += n;
                if n < len || next.is_empty() || done == CALL_MAX {
                    return Ok(done);
                }
                rest = next;
            }
            Err(e) if done == 0 => return Err(e),
            Err(_) => return Ok(done),
        }
    }
}

/// As [`write_here`].
///
/// # Safety
/// The buffers of the vector are readable.
unsafe fn write_vector_here(open: &Open, v: &[iovec]) -> Res<ssize_t> {
    // SAFETY: as the caller says.
    write_on(open, length(v), |at| unsafe {
        write_pieces(v, |done, piece| write_at(open, at + done as u64, piece))
    })
}

const RWF_KNOWN: c_int = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_NOWAIT;

fn durable(open: &Open, flags: c_int) -> Res<()> {
    if flags & (libc::RWF_DSYNC | libc::RWF_SYNC) != 0 {
        let handle = open.handle()?;
        open.mount.run(|fs| fs.fsync(handle, flags & libc::RWF_SYNC == 0))?;
    }
    Ok(())
}

pub(crate) fn seek(fd: c_int, offset: off_t, whence: c_int) -> Res<off_t> {
    // A child of vfork may have made the copy.
    let borrowed = crate::mounts::borrowed_memory();
    let open = if borrowed { table::of_child(fd) } else { table::get(fd) }.ok_or(Out::Libc)?;
    if open.is_path() {
        return fail(libc::EBADF);
    }
    if whence == libc::SEEK_CUR
        && offset != 0
        && let Some(moved) = open.slot.moved_by(offset)
    {
        return moved.map(|at| at as off_t);
    }
    open.slot.with_offset(|at| {
        let from = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => at,
            libc::SEEK_END => size(&open)?,
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                let what = if whence == libc::SEEK_DATA { Seek::Data } else { Seek::Hole };
                let handle = open.handle()?;
                let offset = u64::try_from(offset).or(fail(libc::ENXIO))?;
                let found = open.mount.run(|fs| fs.seek(handle, offset, what))?;
                return Ok((found, found as off_t));
            }
            _ => return fail(libc::EINVAL),
        };
        match i64::try_from(from).ok().and_then(|from| from.checked_add(offset)) {
            Some(to) if to >= 0 => Ok((to as u64, to)),
            _ => fail(libc::EINVAL),
        }
    })
}

/// Why nothing can be copied between a file of ours and this one of the kernel's.
fn why_not(fd: c_int) -> c_int {
    // SAFETY: all zeros is a valid value, which the call fills.
    let (done, mode) = unsafe {
        let mut st: libc::stat = std::mem::zeroed();
        (libc::syscall(libc::SYS_fstat, fd, &mut st), st.st_mode & libc::S_IFMT)
    };
    match mode {
        // SAFETY: a number.
        _ if done != 0 || unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_PATH != 0 => libc::EBADF,
        libc::S_IFREG => libc::EXDEV,
        libc::S_IFDIR => libc::EISDIR,
        _ => libc::EINVAL,
    }
}

/// # Safety
/// The offsets are null or lead to offsets.
unsafe fn copy_range(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    len: size_t,
    flags: libc::c_uint,
) -> Res<ssize_t> {
    let only_found = |open: &Open| open.is_path();
    let (a, b) = match (table::get(from), table::get(to)) {
        (None, None) => return Err(Out::Libc),
        (a, b) if a.iter().chain(&b).any(only_found) => return fail(libc::EBADF),
        (Some(a), Some(b)) if a.mount.hash == b.mount.hash => (a, b),
        (Some(_), Some(_)) => return fail(libc::EXDEV),
        (Some(_), None) => return fail(why_not(to)),
        (None, Some(_)) => return fail(why_not(from)),
    };
    if flags == 0 && [&a, &b].iter().any(|open| open.kind == FileType::Directory) {
        return fail(libc::EISDIR);
    }
    if flags != 0 || a.kind != FileType::Regular || b.kind != FileType::Regular {
        return fail(libc::EINVAL);
    }
    if !a.readable() || !b.writable() || appends(&b) {
        return fail(libc::EBADF);
    }
    let (ha, hb) = (a.handle()?, b.handle()?);
    // SAFETY: as the caller says.
    let (fixed_a, fixed_b) = unsafe { (from_at.as_mut(), to_at.as_mut()) };
    let (at_a, at_b) = (place(&a, &fixed_a)?, place(&b, &fixed_b)?);
    let len = limits::room(len.min(1 << 30), || Ok(at_b))? as u64;
    let n = a.mount.run(|fs| fs.copy_range(ha, at_a, hb, at_b, len))?;
    mapped::grown((b.mount, b.ino), || Some(at_b + n));
    go_on(&a, fixed_a, at_a + n)?;
    go_on(&b, fixed_b, at_b + n)?;
    Ok(n as ssize_t)
}

/// Where a call begins that is given a place, or goes by the file's own.
pub(crate) fn place(open: &Open, fixed: &Option<&mut off_t>) -> Res<u64> {
    match fixed {
        Some(at) => position(**at),
        None => open.slot.offset(),
    }
}

/// Sets where such a call has ended.
pub(crate) fn go_on(open: &Open, fixed: Option<&mut off_t>, end: u64) -> Res<()> {
    match fixed {
        Some(at) => *at = end as off_t,
        None => open.slot.set_offset(end)?,
    }
    Ok(())
}

hook! {
    fn read(fd: c_int, to: *mut c_void, n: size_t) -> ssize_t { read_here(&reader(fd)?, memory_mut(to, n)?) }
    fn __read_chk(fd: c_int, to: *mut c_void, n: size_t, room: size_t) -> ssize_t {
        read_here(&reader(fd)?, memory_mut(to, n.min(room))?)
    }
    fn pread | pread64(fd: c_int, to: *mut c_void, n: size_t, at: off_t) -> ssize_t {
        Ok(read_at(&reader(fd)?, position(at)?, memory_mut(to, n)?)? as ssize_t)
    }
    fn __pread_chk | __pread64_chk(fd: c_int, to: *mut c_void, n: size_t, at: off_t, room: size_t) -> ssize_t {
        Ok(read_at(&reader(fd)?, position(at)?, memory_mut(to, n.min(room))?)? as ssize_t)
    }
    fn readv(fd: c_int, v: *const iovec, n: c_int) -> ssize_t {
        let open = reader(fd)?;
        read_vector_here(&open, vector(v, n)?)
    }
    fn preadv | preadv64(fd: c_int, v: *const iovec, n: c_int, at: off_t) -> ssize_t {
        Ok(scatter(&reader(fd)?, position(at)?, vector(v, n)?)? as ssize_t)
    }
    fn preadv2 | preadv64v2(fd: c_int, v: *const iovec, n: c_int, at: off_t, flags: c_int) -> ssize_t {
        let open = reader(fd)?;
        if flags & !RWF_KNOWN != 0 {
            return fail(libc::EOPNOTSUPP);
        }
        let v = vector(v, n)?;
        if at != -1 {
            return Ok(scatter(&open, position(at)?, v)? as ssize_t);
        }
        read_vector_here(&open, v)
    }
    fn write(fd: c_int, from: *const c_void, n: size_t) -> ssize_t { write_here(&writer(fd)?, memory(from, n)?) }
    fn pwrite | pwrite64(fd: c_int, from: *const c_void, n: size_t, at: off_t) -> ssize_t {
        Ok(write_at(&writer(fd)?, position(at)?, memory(from, n)?)? as ssize_t)
    }
    fn writev(fd: c_int, v: *const iovec, n: c_int) -> ssize_t { write_vector_here(&writer(fd)?, vector(v, n)?) }
    fn pwritev | pwritev64(fd: c_int, v: *const iovec, n: c_int, at: off_t) -> ssize_t {
        let (open, at) = (writer(fd)?, position(at)?);
        Ok(write_pieces(vector(v, n)?, |done, piece| write_at(&open, at + done as u64, piece))? as ssize_t)
    }
    fn pwritev2 | pwritev64v2(fd: c_int, v: *const iovec, n: c_int, at: off_t, flags: c_int) -> ssize_t {
        let open = writer(fd)?;
        if flags & !(RWF_KNOWN | libc::RWF_APPEND) != 0 {
            return fail(libc::EOPNOTSUPP);
        }
        let v = vector(v, n)?;
        let appended = flags & libc::RWF_APPEND != 0 && !appends(&open);
        let append_all = || {
            let mut end = 0;
            let n = write_pieces(v, |_, piece| {
                let (ends, n) = append(&open, piece)?;
                end = ends;
                Ok(n)
            })?;
            Ok((end, n as ssize_t))
        };
        let n = match at {
            -1 if appended => open.slot.with_offset(|_| append_all())?,
            -1 => write_vector_here(&open, v)?,
            at => {
                let at = position(at)?;
                match appended {
                    true => append_all()?.1,
                    false => write_pieces(v, |done, piece| write_at(&open, at + done as u64, piece))? as ssize_t,
                }
            }
        };
        durable(&open, flags)?;
        Ok(n)
    }
    fn lseek | lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t { seek(fd, offset, whence) }
    fn copy_file_range(
        from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t, flags: libc::c_uint
    ) -> ssize_t {
        copy_range(from, from_at, to, to_at, len, flags)
    }
    fn sendfile | sendfile64(to: c_int, from: c_int, at: *mut off_t, n: size_t) -> ssize_t {
        crate::sendfile::send(to, from, at, n)
    }
    fn splice(
        from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, n: size_t, flags: libc::c_uint
    ) -> ssize_t {
        crate::splice::splice((from, from_at), (to, to_at), n, flags)
    }
}
