//! The current directory: chdir, fchdir, getcwd.
//!
//! When the program goes into a volume the kernel is sent to the same path in the FUSE mount, so that what we do not see (exec, other
//! libraries) starts from there too. Where that does not work (no FUSE mount) programs that it starts learn it from a descriptor that
//! they inherit, whose memory says where the process stands, and where the kernel thought it was then: should it have gone elsewhere
//! since, the descriptor counts for nothing.

mod kernel;

use crate::anchor::Anchor;
use crate::hook::{Out, Res, errno, fail, free, hook, text};
use crate::memory::{self, Facts};
use crate::mounts::{self, Mount, borrowed_memory, mounts};
use crate::path::{self, Dir, To};
use crate::table;
use crate::upward;
use format::shared::OpenFile;
use fs::{Access, FileSystem, FileType, Ino};
use kernel::{kernel_inode, kernel_number, kernel_text};
use libc::{AT_FDCWD, c_char, c_int};
use share::lock::{self, Apart, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Where the kernel stood when the program began: its path, and the number of the inode. It does not know that any more when the mount is made anew.
pub(crate) type Began = (Vec<u8>, u64);

/// Where the process stands.
#[derive(Clone)]
pub(crate) enum Cwd {
    Volume(Dir, Arc<Anchor>),
    /// In a volume, in a directory that is gone.
    Gone,
    /// Outside; `above`: a mount lies below this directory. The text is empty where the kernel has no path for it: it was removed, or the path is too long.
    Kernel {
        above: bool,
        text: Vec<u8>,
    },
    /// Where the kernel says, in a volume: to find out which directory that is takes a session, which many programs have no other use for. With where that was when the
    /// program began. Or wherever libc has gone ([`moved`]).
    Later(Option<Began>),
}

/// For each processor the same: who looks takes the lock of his only, who changes it those of all. At first it is [`Cwd::FIRST`].
static CWD: [Apart<Mutex<Option<Arc<Cwd>>>>; PARTS] = [const { Apart(Mutex::new(None)) }; PARTS];
const PARTS: usize = 8;

impl Cwd {
    const FIRST: Cwd = Cwd::Kernel { above: false, text: Vec::new() };

    fn at(dir: Dir, generation: u32) -> Cwd {
        let anchor = Arc::new(Anchor::new(dir.mount, dir.ino, generation));
        Cwd::Volume(dir, anchor)
    }

    /// As it is now. What else is wrong the call will hear that uses it.
    fn or_gone(&self) -> &Cwd {
        match self {
            Cwd::Volume(_, anchor) if matches!(anchor.holds(), Err(Out::Errno(libc::ENOENT))) => &Cwd::Gone,
            here => here,
        }
    }
}

/// Runs `f` with where the process stands.
#[inline]
fn look<T>(f: impl FnOnce(&Cwd) -> T) -> T {
    let cwd = CWD[lock::part_here(PARTS)].lock();
    match cwd.as_deref() {
        Some(Cwd::Later(began)) => {
            let began = began.clone();
            drop(cwd);
            f(find(began).or_gone())
        }
        Some(Cwd::Volume(_, anchor)) if !anchor.holds_now() => {
            let here = cwd.clone();
            drop(cwd);
            f(here.as_deref().map_or(&Cwd::FIRST, Cwd::or_gone))
        }
        cwd => f(cwd.unwrap_or(&Cwd::FIRST)),
    }
}

/// Where the process stands, when nobody has asked before.
#[cold]
fn find(began: Option<Began>) -> Cwd {
    // A child of vfork can have no session, and may stand elsewhere than its parent, whose memory this is: the kernel knows.
    if borrowed_memory() {
        return Cwd::Kernel { above: false, text: kernel_text() };
    }
    let found = kept().unwrap_or_else(|| match here(kernel_text()) {
        Cwd::Kernel { text, above } if text.is_empty() => {
            began.and_then(at_begin).unwrap_or(Cwd::Kernel { text, above })
        }
        found => found,
    });
    change(|cwd| matches!(cwd, Cwd::Later(_)).then(|| found.clone()));
    found
}

/// Changes where the process stands to what `to` makes of it.
fn change(to: impl FnOnce(&Cwd) -> Option<Cwd>) {
    let mut parts = CWD.each_ref().map(|part| part.lock());
    // Given up when the locks are: that may be a call.
    let _old = parts[0].clone();
    if let Some(new) = to(parts[0].as_deref().unwrap_or(&Cwd::FIRST)).map(Arc::new) {
        // A child of fork may come to be at any moment: each has the old one or the new one then.
        parts.iter_mut().for_each(|part| drop(part.replace(new.clone())));
    }
}

fn stand(new: Cwd) {
    change(|_| Some(new));
}

/// The descriptor that tells other programs where we stand, or -1.
static KEPT: AtomicI32 = AtomicI32::new(-1);
/// Mark in the `kind` that it tells.
pub(crate) const CWD_MARK: u32 = 0x100;

/// What is told of where the kernel thought we were.
fn kernel_hash() -> u32 {
    kernel_text().iter().fold(0x811c_9dc5, |h, &b| (h ^ b as u32).wrapping_mul(0x0100_0193))
}

/// Tells other programs that we stand in `dir`, or, with `None`, where the kernel says.
fn keep(dir: Option<(&Dir, u32)>) {
    let mut fd = -1;
    if let Some((dir, generation)) = dir {
        let facts = Facts {
            mount: dir.mount.hash,
            ino: dir.ino.0,
            generation,
            flags: 0,
            kind: FileType::Directory as u32 | CWD_MARK,
            kernel_cwd: kernel_hash().into(),
            path: dir.path.as_deref(),
        };
        fd = memory::tell(&facts).unwrap_or(-1);
    }
    let old = KEPT.swap(fd, Ordering::Relaxed);
    if old >= 0 {
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_close, old) };
    }
}

/// Where such a descriptor says that we stand, if the kernel is still where it was then.
fn told(mount: &'static Mount, record: &OpenFile) -> Option<Cwd> {
    if record.kernel_cwd.get() != u64::from(kernel_hash()) {
        return None;
    }
    let dir = Dir { mount, ino: Ino(record.ino.get()), path: memory::path_of(record).map(path::Text::from) };
    Some(Cwd::at(dir, record.generation.get()))
}

/// libc is on a walk, and has not come back yet ([`moved`]).
static AWAY: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_back() -> bool {
    !AWAY.load(Ordering::Relaxed)
}

/// What our own such descriptor says.
fn kept() -> Option<Cwd> {
    let fd = Some(KEPT.load(Ordering::Relaxed)).filter(|&fd| fd >= 0 && !AWAY.load(Ordering::Relaxed))?;
    let record = memory::inherited(fd, None)?;
    told(mounts::by_hash(record.mount.get())?, &record)
}

/// libc may have gone elsewhere by itself: to be found out when somebody asks. Once it is back, and the kernel where it was before, we stand where [`KEPT`] says.
pub(crate) fn moved(back: bool) {
    if !borrowed_memory() {
        AWAY.store(!back, Ordering::Relaxed);
        stand(Cwd::Later(None));
    }
}

/// Takes in such a descriptor at the start of a program.
pub(crate) fn adopt(fd: c_int, mount: &'static Mount, record: &OpenFile) {
    if let Some(here) = told(mount, record) {
        stand(here);
        share::client::high::note(fd);
        KEPT.store(fd, Ordering::Relaxed);
    } else {
        // SAFETY: a descriptor that only we know.
        unsafe { libc::syscall(libc::SYS_close, fd) };
    }
}

/// Whether the descriptor is that one.
pub(crate) fn is_own(fd: c_int) -> bool {
    fd >= 0 && KEPT.load(Ordering::Relaxed) == fd
}

/// A child of vfork went where the kernel knows: what it executes must not think otherwise. Our memory is its parent's and stays.
fn forget_in_child() {
    let kept = KEPT.load(Ordering::Relaxed);
    if kept >= 0 {
        // SAFETY: the child has a descriptor table of its own.
        unsafe { libc::syscall(libc::SYS_close, kept) };
    }
}

/// At the start: where the kernel says, unless something was adopted.
pub(crate) fn begin_first() {
    if KEPT.load(Ordering::Relaxed) < 0 {
        let text = kernel_text();
        let in_volume = mounts().iter().any(|m| is_below(&text, m));
        stand(if in_volume { Cwd::Later(kernel_number().map(|ino| (text, ino))) } else { here(text) });
    }
}

/// Programs that are started begin where the kernel stands, which is nowhere when the mount was made anew after it was sent there.
pub(crate) fn before_start() {
    let here = CWD[lock::part_here(PARTS)].lock().clone();
    let in_volume = matches!(here.as_deref(), Some(Cwd::Volume(..) | Cwd::Later(_)));
    if !in_volume || borrowed_memory() || !kernel_text().is_empty() {
        return;
    }
    // What is known is told as it is: nobody waits for a manager here.
    let (dir, anchor) = match here.as_deref() {
        Some(Cwd::Volume(dir, anchor)) => (dir.clone(), anchor.clone()),
        _ => match now() {
            Cwd::Volume(dir, anchor) => (dir, anchor),
            _ => return,
        },
    };
    let moved = dir.path.as_ref().is_some_and(|below| kernel::send_back(dir.mount, below, dir.ino));
    keep(if moved { None } else { Some((&dir, anchor.generation())) });
}

pub(crate) fn now() -> Cwd {
    look(Cwd::clone)
}

/// What `f` says of the directory, if we stand in a volume.
pub(crate) fn with<T>(f: impl FnOnce(&Dir) -> T) -> Option<T> {
    look(|cwd| match cwd {
        Cwd::Volume(dir, _) => Some(f(dir)),
        Cwd::Kernel { .. } | Cwd::Later(_) | Cwd::Gone => None,
    })
}

/// What `f` says of the path of the directory, without a slash at its end, if we stand outside and a mount lies below.
pub(crate) fn above<T>(f: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
    look(|cwd| match cwd {
        Cwd::Kernel { above: true, text } => f(text.strip_suffix(b"/").unwrap_or(text)),
        _ => None,
    })
}

/// In a child of fork: no other thread can hold the locks. One that did may have changed some of the parts: the first one counts.
pub(crate) fn after_fork() {
    let changing = CWD.iter().all(|part| part.is_locked());
    // SAFETY: we are the only thread.
    CWD.iter().for_each(|part| unsafe { free(part) });
    if changing {
        let first = CWD[0].lock().clone();
        // What the others have is left behind, should it be half changed.
        CWD[1..]
            .iter()
            .for_each(|part| std::mem::forget(std::mem::replace(&mut *part.lock(), first.clone())));
    }
}

/// Finds out where a call to the kernel has led.
pub(crate) fn begin() {
    keep(None);
    stand(here(kernel_text()));
}

/// Where the kernel thinks we are, which has this path for it.
fn here(text: Vec<u8>) -> Cwd {
    if let Some((dir, generation)) = in_volume(&text) {
        return Cwd::at(dir, generation);
    }
    let ends = text.len() - text.ends_with(b"/") as usize;
    let is_above =
        |m: &Mount| m.prefix.strip_prefix(&text[..ends]).is_some_and(|rest| rest.starts_with(b"/"));
    let above = !text.is_empty() && mounts().iter().any(is_above);
    Cwd::Kernel { above, text }
}

/// Where the program began, if that is still the same directory. `None`: who knows.
fn at_begin((text, ino): Began) -> Option<Cwd> {
    match path::resolve(AT_FDCWD, &text, true) {
        // Where the kernel, which has no path any more, knows the number still: it was sent elsewhere, past us.
        _ if kernel_number().is_some_and(|now| now != ino) => None,
        Ok(To::Volume(found)) if found.attr.kind == FileType::Directory && found.attr.ino.0 == ino => {
            let dir = Dir { mount: found.mount, ino: found.attr.ino, path: found.path };
            Some(Cwd::at(dir, found.attr.generation))
        }
        Ok(To::Volume(_)) | Err(Out::Errno(libc::ENOENT)) => Some(Cwd::Gone),
        _ => None,
    }
}

/// Whether a path leads to a mount or below.
fn is_below(text: &[u8], mount: &Mount) -> bool {
    text.strip_prefix(&mount.prefix[..]).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// The directory of a volume in which we stand, when the kernel, which stands there too, has this path for it. The path may be that of another one by now:
/// which directory it is the kernel knows for sure.
fn in_volume(text: &[u8]) -> Option<(Dir, u32)> {
    let here = kernel_inode();
    if mounts().iter().any(|m| is_below(text, m))
        && let Ok(To::Volume(found)) = path::resolve(AT_FDCWD, text, true)
        && found.attr.kind == FileType::Directory
        && here.is_none_or(|(dev, ino)| dev != found.mount.dev() || ino == found.attr.ino.0)
    {
        return Some((
            Dir { mount: found.mount, ino: found.attr.ino, path: found.path },
            found.attr.generation,
        ));
    }
    let (dev, ino) = here?;
    let mount = mounts().iter().find(|m| m.dev() == dev)?;
    mount.for_paths()?;
    let path = upward::path_of(mount, Ino(ino)).ok()?;
    let attr = mount.run(|fs| fs.getattr(Ino(ino), None)).ok()?;
    Some((Dir { mount, ino: Ino(ino), path: Some(path) }, attr.generation))
}

/// Whether the kernel stands in another directory of the volume than this one.
fn is_elsewhere(dir: &Dir) -> bool {
    kernel_inode().is_some_and(|(dev, ino)| dev == dir.mount.dev() && ino != dir.ino.0)
}

fn enter(mut dir: Dir, generation: u32) -> Res<c_int> {
    dir.mount.run(|fs| fs.access(mounts::cred(), dir.ino, Access::EXEC))?;
    if dir.path.is_none() {
        dir.path = upward::path_of(dir.mount, dir.ino).ok();
    }
    let anchor = Arc::new(Anchor::new(dir.mount, dir.ino, generation));
    if !borrowed_memory() && matches!(anchor.holds(), Err(Out::Errno(libc::ENOENT))) {
        return fail(libc::ENOENT);
    }
    if let Some(below) = &dir.path {
        // Failing is allowed: see the module.
        let mut moved = upward::send_kernel(dir.mount, below);
        if moved && is_elsewhere(&dir) {
            // That is the path of another one by now.
            dir.path = upward::path_of(dir.mount, dir.ino).ok();
            let goes = |below: &path::Text| upward::send_kernel(dir.mount, below);
            moved = dir.path.as_ref().is_some_and(goes) && !is_elsewhere(&dir);
        }
        if borrowed_memory() {
            // A child of vfork goes there for what it will execute, which without the kernel would start elsewhere.
            return if moved {
                forget_in_child();
                Ok(0)
            } else {
                fail(errno())
            };
        }
        keep(if moved { None } else { Some((&dir, generation)) });
    }
    if borrowed_memory() {
        return fail(libc::ENOENT);
    }
    stand(Cwd::Volume(dir, anchor));
    Ok(0)
}

/// The absolute path of the current directory, which is known from then on; `Libc` when the kernel knows it.
pub(crate) fn current() -> Res<Vec<u8>> {
    match now() {
        Cwd::Kernel { .. } | Cwd::Later(_) => Err(Out::Libc),
        Cwd::Gone => fail(libc::ENOENT),
        Cwd::Volume(Dir { mount, ino, path: known }, _) => {
            let path = known.map(|below| [&mount.prefix[..], &below].concat());
            if let Some(path) = path
                && let Ok(To::Volume(found)) = path::resolve(AT_FDCWD, &path, true)
                && found.attr.ino == ino
            {
                return Ok(path);
            }
            // It was moved, or one above it, or the path is longer than what is kept.
            let below = upward::path_of(mount, ino)?;
            let path = [&mount.prefix[..], &below].concat();
            if !borrowed_memory() {
                change(|cwd| match cwd {
                    Cwd::Volume(dir, anchor) if dir.ino == ino && dir.mount.hash == mount.hash => {
                        Some(Cwd::Volume(Dir { path: Some(below), mount, ino }, anchor.clone()))
                    }
                    _ => None,
                });
            }
            Ok(path)
        }
    }
}

/// A string in memory from malloc, or in the caller's buffer of `size` bytes.
///
/// # Safety
/// `buffer` is null or has `size` bytes.
pub(crate) unsafe fn give(path: &[u8], buffer: *mut c_char, size: usize) -> Res<*mut c_char> {
    // SAFETY: the size is checked before anything is copied.
    unsafe {
        let to = if buffer.is_null() { libc::malloc(size.max(path.len() + 1)).cast() } else { buffer };
        if to.is_null() {
            return fail(libc::ENOMEM);
        }
        std::ptr::copy_nonoverlapping(path.as_ptr(), to.cast(), path.len());
        *to.add(path.len()) = 0;
        Ok(to)
    }
}

/// A path for a caller that says nothing of the room there is.
///
/// # Safety
/// `to` is null or has `PATH_MAX` bytes.
unsafe fn given_whole(path: &[u8], to: *mut c_char) -> Res<*mut c_char> {
    match path.len() {
        _ if to.is_null() => fail(libc::EINVAL),
        n if n >= libc::PATH_MAX as usize => fail(libc::ENAMETOOLONG),
        // SAFETY: as the caller says; the length was checked.
        _ => unsafe { give(path, to, 0) },
    }
}

hook! {
    fn chdir(path: *const c_char) -> c_int {
        match path::resolve(AT_FDCWD, text(path)?, true) {
            Ok(To::Volume(found)) if found.attr.kind != FileType::Directory => fail(libc::ENOTDIR),
            Ok(To::Volume(found)) => {
                enter(Dir { mount: found.mount, ino: found.attr.ino, path: found.path }, found.attr.generation)
            }
            other => {
                let done = match other {
                    Ok(To::Kernel(path)) => chdir::real(path.as_ptr()),
                    Err(Out::Libc) => chdir::real(path),
                    Err(e) => return Err(e),
                    Ok(To::Volume(_)) => unreachable!("handled above"),
                };
                if done != 0 {
                    return fail(errno());
                }
                if borrowed_memory() { forget_in_child() } else { begin() }
                Ok(0)
            }
        }
    }

    fn fchdir(fd: c_int) -> c_int {
        let Some(open) = table::get(fd) else {
            if fchdir::real(fd) != 0 {
                return fail(errno());
            }
            if borrowed_memory() { forget_in_child() } else { begin() }
            return Ok(0);
        };
        if open.kind != FileType::Directory {
            return fail(libc::ENOTDIR);
        }
        enter(Dir { mount: open.mount, ino: open.ino, path: open.path().map(path::Text::from) }, open.generation())
    }

    fn getcwd(buffer: *mut c_char, size: libc::size_t) -> *mut c_char {
        let path = current()?;
        if size == 0 && !buffer.is_null() {
            return fail(libc::EINVAL);
        }
        if size != 0 && size <= path.len() {
            return fail(libc::ERANGE);
        }
        give(&path, buffer, size)
    }

    fn __getcwd_chk(buffer: *mut c_char, size: libc::size_t, room: libc::size_t) -> *mut c_char {
        let path = current()?;
        let size = size.min(room);
        if size == 0 {
            return fail(libc::EINVAL);
        }
        if size <= path.len() {
            return fail(libc::ERANGE);
        }
        give(&path, buffer, size)
    }

    fn getwd(buffer: *mut c_char) -> *mut c_char { given_whole(&current()?, buffer) }

    fn __getwd_chk(buffer: *mut c_char, _room: libc::size_t) -> *mut c_char { given_whole(&current()?, buffer) }

    fn get_current_dir_name() -> *mut c_char {
        give(&current()?, std::ptr::null_mut(), 0)
    }
}
