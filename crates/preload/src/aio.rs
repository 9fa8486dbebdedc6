//! Linux's AIO, as libaio has it: requests for files of ours are calls of the session, of which many are under way at a time; those for other
//! files go to the kernel.
//!
//! The program's context is one of the kernel's; beside it stands a queue of our requests ([`share::Queue`]). They begin when they are submitted,
//! and whoever submits or waits sees to it that they go on: there is no thread for them. Only requests that announce their end with an eventfd are
//! through before io_submit returns, because nobody may look for them before that.
//!
//! Answers are those of io_submit(2) and io_getevents(2): negative numbers of errors, not errno. A signal does not end waiting for requests of ours.
//! Contexts do not outlive fork, as the kernel's do not. Not seen: programs that make the system calls themselves.
//!
//! Where tested: crates/freehold/tests/run.rs.

mod request;

use crate::hook::{Out, Res, fail, hook};
use crate::table;
use fs::FileSystem;
use libc::{c_int, c_long, c_void, timespec};
use request::{Event, Iocb, request_of};
use share::lock::Mutex;
use share::{Queue, Remote};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// `IOCB_FLAG_RESFD`.
const WITH_EVENTFD: u32 = 1;

/// How often the kernel's requests are looked at while some of ours are under way too.
const BOTH: Duration = Duration::from_micros(500);
/// The same while there are none of ours, which another thread may submit.
const KERNEL: Duration = Duration::from_millis(10);

type Request = dyn Future<Output = Event> + Send;

#[derive(Default)]
struct State {
    ours: Queue<Request>,
    /// A session of which requests are under way.
    remote: Option<&'static Remote>,
    /// Requests that the kernel has.
    kernel: usize,
    /// Threads that wait for requests.
    waiting: Vec<Waker>,
    /// The program has ended the context.
    ended: bool,
}

struct Context {
    id: usize,
    /// Requests that it has room for.
    room: usize,
    state: Mutex<State>,
}

static CONTEXTS: Mutex<Vec<Arc<Context>>> = Mutex::new(Vec::new());

/// In a child of fork, which has no contexts. What was under way in them is the parent's: it is left behind.
pub(crate) fn after_fork() {
    // SAFETY: we are the only thread.
    unsafe { crate::hook::alone(&CONTEXTS) };
    std::mem::forget(std::mem::take(&mut *CONTEXTS.lock()));
}

fn find(id: usize) -> Res<Arc<Context>> {
    let contexts = CONTEXTS.lock();
    contexts.iter().find(|context| context.id == id).cloned().ok_or(Out::Libc)
}

/// As the functions of libaio answer.
fn answer(done: Res<c_int>) -> Res<c_int> {
    match done {
        Err(Out::Errno(errno)) => Ok(-errno),
        done => done,
    }
}

impl Context {
    /// Takes one request for a file of ours; it begins with [`Context::go_on`]. Returns its session.
    ///
    /// # Safety
    /// As of [`work_of`].
    unsafe fn submit(&self, cb: &mut Iocb) -> Res<&'static Remote> {
        // SAFETY: as the caller says.
        let (remote, request) = unsafe { request_of(cb)? };
        let announced = cb.flags & WITH_EVENTFD != 0;
        // SAFETY: asks for a number.
        if announced && unsafe { libc::syscall(libc::SYS_fcntl, cb.eventfd, libc::F_GETFD) } < 0 {
            return fail(libc::EBADF);
        }
        cb.key = 0;
        {
            let mut state = self.state.lock();
            if state.ours.under_way() + state.ours.done() + state.kernel >= self.room {
                return fail(libc::EAGAIN);
            }
            state.remote = Some(remote);
            state.ours.push(Some(remote), Box::pin(request));
        }
        if announced {
            self.finish(remote);
            // SAFETY: writes eight bytes that are there.
            unsafe { libc::syscall(libc::SYS_write, cb.eventfd, &1u64, 8) };
        }
        Ok(remote)
    }

    /// Lets requests begin and go on, and takes in what is done.
    fn go_on(&self, remote: &Remote) {
        remote.block_on(poll_fn(|cx| {
            self.state.lock().ours.poll(cx);
            Poll::Ready(())
        }));
    }

    /// Has those who wait look again.
    fn wake(&self) {
        let waiting = std::mem::take(&mut self.state.lock().waiting);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits until all requests of ours are done.
    fn finish(&self, remote: &Remote) {
        remote.wait_until(self.until(usize::MAX), None);
    }

    /// Ready when so many results are there, or no more will come from us.
    fn until(&self, results: usize) -> impl Future<Output = ()> + '_ {
        poll_fn(move |cx| {
            let mut state = self.state.lock();
            state.ours.poll(cx);
            state.waiting.retain(|waker| !waker.will_wake(cx.waker()));
            if state.ours.under_way() == 0 || state.ours.done() >= results {
                return Poll::Ready(());
            }
            state.waiting.push(cx.waker().clone());
            Poll::Pending
        })
    }

    /// Ready when another thread submits something.
    fn until_submitted(&self) -> impl Future<Output = ()> + '_ {
        let mut asked = false;
        poll_fn(move |cx| {
            if std::mem::replace(&mut asked, true) {
                return Poll::Ready(());
            }
            self.state.lock().waiting.push(cx.waker().clone());
            Poll::Pending
        })
    }

    /// As io_getevents(2); `kernel` has the kernel write up to so many events to a place of the caller's, waiting at most so long, and says how many.
    fn events(
        &self,
        least: usize,
        to: &mut [Event],
        until: Option<Instant>,
        kernel: impl Fn(&mut [Event], Duration) -> Res<usize>,
    ) -> Res<usize> {
        let mut n = 0;
        let remote = self.state.lock().remote;
        if let Some(remote) = remote {
            self.go_on(remote);
        }
        loop {
            let (at_kernel, ours, remote, others) = {
                let mut state = self.state.lock();
                if state.ended {
                    return if n > 0 { Ok(n) } else { fail(libc::EINVAL) };
                }
                while n < to.len()
                    && let Some(event) = state.ours.take()
                {
                    to[n] = event;
                    n += 1;
                }
                (state.kernel, state.ours.under_way(), state.remote, !state.waiting.is_empty())
            };
            if n > 0 && others {
                // What they wait for may have been noticed here.
                self.wake();
            }
            let over = n >= least || until.is_some_and(|until| Instant::now() >= until);
            let left = until.map_or(KERNEL, |until| until.saturating_duration_since(Instant::now()));
            // Where nothing of ours was ever submitted the kernel knows best.
            if (at_kernel > 0 || remote.is_none()) && n < to.len() {
                let wait = if over || ours > 0 { Duration::ZERO } else { left.min(KERNEL) };
                let more = match kernel(&mut to[n..], wait) {
                    Err(Out::Errno(_)) if n > 0 => return Ok(n),
                    more => more?,
                };
                let mut state = self.state.lock();
                state.kernel = state.kernel.saturating_sub(more);
                n += more;
            }
            if over || n >= least {
                return Ok(n);
            }
            let look = (at_kernel > 0).then(|| Instant::now() + BOTH);
            let until = look.map_or(until, |look| Some(until.map_or(look, |until| until.min(look))));
            match remote {
                Some(remote) if ours > 0 => {
                    remote.wait_until(self.until(least - n), until);
                }
                Some(remote) if at_kernel == 0 => {
                    remote.wait_until(self.until_submitted(), until);
                }
                _ => {}
            }
        }
    }
}

/// After the kernel has made a context for so many requests.
///
/// # Safety
/// `id` leads to the context's number.
unsafe fn begin(made: c_int, requests: c_int, id: *const usize) -> c_int {
    if made == 0 {
        // SAFETY: as the caller says, and the kernel has written it.
        let id = unsafe { id.read() };
        let room = requests.max(1) as usize;
        CONTEXTS.lock().push(Arc::new(Context { id, room, state: Mutex::default() }));
    }
    made
}

/// Before the kernel ends a context: what is under way is done first.
fn end(id: usize) {
    let Ok(context) = find(id) else { return };
    CONTEXTS.lock().retain(|context| context.id != id);
    let remote = context.state.lock().remote;
    if let Some(remote) = remote {
        context.finish(remote);
    }
    context.state.lock().ended = true;
    context.wake();
}

/// # Safety
/// As of io_submit(2).
unsafe fn submit(id: usize, n: c_long, requests: *mut *mut Iocb) -> Res<c_int> {
    let context = find(id)?;
    let n = usize::try_from(n).or(fail(libc::EINVAL))?.min(context.room);
    if n > 0 && requests.is_null() {
        return fail(libc::EFAULT);
    }
    let (mut done, mut began) = (0, None);
    while done < n {
        // SAFETY: as the caller says; requests are the program's to give.
        let cb = unsafe { (*requests.add(done)).as_mut() };
        let submitted = match cb {
            None => fail(libc::EFAULT),
            Some(cb) if table::is_ours(cb.fd) => {
                // SAFETY: as the caller says.
                unsafe { context.submit(cb) }.map(|remote| {
                    began = Some(remote);
                    1
                })
            }
            Some(_) => {
                let theirs = |&i: &usize| {
                    // SAFETY: as above.
                    let cb = unsafe { (*requests.add(i)).as_ref() };
                    cb.is_some_and(|cb| !table::is_ours(cb.fd))
                };
                let run = (done..n).take_while(theirs).count();
                // Counted before somebody can be told of them.
                context.state.lock().kernel += run;
                // SAFETY: as the caller says.
                let sent = unsafe { io_submit::real(id, run as c_long, requests.add(done)) };
                let taken = usize::try_from(sent).unwrap_or(0);
                context.state.lock().kernel -= run - taken;
                if sent < 0 { fail(-sent) } else { Ok(taken) }
            }
        };
        match submitted {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(_) if done > 0 => break,
            // It was closed by another thread.
            Err(Out::Libc) => return fail(libc::EBADF),
            Err(e) => return Err(e),
        }
    }
    if let Some(remote) = began {
        context.go_on(remote);
    }
    context.wake();
    Ok(done as c_int)
}

/// # Safety
/// As of io_getevents(2).
unsafe fn events(
    id: usize,
    least: c_long,
    most: c_long,
    to: *mut Event,
    timeout: *const timespec,
    real: impl Fn(c_long, *mut Event, *const timespec) -> c_int,
) -> Res<c_int> {
    let context = find(id)?;
    let (Ok(least), Ok(most)) = (usize::try_from(least), usize::try_from(most)) else {
        return fail(libc::EINVAL);
    };
    if least > most {
        return fail(libc::EINVAL);
    }
    // SAFETY: as the caller says.
    let until = match unsafe { timeout.as_ref() } {
        None => None,
        Some(t) if t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec) => return fail(libc::EINVAL),
        Some(t) => Instant::now().checked_add(Duration::new(t.tv_sec as u64, t.tv_nsec as u32)),
    };
    if most == 0 {
        return Ok(0);
    }
    if to.is_null() {
        return fail(libc::EFAULT);
    }
    let most = most.min(context.room.max(1 << 16));
    // SAFETY: as the caller says; events are plain numbers, and those that are not written are not told.
    let to = unsafe { std::slice::from_raw_parts_mut(to, most) };
    let n = context.events(least, to, until, |to, wait| {
        let wait = timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos() as i64 };
        let n = real(to.len() as c_long, to.as_mut_ptr(), &wait);
        if n < 0 { fail(-n) } else { Ok(n as usize) }
    });
    Ok(n? as c_int)
}

hook! {
    fn io_setup(requests: c_int, id: *mut usize) -> c_int { Ok(begin(io_setup::real(requests, id), requests, id)) }
    fn io_queue_init(requests: c_int, id: *mut usize) -> c_int { Ok(begin(io_queue_init::real(requests, id), requests, id)) }
    fn io_destroy(id: usize) -> c_int {
        end(id);
        Ok(io_destroy::real(id))
    }
    fn io_queue_release(id: usize) -> c_int {
        end(id);
        Ok(io_queue_release::real(id))
    }
    fn io_submit(id: usize, n: c_long, requests: *mut *mut Iocb) -> c_int { answer(submit(id, n, requests)) }
    fn io_cancel(id: usize, request: *mut Iocb, event: *mut Event) -> c_int {
        // As the kernel says of reads and writes.
        let ours = find(id).is_ok() && request.as_ref().is_some_and(|cb| table::is_ours(cb.fd));
        if ours { Ok(-libc::EINVAL) } else { Ok(io_cancel::real(id, request, event)) }
    }
    fn io_getevents(id: usize, least: c_long, most: c_long, to: *mut Event, timeout: *mut timespec) -> c_int {
        // The least is waited for here.
        answer(events(id, least, most, to, timeout, |n, to, wait| {
            io_getevents::real(id, c_long::from((*wait).tv_sec + (*wait).tv_nsec > 0), n, to, wait.cast_mut())
        }))
    }
    fn io_pgetevents(id: usize, least: c_long, most: c_long, to: *mut Event, timeout: *mut timespec, mask: *mut c_void) -> c_int {
        answer(events(id, least, most, to, timeout, |n, to, wait| {
            io_pgetevents::real(id, c_long::from((*wait).tv_sec + (*wait).tv_nsec > 0), n, to, wait.cast_mut(), mask)
        }))
    }
}
