//! The files that the program has closed last keep their kernel descriptors for those that it opens next: two system calls less for each that is opened
//! and closed.
//!
//! A descriptor is parked when it is closed for the program and the kernel has it still; its slot means nothing. That is allowed where its
//! description may be used again (`pool`). Before a call goes on to libc by one of our functions, and before a
//! process or program is started, all parked descriptors are closed really (calls about memory without descriptors do not count). So the kernel says `EBADF` to whoever uses them, and gives the lowest number
//! that is free, as ever (most of `sockets` is there for that alone); files of ours get the lowest of the parked ones only while it is that. Only calls of which the
//! library sees nothing, as those that libc makes for itself, take them for open.
//!
//! What is parked stands in one line of the processors' caches, and changes by single exchanges: signal handlers start processes
//! on top of our own code, and find each descriptor either parked or in somebody's hands.
//!
//! Where tested: `tests/all/descriptors.rs`, and below.

use crate::description::{Description, Open};
use crate::hook::{inside, is_inside};
use crate::pool::{self, Made};
use libc::c_int;
use share::lock::{self, Apart};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// How many stay parked: as many as fit into a line.
const MOST: usize = 8;

/// See [`word`]; 0 where there is none.
static PARKED: Apart<[AtomicU64; MOST]> = Apart([const { AtomicU64::new(0) }; MOST]);

/// What threads only look at, as long as their files are opened with parked descriptors.
static KNOWN: Apart<Known> =
    Apart(Known { full: AtomicU32::new(0), any: AtomicUsize::new(NONE), leaving: AtomicBool::new(false) });

struct Known {
    /// All numbers below that are in use or parked, as far as was seen ([`Full`]).
    full: AtomicU32,
    /// Whether something may be parked: [`NONE`], [`SOME`] or [`CLOSING`].
    any: AtomicUsize,
    /// This process may be about to become another program.
    leaving: AtomicBool,
}

const NONE: usize = 0;
/// Whoever has parked something says so behind that.
const SOME: usize = 1;
/// Somebody closes what was parked before this was said, and nothing was parked since.
const CLOSING: usize = 2;

/// Where the number of a parked descriptor begins; below is the address of what is behind it, with its state.
const NUMBER: u32 = 48;

/// A parked descriptor: the lower the number is, the lower. `None`: its description is where no program has memory otherwise.
#[inline]
fn word(parked: &'static Description, fd: c_int) -> Option<u64> {
    let address = std::ptr::from_ref(parked).expose_provenance() as u64;
    (address >> NUMBER == 0).then_some(address | (fd as u64) << NUMBER)
}

/// What such a word says.
#[inline]
fn of(word: u64) -> Option<&'static Description> {
    let address = word & ((1 << NUMBER) - 1);
    // SAFETY: from `word`, or null; descriptions are never freed.
    unsafe { std::ptr::with_exposed_provenance::<Description>(address as usize).as_ref() }
}

/// A number below which nothing is free, in the lower half, and how many times something became free, in the upper.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Full(u32);

impl Full {
    const HALF: u32 = 16;

    #[inline]
    fn number(self) -> c_int {
        (self.0 & 0xffff) as c_int
    }

    /// With another number, or the highest that there is room for.
    fn with(self, number: c_int) -> Full {
        Full(self.0 >> Self::HALF << Self::HALF | number.clamp(0, 0xffff) as u32)
    }

    /// After the kernel has given `fd`, the lowest that was free, to who had `seen` this before.
    fn given(self, seen: Full, fd: c_int) -> Full {
        let below = fd.saturating_add(1);
        self.with(match self {
            // Also if that is less: something became free that was not seen.
            _ if self == seen => below,
            // Somebody else was given one.
            _ if self.0 >> Self::HALF == seen.0 >> Self::HALF => below.max(self.number()),
            // What became free meanwhile may be lower.
            _ => below.min(self.number()),
        })
    }

    fn freed(self, fd: c_int) -> Full {
        Full(self.0.wrapping_add(1 << Self::HALF)).with(fd.min(self.number()))
    }
}

/// What is full now: to be asked before the kernel is asked for a number.
#[inline]
pub(crate) fn full() -> Full {
    Full(KNOWN.full.load(Ordering::SeqCst))
}

fn change(to: impl Fn(Full) -> Full) {
    let to = |now| Some(to(Full(now)).0).filter(|&new| new != now);
    if !lock::is_single() {
        let _ = KNOWN.full.fetch_update(Ordering::SeqCst, Ordering::Relaxed, to);
    } else if let Some(new) = to(KNOWN.full.load(Ordering::Relaxed)) {
        KNOWN.full.store(new, Ordering::Relaxed);
    }
}

/// The kernel has given this number, the lowest that was free, to who had `seen` what was full before.
pub(crate) fn given(fd: c_int, seen: Full) {
    change(|now| now.given(seen, fd));
}

/// The number is free now, and perhaps some above it. To be said behind that; who cannot, says it before.
pub(crate) fn freed(fd: c_int) {
    change(|now| now.freed(fd));
}

/// Parks descriptor `fd`, whose reference was taken from the table. Gives it back if that cannot be.
pub(crate) fn park(open: Open, fd: c_int) -> Result<(), Open> {
    // Standard streams have numbers that programs count on.
    let may = fd >= 3 && fd < full().number() && !KNOWN.leaving.load(Ordering::Relaxed);
    if !may || !open.is_as_opened(fd) {
        return Err(open);
    }
    open.closing(fd);
    let parked = open.into_parked()?;
    if let Some(closed) = put(parked, fd) {
        closed.end_parked();
    }
    if KNOWN.any.load(Ordering::SeqCst) != SOME {
        KNOWN.any.store(SOME, Ordering::Release);
    }
    // Whoever starts a process or a program says so first, and looks here then.
    if !pool::is_quiet() || KNOWN.leaving.load(Ordering::SeqCst) {
        close();
    }
    Ok(())
}

/// Where there is no room for all, gives the one with the highest number.
fn put(parked: &'static Description, fd: c_int) -> Option<&'static Description> {
    let Some(new) = word(parked, fd) else { return Some(parked) };
    loop {
        let words = words();
        let (entry, there) = match words.iter().position(|&word| word == 0) {
            Some(free) => (free, 0),
            None => (0..MOST).map(|entry| (entry, words[entry])).max_by_key(|&(_, word)| word)?,
        };
        if there != 0 && there < new {
            return Some(parked);
        }
        if exchange(entry, there, new) {
            return of(there);
        }
    }
}

#[inline]
fn words() -> [u64; MOST] {
    std::array::from_fn(|entry| PARKED[entry].load(Ordering::SeqCst))
}

#[inline]
fn exchange(entry: usize, from: u64, to: u64) -> bool {
    PARKED[entry].compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// The parked descriptor with the lowest number, if a file that is opened now with these flags of open(2) would get that.
pub(crate) fn take(flags: c_int) -> Option<Made> {
    let parked = loop {
        let words = words();
        let parked = (0..MOST).filter(|&entry| words[entry] != 0).min_by_key(|&entry| words[entry])?;
        if exchange(parked, words[parked], 0) {
            break of(words[parked])?;
        }
    };
    let lowest = parked.number() < full().number();
    let made = parked.made_again(|state| lowest && (state.flags() ^ flags) & libc::O_CLOEXEC == 0);
    if made.is_none() {
        parked.end_parked();
    }
    made
}

/// Takes all that are parked, the highest number first: files that are opened meanwhile get the lowest.
fn empty(end: impl Fn(&'static Description)) {
    let mut words = words();
    while let Some(highest) = (0..MOST).max_by_key(|&entry| words[entry]).filter(|&entry| words[entry] != 0) {
        words[highest] = 0;
        // It may be another one by now, or none.
        if let Some(parked) = of(PARKED[highest].swap(0, Ordering::SeqCst)) {
            end(parked);
        }
    }
}

/// Closes the parked descriptors really, if there are any.
#[inline]
pub(crate) fn close() {
    if KNOWN.any.load(Ordering::Relaxed) != NONE {
        close_all();
    }
}

/// Signal handlers that use files meanwhile are refused (`hook`), as on top of any call of ours: the locks that this takes are held.
#[cold]
fn close_all() {
    let _inside = inside();
    // First: whoever parks something from now on says so again. Others who come meanwhile close with us what is left.
    match lock::is_single() {
        true => KNOWN.any.store(CLOSING, Ordering::Relaxed),
        false => KNOWN.any.store(CLOSING, Ordering::SeqCst),
    }
    empty(Description::end_parked);
    lock::exchange(&KNOWN.any, CLOSING, NONE);
}

/// As [`close`], before a process is started. A signal handler may do so on top of our own code, whose locks it must not wait for: what the
/// descriptors had is lost then.
pub(crate) fn close_for_start() {
    let was_inside = is_inside();
    let _inside = inside();
    match was_inside {
        false => empty(Description::end_parked),
        true => empty(Description::close_number),
    }
}

/// As [`close_for_start`], before another program takes the place of this one, or may.
pub(crate) fn leave() {
    KNOWN.leaving.store(true, Ordering::SeqCst);
    close_for_start();
}

/// In a child of fork: what other threads parked while the child was made is lost.
pub(crate) fn after_fork() {
    let _inside = inside();
    empty(Description::close_number);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_full() {
        let full = Full(0).given(Full(0), 4);
        assert_eq!(full.number(), 5);
        // The kernel knows better.
        assert_eq!(full.given(full, 3).number(), 4);
        assert_eq!(full.freed(7).number(), 5);
        assert_eq!(full.freed(3).number(), 3);
        // Two were given, and who got the lower one says so last.
        assert_eq!(full.given(full, 6).given(full, 5).number(), 7);
        // What became free before, or after, a higher one was given.
        assert_eq!(full.freed(3).given(full, 6).number(), 3);
        assert_eq!(full.freed(8).given(full, 6).number(), 5);
        assert_eq!(full.freed(8).given(full, 3).number(), 4);
        assert_eq!(Full(u32::MAX).freed(9).number(), 9);
        assert_eq!(full.given(full, c_int::MAX).number(), 0xffff);
    }

    #[test]
    fn words_say_what_is_parked() {
        let parked: &Description = Box::leak(Box::default());
        let [low, high] = [3, 0xffff].map(|fd| word(parked, fd).unwrap());
        assert!(low < high && of(0).is_none());
        assert!([low, high].iter().all(|&word| std::ptr::eq(of(word).unwrap(), parked)));
    }
}
