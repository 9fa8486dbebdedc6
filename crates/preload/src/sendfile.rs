//! sendfile(2) between descriptors of which one or both are ours: reads and writes, as many as it takes.
//!
//! The offset of the source is moved by what the target took. Where tested: `tests/all/more_programs.rs`.

use crate::hook::{Out, Res, errno, fail, outside};
use crate::{rw, table};
use fs::FileType;
use libc::{c_int, off_t, size_t, ssize_t};

/// Bytes that are moved at a time.
const PIECE: usize = 64 << 10;

/// # Safety
/// `at` is null or leads to an offset.
pub(crate) unsafe fn send(to: c_int, from: c_int, at: *mut off_t, n: size_t) -> Res<ssize_t> {
    if !table::is_ours(to) && !table::is_ours(from) {
        return Err(Out::Libc);
    }
    let (source, target) = (table::get(from), table::get(to));
    if source.as_ref().is_some_and(|open| !open.readable())
        || target.as_ref().is_some_and(|open| !open.writable())
    {
        return fail(libc::EBADF);
    }
    // Also where nothing is moved these must be open.
    // SAFETY: a number.
    let is_closed = |fd: c_int| unsafe { libc::fcntl(fd, libc::F_GETFL) } < 0;
    if source.is_none() && is_closed(from) || target.is_none() && is_closed(to) {
        return fail(libc::EBADF);
    }
    if source.is_some_and(|open| open.kind == FileType::Directory)
        || target.is_some_and(|open| open.flags() & libc::O_APPEND != 0)
    {
        return fail(libc::EINVAL);
    }
    // SAFETY: as the caller says.
    let fixed = unsafe { at.as_mut() };
    let begin = match &fixed {
        Some(at) => **at,
        // SAFETY: only descriptors and memory of our own are touched, here and below.
        None => outside(|| unsafe { rw::lseek(from, 0, libc::SEEK_CUR) }),
    };
    // Nor can pipes and their like be sources.
    if begin < 0 {
        return fail(libc::EINVAL);
    }
    let mut buffer = vec![0u8; n.min(PIECE)];
    let mut done = 0;
    while done < n {
        let room = buffer.len().min(n - done);
        // SAFETY: as above.
        let got =
            outside(|| unsafe { rw::pread(from, buffer.as_mut_ptr().cast(), room, begin + done as off_t) });
        let Ok(got) = usize::try_from(got) else {
            if done > 0 {
                break;
            }
            return fail(errno());
        };
        if got == 0 {
            break;
        }
        // SAFETY: as above.
        let took = outside(|| unsafe { rw::write(to, buffer.as_ptr().cast(), got) });
        let Ok(took) = usize::try_from(took) else {
            if done > 0 {
                break;
            }
            return fail(errno());
        };
        done += took;
        if took < got {
            break;
        }
    }
    let end = begin + done as off_t;
    match fixed {
        Some(at) => *at = end,
        None => {
            // SAFETY: as above.
            outside(|| unsafe { rw::lseek(from, end, libc::SEEK_SET) });
        }
    }
    Ok(done as ssize_t)
}
