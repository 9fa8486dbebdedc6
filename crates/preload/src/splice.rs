//! splice(2) between a pipe and a file of ours.
//!
//! What goes into the pipe goes by way of memory of the kernel's, so that it takes as much as it has room for; what comes out of it is
//! copied first, so that what the file does not take stays there. Of several threads that take out of one pipe at the same time, two may
//! find the same bytes. Where tested: `tests/all/more_programs.rs`.

use crate::description::Open;
use crate::hook::{Out, Res, errno, fail};
use crate::{rw, table};
use fs::FileType;
use libc::{c_int, c_uint, off_t, size_t, ssize_t};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

const KNOWN: c_uint =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;

/// # Safety
/// The offsets are null or lead to offsets.
pub(crate) unsafe fn splice(
    (from, from_at): (c_int, *mut off_t),
    (to, to_at): (c_int, *mut off_t),
    n: size_t,
    flags: c_uint,
) -> Res<ssize_t> {
    let (source, target) = (table::get(from), table::get(to));
    if source.is_none() && target.is_none() || n == 0 {
        return Err(Out::Libc);
    }
    if flags & !KNOWN != 0 {
        return fail(libc::EINVAL);
    }
    // SAFETY: as the caller says.
    let (from_at, to_at) = unsafe { (from_at.as_mut(), to_at.as_mut()) };
    match (source, target) {
        (Some(source), _) if !source.readable() => fail(libc::EBADF),
        (_, Some(target)) if !target.writable() => fail(libc::EBADF),
        (Some(source), None) => {
            let room = size_of_pipe(to, libc::O_WRONLY)?;
            match to_at {
                Some(_) => fail(libc::ESPIPE),
                None => into_pipe(&source, from_at, to, n.min(room), flags),
            }
        }
        (None, Some(target)) => {
            let size = size_of_pipe(from, libc::O_RDONLY)?;
            match from_at {
                Some(_) => fail(libc::ESPIPE),
                None => out_of_pipe((from, size), &target, to_at, n.min(size), flags),
            }
        }
        _ => fail(libc::EINVAL),
    }
}

fn into_pipe(source: &Open, fixed: Option<&mut off_t>, to: c_int, n: usize, flags: c_uint) -> Res<ssize_t> {
    if source.kind == FileType::Directory {
        return fail(libc::EINVAL);
    }
    let at = rw::place(source, &fixed)?;
    let mut bytes = vec![0; n];
    let got = rw::read_at(source, at, &mut bytes)?;
    if got == 0 {
        return Ok(0);
    }
    // The pipe refers to these pages as long as they are in it.
    // SAFETY: a string that ends with zero; the descriptor is new.
    let mut memory = unsafe {
        match libc::memfd_create(c"freehold-splice".as_ptr(), libc::MFD_CLOEXEC) {
            -1 => return fail(errno()),
            fd => File::from_raw_fd(fd),
        }
    };
    memory.write_all(&bytes[..got]).or_else(|e| failed(&e))?;
    // SAFETY: descriptors, and a place for the offset.
    let moved = unsafe { libc::splice(memory.as_raw_fd(), &mut 0, to, null_mut(), got, flags) };
    let moved = usize::try_from(moved).or_else(|_| fail(errno()))?;
    rw::go_on(source, fixed, at + moved as u64)?;
    Ok(moved as ssize_t)
}

fn out_of_pipe(
    (from, size): (c_int, usize),
    target: &Open,
    fixed: Option<&mut off_t>,
    n: usize,
    flags: c_uint,
) -> Res<ssize_t> {
    if target.flags() & libc::O_APPEND != 0 {
        return fail(libc::EINVAL);
    }
    let at = rw::place(target, &fixed)?;
    let (mut copy, end) = pipe()?;
    // As many pieces as the other one may have; where it cannot have those, fewer are taken.
    // SAFETY: descriptors and numbers.
    let copied = unsafe {
        libc::fcntl(end.as_raw_fd(), libc::F_SETPIPE_SZ, size as c_int);
        libc::tee(from, end.as_raw_fd(), n, flags)
    };
    let copied = usize::try_from(copied).or_else(|_| fail(errno()))?;
    let mut bytes = vec![0; copied];
    copy.read_exact(&mut bytes).or_else(|e| failed(&e))?;
    let took = rw::write_at(target, at, &bytes)?;
    let mut left = took;
    while left > 0 {
        let (from, to) = (from, end.as_raw_fd());
        // SAFETY: descriptors. The pipe of our own is empty, and has room for what it had before.
        let gone = unsafe { libc::splice(from, null_mut(), to, null_mut(), left, libc::SPLICE_F_NONBLOCK) };
        match usize::try_from(gone) {
            Ok(gone) if gone > 0 => left -= gone,
            // Somebody else has taken it.
            _ => break,
        }
    }
    rw::go_on(target, fixed, at + took as u64)?;
    Ok(took as ssize_t)
}

/// How much a pipe can hold; `EINVAL` where there is none, `EBADF` where it does not go that way.
fn size_of_pipe(fd: c_int, way: c_int) -> Res<usize> {
    // SAFETY: numbers.
    let (flags, size) = unsafe { (libc::fcntl(fd, libc::F_GETFL), libc::fcntl(fd, libc::F_GETPIPE_SZ)) };
    if flags < 0 || ![way, libc::O_RDWR].contains(&(flags & libc::O_ACCMODE)) {
        return fail(libc::EBADF);
    }
    usize::try_from(size).or_else(|_| fail(libc::EINVAL))
}

/// A new pipe: where it is read, and where it is written.
fn pipe() -> Res<(File, OwnedFd)> {
    let mut ends = [-1; 2];
    // SAFETY: a place for two descriptors, which are new.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) < 0 {
            return fail(errno());
        }
        Ok((File::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

fn failed<T>(e: &io::Error) -> Res<T> {
    fail(e.raw_os_error().unwrap_or(libc::EIO))
}
