//! Extended attributes.

use crate::border::{Failure, Result, guard, guard_int, memory, memory_mut, object, path, string};
use crate::session::FhSession;
use fs::XattrFlags;
use std::ffi::{c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

/// Copies a value out; without room only its length is told.
fn give(value: &[u8], to: &mut [u8]) -> Result<i64> {
    if !to.is_empty() {
        let place = to.get_mut(..value.len());
        place.ok_or_else(|| Failure::new(libc::ERANGE, "the value does not fit"))?.copy_from_slice(value);
    }
    Ok(value.len() as i64)
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_getxattr(
    session: *mut FhSession,
    name: *const c_char,
    attribute: *const c_char,
    to: *mut c_void,
    len: usize,
) -> i64 {
    guard(|| {
        // SAFETY: the header.
        let (s, name, attribute) = unsafe { (object(session)?, path(name)?, string(attribute)?) };
        // SAFETY: the header.
        let to = unsafe { memory_mut(to.cast(), len) }?;
        give(&s.0.blocking.get_xattr(name, attribute)?, to)
    })
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_listxattr(
    session: *mut FhSession,
    name: *const c_char,
    to: *mut c_char,
    len: usize,
) -> i64 {
    guard(|| {
        // SAFETY: the header.
        let (s, name, to) = unsafe { (object(session)?, path(name)?, memory_mut(to.cast(), len)?) };
        let mut all = Vec::new();
        for attribute in s.0.blocking.list_xattr(name)? {
            all.extend_from_slice(attribute.as_bytes());
            all.push(0);
        }
        give(&all, to)
    })
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_setxattr(
    session: *mut FhSession,
    name: *const c_char,
    attribute: *const c_char,
    value: *const c_void,
    len: usize,
    flags: u32,
) -> c_int {
    guard_int(|| {
        // SAFETY: the header.
        let (s, name, attribute) = unsafe { (object(session)?, path(name)?, string(attribute)?) };
        // SAFETY: the header.
        let value = unsafe { memory(value.cast(), len) }?;
        let flags = XattrFlags::from_bits(flags)
            .ok_or_else(|| Failure::new(libc::EINVAL, "flags of setxattr that are not known here"))?;
        Ok(s.0.blocking.set_xattr(name, attribute, value, flags)?)
    })
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_removexattr(
    session: *mut FhSession,
    name: *const c_char,
    attribute: *const c_char,
) -> c_int {
    guard_int(|| {
        // SAFETY: the header.
        let (s, name, attribute) = unsafe { (object(session)?, path(name)?, string(attribute)?) };
        Ok(s.0.blocking.remove_xattr(name, attribute)?)
    })
}
