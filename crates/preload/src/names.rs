//! Making, removing and renaming names: mkdir, rmdir, unlink, remove, rename, link, symlink, readlink, mknod.
//!
//! A pair of paths of which one is the kernel's and one ours, or of two volumes, is `EXDEV`, as between any two file systems.

use crate::description::Open;
use crate::hook::{Out, Res, check, errno, fail, hook, memory_mut, text};
use crate::mounts;
use crate::path::{self, Entry, To};
use fs::{FileSystem, FileType, Ino, RenameFlags};
use libc::{AT_FDCWD, c_char, c_int, c_uint, mode_t, size_t, ssize_t};
use std::ffi::CString;

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
                free(&e)?;
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
                b"." => return lookup(&e).and(fail(libc::EINVAL)),
                b".." => return fail(libc::ENOTEMPTY),
                b"" => return fail(libc::EBUSY),
                _ => {}
            }
            e.dir.mount.run(|fs| fs.rmdir(mounts::cred(), e.dir.ino, &e.name))?;
            Ok(0)
        }
        To::Volume(e) => {
            if !e.ordinary() {
                // Whether the directory may be searched comes first.
                return fail(if matches!(free(&e), Err(Out::Errno(libc::EACCES))) {
                    libc::EACCES
                } else {
                    libc::EISDIR
                });
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

/// Where the new name of a pair is to be, or the old one was.
#[allow(clippy::large_enum_variant, reason = "it lives for one call, and boxing would cost an allocation")]
enum Side {
    Ours(Entry),
    Kernel(Foreign),
}

/// A path that the kernel has.
struct Foreign {
    at: c_int,
    path: CString,
    /// It is as the program gave it.
    unchanged: bool,
}

impl Foreign {
    fn given(dirfd: c_int, path: &[u8]) -> Res<Foreign> {
        Ok(Foreign { at: dirfd, path: CString::new(path).or(fail(libc::EINVAL))?, unchanged: true })
    }

    fn led_to(path: CString) -> Foreign {
        Foreign { at: AT_FDCWD, path, unchanged: false }
    }

    /// What the kernel finds wrong with it before it compares file systems: with the way to the name, and with what is there where `whole`.
    fn checked(&self, whole: bool, flags: c_int) -> Res<()> {
        let path = self.path.as_bytes();
        if path.is_empty() && flags & libc::AT_EMPTY_PATH == 0 {
            return fail(libc::ENOENT);
        }
        if path.len() >= libc::PATH_MAX as usize {
            return fail(libc::ENAMETOOLONG);
        }
        let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
        let name = path[..end].iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
        let asked = if whole { path.to_vec() } else { [&path[..name], b"."].concat() };
        let asked = CString::new(asked).or(fail(libc::EINVAL))?;
        let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: a C string of our own, and room for the answer.
        done(unsafe { libc::fstatat(self.at, asked.as_ptr(), stat.as_mut_ptr(), flags) }).map(drop)
    }
}

fn side(dirfd: c_int, path: &[u8]) -> Res<Side> {
    match path::parent(dirfd, path) {
        Err(Out::Libc) => Foreign::given(dirfd, path).map(Side::Kernel),
        Ok(To::Kernel(path)) => Ok(Side::Kernel(Foreign::led_to(path))),
        Ok(To::Volume(entry)) => Ok(Side::Ours(entry)),
        Err(e) => Err(e),
    }
}

fn rename_at(from: (c_int, &[u8]), to: (c_int, &[u8]), flags: c_uint) -> Res<c_int> {
    let (from, to) = (side(from.0, from.1)?, side(to.0, to.1));
    let (a, b) = match (from, to) {
        (Side::Kernel(a), Ok(Side::Kernel(b))) if a.unchanged && b.unchanged => return Err(Out::Libc),
        (Side::Kernel(a), Ok(Side::Kernel(b))) => {
            // SAFETY: C strings of our own.
            return done(unsafe { renameat2::real(a.at, a.path.as_ptr(), b.at, b.path.as_ptr(), flags) });
        }
        (Side::Ours(a), Ok(Side::Ours(b))) => (a, b),
        (Side::Kernel(a), b) => {
            a.checked(false, 0)?;
            return b.and(fail(libc::EXDEV));
        }
        (Side::Ours(_), b) => {
            if let Side::Kernel(b) = b? {
                b.checked(false, 0)?;
            }
            return fail(libc::EXDEV);
        }
    };
    let flags = RenameFlags::from_bits(flags).ok_or(Out::Errno(libc::EINVAL))?;
    if a.dir.mount.hash != b.dir.mount.hash {
        return fail(libc::EXDEV);
    }
    if !a.ordinary() || !b.ordinary() {
        let taken = a.ordinary() && flags.contains(RenameFlags::NOREPLACE);
        return fail(if taken { libc::EEXIST } else { libc::EBUSY });
    }
    let exchanged = flags.contains(RenameFlags::EXCHANGE);
    let of_directories = [(a.trailing || b.trailing && !exchanged, &a), (b.trailing && exchanged, &b)];
    for (_, entry) in of_directories.iter().filter(|(must, _)| *must) {
        if lookup(entry)? != FileType::Directory {
            return fail(libc::ENOTDIR);
        }
    }
    let (from, to) = (a.dir.ino, b.dir.ino);
    a.dir.mount.run(|fs| fs.rename(mounts::cred(), from, &a.name, to, &b.name, flags))?;
    Ok(0)
}

/// What a link is made of: an inode of a volume.
struct Source {
    mount: &'static mounts::Mount,
    ino: Ino,
    kind: FileType,
}

impl From<Open> for Source {
    fn from(open: Open) -> Source {
        Source { mount: open.mount, ino: open.ino, kind: open.kind }
    }
}

/// What the old path of a link leads to.
fn source((dirfd, path): (c_int, &[u8]), flags: c_int) -> Res<std::result::Result<Source, Foreign>> {
    let follow = flags & libc::AT_SYMLINK_FOLLOW != 0;
    if flags & libc::AT_EMPTY_PATH != 0 && path.is_empty() {
        return Ok(match crate::table::get(dirfd) {
            Some(open) => Ok(open.into()),
            None => Err(Foreign::given(dirfd, path)?),
        });
    }
    // The way to give a file of O_TMPFILE its name.
    if let Some(open) = follow.then(|| crate::named::link(path)).flatten() {
        return Ok(Ok(open.into()));
    }
    match path::resolve(dirfd, path, follow) {
        Err(Out::Libc) => Foreign::given(dirfd, path).map(Err),
        Ok(To::Kernel(path)) => Ok(Err(Foreign::led_to(path))),
        Ok(To::Volume(found)) => {
            Ok(Ok(Source { mount: found.mount, ino: found.attr.ino, kind: found.attr.kind }))
        }
        Err(e) => Err(e),
    }
}

fn link_at(from: (c_int, &[u8]), to: (c_int, &[u8]), flags: c_int) -> Res<c_int> {
    let (from, to) = (source(from, flags)?, side(to.0, to.1));
    match (from, to) {
        (Err(a), Ok(Side::Kernel(b))) if a.unchanged && b.unchanged => Err(Out::Libc),
        (Err(a), Ok(Side::Kernel(b))) => {
            // SAFETY: C strings of our own.
            done(unsafe { linkat::real(a.at, a.path.as_ptr(), b.at, b.path.as_ptr(), flags) })
        }
        (Err(a), b) => {
            let follow = if flags & libc::AT_SYMLINK_FOLLOW != 0 { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
            a.checked(true, flags & libc::AT_EMPTY_PATH | follow)?;
            if let Side::Ours(entry) = b? {
                free(&entry)?;
            }
            fail(libc::EXDEV)
        }
        (Ok(from), to) => match to? {
            Side::Ours(entry) if entry.dir.mount.hash == from.mount.hash => link_ino(&from, &entry),
            Side::Ours(entry) => free(&entry).and(fail(libc::EXDEV)),
            Side::Kernel(path) => {
                path.checked(false, 0)?;
                let is_there = path.checked(true, libc::AT_SYMLINK_NOFOLLOW).is_ok();
                fail(if is_there { libc::EEXIST } else { libc::EXDEV })
            }
        },
    }
}

/// Whether a name can be made that is no directory's.
fn free(to: &Entry) -> Res<()> {
    let name = if to.name.is_empty() { b"." } else { &to.name[..] };
    match to.dir.mount.run(|fs| fs.lookup(mounts::cred(), to.dir.ino, name)) {
        Ok(_) => fail(libc::EEXIST),
        Err(Out::Errno(libc::ENOENT)) if !to.trailing => Ok(()),
        Err(e) => Err(e),
    }
}

fn link_ino(from: &Source, to: &Entry) -> Res<c_int> {
    if !to.ordinary() || to.trailing || from.kind == FileType::Directory {
        free(to)?;
    }
    if from.kind == FileType::Directory {
        return fail(libc::EPERM);
    }
    to.dir.mount.run(|fs| fs.link(mounts::cred(), from.ino, to.dir.ino, &to.name))?;
    Ok(0)
}

fn symlink_at(target: &[u8], dirfd: c_int, path: &[u8]) -> Res<c_int> {
    if target.is_empty() {
        return fail(libc::ENOENT);
    }
    match path::parent(dirfd, path)? {
        To::Kernel(path) => {
            let target = CString::new(target).or(fail(libc::EINVAL))?;
            // SAFETY: C strings of our own.
            done(unsafe { symlinkat::real(target.as_ptr(), AT_FDCWD, path.as_ptr()) })
        }
        To::Volume(e) => {
            if !e.ordinary() || e.trailing {
                free(&e)?;
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
            if !e.ordinary() || e.trailing {
                free(&e)?;
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
    fn unlinkat(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        check(flags, libc::AT_REMOVEDIR)?;
        unlink_at(dirfd, text(path)?, flags)
    }
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
        check(flags, libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH)?;
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
