//! POSIX AIO: aio_read and its kin.
//!
//! libc has threads for it, which make calls that nobody sees. A call of a session takes less time than to hand it to a thread, so requests for files of
//! ours are through when they have been made: a program that has many under way at a time gains nothing by it (libaio does: `aio`). What it looks
//! at afterwards, with libc's aio_error, aio_return, aio_suspend and aio_cancel, stands in its control block, where libc would have put it.
//! Requests for other files are libc's.
//!
//! Where tested: `tests/all/c_programs.rs`.

use crate::hook::{Out, Res, fail, hook, memory, memory_mut, outside};
use crate::rw::{position, read_at, reader, write_at, writer};
use crate::{attrs, table};
use libc::{c_int, c_void, off_t, size_t, ssize_t};
use std::mem::{offset_of, zeroed};
use std::sync::atomic::{AtomicI32, Ordering};

/// What a program is told with, and how (struct sigevent).
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Event {
    value: *mut c_void,
    signal: c_int,
    notify: c_int,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    attributes: *const libc::pthread_attr_t,
    reserved: [u64; 4],
}

/// struct aiocb, with what libc keeps in it.
#[repr(C)]
pub(crate) struct Request {
    fd: c_int,
    opcode: c_int,
    priority: c_int,
    memory: *mut c_void,
    len: size_t,
    event: Event,
    next: *mut c_void,
    absolute_priority: c_int,
    policy: c_int,
    /// `EINPROGRESS` until the value is there.
    error: AtomicI32,
    value: ssize_t,
    offset: off_t,
    reserved: [u8; 32],
}

const _: () = {
    assert!(size_of::<Event>() == size_of::<libc::sigevent>());
    assert!(size_of::<Request>() == size_of::<libc::aiocb>());
    assert!(offset_of!(Request, event) == offset_of!(libc::aiocb, aio_sigevent));
    assert!(offset_of!(Request, offset) == offset_of!(libc::aiocb, aio_offset));
};

/// `AIO_PRIO_DELTA_MAX` of glibc.
const PRIORITY_MAX: c_int = 20;
/// `SI_ASYNCIO`.
const ASYNCIO: c_int = -4;

enum Work {
    Read,
    Write,
    Sync { data: bool },
}

fn work_of(opcode: c_int) -> Res<Work> {
    match opcode {
        libc::LIO_READ => Ok(Work::Read),
        libc::LIO_WRITE => Ok(Work::Write),
        _ => fail(libc::EINVAL),
    }
}

impl Request {
    /// # Safety
    /// The request is as aio_read(3) and its kin want it.
    unsafe fn run(&self, work: &Work) -> Res<usize> {
        // SAFETY: as the caller says.
        unsafe {
            match work {
                Work::Read => {
                    read_at(&reader(self.fd)?, position(self.offset)?, memory_mut(self.memory, self.len)?)
                }
                Work::Write => {
                    write_at(&writer(self.fd)?, position(self.offset)?, memory(self.memory, self.len)?)
                }
                Work::Sync { data } => attrs::sync_fd(self.fd, *data).map(|_| 0),
            }
        }
    }

    fn ends(&mut self, value: ssize_t, error: c_int) {
        self.value = value;
        // Other threads look at it, and take the value then.
        self.error.store(error, Ordering::Release);
    }

    /// Does it, and says whether it succeeded.
    ///
    /// # Safety
    /// As of [`Request::run`].
    unsafe fn serve(&mut self, work: &Work) -> Res<bool> {
        if !(0..=PRIORITY_MAX).contains(&self.priority) {
            self.ends(-1, libc::EINVAL);
            return fail(libc::EINVAL);
        }
        // A request that somebody has looked at is the program's, who may use it again at once.
        let event = self.event;
        // SAFETY: as the caller says.
        let done = match unsafe { self.run(work) } {
            Ok(n) => {
                self.ends(n as ssize_t, 0);
                true
            }
            Err(Out::Errno(errno)) => {
                self.ends(-1, errno);
                false
            }
            // Another thread has closed it.
            Err(Out::Libc | Out::Memory) => {
                self.ends(-1, libc::EBADF);
                false
            }
        };
        event.tell();
        Ok(done)
    }
}

impl Event {
    /// Tells the program as it wants it.
    fn tell(self) {
        match self.notify {
            libc::SIGEV_SIGNAL => self.raise(),
            libc::SIGEV_THREAD => self.call(),
            _ => {}
        }
    }

    fn raise(self) {
        #[repr(C)]
        struct Info {
            signal: c_int,
            errno: c_int,
            code: c_int,
            unused: c_int,
            pid: libc::pid_t,
            uid: libc::uid_t,
            value: *mut c_void,
            reserved: [u64; 12],
        }
        const { assert!(size_of::<Info>() == size_of::<libc::siginfo_t>() && offset_of!(Info, pid) == 16) };
        // SAFETY: numbers; the kernel copies what is there.
        outside(|| unsafe {
            let (pid, uid) = (libc::getpid(), libc::getuid());
            let value = self.value;
            let info = Info {
                signal: self.signal,
                errno: 0,
                code: ASYNCIO,
                unused: 0,
                pid,
                uid,
                value,
                reserved: [0; 12],
            };
            libc::syscall(libc::SYS_rt_sigqueueinfo, pid, self.signal, &raw const info);
        });
    }

    /// Calls a function of the program in a thread of its own.
    fn call(self) {
        extern "C" fn begin(event: *mut c_void) -> *mut c_void {
            // SAFETY: made below, for this thread alone.
            let event = unsafe { Box::from_raw(event.cast::<Event>()) };
            if let Some(function) = event.function {
                // SAFETY: what the program wants to be called, with what it wants.
                unsafe { function(event.value) };
            }
            std::ptr::null_mut()
        }
        let event = Box::into_raw(Box::new(self));
        // SAFETY: attributes are the program's, or made here; the event is given to the thread, or back.
        outside(|| unsafe {
            let (mut own, mut thread) = (zeroed(), zeroed());
            libc::pthread_attr_init(&mut own);
            libc::pthread_attr_setdetachstate(&mut own, libc::PTHREAD_CREATE_DETACHED);
            let attributes = if self.attributes.is_null() { &raw const own } else { self.attributes };
            if libc::pthread_create(&mut thread, attributes, begin, event.cast()) != 0 {
                drop(Box::from_raw(event));
            }
            libc::pthread_attr_destroy(&mut own);
        });
    }
}

/// A request for a file of ours; `Libc` when it is not for one.
///
/// # Safety
/// It is null, or the caller's to change.
unsafe fn ours<'a>(request: *mut Request) -> Res<&'a mut Request> {
    // SAFETY: as the caller says.
    match unsafe { request.as_mut() } {
        Some(request) if table::is_ours(request.fd) => Ok(request),
        _ => Err(Out::Libc),
    }
}

/// lio_listio(3): requests of which some may be for files of ours.
///
/// # Safety
/// As of lio_listio(3).
unsafe fn list(mode: c_int, requests: &[*mut Request], event: *mut Event) -> Res<c_int> {
    if mode != libc::LIO_WAIT && mode != libc::LIO_NOWAIT {
        return fail(libc::EINVAL);
    }
    let (mut others, mut have_failed, mut any) = (Vec::new(), false, false);
    for &request in requests {
        // SAFETY: as the caller says.
        match unsafe { ours(request) } {
            Ok(ours) if ours.opcode == libc::LIO_NOP => {}
            Ok(ours) => {
                any = true;
                // SAFETY: as above.
                let done = work_of(ours.opcode).and_then(|work| unsafe { ours.serve(&work) });
                if let Err(Out::Errno(errno)) = done {
                    ours.ends(-1, errno);
                }
                have_failed |= !done.is_ok_and(|done| done);
            }
            Err(_) => others.push(request),
        }
    }
    if !any {
        return Err(Out::Libc);
    }
    let is_for_others = others.iter().any(|request| !request.is_null());
    if is_for_others {
        // SAFETY: as above. It tells the program when the last of them is done, and ours are.
        let done = unsafe { lio_listio::real(mode, others.as_ptr(), others.len() as c_int, event) };
        if done != 0 {
            return fail(crate::hook::errno());
        }
    } else if mode == libc::LIO_NOWAIT && !event.is_null() {
        // SAFETY: the caller's.
        unsafe { *event }.tell();
    }
    if mode == libc::LIO_WAIT && have_failed { fail(libc::EIO) } else { Ok(0) }
}

hook! {
    fn aio_read | aio_read64(request: *mut Request) -> c_int { ours(request)?.serve(&Work::Read).map(|_| 0) }
    fn aio_write | aio_write64(request: *mut Request) -> c_int { ours(request)?.serve(&Work::Write).map(|_| 0) }
    fn aio_fsync | aio_fsync64(how: c_int, request: *mut Request) -> c_int {
        let request = ours(request)?;
        match how {
            libc::O_SYNC | libc::O_DSYNC => {
                request.serve(&Work::Sync { data: how == libc::O_DSYNC }).map(|_| 0)
            }
            _ => fail(libc::EINVAL),
        }
    }
    fn lio_listio | lio_listio64(
        mode: c_int, requests: *const *mut Request, n: c_int, event: *mut Event
    ) -> c_int {
        let n = usize::try_from(n).or(fail(libc::EINVAL))?;
        if n == 0 || requests.is_null() {
            return Err(Out::Libc);
        }
        list(mode, std::slice::from_raw_parts(requests, n), event)
    }
}
