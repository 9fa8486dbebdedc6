//! stat and its kin with the old `__xstat` names, statx, access, statfs.

use crate::description::Open;
use crate::hook::{Out, Res, check, errno, fail, hook, nowhere, text};
use crate::mounts::{self, Mount};
use crate::path::{self, Found, To};
use crate::plain::Plain;
use crate::table;
use fs::{Access, Attr, FileSystem};
use libc::{
    AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW, c_char, c_int, c_uint, stat as Stat, statx as Statx,
};

/// What a path or descriptor leads to; its path need not be said.
pub(crate) fn find(dirfd: c_int, path: *const c_char, flags: c_int) -> Res<To<Found>> {
    // SAFETY: the hooked function's caller gave a C string.
    let path = if path.is_null() && flags & AT_EMPTY_PATH != 0 { b"" } else { unsafe { text(path) }? };
    if path.is_empty() && flags & AT_EMPTY_PATH != 0 {
        if dirfd == AT_FDCWD {
            return match crate::cwd::now() {
                crate::cwd::Cwd::Gone => fail(libc::ENOENT),
                crate::cwd::Cwd::Volume(dir, _) => {
                    let attr = dir.mount.run(|fs| fs.getattr(dir.ino, None))?;
                    Ok(To::Volume(Found { mount: dir.mount, attr, path: dir.path }))
                }
                _ => Err(Out::Libc),
            };
        }
        return of_descriptor(dirfd).map(To::Volume);
    }
    let follow = flags & AT_SYMLINK_NOFOLLOW == 0;
    let plain = Plain::of(dirfd, path);
    if let Some((mount, attr)) = plain.and_then(|p| Some((p.mount, p.look(follow, |attr| *attr)?))) {
        return Ok(To::Volume(Found { mount, attr, path: None }));
    }
    path::resolve(dirfd, path, follow)
}

/// What `f` says of the attributes of what a path leads to, if they are known here. It is given the mount too, and must not take long.
#[inline]
fn known<T>(
    (dirfd, path, flags): (c_int, *const c_char, c_int),
    f: impl FnOnce(&'static Mount, &Attr) -> T,
) -> Option<T> {
    if path.is_null() {
        return None;
    }
    // SAFETY: as in `find`.
    let plain = Plain::of(dirfd, unsafe { text(path) }.ok()?)?;
    plain.look(flags & AT_SYMLINK_NOFOLLOW == 0, |attr| f(plain.mount, attr))
}

/// What an open file is now.
pub(crate) fn of_descriptor(fd: c_int) -> Res<Found> {
    let open = table::get(fd).ok_or(Out::Libc)?;
    Ok(Found {
        mount: open.mount,
        attr: attr_of(&open, |attr| *attr)?,
        path: open.path().map(path::Text::from_slice),
    })
}

/// What `f` says of the attributes of an open file. It must not take long.
pub(crate) fn attr_of<T>(open: &Open, f: impl Fn(&Attr) -> T) -> Res<T> {
    let handle = if open.is_path() { None } else { Some(open.handle()?) };
    if handle.is_none() {
        open.is_there()?;
    }
    match open.mount.session().and_then(|fs| fs.look_at_inode(open.ino, handle, &f)) {
        Some(said) => Ok(said),
        None => open.mount.run(|fs| fs.getattr(open.ino, handle)).map(|attr| f(&attr)),
    }
}

/// The flags of stat and its kin.
const OF_STAT: c_int = AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | AT_EMPTY_PATH | SYNC_TYPE;
/// `AT_STATX_SYNC_TYPE`: either of these, or none.
const SYNC_TYPE: c_int = libc::AT_STATX_FORCE_SYNC | libc::AT_STATX_DONT_SYNC;

/// Writes to the caller's memory, which is nowhere or has room for it.
fn give<T>(to: *mut T, value: T) -> Res<c_int> {
    if nowhere(to) {
        return fail(libc::EFAULT);
    }
    // SAFETY: as said.
    unsafe { to.write(value) };
    Ok(0)
}

fn stat_of(mount: &Mount, a: &Attr) -> Stat {
    // SAFETY: all zeros is a stat.
    let mut st: Stat = unsafe { std::mem::zeroed() };
    st.st_dev = mount.dev();
    st.st_ino = a.ino.0;
    st.st_mode = a.mode();
    st.st_nlink = a.nlink as _;
    (st.st_uid, st.st_gid) = (a.uid, a.gid);
    st.st_rdev = a.rdev;
    st.st_size = a.size as i64;
    st.st_blksize = 4096;
    st.st_blocks = a.blocks as i64;
    (st.st_atime, st.st_atime_nsec) = (a.atime.sec, a.atime.nsec as i64);
    (st.st_mtime, st.st_mtime_nsec) = (a.mtime.sec, a.mtime.nsec as i64);
    (st.st_ctime, st.st_ctime_nsec) = (a.ctime.sec, a.ctime.nsec as i64);
    st
}

fn statx_of(mount: &Mount, a: &Attr) -> Statx {
    // SAFETY: all zeros is a statx.
    let mut st: Statx = unsafe { std::mem::zeroed() };
    st.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    st.stx_blksize = 4096;
    st.stx_nlink = a.nlink;
    (st.stx_uid, st.stx_gid) = (a.uid, a.gid);
    st.stx_mode = a.mode() as u16;
    (st.stx_ino, st.stx_size, st.stx_blocks) = (a.ino.0, a.size, a.blocks);
    for (to, from) in [
        (&mut st.stx_atime, a.atime),
        (&mut st.stx_mtime, a.mtime),
        (&mut st.stx_ctime, a.ctime),
        (&mut st.stx_btime, a.btime),
    ] {
        (to.tv_sec, to.tv_nsec) = (from.sec, from.nsec);
    }
    (st.stx_dev_major, st.stx_dev_minor) = (libc::major(mount.dev()), libc::minor(mount.dev()));
    (st.stx_rdev_major, st.stx_rdev_minor) = (libc::major(a.rdev), libc::minor(a.rdev));
    st
}

fn stat_at(dirfd: c_int, path: *const c_char, to: *mut Stat, flags: c_int) -> Res<c_int> {
    if let Some(st) = known((dirfd, path, flags), stat_of) {
        return give(to, st);
    }
    match find(dirfd, path, flags)? {
        To::Volume(found) => give(to, stat_of(found.mount, &found.attr)),
        To::Kernel(path) => {
            // SAFETY: a C string of our own, and the caller's buffer.
            match unsafe { fstatat::real(AT_FDCWD, path.as_ptr(), to, flags & !AT_EMPTY_PATH) } {
                0 => Ok(0),
                _ => fail(errno()),
            }
        }
    }
}

fn stat_fd(fd: c_int, to: *mut Stat) -> Res<c_int> {
    let open = table::get(fd).ok_or(Out::Libc)?;
    give(to, attr_of(&open, |attr| stat_of(open.mount, attr))?)
}

fn access_at(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> Res<c_int> {
    if mode & !7 != 0 {
        return fail(libc::EINVAL);
    }
    match find(dirfd, path, flags)? {
        To::Volume(found) => {
            // The session's credentials are the effective ones of its beginning; programs with other real ones are rare, and
            // set-user-id programs are not served at all.
            let mask = Access::from_bits_truncate(mode as u32);
            if !mask.is_empty() {
                found.mount.run(|fs| fs.access(mounts::cred(), found.attr.ino, mask))?;
            }
            Ok(0)
        }
        To::Kernel(path) => {
            // SAFETY: a C string of our own.
            match unsafe { faccessat::real(AT_FDCWD, path.as_ptr(), mode, flags & !AT_EMPTY_PATH) } {
                0 => Ok(0),
                _ => fail(errno()),
            }
        }
    }
}

fn statfs_of(mount: &'static Mount, to: *mut libc::statfs) -> Res<c_int> {
    let s = mount.run(|fs| fs.statfs())?;
    // SAFETY: all zeros is a statfs.
    let mut st: libc::statfs = unsafe { std::mem::zeroed() };
    st.f_type = 0x4652_4548;
    st.f_bsize = s.block_size as _;
    st.f_frsize = s.block_size as _;
    (st.f_blocks, st.f_bfree, st.f_bavail) = (s.blocks, s.blocks_free, s.blocks_available);
    (st.f_files, st.f_ffree) = (s.inodes, s.inodes_free);
    st.f_namelen = s.name_max as _;
    give(to, st)
}

fn statvfs_of(mount: &'static Mount, to: *mut libc::statvfs) -> Res<c_int> {
    let s = mount.run(|fs| fs.statfs())?;
    // SAFETY: all zeros is a statvfs.
    let mut st: libc::statvfs = unsafe { std::mem::zeroed() };
    (st.f_bsize, st.f_frsize) = (s.block_size as _, s.block_size as _);
    (st.f_blocks, st.f_bfree, st.f_bavail) = (s.blocks, s.blocks_free, s.blocks_available);
    (st.f_files, st.f_ffree, st.f_favail) = (s.inodes, s.inodes_free, s.inodes_free);
    st.f_fsid = mount.dev() as _;
    st.f_namemax = s.name_max as _;
    give(to, st)
}

/// The mount of a path that lies in a volume; `Libc` otherwise.
fn mount_of(path: *const c_char) -> Res<&'static Mount> {
    match find(AT_FDCWD, path, 0)? {
        To::Volume(found) => Ok(found.mount),
        To::Kernel(_) => Err(Out::Libc),
    }
}

fn mount_of_fd(fd: c_int) -> Res<&'static Mount> {
    Ok(table::get(fd).ok_or(Out::Libc)?.mount)
}

hook! {
    fn stat | stat64(path: *const c_char, to: *mut Stat) -> c_int { stat_at(AT_FDCWD, path, to, 0) }
    fn lstat | lstat64(path: *const c_char, to: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, to, AT_SYMLINK_NOFOLLOW)
    }
    fn fstat | fstat64(fd: c_int, to: *mut Stat) -> c_int { stat_fd(fd, to) }
    fn fstatat | fstatat64(dirfd: c_int, path: *const c_char, to: *mut Stat, flags: c_int) -> c_int {
        check(flags, OF_STAT)?;
        stat_at(dirfd, path, to, flags)
    }
    fn __xstat | __xstat64(_version: c_int, path: *const c_char, to: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, to, 0)
    }
    fn __lxstat | __lxstat64(_version: c_int, path: *const c_char, to: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, to, AT_SYMLINK_NOFOLLOW)
    }
    fn __fxstat | __fxstat64(_version: c_int, fd: c_int, to: *mut Stat) -> c_int { stat_fd(fd, to) }
    fn __fxstatat | __fxstatat64(
        _version: c_int, dirfd: c_int, path: *const c_char, to: *mut Stat, flags: c_int
    ) -> c_int {
        check(flags, OF_STAT)?;
        stat_at(dirfd, path, to, flags)
    }
    fn statx(dirfd: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut Statx) -> c_int {
        check(flags, OF_STAT)?;
        if mask & libc::STATX__RESERVED as c_uint != 0 || flags & SYNC_TYPE == SYNC_TYPE {
            return Err(Out::Libc);
        }
        if let Some(st) = known((dirfd, path, flags), statx_of) {
            return give(to, st);
        }
        match find(dirfd, path, flags)? {
            To::Volume(found) => give(to, statx_of(found.mount, &found.attr)),
            To::Kernel(path) => match statx::real(AT_FDCWD, path.as_ptr(), flags & !AT_EMPTY_PATH, mask, to) {
                0 => Ok(0),
                _ => fail(errno()),
            },
        }
    }
    fn access(path: *const c_char, mode: c_int) -> c_int { access_at(AT_FDCWD, path, mode, 0) }
    fn euidaccess | eaccess(path: *const c_char, mode: c_int) -> c_int { access_at(AT_FDCWD, path, mode, 0) }
    fn faccessat(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        check(flags, libc::AT_EACCESS | AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)?;
        access_at(dirfd, path, mode, flags)
    }
    fn statfs | statfs64(path: *const c_char, to: *mut libc::statfs) -> c_int { statfs_of(mount_of(path)?, to) }
    fn fstatfs | fstatfs64(fd: c_int, to: *mut libc::statfs) -> c_int { statfs_of(mount_of_fd(fd)?, to) }
    fn statvfs | statvfs64(path: *const c_char, to: *mut libc::statvfs) -> c_int {
        statvfs_of(mount_of(path)?, to)
    }
    fn fstatvfs | fstatvfs64(fd: c_int, to: *mut libc::statvfs) -> c_int { statvfs_of(mount_of_fd(fd)?, to) }
    fn pathconf(path: *const c_char, name: c_int) -> libc::c_long { limit(mount_of(path)?, name) }
    fn fpathconf(fd: c_int, name: c_int) -> libc::c_long { limit(mount_of_fd(fd)?, name) }
}

fn limit(_mount: &Mount, name: c_int) -> Res<libc::c_long> {
    Ok(match name {
        libc::_PC_NAME_MAX => 255,
        libc::_PC_PATH_MAX => 4096,
        // As `format::limits::LINK_MAX`.
        libc::_PC_LINK_MAX => 1 << 30,
        libc::_PC_PIPE_BUF => 4096,
        libc::_PC_FILESIZEBITS => 64,
        libc::_PC_SYMLINK_MAX => 4095,
        libc::_PC_CHOWN_RESTRICTED | libc::_PC_NO_TRUNC => 1,
        _ => return fail(libc::EINVAL),
    })
}
