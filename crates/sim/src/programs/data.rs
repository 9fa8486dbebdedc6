//! Calls that move bytes.

use super::actor::{Actor, Answer, Words, check};
use libc::c_void;
use std::io;
use std::ptr;

/// The bytes of write number `n`.
fn bytes(n: i64, len: usize) -> Vec<u8> {
    crate::ops::pattern(n as u32, len as u32)
}

/// How many bytes, and which.
pub(super) fn shown(bytes: &[u8]) -> String {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for byte in bytes {
        sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    let zeros = bytes.iter().filter(|&&byte| byte == 0).count();
    format!("{} bytes, {zeros} of them zero, sum {sum:016x}", bytes.len())
}

/// Said of places in a directory: each file system has its own.
pub(super) const OF_DIRECTORY: &str = "a place in a directory";
/// Said of copies within a file.
pub(super) const ONE_FILE: &str = "one file";

fn stat_of(fd: libc::c_int) -> io::Result<libc::stat> {
    // SAFETY: a place for the answer.
    unsafe {
        let mut stat = std::mem::zeroed::<libc::stat>();
        check(libc::fstat(fd, &mut stat))?;
        Ok(stat)
    }
}

pub(super) fn is_directory(fd: libc::c_int) -> bool {
    stat_of(fd).is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFDIR)
}

fn iovecs(len: usize, base: *mut c_void) -> [libc::iovec; 3] {
    let cuts = [0, len / 3, len / 3, len];
    [0, 1, 2].map(|i| {
        // SAFETY: within the buffer, or just behind it.
        let iov_base = unsafe { base.byte_add(cuts[i]) };
        libc::iovec { iov_base, iov_len: cuts[i + 1] - cuts[i] }
    })
}

/// A call by its name; `None` when it is not one of these.
pub(super) fn by_name(actor: &mut Actor, call: &str, words: &mut Words<'_>) -> Option<Answer> {
    match call {
        "read" | "pread" | "readv" | "preadv" => Some(read(actor, call, words)),
        "write" | "pwrite" | "writev" | "pwritev2" => Some(write(actor, call, words)),
        "lseek" => {
            let (fd, offset, whence) = (actor.fd(words), words.number(), words.flags());
            if is_directory(fd) {
                return Some(Ok(OF_DIRECTORY.to_owned()));
            }
            // SAFETY: numbers.
            Some(check(unsafe { libc::lseek(fd, offset, whence) }).map(|at| at.to_string()))
        }
        "copy_range" | "sendfile" => Some(copy(actor, call, words)),
        "map" => Some(map(actor, words)),
        _ => None,
    }
}

fn read(actor: &Actor, call: &str, words: &mut Words<'_>) -> Answer {
    let (fd, len) = (actor.fd(words), words.number() as usize);
    let mut to = vec![0xa5u8; len];
    let place: *mut c_void = to.as_mut_ptr().cast();
    let parts = iovecs(len, place);
    // SAFETY: the buffer, or the parts of it, are valid for the length.
    let n = check(unsafe {
        match call {
            "read" => libc::read(fd, place, len),
            "pread" => libc::pread(fd, place, len, words.number()),
            "readv" => libc::readv(fd, parts.as_ptr(), 3),
            _ => libc::preadv(fd, parts.as_ptr(), 3, words.number()),
        }
    } as i64)? as usize;
    // What lies behind was not to be touched.
    match to[n..].iter().all(|&byte| byte == 0xa5) {
        true => Ok(shown(&to[..n])),
        false => Err(io::Error::other("the buffer is changed behind what was read")),
    }
}

fn write(actor: &Actor, call: &str, words: &mut Words<'_>) -> Answer {
    let (fd, number, len) = (actor.fd(words), words.number(), words.number() as usize);
    let mut from = bytes(number, len);
    let place: *mut c_void = from.as_mut_ptr().cast();
    let parts = iovecs(len, place);
    // SAFETY: the buffer, or the parts of it, are valid for the length.
    let n = check(unsafe {
        match call {
            "write" => libc::write(fd, place, len),
            "pwrite" => libc::pwrite(fd, place, len, words.number()),
            "writev" => libc::writev(fd, parts.as_ptr(), 3),
            _ => libc::pwritev2(fd, parts.as_ptr(), 3, words.number(), words.flags()),
        }
    } as i64)?;
    Ok(n.to_string())
}

/// All that can be had, as cp(1) would: how much comes at once is left to the system.
fn copy(actor: &Actor, call: &str, words: &mut Words<'_>) -> Answer {
    let (from, to) = (actor.fd(words), actor.fd(words));
    let mut left = words.number() as usize;
    let mut copied = 0;
    // The kernel sends pages that it may be writing over by then: what comes of that nobody says. (It refuses copy_file_range within one range.)
    let inode = |fd| stat_of(fd).map(|stat| (stat.st_dev, stat.st_ino));
    if call == "sendfile" && inode(from)? == inode(to)? {
        return Ok(ONE_FILE.to_owned());
    }
    while left > 0 {
        // SAFETY: numbers, and offsets that are not asked for.
        let n = check(unsafe {
            match call {
                "sendfile" => libc::sendfile(to, from, ptr::null_mut(), left),
                _ => libc::copy_file_range(from, ptr::null_mut(), to, ptr::null_mut(), left, 0),
            }
        } as i64)?;
        if n == 0 {
            break;
        }
        copied += n;
        left -= n as usize;
    }
    Ok(copied.to_string())
}

/// Maps pages of a file, reads them and, where the mapping is shared and writable, changes some bytes within the size.
fn map(actor: &Actor, words: &mut Words<'_>) -> Answer {
    let (fd, access, kind) = (actor.fd(words), words.flags(), words.flags());
    let (page, pages, number) = (words.number(), words.number() as usize, words.number());
    // SAFETY: a new mapping at a place of the system's choice.
    let map = unsafe { libc::mmap(ptr::null_mut(), pages * 4096, access, kind, fd, page * 4096) };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let size = stat_of(fd)?.st_size;
    // Behind the last page of the file there is nothing to be touched.
    let within = (size - page * 4096).clamp(0, pages as i64 * 4096) as usize;
    let mut answer = String::new();
    if access & libc::PROT_READ != 0 {
        // SAFETY: mapped, readable, and within the file.
        answer = shown(unsafe { std::slice::from_raw_parts(map.cast::<u8>(), within) });
    }
    if access & libc::PROT_WRITE != 0 && within > 0 {
        let (at, len) = (within / 3, (within / 2).min(5000));
        let new = bytes(number, len);
        // SAFETY: mapped, writable, and within the file.
        unsafe { ptr::copy_nonoverlapping(new.as_ptr(), map.cast::<u8>().add(at), len.min(within - at)) };
        if kind == libc::MAP_SHARED {
            // SAFETY: the mapping made above.
            check(unsafe { libc::msync(map, pages * 4096, libc::MS_SYNC) })?;
        }
    }
    // SAFETY: the mapping made above, which nothing refers to any more.
    check(unsafe { libc::munmap(map, pages * 4096) })?;
    Ok(answer)
}
