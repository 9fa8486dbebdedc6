//! Memory that all programs share, past every file system: what was changed, and what was seen.
//!
//! A register is something that one call changes and another one shows: a few bytes of a file, its size, what a name leads to. Its
//! states are numbered. Those who change it take turns; each says which state it begins to make, and when that is made. Who looks notes
//! the last state that was made or seen by anybody before it begins, and the last one begun when it has ended: what it was shown must be a state between these two.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Objects, each of a kind (`kinds`).
pub(super) const OBJECTS: usize = 52;
/// Threads of all programs.
pub(super) const THREADS: usize = 64;
/// Threads that one program can have.
pub(super) const OF_PROGRAM: usize = 8;

/// See the module.
#[repr(C, align(64))]
pub(super) struct Register {
    turn: AtomicU32,
    /// Which thread changed it last.
    changed_by: AtomicU32,
    /// The state that is made is seen by some before others: who makes it goes another way than most ([`Register::look`]).
    spreads: AtomicU32,
    begun: AtomicU64,
    made: AtomicU64,
    seen: AtomicU64,
    /// How often it was looked at.
    looks: AtomicU64,
    /// Who is alone there now; how many have been.
    pub alone: AtomicU32,
    pub passed: AtomicU64,
}

/// All of the memory.
#[repr(C, align(64))]
pub(super) struct Shared {
    pub registers: [Register; OBJECTS],
    /// Objects that are worked on now: bits.
    focus: AtomicU64,
    stopped: AtomicU32,
    failed: AtomicU32,
    /// See [`super::Plan`].
    pub early: AtomicU32,
    /// Looks through the mount that found what they had to a moment later, and calls that were repeated.
    pub late: AtomicU64,
    pub repeated: AtomicU64,
    /// What each thread does now: an object, and one more than its way; and how many records it has appended.
    doing: [AtomicU64; THREADS],
    pub appended: [AtomicU64; THREADS],
}

/// A mapping of it that lasts as long as the process.
#[derive(Clone, Copy)]
pub(super) struct Map(&'static Shared);

impl std::ops::Deref for Map {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        self.0
    }
}

impl Shared {
    /// New memory, and the descriptor by which others have it, which outlives exec.
    pub fn make() -> io::Result<(File, Map)> {
        // SAFETY: a string that ends with zero; the descriptor is new.
        let file = unsafe {
            match libc::memfd_create(c"together".as_ptr(), 0) {
                -1 => return Err(io::Error::last_os_error()),
                fd => File::from_raw_fd(fd),
            }
        };
        file.set_len(size_of::<Shared>() as u64)?;
        let map = Shared::map(file.as_raw_fd())?;
        Ok((file, map))
    }

    /// The memory of a descriptor that [`Shared::make`] gave.
    pub fn map(fd: RawFd) -> io::Result<Map> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, which is never taken away. Zeros are a value of every field, all of which are atomic.
        unsafe {
            let map = libc::mmap(std::ptr::null_mut(), size_of::<Shared>(), access, libc::MAP_SHARED, fd, 0);
            if map == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            Ok(Map(&*map.cast::<Shared>()))
        }
    }

    pub fn work_on(&self, objects: impl Iterator<Item = usize>) {
        self.focus.store(objects.fold(0, |all, object| all | 1 << object), Ordering::Relaxed);
    }

    /// The objects that are worked on.
    pub fn focus(&self) -> u64 {
        self.focus.load(Ordering::Relaxed)
    }

    pub fn stop(&self) {
        self.stopped.store(1, Ordering::Relaxed);
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) != 0
    }

    /// Says what did not hold, and ends everything.
    pub fn fail(&self, what: &str) {
        if self.failed.swap(1, Ordering::Relaxed) == 0 {
            println!("{what}");
        }
        self.stop();
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed) != 0
    }

    /// A thread begins with an object.
    pub fn begins(&self, thread: usize, object: usize) {
        self.doing[thread].store(object as u64 + 1, Ordering::Relaxed);
    }

    pub fn ends(&self, thread: usize) {
        self.doing[thread].store(0, Ordering::Relaxed);
    }

    /// What the threads of a program are doing.
    pub fn under_way(&self, program: usize) -> String {
        let threads = program * OF_PROGRAM..(program + 1) * OF_PROGRAM;
        let doing =
            threads.map(|thread| self.doing[thread].load(Ordering::Relaxed)).filter(|&doing| doing > 0);
        doing.map(|object| super::kinds::name(object as usize - 1)).collect::<Vec<_>>().join(", ")
    }

    /// Records that were appended to all logs.
    pub fn appended(&self) -> u64 {
        self.appended.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }

    pub fn summary(&self) -> String {
        let sum = |of: fn(&Register) -> &AtomicU64| {
            self.registers.iter().map(|register| of(register).load(Ordering::Relaxed)).sum::<u64>()
        };
        let appended = self.appended();
        format!(
            "{} changes, {} looks, {} times alone, {appended} records appended; through the mount {} found late, {} repeated",
            sum(|r| &r.made),
            sum(|r| &r.looks),
            sum(|r| &r.passed),
            self.late.load(Ordering::Relaxed),
            self.repeated.load(Ordering::Relaxed)
        )
    }
}

/// What a look has found.
pub(super) enum Found {
    /// A state, which is told by whether it fits; and words for it.
    State(String, Box<dyn Fn(u64) -> bool>),
    /// Parts of several states: the oldest and the newest.
    Between(u64, u64),
    /// Something that is not found by one call: whether it is right if nothing was under way.
    Quiet(String, bool),
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Found::State(words, _) | Found::Quiet(words, _) => f.write_str(words),
            Found::Between(oldest, newest) => write!(f, "{oldest} to {newest}"),
        }
    }
}

impl Register {
    /// Makes the next state, when it is this thread's turn. `None` when it does not come soon.
    pub fn change(
        &self,
        thread: usize,
        (early, alike): (bool, bool),
        make: impl FnOnce(u64) -> io::Result<()>,
    ) -> Option<io::Result<u64>> {
        let mut tries = 0;
        while self.turn.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            tries += 1;
            if tries > 20 {
                return None;
            }
            std::thread::yield_now();
        }
        let next = self.made.load(Ordering::SeqCst) + 1;
        self.spreads.store((!alike).into(), Ordering::SeqCst);
        self.begun.store(next, Ordering::SeqCst);
        if early {
            self.made.store(next, Ordering::SeqCst);
        }
        let made = make(next);
        // Also where it failed: that ends everything.
        self.changed_by.store(thread as u32, Ordering::Relaxed);
        self.made.store(next, Ordering::SeqCst);
        self.turn.store(0, Ordering::SeqCst);
        Some(made.map(|()| next))
    }

    /// Looks at it: `look` gets the first state that may be found, and says what it found. What did not hold, if anything.
    /// `alike`: by the way of most, by which nobody finds an older state than somebody else has before, unless it is being made by another way.
    pub fn look(
        &self,
        alike: bool,
        look: impl FnOnce(u64) -> io::Result<Found>,
    ) -> io::Result<Result<(), String>> {
        let made = self.made.load(Ordering::SeqCst);
        let first = if alike { made.max(self.seen.load(Ordering::SeqCst)) } else { made };
        let found = look(first)?;
        let last = self.begun.load(Ordering::SeqCst);
        self.looks.fetch_add(1, Ordering::Relaxed);
        let holds = match &found {
            Found::State(_, fits) => {
                let state = (first..=last).find(|&state| fits(state));
                let is_seen = |state: &u64| {
                    let is_made = *state <= self.made.load(Ordering::SeqCst);
                    alike && (is_made || self.spreads.load(Ordering::SeqCst) == 0)
                };
                if let Some(state) = state.filter(is_seen) {
                    self.seen.fetch_max(state, Ordering::SeqCst);
                }
                state.is_some()
            }
            // What one has seen of a change another one may not see yet, in another place.
            Found::Between(oldest, newest) => made <= *oldest && *newest <= last,
            Found::Quiet(_, holds) => *holds || made < last,
        };
        let by = self.changed_by.load(Ordering::Relaxed);
        Ok(if holds {
            Ok(())
        } else {
            Err(format!("{found}, of {first} ({made} made) to {last}; changed last by thread {by}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_what_was_made_or_seen_is_found() {
        let (_file, shared) = Shared::make().unwrap();
        let register = &shared.registers[0];
        let look = |value: u64| {
            let found = Found::State(value.to_string(), Box::new(move |state| state == value));
            register.look(true, |_| Ok(found)).unwrap().is_ok()
        };
        let parts =
            |oldest, newest| register.look(true, |_| Ok(Found::Between(oldest, newest))).unwrap().is_ok();
        assert!(look(0));
        for _ in 0..3 {
            register.change(0, (false, true), |_| Ok(())).unwrap().unwrap();
        }
        assert!(!look(2) && !look(4) && look(3));
        assert!(parts(3, 3) && !parts(2, 3));
        // While the next one is made either may be found, but not the old one after the new one.
        register
            .change(0, (false, true), |next| {
                assert!(look(3) && look(4) && next == 4);
                assert!(!look(3));
                assert!(parts(3, 4) && !parts(3, 5));
                assert!(register.look(true, |_| Ok(Found::Quiet(String::new(), false))).unwrap().is_ok());
                Ok(())
            })
            .unwrap()
            .unwrap();
        assert!(register.look(true, |_| Ok(Found::Quiet(String::new(), false))).unwrap().is_err());
    }
}
