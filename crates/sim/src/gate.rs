//! Memory that is lent, and a device that can be stopped for its transfers, or for all: it does not begin them, or fails them.

use media::{Arena, ArenaId, Completion, Geometry, Media, MediaError, Memory, RamMedia, Request, Wait};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// Memory that can be lent to a file system.
#[derive(Debug)]
pub struct Buffer(pub Arena);

// SAFETY: the arena is mapped as long as this lives.
unsafe impl Memory for Buffer {
    fn range(&self) -> (*mut u8, usize) {
        (self.0.ptr(0, self.0.len()), self.0.len())
    }
}

/// Memory as a device with a gate for transfers of memory that is somebody else's ([`Arena::of`]).
pub struct Gate {
    ram: RamMedia,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    theirs: HashSet<u16>,
    closed: bool,
    for_all: bool,
    fails: bool,
    held: Vec<Request>,
    failed: Vec<Completion>,
    unregistered: usize,
}

impl Gate {
    /// A device of so many bytes.
    pub fn new(bytes: u64) -> Result<Gate, MediaError> {
        Ok(Gate { ram: RamMedia::new(bytes)?, state: Mutex::default() })
    }

    /// Holds transfers back from now on.
    pub fn close(&self) {
        self.state.lock().closed = true;
    }

    /// The same with all transfers.
    pub fn close_for_all(&self) {
        let mut state = self.state.lock();
        (state.closed, state.for_all) = (true, true);
    }

    /// Lets them go on.
    pub fn open(&self) {
        let held = {
            let mut state = self.state.lock();
            (state.closed, state.for_all) = (false, false);
            std::mem::take(&mut state.held)
        };
        held.into_iter().for_each(|request| self.ram.submit(request));
        self.ram.kick();
    }

    /// Fails them from now on.
    pub fn fail(&self) {
        self.state.lock().fails = true;
    }

    /// Transfers that are held back.
    pub fn held(&self) -> usize {
        self.state.lock().held.len()
    }

    /// Pieces of lent memory that were given back.
    pub fn given_back(&self) -> usize {
        self.state.lock().unregistered
    }
}

impl Media for Gate {
    fn geometry(&self) -> &Geometry {
        self.ram.geometry()
    }
    fn register(&self, arena: Arc<Arena>) -> Result<ArenaId, MediaError> {
        let is_theirs = arena.is_theirs();
        let id = self.ram.register(arena)?;
        if is_theirs {
            self.state.lock().theirs.insert(id.0);
        }
        Ok(id)
    }
    fn unregister(&self, arena: ArenaId) {
        let mut state = self.state.lock();
        state.unregistered += state.theirs.remove(&arena.0) as usize;
        self.ram.unregister(arena);
    }
    fn submit(&self, request: Request) {
        let mut state = self.state.lock();
        let theirs = request.bufs.iter().any(|buf| state.theirs.contains(&buf.arena.0));
        if theirs && state.fails {
            let (device, offset) = ("gate".into(), request.offset);
            let e = MediaError::Io { device, op: "transfer", offset, errno: libc::EIO };
            state.failed.push(Completion { token: request.token, result: Err(e) });
        } else if state.closed && (theirs || state.for_all) {
            state.held.push(request);
        } else {
            drop(state);
            self.ram.submit(request);
        }
    }
    fn kick(&self) {
        self.ram.kick();
    }
    fn reap(&self, out: &mut Vec<Completion>, wait: Wait) {
        out.append(&mut self.state.lock().failed);
        let wait = match wait {
            Wait::For(_) if out.is_empty() => Wait::For(Some(Duration::from_millis(1))),
            _ => Wait::No,
        };
        self.ram.reap(out, wait);
    }
    fn wake(&self) {
        self.ram.wake();
    }
}
