//! Descriptors: close, dup, fcntl, and locks; poll and ioctl as far as regular files have them.
//!
//! The kernel's descriptor is changed first, and the table follows. A child of vfork changes only the kernel's descriptors, and what the library keeps for it alone: the
//! table is its parent's, and what it executes finds the descriptors by itself. The library's own descriptors are hidden from the program.

use crate::description::{Open, SEEN};
use crate::hook::{Out, Res, errno, fail, hook, nowhere};
use crate::mounts::{self, borrowed_memory};
use crate::signals::Held;
use crate::table;
use crate::{parked, rings};
use fs::{FileSystem, FileType, LockKind, RecordLock};
use libc::{c_int, c_uint, c_ulong, off_t};
use share::Description;

/// The kernel made descriptor `new` a copy of `old`.
fn copied(old: c_int, new: c_int) -> Res<c_int> {
    if new < 0 {
        return fail(errno());
    }
    if table::is_beyond(new) && table::is_ours(old) {
        // SAFETY: made just now, and nobody has heard of it.
        unsafe { libc::syscall(libc::SYS_close, new) };
        return fail(libc::EMFILE);
    }
    if (table::is_ours(old) || table::is_ours(new)) && old != new {
        let open = table::get(old);
        if borrowed_memory() {
            table::set_in_child(new..=new, open);
            return Ok(new);
        }
        if let Some(open) = &open {
            open.changed();
        }
        table::set(new, open);
    }
    Ok(new)
}

/// Whether dup2 may make `new` a copy of `old`: it is not the library's own, and not one that a file of ours cannot have, which is as a number beyond the limit of the process.
fn may_become(old: c_int, new: c_int) -> Res<()> {
    let beyond = table::is_beyond(new) && table::is_ours(old);
    if beyond || mounts::is_own(new) { fail(libc::EBADF) } else { Ok(()) }
}

/// # Safety
/// As of close(2).
pub(crate) unsafe fn close_fd(fd: c_int) -> Res<c_int> {
    if !table::is_ours(fd) {
        if mounts::is_own(fd) {
            return fail(libc::EBADF);
        }
        parked::freed(fd);
        return Err(Out::Libc);
    }
    // The description ends, and may be used again, when the kernel's descriptor is gone.
    let open = if borrowed_memory() {
        table::set_in_child(fd..=fd, None);
        None
    } else {
        table::replace(fd, None)
    };
    let open = match open.map(|open| parked::park(open, fd)) {
        Some(Ok(())) => return Ok(0),
        Some(Err(open)) => {
            open.closing(fd);
            Some(open)
        }
        None => None,
    };
    // SAFETY: as the caller says.
    let done = unsafe { libc::syscall(libc::SYS_close, fd) };
    if open.is_some() {
        parked::freed(fd);
    }
    if done == 0 { Ok(0) } else { fail(errno()) }
}

/// Closes a range without the library's own descriptors.
///
/// # Safety
/// As of close_range(2).
unsafe fn close_many(first: c_uint, last: c_uint, flags: c_int) -> Res<c_int> {
    const CLOEXEC: c_int = 4;
    if first > last || flags & !(CLOEXEC | 2) != 0 {
        return fail(libc::EINVAL);
    }
    let mut open = Vec::new();
    parked::close();
    let frees = flags & CLOEXEC == 0 && !borrowed_memory();
    let lowest = first.min(c_int::MAX as c_uint) as c_int;
    if frees {
        parked::freed(lowest);
        for fd in table::ours_in(first as usize, last as usize) {
            open.extend(table::get(fd));
            table::set(fd, None);
        }
    }
    if flags & CLOEXEC == 0 && borrowed_memory() {
        table::set_in_child(lowest..=last.min(c_int::MAX as c_uint) as c_int, None);
    }
    if flags & CLOEXEC != 0 {
        let changed = table::ours_in(first as usize, last as usize).into_iter().filter_map(table::get);
        changed.for_each(|open| open.changed());
    }
    let mut from = first;
    let (low, high) = share::client::high::range().into_inner();
    let own = (c_int::try_from(first).unwrap_or(c_int::MAX).max(low)
        ..=c_int::try_from(last).unwrap_or(c_int::MAX).min(high))
        .filter(|&fd| mounts::is_own(fd))
        .map(|fd| fd as c_uint);
    let mut pieces: Vec<(c_uint, c_uint)> = Vec::new();
    for fd in own {
        if fd > from {
            pieces.push((from, fd - 1));
        }
        from = fd + 1;
    }
    if from <= last {
        pieces.push((from, last));
    }
    for (first, last) in pieces {
        // SAFETY: as the caller says.
        if unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } != 0 {
            return fail(errno());
        }
    }
    if frees {
        parked::freed(lowest);
    }
    Ok(0)
}

/// The kernel's O_LARGEFILE, which it sets of all files; headers say that it is 0 where all files are large.
const LARGE_FILE: c_int = if cfg!(target_arch = "aarch64") { 0o400_000 } else { 0o100_000 };

/// # Safety
/// `argument` is what the command needs.
unsafe fn control(fd: c_int, command: c_int, argument: usize) -> Res<c_int> {
    let open = table::get(fd).ok_or(Out::Libc)?;
    let of_any = [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_SETFD, libc::F_GETFL];
    if open.is_path() && !of_any.contains(&command) {
        return fail(libc::EBADF);
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            drop(open);
            let _copying = rings::Copying::begin();
            // SAFETY: only descriptors are touched.
            copied(fd, unsafe { fcntl::real(fd, command, argument) })
        }
        libc::F_GETFD => Err(Out::Libc),
        libc::F_SETFD => {
            open.changed();
            Err(Out::Libc)
        }
        libc::F_GETFL => {
            let large = if !open.is_path() { LARGE_FILE } else { 0 };
            Ok(open.flags() & !libc::O_CLOEXEC | large)
        }
        libc::F_SETFL => set_flags(&open, argument as c_int).map(|()| 0),
        libc::F_GETLK
        | libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_OFD_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW => {
            // SAFETY: as the caller says.
            match unsafe { (argument as *mut libc::flock).as_mut() } {
                Some(lock) if !nowhere(lock) => record_lock(fd, &open, command, lock),
                _ => fail(libc::EFAULT),
            }
        }
        libc::F_GETOWN | libc::F_SETOWN => Ok(0),
        libc::F_GETLEASE => Ok(libc::F_UNLCK),
        _ => fail(libc::EINVAL),
    }
}

/// What fcntl(F_SETFL) does.
pub(crate) fn set_flags(open: &Open, flags: c_int) -> Res<()> {
    let may = libc::O_APPEND | libc::O_NONBLOCK | libc::O_ASYNC | libc::O_DIRECT | libc::O_NOATIME;
    let before = open.flags();
    let flags = before & !may | flags & may;
    open.slot.set_flags(flags);
    // Not one to be used again.
    open.changed();
    // It is opened anew.
    if (before ^ flags) & SEEN != 0 && open.reopen((before & SEEN, flags & SEEN)).is_err() {
        open.slot.set_flags(before);
        return fail(libc::EPERM);
    }
    Ok(())
}

/// First and last byte of a lock.
fn range(open: &Open, lock: &libc::flock) -> Res<(u64, u64)> {
    let base = match lock.l_whence as c_int {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => open.slot.offset()? as i64,
        libc::SEEK_END => crate::rw::size(open)? as i64,
        _ => return fail(libc::EINVAL),
    };
    let overflow = || Out::Errno(libc::EOVERFLOW);
    let at = base.checked_add(lock.l_start).ok_or_else(overflow)?;
    let (start, end) = match lock.l_len {
        0 => (at, -1),
        n if n > 0 => (at, at.checked_add(n - 1).ok_or_else(overflow)?),
        n => (at.checked_add(n).ok_or_else(overflow)?, at - 1),
    };
    match u64::try_from(start) {
        Ok(start) if lock.l_len == 0 || end == i64::MAX => Ok((start, u64::MAX)),
        Ok(start) => Ok((start, end as u64)),
        Err(_) => fail(libc::EINVAL),
    }
}

fn record_lock(fd: c_int, open: &Open, command: c_int, lock: &mut libc::flock) -> Res<c_int> {
    let of_description = matches!(command, libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW);
    if of_description && lock.l_pid != 0 {
        return fail(libc::EINVAL);
    }
    let (handle, owner) = (open.handle()?, table::owner());
    let (start, end) = range(open, lock)?;
    let pid = if of_description { RecordLock::OF_DESCRIPTION } else { mounts::pid() };
    let kind = match lock.l_type as c_int {
        libc::F_RDLCK => Some(LockKind::Shared),
        libc::F_WRLCK => Some(LockKind::Exclusive),
        libc::F_UNLCK => None,
        _ => return fail(libc::EINVAL),
    };
    let wanted = kind.map(|kind| RecordLock { start, end, kind, pid });
    if matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) {
        let wanted = wanted.ok_or(Out::Errno(libc::EINVAL))?;
        let found = if of_description {
            let test = |d: &Description<'_>| open.mount.run(|fs| fs.getlk_description(handle, d, wanted));
            open.slot.with_description(fd, test)?
        } else {
            open.mount.run(|fs| fs.getlk(handle, owner, wanted))?
        };
        match found {
            None => lock.l_type = libc::F_UNLCK as _,
            Some(found) => {
                let exclusive = found.kind == LockKind::Exclusive;
                lock.l_type = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK } as _;
                lock.l_whence = libc::SEEK_SET as _;
                lock.l_start = found.start as i64;
                lock.l_len = if found.end == u64::MAX { 0 } else { (found.end - found.start + 1) as i64 };
                lock.l_pid = found.pid as i32;
            }
        }
        return Ok(0);
    }
    let (wait, wanted) = (matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW), wanted.ok_or((start, end)));
    if of_description {
        let set =
            |d: &Description<'_>, wait| open.mount.run(|fs| fs.setlk_description(handle, d, wanted, wait));
        return lock_for_all(fd, open, (wanted.is_ok(), wait), set);
    }
    open.locks();
    waiting(wait, |wait| open.mount.run(|fs| fs.setlk(handle, owner, wanted, wait)))?;
    Ok(0)
}

/// Locks the whole file for the open file description, or gives the lock up.
fn whole_lock(fd: c_int, open: &Open, kind: Option<LockKind>, wait: bool) -> Res<c_int> {
    let handle = open.handle()?;
    let set = |d: &Description<'_>, wait| open.mount.run(|fs| fs.flock_description(handle, d, kind, wait));
    lock_for_all(fd, open, (kind.is_some(), wait), set)
}

/// Makes a call that has the open file description lock something, whoever else has that, or give it up, and tells whether it has locks then.
fn lock_for_all(
    fd: c_int,
    open: &Open,
    (locks, wait): (bool, bool),
    set: impl Fn(&Description<'_>, bool) -> Res<bool>,
) -> Res<c_int> {
    if locks {
        // First of all: should this process end, the manager has to know who else has the description.
        open.watch(fd)?;
    }
    let call = || open.slot.with_description(fd, |d| waiting(wait && locks, |wait| set(d, wait)));
    open.locked_by(fd, locks, call).map(|()| 0)
}

/// Makes a call that may wait for a lock. While it waits, signals interrupt it as they do in the kernel.
fn waiting<T>(wait: bool, call: impl Fn(bool) -> Res<T>) -> Res<T> {
    if !wait {
        return call(false);
    }
    let held = Held::begin();
    share::client::interruptible(&|| held.interrupted(), || call(true))
}

hook! {
    fn close(fd: c_int) -> c_int { close_fd(fd) }
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int { close_many(first, last, flags) }
    fn dup(fd: c_int) -> c_int {
        let _copying = rings::Copying::begin();
        copied(fd, dup::real(fd))
    }
    fn dup2(old: c_int, new: c_int) -> c_int {
        let _copying = rings::Copying::begin();
        may_become(old, new)?;
        copied(old, dup2::real(old, new))
    }
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        let _copying = rings::Copying::begin();
        may_become(old, new)?;
        copied(old, dup3::real(old, new, flags))
    }
    fn fcntl | fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int { control(fd, command, argument) }
    fn flock(fd: c_int, operation: c_int) -> c_int {
        let open = table::get(fd).ok_or(Out::Libc)?;
        let kind = match operation & !libc::LOCK_NB {
            libc::LOCK_SH => Some(LockKind::Shared),
            libc::LOCK_EX => Some(LockKind::Exclusive),
            libc::LOCK_UN => None,
            _ => return fail(libc::EINVAL),
        };
        whole_lock(fd, &open, kind, operation & libc::LOCK_NB == 0)
    }
    fn lockf | lockf64(fd: c_int, command: c_int, len: off_t) -> c_int {
        let open = table::get(fd).ok_or(Out::Libc)?;
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_whence = libc::SEEK_CUR as _;
        lock.l_len = len;
        lock.l_type = match command {
            libc::F_ULOCK => libc::F_UNLCK,
            // As libc asks: locks that others share are none.
            libc::F_TEST => libc::F_RDLCK,
            _ => libc::F_WRLCK,
        } as _;
        match command {
            libc::F_LOCK => record_lock(fd, &open, libc::F_SETLKW, &mut lock),
            libc::F_TLOCK | libc::F_ULOCK => record_lock(fd, &open, libc::F_SETLK, &mut lock),
            libc::F_TEST => {
                record_lock(fd, &open, libc::F_GETLK, &mut lock)?;
                if lock.l_type == libc::F_UNLCK as i16 { Ok(0) } else { fail(libc::EACCES) }
            }
            _ => fail(libc::EINVAL),
        }
    }
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
        const FICLONE: c_ulong = 0x4004_9409;
        const FICLONERANGE: c_ulong = 0x4020_940d;
        match request {
            FICLONE | FICLONERANGE if table::is_ours(fd) || table::is_ours(argument as c_int) => {
                fail(libc::EOPNOTSUPP)
            }
            libc::FIOCLEX | libc::FIONCLEX => {
                if let Some(open) = table::get(fd) {
                    open.changed();
                }
                Err(Out::Libc)
            }
            libc::FIONBIO | libc::FIONREAD if table::is_ours(fd) => of_any_file(fd, request, argument as *mut c_int),
            _ if table::is_ours(fd)
                && let Some(done) = crate::barrier::by_ioctl(fd, request) =>
            {
                done
            }
            _ if table::is_ours(fd) => fail(libc::ENOTTY),
            _ => Err(Out::Libc),
        }
    }
}

/// The requests that the kernel answers itself, for files of whichever file system: FIONBIO and FIONREAD.
///
/// # Safety
/// `value` is null or leads to a number.
unsafe fn of_any_file(fd: c_int, request: c_ulong, value: *mut c_int) -> Res<c_int> {
    let open = table::get(fd).ok_or(Out::Libc)?;
    // SAFETY: as the caller says.
    let Some(value) = (unsafe { value.as_mut() }) else { return fail(libc::EFAULT) };
    if request == libc::FIONBIO {
        let others = open.flags() & !libc::O_NONBLOCK;
        open.slot.set_flags(if *value == 0 { others } else { others | libc::O_NONBLOCK });
        return Ok(0);
    }
    if open.kind != FileType::Regular {
        return fail(libc::ENOTTY);
    }
    let size = crate::rw::size(&open)?;
    *value = size.wrapping_sub(open.slot.offset()?) as c_int;
    Ok(0)
}

/// closefrom(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: as the caller says.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}
