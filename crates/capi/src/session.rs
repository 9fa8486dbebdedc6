//! Sessions: connecting.

use crate::border::{Failure, Result, check_place, guard_int, object, path, put};
use fs::{Blocking, Client, Cred, FileSystem};
use share::Remote;
use std::ffi::{c_char, c_int};
use std::sync::Arc;

/// What objects of a session share.
#[derive(Debug)]
pub(crate) struct Session {
    pub client: Client<Remote>,
    pub blocking: Blocking<Remote>,
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
            let errno = e.raw_os_error().unwrap_or(match e.kind() {
                std::io::ErrorKind::InvalidInput => libc::EINVAL,
                _ => libc::EPROTO,
            });
            Failure { errno, message: format!("{}: {e}", socket.display()) }
        })?;
        let client = Client::new(Arc::new(remote), Cred::of_process());
        let blocking = client.blocking();
        let made = Box::new(FhSession(Arc::new(Session { client, blocking })));
        // SAFETY: the header.
        unsafe { put(session, Box::into_raw(made)) }
    })
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
