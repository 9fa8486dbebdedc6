//! Locks that cost next to nothing in a process of one thread, as most programs are: there a call that needs no message spent up to two fifths of its time on
//! the atomic exchanges of its locks, which are all free.
//!
//! The C library says whether there is another thread (`__libc_single_threaded`, glibc 2.32 and later). If not, a lock is taken by a plain store. It is
//! a lock all the same: should a thread come to be while it is held, that one finds it taken. Where there are threads, or no such word, these are
//! the locks of `parking_lot`. The C library knows nothing of threads that a program makes by clone(2); who sees that says so here
//! ([`UNKNOWN`]).

use std::ffi::c_void;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence,
};

/// Mutual exclusion.
pub type Mutex<T> = lock_api::Mutex<Plain<parking_lot::RawMutex>, T>;
/// What [`Mutex::lock`] gives.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, Plain<parking_lot::RawMutex>, T>;
/// One writer, or many readers.
pub type RwLock<T> = lock_api::RwLock<Plain<parking_lot::RawRwLock>, T>;

/// The C library's word; [`NONE`] when it has none.
static WORD: AtomicPtr<AtomicU8> = AtomicPtr::new(std::ptr::null_mut());
static NONE: AtomicU8 = AtomicU8::new(0);

/// There may be threads that the C library does not know. Stays so; to be set before there are.
pub static UNKNOWN: AtomicBool = AtomicBool::new(false);

/// Whether this process has only one thread.
#[inline]
pub fn is_single() -> bool {
    let word = WORD.load(Ordering::Relaxed);
    let word = if word.is_null() { find() } else { word };
    // SAFETY: a variable of the C library, which is never unloaded, or ours. This thread changes it itself before there is another one.
    unsafe { (*word).load(Ordering::Relaxed) != 0 && !UNKNOWN.load(Ordering::Relaxed) }
}

#[cold]
fn find() -> *mut AtomicU8 {
    // SAFETY: the name ends with NUL.
    let found: *mut c_void = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    let word = if found.is_null() { std::ptr::from_ref(&NONE).cast_mut() } else { found.cast() };
    WORD.store(word, Ordering::Relaxed);
    word
}

/// What threads write often, or read all the time, in lines of the processors' caches of its own: two of them, as processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Apart<T>(pub T);

impl<T> std::ops::Deref for Apart<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Which of `parts` the calling thread uses of something that each processor has a part of, so that its memory need not go from one to the other. It is
/// only where it is by chance: the thread may be on another one in the next moment.
#[inline]
pub fn part_here(parts: usize) -> usize {
    match is_single() {
        true => 0,
        false => crate::changes::processor() as usize % parts,
    }
}

/// Changes a counter that threads share, if it is `from`.
#[inline]
pub fn exchange(counter: &AtomicUsize, from: usize, to: usize) -> bool {
    if !is_single() {
        return counter.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok();
    }
    let is = counter.load(Ordering::Relaxed) == from;
    if is {
        counter.store(to, Ordering::Relaxed);
    }
    is
}

/// As [`exchange`], of a word that another process may change too, when it does not matter which of the two comes last; no fence where there is one thread.
#[inline]
pub(crate) fn exchange_word(word: &AtomicU64, from: u64, to: u64) -> bool {
    if !is_single() {
        return word.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok();
    }
    word.store(to, Ordering::Relaxed);
    true
}

/// Adds one to a counter that threads share.
#[inline]
pub fn count(counter: &AtomicU32) {
    match is_single() {
        true => counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed),
        false => drop(counter.fetch_add(1, Ordering::Relaxed)),
    }
}

/// Takes one from a counter that threads share, and says what it was.
#[inline]
pub fn decrease(counter: &AtomicUsize) -> usize {
    if !is_single() {
        return counter.fetch_sub(1, Ordering::SeqCst);
    }
    let before = counter.load(Ordering::Relaxed);
    counter.store(before - 1, Ordering::Relaxed);
    before
}

/// Changes a pointer that threads share, and says what it was.
#[inline]
pub fn swap<T>(pointer: &AtomicPtr<T>, new: *mut T) -> *mut T {
    if !is_single() {
        return pointer.swap(new, Ordering::SeqCst);
    }
    let before = pointer.load(Ordering::Relaxed);
    pointer.store(new, Ordering::Relaxed);
    before
}

/// Another lock, and who holds it without having taken it: so many readers, or a writer.
pub struct Plain<R> {
    lock: R,
    plainly: AtomicU32,
}

const WRITER: u32 = 1 << 31;

impl<R> Plain<R> {
    /// Holds the lock without taking it, if this thread is the only one.
    #[inline]
    fn hold(&self, free: bool, holders: u32) -> bool {
        let may = free && is_single();
        if may {
            self.plainly.store(holders, Ordering::Relaxed);
            // Should a signal handler start a thread, it sees this before anything that is done under the lock.
            compiler_fence(Ordering::SeqCst);
        }
        may
    }

    /// Gives up what is held so. Whoever took the lock holds it only when nobody does.
    #[inline]
    fn release(&self) -> bool {
        let before = self.plainly.load(Ordering::Relaxed);
        if before != 0 {
            self.plainly.store(if before == WRITER { 0 } else { before - 1 }, Ordering::Release);
        }
        before != 0
    }

    #[inline]
    fn holders(&self) -> u32 {
        self.plainly.load(Ordering::Acquire)
    }

    /// The lock was taken: waits for who has held it plainly since there was one thread.
    #[inline]
    fn wait(&self) {
        while self.holders() != 0 {
            std::thread::yield_now();
        }
    }
}

// SAFETY: who holds the lock either has taken it, and found nobody who holds it plainly, or holds it plainly since there was no other thread and
// nobody had taken it. Threads that come to be later take it first, and wait for him then.
unsafe impl<R: lock_api::RawMutex> lock_api::RawMutex for Plain<R> {
    #[allow(clippy::declare_interior_mutable_const)]
    const INIT: Self = Plain { lock: R::INIT, plainly: AtomicU32::new(0) };
    type GuardMarker = R::GuardMarker;

    #[inline]
    fn lock(&self) {
        if !self.hold(self.holders() == 0 && !self.lock.is_locked(), WRITER) {
            self.lock.lock();
            self.wait();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        if self.hold(self.holders() == 0 && !self.lock.is_locked(), WRITER) {
            return true;
        }
        let taken = self.lock.try_lock();
        if taken && self.holders() != 0 {
            // SAFETY: it was just taken.
            unsafe { self.lock.unlock() };
            return false;
        }
        taken
    }

    #[inline]
    unsafe fn unlock(&self) {
        if !self.release() {
            // SAFETY: the caller holds it, and so has taken it.
            unsafe { self.lock.unlock() }
        }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.holders() != 0 || self.lock.is_locked()
    }
}

// SAFETY: as above. Readers hold it plainly beside others who do, and take it beside others who have.
unsafe impl<R: lock_api::RawRwLock> lock_api::RawRwLock for Plain<R> {
    #[allow(clippy::declare_interior_mutable_const)]
    const INIT: Self = Plain { lock: R::INIT, plainly: AtomicU32::new(0) };
    type GuardMarker = R::GuardMarker;

    #[inline]
    fn lock_shared(&self) {
        let holders = self.holders();
        if !self.hold(holders != WRITER && !self.lock.is_locked_exclusive(), holders + 1) {
            self.lock.lock_shared();
            self.wait();
        }
    }

    fn try_lock_shared(&self) -> bool {
        let taken = self.lock.try_lock_shared();
        if taken && self.holders() != 0 {
            // SAFETY: it was just taken.
            unsafe { self.lock.unlock_shared() };
            return false;
        }
        taken
    }

    #[inline]
    unsafe fn unlock_shared(&self) {
        if !self.release() {
            // SAFETY: the caller holds it, and so has taken it.
            unsafe { self.lock.unlock_shared() }
        }
    }

    #[inline]
    fn lock_exclusive(&self) {
        if !self.hold(self.holders() == 0 && !self.lock.is_locked(), WRITER) {
            self.lock.lock_exclusive();
            self.wait();
        }
    }

    fn try_lock_exclusive(&self) -> bool {
        let taken = self.lock.try_lock_exclusive();
        if taken && self.holders() != 0 {
            // SAFETY: it was just taken.
            unsafe { self.lock.unlock_exclusive() };
            return false;
        }
        taken
    }

    #[inline]
    unsafe fn unlock_exclusive(&self) {
        if !self.release() {
            // SAFETY: the caller holds it, and so has taken it.
            unsafe { self.lock.unlock_exclusive() }
        }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.holders() != 0 || self.lock.is_locked()
    }

    #[inline]
    fn is_locked_exclusive(&self) -> bool {
        self.holders() == WRITER || self.lock.is_locked_exclusive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_api::{RawMutex as _, RawRwLock as _};

    /// A lock that is held since there was one thread.
    fn held<R>(lock: R, holders: u32) -> Plain<R> {
        Plain { lock, plainly: AtomicU32::new(holders) }
    }

    /// Another thread that gets the lock, which is released when it has had time to get it wrongly.
    fn waits(get: impl FnOnce() + Send, release: impl FnOnce()) {
        let got = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                get();
                got.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!got.load(Ordering::SeqCst));
            release();
        });
        assert!(got.load(Ordering::SeqCst));
    }

    #[test]
    fn threads_wait_for_who_holds_it_since_there_were_none() {
        let mutex = held(parking_lot::RawMutex::INIT, WRITER);
        assert!(mutex.is_locked() && !mutex.try_lock());
        // SAFETY: held as was said.
        waits(|| mutex.lock(), || unsafe { mutex.unlock() });
        assert!(mutex.is_locked() && !mutex.try_lock());
        // SAFETY: the thread above has taken it.
        unsafe { mutex.unlock() };
        assert!(!mutex.is_locked() && mutex.try_lock());

        let lock = held(parking_lot::RawRwLock::INIT, 1);
        assert!(lock.is_locked() && !lock.is_locked_exclusive() && !lock.try_lock_exclusive());
        // SAFETY: as above.
        waits(|| lock.lock_exclusive(), || unsafe { lock.unlock_shared() });
        assert!(lock.is_locked_exclusive() && !lock.try_lock_shared());
        // SAFETY: as above.
        unsafe { lock.unlock_exclusive() };
        assert!(!lock.is_locked());
        let lock = held(parking_lot::RawRwLock::INIT, WRITER);
        assert!(lock.is_locked_exclusive());
        // SAFETY: as above.
        waits(|| lock.lock_shared(), || unsafe { lock.unlock_exclusive() });
        assert!(lock.is_locked() && !lock.is_locked_exclusive());
    }

    /// In a process of its own, since the test runner has threads: a child of fork has one.
    #[test]
    fn in_a_process_of_one_thread_it_is_held_plainly() {
        let (mutex, lock) = (Mutex::new(1), RwLock::new(1));
        let counter = AtomicUsize::new(1);
        let run = || {
            if !is_single() {
                return 2;
            }
            let plain = |plainly: &AtomicU32, want| plainly.load(Ordering::Relaxed) == want;
            // SAFETY: only looked at.
            let (raw, raw_lock) = unsafe { (mutex.raw(), lock.raw()) };
            let guard = mutex.lock();
            let mut right = plain(&raw.plainly, WRITER) && !raw.lock.is_locked() && raw.is_locked();
            drop(guard);
            right &= plain(&raw.plainly, 0);
            let readers = (lock.read(), lock.read());
            right &= plain(&raw_lock.plainly, 2) && !raw_lock.lock.is_locked();
            drop(readers);
            right &= plain(&raw_lock.plainly, 0);
            drop(lock.write());
            right &= plain(&raw_lock.plainly, 0);
            right &= exchange(&counter, 1, 2) && !exchange(&counter, 1, 2) && decrease(&counter) == 2;
            UNKNOWN.store(true, Ordering::Relaxed);
            let guard = mutex.lock();
            right &= !is_single() && plain(&raw.plainly, 0) && raw.lock.is_locked();
            drop(guard);
            right &= !raw.is_locked();
            !right as i32
        };
        // Looked up before: the child must not wait for the loader's lock.
        is_single();
        // SAFETY: the child calls nothing but the above, which allocates nothing, and _exit.
        let status = unsafe {
            match libc::fork() {
                0 => libc::_exit(run()),
                child => {
                    let mut status = 0;
                    assert_eq!(libc::waitpid(child, &mut status, 0), child);
                    libc::WEXITSTATUS(status)
                }
            }
        };
        match status {
            2 => println!("skipped: the C library does not say how many threads there are"),
            status => assert_eq!(status, 0),
        }
    }
}
