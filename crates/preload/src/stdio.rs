//! C streams over descriptors of ours: fopen, fdopen, freopen, fileno, and the three standard streams.
//!
//! libc's own streams read and write without a call that we would see, so ours are made with fopencookie(3), with a cookie that says the
//! descriptor. They work with descriptors of the kernel too: freopen(3) gives back the stream that it was given, as programs that do not look take for granted.
//!
//! When a standard descriptor becomes ours (dup2, or at the start of a program that was redirected into a volume) the
//! variable `stdout` (`stdin`, `stderr`) is set to such a stream, and set back when it leads elsewhere. What stands in the buffer goes along. A program that kept a copy
//! of the old pointer gets `EPERM` or `EBADF` from it.

use crate::hook::{Out, Res, errno, fail, free, hook, inside, outside, text};
use crate::table;
use libc::{AT_FDCWD, FILE, c_char, c_int, c_void, size_t, ssize_t};
use share::lock::Mutex;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// `cookie_io_functions_t`.
#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    fn __fpurge(stream: *mut FILE);
    fn __fbufsize(stream: *mut FILE) -> size_t;
    fn __flbf(stream: *mut FILE) -> c_int;
    fn ftrylockfile(stream: *mut FILE) -> c_int;
    fn funlockfile(stream: *mut FILE);
    fn fwide(stream: *mut FILE, mode: c_int) -> c_int;
    fn ungetc(c: c_int, stream: *mut FILE) -> c_int;
}

/// The beginning of `FILE`, which glibc's macros have put into programs since ever.
#[repr(C)]
struct Head {
    flags: c_int,
    /// What is read next, and the end of that.
    read: [*const u8; 2],
    _read_base: *const u8,
    /// What was printed and not yet written, from where to where.
    write: [*const u8; 2],
    _room: [*const u8; 3],
    /// What is read behind bytes that were given back by ungetc(3).
    saved: *const u8,
    _backup: *const u8,
    saved_end: *const u8,
}

/// The descriptor of a stream; -1 when it has none any more. Freed with the stream.
struct Cookie(AtomicI32);

/// Streams of ours and the addresses of their cookies.
static STREAMS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// In a child of fork: no other thread can hold the lock.
pub(crate) fn after_fork() {
    // SAFETY: we are the only thread.
    unsafe { free(&STREAMS) };
}

fn number(cookie: *mut c_void) -> c_int {
    // SAFETY: of an open stream, as libc gives it, or as it is in `STREAMS`.
    unsafe { &*cookie.cast::<Cookie>() }.0.load(Ordering::Relaxed)
}

// libc calls these for the program, which may be a signal handler on top of a call of ours: that one is refused, as any, or it would wait for itself. Where our own code has libc
// call them it says so (`outside`).

unsafe extern "C" fn cookie_read(cookie: *mut c_void, to: *mut c_char, n: size_t) -> ssize_t {
    // SAFETY: libc gives a buffer of `n` bytes.
    unsafe { crate::rw::read(number(cookie), to.cast(), n) }
}

unsafe extern "C" fn cookie_write(cookie: *mut c_void, from: *const c_char, n: size_t) -> ssize_t {
    let mut done = 0;
    while done < n {
        // SAFETY: libc gives a buffer of `n` bytes.
        let wrote = unsafe { crate::rw::write(number(cookie), from.add(done).cast(), n - done) };
        match wrote {
            ..=0 => break,
            wrote => done += wrote as usize,
        }
    }
    done as ssize_t
}

unsafe extern "C" fn cookie_seek(cookie: *mut c_void, offset: *mut i64, whence: c_int) -> c_int {
    // SAFETY: libc gives a place for the offset.
    unsafe {
        let at = crate::rw::lseek(number(cookie), *offset, whence);
        if at < 0 {
            return -1;
        }
        *offset = at;
        0
    }
}

unsafe extern "C" fn cookie_close(cookie: *mut c_void) -> c_int {
    let fd = number(cookie);
    let closed = |streams: &mut Vec<(usize, usize)>| {
        let at = streams.iter().position(|(_, of)| *of == cookie.addr())?;
        Some(streams.swap_remove(at).0)
    };
    let stream = closed(&mut STREAMS.lock());
    let standard = STANDARD.iter().find(|s| Some(s.ours.load(Ordering::Relaxed).addr()) == stream);
    if let Some(standard) = standard {
        let ours = standard.ours.swap(std::ptr::null_mut(), Ordering::Relaxed);
        let _inside = inside();
        if let Some(variable) = standard.variable().filter(|v| v.load(Ordering::Relaxed) == ours) {
            let libcs = standard.libcs.load(Ordering::Relaxed);
            // SAFETY: it was the program's standard stream, which is closed now.
            unsafe { allow(libcs, None) };
            variable.store(libcs, Ordering::Relaxed);
        }
    }
    // SAFETY: from `make`, and the stream is gone now.
    drop(unsafe { Box::from_raw(cookie.cast::<Cookie>()) });
    // SAFETY: the stream owns the descriptor, if it has one.
    if fd < 0 { 0 } else { unsafe { crate::fds::close(fd) } }
}

/// A stream over a descriptor, for a file opened with these flags.
fn make(fd: c_int, flags: c_int) -> Res<*mut FILE> {
    let functions =
        Functions { read: cookie_read, write: cookie_write, seek: cookie_seek, close: cookie_close };
    let cookie = Box::into_raw(Box::new(Cookie(AtomicI32::new(fd))));
    // SAFETY: the functions live as long as the library, and the cookie until they close the stream.
    let stream = unsafe { fopencookie(cookie.cast(), mode_of(flags).as_ptr(), functions) };
    if stream.is_null() {
        let why = errno();
        // SAFETY: made above, and nobody has it.
        drop(unsafe { Box::from_raw(cookie) });
        return fail(why);
    }
    STREAMS.lock().push((stream.addr(), cookie.expose_provenance()));
    Ok(stream)
}

/// The mode of fopencookie(3), which looks for a `+` in fewer places than fopen(3).
fn mode_of(flags: c_int) -> &'static CStr {
    match (flags & libc::O_ACCMODE, flags & libc::O_APPEND != 0) {
        (libc::O_RDONLY, _) => c"r",
        (libc::O_WRONLY, false) => c"w",
        (libc::O_WRONLY, true) => c"a",
        (_, false) => c"r+",
        (_, true) => c"a+",
    }
}

/// Flags for open(2) from the mode of fopen(3), of which libc looks at so much.
fn flags_of(mode: &[u8]) -> Res<c_int> {
    let mode = &mode[..mode.len().min(7)];
    let plus = mode.contains(&b'+');
    let access = |one| if plus { libc::O_RDWR } else { one };
    let base = match mode.first() {
        Some(b'r') => access(libc::O_RDONLY),
        Some(b'w') => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_TRUNC,
        Some(b'a') => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_APPEND,
        _ => return fail(libc::EINVAL),
    };
    let more = |letter, flag| if mode.contains(&letter) { flag } else { 0 };
    Ok(base | more(b'x', libc::O_EXCL) | more(b'e', libc::O_CLOEXEC))
}

/// A standard stream: libc's own, and ours while its descriptor is.
struct Standard {
    name: &'static CStr,
    flags: c_int,
    libcs: AtomicPtr<FILE>,
    ours: AtomicPtr<FILE>,
}

const fn follows(name: &'static CStr, flags: c_int) -> Standard {
    let null = std::ptr::null_mut();
    Standard { name, flags, libcs: AtomicPtr::new(null), ours: AtomicPtr::new(null) }
}

static STANDARD: [Standard; 3] = [
    follows(c"stdin", libc::O_RDONLY),
    follows(c"stdout", libc::O_WRONLY),
    follows(c"stderr", libc::O_WRONLY),
];

impl Standard {
    /// The variable that the program uses.
    fn variable(&self) -> Option<&'static AtomicPtr<FILE>> {
        // SAFETY: libc and programs have a pointer of this name, for ever; other threads change it at their own risk.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, self.name.as_ptr()).cast::<AtomicPtr<FILE>>().as_ref() }
    }
}

/// Has a standard stream follow its descriptor.
pub(crate) fn follow(fd: c_int) {
    let standard = &STANDARD[fd as usize];
    let ours = standard.ours.load(Ordering::Relaxed);
    if !table::is_ours(fd) && ours.is_null() {
        return;
    }
    let _inside = inside();
    let Some(variable) = standard.variable() else { return };
    let current = variable.load(Ordering::Relaxed);
    if table::is_ours(fd) {
        if ours.is_null() {
            let Ok(stream) = make(fd, standard.flags) else { return };
            // SAFETY: a stream of our own that nobody has used, and one that the program uses.
            unsafe { buffer_alike(current, stream) };
            standard.ours.store(stream, Ordering::Relaxed);
        }
        let ours = standard.ours.load(Ordering::Relaxed);
        if current != ours {
            // SAFETY: streams that are open.
            unsafe { hand_over(current, ours) };
            standard.libcs.store(current, Ordering::Relaxed);
            variable.store(ours, Ordering::Relaxed);
        }
    } else if current == ours {
        let libcs = standard.libcs.load(Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { hand_over(ours, libcs) };
        variable.store(libcs, Ordering::Relaxed);
    }
}

/// Has `new`, which nobody has used yet, keep as much as `old`, of which setvbuf(3) may have said that.
///
/// # Safety
/// Both are open streams, here and below.
unsafe fn buffer_alike(old: *mut FILE, new: *mut FILE) {
    const UNBUFFERED: c_int = 2;
    // SAFETY: as the caller says.
    unsafe {
        let mode = match () {
            () if (*old.cast::<Head>()).flags & UNBUFFERED != 0 => libc::_IONBF,
            () if __flbf(old) != 0 => libc::_IOLBF,
            () => libc::_IOFBF,
        };
        let size = __fbufsize(old);
        // Memory for ever: a standard stream is hardly ever closed.
        let room = if size > libc::BUFSIZ as usize { libc::malloc(size) } else { std::ptr::null_mut() };
        libc::setvbuf(new, room.cast(), mode, size);
    }
}

/// Moves what stands in the buffer of a standard stream to the one that the program uses in its stead: what was printed comes before what is printed from now on, wherever
/// that goes, and what was read ahead is read next. Where another thread is at work with the old one it stays there, as who redirects does not wait for that.
///
/// # Safety
/// As of [`buffer_alike`].
unsafe fn hand_over(old: *mut FILE, new: *mut FILE) {
    const IN_BACKUP: c_int = 0x100;
    // SAFETY: as the caller says; the lock of the old stream is this thread's, and nobody has heard of the new one.
    unsafe {
        if ftrylockfile(old) != 0 {
            return;
        }
        if fwide(old, 0) <= 0 {
            let head = &*old.cast::<Head>();
            let saved =
                if head.flags & IN_BACKUP != 0 { head.saved_end.addr() - head.saved.addr() } else { 0 };
            let ahead = head.read[1].addr() - head.read[0].addr() + saved;
            let ahead: Vec<c_int> = (0..ahead).map(|_| libc::fgetc(old)).collect();
            ahead.iter().rev().for_each(|&byte| _ = ungetc(byte, new));
            let [from, to] = (*old.cast::<Head>()).write;
            if to > from {
                outside(|| libc::fwrite(from.cast(), 1, to.addr() - from.addr(), new));
            }
            __fpurge(old);
        }
        funlockfile(old);
    }
}

/// The standard stream of this number that the program uses.
pub(crate) fn standard(number: usize) -> Option<*mut FILE> {
    STANDARD[number].variable().map(|v| v.load(Ordering::Relaxed))
}

/// The cookie of a stream of ours.
fn cookie_of(stream: *mut FILE) -> Option<*mut c_void> {
    let cookie = STREAMS.lock().iter().find(|(s, _)| *s == stream.addr())?.1;
    Some(std::ptr::with_exposed_provenance_mut(cookie))
}

/// The descriptor of a stream of ours; -1 when it has none.
pub(crate) fn of_stream(stream: *mut FILE) -> Option<c_int> {
    cookie_of(stream).map(number)
}

/// Where a stream begins that only appends: at the end, as programs look whether there is anything yet (ftell). What is written goes there anyway.
fn begin_at_end(fd: c_int, flags: c_int) {
    if flags & (libc::O_APPEND | libc::O_ACCMODE) == libc::O_APPEND | libc::O_WRONLY {
        let _ = crate::rw::seek(fd, 0, libc::SEEK_END);
    }
}

/// Opens a file for a stream, whoever has it. The descriptor may be the kernel's.
///
/// # Safety
/// `path` is a C string.
unsafe fn open_for(path: *const c_char, flags: c_int) -> Res<c_int> {
    // SAFETY: as the caller says.
    match unsafe { crate::open::open_at(AT_FDCWD, text(path)?, flags, 0o666) } {
        // SAFETY: as the caller says.
        Err(Out::Libc) => match outside(|| unsafe { crate::open::open::real(path, flags, 0o666) }) {
            -1 => fail(errno()),
            fd => Ok(fd),
        },
        opened => opened,
    }
}

/// Says whether a stream may read and write; with `None` neither. In the first field of `FILE`, as of [`crate::wide`].
///
/// # Safety
/// `stream` is an open stream, here and below.
unsafe fn allow(stream: *mut FILE, flags: Option<c_int>) {
    const NO_READS: c_int = 4;
    const NO_WRITES: c_int = 8;
    const APPENDS: c_int = 0x1000;
    let allowed = match flags.map(|flags| flags & libc::O_ACCMODE) {
        None => NO_READS | NO_WRITES,
        Some(libc::O_RDONLY) => NO_WRITES,
        Some(libc::O_WRONLY) => NO_READS,
        Some(_) => 0,
    };
    let appends = if flags.unwrap_or(0) & libc::O_APPEND != 0 { APPENDS } else { 0 };
    // SAFETY: as the caller says.
    unsafe {
        let word = stream.cast::<c_int>();
        *word = *word & !(NO_READS | NO_WRITES | APPENDS) | allowed | appends;
    }
}

/// Puts the descriptor `fd` in the place of `number`, which may lead nowhere by now.
fn put(fd: c_int, number: c_int, flags: c_int) -> Res<()> {
    if fd == number {
        return Ok(());
    }
    // SAFETY: only descriptors are touched; `fd` is nobody else's.
    let done = outside(|| unsafe { crate::fds::dup3(fd, number, flags & libc::O_CLOEXEC) });
    let why = errno();
    // SAFETY: as above.
    outside(|| unsafe { crate::fds::close(fd) });
    if done < 0 { fail(why) } else { Ok(()) }
}

/// Has a stream of ours lead to another file. The stream that the program uses from then on is the same one, unless it is a standard one.
///
/// # Safety
/// `path` is a C string.
unsafe fn lead(stream: *mut FILE, cookie: *mut c_void, path: *const c_char, flags: c_int) -> Res<*mut FILE> {
    // SAFETY: as the caller says; the cookie is that of the stream.
    unsafe {
        let of = &(*cookie.cast::<Cookie>()).0;
        let standard = STANDARD.iter().find(|s| s.ours.load(Ordering::Relaxed) == stream);
        outside(|| libc::fflush(stream));
        __fpurge(stream);
        let number = of.load(Ordering::Relaxed);
        let opened = open_for(path, flags).and_then(|fd| {
            if number < 0 {
                of.store(fd, Ordering::Relaxed);
                return Ok(());
            }
            put(fd, number, flags)
        });
        if let Err(e) = opened {
            // As libc does it: the old file is closed all the same.
            allow(stream, None);
            if of.swap(-1, Ordering::Relaxed) >= 0 {
                outside(|| crate::fds::close(number));
            }
            return Err(e);
        }
        allow(stream, Some(flags));
        // By this it forgets where it was in the other file, and what it had read there. Pipes have no places.
        outside(|| {
            if libc::fseek(stream, 0, libc::SEEK_END) == 0 && mode_of(flags) != c"a" {
                libc::fseek(stream, 0, libc::SEEK_SET);
            }
        });
        libc::clearerr(stream);
        Ok(standard.and_then(Standard::variable).map_or(stream, |v| v.load(Ordering::Relaxed)))
    }
}

/// Has a stream of libc lead to a file of ours, which only another stream can. It is left as it was, for programs that go on with it: its descriptor leads to the file,
/// where libc can do no harm (`arena`).
///
/// # Safety
/// As of [`lead`].
unsafe fn replace(stream: *mut FILE, fd: c_int, flags: c_int) -> Res<*mut FILE> {
    begin_at_end(fd, flags);
    // SAFETY: as the caller says.
    unsafe {
        outside(|| libc::fflush(stream));
        let standard =
            STANDARD.iter().position(|s| s.variable().is_some_and(|v| v.load(Ordering::Relaxed) == stream));
        if let Some(number) = standard {
            put(fd, number as c_int, flags)?;
            let stream = STANDARD[number].ours.load(Ordering::Relaxed);
            return if stream.is_null() { fail(libc::EBADF) } else { Ok(stream) };
        }
        let number = fileno::real(stream);
        if number < 0 {
            return make(fd, flags);
        }
        put(fd, number, flags)?;
        make(number, flags)
    }
}

hook! {
    fn fopen | fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
        let flags = flags_of(text(mode)?)?;
        let fd = crate::open::open_at(AT_FDCWD, text(path)?, flags, 0o666)?;
        if table::is_ours(fd) {
            begin_at_end(fd, flags);
            return make(fd, flags);
        }
        let stream = fdopen::real(fd, mode);
        if stream.is_null() { fail(errno()) } else { Ok(stream) }
    }
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        let open = table::get(fd).ok_or(Out::Libc)?;
        let flags = flags_of(text(mode)?)?;
        let (reads, writes) = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => (true, false),
            libc::O_WRONLY => (false, true),
            _ => (true, true),
        };
        let only_found = open.is_path();
        if reads && !open.readable() && !only_found || writes && !open.writable() {
            return fail(libc::EINVAL);
        }
        if flags & libc::O_APPEND != 0 && open.flags() & libc::O_APPEND == 0 {
            // For all who have the file open so: as libc does it.
            crate::fds::set_flags(&open, open.flags() | libc::O_APPEND)?;
            begin_at_end(fd, flags);
        }
        make(fd, flags)
    }
    fn freopen | freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        let cookie = cookie_of(stream);
        if path.is_null() && cookie.is_none() {
            return Err(Out::Libc);
        }
        let flags = flags_of(text(mode)?)?;
        if let Some(cookie) = cookie {
            if !path.is_null() {
                return lead(stream, cookie, path, flags);
            }
            // The same file with another mode: it is opened anew by its descriptor, as libc does it.
            let same = match number(cookie) {
                -1 => return fail(libc::EBADF),
                fd => CString::new(format!("/proc/self/fd/{fd}")).or(fail(libc::EINVAL))?,
            };
            return lead(stream, cookie, same.as_ptr(), flags);
        }
        let fd = match crate::open::open_at(AT_FDCWD, text(path)?, flags, 0o666) {
            Err(Out::Errno(why)) => {
                // As libc does it: the old file is closed all the same. With this path it does nothing else.
                freopen::real(c"".as_ptr(), c"r".as_ptr(), stream);
                return fail(why);
            }
            opened => opened?,
        };
        if table::is_ours(fd) {
            return replace(stream, fd, flags);
        }
        // A path of a volume that led out of it: libc opens what is there once more.
        let path = CString::new(format!("/proc/self/fd/{fd}")).or(fail(libc::EINVAL))?;
        let stream = freopen::real(path.as_ptr(), mode_of(flags).as_ptr(), stream);
        let why = errno();
        crate::fds::close::real(fd);
        if stream.is_null() { fail(why) } else { Ok(stream) }
    }
    fn fclose(stream: *mut FILE) -> c_int {
        // Ours close their descriptor by a call of ours.
        if of_stream(stream).is_some() {
            return Err(Out::Memory);
        }
        crate::parked::freed(0);
        Err(Out::Libc)
    }
    fn pclose(stream: *mut FILE) -> c_int {
        crate::parked::freed(0);
        Err(Out::Libc)
    }
    fn fileno | fileno_unlocked(stream: *mut FILE) -> c_int {
        match of_stream(stream).ok_or(Out::Libc)? {
            -1 => fail(libc::EBADF),
            fd => Ok(fd),
        }
    }
}
