//! realpath(3) and its kin: of files of volumes the path is known, and of others libc finds it.
//!
//! Where tested: `tests/all/c_descriptors.rs`.

use crate::cwd::give;
use crate::hook::{Out, Res, errno, fail, hook, text};
use crate::path::{self, To};
use libc::{AT_FDCWD, c_char};

hook! {
    fn realpath(path: *const c_char, to: *mut c_char) -> *mut c_char {
        real_path(path, to)
    }

    fn __realpath_chk(path: *const c_char, to: *mut c_char, _room: libc::size_t) -> *mut c_char {
        real_path(path, to)
    }

    fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
        real_path(path, std::ptr::null_mut())
    }
}

/// # Safety
/// `path` is null or a C string; `to` is null or has `PATH_MAX` bytes.
unsafe fn real_path(path: *const c_char, to: *mut c_char) -> Res<*mut c_char> {
    if path.is_null() {
        // No call of the kernel's: libc has an errno of its own.
        return Err(Out::Libc);
    }
    // SAFETY: as the caller says.
    let path = unsafe { text(path) }?;
    if path.first() != Some(&b'/') {
        // What is known of the current directory's path may be old: asking for that puts it right.
        let _ = crate::cwd::current();
    }
    match path::resolve(AT_FDCWD, path, true)? {
        // SAFETY: as the caller says.
        To::Kernel(path) => match unsafe { realpath::real(path.as_ptr(), to) } {
            done if done.is_null() => fail(errno()),
            done => Ok(done),
        },
        To::Volume(found) => {
            let Some(below) = found.path.filter(|_| found.attr.nlink > 0) else { return fail(libc::ENOENT) };
            let whole = [&found.mount.prefix[..], &below].concat();
            if whole.len() >= libc::PATH_MAX as usize {
                return fail(libc::ENAMETOOLONG);
            }
            if crate::named::names_one(path) {
                // It is where the file was opened, and may lead nowhere by now, or to another one.
                match path::resolve(AT_FDCWD, &whole, true) {
                    Ok(To::Volume(now)) if now.attr.ino == found.attr.ino => {}
                    _ => return fail(libc::ENOENT),
                }
            }
            // SAFETY: as the caller says; the length was checked.
            unsafe { give(&whole, to, 0) }
        }
    }
}
