//! A medium that notes everything that matters for power failures in a file, for tests of real processes on real files.
//!
//! Each change, flush and completion is appended to the log with one write(2) and the time: a change before the device gets it,
//! a completion before the engine hears of it. So when the process is killed at any moment, the log holds a run that was
//! possible, and all that anybody can have been told. [`Log`] reads it: [`Log::at`] gives what a power failure after each event
//! may leave ([`CrashState`], by the rules of [`crate::flash`]), starting from a copy of the device that was made before.
//!
//! Never used in production: each write is made twice. Tested at the end of this file.

use crate::flash::{Change, Config, Contents, CrashState, Event, PendingWrite};
use crate::{Arena, ArenaId, Completion, Flags, Geometry, Media, MediaError, Op, Request, Wait};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Bytes before the data of an entry: kind, flags, padding, time, number, offset, length.
const HEAD: usize = 40;
const SUBMIT: u8 = 1;
const COMPLETE: u8 = 2;
const FLUSH: u8 = 3;
const FLUSHED: u8 = 4;

/// The layer.
pub struct Logged<M> {
    media: M,
    state: Mutex<State>,
}

struct State {
    log: File,
    next: u64,
    /// Requests in flight by their tokens: number, length, whether it is a flush.
    flying: HashMap<u64, (u64, u64, bool)>,
    arenas: HashMap<u16, Arc<Arena>>,
}

/// The machine's clock, nanoseconds: comparable between processes.
pub fn now() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

impl<M: Media> Logged<M> {
    /// Begins a log at `path`; what was there is lost.
    pub fn new(media: M, path: &Path) -> io::Result<Logged<M>> {
        let log = File::create(path)?;
        let state = State { log, next: 0, flying: HashMap::new(), arenas: HashMap::new() };
        Ok(Logged { media, state: Mutex::new(state) })
    }
}

impl State {
    /// Panics when the log cannot be written: a test whose log is not whole proves nothing.
    fn note(&mut self, kind: u8, what: u8, (id, offset, len): (u64, u64, u64), data: &[u8]) {
        let mut entry = Vec::with_capacity(HEAD + data.len());
        entry.extend([kind, what, data.is_empty() as u8, 0, 0, 0, 0, 0]);
        for number in [now(), id, offset, len] {
            entry.extend(number.to_le_bytes());
        }
        entry.extend(data);
        self.log.write_all(&entry).expect("the log of the medium can be written");
    }

    fn submitted(&mut self, request: &Request) {
        let change = match request.op {
            Op::Read => return,
            Op::Flush => 0,
            Op::Write => 1,
            Op::WriteZeroes => 2,
            Op::Discard => 3,
        };
        let id = self.next;
        self.next += 1;
        let old = self.flying.insert(request.token, (id, request.len, request.op == Op::Flush));
        assert!(old.is_none(), "two requests in flight have the same token");
        let mut data = Vec::new();
        for buf in &request.bufs {
            let mut part = vec![0; buf.len as usize];
            self.arenas[&buf.arena.0].copy_out(buf.offset, &mut part);
            data.extend(part);
        }
        match request.op {
            Op::Flush => self.note(FLUSH, 0, (id, 0, 0), &[]),
            _ => self.note(SUBMIT, change | request.flags.0 << 4, (id, request.offset, request.len), &data),
        }
    }

    fn completed(&mut self, done: &[Completion]) {
        for done in done {
            let Some((id, len, flush)) = self.flying.remove(&done.token) else { continue };
            let ok = done.result.is_ok();
            match flush {
                true => self.note(FLUSHED, ok as u8, (id, 0, 0), &[]),
                false => self.note(COMPLETE, 0, (id, 0, if ok { len } else { 0 }), &[]),
            }
        }
    }
}

impl<M: Media> Media for Logged<M> {
    fn geometry(&self) -> &Geometry {
        self.media.geometry()
    }
    fn register(&self, arena: Arc<Arena>) -> Result<ArenaId, MediaError> {
        let id = self.media.register(arena.clone())?;
        self.state.lock().arenas.insert(id.0, arena);
        Ok(id)
    }
    fn unregister(&self, arena: ArenaId) {
        self.state.lock().arenas.remove(&arena.0);
        self.media.unregister(arena);
    }
    fn submit(&self, request: Request) {
        // Under the lock, so that the log has the order in which the device got them.
        let mut state = self.state.lock();
        state.submitted(&request);
        self.media.submit(request);
    }
    fn kick(&self) {
        self.media.kick();
    }
    fn reap(&self, out: &mut Vec<Completion>, wait: Wait) {
        let before = out.len();
        self.media.reap(out, wait);
        self.state.lock().completed(&out[before..]);
    }
    fn wake(&self) {
        self.media.wake();
    }
    fn is_polled(&self) -> bool {
        self.media.is_polled()
    }
    fn care(&self) -> Option<Duration> {
        self.media.care()
    }
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.media.readiness()
    }
    fn look(&self, out: &mut Vec<Completion>) {
        let before = out.len();
        self.media.look(out);
        self.state.lock().completed(&out[before..]);
    }
}

/// A log that was read.
pub struct Log {
    /// What happened, and when.
    pub events: Vec<(u64, Event)>,
    start: CrashState,
}

impl Log {
    /// Reads the log at `path`. `contents`: the device as it was when the log was begun; `config`: what kind of device it is
    /// taken for. An entry that is cut off in the end is left out, as its request was not given to the device.
    pub fn read(path: &Path, config: Config, contents: Contents) -> io::Result<Log> {
        let bytes = std::fs::read(path)?;
        let mut events = Vec::new();
        let mut rest = &bytes[..];
        while let Some((head, more)) = rest.split_at_checked(HEAD) {
            let word = |n: usize| u64::from_le_bytes(head[8 * n..][..8].try_into().expect("eight bytes"));
            let (time, id, offset, len) = (word(1), word(2), word(3), word(4));
            let size = if head[0] == SUBMIT && head[2] == 0 { len as usize } else { 0 };
            let Some((data, more)) = more.split_at_checked(size) else { break };
            rest = more;
            let event = match head[0] {
                SUBMIT => {
                    let (change, op) = match head[1] & 0xf {
                        1 => (Change::Write, Op::Write),
                        2 => (Change::Zeroes, Op::WriteZeroes),
                        _ => (Change::Discard, Op::Discard),
                    };
                    let mut request = Request::range(op, offset, len, id);
                    request.flags = Flags(head[1] >> 4);
                    Event::Submit(PendingWrite::numbered(&config, change, &request, data.into()))
                }
                COMPLETE => Event::Complete { id, kept: len },
                FLUSH => Event::FlushSubmit { id },
                FLUSHED => Event::FlushDone { id, ok: head[1] == 1 },
                _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "not a log of a medium")),
            };
            events.push((time, event));
        }
        Ok(Log { events, start: CrashState::new(Arc::new(config), contents) })
    }

    /// Calls `each` with what a power failure may leave at these moments, given as numbers of events that have happened, in order.
    pub fn at<E>(
        &self,
        moments: &[usize],
        mut each: impl FnMut(usize, &CrashState) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = self.start.clone();
        let mut done = 0;
        for &moment in moments {
            self.events[done.min(moment)..moment].iter().for_each(|(_, event)| state.apply(event));
            done = done.max(moment);
            each(moment, &state)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocking::Blocking;
    use crate::{RamMedia, SimFlash};

    fn block(image: &SimFlash, at: u64) -> u8 {
        let mut bytes = [0; 4096];
        image.peek(at * 4096, &mut bytes);
        bytes[0]
    }

    #[test]
    fn a_log_tells_what_may_be_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let media = Arc::new(Logged::new(RamMedia::new(1 << 20).unwrap(), &path).unwrap());
        let device = Blocking::new(media).unwrap();
        device.write(0, &[1; 4096]).unwrap();
        device.flush().unwrap();
        device.write(4096, &[2; 4096]).unwrap();
        device.write(8192, &[3; 4096]).unwrap();
        // What was being noted when the process was killed.
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(&[SUBMIT; HEAD - 1]).unwrap();
        let read = || Log::read(&path, Config::new(1 << 20), Contents::new(1 << 20)).unwrap();
        let log = read();
        assert_eq!(log.events.len(), 8);
        assert!(log.events.is_sorted_by_key(|(time, _)| *time));
        let mut seen = Vec::new();
        let moments = [0, 3, 4, 8];
        let all = log.at(&moments, |_, state| {
            let (least, most) = (state.crash_image(|_, _| false), state.crash_image(|_, _| true));
            let third = state.crash_image(|write, _| write.offset == 8192);
            seen.push([
                block(&least, 0),
                block(&most, 0),
                block(&most, 1),
                block(&third, 1),
                block(&third, 2),
            ]);
            Ok::<_, ()>(())
        });
        all.unwrap();
        assert_eq!(seen, [[0; 5], [0, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 2, 0, 3]]);
    }
}
