//! Directory streams: opendir, readdir and their kin, scandir. And getdents64, without one.
//!
//! A `DIR` of ours begins with a number that cannot stand at the beginning of libc's (a descriptor and a lock), so that each function
//! sees whose it is. Entries are fetched many at a time.

use crate::description::Open;
use crate::hook::{Out, Res, errno, fail, hook, memory_mut, outside, set_errno, text};
use crate::table;
use fs::{FileSystem, FileType};
use libc::{AT_FDCWD, DIR, c_char, c_int, c_long, dirent, size_t, ssize_t};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::AtomicPtr;

const MAGIC: u64 = 0xf4ee_401d_d1d1_f11e;
/// Entries fetched at a time.
const BATCH: usize = 512;

/// What a `DIR` of ours points to.
#[repr(C)]
struct Stream {
    magic: u64,
    fd: c_int,
    /// Entries fetched and not yet given.
    batch: VecDeque<(Vec<u8>, u64, u64, u8)>,
    /// Where the next batch begins.
    next: u64,
    /// Offset of the entry given last.
    at: u64,
    entry: dirent,
}

/// The stream behind a `DIR`; `Libc` when it is not ours.
///
/// # Safety
/// `dir` is null or an open stream that no other thread uses.
unsafe fn stream<'a>(dir: *mut DIR) -> Res<&'a mut Stream> {
    // SAFETY: libc's streams have more than 8 bytes too.
    unsafe {
        if dir.is_null() || dir.cast::<u64>().read() != MAGIC {
            return Err(Out::Libc);
        }
        Ok(&mut *dir.cast::<Stream>())
    }
}

/// The description, if it is a directory's that may be read.
fn directory(fd: c_int) -> Res<Open> {
    let open = table::get(fd).ok_or(Out::Libc)?;
    match open.kind {
        FileType::Directory if open.readable() => Ok(open),
        FileType::Directory => fail(libc::EBADF),
        _ => fail(libc::ENOTDIR),
    }
}

fn begin(fd: c_int) -> Res<*mut DIR> {
    let open = directory(fd)?;
    // SAFETY: all zeros is a dirent.
    let entry = unsafe { std::mem::zeroed() };
    let at = open.slot.offset()?;
    let stream = Stream { magic: MAGIC, fd, batch: VecDeque::new(), next: at, at, entry };
    Ok(Box::into_raw(Box::new(stream)).cast())
}

impl Stream {
    fn fetch(&mut self) -> Res<()> {
        let open = table::get(self.fd).ok_or(Out::Errno(libc::EBADF))?;
        let handle = open.handle()?;
        let (from, batch, mut next) = (self.next, &mut self.batch, self.next);
        let mut sink = |e: fs::DirEntry<'_>| {
            if batch.len() >= BATCH {
                return false;
            }
            next = e.next_offset;
            batch.push_back((e.name.to_vec(), e.attr.ino.0, e.next_offset, e.attr.kind as u8));
            true
        };
        match open.mount.run(|fs| fs.readdir(handle, from, &mut sink)) {
            // Of a directory that is gone: for a stream its end, as libc has it.
            Ok(()) | Err(Out::Errno(libc::ENOENT)) => {}
            Err(e) => return Err(e),
        }
        self.next = next;
        // Others who have the directory open go on from here, and a program that is executed too.
        open.slot.set_offset(next)
    }

    /// The next entry, or null.
    fn next(&mut self) -> Res<*mut dirent> {
        if self.batch.is_empty() {
            self.fetch()?;
        }
        let Some((name, ino, offset, kind)) = self.batch.pop_front() else { return Ok(std::ptr::null_mut()) };
        let e = &mut self.entry;
        e.d_ino = ino;
        e.d_off = offset as i64;
        e.d_type = kind;
        let n = name.len().min(255);
        for (to, from) in e.d_name.iter_mut().zip(&name[..n]) {
            *to = *from as c_char;
        }
        e.d_name[n] = 0;
        e.d_reclen = (std::mem::offset_of!(dirent, d_name) + n + 1).next_multiple_of(8) as u16;
        self.at = offset;
        Ok(&mut self.entry)
    }

    fn seek(&mut self, to: u64) {
        self.batch.clear();
        (self.next, self.at) = (to, to);
        if let Some(open) = table::get(self.fd) {
            let _ = open.slot.set_offset(to);
        }
    }
}

/// The next entry; errno stays as it was at the end.
///
/// # Safety
/// As of [`stream`].
unsafe fn next_entry(dir: *mut DIR) -> Res<*mut dirent> {
    let before = errno();
    // SAFETY: as the caller says.
    let entry = unsafe { stream(dir) }?.next()?;
    set_errno(before);
    Ok(entry)
}

type Filter = Option<unsafe extern "C" fn(*const dirent) -> c_int>;
type Compare = Option<unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int>;
type Sorts = unsafe extern "C" fn(*const c_void, *const c_void) -> c_int;

/// scandir(3) over our own opendir and readdir.
///
/// # Safety
/// As of scandir(3).
unsafe fn scan(
    dirfd: c_int,
    path: *const c_char,
    list: *mut *mut *mut dirent,
    filter: Filter,
    compare: Compare,
) -> Res<c_int> {
    // SAFETY: as the caller says; entries are copied to memory from malloc, which the caller frees.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let fd = crate::open::open_at(dirfd, text(path)?, flags, 0)?;
        if !table::is_ours(fd) {
            crate::fds::close::real(fd);
            return Err(Out::Libc);
        }
        let dir = begin(fd)?;
        let mut found: Vec<*const dirent> = Vec::new();
        let result = loop {
            let entry = match stream(dir)?.next() {
                Ok(entry) if entry.is_null() => break Ok(()),
                Ok(entry) => entry,
                Err(e) => break Err(e),
            };
            if filter.is_none_or(|keep| outside(|| keep(entry)) != 0) {
                let copy = libc::malloc(size_of::<dirent>()).cast::<dirent>();
                if copy.is_null() {
                    break fail(libc::ENOMEM);
                }
                copy.copy_from_nonoverlapping(entry, 1);
                found.push(copy);
            }
        };
        end(dir)?;
        let array = libc::malloc((found.len() + 1) * size_of::<*mut dirent>()).cast::<*mut dirent>();
        if result.is_err() || array.is_null() {
            found.iter().for_each(|e| libc::free(e.cast_mut().cast()));
            libc::free(array.cast());
            return result.and(fail(libc::ENOMEM));
        }
        for (i, e) in found.iter().enumerate() {
            array.add(i).write(e.cast_mut());
        }
        if let Some(compare) = compare {
            // The order of programs need not be one: libc's own sorting takes any.
            let compare: Sorts = std::mem::transmute(compare);
            outside(|| libc::qsort(array.cast(), found.len(), size_of::<*mut dirent>(), Some(compare)));
        }
        list.write(array);
        Ok(found.len() as c_int)
    }
}

/// # Safety
/// As of closedir(3).
unsafe fn end(dir: *mut DIR) -> Res<c_int> {
    // SAFETY: the stream is ours and was made by `begin`; its caller gives it up.
    unsafe {
        let Ok(of) = stream(dir) else {
            crate::parked::freed(0);
            return Err(Out::Libc);
        };
        let fd = of.fd;
        of.magic = 0;
        drop(Box::from_raw(dir.cast::<Stream>()));
        match crate::fds::close_fd(fd) {
            // The program has closed it, or put another one there. Of the stream libc knows nothing.
            Err(Out::Libc) if crate::fds::close::real(fd) == 0 => Ok(0),
            Err(Out::Libc) => fail(errno()),
            closed => closed,
        }
    }
}

/// Where the name begins in an entry of getdents64(2); the rest of it is as in `dirent64`.
const NAME_AT: usize = std::mem::offset_of!(libc::dirent64, d_name);

/// getdents64(2): as many entries as the buffer has room for, from where the description is.
fn entries(fd: c_int, to: &mut [u8]) -> Res<ssize_t> {
    let open = directory(fd)?;
    let handle = open.handle()?;
    open.slot.with_offset(|at| {
        let (mut used, mut next, mut is_full) = (0, at, false);
        let mut sink = |e: fs::DirEntry<'_>| {
            let len = (NAME_AT + e.name.len() + 1).next_multiple_of(8);
            let Some(entry) = to.get_mut(used..used + len) else {
                is_full = true;
                return false;
            };
            entry.fill(0);
            entry[..8].copy_from_slice(&e.attr.ino.0.to_ne_bytes());
            entry[8..16].copy_from_slice(&e.next_offset.to_ne_bytes());
            entry[16..18].copy_from_slice(&(len as u16).to_ne_bytes());
            entry[18] = e.attr.kind as u8;
            entry[NAME_AT..][..e.name.len()].copy_from_slice(e.name);
            (used, next) = (used + len, e.next_offset);
            true
        };
        open.mount.run(|fs| fs.readdir(handle, at, &mut sink))?;
        if used == 0 && is_full { fail(libc::EINVAL) } else { Ok((next, used as ssize_t)) }
    })
}

hook! {
    fn getdents64(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
        entries(fd, memory_mut(to, len)?)
    }
    fn opendir(path: *const c_char) -> *mut DIR {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let fd = crate::open::open_at(AT_FDCWD, text(path)?, flags, 0)?;
        if table::is_ours(fd) {
            return begin(fd);
        }
        let dir = fdopendir::real(fd);
        if dir.is_null() { fail(errno()) } else { Ok(dir) }
    }
    fn fdopendir(fd: c_int) -> *mut DIR { begin(fd) }
    fn readdir | readdir64(dir: *mut DIR) -> *mut dirent { next_entry(dir) }
    fn readdir_r | readdir64_r(dir: *mut DIR, entry: *mut dirent, result: *mut *mut dirent) -> c_int {
        let stream = stream(dir)?;
        match stream.next() {
            Ok(next) if next.is_null() => result.write(next),
            Ok(next) => {
                entry.copy_from_nonoverlapping(next, 1);
                result.write(entry);
            }
            Err(Out::Errno(errno)) => {
                result.write(std::ptr::null_mut());
                return Ok(errno);
            }
            Err(e) => return Err(e),
        }
        Ok(0)
    }
    fn telldir(dir: *mut DIR) -> c_long { Ok(stream(dir)?.at as c_long) }
    fn closedir(dir: *mut DIR) -> c_int { end(dir) }
    fn dirfd(dir: *mut DIR) -> c_int { Ok(stream(dir)?.fd) }
    fn scandir | scandir64(
        path: *const c_char, list: *mut *mut *mut dirent, filter: Filter, compare: Compare
    ) -> c_int {
        scan(AT_FDCWD, path, list, filter, compare)
    }
    fn scandirat | scandirat64(
        dirfd: c_int, path: *const c_char, list: *mut *mut *mut dirent, filter: Filter, compare: Compare
    ) -> c_int {
        scan(dirfd, path, list, filter, compare)
    }
}

type Seek = unsafe extern "C" fn(*mut DIR, c_long);
type Rewind = unsafe extern "C" fn(*mut DIR);

/// seekdir(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn seekdir(dir: *mut DIR, to: c_long) {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    // SAFETY: the caller's stream; the prototype is that of the manual.
    unsafe {
        match stream(dir) {
            Ok(stream) => stream.seek(to as u64),
            Err(_) => std::mem::transmute::<*mut c_void, Seek>(crate::hook::next(&NEXT, c"seekdir"))(dir, to),
        }
    }
}

/// rewinddir(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rewinddir(dir: *mut DIR) {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    // SAFETY: as above.
    unsafe {
        match stream(dir) {
            Ok(stream) => stream.seek(0),
            Err(_) => std::mem::transmute::<*mut c_void, Rewind>(crate::hook::next(&NEXT, c"rewinddir"))(dir),
        }
    }
}
