//! open, openat, creat and their variants; mkstemp and its kin, which libc would make without us seeing it.

use crate::hook::{Out, Res, errno, fail, hook, outside, text};
use crate::mounts;
use crate::path::{self, Entry, To};
use crate::plain::Plain;
use crate::pool::Made;
use crate::table;
use fs::{Error, FileSystem, FileType, Handle};
use libc::{AT_FDCWD, c_char, c_int, mode_t};
use share::Target;

/// What was opened: the inode, its handle, and its path below the mount.
struct Opened {
    mount: &'static mounts::Mount,
    target: Target,
    handle: Option<Handle>,
    made: Option<Res<Made>>,
    path: Option<path::Text>,
}

/// Opens `path`. `Libc` when it is the kernel's.
///
/// # Safety
/// Calls libc with strings of our own only.
pub(crate) unsafe fn open_at(dirfd: c_int, path: &[u8], flags: c_int, mode: mode_t) -> Res<c_int> {
    let tmpfile = flags & libc::O_TMPFILE == libc::O_TMPFILE;
    let there = flags & (libc::O_EXCL | libc::O_NOFOLLOW) == 0 && crate::named::names_one(path);
    let creates = flags & libc::O_PATH == 0 && flags & libc::O_CREAT != 0 && !tmpfile && !there;
    if !tmpfile
        && let Some(plain) = Plain::of(dirfd, path)
        && let Some(done) = if creates { create_plain(plain, flags, mode) } else { open_plain(plain, flags) }
    {
        return done;
    }
    let both = libc::O_CREAT | libc::O_DIRECTORY;
    if flags & (both | libc::O_PATH) == both {
        // Refused by the kernel before it looks at the path.
        match path::parent(dirfd, path) {
            Err(Out::Libc) | Ok(To::Kernel(_)) if !there => {}
            _ => return fail(libc::EINVAL),
        }
    }
    let opened = if creates {
        create(path::parent(dirfd, path)?, flags, mode)?
    } else {
        match path::resolve(dirfd, path, flags & libc::O_NOFOLLOW == 0)? {
            To::Kernel(path) => To::Kernel(path),
            To::Volume(found) if tmpfile => {
                if found.attr.kind != FileType::Directory {
                    return fail(libc::ENOTDIR);
                }
                let (perm, flags) = (permissions(mode), fs::OpenFlags::from_posix(flags));
                let (attr, handle) =
                    found.mount.run(|fs| fs.tmpfile(mounts::cred(), found.attr.ino, perm, flags))?;
                let target = Target::of(&attr);
                To::Volume(Opened {
                    mount: found.mount,
                    target,
                    handle: Some(handle),
                    made: None,
                    path: None,
                })
            }
            To::Volume(found) if flags & libc::O_PATH == 0 && is_special(found.attr.kind) => {
                To::Kernel(over_mount(found.mount, found.path.as_deref())?)
            }
            To::Volume(found) => {
                let target = Target::of(&found.attr);
                let (handle, made) = open_existing(found.mount, target, flags)?;
                To::Volume(Opened { mount: found.mount, target, handle, made, path: found.path })
            }
        }
    };
    match opened {
        // Outside, as a FIFO may take long: handlers of signals that come meanwhile use files.
        // SAFETY: a C string of our own.
        To::Kernel(path) => match outside(|| unsafe { openat::real(AT_FDCWD, path.as_ptr(), flags, mode) }) {
            -1 => fail(errno()),
            fd => Ok(fd),
        },
        To::Volume(o) => table::insert(o.mount, o.target, kept(flags), o.path.as_deref(), o.handle, o.made),
    }
}

/// The flags that an open file has for ever.
fn kept(flags: c_int) -> c_int {
    flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY)
}

/// What a new file gets of the permissions asked for.
fn permissions(mode: mode_t) -> u16 {
    (mode & !mounts::umask_now() & 0o7777) as u16
}

/// Opens what is known to be there. `None`: the long way, which says what is wrong.
fn open_plain(plain: Plain<'_>, flags: c_int) -> Option<Res<c_int>> {
    const OTHERWISE: c_int = libc::O_ACCMODE | libc::O_TRUNC | libc::O_NOATIME | libc::O_PATH;
    let target = plain.target(flags & libc::O_NOFOLLOW == 0).filter(|t| !is_special(t.kind))?;
    let session = plain.mount.session()?;
    let is_file = target.kind == FileType::Regular;
    let how = fs::OpenFlags::from_posix(flags) - fs::OpenFlags::EXCLUSIVE;
    let is_plain = is_file && flags & (libc::O_PATH | libc::O_DIRECTORY) == 0;
    let opened = match is_plain.then(|| session.open_now(target, how)).flatten() {
        Some(handle) => Ok((Some(handle), None)),
        // Who knows the attributes of a file can open it for reading without a message: the long way asks for them, with one.
        None if is_file
            && flags & OTHERWISE == libc::O_RDONLY
            && session.look_at_inode(target.ino, None, |_| ()).is_none() =>
        {
            return None;
        }
        None => open_existing(plain.mount, target, flags),
    };
    Some(opened.and_then(|(handle, made)| {
        table::insert(plain.mount, target, kept(flags), plain.whole().as_deref(), handle, made)
    }))
}

/// Makes or opens a file in a directory that is known. `None`: the long way, also for what is behind symlinks.
fn create_plain(plain: Plain<'_>, flags: c_int, mode: mode_t) -> Option<Res<c_int>> {
    if flags & libc::O_DIRECTORY != 0 {
        return None;
    }
    let (dir, _, name) = plain.parent()?;
    let (perm, how) = (permissions(mode), fs::OpenFlags::from_posix(flags));
    let session = plain.mount.session()?;
    // First of all, as in the kernel: where there is no descriptor to be had, no file is made or cut.
    let made = match table::make(flags) {
        Ok(made) => Some(Ok(made)),
        Err(e) => return Some(Err(e)),
    };
    match session.block_on(session.create(mounts::cred(), dir, name, perm, how)) {
        Ok((attr, handle)) => {
            truncated((plain.mount, attr.ino), flags);
            let (target, flags) = (Target::of(&attr), kept(flags));
            Some(table::insert(plain.mount, target, flags, plain.whole().as_deref(), Some(handle), made))
        }
        Err(Error::SymlinkLoop) => None,
        Err(e) if e.errno() == libc::EINVAL => None,
        Err(e) => Some(Err(e.into())),
    }
}

/// FIFOs, sockets and devices: the kernel knows what they do.
fn is_special(kind: FileType) -> bool {
    !matches!(kind, FileType::Regular | FileType::Directory | FileType::Symlink)
}

/// The path of something in a volume over the FUSE mount. `ENXIO` when it is not known.
fn over_mount(mount: &mounts::Mount, path: Option<&[u8]>) -> Res<std::ffi::CString> {
    let whole = [&mount.prefix[..], path.ok_or(Out::Errno(libc::ENXIO))?].concat();
    std::ffi::CString::new(whole).or(fail(libc::EINVAL))
}

/// Opens an inode. With it comes the descriptor that was made meanwhile.
fn open_existing(
    mount: &'static mounts::Mount,
    target: Target,
    flags: c_int,
) -> Res<(Option<Handle>, Option<Res<Made>>)> {
    let cred = mounts::cred();
    if flags & libc::O_DIRECTORY != 0 && target.kind != FileType::Directory {
        return fail(libc::ENOTDIR);
    }
    if flags & libc::O_PATH != 0 {
        return Ok((None, None));
    }
    let make = || table::make(flags);
    let (opened, made) = match target.kind {
        FileType::Directory if flags & (libc::O_ACCMODE | libc::O_TRUNC) != libc::O_RDONLY => {
            return fail(libc::EISDIR);
        }
        FileType::Directory => mount.run_with(|fs| fs.opendir(cred, target.ino), make)?,
        FileType::Symlink => return fail(libc::ELOOP),
        FileType::Regular => {
            let how = fs::OpenFlags::from_posix(flags) - fs::OpenFlags::EXCLUSIVE;
            // Where there is no descriptor to be had, the file is not cut.
            let mut first = if flags & libc::O_TRUNC != 0 { Some(Ok(make()?)) } else { None };
            let open = |fs: &'static share::Remote| fs.open_exact(cred, (target.ino, target.generation), how);
            let (opened, made) = mount.run_with(open, || first.take().unwrap_or_else(make))?;
            (opened, made.or(first))
        }
        // Was something else a moment ago.
        _ => return fail(libc::ENXIO),
    };
    let opened = opened?;
    truncated((mount, target.ino), flags);
    Ok((Some(opened), made))
}

/// A file was opened with these flags.
fn truncated(file: (&mounts::Mount, fs::Ino), flags: c_int) {
    if flags & libc::O_TRUNC != 0 {
        crate::mapped::resized(file);
    }
}

/// Makes or opens a file, where symlinks at its end lead.
fn create(to: To<Entry>, flags: c_int, mode: mode_t) -> Res<To<Opened>> {
    let mut to = to;
    let mut links = 0;
    let mut descriptor = None;
    loop {
        let entry = match to {
            To::Kernel(path) => return Ok(To::Kernel(path)),
            To::Volume(entry) => entry,
        };
        let mount = entry.dir.mount;
        if !entry.ordinary() || entry.trailing {
            let name = if entry.name.is_empty() { b"." } else { &entry.name[..] };
            if let Err(Out::Errno(libc::EACCES)) =
                mount.run(|fs| fs.lookup(mounts::cred(), entry.dir.ino, name))
            {
                return fail(libc::EACCES);
            }
            let taken = !entry.ordinary() && flags & libc::O_EXCL != 0;
            return fail(if taken { libc::EEXIST } else { libc::EISDIR });
        }
        let perm = permissions(mode);
        // As in `create_plain`.
        if descriptor.is_none() {
            descriptor = Some(Ok(table::make(flags)?));
        }
        let made = mount.session().ok_or(Out::Errno(libc::EIO)).map(|fs| {
            fs.block_on(fs.create(
                mounts::cred(),
                entry.dir.ino,
                &entry.name,
                perm,
                fs::OpenFlags::from_posix(flags),
            ))
        })?;
        match made {
            Ok((attr, handle)) => {
                let path = entry.dir.path.map(|p| path::join(&[&p, b"/", &entry.name]));
                truncated((mount, attr.ino), flags);
                let (target, handle) = (Target::of(&attr), Some(handle));
                return Ok(To::Volume(Opened { mount, target, handle, made: descriptor, path }));
            }
            Err(Error::SymlinkLoop) if flags & libc::O_NOFOLLOW == 0 && flags & libc::O_EXCL == 0 => {}
            Err(e) if e.errno() == libc::EINVAL => {
                let there = mount.run(|fs| fs.lookup(mounts::cred(), entry.dir.ino, &entry.name));
                if flags & libc::O_EXCL != 0 || !there.is_ok_and(|attr| is_special(attr.kind)) {
                    return Err(e.into());
                }
                let path = entry.dir.path.map(|p| path::join(&[&p, b"/", &entry.name]));
                return Ok(To::Kernel(over_mount(mount, path.as_deref())?));
            }
            Err(e) => return Err(e.into()),
        }
        let link = mount.run(|fs| fs.lookup(mounts::cred(), entry.dir.ino, &entry.name));
        links += 1;
        to = match link {
            Ok(attr) if attr.kind == FileType::Symlink => path::behind(entry, attr.ino, &mut links)?,
            // Another was faster and the symlink is gone: try again, but not for ever.
            Ok(_) | Err(Out::Errno(libc::ENOENT)) if links < 40 => To::Volume(entry),
            Ok(_) => return fail(libc::ELOOP),
            Err(e) => return Err(e),
        };
    }
}

/// Puts a name in place of the six X before the last `suffix` bytes of a template, until `make` finds it free.
///
/// # Safety
/// `template` is null or a C string that may be written.
unsafe fn temporary<T>(template: *mut c_char, suffix: c_int, make: impl Fn(&[u8]) -> Res<T>) -> Res<T> {
    const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    // SAFETY: as the caller says.
    let path = unsafe { text(template) }?.to_vec();
    let end = path.len().checked_sub(suffix.max(0) as usize).ok_or(Out::Errno(libc::EINVAL))?;
    let begin = end.checked_sub(6).filter(|&b| &path[b..end] == b"XXXXXX").ok_or(Out::Errno(libc::EINVAL))?;
    // Only where a volume is meant: libc does it as well elsewhere.
    if !matches!(path::parent(AT_FDCWD, &path)?, To::Volume(_)) {
        return Err(Out::Libc);
    }
    for _ in 0..1000 {
        let mut random = [0u8; 8];
        // SAFETY: a buffer of our own.
        unsafe { libc::getrandom(random.as_mut_ptr().cast(), 8, 0) };
        let mut number = u64::from_ne_bytes(random);
        let mut path = path.clone();
        for letter in &mut path[begin..end] {
            *letter = LETTERS[(number % 62) as usize];
            number /= 62;
        }
        match make(&path) {
            Err(Out::Errno(libc::EEXIST)) => {}
            Ok(made) => {
                // SAFETY: six bytes within the template.
                unsafe {
                    std::ptr::copy_nonoverlapping(path[begin..].as_ptr(), template.cast::<u8>().add(begin), 6)
                };
                return Ok(made);
            }
            other => return other,
        }
    }
    fail(libc::EEXIST)
}

/// # Safety
/// As of [`temporary`].
unsafe fn temporary_file(template: *mut c_char, suffix: c_int, flags: c_int) -> Res<c_int> {
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    // SAFETY: as the caller says.
    unsafe { temporary(template, suffix, |path| open_at(AT_FDCWD, path, flags, 0o600)) }
}

hook! {
    fn open | open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(AT_FDCWD, text(path)?, flags, mode)
    }
    fn openat | openat64(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(dirfd, text(path)?, flags, mode)
    }
    fn creat | creat64(path: *const c_char, mode: mode_t) -> c_int {
        open_at(AT_FDCWD, text(path)?, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode)
    }
    fn __open_2 | __open64_2(path: *const c_char, flags: c_int) -> c_int {
        open_at(AT_FDCWD, text(path)?, flags, 0)
    }
    fn __openat_2 | __openat64_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_at(dirfd, text(path)?, flags, 0)
    }
    fn mkstemp | mkstemp64(template: *mut c_char) -> c_int { temporary_file(template, 0, 0) }
    fn mkostemp | mkostemp64(template: *mut c_char, flags: c_int) -> c_int {
        temporary_file(template, 0, flags)
    }
    fn mkstemps | mkstemps64(template: *mut c_char, suffix: c_int) -> c_int {
        temporary_file(template, suffix, 0)
    }
    fn mkostemps | mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
        temporary_file(template, suffix, flags)
    }
    fn mkdtemp(template: *mut c_char) -> *mut c_char {
        temporary(template, 0, |path| crate::names::make_dir(AT_FDCWD, path, 0o700))?;
        Ok(template)
    }
}

/// umask(2): the kernel's counts for what it makes, and ours follows it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umask(mask: mode_t) -> mode_t {
    if !crate::hook::is_inside() && mounts::active() && !mounts::borrowed_memory() {
        mounts::umask_is(mask);
    }
    // SAFETY: a system call that cannot fail.
    unsafe { libc::syscall(libc::SYS_umask, mask) as mode_t }
}
