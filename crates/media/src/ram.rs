//! A medium in memory, for tests and benchmarks of engines.
//!
//! Memory is taken when it is first written, so a large medium costs little. Requests are carried out when they are
//! submitted; completions are delivered in the order of submission, after the next [`Media::kick`]. Nothing survives the
//! process, so there is no cache to flush; power loss is the business of [`crate::flash`].
//!
//! Requests that overlap and are in flight together may mix their bytes, as on a real device.
//! Tested in tests/conformance.rs.

use crate::counters::Counters;
use crate::front::Front;
use crate::{Arena, ArenaId, Completion, Geometry, Media, MediaError, Op, Request, Wait};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// A device whose contents are anonymous memory.
pub struct RamMedia {
    front: Front,
    store: Arena,
    /// Covers the completions that nobody has taken yet.
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    /// Waits for a kick.
    queued: Vec<Completion>,
    /// May be reaped.
    done: VecDeque<Completion>,
    woken: bool,
}

const PAGE: u64 = 4096;

impl RamMedia {
    /// A medium of `bytes`, rounded down to whole 4 KiB. Fails when the system does not reserve that much address space.
    pub fn new(bytes: u64) -> Result<RamMedia, MediaError> {
        let setup = |errno| MediaError::Setup { device: "ram".into(), doing: "reserving memory", errno };
        let bytes = bytes / PAGE * PAGE;
        let len = usize::try_from(bytes).map_err(|_| setup(libc::ENOMEM))?;
        let store = Arena::new(len).map_err(|e| setup(e.raw_os_error().unwrap_or(libc::ENOMEM)))?;
        // SAFETY: advice on a mapping that belongs to `store`. Small pages keep the medium sparse.
        let _ = unsafe {
            rustix::mm::madvise(store.ptr(0, len).cast(), len, rustix::mm::Advice::LinuxNoHugepage)
        };
        let geometry = Geometry {
            name: "ram".into(),
            bytes,
            sector: 512,
            atomic_unit: 4096,
            volatile_cache: false,
            barrier: false,
            discard: true,
            queue_depth: 1024,
            max_transfer: 4 << 20,
            numa_node: None,
        };
        Ok(RamMedia {
            front: Front::new(geometry),
            store,
            state: Mutex::new(State::default()),
            arrived: Condvar::new(),
        })
    }

    /// What was asked of it.
    pub fn counters(&self) -> Counters {
        self.front.counters()
    }

    fn transfer(&self, request: &Request) {
        let mut at = request.offset;
        for buf in &request.bufs {
            let memory = self.front.address(buf);
            let place = self.store.ptr(at, buf.len as usize);
            // SAFETY: both ranges were checked (`address` and `ptr` panic otherwise). They may overlap only if somebody
            // could register the private arena of this medium, which nobody can.
            unsafe {
                match request.op {
                    Op::Read => std::ptr::copy_nonoverlapping(place, memory, buf.len as usize),
                    _ => std::ptr::copy_nonoverlapping(memory, place, buf.len as usize),
                }
            }
            at += buf.len as u64;
        }
    }

    /// Whole pages go back to the system and read as zeros; the rest is overwritten.
    fn clear(&self, offset: u64, len: u64) {
        let end = offset + len;
        let (first, last) = (offset.next_multiple_of(PAGE), end / PAGE * PAGE);
        if first >= last {
            return self.store.zero(offset, len as usize);
        }
        let whole = (last - first) as usize;
        // SAFETY: the range belongs to `store`, is private and anonymous, so that it reads as zeros afterwards.
        let freed = unsafe {
            rustix::mm::madvise(self.store.ptr(first, whole).cast(), whole, rustix::mm::Advice::LinuxDontNeed)
        };
        if freed.is_err() {
            self.store.zero(first, whole);
        }
        self.store.zero(offset, (first - offset) as usize);
        self.store.zero(last, (end - last) as usize);
    }
}

impl Media for RamMedia {
    fn geometry(&self) -> &Geometry {
        &self.front.geometry
    }

    fn register(&self, arena: Arc<Arena>) -> Result<ArenaId, MediaError> {
        self.front.register(arena)
    }

    fn unregister(&self, arena: ArenaId) {
        self.front.unregister(arena);
    }

    fn submit(&self, request: Request) {
        let result = self.front.admit(&request);
        if result.is_ok() {
            match request.op {
                Op::Read | Op::Write => self.transfer(&request),
                Op::Flush => {}
                Op::Discard | Op::WriteZeroes => self.clear(request.offset, request.len),
            }
        }
        self.state.lock().queued.push(Completion { token: request.token, result });
    }

    fn kick(&self) {
        let state = &mut *self.state.lock();
        if !state.queued.is_empty() {
            self.front.meter.kicked();
            state.done.extend(state.queued.drain(..));
            self.arrived.notify_all();
        }
    }

    fn reap(&self, out: &mut Vec<Completion>, wait: Wait) {
        let deadline = match wait {
            Wait::For(Some(time)) => Instant::now().checked_add(time),
            _ => None,
        };
        let mut state = self.state.lock();
        while state.done.is_empty() && wait != Wait::No && !state.woken {
            match deadline {
                Some(deadline) if self.arrived.wait_until(&mut state, deadline).timed_out() => break,
                Some(_) => {}
                None => self.arrived.wait(&mut state),
            }
        }
        if state.done.is_empty() && wait != Wait::No {
            state.woken = false;
        }
        out.extend(state.done.drain(..));
    }

    fn wake(&self) {
        self.state.lock().woken = true;
        self.arrived.notify_all();
    }
}
