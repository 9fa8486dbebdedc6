//! Size, space, durability, mode, owner and times: truncate, fallocate, fsync, chmod, chown, utimensat and their kin.

use crate::hook::{Out, Res, check, errno, fail, hook, nowhere, set_errno};
use crate::limits;
use crate::mapped;
use crate::mounts::{self, mounts};
use crate::path::{Found, To};
use crate::rw::size;
use crate::stat::find;
use crate::table;
use fs::{Fallocate, FileSystem, FileType, SetAttr, SetTime, Time};
use libc::{AT_FDCWD, AT_SYMLINK_NOFOLLOW, c_char, c_int, gid_t, mode_t, off_t, timespec, timeval, uid_t};

/// Sets attributes of what a path leads to; what the kernel has is done by `real`.
fn set_at(
    (dirfd, path, flags): (c_int, *const c_char, c_int),
    set: SetAttr,
    real: impl FnOnce(*const c_char) -> c_int,
) -> Res<c_int> {
    match find(dirfd, path, flags)? {
        To::Volume(found) => apply(&found, set),
        To::Kernel(path) if real(path.as_ptr()) == 0 => Ok(0),
        To::Kernel(_) => fail(errno()),
    }
}

fn apply(found: &Found, set: SetAttr) -> Res<c_int> {
    let sizes = set.size.is_some();
    limits::allows(set.size.unwrap_or(0), || Ok(found.attr.size))?;
    found.mount.run(|fs| fs.setattr(mounts::cred(), found.attr.ino, set))?;
    if sizes {
        mapped::resized((found.mount, found.attr.ino));
    }
    Ok(0)
}

fn set_fd(fd: c_int, set: SetAttr) -> Res<c_int> {
    let open = table::get(fd).ok_or(Out::Libc)?;
    if open.is_path() {
        return fail(libc::EBADF);
    }
    // The manager would ask for the rights of those who opened it. The size is a matter of the open file.
    if crate::ids::others() && set.size.is_none() {
        return fail(libc::EPERM);
    }
    let sizes = set.size.is_some();
    limits::allows(set.size.unwrap_or(0), || size(&open))?;
    let set = SetAttr { handle: Some(open.handle()?), ..set };
    open.mount.run(|fs| fs.setattr(mounts::cred(), open.ino, set))?;
    if sizes {
        mapped::resized((open.mount, open.ino));
    }
    Ok(0)
}

fn mode_of(mode: mode_t) -> SetAttr {
    SetAttr { perm: Some((mode & 0o7777) as u16), ..SetAttr::default() }
}

fn owner_of(uid: uid_t, gid: gid_t) -> SetAttr {
    let id = |id: u32| (id != u32::MAX).then_some(id);
    SetAttr { uid: id(uid), gid: id(gid), ..SetAttr::default() }
}

fn size_of(size: off_t) -> Res<SetAttr> {
    let size = u64::try_from(size).or(fail(libc::EINVAL))?;
    Ok(SetAttr { size: Some(size), ..SetAttr::default() })
}

/// # Safety
/// `times` is nowhere or leads to two times.
unsafe fn times_of(times: *const timespec) -> Res<SetAttr> {
    if times.is_null() {
        return Ok(SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() });
    }
    if nowhere(times) {
        return fail(libc::EFAULT);
    }
    // SAFETY: as the caller says.
    let times = unsafe { std::slice::from_raw_parts(times, 2) };
    let time = |t: &timespec| match t.tv_nsec {
        libc::UTIME_NOW => Ok(Some(SetTime::Now)),
        libc::UTIME_OMIT => Ok(None),
        n @ 0..1_000_000_000 => Ok(Some(SetTime::At(Time { sec: t.tv_sec, nsec: n as u32 }))),
        _ => fail(libc::EINVAL),
    };
    Ok(SetAttr { atime: time(&times[0])?, mtime: time(&times[1])?, ..SetAttr::default() })
}

/// Whether neither time is to be set: then the kernel does not even look at what it is of.
fn is_nothing(set: &SetAttr) -> bool {
    set.atime.is_none() && set.mtime.is_none()
}

/// # Safety
/// `times` is nowhere or leads to two times.
unsafe fn times_of_values(times: *const timeval) -> Res<SetAttr> {
    if times.is_null() {
        // SAFETY: null is allowed.
        return unsafe { times_of(std::ptr::null()) };
    }
    if nowhere(times) {
        return fail(libc::EFAULT);
    }
    // SAFETY: as the caller says.
    let times = unsafe { std::slice::from_raw_parts(times, 2) };
    let time = |t: &timeval| match t.tv_usec {
        n @ 0..1_000_000 => Ok(Some(SetTime::At(Time { sec: t.tv_sec, nsec: n as u32 * 1000 }))),
        _ => fail(libc::EINVAL),
    };
    Ok(SetAttr { atime: time(&times[0])?, mtime: time(&times[1])?, ..SetAttr::default() })
}

fn allocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> Res<c_int> {
    let open = table::get(fd).ok_or(Out::Libc)?;
    if !open.writable() {
        return fail(libc::EBADF);
    }
    if open.kind != FileType::Regular {
        return fail(libc::ENODEV);
    }
    const KEEP: c_int = libc::FALLOC_FL_KEEP_SIZE;
    let what = match mode & !KEEP {
        0 => Fallocate::Allocate { keep_size: mode & KEEP != 0 },
        libc::FALLOC_FL_PUNCH_HOLE if mode & KEEP != 0 => Fallocate::PunchHole,
        libc::FALLOC_FL_ZERO_RANGE => Fallocate::ZeroRange { keep_size: mode & KEEP != 0 },
        _ => return fail(libc::EOPNOTSUPP),
    };
    let (Ok(offset), Ok(len)) = (u64::try_from(offset), u64::try_from(len)) else {
        return fail(libc::EINVAL);
    };
    if mode & (KEEP | libc::FALLOC_FL_PUNCH_HOLE) == 0 {
        limits::allows(offset.saturating_add(len), || size(&open))?;
    }
    let handle = open.handle()?;
    open.mount.run(|fs| fs.fallocate(handle, what, offset, len))?;
    mapped::grown((open.mount, open.ino), || Some(offset.saturating_add(len)));
    Ok(0)
}

pub(crate) fn sync_fd(fd: c_int, datasync: bool) -> Res<c_int> {
    let open = table::get(fd).ok_or(Out::Libc)?;
    let handle = open.handle()?;
    open.mount.run(|fs| fs.fsync(handle, datasync))?;
    Ok(0)
}

hook! {
    fn truncate | truncate64(path: *const c_char, size: off_t) -> c_int {
        set_at((AT_FDCWD, path, 0), size_of(size)?, |path| truncate::real(path, size))
    }
    fn ftruncate | ftruncate64(fd: c_int, size: off_t) -> c_int {
        let open = table::get(fd).ok_or(Out::Libc)?;
        if open.is_path() {
            return fail(libc::EBADF);
        }
        if !open.writable() || open.kind != FileType::Regular {
            return fail(libc::EINVAL);
        }
        set_fd(fd, size_of(size)?)
    }
    fn fallocate | fallocate64(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int {
        allocate(fd, mode, offset, len)
    }
    fn posix_fallocate | posix_fallocate64(fd: c_int, offset: off_t, len: off_t) -> c_int {
        match allocate(fd, 0, offset, len) {
            Err(Out::Errno(errno)) => Ok(errno),
            other => other,
        }
    }
    fn posix_fadvise | posix_fadvise64(fd: c_int, _offset: off_t, len: off_t, advice: c_int) -> c_int {
        if !table::is_ours(fd) {
            return Err(Out::Libc);
        }
        let known = (libc::POSIX_FADV_NORMAL..=libc::POSIX_FADV_NOREUSE).contains(&advice) && len >= 0;
        Ok(if known { 0 } else { libc::EINVAL })
    }
    fn readahead(fd: c_int, _offset: off_t, _len: libc::size_t) -> libc::ssize_t {
        if table::is_ours(fd) { Ok(0) } else { Err(Out::Libc) }
    }
    fn fsync(fd: c_int) -> c_int { sync_fd(fd, false) }
    fn fdatasync(fd: c_int) -> c_int { sync_fd(fd, true) }
    fn sync_file_range(fd: c_int, _offset: off_t, _len: off_t, _flags: libc::c_uint) -> c_int { sync_fd(fd, true) }
    fn sync() -> () {
        let before = errno();
        // What the kernel has of the files of a mount goes to its manager first.
        sync::real();
        // Also where this program has done nothing: sync(1) is called for what others did. It cannot be told of failures.
        mounts().iter().for_each(|mount| drop(mount.run(|fs| fs.sync())));
        set_errno(before);
        Ok(())
    }
    fn syncfs(fd: c_int) -> c_int {
        let open = table::get(fd).ok_or(Out::Libc)?;
        open.mount.run(|fs| fs.sync())?;
        Ok(0)
    }
    fn chmod(path: *const c_char, mode: mode_t) -> c_int {
        set_at((AT_FDCWD, path, 0), mode_of(mode), |path| chmod::real(path, mode))
    }
    fn lchmod(path: *const c_char, mode: mode_t) -> c_int {
        let how = (AT_FDCWD, path, AT_SYMLINK_NOFOLLOW);
        set_at(how, mode_of(mode), |path| fchmodat::real(AT_FDCWD, path, mode, AT_SYMLINK_NOFOLLOW))
    }
    fn fchmod(fd: c_int, mode: mode_t) -> c_int { set_fd(fd, mode_of(mode)) }
    fn fchmodat(dirfd: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int {
        check(flags, AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH)?;
        set_at((dirfd, path, flags), mode_of(mode), |path| fchmodat::real(AT_FDCWD, path, mode, flags))
    }
    fn chown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
        set_at((AT_FDCWD, path, 0), owner_of(uid, gid), |path| chown::real(path, uid, gid))
    }
    fn lchown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
        let how = (AT_FDCWD, path, AT_SYMLINK_NOFOLLOW);
        set_at(how, owner_of(uid, gid), |path| lchown::real(path, uid, gid))
    }
    fn fchown(fd: c_int, uid: uid_t, gid: gid_t) -> c_int { set_fd(fd, owner_of(uid, gid)) }
    fn fchownat(dirfd: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int) -> c_int {
        check(flags, AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH)?;
        let real = |path| fchownat::real(AT_FDCWD, path, uid, gid, flags & !libc::AT_EMPTY_PATH);
        set_at((dirfd, path, flags), owner_of(uid, gid), real)
    }
    fn utimensat(dirfd: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int {
        if path.is_null() {
            // Only the call of the kernel takes that, and libc says so.
            return Err(Out::Libc);
        }
        let set = times_of(times)?;
        if is_nothing(&set) {
            return Ok(0);
        }
        check(flags, AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH)?;
        let real = |path| utimensat::real(AT_FDCWD, path, times, flags & !libc::AT_EMPTY_PATH);
        set_at((dirfd, path, flags), set, real)
    }
    fn futimens(fd: c_int, times: *const timespec) -> c_int {
        let set = times_of(times)?;
        if table::is_ours(fd) && is_nothing(&set) { Ok(0) } else { set_fd(fd, set) }
    }
    fn utimes(path: *const c_char, times: *const timeval) -> c_int {
        set_at((AT_FDCWD, path, 0), times_of_values(times)?, |path| utimes::real(path, times))
    }
    fn lutimes(path: *const c_char, times: *const timeval) -> c_int {
        let how = (AT_FDCWD, path, AT_SYMLINK_NOFOLLOW);
        set_at(how, times_of_values(times)?, |path| lutimes::real(path, times))
    }
    fn futimesat(dirfd: c_int, path: *const c_char, times: *const timeval) -> c_int {
        if path.is_null() {
            // The descriptor itself: so Java sets the times of files that it copies.
            return set_fd(dirfd, times_of_values(times)?);
        }
        let real = |path| futimesat::real(AT_FDCWD, path, times);
        set_at((dirfd, path, 0), times_of_values(times)?, real)
    }
    fn futimes(fd: c_int, times: *const timeval) -> c_int { set_fd(fd, times_of_values(times)?) }
    fn utime(path: *const c_char, times: *const libc::utimbuf) -> c_int {
        let set = match times.as_ref() {
            Some(_) if nowhere(times) => return fail(libc::EFAULT),
            None => times_of(std::ptr::null())?,
            Some(t) => {
                let at = |sec| Some(SetTime::At(Time { sec, nsec: 0 }));
                SetAttr { atime: at(t.actime), mtime: at(t.modtime), ..SetAttr::default() }
            }
        };
        set_at((AT_FDCWD, path, 0), set, |path| utime::real(path, times))
    }
}
