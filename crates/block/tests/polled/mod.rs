//! A device whose completions are seen without the kernel, in memory.

#![allow(dead_code, reason = "each test file uses a part of it")]

use media::{Arena, ArenaId, Completion, Geometry, Media, MediaError, RamMedia, Request, Wait};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// See the module. It counts who took completions in, how often somebody reaped and how often it was told of requests, of which it knows nothing before.
pub struct Polled {
    ram: RamMedia,
    queued: Mutex<Vec<Request>>,
    kicks: AtomicU64,
    care: Option<Duration>,
    taken: Mutex<HashMap<ThreadId, usize>>,
    reaps: AtomicU64,
    /// Somebody is about it: the device is looked after.
    inside: AtomicBool,
    reaper: Mutex<()>,
}

impl Polled {
    /// One that is to be looked after so often.
    pub fn new(care: Option<Duration>) -> Polled {
        Polled {
            ram: RamMedia::new(128 << 20).unwrap(),
            queued: Mutex::default(),
            kicks: AtomicU64::new(0),
            care,
            taken: Mutex::default(),
            reaps: AtomicU64::new(0),
            inside: AtomicBool::new(false),
            reaper: Mutex::default(),
        }
    }

    /// Completions that a thread has taken in.
    pub fn taken_by(&self, thread: ThreadId) -> usize {
        self.taken.lock().unwrap().get(&thread).copied().unwrap_or(0)
    }

    pub fn taken(&self) -> HashMap<ThreadId, usize> {
        self.taken.lock().unwrap().clone()
    }

    pub fn reaps(&self) -> u64 {
        self.reaps.load(Ordering::Relaxed)
    }

    /// How often it was told of requests.
    pub fn kicks(&self) -> u64 {
        self.kicks.load(Ordering::Relaxed)
    }

    /// Requests that it was not told of.
    pub fn queued(&self) -> usize {
        self.queued.lock().unwrap().len()
    }

    pub fn is_attended(&self) -> bool {
        self.inside.load(Ordering::Relaxed)
    }

    fn take(&self, out: &mut Vec<Completion>, wait: Wait) {
        let before = out.len();
        self.ram.reap(out, wait);
        *self.taken.lock().unwrap().entry(thread::current().id()).or_default() += out.len() - before;
    }
}

impl Media for Polled {
    fn geometry(&self) -> &Geometry {
        self.ram.geometry()
    }
    fn register(&self, arena: Arc<Arena>) -> Result<ArenaId, MediaError> {
        self.ram.register(arena)
    }
    fn unregister(&self, arena: ArenaId) {
        self.ram.unregister(arena);
    }
    fn submit(&self, request: Request) {
        self.queued.lock().unwrap().push(request);
    }
    fn kick(&self) {
        let queued = std::mem::take(&mut *self.queued.lock().unwrap());
        if !queued.is_empty() {
            self.kicks.fetch_add(1, Ordering::Relaxed);
        }
        queued.into_iter().for_each(|request| self.ram.submit(request));
        self.ram.kick();
    }
    fn reap(&self, out: &mut Vec<Completion>, wait: Wait) {
        let _one = self.reaper.lock().unwrap();
        self.reaps.fetch_add(1, Ordering::Relaxed);
        self.inside.store(true, Ordering::Relaxed);
        self.take(out, wait);
        self.inside.store(false, Ordering::Relaxed);
    }
    fn wake(&self) {
        self.ram.wake();
    }
    fn is_polled(&self) -> bool {
        true
    }
    fn care(&self) -> Option<Duration> {
        self.care
    }
    fn look(&self, out: &mut Vec<Completion>) {
        if let Ok(_one) = self.reaper.try_lock() {
            self.take(out, Wait::No);
        }
    }
}
