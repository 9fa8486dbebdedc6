//! C streams over descriptors of ours: fopen, fdopen, freopen, fileno, and the three standard streams.
//!
//! libc's own streams read and write without a call that we would see, so ours are made with fopencookie(3), with the descriptor as the
//! cookie. When a standard descriptor becomes ours (dup2, or at the start of a program that was redirected into a volume) the
//! variable `stdout` (`stdin`, `stderr`) is set to such a stream, and set back when it leads elsewhere. A program that kept a copy
//! of the old pointer gets `EPERM` or `EBADF` from it.

use crate::hook::{Out, Res, errno, fail, free, hook, inside, outside, text};
use crate::table;
use libc::{AT_FDCWD, FILE, c_char, c_int, c_void, size_t, ssize_t};
use share::lock::Mutex;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

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
}

/// Streams of ours and their descriptors.
static STREAMS: Mutex<Vec<(usize, c_int)>> = Mutex::new(Vec::new());

/// In a child of fork: no other thread can hold the lock.
pub(crate) fn after_fork() {
    // SAFETY: we are the only thread.
    unsafe { free(&STREAMS) };
}

fn number(cookie: *mut c_void) -> c_int {
    cookie.addr() as c_int
}

unsafe extern "C" fn cookie_read(cookie: *mut c_void, to: *mut c_char, n: size_t) -> ssize_t {
    // SAFETY: libc gives a buffer of `n` bytes.
    outside(|| unsafe { crate::rw::read(number(cookie), to.cast(), n) })
}

unsafe extern "C" fn cookie_write(cookie: *mut c_void, from: *const c_char, n: size_t) -> ssize_t {
    let mut done = 0;
    while done < n {
        // SAFETY: libc gives a buffer of `n` bytes.
        let wrote = outside(|| unsafe { crate::rw::write(number(cookie), from.add(done).cast(), n - done) });
        match wrote {
            ..=0 => break,
            wrote => done += wrote as usize,
        }
    }
    done as ssize_t
}

unsafe extern "C" fn cookie_seek(cookie: *mut c_void, offset: *mut i64, whence: c_int) -> c_int {
    // SAFETY: libc gives a place for the offset.
    outside(|| unsafe {
        let at = crate::rw::lseek(number(cookie), *offset, whence);
        if at < 0 {
            return -1;
        }
        *offset = at;
        0
    })
}

unsafe extern "C" fn cookie_close(cookie: *mut c_void) -> c_int {
    let fd = number(cookie);
    STREAMS.lock().retain(|(_, of)| *of != fd);
    if let Some(standard) = usize::try_from(fd).ok().and_then(|fd| STANDARD.get(fd)) {
        standard.ours.store(std::ptr::null_mut(), Ordering::Relaxed);
    }
    // SAFETY: the stream owns the descriptor.
    outside(|| unsafe { crate::fds::close(fd) })
}

/// A stream over a descriptor of ours.
fn make(fd: c_int, mode: &CStr) -> Res<*mut FILE> {
    let functions =
        Functions { read: cookie_read, write: cookie_write, seek: cookie_seek, close: cookie_close };
    // SAFETY: the functions live as long as the library.
    let stream =
        unsafe { fopencookie(std::ptr::without_provenance_mut(fd as usize), mode.as_ptr(), functions) };
    if stream.is_null() {
        return fail(errno());
    }
    STREAMS.lock().push((stream.addr(), fd));
    Ok(stream)
}

/// Flags for open(2) from the mode of fopen(3).
fn flags_of(mode: &[u8]) -> Res<c_int> {
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
    mode: &'static CStr,
    libcs: AtomicPtr<FILE>,
    ours: AtomicPtr<FILE>,
}

const fn follows(name: &'static CStr, mode: &'static CStr) -> Standard {
    let null = std::ptr::null_mut();
    Standard { name, mode, libcs: AtomicPtr::new(null), ours: AtomicPtr::new(null) }
}

static STANDARD: [Standard; 3] =
    [follows(c"stdin", c"r"), follows(c"stdout", c"w"), follows(c"stderr", c"w")];

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
            let Ok(stream) = make(fd, standard.mode) else { return };
            if fd == 2 {
                // SAFETY: a stream of our own that nobody has used.
                unsafe { libc::setvbuf(stream, std::ptr::null_mut(), libc::_IONBF, 0) };
            }
            standard.ours.store(stream, Ordering::Relaxed);
        }
        let ours = standard.ours.load(Ordering::Relaxed);
        if current != ours {
            standard.libcs.store(current, Ordering::Relaxed);
            variable.store(ours, Ordering::Relaxed);
        }
    } else if current == ours {
        // What is still in the buffer goes where the descriptor leads now, as it would have gone later.
        // SAFETY: a stream of our own.
        unsafe { libc::fflush(ours) };
        variable.store(standard.libcs.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The standard stream of this number that the program uses.
pub(crate) fn standard(number: usize) -> Option<*mut FILE> {
    STANDARD[number].variable().map(|v| v.load(Ordering::Relaxed))
}

/// The descriptor of a stream of ours.
pub(crate) fn of_stream(stream: *mut FILE) -> Option<c_int> {
    STREAMS.lock().iter().find(|(s, _)| *s == stream.addr()).map(|(_, fd)| *fd)
}

/// Where a stream begins that only appends: at the end, as programs look whether there is anything yet (ftell). What is written goes there anyway.
fn begin_at_end(fd: c_int, flags: c_int) {
    if flags & (libc::O_APPEND | libc::O_ACCMODE) == libc::O_APPEND | libc::O_WRONLY {
        let _ = crate::rw::seek(fd, 0, libc::SEEK_END);
    }
}

hook! {
    fn fopen | fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
        let flags = flags_of(text(mode)?)?;
        let fd = crate::open::open_at(AT_FDCWD, text(path)?, flags, 0o666)?;
        if table::is_ours(fd) {
            begin_at_end(fd, flags);
            return make(fd, CStr::from_ptr(mode));
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
        let only_found = open.flags() & libc::O_PATH != 0;
        if reads && !open.readable() && !only_found || writes && !open.writable() {
            return fail(libc::EINVAL);
        }
        if flags & libc::O_APPEND != 0 && open.flags() & libc::O_APPEND == 0 {
            // For all who have the file open so: as libc does it.
            crate::fds::set_flags(&open, open.flags() | libc::O_APPEND)?;
            begin_at_end(fd, flags);
        }
        make(fd, CStr::from_ptr(mode))
    }
    fn freopen | freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        if path.is_null() {
            return if of_stream(stream).is_some() { fail(libc::EBADF) } else { Err(Out::Libc) };
        }
        let flags = flags_of(text(mode)?)?;
        let fd = match crate::open::open_at(AT_FDCWD, text(path)?, flags, 0o666) {
            // A stream of ours that goes elsewhere.
            Err(Out::Libc) if of_stream(stream).is_some() => {
                libc::fclose(stream);
                let stream = fopen::real(path, mode);
                return if stream.is_null() { fail(errno()) } else { Ok(stream) };
            }
            other => other?,
        };
        if table::is_ours(fd) {
            begin_at_end(fd, flags);
        }
        libc::fflush(stream);
        let standard = STANDARD.iter().position(|s| s.variable().is_some_and(|v| v.load(Ordering::Relaxed) == stream));
        match standard {
            Some(number) if table::is_ours(fd) && fd != number as c_int => {
                let done = outside(|| crate::fds::dup2(fd, number as c_int));
                outside(|| crate::fds::close(fd));
                let stream = STANDARD[number].ours.load(Ordering::Relaxed);
                if done < 0 || stream.is_null() { fail(libc::EBADF) } else { Ok(stream) }
            }
            _ => {
                libc::fclose(stream);
                make(fd, CStr::from_ptr(mode))
            }
        }
    }
    fn fileno | fileno_unlocked(stream: *mut FILE) -> c_int { of_stream(stream).ok_or(Out::Libc) }
}
