//! Sessions: connecting, and how many asynchronous requests one may have under way.

use crate::border::{Failure, Result, check_place, guard_int, object, path, put};
use format::shared::SLOTS;
use fs::{Blocking, Client, Cred, FileSystem};
use share::Remote;
use std::ffi::{c_char, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Asynchronous requests of one session that are with the manager. Some slots are left, so that blocking calls go on although
/// nobody takes completions.
const UNDER_WAY_MAX: usize = SLOTS - 8;

/// What objects of a session share.
#[derive(Debug)]
pub(crate) struct Session {
    pub client: Client<Remote>,
    pub blocking: Blocking<Remote>,
    under_way: AtomicUsize,
}

impl Session {
    /// Takes one of the places for asynchronous requests, unless all are taken.
    pub(crate) fn reserve(self: &Arc<Self>) -> Option<Place> {
        let more = |n| (n < UNDER_WAY_MAX).then_some(n + 1);
        self.under_way.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Place(self.clone()))
    }

    pub(crate) fn block_on<T: Future>(&self, future: T) -> T::Output {
        self.client.fs().block_on(future)
    }
}

/// A place for an asynchronous request; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Place(Arc<Session>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
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
        let made =
            Box::new(FhSession(Arc::new(Session { client, blocking, under_way: AtomicUsize::new(0) })));
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
