//! Making, removing and renaming names: mkdir, rmdir, unlink, remove, rename, link, symlink, readlink, mknod.
//!
//! A pair of paths of which one is the kernel's and one ours, or of two volumes, is `EXDEV`, as between any two file systems.

use crate::hook::{Out, Res, errno, fail, hook, memory_mut, text};
use crate::mounts;
use crate::path::{self, Entry, To};
use fs::{FileSystem, FileType, Ino, RenameFlags};
use libc::{AT_FDCWD, c_char, c_int, c_uint, mode_t, size_t, ssize_t};

/// The result of a libc call.
fn done(result: c_int) -> Res<c_int> {
    if result == 0 { Ok(0) } else { fail(errno()) }
}

/// mkdirat(2). `Libc` when the path is the kernel's.
pub(crate) fn make_dir(dirfd: c_int, path: &[u8], mode: mode_t) -> Res<c_int> {
    match path::parent(dirfd, path)? {
        // SAFETY: a C string of our own.
        To::Kernel(path) => done(unsafe { mkdirat::real(AT_FDCWD, path.as_ptr(), mode) }),
        To::Volume(e) => {
            if !e.ordinary() {
                return fail(libc::EEXIST);
            }
            let perm = (mode & !mounts::umask_now() & 0o7777) as u16;
            e.dir.mount.run(|fs| fs.mkdir(mounts::cred(), e.dir.ino, &e.name, perm))?;
            Ok(0)
        }
    }
}

fn unlink_at(dirfd: c_int, path: &[u8], flags: c_int) -> Res<c_int> {
    match path::parent(dirfd, path)? {
        // SAFETY: as above.
        To::Kernel(path) => done(unsafe { unlinkat::real(AT_FDCWD, path.as_ptr(), flags) }),
        To::Volume(e) if flags & libc::AT_REMOVEDIR != 0 => {
            match &e.name[..] {
                b"." => return fail(libc::EINVAL),
                b".." => return fail(libc::ENOTEMPTY),
                b"" => return fail(libc::EBUSY),
                _ => {}
            }
            e.dir.mount.run(|fs| fs.rmdir(mounts::cred(), e.dir.ino, &e.name))?;
            Ok(0)
        }
        To::Volume(e) => {
            if !e.ordinary() {
                return fail(libc::EISDIR);
            }
            if e.trailing {
                let attr = lookup(&e)?;
                return fail(if attr == FileType::Directory { libc::EISDIR } else { libc::ENOTDIR });
            }
            e.dir.mount.run(|fs| fs.unlink(mounts::cred(), e.dir.ino, &e.name))?;
            Ok(0)
        }
    }
}

fn lookup(e: &Entry) -> Res<FileType> {
    Ok(e.dir.mount.run(|fs| fs.lookup(mounts::cred(), e.dir.ino, &e.name))?.kind)
}

/// Two paths: both ours in one volume, or both the kernel's.
#[allow(clippy::large_enum_variant, reason = "it lives for one call, and boxing would cost an allocation")]
enum Two {
    Ours(Entry, Entry),
    Kernel(std::ffi::CString, std::ffi::CString),
}

/// The path as the kernel gets it when it was not ours.
fn unchanged(dirfd: c_int, path: &[u8]) -> Res<std::ffi::CString> {
    let whole = if dirfd == AT_FDCWD || path.first() == Some(&b'/') {
        path.to_vec()
    } else {
        [format!("/proc/self/fd/{dirfd}/").as_bytes(), path].concat()
    };
    std::ffi::CString::new(whole).or(fail(libc::EINVAL))
}

fn two(from: (c_int, &[u8]), to: (c_int, &[u8])) -> Res<Two> {
    let side = |(dirfd, path): (c_int, &[u8])| -> Res<(To<Entry>, bool)> {
        match path::parent(dirfd, path) {
            Err(Out::Libc) => Ok((To::Kernel(unchanged(dirfd, path)?), true)),
            found => Ok((found?, false)),
        }
    };
    let (a, untouched_a) = side(from)?;
    let (b, untouched_b) = side(to)?;
    match (a, b) {
        (To::Kernel(_), To::Kernel(_)) if untouched_a && untouched_b => Err(Out::Libc),
        (To::Kernel(a), To::Kernel(b)) => Ok(Two::Kernel(a, b)),
        (To::Volume(a), To::Volume(b)) if a.dir.mount.hash == b.dir.mount.hash => Ok(Two::Ours(a, b)),
        // One too long for anybody is for the kernel to refuse, which the other path keeps it from.
        _ if from.1.len().max(to.1.len()) >= libc::PATH_MAX as usize => fail(libc::ENAMETOOLONG),
        _ => fail(libc::EXDEV),
    }
}

fn rename_at(from: (c_int, &[u8]), to: (c_int, &[u8]), flags: c_uint) -> Res<c_int> {
    match two(from, to)? {
        Two::Kernel(a, b) => {
            // SAFETY: C strings of our own.
            done(unsafe { renameat2::real(AT_FDCWD, a.as_ptr(), AT_FDCWD, b.as_ptr(), flags) })
        }
        Two::Ours(a, b) => {
            if !a.ordinary() || !b.ordinary() {
                return fail(libc::EBUSY);
            }
            let flags = RenameFlags::from_bits(flags).ok_or(Out::Errno(libc::EINVAL))?;
            if (a.trailing || b.trailing) && lookup(&a)? != FileType::Directory {
                return fail(libc::ENOTDIR);
            }
            let (from, to) = (a.dir.ino, b.dir.ino);
            a.dir.mount.run(|fs| fs.rename(mounts::cred(), from, &a.name, to, &b.name, flags))?;
            Ok(0)
        }
    }
}

fn link_at(from: (c_int, &[u8]), to: (c_int, &[u8]), flags: c_int) -> Res<c_int> {
    if flags & libc::AT_EMPTY_PATH != 0 && from.1.is_empty() {
        let Some(open) = crate::table::get(from.0) else { return Err(Out::Libc) };
        return match path::parent(to.0, to.1)? {
            To::Volume(e) if e.dir.mount.hash == open.mount.hash => link_ino(open.ino, &e),
            _ => fail(libc::EXDEV),
        };
    }
    if flags & libc::AT_SYMLINK_FOLLOW != 0
        && let Some(open) = crate::named::link(from.1)
    {
        // The way to give a file of O_TMPFILE its name.
        return match path::parent(to.0, to.1)? {
            To::Volume(e) if e.dir.mount.hash == open.mount.hash => link_ino(open.ino, &e),
            _ => fail(libc::EXDEV),
        };
    }
    match two(from, to)? {
        // SAFETY: C strings of our own.
        Two::Kernel(a, b) => done(unsafe { linkat::real(AT_FDCWD, a.as_ptr(), AT_FDCWD, b.as_ptr(), flags) }),
        Two::Ours(a, b) => {
            let found = match path::resolve(from.0, from.1, flags & libc::AT_SYMLINK_FOLLOW != 0)? {
                To::Volume(found) if found.mount.hash == a.dir.mount.hash => found,
                _ => return fail(libc::EXDEV),
            };
            if found.attr.kind == FileType::Directory {
                let is_there = !b.ordinary()
                    || b.dir.mount.run(|fs| fs.lookup(mounts::cred(), b.dir.ino, &b.name)).is_ok();
                return fail(if is_there { libc::EEXIST } else { libc::EPERM });
            }
            link_ino(found.attr.ino, &b)
        }
    }
}

fn link_ino(ino: Ino, to: &Entry) -> Res<c_int> {
    if !to.ordinary() {
        return fail(libc::EEXIST);
    }
    if to.trailing {
        return fail(libc::ENOENT);
    }
    to.dir.mount.run(|fs| fs.link(mounts::cred(), ino, to.dir.ino, &to.name))?;
    Ok(0)
}

fn symlink_at(target: &[u8], dirfd: c_int, path: &[u8]) -> Res<c_int> {
    match path::parent(dirfd, path)? {
        To::Kernel(path) => {
            let target = std::ffi::CString::new(target).or(fail(libc::EINVAL))?;
            // SAFETY: C strings of our own.
            done(unsafe { symlinkat::real(target.as_ptr(), AT_FDCWD, path.as_ptr()) })
        }
        To::Volume(e) => {
            if !e.ordinary() {
                return fail(libc::EEXIST);
            }
            if e.trailing {
                return fail(libc::ENOENT);
            }
            e.dir.mount.run(|fs| fs.symlink(mounts::cred(), e.dir.ino, &e.name, target))?;
            Ok(0)
        }
    }
}

fn readlink_at(dirfd: c_int, path: &[u8], to: &mut [u8]) -> Res<ssize_t> {
    let target = if let Some(open) = crate::named::link(path) {
        let gone = matches!(crate::stat::attr_of(&open, |attr| attr.nlink), Ok(0));
        let said: &[u8] = if gone { b" (deleted)" } else { b"" };
        [&open.mount.prefix[..], open.path().unwrap_or(b"/ (unknown)"), said].concat()
    } else if path.is_empty() && dirfd != AT_FDCWD {
        let open = crate::table::get(dirfd).ok_or(Out::Libc)?;
        open.mount.run(|fs| fs.readlink(mounts::cred(), open.ino))?
    } else {
        match path::resolve(dirfd, path, false)? {
            To::Kernel(path) => {
                // SAFETY: a C string of our own and a buffer with its length.
                let n = unsafe { readlink::real(path.as_ptr(), to.as_mut_ptr().cast(), to.len()) };
                return if n < 0 { fail(errno()) } else { Ok(n) };
            }
            To::Volume(found) if found.attr.kind != FileType::Symlink => return fail(libc::EINVAL),
            To::Volume(found) => found.mount.run(|fs| fs.readlink(mounts::cred(), found.attr.ino))?,
        }
    };
    if to.is_empty() {
        return fail(libc::EINVAL);
    }
    let n = target.len().min(to.len());
    to[..n].copy_from_slice(&target[..n]);
    Ok(n as ssize_t)
}

fn make_node(dirfd: c_int, path: &[u8], mode: mode_t, dev: libc::dev_t) -> Res<c_int> {
    match path::parent(dirfd, path)? {
        // SAFETY: a C string of our own.
        To::Kernel(path) => done(unsafe { mknodat::real(AT_FDCWD, path.as_ptr(), mode, dev) }),
        To::Volume(e) => {
            if !e.ordinary() {
                return fail(libc::EEXIST);
            }
            if e.trailing {
                return fail(libc::ENOENT);
            }
            let kind = if mode & libc::S_IFMT == 0 { libc::S_IFREG } else { mode & libc::S_IFMT };
            if kind == libc::S_IFDIR {
                return fail(libc::EPERM);
            }
            let mode = kind | mode & 0o7777 & !mounts::umask_now();
            e.dir.mount.run(|fs| fs.mknod(mounts::cred(), e.dir.ino, &e.name, mode, dev))?;
            Ok(0)
        }
    }
}

hook! {
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int { make_dir(AT_FDCWD, text(path)?, mode) }
    fn mkdirat(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int { make_dir(dirfd, text(path)?, mode) }
    fn unlink(path: *const c_char) -> c_int { unlink_at(AT_FDCWD, text(path)?, 0) }
    fn rmdir(path: *const c_char) -> c_int { unlink_at(AT_FDCWD, text(path)?, libc::AT_REMOVEDIR) }
    fn unlinkat(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int { unlink_at(dirfd, text(path)?, flags) }
    fn remove(path: *const c_char) -> c_int {
        let path = text(path)?;
        match unlink_at(AT_FDCWD, path, 0) {
            Err(Out::Errno(libc::EISDIR)) => unlink_at(AT_FDCWD, path, libc::AT_REMOVEDIR),
            other => other,
        }
    }
    fn rename(from: *const c_char, to: *const c_char) -> c_int {
        rename_at((AT_FDCWD, text(from)?), (AT_FDCWD, text(to)?), 0)
    }
    fn renameat(fd: c_int, from: *const c_char, to_fd: c_int, to: *const c_char) -> c_int {
        rename_at((fd, text(from)?), (to_fd, text(to)?), 0)
    }
    fn renameat2(fd: c_int, from: *const c_char, to_fd: c_int, to: *const c_char, flags: c_uint) -> c_int {
        rename_at((fd, text(from)?), (to_fd, text(to)?), flags)
    }
    fn link(from: *const c_char, to: *const c_char) -> c_int {
        link_at((AT_FDCWD, text(from)?), (AT_FDCWD, text(to)?), 0)
    }
    fn linkat(fd: c_int, from: *const c_char, to_fd: c_int, to: *const c_char, flags: c_int) -> c_int {
        link_at((fd, text(from)?), (to_fd, text(to)?), flags)
    }
    fn symlink(target: *const c_char, path: *const c_char) -> c_int {
        symlink_at(text(target)?, AT_FDCWD, text(path)?)
    }
    fn symlinkat(target: *const c_char, dirfd: c_int, path: *const c_char) -> c_int {
        symlink_at(text(target)?, dirfd, text(path)?)
    }
    fn readlink(path: *const c_char, to: *mut c_char, n: size_t) -> ssize_t {
        readlink_at(AT_FDCWD, text(path)?, memory_mut(to.cast(), n)?)
    }
    fn readlinkat(dirfd: c_int, path: *const c_char, to: *mut c_char, n: size_t) -> ssize_t {
        readlink_at(dirfd, text(path)?, memory_mut(to.cast(), n)?)
    }
    fn __readlink_chk(path: *const c_char, to: *mut c_char, n: size_t, room: size_t) -> ssize_t {
        readlink_at(AT_FDCWD, text(path)?, memory_mut(to.cast(), n.min(room))?)
    }
    fn __readlinkat_chk(dirfd: c_int, path: *const c_char, to: *mut c_char, n: size_t, room: size_t) -> ssize_t {
        readlink_at(dirfd, text(path)?, memory_mut(to.cast(), n.min(room))?)
    }
    fn mknod(path: *const c_char, mode: mode_t, dev: libc::dev_t) -> c_int {
        make_node(AT_FDCWD, text(path)?, mode, dev)
    }
    fn mknodat(dirfd: c_int, path: *const c_char, mode: mode_t, dev: libc::dev_t) -> c_int {
        make_node(dirfd, text(path)?, mode, dev)
    }
    fn mkfifo(path: *const c_char, mode: mode_t) -> c_int {
        make_node(AT_FDCWD, text(path)?, libc::S_IFIFO | mode & 0o7777, 0)
    }
    fn mkfifoat(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int {
        make_node(dirfd, text(path)?, libc::S_IFIFO | mode & 0o7777, 0)
    }
}
