//! How threads take requests from the kernel.
//!
//! A thread that sleeps in read(2) costs the caller of a file operation two changes of context, which is most of what a small call through
//! FUSE takes. So a thread that has answered a request looks for the next one for a moment ([`LOOK`]) before it sleeps. One thread
//! does so, or sleeps in read; the others rest on a condition, because the kernel wakes a reader for each request whether one looks or not.
//!
//! They are called when there is more than one thread's work: several requests in a row were there already ([`BUSY`]), a request moves many
//! bytes ([`LONG`]), or no thread has taken a request for a while although all that are awake are in one ([`STUCK`]). Requests that
//! wait for something do not occupy a thread (see `exec`), so that the last is for what nobody foresaw.
//!
//! An idle mount sleeps in one read.

use crate::abi::{self, InHeader, op};
use crate::device::{Buffer, BufferPool, Device, REQUEST_AT, take};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

/// How long a thread looks for the next request before it sleeps: about what being woken costs.
const LOOK: Duration = Duration::from_micros(50);
/// So many looks in a row that found nothing mean that the callers are slow: then only each so many-th is made.
const FRUITLESS: u32 = 16;
/// So many requests in a row that were there already are work for one more thread.
const BUSY: u32 = 4;
/// Bytes of a transfer that keeps a thread long enough for another to take over.
const LONG: u32 = 64 << 10;
/// How long a resting thread waits, while there is work, until it looks whether somebody still takes requests.
const STUCK: Duration = Duration::from_millis(10);

/// What the threads of a mount know of each other.
#[derive(Default)]
pub struct Receivers {
    /// A thread looks for requests, or sleeps in read.
    listening: AtomicBool,
    /// That thread sleeps in read: there is no work.
    idle: AtomicBool,
    /// Requests taken.
    taken: AtomicU64,
    resting: Mutex<Resting>,
    call: Condvar,
}

#[derive(Default)]
struct Resting {
    /// Calls that no thread has answered.
    calls: u32,
    threads: u32,
    over: bool,
}

/// The descriptors of one thread: one that waits, and one that does not.
pub struct Ears {
    /// Waits for a request.
    pub waits: Arc<Device>,
    /// Says at once when there is none; without it the thread does not look.
    pub looks: Option<Arc<Device>>,
}

impl Receivers {
    /// Has one of the resting threads take requests.
    fn call_one(&self) {
        let mut resting = self.resting.lock();
        if resting.threads > resting.calls {
            resting.calls += 1;
            self.call.notify_one();
        }
    }

    /// Rests until called, or until nobody takes requests any more.
    fn rest(&self) {
        let mut resting = self.resting.lock();
        resting.threads += 1;
        let mut seen = self.taken.load(Ordering::Relaxed);
        while resting.calls == 0 && !resting.over {
            if self.idle.load(Ordering::SeqCst) {
                self.call.wait(&mut resting);
            } else if self.call.wait_for(&mut resting, STUCK).timed_out() {
                let taken = self.taken.load(Ordering::Relaxed);
                if taken == seen && !self.listening.load(Ordering::SeqCst) {
                    break;
                }
                seen = taken;
            }
        }
        resting.threads -= 1;
        resting.calls = resting.calls.saturating_sub(1);
    }

    fn end(&self) {
        self.resting.lock().over = true;
        self.call.notify_all();
    }

    /// Takes requests until the connection ends. `run` starts one and returns its buffer when it is finished at once.
    pub fn receive<T>(
        &self,
        ears: &Ears,
        pool: &BufferPool,
        run: impl Fn(&Arc<Device>, Buffer, usize, &mut T) -> Poll<Option<Buffer>>,
        task: &mut T,
    ) {
        let mut spare = warm(pool);
        let mut mind = Mind::default();
        loop {
            let mut buffer = match spare.take().map_or_else(|| pool.take(), Ok) {
                Ok(b) => b,
                Err(e) => {
                    tracing::error!(error = %e, "no memory for a request; trying again");
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            match self.next(ears, &mut buffer, &mut mind) {
                Ok(Some((device, len))) => {
                    self.taken.fetch_add(1, Ordering::Relaxed);
                    if mind.in_a_row >= BUSY || is_long(&buffer[REQUEST_AT..][..len]) {
                        mind.in_a_row = 0;
                        self.call_one();
                    }
                    if let Poll::Ready(back) = run(device, buffer, len, task) {
                        spare = back;
                    }
                }
                Ok(None) => return self.end(),
                Err(e) => {
                    tracing::error!(error = %e, "cannot read from /dev/fuse; this thread gives up");
                    return self.call_one();
                }
            }
        }
    }

    /// The next request, and the descriptor through which it came. `None` when the mount is gone.
    fn next<'a>(
        &self,
        ears: &'a Ears,
        buffer: &mut Buffer,
        mind: &mut Mind,
    ) -> std::io::Result<Option<(&'a Arc<Device>, usize)>> {
        loop {
            if let Some(device) = &ears.looks {
                match device.look(buffer)? {
                    Poll::Ready(Some(len)) => {
                        mind.in_a_row += 1;
                        return Ok(Some((device, len)));
                    }
                    Poll::Ready(None) => return Ok(None),
                    Poll::Pending => mind.in_a_row = 0,
                }
            }
            if self.listening.swap(true, Ordering::SeqCst) {
                if self.resting.lock().over {
                    return Ok(None);
                }
                self.rest();
                continue;
            }
            let got = self.listen(ears, buffer, mind);
            self.listening.store(false, Ordering::SeqCst);
            return got;
        }
    }

    /// Looks for a moment, then sleeps until there is a request.
    fn listen<'a>(
        &self,
        ears: &'a Ears,
        buffer: &mut Buffer,
        mind: &mut Mind,
    ) -> std::io::Result<Option<(&'a Arc<Device>, usize)>> {
        if let Some(device) = &ears.looks
            && mind.shall_look()
        {
            let begun = Instant::now();
            while begun.elapsed() < LOOK {
                match device.look(buffer)? {
                    Poll::Ready(Some(len)) => {
                        mind.fruitless = 0;
                        return Ok(Some((device, len)));
                    }
                    Poll::Ready(None) => return Ok(None),
                    Poll::Pending => std::thread::yield_now(),
                }
            }
            mind.fruitless += 1;
        }
        self.idle.store(true, Ordering::SeqCst);
        let got = ears.waits.receive(buffer);
        self.idle.store(false, Ordering::SeqCst);
        // Somebody must see when this thread is stuck in what it has got.
        self.resting.lock().threads.gt(&0).then(|| self.call.notify_one());
        Ok(got?.map(|len| (&ears.waits, len)))
    }
}

/// Touches the memory that a thread will need, and returns its first buffer. A thread may be called for the first time while another one holds
/// the address space and waits for just this mount (munmap writes back what was mapped), and could not get memory then.
fn warm(pool: &BufferPool) -> Option<Buffer> {
    let mut stack = [0u8; 64 << 10];
    std::hint::black_box(&mut stack);
    drop(std::hint::black_box(Box::new([0u8; 256])));
    let mut buffer = pool.take().ok()?;
    buffer.iter_mut().step_by(4096).for_each(|byte| *byte = 0);
    Some(buffer)
}

/// What a thread remembers.
#[derive(Default)]
struct Mind {
    /// Requests that were there at once, one after the other.
    in_a_row: u32,
    /// Looks that found nothing, one after the other.
    fruitless: u32,
    skipped: u32,
}

impl Mind {
    fn shall_look(&mut self) -> bool {
        self.skipped += 1;
        let look = self.fruitless < FRUITLESS || self.skipped >= FRUITLESS;
        if look {
            self.skipped = 0;
        }
        look
    }
}

/// Whether a request moves many bytes.
fn is_long(request: &[u8]) -> bool {
    let Some((head, body)) = take::<InHeader>(request) else { return false };
    match head.opcode {
        op::WRITE => request.len() > LONG as usize,
        op::READ => take::<abi::ReadIn>(body).is_some_and(|(read, _)| read.size > LONG),
        _ => false,
    }
}
