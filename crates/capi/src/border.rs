//! What crosses the border: errors as negative numbers, strings, memory, attributes.

use fs::{Attr, Error};
use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Why a call fails.
#[derive(Debug)]
pub(crate) struct Failure {
    pub errno: i32,
    pub message: String,
}

impl Failure {
    pub(crate) fn new(errno: i32, message: &str) -> Failure {
        Failure { errno, message: message.into() }
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure { errno: e.errno(), message: e.to_string() }
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Failure {
        Failure { errno: e.raw_os_error().unwrap_or(libc::EIO), message: e.to_string() }
    }
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// What errno was. System calls that fail in here change it; who called the function of the header finds it as it was.
struct Errno(c_int);

fn errno() -> *mut c_int {
    // SAFETY: asks for the place of this thread's.
    unsafe { libc::__errno_location() }
}

impl Errno {
    fn new() -> Errno {
        // SAFETY: it is there for as long as the thread is.
        Errno(unsafe { errno().read() })
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { errno().write(self.0) }
    }
}

/// Runs the body of a function of the header.
pub(crate) fn guard(body: impl FnOnce() -> Result<i64>) -> i64 {
    let _errno = Errno::new();
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(libc::EIO, "the library failed; this is an error in it"),
    };
    let text = CString::new(failure.message.replace('\0', " ")).unwrap_or_default();
    // During the end of a thread there is nowhere to keep it.
    let _ = MESSAGE.try_with(|message| message.replace(text));
    -i64::from(failure.errno.max(1))
}

/// As [`guard`], for functions that return an int.
pub(crate) fn guard_int(body: impl FnOnce() -> Result<()>) -> c_int {
    guard(|| body().map(|()| 0)) as c_int
}

/// An object that C holds.
///
/// # Safety
/// NULL, or a pointer that this library gave and that was not freed, of this type.
pub(crate) unsafe fn object<'a, T>(pointer: *const T) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::new(libc::EINVAL, "an object is NULL"))
}

/// Where a result goes.
///
/// # Safety
/// NULL, or valid for writing a `T`.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> Result<()> {
    check_place(to)?;
    // SAFETY: not NULL, and the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// Refuses a NULL before the work is done.
pub(crate) fn check_place<T>(to: *const T) -> Result<()> {
    match to.is_null() {
        true => Err(Failure::new(libc::EFAULT, "memory for the result is NULL")),
        false => Ok(()),
    }
}

/// A string of C.
///
/// # Safety
/// NULL, or a string that ends with a NUL and does not change while the result is used.
pub(crate) unsafe fn string<'a>(text: *const c_char) -> Result<&'a OsStr> {
    if text.is_null() {
        return Err(Failure::new(libc::EFAULT, "a string is NULL"));
    }
    // SAFETY: the caller's promise.
    Ok(OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes()))
}

/// A path of C.
///
/// # Safety
/// As of [`string`].
pub(crate) unsafe fn path<'a>(text: *const c_char) -> Result<&'a Path> {
    // SAFETY: the caller's promise.
    unsafe { string(text) }.map(Path::new)
}

fn check_memory(null: bool, len: usize) -> Result<()> {
    match (null, len) {
        (true, 1..) => Err(Failure::new(libc::EFAULT, "a buffer is NULL")),
        _ if len > isize::MAX as usize => Err(Failure::new(libc::EINVAL, "a buffer is too long")),
        _ => Ok(()),
    }
}

/// Memory to be read. NULL is accepted for nothing.
///
/// # Safety
/// `len` bytes that stay and do not change while the result is used.
pub(crate) unsafe fn memory<'a>(from: *const u8, len: usize) -> Result<&'a [u8]> {
    check_memory(from.is_null(), len)?;
    match len {
        0 => Ok(&[]),
        // SAFETY: not NULL, not too long, and the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(from, len) }),
    }
}

/// Memory to be written.
///
/// # Safety
/// `len` bytes that stay and that nobody else uses while the result is used.
pub(crate) unsafe fn memory_mut<'a>(to: *mut u8, len: usize) -> Result<&'a mut [u8]> {
    check_memory(to.is_null(), len)?;
    match len {
        0 => Ok(&mut []),
        // SAFETY: not NULL, not too long, and the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(to, len) }),
    }
}

/// `struct fh_time`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FhTime {
    sec: i64,
    nsec: u32,
    reserved: u32,
}

impl From<fs::Time> for FhTime {
    fn from(t: fs::Time) -> FhTime {
        FhTime { sec: t.sec, nsec: t.nsec, reserved: 0 }
    }
}

/// `struct fh_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FhAttr {
    ino: u64,
    size: u64,
    blocks: u64,
    rdev: u64,
    mode: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    atime: FhTime,
    mtime: FhTime,
    ctime: FhTime,
    btime: FhTime,
}

impl From<Attr> for FhAttr {
    fn from(a: Attr) -> FhAttr {
        FhAttr {
            ino: a.ino.0,
            size: a.size,
            blocks: a.blocks,
            rdev: a.rdev,
            mode: a.mode(),
            nlink: a.nlink,
            uid: a.uid,
            gid: a.gid,
            atime: a.atime.into(),
            mtime: a.mtime.into(),
            ctime: a.ctime.into(),
            btime: a.btime.into(),
        }
    }
}

/// What the thread's latest failed call had to say.
#[unsafe(no_mangle)]
pub extern "C" fn fh_last_message() -> *const c_char {
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_strerror(error: c_int, to: *mut c_char, len: usize) -> c_int {
    guard_int(|| {
        // SAFETY: the header.
        let to = unsafe { memory_mut(to.cast(), len) }?;
        let Some(last) = len.checked_sub(1) else {
            return Err(Failure::new(libc::EINVAL, "no room for the text"));
        };
        let text = std::io::Error::from_raw_os_error(error.saturating_neg().max(0)).to_string();
        // The standard library adds the number, which the caller has.
        let text = text.split(" (os error").next().unwrap_or_default().as_bytes();
        let n = text.len().min(last);
        to[..n].copy_from_slice(&text[..n]);
        to[n] = 0;
        Ok(())
    })
}
