//! Extended attributes.

use crate::hook::{Out, Res, errno, fail, hook, memory, text};
use crate::mounts;
use crate::path::{self, Found, To};
use crate::stat::of_descriptor;
use fs::{FileSystem, XattrFlags};
use libc::{AT_FDCWD, c_char, c_int, c_void, size_t, ssize_t};

fn at(path: *const c_char, follow: bool) -> Res<To<Found>> {
    // SAFETY: the hooked function's caller gave a C string.
    path::resolve(AT_FDCWD, unsafe { text(path) }?, follow)
}

/// What is behind a descriptor that may be used for more than finding things.
fn through(fd: c_int) -> Res<Found> {
    match crate::table::get(fd) {
        Some(open) if open.is_path() => fail(libc::EBADF),
        _ => of_descriptor(fd),
    }
}

/// Copies a value to the caller; without room only its length is told.
fn hand_out(value: &[u8], to: *mut c_void, room: size_t) -> Res<ssize_t> {
    if room == 0 {
        return Ok(value.len() as ssize_t);
    }
    if room < value.len() {
        return fail(libc::ERANGE);
    }
    // SAFETY: the caller gave `room` bytes.
    unsafe { crate::hook::memory_mut(to, room) }?[..value.len()].copy_from_slice(value);
    Ok(value.len() as ssize_t)
}

fn get(found: &Found, name: *const c_char, to: *mut c_void, room: size_t) -> Res<ssize_t> {
    // SAFETY: as in `at`.
    let name = unsafe { text(name) }?;
    let value = found.mount.run(|fs| fs.getxattr(mounts::cred(), found.attr.ino, name))?;
    hand_out(&value, to, room)
}

fn list(found: &Found, to: *mut c_char, room: size_t) -> Res<ssize_t> {
    let names = found.mount.run(|fs| fs.listxattr(mounts::cred(), found.attr.ino))?;
    let all: Vec<u8> = names
        .into_iter()
        .flat_map(|mut n| {
            n.push(0);
            n
        })
        .collect();
    hand_out(&all, to.cast(), room)
}

fn set(found: &Found, name: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> Res<c_int> {
    // SAFETY: as in `at`; the value has `n` bytes.
    let (name, value) = unsafe { (text(name)?, memory(value, n)?) };
    let flags = XattrFlags::from_bits(flags as u32).ok_or(Out::Errno(libc::EINVAL))?;
    found.mount.run(|fs| fs.setxattr(mounts::cred(), found.attr.ino, name, value, flags))?;
    Ok(0)
}

fn remove(found: &Found, name: *const c_char) -> Res<c_int> {
    // SAFETY: as in `at`.
    let name = unsafe { text(name) }?;
    found.mount.run(|fs| fs.removexattr(mounts::cred(), found.attr.ino, name))?;
    Ok(0)
}

/// The result of a libc call with another path.
fn from_libc<T: crate::hook::Failed>(done: T) -> Res<T> {
    if done == T::FAILED { fail(errno()) } else { Ok(done) }
}

hook! {
    fn getxattr(path: *const c_char, name: *const c_char, to: *mut c_void, n: size_t) -> ssize_t {
        match at(path, true)? {
            To::Volume(found) => get(&found, name, to, n),
            To::Kernel(path) => from_libc(getxattr::real(path.as_ptr(), name, to, n)),
        }
    }
    fn lgetxattr(path: *const c_char, name: *const c_char, to: *mut c_void, n: size_t) -> ssize_t {
        match at(path, false)? {
            To::Volume(found) => get(&found, name, to, n),
            To::Kernel(path) => from_libc(lgetxattr::real(path.as_ptr(), name, to, n)),
        }
    }
    fn fgetxattr(fd: c_int, name: *const c_char, to: *mut c_void, n: size_t) -> ssize_t {
        get(&through(fd)?, name, to, n)
    }
    fn listxattr(path: *const c_char, to: *mut c_char, n: size_t) -> ssize_t {
        match at(path, true)? {
            To::Volume(found) => list(&found, to, n),
            To::Kernel(path) => from_libc(listxattr::real(path.as_ptr(), to, n)),
        }
    }
    fn llistxattr(path: *const c_char, to: *mut c_char, n: size_t) -> ssize_t {
        match at(path, false)? {
            To::Volume(found) => list(&found, to, n),
            To::Kernel(path) => from_libc(llistxattr::real(path.as_ptr(), to, n)),
        }
    }
    fn flistxattr(fd: c_int, to: *mut c_char, n: size_t) -> ssize_t { list(&through(fd)?, to, n) }
    fn setxattr(path: *const c_char, name: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int {
        match at(path, true)? {
            To::Volume(found) => set(&found, name, value, n, flags),
            To::Kernel(path) => from_libc(setxattr::real(path.as_ptr(), name, value, n, flags)),
        }
    }
    fn lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int {
        match at(path, false)? {
            To::Volume(found) => set(&found, name, value, n, flags),
            To::Kernel(path) => from_libc(lsetxattr::real(path.as_ptr(), name, value, n, flags)),
        }
    }
    fn fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int {
        set(&through(fd)?, name, value, n, flags)
    }
    fn removexattr(path: *const c_char, name: *const c_char) -> c_int {
        match at(path, true)? {
            To::Volume(found) => remove(&found, name),
            To::Kernel(path) => from_libc(removexattr::real(path.as_ptr(), name)),
        }
    }
    fn lremovexattr(path: *const c_char, name: *const c_char) -> c_int {
        match at(path, false)? {
            To::Volume(found) => remove(&found, name),
            To::Kernel(path) => from_libc(lremovexattr::real(path.as_ptr(), name)),
        }
    }
    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int { remove(&through(fd)?, name) }
}
