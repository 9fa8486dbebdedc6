//! Sessions: connecting.

use crate::border::{Failure, Result, check_place, guard_int, object, path, put, string};
use crate::engine::Engine;
use fs::{Blocking, Client, Cred, FileSystem};
use object::Bucket;
use object::store::StoreError;
use share::Remote;
use std::ffi::{c_char, c_int};
use std::sync::Arc;

/// What objects of a session share.
#[derive(Debug)]
pub(crate) struct Session {
    pub client: Client<Engine>,
    pub blocking: Blocking<Engine>,
}

impl Session {
    pub(crate) fn block_on<T: Future>(&self, future: T) -> T::Output {
        self.client.fs().block_on(future)
    }
}

/// `fh_session`.
#[derive(Debug)]
pub struct FhSession(pub(crate) Arc<Session>);

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_connect(socket: *const c_char, session: *mut *mut FhSession) -> c_int {
    guard_int(|| {
        check_place(session)?;
        // SAFETY: the header.
        let socket = unsafe { path(socket) }?;
        let remote = Remote::connect(socket).map_err(|e| {
            let errno = match e.raw_os_error() {
                // A socket of another kind, or a manager of another version.
                Some(libc::EPROTOTYPE | libc::EPROTONOSUPPORT) => libc::EPROTO,
                Some(errno) => errno,
                None if e.kind() == std::io::ErrorKind::InvalidInput => libc::EINVAL,
                None => libc::EPROTO,
            };
            Failure { errno, message: format!("{}: {e}", socket.display()) }
        })?;
        // SAFETY: the header.
        unsafe { begin(Engine::Volume(remote), session) }
    })
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_open_bucket(
    url: *const c_char,
    options: *const c_char,
    session: *mut *mut FhSession,
) -> c_int {
    guard_int(|| {
        check_place(session)?;
        let wrong = |message: String| Failure { errno: libc::EINVAL, message };
        let text = |from| {
            // SAFETY: the header.
            let text = unsafe { string(from) }?;
            text.to_str().ok_or_else(|| wrong(format!("{}: no text", text.display())))
        };
        let (url, options) = (text(url)?, if options.is_null() { "" } else { text(options)? });
        let bucket = Bucket::parse(url, options).map_err(wrong)?;
        let opened = bucket.open().map_err(|e| {
            let errno = match e {
                StoreError::NoSuchBucket(_) => libc::ENOENT,
                StoreError::Denied(_) => libc::EACCES,
                _ => libc::EIO,
            };
            Failure { errno, message: format!("{url}: {e}") }
        })?;
        // SAFETY: the header.
        unsafe { begin(Engine::Bucket(opened), session) }
    })
}

/// Gives a session out.
///
/// # Safety
/// As of [`put`].
unsafe fn begin(engine: Engine, session: *mut *mut FhSession) -> Result<()> {
    let client = Client::new(Arc::new(engine), Cred::of_process());
    let blocking = client.blocking();
    let made = Box::new(FhSession(Arc::new(Session { client, blocking })));
    // SAFETY: the caller's promise.
    unsafe { put(session, Box::into_raw(made)) }
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_disconnect(session: *mut FhSession) -> c_int {
    guard_int(|| {
        check_session(session)?;
        // SAFETY: the header: it was given by fh_connect and is not used any more.
        drop(unsafe { Box::from_raw(session) });
        Ok(())
    })
}

fn check_session(session: *mut FhSession) -> Result<()> {
    // SAFETY: the header.
    unsafe { object(session) }.map(drop)
}
