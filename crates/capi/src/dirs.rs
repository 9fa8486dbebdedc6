//! Reading directories.

use crate::border::{Failure, check_place, guard, guard_int, object, path, put};
use crate::engine::Engine;
use crate::session::{FhSession, Session};
use fs::client::ReadDir;
use parking_lot::Mutex;
use std::ffi::{c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// `fh_dir`.
#[derive(Debug)]
pub struct FhDir {
    scan: Mutex<ReadDir<Engine>>,
    session: Arc<Session>,
}

/// `struct fh_dirent`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FhDirent {
    ino: u64,
    next_offset: u64,
    mode: u32,
    name_len: u32,
    name: [u8; 256],
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_opendir(
    session: *mut FhSession,
    name: *const c_char,
    dir: *mut *mut FhDir,
) -> c_int {
    guard_int(|| {
        // SAFETY: the header.
        let (FhSession(session), name) = unsafe { (object(session)?, path(name)?) };
        check_place(dir)?;
        let scan = session.block_on(session.client.read_dir(name))?;
        let made = Box::new(FhDir { scan: Mutex::new(scan), session: session.clone() });
        // SAFETY: the header.
        unsafe { put(dir, Box::into_raw(made)) }
    })
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_readdir(dir: *mut FhDir, entry: *mut FhDirent) -> c_int {
    guard(|| {
        // SAFETY: the header.
        let d = unsafe { object(dir) }?;
        check_place(entry)?;
        let mut scan = d.scan.lock();
        let Some(found) = d.session.block_on(scan.next()).transpose()? else { return Ok(0) };
        let bytes = found.name.as_bytes();
        let mut name = [0; 256];
        if bytes.len() >= name.len() {
            return Err(Failure::new(libc::ENAMETOOLONG, "the manager gave a name that is too long"));
        }
        name[..bytes.len()].copy_from_slice(bytes);
        let made = FhDirent {
            ino: found.attr.ino.0,
            next_offset: found.next_offset,
            mode: found.attr.mode(),
            name_len: bytes.len() as u32,
            name,
        };
        // SAFETY: the header.
        unsafe { put(entry, made) }.map(|()| 1)
    }) as c_int
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_seekdir(dir: *mut FhDir, offset: u64) -> c_int {
    guard_int(|| {
        // SAFETY: the header.
        unsafe { object(dir) }?.scan.lock().seek(offset);
        Ok(())
    })
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_closedir(dir: *mut FhDir) -> c_int {
    guard_int(|| {
        // SAFETY: the header.
        unsafe { object(dir) }?;
        // SAFETY: the header: it was given by this library and is not used any more.
        let FhDir { scan, session } = *unsafe { Box::from_raw(dir) };
        Ok(session.block_on(scan.into_inner().close())?)
    })
}
