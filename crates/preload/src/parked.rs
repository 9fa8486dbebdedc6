//! The file that the program has closed last keeps its kernel descriptor for the one that it opens next: two system calls less for each that is opened
//! and closed.
//!
//! A descriptor is parked when it is closed for the program and the kernel has it still; its slot means nothing. That is allowed where its
//! description may be used again (`pool`). Before a call goes on to libc by one of our functions, and before a
//! process or program is started, the parked descriptor is closed really. So the kernel says `EBADF` to whoever uses it, and gives the lowest number
//! that is free, as ever (`sockets` is there for that alone); files of ours get the parked one only while it is that. Only calls of which the library
//! sees nothing, as those that libc makes for itself, take it for open.
//!
//! Where tested: `tests/descriptors.rs`.

use crate::description::{Description, Open};
use crate::hook::is_inside;
use crate::pool::{self, Made};
use libc::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

/// What is behind it, with its state.
static PARKED: AtomicPtr<Description> = AtomicPtr::new(std::ptr::null_mut());

/// All numbers below are in use or parked, as far as was seen.
static FULL: AtomicI32 = AtomicI32::new(0);

/// This process may be about to become another program.
static LEAVING: AtomicBool = AtomicBool::new(false);

/// The kernel has given this number, the lowest that was free.
#[inline]
pub(crate) fn given(fd: c_int) {
    FULL.store(fd.saturating_add(1), Ordering::Relaxed);
}

/// The number is free now, and perhaps some above it.
#[inline]
pub(crate) fn freed(fd: c_int) {
    FULL.fetch_min(fd, Ordering::Relaxed);
}

fn swap(new: *mut Description) -> Option<&'static Description> {
    // SAFETY: descriptions are never freed.
    unsafe { PARKED.swap(new, Ordering::SeqCst).as_ref() }
}

/// Parks descriptor `fd`, whose reference was taken from the table. Gives it back if that cannot be.
pub(crate) fn park(open: Open, fd: c_int) -> Result<(), Open> {
    // SAFETY: descriptions are never freed. Its number is only looked at: it may be another thread's meanwhile.
    let lower = unsafe { PARKED.load(Ordering::Relaxed).as_ref() }.is_some_and(|parked| parked.number() < fd);
    // Standard streams have numbers that programs count on.
    let may = fd >= 3 && !lower && fd < FULL.load(Ordering::Relaxed) && !LEAVING.load(Ordering::Relaxed);
    if !may || !open.is_as_opened(fd) {
        return Err(open);
    }
    open.closing(fd);
    let parked = open.into_parked()?;
    if let Some(higher) = swap(std::ptr::from_ref(parked).cast_mut()) {
        higher.end_parked();
    }
    // Whoever starts a process or a program says so first, and looks here then.
    if !pool::is_quiet() || LEAVING.load(Ordering::SeqCst) {
        close();
    }
    Ok(())
}

/// The parked descriptor, if a file that is opened now with these flags of open(2) would get that number.
pub(crate) fn take(flags: c_int) -> Option<Made> {
    if PARKED.load(Ordering::Relaxed).is_null() {
        return None;
    }
    let parked = swap(std::ptr::null_mut())?;
    let lowest = parked.number() < FULL.load(Ordering::Relaxed);
    match parked.made_again(|state| lowest && (state.flags() ^ flags) & libc::O_CLOEXEC == 0) {
        Some(made) => Some(made),
        None => {
            parked.end_parked();
            None
        }
    }
}

/// Closes the parked descriptor really, if there is one.
#[inline]
pub(crate) fn close() {
    if !PARKED.load(Ordering::Relaxed).is_null()
        && let Some(parked) = swap(std::ptr::null_mut())
    {
        parked.end_parked();
    }
}

/// As [`close`], before a process is started. A signal handler may do so on top of our own code, whose locks it must not wait for: what the
/// descriptor had is lost then.
pub(crate) fn close_for_start() {
    if let Some(parked) = swap(std::ptr::null_mut()) {
        match is_inside() {
            false => parked.end_parked(),
            true => parked.close_number(),
        }
    }
}

/// As [`close_for_start`], before another program takes the place of this one, or may.
pub(crate) fn leave() {
    LEAVING.store(true, Ordering::SeqCst);
    close_for_start();
}

/// In a child of fork: what another thread parked while the child was made is lost.
pub(crate) fn after_fork() {
    if let Some(parked) = swap(std::ptr::null_mut()) {
        parked.close_number();
    }
}
