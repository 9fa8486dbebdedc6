//! Calls with paths.

use crate::border::{Failure, FhAttr, Result, check_place, guard, guard_int, memory_mut, object, path, put};
use crate::session::{FhSession, Session};
use fs::RenameFlags;
use std::ffi::{c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `struct fh_statfs`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FhStatfs {
    block_size: u32,
    name_max: u32,
    blocks: u64,
    blocks_free: u64,
    blocks_available: u64,
    inodes: u64,
    inodes_free: u64,
}

/// The session and the path of most calls.
///
/// # Safety
/// The header.
unsafe fn at<'a>(session: *mut FhSession, name: *const c_char) -> Result<(&'a Session, &'a Path)> {
    // SAFETY: the caller's promise.
    unsafe { Ok((&*object(session)?.0, path(name)?)) }
}

macro_rules! stats {
    ($($name:ident => $method:ident;)*) => {$(
        /// # Safety
        /// The header.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            session: *mut FhSession,
            name: *const c_char,
            attr: *mut FhAttr,
        ) -> c_int {
            guard_int(|| {
                // SAFETY: the header.
                let (session, name) = unsafe { at(session, name) }?;
                check_place(attr)?;
                let found = session.blocking.$method(name)?;
                // SAFETY: the header.
                unsafe { put(attr, found.into()) }
            })
        }
    )*};
}

stats! {
    fh_stat => stat;
    fh_lstat => lstat;
}

macro_rules! of_path {
    ($($name:ident($($arg:ident: $ty:ty),*) => $method:ident($($given:expr),*);)*) => {$(
        /// # Safety
        /// The header.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(session: *mut FhSession, name: *const c_char $(, $arg: $ty)*) -> c_int {
            guard_int(|| {
                // SAFETY: the header.
                let (session, name) = unsafe { at(session, name) }?;
                session.blocking.$method(name $(, $given)*)?;
                Ok(())
            })
        }
    )*};
}

of_path! {
    fh_mkdir(mode: u32) => mkdir((mode & 0o7777) as u16);
    fh_unlink() => unlink();
    fh_rmdir() => rmdir();
    fh_truncate(size: u64) => truncate(size);
    fh_chmod(mode: u32) => chmod((mode & 0o7777) as u16);
}

macro_rules! of_two_paths {
    ($($name:ident => $method:ident;)*) => {$(
        /// # Safety
        /// The header.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            session: *mut FhSession,
            from: *const c_char,
            to: *const c_char,
        ) -> c_int {
            guard_int(|| {
                // SAFETY: the header.
                let ((session, from), to) = unsafe { (at(session, from)?, path(to)?) };
                session.blocking.$method(from, to)?;
                Ok(())
            })
        }
    )*};
}

of_two_paths! {
    fh_link => link;
    fh_symlink => symlink;
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_rename(
    session: *mut FhSession,
    from: *const c_char,
    to: *const c_char,
    flags: u32,
) -> c_int {
    guard_int(|| {
        // SAFETY: the header.
        let ((session, from), to) = unsafe { (at(session, from)?, path(to)?) };
        let flags = RenameFlags::from_bits(flags)
            .ok_or_else(|| Failure::new(libc::EINVAL, "flags of rename that are not known here"))?;
        Ok(session.blocking.rename(from, to, flags)?)
    })
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_readlink(
    session: *mut FhSession,
    name: *const c_char,
    to: *mut c_char,
    len: usize,
) -> i64 {
    guard(|| {
        // SAFETY: the header.
        let ((session, name), to) = unsafe { (at(session, name)?, memory_mut(to.cast(), len)?) };
        let target = session.blocking.readlink(name)?;
        let target = target.as_os_str().as_bytes();
        if target.len() >= to.len() {
            return Err(Failure::new(libc::ERANGE, "the target does not fit"));
        }
        to[..target.len()].copy_from_slice(target);
        to[target.len()] = 0;
        Ok(target.len() as i64)
    })
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_statfs(session: *mut FhSession, to: *mut FhStatfs) -> c_int {
    guard_int(|| {
        // SAFETY: the header.
        let FhSession(session) = unsafe { object(session) }?;
        check_place(to)?;
        let s = session.blocking.statfs()?;
        let found = FhStatfs {
            block_size: s.block_size,
            name_max: s.name_max,
            blocks: s.blocks,
            blocks_free: s.blocks_free,
            blocks_available: s.blocks_available,
            inodes: s.inodes,
            inodes_free: s.inodes_free,
        };
        // SAFETY: the header.
        unsafe { put(to, found) }
    })
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_sync(session: *mut FhSession) -> c_int {
    guard_int(|| {
        // SAFETY: the header.
        let FhSession(session) = unsafe { object(session) }?;
        Ok(session.blocking.sync()?)
    })
}
