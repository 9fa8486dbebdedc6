//! Asynchronous requests: submitted to a queue, their completions taken by the thread that polls it.
//!
//! A request is a future of the library (`share::Queue`). It starts when it is submitted, if the session has a place for it.
//!
//! Invariant: a queue has at most `depth` requests, under way and completed together.

use crate::border::{
    Failure, FhAttr, Result, check_place, guard, guard_int, memory, memory_mut, object, path, put,
};
use crate::files::{FhFile, options};
use crate::session::{FhSession, Session};
use parking_lot::{Mutex, MutexGuard};
use share::Queue;
use std::ffi::{c_char, c_int, c_void};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// The deepest queue.
const DEPTH_MAX: u32 = 4096;

/// What a request ends with.
type Outcome = Result<(i64, Option<Box<FhFile>>)>;

/// A request, and what it ends with.
type Request = dyn Future<Output = (u64, Outcome)>;

/// `fh_queue`.
pub struct FhQueue {
    session: Arc<Session>,
    depth: usize,
    requests: Mutex<Queue<Request>>,
}

/// `struct fh_completion`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FhCompletion {
    user_data: u64,
    result: i64,
    file: *mut FhFile,
}

impl FhQueue {
    fn lock(&self) -> Result<MutexGuard<'_, Queue<Request>>> {
        self.requests.try_lock().ok_or_else(|| Failure::new(libc::EBUSY, "another thread uses the queue"))
    }

    fn submit(&self, user_data: u64, future: impl Future<Output = Outcome> + 'static) -> Result<()> {
        let mut requests = self.lock()?;
        if requests.under_way() + requests.done() >= self.depth {
            return Err(Failure::new(libc::EAGAIN, "the queue is full"));
        }
        requests.push(self.session.client.fs().remote(), Box::pin(async move { (user_data, future.await) }));
        self.session.block_on(poll_fn(|cx| {
            requests.poll(cx);
            Poll::Ready(())
        }));
        Ok(())
    }
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_queue_new(
    session: *mut FhSession,
    depth: u32,
    queue: *mut *mut FhQueue,
) -> c_int {
    guard_int(|| {
        // SAFETY: the header.
        let FhSession(session) = unsafe { object(session) }?;
        check_place(queue)?;
        if !(1..=DEPTH_MAX).contains(&depth) {
            return Err(Failure::new(libc::EINVAL, "a queue has room for 1 to 4096 requests"));
        }
        let made =
            FhQueue { session: session.clone(), depth: depth as usize, requests: Mutex::new(Queue::aside()) };
        // SAFETY: the header.
        unsafe { put(queue, Box::into_raw(Box::new(made))) }
    })
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_queue_free(queue: *mut FhQueue) -> c_int {
    guard_int(|| {
        // SAFETY: the header.
        let there = unsafe { object(queue) }?;
        drop(there.lock()?);
        // SAFETY: the header: it was given by this library and is not used any more.
        drop(unsafe { Box::from_raw(queue) });
        Ok(())
    })
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_submit_pread(
    queue: *mut FhQueue,
    file: *mut FhFile,
    to: *mut c_void,
    len: usize,
    offset: u64,
    user_data: u64,
) -> c_int {
    guard_int(|| {
        // SAFETY: the header: the memory stays until the request has completed or the queue is freed.
        let (q, f, to) = unsafe { (object(queue)?, object(file)?, memory_mut(to.cast(), len)?) };
        let file = f.file.clone();
        q.submit(user_data, async move { Ok((file.read_at(to, offset).await? as i64, None)) })
    })
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_submit_pwrite(
    queue: *mut FhQueue,
    file: *mut FhFile,
    from: *const c_void,
    len: usize,
    offset: u64,
    user_data: u64,
) -> c_int {
    guard_int(|| {
        // SAFETY: the header: the memory stays as it is until the request has completed or the queue is freed.
        let (q, f, from) = unsafe { (object(queue)?, object(file)?, memory(from.cast(), len)?) };
        let file = f.file.clone();
        q.submit(user_data, async move { Ok((file.write_at(from, offset).await? as i64, None)) })
    })
}

macro_rules! submit_sync {
    ($($name:ident => $method:ident;)*) => {$(
        /// # Safety
        /// The header.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(queue: *mut FhQueue, file: *mut FhFile, user_data: u64) -> c_int {
            guard_int(|| {
                // SAFETY: the header.
                let (q, f) = unsafe { (object(queue)?, object(file)?) };
                let file = f.file.clone();
                q.submit(user_data, async move {
                    file.$method().await?;
                    Ok((0, None))
                })
            })
        }
    )*};
}

submit_sync! {
    fh_submit_fsync => fsync;
    fh_submit_fdatasync => fdatasync;
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_submit_open(
    queue: *mut FhQueue,
    name: *const c_char,
    flags: c_int,
    mode: u32,
    user_data: u64,
) -> c_int {
    guard_int(|| {
        // SAFETY: the header.
        let (q, name) = unsafe { (object(queue)?, path(name)?.to_owned()) };
        let (options, session) = (options(flags, mode)?, q.session.clone());
        q.submit(user_data, async move {
            let file = session.client.open(name, options).await?;
            Ok((0, Some(Box::new(FhFile::new(file, session)))))
        })
    })
}

/// Memory for a result that the header says stays until the request has completed.
struct Room<T>(*mut T);

impl<T> Room<T> {
    fn put(&self, value: T) -> Result<()> {
        // SAFETY: the header.
        unsafe { put(self.0, value) }
    }
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_submit_stat(
    queue: *mut FhQueue,
    name: *const c_char,
    attr: *mut FhAttr,
    user_data: u64,
) -> c_int {
    guard_int(|| {
        // SAFETY: the header.
        let (q, name) = unsafe { (object(queue)?, path(name)?.to_owned()) };
        check_place(attr)?;
        let (session, to) = (q.session.clone(), Room(attr));
        q.submit(user_data, async move {
            to.put(session.client.stat(name).await?.into())?;
            Ok((0, None))
        })
    })
}

/// # Safety
/// The header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fh_poll(
    queue: *mut FhQueue,
    completions: *mut FhCompletion,
    max: u32,
    timeout_ms: c_int,
) -> c_int {
    guard(|| {
        // SAFETY: the header.
        let q = unsafe { object(queue) }?;
        check_place(completions)?;
        if max == 0 {
            return Err(Failure::new(libc::EINVAL, "no room for completions"));
        }
        let mut requests = q.lock()?;
        let wait = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let until = wait.map(|wait| Instant::now() + wait);
        let turn = poll_fn(|cx| {
            requests.poll(cx);
            match requests.under_way() == 0 || requests.done() > 0 {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        });
        q.session.client.fs().wait_until(turn, until);
        let n = requests.done().min(max as usize);
        for (i, (user_data, outcome)) in std::iter::from_fn(|| requests.take()).take(n).enumerate() {
            let (result, file) = match outcome {
                Ok((value, file)) => (value, file.map_or(std::ptr::null_mut(), Box::into_raw)),
                Err(failure) => (guard(|| Err(failure)), std::ptr::null_mut()),
            };
            // SAFETY: the header: there is room for `max`, and `i` is below.
            unsafe { completions.add(i).write(FhCompletion { user_data, result, file }) };
        }
        Ok(n as i64)
    }) as c_int
}
